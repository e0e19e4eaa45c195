//! strongSwan's charon on both gateways, whose plugin gives its SAs to the daemon.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use net::{AGAIN, Lab, lab, wait_for};
use netlab::charon::Root;
use netlab::ping::Ping;
use netlab::sites::Plan;
use netlab::{Charon, ChildPlan, Gateways, LabError, PeerEntry};
use serde_json::Value;

#[path = "ike/card.rs"]
mod card;
#[path = "ike/debian_13.rs"]
mod debian_13;
#[path = "ike/forms.rs"]
mod forms;
#[path = "ike/moves.rs"]
mod moves;
#[path = "ike/random_events.rs"]
mod random_events;
#[path = "ike/rekeys.rs"]
mod rekeys;

const SUITE: &str = "aes-256-gcm";
const PROPOSAL: &str = "aes256gcm16-esn";

/// Two gateways with IKE.
struct Place {
    lab: Lab,
    charons: [Option<Charon>; 2],
    children: [ChildPlan; 2],
    /// Roots of another Debian, with the gateways' charons.
    roots: [Option<PathBuf>; 2],
}

/// The ways in which a place is not as the others are. `None` and nothing: as they are.
struct Wish<'w> {
    suite: &'w str,
    proposals: [&'w str; 2],
    /// Further lines of a gateway's section for its peer.
    section: &'w dyn Fn(u8) -> String,
    /// Other ends and networks of a gateway's peer.
    peer: &'w dyn Fn(u8, &mut PeerEntry),
    /// All sections for a gateway's peer, in place of the usual ones.
    instead: Option<&'w dyn Fn(&PeerEntry) -> String>,
    /// Other plans of a gateway's charon.
    child: &'w dyn Fn(u8, &mut ChildPlan),
    /// Roots of another Debian, with the gateways' charons. As the others are: one for the first
    /// gateway, where `make test-long PART=charon6` has made it.
    roots: [Option<PathBuf>; 2],
}

impl Default for Wish<'_> {
    fn default() -> Self {
        Wish {
            suite: SUITE,
            proposals: [PROPOSAL; 2],
            section: &|_| String::new(),
            peer: &|_, _| (),
            instead: None,
            child: &|_, _| (),
            roots: [debian_13::root(), None],
        }
    }
}

/// The sections of a peer with one policy.
fn sections(peer: &PeerEntry, (suite, more): (&str, String)) -> String {
    let PeerEntry { name, local, remote, ours, theirs, .. } = peer;
    format!(
        "\n[peer.{name}]\nlocal = \"{local}\"\nremote = \"{remote}\"\nkeys = \"ike\"\n\
         suite = \"{suite}\"\n{more}\n\n[[policy]]\nname = \"to-{name}\"\n\
         peer = \"{name}\"\nlocal = {ours:?}\nremote = {theirs:?}\npriority = 100\n"
    )
}

impl Place {
    /// Builds it, with changes of site 1's CHILD_SA, and starts the daemons and then charon.
    fn build(test: &str, change: impl Fn(&mut ChildPlan)) -> Option<Place> {
        let child = |number: u8, plan: &mut ChildPlan| {
            if number == 1 {
                change(plan);
            }
        };
        Place::of(test, lab(test, Plan::default())?, &Wish { child: &child, ..Wish::default() })
    }

    /// Builds it in a laboratory whose daemons do not run yet.
    fn of(test: &str, mut lab: Lab, wish: &Wish<'_>) -> Option<Place> {
        let children = [1, 2].map(|number| {
            let file = lab.gateways.file_mut(number);
            let mut peer = file.peers.pop().unwrap();
            let identities = [peer.local.clone(), peer.remote.clone()];
            (wish.peer)(number, &mut peer);
            file.extra += &match wish.instead {
                Some(sections) => sections(&peer),
                None => sections(&peer, (wish.suite, (wish.section)(number))),
            };
            let PeerEntry { local, remote, ours, theirs, .. } = peer;
            let mut child = ChildPlan {
                ends: [local, remote],
                identities,
                connection: "mobike = no".into(),
                selectors: [ours.join(","), theirs.join(",")],
                esp: wish.proposals[usize::from(number - 1)].into(),
                more: String::new(),
            };
            (wish.child)(number, &mut child);
            child
        });
        let lab = lab.start(test)?;
        let roots = wish.roots.clone();
        let mut place = Place { lab, charons: [None, None], children, roots };
        for number in [1, 2] {
            match place.start_charon(number) {
                Ok(()) => {}
                Err(error @ (LabError::Missing(_) | LabError::NotBuilt { .. })) => {
                    println!("SKIPPED: {test}: {error}");
                    return None;
                }
                Err(error) => panic!("{error}\n{}", place.story()),
            }
        }
        Some(place)
    }

    fn start_charon(&mut self, number: u8) -> Result<(), LabError> {
        let gateways = &self.lab.gateways;
        let directory = gateways.directory().join(format!("charon-{number}"));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).map_err(LabError::file(&directory))?;
        let place = usize::from(number - 1);
        let plan = (&*gateways.file(number).run_dir(), &self.children[place]);
        let gateway = &gateways.site(number).gateway;
        let charon = match &self.roots[place] {
            None => Charon::start(gateway, &directory, plan)?,
            Some(folder) => {
                let root = Root { folder, plugin: None };
                Charon::start_in(root, gateway, &directory, plan)?
            }
        };
        self.charons[place] = Some(charon);
        wait_for("charon's plugin connects", || {
            !self.events(number, "charon_connected").is_empty()
        });
        Ok(())
    }

    fn charon(&self, number: u8) -> &Charon {
        self.charons[usize::from(number - 1)].as_ref().expect("a charon that runs")
    }

    fn swanctl(&self, number: u8, words: &[&str]) -> String {
        let gateway = &self.lab.gateways.site(number).gateway;
        self.charon(number).swanctl(gateway, words).unwrap_or_else(|error| panic!("{error}"))
    }

    fn events(&self, number: u8, kind: &str) -> Vec<Value> {
        net::events(&self.lab.gateways, number, kind)
    }

    /// The SAs of a gateway.
    fn sas(&self, number: u8) -> Vec<Value> {
        sas_of(&self.lab.gateways, number)
    }

    /// The answer of a gateway's daemon.
    fn ask(&self, number: u8, words: &[&str]) -> Value {
        self.lab.gateways.daemon(number).unwrap().ask(words).unwrap()
    }

    /// Checks that SAs, peers and explanations have the names of charon's configuration.
    fn shows_names(&self) {
        for number in [1, 2] {
            // The plugin tells them a moment after the SAs.
            wait_for("the names", || {
                let sas = self.sas(number);
                sas.len() == 2 && sas.iter().all(|sa| sa["ike"]["child"] == "net")
            });
            let listed = self.swanctl(number, &["--list-sas"]);
            for sa in self.sas(number) {
                let ike = &sa["ike"];
                let connection = ike["connection"].as_str().unwrap();
                assert!(listed.contains(&format!("{connection}: #")), "{connection}: {listed}");
                assert!(listed.contains(&format!("reqid {},", ike["reqid"])), "{ike} {listed}");
                assert!(ike["established_s"].as_u64().unwrap() < 600, "{ike}");
                let due = ike["rekey_due_s"].as_u64().unwrap();
                assert!((1..=3600).contains(&due), "charon's default is an hour: {ike}");
            }
            let peers = self.ask(number, &["show", "peer"]);
            assert_eq!(peers["peers"][0]["ike"]["child"], "net", "{peers}");
        }
        let [from, to] = [1, 2].map(|number| self.lab.gateways.site(number).host_v4());
        let (from, to) = (format!("{from}:1"), format!("{to}:2"));
        let explained = self.ask(1, &["explain", "--in", "lan", "udp", &from, &to]);
        let child = explained["child"].as_str().unwrap_or_default();
        assert!(child.starts_with("net of connection "), "{explained:#}");
    }

    /// Everything that a failure is explained by.
    fn story(&self) -> String {
        let charons = self.charons.iter().flatten().map(Charon::log).collect::<Vec<_>>();
        format!("{}\n{}", self.lab.logs(), charons.join("\n"))
    }
}

/// The SAs of a gateway.
fn sas_of(gateways: &Gateways, number: u8) -> Vec<Value> {
    let shown = gateways.daemon(number).unwrap().ask(&["show", "sa"]).unwrap();
    shown["sas"].as_array().cloned().unwrap_or_default()
}

/// Has the charon of gateway `number` change the keys of the child, under traffic of both ways, and
/// waits until gateway 2 seals and opens by the new keys. `swanctl` only queues a job, and charon
/// skips a child in the middle of a change: after a while the charon is asked again.
fn rekey_child(gateways: &Gateways, charons: &[Option<Charon>; 2], number: u8) {
    let before: Vec<Value> = sas_of(gateways, 2).iter().map(|sa| sa["spi"].clone()).collect();
    let is_done = || {
        let sas = sas_of(gateways, 2);
        ["inbound", "outbound"].iter().all(|direction| {
            let mut of_way = sas.iter().filter(|sa| sa["direction"] == *direction);
            of_way.any(|sa| !before.contains(&sa["spi"]) && sa["packets"].as_u64() > Some(0))
        })
    };
    let end = Instant::now() + AGAIN;
    let mut again = Instant::now();
    while !is_done() {
        let story = || charons.iter().flatten().map(Charon::log).collect::<Vec<_>>().join("\n");
        assert!(Instant::now() < end, "no new keys: {:?}\n{}", sas_of(gateways, 2), story());
        if Instant::now() >= again {
            rekey(gateways, charons, (number, ["--child", "net"]));
            again = Instant::now() + AGAIN / 6;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Has the charon of gateway `number` change the keys of IKE itself, and waits until both charons
/// have changed them.
fn rekey_ike(gateways: &Gateways, charons: &[Option<Charon>; 2], number: u8) {
    let changes = || {
        let logs = charons.iter().flatten().map(Charon::log);
        logs.map(|log| log.matches("rekeyed between").count()).collect::<Vec<_>>()
    };
    let before = changes();
    rekey(gateways, charons, (number, ["--ike", "gw"]));
    wait_for("new keys of IKE", || changes().iter().zip(&before).all(|(now, before)| now > before));
}

/// Asks the charon of a gateway for new keys.
fn rekey(
    gateways: &Gateways,
    charons: &[Option<Charon>; 2],
    (number, [kind, name]): (u8, [&str; 2]),
) {
    let charon = charons[usize::from(number - 1)].as_ref().expect("a charon that runs");
    let words = ["--rekey", kind, name];
    charon.swanctl(&gateways.site(number).gateway, &words).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn the_first_packet_waits_for_its_keys_and_none_is_lost_when_they_change() {
    let Some(mut place) = Place::build("the_first_packet_waits", |_| ()) else { return };
    assert!(place.sas(1).is_empty(), "a trap makes no SA");
    // charon puts a trap again before it takes the one that it replaces away.
    place.swanctl(1, &["--install", "--child", "net"]);
    let to = place.lab.gateways.site(2).host_v4();
    // Five packets wait for keys; nobody sends a lost packet again.
    let host = &place.lab.gateways.site(1).host;
    let answers = Ping::new(&to, 5).run_at_once(host).unwrap();
    assert!(answers.all_answered(), "{}\n{}", answers.text, place.story());
    let owners: Vec<Value> = place.sas(1).iter().map(|sa| sa["owner"].clone()).collect();
    assert_eq!(owners, ["ike", "ike"]);
    place.shows_names();
    assert_eq!(place.events(1, "acquire").len(), 1);
    let Place { lab, charons, .. } = &mut place;
    let quarry = lab.hunt(|gateways| {
        for _ in 0..5 {
            rekey_child(gateways, charons, 1);
        }
    });
    for stream in &quarry.streams {
        assert_eq!(stream.lost(), 0, "of {}", stream.sent.len());
    }
    // The first pair and five others, each with numbers of its own.
    assert!(quarry.wire.spis().len() >= 12, "{:?}", quarry.wire.spis());
    // charon reads what the SAs count.
    let listed = place.swanctl(1, &["--list-sas"]);
    assert!(listed.contains("AES_GCM_16-256/ESN") && listed.contains(" packets"), "{listed}");
    wait_for("old SAs go", || place.sas(1).len() == 2);
    // The successors have them too.
    place.shows_names();
    place.lab.balances();
}

#[test]
fn after_a_crash_of_the_daemon_no_key_comes_again_and_traffic_goes_on() {
    let Some(mut place) = Place::build("after_a_crash", |_| ()) else { return };
    place.lab.flows_again();
    let before: Vec<Value> = place.sas(1).iter().map(|sa| sa["spi"].clone()).collect();
    // Nothing in clear, and no number twice under one SPI: the hunt looks.
    place.lab.hunt(|gateways| {
        for _ in 0..2 {
            gateways.kill(1);
            gateways.start(1).unwrap();
            std::thread::sleep(Duration::from_secs(3));
        }
    });
    place.lab.flows_again();
    let after: Vec<Value> = place.sas(1).iter().map(|sa| sa["spi"].clone()).collect();
    assert!(after.iter().all(|spi| !before.contains(spi)), "{before:?} {after:?}");
}

#[test]
fn sas_outlive_a_charon_and_one_that_begins_anew_replaces_them() {
    let Some(mut place) = Place::build("sas_outlive", |_| ()) else { return };
    place.lab.flows_again();
    let before = place.sas(1);
    place.charons[0].as_mut().expect("it runs").kill();
    wait_for("charon is gone", || !place.events(1, "charon_gone").is_empty());
    let to = place.lab.gateways.site(2).host_v4();
    let host = &place.lab.gateways.site(1).host;
    let answers = Ping::new(&to, 5).run_until_answered(host).unwrap();
    assert!(answers.all_answered(), "{}", answers.text);
    assert_eq!(place.sas(1).len(), before.len());
    place.start_charon(1).unwrap();
    let spi = |sas: &[Value]| -> Vec<Value> {
        let outbound = sas.iter().filter(|sa| sa["direction"] == "outbound");
        outbound.map(|sa| sa["spi"].clone()).collect()
    };
    // Nobody asks charon but the daemon, once there is a trap.
    let is_replaced = || {
        let after = spi(&place.sas(1));
        after.len() == 1 && after != spi(&before)
    };
    wait_for("the old one is replaced", is_replaced);
    place.lab.flows_again();
}

#[test]
fn a_child_that_leaves_out_packets_of_the_policy_is_refused_and_nothing_goes_in_clear() {
    let narrow = |child: &mut ChildPlan| child.selectors[1] = "10.2.0.0/24".into();
    let Some(mut place) = Place::build("a_child_that_leaves_out", narrow) else { return };
    let capture = place.lab.gateways.capture(netlab::Scope::Heads).unwrap();
    let to = place.lab.gateways.site(2).host_v4();
    let answers = Ping::new(&to, 3).run(&place.lab.gateways.site(1).host).unwrap();
    assert_eq!(answers.received, 0, "{}", answers.text);
    // The gateway that answers is the first that is asked to install it.
    let refused = || place.events(2, "charon_refused");
    let end = std::time::Instant::now() + AGAIN;
    let says_why = |event: &Value| {
        event["message"].as_str().is_some_and(|text| text.contains("leave out packets of policy"))
    };
    while !refused().iter().any(says_why) {
        assert!(std::time::Instant::now() < end, "{}", place.story());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(place.sas(1).is_empty() && place.sas(2).is_empty());
    let wire = netlab::Tally::of(&capture.stop().unwrap()).unwrap();
    assert_eq!((wire.esp, wire.clear), (0, 0), "{wire:?}");
}

#[test]
fn a_child_whose_sa_was_deleted_ends_at_both_gateways_and_comes_again() {
    let Some(place) = Place::build("a_child_whose_sa_was_deleted", |_| ()) else { return };
    place.lab.flows_again();
    let before: Vec<Value> = place.sas(1).iter().map(|sa| sa["spi"].clone()).collect();
    let outbound = place.sas(1).into_iter().find(|sa| sa["direction"] == "outbound").unwrap();
    place.ask(1, &["sa", "del", outbound["spi"].as_str().unwrap()]);
    // charon tells the other one, too.
    let is_old = |sas: &[Value]| sas.iter().any(|sa| before.contains(&sa["spi"]));
    wait_for("the child ends", || !is_old(&place.sas(1)) && !is_old(&place.sas(2)));
    place.lab.flows_again();
    place.lab.balances();
}

#[test]
fn what_import_writes_for_charons_own_file_carries_the_traffic() {
    let Some(place) = Place::build("what_import_writes", |_| ()) else { return };
    let directory = place.lab.gateways.directory().to_owned();
    let theirs = directory.join("charon-1/swanctl.conf").display().to_string();
    let lockgate = place.lab.gateways.daemon(1).unwrap().command(&[]);
    let mut import = std::process::Command::new(lockgate.get_program());
    let imported = import.args(["import", "swanctl", &theirs]).output().unwrap();
    assert!(imported.status.success(), "{imported:?}");
    let text = String::from_utf8(imported.stdout).unwrap();
    let sections = &text[text.find("\n[peer.").expect(&text)..];
    let ours = std::fs::read_to_string(place.lab.gateways.file(1).path()).unwrap();
    let rest = &ours[..ours.find("\n[peer.").expect(&ours)];
    let file = directory.join("imported.toml");
    std::fs::write(&file, format!("{rest}{sections}")).unwrap();
    place.lab.gateways.daemon(1).unwrap().apply(&file).unwrap_or_else(|error| panic!("{error}"));
    let to = place.lab.gateways.site(2).host_v4();
    let host = &place.lab.gateways.site(1).host;
    let answers = Ping::new(&to, 5).run_at_once(host).unwrap();
    assert!(answers.all_answered(), "{}\n{}", answers.text, place.story());
    let sas = place.sas(1);
    assert!(sas.iter().all(|sa| sa["peer"] == "gw" && sa["owner"] == "ike"), "{sas:?}");
    place.lab.balances();
}

#[test]
fn a_tunnel_that_charon_alone_describes_waits_for_its_keys_and_ends_with_its_policy() {
    let bounds = |PeerEntry { local, remote, ours, theirs, .. }: &PeerEntry| {
        format!(
            "\n[ike]\nends = [\"{local}\"]\npeers = [\"{remote}\"]\nlocal = {ours:?}\n\
             remote = {theirs:?}\nsuites = [\"{SUITE}\"]\n"
        )
    };
    let test = "a_tunnel_that_charon_alone";
    let wish = Wish { instead: Some(&bounds), ..Wish::default() };
    let Some(lab) = lab(test, Plan::default()) else { return };
    let Some(mut place) = Place::of(test, lab, &wish) else { return };
    let peers = |place: &Place| -> Vec<Value> {
        let shown = place.lab.gateways.daemon(1).unwrap().ask(&["show", "peer"]).unwrap();
        let peers = shown["peers"].as_array().cloned().unwrap_or_default();
        peers.iter().map(|peer| peer["name"].clone()).collect()
    };
    assert_eq!(peers(&place), ["ike:1"], "{}", place.story());
    assert!(place.sas(1).is_empty(), "a trap makes no SA");
    place.swanctl(1, &["--install", "--child", "net"]);
    assert_eq!(peers(&place), ["ike:1"], "{}", place.story());
    let capture = place.lab.gateways.capture(netlab::Scope::Heads).unwrap();
    let to = place.lab.gateways.site(2).host_v4();
    let host = &place.lab.gateways.site(1).host;
    let answers = Ping::new(&to, 5).run_at_once(host).unwrap();
    assert!(answers.all_answered(), "{}\n{}", answers.text, place.story());
    let wire = netlab::Tally::of(&capture.stop().unwrap()).unwrap();
    assert!(wire.esp >= 10 && wire.clear == 0, "{wire:?}");
    // Keys change under a stream.
    let Place { lab, charons, .. } = &mut place;
    let quarry = lab.hunt(|gateways| {
        rekey_child(gateways, charons, 1);
    });
    for stream in &quarry.streams {
        assert_eq!(stream.lost(), 0, "of {}", stream.sent.len());
    }
    // Without SAs the trap keeps packets back; without it there is no policy at all.
    place.swanctl(1, &["--uninstall", "--child", "net"]);
    place.swanctl(1, &["--terminate", "--child", "net"]);
    wait_for("charon's peer goes", || peers(&place).is_empty());
    let capture = place.lab.gateways.capture(netlab::Scope::Heads).unwrap();
    let answers = Ping::new(&to, 5).run(&place.lab.gateways.site(1).host).unwrap();
    assert_eq!(answers.received, 0, "{}", answers.text);
    let wire = netlab::Tally::of(&capture.stop().unwrap()).unwrap();
    assert_eq!((wire.esp, wire.clear), (0, 0), "{wire:?}");
    place.lab.balances();
}
