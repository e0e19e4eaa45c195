use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use offload::{
    CardEvent, CardPolicy, CardRule, CardSa, Carrier, Carries, Effect, Ends, FlowConfidentiality,
    Handle, Incarnation, Limit, MOST_ENTRIES, MOST_ENTRIES_A_RULE, Need, Numbers,
    OuterDontFragment, OuterDscp, OuterEcn, OuterFields, Pattern, PolicyAction, Refusal,
    RefusalKind, SaDirection, SaKey, SaLimits, SaMode, Segments, Service, Span, Tag, UdpEnds,
    UpperPattern,
};
use proptest::prelude::*;

use super::*;
use crate::message::{Found, Item};

fn handles() -> impl Strategy<Value = Handle> {
    prop_oneof![Just(1), Just(Handle::HIGHEST), 1..=Handle::HIGHEST]
        .prop_map(|number| Handle::new(number).unwrap())
}

fn tags() -> impl Strategy<Value = Tag> {
    let incarnations = prop_oneof![Just(0), Just(u32::MAX), any::<u32>()].prop_map(Incarnation);
    (handles(), incarnations).prop_map(|(handle, incarnation)| Tag { handle, incarnation })
}

/// Two numbers, the lower first.
fn ranges() -> impl Strategy<Value = (u16, u16)> {
    prop_oneof![
        Just((0, u16::MAX)),
        any::<(u16, u16)>().prop_map(|(one, other)| (one.min(other), one.max(other)))
    ]
}

fn spans<T: Ord + Into<IpAddr>>(one: T, other: T) -> Span {
    let (first, last) = if one <= other { (one, other) } else { (other, one) };
    Span { first: first.into(), last: last.into() }
}

fn uppers() -> impl Strategy<Value = UpperPattern> {
    let segments = prop::sample::select(&[Segments::All, Segments::New, Segments::Established][..]);
    prop_oneof![
        Just(UpperPattern::Any),
        any::<u8>().prop_map(UpperPattern::Protocol),
        (any::<u8>(), ranges(), ranges(), segments).prop_map(
            |(protocol, source, destination, segments)| UpperPattern::Ports {
                protocol,
                source,
                destination,
                segments
            }
        ),
        (any::<u8>(), ranges())
            .prop_map(|(protocol, messages)| UpperPattern::Messages { protocol, messages }),
    ]
}

fn patterns() -> impl Strategy<Value = Pattern> {
    let v4 = any::<[u32; 4]>().prop_map(|address| address.map(Ipv4Addr::from_bits));
    let v6 = any::<[u128; 4]>().prop_map(|address| address.map(Ipv6Addr::from_bits));
    let addresses = prop_oneof![
        v4.prop_map(|[a, b, c, d]| (spans(a, b), spans(c, d))),
        v6.prop_map(|[a, b, c, d]| (spans(a, b), spans(c, d))),
    ];
    (addresses, uppers()).prop_map(|((source, destination), upper)| Pattern {
        source,
        destination,
        upper,
    })
}

fn rules() -> impl Strategy<Value = Arc<CardRule>> {
    let ports = prop::collection::btree_set(any::<u16>(), 1..4);
    let effects = prop::sample::select(&[Effect::Mark, Effect::Drop][..]);
    let patterns = prop::collection::vec(patterns(), 1..4);
    (ports, any::<u64>(), effects, patterns).prop_map(|(ports, rank, effect, patterns)| {
        let ports = ports.into_iter().collect();
        Arc::new(CardRule { ports, rank, effect, patterns: patterns.into() })
    })
}

fn directions() -> impl Strategy<Value = SaDirection> {
    prop::sample::select(&[SaDirection::Out, SaDirection::In][..])
}

fn modes() -> impl Strategy<Value = SaMode> {
    let dscps = prop_oneof![Just(OuterDscp::Copy), (0..64u8).prop_map(OuterDscp::Fixed)];
    let ecns = prop::sample::select(&[OuterEcn::Rfc6040, OuterEcn::Cleared][..]);
    let flags = [OuterDontFragment::Set, OuterDontFragment::Copy, OuterDontFragment::Clear];
    let fields = (any::<u8>(), dscps, ecns, prop::sample::select(flags.to_vec())).prop_map(
        |(hop_limit, dscp, ecn, dont_fragment)| OuterFields::Exactly {
            hop_limit,
            dscp,
            ecn,
            dont_fragment,
        },
    );
    prop_oneof![
        Just(SaMode::Transport),
        Just(SaMode::Tunnel(OuterFields::LeftToCard)),
        fields.prop_map(SaMode::Tunnel),
    ]
}

fn sas() -> impl Strategy<Value = Arc<CardSa>> {
    let ends = any::<[u128; 2]>().prop_map(|ends| ends.map(|end| Ipv6Addr::from_bits(end).into()));
    let keys = prop::collection::vec(any::<u8>(), 0..=128);
    let limits = any::<[Option<u64>; 4]>();
    let rest = any::<(u32, u8, u32, u64, bool, Option<(u16, u16)>, Option<u16>)>();
    (directions(), modes(), ends, keys, limits, rest).prop_map(
        |(direction, mode, [source, destination], key, limits, rest)| {
            let (spi, icv_bytes, window, first_number, either, udp, padded) = rest;
            let [soft_packets, hard_packets, soft_bytes, hard_bytes] = limits;
            let need = |is: bool| if is { Need::Needed } else { Need::Dispensable };
            Arc::new(CardSa {
                direction,
                spi,
                ends: Ends { source, destination },
                mode,
                udp: udp.map(|(source, destination)| UdpEnds { source, destination }),
                service: if either { Service::Packet } else { Service::Crypto },
                carrier: if either { Carrier::Worker } else { Carrier::Kernel },
                suite: "aes-256-gcm".into(),
                key: SaKey::new(&key),
                icv_bytes,
                numbers: if either { Numbers::Short } else { Numbers::Extended },
                window,
                first_number,
                flow_confidentiality: padded
                    .map_or(FlowConfidentiality::Off, FlowConfidentiality::To),
                limits: SaLimits { soft_packets, hard_packets, soft_bytes, hard_bytes },
                carries: Carries { fragments: need(either), options: need(!either) },
            })
        },
    )
}

fn policies() -> impl Strategy<Value = Arc<CardPolicy>> {
    let actions = prop_oneof![
        handles().prop_map(PolicyAction::Protect),
        Just(PolicyAction::Bypass),
        Just(PolicyAction::Discard),
    ];
    (directions(), rules(), actions).prop_map(|(direction, rule, action)| {
        let CardRule { ports, rank, patterns, .. } = Arc::unwrap_or_clone(rule);
        Arc::new(CardPolicy { direction, ports, rank, patterns, action })
    })
}

fn requests() -> impl Strategy<Value = Request> {
    prop_oneof![
        Just(Request::Begin {}),
        (tags(), rules()).prop_map(|(tag, rule)| Request::Place { tag, rule }),
        (tags(), sas()).prop_map(|(tag, sa)| Request::PlaceSa { tag, sa }),
        (tags(), policies()).prop_map(|(tag, policy)| Request::PlacePolicy { tag, policy }),
        tags().prop_map(|tag| Request::Withdraw { tag }),
        any::<u64>().prop_map(|number| Request::Look { number }),
    ]
}

fn refusals() -> impl Strategy<Value = Refusal> {
    let kinds = [RefusalKind::Full, RefusalKind::Unsupported, RefusalKind::Failed];
    (prop::sample::select(kinds.to_vec()), any::<i32>(), ".{0,20}")
        .prop_map(|(kind, code, text)| Refusal { kind, code, text: text.into() })
}

fn events() -> impl Strategy<Value = CardEvent> {
    prop_oneof![
        tags().prop_map(CardEvent::Live),
        (tags(), refusals()).prop_map(|(tag, refusal)| CardEvent::Refused(tag, refusal)),
        tags().prop_map(CardEvent::Withdrawn),
        tags().prop_map(|tag| CardEvent::Limit(tag, Limit::Soft)),
        tags().prop_map(|tag| CardEvent::Limit(tag, Limit::Hard)),
        tags().prop_map(CardEvent::Acquire),
        Just(CardEvent::Down),
        Just(CardEvent::Up),
        Just(CardEvent::Reset),
        Just(CardEvent::Reloaded),
        Just(CardEvent::Unplugged),
    ]
}

fn items() -> impl Strategy<Value = Item> {
    (handles(), any::<(u64, u64)>()).prop_map(|(handle, (packets, bytes))| Item {
        handle,
        packets,
        bytes,
    })
}

fn reports() -> impl Strategy<Value = Report> {
    let edges = prop::collection::vec((handles(), any::<u64>()), 0..3);
    let items = prop::collection::vec(items(), 0..4);
    let found = (any::<(u64, u64)>(), ".{0,20}", items, edges);
    prop_oneof![
        ".{0,20}".prop_map(|card| Report::Begun { card }),
        events().prop_map(Report::Event),
        found.prop_map(|((number, at_ms), card, items, edges)| Report::Found(Found {
            number,
            card,
            at_ms,
            items,
            edges
        })),
    ]
}

fn refused(line: &str) -> String {
    decode_request(line.as_bytes()).unwrap_err().to_string()
}

/// A host's line that places a rule with these ports and this pattern.
fn place(handle: u64, ports: &str, pattern: &str) -> String {
    format!(
        r#"{{"place":{{"tag":{{"handle":{handle},"incarnation":0}},"rule":{{"ports":{ports},
        "rank":1,"effect":"mark","patterns":[{pattern}]}}}}}}"#
    )
}

const ANY_V4: &str = r#"{"source":{"first":"0.0.0.0","last":"255.255.255.255"},
    "destination":{"first":"0.0.0.0","last":"255.255.255.255"},"upper":"any"}"#;

proptest! {
    #[test]
    fn a_request_is_read_back_from_its_line(request in requests()) {
        let line = encode(&request);
        prop_assert!(line.len() <= MAX_REQUEST && line.ends_with(b"\n"));
        prop_assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        prop_assert_eq!(decode_request(&line).unwrap(), request.clone());
        let both = encode_behind(encode(&Request::Begin {}), &request);
        prop_assert_eq!(&both[..], [&encode(&Request::Begin {})[..], &line].concat());
    }

    #[test]
    fn a_report_is_read_back_from_its_line(report in reports()) {
        let line = encode(&report);
        prop_assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        prop_assert_eq!(decode_report(&line).unwrap(), report);
    }

    #[test]
    fn no_line_makes_the_reader_panic(line in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = (decode_request(&line), decode_report(&line));
    }

    #[test]
    fn no_changed_line_makes_the_reader_panic(
        request in requests(),
        report in reports(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let (mut request, mut report) = (encode(&request), encode(&report));
        *at.get_mut(&mut request) = byte;
        *at.get_mut(&mut report) = byte;
        let _ = (decode_request(&request), decode_report(&report));
        let _ = (decode_request(&request[..at.index(request.len())]), decode_report(&request));
    }

    #[test]
    fn lines_come_out_as_they_went_in_however_the_stream_is_cut(
        lines in prop::collection::vec("[a-z]{0,9}", 0..9),
        step in 1..20usize,
    ) {
        let mut stream: Vec<u8> = lines.iter().flat_map(|line| [line, "\n"].concat().into_bytes())
            .collect();
        stream.extend_from_slice(b"unended");
        let (mut reader, mut out) = (Lines::up_to(10), Vec::new());
        for bytes in stream.chunks(step) {
            reader.extend(bytes);
            while let Some(line) = reader.take().unwrap() {
                out.push(String::from_utf8(line.to_vec()).unwrap());
            }
        }
        prop_assert_eq!(out, lines);
    }
}

#[test]
fn the_longest_messages_fit() {
    let edge = IpAddr::V6(Ipv6Addr::from_bits(u128::MAX));
    let span = Span { first: edge, last: edge };
    let upper = UpperPattern::Ports {
        protocol: u8::MAX,
        source: (u16::MAX, u16::MAX),
        destination: (u16::MAX, u16::MAX),
        segments: Segments::Established,
    };
    let pattern = Pattern { source: span, destination: span, upper };
    let handle = Handle::new(Handle::HIGHEST).unwrap();
    let tag = Tag { handle, incarnation: Incarnation(u32::MAX) };
    let patterns = vec![pattern; MOST_ENTRIES_A_RULE].into();
    let effect = Effect::Mark;
    let rule = CardRule { ports: Arc::new([u16::MAX]), rank: u64::MAX, effect, patterns };
    let request = Request::Place { tag, rule: Arc::new(rule) };
    assert_eq!(decode_request(&encode(&request)).unwrap(), request);

    let item = encode(&Item { handle, packets: u64::MAX, bytes: u64::MAX });
    let edge = encode(&(handle, u64::MAX));
    let (card, items, edges) = ("x".repeat(1000), vec![], vec![]);
    let rest = Found { number: u64::MAX, card, at_ms: u64::MAX, items, edges };
    let rest = encode(&Report::Found(rest)).len();
    let of_rules = item.len() * MOST_ENTRIES as usize;
    // Of a card with a hundred thousand SAs beside all those rules.
    let of_sas = (item.len() + edge.len()) * 100_000;
    assert!(rest + of_rules + of_sas <= MAX_LINE, "{} a piece", item.len());
}

#[test]
fn a_line_that_is_too_long_ends_the_stream() {
    assert!(matches!(decode_request(&vec![b' '; MAX_REQUEST + 1]), Err(LineError::TooLong(_))));
    let mut lines = Lines::up_to(4);
    lines.extend(b"abc\nabcd");
    assert_eq!(lines.take().unwrap(), Some(&b"abc"[..]));
    assert_eq!(lines.take().unwrap(), None);
    lines.extend(b"e");
    assert!(matches!(lines.take(), Err(LineError::TooLong(4))));
    let mut lines = Lines::up_to(4);
    lines.extend(b"abcd\n");
    assert!(matches!(lines.take(), Err(LineError::TooLong(4))));
}

// HA-21
#[test]
fn numbers_that_are_no_handles_are_refused() {
    assert!(decode_request(place(7, "[0]", ANY_V4).as_bytes()).is_ok());
    for number in [0, u64::from(u32::MAX), 1 << 32] {
        let line = place(number, "[0]", ANY_V4);
        let report = format!(r#"{{"event":{{"live":{{"handle":{number},"incarnation":0}}}}}}"#);
        assert!(decode_request(line.as_bytes()).is_err(), "{number}");
        assert!(decode_report(report.as_bytes()).is_err(), "{number}");
    }
    assert!(refused(&place(0, "[0]", ANY_V4)).contains("0 is no handle: handles are 1 to"));
}

#[test]
fn rules_that_no_card_takes_are_refused_with_the_reason() {
    let reversed = ANY_V4.replacen("0.0.0.0", "255.255.255.255", 1).replacen(
        r#""last":"255.255.255.255""#,
        r#""last":"0.0.0.0""#,
        1,
    );
    let mixed = ANY_V4.replacen("0.0.0.0", "::", 1);
    let ports = r#"{"ports":{"protocol":6,"source":[2,1],"destination":[0,1],"segments":"all"}}"#;
    let messages = r#"{"messages":{"protocol":1,"messages":[2,1]}}"#;
    let with = |upper: &str| ANY_V4.replacen(r#""any""#, upper, 1);
    let many: Vec<String> = (0..300).map(|port: u16| port.to_string()).collect();
    for (ports, pattern, told) in [
        ("[]", ANY_V4, "a rule of 0 entries"),
        ("[0]", "", "a rule of 0 entries"),
        (&format!("[{}]", many.join(",")), ANY_V4, "a rule of 300 entries: rules have 1 to 256"),
        ("[2,1]", ANY_V4, "ports are not ascending"),
        ("[1,1]", ANY_V4, "ports are not ascending"),
        ("[1]", &mixed, "pattern 0 has addresses of two families"),
        ("[1]", &reversed, "pattern 0 has a range that ends before it begins"),
        ("[1]", &format!("{ANY_V4},{}", with(ports)), "pattern 1 has a range"),
        ("[1]", &with(messages), "pattern 0 has a range"),
        ("[1]", &with(r#""some""#), "unknown variant `some`"),
        ("[1]", &ANY_V4.replacen(r#""upper""#, r#""vlan":5,"upper""#, 1), "unknown field `vlan`"),
    ] {
        let refused = refused(&place(7, ports, pattern));
        assert!(refused.contains(told), "{ports} {pattern}: {refused}");
    }
}

#[test]
fn lines_read_as_the_documentation_has_them() {
    let encode = |report: &Report| String::from_utf8(encode(report).to_vec()).unwrap();
    assert_eq!(super::encode(&Request::Begin {})[..], b"{\"begin\":{}}\n"[..]);
    let tag = Tag { handle: Handle::new(7).unwrap(), incarnation: Incarnation(0) };
    let live = encode(&Report::Event(CardEvent::Live(tag)));
    assert_eq!(live, "{\"event\":{\"live\":{\"handle\":7,\"incarnation\":0}}}\n");
    let items = vec![Item { handle: tag.handle, packets: 120, bytes: 9600 }];
    let (card, edges) = ("emulated".to_owned(), vec![]);
    let found = Found { number: 1, card, at_ms: 80, items, edges };
    let line = r#"{"found":{"number":1,"card":"emulated","at_ms":80,"items":[[7,120,9600]]}}"#;
    assert_eq!(encode(&Report::Found(found)), format!("{line}\n"));
    assert!(refused("{}").starts_with("no message:"));
    assert!(refused(r#"{"look":{"number":1,"more":2}}"#).contains("unknown field `more`"));
}

/// An SA with this key.
fn sa_with(key: &[u8]) -> Request {
    let sa = CardSa {
        direction: SaDirection::Out,
        spi: 256,
        ends: Ends { source: [192, 0, 2, 1].into(), destination: [192, 0, 2, 2].into() },
        mode: SaMode::Transport,
        udp: None,
        service: Service::Packet,
        carrier: Carrier::Worker,
        suite: "aes-256-gcm".into(),
        key: SaKey::new(key),
        icv_bytes: 16,
        numbers: Numbers::Short,
        window: 64,
        first_number: 1,
        flow_confidentiality: FlowConfidentiality::Off,
        limits: SaLimits::default(),
        carries: Carries::default(),
    };
    let tag = Tag { handle: Handle::new(7).unwrap(), incarnation: Incarnation(0) };
    Request::PlaceSa { tag, sa: Arc::new(sa) }
}

#[test]
fn a_key_is_in_the_line_alone_and_neither_shown_nor_told_when_the_line_is_wrong() {
    let request = sa_with(&[0xa7; 36]);
    assert!(!format!("{request:?}").to_lowercase().contains("a7"), "{request:?}");
    let line = String::from_utf8(encode(&request).to_vec()).unwrap();
    let digits = "a7".repeat(36);
    assert!(line.contains(&digits) && line.contains("\"place_sa\""));
    assert_eq!(decode_request(line.as_bytes()).unwrap(), request);
    let key = format!("\"{digits}\"");
    for (what, wrong) in [
        ("half a byte", line.replacen("a7\"", "a\"", 1)),
        ("no digit", line.replacen("a7a7", "a7A7", 1)),
        ("no ASCII", line.replacen("a7a7", "a\u{e4}a7", 1)),
        ("too long", line.replacen(&digits, &"a7".repeat(129), 1)),
        ("bytes", line.replacen(&key, "[167,167]", 1)),
        ("another place", line.replacen("\"out\"", &key, 1)),
        ("another field", line.replacen("\"spi\"", &key, 1)),
        ("cut", line[..line.len() - 9].to_owned()),
    ] {
        assert_ne!(wrong, line, "{what}");
        let error = decode_request(wrong.as_bytes()).unwrap_err();
        let told = format!("{error} {error:?}").to_lowercase();
        assert!(told.contains("no message of an sa: what is wrong is at byte"), "{what}: {told}");
        assert!(!told.contains("a7") && !told.contains("167"), "{what}: {told}");
    }
}

#[test]
fn policies_that_no_card_takes_are_refused_as_rules_are() {
    let rule = place(7, "[2,1]", ANY_V4);
    let policy = rule
        .replacen("\"place\"", "\"place_policy\"", 1)
        .replacen("\"rule\"", "\"policy\"", 1)
        .replacen("\"effect\":\"mark\"", "\"direction\":\"out\",\"action\":\"bypass\"", 1);
    assert!(refused(&policy).contains("ports are not ascending"), "{}", refused(&policy));
    assert!(decode_request(policy.replacen("[2,1]", "[1,2]", 1).as_bytes()).is_ok());
    let protect = policy.replacen("\"bypass\"", "{\"protect\":0}", 1);
    assert!(refused(&protect).contains("0 is no handle"), "{}", refused(&protect));
}
