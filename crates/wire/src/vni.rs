//! The number of a virtual network (RFC 7348 §5, RFC 8926 §3.4).

use core::fmt;

/// A virtual network identifier: 24 bits, 0 included.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vni(u32);

impl Vni {
    /// The largest one.
    pub const MAX: Vni = Vni(0xff_ffff);

    /// Returns the network of a number; `None` if it does not fit 24 bits.
    pub const fn new(number: u32) -> Option<Vni> {
        if number <= Vni::MAX.0 { Some(Vni(number)) } else { None }
    }

    /// Reads the three bytes of a header (network order).
    pub const fn from_bytes([a, b, c]: [u8; 3]) -> Vni {
        Vni(u32::from_be_bytes([0, a, b, c]))
    }

    /// Returns the three bytes of a header (network order).
    pub const fn to_bytes(self) -> [u8; 3] {
        let [_, a, b, c] = self.0.to_be_bytes();
        [a, b, c]
    }

    /// Returns its number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_bytes_are_those_of_a_header() {
        for number in [0, 1, 0x12_3456, 0xff_ffff] {
            let vni = Vni::new(number).unwrap();
            assert_eq!((vni.get(), Vni::from_bytes(vni.to_bytes())), (number, vni));
        }
        assert_eq!(Vni::from_bytes([1, 2, 3]).get(), 0x01_0203);
        assert_eq!((Vni::new(1 << 24), Vni::new(u32::MAX)), (None, None));
    }
}
