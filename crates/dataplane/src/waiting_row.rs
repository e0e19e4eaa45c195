//! Rows of waiting packets, for longer than one snapshot.

use policy::SaSetId;

use crate::row::{Origin, Row};
use crate::snapshot::Snapshot;

/// The row of a waiting packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingRow {
    row: Row,
    /// Set of the SA that opened the packet.
    opened_by: Option<SaSetId>,
}

impl WaitingRow {
    /// Keeps a row of the snapshot's batch.
    pub(crate) fn of(snapshot: &Snapshot, row: &Row) -> WaitingRow {
        let opened_by = match row.origin {
            Origin::Opened(set) => Some(snapshot.set(set).id),
            Origin::Received
            | Origin::Host
            | Origin::Made(_)
            | Origin::Sealed(_)
            | Origin::Carried(_) => None,
        };
        WaitingRow { row: *row, opened_by }
    }

    /// The row under the snapshot of arrival: a later snapshot may number sets differently.
    pub(crate) fn row(&self) -> &Row {
        &self.row
    }

    /// Returns the row under another snapshot; `None`: the set of the opening SA is gone.
    pub(crate) fn under(&self, snapshot: &Snapshot) -> Option<Row> {
        let mut row = self.row;
        if let Some(set) = self.opened_by {
            row.origin = Origin::Opened(snapshot.sad().places().get(set)?);
        }
        Some(row)
    }
}
