//! Layout of an entry as 64-bit words: 4 of IPv4, 8 of IPv6.
//!
//! ```text
//! word   IPv4 (32 bytes)                    IPv6 (64 bytes, one line)
//! 0      source | destination << 32         low half of the source
//! 1      identity                           identity
//! 2      scope | generation << 32           high half of the source
//! 3      verdict | route << 32              low half of the destination
//! 4                                         high half of the destination
//! 5                                         identity's kind alone
//! 6                                         scope | generation << 32
//! 7                                         verdict | route << 32
//!
//! identity: upper layer | protocol << 32 | kind << 40 | upper part of the mark << 48
//! verdict:  number | lower part of the mark << 18 | flags << 29
//! ```
//! A [`Mark`] says that packets of the flow change nothing of their connections. It is no part of
//! the key.
//!
//! A line holds one IPv6 entry or two of IPv4, so what a stranger writes, an address, must never be
//! read as an identity of the other family: words 1 and 5 of a line are made by us in every case,
//! and their kind says the family. Zeros are no entry, because no kind is 0.
//!
//! A bit of the kind says that a TCP segment opens a connection. It is set only where a rule of the
//! scope's books asks for it: elsewhere all segments of a flow share an entry.
//!
//! Numbers are as the parser left them; nothing here turns bytes around.

use policy::{Generation, Scope};
use wire::glance::{self, Glance, UpperKind};
use wire::{Family, Flow, Upper};

use super::marks::{MARK_SHIFT, Mark};
use super::verdicts::VerdictNumber;
use crate::ids::NextHopId;

/// Words of an IPv4 entry.
pub(super) const V4: usize = 4;
/// Words of an IPv6 entry.
pub(super) const V6: usize = 8;

/// Set in every kind: zeros are no entry.
const OCCUPIED: u8 = 0x80;
/// The entry is of IPv6, and of the whole line.
const IS_V6: u8 = 0x40;
/// The packets of the entry open a connection ([`Flow::opens`]).
const OPENS: u8 = 0x10;
/// Mask of the upper layer's kind: the low bits.
const UPPER: u8 = 0x03;
const LOW: u64 = u32::MAX as u64;
/// Bits below a mark's part in an identity.
const UPPER_MARK_SHIFT: u32 = 48;

/// The inputs that a remembered verdict depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    /// The scope in which the flow is classified.
    pub scope: Scope,
    /// All that a selector sees.
    pub flow: Flow,
}

/// Remembered route of a flow's destination.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CachedRoute {
    /// Nothing, or of another routing table.
    Unknown,
    /// Forwarded to this next hop, on the side of the boundary that the question is about:
    /// unprotected outbound, protected inbound.
    Via(NextHopId),
    /// Inbound: it goes no such way, so there is another question, or it is not forwarded.
    Other,
}

/// [`CachedRoute`] in 16 bits; larger next hops are not remembered.
const ROUTE_UNKNOWN: u16 = u16::MAX;
const ROUTE_OTHER: u16 = u16::MAX - 1;

impl CachedRoute {
    /// The next hop, if it leads to one.
    pub(crate) fn hop(self) -> Option<NextHopId> {
        match self {
            CachedRoute::Via(hop) => Some(hop),
            CachedRoute::Unknown | CachedRoute::Other => None,
        }
    }

    fn bits(self) -> u16 {
        match self {
            CachedRoute::Via(NextHopId(hop)) if hop < u32::from(ROUTE_OTHER) => hop as u16,
            CachedRoute::Via(_) | CachedRoute::Unknown => ROUTE_UNKNOWN,
            CachedRoute::Other => ROUTE_OTHER,
        }
    }

    #[inline(always)]
    fn of_bits(bits: u16) -> CachedRoute {
        match bits {
            ROUTE_UNKNOWN => CachedRoute::Unknown,
            ROUTE_OTHER => CachedRoute::Other,
            hop => CachedRoute::Via(NextHopId(hop.into())),
        }
    }
}

/// Value of an entry, as two words of 32 bits in one of 64: verdict, then route.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Value(u64);

impl Value {
    /// A value that neither an entry has nor a miss: no verdict has the highest number.
    pub(crate) const OF_NO_ENTRY: Value = Value(u64::MAX);

    pub(super) fn new(verdict: VerdictNumber, route: CachedRoute, epoch: u16) -> Value {
        let route = u64::from(epoch) << 16 | u64::from(route.bits());
        Value(u64::from(verdict.0) | route << 32)
    }

    /// The value of an entry.
    #[inline(always)]
    pub(super) fn of<const WORDS: usize>(entry: &[u64; WORDS]) -> Value {
        Value(entry[WORDS - 1])
    }

    /// Returns whether it says nothing, which no entry does.
    #[inline(always)]
    pub(crate) fn is_nothing(self) -> bool {
        self.0 == 0
    }

    /// Either of two values, of which one says nothing.
    #[inline(always)]
    pub(super) fn or(self, other: Value) -> Value {
        Value(self.0 | other.0)
    }

    /// The number of the verdict.
    #[inline(always)]
    pub(super) fn verdict(self) -> VerdictNumber {
        VerdictNumber(self.unmarked().0 as u32)
    }

    /// The value without its part of a mark.
    #[inline(always)]
    pub(super) fn unmarked(self) -> Value {
        Value(self.0 & !(Mark::LOW_MASK << MARK_SHIFT))
    }

    /// Its part of the mark.
    #[inline(always)]
    pub(super) fn low_mark(self) -> u32 {
        (self.0 >> MARK_SHIFT & Mark::LOW_MASK) as u32
    }

    /// Returns whether the verdict depends on the packet's connections.
    #[inline(always)]
    pub(crate) fn is_tracked(self) -> bool {
        self.verdict().is_tracked()
    }

    /// The route, if it was found under this numbering of routing tables.
    #[inline(always)]
    pub(super) fn route(self, epoch: u16) -> CachedRoute {
        let route = (self.0 >> 32) as u32;
        if (route >> 16) as u16 == epoch {
            CachedRoute::of_bits(route as u16)
        } else {
            CachedRoute::Unknown
        }
    }
}

/// A flow as the words of an entry, its value and generation zeros.
pub(crate) trait Words<const WORDS: usize> {
    /// True if the family is IPv6.
    const IS_V6: bool;

    fn words(&self, scope: Scope) -> [u64; WORDS];
}

/// The kind of a later fragment; the others are those of [`UpperKind`].
const LATER_FRAGMENT: u8 = 3;

#[inline(always)]
fn identity(flow: &Flow, family: u8) -> u64 {
    let (upper, kind) = match flow.upper {
        Upper::Ports { source, destination } => {
            (u32::from(source) << 16 | u32::from(destination), UpperKind::Ports as u8)
        }
        Upper::Icmp { kind, code } => {
            (u32::from(kind) << 8 | u32::from(code), UpperKind::Icmp as u8)
        }
        Upper::None => (0, UpperKind::None as u8),
        Upper::Fragment => (0, LATER_FRAGMENT),
    };
    let opens = if flow.opens { OPENS } else { 0 };
    identity_of(upper, flow.protocol, kind | family | opens)
}

#[inline(always)]
const fn identity_of(upper: u32, protocol: u8, kind: u8) -> u64 {
    upper as u64 | (protocol as u64) << 32 | ((OCCUPIED | kind) as u64) << 40
}

/// The word of a key or of its head that is its identity.
const IDENTITY: usize = 1;
/// [`OPENS`] in an identity.
const OPENS_BIT: u64 = (OPENS as u64) << 40;

/// Marks a key or its head as one of packets that open a connection.
#[inline(always)]
pub(crate) fn set_opens<const N: usize>(words: &mut [u64; N]) {
    words[IDENTITY] |= OPENS_BIT;
}

/// Returns whether the packets of a key open a connection.
#[inline(always)]
pub(super) fn opens<const N: usize>(words: &[u64; N]) -> bool {
    words[IDENTITY] & OPENS_BIT != 0
}

/// Makes the key of packets that open a connection that of the others of their flow.
#[inline(always)]
pub(super) fn clear_opens<const N: usize>(words: &mut [u64; N]) {
    words[IDENTITY] &= !OPENS_BIT;
}

/// Number of words of an IPv4 key before its scope.
pub(super) const V4_HEAD: usize = V4 - 2;
/// Number of words of an IPv6 key before its scope.
pub(super) const V6_HEAD: usize = V6 - 2;

/// Identities by protocol, without the upper layer.
const V4_IDENTITIES: [u64; 256] = {
    let (mut identities, mut protocol) = ([0; 256], 0);
    while protocol < 256 {
        let kind = glance::kind_v4(protocol as u8) as u8;
        identities[protocol] = identity_of(0, protocol as u8, kind);
        protocol += 1;
    }
    identities
};

const V6_IDENTITIES: [u64; 256] = {
    let (mut identities, mut protocol) = ([0; 256], 0);
    while protocol < 256 {
        let kind = glance::kind_v6(protocol as u8) as u8 | IS_V6;
        identities[protocol] = identity_of(0, protocol as u8, kind);
        protocol += 1;
    }
    identities
};

/// The head of an IPv4 flow's key, which does not say whether its packets open a connection: see
/// [`set_opens`]. `addresses` are `source | destination << 32`.
#[inline(always)]
pub(crate) fn v4_head(addresses: u64, glance: &Glance) -> [u64; V4_HEAD] {
    [addresses, V4_IDENTITIES[usize::from(glance.protocol)] | u64::from(glance.upper)]
}

/// The head of an IPv6 flow's key, likewise; addresses as high and low half.
#[inline(always)]
pub(crate) fn v6_head(
    (source, destination): ([u64; 2], [u64; 2]),
    glance: &Glance,
) -> [u64; V6_HEAD] {
    let identity = V6_IDENTITIES[usize::from(glance.protocol)] | u64::from(glance.upper);
    let alone = ((OCCUPIED | IS_V6) as u64) << 40;
    [source[1], identity, source[0], destination[1], destination[0], alone]
}

/// A key of its head and the word of scope and generation, without a value.
pub(super) fn whole<const HEAD: usize, const WORDS: usize>(
    head: &[u64; HEAD],
    scope: u64,
) -> [u64; WORDS] {
    const { assert!(HEAD + 2 == WORDS) };
    let mut words = [0; WORDS];
    words[..HEAD].copy_from_slice(head);
    words[HEAD] = scope;
    words
}

/// The word of scope and generation.
#[inline(always)]
pub(super) fn scope_word(scope: Scope, generation: Generation) -> u64 {
    u64::from(scope.0) | u64::from(generation.0) << 32
}

/// [`is_of`] of a key by its head and the word of scope and generation.
#[inline(always)]
pub(super) fn is_of_head<const HEAD: usize, const WORDS: usize>(
    entry: &[u64; WORDS],
    head: &[u64; HEAD],
    scope: u64,
) -> bool {
    let mut differs = entry[HEAD] ^ scope;
    for at in 0..HEAD {
        differs |= difference(entry[at], head[at], at);
    }
    differs == 0
}

/// The difference of two words of a key: a mark makes none.
#[inline(always)]
fn difference(word: u64, other: u64, at: usize) -> u64 {
    let differs = word ^ other;
    if at == IDENTITY { differs << (u64::BITS - UPPER_MARK_SHIFT) } else { differs }
}

/// The upper part of an entry's mark.
#[inline(always)]
pub(super) fn upper_mark<const WORDS: usize>(entry: &[u64; WORDS]) -> u16 {
    (entry[IDENTITY] >> UPPER_MARK_SHIFT) as u16
}

/// Writes a mark into an entry that has none.
pub(super) fn set_mark<const WORDS: usize>(entry: &mut [u64; WORDS], mark: Mark) {
    entry[IDENTITY] |= u64::from(mark.upper()) << UPPER_MARK_SHIFT;
    entry[WORDS - 1] |= u64::from(mark.low()) << MARK_SHIFT;
}

impl Words<V4> for Flow {
    const IS_V6: bool = false;

    #[inline(always)]
    fn words(&self, scope: Scope) -> [u64; V4] {
        let addresses = self.source as u64 & LOW | (self.destination as u64) << 32;
        [addresses, identity(self, 0), scope.0.into(), 0]
    }
}

impl Words<V6> for Flow {
    const IS_V6: bool = true;

    #[inline(always)]
    fn words(&self, scope: Scope) -> [u64; V6] {
        let (source, destination) = (self.source, self.destination);
        let identity = identity(self, IS_V6);
        [
            source as u64,
            identity,
            (source >> 64) as u64,
            destination as u64,
            (destination >> 64) as u64,
            u64::from(OCCUPIED | IS_V6) << 40,
            scope.0.into(),
            0,
        ]
    }
}

/// Writes the generation of its domain into the words of a key that have none.
#[inline(always)]
pub(super) fn set_generation<const WORDS: usize>(words: &mut [u64; WORDS], generation: Generation) {
    words[WORDS - 2] |= u64::from(generation.0) << 32;
}

/// The words of a key, its generation among them, with a value.
pub(super) fn with_value<const WORDS: usize>(
    mut words: [u64; WORDS],
    value: Value,
) -> [u64; WORDS] {
    words[WORDS - 1] = value.0;
    words
}

/// Returns whether an entry is of this key and of its generation.
#[inline(always)]
pub(super) fn is_of<const WORDS: usize>(entry: &[u64; WORDS], key: &[u64; WORDS]) -> bool {
    let mut differs = 0;
    for at in 0..WORDS - 1 {
        differs |= difference(entry[at], key[at], at);
    }
    differs == 0
}

/// The scope in the words of a key.
#[inline(always)]
pub(super) fn scope_of<const WORDS: usize>(words: &[u64; WORDS]) -> Scope {
    Scope(words[WORDS - 2] as u32)
}

/// Content of one half of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Half {
    /// Nothing, or what is left of an IPv6 entry.
    Empty,
    /// An IPv4 entry.
    V4,
    /// A half of the IPv6 entry that takes the line.
    V6,
}

/// Returns the content of a half (0 or 1) of a line.
pub(super) fn half(line: &[u64; 8], half: usize) -> Half {
    let kind = |half: usize| (line[half * 4 + 1] >> 40) as u8;
    let is_whole = (kind(0) & kind(1)) & (OCCUPIED | IS_V6) == OCCUPIED | IS_V6;
    match kind(half) {
        kind if kind & OCCUPIED == 0 => Half::Empty,
        kind if kind & IS_V6 == 0 => Half::V4,
        _ if is_whole => Half::V6,
        _ => Half::Empty,
    }
}

/// An entry's scope, generation and verdict, read back from its words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tenant {
    pub(super) scope: Scope,
    pub(super) generation: Generation,
    pub(super) verdict: VerdictNumber,
}

/// The tenant in the words of an entry.
pub(super) fn tenant<const WORDS: usize>(entry: &[u64; WORDS]) -> Tenant {
    Tenant {
        scope: scope_of(entry),
        generation: Generation((entry[WORDS - 2] >> 32) as u32),
        verdict: Value::of(entry).verdict(),
    }
}

/// The key in the words of an entry.
pub(super) fn key<const WORDS: usize>(entry: &[u64; WORDS]) -> Key {
    let identity = entry[IDENTITY];
    let (upper, kind) = (identity as u32, (identity >> 40) as u8);
    let upper = match kind & UPPER {
        0 => Upper::Ports { source: (upper >> 16) as u16, destination: upper as u16 },
        1 => Upper::Icmp { kind: (upper >> 8) as u8, code: upper as u8 },
        2 => Upper::None,
        _ => Upper::Fragment,
    };
    let (family, source, destination) = match WORDS {
        V4 => (Family::V4, u128::from(entry[0] & LOW), u128::from(entry[0] >> 32)),
        _ => (
            Family::V6,
            u128::from(entry[2]) << 64 | u128::from(entry[0]),
            u128::from(entry[4]) << 64 | u128::from(entry[3]),
        ),
    };
    let protocol = (identity >> 32) as u8;
    let opens = kind & OPENS != 0;
    let flow = Flow { family, source, destination, protocol, upper, opens };
    Key { scope: scope_of(entry), flow }
}
