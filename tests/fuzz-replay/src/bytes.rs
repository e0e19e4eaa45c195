//! A fuzzer's input read as a list of choices.

/// Takes choices from the front of the input. When the input is used up every choice is 0, so
/// that any input means something and a shorter one means something simpler.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    /// Reads from the front of `data`.
    pub const fn new(data: &'a [u8]) -> Bytes<'a> {
        Bytes(data)
    }

    /// Returns whether the input is used up.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    /// A number of two bytes, big-endian.
    pub fn short(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    /// A number of four bytes, big-endian.
    pub fn word(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    /// One of a list.
    ///
    /// # Panics
    /// If the list is empty.
    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[usize::from(self.byte()) % list.len()]
    }

    /// Up to `count` bytes as they are.
    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.take(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }
}
