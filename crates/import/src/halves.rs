//! Packet offload needs both: the SA and the policy. Names the half that is missing.

use policy::Direction;

use crate::model::{Entry, Foreigners, OffloadMode};
use crate::peers::Peers;
use crate::problem::{Fate, Omissions};

/// Notes every policy and SA whose other half is not offloaded.
pub(crate) fn judge(found: &Foreigners, peers: &Peers, omissions: &mut Omissions) {
    let directions = [
        (Direction::Outbound, &found.outbound, &peers.of_outbound),
        (Direction::Inbound, &found.inbound, &peers.of_inbound),
    ];
    for (direction, entries, peer_of) in directions {
        let mut by_peer: Vec<Vec<&Entry>> = peers.list.iter().map(|_| Vec::new()).collect();
        for (entry, peer) in entries.iter().zip(peer_of) {
            if let Some(peer) = peer {
                by_peer[*peer].push(entry);
            }
        }
        for (peer, named) in peers.list.iter().zip(&by_peer) {
            let sas = peer.sas.iter().filter(|(_, way)| *way == direction);
            let mut sas = sas.map(|(sa, _)| &found.sas[*sa]);
            let is_packet = |entry: &&&Entry| entry.offload.is_some();
            let offloaded = sas.clone().find_map(|sa| {
                sa.offload.as_ref().filter(|offload| offload.mode == OffloadMode::Packet)
            });
            let software = sas.find(|sa| {
                sa.offload.as_ref().is_none_or(|offload| offload.mode != OffloadMode::Packet)
            });
            let why = |missing: &str| {
                let reason = format!("packet offload needs both, and {missing} is missing");
                (reason, "write `offload packet dev IF` at both, or at neither")
            };
            if let Some(entry) = named.iter().find(is_packet)
                && let Some(offload) = &entry.offload
                && (software.is_some() || offloaded.is_none())
            {
                let (reason, advice) = why("that of the SA");
                omissions.add(Fate::Refused, (&offload.at, "offload packet"), (&reason, advice));
            }
            if let Some(offload) = offloaded
                && !named.iter().all(|entry| is_packet(&entry))
            {
                let (reason, advice) = why("that of the policy");
                omissions.add(Fate::Refused, (&offload.at, "offload packet"), (&reason, advice));
            }
        }
    }
}
