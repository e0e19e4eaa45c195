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
enum { ARCHITECTURE_SSE, ARCHITECTURE_AVX2, ARCHITECTURE_AVX512, ARCHITECTURE_AVX512_VAES };

const char *lockgate_mb_version(void)
{
    return imb_get_version_str();
}

size_t lockgate_mb_manager_bytes(void)
{
    return imb_get_mb_mgr_size();
}

/* 0 where this processor can run the library and the library's own tests passed. */
int lockgate_mb_manager_init(void *memory)
{
    const uint64_t needed = IMB_FEATURE_AESNI | IMB_FEATURE_PCLMULQDQ | IMB_FEATURE_SSE4_2;
    IMB_MGR *manager = imb_set_pointers_mb_mgr(memory, 0, 1);
    IMB_ARCH architecture = IMB_ARCH_NONE;

    if (manager == NULL)
        return 1;
    /* Tells a processor without AES instructions before any other of them is executed. */
    if ((imb_get_feature_flags() & needed) != needed)
        return 1;
    init_mb_mgr_auto(manager, &architecture);
    if (imb_get_errno(manager) != 0 || architecture < IMB_ARCH_SSE)
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

    if (manager->used_arch >= IMB_ARCH_AVX512)
        return (manager->features & vaes) == vaes ? ARCHITECTURE_AVX512_VAES : ARCHITECTURE_AVX512;
    return manager->used_arch >= IMB_ARCH_AVX2 ? ARCHITECTURE_AVX2 : ARCHITECTURE_SSE;
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
