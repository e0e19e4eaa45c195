//! A table of nftables, by the program `nft`: put in place, listed, watched, removed.

use std::io::{self, Write};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

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

/// The reason why `nft` did not do what it was asked.
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
}

impl NftError {
    /// The thread that ran it ended before it answered.
    pub fn interrupted() -> NftError {
        NftError::Run { source: io::ErrorKind::Other.into() }
    }
}

/// A table of family `inet`, by its name. All calls block for milliseconds, more for sets of many
/// addresses; `action` stands in the message of a refusal.
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

    /// Puts a text of [`Table::text`] in the place of the table that stands, in one transaction.
    ///
    /// # Errors
    /// [`NftError`]: the one that stands still does.
    pub fn replace(self, action: &'static str, text: &str) -> Result<(), NftError> {
        self.change(action, &(self.removal() + text))
    }

    /// Removes the table, whoever made it.
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

    /// The table without counters (`-s`), which change all the time, and without the elements of
    /// sets (`-t`), which can take seconds. Those cannot change: constant sets are meant, and a
    /// table made anew has other handles (`-a`). `None`: there is no such table.
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
    /// Longest message that is shown to an operator, characters.
    const MESSAGE_LENGTH: usize = 1000;
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => NftError::NoProgram,
        _ => NftError::Run { source },
    };
    let mut command = Command::new("nft");
    command.args(arguments).env("LC_ALL", "C");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    // A program that stops reading says why on its standard error.
    let written = child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
    let Output { status, stdout, stderr } = child.wait_with_output().map_err(failed)?;
    match (status.success(), written) {
        (true, Some(Err(source))) => Err(failed(source)),
        (true, _) => Ok(String::from_utf8_lossy(&stdout).into_owned()),
        (false, _) => {
            let message: String = String::from_utf8_lossy(&stderr).trim().into();
            let message = message.chars().take(MESSAGE_LENGTH).collect();
            Err(NftError::Refused { action, message })
        }
    }
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
