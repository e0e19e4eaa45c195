//! Messages are read as they were written, and nothing else is read.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use charon_link::{
    AddPolicy, AddSa, Algorithm, Answer, Charon, CharonId, HEADER_BYTES, Hardness, Header,
    LinkMode, MAX_HANDLES, MAX_MESSAGE, MAX_NAME, MAX_SELECTORS, Malformed, NameSa, Policy,
    PolicyAction, PolicyDirection, Report, Request, SaDirection, SaHandle, SaLimits, SaName,
    Selector, Status, Told, UpdateSa, Use, VERSION, decode, decode_told, encode_answer,
    encode_report, encode_request,
};
use proptest::prelude::*;
use zeroize::Zeroizing;

fn edge_u64() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX - 1), Just(u64::MAX), any::<u64>()]
}

fn edge_u32() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(255), Just(256), Just(u32::MAX), any::<u32>()]
}

fn edge_u16() -> impl Strategy<Value = u16> {
    prop_oneof![Just(0), Just(1), Just(u16::MAX), any::<u16>()]
}

fn address(is_v4: bool) -> BoxedStrategy<IpAddr> {
    match is_v4 {
        true => edge_u32().prop_map(|bits| Ipv4Addr::from_bits(bits).into()).boxed(),
        false => {
            let bits = prop_oneof![Just(0), Just(u128::MAX), any::<u128>()];
            bits.prop_map(|bits| Ipv6Addr::from_bits(bits).into()).boxed()
        }
    }
}

fn ends() -> impl Strategy<Value = [SocketAddr; 2]> {
    any::<bool>().prop_flat_map(|is_v4| {
        let end = || (address(is_v4), edge_u16()).prop_map(SocketAddr::from);
        [end(), end()]
    })
}

fn selector() -> impl Strategy<Value = Selector> {
    let ports = prop_oneof![
        Just(Selector::ANY_PORT),
        Just(Selector::OPAQUE),
        (edge_u16(), edge_u16()).prop_map(|(a, b)| (a.min(b), a.max(b))),
    ];
    let addresses = any::<bool>().prop_flat_map(|is_v4| (address(is_v4), address(is_v4)));
    (any::<u8>(), ports, addresses).prop_map(|(protocol, ports, (a, b))| Selector {
        protocol,
        ports,
        addresses: (a.min(b), a.max(b)),
    })
}

fn sa_name() -> impl Strategy<Value = SaName> {
    (ends(), edge_u32()).prop_map(|([source, destination], spi)| SaName {
        source,
        destination,
        spi,
    })
}

fn handle() -> impl Strategy<Value = SaHandle> {
    edge_u64().prop_map(|value| SaHandle::new(value.max(1)).unwrap())
}

fn handles(least: usize) -> impl Strategy<Value = Vec<SaHandle>> {
    let count = prop_oneof![Just(least), Just(MAX_HANDLES), least..=MAX_HANDLES];
    count.prop_flat_map(|count| prop::collection::vec(handle(), count))
}

fn algorithm() -> impl Strategy<Value = Algorithm> {
    (edge_u16(), prop::collection::vec(any::<u8>(), 0..=132))
        .prop_map(|(transform, key)| Algorithm { transform, key: Zeroizing::new(key) })
}

fn limits() -> impl Strategy<Value = SaLimits> {
    [edge_u64(), edge_u64(), edge_u64()].prop_map(|[seconds, bytes, packets]| SaLimits {
        seconds,
        bytes,
        packets,
    })
}

fn add_sa() -> impl Strategy<Value = AddSa> {
    let some = || prop::collection::vec(selector(), 1..=MAX_SELECTORS);
    let flags = any::<[bool; 5]>();
    (sa_name(), [edge_u32(), edge_u32()], [algorithm(), algorithm()], [limits(), limits()], flags)
        .prop_flat_map(move |rest| (Just(rest), [some(), some()]))
        .prop_map(|((name, numbers, [encryption, integrity], [soft, hard], flags), selectors)| {
            let [inbound, tunnel, esn, in_udp, initiator] = flags;
            let [reqid, window] = numbers;
            AddSa {
                direction: if inbound { SaDirection::Inbound } else { SaDirection::Outbound },
                name,
                reqid,
                mode: if tunnel { LinkMode::Tunnel } else { LinkMode::Transport },
                encryption,
                integrity,
                esn,
                window,
                in_udp,
                soft,
                hard,
                selectors,
                initiator,
            }
        })
}

fn policy() -> impl Strategy<Value = Policy> {
    use PolicyDirection::{Forward, Inbound, Outbound};
    let direction = prop_oneof![Just(Inbound), Just(Outbound), Just(Forward)];
    (direction, ends(), [selector(), selector()]).prop_map(
        |(direction, [source, destination], selectors)| Policy {
            direction,
            source,
            destination,
            selectors,
        },
    )
}

fn add_policy() -> impl Strategy<Value = AddPolicy> {
    use PolicyAction::{Drop, Pass, Protect};
    let action = prop_oneof![Just(Protect), Just(Pass), Just(Drop)];
    (policy(), action, [edge_u32(), edge_u32(), edge_u32()], any::<bool>()).prop_map(
        |(policy, action, [reqid, spi, priority], repeat)| AddPolicy {
            policy,
            action,
            reqid,
            spi,
            priority,
            repeat,
        },
    )
}

fn request() -> impl Strategy<Value = Request> {
    let text = || "[ -~äß€]{0,100}";
    let moved = || prop::option::of(edge_u32());
    let selectors = prop::option::of(add_sa().prop_map(|sa| sa.selectors));
    let update = (handle(), ends(), any::<bool>(), moved(), selectors).prop_map(
        |(handle, [source, destination], in_udp, reqid, selectors)| UpdateSa {
            handle,
            source,
            destination,
            in_udp,
            reqid,
            selectors,
        },
    );
    let forgotten =
        |policy: AddPolicy| Request::DeletePolicy(AddPolicy { repeat: false, ..policy });
    prop_oneof![
        (any::<[u8; 16]>(), text(), text()).prop_map(|(id, charon, plugin)| {
            Request::Hello(Charon { id: CharonId(id), charon, plugin })
        }),
        ends().prop_map(|[source, destination]| Request::GetSpi { source, destination }),
        add_sa().prop_map(|sa| Request::AddSa(Box::new(sa))),
        update.prop_map(Request::UpdateSa),
        handle().prop_map(Request::QuerySa),
        handle().prop_map(Request::DeleteSa),
        add_policy().prop_map(Request::AddPolicy),
        policy().prop_map(|Policy { direction, selectors, .. }| Request::QueryPolicy {
            direction,
            selectors
        }),
        add_policy().prop_map(forgotten),
        Just(Request::FlushSas),
        Just(Request::FlushPolicies),
        handles(1).prop_map(Request::ResumeSas),
        Just(Request::Resumed),
        (handle(), edge_u32(), "[ -~]{1,128}", "[ -~]{1,128}")
            .prop_map(|(handle, reqid, ike, child)| NameSa { handle, reqid, ike, child })
            .prop_map(Request::NameSa),
    ]
}

fn told() -> impl Strategy<Value = Told> {
    let usage = (edge_u64(), edge_u64(), prop::option::of(0..u64::MAX))
        .prop_map(|(packets, bytes, idle_seconds)| Use { packets, bytes, idle_seconds });
    let status = (0..Status::ALL.len()).prop_map(|place| Status::ALL[place]);
    let named = (prop::option::of(handle()), handles(0));
    let answer =
        (status, "[ -~äß€]{0,20}", prop::option::of(edge_u32()), named, prop::option::of(usage))
            .prop_map(|(status, text, spi, (handle, lacking), usage)| {
                Told::Answer(Answer { status, text, spi, handle, lacking, usage })
            });
    let acquire = (edge_u32(), [selector(), selector()])
        .prop_map(|(reqid, selectors)| Report::Acquire { reqid, selectors });
    let hardness = prop_oneof![Just(Hardness::Soft), Just(Hardness::Hard)];
    let expire =
        (handle(), hardness).prop_map(|(handle, hardness)| Report::Expire { handle, hardness });
    let mapping =
        (handle(), ends()).prop_map(|(handle, [peer, _])| Report::Mapping { handle, peer });
    prop_oneof![answer, prop_oneof![acquire, expire, mapping].prop_map(Told::Report)]
}

/// The header of a request with a number.
fn asked(number: u32) -> Header {
    Header { version: VERSION, kind: 1, number, incarnation: 0 }
}

fn written(told: &Told, number: u32, incarnation: u64) -> Zeroizing<Vec<u8>> {
    match told {
        Told::Answer(answer) => encode_answer(&asked(number), incarnation, answer),
        Told::Report(report) => encode_report(incarnation, report),
    }
}

proptest! {
    #[test]
    fn a_request_is_read_as_it_was_written_and_only_whole(
        request in request(), number in edge_u32(), incarnation in edge_u64(), cut in any::<u16>(),
    ) {
        let bytes = encode_request(number, incarnation, &request);
        let (header, read) = decode(&bytes).unwrap();
        prop_assert!(read == request);
        prop_assert_eq!((header.number, header.incarnation), (number, incarnation));
        let cut = usize::from(cut) % bytes.len();
        prop_assert!(decode(&bytes[..cut]).is_err());
        let longer = [&bytes[..], &[0]].concat();
        prop_assert!(decode(&longer).is_err());
    }

    #[test]
    fn what_lockgated_tells_is_read_as_it_was_written_and_only_whole(
        told in told(), number in edge_u32(), incarnation in edge_u64(), cut in any::<u16>(),
    ) {
        let bytes = written(&told, number, incarnation);
        let (header, read) = decode_told(&bytes).unwrap();
        prop_assert_eq!(&read, &told);
        prop_assert_eq!(header.incarnation, incarnation);
        let is_report = matches!(told, Told::Report(_));
        prop_assert_eq!(header.number, if is_report { 0 } else { number });
        let cut = usize::from(cut) % bytes.len();
        prop_assert!(decode_told(&bytes[..cut]).is_err());
    }

    #[test]
    fn changed_bytes_never_panic_and_what_is_read_is_written_again_as_it_came(
        request in request(),
        changes in prop::collection::vec((any::<u16>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = encode_request(7, 9, &request);
        let length = bytes.len();
        for (place, byte) in changes {
            bytes[usize::from(place) % length] = byte;
        }
        if let Ok((header, read)) = decode(&bytes) {
            let again = encode_request(header.number, header.incarnation, &read);
            let known = decode(&again).ok().map(|(_, known)| known == read);
            prop_assert_eq!(known, Some(true));
        }
    }

    #[test]
    fn a_selector_covers_another_exactly_if_it_has_all_of_its_packets(
        a in small_selector(), b in small_selector(),
    ) {
        // The obvious twin: every packet of a small world.
        let all = packets();
        let has_all = all.iter().filter(|packet| contains(&b, packet)).all(|p| contains(&a, p));
        // A selector of no packet of this world says nothing.
        prop_assume!(all.iter().any(|packet| contains(&b, packet)));
        prop_assert_eq!(a.covers(&b), has_all, "{} and {}", a, b);
    }
}

/// Protocol, port if it is known, last byte of the address.
type Packet = (u8, Option<u16>, u8);

fn packets() -> Vec<Packet> {
    let ports = [None, Some(0), Some(1), Some(65_534), Some(65_535)];
    let of = |protocol| {
        ports.into_iter().flat_map(move |port| (0..4).map(move |end| (protocol, port, end)))
    };
    (1..=255).filter(|protocol| [1, 6, 17, 200].contains(protocol)).flat_map(of).collect()
}

fn small_selector() -> impl Strategy<Value = Selector> {
    let port = || prop_oneof![Just(0), Just(1), Just(65_534), Just(65_535)];
    let ports = prop_oneof![
        Just(Selector::ANY_PORT),
        Just(Selector::OPAQUE),
        (port(), port()).prop_map(|(a, b): (u16, u16)| (a.min(b), a.max(b))),
    ];
    let protocol = prop_oneof![Just(0), Just(6), Just(17)];
    (protocol, ports, 0u8..4, 0u8..4).prop_map(|(protocol, ports, a, b)| Selector {
        protocol,
        ports,
        addresses: (at(a.min(b)), at(a.max(b))),
    })
}

fn at(end: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, end).into()
}

fn contains(selector: &Selector, (protocol, port, end): &Packet) -> bool {
    let (first, last) = selector.addresses;
    let port_fits = match port {
        // RFC 7296: any ports, or OPAQUE, is what a packet without known ports is of.
        None => [Selector::ANY_PORT, Selector::OPAQUE].contains(&selector.ports),
        Some(port) => selector.port_range().contains(port),
    };
    [0, *protocol].contains(&selector.protocol) && port_fits && (first..=last).contains(&at(*end))
}

fn hello() -> Vec<u8> {
    let hello = Charon { id: CharonId([3; 16]), charon: "5.9.8".into(), plugin: "1".into() };
    encode_request(1, 0, &Request::Hello(hello)).to_vec()
}

/// The reason why a request is refused.
fn refusal(bytes: &[u8]) -> Option<Malformed> {
    decode(bytes).err()
}

#[test]
fn each_mistake_is_named_and_an_answer_finds_the_number() {
    let with = |place: usize, byte: u8| {
        let mut bytes = hello();
        bytes[place] = byte;
        bytes
    };
    assert!(refusal(&hello()).is_none());
    assert_eq!(refusal(&with(0, 0)), Some(Malformed::Magic));
    assert_eq!(refusal(&with(5, 1)), Some(Malformed::Version(1)));
    assert_eq!(refusal(&with(7, 99)), Some(Malformed::Kind(99)));
    assert_eq!(refusal(&with(15, 1)), Some(Malformed::Length(hello().len())));
    assert_eq!(refusal(&with(HEADER_BYTES + 1, 31)), Some(Malformed::Missing(34)));
    assert_eq!(refusal(&with(HEADER_BYTES + 3, 200)), Some(Malformed::Cut));
    // A control character in CHARON, behind the 20 bytes of CHARON_ID.
    assert_eq!(refusal(&with(HEADER_BYTES + 24, 10)), Some(Malformed::Value(3)));
    assert_eq!(refusal(&[]), Some(Malformed::Length(0)));
    assert_eq!(refusal(&vec![0; MAX_MESSAGE + 1]), Some(Malformed::Length(MAX_MESSAGE + 1)));
    let header = Malformed::header_of(&with(5, 1)).unwrap();
    assert_eq!((header.version, header.kind, header.number), (1, 1, 1));
    assert!(Malformed::header_of(&with(0, 0)).is_none());
}

#[test]
fn a_field_twice_or_of_another_kind_is_refused() {
    let field = |name: u16, value: &[u8]| {
        [&name.to_be_bytes()[..], &(value.len() as u16).to_be_bytes(), value].concat()
    };
    let more = |extra: &[u8]| {
        let mut bytes = [&hello()[..], extra].concat();
        let length = bytes.len() as u32;
        bytes[12..16].copy_from_slice(&length.to_be_bytes());
        bytes
    };
    assert_eq!(refusal(&more(&field(3, b"5.9.8"))), Some(Malformed::Field(3)));
    assert_eq!(refusal(&more(&field(7, &[0; 4]))), Some(Malformed::Field(7)));
    assert_eq!(refusal(&more(&field(500, &[]))), Some(Malformed::Field(500)));
    let selector = field(20, &[0, 0, 0, 0, 255, 255, 10, 0, 0, 0, 10, 0, 0, 1]);
    assert_eq!(refusal(&more(&selector)), Some(Malformed::Field(20)));
}

#[test]
fn a_sentence_that_is_too_long_is_cut_between_characters() {
    let long = "€".repeat(400) + "\n";
    let bytes = encode_answer(&asked(1), 2, &Answer::plain(Status::Refused, long));
    let (_, Told::Answer(answer)) = decode_told(&bytes).unwrap() else { panic!("a report") };
    assert_eq!(answer.text, "€".repeat(170));
}

#[test]
fn keys_are_not_printed() {
    let key = Zeroizing::new(vec![77; 36]);
    let printed = format!("{:?}", Algorithm { transform: 20, key });
    assert_eq!(printed, "transform 20 with 36 bytes of key");
}

#[test]
fn a_name_is_short_and_printable() {
    let handle = SaHandle::new(7).unwrap();
    let named = |child: &str| {
        let (ike, child) = ("gw-b".to_owned(), child.to_owned());
        let request = Request::NameSa(NameSa { handle, reqid: 1, ike, child });
        decode(&encode_request(1, 2, &request)).map(drop)
    };
    assert_eq!(named(&"n".repeat(MAX_NAME)), Ok(()));
    for wrong in ["", "a\nb", "b\u{fc}ro", "\u{202e}", &"n".repeat(MAX_NAME + 1)] {
        assert_eq!(named(wrong), Err(Malformed::Value(31)), "{wrong:?}");
    }
}

#[test]
fn handles_are_a_thousand_at_most_and_none_is_zero() {
    // A request to resume SAs whose HANDLES have these bytes.
    let resume = |handles: &[u8]| {
        let mut bytes = encode_request(1, 2, &Request::Resumed).to_vec();
        bytes[6..8].copy_from_slice(&14_u16.to_be_bytes());
        bytes.extend([&[0, 33][..], &(handles.len() as u16).to_be_bytes(), handles].concat());
        let length = bytes.len() as u32;
        bytes[12..16].copy_from_slice(&length.to_be_bytes());
        decode(&bytes).map(drop)
    };
    assert_eq!(resume(&[1; 8 * MAX_HANDLES]), Ok(()));
    for wrong in [&[][..], &[1; 7], &[1; 12], &[0; 8], &[1; 8 * (MAX_HANDLES + 1)]] {
        assert_eq!(resume(wrong), Err(Malformed::Value(33)), "{} bytes", wrong.len());
    }
    let delete = encode_request(1, 2, &Request::DeleteSa(SaHandle::new(1).unwrap()));
    let zero = [&delete[..delete.len() - 8], &[0; 8]].concat();
    assert_eq!(decode(&zero).err(), Some(Malformed::Value(32)));
}

/// A plugin of another version reads the answer.
#[test]
fn an_answer_has_the_version_and_the_number_of_its_request() {
    let mut bytes = hello();
    bytes[5] = 1;
    let header = Malformed::header_of(&bytes).unwrap();
    let why = refusal(&bytes).unwrap();
    let answer = encode_answer(&header, 9, &Answer::plain(Status::OtherVersion, why.to_string()));
    let answered = Malformed::header_of(&answer).unwrap();
    assert_eq!((answered.version, answered.number, answered.incarnation), (1, 1, 9));
    let text = String::from_utf8_lossy(&answer);
    assert!(text.contains("this plugin version 1: install lockgate-charon of release"), "{text}");
}
