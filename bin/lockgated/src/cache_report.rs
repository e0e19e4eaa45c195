//! The flow caches as the API shows them.

use std::net::IpAddr;

use api::v1;
use config::validated::{Cache, CacheUse};
use dataplane::cache::{BREAK_EVEN_STEPS, CacheEntry, CachedRoute, ENTRY_BYTES, Key};
use dataplane::{CacheCounters, Snapshot};
use policy::selector::protocol_text;
use policy::{Book, Direction, DomainId, FlowAction, Refusal};
use wire::{Address, Family, Flow, Upper};

use crate::backend::CacheQuestion;
use crate::cache_memory;
use crate::picture::Picture;
use crate::worker::{CacheReport, Command, Report};

/// The four kinds of entries in the order in which they are shown.
const KINDS: [(Family, Direction); 4] = [
    (Family::V4, Direction::Outbound),
    (Family::V4, Direction::Inbound),
    (Family::V6, Direction::Outbound),
    (Family::V6, Direction::Inbound),
];

/// The direction under which a question's entries are shown: what came in clear by a protected port
/// is asked about when it is to leave.
fn direction_of(question: policy::Question) -> Direction {
    match question {
        policy::Question::Enter => Direction::Inbound,
        policy::Question::Leave | policy::Question::Through => Direction::Outbound,
    }
}

/// The questions whose entries are shown with the domain of a book.
fn questions_with(book: Book) -> &'static [Book] {
    match book {
        Book::SpdIn => &[Book::SpdIn],
        // Those of what came by a protected port stand under its groups.
        Book::SpdOut => &[Book::SpdOut, Book::GroupIn],
        Book::GroupIn | Book::GroupOut => &[],
    }
}

/// Entries that hold, by family and direction, over all workers; none if the cache is off.
pub(crate) fn entries(state: &Picture, reports: &[Report]) -> Vec<v1::CacheEntries> {
    match state.config().cache {
        Cache::Off => Vec::new(),
        Cache::On { .. } => {
            entries_in(&state.snapshot, reports.iter().filter_map(|report| report.cache.as_ref()))
        }
    }
}

fn entries_in<'r>(
    snapshot: &Snapshot,
    caches: impl Iterator<Item = &'r CacheReport> + Clone,
) -> Vec<v1::CacheEntries> {
    let of_kind = |(family, direction): (Family, Direction)| {
        let books = questions_with(direction.book());
        let is_kind =
            |domain: &DomainId| domain.family() == family && books.contains(&domain.book());
        let domains = || snapshot.spd().domains();
        let counted = caches.clone().flat_map(|cache| domains().zip(&cache.domains));
        let entries = counted.filter(|(domain, _)| is_kind(domain)).map(|(_, (held, _))| held);
        v1::CacheEntries {
            family: family_text(family).into(),
            direction: direction.name().into(),
            entries: entries.sum(),
        }
    };
    KINDS.map(of_kind).into()
}

/// All of it.
pub(crate) fn cache(state: &Picture, reports: &[Report]) -> v1::Cache {
    let Cache::On { flows, usage } = state.config().cache else {
        return v1::Cache { state: "off".into(), ..v1::Cache::default() };
    };
    let snapshot = &*state.snapshot;
    let most = cache_memory::most_entries(state.config().cache, reports.len()).unwrap_or_default();
    let workers = (0..).zip(reports).map(|(worker, report)| v1::WorkerCache {
        worker,
        size: report.cache.as_ref().map(size),
        max_size: Some(size_of(most)),
        entries: entries_in(snapshot, report.cache.iter()),
        counters: Some(counters(&report.cache_counters)),
    });
    let mut sum = CacheCounters::default();
    reports.iter().for_each(|report| sum.add(&report.cache_counters));
    let sizes = reports.iter().filter_map(|report| report.cache.as_ref().map(size));
    let add = |a: v1::CacheSize, b: v1::CacheSize| v1::CacheSize {
        entries: a.entries + b.entries,
        bytes: a.bytes + b.bytes,
    };
    v1::Cache {
        state: "on".into(),
        configured_flows: flows,
        entries: entries(state, reports),
        r#use: if usage == CacheUse::Always { "always" } else { "auto" }.into(),
        size: Some(sizes.fold(v1::CacheSize::default(), add)),
        max_size: Some(size_of(most * reports.len())),
        counters: Some(counters(&sum)),
        workers: workers.collect(),
        domains: shown_domains(snapshot).map(|of| domain(snapshot, reports, of)).collect(),
        break_even_steps: BREAK_EVEN_STEPS,
    }
}

fn size(cache: &CacheReport) -> v1::CacheSize {
    v1::CacheSize { entries: cache.entries as u64, bytes: cache.bytes as u64 }
}

fn size_of(entries: usize) -> v1::CacheSize {
    v1::CacheSize { entries: entries as u64, bytes: (entries * ENTRY_BYTES) as u64 }
}

fn counters(counters: &CacheCounters) -> v1::CacheCounters {
    let CacheCounters { hits, misses, routes, inserts, .. } = *counters;
    let CacheCounters { stale, evictions, negative, refused, .. } = *counters;
    let asked = hits + misses;
    let hit_rate = if asked == 0 { 0.0 } else { hits as f64 / asked as f64 };
    v1::CacheCounters {
        hits,
        misses,
        routes,
        inserts,
        stale,
        evictions,
        negative,
        refused,
        hit_rate,
    }
}

/// The domains of the SPD, and those of groups that have rules.
fn shown_domains(snapshot: &Snapshot) -> impl Iterator<Item = DomainId> {
    let spd = snapshot.spd();
    spd.domains().filter(|domain| domain.book().direction().is_some() || spd.rules(*domain) > 0)
}

fn domain(snapshot: &Snapshot, reports: &[Report], domain: DomainId) -> v1::CacheDomain {
    let spd = snapshot.spd();
    let caches = || {
        let books = questions_with(domain.book()).iter();
        let domains = books.map(move |book| DomainId::new(domain.class(), *book, domain.family()));
        let reports = reports.iter().filter_map(|report| report.cache.as_ref());
        domains.flat_map(move |domain| {
            reports.clone().filter_map(move |cache| cache.domains.get(usize::from(domain.0)))
        })
    };
    let ports = snapshot.ports().filter(|(port, _)| spd.class(port.0) == domain.class());
    let (rules, cost) = (spd.rules(domain), spd.cost(domain).steps());
    let is_bypassed = caches().any(|(_, is_bypassed)| *is_bypassed) && rules == 0;
    v1::CacheDomain {
        domain: domain.0.into(),
        direction: direction_text(domain.book()).into(),
        family: family_text(domain.family()).into(),
        ports: ports.map(|(_, port)| port.name.clone()).collect(),
        generation: spd.generation(domain).0,
        rules: rules as u64,
        cost_steps: cost,
        bytes: spd.bytes(domain) as u64,
        entries: caches().map(|(entries, _)| entries).sum(),
        bypassed: match is_bypassed {
            true => format!(
                "searched: {cost} steps at most, and up to {BREAK_EVEN_STEPS} cost no more than it"
            ),
            false => String::new(),
        },
    }
}

/// Some entries, worker by worker; `None`: there is no such worker. A worker shows a piece of its
/// table at a time, between two turns.
pub(crate) async fn flows(state: &Picture, question: CacheQuestion) -> Option<v1::CachedFlows> {
    let CacheQuestion { limit, worker, stale } = question;
    let numbers = match worker {
        None => 0..state.workers.all().len(),
        Some(number) if number < state.workers.all().len() => number..number + 1,
        Some(_) => return None,
    };
    let mut shown = v1::CachedFlows::default();
    for number in numbers {
        let mut next = Some(0);
        while let Some(line) = next {
            let ask = |reply| Command::ShowCache { line, reply };
            // A worker that has ended ends the daemon.
            let Ok((entries, rest)) = state.workers.all()[number].ask(ask).await else { break };
            next = rest;
            for entry in entries.iter().filter(|entry| stale || entry.is_current) {
                if shown.flows.len() == limit {
                    shown.more = true;
                    return Some(shown);
                }
                shown.flows.push(flow(&state.snapshot, number, entry));
            }
        }
    }
    Some(shown)
}

fn flow(snapshot: &Snapshot, worker: usize, entry: &CacheEntry) -> v1::CachedFlow {
    let CacheEntry { key, verdict, generation, is_current, route } = *entry;
    let Key { scope, flow } = key;
    let scopes = snapshot.tables().scopes();
    let (domain, opened_by) = (scopes.domain(scope), scopes.opened_by(scope));
    let Flow { family, source, destination, protocol, upper, opens } = flow;
    let address = |value| IpAddr::from(Address { family, value }).to_string();
    let answer = match verdict.action {
        _ if !verdict.is_asked() => "not_asked",
        _ if verdict.is_negative() => "no_match",
        FlowAction::Refuse(Refusal::FragmentPorts) => "fragment_ports",
        FlowAction::Permit | FlowAction::Protect(_) | FlowAction::Refuse(_) => "policy",
    };
    // The last one that was asked. An entry of another generation may be of slots that are others'
    // now.
    let slot = verdict
        .deciders
        .slots()
        .last()
        .filter(|slot| is_current && (slot.0 as usize) < snapshot.spd().slots());
    let policy = slot.map(|slot| snapshot.spd().policy(slot));
    let peer =
        opened_by.and_then(|set| snapshot.sets().map(|(_, set)| set).find(|known| known.id == set));
    v1::CachedFlow {
        worker: worker as u32,
        domain: domain.0.into(),
        direction: direction_of(snapshot.tables().question(scope)).name().into(),
        family: family_text(family).into(),
        source: address(source),
        destination: address(destination),
        protocol: protocol_text(Some(protocol)),
        upper: match upper {
            Upper::Ports { source, destination } if opens => {
                format!("ports {source} to {destination}, new")
            }
            Upper::Ports { source, destination } => format!("ports {source} to {destination}"),
            Upper::Icmp { kind, code } => format!("{kind}/{code}"),
            Upper::Fragment => "fragment".into(),
            Upper::None => String::new(),
        },
        opened_by: opened_by.map(|_| peer.map_or(String::new(), |set| set.peer.clone())),
        answer: answer.into(),
        policy: policy.map(|policy| policy.name.clone()),
        policy_id: policy.map(|policy| policy.id.0),
        generation: generation.0,
        current: is_current,
        route: match route {
            CachedRoute::Unknown => String::new(),
            CachedRoute::Other => "asked again".into(),
            CachedRoute::Via(hop) => {
                let hop = snapshot.next_hop(hop);
                let port = &snapshot.port(hop.port).name;
                match hop.gateway {
                    Some(gateway) => format!("via {gateway} by port {port}"),
                    None => format!("on the link of port {port}"),
                }
            }
        },
    }
}

fn family_text(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    }
}

fn direction_text(book: Book) -> &'static str {
    match book {
        Book::SpdIn => "inbound",
        Book::SpdOut => "outbound",
        Book::GroupIn => "groups in",
        Book::GroupOut => "groups out",
    }
}
