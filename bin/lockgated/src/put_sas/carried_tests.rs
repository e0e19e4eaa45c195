//! SAs whose packets Linux carries, over a simulated machine and a kernel that the tests play.

use std::net::IpAddr;

use api::v1;
use config::SaOffload;
use dataplane::Prefix;
use ipsec::{Lifetime, Limits};
use keystate::KeyOrigin;
use linux::xfrm::{OffloadMode, PolicyWay, REQIDS, SaWay};
use linux::{Hop, KernelRoute, MAIN_TABLE, RouteKind, RouteStatus, Usability};
use offload::{Ability, Capabilities};
use policy::Direction::{Inbound, Outbound};

use super::tests::{put, sa, told};
use super::*;
use crate::cards::played::SharedKernel;
use crate::test_lab::TestLab;

/// A daemon with a card of kind `xfrm`, and its kernel.
struct CarriedLab {
    lab: TestLab,
    kernel: SharedKernel,
    card: Capabilities,
}

impl CarriedLab {
    fn new(offload: &str, stand_in: &str, card: Capabilities) -> CarriedLab {
        CarriedLab::beside("", offload, stand_in, card)
    }

    /// A lab with further sections.
    fn beside(more: &str, offload: &str, stand_in: &str, card: Capabilities) -> CarriedLab {
        let sections = format!(
            "[port.lan]\nnetdev = \"eth1\"\nside = \"protected\"\n\
             [port.wan]\nnetdev = \"eth0\"\nside = \"unprotected\"\n\
             [card.nic0]\nkind = \"xfrm\"\n{stand_in}ports = [\"wan\"]\n\
             [peer.a]\nlocal = \"192.0.2.1\"\nremote = \"192.0.2.9\"\nkeys = \"api\"\n\
             suite = \"aes-128-gcm\"\nreplay_window = 256\noffload = \"{offload}\"\n\
             [[policy]]\nname = \"net\"\npeer = \"a\"\nlocal = [\"10.1.0.0/16\"]\n\
             remote = [\"10.2.0.0/16\"]\n{more}"
        );
        let mut view = crate::gateway::simulated::view();
        let hop = Hop { link: 1, gateway: None, usability: Usability::Usable };
        view.add_route(KernelRoute {
            prefix: Prefix { address: IpAddr::from([192, 0, 2, 0]).into(), length: 24 },
            table: MAIN_TABLE,
            metric: 0,
            protocol: 4,
            kind: RouteKind::Unicast,
            hops: vec![hop],
            source: None,
            standing: RouteStatus::Followed,
        });
        let mut lab = TestLab::over(&sections, view);
        lab.state.gateway.cards.configure(lab.state.gateway.compiled.validated());
        let kernel = SharedKernel::default();
        let snapshot = lab.state.gateway.snapshot.clone();
        lab.state.gateway.cards.play(&kernel, &card, &snapshot);
        CarriedLab { lab, kernel, card }
    }

    /// A card whose place Linux takes.
    fn by_linux(offload: &str) -> CarriedLab {
        CarriedLab::new(offload, "stand_in = \"linux\"\n", Capabilities::stand_in())
    }

    /// Puts SAs; the card's answers are taken while the daemon waits.
    async fn put(&mut self, sas: Vec<PutSa>) -> Result<SaChange, SaRefusal> {
        let state = &mut self.lab.state;
        let incarnation = state.incarnation.to_string();
        let (reply, mut answer) = tokio::sync::oneshot::channel();
        state
            .put_sas(SaPut { incarnation, origin: KeyOrigin::NamedRun, sas }, reply)
            .await
            .unwrap();
        while state.waits_for_cards() {
            let report = state.gateway.cards.told().await;
            state.card_told(report).await.unwrap();
        }
        answer.try_recv().unwrap()
    }

    fn counts(&self) -> (usize, usize) {
        self.kernel.lock().unwrap().counts()
    }

    fn sas_that_run(&self) -> usize {
        let snapshot = &self.lab.state.gateway.snapshot;
        snapshot.outbound().count() + snapshot.inbound().count()
    }
}

fn pair() -> Vec<PutSa> {
    vec![sa(Outbound, 500, 1), sa(Inbound, 600, 2)]
}

fn limited(hard_packets: u64, soft_packets: u64) -> Option<Lifetime> {
    let limits = |packets| Limits { packets: Some(packets), ..Limits::default() };
    Some(Lifetime { soft: limits(soft_packets), hard: limits(hard_packets) })
}

#[tokio::test]
async fn sas_that_are_told_lost_are_in_linux_no_more() {
    for begins in [false, true] {
        let mut lab = CarriedLab::by_linux("packet");
        lab.put(pair()).await.unwrap();
        assert_eq!((lab.counts(), lab.sas_that_run()), ((2, 3), 2));
        let snapshot = lab.lab.state.gateway.snapshot.clone();
        let card = begins.then_some(&lab.card);
        lab.lab.state.gateway.cards.is_lost_or_begins(card, &snapshot);
        assert_eq!(lab.counts(), (0, 0), "begins anew: {begins}");
        lab.lab.state.drop_lost_sas().await.unwrap();
        assert_eq!(lab.sas_that_run(), 0);
        let told = told(&lab.lab.events);
        assert_eq!(told.iter().filter(|(kind, ..)| kind == "sa_lost").count(), 2, "{told:?}");
    }
}

#[tokio::test]
async fn a_card_that_is_configured_no_more_leaves_nothing_in_linux() {
    let mut lab = CarriedLab::by_linux("packet");
    lab.put(pair()).await.unwrap();
    assert_eq!(lab.counts(), (2, 3));
    let without = TestLab::new("[port.wan]\nnetdev = \"eth0\"\nside = \"unprotected\"\n");
    lab.lab.state.gateway.cards.configure(without.state.config());
    assert_eq!(lab.counts(), (0, 0));
    assert!(lab.lab.state.gateway.cards.has_lost_seats());
}

/// Linux may have sealed by an SA before it refused the policy.
#[tokio::test]
async fn with_auto_a_seat_that_linux_refuses_is_a_put_refused_and_its_key_is_used_nowhere() {
    let mut lab = CarriedLab::by_linux("auto");
    lab.kernel.lock().unwrap().refuses = Some(PolicyWay::Out);
    let refused = lab.put(pair()).await.unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("File exists") && text.contains("its policy was not (out"), "{text}");
    assert_eq!((lab.counts(), lab.sas_that_run()), ((0, 0), 0));
    assert_eq!(lab.kernel.lock().unwrap().asked, 2);
    // In software neither, later on.
    let again = put(
        &mut lab.lab.state,
        vec![PutSa { offload: Some(SaOffload::None), ..sa(Outbound, 500, 1) }],
    );
    let again = again.await.unwrap_err().to_string();
    assert!(again.contains("put before"), "{again}");
}

// XO-04
#[tokio::test]
async fn a_half_that_linux_does_not_take_is_named_and_nothing_is_left() {
    for (refuses, refuses_sa, words) in [
        (Some(PolicyWay::In), None, "the SA was taken and its policy was not (in, 10.2.0.0/16"),
        (Some(PolicyWay::Out), None, "the SA was taken and its policy was not (out, 10.1.0.0/16"),
        (None, Some(SaWay::In), "the SA was refused, and no policy was asked for"),
        (None, Some(SaWay::Out), "the SA was refused, and no policy was asked for"),
    ] {
        let mut lab = CarriedLab::by_linux("packet");
        {
            let mut kernel = lab.kernel.lock().unwrap();
            (kernel.refuses, kernel.refuses_sa) = (refuses, refuses_sa);
        }
        let refused = lab.put(pair()).await.unwrap_err().to_string();
        assert!(refused.contains(words), "{words}: {refused}");
        assert_eq!((lab.counts(), lab.sas_that_run()), ((0, 0), 0), "{words}");
    }
}

#[tokio::test]
async fn in_crypto_mode_limits_and_numbers_are_linuxs() {
    let mut lab = CarriedLab::by_linux("crypto");
    let mut asked = pair();
    asked.iter_mut().for_each(|sa| sa.lifetime = limited(10, 5));
    lab.put(asked).await.unwrap();
    let kernel = lab.kernel.lock().unwrap();
    for sa in &kernel.sas {
        assert_eq!((sa.limits.hard_packets, sa.limits.soft_packets), (Some(10), Some(5)));
        assert!(REQIDS.contains(&sa.reqid) && sa.offload.is_none(), "{sa:?}");
    }
    assert_eq!(kernel.counts(), (2, 3));
    let snapshot = &lab.lab.state.gateway.snapshot;
    let seat = snapshot.outbound().next().unwrap().card.unwrap();
    assert_eq!((seat.work, seat.has_numbers()), (ipsec::CardWork::Cipher, true));
}

#[tokio::test]
async fn a_cards_cipher_by_way_of_linux_takes_no_limits_that_linux_would_not_keep() {
    let card = || Capabilities::xfrm(Ability::Lacks("refused"), Ability::Has(()));
    let mut lab = CarriedLab::new("crypto", "", card());
    let mut asked = pair();
    asked[0].lifetime = limited(10, 5);
    let refused = lab.put(asked).await.unwrap_err().to_string();
    assert!(refused.contains("(kernel_limits)") && refused.contains("GSO"), "{refused}");
    assert_eq!((lab.counts(), lab.kernel.lock().unwrap().asked), ((0, 0), 0));
    // With auto it is in software from its first packet.
    let mut lab = CarriedLab::new("auto", "", card());
    lab.put(vec![PutSa { lifetime: limited(10, 5), ..sa(Outbound, 500, 1) }]).await.unwrap();
    assert_eq!((lab.counts(), lab.sas_that_run()), ((0, 0), 1));
    // Without limits Linux's numbers end it.
    let mut lab = CarriedLab::new("crypto", "", card());
    lab.put(pair()).await.unwrap();
    {
        let kernel = lab.kernel.lock().unwrap();
        for sa in &kernel.sas {
            assert_eq!(sa.offload.map(|to| to.mode), Some(OffloadMode::Crypto));
            assert_eq!(sa.limits.hard_packets, None);
        }
        assert!(kernel.policies.iter().all(|policy| policy.packet_offload.is_none()));
    }
    // A driver that refuses the cipher: the put is refused.
    let packets = Capabilities::xfrm(Ability::Has(()), Ability::Lacks("refused"));
    let mut lab = CarriedLab::new("crypto", "", packets);
    let refused = lab.put(pair()).await.unwrap_err().to_string();
    assert!(refused.contains("(crypto)"), "{refused}");
    assert_eq!(lab.kernel.lock().unwrap().asked, 0);
}

#[tokio::test]
async fn a_fixed_dscp_which_linux_would_not_write_is_refused_or_stays_in_software() {
    let xfrm = || Capabilities::xfrm(Ability::Has(()), Ability::Has(()));
    for mode in ["packet", "crypto"] {
        let mut lab = CarriedLab::new(&format!("{mode}\"\ndscp = 5 #"), "", xfrm());
        let refused = lab.put(pair()).await.unwrap_err().to_string();
        assert!(refused.contains("(dscp)") && refused.contains("leave `dscp` out"), "{refused}");
        assert_eq!(lab.kernel.lock().unwrap().asked, 0);
    }
    let mut lab = CarriedLab::new("auto\"\ndscp = 5 #", "", xfrm());
    lab.put(pair()).await.unwrap();
    assert_eq!((lab.counts(), lab.sas_that_run()), ((0, 0), 2));
}

#[tokio::test]
async fn explain_says_that_linux_carries_a_flow_and_by_which_sa() {
    let mut lab = CarriedLab::by_linux("packet");
    lab.put(pair()).await.unwrap();
    let gateway = &lab.lab.state.gateway;
    let pictures = gateway.cards.pictures(&gateway.snapshot);
    let asked = |direction: &str, spi: Option<&str>, from_peer| {
        let policy = v1::Consultation {
            direction: direction.into(),
            decided_by: Some("net".into()),
            ..v1::Consultation::default()
        };
        let mut answer = v1::Explanation {
            verdict: if spi.is_some() { "protect" } else { "forward" }.into(),
            peer: spi.map(|_| "a".into()),
            spi: spi.map(str::to_owned),
            policies: vec![policy],
            ..v1::Explanation::default()
        };
        crate::cards::explain_carried(&pictures, from_peer, &mut answer);
        assert_eq!(answer.lines.len(), answer.placement.len());
        answer.lines.pop().map(|line| line.text)
    };
    let reqid = REQIDS.start() + gateway.snapshot.outbound().next().unwrap().set.0;
    let text = |done: &str, spi: &str| {
        Some(format!(
            "policy net: Linux carries it for card nic0, {done} by SA {spi} (reqid {reqid})"
        ))
    };
    assert_eq!(asked("outbound", Some("0x000001f4"), None), text("sealed", "0x000001f4"));
    assert_eq!(asked("inbound", None, Some("a")), text("opened", "0x00000258"));
    // Sealed by another SA, from another peer, or not sealed at all.
    assert_eq!(asked("outbound", Some("0x000001f5"), None), None);
    assert_eq!(asked("inbound", None, Some("b")), None);
    assert_eq!(asked("outbound", None, None), None);
}

// XO-10
#[tokio::test]
async fn policies_that_linux_carries_are_listed_in_front_with_their_sas_and_leave_with_them() {
    let beside = |name: &str, what: &str, remote: &str| {
        format!(
            "[[policy]]\nname = \"{name}\"\n{what}\nlocal = [\"any\"]\n\
             remote = [\"{remote}\"]\npriority = 900\n"
        )
    };
    let more = beside("quiet", "action = \"discard\"", "10.8.0.0/16")
        + &beside("own", "peer = \"a\"", "10.2.7.0/24");
    let linux = Capabilities::stand_in();
    let mut lab = CarriedLab::beside(&more, "packet", "stand_in = \"linux\"\n", linux);
    // Lines of both directions: places and names, carriers, and what is said of the SAs.
    let listed = |lab: &mut CarriedLab| {
        let picture = lab.lab.state.watched().borrow().clone();
        let policies = crate::shown::policies_in_order(&picture, &picture.totals);
        let line = |of: v1::PlacedPolicy| {
            let (place, spi) = (of.place, of.spi.unwrap_or_default());
            let name = format!("{} {place} {}", of.direction, of.policy);
            (name, of.carrier, format!("{}{}{spi} {}", of.card, of.state, of.sas), of.in_front)
        };
        policies.into_iter().map(line).collect::<Vec<_>>()
    };
    let line = |name: &str, carrier: &str, sas: &str| {
        (name.to_owned(), carrier.to_owned(), sas.to_owned(), carrier == "linux")
    };
    // By rank: of one priority the later wins.
    let software = ["outbound", "inbound"].map(|way| {
        ["1 own", "2 quiet", "3 net"].map(|name| line(&format!("{way} {name}"), "workers", " 0"))
    });
    assert_eq!(listed(&mut lab), software.concat());
    lab.put(pair()).await.unwrap();
    let by_linux = [("outbound", "0x000001f4"), ("inbound", "0x00000258")].map(|(way, spi)| {
        let sas = format!("nic0live{spi} 1");
        [
            line(&format!("{way} 1 own"), "linux", &sas),
            line(&format!("{way} 2 net"), "linux", &sas),
            line(&format!("{way} 3 quiet"), "workers", " 0"),
        ]
    });
    assert_eq!(listed(&mut lab), by_linux.concat());
    // An SA that is lost takes its policies along.
    let snapshot = lab.lab.state.gateway.snapshot.clone();
    lab.lab.state.gateway.cards.is_lost_or_begins(None, &snapshot);
    lab.lab.state.drop_lost_sas().await.unwrap();
    assert_eq!(listed(&mut lab), software.concat());
}
