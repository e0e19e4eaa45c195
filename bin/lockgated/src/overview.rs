//! The overview on one screen: rates, peers, recent drops and warnings.

use std::time::Duration;

use api::v1;
use dataplane::DropReason;
use dataplane::counters::Volume;

use crate::history::{SaNumbers, Span};
use crate::picture::Picture;

/// Warnings that are listed; the last says how many more there are.
const MAX_WARNINGS: usize = 20;

/// Fills in the figures of the last minute, the ports, peers and SAs.
pub(crate) fn fill(
    state: &Picture,
    status: &mut v1::Status,
    ports: &[v1::Port],
    peers: &[v1::Peer],
    sas: &[v1::SecurityAssociation],
) {
    status.ports = ports.iter().map(|port| port_activity(state, port)).collect();
    status.peers = peers.iter().map(|peer| peer_activity(state, peer)).collect();
    status.drops_last_minute = drops(state);
    status.warnings = warnings(state, ports, sas);
    status.rate_time_ms = milliseconds(state.history.lately());
    status.last_minute_ms = milliseconds(state.history.minute());
}

/// Time that a span covers; 0: the daemon has just started.
pub(crate) fn milliseconds(span: Option<Span<'_>>) -> u64 {
    span.map_or(0, |span| u64::try_from(span.time().as_millis()).unwrap_or(u64::MAX))
}

/// The drops of the last minute, most frequent first.
pub(crate) fn drops(state: &Picture) -> Vec<v1::Drop> {
    let minute = state.history.minute();
    let count = |reason| minute.map_or(0, |minute| minute.dropped(reason));
    let drops = DropReason::ALL.iter().map(|reason| v1::Drop {
        name: reason.name().into(),
        count: count(*reason),
        help: reason.help().into(),
    });
    let mut drops: Vec<v1::Drop> = drops.filter(|drop| drop.count > 0).collect();
    drops.sort_by_key(|drop| std::cmp::Reverse(drop.count));
    drops
}

/// A port with its rates.
pub(crate) fn port_activity(state: &Picture, port: &v1::Port) -> v1::PortActivity {
    let v1::Port { name, netdev, side, state: port_state, .. } = port;
    let mut activity = v1::PortActivity {
        name: name.clone(),
        netdev: netdev.clone(),
        side: side.clone(),
        state: port_state.clone(),
        ..v1::PortActivity::default()
    };
    if let Some(span) = state.history.lately() {
        let [from, to] = span.port(name);
        let transmitted = span.rate(from.transmitted, to.transmitted);
        activity.received_packets_per_second =
            span.per_second(from.received_packets, to.received_packets);
        activity.transmitted_packets_per_second = transmitted.packets;
        activity.transmitted_bytes_per_second = transmitted.bytes;
        activity.dropped_packets_per_second =
            span.per_second(from.dropped_packets, to.dropped_packets);
    }
    activity
}

fn peer_activity(state: &Picture, peer: &v1::Peer) -> v1::PeerActivity {
    let volume = |Volume { packets, bytes }| Some(v1::Volume { packets, bytes });
    let mut activity = v1::PeerActivity {
        name: peer.name.clone(),
        remote: peer.current_remote.clone(),
        state: peer.state.clone(),
        last_received_age_ms: peer.last_received_age_ms,
        sealed: peer.sealed,
        opened: peer.opened,
        ..v1::PeerActivity::default()
    };
    if let Some(span) = state.history.lately() {
        let [from, to] = span.peer(&peer.name);
        activity.sealed_per_second = volume(span.rate(from[0], to[0]));
        activity.opened_per_second = volume(span.rate(from[1], to[1]));
    }
    if let Some(minute) = state.history.minute() {
        let SaNumbers { edge, opened } = minute.numbers(&peer.name);
        activity.expected_last_minute = edge;
        activity.lost_last_minute = edge - opened;
    }
    activity
}

/// Lists everything that somebody should look at, one sentence each, the worst first.
fn warnings(state: &Picture, ports: &[v1::Port], sas: &[v1::SecurityAssociation]) -> Vec<String> {
    let mut warnings = Vec::new();
    if !state.guard_state.starts_with("intact") {
        warnings.push(format!("guard: {}", state.guard_state));
    }
    for port in ports {
        let v1::Port { name, state, state_reason, queues, .. } = port;
        if state != "up" {
            warnings.push(format!("port {name} is {state}: {state_reason}"));
        } else {
            for v1::Queue { queue, socket_refused, .. } in queues.iter().filter(|q| !q.socket) {
                warnings.push(format!("port {name}, queue {queue}: {socket_refused}"));
            }
        }
    }
    for sa in sas.iter().filter(|sa| sa.state != "ok") {
        let v1::SecurityAssociation { peer, spi, state, state_reason, .. } = sa;
        warnings.push(format!("SA {spi} of peer {peer}: {state}: {state_reason}"));
    }
    for peer in state.compiled.all_peers() {
        if let Some(since) = state.liveness.of(&peer.name).silent_since {
            let silence =
                humantime::format_duration(Duration::from_secs(since.elapsed().as_secs()));
            warnings.push(format!("peer {} does not answer, silent for {silence}", peer.name));
        }
    }
    let lost = state.history.minute().map_or(0, |minute| minute.ring_full());
    if lost > 0 {
        warnings.push(format!(
            "{lost} frames were lost before a worker in the last minute: it is too slow for the \
             traffic (`lockgate show port`, ring full)"
        ));
    }
    warnings.extend(state.live.problems.iter().map(ToString::to_string));
    if warnings.len() > MAX_WARNINGS {
        let more = warnings.len() - (MAX_WARNINGS - 1);
        warnings.truncate(MAX_WARNINGS - 1);
        warnings.push(format!("and {more} more: see `lockgate events`"));
    }
    warnings
}
