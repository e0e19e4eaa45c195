//! One `lockgated` in a namespace, as its operator sees it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::process::{self, Finished, Running};
use crate::{GatewayFile, LabError, Namespace, Programs, interrupt};

/// Time that a daemon has to be ready, and to end: both wait for `nft`, as [`ANSWER`] says.
const READY: Duration = Duration::from_secs(60);
/// The event that says so.
const STARTED: &str = " started: ";
/// Time for an answer of the API: that to `apply` waits for `nft`, which the kernel holds for
/// seconds (`flush_work` as its socket closes) while others keep a core busy.
const ANSWER: Duration = Duration::from_secs(60);
/// The refusal of a change whose `nft` the kernel held longer than the daemon waits.
const HELD: &str = "nft did not ";
/// Tries of a change that is refused for that reason.
const TRIES: usize = 3;

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
        Daemon::launch_with(programs, gateway, &file.path(), file.socket())
    }

    /// Starts a daemon with a file that names another topology's ports and does not wait for it;
    /// its API is at `socket`.
    ///
    /// # Errors
    /// As [`Daemon::launch`].
    pub fn launch_with(
        programs: &Programs,
        gateway: &Namespace,
        configuration: &Path,
        socket: PathBuf,
    ) -> Result<Daemon, LabError> {
        let mut command = gateway.command(&programs.lockgated);
        // As the unit has it.
        command.arg("--config").arg(configuration).env("MALLOC_ARENA_MAX", "1");
        let started = Instant::now();
        let running = Running::start(command)?;
        Ok(Daemon { running, programs: programs.clone(), socket, started })
    }

    /// Writes the file, starts a daemon and waits until it is ready. A start that ended because the
    /// kernel held `nft` is tried again, as [`Daemon::run`] does with a change.
    ///
    /// # Errors
    /// As [`Daemon::launch`] and [`Daemon::wait_ready`].
    pub fn start(
        programs: &Programs,
        gateway: &Namespace,
        file: &GatewayFile,
    ) -> Result<Daemon, LabError> {
        file.write()?;
        let mut tries = 1;
        loop {
            let mut daemon = Daemon::launch(programs, gateway, file)?;
            match daemon.wait_ready() {
                Ok(()) => return Ok(daemon),
                Err(LabError::Ended { output, .. }) if output.contains(HELD) && tries < TRIES => {
                    tries += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until it says that it has started: its ports are taken and the API answers. (The
    /// socket is there before.)
    ///
    /// # Errors
    /// [`LabError::Ended`] with what it said, [`LabError::TimedOut`], [`LabError::Interrupted`].
    pub fn wait_ready(&mut self) -> Result<(), LabError> {
        self.wait_for(STARTED, READY).map_err(|error| match error {
            LabError::TimedOut { what, limit, output } => {
                let threads = threads(self.pid());
                LabError::TimedOut { what, limit, output: output + &threads }
            }
            error => error,
        })
    }

    /// Returns the moment at which the daemon was started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Returns the daemon's process id.
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// The API's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the daemon's log so far.
    pub fn log(&self) -> String {
        self.running.stderr()
    }

    /// Waits until the daemon logs `text`, an event's name for example.
    ///
    /// # Errors
    /// [`LabError::TimedOut`] and [`LabError::Ended`] with what it said instead.
    pub fn wait_for(&mut self, text: &str, limit: Duration) -> Result<(), LabError> {
        self.running.wait_until(text, limit, |running| running.stderr().contains(text))
    }

    /// Returns whether the daemon runs.
    pub fn is_running(&mut self) -> bool {
        self.running.status().is_none()
    }

    /// Ends the daemon at once, as a crash would (SIGKILL).
    pub fn kill(&mut self) {
        self.running.kill();
    }

    /// Stops it where it is (SIGSTOP): it runs, and does nothing.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends SIGHUP.
    pub fn hang_up(&self) {
        self.signal(Signal::HUP);
    }

    fn signal(&self, signal: Signal) {
        if let Some(process) = Pid::from_raw(self.pid() as i32) {
            // It may have ended meanwhile.
            let _ = kill_process(process, signal);
        }
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

    /// Runs the operator's command, however it ends. A change that was refused because the kernel
    /// held `nft` is tried again, as an operator would: the machine is at fault.
    ///
    /// # Errors
    /// As [`process::run`].
    pub fn run(&self, words: &[&str]) -> Result<Finished, LabError> {
        unless_held(|| process::run(self.command(words), ANSWER))
    }

    /// Asks for JSON: `["show", "port"]` becomes `lockgate --socket … show port --json`.
    ///
    /// # Errors
    /// As [`process::succeed`], and [`LabError::Answer`].
    pub fn ask(&self, words: &[&str]) -> Result<Value, LabError> {
        let finished = self.run(&[words, &["--json"]].concat())?;
        let command = finished.command.clone();
        let answer = finished.success()?;
        serde_json::from_str(&answer).map_err(|_| LabError::Answer { command, answer })
    }

    /// Applies a configuration file.
    ///
    /// # Errors
    /// As [`process::succeed`].
    pub fn apply(&self, file: &Path) -> Result<String, LabError> {
        self.run(&["apply", "-f", &file.display().to_string()])?.success()
    }
}

/// Runs a command again, [`TRIES`] times at most, as long as it is refused because `nft` was held.
fn unless_held(mut run: impl FnMut() -> Result<Finished, LabError>) -> Result<Finished, LabError> {
    let mut finished = run()?;
    for _ in 1..TRIES {
        if finished.status.success() || !finished.stderr.contains(HELD) {
            break;
        }
        finished = run()?;
    }
    Ok(finished)
}

/// Returns the state of a process's threads in the kernel, one line each: for messages.
fn threads(pid: u32) -> String {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return String::new() };
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let line = |task: PathBuf| {
        let [name, stack, call] =
            ["comm", "stack", "syscall"].map(|file| read(task.join(file)).trim().to_owned());
        let stack: Vec<&str> = stack.lines().filter_map(|line| line.split(' ').nth(1)).collect();
        // Whether it had a core at all: nanoseconds on one, and waiting for one.
        let times = read(task.join("schedstat"));
        let mut seconds = times.split(' ').map(|time| time.parse().unwrap_or(0.0) / 1e9);
        let (ran, waited) = (seconds.next().unwrap_or(0.0), seconds.next().unwrap_or(0.0));
        format!(
            "thread {name}: ran {ran:.1} s, waited for a core {waited:.1} s, \
             system call {call}: {}\n",
            stack.join(" < ")
        )
    };
    tasks.flatten().map(|task| line(task.path())).collect()
}

/// A daemon's counters, as `show counters --json` lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets decided by each tier: device, kernel, cache, classifier.
    pub tiers: BTreeMap<String, u64>,
    /// Drops by reason.
    pub drops: BTreeMap<String, u64>,
    /// Sum of the amounts of all imbalances: 0 whenever nothing is on its way.
    pub ledger_imbalance: u64,
    /// Worker threads.
    pub workers: usize,
}

impl Counters {
    fn read(answer: &Value) -> Option<Counters> {
        let numbers = |value: &Value| -> Option<BTreeMap<String, u64>> {
            let fields = value.as_object()?.iter();
            fields.map(|(name, number)| Some((name.clone(), number.as_u64()?))).collect()
        };
        let drops = answer.get("drops")?.as_array()?.iter().map(|drop| {
            Some((drop.get("name")?.as_str()?.to_owned(), drop.get("count")?.as_u64()?))
        });
        Some(Counters {
            tiers: numbers(answer.get("tiers")?)?,
            drops: drops.collect::<Option<_>>()?,
            ledger_imbalance: answer.get("ledger_imbalance")?.as_u64()?,
            workers: answer.get("workers")?.as_array()?.len(),
        })
    }

    /// Adds what another daemon, or this one in an earlier life, has counted; not its workers.
    pub fn add(&mut self, other: &Counters) {
        for (into, from) in [(&mut self.tiers, &other.tiers), (&mut self.drops, &other.drops)] {
            for (name, number) in from {
                *into.entry(name.clone()).or_default() += number;
            }
        }
        self.ledger_imbalance += other.ledger_imbalance;
    }

    /// Drops for one reason.
    pub fn dropped(&self, reason: &str) -> u64 {
        self.drops.get(reason).copied().unwrap_or(0)
    }
}

/// Snapshots that all workers together went over to, and the time that this took: they process no
/// packet meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changeovers {
    /// Their number.
    pub count: u64,
    /// The sum, in nanoseconds.
    pub ns: u64,
    /// The longest since the workers began, in nanoseconds.
    pub longest_ns: u64,
}

impl Changeovers {
    fn read(answer: &Value) -> Option<Changeovers> {
        let mut sum = Changeovers::default();
        for worker in answer.get("workers")?.as_array()? {
            let of = |key: &str| worker.get(key)?.as_u64();
            sum.count += of("snapshots")?;
            sum.ns += of("snapshot_ns")?;
            sum.longest_ns = sum.longest_ns.max(of("snapshot_longest_ns")?);
        }
        Some(sum)
    }

    /// Those that came after others.
    #[must_use]
    pub fn since(self, before: Changeovers) -> Changeovers {
        Changeovers { count: self.count - before.count, ns: self.ns - before.ns, ..self }
    }

    /// Time of one, in microseconds.
    pub fn each_us(self) -> f64 {
        self.ns as f64 / 1e3 / self.count.max(1) as f64
    }
}

impl Daemon {
    /// Returns how many snapshots its workers went over to so far.
    ///
    /// # Errors
    /// As [`Daemon::ask`].
    pub fn changeovers(&self) -> Result<Changeovers, LabError> {
        let answer = self.ask(&["show", "counters"])?;
        Changeovers::read(&answer).ok_or_else(|| LabError::Answer {
            command: "lockgate show counters --json".to_owned(),
            answer: answer.to_string(),
        })
    }

    /// Returns the daemon's counters.
    ///
    /// # Errors
    /// As [`Daemon::ask`].
    pub fn counters(&self) -> Result<Counters, LabError> {
        let answer = self.ask(&["show", "counters"])?;
        Counters::read(&answer).ok_or_else(|| LabError::Answer {
            command: "lockgate show counters --json".to_owned(),
            answer: answer.to_string(),
        })
    }

    /// Returns the daemon's counters once no packet is on its way any more: the first balanced
    /// answer, or the last one before `limit` has passed.
    ///
    /// # Errors
    /// As [`Daemon::counters`].
    pub fn settled(&self, limit: Duration) -> Result<Counters, LabError> {
        let end = Instant::now() + limit;
        loop {
            let counters = self.counters()?;
            if counters.ledger_imbalance == 0 || Instant::now() >= end {
                return Ok(counters);
            }
            interrupt::sleep(Duration::from_millis(100))?;
        }
    }

    /// Its ports, as `show port --json` lists them.
    ///
    /// # Errors
    /// As [`Daemon::ask`].
    pub fn ports(&self) -> Result<Vec<Value>, LabError> {
        let answer = self.ask(&["show", "port"])?;
        let list = answer.get("ports").unwrap_or(&answer).as_array().cloned();
        list.ok_or_else(|| LabError::Answer {
            command: "lockgate show port --json".to_owned(),
            answer: answer.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_tried_again_only_when_nft_was_held() {
        let tries = |says: &str, succeeds_at: usize| {
            let mut count = 0;
            let last = unless_held(|| {
                count += 1;
                let code = u8::from(count != succeeds_at);
                let mut command = Command::new("sh");
                command.args(["-c", &format!("echo '{says}' >&2; exit {code}")]);
                process::run(command, ANSWER)
            });
            (count, last.unwrap().status.success())
        };
        let held = "lockgate: nft did not install the guard within 30 s: it was killed";
        assert_eq!(tries(held, 1), (1, true));
        assert_eq!(tries(held, 2), (2, true));
        assert_eq!(tries(held, usize::MAX), (TRIES, false));
        assert_eq!(tries("lockgate: no policy \"a\"", usize::MAX), (1, false));
    }

    #[test]
    fn threads_are_listed_with_their_names() {
        let name = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert!(threads(std::process::id()).contains(name.trim()));
        assert_eq!(threads(u32::MAX), "");
    }

    #[test]
    fn counters_are_read_and_added_up() {
        let text = r#"{"tiers": {"kernel": 3, "classifier": 4}, "ledger_imbalance": 1,
            "drops": [{"name": "replayed", "count": 5, "help": "…"}], "workers": [{}]}"#;
        let one = Counters::read(&serde_json::from_str(text).unwrap()).unwrap();
        let mut sum = one.clone();
        sum.add(&one);
        assert_eq!((sum.tiers["kernel"], sum.dropped("replayed")), (6, 10));
        assert_eq!((sum.ledger_imbalance, sum.dropped("no_sa"), sum.workers), (2, 0, 1));
        assert!(Counters::read(&Value::Null).is_none());
    }
}
