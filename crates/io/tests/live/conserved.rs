//! Frames are conserved: at any time, whatever number of packets has gone through.

use bpf::traffic::Generator;
use io::XdpFrames;
use wire::frame::{Frames, Port};
use xsk::Umem;

use crate::place::{Link, in_namespace, index, packet, received, run, wait_until};

/// Packets of a test that all runs make, and of the one that is long (AX-05).
const SOME: u64 = 100_000;
const MANY: u64 = 10_000_000;
/// Names another number for the long one.
const VARIABLE: &str = "LOCKGATE_FRAMES";
/// Packets sent at once: fewer than the fill ring has frames.
const BURST: u32 = 64;
/// Packets taken at once: fewer, so that rings are never empty or full at a look.
const BATCH: usize = 48;
/// Offset of the ports in a frame.
const PORTS_AT: usize = 34;

/// Forwards so many packets from one link to another, and looks at the frames after each step.
fn conserved_over(test: &str, count: u64) {
    in_namespace(test, move || {
        let links = [Link::new("va", 1, 1), Link::new("vb", 2, 1)];
        let mut frames = XdpFrames::new(Umem::new(512).unwrap());
        let [mut left, mut right] = links.each_ref().map(|link| link.port(&mut frames, &[0]));
        let generator = Generator::load(&packet(0, 0), PORTS_AT, 64).unwrap();
        run("ip link add ha type veth peer name hb");
        let _held = generator.hold(index("ha")).unwrap();
        let (source, before) = (index("va1"), received("vb1"));
        let (mut packets, mut came, mut gone) = (Vec::new(), 0, 0);
        while came < count {
            generator.send(source, BURST).unwrap();
            let mut is_more = true;
            while is_more {
                let mut batch = Vec::new();
                is_more = left.receive(&mut frames, BATCH, &mut batch) > 0;
                came += batch.len() as u64;
                packets.extend(batch.iter().map(|received| received.packet));
                look(&frames, packets.len(), came);
                let taken = right.transmit(&mut frames, &packets);
                gone += taken as u64;
                packets.drain(..taken);
                right.push(&mut frames);
                look(&frames, packets.len(), came);
            }
        }
        packets.drain(..).for_each(|packet| frames.give(packet.frame));
        wait_until("what was sent has left", || right.push(&mut frames) == 0);
        wait_until("it has arrived", || received("vb1") - before == gone);
        look(&frames, 0, came);
        links.iter().for_each(|link| link.forget(0));
        let [left, right] = [left, right].map(|port| port.close(&mut frames));
        assert_eq!((left[0].foreign, right[0].foreign), (0, 0));
        wait_until("all are free", || {
            xsk::release_quarantined(&[frames.umem().area().clone()]);
            frames.umem_mut().reclaim();
            frames.census().free == frames.census().total
        });
        println!("{came} packets came, {gone} were sent on; {:?}", frames.census());
    });
}

/// Free, outside, in fill and rx rings, in tx and completion rings: all of them together are there.
fn look(frames: &XdpFrames, outside: usize, came: u64) {
    let census = frames.census();
    assert_eq!((census.imbalance(), census.outside), (0, outside), "{came}: {census:?}");
    assert_eq!(census.quarantined, 0, "{came}: {census:?}");
}

#[test]
fn frames_are_conserved_after_every_step_of_a_hundred_thousand_packets() {
    // AX-05
    conserved_over("frames are conserved", SOME);
}

#[test]
#[ignore = "make test-long PART=frames: LOCKGATE_FRAMES names another number than 10,000,000"]
fn frames_are_conserved_after_every_step_of_ten_million_packets() {
    // AX-05
    let named = std::env::var(VARIABLE).ok().map(|text| text.parse().expect("a number"));
    conserved_over("frames are conserved over many", named.unwrap_or(MANY));
}
