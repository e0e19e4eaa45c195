//! A third opinion: tshark decrypts a capture of the wire with the keys that charon logged. It does
//! not know ESN, so that it checks no ICV; Lockgate's own other end has done that.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use netlab::capture::Scope;
use netlab::charon::KeysInLog;
use netlab::ping::Ping;
use netlab::process;
use netlab::stream::Stream;
use netlab::{LabError, interrupt, programs};

use super::stage::{A, B, Stage};
use crate::report::Check;

/// Time for tshark.
const LIMIT: Duration = Duration::from_secs(60);
/// Time that streams run.
const SENT_FOR: Duration = Duration::from_millis(500);
/// Pings from host a to host b.
const PINGS: u32 = 20;

/// The keys and SPIs of a CHILD_SA, of the gateway that initiated it.
#[derive(Clone, PartialEq, Eq, Default)]
struct Logged {
    /// Keys, with their salt: the initiator's, the responder's.
    keys: [String; 2],
    /// SPIs: outbound, inbound.
    spis: [String; 2],
}

/// Ends the tunnel, and has tshark decrypt all of the next one.
pub(super) fn by_tshark(stage: &mut Stage) -> Result<(), LabError> {
    const SCENE: &str = "tshark decrypts with charon's keys";
    if programs::find("tshark").is_none() {
        stage.skip(SCENE, "there is no tshark (apt-get install tshark)");
        return Ok(());
    }
    stage.terminate()?;
    stage.say("gateway a's charon begins anew, and writes keys into its log for this alone");
    stage.kill_charon(A);
    let proof = stage.proof();
    stage.start_charon(A, &proof, KeysInLog::Yes)?;
    let capture = stage.capture(Scope::Whole)?;
    let to = stage.gateways.site(B).host_v4();
    // The first packet waits for its keys; the queue behind it has no room for so many.
    Ping::new(&to, 1).run_until_answered(&stage.gateways.site(A).host)?;
    let answers = Ping::new(&to, PINGS).run_until_answered(&stage.gateways.site(A).host)?;
    let streams = stage.both_ways()?;
    interrupt::sleep(SENT_FOR)?;
    let deliveries = streams.map(Stream::finish);
    let (lost, sent) = stage.note_lost(&deliveries);
    let sealed: u64 = stage
        .sas(A)?
        .iter()
        .chain(&stage.sas(B)?)
        .filter(|sa| sa["direction"] == "outbound")
        .filter_map(|sa| sa["sequence"].as_u64())
        .sum();
    let file = capture.stop()?;
    stage.add_file(&file)?;
    let log = stage.charon(A)?.log();
    let Some(logged) = logged(&log) else {
        stage.skip(SCENE, "charon logged no keys that are understood");
        return Ok(());
    };
    let ends = &stage.end(A).addresses;
    let all = tshark(&file, ends, &logged, "esp")?;
    // What other keys leave behind may look like anything, but not have a host's address.
    let of_hosts = format!("esp && ip.addr == {to} && ");
    let pings = tshark(&file, ends, &logged, &format!("{of_hosts} icmp"))?;
    let streamed = tshark(&file, ends, &logged, &format!("{of_hosts} udp.dstport == 7007"))?;
    let in_wrong = Logged { keys: ["0x00", "0x01"].map(|key| wrong(&logged, key)), ..logged };
    let by_others = tshark(&file, ends, &in_wrong, &format!("{of_hosts} (icmp || udp)"))?;
    stage.note(Check {
        name: "tshark decrypts every packet with the keys of charon's log, none with others",
        ok: answers.all_answered()
            && all == sealed
            && pings + streamed == sealed
            && pings >= u64::from(2 * PINGS)
            && streamed == sent as u64
            && lost == 0
            && by_others == 0,
        detail: format!(
            "{sealed} sealed by both gateways, {all} on the wire, {} decrypted ({pings} of pings \
             and answers, {streamed} of the streams' {sent}); {by_others} with other keys; {}",
            pings + streamed,
            answers.summary()
        ),
    });
    Ok(())
}

/// A key of the right length that is not the one.
fn wrong(logged: &Logged, prefix: &str) -> String {
    let digits = logged.keys[0].len() - prefix.len();
    format!("{prefix}{}", "5a".repeat(digits / 2))
}

/// Packets of a capture that tshark finds with these keys.
fn tshark(
    file: &Path,
    [local, remote]: &[String; 2],
    logged: &Logged,
    filter: &str,
) -> Result<u64, LabError> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-o", "esp.enable_encryption_decode:TRUE"]);
    let ways = [[local, remote], [remote, local]];
    for ((from, to), (spi, key)) in
        ways.map(|[from, to]| (from, to)).iter().zip(logged.spis.iter().zip(&logged.keys))
    {
        command.arg(format!(
            "-ouat:esp_sa:\"IPv4\",\"{from}\",\"{to}\",\"{spi}\",\"AES-GCM with 16 octet ICV \
             [RFC4106]\",\"{key}\",\"NULL\",\"\""
        ));
    }
    command.args(["-Y", filter, "-T", "fields", "-e", "frame.number"]);
    Ok(process::succeed(command, LIMIT)?.lines().count() as u64)
}

/// Finds keys and SPIs of the last CHILD_SA in a log of the gateway that initiated it.
fn logged(log: &str) -> Option<Logged> {
    let keys = ["encryption initiator key => ", "encryption responder key => "]
        .map(|title| dumped(log, title));
    let [Some(initiator), Some(responder)] = keys else { return None };
    let line = log.lines().rfind(|line| line.contains(" established with SPIs "))?;
    let spi = |suffix: &str| -> Option<String> {
        let word = line.split_whitespace().find_map(|word| word.strip_suffix(suffix))?;
        u32::from_str_radix(word, 16).ok().map(|spi| format!("{spi:#010x}"))
    };
    Some(Logged { keys: [initiator, responder], spis: [spi("_o")?, spi("_i")?] })
}

/// The last bytes that a log has behind a title: `TITLE36 bytes @ …`, and lines of 16 bytes.
fn dumped(log: &str, title: &str) -> Option<String> {
    let (_, rest) = log.rsplit_once(title)?;
    let mut lines = rest.lines();
    let count: usize = lines.next()?.split_whitespace().next()?.parse().ok()?;
    let mut text = "0x".to_owned();
    for (line, at) in lines.zip((0..count).step_by(16)) {
        let (_, bytes) = line.split_once(&format!(" {at}: "))?;
        for byte in bytes.split_whitespace().take(16.min(count - at)) {
            u8::from_str_radix(byte, 16).ok().filter(|_| byte.len() == 2)?;
            text += byte;
        }
    }
    (text.len() == 2 + 2 * count).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_spis_of_the_last_child_are_found_in_the_log() {
        let log = "1.001 05[CHD] <gw|1> encryption initiator key => 18 bytes @ 0x7f\n\
            1.001 05[CHD] <gw|1>    0: 01 02 03 04 05 06 07 08 09 0A 0B 0C 0D 0E 0F 10  ........\n\
            1.001 05[CHD] <gw|1>   16: AA BB                                            ..\n\
            1.001 05[CHD] <gw|1> encryption responder key => 2 bytes @ 0x7f\n\
            1.001 05[CHD] <gw|1>    0: CC DD                                            ..\n\
            1.001 05[IKE] <gw|1> CHILD_SA net{2} established with SPIs c1_i 0a1b2c3d_o and TS x\n";
        let found = logged(log).unwrap();
        assert_eq!(found.keys, ["0x0102030405060708090A0B0C0D0E0F10AABB", "0xCCDD"]);
        assert_eq!(found.spis, ["0x0a1b2c3d", "0x000000c1"]);
        assert_eq!(wrong(&found, "0x00").len(), found.keys[0].len());
        assert!(logged(&log.replace("AA BB", "AA")).is_none());
        assert!(logged(&log.replace("_o", "")).is_none());
    }
}
