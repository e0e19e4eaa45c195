//! `[peer.NAME]`: the other ends of the tunnels.

use std::collections::HashMap;
use std::net::IpAddr;

use ipsec::{Encryption, ReplayWindow, SequenceNumbers, Suite, Tunnel};

use super::NamedSections;
use super::encapsulation::{self, EncapsulationParts};
use super::lifetime;
use super::moves;
use super::ports::Ports;
use crate::cards::SaOffload;
use crate::diagnostic::{DiagnosticKind, nearest};
use crate::errors::Diagnostics;
use crate::raw::{Raw, RawPeer};
use crate::source::{Span, Spanned};
use crate::validated::{KeySource, NO_INTEGRITY, PathMtuUse, Peer};
use crate::values::{address, bounded, name, unusable, word};

/// Peers at most.
const MAX_PEERS: usize = 1 << 20;

pub(crate) fn validate(
    raw: &[RawPeer],
    ports: &Ports,
    problems: &mut Diagnostics<'_>,
) -> NamedSections<Peer> {
    let mut peers = NamedSections { ids: Default::default(), list: Vec::with_capacity(raw.len()) };
    if let Some(beyond) = raw.get(MAX_PEERS) {
        problems.error(&beyond.at, DiagnosticKind::TooMany { what: "peers", limit: MAX_PEERS });
    }
    let mut key_files: HashMap<&str, Span> = HashMap::new();
    // Once is enough: it holds for all of them.
    // charon negotiates it.
    let is_short = |peer: &&RawPeer| peer.esn.is_none() && !has_keys(peer, "ike");
    let of_api = |peer: &&RawPeer| has_keys(peer, "api");
    let mut short = raw.iter().filter(is_short);
    match short.clone().find(|peer| !of_api(peer)).or(short.next()) {
        None => {}
        Some(peer) if of_api(&peer) => {
            problems.warning(&peer.name.span(), DiagnosticKind::ShortNumbersOfApi);
        }
        Some(peer) => problems.warning(&peer.name.span(), DiagnosticKind::ShortNumbers),
    }
    for (place, written) in raw.iter().take(MAX_PEERS).enumerate() {
        if let Some(keys) = &written.keys
            && keys.get_ref().starts_with("file:")
            && let Some(earlier) = key_files.insert(keys.get_ref(), keys.span())
        {
            problems.clash(&keys.span(), &earlier, DiagnosticKind::SameKeyFile);
        }
        peers.ids.insert(written.name.get_ref().clone(), place as u32);
        peers.list.extend(peer(written, ports, problems));
    }
    peers
}

fn peer(raw: &RawPeer, ports: &Ports, problems: &mut Diagnostics<'_>) -> Option<Peer> {
    let peer_name = name(problems, &raw.name);
    if peer_name.is_none() {
        problems.doubt(Some("peer".into()));
    }
    let tunnel = tunnel(raw, ports, problems);
    let keys = raw.keys.as_ref().and_then(|written| keys(raw, written, problems));
    let suite = raw.suite.as_ref().and_then(|written| suite(raw, written, problems));
    let carried = encapsulation::carried(raw, tunnel, problems);
    let esn = raw.esn.as_ref().is_some_and(|written| *written.get_ref());
    let (lowest, highest) = (ReplayWindow::SMALLEST, ReplayWindow::LARGEST);
    let window = bounded(problems, "replay_window", &raw.replay_window, 1024, (lowest, highest));
    let window = window.filter(|size| {
        let fits = size % ReplayWindow::SMALLEST == 0;
        if let (false, Some(written)) = (fits, &raw.replay_window) {
            problems.error(&written.span(), DiagnosticKind::WindowSize { size: *size });
        }
        fits
    });
    let uses = [PathMtuUse::Learn, PathMtuUse::Ignore].map(|pmtu| (pmtu.name(), pmtu));
    let pmtu = word(problems, "pmtu", &raw.pmtu, PathMtuUse::Learn, &uses);
    let lifetime = lifetime::validate(raw.lifetime.as_ref(), problems);
    if keys == Some(KeySource::Ike) {
        lifetime::warn_of_lone_hard_limits(raw.lifetime.as_ref(), problems);
    }
    let offload = offload(raw, keys.as_ref(), problems);
    let moves = moves::moves(raw, (tunnel, keys.as_ref()), ports, problems);
    if let Some(written) = &raw.fragment_outer {
        problems.warning(&written.span(), DiagnosticKind::FragmentOuterWithoutEffect);
    }
    let EncapsulationParts { encapsulation, place, nat_keepalive_s } = carried?;
    Some(Peer {
        name: peer_name?,
        encapsulation,
        keys: keys?,
        suite: suite?,
        numbers: if esn { SequenceNumbers::Extended } else { SequenceNumbers::Short },
        replay_window: window?,
        mss_clamp: raw.mss_clamp.as_ref().is_none_or(|written| *written.get_ref()),
        pmtu: pmtu?,
        place,
        moves: moves?,
        nat_keepalive_s,
        lifetime: lifetime?,
        offload: offload?,
        outer: raw.outer.as_ref().map(|written| written.get_ref().clone()),
    })
}

/// The carrier of the peer's SAs.
fn offload(
    raw: &RawPeer,
    keys: Option<&KeySource>,
    problems: &mut Diagnostics<'_>,
) -> Option<SaOffload> {
    let Some(written) = &raw.offload else { return Some(SaOffload::None) };
    if written.get_ref() == "full" {
        problems.error(&written.span(), DiagnosticKind::OffloadFull);
        return None;
    }
    let words = SaOffload::ALL.map(|offload| (offload.name(), offload));
    let offload = word(problems, "offload", &raw.offload, SaOffload::None, &words)?;
    let moves = moves::may_move(raw);
    let mistake = match (offload, keys) {
        (SaOffload::Packet | SaOffload::Crypto, Some(KeySource::File(_))) => {
            DiagnosticKind::OffloadOfFileKeys
        }
        (SaOffload::Packet | SaOffload::Crypto, _) if moves => DiagnosticKind::OffloadBehindNat,
        (SaOffload::Auto, Some(KeySource::File(_))) => {
            problems.warning(&written.span(), DiagnosticKind::AutoOfFileKeys);
            return Some(offload);
        }
        _ => return Some(offload),
    };
    problems.error(&written.span(), mistake);
    None
}

/// Notes peers whose SAs only a card may carry, where there is none.
pub(crate) fn want_cards(raw: &Raw, problems: &mut Diagnostics<'_>) {
    if !raw.cards.is_empty() {
        return;
    }
    let is_put = |peer: &&RawPeer| {
        let keys = peer.keys.as_ref().map(|keys| keys.get_ref().as_str());
        matches!(keys, Some("api" | "ike")) && !moves::may_move(peer)
    };
    let offload = raw.peers.iter().filter(is_put).filter_map(|peer| peer.offload.as_ref());
    let needs_card = [SaOffload::Packet, SaOffload::Crypto].map(SaOffload::name);
    for written in offload.filter(|written| needs_card.contains(&written.get_ref().as_str())) {
        problems.error(&written.span(), DiagnosticKind::OffloadWithoutCard);
    }
}

fn tunnel(raw: &RawPeer, ports: &Ports, problems: &mut Diagnostics<'_>) -> Option<Tunnel> {
    let local = raw.local.as_ref().and_then(|written| {
        let local = address(problems, written)?;
        if let Some(why) = unusable(local) {
            problems
                .error(&written.span(), DiagnosticKind::UnusableAddress { address: local, why });
            return None;
        }
        // A file that names none of our addresses leaves them to Linux: the daemon looks there.
        let named = ports.sound && !ports.own.is_empty();
        if named && !ports.own.contains_key(&local.into()) {
            let ours = ours(ports, local);
            problems.error(&written.span(), DiagnosticKind::LocalNotOurs { address: local, ours });
            return None;
        }
        Some(local)
    });
    let remote = raw.remote.as_ref().and_then(|written| {
        let remote = address(problems, written)?;
        let mistake = match unusable(remote) {
            _ if remote.is_multicast() => Some(DiagnosticKind::MulticastPeer { address: remote }),
            Some(why) => Some(DiagnosticKind::UnusableAddress { address: remote, why }),
            None if ports.own.contains_key(&remote.into()) => {
                Some(DiagnosticKind::RemoteIsOurs { address: remote })
            }
            None => None,
        };
        let usable = mistake.is_none();
        if let Some(mistake) = mistake {
            problems.error(&written.span(), mistake);
        }
        usable.then_some(remote)
    });
    let tunnel = Tunnel { local: local?, remote: remote? };
    if tunnel.local.is_ipv4() != tunnel.remote.is_ipv4() {
        let span = raw.remote.as_ref().map_or(raw.at.clone(), Spanned::span);
        problems.error(&span, DiagnosticKind::MixedTunnel);
        return None;
    }
    Some(tunnel)
}

/// Our addresses of the same family, a few of them.
fn ours(ports: &Ports, like: IpAddr) -> Vec<IpAddr> {
    let own = ports.own.keys().map(|address| IpAddr::from(*address));
    let mut ours: Vec<IpAddr> = own.filter(|ip| ip.is_ipv4() == like.is_ipv4()).collect();
    ours.sort();
    ours.truncate(4);
    ours
}

/// The source of the keys, and what must be said, or not, beside it.
fn keys(
    raw: &RawPeer,
    written: &Spanned<String>,
    problems: &mut Diagnostics<'_>,
) -> Option<KeySource> {
    let text = written.get_ref();
    let mistake = match text.strip_prefix("file:") {
        Some(file) if !crate::keys::is_file_name(file) => DiagnosticKind::BadKeyFileName,
        Some(file) if crate::source::holds_key(file) => DiagnosticKind::KeyAsFileName,
        Some(file) => match &raw.manual {
            Some(manual) if manual.get_ref() != "laboratory" => {
                let word = manual.get_ref().clone();
                let nearest = nearest(&word, ["laboratory"].into_iter());
                let allowed = vec!["laboratory"];
                let mistake = DiagnosticKind::UnknownWord { key: "manual", word, nearest, allowed };
                problems.error(&manual.span(), mistake);
                return None;
            }
            Some(_) => return Some(KeySource::File(file.to_owned())),
            None => DiagnosticKind::ManualNotSaid,
        },
        None => {
            let source = match text.as_str() {
                "api" => Some(KeySource::Api),
                "ike" => Some(KeySource::Ike),
                _ => None,
            };
            match (&raw.manual, source) {
                (Some(manual), Some(_)) => {
                    problems.error(&manual.span(), DiagnosticKind::ManualOfApi);
                    return None;
                }
                (None, Some(source)) => return Some(source),
                (_, None) => DiagnosticKind::BadKeys,
            }
        }
    };
    problems.error(&written.span(), mistake);
    None
}

/// The suite, and what must be said beside those that protect less than one thinks.
fn suite(
    raw: &RawPeer,
    written: &Spanned<String>,
    problems: &mut Diagnostics<'_>,
) -> Option<Suite> {
    let benchmark = raw.benchmark.as_ref();
    let said = word(problems, "benchmark", &raw.benchmark, (), &[(NO_INTEGRITY, ())]);
    let word = written.get_ref().clone();
    let Some(suite) = Suite::from_name(&word) else {
        // One that nobody should have is not offered either.
        let offered = Suite::ALL.iter().filter(|suite| suite.is_authenticated());
        let allowed: Vec<&'static str> = offered.map(|suite| suite.name()).collect();
        let nearest = nearest_suite(&word);
        let mistake = DiagnosticKind::UnknownWord { key: "suite", word, nearest, allowed };
        problems.error(&written.span(), mistake);
        return None;
    };
    let peer = raw.name.get_ref().clone();
    match (suite.is_authenticated(), benchmark) {
        (true, Some(benchmark)) if said.is_some() => {
            problems.error(&benchmark.span(), DiagnosticKind::BenchmarkOfSuite { suite });
            return None;
        }
        (false, None) => {
            problems.error(&written.span(), DiagnosticKind::NullNotSaid);
            return None;
        }
        (false, Some(_)) => problems.warning(&written.span(), DiagnosticKind::NoIntegrity { peer }),
        (true, _) if suite.encryption() == Encryption::Null => {
            problems.warning(&written.span(), DiagnosticKind::NoEncryption { peer });
        }
        (true, _) => {}
    }
    said.map(|()| suite)
}

fn has_keys(peer: &RawPeer, word: &str) -> bool {
    peer.keys.as_ref().is_some_and(|keys| keys.get_ref() == word)
}

/// The suite that was probably meant: other programs write other names.
fn nearest_suite(word: &str) -> Option<String> {
    let plain = word.to_lowercase().replace(['-', '_'], "");
    let names = Suite::ALL.iter().map(|suite| suite.name());
    let same = names.clone().find(|name| {
        let name = name.replace('-', "");
        let names = [name.replace("gcm", "gcm16"), name.replace("hmac", ""), name];
        names.contains(&plain)
    });
    same.map(str::to_owned).or_else(|| nearest(word, names.filter(|name| *name != "null")))
}
