//! Looking at rows between the stages of the walk.

use wire::Frames;

use crate::row::Row;
use crate::snapshot::Snapshot;

/// Points of the walk at which rows are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Point {
    /// Everything for us has been opened.
    Opened,
    /// Policies and routes are about to be asked: what waits is not among the rows, what waited and
    /// goes on is.
    Followed,
    /// Policies and routes have decided.
    Decided,
    /// All that leaves is finished.
    Sealed,
}

/// Looks at the rows of a batch between the stages, and changes nothing.
pub(crate) trait Watch {
    /// The rows as they are at a point.
    fn look<F: Frames>(&mut self, point: Point, snapshot: &Snapshot, rows: &[Row], frames: &F);

    /// Returns whether somebody looks.
    #[inline(always)]
    fn is_watching(&self) -> bool {
        true
    }
}

/// Nobody looks; compiles to nothing.
pub(crate) struct Nobody;

impl Watch for Nobody {
    #[inline(always)]
    fn look<F: Frames>(&mut self, _: Point, _: &Snapshot, _: &[Row], _: &F) {}

    #[inline(always)]
    fn is_watching(&self) -> bool {
        false
    }
}

/// Observers of one walk: a clock of its stages, and a watcher of its rows.
pub(crate) struct Beside<'a, C, W: ?Sized> {
    pub(crate) clock: &'a mut C,
    pub(crate) watch: &'a mut W,
}
