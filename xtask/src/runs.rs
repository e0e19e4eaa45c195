//! Runs parts of the tests, passes their output through, and ends with a table.
//!
//! A part that cannot run is skipped loudly, never counted as passed. A part that fails does not
//! keep the later ones from running.

use crate::built::{self, Built, TestProgram};
use crate::{Failure, display, target_directory};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The package whose tests run the daemon in network namespaces.
pub(crate) const NET_PACKAGE: &str = "net";
/// Beginning of an ignored test's reason; a part's name follows.
pub(crate) const LONG_REASON: &str = "make test-long PART=";

/// Result of a part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Passed(Counts),
    Failed(Counts),
    Skipped(&'static str),
}

impl Outcome {
    /// The outcome of two halves: both must pass.
    pub(crate) fn and(self, other: Outcome) -> Outcome {
        use Outcome::{Failed, Passed, Skipped};
        match (self, other) {
            (Passed(mut counts), Passed(more)) => {
                counts.add(more);
                Passed(counts)
            }
            (Passed(mut counts) | Failed(mut counts), Passed(more) | Failed(more)) => {
                counts.add(more);
                Failed(counts)
            }
            (Skipped(_), other) => other,
            (own, Skipped(_)) => own,
        }
    }
}

/// Tests that a part ran, where it says so.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
    /// Tests that cargo ignored: `make test-long` runs them (`tidy` checks it).
    long: u64,
    /// Tests since the last closing line that said why they did nothing.
    excused: u64,
    /// Names of tests that failed, from the list with which cargo's runner ends.
    failures: Vec<String>,
    /// The last line was one of that list.
    listing: bool,
}

impl Counts {
    /// Adds what another run of a part counted.
    pub(crate) fn add(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.long += other.long;
        self.failures.extend(other.failures);
    }

    /// Adds a test that passed.
    pub(crate) fn add_passed(&mut self) {
        self.passed += 1;
    }

    /// Adds a test that failed.
    pub(crate) fn add_failed(&mut self) {
        self.failed += 1;
    }

    /// Adds one test that could not run.
    pub(crate) fn add_skipped(&mut self) {
        self.skipped += 1;
    }

    /// Returns how many tests failed.
    pub(crate) fn failed(&self) -> u64 {
        self.failed
    }

    /// Adds a runner's closing line, if `line` is one: cargo's `test result: ok. 3 passed; …` or
    /// a script's `3 passed, 0 failed, 1 skipped`. A Rust test cannot tell cargo that it was
    /// skipped: it prints `SKIPPED: name: reason`, and is not counted as passed.
    fn add_line(&mut self, line: &str) {
        match line.strip_prefix("    ") {
            Some(name) if self.listing => self.failures.push(name.to_owned()),
            _ => self.listing = line == "failures:",
        }
        if line.contains("SKIPPED: ") {
            self.excused += 1;
            return;
        }
        let mut words = line.split([' ', ';', ',']).filter(|word| !word.is_empty()).peekable();
        let mut found = Counts::default();
        let mut names = 0;
        while let Some(word) = words.next() {
            let (Ok(number), Some(name)) = (word.parse::<u64>(), words.peek()) else { continue };
            match *name {
                "passed" => found.passed = number,
                "failed" => found.failed = number,
                "ignored" => found.long = number,
                "skipped" => found.skipped = number,
                _ => continue,
            }
            names += 1;
        }
        if names == 3 {
            if line.trim_start().starts_with("test result: ") {
                let excused = self.excused.min(found.passed);
                found.passed -= excused;
                found.skipped += excused;
            }
            self.passed += found.passed;
            self.failed += found.failed;
            self.skipped += found.skipped;
            self.long += found.long;
            self.excused = 0;
        }
    }

    /// Set once a runner has said how many tests it ran.
    fn is_known(&self) -> bool {
        self.passed + self.failed + self.skipped > 0
    }
}

pub(crate) struct Part {
    name: &'static str,
    outcome: Outcome,
    seconds: f64,
}

impl Part {
    /// Adds what others did of it, until now. It began `began`.
    pub(crate) fn with(self, others: Outcome, began: Instant) -> Part {
        let seconds = began.elapsed().as_secs_f64();
        Part { outcome: self.outcome.and(others), seconds, ..self }
    }

    /// Returns whether something in it failed.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.outcome, Outcome::Failed(_))
    }
}

/// Builds everything, as a part of its own: lints make it fail and keep nothing from running.
pub(crate) fn build() -> Result<(Built, Part), Failure> {
    println!("\n=== build and clippy");
    let start = Instant::now();
    let built = built::build()?;
    let good = built.complete && built.lints == 0;
    let outcome = if good { Outcome::Passed } else { Outcome::Failed };
    let seconds = start.elapsed().as_secs_f64();
    println!("{} lints, {} test programs, {seconds:.0} s", built.lints, built.tests.len());
    let part = Part { name: "build and clippy", outcome: outcome(Counts::default()), seconds };
    Ok((built, part))
}

/// Prints the closing table of a task. Fails if a part did.
pub(crate) fn conclude(task: &str, parts: &[Part]) -> Result<(), Failure> {
    println!("\n{}", table(task, parts));
    let failed = parts.iter().filter(|part| matches!(part.outcome, Outcome::Failed(_))).count();
    if failed == 0 { Ok(()) } else { Err(Failure::Tests { failed }) }
}

/// Something that is set for a command before it runs.
pub(crate) type Prepare = fn(&mut Command) -> &mut Command;

/// Number of tests of a program that run at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Threads {
    /// One for each core.
    All,
    /// One: they share the machine's cores and say on stdout how they fare.
    One,
}

/// Test programs that are still to run: whoever is free takes the next.
pub(crate) struct Queue<'a>(Mutex<VecDeque<&'a TestProgram>>);

impl<'a> Queue<'a> {
    pub(crate) fn of(tests: impl Iterator<Item = &'a TestProgram>) -> Queue<'a> {
        Queue(Mutex::new(tests.collect()))
    }

    /// Makes a queue that begins with the programs of the files `longest`, in the order given.
    pub(crate) fn longest_first(
        tests: impl Iterator<Item = &'a TestProgram>,
        longest: &[&str],
    ) -> Queue<'a> {
        let mut tests: Vec<_> = tests.collect();
        tests.sort_by_key(|test| {
            let place = longest.iter().position(|file| *file == test.target);
            place.unwrap_or(longest.len())
        });
        Queue::of(tests.into_iter())
    }

    /// Takes the programs one by one, until there are none.
    pub(crate) fn taken(&self) -> impl Iterator<Item = &'a TestProgram> + '_ {
        std::iter::from_fn(|| self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front())
    }

    fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

/// Helps to run the programs of a queue, with what they say written to `said`. Nothing, if none is
/// left.
pub(crate) fn help(queue: &Queue<'_>, threads: Threads, said: &mut impl Write) -> Outcome {
    if queue.is_empty() {
        return Outcome::Passed(Counts::default());
    }
    let outcome = run_tests_into(queue.taken(), threads, |command| command, said);
    outcome.unwrap_or_else(|failure| {
        let _ = writeln!(said, "{failure}");
        Outcome::Failed(Counts::default())
    })
}

/// Runs test programs, all of them, whatever becomes of one.
pub(crate) fn run_tests<'a>(
    tests: impl Iterator<Item = &'a TestProgram>,
    threads: Threads,
    prepare: Prepare,
) -> Result<Outcome, Failure> {
    run_tests_into(tests, threads, prepare, &mut std::io::stdout())
}

/// Number of programs in the line with the slowest.
const SLOWEST: usize = 6;

/// Run time of a test program.
struct ProgramTime {
    name: String,
    seconds: f64,
}

/// Returns the slowest programs as a line.
fn slowest_line(mut times: Vec<ProgramTime>) -> String {
    times.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let slowest = times.iter().take(SLOWEST);
    let slowest: Vec<String> =
        slowest.map(|time| format!("{} {:.0} s", time.name, time.seconds)).collect();
    format!("{} programs; the slowest: {}", times.len(), slowest.join(", "))
}

/// Runs test programs as [`run_tests`] does, with what they say written to `out`.
fn run_tests_into<'a>(
    tests: impl Iterator<Item = &'a TestProgram>,
    threads: Threads,
    prepare: Prepare,
    out: &mut impl Write,
) -> Result<Outcome, Failure> {
    let mut sum = Counts::default();
    let (mut failed, mut times) = (Vec::new(), Vec::new());
    for test in tests {
        let start = Instant::now();
        // What nobody reads any more keeps no test from running.
        let _ = writeln!(out, "\n--- {}", test.name());
        let mut command = test.command();
        match threads {
            // What passing tests print says which of them could do nothing.
            Threads::All => command.arg("--show-output"),
            Threads::One => command.args(["--test-threads", "1", "--nocapture"]),
        };
        command.env("LOCKGATE", built_program("lockgate"));
        command.env("LOCKGATED", built_program("lockgated"));
        command.env("LOCKGATE_EMULATED_CARD", built_program("lockgate-emulated-card"));
        match watch_into(prepare(&mut command), out)? {
            Outcome::Passed(counts) => sum.add(counts),
            Outcome::Failed(counts) => {
                sum.add(counts);
                failed.push(test.name());
            }
            Outcome::Skipped(_) => {}
        }
        times.push(ProgramTime { name: test.name(), seconds: start.elapsed().as_secs_f64() });
    }
    if !times.is_empty() {
        let _ = writeln!(out, "\n{}", slowest_line(times));
    }
    if !sum.is_known() {
        let _ = writeln!(out, "\nno test ran: the programs or their names have changed");
        return Ok(Outcome::Failed(sum));
    }
    if failed.is_empty() {
        return Ok(Outcome::Passed(sum));
    }
    let _ = writeln!(out, "\nfailed: {}", failed.join(", "));
    Ok(Outcome::Failed(sum))
}

/// Runs the daemon in network namespaces, one test at a time. `files` are the test files; none:
/// all.
pub(crate) fn network_namespaces(
    built: &Built,
    files: &[&str],
    prepare: Prepare,
) -> Result<Outcome, Failure> {
    run_tests(built.of(NET_PACKAGE, files), Threads::One, prepare)
}

/// Returns the path of a program that cargo built.
pub(crate) fn built_program(name: &str) -> std::path::PathBuf {
    target_directory().join("debug").join(name)
}

/// Runs a part and takes its time. A part that could not be started has failed.
pub(crate) fn time(name: &'static str, part: impl FnOnce() -> Result<Outcome, Failure>) -> Part {
    time_into(name, &mut std::io::stdout(), |_| part())
}

/// Times a part as [`time`] does, with what it says written to `said`.
pub(crate) fn time_into<W: Write>(
    name: &'static str,
    said: &mut W,
    part: impl FnOnce(&mut W) -> Result<Outcome, Failure>,
) -> Part {
    // What nobody reads any more keeps no part from running.
    let _ = writeln!(said, "\n=== {name}");
    let start = Instant::now();
    let outcome = part(said).unwrap_or_else(|failure| {
        let _ = writeln!(said, "{failure}");
        Outcome::Failed(Counts::default())
    });
    if let Outcome::Skipped(reason) = outcome {
        let _ = writeln!(said, "SKIPPED: {name}: {reason}");
    }
    Part { name, outcome, seconds: start.elapsed().as_secs_f64() }
}

/// Runs a command, passes its output on line by line, and counts what it says it tested. It
/// passed if it succeeded and no test of it failed.
pub(crate) fn watch(command: &mut Command) -> Result<Outcome, Failure> {
    println!("$ {}", display(command));
    watch_into(command, &mut std::io::stdout())
}

/// Watches a command as [`watch`] does, with the output passed on to `out`.
pub(crate) fn watch_into(command: &mut Command, out: &mut impl Write) -> Result<Outcome, Failure> {
    let name = display(command);
    let failure = |error| Failure::Start { program: name.clone(), error };
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = spawned.map_err(failure)?;
    let mut counts = Counts::default();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line.map_err(failure)?;
            // Nobody reads our output any more: the tests still run to their end.
            let _ = out.write_all(&line).and_then(|()| out.write_all(b"\n"));
            counts.add_line(&String::from_utf8_lossy(&line));
        }
    }
    let succeeded = child.wait().map_err(failure)?.success() && counts.failed == 0;
    Ok(if succeeded { Outcome::Passed(counts) } else { Outcome::Failed(counts) })
}

/// The closing table, and below it one line that says it all.
fn table(task: &str, parts: &[Part]) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for part in parts {
        let (word, counts) = match &part.outcome {
            Outcome::Passed(counts) => ("passed", counts.clone()),
            Outcome::Failed(counts) => ("FAILED", counts.clone()),
            Outcome::Skipped(_) => ("SKIPPED", Counts::default()),
        };
        match part.outcome {
            Outcome::Passed(_) => passed += 1,
            Outcome::Failed(_) => failed += 1,
            Outcome::Skipped(_) => skipped += 1,
        }
        let detail = match part.outcome {
            Outcome::Skipped(reason) => reason.to_string(),
            _ if counts.is_known() => {
                let Counts { passed, failed, skipped, long, .. } = &counts;
                let long = match long {
                    0 => String::new(),
                    long => format!(" ({long} more in test-long)"),
                };
                let loud = if *skipped > 0 { "  <-- SKIPPED" } else { "" };
                format!("{passed} passed, {failed} failed, {skipped} skipped{long}{loud}")
            }
            _ => String::new(),
        };
        let line = format!("{:<25}{word:<9}{:>6.1} s  {detail}", part.name, part.seconds);
        let _ = writeln!(text, "{}", line.trim_end());
        for name in &counts.failures {
            let _ = writeln!(text, "    FAILED: {name}");
        }
    }
    let _ = write!(text, "{task}: {passed} parts passed, {failed} failed, {skipped} skipped");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_programs_are_named_with_their_times() {
        let time = |name: &str, seconds| ProgramTime { name: name.to_owned(), seconds };
        let line = slowest_line(vec![time("wire", 0.4), time("model", 51.6), time("net", 12.0)]);
        assert_eq!(line, "3 programs; the slowest: model 52 s, net 12 s, wire 0 s");
    }
    use crate::program;

    #[test]
    fn a_part_that_runs_no_test_fails() {
        let none = std::iter::empty::<&TestProgram>();
        let outcome = run_tests(none, Threads::All, |command| command);
        assert_eq!(outcome.unwrap(), Outcome::Failed(Counts::default()));
    }

    fn counted(lines: &[&str]) -> Counts {
        let mut counts = Counts::default();
        lines.iter().for_each(|line| counts.add_line(line));
        counts
    }

    #[test]
    fn closing_lines_of_cargo_and_of_scripts_are_added_up() {
        let cargo =
            "test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out";
        assert_eq!(
            counted(&[cargo, "4 passed, 0 failed, 1 skipped"]),
            Counts { passed: 7, failed: 1, skipped: 1, long: 2, ..Counts::default() }
        );
    }

    #[test]
    fn a_test_that_says_it_is_skipped_is_not_counted_as_passed() {
        let ok = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        let counts = counted(&["test leak ... SKIPPED: leak: needs root", "ok", ok, ok]);
        assert_eq!(counts, Counts { passed: 5, skipped: 1, ..Counts::default() });
        // A script counts for itself.
        let counts = counted(&["one: SKIPPED: no tshark", "4 passed, 0 failed, 1 skipped"]);
        assert_eq!(counts, Counts { passed: 4, skipped: 1, ..Counts::default() });
    }

    #[test]
    fn both_halves_of_a_part_must_pass() {
        let counts = |passed, failed| Counts { passed, failed, ..Counts::default() };
        let half = |passed| Outcome::Passed(counts(passed, 0));
        let bad = || Outcome::Failed(counts(1, 1));
        assert_eq!(half(2).and(half(3)), half(5));
        assert_eq!(half(2).and(bad()), Outcome::Failed(counts(3, 1)));
        assert_eq!(bad().and(half(2)), Outcome::Failed(counts(3, 1)));
        assert_eq!(half(2).and(half(0)), half(2), "nothing was left to help with");
        assert_eq!(half(2).and(Outcome::Skipped("why")), half(2));
    }

    #[test]
    fn who_finds_nothing_left_to_help_with_has_not_failed() {
        let queue = Queue::of(std::iter::empty());
        assert!(queue.is_empty() && queue.taken().next().is_none());
        let outcome = help(&queue, Threads::One, &mut Vec::new());
        assert_eq!(outcome, Outcome::Passed(Counts::default()));
    }

    #[test]
    fn tests_that_failed_are_named_below_their_part() {
        let said = ["failures:", "", "---- a::b stdout ----", "    of c", "", "failures:"];
        let counts = counted(&[&said[..], &["    a::b", "    c", "", "    d"]].concat());
        assert_eq!(counts.failures, ["a::b", "c"]);
        let part = Part { name: "one", outcome: Outcome::Failed(counts), seconds: 1.0 };
        assert!(table("test", &[part]).contains("\n    FAILED: a::b\n    FAILED: c\n"));
    }

    #[test]
    fn other_lines_are_not_counted() {
        let lines = ["running 3 tests", "test a ... ok", "5 passed", "7 failed, who knows", ""];
        assert_eq!(counted(&lines), Counts::default());
    }

    #[test]
    fn a_command_that_fails_or_reports_a_failure_has_failed() {
        let mut passed_on = Vec::new();
        let mut shell =
            |script: &str| watch_into(program("sh").args(["-c", script]), &mut passed_on).unwrap();
        assert!(matches!(shell("exit 1"), Outcome::Failed(_)));
        assert!(matches!(shell("echo 1 passed, 1 failed, 0 skipped"), Outcome::Failed(_)));
        let counts = Counts { passed: 2, skipped: 1, ..Counts::default() };
        assert_eq!(shell("echo 2 passed, 0 failed, 1 skipped"), Outcome::Passed(counts));
        assert_eq!(passed_on, b"1 passed, 1 failed, 0 skipped\n2 passed, 0 failed, 1 skipped\n");
        let mut nobody = program("lockgate-no-such-program");
        assert!(watch_into(&mut nobody, &mut passed_on).is_err());
    }

    #[test]
    fn the_table_shows_failures_and_skips_loudly() {
        let part = |name, outcome| Part { name, outcome, seconds: 1.25 };
        let skips = Counts { passed: 2, skipped: 1, ..Counts::default() };
        let text = table(
            "test",
            &[
                part("one", Outcome::Passed(skips)),
                part("two", Outcome::Failed(Counts::default())),
                part("three", Outcome::Skipped("no reason")),
            ],
        );
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("2 passed, 0 failed, 1 skipped  <-- SKIPPED"));
        assert!(lines[1].contains("FAILED"));
        assert!(lines[2].contains("SKIPPED") && lines[2].ends_with("no reason"));
        assert_eq!(lines[3], "test: 1 parts passed, 1 failed, 1 skipped");
    }
}
