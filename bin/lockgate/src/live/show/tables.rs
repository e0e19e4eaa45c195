//! The API's answers as text: tables that line up.

use api::v1;
use console::output::{Columns, Numbers, fitted, table};

/// Formats the ports: settings, counters, queues, and the kernel's counters.
pub(super) fn ports(answer: &v1::Ports, columns: Columns) -> String {
    let ports = &answer.ports;
    let rows = ports.iter().map(|port| {
        let xdp = match (port.xdp_mode.as_str(), port.copy_mode.as_str()) {
            ("", _) => "-".to_owned(),
            (mode, "") => mode.to_owned(),
            (mode, copy) => format!("{mode}, {copy}"),
        };
        vec![
            port.name.clone(),
            port.netdev.clone(),
            port.vlan.map_or("-".into(), |vlan| vlan.to_string()),
            port.side.clone(),
            port.state.clone(),
            xdp,
            port.queues.len().to_string(),
            port.mtu.to_string(),
            or_dash(&port.mac),
            or_dash(&port.addresses.join(" ")),
        ]
    });
    let header =
        ["port", "netdev", "VLAN", "side", "state", "XDP", "queues", "MTU", "MAC", "addresses"];
    let wide = ["XDP", "MTU", "netdev", "queues", "MAC", "addresses"];
    let mut text = fitted("Ports", &header, rows, Numbers(6..=7), (columns, &wide));
    for port in ports {
        for (what, why) in
            [(&port.state, &port.state_reason), (&port.xdp_mode, &port.native_refused)]
        {
            if !why.is_empty() {
                text.push_str(&format!(" {}: {what}: {why}\n", port.name));
            }
        }
        let refused = port.queues.iter().filter(|queue| !queue.socket);
        for v1::Queue { queue, socket_refused, .. } in refused {
            text.push_str(&format!(
                " {}: queue {queue} has no socket: {socket_refused}\n",
                port.name
            ));
        }
    }
    text.push_str(&checksums(ports));
    if !text.ends_with("\n\n") {
        text.push('\n');
    }
    let ledgers = ports.iter().filter_map(|port| {
        let left = [port.tx_packets, port.tx_bytes].map(|number| number.to_string());
        Some([vec![port.name.clone()], ledger_row(port.ledger.as_ref()?), left.into()].concat())
    });
    let header = [&["port"][..], &LEDGER, &["left by it", "bytes"]].concat();
    let wide = ["consumed", "made", "held", "bytes", "imbalance"];
    let title = "Packets received by each port, and what became of them";
    text.push_str(&fitted(title, &header, ledgers, Numbers(1..=10), (columns, &wide)));
    text.push_str(&queues(ports, columns));
    text.push_str(&kernel(ports, columns));
    text
}

/// A line for each port whose packets had unfinished or wrong checksums.
fn checksums(ports: &[v1::Port]) -> String {
    let line = |port: &v1::Port| {
        let v1::L4Checksum { completed, checked, bad, .. } = port.l4_checksum.as_ref()?;
        let name = &port.name;
        let completed = match completed {
            0 => String::new(),
            count => format!(" {name}: completed {count} unfinished TCP and UDP checksums\n"),
        };
        let bad = match bad {
            0 => String::new(),
            count => format!(
                " {name}: {count} of {checked} sampled packets had a wrong TCP or UDP checksum \
                 (bad_l4_checksum);\n   at the sender: ethtool -K DEV tx off\n"
            ),
        };
        Some(completed + &bad)
    };
    ports.iter().filter_map(line).collect()
}

fn queues(ports: &[v1::Port], columns: Columns) -> String {
    let rows = ports.iter().flat_map(|port| {
        port.queues.iter().map(|queue| {
            let numbers = [
                queue.rx_packets,
                queue.tx_packets,
                queue.rx_dropped,
                queue.queue_full,
                queue.fill_empty,
                queue.tx_invalid,
                queue.tx_full,
                queue.foreign,
            ];
            let place = [queue.queue, queue.worker].map(|number| number.to_string());
            let numbers = numbers.map(|number| number.to_string());
            [vec![port.netdev.clone()], place.into(), numbers.into()].concat()
        })
    });
    let header = [
        "netdev",
        "queue",
        "worker",
        "rx",
        "tx",
        "rx dropped",
        "ring full",
        "fill empty",
        "tx invalid",
        "tx full",
        "unmarked",
    ];
    let wide = ["unmarked", "tx invalid", "fill empty", "tx full"];
    fitted("Queues, in packets", &header, rows, Numbers(1..=10), (columns, &wide))
}

fn kernel(ports: &[v1::Port], columns: Columns) -> String {
    let mut seen: Vec<&str> = Vec::new();
    let rows = ports.iter().filter_map(|port| {
        let kernel = port.kernel.as_ref()?;
        // The ports of one netdev share its program.
        if seen.contains(&port.netdev.as_str()) {
            return None;
        }
        seen.push(&port.netdev);
        let numbers = [
            kernel.received,
            kernel.passed_not_to_us,
            kernel.passed_arp_nd,
            kernel.passed_not_ip,
            kernel.passed_to_host,
            kernel.passed_allow_host,
            kernel.passed_carried,
            kernel.to_worker,
            kernel.ring_full,
            kernel.no_socket,
            kernel.mark_failed,
            kernel.no_card_header,
            kernel.transmitted,
            kernel.arp_answered,
            kernel.verdict_dropped,
        ];
        let numbers = numbers.map(|number| number.to_string());
        let imbalance = vec![kernel.imbalance.to_string()];
        Some([vec![port.netdev.clone()], numbers.into(), imbalance].concat())
    });
    let header = [
        "netdev",
        "received",
        "not to us",
        "ARP, ND",
        "not IP",
        "to host",
        "allow_host",
        "carried",
        "to worker",
        "ring full",
        "no socket",
        "no mark",
        "no card header",
        "sent",
        "ARP answered",
        "refused",
        "imbalance",
    ];
    let wide = [
        "no card header",
        "carried",
        "no mark",
        "ARP answered",
        "not IP",
        "imbalance",
        "ARP, ND",
        "no socket",
    ];
    let title = "XDP program, in packets: passed to Linux, and the rest";
    fitted(title, &header, rows, Numbers(1..=16), (columns, &wide))
}

/// The columns of [`ledger_row`].
pub(super) const LEDGER: [&str; 8] =
    ["received", "made", "sent", "dropped", "consumed", "host", "held", "imbalance"];

pub(super) fn ledger_row(ledger: &v1::Ledger) -> Vec<String> {
    let v1::Ledger { received, made, sent, dropped, consumed, host, held, imbalance } = ledger;
    let numbers = [received, made, sent, dropped, consumed, host, held];
    let numbers = numbers.iter().map(|number| number.to_string());
    numbers.chain([imbalance.to_string()]).collect()
}

/// The peers.
pub(super) fn peers(answer: &v1::Peers, columns: Columns) -> String {
    let rows = answer.peers.iter().map(|peer| {
        let [sealed, opened] = [&peer.sealed, &peer.opened].map(|v| v.unwrap_or_default());
        vec![
            peer.name.clone(),
            local(peer),
            end(&peer.remote, peer.remote_port),
            address(peer),
            carried(&peer.mode, &peer.encapsulation),
            peer.suite.clone(),
            peer.keys.clone(),
            format!("{}/{}", peer.outbound_sas, peer.inbound_sas),
            peer.policies.to_string(),
            peer.inner_mtu.to_string(),
            path_mtu(peer),
            sealed.packets.to_string(),
            opened.packets.to_string(),
            received(peer.last_received_age_ms),
            peer.state.clone(),
            or_dash(&peer.route),
        ]
    });
    let header = [
        "peer",
        "local",
        "remote",
        "address",
        "mode",
        "suite",
        "keys",
        "SAs out/in",
        "policies",
        "inner MTU",
        "path MTU",
        "sealed",
        "opened",
        "received",
        "state",
        "route",
    ];
    let wide = [
        "keys",
        "suite",
        "policies",
        "route",
        "inner MTU",
        "path MTU",
        "SAs out/in",
        "mode",
        "local",
    ];
    let wide = [&wide[..], &["address", "sealed", "opened"]].concat();
    let table = fitted("Peers", &header, rows, Numbers(7..=12), (columns, &wide));
    let with_ike = answer.peers.iter().filter_map(|peer| Some((peer, peer.ike.as_ref()?)));
    let children = with_ike.map(|(peer, ike)| [vec![peer.name.clone()], child(ike)].concat());
    let children = children_of_ike(&["peer"], children.collect(), columns);
    some(table, "no peers") + &children
}

/// The children of charon's; nothing if there is none. `first` heads the columns before those of
/// [`child`].
fn children_of_ike(first: &[&str], rows: Vec<Vec<String>>, columns: Columns) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let header = [first, &["connection", "child", "reqid", "established", "rekey due"]].concat();
    let numbers = Numbers(first.len() + 2..=first.len() + 2);
    fitted("Children of IKE", &header, rows, numbers, (columns, &["reqid", "connection"]))
}

/// Names of a child of charon's, its number and its times.
fn child(ike: &v1::IkeChild) -> Vec<String> {
    let seconds = |seconds: u64| duration(seconds.saturating_mul(1000));
    vec![
        or_dash(&ike.connection),
        or_dash(&ike.child),
        ike.reqid.to_string(),
        format!("{} ago", seconds(ike.established_s)),
        match ike.rekey_due_s {
            None => "-".into(),
            Some(0) => "now".into(),
            Some(due) => format!("in {}", seconds(due)),
        },
    ]
}

/// The gateway's end, and where it is now, if that is elsewhere.
fn local(peer: &v1::Peer) -> String {
    let v1::Peer { local, current_local: now, .. } = peer;
    match now.is_empty() || now == local {
        true => local.clone(),
        false => format!("{local} (now {now})"),
    }
}

/// A peer's present address, if it is not the configured one, and how often the peer has moved.
fn address(peer: &v1::Peer) -> String {
    let current = end(&peer.current_remote, peer.current_remote_port);
    match current == end(&peer.remote, peer.remote_port) || peer.current_remote.is_empty() {
        true if peer.behind_nat || !peer.moves_to.is_empty() => "as configured, may move".into(),
        true => "as configured".into(),
        false => format!("{current} (moves: {})", peer.moves),
    }
}

/// The path MTU to a peer, and the time since ICMP told it, if that did.
fn path_mtu(peer: &v1::Peer) -> String {
    match peer.path_mtu_age_ms {
        None => peer.path_mtu.to_string(),
        Some(age_ms) => format!("{} (ICMP, {} ago)", peer.path_mtu, duration(age_ms)),
    }
}

/// Time since the last authentic packet from a peer.
pub(super) fn received(age_ms: Option<u64>) -> String {
    match age_ms {
        None => "never".into(),
        Some(age @ ..60_000) => format!("{} s ago", age / 1000),
        Some(age) => format!("{} ago", duration(age)),
    }
}

/// An address, with its UDP port if there is one.
fn end(address: &str, port: Option<u32>) -> String {
    match port {
        Some(port) if address.contains(':') => format!("[{address}]:{port}"),
        Some(port) => format!("{address}:{port}"),
        None => address.to_owned(),
    }
}

/// `tunnel`, `transport in udp`.
fn carried(mode: &str, encapsulation: &str) -> String {
    match encapsulation {
        "" | "none" => mode.to_owned(),
        in_front => format!("{mode} in {in_front}"),
    }
}

/// A part of all, 0 to 1, as hundredths: what is used but little is not nothing.
fn hundredths(part: f64) -> String {
    match part {
        ..=0.0 => "0 %".into(),
        ..0.001 => "<0.1 %".into(),
        part => format!("{:.1} %", (part * 1000.0).floor() / 10.0),
    }
}

/// The engine of an SA's cipher; of an SA in a card, the age of its counts too.
fn engine(sa: &v1::SecurityAssociation) -> String {
    match sa.card_read_age_ms {
        Some(age) => format!("{}, read {} s ago", sa.backend, age / 1000),
        None => or_dash(&sa.backend),
    }
}

/// The SAs, and under them why some cannot be used.
pub(super) fn security_associations(answer: &v1::SecurityAssociations, columns: Columns) -> String {
    let rows = answer.sas.iter().map(|sa| {
        let limit = match (sa.reserved_to, sa.window_packets) {
            (Some(reserved), _) => format!("reserved to {reserved}"),
            (None, Some(window)) => format!("window {window}"),
            (None, None) => "-".into(),
        };
        vec![
            sa.direction.clone(),
            sa.spi.clone(),
            sa.peer.clone(),
            sa.sequence.to_string(),
            hundredths(sa.sequence_used),
            sa.packets.to_string(),
            sa.bytes.to_string(),
            limit,
            if sa.extended_sequence_numbers { "yes" } else { "no" }.into(),
            sa.suite.clone(),
            engine(sa),
            carried(&sa.mode, &sa.encapsulation),
            end(&sa.local, sa.local_port),
            end(&sa.remote, sa.remote_port),
            or_dash(&sa.fingerprint),
            sa.last_packet_age_ms.map_or("-".into(), |age| format!("{} s ago", age / 1000)),
            sa.state.clone(),
        ]
    });
    let header = [
        "direction",
        "SPI",
        "peer",
        "sequence",
        "used",
        "packets",
        "bytes",
        "numbers",
        "ESN",
        "suite",
        "backend",
        "mode",
        "local",
        "remote",
        "key",
        "last",
        "state",
    ];
    let wide =
        ["key", "backend", "ESN", "numbers", "mode", "local", "suite", "last", "bytes", "remote"];
    let title = "Security associations";
    let table = fitted(title, &header, rows, Numbers(3..=6), (columns, &wide));
    let mut text = some(table, "no SAs");
    let with_ike = answer.sas.iter().filter_map(|sa| Some((sa, sa.ike.as_ref()?)));
    let children = with_ike.map(|(sa, ike)| {
        let first = vec![sa.direction.clone(), sa.spi.clone(), sa.peer.clone()];
        [first, child(ike)].concat()
    });
    let first = ["direction", "SPI", "peer"];
    text.push_str(&children_of_ike(&first, children.collect(), columns));
    text.push_str(&sa_limits(answer, columns));
    for sa in answer.sas.iter().filter(|sa| !sa.state_reason.is_empty()) {
        let v1::SecurityAssociation { direction, spi, peer, state, state_reason, .. } = sa;
        text.push_str(&format!("{direction} {spi}, peer {peer}: {state}: {state_reason}\n"));
    }
    text
}

/// Use and limits of the SAs that have any; nothing if there is none.
fn sa_limits(answer: &v1::SecurityAssociations, columns: Columns) -> String {
    let limited = answer.sas.iter().filter_map(|sa| Some((sa, sa.lifetime.as_ref()?)));
    let rows = limited.map(|(sa, lifetime)| {
        let soft = lifetime.soft.unwrap_or_default();
        let hard = lifetime.hard.unwrap_or_default();
        let of = |used: Option<u64>, soft: Option<u64>, hard: Option<u64>| {
            let used = used.map_or("-".into(), |used| used.to_string());
            match (soft, hard) {
                (None, None) => used,
                (Some(soft), None) => format!("{used} of soft {soft}"),
                (None, Some(hard)) => format!("{used} of {hard}"),
                (Some(soft), Some(hard)) => format!("{used} of {hard}, soft {soft}"),
            }
        };
        vec![
            sa.direction.clone(),
            sa.spi.clone(),
            sa.peer.clone(),
            of(Some(lifetime.packets), soft.packets, hard.packets),
            of(Some(lifetime.bytes), soft.bytes, hard.bytes),
            of(lifetime.seconds, soft.seconds, hard.seconds),
            of(lifetime.idle_seconds, soft.idle_seconds, hard.idle_seconds),
            or_dash(&lifetime.ended),
        ]
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let header =
        ["direction", "SPI", "peer", "packets", "bytes", "seconds", "idle seconds", "ended by"];
    let wide = ["idle seconds", "seconds", "ended by"];
    let title = "Use and limits of SAs";
    fitted(title, &header, rows, Numbers(3..=6), (columns, &wide))
}

/// The policies, what passes without them, and the flow cache's four lines.
pub(super) fn policies(answer: &v1::Policies) -> String {
    let rows = answer.policies.iter().map(|policy| {
        let [outbound, inbound] =
            [&policy.outbound, &policy.inbound].map(|v| v.unwrap_or_default());
        let numbers = [outbound.packets, outbound.bytes, inbound.packets, inbound.bytes];
        let with_peer = policy.peer.as_ref().map_or(String::new(), |peer| format!(" {peer}"));
        let words = vec![
            policy.priority.to_string(),
            policy.name.clone(),
            format!("{}{with_peer}", policy.action),
            policy.direction.clone(),
            ends(&policy.local, &policy.local_ports),
            ends(&policy.remote, &policy.remote_ports),
            upper(policy),
            if policy.ports.is_empty() { "any".into() } else { policy.ports.join(" ") },
        ];
        [words, numbers.map(|number| number.to_string()).into()].concat()
    });
    let header = [
        "priority",
        "policy",
        "action",
        "direction",
        "local",
        "remote",
        "protocol",
        "came by",
        "out packets",
        "out bytes",
        "in packets",
        "in bytes",
    ];
    let mut text = some(table("Policies", &header, rows, Numbers(8..=11)), "no policies");
    let sums = answer.sums.iter().map(|sum| {
        let [outbound, inbound] = [&sum.outbound, &sum.inbound].map(|v| v.unwrap_or_default());
        let numbers = [outbound.packets, outbound.bytes, inbound.packets, inbound.bytes];
        let numbers = numbers.map(|number| number.to_string());
        [vec![sum.action.to_uppercase()], numbers.into()].concat()
    });
    let header = ["action", "out packets", "out bytes", "in packets", "in bytes"];
    text.push_str(&table("All policies since the start", &header, sums, Numbers(1..=4)));
    let host = answer.host.iter();
    let host = host.map(|entry| vec![entry.port.clone(), entry.service.clone(), "BYPASS".into()]);
    let title = "To this machine itself, without a policy";
    text.push_str(&table(title, &["port", "service", "action"], host, Numbers::NONE));
    text.push_str(&cache_lines(&answer.cache_entries));
    text
}

/// Addresses, with ports if there are.
pub(super) fn ends(addresses: &[String], ports: &[String]) -> String {
    match ports {
        [] => addresses.join(" "),
        ports => format!("{} port {}", addresses.join(" "), ports.join(" ")),
    }
}

/// Protocol, with ICMP messages if there are.
fn upper(policy: &v1::Policy) -> String {
    match policy.icmp.as_slice() {
        [] => policy.protocol.clone(),
        messages => format!("{} {}", policy.protocol, messages.join(" ")),
    }
}

/// `ipv4-outbound-spd-flow-cache-entries: N`, a line for each family and direction.
fn cache_lines(entries: &[v1::CacheEntries]) -> String {
    let line = |entry: &v1::CacheEntries| {
        let v1::CacheEntries { family, direction, entries } = entry;
        format!("{family}-{direction}-spd-flow-cache-entries: {entries}\n")
    };
    let lines: String = entries.iter().map(line).collect();
    if lines.is_empty() { lines } else { format!("Valid entries of the flow cache\n{lines}") }
}

/// The flow cache: all of it, each worker's, each domain's, and the four lines.
pub(super) fn cache(cache: &v1::Cache) -> String {
    if cache.state == "off" {
        return "the flow cache is off: the classifier decides every packet\n".into();
    }
    let in_words = |size: v1::CacheSize| format!("{} entries, {} bytes", size.entries, size.bytes);
    let counters = cache.counters.unwrap_or_default();
    let usage = match cache.r#use.as_str() {
        "auto" => "looked up where that costs less than the search it saves",
        _ => "always looked up",
    };
    let mut text = [
        ("sized for", format!("{} flows", cache.configured_flows)),
        ("use", format!("{}: {usage}", cache.r#use)),
        ("size", in_words(cache.size.unwrap_or_default())),
        ("grows up to", in_words(cache.max_size.unwrap_or_default())),
        ("hit rate", hundredths(counters.hit_rate)),
    ]
    .map(|(name, text)| format!("{name:<11} {text}\n"))
    .concat();
    text.push('\n');
    text.push_str(&worker_caches(cache));
    text.push_str(&cache_domains(cache));
    text.push_str(&cache_lines(&cache.entries));
    text
}

/// Shows each worker's part of the flow cache, and their sum.
fn worker_caches(cache: &v1::Cache) -> String {
    let row = |who: String, sizes: [Option<v1::CacheSize>; 2], counters, entries: u64| {
        let [size, most] = sizes.map(Option::unwrap_or_default);
        let v1::CacheCounters { hits, misses, routes, inserts, .. } = counters;
        let v1::CacheCounters { stale, evictions, negative, refused, .. } = counters;
        let counted = [hits, misses, routes, inserts, stale, evictions, negative, refused];
        let room = [size.entries, most.entries, size.bytes, entries];
        let numbers = room.into_iter().chain(counted);
        [who].into_iter().chain(numbers.map(|number| number.to_string())).collect::<Vec<_>>()
    };
    let sum = |entries: &[v1::CacheEntries]| entries.iter().map(|entry| entry.entries).sum();
    let rows = cache.workers.iter().map(|worker| {
        let v1::WorkerCache { worker, size, max_size, entries, counters } = worker;
        let counters = counters.unwrap_or_default();
        row(worker.to_string(), [*size, *max_size], counters, sum(entries))
    });
    let (sizes, counters) = ([cache.size, cache.max_size], cache.counters.unwrap_or_default());
    let all = row("all".into(), sizes, counters, sum(&cache.entries));
    let header = [
        "worker",
        "size",
        "max size",
        "bytes",
        "entries",
        "hits",
        "misses",
        "routes",
        "inserts",
        "stale",
        "evictions",
        "negative",
        "refused",
    ];
    let rows = rows.chain([all]);
    table("By worker, in packets and entries", &header, rows, Numbers(1..=12))
}

/// The policies' domains, as far as the flow cache is concerned.
fn cache_domains(cache: &v1::Cache) -> String {
    let rows = cache.domains.iter().map(|domain| {
        vec![
            domain.domain.to_string(),
            domain.direction.clone(),
            domain.family.clone(),
            domain.generation.to_string(),
            domain.rules.to_string(),
            domain.cost_steps.to_string(),
            domain.bytes.to_string(),
            domain.entries.to_string(),
            domain.ports.join(" "),
            if domain.bypassed.is_empty() { "asked".into() } else { domain.bypassed.clone() },
        ]
    });
    let header = [
        "domain",
        "direction",
        "family",
        "generation",
        "rules",
        "steps",
        "bytes",
        "entries",
        "ports",
        "cache",
    ];
    table("Policy domains", &header, rows, Numbers(3..=7))
}

/// Entries of the flow cache.
pub(super) fn cached_flows(answer: &v1::CachedFlows) -> String {
    let rows = answer.flows.iter().map(|flow| {
        let answer = match (&flow.policy, flow.answer.as_str()) {
            (Some(policy), "policy") => policy.clone(),
            (Some(policy), answer) => format!("{answer} {policy}"),
            (None, answer) => answer.to_owned(),
        };
        let generation = match flow.current {
            true => flow.generation.to_string(),
            false => format!("{} (stale)", flow.generation),
        };
        vec![
            flow.worker.to_string(),
            flow.domain.to_string(),
            flow.direction.clone(),
            flow.protocol.clone(),
            flow.source.clone(),
            flow.destination.clone(),
            or_dash(&flow.upper),
            flow.opened_by.clone().unwrap_or_else(|| "-".into()),
            answer,
            generation,
            or_dash(&flow.route),
        ]
    });
    let header = [
        "worker",
        "domain",
        "direction",
        "protocol",
        "source",
        "destination",
        "upper layer",
        "opened by",
        "policy",
        "generation",
        "route",
    ];
    let mut text = some(table("Cached flows", &header, rows, Numbers(0..=1)), "no cached flows");
    if answer.more {
        text.push_str("there are more: --entries asks for up to 10000\n");
    }
    text
}

/// The neighbours.
pub(super) fn neighbours(answer: &v1::Neighbours) -> String {
    let rows = answer.neighbours.iter().map(|neighbour| {
        vec![
            neighbour.port.clone(),
            neighbour.address.clone(),
            or_dash(&neighbour.mac),
            or_dash(&neighbour.state),
            if neighbour.next_hop { "next hop" } else { "" }.into(),
            neighbour.held.to_string(),
        ]
    });
    let header = ["port", "address", "MAC", "state", "used as", "packets held"];
    some(table("Neighbours", &header, rows, Numbers(5..=5)), "no neighbours")
}

/// The routes.
pub(super) fn routes(answer: &v1::Routes) -> String {
    let rows = answer.routes.iter().map(|route| {
        let kind = match route.kind.as_str() {
            "elsewhere" => "elsewhere: by a netdev that is not a port; dropped",
            kind => kind,
        };
        vec![route.to.clone(), kind.into(), or_dash(&route.via), or_dash(&route.port)]
    });
    let header = ["to", "kind", "via", "port"];
    some(table("Routes", &header, rows, Numbers::NONE), "no routes")
}

/// The revisions, newest first.
pub(super) fn revisions(answer: &v1::Revisions) -> String {
    let rows = answer.revisions.iter().map(|revision| {
        vec![
            revision.revision.to_string(),
            revision.uid.to_string(),
            revision.changes.to_string(),
            revision.time.clone(),
            match revision.restored {
                None => revision.cause.clone(),
                Some(restored) => format!("{} to {restored}", revision.cause),
            },
            if revision.running { "running" } else { "" }.into(),
            or_dash(&revision.file),
        ]
    });
    let header = ["revision", "by uid", "changes", "time", "cause", "", "file"];
    some(table("Revisions", &header, rows, Numbers(0..=2)), "no revisions")
}

/// A table, or that it is empty.
pub(super) fn some(table: String, none: &str) -> String {
    if table.is_empty() { format!("{none}\n") } else { table }
}

pub(super) fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".into() } else { text.to_owned() }
}

/// `2 d 3 h`, `5 min 7 s`, `4.2 s`.
pub(super) fn duration(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    match seconds {
        0..60 => format!("{seconds}.{} s", milliseconds % 1000 / 100),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86400, seconds % 86400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // XO-19
    #[test]
    fn an_sa_in_a_card_is_shown_with_the_age_of_its_counts() {
        let software = v1::SecurityAssociation { backend: "ipsec-mb".into(), ..Default::default() };
        let card = "card nic0".to_owned();
        let in_card = v1::SecurityAssociation {
            backend: card,
            card_read_age_ms: Some(1999),
            ..software.clone()
        };
        assert_eq!(engine(&in_card), "card nic0, read 1 s ago");
        assert_eq!(engine(&software), "ipsec-mb");
    }

    #[test]
    fn policies_end_with_the_four_lines_that_scripts_read() {
        let entry = |family: &str, direction: &str| v1::CacheEntries {
            family: family.into(),
            direction: direction.into(),
            entries: 7,
        };
        let families = ["ipv4", "ipv6"];
        let pairs = families.map(|family| ["inbound", "outbound"].map(|way| entry(family, way)));
        let host = v1::HostBypass { port: "wan".into(), service: "udp/500".into() };
        let policy = v1::Policy {
            name: "web".into(),
            action: "PROTECT".into(),
            peer: Some("berlin".into()),
            local: vec!["any".into()],
            remote: vec!["10.2.0.0/16".into()],
            remote_ports: vec!["443".into(), "8000-8999".into()],
            protocol: "tcp".into(),
            ..Default::default()
        };
        let cache_entries = pairs.concat();
        let sums = vec![v1::ActionVolume {
            action: "protect".into(),
            outbound: Some(v1::Volume { packets: 4711, bytes: 1 }),
            inbound: None,
        }];
        let (shown, host) = (vec![policy], vec![host]);
        let text = policies(&v1::Policies { policies: shown, host, cache_entries, sums });
        assert!(text.contains("PROTECT         4711"), "{text}");
        let last: Vec<&str> = text.lines().rev().take(4).collect();
        assert_eq!(last[0], "ipv6-outbound-spd-flow-cache-entries: 7");
        assert_eq!(last[3], "ipv4-inbound-spd-flow-cache-entries: 7");
        for words in ["PROTECT berlin", "10.2.0.0/16 port 443 8000-8999", "wan", "BYPASS"] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn ports_of_one_netdev_show_its_program_once_and_why_a_port_is_down() {
        let kernel = Some(v1::KernelCounters { received: 4711, ..Default::default() });
        let port = |name: &str, reason: &str| v1::Port {
            name: name.into(),
            netdev: "eth7".into(),
            state: "down".into(),
            state_reason: reason.into(),
            kernel,
            ledger: Some(v1::Ledger { received: 12, host: 12, ..Default::default() }),
            ..Default::default()
        };
        let text = ports(
            &v1::Ports { ports: vec![port("a", "no carrier"), port("b", "")] },
            Columns::Within(100),
        );
        assert_eq!(text.matches("4711").count(), 1, "{text}");
        assert!(text.contains(" a: down: no carrier\n"), "{text}");
    }

    #[test]
    fn ports_with_unfinished_or_wrong_checksums_say_so_and_no_others() {
        let port = |name: &str, completed, bad| v1::Port {
            name: name.into(),
            l4_checksum: Some(v1::L4Checksum { mode: "pass".into(), completed, checked: 60, bad }),
            ..Default::default()
        };
        let list = vec![port("quiet", 0, 0), port("veth", 4711, 0), port("bad", 0, 7)];
        let text = ports(&v1::Ports { ports: list }, Columns::Within(100));
        assert!(text.contains(" veth: completed 4711 unfinished"), "{text}");
        assert!(text.contains(" bad: 7 of 60 sampled packets"), "{text}");
        assert!(text.contains("ethtool -K DEV tx off"), "{text}");
        assert!(!text.contains(" quiet: "), "{text}");
    }

    #[test]
    fn sas_show_what_they_are_and_how_much_of_their_numbers_is_used() {
        let sa = v1::SecurityAssociation {
            suite: "aes-256-cbc-hmac-sha-512".into(),
            backend: "ipsec-mb 1.3.0".into(),
            mode: "transport".into(),
            encapsulation: "udp".into(),
            local: "192.0.2.1".into(),
            local_port: Some(4500),
            remote: "2001:db8::7".into(),
            remote_port: Some(61000),
            extended_sequence_numbers: true,
            sequence_used: 0.7599,
            window_packets: Some(1024),
            ..Default::default()
        };
        let text = security_associations(
            &v1::SecurityAssociations { sas: vec![sa.clone()] },
            Columns::All,
        );
        let narrow =
            security_associations(&v1::SecurityAssociations { sas: vec![sa] }, Columns::Within(80));
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        assert!(narrow.contains("--wide adds: key, backend"), "{narrow}");
        for words in [
            "aes-256-cbc-hmac-sha-512",
            "ipsec-mb 1.3.0",
            "transport in udp",
            "192.0.2.1:4500",
            "[2001:db8::7]:61000",
            "75.9 %",
            "window 1024",
            "yes",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert_eq!([0.0, 1e-9, 1.0].map(hundredths), ["0 %", "<0.1 %", "100.0 %"]);
    }

    #[test]
    fn limits_of_sas_are_shown_beside_their_use_where_there_are_any() {
        let limits = |packets, bytes| v1::SaLimits { packets, bytes, ..Default::default() };
        let lifetime = v1::SaLifetime {
            packets: 4711,
            bytes: 9000,
            seconds: Some(77),
            soft: Some(limits(Some(4000), Some(10_000))),
            hard: Some(limits(Some(5000), None)),
            ended: "seconds".into(),
            ..Default::default()
        };
        let sa = v1::SecurityAssociation {
            spi: "0x00001001".into(),
            lifetime: Some(lifetime),
            ..Default::default()
        };
        let other = v1::SecurityAssociation { spi: "0x00001002".into(), ..Default::default() };
        let answer = v1::SecurityAssociations { sas: vec![sa, other.clone()] };
        let text = security_associations(&answer, Columns::All);
        for words in ["4711 of 5000, soft 4000", "9000 of soft 10000", "77", "seconds"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert_eq!(text.matches("0x00001002").count(), 1, "{text}");
        let narrow = security_associations(&answer, Columns::Within(80));
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        let none = v1::SecurityAssociations { sas: vec![other] };
        assert!(!security_associations(&none, Columns::All).contains("limits"), "no limits");
    }

    #[test]
    fn peers_show_where_they_were_configured_and_where_they_are() {
        let peer = |current: &str, port, moves| v1::Peer {
            remote: "198.51.100.7".into(),
            remote_port: Some(4500),
            current_remote: current.into(),
            current_remote_port: Some(port),
            behind_nat: true,
            moves,
            ..Default::default()
        };
        let shown = |peer| peers(&v1::Peers { peers: vec![peer] }, Columns::All);
        assert!(shown(peer("198.51.100.7", 4500, 0)).contains("as configured, may move"));
        assert!(shown(peer("198.51.100.7", 4500, 0)).contains("never"));
        let heard =
            v1::Peer { last_received_age_ms: Some(65_432), ..peer("198.51.100.7", 4500, 0) };
        assert!(shown(heard).contains("1 min 5 s ago"));
        let narrow = v1::Peer {
            path_mtu: 1380,
            path_mtu_age_ms: Some(65_432),
            ..peer("198.51.100.7", 4500, 0)
        };
        assert!(shown(narrow).contains("1380 (ICMP, 1 min 5 s ago)"));
        let text = shown(peer("203.0.113.9", 61000, 2));
        assert!(text.contains("198.51.100.7:4500"), "{text}");
        assert!(text.contains("203.0.113.9:61000 (moves: 2)"), "{text}");
        let moved = v1::Peer {
            local: "192.0.2.1".into(),
            current_local: "192.0.2.2".into(),
            ..peer("203.0.113.9", 61000, 2)
        };
        assert!(shown(moved).contains("192.0.2.1 (now 192.0.2.2)"));
    }

    #[test]
    fn children_of_ike_have_their_names_and_times_where_there_are_any() {
        let ike = v1::IkeChild {
            connection: "gw-b".into(),
            child: "net".into(),
            reqid: 7,
            established_s: 307,
            rekey_due_s: Some(0),
        };
        let sa = v1::SecurityAssociation { spi: "0x00001001".into(), ..Default::default() };
        let show = |sas: Vec<v1::SecurityAssociation>| {
            let answer = v1::SecurityAssociations { sas };
            security_associations(&answer, Columns::All)
        };
        assert!(!show(vec![sa.clone()]).contains("Children of IKE"));
        let shown =
            show(vec![v1::SecurityAssociation { ike: Some(ike.clone()), ..sa.clone() }, sa]);
        let (_, children) = shown.split_once("Children of IKE").expect(&shown);
        for word in ["0x00001001", "gw-b", "net", "7", "5 min 7 s ago", "now"] {
            assert!(children.contains(word), "no {word} in:\n{shown}");
        }
        assert_eq!(children.matches("0x00001001").count(), 1, "{children}");
        // Without names and without a limit.
        let ike = v1::IkeChild { reqid: 8, ..v1::IkeChild::default() };
        assert_eq!(child(&ike), ["-", "-", "8", "0.0 s ago", "-"]);
        let peer = v1::Peer { name: "b".into(), ike: Some(ike), ..v1::Peer::default() };
        let shown = peers(&v1::Peers { peers: vec![peer] }, Columns::All);
        assert!(shown.contains("Children of IKE"), "{shown}");
    }

    #[test]
    fn durations_read_like_those_of_people() {
        let texts = [4_200, 307_000, 11_000_000, 200_000_000].map(duration);
        assert_eq!(texts, ["4.2 s", "5 min 7 s", "3 h 3 min", "2 d 7 h"]);
    }
}
