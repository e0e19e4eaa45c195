//! `[peer.NAME]`.

use crate::{Row, row};

/// The lines of a second peer, the last of them a key that is to follow.
macro_rules! inner {
    () => {
        "[peer.inner]\nlocal = \"192.0.2.1\"\nremote = \"203.0.113.9\"\nkeys = \"api\"\n\
         suite = \"aes-128-gcm\"\n"
    };
}

/// Good bounds of IKE in front of `[cache]`, with more lines.
macro_rules! ike {
    ($more:literal) => {
        concat!(
            "[ike]\nends = [\"192.0.2.1\"]\npeers = [\"any\"]\nlocal = [\"any\"]\n",
            "remote = [\"10.9.0.0/16\"]\n",
            $more,
            "\n[cache]"
        )
    };
}

pub(crate) const ERRORS: &[Row] = &[
    // [peer.NAME]
    row(
        "remote = \"198.51.100.7\"",
        "remote = \"198.51.100\"",
        "17:10",
        "\"198.51.100\" is not an IP address",
        "",
    ),
    row(
        "remote = \"198.51.100.7\"",
        "remote = \"2001:db8::7\"",
        "17:10",
        "one end of the tunnel is IPv4, the other IPv6",
        "",
    ),
    row(
        "remote = \"198.51.100.7\"",
        "remote = \"10.1.0.1\"",
        "17:10",
        "10.1.0.1 is an address of this gateway",
        "",
    ),
    row(
        "remote = \"198.51.100.7\"",
        "remote = \"239.1.1.1\"",
        "17:10",
        "multicast SAs are not supported",
        "one peer per gateway",
    ),
    row(
        "local = \"192.0.2.1\"",
        "local = \"192.0.2.2\"",
        "16:9",
        "192.0.2.2 is not an address of this gateway",
        "this gateway has 10.1.0.1, 192.0.2.1",
    ),
    row(
        "mode = \"tunnel\"",
        "offload = \"full\"",
        "21:11",
        "a card has no mode `full`",
        "write \"packet\"",
    ),
    row("mode = \"tunnel\"", "offload = \"pakcet\"", "21:11", "`offload`", "packet"),
    row(
        "mode = \"tunnel\"",
        "offload = \"packet\"",
        "21:11",
        "a card cannot have keys of a file",
        "write keys = \"api\"",
    ),
    row(
        "mode = \"tunnel\"",
        "offload = \"crypto\"",
        "21:11",
        "a card cannot have keys of a file",
        "write keys = \"api\"",
    ),
    row(
        "keys = \"file:berlin.keys\"\nmanual = \"laboratory\"",
        "keys = \"api\"\nencapsulation = \"udp\"\nbehind_nat = true\noffload = \"packet\"",
        "21:11",
        "a card cannot follow a peer whose address changes",
        "the old address",
    ),
    row(
        "keys = \"file:berlin.keys\"\nmanual = \"laboratory\"",
        "keys = \"api\"\noffload = \"packet\"",
        "19:11",
        "there is no card",
        "add [card.NAME]",
    ),
    // `moves_to`, `local_moves_to`
    row(
        "mode = \"tunnel\"",
        "moves_to = [\"203.0.113.0/24\"]",
        "21:12",
        "`moves_to` has an effect only with keys = \"ike\"",
        "nobody says where an end has moved to",
    ),
    row(
        "keys = \"file:berlin.keys\"\nmanual = \"laboratory\"",
        "keys = \"ike\"\nlocal_moves_to = [\"2001:db8::/64\"]",
        "19:18",
        "`local_moves_to` has IPv6 addresses, and the other end has none of that family",
        "both ends are of one family",
    ),
    row(
        "keys = \"file:berlin.keys\"\nmanual = \"laboratory\"",
        "keys = \"ike\"\nmoves_to = [\"203.0.113.0/24\", \"224.0.0.1\"]",
        "19:31",
        "224.0.0.1 cannot be used: it is a multicast address",
        "",
    ),
    row(
        "keys = \"file:berlin.keys\"\nmanual = \"laboratory\"",
        "keys = \"ike\"\nmoves_to = [\"203.0.113.0/33\"]",
        "19:13",
        "",
        "",
    ),
    row(
        "keys = \"file:berlin.keys\"\nmanual = \"laboratory\"",
        "keys = \"ike\"\nmoves_to = [\"203.0.113.0/24\"]\noffload = \"packet\"",
        "20:11",
        "a card cannot follow a peer whose address changes",
        "the old address",
    ),
    // `outer`
    row("mode = \"tunnel\"", "outer = \"berlim\"", "21:9", "there is no peer `berlim`", "berlin"),
    row("mode = \"tunnel\"", "outer = 3", "21:9", "must be a string", ""),
    row(
        "mode = \"tunnel\"",
        "outer = \"berlin\"",
        "21:9",
        "peer `berlin` is behind another peer itself",
        "sealed twice at most",
    ),
    row(
        "mode = \"tunnel\"",
        concat!(
            "mode = \"tunnel\"\n",
            inner!(),
            "mode = \"transport\"\nouter = \"berlin\"\n[[policy]]\nname = \"in\"\n\
             peer = \"inner\"\nlocal = [\"192.0.2.1\"]\nremote = [\"203.0.113.9\"]"
        ),
        "27:8",
        "`mode = \"transport\"` does not go with `outer`",
        "leave it out",
    ),
    row(
        "mode = \"tunnel\"",
        "encapsulation = \"udp\"\nouter = \"berlin\"",
        "21:17",
        "`encapsulation = \"udp\"` does not go with `outer`",
        "leave it out",
    ),
    row(
        "keys = \"file:berlin.keys\"\nmanual = \"laboratory\"",
        "keys = \"api\"\noffload = \"auto\"\nouter = \"berlin\"",
        "19:11",
        "`offload` does not go with `outer`",
        "by software",
    ),
    row(
        "mode = \"tunnel\"",
        concat!("mode = \"tunnel\"\n", inner!(), "outer = \"berlin\""),
        "27:9",
        "ESP between 192.0.2.1 and 203.0.113.9 is not protected outbound by a policy of peer \
         `berlin`",
        "protocol = \"esp\"",
    ),
    row(
        "mode = \"tunnel\"",
        concat!(
            "mode = \"tunnel\"\n",
            inner!(),
            "outer = \"berlin\"\n[[policy]]\nname = \"in\"\npeer = \"berlin\"\n\
             local = [\"192.0.2.1\"]\nremote = [\"203.0.113.9\"]\n[[policy]]\nname = \"no\"\n\
             action = \"discard\"\nlocal = [\"any\"]\nremote = [\"203.0.113.0/24\"]\n\
             protocol = \"esp\"\ndirection = \"inbound\""
        ),
        "27:9",
        "is not protected inbound by a policy of peer `berlin`: policy `no` decides",
        "above all others",
    ),
    row(
        "mode = \"tunnel\"",
        concat!(
            "mode = \"tunnel\"\nouter = \"inner\"\n",
            inner!(),
            "mode = \"transport\"\n[[policy]]\nname = \"in\"\npeer = \"inner\"\n\
             local = [\"192.0.2.1\"]\nremote = [\"203.0.113.9\"]"
        ),
        "22:9",
        "peer `inner` is in transport mode",
        "name a peer in tunnel mode",
    ),
    row(
        "keys = \"file:berlin.keys\"",
        "keys = \"ike\"",
        "19:10",
        "`manual` is for keys of a file",
        "leave `manual` out",
    ),
    row(
        "keys = \"file:berlin.keys\"\nmanual = \"laboratory\"",
        "keys = \"ike\"\noffload = \"packet\"",
        "19:11",
        "there is no card",
        "add [card.NAME]",
    ),
    row(
        "keys = \"file:berlin.keys\"",
        "keys = \"api\"",
        "19:10",
        "`manual` is for keys of a file",
        "leave `manual` out",
    ),
    row(
        "keys = \"file:berlin.keys\"",
        "keys = \"file:../berlin.keys\"",
        "18:8",
        "named without a path",
        "keys_dir",
    ),
    row(
        "keys = \"file:berlin.keys\"",
        "keys = \"berlin.keys\"",
        "18:8",
        "`keys` is neither \"file:NAME\", \"api\" nor \"ike\"",
        "file:berlin.keys",
    ),
    row(
        "manual = \"laboratory\"\n",
        "",
        "18:8",
        "manual keys need `manual = \"laboratory\"`",
        "manual = \"laboratory\"",
    ),
    row(
        "manual = \"laboratory\"",
        "manual = \"production\"",
        "19:10",
        "`manual` cannot be \"production\"",
        "write laboratory",
    ),
    row(
        "suite = \"aes-128-gcm\"",
        "suite = \"aes-129-gcm\"",
        "20:9",
        "`suite` cannot be \"aes-129-gcm\"",
        "did you mean `aes-128-gcm`?",
    ),
    row(
        "suite = \"aes-128-gcm\"",
        "suite = \"twofish\"",
        "20:9",
        "`suite` cannot be \"twofish\"",
        "write aes-128-gcm, aes-192-gcm, aes-256-gcm, chacha20-poly1305, aes-128-cbc-hmac-sha-256",
    ),
    row(
        "suite = \"aes-128-gcm\"",
        "suite = \"aes256gcm16\"",
        "20:9",
        "`suite` cannot be \"aes256gcm16\"",
        "did you mean `aes-256-gcm`?",
    ),
    row(
        "suite = \"aes-128-gcm\"",
        "suite = \"AES_128_CBC_SHA_256\"",
        "20:9",
        "`suite` cannot be",
        "did you mean `aes-128-cbc-hmac-sha-256`?",
    ),
    row(
        "suite = \"aes-128-gcm\"",
        "suite = \"null\"",
        "20:9",
        "suite \"null\" neither encrypts nor authenticates",
        "benchmark = \"no-integrity\"",
    ),
    row(
        "suite = \"aes-128-gcm\"",
        "suite = \"null\"\nbenchmark = \"no-integrit\"",
        "21:13",
        "`benchmark` cannot be \"no-integrit\"",
        "did you mean `no-integrity`?",
    ),
    row(
        "suite = \"aes-128-gcm\"",
        "suite = \"null-hmac-sha-256\"\nbenchmark = \"no-integrity\"",
        "21:13",
        "alone: null-hmac-sha-256 has integrity",
        "leave `benchmark` out",
    ),
    row(
        "mode = \"tunnel\"",
        "mode = \"tunel\"",
        "21:8",
        "`mode` cannot be \"tunel\"",
        "did you mean `tunnel`?",
    ),
    row(
        "mode = \"tunnel\"",
        "mode = \"transport\"",
        "25:9",
        "`local` is not 192.0.2.1 alone, the end of peer `berlin`, whose mode is transport",
        "write local = [\"192.0.2.1\"]",
    ),
    row(
        "mode = \"tunnel\"",
        "mode = \"transport\"",
        "26:10",
        "`remote` is not 198.51.100.7 alone",
        "write mode = \"tunnel\" at the peer",
    ),
    row(
        "mode = \"tunnel\"\n[[policy]]\nname = \"berlin-net\"\npeer = \"berlin\"\n\
         local = [\"10.1.0.0/16\"]\nremote = [\"10.2.0.0-10.2.255.255\"]",
        "mode = \"transport\"\n[[policy]]\nname = \"berlin-net\"\npeer = \"berlin\"\n\
         local = [\"192.0.2.1\"]\nremote = [\"198.51.100.7\", \"198.51.100.8\"]",
        "26:10",
        "`remote` is not 198.51.100.7 alone",
        "write remote = [\"198.51.100.7\"]",
    ),
    row(
        "mode = \"tunnel\"\n[[policy]]\nname = \"berlin-net\"\npeer = \"berlin\"\n\
         local = [\"10.1.0.0/16\"]\nremote = [\"10.2.0.0-10.2.255.255\"]",
        "mode = \"transport\"\ndscp = 8\n[[policy]]\nname = \"berlin-net\"\npeer = \"berlin\"\n\
         local = [\"192.0.2.1\"]\nremote = [\"198.51.100.7\"]",
        "22:8",
        "`dscp` has an effect only in tunnel mode",
        "leave it out",
    ),
    row(
        "mode = \"tunnel\"",
        "replay_window = 16",
        "21:17",
        "`replay_window` is 16; it goes from 32 to 4096",
        "",
    ),
    row(
        "mode = \"tunnel\"",
        "replay_window = 100",
        "21:17",
        "a replay window of 100 packets is not supported",
        "multiple of 32",
    ),
    row(
        "mode = \"tunnel\"",
        "esn = \"yes\"",
        "21:7",
        "`esn` must be true or false, not a string",
        "",
    ),
    row(
        "mode = \"tunnel\"",
        "encapsulation = \"tcp\"",
        "21:17",
        "`encapsulation` cannot be \"tcp\"",
        "write none, udp",
    ),
    row(
        "mode = \"tunnel\"",
        "encapsulation = \"udp\"\nremote_port = 0",
        "22:15",
        "`remote_port` is 0; it goes from 1 to 65535",
        "",
    ),
    row(
        "mode = \"tunnel\"",
        "encapsulation = \"udp\"\nremote_port = 65536",
        "22:15",
        "`remote_port` is 65536; it goes from 1 to 65535",
        "",
    ),
    row(
        "mode = \"tunnel\"",
        "remote_port = 4500",
        "21:15",
        "`remote_port` has an effect only with encapsulation = \"udp\"",
        "write encapsulation = \"udp\" too",
    ),
    row(
        "mode = \"tunnel\"",
        "encapsulation = \"none\"\nbehind_nat = true",
        "22:14",
        "`behind_nat` has an effect only with encapsulation = \"udp\"",
        "",
    ),
    row(
        "mode = \"tunnel\"",
        "nat_keepalive = \"off\"",
        "21:17",
        "`nat_keepalive` has an effect only with encapsulation = \"udp\"",
        "",
    ),
    row(
        "mode = \"tunnel\"",
        "encapsulation = \"udp\"\nnat_keepalive = 0",
        "22:17",
        "`nat_keepalive` is 0; it goes from 1 to 3600",
        "",
    ),
    row(
        "mode = \"tunnel\"",
        "encapsulation = \"udp\"\nnat_keepalive = \"never\"",
        "22:17",
        "`nat_keepalive` cannot be \"never\"",
        "write \"off\" or a number from 1 to 3600",
    ),
    row("mode = \"tunnel\"", "dscp = 64", "21:8", "`dscp` is 64; it goes from 0 to 63", ""),
    row(
        "mode = \"tunnel\"",
        "dscp = \"ef\"",
        "21:8",
        "`dscp` cannot be \"ef\"",
        "write \"copy\" or a number from 0 to 63",
    ),
    row(
        "mode = \"tunnel\"",
        "pmtu = \"lern\"",
        "21:8",
        "`pmtu` cannot be \"lern\"",
        "did you mean `learn`?",
    ),
    row("mode = \"tunnel\"", "fragment_outer = 1", "21:18", "must be true or false", ""),
    row(
        "mode = \"tunnel\"",
        "df = \"cleared\"",
        "21:6",
        "`df` cannot be \"cleared\"",
        "did you mean `clear`?",
    ),
    row(
        "addresses = [\"192.0.2.1/24\"]\nallow_host = [\"udp/500\", \"icmp\"]\n\
         [cache]\nflows = \"1M\"\n[peer.berlin]\nlocal = \"192.0.2.1\"\n\
         remote = \"198.51.100.7\"\n",
        "addresses = [\"192.0.2.1/24\", \"2001:db8:f::1/64\"]\n[cache]\nflows = \"1M\"\n\
         [peer.berlin]\nlocal = \"2001:db8:f::1\"\nremote = \"2001:db8:e::1\"\ndf = \"set\"\n",
        "17:6",
        "the outer header is IPv6, which has no don't-fragment flag",
        "leave it out",
    ),
    row("mode = \"tunnel\"", "ah = true", "21:1", "AH is not supported", "AEAD"),
    row("mode = \"tunnel\"", "tfc = true", "21:1", "TFC padding is not supported", ""),
    row("mode = \"tunnel\"", "pfp = true", "21:1", "(PFP) are not supported", ""),
    row("mode = \"tunnel\"", "multicast = true", "21:1", "multicast SAs are not supported", ""),
    row(
        "mode = \"tunnel\"",
        "nat-t = true",
        "21:1",
        "unknown key `nat-t` in [peer.berlin]",
        "did you mean `encapsulation`?",
    ),
    row(
        "mode = \"tunnel\"",
        "lifetime_bytes = 1",
        "21:1",
        "limits of SAs are not written here",
        "write [peer.NAME.lifetime]",
    ),
    row(
        "mode = \"tunnel\"",
        "hard_packets = 9",
        "21:1",
        "limits of SAs are not written here",
        "write [peer.NAME.lifetime]",
    ),
    row("mode = \"tunnel\"", "rekey = true", "21:1", "rekeying is not supported yet", "manual"),
    row("mode = \"tunnel\"", "lifetime = 9", "21:12", "`lifetime` must be a section", ""),
    row(
        "mode = \"tunnel\"",
        "[peer.berlin.lifetim]",
        "21:14",
        "unknown key `lifetim` in [peer.berlin]",
        "did you mean `lifetime`?",
    ),
    row(
        "mode = \"tunnel\"",
        "[peer.berlin.lifetime]\nhard_packet = 9",
        "22:1",
        "unknown key `hard_packet` in [peer.berlin.lifetime]",
        "did you mean `hard_packets`?",
    ),
    row(
        "mode = \"tunnel\"",
        "[peer.berlin.lifetime]\nhard_packets = 0",
        "22:16",
        "`hard_packets` cannot be 0",
        "write 1 at least, or leave the key out",
    ),
    row(
        "mode = \"tunnel\"",
        "[peer.berlin.lifetime]\nhard_bytes = \"0G\"",
        "22:14",
        "`hard_bytes` cannot be 0",
        "",
    ),
    row(
        "mode = \"tunnel\"",
        "[peer.berlin.lifetime]\nsoft_idle_seconds = 0",
        "22:21",
        "`soft_idle_seconds` cannot be 0",
        "",
    ),
    row(
        "mode = \"tunnel\"",
        "[peer.berlin.lifetime]\nhard_bytes = \"10GB\"",
        "22:14",
        "`hard_bytes` cannot be 10GB",
        "in quotes with K, M, G or T",
    ),
    row(
        "mode = \"tunnel\"",
        "[peer.berlin.lifetime]\nsoft_bytes = \"16777216T\"",
        "22:14",
        "`soft_bytes` cannot be 16777216T",
        "",
    ),
    row(
        "mode = \"tunnel\"",
        "[peer.berlin.lifetime]\nhard_packets = -1",
        "22:16",
        "`hard_packets` cannot be -1",
        "",
    ),
    row(
        "mode = \"tunnel\"",
        "[peer.berlin.lifetime]\nhard_seconds = 315360001",
        "22:16",
        "`hard_seconds`",
        "315360000",
    ),
    row(
        "mode = \"tunnel\"",
        "[peer.berlin.lifetime]\nhard_bytes = 1000\nsoft_bytes = \"1K\"",
        "23:14",
        "`soft_bytes` (1024) is above `hard_bytes` (1000)",
        "smaller",
    ),
    row(
        "mode = \"tunnel\"",
        "[peer.berlin.lifetime]\nsoft_idle_seconds = 61\nhard_idle_seconds = 60",
        "22:21",
        "`soft_idle_seconds` (61) is above `hard_idle_seconds` (60)",
        "",
    ),
    row(
        "[[policy]]\nname = \"berlin-net\"",
        "[peer.bonn]\nlocal = \"192.0.2.1\"\nremote = \"192.0.2.7\"\nkeys = \"file:berlin.keys\"\n\
         manual = \"laboratory\"\nsuite = \"aes-128-gcm\"\n[[policy]]\nname = \"berlin-net\"",
        "25:8",
        "another peer has this key file already",
        "first in line 18",
    ),
    // [ike]
    row(
        "[cache]",
        ike!("peer = [\"any\"]"),
        "18:1",
        "unknown key `peer` in [ike]",
        "did you mean `peers`?",
    ),
    row(
        "[cache]",
        "[ike]\nends = [\"any\"]\npeers = [\"any\"]\nlocal = [\"any\"]\n[cache]",
        "13:1",
        "[ike] lacks `remote`",
        "",
    ),
    row(
        "[cache]",
        ike!("suites = [\"aes-256-gmc\"]"),
        "18:11",
        "`suites` cannot be \"aes-256-gmc\"",
        "did you mean `aes-256-gcm`?",
    ),
    row("[cache]", ike!("suites = [\"null\"]"), "18:11", "`suites` cannot be \"null\"", ""),
    row("[cache]", ike!("suites = []"), "18:10", "`suites` is an empty list", ""),
    row("[cache]", ike!("max_children = 0"), "18:16", "it goes from 1 to 65536", ""),
    row("[cache]", ike!("remote_ports = [\"80-79\"]\nprotocol = \"tcp\""), "18:17", "79", ""),
    row(
        "[cache]",
        "[ike]\nends = [\"192.0.2.1\"]\npeers = [\"2001:db8::/32\"]\nlocal = [\"any\"]\n\
         remote = [\"any\"]\n[cache]",
        "15:9",
        "`ends` and `peers` have no IP version in common",
        "",
    ),
    row(
        "[cache]",
        ike!("[ike.lifetime]\nhard_seconds = 0"),
        "19:16",
        "`hard_seconds` cannot be 0",
        "",
    ),
    row(
        "[cache]",
        ike!("[[ike.shunt]]\naction = \"pass\"\nlocal = [\"any\"]\nremote = [\"any\"]"),
        "19:10",
        "`action` cannot be \"pass\"",
        "bypass",
    ),
    row(
        "[cache]",
        ike!("[[ike.shunts]]\naction = \"bypass\""),
        "18:7",
        "unknown key `shunts` in [ike]",
        "did you mean `shunt`?",
    ),
];
