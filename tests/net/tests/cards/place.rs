//! A gateway with one port on an emulated card, between a client and a server:
//!
//! ```text
//! client 10.1.0.2 ── w0 ── emulated card ── lan0 ── gateway ── srv0 ── server 10.2.0.2
//! ```

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use net::{AGAIN, STEP};
use netlab::laboratory::connect;
use netlab::ping::Ping;
use netlab::stream::Stream;
use netlab::{CardPlan, Daemon, EmulatedCard, LabError, Laboratory, Namespace, Programs};
use serde_json::Value;

pub(crate) const CLIENT: &str = "10.1.0.2";
pub(crate) const SERVER: &str = "10.2.0.2";
/// The netdev of the gateway's port on the card, and the card's wire.
pub(crate) const LAN: &str = "lan0";
const WIRE: &str = "w0";

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The laboratory.
pub(crate) struct Place {
    pub(crate) daemon: Option<Daemon>,
    pub(crate) card: Option<EmulatedCard>,
    pub(crate) client: Namespace,
    pub(crate) gateway: Namespace,
    pub(crate) server: Namespace,
    programs: Programs,
    lab: Laboratory,
    _alone: MutexGuard<'static, ()>,
}

/// A rule of group `lan`, by its name, action, and what follows.
pub(crate) fn rule(name: &str, action: &str, rest: &str) -> String {
    format!(
        "[[rule]]\ngroup = \"lan\"\nname = \"{name}\"\naction = \"{action}\"\n\
         from = [\"any\"]\nto = [\"any\"]\n{rest}\n"
    )
}

/// Rules that permit ICMP and UDP, and deny TCP.
pub(crate) fn simple_rules() -> String {
    rule("ping", "permit", "protocol = \"icmp\"")
        + &rule("udp", "permit", "protocol = \"udp\"\nto_ports = [\"1-65535\"]")
        + &rule("tcp", "deny", "protocol = \"tcp\"\nto_ports = [\"1-65535\"]")
}

impl Place {
    /// Namespaces, a card of this kind, and no daemon yet. `None` (said aloud): something that it
    /// needs is missing.
    pub(crate) fn build(test: &str, plan: CardPlan<'_>) -> Option<Place> {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poison| poison.into_inner());
        let build = || {
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
            let (daemon, card) = (None, None);
            Ok(Place { daemon, card, client, gateway, server, programs, lab, _alone: alone })
        };
        match build() {
            Ok(mut place) => {
                place.insert(plan);
                Some(place)
            }
            Err(error @ (LabError::NotRoot | LabError::Missing(_) | LabError::NotBuilt { .. })) => {
                println!("SKIPPED: {test}: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Plugs a card in.
    pub(crate) fn insert(&mut self, plan: CardPlan<'_>) {
        let plan = CardPlan { tap: LAN, wire: WIRE, ..plan };
        let at = (self.lab.directory(), "card");
        self.card = Some(EmulatedCard::start(&self.gateway, &plan, at).unwrap());
        self.gateway.ip(&format!("address add 10.1.0.1/24 dev {LAN}")).unwrap();
        self.gateway.ip(&format!("link set {LAN} up")).unwrap();
    }

    /// Writes the configuration: further lines of the port on the card, and rules of group `lan`.
    pub(crate) fn write(&self, lan: &str, rules: &str) -> PathBuf {
        let directory = self.lab.directory();
        for name in ["run", "state"] {
            std::fs::create_dir_all(directory.join(name)).unwrap();
        }
        let at = directory.display();
        let text = format!(
            "[node]\nname = \"gw\"\nrun_dir = \"{at}/run\"\nstate_dir = \"{at}/state\"\n\
             [metrics]\nlisten = \"off\"\n\
             [port.lan]\nnetdev = \"{LAN}\"\nside = \"protected\"\n{lan}\n\
             [port.srv]\nnetdev = \"srv0\"\nside = \"protected\"\n\
             [card.nic0]\nkind = \"emulated\"\nsocket = \"{at}/card\"\nports = [\"lan\"]\n\
             [audit]\none_of = 1\n\
             [group.lan]\n{rules}"
        );
        let file = directory.join("gw.toml");
        std::fs::write(&file, text).unwrap();
        file
    }

    /// Starts the daemon with group `lan` on the card's port.
    pub(crate) fn start(&mut self, rules: &str) {
        let file = self.write("groups_in = [\"lan\"]", rules);
        let socket = self.lab.directory().join("run/api.sock");
        let mut daemon = Daemon::launch_with(&self.programs, &self.gateway, &file, socket).unwrap();
        daemon.wait_ready().unwrap();
        self.daemon = Some(daemon);
    }

    pub(crate) fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }

    pub(crate) fn card(&self) -> &EmulatedCard {
        self.card.as_ref().unwrap()
    }

    /// `show placement`.
    pub(crate) fn placement(&self) -> Value {
        self.daemon().ask(&["show", "placement"]).unwrap()
    }

    /// A rule of `show placement`, for IPv4.
    pub(crate) fn placed(&self, name: &str) -> Value {
        let placement = self.placement();
        let rules = placement["rules"].as_array().unwrap();
        let found = rules.iter().find(|rule| rule["rule"] == name && rule["family"] == 4);
        found.cloned().unwrap_or_default()
    }

    /// Waits until something holds of `show placement`.
    pub(crate) fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + AGAIN;
        loop {
            let placement = self.placement();
            if holds(&placement) {
                return placement;
            }
            let log = self.daemon().log();
            assert!(Instant::now() < end, "not {what}: {placement:#}\n{log}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until tags of so many rules count.
    pub(crate) fn until_rules(&self, count: u64) -> Value {
        let counts = |of: &Value| of["cards"][0]["rules"].as_u64().unwrap_or(0);
        self.until(&format!("{count} rules"), |placement| counts(placement) == count)
    }

    /// Sends pings and waits until the rule that permits them is in the card.
    pub(crate) fn settle(&self) {
        self.pings(5);
        let counts = |rule: &Value| rule["rule"] == "lan/ping" && rule["counts"] == true;
        self.until("lan/ping in the card", |placement| {
            self.pings(1);
            placement["rules"].as_array().unwrap().iter().any(counts)
        });
    }

    /// Answers to so many pings of the client's.
    pub(crate) fn pings(&self, count: u32) -> u64 {
        Ping::new(SERVER, count).run(&self.client).unwrap().received
    }

    /// A stream from the client to the server.
    pub(crate) fn stream(&self) -> Stream {
        let [from, to] = [CLIENT, SERVER].map(|address| address.parse::<IpAddr>().unwrap());
        Stream::start((&self.client, from), (&self.server, to), 64, STEP).unwrap()
    }

    /// Packets by tier: those that tags decided, and searches of the classifier.
    pub(crate) fn decided(&self) -> [u64; 2] {
        let counters = self.daemon().ask(&["show", "counters"]).unwrap();
        let tagged = counters["tiers"]["device"].as_u64().unwrap();
        [tagged, counters["full_lookups"].as_u64().unwrap()]
    }

    /// Packets of the card's that were judged again, and of these those that it decided wrongly.
    pub(crate) fn audited(&self) -> [u64; 2] {
        let counters = self.daemon().ask(&["show", "counters"]).unwrap();
        let audited = counters["audited"].as_array().unwrap();
        let card = audited.iter().find(|of| of["tier"] == "card").unwrap();
        ["packets", "wrong"].map(|key| card[key].as_u64().unwrap())
    }

    /// Packets that a rule of the group decided.
    pub(crate) fn counted(&self, name: &str) -> u64 {
        let groups = self.daemon().ask(&["show", "group", "lan"]).unwrap();
        let rules = groups["groups"][0]["rules"].as_array().unwrap();
        let rule = rules.iter().find(|rule| rule["name"] == name).unwrap();
        rule["decided"]["packets"].as_u64().unwrap()
    }

    /// Names of items in the card.
    pub(crate) fn tags(&self) -> Vec<String> {
        let answer = self.card().tell("tags").unwrap();
        let tags = answer["tags"].as_array().unwrap();
        tags.iter().map(ToString::to_string).collect()
    }

    /// Fails if the ledger does not balance.
    pub(crate) fn balances(&self) {
        let counters = self.daemon().settled(AGAIN).unwrap();
        assert_eq!(counters.ledger_imbalance, 0, "{counters:?}");
    }
}
