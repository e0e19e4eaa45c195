//! A keyed hash for tables whose keys strangers choose: AES rounds where the processor has them,
//! else SipHash. The form is chosen once; a batch of keys checks it once.
//!
//! A hash without a secret, or a linear one such as a CRC under any seed, lets an attacker compute
//! keys that fall together. Here each block of a key goes through three AES rounds under round keys
//! of its own, which are drawn at start, before the blocks are combined: a difference of two keys
//! that is chosen without the secret survives that with probability 2^-54 at most (nine active
//! S-boxes at 2^-6, Daemen and Rijmen, "The Design of Rijndael" §9).
//!
//! Not crate `ahash`: it uses AES rounds only where it is compiled for processors that all have
//! them, and states no such bound.

/// Blocks of 16 bytes that a key has at most.
pub const MAX_BLOCKS: usize = 4;

/// Rounds that each block goes through alone.
const ROUNDS: usize = 3;

/// Key of a hash: drawn from the operating system's generator at each start.
pub type Secret = [u8; 32];

/// A keyed hash of keys of 2 or 4 times 16 bytes. It protects nothing but a table's balance: it is
/// no MAC.
#[derive(Clone)]
pub struct KeyedHash {
    form: Form,
    /// Round keys: for each block one before the first round and one a round, then two to end with.
    rounds: [u128; MAX_BLOCKS * (ROUNDS + 1) + 2],
    /// The portable form's key.
    sip: (u64, u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    #[cfg(target_arch = "x86_64")]
    Aes(x86::AesRounds),
    Sip,
}

impl KeyedHash {
    /// The fastest form that this processor has.
    pub fn new(secret: &Secret) -> KeyedHash {
        let hash = KeyedHash::portable(secret);
        #[cfg(target_arch = "x86_64")]
        if let Some(rounds) = x86::AesRounds::detect() {
            return KeyedHash { form: Form::Aes(rounds), ..hash };
        }
        hash
    }

    /// The form for processors without AES rounds. Other values than those of [`new`](Self::new).
    pub fn portable(secret: &Secret) -> KeyedHash {
        let word =
            |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| secret[at * 8 + byte]));
        // The secret is stretched to as many round keys by SipHash in counter mode.
        let half = |n: u64| sip(word(0), word(1), &[word(2), word(3), n]);
        let rounds = std::array::from_fn(|at| {
            u128::from(half(2 * at as u64)) << 64 | u128::from(half(2 * at as u64 + 1))
        });
        KeyedHash { form: Form::Sip, rounds, sip: (half(u64::MAX), half(u64::MAX - 1)) }
    }

    /// Returns whether the processor's AES rounds are used.
    pub fn is_by_aes(&self) -> bool {
        self.form != Form::Sip
    }

    /// Hashes each key (`WORDS` numbers, an even count of at most 8): `out[i]` is that of
    /// `keys[i]`. All 64 bits of it are good.
    ///
    /// # Panics
    /// If `out` is shorter than `keys`.
    #[inline]
    pub fn hash<const WORDS: usize>(&self, keys: &[[u64; WORDS]], out: &mut [u64]) {
        const { assert!(WORDS.is_multiple_of(2) && WORDS / 2 <= MAX_BLOCKS) };
        let out = &mut out[..keys.len()];
        match self.form {
            #[cfg(target_arch = "x86_64")]
            Form::Aes(aes) => aes.hash(&self.rounds, keys, out),
            Form::Sip => {
                for (key, out) in keys.iter().zip(out) {
                    *out = sip(self.sip.0, self.sip.1, key);
                }
            }
        }
    }

    /// Hashes keys that end with the same two numbers: `out[i]` is what [`hash`](Self::hash) makes
    /// of `keys[i]` with `tail` behind it.
    ///
    /// # Panics
    /// If `out` is shorter than `keys`.
    #[inline]
    pub fn hash_with_tail<const HEAD: usize>(
        &self,
        keys: &[[u64; HEAD]],
        tail: [u64; 2],
        out: &mut [u64],
    ) {
        const { assert!(HEAD.is_multiple_of(2) && HEAD / 2 < MAX_BLOCKS) };
        let out = &mut out[..keys.len()];
        match self.form {
            #[cfg(target_arch = "x86_64")]
            Form::Aes(aes) => aes.hash_with_tail(&self.rounds, keys, tail, out),
            Form::Sip => {
                for (key, out) in keys.iter().zip(out) {
                    let mut whole = [0; 2 * MAX_BLOCKS];
                    whole[..HEAD].copy_from_slice(key);
                    whole[HEAD..HEAD + 2].copy_from_slice(&tail);
                    *out = sip(self.sip.0, self.sip.1, &whole[..HEAD + 2]);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{
        __m128i, _mm_aesenc_si128, _mm_cvtsi128_si64, _mm_set_epi64x, _mm_setzero_si128,
        _mm_xor_si128,
    };

    use super::{MAX_BLOCKS, ROUNDS};

    /// Proof that the processor has AES rounds.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(super) struct AesRounds(());

    impl AesRounds {
        /// Asks the processor.
        pub(super) fn detect() -> Option<AesRounds> {
            is_x86_feature_detected!("aes").then_some(AesRounds(()))
        }

        /// Hashes each key into its place.
        #[inline]
        pub(super) fn hash<const WORDS: usize>(
            self,
            rounds: &[u128],
            keys: &[[u64; WORDS]],
            out: &mut [u64],
        ) {
            // SAFETY: AesRounds is made only by detect, which found the feature; every x86-64 has
            // SSE2. Threat: an instruction that the processor does not have is a SIGILL.
            unsafe { hash_by_aes(rounds, keys, out) }
        }

        /// Hashes each key with the same last block into its place.
        #[inline]
        pub(super) fn hash_with_tail<const HEAD: usize>(
            self,
            rounds: &[u128],
            keys: &[[u64; HEAD]],
            tail: [u64; 2],
            out: &mut [u64],
        ) {
            // SAFETY: AesRounds is made only by detect, which found the feature; every x86-64 has
            // SSE2. Threat: an instruction that the processor does not have is a SIGILL.
            unsafe { hash_with_tail_by_aes(rounds, keys, tail, out) }
        }
    }

    /// One block of a key, after its rounds.
    #[target_feature(enable = "aes,sse2")]
    #[inline]
    fn block_alone(rounds: &[u128], block: usize, low: u64, high: u64) -> __m128i {
        let first = block * (ROUNDS + 1);
        let text = _mm_set_epi64x(high as i64, low as i64);
        let mut state = _mm_xor_si128(text, round_key(rounds, first));
        for round in 1..=ROUNDS {
            state = _mm_aesenc_si128(state, round_key(rounds, first + round));
        }
        state
    }

    #[target_feature(enable = "aes,sse2")]
    #[inline]
    fn round_key(rounds: &[u128], at: usize) -> __m128i {
        let key = rounds[at];
        _mm_set_epi64x((key >> 64) as i64, key as i64)
    }

    /// Two more rounds over the sum of the blocks.
    #[target_feature(enable = "aes,sse2")]
    #[inline]
    fn finish(rounds: &[u128], sum: __m128i) -> u64 {
        let last = MAX_BLOCKS * (ROUNDS + 1);
        let sum = _mm_aesenc_si128(sum, round_key(rounds, last));
        _mm_cvtsi128_si64(_mm_aesenc_si128(sum, round_key(rounds, last + 1))) as u64
    }

    /// [`hash_by_aes`] of keys whose last block is the same: it goes through its rounds once.
    #[target_feature(enable = "aes,sse2")]
    fn hash_with_tail_by_aes<const HEAD: usize>(
        rounds: &[u128],
        keys: &[[u64; HEAD]],
        tail: [u64; 2],
        out: &mut [u64],
    ) {
        let tail = block_alone(rounds, HEAD / 2, tail[0], tail[1]);
        for (key, out) in keys.iter().zip(out) {
            let mut sum = tail;
            for block in 0..HEAD / 2 {
                let state = block_alone(rounds, block, key[2 * block], key[2 * block + 1]);
                sum = _mm_xor_si128(sum, state);
            }
            *out = finish(rounds, sum);
        }
    }

    /// 1. each block of 16 bytes goes through [`ROUNDS`] rounds under its own round keys
    /// 2. the blocks are added
    /// 3. two more rounds spread the sum over all bits
    #[target_feature(enable = "aes,sse2")]
    fn hash_by_aes<const WORDS: usize>(rounds: &[u128], keys: &[[u64; WORDS]], out: &mut [u64]) {
        for (key, out) in keys.iter().zip(out) {
            let mut sum = _mm_setzero_si128();
            for block in 0..WORDS / 2 {
                let state = block_alone(rounds, block, key[2 * block], key[2 * block + 1]);
                sum = _mm_xor_si128(sum, state);
            }
            *out = finish(rounds, sum);
        }
    }
}

/// SipHash-1-3 of whole words (Aumasson and Bernstein, "SipHash: a fast short-input PRF").
fn sip(k0: u64, k1: u64, words: &[u64]) -> u64 {
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let length = (words.len() as u64 * 8) << 56;
    for word in words.iter().chain([&length]) {
        v[3] ^= word;
        sip_round(&mut v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    (0..3).for_each(|_| sip_round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[inline(always)]
fn sip_round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn secret(seed: u64) -> Secret {
        let mut secret = [0; 32];
        for (at, chunk) in secret.chunks_mut(8).enumerate() {
            chunk.copy_from_slice(&sip(seed, 7, &[at as u64]).to_le_bytes());
        }
        secret
    }

    fn forms(seed: u64) -> [KeyedHash; 2] {
        [KeyedHash::new(&secret(seed)), KeyedHash::portable(&secret(seed))]
    }

    fn hashes<const WORDS: usize>(hash: &KeyedHash, keys: &[[u64; WORDS]]) -> Vec<u64> {
        let mut out = vec![0; keys.len()];
        hash.hash(keys, &mut out);
        out
    }

    proptest! {
        #[test]
        fn keys_with_one_tail_hash_as_whole_keys(
            seed: u64,
            heads in prop::collection::vec(any::<[u64; 6]>(), 0..9),
            tail: [u64; 2],
        ) {
            for hash in forms(seed) {
                let whole: Vec<[u64; 8]> = (heads.iter())
                    .map(|h| [h[0], h[1], h[2], h[3], h[4], h[5], tail[0], tail[1]])
                    .collect();
                let mut out = vec![0; heads.len()];
                hash.hash_with_tail(&heads, tail, &mut out);
                prop_assert_eq!(&out, &hashes(&hash, &whole));
                let short: Vec<[u64; 2]> = heads.iter().map(|h| [h[0], h[1]]).collect();
                let whole: Vec<[u64; 4]> =
                    short.iter().map(|h| [h[0], h[1], tail[0], tail[1]]).collect();
                hash.hash_with_tail(&short, tail, &mut out);
                prop_assert_eq!(&out, &hashes(&hash, &whole));
            }
        }
    }

    #[test]
    fn sip_is_siphash_1_3() {
        // FC-28: the same words through the hasher of the standard library, which is SipHash-1-3
        // with a key of zeros.
        use std::hash::Hasher;
        for words in [&[][..], &[0], &[1, 2], &[u64::MAX; 7]] {
            let mut hasher = std::hash::DefaultHasher::default();
            words.iter().for_each(|word: &u64| hasher.write(&word.to_le_bytes()));
            assert_eq!(sip(0, 0, words), hasher.finish(), "{words:?}");
        }
    }

    #[test]
    fn the_rounds_are_those_of_aes() {
        // FC-28
        #[cfg(target_arch = "x86_64")]
        if let Some(aes) = x86::AesRounds::detect() {
            let zeros = [0u128; MAX_BLOCKS * (ROUNDS + 1) + 2];
            let mut out = [0; 1];
            aes.hash::<2>(&zeros, &[[0; 2]], &mut out);
            // Of a state whose bytes are all equal a round without a key changes the bytes alone,
            // by the S-box (FIPS 197 figure 7): 00, 63, fb, 0f, 76, 38.
            assert_eq!(out[0].to_le_bytes(), [0x38; 8]);
        }
    }

    #[test]
    fn what_collides_under_one_secret_collides_no_more_than_chance_under_another() {
        // FC-29: keys of IPv4 flows, all in one bucket of 1024 under the first secret.
        const BUCKETS: u64 = 1024;
        let keys: Vec<[u64; 4]> =
            (0..400_000).map(|n| [n << 7 | 1, 6 << 32 | n >> 9, 0, 0]).collect();
        for form in 0..2 {
            let first = &forms(0)[form];
            let all = hashes(first, &keys);
            let together: Vec<[u64; 4]> = (keys.iter().zip(&all))
                .filter(|(_, hash)| **hash % BUCKETS == 5)
                .map(|(key, _)| *key)
                .collect();
            assert!(together.len() > 250, "enough of them: {}", together.len());
            for seed in 1..20 {
                let mut buckets = vec![0u32; BUCKETS as usize];
                for hash in hashes(&forms(seed)[form], &together) {
                    buckets[(hash % BUCKETS) as usize] += 1;
                }
                // 391 keys in 1024 buckets: more than 9 in one has a chance of 10^-8.
                assert!(buckets.iter().all(|count| *count <= 9), "secret {seed}, form {form}");
            }
        }
    }

    #[test]
    fn buckets_fill_evenly() {
        // Flows that differ in a few bits only, by their low and by their high hash bits.
        for hash in forms(3) {
            for shift in [0, 22, 42] {
                let keys: Vec<[u64; 8]> =
                    (0..65_536).map(|n| [0x2001, n & 0xff, 0, n >> 8, 1, 0, 0, 0]).collect();
                let mut buckets = vec![0u32; 4096];
                for hash in hashes(&hash, &keys) {
                    buckets[(hash >> shift) as usize % 4096] += 1;
                }
                // 16 a bucket on average; the sum of squares over the mean is χ² with 4095 degrees.
                let chi: f64 = buckets.iter().map(|n| (f64::from(*n) - 16.0).powi(2) / 16.0).sum();
                assert!((3600.0..4600.0).contains(&chi), "χ² {chi} at bit {shift}");
            }
        }
    }

    proptest! {
        #[test]
        fn each_word_and_the_secret_count(
            key in any::<[u64; 8]>(), word in 0..8usize, bit in 0..64u32, seed in any::<u64>(),
        ) {
            let mut other = key;
            other[word] ^= 1 << bit;
            for (hash, stranger) in forms(seed).into_iter().zip(forms(seed ^ 1)) {
                let of = hashes(&hash, &[key, other]);
                prop_assert_ne!(of[0], of[1]);
                prop_assert_ne!(of[0], hashes(&stranger, &[key])[0]);
                prop_assert_eq!(of[0], hashes(&hash, &[key])[0]);
            }
        }
    }
}
