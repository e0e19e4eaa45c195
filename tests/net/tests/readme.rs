//! Every command of the README runs here, in order, as a reader would type it.
//!
//! Each block of the README says what it needs: `sh make` (a clone, and time), `sh` (no
//! privileges), `sh root` (a gateway), or `text` (no commands). What cannot run in a laboratory as
//! it stands is in [`SUBSTITUTES`], with the reason; any other line runs, and has to succeed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use net::AGAIN;
use netlab::process::{self, Running};
use netlab::sites::Plan;
use netlab::{LabError, Machine, Namespace, Programs};

/// Time for a command, and for a daemon to be ready.
const PATIENCE: Duration = Duration::from_secs(120);
/// The user without privileges.
const NOBODY: u32 = 65534;
/// The configuration that the unit's daemon reads.
const INSTALLED: &str = "/etc/lockgate/lockgate.toml";
/// Interfaces of the README and those of the laboratory.
const INTERFACES: [(&str, &str); 2] = [("eth0", "wan"), ("eth1", "lan")];

/// A command that does not run as it stands.
struct Substitute {
    /// The command begins so.
    begins: &'static str,
    instead: Instead,
    /// Reason why it does not run.
    why: &'static str,
}

/// Action instead of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Instead {
    /// The Makefile is looked at: it has the target.
    Target(&'static str),
    /// The programs under test are found first.
    OurPath,
    /// The file is copied by the peer's machine.
    Copy,
    /// The unit is looked at, and what it starts is started on both gateways.
    Start,
    /// This gateway's daemon is asked to end, as the unit asks it.
    Stop,
    /// A host behind this gateway runs it.
    AtHost,
    /// The command itself runs, and has to end with 1.
    Differs,
}

const SUBSTITUTES: &[Substitute] = &[
    Substitute {
        begins: "make demo",
        instead: Instead::Target("demo"),
        why: "it compiles another profile for minutes; the tests of `lockgate demo` run it",
    },
    Substitute { begins: "make test", instead: Instead::Target("test"), why: "it runs this test" },
    Substitute {
        begins: "make deb",
        instead: Instead::Target("deb"),
        why: "it compiles for release; `xtask deb --check` packs debug programs in `make test`",
    },
    Substitute {
        begins: "apt install ./target/debian/release/lockgate_",
        instead: Instead::Target("deb"),
        why: "it changes the host; `xtask deb --check` installs the package in an overlay",
    },
    Substitute {
        begins: "PATH=",
        instead: Instead::OurPath,
        why: "the programs under test are those of the debug build",
    },
    Substitute { begins: "scp ", instead: Instead::Copy, why: "no SSH server runs here" },
    Substitute {
        begins: "systemctl enable --now lockgated",
        instead: Instead::Start,
        why: "no service manager runs in a namespace",
    },
    Substitute {
        begins: "systemctl stop lockgated",
        instead: Instead::Stop,
        why: "no service manager runs in a namespace",
    },
    Substitute {
        begins: "ping ",
        instead: Instead::AtHost,
        why: "the README says: from a host behind this gateway",
    },
    Substitute {
        begins: "lockgate diff ",
        instead: Instead::Differs,
        why: "the README says: it ends with 1",
    },
];

/// Needs of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Needs {
    Make,
    Nothing,
    Root,
}

/// A command of the README, with its line.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Line {
    number: usize,
    needs: Needs,
    command: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap()
}

/// A block that does not say what it needs.
#[derive(Debug)]
struct Unmarked {
    line: usize,
}

/// The commands of all blocks, without their comments; `;` and `&&` separate two.
fn commands(text: &str) -> Result<Vec<Line>, Unmarked> {
    let mut lines = Vec::new();
    let mut open: Option<Option<Needs>> = None;
    let mut continued = String::new();
    for (at, line) in text.lines().enumerate() {
        let number = at + 1;
        match (line.strip_prefix("```"), open) {
            (Some(_), Some(_)) => open = None,
            (Some(marks), None) => {
                open = Some(match marks {
                    "sh make" => Some(Needs::Make),
                    "sh" => Some(Needs::Nothing),
                    "sh root" => Some(Needs::Root),
                    "text" => None,
                    _ => return Err(Unmarked { line: number }),
                });
            }
            (None, Some(Some(needs))) => {
                let line = line.split(" #").next().unwrap_or_default();
                if let Some(begun) = line.strip_suffix('\\') {
                    continued += begun;
                    continue;
                }
                let whole = std::mem::take(&mut continued) + line;
                let parts = whole.split(';').flat_map(|part| part.split("&&")).map(str::trim);
                let parts = parts.filter(|part| !part.is_empty());
                lines.extend(parts.map(|part| Line { number, needs, command: part.to_owned() }));
            }
            (None, _) => {}
        }
    }
    Ok(lines)
}

/// The commands of the README that need something.
fn readme(needs: Needs) -> Vec<Line> {
    let mut lines = commands(&read("README.md")).unwrap();
    lines.retain(|line| line.needs == needs);
    assert!(!lines.is_empty(), "the README has no block for {needs:?}");
    lines
}

fn substitute(command: &str) -> Option<&'static Substitute> {
    SUBSTITUTES.iter().find(|substitute| command.starts_with(substitute.begins))
}

/// Checks that the Makefile has a target.
fn has_target(target: &str) {
    let makefile = read("Makefile");
    let has = makefile.lines().any(|line| line.starts_with(&format!("{target}:")));
    assert!(has, "the Makefile has no target {target}");
}

/// Runs a command, which must succeed, and shows what it says if it does not.
fn succeeds(line: &Line, command: Command) {
    let finished = process::run(command, PATIENCE).unwrap();
    let at = format!("README.md:{}: {}", line.number, line.command);
    assert!(finished.status.success(), "{at}\n{}{}", finished.stdout, finished.stderr);
    println!("{at}: ok");
}

#[test]
fn every_make_line_names_a_target() {
    for line in readme(Needs::Make) {
        match substitute(&line.command) {
            Some(Substitute { instead: Instead::Target(target), why, .. }) => {
                has_target(target);
                println!("README.md:{}: {}: not run: {why}", line.number, line.command);
            }
            _ => panic!("README.md:{}: {}: not a target", line.number, line.command),
        }
    }
}

#[test]
fn every_line_without_privileges_runs() {
    let programs = match Programs::find() {
        Ok(programs) => programs,
        Err(error) => return println!("SKIPPED: readme: {error}"),
    };
    let directory = tempfile::tempdir().unwrap();
    let (here, bin) = (directory.path().join("here"), directory.path().join("bin"));
    let lockgate = bin.join("lockgate");
    std::fs::create_dir(&here).unwrap();
    std::fs::create_dir(&bin).unwrap();
    // Where nobody may go, ours lie too deep.
    net::copy_program(&programs.lockgate, &lockgate);
    let demo = "lockgate-demo";
    net::copy_program(&programs.lockgate.with_file_name(demo), &bin.join(demo));
    let is_root = rustix_is_root();
    if is_root {
        open_to_all(directory.path());
        open_to_all(&bin);
        std::os::unix::fs::chown(&here, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    for line in readme(Needs::Nothing) {
        if let Some(Substitute { instead, why, .. }) = substitute(&line.command) {
            assert_eq!(*instead, Instead::OurPath, "README.md:{}", line.number);
            println!("README.md:{}: {}: not run: {why}", line.number, line.command);
            continue;
        }
        let mut command = match is_root {
            true => {
                let mut command = Command::new("setpriv");
                let user = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
                command.args(user).args(["--clear-groups", "sh"]);
                command
            }
            false => Command::new("sh"),
        };
        command.args(["-e", "-c", &line.command]).current_dir(&here).env("PATH", path(&bin));
        succeeds(&line, command);
    }
}

/// The search path with a directory of ours in front.
fn path(first: &Path) -> String {
    format!("{}:{}", first.display(), std::env::var("PATH").unwrap_or_default())
}

fn rustix_is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

fn open_to_all(directory: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Two gateways and the hosts behind them, as the README's reader has them.
struct Reader<'a> {
    /// This gateway, and its peer.
    machines: [Machine; 2],
    daemons: Vec<Running>,
    host: &'a Namespace,
    programs: &'a Programs,
    directory: PathBuf,
}

impl Reader<'_> {
    /// Runs a line on one of the gateways, or says why it does not run at all.
    fn run(&mut self, line: &Line) -> Result<(), LabError> {
        let mut text = line.command.clone();
        for (theirs, ours) in INTERFACES {
            text = text.replace(theirs, ours);
        }
        let Some(Substitute { instead, why, .. }) = substitute(&text) else {
            self.shell(line, 0, &text);
            return Ok(());
        };
        println!("README.md:{}: {text}: not as it stands: {why}", line.number);
        match instead {
            Instead::Target(target) => has_target(target),
            Instead::Copy => {
                let mut words = text.split_whitespace().skip(1);
                let (from, to) = (words.next().unwrap(), words.next().unwrap());
                let (host, to) = to.split_once(':').unwrap();
                assert_eq!((host, words.next()), ("root@192.0.2.2", None), "the peer is there");
                self.shell(line, 1, &format!("cp -p {from} {to}"));
            }
            Instead::Start => self.start()?,
            Instead::Stop => {
                let daemon = self.daemons.remove(0);
                assert!(daemon.terminate(PATIENCE)?.status.success());
            }
            Instead::AtHost => self.ping(line),
            Instead::Differs => self.shell(line, 0, &format!("{text} && exit 7 || test $? = 1")),
            Instead::OurPath => panic!("README.md:{}: programs are installed here", line.number),
        }
        Ok(())
    }

    fn shell(&self, line: &Line, machine: usize, text: &str) {
        let mut command = self.machines[machine].command("sh");
        let bin = self.programs.lockgate.parent().unwrap();
        command.args(["-e", "-c", "cd \"$1\"; eval \"$2\"", "sh"]).arg(&self.directory).arg(text);
        command.env("PATH", path(bin));
        succeeds(line, command);
    }

    /// Starts what the unit starts, on both gateways.
    fn start(&mut self) -> Result<(), LabError> {
        let unit = read("etc/systemd/lockgated.service");
        let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        let (program, words) = start.split_once(' ').unwrap();
        assert!(program.ends_with("/lockgated") && words.contains(INSTALLED), "{start}");
        for machine in &self.machines {
            let mut command = machine.command(&self.programs.lockgated);
            command.args(words.split(' '));
            let mut daemon = Running::start(command)?;
            daemon.wait_until("it to start", PATIENCE, |running| {
                running.stderr().contains(" started: ")
            })?;
            self.daemons.push(daemon);
        }
        Ok(())
    }

    /// Pings until neighbours are known.
    fn ping(&self, line: &Line) {
        let end = Instant::now() + 4 * AGAIN;
        loop {
            let mut command = self.host.command("sh");
            command.args(["-c", &line.command]);
            let finished = process::run(command, PATIENCE).unwrap();
            if finished.status.success() && finished.stdout.contains(" 0% packet loss") {
                return;
            }
            let logs: Vec<String> = self.daemons.iter().map(Running::stderr).collect();
            assert!(Instant::now() < end, "{}\n{}", finished.stdout, logs.concat());
        }
    }
}

#[test]
fn every_line_for_a_gateway_runs() {
    let Some(lab) = net::lab("readme", Plan::default()) else { return };
    let sites = &lab.gateways.sites;
    let directory = sites.laboratory.directory();
    let machines = [1, 2].map(|number| {
        let own = directory.join(format!("machine-{number}"));
        std::fs::create_dir(&own).unwrap();
        Machine::new(&sites.site(number).gateway, &own).unwrap()
    });
    let mut reader = Reader {
        machines,
        daemons: Vec::new(),
        host: &sites.site(1).host,
        programs: &lab.gateways.programs,
        directory: directory.to_owned(),
    };
    for line in readme(Needs::Root) {
        match reader.run(&line) {
            Ok(()) => {}
            Err(LabError::Ended { output, .. }) if net::lacks_a_feature(&output) => {
                println!("SKIPPED: readme: {}", output.trim().replace('\n', " | "));
                return;
            }
            Err(error) => panic!("README.md:{}: {error}", line.number),
        }
    }
    assert_eq!(reader.daemons.len(), 1, "the README stops one gateway of two");
}

#[test]
fn every_substitute_is_needed() {
    let all = commands(&read("README.md")).unwrap();
    for Substitute { begins, .. } in SUBSTITUTES {
        assert!(all.iter().any(|line| line.command.starts_with(begins)), "{begins}");
    }
}

#[test]
fn commands_are_found_in_marked_blocks_alone() {
    let text = "make no\n```text\nmake no\n```\n```sh\na b  # c\nd \\\n  e; f && g\n\n```\n";
    let found: Vec<(usize, String)> =
        commands(text).unwrap().into_iter().map(|line| (line.number, line.command)).collect();
    let expected = [(6, "a b"), (8, "d   e"), (8, "f"), (8, "g")];
    assert_eq!(found, expected.map(|(number, command)| (number, command.to_owned())));
    for unmarked in ["\n```\na\n```\n", "\n```bash\na\n```\n", "\n```sh roots\na\n```\n"] {
        assert_eq!(commands(unmarked).map_err(|error| error.line), Err(2), "{unmarked}");
    }
}
