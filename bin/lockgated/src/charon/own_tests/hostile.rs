//! Whatever charon asks for: a packet that the file decides is decided as if there were no charon,
//! and one beyond the bounds is too. The twin looks through plain lists.

use std::net::Ipv4Addr;

use charon_link::{
    AddPolicy, Policy, PolicyAction, Request, SaDirection, SaName, Selector, Status,
};
use ipsec::Tunnel;
use policy::{Action, Book, Decider, DomainId, PortClass};
use proptest::prelude::*;
use wire::{Family, Flow, Upper};

use super::{Lab, MoveSa, NamedRequest, add, charon, end, outbound, range, sa};

/// Networks 10.1.0.0/24 … 10.1.3.0/24 inside, 10.9.0.0/24 … 10.9.5.0/24 on the far side.
const INSIDE: u8 = 4;
const FAR: u8 = 6;

/// Networks from one to another on both sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Nets {
    inside: (u8, u8),
    far: (u8, u8),
}

impl Nets {
    fn has(&self, (inside, far): (u8, u8)) -> bool {
        let within = |(first, last): (u8, u8), net: u8| first <= net && net <= last;
        within(self.inside, inside) && within(self.far, far)
    }

    fn covers(&self, other: &Nets) -> bool {
        let within = |one: (u8, u8), other: (u8, u8)| one.0 <= other.0 && other.1 <= one.1;
        within(self.inside, other.inside) && within(self.far, other.far)
    }

    fn keys(&self) -> String {
        let ((a, b), (c, d)) = (self.inside, self.far);
        format!("local = [\"10.1.{a}.0-10.1.{b}.255\"]\nremote = [\"10.9.{c}.0-10.9.{d}.255\"]\n")
    }

    fn selectors(&self) -> [Selector; 2] {
        let ((a, b), (c, d)) = (self.inside, self.far);
        [
            range(&format!("10.1.{a}.0"), &format!("10.1.{b}.255")),
            range(&format!("10.9.{c}.0"), &format!("10.9.{d}.255")),
        ]
    }
}

/// A policy of the file.
#[derive(Clone, Debug)]
struct FilePolicy {
    nets: Nets,
    action: &'static str,
    priority: u8,
}

#[derive(Clone, Debug)]
struct Bounds {
    nets: Nets,
    /// Other ends 198.51.100.0 to this one.
    last_peer: u8,
    most: u8,
    shunts: Vec<(PolicyAction, Nets)>,
}

/// A request of charon's, or another configuration.
#[derive(Clone, Debug)]
enum Step {
    Policy {
        nets: Nets,
        action: PolicyAction,
        reqid: u32,
        spi: u32,
        remote: u8,
        priority: u32,
    },
    Delete(prop::sample::Index),
    Sa {
        nets: Nets,
        reqid: u32,
        remote: u8,
        direction: SaDirection,
    },
    DeleteSa(prop::sample::Index),
    /// An SA moves to another end of the peer's or of ours, into UDP or not.
    Move {
        which: prop::sample::Index,
        local: u8,
        remote: u8,
        port: Option<u16>,
        reqid: Option<u32>,
    },
    /// A policy that drops comes for one that protects, as charon does around a move.
    StandIn(prop::sample::Index),
    FlushPolicies,
    FlushSas,
    Another,
    Resumed,
    Bounds(Option<Bounds>),
}

fn nets() -> impl Strategy<Value = Nets> {
    let pair = |most: u8| (0..most, 0..most).prop_map(|(a, b)| (a.min(b), a.max(b)));
    (pair(INSIDE), pair(FAR)).prop_map(|(inside, far)| Nets { inside, far })
}

/// One network on each side.
fn narrow() -> impl Strategy<Value = Nets> {
    (0..INSIDE, 0..FAR).prop_map(|(inside, far)| Nets { inside: (inside, inside), far: (far, far) })
}

fn action() -> impl Strategy<Value = PolicyAction> {
    prop_oneof![
        4 => Just(PolicyAction::Protect),
        2 => Just(PolicyAction::Pass),
        2 => Just(PolicyAction::Drop),
    ]
}

fn bounds() -> impl Strategy<Value = Bounds> {
    let all = Nets { inside: (0, INSIDE - 1), far: (0, FAR - 1) };
    let wide = move || prop_oneof![Just(all), nets()];
    let shunt = (prop_oneof![Just(PolicyAction::Pass), Just(PolicyAction::Drop)], wide());
    let shunts = prop::collection::vec(shunt, 0..4);
    (wide(), 5..20u8, 1..6u8, shunts).prop_map(|(nets, last_peer, most, shunts)| Bounds {
        nets,
        last_peer,
        most,
        shunts,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let remote = || prop_oneof![1 => Just(1u8), 3 => Just(4), 2 => 5..22u8];
    let policy = (prop_oneof![nets(), narrow()], action(), 1..4u32, 0..3u32, remote(), 0..4u32);
    let sa = (prop_oneof![nets(), narrow()], 1..4u32, remote(), any::<bool>());
    let port = prop::option::weighted(0.3, 0..3u16);
    let local = prop_oneof![4 => 1..3u8, 1 => Just(3)];
    let number = prop::option::weighted(0.3, 1..4u32);
    let moved = (any::<prop::sample::Index>(), local, remote(), port, number);
    prop_oneof![
        8 => policy.prop_map(|(nets, action, reqid, spi, remote, class)| {
            Step::Policy { nets, action, reqid, spi, remote, priority: class << 24 }
        }),
        3 => any::<prop::sample::Index>().prop_map(Step::Delete),
        6 => sa.prop_map(|(nets, reqid, remote, out)| {
            let direction = if out { SaDirection::Outbound } else { SaDirection::Inbound };
            Step::Sa { nets, reqid, remote, direction }
        }),
        2 => any::<prop::sample::Index>().prop_map(Step::DeleteSa),
        6 => moved.prop_map(|(which, local, remote, port, reqid)| {
            Step::Move { which, local, remote, port, reqid }
        }),
        2 => any::<prop::sample::Index>().prop_map(Step::StandIn),
        1 => Just(Step::FlushPolicies),
        1 => Just(Step::FlushSas),
        1 => Just(Step::Another),
        1 => Just(Step::Resumed),
        3 => prop::option::weighted(0.8, bounds()).prop_map(Step::Bounds),
    ]
}

fn file_policy() -> impl Strategy<Value = FilePolicy> {
    let action = prop_oneof![Just("protect"), Just("bypass"), Just("discard")];
    (prop_oneof![1 => nets(), 2 => narrow()], action, 0..3u8)
        .prop_map(|(nets, action, priority)| FilePolicy { nets, action, priority })
}

fn sections(file: &[FilePolicy], bounds: Option<&Bounds>) -> String {
    let mut text = "[port.wan]\nnetdev = \"eth0\"\nside = \"unprotected\"\n[peer.a]\n\
                    local = \"192.0.2.1\"\nremote = \"198.51.100.1\"\nkeys = \"ike\"\n\
                    suite = \"aes-128-gcm\"\n"
        .to_owned();
    for (place, FilePolicy { nets, action, priority }) in file.iter().enumerate() {
        let what = match *action {
            "protect" => "peer = \"a\"".to_owned(),
            action => format!("action = \"{action}\""),
        };
        text += &format!(
            "[[policy]]\nname = \"f{place}\"\n{what}\npriority = {priority}\n{}",
            nets.keys()
        );
    }
    if let Some(Bounds { nets, last_peer, most, shunts }) = bounds {
        text += &format!(
            "[ike]\nends = [\"192.0.2.1\", \"192.0.2.2\"]\n\
             peers = [\"198.51.100.0-198.51.100.{last_peer}\"]\n{}\
             suites = [\"aes-128-gcm\"]\nmax_children = {most}\n",
            nets.keys()
        );
        for (action, nets) in shunts {
            let action = if *action == PolicyAction::Pass { "bypass" } else { "discard" };
            text += &format!("[[ike.shunt]]\naction = \"{action}\"\n{}", nets.keys());
        }
    }
    text
}

/// The name of the policy by which the file decides a packet.
fn by_file(file: &[FilePolicy], packet: (u8, u8)) -> Option<String> {
    let matching = file.iter().enumerate().filter(|(_, policy)| policy.nets.has(packet));
    let first = matching.max_by_key(|(place, policy)| (policy.priority, *place));
    first.map(|(place, _)| format!("f{place}"))
}

/// The name by which charon deletes a policy.
fn name_of(policy: &AddPolicy) -> (u32, u32, PolicyAction, &Policy) {
    (policy.reqid, policy.spi, policy.action, &policy.policy)
}

/// A policy that charon has, as the twin knows it.
struct Known {
    policy: AddPolicy,
    nets: Nets,
    remote: u8,
}

struct World {
    lab: Lab,
    file: Vec<FilePolicy>,
    bounds: Option<Bounds>,
    known: Vec<Known>,
    sas: Vec<(SaDirection, SaName)>,
    spi: u32,
    charon: u8,
    /// The twin knows exactly which policies of charon's run.
    is_exact: bool,
}

/// Policies of charon's own that decided, and those that were refused.
#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    protected: u32,
    passed: u32,
    dropped: u32,
    refused: u32,
    taken_away: u32,
    moved: u32,
}

impl World {
    async fn take(&mut self, step: Step, seen: &mut Seen) {
        match step {
            Step::Policy { nets, action, reqid, spi, remote, priority } => {
                let base = outbound(nets.selectors(), reqid, spi);
                let there = format!("198.51.100.{remote}");
                let named = Policy { destination: end(&there), ..base.policy };
                let policy = AddPolicy { policy: named, action, priority, ..base };
                self.add_policy(Known { policy, nets, remote }, seen).await;
            }
            Step::Delete(which) if !self.known.is_empty() => {
                let place = which.index(self.known.len());
                let known = self.known.remove(place);
                self.lab.ask(Request::DeletePolicy(known.policy)).await;
            }
            Step::Sa { nets, reqid, remote, direction } => {
                self.spi += 1;
                let mut sa = sa(direction, self.spi, reqid, nets.selectors());
                let there = end(&format!("198.51.100.{remote}"));
                match direction {
                    SaDirection::Outbound => sa.name.destination = there,
                    SaDirection::Inbound => sa.name.source = there,
                }
                let name = sa.name;
                if self.lab.ask(add(sa)).await.status == Status::Done {
                    self.sas.push((direction, name));
                }
            }
            Step::DeleteSa(which) if !self.sas.is_empty() => {
                let (_, name) = self.sas.remove(which.index(self.sas.len()));
                self.lab.ask(NamedRequest::DeleteSa(name)).await;
            }
            Step::Move { which, local, remote, port, reqid } if !self.sas.is_empty() => {
                let place = which.index(self.sas.len());
                let ends = [format!("192.0.2.{local}"), format!("198.51.100.{remote}")];
                self.shift((place, reqid), ends, port, seen).await;
            }
            Step::StandIn(which) if !self.known.is_empty() => {
                self.stand_in(which.index(self.known.len())).await;
            }
            Step::FlushPolicies => {
                self.known.clear();
                self.lab.ask(Request::FlushPolicies).await;
            }
            Step::FlushSas => {
                self.sas.clear();
                self.lab.ask(Request::FlushSas).await;
            }
            Step::Another => {
                self.charon += 1;
                self.lab.desk.begin(charon(self.charon));
                self.is_exact = false;
            }
            Step::Resumed => {
                self.lab.ask(Request::Resumed).await;
                self.known.clear();
                self.is_exact = false;
            }
            Step::Bounds(bounds) => {
                let before = self.own_policies();
                self.lab.apply(&sections(&self.file, bounds.as_ref())).await;
                self.bounds = bounds;
                self.is_exact = false;
                seen.taken_away += u32::from(self.own_policies() < before);
            }
            Step::Delete(_) | Step::DeleteSa(_) | Step::Move { .. } | Step::StandIn(_) => {}
        }
    }

    async fn add_policy(&mut self, asked: Known, seen: &mut Seen) {
        let answer = self.lab.ask(Request::AddPolicy(asked.policy.clone())).await;
        match answer.status {
            Status::Done => {
                self.known.retain(|known| name_of(&known.policy) != name_of(&asked.policy));
                self.known.push(asked);
            }
            _ => seen.refused += 1,
        }
    }

    /// Adds what drops packets in place of a policy that protects them.
    async fn stand_in(&mut self, place: usize) {
        let Known { policy, nets, remote } = &self.known[place];
        let (nets, remote) = (*nets, *remote);
        if policy.action != PolicyAction::Protect {
            return;
        }
        let policy = AddPolicy { action: PolicyAction::Drop, ..policy.clone() };
        let answer = self.lab.ask(Request::AddPolicy(policy.clone())).await;
        // What drops for a peer of the file changes nothing.
        if answer.status == Status::Done && remote != 1 {
            self.known.retain(|known| name_of(&known.policy) != name_of(&policy));
            self.known.push(Known { policy, nets, remote });
        }
    }

    /// Asks for a move of an SA to these ends.
    async fn shift(
        &mut self,
        (place, reqid): (usize, Option<u32>),
        ends: [String; 2],
        port: Option<u16>,
        seen: &mut Seen,
    ) {
        let (direction, name) = self.sas[place];
        let mut ends = ends.map(|address| end(&address));
        if let Some(port) = port {
            ends[0].set_port(4500);
            ends[1].set_port(port);
        }
        if direction == SaDirection::Inbound {
            ends.reverse();
        }
        let ([source, destination], in_udp) = (ends, port.is_some());
        let selectors = None;
        let asked = MoveSa { name, source, destination, in_udp, reqid, selectors };
        if self.lab.ask(NamedRequest::MoveSa(asked)).await.status == Status::Done {
            self.sas[place].1 = SaName { source, destination, spi: name.spi };
            seen.moved += 1;
        }
    }

    fn own_policies(&self) -> usize {
        let snapshot = self.lab.snapshot();
        let policies = snapshot.spd().holding_policies();
        policies.filter(|(_, policy)| policy.id.is_behind()).count()
    }

    /// Checks the verdict on every packet, in both directions.
    fn check(&self, seen: &mut Seen) -> Result<(), TestCaseError> {
        let snapshot = self.lab.snapshot();
        for (inside, far) in (0..INSIDE).flat_map(|inside| (0..FAR).map(move |far| (inside, far))) {
            let address = |text: String| u128::from(text.parse::<Ipv4Addr>().unwrap().to_bits());
            let there = Flow {
                family: Family::V4,
                source: address(format!("10.1.{inside}.9")),
                destination: address(format!("10.9.{far}.9")),
                protocol: 17,
                upper: Upper::Ports { source: 1000, destination: 53 },
                opens: false,
            };
            for (book, flow) in [(Book::SpdOut, there), (Book::SpdIn, there.reversed())] {
                let domain = DomainId::new(PortClass(0), book, Family::V4);
                let mut says = [Decider::None];
                snapshot.spd().classify(domain, &[flow], &mut says);
                let found = match says[0] {
                    Decider::Policy(index) => Some(snapshot.spd().policy(index)),
                    Decider::FragmentPorts(_) => unreachable!("it is no fragment"),
                    Decider::None => None,
                };
                let packet = (inside, far);
                if let Some(expected) = by_file(&self.file, packet) {
                    prop_assert_eq!(found.map(|policy| &*policy.name), Some(&*expected));
                    continue;
                }
                self.check_own(packet, found, seen)?;
            }
        }
        self.check_peers()
    }

    /// Checks the verdict on a packet of which the file does not speak.
    fn check_own(
        &self,
        packet: (u8, u8),
        found: Option<&policy::Policy>,
        seen: &mut Seen,
    ) -> Result<(), TestCaseError> {
        if let Some(policy) = found {
            prop_assert!(policy.id.is_behind(), "{} is charon's", policy.name);
            let Some(bounds) = &self.bounds else {
                return Err(TestCaseError::fail(format!("{} without [ike]", policy.name)));
            };
            let lists =
                |action| bounds.shunts.iter().any(|(of, nets)| *of == action && nets.has(packet));
            match policy.action {
                Action::Protect(_) => {
                    prop_assert!(bounds.nets.has(packet), "{packet:?} is beyond {bounds:?}");
                    seen.protected += 1;
                }
                Action::Bypass => {
                    prop_assert!(lists(PolicyAction::Pass), "{packet:?} {bounds:?}");
                    seen.passed += 1;
                }
                _ => {
                    prop_assert!(lists(PolicyAction::Drop), "{packet:?} {bounds:?}");
                    seen.dropped += 1;
                }
            }
        }
        if self.is_exact {
            // The file's peer has the ends of the first.
            let mut own = self
                .known
                .iter()
                .filter(|known| known.remote != 1 || known.policy.action != PolicyAction::Protect);
            let is_expected = own.any(|known| known.nets.has(packet));
            prop_assert_eq!(found.is_some(), is_expected, "{:?}", packet);
        }
        Ok(())
    }

    /// Returns whether charon may have a tunnel between two ends. Those of the first address with
    /// 198.51.100.1 are the file's peer's.
    fn is_within(&self, ends: Tunnel) -> bool {
        let last = self.bounds.as_ref().map_or(0, |bounds| bounds.last_peer);
        let ours = ["192.0.2.1", "192.0.2.2"].map(str::parse::<std::net::IpAddr>);
        let [first, second] = ours.map(Result::unwrap);
        let std::net::IpAddr::V4(remote) = ends.remote else { unreachable!() };
        let remote = remote.octets()[3];
        let may_be_ours = ends.local == second || (ends.local == first && remote != 1);
        (1..=last).contains(&remote) && may_be_ours
    }

    /// Checks that all SAs of a peer are within the bounds, and its set where it is.
    fn check_sas(&self, peer: &str, ends: Tunnel) -> Result<(), TestCaseError> {
        let snapshot = self.lab.snapshot();
        let (_, set) = snapshot.sets().find(|(_, set)| set.peer == peer).expect("its set");
        prop_assert_eq!(set.tunnel, ends);
        if let Some(newest) = set.outbound.last() {
            prop_assert_eq!(*snapshot.outbound_sa(*newest).tunnel(), ends);
        }
        for sa in snapshot.outbound().filter(|sa| sa.set == set.id) {
            prop_assert!(self.is_within(*sa.tunnel()), "{} {:?}", peer, sa.tunnel());
        }
        for sa in snapshot.inbound().filter(|sa| sa.set == set.id) {
            prop_assert!(self.is_within(*sa.tunnel()), "{} {:?}", peer, sa.tunnel());
        }
        Ok(())
    }

    /// Checks the ends of charon's own peers, and that what was accepted lies within the bounds.
    fn check_peers(&self) -> Result<(), TestCaseError> {
        let picture = self.lab.running.daemon.picture();
        for peer in picture.compiled.ike_peers() {
            prop_assert!(self.is_within(peer.tunnel()), "{:?}", peer.tunnel());
            self.check_sas(&peer.name, peer.encapsulation.tunnel)?;
        }
        let Some(bounds) = self.bounds.as_ref().filter(|_| self.is_exact) else { return Ok(()) };
        for known in self.known.iter().filter(|known| known.remote != 1) {
            if known.policy.action == PolicyAction::Protect {
                prop_assert!(bounds.nets.covers(&known.nets));
            }
        }
        Ok(())
    }
}

/// Cases that are tried: as many as `PROPTEST_CASES` says, or a few.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(96)
}

#[test]
fn charon_changes_nothing_that_the_file_decides_and_stays_within_its_bounds() {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(cases()));
    let worlds = (
        prop::collection::vec(file_policy(), 0..5),
        prop_oneof![4 => bounds().prop_map(Some), 1 => Just(None)],
        prop::collection::vec(step(), 1..32),
    );
    let seen = std::cell::Cell::new(Seen::default());
    let result = runner.run(&worlds, |(file, bounds, steps)| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let lab = Lab::over(&sections(&file, bounds.as_ref()));
            let (known, sas, spi, charon) = (Vec::new(), Vec::new(), 0x1000, 1);
            let mut world = World { lab, file, bounds, known, sas, spi, charon, is_exact: true };
            let mut all = seen.get();
            for step in steps {
                world.take(step, &mut all).await;
                world.check(&mut all)?;
            }
            seen.set(all);
            Ok(())
        })
    });
    result.unwrap();
    println!("{:?}", seen.get());
    let Seen { protected, passed, dropped, refused, taken_away, moved } = seen.get();
    for (what, count) in [
        ("protected", protected),
        ("passed", passed),
        ("dropped", dropped),
        ("refused", refused),
        ("taken away", taken_away),
        ("moved", moved),
    ] {
        assert!(count > 0, "nothing was {what}");
    }
}
