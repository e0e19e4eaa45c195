//! Every key of the configuration: the list that the parser reads by, and that
//! docs/reference/configuration.md shows.

/// A section of the file with its keys.
#[derive(Debug)]
pub struct SectionSchema {
    /// Header of the section: `[port.NAME]`, `[[policy]]`.
    pub header: &'static str,
    /// Subject of the section.
    pub meaning: &'static str,
    /// Keys of the section, in the order of the reference.
    pub keys: &'static [Key],
    /// The names of the keys, in the same order.
    pub(crate) names: &'static [&'static str],
}

/// A key of a section.
#[derive(Debug)]
pub struct Key {
    /// Name of the key, as the file has it.
    pub name: &'static str,
    /// Type of its value.
    pub value: ValueType,
    /// Value that holds if the file does not have the key.
    pub default: Default,
    /// Effect of the value, and its range.
    pub meaning: &'static str,
}

/// Type of a value in TOML.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueType {
    /// A string.
    Text,
    /// An integer.
    Number,
    /// `true` or `false`.
    Truth,
    /// A string or an integer.
    Either,
    /// A list of strings.
    Texts,
}

/// Value of a key that the file does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Default {
    /// No default: the key must be written.
    Required,
    /// A value, as a file would have it.
    Value(&'static str),
    /// A meaning that no value of the key has, in words.
    Words(&'static str),
}

impl ValueType {
    /// Returns the type in words, as messages about a value of another type have it.
    pub const fn words(self) -> &'static str {
        match self {
            ValueType::Text => "a string in quotes",
            ValueType::Number => "a whole number",
            ValueType::Truth => "true or false",
            ValueType::Either => "a string in quotes or a whole number",
            ValueType::Texts => "a list of strings, [\"…\", \"…\"]",
        }
    }
}

impl SectionSchema {
    /// Returns the names of the sections in this one: `lifetime` for `[peer.NAME.lifetime]`.
    pub(crate) fn sections(&self) -> impl Iterator<Item = &'static str> {
        let outer = self.header.trim_matches(['[', ']']);
        let headers = SECTIONS.iter().map(|section| section.header.trim_matches(['[', ']']));
        headers.filter_map(move |header| header.strip_prefix(outer)?.strip_prefix('.'))
    }

    /// Returns the names of the keys that must be written.
    pub(crate) fn required(&self) -> impl Iterator<Item = &'static str> {
        let required = self.keys.iter().filter(|key| key.default == Default::Required);
        required.map(|key| key.name)
    }
}

/// A key, in the order in which a table shows it.
const fn key(name: &'static str, value: ValueType, default: Default, meaning: &'static str) -> Key {
    Key { name, value, default, meaning }
}

const fn names<const N: usize>(keys: &[Key; N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut at = 0;
    while at < N {
        names[at] = keys[at].name;
        at += 1;
    }
    names
}

macro_rules! sections {
    ($($schema:ident $header:literal $meaning:literal [
        $($name:literal $value:ident $default:expr, $key_meaning:literal)*
    ])*) => {
        $(
            pub(crate) static $schema: SectionSchema = {
                const KEYS: &[Key; [$($name),*].len()] =
                    &[$(key($name, ValueType::$value, $default, $key_meaning)),*];
                SectionSchema {
                    header: $header,
                    meaning: $meaning,
                    keys: KEYS,
                    names: &const { names(KEYS) },
                }
            };
        )*

        /// Every section, in the order of the reference.
        pub static SECTIONS: &[&SectionSchema] = &[$(&$schema),*];
    };
}

use self::Default::{Required, Value, Words};

sections! {
    NODE "[node]" "The gateway itself." [
        "name" Text Required,
            "name of the gateway: 1 to 64 letters, digits, `.`, `_`, `-`; not first `.` or `-`"
        "workers" Either Value("\"auto\""),
            "number of worker threads, 1 … 256; `\"auto\"`: the cores less `reserve_cores`, at \
             least 1. Never more than the netdev with the fewest receive queues has"
        "reserve_cores" Number Value("1"),
            "cores that `workers = \"auto\"` leaves to other programs, 0 … 1023"
        "on_exit" Text Value("\"closed\""),
            "`\"closed\"`: ports stay closed when the daemon ends; `\"open\"`: Linux may forward \
             in cleartext"
        "keys_dir" Text Value("\".\""),
            "directory of the key files, relative to the directory of the configuration file; \
             only its owner may write to it. A change needs a restart"
        "run_dir" Text Value("\"/run/lockgate\""),
            "directory for what lasts until the next boot: API socket, counters, replay windows, \
             connections. An absolute path of at most 96 bytes"
        "state_dir" Text Value("\"/var/lib/lockgate\""),
            "directory for what must outlast a reboot: reserved sequence numbers, revisions. An \
             absolute path, another than `run_dir`"
        "poll" Text Value("\"sleep\""),
            "how an idle worker waits: `\"sleep\"`: for the kernel; `\"busy\"`: it polls \
             continuously and keeps its core at 100 %"
    ]

    PORT "[port.NAME]" "A port: a network device, or one VLAN of it, that the gateway serves." [
        "netdev" Text Required,
            "name of the network device, at most 15 characters; `lockgate0` is reserved"
        "vlan" Number Words("untagged"),
            "VLAN id, 1 … 4094. Several ports may share a netdev; frames with other tags are \
             dropped"
        "side" Text Required,
            "`\"protected\"`: the gateway's own networks; `\"unprotected\"`: the side of the peers"
        "allow_host" Texts Value("[]"),
            "services of the gateway itself that an unprotected port lets in: `\"udp/500\"`, \
             `\"tcp/22\"`, `\"tcp/8000-8080\"`, `\"icmp\"`, or a protocol number; at most 32"
        "l4_checksum" Text Words("`\"complete\"` on a protected port, `\"pass\"` on an unprotected \
                           one"),
            "`\"complete\"`: completes TCP and UDP checksums that senders behind veth, tap and \
             virtio leave to their device; protected ports only. `\"pass\"`: leaves checksums as \
             they came"
        "xdp" Text Value("\"auto\""),
            "place where the kernel runs Lockgate's program for the netdev: `\"native\"`: in its \
             driver, or not at all; `\"generic\"`: behind the driver, slower, on any netdev; \
             `\"auto\"`: native if the driver can, else generic. Ports on one netdev have the \
             same"
        "offload_groups" Text Value("\"auto\""),
            "rules of `groups_in` that the port's card may decide, if it is on one: `\"auto\"`: \
             those that are safe there and worth it; `\"none\"`; `\"drop\"`: as `\"auto\"`, and \
             the card drops by itself what they deny"
        "groups_in" Texts Value("[]"),
            "security groups that judge what comes by the port, in their order; at most 64. \
             Without any, everything may come"
        "groups_out" Texts Value("[]"),
            "security groups that judge what leaves by the port, in their order; at most 64. \
             Without any, everything may leave"
        "addresses" Texts Value("[]"),
            "for `replay` and `explain --config`: the gateway's addresses on the port, with prefix \
             lengths. The daemon takes them from Linux"
        "mac" Text Words("`02:4c:47:00:00:01` for the first port, `…:02` for the second"),
            "for `replay` and `explain --config`: the port's MAC address"
        "mtu" Number Value("1500"),
            "for `replay` and `explain --config`: largest IP packet, 68 … 65535 bytes; at least \
             1280 with an IPv6 address"
    ]

    PEER "[peer.NAME]" "The gateway at the other end of a tunnel." [
        "local" Text Required,
            "outer address of this gateway"
        "remote" Text Required,
            "outer address of the peer, of the same IP version"
        "keys" Text Required,
            "`\"file:NAME\"`: the peer's key file in `keys_dir`; `\"api\"`: its SAs are put over \
             the API; `\"ike\"`: charon installs them"
        "manual" Text Words("none"),
            "`\"laboratory\"` is required with a key file: manual keys are for laboratories only \
             (RFC 4106 §2)"
        "suite" Text Required,
            "cipher suite, the same at both ends; with `keys = \"api\"` that of SAs put without \
             one: `\"aes-128-gcm\"`, `\"chacha20-poly1305\"`, …"
        "benchmark" Text Words("none"),
            "`\"no-integrity\"` is required with suite `\"null\"`, and refused with any other"
        "mode" Text Value("\"tunnel\""),
            "`\"tunnel\"` or `\"transport\"` (RFC 4301 §4.1)"
        "esn" Truth Value("false"),
            "extended sequence numbers (RFC 4303 §2.2.1), the same at both ends"
        "replay_window" Number Value("1024"),
            "size of the replay window in packets, 32 … 4096, a multiple of 32"
        "mss_clamp" Truth Value("true"),
            "lowers the MSS of TCP SYNs to what the tunnel carries"
        "pmtu" Text Value("\"learn\""),
            "`\"learn\"`: the path MTU to the peer falls when ICMP from outside credibly says so, \
             and is forgotten after ten minutes; `\"ignore\"`: it is always the MTU of the port"
        "encapsulation" Text Value("\"none\""),
            "`\"udp\"`: ESP in UDP from and to port 4500 (RFC 3948), for peers behind a NAT"
        "remote_port" Number Value("4500"),
            "with `encapsulation = \"udp\"`: the peer's UDP port, 1 … 65535"
        "behind_nat" Truth Value("false"),
            "with `encapsulation = \"udp\"`: the peer's address and port may change"
        "moves_to" Texts Value("[]"),
            "with `keys = \"ike\"`: addresses that the peer's end may move to beside `remote`, \
             when charon says so (MOBIKE): prefixes, ranges, or `\"any\"`"
        "local_moves_to" Texts Value("[]"),
            "likewise the addresses that this gateway's end may move to beside `local`"
        "nat_keepalive" Either Value("20"),
            "with `encapsulation = \"udp\"`: seconds without a packet to the peer after which a \
             NAT keepalive is sent, 1 … 3600; or `\"off\"`"
        "dscp" Either Value("\"copy\""),
            "in tunnel mode: DSCP of the outer header: `\"copy\"` of the inner packet's, or always \
             this number, 0 … 63"
        "df" Text Value("\"set\""),
            "in tunnel mode over IPv4: don't-fragment flag of the outer header: `\"set\"`, \
             `\"clear\"`, or `\"copy\"` of the inner packet's"
        "fragment_outer" Truth Words("none"),
            "deprecated, without effect, and warned of: IPv6 packets of up to 1280 bytes cross \
             every path, in fragments of the outer packet where they must"
        "offload" Text Value("\"none\""),
            "the carrier of the SAs that are put for the peer: `\"none\"`: software; `\"packet\"`: \
             the network card of the port that leads to it does all of ESP, or the SA is refused; \
             `\"crypto\"`: that card does the cipher alone, likewise; `\"auto\"`: packet where the \
             card can, else crypto, else software"
        "outer" Text Words("none"),
            "the peer whose SA seals again what this peer's has sealed, and by which alone it \
             comes: both in tunnel mode, this one's SAs in software"
    ]

    LIFETIME "[peer.NAME.lifetime]" "Limits of each SA of the peer, in both directions. At a soft \
        limit there is an event; at a hard one the SA ends." [
        "soft_packets" Either Words("none"),
            "packets, 1 … 2^64 − 1, also with K, M, G or T (binary): `\"1G\"`; at most \
             `hard_packets`"
        "hard_packets" Either Words("none"),
            "likewise; the SA ends"
        "soft_bytes" Either Words("none"),
            "bytes that the cipher processes: packets, padding and ESP trailers (RFC 4301 \
             §4.4.2.1); written as packets are: `\"10G\"`"
        "hard_bytes" Either Words("none"),
            "likewise; the SA ends"
        "soft_seconds" Number Words("none"),
            "seconds since the key was used first, 1 … 315360000"
        "hard_seconds" Number Words("none"),
            "likewise; the SA ends"
        "soft_idle_seconds" Number Words("none"),
            "seconds since the SA was used last, 1 … 315360000"
        "hard_idle_seconds" Number Words("none"),
            "likewise; the SA ends"
    ]

    POLICY "[[policy]]" "A policy of the SPD. It decides packets that enter or leave by an \
        unprotected port." [
        "name" Text Required,
            "name of the policy: 1 to 64 letters, digits, `.`, `_`, `-`; not first `.` or `-`"
        "peer" Text Words("none"),
            "PROTECT: packets are carried in the tunnel to this peer"
        "action" Text Words("`\"protect\"` with a peer; required without one"),
            "`\"protect\"`, `\"bypass\"` or `\"discard\"`"
        "ports" Texts Words("all ports"),
            "ports by which a packet must arrive for the policy to match. If the list names ports \
             of a side, only those match; for a side with no listed port, all match. `\"host\"` is \
             traffic from this machine"
        "local" Texts Required,
            "addresses on the gateway's side: prefixes, ranges, addresses, or `\"any\"`"
        "remote" Texts Required,
            "addresses on the peer's side: prefixes, ranges, addresses, or `\"any\"`"
        "protocol" Either Value("\"any\""),
            "`\"tcp\"`, `\"udp\"`, `\"icmp\"`, `\"icmpv6\"`, `\"sctp\"`, `\"dccp\"`, \
             `\"udplite\"`, `\"gre\"`, `\"esp\"`, or a number"
        "local_ports" Texts Words("any"),
            "TCP, UDP, SCTP, DCCP or UDP-Lite ports on the gateway's side: `[\"443\", \
             \"8000-8999\"]`"
        "remote_ports" Texts Words("any"),
            "the same for the peer's side"
        "icmp" Texts Words("any"),
            "ICMP types, types with codes, and ranges: `[\"8\", \"3/4\", \"3-5\", \
             \"3/0-3/15\"]`; needs protocol icmp or icmpv6"
        "priority" Number Value("100"),
            "0 … 4294967295; the highest decides, among equals the later in the file"
        "direction" Text Value("\"both\""),
            "`\"both\"`, `\"outbound\"` or `\"inbound\"`"
    ]

    SET "[set.NAME]" "A set of addresses, which rules of security groups name as `\"@NAME\"`." [
        "addresses" Texts Words("those of `file`"),
            "prefixes, ranges and addresses of both IP versions, at most 100,000"
        "file" Text Words("none"),
            "file with a prefix, range or address a line, at most 100,000; `#` begins a comment. A \
             relative name starts at the directory of the configuration file, where the daemon \
             reads it at its start; `apply` sends its text"
    ]

    GROUP "[group.NAME]" "A security group: rules that ports and virtual networks list in \
        `groups_in` or `groups_out`." [
        "mode" Text Value("\"enforce\""),
            "`\"enforce\"`: denied packets are dropped; `\"audit\"`: they are counted, and pass"
    ]

    RULE "[[rule]]" "A rule of a security group. The first of a group that matches decides." [
        "group" Text Required,
            "group that the rule is of"
        "name" Text Words("the rule's number in its group, from 1"),
            "name of the rule, unique in its group: 1 to 64 letters, digits, `.`, `_`, `-`; not \
             first `.` or `-`"
        "action" Text Required,
            "`\"permit\"`, `\"deny\"`, or `\"reflect\"`: permits, and lets the answers back"
        "from" Texts Required,
            "sources: prefixes, ranges, addresses, sets as `\"@NAME\"`, or `\"any\"`"
        "to" Texts Required,
            "destinations, likewise"
        "protocol" Either Value("\"any\""),
            "as in `[[policy]]`"
        "from_ports" Texts Words("any"),
            "source ports: `[\"443\", \"8000-8999\"]`"
        "to_ports" Texts Words("any"),
            "destination ports, likewise"
        "tcp" Text Words("any"),
            "`\"new\"`: TCP segments with SYN and without ACK; `\"established\"`: all others of TCP"
        "icmp" Texts Words("any"),
            "ICMP messages, as in `[[policy]]`"
    ]

    OVERLAY "[overlay.NAME]" "An overlay, in which hosts send the gateway packets of virtual \
        networks. The gateway sends each on to the host of its destination." [
        "kind" Text Required,
            "`\"vxlan\"` (RFC 7348) or `\"geneve\"` (RFC 8926)"
        "port" Text Required,
            "port that its packets come by; those that an SA opened may come by any. They leave as \
             routes say"
        "udp_port" Number Words("4789 for VXLAN, 6081 for Geneve"),
            "UDP port that hosts send to, 1 … 65535; not 500 or 4500"
        "entrances" Texts Required,
            "addresses of the gateway that hosts send to, 1 … 128; each with its UDP port of one \
             overlay"
        "direct" Text Value("\"off\""),
            "`\"on\"`: the host of a flow's sender is told where the destination is, so that it \
             can send there without the gateway: of networks without groups, of IPv4, where `port` \
             is protected. The kernel then answers none of them. `\"off\"`: all packets go by the \
             gateway"
        "direct_port" Number Value("8300"),
            "UDP port that hosts hear about direct paths at, 1 … 65535"
    ]

    NETWORK "[vni.NUMBER]" "A virtual network, by its number, 0 … 16777215. Its endpoints are \
        put with `lockgate endpoint`, never written here." [
        "overlay" Text Words("the overlay, if there is one only"),
            "overlay that carries the network"
        "groups_in" Texts Value("[]"),
            "security groups that judge what its endpoints send, in their order; at most 64. \
             Without any, everything may be sent"
        "groups_out" Texts Value("[]"),
            "security groups that judge what its endpoints are sent, in their order; at most 64"
        "source_check" Text Value("\"endpoint\""),
            "`\"endpoint\"`: a packet's source, with its MAC address, must be an endpoint behind \
             the host that sends it; `\"host\"`: that host must have an endpoint; `\"none\"`"
    ]

    STORE "[store]" "The store of endpoints." [
        "kind" Text Value("\"sqlite\""),
            "`\"sqlite\"`: a database in `state_dir`; `\"memory\"`: endpoints are gone when the \
             daemon ends"
        "endpoints" Either Value("\"64K\""),
            "endpoints that there is room for, 1 … 4194304, also with K or M (binary); each takes \
             128 bytes of memory once the first overlay is applied"
    ]

    KERNEL "[kernel]" "The packets of virtual networks that the kernel answers, in front of the \
        workers." [
        "use" Text Value("\"auto\""),
            "`\"auto\"`: on netdevs of devices; `\"on\"`: on all, and then what is at the other \
             end of a veth needs an XDP program; `\"off\"`"
        "endpoints" Either Value("\"64K\""),
            "endpoints that the kernel has room for, and verdicts on flows, 1 … 4194304, also with \
             K or M (binary); one of each together take some 200 bytes of its memory, and 32 more \
             for each processor core, once the first overlay is applied"
        "promote_busy" Truth Value("false"),
            "an endpoint goes over to the kernel even while packets wait for a worker, so that \
             later ones may overtake them"
    ]

    CARD "[card.NAME]" "A network card that may decide rules of security groups: it tags packets, \
        and the gateway believes a tag while that is safe." [
        "kind" Text Required,
            "`\"emulated\"`: software in a card's place, the process `lockgate-emulated-card`. \
            `\"xfrm\"`: a card that does ESP under Linux, which carries the packets"
        "socket" Text Words("none"),
            "Unix socket at which the process of an emulated card listens, an absolute path of at \
            most 107 bytes; required there, and nowhere else"
        "stand_in" Text Words("none"),
            "`\"linux\"`: of kind `xfrm`, for tests: Linux does ESP in software in the card's place"
        "ports" Texts Required,
            "ports that are on the card. Each is on one card at most, and so is each netdev"
    ]

    AUDIT "[audit]" "The audit of what answers in the rules' place: the flow cache, the kernel's \
        claims and the tags of cards." [
        "one_of" Number Value("1000"),
            "of so many packets that they decided one is judged again by the rules, \
             1 … 1000000000; `0`: none is"
    ]

    IKE "[ike]" "Bounds of what charon may install by itself, for packets of which no policy of \
        the file speaks. Without the section it may install nothing but SAs for policies of the \
        file." [
        "ends" Texts Required,
            "addresses of this gateway at which its tunnels may end: prefixes, ranges, addresses, \
             or `\"any\"`. Ends of a `[peer.NAME]` are that section's all the same"
        "peers" Texts Required,
            "addresses of others with whom it may make tunnels, likewise"
        "local" Texts Required,
            "addresses on the gateway's side that its policies may name, likewise"
        "remote" Texts Required,
            "addresses on the far side that its policies may name, likewise"
        "protocol" Either Value("\"any\""),
            "protocol that its policies must name, as in `[[policy]]`; `\"any\"`: each, and none"
        "local_ports" Texts Words("any"),
            "ports on the gateway's side that its policies may name, as in `[[policy]]`"
        "remote_ports" Texts Words("any"),
            "the same for the far side"
        "suites" Texts Words("all that encrypt and authenticate"),
            "suites that it may negotiate, by their names in `[peer.NAME]`"
        "max_children" Number Value("10000"),
            "CHILD_SAs and shunts of its own that it may have at a time, 1 … 65536"
    ]

    IKE_LIFETIME "[ike.lifetime]" "Limits of each SA that `[ike]` lets in. The lower of these and \
        charon's hold." [
        "soft_packets" Either Words("none"),
            "as in `[peer.NAME.lifetime]`"
        "hard_packets" Either Words("none"),
            "likewise"
        "soft_bytes" Either Words("none"),
            "likewise"
        "hard_bytes" Either Words("none"),
            "likewise"
        "soft_seconds" Number Words("none"),
            "likewise"
        "hard_seconds" Number Words("none"),
            "likewise"
        "soft_idle_seconds" Number Words("none"),
            "likewise"
        "hard_idle_seconds" Number Words("none"),
            "likewise"
    ]

    SHUNT "[[ike.shunt]]" "Packets that charon may have passed in clear or dropped, by a shunt \
        (`mode = pass` or `drop` in swanctl.conf) that has these packets or some of them." [
        "action" Text Required,
            "`\"bypass\"` or `\"discard\"`"
        "local" Texts Required,
            "as in `[[policy]]`"
        "remote" Texts Required,
            "likewise"
        "protocol" Either Value("\"any\""),
            "likewise"
        "local_ports" Texts Words("any"),
            "likewise"
        "remote_ports" Texts Words("any"),
            "likewise"
    ]

    ROUTE "[[route]]" "A route for `replay` and `explain --config`; the daemon follows the routes \
        of Linux." [
        "to" Text Required,
            "prefix, or `\"default\"` (IPv4; `\"::/0\"` for IPv6)"
        "via" Text Words("none"),
            "address of the next hop"
        "port" Text Words("none"),
            "port whose link the destination is on"
        "type" Text Words("none"),
            "`\"blackhole\"`: packets are dropped"
    ]

    NEIGHBOUR "[[neighbour]]" "A neighbour for `replay` and `explain --config`; the daemon follows \
        the neighbours of Linux." [
        "port" Text Required, "port whose link the neighbour is on"
        "address" Text Required, "IP address of the neighbour"
        "mac" Text Required, "MAC address of the neighbour"
    ]

    CACHE "[cache]" "The flow cache." [
        "flows" Either Value("\"1M\""),
            "flows that the caches of all workers are sized for, 2 … `\"64M\"` (K and M are \
             binary); `\"off\"`: there is no cache"
        "use" Text Value("\"auto\""),
            "`\"auto\"`: the cache is looked up where that costs less than the search it saves; \
             `\"always\"`: everywhere, for tests"
    ]

    CONNECTIONS "[connections]" "The table of the connections that `reflect` rules let begin. It \
        is made for the first such rule; all keys are read then." [
        "max" Either Value("\"256K\""),
            "connections in all, 2 … `\"16M\"` (K and M are binary), 128 bytes each; one of IPv6 \
             counts as two"
        "per_port" Either Words("`max`"),
            "connections that the rules of one port or virtual network let begin, 1 … `max`"
        "half_open" Either Words("a quarter of `max`"),
            "connections in all that only one end has shown to want, 2 … `max`; 16 to 32 bytes each"
        "half_open_per_port" Either Words("half of `half_open`"),
            "such connections that the rules of one port or virtual network let begin, 1 … \
             `half_open`"
        "tcp_syn_s" Number Value("30"),
            "seconds without a packet after which a TCP connection is over that is not established"
        "tcp_established_s" Number Value("86400"),
            "likewise, established"
        "tcp_closing_s" Number Value("120"),
            "likewise, after the FIN of one end"
        "tcp_time_wait_s" Number Value("120"),
            "likewise, after the FINs of both ends"
        "tcp_reset_s" Number Value("10"),
            "likewise, after an RST"
        "udp_unreplied_s" Number Value("30"),
            "likewise, UDP without an answer"
        "udp_replied_s" Number Value("180"),
            "likewise, UDP with answers"
        "icmp_echo_s" Number Value("30"),
            "likewise, ICMP echo"
        "other_unreplied_s" Number Value("60"),
            "likewise, other protocols without an answer"
        "other_replied_s" Number Value("180"),
            "likewise, other protocols with answers"
    ]

    METRICS "[metrics]" "The HTTP listener for metrics." [
        "listen" Text Value("\"127.0.0.1:9617\""),
            "address and port where `/metrics` and `/healthz` are served; `\"off\"`: nowhere. \
             There is no password"
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    /// Returns a file with every section. Section `changed` lacks the key `without` and has the
    /// line `with`.
    fn file(changed: &SectionSchema, without: &str, with: &str) -> String {
        let mut text = "[port.out]\nnetdev = \"e1\"\nside = \"unprotected\"\n".to_owned();
        for (header, keys) in FILE {
            let is_changed = *header == changed.header;
            let is_out = |line: &&str| is_changed && line.starts_with(&format!("{without} "));
            let kept: Vec<&str> = keys.lines().filter(|line| !is_out(line)).collect();
            let own = if is_changed { with } else { "" };
            let header = header.replace("NUMBER", "7");
            text += &format!("{header}\n{}\n{own}\n", kept.join("\n"));
        }
        text
    }

    const FILE: &[(&str, &str)] = &[
        ("[node]", "name = \"n\""),
        ("[port.NAME]", "netdev = \"e0\"\nside = \"protected\""),
        (
            "[peer.NAME]",
            "local = \"192.0.2.1\"\nremote = \"198.51.100.1\"\nkeys = \"file:a.keys\"\nmanual = \
             \"laboratory\"\nsuite = \"aes-128-gcm\"\nencapsulation = \"udp\"",
        ),
        ("[peer.NAME.lifetime]", ""),
        ("[[policy]]", "name = \"p\"\npeer = \"NAME\"\nlocal = [\"any\"]\nremote = [\"any\"]"),
        ("[[route]]", "to = \"10.9.0.0/16\"\ntype = \"blackhole\""),
        ("[[neighbour]]", "port = \"NAME\"\naddress = \"10.1.0.9\"\nmac = \"02:00:00:00:00:01\""),
        ("[set.NAME]", "addresses = [\"10.9.0.0/24\"]"),
        ("[group.NAME]", ""),
        ("[[rule]]", "group = \"NAME\"\naction = \"permit\"\nfrom = [\"@NAME\"]\nto = [\"any\"]"),
        ("[overlay.NAME]", "kind = \"vxlan\"\nport = \"NAME\"\nentrances = [\"192.0.2.10\"]"),
        ("[vni.NUMBER]", ""),
        ("[store]", ""),
        ("[kernel]", ""),
        ("[card.NAME]", "kind = \"emulated\"\nsocket = \"/run/c\"\nports = [\"NAME\"]"),
        ("[audit]", ""),
        (
            "[ike]",
            "ends = [\"192.0.2.1\"]\npeers = [\"any\"]\nlocal = [\"any\"]\nremote = [\"any\"]",
        ),
        ("[ike.lifetime]", ""),
        ("[[ike.shunt]]", "action = \"bypass\"\nlocal = [\"any\"]\nremote = [\"any\"]"),
        ("[cache]", ""),
        ("[connections]", ""),
        ("[metrics]", ""),
    ];

    #[test]
    fn a_value_of_another_type_is_refused_by_the_type_of_the_list() {
        for section in SECTIONS {
            for key in section.keys {
                let text = file(section, key.name, &format!("{} = 1979-05-27", key.name));
                let refusal = parse(&text, "test").unwrap_err().to_string();
                let expected = format!("`{}` must be {}", key.name, key.value.words());
                assert!(refusal.contains(&expected), "{expected} is not in\n{refusal}");
            }
        }
    }

    #[test]
    fn required_keys_are_missed_and_no_others() {
        for section in SECTIONS {
            for key in section.keys {
                let refusal = parse(&file(section, key.name, ""), "test").err();
                let refusal = refusal.map_or_else(String::new, |refusal| refusal.to_string());
                let is_missed = refusal.contains(&format!("lacks `{}`", key.name));
                assert_eq!(is_missed, key.default == Required, "{} {}", section.header, key.name);
            }
        }
    }

    #[test]
    fn a_default_means_what_its_absence_means() {
        for section in SECTIONS {
            for key in section.keys {
                let Value(value) = key.default else { continue };
                let meaning = |line: &str| {
                    let text = file(section, key.name, line);
                    match parse(&text, "test") {
                        Ok(parsed) => parsed.validated.effective(),
                        Err(errors) => panic!("{errors}\n{text}"),
                    }
                };
                let written = format!("{} = {value}", key.name);
                assert_eq!(meaning(&written), meaning(""), "{written}");
            }
        }
    }

    #[test]
    fn every_key_is_documented() {
        let text = include_str!("../../../docs/CONFIGURATION.md");
        let keys = SECTIONS.iter().flat_map(|section| section.names);
        let says = |key: &&&str| {
            text.contains(&format!("`{key}`")) || text.contains(&format!("`{key} = "))
        };
        let missing: Vec<_> = keys.filter(|key| !says(key)).collect();
        assert!(missing.is_empty(), "docs/CONFIGURATION.md does not say what {missing:?} are");
    }
}
