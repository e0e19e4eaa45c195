//! SAs on the profiles: what fits where, and why the rest does not.

use super::super::{
    Carries, Ends, OuterDontFragment, OuterDscp, OuterEcn, PolicyAction, SaKey, SaLimits, UdpEnds,
};
use super::*;
use crate::Handle;
use crate::pattern::{Pattern, Segments, Span};

/// An SA that seals, carried by the kernel in transport mode: it fits every profile with SAs.
pub(in super::super) fn sa(change: impl FnOnce(&mut CardSa)) -> CardSa {
    let ends = Ends { source: [192, 0, 2, 1].into(), destination: [198, 51, 100, 7].into() };
    let mut sa = CardSa {
        direction: SaDirection::Out,
        spi: 0x1000,
        ends,
        mode: SaMode::Transport,
        udp: None,
        service: Service::Packet,
        carrier: Carrier::Kernel,
        suite: "aes-256-gcm".into(),
        key: SaKey::new(&[7; 36]),
        icv_bytes: 16,
        numbers: Numbers::Short,
        window: 128,
        first_number: 1,
        flow_confidentiality: FlowConfidentiality::Off,
        limits: SaLimits { hard_packets: Some(4_000_000), ..SaLimits::default() },
        carries: Carries::default(),
    };
    change(&mut sa);
    sa
}

const EXACTLY: OuterFields = OuterFields::Exactly {
    hop_limit: 64,
    dscp: OuterDscp::Copy,
    ecn: OuterEcn::Rfc6040,
    dont_fragment: OuterDontFragment::Set,
};

fn abilities(profile: &str) -> SaAbilities {
    let profile: Capabilities = profile.parse().unwrap();
    *profile.sas.get().unwrap()
}

type Change = fn(&mut CardSa);
const TUNNEL: Change = |sa| sa.mode = SaMode::Tunnel(OuterFields::LeftToCard);
const TUNNEL_EXACTLY: Change = |sa| sa.mode = SaMode::Tunnel(EXACTLY);
const NAT: Change = |sa| sa.udp = Some(UdpEnds { source: 4500, destination: 4500 });
const ESN: Change = |sa| sa.numbers = Numbers::Extended;
const TFC: Change = |sa| sa.flow_confidentiality = FlowConfidentiality::To(1400);
const INBOUND: Change = |sa| (sa.direction, sa.limits) = (SaDirection::In, SaLimits::default());
const WIDE: Change = |sa| (sa.direction, sa.window) = (SaDirection::In, 1024);
const OWN_OUT: Change = |sa| sa.carrier = Carrier::Worker;
const OWN_IN: Change = |sa| (sa.direction, sa.carrier) = (SaDirection::In, Carrier::Worker);
const BYTES: Change = |sa| sa.limits.hard_bytes = Some(1 << 40);
const FRAGMENTS: Change = |sa| sa.carries.fragments = Need::Needed;
const OPTIONS: Change = |sa| sa.carries.options = Need::Needed;
const CHACHA: Change = |sa| sa.suite = "chacha20-poly1305".into();

/// The reasons of v9, 6.4+, mlx5-as-read and an emulated card, in packet mode.
#[rustfmt::skip]
const TABLE: [(&str, Change, [Option<Unfit>; 4]); 15] = {
    use Unfit::*;
    [
        ("as it is", |_| (), [None, None, None, None]),
        ("inbound", INBOUND, [None, None, None, None]),
        // XO-09
        ("tunnel, outer header left to the card", TUNNEL,
            [Some(Tunnel), None, Some(Tunnel), None]),
        ("tunnel, outer header exactly", TUNNEL_EXACTLY,
            [Some(Tunnel), Some(OuterHeader), Some(Tunnel), None]),
        // XO-31
        ("ESP in UDP", NAT,
            [Some(NatTraversal), Some(NatTraversal), Some(NatTraversal), None]),
        ("TFC", TFC, [Some(Tfc), Some(Tfc), Some(Tfc), Some(Tfc)]),
        // XO-32
        ("ESN", ESN, [Some(Esn), Some(Esn), None, None]),
        ("a window of 1024", WIDE, [Some(Window), Some(Window), Some(Window), None]),
        ("sent by a worker", OWN_OUT,
            [Some(TransmitBySelector), Some(TransmitBySelector), Some(TransmitBySelector), None]),
        ("received by a worker", OWN_IN, [Some(RxSaMark), Some(RxSaMark), Some(RxSaMark), None]),
        ("a limit of bytes", BYTES,
            [Some(ByteLimits), Some(ByteLimits), Some(ByteLimits), Some(ByteLimits)]),
        ("fragments", FRAGMENTS,
            [Some(Fragments), Some(Fragments), Some(Fragments), Some(Fragments)]),
        ("options", OPTIONS, [Some(Options), Some(Options), Some(Options), Some(Options)]),
        ("ChaCha20-Poly1305", CHACHA, [Some(Suite), Some(Suite), Some(Suite), None]),
        ("an ICV of 12 bytes", |sa| sa.icv_bytes = 12,
            [Some(Icv), Some(Icv), Some(Icv), Some(Icv)]),
    ]
};

// XO-09, XO-31, XO-32
#[test]
fn each_profile_carries_what_it_can_and_names_what_it_cannot() {
    for (what, change, expected) in TABLE {
        for (profile, expected) in
            ["v9", "6.4+", "mlx5-as-read", "emulated:sas=10"].into_iter().zip(expected)
        {
            let found = sa_fits(&sa(change), &abilities(profile), Service::Packet).err();
            assert_eq!(found, expected, "{what} on {profile}");
        }
    }
}

#[test]
fn a_card_for_rules_has_no_sas() {
    let card = Capabilities::named("acl-2000").unwrap();
    assert_eq!(card.sa_fits(&sa(|_| ())), Err(Unfit::NoSas));
    let card: Capabilities = "emulated".parse().unwrap();
    assert_eq!(card.sa_fits(&sa(|_| ())), Err(Unfit::NoSas));
    let card: Capabilities = "emulated:sas=1".parse().unwrap();
    assert_eq!(card.sa_fits(&sa(|_| ())), Ok(()));
}

// XO-29: never served as crypto
#[test]
fn a_card_that_knows_ciphers_alone_refuses_packet_mode() {
    let card = SaAbilities { packet: Ability::Lacks("ciphers alone"), ..abilities("6.4+") };
    assert_eq!(sa_fits(&sa(|_| ()), &card, Service::Packet), Err(Unfit::Packet));
    // The kernel that carries the packets counts them otherwise.
    assert_eq!(sa_fits(&sa(|_| ()), &card, Service::Crypto), Err(Unfit::KernelLimits));
    let unlimited = sa(|sa| sa.limits = SaLimits::default());
    assert_eq!(sa_fits(&unlimited, &card, Service::Crypto), Ok(()));
    let card = SaAbilities { crypto: Ability::Lacks("packets alone"), ..abilities("6.4+") };
    assert_eq!(sa_fits(&sa(|_| ()), &card, Service::Crypto), Err(Unfit::Crypto));
}

#[test]
fn crypto_mode_leaves_headers_windows_and_limits_to_the_host_and_nothing_else() {
    let card = abilities("emulated:sas=10");
    for change in [TUNNEL, TUNNEL_EXACTLY, WIDE, BYTES, FRAGMENTS, OPTIONS] {
        let sa = sa(|sa| {
            change(sa);
            sa.carrier = Carrier::Worker;
        });
        assert_eq!(sa_fits(&sa, &card, Service::Crypto), Ok(()));
    }
    let card = abilities("v9");
    for (change, unfit) in [
        (NAT, Unfit::NatTraversal),
        (TFC, Unfit::Tfc),
        (ESN, Unfit::Esn),
        (OWN_OUT, Unfit::TransmitBySelector),
        (OWN_IN, Unfit::RxSaMark),
        (CHACHA, Unfit::Suite),
    ] {
        assert_eq!(sa_fits(&sa(change), &card, Service::Crypto), Err(unfit));
    }
    // Over IPv4 the checksum of UDP is 0; over IPv6 it must be right.
    let card = abilities("emulated:sas=10");
    let ends = |sa: &mut CardSa| {
        let end = |last| std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last).into();
        sa.ends = Ends { source: end(1), destination: end(2) };
    };
    for change in [NAT, ends] {
        let sa = sa(|sa| {
            change(sa);
            sa.limits = SaLimits::default();
        });
        assert_eq!(sa_fits(&sa, &card, Service::Crypto), Ok(()));
    }
    let both = sa(|sa| {
        NAT(sa);
        ends(sa);
    });
    assert_eq!(sa_fits(&both, &card, Service::Crypto), Err(Unfit::UdpChecksum));
    assert_eq!(sa_fits(&both, &card, Service::Packet), Ok(()));
}

/// A kernel that carries packets writes their headers and keeps the limits.
#[test]
fn crypto_mode_by_way_of_the_kernel_has_its_headers_and_the_limits_that_it_keeps() {
    let stand_in = Capabilities::stand_in();
    let asked = Capabilities::xfrm(Ability::Has(()), Ability::Has(()));
    let [stand_in, asked] = [&stand_in, &asked].map(|card| *card.sas.get().unwrap());
    let unlimited: Change = |sa| {
        TUNNEL(sa);
        sa.limits = SaLimits::default();
    };
    let soft: Change = |sa| {
        TUNNEL(sa);
        sa.limits = SaLimits { soft_packets: Some(1), ..SaLimits::default() };
    };
    let bytes: Change = |sa| {
        TUNNEL(sa);
        sa.limits = SaLimits { soft_bytes: Some(1), ..SaLimits::default() };
    };
    let inbound: Change = |sa| {
        TUNNEL(sa);
        (sa.direction, sa.window) = (SaDirection::In, 4096);
    };
    for (what, change, by_linux, by_card) in [
        ("no limits", unlimited, Ok(()), Ok(())),
        ("packets", TUNNEL, Ok(()), Err(Unfit::KernelLimits)),
        ("packets, soft", soft, Ok(()), Err(Unfit::KernelLimits)),
        ("packets that come", inbound, Ok(()), Ok(())),
        ("bytes", bytes, Err(Unfit::ByteLimits), Err(Unfit::ByteLimits)),
        ("transport mode", |_| (), Err(Unfit::Transport), Err(Unfit::Transport)),
        ("outer headers", TUNNEL_EXACTLY, Err(Unfit::OuterHeader), Err(Unfit::OuterHeader)),
    ] {
        assert_eq!(sa_fits(&sa(change), &stand_in, Service::Crypto), by_linux, "{what}");
        assert_eq!(sa_fits(&sa(change), &asked, Service::Crypto), by_card, "{what}");
    }
}

// XO-18: the hard limit is the lease
#[test]
fn an_sa_that_seals_has_a_lease_of_numbers_that_there_are() {
    let card = abilities("emulated:sas=10");
    let leased = |first, hard_packets, numbers| {
        let sa = sa(|sa| {
            sa.limits = SaLimits { hard_packets, ..SaLimits::default() };
            (sa.first_number, sa.numbers) = (first, numbers);
        });
        sa_fits(&sa, &card, Service::Packet).err()
    };
    let (short, long, top) = (Numbers::Short, Numbers::Extended, u64::from(u32::MAX));
    for (first, hard, numbers, expected) in [
        (1, None, short, Some(Unfit::NoLease)),
        (0, Some(1), short, Some(Unfit::Lease)),
        (1, Some(0), short, None),
        (1, Some(top), short, None),
        (1, Some(top + 1), short, Some(Unfit::Lease)),
        (top, Some(1), short, None),
        (top, Some(2), short, Some(Unfit::Lease)),
        (top + 1, Some(1), short, Some(Unfit::Lease)),
        (top, Some(2), long, None),
        (u64::MAX, Some(1), long, Some(Unfit::Lease)),
        (u64::MAX - 1, Some(1), long, None),
        (2, Some(u64::MAX), long, Some(Unfit::Lease)),
    ] {
        assert_eq!(leased(first, hard, numbers), expected, "{first} {hard:?} {numbers:?}");
    }
    let polled = Exactness::Polled { every_ms: 1000 };
    let card = SaAbilities { packet_limits: Ability::Has(polled), ..card };
    assert_eq!(sa_fits(&sa(|_| ()), &card, Service::Packet), Err(Unfit::PacketLimits));
}

#[test]
fn no_sa_has_a_reserved_spi_or_ends_of_two_families() {
    let card = abilities("emulated:sas=10");
    let fits = |change: Change| sa_fits(&sa(change), &card, Service::Packet);
    assert_eq!(fits(|sa| sa.spi = 255), Err(Unfit::Spi));
    assert_eq!(fits(|sa| sa.spi = 256), Ok(()));
    assert_eq!(fits(|sa| sa.ends.source = [0u16; 8].into()), Err(Unfit::Ends));
}

#[test]
fn policies_ask_for_what_the_card_knows() {
    let policy = |upper| {
        let any = Span { first: [0, 0, 0, 0].into(), last: [255, 255, 255, 255].into() };
        CardPolicy {
            direction: SaDirection::Out,
            ports: [0].into(),
            rank: 1,
            patterns: [Pattern { source: any, destination: any, upper }].into(),
            action: PolicyAction::Protect(Handle::new(1).unwrap()),
        }
    };
    let ports = |protocol, segments| {
        let (source, destination) = ((0, 0xffff), (80, 80));
        UpperPattern::Ports { protocol, source, destination, segments }
    };
    for (upper, on_mlx5) in [
        (UpperPattern::Any, Ok(())),
        (UpperPattern::Protocol(TCP), Ok(())),
        (UpperPattern::Protocol(132), Err(Unfit::Upper)),
        (ports(UDP, Segments::All), Ok(())),
        (ports(132, Segments::All), Err(Unfit::Upper)),
        (ports(TCP, Segments::New), Err(Unfit::Upper)),
        (UpperPattern::Messages { protocol: 1, messages: (0, 0xffff) }, Err(Unfit::Upper)),
    ] {
        assert_eq!(policy_fits(&policy(upper), &abilities("mlx5-as-read")), on_mlx5, "{upper:?}");
        assert_eq!(policy_fits(&policy(upper), &abilities("emulated:sas=1")), Ok(()));
    }
    let crypto = SaAbilities { packet: Ability::Lacks("ciphers alone"), ..abilities("v9") };
    assert_eq!(policy_fits(&policy(UpperPattern::Any), &crypto), Err(Unfit::Packet));
}

#[test]
fn every_reason_has_a_name_of_its_own_and_a_text() {
    let mut names: Vec<&str> = Unfit::ALL.iter().map(|unfit| unfit.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Unfit::ALL.len());
    for unfit in Unfit::ALL {
        assert!(unfit.to_string().len() > 20, "{unfit:?}");
    }
}
