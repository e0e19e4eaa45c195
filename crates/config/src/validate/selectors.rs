//! Selectors as policies and rules of groups write them: addresses, protocol, ports, ICMP messages.

use policy::selector::parse_protocol;
use policy::{
    AddressRange, IcmpRange, PortRange, Selector, SelectorError, TcpSegments, UpperSelector,
};
use wire::flow::protocol;
use wire::{Address, Family};

use crate::diagnostic::{DiagnosticKind, Refusal, nearest};
use crate::errors::Diagnostics;
use crate::raw::{Either, Text, Texts};
use crate::read::Scalar;
use crate::source::{Span, Spanned};
use crate::values::word;

/// Entries of one list at most.
pub(super) const MAX_ENTRIES: usize = 4096;

/// IPv6 mobility header (RFC 6275).
const MOBILITY: u8 = 135;
/// Host Identity Protocol (RFC 7401): over IPv6 an extension header.
const HIP: u8 = 139;
/// Shim6 (RFC 5533).
const SHIM6: u8 = 140;

/// The keys of a section that say which packets it matches.
pub(super) struct Matched<'r> {
    /// `policy` or `rule`.
    pub(super) what: &'static str,
    /// Location of its header.
    pub(super) at: &'r Span,
    /// Addresses at both ends, with their keys.
    pub(super) ends: [(&'static str, &'r Texts); 2],
    pub(super) protocol: &'r Either,
    /// Ports at both ends, with their keys.
    pub(super) ports: [(&'static str, &'r Texts); 2],
    /// The kind of TCP segments; policies have no such key.
    pub(super) tcp: &'r Text,
    pub(super) icmp: &'r Texts,
}

impl Matched<'_> {
    /// Judges them all.
    pub(super) fn selector(&self, problems: &mut Diagnostics<'_>) -> Option<Selector> {
        let ends = self.ends.map(|(key, written)| addresses(problems, key, written));
        self.selector_between(ends, problems)
    }

    /// Judges all but the addresses, which were judged; `None`: they are wrong.
    pub(super) fn selector_between(
        &self,
        [local, remote]: [Option<Vec<AddressRange>>; 2],
        problems: &mut Diagnostics<'_>,
    ) -> Option<Selector> {
        let protocol = self.protocol(problems);
        let ports = self.ports.map(|(key, written)| list::<PortRange>(problems, key, written));
        let messages = list::<IcmpRange>(problems, "icmp", self.icmp);
        let segments = self.segments(problems);
        let [local_ports, remote_ports] = ports;
        let upper = match protocol {
            Some(protocol) => {
                let ports = [local_ports?, remote_ports?];
                self.upper(protocol, ports, (messages?, segments?), problems)
            }
            None => None,
        };
        let (protocol, upper) = (protocol?, upper?);
        let selector = Selector { local: local?, remote: remote?, protocol, upper };
        self.check_families(&selector, problems).then_some(selector)
    }

    /// Notes a selector that no packet can match, and returns whether some can.
    fn check_families(&self, selector: &Selector, problems: &mut Diagnostics<'_>) -> bool {
        let both = |family| {
            let of = |list: &[AddressRange]| list.iter().any(|range| range.family == family);
            of(&selector.local) && of(&selector.remote)
        };
        let needed = match selector.protocol {
            Some(protocol::ICMP) => both(Family::V4),
            Some(protocol::ICMPV6) => both(Family::V6),
            _ => both(Family::V4) || both(Family::V6),
        };
        if !needed {
            let [(one, _), (other, written)] = self.ends;
            let span = written.as_ref().map_or(self.at.clone(), Spanned::span);
            let mistake = match selector.protocol {
                Some(protocol::ICMP) if both(Family::V6) => {
                    DiagnosticKind::IcmpOfOtherFamily { right: "icmpv6" }
                }
                Some(protocol::ICMPV6) if both(Family::V4) => {
                    DiagnosticKind::IcmpOfOtherFamily { right: "icmp" }
                }
                _ => DiagnosticKind::NeverMatches { one, other, what: self.what },
            };
            problems.error(&span, mistake);
        }
        needed
    }

    fn upper(
        &self,
        protocol: Option<u8>,
        [local, remote]: [Vec<PortRange>; 2],
        (messages, segments): (Vec<IcmpRange>, Option<TcpSegments>),
        problems: &mut Diagnostics<'_>,
    ) -> Option<UpperSelector> {
        let (mut sound, what) = (true, self.what);
        let empty = [local.is_empty(), remote.is_empty()];
        for ((key, written), empty) in self.ports.into_iter().zip(empty) {
            let Some(written) = written.as_ref().filter(|_| !empty) else { continue };
            match protocol {
                None => {
                    // FC-04
                    problems.warning(&written.span(), DiagnosticKind::PortsOfAny { key, what });
                }
                Some(number) if !protocol::has_ports(number) => {
                    problems
                        .error(&written.span(), DiagnosticKind::NoPorts { key, protocol: number });
                    sound = false;
                }
                Some(_) => {}
            }
        }
        let asks_segments = self.tcp.as_ref().filter(|_| segments.is_some());
        if let Some(written) = asks_segments.filter(|_| protocol != Some(protocol::TCP)) {
            problems.error(&written.span(), DiagnosticKind::TcpWithoutProtocol);
            sound = false;
        }
        if let Some(written) = self.icmp.as_ref().filter(|_| !messages.is_empty()) {
            if !matches!(protocol, Some(protocol::ICMP | protocol::ICMPV6)) {
                problems.error(&written.span(), DiagnosticKind::IcmpWithoutProtocol);
                sound = false;
            }
            return sound.then_some(UpperSelector::Icmp(messages));
        }
        let ports = !local.is_empty() || !remote.is_empty();
        let upper = match segments {
            Some(segments) => UpperSelector::Tcp { segments, local, remote },
            None if ports => UpperSelector::Ports { local, remote },
            None => UpperSelector::Any,
        };
        sound.then_some(upper)
    }

    /// Reads `tcp`.
    fn segments(&self, problems: &mut Diagnostics<'_>) -> Option<Option<TcpSegments>> {
        let Some(written) = self.tcp else { return Some(None) };
        if names_flags(written.get_ref()) {
            let (key, refusal) = (written.get_ref().clone(), Refusal::TcpFlags);
            problems.error(&written.span(), DiagnosticKind::Refused { key, refusal });
            return None;
        }
        let choices = TcpSegments::ALL.map(|segments| (segments.name(), segments));
        word(problems, "tcp", self.tcp, TcpSegments::New, &choices).map(Some)
    }

    fn protocol(&self, problems: &mut Diagnostics<'_>) -> Option<Option<u8>> {
        let Some(written) = self.protocol else { return Some(None) };
        let text = match written.get_ref() {
            Scalar::Text(text) => text.clone(),
            Scalar::Number(number) => number.to_string(),
        };
        let mistake = match parse_protocol(&text) {
            Ok(Some(
                number @ (protocol::HOP_BY_HOP
                | protocol::ROUTING
                | protocol::FRAGMENT
                | protocol::DESTINATION
                | MOBILITY
                | HIP
                | SHIM6),
            )) => DiagnosticKind::ExtensionHeader { protocol: number },
            Ok(protocol) => return Some(protocol),
            Err(_) if text.eq_ignore_ascii_case("ah") => {
                DiagnosticKind::Refused { key: text, refusal: Refusal::Ah }
            }
            Err(error) => {
                let names = policy::selector::PROTOCOL_NAMES.iter().map(|(name, _)| *name);
                DiagnosticKind::UnknownProtocol {
                    nearest: nearest(&text, names.chain(["any"])),
                    error: error.into(),
                }
            }
        };
        problems.error(&written.span(), mistake);
        None
    }
}

/// Returns whether a value of `tcp` is meant as flags: `syn`, `syn,ack`, `SYN/SYN,ACK`, `0x2/0x12`.
fn names_flags(text: &str) -> bool {
    let is_flag = |part: &str| {
        let part = part.trim().trim_start_matches(['!', '~', '+', '-']);
        let name = part.to_ascii_lowercase();
        matches!(&*name, "syn" | "ack" | "fin" | "rst" | "psh" | "urg" | "ece" | "cwr")
            || part.starts_with(|first: char| first.is_ascii_digit())
    };
    text.split(['/', ',', '|', '&', ' ']).any(is_flag)
}

pub(super) fn addresses(
    problems: &mut Diagnostics<'_>,
    key: &'static str,
    written: &Texts,
) -> Option<Vec<AddressRange>> {
    let written = written.as_ref()?;
    if written.get_ref().is_empty() {
        problems.error(&written.span(), DiagnosticKind::EmptyList { key });
        return None;
    }
    let mut ranges: Vec<(AddressRange, Span)> = Vec::new();
    let mut sound = bounded_list(problems, key, written);
    for entry in written.get_ref().iter().take(MAX_ENTRIES) {
        match policy::selector::parse_addresses(entry.get_ref()) {
            Ok(parsed) => ranges.extend(parsed.into_iter().map(|range| (range, entry.span()))),
            Err(error) => {
                problems.error(&entry.span(), DiagnosticKind::Selector(error.into()));
                sound = false;
            }
        }
    }
    let bounds = |range: &AddressRange| {
        (
            Address { family: range.family, value: range.lo },
            Address { family: range.family, value: range.hi },
        )
    };
    warn_of_overlaps(
        problems,
        key,
        ranges.iter().map(|(range, span)| (bounds(range), span.clone())),
    );
    sound.then(|| ranges.iter().map(|(range, _)| *range).collect())
}

/// A range of something that stands in a list.
trait Range: std::str::FromStr<Err = SelectorError> + Copy {
    fn bounds(&self) -> (u16, u16);
}

impl Range for PortRange {
    fn bounds(&self) -> (u16, u16) {
        (self.lo, self.hi)
    }
}

impl Range for IcmpRange {
    fn bounds(&self) -> (u16, u16) {
        (self.lo, self.hi)
    }
}

fn list<R: Range>(
    problems: &mut Diagnostics<'_>,
    key: &'static str,
    written: &Texts,
) -> Option<Vec<R>> {
    let Some(written) = written else { return Some(Vec::new()) };
    // To leave the key out means any; a list that came out empty must not.
    if written.get_ref().is_empty() {
        problems.error(&written.span(), DiagnosticKind::EmptyList { key });
        return None;
    }
    let mut ranges: Vec<(R, Span)> = Vec::new();
    let mut sound = bounded_list(problems, key, written);
    for entry in written.get_ref().iter().take(MAX_ENTRIES) {
        match entry.get_ref().parse() {
            Ok(range) => ranges.push((range, entry.span())),
            Err(error) => {
                problems.error(&entry.span(), DiagnosticKind::Selector(error.into()));
                sound = false;
            }
        }
    }
    warn_of_overlaps(
        problems,
        key,
        ranges.iter().map(|(range, span)| (range.bounds(), span.clone())),
    );
    sound.then(|| ranges.iter().map(|(range, _)| *range).collect())
}

pub(super) fn bounded_list<T>(
    problems: &mut Diagnostics<'_>,
    what: &'static str,
    written: &Spanned<Vec<T>>,
) -> bool {
    let fits = written.get_ref().len() <= MAX_ENTRIES;
    if !fits {
        problems.error(&written.span(), DiagnosticKind::TooMany { what, limit: MAX_ENTRIES });
    }
    fits
}

/// Notes entries of a list that another entry of it covers in part or in full.
pub(super) fn warn_of_overlaps<B: Ord + Copy>(
    problems: &mut Diagnostics<'_>,
    key: &'static str,
    ranges: impl Iterator<Item = ((B, B), Span)>,
) {
    let mut sorted: Vec<_> = ranges.collect();
    sorted.sort_by_key(|((lo, _), _)| *lo);
    let mut highest: Option<B> = None;
    for ((lo, hi), span) in sorted {
        if highest.is_some_and(|highest| lo <= highest) {
            problems.warning(&span, DiagnosticKind::Overlap { key });
        }
        highest = highest.max(Some(hi));
    }
}
