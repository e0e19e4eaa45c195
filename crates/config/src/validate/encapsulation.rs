//! Validates the keys of `[peer.NAME]` that say how packets to the peer are carried.

use ipsec::encapsulation::NAT_TRAVERSAL_PORT;
use ipsec::{DontFragment, Dscp, Encapsulation, Mode, Tunnel, UdpPorts};

use crate::diagnostic::DiagnosticKind;
use crate::errors::Diagnostics;
use crate::raw::{Either, RawPeer};
use crate::read::Scalar;
use crate::source::{Span, Spanned};
use crate::validated::PeerPlace;
use crate::values::{bounded, word};

/// Seconds between NAT keepalives where nothing is written (RFC 3948 §4).
const NAT_KEEPALIVE_S: u32 = 20;
/// A NAT forgets UDP within minutes: longer intervals keep nothing alive.
const LONGEST_KEEPALIVE_S: u32 = 3600;
/// The last DSCP (RFC 2474 §3).
const LAST_DSCP: u32 = 63;

/// The headers of packets to a peer, and whether the peer may move.
pub(super) struct EncapsulationParts {
    pub(super) encapsulation: Encapsulation,
    pub(super) place: PeerPlace,
    pub(super) nat_keepalive_s: Option<u32>,
}

/// The header that is put in front of ESP.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InFront {
    Nothing,
    Udp,
}

/// `None`: something is wrong, and was noted; so is `tunnel`.
pub(super) fn carried(
    raw: &RawPeer,
    tunnel: Option<Tunnel>,
    problems: &mut Diagnostics<'_>,
) -> Option<EncapsulationParts> {
    let modes = [("tunnel", Mode::Tunnel), ("transport", Mode::Transport)];
    let mode = word(problems, "mode", &raw.mode, Mode::Tunnel, &modes);
    let in_front = [("none", InFront::Nothing), ("udp", InFront::Udp)];
    let in_front = word(problems, "encapsulation", &raw.encapsulation, InFront::Nothing, &in_front);
    let port = u32::from(NAT_TRAVERSAL_PORT);
    let remote_port =
        bounded(problems, "remote_port", &raw.remote_port, port, (1, u32::from(u16::MAX)));
    let keepalive = keepalive(&raw.nat_keepalive, problems);
    let dscp = dscp(&raw.dscp, problems);
    let choices =
        [("set", DontFragment::Set), ("copy", DontFragment::Copy), ("clear", DontFragment::Clear)];
    let dont_fragment = word(problems, "df", &raw.df, DontFragment::Set, &choices);
    let fits = check_udp(raw, in_front, problems) & check_headers(raw, mode, tunnel, problems);
    let behind_nat = raw.behind_nat.as_ref().is_some_and(|written| *written.get_ref());
    let (remote, keepalive) = (remote_port? as u16, keepalive?);
    let udp = match in_front? {
        InFront::Nothing => None,
        InFront::Udp => Some(UdpPorts { local: NAT_TRAVERSAL_PORT, remote }),
    };
    let encapsulation = Encapsulation {
        mode: mode?,
        tunnel: tunnel?,
        udp,
        dscp: dscp?,
        dont_fragment: dont_fragment?,
    };
    fits.then_some(EncapsulationParts {
        encapsulation,
        place: if behind_nat { PeerPlace::BehindNat } else { PeerPlace::Fixed },
        nat_keepalive_s: keepalive.filter(|_| udp.is_some()),
    })
}

/// Notes keys that mean something only where ESP is in UDP.
fn check_udp(raw: &RawPeer, in_front: Option<InFront>, problems: &mut Diagnostics<'_>) -> bool {
    let spans: [(&'static str, Option<Span>); 3] = [
        ("remote_port", raw.remote_port.as_ref().map(Spanned::span)),
        ("behind_nat", raw.behind_nat.as_ref().map(Spanned::span)),
        ("nat_keepalive", raw.nat_keepalive.as_ref().map(Spanned::span)),
    ];
    let mut fits = true;
    for (key, span) in spans {
        if let (Some(InFront::Nothing), Some(span)) = (in_front, span) {
            problems.error(&span, DiagnosticKind::OnlyWithUdp { key });
            fits = false;
        }
    }
    fits
}

/// Notes keys of outer headers where there are none of their kind.
fn check_headers(
    raw: &RawPeer,
    mode: Option<Mode>,
    tunnel: Option<Tunnel>,
    problems: &mut Diagnostics<'_>,
) -> bool {
    let dscp = raw.dscp.as_ref().map(Spanned::span);
    let df = raw.df.as_ref().map(Spanned::span);
    let mut fits = true;
    for (key, span) in [("dscp", &dscp), ("df", &df)] {
        if let (Some(Mode::Transport), Some(span)) = (mode, span) {
            problems.error(span, DiagnosticKind::OnlyInTunnelMode { key });
            fits = false;
        }
    }
    let is_v6 = tunnel.is_some_and(|tunnel| tunnel.remote.is_ipv6());
    if let (Some(Mode::Tunnel), true, Some(span)) = (mode, is_v6, &df) {
        problems.error(span, DiagnosticKind::DfOfV6);
        fits = false;
    }
    fits
}

/// Seconds between NAT keepalives; `Some(None)`: none are sent.
fn keepalive(written: &Either, problems: &mut Diagnostics<'_>) -> Option<Option<u32>> {
    let bounds = (1, LONGEST_KEEPALIVE_S);
    let seconds = number_or(written, "nat_keepalive", "off", bounds, problems);
    match written {
        None => Some(Some(NAT_KEEPALIVE_S)),
        Some(_) => seconds,
    }
}

fn dscp(written: &Either, problems: &mut Diagnostics<'_>) -> Option<Dscp> {
    let value = number_or(written, "dscp", "copy", (0, LAST_DSCP), problems)?;
    Some(value.map_or(Dscp::Copy, |value| Dscp::Fixed(value as u8)))
}

/// A number within bounds, or `Some(None)` for the one word that may stand instead of it, or for
/// nothing.
fn number_or(
    written: &Either,
    key: &'static str,
    other: &'static str,
    bounds: (u32, u32),
    problems: &mut Diagnostics<'_>,
) -> Option<Option<u32>> {
    let Some(written) = written else { return Some(None) };
    match written.get_ref() {
        Scalar::Text(text) if text == other => Some(None),
        Scalar::Text(text) => {
            let (text, (lowest, highest)) = (text.clone(), bounds);
            let mistake = DiagnosticKind::NumberOrWord { key, text, word: other, lowest, highest };
            problems.error(&written.span(), mistake);
            None
        }
        Scalar::Number(number) => {
            let number = Some(Spanned::new(written.span(), *number));
            bounded(problems, key, &number, 0, bounds).map(Some)
        }
    }
}
