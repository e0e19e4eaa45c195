//! Advice: what to do about each mistake.

use std::io::ErrorKind;
use std::net::IpAddr;

use ipsec::Suite;

use super::{Mistake, REPLAY_DIRECTION, REPLAY_WORDS, Refusal};

const KEYS_STAND_ELSEWHERE: &str = "keys belong in a file of their own: keys = \
                                    \"file:berlin.keys\"";

impl Mistake {
    /// Returns the advice, if the message does not give it.
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
            Mistake::LocalNotOurs { ours, .. } => Some(own_address_help(ours)),
            Mistake::NotNamed { word, .. } => {
                Some(format!("write [{word}.NAME] and its keys below"))
            }
            Mistake::CacheBeyondMemory { limit, fits, .. } => {
                let flows = crate::written::count_text(*fits);
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

    /// Returns the advice that holds no value.
    fn fixed_help(&self) -> Option<&'static str> {
        (self.file_help())
            .or_else(|| self.port_help())
            .or_else(|| self.peer_help())
            .or_else(|| self.policy_help())
            .or_else(|| self.key_help())
    }

    /// Returns the advice about a file as text.
    fn file_help(&self) -> Option<&'static str> {
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
            _ => return None,
        })
    }

    /// Returns the advice about names, [node] and ports.
    fn port_help(&self) -> Option<&'static str> {
        Some(match self {
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
                "`run_dir` may be emptied by a reboot, `state_dir` must survive it"
            }
            Mistake::BadListen { .. } => "write \"127.0.0.1:9617\", \"[::1]:9617\" or \"off\"",
            Mistake::ListenPortZero => "write a port from 1 to 65535",
            Mistake::ListenAddress { .. } => "name one of this machine's own addresses",
            Mistake::OpensOnExit => "on_exit = \"closed\" keeps the ports shut",
            Mistake::BadFlows { .. } => "write \"off\", 1000, \"64K\" or \"1M\"",
            Mistake::CacheTooSmall => "write flows = \"off\" to have none, or 2 at least",
            Mistake::UseWithoutCache => "write flows = \"1M\" to have one, or leave `use` out",
            Mistake::AllPorts => {
                "leave it out: if no port of a side is listed, all ports of that side match"
            }
            Mistake::SameLink { .. } => "a port is a netdev and a VLAN id: declare it once",
            Mistake::BadNetdev { text } if text.len() > 15 => {
                "a netdev's name has at most 15 characters: `ip link` shows it"
            }
            Mistake::BadNetdev { .. } => "write it as `ip link` shows it, without `/` or spaces",
            Mistake::ReservedPortName => "choose another name",
            Mistake::SameNetwork { .. } => "packets to it could leave by one port only",
            Mistake::AllowHostInside => "a protected port passes all traffic for this machine",
            Mistake::TooManyServices { .. } => {
                "join ports into ranges (\"tcp/8000-8080\"), or list whole protocols (\"tcp\") and \
                 filter on this machine"
            }
            Mistake::ChecksumOutside => {
                "leave `l4_checksum` out: packets from outside keep their checksums"
            }
            Mistake::ServiceAny => "name what may come in: \"udp/500\", \"icmp\"",
            Mistake::ServiceEsp => "leave it out: an SA admits it",
            _ => return None,
        })
    }

    /// Returns the advice about peers.
    fn peer_help(&self) -> Option<&'static str> {
        Some(match self {
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
                "use it for benchmarks between your own machines only, never for real traffic"
            }
            Mistake::NoEncryption { .. } => "aes-128-gcm encrypts, and costs less",
            Mistake::ShortNumbers => {
                "write esn = true at both ends, or esn = false if that is meant"
            }
            Mistake::OnlyWithUdp { .. } => "write encapsulation = \"udp\" too, or leave it out",
            Mistake::OnlyInTunnelMode { .. } | Mistake::DfOfV6 => "leave it out",
            _ => return None,
        })
    }

    /// Returns the advice about policies and routes.
    fn policy_help(&self) -> Option<&'static str> {
        Some(match self {
            Mistake::RemoteInside { .. } => {
                "`local` is this gateway's side, `remote` the peer's: are the two swapped?"
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
            Mistake::PeerInside { .. } => {
                "sealed packets would stay on the protected side: is `side` right?"
            }
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
            Mistake::ViaNotConnected { .. } => "a router must be in a network of one of the ports",
            Mistake::ViaAmbiguous { .. } => "write port = \"NAME\" too",
            _ => return None,
        })
    }

    /// Returns the advice about key files.
    fn key_help(&self) -> Option<&'static str> {
        Some(match self {
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
