use super::*;
use dataplane::tap::Subject;
use dataplane::{PortId, SetIndex, Verdict};
use proptest::prelude::*;
use wire::{Address, Flow, Upper};

fn refused(text: &str) -> String {
    parse_filter(text).expect_err(text).to_string()
}

/// Addresses, prefixes and ports that packets and filters are drawn from.
const ADDRESSES: &[&str] = &["10.1.0.5", "10.2.0.7", "192.0.2.1", "2001:db8::5", "2001:db8:2::7"];
const PREFIXES: &[&str] = &["10.1.0.0/16", "10.0.0.0/8", "0.0.0.0/0", "2001:db8::/48", "::/0"];
const PORTS: &[u16] = &[22, 443, 500, 4500];

type Oracle = std::rc::Rc<dyn Fn(&Subject) -> bool>;

/// A filter as text, and what it means.
#[derive(Clone)]
struct Said {
    text: String,
    means: Oracle,
}

impl std::fmt::Debug for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

fn said(text: impl Into<String>, means: impl Fn(&Subject) -> bool + 'static) -> Said {
    Said { text: text.into(), means: std::rc::Rc::new(means) }
}

/// The bits of an address as text: the plainest prefix match.
fn bits(address: Address) -> String {
    match address.family {
        Family::V4 => format!("4:{:032b}", address.value),
        Family::V6 => format!("6:{:0128b}", address.value),
    }
}

fn is_in(address: Address, prefix: &str) -> bool {
    let (first, length) = prefix.split_once('/').unwrap();
    let first: std::net::IpAddr = first.parse().unwrap();
    let counted = 2 + length.parse::<usize>().unwrap();
    bits(address).get(..counted) == bits(first.into()).get(..counted)
}

const ENDS: &[&str] = &["", "src ", "dst ", "src or dst ", "src and dst "];

fn by_ends(ends: &str, source: bool, destination: bool) -> bool {
    match ends {
        "src " => source,
        "dst " => destination,
        "src and dst " => source && destination,
        _ => source || destination,
    }
}

fn ends_of(flow: &Flow) -> [Address; 2] {
    [flow.source_address(), flow.destination_address()]
}

fn a_test() -> BoxedStrategy<Said> {
    let ends = || prop::sample::select(ENDS);
    let host = (ends(), prop::sample::select(ADDRESSES)).prop_map(|(ends, address)| {
        said(format!("{ends}host {address}"), move |s| {
            let Some(flow) = s.flow else { return false };
            let [a, b] = ends_of(&flow).map(|end| end.to_string() == address);
            by_ends(ends, a, b)
        })
    });
    let net = (ends(), prop::sample::select(PREFIXES)).prop_map(|(ends, prefix)| {
        said(format!("{ends}net {prefix}"), move |s| {
            let Some(flow) = s.flow else { return false };
            let [a, b] = ends_of(&flow).map(|end| is_in(end, prefix));
            by_ends(ends, a, b)
        })
    });
    let transport = prop::sample::select(&["", "tcp ", "udp "][..]);
    let port = (transport, ends(), prop::sample::select(PORTS)).prop_map(|(over, ends, port)| {
        said(format!("{over}{ends}port {port}"), move |s| {
            let Some(flow) = s.flow else { return false };
            let Upper::Ports { source, destination } = flow.upper else { return false };
            let is_over = match over {
                "tcp " => flow.protocol == 6,
                "udp " => flow.protocol == 17,
                _ => true,
            };
            is_over && by_ends(ends, source == port, destination == port)
        })
    });
    let protocols = &[("tcp", 6), ("udp", 17), ("icmp", 1), ("esp", 50), ("proto 50", 50)];
    let protocol = prop::sample::select(&protocols[..]).prop_map(|(word, number)| {
        said(word, move |s| s.flow.is_some_and(|flow| flow.protocol == number))
    });
    let reason = prop::sample::select(DropReason::ALL).prop_map(|reason| {
        said(format!("reason {reason}"), move |s| s.verdict == Some(Verdict::Drop(reason)))
    });
    let plain = prop_oneof![
        Just(said("ip", |s| s
            .flow
            .is_some_and(|flow| flow.source_address().to_string().contains('.')))),
        Just(said("ip6", |s| s.flow.is_some_and(|f| f.source_address().to_string().contains(':')))),
        Just(said("inbound", |s| s.heading == Heading::In)),
        Just(said("outbound", |s| s.heading == Heading::Out)),
        Just(said("greater 500", |s| s.length >= 500)),
        Just(said("less 500", |s| s.length <= 500)),
        Just(said("verdict drop", |s| matches!(s.verdict, Some(Verdict::Drop(_))))),
        Just(said("verdict protect", |s| matches!(s.verdict, Some(Verdict::Protect(_))))),
    ];
    prop_oneof![host, net, port, protocol, reason, plain].boxed()
}

fn a_filter() -> BoxedStrategy<Said> {
    let join = |a: Said, b: Said, is_and: bool, sign: bool| {
        let word = match (is_and, sign) {
            (true, true) => "&&",
            (true, false) => "and",
            (false, true) => "||",
            (false, false) => "or",
        };
        let (text, one, other) = (format!("{} {word} {}", a.text, b.text), a.means, b.means);
        said(text, move |s| if is_and { one(s) && other(s) } else { one(s) || other(s) })
    };
    a_test()
        .prop_recursive(4, 16, 3, move |inner| {
            let closed =
                inner.clone().prop_map(|one| Said { text: format!("({})", one.text), ..one });
            let not = (closed.clone(), any::<bool>()).prop_map(|(one, sign)| {
                let means = one.means.clone();
                let word = if sign { "!" } else { "not " };
                said(format!("{word}{}", one.text), move |s| !means(s))
            });
            // From left to right: what stands left needs no parentheses, what stands right does.
            let joined = (inner, closed, any::<bool>(), any::<bool>())
                .prop_map(move |(a, b, is_and, sign)| join(a, b, is_and, sign));
            prop_oneof![not, joined]
        })
        .boxed()
}

fn a_subject() -> impl Strategy<Value = Subject> {
    let address = prop::sample::select(ADDRESSES);
    let port = || prop::sample::select(PORTS);
    let upper = prop_oneof![
        (port(), port()).prop_map(|(source, destination)| Upper::Ports { source, destination }),
        Just(Upper::None),
        Just(Upper::Fragment),
        Just(Upper::Icmp { kind: 8, code: 0 }),
    ];
    let protocol = prop::sample::select(&[6u8, 17, 1, 50][..]);
    let flow = (address.clone(), address, protocol, upper).prop_map(|(a, b, protocol, upper)| {
        let [a, b] = [a, b].map(|text| Address::from(text.parse::<IpAddr>().unwrap()));
        let (source, destination) = (a.value, b.value);
        (a.family == b.family).then_some(Flow {
            family: a.family,
            source,
            destination,
            protocol,
            upper,
            opens: false,
        })
    });
    let verdict = prop_oneof![
        Just(None),
        Just(Some(Verdict::Forward(PortId(1)))),
        Just(Some(Verdict::Protect(SetIndex(0)))),
        prop::sample::select(DropReason::ALL).prop_map(|reason| Some(Verdict::Drop(reason))),
    ];
    let heading = prop_oneof![Just(Heading::In), Just(Heading::Out)];
    (flow, 0u32..1000, heading, verdict).prop_map(|(flow, length, heading, verdict)| Subject {
        flow,
        length,
        heading,
        verdict,
    })
}

proptest! {
    #[test]
    fn a_filter_accepts_what_a_plain_reading_of_it_accepts(
        filter in a_filter(),
        subjects in prop::collection::vec(a_subject(), 1..40),
    ) {
        let parsed = parse_filter(&filter.text).map_err(|error| error.to_string());
        let parsed = match parsed {
            // Deep ones are refused, and only those.
            Err(text) => {
                prop_assert!(text.contains("at most"), "{}: {text}", filter.text);
                return Ok(());
            }
            Ok(parsed) => parsed.unwrap(),
        };
        for subject in subjects {
            let expected = (filter.means)(&subject);
            prop_assert_eq!(parsed.accepts(&subject), expected, "{} of {:?}", filter.text, subject);
        }
    }

    #[test]
    fn no_text_makes_the_parser_panic_and_no_message_fills_a_screen(
        words in prop::collection::vec(
            prop_oneof![
                3 => prop::sample::select(WORDS).prop_map(str::to_owned),
                1 => prop::sample::select(JOINTS).prop_map(str::to_owned),
                1 => prop::sample::select(&["(", ")", "!", "10.1.0.5", "::/0", "443", "1-"][..])
                    .prop_map(str::to_owned),
                1 => any::<String>(),
            ],
            0..30,
        ),
        glued: bool,
    ) {
        let text = words.join(if glued { "" } else { " " });
        if let Err(error) = parse_filter(&text) {
            let message = error.to_string();
            prop_assert!(message.len() < 600, "{message}");
            let plain = |sign: char| sign == '\n' || sign == ' ' || sign.is_ascii_graphic();
            prop_assert!(message.chars().all(plain), "{message:?}");
        }
    }
}

#[test]
fn mistakes_name_the_word_and_the_nearest_right_one() {
    let cases = [
        (
            "hosst 10.1.0.5",
            "\"hosst\" is no word of a filter: did you mean \"host\"?\n  hosst 10.1.0.5\n  ^^^^^",
        ),
        ("tcp and", "after \"and\" a test should follow"),
        ("host", "after \"host\" an address should follow"),
        ("host gw.example", "\"gw.example\" is not an IP address (names are not resolved)"),
        ("10.1.0.5", "\"10.1.0.5\": say what about it, for example `host 10.1.0.5`"),
        ("net 10.1.0.1/16", "the network is 10.1.0.0/16"),
        ("port 70000", "ports go from 0 to 65535"),
        ("reason no_mach", "there is no drop reason \"no_mach\": did you mean \"no_match\"?"),
        ("verdict dropped", "there is no verdict \"dropped\": did you mean \"drop\"?"),
        ("proto tpc", "there is no protocol \"tpc\"; write its name"),
        ("tcp udp", "write `and` or `or` before \"udp\"\n  tcp udp\n      ^^^"),
        ("(tcp", "this \"(\" is not closed"),
        ("tcp)", "this \")\" closes nothing"),
        ("tcp src 10.1.0.5", "after \"src\" `port` or `portrange` should follow"),
        ("less many", "\"many\" is not a number of bytes"),
    ];
    for (text, expected) in cases {
        let message = refused(text);
        assert!(message.contains(expected), "{text}: {message}");
    }
    let long = "tcp or ".repeat(100) + "udp";
    assert!(refused(&long).contains("at most 64"), "{}", refused(&long));
    assert!(refused(&"x".repeat(2000)).contains("longer than 1024"));
    assert!(refused(&"(".repeat(1000)).contains("at most 64"));
}

#[test]
fn and_and_or_bind_alike_and_from_left_to_right_as_in_pcap_filter() {
    let parsed = |text| parse_filter(text).unwrap();
    assert_eq!(parsed("tcp or udp and port 53"), parsed("(tcp or udp) and port 53"));
    assert_ne!(parsed("tcp or udp and port 53"), parsed("tcp or (udp and port 53)"));
    assert_eq!(parsed("not tcp and udp"), parsed("(not tcp) and udp"));
    assert_eq!(parsed("src 10.1.0.5"), parsed("src host 10.1.0.5"));
    assert_eq!(parsed("  "), None);
}
