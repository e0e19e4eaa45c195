//! Slots of ports and netdevs over configurations that come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use config::{HOST_NETDEV, parse};
use control::{Compiled, Compiler, LiveParts, live_parts_towards};
use dataplane::{NetdevId, PortId, Snapshot};
use keystate::{HostIdentity, KeyState};
use linux::View;
use proptest::prelude::*;
use proptest::sample::Index;
use tempfile::TempDir;

/// A port: name, netdev, VLAN id. Some differ by one of the three only.
type Key = (&'static str, &'static str, Option<u16>);
const PORTS: [Key; 8] = [
    ("a", "eth0", None),
    ("a", "eth1", None),
    ("a", "eth0", Some(7)),
    ("b", "eth0", None),
    ("b", "eth2", None),
    ("c", "eth1", Some(7)),
    ("d", "eth3", None),
    ("e", "eth2", Some(9)),
];

/// A compiler with its folders.
struct Gateway {
    root: TempDir,
    keys: KeyState,
    compiler: Compiler,
}

impl Gateway {
    fn new() -> Gateway {
        let root = tempfile::tempdir().unwrap();
        let host = HostIdentity::new("machine", "boot");
        let (run, state) = (root.path().join("run"), root.path().join("state"));
        let keys = KeyState::open_as(&run, &state, &host).unwrap();
        Gateway { root, keys, compiler: Compiler::new() }
    }

    /// Compiles a configuration of these ports, with a policy for those that are unprotected.
    fn compile(&mut self, ports: &[Key]) -> Compiled {
        let port = |(place, (name, netdev, vlan)): (usize, &Key)| {
            let vlan = vlan.map_or(String::new(), |vlan| format!("vlan = {vlan}\n"));
            let side = if place == 0 { "unprotected" } else { "protected" };
            format!("[port.{name}]\nnetdev = \"{netdev}\"\n{vlan}side = \"{side}\"\n")
        };
        let sections: String = ports.iter().enumerate().map(port).collect();
        let policy = ports.first().map(|(name, ..)| {
            format!(
                "[[policy]]\nname = \"p\"\naction = \"discard\"\nlocal = [\"any\"]\n\
                 remote = [\"any\"]\nports = [\"{name}\", \"host\"]\n"
            )
        });
        let text = format!("[node]\nname = \"gw\"\n{sections}{}", policy.unwrap_or_default());
        let parsed = parse(&text, "test").unwrap_or_else(|errors| panic!("{errors}\n{text}"));
        let loaded = parsed.load_keys(self.root.path()).unwrap();
        let compiled = self.compiler.compile(&loaded, &mut self.keys).unwrap();
        assert_eq!(compiled.validated().effective(), loaded.validated.effective());
        compiled
    }
}

fn live(compiled: &Compiled) -> LiveParts {
    let (settings, slots) = (compiled.settings(), compiled.slots().clone());
    live_parts_towards(settings, &View::default(), slots, compiled.remotes())
}

/// Slots of the ports and netdevs of a configuration.
fn slots(compiled: &Compiled) -> (BTreeMap<String, PortId>, BTreeMap<String, NetdevId>) {
    let settings = compiled.settings();
    let keys =
        settings.ports.iter().map(|port| format!("{} {} {:?}", port.name, port.netdev, port.vlan));
    let ports = keys.chain(["host".to_owned()]).zip(compiled.slots().ports()).collect();
    let names = settings.ports.iter().map(|port| port.netdev.as_str()).chain([HOST_NETDEV]);
    let netdevs = names.map(|name| (name.to_owned(), compiled.slots().netdev_named(name).unwrap()));
    (ports, netdevs.collect())
}

/// Asserts that of two configurations a slot means the same in both, and is the same.
fn are_one_to_one<S: Copy + PartialEq>(now: &BTreeMap<String, S>, before: &BTreeMap<String, S>) {
    for (name, slot) in now {
        for (other, other_slot) in before {
            assert_eq!(name == other, slot == other_slot, "{name} and {other}");
        }
    }
}

/// Ports that can stand in one configuration: names and links differ.
fn ports() -> impl Strategy<Value = Vec<Key>> {
    let some = prop::sample::subsequence(PORTS.to_vec(), 1..=PORTS.len()).prop_shuffle();
    some.prop_map(|keys| {
        let (mut names, mut links) = (BTreeSet::new(), BTreeSet::new());
        let mut fits =
            |(name, netdev, vlan): &Key| names.insert(*name) && links.insert((*netdev, *vlan));
        keys.into_iter().filter(|key| fits(key)).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Configurations come to run, or are held and do not, and are let go of.
    #[test]
    fn no_slot_means_two_ports_or_netdevs_while_somebody_holds_it(
        steps in prop::collection::vec((ports(), any::<bool>(), any::<Index>()), 1..24),
    ) {
        let mut gateway = Gateway::new();
        let mut held: Vec<Compiled> = Vec::new();
        let mut running: Option<(Compiled, Arc<Snapshot>)> = None;
        for (ports, runs, letting_go) in steps {
            let compiled = gateway.compile(&ports);
            let now = slots(&compiled);
            for other in held.iter().chain(running.as_ref().map(|(compiled, _)| compiled)) {
                let before = slots(other);
                are_one_to_one(&now.0, &before.0);
                are_one_to_one(&now.1, &before.1);
            }
            if runs {
                let before = running.as_ref().map(|(_, snapshot)| &**snapshot);
                let snapshot = compiled.assemble(&live(&compiled), before).unwrap();
                let policy = compiled.policy_named("p").and_then(|policy| policy.ingress.clone());
                let named = policy.iter().flat_map(|ports| ports.iter());
                for port in named {
                    prop_assert!(snapshot.ports().any(|(slot, _)| slot.0 == *port));
                }
                if let Some((before, _)) = running.replace((compiled, snapshot)) {
                    held.push(before);
                }
            } else {
                held.push(compiled);
            }
            if held.len() > 3 {
                held.remove(letting_go.index(held.len()));
            }
        }
    }
}

#[test]
fn a_port_keeps_its_slot_while_its_name_netdev_and_vlan_are_the_same() {
    let mut gateway = Gateway::new();
    let (a, b, d) = (PORTS[0], PORTS[4], PORTS[6]);
    let first = gateway.compile(&[a, b]);
    let of = |compiled: &Compiled| -> Vec<u16> { compiled.slots().ports().map(|p| p.0).collect() };
    assert_eq!(of(&first), [0, 1, 2], "the host port's is the last");
    let more = gateway.compile(&[d, b, a]);
    assert_eq!(of(&more), [3, 1, 0, 2]);
    assert_eq!(more.slots().netdev_named("eth3"), Some(NetdevId(3)));
    drop(first);
    let fewer = gateway.compile(&[d]);
    assert_eq!(of(&fewer), [3, 2]);
    // Others get slots that the one before holds only when it is gone.
    let tagged = gateway.compile(&[PORTS[2], d]);
    assert_eq!(of(&tagged), [4, 3, 2]);
    drop((more, fewer, tagged));
    let renamed = gateway.compile(&[PORTS[3], d]);
    assert_eq!(of(&renamed)[1..], [3, 2]);
    assert_eq!(of(&renamed)[0], 0, "slots are given again");
}

#[test]
fn slots_are_free_when_nobody_holds_them() {
    let mut gateway = Gateway::new();
    for round in 0..100 {
        let ports = [PORTS[round % PORTS.len()], PORTS[6]];
        let ports = if round % PORTS.len() == 6 { &ports[1..] } else { &ports[..] };
        let compiled = gateway.compile(ports);
        let highest = compiled.slots().ports().map(|port| port.0).max();
        assert!(highest < Some(6), "{highest:?}");
    }
}
