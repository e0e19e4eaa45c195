//! Rules deleted since the classifier was made.

/// A set of positions, one bit each.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Dead {
    words: Vec<u64>,
}

impl Dead {
    /// Adds a position.
    pub fn insert(&mut self, position: u32) {
        let word = position as usize / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (position % 64);
    }

    /// Whether a position is in the set.
    #[inline]
    pub fn contains(&self, position: u32) -> bool {
        let word = self.words.get(position as usize / 64);
        word.is_some_and(|word| word >> (position % 64) & 1 == 1)
    }

    /// Whether some position is in both sets.
    pub(super) fn meets(&self, other: &Dead) -> bool {
        self.words.iter().zip(&other.words).any(|(one, other)| one & other != 0)
    }

    /// Memory of the bits.
    pub(super) fn bytes(&self) -> usize {
        std::mem::size_of_val(&*self.words)
    }

    /// How many positions are in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no position is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }
}
