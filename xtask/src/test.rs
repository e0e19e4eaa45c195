//! Runs every part of the tests in order, and ends with a table.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::built;
use crate::runs::{
    Counts, NET_PACKAGE, Outcome, Part, Queue, Threads, build, built_program, conclude, run_tests,
    time, time_into, watch, watch_into,
};
use crate::{Failure, cargo, charon, instructions, program, root, runs, setup, tidy};

/// The package whose tests replay the fuzzing corpora.
const FUZZ_PACKAGE: &str = "fuzz-replay";

/// The tests against other implementations; its last line is `N passed, N failed, N skipped`.
const INTEROP: &str = "tests/interop/run.py";

/// The longest network test programs. They start first: a long program at the end would run alone.
const LONGEST_NET_PROGRAMS: [&str; 8] =
    ["cards", "ike", "sealed_card", "leaks", "ports", "demo", "kernel_tier", "revisions"];

/// Time after which no part begins that `test-long` has too: half an hour has to be enough.
const SLOW: Duration = Duration::from_secs(17 * 60);

/// Runs all parts. Fails if one of them did.
pub(crate) fn run() -> Result<(), Failure> {
    let began = Instant::now();
    let (built, building) = build()?;
    if !built.complete {
        // Programs of an earlier build would be tested.
        return conclude("test", &[building]);
    }
    let elsewhere = [NET_PACKAGE, FUZZ_PACKAGE];
    let units = || built.tests.iter().filter(|test| !elsewhere.contains(&&*test.package));
    let parts = [
        building,
        time("unit and property tests", || run_tests(units(), Threads::All, |command| command)),
        time("tests in documentation", || {
            let mut command = cargo();
            command.args(["test", "--workspace", "--no-fail-fast", "--doc"]);
            watch(built::with_clippy(&mut command))
        }),
        time("tidy", || match tidy::run() {
            Ok(()) => Ok(Outcome::Passed(Counts::default())),
            Err(Failure::Untidy { .. }) => Ok(Outcome::Failed(Counts::default())),
            Err(failure) => Err(failure),
        }),
        time("fuzz corpora", || {
            run_tests(built.of(FUZZ_PACKAGE, &[]), Threads::All, |command| command)
        }),
    ];
    // Tests in namespaces mostly wait. So two lanes of programs run at once, and parts that compute
    // run in a third lane, which takes programs of the queue afterwards. The output of the second
    // and the third lane is shown at the end.
    let queue = Queue::longest_first(built.of(NET_PACKAGE, &[]), &LONGEST_NET_PROGRAMS);
    let start = Instant::now();
    let (namespaces, second, beside) = std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            let mut said = Vec::new();
            let _ = writeln!(said, "\n=== network namespaces, the second lane");
            let helped = runs::help(&queue, Threads::One, &mut said);
            (said, helped)
        });
        let beside = scope.spawn(|| {
            let mut said = Vec::new();
            let interop = time_into("interop", &mut said, |said| interop(&[], said));
            let plugin = time_into("charon's plugin", &mut said, charon::check);
            let package = time_into("package", &mut said, package);
            let instructions = time_into("instructions", &mut said, |_| match began.elapsed() {
                slow if slow > SLOW => Ok(Outcome::Skipped(
                    "this machine is slow, 17 minutes are over: make test-long PART=instructions",
                )),
                _ => instructions::check(instructions::Rows::Short),
            });
            let _ = writeln!(said, "\n=== network namespaces, the third lane");
            let helped = runs::help(&queue, Threads::One, &mut said);
            (said, helped, [interop, plugin, package, instructions])
        });
        let namespaces = time("network namespaces", || {
            run_tests(queue.taken(), Threads::One, |command| command)
        });
        let second = second.join().expect("a lane of programs does not panic");
        (namespaces, second, beside.join().expect("a part does not panic"))
    });
    let (said_by_second, helped_by_second) = second;
    let (said, helped, beside) = beside;
    let namespaces = namespaces.with(helped_by_second, start).with(helped, start);
    // Nobody reads our output any more: the table's parts say what failed all the same.
    let _ = std::io::stdout().write_all(&[said_by_second, said].concat());
    let parts: Vec<Part> = parts.into_iter().chain([namespaces]).chain(beside).collect();
    conclude("test", &parts)
}

/// Runs only the tests against other implementations: rows whose names hold all `words`. Fails if
/// one of them did.
pub(crate) fn run_interop(words: &[String]) -> Result<(), Failure> {
    let (_, building) = build()?;
    if building.has_failed() {
        return Err(Failure::Tests { failed: 1 });
    }
    match interop(words, &mut std::io::stdout())? {
        Outcome::Passed(_) => Ok(()),
        Outcome::Failed(_) => Err(Failure::Tests { failed: 1 }),
        Outcome::Skipped(reason) => {
            println!("SKIPPED: interop: {reason}");
            Ok(())
        }
    }
}

fn interop(words: &[String], said: &mut impl Write) -> Result<Outcome, Failure> {
    if !root().join(INTEROP).exists() {
        return Ok(Outcome::Skipped("there is no tests/interop/run.py"));
    }
    if !root().join(setup::PYTHON).exists() {
        return Ok(Outcome::Skipped("there is no target/venv: run `make setup`"));
    }
    let mut command = program(root().join(setup::PYTHON));
    command.arg(INTEROP).args(words);
    command.env("LOCKGATE", built_program("lockgate"));
    command.env("LOCKGATED", built_program("lockgated"));
    watch_into(&mut command, said)
}

/// Packs the debug programs as a Debian package and checks it.
fn package(said: &mut impl Write) -> Result<Outcome, Failure> {
    if !setup::is_there("dpkg-deb") {
        return Ok(Outcome::Skipped("there is no dpkg-deb"));
    }
    let mut command = program(built_program("xtask"));
    command.args(["deb", "--check"]);
    watch_into(&mut command, said)
}
