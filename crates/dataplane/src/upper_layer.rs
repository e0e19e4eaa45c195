//! The upper layer that later fragments have of their datagram's first one.

use wire::Upper;

/// The upper layer of a datagram, as its first fragment shows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct UpperLayer {
    pub(crate) protocol: u8,
    pub(crate) upper: Upper,
    /// A segment that opens a connection.
    pub(crate) opens: bool,
    /// Identifier of an ICMP echo.
    pub(crate) echo: Option<u16>,
}
