//! Traps whose SAs an earlier charon negotiated. Nobody renews those SAs, so the charon that is
//! connected now is asked for new ones.

use std::collections::VecDeque;
use std::time::Duration;

use charon_link::AddPolicy;
use tokio::time::Instant;

/// Time between two requests. charon drops a request for a trap that it has not finished adding.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// Traps for which charon was asked, the earliest first.
#[derive(Default)]
pub(super) struct Successors(VecDeque<(Instant, AddPolicy)>);

impl Successors {
    /// Forgets all of them: they were another charon's.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns when charon is to be asked again.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.front().map(|(at, _)| *at)
    }

    /// Notes that charon is asked now.
    pub(super) fn add(&mut self, trap: AddPolicy) {
        self.0.push_back((Instant::now() + ASK_AGAIN, trap));
    }

    /// The first trap for which charon is to be asked again by now.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<AddPolicy> {
        self.next().filter(|at| *at <= now)?;
        self.0.pop_front().map(|(_, trap)| trap)
    }
}
