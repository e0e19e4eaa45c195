//! Policies that Linux may carry for a card, and what the guard opens for them.

use std::net::IpAddr;

use control::guard::{CarriedPeer, Guard};
use control::{CarriedFlow, Compiler, NotCarried, carried_flows};
use dataplane::carve_out::Reserved;
use keystate::{HostIdentity, KeyState};
use linux::View;
use policy::{Action, SaSetId, Spd};
use proptest::prelude::*;

const HEAD: &str = r#"
[node]
name = "gw"
[port.lan]
netdev = "eth1"
side = "protected"
[port.wan]
netdev = "eth0"
side = "unprotected"
allow_host = ["udp/500"]
[peer.a]
local = "192.0.2.1"
remote = "198.51.100.1"
keys = "api"
suite = "aes-128-gcm"
[peer.b]
local = "192.0.2.1"
remote = "198.51.100.2"
keys = "api"
suite = "aes-128-gcm"
"#;

const ENDS: [&str; 3] = ["192.0.2.1", "198.51.100.1", "198.51.100.2"];

/// A policy of a peer, or of an action.
fn policy(name: &str, of: &str, local: &str, remote: &str, more: &str) -> String {
    let of = match of {
        "bypass" | "discard" => format!("action = \"{of}\""),
        peer => format!("peer = \"{peer}\""),
    };
    format!(
        "[[policy]]\nname = \"{name}\"\n{of}\nlocal = [\"{local}\"]\n\
         remote = [\"{remote}\"]\n{more}\n"
    )
}

fn spd(text: &str) -> Spd {
    compiled(&format!("{HEAD}{text}"))
}

fn compiled(text: &str) -> Spd {
    let root = tempfile::tempdir().unwrap();
    let parsed = config::parse(text, "test");
    let loaded = parsed.unwrap_or_else(|errors| panic!("{errors}")).load_keys(root.path());
    let loaded = loaded.unwrap_or_else(|errors| panic!("{errors}"));
    let host = HostIdentity::new("machine", "boot");
    let (run, state) = (root.path().join("run"), root.path().join("state"));
    let mut keys = KeyState::open_as(&run, &state, &host).unwrap();
    Spd::clone(&Compiler::new().compile(&loaded, &mut keys).unwrap().spd)
}

/// The set of the peer of a policy.
fn set_of(spd: &Spd, policy: &str) -> SaSetId {
    let found = spd.holding_policies().find(|(_, of)| of.name == policy).unwrap();
    let Action::Protect(set) = found.1.action else { panic!("{policy} protects nothing") };
    set
}

fn flows(text: &str) -> Result<Vec<CarriedFlow>, NotCarried> {
    let spd = spd(text);
    let ends = ENDS.map(|end| end.parse::<IpAddr>().unwrap());
    carried_flows(&spd, set_of(&spd, "one"), &ends)
}

fn one(more: &str) -> String {
    policy("one", "a", "10.1.0.0/16", "10.2.0.0/16", more)
}

#[test]
fn a_policy_of_prefixes_and_single_ports_is_said_as_it_is() {
    let both = one("protocol = \"tcp\"\nremote_ports = [\"443\"]")
        + &policy("two", "a", "10.1.0.0/16", "10.3.0.0/24", "");
    let flows = flows(&both).unwrap();
    let prefix = |text: &str, bits| (text.parse::<IpAddr>().unwrap(), bits);
    let [first, second] = flows[..] else { panic!("{flows:?}") };
    assert_eq!((first.local, first.remote), (prefix("10.1.0.0", 16), prefix("10.2.0.0", 16)));
    assert_eq!((first.protocol, first.local_port, first.remote_port), (Some(6), None, Some(443)));
    assert_eq!((second.remote, second.protocol), (prefix("10.3.0.0", 24), None));
}

// XO-04
#[test]
fn where_a_half_is_missing_it_is_named() {
    let outward = flows(&one("direction = \"outbound\"")).unwrap_err();
    assert_eq!(outward.name(), "one_way");
    assert!(outward.to_string().contains("the other half is missing"), "{outward}");
    let spd = spd(&policy("one", "b", "10.1.0.0/16", "10.2.0.0/16", ""));
    let of_a = SaSetId(set_of(&spd, "one").0 + 1);
    let none = carried_flows(&spd, of_a, &[]).unwrap_err();
    assert_eq!(none, NotCarried::NoPolicy);
    assert!(none.to_string().contains("the policy's half is missing"), "{none}");
}

// XO-10, XO-11, XO-15
#[test]
fn a_policy_that_overlaps_one_of_another_is_not_placed_and_says_which() {
    for (priority, wins) in [(200, true), (1, false)] {
        for (of, local, remote) in [
            ("discard", "any", "10.2.3.0/24"),
            ("bypass", "10.9.0.0/16", "10.0.0.0/8"),
            ("b", "10.1.0.0/16", "10.2.0.0/16"),
        ] {
            let text = one("priority = 100")
                + &policy("beside", of, local, remote, &format!("priority = {priority}"));
            let refused = flows(&text).unwrap_err();
            let (policy, other) = ("one".to_owned(), "beside".to_owned());
            assert_eq!(refused, NotCarried::Overlapped { policy, other, wins }, "{of} {remote}");
            assert!(refused.to_string().contains("beside"), "{refused}");
        }
    }
    // Elsewhere, and of the same peer, they may be.
    let beside = policy("beside", "discard", "any", "10.3.0.0/16", "priority = 200")
        + &policy("own", "a", "10.1.2.0/24", "10.2.3.0/24", "priority = 300");
    assert_eq!(flows(&(one("priority = 100") + &beside)).unwrap().len(), 2);
}

// OWN, XO-33
#[test]
fn our_own_esp_and_ike_discovery_and_groups_are_never_among_carried_packets() {
    for remote in ["any", "0.0.0.0/0", "198.51.100.0/24", "192.0.2.1", "128.0.0.0/1"] {
        let refused = flows(&policy("one", "a", "any", remote, "")).unwrap_err();
        assert_eq!(refused.name(), "own_traffic", "{remote}: {refused}");
    }
    for remote in ["fe80::/64", "ff02::/16", "::/0", "224.0.0.18", "169.254.7.0/24"] {
        let refused = flows(&policy("one", "a", "any", remote, "")).unwrap_err();
        assert!(matches!(refused, NotCarried::Own { .. }), "{remote}: {refused}");
    }
    // Groups of any port.
    let rules = "[group.web]\n[[rule]]\ngroup = \"web\"\nname = \"http\"\naction = \"permit\"\n\
                 from = [\"any\"]\nto = [\"any\"]\n";
    let asked =
        HEAD.replacen("side = \"protected\"", "side = \"protected\"\ngroups_in = [\"web\"]", 1);
    let spd = compiled(&format!("{asked}{}{rules}", one("")));
    let refused = carried_flows(&spd, set_of(&spd, "one"), &[]).unwrap_err();
    assert_eq!(refused.name(), "groups", "{refused}");
}

#[test]
fn what_linux_cannot_be_told_exactly_is_not_placed() {
    for (more, word) in [
        ("protocol = \"tcp\"\nremote_ports = [\"1-9\"]", "one port"),
        ("protocol = \"tcp\"\nremote_ports = [\"1\", \"9\"]", "one port"),
        ("protocol = \"udp\"\nlocal_ports = [\"0-65535\"]", "one port"),
        ("protocol = \"icmp\"\nicmp = [\"8\"]", "ICMP messages"),
    ] {
        let refused = flows(&one(more)).unwrap_err();
        assert_eq!(refused.name(), "inexact", "{more}");
        assert!(refused.to_string().contains(word), "{more}: {refused}");
    }
    let refused = flows(&policy("one", "a", "10.1.0.0-10.1.0.5", "10.2.0.0/16", "")).unwrap_err();
    assert_eq!(refused.name(), "inexact");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever policies there are: where Linux carries a peer's, no packet to or from the carried
    /// networks is decided by a policy of anybody else.
    #[test]
    fn nobody_else_decides_among_carried_networks(
        others in prop::collection::vec((0u8..4, 0u8..8, 0u8..3, 0u32..300), 0..5),
        wanted in 0u8..8,
    ) {
        let network = |of: u8| format!("10.{}.0.0/{}", of, 14 + of % 3);
        let network = |of: u8| {
            let text = network(of);
            let (address, bits) = text.split_once('/').unwrap();
            let address = wire::Address::from(address.parse::<IpAddr>().unwrap());
            policy::AddressRange::network(address, bits.parse().unwrap()).to_string()
        };
        let mut text = policy("one", "a", "10.1.0.0/16", &network(wanted), "priority = 100");
        for (place, (of, remote, local, priority)) in others.iter().enumerate() {
            let of = ["a", "b", "bypass", "discard"][usize::from(*of)];
            let (local, remote) = (format!("10.{local}.0.0/16"), network(*remote));
            let more = format!("priority = {priority}");
            text += &policy(&format!("p{place}"), of, &local, &remote, &more);
        }
        let spd = spd(&text);
        let set = set_of(&spd, "one");
        if let Ok(flows) = carried_flows(&spd, set, &[]) {
            for (_, policy) in spd.holding_policies() {
                let is_ours = policy.action == Action::Protect(set);
                let meets = flows.iter().any(|flow| {
                    let address = wire::Address::from(flow.remote.0);
                    let range = policy::AddressRange::network(address, flow.remote.1);
                    policy.selector.remote.iter().any(|remote| remote.overlaps(&range))
                });
                prop_assert!(is_ours || !meets, "{}", policy.name);
            }
        }
    }
}

#[test]
fn the_guard_opens_what_linux_sealed_or_opened_and_nothing_else() {
    let config = config::parse(HEAD, "test").unwrap().validated;
    let reserved =
        Reserved::nothing(config.ports.iter().map(|port| (&*port.name, &port.allow_host[..])));
    let guard = Guard::new(&config, &View::default(), &reserved).unwrap();
    let remote = ("10.2.0.0".parse().unwrap(), 16);
    let peer = CarriedPeer { port: "wan".into(), reqid: 0x4c47_0003, remotes: vec![remote] };
    let opened =
        guard.with_netdevs(&config, &View::default(), &reserved, &[peer]).unwrap().unwrap();
    let (before, now) = (guard.text(), opened.text());
    let more: Vec<&str> = now.lines().filter(|line| !before.contains(line)).collect();
    let more: Vec<&str> = more.into_iter().map(str::trim).collect();
    assert_eq!(
        more,
        [
            "iifname \"eth0\" oifname { \"eth1\" } ipsec in reqid 1279721475 accept",
            "iifname { \"eth1\" } oifname \"eth0\" ipsec out reqid 1279721475 accept",
            "oifname \"eth0\" ipsec out reqid 1279721475 accept",
            "oifname \"eth0\" ip daddr 10.2.0.0/16 counter drop",
            "iifname \"eth0\" meta l4proto esp accept",
            "iifname \"eth0\" ipsec in reqid 1279721475 accept",
        ]
    );
    // In front of what closes.
    let place = |text: &str| now.find(text).unwrap();
    assert!(place("ipsec in reqid") < place("iifname \"eth1\" counter drop"));
    assert!(place("oifname \"eth0\" ipsec out") < place("oifname \"eth0\" goto outbound"));
    // Closed again.
    let closed = opened.with_netdevs(&config, &View::default(), &reserved, &[]).unwrap().unwrap();
    assert_eq!(closed.text(), before);
}
