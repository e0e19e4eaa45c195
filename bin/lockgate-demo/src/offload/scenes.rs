//! The scenes.

use std::time::{Duration, Instant};

use netlab::carded::{WIRE, rule, simple_rules};
use netlab::{Capture, LabError, Scope, interrupt};

use super::report::Captures;
use super::stage::{Counts, LIMIT, Stage, plan};
use crate::report::Check;

/// The card of most scenes.
const CARD: &str = "emulated:rules=100,ms=5";
/// The rules of the scene with a small card, and the entries of that card.
const MANY: usize = 5000;
const ENTRIES: u64 = 2000;

/// A card that takes half a second for each rule: until it has answered, the gateway decides.
pub(super) fn slow(stage: &mut Stage) -> Result<(), LabError> {
    stage.say("a card that takes 500 ms for each rule");
    stage.lab.start(&simple_rules())?;
    stage.lab.pings(3)?;
    let began = Instant::now();
    let delivery = stage.under_a_stream("programming takes 500 ms", |stage| {
        let done = stage.wait_for("lan/udp", Counts::Yes)?;
        stage.note_time("500 ms a rule: until tags count", done.then(|| began.elapsed()));
        // Tags appear.
        interrupt::sleep(Duration::from_millis(700))
    })?;
    let tagged = stage.report.scenes.last().map_or(0, |row| row.tagged);
    stage.note(Check {
        name: "while the card is programmed nothing is lost or reordered, then tags appear",
        ok: delivery.lost() == 0 && delivery.reordered() == 0 && tagged > 0,
        detail: format!(
            "{} of {} packets lost, {} reordered, {tagged} decided by tags",
            delivery.lost(),
            delivery.sent.len(),
            delivery.reordered()
        ),
    });
    Ok(())
}

/// Both kinds of verdicts, and the captures of both sides of the card.
pub(super) fn tags(stage: &mut Stage) -> Result<(), LabError> {
    stage.say("packets with tags");
    let there = stage.wait_for("lan/ping", Counts::Yes)?;
    let at = (stage.lab.directory(), "wire");
    let capture = Capture::start(&stage.lab.gateway, WIRE, Scope::Heads, at)?;
    let seen_before = stage.lab.card()?.seen()?.len();
    let [tagged, searched] = stage.lab.decided()?;
    let answered = stage.lab.pings(20)?;
    let [tagged_now, searched_now] = stage.lab.decided()?;
    let seen = stage.lab.card()?.seen()?;
    let host = seen[seen_before..].iter().filter(|frame| frame.to_host);
    let wire = netlab::capture::frames(&capture.stop()?)?;
    stage.report.captures = Captures {
        wire,
        host: host.clone().count() as u64,
        tagged: host.filter(|frame| frame.tag.is_some()).count() as u64,
    };
    let (by_tags, searches) = (tagged_now - tagged, searched_now - searched);
    stage.note(Check {
        name: "tagged pings pass without a search",
        ok: there && answered == 20 && by_tags >= 20 && searches <= 1,
        detail: format!("{answered} of 20 answered, {by_tags} by tags, {searches} searches"),
    });
    let placement = stage.daemon()?.run(&["show", "placement"])?.success()?;
    placement.lines().take(9).for_each(|line| stage.say(line));
    Ok(())
}

/// A rule that comes holds at once, whatever the card still says.
pub(super) fn change(stage: &mut Stage) -> Result<(), LabError> {
    stage.say("a rule comes that decides otherwise, and goes again");
    let deny = ["--group", "lan", "--name", "no", "--action", "deny", "--from", "any"];
    let to = ["--to", "any", "--protocol", "icmp", "--icmp", "8", "--before", "ping"];
    stage.daemon()?.run(&[&["rule", "add"][..], &deny, &to].concat())?.success()?;
    let denied = stage.lab.pings_with_losses(3)?;
    stage.daemon()?.run(&["rule", "del", "lan/no"])?.success()?;
    let permitted = stage.lab.pings(3)?;
    stage.note(Check {
        name: "a change of rules holds when the command returns, with the card or without",
        ok: denied == 0 && permitted == 3,
        detail: format!("{denied} of 3 pings answered with the rule, {permitted} without"),
    });
    Ok(())
}

/// The card begins anew, with and without a word, gets another driver, and loses its link.
pub(super) fn forgetful(stage: &mut Stage) -> Result<(), LabError> {
    stage.say("the card begins anew: it says so, then it does not; then another driver runs it");
    let delivery = stage.under_a_stream("begins anew, other driver", |stage| {
        for words in ["reset told", "reset silent", "reload emulated:rules=1,ms=1,order=none"] {
            stage.wait_for("lan/udp", Counts::Yes)?;
            stage.lab.card()?.tell(words)?;
            interrupt::sleep(Duration::from_millis(1500))?;
        }
        stage.lab.card()?.tell(&format!("reload {CARD}"))?;
        stage.wait_for("lan/udp", Counts::Yes).map(drop)
    })?;
    stage.note(Check {
        name: "the card begins anew, told or not, and is reloaded: nothing is lost",
        ok: delivery.lost() == 0,
        detail: format!("{} of {} packets lost", delivery.lost(), delivery.sent.len()),
    });
    stage.lab.card()?.tell("link down")?;
    let began = Instant::now();
    let gone = stage.wait_for("lan/udp", Counts::No)?;
    stage.note_time("link down: until no tag counts", gone.then(|| began.elapsed()));
    stage.lab.card()?.tell("link up")?;
    let answered = stage.lab.pings(5)?;
    stage.note(Check {
        name: "the link goes and comes: no tag counts in between",
        ok: gone && answered > 0,
        detail: format!("{answered} of 5 pings answered afterwards"),
    });
    Ok(())
}

/// More rules than the card has room for.
pub(super) fn small(stage: &mut Stage) -> Result<(), LabError> {
    stage.say("5000 rules and a card of 2000 entries");
    stage.lab.card()?.tell(&format!("reload emulated:rules={ENTRIES},ms=0"))?;
    let many = (0..MANY).map(|number| {
        // The stream is to port 7007; it and the pings are permitted by the last rules.
        let ports = format!("protocol = \"udp\"\nto_ports = [\"{}\"]", 10_000 + number);
        rule(&format!("r{number}"), "permit", &ports)
    });
    let rules = many.collect::<String>() + &simple_rules();
    let file = stage.lab.write("groups_in = [\"lan\"]", &rules)?;
    let delivery = stage.under_a_stream("5000 rules, 2000 entries", |stage| {
        stage.daemon()?.apply(&file)?;
        stage.wait_for("lan/udp", Counts::Yes)?;
        interrupt::sleep(Duration::from_millis(500))
    })?;
    let placement = stage.lab.placement()?;
    let card = &placement["cards"][0];
    let entries = card["entries"].as_u64().unwrap_or(u64::MAX);
    let room = card["max_entries"].as_u64().unwrap_or(0);
    stage.note(Check {
        name: "of 5000 rules those that decide packets are in the card, the others are not",
        ok: delivery.lost() == 0 && room == ENTRIES && entries <= room && entries > 0,
        detail: format!(
            "{entries} of {room} entries; {} of {} packets lost",
            delivery.lost(),
            delivery.sent.len()
        ),
    });
    stage.note_audit()
}

/// The card is pulled out with its netdev, and another is put in.
pub(super) fn pulled_out(stage: &mut Stage) -> Result<(), LabError> {
    stage.say("the card is pulled out, and another is put in");
    if let Some(card) = stage.lab.card.take() {
        card.end()?;
    }
    let (_, gone) = stage.lab.wait_until(LIMIT, |of| of["cards"][0]["state"] == "none")?;
    stage.lab.insert(plan(CARD))?;
    let began = Instant::now();
    let (_, back) = stage.lab.wait_until(LIMIT, |of| of["cards"][0]["state"] == "serves")?;
    stage.note_time("another card: until it serves", back.then(|| began.elapsed()));
    let mut answered = 0;
    while answered == 0 && began.elapsed() < LIMIT {
        answered = stage.lab.pings_with_losses(3)?;
    }
    stage.note(Check {
        name: "the card is pulled out: what it had counts no more; another takes its place",
        ok: gone && back && answered > 0,
        detail: format!("{answered} of 3 pings answered through the new card"),
    });
    Ok(())
}

/// The card tags packets with garbage, and then with another rule of its own: that, nothing but
/// the audit finds.
pub(super) fn lies(stage: &mut Stage) -> Result<(), LabError> {
    stage.say("the card writes garbage for tags; then it lies");
    let delivery = stage.under_a_stream("garbage for half of the tags", |stage| {
        stage.lab.pings(5)?;
        stage.wait_for("lan/ping", Counts::Yes)?;
        stage.wait_for("lan/udp", Counts::Yes)?;
        stage.lab.card()?.tell("faults garbage=500")?;
        stage.lab.pings(20).map(drop)
    })?;
    stage.note(Check {
        name: "garbage for tags changes nothing",
        ok: delivery.lost() == 0,
        detail: format!("{} of {} packets lost", delivery.lost(), delivery.sent.len()),
    });
    stage.note_audit()?;
    // One more rule, which denies: to confuse two that permit would change nothing.
    let began = Instant::now();
    while !stage.counts("lan/tcp")? && began.elapsed() < LIMIT {
        stage.lab.connects()?;
    }
    stage.lab.card()?.tell("faults swapped=1000")?;
    let began = Instant::now();
    let mut found = false;
    while !found && began.elapsed() < LIMIT {
        stage.lab.pings_with_losses(2)?;
        let placement = stage.lab.placement()?;
        found = placement["cards"][0]["state"] == "none";
    }
    stage.note_time("a lie: until the card is out of use", found.then(|| began.elapsed()));
    let answered = stage.lab.pings(5)?;
    stage.note(Check {
        name: "the card lies: the audit finds it out, and the card is not used",
        ok: found && answered == 5,
        detail: format!("{answered} of 5 pings answered without it"),
    });
    Ok(())
}
