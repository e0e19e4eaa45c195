//! `lockgate demo replay`: a hub and two spokes as replays of captures.
//!
//! A round:
//! 1. the hosts behind all gateways speak with each other; B also claims C's addresses
//! 2. the spokes' gateways seal what their hosts send
//! 3. the hub gets that, what its own host sends, and what an attacker adds
//! 4. the spokes open what the hub sends them
//! 5. what arrived is compared with what was sent, everything else is counted

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use console::failure::Form;
use console::output::{complain, counted, print, print_json};
use dataplane::DropReason;
use replay::Report;
use tempfile::TempDir;
use wire::build::PacketBuilder;
use wire::link::ETHERNET_BYTES;

use super::compare::{IcmpError, Wire, arrived, quotes, told};
use super::laboratory::{Laboratory, START_NS, Seen, Site, new_directory};
use super::report::{Check, DemoReport};
use super::traffic::{Fate, Parcel, Traffic};
use crate::failure::{Failure, Usage};

/// Packets that a host sends at the same time; the walk takes them as one batch.
const BURST: usize = 24;
/// Time between two bursts.
const BURST_NS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Packets of a spoke that the attacker damages, and as many under another SPI.
const DAMAGED: usize = 8;
/// Clear packets that the attacker sends in each family.
const CLEAR: u16 = 10;

/// Runs rounds until `seconds` have passed, at least one, and reports. Fails if a check does.
pub(super) fn run(seconds: u64, keep: Option<&Path>, form: Form) -> Result<(), Failure> {
    let began = Instant::now();
    let directory = Directory::create(keep)?;
    let mut round = 0;
    let mut last_said = began;
    let report = loop {
        let place = directory.path().join(format!("round-{round}"));
        let report = Round::play(round, &place)?.judge(round + 1);
        if round > 0 && last_said.elapsed() >= Duration::from_secs(1) {
            last_said = Instant::now();
            say(&format!("round {}: {}", round + 1, if report.ok { "ok" } else { "FAILED" }));
        }
        let finished = began.elapsed() >= Duration::from_secs(seconds) || !report.ok;
        if finished {
            break report;
        }
        std::fs::remove_dir_all(&place).map_err(Failure::file(&place))?;
        round += 1;
    };
    match form {
        Form::Json => print_json(&report),
        Form::Text => print(&report.text()),
    }?;
    if let Directory::Kept(path) = &directory {
        say(&format!("everything lies in {}", path.display()));
    }
    if report.ok { Ok(()) } else { Err(Failure::Bad) }
}

/// Progress, apart from the answer; later rounds tell less.
fn say(text: &str) {
    complain(&format!("demo: {text}\n"));
}

/// Directory of the rounds' files: keys and decrypted packets, so nobody else may get in.
enum Directory {
    /// New, under a name that nobody can guess; removed at the end.
    Temporary(TempDir),
    /// A directory that is kept.
    Kept(PathBuf),
}

impl Directory {
    fn create(keep: Option<&Path>) -> Result<Directory, Failure> {
        if let Some(path) = keep {
            return keep_in(path).map(|()| Directory::Kept(path.to_owned()));
        }
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix("lockgate-demo-").permissions(Permissions::from_mode(0o700));
        let created = builder.tempdir();
        created.map(Directory::Temporary).map_err(Failure::file(std::env::temp_dir()))
    }

    fn path(&self) -> &Path {
        match self {
            Directory::Temporary(directory) => directory.path(),
            Directory::Kept(path) => path,
        }
    }
}

/// Makes the directory, or sees that it is empty and that nobody but us can write to it.
fn keep_in(path: &Path) -> Result<(), Failure> {
    match new_directory(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        done => return done.map_err(Failure::file(path)),
    }
    let directory = || path.to_owned();
    let metadata = std::fs::symlink_metadata(path).map_err(Failure::file(path))?;
    let ours = config::effective_user() == Some(metadata.uid());
    if !metadata.is_dir() || !ours || metadata.mode() & 0o022 != 0 {
        return Err(Usage::NotOurs { directory: directory() }.into());
    }
    match std::fs::read_dir(path).map_err(Failure::file(path))?.next() {
        None => Ok(()),
        Some(_) => Err(Usage::NotEmpty { directory: directory() }.into()),
    }
}

/// The result of a round.
struct Round {
    parcels: Vec<Parcel>,
    attack: Attack,
    /// The spokes sealing: B, C.
    sent: [Report; 2],
    hub: Report,
    /// The spokes opening: B, C.
    got: [Report; 2],
    /// Frames that each site's host received, in order.
    hosts: [Vec<Seen>; 3],
    /// Packets of the unprotected link, without the attacker's frames.
    wan: Vec<Seen>,
    /// True if a configured key appears among those that sealed.
    configured_key_used: bool,
}

/// Frames that the attacker sends to the hub.
struct Attack {
    frames: Vec<Seen>,
    /// Number of frames that must be dropped, by reason.
    expected: BTreeMap<DropReason, u64>,
}

impl Round {
    fn play(number: u64, directory: &Path) -> Result<Round, Failure> {
        let say = |text: &str| {
            if number == 0 {
                say(text)
            }
        };
        say("gateways a (hub), b and c with fresh keys");
        let laboratory = Laboratory::build(directory)?;
        let parcels = Traffic::build(number);
        for site in Site::ALL {
            laboratory.write(&format!("{}-lan.pcap", site.letter()), &sent_by(&parcels, site))?;
        }
        let count = counted(parcels.len() as u64, "packet");
        say(&format!("the hosts send {count}: TCP, UDP, ICMP, fragments, odd ones, forged ones"));
        let send = |site: Site| {
            let letter = site.letter();
            let lan = format!("{letter}-lan.pcap");
            laboratory.replay(site, &[("lan", &lan)], &[], &format!("{letter}-sent.pcap"))
        };
        let sent = [send(Site::B)?, send(Site::C)?];
        let sealed = ["b-sent.wan.pcap", "c-sent.wan.pcap"];
        let [from_b, from_c] = [laboratory.read(sealed[0])?, laboratory.read(sealed[1])?];
        say(&format!("b and c seal {} and {} packets", from_b.len(), from_c.len()));

        let attack = Attack::plan(&from_b, &from_c);
        laboratory.write("attack.pcap", &attack.frames)?;
        say(&format!("an attacker adds {} frames", attack.frames.len()));
        let hub = laboratory.replay(
            Site::A,
            &[
                ("lan", "a-lan.pcap"),
                ("wan", "attack.pcap"),
                ("wan", sealed[0]),
                ("wan", sealed[1]),
            ],
            &["b-sent.keys", "c-sent.keys"],
            "hub.pcap",
        )?;
        let from_hub = laboratory.read("hub.wan.pcap")?;
        say(&format!("the hub sends {} frames to its spokes", from_hub.len()));

        let receive = |site: Site| {
            let letter = site.letter();
            let own: Vec<Seen> =
                from_hub.iter().filter(|seen| is_for(seen, site.wan_mac())).cloned().collect();
            let file = format!("hub-to-{letter}.pcap");
            laboratory.write(&file, &own)?;
            let output = format!("{letter}-got.pcap");
            laboratory.replay(site, &[("wan", &file)], &["hub.keys"], &output)
        };
        let got = [receive(Site::B)?, receive(Site::C)?];
        let spoke_host = |letter: char| -> Result<Vec<Seen>, Failure> {
            let mut seen = laboratory.read(&format!("{letter}-sent.lan.pcap"))?;
            seen.extend(laboratory.read(&format!("{letter}-got.lan.pcap"))?);
            Ok(seen)
        };
        let hosts = [laboratory.read("hub.lan.pcap")?, spoke_host('b')?, spoke_host('c')?];
        let mut wan = [from_b, from_c, from_hub].concat();
        for again in ["b-got.wan.pcap", "c-got.wan.pcap"] {
            wan.extend(laboratory.read(again)?);
        }
        say("comparing what arrived with what was sent");
        let configured_key_used = configured_key_used(&laboratory)?;
        Ok(Round { parcels, attack, sent, hub, got, hosts, wan, configured_key_used })
    }

    /// All checks of the round.
    fn judge(&self, rounds: u64) -> DemoReport {
        let mut wire = Wire::default();
        let bypassed = self.parcels.iter().filter_map(|parcel| match &parcel.fate {
            Fate::Bypassed(packet) => Some(packet.clone()),
            _ => None,
        });
        let mut bypassed: Vec<Vec<u8>> = bypassed.collect();
        wire.count(&self.wan, &mut bypassed);
        let replays = self.replays();
        let imbalance: i64 = replays
            .iter()
            .flat_map(|(_, report)| &report.ledger)
            .map(|line| line.imbalance.abs())
            .sum();
        let checks = vec![
            self.identity("hub and spokes: what arrives is what was sent", HUB_WAYS),
            self.identity("spoke to spoke through the hub: the same", SPOKE_WAYS),
            self.clamped(),
            self.answers("too big with DF set: told the right MTU", ExpectedError::TooBig),
            self.answers("hop limit used up: told so", ExpectedError::TimeExceeded),
            in_clear(&wire, &bypassed),
            self.forged(),
            self.attacked(),
            self.nothing_else_dropped(),
            Check {
                name: "no configured key sealed anything",
                ok: !self.configured_key_used,
                detail: "each replay seals under fresh random keys".into(),
            },
            Check {
                name: "every ledger balances",
                ok: imbalance == 0,
                detail: format!("{} replays, imbalance {imbalance}", replays.len()),
            },
        ];
        DemoReport::new("replay", rounds, checks, wire, &replays)
    }

    fn replays(&self) -> [(&'static str, &Report); 5] {
        [
            ("b seals", &self.sent[0]),
            ("c seals", &self.sent[1]),
            ("hub", &self.hub),
            ("b opens", &self.got[0]),
            ("c opens", &self.got[1]),
        ]
    }

    /// Byte for byte: hop limits and MSS as they must be, nothing else changed, nothing missing,
    /// in order.
    fn identity(&self, name: &'static str, ways: &[(Site, Site)]) -> Check {
        let mut packets = 0;
        for (from, to) in ways {
            match arrived(&self.parcels, *from, *to, &self.hosts[*to as usize]) {
                Ok(compared) => packets += compared,
                Err(error) => {
                    let (from, to) = (from.letter(), to.letter());
                    let detail = format!("from {from} to {to}: {error}");
                    return Check { name, ok: false, detail };
                }
            }
        }
        let detail = format!("{packets} packets, byte for byte but hop limit and MSS of SYNs");
        Check { name, ok: packets > 0, detail }
    }

    /// The SYNs were compared with the rest; this one says that there were some to clamp.
    fn clamped(&self) -> Check {
        let mut changed = 0;
        let mut ok = true;
        for parcel in self.parcels.iter().filter(|parcel| parcel.what.contains("to clamp")) {
            let Fate::Arrives(to, expected) = &parcel.fate else { continue };
            let mss = |packet: &[u8]| packet[packet.len() - 2..].to_vec();
            let frames = &self.hosts[*to as usize];
            let arrived = frames.iter().any(|seen| seen.frame.ends_with(expected));
            ok &= arrived && mss(expected) != mss(&parcel.packet);
            changed += 1;
        }
        let detail = format!("{changed} SYNs, each with exactly what the narrowest tunnel carries");
        Check { name: "the MSS of SYNs is clamped", ok: ok && changed > 0, detail }
    }

    /// Every sender was told what it must be told, once, and of nothing else.
    fn answers(&self, name: &'static str, wanted: ExpectedError) -> Check {
        let mut expected = 0;
        let mut mtus: Vec<u32> = Vec::new();
        let mut heard = Vec::new();
        for site in Site::ALL {
            match told(site, &self.hosts[site as usize]) {
                Ok(errors) => {
                    heard.extend(errors.into_iter().map(|(told, quote)| (site, told, quote)))
                }
                Err(error) => return Check { name, ok: false, detail: error.to_string() },
            }
        }
        heard.retain(|(_, told, _)| wanted.is(*told));
        let all = heard.len();
        for parcel in &self.parcels {
            let answer = match (&parcel.fate, wanted) {
                (Fate::TooBig { mtu, .. }, ExpectedError::TooBig) => IcmpError::TooBig(*mtu),
                (Fate::TimeExceeded { .. }, ExpectedError::TimeExceeded) => IcmpError::TimeExceeded,
                _ => continue,
            };
            expected += 1;
            if let IcmpError::TooBig(mtu) = answer {
                mtus.push(mtu);
            }
            let place = heard.iter().position(|(site, told, quote)| {
                *site == parcel.from && *told == answer && quotes(quote, &parcel.packet)
            });
            let Some(place) = place else {
                let from = parcel.from.letter();
                let detail = format!("{} from {from}: its sender was not told", parcel.what);
                return Check { name, ok: false, detail };
            };
            heard.swap_remove(place);
        }
        mtus.sort_unstable();
        mtus.dedup();
        let mtus: Vec<String> = mtus.iter().map(u32::to_string).collect();
        let which =
            if mtus.is_empty() { String::new() } else { format!(", MTU {}", mtus.join(" or ")) };
        let detail = format!("{all} ICMP messages for {expected} packets{which}");
        Check { name, ok: heard.is_empty() && expected > 0, detail }
    }

    /// B's packets under C's addresses end at the hub.
    fn forged(&self) -> Check {
        let forged: Vec<&Parcel> =
            self.parcels.iter().filter(|parcel| parcel.what == "forged").collect();
        let dropped = dropped(&self.hub, DropReason::SelectorMismatch);
        // Behind the link header, from the transport header on: nobody changes that.
        let arrived = forged.iter().filter(|parcel| {
            let end = &parcel.packet[parcel.packet.len() - 100..];
            self.hosts.iter().flatten().any(|seen| seen.frame.ends_with(end))
        });
        let arrived = arrived.count();
        let sealed = dropped == forged.len() as u64;
        let detail = format!(
            "{} forged by b as from c: {dropped} dropped by the hub as selector_mismatch, \
             {arrived} arrived",
            forged.len(),
        );
        Check { name: "one peer cannot speak for another", ok: sealed && arrived == 0, detail }
    }

    /// All that the attacker sent was dropped, each for its reason.
    fn attacked(&self) -> Check {
        let mut expected = expected_drops(&self.parcels, Site::A);
        for (reason, packets) in &self.attack.expected {
            *expected.entry(*reason).or_default() += packets;
        }
        let reasons = self.attack.expected.iter().map(|(reason, packets)| {
            let right = dropped(&self.hub, *reason) == expected[reason];
            (right, format!("{packets} {reason}"))
        });
        let (right, words): (Vec<bool>, Vec<String>) = reasons.unzip();
        let ok = right.iter().all(|right| *right);
        let name = "replayed, damaged, foreign and clear packets are dropped";
        Check { name, ok, detail: words.join(", ") }
    }

    /// Drops of every replay are exactly those that the traffic must cause.
    fn nothing_else_dropped(&self) -> Check {
        let name = "every drop is one that must be";
        let none = BTreeMap::new();
        let mut at_hub = expected_drops(&self.parcels, Site::A);
        for (reason, packets) in &self.attack.expected {
            *at_hub.entry(*reason).or_default() += packets;
        }
        let expected = [
            expected_drops(&self.parcels, Site::B),
            expected_drops(&self.parcels, Site::C),
            at_hub,
            none.clone(),
            none,
        ];
        let mut total = 0;
        for ((replay, report), expected) in self.replays().into_iter().zip(expected) {
            for reason in DropReason::ALL {
                let found = dropped(report, *reason);
                let right = expected.get(reason).copied().unwrap_or(0);
                if found != right {
                    let detail = format!("{replay}: {found} {reason} instead of {right}");
                    return Check { name, ok: false, detail };
                }
                total += found;
            }
        }
        Check { name, ok: true, detail: format!("{total} drops, each foreseen with its reason") }
    }
}

const HUB_WAYS: &[(Site, Site)] =
    &[(Site::A, Site::B), (Site::A, Site::C), (Site::B, Site::A), (Site::C, Site::A)];
const SPOKE_WAYS: &[(Site, Site)] = &[(Site::B, Site::C), (Site::C, Site::B)];

/// The kind of ICMP error that a check is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExpectedError {
    TooBig,
    TimeExceeded,
}

impl ExpectedError {
    fn is(self, told: IcmpError) -> bool {
        matches!(
            (self, told),
            (ExpectedError::TooBig, IcmpError::TooBig(_))
                | (ExpectedError::TimeExceeded, IcmpError::TimeExceeded)
        )
    }
}

fn in_clear(wire: &Wire, not_seen: &[Vec<u8>]) -> Check {
    let Wire { esp, bypassed, clear, readable } = wire;
    Check {
        name: "nothing in clear on the unprotected side",
        ok: *clear == 0 && *readable == 0 && *esp > 0 && not_seen.is_empty(),
        detail: format!(
            "{esp} ESP, {bypassed} by a BYPASS policy, {clear} others; {readable} with readable \
             payload"
        ),
    }
}

fn dropped(report: &Report, reason: DropReason) -> u64 {
    let line = report.drops.iter().find(|line| line.reason == reason.name());
    line.map_or(0, |line| line.packets)
}

/// Returns the number of packets that a gateway must drop of the hosts' traffic, by reason.
fn expected_drops(parcels: &[Parcel], gateway: Site) -> BTreeMap<DropReason, u64> {
    let mut drops = BTreeMap::new();
    for parcel in parcels {
        let (by, reason) = match &parcel.fate {
            Fate::Dropped { by, reason } => (*by, *reason),
            Fate::TooBig { by, .. } => (*by, DropReason::TooBig),
            Fate::TimeExceeded { by } => (*by, DropReason::HopLimit),
            Fate::Arrives(..) | Fate::InPieces(..) | Fate::Bypassed(_) => continue,
        };
        if by == gateway {
            *drops.entry(reason).or_default() += 1;
        }
    }
    drops
}

/// The frames that a site's host sends.
fn sent_by(parcels: &[Parcel], site: Site) -> Vec<Seen> {
    let own = parcels.iter().filter(|parcel| parcel.from == site);
    let frame = |(place, parcel): (usize, &Parcel)| Seen {
        time_ns: START_NS + (place / BURST) as u64 * BURST_NS,
        frame: framed(site.lan_mac(), site.host_mac(), &parcel.packet),
    };
    own.enumerate().map(frame).collect()
}

fn framed(destination: [u8; 6], source: [u8; 6], packet: &[u8]) -> Vec<u8> {
    let ethertype = match packet.first().map_or(0, |first| first >> 4) {
        4 => wire::link::ethertype::IPV4,
        _ => wire::link::ethertype::IPV6,
    };
    [&destination[..], &source, &ethertype.to_be_bytes(), packet].concat()
}

fn is_for(seen: &Seen, mac: [u8; 6]) -> bool {
    seen.frame.starts_with(&mac)
}

impl Attack {
    /// Plans the attack: before the spokes' traffic, damaged copies of it, copies under another
    /// SPI, and cleartext packets; a minute later all of it again.
    fn plan(from_b: &[Seen], from_c: &[Seen]) -> Attack {
        let (mut frames, mut expected) = (Vec::new(), BTreeMap::new());
        let mut add = |time_ns: u64, frame: Vec<u8>, reason: DropReason| {
            frames.push(Seen { time_ns, frame });
            *expected.entry(reason).or_default() += 1;
        };
        let before = START_NS - SECOND_NS;
        for (spoke, outer_header) in [(from_b, 20), (from_c, 40)] {
            for (place, seen) in spoke.iter().take(DAMAGED).enumerate() {
                let mut frame = seen.frame.clone();
                // In turn the ICV, and the text before it.
                let at = frame.len() - if place % 2 == 0 { 1 } else { 17 };
                frame[at] ^= 0x40;
                add(before, frame, DropReason::Integrity);
                let mut frame = seen.frame.clone();
                frame[ETHERNET_BYTES + outer_header] ^= 0x55;
                add(before, frame, DropReason::UnknownSpi);
            }
        }
        let [hub, router] = [Site::A.wan_mac(), [2, 0, 0, 0, 0, 0xfe]];
        let mut clear = |builder: PacketBuilder, reason| {
            add(before, framed(hub, router, &builder.udp(40_000, 5000).ip()), reason);
        };
        for _ in 0..CLEAR {
            let [b, a] = [Site::B, Site::A];
            let forged = [(b.host_v4(), a.host_v4()), (b.host_v6(), a.host_v6())];
            for (source, destination) in forged {
                clear(PacketBuilder::new(source, destination), DropReason::Unprotected);
            }
            clear(PacketBuilder::v4("203.0.113.5", "10.1.0.10"), DropReason::NoMatch);
        }
        for seen in from_b.iter().chain(from_c) {
            add(seen.time_ns + 60 * SECOND_NS, seen.frame.clone(), DropReason::Replayed);
        }
        frames.sort_by_key(|seen| seen.time_ns);
        Attack { frames, expected }
    }
}

/// Returns whether the key of a configured SA is among the keys that replays sealed with.
fn configured_key_used(laboratory: &Laboratory) -> Result<bool, Failure> {
    let read = |name: &str| {
        let file = laboratory.file(name);
        std::fs::read_to_string(&file).map_err(Failure::file(file))
    };
    let sealed = ["b-sent.keys", "c-sent.keys", "hub.keys", "b-got.keys", "c-got.keys"];
    let sealed = sealed.into_iter().map(read).collect::<Result<Vec<String>, Failure>>()?;
    for name in ["a-b.keys", "b-a.keys", "a-c.keys", "c-a.keys"] {
        let text = read(name)?;
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        for key in lines.filter_map(|line| line.split_whitespace().nth(2)) {
            if sealed.iter().any(|sealed| sealed.contains(key)) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
