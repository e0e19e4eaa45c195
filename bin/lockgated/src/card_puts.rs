//! Puts SAs into network cards: the cards take all SAs of a put, or the daemon refuses the put.
//!
//! ```text
//! plan ─▶ record keys ─▶ ask cards ─▶ all answered ─▶ publish to workers ─▶ answer
//!                           └─ one refused or stayed silent: withdraw all ─▶ refusal
//! ```
//!
//! The control thread takes no other order while it waits for cards, so that the plan stays valid.
//! Its clocks go on.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use config::SaOffload;
use control::{CardWish, GoneSa, PortState, PutPlan, SaName};
use ipsec::{CardSeat, SeatCarrier, Spi};
use offload::SaDirection;
use policy::Direction;

use crate::cards::{NoSeat, SeatAnswer, SeatRequest, Seatable};
use crate::events::{Details, Kind};
use crate::sa_changes::{SaChange, SaRefusal};
use crate::sa_limits::boot_clock_ns;
use crate::state::State;
use crate::waiting_put::{Asked, PutReply, ReadyPut, WaitingPut, Wanted};
use crate::worker::WorkerGone;

/// Time that cards may take to answer for a put, and for each SA of it besides.
const PATIENCE: Duration = Duration::from_secs(2);
const PATIENCE_EACH: Duration = Duration::from_millis(20);

impl State {
    /// Returns whether a put waits for cards: no other order is taken.
    pub(crate) fn waits_for_cards(&self) -> bool {
        self.waiting_put.is_some()
    }

    /// Finds cards for the SAs of a plan that are to have one. Asks nothing yet.
    ///
    /// # Errors
    /// [`SaRefusal::NoSeat`]: an SA that only a card may carry can be in none.
    pub(crate) fn find_seats(&self, plan: &PutPlan) -> Result<Vec<Wanted>, SaRefusal> {
        let mut wanted = Vec::new();
        for wish in plan.card_wishes(&self.gateway.compiled) {
            let (number, place, offload) = (wish.number, wish.place, wish.offload);
            match self.seatable(wish) {
                Ok(seatable) => {
                    let asked = Asked { number, place, offload, is_taken: false };
                    wanted.push(Wanted { asked, seatable });
                }
                Err(why) if offload.needs_card() => {
                    return Err(SaRefusal::NoSeat { place, why });
                }
                // Software from birth on.
                Err(_) => {}
            }
        }
        // Where Linux carries packets, it can open them before it seals any.
        wanted.sort_by_key(|wanted: &Wanted| wanted.seatable.direction() == SaDirection::Out);
        Ok(wanted)
    }

    fn seatable(&self, wish: CardWish) -> Result<Seatable, NoSeat> {
        let CardWish { peer, set, may_move, sa, else_sa, limits, hard_seconds, .. } = wish;
        if may_move {
            return Err(NoSeat::Moves { peer });
        }
        let snapshot = &self.gateway.snapshot;
        let place = snapshot.sad().places().get(set);
        let Some(port) = place.and_then(|place| snapshot.port_to_peer(place)) else {
            return Err(NoSeat::NoRoute { peer });
        };
        let state = self.gateway.live.states.get(usize::from(port.0));
        if state != Some(&PortState::Up) {
            let port = snapshot.port(port).name.clone();
            return Err(NoSeat::Down { port, peer });
        }
        let netdev = usize::from(snapshot.port(port).netdev.0);
        let ifindex = self.gateway.live.netdevs.get(netdev).copied().flatten().unwrap_or(0);
        let ends = &self.gateway.tunnel_ends();
        let peer = &peer;
        let seatable = |sa| {
            self.gateway.cards.seatable(SeatRequest {
                port,
                snapshot,
                peer,
                set,
                sa,
                limits,
                hard_seconds,
                ifindex,
                ends,
            })
        };
        match (seatable(sa), else_sa) {
            (Err(NoSeat::Unfit { .. }), Some(sa)) => seatable(sa),
            (found, _) => found,
        }
    }

    /// Asks cards for the SAs of a put; with none to ask for, puts them at once.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn ask_cards(
        &mut self,
        put: ReadyPut,
        wanted: Vec<Wanted>,
    ) -> Result<(), WorkerGone> {
        let deadline = Instant::now() + PATIENCE + PATIENCE_EACH * wanted.len() as u32;
        let mut waiting = WaitingPut { put, asked: HashMap::new(), deadline };
        for Wanted { asked, seatable } in wanted {
            let place = asked.place;
            match self.gateway.cards.ask_for(seatable) {
                Ok(seat) => _ = waiting.asked.insert(seat, asked),
                Err(why) => {
                    self.take_back(waiting, SaRefusal::NoSeat { place, why });
                    return Ok(());
                }
            }
        }
        self.waiting_put = Some(waiting);
        self.go_on_with_put().await
    }

    /// Goes on with a put that waits for cards, as far as these have answered.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn go_on_with_put(&mut self) -> Result<(), WorkerGone> {
        let answers = self.gateway.cards.seat_answers();
        let Some(mut waiting) = self.waiting_put.take() else { return Ok(()) };
        for (seat, answer) in answers {
            let Some(asked) = waiting.asked.get_mut(&seat) else { continue };
            match answer {
                SeatAnswer::Taken => asked.is_taken = true,
                // It lives in software from birth on. Linux may have sealed by it before it was
                // taken out again: software would use those numbers once more.
                SeatAnswer::Refused(_)
                    if asked.offload == SaOffload::Auto && seat.carrier == SeatCarrier::Worker =>
                {
                    waiting.asked.remove(&seat);
                }
                SeatAnswer::Refused(why) => {
                    let refusal = SaRefusal::Card { place: asked.place, why };
                    self.take_back(waiting, refusal);
                    return Ok(());
                }
            }
        }
        let lost = waiting.asked.iter().find(|(seat, _)| self.gateway.cards.is_lost(**seat));
        if let Some((_, asked)) = lost {
            let (place, why) = (asked.place, "the card was lost while it was asked".into());
            self.take_back(waiting, SaRefusal::Card { place, why });
            return Ok(());
        }
        if let Some(silent) = waiting.asked.values().find(|asked| !asked.is_taken) {
            if Instant::now() < waiting.deadline {
                self.waiting_put = Some(waiting);
                return Ok(());
            }
            let (place, why) = (silent.place, "the card does not answer".into());
            self.take_back(waiting, SaRefusal::Card { place, why });
            return Ok(());
        }
        let WaitingPut { mut put, asked, .. } = waiting;
        for (seat, asked) in &asked {
            put.plan.seat(asked.number, *seat);
        }
        self.finish_put(put, asked.into_keys().collect()).await
    }

    /// Refuses a put that waits: the daemon ends.
    pub(crate) fn give_up_put(&mut self) {
        if let Some(waiting) = self.waiting_put.take() {
            self.take_back(waiting, SaRefusal::Stopping);
        }
    }

    /// Has cards forget the SAs of a put, which is refused.
    fn take_back(&mut self, waiting: WaitingPut, refusal: SaRefusal) {
        waiting.asked.into_keys().for_each(|seat| self.gateway.cards.unseat(seat));
        self.answer_put(waiting.put.reply, Err(refusal));
    }

    /// Has workers walk by the SAs of a put, and answers.
    async fn finish_put(&mut self, put: ReadyPut, seats: Vec<CardSeat>) -> Result<(), WorkerGone> {
        let ReadyPut { plan, proofs, done, reply } = put;
        let spis: Vec<Spi> = plan.inbound_spis().collect();
        let answer = match self.gateway.compiled.with_put(plan, proofs, boot_clock_ns()) {
            Ok(changed) => self.gateway.change_sas(changed).await?.map_err(SaRefusal::from),
            Err(error) => Err(error.into()),
        };
        let answer = match answer {
            Ok(_) => {
                self.reserved_spis.end(spis.into_iter());
                Ok(done)
            }
            Err(refusal) => {
                seats.into_iter().for_each(|seat| self.gateway.cards.unseat(seat));
                Err(refusal)
            }
        };
        self.answer_put(reply, answer);
        Ok(())
    }

    /// Answers a put, after everybody who looks can see what was done.
    pub(crate) fn answer_put(&self, reply: PutReply, answer: Result<SaChange, SaRefusal>) {
        // A request for this SA is settled: if the SA goes, the next request is new.
        self.settle_acquires();
        self.show();
        // Whoever asked may be gone.
        let _ = reply.send(answer);
    }

    /// Takes SAs out of use whose cards have them no more, and tells of each.
    ///
    /// # Errors
    /// [`WorkerGone`].
    pub(crate) async fn drop_lost_sas(&mut self) -> Result<(), WorkerGone> {
        if !self.gateway.cards.has_lost_seats() {
            return Ok(());
        }
        let lost = self.gateway.cards.lost_seats();
        let name = |(name, seat): (SaName, CardSeat)| {
            ((name.direction, name.spi, name.peer.unwrap_or_default()), seat)
        };
        let seats: HashMap<(Direction, Spi, String), CardSeat> =
            self.gateway.compiled.seats().into_iter().map(name).collect();
        let Some(changed) = self.gateway.compiled.without_seats(|seat| lost.contains_key(&seat))
        else {
            return Ok(());
        };
        let why = |gone: &GoneSa| {
            let key = (gone.direction, gone.spi, gone.peer.clone());
            seats.get(&key).and_then(|seat| lost.get(seat))
        };
        match self.gateway.change_sas(changed).await? {
            Ok(gone) => {
                for one in &gone {
                    self.report_lost(one, why(one).map_or("", String::as_str));
                }
                self.show();
            }
            // Packets for it are dropped by the card all the same.
            Err(error) => self.events.record(Kind::SaLost, "", error.to_string(), &[]),
        }
        Ok(())
    }

    fn report_lost(&self, gone: &GoneSa, why: &str) {
        let GoneSa { direction, spi, peer, .. } = gone;
        let (subject, direction) = (spi.to_string(), direction.name());
        let message = format!(
            "{direction} SA {spi} of peer {peer} is gone: {why}; how far its numbers were used is \
             not known, so that it does not come back: give both gateways new keys"
        );
        let details: Details<'_> = &[("peer", peer), ("direction", &direction), ("reason", &why)];
        self.events.record(Kind::SaLost, &subject, message, details);
    }
}
