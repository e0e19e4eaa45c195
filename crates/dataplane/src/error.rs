//! Errors of making a snapshot.

use ipsec::{CardSeat, SaId, Spi};
use policy::TablesError;

use crate::ids::PortId;

/// Parts that do not fit together: the caller (validation) let a mistake through.
#[derive(Debug, PartialEq, Eq)]
pub enum SnapshotError {
    /// Two ports claim the same netdev and VLAN id.
    SamePort(PortId, PortId),
    /// The slot of a port was another's in the snapshot before.
    OtherPort(PortId),
    /// Two inbound SAs have one place in a card.
    SameSeat(CardSeat),
    /// Policies and SA sets do not fit together.
    Tables(TablesError),
    /// Two inbound SAs have one SPI.
    SameSpi(Spi),
    /// An SA's id is not its place in its list.
    Misplaced(SaId),
    /// The slot of an SA is another's.
    Taken(SaId),
    /// A route, next hop or neighbour names something that is not there.
    Dangling(&'static str),
}

impl std::fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::SamePort(a, b) => {
                write!(f, "ports {} and {} are the same netdev and VLAN", a.0, b.0)
            }
            Self::OtherPort(port) => write!(f, "slot {} was another port's just now", port.0),
            Self::Tables(error) => error.fmt(f),
            Self::SameSpi(spi) => write!(f, "two inbound SAs have SPI {spi}"),
            Self::SameSeat(CardSeat { netdev, tag, .. }) => {
                write!(f, "two inbound SAs have tag {tag:#x} in the card of netdev {netdev}")
            }
            Self::Taken(id) => write!(f, "slot {} is another SA's", id.0),
            Self::Misplaced(id) => write!(f, "SA {} is not at its place", id.0),
            Self::Dangling(what) => write!(f, "{what} names something that does not exist"),
        }
    }
}

impl std::error::Error for SnapshotError {}

impl From<TablesError> for SnapshotError {
    fn from(error: TablesError) -> SnapshotError {
        SnapshotError::Tables(error)
    }
}
