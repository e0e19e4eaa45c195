//! Keys that Lockgate does not have: features refused on purpose, and names from other programs.

/// A feature that is refused on purpose (DESIGN §2), or is not there yet: reported by name, not as
/// an unknown key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Authentication Header.
    Ah,
    /// Traffic flow confidentiality padding.
    Tfc,
    /// Selectors populated from the packet.
    Pfp,
    /// Selectors by user, host or domain name.
    Names,
    /// SAs to a group.
    Multicast,
    /// Limits of SAs, which have a section of their own.
    Lifetimes,
    /// Rekeying: later, with IKE.
    Rekeying,
    /// Rules by TCP flags other than `tcp = "new"` and `"established"`.
    TcpFlags,
    /// Flooding of virtual networks, by multicast or by a list of hosts.
    Flooding,
    /// Routes between virtual networks.
    NetworkRoutes,
    /// Ways out of a virtual network to a plain port.
    NetworkExit,
    /// Endpoints in the configuration.
    Endpoints,
}

impl Refusal {
    /// The refusal behind a key that someone may well write.
    pub(crate) fn of_key(key: &str) -> Option<Refusal> {
        match key.replace('-', "_").as_str() {
            "ah" | "auth" => Some(Refusal::Ah),
            "tfc" | "tfc_padding" | "tfcpad" => Some(Refusal::Tfc),
            "pfp" | "populate_from_packet" => Some(Refusal::Pfp),
            "user" | "fqdn" | "dn" | "email" | "name_selector" | "local_name" | "remote_name" => {
                Some(Refusal::Names)
            }
            "multicast" | "multicast_group" => Some(Refusal::Multicast),
            "lifetime" | "lifetime_bytes" | "lifetime_packets" | "lifetime_seconds"
            | "soft_packets" | "soft_bytes" | "soft_seconds" | "soft_idle_seconds"
            | "hard_packets" | "hard_bytes" | "hard_seconds" | "hard_idle_seconds"
            | "life_time" | "life_bytes" | "life_packets" | "lifebytes" | "lifepackets" => {
                Some(Refusal::Lifetimes)
            }
            "rekey" | "rekey_time" | "rekey_bytes" | "rekey_packets" | "rekeymargin" => {
                Some(Refusal::Rekeying)
            }
            "tcp" | "tcp_flags" | "tcpflags" | "flags" => Some(Refusal::TcpFlags),
            _ => None,
        }
    }

    /// The refusal behind a key of an overlay or virtual network, as Linux, Open vSwitch and
    /// switches write it.
    pub(crate) fn of_network_key(key: &str) -> Option<Refusal> {
        match plain(key).as_str() {
            "flood" | "flooding" | "floodlist" | "bum" | "multicast" | "multicastgroup"
            | "mcastgroup" | "remotevteps" | "vteps" | "ingressreplication" => {
                Some(Refusal::Flooding)
            }
            "gateway" | "anycastgateway" | "route" | "routes" | "routing" | "router" | "vrf"
            | "l3vni" => Some(Refusal::NetworkRoutes),
            "exit" | "uplink" | "nat" | "snat" | "external" => Some(Refusal::NetworkExit),
            key => Refusal::of_section(key),
        }
    }

    /// The refusal behind the name of a section.
    pub(crate) fn of_section(name: &str) -> Option<Refusal> {
        match plain(name).as_str() {
            "endpoint" | "endpoints" | "neighbor" | "neighbors" | "fdb" | "hosts" => {
                Some(Refusal::Endpoints)
            }
            _ => None,
        }
    }

    pub(super) const fn text(self) -> &'static str {
        match self {
            Refusal::Ah => "AH is not supported",
            Refusal::Tfc => "TFC padding is not supported",
            Refusal::Pfp => "selectors populated from the packet (PFP) are not supported",
            Refusal::Names => "selectors by name are not supported",
            Refusal::Multicast => "multicast SAs are not supported",
            Refusal::Lifetimes => "limits of SAs are not written here",
            Refusal::Rekeying => "rekeying is not supported yet",
            Refusal::Flooding => "virtual networks are not flooded",
            Refusal::NetworkRoutes => "routing between virtual networks is not built",
            Refusal::NetworkExit => "there is no way out of a virtual network to a port",
            Refusal::Endpoints => "endpoints are not written here",
            Refusal::TcpFlags => "masks and values of TCP flags are not supported",
        }
    }

    pub(super) const fn help(self) -> &'static str {
        match self {
            Refusal::Ah => "ESP with an AEAD suite authenticates too (RFC 8221 §6)",
            Refusal::Tfc => "packets are padded to what ESP needs and no further",
            Refusal::Pfp => "write one policy per network: one SA set serves all of its flows",
            Refusal::Names => "write addresses, prefixes or ranges in `local` and `remote`",
            Refusal::Multicast => "name one peer per gateway, each with its own address",
            Refusal::Lifetimes => {
                "write [peer.NAME.lifetime] with `hard_packets`, `hard_bytes`, `hard_seconds` or \
                 `hard_idle_seconds`, and the same with `soft_`"
            }
            Refusal::Rekeying => {
                "manual keys are not renewed; limits of an SA are written in [peer.NAME.lifetime]"
            }
            Refusal::Flooding => {
                "leave it out: the gateway knows each endpoint by `lockgate endpoint put`, and \
                 answers ARP and neighbour discovery for it"
            }
            Refusal::NetworkRoutes => {
                "leave it out: endpoints that are to reach each other belong in one network"
            }
            Refusal::NetworkExit => {
                "leave it out: packets of a network go from endpoint to endpoint; hosts send what \
                 is for elsewhere outside the overlay"
            }
            Refusal::Endpoints => {
                "put endpoints of virtual networks with `lockgate endpoint put` or `import`; a \
                 next hop for `replay` is a [[neighbour]]"
            }
            Refusal::TcpFlags => {
                "a verdict is remembered for a flow, and flags differ from packet to packet: in \
                 [[rule]] write tcp = \"new\" (SYN without ACK) or tcp = \"established\" (all \
                 other segments); a [[policy]] matches all segments"
            }
        }
    }
}

/// A key of another program's configuration without a single counterpart here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Foreign {
    /// A secret, or a public key that stands for one.
    Secret,
    /// Networks behind the ends.
    Networks,
    /// Address and port of the other end in one.
    Endpoint,
    /// IKE, and what only IKE does.
    Ike,
}

impl Foreign {
    pub(super) const fn text(self) -> &'static str {
        match self {
            Foreign::Secret => "keys are not written here",
            Foreign::Networks => "a peer has no networks",
            Foreign::Endpoint => "an address is written without a port",
            Foreign::Ike => "IKE is not in this version",
        }
    }

    pub(super) const fn help(self) -> &'static str {
        match self {
            Foreign::Secret => {
                "make a pair of key files with lockgate keygen, and write keys = \"file:NAME\""
            }
            Foreign::Networks => {
                "write [[policy]] with peer = \"NAME\", `local` and `remote` for them"
            }
            Foreign::Endpoint => {
                "write remote = \"ADDRESS\"; for ESP in UDP also encapsulation = \"udp\" and \
                 remote_port"
            }
            Foreign::Ike => "leave it out: a peer has manual keys, for a laboratory",
        }
    }

    /// The meaning of a key of `[peer.NAME]` as strongSwan, Libreswan or WireGuard write it.
    pub(crate) fn of_key(key: &str) -> Option<Foreign> {
        Some(match plain(key).as_str() {
            "psk" | "secret" | "secrets" | "presharedkey" | "privatekey" | "publickey" | "key"
            | "password" | "authby" | "leftcert" | "rightcert" | "cert" | "certs" => {
                Foreign::Secret
            }
            "allowedips" | "leftsubnet" | "rightsubnet" | "leftsubnets" | "rightsubnets"
            | "localts" | "remotets" | "subnet" | "subnets" | "networks" => Foreign::Networks,
            "endpoint" => Foreign::Endpoint,
            "ike" | "ikev2" | "keyexchange" | "ikelifetime" | "version" | "proposals" | "auto"
            | "startaction" | "closeaction" | "dpdaction" | "dpddelay" | "dpdtimeout"
            | "leftid" | "rightid" | "aggressive" | "fragmentation" | "mobike" => Foreign::Ike,
            _ => return None,
        })
    }
}

/// A key without its case and its separators: `AllowedIPs`, `allowed_ips`.
fn plain(key: &str) -> String {
    key.to_lowercase().replace(['-', '_'], "")
}

/// Returns the keys that replace another program's key.
pub(crate) fn renamed(key: &str) -> &'static [&'static str] {
    match plain(key).as_str() {
        "natt" | "nattraversal" | "udpencap" | "encap" | "forceencaps" => &["encapsulation"],
        "extendedsequencenumbers" | "sequencenumbers" => &["esn"],
        "keepalive" | "persistentkeepalive" => &["nat_keepalive"],
        "window" | "antireplaywindow" | "replaywin" => &["replay_window"],
        "dontfragment" | "copydf" => &["df"],
        "pathmtu" | "pathmtudiscovery" | "pmtud" | "nopmtudisc" => &["pmtu"],
        "tos" | "copydscp" => &["dscp"],
        "left" | "leftaddr" | "localaddr" | "localaddrs" | "localaddress" => {
            &["local", "entrances"]
        }
        "right" | "rightaddr" | "remoteaddr" | "remoteaddrs" | "remoteaddress" => &["remote"],
        "src" | "source" => &["local", "from"],
        "leftsubnet" | "localts" | "localsubnet" | "localnet" => &["local"],
        "dst" | "destination" | "rightsubnet" | "remotets" | "remotesubnet" => &["remote", "to"],
        // A rule of a group says where a packet is from and to, a policy which side is whose.
        "local" => &["from", "entrances"],
        "remote" => &["to"],
        "from" => &["local"],
        "to" => &["remote"],
        "localports" => &["from_ports"],
        "remoteports" => &["to_ports"],
        "fromports" => &["local_ports"],
        "toports" => &["remote_ports"],
        "allowedips" => &["remote"],
        "esp" | "espproposals" | "cipher" | "ciphers" | "phase2alg" => &["suite"],
        "type" | "encapsulation" => &["kind"],
        "interface" | "ifname" | "device" | "dev" | "nic" => &["netdev", "port"],
        "address" | "ip" | "ipaddress" => &["addresses", "entrances"],
        "vtep" | "vtepaddress" | "localip" | "tunnelip" => &["entrances"],
        "gateway" | "gw" | "nexthop" => &["via"],
        "lladdr" | "macaddress" => &["mac"],
        "proto" => &["protocol"],
        "sport" | "leftport" => &["local_ports", "from_ports"],
        "dport" | "rightport" => &["remote_ports", "to_ports", "udp_port"],
        "dstport" | "destinationport" | "udpport" => &["udp_port"],
        "dir" => &["direction"],
        _ => &[],
    }
}
