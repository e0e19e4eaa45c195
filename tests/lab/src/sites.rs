//! The topology: sites of one host and one gateway each, joined by a wire.
//!
//! ```text
//! host-a ── lan gw-a wan ──┐                      ┌── wan gw-b lan ── host-b
//!  10.1.0.10  10.1.0.1  192.0.2.1 ── wire: br0 ── 192.0.2.2  10.2.0.1  10.2.0.10
//! ```
//! Every part is a namespace of its own. Forwarding is on in the gateways and their routes would
//! work without Lockgate. `wire` is a bridge where captures are taken: a tap sees nothing on a
//! port with AF_XDP. Site N has `10.N.0.0/24` and `2001:db8:N::/64`; on the wire it is
//! `192.0.2.N` and `2001:db8:ffff::N`.

use std::time::{Duration, Instant};

use crate::laboratory::connect;
use crate::{LabError, Laboratory, Namespace, interrupt};

/// Time in which all links have their carrier.
const LINKS: Duration = Duration::from_secs(60);

/// Protected interface of a gateway.
pub const LAN: &str = "lan";
/// Unprotected interface of a gateway.
pub const WAN: &str = "wan";
/// Interface of a host.
pub const HOST_INTERFACE: &str = "eth0";
/// The bridge in the wire's namespace.
pub const BRIDGE: &str = "br0";

/// Paths between the sites.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Each site reaches the others directly.
    Mesh,
    /// All packets pass site 1.
    Hub,
}

/// Sites to build, and their paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Sites: 2 to 9.
    pub sites: u8,
    /// Queues of every veth in each direction.
    pub queues: u32,
    /// Paths between them.
    pub shape: Shape,
}

impl Default for Plan {
    /// Two sites, one queue.
    fn default() -> Plan {
        Plan { sites: 2, queues: 1, shape: Shape::Mesh }
    }
}

/// One site.
#[derive(Debug)]
pub struct Site {
    number: u8,
    queues: u32,
    /// The host.
    pub host: Namespace,
    /// The gateway.
    pub gateway: Namespace,
}

/// Sites and the wire between them.
#[derive(Debug)]
pub struct Sites {
    // Declared first so that it is torn down first: the laboratory's directory outlives them.
    sites: Vec<Site>,
    /// The bridge's namespace.
    pub wire: Namespace,
    shape: Shape,
    /// The laboratory that they are part of.
    pub laboratory: Laboratory,
}

impl Sites {
    /// Builds them, with forwarding on in the gateways.
    ///
    /// # Errors
    /// As [`Laboratory::new`] and [`Namespace::ip`].
    pub fn build(plan: Plan) -> Result<Sites, LabError> {
        let laboratory = Laboratory::new()?;
        let wire = laboratory.namespace("wire")?;
        wire.set("net/ipv6/conf/all/disable_ipv6", "1")?;
        wire.set("net/ipv6/conf/default/disable_ipv6", "1")?;
        wire.ip(&format!(
            "link add {BRIDGE} type bridge stp_state 0 mcast_snooping 0\nlink set {BRIDGE} up"
        ))?;
        let numbers = 1..=plan.sites;
        let sites = numbers
            .map(|number| Site::build(&laboratory, number, plan.queues))
            .collect::<Result<Vec<_>, _>>()?;
        let sites = Sites { sites, wire, shape: plan.shape, laboratory };
        for site in &sites.sites {
            sites.connect_lan(site)?;
            sites.connect_wan(site)?;
        }
        sites.wait_for_links()?;
        Ok(sites)
    }

    /// Waits until every link has its carrier: the kernel tells bridge and addresses of it later.
    fn wait_for_links(&self) -> Result<(), LabError> {
        let end = Instant::now() + LINKS;
        let all = self.sites.iter().flat_map(|site| [&site.host, &site.gateway]);
        for namespace in all.chain([&self.wire]) {
            while !links_are_up(&namespace.ip_json(&["-details", "link"])?) {
                if Instant::now() > end {
                    let what = format!("waiting for the links of {}", namespace.name());
                    return Err(LabError::TimedOut { what, limit: LINKS, output: String::new() });
                }
                interrupt::sleep(Duration::from_millis(20))?;
            }
        }
        Ok(())
    }

    /// The sites, 1 first.
    pub fn all(&self) -> &[Site] {
        &self.sites
    }

    /// Site `number`, from 1.
    ///
    /// # Panics
    /// If there is none.
    pub fn site(&self, number: u8) -> &Site {
        &self.sites[usize::from(number) - 1]
    }

    /// Makes the link between a site's host and its gateway, with addresses and routes.
    ///
    /// # Errors
    /// As [`Namespace::ip`].
    pub fn connect_lan(&self, site: &Site) -> Result<(), LabError> {
        let n = site.number;
        connect((&site.gateway, LAN), (&site.host, HOST_INTERFACE), site.queues)?;
        site.host.ip(&format!(
            "link set {HOST_INTERFACE} address 02:00:00:00:0{n}:10 up
             addr add 10.{n}.0.10/24 dev {HOST_INTERFACE}
             addr add 2001:db8:{n}::10/64 dev {HOST_INTERFACE} nodad
             route replace default via 10.{n}.0.1
             route replace ::/0 via 2001:db8:{n}::1"
        ))?;
        site.host.offload_off(HOST_INTERFACE)?;
        site.gateway.ip(&format!(
            "link set {LAN} address 02:00:00:00:0{n}:01 up
             addr add 10.{n}.0.1/24 dev {LAN}
             addr add 2001:db8:{n}::1/64 dev {LAN} nodad"
        ))?;
        site.gateway.offload_off(LAN)
    }

    /// Makes the link between a gateway and the wire, with addresses and routes to the others.
    ///
    /// # Errors
    /// As [`Namespace::ip`].
    pub fn connect_wan(&self, site: &Site) -> Result<(), LabError> {
        let n = site.number;
        let port = format!("port{n}");
        connect((&site.gateway, WAN), (&self.wire, &port), site.queues)?;
        self.wire.ip(&format!("link set {port} master {BRIDGE} up"))?;
        self.wire.offload_off(&port)?;
        site.gateway.ip(&format!("link set {WAN} address 02:00:00:00:0{n}:02"))?;
        self.raise_wan(site)?;
        site.gateway.offload_off(WAN)
    }

    /// Sets a gateway's unprotected interface up, with the addresses and routes that it lost when
    /// it was set down.
    ///
    /// # Errors
    /// As [`Namespace::ip`].
    pub fn raise_wan(&self, site: &Site) -> Result<(), LabError> {
        let n = site.number;
        let mut lines = format!(
            "link set {WAN} up
             addr replace 192.0.2.{n}/24 dev {WAN}
             addr replace 2001:db8:ffff::{n}/64 dev {WAN} nodad
            "
        );
        for other in self.sites.iter().map(Site::number).filter(|&other| other != n) {
            let via = match self.shape {
                Shape::Hub if n != 1 => 1,
                _ => other,
            };
            lines += &format!("route replace 10.{other}.0.0/16 via 192.0.2.{via}\n");
            lines += &format!("route replace 2001:db8:{other}::/48 via 2001:db8:ffff::{via}\n");
        }
        site.gateway.ip(&lines)
    }
}

impl Site {
    fn build(laboratory: &Laboratory, number: u8, queues: u32) -> Result<Site, LabError> {
        let letter = letter(number);
        let host = laboratory.namespace(&format!("host{letter}"))?;
        let gateway = laboratory.namespace(&format!("gw{letter}"))?;
        gateway.set("net/ipv4/ip_forward", "1")?;
        gateway.set("net/ipv6/conf/all/forwarding", "1")?;
        Ok(Site { number, queues, host, gateway })
    }

    /// Its number, from 1.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Name of its gateway: `gw-a`.
    pub fn gateway_name(&self) -> String {
        format!("gw-{}", letter(self.number))
    }

    /// IPv4 address of its host.
    pub fn host_v4(&self) -> String {
        format!("10.{}.0.10", self.number)
    }

    /// IPv6 address of its host.
    pub fn host_v6(&self) -> String {
        format!("2001:db8:{}::10", self.number)
    }

    /// The gateway's IPv4 address inside.
    pub fn lan_v4(&self) -> String {
        format!("10.{}.0.1", self.number)
    }

    /// The gateway's IPv6 address inside.
    pub fn lan_v6(&self) -> String {
        format!("2001:db8:{}::1", self.number)
    }

    /// The gateway's IPv4 address on the wire.
    pub fn wan_v4(&self) -> String {
        format!("192.0.2.{}", self.number)
    }

    /// The gateway's IPv6 address on the wire.
    pub fn wan_v6(&self) -> String {
        format!("2001:db8:ffff::{}", self.number)
    }

    /// Returns the networks protected behind the gateway, both families.
    pub fn networks(&self) -> [String; 2] {
        [format!("10.{}.0.0/16", self.number), format!("2001:db8:{}::/48", self.number)]
    }

    /// The bridge's port that leads to its gateway.
    pub fn wire_port(&self) -> String {
        format!("port{}", self.number)
    }
}

/// Returns whether every link that `ip -details -json link` lists is up, loopback aside, and every
/// port of the bridge forwards.
fn links_are_up(listed: &serde_json::Value) -> bool {
    let links = listed.as_array().map(Vec::as_slice).unwrap_or_default();
    let mut links = links.iter().filter(|link| link["ifname"] != "lo");
    links.all(|link| {
        let port = link.pointer("/linkinfo/info_slave_data/state");
        link["operstate"] == "UP" && port.is_none_or(|state| state == "forwarding")
    })
}

fn letter(number: u8) -> char {
    char::from(b'a' + number - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_without_carrier_or_that_the_bridge_does_not_use_is_not_up() {
        let listed = |state: &str, port: &str| {
            let details = serde_json::json!({"info_slave_data": {"state": port}});
            serde_json::json!([
                {"ifname": "lo", "operstate": "UNKNOWN"},
                {"ifname": "wan", "operstate": "UP"},
                {"ifname": "port1", "operstate": state, "linkinfo": details},
            ])
        };
        assert!(links_are_up(&listed("UP", "forwarding")));
        assert!(!links_are_up(&listed("LOWERLAYERDOWN", "forwarding")));
        assert!(!links_are_up(&listed("UP", "disabled")));
    }
}
