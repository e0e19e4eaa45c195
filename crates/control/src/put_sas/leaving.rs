//! SAs that leave: deleted, or replaced and no longer waited for.

use std::collections::HashSet;

use ipsec::{SaId, Spi};
use policy::Direction;

use super::ChangedSas;
use crate::compiled::Compiled;
use crate::kept_sas::Kept;

/// Time that a replaced inbound SA opens after the first authentic packet of its replacement, in
/// nanoseconds: what is on its way arrives.
pub const LINGER_NS: u64 = 5_000_000_000;
/// Time that a replaced inbound SA opens at most, in nanoseconds.
pub const MOST_LINGER_NS: u64 = 300_000_000_000;

/// The name of an SA.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SaName {
    /// Direction of the SA.
    pub direction: Direction,
    /// SPI of the SA.
    pub spi: Spi,
    /// Name of its peer; `None`: it is the only one of this SPI and direction.
    pub peer: Option<String>,
}

/// An SA that is gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GoneSa {
    /// Direction of the SA.
    pub direction: Direction,
    /// SPI of the SA.
    pub spi: Spi,
    /// Name of its peer.
    pub peer: String,
    /// The reason.
    pub reason: GoneReason,
}

/// The reason why an SA is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GoneReason {
    /// Its owner deleted it.
    Deleted,
    /// Another took its place; of an inbound one, whose packets have come.
    Replaced,
    /// Another replaced it, and no packet of that came in time.
    ReplacementSilent,
    /// Its peer is gone from the configuration, has its keys from elsewhere, may not have the SA's
    /// ends, or is carried in another way than the card was told that has the SA.
    PeerGone,
    /// The card that had it has it no more.
    CardLost,
}

/// The reason why an SA is not deleted. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DeleteRefusal {
    /// No such SA runs.
    #[error("no {direction} SA {spi}{} runs", of_peer(.peer))]
    Unknown {
        /// The direction.
        direction: &'static str,
        /// The SPI.
        spi: Spi,
        /// The peer that was named.
        peer: Option<String>,
    },
    /// The SA is that of a key file.
    #[error("{direction} SA {spi} is from the key file of peer {peer}: change that file and apply")]
    FileSa {
        /// The direction.
        direction: &'static str,
        /// The SPI.
        spi: Spi,
        /// The peer's name.
        peer: String,
    },
    /// Several peers have an outbound SA of this SPI.
    #[error("several peers have an outbound SA {spi}: name the peer, one of {}", .peers.join(", "))]
    Ambiguous {
        /// The SPI.
        spi: Spi,
        /// The peers.
        peers: Vec<String>,
    },
}

impl DeleteRefusal {
    /// Returns the word of the reason in the API: one of a closed set.
    pub const fn word(&self) -> &'static str {
        match self {
            DeleteRefusal::Unknown { .. } => "unknown_sa",
            DeleteRefusal::FileSa { .. } => "file_keys",
            DeleteRefusal::Ambiguous { .. } => "ambiguous",
        }
    }
}

fn of_peer(peer: &Option<String>) -> String {
    peer.as_ref().map_or(String::new(), |peer| format!(" of peer {peer}"))
}

impl Compiled {
    /// Returns the configuration without these SAs, all or none.
    ///
    /// # Errors
    /// [`DeleteRefusal`] of the first that cannot be deleted, with its place in the list.
    pub fn without(&self, names: &[SaName]) -> Result<ChangedSas, (usize, DeleteRefusal)> {
        let (mut compiled, mut gone) = (self.copied(), Vec::with_capacity(names.len()));
        for (place, name) in names.iter().enumerate() {
            let id = compiled.named(name).map_err(|refusal| (place, refusal))?;
            gone.extend(match name.direction {
                Direction::Outbound => compiled.take_outbound(id, GoneReason::Deleted),
                Direction::Inbound => compiled.take_inbound(id, GoneReason::Deleted),
            });
        }
        Ok(ChangedSas { compiled, gone })
    }

    /// The slot of an SA that was put.
    pub(crate) fn named(&self, name: &SaName) -> Result<SaId, DeleteRefusal> {
        let SaName { direction, spi, peer } = name;
        let (spi, word) = (*spi, direction.name());
        let found: Vec<(SaId, String)> = match direction {
            Direction::Outbound => {
                let of_spi = self.sad.outbound_by_spi(spi);
                of_spi.map(|sa| (sa.id, self.peer_of(sa.set))).collect()
            }
            Direction::Inbound => {
                let of_spi = self.sad.inbound_by_spi(spi).into_iter();
                of_spi.map(|sa| (sa.id, self.peer_of(sa.set))).collect()
            }
        };
        let is_meant = |of: &String| peer.as_ref().is_none_or(|peer| peer == of);
        let mut meant: Vec<_> = found.into_iter().filter(|(_, of)| is_meant(of)).collect();
        let Some((id, of)) = meant.pop() else {
            return Err(DeleteRefusal::Unknown { direction: word, spi, peer: peer.clone() });
        };
        if !meant.is_empty() {
            let peers = meant.into_iter().map(|(_, of)| of).chain([of]).collect();
            return Err(DeleteRefusal::Ambiguous { spi, peers });
        }
        let is_put = match direction {
            Direction::Outbound => self.put.outbound.contains_key(&id),
            Direction::Inbound => self.put.inbound.contains_key(&id),
        };
        match is_put {
            true => Ok(id),
            false => Err(DeleteRefusal::FileSa { direction: word, spi, peer: of }),
        }
    }

    /// Takes out an SA that seals and was put.
    pub(crate) fn take_outbound(&mut self, id: SaId, reason: GoneReason) -> Option<GoneSa> {
        let kept = self.put.outbound.remove(&id)?;
        let (set, spi, direction) = (kept.sa.set, kept.sa.spi, Direction::Outbound);
        let peer = self.peer_of(set);
        self.change_order(set, |order| order.retain(|known| *known != id));
        self.sad.remove_outbound(id);
        Some(GoneSa { direction, spi, peer, reason })
    }

    /// Takes out an SA that opens and was put.
    pub(crate) fn take_inbound(&mut self, id: SaId, reason: GoneReason) -> Option<GoneSa> {
        let kept = self.put.inbound.remove(&id)?;
        let (spi, direction) = (kept.sa.spi, Direction::Inbound);
        let peer = self.peer_of(kept.sa.set);
        self.put.lingering.remove(&id);
        self.sad.remove_inbound(id);
        Some(GoneSa { direction, spi, peer, reason })
    }

    /// Notes which replacements have begun to open packets, and returns the configuration without
    /// the replaced inbound SAs whose time is over; `None`: there is none of these. `now_ns` is of
    /// the boot clock.
    ///
    /// Cost: by the replaced SAs that there are. To be called ten times a second.
    pub fn retired(&mut self, now_ns: u64) -> Option<ChangedSas> {
        let mut over = Vec::new();
        for id in self.put.lingering.clone() {
            let Some(kept) = self.put.inbound.get(&id).cloned() else { continue };
            let Some(mut replaced) = kept.replaced.clone() else { continue };
            if replaced.seen_ns.is_none() && self.has_begun(&kept) {
                replaced.seen_ns = Some(now_ns);
                self.put.inbound.insert(id, kept.replaced(replaced.clone()));
            }
            let is_past = |since: u64, time: u64| now_ns.saturating_sub(since) >= time;
            match replaced.seen_ns {
                Some(seen) if is_past(seen, LINGER_NS) => over.push((id, GoneReason::Replaced)),
                _ if is_past(replaced.since_ns, MOST_LINGER_NS) => {
                    let is_silent = replaced.seen_ns.is_none();
                    let silent = GoneReason::ReplacementSilent;
                    over.push((id, if is_silent { silent } else { GoneReason::Replaced }));
                }
                _ => {}
            }
        }
        if over.is_empty() {
            return None;
        }
        let mut compiled = self.copied();
        let gone = over.into_iter().filter_map(|(id, reason)| compiled.take_inbound(id, reason));
        let gone = gone.collect();
        Some(ChangedSas { compiled, gone })
    }

    /// Returns whether an authentic packet of a replacement, or of one that replaced that, came.
    fn has_begun(&self, kept: &Kept<ipsec::InboundSa>) -> bool {
        let by = |kept: &Kept<ipsec::InboundSa>| {
            kept.replaced.as_ref().map_or(Vec::new(), |replaced| replaced.by.clone())
        };
        let (mut to_see, mut seen) = (by(kept), HashSet::new());
        while let Some(spi) = to_see.pop() {
            // An SPI may be used anew, so that the chain need not end.
            let Some(sa) = self.sad.inbound_by_spi(spi).filter(|_| seen.insert(spi)) else {
                continue;
            };
            let Some(next) = self.put.inbound.get(&sa.id).filter(|_| sa.set == kept.sa.set) else {
                continue;
            };
            if sa.window.right_edge() > 0 {
                return true;
            }
            to_see.extend(by(next));
        }
        false
    }

    /// Returns whether any inbound SA was replaced and is still there.
    pub fn has_replaced(&self) -> bool {
        !self.put.lingering.is_empty()
    }
}
