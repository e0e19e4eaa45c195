//! The configuration as text, and the key files beside it.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use config::{Location, escaped_line, validated};
use ipsec::{Fingerprint, KeyMaterial, Lifetime, Mode, Spi, Suite};
use policy::selector::protocol_text;
use policy::{Direction, PortRange, Selector, UpperSelector};
use zeroize::Zeroizing;

use crate::fill_in::MARK as FILL_IN;
use crate::model::{Effect, Entry, Foreigners, Offload, Sa};
use crate::order::{Placed, joined};
use crate::peers::{Common, NamedBy, Peer, Peers};
use crate::problem::Omissions;
use crate::{Imported, KeyFile, Options};

/// A policy's action as far as two policies can be twins: the peer, or the kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Act {
    Protect(usize),
    Bypass,
    Discard,
}

/// Writes everything but the omissions, which it adds to. `origin` is the command and the names of
/// the texts.
pub(crate) fn all(
    found: &Foreigners,
    mut peers: Peers,
    (options, origin): (&Options<'_>, &str),
    omissions: &mut Omissions,
) -> Imported {
    let commons: Vec<Option<Common>> =
        peers.list.iter_mut().map(|peer| peer.common(&found.sas, omissions)).collect();
    let mut text = head(found, options, origin);
    netdevs(&mut text, found, options, omissions);
    if let Some(flows) = found.flows {
        let flows = if flows == 0 { "off".to_owned() } else { flows.to_string() };
        put(&mut text, format_args!("\n[cache]\nflows = \"{flows}\"\n"));
    }
    let mut keys = Vec::new();
    let mut written_sas = 0;
    let mut ring = KeyRing::new(&found.sas);
    let keyed = peers.list.iter().zip(&commons);
    let keyed = keyed.filter(|(peer, common)| ring.has_any(peer, **common)).count();
    for (peer, common) in peers.list.iter().zip(&commons) {
        // No file serves two peers, not even one that is to be filled in.
        let is_only = peers.list.len() == 1 || (keyed == 1 && ring.has_any(peer, *common));
        let file = options.keys.as_ref().map(|plan| match is_only {
            true => plan.file.clone(),
            false => plan.of_peer(&peer.name),
        });
        let file = file.unwrap_or_else(|| format!("{}.keys", peer.name));
        text.push_str(&peer_text(peer, (*common, &found.sas), &file));
        if options.keys.is_some() {
            let made = ring.file(peer, *common, omissions);
            written_sas += made.as_ref().map_or(0, |(_, count)| *count);
            keys.extend(made.map(|(text, sas)| KeyFile {
                name: file,
                peer: peer.name.clone(),
                sas,
                text,
            }));
        } else {
            unkeyed(peer, &found.sas, omissions);
        }
    }
    let policies = policies(&mut text, found, &peers);
    omissions.0.sort_by(|one, other| one.place.cmp(&other.place));
    let sas = peers.list.iter().map(|peer| peer.sas.len()).sum();
    let (peers, keyed_sas) = (peers.list.len(), written_sas);
    let (omissions, to_fill_in) = (Vec::new(), Vec::new());
    Imported { text, keys, omissions, to_fill_in, peers, policies, sas, keyed_sas }
}

pub(crate) fn put(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("writing to a string");
}

pub(crate) fn head(found: &Foreigners, options: &Options<'_>, origin: &str) -> String {
    let mut text = format!(
        "# Written by {}.\n# Lines with \"{FILL_IN}\" need a value from you; `lockgate check FILE` \
         says what else is missing.\n",
        escaped_line(origin),
    );
    for note in &found.notes {
        put(&mut text, format_args!("# {}\n", escaped_line(note)));
    }
    put(&mut text, format_args!("\n[node]\n"));
    match options.name {
        Some(name) => put(&mut text, format_args!("name = {}\n", quoted(name))),
        None => put(&mut text, format_args!("name = \"gateway\" {FILL_IN} its name\n")),
    }
    if let Some(directory) = options.keys.as_ref().and_then(|plan| plan.directory.as_ref()) {
        put(&mut text, format_args!("keys_dir = {}\n", quoted(directory)));
    }
    text
}

/// Writes both ports.
fn netdevs(
    text: &mut String,
    found: &Foreigners,
    options: &Options<'_>,
    omissions: &mut Omissions,
) {
    let of_sas = found.sas.iter().filter_map(|sa| sa.offload.as_ref());
    let entries = found.outbound.iter().chain(&found.inbound);
    let mut offloads: Vec<&Offload> =
        of_sas.chain(entries.filter_map(|entry| entry.offload.as_ref())).collect();
    offloads.sort_by(|one, other| one.at.cmp(&other.at));
    let first = offloads.first().copied();
    let mut told: HashSet<&str> = HashSet::new();
    for Offload { at, netdev, .. } in &offloads {
        if told.insert(netdev) {
            let reason = "the sections [card.NAME] say which ports are on a card";
            omissions.left((at, netdev), reason, "list the port of this netdev in one of them");
        }
    }
    let lan = match options.lan {
        Some(lan) => format!("netdev = {}", quoted(lan)),
        None => {
            format!(
                "netdev = \"lan0\" {FILL_IN} the interface towards the hosts behind the gateway"
            )
        }
    };
    let wan = match (options.wan, first.filter(|offload| is_netdev(&offload.netdev))) {
        (Some(wan), _) => format!("netdev = {}", quoted(wan)),
        (None, Some(Offload { at, netdev, .. })) => {
            format!("netdev = {} # of the offload in {}", quoted(netdev), comment(at))
        }
        (None, None) => {
            format!("netdev = \"wan0\" {FILL_IN} the interface towards the peers")
        }
    };
    put(
        text,
        format_args!(
            "\n[port.lan]\n{lan}\nside = \"protected\"\n\n[port.wan]\n{wan}\n\
             side = \"unprotected\"\n\
             # Traffic to this machine itself that may come in from outside, such as IKE:\n\
             # allow_host = [\"udp/500\", \"udp/4500\", \"icmp\"]\n"
        ),
    );
}

/// Returns whether a netdev can have this name.
fn is_netdev(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..16).contains(&name.len())
        && name.chars().all(plain)
        && name.starts_with(char::is_alphabetic)
}

fn peer_text(peer: &Peer, (common, sas): (Option<Common>, &[Sa]), file: &str) -> String {
    let Peer { name, local, remote, mode, .. } = peer;
    let mut text = format!("\n[peer.{name}]\nlocal = \"{local}\"\nremote = \"{remote}\"\n");
    put(&mut text, format_args!("keys = \"file:{file}\"\nmanual = \"laboratory\"\n"));
    match common.and_then(|common| common.suite) {
        Some(suite) => put(&mut text, format_args!("suite = \"{suite}\"\n")),
        None => put(
            &mut text,
            format_args!("suite = \"{}\" {FILL_IN} the peer's suite\n", Suite::Aes128Gcm),
        ),
    }
    let is_ipv4 = remote.is_ipv4();
    if let Some(common) = common {
        put(&mut text, format_args!("esn = {}\n", common.has_esn));
        if let Some(window) = common.window {
            put(&mut text, format_args!("replay_window = {window}\n"));
        }
        if let Some(port) = common.udp {
            put(
                &mut text,
                format_args!("encapsulation = \"udp\"\nremote_port = {}\n", port.max(1)),
            );
        }
        if *mode == Mode::Tunnel {
            if let Some(dscp) = common.outer.dscp {
                put(&mut text, format_args!("dscp = {dscp}\n"));
            }
            if let Some(df) = common.outer.df.filter(|_| is_ipv4) {
                put(&mut text, format_args!("df = \"{df}\"\n"));
            }
        }
    }
    if *mode == Mode::Transport {
        text.push_str("mode = \"transport\"\n");
    }
    let offload = peer.sas.iter().find_map(|(sa, _)| sas[*sa].offload.as_ref());
    text.extend(offload.map(offload_line));
    for (place, direction) in &peer.sas {
        let sa = &sas[*place];
        let way = way(*direction);
        put(&mut text, format_args!("# SA: {way} {}, {}\n", sa.spi, comment(&sa.at)));
    }
    if peer.naming == NamedBy::Nobody {
        text.push_str("# No policy names this peer yet.\n");
    }
    if let Some(common) = common {
        text.push_str(&lifetime(name, &common.lifetime));
    }
    text
}

/// The section of a peer's limits, if there are any.
pub(crate) fn lifetime(name: &str, lifetime: &Lifetime) -> String {
    let mut text = String::new();
    if *lifetime == Lifetime::NONE {
        return text;
    }
    put(&mut text, format_args!("\n[peer.{name}.lifetime]\n"));
    for (kind, limits) in [("soft", lifetime.soft), ("hard", lifetime.hard)] {
        let seconds = limits.seconds.map(u64::from);
        for (unit, limit) in
            [("packets", limits.packets), ("bytes", limits.bytes), ("seconds", seconds)]
        {
            let Some(limit) = limit else { continue };
            // Quoted: TOML's numbers end at 63 bits.
            match unit {
                "seconds" => put(&mut text, format_args!("{kind}_{unit} = {limit}\n")),
                _ => put(&mut text, format_args!("{kind}_{unit} = \"{limit}\"\n")),
            }
        }
    }
    text
}

/// The line that says which offload a peer's SAs ask for. A comment: cards take SAs that are put
/// over the API, and those that are imported come from a key file.
fn offload_line(offload: &Offload) -> String {
    let (mode, at) = (offload.mode.name(), comment(&offload.at));
    format!("# offload = \"{mode}\" # for keys = \"api\" alone; {at}\n")
}

const fn way(direction: Direction) -> &'static str {
    match direction {
        Direction::Inbound => "in",
        Direction::Outbound => "out",
    }
}

/// Reason why a key is not taken over, and the advice.
type Untaken = (String, &'static str);

/// The keys of all SAs, to see which can be taken over.
struct KeyRing<'s> {
    sas: &'s [Sa],
    /// The number of SAs that have a key.
    uses: HashMap<Fingerprint, usize>,
    /// SPIs that inbound SAs have so far.
    inbound: HashSet<Spi>,
}

const NEW_KEYS: &str = "make new keys for both ends: lockgate keygen";

impl KeyRing<'_> {
    fn new(sas: &[Sa]) -> KeyRing<'_> {
        let mut uses = HashMap::new();
        for material in sas.iter().filter_map(|sa| sa.material.as_ref()) {
            *uses.entry(material.fingerprint()).or_default() += 1;
        }
        KeyRing { sas, uses, inbound: HashSet::new() }
    }

    /// The key of an SA. One that was used is not taken: it would seal two packets under one number
    /// here, or open recorded ones again.
    fn key(&self, place: usize) -> Result<&KeyMaterial, Untaken> {
        let sa = &self.sas[place];
        let hidden = || ("the dump hides its key".to_owned(), NEW_KEYS);
        let material = sa.material.as_ref().ok_or_else(hidden)?;
        let uses = self.uses.get(&material.fingerprint()).copied().unwrap_or(0);
        let reason = if sa.used > 0 {
            format!(
                "its key was used before, for {} packets at least: an SA here begins at 1, and no \
                 key may seal two packets under one number, nor open one twice",
                sa.used
            )
        } else if uses > 1 {
            "several SAs have its key: two of them may seal under one number".to_owned()
        } else {
            return Ok(material);
        };
        Err((reason, NEW_KEYS))
    }

    /// Returns whether a key of a peer can be taken over.
    fn has_any(&self, peer: &Peer, common: Option<Common>) -> bool {
        common.is_some_and(|common| common.suite.is_some())
            && peer.sas.iter().any(|(place, _)| self.key(*place).is_ok())
    }

    /// Makes a peer's key file, and counts its SAs.
    fn file(
        &mut self,
        peer: &Peer,
        common: Option<Common>,
        omissions: &mut Omissions,
    ) -> Option<(Zeroizing<String>, usize)> {
        const LINE: usize = 32 + 2 * 96;
        common?.suite?;
        // Allocated at its full size: growing would leave copies behind that nobody wipes.
        let mut text = Zeroizing::new(String::with_capacity(256 + LINE * peer.sas.len()));
        text.push_str(
            "# Direction, SPI and key of each SA. Another program had these keys: if it ",
        );
        text.push_str("ever sealed with\n# one of them, make new ones with `lockgate keygen`.\n");
        let mut count = 0;
        for (place, direction) in &peer.sas {
            let sa = &self.sas[*place];
            let is_double = *direction == Direction::Inbound && !self.inbound.insert(sa.spi);
            let double = || {
                let advice = "choose another SPI at both ends";
                ("another inbound SA has this SPI".to_owned(), advice)
            };
            let key = if is_double { Err(double()) } else { self.key(*place) };
            match key {
                Ok(material) => {
                    put(&mut text, format_args!("{} {} ", way(*direction), sa.spi));
                    push_hex(&mut text, material.expose());
                    text.push('\n');
                    count += 1;
                }
                Err((reason, advice)) => omissions.left((&sa.at, "key"), &reason, advice),
            }
        }
        (count > 0).then_some((text, count))
    }
}

/// Notes the SAs whose keys nobody asked for.
fn unkeyed(peer: &Peer, sas: &[Sa], omissions: &mut Omissions) {
    for (place, _) in &peer.sas {
        let reason = "keys go into key files only";
        let advice = "give --keys FILE, or make new keys for both ends: lockgate keygen";
        omissions.left((&sas[*place].at, "key"), reason, advice);
    }
}

/// Appends bytes in hexadecimal. The caller has reserved the room.
fn push_hex(text: &mut String, bytes: &[u8]) {
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap_or('0');
    for byte in bytes {
        text.push(digit(byte >> 4));
        text.push(digit(byte & 15));
    }
}

/// Writes the policies and returns how many they are.
fn policies(text: &mut String, found: &Foreigners, peers: &Peers) -> usize {
    let acts = |entries: &[Entry], peers: &[Option<usize>]| -> Vec<(Selector, Act)> {
        let act = |(entry, peer): (&Entry, &Option<usize>)| {
            let act = match (&entry.effect, peer) {
                (Effect::Protect(_), Some(peer)) => Act::Protect(*peer),
                // A policy that protects has a peer.
                (Effect::Protect(_), None) | (Effect::Discard, _) => Act::Discard,
                (Effect::Bypass, _) => Act::Bypass,
            };
            (entry.selector.clone(), act)
        };
        entries.iter().zip(peers).map(act).collect()
    };
    let outbound = acts(&found.outbound, &peers.of_outbound);
    let inbound = acts(&found.inbound, &peers.of_inbound);
    let list = joined(&outbound, &inbound);
    for (place, placed) in list.iter().enumerate() {
        let (policy, direction, from) = match *placed {
            Placed::Both(out, inw) => {
                let places = [&found.outbound[out].at, &found.inbound[inw].at];
                (&outbound[out], None, places.to_vec())
            }
            Placed::Outbound(out) => {
                (&outbound[out], Some("outbound"), vec![&found.outbound[out].at])
            }
            Placed::Inbound(inw) => (&inbound[inw], Some("inbound"), vec![&found.inbound[inw].at]),
        };
        let from: Vec<String> = from.into_iter().map(comment).collect();
        put(text, format_args!("\n[[policy]] # {}\n", from.join(" and ")));
        put(text, format_args!("name = \"policy-{}\"\n", place + 1));
        match policy.1 {
            Act::Protect(peer) => {
                put(text, format_args!("peer = \"{}\"\n", peers.list[peer].name));
            }
            Act::Bypass => text.push_str("action = \"bypass\"\n"),
            Act::Discard => text.push_str("action = \"discard\"\n"),
        }
        selector(text, &policy.0);
        // The first that matches decides: each has a priority of its own, with room between.
        put(text, format_args!("priority = {}\n", 10 * (list.len() - place)));
        if let Some(direction) = direction {
            put(text, format_args!("direction = \"{direction}\"\n"));
        }
    }
    list.len()
}

pub(crate) fn selector(text: &mut String, selector: &Selector) {
    for (key, ranges) in [("local", &selector.local), ("remote", &selector.remote)] {
        put(text, format_args!("{key} = {}\n", list(validated::addresses(ranges))));
    }
    if selector.protocol.is_some() {
        put(text, format_args!("protocol = \"{}\"\n", protocol_text(selector.protocol)));
    }
    let ports = selector.upper.ports().unwrap_or_default();
    for (key, ranges) in ["local_ports", "remote_ports"].into_iter().zip(ports) {
        if !ranges.is_empty() {
            put(text, format_args!("{key} = {}\n", list(ranges.iter().map(PortRange::to_string))));
        }
    }
    if let UpperSelector::Icmp(messages) = &selector.upper {
        let messages = messages.iter().map(ToString::to_string);
        put(text, format_args!("icmp = {}\n", list(messages)));
    }
}

fn list(texts: impl IntoIterator<Item = String>) -> String {
    let quoted: Vec<String> = texts.into_iter().map(|text| format!("\"{text}\"")).collect();
    format!("[{}]", quoted.join(", "))
}

/// A TOML basic string.
pub(crate) fn quoted(text: &str) -> String {
    let escape = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\U{:08X}", u32::from(c)),
        c => c.to_string(),
    };
    format!("\"{}\"", text.chars().map(escape).collect::<String>())
}

/// A place as a comment says it.
pub(crate) fn comment(place: &Location) -> String {
    let file = place.file.rsplit('/').next().unwrap_or_default();
    format!("{}:{}", escaped_line(file), place.line)
}
