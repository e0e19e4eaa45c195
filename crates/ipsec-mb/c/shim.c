/*
 * What the Rust side cannot say without the library's header: sizes of its structures, its
 * functions as pointers of a known type, and bursts of its jobs.
 *
 * Nothing here allocates, keeps a pointer or checks a range: the Rust side has done that. Every
 * declaration stands once more, with its contract, in src/sys.rs.
 */
#include <stdint.h>
#include <string.h>

#include <intel-ipsec-mb.h>

/* As in src/gcm.rs: bytes of a packet's context on the stack of the caller. */
#define GCM_CONTEXT_BYTES 128

_Static_assert(sizeof(struct gcm_context_data) <= GCM_CONTEXT_BYTES, "the context grew");
_Static_assert(sizeof(size_t) == sizeof(uint64_t), "lengths are 64 bits wide");

/* As in src/sys.rs. */
enum {
    ARCHITECTURE_SSE,
    ARCHITECTURE_AVX2,
    ARCHITECTURE_AVX2_VAES,
    ARCHITECTURE_AVX512,
    ARCHITECTURE_AVX512_VAES
};

const char *lockgate_mb_version(void)
{
    return imb_get_version_str();
}

size_t lockgate_mb_manager_bytes(void)
{
    return imb_get_mb_mgr_size();
}

/*
 * The library takes the best of its forms by itself; nobody can ask for another. Of AES-GCM 2.0 has
 * one with VAES on AVX2 registers (its "AVX2 type 2"), which it takes where there is no AVX-512 and
 * the processor has VAES, VPCLMULQDQ, GFNI and SHA instructions: from Alder Lake on, but not on
 * Zen 3, which lacks GFNI. 1.3 has none.
 */
/* build.rs may name the code for older processors, so that it can be tested on newer ones. */
#ifndef INIT_MANAGER
#define INIT_MANAGER(manager) init_mb_mgr_auto(manager, NULL)
#endif

/* 0 where this processor can run the library and the library's own tests passed. */
int lockgate_mb_manager_init(void *memory)
{
    const uint64_t needed = IMB_FEATURE_AESNI | IMB_FEATURE_PCLMULQDQ | IMB_FEATURE_SSE4_2;
    IMB_MGR *manager;

    /* A shared library may be another than the header says. */
    if (imb_get_version() >> 8 != IMB_VERSION_NUM >> 8)
        return 1;
    manager = imb_set_pointers_mb_mgr(memory, 0, 1);
    if (manager == NULL)
        return 1;
    /* Tells a processor without AES instructions before any other of them is executed. */
    if ((imb_get_feature_flags() & needed) != needed)
        return 1;
    INIT_MANAGER(manager);
    if (imb_get_errno(manager) != 0 || manager->used_arch < IMB_ARCH_SSE)
        return 1;
    if ((manager->features & needed) != needed)
        return 1;
    if (!(manager->features & IMB_FEATURE_SELF_TEST))
        return 1;
    return (manager->features & IMB_FEATURE_SELF_TEST_PASS) ? 0 : 1;
}

int lockgate_mb_architecture(const IMB_MGR *manager)
{
    const uint64_t vaes = IMB_FEATURE_VAES | IMB_FEATURE_VPCLMULQDQ;
    const uint64_t type_2 = vaes | IMB_FEATURE_GFNI | IMB_FEATURE_SHANI;

    if (manager->used_arch >= IMB_ARCH_AVX512)
        return (manager->features & vaes) == vaes ? ARCHITECTURE_AVX512_VAES : ARCHITECTURE_AVX512;
    if (manager->used_arch < IMB_ARCH_AVX2)
        return ARCHITECTURE_SSE;
    return imb_get_version() >= IMB_VERSION(2, 0, 0) && (manager->features & type_2) == type_2
               ? ARCHITECTURE_AVX2_VAES
               : ARCHITECTURE_AVX2;
}

/* Not 0 where the library wipes what it has left in registers and on the stack. */
int lockgate_mb_wipes(const IMB_MGR *manager)
{
    return (manager->features & IMB_FEATURE_SAFE_DATA) != 0;
}

size_t lockgate_mb_gcm_key_bytes(void)
{
    return sizeof(struct gcm_key_data);
}

/* Expands the key and tells the functions that go with its length; 0: a length that is known. */
int lockgate_mb_gcm(const IMB_MGR *manager, const uint8_t *key, size_t key_bytes, void *expanded,
                    aes_gcm_enc_dec_t *seal, aes_gcm_enc_dec_t *open)
{
    switch (key_bytes) {
    case IMB_KEY_128_BYTES:
        IMB_AES128_GCM_PRE(manager, key, expanded);
        *seal = manager->gcm128_enc;
        *open = manager->gcm128_dec;
        return 0;
    case IMB_KEY_192_BYTES:
        IMB_AES192_GCM_PRE(manager, key, expanded);
        *seal = manager->gcm192_enc;
        *open = manager->gcm192_dec;
        return 0;
    case IMB_KEY_256_BYTES:
        IMB_AES256_GCM_PRE(manager, key, expanded);
        *seal = manager->gcm256_enc;
        *open = manager->gcm256_dec;
        return 0;
    default:
        return 1;
    }
}

/* As in src/sys.rs. */
enum { HASH_SHA_256_128, HASH_SHA_384_192, HASH_SHA_512_256 };
enum { SEAL, OPEN };

/* As in src/sys.rs: a packet of a burst. */
struct row {
    uint8_t *text;
    size_t text_bytes;
    const uint8_t *iv;
    const uint8_t *authenticated;
    size_t authenticated_bytes;
    uint8_t *icv;
};

/* AES-CBC in both directions, and the states of SHA-2 behind the two padded HMAC keys. */
struct schedule {
    DECLARE_ALIGNED(uint8_t encrypt[16 * 15], 16);
    DECLARE_ALIGNED(uint8_t decrypt[16 * 15], 16);
    DECLARE_ALIGNED(uint8_t inner[64], 16);
    DECLARE_ALIGNED(uint8_t outer[64], 16);
};

struct hash {
    IMB_HASH_ALG algorithm;
    size_t block_bytes;
    size_t icv_bytes;
    hash_fn_t whole;
    hash_one_block_t one_block;
};

static struct hash hash_of(const IMB_MGR *manager, int hash)
{
    switch (hash) {
    case HASH_SHA_256_128:
        return (struct hash){ IMB_AUTH_HMAC_SHA_256, 64, 16,
                              manager->sha256, manager->sha256_one_block };
    case HASH_SHA_384_192:
        return (struct hash){ IMB_AUTH_HMAC_SHA_384, 128, 24,
                              manager->sha384, manager->sha384_one_block };
    default:
        return (struct hash){ IMB_AUTH_HMAC_SHA_512, 128, 32,
                              manager->sha512, manager->sha512_one_block };
    }
}

size_t lockgate_mb_schedule_bytes(void)
{
    return sizeof(struct schedule);
}

size_t lockgate_mb_jobs_bytes(size_t jobs)
{
    return jobs * sizeof(IMB_JOB);
}

/* 0: a length that is known. */
int lockgate_mb_expand_aes(const IMB_MGR *manager, const uint8_t *key, size_t key_bytes,
                           struct schedule *schedule)
{
    switch (key_bytes) {
    case IMB_KEY_128_BYTES:
        IMB_AES_KEYEXP_128(manager, key, schedule->encrypt, schedule->decrypt);
        return 0;
    case IMB_KEY_192_BYTES:
        IMB_AES_KEYEXP_192(manager, key, schedule->encrypt, schedule->decrypt);
        return 0;
    case IMB_KEY_256_BYTES:
        IMB_AES_KEYEXP_256(manager, key, schedule->encrypt, schedule->decrypt);
        return 0;
    default:
        return 1;
    }
}

/* RFC 2104 §2 and §4: the states behind the first block of both hashes. */
void lockgate_mb_expand_hmac(const IMB_MGR *manager, int which, const uint8_t *key,
                             size_t key_bytes, struct schedule *schedule)
{
    const struct hash hash = hash_of(manager, which);
    uint8_t block[128] = { 0 };
    uint8_t padded[128];

    if (key_bytes > hash.block_bytes)
        hash.whole(key, key_bytes, block);
    else
        memcpy(block, key, key_bytes);
    for (size_t at = 0; at < hash.block_bytes; at++)
        padded[at] = block[at] ^ 0x36;
    hash.one_block(padded, schedule->inner);
    for (size_t at = 0; at < hash.block_bytes; at++)
        padded[at] = block[at] ^ 0x5c;
    hash.one_block(padded, schedule->outer);
    memset(block, 0, sizeof(block));
    memset(padded, 0, sizeof(padded));
    __asm__ volatile("" : : "r"(block), "r"(padded) : "memory");
}

/* 0: every job was completed in this sense. */
static int unfinished(const IMB_JOB *jobs, size_t count, IMB_STATUS status)
{
    size_t done = 0;

    for (size_t at = 0; at < count; at++)
        done += (jobs[at].status & status) == status;
    return done != count;
}

/* Ciphers every row's text in place; 0: all of them. */
int lockgate_mb_cipher(IMB_MGR *manager, IMB_JOB *jobs, const struct schedule *schedule,
                       size_t key_bytes, int direction, const struct row *rows, size_t count)
{
    const IMB_CIPHER_DIRECTION way = direction == SEAL ? IMB_DIR_ENCRYPT : IMB_DIR_DECRYPT;

    for (size_t at = 0; at < count; at++) {
        IMB_JOB *job = &jobs[at];

        job->enc_keys = schedule->encrypt;
        job->dec_keys = schedule->decrypt;
        job->key_len_in_bytes = key_bytes;
        job->src = rows[at].text;
        job->dst = rows[at].text;
        job->cipher_start_src_offset_in_bytes = 0;
        job->msg_len_to_cipher_in_bytes = rows[at].text_bytes;
        job->iv = rows[at].iv;
        job->iv_len_in_bytes = IMB_AES_BLOCK_SIZE;
        job->cipher_mode = IMB_CIPHER_CBC;
        job->cipher_direction = way;
        job->status = IMB_STATUS_BEING_PROCESSED;
    }
    IMB_SUBMIT_CIPHER_BURST_NOCHECK(manager, jobs, (uint32_t)count, IMB_CIPHER_CBC, way,
                                    (IMB_KEY_SIZE_BYTES)key_bytes);
    return unfinished(jobs, count, IMB_STATUS_COMPLETED_CIPHER);
}

/* Writes every row's ICV; 0: all of them. */
int lockgate_mb_authenticate(IMB_MGR *manager, IMB_JOB *jobs, const struct schedule *schedule,
                             int which, const struct row *rows, size_t count)
{
    const struct hash hash = hash_of(manager, which);

    for (size_t at = 0; at < count; at++) {
        IMB_JOB *job = &jobs[at];

        job->src = rows[at].authenticated;
        job->hash_start_src_offset_in_bytes = 0;
        job->msg_len_to_hash_in_bytes = rows[at].authenticated_bytes;
        job->auth_tag_output = rows[at].icv;
        job->auth_tag_output_len_in_bytes = hash.icv_bytes;
        job->u.HMAC._hashed_auth_key_xor_ipad = schedule->inner;
        job->u.HMAC._hashed_auth_key_xor_opad = schedule->outer;
        job->hash_alg = hash.algorithm;
        job->status = IMB_STATUS_BEING_PROCESSED;
    }
    IMB_SUBMIT_HASH_BURST_NOCHECK(manager, jobs, (uint32_t)count, hash.algorithm);
    return unfinished(jobs, count, IMB_STATUS_COMPLETED_AUTH);
}

/*
 * Ciphers one packet's text in place and writes the ICV over what is sent, as a job: the library
 * overlaps both there, and works as soon as the job is submitted. 0: it is done.
 */
int lockgate_mb_chacha20_poly1305(IMB_MGR *manager, int direction, const uint8_t *key,
                                  const struct row *row, const uint8_t *aad, size_t aad_bytes)
{
    IMB_JOB *job = IMB_GET_NEXT_JOB(manager);
    IMB_JOB *done;

    job->cipher_mode = IMB_CIPHER_CHACHA20_POLY1305;
    job->hash_alg = IMB_AUTH_CHACHA20_POLY1305;
    job->cipher_direction = direction == SEAL ? IMB_DIR_ENCRYPT : IMB_DIR_DECRYPT;
    job->chain_order = direction == SEAL ? IMB_ORDER_CIPHER_HASH : IMB_ORDER_HASH_CIPHER;
    job->enc_keys = key;
    job->dec_keys = key;
    job->key_len_in_bytes = 32;
    job->src = row->text;
    job->dst = row->text;
    job->cipher_start_src_offset_in_bytes = 0;
    job->msg_len_to_cipher_in_bytes = row->text_bytes;
    job->hash_start_src_offset_in_bytes = 0;
    job->msg_len_to_hash_in_bytes = row->text_bytes;
    job->iv = row->iv;
    job->iv_len_in_bytes = 12;
    job->u.CHACHA20_POLY1305.aad = aad;
    job->u.CHACHA20_POLY1305.aad_len_in_bytes = aad_bytes;
    job->auth_tag_output = row->icv;
    job->auth_tag_output_len_in_bytes = 16;
    done = IMB_SUBMIT_JOB_NOCHECK(manager);
    return done != job || job->status != IMB_STATUS_COMPLETED;
}

/* The same by direct calls, without a thread's state. It holds the packet's Poly1305 key. */
void lockgate_mb_chacha20_poly1305_direct(const IMB_MGR *manager, int direction,
                                          const uint8_t *key, const struct row *row,
                                          const uint8_t *aad, size_t aad_bytes)
{
    const chacha_poly_enc_dec_update_t update = direction == SEAL
                                                    ? manager->chacha20_poly1305_enc_update
                                                    : manager->chacha20_poly1305_dec_update;
    struct chacha20_poly1305_context_data state;

    IMB_CHACHA20_POLY1305_INIT(manager, key, &state, row->iv, aad, aad_bytes);
    update(key, &state, row->text, row->text, row->text_bytes);
    manager->chacha20_poly1305_finalize(&state, row->icv, 16);
    memset(&state, 0, sizeof(state));
    /* The compiler may not leave the wiping out. */
    __asm__ volatile("" : : "r"(&state) : "memory");
}
