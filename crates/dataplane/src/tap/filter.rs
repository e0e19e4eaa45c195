//! A capture's filter: tests of one packet, joined by `and`, `or` and `not`. Plain data that the
//! control side makes from text; the worker only evaluates it.

use policy::{AddressRange, PortRange};
use wire::{Address, Family, Flow, Upper};

use crate::verdict::{DropReason, Verdict};

/// Levels of a filter at most: its evaluation uses as much stack.
pub const MAX_DEPTH: usize = 64;

/// The way of a packet as a port sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Heading {
    /// Received by the port, or opened from what the port received.
    In,
    /// Leaves by the port, or is to be sealed and then leaves by it.
    Out,
}

impl Heading {
    /// The word for it: `in` or `out`.
    pub const fn name(self) -> &'static str {
        match self {
            Heading::In => "in",
            Heading::Out => "out",
        }
    }
}

/// The ends of a flow that a test is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ends {
    /// The source.
    Source,
    /// The destination.
    Destination,
    /// At least one of the two.
    Either,
    /// Both.
    Both,
}

impl Ends {
    /// Applies a test to the ends that are meant.
    fn any<T>(self, source: T, destination: T, holds: impl Fn(T) -> bool) -> bool {
        match self {
            Ends::Source => holds(source),
            Ends::Destination => holds(destination),
            Ends::Either => holds(source) || holds(destination),
            Ends::Both => holds(source) && holds(destination),
        }
    }
}

/// A kind of verdict.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fate {
    /// Forwarded in cleartext.
    Forward,
    /// Sealed.
    Protect,
    /// Handed to Linux.
    Host,
    /// Waits for a neighbour.
    Hold,
    /// Replaced by its fragments.
    Consumed,
    /// Dropped.
    Drop,
}

impl Fate {
    /// Every kind.
    pub const ALL: &[Fate] =
        &[Fate::Forward, Fate::Protect, Fate::Host, Fate::Hold, Fate::Consumed, Fate::Drop];

    /// The kind of a verdict.
    pub const fn of(verdict: Verdict) -> Fate {
        match verdict {
            Verdict::Forward(_) => Fate::Forward,
            Verdict::Protect(_) => Fate::Protect,
            Verdict::Host => Fate::Host,
            Verdict::Hold(_) => Fate::Hold,
            Verdict::Consumed => Fate::Consumed,
            Verdict::Drop(_) => Fate::Drop,
        }
    }

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Fate::Forward => "forward",
            Fate::Protect => "protect",
            Fate::Host => "host",
            Fate::Hold => "hold",
            Fate::Consumed => "consumed",
            Fate::Drop => "drop",
        }
    }
}

/// A test of a packet. A test of the flow fails for a packet that is not IP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Test {
    /// An address lies in a range.
    Address(Ends, AddressRange),
    /// A TCP, UDP, SCTP, DCCP or UDP-Lite port lies in a range.
    Port(Ends, PortRange),
    /// The upper-layer protocol.
    Protocol(u8),
    /// The IP version.
    Family(Family),
    /// The way that the packet goes.
    Heading(Heading),
    /// The kind of verdict.
    Fate(Fate),
    /// Dropped for this reason.
    Reason(DropReason),
    /// At least so many bytes long.
    AtLeast(u32),
    /// At most so many bytes long.
    AtMost(u32),
}

/// A filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Filter {
    /// One test.
    Test(Test),
    /// The other filter refuses the packet.
    Not(Box<Filter>),
    /// Both accept it.
    And(Box<Filter>, Box<Filter>),
    /// At least one accepts it.
    Or(Box<Filter>, Box<Filter>),
}

/// The parts of a packet that a filter sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subject {
    /// Addresses, protocol, ports; `None`: not IP.
    pub flow: Option<Flow>,
    /// Bytes of the packet, its link header included if it has one.
    pub length: u32,
    /// The way that it goes.
    pub heading: Heading,
    /// Verdict on the packet; `None`: the gateway made it and sent it.
    pub verdict: Option<Verdict>,
}

impl Filter {
    /// Returns whether the filter accepts a packet.
    pub fn accepts(&self, subject: &Subject) -> bool {
        match self {
            Filter::Test(test) => test.holds(subject),
            Filter::Not(other) => !other.accepts(subject),
            Filter::And(a, b) => a.accepts(subject) && b.accepts(subject),
            Filter::Or(a, b) => a.accepts(subject) || b.accepts(subject),
        }
    }

    /// Levels: 1 for a single test.
    pub fn depth(&self) -> usize {
        match self {
            Filter::Test(_) => 1,
            Filter::Not(other) => 1 + other.depth(),
            Filter::And(a, b) | Filter::Or(a, b) => 1 + a.depth().max(b.depth()),
        }
    }
}

impl Test {
    fn holds(&self, subject: &Subject) -> bool {
        let of_flow = |holds: &dyn Fn(&Flow) -> bool| subject.flow.as_ref().is_some_and(holds);
        match self {
            Test::Address(ends, range) => of_flow(&|flow| {
                let (source, destination) = (flow.source_address(), flow.destination_address());
                ends.any(source, destination, |address: Address| range.contains(address))
            }),
            Test::Port(ends, range) => of_flow(&|flow| match flow.upper {
                Upper::Ports { source, destination } => {
                    ends.any(source, destination, |port| (range.lo..=range.hi).contains(&port))
                }
                Upper::Icmp { .. } | Upper::None | Upper::Fragment => false,
            }),
            Test::Protocol(number) => of_flow(&|flow| flow.protocol == *number),
            Test::Family(family) => of_flow(&|flow| flow.family == *family),
            Test::Heading(heading) => subject.heading == *heading,
            Test::Fate(fate) => subject.verdict.map(Fate::of) == Some(*fate),
            Test::Reason(reason) => subject.verdict == Some(Verdict::Drop(*reason)),
            Test::AtLeast(bytes) => subject.length >= *bytes,
            Test::AtMost(bytes) => subject.length <= *bytes,
        }
    }
}
