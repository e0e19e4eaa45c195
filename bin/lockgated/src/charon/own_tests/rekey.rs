//! A rekey as charon does it, under a worker with a flow cache: no verdict is forgotten.

use dataplane::{CacheUse, FlowCache, NextHop, PortId, Prefix, RouteTarget, Worker};
use io::{MemoryFrames, MemoryPort};
use wire::Address;

use super::*;

/// The gateway with a port inside, on the second netdev.
const LAN: &str = "[port.lan]\nnetdev = \"eth1\"\nside = \"protected\"\n";
/// Flows of the test, and the flow cache's entries.
const FLOWS: u16 = 40;
const ENTRIES: usize = 4096;

/// A worker under the daemon's snapshots, to which routes lead everywhere.
struct Walked {
    worker: Worker<MemoryFrames, MemoryPort>,
    snapshot: Arc<Snapshot>,
    now_ns: u64,
}

impl Walked {
    fn new(snapshot: &Snapshot) -> Walked {
        let snapshot = Arc::new(routed(snapshot, None));
        let netdevs = (0..snapshot.netdev_slots()).map(|_| Some(MemoryPort::new(256))).collect();
        let mut worker = Worker::new(&snapshot, MemoryFrames::new(512), netdevs);
        let cache = FlowCache::new(ENTRIES, &[7; 32], CacheUse::Always).unwrap();
        worker.take_cache(Some(cache));
        let mut walked = Walked { worker, snapshot, now_ns: 1_000_000_000 };
        walked.worker.adopt(&walked.snapshot, walked.now_ns);
        walked
    }

    /// Goes over to a later snapshot, as a worker of the daemon does.
    fn adopt(&mut self, snapshot: &Snapshot) {
        let next = Arc::new(routed(snapshot, Some(&self.snapshot)));
        self.worker.adopt(&next, self.now_ns);
        self.snapshot = next;
    }

    /// One packet of each flow comes from inside. Returns hits and misses of the cache, and what
    /// each outbound SA sealed, by SPI.
    fn walk(&mut self) -> ([u64; 2], Vec<(u32, u64)>) {
        let (before, sealed) = (self.looked_up(), self.sealed());
        let lan = self.snapshot.port_named("lan").unwrap();
        let lan = self.snapshot.port(lan).netdev;
        for flow in 0..FLOWS {
            self.worker.netdev_mut(lan).unwrap().push(frame(&self.snapshot, flow));
        }
        while self.worker.turn(&self.snapshot, self.now_ns, lan, 64) > 0 {}
        self.now_ns += 1_000_000;
        let [hits, misses] = self.looked_up();
        let since = |(spi, now): (u32, u64)| {
            let known = sealed.iter().find(|(known, _)| *known == spi);
            (spi, now - known.map_or(0, |(_, before)| *before))
        };
        ([hits - before[0], misses - before[1]], self.sealed().into_iter().map(since).collect())
    }

    fn looked_up(&self) -> [u64; 2] {
        let cache = &self.worker.counters().cache;
        [cache.hits, cache.misses]
    }

    fn sealed(&self) -> Vec<(u32, u64)> {
        let sealed = &self.worker.counters().sealed;
        let sas = self.snapshot.outbound();
        sas.map(|sa| (sa.spi.value(), sealed[sa.id.0 as usize].packets)).collect()
    }
}

/// A snapshot of the daemon with a way to everywhere, by the port outside.
fn routed(snapshot: &Snapshot, earlier: Option<&Snapshot>) -> Snapshot {
    let mut sources = snapshot.sources().clone();
    let port: PortId = snapshot.port_named("wan").unwrap();
    let gateway = Address::v4(0xc000_02fe);
    let everywhere = Prefix { address: Address::v4(0), length: 0 };
    let hop = NextHop { port, gateway: Some(gateway) };
    sources.routes.insert(everywhere, RouteTarget::Via(hop));
    sources.neighbours.insert((port, gateway), [2, 0, 0, 0, 0, 9]);
    Snapshot::after(sources, earlier).unwrap()
}

/// A UDP packet of a flow from inside to the network behind charon's peer.
fn frame(snapshot: &Snapshot, flow: u16) -> Vec<u8> {
    let lan = snapshot.port(snapshot.port_named("lan").unwrap());
    let mut frame = [&lan.mac[..], &[2, 0, 0, 0, 0, 8], &[8, 0]].concat();
    let mut header = [0; 20];
    header[..4].copy_from_slice(&[0x45, 0, 0, 28 + 8]);
    header[8..10].copy_from_slice(&[64, 17]);
    header[12..16].copy_from_slice(&[10, 1, 0, 5]);
    header[16..].copy_from_slice(&[10, 9, 1, 5]);
    let words = header.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1]));
    let sum: u32 = words.sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(header);
    frame.extend((1000 + flow).to_be_bytes());
    frame.extend([0, 53, 0, 16, 0, 0]);
    frame.extend([7; 8]);
    frame
}

// Issue 19, SPEED: a rekey costs no cache entry.
#[tokio::test]
async fn a_rekey_costs_no_entry_of_a_flow_cache() {
    let mut lab = Lab::over(&format!("{LAN}{FILE}{BOUNDS}"));
    let spi = |number: u32| 0x500 + number;
    let install = async |lab: &mut Lab, number: u32| {
        lab.done(add(sa(Inbound, 0x900 + number, 5, to(1)))).await;
        lab.done(add(sa(Outbound, spi(number), 5, to(1)))).await;
        lab.done(Request::AddPolicy(outbound(to(1), 5, spi(number)))).await;
    };
    install(&mut lab, 0).await;
    let mut walked = Walked::new(&lab.snapshot());
    let flows = u64::from(FLOWS);
    // Each flow is new: searched for, and remembered.
    assert_eq!(walked.walk(), ([0, flows], vec![(spi(0), flows)]));
    assert_eq!(walked.walk(), ([flows, 0], vec![(spi(0), flows)]));
    for number in 1..4 {
        // Make before break: each step is a snapshot of its own.
        install(&mut lab, number).await;
        walked.adopt(&lab.snapshot());
        let (looked_up, sealed) = walked.walk();
        assert_eq!(looked_up, [flows, 0], "the new pair is there beside the old one");
        assert_eq!(sealed.iter().map(|(_, packets)| packets).sum::<u64>(), flows);
        lab.done(Request::DeletePolicy(outbound(to(1), 5, spi(number - 1)))).await;
        for (direction, spi) in [(Outbound, spi(number - 1)), (Inbound, 0x900 + number - 1)] {
            lab.done(NamedRequest::DeleteSa(sa(direction, spi, 5, to(1)).name)).await;
            walked.adopt(&lab.snapshot());
        }
        assert_eq!(walked.walk(), ([flows, 0], vec![(spi(number), flows)]), "the old pair is gone");
    }
    // A policy that comes is another matter: its domain's verdicts are asked for again, once.
    lab.done(Request::AddPolicy(outbound(to(2), 6, 0))).await;
    walked.adopt(&lab.snapshot());
    assert_eq!(walked.walk().0, [0, flows]);
    assert_eq!(walked.walk().0, [flows, 0]);
}

// Each snapshot costs every worker a wake-up: a change of how many there are is a change of speed.
#[tokio::test]
async fn a_child_takes_three_snapshots_its_rekey_four_and_what_is_only_noted_none() {
    let mut lab = Lab::new(BOUNDS);
    let taken = |lab: &Lab, before: usize| lab.running.machine.published() - before;
    let mut before = lab.running.machine.published();
    let of = |number: u32| {
        [add(sa(Inbound, 0x900 + number, 5, to(1))), add(sa(Outbound, 0x500 + number, 5, to(1)))]
    };
    for request in of(0) {
        lab.done(request).await;
    }
    lab.done(Request::AddPolicy(outbound(to(1), 5, 0x500))).await;
    assert_eq!(taken(&lab, before), 3, "the peer with its first SA, the other SA, the policy");
    before = lab.running.machine.published();
    for request in of(1) {
        lab.done(request).await;
    }
    lab.done(Request::AddPolicy(outbound(to(1), 5, 0x501))).await;
    lab.done(NamedRequest::QuerySa(sa(Outbound, 0x501, 5, to(1)).name)).await;
    lab.done(Request::DeletePolicy(outbound(to(1), 5, 0x500))).await;
    assert_eq!(taken(&lab, before), 2, "two SAs; the policy runs already");
    for (direction, spi) in [(Outbound, 0x500), (Inbound, 0x900)] {
        lab.done(NamedRequest::DeleteSa(sa(direction, spi, 5, to(1)).name)).await;
    }
    assert_eq!(taken(&lab, before), 4, "the SAs that were replaced go");
}

#[tokio::test]
async fn a_peer_whose_first_sa_is_refused_never_was_there() {
    let mut lab = Lab::new(BOUNDS);
    lab.done(add(sa(Inbound, 0x900, 5, to(1)))).await;
    let (before, shown) = (lab.running.machine.published(), lab.shown());
    // A key that was used before, by whichever SA.
    let mut again = sa(Inbound, 0x901, 6, to(2));
    again.encryption = sa(Inbound, 0x900, 5, to(1)).encryption;
    let answer = lab.ask(add(again)).await;
    assert_eq!(answer.status, Status::KeyUsed, "{}", answer.text);
    // An SPI that another peer's SA has.
    let mut taken = sa(Inbound, 0x900, 6, to(2));
    taken.encryption.key[19] ^= 1;
    let answer = lab.ask(add(taken)).await;
    assert_eq!(answer.status, Status::Refused, "{}", answer.text);
    assert_eq!(lab.running.machine.published(), before, "no worker saw another snapshot");
    assert_eq!(lab.shown(), shown);
    assert_eq!(lab.desk.own.names().len(), 1);
    assert!(lab.daemon().picture().compiled.ike_peer("ike:6").is_none());
    // The same number makes a peer once its SA has a key of its own.
    lab.done(add(sa(Inbound, 0x901, 6, to(2)))).await;
    assert_eq!(lab.running.machine.published(), before + 1);
    assert!(lab.daemon().picture().compiled.ike_peer("ike:6").is_some());
}
