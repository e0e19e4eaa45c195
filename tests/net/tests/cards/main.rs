//! Rules of security groups on an emulated card, under a daemon: what the card decides, what it
//! may not, and what becomes of traffic when it is slow, fails, forgets, lies, or goes.

mod place;

use std::time::{Duration, Instant};

use net::AGAIN;
use netlab::CardPlan;
use netlab::carded::{CLIENT, SERVER, placed, rule, simple_rules};
use netlab::stream::Delivery;
use place::Place;

fn plan(card: &str) -> CardPlan<'_> {
    CardPlan { card, ..CardPlan::new("", "") }
}

/// A card with a single queue, whose ring holds four seconds of a stream: a busy machine loses no
/// packet.
fn plan_for_stream(card: &str) -> CardPlan<'_> {
    CardPlan { queues: 1, ..plan(card) }
}

/// Fails if packets of a stream were lost or came twice.
fn all_arrived(place: &Place, delivery: &Delivery) {
    let found = (delivery.lost(), delivery.repeated());
    let (sent, by_rings) = (delivery.sent.len(), place.lost_by_rings());
    assert_eq!(found, (0, 0), "of {sent}; the daemon's rings had no room for {by_rings}");
}

/// Tries to connect to the server, which the gateway denies.
fn tries_tcp(place: &Place) {
    assert!(!place.connects().unwrap(), "the gateway denies it");
}

// HA-05, HA-22
#[test]
fn tags_of_a_card_permit_and_deny_and_no_packet_is_searched_for() {
    let test = "tags_decide";
    let Some(mut place) = Place::build(test, plan("emulated:rules=50,ms=1")) else { return };
    place.start(&simple_rules());
    place.settle();
    // Both kinds of verdicts, by tags alone: no packet is searched for, each counts for its rule.
    let [tagged, searched] = place.decided();
    let (permitted, denied) = (place.counted("ping"), place.counted("tcp"));
    assert_eq!(place.pings(20), 20);
    let [tagged_now, searched_now] = place.decided();
    assert!(tagged_now >= tagged + 20, "{tagged} {tagged_now}");
    assert_eq!(place.counted("ping"), permitted + 20);
    tries_tcp(&place);
    place.until("lan/tcp in the card", |_| {
        tries_tcp(&place);
        place.placed("lan/tcp")["counts"] == true
    });
    let denied_before = place.counted("tcp");
    assert!(denied_before > denied);
    let [tagged, _] = place.decided();
    tries_tcp(&place);
    assert!(place.decided()[0] > tagged && place.counted("tcp") > denied_before);
    // The answers of the server are searched for once; pings by tags are not.
    assert!(searched_now <= searched + 1, "{searched} {searched_now}");
    let explain = |words: &[&str]| {
        let words = [&["explain", "--in", "lan"][..], words].concat();
        place.daemon().run(&words).unwrap().success().unwrap()
    };
    // Asking changes neither verdict nor tier nor counter.
    let before = (place.decided(), place.counted("ping"));
    let explained = explain(&["icmp/8/0", CLIENT, SERVER]);
    assert!(explained.contains("rule lan/ping: card nic0 (live)"), "{explained}");
    assert_eq!((place.decided(), place.counted("ping")), before);
    assert_eq!(place.audited()[1], 0, "{}", place.daemon().log());
    place.balances();
}

// HA-06, HA-13, HA-29
#[test]
fn rules_that_no_card_can_have_stay_here_and_work() {
    let Some(mut place) = Place::build("stay", plan("emulated:rules=50,ms=1")) else { return };
    let connections = rule("back", "reflect", "protocol = \"icmp\"");
    place.start(&connections);
    assert_eq!(place.pings(5), 5);
    let left = |name: &str| {
        let rule = place.placed(name);
        (rule["state"].clone(), rule["reason"].as_str().unwrap_or_default().to_owned())
    };
    place.until("planned", |_| !place.placed("lan/back").is_null());
    assert_eq!(left("lan/back"), ("classifier".into(), "reflect".into()));
    assert_eq!(place.counted("back"), 10, "both directions are its connection's");
    let explain = ["explain", "--in", "lan", "icmp/8/0", CLIENT, SERVER];
    let explained = place.daemon().run(&explain).unwrap().success().unwrap();
    assert!(explained.contains("rule lan/back: classifier (reflect)"), "{explained}");
    // What judges packets on their way out.
    let file = place.write("groups_out = [\"lan\"]", &simple_rules());
    place.daemon().apply(&file).unwrap();
    place.until("planned", |_| !place.placed("lan/ping").is_null());
    assert_eq!(left("lan/ping"), ("classifier".into(), "egress".into()));
    assert_eq!(place.pings(5), 5);
    assert!(place.counted("ping") >= 5 && place.items() == 0);
}

// HA-13
#[test]
fn where_more_is_asked_than_a_tag_answers_the_screens_say_so() {
    let Some(mut place) = Place::build("more", plan("emulated:rules=50,ms=1")) else { return };
    place.start(&simple_rules());
    place.settle();
    let shown = |place: &Place| {
        let words = ["explain", "--in", "lan", "icmp/8/0", CLIENT, SERVER];
        let explained = place.daemon().run(&words).unwrap().success().unwrap();
        let placement = place.placement();
        let of_card = placement["cards"][0]["leaves_by"].clone();
        let of_rule = placed(&placement, "lan/ping")["leaves_by"].clone();
        assert_eq!(of_card, of_rule, "{placement:#}");
        (of_rule, explained)
    };
    let (leaves_by, explained) = shown(&place);
    assert_eq!(leaves_by, serde_json::json!(["lan", "srv"]));
    assert!(explained.contains("rule lan/ping: card nic0 (live)"), "{explained}");
    // Connections are followed at the card's port.
    let follows = rule("dns", "reflect", "protocol = \"udp\"\nto_ports = [\"53\"]");
    let file = place.write("groups_in = [\"lan\"]", &(follows + &simple_rules()));
    place.daemon().apply(&file).unwrap();
    place.settle();
    let [tagged, _] = place.decided();
    let (leaves_by, explained) = shown(&place);
    assert_eq!(leaves_by, serde_json::json!([]));
    let why = "its tag is not used: connections are followed on its way";
    assert!(explained.contains(why), "{explained}");
    let text = place.daemon().run(&["show", "placement"]).unwrap().success().unwrap();
    assert!(text.contains("they decide nothing") && text.contains("nowhere"), "{text}");
    assert_eq!(place.pings(5), 5);
    assert_eq!(place.decided()[0], tagged, "no tag decides");
    // Policies are asked of what leaves by the other port.
    let policy = "[[policy]]\nname = \"all\"\naction = \"bypass\"\nlocal = [\"any\"]\n\
                  remote = [\"any\"]\n";
    let file = place.write("groups_in = [\"lan\"]", &(simple_rules() + policy));
    let text = std::fs::read_to_string(&file).unwrap();
    let outside = "netdev = \"srv0\"\nside = \"unprotected\"";
    std::fs::write(&file, text.replace("netdev = \"srv0\"\nside = \"protected\"", outside))
        .unwrap();
    place.daemon().apply(&file).unwrap();
    place.settle();
    let [tagged, _] = place.decided();
    let (leaves_by, explained) = shown(&place);
    assert_eq!(leaves_by, serde_json::json!(["lan"]));
    let why = "its tag is not used: it does not leave by a protected port";
    assert!(explained.contains(why), "{explained}");
    assert_eq!(place.pings(5), 5);
    assert_eq!(place.decided()[0], tagged, "no tag decides");
    assert_eq!(place.audited()[1], 0, "{}", place.daemon().log());
}

// HA-10, HA-23, HA-24
#[test]
fn rules_go_into_the_card_with_their_group_and_leave_with_it() {
    let Some(mut place) = Place::build("bound", plan("emulated:rules=50,ms=1")) else { return };
    let other = "[group.other]\n[[rule]]\ngroup = \"other\"\naction = \"permit\"\n\
                 name = \"ntp\"\nfrom = [\"any\"]\nto = [\"any\"]\nprotocol = \"icmp\"\n\
                 icmp = [\"13\"]\n";
    let rules = simple_rules() + other;
    let bound = "groups_in = [\"lan\"]";
    place.start(&rules);
    place.settle();
    let there = place.items();
    assert!(there > 0);
    let apply = |lan: &str| {
        let file = place.write(lan, &rules);
        place.daemon().apply(&file).unwrap();
    };
    // The same again, ten times: nothing moves.
    for _ in 0..10 {
        apply(bound);
    }
    assert_eq!(place.items(), there);
    // Another group beside it, and away again: what was there stays as it is.
    apply("groups_in = [\"lan\", \"other\"]");
    apply(bound);
    place.settle();
    // No group: nothing in the card, and everything passes.
    apply("groups_in = []");
    place.until("an empty card", |_| place.items() == 0);
    assert_eq!(place.pings(5), 5);
    apply(bound);
    place.settle();
    // Not this port's rules.
    apply("groups_in = [\"lan\"]\noffload_groups = \"none\"");
    place.until("an empty card", |_| place.items() == 0);
    assert_eq!(place.pings(5), 5);
}

// HA-07, HA-08
#[test]
fn while_the_card_is_programmed_the_gateway_decides() {
    let test = "while_it_is_programmed";
    let Some(mut place) = Place::build(test, plan_for_stream("emulated:rules=50,ms=500")) else {
        return;
    };
    place.start(&simple_rules());
    place.pings(3);
    let stream = place.stream();
    place.until("lan/udp in the card", |_| place.placed("lan/udp")["counts"] == true);
    let [tagged, _] = place.decided();
    std::thread::sleep(Duration::from_millis(500));
    let [tagged_now, _] = place.decided();
    assert!(tagged_now > tagged, "tags appear");
    let delivery = stream.finish();
    all_arrived(&place, &delivery);
    assert_eq!(delivery.reordered(), 0, "tagged and untagged packets keep their order");
    assert_eq!(place.audited()[1], 0, "{}", place.daemon().log());
}

// HA-15, HA-21, HA-25
#[test]
fn a_card_that_refuses_repeats_forgets_answers_and_marks_garbage_decides_nothing_wrongly() {
    let faults = "refuse=300,twice=200,never=50,late=300,late_ms=300,garbage=200";
    let plan = CardPlan { faults, ..plan_for_stream("emulated:rules=60,ms=1") };
    let Some(mut place) = Place::build("bad_card", plan) else { return };
    let some = (0..40).map(|number| {
        let ports = format!("protocol = \"udp\"\nto_ports = [\"{}\"]", 9000 + number);
        rule(&format!("r{number}"), if number % 2 == 0 { "deny" } else { "permit" }, &ports)
    });
    place.start(&(some.collect::<String>() + &simple_rules()));
    place.pings(3);
    let stream = place.stream();
    let end = Instant::now() + Duration::from_secs(6);
    while Instant::now() < end {
        tries_tcp(&place);
        assert_eq!(place.pings(2), 2);
    }
    all_arrived(&place, &stream.finish());
    let [audited, wrong] = place.audited();
    assert_eq!(wrong, 0, "of {audited}: {}", place.daemon().log());
    // A refusal is an event with the rule and the driver's words, and the rule stays here.
    place.card().tell("faults refuse=1000").unwrap();
    place.card().tell("reset told").unwrap();
    let end = Instant::now() + AGAIN;
    while !place.daemon().log().contains("card_refused") {
        assert_eq!(place.pings(2), 2);
        assert!(Instant::now() < end, "{}", place.daemon().log());
    }
    let log = place.daemon().log();
    for words in ["code=-5", "emulated: programming failed", "rule=lan/"] {
        assert!(log.contains(words), "{words}: {log}");
    }
    place.until("refused", |of| {
        place.pings(1);
        let rule = placed(of, "lan/ping");
        rule["reason"] == "refused" && rule["why"].as_str().unwrap().contains("code -5")
    });
    place.balances();
}

// HA-02, HA-11
#[test]
fn a_card_comes_late_goes_and_comes_back_and_packets_pass_all_the_while() {
    let card = "emulated:rules=50,ms=1";
    let Some(mut place) = Place::build("late", plan_for_stream(card)) else { return };
    // It is not there yet, as far as the daemon can see.
    let socket = place.card().socket().to_owned();
    let hidden = socket.with_extension("hidden");
    std::fs::rename(&socket, &hidden).unwrap();
    place.start(&simple_rules());
    place.until("none", |of| {
        let why = of["cards"][0]["state_reason"].as_str().unwrap();
        of["cards"][0]["state"] == "none" && why.contains("nothing listens")
    });
    assert_eq!((place.pings(5), place.decided()[0]), (5, 0));
    std::fs::rename(&hidden, &socket).unwrap();
    place.settle();
    let stream = place.stream();
    place.until("lan/udp in the card", |_| place.placed("lan/udp")["counts"] == true);
    let tell = |words: &str| place.card().tell(words).unwrap();
    // It begins anew and says so; it begins anew without a word; it forgets one rule without one.
    for words in ["reset told", "reset silent"] {
        tell(words);
        place.until("lan/udp in the card again", |_| {
            place.items() > 0 && place.placed("lan/udp")["counts"] == true
        });
    }
    // Another driver, which can hold one rule.
    tell("reload emulated:rules=1,ms=1,order=none");
    place.until("one entry", |of| of["cards"][0]["max_entries"] == 1 && place.items() <= 1);
    tell(&format!("reload {card}"));
    place.until("lan/udp in the card", |_| place.placed("lan/udp")["counts"] == true);
    all_arrived(&place, &stream.finish());
    // The link goes and comes.
    tell("link down");
    place.until("lost", |_| place.daemon().log().contains("its link is down; "));
    // Nothing is placed before the link is up again.
    for _ in 0..20 {
        assert_ne!(place.placed("lan/udp")["counts"], true);
        assert_eq!(place.items(), 0);
        std::thread::sleep(Duration::from_millis(50));
    }
    tell("link up");
    place.settle();
    // It is pulled out, with its netdev, and another is put in.
    let gone = place.card.take().unwrap();
    gone.end().unwrap();
    place.until("no card", |of| {
        let why = of["cards"][0]["state_reason"].as_str().unwrap();
        of["cards"][0]["state"] == "none" && why.contains("nothing listens")
    });
    assert_eq!(place.placed("lan/ping")["state"], "absent", "what was in it is nowhere");
    place.insert(plan_for_stream(card));
    place.settle();
    assert_eq!(place.audited()[1], 0, "{}", place.daemon().log());
    for event in ["card_serves", "card_changed", "card_lost"] {
        assert!(place.daemon().log().contains(event), "{event}: {}", place.daemon().log());
    }
}

#[test]
fn a_daemon_that_was_killed_leaves_rules_behind_that_its_successor_does_not_believe() {
    let Some(mut place) = Place::build("killed", plan("emulated:rules=50,ms=1")) else { return };
    place.start(&simple_rules());
    place.settle();
    assert!(place.items() > 0);
    place.daemon.as_mut().unwrap().kill();
    assert!(place.items() > 0, "the card keeps what it has");
    // The other way round: what was permitted is denied now.
    let rules = rule("ping", "deny", "protocol = \"icmp\"");
    place.start(&rules);
    assert_eq!(place.pings_in_vain(20), 0);
    place.until("lan/ping in the card", |_| {
        place.pings(1);
        place.placed("lan/ping")["counts"] == true
    });
    assert_eq!(place.pings_in_vain(5), 0);
    assert_eq!(place.audited()[1], 0, "{}", place.daemon().log());
}

#[test]
fn a_change_of_rules_holds_at_once_whatever_the_card_still_has() {
    let Some(mut place) = Place::build("change", plan("emulated:rules=50,ms=200")) else { return };
    place.start(&simple_rules());
    place.settle();
    let run = |words: &[&str]| place.daemon().run(words).unwrap().success().unwrap();
    for round in 0..3 {
        let name = format!("no-ping-{round}");
        let deny = ["--group", "lan", "--name", &name, "--action", "deny", "--from", "any"];
        let to = ["--to", "any", "--protocol", "icmp", "--icmp", "8", "--before", "ping"];
        run(&[&["rule", "add"][..], &deny, &to].concat());
        assert_eq!(place.pings(3), 0, "the card may still say that they pass");
        run(&["rule", "del", &format!("lan/{name}")]);
        assert_eq!(place.pings(3), 3);
    }
    place.settle();
    assert_eq!(place.audited()[1], 0, "{}", place.daemon().log());
}

#[test]
fn a_card_that_lies_is_found_out_and_not_used() {
    let Some(mut place) = Place::build("lies", plan("emulated:rules=50,ms=1")) else { return };
    place.start(&simple_rules());
    place.settle();
    place.until("lan/tcp in the card", |_| {
        tries_tcp(&place);
        place.placed("lan/tcp")["counts"] == true
    });
    let end = Instant::now() + AGAIN;
    place.card().tell("faults swapped=1000").unwrap();
    while place.audited()[1] == 0 {
        place.pings(2);
        assert!(Instant::now() < end, "nothing was found: {:?}", place.audited());
    }
    let placement = place.until("out of use", |of| of["cards"][0]["state"] == "none");
    let why = placement["cards"][0]["state_reason"].as_str().unwrap();
    assert!(why.contains("not used for a minute"), "{why}");
    let log = place.daemon().log();
    for words in ["audit_failed", "the card said", "and the rules say", "port=lan", CLIENT] {
        assert!(log.contains(words), "{words}: {log}");
    }
    // The gateway judges by itself meanwhile.
    assert_eq!(place.pings(5), 5);
}

// HA-14
#[test]
fn of_more_rules_than_the_card_holds_those_without_packets_stay_out() {
    let Some(mut place) = Place::build("many", plan("emulated:rules=200,ms=0")) else { return };
    let many = (0..600).map(|number| {
        let ports = format!("protocol = \"udp\"\nto_ports = [\"{}\"]", 10_000 + number);
        rule(&format!("r{number}"), "permit", &ports)
    });
    place.start(&(many.collect::<String>() + &simple_rules()));
    place.settle();
    let placement = place.placement();
    let card = &placement["cards"][0];
    assert_eq!(card["max_entries"], 200);
    assert!(card["entries"].as_u64().unwrap() <= 200, "{card}");
    let reasons = placement["rules"].as_array().unwrap().iter();
    assert!(reasons.filter(|rule| rule["reason"] == "no_packets").count() >= 600);
    assert_eq!(place.pings(5), 5);
}

/// A rule that denies the client's pings to the server, or permits them; and one for UDP.
fn ping_rules(action: &str) -> String {
    format!(
        "[[rule]]\ngroup = \"lan\"\nname = \"ping\"\naction = \"{action}\"\n\
         from = [\"10.1.0.0/24\"]\nto = [\"{SERVER}\"]\nprotocol = \"icmp\"\n"
    ) + &rule("udp", "permit", "protocol = \"udp\"\nto_ports = [\"1-65535\"]")
}

const DROPS: &str = "groups_in = [\"lan\"]\noffload_groups = \"drop\"";

/// Frames that the card dropped by rules.
fn dropped_by_card(place: &Place) -> u64 {
    place.card().tell("counts").unwrap()["dropped_by_rule"].as_u64().unwrap_or(0)
}

/// Applies rules for a card that drops, which must be taken; returns what was said, and the time
/// that it took.
fn apply(place: &Place, rules: &str) -> (String, Duration) {
    apply_bound(place, DROPS, rules)
}

/// Applies rules and the port's part of them, likewise.
fn apply_bound(place: &Place, bound: &str, rules: &str) -> (String, Duration) {
    let file = place.write(bound, rules);
    let (began, path) = (Instant::now(), file.display().to_string());
    let done = place.daemon().run(&["apply", "-f", &path]).unwrap();
    let took = began.elapsed();
    assert!(done.status.success(), "{}{}", done.stdout, done.stderr);
    (done.stdout + &done.stderr, took)
}

/// Pings until the card drops them; returns how many it took.
fn until_dropped(place: &Place) -> u64 {
    let (end, before) = (Instant::now() + AGAIN, dropped_by_card(place));
    let mut sent = 0;
    while dropped_by_card(place) == before {
        assert!(Instant::now() < end, "not dropped: {:#}", place.placement());
        assert_eq!(place.pings_in_vain(1), 0);
        sent += 1;
    }
    sent
}

// HA-05
#[test]
fn a_card_that_drops_is_waited_for_before_a_change_that_permits_is_answered() {
    let test = "card_drops";
    let Some(mut place) = Place::build(test, plan("emulated:rules=50,ms=200")) else { return };
    place.start(&ping_rules("permit"));
    assert_eq!(place.pings(2), 2);
    for round in 0..3 {
        let counted = place.counted("ping");
        apply(&place, &ping_rules("deny"));
        let before = dropped_by_card(&place);
        let sent = until_dropped(&place);
        assert_eq!(place.pings_in_vain(5), 0);
        // The card's packets count for the rule, once each, and are no packets of the gateway's.
        let dropped = dropped_by_card(&place) - before;
        assert!((6..=sent + 5).contains(&dropped), "{dropped} of {sent}");
        place.until("counted", |_| place.counted("ping") >= counted + sent + 5);
        assert_eq!(place.counted("ping"), counted + sent + 5, "round {round}");
        let (said, took) = apply(&place, &ping_rules("permit"));
        assert!(!said.contains("has not confirmed"), "{said}");
        // It is programmed for 200 ms, and the next packet passes.
        assert!(took >= Duration::from_millis(190), "answered after {took:?}");
        println!("round {round}: answered after {} ms", took.as_millis());
        let before = dropped_by_card(&place);
        assert_eq!(place.pings(5), 5);
        assert_eq!(dropped_by_card(&place), before);
    }
    let quiet = place.daemon().run(&["events", "--kind", "card_unconfirmed", "--json"]).unwrap();
    assert_eq!(quiet.stdout.trim(), "");
    place.balances();
}

// HA-05
#[test]
fn a_card_that_is_to_drop_no_more_marks_and_nothing_of_either_is_wrong() {
    let test = "card_drops_no_more";
    let Some(mut place) = Place::build(test, plan("emulated:rules=50,ms=200")) else { return };
    let marks = "groups_in = [\"lan\"]\noffload_groups = \"auto\"";
    place.start(&ping_rules("permit"));
    for rules in ["deny", "permit"] {
        apply(&place, &ping_rules("deny"));
        until_dropped(&place);
        // The answer comes when the card drops no more: from here on the gateway alone drops.
        let (said, _) = apply_bound(&place, marks, &ping_rules(rules));
        assert!(!said.contains("has not confirmed"), "{said}");
        let before = dropped_by_card(&place);
        match rules {
            "deny" => assert_eq!(place.pings_in_vain(5), 0),
            _ => assert_eq!(place.pings(5), 5),
        }
        place.until("marked", |_| {
            place.pings_in_vain(1);
            place.placed("lan/ping")["counts"] == true
        });
        assert_eq!(dropped_by_card(&place), before, "{rules}");
    }
    place.balances();
}

#[test]
fn where_a_card_that_drops_does_not_confirm_in_time_the_answer_says_so() {
    let test = "card_confirms_late";
    let Some(mut place) = Place::build(test, plan("emulated:rules=50,ms=3500")) else { return };
    place.start(&ping_rules("permit"));
    assert_eq!(place.pings(1), 1);
    apply(&place, &ping_rules("deny"));
    until_dropped(&place);
    let (said, took) = apply(&place, &ping_rules("permit"));
    assert!(said.contains("card nic0 has not confirmed within 2 s"), "{said}");
    assert!(took.as_millis() >= 2000, "{took:?}");
    let words = ["events", "--kind", "card_unconfirmed", "--json"];
    let told = place.daemon().run(&words).unwrap().stdout;
    assert_eq!(told.lines().count(), 1, "{told}");
    // It drops too much for a while, and then no more.
    place.until("confirmed", |_| place.pings_in_vain(1) == 1);
    assert_eq!(place.pings(5), 5);
    place.balances();
}
