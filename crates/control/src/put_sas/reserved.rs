//! Reserved SPIs: while a key manager agrees on keys with a peer, the peer learns the SPI before
//! there are keys.

use std::collections::{HashMap, VecDeque};

use ipsec::Spi;
use policy::Direction;

use super::{OpeningWorker, PutRefusal, PutSa, RefusedPut};
use crate::compiled::Compiled;
use crate::owner::KeyManager;

/// Time that an SPI is reserved for, in nanoseconds: more than an exchange of keys takes with all
/// its repetitions.
pub const RESERVED_NS: u64 = 300_000_000_000;
/// SPIs that may be reserved at a time.
pub const MAX_RESERVED: usize = 65_536;

/// Bits of an SPI that are the number of its worker.
const WORKER_BITS: u32 = 8;
/// Attempts to find a vacant SPI: of 2²⁴ for each worker few are taken.
const TRIES: usize = 256;

/// The SPIs that are reserved. Time is of the boot clock.
#[derive(Default)]
pub struct ReservedSpis {
    known: HashMap<Spi, Reservation>,
    /// In the order in which they end. Some are put or reserved anew by then.
    ends: VecDeque<(u64, Spi)>,
    next_worker: u32,
}

struct Reservation {
    peer: String,
    manager: KeyManager,
    worker: OpeningWorker,
    until_ns: u64,
}

/// The reason why no SPI is reserved.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReserveRefusal {
    /// No SAs are put for such a peer.
    #[error(transparent)]
    Peer(#[from] PutRefusal),
    /// As many are reserved as may be.
    #[error("{MAX_RESERVED} SPIs are reserved, as many as may be: put their SAs, or wait")]
    TooMany,
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
        (peer, manager): (&str, KeyManager),
        workers: u32,
        now_ns: u64,
    ) -> Result<(Spi, OpeningWorker), ReserveRefusal> {
        running.check_manager(peer, manager)?;
        self.forget(now_ns);
        if self.known.len() >= MAX_RESERVED {
            return Err(ReserveRefusal::TooMany);
        }
        let workers = workers.max(1);
        let worker = self.next_worker % workers.min(1 << WORKER_BITS);
        let is_free =
            |spi: &Spi| !self.known.contains_key(spi) && running.sad.inbound_by_spi(*spi).is_none();
        for _ in 0..TRIES {
            let mut bytes = [0; 4];
            getrandom::fill(&mut bytes).map_err(ReserveRefusal::NoRandom)?;
            let value = u32::from_ne_bytes(bytes) >> WORKER_BITS << WORKER_BITS | worker;
            let Some(spi) = Spi::new(value).filter(is_free) else { continue };
            let (worker, until_ns) =
                (OpeningWorker { worker, workers }, now_ns.saturating_add(RESERVED_NS));
            let peer = peer.to_owned();
            self.known.insert(spi, Reservation { peer, manager, worker, until_ns });
            self.ends.push_back((until_ns, spi));
            self.next_worker = self.next_worker.wrapping_add(1);
            return Ok((spi, worker));
        }
        Err(ReserveRefusal::NoneVacant)
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
        spis.for_each(|spi| _ = self.known.remove(&spi));
    }

    /// Forgets reservations that have ended.
    fn forget(&mut self, now_ns: u64) {
        while let Some((until_ns, spi)) = self.ends.front().copied() {
            if until_ns > now_ns {
                break;
            }
            self.ends.pop_front();
            if self.known.get(&spi).is_some_and(|of| of.until_ns == until_ns) {
                self.known.remove(&spi);
            }
        }
    }
}
