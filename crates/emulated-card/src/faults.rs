//! The faults of a card.

/// The number of times in a thousand that something goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// An item is refused.
    pub refuse: u16,
    /// An answer comes twice.
    pub twice: u16,
    /// An answer never comes.
    pub never: u16,
    /// An answer comes later than the programming takes.
    pub late: u16,
    /// Milliseconds by which it is late at most.
    pub late_ms: u64,
    /// A packet's mark is garbage.
    pub garbage: u16,
    /// A packet's mark is that of another item in the card: a lie that only an audit finds.
    pub swapped: u16,
    /// An SA is refused.
    pub sa: u16,
    /// A policy beside an SA is refused.
    pub policy: u16,
}

impl Faults {
    /// Returns whether marks can be wrong.
    pub(crate) const fn are_of_marks(&self) -> bool {
        self.garbage > 0 || self.swapped > 0
    }
}

/// The answer to a fault that the card could tell of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// The card tells.
    Told,
    /// The card says nothing.
    Silent,
}
