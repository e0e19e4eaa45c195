//! Network cards as they are configured, and the audit of what answers in the rules' place.

use std::fmt::Write;
use std::path::PathBuf;

use dataplane::PortId;

use crate::written::{list, quoted};

/// Cards at most.
pub(crate) const MAX_CARDS: usize = 64;
/// The audit judges 1 of this many packets again if nothing is written.
pub(crate) const DEFAULT_ONE_OF: u32 = 1000;
/// The largest number of packets of which one may be judged again.
pub(crate) const MAX_ONE_OF: u32 = 1_000_000_000;

/// `[card.NAME]`: a network card that may decide rules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CardSettings {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: CardKind,
    /// The socket at which the process of an emulated card listens, absolute; others have none.
    pub socket: Option<PathBuf>,
    /// The ports that are on it, in the order of the file; the card counts into this list.
    pub ports: Vec<PortId>,
}

/// The kind of a card.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CardKind {
    /// Software in a card's place, a process of its own.
    Emulated,
    /// A card that does ESP under Linux, which carries the packets (xfrm).
    Xfrm(EspBy),
}

/// Whoever does ESP for the SAs of a card of kind `xfrm`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EspBy {
    /// The card.
    Card,
    /// Linux, in software, in the card's place: for tests.
    Linux,
}

impl CardKind {
    /// Returns its name, as the file has it.
    pub const fn name(self) -> &'static str {
        match self {
            CardKind::Emulated => "emulated",
            CardKind::Xfrm(_) => "xfrm",
        }
    }
}

/// The use of a card for rules that a port's groups ask.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum GroupOffload {
    /// Rules that are safe there and worth it go into the card of the port, if it has one.
    #[default]
    Auto,
    /// None do.
    None,
    /// As with `Auto`, and the card drops by itself what they deny.
    Drop,
}

impl GroupOffload {
    /// All of them.
    pub(crate) const ALL: [GroupOffload; 3] =
        [GroupOffload::Auto, GroupOffload::None, GroupOffload::Drop];

    /// Returns its name, as the file has it.
    pub const fn name(self) -> &'static str {
        match self {
            GroupOffload::Auto => "auto",
            GroupOffload::None => "none",
            GroupOffload::Drop => "drop",
        }
    }
}

/// The carrier of a peer's SAs: software, or the card of the port that leads to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum SaOffload {
    /// Software.
    #[default]
    None,
    /// The card does headers, cipher, numbers and windows. An SA that it does not take is refused.
    Packet,
    /// The card does the cipher alone, and software or Linux the rest. An SA that it does not take
    /// is refused.
    Crypto,
    /// The card where it can, all of it or the cipher alone, else software. Each SA lives in one of
    /// them for all its life.
    Auto,
}

impl SaOffload {
    /// All of them.
    pub(crate) const ALL: [SaOffload; 4] =
        [SaOffload::None, SaOffload::Packet, SaOffload::Crypto, SaOffload::Auto];

    /// Those of one SA: software, or a card's mode.
    pub const OF_SA: [SaOffload; 3] = [SaOffload::None, SaOffload::Packet, SaOffload::Crypto];

    /// Returns its name, as the file has it.
    pub const fn name(self) -> &'static str {
        match self {
            SaOffload::None => "none",
            SaOffload::Packet => "packet",
            SaOffload::Crypto => "crypto",
            SaOffload::Auto => "auto",
        }
    }

    /// Returns whether an SA that no card takes is refused.
    pub const fn needs_card(self) -> bool {
        matches!(self, SaOffload::Packet | SaOffload::Crypto)
    }
}

/// `[audit]`: packets that are judged again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AuditSettings {
    /// The audit judges 1 of this many packets again that the flow cache, the kernel or a card
    /// decided; 0: no audit.
    pub one_of: u32,
}

impl Default for AuditSettings {
    fn default() -> AuditSettings {
        AuditSettings { one_of: DEFAULT_ONE_OF }
    }
}

impl CardSettings {
    /// Writes the section; `ports` are the names of its ports.
    pub(crate) fn write(&self, out: &mut String, ports: &[&str]) -> std::fmt::Result {
        let CardSettings { name, kind, socket, .. } = self;
        writeln!(out, "[card.{}]\nkind = \"{}\"", quoted(name), kind.name())?;
        if let Some(socket) = socket {
            writeln!(out, "socket = {}", quoted(&socket.display().to_string()))?;
        }
        if *kind == CardKind::Xfrm(EspBy::Linux) {
            writeln!(out, "stand_in = \"linux\"")?;
        }
        writeln!(out, "ports = {}", list(ports.iter().map(ToString::to_string)))
    }
}

impl AuditSettings {
    /// Writes the section.
    pub(crate) fn write(self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "[audit]\none_of = {}", self.one_of)
    }
}
