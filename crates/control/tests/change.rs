//! Single policies that come and go, upon what runs.

use std::path::Path;
use std::sync::Arc;

use config::validated::Policy;
use config::{Loaded, parse, parse_policies};
use control::{
    ChangeRefused, CompileError, Compiled, Compiler, LiveParts, NotAdopted, live_parts,
    takeovers_of,
};
use dataplane::{Generation, NextHop, PortInfo, RouteGeneration, RouteTarget};
use ipsec::OutboundSa;
use keystate::{HostIdentity, KeyState};
use linux::View;
use policy::{Book, DomainId, PolicyIndex, SpdError, common};
use wire::{Address, Family};

const CONFIG: &str = r#"
[node]
name = "gw"
[port.lan]
netdev = "eth1"
side = "protected"
[port.wan]
netdev = "eth0"
side = "unprotected"
[peer.a]
local = "192.0.2.1"
remote = "198.51.100.1"
keys = "file:a.keys"
manual = "laboratory"
suite = "aes-128-gcm"
"#;

/// A policy's section.
fn section(name: &str, priority: u32, remote: &str, more: &str) -> String {
    format!(
        "[[policy]]\nname = \"{name}\"\nlocal = [\"10.0.0.0/8\"]\nremote = [\"{remote}\"]\n\
         priority = {priority}\n{more}\n"
    )
}

fn bypass(name: &str, priority: u32, remote: &str) -> String {
    section(name, priority, remote, "action = \"bypass\"")
}

fn protect(name: &str, priority: u32, remote: &str) -> String {
    section(name, priority, remote, "peer = \"a\"")
}

/// The SAs that seal.
fn sealing(compiled: &Compiled) -> Vec<Arc<OutboundSa>> {
    compiled.sad.outbound().cloned().collect()
}

/// A gateway's directories and its compiler.
struct Gateway {
    root: tempfile::TempDir,
    keys: KeyState,
    compiler: Compiler,
}

impl Gateway {
    fn new() -> Gateway {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("keys")).unwrap();
        let host = HostIdentity::new("machine", "boot");
        let state = root.path().join("state");
        let keys = KeyState::open_as(&root.path().join("run"), &state, &host).unwrap();
        let gateway = Gateway { root, keys, compiler: Compiler::new() };
        gateway.write_keys([1, 2]);
        gateway
    }

    fn write_keys(&self, seeds: [u8; 2]) {
        let [out, inbound] = seeds.map(|seed| format!("{seed:02x}").repeat(20));
        let path = self.root.path().join("keys/a.keys");
        let _ = std::fs::remove_file(&path);
        config::write_key_file(&path, &format!("out 0x1001 {out}\nin 0x2001 {inbound}\n")).unwrap();
    }

    fn load(&self, text: &str) -> Loaded {
        parse(text, "lockgate.toml").unwrap().load_keys(&self.root.path().join("keys")).unwrap()
    }

    fn compile(&mut self, policies: &str) -> Compiled {
        let loaded = self.load(&self.text(policies));
        self.compiler.compile(&loaded, &mut self.keys).unwrap()
    }

    fn text(&self, policies: &str) -> String {
        let keys = format!("[node]\nkeys_dir = {:?}", self.root.path().join("keys"));
        format!("{}{policies}", CONFIG.replacen("[node]", &keys, 1))
    }

    fn change(
        &mut self,
        running: &Compiled,
        remove: &[&str],
        add: &str,
    ) -> Result<Compiled, ChangeRefused> {
        let remove: Vec<String> = remove.iter().map(|name| (*name).to_owned()).collect();
        self.compiler.change_policies(running, &remove, policies(running, add))
    }

    /// Another compiler is given the whole configuration that runs: it comes to the same.
    fn check(&self, running: &Compiled) {
        let mut other = Gateway::new();
        let text = running.validated().effective();
        let keys = |root: &Path| format!("{:?}", root.join("keys"));
        let text = text.replace(&keys(self.root.path()), &keys(other.root.path()));
        let loaded = other.load(&text);
        let whole = other.compiler.compile(&loaded, &mut other.keys).unwrap();
        let told = |compiled: &Compiled| -> Vec<String> {
            let said = compiled.spd.policies().into_iter().map(|(_, policy)| {
                format!("{} {:?} {:?}", policy.name, policy.action, policy.selector)
            });
            said.collect()
        };
        assert_eq!(told(running), told(&whole));
        assert_eq!(running.validated().policies.len(), running.spd.len());
    }
}

fn policies(running: &Compiled, text: &str) -> Vec<Policy> {
    parse_policies(text, "change", running.settings()).unwrap().policies
}

const OUT: DomainId = common(Book::SpdOut, Family::V4);
const OUT_V6: DomainId = common(Book::SpdOut, Family::V6);

fn generations(compiled: &Compiled) -> [u32; 3] {
    let of = |domain| compiled.spd.generation(domain).0;
    [compiled.generation.0, of(OUT), of(OUT_V6)]
}

fn names(compiled: &Compiled) -> Vec<&str> {
    let policies = compiled.spd.policies().into_iter();
    policies.map(|(_, policy)| policy.name.as_str()).collect()
}

fn slot(compiled: &Compiled, name: &str) -> PolicyIndex {
    compiled.spd.named(name).unwrap()
}

// FC-17, FC-16, FC-37, FC-41
#[test]
fn a_transaction_raises_the_generation_of_its_domains_by_one() {
    let mut gateway = Gateway::new();
    let first =
        gateway.compile(&[bypass("a", 5, "10.1.0.0/16"), protect("b", 5, "10.2.0.0/16")].concat());
    assert_eq!((generations(&first), names(&first)), ([1, 1, 1], vec!["b", "a"]));
    let added = gateway.change(&first, &[], &bypass("c", 5, "10.1.0.0/16")).unwrap();
    assert_eq!((generations(&added), names(&added)), ([2, 2, 1], vec!["c", "b", "a"]));
    let removed = gateway.change(&added, &["c"], "").unwrap();
    assert_eq!((generations(&removed), names(&removed)), ([3, 3, 1], vec!["b", "a"]));
    let many: String = (0..100).map(|n| bypass(&format!("m{n}"), 9, "10.3.0.0/16")).collect();
    let many = gateway.change(&removed, &["a"], &many).unwrap();
    assert_eq!((generations(&many), many.spd.len()), ([4, 4, 1], 101));
    let six = section("six", 5, "2001:db8::/32", "action = \"discard\"");
    let six = gateway.change(&many, &[], &six.replace("10.0.0.0/8", "fd00::/8")).unwrap();
    assert_eq!(generations(&six), [5, 4, 2]);
    let nothing = gateway.change(&six, &[], "").unwrap();
    assert_eq!(generations(&nothing), [5, 4, 2]);
    assert!(Arc::ptr_eq(&nothing.spd, &six.spd));
    gateway.check(&many);
    for compiled in [&added, &removed, &many, &six] {
        assert_eq!(compiled.policy_slots, first.policy_slots, "counters go on");
        assert_eq!(slot(compiled, "b"), slot(&first, "b"));
        assert!(Arc::ptr_eq(&sealing(compiled)[0], &sealing(&first)[0]));
    }
}

// FC-52
#[test]
fn a_policy_replaced_under_its_name_is_another_and_the_newest() {
    let mut gateway = Gateway::new();
    let text = [bypass("a", 5, "10.1.0.0/16"), bypass("b", 5, "10.1.0.0/16")].concat();
    let first = gateway.compile(&text);
    let changed = gateway.change(&first, &["a"], &protect("a", 5, "10.1.0.0/16")).unwrap();
    assert_eq!(names(&changed), ["a", "b"]);
    assert_ne!(slot(&changed, "a"), slot(&first, "a"));
    let again = gateway.change(&changed, &["a"], "").unwrap();
    let back = gateway.change(&again, &[], &bypass("a", 5, "10.1.0.0/16")).unwrap();
    let slots = [&first, &changed, &back].map(|compiled| slot(compiled, "a"));
    assert!(slots[0] != slots[1] && slots[1] != slots[2] && slots[0] != slots[2], "{slots:?}");
    gateway.check(&back);
}

/// However the change is made: in front of the base, of the whole set because no policy named the
/// port before, of the whole set because another was compiled in the meantime.
#[test]
fn a_policy_replaced_under_its_name_is_listed_last() {
    let mut gateway = Gateway::new();
    let text = [bypass("a", 5, "10.1.0.0/16"), bypass("b", 5, "10.1.0.0/16")].concat();
    let first = gateway.compile(&text);
    let by_lan = format!("{}ports = [\"lan\"]\n", protect("a", 5, "10.1.0.0/16"));
    let listed = |compiled: &Compiled| -> Vec<String> {
        compiled.validated().policies.iter().map(|policy| policy.name.clone()).collect()
    };
    let in_front = gateway.change(&first, &["a"], &protect("a", 5, "10.1.0.0/16")).unwrap();
    assert_eq!((listed(&in_front), in_front.spd.changes()), (vec!["b".into(), "a".into()], 2));
    gateway.check(&in_front);
    for running in [&in_front, &first] {
        let changed = gateway.change(running, &["a"], &by_lan).unwrap();
        assert_eq!((listed(&changed), changed.spd.changes()), (vec!["b".into(), "a".into()], 0));
        assert_eq!(names(&changed), ["a", "b"]);
        gateway.check(&changed);
    }
}

#[test]
fn names_that_do_not_fit_are_refused_and_nothing_changes() {
    let mut gateway = Gateway::new();
    let first = gateway.compile(&[bypass("dns", 5, "any"), bypass("web", 5, "any")].concat());
    let refused = |outcome: Result<Compiled, ChangeRefused>| outcome.err().unwrap().to_string();
    let text = refused(gateway.change(&first, &["dsn"], ""));
    assert_eq!(text, "there is no policy \"dsn\"; did you mean \"dns\"?");
    let text = refused(gateway.change(&first, &["web", "web"], ""));
    assert_eq!(text, "policy \"web\" is named twice in one change");
    let text = refused(gateway.change(&first, &[], &bypass("dns", 9, "any")));
    assert!(text.starts_with("there is a policy \"dns\" already"), "{text}");
    let new = policies(&first, &bypass("new", 9, "any"));
    let twice = [new.clone(), new].concat();
    let text = refused(gateway.compiler.change_policies(&first, &[], twice));
    assert_eq!(text, "policy \"new\" is named twice in one change");
    let gone = gateway.change(&first, &["dns"], "").unwrap();
    let text = refused(gateway.change(&gone, &["dns"], ""));
    assert!(text.starts_with("there is no policy \"dns\""), "{text}");
    assert_eq!(generations(&gone), [2, 2, 1], "what was refused left no trace");
}

// FC-17, FC-37
#[test]
fn applying_what_runs_already_changes_nothing() {
    let mut gateway = Gateway::new();
    let first =
        gateway.compile(&[bypass("a", 5, "10.1.0.0/16"), bypass("b", 5, "10.2.0.0/16")].concat());
    let changed = gateway.change(&first, &["a"], &protect("c", 7, "10.3.0.0/16")).unwrap();
    let loaded = gateway.load(&changed.validated().effective());
    let applied = gateway.compiler.compile(&loaded, &mut gateway.keys).unwrap();
    assert!(Arc::ptr_eq(&applied.spd, &changed.spd));
    assert_eq!(
        (applied.policy_slots, generations(&applied)),
        (changed.policy_slots, generations(&changed))
    );
    // What differs is a change of its domains alone, and what stays keeps its slot.
    let more = format!("{}{}", changed.validated().effective(), bypass("d", 1, "10.9.0.0/16"));
    let loaded = gateway.load(&more);
    let applied = gateway.compiler.compile(&loaded, &mut gateway.keys).unwrap();
    assert_eq!((applied.policy_slots, generations(&applied)), (changed.policy_slots, [3, 3, 1]));
    for name in ["b", "c"] {
        assert_eq!(slot(&applied, name), slot(&changed, name));
    }
    let next = gateway.change(&applied, &["d", "b"], "").unwrap();
    assert_eq!((generations(&next), names(&next)), ([4, 4, 1], vec!["c"]));
}

// FC-40, FC-37
#[test]
fn other_keys_leave_policies_and_generations_as_they_are() {
    let mut gateway = Gateway::new();
    let text = [protect("a", 5, "10.1.0.0/16"), bypass("b", 5, "10.2.0.0/16")].concat();
    let first = gateway.compile(&text);
    let changed = gateway.change(&first, &["b"], "").unwrap();
    gateway.write_keys([3, 4]);
    let rekeyed = gateway.compile(&protect("a", 5, "10.1.0.0/16"));
    assert_eq!(*rekeyed.refused, []);
    assert!(!Arc::ptr_eq(&sealing(&rekeyed)[0].sequence, &sealing(&changed)[0].sequence));
    assert!(Arc::ptr_eq(&rekeyed.spd, &changed.spd));
    assert_eq!(generations(&rekeyed), generations(&changed));
}

// I2: what is remembered of a change that never came to run is never taken for another's.
#[test]
fn what_was_compiled_and_did_not_come_to_run_leaves_its_numbers_behind() {
    let mut gateway = Gateway::new();
    let first = gateway.compile(&bypass("a", 5, "10.1.0.0/16"));
    let lost = gateway.change(&first, &[], &bypass("lost", 9, "10.1.0.0/16")).unwrap();
    let next = gateway.change(&first, &[], &protect("next", 9, "10.1.0.0/16")).unwrap();
    assert_eq!(names(&next), ["next", "a"]);
    assert!(next.spd.generation(OUT) > lost.spd.generation(OUT));
    assert_ne!(slot(&next, "next"), slot(&lost, "lost"));
    assert_eq!(slot(&next, "a"), slot(&first, "a"));
    assert_eq!(next.policy_slots, first.policy_slots);
    gateway.check(&next);
}

#[test]
fn changes_are_folded_in_beside_what_runs() {
    let mut gateway = Gateway::new();
    let mut running = gateway.compile(&bypass("first", 5, "10.1.0.0/16"));
    let name = |n: u32| format!("p{n}");
    let mut n = 0;
    let job = loop {
        let remove = (n % 3 == 2).then(|| name(n - 1));
        let remove: Vec<&str> = remove.iter().map(String::as_str).collect();
        let add = bypass(&name(n), n % 7, &format!("10.{}.0.0/16", n % 5));
        running = gateway.change(&running, &remove, &add).unwrap();
        n += 1;
        if let Some(job) = gateway.compiler.rebuild_job(&running) {
            break job;
        }
    };
    // Meanwhile it goes on.
    let rebuilt = std::thread::spawn(|| job.run()).join().unwrap().unwrap();
    let remove = ["first", "p0"];
    running = gateway.change(&running, &remove, &protect("late", 3, "10.1.0.0/16")).unwrap();
    let adopted = gateway.compiler.adopt(&running, rebuilt).unwrap().compiled;
    assert_eq!((adopted.spd.changes(), names(&adopted)), (3, names(&running)));
    assert_eq!(generations(&adopted), generations(&running));
    assert_eq!(adopted.policy_slots, running.policy_slots);
    for name in names(&running) {
        assert_eq!(slot(&adopted, name), slot(&running, name));
    }
    assert_eq!(adopted.validated(), running.validated());
    gateway.check(&adopted);
    let next = gateway.change(&adopted, &["late"], &bypass("p0", 3, "10.1.0.0/16")).unwrap();
    let [whole, out, _] = generations(&running);
    assert_eq!(generations(&next)[..2], [whole + 1, out + 1]);
    gateway.check(&next);
}

/// Six policies of everything in front of one of so many networks.
fn six_in_front_of(networks: u32) -> String {
    let all: Vec<String> =
        (0..networks).map(|n| format!("172.{}.{}.0/24", 16 + n / 256, n % 256)).collect();
    let wide = |n: u32| {
        let all = "0.0.0.0/0";
        section(&format!("w{n}"), 9 + n, all, "action = \"bypass\"").replace("10.0.0.0/8", all)
    };
    let many = bypass("many", 5, &all.join("\", \""));
    (0..6).map(wide).chain([many]).collect()
}

// A few policies that go may uncover much: then one change alone is worth a base of its own.
#[test]
fn a_base_is_rebuilt_at_once_where_policies_went_that_hid_many() {
    let mut gateway = Gateway::new();
    let first = gateway.compile(&six_in_front_of(3000));
    let one = gateway.change(&first, &["w5"], "").unwrap();
    assert!(gateway.compiler.rebuild_job(&one).is_none(), "nothing much hid behind it alone");
    let all = gateway.change(&one, &["w4", "w3", "w2", "w1", "w0"], "").unwrap();
    assert_eq!(all.spd.changes(), 6);
    let rebuilt = gateway.compiler.rebuild_job(&all).unwrap().run().unwrap();
    let adopted = gateway.compiler.adopt(&all, rebuilt).unwrap().compiled;
    assert_eq!((adopted.spd.changes(), names(&adopted)), (0, vec!["many"]));
    assert!(adopted.spd.cost(OUT).steps() < all.spd.cost(OUT).steps() / 4);
    assert!(gateway.compiler.rebuild_job(&adopted).is_none());
}

// Beyond the bound the change is made of the whole set, and there is nothing left to fold in.
#[test]
fn policies_that_hid_too_many_go_with_the_whole_set_made_anew() {
    let mut gateway = Gateway::new();
    let first = gateway.compile(&six_in_front_of(4096));
    let many = gateway.change(&first, &["w5", "w4"], "").unwrap();
    assert_eq!(many.spd.changes(), 2);
    let all = gateway.change(&many, &["w3", "w2", "w1", "w0"], "").unwrap();
    assert_eq!((all.spd.changes(), names(&all)), (0, vec!["many"]));
    assert_eq!(slot(&all, "many"), slot(&many, "many"));
    assert_eq!(generations(&all), [3, 3, 1]);
    assert!(all.spd.cost(OUT).steps() < 64);
    assert!(gateway.compiler.rebuild_job(&all).is_none());
    gateway.check(&all);
}

#[test]
fn a_rebuilt_base_of_other_policies_is_not_taken() {
    let mut gateway = Gateway::new();
    let first = gateway.compile(&bypass("a", 5, "10.1.0.0/16"));
    let many: String = (0..64).map(|n| bypass(&format!("m{n}"), 9, "10.3.0.0/16")).collect();
    let changed = gateway.change(&first, &[], &many).unwrap();
    let rebuilt = gateway.compiler.rebuild_job(&changed).unwrap().run().unwrap();
    let applied = gateway.compile(&bypass("b", 5, "10.1.0.0/16"));
    assert_eq!(gateway.compiler.adopt(&applied, rebuilt).err(), Some(NotAdopted::Overtaken));
    assert!(gateway.compiler.rebuild_job(&applied).is_none(), "nothing to fold in");
}

// Who tries again as long as there is a job would else do so for ever.
#[test]
fn no_base_is_rebuilt_after_a_change_that_did_not_come_to_run() {
    let mut gateway = Gateway::new();
    let first = gateway.compile(&bypass("a", 5, "10.1.0.0/16"));
    let many: String = (0..64).map(|n| bypass(&format!("m{n}"), 9, "10.3.0.0/16")).collect();
    let running = gateway.change(&first, &[], &many).unwrap();
    let rebuilt = gateway.compiler.rebuild_job(&running).unwrap().run().unwrap();
    let _refused = gateway.change(&running, &["a"], "").unwrap();
    assert_eq!(gateway.compiler.adopt(&running, rebuilt).err(), Some(NotAdopted::Overtaken));
    assert!(gateway.compiler.rebuild_job(&running).is_none(), "it could not be adopted either");
    let next = gateway.change(&running, &[], &bypass("b", 5, "10.1.0.0/16")).unwrap();
    assert_eq!(next.spd.changes(), 0, "the next change folds all in");
    gateway.check(&next);
}

/// Far more changes than fit in front of a base, and more than there are slots.
#[test]
fn settings_that_were_applied_meanwhile_are_not_taken_back() {
    // The same policies under another name of the node, applied while a base is made beside.
    let mut gateway = Gateway::new();
    let running = gateway.compile(&bypass("p", 1, "any"));
    let many: String =
        (0..64).map(|i| bypass(&format!("m{i}"), 2, &format!("10.2.{i}.0/24"))).collect();
    let running = gateway.change(&running, &[], &many).unwrap();
    let early = gateway.compiler.rebuild_job(&running).unwrap().run().unwrap();
    let text = running.validated().effective().replacen("\"gw\"", "\"other\"", 1);
    let loaded = gateway.load(&text);
    let applied = gateway.compiler.compile(&loaded, &mut gateway.keys).unwrap();
    assert_eq!(generations(&applied), generations(&running), "the policies are the same");
    // A base holds policies alone: it is taken, the new settings stay, and what is changed
    // meanwhile stands.
    let changed = gateway.change(&applied, &["m3"], &bypass("late", 2, "10.3.0.0/16")).unwrap();
    let adopted = gateway.compiler.adopt(&changed, early).unwrap().compiled;
    assert_eq!((adopted.settings().node.name.as_str(), adopted.spd.changes()), ("other", 2));
    assert_eq!(adopted.validated(), changed.validated());
    gateway.check(&adopted);
    let early = gateway.compiler.rebuild_job(&adopted);
    assert!(early.is_none(), "nothing is left to fold in");
}

#[test]
fn a_policy_that_went_may_leave_without_its_peer() {
    let mut gateway = Gateway::new();
    let running = gateway.compile(&bypass("p", 1, "any"));
    let running = gateway.change(&running, &[], &protect("through", 2, "10.2.0.0/16")).unwrap();
    gateway.change(&running, &["through"], "").unwrap();
    let text = gateway.text(&bypass("p", 1, "any"));
    let (start, end) = (text.find("[peer.a]").unwrap(), text.find("[[policy]]").unwrap());
    let loaded = gateway.load(&format!("{}{}", &text[..start], &text[end..]));
    let applied = gateway.compiler.compile(&loaded, &mut gateway.keys).unwrap();
    assert_eq!((applied.peers.len(), names(&applied)), (0, vec!["p"]));
    let live = live_parts(applied.settings(), &View::default());
    for _ in 0..3 {
        applied.assemble(&live, None).unwrap();
    }
    let next = gateway.change(&applied, &["p"], &bypass("q", 1, "any")).unwrap();
    next.assemble(&live, None).unwrap();
}

#[test]
fn changes_without_end_are_made_and_counters_begin_anew_once_slots_are_used_up() {
    let mut gateway = Gateway::new();
    let mut running = gateway.compile(&bypass("stays", 5, "10.1.0.0/16"));
    let (first, room) = (running.policy_slots, running.spd.capacity());
    let all = |step: usize| -> String {
        (0..400).map(|n| bypass(&format!("p{step}-{n}"), 9, "10.3.0.0/16")).collect()
    };
    let mut before: Vec<String> = Vec::new();
    for step in 0..room / 400 + 2 {
        let remove: Vec<&str> = before.iter().map(String::as_str).collect();
        running = gateway.change(&running, &remove, &all(step)).unwrap();
        before = (0..400).map(|n| format!("p{step}-{n}")).collect();
        assert_eq!(running.spd.len(), 401);
    }
    assert_eq!(running.policy_slots, first + 1);
    assert!(running.spd.named("stays").is_some());
    gateway.check(&running);
}

/// Two ranges that lie within those of lower numbers on one side, and around them on the other.
fn nested(number: u32, of: u32) -> [String; 2] {
    let inset = |by: u32| {
        let (lo, hi) = (std::net::Ipv4Addr::from(by), std::net::Ipv4Addr::from(u32::MAX - by));
        format!("{lo}-{hi}")
    };
    [inset(number), inset(of - number)]
}

#[test]
fn policies_that_charon_made_never_keep_those_of_the_configuration_out() {
    let mut gateway = Gateway::new();
    let any = "local = [\"any\"]\nremote = [\"any\"]\n";
    let ike = format!(
        "[ike]\nends = [\"192.0.2.1\"]\npeers = [\"198.51.100.9\"]\n{any}[[ike.shunt]]\n\
         action = \"discard\"\n{any}"
    );
    let first = gateway.compile(&(bypass("a", 5, "10.1.0.0/16") + &ike));
    let own = |number: u32| {
        let ends = nested(number, 10_000).map(|text| vec![text.parse().unwrap()]);
        let [local, remote] = ends;
        let upper = policy::UpperSelector::Any;
        control::IkePolicy {
            name: format!("ike:discard/{number}"),
            action: control::IkeAction::Shunt(config::ShuntAction::Discard),
            priority: number,
            selector: policy::Selector { local, remote, protocol: None, upper },
        }
    };
    let half: u32 = 3_000;
    let change = control::IkeChange {
        policies: (0..half).map(own).collect(),
        ..control::IkeChange::default()
    };
    let with_own = gateway.compiler.change_ike(&first, change).unwrap().compiled;
    assert_eq!(with_own.spd.len(), half as usize + 1);
    let file = |number: u32| {
        let [local, remote] = nested(number, 10_000);
        section(&format!("h{number}"), number, &remote, "action = \"bypass\"")
            .replace("10.0.0.0/8", &local)
    };
    let all: String = (half..2 * half).map(file).collect();
    let changed = gateway.change(&with_own, &[], &all).unwrap();
    // They did not fit beside each other.
    assert_eq!(changed.spd.len(), half as usize + 1);
    assert!(changed.spd.holding_policies().all(|(_, policy)| !policy.id.is_behind()));
    // A few more fit beside charon's.
    let few = gateway.change(&with_own, &[], &bypass("b", 6, "10.3.0.0/16"));
    assert!(few.is_ok_and(|few| few.spd.len() == half as usize + 2));
}

// A set over the cost bound: refused by name, and what runs goes on.
#[test]
fn what_would_cost_too_much_is_refused_by_name() {
    let mut gateway = Gateway::new();
    let first = gateway.compile(&bypass("a", 5, "10.1.0.0/16"));
    let hostile = |n: u32| {
        let [local, remote] = nested(n, 10_000);
        section(&format!("h{n}"), n, &remote, "action = \"bypass\"").replace("10.0.0.0/8", &local)
    };
    let all: String = (0..10_000).map(hostile).collect();
    let refused = gateway.change(&first, &[], &all).err().unwrap();
    let ChangeRefused::Compile(CompileError::Spd(SpdError::TooCostly { policies, .. })) = &refused
    else {
        panic!("{refused}")
    };
    assert!((1..=SpdError::MAX_NAMED).contains(&policies.len()));
    assert!(refused.to_string().contains(&format!("{:?}", policies[0])), "{refused}");
    let next = gateway.change(&first, &[], &bypass("b", 5, "10.1.0.0/16")).unwrap();
    assert_eq!((names(&next), generations(&next)), (vec!["b", "a"], [2, 2, 1]));
}

// FC-37, I2: neighbours and policies leave the route generation as it is.
#[test]
fn the_route_generation_rises_with_ports_routes_and_next_hops_alone() {
    let mut gateway = Gateway::new();
    let first = gateway.compile(&bypass("a", 5, "10.1.0.0/16"));
    let mut live = live_parts(first.settings(), &View::default());
    let mut running = None;
    let mut of = |compiled: &Compiled, live: &LiveParts| {
        let snapshot = compiled.assemble(live, running.as_deref()).unwrap();
        running = Some(snapshot.clone());
        snapshot.route_generation()
    };
    assert_eq!(of(&first, &live), RouteGeneration(1));
    assert_eq!(of(&first, &live), RouteGeneration(1));
    let changed = gateway.change(&first, &["a"], "").unwrap();
    assert_eq!(of(&changed, &live), RouteGeneration(1));
    let (port, address) = (dataplane::PortId(1), Address::v4(0xc000_0202));
    live.neighbours.insert((port, address), [2, 0, 0, 0, 0, 1]);
    assert_eq!(of(&changed, &live), RouteGeneration(1));
    let prefix = dataplane::Prefix { address: Address::v4(0), length: 0 };
    let via = |gateway| RouteTarget::Via(NextHop { port, gateway });
    live.routes.insert(prefix, via(Some(address)));
    assert_eq!(of(&changed, &live), RouteGeneration(2));
    live.routes.insert(prefix, via(None));
    assert_eq!(of(&changed, &live), RouteGeneration(3));
    let with_ports = |change: fn(&mut PortInfo), live: &mut LiveParts| {
        let mut port = live.ports.at(1).clone();
        change(&mut port);
        live.ports.set(1, Some(port));
    };
    with_ports(|port| port.mtu -= 1, &mut live);
    assert_eq!(of(&changed, &live), RouteGeneration(4));
    with_ports(|port| port.addresses.push(Address::v4(0xc000_0202)), &mut live);
    let applied = gateway.compile(&bypass("b", 5, "10.1.0.0/16"));
    assert_eq!(of(&applied, &live), RouteGeneration(5));
    assert_eq!(of(&first, &live), RouteGeneration(5));
    assert_eq!(first.generation, Generation(1));
}

#[test]
fn a_change_names_the_protect_policies_that_lose_packets() {
    let mut gateway = Gateway::new();
    let text = protect("net", 100, "10.2.0.0/16") + &bypass("rest", 1, "10.0.0.0/8");
    let mut running = gateway.compile(&text);
    let taken = |running: &Compiled, remove: &[&str], add: &str| -> Vec<String> {
        let remove: Vec<String> = remove.iter().map(|name| (*name).to_owned()).collect();
        let takeovers = takeovers_of(running, &remove, &policies(running, add)).unwrap();
        assert_eq!(takeovers.is_nothing(), takeovers.found.is_empty());
        takeovers.sentences().collect()
    };
    let from_net = |by: &str, packet: &str| {
        format!(
            "policy \"{by}\" (bypass) takes packets from policy \"net\" (protect with peer a), \
             for example outbound tcp 10.0.0.1 port 1024 → {packet} port 1024"
        )
    };
    // Of one priority the newer wins.
    let narrow = bypass("oops", 100, "10.2.3.0/24");
    assert_eq!(taken(&running, &[], &narrow), [from_net("oops", "10.2.3.1")]);
    assert_eq!(taken(&running, &[], &narrow.replace("10.2.3", "10.3.3")), [""; 0]);
    assert_eq!(taken(&running, &[], &bypass("low", 99, "10.0.0.0/8")), [""; 0]);
    assert_eq!(taken(&running, &[], &narrow.replace("bypass", "discard")), [""; 0]);
    // What goes leaves its packets to what is below, unless that drops them.
    assert_eq!(taken(&running, &["net"], ""), [from_net("rest", "10.2.0.1")]);
    assert_eq!(taken(&running, &["net", "rest"], ""), [""; 0]);
    let stop = bypass("stop", 50, "10.2.0.0/16").replace("bypass", "discard");
    assert_eq!(taken(&running, &["net"], &stop), [""; 0]);
    // Replaced under its name: by itself, by a narrower one, by a BYPASS.
    let itself = protect("net", 100, "10.2.0.0/16");
    assert_eq!(taken(&running, &["net"], &itself), [""; 0]);
    let half = protect("net", 100, "10.2.128.0/17");
    assert_eq!(taken(&running, &["net"], &half), [from_net("rest", "10.2.0.1")]);
    let open = bypass("net", 100, "10.2.0.0/16");
    assert_eq!(taken(&running, &["net"], &open), [from_net("net", "10.2.0.1")]);
    // Of a database that changed before, and of very many, some are named.
    let many: String =
        (0..20).map(|n| protect(&format!("n{n}"), 200, &format!("10.9.{n}.0/24"))).collect();
    running = gateway.change(&running, &["rest"], &many).unwrap();
    let told = taken(&running, &[], &bypass("all", 200, "10.0.0.0/8"));
    assert_eq!(told.len(), 9, "{told:?}");
    assert!(told[7].contains("takes packets from policy \"n"), "{told:?}");
    assert_eq!(told[8], "it may take packets from more policies");
    let one = bypass("one", 200, "10.9.7.0/24") + "ports = [\"lan\"]\nprotocol = \"icmp\"\n";
    let told = taken(&running, &[], &one);
    assert!(told[0].contains("\"n7\"") && told[0].ends_with("from port lan"), "{told:?}");
    assert!(told[0].contains("outbound icmp 0/0 10.0.0.1 → 10.9.7.1"), "{told:?}");
}
