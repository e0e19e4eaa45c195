//! Follows changes of one thing among very many, under valgrind's callgrind or not: what the
//! control thread does from what the kernel (or a key exchange) says to the snapshot that workers
//! go over to.
//!
//! Without arguments: prints the rows' names, one a line. With a row's name: makes a gateway of
//! 100,000 policies, 10,000 SAs and 100,000 routes, and changes one thing in the middle 64 times;
//! only that, [`counted`], is measured. Then the last snapshot must say what one made at once says.
//! Prints the number of changes, and the time of one, which says nothing under valgrind.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use config::parse;
use control::{Compiled, Compiler, LiveParts, live_parts};
use dataplane::{Prefix, SaSet, Snapshot};
use ipsec::{
    InboundSa, KeyMaterial, OutboundSa, ReplayWindow, SaId, SequenceCounter, SequenceNumbers, Spi,
    Suite, Tunnel,
};
use keystate::{HostIdentity, KeyState};
use linux::{
    Hop, KernelRoute, Link, LinkKind, MAIN_TABLE, NeighbourEntry, NeighbourState, RouteKind,
    RouteStatus, Usability, View,
};
use policy::{Action, AddressRange, Policy, PolicyId, SaSetId, Selector, Spd, UpperSelector};
use wire::Address;

const POLICIES: u32 = 100_000;
const ROUTES: u32 = 100_000;
/// SAs that seal, and as many that open: 10,000 in all.
const PEERS: u32 = 5_000;
const CHANGES: u32 = 64;

const LAN: u32 = 11;
const WAN: u32 = 10;

const CONFIG: &str = r#"
[node]
name = "gw"
[port.lan]
netdev = "eth1"
side = "protected"
[port.wan]
netdev = "eth0"
side = "unprotected"
"#;

/// Makes one change, of a number.
type Change = fn(&mut Gateway, u32);

const ROWS: [(&str, Change); 3] = [
    ("change of a neighbour", Gateway::change_neighbour),
    ("change of a route", Gateway::change_route),
    ("change of an SA", Gateway::change_sa),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let name = words.join(" ");
    if name.is_empty() {
        ROWS.iter().for_each(|(name, _)| println!("{name}"));
        return ExitCode::SUCCESS;
    }
    let Some((_, change)) = ROWS.iter().find(|(known, _)| *known == name) else {
        eprintln!("changes: there is no row `{name}`; without arguments, the program prints all");
        return ExitCode::FAILURE;
    };
    let mut gateway = Gateway::new();
    // The first goes another way: what it replaces was made at once.
    change(&mut gateway, 0);
    let begin = Instant::now();
    counted(&mut gateway, *change);
    let time = begin.elapsed().as_secs_f64() * 1e6 / f64::from(CHANGES);
    gateway.check();
    println!("changes {CHANGES}\nmicroseconds {time:.1}");
    ExitCode::SUCCESS
}

/// The changes whose instructions are counted.
#[inline(never)]
fn counted(gateway: &mut Gateway, change: Change) {
    for number in 1..=CHANGES {
        change(gateway, std::hint::black_box(number));
    }
}

/// A gateway: its configuration, the kernel's view, and the snapshot made of both.
struct Gateway {
    compiled: Compiled,
    view: View,
    live: LiveParts,
    snapshot: Arc<Snapshot>,
    /// Replaced snapshots and views, kept so that freeing them is not counted: in the daemon
    /// another thread does that.
    gone: Vec<(Arc<Snapshot>, View, LiveParts)>,
}

impl Gateway {
    fn new() -> Gateway {
        let folder = tempfile::tempdir().expect("a folder");
        let host = HostIdentity::new("machine", "boot");
        let (run, state) = (folder.path().join("run"), folder.path().join("state"));
        let mut keys = KeyState::open_as(&run, &state, &host).expect("folders");
        let parsed = parse(CONFIG, "changes").expect("a configuration");
        let loaded = parsed.load_keys(folder.path()).expect("no keys");
        let mut compiled = Compiler::new().compile(&loaded, &mut keys).expect("a small gateway");
        (0..PEERS).for_each(|peer| put_peer(&mut compiled, peer, 1));
        let policies = (0..POLICIES).map(policy).collect();
        compiled.spd = Arc::new(Spd::with_room(policies, 200_000).expect("policies"));
        let view = view();
        let live = live_parts(compiled.settings(), &view);
        let snapshot = compiled.assemble(&live, None).expect("parts that fit together");
        Gateway { compiled, view, live, snapshot, gone: Vec::new() }
    }

    fn change_neighbour(&mut self, number: u32) {
        let mut view = self.view.clone();
        view.neighbours.insert((LAN, router(50)), neighbour(number as u8));
        self.follow(view);
    }

    /// By turns it leads to another router, goes, and comes again.
    fn change_route(&mut self, number: u32) {
        let (mut view, prefix) = (self.view.clone(), prefix(ROUTES / 2));
        view.routes.remove(&prefix);
        if number % 3 != 2 {
            view.add_route(route(prefix, router(number % 100)));
        }
        self.follow(view);
    }

    /// A rekey: another SA takes the place of one.
    fn change_sa(&mut self, number: u32) {
        put_peer(&mut self.compiled, PEERS / 2, number + 2);
        let snapshot = self.publish();
        self.gone.push((snapshot, self.view.clone(), self.live.clone()));
    }

    fn follow(&mut self, view: View) {
        let live = self.live.followed(&self.view, &view).expect("the same netdevs");
        let old =
            (std::mem::replace(&mut self.view, view), std::mem::replace(&mut self.live, live));
        let snapshot = self.publish();
        self.gone.push((snapshot, old.0, old.1));
    }

    fn publish(&mut self) -> Arc<Snapshot> {
        let next = self.compiled.assemble(&self.live, Some(&self.snapshot));
        let next = next.expect("parts that fit together");
        std::mem::replace(&mut self.snapshot, next)
    }

    /// The last snapshot says what one made of the same parts at once says.
    fn check(&self) {
        assert!(self.live == live_parts(self.compiled.settings(), &self.view), "it was followed");
        let at_once = Snapshot::after(self.snapshot.sources().clone(), None).expect("the same");
        let hops = |snapshot: &Snapshot, to: Address| {
            let target = snapshot.routes().lookup(to);
            target.map(|target| {
                target.map(|hop| {
                    let hop = snapshot.next_hop(hop);
                    (*hop, hop.gateway.map(|router| snapshot.link_address(hop.port, router)))
                })
            })
        };
        for place in 0..ROUTES {
            let to = prefix(place).address;
            assert!(hops(&self.snapshot, to) == hops(&at_once, to), "{to}");
        }
        for (place, set) in self.snapshot.sets() {
            assert!(at_once.set(place) == set && self.snapshot.set_sizes(place, 0).whole > 0);
            assert_eq!(self.snapshot.set_sizes(place, 0), at_once.set_sizes(place, 0));
        }
        for sa in self.snapshot.inbound() {
            let found = [&*self.snapshot, &at_once].map(|snapshot| snapshot.inbound_by_spi(sa.spi));
            assert!(found.iter().all(|found| found.is_some_and(|found| found.id == sa.id)));
        }
    }
}

/// A peer's set and its two SAs, with the keys of a turn.
fn put_peer(compiled: &mut Compiled, peer: u32, turn: u32) {
    let (set, id, numbers) = (SaSetId(peer), SaId(peer), SequenceNumbers::Short);
    let remote = Address::v4(0x0a40_0000 + peer * 7);
    let tunnel = Tunnel { local: [192, 0, 2, 1].into(), remote: remote.into() };
    let spi = |of: u32| Spi::new(0x1_0000 * turn + of).expect("not a reserved SPI");
    let key = KeyMaterial::new(Suite::Aes128Gcm, &[turn as u8; 20]).expect("as long as it is");
    let counter = Arc::new(SequenceCounter::new(numbers));
    let outbound = OutboundSa::new(id, spi(peer), set, &key, tunnel, counter);
    let window = Arc::new(ReplayWindow::new(64, numbers).expect("a good size"));
    let inbound = InboundSa::new(id, spi(0x8000 + peer), set, &key, tunnel, window);
    compiled.sad.put_outbound(Arc::new(outbound.expect("ends of one family")));
    if compiled.sad.places().get(set).is_none() {
        compiled.sad.put_set(SaSet {
            id: set,
            peer: format!("peer{peer}"),
            tunnel,
            outbound: vec![id],
            acquires: false,
            mss_clamp: true,
            may_move: false,
            moves_by_ike: false,
            keepalive_s: None,
            path_mtu: Some(dataplane::PathMtu::default()),
            outer: None,
        });
    }
    let inbound = inbound.expect("ends of one family");
    compiled.sad.remove_inbound(id);
    compiled.sad.put_inbound(Arc::new(inbound)).expect("an SPI of its own");
}

fn policy(number: u32) -> Policy {
    let network = |base: u32| AddressRange::network(Address::v4(base + number * 16), 28);
    Policy {
        id: PolicyId(number),
        name: format!("p{number}"),
        action: Action::Protect(SaSetId(number % PEERS)),
        priority: number % 1000,
        only: None,
        group: None,
        ingress: None,
        selector: Selector {
            local: vec![network(0x2000_0000)],
            remote: vec![network(0x0a40_0000)],
            protocol: None,
            upper: UpperSelector::Any,
        },
    }
}

fn router(number: u32) -> Address {
    Address::v4(0x0a01_0000 + number)
}

fn prefix(place: u32) -> Prefix {
    Prefix { address: Address::v4(0x0a40_0000 + place * 4), length: 30 }
}

fn neighbour(last: u8) -> NeighbourEntry {
    NeighbourEntry { mac: Some([2, 0, 0, 0, 0, last]), state: NeighbourState::Good, managed: false }
}

fn route(prefix: Prefix, gateway: Address) -> KernelRoute {
    KernelRoute {
        prefix,
        table: MAIN_TABLE,
        metric: 0,
        protocol: 4,
        kind: RouteKind::Unicast,
        hops: vec![Hop { link: LAN, gateway: Some(gateway), usability: Usability::Usable }],
        source: None,
        standing: RouteStatus::Followed,
    }
}

/// Two netdevs, 100 routers on one of them, and a network behind each route.
fn view() -> View {
    let link = |index: u32, name: &str| Link {
        index,
        name: name.into(),
        mac: [2, 0, 0, 0, 1, index as u8],
        mtu: 1500,
        admin_up: true,
        carrier: true,
        kind: LinkKind::Physical,
        ethernet: true,
        master: None,
        lower: None,
        queues: (1, 1),
    };
    let mut view = View::default();
    let links = [link(LAN, "eth1"), link(WAN, "eth0")];
    view.links = links.into_iter().map(|link| (link.index, link)).collect();
    view.addresses.insert((LAN, Address::v4(0x0a01_00fe), 24));
    view.addresses.insert((WAN, Address::v4(0xc000_0201), 24));
    (0..100).for_each(|number| _ = view.neighbours.insert((LAN, router(number)), neighbour(1)));
    for place in 0..ROUTES {
        view.add_route(route(prefix(place), router(place % 100)));
    }
    view
}

#[cfg(test)]
mod tests {
    use dataplane::RouteTarget;

    use super::*;

    #[test]
    fn every_row_follows_what_changed_and_what_is_published_is_right() {
        for (_, change) in ROWS {
            let mut gateway = Gateway::new();
            let before = gateway.snapshot.routes().lookup(prefix(ROUTES / 2).address);
            assert!(matches!(before, Some(RouteTarget::Via(_))));
            counted(&mut gateway, change);
            gateway.check();
        }
    }
}
