//! The way to a peer, for those who ask which port it is.

use policy::SetIndex;

use crate::ids::PortId;
use crate::snapshot::Snapshot;

impl Snapshot {
    /// Returns the port by which a set's outer packets leave; `None`: no route leads to the peer.
    pub fn port_to_peer(&self, set: SetIndex) -> Option<PortId> {
        self.set_adjacency(set).map(|adjacency| adjacency.port)
    }
}
