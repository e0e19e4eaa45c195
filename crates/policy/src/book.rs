//! Books of rules, and the directions in which packets cross the boundary.

/// The direction in which a packet crosses the boundary between protected and unprotected.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// Into the protected side.
    Inbound,
    /// Out by an unprotected port.
    Outbound,
}

impl Direction {
    /// Returns the book that is consulted about packets that cross the boundary in this direction.
    pub const fn book(self) -> Book {
        match self {
            Direction::Inbound => Book::SpdIn,
            Direction::Outbound => Book::SpdOut,
        }
    }

    /// `inbound` or `outbound`.
    pub const fn name(self) -> &'static str {
        match self {
            Direction::Inbound => "inbound",
            Direction::Outbound => "outbound",
        }
    }
}

/// A book of rules: the list that is asked one question about a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Book {
    /// SPD-I: may a packet from the unprotected side come in (RFC 4301 §4.4.1)?
    SpdIn,
    /// SPD-O: may a packet leave by an unprotected port, and sealed or in clear?
    SpdOut,
}

impl Book {
    /// All of them, in the order of their numbers.
    pub const ALL: [Book; 2] = [Book::SpdIn, Book::SpdOut];

    /// The direction in which packets cross the boundary that it is asked about.
    pub const fn direction(self) -> Direction {
        match self {
            Book::SpdIn => Direction::Inbound,
            Book::SpdOut => Direction::Outbound,
        }
    }
}
