//! The files that `lockgate init` writes, as text, and the commands that come next.

use std::net::IpAddr;
use std::path::Path;

use ipsec::Suite;
use policy::AddressRange;
use wire::{Address, Family};

use super::joined;

/// The configuration of a daemon that the package starts.
const INSTALLED: &str = "/etc/lockgate/lockgate.toml";

/// The source of a value in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Knowledge {
    /// The user said so, or the machine shows it.
    Known,
    /// The value is a guess: the file asks the user to check it.
    Guessed,
}

/// An interface of a gateway, with the addresses that `explain --config` is to know.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) netdev: (String, Knowledge),
    pub(super) addresses: Vec<(Address, u8)>,
}

/// A gateway at one end of the tunnel.
#[derive(Clone, Debug)]
pub(super) struct Gateway {
    pub(super) name: String,
    pub(super) lan: Port,
    pub(super) wan: Port,
    pub(super) outer: IpAddr,
    pub(super) networks: Vec<AddressRange>,
}

impl Gateway {
    /// Name of its configuration file.
    pub(super) fn configuration(&self) -> String {
        format!("{}.toml", self.name)
    }

    /// Name of its key file.
    pub(super) fn keys(&self, peer: &Gateway) -> String {
        format!("{}-{}.keys", self.name, peer.name)
    }

    /// The text of its configuration file.
    pub(super) fn text(&self, peer: &Gateway, suite: Suite) -> String {
        let (own, other, keys) = (&self.name, &peer.name, self.keys(peer));
        let benchmark =
            if suite.is_authenticated() { "" } else { "benchmark = \"no-integrity\"\n" };
        let (local, remote) = (list(&self.networks), list(&peer.networks));
        let routes = default_routes([self, peer]);
        format!(
            "\
# Gateway {own}: a tunnel to {other}. `lockgate init` wrote this file; edit it as you like.
# `lockgate check FILE` finds mistakes, `lockgate check FILE --effective` prints every default.

[node]
name = \"{own}\"

# The port towards the hosts behind this gateway. Everything is allowed here.
[port.lan]
{lan}side = \"protected\"

# The port towards the peer. Only what a policy allows passes here, and what `allow_host` lists for
# this gateway itself. To reach this gateway by SSH through this port, add \"tcp/22\".
[port.wan]
{wan}side = \"unprotected\"
allow_host = [\"udp/500\", \"udp/4500\", \"icmp\"]

# The other end of the tunnel. `suite` and `esn` are the same at both ends; the key file lies
# beside this file, readable by root alone. Nothing renews manual keys: use them in laboratories.
[peer.{other}]
local = \"{outer}\"
remote = \"{peer_outer}\"
keys = \"file:{keys}\"
manual = \"laboratory\"
suite = \"{suite}\"
{benchmark}esn = true

# What goes through the tunnel, in both directions: from and to `local` at this end, `remote` at
# the other. What no policy names is dropped at port wan.
[[policy]]
name = \"{other}\"
peer = \"{other}\"
local = [{local}]
remote = [{remote}]

# `addresses` above and what follows is for `lockgate explain --config` and `replay`. The running
# daemon follows the addresses and routes of Linux instead.
{routes}",
            lan = self.lan.text(other),
            wan = self.wan.text(other),
            outer = self.outer,
            peer_outer = peer.outer,
        )
    }
}

impl Port {
    /// Its first lines; `other` is where the person who is to check a guess comes from.
    fn text(&self, other: &str) -> String {
        let (netdev, knowledge) = &self.netdev;
        let guess = match knowledge {
            Knowledge::Known => String::new(),
            Knowledge::Guessed => {
                format!(
                    "# A guess, as on {other}: `ip link` lists the interfaces of this machine.\n"
                )
            }
        };
        let addresses = self.addresses.iter().map(|(ip, length)| format!("\"{ip}/{length}\""));
        let addresses = addresses.collect::<Vec<_>>().join(", ");
        format!("{guess}netdev = \"{netdev}\"\naddresses = [{addresses}]\n")
    }
}

/// A default route for each family that the gateways speak, inside or outside.
fn default_routes(gateways: [&Gateway; 2]) -> String {
    let mut text = String::new();
    for (family, to) in [(Family::V4, "default"), (Family::V6, "::/0")] {
        let speaks = |gateway: &&Gateway| {
            let inside = gateway.networks.iter().any(|network| network.family == family);
            inside || Address::from(gateway.outer).family == family
        };
        if gateways.iter().any(speaks) {
            let before = if text.is_empty() { "" } else { "\n" };
            text += &format!("{before}[[route]]\nto = \"{to}\"\nport = \"wan\"\n");
        }
    }
    text
}

fn list(networks: &[AddressRange]) -> String {
    let quoted = networks.iter().map(|network| format!("\"{network}\""));
    quoted.collect::<Vec<_>>().join(", ")
}

/// The first address of a network that a host can have, with the length of the prefix.
pub(super) fn first_host(network: &AddressRange) -> (Address, u8) {
    let first = network.first();
    let length = network.prefix_length().unwrap_or(first.family.address_bits());
    let is_pair = first.family == Family::V4 && length >= 31 || length >= 127;
    let value = first.value + u128::from(!is_pair);
    (Address { value, ..first }, length)
}

/// An address that a host behind a gateway may have.
fn some_host(network: &AddressRange) -> Address {
    let (first, _) = first_host(network);
    let tenth = Address { value: network.lo + 10, ..first };
    if network.contains(tenth) { tenth } else { first }
}

/// The next steps, as lines to read and to type.
pub(super) fn next_steps(directory: &Path, own: &Gateway, peer: &Gateway) -> String {
    let (name, other, outer) = (&own.name, &peer.name, peer.outer);
    let host = if outer.is_ipv6() { format!("[{outer}]") } else { outer.to_string() };
    let path = |file: String| directory.join(file).display().to_string();
    let (toml, keys) = (path(own.configuration()), path(own.keys(peer)));
    let (peer_toml, peer_keys) = (path(peer.configuration()), path(peer.keys(own)));
    let (from, to) = (some_host(&own.networks[0]), some_host(&peer.networks[0]));
    let are_known = [&peer.lan, &peer.wan].iter().all(|port| port.netdev.1 == Knowledge::Known);
    let guess = match are_known {
        true => "",
        false => " Its interfaces\n   are guesses: look at both `netdev` lines of its file first:",
    };
    let addresses = joined(&own.networks, ", ");
    format!(
        "\
{toml} and {keys} are for this gateway, {name};
{peer_toml} and {peer_keys} are for {other}.

1. As root, move the files of {other} to it.{guess}
     scp {peer_toml} root@{host}:{INSTALLED}
     scp {peer_keys} root@{host}:/etc/lockgate/
     rm {peer_toml} {peer_keys}
2. As root, put the files of this gateway into their place:
     install -m 600 -t /etc/lockgate {keys}
     install -m 644 {toml} {INSTALLED}
3. On both gateways, as root. SSH through port wan ends here, unless its `allow_host` lists it:
     lockgate check {INSTALLED}
     systemctl enable --now lockgated
   Without the package: lockgated --config {INSTALLED}
4. Each gateway needs a route to the other's networks that leaves by port wan; a default route
   is one. Then, from a host in {addresses}, ping a host behind {other}, and look:
     ping {to}
     lockgate show peer
     lockgate explain --in lan icmp/8/0 {from} {to}
",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_a_network_is_no_network_address() {
        let first = |text: &str| {
            let (address, length) = first_host(&text.parse().unwrap());
            format!("{address}/{length}")
        };
        assert_eq!(first("10.1.0.0/16"), "10.1.0.1/16");
        assert_eq!(first("10.1.0.4/31"), "10.1.0.4/31");
        assert_eq!(first("10.1.0.4/32"), "10.1.0.4/32");
        assert_eq!(first("10.1.0.4/30"), "10.1.0.5/30");
        assert_eq!(first("2001:db8::/64"), "2001:db8::1/64");
        assert_eq!(first("2001:db8::7/128"), "2001:db8::7/128");
    }
}
