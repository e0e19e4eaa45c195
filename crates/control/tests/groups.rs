//! Rules of security groups in both compilers: by the file alone, and one after the other in a
//! running daemon.

use std::sync::Arc;

use config::{Loaded, ReplayKeys, Validated, differences, parse, parse_policies};
use control::{Compiled, Compiler};
use dataplane::Generation;
use keystate::{HostIdentity, KeyState};
use policy::{Action, Book, DomainId, GroupMode, GroupSide, Policy};
use wire::Family;

const TEXT: &str = r#"[node]
name = "gw"
[port.lan]
netdev = "eth1"
side = "protected"
groups_in = ["web", "base"]
[port.dmz]
netdev = "eth2"
side = "protected"
groups_out = ["base"]
[port.wan]
netdev = "eth0"
side = "unprotected"
[set.admins]
addresses = ["10.9.0.0/24", "10.8.0.0/24"]
[group.web]
[group.base]
mode = "audit"
[[rule]]
group = "web"
name = "http"
action = "permit"
from = ["any"]
to = ["10.1.0.0/16"]
protocol = "tcp"
to_ports = ["80"]
[[rule]]
group = "web"
action = "deny"
from = ["@admins"]
to = ["any"]
[[rule]]
group = "base"
action = "permit"
from = ["10.1.0.0/16"]
to = ["any"]
[[policy]]
name = "lan"
action = "bypass"
local = ["any"]
remote = ["9.9.9.9"]
[[policy]]
name = "dmz"
action = "discard"
local = ["any"]
remote = ["any"]
priority = 1
"#;

struct Gateway {
    root: tempfile::TempDir,
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

    fn compile(&mut self, text: &str) -> Compiled {
        let parsed = parse(text, "groups.toml").unwrap_or_else(|errors| panic!("{errors}"));
        let loaded: Loaded = parsed.load_keys_in(self.root.path()).unwrap();
        self.compiler.compile(&loaded, &mut self.keys).unwrap()
    }
}

fn meaning(text: &str) -> Validated {
    parse(text, "groups.toml").unwrap_or_else(|errors| panic!("{errors}")).validated
}

/// Names, sides and ids of the rules, by name and side.
fn rules(compiled: &Compiled) -> Vec<(&str, &str, u32)> {
    let of = |policy: &'_ Policy| policy.group.map(|side| side.name()).unwrap();
    let mut rules: Vec<_> = compiled
        .spd
        .holding_rules()
        .map(|(_, policy)| (policy.name.as_str(), of(policy), policy.id.0))
        .collect();
    rules.sort_unstable();
    rules
}

fn names<'c>(rules: &[(&'c str, &'c str, u32)]) -> Vec<(&'c str, &'c str)> {
    rules.iter().map(|&(name, side, _)| (name, side)).collect()
}

const ALL: [(&str, &str); 6] = [
    ("base/1", "in"),
    ("base/1", "out"),
    ("dmz (out)", "out"),
    ("lan (in)", "in"),
    ("web/2", "in"),
    ("web/http", "in"),
];

#[test]
fn a_snapshot_holds_the_rules_behind_the_policies_of_the_file() {
    let config = meaning(TEXT);
    let keys = ReplayKeys::stand_ins(&config).unwrap();
    let snapshot = control::compile(&config, keys, Generation(1)).unwrap();
    let spd = snapshot.spd();
    assert_eq!((spd.len(), spd.holding_rules().count()), (2, 6));
    let mut ids: Vec<u32> = spd.holding().map(|(_, policy)| policy.id.0).collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(spd.holding_policies().all(|(_, policy)| policy.id.0 < 2));
    let last = spd.holding_rules().find(|(_, rule)| rule.name == "dmz (out)").unwrap().1;
    assert_eq!((last.group, last.action), (Some(GroupSide::Out), Action::NoRule(GroupMode::Audit)));
    assert_eq!(last.ingress.as_deref(), Some(&[1][..]));
    for (book, port, family, rules) in [
        (Book::GroupIn, 0, Family::V4, 5),
        (Book::GroupIn, 0, Family::V6, 1),
        (Book::GroupIn, 1, Family::V4, 0),
        (Book::GroupOut, 1, Family::V4, 2),
        (Book::GroupOut, 2, Family::V4, 0),
    ] {
        let domain = DomainId::new(spd.class(port), book, family);
        assert_eq!(spd.rules(domain), rules, "{book:?} {port} {family:?}");
    }
}

#[test]
fn rules_keep_their_ids_while_they_are_the_same_and_policies_of_their_names_theirs() {
    let mut gateway = Gateway::new();
    let first = gateway.compile(TEXT);
    assert_eq!(names(&rules(&first)), ALL);
    let again = gateway.compile(TEXT);
    assert!(Arc::ptr_eq(&first.spd, &again.spd));
    assert_eq!(first.generation, again.generation);
    assert_eq!(**again.validated(), meaning(TEXT));

    let changed = gateway.compile(&TEXT.replace("[\"80\"]", "[\"443\"]"));
    let (before, after) = (rules(&first), rules(&changed));
    assert_eq!(names(&after), ALL);
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before == after, before.0 != "web/http", "{before:?} {after:?}");
    }
    let policies = |compiled: &Compiled| -> Vec<(String, u32)> {
        let policies = compiled.spd.policies().into_iter();
        policies.map(|(_, policy)| (policy.name.clone(), policy.id.0)).collect()
    };
    assert_eq!(policies(&first), policies(&changed));
    assert_eq!(changed.generation.0, first.generation.0 + 1);

    // A mode is a part of every action of its group, a set of the rules that name it.
    let enforced = gateway.compile(&TEXT.replace("mode = \"audit\"\n", ""));
    let kept = rules(&enforced);
    let kept = kept.iter().filter(|rule| rules(&first).contains(rule));
    assert_eq!(kept.map(|rule| rule.0).collect::<Vec<_>>(), ["lan (in)", "web/2"]);
    let removed = gateway.compile(&TEXT.replace("groups_in = [\"web\", \"base\"]\n", ""));
    assert_eq!(names(&rules(&removed)), [("base/1", "out"), ("dmz (out)", "out")]);
    assert_eq!(removed.spd.len(), 2);
}

// HA-10, HA-24
#[test]
fn a_group_has_its_rules_where_ports_list_it_and_applying_it_again_adds_none() {
    let mut gateway = Gateway::new();
    let unbound = TEXT
        .replace("groups_in = [\"web\", \"base\"]\n", "")
        .replace("groups_out = [\"base\"]\n", "");
    let none = gateway.compile(&unbound);
    assert_eq!(none.spd.holding_rules().count(), 0);
    let bound = gateway.compile(TEXT);
    let (first, capacity) = (rules(&bound), bound.spd.capacity());
    assert_eq!(names(&first), ALL);
    for _ in 0..10 {
        let again = gateway.compile(TEXT);
        assert_eq!((rules(&again), again.spd.capacity()), (first.clone(), capacity));
        assert_eq!(again.generation, bound.generation);
    }
    for _ in 0..10 {
        let none = gateway.compile(&unbound);
        assert_eq!(none.spd.holding_rules().count(), 0);
        assert_eq!(names(&rules(&gateway.compile(TEXT))), ALL);
    }
}

#[test]
fn ports_of_rules_are_slots_that_other_ports_do_not_move() {
    let mut gateway = Gateway::new();
    let first = gateway.compile(TEXT);
    let (begin, end) = (TEXT.find("[port.lan]").unwrap(), TEXT.find("[port.dmz]").unwrap());
    let without = format!("{}{}", &TEXT[..begin], &TEXT[end..]);
    let second = gateway.compile(&without);
    assert_eq!(names(&rules(&second)), [("base/1", "out"), ("dmz (out)", "out")]);
    let of_dmz = |compiled: &Compiled| {
        let find = |(_, rule): (_, &Policy)| (rule.name == "dmz (out)").then(|| rule.clone());
        compiled.spd.holding_rules().find_map(find).unwrap()
    };
    assert_eq!(of_dmz(&first), of_dmz(&second));
    assert_eq!(of_dmz(&second).ingress.as_deref(), Some(&[1][..]));
    assert_eq!(**second.validated(), meaning(&without));
}

#[test]
fn a_change_of_single_policies_keeps_all_rules_and_lists_none() {
    let mut gateway = Gateway::new();
    let first = gateway.compile(TEXT);
    let text = "[[policy]]\nname = \"p\"\naction = \"discard\"\nlocal = [\"any\"]\n\
                remote = [\"10.4.0.0/16\"]\n";
    let policies = |running: &Compiled, text: &str| {
        parse_policies(text, "change", running.settings()).unwrap().policies
    };
    // Upon the same base, and by making all anew: the policy names a port that none named.
    let named = text.replace("\"p\"", "\"q\"") + "ports = [\"wan\"]\n";
    let mut running = first.copied();
    for (add, listed) in [(text, vec!["dmz", "p"]), (&named, vec!["dmz", "p", "q"])] {
        let remove: &[String] = if add == text { &["lan".to_owned()] } else { &[] };
        let added = policies(&running, add);
        running = gateway.compiler.change_policies(&running, remove, added).unwrap();
        assert_eq!(rules(&running), rules(&first));
        let validated = running.validated();
        let names: Vec<_> = validated.policies.iter().map(|policy| policy.name.as_str()).collect();
        assert_eq!(names, listed);
        assert_eq!(validated.rules, first.validated().rules);
        let effective = meaning(&validated.effective());
        assert_eq!(differences(validated, &effective), []);
    }
    // A rule is no policy that could be removed.
    for rule in ["web/2", "lan (in)"] {
        let remove = [rule.to_owned()];
        assert!(gateway.compiler.change_policies(&running, &remove, Vec::new()).is_err());
    }
}
