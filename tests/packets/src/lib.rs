//! Tests of the walk by packets: a gateway in a laboratory, its peers, and tables of packets with
//! what must become of them.
//!
//! [`lab`] builds the gateway, [`peer`] is the far end of a tunnel (its ESP is written by hand from
//! RFC 4303, only the cipher is shared), [`table`] is one row of a packet table.
#![forbid(unsafe_code)]

pub mod lab;
pub mod limits;
pub mod overlay;
pub mod peer;
pub mod table;

pub use lab::{Hub, Laboratory, Outcome, Sent};
pub use peer::Peer;
pub use table::{In, Out, Row};
