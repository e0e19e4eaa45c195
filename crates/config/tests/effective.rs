//! The effective configuration parses back to the same meaning, and no text makes the parser
//! panic.

use config::{Validated, parse};
use proptest::prelude::*;

const EXAMPLE: &str = include_str!("../../../etc/lockgate.toml");

fn meaning(text: &str) -> Validated {
    parse(text, "test.toml").unwrap_or_else(|errors| panic!("{errors}\n{text}")).validated
}

#[test]
fn the_example_means_itself_when_every_default_is_written_out() {
    let validated = meaning(EXAMPLE);
    let effective = validated.effective();
    assert_eq!(meaning(&effective), validated, "{effective}");
    assert_eq!(meaning(&effective).effective(), effective);
}

#[test]
fn every_default_is_written_out() {
    let minimal = "\
[node]\nname = \"n\"\n[port.a]\nnetdev = \"e0\"\nside = \"protected\"\n\
[[policy]]\nname = \"p\"\naction = \"discard\"\nlocal = [\"any\"]\nremote = [\"any\"]\n";
    let effective = meaning(minimal).effective();
    for line in [
        "workers = \"auto\"",
        "reserve_cores = 1",
        "on_exit = \"closed\"",
        "keys_dir = \".\"",
        "run_dir = \"/run/lockgate\"",
        "state_dir = \"/var/lib/lockgate\"",
        "poll = \"sleep\"",
        "listen = \"127.0.0.1:9617\"",
        "allow_host = []",
        "mac = \"02:4c:47:00:00:01\"",
        "mtu = 1500",
        "l4_checksum = \"complete\"",
        "xdp = \"auto\"",
        "addresses = []",
        "flows = \"1M\"",
        "use = \"auto\"",
        "# ports: all",
        "protocol = \"any\"",
        "priority = 100",
        "direction = \"both\"",
        "groups_in = []",
        "groups_out = []",
        "[store]\nkind = \"sqlite\"\nendpoints = \"64K\"",
        "[kernel]\nuse = \"auto\"\nendpoints = \"64K\"\npromote_busy = false",
    ] {
        assert!(effective.contains(line), "{line} is not in\n{effective}");
    }
    let effective = meaning(EXAMPLE).effective();
    for line in [
        "mode = \"tunnel\"",
        "esn = ",
        "replay_window = 1024",
        "mss_clamp = true",
        "offload = \"none\"",
        "pmtu = \"learn\"",
        "encapsulation = \"none\"",
        "dscp = \"copy\"",
        "df = \"set\"",
        "port = \"wan\"",
    ] {
        assert!(effective.contains(line), "{line} is not in\n{effective}");
    }
}

#[test]
fn ports_peers_and_policies_keep_the_order_of_the_file() {
    let text = "\
[node]\nname = \"n\"\n\
[port.zulu]\nnetdev = \"e0\"\nside = \"protected\"\naddresses = [\"10.0.0.1/24\"]\n\
[port.alfa]\nnetdev = \"e0\"\nvlan = 7\nside = \"unprotected\"\n\
[port.mike]\nnetdev = \"e1\"\nside = \"protected\"\n";
    let validated = meaning(text);
    let names: Vec<&str> = validated.ports.iter().map(|port| port.name.as_str()).collect();
    assert_eq!(names, ["zulu", "alfa", "mike"]);
    assert_eq!(meaning(&validated.effective()), validated);
}

/// Any of the texts, or nothing.
fn maybe(texts: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop_oneof![
        1 => Just(String::new()),
        3 => prop::sample::select(texts).prop_map(|text| format!("{text}\n")),
    ]
}

/// A list of up to three of the texts; not empty.
fn list(texts: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(texts), 1..4).prop_map(|texts| format!("{texts:?}"))
}

const RANGES: &[&str] = &[
    "any",
    "0.0.0.0/0",
    "::/0",
    "0.0.0.0",
    "255.255.255.255",
    "0.0.0.1-255.255.255.254",
    "10.2.0.0-10.2.255.255",
    "10.2.0.1-10.2.0.2",
    "2001:db8::/32",
    "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe",
    "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
];
const PORTS: &[&str] = &["0", "65535", "0-65535", "443", "8000-8999", "1-1"];

fn upper() -> impl Strategy<Value = String> {
    prop_oneof![
        (
            maybe(&[
                "protocol = \"any\"",
                "protocol = \"tcp\"",
                "protocol = 17",
                "protocol = \"132\""
            ]),
            list(PORTS),
            prop_oneof![
                Just(String::new()),
                list(PORTS).prop_map(|ports| format!("remote_ports = {ports}\n")),
            ],
        )
            .prop_map(|(protocol, local, remote)| format!(
                "{protocol}local_ports = {local}\n{remote}"
            )),
        (
            prop::sample::select(&["icmp", "icmpv6"][..]),
            list(&["8", "3/4", "3/0-3/15", "3-5", "0", "255/255", "0-255"]),
        )
            .prop_map(|(protocol, icmp)| format!("protocol = \"{protocol}\"\nicmp = {icmp}\n")),
        maybe(&["protocol = 255", "protocol = \"gre\"", "protocol = \"any\"", "protocol = 99"]),
    ]
}

/// Returns keys that say how a peer's packets are carried.
fn carried() -> impl Strategy<Value = String> {
    let udp = (
        maybe(&["remote_port = 1", "remote_port = 65535", "remote_port = 4500"]),
        maybe(&["behind_nat = true", "behind_nat = false"]),
        maybe(&["nat_keepalive = 1", "nat_keepalive = 3600", "nat_keepalive = \"off\""]),
    );
    let udp = prop_oneof![
        Just(String::new()),
        Just("encapsulation = \"none\"\n".to_owned()),
        udp.prop_map(|(port, nat, alive)| format!("encapsulation = \"udp\"\n{port}{nat}{alive}")),
    ];
    let headers = (
        maybe(&["dscp = 0", "dscp = 63", "dscp = \"copy\""]),
        maybe(&["df = \"set\"", "df = \"copy\"", "df = \"clear\""]),
        maybe(&["pmtu = \"learn\"", "pmtu = \"ignore\""]),
        maybe(&["fragment_outer = true", "fragment_outer = false"]),
    );
    (udp, headers).prop_map(|(udp, (dscp, df, pmtu, cut))| format!("{udp}{dscp}{df}{pmtu}{cut}"))
}

fn policy() -> impl Strategy<Value = String> {
    (
        prop::sample::select(
            &[
                "peer = \"six\"",
                "action = \"bypass\"",
                "action = \"discard\"",
                "peer = \"f.o_u-r\"",
            ][..],
        ),
        list(RANGES),
        list(RANGES),
        upper(),
        maybe(&["priority = 0", "priority = 4294967295", "priority = 0x10"]),
        maybe(&["direction = \"both\"", "direction = \"inbound\"", "direction = \"outbound\""]),
        maybe(&[
            "ports = [\"lan\"]",
            "ports = [\"host\"]",
            "ports = [\"wan\"]",
            "ports = [\"wan\", \"host\"]",
            "ports = [\"host\", \"lan\", \"lan\"]",
        ]),
    )
        .prop_map(|(action, local, remote, upper, priority, direction, ports)| {
            // Each has the other family's whole range too, so that it can match something.
            let both = |list: String| list.replacen('[', "[\"any\", ", 1);
            let (local, remote) = (both(local), both(remote));
            format!(
                "{action}\nlocal = {local}\nremote = {remote}\n{upper}{priority}{direction}{ports}"
            )
        })
}

/// Sets, groups and rules, with a group for each place in the lists of ports.
fn groups() -> impl Strategy<Value = String> {
    let members = prop::collection::vec(prop::sample::select(&RANGES[1..]), 1..4);
    let ends = || {
        let entry = prop_oneof![
            3 => prop::sample::select(RANGES),
            1 => prop::sample::select(&["@one", "@t.w-o"][..]),
        ];
        prop::collection::vec(entry, 1..4)
    };
    let rule = (
        prop::sample::select(&["a", "b", "c.d"][..]),
        prop::bool::ANY,
        prop::sample::select(&["permit", "deny"][..]),
        (ends(), ends()),
        upper(),
    );
    let rules = prop::collection::vec(rule, 0..6);
    (members, maybe(&["mode = \"audit\"", "mode = \"enforce\""]), rules).prop_map(
        |(members, mode, rules)| {
            let mut text = format!(
                "[set.one]\naddresses = {members:?}\n[set.\"t.w-o\"]\naddresses = [\"::/0\", \
                 \"0.0.0.0/0\"]\n[group.a]\n{mode}[group.\"c.d\"]\n[group.b]\nmode = \"audit\"\n"
            );
            for (place, (group, has_name, action, (from, to), upper)) in
                rules.into_iter().enumerate()
            {
                let name = if has_name { format!("name = \"r{place}\"\n") } else { String::new() };
                // Each has the whole range of both families too, so that it can match something.
                let [from, to] =
                    [from, to].map(|list| format!("{list:?}").replacen('[', "[\"any\", ", 1));
                let upper = upper.replace("local_", "from_").replace("remote_", "to_");
                text.push_str(&format!(
                    "[[rule]]\ngroup = \"{group}\"\n{name}action = \"{action}\"\nfrom = {from}\n\
                     to = {to}\n{upper}"
                ));
            }
            text
        },
    )
}

/// Two overlays or none, virtual networks of theirs, and the store.
fn overlays() -> impl Strategy<Value = String> {
    let overlay = (
        prop::sample::select(&["vxlan", "geneve"][..]),
        prop::sample::select(&["lan", "wan"][..]),
        maybe(&["udp_port = 1", "udp_port = 65535", "udp_port = 0x12b5"]),
        maybe(&["direct = \"off\"", "direct_port = 1", "direct_port = 0x206c"]),
    );
    let network = (
        prop_oneof![Just(0), Just(0xff_ffff), 0..0x100_0000u32],
        prop::sample::select(&["f-1", "f.2"][..]),
        maybe(&["groups_in = [\"b\", \"a\"]", "groups_in = []"]),
        maybe(&["groups_out = [\"a\"]", "groups_out = [\"c.d\"]"]),
        maybe(&["source_check = \"none\"", "source_check = \"host\""]),
    );
    let store = maybe(&[
        "[store]",
        "[store]\nkind = \"memory\"\nendpoints = 1",
        "[store]\nkind = \"sqlite\"\nendpoints = \"4m\"",
        "[kernel]\nuse = \"on\"\nendpoints = \"1K\"\npromote_busy = true",
        "[store]\n[kernel]\nuse = \"off\"",
    ]);
    let networks = prop::collection::vec(network, 0..4);
    let all = (overlay, networks, prop::bool::ANY, store);
    all.prop_map(|((kind, port, udp_port, direct), mut networks, is_there, store)| {
        if !is_there {
            return store;
        }
        let mut text = format!(
            "[overlay.f-1]\nkind = \"{kind}\"\nport = \"{port}\"\n{udp_port}{direct}\
             entrances = [\"192.0.2.1\", \"2001:db8::1\"]\n\
             [overlay.\"f.2\"]\nkind = \"geneve\"\nport = \"wan\"\n\
             entrances = [\"198.18.0.1\"]\n{store}"
        );
        networks.sort_by_key(|(vni, ..)| *vni);
        networks.dedup_by_key(|(vni, ..)| *vni);
        for (vni, overlay, groups_in, groups_out, check) in networks.into_iter().rev() {
            text +=
                &format!("[vni.{vni}]\noverlay = \"{overlay}\"\n{groups_in}{groups_out}{check}");
        }
        text
    })
}

/// Bounds of IKE, or none.
fn ike() -> impl Strategy<Value = String> {
    const NEEDED: &str = "[ike]\nends = [\"192.0.2.0/30\", \"2001:db8::1\"]\npeers = [\"any\"]\n\
                          local = [\"any\"]\nremote = [\"10.9.0.0-10.9.0.7\", \"::/0\"]\n";
    let keys = (
        maybe(&[
            "protocol = \"tcp\"\nremote_ports = [\"1-9\"]",
            "protocol = 47",
            "protocol = \"any\"",
        ]),
        maybe(&["suites = [\"null-hmac-sha-256\"]", "suites = [\"aes-256-gcm\"]"]),
        maybe(&["max_children = 1", "max_children = 65536"]),
        maybe(&["[ike.lifetime]", "[ike.lifetime]\nhard_seconds = 9\nsoft_bytes = \"1G\""]),
        maybe(&[
            "[[ike.shunt]]\naction = \"bypass\"\nlocal = [\"any\"]\nremote = [\"::1\"]",
            "[[ike.shunt]]\naction = \"discard\"\nlocal = [\"10.0.0.0/8\"]\nremote = \
             [\"10.0.0.0/8\"]\nprotocol = \"udp\"\nlocal_ports = [\"53\"]\n[[ike.shunt]]\n\
             action = \"bypass\"\nlocal = [\"any\"]\nremote = [\"any\"]",
        ]),
    );
    let section = keys.prop_map(|(ports, suites, most, lifetime, shunts)| {
        format!("{NEEDED}{ports}{suites}{most}{lifetime}{shunts}")
    });
    prop_oneof![Just(String::new()), section]
}

/// Keys of the node, its cache, metrics and directories.
fn node() -> impl Strategy<Value = [String; 8]> {
    let keys = (
        maybe(&["workers = \"auto\"", "workers = 1", "workers = 256"]),
        maybe(&["reserve_cores = 0", "reserve_cores = 1023"]),
        maybe(&["on_exit = \"open\"", "on_exit = \"closed\""]),
        maybe(&["keys_dir = \"/etc/\\\"k\\\\eys\\u0007ä\"", "keys_dir = \"keys\""]),
        maybe(&[
            "[cache]\nflows = \"off\"",
            "[cache]\nflows = 2",
            "[cache]\nflows = \"64M\"",
            "[cache]\nflows = \"3k\"\nuse = \"auto\"",
            "[cache]\nuse = \"always\"",
            "[cache]",
        ]),
        maybe(&[
            "[metrics]\nlisten = \"off\"",
            "[metrics]\nlisten = \"[::1]:65535\"",
            "[metrics]\nlisten = \"192.0.2.1:1\"",
            "[metrics]",
        ]),
        maybe(&["run_dir = \"/r\\u0007\\\"\"", "state_dir = \"/s\"\nrun_dir = \"/tmp/x\""]),
        maybe(&["poll = \"busy\"", "poll = \"sleep\""]),
    );
    keys.prop_map(<[String; 8]>::from)
}

/// Keys of ports.
fn port() -> impl Strategy<Value = [String; 4]> {
    let keys = (
        maybe(&["vlan = 1", "vlan = 4094"]),
        maybe(&["mtu = 1280", "mtu = 65535"]),
        maybe(&["mac = \"fe:FF:ff:ff:ff:ff\""]),
        maybe(&[
            "allow_host = [\"udp/500\", \"89\", \"tcp/0-65535\", \"icmp\"]",
            "allow_host = []",
        ]),
    );
    keys.prop_map(<[String; 4]>::from)
}

/// Keys of peers.
fn peer() -> impl Strategy<Value = [String; 6]> {
    let lifetime = maybe(&[
        "[peer.six.lifetime]",
        "[peer.six.lifetime]\nhard_packets = 1\nsoft_bytes = \"16777215T\"",
        "[peer.six.lifetime]\nsoft_packets = \"1k\"\nhard_packets = 18446744073709551615",
        "[peer.six.lifetime]\nsoft_bytes = 1073741824\nhard_bytes = \"1G\"\nhard_seconds = 1",
        "[peer.six.lifetime]\nsoft_seconds = 315360000\nsoft_idle_seconds = 1\n\
         hard_idle_seconds = 0x10",
    ]);
    let keys = (
        maybe(&["mode = \"tunnel\"", "esn = true", "esn = false"]),
        carried(),
        maybe(&["replay_window = 32", "replay_window = 4096"]),
        maybe(&["mss_clamp = false", "mss_clamp = true"]),
        lifetime,
        prop::sample::select(&["keys = \"file:2\"\nmanual = \"laboratory\"", "keys = \"api\""][..])
            .prop_map(String::from),
    );
    keys.prop_map(<[String; 6]>::from)
}

fn route() -> impl Strategy<Value = &'static str> {
    prop::sample::select(
        &[
            "to = \"default\"\nvia = \"192.0.2.254\"",
            "to = \"0.0.0.0/1\"\nport = \"lan\"",
            "to = \"::/0\"\nvia = \"fe80::1\"\nport = \"wan\"",
            "to = \"255.255.255.255/32\"\ntype = \"blackhole\"",
            "to = \"2001:db8:ffff::/48\"\nvia = \"2001:db8::2\"",
        ][..],
    )
}

fn configuration() -> impl Strategy<Value = String> {
    let policies = prop::collection::vec(policy(), 0..4);
    let groups = (
        groups(),
        maybe(&[
            "groups_in = [\"a\", \"b\"]",
            "groups_in = [\"b\", \"c.d\", \"a\"]",
            "groups_in = []",
        ]),
        maybe(&["groups_out = [\"a\"]", "groups_out = [\"b\", \"b\"]"]),
    );
    let below = (overlays(), ike());
    let parts = (node(), port(), peer(), route(), policies, groups, below);
    parts.prop_map(|(node, port, peer, route, policies, groups, (overlays, ike))| {
        let (sections, groups_in, groups_out) = groups;
        let [workers, cores, exit, keys, cache, metrics, directories, poll] = node;
        let [vlan, mtu, mac, allow] = port;
        let [mode, carried, window, clamp, lifetime, source] = peer;
        let mut text = format!(
            "[node]\nname = \"n\"\n{workers}{cores}{exit}{keys}{directories}{poll}\
             [port.lan]\nnetdev = \"eth0\"\nside = \"protected\"\n{vlan}{mtu}{groups_in}\
             addresses = [\"10.0.0.1/8\", \"10.0.0.2/8\", \"172.16.0.0/31\"]\n\
             [port.\"wan\"]\nnetdev = \"eth1\"\nside = \"unprotected\"\n{mac}{allow}{groups_out}\
             addresses = [\"192.0.2.1/24\", \"2001:db8::1/126\", \"fe80::2/64\"]\n\
             {cache}{metrics}\
             [peer.\"f.o_u-r\"]\nlocal = \"192.0.2.1\"\nremote = \"1.0.0.0\"\n\
             keys = \"file: k'1\"\nmanual = \"laboratory\"\nsuite = \"aes-256-gcm\"\n{mode}\
             {carried}\
             [peer.six]\nlocal = \"2001:db8::1\"\nremote = \"2001:db8::7\"\n{source}\n\
             suite = \"aes-128-gcm\"\n{window}{clamp}\
             {lifetime}\
             [[route]]\n{route}\n\
             [[neighbour]]\nport = \"wan\"\naddress = \"fe80::1\"\nmac = \"02:00:00:00:00:01\"\n"
        );
        for (place, policy) in policies.iter().enumerate() {
            text.push_str(&format!("[[policy]]\nname = \"p{place}\"\n{policy}"));
        }
        text.push_str(&sections);
        text.push_str(&overlays);
        text.push_str(&ike);
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn effective_configuration_parses_back_to_the_same_meaning(text in configuration()) {
        let validated = meaning(&text);
        let effective = validated.effective();
        prop_assert_eq!(&meaning(&effective), &validated, "{}", effective);
        prop_assert_eq!(meaning(&effective).effective(), effective);
    }

    /// Chunks of a good file cut, repeated and moved, with hostile bytes between.
    #[test]
    fn mutated_configurations_never_panic(
        text in configuration(),
        edits in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), prop::sample::select(&[
                "", "\"", "[", "]", "[[", "]]", "=", ".", "#", "\n", "\r", "\t", "\0", "{", "}",
                ",", "'''", "\"\"\"", "\\", "é", "🦀", "-", "/", "0x", "99999999999999999999", "nan",
                "1979-05-27", "true", "any", "[node]", "[port.lan]", "x = {a = 1, a = 2}\n",
                "port.lan.mtu = 1\n",
            ][..])),
            1..6,
        ),
    ) {
        let mut text: Vec<char> = text.chars().collect();
        for (from, to, insert) in edits {
            let (from, to) = (from.index(text.len() + 1), to.index(text.len() + 1));
            // Short cuts keep most of the file readable.
            let end = from.max(to).min(from.min(to) + 7);
            text.splice(from.min(to)..end, insert.chars());
        }
        let text: String = text.into_iter().collect();
        match parse(&text, "mutated.toml") {
            Ok(parsed) => {
                let effective = parsed.validated.effective();
                prop_assert_eq!(meaning(&effective), parsed.validated, "{}", effective);
            }
            Err(errors) => {
                prop_assert!(errors.errors() > 0);
                let _ = errors.to_string();
            }
        }
    }

    #[test]
    fn arbitrary_text_never_panics(text in any::<String>()) {
        let errors = parse(&text, "arbitrary.toml").expect_err("no configuration by chance");
        let _ = errors.to_string();
    }
}

/// Every key that only some peers have.
#[test]
fn peers_of_every_kind_mean_themselves_when_every_default_is_written_out() {
    let nat = "encapsulation = \"udp\"\nbehind_nat = true\n";
    for (keys, written) in [
        (nat, "remote_port = 4500\nbehind_nat = true\nnat_keepalive = 20\ndscp"),
        ("mode = \"transport\"\n", "encapsulation = \"none\"\n\n"),
        ("mode = \"transport\"\nencapsulation = \"udp\"\n", "nat_keepalive = 20\n\n"),
        ("dscp = 46\ndf = \"clear\"\nesn = true\n", "dscp = 46\ndf = \"clear\"\n"),
        ("fragment_outer = true\n", "df = \"set\"\n"),
        ("pmtu = \"ignore\"\n", "mss_clamp = true\npmtu = \"ignore\"\n"),
        (
            "outer = \"q\"\n[peer.q]\nlocal = \"192.0.2.1\"\nremote = \"192.0.2.3\"\n\
             keys = \"api\"\nsuite = \"aes-128-gcm\"\n[[policy]]\nname = \"q\"\npeer = \"q\"\n\
             local = [\"192.0.2.1\"]\nremote = [\"192.0.2.2\"]\nprotocol = \"esp\"\n",
            "offload = \"none\"\nouter = \"q\"\n",
        ),
    ] {
        let text = format!(
            "[node]\nname = \"n\"\n[port.wan]\nnetdev = \"eth1\"\nside = \"unprotected\"\n\
             [peer.p]\nlocal = \"192.0.2.1\"\nremote = \"192.0.2.2\"\nkeys = \"file:k\"\n\
             manual = \"laboratory\"\nsuite = \"aes-256-cbc-hmac-sha-384\"\n{keys}\
             [[policy]]\nname = \"p\"\npeer = \"p\"\nlocal = [\"192.0.2.1\"]\n\
             remote = [\"192.0.2.2\"]\nprotocol = \"tcp\"\nremote_ports = [\"443\"]\n"
        );
        let validated = meaning(&text);
        let effective = validated.effective();
        assert!(effective.contains(written), "{written}\n{effective}");
        assert_eq!(meaning(&effective), validated, "{effective}");
    }
}

#[test]
fn moves_of_peers_mean_themselves_when_every_default_is_written_out() {
    let moves = "moves_to = [\"203.0.113.0/24\", \"2001:db8::/64\"]\nlocal_moves_to = [\"any\"]\n";
    let text = format!(
        "[node]\nname = \"n\"\n[port.wan]\nnetdev = \"eth1\"\nside = \"unprotected\"\n\
         [peer.p]\nlocal = \"192.0.2.1\"\nremote = \"192.0.2.2\"\nkeys = \"ike\"\n\
         suite = \"aes-256-gcm\"\n{moves}"
    );
    let validated = meaning(&text);
    let effective = validated.effective();
    assert!(effective.contains(moves), "{effective}");
    assert_eq!(meaning(&effective), validated, "{effective}");
    let peer = &validated.peers[0];
    let may = |local: &str, remote: &str| {
        let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
        peer.may_be_between(ipsec::Tunnel { local, remote })
    };
    assert!(may("192.0.2.1", "192.0.2.2") && may("198.51.100.9", "203.0.113.255"));
    assert!(may("2001:db8:9::1", "2001:db8::7"));
    assert!(!may("192.0.2.1", "203.0.114.0") && !may("192.0.2.1", "2001:db8::7"), "other families");
}

#[test]
fn peers_of_ike_have_all_their_keys_when_every_default_is_written_out() {
    let text = "[node]\nname = \"n\"\n[port.wan]\nnetdev = \"eth1\"\nside = \"unprotected\"\n\
                [peer.p]\nlocal = \"192.0.2.1\"\nremote = \"192.0.2.2\"\nkeys = \"ike\"\n\
                suite = \"aes-256-gcm\"\n";
    let validated = meaning(text);
    let effective = validated.effective();
    let wanted = "\n# outer: none\nmoves_to = []\nlocal_moves_to = []\n";
    assert!(effective.contains(wanted), "{effective}");
    assert_eq!(meaning(&effective), validated, "{effective}");
}

/// One table in another as deep as the parser goes, and beyond.
#[test]
fn deeply_nested_values_are_refused_and_overflow_no_stack() {
    for depth in [10, 79, 80, 81, 100_000] {
        for (open, close) in [("[", "]"), ("{a=", "}")] {
            let text = format!("x = {}1{}\n", open.repeat(depth), close.repeat(depth));
            assert!(parse(&text, "deep.toml").is_err());
        }
    }
}

#[test]
fn ports_on_one_netdev_have_one_mode_of_xdp() {
    // AX-39
    let text = "\
[node]\nname = \"n\"\n[port.a]\nnetdev = \"e0\"\nside = \"protected\"\n\
[port.b]\nnetdev = \"e0\"\nvlan = 7\nside = \"unprotected\"\nxdp = \"generic\"\n\
[port.c]\nnetdev = \"e1\"\nside = \"unprotected\"\nxdp = \"native\"\n\
[port.d]\nnetdev = \"e2\"\nside = \"unprotected\"\n";
    let modes: Vec<&str> = meaning(text).ports.iter().map(|port| port.xdp.name()).collect();
    assert_eq!(modes, ["generic", "generic", "native", "auto"]);
    let validated = meaning(text);
    assert_eq!(meaning(&validated.effective()), validated);
}
