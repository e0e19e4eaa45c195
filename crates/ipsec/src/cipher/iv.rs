//! IVs of AES-CBC: nobody but us may know the next one (RFC 3602 §3).

use aes::Aes128;
use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};
use zeroize::Zeroizing;

/// Makes the IV of a packet out of its sequence number, by encrypting it under a key that is used
/// for nothing else (NIST SP 800-38A Appendix C, the first method): no two of an SA are equal, and
/// who sees some cannot tell the next.
pub(super) struct UnpredictableIv {
    key: Aes128,
    /// A block in which the number is hidden before it is encrypted. The IVs are as good without:
    /// see [`UnpredictableIv::of`].
    mask: Zeroizing<[u64; 2]>,
}

impl UnpredictableIv {
    /// Under a key of its own, made now: after a restart the same numbers give other IVs.
    ///
    /// # Panics
    /// If the operating system's generator fails.
    pub(super) fn fresh() -> UnpredictableIv {
        let mut random = Zeroizing::new([0; 32]);
        getrandom::fill(random.as_mut()).expect("random bytes of the operating system");
        let ([key, mask], _) = random.as_chunks() else { unreachable!("32 bytes are two blocks") };
        let mask = u128::from_ne_bytes(*mask);
        UnpredictableIv {
            key: Aes128::new(Array::cast_from_core(key)),
            mask: Zeroizing::new([mask as u64, (mask >> 64) as u64]),
        }
    }

    /// The IV of the packet with this number.
    ///
    /// Written as two words, the block would be read before both are in the cache, which takes
    /// ten times as long as the encryption. Two words that are each the same function of the number
    /// and of a word that only memory knows become one store; not inlined, so that nothing around
    /// it changes that.
    #[inline(never)]
    pub(super) fn of(&self, sequence: u64) -> [u8; 16] {
        let mut block = [0; 16];
        for (word, mask) in block.as_chunks_mut().0.iter_mut().zip(self.mask.iter()) {
            *word = (mask ^ sequence).to_ne_bytes();
        }
        self.key.encrypt_block(Array::cast_from_core_mut(&mut block));
        block
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_numbers_and_no_two_keys_have_one_iv() {
        let numbers = (0..1000).chain([u64::from(u32::MAX), 1 << 32, u64::MAX]);
        let (one, other) = (UnpredictableIv::fresh(), UnpredictableIv::fresh());
        let ivs: HashSet<[u8; 16]> =
            numbers.clone().flat_map(|number| [one.of(number), other.of(number)]).collect();
        assert_eq!(ivs.len(), 2 * numbers.count());
    }

    /// Half of the bits differ from one number to the next, as unpredictable IVs do.
    #[test]
    fn neighbouring_numbers_have_ivs_that_are_not_alike() {
        let ivs = UnpredictableIv::fresh();
        for number in 0..1000 {
            let [this, next] = [number, number + 1].map(|n| u128::from_be_bytes(ivs.of(n)));
            // 128 fair coins: fewer than 20 heads once in 10^15 draws.
            assert!((20..=108).contains(&(this ^ next).count_ones()), "{number}");
        }
    }
}
