//! SAs in network cards: the card of each, the cards' answers, and SAs that cards have lost.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use config::CardKind;
use control::{CarriedFlow, NotCarried, carried_by_linux, carried_flows};
use dataplane::{NetdevId, PortId, Snapshot};
use ipsec::{CardSeat, CardWork, SeatCarrier};
use linux::xfrm::REQIDS;
use offload::{
    CardPolicy, CardSa, Item, Limit, Pattern, PolicyAction, SaDirection, SaLimits, SaNews, SaUse,
    Service, Span, Tag, Unfit, UpperPattern,
};
use policy::{SaSetId, Spd};

use super::Cards;
use super::desk::Desk;
use super::linux::Carriage;

/// Bytes that a card's cipher processes for one packet at most, beside those of the packet.
const MOST_AROUND: u32 = 64;

/// The SAs in cards, and those that the daemon is placing there.
#[derive(Default)]
pub(super) struct Seats {
    /// The card of each, by its number.
    desks: HashMap<CardSeat, u64>,
    /// The seat of each name in a card.
    by_tag: HashMap<(u64, u64), CardSeat>,
    /// Seats whose SAs are lost, each with the reason, until the daemon stops using the SAs.
    lost: HashMap<CardSeat, String>,
    /// Answers of cards that no put has taken yet.
    answers: Vec<(CardSeat, SeatAnswer)>,
    /// SAs whose packets Linux carries.
    carried: HashMap<CardSeat, CarriedSeat>,
    /// SAs that reached a hard limit, as their cards say, and the time: the next reading of the
    /// card confirms it or not.
    ended: Vec<(CardSeat, Instant)>,
    /// The hard limit of packets of each SA whose packets workers carry, as the card has it.
    hard: HashMap<CardSeat, Option<u64>>,
}

impl Seats {
    fn add(&mut self, seat: CardSeat, desk: u64) {
        self.desks.insert(seat, desk);
        self.by_tag.insert((desk, seat.tag), seat);
    }

    /// Takes a seat out; returns the number of its card.
    fn remove(&mut self, seat: CardSeat) -> Option<u64> {
        let desk = self.desks.remove(&seat)?;
        self.carried.remove(&seat);
        self.hard.remove(&seat);
        self.by_tag.remove(&(desk, seat.tag));
        Some(desk)
    }

    fn of(&self, desk: u64, tag: Tag) -> Option<CardSeat> {
        self.by_tag.get(&(desk, tag.to_bits())).copied()
    }

    /// Notes a card's news of an SA.
    fn hear(&mut self, desk: u64, news: SaNews, card: &str, why: &str) {
        match news {
            SaNews::Live(tag) => {
                let seat = self.of(desk, tag);
                self.answers.extend(seat.map(|seat| (seat, SeatAnswer::Taken)));
            }
            SaNews::Refused(tag, refusal) => {
                let Some(seat) = self.of(desk, tag) else { return };
                self.remove(seat);
                let answer = SeatAnswer::Refused(format!("card {card}: {refusal}"));
                self.answers.push((seat, answer));
            }
            SaNews::Lost(tag) => {
                let Some(seat) = self.of(desk, tag) else { return };
                self.remove(seat);
                self.lost.insert(seat, format!("card {card}: {why}"));
            }
            SaNews::Limit(tag, Limit::Hard) => {
                let seat = self.of(desk, tag);
                self.ended.extend(seat.map(|seat| (seat, Instant::now())));
            }
            // The next reading of the card shows a soft limit. The caller withdraws a stray SA.
            SaNews::Limit(_, Limit::Soft) | SaNews::Stray(_) => {}
        }
    }
}

/// A card's answer to the request to hold an SA.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SeatAnswer {
    /// It holds the SA.
    Taken,
    /// It refuses the SA, with the reason in the words of its driver.
    Refused(String),
}

/// The reason why the daemon asks no card for an SA.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum NoSeat {
    /// Nothing leads to the peer.
    #[error("no route leads to peer {peer}, so that no card can be found: set the route first")]
    NoRoute {
        /// Name of the peer.
        peer: String,
    },
    /// The port is on no card.
    #[error("port {port}, which leads to peer {peer}, is on no card: list it at a [card.NAME]")]
    NoCard {
        /// Name of the port.
        port: String,
        /// Name of the peer.
        peer: String,
    },
    /// The port is not up.
    #[error(
        "port {port}, which leads to peer {peer}, is not up: its card would lose the SA at once"
    )]
    Down {
        /// Name of the port.
        port: String,
        /// Name of the peer.
        peer: String,
    },
    /// The card does not serve.
    #[error("card {card} does not serve: {why}")]
    Absent {
        /// Name of the card.
        card: String,
        /// The reason.
        why: String,
    },
    /// The peer may move.
    #[error("peer {peer} is behind a NAT and may move, which a card could not follow")]
    Moves {
        /// Name of the peer.
        peer: String,
    },
    /// The card cannot carry the SA exactly as it is.
    #[error("card {card} cannot carry this SA ({}): {unfit}", unfit.name())]
    Unfit {
        /// Name of the card.
        card: String,
        /// The reason.
        unfit: Unfit,
    },
    /// Linux cannot carry the peer's packets.
    #[error("card {card} can carry this SA, but not its policies ({}): {why}", why.name())]
    Policies {
        /// Name of the card.
        card: String,
        /// The reason.
        why: NotCarried,
    },
    /// No name is left.
    #[error("card {card} was asked for more SAs than have names: restart lockgated")]
    NoName {
        /// Name of the card.
        card: String,
    },
}

impl NoSeat {
    /// Its word in the API.
    pub(crate) const fn word(&self) -> &'static str {
        match self {
            NoSeat::NoRoute { .. } => "no_route",
            NoSeat::NoCard { .. } => "no_card",
            NoSeat::Down { .. } => "port_down",
            NoSeat::Absent { .. } => "card_absent",
            NoSeat::Moves { .. } => "peer_moves",
            NoSeat::Unfit { .. } => "card_unfit",
            NoSeat::Policies { .. } => "policies_unfit",
            NoSeat::NoName { .. } => "card_full",
        }
    }
}

/// An SA that the daemon can ask a card for. No `Debug`: it holds key bytes.
pub(crate) struct Seatable {
    desk: u64,
    netdev: NetdevId,
    sa: CardSa,
    carried: Option<(Carriage, CarriedSeat)>,
}

impl Seatable {
    /// The direction of the SA.
    pub(crate) fn direction(&self) -> SaDirection {
        self.sa.direction
    }
}

/// An SA whose packets Linux carries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CarriedSeat {
    /// Its set.
    pub(crate) set: SaSetId,
    /// Number of its SAs and policies in Linux.
    pub(crate) reqid: u32,
    /// Name of the port that leads to the peer.
    pub(crate) port: String,
    /// Direction of the SA.
    pub(crate) direction: SaDirection,
    /// Destination of its ESP.
    pub(crate) destination: IpAddr,
    /// Its SPI.
    pub(crate) spi: u32,
    /// The packets.
    pub(crate) flows: Arc<[CarriedFlow]>,
}

/// An SA whose packets Linux carries, as `explain` names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CarriedSa {
    pub(super) peer: String,
    pub(super) direction: SaDirection,
    pub(super) spi: u32,
    /// Number of its SAs and policies in Linux.
    pub(super) reqid: u32,
}

/// An SA that needs a card.
pub(crate) struct SeatRequest<'s> {
    pub(crate) port: PortId,
    pub(crate) snapshot: &'s Snapshot,
    /// Name of the peer.
    pub(crate) peer: &'s str,
    pub(crate) set: SaSetId,
    pub(crate) sa: CardSa,
    /// Its limits without a lease of numbers.
    pub(crate) limits: SaLimits,
    /// Seconds after which it ends.
    pub(crate) hard_seconds: Option<u32>,
    /// Index of the port's netdev.
    pub(crate) ifindex: u32,
    /// Addresses at which tunnels of this gateway end, here and there.
    pub(crate) ends: &'s [IpAddr],
}

impl Cards {
    /// Finds the card for an SA whose packets leave by a port. Does not ask the card yet.
    ///
    /// # Errors
    /// [`NoSeat`].
    pub(crate) fn seatable(&self, request: SeatRequest<'_>) -> Result<Seatable, NoSeat> {
        let SeatRequest { port, snapshot, peer, .. } = request;
        let info = snapshot.port(port);
        let Some(desk) = self.desks.iter().find(|desk| desk.serves(&info.name)) else {
            return Err(NoSeat::NoCard { port: info.name.clone(), peer: peer.into() });
        };
        let card = desk.settings.name.clone();
        if let Some(why) = desk.trouble() {
            return Err(NoSeat::Absent { card, why: why.into() });
        }
        let capabilities = desk.capabilities();
        let sas = capabilities.and_then(|card| card.sas.get());
        let Some(sas) = sas else { return Err(NoSeat::Unfit { card, unfit: Unfit::NoSas }) };
        let carried = match desk.settings.kind {
            CardKind::Emulated => None,
            CardKind::Xfrm(_) => Some(carriage(&request, &info.name, &card)?),
        };
        let mut sa = request.sa;
        if carried.is_some() {
            // On such a card Linux writes the outer headers.
            sa = carried_by_linux(sa, request.limits);
        }
        // A packet that is longer than the port allows may be cut after it was sealed.
        let mtus = snapshot.ports().map(|(_, port)| port.mtu);
        sa.limits = sa.limits.for_card(sas, mtus.max().unwrap_or(info.mtu) + MOST_AROUND);
        match offload::sa_fits(&sa, sas, sa.service) {
            Ok(()) => Ok(Seatable { desk: desk.number, netdev: info.netdev, sa, carried }),
            Err(unfit) => Err(NoSeat::Unfit { card, unfit }),
        }
    }

    /// Asks a card for an SA; returns the name that its packets will have. The answer comes among
    /// [`answers`](Self::seat_answers).
    ///
    /// # Errors
    /// [`NoSeat`].
    pub(crate) fn ask_for(&mut self, seatable: Seatable) -> Result<CardSeat, NoSeat> {
        let Seatable { desk: number, netdev, sa, carried } = seatable;
        let gone =
            || NoSeat::Absent { card: String::new(), why: "it is configured no more".into() };
        let desk = self.desks.iter_mut().find(|desk| desk.number == number).ok_or_else(gone)?;
        let card = desk.settings.name.clone();
        let carriage = carried.as_ref().map(|(carriage, _)| carriage);
        let work = match sa.service {
            Service::Packet => CardWork::Packets,
            Service::Crypto => CardWork::Cipher,
        };
        let carrier = match carried {
            None => SeatCarrier::Worker,
            Some(_) => SeatCarrier::Linux,
        };
        let hard = sa.limits.hard_packets;
        let tag = desk.place_sa(sa, carriage).ok_or(NoSeat::NoName { card })?;
        let seat = CardSeat { netdev: netdev.0, tag: tag.to_bits(), work, carrier };
        self.seats.add(seat, number);
        if carrier == SeatCarrier::Worker {
            self.seats.hard.insert(seat, hard);
        }
        self.seats.carried.extend(carried.map(|(_, of)| (seat, of)));
        Ok(seat)
    }

    /// Takes the answers of cards since the last call.
    pub(crate) fn seat_answers(&mut self) -> Vec<(CardSeat, SeatAnswer)> {
        std::mem::take(&mut self.seats.answers)
    }

    /// Takes the SAs that cards ended at a hard limit and that a reading has confirmed since. The
    /// card's message only causes the reading: an SA that has counted less than its limit has not
    /// ended.
    pub(crate) fn ended_seats(&mut self) -> HashSet<CardSeat> {
        let Cards { desks, seats, .. } = self;
        let is_read = |seat: &CardSeat, since: Instant| {
            let number = seats.desks.get(seat);
            let desk = desks.iter().find(|desk| Some(&desk.number) == number);
            let held = desk.and_then(|desk| desk.held.as_ref());
            held.is_none_or(|held| held.read_at.is_some_and(|read| read > since))
        };
        let (read, waiting) = seats.ended.iter().partition(|(seat, since)| is_read(seat, *since));
        seats.ended = waiting;
        let read: Vec<(CardSeat, Instant)> = read;
        read.into_iter().map(|(seat, _)| seat).filter(|seat| self.is_at_limit(*seat)).collect()
    }

    /// Returns whether an SA has counted up to its hard limit. Where Linux carries its packets,
    /// Linux has taken it out, and there is nothing to count.
    fn is_at_limit(&self, seat: CardSeat) -> bool {
        match self.seats.hard.get(&seat) {
            None => true,
            Some(most) => most.is_some_and(|most| {
                self.use_of(seat).is_some_and(|use_| use_.reading.packets >= most)
            }),
        }
    }

    /// Returns whether an SA's seat is lost: its card has it no more.
    pub(crate) fn is_lost(&self, seat: CardSeat) -> bool {
        !self.seats.desks.contains_key(&seat)
    }

    /// Returns whether the daemon has read a card since the last call.
    pub(crate) fn were_read(&mut self) -> bool {
        let read = |desk: &mut Desk| std::mem::take(&mut desk.was_read);
        self.desks.iter_mut().fold(false, |any, desk| any | read(desk))
    }

    /// SAs whose packets Linux carries, of those that a snapshot has.
    pub(crate) fn carried(&self, snapshot: &Snapshot) -> Vec<&CarriedSeat> {
        if self.seats.carried.is_empty() {
            return Vec::new();
        }
        let seats = snapshot.outbound().filter_map(|sa| sa.card);
        let seats = seats.chain(snapshot.inbound().filter_map(|sa| sa.card));
        seats.filter_map(|seat| self.seats.carried.get(&seat)).collect()
    }

    /// The SAs of a card whose packets Linux carries, of those that a snapshot has.
    pub(super) fn carried_by(&self, desk: &Desk, snapshot: &Snapshot) -> Vec<CarriedSa> {
        let is_its = |seat: &&CarriedSeat| desk.serves(&seat.port);
        let one = |seat: &CarriedSeat| {
            let place = snapshot.sad().places().get(seat.set)?;
            let peer = snapshot.set(place).peer.clone();
            let (direction, spi, reqid) = (seat.direction, seat.spi, seat.reqid);
            Some(CarriedSa { peer, direction, spi, reqid })
        };
        self.carried(snapshot).into_iter().filter(is_its).filter_map(one).collect()
    }

    /// Makes Linux forget the SAs of peers whose packets it would carry otherwise under these
    /// policies.
    pub(crate) fn lose_carried(&mut self, spd: &Spd, ends: &[IpAddr]) {
        let mut judged: HashMap<SaSetId, Result<Vec<CarriedFlow>, NotCarried>> = HashMap::new();
        let mut lost = Vec::new();
        for (seat, carried) in &self.seats.carried {
            let now = judged.entry(carried.set);
            let now = now.or_insert_with(|| carried_flows(spd, carried.set, ends));
            match now {
                Ok(flows) if **flows == *carried.flows => {}
                Ok(_) => lost.push((*seat, "its policies are others now".to_owned())),
                Err(why) => lost.push((*seat, format!("Linux may not carry it now: {why}"))),
            }
        }
        for (seat, why) in lost {
            self.unseat(seat);
            self.seats.lost.insert(seat, why);
        }
    }

    /// Returns whether Linux carries packets of any SA.
    pub(crate) fn carry_any(&self) -> bool {
        !self.seats.carried.is_empty()
    }

    /// Returns whether any SA is in a card.
    pub(crate) fn has_seats(&self) -> bool {
        !self.seats.desks.is_empty()
    }

    /// Returns whether there are lost seats that [`lost_seats`](Self::lost_seats) has not given
    /// yet.
    pub(crate) fn has_lost_seats(&self) -> bool {
        !self.seats.lost.is_empty()
    }

    /// Takes the seats that were lost since the last call, with the reasons.
    pub(crate) fn lost_seats(&mut self) -> HashMap<CardSeat, String> {
        std::mem::take(&mut self.seats.lost)
    }

    /// Makes a card forget an SA.
    pub(crate) fn unseat(&mut self, seat: CardSeat) {
        let Some(number) = self.seats.remove(seat) else { return };
        let desk = self.desks.iter_mut().find(|desk| desk.number == number);
        if let (Some(desk), Some(tag)) = (desk, Tag::from_bits(seat.tag)) {
            desk.withdraw_sa(tag);
        }
    }

    /// Makes cards forget the SAs that a snapshot no longer has. No worker may still use the
    /// snapshot before it.
    pub(crate) fn release(&mut self, before: &Snapshot, now: &Snapshot) {
        if self.seats.desks.is_empty() {
            return;
        }
        let (outbound, inbound) = now.sad().gone_since(before.sad());
        let outbound = outbound.into_iter().filter_map(|sa| sa.card);
        let seats = outbound.chain(inbound.into_iter().filter_map(|sa| sa.card));
        let mut gone: HashSet<CardSeat> = seats.collect();
        if gone.is_empty() {
            return;
        }
        // One that has another slot now is not gone.
        for seat in now.outbound().filter_map(|sa| sa.card) {
            gone.remove(&seat);
        }
        for seat in now.inbound().filter_map(|sa| sa.card) {
            gone.remove(&seat);
        }
        gone.into_iter().for_each(|seat| self.unseat(seat));
    }

    /// Makes cards forget all SAs whose packets would leave by netdevs that are down.
    pub(crate) fn flush_netdevs(&mut self, is_down: impl Fn(NetdevId) -> bool) {
        let seats = self.seats.desks.keys();
        let down: Vec<CardSeat> =
            seats.filter(|seat| is_down(NetdevId(seat.netdev))).copied().collect();
        for seat in down {
            self.unseat(seat);
            self.seats.lost.insert(seat, "its link is down".into());
        }
    }

    /// The use of an SA as its card counted it last.
    pub(crate) fn use_of(&self, seat: CardSeat) -> Option<SaUse> {
        let number = self.seats.desks.get(&seat)?;
        let desk = self.desks.iter().find(|desk| desk.number == *number)?;
        desk.held.as_ref()?.sas.use_of(Tag::from_bits(seat.tag)?)
    }

    /// The card of each netdev of a snapshot that is on one.
    pub(crate) fn by_netdev(&self, snapshot: &Snapshot) -> HashMap<u16, NetdevCard> {
        let mut cards = HashMap::new();
        if self.desks.is_empty() {
            return cards;
        }
        for (_, port) in snapshot.ports() {
            let Some(desk) = self.desks.iter().find(|desk| desk.serves(&port.name)) else {
                continue;
            };
            let name = desk.settings.name.as_str().into();
            let read_at = desk.held.as_ref().and_then(|held| held.read_at);
            cards.insert(port.netdev.0, NetdevCard { name, read_at });
        }
        cards
    }

    /// Takes in the cards' news of SAs.
    pub(super) fn take_sa_news(&mut self) {
        let Cards { desks, seats, .. } = self;
        for desk in desks {
            let name = desk.settings.name.clone();
            for (news, why) in desk.sa_news() {
                match news {
                    SaNews::Stray(tag) => desk.withdraw_sa(tag),
                    SaNews::Limit(..) => desk.look_soon(),
                    _ => {}
                }
                seats.hear(desk.number, news, &name, why);
            }
        }
    }

    /// Notes the SAs of cards that the configuration no longer has as lost.
    pub(super) fn lose_seats_without_desks(&mut self) {
        let numbers: Vec<u64> = self.desks.iter().map(|desk| desk.number).collect();
        let seats = self.seats.desks.iter();
        let gone = seats.filter(|(_, desk)| !numbers.contains(desk)).map(|(seat, _)| *seat);
        for seat in gone.collect::<Vec<_>>() {
            self.seats.remove(seat);
            let why = "its card is configured no more, or in another way";
            self.seats.lost.insert(seat, why.into());
        }
    }
}

/// The packets of a peer as Linux is to carry them.
///
/// # Errors
/// [`NoSeat`]: it cannot.
fn carriage(
    request: &SeatRequest<'_>,
    port: &str,
    card: &str,
) -> Result<(Carriage, CarriedSeat), NoSeat> {
    let SeatRequest { snapshot, set, sa, ends, .. } = request;
    let flows = carried_flows(snapshot.spd(), *set, ends);
    let flows = flows.map_err(|why| NoSeat::Policies { card: card.into(), why })?;
    let flows: Arc<[CarriedFlow]> = flows.into();
    // The last one is for questions.
    let most = REQIDS.end() - REQIDS.start() - 1;
    let reqid = match set.0 <= most {
        true => REQIDS.start() + set.0,
        false => return Err(NoSeat::NoName { card: card.into() }),
    };
    let carriage = Carriage {
        reqid,
        flows: flows.clone(),
        hard_seconds: request.hard_seconds.map(u64::from),
        ifindex: request.ifindex,
    };
    let seat = CarriedSeat {
        set: *set,
        reqid,
        port: port.into(),
        direction: sa.direction,
        destination: sa.ends.destination,
        spi: sa.spi,
        flows,
    };
    Ok((carriage, seat))
}

/// The card that a netdev is of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NetdevCard {
    /// Name of the card.
    pub(crate) name: Arc<str>,
    /// Time of the last reading.
    pub(crate) read_at: Option<Instant>,
}

impl NetdevCard {
    /// Time since the last reading, milliseconds.
    pub(crate) fn read_age_ms(&self) -> Option<u64> {
        u64::try_from(self.read_at?.elapsed().as_millis()).ok()
    }
}

/// SAs of one card.
impl Desk {
    /// Returns whether a port of this name is on it.
    fn serves(&self, port: &str) -> bool {
        self.port_names().any(|name| name == port)
    }

    /// The abilities that the card named last.
    fn capabilities(&self) -> Option<&offload::Capabilities> {
        self.held.as_ref().map(|held| held.ledger.card())
    }

    /// Asks the card for an SA; returns its name there. `None`: no name is left.
    fn place_sa(&mut self, sa: CardSa, carriage: Option<&Carriage>) -> Option<Tag> {
        use offload::Card as _;
        let held = self.held.as_mut()?;
        let tag = match carriage {
            // Both halves: a card carries nothing by an SA whose policy it has not.
            None if sa.service == Service::Packet => {
                let [tag, beside] = held.sas.place_with_policy()?;
                let policy = policy_beside(&sa, tag);
                held.card.place(&Item::Sa(sa.into()), tag);
                held.card.place(&Item::Policy(policy.into()), beside);
                tag
            }
            None => {
                let tag = held.sas.place()?;
                held.card.place(&Item::Sa(sa.into()), tag);
                tag
            }
            Some(carriage) => {
                let tag = held.sas.place()?;
                held.card.carry(tag, &sa, carriage);
                tag
            }
        };
        Some(tag)
    }

    /// Asks the card to forget an SA.
    fn withdraw_sa(&mut self, tag: Tag) {
        use offload::Card as _;
        if let Some(held) = &mut self.held {
            let beside = held.sas.policy_of(tag);
            held.sas.withdraw(tag);
            beside.into_iter().chain([tag]).for_each(|tag| held.card.withdraw(tag));
        }
    }
}

/// The policy beside an SA: it matches all packets. The classifier decides which packets are for
/// the SA, and the worker names the SA with each.
fn policy_beside(sa: &CardSa, tag: Tag) -> CardPolicy {
    let any = |first: IpAddr, last: IpAddr| {
        let span = Span { first, last };
        Pattern { source: span, destination: span, upper: UpperPattern::Any }
    };
    CardPolicy {
        direction: sa.direction,
        ports: [0].into(),
        rank: 0,
        patterns: [
            any([0; 4].into(), [u8::MAX; 4].into()),
            any([0; 16].into(), [u8::MAX; 16].into()),
        ]
        .into(),
        action: PolicyAction::Protect(tag.handle),
    }
}
