//! Security associations and ESP (RFC 4301, 4303, 4106): framing, sequence numbers, replay
//! windows, and the one seam behind which every cipher library stands.
//!
//! Not here: which packet gets which SA (that is `policy` and `dataplane`), ports, routes, clocks.
#![forbid(unsafe_code)]

pub mod cipher;
pub mod ecn;
pub mod encapsulation;
mod error;
pub mod esp;
mod ids;
mod job;
mod layout;
pub mod lifetime;
mod outer;
pub mod replay;
pub mod sa;
pub mod sealer;
pub mod sequence;
pub mod suite;
pub mod template;
#[cfg(test)]
mod testing;

pub use cipher::{Cipher, SealError, SelfTestError, SelfTestStep, self_test};
pub use encapsulation::{DontFragment, Dscp, Encapsulation, Identifications, Mode, UdpPorts};
pub use error::SaError;
pub use esp::{EspHeader, Inner, OpenError, Payload};
pub use ids::{CardSeat, CardWork, SaId, SeatCarrier, Spi, Tunnel};
pub use job::{OpenJob, SealJob};
pub use layout::MAX_TAIL_BYTES;
pub use lifetime::{Account, AccountWords, Allowance, Expiries, Lifetime, Limit, Limits, Used};
pub use outer::{HOP_LIMIT, finish_udp};
pub use replay::{Advance, ReplayError, ReplayWindow, SharedWindow, WindowSizeError};
pub use sa::{InboundSa, OutboundSa, SealingTurn};
pub use sequence::{SequenceCounter, SequenceError, SequenceNumbers, SequenceRun};
pub use suite::{Encryption, Fingerprint, Integrity, KeyError, KeyMaterial, Suite};
