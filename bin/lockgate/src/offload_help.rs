//! `lockgate help offload`: what network cards can take over, in which modes and within which
//! limits, card by card. Written from the same profiles that the planner reads.

use std::ffi::OsString;

use console::output::{Numbers, OutputError, print, print_json, table};
use offload::{
    Ability, AddressForm, Capabilities, Exactness, PortForm, Protocols, RuleAbilities, SaAbilities,
    Transmit,
};
use serde_json::{Value, json};

const MODES: &str = "\
Network cards can take work over from the gateway. Lockgate gives a card only
what it does exactly as the gateway would; everything else stays with the
gateway, and the verdicts are the same.

Rules of security groups: the card tags packets with the rule that they match,
and the gateway believes a tag while that is safe. Runs today, on an emulated
card: see [card.NAME] in the configuration, `lockgate show placement`,
`lockgate plan`, and docs/card.md.

SAs, by the key `offload` of [peer.NAME], for peers with keys = \"api\" or \"ike\":
  none    the gateway seals and opens
  packet  the card does all of ESP, and the gateway sees packets in clear both
          ways; an SA that the card does not take is refused
  crypto  the card encrypts and decrypts, and the gateway, or Linux (kind
          xfrm), does the rest of ESP; an SA that the card does not take is
          refused
  auto    packet where the card can, else crypto, else software; a software SA
          beside goes on when the card is lost
Runs today on an emulated card, and by way of Linux (kind xfrm), where no card
was tried yet: see docs/card.md.

Limits, of every card:
  a card that knows only one mode refuses the other; nothing is served as
    something else
  an SA lives in one place from birth to death: after a card was lost it is not
    resumed
  in packet mode an SA that seals has a lease of sequence numbers, its hard
    limit of packets
  limits of bytes become limits of packets where the card does not count bytes
    exactly
  in crypto mode by way of Linux an SA that seals takes no limit of packets or
    bytes: Linux counts a frame of several segments (GSO) once
  fragments, IPv4 options and IPv6 extension headers are not handed to a card;
    in crypto mode that is asked of the packet outside
  a card that seals what it matches, and sends the rest in clear, gets no SA of
    a worker
";

/// A line of a table: its name, and its cell for a card's abilities.
type Line<T> = (&'static str, fn(&T) -> String);

const RULES: [Line<RuleAbilities>; 11] = [
    ("entries of the whole card", |of| of.entries.to_string()),
    ("order", |of| of.order.name().into()),
    ("addresses", |of| match of.addresses {
        AddressForm::Prefixes => "prefixes".into(),
        AddressForm::Ranges => "ranges".into(),
    }),
    ("ports", |of| match of.ports {
        Ability::Has(PortForm::Single) => "single".into(),
        Ability::Has(PortForm::Ranges) => "ranges".into(),
        Ability::Lacks(_) => "no".into(),
    }),
    ("protocols", |of| protocols(of.protocols)),
    ("ICMP messages", |of| yes(&of.messages)),
    ("TCP segments apart", |of| yes(&of.segments)),
    ("IPv6", |of| yes(&of.ipv6)),
    ("connections", |of| yes(&of.reflect)),
    ("packets that leave", |of| yes(&of.egress)),
    ("drops by itself", |of| yes(&of.drop)),
];

const SAS: [Line<SaAbilities>; 15] = [
    ("packet mode", |of| yes(&of.packet)),
    ("crypto mode", |of| yes(&of.crypto)),
    ("AES-GCM", |of| suites(of, "gcm")),
    ("ChaCha20-Poly1305", |of| suites(of, "chacha")),
    ("transport mode", |of| yes(&of.transport)),
    ("tunnel mode", |of| yes(&of.tunnel)),
    ("ESN", |of| yes(&of.esn)),
    ("replay windows", |of| numbers(of.windows)),
    ("ESP in UDP", |of| yes(&of.nat_traversal)),
    ("limits of packets", |of| exactness(&of.packet_limits)),
    ("limits of bytes", |of| exactness(&of.byte_limits)),
    ("tells what it opened", |of| yes(&of.rx_sa_mark)),
    ("seals what", |of| match of.transmit {
        Transmit::BySelector => "matches".into(),
        Transmit::ByHandle => "is named".into(),
    }),
    ("upper protocols", |of| protocols(of.upper)),
    ("outer header as configured", |of| yes(&of.outer_header)),
];

fn yes<T>(of: &Ability<T>) -> String {
    if of.is_there() { "yes" } else { "no" }.into()
}

/// Key lengths of the suites with this in their name.
fn suites(of: &SaAbilities, name: &str) -> String {
    let of_name = of.suites.iter().filter(|suite| suite.contains(name));
    let lengths: Vec<&str> = of_name
        .map(|suite| suite.split('-').find(|part| part.parse::<u16>().is_ok()).unwrap_or("yes"))
        .collect();
    if lengths.is_empty() { "no".into() } else { lengths.join(", ") }
}

fn protocols(of: Protocols) -> String {
    match of {
        Protocols::TcpUdp => "TCP UDP",
        Protocols::All => "all",
    }
    .into()
}

fn numbers(of: &[u32]) -> String {
    match (of.first(), of.last()) {
        (Some(first), Some(last)) => format!("{first} to {last}"),
        _ => "none".into(),
    }
}

fn exactness(of: &Ability<Exactness>) -> String {
    match of {
        Ability::Has(Exactness::Exact) => "exact".into(),
        Ability::Has(Exactness::Polled { every_ms }) => format!("each {every_ms} ms"),
        Ability::Lacks(_) => "none".into(),
    }
}

/// The cards: the emulated one with SAs, and the profiles that were read.
fn cards() -> Vec<Capabilities> {
    let emulated = Capabilities::emulated(RuleAbilities::default()).with_emulated_sas(1024);
    let read = Capabilities::NAMES.into_iter().filter_map(Capabilities::named);
    std::iter::once(emulated).chain(read).collect()
}

/// Prints the help if the command line asks for it. `None`: it does not.
pub(crate) fn answer(args: &[OsString]) -> Option<Result<(), OutputError>> {
    let words: Vec<&str> = args.iter().skip(1).map(|word| word.to_str().unwrap_or("")).collect();
    match words.as_slice() {
        ["help", "offload"] => Some(print(&text())),
        ["help", "offload", "--json"] | ["--json", "help", "offload"] => Some(print_json(&whole())),
        _ => None,
    }
}

fn text() -> String {
    let cards = cards();
    let mut text = format!("{MODES}\n");
    text += &lines("Rules", &cards, &RULES, |card| card.rules.get());
    text += &lines("SAs", &cards, &SAS, |card| card.sas.get());
    text + "`emulated` is software in a card's place. The others are described as their\n\
            documents or drivers read; none of them was tried, and no real card is\n\
            supported yet.\n"
}

/// A table of what cards can, a column a card that can any of it.
fn lines<T>(
    title: &str,
    cards: &[Capabilities],
    lines: &[Line<T>],
    of: impl Fn(&Capabilities) -> Option<&T>,
) -> String {
    let able: Vec<(&str, &T)> =
        cards.iter().filter_map(|card| Some((card.name, of(card)?))).collect();
    let names = able.iter().map(|(name, _)| *name);
    let header: Vec<&str> = std::iter::once("").chain(names).collect();
    let rows = lines.iter().map(|(name, cell)| {
        let cells = able.iter().map(|(_, abilities)| cell(abilities));
        std::iter::once((*name).to_owned()).chain(cells).collect()
    });
    table(title, &header, rows, Numbers::NONE)
}

fn whole() -> Value {
    fn all<T>(lines: &[Line<T>], of: Option<&T>) -> Value {
        let Some(of) = of else { return Value::Null };
        let cells = lines.iter().map(|(name, cell)| ((*name).to_owned(), cell(of).into()));
        Value::Object(cells.collect())
    }
    let card = |card: &Capabilities| {
        json!({
            "name": card.name,
            "source": card.source.name(),
            "rules": all(&RULES, card.rules.get()),
            "no_rules": card.rules.lack(),
            "sas": all(&SAS, card.sas.get()),
            "no_sas": card.sas.lack(),
        })
    };
    json!({ "text": MODES, "cards": cards().iter().map(card).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    // XO-38
    #[test]
    fn modes_limits_and_the_abilities_of_each_card_are_listed() {
        let text = text();
        for words in ["none    ", "crypto  ", "packet  ", "Limits, of every card", "emulated"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        for name in Capabilities::NAMES {
            assert!(text.contains(name), "{name}: {text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let line = |name: &str| text.lines().find(|line| line.contains(name)).unwrap();
        let tunnel: Vec<&str> = line("tunnel mode").split_whitespace().skip(2).collect();
        assert_eq!(tunnel, ["yes", "no", "yes", "no"], "emulated, v9, 6.4+, mlx5-as-read");
        let whole = whole();
        assert_eq!(whole["cards"][1]["name"], "acl-2000");
        assert_eq!(whole["cards"][1]["rules"]["entries of the whole card"], "2000");
        assert!(whole["cards"][2]["no_rules"].is_string());
    }

    #[test]
    fn other_command_lines_are_left_to_the_parser() {
        let args = |words: &[&str]| -> Vec<OsString> {
            std::iter::once("lockgate").chain(words.iter().copied()).map(OsString::from).collect()
        };
        for words in [&["help"][..], &["help", "show"], &["offload"], &["help", "offload", "x"]] {
            assert!(answer(&args(words)).is_none(), "{words:?}");
        }
    }
}
