//! Books of rules, the questions that are asked about a packet, and the directions in which packets
//! cross the boundary.

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

/// The security groups of a port: those that judge what comes by it, or what leaves by it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum GroupSide {
    /// `groups_in`: what comes by the port, in clear or decrypted.
    In,
    /// `groups_out`: what leaves by the port, before it is encrypted.
    Out,
}

impl GroupSide {
    /// Both sides.
    pub const ALL: [GroupSide; 2] = [GroupSide::In, GroupSide::Out];

    /// The book of these groups' rules.
    pub const fn book(self) -> Book {
        match self {
            GroupSide::In => Book::GroupIn,
            GroupSide::Out => Book::GroupOut,
        }
    }

    /// `in` or `out`.
    pub const fn name(self) -> &'static str {
        match self {
            GroupSide::In => "in",
            GroupSide::Out => "out",
        }
    }
}

/// A book of rules: the list that is asked one question about a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Book {
    /// SPD-I: may a packet from the unprotected side come in (RFC 4301 §4.4.1)?
    SpdIn,
    /// SPD-O: may a packet leave by an unprotected port, and encrypted or in clear?
    SpdOut,
    /// The security groups of the port by which a packet came.
    GroupIn,
    /// The security groups of the port by which a packet leaves.
    GroupOut,
}

impl Book {
    /// All of them, in the order of their numbers.
    pub const ALL: [Book; 4] = [Book::SpdIn, Book::SpdOut, Book::GroupIn, Book::GroupOut];

    /// The direction in which packets cross the boundary that it is asked about. `None`: groups are
    /// asked whether packets cross the boundary or not.
    pub const fn direction(self) -> Option<Direction> {
        match self {
            Book::SpdIn => Some(Direction::Inbound),
            Book::SpdOut => Some(Direction::Outbound),
            Book::GroupIn | Book::GroupOut => None,
        }
    }

    /// The direction in which its packets show a selector: inbound the remote side is the source.
    /// Selectors of group rules say source and destination as the packet has them.
    pub(crate) const fn reads(self) -> Direction {
        match self {
            Book::SpdIn => Direction::Inbound,
            Book::SpdOut | Book::GroupIn | Book::GroupOut => Direction::Outbound,
        }
    }

    /// Its rules in an error message.
    pub(crate) const fn rules_text(self) -> &'static str {
        match self {
            Book::SpdIn => "inbound policies",
            Book::SpdOut => "outbound policies",
            Book::GroupIn => "rules of groups_in",
            Book::GroupOut => "rules of groups_out",
        }
    }
}

/// A question about a packet: the books that are asked together. The groups of the egress port are
/// among them where the packet's way out is known ([`Exit`](crate::Exit)).
///
/// | question | books |
/// |---|---|
/// | `Enter` | groups in, SPD-I, groups out if it stays inside |
/// | `Leave` | SPD-O if it goes outside, groups out |
/// | `Through` | groups in, SPD-O if it goes outside, groups out |
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Question {
    /// May a packet that came from the unprotected side, in clear or opened by an SA, come in?
    Enter,
    /// May a packet that has come in, or was made here, leave?
    Leave,
    /// May a packet that came in clear by a protected port come and leave?
    Through,
}

impl Question {
    /// All of them.
    pub const ALL: [Question; 3] = [Question::Enter, Question::Leave, Question::Through];

    /// The book whose domains stand for the question in a [`Scope`](crate::Scope): another one for
    /// each question.
    pub(crate) const fn book(self) -> Book {
        match self {
            Question::Enter => Book::SpdIn,
            Question::Leave => Book::SpdOut,
            Question::Through => Book::GroupIn,
        }
    }

    /// The question that a book's domains stand for; that of `GroupOut` for none.
    pub(crate) const fn of(book: Book) -> Question {
        match book {
            Book::SpdIn => Question::Enter,
            Book::SpdOut | Book::GroupOut => Question::Leave,
            Book::GroupIn => Question::Through,
        }
    }
}
