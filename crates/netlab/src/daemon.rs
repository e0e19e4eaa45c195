//! One `lockgated` in a namespace, as its operator sees it.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::{self, Finished, Running};
use crate::{GatewayFile, LabError, Namespace, Programs};

/// Time that a daemon has to be ready, and to end.
const READY: Duration = Duration::from_secs(15);
/// Time for an answer of the API.
const ANSWER: Duration = Duration::from_secs(10);

/// A daemon that runs. Dropping it ends it.
#[derive(Debug)]
pub struct Daemon {
    running: Running,
    programs: Programs,
    socket: PathBuf,
    started: Instant,
}

impl Daemon {
    /// Starts a daemon and does not wait for it.
    ///
    /// # Errors
    /// [`LabError::Start`].
    pub fn launch(
        programs: &Programs,
        gateway: &Namespace,
        file: &GatewayFile,
    ) -> Result<Daemon, LabError> {
        let mut command = gateway.command(&programs.lockgated);
        command.arg("--config").arg(file.path());
        let started = Instant::now();
        let running = Running::start(command)?;
        let programs = programs.clone();
        Ok(Daemon { running, programs, socket: file.socket(), started })
    }

    /// Writes the file, starts a daemon and waits until it is ready.
    ///
    /// # Errors
    /// As [`Daemon::launch`] and [`Daemon::wait_ready`].
    pub fn start(
        programs: &Programs,
        gateway: &Namespace,
        file: &GatewayFile,
    ) -> Result<Daemon, LabError> {
        file.write()?;
        let mut daemon = Daemon::launch(programs, gateway, file)?;
        daemon.wait_ready()?;
        Ok(daemon)
    }

    /// Waits until the API answers.
    ///
    /// # Errors
    /// [`LabError::Ended`] with what it said, [`LabError::TimedOut`], [`LabError::Interrupted`].
    pub fn wait_ready(&mut self) -> Result<(), LabError> {
        let socket = self.socket.clone();
        self.running.wait_until("its API", READY, |_| UnixStream::connect(&socket).is_ok())
    }

    /// When it was started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// The API's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What it has said so far.
    pub fn log(&self) -> String {
        self.running.stderr()
    }

    /// Whether it runs.
    pub fn is_running(&mut self) -> bool {
        self.running.status().is_none()
    }

    /// Ends it at once, as a crash would (SIGKILL).
    pub fn kill(&mut self) {
        self.running.kill();
    }

    /// Ends it in order (SIGTERM) and returns what it said.
    ///
    /// # Errors
    /// [`LabError::TimedOut`].
    pub fn terminate(self) -> Result<Finished, LabError> {
        self.running.terminate(READY)
    }

    /// Waits for it to end by itself.
    ///
    /// # Errors
    /// [`LabError::TimedOut`].
    pub fn finish(self, limit: Duration) -> Result<Finished, LabError> {
        self.running.finish(limit, process::Interruption::Heed)
    }

    /// The operator's command, talking to this daemon.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.programs.lockgate);
        command.arg("--socket").arg(&self.socket).args(words);
        command
    }

    /// Runs the operator's command, however it ends.
    ///
    /// # Errors
    /// As [`process::run`].
    pub fn run(&self, words: &[&str]) -> Result<Finished, LabError> {
        process::run(self.command(words), ANSWER)
    }

    /// Asks for JSON: `["show", "port"]` becomes `lockgate --socket … show port --json`.
    ///
    /// # Errors
    /// As [`process::succeed`], and [`LabError::Answer`].
    pub fn ask(&self, words: &[&str]) -> Result<Value, LabError> {
        let mut command = self.command(words);
        command.arg("--json");
        let text = process::display(&command);
        let answer = process::succeed(command, ANSWER)?;
        serde_json::from_str(&answer).map_err(|_| LabError::Answer { command: text, answer })
    }

    /// Applies a configuration file.
    ///
    /// # Errors
    /// As [`process::succeed`].
    pub fn apply(&self, file: &Path) -> Result<String, LabError> {
        let mut command = self.command(&["apply", "-f"]);
        command.arg(file);
        process::succeed(command, ANSWER)
    }
}
