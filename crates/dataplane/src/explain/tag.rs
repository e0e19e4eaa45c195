//! Packets that a card's tag decides, and those that are judged in full whatever it says.

use policy::{Beside, Exit, Question};
use wire::{Family, Flow, Upper};

use super::{Arrival, row_of};
use crate::decide::route_inside;
use crate::ids::PortId;
use crate::port::Side;
use crate::snapshot::Snapshot;

/// The reason why no tag decides a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TagUnused {
    /// It is a fragment, of which a card may see less than the gateway.
    Fragment,
    /// It leaves by an unprotected port, where policies are asked, or by none.
    NotInside,
    /// More is asked of it than the groups of the port that it came by.
    Beside(Beside),
}

impl TagUnused {
    /// The reason in words, of a packet.
    pub const fn help(self) -> &'static str {
        match self {
            TagUnused::Fragment => "it is a fragment",
            TagUnused::NotInside => "it does not leave by a protected port",
            TagUnused::Beside(Beside::Connections) => "connections are followed on its way",
            TagUnused::Beside(Beside::Policies) => "policies are asked, too",
            TagUnused::Beside(Beside::GroupsOut) => {
                "groups of the port that it leaves by are asked, too"
            }
        }
    }
}

/// Returns the reason why no tag decides a packet of a flow that comes in clear by a port; `None`:
/// a tag that counts does.
pub fn tag_unused(snapshot: &Snapshot, port: PortId, flow: Flow) -> Option<TagUnused> {
    if flow.upper == Upper::Fragment {
        return Some(TagUnused::Fragment);
    }
    let row = row_of(snapshot, Arrival::Clear(port), flow);
    match route_inside(snapshot, &row) {
        Some(hop) => beside(snapshot, port, flow.family, snapshot.exit(hop)),
        None => Some(TagUnused::NotInside),
    }
}

/// Returns whether a tag that counts decides packets of a family that come by one port and leave by
/// another, but for fragments and the like.
pub fn tag_decides(snapshot: &Snapshot, family: Family, from: PortId, to: PortId) -> bool {
    let towards = snapshot.path_port(to);
    let exit = match towards.side {
        Side::Protected => Exit::Inside(towards.class),
        Side::Unprotected => return false,
    };
    beside(snapshot, from, family, exit).is_none()
}

fn beside(snapshot: &Snapshot, from: PortId, family: Family, exit: Exit) -> Option<TagUnused> {
    let question = match snapshot.path_port(from).side {
        Side::Protected => Question::Through,
        Side::Unprotected => return Some(TagUnused::Beside(Beside::Policies)),
    };
    let scope = snapshot.scope(from, question, family, None);
    snapshot.tables().asked_beside_groups_in(scope, exit).map(TagUnused::Beside)
}
