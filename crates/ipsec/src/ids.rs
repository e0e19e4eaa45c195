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

/// The part of ESP that a card does for an SA.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CardWork {
    /// All of it: headers, cipher, numbers, window and limits (packet mode).
    Packets,
    /// The cipher alone. Headers, numbers, window and limits are software's (crypto mode).
    Cipher,
}

/// Place of an SA in a network card. The card is told the tag with a packet that it is to seal or
/// to encrypt, and tells it with one that it opened or deciphered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CardSeat {
    /// Slot of the netdev that is the card's.
    pub netdev: u16,
    /// Name of the SA in the card; any bits.
    pub tag: u64,
    /// The card's part of the work.
    pub work: CardWork,
    /// The carrier of its packets.
    pub carrier: SeatCarrier,
}

impl CardSeat {
    /// A place whose packets workers hand to the card, and get from it.
    pub const fn of_worker(netdev: u16, tag: u64, work: CardWork) -> CardSeat {
        CardSeat { netdev, tag, work, carrier: SeatCarrier::Worker }
    }

    /// Returns whether the numbers of the SA, its window and its limits are kept elsewhere: by the
    /// card or by Linux.
    #[inline]
    pub fn has_numbers(self) -> bool {
        self.work == CardWork::Packets || self.carrier == SeatCarrier::Linux
    }
}

/// The carrier of packets between the host and a card.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SeatCarrier {
    /// Workers, which hand the card packets with the SA's tag.
    Worker,
    /// Linux alone: no worker seals, opens or hands over a packet of the SA.
    Linux,
}

/// The two ends of a tunnel, both of one family.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tunnel {
    /// Our address: source of what we seal, destination of what we open.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
}
