//! SAs with hard limits: exactly as much passes as they allow, on the fast path and on the general
//! one.

use std::sync::Arc;

use dataplane::Verdict::{self, Consumed, Drop, Forward, Protect};
use dataplane::{DropReason, FastPathUse, SetIndex};
use ipsec::suite::Encryption;
use ipsec::{
    Account, Allowance, Lifetime, Limit, Limits, Mode, SequenceCounter, SequenceNumbers, Suite,
    UdpPorts,
};
use packets::lab::{BERLIN, CARLA, DORA, HOST, Hub, LAN, Laboratory, WAN, numbered, policy};
use packets::table::{forwarded, run};
use packets::{In, Out, Row};
use policy::Action;
use proptest::prelude::*;
use proptest::sample::select;
use wire::Family::{self, V4, V6};
use wire::build::PacketBuilder;

use crate::{FAMILIES, between, datagram};

const PEERS: [(SetIndex, u32); 3] = [(BERLIN, 2), (CARLA, 3), (DORA, 4)];
const USES: [FastPathUse; 2] = [FastPathUse::Eager, FastPathUse::Never];
const REFUSED: Verdict = Drop(DropReason::SaHardLimit);

#[test]
fn limits() {
    run(&rows());
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = vec![];
    for family in FAMILIES {
        let (out, back) = (datagram(family, 1, 2).ip(), datagram(family, 2, 1).ip());
        let leaves = Out::Sealed(BERLIN, forwarded(&out));
        let arrives = Out::Clear(LAN, forwarded(&back));
        let (out, back) = (In::Clear(LAN, out), In::Sealed(BERLIN, back));
        let one: fn(&mut Hub) = |hub| _ = hub.limit(BERLIN, packets(1));
        let none: fn(&mut Hub) = |hub| _ = hub.limit(BERLIN, packets(0));
        let ended: fn(&mut Hub) =
            |hub| hub.limit(BERLIN, Limits::NONE).iter().for_each(|a| a.end(Limit::Seconds));
        let limit = DropReason::SaHardLimit;
        rows.extend([
            Row::passes("the last packet to seal", out.clone(), leaves).with(one),
            Row::drops("one more", out.clone(), limit).with(one).after(out.clone()),
            Row::drops("none to seal", out.clone(), limit).with(none),
            Row::drops("an SA that has ended seals none", out, limit).with(ended),
            Row::passes("the last packet to open", back.clone(), arrives).with(one),
            Row::drops("one more to open", back.clone(), limit).with(one).after(back.clone()),
            Row::drops("none to open", back.clone(), limit).with(none),
            Row::drops("an SA that has ended opens none", back, limit).with(ended),
        ]);
    }
    rows
}

fn packets(most: u64) -> Limits {
    Limits { packets: Some(most), ..Limits::NONE }
}

fn bytes(most: u64) -> Limits {
    Limits { bytes: Some(most), ..Limits::NONE }
}

/// RFC 4303 §2.4: payload, padding, pad length and next header.
fn text_bytes(payload: usize, suite: Suite) -> u64 {
    let multiple = if suite.encryption() == Encryption::Cbc { 16 } else { 4 };
    (payload + 2).next_multiple_of(multiple) as u64
}

/// The way of packets through the tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    There,
    Back,
}

impl Way {
    const ALL: [Way; 2] = [Way::There, Way::Back];

    fn account(self, accounts: &[Arc<Account>; 2]) -> &Account {
        &accounts[self as usize]
    }

    /// Inner packets of these payloads, with their bytes.
    fn inner(self, family: Family, network: u32, payloads: &[usize]) -> Vec<Vec<u8>> {
        let (from, to) = match self {
            Way::There => (1, network),
            Way::Back => (network, 1),
        };
        let packet =
            |payload: &usize| between(family, from, to).udp(1, 2).payload_of(*payload).ip();
        payloads.iter().map(packet).collect()
    }

    /// Lets inner packets arrive, in batches; returns how many passed first. All others are
    /// dropped at the limit, and what left is what came in.
    fn pass(self, lab: &mut Laboratory, set: SetIndex, inner: &[Vec<u8>]) -> usize {
        let outcome = match self {
            Way::There => lab.send_all(LAN, inner),
            Way::Back => {
                let sealed: Vec<_> =
                    inner.iter().map(|packet| lab.peer(set).seal(packet)).collect();
                lab.send_all(WAN, &sealed)
            }
        };
        let passed = match self {
            Way::There => Protect(set),
            Way::Back => Forward(LAN),
        };
        let count = outcome.verdicts.iter().take_while(|verdict| **verdict == passed).count();
        let behind = &outcome.verdicts[count..];
        assert!(behind.iter().all(|verdict| *verdict == REFUSED), "{self:?} {behind:?}");
        assert_eq!(outcome.sent.len(), count, "{self:?}");
        for (sent, packet) in outcome.sent.iter().zip(inner) {
            let left = match self {
                Way::There => lab.peer(set).open(&sent.packet).expect("sealed").inner,
                Way::Back => sent.packet.clone(),
            };
            assert_eq!(left, forwarded(packet), "{self:?}");
        }
        count
    }
}

fn use_of(account: &Account) -> (u64, u64) {
    let used = account.used(0);
    (used.packets, used.bytes)
}

/// Batches that lie within the limit, straddle it, and lie beyond it.
#[test]
fn exactly_as_many_packets_pass_as_the_limit_allows() {
    for (use_, (set, network)) in USES.into_iter().flat_map(|use_| PEERS.map(|peer| (use_, peer))) {
        for (family, way) in FAMILIES.into_iter().flat_map(|f| Way::ALL.map(|way| (f, way))) {
            for limit in [0, 1, 63, 64, 65, 100, 128, 129, 130, 131] {
                let mut hub = Hub::default();
                let accounts = hub.limit(set, packets(limit));
                let mut lab = hub.laboratory().with_fast_path(use_);
                let inner = way.inner(family, network, &[33; 130]);
                let passed = way.pass(&mut lab, set, &inner);
                assert_eq!(passed as u64, limit.min(130), "{use_:?} {family:?} {way:?}");
                let count = limit.min(130);
                let text = text_bytes(inner[0].len(), Suite::Aes128Gcm);
                assert_eq!(use_of(way.account(&accounts)), (count, count * text));
                let dropped = lab.counters().dropped(DropReason::SaHardLimit);
                assert_eq!(dropped, 130 - count);
                let is_fast = lab.counters().fast_path > 0;
                let goes_fast = use_ == FastPathUse::Eager && (limit > 0 || way == Way::There);
                assert_eq!(is_fast, goes_fast, "{way:?} {limit}");
            }
        }
    }
}

proptest! {
    /// Oracle: the sum of what the cipher processes, padding by the book.
    #[test]
    fn bytes_pass_up_to_the_limit_with_padding_and_the_first_beyond_it_ends_the_sa(
        use_ in select(&USES[..]),
        (suite, udp) in (select(Suite::ALL), any::<bool>()),
        (set, network) in select(&[(BERLIN, 2), (DORA, 4)][..]),
        (family, way) in (select(&FAMILIES[..]), select(&Way::ALL[..])),
        payloads in prop::collection::vec(0usize..1300, 1..150),
        last in any::<prop::sample::Index>(),
        off in -1i64..=1,
        most_packets in prop::option::weighted(0.2, 0u64..200),
    ) {
        let inner = way.inner(family, network, &payloads);
        let texts: Vec<u64> = inner.iter().map(|packet| text_bytes(packet.len(), suite)).collect();
        let up_to_last: u64 = texts[..=last.index(texts.len())].iter().sum();
        let limit = up_to_last.saturating_add_signed(off);
        let mut hub = Hub::default();
        hub.agree(set, |agreement| {
            agreement.suite = suite;
            agreement.udp = udp.then_some(UdpPorts { local: 4500, remote: 61_234 });
        });
        let hard = Limits { packets: most_packets, ..bytes(limit) };
        let accounts = hub.limit(set, hard);
        let mut lab = hub.laboratory().with_fast_path(use_);

        let (mut count, mut sum) = (0, 0);
        for text in &texts {
            if sum + text > limit || most_packets == Some(count) {
                break;
            }
            (count, sum) = (count + 1, sum + text);
        }
        prop_assert_eq!(way.pass(&mut lab, set, &inner) as u64, count);
        prop_assert_eq!(use_of(way.account(&accounts)), (count, sum));
    }
}

/// Both paths, with numbers missing as well: what has no number is given back.
#[test]
fn packets_without_a_number_use_nothing_up() {
    for use_ in USES {
        let mut hub = Hub::default();
        let [account, _] = hub.limit(BERLIN, packets(70));
        let sa = &hub.parts.outbound[0];
        let tunnel = hub.agreements[0].encapsulation();
        let material = hub.agreements[0].material_from_hub();
        let last = Box::leak(Box::default());
        let counter = Arc::new(SequenceCounter::shared(last, 10, SequenceNumbers::Short));
        let made =
            ipsec::OutboundSa::new(sa.id, sa.spi, sa.set, &material, tunnel, counter.clone());
        let made = made.unwrap().within(sa.allowance.clone());
        hub.parts.outbound[0] = Arc::new(made);
        let mut lab = hub.laboratory().with_fast_path(use_);
        let packet = datagram(V4, 1, 2).ip();
        let text = text_bytes(packet.len(), Suite::Aes128Gcm);
        let count = |verdicts: &[Verdict], verdict| {
            verdicts.iter().filter(|other| **other == verdict).count()
        };
        let unreserved = Drop(DropReason::SequenceNotReserved);
        let outcome = lab.send_all(LAN, &vec![&packet; 64]);
        assert_eq!(count(&outcome.verdicts, Protect(BERLIN)), 10, "{use_:?}");
        assert_eq!(count(&outcome.verdicts, unreserved), 54);
        assert_eq!(use_of(&account), (10, 10 * text));
        counter.reserve(1000);
        let outcome = lab.send_all(LAN, &vec![&packet; 64]);
        assert_eq!(count(&outcome.verdicts, Protect(BERLIN)), 60);
        assert_eq!(outcome.verdicts[60..], [REFUSED; 4]);
        assert_eq!(use_of(&account), (70, 70 * text));
        assert_eq!(counter.last(), 70, "numbers are drawn for what the limit allows");
    }
}

/// Berlin in transport mode, which carries packets between the two ends only.
#[test]
fn packets_that_the_sa_cannot_carry_use_nothing_up() {
    let mut hub = Hub::default();
    hub.agree(BERLIN, |agreement| agreement.mode = Mode::Transport);
    let protect = Action::Protect(hub.agreements[0].set);
    hub.policies.push(policy("own", 300, protect, &["192.0.2.1"], &["198.51.100.7"]));
    hub.policies = numbered(std::mem::take(&mut hub.policies));
    let [account, _] = hub.limit(BERLIN, packets(2));
    let mut lab = hub.laboratory();
    let fits = PacketBuilder::between("192.0.2.1", "198.51.100.7").udp(5, 6).payload_of(33).ip();
    let other = PacketBuilder::between("192.0.2.1", "198.51.100.7").protocol(59).ip();
    let unfit = Drop(DropReason::TransportMode);
    let outcome = lab.send_all(HOST, &[&other, &fits, &other]);
    // Two of the batch were allowed; the third is at the limit until the first is given back.
    assert_eq!(outcome.verdicts, [unfit, Protect(BERLIN), REFUSED]);
    let text = text_bytes(fits.len() - 20, Suite::Aes128Gcm);
    assert_eq!(use_of(&account), (1, text));
    let outcome = lab.send_all(HOST, &[&fits, &fits]);
    assert_eq!(outcome.verdicts, [Protect(BERLIN), REFUSED]);
    assert_eq!(use_of(&account), (2, 2 * text));
}

#[test]
fn each_fragment_that_is_sealed_is_a_packet() {
    for use_ in USES {
        let mut hub = Hub::default();
        let [account, _] = hub.limit(BERLIN, packets(3));
        let mut lab = hub.laboratory().with_fast_path(use_);
        let large = between(V4, 1, 2).udp(1, 2).payload_of(1470).ip();
        let outcome = lab.send_all(LAN, &[&large, &large]);
        let sealed = Protect(BERLIN);
        assert_eq!(outcome.verdicts, [Consumed, Consumed, sealed, sealed, sealed, REFUSED]);
        assert_eq!((outcome.sent.len(), account.used(0).packets), (3, 3));
    }
}

#[test]
fn only_authentic_packets_of_new_numbers_use_an_inbound_sa_up() {
    for (use_, family) in USES.into_iter().flat_map(|use_| FAMILIES.map(|family| (use_, family))) {
        let mut hub = Hub::default();
        let [_, account] = hub.limit(BERLIN, packets(2));
        let mut lab = hub.laboratory().with_fast_path(use_);
        let inner = datagram(family, 2, 1).ip();
        let mut seal = |number| lab.peer(BERLIN).seal_as(number, &inner);
        let [first, second, third] = [1, 2, 3].map(&mut seal);
        let mut forged = seal(4);
        *forged.last_mut().unwrap() ^= 1;
        let (wrong, again) = (Drop(DropReason::Integrity), Drop(DropReason::Replayed));
        let passes = Forward(LAN);
        let outcome = lab.send_all(WAN, &[&forged, &first, &first, &forged, &second, &third]);
        assert_eq!(outcome.verdicts, [wrong, passes, again, wrong, passes, REFUSED], "{use_:?}");
        let text = text_bytes(inner.len(), Suite::Aes128Gcm);
        assert_eq!(use_of(&account), (2, 2 * text));
        // Nothing is deciphered any more.
        assert_eq!(lab.send_all(WAN, &[&forged, &forged]).verdicts, [REFUSED; 2]);
    }
}

/// The SAs of the laboratory with the same accounts and another limit for berlin's.
fn limited_anew(lab: &Laboratory, most: u64) -> Hub {
    let mut hub = Hub::default().keeping_sas_of(&lab.snapshot);
    let lifetime = Lifetime { hard: packets(most), ..Lifetime::NONE };
    let allowance = |before: &Option<Allowance>| {
        before.as_ref().map(|before| Allowance { lifetime, account: before.account.clone() })
    };
    let (there, back) = (hub.parts.outbound[0].clone(), hub.parts.inbound[0].clone());
    let limited = there.at(there.id, there.set).within(allowance(&there.allowance));
    hub.parts.outbound[0] = Arc::new(limited);
    let limited = back.at(back.id, back.set).within(allowance(&back.allowance));
    hub.parts.inbound[0] = Arc::new(limited);
    hub
}

/// Limits that change: what was used stays used.
#[test]
fn a_limit_that_is_raised_lets_the_difference_pass() {
    for (use_, way) in USES.into_iter().flat_map(|use_| Way::ALL.map(|way| (use_, way))) {
        let mut hub = Hub::default();
        hub.limit(BERLIN, packets(5));
        let mut lab = hub.laboratory().with_fast_path(use_);
        let inner = way.inner(V6, 2, &[40; 8]);
        assert_eq!(way.pass(&mut lab, BERLIN, &inner), 5);
        lab.publish(limited_anew(&lab, 4));
        assert_eq!(way.pass(&mut lab, BERLIN, &inner), 0);
        lab.publish(limited_anew(&lab, 7));
        assert_eq!(way.pass(&mut lab, BERLIN, &inner), 2);
    }
}
