//! SPIs that are reserved: workers, peers, and the shares of remote ends.

use std::net::SocketAddr;

use control::{
    KeyManager, MAX_RESERVED, OpeningWorker, PutSa, RESERVED_NS, ReservedSpis, SpiRequest,
};
use ipsec::Spi;
use keystate::KeyOrigin;
use policy::Direction::{Inbound, Outbound};

use super::gateway::{Gateway, of, peer, peers, sa};

#[test]
fn a_reserved_spi_holds_the_worker_that_will_open_and_is_its_peers_alone_for_300_s() {
    let mut gateway = Gateway::new(&peers());
    let mut reserved = ReservedSpis::default();
    let take = |reserved: &mut ReservedSpis, gateway: &Gateway, peer: &str| {
        let request = SpiRequest { peer: peer.into(), manager: KeyManager::Api, remote: None };
        reserved.reserve(&gateway.compiled, &request, 3, gateway.now_ns)
    };
    let mut seen = Vec::new();
    for n in 0..12 {
        let (spi, worker) = take(&mut reserved, &gateway, "a").unwrap();
        assert_eq!((spi.value() & 0xff, worker.worker, worker.workers), (n % 3, n % 3, 3));
        assert!(!seen.contains(&spi));
        seen.push(spi);
    }
    let mut others =
        vec![sa(Inbound, 700, 1), of("b", PutSa { spi: seen[4], ..sa(Inbound, 0x100, 2) })];
    let refused = reserved.assign(&mut others, gateway.now_ns).unwrap_err();
    assert_eq!((refused.place, refused.why.word()), (1, "spi_taken"), "{refused}");
    // Outbound SPIs are the peers' numbers.
    let mut ours = vec![
        PutSa { spi: seen[4], ..sa(Inbound, 0x100, 3) },
        PutSa { spi: seen[5], ..sa(Outbound, 0x100, 4) },
    ];
    reserved.assign(&mut ours, gateway.now_ns).unwrap();
    assert_eq!(ours[0].worker, Some(OpeningWorker { worker: 1, workers: 3 }));
    assert_eq!(ours[1].worker, None);
    let plan = gateway.compiled.plan_put(ours).unwrap();
    assert!(plan.inbound_spis().eq([seen[4]]));
    reserved.end(plan.inbound_spis());
    let proofs = gateway.keys.use_all_once(&plan.fingerprints(), KeyOrigin::NamedRun).unwrap();
    let changed = gateway.compiled.with_put(plan, proofs, gateway.now_ns).unwrap();
    gateway.go_over(changed);
    assert_eq!(gateway.snapshot.inbound_by_spi(seen[4]).unwrap().id.0 % 3, 1);
    gateway.now_ns += RESERVED_NS;
    let mut late = vec![of("b", PutSa { spi: seen[0], ..sa(Inbound, 0x100, 5) })];
    reserved.assign(&mut late, gateway.now_ns).unwrap();
    assert_eq!(late[0].worker, None);
    let unknown = take(&mut reserved, &gateway, "c").unwrap_err();
    assert!(unknown.to_string().contains("no peer \"c\""), "{unknown}");
    let of_file = take(&mut reserved, &gateway, "f").unwrap_err();
    assert!(of_file.to_string().contains("keys = \"api\""), "{of_file}");
}

/// A table of reserved SPIs of a gateway whose peer ike has its SAs from charon.
struct Table {
    gateway: Gateway,
    reserved: ReservedSpis,
}

impl Table {
    fn new() -> Table {
        let gateway = Gateway::new(&peer("ike", "198.51.100.1", "keys = \"ike\""));
        Table { gateway, reserved: ReservedSpis::default() }
    }

    fn reserve(&mut self, remote: &str) -> Spi {
        let remote: SocketAddr = remote.parse().unwrap();
        let (peer, manager) = ("ike".into(), KeyManager::Ike);
        let request = SpiRequest { peer, manager, remote: Some(remote) };
        let now_ns = self.gateway.now_ns;
        self.reserved.reserve(&self.gateway.compiled, &request, 1, now_ns).unwrap().0
    }

    /// Releases an SPI; returns whether the SPI was still reserved for the remote address.
    fn release(&mut self, spi: Spi, remote: &str) -> bool {
        self.reserved.release(spi, KeyManager::Ike, remote.parse().unwrap())
    }
}

#[test]
fn a_released_spi_is_reserved_no_more_and_only_its_own_end_and_manager_release_it() {
    let mut table = Table::new();
    let spi = table.reserve("198.51.100.1:500");
    assert!(!table.release(spi, "198.51.100.2"), "another end");
    let api = table.reserved.release(spi, KeyManager::Api, "198.51.100.1".parse().unwrap());
    assert!(!api, "another key manager");
    assert!(table.release(spi, "198.51.100.1"));
    assert!(!table.release(spi, "198.51.100.1"), "twice");
}

#[test]
fn one_end_takes_all_spis_and_fifty_others_behind_one_nat_still_get_theirs() {
    let (greedy, nat) = ("198.51.100.1:500", "203.0.113.7");
    let mut table = Table::new();
    let all: Vec<Spi> = (0..MAX_RESERVED).map(|_| table.reserve(greedy)).collect();
    let behind = |port: u16| format!("{nat}:{port}");
    let fifty: Vec<Spi> = (1..=50).map(|port| table.reserve(&behind(port))).collect();
    // One of the fifty wants all of its address's share.
    for _ in 0..MAX_RESERVED / 2 + 100 {
        table.reserve(&behind(1));
        table.reserve(greedy);
    }
    assert!(!table.release(all[0], "198.51.100.1"), "the oldest of the longest share gave way");
    let kept = fifty[1..].iter().filter(|spi| table.release(**spi, nat)).count();
    assert_eq!(kept, 49);
    assert!(!table.release(fifty[0], nat), "the greedy port lost its own");
}

#[test]
fn an_idle_table_is_one_ends_alone_and_its_reservations_end_after_300_s() {
    let mut table = Table::new();
    let first = table.reserve("[2001:db8::1]:500");
    let mut last = first;
    for host in 1..MAX_RESERVED {
        last = table.reserve(&format!("[2001:db8::{host:x}]:500"));
    }
    let one_more = table.reserve("[2001:db8::ffff]:500");
    assert!(!table.release(first, "2001:db8::"), "one /64 is one end");
    assert!(table.release(last, "2001:db8::") && table.release(one_more, "2001:db8::"));
    table.gateway.now_ns += RESERVED_NS;
    let anew = table.reserve("198.51.100.1:500");
    assert!(table.release(anew, "198.51.100.1"));
}
