//! Bad configurations: each is refused, or warned of, at its place, with what to do.
//!
//! Every row changes one piece of [`GOOD`] and names the line and column, a part of the message
//! and, where there is one, a part of the advice.

use control::{ConfigErrors, Problem, Severity, parse};

const GOOD: &str = r#"[node]
name = "gw-a"
workers = "auto"
[port.lan]
netdev = "eth1"
side = "protected"
addresses = ["10.1.0.1/24", "2001:db8:1::1/64"]
[port.wan]
netdev = "eth0"
side = "unprotected"
addresses = ["192.0.2.1/24"]
allow_host = ["udp/500", "icmp"]
[cache]
flows = "1M"
[peer.berlin]
local = "192.0.2.1"
remote = "198.51.100.7"
keys = "file:berlin.keys"
manual = "laboratory"
suite = "aes-128-gcm"
mode = "tunnel"
[[policy]]
name = "berlin-net"
peer = "berlin"
local = ["10.1.0.0/16"]
remote = ["10.2.0.0-10.2.255.255"]
[[policy]]
name = "dns"
action = "bypass"
local = ["any"]
remote = ["9.9.9.9"]
protocol = "udp"
remote_ports = ["53"]
[[route]]
to = "default"
via = "192.0.2.254"
port = "wan"
[[neighbour]]
port = "wan"
address = "192.0.2.254"
mac = "02:00:00:00:02:fe"
"#;

struct Row {
    from: &'static str,
    to: &'static str,
    place: &'static str,
    message: &'static str,
    advice: &'static str,
}

const fn row(
    from: &'static str,
    to: &'static str,
    place: &'static str,
    message: &'static str,
    advice: &'static str,
) -> Row {
    Row { from, to, place, message, advice }
}

const ERRORS: &[Row] = &[
    // Syntax, keys, types
    row("workers = \"auto\"", "workers = ", "3:11", "", ""),
    row("side = \"protected\"", "side = \"protected", "6:18", "", ""),
    row(
        "mode = \"tunnel\"",
        "mode = \"tunnel\"\nmode = \"tunnel\"",
        "22:1",
        "`mode` is there twice",
        "first in line 21",
    ),
    row(
        "[cache]",
        "[port.lan]\nmtu = 1500\n[cache]",
        "13:7",
        "`lan` is there twice",
        "first in line 4",
    ), // FC-15
    row(
        "workers = \"auto\"",
        "worker = \"auto\"",
        "3:1",
        "unknown key `worker` in [node]",
        "did you mean `workers`?",
    ),
    row(
        "local = \"192.0.2.1\"",
        "locl = \"192.0.2.1\"\nlocal = \"192.0.2.1\"",
        "16:1",
        "unknown key `locl` in [peer.berlin]",
        "did you mean `local`?",
    ),
    row(
        "[cache]",
        "[flow-cash]\n[cache]",
        "13:2",
        "unknown section `flow-cash`",
        "write node, cache, port",
    ), // FC-14
    row("[cache]", "[cash]\n[cache]", "13:2", "unknown section `cash`", "did you mean `cache`?"),
    row(
        "[node]\n",
        "keys_dir = \"x\"\n[node]\n",
        "1:1",
        "`keys_dir` stands outside any section",
        "below [node]",
    ),
    row("[node]\nname = \"gw-a\"\nworkers = \"auto\"\n", "", "1:1", "there is no [node]", ""),
    row("name = \"gw-a\"\n", "", "1:1", "[node] lacks `name`", ""),
    row("netdev = \"eth1\"\n", "", "4:1", "[port.lan] lacks `netdev`", ""),
    row("suite = \"aes-128-gcm\"\n", "", "15:1", "[peer.berlin] lacks `suite`", ""),
    row("name = \"dns\"\n", "", "27:1", "[[policy]] lacks `name`", ""),
    row(
        "name = \"gw-a\"",
        "name = 7",
        "2:8",
        "`name` must be a string in quotes, not a whole number",
        "",
    ),
    row(
        "flows = \"1M\"",
        "flows = 1.5",
        "14:9",
        "`flows` must be a string in quotes or a whole number, not a decimal",
        "",
    ),
    row(
        "mode = \"tunnel\"",
        "mss_clamp = \"yes\"",
        "21:13",
        "`mss_clamp` must be true or false, not a string",
        "",
    ),
    row(
        "local = [\"10.1.0.0/16\"]",
        "local = \"10.1.0.0/16\"",
        "25:9",
        "`local` must be a list of strings",
        "",
    ),
    row(
        "local = [\"10.1.0.0/16\"]",
        "local = [10]",
        "25:10",
        "`local` must be a list of strings",
        "",
    ),
    row(
        "[[route]]",
        "[route]",
        "34:1",
        "`route` must be sections in double brackets, not a section",
        "",
    ),
    row("[port.lan]", "[port]\nx = 1\n[port.lan]", "5:1", "`x` in [port]", "write [port.NAME]"),
    row(
        "[cache]\nflows = \"1M\"",
        "[[cache]]\nflows = \"1M\"",
        "13:1",
        "`cache` must be a section, not a list",
        "",
    ),
    // [node], [cache]
    row(
        "workers = \"auto\"",
        "workers = \"many\"",
        "3:11",
        "`workers` cannot be \"many\"",
        "\"auto\" or a number",
    ),
    row("workers = \"auto\"", "workers = 0", "3:11", "`workers` is 0; it goes from 1", ""),
    row(
        "workers = \"auto\"",
        "workers = 99999999999999999999999999999999999999999999",
        "3:11",
        "`workers` is far too large; it goes from 1 to 256",
        "",
    ),
    row(
        "workers = \"auto\"",
        "on_exit = \"close\"",
        "3:11",
        "`on_exit` cannot be \"close\"",
        "did you mean `closed`?",
    ),
    row(
        "workers = \"auto\"",
        "keys_dir = \"\"",
        "3:12",
        "`keys_dir` is not a directory's name",
        "",
    ),
    row(
        "name = \"gw-a\"",
        "name = \"gw a\"",
        "2:8",
        "\"gw a\" cannot be a name",
        "letters, digits",
    ),
    row("flows = \"1M\"", "flows = 0", "14:9", "less than 2 flows", "flows = \"off\""), // FC-11
    row("flows = \"1M\"", "flows = \"1\"", "14:9", "less than 2 flows", "flows = \"off\""),
    row("flows = \"1M\"", "flows = \"1G\"", "14:9", "\"1G\" is no number of flows", "\"64K\""),
    row("flows = \"1M\"", "flows = \"100M\"", "14:9", "more than 67108864 flows", ""),
    // [port.NAME]
    row(
        "side = \"protected\"",
        "side = \"protectd\"",
        "6:8",
        "`side` cannot be \"protectd\"",
        "did you mean `protected`?",
    ),
    row(
        "netdev = \"eth1\"",
        "netdev = \"eth0\"",
        "9:10",
        "netdev eth0 untagged belongs to another port",
        "first in line 5",
    ),
    row(
        "netdev = \"eth1\"",
        "netdev = \"eth/1\"",
        "5:10",
        "\"eth/1\" cannot be the name of a netdev",
        "",
    ),
    row(
        "netdev = \"eth1\"",
        "netdev = \"lockgate0\"",
        "5:10",
        "is the netdev that Lockgate makes",
        "",
    ),
    row(
        "[port.lan]",
        "[port.host]",
        "4:7",
        "`host` is the name of the port that stands for Linux",
        "another name",
    ),
    row(
        "side = \"protected\"",
        "side = \"protected\"\nvlan = 4095",
        "7:8",
        "`vlan` is 4095; it goes from 1 to 4094",
        "",
    ),
    row(
        "side = \"protected\"",
        "side = \"protected\"\nmtu = 60",
        "7:7",
        "`mtu` is 60; it goes from 68 to 65535",
        "",
    ),
    row(
        "side = \"protected\"",
        "side = \"protected\"\nmtu = 1000",
        "7:7",
        "IPv6 needs an MTU of at least 1280",
        "",
    ),
    row(
        "side = \"protected\"",
        "side = \"protected\"\nmac = \"01:00:00:00:00:01\"",
        "7:7",
        "not the MAC address of one interface",
        "",
    ),
    row(
        "\"10.1.0.1/24\"",
        "\"10.1.0.1\"",
        "7:14",
        "\"10.1.0.1\" is not an address with its prefix length",
        "10.1.0.1/24",
    ),
    row(
        "\"10.1.0.1/24\"",
        "\"10.1.0.0/24\"",
        "7:14",
        "10.1.0.0 cannot be used: it is the first or last",
        "",
    ),
    row("\"10.1.0.1/24\"", "\"10.1.0.1/33\"", "7:14", "not an address with its prefix", ""),
    row(
        "\"10.1.0.1/24\"",
        "\"127.0.0.1/8\"",
        "7:14",
        "127.0.0.1 cannot be used: it is a loopback",
        "",
    ),
    row("\"10.1.0.1/24\"", "\"224.0.0.1/24\"", "7:14", "it is a multicast address", ""),
    row(
        "\"10.1.0.1/24\"",
        "\"192.0.2.1/25\"",
        "11:14",
        "192.0.2.1 is ours already",
        "first in line 7",
    ),
    row(
        "\"10.1.0.1/24\"",
        "\"192.0.2.9/24\"",
        "11:14",
        "another port is in 192.0.2.0/24 already",
        "first in line 7",
    ),
    row("\"udp/500\"", "\"udp/70000\"", "12:15", "port 70000 is too high", ""),
    row("\"udp/500\"", "\"udp/600-500\"", "12:15", "the port range 600-500 is inverted", ""),
    row("\"udp/500\"", "\"ssh\"", "12:15", "unknown protocol \"ssh\"", "write \"tcp/22\","),
    row("\"udp/500\"", "\"tpc/22\"", "12:15", "unknown protocol", "did you mean `tcp`?"),
    row("\"udp/500\"", "\"espx\"", "12:15", "unknown protocol", "write \"tcp/22\","),
    row("\"udp/500\"", "\"icmp/8\"", "12:15", "`allow_host`: protocol icmp has no ports", ""),
    row("\"udp/500\"", "\"any\"", "12:15", "would open this machine to everyone", ""),
    row("\"udp/500\"", "\"esp\"", "12:15", "ESP to this machine is opened by Lockgate", ""),
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
        "10.1.0.1 is our own address",
        "",
    ),
    row(
        "remote = \"198.51.100.7\"",
        "remote = \"239.1.1.1\"",
        "17:10",
        "multicast SAs are not offered",
        "one peer per gateway",
    ),
    row(
        "local = \"192.0.2.1\"",
        "local = \"192.0.2.2\"",
        "16:9",
        "192.0.2.2 is none of our addresses",
        "ours are 10.1.0.1, 192.0.2.1",
    ),
    row(
        "keys = \"file:berlin.keys\"",
        "keys = \"ike\"",
        "18:8",
        "keys from IKE are not there yet",
        "laboratory",
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
        "`keys` is not \"file:NAME\"",
        "file:berlin.keys",
    ),
    row(
        "manual = \"laboratory\"\n",
        "",
        "18:8",
        "manual keys must be asked for",
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
        "suite = \"chacha20-poly1305\"",
        "20:9",
        "is not there yet",
        "aes-128-gcm, aes-256-gcm",
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
        "21:8",
        "transport mode is not there yet",
        "tunnel",
    ),
    row(
        "mode = \"tunnel\"",
        "mode = \"transport\"",
        "25:9",
        "a transport policy for 10.1.0.0/16, which is not one of our addresses",
        "",
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
        "a replay window of 100 packets is not offered",
        "multiple of 32",
    ),
    row("mode = \"tunnel\"", "esn = true", "21:1", "(ESN) are not there yet", ""),
    row("mode = \"tunnel\"", "ah = true", "21:1", "AH is not offered", "AEAD"),
    row("mode = \"tunnel\"", "tfc = true", "21:1", "TFC padding is not offered", ""),
    row("mode = \"tunnel\"", "pfp = true", "21:1", "(PFP) are not offered", ""),
    row("mode = \"tunnel\"", "multicast = true", "21:1", "multicast SAs are not offered", ""),
    row(
        "mode = \"tunnel\"",
        "nat-t = true",
        "21:1",
        "NAT traversal (UDP encapsulation) is not there yet",
        "",
    ),
    row(
        "mode = \"tunnel\"",
        "lifetime_bytes = 1",
        "21:1",
        "lifetimes and rekeying are not there yet",
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
    // [node], [metrics]: the daemon's own keys
    row("workers = \"auto\"", "run_dir = \"\"", "3:11", "`run_dir` is not a directory's name", ""),
    row(
        "workers = \"auto\"",
        "run_dir = \"run\"",
        "3:11",
        "`run_dir` does not begin with `/`",
        "write the whole path",
    ),
    row(
        "workers = \"auto\"",
        "state_dir = \"~/x\"",
        "3:13",
        "`state_dir` does not begin with `/`",
        "",
    ),
    row(
        "workers = \"auto\"",
        "run_dir = \"/rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr\
         rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr\"",
        "3:11",
        "`run_dir` is longer than 96 bytes",
        "name a shorter one",
    ),
    row(
        "workers = \"auto\"",
        "state_dir = \"/run/lockgate/\"",
        "3:13",
        "are the same directory",
        "after a reboot",
    ),
    row(
        "workers = \"auto\"",
        "rundir = \"/run\"",
        "3:1",
        "unknown key `rundir` in [node]",
        "did you mean `run_dir`?",
    ),
    row(
        "workers = \"auto\"",
        "poll = \"bussy\"",
        "3:8",
        "`poll` cannot be \"bussy\"",
        "did you mean `busy`?",
    ),
    row(
        "workers = \"auto\"",
        "poll = true",
        "3:8",
        "`poll` must be a string in quotes, not true or false",
        "",
    ),
    row(
        "[cache]",
        "[metric]\n[cache]",
        "13:2",
        "unknown section `metric`",
        "did you mean `metrics`?",
    ),
    row(
        "[cache]",
        "[metrics]\nlisen = \"off\"\n[cache]",
        "14:1",
        "unknown key `lisen` in [metrics]",
        "did you mean `listen`?",
    ),
    row(
        "[cache]",
        "[metrics]\nlisten = 9617\n[cache]",
        "14:10",
        "`listen` must be a string in quotes, not a whole number",
        "",
    ),
    row(
        "[cache]",
        "[metrics]\nlisten = \"on\"\n[cache]",
        "14:10",
        "\"on\" is no address with a port",
        "127.0.0.1:9617",
    ),
    row(
        "[cache]",
        "[metrics]\nlisten = \"localhost:9617\"\n[cache]",
        "14:10",
        "\"localhost:9617\" is no address with a port",
        "",
    ),
    row(
        "[cache]",
        "[metrics]\nlisten = \"127.0.0.1\"\n[cache]",
        "14:10",
        "\"127.0.0.1\" is no address with a port",
        "",
    ),
    row(
        "[cache]",
        "[metrics]\nlisten = \"127.0.0.1:65536\"\n[cache]",
        "14:10",
        "is no address with a port",
        "",
    ),
    row(
        "[cache]",
        "[metrics]\nlisten = \"127.0.0.1:0\"\n[cache]",
        "14:10",
        "port 0 cannot be listened on",
        "from 1 to 65535",
    ),
    row(
        "[cache]",
        "[metrics]\nlisten = \"0.0.0.0:9617\"\n[cache]",
        "14:10",
        "it is every address at once",
        "this machine's own",
    ),
    row(
        "[cache]",
        "[metrics]\nlisten = \"[::]:9617\"\n[cache]",
        "14:10",
        "it is every address at once",
        "",
    ),
    row(
        "[cache]",
        "[metrics]\nlisten = \"224.0.0.1:9617\"\n[cache]",
        "14:10",
        "it is a multicast address",
        "",
    ),
    row(
        "[cache]",
        "[metrics]\nlisten = \"[fe80::1]:9617\"\n[cache]",
        "14:10",
        "it is good on one link only",
        "",
    ),
    // [[policy]]
    row(
        "name = \"dns\"",
        "name = \"berlin-net\"",
        "28:8",
        "another policy is named `berlin-net`",
        "first in line 23",
    ),
    row(
        "peer = \"berlin\"",
        "peer = \"berln\"",
        "24:8",
        "there is no peer `berln`",
        "did you mean `berlin`?",
    ),
    row("peer = \"berlin\"", "peer = \"tokyo\"", "24:8", "there is no peer `tokyo`", "[peer.NAME]"),
    row("peer = \"berlin\"\n", "", "22:1", "names neither a peer nor an action", "peer = \"NAME\""),
    row(
        "peer = \"berlin\"",
        "action = \"protect\"",
        "24:10",
        "a policy that protects must name a peer",
        "",
    ),
    row(
        "peer = \"berlin\"",
        "peer = \"berlin\"\naction = \"discard\"",
        "25:10",
        "a policy with a peer protects, it cannot \"discard\"",
        "one of the two",
    ),
    row(
        "action = \"bypass\"",
        "action = \"permit\"",
        "29:10",
        "`action` cannot be \"permit\"",
        "protect, bypass, discard",
    ),
    row(
        "action = \"bypass\"",
        "fqdn = \"x\"\naction = \"bypass\"",
        "29:1",
        "selectors by name are not offered",
        "",
    ),
    row(
        "local = [\"10.1.0.0/16\"]",
        "local = [\"10.1.0.1/16\"]",
        "25:10",
        "has bits set behind the prefix length: the network is 10.1.0.0/16",
        "",
    ),
    row(
        "10.2.0.0-10.2.255.255",
        "10.2.255.255-10.2.0.0",
        "26:11",
        "is inverted",
        "write 10.2.0.0-10.2.255.255",
    ),
    row("10.2.0.0-10.2.255.255", "10.2.0.0-2001:db8::1", "26:11", "mixes IPv4 and IPv6", ""),
    row(
        "10.2.0.0-10.2.255.255",
        "10.2.0.0/40",
        "26:11",
        "prefix length must be a number from 0 to 32",
        "",
    ),
    row("[\"10.2.0.0-10.2.255.255\"]", "[]", "26:10", "`remote` is an empty list", ""),
    row("10.2.0.0-10.2.255.255", "2001:db8::/32", "26:10", "no IP version in common", ""),
    row(
        "protocol = \"udp\"",
        "protocol = \"upd\"",
        "32:12",
        "unknown protocol \"upd\"",
        "did you mean `udp`?",
    ),
    row("protocol = \"udp\"", "protocol = 256", "32:12", "unknown protocol \"256\"", ""),
    row("protocol = \"udp\"", "protocol = \"ah\"", "32:12", "AH is not offered", ""),
    row(
        "protocol = \"udp\"",
        "protocol = 43",
        "32:12",
        "protocol 43 is an IPv6 extension header",
        "",
    ),
    row("protocol = \"udp\"", "protocol = 135", "32:12", "135 is an IPv6 extension header", ""),
    row("protocol = \"udp\"", "protocol = \"139\"", "32:12", "139 is an IPv6 extension header", ""),
    row("protocol = \"udp\"", "protocol = 140", "32:12", "140 is an IPv6 extension header", ""),
    row(
        "protocol = \"udp\"",
        "protocol = \"icmp\"",
        "33:16",
        "`remote_ports`: protocol icmp has no ports",
        "",
    ),
    row(
        "remote_ports = [\"53\"]",
        "remote_ports = [\"54-53\"]",
        "33:17",
        "the port range 54-53 is inverted",
        "write 53-54",
    ),
    row("remote_ports = [\"53\"]", "icmp = [\"8\"]", "33:8", "`icmp` needs protocol", ""),
    row(
        "protocol = \"udp\"\nremote_ports = [\"53\"]",
        "protocol = \"icmp\"\nicmp = [\"8-3\"]",
        "33:9",
        "is inverted",
        "",
    ),
    row(
        "protocol = \"udp\"\nremote_ports = [\"53\"]",
        "protocol = \"icmpv6\"",
        "31:10",
        "of the other IP version",
        "protocol = \"icmp\"",
    ),
    row("protocol = \"udp\"", "priority = -1", "32:12", "`priority` is -1; it goes from 0", ""),
    row(
        "protocol = \"udp\"",
        "direction = \"out\"",
        "32:13",
        "`direction` cannot be \"out\"",
        "did you mean `outbound`?",
    ),
    // [[route]], [[neighbour]]
    row("to = \"default\"", "to = \"defalt\"", "35:6", "\"defalt\" is not an address", ""),
    row("to = \"default\"", "to = \"10.3.0.1/16\"", "35:6", "the network is 10.3.0.0/16", ""),
    row("to = \"default\"", "to = \"10.3.0.1-10.3.0.7\"", "35:6", "is a range, not a prefix", ""),
    row(
        "to = \"default\"",
        "to = \"::/0\"",
        "36:7",
        "the route and its router are of different IP versions",
        "",
    ),
    row(
        "to = \"default\"",
        "to = \"10.1.0.0/24\"",
        "35:6",
        "10.1.0.0/24 is connected to us already",
        "first in line 7",
    ),
    row(
        "to = \"default\"",
        "to = \"10.1.0.1/32\"",
        "35:6",
        "10.1.0.1 is connected to us already",
        "first in line 7",
    ),
    row(
        "[[neighbour]]",
        "[[route]]\nto = \"0.0.0.0/0\"\ntype = \"blackhole\"\n[[neighbour]]",
        "39:6",
        "there are two routes to 0.0.0.0/0",
        "first in line 35",
    ),
    row(
        "via = \"192.0.2.254\"",
        "via = \"203.0.113.1\"",
        "36:7",
        "203.0.113.1 is in none of our networks",
        "",
    ),
    row(
        "via = \"192.0.2.254\"",
        "via = \"10.1.0.9\"",
        "36:7",
        "10.1.0.9 is not in a network of port `wan` but of port `lan`",
        "",
    ),
    row("via = \"192.0.2.254\"", "via = \"192.0.2.1\"", "36:7", "192.0.2.1 is our own address", ""),
    row(
        "via = \"192.0.2.254\"\nport = \"wan\"\n",
        "",
        "34:1",
        "the route leads nowhere",
        "blackhole",
    ),
    row(
        "via = \"192.0.2.254\"",
        "type = \"blackhole\"",
        "37:8",
        "a blackhole leads nowhere",
        "leave out",
    ),
    row(
        "via = \"192.0.2.254\"",
        "type = \"blackhol\"",
        "36:8",
        "`type` cannot be \"blackhol\"",
        "did you mean `blackhole`?",
    ),
    row(
        "via = \"192.0.2.254\"\nport = \"wan\"",
        "via = \"192.0.2.254\"\nport = \"won\"",
        "37:8",
        "there is no port `won`",
        "did you mean `wan`?",
    ),
    row(
        "[[neighbour]]\nport = \"wan\"",
        "[[neighbour]]\nport = \"dmz\"",
        "39:8",
        "there is no port `dmz`",
        "",
    ),
    row(
        "address = \"192.0.2.254\"",
        "address = \"192.0.2.1\"",
        "40:11",
        "192.0.2.1 is our own address",
        "",
    ),
    row(
        "mac = \"02:00:00:00:02:fe\"",
        "mac = \"02-00-00-00-02-fe\"",
        "41:7",
        "not the MAC address of one interface",
        "02:00:00:00:00:01",
    ),
    row(
        "[[neighbour]]",
        "[[neighbour]]\nport = \"lan\"\naddress = \"192.0.2.254\"\n\
         mac = \"02:00:00:00:00:01\"\n[[neighbour]]",
        "44:11",
        "there are two neighbours 192.0.2.254",
        "first in line 40",
    ),
];

const WARNINGS: &[Row] = &[
    row(
        "[cache]",
        "[metrics]\nlisten = \"192.0.2.1:9617\"\n[cache]",
        "14:10",
        "whoever reaches 192.0.2.1 reads the counters",
        "tcp/9617",
    ),
    row(
        "manual = \"laboratory\"",
        "manual = \"laboratory\"",
        "19:10",
        "RFC 4106 asks for automated key management",
        "laboratories only",
    ),
    row(
        "workers = \"auto\"",
        "on_exit = \"open\"",
        "3:11",
        "Linux will forward in clear",
        "closed",
    ),
    row(
        "protocol = \"udp\"\n",
        "",
        "32:16",
        "`remote_ports` with any protocol matches only packets that have ports",
        "name the protocol",
    ), // FC-04
    row(
        "remote_ports = [\"53\"]",
        "remote_ports = [\"50-60\", \"53\"]",
        "33:26",
        "in `remote_ports` this entry overlaps another",
        "",
    ),
    row(
        "local = [\"10.1.0.0/16\"]",
        "local = [\"10.1.0.0/16\", \"10.0.0.0/8\"]",
        "25:10",
        "in `local` this entry overlaps another",
        "",
    ),
    row(
        "side = \"protected\"",
        "side = \"protected\"\nallow_host = [\"icmp\"]",
        "7:14",
        "`allow_host` does nothing on a protected port",
        "",
    ),
    row("\"udp/500\"", "\"icmp\"", "12:23", "\"icmp\" is there already", ""),
    row("peer = \"berlin\"", "action = \"discard\"", "15:7", "no policy names peer `berlin`", ""),
    row(
        "to = \"default\"",
        "to = \"203.0.113.0/24\"",
        "17:10",
        "no route leads to 198.51.100.7, the address of peer `berlin`",
        "[[route]]",
    ),
    row(
        "remote = \"198.51.100.7\"",
        "remote = \"10.1.0.7\"",
        "17:10",
        "lies behind a protected port",
        "",
    ),
    row(
        "remote = [\"10.2.0.0-10.2.255.255\"]",
        "remote = [\"10.1.0.0/25\", \"10.1.0.128-10.1.0.255\"]",
        "26:10",
        "all of `remote` is in 10.1.0.0/24, the network of protected port `lan`",
        "swapped?",
    ),
];

fn changed(row: &Row) -> String {
    assert_eq!(GOOD.matches(row.from).count().min(1), 1, "{:?} is not there", row.from);
    GOOD.replacen(row.from, row.to, 1)
}

/// Whether one of the problems is the row's, shown with its place, line and advice.
fn told(row: &Row, severity: Severity, problems: &[Problem]) -> bool {
    problems.iter().any(|problem| {
        let text = problem.to_string();
        let kind = if severity == Severity::Warning { "warning: " } else { "" };
        problem.severity == severity
            && text.starts_with(&format!("bad.toml:{}: {kind}", row.place))
            && problem.mistake.to_string().contains(row.message)
            && text.contains(row.advice)
    })
}

#[test]
fn good_configuration_has_no_errors_and_only_the_warning_of_manual_keys() {
    let parsed = parse(GOOD, "good.toml").unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(parsed.warnings.len(), 1, "{}", control::render(&parsed.warnings));
}

#[test]
fn every_bad_configuration_is_refused_at_its_place_with_advice() {
    for row in ERRORS {
        let text = changed(row);
        let errors = parse(&text, "bad.toml").expect_err(row.message);
        assert!(told(row, Severity::Error, &errors.problems), "{:?}:\n{errors}", row.to);
    }
}

/// One mistake is told once: none of the rows may be followed by errors that only repeat it.
#[test]
fn one_mistake_is_one_error() {
    // Two rows share a change that is wrong twice; a table that becomes a list loses its policies.
    for row in ERRORS.iter().filter(|row| !row.to.contains("transport")) {
        let errors = parse(&changed(row), "bad.toml").expect_err(row.message);
        assert_eq!(errors.errors(), 1, "{:?}:\n{errors}", row.to);
    }
}

#[test]
fn every_doubtful_configuration_is_warned_of_at_its_place() {
    for row in WARNINGS {
        let text = changed(row);
        let parsed = parse(&text, "bad.toml").unwrap_or_else(|e| panic!("{:?}: {e}", row.to));
        assert!(
            told(row, Severity::Warning, &parsed.warnings),
            "{:?}:\n{}",
            row.to,
            control::render(&parsed.warnings)
        );
    }
}

#[test]
fn all_mistakes_are_told_at_once_in_the_order_of_the_file() {
    let text = GOOD
        .replace("workers = \"auto\"", "worker = \"auto\"")
        .replace("side = \"unprotected\"", "side = 3")
        .replace("peer = \"berlin\"", "peer = \"bern\"")
        .replace("to = \"default\"", "to = \"10.0.0.0\\\\8\"");
    let errors = parse(&text, "bad.toml").unwrap_err();
    let lines: Vec<u32> = errors
        .problems
        .iter()
        .filter(|problem| problem.severity == Severity::Error)
        .map(|problem| problem.place.line)
        .collect();
    assert_eq!(lines, [3, 10, 24, 35], "{errors}");
}

#[test]
fn a_mistake_is_shown_with_its_line_and_a_caret_under_it() {
    let text = GOOD.replace("peer = \"berlin\"", "peer = \"berln\"");
    let errors = parse(&text, "etc/lockgate.toml").unwrap_err();
    let error = errors.problems.iter().find(|p| p.severity == Severity::Error).unwrap();
    let expected = "\
etc/lockgate.toml:24:8: there is no peer `berln`
   24 | peer = \"berln\"
      |        ^^^^^^^
      = did you mean `berlin`?";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn problems_as_json_hold_place_message_and_help() {
    let text = GOOD.replace("peer = \"berlin\"", "peer = \"berln\"");
    let errors: ConfigErrors = parse(&text, "x.toml").unwrap_err();
    let json = serde_json::to_value(&errors).unwrap();
    let problem = json["problems"]
        .as_array()
        .unwrap()
        .iter()
        .find(|problem| problem["severity"] == "error")
        .unwrap();
    assert_eq!(problem["line"], 24);
    assert_eq!(problem["column"], 8);
    assert_eq!(problem["file"], "x.toml");
    assert_eq!(problem["message"], "there is no peer `berln`");
    assert_eq!(problem["help"], "did you mean `berlin`?");
}

/// What is partly elsewhere, or not protected, is no swap.
#[test]
fn a_remote_that_is_only_partly_inside_is_not_warned_of() {
    let peer_net = "peer = \"berlin\"\nlocal = [\"10.1.0.0/16\"]\n\
                    remote = [\"10.2.0.0-10.2.255.255\"]";
    for policy in [
        "peer = \"berlin\"\nlocal = [\"10.1.0.0/16\"]\nremote = [\"10.1.0.0/23\"]",
        "peer = \"berlin\"\nlocal = [\"any\"]\nremote = [\"10.1.0.7\", \"10.2.0.7\"]",
        "action = \"discard\"\nlocal = [\"any\"]\nremote = [\"10.1.0.7\"]",
    ] {
        assert!(GOOD.contains(peer_net));
        let parsed = parse(&GOOD.replace(peer_net, policy), "x.toml").unwrap();
        let told = control::render(&parsed.warnings);
        assert!(!told.contains("network of protected port"), "{policy}:\n{told}");
    }
}

#[test]
fn policies_of_too_many_rules_are_refused_at_the_one_that_is_too_much() {
    let entries = |net: u8, count: u32| {
        let one = |n| format!("\"10.{net}.{}.{}\"", n >> 8, n & 255);
        (0..count).map(one).collect::<Vec<_>>().join(", ")
    };
    let policy = |name: &str, remotes| {
        let (local, remote) = (entries(1, 2000), entries(2, remotes));
        format!(
            "[[policy]]\nname = \"{name}\"\naction = \"discard\"\nlocal = [{local}]\n\
             remote = [{remote}]\n"
        )
    };
    // 2 directions × 2000 × 1000 is all there may be, and GOOD has rules of its own.
    let fits = parse(&format!("{GOOD}{}", policy("much", 999)), "x.toml");
    assert!(fits.is_ok());
    let text = format!("{GOOD}{}{}", policy("much", 999), policy("too-much", 1));
    let errors = parse(&text, "x.toml").unwrap_err();
    assert_eq!(errors.errors(), 1, "{errors}");
    let error = errors.problems.iter().find(|p| p.severity == Severity::Error).unwrap();
    let line = text.lines().position(|line| line.contains("too-much")).unwrap() + 1;
    assert_eq!(error.place.line as usize, line);
    assert!(error.to_string().contains("rules with this one; at most 4000000 are held"), "{error}");
}

#[test]
fn thousands_of_mistakes_are_counted_and_not_all_told() {
    let text = format!("{GOOD}{}", "[[policy]]\nx = 1\n".repeat(5000));
    let errors = parse(&text, "bad.toml").unwrap_err();
    assert_eq!(errors.errors(), control::MAX_PROBLEMS);
    assert!(errors.untold > 10_000, "{}", errors.untold);
}

#[test]
fn a_flood_of_warnings_hides_no_error() {
    let warned = "[[policy]]\nname = \"NAME\"\naction = \"bypass\"\nlocal = [\"any\"]\n\
                  remote = [\"any\"]\nlocal_ports = [\"1\"]\n";
    let mut text = String::from(GOOD);
    for number in 0..1000 {
        text.push_str(&warned.replace("NAME", &format!("p{number}")));
    }
    text.push_str("[[policy]]\nname = \"last\"\n");
    let errors = parse(&text, "bad.toml").unwrap_err();
    assert_eq!((errors.errors(), errors.untold), (3, 0), "{errors}");
    assert_eq!(errors.problems.len(), control::MAX_PROBLEMS + 3);
}

/// Someone may paste a key into the wrong file.
#[test]
fn a_key_pasted_into_the_configuration_is_not_shown() {
    for pasted in ["keys = \"0123456789abcdef\"", "keys = \"file:a/0123456789abcdef\""] {
        let text = GOOD.replace("keys = \"file:berlin.keys\"", pasted);
        let errors = parse(&text, "bad.toml").unwrap_err();
        assert!(!errors.to_string().contains("0123"), "{errors}");
    }
}
