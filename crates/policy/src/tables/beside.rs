//! Questions that are asked of a packet beside the one to the groups of the port that it came by.

use super::{Asked, Tables, Tracks};
use crate::exit::Exit;
use crate::scope::Scope;

/// A question beside the one to the groups of the port that a packet came by: these do not decide
/// it alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Beside {
    /// Connections are tracked at the port that it came by, or at the one that it leaves by.
    Connections,
    /// The policies.
    Policies,
    /// The groups of the port that it leaves by.
    GroupsOut,
}

impl Tables {
    /// Returns a question that is asked in a scope, for a way out, beside the one to the groups of
    /// the port that packets came by; `None`: those decide alone, as
    /// [`verdict_of_ingress_rule`](Self::verdict_of_ingress_rule) takes it.
    pub fn asked_beside_groups_in(&self, scope: Scope, exit: Exit) -> Option<Beside> {
        let Asked { spd, groups_out, .. } = self.books(scope, exit);
        match () {
            () if self.tracks(scope, exit) != Tracks::default() => Some(Beside::Connections),
            () if spd.is_some() => Some(Beside::Policies),
            () if groups_out.is_some() => Some(Beside::GroupsOut),
            () => None,
        }
    }
}
