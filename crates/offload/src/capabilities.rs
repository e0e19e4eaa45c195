//! The abilities of a card, as data, and for each that it lacks the reason.

/// Something that a card can do, or the reason why not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ability<T = ()> {
    /// The card can.
    Has(T),
    /// The card cannot; the text says why.
    Lacks(&'static str),
}

impl<T> Ability<T> {
    /// The details, if the card can.
    pub const fn get(&self) -> Option<&T> {
        match self {
            Ability::Has(details) => Some(details),
            Ability::Lacks(_) => None,
        }
    }

    /// Returns whether the card can.
    pub const fn is_there(&self) -> bool {
        matches!(self, Ability::Has(_))
    }

    /// The reason why the card cannot.
    pub const fn lack(&self) -> Option<&'static str> {
        match self {
            Ability::Has(_) => None,
            Ability::Lacks(why) => Some(why),
        }
    }
}

/// Everything that a card can do.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Capabilities {
    /// Name of the profile.
    pub name: &'static str,
    /// The source of the figures.
    pub source: Source,
    /// Rules for packets that come by a port.
    pub rules: Ability<RuleAbilities>,
    /// SAs and their policies.
    pub sas: Ability<SaAbilities>,
}

/// The source of a profile.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// Software plays the card.
    Emulated,
    /// Documents or a driver's source were read; no such card was tried.
    AsRead,
    /// The driver was asked.
    Asked,
}

impl Source {
    /// `emulated`, `as read` or `asked`.
    pub const fn name(self) -> &'static str {
        match self {
            Source::Emulated => "emulated",
            Source::AsRead => "as read",
            Source::Asked => "asked",
        }
    }
}

/// Rules that a card can hold.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RuleAbilities {
    /// Entries of the whole card: all its ports share them.
    pub entries: u32,
    /// Milliseconds that an entry takes to be programmed, about.
    pub programming_ms: u32,
    /// The order of rules that match the same packet.
    pub order: Order,
    /// The form of addresses.
    pub addresses: AddressForm,
    /// The form of ports.
    pub ports: Ability<PortForm>,
    /// Protocols that a rule can ask for.
    pub protocols: Protocols,
    /// Type and code of ICMP messages.
    pub messages: Ability,
    /// TCP segments that open a connection, apart from others.
    pub segments: Ability,
    /// IPv6.
    pub ipv6: Ability,
    /// Later fragments, apart from whole packets.
    pub fragments: Ability,
    /// Connections: the answers to what a rule let pass.
    pub reflect: Ability,
    /// Packets that leave.
    pub egress: Ability,
    /// Dropping whole packets with bare headers, instead of marking.
    pub drop: Ability,
}

/// The order of rules that match the same packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Order {
    /// None: any rule that matches may be the one that tags.
    None,
    /// By rank: the highest rule that matches tags.
    Priority,
}

impl Order {
    /// Both.
    pub const ALL: [Order; 2] = [Order::None, Order::Priority];

    /// `none` or `priority`.
    pub const fn name(self) -> &'static str {
        match self {
            Order::None => "none",
            Order::Priority => "priority",
        }
    }
}

/// The form of addresses in an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AddressForm {
    /// One prefix an entry; a range is several entries.
    Prefixes,
    /// One range an entry.
    Ranges,
}

/// The form of ports in an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PortForm {
    /// One port, or any.
    Single,
    /// One range.
    Ranges,
}

/// Protocols that a rule can ask for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Protocols {
    /// TCP and UDP, with their ports; or none asked for.
    TcpUdp,
    /// Every protocol, and the ports of all that have some.
    All,
}

/// SAs that a card can hold. The planner of rules does not read this.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SaAbilities {
    /// SAs at most; throughput may fall long before.
    pub most: Ability<u32>,
    /// Headers and ciphers by the card (packet mode).
    pub packet: Ability,
    /// Ciphers by the card, headers by the host (crypto mode).
    pub crypto: Ability,
    /// Names of the cipher suites.
    pub suites: &'static [&'static str],
    /// Lengths of the integrity check value, bytes.
    pub icv_bytes: &'static [u8],
    /// Transport mode.
    pub transport: Ability,
    /// Tunnel mode.
    pub tunnel: Ability,
    /// Extended sequence numbers.
    pub esn: Ability,
    /// Sizes of inbound replay windows.
    pub windows: &'static [u32],
    /// ESP in UDP.
    pub nat_traversal: Ability,
    /// Padding of traffic flow confidentiality.
    pub tfc: Ability,
    /// Limits by packets.
    pub packet_limits: Ability<Exactness>,
    /// Limits by packets that the kernel keeps when it carries the packets and the card does the
    /// cipher alone.
    pub kernel_limits: Ability<Exactness>,
    /// Limits by bytes.
    pub byte_limits: Ability<Exactness>,
    /// The number of the SA that opened a packet, beside the packet.
    pub rx_sa_mark: Ability,
    /// The way by which an outbound packet finds its SA.
    pub transmit: Transmit,
    /// Upper-layer protocols that a policy can ask for.
    pub upper: Protocols,
    /// Fragments.
    pub fragments: Ability,
    /// IPv4 options and IPv6 extension headers.
    pub options: Ability,
    /// Outer DSCP, ECN (RFC 6040), DF and hop limit as configured.
    pub outer_header: Ability,
    /// A card that has rules at the same time.
    pub beside_rules: Ability,
}

/// The exactness of a limit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Exactness {
    /// Nothing beyond the limit passes.
    Exact,
    /// The count is looked at now and then; what passes in between goes beyond.
    Polled {
        /// Milliseconds between looks.
        every_ms: u32,
    },
}

/// The way by which an outbound packet finds its SA in the card.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Transmit {
    /// By its headers: a packet that matches none leaves in clear.
    BySelector,
    /// By the handle that the host gives along.
    ByHandle,
}
