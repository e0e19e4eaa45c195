//! Answers of `lockgate init`: read from text, whether typed or given by an option, and checked
//! against the answers before them.

use std::net::IpAddr;

use policy::AddressRange;
use policy::selector::SelectorError;
use wire::{Address, Family};

/// The longest name of a netdev: `IFNAMSIZ` less its final zero.
const MAX_NETDEV_BYTES: usize = 15;

/// The reason why an answer cannot be used, and what to write instead.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum AnswerMistake {
    /// The answer is empty and nothing could be guessed.
    #[error("an answer is needed here")]
    Empty,
    /// The name of a gateway is not valid.
    #[error(
        "{text:?} cannot be the name of a gateway: write 1 to 64 letters, digits, \".\", \"_\" or \
         \"-\", and begin with a letter or a digit"
    )]
    NotAName {
        /// The answer.
        text: String,
    },
    /// The two gateways, or their files, would have the same name.
    #[error("the gateways {node:?} and {peer:?} need names that differ more: their files clash")]
    SameName {
        /// Name of this gateway.
        node: String,
        /// Its peer.
        peer: String,
    },
    /// The name of an interface is not valid.
    #[error(
        "{text:?} cannot be an interface: its name has at most {MAX_NETDEV_BYTES} characters, \
         without spaces, quotes or \"/\""
    )]
    NotANetdev {
        /// The answer.
        text: String,
    },
    /// An interface that no port can be on.
    #[error("{name} cannot be a port: name the interface of a network card")]
    NotAPort {
        /// The interface.
        name: String,
    },
    /// One interface for both sides.
    #[error("{name} is the protected port already: the two ports need two interfaces")]
    SamePort {
        /// The interface.
        name: String,
    },
    /// The answer has too many words.
    #[error("{text:?} is more than was asked for: write {form}")]
    TooManyWords {
        /// The answer.
        text: String,
        /// The form that an answer has.
        form: &'static str,
    },
    /// An interface whose address is not known.
    #[error("{name} has no address that could be guessed: write \"{name} ADDRESS\"")]
    NoAddress {
        /// The interface.
        name: String,
    },
    /// The text is not an IP address.
    #[error("{text:?} is not an IP address; names are not resolved")]
    NotAnAddress {
        /// The answer.
        text: String,
    },
    /// An address that no gateway can have.
    #[error("{address} is {why}: write the address of the gateway's interface")]
    Unusable {
        /// The address.
        address: IpAddr,
        /// The reason.
        why: &'static str,
    },
    /// The two gateways would have the same address.
    #[error("{address} is this gateway's own address: write the peer's")]
    SameAddress {
        /// The address.
        address: IpAddr,
    },
    /// The ends of the tunnel are of two families.
    #[error("{address} and {own} are of different families: both are IPv4, or both are IPv6")]
    OtherFamily {
        /// The peer's outer address.
        address: IpAddr,
        /// Our outer address.
        own: IpAddr,
    },
    /// The text is not a network.
    #[error("{0}")]
    Selector(#[from] SelectorError),
    /// A range that is not one prefix.
    #[error("{range} is not one network: write prefixes, for example 10.1.0.0/16")]
    NotAPrefix {
        /// The range.
        range: AddressRange,
    },
    /// Every address there is.
    #[error("{range} is every address: write the networks behind the gateway")]
    Everything {
        /// The range.
        range: AddressRange,
    },
    /// Networks of both sides overlap.
    #[error("{network} overlaps {own}, which is behind this gateway")]
    Overlap {
        /// A network behind the peer.
        network: AddressRange,
        /// A network behind this gateway.
        own: AddressRange,
    },
    /// A family that only one side has.
    #[error(
        "{network} has nobody to talk to: the other side has no {} network",
        family_text(*.network)
    )]
    LonelyFamily {
        /// The network.
        network: AddressRange,
    },
    /// An end of the tunnel would be reached through the tunnel.
    #[error("the outer address {address} is inside {network}: it cannot be behind the tunnel")]
    OuterInside {
        /// An outer address.
        address: IpAddr,
        /// A network at the other end.
        network: AddressRange,
    },
}

fn family_text(range: AddressRange) -> &'static str {
    match range.family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

/// All that `init` needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answers {
    /// Name of this gateway.
    pub(crate) node: String,
    /// Protected interface.
    pub(crate) lan: String,
    /// Networks behind it.
    pub(crate) networks: Vec<AddressRange>,
    /// Unprotected interface.
    pub(crate) wan: String,
    /// Outer address of this gateway.
    pub(crate) address: IpAddr,
    /// Name of the peer.
    pub(crate) peer: String,
    /// Outer address of the peer.
    pub(crate) peer_address: IpAddr,
    /// Networks behind the peer.
    pub(crate) peer_networks: Vec<AddressRange>,
}

/// Reads the name of a gateway.
pub(crate) fn name(text: &str) -> Result<String, AnswerMistake> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    match begins && text.len() <= 64 && text.chars().all(allowed) {
        true => Ok(text.to_owned()),
        false => Err(AnswerMistake::NotAName { text: text.to_owned() }),
    }
}

/// Reads the name of an interface. It need not exist.
pub(crate) fn netdev(text: &str) -> Result<String, AnswerMistake> {
    let allowed = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | '"' | '\\' | '\'');
    if text.is_empty() || text.len() > MAX_NETDEV_BYTES || !text.chars().all(allowed) {
        return Err(AnswerMistake::NotANetdev { text: text.to_owned() });
    }
    match text {
        "lo" | "." | ".." | config::HOST_NETDEV => {
            Err(AnswerMistake::NotAPort { name: text.to_owned() })
        }
        _ => Ok(text.to_owned()),
    }
}

/// Reads the address of a gateway.
pub(crate) fn address(text: &str) -> Result<IpAddr, AnswerMistake> {
    let not = |_| AnswerMistake::NotAnAddress { text: text.to_owned() };
    let address: IpAddr = text.parse().map_err(not)?;
    match config::unusable(address) {
        Some(why) => Err(AnswerMistake::Unusable { address, why }),
        None => Ok(address),
    }
}

/// Reads networks, separated by commas or spaces.
pub(crate) fn networks(text: &str) -> Result<Vec<AddressRange>, AnswerMistake> {
    let words = text.split([',', ' ']).filter(|word| !word.is_empty());
    let mut networks = Vec::new();
    for word in words {
        let network = network(word)?;
        if !networks.contains(&network) {
            networks.push(network);
        }
    }
    if networks.is_empty() { Err(AnswerMistake::Empty) } else { Ok(networks) }
}

fn network(word: &str) -> Result<AddressRange, AnswerMistake> {
    if word == "any" {
        let range = AddressRange::any(Family::V4);
        return Err(AnswerMistake::Everything { range });
    }
    let range: AddressRange = word.parse()?;
    match range.prefix_length() {
        None => Err(AnswerMistake::NotAPrefix { range }),
        Some(0) => Err(AnswerMistake::Everything { range }),
        Some(_) => Ok(range),
    }
}

/// Splits `FIRST [SECOND]`.
pub(crate) fn two_words<'a>(
    text: &'a str,
    form: &'static str,
) -> Result<(&'a str, Option<&'a str>), AnswerMistake> {
    let mut words = text.split_ascii_whitespace();
    let first = words.next().ok_or(AnswerMistake::Empty)?;
    let second = words.next();
    match words.next() {
        None => Ok((first, second)),
        Some(_) => Err(AnswerMistake::TooManyWords { text: text.to_owned(), form }),
    }
}

/// Checks that the two ports are on two interfaces.
pub(crate) fn two_ports(lan: &str, wan: &str) -> Result<(), AnswerMistake> {
    match lan == wan {
        true => Err(AnswerMistake::SamePort { name: wan.to_owned() }),
        false => Ok(()),
    }
}

/// Checks the names of both gateways, which name files too.
pub(crate) fn two_names(node: &str, peer: &str) -> Result<(), AnswerMistake> {
    match node == peer || format!("{node}-{peer}") == format!("{peer}-{node}") {
        true => Err(AnswerMistake::SameName { node: node.to_owned(), peer: peer.to_owned() }),
        false => Ok(()),
    }
}

/// Checks the ends of the tunnel.
pub(crate) fn two_addresses(own: IpAddr, peer: IpAddr) -> Result<(), AnswerMistake> {
    if own == peer {
        return Err(AnswerMistake::SameAddress { address: peer });
    }
    match own.is_ipv4() == peer.is_ipv4() {
        true => Ok(()),
        false => Err(AnswerMistake::OtherFamily { address: peer, own }),
    }
}

/// Checks the networks behind the peer against everything else.
pub(crate) fn two_sides(
    own: &[AddressRange],
    peer: &[AddressRange],
    ends: [IpAddr; 2],
) -> Result<(), AnswerMistake> {
    let overlap =
        |a: &AddressRange, b: &AddressRange| a.contains(b.first()) || b.contains(a.first());
    for network in peer {
        if let Some(own) = own.iter().find(|own| overlap(own, network)) {
            return Err(AnswerMistake::Overlap { network: *network, own: *own });
        }
    }
    for (some, others) in [(own, peer), (peer, own)] {
        let lonely = |one: &&AddressRange| others.iter().all(|other| other.family != one.family);
        if let Some(network) = some.iter().find(lonely) {
            return Err(AnswerMistake::LonelyFamily { network: *network });
        }
    }
    let [our_end, peer_end] = ends;
    for (address, networks) in [(our_end, own), (peer_end, peer)] {
        let outer = Address::from(address);
        if let Some(network) = networks.iter().find(|network| network.contains(outer)) {
            return Err(AnswerMistake::OuterInside { address, network: *network });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text<T: std::fmt::Debug>(answer: Result<T, AnswerMistake>) -> String {
        answer.unwrap_err().to_string()
    }

    #[test]
    fn wrong_words_are_explained() {
        assert!(text(name("gw a")).contains("cannot be the name of a gateway"));
        assert!(text(name("-x")).contains("begin with a letter"));
        assert!(text(netdev("averyveryverylongname")).contains("at most 15 characters"));
        assert!(text(netdev("lo")).contains("cannot be a port"));
        assert!(text(netdev("lockgate0")).contains("cannot be a port"));
        assert!(text(address("vpn.example.com")).contains("names are not resolved"));
        assert!(text(address("224.0.0.1")).contains("multicast"));
        assert!(text(networks("10.1.0.1/16")).contains("the network is 10.1.0.0/16"));
        assert!(text(networks("any")).contains("every address"));
        assert!(text(networks("::/0")).contains("every address"));
        assert!(text(networks("10.0.0.1-10.0.0.9")).contains("write prefixes"));
        assert!(text(networks(" , ")).contains("needed"));
        assert!(text(two_words("a b c", "X Y")).contains("write X Y"));
        // What was typed cannot drive the terminal.
        assert!(!text(name("\u{1b}[2J\u{202e}x")).contains(['\u{1b}', '\u{202e}']));
    }

    #[test]
    fn right_words_are_read() {
        assert_eq!(name("gw-a.x_1"), Ok("gw-a.x_1".into()));
        assert_eq!(netdev("enp0s31f6.12"), Ok("enp0s31f6.12".into()));
        let two = networks("10.1.0.0/16, 2001:db8::/48 10.1.0.0/16").unwrap();
        assert_eq!(
            two.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            "10.1.0.0/16 2001:db8::/48"
        );
        assert_eq!(two_words(" eth0  192.0.2.1 ", ""), Ok(("eth0", Some("192.0.2.1"))));
    }

    #[test]
    fn answers_that_contradict_each_other_are_explained() {
        let nets = |text| networks(text).unwrap();
        let ends: [IpAddr; 2] = [[192, 0, 2, 1].into(), [192, 0, 2, 2].into()];
        let sides = |own, peer| two_sides(&nets(own), &nets(peer), ends);
        assert_eq!(sides("10.1.0.0/16", "10.2.0.0/16"), Ok(()));
        assert!(text(sides("10.0.0.0/8", "10.2.0.0/16")).contains("overlaps 10.0.0.0/8"));
        assert!(text(sides("10.1.0.0/16", "2001:db8::/48")).contains("no IPv4 network"));
        assert!(text(sides("10.1.0.0/16 fd00::/8", "10.2.0.0/16")).contains("fd00::/8 has nobody"));
        assert!(text(sides("10.1.0.0/16", "192.0.2.2")).contains("192.0.2.2 is inside"));
        assert!(text(sides("192.0.2.0/31", "10.2.0.0/16")).contains("192.0.2.1 is inside"));
        assert!(text(two_names("a", "a-a")).contains("their files clash"));
        assert_eq!(two_names("gw-a", "berlin"), Ok(()));
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        assert!(text(two_addresses(ends[0], v6)).contains("different families"));
        assert!(text(two_addresses(ends[0], ends[0])).contains("own address"));
        assert!(text(two_ports("eth0", "eth0")).contains("two interfaces"));
    }
}
