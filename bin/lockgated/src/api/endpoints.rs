//! Endpoints in the words of the API: batches of changes, each answered when it is applied and when
//! it is durable; pages of what there is.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::v1::{self, endpoint_change};
use endpoints::{Change, Counts, Endpoint, EndpointKey, Known};
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::sync::mpsc::{self, OwnedPermit, Receiver, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tonic::{Status, Streaming};
use wire::{LinkAddress, Vni};

use crate::endpoints::{
    AppliedBatch, ChangeSums, EndpointDesk, NoNetworks, Numbered, Place, Wanted, WatchError,
};

/// Changes of a batch at most.
const MAX_BATCH: usize = 65_536;
/// Changes that are applied and not yet durable, of one client, and the batches that they are in:
/// as many as the store commits together, so that applying does not wait for the disk before.
const CHANGES_IN_FLIGHT: usize = 1 << 20;
const BATCHES_IN_FLIGHT: usize = 4096;
/// Endpoints of a page.
const PAGE: usize = 1000;
/// Messages that wait for a client at most.
const MESSAGES_WAITING: usize = 16;
/// Messages that wait for a client that watches; later changes stay in the log, which all clients
/// share.
const WATCH_MESSAGES_WAITING: usize = 4;
/// Time that a client may take to read a message.
const PATIENCE: Duration = Duration::from_secs(60);

type Answer<T> = Result<T, Status>;
/// A batch that waits to be durable.
struct Waiting {
    number: u64,
    durable: oneshot::Receiver<Result<u64, Arc<str>>>,
    /// The room that its changes take of those in flight.
    _room: OwnedSemaphorePermit,
}

impl From<NoNetworks> for Status {
    fn from(error: NoNetworks) -> Status {
        Status::failed_precondition(error.to_string())
    }
}

impl From<WatchError> for Status {
    fn from(error: WatchError) -> Status {
        let text = error.to_string();
        match error {
            WatchError::TooSlow { .. } => Status::aborted(text),
            WatchError::NoNetworks(_) | WatchError::Compacted { .. } | WatchError::Ahead { .. } => {
                Status::failed_precondition(text)
            }
        }
    }
}

/// Begins to make the changes of a stream, and to answer.
pub(super) fn change(
    desk: Arc<EndpointDesk>,
    batches: Streaming<v1::EndpointChanges>,
    done: impl FnOnce(ChangeSums) + Send + 'static,
) -> Receiver<Answer<v1::EndpointsChanged>> {
    let (to, answers) = mpsc::channel(MESSAGES_WAITING);
    let (waits, waiting) = mpsc::channel(BATCHES_IN_FLIGHT);
    tokio::spawn(tell_durable(waiting, to.clone()));
    tokio::spawn(async move { done(apply_all(desk, batches, (to, waits)).await) });
    answers
}

async fn apply_all(
    desk: Arc<EndpointDesk>,
    mut batches: Streaming<v1::EndpointChanges>,
    (to, waits): (Sender<Answer<v1::EndpointsChanged>>, Sender<Waiting>),
) -> ChangeSums {
    let (mut number, mut sums) = (0, ChangeSums::default());
    let room = Arc::new(Semaphore::new(CHANGES_IN_FLIGHT));
    loop {
        let batch = match batches.message().await {
            Ok(Some(batch)) => batch,
            Ok(None) => break,
            Err(error) => {
                let _ = to.send(Err(error)).await;
                break;
            }
        };
        // A batch that is too large is refused below.
        let changes = batch.changes.len().min(MAX_BATCH) as u32;
        let Ok(_room) = room.clone().acquire_many_owned(changes).await else { break };
        let desk = desk.clone();
        // The table's lock may be held by a longer batch.
        let made = tokio::task::spawn_blocking(move || apply(&desk, &batch)).await;
        let made = made.unwrap_or_else(|_| Err(Status::internal("internal error: report it")));
        let (told, durable) = match made {
            Ok((told, durable)) => (told, durable),
            Err(refused) => {
                let _ = to.send(Err(refused)).await;
                break;
            }
        };
        sums.applied += told.applied;
        sums.repeated += told.repeated;
        sums.stale += told.stale;
        sums.refused += told.refused.len() as u64;
        let told = v1::EndpointsChanged { batch: number, ..told };
        // Whoever reads no answers is not waited for.
        if to.send_timeout(Ok(told), PATIENCE).await.is_err() {
            break;
        }
        let _ = waits.send(Waiting { number, durable, _room }).await;
        number += 1;
    }
    sums
}

type Made = (v1::EndpointsChanged, oneshot::Receiver<Result<u64, Arc<str>>>);

/// Applies a batch. Changes that cannot be read are refused like those that do not fit.
fn apply(desk: &EndpointDesk, batch: &v1::EndpointChanges) -> Result<Made, Status> {
    if batch.changes.len() > MAX_BATCH {
        let count = batch.changes.len();
        let text = format!("a batch of {count} changes: send at most {MAX_BATCH} in one message");
        return Err(Status::invalid_argument(text));
    }
    let mut refused: Vec<v1::RefusedEndpoint> = Vec::new();
    let (mut wanted, mut places) = (Vec::new(), Vec::new());
    for (place, change) in (0..).zip(&batch.changes) {
        match read(change) {
            Ok(change) => {
                wanted.push(change);
                places.push(place);
            }
            Err(message) => refused.push(v1::RefusedEndpoint { place, message }),
        }
    }
    let AppliedBatch { applied, repeated, stale, refused: not_fit, durable } =
        desk.apply(&wanted)?;
    refused.extend(not_fit.into_iter().map(|(at, reason)| v1::RefusedEndpoint {
        place: places[at],
        message: reason.to_string(),
    }));
    refused.sort_by_key(|refused| refused.place);
    let stage = "applied".into();
    let told =
        v1::EndpointsChanged { stage, applied, repeated, stale, refused, ..Default::default() };
    Ok((told, durable))
}

/// Tells of each batch when it is durable, in their order.
async fn tell_durable(mut waiting: Receiver<Waiting>, to: Sender<Answer<v1::EndpointsChanged>>) {
    while let Some(Waiting { number: batch, durable, _room }) = waiting.recv().await {
        let stored = durable.await.unwrap_or_else(|_| Err("the store has ended".into()));
        let (commit, not_durable) = match stored {
            Ok(commit) => (commit, None),
            Err(reason) => (0, Some(reason.to_string())),
        };
        let stage = "durable".into();
        let told = v1::EndpointsChanged { batch, stage, commit, not_durable, ..Default::default() };
        if to.send_timeout(Ok(told), PATIENCE).await.is_err() {
            return;
        }
    }
}

/// Reads a change.
///
/// # Errors
/// The reason for refusing it.
pub(super) fn read(change: &v1::EndpointChange) -> Result<Numbered, String> {
    let revision = |number: u64| match number {
        0 => Ok(None),
        1..=store::MAX_REVISION => Ok(Some(number)),
        _ => Err(format!("revision {number}: the highest is {}", store::MAX_REVISION)),
    };
    match &change.change {
        Some(endpoint_change::Change::Put(put)) => {
            let key = key(put.vni, &put.address)?;
            let host = address("host", &put.host)?.into();
            let host_mac = put.host_mac.as_deref().map(|text| mac("host_mac", text)).transpose()?;
            let mac = mac("mac", &put.mac)?;
            let endpoint = Endpoint { key, host, host_mac, mac };
            Ok((Wanted::Put(endpoint), revision(put.revision)?))
        }
        Some(endpoint_change::Change::Delete(name)) => {
            let key = key(name.vni, &name.address)?;
            Ok((Wanted::Delete(key), revision(name.revision)?))
        }
        None => Err("neither put nor delete".into()),
    }
}

fn key(vni: u32, text: &str) -> Result<EndpointKey, String> {
    let network = Vni::new(vni).ok_or_else(|| format!("VNI {vni}: the highest is {}", Vni::MAX))?;
    Ok(EndpointKey { vni: network, address: address("address", text)?.into() })
}

fn address(what: &str, text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("{what} \"{}\" is no IP address", text.escape_debug()))
}

fn mac(what: &str, text: &str) -> Result<LinkAddress, String> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| part.len() == 2);
        let value = part.and_then(|part| u8::from_str_radix(part, 16).ok());
        *byte = value.ok_or_else(|| bad_mac(what, text))?;
    }
    match parts.next() {
        None => Ok(LinkAddress::new(bytes)),
        Some(_) => Err(bad_mac(what, text)),
    }
}

fn bad_mac(what: &str, text: &str) -> String {
    format!("{what} \"{}\" is no MAC address: write 02:00:00:00:00:01", text.escape_debug())
}

/// Begins to send the endpoints of a network, or all.
///
/// # Errors
/// The network's number is none.
pub(super) fn show(
    desk: Arc<EndpointDesk>,
    vni: Option<u32>,
) -> Result<Receiver<Answer<v1::EndpointPage>>, Status> {
    let network = |vni| {
        let text = format!("VNI {vni}: the highest is {}", Vni::MAX);
        Vni::new(vni).ok_or_else(|| Status::invalid_argument(text))
    };
    let vni = vni.map(network).transpose()?;
    let (to, pages) = mpsc::channel(MESSAGES_WAITING);
    tokio::spawn(send_all(desk, vni, to));
    Ok(pages)
}

async fn send_all(desk: Arc<EndpointDesk>, vni: Option<Vni>, to: Sender<Answer<v1::EndpointPage>>) {
    let mut after = None;
    loop {
        let desk = desk.clone();
        let read = tokio::task::spawn_blocking(move || desk.page(vni, after, PAGE)).await;
        let page = match read {
            Ok(Ok(page)) => page,
            Ok(Err(no_networks)) => return drop(to.send(Err(no_networks.into())).await),
            Err(_) => return drop(to.send(Err(Status::internal("internal error"))).await),
        };
        after = page.endpoints.last().map(|last| last.endpoint.key);
        let is_last = page.endpoints.len() < PAGE;
        let sums = is_last.then(|| sums(page.counts));
        let endpoints = page.endpoints.iter().map(shown).collect();
        let page = v1::EndpointPage { endpoints, sums };
        if to.send_timeout(Ok(page), PATIENCE).await.is_err() || is_last {
            return;
        }
    }
}

/// Begins to send the changes after a revision, and then what comes. Blocks for the table's lock.
///
/// # Errors
/// As [`EndpointDesk::watch`].
pub(super) fn watch(
    desk: Arc<EndpointDesk>,
    after: Option<u64>,
) -> Result<Receiver<Answer<v1::EndpointsWatched>>, Status> {
    let (place, more) = desk.watch(after)?;
    // One more slot, reserved for the error that ends the stream: it fits even if the client does
    // not read.
    let (to, messages) = mpsc::channel(WATCH_MESSAGES_WAITING + 1);
    let internal = |_| Status::internal("internal error: report it");
    let farewell = to.clone().try_reserve_owned().map_err(internal)?;
    tokio::spawn(send_changes(desk, (place, more), (to, farewell)));
    Ok(messages)
}

async fn send_changes(
    desk: Arc<EndpointDesk>,
    (mut place, mut more): (Place, watch::Receiver<u64>),
    (to, farewell): (
        Sender<Answer<v1::EndpointsWatched>>,
        OwnedPermit<Answer<v1::EndpointsWatched>>,
    ),
) {
    let mut is_first = true;
    loop {
        // Before the log is read: what comes after is seen the next time.
        more.borrow_and_update();
        let (desk, mut from) = (desk.clone(), place);
        let read = tokio::task::spawn_blocking(move || {
            desk.read_log(&mut from, PAGE).map(|changes| (changes, from))
        });
        let (changes, behind) = match read.await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => return drop(farewell.send(Err(error.into()))),
            Err(_) => return drop(farewell.send(Err(Status::internal("internal error")))),
        };
        let is_all = changes.len() < PAGE;
        if !changes.is_empty() || is_first {
            let changes = changes.iter().map(sent).collect();
            let message = v1::EndpointsWatched { changes, resume_after: behind.resume };
            match to.send_timeout(Ok(message), PATIENCE).await {
                Ok(()) => {}
                Err(SendTimeoutError::Closed(_)) => return,
                Err(SendTimeoutError::Timeout(_)) => {
                    let slow = WatchError::TooSlow { after: place.resume };
                    return drop(farewell.send(Err(slow.into())));
                }
            }
        }
        (place, is_first) = (behind, false);
        tokio::select! {
            () = to.closed() => return,
            changed = more.changed(), if is_all => if changed.is_err() { return },
            () = std::future::ready(()), if !is_all => {}
        }
    }
}

/// A change as it was applied.
fn sent(change: &Change) -> v1::EndpointChange {
    let change = match *change {
        Change::Put { revision, endpoint } => {
            endpoint_change::Change::Put(shown(&Known { endpoint, revision }))
        }
        Change::Delete { revision, key } => endpoint_change::Change::Delete(v1::EndpointName {
            vni: key.vni.get(),
            address: key.address.to_string(),
            revision,
        }),
    };
    v1::EndpointChange { change: Some(change) }
}

/// The endpoints as a whole.
pub(crate) fn sums(counts: Counts) -> v1::EndpointSums {
    v1::EndpointSums {
        endpoints: counts.live as u64,
        max: counts.max_endpoints as u64,
        hosts: counts.hosts as u64,
        tombstones: counts.tombstones as u64,
    }
}

fn shown(known: &Known) -> v1::Endpoint {
    let Known { endpoint, revision } = known;
    v1::Endpoint {
        vni: endpoint.key.vni.get(),
        address: endpoint.key.address.to_string(),
        host: endpoint.host.to_string(),
        host_mac: endpoint.host_mac.map(|mac| config::mac_text(mac.bytes())),
        mac: config::mac_text(endpoint.mac.bytes()),
        revision: *revision,
    }
}
