//! Another implementation at the other end: strongSwan's own ESP in user space.

use std::path::Path;
use std::time::Duration;

use io::CaptureReader;
use netlab::capture::{Scope, Tally};
use netlab::ping::Ping;
use netlab::stream::{Delivery, Stream};
use netlab::{LabError, interrupt};

use super::elsewhere::{Elsewhere, Other};
use super::stage::{A, B, LIMIT, Stage, events};
use crate::report::Check;

/// The plugin that has it.
const PLUGIN: &str = "/usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so";
/// The device that it hands packets over by.
const TUN: &str = "/dev/net/tun";
/// Proposal that it takes: without ESN.
const PROPOSAL: &str = "aes256gcm16";
/// Time that streams run, and time between two of their packets.
const SENT_FOR: Duration = Duration::from_millis(1000);
const STEP: Duration = Duration::from_millis(2);

/// Builds a laboratory of its own, in which gateway b is strongSwan alone.
pub(super) fn peer(stage: &mut Stage) -> Result<(), LabError> {
    const SCENE: &str = "strongSwan's own ESP (kernel-libipsec) as the peer";
    for (file, package) in [(PLUGIN, "apt-get install libcharon-extra-plugins"), (TUN, "load tun")]
    {
        if !Path::new(file).exists() {
            stage.skip(SCENE, format!("there is no {file} ({package})"));
            return Ok(());
        }
    }
    stage.say("a second laboratory: gateway b is strongSwan alone, with ESP in UDP");
    let more = |_| "encapsulation = \"udp\"\n".to_owned();
    let mut place = Elsewhere::build(more, |end| end.proposal = PROPOSAL)?;
    place.start(Other::Libipsec)?;
    let gateways = &mut place.gateways;
    let capture = gateways.capture(Scope::Heads)?;
    let [to_b, to_a] = [B, A].map(|number| gateways.site(number).host_v4());
    // The first packet waits for its keys; the queue behind it has no room for so many.
    Ping::new(&to_b, 1).run_until_answered(&gateways.site(A).host)?;
    let there = Ping::new(&to_b, 10).run_until_answered(&gateways.site(A).host)?;
    let back = Ping::new(&to_a, 10).run_until_answered(&gateways.site(B).host)?;
    let streams = [gateways.stream(A, B, STEP)?, gateways.stream(B, A, STEP)?];
    interrupt::sleep(SENT_FOR)?;
    let deliveries = streams.map(Stream::finish);
    let file = capture.stop()?;
    let (wire, in_udp) = (Tally::of(&file)?, esp_in_udp(&file)?);
    let imbalance = gateways.daemon(A)?.settled(LIMIT)?.ledger_imbalance;
    stage.report.wire.udp_esp += in_udp;
    stage.report.wire.clear += wire.clear;
    stage.report.ike.acquires += events(gateways, A, "acquire")?.len() as u64;
    let (lost, sent) = stage.note_lost(&deliveries);
    let repeated: usize = deliveries.iter().map(Delivery::repeated).sum();
    let ok = there.all_answered() && back.all_answered() && lost == 0 && repeated == 0;
    stage.note(Check {
        name: "strongSwan's own ESP in user space and Lockgate open what the other seals",
        ok: ok && in_udp >= (sent + 40) as u64 && wire.clear + wire.esp == 0 && imbalance == 0,
        detail: format!(
            "a to b {}, b to a {}; {lost} of {sent} packets lost; {in_udp} ESP in UDP, {} in clear",
            there.summary(),
            back.summary(),
            wire.clear
        ),
    });
    Ok(())
}

/// Packets of a capture with ESP in UDP over IPv4: port 4500, and no zero in front (RFC 3948 §2).
fn esp_in_udp(file: &Path) -> Result<u64, LabError> {
    const PORT: [u8; 2] = 4500u16.to_be_bytes();
    let mut reader = CaptureReader::open(file)?;
    let mut count = 0;
    while let Some(packet) = reader.peek()? {
        let frame = packet.bytes;
        let is_udp = frame.get(12..15) == Some(&[0x08, 0x00, 0x45]) && frame.get(23) == Some(&17);
        let is_port = frame.get(36..38) == Some(&PORT);
        // Longer than a keepalive.
        let has_spi = frame.get(42..46).is_some_and(|spi| spi != [0; 4]);
        count += u64::from(is_udp && is_port && has_spi);
        reader.skip();
    }
    Ok(count)
}
