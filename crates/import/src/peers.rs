//! Peers out of templates and SAs.
//!
//! An outbound policy's template makes a peer. An inbound one belongs to the peer of the outbound
//! policy that is its mirror, else to one with the same ends, mode and number. An SA belongs to the
//! peer whose templates name it.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use config::escaped_line;
use ipsec::{Lifetime, Limits, Mode, Suite};
use policy::{Direction, Selector};

use crate::model::{Effect, Entry, Foreigners, OffloadMode, Outer, Sa, Template};
use crate::problem::{Fate, Omissions};

/// Smallest and largest replay window.
const WINDOWS: (u32, u32) = (32, 4096);

/// A peer.
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    pub(crate) mode: Mode,
    /// Its SAs with their directions: places in the list of all.
    pub(crate) sas: Vec<(usize, Direction)>,
    pub(crate) naming: NamedBy,
}

/// The sections that name a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NamedBy {
    Policies,
    Nobody,
}

/// The settings that all SAs of a peer have in common.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Common {
    pub(crate) suite: Option<Suite>,
    pub(crate) has_esn: bool,
    /// The peer's UDP port.
    pub(crate) udp: Option<u16>,
    pub(crate) outer: Outer,
    pub(crate) lifetime: Lifetime,
    pub(crate) window: Option<u32>,
    pub(crate) offload: Option<OffloadMode>,
}

/// Two ends and a mode.
type Ends = (IpAddr, IpAddr, Mode);

/// The peers, and the peer of each policy.
pub(crate) struct Peers {
    pub(crate) list: Vec<Peer>,
    /// The peer of each outbound policy, `None` for those that do not protect.
    pub(crate) of_outbound: Vec<Option<usize>>,
    pub(crate) of_inbound: Vec<Option<usize>>,
}

/// Ends, number, SPI and direction of a template.
type Naming = (Ends, u32, Option<u32>, Direction);

/// Templates with the peers that they name.
#[derive(Default)]
struct Named {
    peers: Vec<Peer>,
    templates: HashMap<Naming, usize>,
    /// The first peer that outbound templates of these ends and this number name.
    outbound: HashMap<(Ends, u32), usize>,
    /// Peers that an inbound template names.
    with_inbound: HashSet<usize>,
    /// Peers that only SAs made.
    unnamed: HashMap<(Ends, u32), usize>,
}

/// Finds the peers of policies and SAs. SAs of no peer are noted.
pub(crate) fn of(found: &Foreigners, omissions: &mut Omissions) -> Peers {
    let mut named = Named::default();
    let mut twins: HashMap<&Selector, usize> = HashMap::new();
    let mut of_outbound = Vec::with_capacity(found.outbound.len());
    for entry in &found.outbound {
        let peer = template_of(entry).map(|template| named.of_outbound(template));
        if let Some(peer) = peer {
            twins.entry(&entry.selector).or_insert(peer);
        }
        of_outbound.push(peer);
    }
    let mut of_inbound = Vec::with_capacity(found.inbound.len());
    for entry in &found.inbound {
        let twin = twins.get(&entry.selector).copied();
        of_inbound.push(template_of(entry).map(|template| named.of_inbound(template, twin)));
    }
    let mut seen = HashSet::new();
    for (place, sa) in found.sas.iter().enumerate() {
        if !seen.insert((sa.destination, sa.spi)) {
            let reason = "an earlier SA has the same destination and SPI";
            omissions.left((&sa.at, "spi"), reason, "leave out the one that is not meant");
            continue;
        }
        match named.of_sa(sa) {
            Ok((peer, direction)) => named.peers[peer].sas.push((place, direction)),
            Err((reason, advice)) => omissions.left((&sa.at, "src"), reason, advice),
        }
    }
    let mut list = named.peers;
    name(&mut list);
    Peers { list, of_outbound, of_inbound }
}

fn template_of(entry: &Entry) -> Option<&Template> {
    match &entry.effect {
        Effect::Protect(template) => Some(template),
        Effect::Bypass | Effect::Discard => None,
    }
}

impl Named {
    fn add(&mut self, (local, remote, mode): Ends, naming: NamedBy) -> usize {
        let (name, sas) = (String::new(), Vec::new());
        self.peers.push(Peer { name, local, remote, mode, sas, naming });
        self.peers.len() - 1
    }

    fn of_outbound(&mut self, template: &Template) -> usize {
        let ends = (template.local, template.remote, template.mode);
        let naming = (ends, template.class, template.spi, Direction::Outbound);
        if let Some(peer) = self.templates.get(&naming) {
            return *peer;
        }
        let peer = self.add(ends, NamedBy::Policies);
        self.templates.insert(naming, peer);
        self.outbound.entry((ends, template.class)).or_insert(peer);
        peer
    }

    fn of_inbound(&mut self, template: &Template, twin: Option<usize>) -> usize {
        let ends = (template.local, template.remote, template.mode);
        let naming = (ends, template.class, template.spi, Direction::Inbound);
        if let Some(peer) = self.templates.get(&naming) {
            return *peer;
        }
        let same_number = self.outbound.get(&(ends, template.class)).copied();
        let fits = |peer: &usize| {
            let Peer { local, remote, mode, .. } = self.peers[*peer];
            (local, remote, mode) == ends && !self.with_inbound.contains(peer)
        };
        let peer = [twin, same_number].into_iter().flatten().find(fits);
        let peer = peer.unwrap_or_else(|| self.add(ends, NamedBy::Policies));
        self.templates.insert(naming, peer);
        self.with_inbound.insert(peer);
        peer
    }

    /// The peer of an SA, and its direction.
    fn of_sa(&mut self, sa: &Sa) -> Result<(usize, Direction), (&'static str, &'static str)> {
        let ways = [
            (Direction::Outbound, (sa.source, sa.destination, sa.mode)),
            (Direction::Inbound, (sa.destination, sa.source, sa.mode)),
        ];
        let mut contradicts = false;
        for (direction, ends) in ways {
            // A template without a number opens by any SA, and seals by one without.
            let classes = match direction {
                Direction::Inbound => [sa.class, 0],
                Direction::Outbound => [sa.class; 2],
            };
            let spis = [None, Some(sa.spi.value())];
            let found = classes.iter().find_map(|class| {
                let of = |spi: &Option<u32>| self.templates.get(&(ends, *class, *spi, direction));
                spis.iter().find_map(of)
            });
            match found {
                Some(_) if sa.direction.is_some_and(|said| said != direction) => {
                    contradicts = true;
                }
                Some(peer) => return Ok((*peer, direction)),
                None => {}
            }
        }
        if contradicts {
            return Err(("it says another direction than the policies give it", "correct `dir`"));
        }
        let Some(direction) = sa.direction else {
            return Err((
                "no policy names it, and nothing says which end is this gateway",
                "give the policies too",
            ));
        };
        // Nobody uses it yet: a peer without policies.
        let ends = if direction == Direction::Outbound { ways[0].1 } else { ways[1].1 };
        let is_host = |ip| config::unusable(ip).is_none() && !ip.is_multicast();
        if !is_host(ends.0) || !is_host(ends.1) || ends.0 == ends.1 {
            return Err(("an address of it belongs to no interface", "correct the state"));
        }
        let key = (ends, sa.class);
        let peer = self.unnamed.get(&key).copied();
        let peer = peer.unwrap_or_else(|| self.add(ends, NamedBy::Nobody));
        self.unnamed.insert(key, peer);
        Ok((peer, direction))
    }
}

/// Gives each peer a name: its address, and a number where several have it.
fn name(peers: &mut [Peer]) {
    let mut counts: HashMap<IpAddr, u32> = HashMap::new();
    for peer in peers {
        let count = counts.entry(peer.remote).or_default();
        *count += 1;
        let address = peer.remote.to_string().replace(['.', ':'], "-");
        peer.name = match count {
            1 => format!("peer-{address}"),
            count => format!("peer-{address}-n{count}"),
        };
    }
}

impl Peer {
    /// Finds what the peer's SAs have in common, and takes those out that differ, which is noted.
    pub(crate) fn common(&mut self, sas: &[Sa], omissions: &mut Omissions) -> Option<Common> {
        let of = |(place, direction): (usize, Direction)| {
            let sa = &sas[place];
            let port = |[source, destination]: [u16; 2]| match direction {
                Direction::Outbound => destination,
                Direction::Inbound => source,
            };
            let (suite, has_esn, udp) = (sa.suite, sa.has_esn, sa.udp.map(port));
            let (lifetime, window) = (lifetime(sa, omissions), None);
            let offload = sa.offload.as_ref().map(|offload| offload.mode);
            Common { suite, has_esn, udp, outer: sa.outer, lifetime, window, offload }
        };
        let all: Vec<_> = self.sas.iter().copied().map(of).zip(self.sas.clone()).collect();
        let (mut common, _) = *all.first()?;
        self.sas.clear();
        let mut first = None;
        for (own, (place, direction)) in all {
            let sa = &sas[place];
            let first = *first.get_or_insert(place);
            let our_port = |[source, destination]: [u16; 2]| match direction {
                Direction::Outbound => source,
                Direction::Inbound => destination,
            };
            if sa.udp.map(our_port).is_some_and(|port| port != 4500) {
                let reason = "Lockgate's own UDP port is 4500";
                omissions.left((&sa.at, "encap"), reason, "use 4500 at this end");
            } else if let Some((word, [own, other])) = difference(&own, &common) {
                let first = sas[first].at.to_string();
                let first = escaped_line(&first);
                let reason = format!(
                    "it has {own}, the peer's first SA ({first}) {other}; all SAs of a peer have \
                     the same"
                );
                omissions.left((&sa.at, word), &reason, "give it a [peer.NAME] of its own");
            } else {
                if own.lifetime != common.lifetime
                    || own.outer != common.outer
                    || own.offload != common.offload
                {
                    let reason =
                        "limits, outer header and offload are those of the peer's first SA";
                    let advice = "give it a [peer.NAME] of its own if they must differ";
                    omissions.add(Fate::Differs, (&sa.at, "src"), (reason, advice));
                }
                self.sas.push((place, direction));
                if direction == Direction::Inbound || common.window.is_none() {
                    common.window = window(sa, omissions).or(common.window);
                }
            }
        }
        Some(common)
    }
}

/// Finds in which way an SA cannot be beside the first one of its peer: the word, and both values.
fn difference(own: &Common, first: &Common) -> Option<(&'static str, [String; 2])> {
    let suite = |of: &Common| of.suite.map_or("no suite of ours".to_owned(), |one| one.to_string());
    let numbers = |of: &Common| match of.has_esn {
        true => "sequence numbers of 64 bits (esn)".to_owned(),
        false => "sequence numbers of 32 bits (no esn)".to_owned(),
    };
    let udp = |of: &Common| match of.udp {
        Some(port) => format!("ESP in UDP to port {port}"),
        None => "no ESP in UDP".to_owned(),
    };
    let of = |word, value: &dyn Fn(&Common) -> String| (word, [value(own), value(first)]);
    if own.suite != first.suite {
        return Some(of("algorithms", &suite));
    }
    if own.has_esn != first.has_esn {
        return Some(of("esn", &numbers));
    }
    (own.udp != first.udp).then(|| of("encap", &udp))
}

/// The window of an SA as one that there is here.
fn window(sa: &Sa, omissions: &mut Omissions) -> Option<u32> {
    let asked = sa.window?;
    let (lowest, highest) = WINDOWS;
    let window = asked.clamp(lowest, highest).div_ceil(lowest) * lowest;
    if window != asked {
        let reason = format!("replay windows are multiples of 32 up to 4096: {window} was taken");
        omissions.add(Fate::Differs, (&sa.at, "replay-window"), (&reason, "none"));
    }
    Some(window)
}

/// The limits of an SA, without soft ones above the hard ones.
fn lifetime(sa: &Sa, omissions: &mut Omissions) -> Lifetime {
    let Lifetime { mut soft, hard } = sa.lifetime;
    let before = soft;
    let Limits { packets, bytes, seconds, .. } = hard;
    soft.packets = soft.packets.filter(|limit| packets.is_none_or(|hard| *limit <= hard));
    soft.bytes = soft.bytes.filter(|limit| bytes.is_none_or(|hard| *limit <= hard));
    soft.seconds = soft.seconds.filter(|limit| seconds.is_none_or(|hard| *limit <= hard));
    if soft != before {
        omissions.left((&sa.at, "limit"), "a soft limit above the hard one", "none");
    }
    Lifetime { soft, hard }
}
