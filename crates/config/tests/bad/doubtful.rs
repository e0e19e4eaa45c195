//! Configurations that are allowed, and were probably not meant.

use crate::{Row, row};

pub(crate) const WARNINGS: &[Row] = &[
    row(
        "[cache]",
        "[metrics]\nlisten = \"192.0.2.1:9617\"\n[cache]",
        "14:10",
        "everyone who can reach 192.0.2.1 can read the counters",
        "tcp/9617",
    ),
    row(
        "[cache]",
        "[ike]\nends = [\"192.0.2.1\"]\npeers = [\"any\"]\nlocal = [\"any\"]\n\
         remote = [\"10.9.0.0/16\"]\n[ike.lifetime]\nhard_seconds = 9\n[cache]",
        "19:16",
        "`hard_seconds` stands without `soft_seconds`",
        "write the soft limit",
    ),
    row(
        "workers = \"auto\"",
        "on_exit = \"open\"",
        "3:11",
        "Linux will forward in cleartext",
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
        "flows = \"1M\"",
        "flows = \"off\"\nuse = \"always\"",
        "15:7",
        "`use` has no effect: the flow cache is off",
        "flows = \"1M\"",
    ),
    row(
        "action = \"bypass\"",
        "action = \"bypass\"\nports = [\"wan\"]",
        "30:9",
        "`ports` excludes no port",
        "leave it out",
    ),
    row(
        "action = \"bypass\"",
        "action = \"bypass\"\nports = [\"lan\", \"wan\", \"lan\"]",
        "30:24",
        "\"lan\" is listed twice",
        "",
    ),
    row(
        "[[policy]]\nname = \"dns\"\n",
        "[[policy]]\nname = \"old\"\naction = \"discard\"\nlocal = [\"any\"]\n\
         remote = [\"9.9.9.9/32\"]\nprotocol = \"udp\"\nremote_ports = [\"53-53\"]\n\
         direction = \"inbound\"\n[[policy]]\nname = \"dns\"\n",
        "28:8",
        "the policy never decides: policy `dns` in line 36 before it covers it",
        "among equals the later",
    ),
    // Of one priority the later wins, so what comes first takes nothing.
    row(
        "remote = [\"9.9.9.9\"]",
        "remote = [\"10.2.9.9\"]",
        "28:8",
        "this policy (bypass) takes packets from policy `berlin-net` in line 23 (protect with \
         peer berlin), for example outbound udp 10.1.0.1 port 1024 → 10.2.9.9 port 53",
        "the higher priority",
    ),
    row(
        "action = \"bypass\"\nlocal = [\"any\"]\nremote = [\"9.9.9.9\"]",
        "action = \"discard\"\nlocal = [\"any\"]\nremote = [\"10.2.9.9\"]",
        "28:8",
        "this policy and policy `berlin-net` in line 23 have one priority and different actions",
        "different priorities",
    ),
    row(
        "side = \"protected\"",
        "side = \"unprotected\"",
        "6:8",
        "all ports are unprotected",
        "side = \"protected\"",
    ),
    row(
        "side = \"unprotected\"",
        "side = \"protected\"",
        "6:8",
        "all ports are protected: the policies decide nothing",
        "side = \"unprotected\"",
    ),
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
        "`allow_host` has no effect on a protected port",
        "",
    ),
    row("\"udp/500\"", "\"icmp\"", "12:23", "\"icmp\" is listed twice", ""),
    row("mode = \"tunnel\"", "offload = \"auto\"", "21:11", "has no effect", "keys = \"api\""),
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
    row("mode = \"tunnel\"", "df = \"copy\"", "15:7", "71 minutes at 1 Mpps", "write esn = true"),
    row(
        "suite = \"aes-128-gcm\"",
        "suite = \"null-hmac-sha-512\"",
        "20:9",
        "peer `berlin` has no encryption",
        "aes-128-gcm",
    ),
    row(
        "suite = \"aes-128-gcm\"",
        "suite = \"null\"\nbenchmark = \"no-integrity\"",
        "20:9",
        "DANGER: peer `berlin` has neither encryption nor integrity",
        "never for real traffic",
    ),
];
