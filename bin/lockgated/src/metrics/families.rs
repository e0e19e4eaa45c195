//! Every family of metrics, with its name and help. A help text stands alone: a browser of metrics
//! shows one without its neighbours.

use std::borrow::Cow;
use std::collections::BTreeSet;

use api::v1;
use dataplane::DropReason;

use super::exposition::Families;
use super::{PolicyVolumes, Report};

/// A level of a card.
type Level = fn(&v1::Card) -> u64;

impl Report {
    /// Returns all families.
    pub(super) fn families(&self) -> Families<'_> {
        let mut families = Families::default();
        let into = &mut families;
        self.add_process(into);
        self.add_status(into);
        self.add_decisions(into);
        self.add_cache(into);
        self.add_connections(into);
        self.add_endpoints(into);
        self.add_cards(into);
        self.add_ports(into);
        self.add_ledgers(into);
        self.add_checksums(into);
        self.add_queues(into);
        self.add_kernel(into);
        self.add_peers(into);
        self.add_sas(into);
        self.add_policies(into);
        self.add_workers(into);
        families
    }

    fn add_process(&self, into: &mut Families<'_>) {
        let process = &self.process;
        let help = "User and system CPU time of the daemon, all threads, in seconds";
        into.process_count("cpu_seconds", help, process.cpu_seconds);
        if let Some(start) = process.start_time_seconds {
            let help = "Start time of the daemon, in seconds since 1970";
            into.process_level("start_time_seconds", help, start);
        }
        if let Some(bytes) = process.resident_bytes {
            let help = "Resident memory of the daemon, flow caches and frames included";
            into.process_level("resident_memory_bytes", help, bytes);
        }
        if let Some(fds) = process.open_fds {
            into.process_level("open_fds", "File descriptors that the daemon has open", fds);
        }
        if let Some(fds) = process.max_fds {
            into.process_level("max_fds", "File descriptors that the daemon may have open", fds);
        }
    }

    fn add_status<'a>(&'a self, into: &mut Families<'a>) {
        let v1::Status { node, version, guard, .. } = &self.status;
        let labels = [("node", node.as_str().into()), ("version", version.as_str().into())];
        into.info("build", "Name of the node and version of the daemon", [labels]);
        let uptime = self.status.uptime_ms as f64 / 1000.0;
        into.level("uptime_seconds", "Time since the daemon started, in seconds", uptime);
        let help = "Revision of the running configuration";
        into.level("revision", help, self.status.revision);
        let help = "Generation of the running policies; each change of a policy raises it";
        into.level("generation", help, self.status.generation);
        let help = "1 while the nftables guard is installed as Lockgate wrote it";
        into.level("guard_intact", help, guard.starts_with("intact"));
    }

    fn add_decisions<'a>(&'a self, into: &mut Families<'a>) {
        let counters = &self.counters;
        let tiers = counters.tiers.unwrap_or_default();
        let tiers = [
            ("device", tiers.device),
            ("kernel", tiers.kernel),
            ("cache", tiers.cache),
            ("classifier", tiers.classifier),
        ];
        let tiers = tiers.map(|(tier, packets)| ([("tier", tier.into())], packets));
        into.counter("tier_packets", "Packets by the tier that decided them", tiers);
        let dropped = |reason: &DropReason| {
            let drop = counters.drops.iter().find(|drop| drop.name == reason.name());
            ([("reason", reason.name().into())], drop.map_or(0, |drop| drop.count))
        };
        let help = "Packets dropped, by reason; lockgate_drop_reason_info explains each reason";
        into.counter("dropped_packets", help, DropReason::ALL.iter().map(dropped));
        let info = |reason: &DropReason| {
            [("reason", reason.name().into()), ("help", reason.help().into())]
        };
        let help = "Meaning of each drop reason, and what to do";
        into.info("drop_reason", help, DropReason::ALL.iter().map(info));
        into.level(
            "ledger_imbalance_packets",
            "Packets that no ledger accounts for; anything but 0 on an idle gateway is a bug",
            counters.ledger_imbalance,
        );
        let help = "Packets waiting for the link address of their next hop, all ports";
        into.level("held_packets", help, counters.held);
        let help = "ICMP messages not sent because of the rate limit";
        into.count("icmp_limited", help, counters.icmp_limited);
        let help = "ICMP messages not sent because no frame was free, or none so large";
        into.count("icmp_no_frame", help, counters.icmp_no_frame);
        let help = "ICMP errors from outside that lowered the path MTU to a peer";
        into.count("path_mtu_lowered", help, counters.path_mtu_lowered);
        let help = "ICMP errors from outside that tell of a path MTU and changed none: not \
                    believed, or nothing new";
        into.count("path_mtu_ignored", help, counters.path_mtu_ignored);
        let help = "NAT keepalives sent for tunnels that sent nothing else";
        into.count("keepalives", help, counters.keepalives);
        if let Some(direct) = &counters.direct_paths {
            let said = [("tell", direct.told), ("end", direct.ended)]
                .map(|(what, count)| ([("kind", what.into())], count));
            let help =
                "Messages to hosts about direct paths: those that tell one, and that end one";
            into.counter("direct_path_messages", help, said);
            let help = "Flows that no host was told of, because a table or a queue was full";
            into.count("direct_path_refused_flows", help, direct.refused);
        }
        let help = "Packets that the fast path sent or dropped; the general walk did the rest";
        into.count("fast_path_packets", help, counters.fast_path);
        let events = self.events.iter().map(|(kind, count)| ([("kind", (*kind).into())], *count));
        into.counter("events", "Events by kind; `lockgate events` shows them", events);
        let help = "Times the daemon read the kernel's addresses, routes and neighbours anew";
        into.count("netlink_resyncs", help, counters.netlink_resyncs);
    }

    fn add_cache<'a>(&'a self, into: &mut Families<'a>) {
        let v1::CacheCounters { hits, misses, inserts, stale, evictions, .. } =
            self.cache.counters.unwrap_or_default();
        let counters = [
            ("cache_hits", "Packets that the flow cache answered", hits),
            ("cache_misses", "Packets whose flow had no valid entry in the flow cache", misses),
            ("cache_inserts", "Entries written into the flow cache", inserts),
            (
                "cache_stale",
                "Entries written into the flow cache over one of an earlier generation",
                stale,
            ),
            (
                "cache_evictions",
                "Valid entries of the flow cache that another flow's entry replaced",
                evictions,
            ),
        ];
        for (name, help, count) in counters {
            into.count(name, help, count);
        }
        let help = "Searches of the classifier; equal flows of a batch are searched once";
        into.count("full_lookups", help, self.counters.full_lookups);
        let entries = self.cache.entries.iter().map(|entry| {
            let labels = [
                ("family", entry.family.as_str().into()),
                ("direction", entry.direction.as_str().into()),
            ];
            (labels, entry.entries)
        });
        into.gauge("cache_entries", "Valid entries of the flow cache", entries);
        let bytes = self.cache.size.unwrap_or_default().bytes;
        into.level("cache_bytes", "Memory of the flow caches of all workers", bytes);
        let bytes = self.cache.max_size.unwrap_or_default().bytes;
        let help = "Memory that the flow caches of all workers may grow to";
        into.level("cache_max_bytes", help, bytes);
    }

    fn add_cards<'a>(&'a self, into: &mut Families<'a>) {
        let tagged = self.counters.tiers.unwrap_or_default().device;
        let help = "Packets that tags of network cards decided";
        into.count("tagged_packets", help, tagged);
        let audited = || self.counters.audited.iter();
        let of = |audited: &'a v1::Audited| [("tier", audited.tier.as_str().into())];
        let counts = audited().map(|audited| (of(audited), audited.packets));
        let help = "Packets that were judged again, by the tier that had decided them";
        into.counter("audited_packets", help, counts);
        let counts = audited().map(|audited| (of(audited), audited.wrong));
        let help = "Audited packets of which the rules say otherwise than the tier did";
        into.counter("audit_failed_packets", help, counts);
        let levels: [(&str, &str, Level); 4] = [
            ("card_serves", "1 while the network card serves", |card| {
                u64::from(card.state == "serves")
            }),
            ("card_entries", "Entries that the network card has", |card| card.entries),
            ("card_entries_max", "Entries that the network card has room for", |card| {
                card.max_entries
            }),
            ("card_rules", "Rules in the network card whose tags count", |card| card.rules),
        ];
        for (name, help, level) in levels {
            let cards = self.cards.iter().map(|card| {
                let labels =
                    [("card", card.name.as_str().into()), ("kind", card.kind.as_str().into())];
                (labels, level(card))
            });
            into.gauge(name, help, cards);
        }
    }

    fn add_endpoints<'a>(&'a self, into: &mut Families<'a>) {
        let sums = &self.endpoints;
        into.level("endpoints", "Endpoints of virtual networks", sums.endpoints);
        into.level("endpoints_max", "Endpoints that there is room for", sums.max);
        let help = "Deleted endpoints whose revision is remembered";
        into.level("endpoints_deleted", help, sums.tombstones);
        let Some(tier) = &self.counters.kernel_tier else { return };
        into.level("kernel_endpoints", "Endpoints in the kernel's table", tier.endpoints);
        into.level("kernel_endpoints_max", "Endpoints that the kernel has room for", tier.max);
        let help = "1 while the kernel answers packets of virtual networks";
        into.level("kernel_tier_open", help, u64::from(tier.closed.is_empty()));
        let moves = [
            ("promoted", tier.promoted),
            ("promoted_busy", tier.promoted_busy),
            ("deferred", tier.deferred),
            ("evicted", tier.evicted),
            ("full", tier.full),
            ("refused", tier.refused),
            ("skipped", tier.skipped),
        ];
        let moves = moves.map(|(what, count)| ([("outcome", what.into())], count));
        let help = "Endpoints that went over to the kernel's table, left it or could not";
        into.counter("kernel_endpoint_moves", help, moves);
        let help = "Verdicts of groups on flows in the kernel's table";
        into.level("kernel_verdicts", help, tier.verdicts);
        let help = "Verdicts in the kernel's table that hold while a connection lasts";
        into.level("kernel_verdicts_of_connections", help, tier.verdicts_of_connections);
        let help = "Verdicts that the kernel has room for";
        into.level("kernel_verdicts_max", help, tier.max_verdicts);
        let moves = [
            ("placed", tier.verdicts_placed),
            ("evicted", tier.verdicts_evicted),
            ("void", tier.verdicts_void),
            ("ended", tier.verdicts_ended),
            ("full", tier.verdicts_full),
        ];
        let moves = moves.map(|(what, count)| ([("outcome", what.into())], count));
        let help = "Verdicts on flows that went over to the kernel's table, left it or could not";
        into.counter("kernel_verdict_moves", help, moves);
        let samples = [("outdated", tier.samples_outdated), ("lost", tier.samples_lost)];
        let samples = samples.map(|(why, count)| ([("reason", why.into())], count));
        let help = "Samples of the kernel's answers that the audit did not judge: the rules had \
                    changed since, or there was no room for them";
        into.counter("kernel_unjudged_samples", help, samples);
        let misses = tier.misses.iter();
        let misses = misses.map(|miss| ([("reason", miss.reason.as_str().into())], miss.count));
        let help = "Overlay packets that the kernel tier left to the workers, by reason";
        into.counter("kernel_misses_packets", help, misses);
    }

    fn add_connections<'a>(&'a self, into: &mut Families<'a>) {
        let table = &self.connections;
        into.level("connections", "Connections that reflect rules let begin", table.live);
        let help = "Connections that only one end has shown to want";
        into.level("connections_half_open", help, table.half_open);
        let help = "Places of the table of connections; a connection of IPv6 takes two";
        into.level("connections_max", help, table.max);
        let help = "Places of the table of connections that are taken";
        into.level("connections_taken", help, table.taken);
        for (name, help, count) in [
            ("connections_made", "Connections that began", table.made),
            ("connections_expired", "Connections that ended by their time-out", table.expired),
            (
                "connections_replaced",
                "Half-open or closed connections that gave way to others",
                table.replaced,
            ),
        ] {
            into.count(name, help, count);
        }
        let refused = table.refused.iter();
        let refused = refused.map(|of| ([("bound", of.bound.as_str().into())], of.count));
        let help = "Connections that were refused, by the bound in [connections] that did it";
        into.counter("connections_refused", help, refused);
    }

    fn add_ports<'a>(&'a self, into: &mut Families<'a>) {
        let info = self.ports.iter().map(|port| {
            [
                ("port", port.name.as_str().into()),
                ("netdev", port.netdev.as_str().into()),
                ("side", port.side.as_str().into()),
                ("state", port.state.as_str().into()),
                ("xdp_mode", port.xdp_mode.as_str().into()),
                ("copy_mode", port.copy_mode.as_str().into()),
            ]
        });
        into.info("port", "Netdev, side and XDP mode of each port", info);
        let port = |port: &'a v1::Port| [("port", port.name.as_str().into())];
        let up = self.ports.iter().map(|p| (port(p), p.state == "up"));
        into.gauge("port_up", "1 while the port is attached and its link is up", up);
        let packets = self.ports.iter().map(|p| (port(p), p.tx_packets));
        let help = "Packets that left the gateway by the port";
        into.counter("port_transmitted_packets", help, packets);
        let bytes = self.ports.iter().map(|p| (port(p), p.tx_bytes));
        let help = "Bytes that left the gateway by the port, link headers counted";
        into.counter("port_transmitted_bytes", help, bytes);
    }

    fn add_ledgers<'a>(&'a self, into: &mut Families<'a>) {
        let port = |port: &'a v1::Port| [("port", port.name.as_str().into())];
        type Line = fn(&v1::Ledger) -> u64;
        let lines: [(&str, &str, Line); 6] = [
            ("port_received_packets", "Packets that workers received by the port", |l| l.received),
            (
                "port_made_packets",
                "Packets made because of packets of the port: ICMP errors and fragments",
                |l| l.made,
            ),
            (
                "port_sent_packets",
                "Packets received by the port that left the gateway by any port",
                |l| l.sent,
            ),
            ("port_dropped_packets", "Packets received by the port and dropped", |l| l.dropped),
            (
                "port_consumed_packets",
                "Packets received by the port and replaced by their fragments",
                |l| l.consumed,
            ),
            (
                "port_host_packets",
                "Packets received by the port and passed to this machine's own stack",
                |l| l.host,
            ),
        ];
        let ledger = |p: &v1::Port| p.ledger.unwrap_or_default();
        for (name, help, line) in lines {
            into.counter(name, help, self.ports.iter().map(|p| (port(p), line(&ledger(p)))));
        }
        let held = self.ports.iter().map(|p| (port(p), ledger(p).held));
        let help = "Packets of the port waiting for the link address of their next hop";
        into.gauge("port_held_packets", help, held);
        let imbalance = self.ports.iter().map(|p| (port(p), ledger(p).imbalance));
        let help = "Ledger of the port: received + made - sent - dropped - consumed - host - held";
        into.gauge("port_ledger_imbalance_packets", help, imbalance);
    }

    fn add_checksums<'a>(&'a self, into: &mut Families<'a>) {
        let port = |port: &'a v1::Port| [("port", port.name.as_str().into())];
        type Count = fn(&v1::L4Checksum) -> u64;
        let counts: [(&str, &str, Count); 3] = [
            (
                "port_l4_checksum_completed_packets",
                "Packets received by the port whose unfinished TCP or UDP checksum was completed",
                |c| c.completed,
            ),
            (
                "port_l4_checksum_checked_packets",
                "Packets received by the port whose TCP or UDP checksum was checked: a sample",
                |c| c.checked,
            ),
            (
                "port_l4_checksum_bad_packets",
                "Packets of the sample with a wrong TCP or UDP checksum, which receivers drop",
                |c| c.bad,
            ),
        ];
        for (name, help, count) in counts {
            let of = |p: &'a v1::Port| Some((port(p), count(p.l4_checksum.as_ref()?)));
            into.counter(name, help, self.ports.iter().filter_map(of));
        }
    }

    fn add_queues<'a>(&'a self, into: &mut Families<'a>) {
        let all = || self.ports.iter().flat_map(|p| p.queues.iter().map(move |queue| (p, queue)));
        let labels = |port: &'a v1::Port, queue: &v1::Queue, key, word: Cow<'a, str>| {
            [
                ("port", port.name.as_str().into()),
                ("queue", queue.queue.to_string().into()),
                (key, word),
            ]
        };
        let packets = all().flat_map(|(port, queue)| {
            [("receive", queue.rx_packets), ("transmit", queue.tx_packets)]
                .map(|(word, count)| (labels(port, queue, "direction", word.into()), count))
        });
        let help = "Frames received and sent through the AF_XDP socket of a receive queue";
        into.counter("queue_packets", help, packets);
        let dropped = all().flat_map(|(port, queue)| {
            let reasons = [
                ("rx_dropped", queue.rx_dropped),
                ("queue_full", queue.queue_full),
                ("fill_empty", queue.fill_empty),
                ("tx_invalid", queue.tx_invalid),
                ("tx_full", queue.tx_full),
            ];
            reasons.map(|(word, count)| (labels(port, queue, "reason", word.into()), count))
        });
        let help = "Frames dropped at the AF_XDP socket of a receive queue, by reason";
        into.counter("queue_dropped_packets", help, dropped);
        let bound = all().map(|(port, queue)| {
            let labels = labels(port, queue, "worker", queue.worker.to_string().into());
            (labels, queue.socket)
        });
        let help = "1 while the AF_XDP socket of a receive queue is bound";
        into.gauge("queue_bound", help, bound);
    }

    /// Ports of one netdev share its program: each netdev once.
    fn add_kernel<'a>(&'a self, into: &mut Families<'a>) {
        let mut seen = BTreeSet::new();
        let netdevs: Vec<(&str, v1::KernelCounters)> = self
            .ports
            .iter()
            .filter_map(|port| Some((port.netdev.as_str(), port.kernel?)))
            .filter(|(netdev, _)| seen.insert(*netdev))
            .collect();
        let of = |netdev: &'a str| [("netdev", netdev.into())];
        let received = netdevs.iter().map(|(netdev, k)| (of(netdev), k.received));
        let help = "Packets that the XDP program of the netdev received";
        into.counter("kernel_received_packets", help, received);
        let decided = netdevs.iter().flat_map(|(netdev, k)| {
            let words = [
                ("to_worker", k.to_worker),
                ("passed_not_to_us", k.passed_not_to_us),
                ("passed_arp_nd", k.passed_arp_nd),
                ("passed_not_ip", k.passed_not_ip),
                ("passed_to_host", k.passed_to_host),
                ("passed_allow_host", k.passed_allow_host),
                ("passed_carried", k.passed_carried),
                ("no_socket", k.no_socket),
                ("mark_failed", k.mark_failed),
                ("no_card_header", k.no_card_header),
                ("transmitted", k.transmitted),
                ("arp_answered", k.arp_answered),
                ("verdict_dropped", k.verdict_dropped),
            ];
            words.map(|(w, n)| ([("netdev", (*netdev).into()), ("decision", w.into())], n))
        });
        let help = "Packets by decision of the XDP program: to_worker was redirected, passed_* \
                    went to the kernel's own stack, no_socket, mark_failed and no_card_header \
                    were dropped, transmitted and arp_answered are of virtual networks and were \
                    sent, verdict_dropped are of virtual networks whose groups refuse their flow";
        into.counter("kernel_packets", help, decided);
        let full = netdevs.iter().map(|(netdev, k)| (of(netdev), k.ring_full));
        let help = "Packets redirected to a worker and dropped because its receive ring was full";
        into.counter("kernel_ring_full_packets", help, full);
        let rows = netdevs.iter().map(|(netdev, k)| (of(netdev), k.imbalance));
        let help = "Packets redirected to a worker that its sockets do not account for";
        into.gauge("kernel_imbalance_packets", help, rows);
    }

    /// Adds the families labelled with a peer's name: their series go on when the peer's keys
    /// change.
    fn add_peers<'a>(&'a self, into: &mut Families<'a>) {
        let peer = |peer: &'a v1::Peer| [("peer", peer.name.as_str().into())];
        let sealed = |p: &v1::Peer| p.sealed.unwrap_or_default();
        let opened = |p: &v1::Peer| p.opened.unwrap_or_default();
        let rows = self.peers.iter().map(|p| (peer(p), sealed(p).packets));
        let help = "Inner packets sealed for the peer, over all of its SAs and keys";
        into.counter("peer_sent_packets", help, rows);
        let rows = self.peers.iter().map(|p| (peer(p), sealed(p).bytes));
        let help = "Bytes of the inner packets sealed for the peer";
        into.counter("peer_sent_bytes", help, rows);
        let rows = self.peers.iter().map(|p| (peer(p), opened(p).packets));
        let help = "Inner packets from the peer that were authentic, over all of its SAs and keys";
        into.counter("peer_received_packets", help, rows);
        let rows = self.peers.iter().map(|p| (peer(p), opened(p).bytes));
        let help = "Bytes of the inner packets from the peer that were authentic";
        into.counter("peer_received_bytes", help, rows);
        let received = self.peers.iter().filter_map(|p| {
            let time = humantime::parse_rfc3339(p.last_received.as_ref()?).ok()?;
            let since = time.duration_since(std::time::SystemTime::UNIX_EPOCH).ok()?;
            Some((peer(p), since.as_secs_f64()))
        });
        let help = "Time of the last authentic packet from the peer, in seconds since 1970, to a \
                    second; absent before the first";
        into.gauge("peer_last_received_timestamp_seconds", help, received);
        let silent = self.peers.iter().map(|p| (peer(p), p.silent));
        let help = "1 while packets leave for the peer and nothing authentic comes back";
        into.gauge("peer_silent", help, silent);
        let routed = self.peers.iter().filter(|p| p.path_mtu > 0);
        let mtu = routed.map(|p| (peer(p), p.path_mtu));
        let help = "Largest outer packet that the path to the peer carries whole: the MTU of the \
                    port, or less if ICMP told so; absent without a route";
        into.gauge("peer_path_mtu_bytes", help, mtu);
        let moves = self.peers.iter().map(|p| (peer(p), p.moves));
        let help = "Times the daemon followed a peer behind a NAT to another address or port";
        into.counter("peer_moves", help, moves);
    }

    fn add_sas<'a>(&'a self, into: &mut Families<'a>) {
        let labels = |sa: &'a v1::SecurityAssociation| {
            [
                ("peer", sa.peer.as_str().into()),
                ("spi", sa.spi.as_str().into()),
                ("direction", sa.direction.as_str().into()),
            ]
        };
        let ok = self.sas.iter().map(|sa| (labels(sa), sa.state == "ok"));
        let help = "1 while the SA can seal or open; `lockgate show sa` says why it cannot";
        into.gauge("sa_ok", help, ok);
        let packets = self.sas.iter().map(|sa| (labels(sa), sa.packets));
        let help = "Inner packets that the SA sealed or opened; a new key is a new series";
        into.counter("sa_packets", help, packets);
        let bytes = self.sas.iter().map(|sa| (labels(sa), sa.bytes));
        let help = "Bytes of the inner packets that the SA sealed or opened";
        into.counter("sa_bytes", help, bytes);
        let sequence = self.sas.iter().map(|sa| (labels(sa), sa.sequence));
        let help = "Outbound SA: last sequence number used; inbound SA: highest number received";
        into.gauge("sa_sequence", help, sequence);
        let outbound = self.sas.iter().filter_map(|sa| Some((labels(sa), sa.reserved_to?)));
        let help = "Outbound SA: sequence number up to which numbers are reserved on disk";
        into.gauge("sa_reserved_sequence", help, outbound);
        self.add_sa_limits(into);
    }

    fn add_sa_limits<'a>(&'a self, into: &mut Families<'a>) {
        let limited = || self.sas.iter().filter_map(|sa| Some((sa, sa.lifetime.as_ref()?)));
        let labels = |sa: &'a v1::SecurityAssociation, limit: &'static str| {
            [
                ("peer", sa.peer.as_str().into()),
                ("spi", sa.spi.as_str().into()),
                ("direction", sa.direction.as_str().into()),
                ("limit", limit.into()),
            ]
        };
        let used = limited().flat_map(|(sa, lifetime)| {
            [
                (labels(sa, "packets"), lifetime.packets),
                (labels(sa, "bytes"), lifetime.bytes),
                (labels(sa, "seconds"), lifetime.seconds.unwrap_or(0)),
                (labels(sa, "idle_seconds"), lifetime.idle_seconds.unwrap_or(0)),
            ]
        });
        let help = "Use of an SA with limits, as they count it: packets, bytes that the cipher \
                    processed, seconds since the first and the last use";
        into.gauge("sa_limit_used", help, used);
        for (name, help, of) in [
            (
                "sa_soft_limit",
                "Soft limit of the SA, at which an event asks for new keys",
                (|lifetime| lifetime.soft.as_ref()) as fn(&v1::SaLifetime) -> Option<&v1::SaLimits>,
            ),
            ("sa_hard_limit", "Hard limit of the SA, at which it ends", |lifetime| {
                lifetime.hard.as_ref()
            }),
        ] {
            let limits = limited().flat_map(move |(sa, lifetime)| {
                let limits = of(lifetime).copied().unwrap_or_default();
                let rows = [
                    ("packets", limits.packets),
                    ("bytes", limits.bytes),
                    ("seconds", limits.seconds),
                    ("idle_seconds", limits.idle_seconds),
                ];
                rows.into_iter().filter_map(move |(limit, most)| Some((labels(sa, limit), most?)))
            });
            into.gauge(name, help, limits);
        }
    }

    fn add_policies<'a>(&'a self, into: &mut Families<'a>) {
        let help = "Running policies; the first 10000 have counters here";
        into.level("policies", help, self.policy_count as u64);
        let labels = |policy: &'a PolicyVolumes, direction: &'static str| {
            [("policy", policy.name.as_str().into()), ("direction", direction.into())]
        };
        let both = |of: fn(&v1::Volume) -> u64| {
            self.policies.iter().flat_map(move |policy| {
                [
                    (labels(policy, "outbound"), of(&policy.outbound)),
                    (labels(policy, "inbound"), of(&policy.inbound)),
                ]
            })
        };
        let help = "Packets that the policy decided";
        into.counter("policy_packets", help, both(|volume| volume.packets));
        let help = "Bytes of the packets that the policy decided";
        into.counter("policy_bytes", help, both(|volume| volume.bytes));
        self.add_groups(into);
        let labels = |action: &'static str| [("action", action.into())];
        let packets = self.actions.iter().map(|(action, sum)| (labels(action), sum.packets));
        let help = "Packets decided by all policies and group rules with this action, removed ones \
                    included; a packet that several of them decided counts with each";
        into.counter("decided_packets", help, packets);
        let bytes = self.actions.iter().map(|(action, sum)| (labels(action), sum.bytes));
        let help = "Bytes of the packets decided by all policies and group rules with this action";
        into.counter("decided_bytes", help, bytes);
    }

    fn add_groups<'a>(&'a self, into: &mut Families<'a>) {
        let rules = || {
            self.groups.groups.iter().flat_map(|group| {
                let label = |rule: &'a v1::GroupRule| {
                    [("group", group.name.as_str().into()), ("rule", rule.name.as_str().into())]
                };
                let decided = |rule: &v1::GroupRule| rule.decided.unwrap_or_default();
                group.rules.iter().map(move |rule| (label(rule), decided(rule)))
            })
        };
        let help = "Packets that the rule of a security group decided; in audit mode a deny rule \
                    counts packets that pass";
        let packets = rules().map(|(labels, decided)| (labels, decided.packets));
        into.counter("group_rule_packets", help, packets);
        let help = "Bytes of the packets that the rule of a security group decided";
        let bytes = rules().map(|(labels, decided)| (labels, decided.bytes));
        into.counter("group_rule_bytes", help, bytes);
        let ports = self.groups.ports.iter().map(|port| {
            let labels = [("port", port.port.as_str().into()), ("side", port.side.as_str().into())];
            (labels, port.decided.unwrap_or_default().packets)
        });
        let help = "Packets that no rule of the port's security groups matched: denied, or passed \
                    if all the groups are in audit mode";
        into.counter("group_no_match_packets", help, ports);
    }

    fn add_workers<'a>(&'a self, into: &mut Families<'a>) {
        let workers = &self.counters.workers;
        let worker = |worker: &v1::Worker| [("worker", worker.worker.to_string().into())];
        let turns = workers.iter().map(|w| (worker(w), w.turns));
        into.counter("worker_turns", "Iterations of the worker's loop", turns);
        let sleeps = workers.iter().map(|w| (worker(w), w.sleeps));
        into.counter("worker_sleeps", "Times the worker slept", sleeps);
        let handed = workers.iter().map(|w| (worker(w), w.handed_over));
        let help = "Packets that the worker received and handed to the worker that owns their SA";
        into.counter("worker_handed_over_packets", help, handed);
        let taken = workers.iter().map(|w| (worker(w), w.taken_over));
        let help = "Packets that other workers received and this worker processed";
        into.counter("worker_taken_over_packets", help, taken);
        let cpu = workers.iter().map(|w| (worker(w), w.cpu_ms as f64 / 1000.0));
        into.counter("worker_cpu_seconds", "CPU time of the worker, in seconds", cpu);
        let snapshots = workers.iter().map(|w| (worker(w), w.snapshots));
        let help = "Snapshots that the worker went over to: changes of the configuration, of SAs, \
                    routes and neighbours";
        into.counter("worker_snapshots", help, snapshots);
        let spent = workers.iter().map(|w| (worker(w), w.snapshot_ns as f64 / 1e9));
        let help = "Time that the worker took to go over to snapshots, in which it processed no \
                    packet, in seconds";
        into.counter("worker_snapshot_seconds", help, spent);
        let longest = workers.iter().map(|w| (worker(w), w.snapshot_longest_ns as f64 / 1e9));
        let help = "Longest time that the worker took to go over to a snapshot since it began, in \
                    seconds";
        into.gauge("worker_snapshot_longest_seconds", help, longest);
        let census = |w: &v1::Worker| w.frames.unwrap_or_default();
        let frames = workers.iter().flat_map(|w| {
            let frames = census(w);
            let places = [
                ("free", frames.free),
                ("fill", frames.fill),
                ("rx", frames.rx),
                ("tx", frames.tx),
                ("completion", frames.completion),
                ("held", frames.held),
            ];
            places.map(|(place, count)| {
                ([("worker", w.worker.to_string().into()), ("place", place.into())], count)
            })
        });
        into.gauge("frames", "Frames of the worker by place", frames);
        let sizes = workers.iter().map(|w| (worker(w), w.frame_bytes));
        into.gauge("frame_bytes", "Bytes of a frame of the worker", sizes);
        let missing = workers.iter().map(|w| (worker(w), census(w).missing));
        let help = "Frames of the worker that are in no place; anything but 0 is a bug";
        into.gauge("frames_missing", help, missing);
    }
}
