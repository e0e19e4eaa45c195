//! The configuration as it was written: typed by TOML, every key optional, every value with its
//! place. Only keys, types and duplicates are checked so far.

use std::ops::Deref;

use toml::de::DeTable;

use crate::connections::TIMEOUT_KEYS;
use crate::diagnostic::{DiagnosticKind, Refusal, nearest};
use crate::errors::Diagnostics;
use crate::lifetime::{self, LimitKeys};
use crate::read::{Scalar, Section};
use crate::schema;
use crate::source::{Origin, Source, Span, Spanned};
use crate::syntax;

mod pieces;

pub(crate) use pieces::SectionTwice;

/// The largest file that is read, bytes.
pub const MAX_BYTES: u64 = 256 << 20;
/// Ports at most: a [`PortId`](dataplane::PortId) has 16 bits, and one number is the host port's.
pub(crate) const MAX_PORTS: usize = 4096;

/// A list of strings, each with its place.
pub(crate) type Texts = Option<Spanned<Vec<Spanned<String>>>>;
/// A string with its place.
pub(crate) type Text = Option<Spanned<String>>;
/// A number with its place.
pub(crate) type Number = Option<Spanned<i128>>;
/// `true` or `false` with its place.
pub(crate) type Truth = Option<Spanned<bool>>;
/// A string or a number with its place.
pub(crate) type Either = Option<Spanned<Scalar>>;

/// A file without its policies and rules.
#[derive(Debug, Default)]
pub(crate) struct Raw {
    pub(crate) node: Option<RawNode>,
    pub(crate) cache: Option<RawCache>,
    pub(crate) connections: Option<RawConnections>,
    pub(crate) metrics: Option<RawMetrics>,
    pub(crate) ports: Vec<RawPort>,
    pub(crate) peers: Vec<RawPeer>,
    pub(crate) sets: Vec<RawSet>,
    pub(crate) groups: Vec<RawGroup>,
    pub(crate) routes: Vec<RawRoute>,
    pub(crate) neighbours: Vec<RawNeighbour>,
    pub(crate) overlays: Vec<RawOverlay>,
    pub(crate) networks: Vec<RawNetwork>,
    pub(crate) store: Option<RawStore>,
    pub(crate) kernel: Option<RawKernel>,
    pub(crate) cards: Vec<RawCard>,
    pub(crate) audit: Option<RawAudit>,
    pub(crate) ike: Option<RawIke>,
    /// True if keys in front of the first header write sections.
    pub(crate) has_top_keys: bool,
    /// True if there is a section `node`, right or wrong.
    has_node: bool,
    /// True if there is a section of a port, right or wrong.
    has_port: bool,
}

/// `[node]`.
#[derive(Debug)]
pub(crate) struct RawNode {
    pub(crate) name: Text,
    pub(crate) workers: Either,
    pub(crate) reserve_cores: Number,
    pub(crate) on_exit: Text,
    pub(crate) keys_dir: Text,
    pub(crate) run_dir: Text,
    pub(crate) state_dir: Text,
    pub(crate) poll: Text,
}

/// `[cache]`.
#[derive(Debug)]
pub(crate) struct RawCache {
    pub(crate) flows: Either,
    pub(crate) usage: Text,
}

/// `[connections]`.
#[derive(Debug)]
pub(crate) struct RawConnections {
    pub(crate) max: Either,
    pub(crate) per_port: Either,
    pub(crate) half_open: Either,
    pub(crate) half_open_per_port: Either,
    /// In the order of [`TIMEOUT_KEYS`].
    pub(crate) timeouts: [Number; TIMEOUT_KEYS.len()],
}

/// `[metrics]`.
#[derive(Debug)]
pub(crate) struct RawMetrics {
    pub(crate) listen: Text,
}

/// `[port.NAME]`.
#[derive(Debug)]
pub(crate) struct RawPort {
    pub(crate) at: Span,
    pub(crate) name: Spanned<String>,
    pub(crate) netdev: Text,
    pub(crate) vlan: Number,
    pub(crate) side: Text,
    pub(crate) allow_host: Texts,
    pub(crate) mac: Text,
    pub(crate) mtu: Number,
    pub(crate) addresses: Texts,
    pub(crate) l4_checksum: Text,
    pub(crate) xdp: Text,
    pub(crate) offload_groups: Text,
    pub(crate) groups_in: Texts,
    pub(crate) groups_out: Texts,
}

/// `[peer.NAME]`. Dereferences to the keys that few peers have.
#[derive(Debug)]
pub(crate) struct RawPeer {
    pub(crate) at: Span,
    pub(crate) name: Spanned<String>,
    pub(crate) local: Text,
    pub(crate) remote: Text,
    pub(crate) keys: Text,
    pub(crate) suite: Text,
    pub(crate) mode: Text,
    /// `None`: the peer has no such key. A file may hold a million peers.
    rare: Option<Box<RarePeerKeys>>,
}

/// Keys of `[peer.NAME]` that few peers have.
#[derive(PartialEq, Debug)]
pub(crate) struct RarePeerKeys {
    pub(crate) manual: Text,
    pub(crate) benchmark: Text,
    pub(crate) esn: Truth,
    pub(crate) replay_window: Number,
    pub(crate) mss_clamp: Truth,
    pub(crate) pmtu: Text,
    pub(crate) encapsulation: Text,
    pub(crate) remote_port: Number,
    pub(crate) behind_nat: Truth,
    pub(crate) moves_to: Texts,
    pub(crate) local_moves_to: Texts,
    pub(crate) nat_keepalive: Either,
    pub(crate) dscp: Either,
    pub(crate) df: Text,
    pub(crate) fragment_outer: Truth,
    pub(crate) offload: Text,
    pub(crate) outer: Text,
    pub(crate) lifetime: Option<RawLifetime>,
}

impl RarePeerKeys {
    const NONE: RarePeerKeys = RarePeerKeys {
        manual: None,
        benchmark: None,
        esn: None,
        replay_window: None,
        mss_clamp: None,
        pmtu: None,
        encapsulation: None,
        remote_port: None,
        behind_nat: None,
        moves_to: None,
        local_moves_to: None,
        nat_keepalive: None,
        dscp: None,
        df: None,
        fragment_outer: None,
        offload: None,
        outer: None,
        lifetime: None,
    };
}

impl Deref for RawPeer {
    type Target = RarePeerKeys;

    fn deref(&self) -> &RarePeerKeys {
        static NONE: RarePeerKeys = RarePeerKeys::NONE;
        self.rare.as_deref().unwrap_or(&NONE)
    }
}

/// `[peer.NAME.lifetime]`.
#[derive(PartialEq, Debug)]
pub(crate) struct RawLifetime {
    pub(crate) soft: RawLimits,
    pub(crate) hard: RawLimits,
}

/// The soft or the hard limits.
#[derive(PartialEq, Debug, Default)]
pub(crate) struct RawLimits {
    pub(crate) packets: Either,
    pub(crate) bytes: Either,
    pub(crate) seconds: Number,
    pub(crate) idle_seconds: Number,
}

/// `[[policy]]`.
#[derive(Debug)]
pub(crate) struct RawPolicy {
    pub(crate) at: Span,
    pub(crate) name: Text,
    pub(crate) peer: Text,
    pub(crate) action: Text,
    pub(crate) ports: Texts,
    pub(crate) local: Texts,
    pub(crate) remote: Texts,
    pub(crate) protocol: Either,
    pub(crate) local_ports: Texts,
    pub(crate) remote_ports: Texts,
    pub(crate) icmp: Texts,
    pub(crate) priority: Number,
    pub(crate) direction: Text,
}

/// `[set.NAME]`.
#[derive(Debug)]
pub(crate) struct RawSet {
    pub(crate) at: Span,
    pub(crate) name: Spanned<String>,
    pub(crate) addresses: Texts,
    pub(crate) file: Text,
    /// Number of its keys, right or wrong.
    pub(crate) keys: usize,
}

/// `[group.NAME]`.
#[derive(Debug)]
pub(crate) struct RawGroup {
    pub(crate) name: Spanned<String>,
    pub(crate) mode: Text,
}

/// `[[rule]]`.
#[derive(Debug)]
pub(crate) struct RawRule {
    pub(crate) at: Span,
    pub(crate) group: Text,
    pub(crate) name: Text,
    pub(crate) action: Text,
    pub(crate) from: Texts,
    pub(crate) to: Texts,
    pub(crate) protocol: Either,
    pub(crate) from_ports: Texts,
    pub(crate) to_ports: Texts,
    pub(crate) tcp: Text,
    pub(crate) icmp: Texts,
}

/// The sections of which there may be very many: policies, and rules of groups.
#[derive(Debug, Default)]
pub(crate) struct RawLists {
    pub(crate) policies: Vec<RawPolicy>,
    pub(crate) rules: Vec<RawRule>,
}

/// `[overlay.NAME]`.
#[derive(Debug)]
pub(crate) struct RawOverlay {
    pub(crate) name: Spanned<String>,
    pub(crate) kind: Text,
    pub(crate) port: Text,
    pub(crate) udp_port: Number,
    pub(crate) entrances: Texts,
    pub(crate) direct: Text,
    pub(crate) direct_port: Number,
}

/// `[vni.NUMBER]`.
#[derive(Debug)]
pub(crate) struct RawNetwork {
    pub(crate) name: Spanned<String>,
    pub(crate) overlay: Text,
    pub(crate) groups_in: Texts,
    pub(crate) groups_out: Texts,
    pub(crate) source_check: Text,
}

/// `[store]`.
#[derive(Debug)]
pub(crate) struct RawStore {
    pub(crate) kind: Text,
    pub(crate) endpoints: Either,
}

/// `[kernel]`.
#[derive(Debug)]
pub(crate) struct RawKernel {
    pub(crate) usage: Text,
    pub(crate) endpoints: Either,
    pub(crate) promote_busy: Truth,
}

/// `[card.NAME]`.
#[derive(Debug)]
pub(crate) struct RawCard {
    pub(crate) name: Spanned<String>,
    pub(crate) kind: Text,
    pub(crate) socket: Text,
    /// The key is there, whatever its value is.
    pub(crate) has_socket: bool,
    pub(crate) stand_in: Text,
    pub(crate) ports: Texts,
}

/// `[audit]`.
#[derive(Debug)]
pub(crate) struct RawAudit {
    pub(crate) one_of: Number,
}

/// `[ike]`.
#[derive(Debug)]
pub(crate) struct RawIke {
    pub(crate) ends: Texts,
    pub(crate) peers: Texts,
    pub(crate) selector: RawIkeSelector,
    pub(crate) suites: Texts,
    pub(crate) max_children: Number,
    pub(crate) lifetime: Option<RawLifetime>,
    pub(crate) shunts: Vec<RawShunt>,
}

/// `[[ike.shunt]]`.
#[derive(Debug)]
pub(crate) struct RawShunt {
    pub(crate) action: Text,
    pub(crate) selector: RawIkeSelector,
}

/// The keys of both that say which packets they are about.
#[derive(Debug)]
pub(crate) struct RawIkeSelector {
    pub(crate) at: Span,
    pub(crate) local: Texts,
    pub(crate) remote: Texts,
    pub(crate) protocol: Either,
    pub(crate) local_ports: Texts,
    pub(crate) remote_ports: Texts,
}

/// `[[route]]`.
#[derive(Debug)]
pub(crate) struct RawRoute {
    pub(crate) at: Span,
    pub(crate) to: Text,
    pub(crate) via: Text,
    pub(crate) port: Text,
    pub(crate) kind: Text,
}

/// `[[neighbour]]`.
#[derive(Debug)]
pub(crate) struct RawNeighbour {
    pub(crate) at: Span,
    pub(crate) port: Text,
    pub(crate) address: Text,
    pub(crate) mac: Text,
}

const SECTIONS: &[&str] = &[
    "node",
    "cache",
    "port",
    "peer",
    "policy",
    "route",
    "neighbour",
    "metrics",
    "connections",
    "set",
    "group",
    "rule",
    "overlay",
    "vni",
    "store",
    "kernel",
    "card",
    "audit",
    "ike",
];

/// The sections of [`RawLists`].
pub(crate) const LISTS: &[&str] = &["policy", "rule"];

/// Reads a file. `None` if its syntax is so broken that its values mean nothing; the problems say
/// why. A key that is there twice is noted and its first value read.
pub(crate) fn read(source: &Source<'_>, problems: &mut Diagnostics<'_>) -> Option<(Raw, RawLists)> {
    let (table, errors) = DeTable::parse_recoverable(source.text);
    let origin = Origin::of(&[]);
    let readable = note(&errors, source, &origin, problems);
    let top = Section::top(table.get_ref(), &origin);
    readable.then(|| {
        let frame = sections(&top, source.text, problems);
        frame.check_presence(problems);
        (frame, lists(&top, problems))
    })
}

/// Notes the first syntax error, or else duplicate keys, and returns whether the values can be
/// used. Later syntax errors are not reported: most are consequences of the first.
pub(crate) fn note(
    errors: &[toml::de::Error],
    source: &Source<'_>,
    origin: &Origin,
    problems: &mut Diagnostics<'_>,
) -> bool {
    let place = |error: &toml::de::Error| origin.span(error.span().unwrap_or(0..0));
    let is_syntax = |error: &&toml::de::Error| !error.message().starts_with("duplicate key");
    let first = errors.iter().filter(is_syntax).min_by_key(|error| place(error).start);
    if let Some(error) = first {
        let (span, mistake) = syntax::mistake(source.text, place(error), error.message());
        problems.error(&span, mistake);
        return false;
    }
    for error in errors {
        let span = place(error);
        let key = source.text.get(span.clone()).unwrap_or("").to_owned();
        problems.same_key(&span, DiagnosticKind::SameKey { key });
    }
    true
}

/// Reads all sections but the policies and rules from a piece of `text`.
pub(crate) fn sections(top: &Section<'_>, text: &str, problems: &mut Diagnostics<'_>) -> Raw {
    note_unknown(top, problems);
    let is_in_header =
        |span: &Span| text[..span.start].trim_end_matches([' ', '\t']).ends_with('[');
    let has_top_keys = top.keys().any(|(_, span)| !is_in_header(&span));
    let routes = top.list(problems, "route", "[[route]]");
    let neighbours = top.list(problems, "neighbour", "[[neighbour]]");
    Raw {
        node: top.table(problems, "node").map(|section| node(&section, problems)),
        cache: top.table(problems, "cache").map(|section| {
            section.check_keys(problems, &schema::CACHE);
            RawCache {
                flows: section.scalar(problems, "flows"),
                usage: section.text(problems, "use"),
            }
        }),
        connections: top
            .table(problems, "connections")
            .map(|section| connections(&section, problems)),
        metrics: top.table(problems, "metrics").map(|section| {
            section.check_keys(problems, &schema::METRICS);
            RawMetrics { listen: section.text(problems, "listen") }
        }),
        ports: named(top, problems, "port", port),
        peers: named(top, problems, "peer", peer),
        sets: named(top, problems, "set", set),
        groups: named(top, problems, "group", group),
        routes: routes.iter().map(|section| route(section, problems)).collect(),
        neighbours: neighbours.iter().map(|section| neighbour(section, problems)).collect(),
        overlays: named(top, problems, "overlay", overlay),
        networks: named(top, problems, "vni", network),
        store: top.table(problems, "store").map(|section| {
            section.check_keys(problems, &schema::STORE);
            RawStore {
                kind: section.text(problems, "kind"),
                endpoints: section.scalar(problems, "endpoints"),
            }
        }),
        kernel: top.table(problems, "kernel").map(|section| {
            section.check_keys(problems, &schema::KERNEL);
            RawKernel {
                usage: section.text(problems, "use"),
                endpoints: section.scalar(problems, "endpoints"),
                promote_busy: section.truth(problems, "promote_busy"),
            }
        }),
        cards: named(top, problems, "card", card),
        audit: top.table(problems, "audit").map(|section| audit(&section, problems)),
        ike: top.table(problems, "ike").map(|section| ike(&section, problems)),
        has_top_keys,
        has_node: top.has("node"),
        has_port: top.has("port"),
    }
}

/// Notes the sections that there are none of.
fn note_unknown(top: &Section<'_>, problems: &mut Diagnostics<'_>) {
    for (name, span) in top.keys().filter(|(name, _)| !SECTIONS.contains(name)) {
        let name = name.to_owned();
        if let Some(refusal) = Refusal::of_section(&name) {
            problems.error(&span, DiagnosticKind::Refused { key: name, refusal });
            continue;
        }
        problems.doubt(nearest(&name, SECTIONS.iter().copied()));
        problems.error(
            &span,
            match schema::NODE.names.contains(&name.as_str()) {
                true => DiagnosticKind::Homeless { key: name },
                false => {
                    let nearest = nearest(&name, SECTIONS.iter().copied());
                    DiagnosticKind::UnknownSection { name, nearest, allowed: SECTIONS }
                }
            },
        );
    }
}

/// The policies, and the rules of groups.
pub(crate) fn lists(top: &Section<'_>, problems: &mut Diagnostics<'_>) -> RawLists {
    let policies = top.list(problems, "policy", "[[policy]]");
    let policies = policies.iter().map(|section| policy(section, problems)).collect();
    let rules = top.list(problems, "rule", "[[rule]]");
    let rules = rules.iter().map(|section| rule(section, problems)).collect();
    RawLists { policies, rules }
}

fn named<T>(
    top: &Section<'_>,
    problems: &mut Diagnostics<'_>,
    key: &'static str,
    read: fn(Spanned<String>, &Section<'_>, &mut Diagnostics<'_>) -> T,
) -> Vec<T> {
    let sections = top.named(problems, key);
    sections.into_iter().map(|(name, section)| read(name, &section, problems)).collect()
}

fn node(section: &Section<'_>, problems: &mut Diagnostics<'_>) -> RawNode {
    section.check_keys(problems, &schema::NODE);
    RawNode {
        name: section.text(problems, "name"),
        workers: section.scalar(problems, "workers"),
        reserve_cores: section.number(problems, "reserve_cores"),
        on_exit: section.text(problems, "on_exit"),
        keys_dir: section.text(problems, "keys_dir"),
        run_dir: section.text(problems, "run_dir"),
        state_dir: section.text(problems, "state_dir"),
        poll: section.text(problems, "poll"),
    }
}

fn connections(section: &Section<'_>, problems: &mut Diagnostics<'_>) -> RawConnections {
    section.check_keys(problems, &schema::CONNECTIONS);
    RawConnections {
        max: section.scalar(problems, "max"),
        per_port: section.scalar(problems, "per_port"),
        half_open: section.scalar(problems, "half_open"),
        half_open_per_port: section.scalar(problems, "half_open_per_port"),
        timeouts: TIMEOUT_KEYS.map(|key| section.number(problems, key)),
    }
}

fn port(name: Spanned<String>, section: &Section<'_>, problems: &mut Diagnostics<'_>) -> RawPort {
    let has = |key: &&str| section.has(key);
    // A section that only lists groups is of a port whose name was mistyped, which is told later.
    let lists_groups = ["groups_in", "groups_out"].iter().any(has);
    if !lists_groups || ["netdev", "side"].iter().any(has) {
        section.check_keys(problems, &schema::PORT);
    }
    RawPort {
        at: section.at.clone(),
        name,
        netdev: section.text(problems, "netdev"),
        vlan: section.number(problems, "vlan"),
        side: section.text(problems, "side"),
        allow_host: section.texts(problems, "allow_host"),
        mac: section.text(problems, "mac"),
        mtu: section.number(problems, "mtu"),
        addresses: section.texts(problems, "addresses"),
        l4_checksum: section.text(problems, "l4_checksum"),
        xdp: section.text(problems, "xdp"),
        offload_groups: section.text(problems, "offload_groups"),
        groups_in: section.texts(problems, "groups_in"),
        groups_out: section.texts(problems, "groups_out"),
    }
}

fn overlay(
    name: Spanned<String>,
    section: &Section<'_>,
    problems: &mut Diagnostics<'_>,
) -> RawOverlay {
    section.check_keys(problems, &schema::OVERLAY);
    RawOverlay {
        name,
        kind: section.text(problems, "kind"),
        port: section.text(problems, "port"),
        udp_port: section.number(problems, "udp_port"),
        entrances: section.texts(problems, "entrances"),
        direct: section.text(problems, "direct"),
        direct_port: section.number(problems, "direct_port"),
    }
}

fn network(
    name: Spanned<String>,
    section: &Section<'_>,
    problems: &mut Diagnostics<'_>,
) -> RawNetwork {
    section.check_keys(problems, &schema::NETWORK);
    RawNetwork {
        name,
        overlay: section.text(problems, "overlay"),
        groups_in: section.texts(problems, "groups_in"),
        groups_out: section.texts(problems, "groups_out"),
        source_check: section.text(problems, "source_check"),
    }
}

fn audit(section: &Section<'_>, problems: &mut Diagnostics<'_>) -> RawAudit {
    section.check_keys(problems, &schema::AUDIT);
    RawAudit { one_of: section.number(problems, "one_of") }
}

fn ike(section: &Section<'_>, problems: &mut Diagnostics<'_>) -> RawIke {
    section.check_keys(problems, &schema::IKE);
    let shunts = section.list(problems, "shunt", "[[ike.shunt]]");
    RawIke {
        ends: section.texts(problems, "ends"),
        peers: section.texts(problems, "peers"),
        selector: ike_selector(section, problems),
        suites: section.texts(problems, "suites"),
        max_children: section.number(problems, "max_children"),
        lifetime: section.table(problems, "lifetime").map(|section| {
            section.check_keys(problems, &schema::IKE_LIFETIME);
            limits(&section, problems)
        }),
        shunts: shunts.iter().map(|section| shunt(section, problems)).collect(),
    }
}

fn shunt(section: &Section<'_>, problems: &mut Diagnostics<'_>) -> RawShunt {
    section.check_keys(problems, &schema::SHUNT);
    RawShunt { action: section.text(problems, "action"), selector: ike_selector(section, problems) }
}

fn ike_selector(section: &Section<'_>, problems: &mut Diagnostics<'_>) -> RawIkeSelector {
    RawIkeSelector {
        at: section.at.clone(),
        local: section.texts(problems, "local"),
        remote: section.texts(problems, "remote"),
        protocol: section.scalar(problems, "protocol"),
        local_ports: section.texts(problems, "local_ports"),
        remote_ports: section.texts(problems, "remote_ports"),
    }
}

fn card(name: Spanned<String>, section: &Section<'_>, problems: &mut Diagnostics<'_>) -> RawCard {
    section.check_keys(problems, &schema::CARD);
    RawCard {
        name,
        kind: section.text(problems, "kind"),
        socket: section.text(problems, "socket"),
        has_socket: section.has("socket"),
        stand_in: section.text(problems, "stand_in"),
        ports: section.texts(problems, "ports"),
    }
}

fn peer(name: Spanned<String>, section: &Section<'_>, problems: &mut Diagnostics<'_>) -> RawPeer {
    section.check_keys(problems, &schema::PEER);
    let rare = RarePeerKeys {
        manual: section.text(problems, "manual"),
        benchmark: section.text(problems, "benchmark"),
        esn: section.truth(problems, "esn"),
        replay_window: section.number(problems, "replay_window"),
        mss_clamp: section.truth(problems, "mss_clamp"),
        pmtu: section.text(problems, "pmtu"),
        encapsulation: section.text(problems, "encapsulation"),
        remote_port: section.number(problems, "remote_port"),
        behind_nat: section.truth(problems, "behind_nat"),
        moves_to: section.texts(problems, "moves_to"),
        local_moves_to: section.texts(problems, "local_moves_to"),
        nat_keepalive: section.scalar(problems, "nat_keepalive"),
        dscp: section.scalar(problems, "dscp"),
        df: section.text(problems, "df"),
        fragment_outer: section.truth(problems, "fragment_outer"),
        offload: section.text(problems, "offload"),
        outer: section.text(problems, "outer"),
        lifetime: section.table(problems, "lifetime").map(|section| lifetime(&section, problems)),
    };
    RawPeer {
        at: section.at.clone(),
        name,
        local: section.text(problems, "local"),
        remote: section.text(problems, "remote"),
        keys: section.text(problems, "keys"),
        suite: section.text(problems, "suite"),
        mode: section.text(problems, "mode"),
        rare: (rare != RarePeerKeys::NONE).then(|| Box::new(rare)),
    }
}

fn lifetime(section: &Section<'_>, problems: &mut Diagnostics<'_>) -> RawLifetime {
    section.check_keys(problems, &schema::LIFETIME);
    limits(section, problems)
}

fn limits(section: &Section<'_>, problems: &mut Diagnostics<'_>) -> RawLifetime {
    let mut limits = |keys: &LimitKeys| RawLimits {
        packets: section.scalar(problems, keys.packets),
        bytes: section.scalar(problems, keys.bytes),
        seconds: section.number(problems, keys.seconds),
        idle_seconds: section.number(problems, keys.idle_seconds),
    };
    RawLifetime { soft: limits(&lifetime::SOFT), hard: limits(&lifetime::HARD) }
}

fn policy(section: &Section<'_>, problems: &mut Diagnostics<'_>) -> RawPolicy {
    section.check_keys(problems, &schema::POLICY);
    RawPolicy {
        at: section.at.clone(),
        name: section.text(problems, "name"),
        peer: section.text(problems, "peer"),
        action: section.text(problems, "action"),
        ports: section.texts(problems, "ports"),
        local: section.texts(problems, "local"),
        remote: section.texts(problems, "remote"),
        protocol: section.scalar(problems, "protocol"),
        local_ports: section.texts(problems, "local_ports"),
        remote_ports: section.texts(problems, "remote_ports"),
        icmp: section.texts(problems, "icmp"),
        priority: section.number(problems, "priority"),
        direction: section.text(problems, "direction"),
    }
}

fn set(name: Spanned<String>, section: &Section<'_>, problems: &mut Diagnostics<'_>) -> RawSet {
    section.check_keys(problems, &schema::SET);
    RawSet {
        at: section.at.clone(),
        name,
        addresses: section.texts(problems, "addresses"),
        file: section.text(problems, "file"),
        keys: section.keys().count(),
    }
}

fn group(name: Spanned<String>, section: &Section<'_>, problems: &mut Diagnostics<'_>) -> RawGroup {
    section.check_keys(problems, &schema::GROUP);
    RawGroup { name, mode: section.text(problems, "mode") }
}

fn rule(section: &Section<'_>, problems: &mut Diagnostics<'_>) -> RawRule {
    section.check_keys(problems, &schema::RULE);
    RawRule {
        at: section.at.clone(),
        group: section.text(problems, "group"),
        name: section.text(problems, "name"),
        action: section.text(problems, "action"),
        from: section.texts(problems, "from"),
        to: section.texts(problems, "to"),
        protocol: section.scalar(problems, "protocol"),
        from_ports: section.texts(problems, "from_ports"),
        to_ports: section.texts(problems, "to_ports"),
        tcp: section.text(problems, "tcp"),
        icmp: section.texts(problems, "icmp"),
    }
}

fn route(section: &Section<'_>, problems: &mut Diagnostics<'_>) -> RawRoute {
    section.check_keys(problems, &schema::ROUTE);
    RawRoute {
        at: section.at.clone(),
        to: section.text(problems, "to"),
        via: section.text(problems, "via"),
        port: section.text(problems, "port"),
        kind: section.text(problems, "type"),
    }
}

fn neighbour(section: &Section<'_>, problems: &mut Diagnostics<'_>) -> RawNeighbour {
    section.check_keys(problems, &schema::NEIGHBOUR);
    RawNeighbour {
        at: section.at.clone(),
        port: section.text(problems, "port"),
        address: section.text(problems, "address"),
        mac: section.text(problems, "mac"),
    }
}
