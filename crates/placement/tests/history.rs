//! Random histories of a gateway, with tables that may refuse any write: what programs can find in
//! them at any moment is what the walk says, and nothing that they may still be reading is written.

mod common;

use std::cell::Cell;

use bpf::tier::{FlowKey, QUARANTINE, Verdict, Way};
use common::picture::{FLOWS, Picture, ROOM, Refused};
use common::*;
use dataplane::connections::NotLasting;
use dataplane::{FlowVerdictBelow, NetworkBelow, NotBelow, PortId, Snapshot};
use endpoints::{Book, Change, Endpoint, EndpointKey};
use placement::{Admission, AdmitError, PortPlace, Residents, TRIES, Tried, Tries};
use proptest::prelude::*;
use proptest::sample::select;
use wire::{Address, Family, Flow, LinkAddress, Upper};

/// A step of a history.
#[derive(Clone, Debug)]
enum Step {
    Put(Endpoint),
    Delete(Endpoint),
    /// One of those that were put.
    Admit(usize),
    /// A flow like this one, between two of those that are in, or others.
    Judge(FlowKey, [usize; 2]),
    /// Groups judge all networks from now on, or one, by these rules; a port goes or comes. The
    /// change may be given up before the workers hear of it.
    Change {
        judged: bool,
        rules: Rules,
        has_dmz: bool,
        outcome: Outcome,
    },
    Wait(u64),
    /// After so many writes so many are refused.
    Refuse(u32, u32),
}

/// The end of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Done,
    GivenUp,
}

fn a_change() -> impl Strategy<Value = Step> {
    let outcome = select(&[Outcome::Done, Outcome::Done, Outcome::GivenUp][..]);
    let (judged, has_dmz) = (prop::bool::weighted(0.5), prop::bool::weighted(0.7));
    (judged, select(&RULES[..]), has_dmz, outcome).prop_map(|(judged, rules, has_dmz, outcome)| {
        Step::Change { judged, rules, has_dmz, outcome }
    })
}

fn a_step() -> impl Strategy<Value = Step> {
    let pause = QUARANTINE.as_nanos() as u64;
    prop_oneof![
        5 => an_endpoint().prop_map(Step::Put),
        1 => an_endpoint().prop_map(Step::Delete),
        10 => any::<usize>().prop_map(Step::Admit),
        20 => (a_flow(), any::<[usize; 2]>()).prop_map(|(flow, ends)| Step::Judge(flow, ends)),
        2 => a_change(),
        3 => select(vec![1, pause - 1, pause, 3 * pause]).prop_map(Step::Wait),
        1 => (0u32..6, 1u32..3).prop_map(|(until, count)| Step::Refuse(until, count)),
    ]
}

fn place(has_dmz: bool) -> impl Fn(PortId) -> Option<PortPlace> + Copy {
    move |port| place_of(port).filter(|_| port != DMZ || has_dmz)
}

/// Checks that all that programs find is what the walk says.
fn check(picture: &Picture, snapshot: &Snapshot, place_of: impl Fn(PortId) -> Option<PortPlace>) {
    let overlays = snapshot.overlays().unwrap();
    let networks = picture.networks.borrow();
    let asking = picture.asking.borrow();
    let network_of = |vni| overlays.networks().find(|network| network.vni.get() == vni).unwrap();
    for (number, place) in networks.iter() {
        let Some((vni, overlay)) = place.open else { continue };
        let network = network_of(vni);
        let below = snapshot.network_below(network);
        let is_right = below == NetworkBelow::Open
            || asking.contains_key(number) && matches!(below, NetworkBelow::Asks(_));
        assert!(is_right, "network {vni}: {below:?}");
        assert_eq!(u32::from(network.overlay.0), overlay);
    }
    for (key, slot) in picture.flow_slots.borrow().iter() {
        let record = picture.flow_records.borrow()[slot];
        assert_eq!(record.key, *key);
        let open = networks.get(&record.network).and_then(|place| place.open);
        let is_found = open.is_some_and(|(vni, _)| vni == key.vni)
            && asking.get(&record.network) == Some(&record.generation);
        if is_found {
            let right = snapshot.flow_below(network_of(key.vni), &key.flow(), 0);
            let right = right.map(|below| match below.verdict {
                FlowVerdictBelow::Permit => Verdict::Permit,
                FlowVerdictBelow::Drop => Verdict::Drop,
            });
            assert_eq!(right, Ok(record.verdict), "{key:?}");
        }
    }
    for (key, slot) in picture.slots.borrow().iter() {
        let record = picture.records.borrow()[slot];
        assert_eq!(record.key, *key);
        let Some((vni, number)) = networks.get(&record.network).and_then(|place| place.open) else {
            continue;
        };
        if vni != key.vni {
            continue;
        }
        let address = Address::v4(key.address.into());
        let key = EndpointKey { vni: wire::Vni::new(vni).unwrap(), address };
        let found = overlays.endpoints().find(key).expect("an endpoint that there is");
        assert_eq!((found.host, found.mac.bytes()), (Address::v4(record.host.into()), record.mac));
        let overlay = &overlays.overlays()[number as usize];
        for (way, host_mac) in [(record.way, found.host_mac), (record.answers, None)] {
            let ways = picture.ways.borrow();
            let Some(way) = ways.get(&way).and_then(|place| place.open) else { continue };
            let right = snapshot.way_below(overlay, found.host, host_mac).expect("a way");
            let place = place_of(right.port).expect("a port that is there");
            let Way { host, ifindex, vlan, mtu, destination, source } = way;
            assert_eq!(host, record.host);
            assert_eq!(destination, right.mac.bytes());
            assert_eq!(PortPlace { ifindex, vlan, mac: source, mtu }, place);
        }
    }
}

/// Admissions by what became of them.
#[derive(Clone, Copy, Default, Debug)]
struct Admissions {
    admitted: u64,
    full: u64,
    /// It was there, or may not be.
    other: u64,
    refused: u64,
    /// Flows that were admitted, and for which there was no room.
    flows: u64,
    full_flows: u64,
}

/// A gateway and the tier that follows it.
struct History<'p> {
    picture: &'p Picture,
    residents: Residents<&'p Picture>,
    book: Book,
    revision: u64,
    /// The keys that were put.
    known: Vec<EndpointKey>,
    running: Snapshot,
    has_dmz: bool,
}

impl<'p> History<'p> {
    fn begin(picture: &'p Picture) -> History<'p> {
        let book = book_of(&[]);
        let running = snapshot(book.table(), false);
        let mut residents = Residents::new(picture);
        picture.now_ns.set(1);
        residents.widen(&running, place(true), 1).unwrap();
        History { picture, residents, book, revision: 1, known: vec![], running, has_dmz: true }
    }

    /// Does a step.
    ///
    /// # Errors
    /// A table refused a write: the lease ends.
    fn take(&mut self, step: Step, counts: &mut Admissions) -> Result<(), Refused> {
        match step {
            Step::Put(endpoint) => {
                self.known.push(endpoint.key);
                let revision = self.next_revision();
                self.apply(Change::Put { revision, endpoint })
            }
            Step::Delete(endpoint) => {
                let revision = self.next_revision();
                self.apply(Change::Delete { revision, key: endpoint.key })
            }
            Step::Admit(_) if self.known.is_empty() => Ok(()),
            Step::Admit(which) => self.admit(self.known[which % self.known.len()], counts),
            Step::Judge(flow, ends) => self.judge(self.between_residents(flow, ends), counts),
            Step::Change { judged, rules, has_dmz, outcome } => {
                self.change((judged, rules), has_dmz, outcome)
            }
            Step::Wait(ns) => self.wait(ns),
            Step::Refuse(until, count) => {
                self.picture.refuse.set((until, count));
                Ok(())
            }
        }
    }

    fn next_revision(&mut self) -> u64 {
        self.revision += 1;
        self.revision
    }

    fn apply(&mut self, change: Change) -> Result<(), Refused> {
        self.book.apply(&[change]);
        self.residents.withdraw(change.key(), self.picture.now_ns.get())
    }

    fn admit(&mut self, key: EndpointKey, counts: &mut Admissions) -> Result<(), Refused> {
        let (now_ns, place) = (self.picture.now_ns.get(), place(self.has_dmz));
        let admission = match self.residents.admit(key, &self.running, place, now_ns) {
            Ok(admission) => admission,
            Err(refused) => {
                counts.refused += 1;
                assert!(!self.residents.has(key));
                return match refused {
                    AdmitError::RolledBack(_) => Ok(()),
                    AdmitError::Left(error) => Err(error),
                };
            }
        };
        match admission {
            Admission::Admitted => counts.admitted += 1,
            Admission::Full => counts.full += 1,
            Admission::Resident | Admission::Ineligible => counts.other += 1,
        }
        let is_in = [Admission::Admitted, Admission::Resident].contains(&admission);
        assert_eq!(self.residents.has(key), is_in);
        assert!(!is_in || key.address.family == Family::V4);
        Ok(())
    }

    /// A flow like one, between two residents of a network. If there are none, that one.
    fn between_residents(&self, flow: FlowKey, [first, second]: [usize; 2]) -> FlowKey {
        let mut keys: Vec<_> = self.residents.keys().collect();
        keys.sort_unstable();
        let Some(from) = keys.get(first % keys.len().max(1)).copied() else { return flow };
        keys.retain(|key| key.vni == from.vni);
        let to = keys[second % keys.len()];
        let [source, destination] = [from, to].map(|key| (key.address.value as u32).into());
        FlowKey { vni: from.vni.get(), source, destination, ..flow }
    }

    fn judge(&mut self, key: FlowKey, counts: &mut Admissions) -> Result<(), Refused> {
        let now_ns = self.picture.now_ns.get();
        let admission = match self.residents.admit_flow(key, &self.running, moment(now_ns)) {
            Ok(admission) => admission,
            Err(AdmitError::RolledBack(_)) => return Ok(()),
            Err(AdmitError::Left(error)) => return Err(error),
        };
        counts.flows += u64::from(admission == Admission::Admitted);
        counts.full_flows += u64::from(admission == Admission::Full);
        let is_in = [Admission::Admitted, Admission::Resident].contains(&admission);
        // One that could not be judged anew may be there, and void.
        assert!(!is_in || self.residents.flows().any(|flow| flow == key));
        Ok(())
    }

    fn change(
        &mut self,
        groups: (bool, Rules),
        has_dmz: bool,
        outcome: Outcome,
    ) -> Result<(), Refused> {
        let now_ns = self.picture.now_ns.get();
        let next = ruled(self.book.table(), groups, Some(&self.running));
        self.residents.narrow(&next, place(has_dmz), now_ns)?;
        // Both hold while workers change over.
        self.check();
        check(self.picture, &next, place(has_dmz));
        if outcome == Outcome::GivenUp {
            return self.residents.widen(&self.running, place(self.has_dmz), now_ns);
        }
        (self.running, self.has_dmz) = (next, has_dmz);
        self.check();
        self.residents.widen(&self.running, place(has_dmz), now_ns)
    }

    fn wait(&mut self, ns: u64) -> Result<(), Refused> {
        let now_ns = self.picture.now_ns.get() + ns;
        self.picture.now_ns.set(now_ns);
        for key in self.residents.stranded() {
            self.residents.withdraw(key, now_ns)?;
        }
        for key in self.residents.void_flows() {
            self.residents.withdraw_flow(key, now_ns)?;
        }
        self.residents.widen(&self.running, place(self.has_dmz), now_ns)
    }

    fn check(&self) {
        check(self.picture, &self.running, place(self.has_dmz));
    }
}

// AX-34
#[test]
fn whatever_happens_programs_find_what_the_walk_says() {
    let counts = Cell::new(Admissions::default());
    let config = ProptestConfig { cases: 1500, failure_persistence: None, ..Default::default() };
    proptest!(config, |(steps in prop::collection::vec(a_step(), 1..150))| {
        let picture = Picture::default();
        let mut history = History::begin(&picture);
        let mut so_far = counts.get();
        for step in steps {
            // Once a write was refused the lease ends, and nothing is found at all.
            if history.take(step, &mut so_far).is_err() {
                break;
            }
            history.check();
        }
        counts.set(so_far);
    });
    let Admissions { admitted, full, other, refused, flows, full_flows } = counts.get();
    println!("{admitted} admitted, {full} without room, {other} others, {refused} refused");
    println!("{flows} flows admitted, {full_flows} without room");
    assert!(admitted > 1000 && full > 3 && other > 1000 && refused > 30);
    assert!(flows > 1000 && full_flows > 20);
}

/// Endpoints of the open network, by number.
fn plain(numbers: std::ops::RangeInclusive<u8>) -> Vec<Endpoint> {
    let endpoint = |number: u8| Endpoint {
        key: EndpointKey { vni: vni(PLAIN), address: tenant(number) },
        host: v4(HOSTS[0]),
        host_mac: None,
        mac: LinkAddress::new(mac_of(number)),
    };
    numbers.map(endpoint).collect()
}

// AX-34
#[test]
fn what_a_table_refuses_is_rolled_back_and_tried_five_times_then_skipped() {
    // An admission makes four writes: two ways, a record, and the key.
    for refused_write in 0..4 {
        let picture = Picture::default();
        picture.now_ns.set(1);
        let mut residents = Residents::new(&picture);
        let all = plain(1..=2);
        let snapshot = snapshot(&table_of(&all), false);
        residents.widen(&snapshot, place_of, 1).unwrap();
        let (unlucky, other) = (all[0].key, all[1].key);
        let mut tries = Tries::default();
        let (mut made, mut now_ns) = (0, 1);
        while !tries.rests(unlucky) {
            now_ns += 1_000_000_000;
            picture.now_ns.set(now_ns);
            picture.refuse.set((refused_write, 1));
            let outcome = residents.admit(unlucky, &snapshot, place_of, now_ns);
            let tried = tries.count(unlucky, outcome).expect("the way back is not refused");
            made += 1;
            match made {
                5 => assert_eq!(tried, Tried::Skipped(Refused)),
                _ => assert_eq!(tried, Tried::Refused(Refused), "write {refused_write}"),
            }
            // The table of residents, and the map that programs read, have no trace of it.
            assert!(!residents.has(unlucky));
            assert!(picture.slots.borrow().keys().next().is_none());
            check(&picture, &snapshot, place_of);
            tries.end_period();
        }
        assert_eq!(made, TRIES, "write {refused_write}");
        // Nobody else suffers, and one that the tables take again goes in.
        let admitted = Ok(Tried::Done(Admission::Admitted));
        for key in [other, unlucky] {
            let outcome = residents.admit(key, &snapshot, place_of, now_ns);
            assert_eq!(tries.count(key, outcome), admitted);
            assert!(residents.has(key) && !tries.rests(key));
        }
        assert_eq!(picture.slots.borrow().len(), residents.counts().resident);
        check(&picture, &snapshot, place_of);
    }
}

// AX-14
#[test]
fn a_full_tier_takes_no_more_and_gives_nobody_up_by_itself() {
    let picture = Picture::default();
    let mut residents = Residents::new(&picture);
    let all = plain(1..=40);
    let snapshot = snapshot(&table_of(&all), false);
    residents.widen(&snapshot, place_of, 0).unwrap();
    for (number, endpoint) in all.iter().enumerate() {
        let admission = residents.admit(endpoint.key, &snapshot, place_of, 0).unwrap();
        let fits = number < ROOM as usize;
        assert_eq!(admission, if fits { Admission::Admitted } else { Admission::Full });
    }
    let counts = residents.counts();
    assert_eq!((counts.resident, counts.max), (ROOM as usize, ROOM as usize));
    // A place that was given up is free a second later.
    residents.withdraw(all[3].key, 10).unwrap();
    let pause = QUARANTINE.as_nanos() as u64;
    for (now_ns, outcome) in [(10 + pause - 1, Admission::Full), (10 + pause, Admission::Admitted)]
    {
        picture.now_ns.set(now_ns);
        assert_eq!(residents.admit(all[30].key, &snapshot, place_of, now_ns).unwrap(), outcome);
    }
}

/// A flow of the network with groups, from tenant 1 to tenant 2.
fn a_grouped_flow(port: u8) -> FlowKey {
    let [source, destination] = [1, 2].map(|number| (tenant(number).value as u32).into());
    FlowKey { vni: GROUPED, source, destination, protocol: 17, upper: [0, port, 0, 99] }
}

/// Tenants 1 and 2 of the network with groups, in a tier.
fn grouped<'p>(picture: &'p Picture, table: &Snapshot) -> Residents<&'p Picture> {
    let mut residents = Residents::new(picture);
    residents.widen(table, place_of, 0).unwrap();
    for number in 1..=2 {
        let key = EndpointKey { vni: vni(GROUPED), address: tenant(number) };
        assert_eq!(residents.admit(key, table, place_of, 0).unwrap(), Admission::Admitted);
    }
    residents
}

fn two_tenants() -> Vec<Endpoint> {
    let endpoint = |number| Endpoint {
        key: EndpointKey { vni: vni(GROUPED), address: tenant(number) },
        host: v4(HOSTS[0]),
        host_mac: None,
        mac: LinkAddress::new(mac_of(number)),
    };
    vec![endpoint(1), endpoint(2)]
}

// AX-14
#[test]
fn a_tier_full_of_verdicts_takes_no_more_and_gives_none_up_by_itself() {
    let picture = Picture::default();
    let snapshot = ruled(&table_of(&two_tenants()), (false, Rules::Some), None);
    let mut residents = grouped(&picture, &snapshot);
    for number in 0..40 {
        let admission = residents.admit_flow(a_grouped_flow(number), &snapshot, moment(0)).unwrap();
        let fits = u32::from(number) < FLOWS;
        assert_eq!(admission, if fits { Admission::Admitted } else { Admission::Full });
    }
    let counts = residents.counts();
    assert_eq!((counts.flows, counts.max_flows), (FLOWS as usize, FLOWS as usize));
    assert_eq!(residents.void_flows(), []);
    residents.withdraw_flow(a_grouped_flow(3), 10).unwrap();
    let pause = QUARANTINE.as_nanos() as u64;
    for (now_ns, outcome) in [(10 + pause - 1, Admission::Full), (10 + pause, Admission::Admitted)]
    {
        picture.now_ns.set(now_ns);
        let admission =
            residents.admit_flow(a_grouped_flow(30), &snapshot, moment(now_ns)).unwrap();
        assert_eq!(admission, outcome);
    }
}

#[test]
fn a_verdict_of_an_earlier_generation_is_void_and_given_anew() {
    let picture = Picture::default();
    let table = table_of(&two_tenants());
    let first = ruled(&table, (false, Rules::Open), None);
    let second = ruled(&table, (false, Rules::Some), Some(&first));
    let mut residents = grouped(&picture, &first);
    let key = FlowKey { upper: [0, 1, 0, 53], ..a_grouped_flow(1) };
    let generation = || *picture.asking.borrow().values().next().unwrap();
    let record = || picture.flow_records.borrow()[&picture.flow_slots.borrow()[&key]];
    let admit = |residents: &mut Residents<&Picture>, snapshot: &Snapshot| {
        residents.admit_flow(key, snapshot, moment(0)).unwrap()
    };
    assert_eq!(admit(&mut residents, &first), Admission::Admitted);
    assert_eq!((record().verdict, record().generation), (Verdict::Permit, generation()));
    // Not by rules that are not its generation's: those before a change, or to come.
    assert_eq!(admit(&mut residents, &second), Admission::Ineligible);
    residents.narrow(&second, place_of, 0).unwrap();
    assert_ne!(record().generation, generation());
    assert_eq!(residents.void_flows(), [key]);
    assert_eq!(admit(&mut residents, &first), Admission::Ineligible);
    residents.widen(&second, place_of, 0).unwrap();
    assert_eq!(admit(&mut residents, &second), Admission::Admitted);
    assert_eq!((record().verdict, record().generation), (Verdict::Drop, generation()));
    assert_eq!(residents.counts().flows, 1);
    // The same rules again void nothing; an end that goes does.
    residents.narrow(&second, place_of, 0).unwrap();
    residents.widen(&second, place_of, 0).unwrap();
    assert_eq!(admit(&mut residents, &second), Admission::Resident);
    residents.withdraw(EndpointKey { vni: vni(GROUPED), address: tenant(2) }, 0).unwrap();
    assert_eq!(residents.void_flows(), [key]);
}

#[test]
fn verdicts_that_take_more_than_the_flow_stay_with_the_workers() {
    let table = table_of(&two_tenants());
    let dns = FlowKey { upper: [0, 1, 0, 53], ..a_grouped_flow(1) };
    let opening = Flow { opens: true, ..FlowKey { protocol: 6, ..dns }.flow() };
    let later = Flow { upper: Upper::Fragment, ..dns.flow() };
    let verdicts = |rules| {
        let snapshot = ruled(&table, (false, rules), None);
        let overlays = snapshot.overlays().unwrap();
        let network = overlays.networks().find(|network| network.vni == vni(GROUPED)).unwrap();
        let flows = [dns.flow(), a_grouped_flow(1).flow(), opening, later];
        let verdicts = flows.map(|flow| snapshot.flow_below(network, &flow, 0));
        let verdicts = verdicts.map(|below| below.map(|below| below.verdict));
        (matches!(snapshot.network_below(network), NetworkBelow::Asks(_)), verdicts)
    };
    let (permit, drop) = (Ok(FlowVerdictBelow::Permit), Ok(FlowVerdictBelow::Drop));
    let workers = Err(NotBelow::Workers);
    assert_eq!(verdicts(Rules::Open), (true, [permit, permit, workers, workers]));
    assert_eq!(verdicts(Rules::Some), (true, [drop, drop, workers, workers]));
    assert_eq!(verdicts(Rules::Others), (true, [permit, drop, workers, workers]));
    // Workers count what would be denied.
    let tried_out = Err(NotBelow::TriedOut);
    assert_eq!(verdicts(Rules::Audited), (true, [tried_out, permit, workers, workers]));
    // No connection is there that would permit them.
    let none = Err(NotBelow::Connection(NotLasting::None));
    assert_eq!(verdicts(Rules::Tracked), (true, [none, none, workers, workers]));
}
