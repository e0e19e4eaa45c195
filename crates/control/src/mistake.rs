//! Everything that can be wrong with a configuration, with what to do about it.
//!
//! No variant holds, and no text shows, anything that stands in a key file.

use crate::allow_host::Meeting;
use std::borrow::Cow;
use std::io::ErrorKind;
use std::net::IpAddr;

use ipsec::{Encryption, Suite};
use policy::{AddressRange, SelectorError};

/// How a line of a replay key file begins.
pub(crate) const REPLAY_DIRECTION: &str = "out";
/// Words of a line of a replay key file.
pub(crate) const REPLAY_WORDS: usize = 7;

/// What DESIGN §2 refuses on purpose, and what is not there yet: told by name, not as an unknown
/// key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Authentication Header.
    Ah,
    /// Traffic flow confidentiality padding.
    Tfc,
    /// Selectors populated from the packet.
    Pfp,
    /// Selectors by user, host or domain name.
    Names,
    /// SAs to a group.
    Multicast,
    /// Lifetimes and rekeying: later, with IKE.
    Lifetimes,
}

impl Refusal {
    /// The refusal behind a key that someone may well write.
    pub(crate) fn of_key(key: &str) -> Option<Refusal> {
        match key.replace('-', "_").as_str() {
            "ah" | "auth" => Some(Refusal::Ah),
            "tfc" | "tfc_padding" | "tfcpad" => Some(Refusal::Tfc),
            "pfp" | "populate_from_packet" => Some(Refusal::Pfp),
            "user" | "fqdn" | "dn" | "email" | "name_selector" | "local_name" | "remote_name" => {
                Some(Refusal::Names)
            }
            "multicast" | "multicast_group" => Some(Refusal::Multicast),
            "lifetime" | "lifetime_bytes" | "lifetime_packets" | "lifetime_seconds" | "rekey" => {
                Some(Refusal::Lifetimes)
            }
            _ => None,
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Refusal::Ah => "AH is not offered",
            Refusal::Tfc => "TFC padding is not offered",
            Refusal::Pfp => "selectors populated from the packet (PFP) are not offered",
            Refusal::Names => "selectors by name are not offered",
            Refusal::Multicast => "multicast SAs are not offered",
            Refusal::Lifetimes => "lifetimes and rekeying are not there yet",
        }
    }

    const fn help(self) -> &'static str {
        match self {
            Refusal::Ah => "ESP with an AEAD suite authenticates too (RFC 8221 §6)",
            Refusal::Tfc => "packets are padded to what ESP needs and no further",
            Refusal::Pfp => "write one policy per network: one SA set serves all of its flows",
            Refusal::Names => "write addresses, prefixes or ranges in `local` and `remote`",
            Refusal::Multicast => "name one peer per gateway, each with its own address",
            Refusal::Lifetimes => "manual keys have none; IKE will bring them",
        }
    }
}

/// One thing that is wrong. The file's author is at fault, unless the text says otherwise.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)] // Each variant's message is its documentation; a field is what it shows.
pub enum Mistake {
    // The file
    #[error("cannot be read: {}", kind_text(*.kind))]
    Unreadable { kind: ErrorKind },
    #[error("is larger than {limit} bytes")]
    TooLarge { limit: u64 },
    #[error("is {size} bytes long; at most {limit} bytes are read")]
    TooLong { size: u64, limit: u64 },
    #[error("is not UTF-8 text")]
    NotText,
    #[error("is {kind}, not a regular file")]
    NotRegular { kind: &'static str },
    #[error("there is a NUL byte: this is no text file")]
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
        "the configuration is refused for a reason that Lockgate cannot name (a fault of ours)"
    )]
    Unexplained,
    #[error("`{key}` is there twice")]
    SameKey { key: String },
    #[error("a section of a single name is there twice")]
    SameSection,
    #[error("in a file of more than {limit} bytes each policy begins with a line `[[policy]]`")]
    PolicyInFrame { limit: usize },
    #[error("what stands here is wrong and not shown, because it looks like a key")]
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
    #[error("`{key}` in {section} is no section of its own")]
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
    #[error("\"{name}\" cannot be a name")]
    BadName { name: String },
    #[error("\"{text}\" is there already")]
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
    #[error("\"{text}\" is the MAC address of no interface")]
    ZeroLinkAddress { text: String },

    // [node], [cache]
    #[error("`workers` cannot be \"{text}\"")]
    BadWorkers { text: String },
    #[error("when the daemon ends, Linux will forward in clear")]
    OpensOnExit,
    #[error("`{key}` is not a directory's name")]
    BadDirectory { key: &'static str },
    #[error("`{key}` does not begin with `/`")]
    RelativeDirectory { key: &'static str },
    #[error("`run_dir` is longer than {limit} bytes: the path of the API's socket would not fit")]
    LongRunDir { limit: usize },
    #[error("`run_dir` and `state_dir` are the same directory")]
    SameDirectory,
    #[error("\"{text}\" is no number of flows")]
    BadFlows { text: String },
    #[error("a cache for less than 2 flows would be none")]
    CacheTooSmall,
    #[error("a cache for more than {limit} flows is not offered")]
    CacheTooLarge { limit: u64 },
    #[error("the flow cache would take {bytes} bytes, more than half of this machine's memory")]
    CacheBeyondMemory { bytes: u64, limit: u64, fits: u64 },
    #[error("`use` does nothing: there is no cache")]
    UseWithoutCache,

    // [metrics]
    #[error("\"{text}\" is no address with a port")]
    BadListen { text: String },
    #[error("port 0 cannot be listened on")]
    ListenPortZero,
    #[error("{address} cannot be listened on: it is {why}")]
    ListenAddress { address: IpAddr, why: &'static str },
    #[error("whoever reaches {address} reads the counters")]
    ListenBeyond { address: IpAddr, port: u16 },

    // [port.NAME]
    #[error("`host` is the name of the port that stands for Linux itself")]
    ReservedPortName,
    #[error("`lockgate0` is the netdev that Lockgate makes for Linux itself")]
    ReservedNetdev,
    #[error("\"{text}\" cannot be the name of a netdev")]
    BadNetdev { text: String },
    #[error("netdev {netdev} {} belongs to another port already", vlan_text(*.vlan))]
    SameLink { netdev: String, vlan: Option<i128> },
    #[error("{address} is ours already")]
    SameAddress { address: IpAddr },
    #[error("another port is in {network} already")]
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
    #[error("`allow_host` does nothing on a protected port")]
    AllowHostInside,
    #[error("checksums are never completed on an unprotected port")]
    ChecksumOutside,
    #[error("unknown protocol \"{name}\"")]
    UnknownService { name: String, nearest: Option<String> },
    #[error("\"any\" would open this machine to everyone")]
    ServiceAny,
    #[error("ESP to this machine is opened by Lockgate, not by Linux")]
    ServiceEsp,

    // [peer.NAME]
    #[error("{address} is none of our addresses")]
    LocalNotOurs { address: IpAddr, ours: Vec<IpAddr> },
    #[error("{address} is our own address")]
    RemoteIsOurs { address: IpAddr },
    #[error("{address} is a multicast address: multicast SAs are not offered")]
    MulticastPeer { address: IpAddr },
    #[error("one end of the tunnel is IPv4, the other IPv6")]
    MixedTunnel,
    #[error("`keys` is not \"file:NAME\"")]
    BadKeys,
    #[error("a key file is named without a path")]
    BadKeyFileName,
    #[error("the name of the key file looks like a key")]
    KeyAsFileName,
    #[error("another peer has this key file already")]
    SameKeyFile,
    #[error("keys from IKE are not there yet")]
    IkeNotYet,
    #[error("manual keys must be asked for")]
    ManualNotSaid,
    #[error("suite \"null\" neither encrypts nor authenticates")]
    NullNotSaid,
    #[error("suite {suite} is no benchmark of ours: it has integrity")]
    BenchmarkOfSuite { suite: Suite },
    #[error(
        "DANGER: peer `{peer}` has neither encryption nor integrity: whoever is on the way reads \
         every packet, changes any, and makes up packets that come in as if from the peer"
    )]
    NoIntegrity { peer: String },
    #[error("peer `{peer}` has no encryption: whoever is on the way reads every packet")]
    NoEncryption { peer: String },
    #[error(
        "without ESN an SA ends for good after 4,294,967,295 packets: 71 minutes at 1 Mpps, and \
         nothing replaces manual keys"
    )]
    ShortNumbers,
    #[error("a replay window of {size} packets is not offered")]
    WindowSize { size: u32 },
    #[error("`{key}` means something only with encapsulation = \"udp\"")]
    OnlyWithUdp { key: &'static str },
    #[error("`{key}` means something only in tunnel mode: here packets keep their own headers")]
    OnlyInTunnelMode { key: &'static str },
    #[error("the outer header is IPv6, which has no don't-fragment flag")]
    DfOfV6,
    #[error("`{key}` cannot be \"{text}\"")]
    NumberOrWord { key: &'static str, text: String, word: &'static str, lowest: u32, highest: u32 },
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

    // [[policy]]
    #[error("another policy is named `{name}`")]
    SamePolicy { name: String },
    #[error("there is no peer `{name}`")]
    UnknownPeer { name: String, nearest: Option<String> },
    #[error("the policy names neither a peer nor an action")]
    NoPeerNoAction,
    #[error("`ports` leaves no port out")]
    AllPorts,
    #[error("a policy that protects must name a peer")]
    ProtectWithoutPeer,
    #[error("a policy with a peer protects, it cannot \"{action}\"")]
    PeerAndAction { action: String },
    #[error("{error}")]
    UnknownProtocol { nearest: Option<String>, error: Box<SelectorError> },
    #[error("protocol {protocol} is an IPv6 extension header, which no selector sees")]
    ExtensionHeader { protocol: u8 },
    #[error("`{key}`: protocol {} has no ports", policy::selector::protocol_text(Some(*.protocol)))]
    NoPorts { key: &'static str, protocol: u8 },
    #[error("`{key}` with any protocol matches only packets that have ports")]
    PortsOfAny { key: &'static str },
    #[error("`icmp` needs protocol \"icmp\" or \"icmpv6\"")]
    IcmpWithoutProtocol,
    #[error("the addresses are of the other IP version than the ICMP")]
    IcmpOfOtherFamily { right: &'static str },
    #[error("`local` and `remote` have no IP version in common: the policy never matches")]
    NeverMatches,
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
    #[error("{more} more such warnings are not shown: policies that {doubt}")]
    MoreDoubts { more: usize, doubt: &'static str },
    #[error("{meeting}")]
    AllowHostMeets { meeting: Meeting },
    #[error("the policies come to {rules} rules with this one; at most {limit} are held")]
    TooManyRules { rules: usize, limit: usize },

    // [[route]], [[neighbour]]
    #[error("there is no port `{name}`")]
    UnknownPort { name: String, nearest: Option<String> },
    #[error("there are two routes to {range}")]
    SameRoute { range: AddressRange },
    #[error("{range} is connected to us already")]
    RouteOfNetwork { range: AddressRange },
    #[error("the route leads nowhere")]
    RouteLeadsNowhere,
    #[error("a blackhole leads nowhere")]
    BlackholeLeads,
    #[error("the route and its router are of different IP versions")]
    MixedRoute,
    #[error("{via} is our own address")]
    ViaIsOurs { via: IpAddr },
    #[error("{via} is in none of our networks")]
    ViaNotConnected { via: IpAddr },
    #[error("{via} is in the networks of several ports")]
    ViaAmbiguous { via: IpAddr },
    #[error("{via} is not in a network of port `{port}` but of port `{right}`")]
    ViaOnOtherPort { via: IpAddr, port: String, right: String },
    #[error("{address} is our own address")]
    NeighbourIsOurs { address: IpAddr },
    #[error("there are two neighbours {address}")]
    SameNeighbour { address: IpAddr },

    // Key files
    #[error("`keys_dir` {directory} has mode {mode:04o}: others may put files into it")]
    KeysDirMode { directory: String, mode: u32 },
    #[error("`keys_dir` {directory} belongs to user {owner}, who is neither root nor us")]
    KeysDirOwner { directory: String, owner: u32 },
    #[error("key file {file}: cannot be read: {}", kind_text(*.kind))]
    KeyFileUnreadable { file: String, kind: ErrorKind },
    #[error("key file {file} is a symbolic link")]
    KeyFileIsLink { file: String },
    #[error("key file {file} is not a regular file")]
    KeyFileNotRegular { file: String },
    #[error("key file {file} has mode {mode:04o}, wider than 0600")]
    KeyFileMode { file: String, mode: u32 },
    #[error("key file {file} belongs to user {owner}, who is neither root nor us")]
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
    #[error("this is no SPI")]
    KeySpi,
    #[error("SPIs 0 to 255 are reserved")]
    KeySpiReserved,
    #[error("this is no suite")]
    KeySuite,
    #[error("this is no address")]
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

/// What the operating system says, in its own words where they are better known.
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

/// What the key material of a suite is made of, in its order.
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

const KEYS_STAND_ELSEWHERE: &str = "keys stand in a file of their own: keys = \"file:berlin.keys\"";

impl Mistake {
    /// What to do about it, if the message does not say so.
    pub fn help(&self) -> Option<String> {
        match self {
            Mistake::UnknownKey { nearest, allowed, .. }
            | Mistake::UnknownSection { nearest, allowed, .. } => {
                Some(suggestion(nearest, allowed.iter().copied()))
            }
            Mistake::UnknownWord { nearest, allowed, .. } => {
                Some(suggestion(nearest, allowed.iter().copied()))
            }
            Mistake::UnknownPeer { nearest, .. } => {
                Some(did_you_mean(nearest, "declare it as [peer.NAME]"))
            }
            Mistake::UnknownPort { nearest, .. } => {
                Some(did_you_mean(nearest, "declare it as [port.NAME]"))
            }
            Mistake::UnknownService { nearest, .. } => Some(did_you_mean(
                nearest,
                "write \"tcp/22\", \"udp/500\", \"icmp\" or a protocol's number",
            )),
            Mistake::EmptyList { key: key @ ("local" | "remote") } => {
                Some(format!("name an address, or write {key} = [\"any\"]"))
            }
            Mistake::EmptyList { .. } => {
                Some("name an entry; to mean any, leave the key out".into())
            }
            Mistake::BarePort { number, service: None } => {
                Some(format!("for a port write \"tcp/{number}\" or \"udp/{number}\""))
            }
            Mistake::BarePort { number, service: Some((name, transport)) } => {
                Some(format!("for {name} write \"{transport}/{number}\""))
            }
            Mistake::UnknownProtocol { nearest, .. } => {
                nearest.as_ref().map(|word| format!("did you mean `{word}`?"))
            }
            Mistake::NumberOrWord { word: other, lowest, highest, .. } => {
                Some(format!("write \"{other}\" or a number from {lowest} to {highest}"))
            }
            Mistake::TransportSelector { key, end, .. } => Some(format!(
                "write {key} = [\"{end}\"]; for networks write mode = \"tunnel\" at the peer"
            )),
            Mistake::Refused { refusal, .. } => Some(refusal.help().into()),
            Mistake::LocalNotOurs { ours, .. } => Some(match ours.as_slice() {
                [] => "write it into `addresses` of its port".into(),
                ours => {
                    let ours: Vec<String> = ours.iter().map(ToString::to_string).collect();
                    format!(
                        "ours are {}: one of them, or write it into its port's `addresses`",
                        ours.join(", ")
                    )
                }
            }),
            Mistake::NotNamed { word, .. } => {
                Some(format!("write [{word}.NAME] and its keys below"))
            }
            Mistake::CacheBeyondMemory { limit, fits, .. } => {
                let flows = crate::values::count_text(*fits);
                Some(format!("flows = \"{flows}\" takes no more than that, {limit} bytes"))
            }
            Mistake::IcmpOfOtherFamily { right } => Some(format!("write protocol = \"{right}\"")),
            Mistake::TunnelBelowV4 { least, .. } => Some(format!("write mtu = {least} or more")),
            Mistake::TunnelBelowV6 { port, least, .. } => Some(format!(
                "hosts ignore \"packet too big\" below 1280 (RFC 8201 §4): port `{port}` needs an \
                 mtu of {least}, or the peer IPv4 policies only"
            )),
            Mistake::ListenBeyond { port, .. } => Some(format!(
                "there is no password; an unprotected port lets readers in only with \
                 allow_host = [\"tcp/{port}\"]"
            )),
            Mistake::KeyLength { suite, got, .. } => suites_with(*got, *suite).map(|suites| {
                format!("these look like {suites} keys: name that suite, or make new keys")
            }),
            _ => self.fixed_help().map(str::to_owned),
        }
    }

    fn fixed_help(&self) -> Option<&'static str> {
        Some(match self {
            Mistake::Unreadable { kind: ErrorKind::PermissionDenied } => "run as root",
            Mistake::NotRegular { .. } => "name a file, or `-` to read standard input",
            Mistake::NotText => "save the file as UTF-8",
            Mistake::NulByte => "name the configuration, a text file in TOML",
            Mistake::CarriageReturns => "save the file with LF line ends",
            Mistake::TypographicQuote { .. } => "write the plain quote \"",
            Mistake::UnclosedList => "close the list: [\"…\", \"…\"]",
            Mistake::Syntax { message } => return syntax_help(message),
            Mistake::ForeignKey { foreign, .. } => foreign.help(),
            Mistake::SameKey { .. } => "keep one of the two",
            Mistake::NotShown => KEYS_STAND_ELSEWHERE,
            Mistake::Homeless { .. } => "write it below [node]",
            Mistake::BadName { .. } => {
                "1 to 64 letters, digits, `.`, `_`, `-`; not first `.` or `-`"
            }
            Mistake::NotAnAddress { text } => address_help(text),
            Mistake::NotAnInterface { .. } => "write 10.1.0.1/24 or 2001:db8::1/64",
            Mistake::NotAPrefix { .. } => "write a prefix, or several routes",
            Mistake::NotALinkAddress { .. } => "write six bytes with colons: 02:00:00:00:00:01",
            Mistake::GroupLinkAddress { .. } => {
                "the first byte of one interface's address is even: 02:00:00:00:00:01"
            }
            Mistake::ZeroLinkAddress { .. } => "write the interface's own: 02:00:00:00:00:01",
            Mistake::BadWorkers { .. } => "write \"auto\" or a number",
            Mistake::RelativeDirectory { .. } => "write the whole path, from `/`",
            Mistake::LongRunDir { .. } => "name a shorter one: run_dir = \"/run/lockgate\"",
            Mistake::SameDirectory => {
                "what is in `run_dir` may be gone after a reboot, what is in `state_dir` must not"
            }
            Mistake::BadListen { .. } => "write \"127.0.0.1:9617\", \"[::1]:9617\" or \"off\"",
            Mistake::ListenPortZero => "write a port from 1 to 65535",
            Mistake::ListenAddress { .. } => "name one of this machine's own addresses",
            Mistake::OpensOnExit => "on_exit = \"closed\" keeps the ports shut",
            Mistake::BadFlows { .. } => "write \"off\", 1000, \"64K\" or \"1M\"",
            Mistake::CacheTooSmall => "write flows = \"off\" to have none, or 2 at least",
            Mistake::UseWithoutCache => "write flows = \"1M\" to have one, or leave `use` out",
            Mistake::AllPorts => {
                "leave it out: of a side that it names no port of, all ports are meant"
            }
            Mistake::SameLink { .. } => "a port is a netdev and a VLAN id: declare it once",
            Mistake::BadNetdev { text } if text.len() > 15 => {
                "a netdev's name has at most 15 characters: `ip link` shows it"
            }
            Mistake::BadNetdev { .. } => "write it as `ip link` shows it, without `/` or spaces",
            Mistake::ReservedPortName => "choose another name",
            Mistake::SameNetwork { .. } => "packets to it could leave by one port only",
            Mistake::AllowHostInside => {
                "from a protected port everything for this machine is passed"
            }
            Mistake::ChecksumOutside => {
                "leave `l4_checksum` out: what comes from outside stays as it is"
            }
            Mistake::ServiceAny => "name what may come in: \"udp/500\", \"icmp\"",
            Mistake::ServiceEsp => "leave it out: an SA decides what is let in",
            Mistake::MulticastPeer { .. } => Refusal::Multicast.help(),
            Mistake::BadKeys | Mistake::KeyAsFileName => KEYS_STAND_ELSEWHERE,
            Mistake::BadKeyFileName => "it lies in `keys_dir`: \"file:berlin.keys\", without `/`",
            Mistake::SameKeyFile => {
                "no key serves two peers: make a pair for each, lockgate keygen"
            }
            Mistake::IkeNotYet => "for a laboratory: keys = \"file:NAME\", manual = \"laboratory\"",
            Mistake::ManualNotSaid => {
                "write manual = \"laboratory\": RFC 4106 asks for automated key management, and a \
                 sequence number used twice under one key gives the key away"
            }
            Mistake::WindowSize { .. } => "write a multiple of 32 from 32 to 4096",
            Mistake::NullNotSaid => {
                "for a benchmark of the framing alone add benchmark = \"no-integrity\"; to have \
                 integrity without encryption write suite = \"null-hmac-sha-256\""
            }
            Mistake::BenchmarkOfSuite { .. } => "leave `benchmark` out",
            Mistake::NoIntegrity { .. } => {
                "for benchmarks between machines of your own only: never with packets that matter"
            }
            Mistake::NoEncryption { .. } => "aes-128-gcm encrypts, and costs less",
            Mistake::ShortNumbers => {
                "write esn = true at both ends, or esn = false if that is meant"
            }
            Mistake::OnlyWithUdp { .. } => "write encapsulation = \"udp\" too, or leave it out",
            Mistake::OnlyInTunnelMode { .. } | Mistake::DfOfV6 => "leave it out",
            Mistake::RemoteInside { .. } => {
                "`local` is our side, `remote` the peer's: are the two swapped?"
            }
            Mistake::TooManyRules { .. } => {
                "a policy is one rule for each combination of its lists' entries, in both \
                 directions, again for each port that some policy names: shorten them"
            }
            Mistake::AllowHostMeets { .. } => {
                "if the service is to pass in cleartext, write a BYPASS policy before that one"
            }
            Mistake::CoveredPolicy { .. } => {
                "leave one of the two out; the higher priority wins, among equals the later"
            }
            Mistake::TakesPackets { .. } => {
                "if that is not meant, give the PROTECT policy the higher priority; among equals \
                 the later wins"
            }
            Mistake::TiedPolicies { .. } => "give them different priorities",
            Mistake::NoProtectedPort => {
                "no host behind the gateway is served: write side = \"protected\" at the ports of \
                 your own networks"
            }
            Mistake::NoUnprotectedPort => {
                "write side = \"unprotected\" at the port that leads to the peers"
            }
            Mistake::NoRouteToPeer { .. } => "write a [[route]], or have one in Linux",
            Mistake::PeerInside { .. } => "what is sealed for it stays inside: is the side right?",
            Mistake::NoPeerNoAction => {
                "write peer = \"NAME\", or action = \"bypass\" or \"discard\""
            }
            Mistake::ProtectWithoutPeer => "write peer = \"NAME\"",
            Mistake::PeerAndAction { .. } => "leave out one of the two",
            Mistake::ExtensionHeader { .. } => "name the protocol behind all extension headers",
            Mistake::NoPorts { .. } => {
                "leave the ports out, or name tcp, udp, sctp, dccp or udplite"
            }
            Mistake::PortsOfAny { .. } => {
                "ICMP, fragments and other protocols fall to the next policy: name the protocol"
            }
            Mistake::RouteLeadsNowhere => {
                "write via = \"ROUTER\", port = \"NAME\" or type = \"blackhole\""
            }
            Mistake::BlackholeLeads => "leave out `via` and `port`, or the type",
            Mistake::RouteOfNetwork { .. } => "leave the route out",
            Mistake::ViaNotConnected { .. } => "a router must be in a network of one of our ports",
            Mistake::ViaAmbiguous { .. } => "write port = \"NAME\" too",
            Mistake::KeyFileUnreadable { kind: ErrorKind::PermissionDenied, .. } => {
                "run as root: only the owner of a key file may read it"
            }
            Mistake::KeyFileUnreadable { .. } | Mistake::KeyFileEmpty { .. } => {
                "lockgate keygen makes a pair of them; they lie in `keys_dir`"
            }
            Mistake::KeyFileIsLink { .. } => "put the file itself into `keys_dir`",
            Mistake::KeyFileMode { .. } => "chmod 0600, and make new keys if others could read it",
            Mistake::KeyFileOwner { .. } | Mistake::KeysDirOwner { .. } => "chown it to root",
            Mistake::KeysDirMode { .. } => {
                "chmod go-w, or keep the keys in a directory of their own, of mode 0700"
            }
            Mistake::KeyDirection { expected: REPLAY_DIRECTION }
            | Mistake::KeyWords { expected: REPLAY_WORDS, .. } => {
                "`--keys` takes OUT.keys of another replay; configured keys are read from \
                 `keys_dir`"
            }
            Mistake::KeyDirection { .. } | Mistake::KeyWords { .. } => {
                "one line an SA: direction, SPI, key material in hexadecimal"
            }
            Mistake::KeySpi => "write a number, decimal or 0x…, of 32 bits",
            Mistake::SameMaterial => "a key serves one SA in one direction: make new keys",
            Mistake::SameInboundSpi | Mistake::SameOutboundSpi => "make new keys: lockgate keygen",
            _ => return None,
        })
    }

    /// Whether the line it is about may hold what nobody should see: a key pasted into the wrong
    /// file.
    pub(crate) fn may_hold_a_secret(&self) -> bool {
        matches!(
            self,
            Mistake::BadKeys
                | Mistake::BadKeyFileName
                | Mistake::KeyAsFileName
                | Mistake::ForeignKey { foreign: Foreign::Secret, .. }
        )
    }
}

fn suggestion<'a>(nearest: &Option<String>, allowed: impl Iterator<Item = &'a str>) -> String {
    did_you_mean(nearest, &format!("write {}", allowed.collect::<Vec<_>>().join(", ")))
}

fn did_you_mean(nearest: &Option<String>, otherwise: &str) -> String {
    match nearest {
        Some(word) => format!("did you mean `{word}`?"),
        None => otherwise.to_owned(),
    }
}

/// Advice for what should be a single address.
fn address_help(text: &str) -> &'static str {
    let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
    match text.split_once('/').or_else(|| text.rsplit_once(':')) {
        Some((address, _)) if is_address(address.trim_matches(['[', ']'])) => {
            "write the address alone: 192.0.2.1 or 2001:db8::1"
        }
        _ if text.contains(char::is_alphabetic) && !text.contains(':') => {
            "names are not resolved: write 192.0.2.1 or 2001:db8::1"
        }
        _ => "write 192.0.2.1 or 2001:db8::1",
    }
}

/// Advice for what the TOML reader says in its own words.
fn syntax_help(message: &str) -> Option<&'static str> {
    Some(match message {
        _ if message.starts_with("string values must be quoted") => "write it in quotes: \"…\"",
        _ if message.starts_with("missing comma between array") => {
            "write a comma between two entries: [\"…\", \"…\"]"
        }
        _ if message.starts_with("invalid unquoted key") => {
            "letters a to z, digits, `-` and `_`; each line is KEY = VALUE or [SECTION]"
        }
        _ if message.starts_with("invalid basic string")
            || message.starts_with("invalid literal string") =>
        {
            "close the string with the quote that it begins with, in the same line"
        }
        _ if message.starts_with("cannot recurse further") => "no list here holds other lists",
        _ if message.starts_with("key with no value") => "each line is KEY = VALUE or [SECTION]",
        _ => return None,
    })
}

/// Suites whose key material has so many hexadecimal digits, but for one, as words.
fn suites_with(digits: usize, but: Suite) -> Option<String> {
    let offered = Suite::ALL.iter().filter(|suite| suite.is_authenticated() && **suite != but);
    let same = offered.filter(|suite| suite.material_bytes() * 2 == digits);
    let names: Vec<&str> = same.map(|suite| suite.name()).collect();
    (!names.is_empty()).then(|| names.join(" or "))
}

/// A key of another program's configuration that has no single key of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Foreign {
    /// A secret, or a public key that stands for one.
    Secret,
    /// Networks behind the ends.
    Networks,
    /// Address and port of the other end in one.
    Endpoint,
    /// IKE, and what only IKE does.
    Ike,
}

impl Foreign {
    const fn text(self) -> &'static str {
        match self {
            Foreign::Secret => "no key stands in the configuration",
            Foreign::Networks => "a peer has no networks",
            Foreign::Endpoint => "an address is written without a port",
            Foreign::Ike => "IKE is not in this version",
        }
    }

    const fn help(self) -> &'static str {
        match self {
            Foreign::Secret => {
                "make a pair of key files with lockgate keygen, and write keys = \"file:NAME\""
            }
            Foreign::Networks => {
                "write [[policy]] with peer = \"NAME\", `local` and `remote` for them"
            }
            Foreign::Endpoint => {
                "write remote = \"ADDRESS\"; for ESP in UDP also encapsulation = \"udp\" and \
                 remote_port"
            }
            Foreign::Ike => "leave it out: a peer has manual keys, for a laboratory",
        }
    }

    /// The meaning of a key of `[peer.NAME]` as strongSwan, Libreswan or WireGuard write it.
    pub(crate) fn of_key(key: &str) -> Option<Foreign> {
        Some(match plain(key).as_str() {
            "psk" | "secret" | "secrets" | "presharedkey" | "privatekey" | "publickey" | "key"
            | "password" | "authby" | "leftcert" | "rightcert" | "cert" | "certs" => {
                Foreign::Secret
            }
            "allowedips" | "leftsubnet" | "rightsubnet" | "leftsubnets" | "rightsubnets"
            | "localts" | "remotets" | "subnet" | "subnets" | "networks" => Foreign::Networks,
            "endpoint" => Foreign::Endpoint,
            "ike" | "ikev2" | "keyexchange" | "ikelifetime" | "version" | "proposals" | "auto"
            | "startaction" | "closeaction" | "dpdaction" | "dpddelay" | "dpdtimeout"
            | "leftid" | "rightid" | "aggressive" | "fragmentation" | "mobike" => Foreign::Ike,
            _ => return None,
        })
    }
}

/// A key without its case and its separators: `AllowedIPs`, `allowed_ips`.
fn plain(key: &str) -> String {
    key.to_lowercase().replace(['-', '_'], "")
}

/// The key of ours for what other programs call by another name.
pub(crate) fn renamed(key: &str) -> &'static [&'static str] {
    match plain(key).as_str() {
        "natt" | "nattraversal" | "udpencap" | "encap" | "forceencaps" => &["encapsulation"],
        "extendedsequencenumbers" | "sequencenumbers" => &["esn"],
        "keepalive" | "persistentkeepalive" => &["nat_keepalive"],
        "window" | "antireplaywindow" | "replaywin" => &["replay_window"],
        "dontfragment" | "copydf" => &["df"],
        "tos" | "copydscp" => &["dscp"],
        "left" | "leftaddr" | "localaddr" | "localaddrs" | "localaddress" => &["local"],
        "right" | "rightaddr" | "remoteaddr" | "remoteaddrs" | "remoteaddress" => &["remote"],
        "src" | "source" | "leftsubnet" | "localts" | "localsubnet" | "localnet" => &["local"],
        "dst" | "destination" | "rightsubnet" | "remotets" | "remotesubnet" => &["remote", "to"],
        "allowedips" => &["remote"],
        "esp" | "espproposals" | "cipher" | "ciphers" | "phase2alg" => &["suite"],
        "interface" | "ifname" | "device" | "dev" | "nic" => &["netdev", "port"],
        "address" | "ip" | "ipaddress" => &["addresses"],
        "gateway" | "gw" | "nexthop" => &["via"],
        "lladdr" | "macaddress" => &["mac"],
        "proto" => &["protocol"],
        "sport" | "leftport" => &["local_ports"],
        "dport" | "rightport" => &["remote_ports"],
        "dir" => &["direction"],
        _ => &[],
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
