//! Records events, for people and for programs that watch: a closed list of kinds, the last
//! [`api::MAX_EVENTS_KEPT`] events, a stream of those to come, and a line on stderr for each.
//!
//! For the control thread. A worker counts; it records nothing. [`Filter`] picks the events that a
//! reader wants.
//!
//! Not crate `tracing`: the ring, the stream and the limit by kind and subject are most of this and
//! would stay.
//!
//! Events of one kind about one subject are reported once a second at most. Those in between are
//! not lost: the last of them follows when the second is over ([`Events::report_held`]) and says
//! how many there were. Changes of the configuration and of what is open are always reported.

use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use api::v1::{Detail, Event};
use tokio::sync::broadcast;

use crate::who::Uid;

mod filter;
mod log;

pub(crate) use filter::Filter;
use log::Log;

/// A kind about a subject is told at most once in this time.
const QUIET: Duration = Duration::from_secs(1);
/// Subjects that the limit tells apart; beyond, all of a kind are one.
const MAX_SUBJECTS: usize = 1024;
/// Time that lines on stderr have at the end.
const LAST_LINES: Duration = Duration::from_secs(1);
/// Detail that says how many events this one stands for beside itself.
const REPEATED: &str = "repeated";

/// The severity of an event, with the number that journald knows (RFC 5424 §6.2.1): the smaller,
/// the more severe.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Severity {
    /// A part of the gateway does not work.
    Error = 3,
    /// A condition that somebody should look at.
    Warning = 4,
    /// A change worth knowing; nothing to do.
    Notice = 5,
    /// A step of normal operation.
    Info = 6,
}

impl Severity {
    /// Every severity, the most severe first.
    pub(crate) const ALL: [Severity; 4] =
        [Severity::Error, Severity::Warning, Severity::Notice, Severity::Info];

    /// Returns the severity's word in the API and on stderr.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Notice => "notice",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// Rate limit of an event kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RateLimit {
    /// Each event is reported.
    Unlimited,
    /// At most one event a second is reported for each subject.
    PerSecond,
}

macro_rules! kinds {
    ($($variant:ident $name:literal $part:literal $severity:ident $limit:ident $help:literal)*) => {
        /// Kind of an event: the closed list of kinds with what each means and what to do.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub(crate) enum Kind {
            $(#[doc = $help] $variant,)*
        }

        impl Kind {
            /// Every kind.
            pub(crate) const ALL: &[Kind] = &[$(Kind::$variant,)*];

            /// Returns the word of the kind in the API and in logs.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Kind::$variant => $name,)* }
            }

            /// Returns its meaning and what to do, for the documents.
            #[cfg(test)]
            pub(crate) const fn help(self) -> &'static str {
                match self { $(Kind::$variant => $help,)* }
            }

            /// Returns the part of the daemon: the subject of an event without a named subject.
            const fn part(self) -> &'static str {
                match self { $(Kind::$variant => $part,)* }
            }

            /// Returns its severity.
            pub(crate) const fn severity(self) -> Severity {
                match self { $(Kind::$variant => Severity::$severity,)* }
            }

            /// Returns its rate limit.
            pub(crate) const fn rate_limit(self) -> RateLimit {
                match self { $(Kind::$variant => RateLimit::$limit,)* }
            }
        }
    };
}

kinds! {
    Started "started" "lockgated" Notice Unlimited
        "the daemon runs: ports are attached, workers process packets"
    Stopping "stopping" "lockgated" Notice Unlimited
        "the daemon ends; ports stay closed unless on_exit = \"open\""
    Stopped "stopped" "lockgated" Notice Unlimited
        "the daemon has ended; the message says whether the ports stay closed"
    Opened "opened" "lockgated" Warning Unlimited
        "the XDP programs and the guard were removed, because of on_exit = \"open\": Linux \
         forwards in cleartext"
    Applied "applied" "lockgated" Notice Unlimited
        "a configuration was applied; details name its revision"
    ApplyRefused "apply_refused" "lockgated" Warning Unlimited
        "a configuration was refused and the running one stays; the message says why"
    ConfigurationWarning "configuration_warning" "configuration" Warning Unlimited
        "the running configuration is allowed but probably not intended; `lockgate check` says the \
         same"
    RolledBack "rolled_back" "revisions" Notice Unlimited
        "an earlier revision was applied by a rollback"
    RollbackRefused "rollback_refused" "revisions" Warning Unlimited
        "a rollback was refused and the running configuration stays; the message says why"
    ConfirmAwaited "confirm_awaited" "lockgated" Warning Unlimited
        "a configuration runs and waits for `lockgate confirm`; details name its revision and the \
         one that is restored without it"
    Confirmed "confirmed" "lockgated" Notice Unlimited
        "the configuration that waited was confirmed and stays"
    ConfirmRefused "confirm_refused" "lockgated" Warning Unlimited
        "nothing was confirmed; the message says why"
    ConfirmExpired "confirm_expired" "lockgated" Warning Unlimited
        "a configuration was not confirmed in time: the revision before runs again, with its SAs"
    UnconfirmedNotStarted "unconfirmed_not_started" "lockgated" Warning Unlimited
        "the configuration file holds a revision that was never confirmed: the revision before it \
         was started instead; change the file, or apply it again"
    UnconfirmedRecordDamaged "unconfirmed_record_damaged" "lockgated" Warning Unlimited
        "the record of unconfirmed revisions is damaged; the message says which part is lost, and \
         which configuration starts"
    Saved "saved" "lockgated" Notice Unlimited
        "the running configuration was written to the daemon's configuration file"
    SaveRefused "save_refused" "lockgated" Warning Unlimited
        "the running configuration could not be written to the daemon's configuration file, which \
         is unchanged; the message says why"
    PoliciesChanged "policies_changed" "policies" Notice Unlimited
        "single policies were added, changed or removed; subject and message name each with its \
         action (of many, the first 8), details the revision and the PROTECT policies that lose \
         packets"
    PoliciesRefused "policies_refused" "policies" Warning Unlimited
        "a change of single policies was refused and the running policies stay; the message says \
         why"
    CacheRefused "cache_refused" "cache" Error PerSecond
        "a new flow cache could not be allocated: until it is, the classifier decides every packet"
    CacheGrown "cache_grown" "cache" Info Unlimited
        "flows pushed each other out of a worker's flow cache: a larger one, empty at first, took \
         its place"
    CacheNotGrown "cache_not_grown" "cache" Warning PerSecond
        "a larger flow cache could not be allocated: the one in use stays, and the classifier \
         decides more packets"
    ConnectionsRefused "connections_refused" "connections" Warning PerSecond
        "new connections were refused because the table of connections or a bound was full; \
         established ones are not affected; subject and message name the bound, details the number"
    ConnectionsCleared "connections_cleared" "connections" Notice Unlimited
        "somebody removed connections; details name the filter and the number"
    ConnectionsRestored "connections_restored" "connections" Notice Unlimited
        "connections of before a restart of the daemon go on; message and details say how many, \
         and how many not"
    ConnectionsNotRestored "connections_not_restored" "connections" Warning Unlimited
        "the file with the connections of before a restart is not believed, and none goes on; the \
         message says why"
    ConnectionsNotKept "connections_not_kept" "connections" Warning PerSecond
        "connections could not be written to a file in the run directory: a restart would not keep \
         those of now; the message says why"
    EndpointsChanged "endpoints_changed" "endpoints" Notice PerSecond
        "somebody changed endpoints of virtual networks; details name the numbers of changes"
    EndpointsRestored "endpoints_restored" "endpoints" Notice Unlimited
        "endpoints were read from the store at the start; message and details say how many"
    StoreFailed "store_failed" "endpoints" Error PerSecond
        "the store of endpoints could not be written or read: changes run, but not all of them are \
         durable; the message says why"
    KernelTierClosed "kernel_tier_closed" "kernel tier" Error PerSecond
        "the kernel refused to change its tables of virtual networks: it answers none of their \
         packets until the next change, and the workers have all of them; the message says why"
    KernelEndpointSkipped "kernel_endpoint_skipped" "kernel tier" Warning PerSecond
        "the kernel refused an endpoint, or a verdict on a flow, five times; the workers have its \
         packets, and it is tried again after a minute; the message says why"
    CardServes "card_serves" "lockgated" Notice Unlimited
        "a network card serves: rules that are safe there and worth it go into it"
    CardAbsent "card_absent" "lockgated" Warning PerSecond
        "a configured network card is not there; the gateway judges all packets by itself; the \
         message says why"
    CardLost "card_lost" "lockgated" Warning Unlimited
        "a network card that served is gone or does not answer; the gateway judges all packets by \
         itself until it serves again"
    CardChanged "card_changed" "lockgated" Warning PerSecond
        "a network card lost rules: its link went down, it began anew, another driver runs it, or \
         it forgot some without a word; they are placed again"
    CardUnconfirmed "card_unconfirmed" "lockgated" Warning PerSecond
        "a network card that drops by itself has not confirmed in time that it drops nothing any \
         more which the rules permit; a change was answered all the same, and says so"
    CardRefused "card_refused" "lockgated" Warning PerSecond
        "a network card refused a rule; details give the rule, the driver's code and text. The \
         gateway judges its packets by itself, and the card is asked again later"
    SaLost "sa_lost" "lockgated" Warning Unlimited
        "a network card has an SA no more: its link is down, it began anew, forgot it or is gone. \
         The SA does not come back; details give peer, direction and reason. Give both gateways \
         new keys; with a software SA beside it in the set, that one goes on"
    AuditFailed "audit_failed" "lockgated" Error PerSecond
        "a packet that the flow cache, the kernel or a card decided was judged again, and the \
         rules say otherwise: report it. The card, or the kernel tier, is then not used for a \
         minute; details give the packet's flow, both verdicts and the generation of the policies"
    FoldRefused "fold_refused" "policies" Warning PerSecond
        "the changes of single policies could not be compacted into one search structure and are \
         searched as a list before it; the message says why"
    ChangeDenied "change_denied" "lockgated" Warning PerSecond
        "a user who is neither root nor in group lockgate-admin tried to change something"
    CaptureStarted "capture_started" "lockgated" Notice Unlimited
        "somebody captures packets of a port; details name the filter, the bounds, and whether \
         packets inside tunnels are shown"
    CaptureEnded "capture_ended" "lockgated" Notice Unlimited
        "a capture ended; details say why, and how many packets were sent and left out"
    PortAttached "port_attached" "lockgated" Info PerSecond
        "a port's netdev was attached: its XDP program runs, its sockets are bound"
    PortUp "port_up" "lockgated" Notice PerSecond
        "a port's link is up"
    PortDown "port_down" "lockgated" Warning PerSecond
        "a port's link is down; packets that would leave by it are dropped"
    PortLost "port_lost" "lockgated" Error PerSecond
        "a port's netdev disappeared; Lockgate re-attaches when a netdev of that name returns"
    PortRefused "port_refused" "lockgated" Error PerSecond
        "a port's netdev could not be attached and stays closed, or could not be updated; Lockgate \
         tries again each second; the message says why"
    QueuesChanged "queues_changed" "lockgated" Notice PerSecond
        "the number of a netdev's queues changed; its sockets were bound again"
    ProgramRemoved "program_removed" "lockgated" Error Unlimited
        "another program removed the XDP program of a port; the guard alone kept the port closed \
         until now"
    ProgramRestored "program_restored" "lockgated" Warning Unlimited
        "the XDP program is attached again"
    GuardRemoved "guard_removed" "guard" Error Unlimited
        "another program removed or changed the nftables table `lockgate`: find out which"
    GuardRestored "guard_restored" "guard" Warning Unlimited
        "the nftables table `lockgate` is restored"
    GuardRefused "guard_refused" "guard" Error PerSecond
        "nftables refused the table `lockgate`: Linux may forward for ports that are not attached"
    GuardCoarse "guard_coarse" "guard" Warning Unlimited
        "there are too many policies to guard each exactly: traffic of the host itself to a remote \
         address of any PROTECT or DISCARD policy is dropped, in most cases even \
         if a BYPASS policy matches"
    HostStarted "host_started" "host" Info Unlimited
        "the host port lockgate0 is up"
    HostRefused "host_refused" "host" Error PerSecond
        "the host port lockgate0 could not be created: the host itself reaches no tunnel"
    KeyRefused "key_refused" "lockgated" Error Unlimited
        "an SA does not send: its record of sequence numbers is missing, older than the key's use, \
         or another machine's; give it new keys (lockgate keygen) and apply"
    RecordSetAside "record_set_aside" "sequence numbers" Error Unlimited
        "a record of sequence numbers was damaged and set aside under another name; keys that it \
         recorded as used do not send until they are replaced"
    ReservationFailed "reservation_failed" "sequence numbers" Error PerSecond
        "sequence numbers could not be reserved on disk; the SA sends until its reservation is used"
    RevisionRefused "revision_refused" "revisions" Warning Unlimited
        "a revision runs but could not be written to disk, and no rollback to it is possible; or \
         the earlier ones could not be read at the start, and the message says where they are"
    SequenceLow "sequence_low" "lockgated" Warning PerSecond
        "an SA has used 75, 90 or 99 % of its sequence numbers and stops for good when all are \
         used: give both ends new keys, or esn = true"
    SequenceExhausted "sequence_exhausted" "lockgated" Error PerSecond
        "an SA has used all of its sequence numbers and does not send: give it new keys"
    SaSoftExpire "sa_soft_expire" "lockgated" Warning Unlimited
        "an SA has reached a soft limit of its `lifetime`; packets pass: give both gateways new \
         keys before it reaches the hard limit. Once in the life of an SA"
    SaHardExpire "sa_hard_expire" "lockgated" Error Unlimited
        "an SA has reached a hard limit of its `lifetime` and has ended; its packets are dropped: \
         give both gateways new keys. Once in the life of an SA"
    Acquire "acquire" "lockgated" Info PerSecond
        "a policy protects packets, its peer has no outbound SA, and the key manager was asked for \
         one; details name the peer and the number of the request. Packets wait at most 30 s"
    AcquireLimited "acquire_limited" "lockgated" Warning PerSecond
        "more policies need SAs than may be requested at a time or in a second: the others are \
         requested later; a sender may be scanning addresses"
    AcquireExpired "acquire_expired" "lockgated" Warning PerSecond
        "the key manager put no SA within 30 s: packets that waited for it were dropped (`no_sa`), \
         and the next one asks again; look at the log of the key manager"
    CharonConnected "charon_connected" "lockgated" Notice Unlimited
        "charon's plugin has connected: peers with `keys = \"ike\"` get SAs from it"
    CharonGone "charon_gone" "lockgated" Warning Unlimited
        "charon's plugin has gone; its SAs stay to their limits, and nobody makes new ones: look \
         at the IKE daemon"
    CharonRefused "charon_refused" "lockgated" Warning PerSecond
        "charon asked for something that was refused, or cannot be heard; the message says why"
    CharonSlow "charon_slow" "lockgated" Warning PerSecond
        "an answer to charon took over half a second; the message names the request and the time"
    SaPut "sa_put" "lockgated" Info PerSecond
        "a program put SAs of a peer with keys = \"api\", or charon of one with keys = \"ike\"; \
         the message names them, details say how many"
    SaDeleted "sa_deleted" "lockgated" Info PerSecond
        "SAs that a program had put are gone: it deleted them, or their peer is not configured so \
         any more"
    SaRefused "sa_refused" "security associations" Warning PerSecond
        "SAs that a program wanted put or deleted were refused, and nothing changed; the message \
         says why"
    SaReplaced "sa_replaced" "lockgated" Info PerSecond
        "an inbound SA that another had replaced is gone, 5 s after the first packet of its \
         replacement"
    SaReplacementSilent "sa_replacement_silent" "lockgated" Warning PerSecond
        "an inbound SA that another had replaced is gone after 300 s, and no authentic packet of \
         its replacement has come: the peer does not use the new keys"
    NetlinkResync "netlink_resync" "netlink" Info PerSecond
        "the kernel's addresses, routes and neighbours were read again in full"
    NetlinkLost "netlink_lost" "netlink" Error PerSecond
        "netlink failed: Lockgate keeps the routes and neighbours that it has until it works again"
    RouteRefused "route_refused" "routes" Warning PerSecond
        "the kernel has a route or rule that Lockgate does not support; the message names it"
    RouteAccepted "route_accepted" "routes" Notice PerSecond
        "a route or rule that Lockgate does not support is gone; the message names it"
    PeerMoved "peer_moved" "lockgated" Notice PerSecond
        "a peer behind a NAT sends from a new address or port, or the newest SA of IKE has other \
         ends than before, and the peer's packets are sent there now; details name both"
    PeerMoveRefused "peer_move_refused" "lockgated" Warning PerSecond
        "an authentic packet of a peer behind a NAT came from an address that the peer cannot \
         have, and its traffic is still sent to the old one: someone on the path may be rewriting \
         the address"
    PathMtuLowered "path_mtu_lowered" "lockgated" Notice PerSecond
        "a router told by ICMP that the path to a peer carries smaller packets than it was sent; \
         larger packets for it are now cut or answered by ICMP; details give the size of outer and \
         inner packets. After ten minutes the MTU of the port is tried again"
    PeerSilent "peer_silent" "lockgated" Warning PerSecond
        "for 30 s packets were sent to a peer and no authentic packet came back: the peer is down, \
         packets are lost on the path, or the two gateways have different keys"
    PeerHeard "peer_heard" "lockgated" Notice PerSecond
        "an authentic packet came from a peer that was silent"
    BadL4Checksum "bad_l4_checksum" "lockgated" Warning Unlimited
        "packets with a wrong TCP or UDP checksum arrived by a port and their receivers drop them; \
         where the sender leaves checksums to its device, run there: ethtool -K DEV tx off"
    Misfit "misfit" "configuration" Warning PerSecond
        "the configuration does not match the kernel's netdevs or addresses; the message says where"
    MisfitResolved "misfit_resolved" "configuration" Notice PerSecond
        "an earlier `misfit` is resolved; the message repeats it"
    NeighbourFailed "neighbour_failed" "lockgated" Warning PerSecond
        "a next hop does not answer ARP or neighbour discovery; packets to it are dropped"
    WorkerStalled "worker_stalled" "lockgated" Error PerSecond
        "a worker did not complete its loop in time; the watchdog ends the daemon if that lasts"
    MemoryUnlocked "memory_unlocked" "lockgated" Warning Unlimited
        "memory could not be locked: keys may reach a swap device"
    PutKeysFilling "put_keys_filling" "lockgated" Warning Unlimited
        "a memory of used keys is three quarters full: of keys put without `incarnation`, of keys \
         put with it since the boot, or of keys of IKE; the message says which. When the memory is \
         full, puts of its kind alone are refused"
    MetricsRefused "metrics_refused" "metrics" Warning Unlimited
        "the metrics listener could not be opened; everything else runs"
    EventsLost "events_lost" "lockgated" Warning PerSecond
        "a reader of events was too slow and missed some; details say how many"
}

impl Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Kind {
    /// The kind of this name.
    fn named(name: &str) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

/// Details of an event: name and value.
pub(crate) type Details<'a> = &'a [(&'static str, &'a dyn Value)];

/// The value of a detail: a number stays a number.
pub(crate) trait Value {
    /// Returns the value as the API shows it.
    fn detail(&self) -> Detail;
}

macro_rules! values {
    ($number:ident: $($type:ty)*) => {
        $(impl Value for $type {
            fn detail(&self) -> Detail {
                Detail::number(*self as u64)
            }
        })*
    };
    ($($type:ty)*) => {
        $(impl Value for $type {
            fn detail(&self) -> Detail {
                Detail::text(self.to_string())
            }
        })*
    };
}

values!(number: u8 u16 u32 u64 usize);
values!(str String control::PeerAddress control::PeerEnds);

impl<T: Value + ?Sized> Value for &T {
    fn detail(&self) -> Detail {
        (**self).detail()
    }
}

/// The recorder of events. A clone is another handle to the same.
#[derive(Clone)]
pub(crate) struct Events {
    shared: Arc<SharedState>,
}

struct SharedState {
    state: Mutex<State>,
    sender: broadcast::Sender<Event>,
}

struct State {
    log: Log,
    number: u64,
    kept: VecDeque<Event>,
    /// Rate limits, by kind and subject.
    limits: HashMap<(Kind, String), Limit>,
    /// Events so far, by kind.
    counts: [u64; Kind::ALL.len()],
}

/// One kind about one subject, lately.
struct Limit {
    told: Instant,
    held: Option<HeldEvents>,
}

/// Events held back by the rate limit: the last of them, and their number.
struct HeldEvents {
    last: Event,
    count: u64,
}

impl Events {
    /// A ring without events, which writes to stderr.
    pub(crate) fn new() -> Events {
        Events::with(Log::on_stderr())
    }

    fn with(log: Log) -> Events {
        let (sender, _) = broadcast::channel(api::MAX_EVENTS_WAITING);
        let kept = VecDeque::with_capacity(api::MAX_EVENTS_KEPT);
        let state = Mutex::new(State {
            log,
            number: 0,
            kept,
            limits: HashMap::new(),
            counts: [0; Kind::ALL.len()],
        });
        Events { shared: Arc::new(SharedState { state, sender }) }
    }

    /// Records what happened. `subject` is a port's, a peer's or an SA's name, or empty: the part
    /// of the daemon that the kind is about. `message` is for people and holds no key material.
    pub(crate) fn record(
        &self,
        kind: Kind,
        subject: &str,
        message: impl Into<String>,
        details: Details<'_>,
    ) {
        self.put(kind, event(kind, subject, message.into(), None, details), Instant::now());
    }

    /// Records a user's action: an audit event.
    pub(crate) fn audit(
        &self,
        by: Uid,
        kind: Kind,
        subject: &str,
        message: impl Into<String>,
        details: Details<'_>,
    ) {
        self.put(kind, event(kind, subject, message.into(), Some(by), details), Instant::now());
    }

    /// The events that are kept, oldest first, and those to come; none is missing in between.
    pub(crate) fn subscribe(&self) -> (Vec<Event>, broadcast::Receiver<Event>) {
        let state = self.state();
        let receiver = self.shared.sender.subscribe();
        (state.kept.iter().cloned().collect(), receiver)
    }

    /// Reports events that were held back and whose second is over, and writes the lines that
    /// found no room.
    pub(crate) fn report_held(&self) {
        self.report_held_at(Instant::now());
    }

    /// Calls [`Events::report_held`] once a second, for ever: a task of the control thread.
    pub(crate) async fn report_held_forever(self) {
        let mut second = tokio::time::interval(QUIET);
        second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            second.tick().await;
            self.report_held();
        }
    }

    /// Reports all events that were held back, before the daemon ends. Whoever reads stderr has a
    /// second to do so.
    pub(crate) fn flush(&self) {
        let mut state = self.state();
        let limits = std::mem::take(&mut state.limits);
        limits.into_values().filter_map(|limit| limit.held).for_each(|held| {
            self.tell(&mut state, held.into_event());
        });
        state.log.finish(Instant::now() + LAST_LINES);
    }

    /// Returns how often each kind happened, events held back by the rate limit included.
    pub(crate) fn counts(&self) -> Vec<(Kind, u64)> {
        let state = self.state();
        Kind::ALL.iter().map(|kind| (*kind, state.counts[*kind as usize])).collect()
    }

    fn put(&self, kind: Kind, event: Event, now: Instant) {
        let mut state = self.state();
        state.counts[kind as usize] += 1;
        if kind.rate_limit() == RateLimit::Unlimited {
            return self.tell(&mut state, event);
        }
        let mut key = (kind, event.subject.clone());
        if !state.limits.contains_key(&key) && state.limits.len() >= MAX_SUBJECTS {
            state.limits.retain(|_, limit| limit.held.is_some() || !limit.is_over(now));
            // One entry a kind more than the maximum, at most.
            if state.limits.len() >= MAX_SUBJECTS {
                key.1 = String::new();
            }
        }
        let told = match state.limits.get_mut(&key) {
            None => {
                state.limits.insert(key, Limit { told: now, held: None });
                event
            }
            Some(limit) if limit.is_over(now) => {
                limit.told = now;
                match limit.held.take() {
                    Some(held) => held.and(event).into_event(),
                    None => event,
                }
            }
            Some(limit) => {
                limit.held = Some(match limit.held.take() {
                    Some(held) => held.and(event),
                    None => HeldEvents { last: event, count: 1 },
                });
                return;
            }
        };
        self.tell(&mut state, told);
    }

    fn report_held_at(&self, now: Instant) {
        let mut state = self.state();
        let mut due = Vec::new();
        state.limits.retain(|_, limit| {
            if !limit.is_over(now) {
                return true;
            }
            limit.told = now;
            match limit.held.take() {
                Some(held) => due.push(held.into_event()),
                None => return false,
            }
            true
        });
        // Times are of one length, so that their text sorts as they do.
        due.sort_by(|one, other| one.time.cmp(&other.time));
        due.into_iter().for_each(|event| self.tell(&mut state, event));
        state.log.write_on();
    }

    fn tell(&self, state: &mut State, mut event: Event) {
        state.number += 1;
        event.number = state.number;
        state.log.put(&event);
        if state.kept.len() == api::MAX_EVENTS_KEPT {
            state.kept.pop_front();
        }
        state.kept.push_back(event.clone());
        // Nobody listens: not a failure.
        let _ = self.shared.sender.send(event);
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // Nothing in here leaves the state half changed.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Limit {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.told) >= QUIET
    }
}

impl HeldEvents {
    fn and(self, next: Event) -> HeldEvents {
        HeldEvents { last: next, count: self.count + 1 }
    }

    /// The last of them, which says how many others there were.
    fn into_event(self) -> Event {
        let mut event = self.last;
        if self.count > 1 {
            event.details.insert(REPEATED.into(), Detail::number(self.count - 1));
        }
        event
    }
}

fn event(
    kind: Kind,
    subject: &str,
    message: String,
    by: Option<Uid>,
    details: Details<'_>,
) -> Event {
    Event {
        time: humantime::format_rfc3339_nanos(SystemTime::now()).to_string(),
        number: 0,
        kind: kind.name().into(),
        severity: kind.severity().word().into(),
        subject: if subject.is_empty() { kind.part() } else { subject }.into(),
        message,
        uid: by.map(|Uid(uid)| uid),
        details: details.iter().map(|(name, value)| ((*name).into(), value.detail())).collect(),
    }
}

/// Returns the event that counts the events a slow reader missed; it has no number.
pub(crate) fn lost(count: u64) -> Event {
    let message = format!("{count} events were not sent: this reader was too slow");
    event(Kind::EventsLost, "", message, None, &[("count", &count)])
}

#[cfg(test)]
mod tests {
    use super::log::line;
    use super::*;

    fn events() -> Events {
        Events::with(Log::to(None, log::Format::Plain))
    }

    fn at(events: &Events, kind: Kind, subject: &str, message: &str, now: Instant) {
        events.put(kind, event(kind, subject, message.into(), None, &[]), now);
    }

    fn told(events: &Events) -> Vec<(String, Option<String>)> {
        let (kept, _) = events.subscribe();
        let repeated = |event: &Event| event.details.get(REPEATED).map(Detail::to_string);
        kept.into_iter().map(|event| (event.message.clone(), repeated(&event))).collect()
    }

    #[test]
    fn names_are_unique_words_and_every_kind_says_what_to_do() {
        let mut names: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Kind::ALL.len());
        for kind in Kind::ALL {
            let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(kind.name().chars().all(fits), "{kind}");
            assert!(kind.help().len() > 15, "{kind}");
        }
    }

    #[test]
    fn events_are_counted_up_kept_and_sent_on_without_a_gap() {
        let events = events();
        events.record(Kind::Started, "", "runs", &[("workers", &2_u32)]);
        let (kept, mut receiver) = events.subscribe();
        assert_eq!(kept.len(), 1);
        assert_eq!((kept[0].number, kept[0].kind.as_str()), (1, "started"));
        assert_eq!(kept[0].details["workers"], Detail::number(2));
        assert_eq!((kept[0].severity.as_str(), kept[0].subject.as_str()), ("notice", "lockgated"));
        events.audit(Uid(7), Kind::Applied, "", "revision 2", &[]);
        let live = receiver.try_recv().unwrap();
        assert_eq!((live.number, live.uid), (2, Some(7)));
        assert!(receiver.try_recv().is_err());
    }

    #[test]
    fn json_has_rfc_3339_times_and_numbers_that_every_reader_keeps() {
        let details: Details<'_> = &[("ports", &2_u16), ("limit", &u64::MAX), ("name", &"7")];
        let json = serde_json::to_value(event(Kind::GuardCoarse, "", "x".into(), None, details));
        let json = json.unwrap();
        assert!(humantime::parse_rfc3339(json["time"].as_str().unwrap()).is_ok(), "{json}");
        assert_eq!((&json["severity"], &json["subject"]), (&"warning".into(), &"guard".into()));
        assert_eq!(json["details"]["ports"], 2);
        assert_eq!(json["details"]["limit"], u64::MAX.to_string());
        assert_eq!(json["details"]["name"], "7");
        assert!(json.get("unix_ns").is_none());
        let again: Event = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(serde_json::to_value(again).unwrap(), json);
    }

    #[test]
    fn every_event_has_a_severity_and_a_subject() {
        let events = events();
        for kind in Kind::ALL {
            events.record(*kind, "", "x", &[]);
        }
        let (kept, _) = events.subscribe();
        for (event, kind) in kept.iter().zip(Kind::ALL) {
            assert_eq!(
                (event.severity.as_str(), event.kind.as_str()),
                (kind.severity().word(), kind.name())
            );
            assert!(!event.subject.is_empty(), "{kind}");
            assert_eq!(line(event), format!("{kind}: x"));
        }
    }

    #[test]
    fn only_the_last_events_are_kept() {
        let events = events();
        for number in 0..api::MAX_EVENTS_KEPT + 10 {
            events.record(Kind::Applied, "", number.to_string(), &[]);
        }
        let (kept, _) = events.subscribe();
        assert_eq!(kept.len(), api::MAX_EVENTS_KEPT);
        assert_eq!(kept[0].number, 11);
        assert_eq!(kept.last().unwrap().number as usize, api::MAX_EVENTS_KEPT + 10);
    }

    #[test]
    fn a_repeating_event_is_told_once_a_second_and_its_last_word_is_not_lost() {
        let (events, start) = (events(), Instant::now());
        at(&events, Kind::PortDown, "wan", "first", start);
        for number in 0..50 {
            at(&events, Kind::PortDown, "wan", &number.to_string(), start + QUIET / 2);
        }
        at(&events, Kind::PortDown, "lan", "another subject", start + QUIET / 2);
        at(&events, Kind::PortUp, "wan", "another kind", start + QUIET / 2);
        events.report_held_at(start + QUIET / 2);
        assert_eq!(told(&events).len(), 3);
        events.report_held_at(start + QUIET);
        assert_eq!(told(&events)[3], ("49".into(), Some("49".into())));
        events.report_held_at(start + QUIET * 3);
        assert_eq!(told(&events).len(), 4);
        assert_eq!(events.state().limits.len(), 0, "what is over is forgotten");
    }

    #[test]
    fn an_event_after_the_second_counts_those_held_before_it() {
        let (events, start) = (events(), Instant::now());
        for message in ["1", "2", "3"] {
            at(&events, Kind::NeighbourFailed, "192.0.2.9", message, start);
        }
        at(&events, Kind::NeighbourFailed, "192.0.2.9", "4", start + QUIET);
        assert_eq!(told(&events), [("1".into(), None), ("4".into(), Some("2".into()))]);
    }

    #[test]
    fn changes_and_openings_are_told_each_time() {
        let (events, start) = (events(), Instant::now());
        for kind in [Kind::Applied, Kind::GuardRemoved, Kind::KeyRefused, Kind::ProgramRemoved] {
            for _ in 0..5 {
                at(&events, kind, "x", "", start);
            }
        }
        assert_eq!(told(&events).len(), 20);
    }

    #[test]
    fn strangers_subjects_use_bounded_memory_and_none_is_told_without_limit() {
        let (events, start) = (events(), Instant::now());
        for subject in 0..100_000 {
            at(&events, Kind::NeighbourFailed, &subject.to_string(), "", start);
        }
        assert!(events.state().limits.len() <= MAX_SUBJECTS + Kind::ALL.len());
        assert_eq!(events.state().number as usize, MAX_SUBJECTS + 1);
        events.flush();
        assert_eq!(events.state().number as usize, MAX_SUBJECTS + 2);
    }

    #[test]
    fn a_line_is_one_line_whatever_stands_in_it() {
        let message = "bad\nfile\x1b[31m".into();
        let details: Details<'_> = &[("b", &2_u32), ("a", &"x\ny")];
        let event = event(Kind::ApplyRefused, "gw\r", message, Some(Uid(0)), details);
        assert_eq!(
            line(&event),
            "apply_refused gw\\r: bad | file\\u{1b}[31m (a=x | y, b=2) by uid 0"
        );
    }
}
