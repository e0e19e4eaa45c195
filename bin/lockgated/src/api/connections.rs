//! Connections in the words of the API, page by page: the table is read beside the workers, which
//! notice nothing of it.

use std::sync::Arc;
use std::time::Duration;

use api::v1;
use config::{ConnectionFilter, connection_state};
use dataplane::Snapshot;
use dataplane::connections::{self, Connections, End, Place, Refusal, ZoneOwner};
use policy::selector::protocol_text;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tonic::Status;

use crate::backend::Backend;
use crate::clock;

/// Lines of the table that are read at once: about 1000 connections of a table that is full.
const LINES: usize = 2048;
/// Messages that wait for a client at most.
const MESSAGES_WAITING: usize = 2;
/// Time that a client may take to read a message.
const PATIENCE: Duration = Duration::from_secs(60);

type Answer = Result<v1::ConnectionPage, Status>;

/// Reads a filter.
///
/// # Errors
/// `InvalidArgument`: the mistake.
pub(super) fn filter(text: &str) -> Result<ConnectionFilter, Status> {
    ConnectionFilter::parse(text).map_err(|error| Status::invalid_argument(error.to_string()))
}

/// Begins to send the connections that pass a filter, and behind them the table's totals.
pub(super) fn stream(backend: Arc<impl Backend>, filter: ConnectionFilter) -> Receiver<Answer> {
    let (to, stream) = mpsc::channel(MESSAGES_WAITING);
    tokio::spawn(send_all(backend, filter, to));
    stream
}

async fn send_all(backend: Arc<impl Backend>, filter: ConnectionFilter, to: Sender<Answer>) {
    let (filter, mut from) = (Arc::new(filter), Some(Place(0)));
    while let Some(place) = from {
        // A filter may pass nothing: no message tells that the client has gone.
        if to.is_closed() {
            return;
        }
        // Of the names of now. None is kept while the client reads.
        let (snapshot, filter) = (backend.snapshot().await, filter.clone());
        let read = tokio::task::spawn_blocking(move || page(&snapshot, &filter, place));
        let Ok((page, next)) = read.await else {
            let _ = to.send(Err(Status::internal("internal error: report it"))).await;
            return;
        };
        from = next;
        let has_something = !page.connections.is_empty() || page.table.is_some();
        if has_something && to.send_timeout(Ok(page), PATIENCE).await.is_err() {
            return;
        }
    }
}

/// Reads some lines. The last page has the totals.
fn page(
    snapshot: &Snapshot,
    filter: &ConnectionFilter,
    from: Place,
) -> (v1::ConnectionPage, Option<Place>) {
    let Some(table) = snapshot.connections() else {
        let table = Some(v1::ConnectionTable::default());
        return (v1::ConnectionPage { connections: Vec::new(), table }, None);
    };
    let mut found = Vec::new();
    let next = table.page(from, LINES, clock::now_s(), &mut found);
    let passes = |it: &&connections::Connection| filter.passes(it, port_name(snapshot, it));
    let connections = found.iter().filter(passes).map(|it| connection(snapshot, it)).collect();
    let table = next.is_none().then(|| totals(table));
    (v1::ConnectionPage { connections, table }, next)
}

/// The name of the gateway's port whose rule let a connection begin.
pub(crate) fn port_name<'s>(
    snapshot: &'s Snapshot,
    connection: &connections::Connection,
) -> Option<&'s str> {
    let ZoneOwner::Port(slot) = connection.zone.owner() else { return None };
    snapshot.find_port(slot).map(|port| port.name.as_str())
}

/// The name of the gateway's port, or of the virtual network, whose rule let a connection begin.
fn owner_name(snapshot: &Snapshot, connection: &connections::Connection) -> Option<String> {
    match connection.zone.owner() {
        ZoneOwner::Port(_) => port_name(snapshot, connection).map(str::to_owned),
        ZoneOwner::Network(vni) => Some(format!("vni {vni}")),
    }
}

fn connection(snapshot: &Snapshot, of: &connections::Connection) -> v1::Connection {
    let end =
        |end: End| v1::ConnectionEnd { address: end.address.to_string(), port: end.port.into() };
    v1::Connection {
        protocol: protocol_text(Some(of.protocol)),
        originator: Some(end(of.originator)),
        responder: Some(end(of.responder)),
        state: connection_state(of.status).into(),
        half_open: of.status.is_half_open(),
        idle_s: of.idle_s.into(),
        port: owner_name(snapshot, of),
        rule: rule_name(snapshot, of),
    }
}

/// The rule that let a connection begin. `None`: the rules are others now, and the next packet is
/// judged anew.
fn rule_name(snapshot: &Snapshot, of: &connections::Connection) -> Option<String> {
    let (spd, judgement) = (snapshot.spd(), of.judgement);
    let now = spd.find_generation(judgement.domain);
    let is_of_now = judgement.generation.0 != 0 && now == Some(judgement.generation);
    is_of_now.then(|| spd.policy(judgement.rule).name.clone())
}

/// The table as a whole.
pub(crate) fn totals(table: &Connections) -> v1::ConnectionTable {
    let (limits, counts) = (table.limits(), table.counts());
    let (live, half_open) = table.zones().fold((0, 0), |(live, half_open), zone| {
        (live + u64::from(zone.live), half_open + u64::from(zone.half_open))
    });
    let refused = Refusal::ALL.into_iter().zip(counts.refused);
    v1::ConnectionTable {
        max: limits.max.into(),
        half_open_max: limits.half_open.into(),
        live,
        half_open,
        taken: counts.lines.into(),
        half_open_taken: counts.half_open_lines.into(),
        bytes: table.bytes() as u64,
        made: counts.made,
        expired: counts.expired,
        replaced: counts.replaced,
        refused: refused
            .map(|(bound, count)| v1::RefusedConnections { bound: bound.name().into(), count })
            .collect(),
    }
}
