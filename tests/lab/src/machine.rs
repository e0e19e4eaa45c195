//! A machine for a gateway: a network namespace, and system directories that nobody else sees.
//!
//! Programs in it find `/etc/lockgate` and `/var/lib/lockgate` empty, and a `/run` of their own, so
//! that they run with the paths of an installed gateway and leave nothing on the host. All other
//! files are those of the host.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process::{self, Finished, Running};
use crate::{LabError, Namespace};

/// Time for the directories to be there.
const READY: Duration = Duration::from_secs(60);

/// Covers the directories, each step only if the one before it succeeded, and keeps them.
const COVER: &str = r#"
mount --make-rprivate / &&
mount -t tmpfs none "$1" && cd "$1" && mkdir etc etc-work lib lib-work &&
mount -t overlay -o lowerdir=/etc,upperdir=etc,workdir=etc-work none /etc &&
mount -t overlay -o lowerdir=/var/lib,upperdir=lib,workdir=lib-work none /var/lib &&
rm -rf /etc/lockgate /var/lib/lockgate && mkdir /etc/lockgate &&
mount -t tmpfs -o mode=755 none /run &&
echo ready && exec sleep infinity"#;

/// A machine that lasts until it is dropped.
#[derive(Debug)]
pub struct Machine {
    holder: Running,
}

impl Machine {
    /// Makes a machine in a network namespace. `directory` is an empty directory that it may use.
    ///
    /// # Errors
    /// As [`Running::wait_until`]: this kernel lacks overlays, for example.
    pub fn new(namespace: &Namespace, directory: &Path) -> Result<Machine, LabError> {
        let mut command = namespace.command("sh");
        command.args(["-c", COVER, "sh"]).arg(directory);
        let mut holder = Running::start(command)?;
        holder.wait_until("a machine's directories", READY, |running| {
            running.stdout().contains("ready")
        })?;
        Ok(Machine { holder })
    }

    /// A process inside.
    pub fn pid(&self) -> u32 {
        self.holder.pid()
    }

    /// A program that will run inside, in the root directory.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.holder.pid())).args(["--mount", "--net"]);
        command.arg(program);
        command
    }

    /// Runs a program inside to its end, however it ends.
    ///
    /// # Errors
    /// As [`process::run`].
    pub fn run(&self, words: &[&str], limit: Duration) -> Result<Finished, LabError> {
        let mut command = self.command(words[0]);
        command.args(&words[1..]);
        process::run(command, limit)
    }

    /// Runs lines of shell inside, in a directory; the first that fails ends it.
    ///
    /// # Errors
    /// As [`process::run`].
    pub fn shell(
        &self,
        directory: &Path,
        lines: &str,
        limit: Duration,
    ) -> Result<Finished, LabError> {
        let mut command = self.command("sh");
        command.args(["-e", "-c", "cd \"$1\"; eval \"$2\"", "sh"]).arg(directory).arg(lines);
        process::run(command, limit)
    }
}
