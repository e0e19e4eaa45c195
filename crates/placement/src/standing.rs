//! The standing of a flow with the tier: it answers the flow's packets, or leaves them to the
//! workers for a reason. In the order in which the program looks.

use std::fmt;
use std::net::Ipv4Addr;

use bpf::tier::{FlowKey, Verdict};
use dataplane::{Grounds, NetworkBelow, NotBelow, Snapshot};
use endpoints::EndpointKey;
use wire::{Address, Flow, Vni};

use crate::moment::Moment;
use crate::residents::Residents;
use crate::tables::Tables;

/// The answer of the tier to the packets of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It forwards them: no group judges them.
    Open,
    /// It has a verdict on the flow.
    Judged(Verdict, Grounds),
    /// It leaves them to the workers.
    Leaves(Why),
}

/// The reason why the tier leaves packets to the workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// They are of IPv6, fragments, or begin TCP connections.
    Unusual,
    /// The tier does not have the network.
    Network,
    /// The network's hosts are told direct paths, and workers tell them.
    Direct,
    /// No program of the tier is where the overlay's packets come in.
    Entrance,
    /// An end is not in the tier's table.
    Endpoint(Ipv4Addr),
    /// Its groups' verdict is not to be had.
    NotBelow(NotBelow),
    /// Its groups' verdict could be there, and is not.
    NotPlaced,
    /// No way to the destination's host is open.
    Way,
}

impl fmt::Display for Standing {
    /// Writes a predicate: the tier "forwards it, …".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Standing::Open => f.write_str("forwards it: no group judges it"),
            Standing::Judged(Verdict::Drop, _) => {
                f.write_str("drops it, by its groups' verdict on the flow")
            }
            Standing::Judged(Verdict::Permit, grounds) => {
                f.write_str("forwards it, by its groups' verdict on the flow")?;
                match grounds {
                    Grounds::Rules => Ok(()),
                    Grounds::Connection => f.write_str(", while its connection lasts"),
                }
            }
            Standing::Leaves(why) => write!(f, "leaves it to the workers: {why}"),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::Unusual => return NotBelow::Workers.fmt(f),
            Why::NotBelow(why) => return why.fmt(f),
            Why::Network => {
                "packets of its overlay's port are judged, because that is unprotected; or there \
                 is no room for another network"
            }
            Why::Direct => {
                "hosts of its network are told direct paths (`direct = \"on\"`), of flows that \
                 workers see"
            }
            Why::Entrance => "the tier has no program on the netdev of its overlay's port",
            Why::Endpoint(address) => {
                return write!(
                    f,
                    "endpoint {address} is not in the kernel: it is used too little, or there is \
                     no room"
                );
            }
            Why::NotPlaced => {
                "the verdict of its groups is not in the kernel: the flow is used too little, \
                 there is no room, or the rules have just changed"
            }
            Why::Way => {
                "no way to its destination's host is open: the host is not behind a protected \
                 port, or its link address is not known yet"
            }
        })
    }
}

/// The reason for which the tier does not have a network.
fn without(vni: Vni, snapshot: &Snapshot) -> Why {
    let mut networks = snapshot.overlays().into_iter().flat_map(|it| it.networks());
    let network = networks.find(|network| network.vni == vni);
    match network.is_some_and(|it| snapshot.tells_direct_paths(it)) {
        true => Why::Direct,
        false => Why::Network,
    }
}

impl<T: Tables> Residents<T> {
    /// Returns the standing of a flow in a network, by the snapshot that the tables follow.
    pub fn standing(&self, vni: Vni, flow: &Flow, snapshot: &Snapshot, now: Moment) -> Standing {
        match self.verdict_on(vni, flow, snapshot, now) {
            Ok(None) => Standing::Open,
            Ok(Some((verdict, grounds))) => Standing::Judged(verdict, grounds),
            Err(why) => Standing::Leaves(why),
        }
    }

    /// The verdict on a flow that the tier has. `None`: it needs none.
    fn verdict_on(
        &self,
        vni: Vni,
        flow: &Flow,
        snapshot: &Snapshot,
        now: Moment,
    ) -> Result<Option<(Verdict, Grounds)>, Why> {
        let key = FlowKey::of(vni.get(), flow).ok_or(Why::Unusual)?;
        let open = self.gates.network(vni).ok_or_else(|| without(vni, snapshot))?;
        if !self.gates.has_entrance(open.overlay) {
            return Err(Why::Entrance);
        }
        let is_in = |address: Ipv4Addr| self.is_in(vni, address, open);
        let ends = [key.source, key.destination];
        if let Some(outside) = ends.into_iter().find(|address| !is_in(*address)) {
            return Err(Why::Endpoint(outside));
        }
        let network = snapshot.overlays().and_then(|it| it.network(vni, open.overlay));
        let network = network.ok_or(Why::Network)?;
        let said = match snapshot.network_below(network) {
            NetworkBelow::Closed => return Err(Why::Network),
            NetworkBelow::Open => None,
            NetworkBelow::Asks(_) => {
                let given = open.generation().map(|generation| (open.number, generation));
                let known = self.flows.verdict(key).filter(|_| self.flows.given(key) == given);
                let below = snapshot.flow_below(network, flow, now.walk_s());
                let why = below.err().map_or(Why::NotPlaced, Why::NotBelow);
                Some(known.ok_or(why)?)
            }
        };
        let to = EndpointKey { vni, address: Address::v4(key.destination.into()) };
        if self.has_way_to(to) { Ok(said) } else { Err(Why::Way) }
    }
}
