//! Changes of what runs over a simulated machine: what is asked of it in which order, and what runs
//! when a step is refused.

use std::collections::BTreeSet;
use std::sync::Arc;

use config::{Loaded, parse};
use control::guard::Guard;
use control::{Compiled, Compiler};
use dataplane::cache::FIRST_ENTRIES;
use dataplane::carve_out::Reserved;
use dataplane::connections::{Judgement, Key, Zone};
use keystate::KeyState;
use linux::{ChangedLinks, Link};
use policy::connection::Shown;
use proptest::prelude::*;
use tempfile::TempDir;
use wire::{Family, Flow, Upper};

use super::netdevs::Retry;
use super::simulated::{Simulated, SimulatedProgram, StartedGateway, Step, started, view};
use super::*;
use crate::cache_memory::CacheError;

/// A gateway over a simulated machine, with its compiler and its folders.
struct Lab {
    runtime: tokio::runtime::Runtime,
    folder: TempDir,
    keys: KeyState,
    compiler: Compiler,
    machine: Simulated,
    gateway: Gateway,
}

/// A configuration in parts, each of which tests change.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Config {
    /// Ports beside `lan` and `wan`.
    more_ports: BTreeSet<u8>,
    /// Services that `wan` lets through to this machine.
    allow_host: BTreeSet<&'static str>,
    /// Policies: number, action, protocol.
    policies: Vec<(u8, &'static str, &'static str)>,
    /// Flows that the cache is for; 0: it is off.
    flows: u32,
    /// A peer whose ESP comes in UDP.
    has_peer: bool,
}

const PEER_IN_UDP: &str = r#"
[peer.a]
local = "192.0.2.1"
remote = "198.51.100.1"
keys = "file:a.keys"
manual = "laboratory"
suite = "aes-128-gcm"
encapsulation = "udp"
"#;

impl Config {
    fn small() -> Config {
        Config {
            more_ports: BTreeSet::new(),
            allow_host: BTreeSet::new(),
            policies: Vec::new(),
            flows: 0,
            has_peer: false,
        }
    }

    fn netdevs(&self) -> BTreeSet<String> {
        let more = self.more_ports.iter().map(|number| format!("eth{number}"));
        more.chain(["eth0".to_owned(), "eth1".to_owned()]).collect()
    }

    fn text(&self) -> String {
        let list: Vec<String> = self.allow_host.iter().map(|item| format!("\"{item}\"")).collect();
        let mut text = format!(
            "[node]\nname = \"gw\"\n[port.lan]\nnetdev = \"eth1\"\nside = \"protected\"\n\
             [port.wan]\nnetdev = \"eth0\"\nside = \"unprotected\"\nallow_host = [{}]\n",
            list.join(", ")
        );
        match self.flows {
            0 => text.push_str("[cache]\nflows = \"off\"\n"),
            flows => text.push_str(&format!("[cache]\nflows = {flows}\n")),
        }
        for number in &self.more_ports {
            text.push_str(&format!(
                "[port.more{number}]\nnetdev = \"eth{number}\"\nside = \"unprotected\"\n\
                 allow_host = [\"udp/500\"]\n"
            ));
        }
        for (number, action, protocol) in &self.policies {
            text.push_str(&policy(*number, action, protocol));
        }
        if self.has_peer {
            text.push_str(PEER_IN_UDP);
        }
        text
    }
}

fn policy(number: u8, action: &str, protocol: &str) -> String {
    format!(
        "[[policy]]\nname = \"p{number}\"\naction = \"{action}\"\nlocal = [\"any\"]\n\
         remote = [\"any\"]\npriority = {number}\nprotocol = \"{protocol}\"\n"
    )
}

impl Lab {
    fn new(config: &Config) -> Lab {
        let folder = tempfile::tempdir().unwrap();
        let lines = format!("out 0x1001 {}\nin 0x2001 {}\n", "01".repeat(20), "02".repeat(20));
        config::write_key_file(&folder.path().join("a.keys"), &lines).unwrap();
        let loaded = load(&config.text(), &folder);
        let StartedGateway { gateway, machine, compiler, keys } =
            started(&loaded, view(), folder.path());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut lab = Lab { runtime, folder, keys, compiler, machine, gateway };
        lab.runtime.block_on(lab.gateway.tend(Retry::Now)).unwrap();
        lab.machine.world().steps.clear();
        lab
    }

    fn compile(&mut self, text: &str) -> (Compiled, Guard) {
        let loaded = load(text, &self.folder);
        let compiled = self.compiler.compile(&loaded, &mut self.keys).unwrap();
        let every = Reserved::default();
        let guard = Guard::new(compiled.validated(), &self.gateway.view, &every).unwrap();
        (compiled, guard)
    }

    /// Goes over to a configuration; the step of this number is refused.
    fn apply(&mut self, config: &Config, refuse: Option<usize>) -> Result<(), TransactionError> {
        self.apply_text(&config.text(), refuse)
    }

    fn apply_text(&mut self, text: &str, refuse: Option<usize>) -> Result<(), TransactionError> {
        let (compiled, guard) = self.compile(text);
        self.machine.world().refuse = refuse;
        let gateway = &mut self.gateway;
        let done = self.runtime.block_on(async {
            let transaction = gateway.prepare(compiled, guard).await?;
            let begun = gateway.begin(transaction).await?;
            gateway.finish(begun).await
        });
        self.machine.world().refuse = None;
        done
    }

    /// Adds a policy and takes others away, as `lockgate policy` does.
    fn change_policies(
        &mut self,
        remove: &[String],
        add: &str,
        refuse: Option<usize>,
    ) -> Result<(), TransactionError> {
        let running = self.gateway.compiled.copied();
        let parsed = config::parse_policies(add, "add", running.settings());
        let added = if add.is_empty() { Vec::new() } else { parsed.unwrap().policies };
        let named = |name: &String| running.configured(running.policy_named(name).unwrap());
        let removed: Vec<_> = remove.iter().map(named).collect();
        let compiled = self.compiler.change_policies(&running, remove, added.clone()).unwrap();
        let every = Reserved::default();
        let guard = Guard::new(compiled.validated(), &self.gateway.view, &every).unwrap();
        self.machine.world().refuse = refuse;
        let done = self.runtime.block_on(async {
            let changes = (removed.iter(), added.iter());
            let guard = NextGuard::Other(guard);
            let transaction = self.gateway.prepare_policies(compiled, guard, changes)?;
            let begun = self.gateway.begin(transaction).await?;
            self.gateway.finish(begun).await
        });
        self.machine.world().refuse = None;
        done
    }

    fn steps(&self) -> Vec<Step> {
        std::mem::take(&mut self.machine.world().steps)
    }

    /// Asserts that this configuration runs and nothing of another is left: the state equals that
    /// of a gateway that never ran anything else.
    fn runs(&mut self, config: &Config) {
        let fresh = Lab::new(config);
        let (world, wanted) = (self.machine.world(), fresh.machine.world());
        let effective = |gateway: &Gateway| gateway.compiled.copied().validated().effective();
        assert_eq!(effective(&self.gateway), effective(&fresh.gateway));
        assert!(Arc::ptr_eq(&world.walked, &self.gateway.snapshot), "the workers walk by it");
        assert_eq!(world.ports(), wanted.ports());
        assert!(std::ptr::eq(world.walked.spd(), &*self.gateway.compiled.spd));
        assert_eq!(world.guard, wanted.guard);
        let served = |(name, of): (&String, &SimulatedProgram)| {
            of.is_served.then(|| (name.clone(), of.clone()))
        };
        let of_now: Vec<_> = world.programs.iter().filter_map(served).collect();
        let of_fresh: Vec<_> = wanted.programs.iter().filter_map(served).collect();
        assert_eq!(of_now, of_fresh);
        assert_eq!(self.gateway.reserved, fresh.gateway.reserved);
        let ours: BTreeSet<String> = self.gateway.netdevs.keys().cloned().collect();
        assert_eq!(ours, config.netdevs());
        assert!(self.gateway.troubles.is_empty());
    }
}

fn load(text: &str, folder: &TempDir) -> Loaded {
    let parsed = parse(text, "test").unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    parsed.load_keys(folder.path()).unwrap()
}

#[test]
fn connections_of_a_port_go_with_it_and_no_other_ones() {
    let port = |number: u8| {
        format!(
            "[port.p{number}]\nnetdev = \"eth{number}\"\nside = \"protected\"\n\
             groups_in = [\"web\"]\n"
        )
    };
    let text = |ports: &[u8]| {
        let ports: String = ports.iter().map(|number| port(*number)).collect();
        format!(
            "{}{ports}[group.web]\n[[rule]]\ngroup = \"web\"\naction = \"reflect\"\n\
             from = [\"any\"]\nto = [\"any\"]\n[connections]\nmax = 256\n",
            Config::small().text()
        )
    };
    let mut lab = Lab::new(&Config::small());
    lab.apply_text(&text(&[2, 3]), None).unwrap();
    let connect = |lab: &Lab, number: u8| {
        let (slot, _) =
            lab.gateway.snapshot.ports().find(|(_, p)| p.name == format!("p{number}"))?;
        let upper = Upper::Ports { source: 4000, destination: 80 };
        let (source, destination) = (0x0a00_0001, 0x0a00_0002);
        let flow =
            Flow { family: Family::V4, source, destination, protocol: 17, upper, opens: false };
        let key = Key::of(&flow, Zone { attachment: slot.0, vni: 0 }).unwrap();
        let table = lab.gateway.snapshot.connections().unwrap();
        table.insert(&key, Shown::Udp, Judgement::UNKNOWN, crate::clock::now_s());
        Some(slot)
    };
    let live = |lab: &Lab| {
        let table = lab.gateway.snapshot.connections().unwrap();
        table.zones().map(|zone| zone.attachment).collect::<Vec<_>>()
    };
    let [second, third] = [2, 3].map(|number| connect(&lab, number).unwrap());
    assert_eq!(live(&lab), [second.0, third.0]);
    lab.apply_text(&text(&[3]), None).unwrap();
    assert_eq!(live(&lab), [third.0]);
    // The slot of the port that went may be another's now, and has nothing of it.
    lab.apply_text(&text(&[3, 4]), None).unwrap();
    assert_eq!(live(&lab), [third.0]);
    let mut both = [connect(&lab, 4).unwrap().0, third.0];
    both.sort_unstable();
    assert_eq!(live(&lab), both);
    // A change that is refused costs the ports nothing that stay.
    let _ = lab.apply_text(&text(&[3, 2]), Some(5));
    assert!(live(&lab).contains(&third.0));
}

// dataplane 9
#[test]
fn connections_of_a_virtual_network_go_with_it_and_its_slot_comes_back() {
    let network = |vni: u32| format!("[vni.{vni}]\noverlay = \"fab\"\ngroups_in = [\"web\"]\n");
    let text = |networks: &[u32]| {
        let networks: String = networks.iter().map(|vni| network(*vni)).collect();
        format!(
            "{}[port.fab]\nnetdev = \"eth2\"\nside = \"protected\"\n\
             addresses = [\"10.1.0.1/24\"]\n[overlay.fab]\nkind = \"vxlan\"\nport = \"fab\"\n\
             entrances = [\"10.1.0.1\"]\n{networks}[group.web]\n[[rule]]\ngroup = \"web\"\n\
             action = \"reflect\"\nfrom = [\"any\"]\nto = [\"any\"]\n[connections]\nmax = 256\n",
            Config::small().text()
        )
    };
    let mut lab = Lab::new(&Config::small());
    let connect = |lab: &Lab, number: u32| {
        let mut networks = lab.gateway.snapshot.overlays().unwrap().networks();
        let slot = networks.find(|network| network.vni.get() == number)?.attachment?;
        let upper = Upper::Ports { source: 4000, destination: 80 };
        let (source, destination) = (0x0a00_0001, 0x0a00_0002);
        let flow =
            Flow { family: Family::V4, source, destination, protocol: 17, upper, opens: false };
        let key = Key::of(&flow, Zone { attachment: slot, vni: number }).unwrap();
        let table = lab.gateway.snapshot.connections().unwrap();
        table.insert(&key, Shown::Udp, Judgement::UNKNOWN, crate::clock::now_s());
        Some(slot)
    };
    let live = |lab: &Lab| {
        let table = lab.gateway.snapshot.connections().unwrap();
        table.zones().map(|zone| zone.attachment).collect::<Vec<_>>()
    };
    let mut used = BTreeSet::new();
    lab.apply_text(&text(&[7]), None).unwrap();
    let stays = connect(&lab, 7).unwrap();
    for vni in 100..110 {
        lab.apply_text(&text(&[7, vni]), None).unwrap();
        assert_eq!(live(&lab), [stays], "the slot has nothing of the network before");
        let slot = connect(&lab, vni).unwrap();
        assert_eq!(live(&lab).len(), 2);
        used.insert(slot);
    }
    assert!(used.iter().all(|slot| *slot >= Zone::FIRST_NETWORK && *slot != stays));
    assert!(used.len() <= 3, "slots come back: {used:?}");
}

#[test]
fn policies_are_walked_only_once_programs_and_guard_withhold_what_they_may_want() {
    let mut config = Config::small();
    config.allow_host = ["tcp/22"].into();
    let mut lab = Lab::new(&config);
    config.policies.push((1, "discard", "tcp"));
    lab.apply(&config, None).unwrap();
    let [before, after] = {
        let steps = lab.steps();
        let published = steps.iter().position(|step| *step == Step::Publish).unwrap();
        [steps[..published].to_vec(), steps[published + 1..].to_vec()]
    };
    assert_eq!(before, [Step::Install, Step::SetPorts, Step::SetPorts, Step::Install]);
    assert_eq!(after, [Step::Instruct, Step::Instruct]);
    lab.runs(&config);
}

#[test]
fn a_removed_program_is_attached_again_as_soon_as_the_kernel_reports_its_netdev() {
    let config = Config::small();
    let mut lab = Lab::new(&config);
    let take_off = |lab: &Lab, netdev: &str| {
        let mut world = lab.machine.world();
        let program = world.programs.remove(netdev).unwrap();
        world.taken_off.insert(netdev.to_owned(), program);
    };
    let is_on = |lab: &Lab, netdev: &str| lab.machine.world().programs.contains_key(netdev);
    take_off(&lab, "eth0");
    take_off(&lab, "eth1");
    // Index 1 is eth0; of the other the kernel has reported nothing.
    assert!(lab.gateway.restore_changed_programs(&ChangedLinks::Some([1, 9].into())));
    assert!(is_on(&lab, "eth0") && !is_on(&lab, "eth1"));
    assert!(!lab.gateway.restore_changed_programs(&ChangedLinks::Some([1].into())));
    // Notifications were lost.
    assert!(lab.gateway.restore_changed_programs(&ChangedLinks::Any));
    assert!(is_on(&lab, "eth1"));
    lab.runs(&config);
}

#[test]
fn a_worker_gets_a_larger_flow_cache_and_the_other_keeps_its_own() {
    let (first, larger) = (FIRST_ENTRIES, 4 * FIRST_ENTRIES);
    let mut config = Config { flows: 1 << 20, ..Config::small() };
    let mut lab = Lab::new(&config);
    let grow = |lab: &mut Lab, sizes: [Option<usize>; 2]| {
        lab.runtime.block_on(async {
            let made = lab.gateway.larger_caches(sizes.into()).await?;
            lab.gateway.grow_caches(made).await.unwrap();
            Ok::<_, CacheError>(())
        })
    };
    let renew = |lab: &mut Lab| lab.runtime.block_on(lab.gateway.renew_caches()).unwrap();
    let caches = |lab: &Lab| lab.machine.world().caches;
    renew(&mut lab);
    assert_eq!(caches(&lab), [Some(first), Some(first)]);
    grow(&mut lab, [None, Some(larger)]).unwrap();
    assert_eq!(caches(&lab), [Some(first), Some(larger)]);
    assert_eq!(lab.steps(), [Step::Caches, Step::Publish].repeat(2));
    // Where there is none, those in use stay.
    lab.machine.world().refuse = Some(0);
    assert!(grow(&mut lab, [Some(larger), None]).is_err());
    assert_eq!((caches(&lab), lab.steps()), ([Some(first), Some(larger)], vec![Step::Caches]));
    // Fresh ones are as large, as far as the configuration lets them.
    renew(&mut lab);
    assert_eq!(caches(&lab), [Some(first), Some(larger)]);
    for (flows, sizes) in [
        (1 << 19, [Some(first), Some(larger)]),
        (1 << 16, [Some(first), Some(larger / 2)]),
        (1 << 10, [Some(2048), Some(2048)]),
        (0, [None, None]),
    ] {
        config.flows = flows;
        lab.apply(&config, None).unwrap();
        assert_eq!(caches(&lab), sizes, "{flows} flows");
    }
    lab.runs(&config);
}

#[test]
fn a_port_that_comes_or_goes_moves_no_other_and_its_counts_are_kept() {
    let few = Config::small();
    let more = Config { more_ports: [2, 3].into(), ..Config::small() };
    let fewer = Config { more_ports: [3].into(), ..Config::small() };
    let mut lab = Lab::new(&few);
    let slots = |lab: &Lab| {
        let snapshot = &lab.gateway.snapshot;
        ["lan", "wan", "host", "more2", "more3"].map(|name| snapshot.port_named(name))
    };
    let [lan, wan, host, ..] = slots(&lab);
    lab.apply(&more, None).unwrap();
    let [.., more3] = slots(&lab);
    assert_eq!(slots(&lab)[..3], [lan, wan, host]);
    assert!(lab.gateway.totals.ledgers.is_empty(), "every worker counts on");
    for _ in 0..2 {
        lab.apply(&fewer, None).unwrap();
        assert_eq!(slots(&lab), [lan, wan, host, None, more3]);
        lab.apply(&more, None).unwrap();
    }
    let counted = &lab.gateway.totals.ledgers;
    assert_eq!(counted.keys().collect::<Vec<_>>(), ["more2"]);
    assert_eq!(counted["more2"].received, 2 * super::simulated::WORKERS as u64);
    lab.runs(&more);
}

#[test]
fn a_port_that_cannot_be_had_takes_the_whole_change_back() {
    let old = Config { policies: vec![(1, "discard", "tcp")], ..Config::small() };
    let mut lab = Lab::new(&old);
    let new = Config { more_ports: [2, 3].into(), policies: Vec::new(), ..Config::small() };
    for nth in 0.. {
        let done = lab.apply(&new, Some(nth));
        if done.is_ok() {
            assert!(nth > 4, "guard, programs and two netdevs were refused: {nth}");
            break;
        }
        lab.runs(&old);
        let world = lab.machine.world();
        assert_eq!(world.programs.len(), 2, "netdevs are as they were found: {nth}");
    }
    lab.runs(&new);
}

#[test]
fn a_guard_that_is_refused_on_the_way_back_is_put_up_by_the_clock() {
    let old = Config { policies: vec![(1, "discard", "tcp")], ..Config::small() };
    let new = Config {
        more_ports: [2, 3].into(),
        policies: vec![(2, "discard", "udp")],
        ..Config::small()
    };
    let mut taken_back = 0;
    for (nth, in_a_row) in (0..12).flat_map(|nth| (2..7).map(move |count| (nth, count))) {
        let mut lab = Lab::new(&old);
        lab.machine.world().in_a_row = in_a_row;
        let done = lab.apply(&new, Some(nth));
        lab.runtime.block_on(lab.gateway.inspect()).unwrap();
        taken_back += u32::from(done.is_err());
        lab.runs(if done.is_ok() { &new } else { &old });
    }
    assert!(taken_back > 10, "{taken_back}");
}

#[test]
fn a_program_that_is_not_narrowed_on_the_way_back_passes_nothing_until_the_clock_tells_it() {
    let allow_host: BTreeSet<&str> = ["tcp/22"].into();
    let policies = vec![(1, "discard", "tcp")];
    let old = Config { allow_host: allow_host.clone(), policies, ..Config::small() };
    let new = Config { allow_host, more_ports: [2].into(), ..Config::small() };
    let mut closed = 0;
    for (nth, in_a_row) in (0..12).flat_map(|nth| (1..8).map(move |count| (nth, count))) {
        let mut lab = Lab::new(&old);
        lab.machine.world().in_a_row = in_a_row;
        // The simulated machine looks whether anything is open in between.
        let done = lab.apply(&new, Some(nth));
        closed += u32::from(lab.steps().contains(&Step::Close));
        lab.runtime.block_on(lab.gateway.inspect()).unwrap();
        lab.runs(if done.is_ok() { &new } else { &old });
    }
    assert!(closed > 10, "{closed}");
}

/// Fragments of ESP in UDP look like those of IKE: Linux has none from the moment on at which
/// workers know of the peer.
#[test]
fn a_peer_in_udp_takes_the_fragments_of_ike_from_linux_and_leaves_them_to_it_when_it_goes() {
    // REASM
    let without = Config { allow_host: ["tcp/22", "udp/500"].into(), ..Config::small() };
    let with = Config { has_peer: true, ..without.clone() };
    let passed = |lab: &Lab, protocol: u8| {
        let world = lab.machine.world();
        let services = world.programs["eth0"].rules.iter().flat_map(|rule| &rule.services);
        let of_protocol = services.filter(|service| service.protocol == protocol);
        of_protocol.fold(bpf::Scope::NONE, |all, service| all.and(service.scope))
    };
    let whole = bpf::Scope::TO_US.and(bpf::Scope::TO_GROUPS);
    let mut lab = Lab::new(&without);
    for config in [&with, &without, &with] {
        // The simulated machine looks whether anything is open in between.
        lab.apply(config, None).unwrap();
        let of_udp = if config.has_peer { whole } else { bpf::Scope::ALL };
        assert_eq!((passed(&lab, 6), passed(&lab, 17)), (bpf::Scope::ALL, of_udp));
        lab.runs(config);
    }
}

#[test]
fn a_netdev_that_cannot_be_had_is_tried_again_by_the_clock_not_at_each_event() {
    let config = Config { more_ports: [2].into(), ..Config::small() };
    let mut lab = Lab::new(&config);
    let mut gone = view();
    let link = gone.links.remove(&3).unwrap();
    let mut another = gone.clone();
    another.links.insert(9, Link { index: 9, ..link });
    let tries_at = |lab: &mut Lab, view: &View| {
        lab.steps();
        lab.runtime.block_on(lab.gateway.follow(Arc::new(view.clone()))).unwrap();
        lab.steps().iter().filter(|step| **step == Step::Take).count()
    };
    assert_eq!(tries_at(&mut lab, &gone), 0);
    lab.machine.world().untakable = ["eth2".to_owned()].into();
    assert_eq!(tries_at(&mut lab, &view()), 1);
    assert_eq!(tries_at(&mut lab, &view()), 0);
    assert!(lab.gateway.troubles.contains_key("eth2"));
    assert_eq!(tries_at(&mut lab, &another), 1, "another netdev of the name was never refused");
    assert_eq!(tries_at(&mut lab, &another), 0);
    lab.machine.world().untakable.clear();
    lab.runtime.block_on(lab.gateway.inspect()).unwrap();
    assert_eq!(lab.gateway.netdevs["eth2"].ifindex, 9);
    assert!(lab.gateway.troubles.is_empty());
}

#[test]
fn a_new_port_with_packets_too_long_for_the_frames_is_refused_and_one_that_grows_goes_on() {
    let few = Config::small();
    let more = Config { more_ports: [2].into(), ..Config::small() };
    let with_mtu = |index: u32, mtu: u32| {
        let mut view = view();
        view.links.get_mut(&index).unwrap().mtu = mtu;
        Arc::new(view)
    };
    let misfits = |lab: &Lab| -> Vec<String> {
        lab.gateway.live.problems.iter().map(ToString::to_string).collect()
    };
    let mut lab = Lab::new(&few);
    let found = misfits(&lab);
    let follow = |lab: &mut Lab, view| {
        lab.runtime.block_on(lab.gateway.follow(view)).unwrap();
        lab.steps();
    };
    // eth2, which is no port yet.
    follow(&mut lab, with_mtu(3, 1726));
    assert_eq!(misfits(&lab), found);
    let refused = lab.apply(&more, None).unwrap_err().to_string();
    assert!(refused.starts_with("port more2: eth2 has an MTU of 1726, "), "{refused}");
    assert_eq!(lab.steps(), [], "nothing was touched");
    follow(&mut lab, with_mtu(3, 1725));
    lab.apply(&more, None).unwrap();
    // The MTU of a port is raised: it goes on, also through changes.
    follow(&mut lab, with_mtu(3, 9000));
    let told = misfits(&lab);
    assert!(told.iter().any(|text| text.starts_with("port more2: eth2 has an MTU of 9000")));
    let later = Config { policies: vec![(1, "discard", "tcp")], ..more };
    lab.apply(&later, None).unwrap();
    follow(&mut lab, view().into());
    lab.runs(&later);
}

fn action() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["bypass", "discard"])
}

/// Any configuration among few parts, so that changes meet.
fn config() -> impl Strategy<Value = Config> {
    let ports = prop::collection::btree_set(2..5_u8, 0..3);
    let services = prop::sample::subsequence(vec!["tcp/22", "udp/500", "icmp"], 0..=3);
    let one = (action(), prop::sample::select(vec!["tcp", "udp", "icmp"]));
    let policies = prop::collection::btree_map(1..6_u8, one, 0..4);
    let flows = prop::sample::select(vec![0, 1000, 5000]);
    (ports, services, policies, flows, any::<bool>()).prop_map(
        |(more_ports, services, policies, flows, has_peer)| Config {
            more_ports,
            allow_host: services.into_iter().collect(),
            policies: policies.into_iter().map(|(n, (action, p))| (n, action, p)).collect(),
            flows,
            has_peer,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    // Whatever step is refused, what runs is the old configuration or the new one, whole; in
    // between nothing is open that must be closed (the simulated machine looks).
    #[test]
    fn a_change_is_made_whole_or_not_at_all(
        first in config(),
        changes in prop::collection::vec((config(), prop::option::of(0..14_usize)), 1..5),
    ) {
        let mut lab = Lab::new(&first);
        let mut running = first;
        for (next, refuse) in changes {
            match lab.apply(&next, refuse) {
                Ok(()) => running = next,
                Err(_) => assert!(refuse.is_some()),
            }
            lab.runs(&running);
        }
    }

    #[test]
    fn a_change_of_policies_is_made_whole_or_not_at_all(
        first in config(),
        changes in prop::collection::vec(
            (1..6_u8, action(), prop::option::of(0..8_usize)),
            1..5,
        ),
    ) {
        let mut lab = Lab::new(&first);
        let mut running = first;
        for (number, action, refuse) in changes {
            let mut next = running.clone();
            let there = next.policies.iter().position(|(known, ..)| *known == number);
            let (remove, add) = match there {
                Some(place) => {
                    next.policies.remove(place);
                    (vec![format!("p{number}")], String::new())
                }
                None => {
                    next.policies.push((number, action, "tcp"));
                    (Vec::new(), policy(number, action, "tcp"))
                }
            };
            match lab.change_policies(&remove, &add, refuse) {
                Ok(()) => running = next,
                Err(_) => assert!(refuse.is_some()),
            }
            // They may withhold more than they must until the next look at the kernel.
            lab.runtime.block_on(async {
                lab.gateway.free().await;
                lab.gateway.follow(view().into()).await.unwrap();
            });
            lab.runs(&running);
        }
    }
}
