//! The guard: an nftables table that keeps Linux from forwarding or sending in clear what the
//! policies want protected, with or without the daemon (DESIGN "Fail closed").
//!
//! XDP sees only what comes in; the guard stands where XDP cannot: on what the kernel would
//! forward by our ports, and on what this machine itself would send.
//!
//! * Hook `forward`: nothing that came from or would leave by one of our netdevs, or by one
//!   stacked on them.
//! * Hook `output`, by unprotected ports: ESP, IKE and neighbour discovery pass. Then the
//!   outbound policies are asked in their order: BYPASS passes, PROTECT and DISCARD drop. What
//!   matches none is this machine's own affair.
//!
//! `allow_host` opens nothing here: an answer in clear that a PROTECT policy covers is dropped
//! too. Whoever wants it writes a BYPASS policy.
//!
//! The table is put in place by one transaction of the program `nft`, so there is no moment
//! without it.

mod text;
mod watch;

use std::io::{self, Write};
use std::process::{Command, Output, Stdio};

pub use text::UnwritableName;
pub use watch::GuardWatch;

use crate::Validated;
use crate::mirror::View;

/// The table's name, in family `inet`.
pub const GUARD_TABLE: &str = "lockgate";

/// Why the guard does not stand.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// A netdev's name cannot be written in nftables.
    #[error(transparent)]
    Name(#[from] UnwritableName),
    /// The program `nft` is not there.
    #[error("the program nft is missing: install nftables (apt-get install nftables)")]
    NoProgram,
    /// The program `nft` does not start.
    #[error("cannot run nft: {source}")]
    Run {
        /// The kernel's answer.
        source: io::Error,
    },
    /// The program `nft` refused.
    #[error("nft refused to {action}: {message}")]
    Refused {
        /// What was tried.
        action: &'static str,
        /// What it said, its first lines.
        message: String,
    },
}

/// Whether the table is what was put there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Integrity {
    /// It is.
    Intact,
    /// It was changed or removed by somebody else.
    Broken,
}

/// The guard of one configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Guard {
    /// What is put in place.
    text: String,
    /// How `nft` lists what was put in place; `None`: nothing was.
    listing: Option<String>,
}

impl Guard {
    /// The guard of a configuration: its ports and what is stacked on them now, its policies.
    /// Pure.
    ///
    /// # Errors
    /// [`UnwritableName`]: a netdev's name cannot be written in nftables.
    pub fn new(config: &Validated, view: &View) -> Result<Guard, UnwritableName> {
        Ok(Guard { text: text::of_configuration(config, view)?, listing: None })
    }

    /// The guard at boot, when the netdevs may not be there yet: VLANs go by their usual names.
    /// Pure.
    ///
    /// # Errors
    /// [`UnwritableName`]: a netdev's name cannot be written in nftables.
    pub fn early(config: &Validated) -> Result<Guard, UnwritableName> {
        Guard::new(config, &View::default())
    }

    /// The guard when there is no configuration that can be read: the kernel forwards nothing.
    pub fn closed() -> Guard {
        Guard { text: text::of_everything(), listing: None }
    }

    /// What `nft -f` reads.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Puts the table in place, instead of the one that is there, in one transaction. Takes
    /// milliseconds; blocks.
    ///
    /// # Errors
    /// [`GuardError`]: what was there before is still there.
    pub fn install(&mut self) -> Result<(), GuardError> {
        run("install the guard", &["-f", "-"], &self.text)?;
        self.listing = Some(list()?);
        Ok(())
    }

    /// Asks `nft` whether the table could be put in place. Changes nothing; needs the same
    /// privilege.
    ///
    /// # Errors
    /// [`GuardError`].
    pub fn check(&self) -> Result<(), GuardError> {
        run("accept the guard", &["-c", "-f", "-"], &self.text).map(|_| ())
    }

    /// Whether the table is still what was put in place. Takes milliseconds; blocks.
    ///
    /// # Errors
    /// [`GuardError`]: `nft` could not be asked.
    pub fn integrity(&self) -> Result<Integrity, GuardError> {
        let now = match list() {
            Ok(listing) => Some(listing),
            Err(GuardError::Refused { .. }) => None,
            Err(error) => return Err(error),
        };
        match now.is_some() && now == self.listing {
            true => Ok(Integrity::Intact),
            false => Ok(Integrity::Broken),
        }
    }

    /// Whether the table is there, whoever put it there.
    ///
    /// # Errors
    /// [`GuardError`]: `nft` could not be asked.
    pub fn stands() -> Result<bool, GuardError> {
        match list() {
            Ok(_) => Ok(true),
            Err(GuardError::Refused { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes the table, whoever put it there: Linux may forward again.
    ///
    /// # Errors
    /// [`GuardError`]; that there is no table is none.
    pub fn remove() -> Result<(), GuardError> {
        // `delete` of what is not there is an error, so it is made first.
        let text = format!("table inet {GUARD_TABLE} {{}}\ndelete table inet {GUARD_TABLE}\n");
        run("remove the guard", &["-f", "-"], &text).map(|_| ())
    }
}

fn list() -> Result<String, GuardError> {
    // Without counters (`-s`): they change all the time.
    run("list the guard", &["-s", "list", "table", "inet", GUARD_TABLE], "")
}

/// Runs `nft` with this input and returns what it prints.
fn run(action: &'static str, arguments: &[&str], input: &str) -> Result<String, GuardError> {
    /// What an operator can read of a message, bytes.
    const MESSAGE_BYTES: usize = 1000;
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => GuardError::NoProgram,
        _ => GuardError::Run { source },
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
            let message = message.chars().take(MESSAGE_BYTES).collect();
            Err(GuardError::Refused { action, message })
        }
    }
}
