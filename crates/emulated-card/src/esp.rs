//! The card's own ESP (RFC 4303): seals and opens in packet mode, and in crypto mode does the
//! cipher alone.
//!
//! ```text
//! send    clear frame, handle of an SA ─▶ outer header │ (UDP) │ ESP          to the wire
//! open    ESP of an SA of the card ─▶ clear frame, mark of the SA             to the host
//!         ESP of no SA of the card ─▶ as it came, without a mark              to the host
//! encrypt ESP in clear, handle of an SA ─▶ the same, sealed                   to the wire
//! open    ESP of an SA of crypto mode ─▶ the same, in clear; or as it came, forged: to the host
//! ```
//!
//! It shares nothing with the gateway: own parser, own framing, own replay window (a set of
//! numbers), and the ciphers of another library (RustCrypto) than those that seal AEADs there. So
//! where both say the same, it is no mistake of one of them (`tests/sealed`).
//!
//! A packet finds its SA by the handle that the host gives along, not by its headers: a card that
//! has forgotten the SA drops the packet, and never sends it in clear. Dropped and counted apart
//! are fragments, and packets with IPv4 options or IPv6 extension headers, both ways (XO-07, 24).
//!
//! Not here: policies (`card/policies`), segmentation, TFC padding, AES-CBC.

mod cipher;
mod clear;
mod crypto_mode;
mod frame;
mod headers;
mod opening;
mod sealing;
mod window;

use std::net::IpAddr;

use offload::{CardSa, Limit, Reading, SaDirection, Service, Tag};

use cipher::Key;
pub(crate) use opening::Arrived;
use window::Window;

/// Reason why the card drops a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Loss {
    /// The link is down, or the card is gone.
    NoLink,
    /// The card has no SA of this handle; it may have forgotten it.
    UnknownSa,
    /// The SA of this handle does not do this: another direction, or mode.
    WrongSa,
    /// It is no packet that the card can read.
    Malformed,
    /// It is a fragment.
    Fragment,
    /// It has IPv4 options or IPv6 extension headers.
    Options,
    /// In transport mode: it is not between the ends of the SA.
    Ends,
    /// It would be longer than an IP packet can be.
    TooLong,
    /// The SA has used up its hard limit.
    HardLimit,
    /// There is no further sequence number, or the host has used this one before.
    Number,
    /// The integrity check value is wrong.
    Authentication,
    /// The number was received before, or is too old.
    Replay,
    /// Authentic, but its padding or what it carries is wrong.
    Inside,
    /// A dummy packet (RFC 4303 §2.6).
    Dummy,
    /// Congestion was marked outside, and the packet inside cannot carry the mark (RFC 6040).
    Congestion,
    /// The policy beside the SA does not match it, or is not there any more.
    Policy,
}

impl Loss {
    /// All of them; as a number each counts into [`EspCounts`].
    pub const ALL: [Loss; 16] = [
        Loss::NoLink,
        Loss::UnknownSa,
        Loss::WrongSa,
        Loss::Malformed,
        Loss::Fragment,
        Loss::Options,
        Loss::Ends,
        Loss::TooLong,
        Loss::HardLimit,
        Loss::Number,
        Loss::Authentication,
        Loss::Replay,
        Loss::Inside,
        Loss::Dummy,
        Loss::Congestion,
        Loss::Policy,
    ];

    /// Its name in counts.
    pub const fn name(self) -> &'static str {
        match self {
            Loss::NoLink => "no_link",
            Loss::UnknownSa => "unknown_sa",
            Loss::WrongSa => "wrong_sa",
            Loss::Malformed => "malformed",
            Loss::Fragment => "fragment",
            Loss::Options => "options",
            Loss::Ends => "ends",
            Loss::TooLong => "too_long",
            Loss::HardLimit => "hard_limit",
            Loss::Number => "number",
            Loss::Authentication => "authentication",
            Loss::Replay => "replay",
            Loss::Inside => "inside",
            Loss::Dummy => "dummy",
            Loss::Congestion => "congestion",
            Loss::Policy => "policy",
        }
    }
}

/// Packets that the card dropped, by way and reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EspCounts {
    out: [u64; Loss::ALL.len()],
    inward: [u64; Loss::ALL.len()],
}

impl EspCounts {
    /// Packets of one way that were dropped for a reason.
    pub const fn dropped(&self, way: SaDirection, loss: Loss) -> u64 {
        match way {
            SaDirection::Out => self.out[loss as usize],
            SaDirection::In => self.inward[loss as usize],
        }
    }

    pub(crate) fn count(&mut self, way: SaDirection, loss: Loss) {
        match way {
            SaDirection::Out => self.out[loss as usize] += 1,
            SaDirection::In => self.inward[loss as usize] += 1,
        }
    }
}

/// The outcome of a packet that was to be sealed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sent {
    /// This frame leaves on the wire.
    Frame(Vec<u8>),
    /// Nothing leaves.
    Dropped(Loss),
}

/// The outcome of a frame that came by the wire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Opened {
    /// It is not ESP of an SA of this card: the host gets it as it came.
    AsItCame,
    /// The host gets this frame with the mark of the SA that opened it.
    Clear {
        /// The frame, in clear.
        frame: Vec<u8>,
        /// The SA's mark.
        mark: u64,
    },
    /// The host gets this frame with the mark of the SA of crypto mode that deciphered it: still
    /// ESP, the text in clear.
    Deciphered {
        /// The frame.
        frame: Vec<u8>,
        /// The SA's mark.
        mark: u64,
    },
    /// The host gets the frame as it came, with the mark of the SA of crypto mode that does not
    /// authenticate it.
    Forged {
        /// The SA's mark.
        mark: u64,
    },
    /// The host gets nothing.
    Dropped(Loss),
}

/// An SA in the card.
#[derive(Clone)]
pub(crate) struct LoadedSa {
    pub(crate) tag: Tag,
    sa: std::sync::Arc<CardSa>,
    key: Key,
    /// Of one that seals: the next number; `None`: there is none.
    next: Option<u64>,
    /// Of one that opens; of one of crypto mode that seals, the numbers that it sealed under.
    window: Window,
    packets: u64,
    bytes: u64,
    /// Set once a policy was taken in beside it: it carries nothing without.
    pub(crate) was_given_policy: bool,
}

impl LoadedSa {
    /// Makes an SA of what the card was given. `None`: its own look at it says no.
    pub(crate) fn new(tag: Tag, sa: &std::sync::Arc<CardSa>) -> Option<LoadedSa> {
        let key = Key::new(&sa.suite, sa.key.expose())?;
        let is_one_family = sa.ends.source.is_ipv4() == sa.ends.destination.is_ipv4();
        if !is_one_family || sa.spi < 256 || usize::from(sa.icv_bytes) != cipher::ICV {
            return None;
        }
        let size = match sa.direction {
            SaDirection::In => sa.window,
            SaDirection::Out => crypto_mode::MOST_DISORDER,
        };
        let window = Window::new(size, sa.numbers, sa.first_number);
        let next = Some(sa.first_number);
        let (sa, was_given_policy) = (sa.clone(), false);
        Some(LoadedSa { tag, sa, key, next, window, packets: 0, bytes: 0, was_given_policy })
    }

    /// Packets, and bytes that the cipher has processed.
    pub(crate) fn reading(&self, as_of_ms: u64) -> Reading {
        Reading { packets: self.packets, bytes: self.bytes, as_of_ms }
    }

    /// The right edge of the window of one that opens; `None`: nothing came.
    pub(crate) fn edge(&self) -> Option<u64> {
        let top = self.window.top();
        (self.is(SaDirection::In) && self.window.has_come()).then_some(top)
    }

    /// Returns whether two SAs would be found by the same packets.
    pub(crate) fn collides(&self, other: &LoadedSa) -> bool {
        let name = |sa: &CardSa| (sa.spi, sa.ends.destination, sa.udp.is_some());
        let both = self.is(SaDirection::In) && other.is(SaDirection::In);
        both && name(&self.sa) == name(&other.sa)
    }

    /// Returns whether it is of a direction.
    pub(crate) fn is_of(&self, direction: SaDirection) -> bool {
        self.is(direction)
    }

    fn is(&self, direction: SaDirection) -> bool {
        self.sa.direction == direction
    }

    fn serves(&self, direction: SaDirection, service: Service) -> Result<(), Loss> {
        let is_right = self.is(direction) && self.sa.service == service;
        if is_right { Ok(()) } else { Err(Loss::WrongSa) }
    }

    /// Returns whether the hard limit lets one more packet pass.
    fn has_room(&self) -> Result<(), Loss> {
        match self.sa.limits.hard_packets {
            Some(most) if self.packets >= most => Err(Loss::HardLimit),
            _ => Ok(()),
        }
    }

    /// Counts a packet; returns the limits that it reached.
    fn count(&mut self, text_bytes: usize) -> Limits {
        self.packets += 1;
        self.bytes += text_bytes as u64;
        let reached = |limit: Option<u64>| limit == Some(self.packets);
        let (soft, hard) = (self.sa.limits.soft_packets, self.sa.limits.hard_packets);
        [reached(soft).then_some(Limit::Soft), reached(hard).then_some(Limit::Hard)]
    }
}

impl std::fmt::Debug for LoadedSa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of {:?}, {} packets", self.tag, self.sa, self.packets)
    }
}

/// Limits that a packet reached.
pub(crate) type Limits = [Option<Limit>; 2];

/// The bytes of an address.
fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
