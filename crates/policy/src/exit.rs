//! The way out of the gateway, as far as verdicts depend on it.

use crate::domain::PortClass;

/// The way out of the gateway that a packet is to take, as far as verdicts depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Exit {
    /// It leaves by no port, or another question is asked about that: no group of an egress port
    /// is asked.
    Other,
    /// By a protected port of this class.
    Inside(PortClass),
    /// By an unprotected port of this class.
    Outside(PortClass),
}
