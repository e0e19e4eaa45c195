//! An emulated card as a process: started, waited for, told what happens to it, ended.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use serde_json::Value;

use crate::process::{self, Finished, Running};
use crate::{LabError, Namespace, programs};

/// Time for the process to begin, to answer, and to end.
const LIMIT: Duration = Duration::from_secs(60);
/// Beginning of the comment in a capture that names a tag.
const TAG: &str = "emulated card's tag: handle ";

/// The options of a card.
#[derive(Clone, Copy, Debug)]
pub struct CardPlan<'a> {
    /// Name of the netdev that it makes for the host.
    pub tap: &'a str,
    /// Interface that is its wire.
    pub wire: &'a str,
    /// The card: `emulated:rules=N,ms=N,order=none|priority`.
    pub card: &'a str,
    /// Receive queues.
    pub queues: u32,
    /// Faults: `refuse=100,late=…`; empty: none.
    pub faults: &'a str,
    /// Link address of the host's netdev; empty: that of the wire.
    pub mac: &'a str,
}

impl<'a> CardPlan<'a> {
    /// A card without faults and with four queues.
    pub fn new(tap: &'a str, wire: &'a str) -> CardPlan<'a> {
        CardPlan { tap, wire, card: "emulated", queues: 4, faults: "", mac: "" }
    }
}

/// An emulated card that runs. Dropping it ends it, and its netdev goes.
#[derive(Debug)]
pub struct EmulatedCard {
    running: Running,
    program: PathBuf,
    socket: PathBuf,
    capture: PathBuf,
}

/// A frame in a card's capture: of what the host sees.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SeenFrame {
    /// True of frames from the card to the host.
    pub to_host: bool,
    /// Handle and incarnation of the card's tag.
    pub tag: Option<(u32, u32)>,
    /// Its bytes, without the card's header.
    pub bytes: Vec<u8>,
}

impl EmulatedCard {
    /// Starts a card in a namespace and waits until it serves. `directory`/`name` is its socket,
    /// `name`.pcapng beside it what the host sees.
    ///
    /// # Errors
    /// [`LabError::NotBuilt`], and as [`Running::wait_until`].
    pub fn start(
        namespace: &Namespace,
        plan: &CardPlan<'_>,
        (directory, name): (&Path, &str),
    ) -> Result<EmulatedCard, LabError> {
        let program = programs::emulated_card()?;
        let socket = directory.join(name);
        let capture = directory.join(format!("{name}.pcapng"));
        let mut command = namespace.command(&program);
        command.args(["--tap", plan.tap, "--wire", plan.wire, "--card", plan.card]);
        command.args(["--queues", &plan.queues.to_string(), "--faults", plan.faults]);
        command.arg("--socket").arg(&socket).arg("--capture").arg(&capture);
        if !plan.mac.is_empty() {
            command.args(["--mac", plan.mac]);
        }
        let mut running = Running::start(command)?;
        running.wait_until("the emulated card", LIMIT, |card| card.stdout().contains("serves"))?;
        Ok(EmulatedCard { running, program, socket, capture })
    }

    /// The socket on which it serves hosts.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Gives it a command, `reset told` say, and returns its answer.
    ///
    /// # Errors
    /// As [`process::succeed`]: a refused command too; [`LabError::Answer`].
    pub fn tell(&self, words: &str) -> Result<Value, LabError> {
        let mut command = Command::new(&self.program);
        command.arg("--tell").arg(&self.socket).args(words.split_whitespace());
        let text = process::display(&command);
        let answer = process::succeed(command, LIMIT)?;
        serde_json::from_str(&answer).map_err(|_| LabError::Answer { command: text, answer })
    }

    /// Frames that the host has seen so far: both ways, in order.
    ///
    /// # Errors
    /// As [`EmulatedCard::tell`]; [`LabError::File`]: the file cannot be read.
    pub fn seen(&self) -> Result<Vec<SeenFrame>, LabError> {
        // Before it answers, it writes what it has.
        self.tell("counts")?;
        let file = File::open(&self.capture).map_err(LabError::file(&self.capture))?;
        let broken = |error| LabError::file(&self.capture)(std::io::Error::other(error));
        let mut reader = PcapNgReader::new(BufReader::new(file)).map_err(broken)?;
        let mut frames = Vec::new();
        while let Some(block) = reader.next_block() {
            let Block::EnhancedPacket(packet) = block.map_err(broken)? else { continue };
            let (mut to_host, mut tag) = (false, None);
            for option in &packet.options {
                match option {
                    EnhancedPacketOption::Comment(text) => tag = read_tag(text),
                    EnhancedPacketOption::Flags(flags) => to_host = flags & 3 == 1,
                    _ => {}
                }
            }
            frames.push(SeenFrame { to_host, tag, bytes: packet.data.into_owned() });
        }
        Ok(frames)
    }

    /// Ends it at once (SIGKILL): its netdev goes without a word to the host.
    pub fn kill(&mut self) {
        self.running.kill();
    }

    /// Ends it (SIGTERM) and returns what it said.
    ///
    /// # Errors
    /// As [`Running::terminate`].
    pub fn end(self) -> Result<Finished, LabError> {
        self.running.terminate(LIMIT)
    }
}

/// Handle and incarnation that a comment names.
fn read_tag(comment: &str) -> Option<(u32, u32)> {
    let (handle, incarnation) = comment.strip_prefix(TAG)?.split_once(", incarnation ")?;
    Some((handle.parse().ok()?, incarnation.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_read_from_its_comment() {
        let tag = "emulated card's tag: handle 4294967294, incarnation 3";
        assert_eq!(read_tag(tag), Some((4_294_967_294, 3)));
        assert_eq!(read_tag("emulated card's tag: handle x, incarnation 3"), None);
        assert_eq!(read_tag(""), None);
    }
}
