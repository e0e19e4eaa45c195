//! SAs that a card carries: what it is asked for, what software then has of them, and when they go.

use config::SaOffload;
use control::{CardUse, PutSa};
use ipsec::{CardSeat, CardWork, SequenceError};
use keystate::KeyOrigin;
use offload::{
    CardSa, Numbers, OuterDontFragment, OuterDscp, OuterEcn, OuterFields, SaDirection, SaMode,
    Service,
};
use policy::Direction::{Inbound, Outbound};

use crate::gateway::{Gateway, between_gateways, peer, sa};

const CARD: &str = "[card.nic0]\nkind = \"emulated\"\nsocket = \"/c\"\nports = [\"wan\"]\n";

/// Peer `a` with an offload and further lines.
fn carried(offload: &str, more: &str) -> String {
    let more = format!("keys = \"api\"\noffload = \"{offload}\"\n{more}");
    CARD.to_owned() + &peer("a", "198.51.100.1", &more)
}

/// Cards' words for SAs to put.
fn wishes(gateway: &Gateway, asked: Vec<PutSa>) -> Vec<CardSa> {
    let plan = gateway.compiled.plan_put(asked).unwrap();
    plan.card_wishes(&gateway.compiled).into_iter().map(|wish| wish.sa).collect()
}

/// Puts SAs of which cards have taken all that they may.
fn put_in_card(gateway: &mut Gateway, asked: Vec<PutSa>) -> Vec<CardSeat> {
    let mut plan = gateway.compiled.plan_put(asked).unwrap();
    let mut seats = Vec::new();
    for wish in plan.card_wishes(&gateway.compiled) {
        let work = match wish.sa.service {
            Service::Packet => CardWork::Packets,
            Service::Crypto => CardWork::Cipher,
        };
        let carrier = ipsec::SeatCarrier::Worker;
        let seat = CardSeat { netdev: 1, tag: u64::from(wish.sa.spi), work, carrier };
        plan.seat(wish.number, seat);
        seats.push(seat);
    }
    let proofs = gateway.keys.use_all_once(&plan.fingerprints(), KeyOrigin::NamedRun).unwrap();
    let changed = gateway.compiled.with_put(plan, proofs, gateway.now_ns).unwrap();
    gateway.go_over(changed);
    seats
}

#[test]
fn a_card_is_asked_for_exactly_what_software_would_do() {
    let more = "esn = true\nreplay_window = 64\nencapsulation = \"udp\"\nremote_port = 4501\n\
                dscp = 10\ndf = \"clear\"\n[peer.a.lifetime]\nsoft_packets = 5\nhard_packets = 9\n\
                hard_bytes = 9000";
    let gateway = Gateway::new(&carried("packet", more));
    let both = wishes(&gateway, vec![sa(Outbound, 500, 1), sa(Inbound, 600, 2)]);
    let [out, inbound] = &both[..] else { panic!("{} wishes", both.len()) };
    assert_eq!((out.direction, inbound.direction), (SaDirection::Out, SaDirection::In));
    assert_eq!((out.spi, inbound.spi), (500, 600));
    let ends = |sa: &CardSa| [sa.ends.source.to_string(), sa.ends.destination.to_string()];
    assert_eq!(ends(out), ["192.0.2.1", "198.51.100.1"]);
    assert_eq!(ends(inbound), ["198.51.100.1", "192.0.2.1"]);
    let ports = |sa: &CardSa| sa.udp.map(|udp| (udp.source, udp.destination));
    assert_eq!((ports(out), ports(inbound)), (Some((4500, 4501)), Some((4501, 4500))));
    let fields = OuterFields::Exactly {
        hop_limit: 64,
        dscp: OuterDscp::Fixed(10),
        ecn: OuterEcn::Rfc6040,
        dont_fragment: OuterDontFragment::Clear,
    };
    assert_eq!((out.mode, inbound.mode), (SaMode::Tunnel(fields), SaMode::Tunnel(fields)));
    assert_eq!((out.numbers, out.first_number), (Numbers::Extended, 1));
    assert_eq!((out.window, inbound.window), (0, 64));
    assert_eq!((out.suite.as_ref(), out.icv_bytes, out.key.length()), ("aes-128-gcm", 16, 20));
    for sa in &both {
        let limits = sa.limits;
        assert_eq!((limits.soft_packets, limits.hard_packets), (Some(5), Some(9)));
        assert_eq!((limits.soft_bytes, limits.hard_bytes), (None, Some(9000)));
    }
}

#[test]
fn without_a_limit_all_numbers_are_the_lease_and_an_sa_that_opens_has_none() {
    for (esn, most) in [("false", u64::from(u32::MAX)), ("true", u64::MAX - 1)] {
        let gateway = Gateway::new(&carried("packet", &format!("esn = {esn}")));
        let both = wishes(&gateway, vec![sa(Outbound, 500, 1), sa(Inbound, 600, 2)]);
        let leases: Vec<_> = both.iter().map(|sa| sa.limits.hard_packets).collect();
        assert_eq!(leases, [Some(most), None]);
        let emulated = "emulated:sas=9".parse::<offload::Capabilities>().unwrap();
        assert!(both.iter().all(|sa| emulated.sa_fits(sa).is_ok()));
    }
    let transport = Gateway::new(&between_gateways(&carried("packet", "mode = \"transport\"")));
    assert_eq!(wishes(&transport, vec![sa(Outbound, 500, 1)])[0].mode, SaMode::Transport);
}

#[test]
fn the_carrier_of_an_sa_is_what_the_section_and_the_request_agree_on() {
    use SaOffload::{Auto, Crypto, None as Software, Packet};
    for (section, asked, wished) in [
        ("none", None, Some(0)),
        ("none", Some(Packet), None),
        ("packet", None, Some(1)),
        ("packet", Some(Packet), Some(1)),
        ("packet", Some(Software), None),
        ("packet", Some(Crypto), None),
        ("crypto", None, Some(1)),
        ("crypto", Some(Crypto), Some(1)),
        ("crypto", Some(Packet), None),
        ("auto", Some(Crypto), Some(1)),
        ("auto", None, Some(1)),
        ("auto", Some(Packet), Some(1)),
        ("auto", Some(Software), Some(0)),
        ("auto", Some(Auto), Some(1)),
    ] {
        let gateway = Gateway::new(&carried(section, ""));
        let planned =
            gateway.compiled.plan_put(vec![PutSa { offload: asked, ..sa(Outbound, 500, 1) }]);
        let found = planned.map(|plan| plan.card_wishes(&gateway.compiled).len());
        let found = found.map_err(|refused| refused.why.word()).ok();
        assert_eq!(found, wished, "{section} {asked:?}");
    }
}

#[test]
fn software_has_no_number_of_an_sa_in_a_card_and_counts_what_the_card_counted() {
    let mut gateway = Gateway::new(&carried("packet", ""));
    let asked = vec![sa(Outbound, 500, 1), sa(Inbound, 600, 2)];
    let seats = put_in_card(&mut gateway, asked);
    let out = gateway.snapshot.outbound().next().unwrap().clone();
    let inbound = gateway.snapshot.inbound().next().unwrap().clone();
    assert_eq!([out.card.unwrap(), inbound.card.unwrap()], seats[..]);
    assert_eq!(out.sequence.draw(1).whole(), Err(SequenceError::Exhausted));
    let used = |packets| {
        move |_| Some(CardUse { packets, bytes: packets * 100, edge: packets, is_ended: false })
    };
    let note = |gateway: &Gateway, packets| -> Vec<(u32, u64, u64)> {
        let counted = gateway.compiled.note_card_use(used(packets));
        counted.into_iter().map(|of| (of.spi.value(), of.packets, of.bytes)).collect()
    };
    assert_eq!(note(&gateway, 3), [(500, 3, 300), (600, 3, 300)]);
    assert_eq!(note(&gateway, 3), []);
    assert_eq!(note(&gateway, 10), [(500, 7, 700), (600, 7, 700)]);
    assert_eq!(note(&gateway, 4), [], "a count that goes back adds nothing");
    assert_eq!(inbound.window.right_edge(), 10);
    assert_eq!(out.allowance.as_ref().unwrap().account.used(0).packets, 10);
    // A policy's change leaves it where it is; other headers, limits or another carrier do not.
    let names = |gateway: &Gateway| gateway.compiled.seats().len();
    gateway.apply(&carried("packet", "pmtu = \"ignore\"")).unwrap();
    assert_eq!((names(&gateway), gateway.all().len()), (2, 2));
    gateway.apply(&carried("packet", "dscp = 3")).unwrap();
    assert_eq!((names(&gateway), gateway.all().len()), (0, 0));
    for other in [carried("none", ""), carried("packet", "[peer.a.lifetime]\nhard_packets = 9")] {
        let mut gateway = Gateway::new(&carried("packet", ""));
        put_in_card(&mut gateway, vec![sa(Outbound, 500, 1), sa(Inbound, 600, 2)]);
        gateway.apply(&other).unwrap();
        assert_eq!(gateway.all().len(), 0, "{other}");
    }
}

#[test]
fn lost_seats_take_their_sas_along_and_no_others() {
    let mut gateway = Gateway::new(&carried("auto", ""));
    let in_card = vec![sa(Outbound, 500, 1), sa(Inbound, 600, 2)];
    let seats = put_in_card(&mut gateway, in_card);
    let beside = PutSa { offload: Some(SaOffload::None), ..sa(Outbound, 501, 3) };
    gateway.put(vec![beside]).unwrap();
    assert_eq!(gateway.order("a"), [500, 501]);
    assert!(gateway.compiled.without_seats(|_| false).is_none());
    let changed = gateway.compiled.without_seats(|seat| seat == seats[0]).unwrap();
    let gone = gateway.go_over(changed);
    assert_eq!(gone.len(), 1);
    assert_eq!((gone[0].spi.value(), gone[0].reason), (500, control::GoneReason::CardLost));
    assert_eq!(gateway.order("a"), [501]);
    assert!(gateway.opens(600));
}

// XO-01
#[test]
fn in_crypto_mode_a_card_is_asked_for_the_cipher_and_limits_stay_with_the_gateway() {
    let limits = "[peer.a.lifetime]\nsoft_packets = 5\nhard_packets = 9";
    let mut gateway = Gateway::new(&carried("crypto", limits));
    let asked = || vec![sa(Outbound, 500, 1), sa(Inbound, 600, 2)];
    for wish in gateway.compiled.plan_put(asked()).unwrap().card_wishes(&gateway.compiled) {
        let none = offload::SaLimits::default();
        assert_eq!((wish.sa.service, wish.sa.limits), (Service::Crypto, none));
        assert!(wish.else_sa.is_none());
    }
    let seats = put_in_card(&mut gateway, asked());
    assert!(seats.iter().all(|seat| seat.work == CardWork::Cipher));
    let out = gateway.snapshot.outbound().next().unwrap();
    assert_eq!(out.card, Some(seats[0]));
    // Numbers and use are the gateway's, so a card's counts are of no account.
    assert_eq!(out.sequence.draw(1).whole(), Ok(1));
    assert_eq!(out.allowance.as_ref().unwrap().lifetime.hard.packets, Some(9));
    let use_ = CardUse { packets: 7, bytes: 70, edge: 9, is_ended: true };
    assert_eq!(gateway.compiled.note_card_use(|_| Some(use_)), []);
    // With "auto" the cipher is what a card is asked for that cannot do all of ESP.
    let auto = Gateway::new(&carried("auto", ""));
    let wish = auto.compiled.plan_put(asked()).unwrap().card_wishes(&auto.compiled).remove(0);
    assert_eq!(wish.sa.service, Service::Packet);
    assert_eq!(wish.else_sa.unwrap().service, Service::Crypto);
}
