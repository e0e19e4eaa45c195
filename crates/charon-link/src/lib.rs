//! The messages between lockgated and its plugin in strongSwan's charon, over a `SOCK_SEQPACKET`
//! Unix socket. `plugins/charon/protocol.h` is the same for the plugin, with the order of messages.
//!
//! One packet of the socket is one message: a header of [`HEADER_BYTES`], then fields of type,
//! length and value; numbers are big-endian.
//!
//! ```text
//!  0  u32  magic "LGKM"         12  u32  bytes of the message
//!  4  u16  version               16  u64  incarnation of lockgated
//!  6  u16  kind                  24       fields: u16 type, u16 bytes, value
//!  8  u32  number of the request
//! ```
//!
//! | module | |
//! |---|---|
//! | `handle` | handles of SAs, and the identity of a charon |
//! | `field` | headers and fields as bytes |
//! | `taken` | the fields of a message, by their number |
//! | `request` | requests of the plugin |
//! | `told` | answers and reports of lockgated |
//! | `selector` | traffic selectors (RFC 7296 §3.13.1) |
//!
//! A message is taken whole or refused whole ([`Malformed`]): for an unknown field, one that comes
//! twice or is missing, a length that does not fit. Keys are wiped when they are let go of, and
//! stand in no error. Pure: no I/O.
#![forbid(unsafe_code)]

mod field;
mod handle;
mod request;
mod selector;
mod taken;
mod told;

pub use field::{Header, Malformed, OuterAddress};
pub use handle::{CharonId, HandleIssuer, ProcessNumber, SaHandle};
pub use request::{
    AddPolicy, AddSa, Algorithm, Charon, LinkMode, NameSa, Policy, PolicyAction, PolicyDirection,
    Request, SaDirection, SaLimits, SaName, UpdateSa, decode, encode_request,
};
pub use selector::Selector;
pub use told::{
    Answer, Hardness, Report, Status, Told, Use, decode_told, encode_answer, encode_report,
};

/// Version of the protocol.
pub const VERSION: u16 = 2;
/// Bytes of a message at most, the header included.
pub const MAX_MESSAGE: usize = 8192;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 24;
/// Selectors of each end that an SA has at most.
pub const MAX_SELECTORS: usize = 64;
/// Bytes of a name at most.
pub const MAX_NAME: usize = 128;
/// Handles of a message at most.
pub const MAX_HANDLES: usize = 1000;
