//! Several workers: which of them does what.

/// A worker's share of the work: which one it is, of how many that walk packets now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkerShare {
    /// Number of the worker.
    pub worker: u32,
    /// Workers, at least 1 and more than `worker`.
    pub workers: u32,
}

impl WorkerShare {
    /// The only worker's.
    pub const ALL: WorkerShare = WorkerShare { worker: 0, workers: 1 };
}
