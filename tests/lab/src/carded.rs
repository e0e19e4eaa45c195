//! A gateway with one port on an emulated card, between a client and a server:
//!
//! ```text
//! client 10.1.0.2 ── w0 ── emulated card ── lan0 ── gateway ── srv0 ── server 10.2.0.2
//! ```

use std::net::{IpAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::laboratory::connect;
use crate::ping::Ping;
use crate::stream::Stream;
use crate::{CardPlan, Daemon, EmulatedCard, LabError, Laboratory, Namespace, Programs, interrupt};

/// Address of the client.
pub const CLIENT: &str = "10.1.0.2";
/// Address of the server.
pub const SERVER: &str = "10.2.0.2";
/// The netdev of the gateway's port on the card.
pub const LAN: &str = "lan0";
/// The card's wire.
pub const WIRE: &str = "w0";
/// Bytes of a packet of a stream.
const STREAM_BYTES: usize = 64;
/// Time between two packets of a stream. A flow comes by a single queue, and the ring of a queue
/// holds at least 256 frames: a daemon without a core for a second loses no packet.
const STREAM_STEP: Duration = Duration::from_millis(4);
/// Time that a connection waits for an answer.
const NO_ANSWER: Duration = Duration::from_millis(300);

/// The laboratory.
#[derive(Debug)]
pub struct CardLab {
    /// The daemon, if it runs.
    pub daemon: Option<Daemon>,
    /// The card, if one is plugged in.
    pub card: Option<EmulatedCard>,
    /// The client's namespace.
    pub client: Namespace,
    /// The gateway's namespace.
    pub gateway: Namespace,
    /// The server's namespace.
    pub server: Namespace,
    /// The share of packets that are judged again, as `one_of`.
    pub audit: u32,
    programs: Programs,
    lab: Laboratory,
}

/// A rule of group `lan`, by its name, action, and further lines.
pub fn rule(name: &str, action: &str, rest: &str) -> String {
    format!(
        "[[rule]]\ngroup = \"lan\"\nname = \"{name}\"\naction = \"{action}\"\n\
         from = [\"any\"]\nto = [\"any\"]\n{rest}\n"
    )
}

/// Rules that permit ICMP and UDP, and deny TCP.
pub fn simple_rules() -> String {
    rule("ping", "permit", "protocol = \"icmp\"")
        + &rule("udp", "permit", "protocol = \"udp\"\nto_ports = [\"1-65535\"]")
        + &rule("tcp", "deny", "protocol = \"tcp\"\nto_ports = [\"1-65535\"]")
}

impl CardLab {
    /// Makes namespaces and plugs a card of this kind in; no daemon runs yet. All of its packets
    /// that tags decide are judged again.
    ///
    /// # Errors
    /// [`LabError`]: something that it needs is missing, or the kernel refuses.
    pub fn build(plan: CardPlan<'_>) -> Result<CardLab, LabError> {
        let programs = Programs::find()?;
        let lab = Laboratory::new()?;
        let [client, gateway, server] =
            ["client", "gateway", "server"].map(|role| lab.namespace(role));
        let (client, gateway, server) = (client?, gateway?, server?);
        for namespace in [&client, &gateway, &server] {
            namespace.set("net/ipv6/conf/default/disable_ipv6", "1")?;
        }
        connect((&gateway, WIRE), (&client, "c0"), 1)?;
        connect((&gateway, "srv0"), (&server, "s0"), 1)?;
        for (host, device, address) in [(&client, "c0", CLIENT), (&server, "s0", SERVER)] {
            host.ip(&format!("address add {address}/24 dev {device}"))?;
            host.ip(&format!("link set {device} up"))?;
            host.offload_off(device)?;
        }
        client.ip("route add default via 10.1.0.1")?;
        server.ip("route add default via 10.2.0.1")?;
        gateway.ip(&format!("link set {WIRE} up"))?;
        gateway.ip("address add 10.2.0.1/24 dev srv0")?;
        gateway.ip("link set srv0 up")?;
        let (daemon, card, audit) = (None, None, 1);
        let mut built = CardLab { daemon, card, client, gateway, server, audit, programs, lab };
        built.insert(plan)?;
        Ok(built)
    }

    /// Plugs a card in.
    ///
    /// # Errors
    /// As [`EmulatedCard::start`] and [`Namespace::ip`].
    pub fn insert(&mut self, plan: CardPlan<'_>) -> Result<(), LabError> {
        let plan = CardPlan { tap: LAN, wire: WIRE, ..plan };
        let at = (self.lab.directory(), "card");
        self.card = Some(EmulatedCard::start(&self.gateway, &plan, at)?);
        self.gateway.ip(&format!("address add 10.1.0.1/24 dev {LAN}"))?;
        self.gateway.ip(&format!("link set {LAN} up"))
    }

    /// The laboratory's directory.
    pub fn directory(&self) -> &Path {
        self.lab.directory()
    }

    /// Writes the configuration: further lines of the port on the card, and rules of group `lan`.
    ///
    /// # Errors
    /// [`LabError::File`].
    pub fn write(&self, lan: &str, rules: &str) -> Result<PathBuf, LabError> {
        let directory = self.lab.directory();
        for name in ["run", "state"] {
            let path = directory.join(name);
            std::fs::create_dir_all(&path).map_err(LabError::file(&path))?;
        }
        let (at, one_of) = (directory.display(), self.audit);
        let text = format!(
            "[node]\nname = \"gw\"\nrun_dir = \"{at}/run\"\nstate_dir = \"{at}/state\"\n\
             [metrics]\nlisten = \"off\"\n\
             [port.lan]\nnetdev = \"{LAN}\"\nside = \"protected\"\n{lan}\n\
             [port.srv]\nnetdev = \"srv0\"\nside = \"protected\"\n\
             [card.nic0]\nkind = \"emulated\"\nsocket = \"{at}/card\"\nports = [\"lan\"]\n\
             [audit]\none_of = {one_of}\n\
             [group.lan]\n{rules}"
        );
        let file = directory.join("gw.toml");
        std::fs::write(&file, text).map_err(LabError::file(&file))?;
        Ok(file)
    }

    /// Starts the daemon with group `lan` on the card's port.
    ///
    /// # Errors
    /// As [`Daemon::launch_with`] and [`Daemon::wait_ready`].
    pub fn start(&mut self, rules: &str) -> Result<(), LabError> {
        let file = self.write("groups_in = [\"lan\"]", rules)?;
        let socket = self.lab.directory().join("run/api.sock");
        let mut daemon = Daemon::launch_with(&self.programs, &self.gateway, &file, socket)?;
        daemon.wait_ready()?;
        self.daemon = Some(daemon);
        Ok(())
    }

    /// The daemon.
    ///
    /// # Errors
    /// [`LabError::NotRunning`]: none was started.
    pub fn daemon(&self) -> Result<&Daemon, LabError> {
        self.daemon.as_ref().ok_or(LabError::NotRunning("the daemon"))
    }

    /// The card.
    ///
    /// # Errors
    /// [`LabError::NotRunning`]: none is plugged in.
    pub fn card(&self) -> Result<&EmulatedCard, LabError> {
        self.card.as_ref().ok_or(LabError::NotRunning("the emulated card"))
    }

    /// `show placement`.
    ///
    /// # Errors
    /// As [`Daemon::ask`].
    pub fn placement(&self) -> Result<Value, LabError> {
        self.daemon()?.ask(&["show", "placement"])
    }

    /// Waits until something holds of `show placement`, at most `limit`. Returns it, and whether it
    /// came to hold.
    ///
    /// # Errors
    /// As [`CardLab::placement`], and [`LabError::Interrupted`].
    pub fn wait_until(
        &self,
        limit: Duration,
        holds: impl Fn(&Value) -> bool,
    ) -> Result<(Value, bool), LabError> {
        let end = Instant::now() + limit;
        loop {
            let placement = self.placement()?;
            let done = holds(&placement);
            if done || Instant::now() >= end {
                return Ok((placement, done));
            }
            interrupt::sleep(Duration::from_millis(100))?;
        }
    }

    /// Answers to so many pings of the client's, all of which should be answered.
    ///
    /// # Errors
    /// As [`Ping::run_one_by_one`].
    pub fn pings(&self, count: u32) -> Result<u64, LabError> {
        Ok(Ping::new(SERVER, count).run_one_by_one(&self.client)?.received)
    }

    /// Answers to exactly so many pings of the client's, of which some are to be lost.
    ///
    /// # Errors
    /// As [`Ping::run`].
    pub fn pings_with_losses(&self, count: u32) -> Result<u64, LabError> {
        Ok(Ping::new(SERVER, count).run(&self.client)?.received)
    }

    /// Has the client try a TCP connection to the server. Returns whether it came about.
    ///
    /// # Errors
    /// As [`Namespace::enter`].
    pub fn connects(&self) -> Result<bool, LabError> {
        let to = (IpAddr::from([10, 2, 0, 2]), 80).into();
        let tried = self.client.enter(|| TcpStream::connect_timeout(&to, NO_ANSWER))?;
        Ok(tried.is_ok())
    }

    /// A stream from the client to the server.
    ///
    /// # Errors
    /// As [`Stream::start`].
    pub fn stream(&self) -> Result<Stream, LabError> {
        let [from, to] = [[10, 1, 0, 2], [10, 2, 0, 2]].map(IpAddr::from);
        Stream::start((&self.client, from), (&self.server, to), STREAM_BYTES, STREAM_STEP)
    }

    /// Packets that tags decided, and searches of the classifier.
    ///
    /// # Errors
    /// As [`Daemon::ask`].
    pub fn decided(&self) -> Result<[u64; 2], LabError> {
        let counters = self.daemon()?.ask(&["show", "counters"])?;
        Ok(["/tiers/device", "/full_lookups"].map(|at| number(&counters, at)))
    }

    /// Packets of the card's that were judged again, and of these those that it decided wrongly.
    ///
    /// # Errors
    /// As [`Daemon::ask`].
    pub fn audited(&self) -> Result<[u64; 2], LabError> {
        let counters = self.daemon()?.ask(&["show", "counters"])?;
        let audited = counters["audited"].as_array().map_or(&[][..], Vec::as_slice);
        let card = audited.iter().find(|of| of["tier"] == "card").cloned().unwrap_or_default();
        Ok(["/packets", "/wrong"].map(|at| number(&card, at)))
    }

    /// Packets that a rule of the group decided.
    ///
    /// # Errors
    /// As [`Daemon::ask`].
    pub fn counted(&self, name: &str) -> Result<u64, LabError> {
        let groups = self.daemon()?.ask(&["show", "group", "lan"])?;
        let rules = groups["groups"][0]["rules"].as_array().map_or(&[][..], Vec::as_slice);
        let rule = rules.iter().find(|rule| rule["name"] == name).cloned().unwrap_or_default();
        Ok(number(&rule, "/decided/packets"))
    }

    /// Number of the items in the card.
    ///
    /// # Errors
    /// As [`EmulatedCard::tell`].
    pub fn items(&self) -> Result<usize, LabError> {
        let answer = self.card()?.tell("tags")?;
        Ok(answer["tags"].as_array().map_or(0, Vec::len))
    }
}

/// A rule of `show placement`, for IPv4; null: it has none of that name.
pub fn placed<'v>(placement: &'v Value, name: &str) -> &'v Value {
    let rules = placement["rules"].as_array().map_or(&[][..], Vec::as_slice);
    let of_name = |rule: &&Value| rule["rule"] == name && rule["family"] == 4;
    rules.iter().find(of_name).unwrap_or(&Value::Null)
}

/// The number at a place of an answer; 0: there is none.
fn number(of: &Value, at: &str) -> u64 {
    of.pointer(at).and_then(Value::as_u64).unwrap_or(0)
}
