//! Every command of `docs/IKE.md` that sets a gateway up runs here, in order, on two machines, and
//! the tunnel with certificates that it promises carries packets.
//!
//! A block says where it runs: `sh both`, `sh gw-a`, `sh gw-b`, or `sh host`, a host behind
//! gateway a. What cannot run in a laboratory as it stands is in [`SUBSTITUTES`], with the reason;
//! any other line runs, and has to succeed.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use net::AGAIN;
use netlab::ping::Ping;
use netlab::process::{self, Running};
use netlab::sites::Plan;
use netlab::{Machine, Programs, Scope, Tally, charon, programs};
use serde_json::Value;

/// Time for a block, and for a daemon to be ready.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interfaces of the document and those of the laboratory.
const INTERFACES: [(&str, &str); 2] = [("\"eth0\"", "\"wan\""), ("\"eth1\"", "\"lan\"")];
/// Programs that strongSwan's units start, the first of the unit in the document.
const DAEMONS: [&str; 2] = ["/usr/sbin/charon-systemd", "/usr/lib/ipsec/charon"];
/// Directories that a machine of the laboratory shares with the host otherwise.
const COVER: &str = "mkdir /run/plugins /run/plugins-work && \
    mount -t overlay -o lowerdir=/usr/lib/ipsec/plugins,upperdir=/run/plugins,\
workdir=/run/plugins-work none /usr/lib/ipsec/plugins && rm -f /etc/swanctl/conf.d/*";

/// Action in place of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Instead {
    /// Nothing.
    Skip,
    /// The plugin is the one that was built here.
    OurPlugin,
    /// The file is copied by the other machine.
    Copy,
    /// The daemon is started that the unit starts.
    StartLockgate,
    /// charon is started, and told its connections, as the unit does.
    StartCharon,
}

/// Beginnings of commands that do not run as they stand, and why.
const SUBSTITUTES: &[(&str, Instead, &str)] = &[
    ("apt-get install ", Instead::Skip, "it changes the host; `cargo xtask setup` has installed"),
    ("source=", Instead::Skip, "it fetches a source; `cargo xtask setup` runs this script"),
    ("make -C plugins/charon ", Instead::Skip, "`cargo xtask setup` runs this Makefile"),
    (
        "install -m 644 plugins/charon/build/",
        Instead::OurPlugin,
        "`cargo xtask setup` builds into the target directory",
    ),
    ("echo '/run/lockgate/charon.sock rw,'", Instead::Skip, "no AppArmor in a laboratory"),
    ("apparmor_parser ", Instead::Skip, "no AppArmor in a laboratory"),
    ("scp ", Instead::Copy, "no SSH server runs here"),
    ("systemctl enable --now lockgated", Instead::StartLockgate, "no service manager runs here"),
    ("systemctl restart strongswan", Instead::StartCharon, "no service manager runs here"),
];

/// A block of the document.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Block {
    /// Line of its first command, from 1.
    line: usize,
    /// `both`, `gw-a`, `gw-b` or `host`.
    at: String,
    /// Its commands; one with a document behind it (`<<'END'`), or that goes on, is one.
    commands: Vec<String>,
}

/// Sections whose blocks run.
const SECTIONS: [&str; 2] = ["## Set up", "## From nothing to a tunnel with certificates"];

/// The blocks of shell of these sections of a text.
fn blocks(text: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut lines = text.lines().enumerate();
    let mut runs = false;
    while let Some((at, line)) = lines.next() {
        if line.starts_with("## ") {
            runs = SECTIONS.contains(&line);
        }
        if !runs {
            continue;
        }
        let Some(mark) = line.strip_prefix("```sh") else { continue };
        let (mut commands, mut open) = (Vec::<String>::new(), None);
        for (_, line) in lines.by_ref().take_while(|(_, line)| *line != "```") {
            let last = commands.last_mut();
            match (open, last) {
                (Some(end), Some(last)) => {
                    *last += &format!("\n{line}");
                    open = if line == end { None } else { open };
                }
                _ => {
                    open = match line {
                        _ if line.ends_with("<<'END'") => Some("END"),
                        _ if line.starts_with("for ") => Some("done"),
                        _ => None,
                    };
                    match commands.last_mut() {
                        Some(last) if last.ends_with('\\') => *last += &format!("\n{line}"),
                        _ => commands.push(line.to_owned()),
                    }
                }
            }
        }
        found.push(Block { line: at + 2, at: mark.trim().to_owned(), commands });
    }
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn document() -> Vec<Block> {
    blocks(&std::fs::read_to_string(root().join("docs/IKE.md")).unwrap())
}

fn substitute(command: &str) -> Option<&'static (&'static str, Instead, &'static str)> {
    SUBSTITUTES.iter().find(|(begins, ..)| command.starts_with(begins))
}

/// Two machines, as the document's reader has them.
struct Reader {
    // Ended before the machines.
    daemons: Vec<Running>,
    machines: [Machine; 2],
    /// A directory that both see.
    shared: PathBuf,
    programs: Programs,
    plugin: PathBuf,
    charon: &'static str,
}

impl Reader {
    /// Runs a block on a machine: its commands in one shell, but for those that start something.
    fn run(&mut self, block: &Block, machine: usize) {
        let mut script = String::new();
        for command in &block.commands {
            let Some((_, instead, why)) = substitute(command) else {
                script += &format!("{command}\n");
                continue;
            };
            println!("docs/IKE.md:{}: {command}: not as it stands: {why}", block.line);
            match instead {
                Instead::Skip => {}
                Instead::OurPlugin => {
                    let (_, rest) = command.split_once("plugins/charon/build/").unwrap();
                    let (_, to) = rest.split_once(' ').unwrap();
                    script += &format!("install -m 644 {} {to}\n", self.plugin.display());
                }
                Instead::Copy => script += &self.copy(command),
                Instead::StartLockgate | Instead::StartCharon => {
                    self.shell(block, machine, &std::mem::take(&mut script));
                    self.start(machine, *instead);
                }
            }
        }
        self.shell(block, machine, &script);
    }

    /// A copy to the other machine, for `scp FILE root@192.0.2.2:DIRECTORY`.
    fn copy(&self, command: &str) -> String {
        let words: Vec<&str> = command.split_whitespace().collect();
        let [_, file, to] = words.as_slice() else { panic!("{command}") };
        let directory = to.strip_prefix("root@192.0.2.2:").expect("the other gateway");
        let (shared, other) = (self.shared.display(), self.machines[1].pid());
        format!(
            "cp {file} {shared}/ && nsenter --target={other} --mount cp {shared}/{file} \
             {directory} && rm {shared}/{file}\n"
        )
    }

    fn shell(&self, block: &Block, machine: usize, script: &str) {
        if script.is_empty() {
            return;
        }
        let script = INTERFACES
            .iter()
            .fold(script.to_owned(), |script, (theirs, ours)| script.replace(theirs, ours));
        let mut command = self.machines[machine].command("sh");
        let bin = self.programs.lockgate.parent().unwrap().display();
        let path = format!("{bin}:{}", std::env::var("PATH").unwrap_or_default());
        command.args(["-e", "-c", "cd \"$1\"; eval \"$2\"", "sh"]).arg(root()).arg(&script);
        command.env("PATH", path);
        let finished = process::run(command, PATIENCE).unwrap();
        let said = format!("{}{}", finished.stdout, finished.stderr);
        let at = format!("docs/IKE.md:{} at machine {}", block.line, machine + 1);
        assert!(finished.status.success(), "{at}\n{said}\n{}", self.story());
        println!("{at}: ok\n{said}");
    }

    /// Starts what a unit starts.
    fn start(&mut self, machine: usize, what: Instead) {
        let at = &self.machines[machine];
        if what == Instead::StartLockgate {
            let mut command = at.command(&self.programs.lockgated);
            command.args(["--config", "/etc/lockgate/lockgate.toml"]);
            let mut daemon = Running::start(command).unwrap();
            daemon
                .wait_until("it to start", PATIENCE, |it| it.stderr().contains(" started: "))
                .unwrap();
            self.daemons.push(daemon);
            return;
        }
        println!("charon is {}", self.charon);
        self.daemons.push(Running::start(at.command(self.charon)).unwrap());
        let end = Instant::now() + PATIENCE;
        let load = ["swanctl", "--load-all", "--noprompt"];
        loop {
            let loaded = at.run(&load, PATIENCE).unwrap();
            if loaded.status.success() {
                assert!(loaded.stdout.contains("successfully loaded 1 connections"), "{loaded:?}");
                return;
            }
            assert!(Instant::now() < end, "{loaded:?}\n{}", self.story());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Everything that a failure is explained by.
    fn story(&self) -> String {
        let log = |number| {
            let file = self.shared.join(format!("charon-{number}.log"));
            std::fs::read_to_string(file).unwrap_or_default()
        };
        let daemons: String = self.daemons.iter().map(Running::stderr).collect();
        format!("{daemons}\n{}\n{}", log(1), log(2))
    }

    /// An answer of a gateway's command.
    fn ask(&self, machine: usize, words: &[&str]) -> Value {
        let lockgate = self.programs.lockgate.display().to_string();
        let words = [&[lockgate.as_str()], words, &["--json"]].concat();
        let answer = self.machines[machine].run(&words, PATIENCE).unwrap().success().unwrap();
        serde_json::from_str(&answer).unwrap()
    }
}

/// The reason why the document cannot be followed here.
fn missing() -> Option<String> {
    if let Err(error) = charon::plugin() {
        return Some(error.to_string());
    }
    let pki = programs::find("pki").is_none();
    pki.then(|| "missing: pki (apt-get install strongswan-pki)".to_owned())
}

#[test]
fn every_command_runs_and_the_tunnel_with_certificates_carries_packets() {
    let test = "docs/IKE.md";
    let Some(mut lab) = net::lab(test, Plan::default()) else { return };
    if let Some(why) = missing() {
        return println!("SKIPPED: {test}: {why}");
    }
    let shared = lab.gateways.directory().to_owned();
    let machines = [1, 2].map(|number| {
        let own = shared.join(format!("machine-{number}"));
        std::fs::create_dir(&own).unwrap();
        let machine = Machine::new(&lab.gateways.site(number).gateway, &own).unwrap();
        let log = shared.join(format!("charon-{number}.log"));
        let log = format!("charon {{\n filelog {{\n l {{\n path = {} \n}}\n}}\n}}", log.display());
        let cover = format!("{COVER}; echo '{log}' > /etc/strongswan.d/log.conf");
        machine.shell(Path::new("/"), &cover, PATIENCE).unwrap().success().unwrap();
        machine
    });
    let charon = DAEMONS.into_iter().find(|file| Path::new(file).is_file()).unwrap();
    let (programs, plugin) = (lab.gateways.programs.clone(), charon::plugin().unwrap());
    let mut reader = Reader { daemons: Vec::new(), machines, shared, programs, plugin, charon };
    let capture = lab.gateways.capture(Scope::Heads).unwrap();
    for block in document() {
        match block.at.as_str() {
            "both" => [0, 1].into_iter().for_each(|machine| reader.run(&block, machine)),
            "gw-a" => reader.run(&block, 0),
            "gw-b" => reader.run(&block, 1),
            "host" => at_host(&block, &lab, &reader),
            other => panic!("docs/IKE.md:{}: `sh {other}`: where does it run?", block.line),
        }
    }
    // The document ends with a new proof, behind which the tunnel is another.
    let all: Vec<String> = document().into_iter().flat_map(|block| block.commands).collect();
    assert!(all.last().is_some_and(|command| command.ends_with("--reauth")), "{all:?}");
    net::wait_for("another IKE_SA, and one tunnel", || {
        [0, 1].iter().all(|&machine| {
            let listed = reader.machines[machine].run(&["swanctl", "--list-sas"], PATIENCE);
            let listed = listed.unwrap().stdout;
            let sas = reader.ask(machine, &["show", "sa"]);
            let is_other = listed.contains("ESTABLISHED") && !listed.contains(": #1, ");
            is_other && sas["sas"].as_array().is_some_and(|sas| sas.len() == 2)
        })
    });
    let ping = Ping::new("10.2.0.10", 5).run_until_answered(&lab.gateways.site(1).host).unwrap();
    assert!(ping.all_answered(), "{}\n{}", ping.text, reader.story());
    for (machine, other) in [(0, "gw-b"), (1, "gw-a")] {
        let listed = reader.machines[machine].run(&["swanctl", "--list-sas"], PATIENCE).unwrap();
        let listed = listed.success().unwrap();
        for expected in ["ESTABLISHED", &format!("remote '{other}'"), "AES_GCM_16-256/ESN"] {
            assert!(listed.contains(expected), "no {expected}: {listed}\n{}", reader.story());
        }
        let sas = reader.ask(machine, &["show", "sa"]);
        let owners: Vec<&Value> =
            sas["sas"].as_array().unwrap().iter().map(|sa| &sa["owner"]).collect();
        assert_eq!(owners, ["ike", "ike"], "{sas}");
    }
    let wire = Tally::of(&capture.stop().unwrap()).unwrap();
    assert!(wire.clear == 0 && wire.repeated == 0 && wire.esp >= 16, "{wire:?}");
}

/// Runs a block at the host behind gateway a: neighbours may have to be found first.
fn at_host(block: &Block, lab: &net::Lab, reader: &Reader) {
    let end = Instant::now() + AGAIN;
    loop {
        let mut command = lab.gateways.site(1).host.command("sh");
        command.args(["-e", "-c", &block.commands.join("\n")]);
        let finished = process::run(command, PATIENCE).unwrap();
        if finished.status.success() && finished.stdout.contains(" 0% packet loss") {
            return println!("docs/IKE.md:{} at a host: ok\n{}", block.line, finished.stdout);
        }
        assert!(Instant::now() < end, "{}\n{}", finished.stdout, reader.story());
    }
}

#[test]
fn every_substitute_is_needed() {
    let all: Vec<String> = document().into_iter().flat_map(|block| block.commands).collect();
    for (begins, ..) in SUBSTITUTES {
        assert!(all.iter().any(|command| command.starts_with(begins)), "{begins}");
    }
}

#[test]
fn commands_with_a_document_a_loop_or_a_second_line_are_one() {
    let text = "```sh\nno\n```\n## Set up\n```sh gw-a\na\ncat > f <<'END'\nx\nEND\nb \\\n c\n\
                for n in 1; do\n d\ndone\n```\n```toml\nno\n```\n## Other\n```sh\nno\n```\n";
    let commands = ["a", "cat > f <<'END'\nx\nEND", "b \\\n c", "for n in 1; do\n d\ndone"];
    let commands = commands.map(str::to_owned).to_vec();
    assert_eq!(blocks(text), [Block { line: 6, at: "gw-a".into(), commands }]);
}
