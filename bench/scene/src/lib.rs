//! The gateway that the benches drive, its traffic, and what must be true of every packet that
//! comes out.
//!
//! Two programs share it: `lockgate bench` takes times, `instructions` counts instructions.
#![forbid(unsafe_code)]

mod case;
mod check;
mod error;
mod groups;
mod handshake;
mod limits;
mod marked_port;
mod other_cipher;
mod overlay;
mod overlay_packets;
mod packets;
mod random;

pub use case::{
    Case, DMZ, Direction, HOP_LIMIT, Keys, LAN, MAX_FLOWS, MAX_SAS, MTU, WAN, own_mac, router_mac,
    spi,
};
pub use check::{Flaw, check, same};
pub use error::SceneError;
pub use groups::{PERMIT, Shape, Treatment, connections};
pub use handshake::Step;
pub use limits::{SaLimits, limited};
pub use marked_port::{MarkedPort, Preloaded};
pub use other_cipher::{Opened, OtherCipher, OtherError};
pub use packets::{arriving, drain, load, mix, other_cipher};
pub use random::Random;
