//! The hunts: tests that look longer for what `cargo xtask test` looks for briefly.
//!
//! Each part has a name, takes at most ten minutes on two cores, and can run alone. All of them run
//! before an issue is closed. [`VARIABLE`] tells tests that they may take their time.

use std::path::Path;
use std::process::Command;

use crate::built::Built;
use crate::clean;
use crate::release::Release;
use crate::runs::{self, LONG_REASON, Outcome, Prepare, Threads};
use crate::{Failure, cargo};

/// Environment variable that is set for the tests of a long part.
const VARIABLE: &str = "LOCKGATE_LONG";
/// A part of the long tests.
struct Part {
    name: &'static str,
    what: &'static str,
    run: fn(&Built) -> Result<Outcome, Failure>,
}

const PARTS: &[Part] = &[
    Part {
        name: "crash",
        what: "50 SIGKILLs under load, 1000 changes of keys, 10,000 SAs: no sequence number twice",
        run: |built| runs::network_namespaces(built, &["crash", "rekey"], long),
    },
    Part {
        name: "leaks",
        what: "every disturbance of a gateway three times: nothing in cleartext",
        run: |built| repeated(3, || runs::network_namespaces(built, &["leaks", "ports"], long)),
    },
    Part {
        name: "siege",
        what: "attacks at 3,000 packets a second beside honest traffic: nothing stops for others",
        run: |built| {
            runs::network_namespaces(built, &["siege"], |command| long(command.arg("--ignored")))
        },
    },
    Part {
        name: "walk",
        what: "the walk against its oracle in many random worlds",
        run: |built| run_long(built, &["model"], |command| command.env("PROPTEST_CASES", "2000")),
    },
    Part {
        name: "properties",
        what: "parsers, policies, ESP and configuration: many random cases each",
        run: |built| {
            let packages = ["wire", "policy", "ipsec", "packets", "config", "control"];
            run_long(built, &packages, |command| long(command.env("PROPTEST_CASES", "2000")))
        },
    },
    Part {
        name: "connections",
        what: "connections, imports and the XDP program: many random cases each",
        run: |built| {
            let packages = ["dataplane", "import", "bpf"];
            let properties =
                run_long(built, &packages, |command| long(command.env("PROPTEST_CASES", "2000")))?;
            // Other random tests of the daemon build a gateway for each case.
            let kept: Prepare =
                |command| long(command.arg("kept_connections").env("PROPTEST_CASES", "2000"));
            Ok(properties.and(run_long(built, &["lockgated"], kept)?))
        },
    },
    Part {
        name: "keystate",
        what: "sequence numbers and replay windows over many histories of crashes",
        run: |built| run_long(built, &["keystate"], |command| command.env("PROPTEST_CASES", "256")),
    },
    Part {
        name: "store",
        what: "50 SIGKILLs of a process that commits, power cuts in many histories: nothing lost",
        run: |built| {
            run_long(built, &["store"], |command| {
                long(command.arg("--include-ignored").env("PROPTEST_CASES", "128"))
            })
        },
    },
    Part {
        name: "classifier",
        what: "the classifier against the linear search, 20 million lookups",
        run: |built| {
            run_long(built, &["policy"], |command| {
                command.args(["--ignored", "many_more"]).env("CASES", "20000000")
            })
        },
    },
    Part {
        name: "endpoints",
        what: "4 million endpoints, all found; books over many histories; a million over a SIGKILL",
        run: |built| {
            let tables = run_long(built, &["endpoints"], |command| {
                command.args(["--include-ignored", "--skip", "speed"]).env("PROPTEST_CASES", "2000")
            })?;
            let million: Prepare = |command| long(command.args(["--ignored", "million"]));
            Ok(tables.and(runs::network_namespaces(built, &["overlay"], million)?))
        },
    },
    Part {
        name: "cards",
        what: "the demonstration of an emulated network card; 200 lives of SAs in one",
        run: |built| {
            let offload: Prepare = |command| long(command.args(["--ignored", "offload"]));
            let demo = runs::network_namespaces(built, &["demo"], offload)?;
            let lives: Prepare = |command| long(command.args(["however_sas_end"]));
            Ok(demo.and(runs::network_namespaces(built, &["sealed_card"], lives)?))
        },
    },
    Part {
        name: "charon",
        what: "all of `demo ike`; charon's plugin under sanitizers, and against scripted daemons",
        run: |built| {
            let ike: Prepare = |command| long(command.args(["--ignored", "demonstration_of_ike"]));
            let demo = runs::network_namespaces(built, &["demo"], ike)?;
            let Outcome::Passed(mut counts) = demo else { return Ok(demo) };
            match crate::charon::check_long()? {
                Outcome::Passed(more) => {
                    counts.add(more);
                    Ok(Outcome::Passed(counts))
                }
                other => Ok(other),
            }
        },
    },
    Part {
        name: "sas",
        what: "SAs of two charons: 300 random events, 1000 changes of keys at full speed",
        run: |built| {
            let hunts: Prepare = |command| long(command.args(["--ignored", "--skip", "debian_13"]));
            runs::network_namespaces(built, &["ike"], hunts)
        },
    },
    Part {
        name: "charon6",
        what: "charon 6 in a clean root of Debian 13, with the package of the plugin",
        run: crate::charon6::run,
    },
    Part {
        name: "xfrm",
        what: "packets that Linux carries, in a guest whose kernel has ESP",
        run: |built| crate::guest::run(built.of("net", &["carried"])),
    },
    Part {
        name: "frames",
        what: "10 million packets over AF_XDP: no frame of the area is lost at any step",
        run: |built| run_long(built, &["io"], |command| command.args(["--ignored", "ten_million"])),
    },
    Part {
        name: "instructions",
        what: "instructions a packet against the committed table, a turn among very many objects",
        run: |_| crate::instructions::check(crate::instructions::Rows::All),
    },
    Part {
        name: "disassembly",
        what: "the flow cache's lookup in machine code: no bytes turned around, nothing locked",
        run: |_| crate::disassembly::check(),
    },
    Part {
        name: "documentation",
        what: "the documentation of our packages, without a link to nothing",
        run: |_| documentation(),
    },
    Part {
        name: "package",
        what: "the package, built in two folders, byte for byte",
        run: |_| crate::deb::same_from_elsewhere(),
    },
    Part {
        name: "debian-12",
        what: "the packages, built, installed, started and removed in clean roots of Debian 12",
        run: |_| clean::packages(Release::Bookworm),
    },
    Part {
        name: "debian-13",
        what: "the same in clean roots of Debian 13",
        run: |_| clean::packages(Release::Trixie),
    },
    Part {
        name: "image",
        what: "the image, built as the Dockerfile says, started and removed",
        run: |_| crate::image::check(),
    },
    Part {
        name: "mutations",
        what: "changes of one line: for each row that is held a test notices one",
        run: |_| crate::mutations::draw(),
    },
];

/// Runs the named parts, or all of them. Fails if one of them did.
pub(crate) fn run(names: &[String]) -> Result<(), Failure> {
    let known = |name: &String| PARTS.iter().any(|part| part.name == name);
    if let Some(name) = names.iter().find(|name| !known(name)) {
        return Err(Failure::NoPart { name: name.clone() });
    }
    let (built, building) = runs::build()?;
    let mut finished = vec![building];
    if !built.complete {
        return runs::conclude("test-long", &finished);
    }
    let wanted = |part: &&Part| names.is_empty() || names.iter().any(|name| name == part.name);
    for part in PARTS.iter().filter(wanted) {
        println!("\ntest-long: {}: {}", part.name, part.what);
        finished.push(runs::time(part.name, || (part.run)(&built)));
    }
    runs::conclude("test-long", &finished)
}

/// Runs all tests of packages, with time.
fn run_long(built: &Built, packages: &[&str], prepare: Prepare) -> Result<Outcome, Failure> {
    let tests = built.tests.iter().filter(|test| packages.contains(&&*test.package));
    runs::run_tests(tests, Threads::All, prepare)
}

/// Builds the documentation of our packages. A warning, such as a link to nothing, is a failure.
fn documentation() -> Result<Outcome, Failure> {
    let mut command = cargo();
    command.args(["doc", "--workspace", "--no-deps", "--quiet"]);
    runs::watch(command.env("RUSTDOCFLAGS", "-D warnings"))
}

/// The names of all parts, for people.
pub(crate) fn names() -> String {
    PARTS.iter().map(|part| part.name).collect::<Vec<_>>().join(", ")
}

/// Returns why an ignored test is never run: its reason names no part. `None`: a part runs it.
pub(crate) fn ignored_for_ever(line: &str) -> Option<&'static str> {
    let attribute = line.trim_start().strip_prefix("#[ignore")?;
    let reason = attribute.split('"').nth(1).unwrap_or_default();
    let by_hand = reason.starts_with("a measurement");
    let part = reason.strip_prefix(LONG_REASON).and_then(|rest| rest.split([':', ' ']).next());
    match part {
        Some(name) if PARTS.iter().any(|part| part.name == name) => None,
        Some(_) => Some("an ignored test names a part that `test-long` does not have"),
        None if by_hand => None,
        None => Some("an ignored test that nothing runs: `make test-long PART=NAME` is its reason"),
    }
}

/// Marks a command as part of the long tests.
fn long(command: &mut Command) -> &mut Command {
    command.env(VARIABLE, "1")
}

/// Runs something several times. Stops at the first that does not pass.
fn repeated(times: u32, run: impl Fn() -> Result<Outcome, Failure>) -> Result<Outcome, Failure> {
    let mut sum = runs::Counts::default();
    for _ in 0..times {
        match run()? {
            Outcome::Passed(counts) => sum.add(counts),
            other => return Ok(other),
        }
    }
    Ok(Outcome::Passed(sum))
}

/// Looks through a source file for ignored tests that nothing runs.
pub(crate) fn check_ignored(file: &Path, text: &str) -> Vec<String> {
    let findings = text.lines().enumerate().filter_map(|(number, line)| {
        let why = ignored_for_ever(line)?;
        Some(format!("{}:{}: {why}", file.display(), number + 1))
    });
    findings.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_test_names_the_part_that_runs_it() {
        let marked = |reason: &str| format!("    #[ignore = \"{reason}\"]");
        assert_eq!(ignored_for_ever(&marked("make test-long PART=crash: 50 kills")), None);
        assert_eq!(ignored_for_ever(&marked("make test-long PART=classifier")), None);
        assert_eq!(ignored_for_ever("fn ignored() {}"), None);
        assert!(ignored_for_ever(&marked("make test-long PART=nothing")).is_some());
        assert!(ignored_for_ever(&marked("slow")).is_some());
        assert!(ignored_for_ever("#[ignore]").is_some());
    }

    #[test]
    fn parts_have_names_of_their_own_and_an_unknown_one_is_refused_with_all_of_them() {
        let mut names: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PARTS.len());
        let refused = run(&["crahs".to_owned()]).unwrap_err().to_string();
        assert!(refused.contains("`crahs`") && refused.contains("crash, leaks"), "{refused}");
    }
}
