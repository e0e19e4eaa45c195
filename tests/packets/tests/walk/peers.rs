//! Peers of the laboratory, and the SAs between them and the gateway.

use dataplane::Verdict::{Forward, Protect};
use packets::lab::{BERLIN, CARLA, DORA, HOST_MAC, LAN, Laboratory, WAN, host};
use packets::table::forwarded;
use wire::build::PacketBuilder;

use crate::FAMILIES;

#[test]
fn what_a_peer_seals_it_cannot_open_but_the_gateway_can_and_back() {
    for family in FAMILIES {
        for (set, network) in [(BERLIN, 2), (CARLA, 3), (DORA, 4)] {
            let mut lab = Laboratory::default();
            let there = PacketBuilder::new(host(family, 1), host(family, network)).udp(7, 8);
            let there = there.payload_of(19).ip();
            let outcome = lab.send(LAN, &there);
            assert_eq!(outcome.verdicts, [Protect(set)]);
            let opened = lab.peer(set).open(&outcome.sent[0].packet).expect("opens");
            assert_eq!(opened.inner, forwarded(&there));

            let back = PacketBuilder::new(host(family, network), host(family, 1)).udp(8, 7);
            let back = back.payload_of(20).ip();
            let sealed = lab.peer(set).seal(&back);
            assert_eq!(lab.peer(set).open(&sealed), None);
            let outcome = lab.send(WAN, &sealed);
            assert_eq!(outcome.verdicts, [Forward(LAN)]);
            assert_eq!(outcome.sent[0].packet, forwarded(&back));
            assert_eq!(outcome.sent[0].to, Some(HOST_MAC));
        }
    }
}
