//! Configuration and network of the gateway under attack.

use std::fmt::{Display, Formatter};
use std::time::{Duration, Instant};

use net::{AGAIN, Lab};
use netlab::sites::{LAN, Plan, WAN};
use netlab::{Gateways, Namespace};

/// IPv4 address of the sink: the next hop of all packets for strangers.
const SINK_V4: &str = "192.0.2.99";
/// The same of IPv6.
const SINK_V6: &str = "2001:db8:ffff::99";
/// MAC address of the sink; nobody has the address, and the packets end in the bridge.
const SINK_MAC: &str = "02:00:00:00:00:99";

/// Policies for strangers: hosts are reachable in cleartext.
const OPEN: &str = r#"
[[policy]]
name = "strangers"
action = "bypass"
local = ["10.1.0.0/16", "192.0.2.1"]
remote = ["203.0.113.0/24", "198.18.0.0/15"]
priority = 10
"#;

/// Policies with ports: a later fragment waits for the first fragment.
const NAMED_PORTS: &str = r#"
[[policy]]
name = "names"
action = "bypass"
local = ["10.1.0.0/16"]
remote = ["203.0.113.0/24"]
protocol = "udp"
local_ports = ["53"]
priority = 10

[[policy]]
name = "names-v6"
action = "bypass"
local = ["2001:db8:1::/48"]
remote = ["2001:db8:abcd::/48"]
protocol = "udp"
local_ports = ["53"]
priority = 10
"#;

/// Tracked connections from both sides of the protected port. Eight thousand may be half
/// open: a flood reaches the bound in three seconds.
const TRACKED: &str = r#"
[connections]
max = "64K"

[group.outward]
[[rule]]
group = "outward"
action = "reflect"
from = ["any"]
to = ["any"]

[group.inward]
[[rule]]
group = "inward"
action = "reflect"
from = ["any"]
to = ["any"]
"#;

/// Two VLANs of the protected netdev.
const VLANS: &str = r#"
[port.ten]
netdev = "lan"
vlan = 10
side = "protected"

[port.twenty]
netdev = "lan"
vlan = 20
side = "protected"
"#;

/// Keys of the gateway under attack, beside the tunnel to the other gateway.
pub(crate) struct Stage {
    /// Text behind the last policy.
    extra: String,
    /// Further keys of the protected port.
    lan: &'static str,
}

impl Stage {
    /// Strangers reach hosts.
    pub(crate) fn open() -> Stage {
        Stage { extra: OPEN.to_owned(), lan: "" }
    }

    /// Strangers reach port 53 of hosts.
    pub(crate) fn named_ports() -> Stage {
        Stage { extra: NAMED_PORTS.to_owned(), lan: "" }
    }

    /// Strangers reach hosts, and all connections are tracked.
    pub(crate) fn tracked() -> Stage {
        let lan = "groups_in = [\"outward\"]\ngroups_out = [\"inward\"]";
        Stage { extra: OPEN.to_owned() + TRACKED, lan }
    }

    /// Hosts of two VLANs beside hosts without a tag.
    pub(crate) fn vlans() -> Stage {
        Stage { extra: OPEN.to_owned() + VLANS, lan: "" }
    }

    /// A long list for readers.
    pub(crate) fn many_policies(count: u32) -> Stage {
        let policy = |number: u32| {
            let [.., high, middle, low] = number.to_be_bytes();
            format!(
                "\n[[policy]]\nname = \"p{number}\"\naction = \"discard\"\n\
                 local = [\"10.1.0.0/16\"]\nremote = [\"100.{high}.{middle}.{low}\"]\n\
                 priority = 5\n"
            )
        };
        let policies: String = (0..count).map(policy).collect();
        Stage { extra: OPEN.to_owned() + &policies, lan: "" }
    }

    /// Builds two gateways with running daemons, gateway 1 with the keys of the stage.
    pub(crate) fn build(self, test: &str) -> Option<Lab> {
        let mut lab = net::lab(test, Plan::default())?;
        prepare_network(&lab.gateways);
        let file = lab.gateways.file_mut(1);
        file.extra = self.extra;
        file.lan = self.lan.to_owned();
        file.metrics = super::readers::METRICS.to_owned();
        lab.start(test)
    }
}

fn prepare_network(gateways: &Gateways) {
    let gateway = &gateways.site(1).gateway;
    gateway
        .ip(&format!(
            "addr add 10.1.64.1/18 dev {LAN}
             neigh replace {SINK_V4} lladdr {SINK_MAC} dev {WAN} nud permanent
             neigh replace {SINK_V6} lladdr {SINK_MAC} dev {WAN} nud permanent
             route add 203.0.113.0/24 via {SINK_V4}
             route add 198.18.0.0/15 via {SINK_V4}
             route add 2001:db8:abcd::/48 via {SINK_V6}"
        ))
        .unwrap();
    // The host has all addresses of the range: each is a separate neighbour.
    gateways.site(1).host.ip("route add local 10.1.96.0/19 dev lo").unwrap();
    for number in [1, 2] {
        drop_silently(&gateways.site(number).host);
    }
}

/// Has a host answer neither SYNs nor datagrams of an attack: connections stay half open.
fn drop_silently(host: &Namespace) {
    let rules = "table inet quiet {\n chain input {\n  type filter hook input priority 0;\n  \
                 tcp dport 80 drop\n  udp dport { 9, 1000-1999 } drop\n }\n}\n";
    let script = format!("nft -f - <<'END'\n{rules}END\n");
    host.run(&["sh", "-c", &script], AGAIN).unwrap().success().unwrap();
}

/// State of gateway 1 after an attack.
pub(crate) enum Aftermath {
    Ended,
    Running { held: u64, imbalance: u64, memory_kib: u64 },
}

impl Display for Aftermath {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Aftermath::Ended => write!(f, "the daemon has ended"),
            Aftermath::Running { held, imbalance, memory_kib } => {
                write!(f, "held {held}, imbalance {imbalance}, memory {} MiB", memory_kib >> 10)
            }
        }
    }
}

impl Aftermath {
    fn read(lab: &Lab) -> Aftermath {
        let answer = lab.gateways.daemon(1).and_then(|daemon| daemon.ask(&["show", "counters"]));
        let (Ok(answer), Some(memory_kib)) = (answer, memory(lab)) else {
            return Aftermath::Ended;
        };
        let number = |value: &serde_json::Value| value.as_u64().expect("a number");
        let held = number(&answer["ledger"]["held"]);
        let imbalance = number(&answer["ledger_imbalance"]);
        Aftermath::Running { held, imbalance, memory_kib }
    }

    fn is_recovered(&self, before_kib: u64) -> bool {
        matches!(self, Aftermath::Running { held: 0, imbalance: 0, memory_kib }
            if *memory_kib as f64 <= before_kib as f64 * super::MAX_GROWTH)
    }
}

/// Waits until the gateway is as before the attack, and returns the last state at `limit`.
pub(crate) fn wait_for_recovery(lab: &Lab, before_kib: u64, limit: Duration) -> Aftermath {
    let end = Instant::now() + limit;
    loop {
        let state = Aftermath::read(lab);
        let is_over = matches!(state, Aftermath::Ended) || Instant::now() > end;
        if is_over || state.is_recovered(before_kib) {
            return state;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Resident memory of daemon 1, in KiB. `None`: the daemon has ended.
pub(crate) fn memory(lab: &Lab) -> Option<u64> {
    memory_of_kind(lab, "VmRSS:")
}

/// Largest resident memory of daemon 1 so far, in KiB. `None`: the daemon has ended.
pub(crate) fn peak_memory(lab: &Lab) -> Option<u64> {
    memory_of_kind(lab, "VmHWM:")
}

fn memory_of_kind(lab: &Lab, kind: &str) -> Option<u64> {
    let pid = lab.gateways.daemon(1).ok()?.pid();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(kind))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}
