//! Replay protection over the whole walk ≡ the set of numbers seen.

use std::cell::Cell;
use std::collections::BTreeMap;

use dataplane::{DropReason, NetdevId, Verdict};
use ipsec::{SequenceNumbers, Suite};
use model::esp::{self, Freshness, Numbers, Text};
use model::world::World;
use proptest::prelude::*;
use proptest::sample::select;
use wire::build::PacketBuilder;
use wire::flow::protocol;

use crate::gateway::Gateway;
use crate::worlds::{LAN, WAN, a_plain_world, own_mac};

const STREAMS: u32 = 300;
/// Both peers send this many packets at most.
const LONGEST: usize = 200;

/// One packet of the stream: how far it is delayed, and how often it arrives.
#[derive(Clone, Copy, Debug)]
struct Passage {
    delays: [u64; 3],
    copies: usize,
}

#[test]
fn a_stream_that_is_duplicated_thinned_and_permuted_is_delivered_once() {
    let delivered_in_all = Cell::new(0);
    let refused_in_all = Cell::new(0);
    let delay = || prop_oneof![3 => Just(0u64), 2 => 0..31u64, 1 => 0..70u64, 1 => 0..5000u64];
    let passage = ([delay(), delay(), delay()], select(&[1usize, 1, 1, 1, 0, 2, 3][..]))
        .prop_map(|(delays, copies)| Passage { delays, copies });
    let sent = || prop::collection::vec(passage.clone(), 1..LONGEST);
    let window = select(&[32u32, 64, 96, 1024, 4096][..]);
    // From the start, over 2³² with extended numbers, up to the last short one.
    let numbering = prop_oneof![
        2 => Just((SequenceNumbers::Short, 1u64)),
        1 => Just((SequenceNumbers::Extended, 1)),
        2 => Just((SequenceNumbers::Extended, (1 << 32) - 90)),
        1 => Just((SequenceNumbers::Short, (1 << 32) - LONGEST as u64)),
    ];
    let sizes = prop::collection::vec(1..=64usize, 1..10);
    let suite = select(&[Suite::Aes128Gcm, Suite::Aes128CbcSha256, Suite::NullSha512][..]);
    let strategy = ([sent(), sent()], suite, window, numbering, sizes);
    crate::check(STREAMS, strategy, |(streams, suite, window, (numbers, first), sizes)| {
        let world = a_plain_world(suite, window, numbers);
        let mut arrivals = arrivals(&streams, first);
        let mut gateway = Gateway::new(&world);
        let mut seen = [Numbers::default(), Numbers::default()];
        // The first packet of each peer comes first and alone, so that the window is where the
        // stream begins.
        for peer in [1, 0] {
            arrivals.retain(|arrival| *arrival != (peer, first));
            arrivals.insert(0, (peer, first));
        }
        let mut delivered: BTreeMap<(usize, u64), usize> = BTreeMap::new();
        let mut sizes = [1, 1].iter().chain(sizes.iter().cycle());
        while !arrivals.is_empty() {
            let size = (*sizes.next().unwrap()).min(arrivals.len());
            let batch: Vec<(usize, u64)> = arrivals.drain(..size).collect();
            let frames: Vec<Vec<u8>> = batch.iter().map(|a| frame(&world, *a)).collect();
            let frames: Vec<&[u8]> = frames.iter().map(|frame| &frame[..]).collect();
            let (observed, _) = gateway.run(NetdevId(1), &frames);
            for (&(peer, number), verdict) in batch.iter().zip(&observed.verdicts) {
                let (forward, replayed, too_old) = (
                    Verdict::Forward(LAN),
                    Verdict::Drop(DropReason::Replayed),
                    Verdict::Drop(DropReason::TooOld),
                );
                let freshness = seen[peer].judge(number, window);
                // What is both may be called either: the rest of the batch moves the window on. An
                // extended number that is too old is taken for one 2³² ahead (RFC 4303 §A2.2).
                let is_both = freshness == Freshness::TooOld && seen[peer].was_accepted(number);
                let is_ahead = numbers == SequenceNumbers::Extended
                    && *verdict == Verdict::Drop(DropReason::Integrity);
                let is_right = match freshness {
                    Freshness::Fresh => *verdict == forward,
                    Freshness::Replayed => *verdict == replayed,
                    Freshness::TooOld => {
                        *verdict == too_old || is_ahead || is_both && *verdict == replayed
                    }
                };
                prop_assert!(is_right, "{} of peer {}: {:?}", number, peer, verdict);
                match freshness {
                    Freshness::Fresh => seen[peer].accept(number),
                    Freshness::Replayed | Freshness::TooOld => {
                        refused_in_all.set(refused_in_all.get() + 1);
                    }
                }
            }
            for emission in &observed.emissions {
                *delivered.entry(mark(&emission.packet)).or_default() += 1;
            }
        }
        for (packet, times) in &delivered {
            prop_assert_eq!(*times, 1, "packet {:?}", packet);
            prop_assert!(seen[packet.0].was_accepted(packet.1));
        }
        delivered_in_all.set(delivered_in_all.get() + delivered.len());
        Ok(())
    });
    let (delivered, refused) = (delivered_in_all.get(), refused_in_all.get());
    println!("{delivered} packets delivered, {refused} refused");
    assert!(delivered > 0 && refused > 0);
}

/// Lists sender and number of each packet, in the order of arrival.
fn arrivals(streams: &[Vec<Passage>; 2], first: u64) -> Vec<(usize, u64)> {
    let mut list: Vec<(u64, usize, u64)> = vec![];
    for (peer, stream) in streams.iter().enumerate() {
        for (number, passage) in (first..).zip(stream) {
            for delay in &passage.delays[..passage.copies] {
                list.push((number + delay, peer, number));
            }
        }
    }
    list.sort_by_key(|(time, ..)| *time);
    list.into_iter().map(|(_, peer, number)| (peer, number)).collect()
}

/// A packet that says who sent it and which it is.
fn frame(world: &World, (peer, number): (usize, u64)) -> Vec<u8> {
    let payload = [&(peer as u64).to_be_bytes()[..], &number.to_be_bytes()].concat();
    let source = ["10.2.0.1", "10.3.0.1"][peer];
    let inner = PacketBuilder::v4(source, "10.1.0.10").udp(7, 8).payload(&payload).ip();
    let keys = &world.peers[peer].inbound[0];
    let sealed = esp::seal(keys, number, &Text::around(&inner, protocol::IPV4, keys.suite));
    let tunnel = world.peers[peer].tunnel();
    PacketBuilder::new(tunnel.remote.into(), tunnel.local.into())
        .protocol(protocol::ESP)
        .payload(&sealed)
        .frame(own_mac(WAN), [2, 0, 0, 0, 1, 1], None)
}

/// Returns the peer and the number that [`frame`] wrote into a packet.
fn mark(packet: &[u8]) -> (usize, u64) {
    let number = |at: usize| u64::from_be_bytes(packet[at..at + 8].try_into().unwrap());
    (number(28) as usize, number(36))
}
