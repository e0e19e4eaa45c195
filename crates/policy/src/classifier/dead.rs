//! Rules deleted since the classifier was made.

/// A set of positions, one bit each.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Dead {
    words: Vec<u64>,
}

impl Dead {
    /// Adds a position. Returns whether it was not in the set before.
    pub fn insert(&mut self, position: u32) -> bool {
        let (place, bit) = (position as usize / 64, 1 << (position % 64));
        if place >= self.words.len() {
            self.words.resize(place + 1, 0);
        }
        let word = &mut self.words[place];
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Returns whether a position is in the set.
    #[inline]
    pub fn contains(&self, position: u32) -> bool {
        let word = self.words.get(position as usize / 64);
        word.is_some_and(|word| word >> (position % 64) & 1 == 1)
    }

    /// Returns whether some position is in both sets.
    pub(super) fn meets(&self, other: &Dead) -> bool {
        self.words.iter().zip(&other.words).any(|(one, other)| one & other != 0)
    }

    /// Memory of the bits.
    pub(super) fn bytes(&self) -> usize {
        std::mem::size_of_val(&*self.words)
    }

    /// Returns the number of positions in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns whether no position is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }
}
