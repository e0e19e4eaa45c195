//! Reserved SPIs: while a key manager agrees on keys with a peer, the peer learns the SPI before
//! there are keys.
//!
//! The table has a bound, and remote ends share the table. At the bound the oldest reservation of
//! the end with the most reservations gives way (`reservation_shares`), so that one peer with
//! failing exchanges takes no SPI from the others.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

use ipsec::Spi;
use policy::Direction;

use super::reservation_shares::{ReservationShares, Ticket};
use super::{OpeningWorker, PutRefusal, PutSa, RefusedPut};
use crate::compiled::Compiled;
use crate::owner::KeyManager;
use crate::remote_end::RemoteEnd;

/// Time that an SPI is reserved for, in nanoseconds: more than an exchange of keys takes with all
/// its repetitions.
pub const RESERVED_NS: u64 = 300_000_000_000;
/// SPIs that may be reserved at a time.
pub const MAX_RESERVED: usize = 65_536;

/// Bits of an SPI that are the number of its worker.
const WORKER_BITS: u32 = 8;
/// Attempts to find a vacant SPI: of 2²⁴ for each worker few are taken.
const TRIES: usize = 256;

/// The order in which a process issues SPIs: a random start and a random odd step. All 2²⁴ values
/// are issued once before a value is issued again. So a late packet of an ended SA meets no new SA,
/// unless the process was restarted meanwhile.
struct SpiOrder {
    next: u32,
    step: u32,
}

impl SpiOrder {
    fn new() -> Result<SpiOrder, getrandom::Error> {
        Ok(SpiOrder { next: getrandom::u32()?, step: getrandom::u32()? | 1 })
    }

    /// Returns the next value, without the bits of a worker.
    fn advance(&mut self) -> u32 {
        let value = self.next << WORKER_BITS;
        self.next = self.next.wrapping_add(self.step);
        value
    }
}

/// The SPIs that are reserved. Time is of the boot clock.
#[derive(Default)]
pub struct ReservedSpis {
    known: HashMap<Spi, Reservation>,
    /// In the order of their ends.
    by_ticket: BTreeMap<Ticket, Spi>,
    shares: ReservationShares,
    next_ticket: Ticket,
    next_worker: u32,
    /// `None`: no SPI was issued yet.
    order: Option<SpiOrder>,
}

/// A request for an SPI.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpiRequest {
    /// Name of the peer.
    pub peer: String,
    /// The key manager that will put the SA.
    pub manager: KeyManager,
    /// The remote end of the exchange of keys; `None`: the end of the peer's section.
    pub remote: Option<SocketAddr>,
}

struct Reservation {
    peer: String,
    manager: KeyManager,
    end: RemoteEnd,
    ticket: Ticket,
    worker: OpeningWorker,
    until_ns: u64,
}

/// The reason why no SPI is reserved.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReserveRefusal {
    /// No SAs are put for such a peer.
    #[error(transparent)]
    Peer(#[from] PutRefusal),
    /// The kernel gives no random number.
    #[error("no random number for an SPI: {0}")]
    NoRandom(getrandom::Error),
    /// All SPIs that were tried are taken.
    #[error("no SPI was found that no SA has: try again")]
    NoneVacant,
}

impl ReservedSpis {
    /// Reserves an SPI for a peer, for a worker of those that walk packets: each in turn.
    ///
    /// # Errors
    /// [`ReserveRefusal`].
    pub fn reserve(
        &mut self,
        running: &Compiled,
        request: &SpiRequest,
        workers: u32,
        now_ns: u64,
    ) -> Result<(Spi, OpeningWorker), ReserveRefusal> {
        running.check_manager(&request.peer, request.manager)?;
        self.forget_ended(now_ns);
        let workers = workers.max(1);
        let worker = self.next_worker % workers.min(1 << WORKER_BITS);
        let order = match &mut self.order {
            Some(order) => order,
            vacant => vacant.insert(SpiOrder::new().map_err(ReserveRefusal::NoRandom)?),
        };
        let is_free =
            |spi: &Spi| !self.known.contains_key(spi) && running.sad.inbound_by_spi(*spi).is_none();
        let mut candidates = (0..TRIES).filter_map(|_| Spi::new(order.advance() | worker));
        let spi = candidates.find(is_free).ok_or(ReserveRefusal::NoneVacant)?;
        let worker = OpeningWorker { worker, workers };
        let reservation = Reservation {
            peer: request.peer.clone(),
            manager: request.manager,
            end: running.remote_end(request),
            ticket: self.next_ticket,
            worker,
            until_ns: now_ns.saturating_add(RESERVED_NS),
        };
        self.insert(spi, reservation);
        Ok((spi, worker))
    }

    /// Adds a reservation; beyond the bound another one gives way.
    fn insert(&mut self, spi: Spi, reservation: Reservation) {
        self.next_ticket += 1;
        self.next_worker = self.next_worker.wrapping_add(1);
        self.shares.add(reservation.end, reservation.ticket);
        self.by_ticket.insert(reservation.ticket, spi);
        self.known.insert(spi, reservation);
        if self.known.len() > MAX_RESERVED
            && let Some(victim) = self.shares.victim().and_then(|of| self.by_ticket.get(&of))
        {
            self.remove(*victim);
        }
    }

    fn remove(&mut self, spi: Spi) -> bool {
        let Some(reservation) = self.known.remove(&spi) else { return false };
        self.by_ticket.remove(&reservation.ticket);
        self.shares.remove(reservation.end, reservation.ticket);
        true
    }

    /// Releases an SPI that a key manager reserved for exchanges with a remote address and does not
    /// use. Returns whether the SPI was reserved so.
    pub fn release(&mut self, spi: Spi, manager: KeyManager, remote: IpAddr) -> bool {
        let site = RemoteEnd::new(remote, 0).site;
        let is_it = |of: &Reservation| of.manager == manager && of.end.site == site;
        self.known.get(&spi).is_some_and(is_it) && self.remove(spi)
    }

    /// Gives inbound SAs under reserved SPIs the workers that these were reserved for.
    ///
    /// # Errors
    /// [`PutRefusal::SpiReserved`]: one was reserved for another peer.
    pub fn assign(&self, sas: &mut [PutSa], now_ns: u64) -> Result<(), RefusedPut> {
        for (place, sa) in sas.iter_mut().enumerate() {
            let reserved = self.known.get(&sa.spi).filter(|of| of.until_ns > now_ns);
            let Some(reserved) = reserved.filter(|_| sa.direction == Direction::Inbound) else {
                continue;
            };
            // IKE learns of the CHILD_SA's peer, among those between two addresses, only then.
            let is_for = match reserved.manager {
                KeyManager::Api => sa.manager == KeyManager::Api && reserved.peer == sa.peer,
                KeyManager::Ike => sa.manager == KeyManager::Ike,
            };
            if !is_for {
                let peer = reserved.peer.clone();
                let why = PutRefusal::SpiReserved { spi: sa.spi, peer };
                return Err(RefusedPut { place, why });
            }
            sa.worker = Some(reserved.worker);
        }
        Ok(())
    }

    /// Ends the reservation of SPIs that were put.
    pub fn end(&mut self, spis: impl Iterator<Item = Spi>) {
        spis.for_each(|spi| _ = self.remove(spi));
    }

    /// Forgets reservations that have ended.
    fn forget_ended(&mut self, now_ns: u64) {
        while let Some((_, spi)) = self.by_ticket.first_key_value() {
            let spi = *spi;
            if self.known.get(&spi).is_some_and(|of| of.until_ns > now_ns) {
                break;
            }
            self.remove(spi);
        }
    }
}

impl Compiled {
    /// The remote end that a request for an SPI counts for.
    fn remote_end(&self, request: &SpiRequest) -> RemoteEnd {
        if let Some(remote) = request.remote {
            return remote.into();
        }
        let peer = self.set_named(&request.peer).and_then(|set| self.peer_with(set));
        let way = peer.map(|peer| &peer.encapsulation);
        let address = way.map_or(IpAddr::from([0; 4]), |way| way.tunnel.remote);
        RemoteEnd::new(address, way.and_then(|way| way.udp).map_or(0, |udp| udp.remote))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_issued_once_before_a_value_comes_again() {
        let mut order = SpiOrder::new().unwrap();
        let first = order.advance();
        let mut issued = vec![false; 1 << 24];
        issued[(first >> WORKER_BITS) as usize] = true;
        for _ in 1..1 << 24 {
            let value = order.advance();
            assert_eq!(value & ((1 << WORKER_BITS) - 1), 0);
            assert!(!std::mem::replace(&mut issued[(value >> WORKER_BITS) as usize], true));
        }
        assert_eq!(order.advance(), first);
    }
}
