//! Owners of frames.

/// Sockets on one area at most.
pub(crate) const MAX_SOCKETS: usize = 1024;

/// The owner of a frame, in 16 bits: nobody, the caller, or one half of a socket, perhaps a closed
/// one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner(u16);

impl Owner {
    pub(crate) const FREE: Owner = Owner(0);
    pub(crate) const OUTSIDE: Owner = Owner(1);
    const FIRST_SOCKET: u16 = 4;
    /// Number of possible owners.
    pub(crate) const COUNT: usize = Owner::FIRST_SOCKET as usize + 2 * MAX_SOCKETS;

    /// The fill and rx rings of a socket, and frames of these rings in the kernel.
    pub(crate) fn receive(slot: usize) -> Owner {
        Owner(Owner::FIRST_SOCKET + 2 * slot as u16)
    }

    /// The tx and completion rings of a socket, and frames of these rings in the kernel.
    pub(crate) fn transmit(slot: usize) -> Owner {
        Owner(Owner::FIRST_SOCKET + 2 * slot as u16 + 1)
    }

    /// The socket's slot, if a socket is the owner.
    pub(crate) fn slot(self) -> Option<usize> {
        Some(usize::from(self.0.checked_sub(Owner::FIRST_SOCKET)? / 2))
    }

    pub(crate) fn is_transmit(self) -> bool {
        self.0 % 2 == 1
    }

    /// Place of the owner in a list of all owners.
    pub(crate) fn place(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the owner at a place below [`COUNT`](Self::COUNT).
    pub(crate) fn at(place: u16) -> Owner {
        Owner(place)
    }
}
