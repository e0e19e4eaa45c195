//! The words of a key are numbers, so they are the same on processors of either byte order
//! (FC-27). Only the parser, which loads fields in network order, turns bytes around.

use policy::Scope;
use wire::{glance, packet};

use super::{Words, v4_head, v6_head};

const SCOPE: u32 = 0x0000_0405;

/// From 10.1.2.3:4660 to 192.0.2.1:443, UDP, by 28 bytes.
const V4: [u8; 28] = [
    0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0xac, 0xcc, 10, 1, 2, 3, 192, 0, 2, 1, //
    0x12, 0x34, 0x01, 0xbb, 0, 8, 0, 0,
];
/// From fd00:1::203:405 to 2001:db8::607:809, the same ports.
const V6: [u8; 48] = [
    0x60, 0, 0, 0, 0, 8, 17, 64, //
    0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 3, 4, 5, //
    0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 6, 7, 8, 9, //
    0x12, 0x34, 0x01, 0xbb, 0, 8, 0, 0,
];

/// A processor's byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    Big,
    Little,
}

impl Order {
    /// Loads a field of 4 bytes in network order, as a program for this processor does.
    fn load(self, bytes: &[u8], at: usize) -> u64 {
        let field: [u8; 4] = bytes[at..at + 4].try_into().unwrap();
        match self {
            // The load is the number.
            Order::Big => u32::from_be_bytes(field).into(),
            // The load is the number the wrong way round.
            Order::Little => u32::from_le_bytes(field).swap_bytes().into(),
        }
    }

    fn load_double(self, bytes: &[u8], at: usize) -> u64 {
        self.load(bytes, at) << 32 | self.load(bytes, at + 4)
    }

    /// The key of [`V4`] by the layout that `entry.rs` documents.
    fn key_v4(self) -> [u64; 4] {
        let identity = self.load(&V4, 20) | 17 << 32 | 0x80 << 40;
        [self.load(&V4, 12) | self.load(&V4, 16) << 32, identity, SCOPE.into(), 0]
    }

    /// The key of [`V6`], likewise.
    fn key_v6(self) -> [u64; 8] {
        let identity = self.load(&V6, 40) | 17 << 32 | 0xc0 << 40;
        let half = |at| self.load_double(&V6, at);
        [half(16), identity, half(8), half(32), half(24), 0xc0 << 40, SCOPE.into(), 0]
    }
}

// FC-27
#[test]
fn a_key_has_the_same_words_whatever_the_processors_byte_order() {
    let v4 = [0xc000_0201_0a01_0203, 0x8011_1234_01bb, SCOPE.into(), 0];
    let v6 = [
        0x0203_0405,
        0xc011_1234_01bb,
        0xfd00_0001_0000_0000,
        0x0607_0809,
        0x2001_0db8_0000_0000,
        0xc000_0000_0000,
        SCOPE.into(),
        0,
    ];
    for order in [Order::Big, Order::Little] {
        assert_eq!((order.key_v4(), order.key_v6()), (v4, v6), "{order:?}");
    }
    let flow = |bytes: &[u8]| packet::parse(bytes).unwrap().flow;
    let scope = Scope(SCOPE);
    let words: [u64; 4] = flow(&V4).words(scope);
    assert_eq!(words, v4);
    let words: [u64; 8] = flow(&V6).words(scope);
    assert_eq!(words, v6);
}

// FC-27: and so the heads of the fast path.
#[test]
fn the_head_of_a_key_has_the_same_words() {
    let (mut seen_v4, mut seen_v6) = ([0; glance::V4_SEEN], [0; glance::V6_SEEN]);
    seen_v4[..V4.len()].copy_from_slice(&V4);
    seen_v6[..V6.len()].copy_from_slice(&V6);
    for order in [Order::Big, Order::Little] {
        let addresses = order.load(&V4, 12) | order.load(&V4, 16) << 32;
        let head = v4_head(addresses, &glance::v4(&seen_v4).unwrap());
        assert_eq!(head, order.key_v4()[..2], "{order:?}");
        let half = |at| order.load_double(&V6, at);
        let ends = ([half(8), half(16)], [half(24), half(32)]);
        let head = v6_head(ends, &glance::v6(&seen_v6).unwrap());
        assert_eq!(head, order.key_v6()[..6], "{order:?}");
    }
}
