//! Charon's changes while a configuration is prepared: the configuration follows them before it
//! runs.

use std::collections::BTreeSet;
use std::path::Path;

use config::validated::Peer;
use config::{Loaded, ShuntAction, parse};
use control::{Compiled, Compiler, IkeAction, IkeChange, IkePolicy, PreparedConfiguration};
use keystate::{HostIdentity, KeyState};
use policy::{Action, Book, Policy, Selector, UpperSelector, common};
use proptest::prelude::*;
use wire::Family;

const CONFIG: &str = r#"
[node]
name = "gw"
[port.lan]
netdev = "eth1"
side = "protected"
[port.wan]
netdev = "eth0"
side = "unprotected"
[ike]
ends = ["192.0.2.1"]
peers = ["198.51.100.0/24"]
local = ["10.0.0.0/8"]
remote = ["10.0.0.0/8"]
[[ike.shunt]]
action = "discard"
local = ["any"]
remote = ["any"]
"#;

/// Peers of the file lie outside of `[ike]`.
fn file_peer(number: u8) -> String {
    format!(
        "[peer.f{number}]\nlocal = \"192.0.2.1\"\nremote = \"203.0.113.{number}\"\n\
         keys = \"ike\"\nsuite = \"aes-128-gcm\"\n"
    )
}

fn file_policy(number: u8) -> String {
    format!(
        "[[policy]]\nname = \"p{number}\"\npriority = {number}\npeer = \"f{number}\"\n\
         local = [\"10.0.0.0/8\"]\nremote = [\"10.{number}.0.0/16\"]\n"
    )
}

/// A configuration with some peers of ten, each with a policy.
fn configuration(peers: &BTreeSet<u8>) -> Loaded {
    let sections = peers.iter().map(|number| file_peer(*number) + &file_policy(*number));
    let text: String = [CONFIG.to_owned()].into_iter().chain(sections).collect();
    let without_key_files = Path::new("/nonexistent");
    parse(&text, "lockgate.toml").unwrap().load_keys(without_key_files).unwrap()
}

/// A peer of charon's own, within `[ike]`.
fn own_peer(number: u8) -> Peer {
    let text = format!("{CONFIG}{}", file_peer(number));
    let text =
        text.replace("203.0.113.", "198.51.100.").replace("198.51.100.0/24", "100.64.0.0/10");
    let mut peer = parse(&text, "lockgate.toml").unwrap().validated.peers.remove(0);
    peer.name = format!("ike:{number}");
    peer
}

fn own_policy(name: String, action: IkeAction, number: u8) -> IkePolicy {
    let one = |third: &str| vec![format!("10.{number}.{third}.0/24").parse().unwrap()];
    let (local, remote) = (one("1"), one("2"));
    let selector = Selector { local, remote, protocol: None, upper: UpperSelector::Any };
    IkePolicy { name, action, priority: u32::from(number), selector }
}

/// A change that charon asks for: one peer or shunt comes, or goes if it is there.
#[derive(Clone, Copy, Debug)]
enum Toggle {
    Peer(u8),
    Shunt(u8),
}

impl Toggle {
    fn change(self, running: &Compiled) -> IkeChange {
        let (policy, peer) = match self {
            Toggle::Peer(number) => (format!("ike:{number}/1"), Some(own_peer(number))),
            Toggle::Shunt(number) => (format!("ike:discard/{number}"), None),
        };
        let number = match self {
            Toggle::Peer(number) | Toggle::Shunt(number) => number,
        };
        if running.spd.named(&policy).is_some() {
            return IkeChange {
                policies_gone: vec![policy],
                peers_gone: peer.into_iter().map(|peer| peer.name).collect(),
                ..IkeChange::default()
            };
        }
        let action = match &peer {
            Some(peer) => IkeAction::Protect(peer.name.clone()),
            None => IkeAction::Shunt(ShuntAction::Discard),
        };
        let policies = vec![own_policy(policy, action, number)];
        IkeChange { peers: peer.into_iter().collect(), policies, ..IkeChange::default() }
    }
}

struct Gateway {
    _root: tempfile::TempDir,
    keys: KeyState,
    compiler: Compiler,
}

impl Gateway {
    fn new() -> Gateway {
        let root = tempfile::tempdir().unwrap();
        let (run, state) = (root.path().join("run"), root.path().join("state"));
        let keys = KeyState::open_as(&run, &state, &HostIdentity::new("machine", "boot")).unwrap();
        Gateway { _root: root, keys, compiler: Compiler::new() }
    }

    fn prepare(&self, loaded: &Loaded, running: Option<&Compiled>) -> PreparedConfiguration {
        self.compiler.planner().prepare(loaded.validated.clone(), running).unwrap()
    }

    fn finish(
        &mut self,
        prepared: PreparedConfiguration,
        loaded: &Loaded,
        running: Option<&Compiled>,
    ) -> Compiled {
        self.compiler.finish(prepared, &loaded.keys, &mut self.keys, running).unwrap()
    }

    fn toggle(&mut self, running: &Compiled, toggle: Toggle) -> Compiled {
        let change = toggle.change(running);
        self.compiler.change_ike(running, change).unwrap().compiled
    }
}

/// Policies in the order of precedence, with the peers that they name.
fn listed(compiled: &Compiled) -> Vec<(String, String)> {
    let peer = |policy: &Policy| match policy.action {
        Action::Protect(set) => {
            let place = compiled.sad.places().get(set).expect("a policy's set has a place");
            compiled.sad.set(place).expect("a place has a set").peer.clone()
        }
        _ => "none".into(),
    };
    let policies = compiled.spd.policies().into_iter();
    policies.map(|(_, policy)| (policy.name.clone(), peer(policy))).collect()
}

fn some_peers() -> impl Strategy<Value = BTreeSet<u8>> {
    prop::collection::btree_set(1u8..6, 0..5)
}

fn toggles() -> impl Strategy<Value = Vec<Toggle>> {
    let one = prop_oneof![(1u8..5).prop_map(Toggle::Peer), (1u8..5).prop_map(Toggle::Shunt)];
    prop::collection::vec(one, 0..8)
}

proptest! {
    #[test]
    fn prepared_configuration_follows_charon(
        before in some_peers(),
        early in toggles(),
        after in some_peers(),
        late in toggles(),
        dropped in some_peers(),
        last in toggles(),
    ) {
        let mut gateway = Gateway::new();
        let first = configuration(&before);
        let prepared = gateway.prepare(&first, None);
        let mut running = gateway.finish(prepared, &first, None);
        for toggle in early {
            running = gateway.toggle(&running, toggle);
        }
        let loaded = configuration(&after);
        let prepared = gateway.prepare(&loaded, Some(&running));
        // A dry run beside it takes numbers of sets and returns them.
        drop(gateway.prepare(&configuration(&dropped), Some(&running)));
        for toggle in late {
            running = gateway.toggle(&running, toggle);
        }
        let next = gateway.finish(prepared, &loaded, Some(&running));

        let mut expected: Vec<(String, String)> = listed(&running);
        expected.retain(|(name, _)| name.starts_with("ike:"));
        let of_file = after.iter().rev().map(|number| (format!("p{number}"), format!("f{number}")));
        expected.splice(0..0, of_file);
        prop_assert_eq!(listed(&next), expected.clone());
        prop_assert_eq!(next.validated().policies.len(), after.len());

        let changed = listed(&running) != expected;
        for family in [Family::V4, Family::V6] {
            for book in [Book::SpdIn, Book::SpdOut] {
                let domain = common(book, family);
                let [old, new] = [&running, &next].map(|of| of.spd.generation(domain));
                prop_assert!(new >= old, "{book:?} {family:?}: {new:?} after {old:?}");
                prop_assert!(!changed || family == Family::V6 || new > old);
            }
        }
        prop_assert!(!changed || next.generation > running.generation);
        if next.policy_slots == running.policy_slots {
            for (slot, policy) in running.spd.counted() {
                prop_assert_eq!(next.spd.policy(slot), policy, "a counter changes its policy");
            }
        }
        // Later changes continue the finished configuration.
        let mut running = next;
        for toggle in last {
            running = gateway.toggle(&running, toggle);
        }
        let names: BTreeSet<_> = listed(&running).into_iter().collect();
        prop_assert_eq!(names.len(), running.spd.len());
    }
}
