//! Names of an SA, and its two ends.

use std::fmt;
use std::net::IpAddr;

/// Security Parameters Index, host order. 0–255 are reserved (RFC 4303 §2.1) and never held.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Spi(u32);

impl Spi {
    /// The lowest that is not reserved.
    pub const LOWEST: Spi = Spi(256);

    /// The SPI with this number; `None` if it is reserved.
    pub const fn new(value: u32) -> Option<Spi> {
        if value >= Spi::LOWEST.0 { Some(Spi(value)) } else { None }
    }

    /// Returns the number, at least 256.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Spi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

impl fmt::Debug for Spi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Place of an SA among those of its direction in a snapshot: dense, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SaId(pub u32);

/// The two ends of a tunnel, both of one family.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tunnel {
    /// Our address: source of what we seal, destination of what we open.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
}
