//! A table of nftables, by the program `nft`: put in place, listed, watched, removed.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::netlink::Events;

/// Netfilter (`NETLINK_NETFILTER`).
const NETFILTER_PROTOCOL: isize = 12;
/// `NFNLGRP_NFTABLES` (linux/netfilter/nfnetlink.h).
const TABLES_GROUP: u32 = 7;
/// Room for what the kernel tells while nobody reads, bytes.
const EVENT_ROOM_BYTES: u32 = 1 << 20;
/// Time that a change is given to finish before it is reported.
const SETTLING: Duration = Duration::from_millis(10);
/// Period at which a change is assumed if the kernel cannot be listened to.
const PERIOD: Duration = Duration::from_secs(2);
/// Period at which a change is assumed in any case.
const LONG_PERIOD: Duration = Duration::from_secs(30);

/// Time that `nft` may take: 100 000 addresses take it a second.
const LIMIT: Duration = Duration::from_secs(30);
/// Interval at which a running `nft` is looked at.
const LOOK: Duration = Duration::from_millis(1);

/// Reason why `nft` failed.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// The program is not there.
    #[error("the program nft is missing: install nftables (apt-get install nftables)")]
    NoProgram,
    /// The program does not start.
    #[error("cannot run nft: {source}")]
    Run {
        /// The kernel's answer.
        source: io::Error,
    },
    /// The program refused.
    #[error("nft refused to {action}: {message}")]
    Refused {
        /// Name of the operation that was tried.
        action: &'static str,
        /// Its own words, the first lines of them.
        message: String,
    },
    /// The program did not end in time and was killed. What it was about to change may be changed:
    /// who watches the table notices.
    #[error("nft did not {action} within {} s: it was killed", .limit.as_secs())]
    Hung {
        /// Name of the operation that was tried.
        action: &'static str,
        /// The time that it had.
        limit: Duration,
    },
}

impl NftError {
    /// The thread that ran it ended before it answered.
    pub fn interrupted() -> NftError {
        NftError::Run { source: io::ErrorKind::Other.into() }
    }
}

/// A table of family `inet`, by its name. All calls block for milliseconds, more for sets of many
/// addresses, half a minute at most; `action` names the operation in the message of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Table(&'static str);

impl Table {
    /// The table of this name.
    pub const fn inet(name: &'static str) -> Table {
        Table(name)
    }

    /// Reads a text in one transaction: all of it holds afterwards, or nothing.
    ///
    /// # Errors
    /// [`NftError`]: what was there before is still there.
    pub fn change(self, action: &'static str, text: &str) -> Result<(), NftError> {
        run(action, &["-f", "-"], text).map(drop)
    }

    /// Asks whether [`Table::change`] would be accepted. Changes nothing; needs the same privilege.
    ///
    /// # Errors
    /// [`NftError`].
    pub fn check(self, action: &'static str, text: &str) -> Result<(), NftError> {
        run(action, &["-c", "-f", "-"], text).map(drop)
    }

    /// Replaces the installed table by a text of [`Table::text`], in one transaction.
    ///
    /// # Errors
    /// [`NftError`]: the one that stands still does.
    pub fn replace(self, action: &'static str, text: &str) -> Result<(), NftError> {
        self.change(action, &(self.removal() + text))
    }

    /// Removes the table, whatever made it.
    ///
    /// # Errors
    /// [`NftError`]; that there is no table is none.
    pub fn remove(self, action: &'static str) -> Result<(), NftError> {
        self.change(action, &self.removal())
    }

    /// `delete` of what is not there is an error, so it is made first.
    fn removal(self) -> String {
        format!("table inet {name} {{}}\ndelete table inet {name}\n", name = self.0)
    }

    /// The table as `nft` writes it without counters; `None`: there is none.
    ///
    /// # Errors
    /// [`NftError`]: `nft` could not be asked.
    pub fn text(self, action: &'static str) -> Result<Option<String>, NftError> {
        match self.listing()? {
            None => Ok(None),
            Some(_) => run(action, &["-s", "list", "table", "inet", self.0], "").map(Some),
        }
    }

    /// Lists the table without counters (`-s`), which change all the time, and without the elements
    /// of sets (`-t`), which can take seconds. The elements cannot change: the sets are constant,
    /// and a table made anew has other handles (`-a`). `None`: there is no such table.
    ///
    /// # Errors
    /// [`NftError`]: `nft` could not be asked.
    pub fn listing(self) -> Result<Option<Arc<str>>, NftError> {
        // `list table` of nftables 1.0.6 reads the elements even if it does not print them.
        let arguments = ["-s", "-t", "-a", "list", "ruleset", "inet"];
        let listing = run("list the ruleset", &arguments, "")?;
        let head = format!("table inet {} {{", self.0);
        let lines = listing.split_inclusive('\n').skip_while(|line| !line.starts_with(&head));
        let mut table = String::new();
        for line in lines {
            table.push_str(line);
            if line.starts_with('}') {
                return Ok(Some(table.into()));
            }
        }
        Ok(None)
    }
}

/// Runs `nft` with this input and returns what it prints.
fn run(action: &'static str, arguments: &[&str], input: &str) -> Result<String, NftError> {
    let mut nft = Command::new("nft");
    nft.args(arguments).env("LC_ALL", "C");
    run_within(LIMIT, &mut nft, action, input)
}

/// Runs a program with this input and returns what it prints, if it ends in time. Input and output
/// are files in memory: nobody waits for a pipe.
fn run_within(
    limit: Duration,
    command: &mut Command,
    action: &'static str,
    input: &str,
) -> Result<String, NftError> {
    /// Longest message that is shown to an operator, characters.
    const MESSAGE_LENGTH: usize = 1000;
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => NftError::NoProgram,
        _ => NftError::Run { source },
    };
    let mut start = || {
        let (mut given, printed, said) = (memory_file()?, memory_file()?, memory_file()?);
        given.write_all(input.as_bytes())?;
        given.rewind()?;
        command.stdin(given).stdout(printed.try_clone()?).stderr(said.try_clone()?);
        Ok((command.spawn()?, printed, said))
    };
    let (child, printed, said) = start().map_err(failed)?;
    let status = end_within(limit, child).map_err(failed)?;
    if status.ok_or(NftError::Hung { action, limit })?.success() {
        return text_of(printed).map_err(failed);
    }
    let message = text_of(said).map_err(failed)?;
    let message = message.trim().chars().take(MESSAGE_LENGTH).collect();
    Err(NftError::Refused { action, message })
}

fn memory_file() -> io::Result<File> {
    Ok(memfd_create("nft", MemfdFlags::CLOEXEC)?.into())
}

fn text_of(mut file: File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Waits until a program ends; `None`: it did not in time and is killed.
fn end_within(limit: Duration, mut child: Child) -> io::Result<Option<ExitStatus>> {
    let end = Instant::now() + limit;
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(Some(status)),
            None if Instant::now() < end => std::thread::sleep(LOOK),
            None => break,
        }
    }
    child.kill()?;
    // Where the kernel holds it fast it does not end yet, and a thread of its own waits for it. If
    // there is none to be had, it stays a zombie.
    let _ = std::thread::Builder::new().spawn(move || child.wait());
    Ok(None)
}

/// Changes that anybody makes to nftables.
pub struct Changes {
    /// `None`: the kernel cannot be listened to, so a change is assumed every 2 s.
    events: Option<Events>,
}

impl Changes {
    /// Listens in this thread's network namespace; if that does not work, a change is assumed
    /// every 2 s.
    pub fn listen() -> Changes {
        Changes { events: Events::open(NETFILTER_PROTOCOL, &[TABLES_GROUP], EVENT_ROOM_BYTES).ok() }
    }

    /// Waits for a change, or for the time to look anyway. Cancel safe.
    pub async fn next(&mut self) {
        let Some(events) = &mut self.events else {
            tokio::time::sleep(PERIOD).await;
            return;
        };
        match tokio::time::timeout(LONG_PERIOD, events.receive(|_| {})).await {
            Err(_elapsed) => return,
            Ok(Ok(())) => {}
            Ok(Err(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
            Ok(Err(_)) => {
                self.events = None;
                return;
            }
        }
        tokio::time::sleep(SETTLING).await;
        while let Ok(true) = events.receive_ready(|_| {}).await {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a line of shell in the place of `nft`.
    fn shell(line: &str, input: &str, limit: Duration) -> Result<String, NftError> {
        run_within(limit, Command::new("sh").args(["-c", line]), "do it", input)
    }

    #[test]
    fn a_program_that_hangs_is_killed_and_is_a_refusal() {
        let (begun, limit) = (Instant::now(), Duration::from_millis(50));
        // It neither reads what it is given nor ends, and its process is the one that is killed.
        let hung = shell("exec sleep 60", &"x".repeat(1 << 20), limit).unwrap_err();
        assert!(matches!(hung, NftError::Hung { .. }), "{hung:?}");
        assert!(begun.elapsed() >= limit && begun.elapsed() < Duration::from_secs(30));
        let hung = NftError::Hung { action: "install the guard", limit: LIMIT };
        assert_eq!(hung.to_string(), "nft did not install the guard within 30 s: it was killed");
    }

    #[test]
    fn a_program_reads_all_its_input_and_is_heard_whole() {
        let input = "x".repeat(1 << 20);
        assert_eq!(shell("cat; head -c 1000000 /dev/zero >&2", &input, LIMIT).unwrap(), input);
        let refused = shell("cat >&2; echo ' why'; exit 1", "because ", LIMIT).unwrap_err();
        assert_eq!(refused.to_string(), "nft refused to do it: because");
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        let mut command = Command::new("/nonexistent/nft");
        let missing = run_within(LIMIT, &mut command, "do it", "").unwrap_err();
        assert!(matches!(missing, NftError::NoProgram), "{missing:?}");
    }
}
