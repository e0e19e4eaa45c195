//! Advice: what to do about each mistake.

use std::io::ErrorKind;
use std::net::IpAddr;

use ipsec::Suite;

use super::{DiagnosticKind, REPLAY_DIRECTION, REPLAY_WORDS, Refusal};

const KEYS_STAND_ELSEWHERE: &str = "keys belong in a file of their own: keys = \
                                    \"file:berlin.keys\"";

impl DiagnosticKind {
    /// Returns the advice, if the message does not give it.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::UnknownKey { nearest, allowed, .. }
            | Self::UnknownSection { nearest, allowed, .. } => {
                Some(suggestion(nearest, allowed.iter().copied()))
            }
            Self::UnknownWord { nearest, allowed, .. } => {
                Some(suggestion(nearest, allowed.iter().copied()))
            }
            Self::UnknownService { nearest, .. } => Some(did_you_mean(
                nearest,
                "write \"tcp/22\", \"udp/500\", \"icmp\" or a protocol's number",
            )),
            Self::SetWithoutAt { name } => Some(format!("write \"@{name}\"")),
            Self::SetFile { problem, .. } | Self::SetFileAtStart { problem, .. } => {
                set_file_help(problem).map(str::to_owned)
            }
            Self::BarePort { number, service: None } => {
                Some(format!("for a port write \"tcp/{number}\" or \"udp/{number}\""))
            }
            Self::BarePort { number, service: Some((name, transport)) } => {
                Some(format!("for {name} write \"{transport}/{number}\""))
            }
            Self::UnknownProtocol { nearest, .. } => {
                nearest.as_ref().map(|word| format!("did you mean `{word}`?"))
            }
            Self::NumberOrWord { word: other, lowest, highest, .. } => {
                Some(format!("write \"{other}\" or a number from {lowest} to {highest}"))
            }
            Self::TransportSelector { key, end, .. } => Some(format!(
                "write {key} = [\"{end}\"]; for networks write mode = \"tunnel\" at the peer"
            )),
            Self::Refused { refusal, .. } => Some(refusal.help().into()),
            Self::LocalNotOurs { ours, .. } => Some(own_address_help(ours)),
            Self::NotNamed { word, .. } => Some(format!("write [{word}.NAME] and its keys below")),
            Self::CacheBeyondMemory { limit, fits, .. } => Some(fitting("flows", *fits, *limit)),
            Self::ConnectionsBeyondMemory { limit, fits, .. } => {
                Some(fitting("max", *fits, *limit))
            }
            Self::EndpointsBeyondMemory { limit, fits, .. } => {
                Some(fitting("endpoints", *fits, *limit))
            }
            Self::IcmpOfOtherFamily { right } => Some(format!("write protocol = \"{right}\"")),
            Self::TunnelBelowV4 { least, .. } => Some(format!("write mtu = {least} or more")),
            Self::TunnelBelowV6 { port, least, .. } => Some(format!(
                "hosts ignore \"packet too big\" below 1280 (RFC 8201 §4): port `{port}` needs an \
                 mtu of {least}, or the peer IPv4 policies only"
            )),
            Self::ListenBeyond { port, .. } => Some(format!(
                "there is no password; an unprotected port lets readers in only with \
                 allow_host = [\"tcp/{port}\"]"
            )),
            Self::PortsOfAny { what: "section", .. } => Some(
                "ICMP, fragments and other protocols are not within these bounds: name the protocol"
                    .into(),
            ),
            Self::PortsOfAny { what, .. } => Some(format!(
                "ICMP, fragments and other protocols fall to the next {what}: name the protocol"
            )),
            Self::KeyLength { suite, got, .. } => suites_with(*got, *suite).map(|suites| {
                format!("these look like {suites} keys: name that suite, or make new keys")
            }),
            _ => (self.list_help().or_else(|| self.missing_help()))
                .or_else(|| self.fixed_help().map(str::to_owned)),
        }
    }

    /// Returns the advice about lists that are empty, and about words of an SA's line.
    fn list_help(&self) -> Option<String> {
        match self {
            Self::EmptyList { key: key @ ("local" | "remote" | "from" | "to") } => {
                Some(format!("name an address, or write {key} = [\"any\"]"))
            }
            Self::EmptyList { key: "entrances" } => {
                Some("name an address of this machine that hosts send to".into())
            }
            Self::EmptyList { key: "ends" } => {
                Some("name the addresses that the ends of tunnels may have here".into())
            }
            Self::SaOption { nearest: Some(nearest) } => {
                Some(format!("did you mean `{nearest}=`?"))
            }
            Self::CardWithoutPorts => {
                Some("name the ports that are on the card: ports = [\"wan\"]".into())
            }
            Self::EmptyList { .. } => Some("name an entry; to mean any, leave the key out".into()),
            _ => None,
        }
    }

    /// Returns the advice about a section that is referred to and is not there.
    fn missing_help(&self) -> Option<String> {
        let (nearest, otherwise) = match self {
            Self::UnknownPeer { nearest, .. } => (nearest, "declare it as [peer.NAME]"),
            Self::UnknownPort { nearest, .. } => (nearest, "declare it as [port.NAME]"),
            Self::UnknownGroup { nearest, .. } => (nearest, "declare it as [group.NAME]"),
            Self::UnknownSet { nearest, .. } => (nearest, "declare it as [set.NAME]"),
            Self::UnknownOverlay { nearest, .. } => (nearest, "declare it as [overlay.NAME]"),
            _ => return None,
        };
        Some(did_you_mean(nearest, otherwise))
    }

    /// Returns the advice that holds no value.
    fn fixed_help(&self) -> Option<&'static str> {
        (self.file_help())
            .or_else(|| self.port_help())
            .or_else(|| self.peer_help())
            .or_else(|| self.policy_help())
            .or_else(|| self.group_help())
            .or_else(|| self.overlay_help())
            .or_else(|| self.card_help())
            .or_else(|| self.key_help())
    }

    /// Returns the advice about a file as text.
    fn file_help(&self) -> Option<&'static str> {
        Some(match self {
            DiagnosticKind::Unreadable { kind: ErrorKind::PermissionDenied } => "run as root",
            DiagnosticKind::NotRegular { .. } => "name a file, or `-` to read standard input",
            DiagnosticKind::NotText { .. } => "save the file as UTF-8",
            DiagnosticKind::NulByte => "name the configuration, a text file in TOML",
            DiagnosticKind::CarriageReturns => "save the file with LF line ends",
            DiagnosticKind::TypographicQuote { .. } => "write the plain quote \"",
            DiagnosticKind::UnclosedList => "close the list: [\"…\", \"…\"]",
            DiagnosticKind::Syntax { message } => return syntax_help(message),
            DiagnosticKind::ForeignKey { foreign, .. } => foreign.help(),
            DiagnosticKind::SameKey { .. } => "keep one of the two",
            DiagnosticKind::NotShown => KEYS_STAND_ELSEWHERE,
            DiagnosticKind::Homeless { .. } => "write it below [node]",
            _ => return None,
        })
    }

    /// Returns the advice about names, [node] and ports.
    fn port_help(&self) -> Option<&'static str> {
        Some(match self {
            DiagnosticKind::BadName { .. } => {
                "1 to 64 letters, digits, `.`, `_`, `-`; not first `.` or `-`"
            }
            DiagnosticKind::NotAnAddress { text } => address_help(text),
            DiagnosticKind::NotAnInterface { .. } => "write 10.1.0.1/24 or 2001:db8::1/64",
            DiagnosticKind::NotAPrefix { .. } => "write a prefix, or several routes",
            DiagnosticKind::NotALinkAddress { .. } => {
                "write six bytes with colons: 02:00:00:00:00:01"
            }
            DiagnosticKind::GroupLinkAddress { .. } => {
                "the first byte of one interface's address is even: 02:00:00:00:00:01"
            }
            DiagnosticKind::ZeroLinkAddress { .. } => {
                "write the interface's own: 02:00:00:00:00:01"
            }
            DiagnosticKind::BadWorkers { .. } => "write \"auto\" or a number",
            DiagnosticKind::RelativeDirectory { .. } => "write the whole path, from `/`",
            DiagnosticKind::LongRunDir { .. } => "name a shorter one: run_dir = \"/run/lockgate\"",
            DiagnosticKind::SameDirectory => {
                "`run_dir` may be emptied by a reboot, `state_dir` must survive it"
            }
            DiagnosticKind::BadListen { .. } => {
                "write \"127.0.0.1:9617\", \"[::1]:9617\" or \"off\""
            }
            DiagnosticKind::ListenPortZero => "write a port from 1 to 65535",
            DiagnosticKind::ListenAddress { .. } => "name one of this machine's own addresses",
            DiagnosticKind::OpensOnExit => "on_exit = \"closed\" keeps the ports shut",
            DiagnosticKind::BadFlows { .. } => "write \"off\", 1000, \"64K\" or \"1M\"",
            DiagnosticKind::BadSize { .. } => {
                "write a number of connections: 1000, \"64K\", \"1M\""
            }
            DiagnosticKind::CacheTooSmall => "write flows = \"off\" to have none, or 2 at least",
            DiagnosticKind::UseWithoutCache => {
                "write flows = \"1M\" to have one, or leave `use` out"
            }
            DiagnosticKind::AllPorts => {
                "leave it out: if no port of a side is listed, all ports of that side match"
            }
            DiagnosticKind::SameLink { .. } => "a port is a netdev and a VLAN id: declare it once",
            DiagnosticKind::BadNetdev { text } if text.len() > 15 => {
                "a netdev's name has at most 15 characters: `ip link` shows it"
            }
            DiagnosticKind::BadNetdev { .. } => {
                "write it as `ip link` shows it, without `/` or spaces"
            }
            DiagnosticKind::ReservedPortName => "choose another name",
            DiagnosticKind::SameNetwork { .. } => "packets to it could leave by one port only",
            DiagnosticKind::AllowHostInside => {
                "a protected port passes all traffic for this machine"
            }
            DiagnosticKind::TooManyServices { .. } => {
                "join ports into ranges (\"tcp/8000-8080\"), or list whole protocols (\"tcp\") and \
                 filter on this machine"
            }
            DiagnosticKind::ChecksumOutside => {
                "leave `l4_checksum` out: packets from outside keep their checksums"
            }
            DiagnosticKind::XdpOffload => {
                "write \"native\": the program runs in the card's driver, the fastest place it has"
            }
            DiagnosticKind::XdpDiffers { .. } => {
                "a netdev has one program for all its ports: write it once, or the same everywhere"
            }
            DiagnosticKind::ServiceAny => "name what may come in: \"udp/500\", \"icmp\"",
            DiagnosticKind::ServiceEsp => "leave it out: an SA admits it",
            _ => return None,
        })
    }

    /// Returns the advice about peers.
    fn peer_help(&self) -> Option<&'static str> {
        Some(match self {
            DiagnosticKind::ZeroLimit { .. } => "write 1 at least, or leave the key out: no limit",
            DiagnosticKind::BadAmount { .. } => {
                "write a number from 1 to 2^64 - 1, or in quotes with K, M, G or T: \"10G\""
            }
            DiagnosticKind::SoftAboveHard { .. } => {
                "a soft limit warns before the hard one: write a smaller number"
            }
            DiagnosticKind::LoneHardLimit { .. } => {
                "write the soft limit: charon needs the time until the hard one for new keys"
            }
            DiagnosticKind::MulticastPeer { .. } => Refusal::Multicast.help(),
            DiagnosticKind::BadKeys | DiagnosticKind::KeyAsFileName => KEYS_STAND_ELSEWHERE,
            DiagnosticKind::BadKeyFileName => {
                "it lies in `keys_dir`: \"file:berlin.keys\", without `/`"
            }
            DiagnosticKind::SameKeyFile => {
                "no key serves two peers: make a pair for each, lockgate keygen"
            }
            DiagnosticKind::ManualNotSaid => {
                "write manual = \"laboratory\": RFC 4106 asks for automated key management, and a \
                 sequence number used twice under one key gives the key away"
            }
            DiagnosticKind::ManualOfApi => "leave `manual` out",
            DiagnosticKind::WindowSize { .. } => "write a multiple of 32 from 32 to 4096",
            DiagnosticKind::NullNotSaid => {
                "for a benchmark of the framing alone add benchmark = \"no-integrity\"; to have \
                 integrity without encryption write suite = \"null-hmac-sha-256\""
            }
            DiagnosticKind::BenchmarkOfSuite { .. } => "leave `benchmark` out",
            DiagnosticKind::NoIntegrity { .. } => {
                "use it for benchmarks between your own machines only, never for real traffic"
            }
            DiagnosticKind::NoEncryption { .. } => "aes-128-gcm encrypts, and costs less",
            DiagnosticKind::ShortNumbers | DiagnosticKind::ShortNumbersOfApi => {
                "write esn = true at both ends, or esn = false if that is meant"
            }
            DiagnosticKind::OnlyWithUdp { .. } => {
                "write encapsulation = \"udp\" too, or leave it out"
            }
            DiagnosticKind::OnlyInTunnelMode { .. } | DiagnosticKind::DfOfV6 => "leave it out",
            DiagnosticKind::OnlyWithIke { .. } => {
                "leave it out: without IKE nobody says where an end has moved to"
            }
            DiagnosticKind::MovesAlone { .. } => {
                "both ends are of one family: add addresses of it to `moves_to` and \
                 `local_moves_to`, or leave these out"
            }
            _ => return None,
        })
    }

    /// Returns the advice about policies and routes.
    fn policy_help(&self) -> Option<&'static str> {
        Some(match self {
            DiagnosticKind::RemoteInside { .. } => {
                "`local` is this gateway's side, `remote` the peer's: are the two swapped?"
            }
            DiagnosticKind::TooManyRules { .. } => {
                "a policy is one rule for each combination of its lists' entries, in both \
                 directions, again for ports to which `ports` gives policies of their own: \
                 shorten the lists, or write ranges and networks"
            }
            DiagnosticKind::AllowHostMeets { .. } => {
                "if the service is to pass in cleartext, write a BYPASS policy before that one"
            }
            DiagnosticKind::AllowHostWithinIke { .. } => {
                "write a BYPASS policy for the service, or a narrower `local` or `remote` in [ike]"
            }
            DiagnosticKind::IkeNotListed { .. } => {
                "write allow_host = [\"udp/500\", \"udp/4500\"] at the port that leads to the peers"
            }
            DiagnosticKind::CoveredPolicy { .. } => {
                "leave one of the two out; the higher priority wins, among equals the later"
            }
            DiagnosticKind::TakesPackets { .. } => {
                "if that is not meant, give the PROTECT policy the higher priority; among equals \
                 the later wins"
            }
            DiagnosticKind::TiedPolicies { .. } => "give them different priorities",
            DiagnosticKind::NoProtectedPort => {
                "no host behind the gateway is served: write side = \"protected\" at the ports of \
                 your own networks"
            }
            DiagnosticKind::NoUnprotectedPort => {
                "write side = \"unprotected\" at the port that leads to the peers"
            }
            DiagnosticKind::NoRouteToPeer { .. } => "write a [[route]], or have one in Linux",
            DiagnosticKind::PeerInside { .. } => {
                "sealed packets would stay on the protected side: is `side` right?"
            }
            DiagnosticKind::NoPeerNoAction => {
                "write peer = \"NAME\", or action = \"bypass\" or \"discard\""
            }
            DiagnosticKind::ProtectWithoutPeer => "write peer = \"NAME\"",
            DiagnosticKind::PeerAndAction { .. } => "leave out one of the two",
            DiagnosticKind::ExtensionHeader { .. } => {
                "name the protocol behind all extension headers"
            }
            DiagnosticKind::NoPorts { .. } => {
                "leave the ports out, or name tcp, udp, sctp, dccp or udplite"
            }
            DiagnosticKind::RouteLeadsNowhere => {
                "write via = \"ROUTER\", port = \"NAME\" or type = \"blackhole\""
            }
            DiagnosticKind::BlackholeLeads => "leave out `via` and `port`, or the type",
            DiagnosticKind::RouteOfNetwork { .. } => "leave the route out",
            DiagnosticKind::ViaNotConnected { .. } => {
                "a router must be in a network of one of the ports"
            }
            DiagnosticKind::ViaAmbiguous { .. } => "write port = \"NAME\" too",
            _ => return None,
        })
    }

    /// Returns the advice about sets, groups and rules.
    fn group_help(&self) -> Option<&'static str> {
        Some(match self {
            DiagnosticKind::SetWithoutMembers => {
                "write addresses = [\"10.9.0.0/24\"], or file = \"NAME\" with a member a line"
            }
            DiagnosticKind::SetTwice => "leave out one of the two",
            DiagnosticKind::EmptySet | DiagnosticKind::SetFileEmpty { .. } => {
                "name a member: a rule with an empty set would never match"
            }
            DiagnosticKind::SetFileRefused => {
                "only for someone who may change the configuration: write `addresses` instead"
            }
            DiagnosticKind::UnusedGroup { .. } => {
                "list it in `groups_in` or `groups_out` of a port or virtual network"
            }
            DiagnosticKind::SameRule { .. } => {
                "a rule without `name` is called by its number in its group, from 1: name both"
            }
            DiagnosticKind::CoveredRule { .. } => {
                "the first rule that matches decides: write the narrower one above, or leave it out"
            }
            DiagnosticKind::TooManyGroupRules { .. } => {
                "a rule counts once for each combination of its lists' entries, again for each \
                 side of a port or virtual network that lists its group: shorten them"
            }
            _ => return None,
        })
    }

    /// Returns the advice about overlays, virtual networks and the store of their endpoints.
    fn overlay_help(&self) -> Option<&'static str> {
        Some(match self {
            DiagnosticKind::BadVni { .. } => "write [vni.NUMBER], 0 to 16777215",
            DiagnosticKind::SameVni { .. } => "write its keys in one section",
            DiagnosticKind::NoOverlay { .. } => {
                "declare one: [overlay.NAME] with `kind`, `port` and `entrances`"
            }
            DiagnosticKind::WhichOverlay { .. } => "name it: overlay = \"NAME\"",
            DiagnosticKind::OverlayOnIke => "leave `udp_port` out, or choose another",
            DiagnosticKind::DirectUnprotected { .. } => {
                "policies judge what comes by it, and would not see direct packets: leave \
                 `direct` out, or make the port protected"
            }
            DiagnosticKind::BadEntrance { .. } => {
                "write a unicast address of this machine, neither loopback nor link-local"
            }
            DiagnosticKind::SameEntrance { .. } => {
                "a packet must enter one overlay: choose another address or `udp_port`"
            }
            DiagnosticKind::OverlayWithoutNetwork { .. } => "declare one: [vni.NUMBER]",
            DiagnosticKind::EntranceNotOurs { .. } => {
                "hosts send to addresses of this machine: `ip address add` there, or correct it"
            }
            DiagnosticKind::OverlayInCleartext { .. } => {
                "write a PROTECT policy from the entrances to the hosts, or let a protected port \
                 carry the overlay"
            }
            DiagnosticKind::EtcdNotYet => "write \"sqlite\": each gateway keeps its own endpoints",
            _ => return None,
        })
    }

    /// Returns the advice about cards.
    fn card_help(&self) -> Option<&'static str> {
        Some(match self {
            DiagnosticKind::OffloadFull => {
                "write \"packet\": the card does headers, cipher, numbers and windows; or \
                 \"crypto\": the cipher alone"
            }
            DiagnosticKind::OffloadOfFileKeys => {
                "write keys = \"api\": what a card has sealed with a key is not known for certain \
                 after a restart, so that a key of a file would be of use once"
            }
            DiagnosticKind::AutoOfFileKeys => "write keys = \"api\", or offload = \"none\"",
            DiagnosticKind::OffloadBehindNat => {
                "write \"none\" or \"auto\": the card would go on sending to the old address"
            }
            DiagnosticKind::NotBesideOuter { .. } => {
                "leave it out: what is sealed again is sealed first by software, in tunnel mode, \
                 whole"
            }
            DiagnosticKind::OuterOfOuter { .. } => "packets are sealed twice at most",
            DiagnosticKind::OuterInTransportMode { .. } => {
                "name a peer in tunnel mode: the inner tunnel may end elsewhere than the outer one"
            }
            DiagnosticKind::OuterWithoutPolicy { .. } => {
                "add a policy of that peer with these two addresses, protocol = \"esp\", without \
                 `ports` and for both directions, above all others that match"
            }
            DiagnosticKind::OffloadWithoutCard => {
                "add [card.NAME] with the port that leads to the peer, or write \"auto\""
            }
            DiagnosticKind::FragmentOuterWithoutEffect => {
                "leave it out: IPv6 packets of up to 1280 bytes cross every path, in fragments of \
                 the outer packet where they must"
            }
            DiagnosticKind::DscpOnCard { .. } => {
                "leave `dscp` out, or write offload = \"none\" or \"auto\", which keeps the SAs in \
                 software"
            }
            DiagnosticKind::LinuxStandsIn => {
                "leave `stand_in` out where there is a card: figures are not those of a card"
            }
            DiagnosticKind::NotOfThisCard { .. } => "leave it out",
            DiagnosticKind::CardWithoutSocket => {
                "write the path that was given to `lockgate-emulated-card --socket`"
            }
            DiagnosticKind::DropBesideAuto => {
                "give all ports of a card the same, or \"none\": a rule in it is for all of them"
            }
            DiagnosticKind::PortOnTwoCards { .. } => "list it at one card",
            DiagnosticKind::NetdevOnTwoCards { .. } => {
                "list all ports on a netdev at the card that it is of"
            }
            DiagnosticKind::BadSocket { .. } => {
                "write the path that was given to `lockgate-emulated-card --socket`"
            }
            DiagnosticKind::SameSocket { .. } => "give each card a socket of its own",
            _ => return None,
        })
    }

    /// Returns the advice about key files.
    fn key_help(&self) -> Option<&'static str> {
        Some(match self {
            DiagnosticKind::KeyFileUnreadable { kind: ErrorKind::PermissionDenied, .. } => {
                "run as root: only the owner of a key file may read it"
            }
            DiagnosticKind::KeyFileUnreadable { .. } | DiagnosticKind::KeyFileEmpty { .. } => {
                "lockgate keygen makes a pair of them; they lie in `keys_dir`"
            }
            DiagnosticKind::KeyFileIsLink { .. } => "put the file itself into `keys_dir`",
            DiagnosticKind::KeyFileMode { .. } => {
                "chmod 0600, and make new keys if others could read it"
            }
            DiagnosticKind::KeyFileOwner { .. } | DiagnosticKind::KeysDirOwner { .. } => {
                "chown it to root"
            }
            DiagnosticKind::KeysDirMode { .. } => {
                "chmod go-w, or keep the keys in a directory of their own, of mode 0700"
            }
            DiagnosticKind::KeyDirection { expected: REPLAY_DIRECTION }
            | DiagnosticKind::KeyWords { expected: REPLAY_WORDS, .. } => {
                "`--keys` takes OUT.keys of another replay; configured keys are read from \
                 `keys_dir`"
            }
            DiagnosticKind::KeyDirection { .. } | DiagnosticKind::KeyWords { .. } => {
                "one line an SA: direction, SPI, key material in hexadecimal"
            }
            DiagnosticKind::SaOption { .. } => {
                "write peer=, suite=, esn=, replay_window=, replaces=, offload=, or \
                 a key of [peer.NAME.lifetime] with =, without spaces"
            }
            DiagnosticKind::SaOptionValue { .. } => {
                "as in a configuration, without quotes: suite=aes-128-gcm, esn=true, \
                 replay_window=1024, replaces=0x00001001, soft_packets=3G"
            }
            DiagnosticKind::SaOptionTwice { .. } => "leave one of them out",
            DiagnosticKind::SaKeyBytes { .. } | DiagnosticKind::SaWords { .. } => {
                "one line an SA: `in` or `out`, SPI, key material in hexadecimal, options"
            }
            DiagnosticKind::KeySpi => "write a number, decimal or 0x…, of 32 bits",
            DiagnosticKind::SameMaterial => "a key serves one SA in one direction: make new keys",
            DiagnosticKind::SameInboundSpi | DiagnosticKind::SameOutboundSpi => {
                "make new keys: lockgate keygen"
            }
            _ => return None,
        })
    }
}

/// Advice for a file of a set that cannot be read.
fn set_file_help(problem: &DiagnosticKind) -> Option<&'static str> {
    match problem {
        DiagnosticKind::Unreadable { kind: ErrorKind::NotFound } => {
            Some("a relative name starts at the directory of the configuration file")
        }
        DiagnosticKind::NotRegular { .. } => Some("name a text file with a member a line"),
        DiagnosticKind::OutsideDirectory | DiagnosticKind::ReachedByLink => Some(
            "lockgated opens set files in the directory of its configuration file or below, \
             without links: copy the file there. `lockgate apply` sends any file that you may read",
        ),
        DiagnosticKind::NotSent => Some(
            "lockgated opens no file for a client: `lockgate apply` sends the texts of set files, \
             the API takes them in `included`",
        ),
        problem => problem.fixed_help(),
    }
}

/// Advice to write the largest value of a key whose table fits into so many bytes.
fn fitting(key: &str, fits: u64, limit: u64) -> String {
    let fits = crate::written::count_text(fits);
    format!("{key} = \"{fits}\" takes no more than that, {limit} bytes")
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

/// Advice for what should be an address of this machine.
fn own_address_help(ours: &[IpAddr]) -> String {
    if ours.is_empty() {
        return "write it into `addresses` of its port".into();
    }
    let ours: Vec<String> = ours.iter().map(ToString::to_string).collect();
    format!(
        "this gateway has {}: write one of them, or add yours to `addresses` of its port",
        ours.join(", ")
    )
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
