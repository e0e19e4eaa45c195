//! Bytes that are wiped when they go, also when they move for want of room.

use std::io;

use zeroize::Zeroizing;

/// Bytes that are held at first: a message of an SA fits.
const FIRST: usize = 1024;

/// Bytes of which no copy is left behind.
#[derive(Debug, Default)]
pub(crate) struct Wiped(Zeroizing<Vec<u8>>);

impl Wiped {
    pub(crate) fn of(bytes: Zeroizing<Vec<u8>>) -> Wiped {
        Wiped(bytes)
    }

    pub(crate) fn truncate(&mut self, length: usize) {
        self.0.truncate(length);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn into_bytes(self) -> Zeroizing<Vec<u8>> {
        self.0
    }

    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        let length = self.0.len() + bytes.len();
        if length > self.0.capacity() {
            self.keep(0, length);
        }
        self.0.extend_from_slice(bytes);
    }

    /// Leaves out so many bytes at the front.
    pub(crate) fn forget(&mut self, front: usize) {
        if front > 0 {
            self.keep(front, self.0.len() - front);
        }
    }

    /// Moves the bytes from a place on to where so many have room.
    fn keep(&mut self, from: usize, room: usize) {
        let room = room.next_power_of_two().max(FIRST);
        let mut moved = Zeroizing::new(Vec::with_capacity(room));
        moved.extend_from_slice(&self.0[from..]);
        // What was there before is wiped.
        self.0 = moved;
    }
}

impl io::Write for Wiped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_as_they_are_however_they_move() {
        let mut wiped = Wiped::default();
        let mut expected: Vec<u8> = Vec::new();
        for round in 0..200u8 {
            let bytes = vec![round; usize::from(round) * 7];
            wiped.extend(&bytes);
            expected.extend(&bytes);
            let front = expected.len().min(usize::from(round) * 5);
            wiped.forget(front);
            expected.drain(..front);
            assert_eq!(wiped.bytes(), expected);
        }
        assert!(expected.len() > FIRST);
        wiped.forget(expected.len());
        assert!(wiped.bytes().is_empty());
    }
}
