//! SAs in the card's process. The peer on the wire is a card of this process; that its ESP is that
//! of crate `ipsec`, its own tests show.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Instant;

use card_link::Request;
use emulated_card::{EmulatedCard, Opened, Sent};
use net::AGAIN;
use netlab::{CardPlan, Listener, inject};
use offload::{
    Card as _, CardEvent, CardPolicy, CardSa, Carrier, Carries, Ends, FlowConfidentiality, Item,
    Limit, Numbers, OuterDontFragment, OuterDscp, OuterEcn, OuterFields, PolicyAction, RefusalKind,
    SaDirection, SaKey, SaLimits, SaMode, Service, Tag,
};
use wire::CardHeader;
use wire::build::PacketBuilder;

use super::{FAR, FAR_MAC, HOST_MAC, Host, Place, TAP, WIRE, frame, place, plan, rule, tag};

/// SPIs of the SA that seals and of the one that opens, of the host.
const SPIS: [u32; 2] = [0x0102_0304, 0x0506_0708];
/// Their names.
const SEALS: u32 = 11;
const OPENS: u32 = 12;
/// Packets that the SA that seals may carry.
const LEASE: u64 = 10;

fn plan_with_sas<'a>() -> CardPlan<'a> {
    CardPlan { card: "emulated:rules=8,ms=1,sas=4", ..plan() }
}

/// An SA of the host.
fn sa(direction: SaDirection) -> CardSa {
    let fields = OuterFields::Exactly {
        hop_limit: 64,
        dscp: OuterDscp::Copy,
        ecn: OuterEcn::Rfc6040,
        dont_fragment: OuterDontFragment::Set,
    };
    let (ours, theirs) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    let (spi, ends, key, hard) = match direction {
        SaDirection::Out => {
            (SPIS[0], Ends { source: ours, destination: theirs }, [0x31; 36], Some(LEASE))
        }
        SaDirection::In => (SPIS[1], Ends { source: theirs, destination: ours }, [0x32; 36], None),
    };
    CardSa {
        direction,
        spi,
        ends,
        mode: SaMode::Tunnel(fields),
        udp: None,
        service: Service::Packet,
        carrier: Carrier::Worker,
        suite: "aes-256-gcm".into(),
        key: SaKey::new(&key),
        icv_bytes: 16,
        numbers: Numbers::Extended,
        window: 64,
        first_number: 1,
        flow_confidentiality: FlowConfidentiality::Off,
        limits: SaLimits { hard_packets: hard, ..SaLimits::default() },
        carries: Carries::default(),
    }
}

/// The SA at its other end, which may carry more.
fn mirrored(sa: CardSa) -> CardSa {
    let direction = match sa.direction {
        SaDirection::Out => SaDirection::In,
        SaDirection::In => SaDirection::Out,
    };
    let limits = SaLimits { hard_packets: Some(1000), ..SaLimits::default() };
    CardSa { direction, limits, ..sa }
}

/// The peer: it opens by tag 1 what the host seals, and seals by tag 2 what the host opens.
fn peer() -> EmulatedCard {
    let mut card = EmulatedCard::new("emulated:sas=2,ms=0".parse().unwrap(), 1);
    for (number, direction) in [(1, SaDirection::Out), (2, SaDirection::In)] {
        card.place(&Item::Sa(mirrored(sa(direction)).into()), tag(number));
    }
    card.advance(1);
    assert_eq!(card.sas(), 2);
    card
}

fn sealed_by(peer: &mut EmulatedCard, clear: &[u8]) -> Vec<u8> {
    match peer.send(tag(2), clear) {
        Sent::Frame(frame) => frame,
        Sent::Dropped(loss) => panic!("{loss:?}"),
    }
}

/// The clear frame with the header by which the host asks for an SA.
fn asking(number: u32, clear: &[u8]) -> Vec<u8> {
    [&CardHeader::Sa(tag(number).to_bits()).bytes()[..], clear].concat()
}

fn place_sa(host: &mut Host, name: Tag, sa: CardSa) {
    host.ask(&Request::PlaceSa { tag: name, sa: Arc::new(sa) });
    assert_eq!(host.event(), CardEvent::Live(name));
}

/// A host whose card has both SAs.
fn host_with_sas(place: &Place) -> Host {
    let mut host = Host::begin(&place.card);
    place_sa(&mut host, tag(SEALS), sa(SaDirection::Out));
    place_sa(&mut host, tag(OPENS), sa(SaDirection::In));
    host
}

/// The sequence number and SPI of a frame that is ESP between the SAs' ends, and is nothing else.
fn esp_of(frame: &[u8]) -> (u32, u32) {
    assert_eq!(frame[12..14], [8, 0]);
    assert_eq!((frame[14], frame[23]), (0x45, 50), "an IPv4 header, and ESP");
    let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
    (word(34), word(38))
}

impl Place {
    /// Sends frames of the host's, waits until the card has counted as many more at a place, and
    /// returns all that came to the wire meanwhile.
    fn send_out(&self, frames: &[Vec<u8>], pointer: &str) -> Vec<Vec<u8>> {
        let (before, ear) = (self.count(pointer), Listener::open(&self.far, FAR).unwrap());
        inject::inject(&self.host, TAP, frames).unwrap();
        self.wait_for(pointer, before + frames.len() as u64);
        let marker = frame(1, 2, 99);
        inject::inject(&self.host, TAP, std::slice::from_ref(&marker)).unwrap();
        let mut heard = Vec::new();
        loop {
            match ear.wait(1, AGAIN, |_| true).unwrap().remove(0) {
                frame if frame == marker => return heard,
                frame => heard.push(frame),
            }
        }
    }

    fn wait_for(&self, pointer: &str, count: u64) {
        let end = Instant::now() + AGAIN;
        while self.count(pointer) < count {
            assert!(Instant::now() < end, "{pointer}: {}", self.card.tell("counts").unwrap());
        }
        assert_eq!(self.count(pointer), count, "{pointer}");
    }
}

// XO-02
#[test]
fn on_the_hosts_side_all_is_in_clear_and_on_the_wire_all_is_esp() {
    let Some(place) = place("SAs of a process", plan_with_sas()) else { return };
    let mode = std::fs::metadata(place.card.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600, "keys come by it");
    let (mut host, mut peer) = (host_with_sas(&place), peer());
    let clear: Vec<_> = (1..=5).map(|port| frame(port, 53, 60 + 200 * port as usize)).collect();
    let asking: Vec<_> = clear.iter().map(|frame| asking(SEALS, frame)).collect();
    let wire = place.send_out(&asking, "/sealed");
    let mut numbers: Vec<_> = wire.iter().map(|frame| esp_of(frame)).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3, 4, 5].map(|number| (SPIS[0], number)));
    let mut opened: Vec<_> = wire.iter().map(|frame| peer.open(frame)).collect();
    opened.sort_by_key(|opened| match opened {
        Opened::Clear { frame, .. } => frame.len(),
        other => panic!("{other:?}"),
    });
    let mark = tag(1).to_bits();
    let as_sent = clear.iter().map(|frame| Opened::Clear { frame: frame.clone(), mark });
    assert_eq!(opened, as_sent.collect::<Vec<_>>());

    let came: Vec<_> = clear.iter().map(|clear| sealed_by(&mut peer, clear)).collect();
    let mark = tag(OPENS).to_bits();
    let expected: Vec<_> =
        clear.iter().map(|clear| (CardHeader::Sa(mark), clear.clone())).collect();
    let mut handed = place.bring_in(&came);
    handed.sort_by_key(|(_, frame)| frame.len());
    assert_eq!(handed, expected);

    // What the card has counted, and the window's edge of the SA that opens.
    let found = host.look();
    let counts: Vec<_> = found.items.iter().map(|it| (it.handle.get(), it.packets)).collect();
    assert_eq!((counts, found.edges), (vec![(SEALS, 5), (OPENS, 5)], vec![(tag(OPENS).handle, 5)]));
    assert_eq!(found.items[0].bytes, found.items[1].bytes);
    // The capture of the host's side has no ESP, and the tags of both ways.
    let seen = place.card.seen().unwrap();
    let tags = |to_host| seen.iter().filter(move |seen| seen.to_host == to_host).map(|it| it.tag);
    assert!(tags(true).eq([Some((OPENS, 3)); 5]));
    assert!(tags(false).eq([Some((SEALS, 3)); 5].into_iter().chain([None])));
    assert!(seen.iter().all(|seen| seen.bytes[23] == 17));
}

// XO-25
#[test]
fn nothing_that_comes_in_clear_or_cannot_be_opened_gets_the_tag_of_an_sa() {
    let Some(place) = place("spoofed frames", plan_with_sas()) else { return };
    let (_host, mut peer) = (host_with_sas(&place), peer());
    let clear = frame(7, 53, 200);
    let good = sealed_by(&mut peer, &clear);
    let mut unknown = good.clone();
    unknown[37] ^= 1;
    // In clear; with a forged header in front of it; ESP of an SPI that the card has not.
    let spoofed = [clear.clone(), asking(OPENS, &clear), unknown];
    let expected = spoofed.clone().map(|frame| (CardHeader::Plain, frame));
    let mut handed = place.bring_in(&spoofed);
    handed.sort_by_key(|(_, frame)| frame.len());
    assert_eq!(handed, expected);

    let mut changed = good.clone();
    *changed.last_mut().unwrap() ^= 1;
    let opened = [(CardHeader::Sa(tag(OPENS).to_bits()), clear.clone())];
    assert_eq!(place.bring_some_in(&[changed, good.clone()], 1), opened.clone());
    assert_eq!(place.count("/dropped_by_sa/in/authentication"), 1);
    // The same again is a replay, also where it comes in front of the next.
    let next = sealed_by(&mut peer, &clear);
    assert_eq!(place.bring_some_in(&[good, next], 1), opened);
    assert_eq!(place.count("/dropped_by_sa/in/replay"), 1);
    let seen = place.card.seen().unwrap();
    assert_eq!(seen.iter().filter(|seen| seen.to_host && seen.tag.is_some()).count(), 2);
}

// XO-22, XO-34: no clear frame and no ESP leaves by an SA that the card has not, or not any more
#[test]
fn nothing_leaves_by_an_sa_that_the_card_has_forgotten() {
    let Some(place) = place("forgotten SAs", plan_with_sas()) else { return };
    let mut host = Host::begin(&place.card);
    let tell = |words: &str| place.card.tell(words).unwrap();
    let one = [asking(SEALS, &frame(7, 53, 200))];
    let lost = "/dropped_by_sa/out/unknown_sa";
    assert_eq!(place.send_out(&one, lost), [[0; 0]; 0]);
    for (words, told) in [
        (format!("forget {SEALS} silent"), None),
        (format!("forget {SEALS} told"), Some(CardEvent::Withdrawn(tag(SEALS)))),
        ("reset silent".into(), None),
        ("reset told".into(), Some(CardEvent::Reset)),
        ("reload emulated:sas=4,ms=1".into(), Some(CardEvent::Reloaded)),
    ] {
        place_sa(&mut host, tag(SEALS), sa(SaDirection::Out));
        assert_eq!(place.send_out(&one, "/sealed").len(), 1, "{words}");
        tell(&words);
        assert_eq!(place.send_out(&one, lost), [[0; 0]; 0], "{words}");
        if let Some(told) = told {
            assert_eq!(host.event(), told);
        }
        assert_eq!(host.handles(), [0; 0], "{words}");
    }
    place_sa(&mut host, tag(SEALS), sa(SaDirection::Out));
    host.ask(&Request::Withdraw { tag: tag(SEALS) });
    assert_eq!(host.event(), CardEvent::Withdrawn(tag(SEALS)));
    assert_eq!(place.send_out(&one, lost), [[0; 0]; 0]);
    // The next host's card has nothing of the one before; an SA of another name is another.
    place_sa(&mut host, tag(SEALS), sa(SaDirection::Out));
    let mut next = Host::begin(&place.card);
    assert_eq!((host.next(), place.send_out(&one, lost)), (None, vec![]));
    place_sa(&mut next, tag(SEALS + 1), sa(SaDirection::Out));
    assert_eq!(place.send_out(&one, lost), [[0; 0]; 0]);
}

// XO-22
#[test]
fn a_link_that_goes_down_takes_the_sas_with_it() {
    let Some(place) = place("links with SAs", plan_with_sas()) else { return };
    let (mut host, mut peer) = (host_with_sas(&place), peer());
    place.card.tell("link down").unwrap();
    assert_eq!((host.event(), host.handles()), (CardEvent::Down, vec![]));
    let came = sealed_by(&mut peer, &frame(7, 53, 200));
    inject::inject(&place.far, FAR, std::slice::from_ref(&came)).unwrap();
    place.wait_for("/not_up", 1);
    place.card.tell("link up").unwrap();
    assert_eq!((host.event(), host.handles()), (CardEvent::Up, vec![]));
    let one = [asking(SEALS, &frame(7, 53, 200))];
    assert_eq!(place.send_out(&one, "/dropped_by_sa/out/unknown_sa"), [[0; 0]; 0]);
    assert_eq!(place.bring_in(std::slice::from_ref(&came)), [(CardHeader::Plain, came)]);
}

// XO-18
#[test]
fn the_card_keeps_to_the_hard_limit_while_the_host_reads_nothing_and_when_it_is_gone() {
    let Some(place) = place("limits without a host", plan_with_sas()) else { return };
    let mut host = Host::begin(&place.card);
    let soft_packets = Some(LEASE - 3);
    let mut limited = sa(SaDirection::Out);
    limited.first_number = 100;
    limited.limits = SaLimits { soft_packets, ..limited.limits };
    place_sa(&mut host, tag(SEALS), limited);
    let asking: Vec<_> =
        (1..=3 * LEASE as u16).map(|port| asking(SEALS, &frame(port, 53, 200))).collect();
    let ear = Listener::open(&place.far, FAR).unwrap();
    inject::inject(&place.host, TAP, &asking).unwrap();
    let beyond = "/dropped_by_sa/out/hard_limit";
    place.wait_for(beyond, 2 * LEASE);
    let mut numbers: Vec<_> =
        ear.wait(LEASE as usize, AGAIN, |_| true).unwrap().iter().map(|it| esp_of(it)).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq((100..100 + LEASE as u32).map(|number| (SPIS[0], number))));
    assert_eq!((ear.next().unwrap(), place.count("/sealed")), (None, LEASE));
    // Each is told once, when the host reads again.
    let limit = |limit| CardEvent::Limit(tag(SEALS), limit);
    assert_eq!([host.event(), host.event()], [limit(Limit::Soft), limit(Limit::Hard)]);
    assert_eq!(host.look().items[0].packets, LEASE);
    drop(host);
    assert_eq!(place.send_out(&asking, beyond), [[0; 0]; 0]);
    assert_eq!(place.count("/sealed"), LEASE);
}

#[test]
fn a_packet_that_does_not_fit_the_wire_when_it_is_sealed_is_dropped_and_counted() {
    let Some(place) = place("MTU with SAs", plan_with_sas()) else { return };
    let (_host, mut peer) = (host_with_sas(&place), peer());
    place.host.ip(&format!("link set {WIRE} mtu 1500")).unwrap();
    // 20 bytes of the outer header, 16 in front of the text, 2 of its trailer and 16 behind it.
    let largest = frame(7, 53, 14 + 1500 - 54);
    let wire = place.send_out(&[asking(SEALS, &largest)], "/sealed");
    assert_eq!(wire.iter().map(Vec::len).collect::<Vec<_>>(), [14 + 1500]);
    assert_eq!(peer.open(&wire[0]), Opened::Clear { frame: largest, mark: tag(1).to_bits() });
    let larger = frame(7, 53, 14 + 1500 - 53);
    assert_eq!(place.send_out(&[asking(SEALS, &larger)], "/wire_refused"), [[0; 0]; 0]);
}

#[test]
fn what_the_process_cannot_carry_is_refused_and_a_header_of_another_kind_dropped() {
    let Some(place) = place("refused SAs", plan_with_sas()) else { return };
    let mut host = host_with_sas(&place);
    let mut refused = |request: Request| {
        host.ask(&request);
        match host.event() {
            CardEvent::Refused(_, refusal) => (refusal.kind, refusal.text),
            other => panic!("{other:?}"),
        }
    };
    let with = |change: &dyn Fn(&mut CardSa)| {
        let mut sa = sa(SaDirection::Out);
        change(&mut sa);
        Request::PlaceSa { tag: tag(20), sa: Arc::new(sa) }
    };
    let pattern = rule(None).patterns.clone();
    let (direction, ports, rank) = (SaDirection::Out, Arc::new([5]), 1);
    let action = PolicyAction::Bypass;
    let policy = Arc::new(CardPolicy { direction, ports, rank, patterns: pattern, action });
    for (request, why) in [
        (with(&|sa| sa.carrier = Carrier::Kernel), "workers alone"),
        (with(&|sa| sa.suite = "aes-256-cbc".into()), "cipher suite"),
        (with(&|sa| sa.limits = SaLimits::default()), "lease of numbers"),
        (Request::PlacePolicy { tag: tag(21), policy }, "policies that protect only"),
    ] {
        let (kind, text) = refused(request);
        assert_eq!(kind, RefusalKind::Unsupported, "{text}");
        assert!(text.contains(why), "{why}: {text}");
    }
    assert_eq!(host.handles(), [SEALS, OPENS]);
    let clear = frame(7, 53, 200);
    let behind = |header: [u8; CardHeader::BYTES]| [&header[..], &clear].concat();
    let mut no_kind = CardHeader::Plain.bytes();
    no_kind[4] = 9;
    let (plain, ruled) = (CardHeader::Plain.bytes(), CardHeader::Rule(5).bytes());
    let wrong = [plain, ruled, no_kind].map(behind);
    assert_eq!(place.send_out(&wrong, "/wrong_header"), [[0; 0]; 0]);
    let no_name = [0, u64::MAX].map(|mark| behind(CardHeader::Sa(mark).bytes()));
    assert_eq!(place.send_out(&no_name, "/dropped_by_sa/out/unknown_sa"), [[0; 0]; 0]);
    // One that opens does not seal, and a fragment is not sealed.
    let opens = [asking(OPENS, &clear)];
    assert_eq!(place.send_out(&opens, "/dropped_by_sa/out/wrong_sa"), [[0; 0]; 0]);
    let packet = PacketBuilder::v4("10.7.0.2", "10.7.0.1").udp(7, 53).payload_of(64);
    let mut fragment = packet.frame(HOST_MAC, FAR_MAC, None);
    (fragment[20], fragment[24], fragment[25]) = (0x20, 0, 0);
    let sum =
        (14..34).step_by(2).map(|at| u32::from(fragment[at]) << 8 | u32::from(fragment[at + 1]));
    let sum: u32 = sum.sum();
    let folded = !((sum & 0xffff) + (sum >> 16)) as u16;
    fragment[24..26].copy_from_slice(&folded.to_be_bytes());
    let fragments = [asking(SEALS, &fragment)];
    assert_eq!(place.send_out(&fragments, "/dropped_by_sa/out/fragment"), [[0; 0]; 0]);
}

#[test]
fn a_mark_that_is_garbage_names_no_sa_of_the_card() {
    let Some(place) = place("garbage for the marks of SAs", plan_with_sas()) else { return };
    let (_host, mut peer) = (host_with_sas(&place), peer());
    place.card.tell("faults garbage=1000").unwrap();
    let clear = frame(7, 53, 200);
    for _ in 0..20 {
        let came = sealed_by(&mut peer, &clear);
        let (header, bytes) = place.bring_in(&[came]).remove(0);
        let CardHeader::Sa(mark) = header else { panic!("{header:?}") };
        assert!(![SEALS, OPENS].map(|number| tag(number).to_bits()).contains(&mark));
        assert_eq!(bytes, clear);
    }
    // A swapped one is that of the other SA.
    place.card.tell("faults swapped=1000").unwrap();
    let came = sealed_by(&mut peer, &clear);
    assert_eq!(place.bring_in(&[came]), [(CardHeader::Sa(tag(SEALS).to_bits()), clear)]);
}
