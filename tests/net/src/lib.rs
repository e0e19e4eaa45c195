//! Holds the parts that the tests over the real daemon share. Needs root; the daemon and the
//! command are found beside the tests or by `LOCKGATED` and `LOCKGATE`.
//!
//! One test at a time, whatever the runner does: they share the machine's cores.
#![forbid(unsafe_code)]

pub mod router;

use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use netlab::capture::{Scope, Tally};
use netlab::ping::Ping;
use netlab::sites::Plan;
use netlab::stream::{Delivery, Stream, roomy_socket};
use netlab::{Gateways, LabError, PeerEntry};
use serde_json::Value;

/// Time between two packets of a stream.
pub const STEP: Duration = Duration::from_millis(1);
/// A step that takes longer than this never ends. Tests assert no speed: the machine may be busy.
pub const AGAIN: Duration = Duration::from_secs(60);
/// Time for steps that a daemon takes by itself.
pub const BY_ITSELF: Duration = Duration::from_secs(60);

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A laboratory of one test.
pub struct Lab {
    /// Sites and daemons.
    pub gateways: Gateways,
    _alone: MutexGuard<'static, ()>,
}

/// The result of a hunt.
pub struct Quarry {
    /// Count of the packets on the wire.
    pub wire: Tally,
    /// The streams from site 1 to site 2, and back.
    pub streams: [Delivery; 2],
}

/// Numbers that look random, from a seed that is printed (xorshift64).
pub struct Random(u64);

impl Random {
    /// Begins with the seed in `NET_SEED`, or with a new one, and prints it.
    pub fn from_environment() -> Random {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let fresh = now.map_or(1, |time| time.as_nanos() as u64) | 1;
        let seed = std::env::var("NET_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or(fresh);
        println!("NET_SEED={seed}");
        Random(seed)
    }

    /// Returns a number below `limit`.
    ///
    /// # Panics
    /// If `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Waits until pings cross between sites 1 and 2, both families.
///
/// # Errors
/// The last answers, if they do not within [`AGAIN`].
///
/// # Panics
/// If the laboratory breaks.
pub fn wait_for_pings(gateways: &Gateways) -> Result<(), String> {
    let end = Instant::now() + AGAIN;
    let to = gateways.site(2);
    for address in [to.host_v4(), to.host_v6()] {
        loop {
            let answers = Ping::new(&address, 5).run(&gateways.site(1).host).unwrap();
            if answers.all_answered() {
                break;
            }
            if Instant::now() > end {
                return Err(answers.text);
            }
        }
    }
    Ok(())
}

/// Builds a laboratory whose daemons do not run yet; says loudly why there is none.
///
/// # Panics
/// If it cannot be built though everything that it needs is there.
pub fn lab(test: &str, plan: Plan) -> Option<Lab> {
    let alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poison| poison.into_inner());
    match Gateways::build(plan) {
        Ok(gateways) => Some(Lab { gateways, _alone: alone }),
        Err(error @ (LabError::NotRoot | LabError::Missing(_) | LabError::NotBuilt { .. })) => {
            println!("SKIPPED: {test}: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Makes a laboratory as [`lab`] does, with all daemons running.
///
/// # Panics
/// As [`lab`] and [`Lab::start`].
pub fn running(test: &str, plan: Plan) -> Option<Lab> {
    lab(test, plan)?.start(test)
}

/// Builds a laboratory of two gateways whose SAs are put over the API, with so many workers; its
/// daemons do not run yet. `more` follows the peer's section of both, with the peer's name for
/// NAME.
///
/// # Panics
/// As [`lab`].
pub fn over_the_api(test: &str, workers: u32, more: &str) -> Option<Lab> {
    let mut lab = lab(test, Plan { queues: workers, ..Plan::default() })?;
    for number in [1, 2] {
        let file = lab.gateways.file_mut(number);
        file.workers = workers.to_string();
        let PeerEntry { name, local, remote, ours, theirs, .. } = file.peers.pop().unwrap();
        file.extra += &format!(
            "\n[peer.{name}]\nlocal = \"{local}\"\nremote = \"{remote}\"\nkeys = \"api\"\n\
             suite = \"aes-128-gcm\"\nesn = true\n{}\n[[policy]]\nname = \"to-{name}\"\n\
             peer = \"{name}\"\nlocal = {ours:?}\nremote = {theirs:?}\npriority = 100\n",
            more.replace("NAME", &name)
        );
    }
    Some(lab)
}

/// Copies a program to another place. `cp` writes the copy: a child of another thread could inherit
/// the descriptor of our own copy, and Linux executes no file open for writing.
///
/// # Panics
/// If the program is missing.
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(copied.success(), "no copy of {}: is it built?", from.display());
}

/// A socket with a large buffer at the host of a site, at a free port.
///
/// # Panics
/// If the host has no socket left.
pub fn host_socket(gateways: &Gateways, site: u8) -> UdpSocket {
    let address = SocketAddr::from(([10, site, 0, 10], 0));
    roomy_socket(&gateways.site(site).host, address).unwrap()
}

/// Waits until a condition holds, for at most [`BY_ITSELF`].
///
/// # Panics
/// If it does not, with `what`.
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + BY_ITSELF;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Has a gateway put the SA of a line, as `lockgate sa put -` reads it.
///
/// # Panics
/// If it does not.
pub fn put_sa(gateways: &Gateways, number: u8, line: &str) {
    let mut command = gateways.daemon(number).unwrap().command(&["sa", "put", "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{line}");
}

/// The events of one kind of a gateway, oldest first.
///
/// # Panics
/// If the gateway does not answer.
pub fn events(gateways: &Gateways, number: u8, kind: &str) -> Vec<Value> {
    let words = ["events", "--kind", kind, "--json"];
    let printed = gateways.daemon(number).unwrap().run(&words).unwrap();
    printed.stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Returns whether a daemon says that this kernel is too old for it, or that this process may not
/// do what it needs.
pub fn lacks_a_feature(output: &str) -> bool {
    output.contains("is too old: Lockgate needs") || output.contains("AmbientCapabilities=")
}

/// Writes the only peer of a gateway with further `keys` and other ends.
///
/// # Panics
/// If it has no peer, or several.
pub fn rewrite_peer(
    gateways: &mut Gateways,
    number: u8,
    keys: &str,
    change: impl Fn(&mut PeerEntry),
) {
    let file = gateways.file_mut(number);
    let mut peer = file.peers.pop().unwrap();
    assert!(file.peers.is_empty());
    change(&mut peer);
    let PeerEntry { name, local, remote, keys: material, ours, theirs } = peer;
    file.extra += &format!(
        "
[peer.{name}]
local = \"{local}\"
remote = \"{remote}\"
keys = \"file:{material}\"
manual = \"laboratory\"
suite = \"aes-128-gcm\"
esn = true
{keys}

[[policy]]
name = \"to-{name}\"
peer = \"{name}\"
local = {ours:?}
remote = {theirs:?}
priority = 100
"
    );
}

impl Lab {
    /// Starts all daemons; says loudly if this machine lacks what they need.
    ///
    /// # Panics
    /// If one does not start for another reason.
    pub fn start(mut self, test: &str) -> Option<Lab> {
        match self.gateways.start_all() {
            Ok(()) => Some(self),
            Err(LabError::Ended { output, .. }) if lacks_a_feature(&output) => {
                println!("SKIPPED: {test}: {}", output.trim().replace('\n', " | "));
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Streams in both directions between sites 1 and 2, and a capture of the wire, while
    /// `disturbance` happens. Fails if anything leaked or an ESP number came twice.
    ///
    /// # Panics
    /// If the laboratory breaks, or something leaked.
    pub fn hunt(&mut self, disturbance: impl FnOnce(&mut Gateways)) -> Quarry {
        self.hunt_by_steps_of(STEP, disturbance)
    }

    /// As [`Lab::hunt`], with a packet of each stream every `step`.
    ///
    /// # Panics
    /// As [`Lab::hunt`].
    pub fn hunt_by_steps_of(
        &mut self,
        step: Duration,
        disturbance: impl FnOnce(&mut Gateways),
    ) -> Quarry {
        // Every neighbour is known: what is lost from here on is the disturbance's doing.
        self.flows_again();
        let capture = self.gateways.capture(Scope::Heads).unwrap();
        let streams =
            [(1, 2), (2, 1)].map(|(from, to)| self.gateways.stream(from, to, step).unwrap());
        std::thread::sleep(Duration::from_millis(300));
        disturbance(&mut self.gateways);
        std::thread::sleep(Duration::from_millis(300));
        let streams = streams.map(Stream::finish);
        let file = capture.stop().unwrap();
        let wire = Tally::of(&file).unwrap();
        assert!(wire.esp > 0, "no ESP at all: {wire:?}");
        assert_eq!(wire.clear, 0, "leaked: {:?}", wire.clear_examples);
        assert_eq!(wire.repeated, 0, "sealed twice: {:x?}", wire.repeated_examples);
        for stream in &streams {
            assert_eq!(stream.repeated(), 0, "delivered twice");
        }
        Quarry { wire, streams }
    }

    /// Waits until pings cross between sites 1 and 2, both families, or fails.
    ///
    /// # Panics
    /// If they do not within [`AGAIN`].
    pub fn flows_again(&self) {
        if let Err(answers) = wait_for_pings(&self.gateways) {
            panic!("{answers}\n{}", self.logs());
        }
    }

    /// Fails if a daemon's ledger does not balance once nothing is on its way.
    ///
    /// # Panics
    /// If one does not.
    pub fn balances(&self) {
        for number in 1..=self.gateways.sites.all().len() as u8 {
            let Ok(daemon) = self.gateways.daemon(number) else { continue };
            let counters = daemon.settled(AGAIN).unwrap();
            assert_eq!(counters.ledger_imbalance, 0, "gateway {number}: {counters:?}");
        }
    }

    /// The last lines of all daemons.
    pub fn logs(&self) -> String {
        let numbers = 1..=self.gateways.sites.all().len() as u8;
        let lines = numbers.flat_map(|number| {
            let name = self.gateways.file(number).name().to_owned();
            self.gateways.log(number, 10).into_iter().map(move |line| format!("{name}: {line}\n"))
        });
        lines.collect()
    }
}
