//! Examines what a netdev can do as a port.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bpf::Owner;
use console::output::{Numbers, table};
use dataplane::{FRAME_BYTES, largest_mtu};
use nix::net::if_::if_nameindex;
use serde::Serialize;

/// Largest MTU that drivers commonly take a program for, whose packets lie in one page.
const ONE_PAGE_MTU: u32 = 3498;

/// A netdev.
#[derive(Debug, Default, Serialize)]
pub(super) struct Netdev {
    pub(super) name: String,
    ifindex: u32,
    /// Empty: the kernel does not say.
    driver: String,
    mac: String,
    /// Bytes; `None`: unknown, because /sys shows another network namespace.
    mtu: Option<u32>,
    up: Option<bool>,
    rx_queues: Option<usize>,
    tx_queues: Option<usize>,
    /// True if its driver takes native XDP programs that redirect.
    native_xdp: Option<bool>,
    zero_copy: Option<bool>,
    /// A card that can take rules over from the gateway.
    card: CardSupport,
    /// The XDP program it runs: its name, and `(Lockgate)` or `(foreign)`.
    program: String,
    /// Reasons why it cannot be a port.
    refusals: Vec<String>,
    /// Remarks on its use as a port.
    notes: Vec<String>,
}

/// The support of cards on a netdev.
#[derive(Debug, Default, Serialize)]
struct CardSupport {
    /// `no`, `emulated` or `unknown`.
    supported: &'static str,
    /// The reason, or what it takes.
    why: String,
}

impl CardSupport {
    /// The support on a netdev of this driver; one made by a process may be an emulated card's.
    fn of(driver: &str, maker: Maker) -> CardSupport {
        match (maker, driver) {
            (Maker::Process, _) => CardSupport {
                supported: "emulated",
                why: "if lockgate-emulated-card made it: name its socket in [card.NAME]".into(),
            },
            (Maker::Kernel, "") => {
                CardSupport { supported: "no", why: "no card is behind it".into() }
            }
            (Maker::Kernel, driver) => CardSupport {
                supported: "no",
                why: format!("Lockgate gives cards of driver {driver} nothing yet"),
            },
        }
    }
}

/// The maker of a netdev.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Maker {
    /// A driver, or the kernel itself.
    Kernel,
    /// A process: a TUN or TAP netdev.
    Process,
}

/// All netdevs of this network namespace but loopback and the host port.
pub(super) fn all() -> Vec<Netdev> {
    let Ok(list) = if_nameindex() else { return Vec::new() };
    let named = list.iter().map(|one| (one.name().to_string_lossy().into_owned(), one.index()));
    let ports = named.filter(|(name, _)| name != "lo" && name != config::HOST_NETDEV);
    ports.map(|(name, ifindex)| look(name, ifindex)).collect()
}

fn look(name: String, ifindex: u32) -> Netdev {
    let mut netdev = Netdev { name, ifindex, ..Netdev::default() };
    if let Some(features) = bpf::driver_features(ifindex) {
        netdev.native_xdp = Some(features.native && features.redirect);
        netdev.zero_copy = Some(features.zero_copy);
        if !(features.native && features.redirect) {
            netdev.notes.push("its driver has no native XDP: generic mode, slower".into());
        }
    }
    match bpf::attached(ifindex) {
        Ok(Some(program)) => {
            let owner = match program.owner {
                Owner::Lockgate => "Lockgate",
                Owner::Foreign => "foreign",
            };
            netdev.program = format!("{} ({owner}, {})", program.name, program.mode);
            if program.owner == Owner::Foreign {
                let refusal = format!("has an XDP program of another owner, {}", program.name);
                netdev.refusals.push(refusal);
            }
        }
        Ok(None) => {}
        Err(error) => netdev.notes.push(format!("its XDP program is unknown: {error}")),
    }
    match Sysfs::of(&netdev.name, ifindex) {
        Some(sysfs) => sysfs.tell(&mut netdev),
        None => {
            netdev.card = CardSupport { supported: "unknown", why: String::new() };
            netdev.notes.push("/sys shows another network namespace: little is known".into());
        }
    }
    netdev.notes.extend(offloads(&netdev.name));
    netdev.notes.extend(unfinished_checksums(ifindex));
    netdev
}

/// A netdev's folder in /sys.
struct Sysfs(PathBuf);

impl Sysfs {
    /// `None` if the folder of that name is of another netdev: /sys shows the network namespace
    /// that it was mounted in.
    fn of(name: &str, ifindex: u32) -> Option<Sysfs> {
        let sysfs = Sysfs(Path::new("/sys/class/net").join(name));
        let same = sysfs.read("ifindex").and_then(|text| text.parse().ok()) == Some(ifindex);
        same.then_some(sysfs)
    }

    fn read(&self, file: &str) -> Option<String> {
        let text = fs::read_to_string(self.0.join(file)).ok()?;
        Some(text.trim().to_owned())
    }

    fn has(&self, file: &str) -> bool {
        self.0.join(file).exists()
    }

    fn queues(&self, prefix: &str) -> Option<usize> {
        let entries = fs::read_dir(self.0.join("queues")).ok()?.flatten();
        Some(entries.filter(|e| e.file_name().to_string_lossy().starts_with(prefix)).count())
    }

    fn tell(&self, netdev: &mut Netdev) {
        let driver = fs::read_link(self.0.join("device/driver")).ok();
        let driver = driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        netdev.driver = driver.unwrap_or_default();
        let maker = if self.has("tun_flags") { Maker::Process } else { Maker::Kernel };
        netdev.card = CardSupport::of(&netdev.driver, maker);
        netdev.mac = self.read("address").unwrap_or_default();
        netdev.mtu = self.read("mtu").and_then(|text| text.parse().ok());
        netdev.up = self.read("flags").and_then(|flags| {
            let flags = u32::from_str_radix(flags.strip_prefix("0x")?, 16).ok()?;
            Some(flags & 1 != 0)
        });
        netdev.rx_queues = self.queues("rx-");
        netdev.tx_queues = self.queues("tx-");
        if self.read("type").is_some_and(|kind| kind != "1") {
            netdev.refusals.push("is not Ethernet".into());
        }
        if self.has("bonding") {
            netdev.refusals.push("is a bond: make its members ports".into());
        }
        if self.has("brport") {
            netdev.refusals.push("is a bridge member: take it out of the bridge".into());
        }
        if self.has("bridge") {
            netdev.notes.push("is a bridge: generic mode only".into());
        }
        if netdev.mtu.is_some_and(|mtu| mtu > ONE_PAGE_MTU) {
            netdev.notes.push(format!(
                "its MTU is over {ONE_PAGE_MTU}: most drivers then refuse native XDP"
            ));
        }
        netdev.notes.extend(netdev.mtu.and_then(frame_note));
        if netdev.up == Some(false) {
            netdev.notes.push("is down".into());
        }
    }
}

/// Returns a note if packets of this MTU need frames larger than the smallest.
fn frame_note(mtu: u32) -> Option<String> {
    let [small, large] = FRAME_BYTES;
    let most = largest_mtu(large);
    match mtu <= largest_mtu(small) {
        true => None,
        false if mtu <= most => Some(format!(
            "its MTU is over {}: with it as a port, frames have {large} bytes instead of {small}",
            largest_mtu(small)
        )),
        false => Some(format!("its MTU is over {most}: no frame holds longer packets")),
    }
}

/// Offloads that hide or change packets before they are seen, by `ethtool` if it is there.
fn offloads(name: &str) -> Vec<String> {
    let Ok(ran) = Command::new("ethtool").args(["-k", name]).output() else { return Vec::new() };
    offload_notes(name, &String::from_utf8_lossy(&ran.stdout))
}

/// Notes about the offloads that `ethtool -k` shows as on.
fn offload_notes(name: &str, features: &str) -> Vec<String> {
    let is_on = |feature: &str| {
        let value =
            features.lines().find_map(|line| line.trim().strip_prefix(feature)?.strip_prefix(':'));
        value.is_some_and(|value| value.trim_start().starts_with("on"))
    };
    let minded = [
        ("large-receive-offload", "its driver merges packets (LRO)", "lro"),
        ("rx-gro-hw", "its driver merges packets (rx-gro-hw)", "rx-gro-hw"),
        (
            "rx-vlan-offload",
            "its driver strips VLAN tags, and a port with `vlan` is refused if that stays on",
            "rxvlan",
        ),
    ];
    let name = shell_word(name);
    let found = minded.iter().filter(|(feature, ..)| is_on(feature));
    found
        .map(|(_, what, flag)| {
            format!("{what}: lockgated switches it off; by hand: ethtool -K {name} {flag} off")
        })
        .collect()
}

/// A word as a shell reads it: a netdev may have almost any name.
fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '@');
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// Says what to do about senders that leave checksums to their device.
fn unfinished_checksums(ifindex: u32) -> Option<String> {
    let link = linux::read_link(ifindex).ok()??;
    let note = "senders behind it may leave TCP and UDP checksums unfinished: a protected port \
                completes them (l4_checksum); for an unprotected one run at the sender: \
                ethtool -K DEV tx off";
    link.kind.passes_unfinished_checksums().then(|| note.to_owned())
}

/// The netdevs as a table, and under it what to mind.
pub(super) fn text(netdevs: &[Netdev]) -> String {
    let number = |count: Option<usize>| count.map_or("?".into(), |count| count.to_string());
    let answer = |yes: Option<bool>| match yes {
        None => "unknown".to_owned(),
        Some(true) => "yes".into(),
        Some(false) => "no".into(),
    };
    let rows = netdevs.iter().map(|netdev| {
        vec![
            netdev.name.clone(),
            netdev.mtu.map_or("?".into(), |mtu| mtu.to_string()),
            number(netdev.rx_queues),
            number(netdev.tx_queues),
            answer(netdev.native_xdp),
            answer(netdev.zero_copy),
            if netdev.driver.is_empty() { "-".into() } else { netdev.driver.clone() },
            netdev.card.supported.to_owned(),
            if netdev.program.is_empty() { "-".into() } else { netdev.program.clone() },
        ]
    });
    let header = [
        "netdev",
        "MTU",
        "rx queues",
        "tx queues",
        "native XDP",
        "zero-copy",
        "driver",
        "card",
        "program",
    ];
    let mut text = table("Netdevs", &header, rows, Numbers(1..=3));
    for netdev in netdevs {
        let refusals = netdev.refusals.iter().map(|why| format!("cannot be a port: {why}"));
        let CardSupport { supported, why } = &netdev.card;
        let card = (!why.is_empty()).then(|| format!("card: {supported}: {why}"));
        for line in refusals.chain(netdev.notes.iter().cloned()).chain(card) {
            text.push_str(&format!(" {}: {line}\n", netdev.name));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    // HA-03
    #[test]
    fn each_netdev_says_whether_a_card_can_take_rules_and_why_not() {
        let netdev = |name: &str, card| Netdev { name: name.into(), card, ..Netdev::default() };
        let text = text(&[
            netdev("eth0", CardSupport::of("mlx5_core", Maker::Kernel)),
            netdev("veth0", CardSupport::of("", Maker::Kernel)),
            netdev("tap0", CardSupport::of("", Maker::Process)),
        ]);
        for line in [
            " eth0: card: no: Lockgate gives cards of driver mlx5_core nothing yet",
            " veth0: card: no: no card is behind it",
            " tap0: card: emulated: if lockgate-emulated-card made it",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn an_mtu_that_asks_for_larger_frames_is_noted() {
        assert_eq!((frame_note(1500), frame_note(1725)), (None, None));
        for mtu in [1726, 3773] {
            assert!(frame_note(mtu).unwrap().contains("4096 bytes instead of 2048"), "{mtu}");
        }
        assert!(frame_note(3774).unwrap().contains("no frame holds longer packets"));
    }

    #[test]
    fn offloads_that_are_on_are_told_with_the_line_that_switches_them_off() {
        let features = "Features for eth0:\nlarge-receive-offload: on\nrx-gro-hw: on [fixed]\n\
                        rx-vlan-offload: on\ngeneric-receive-offload: on\n";
        let by_hand = "lockgated switches it off; by hand: ethtool -K eth0";
        assert_eq!(
            offload_notes("eth0", features),
            [
                format!("its driver merges packets (LRO): {by_hand} lro off"),
                format!("its driver merges packets (rx-gro-hw): {by_hand} rx-gro-hw off"),
                format!(
                    "its driver strips VLAN tags, and a port with `vlan` is refused if that stays \
                     on: {by_hand} rxvlan off"
                ),
            ]
        );
        let off = features.replace(": on", ": off");
        assert!(offload_notes("eth0", &off).is_empty());
        let odd = offload_notes("a';reboot", "rx-gro-hw: on\n");
        assert!(odd[0].ends_with(r"ethtool -K 'a'\'';reboot' rx-gro-hw off"), "{odd:?}");
    }
}
