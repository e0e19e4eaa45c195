use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use offload::{
    CardEvent, CardRule, Effect, Handle, Incarnation, Limit, MOST_ENTRIES, MOST_ENTRIES_A_RULE,
    Pattern, Refusal, RefusalKind, Segments, Span, Tag, UpperPattern,
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

fn requests() -> impl Strategy<Value = Request> {
    prop_oneof![
        Just(Request::Begin {}),
        (tags(), rules()).prop_map(|(tag, rule)| Request::Place { tag, rule }),
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
    let found = (any::<(u64, u64)>(), ".{0,20}", prop::collection::vec(items(), 0..4));
    prop_oneof![
        ".{0,20}".prop_map(|card| Report::Begun { card }),
        events().prop_map(Report::Event),
        found.prop_map(|((number, at_ms), card, items)| Report::Found(Found {
            number,
            card,
            at_ms,
            items
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
        prop_assert_eq!(decode_request(&line).unwrap(), request);
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
    let rest = Found { number: u64::MAX, card: "x".repeat(1000), at_ms: u64::MAX, items: vec![] };
    let rest = encode(&Report::Found(rest)).len();
    assert!(rest + item.len() * MOST_ENTRIES as usize <= MAX_LINE, "{} a piece", item.len());
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
    assert_eq!(encode(&Request::Begin {}), b"{\"begin\":{}}\n");
    let tag = Tag { handle: Handle::new(7).unwrap(), incarnation: Incarnation(0) };
    let live = encode(&Report::Event(CardEvent::Live(tag)));
    assert_eq!(live, b"{\"event\":{\"live\":{\"handle\":7,\"incarnation\":0}}}\n");
    let items = vec![Item { handle: tag.handle, packets: 120, bytes: 9600 }];
    let found = Found { number: 1, card: "emulated".into(), at_ms: 80, items };
    let line = r#"{"found":{"number":1,"card":"emulated","at_ms":80,"items":[[7,120,9600]]}}"#;
    assert_eq!(encode(&Report::Found(found)), format!("{line}\n").into_bytes());
    assert!(refused("{}").starts_with("no message:"));
    assert!(refused(r#"{"look":{"number":1,"more":2}}"#).contains("unknown field `more`"));
}
