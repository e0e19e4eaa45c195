//! Programs that end in time: one call that waits, and a handle whose destructor ends them.
//!
//! Every program gets a process group of its own (Ctrl-C at the terminal reaches only us, and we
//! end them in order) and pipes that threads empty.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::{LabError, interrupt};

/// Time between two looks of a wait.
const LOOK: Duration = Duration::from_millis(5);
/// Time that a program has between SIGTERM and SIGKILL when it is dropped.
const GRACE: Duration = Duration::from_secs(3);
/// Bytes of a program's output that are kept; what comes later is read and thrown away.
const KEEP_BYTES: usize = 8 << 20;

/// A program that ended: its status and its output.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The command line.
    pub command: String,
    /// The program's exit status.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Finished {
    /// Its standard output, if it succeeded.
    ///
    /// # Errors
    /// [`LabError::Failed`].
    pub fn success(self) -> Result<String, LabError> {
        let Finished { command, status, stdout, stderr } = self;
        match status.success() {
            true => Ok(stdout),
            false => Err(LabError::Failed { command, status, stderr: stderr + &stdout }),
        }
    }
}

/// Reaction of a wait when somebody asks to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interruption {
    /// Gives up.
    Heed,
    /// Goes on: for tearing down.
    Ignore,
}

/// Runs a program to its end, however it ends.
///
/// # Errors
/// [`LabError::Start`], [`LabError::TimedOut`] (it is ended then), [`LabError::Interrupted`].
pub fn run(command: Command, limit: Duration) -> Result<Finished, LabError> {
    Running::start(command)?.finish(limit, Interruption::Heed)
}

/// Runs a program to its end and returns what it printed.
///
/// # Errors
/// As [`run`], and [`LabError::Failed`].
pub fn succeed(command: Command, limit: Duration) -> Result<String, LabError> {
    run(command, limit)?.success()
}

/// Runs a program with text for its standard input to its end and returns its standard output.
///
/// # Errors
/// As [`succeed`].
pub fn succeed_with_input(
    command: Command,
    input: &str,
    limit: Duration,
) -> Result<String, LabError> {
    let mut running = Running::start_with(command, Stdio::piped())?;
    if let Some(mut stdin) = running.child.stdin.take() {
        use std::io::Write;
        // A program that ends before it has read everything says so by its status.
        let _ = stdin.write_all(input.as_bytes());
    }
    running.finish(limit, Interruption::Heed)?.success()
}

/// A program that runs. Dropping it ends it: SIGTERM, and SIGKILL if it does not heed that.
#[derive(Debug)]
pub struct Running {
    command: String,
    child: Child,
    stdout: Pipe,
    stderr: Pipe,
    status: Option<ExitStatus>,
}

impl Running {
    /// Starts a program with an empty standard input.
    ///
    /// # Errors
    /// [`LabError::Start`].
    pub fn start(command: Command) -> Result<Running, LabError> {
        Running::start_with(command, Stdio::null())
    }

    fn start_with(mut command: Command, stdin: Stdio) -> Result<Running, LabError> {
        use std::os::unix::process::CommandExt;
        let text = display(&command);
        command.process_group(0).stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let spawned = command.spawn();
        let mut child =
            spawned.map_err(|error| LabError::Start { command: text.clone(), error })?;
        let stdout = Pipe::empty_by_thread(child.stdout.take());
        let stderr = Pipe::empty_by_thread(child.stderr.take());
        Ok(Running { command: text, child, stdout, stderr, status: None })
    }

    /// Returns the command line.
    pub fn command(&self) -> &str {
        &self.command
    }

    /// Returns the program's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the standard output so far.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// Returns the standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Returns the exit status; `None`: the program runs.
    pub fn status(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Waits for it to say or do something: until `done` is true.
    ///
    /// # Errors
    /// [`LabError::Ended`] if it ends before, [`LabError::TimedOut`], [`LabError::Interrupted`].
    pub fn wait_until(
        &mut self,
        what: &str,
        limit: Duration,
        mut done: impl FnMut(&Running) -> bool,
    ) -> Result<(), LabError> {
        let end = Instant::now() + limit;
        loop {
            let ended = self.status().is_some();
            if done(self) {
                return Ok(());
            }
            interrupt::check()?;
            if ended {
                self.join();
                return Err(LabError::Ended { command: self.command.clone(), output: self.said() });
            }
            if Instant::now() >= end {
                let what = format!("{}: waiting for {what}", self.command);
                return Err(LabError::TimedOut { what, limit, output: self.said() });
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits for its end and returns what it did.
    ///
    /// # Errors
    /// [`LabError::TimedOut`] and [`LabError::Interrupted`]; it is ended in both cases.
    pub fn finish(
        mut self,
        limit: Duration,
        interruption: Interruption,
    ) -> Result<Finished, LabError> {
        let end = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.status() {
                break status;
            }
            if interruption == Interruption::Heed {
                interrupt::check()?;
            }
            if Instant::now() >= end {
                self.kill();
                self.join();
                let what = self.command.clone();
                return Err(LabError::TimedOut { what, limit, output: self.said() });
            }
            std::thread::sleep(LOOK);
        };
        self.join();
        Ok(Finished {
            command: self.command.clone(),
            status,
            stdout: self.stdout(),
            stderr: self.stderr(),
        })
    }

    /// Asks it to end (SIGTERM) and waits for that.
    ///
    /// # Errors
    /// [`LabError::TimedOut`]; it is killed then.
    pub fn terminate(self, limit: Duration) -> Result<Finished, LabError> {
        self.signal(Signal::TERM);
        self.finish(limit, Interruption::Ignore)
    }

    /// Interrupts it (SIGINT) and waits for its end.
    ///
    /// # Errors
    /// [`LabError::TimedOut`]; it is killed then.
    pub fn interrupt(self, limit: Duration) -> Result<Finished, LabError> {
        self.signal(Signal::INT);
        self.finish(limit, Interruption::Ignore)
    }

    /// Ends it at once (SIGKILL, it and what it started) and waits until it is gone.
    pub fn kill(&mut self) {
        if self.status().is_none() {
            if let Some(group) = self.process() {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = self.child.kill();
            self.status = self.child.wait().ok();
        }
    }

    fn signal(&self, signal: Signal) {
        if let (Some(process), None) = (self.process(), self.status) {
            let _ = kill_process(process, signal);
        }
    }

    fn process(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    /// Both outputs, for messages.
    fn said(&self) -> String {
        self.stdout() + &self.stderr()
    }

    /// Waits until the pipes are empty; what the program has started may hold them open.
    fn join(&mut self) {
        let end = Instant::now() + Duration::from_secs(1);
        self.stdout.join(end);
        self.stderr.join(end);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.status().is_some() {
            return;
        }
        self.signal(Signal::TERM);
        let end = Instant::now() + GRACE;
        while self.status().is_none() && Instant::now() < end {
            std::thread::sleep(LOOK);
        }
        self.kill();
    }
}

/// A command as one would type it.
pub fn display(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// One output of a program.
#[derive(Debug)]
struct Pipe {
    bytes: Arc<Mutex<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

impl Pipe {
    fn empty_by_thread(from: Option<impl Read + Send + 'static>) -> Pipe {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&bytes);
        let thread = from.map(|mut from| {
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = from.read(&mut buffer) {
                    let mut kept = into.lock().unwrap_or_else(|poison| poison.into_inner());
                    let room = KEEP_BYTES.saturating_sub(kept.len()).min(count);
                    kept.extend_from_slice(&buffer[..room]);
                }
            })
        });
        Pipe { bytes, thread }
    }

    fn text(&self) -> String {
        let bytes = self.bytes.lock().unwrap_or_else(|poison| poison.into_inner());
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn join(&mut self, end: Instant) {
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            if Instant::now() >= end {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some(thread) = self.thread.take() {
            // It does nothing that can panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longest time for one step of a shell.
    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_a_program_prints_and_how_it_ends_is_returned() {
        let finished = run(shell("echo out; echo err >&2; exit 3"), LONG).unwrap();
        assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("out\n", "err\n"));
        assert_eq!(finished.status.code(), Some(3));
        assert!(matches!(finished.success(), Err(LabError::Failed { .. })));
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let start = Instant::now();
        let mut running = Running::start(shell("echo here; sleep 600")).unwrap();
        running.wait_until("its line", LONG, |running| running.stdout() == "here\n").unwrap();
        let limit = Duration::from_millis(300);
        let error = running.finish(limit, Interruption::Heed).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(300), "{:?}", start.elapsed());
        assert!(matches!(&error, LabError::TimedOut { output, .. } if output == "here\n"));
    }

    #[test]
    fn dropping_a_program_ends_it_also_if_it_ignores_sigterm() {
        let mut running =
            Running::start(shell("trap '' TERM; echo ready; while :; do sleep 0.1; done")).unwrap();
        running.wait_until("ready", LONG, |running| running.stdout() == "ready\n").unwrap();
        let pid = running.pid();
        drop(running);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_program_that_ends_while_it_is_waited_for_says_why() {
        let mut running = Running::start(shell("echo no such port >&2; exit 1")).unwrap();
        let error = running.wait_until("ready", LONG, |_| false).unwrap_err();
        assert!(error.to_string().contains("no such port"), "{error}");
    }

    #[test]
    fn standard_input_reaches_a_program_that_is_fed() {
        assert_eq!(succeed_with_input(shell("cat"), "line\n", LONG).unwrap(), "line\n");
    }
}
