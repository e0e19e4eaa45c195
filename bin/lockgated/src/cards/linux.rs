//! A card that does ESP under Linux: its SAs and policies are put into Linux, which carries the
//! packets.
//!
//! ```text
//! an SA that opens   state ─▶ policies in, fwd ─▶ taken
//! an SA that seals   state ─▶ policy out ─▶ taken
//! ```
//!
//! It is taken out the other way round. An SA is there with all its policies or not at all. SAs of
//! a peer share them: the first puts them in, the last takes them out. Everything has a number of
//! ours (`linux::xfrm::REQIDS`), by which a later daemon finds what this one left.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use card_link::{Found, Item, Request};
use config::EspBy;
use control::CarriedFlow;
use linux::xfrm::{
    FoundSa, OffloadMode, OffloadTo, PolicyWay, SaWay, Xfrm, XfrmEnds, XfrmError, XfrmEvents,
    XfrmLimits, XfrmNews, XfrmPolicy, XfrmSa, XfrmSelector, cipher_name,
};
use offload::{
    Ability, Capabilities, CardEvent, CardSa, Handle, Limit, Numbers, Refusal, RefusalKind,
    SaDirection, Service, Tag,
};
use tokio::sync::mpsc::Sender;

use super::link::{LinkNews, LinkReport};
use crate::events::{Events, Kind};

/// Time between two probes of a Linux that has refused.
const AGAIN: Duration = Duration::from_secs(10);
/// Priority of our policies in Linux. None of another peer has packets in common with them.
const PRIORITY: u32 = 100;

/// Packets of a peer that Linux is to carry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Carriage {
    /// Number of the peer's SAs and policies in Linux.
    pub(crate) reqid: u32,
    /// The packets.
    pub(crate) flows: Arc<[CarriedFlow]>,
    /// Seconds after which the SA ends.
    pub(crate) hard_seconds: Option<u64>,
    /// Index of the netdev that leads to the peer.
    pub(crate) ifindex: u32,
}

/// An SA that Linux holds.
struct Held {
    tag: Tag,
    ends: XfrmEnds,
    spi: u32,
    policies: Vec<XfrmPolicy>,
    packets: u64,
    bytes: u64,
    /// The highest number that was opened or sealed.
    edge: u64,
    /// Linux has taken it out at a hard limit: its counts stand.
    is_ended: bool,
    /// The last look did not find it. Linux may be about to say that it ended.
    is_missed: bool,
}

/// Counts of SAs, and their highest numbers.
#[derive(Default)]
struct Counts {
    items: Vec<Item>,
    edges: Vec<(Handle, u64)>,
}

/// SAs and policies of a kernel: Linux, or one that a test plays.
trait Kernel: Send {
    fn add_sa(&mut self, sa: &XfrmSa<'_>) -> Result<(), XfrmError>;
    fn find_sa(&mut self, ends: XfrmEnds, spi: u32) -> Result<Option<FoundSa>, XfrmError>;
    fn remove_sa(&mut self, ends: XfrmEnds, spi: u32) -> Result<bool, XfrmError>;
    fn add_policy(&mut self, policy: &XfrmPolicy) -> Result<(), XfrmError>;
    fn remove_policy(&mut self, policy: &XfrmPolicy) -> Result<bool, XfrmError>;
}

impl Kernel for Xfrm {
    fn add_sa(&mut self, sa: &XfrmSa<'_>) -> Result<(), XfrmError> {
        Xfrm::add_sa(self, sa)
    }

    fn find_sa(&mut self, ends: XfrmEnds, spi: u32) -> Result<Option<FoundSa>, XfrmError> {
        Xfrm::find_sa(self, ends, spi)
    }

    fn remove_sa(&mut self, ends: XfrmEnds, spi: u32) -> Result<bool, XfrmError> {
        Xfrm::remove_sa(self, ends, spi)
    }

    fn add_policy(&mut self, policy: &XfrmPolicy) -> Result<(), XfrmError> {
        Xfrm::add_policy(self, policy)
    }

    fn remove_policy(&mut self, policy: &XfrmPolicy) -> Result<bool, XfrmError> {
        Xfrm::remove_policy(self, policy)
    }
}

#[derive(Default)]
struct Inner {
    xfrm: Option<Box<dyn Kernel>>,
    capabilities: Option<Capabilities>,
    held: BTreeMap<Handle, Held>,
    /// SAs that share each policy.
    policies: HashMap<XfrmPolicy, usize>,
}

/// A card of kind `xfrm`. All that it holds in Linux goes with it.
pub(super) struct LinuxCard {
    card: u64,
    esp: EspBy,
    begun: Instant,
    reports: Sender<LinkReport>,
    inner: Mutex<Inner>,
}

impl LinuxCard {
    pub(super) fn new(card: u64, esp: EspBy, reports: Sender<LinkReport>) -> LinuxCard {
        LinuxCard { card, esp, begun: Instant::now(), reports, inner: Mutex::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the control thread. It reads them between its orders; if there is no room, it is as if
    /// the card were silent.
    fn tell(&self, what: LinkNews) {
        let _ = self.reports.try_send(LinkReport { card: self.card, what });
    }

    /// Asks Linux for an SA with its policies.
    pub(super) fn carry(&self, tag: Tag, sa: &CardSa, carriage: &Carriage) {
        let mut inner = self.inner();
        let event = match inner.add(tag, sa, carriage, self.esp) {
            Ok(()) => CardEvent::Live(tag),
            Err(refusal) => CardEvent::Refused(tag, refusal),
        };
        self.tell(LinkNews::Event(event));
    }

    /// Does what a card is asked. Rules, and SAs that are not carried, are none of its.
    pub(super) fn ask(&self, request: &Request) {
        match request {
            Request::Withdraw { tag } => {
                self.inner().remove(tag.handle);
                self.tell(LinkNews::Event(CardEvent::Withdrawn(*tag)));
            }
            Request::Look { number } => self.look(*number),
            _ => {}
        }
    }

    fn look(&self, number: u64) {
        let mut inner = self.inner();
        let Some(capabilities) = inner.capabilities.clone() else { return };
        let Ok(Counts { items, edges }) = inner.look() else { return };
        let at_ms = self.begun.elapsed().as_millis() as u64;
        let found = Found { number, card: capabilities.spec(), at_ms, items, edges };
        self.tell(LinkNews::Found(found, Box::new(capabilities)));
    }

    fn hear(&self, news: XfrmNews) {
        // Linux also reports packets without an SA. Workers see those too, and attend to them.
        let XfrmNews::Expired { sa, hard } = news else { return };
        let mut inner = self.inner();
        let of = |held: &&mut Held| held.spi == sa.spi && held.ends.destination == sa.destination;
        let Some(held) = inner.held.values_mut().find(of) else { return };
        (held.packets, held.bytes) = (sa.packets, sa.bytes);
        held.is_ended |= hard;
        let limit = if hard { Limit::Hard } else { Limit::Soft };
        self.tell(LinkNews::Event(CardEvent::Limit(held.tag, limit)));
    }

    /// Asks Linux what it can for the card, by an SA that is gone at once.
    fn begin(&self, ifindex: Option<u32>) -> Result<Capabilities, String> {
        let mut xfrm = Xfrm::open().map_err(|error| error.to_string())?;
        if std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").is_ok_and(|on| on.trim() == "0")
        {
            return Err("Linux does not forward: set net.ipv4.ip_forward = 1".into());
        }
        let ifindex = ifindex.ok_or("its netdev is not there")?;
        let capabilities = match self.esp {
            EspBy::Linux => {
                xfrm.probe(None).map_err(|error| format!("Linux has no ESP: {error}"))?;
                Capabilities::stand_in()
            }
            EspBy::Card => {
                let mut asked = |mode| xfrm.probe(Some(OffloadTo { ifindex, mode }));
                let [packet, crypto] = [asked(OffloadMode::Packet), asked(OffloadMode::Crypto)];
                if let (Err(packet), Err(crypto)) = (&packet, &crypto) {
                    return Err(format!("packet mode: {packet}; crypto mode: {crypto}"));
                }
                let ability = |asked: Result<(), XfrmError>| match asked {
                    Ok(()) => Ability::Has(()),
                    Err(_) => Ability::Lacks("the driver was asked, and refused"),
                };
                Capabilities::xfrm(ability(packet), ability(crypto))
            }
        };
        let mut inner = self.inner();
        inner.xfrm = Some(Box::new(xfrm));
        inner.capabilities = Some(capabilities.clone());
        Ok(capabilities)
    }
}

impl LinuxCard {
    /// Takes all out of Linux that was put in.
    pub(super) fn forget_all(&self) {
        let mut inner = self.inner();
        let all: Vec<Handle> = inner.held.keys().rev().copied().collect();
        all.into_iter().for_each(|handle| inner.remove(handle));
    }
}

impl Drop for LinuxCard {
    fn drop(&mut self) {
        self.forget_all();
    }
}

/// Takes SAs and policies out of Linux that an earlier daemon left there, and no others.
pub(crate) fn sweep(events: &Events) {
    // Where there is no xfrm, nothing was left.
    let Ok(mut xfrm) = Xfrm::open() else { return };
    match xfrm.sweep() {
        Ok(0) => {}
        Ok(count) => {
            let message = format!(
                "{count} SAs and policies that an earlier daemon had left in Linux are gone"
            );
            events.record(Kind::CardChanged, "", message, &[("count", &count)]);
        }
        Err(error) => {
            let message = format!("SAs of an earlier daemon may be left in Linux: {error}");
            events.record(Kind::CardChanged, "", message, &[]);
        }
    }
}

/// Serves a card for ever: asks Linux what it can, then listens to it.
pub(super) async fn serve(card: Arc<LinuxCard>, netdev: String) {
    loop {
        let path = format!("/sys/class/net/{netdev}/ifindex");
        let ifindex = std::fs::read_to_string(path).ok();
        let ifindex = ifindex.and_then(|text| text.trim().parse().ok());
        let begun = card.begin(ifindex).map(Box::new).and_then(|capabilities| {
            Ok((capabilities, XfrmEvents::open().map_err(|error| error.to_string())?))
        });
        let (capabilities, mut events) = match begun {
            Ok(begun) => begun,
            Err(why) => {
                card.tell(LinkNews::Lost(why));
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        };
        card.tell(LinkNews::Begun(capabilities));
        loop {
            match events.next().await {
                Ok(news) => news.into_iter().for_each(|news| card.hear(news)),
                // What was lost is seen by the next look.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(_) => break,
            }
        }
    }
}

impl Inner {
    fn add(
        &mut self,
        tag: Tag,
        sa: &CardSa,
        carriage: &Carriage,
        esp: EspBy,
    ) -> Result<(), Refusal> {
        let Some(xfrm) = &mut self.xfrm else {
            return Err(refusal("", &XfrmError::NoSocket { text: "not asked yet".into() }));
        };
        let offload = (esp == EspBy::Card).then_some(OffloadTo {
            ifindex: carriage.ifindex,
            mode: match sa.service {
                Service::Packet => OffloadMode::Packet,
                Service::Crypto => OffloadMode::Crypto,
            },
        });
        let asked = state(sa, carriage, offload);
        let Some(asked) = asked else {
            return Err(Refusal {
                kind: RefusalKind::Unsupported,
                code: -libc::EOPNOTSUPP,
                text: format!("Linux is not asked for {}", sa.suite).into(),
            });
        };
        xfrm.add_sa(&asked)
            .map_err(|error| refusal("the SA was refused, and no policy was asked for", &error))?;
        let mut held = Held {
            tag,
            ends: asked.ends,
            spi: asked.spi,
            policies: Vec::new(),
            packets: 0,
            bytes: 0,
            edge: 0,
            is_ended: false,
            is_missed: false,
        };
        let mut refused = Ok(());
        for policy in policies(sa, carriage, offload) {
            let count = self.policies.entry(policy).or_insert(0);
            if *count == 0
                && let Err(error) = xfrm.add_policy(&policy)
            {
                self.policies.remove(&policy);
                let selector = policy.selector;
                let what = format!(
                    "the SA was taken and its policy was not ({}, {selector}), so that neither is \
                     there",
                    policy.way.name()
                );
                refused = Err(refusal(&what, &error));
                break;
            }
            *count += 1;
            held.policies.push(policy);
        }
        self.held.insert(tag.handle, held);
        if refused.is_err() {
            self.remove(tag.handle);
        }
        refused
    }

    /// Takes an SA out, after those of its policies that no other shares.
    fn remove(&mut self, handle: Handle) {
        let (Some(xfrm), Some(held)) = (&mut self.xfrm, self.held.remove(&handle)) else { return };
        for policy in held.policies.iter().rev() {
            let Some(count) = self.policies.get_mut(policy) else { continue };
            *count -= 1;
            if *count == 0 {
                self.policies.remove(policy);
                // One that stays seals or drops, and lets nothing through; a later sweep finds it.
                let _ = xfrm.remove_policy(policy);
            }
        }
        let _ = xfrm.remove_sa(held.ends, held.spi);
    }

    /// Counts of what Linux has.
    fn look(&mut self) -> Result<Counts, XfrmError> {
        let Some(xfrm) = &mut self.xfrm else { return Ok(Counts::default()) };
        let (mut items, mut edges) = (Vec::new(), Vec::new());
        for (handle, held) in &mut self.held {
            if let Some(found) = xfrm.find_sa(held.ends, held.spi)? {
                (held.packets, held.bytes) = (found.packets, found.bytes);
                held.edge = found.edge.max(found.last);
                held.is_missed = false;
            } else if !held.is_ended && std::mem::replace(&mut held.is_missed, true) {
                continue;
            }
            let Held { packets, bytes, edge, .. } = *held;
            items.push(Item { handle: *handle, packets, bytes });
            edges.push((*handle, edge));
        }
        Ok(Counts { items, edges })
    }
}

fn refusal(what: &str, error: &XfrmError) -> Refusal {
    let kind = match error.is_unsupported() {
        true => RefusalKind::Unsupported,
        false => RefusalKind::Failed,
    };
    let text = if what.is_empty() { error.to_string() } else { format!("{what}: {error}") };
    Refusal { kind, code: -error.errno(), text: text.into() }
}

/// An SA in the form of Linux; `None`: Linux does not have this suite.
fn state<'k>(
    sa: &'k CardSa,
    carriage: &Carriage,
    offload: Option<OffloadTo>,
) -> Option<XfrmSa<'k>> {
    let limits = sa.limits;
    Some(XfrmSa {
        way: match sa.direction {
            SaDirection::Out => SaWay::Out,
            SaDirection::In => SaWay::In,
        },
        spi: sa.spi,
        ends: XfrmEnds { source: sa.ends.source, destination: sa.ends.destination },
        reqid: carriage.reqid,
        cipher: cipher_name(&sa.suite)?,
        key: sa.key.expose(),
        window: sa.window,
        esn: sa.numbers == Numbers::Extended,
        limits: XfrmLimits {
            soft_packets: limits.soft_packets,
            hard_packets: limits.hard_packets,
            soft_bytes: limits.soft_bytes,
            hard_bytes: limits.hard_bytes,
            // The daemon tells of it.
            soft_seconds: None,
            hard_seconds: carriage.hard_seconds,
        },
        offload,
    })
}

/// Policies in Linux of an SA's direction.
fn policies(sa: &CardSa, carriage: &Carriage, offload: Option<OffloadTo>) -> Vec<XfrmPolicy> {
    let ends = XfrmEnds { source: sa.ends.source, destination: sa.ends.destination };
    let packet = offload.filter(|card| card.mode == OffloadMode::Packet);
    let ways: &[PolicyWay] = match sa.direction {
        SaDirection::In => &[PolicyWay::In, PolicyWay::Forward],
        SaDirection::Out => &[PolicyWay::Out],
    };
    let one = |way: PolicyWay, flow: &CarriedFlow| XfrmPolicy {
        way,
        selector: selector(sa.direction, flow),
        priority: PRIORITY,
        ends,
        reqid: carriage.reqid,
        // What is forwarded is Linux's alone: a card knows what comes and what leaves.
        packet_offload: packet.filter(|_| way != PolicyWay::Forward).map(|card| card.ifindex),
    };
    carriage.flows.iter().flat_map(|flow| ways.iter().map(move |way| one(*way, flow))).collect()
}

fn selector(direction: SaDirection, flow: &CarriedFlow) -> XfrmSelector {
    let here: ((IpAddr, u8), Option<u16>) = (flow.local, flow.local_port);
    let there = (flow.remote, flow.remote_port);
    let (from, to) = match direction {
        SaDirection::Out => (here, there),
        SaDirection::In => (there, here),
    };
    XfrmSelector {
        source: from.0,
        destination: to.0,
        protocol: flow.protocol,
        source_port: from.1,
        destination_port: to.1,
    }
}

#[cfg(test)]
pub(crate) mod played;
