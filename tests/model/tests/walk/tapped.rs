//! The walk under a capture ≡ the walk without, and the capture tells the verdict of every packet.

use dataplane::tap::{Heading, Layer, Layers, Outcome};
use dataplane::{NetdevId, TapId, TapSettings, Verdict};
use proptest::prelude::*;

use crate::gateway::Gateway;
use crate::packets::{Arrival, Builder};
use crate::seeds::a_seed;
use crate::worlds::a_world;

const WORLDS: u32 = 250;
/// Packets of a world.
const SEEDS: usize = 60;

#[test]
fn a_capture_changes_neither_verdict_nor_output_nor_count() {
    // HA-22
    let settings = TapSettings {
        id: TapId(1),
        port: None,
        layers: Layers::Both,
        outcome: Outcome::Any,
        filter: None,
        snaplen: 96,
        packets: u64::MAX,
    };
    let seeds = prop::collection::vec(a_seed(), SEEDS);
    crate::check(WORLDS, (a_world(), seeds, 1..=64usize), |(world, seeds, size)| {
        let mut plain = Gateway::new(&world);
        // The same packets twice: numbers and windows are of each gateway's own SAs.
        let mut tapped = Gateway::new(&world).tapped(&settings);
        let mut builder = Builder::new(&world);
        let arrivals: Vec<Arrival> = seeds.iter().map(|seed| builder.build(seed)).collect();
        for netdev in 0..3 {
            let here = arrivals.iter().filter(|arrival| arrival.netdev.0 == netdev);
            let packets: Vec<&[u8]> = here.map(|arrival| &arrival.bytes[..]).collect();
            for batch in packets.chunks(size) {
                let netdev = NetdevId(netdev);
                let (expected, _) = plain.run(netdev, batch);
                let (observed, _) = tapped.run(netdev, batch);
                prop_assert_eq!(&observed, &expected);
                let received = |layer, heading| (layer, heading) == (Layer::Outer, Heading::In);
                let captured = tapped.captured();
                let seen = captured.iter().filter(|one| received(one.layer, one.heading));
                let mut seen: Vec<_> = seen.map(|one| text(one.verdict)).collect();
                let given = observed.verdicts[..batch.len()].iter();
                let mut given: Vec<_> = given.map(|verdict| text(Some(*verdict))).collect();
                seen.sort();
                given.sort();
                prop_assert_eq!(seen, given);
            }
        }
        for (one, other) in tapped.walks().iter().zip(plain.walks()) {
            prop_assert_eq!(one.counters(), other.counters());
        }
        Ok(())
    });
}

fn text(verdict: Option<Verdict>) -> String {
    format!("{verdict:?}")
}
