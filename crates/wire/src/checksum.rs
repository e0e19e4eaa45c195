//! The Internet checksum (RFC 1071) and its update in place (RFC 1624).

use crate::Family;
use crate::flow::Address;

/// Ones'-complement sum of `bytes` as big-endian 16-bit words, an odd last byte padded with zero,
/// not folded. Sums of parts of even length may be added.
#[inline]
pub fn sum(bytes: &[u8]) -> u64 {
    let mut total = 0u64;
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        total += u64::from(u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    }
    match *words.remainder() {
        [a] => total += u64::from(a) << 24,
        [a, b] => total += u64::from(u32::from_be_bytes([a, b, 0, 0])),
        [a, b, c] => total += u64::from(u32::from_be_bytes([a, b, c, 0])),
        _ => {}
    }
    total
}

/// Folds a [`sum`] to 16 bits. It is 0 only if the sum is.
#[inline]
pub fn fold(sum: u64) -> u16 {
    // A number plus itself with its halves exchanged: the upper half is the sum of both halves,
    // and the carry of the lower one is the carry that goes around.
    let halves = sum.wrapping_add(sum.rotate_left(32)) >> 32;
    let half = halves as u32;
    (half.wrapping_add(half.rotate_left(16)) >> 16) as u16
}

/// The checksum field's value for a sum taken with the field as zero.
#[inline]
pub fn finish(sum: u64) -> u16 {
    !fold(sum)
}

/// Returns whether an IPv4 header's checksum is right: its sum is a multiple of 0xffff.
#[inline]
pub fn header_is_good(header: &[u8]) -> bool {
    sum(header).is_multiple_of(0xffff)
}

/// The checksum after one 16-bit word of what it covers changed (RFC 1624 eqn. 3). A checksum that
/// was wrong stays as wrong as it was.
#[inline]
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    finish(u64::from(!checksum) + u64::from(!old) + u64::from(new))
}

/// Sum of the pseudo-header of upper-layer checksums (RFC 793, RFC 8200 §8.1).
pub fn pseudo_header(source: Address, destination: Address, protocol: u8, length: usize) -> u64 {
    let address = |a: Address| match a.family {
        Family::V4 => sum(&(a.value as u32).to_be_bytes()),
        Family::V6 => sum(&a.value.to_be_bytes()),
    };
    address(source) + address(destination) + u64::from(protocol) + length as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// RFC 1071 §4.1, word by word.
    fn plain(bytes: &[u8]) -> u16 {
        let mut total = 0u32;
        for pair in bytes.chunks(2) {
            total += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            total = (total & 0xffff) + (total >> 16);
        }
        !(total as u16)
    }

    proptest! {
        #[test]
        fn a_sum_is_folded_to_its_rest(
            high in prop_oneof![Just(0u32), Just(u32::MAX), Just(u32::MAX - 1), any::<u32>()],
            low in prop_oneof![Just(0u32), Just(u32::MAX), Just(1), any::<u32>()],
        ) {
            let sum = u64::from(high) << 32 | u64::from(low);
            // Of the two numbers that are a multiple of 0xffff, 0 is the sum of nothing only.
            let rest = match sum % 0xffff {
                0 if sum > 0 => 0xffff,
                rest => rest,
            };
            prop_assert_eq!(u64::from(fold(sum)), rest);
        }

        #[test]
        fn sum_agrees_with_the_word_by_word_form(bytes: Vec<u8>) {
            prop_assert_eq!(finish(sum(&bytes)), plain(&bytes));
        }

        #[test]
        fn update_keeps_a_good_checksum_good(
            mut bytes in proptest::collection::vec(any::<u8>(), 20..21),
            place in 0usize..9,
            new: u16,
        ) {
            bytes[18] = 0; bytes[19] = 0;
            let checksum = finish(sum(&bytes));
            let old = u16::from_be_bytes([bytes[2 * place], bytes[2 * place + 1]]);
            bytes[2 * place..2 * place + 2].copy_from_slice(&new.to_be_bytes());
            bytes[18..20].copy_from_slice(&update(checksum, old, new).to_be_bytes());
            prop_assert!(header_is_good(&bytes));
        }
    }

    #[test]
    fn rfc_1071_example() {
        assert_eq!(fold(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), 0xddf2);
    }
}
