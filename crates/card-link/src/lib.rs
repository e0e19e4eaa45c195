//! The messages between a host and a card that is a process, over a stream socket.
//!
//! ```text
//! host                                        card
//!   {"begin":{}}                         ─▶     forgets all that it had
//!        ◀─ {"begun":{"card":"emulated:rules=2000,ms=5,order=priority"}}
//!   {"place":{"tag":…,"rule":…}}         ─▶
//!        ◀─ {"event":{"live":{"handle":7,"incarnation":0}}}
//!   {"look":{"number":1}}                ─▶
//!        ◀─ {"found":{"number":1,"card":"…","at_ms":80,"items":[[7,120,9600]]}}
//! ```
//!
//! A message is one JSON object on a line. A host begins with [`Request::Begin`], since a host that
//! was killed left rules in the card whose tags the next host would misread. A second host that
//! begins takes the card over, and the card closes the connection of the first. Reports come in the
//! order of what happened: [`Found`] is all that the card had at one moment, and what was told
//! before it happened before that moment.
//!
//! | module | what |
//! |---|---|
//! | `message` | requests and reports |
//! | `rule` | checks on rules and policies that came from outside |
//! | `sa` | SAs in messages, with their keys |
//! | `line` | messages as lines, and lines out of a stream |
//! | `wiped` | bytes that leave no copy behind |
//!
//! Lines of SAs have keys in clear. So the socket is for its owner alone (mode 0600), what holds a
//! line is wiped when it goes, and no error about a line with a key shows what was in it.
//!
//! Pure: no I/O. Not here: frames and their tags (`wire::card_header`).
#![forbid(unsafe_code)]

mod line;
mod message;
mod rule;
mod sa;
mod wiped;

pub use line::{
    LineError, Lines, MAX_LINE, MAX_REQUEST, decode_report, decode_request, encode, encode_behind,
};
pub use message::{Found, Item, Report, Request};
pub use rule::Malformed;
