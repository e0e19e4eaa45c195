//! Packets that the card drops, and frames that nobody should have sent.

use emulated_card::{Loss, Opened, Sent};
use ipsec::Mode;
use offload::{SaDirection, Service};
use proptest::prelude::*;
use proptest::sample::select;
use wire::Family;
use wire::build::PacketBuilder;

use super::other;
use super::scene::{MACS, PLAIN, SPI, Setting, around, card, card_with, framed, sealed, tag};

// XO-07, XO-24
#[test]
fn fragments_and_packets_with_options_are_dropped_and_counted_apart_when_they_are_sent() {
    for setting in Setting::all() {
        let mut card = card(&setting);
        let bare = setting.packet(64);
        let options: Vec<PacketBuilder> = match setting.inner {
            Family::V4 => vec![bare.clone().options(&[1, 1, 1, 1])],
            Family::V6 => {
                [0, 43, 60].map(|header| bare.clone().extension(header, &[1, 4])).to_vec()
            }
        };
        let fragments = [(0, true), (2, true), (2, false)]
            .map(|(offset, more)| bare.clone().fragment(offset, more));
        for packet in &fragments {
            assert_eq!(card.send(tag(1), &framed(packet)), Sent::Dropped(Loss::Fragment));
        }
        for packet in &options {
            assert_eq!(card.send(tag(1), &framed(packet)), Sent::Dropped(Loss::Options));
        }
        let counts = card.esp_counts();
        assert_eq!(counts.dropped(SaDirection::Out, Loss::Fragment), 3);
        assert_eq!(counts.dropped(SaDirection::Out, Loss::Options), options.len() as u64);
        assert_eq!(counts.dropped(SaDirection::In, Loss::Fragment), 0);
    }
}

// XO-07, XO-24
#[test]
fn fragments_and_options_around_esp_are_dropped_and_counted_apart_when_they_come() {
    for outer in [Family::V4, Family::V6] {
        let setting = Setting { outer, ..PLAIN };
        let (mut card, ours) = (card(&setting), setting.outbound());
        let esp = {
            let whole = other::seal(&ours, &setting.packet(200).ip(), 1);
            let header = if outer == Family::V4 { 20 } else { 40 };
            whole[header..].to_vec()
        };
        let (source, destination) = setting.ends();
        let around_esp =
            |esp: &[u8]| PacketBuilder::between(source, destination).protocol(50).payload(esp);
        for (offset, more, part) in [(0, true, &esp[..96]), (12, false, &esp[96..])] {
            let came = framed(&around_esp(part).fragment(offset, more));
            assert_eq!(card.open(&came), Opened::Dropped(Loss::Fragment), "{outer:?} {offset}");
        }
        if outer == Family::V4 {
            let came = framed(&around_esp(&esp).options(&[1, 1, 1, 1]));
            assert_eq!(card.open(&came), Opened::Dropped(Loss::Options));
        }
        let counts = card.esp_counts();
        assert_eq!(counts.dropped(SaDirection::In, Loss::Fragment), 2);
        let options = u64::from(outer == Family::V4);
        assert_eq!(counts.dropped(SaDirection::In, Loss::Options), options);
        assert_eq!(counts.dropped(SaDirection::Out, Loss::Fragment), 0);
        // Between others, or of another SPI, they are none of the card's.
        let others = PacketBuilder::between(destination, source).protocol(50).payload(&esp);
        assert_eq!(card.open(&framed(&others.fragment(12, false))), Opened::AsItCame);
    }
}

// XO-07, XO-24: what a peer's software sealed
#[test]
fn fragments_and_options_inside_a_tunnel_are_dropped_when_they_come() {
    for inner in [Family::V4, Family::V6] {
        let setting = Setting { inner, ..PLAIN };
        let (mut card, ours) = (card(&setting), setting.outbound());
        let bare = setting.packet(64);
        let options = match inner {
            Family::V4 => bare.clone().options(&[1, 1, 1, 1]),
            Family::V6 => bare.clone().extension(60, &[1, 4]),
        };
        let cases = [(bare.fragment(0, true), Loss::Fragment), (options, Loss::Options)];
        for ((packet, loss), number) in cases.into_iter().zip(1..) {
            let came = around(&other::seal(&ours, &packet.ip(), number));
            assert_eq!(card.open(&came), Opened::Dropped(loss), "{inner:?}");
        }
    }
}

// XO-25: what was not opened has no mark
#[test]
fn what_is_not_of_an_sa_of_the_card_goes_to_the_host_as_it_came_and_without_a_mark() {
    let mut card = card(&PLAIN);
    let clear = PLAIN.packet(40);
    // In clear, though an SA stands between the ends.
    assert_eq!(card.open(&framed(&clear)), Opened::AsItCame);
    let mut other_spi = around(&other::seal(&PLAIN.outbound(), &clear.ip(), 1));
    other_spi[14 + 20 + 3] ^= 1;
    assert_eq!(card.open(&other_spi), Opened::AsItCame);
    let in_udp = Setting { udp: Some((4500, 4500)), ..PLAIN };
    let came = around(&other::seal(&in_udp.outbound(), &clear.ip(), 1));
    assert_eq!(card.open(&came), Opened::AsItCame, "this SA has no UDP");
    let mut card = super::scene::card(&in_udp);
    let elsewhere = Setting { udp: Some((4500, 4501)), ..PLAIN };
    let came = around(&other::seal(&elsewhere.outbound(), &clear.ip(), 1));
    assert_eq!(card.open(&came), Opened::AsItCame, "another port");
    let through_nat = Setting { udp: Some((1024, 4500)), ..PLAIN };
    let came = around(&other::seal(&through_nat.outbound(), &clear.ip(), 1));
    assert!(matches!(card.open(&came), Opened::Clear { .. }), "the sender's port may change");
    // IKE beside it: a zero marker in place of an SPI.
    let (source, destination) = PLAIN.ends();
    let ike = PacketBuilder::between(source, destination).udp(4500, 4500).payload(&[0; 40]);
    assert_eq!(card.open(&framed(&ike)), Opened::AsItCame);
}

#[test]
fn in_transport_mode_only_packets_between_the_ends_are_sealed() {
    for outer in [Family::V4, Family::V6] {
        let setting = Setting { mode: Mode::Transport, outer, inner: outer, ..PLAIN };
        let mut card = card(&setting);
        let (a, b) = setting.ends();
        let back = framed(&PacketBuilder::between(b, a).udp(1, 2));
        assert_eq!(card.send(tag(1), &back), Sent::Dropped(Loss::Ends));
        // It would be taken for a dummy.
        let nothing = framed(&PacketBuilder::between(a, b).protocol(59));
        assert_eq!(card.send(tag(1), &nothing), Sent::Dropped(Loss::Malformed));
        sealed(&mut card, &framed(&setting.packet(3)));
    }
}

#[test]
fn what_is_no_packet_or_too_long_a_one_is_not_sealed() {
    let mut card = card(&PLAIN);
    let whole = framed(&PLAIN.packet(40));
    for length in 0..whole.len() {
        assert_eq!(card.send(tag(1), &whole[..length]), Sent::Dropped(Loss::Malformed), "{length}");
    }
    let mut arp = whole.clone();
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    assert_eq!(card.send(tag(1), &arp), Sent::Dropped(Loss::Malformed));
    // Behind the packet the link has filled up.
    let short = framed(&PLAIN.packet(0));
    let filled = [&short[..], &[0xee; 18]].concat();
    assert_eq!(sealed(&mut card, &filled).len(), sealed(&mut card, &short).len());
    let longest = framed(&PLAIN.packet(65_507));
    assert_eq!(card.send(tag(1), &longest), Sent::Dropped(Loss::TooLong));
    // No number is used up by what does not leave.
    assert_eq!(sealed(&mut card, &short)[14 + 20 + 7], 3);
}

#[test]
fn a_dummy_is_dropped_as_its_sender_means_it_to_be() {
    let setting = Setting { mode: Mode::Transport, ..PLAIN };
    let mut sealer = card_with(&setting, 1, |sa| sa.service = Service::Crypto);
    let mut host = around(&other::unsealed(&setting.outbound(), &setting.packet(10).ip(), 1));
    let next_header = host.len() - 17;
    host[next_header] = 59;
    let Sent::Frame(host) = sealer.encrypt(tag(1), &host) else { panic!("not sealed") };
    let mut opener = card(&setting);
    assert_eq!(opener.open(&host), Opened::Dropped(Loss::Dummy));
}

/// Has a card seal a packet whose text was changed, and another one open it.
fn changed_inside(setting: &Setting, change: impl Fn(&mut [u8])) -> Opened {
    let mut sealer = card_with(setting, 1, |sa| sa.service = Service::Crypto);
    let mut host = around(&other::unsealed(&setting.outbound(), &setting.packet(11).ip(), 1));
    let icv = host.len() - 16;
    change(&mut host[..icv]);
    let Sent::Frame(host) = sealer.encrypt(tag(1), &host) else { panic!("not sealed") };
    card(setting).open(&host)
}

#[test]
fn what_is_authentic_and_makes_no_sense_is_dropped() {
    for inner in [Family::V4, Family::V6] {
        let setting = Setting { inner, ..PLAIN };
        let from_end = |text: &[u8], place: usize| text.len() - place;
        let as_it_is = changed_inside(&setting, |_| ());
        assert!(matches!(as_it_is, Opened::Clear { .. }));
        // Next header, pad length, padding: 39 (IPv6: 59) bytes and 3 of padding.
        for (place, value) in [(1, 6), (1, if inner == Family::V4 { 41 } else { 4 })] {
            let opened = changed_inside(&setting, |text| text[from_end(text, place)] = value);
            assert_eq!(opened, Opened::Dropped(Loss::Inside), "{inner:?} next header {value}");
        }
        for (place, value) in [(2, 255), (3, 0), (4, 9)] {
            let opened = changed_inside(&setting, |text| text[from_end(text, place)] = value);
            assert_eq!(opened, Opened::Dropped(Loss::Inside), "{inner:?} padding {value}");
        }
    }
}

#[test]
fn no_bit_of_esp_may_change() {
    for setting in Setting::all() {
        let (mut card, ours) = (card(&setting), setting.outbound());
        let came = around(&other::seal(&ours, &setting.packet(21).ip(), 5));
        let esp = came.windows(4).position(|bytes| bytes == SPI.to_be_bytes()).unwrap();
        for bit in esp * 8..came.len() * 8 {
            let mut changed = came.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let opened = card.open(&changed);
            assert!(!matches!(opened, Opened::Clear { .. }), "{setting:?} bit {bit}");
        }
        assert!(matches!(card.open(&came), Opened::Clear { .. }));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_frame_makes_the_card_panic(
        setting in select(Setting::all()),
        noise in prop::collection::vec(any::<u8>(), 0..120),
        keep in 0usize..80,
        cut in 0usize..200,
        changes in prop::collection::vec((0usize..160, any::<u8>()), 0..6),
    ) {
        let services = [Service::Packet, Service::Crypto];
        for service in services.into_iter().take(1 + usize::from(setting.is_for_ciphers())) {
            let mut card = card_with(&setting, 1, |sa| sa.service = service);
            let clear = framed(&setting.packet(30));
            let came = around(&other::seal(&setting.outbound(), &setting.packet(30).ip(), 1));
            for frame in [clear, came] {
                let mut mixed = frame[..keep.min(frame.len())].to_vec();
                mixed.extend(&noise);
                let mut changed = frame[..frame.len() - cut.min(frame.len())].to_vec();
                for (place, byte) in &changes {
                    if let Some(at) = changed.get_mut(*place) {
                        *at = *byte;
                    }
                }
                for frame in [mixed, changed, noise.clone()] {
                    let _ = card.send(tag(1), &frame);
                    let _ = card.open(&frame);
                    let _ = card.encrypt(tag(1), &frame);
                    let _ = card.receive(0, &frame);
                }
            }
        }
    }

    #[test]
    fn what_the_card_lets_out_is_never_the_clear_packet(
        setting in select(Setting::all()), payload in prop::collection::vec(any::<u8>(), 24..200)
    ) {
        let mut card = card(&setting);
        let (source, destination) = setting.inside();
        let clear = PacketBuilder::between(source, destination).udp(1, 2).payload(&payload);
        if let Sent::Frame(left) = card.send(tag(1), &clear.frame(MACS.0, MACS.1, None)) {
            let is_there = left.windows(payload.len()).any(|bytes| bytes == payload);
            prop_assert!(!is_there);
        }
    }
}
