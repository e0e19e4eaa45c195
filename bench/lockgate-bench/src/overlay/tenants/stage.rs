//! The stage of one way: two hosts with tenants, the switch between them, and the gateway.
//!
//! ```text
//! node 1 ── switch ── node 2        tenants behind VXLAN devices, whose inner MTU is 1450
//!             │
//!          gateway                  packets of one host to the other come and leave by one port
//! ```

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use netlab::iperf::Server;
use netlab::laboratory::connect;
use netlab::ping::Ping;
use netlab::vxlan::{UdpChecksums, Vxlan, take_from_xdp};
use netlab::{Daemon, LabError, Laboratory, Namespace, interrupt};

use super::super::super::BenchError;
use super::super::super::io::forwarder::{Extra, lockgate};
use super::{Gateway, Traffic, Way};

/// The gateway's port, and the switch.
const PORT: &str = "fab0";
const BRIDGE: &str = "br0";
/// The gateway's address on the fabric, which is the entrance.
const ENTRANCE: &str = "192.0.2.1";
/// The network.
const VNI: u32 = 7;
/// The tenants' device, and its MTU: that of the fabric less 50 bytes of outer headers.
const DEVICE: &str = "vx";
const MTU: u32 = 1450;
/// Time until the tenants that talk are in the kernel.
const PROMOTED_WITHIN: Duration = Duration::from_secs(60);

/// Hosts, switch and gateway of one way.
pub(super) struct Stage {
    // Torn down in this order.
    _server: Server,
    daemon: Option<Daemon>,
    nodes: [Namespace; 2],
    _gateway: Namespace,
    _fabric: Namespace,
}

/// The kernel tier, as the daemon shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Tier {
    /// Endpoints in it.
    pub(super) endpoints: u64,
    /// Endpoints that went over to it.
    pub(super) promoted: u64,
    /// Times that one stayed out because packets waited for a worker.
    pub(super) deferred: u64,
}

/// Packets of the gateway's port, as its XDP program counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Packets {
    in_kernel: u64,
    to_worker: u64,
}

impl Packets {
    /// Returns the percentage that the kernel answered since `before`; `None`: there were none.
    pub(super) fn percent_in_kernel(self, before: Packets) -> Option<f64> {
        let in_kernel = self.in_kernel - before.in_kernel;
        let all = in_kernel + self.to_worker - before.to_worker;
        (all > 0).then(|| in_kernel as f64 * 100.0 / all as f64)
    }
}

/// The address of a tenant of a node.
pub(super) fn tenant(node: usize, number: usize) -> String {
    format!("172.16.{node}.{}", 1 + number)
}

fn node_address(node: usize) -> String {
    format!("192.0.2.1{node}")
}

fn node_mac(node: usize) -> String {
    format!("02:00:00:00:00:1{node}")
}

fn tenant_mac(node: usize) -> String {
    format!("02:07:00:00:00:0{node}")
}

impl Stage {
    /// Builds a way's stage, with `tenants` tenants behind each host.
    ///
    /// # Errors
    /// [`BenchError`].
    pub(super) fn build(
        laboratory: &Laboratory,
        way: &Way,
        tenants: usize,
    ) -> Result<Stage, BenchError> {
        let make = |role: &str| -> Result<Namespace, LabError> {
            let namespace = laboratory.namespace(&format!("{}-{role}", way.name))?;
            // Nothing is on the wire but what is measured.
            namespace.set("net/ipv6/conf/all/disable_ipv6", "1")?;
            namespace.set("net/ipv6/conf/default/disable_ipv6", "1")?;
            Ok(namespace)
        };
        let (fabric, gateway) = (make("fab")?, make("gw")?);
        let nodes = [make("one")?, make("two")?];
        fabric.ip(&format!(
            "link add {BRIDGE} type bridge stp_state 0 mcast_snooping 0\nlink set {BRIDGE} up"
        ))?;
        let queues = way.workers();
        let wing = ("02:00:00:00:00:01", ENTRANCE);
        join((&fabric, "gw"), (&gateway, PORT), wing, queues)?;
        for (node, namespace) in (1..).zip(&nodes) {
            let name = format!("node{node}");
            let station = (&*node_mac(node), &*node_address(node));
            join((&fabric, &name), (namespace, "eth0"), station, queues)?;
            gateway.ip(&neighbour(PORT, node))?;
            furnish(namespace, node, way.gateway, tenants)?;
        }
        let daemon = match way.gateway {
            Gateway::None => None,
            Gateway::Linux => {
                gateway.set("net/ipv4/ip_forward", "1")?;
                // Packets leave by the port that they came by, as they do at Lockgate.
                gateway.set("net/ipv4/conf/all/send_redirects", "0")?;
                gateway.set(&format!("net/ipv4/conf/{PORT}/send_redirects"), "0")?;
                None
            }
            Gateway::Lockgate { workers, xdp, .. } => {
                take_from_xdp(&fabric, "gw")?;
                let sections = sections(way);
                let ports: &[&str] = &[PORT];
                let extra = Extra { name: way.name, workers, ports, xdp, sections: &sections };
                let daemon = lockgate(laboratory, &gateway, extra)?;
                import(laboratory, &daemon, tenants)?;
                Some(daemon)
            }
        };
        let _server = Server::start(&nodes[1])?;
        Ok(Stage { _server, daemon, nodes, _gateway: gateway, _fabric: fabric })
    }

    /// A host: 1 or 2.
    pub(super) fn node(&self, number: usize) -> &Namespace {
        &self.nodes[number - 1]
    }

    /// The ends of a stream from a tenant of the first host to one of the second.
    ///
    /// # Panics
    /// Never: [`tenant`] writes addresses.
    pub(super) fn ends(&self, number: usize) -> [(&Namespace, IpAddr); 2] {
        [1, 2].map(|node| {
            let address = tenant(node, number).parse().expect("an address of ours");
            (self.node(node), address)
        })
    }

    /// Returns the packets of the gateway's port so far; `None`: it is not Lockgate.
    ///
    /// # Errors
    /// As [`Daemon::ask`].
    pub(super) fn packets(&self) -> Result<Option<Packets>, LabError> {
        let Some(daemon) = &self.daemon else { return Ok(None) };
        let ports = daemon.ports()?;
        let count = |name: &str| -> u64 {
            ports.iter().filter_map(|port| port["kernel"][name].as_u64()).sum()
        };
        Ok(Some(Packets { in_kernel: count("transmitted"), to_worker: count("to_worker") }))
    }

    /// Returns the mode of the port's XDP program, as the daemon shows it; `None`: it is not
    /// Lockgate.
    ///
    /// # Errors
    /// As [`Daemon::ask`].
    #[cfg(test)]
    pub(super) fn mode(&self) -> Result<Option<String>, LabError> {
        let Some(daemon) = &self.daemon else { return Ok(None) };
        let ports = daemon.ports()?;
        Ok(ports.iter().find_map(|port| port["xdp_mode"].as_str()).map(str::to_owned))
    }

    /// Returns the state of the kernel tier.
    ///
    /// # Errors
    /// As [`Daemon::ask`].
    pub(super) fn tier(&self) -> Result<Tier, LabError> {
        let Some(daemon) = &self.daemon else { return Ok(Tier::default()) };
        let counters = daemon.ask(&["show", "counters"])?;
        let count = |name: &str| counters["kernel_tier"][name].as_u64().unwrap_or(0);
        Ok(Tier {
            endpoints: count("endpoints"),
            promoted: count("promoted"),
            deferred: count("deferred"),
        })
    }

    /// Lets the first tenants talk until they are in the kernel.
    ///
    /// # Errors
    /// [`BenchError::NotPromoted`].
    pub(super) fn promote(&self) -> Result<(), BenchError> {
        let began = Instant::now();
        let to = tenant(2, 0);
        loop {
            let interval = Duration::from_millis(2);
            Ping { interval, ..Ping::new(&to, 500) }.run(self.node(1))?;
            match self.tier()?.endpoints {
                2.. => return Ok(()),
                there if began.elapsed() > PROMOTED_WITHIN => {
                    return Err(BenchError::NotPromoted { there, all: 2 });
                }
                _ => interrupt::sleep(Duration::from_millis(50))?,
            }
        }
    }
}

/// Joins a machine to the switch, with so many queues.
fn join(
    (fabric, port): (&Namespace, &str),
    (machine, interface): (&Namespace, &str),
    (mac, address): (&str, &str),
    queues: u32,
) -> Result<(), LabError> {
    connect((machine, interface), (fabric, port), queues)?;
    fabric.ip(&format!("link set {port} master {BRIDGE} up"))?;
    machine.ip(&format!(
        "link set {interface} address {mac} up\naddr add {address}/24 dev {interface}"
    ))?;
    fabric.offload_off(port)?;
    machine.offload_off(interface)
}

/// The command that tells a machine a node's link address.
fn neighbour(interface: &str, node: usize) -> String {
    let (address, mac) = (node_address(node), node_mac(node));
    format!("neigh add {address} lladdr {mac} dev {interface} nud permanent\n")
}

/// Gives a node its tenants, and its way to the other one.
fn furnish(
    node: &Namespace,
    number: usize,
    gateway: Gateway,
    tenants: usize,
) -> Result<(), LabError> {
    let other = 3 - number;
    let mut lines =
        format!("neigh add {ENTRANCE} lladdr 02:00:00:00:00:01 dev eth0 nud permanent\n");
    match gateway {
        Gateway::None => lines += &neighbour("eth0", other),
        Gateway::Linux => {
            let _ = writeln!(lines, "route add {}/32 via {ENTRANCE}", node_address(other));
        }
        Gateway::Lockgate { .. } => {}
    }
    node.ip(&lines)?;
    let far = node_address(other);
    let device = Vxlan {
        device: DEVICE,
        vni: VNI,
        entrance: if matches!(gateway, Gateway::Lockgate { .. }) { ENTRANCE } else { &far },
        mac: &tenant_mac(number),
        addresses: &(0..tenants).map(|it| tenant(number, it) + "/16").collect::<Vec<_>>(),
        checksums: UdpChecksums::Omitted,
    };
    device.add(node)?;
    node.ip(&format!("link set {DEVICE} mtu {MTU}"))
}

/// The daemon's sections of the overlay.
fn sections(way: &Way) -> String {
    let (usage, network) = match way.gateway {
        Gateway::Lockgate { usage, network, .. } => (usage, network),
        Gateway::None | Gateway::Linux => ("off", ""),
    };
    // Where tenants are to go over, there is room for two, and others take it.
    let room = if way.traffic == Traffic::Crossing { 2 } else { 1024 };
    // TCP that keeps a worker busy would keep its own flows out of the kernel.
    let busy = matches!(way.traffic, Traffic::Flows | Traffic::Connections);
    format!(
        "\n[overlay.fabric]\nkind = \"vxlan\"\nport = \"{PORT}\"\nentrances = [\"{ENTRANCE}\"]\n\n\
         [vni.{VNI}]\n{network}\n[store]\nkind = \"memory\"\n\n[kernel]\nuse = \"{usage}\"\n\
         endpoints = {room}\npromote_busy = {busy}\n"
    )
}

/// Puts all tenants of both hosts.
fn import(laboratory: &Laboratory, daemon: &Daemon, tenants: usize) -> Result<(), BenchError> {
    let mut lines = String::from("vni,address,host,mac\n");
    for (node, number) in [1, 2].into_iter().flat_map(|node| (0..tenants).map(move |it| (node, it)))
    {
        let (address, host, mac) = (tenant(node, number), node_address(node), tenant_mac(node));
        let _ = writeln!(lines, "{VNI},{address},{host},{mac}");
    }
    let file = laboratory.directory().join("tenants.csv");
    std::fs::write(&file, lines).map_err(BenchError::system("writing endpoints"))?;
    daemon.run(&["endpoint", "import", &file.to_string_lossy()])?.success()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_part_is_of_all_packets_since() {
        let packets = |in_kernel, to_worker| Packets { in_kernel, to_worker };
        assert_eq!(packets(130, 20).percent_in_kernel(packets(100, 10)), Some(75.0));
        assert_eq!(packets(100, 10).percent_in_kernel(packets(100, 10)), None);
    }
}
