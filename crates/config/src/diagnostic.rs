//! Every mistake of a configuration, with advice.
//!
//! No variant holds, and no text shows, anything that stands in a key file.

mod foreign;
mod help;

use std::borrow::Cow;
use std::io::ErrorKind;
use std::net::IpAddr;

use ipsec::{Encryption, Suite, Tunnel};
use policy::{AddressRange, Direction, SelectorError};

use wire::{Address, Vni};

use crate::groups::RuleAction;
use crate::meeting::{Meeting, MissingIke};
use crate::member_mistake::MemberMistake;
pub(crate) use foreign::renamed;
pub use foreign::{Foreign, Refusal};

/// The word that a line of a replay key file begins with.
pub(crate) const REPLAY_DIRECTION: &str = "out";
/// Words of a line of a replay key file.
pub(crate) const REPLAY_WORDS: usize = 7;

/// One thing that is wrong. The file's author is at fault, unless the text says otherwise.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)] // Each variant's message is its documentation; a field is what it shows.
pub enum DiagnosticKind {
    // The file
    #[error("cannot be read: {}", kind_text(*.kind))]
    Unreadable { kind: ErrorKind },
    #[error("is larger than {limit} bytes")]
    TooLarge { limit: u64 },
    #[error("is {size} bytes long; at most {limit} bytes are read")]
    TooLong { size: u64, limit: u64 },
    #[error("is not UTF-8 text: line {line}, column {column}")]
    NotText { line: u32, column: u32 },
    #[error("is {kind}, not a regular file")]
    NotRegular { kind: &'static str },
    #[error("there is a NUL byte: this is not a text file")]
    NulByte,
    #[error("line ends are CR alone (an old Macintosh's)")]
    CarriageReturns,
    #[error("typographic quote {quote}")]
    TypographicQuote { quote: char },
    #[error("this list has no `]`")]
    UnclosedList,
    #[error("{message}")]
    Syntax { message: String },
    #[error(
        "the configuration is refused for an unknown reason: this is a bug of Lockgate, report it"
    )]
    Unexplained,
    #[error("duplicate key `{key}`")]
    SameKey { key: String },
    #[error("a section without a name of its own is written twice")]
    SameSection,
    #[error(
        "in a file of more than {limit} bytes each policy begins with a line `[[policy]]`, each \
         rule with `[[rule]]`"
    )]
    EntryInFrame { limit: usize },
    #[error("this value is wrong, and is not shown because it looks like a key")]
    NotShown,

    // Keys and types
    #[error("unknown key `{key}` in {section}")]
    UnknownKey {
        key: String,
        section: String,
        nearest: Option<String>,
        allowed: &'static [&'static str],
    },
    #[error("unknown key `{key}` in {section}: {}", foreign.text())]
    ForeignKey { key: String, section: String, foreign: Foreign },
    #[error("unknown section `{name}`")]
    UnknownSection { name: String, nearest: Option<String>, allowed: &'static [&'static str] },
    #[error("`{key}` stands outside any section")]
    Homeless { key: String },
    #[error("`{key}`: {}", refusal.text())]
    Refused { key: String, refusal: Refusal },
    #[error("`{key}` must be {expected}, not {found}")]
    WrongType { key: &'static str, expected: &'static str, found: &'static str },
    #[error("`{key}` in {section} cannot be a section")]
    NotNamed { key: String, section: String, word: &'static str },
    #[error("{section} lacks `{key}`")]
    Missing { key: &'static str, section: String },
    #[error("there is no {section}")]
    MissingSection { section: &'static str },
    #[error("`{key}` cannot be \"{word}\"")]
    UnknownWord {
        key: &'static str,
        word: String,
        nearest: Option<String>,
        allowed: Vec<&'static str>,
    },
    #[error("`{key}` is {}; it goes from {lowest} to {highest}", number_text(*.value))]
    OutOfRange { key: &'static str, value: i128, lowest: u32, highest: u32 },
    #[error("more than {limit} {what}")]
    TooMany { what: &'static str, limit: usize },
    #[error("`{key}` is an empty list")]
    EmptyList { key: &'static str },
    #[error("`ports` is an empty list")]
    CardWithoutPorts,
    #[error("\"{name}\" cannot be a name")]
    BadName { name: String },
    #[error("\"{text}\" is listed twice")]
    Repeated { text: String },

    // Values
    #[error(transparent)]
    Selector(Box<SelectorError>),
    #[error("\"{text}\" is not an IP address")]
    NotAnAddress { text: String },
    #[error("\"{text}\" is not an address with its prefix length")]
    NotAnInterface { text: String },
    #[error("\"{text}\" is a range, not a prefix")]
    NotAPrefix { text: String },
    #[error("{address} cannot be used: it is {why}")]
    UnusableAddress { address: IpAddr, why: &'static str },
    #[error("\"{text}\" is not a MAC address")]
    NotALinkAddress { text: String },
    #[error("\"{text}\" is the MAC address of a group (multicast or broadcast)")]
    GroupLinkAddress { text: String },
    #[error("\"{text}\" is not the MAC address of an interface")]
    ZeroLinkAddress { text: String },

    // [node], [cache], [connections]
    #[error("`workers` cannot be \"{text}\"")]
    BadWorkers { text: String },
    #[error("when the daemon ends, Linux will forward in cleartext")]
    OpensOnExit,
    #[error("`{key}` is not the name of a directory")]
    BadDirectory { key: &'static str },
    #[error("`{key}` does not begin with `/`")]
    RelativeDirectory { key: &'static str },
    #[error("`run_dir` is longer than {limit} bytes: the path of the API's socket would not fit")]
    LongRunDir { limit: usize },
    #[error("`run_dir` and `state_dir` are the same directory")]
    SameDirectory,
    #[error("\"{text}\" is not a number of flows")]
    BadFlows { text: String },
    #[error("a flow cache has room for at least 2 flows")]
    CacheTooSmall,
    #[error("a flow cache has room for at most {limit} flows")]
    CacheTooLarge { limit: u64 },
    #[error("the flow cache would take {bytes} bytes, more than half of this machine's memory")]
    CacheBeyondMemory { bytes: u64, limit: u64, fits: u64 },
    #[error("`{key}` cannot be \"{text}\"")]
    BadSize { key: &'static str, text: String },
    #[error(
        "the table of connections would take {bytes} bytes, more than a quarter of this machine's \
         memory"
    )]
    ConnectionsBeyondMemory { bytes: u64, limit: u64, fits: u64 },
    #[error("`use` has no effect: the flow cache is off")]
    UseWithoutCache,

    // [metrics]
    #[error("\"{text}\" is not an address with a port")]
    BadListen { text: String },
    #[error("the daemon cannot listen on port 0")]
    ListenPortZero,
    #[error("the daemon cannot listen on {address}: it is {why}")]
    ListenAddress { address: IpAddr, why: &'static str },
    #[error("everyone who can reach {address} can read the counters")]
    ListenBeyond { address: IpAddr, port: u16 },

    // [port.NAME]
    #[error("`host` is the name of the port to this machine itself")]
    ReservedPortName,
    #[error("`lockgate0` is the netdev that Lockgate creates for this machine itself")]
    ReservedNetdev,
    #[error("\"{text}\" cannot be the name of a netdev")]
    BadNetdev { text: String },
    #[error("netdev {netdev} {} belongs to another port already", vlan_text(*.vlan))]
    SameLink { netdev: String, vlan: Option<i128> },
    #[error("{address} is an address of this gateway already")]
    SameAddress { address: IpAddr },
    #[error("another port has an address in {network} already")]
    SameNetwork { network: AddressRange },
    #[error("IPv6 needs an MTU of at least 1280 bytes")]
    MtuBelowV6,
    #[error("all ports are unprotected")]
    NoProtectedPort,
    #[error("all ports are protected: the policies decide nothing")]
    NoUnprotectedPort,
    #[error(
        "{number} {}",
        if *.number < 256 { "is an IP protocol number, not a port" } else { "is no protocol" }
    )]
    BarePort { number: u16, service: Option<(&'static str, &'static str)> },
    #[error("`allow_host` has no effect on a protected port")]
    AllowHostInside,
    #[error("`allow_host` has {count} entries, and a port has room for {limit}")]
    TooManyServices { count: usize, limit: usize },
    #[error("checksums are never completed on an unprotected port")]
    ChecksumOutside,
    #[error("no network card runs Lockgate's program: it redirects to sockets of this machine")]
    XdpOffload,
    #[error("another port on netdev {netdev} has xdp = \"{earlier}\"")]
    XdpDiffers { netdev: String, earlier: &'static str },
    #[error("unknown protocol \"{name}\"")]
    UnknownService { name: String, nearest: Option<String> },
    #[error("\"any\" would open this machine to everyone")]
    ServiceAny,
    #[error("Lockgate, not Linux, decrypts ESP to this machine")]
    ServiceEsp,

    // [peer.NAME]
    #[error("{address} is not an address of this gateway")]
    LocalNotOurs { address: IpAddr, ours: Vec<IpAddr> },
    #[error("{address} is an address of this gateway")]
    RemoteIsOurs { address: IpAddr },
    #[error("{address} is a multicast address: multicast SAs are not supported")]
    MulticastPeer { address: IpAddr },
    #[error("one end of the tunnel is IPv4, the other IPv6")]
    MixedTunnel,
    #[error("`keys` is neither \"file:NAME\", \"api\" nor \"ike\"")]
    BadKeys,
    #[error("a key file is named without a path")]
    BadKeyFileName,
    #[error("the name of the key file looks like a key")]
    KeyAsFileName,
    #[error("this is not an option of an SA")]
    SaOption { nearest: Option<&'static str> },
    #[error("the value of `{option}` makes no sense")]
    SaOptionValue { option: &'static str },
    #[error("the option `{option}` is there already")]
    SaOptionTwice { option: &'static str },
    #[error("hexadecimal digits come in pairs, and at most {most} bytes make a key")]
    SaKeyBytes { most: usize },
    #[error("{words} words: an SA needs 3 at least, then come its options")]
    SaWords { words: usize },
    #[error("another peer has this key file already")]
    SameKeyFile,
    #[error("manual keys need `manual = \"laboratory\"`")]
    ManualNotSaid,
    #[error("`manual` is for keys of a file: those of this peer come from a program")]
    ManualOfApi,
    #[error("suite \"null\" neither encrypts nor authenticates")]
    NullNotSaid,
    #[error("`benchmark` is for suite \"null\" alone: {suite} has integrity")]
    BenchmarkOfSuite { suite: Suite },
    #[error(
        "DANGER: peer `{peer}` has neither encryption nor integrity: anyone on the path can read \
         and change every packet, and can forge packets from the peer"
    )]
    NoIntegrity { peer: String },
    #[error("peer `{peer}` has no encryption: anyone on the path can read every packet")]
    NoEncryption { peer: String },
    #[error(
        "without ESN an SA stops for good after 4,294,967,295 packets: 71 minutes at 1 Mpps, and \
         manual keys are not renewed"
    )]
    ShortNumbers,
    #[error(
        "without ESN an SA stops for good after 4,294,967,295 packets: 71 minutes at 1 Mpps, by \
         when the program that puts its keys must have put others"
    )]
    ShortNumbersOfApi,
    #[error("a replay window of {size} packets is not supported")]
    WindowSize { size: u32 },
    #[error("`{key}` has an effect only with encapsulation = \"udp\"")]
    OnlyWithUdp { key: &'static str },
    #[error(
        "`{key}` has an effect only in tunnel mode: in transport mode packets keep their own \
         headers"
    )]
    OnlyInTunnelMode { key: &'static str },
    #[error("`{key}` has an effect only with keys = \"ike\"")]
    OnlyWithIke { key: &'static str },
    #[error("`{key}` has {family} addresses, and the other end has none of that family")]
    MovesAlone { key: &'static str, family: &'static str },
    #[error("the outer header is IPv6, which has no don't-fragment flag")]
    DfOfV6,
    #[error("`{key}` cannot be \"{text}\"")]
    NumberOrWord { key: &'static str, text: String, word: &'static str, lowest: u32, highest: u32 },
    #[error("`{key}` cannot be 0: the SA could not be used at all")]
    ZeroLimit { key: &'static str },
    #[error("`{key}` cannot be {text}")]
    BadAmount { key: &'static str, text: String },
    #[error("`{key}` ({soft}) is above `{other}` ({hard}), at which the SA has ended")]
    SoftAboveHard { key: &'static str, other: &'static str, soft: u64, hard: u64 },
    #[error("`{hard}` stands without `{soft}`: charon is asked for new keys at nine tenths of it")]
    LoneHardLimit { hard: &'static str, soft: &'static str },
    #[error("no policy names peer `{peer}`")]
    UnusedPeer { peer: String },
    #[error("no route leads to {remote}, the address of peer `{peer}`")]
    NoRouteToPeer { peer: String, remote: IpAddr },
    #[error("{remote}, the address of peer `{peer}`, lies behind a protected port")]
    PeerInside { peer: String, remote: IpAddr },
    #[error(
        "the tunnel to peer `{peer}` carries inner packets of at most {inner} bytes: too few for IP"
    )]
    TunnelBelowV4 { peer: String, inner: usize, least: usize },
    #[error(
        "the tunnel to peer `{peer}` carries inner packets of at most {inner} bytes, and its \
         policies IPv6, which needs 1280"
    )]
    TunnelBelowV6 { peer: String, port: String, inner: usize, least: usize },

    // `outer`
    #[error("`{key}` does not go with `outer`")]
    NotBesideOuter { key: &'static str },
    #[error("peer `{outer}` is behind another peer itself")]
    OuterOfOuter { outer: String },
    #[error("peer `{outer}` is in transport mode")]
    OuterInTransportMode { outer: String },
    #[error(
        "ESP between {} and {} is not protected {} by a policy of peer `{outer}`{}",
        .tunnel.local, .tunnel.remote, .direction.name(),
        .by.as_ref().map_or(String::new(), |by| format!(": policy `{by}` decides"))
    )]
    OuterWithoutPolicy { outer: String, tunnel: Tunnel, direction: Direction, by: Option<String> },

    // [[policy]]
    #[error("another policy is named `{name}`")]
    SamePolicy { name: String },
    #[error("there is no peer `{name}`")]
    UnknownPeer { name: String, nearest: Option<String> },
    #[error("the policy names neither a peer nor an action")]
    NoPeerNoAction,
    #[error("`ports` excludes no port")]
    AllPorts,
    #[error("a policy that protects must name a peer")]
    ProtectWithoutPeer,
    #[error("a policy with a peer protects, it cannot \"{action}\"")]
    PeerAndAction { action: String },
    #[error("{error}")]
    UnknownProtocol { nearest: Option<String>, error: Box<SelectorError> },
    #[error("protocol {protocol} is an IPv6 extension header, which selectors do not match")]
    ExtensionHeader { protocol: u8 },
    #[error("`{key}`: protocol {} has no ports", policy::selector::protocol_text(Some(*.protocol)))]
    NoPorts { key: &'static str, protocol: u8 },
    #[error("`{key}` with any protocol matches only packets that have ports")]
    PortsOfAny { key: &'static str, what: &'static str },
    #[error("`icmp` needs protocol \"icmp\" or \"icmpv6\"")]
    IcmpWithoutProtocol,
    #[error("`tcp` needs protocol \"tcp\"")]
    TcpWithoutProtocol,
    #[error("the addresses are of the other IP version than the ICMP")]
    IcmpOfOtherFamily { right: &'static str },
    #[error("`{one}` and `{other}` have no IP version in common: the {what} never matches")]
    NeverMatches { one: &'static str, other: &'static str, what: &'static str },
    #[error("in `{key}` this entry overlaps another")]
    Overlap { key: &'static str },
    #[error("`{key}` is not {end} alone, the end of peer `{peer}`, whose mode is transport")]
    TransportSelector { key: &'static str, peer: String, end: IpAddr },
    #[error("all of `remote` is in {network}, the network of protected port `{port}`")]
    RemoteInside { network: AddressRange, port: String },
    #[error("the policy never decides: policy `{by}` in line {line} before it covers it")]
    CoveredPolicy { by: String, line: u32 },
    #[error(
        "this policy ({action}) takes packets from policy `{from}` in line {line} ({protects}), \
         for example {example}"
    )]
    TakesPackets {
        action: Box<str>,
        from: Box<str>,
        line: u32,
        protects: Box<str>,
        example: Box<str>,
    },
    #[error(
        "this policy and policy `{other}` in line {line} have one priority and different actions \
         for the same packets, for example {example}: the later in the file decides"
    )]
    TiedPolicies { other: String, line: u32, example: String },
    #[error("{more} more such warnings are not shown: {doubt}")]
    MoreDoubts { more: usize, doubt: &'static str },
    #[error("{meeting}")]
    AllowHostMeets { meeting: Meeting },
    #[error(
        "allow_host {service} of port {port} and [ike]: of what this machine sends, that which \
         `local` and `remote` of [ike] match is dropped, answers of the service too"
    )]
    AllowHostWithinIke { port: String, service: String },
    #[error(
        "no unprotected port lists {} in `allow_host`: {}",
        .missing.list(), .missing.follows()
    )]
    IkeNotListed { missing: MissingIke },
    #[error("the policies compile to {rules} rules with this one; the limit is {limit}")]
    TooManyRules { rules: usize, limit: usize },

    // [set.NAME], [group.NAME], [[rule]]
    #[error("the set has neither `addresses` nor `file`")]
    SetWithoutMembers,
    #[error("the set has both `addresses` and `file`")]
    SetTwice,
    #[error("the set is empty")]
    EmptySet,
    #[error("set file {file} {problem}")]
    SetFile { file: String, problem: Box<DiagnosticKind> },
    #[error("set file {file} has no member")]
    SetFileEmpty { file: String },
    #[error("lies outside the directory of the configuration file")]
    OutsideDirectory,
    #[error("is reached by a symbolic link")]
    ReachedByLink,
    #[error("did not come with the configuration")]
    NotSent,
    #[error("is one too many: all set files together may have {limit} bytes")]
    IncludedTooLong { limit: u64 },
    #[error("the texts of the set files have more than {limit} bytes together")]
    SentTooLong { limit: u64 },
    #[error("lockgated does not start with set file {file}: it {problem}")]
    SetFileAtStart { file: String, problem: Box<DiagnosticKind> },
    #[error(transparent)]
    SetMember(MemberMistake),
    #[error("an earlier line has this member already")]
    RepeatedMember,
    #[error("files of sets are not read here")]
    SetFileRefused,
    #[error("there is no set `{name}`")]
    UnknownSet { name: String, nearest: Option<String> },
    #[error("\"{name}\" is the name of a set")]
    SetWithoutAt { name: String },
    #[error("there is no group `{name}`")]
    UnknownGroup { name: String, nearest: Option<String> },
    #[error("no port or virtual network lists group `{group}`: its rules decide nothing")]
    UnusedGroup { group: String },
    #[error("another rule of group `{group}` is called `{name}`")]
    SameRule { group: String, name: String },
    #[error(
        "rule `{rule}` ({}) never decides: rule `{by}` ({}) in line {line} above it covers it",
        .action.name(), .by_action.name()
    )]
    CoveredRule {
        rule: Box<str>,
        action: RuleAction,
        by: Box<str>,
        by_action: RuleAction,
        line: u32,
    },
    #[error(
        "policies and rules of groups compile to {rules} rules with this one; the limit is {limit}"
    )]
    TooManyGroupRules { rules: usize, limit: usize },

    // [overlay.NAME], [vni.NUMBER], [store]
    #[error("there is no overlay `{name}`")]
    UnknownOverlay { name: String, nearest: Option<String> },
    #[error("`{text}` is no number of a virtual network")]
    BadVni { text: String },
    #[error("virtual network {vni} is there twice")]
    SameVni { vni: Vni },
    #[error("no overlay carries virtual network {vni}")]
    NoOverlay { vni: Vni },
    #[error("there are {count} overlays: which of them carries virtual network {vni}?")]
    WhichOverlay { vni: Vni, count: usize },
    #[error("UDP port 500 and 4500 are those of IKE")]
    OverlayOnIke,
    #[error("hosts behind port `{port}` are told no direct paths: it is unprotected")]
    DirectUnprotected { port: String },
    #[error("{entrance} is no address that hosts can send to")]
    BadEntrance { entrance: Address },
    #[error("{entrance} with UDP port {udp_port} is an entrance already")]
    SameEntrance { entrance: Address, udp_port: u16 },
    #[error("overlay `{overlay}` carries no network: all of its packets are dropped")]
    OverlayWithoutNetwork { overlay: String },
    #[error("entrance {entrance} is not among the addresses of port `{port}`")]
    EntranceNotOurs { entrance: Address, port: String },
    #[error(
        "packets of overlay `{overlay}` leave unprotected port `{port}` in cleartext: no policy \
         protects what entrance {entrance} sends"
    )]
    OverlayInCleartext { overlay: String, port: String, entrance: Address },
    #[error("a store in etcd is not supported yet")]
    EtcdNotYet,
    #[error(
        "the table of endpoints would take {bytes} bytes, more than a quarter of this machine's \
         memory"
    )]
    EndpointsBeyondMemory { bytes: u64, limit: u64, fits: u64 },

    // [card.NAME], `offload_groups`, `offload`
    #[error("a card has no mode `full`")]
    OffloadFull,
    #[error("a card cannot have keys of a file")]
    OffloadOfFileKeys,
    #[error("keys of a file stay in software: `offload = \"auto\"` has no effect")]
    AutoOfFileKeys,
    #[error("a card cannot follow a peer whose address changes")]
    OffloadBehindNat,
    #[error("there is no card: no SA of this peer could be put")]
    OffloadWithoutCard,
    #[error("`fragment_outer` has no effect any more")]
    FragmentOuterWithoutEffect,
    #[error(
        "card `{card}` has Linux write outer headers, with the DSCP of inner packets: it refuses \
         SAs with a fixed `dscp`"
    )]
    DscpOnCard { card: String },
    #[error("Linux stands in for the card: for tests, and no card does anything")]
    LinuxStandsIn,
    #[error("`{key}` is not of a card of this kind")]
    NotOfThisCard { key: &'static str },
    #[error("the card has no `socket`")]
    CardWithoutSocket,
    #[error("ports of this card say \"drop\" and \"auto\" for `offload_groups`")]
    DropBesideAuto,
    #[error("port `{port}` is on a card already")]
    PortOnTwoCards { port: String },
    #[error("netdev {netdev} is on another card already")]
    NetdevOnTwoCards { netdev: String },
    #[error("`socket` is no absolute path of at most {limit} bytes")]
    BadSocket { limit: usize },
    #[error("another card listens at {path}")]
    SameSocket { path: String },

    // [[route]], [[neighbour]]
    #[error("there is no port `{name}`")]
    UnknownPort { name: String, nearest: Option<String> },
    #[error("there are two routes to {range}")]
    SameRoute { range: AddressRange },
    #[error("{range} is the network of a port already")]
    RouteOfNetwork { range: AddressRange },
    #[error("the route has no next hop")]
    RouteLeadsNowhere,
    #[error("a blackhole route has no next hop")]
    BlackholeLeads,
    #[error("the route and its router are of different IP versions")]
    MixedRoute,
    #[error("{via} is an address of this gateway")]
    ViaIsOurs { via: IpAddr },
    #[error("{via} is in no network of this gateway")]
    ViaNotConnected { via: IpAddr },
    #[error("{via} is in the networks of several ports")]
    ViaAmbiguous { via: IpAddr },
    #[error("{via} is not in a network of port `{port}` but of port `{right}`")]
    ViaOnOtherPort { via: IpAddr, port: String, right: String },
    #[error("{address} is an address of this gateway")]
    NeighbourIsOurs { address: IpAddr },
    #[error("there are two neighbours {address}")]
    SameNeighbour { address: IpAddr },

    // Key files
    #[error("`keys_dir` {directory} has mode {mode:04o}: others may put files into it")]
    KeysDirMode { directory: String, mode: u32 },
    #[error(
        "`keys_dir` {directory} belongs to user {owner}, who is neither root nor the user of this \
         process"
    )]
    KeysDirOwner { directory: String, owner: u32 },
    #[error("key file {file}: cannot be read: {}", kind_text(*.kind))]
    KeyFileUnreadable { file: String, kind: ErrorKind },
    #[error("key file {file} is a symbolic link")]
    KeyFileIsLink { file: String },
    #[error("key file {file} is not a regular file")]
    KeyFileNotRegular { file: String },
    #[error("key file {file} has mode {mode:04o}, wider than 0600")]
    KeyFileMode { file: String, mode: u32 },
    #[error(
        "key file {file} belongs to user {owner}, who is neither root nor the user of this process"
    )]
    KeyFileOwner { file: String, owner: u32 },
    #[error("key file {file} is larger than {limit} bytes")]
    KeyFileTooLarge { file: String, limit: u64 },
    #[error("no key in key file {file}")]
    KeyFileEmpty { file: String },
    #[error("key file {file} has no `{direction}` line: nothing can be {consequence}")]
    KeyFileOneWay { file: String, direction: &'static str, consequence: &'static str },
    #[error("the line does not begin with `{}`", .expected)]
    KeyDirection { expected: &'static str },
    #[error("the line has {got} words instead of {expected}")]
    KeyWords { expected: usize, got: usize },
    #[error("this is not an SPI")]
    KeySpi,
    #[error("SPIs 0 to 255 are reserved")]
    KeySpiReserved,
    #[error("this is not the name of a suite")]
    KeySuite,
    #[error("this is not an address")]
    KeyAddress,
    #[error("this is not a hexadecimal digit")]
    KeyDigit,
    #[error("{suite} takes {expected} hexadecimal digits ({}), not {got}", material_text(*.suite))]
    KeyLength { suite: Suite, expected: usize, got: usize },
    #[error("another inbound SA has this SPI")]
    SameInboundSpi,
    #[error("another outbound SA to the same address has this SPI")]
    SameOutboundSpi,
    #[error("another SA has this key material")]
    SameMaterial,
}

/// Returns an error of the operating system in words, its own where they are better known.
pub(crate) fn kind_text(kind: ErrorKind) -> Cow<'static, str> {
    match kind {
        ErrorKind::NotFound => "No such file or directory".into(),
        ErrorKind::PermissionDenied => "Permission denied".into(),
        kind => kind.to_string().into(),
    }
}

/// A number as it is shown; not one that is so large that it may be a key.
fn number_text(value: i128) -> String {
    match value {
        ..=-1_000_000_000_000_000 => "far too small".into(),
        1_000_000_000_000_000.. => "far too large".into(),
        value => value.to_string(),
    }
}

/// Returns the parts of a suite's key material, in their order.
pub(crate) fn material_text(suite: Suite) -> &'static str {
    match (suite.encryption(), suite.integrity()) {
        (Encryption::Gcm | Encryption::ChaCha20Poly1305, _) => "key, then salt",
        (Encryption::Cbc, _) => "encryption key, then HMAC key",
        (Encryption::Null, Some(_)) => "HMAC key",
        (Encryption::Null, None) => "16 bytes that name the SA and protect nothing",
    }
}

fn vlan_text(vlan: Option<i128>) -> String {
    vlan.map_or_else(|| "untagged".into(), |id| format!("with VLAN id {id}"))
}

impl DiagnosticKind {
    /// Returns whether the line of the mistake may hold a secret: a key in the wrong file.
    pub(crate) fn may_hold_a_secret(&self) -> bool {
        matches!(
            self,
            DiagnosticKind::BadKeys
                | DiagnosticKind::BadKeyFileName
                | DiagnosticKind::KeyAsFileName
                | DiagnosticKind::ForeignKey { foreign: Foreign::Secret, .. }
        )
    }
}

/// Returns the allowed word that was probably meant, if one is near enough.
pub fn nearest<'a>(word: &str, allowed: impl Iterator<Item = &'a str>) -> Option<String> {
    // Words of a configuration are short: a hostile one need not be measured.
    if word.len() > 64 {
        return None;
    }
    let plain = |word: &str| word.to_lowercase().replace('-', "_");
    let word = plain(word);
    let distance = |candidate: &str| {
        let candidate = plain(candidate);
        let begins =
            word.len() >= 3 && (candidate.starts_with(&word) || word.starts_with(&candidate));
        if begins { 1 } else { strsim::damerau_levenshtein(&word, &candidate) }
    };
    let best = allowed.map(|candidate| (distance(candidate), candidate)).min()?;
    (best.0 <= 1 + word.chars().count() / 4).then(|| best.1.to_owned())
}
