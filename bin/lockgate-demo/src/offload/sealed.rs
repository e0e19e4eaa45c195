//! The scenes of a tunnel whose near end is a card: one policy, carried in each mode.

use std::time::{Duration, Instant};

use netlab::capture::{Tally, esp_in_clear};
use netlab::sealed::{BACK, End, NewSa, SealedLab, THERE};
use netlab::{LabError, interrupt};

use super::report::ModeRow;
use super::stage::{LIMIT, Stage, plan};
use crate::report::Check;

/// The card of these scenes.
const CARD: &str = "emulated:rules=100,ms=1,sas=100";
/// Time for which packets are sent in a mode.
const SENT_FOR: Duration = Duration::from_millis(1500);
/// Clear packets that somebody on the wire sends.
const SPOOFED: usize = 20;

/// Plays the scenes in a laboratory of their own.
pub(super) fn play(stage: &mut Stage) -> Result<(), LabError> {
    stage.say("a tunnel to a second gateway; its near end is an emulated card");
    let mut lab = SealedLab::build(plan(CARD))?;
    lab.start_one(End::Far, "")?;
    let mut number = 0;
    for mode in ["none", "crypto", "packet", "auto"] {
        begin(&mut lab, mode)?;
        let row = carry(&mut lab, mode, &mut number)?;
        note_mode(stage, &row);
        stage.report.modes.push(row);
        if mode == "packet" {
            spoofed(stage, &lab)?;
            lost(stage, &mut lab, &mut number)?;
        }
    }
    falls_back(stage, &mut lab, &mut number)
}

/// Begins the near gateway anew with this mode, and waits until its card serves.
fn begin(lab: &mut SealedLab, mode: &str) -> Result<(), LabError> {
    if let Some(near) = lab.near.take() {
        near.terminate()?;
    }
    lab.start_one(End::Near, &format!("offload = \"{mode}\""))?;
    let began = Instant::now();
    while lab.daemon(End::Near)?.ask(&["show", "placement"])?["cards"][0]["state"] != "serves"
        && began.elapsed() < LIMIT
    {
        interrupt::sleep(Duration::from_millis(50))?;
    }
    Ok(())
}

/// Puts an SA each way, and lets the far end send by it alone.
fn put_pair(lab: &mut SealedLab, number: &mut u32, near: &str) -> Result<(), LabError> {
    let sa = |from| NewSa { near: near.into(), ..NewSa::new(from, *number) };
    lab.put(&[sa(End::Far), sa(End::Near)])?.success()?;
    if *number > 0 {
        // It may be gone already.
        let spi = format!("{:#x}", BACK + *number - 1);
        lab.daemon(End::Far)?.run(&["sa", "del", &spi])?;
    }
    *number += 1;
    Ok(())
}

/// Carries packets in a mode, with captures of both sides of the card.
fn carry(lab: &mut SealedLab, mode: &'static str, number: &mut u32) -> Result<ModeRow, LabError> {
    put_pair(lab, number, "")?;
    let seen_before = lab.host_side()?;
    let capture = lab.capture(mode)?;
    let stream = lab.stream()?;
    interrupt::sleep(SENT_FOR)?;
    let answered = lab.pings(20)?;
    let delivery = stream.finish();
    let seen = lab.host_side()?;
    let captured = capture.stop()?;
    let wire = Tally::of(&captured)?;
    let (_, wire_esp_in_clear) = esp_in_clear(&captured)?;
    Ok(ModeRow {
        mode,
        emulated: true,
        carrier: carrier(lab, THERE + *number - 1)?,
        sent: delivery.sent.len() as u64,
        lost: delivery.lost() as u64,
        pings: answered,
        host_clear: seen.clear - seen_before.clear,
        host_esp: seen.esp - seen_before.esp,
        host_esp_in_clear: seen.esp_in_clear - seen_before.esp_in_clear,
        wire_clear: wire.clear,
        wire_esp: wire.esp,
        wire_esp_in_clear,
        repeated: wire.repeated,
    })
}

/// The carrier of an SA, as the gateway says it.
fn carrier(lab: &SealedLab, spi: u32) -> Result<String, LabError> {
    let sa = lab.sa(spi)?;
    Ok(match sa["card"].as_str() {
        Some(card) if !card.is_empty() && sa["card_mode"] == "crypto" => {
            format!("card {card}, cipher alone")
        }
        Some(card) if !card.is_empty() => format!("card {card}"),
        _ => "software".into(),
    })
}

fn note_mode(stage: &mut Stage, row: &ModeRow) {
    let by_card = row.mode != "none";
    let is_crypto = row.mode == "crypto";
    let in_clear = if is_crypto { row.host_esp } else { 0 };
    let right_side = match by_card && !is_crypto {
        true => row.host_esp == 0 && row.host_clear > 0,
        false => row.host_clear == 0 && row.host_esp > 0 && row.host_esp_in_clear == in_clear,
    };
    let right_carrier = row.carrier.starts_with("card") == by_card
        && row.carrier.ends_with("cipher alone") == is_crypto;
    let sealed = row.wire_clear == 0 && row.wire_esp_in_clear == 0 && row.wire_esp > row.sent;
    let wire = sealed && row.repeated == 0;
    stage.note(Check {
        name: match row.mode {
            "none" => "offload none: ESP on both sides of the card, sealed by software",
            "crypto" => "offload crypto: ESP in clear for the host, sealed ESP alone on the wire",
            "packet" => "offload packet: clear packets for the host, ESP alone on the wire",
            _ => "offload auto: as packet, since the card takes the SAs",
        },
        ok: right_side && right_carrier && wire && row.lost == 0 && row.pings == 20,
        detail: format!(
            "{}; host side {} clear, {} ESP ({} of them in clear); wire {} clear, {} ESP; {} of {} \
             lost",
            row.carrier,
            row.host_clear,
            row.host_esp,
            row.host_esp_in_clear,
            row.wire_clear,
            row.wire_esp,
            row.lost,
            row.sent
        ),
    });
}

/// Somebody on the wire sends in clear what the policy wants sealed.
fn spoofed(stage: &mut Stage, lab: &SealedLab) -> Result<(), LabError> {
    let dropped = |lab: &SealedLab| -> Result<u64, LabError> {
        Ok(lab.daemon(End::Near)?.counters()?.dropped("unprotected"))
    };
    let before = dropped(lab)?;
    lab.spoof(SPOOFED)?;
    let began = Instant::now();
    let mut found = 0;
    while found < SPOOFED as u64 && began.elapsed() < Duration::from_secs(5) {
        interrupt::sleep(Duration::from_millis(50))?;
        found = dropped(lab)? - before;
    }
    stage.note(Check {
        name: "clear packets that should have come sealed are dropped",
        ok: found == SPOOFED as u64,
        detail: format!("{found} of {SPOOFED} dropped as unprotected"),
    });
    Ok(())
}

/// The card forgets everything and says nothing, then it is unplugged: its SAs do not come back,
/// and with new keys it goes on.
fn lost(stage: &mut Stage, lab: &mut SealedLab, number: &mut u32) -> Result<(), LabError> {
    let capture = lab.capture("lost")?;
    let mut in_clear = 0;
    for (name, unplugged) in [
        ("forgets all, silent: until its SAs are gone", false),
        ("unplugged: until its SAs are gone", true),
    ] {
        let began = Instant::now();
        lab.card()?.tell(if unplugged { "unplug" } else { "reset silent" })?;
        let spi = THERE + *number - 1;
        while !lab.sa(spi)?.is_null() && began.elapsed() < LIMIT {
            interrupt::sleep(Duration::from_millis(10))?;
        }
        let is_gone = lab.sa(spi)?.is_null();
        stage.note_time(name, is_gone.then(|| began.elapsed()));
        in_clear += lab.pings_with_losses(3)?;
        if unplugged {
            lab.card = None;
            lab.insert(plan(CARD))?;
            let served = |lab: &SealedLab| -> Result<bool, LabError> {
                let shown = lab.daemon(End::Near)?.ask(&["show", "placement"])?;
                Ok(shown["cards"][0]["state"] == "serves")
            };
            while !served(lab)? && began.elapsed() < LIMIT {
                interrupt::sleep(Duration::from_millis(50))?;
            }
        }
        put_pair(lab, number, "")?;
    }
    let answered = lab.pings(5)?;
    let wire = Tally::of(&capture.stop()?)?;
    stage.note(Check {
        name: "a card that forgot, or is pulled out, takes its SAs along; new keys go on",
        ok: in_clear == 0 && wire.clear == 0 && wire.repeated == 0 && answered == 5,
        detail: format!(
            "{in_clear} of 6 pings answered without an SA, {answered} of 5 with new keys; wire {} \
             clear, {} twice",
            wire.clear, wire.repeated
        ),
    });
    Ok(())
}

/// With a software SA beside the card's in one set, that goes on when the card is lost.
fn falls_back(stage: &mut Stage, lab: &mut SealedLab, number: &mut u32) -> Result<(), LabError> {
    let by_card = THERE + *number - 1;
    let sa = |from| NewSa { near: "offload=none".into(), ..NewSa::new(from, *number) };
    lab.put(&[sa(End::Far), sa(End::Near)])?.success()?;
    *number += 1;
    let capture = lab.capture("both")?;
    let stream = lab.stream()?;
    interrupt::sleep(Duration::from_millis(500))?;
    lab.card()?.tell("reset told")?;
    interrupt::sleep(Duration::from_millis(1000))?;
    let delivery = stream.finish();
    let wire = Tally::of(&capture.stop()?)?;
    let both = [by_card, by_card + 1].iter().all(|spi| wire.spis().contains(spi));
    stage.note(Check {
        name: "offload auto with an SA in software beside: traffic goes on when the card is lost",
        ok: both
            && wire.clear == 0
            && wire.repeated == 0
            && delivery.lost() < delivery.sent.len() / 2,
        detail: format!(
            "{} of {} packets lost; SPIs of both on the wire, no number of them twice",
            delivery.lost(),
            delivery.sent.len()
        ),
    });
    Ok(())
}
