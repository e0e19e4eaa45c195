//! Requests against bytes that `ip` sent (see `tests/xfrm_golden/README.md`), and answers that were
//! made by hand.

use std::net::IpAddr;

use super::socket::{kernel_text, news_of};
use super::*;

const REQID: u32 = 0x4c47_0001;
const KEY: [u8; 20] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19];

fn golden(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/xfrm_golden/{name}.hex", env!("CARGO_MANIFEST_DIR"));
    let text: String = std::fs::read_to_string(path).unwrap().split_whitespace().collect();
    let byte = |place: usize| u8::from_str_radix(&text[place..place + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn ends(source: &str, destination: &str) -> XfrmEnds {
    XfrmEnds { source: ip(source), destination: ip(destination) }
}

fn out() -> XfrmSa<'static> {
    XfrmSa {
        way: SaWay::Out,
        spi: 0x1001,
        ends: ends("192.0.2.1", "198.51.100.7"),
        reqid: REQID,
        cipher: cipher_name("aes-128-gcm").unwrap(),
        key: &KEY,
        window: 0,
        esn: false,
        limits: XfrmLimits::default(),
        offload: None,
    }
}

fn policy(way: PolicyWay, source: &str, destination: &str) -> XfrmPolicy {
    let prefix = |text: &str| {
        let (address, bits) = text.split_once('/').unwrap();
        (ip(address), bits.parse().unwrap())
    };
    let [here, there] = match source.contains(':') {
        false => ["192.0.2.1", "198.51.100.7"],
        true => ["2001:db8::1", "2001:db8::7"],
    };
    XfrmPolicy {
        way,
        selector: XfrmSelector {
            source: prefix(source),
            destination: prefix(destination),
            protocol: None,
            source_port: None,
            destination_port: None,
        },
        priority: 100,
        ends: if way == PolicyWay::Out { ends(here, there) } else { ends(there, here) },
        reqid: REQID,
        packet_offload: None,
    }
}

#[test]
fn requests_are_the_bytes_that_ip_sends() {
    let limits = XfrmLimits {
        soft_packets: Some(1000),
        hard_packets: Some(2000),
        soft_bytes: Some(3000),
        hard_bytes: Some(4000),
        soft_seconds: Some(50),
        hard_seconds: Some(60),
    };
    let card = OffloadTo { ifindex: 1, mode: OffloadMode::Crypto };
    let six = XfrmSa {
        way: SaWay::In,
        spi: 0x2001,
        ends: ends("2001:db8::7", "2001:db8::1"),
        window: 32,
        offload: Some(card),
        ..out()
    };
    let esn = XfrmSa {
        way: SaWay::In,
        spi: 0x2001,
        ends: ends("198.51.100.7", "192.0.2.1"),
        window: 128,
        esn: true,
        ..out()
    };
    for (name, sa) in [
        ("state_out", XfrmSa { limits, ..out() }),
        ("state_in_esn", esn),
        ("state_crypto_out", XfrmSa { offload: Some(card), ..out() }),
        ("state_crypto_in6", six),
    ] {
        assert_eq!(encode::new_sa(&sa).as_slice(), golden(name), "{name}");
    }
    let id = encode::sa_id(out().ends, 0x1001, encode::ESP);
    assert_eq!(id, golden("state_del"));
    assert_eq!(id, golden("state_get"));

    let leaves = policy(PolicyWay::Out, "10.1.0.0/16", "10.2.0.0/16");
    assert_eq!(encode::new_policy(&leaves), golden("policy_out"));
    assert_eq!(encode::delete_policy(&leaves), golden("policy_del"));
    let comes = policy(PolicyWay::In, "10.2.0.0/16", "10.1.0.0/16");
    assert_eq!(encode::new_policy(&comes), golden("policy_in"));
    let mut passes = policy(PolicyWay::Forward, "2001:db8:2::/64", "2001:db8:1::/64");
    passes.priority = 7;
    passes.selector.protocol = Some(6);
    passes.selector.destination_port = Some(443);
    assert_eq!(encode::new_policy(&passes), golden("policy_fwd6"));
}

/// The flag is of Linux 6.2; `ip` of Debian 12 cannot say it. Where it goes is what crypto mode
/// shows: the byte behind the index of `struct xfrm_user_offload`.
#[test]
fn packet_mode_is_one_bit_more_in_a_state_and_the_only_one_in_a_policy() {
    let card = |mode| Some(OffloadTo { ifindex: 1, mode });
    let crypto = encode::new_sa(&XfrmSa { offload: card(OffloadMode::Crypto), ..out() });
    let packet = encode::new_sa(&XfrmSa { offload: card(OffloadMode::Packet), ..out() });
    let differ: Vec<(usize, u8, u8)> = (0..crypto.len())
        .filter(|at| crypto[*at] != packet[*at])
        .map(|at| (at, crypto[at], packet[at]))
        .collect();
    let [(at, 0, 4)] = differ[..] else { panic!("{differ:?}") };
    // Attribute 28 (XFRMA_OFFLOAD_DEV), 12 bytes: length, kind, index, flags.
    assert_eq!(crypto[at - 8..at], [12, 0, 28, 0, 1, 0, 0, 0]);

    let mut leaves = policy(PolicyWay::Out, "10.1.0.0/16", "10.2.0.0/16");
    let plain = encode::new_policy(&leaves);
    leaves.packet_offload = Some(258);
    let offloaded = encode::new_policy(&leaves);
    assert_eq!(offloaded[..plain.len()], plain);
    assert_eq!(offloaded[plain.len()..], [12, 0, 28, 0, 2, 1, 0, 0, 4, 0, 0, 0]);
}

#[test]
fn what_was_asked_for_is_read_back_without_its_key() {
    let card = OffloadTo { ifindex: 7, mode: OffloadMode::Packet };
    let mut bytes = encode::new_sa(&XfrmSa { offload: Some(card), ..out() }).to_vec();
    // Counts of use stand behind the limits: bytes, packets.
    bytes[160..168].copy_from_slice(&999u64.to_ne_bytes());
    bytes[168..176].copy_from_slice(&9u64.to_ne_bytes());
    let found = decode::sa(&bytes).unwrap();
    assert_eq!((found.spi, found.reqid, found.offload), (0x1001, REQID, Some(card)));
    assert_eq!((found.source, found.destination), (ip("192.0.2.1"), ip("198.51.100.7")));
    assert_eq!((found.packets, found.bytes), (9, 999));
    let leaves = policy(PolicyWay::Out, "10.1.0.0/16", "10.2.0.0/16");
    let found = decode::policy(&encode::new_policy(&leaves)).unwrap();
    assert_eq!(found, FoundPolicy { direction: 1, index: 0, reqid: Some(REQID) });
    let shown = format!("{:?}", out());
    assert!(!shown.contains("17, 18") && !shown.contains("1112"), "{shown}");
}

#[test]
fn an_expiry_names_the_sa_and_says_whether_it_goes_on() {
    let mut bytes = encode::new_sa(&out())[..224].to_vec();
    for hard in [0, 1] {
        bytes.truncate(224);
        bytes.extend([hard, 0, 0, 0, 0, 0, 0, 0]);
        let Some(XfrmNews::Expired { sa, hard: told }) = news_of(0x18, &bytes) else { panic!() };
        assert_eq!((sa.spi, told), (0x1001, hard == 1));
    }
    assert_eq!(news_of(0x18, &bytes[..100]), None);
    assert_eq!(news_of(0x10, &bytes), None);
}

#[test]
fn the_text_of_the_kernel_is_found_behind_the_request_or_without_it() {
    let mut error = (-22i32).to_ne_bytes().to_vec();
    let mut header = [0u8; 16];
    header[0] = 24;
    error.extend(header);
    // The request is repeated, then comes the text, attribute 1.
    let mut whole = error.clone();
    whole.extend([9; 8]);
    let text = [12, 0, 1, 0, b'n', b'o', 7, b' ', b'E', b'S', b'P', 0];
    whole.extend(text);
    assert_eq!(kernel_text(0x200, &whole).as_deref(), Some("no ESP"));
    let mut capped = error.clone();
    capped.extend(text);
    assert_eq!(kernel_text(0x300, &capped).as_deref(), Some("no ESP"));
    assert_eq!(kernel_text(0, &whole), None);
    for length in 0..whole.len() {
        // Cut anywhere it is read without a panic.
        let _ = kernel_text(0x200, &whole[..length]);
    }
}
