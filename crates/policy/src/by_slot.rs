//! Lists by slot, of which many share one base.

use std::sync::Arc;

/// A list by slot: the entries of a base, which all lists that are made of one another share, and
/// those that came behind them. A slot is never given again.
#[derive(Clone, Debug)]
pub(crate) struct BySlot<T> {
    base: Arc<[T]>,
    added: Vec<T>,
}

impl<T> BySlot<T> {
    /// A list upon a base.
    pub(crate) fn new(base: Arc<[T]>, added: Vec<T>) -> BySlot<T> {
        BySlot { base, added }
    }

    /// The entry of a slot.
    ///
    /// # Panics
    /// If the slot was never given.
    #[inline]
    pub(crate) fn at(&self, slot: usize) -> &T {
        match self.base.get(slot) {
            Some(entry) => entry,
            None => &self.added[slot - self.base.len()],
        }
    }

    /// Slots given so far.
    pub(crate) fn len(&self) -> usize {
        self.base.len() + self.added.len()
    }

    /// The entries of the base.
    pub(crate) fn base(&self) -> &Arc<[T]> {
        &self.base
    }

    /// The entries behind it.
    pub(crate) fn added(&self) -> &[T] {
        &self.added
    }

    /// All entries, by slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.base.iter().chain(&self.added)
    }

    /// Gives the next slot to an entry.
    pub(crate) fn push(&mut self, entry: T) {
        self.added.push(entry);
    }
}
