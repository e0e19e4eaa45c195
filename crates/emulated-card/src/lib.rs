//! An emulated network card, for where there is none. Every figure of it is labelled `emulated`.
//!
//! It has a capacity for the whole card, takes time to program, keeps an order or none, marks (and
//! drops only where a rule asks for it), and has the faults of cards: refusals, answers that come
//! late, twice or never, items forgotten, resets, another driver, links down, unplugging, and
//! garbage for marks.
//!
//! Its parser and its matcher are its own, written from `offload`'s items: they compare bytes as
//! they are on the wire, and know nothing of the rules that the walk has. That both say the same is
//! what tests show (`tests/agreement.rs`).
//!
//! It holds SAs too (`esp`), with framing and ciphers of its own: packets are sealed by the handle
//! that the host gives along, and what was opened comes with the mark of its SA.
//!
//! Pure: the caller says what time it is ([`EmulatedCard::advance`]), and a seed decides what
//! happens by chance. Not here: threads, ports, policies of SAs.
#![forbid(unsafe_code)]

mod card;
mod esp;
mod faults;
mod matcher;
mod parse;
mod random;

pub use card::{EmulatedCard, Received};
pub use esp::{EspCounts, Loss, Opened, Sent};
pub use faults::{Faults, Notice};
