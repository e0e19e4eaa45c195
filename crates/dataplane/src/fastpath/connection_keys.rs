//! The keys of the connections of a batch.

use crate::connections::{FlowHead, KeyColumn};

/// Keys of a batch's connections, of the two ports of its way.
pub(super) struct TrackingColumns {
    v4: [KeyColumn<[u64; 4]>; 2],
    v6: [KeyColumn<[u64; 6]>; 2],
}

impl Default for TrackingColumns {
    fn default() -> TrackingColumns {
        let (v4, v6) = (|| KeyColumn::new(), || KeyColumn::new());
        TrackingColumns { v4: [v4(), v4()], v6: [v6(), v6()] }
    }
}

/// The head of a family's cache keys.
pub(super) trait TrackedHead: FlowHead + Copy {
    /// The keys of the family's connections.
    fn columns(columns: &mut TrackingColumns) -> &mut [KeyColumn<Self::Key>; 2];
}

impl TrackedHead for [u64; 2] {
    fn columns(columns: &mut TrackingColumns) -> &mut [KeyColumn<[u64; 4]>; 2] {
        &mut columns.v4
    }
}

impl TrackedHead for [u64; 6] {
    fn columns(columns: &mut TrackingColumns) -> &mut [KeyColumn<[u64; 6]>; 2] {
        &mut columns.v6
    }
}
