//! A second opinion on security groups: nftables judges the same packets by the same rules.
//!
//! ```text
//!  source ─── filter: nftables, forwards ─── sink: what arrives
//! ```
//! Random lists of stateless rules are written for Lockgate and for nftables. All lists are loaded
//! into one nftables; the link address of the sender says which list judges a frame. The same
//! frames go through `lockgate replay`, list by list. Exactly the same packets must come out.
//! `NET_SEED` repeats a run.

mod rules;
mod traffic;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use io::{CaptureReader, CaptureWriter, LinkType, Resolution};
use net::Random;
use netlab::inject::inject;
use netlab::laboratory::connect;
use netlab::process::{self, succeed_with_input};
use netlab::{Capture, LabError, Laboratory, Namespace, Programs, Scope};

use rules::{Rule, a_list};
use traffic::{a_packet, number_of};

/// Lists of rules, and packets for each.
const LISTS: usize = 40;
const PACKETS: usize = 300;
/// Of all packets at least this part passes, and this part is dropped: fewer prove too little.
const LEAST_PERCENT: usize = 15;
const LIMIT: Duration = Duration::from_secs(60);

const FILTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const FILTER_OUT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Lockgate in the place of the filter.
const GATEWAY: &str = r#"
[node]
name = "filter"

[port.in]
netdev = "in"
side = "protected"
mac = "02:00:00:00:00:01"
addresses = ["192.0.2.1/30", "2001:db9:1::1/64"]
groups_in = ["g"]

[port.out]
netdev = "out"
side = "protected"
mac = "02:00:00:00:00:02"
addresses = ["192.0.2.5/30", "2001:db9:2::1/64"]

[[route]]
to = "10.0.0.0/8"
via = "192.0.2.6"

[[route]]
to = "2001:db8::/32"
via = "2001:db9:2::2"

[[neighbour]]
port = "out"
address = "192.0.2.6"
mac = "02:00:00:00:00:03"

[[neighbour]]
port = "out"
address = "2001:db9:2::2"
mac = "02:00:00:00:00:03"

[group.g]
"#;

/// A list of rules with its frames.
struct Case {
    rules: Vec<Rule>,
    frames: Vec<Vec<u8>>,
}

struct Network {
    source: Namespace,
    filter: Namespace,
    sink: Namespace,
    laboratory: Laboratory,
}

impl Network {
    fn build() -> Result<Network, LabError> {
        let laboratory = Laboratory::new()?;
        let [source, filter, sink] =
            ["source", "filter", "sink"].map(|role| laboratory.namespace(role));
        let (source, filter, sink) = (source?, filter?, sink?);
        connect((&source, "out"), (&filter, "in"), 1)?;
        connect((&filter, "out"), (&sink, "in"), 1)?;
        for key in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            filter.set(&format!("net/{key}"), "1")?;
        }
        for conf in ["all", "in"] {
            filter.set(&format!("net/ipv4/conf/{conf}/rp_filter"), "0")?;
        }
        source.ip("link set out up")?;
        sink.ip("link set in address 02:00:00:00:00:03 up")?;
        filter.ip("link set in address 02:00:00:00:00:01 up
             link set out address 02:00:00:00:00:02 up
             addr add 192.0.2.1/30 dev in
             addr add 192.0.2.5/30 dev out
             addr add 2001:db9:1::1/64 dev in nodad
             addr add 2001:db9:2::1/64 dev out nodad
             neigh add 192.0.2.6 lladdr 02:00:00:00:00:03 dev out
             neigh add 2001:db9:2::2 lladdr 02:00:00:00:00:03 dev out
             route add 10.0.0.0/8 via 192.0.2.6
             route add 2001:db8::/32 via 2001:db9:2::2")?;
        Ok(Network { source, filter, sink, laboratory })
    }

    /// Numbers of the packets that nftables lets pass.
    fn passed(&self, cases: &[Case]) -> Result<BTreeSet<u32>, LabError> {
        let mut nft = self.filter.command("nft");
        nft.args(["-f", "-"]);
        succeed_with_input(nft, &nftables(cases), LIMIT)?;
        let place = (self.laboratory.directory(), "sink");
        let capture = Capture::start(&self.sink, "in", Scope::Whole, place)?;
        let frames: Vec<_> = cases.iter().flat_map(|case| case.frames.clone()).collect();
        inject(&self.source, "out", &frames)?;
        Ok(numbers(&capture.stop()?))
    }
}

/// The link address that says by which list nftables judges.
fn sender(list: usize) -> [u8; 6] {
    [2, 0, 0, 0, 1, list as u8]
}

/// All lists as one nftables ruleset.
fn nftables(cases: &[Case]) -> String {
    let (mut sets, mut chains, mut jumps) = (String::new(), String::new(), String::new());
    for (list, Case { rules, .. }) in cases.iter().enumerate() {
        let named = |(place, rule): (usize, &Rule)| {
            rule.write_nftables(&format!("s{list}r{place}"), &mut sets)
        };
        let lines: Vec<String> = rules.iter().enumerate().flat_map(named).collect();
        chains += &format!("chain list{list} {{\n{}\ndrop\n}}\n", lines.join("\n"));
        let from = sender(list).map(|byte| format!("{byte:02x}")).join(":");
        jumps += &format!("ether saddr {from} jump list{list}\n");
    }
    let hook = "type filter hook forward priority 0; policy drop;";
    format!("table inet lists {{\n{sets}{chains}chain forward {{\n{hook}\n{jumps}}}\n}}\n")
}

/// Numbers of the packets that `lockgate replay` lets pass, with one list.
fn replayed(directory: &Path, list: usize, case: &Case) -> BTreeSet<u32> {
    let (mut sets, mut text) = (String::new(), String::new());
    for (place, rule) in case.rules.iter().enumerate() {
        text += &rule.write_lockgate(&format!("r{place}"), &mut sets);
    }
    let file = |name: &str| directory.join(format!("{list}.{name}"));
    let [config, sent, left] = ["toml", "sent.pcap", "left.pcap"].map(file);
    std::fs::write(&config, format!("{GATEWAY}{sets}{text}")).unwrap();
    let mut writer =
        CaptureWriter::create(&sent, LinkType::Ethernet, Resolution::Nanosecond).unwrap();
    for (place, frame) in case.frames.iter().enumerate() {
        writer.write(place as u64 * 1000, frame).unwrap();
    }
    writer.finish().unwrap();
    let mut command = std::process::Command::new(Programs::find().unwrap().lockgate);
    command.args(["replay", "--config"]).args([config, sent, left.clone()]);
    process::succeed(command, LIMIT).unwrap();
    if left.exists() { numbers(&left) } else { BTreeSet::new() }
}

/// The numbers of the packets that the filter sent.
fn numbers(file: &Path) -> BTreeSet<u32> {
    let mut reader = CaptureReader::open(file).unwrap();
    let mut numbers = BTreeSet::new();
    while let Some(packet) = reader.peek().unwrap() {
        // What the kernel says by itself, it says to groups.
        let is_to_a_group = packet.bytes[0] & 1 != 0;
        if packet.bytes[6..12] == FILTER_OUT_MAC && !is_to_a_group {
            numbers.insert(number_of(packet.bytes));
        }
        reader.skip();
    }
    numbers
}

fn cases(random: &mut Random) -> Vec<Case> {
    let mut number = 0;
    let mut a_case = |list| {
        let rules = a_list(random);
        let frames = (0..PACKETS).map(|_| {
            number += 1;
            a_packet(random, &rules, number).frame(FILTER_MAC, sender(list), None)
        });
        let frames = frames.collect();
        Case { rules, frames }
    };
    (0..LISTS).map(&mut a_case).collect()
}

#[test]
fn nftables_lets_the_same_packets_pass() {
    let found = Network::build().and_then(|network| Ok((network, Programs::find()?)));
    let network = match found {
        Ok((network, _)) => network,
        Err(error @ (LabError::NotRoot | LabError::Missing(_) | LabError::NotBuilt { .. })) => {
            return println!("SKIPPED: nftables: {error}");
        }
        Err(error) => panic!("{error}"),
    };
    let cases = cases(&mut Random::from_environment());
    let by_nftables = network.passed(&cases).unwrap();
    let mut passed = 0;
    for (list, case) in cases.iter().enumerate() {
        let by_lockgate = replayed(network.laboratory.directory(), list, case);
        passed += by_lockgate.len();
        for frame in &case.frames {
            let number = number_of(frame);
            let [ours, theirs] =
                [&by_lockgate, &by_nftables].map(|passed| passed.contains(&number));
            assert_eq!(
                (ours, "nftables", theirs),
                (theirs, "nftables", theirs),
                "list {list}, packet {number}: {frame:02x?}\n{}",
                nftables(std::slice::from_ref(case)),
            );
        }
    }
    let all = LISTS * PACKETS;
    println!("{LISTS} lists, {all} packets, {passed} passed in both");
    assert_eq!(by_nftables.len(), passed, "packets that nobody sent");
    let percent = passed * 100 / all;
    assert!((LEAST_PERCENT..=100 - LEAST_PERCENT).contains(&percent), "{percent} % passed");
}
