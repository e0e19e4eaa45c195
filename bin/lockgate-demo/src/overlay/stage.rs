//! The stage: two compute nodes, the switch between them and the wing, the wing's daemon, and the
//! results so far.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use console::failure::Form;
use netlab::configuration::make_keys;
use netlab::laboratory::connect;
use netlab::vxlan::{UdpChecksums, Vxlan, take_from_xdp};
use netlab::{Capture, Daemon, LabError, Laboratory, Namespace, Programs, Scope, interrupt};

use super::losses::Losses;
use super::reading::Reading;
use super::report::OverlayReport;
use crate::play;
use crate::progress::Progress;
use crate::report::{Check, TimeFigure};

/// Time for a daemon's counters to be those of all packets that were sent.
const SETTLE: Duration = Duration::from_secs(30);
/// Time for what must happen; no check knows a shorter one.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
/// Endpoints that the kernel has room for.
pub(super) const KERNEL_ENDPOINTS: u64 = 1024;
/// The wing's port, and the switch.
const PORT: &str = "fab0";
const BRIDGE: &str = "br0";
/// Link address of the wing.
pub(super) const WING_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Address of the wing that the nodes send to.
pub(super) const ENTRANCE: &str = "192.0.2.1";
/// Tenants of a node in each network.
const TENANTS: u8 = 2;

/// A virtual network, by the addresses of its tenants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Network {
    /// 10.0.0.0/24, network 10: it has no security group.
    Plain,
    /// 11.0.0.0/24, network 11: its security group is in audit mode, and would deny everything.
    Grouped,
}

impl Network {
    pub(super) const ALL: [Network; 2] = [Network::Plain, Network::Grouped];

    /// Its VNI, and the first byte of its addresses.
    pub(super) fn vni(self) -> u8 {
        match self {
            Network::Plain => 10,
            Network::Grouped => 11,
        }
    }

    /// The addresses of its tenants.
    pub(super) fn prefix(self) -> String {
        format!("{}.0.0.0/24", self.vni())
    }

    /// The reason why the kernel answers its packets, or does not.
    pub(super) fn why(self) -> &'static str {
        match self {
            Network::Plain => "no group: the kernel's",
            Network::Grouped => "audit: the workers count",
        }
    }

    /// The device of a node.
    pub(super) fn device(self) -> String {
        format!("vx{}", self.vni())
    }

    /// A tenant's address: node 1 or 2, tenant 1 or 2.
    pub(super) fn tenant(self, node: u8, number: u8) -> String {
        format!("{}.0.0.{node}{number}", self.vni())
    }

    /// The link address of a node's tenants.
    pub(super) fn mac(self, node: u8) -> String {
        format!("02:00:00:{:02x}:00:0{node}", self.vni())
    }
}

/// The wing's trust in its fabric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fabric {
    /// The port is protected: overlay packets come and leave in cleartext.
    Trusted,
    /// The port is unprotected: a PROTECT policy seals what leaves to each node.
    Sealed,
}

/// The laboratory with the wing's daemon, and the results so far.
pub(super) struct Stage {
    // Torn down in this order: the daemon, the namespaces, the directory.
    daemon: Option<Daemon>,
    nodes: [Namespace; 2],
    wing: Namespace,
    fabric: Namespace,
    laboratory: Laboratory,
    programs: Programs,
    captures: u32,
    pub(super) report: OverlayReport,
    progress: Progress,
}

/// Address of a node on the fabric.
pub(super) fn node_address(node: u8) -> String {
    format!("192.0.2.1{node}")
}

impl Stage {
    /// Builds the namespaces; no daemon runs yet.
    pub(super) fn build(form: Form) -> Result<Stage, LabError> {
        let progress = Progress::start(form);
        let programs = Programs::find()?;
        let laboratory = Laboratory::new()?;
        let make = |role| -> Result<Namespace, LabError> {
            let namespace = laboratory.namespace(role)?;
            // Nothing is on the wire but what the scenes send.
            namespace.set("net/ipv6/conf/all/disable_ipv6", "1")?;
            namespace.set("net/ipv6/conf/default/disable_ipv6", "1")?;
            Ok(namespace)
        };
        let (wing, fabric) = (make("wing")?, make("fabric")?);
        let nodes = [make("node1")?, make("node2")?];
        fabric.ip(&format!(
            "link add {BRIDGE} type bridge stp_state 0 mcast_snooping 0\nlink set {BRIDGE} up"
        ))?;
        join(&fabric, "wing", (&wing, PORT), ("02:00:00:00:00:01", ENTRANCE))?;
        take_from_xdp(&fabric, "wing")?;
        for (node, namespace) in (1..).zip(&nodes) {
            let (port, mac) = (format!("node{node}"), format!("02:00:00:00:00:1{node}"));
            join(&fabric, &port, (namespace, "eth0"), (&mac, &node_address(node)))?;
            add_tenants(namespace, node)?;
            make_keys(&programs, laboratory.directory(), "wing", &port)?;
        }
        let report = OverlayReport::new();
        let (daemon, captures) = (None, 0);
        let stage =
            Stage { daemon, nodes, wing, fabric, laboratory, programs, captures, report, progress };
        stage.say("", "node-1, node-2, fabric, wing: four namespaces");
        Ok(stage)
    }

    /// A node: 1 or 2.
    pub(super) fn node(&self, number: u8) -> &Namespace {
        &self.nodes[usize::from(number) - 1]
    }

    /// The wing's daemon.
    ///
    /// # Errors
    /// [`LabError::Ended`] if it does not run.
    pub(super) fn daemon(&self) -> Result<&Daemon, LabError> {
        let ended =
            || LabError::Ended { command: "lockgated of wing".into(), output: String::new() };
        self.daemon.as_ref().ok_or_else(ended)
    }

    /// Starts the wing's daemon and returns when.
    pub(super) fn launch(&mut self) -> Result<Instant, LabError> {
        let path = self.write(Fabric::Trusted)?;
        let socket = self.laboratory.directory().join("run/api.sock");
        let mut daemon = Daemon::launch_with(&self.programs, &self.wing, &path, socket)?;
        daemon.wait_ready()?;
        let started = daemon.started();
        self.daemon = Some(daemon);
        Ok(started)
    }

    /// Starts the daemon and puts the endpoints of both networks.
    pub(super) fn start(&mut self) -> Result<(), LabError> {
        for folder in ["run", "state"] {
            let folder = self.laboratory.directory().join(folder);
            std::fs::create_dir(&folder).map_err(LabError::file(&folder))?;
        }
        self.launch()?;
        let mut lines = String::new();
        for (network, node) in Network::ALL.iter().flat_map(|it| [(it, 1), (it, 2)]) {
            for tenant in 1..=TENANTS {
                lines += &line(*network, &network.tenant(node, tenant), node);
            }
        }
        self.import(&lines)
    }

    /// Kills the daemon as a crash would.
    pub(super) fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill();
        }
    }

    /// Puts the endpoints of these lines.
    pub(super) fn import(&self, lines: &str) -> Result<(), LabError> {
        let file = self.laboratory.directory().join("endpoints.csv");
        let text = format!("vni,address,host,mac\n{lines}");
        std::fs::write(&file, text).map_err(LabError::file(&file))?;
        let words = ["endpoint", "import", &file.to_string_lossy()];
        self.daemon()?.run(&words)?.success().map(drop)
    }

    fn write(&self, fabric: Fabric) -> Result<PathBuf, LabError> {
        let path = self.laboratory.directory().join("lockgate.toml");
        let directory = self.laboratory.directory().display().to_string();
        std::fs::write(&path, configuration(&directory, fabric)).map_err(LabError::file(&path))?;
        Ok(path)
    }

    /// Has the wing trust its fabric, or not.
    pub(super) fn apply(&self, fabric: Fabric) -> Result<(), LabError> {
        let path = self.write(fabric)?;
        self.daemon()?.apply(&path).map(drop)
    }

    /// Starts a capture of the fabric.
    pub(super) fn capture(&mut self) -> Result<Capture, LabError> {
        self.captures += 1;
        let name = format!("fabric-{}", self.captures);
        let place = (self.laboratory.directory(), name.as_str());
        Capture::start(&self.fabric, BRIDGE, Scope::Heads, place)
    }

    /// Reads the wing's counters as they are: under a stream some packet is always on its way.
    pub(super) fn glance(&self) -> Result<Reading, LabError> {
        Reading::of(self.daemon()?)
    }

    /// Reads the wing's counters once no packet is on its way any more.
    pub(super) fn reading(&self) -> Result<Reading, LabError> {
        let end = Instant::now() + SETTLE;
        loop {
            let reading = self.glance()?;
            if reading.imbalance == 0 || Instant::now() > end {
                return Ok(reading);
            }
            interrupt::sleep(Duration::from_millis(50))?;
        }
    }

    /// Counts packets that were lost outside of Lockgate.
    pub(super) fn losses(&self) -> Result<Losses, LabError> {
        let mut losses = Losses::default();
        for namespace in [&self.wing, &self.fabric, self.node(1), self.node(2)] {
            losses.add(namespace)?;
        }
        Ok(losses)
    }

    /// Prints a line of progress.
    pub(super) fn say(&self, verdict: &str, text: &str) {
        self.progress.say(verdict, text);
    }

    /// Notes the result of a check.
    pub(super) fn note(&mut self, check: Check) {
        play::note(&mut self.report.checks, self.progress, check);
    }

    /// Notes a time. Machines differ and are shared: none makes the demonstration fail.
    pub(super) fn note_time(&mut self, name: &'static str, took: Option<Duration>) {
        self.report.times.push(TimeFigure::new(name, took));
    }

    /// Notes the drops so far, and what the ledgers are out of balance by.
    pub(super) fn sum_up(&mut self) -> Result<(), LabError> {
        let reading = self.reading()?;
        *self.report.ledger_imbalance.get_or_insert_default() += reading.imbalance;
        for (reason, count) in reading.drops.into_iter().filter(|&(_, count)| count > 0) {
            *self.report.drops.entry(reason).or_default() += count;
        }
        Ok(())
    }

    /// Notes the sums at the end.
    pub(super) fn settle(&mut self) -> Result<(), LabError> {
        self.sum_up()?;
        let imbalance = self.report.ledger_imbalance.unwrap_or_default();
        self.note(Check {
            name: "the ledgers balance",
            ok: imbalance == 0,
            detail: format!("out by {imbalance} packets"),
        });
        Ok(())
    }

    /// Ends the play: everything is torn down, and the report is complete.
    ///
    /// # Errors
    /// [`LabError::Interrupted`], torn down all the same.
    pub(super) fn close(
        mut self,
        outcome: Result<(), LabError>,
    ) -> Result<OverlayReport, LabError> {
        let log = || self.daemon.as_ref().map(Daemon::log).unwrap_or_default();
        let logs = || vec![("wing".to_owned(), log())];
        self.report.ok = play::end(outcome, &mut self.report.checks, logs, self.progress)?;
        let Stage { report, .. } = self;
        Ok(report)
    }
}

/// Joins a machine to the switch.
fn join(
    fabric: &Namespace,
    port: &str,
    (machine, interface): (&Namespace, &str),
    (mac, address): (&str, &str),
) -> Result<(), LabError> {
    connect((machine, interface), (fabric, port), 1)?;
    fabric.ip(&format!("link set {port} master {BRIDGE} up"))?;
    machine.ip(&format!(
        "link set {interface} address {mac} up\naddr add {address}/24 dev {interface}"
    ))?;
    fabric.offload_off(port)?;
    machine.offload_off(interface)
}

/// Gives a node its tenants of both networks.
fn add_tenants(node: &Namespace, number: u8) -> Result<(), LabError> {
    for network in Network::ALL {
        let tenants = (1..=TENANTS).map(|tenant| network.tenant(number, tenant) + "/24");
        let device = Vxlan {
            device: &network.device(),
            vni: network.vni().into(),
            entrance: ENTRANCE,
            mac: &network.mac(number),
            addresses: &tenants.collect::<Vec<_>>(),
            checksums: UdpChecksums::Omitted,
        };
        device.add(node)?;
    }
    Ok(())
}

/// The line of a file of endpoints for an address behind a node.
pub(super) fn line(network: Network, address: &str, node: u8) -> String {
    format!("{},{address},{},{}\n", network.vni(), node_address(node), network.mac(node))
}

/// The wing's configuration.
fn configuration(directory: &str, fabric: Fabric) -> String {
    let side = match fabric {
        Fabric::Trusted => "side = \"protected\"",
        // Nodes without ESP say so by ICMP.
        Fabric::Sealed => "side = \"unprotected\"\nallow_host = [\"icmp\"]",
    };
    let mut text = format!(
        "[node]
name = \"wing\"
workers = 1
keys_dir = \"{directory}\"
run_dir = \"{directory}/run\"
state_dir = \"{directory}/state\"

[metrics]
listen = \"off\"

[port.fabric]
netdev = \"{PORT}\"
{side}

[overlay.fabric]
kind = \"vxlan\"
port = \"fabric\"
entrances = [\"{ENTRANCE}\"]

[vni.10]

[vni.11]
groups_in = [\"tenants\"]

[group.tenants]
mode = \"audit\"

[[rule]]
group = \"tenants\"
name = \"all\"
action = \"deny\"
from = [\"11.0.0.0/24\"]
to = [\"11.0.0.0/24\"]

[kernel]
use = \"on\"
endpoints = {KERNEL_ENDPOINTS}
"
    );
    if fabric == Fabric::Sealed {
        let nodes = [1, 2].map(node_address);
        let _ = write!(
            text,
            "
[[policy]]
name = \"from-nodes\"
action = \"bypass\"
direction = \"inbound\"
local = [\"{ENTRANCE}\"]
remote = {nodes:?}
protocol = \"udp\"
local_ports = [\"4789\"]
"
        );
        for (number, address) in (1..).zip(nodes) {
            text += &sealed(number, &address);
        }
    }
    text
}

/// A PROTECT policy for what the wing sends to a node.
fn sealed(node: u8, address: &str) -> String {
    format!(
        "
[peer.node-{node}]
local = \"{ENTRANCE}\"
remote = \"{address}\"
keys = \"file:wing-node{node}.keys\"
manual = \"laboratory\"
suite = \"aes-128-gcm\"

[[policy]]
name = \"to-node-{node}\"
peer = \"node-{node}\"
direction = \"outbound\"
local = [\"{ENTRANCE}\"]
remote = [\"{address}\"]
protocol = \"udp\"
"
    )
}
