//! Peers whose packets Linux carries, for a card that does ESP under Linux: what the programs pass
//! and the guard opens for them.
//!
//! ```text
//! more    Linux has SAs and policies ─▶ workers walk by the SAs ─▶ programs pass ─▶ guard opens
//! less    guard closes ─▶ programs pass no more ─▶ workers walk without ─▶ Linux forgets
//! ```
//!
//! Nothing depends on that order: the guard opens what Linux sealed or opened, and nothing else.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bpf::Carried as Ways;
use control::guard::CarriedPeer;
use dataplane::{Side, Snapshot};
use offload::SaDirection;

use super::Gateway;
use crate::cards::{CardPicture, CarriedSeat};
use crate::netdev::Passed;

/// Packets that Linux carries.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Carrying {
    peers: Vec<CarriedPeer>,
    /// For the programs.
    pub(super) passed: Arc<Passed>,
}

impl Carrying {
    fn of(seats: &[&CarriedSeat]) -> Carrying {
        let mut peers: BTreeMap<u32, CarriedPeer> = BTreeMap::new();
        let mut networks: BTreeMap<(IpAddr, u8), Ways> = BTreeMap::new();
        let mut sas = Vec::new();
        for seat in seats {
            let remotes = seat.flows.iter().map(|flow| flow.remote);
            let way = match seat.direction {
                SaDirection::Out => Ways::Out,
                SaDirection::In => {
                    sas.push((seat.destination, seat.spi));
                    Ways::In
                }
            };
            for remote in remotes.clone() {
                let known = networks.entry(remote).or_insert(way);
                if *known != way {
                    *known = Ways::Both;
                }
            }
            let peer = peers.entry(seat.reqid).or_insert_with(|| CarriedPeer {
                port: seat.port.clone(),
                reqid: seat.reqid,
                remotes: Vec::new(),
            });
            peer.remotes.extend(remotes);
            peer.remotes.sort_unstable();
            peer.remotes.dedup();
        }
        sas.sort_unstable();
        sas.dedup();
        let networks = networks
            .into_iter()
            .map(|((address, bits), ways)| (bpf::Prefix { address, bits }, ways));
        let passed = Passed { networks: networks.collect(), sas }.into();
        Carrying { peers: peers.into_values().collect(), passed }
    }

    /// Peers for which the guard is open.
    pub(super) fn peers(&self) -> &[CarriedPeer] {
        &self.peers
    }
}

impl Gateway {
    /// Addresses at which tunnels of this gateway end, here and there, as configured and now.
    pub(crate) fn tunnel_ends(&self) -> Vec<IpAddr> {
        let configured = self.compiled.all_peers().map(|peer| peer.encapsulation.tunnel);
        let all = configured.chain(self.compiled.sets().map(|set| set.tunnel));
        let ends = all.flat_map(|ends| [ends.local, ends.remote]);
        ends.chain(self.compiled.remotes()).collect()
    }

    /// Closes what Linux may not carry any more when workers go over to a snapshot. Packets of
    /// peers whose policies change are the workers' again, who have no SA for them.
    pub(super) async fn carry_less(&mut self, next: &Snapshot) {
        if !self.cards.carry_any() && self.carrying == Carrying::default() {
            return;
        }
        let ends = self.tunnel_ends();
        self.cards.lose_carried(next.spd(), &ends);
        let carried = Carrying::of(&self.cards.carried(next));
        // What is new comes afterwards.
        let (now, next) = (&self.carrying, &carried);
        let networks = &next.passed.networks;
        let is_more = now.peers.iter().all(|peer| next.peers.contains(peer))
            && now.passed.networks.iter().all(|network| networks.contains(network));
        if !is_more {
            self.carry(carried).await;
        }
    }

    /// Has programs pass and the guard open what Linux carries now.
    pub(super) async fn carry_more(&mut self) {
        if !self.cards.carry_any() && self.carrying == Carrying::default() {
            return;
        }
        let carried = Carrying::of(&self.cards.carried(&self.snapshot));
        self.carry(carried).await;
    }

    /// The cards as they are, for the API.
    pub(crate) fn card_pictures(&self) -> Vec<CardPicture> {
        self.cards.pictures(&self.snapshot)
    }

    /// Has programs pass nothing for Linux to carry, and the guard open nothing: the daemon ends.
    pub(crate) async fn carry_nothing(&mut self) {
        self.carry(Carrying::default()).await;
    }

    async fn carry(&mut self, carried: Carrying) {
        if carried == self.carrying {
            return;
        }
        self.carrying = carried;
        self.instruct_and_tell();
        self.renew_guard().await;
    }

    /// Packets that the program of a netdev passes to Linux: of one of protected ports, or of a
    /// port that leads to a peer.
    pub(super) fn passed_by(&self, netdev: &str) -> Arc<Passed> {
        let leads = |name: &str| self.carrying.peers.iter().any(|peer| peer.port == name);
        let ports = self.config().ports.iter().filter(|port| port.netdev == netdev);
        let mut ports = ports.map(|port| port.side == Side::Protected || leads(&port.name));
        if ports.any(|is_one| is_one) { self.carrying.passed.clone() } else { Arc::default() }
    }
}
