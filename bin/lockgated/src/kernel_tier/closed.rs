//! Tables that were closed, and the moment from which others may follow them.

/// Tables of which the lease is not renewed.
pub(super) struct Closed {
    /// The reason.
    pub(super) why: String,
    pub(super) until: Until,
}

/// The end of the time in which there are no others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Until {
    /// The next change of the snapshot.
    Change,
    /// A moment by the kernel's clock, in nanoseconds, whatever changes before.
    Moment(u64),
}

impl Closed {
    /// Returns whether new tables may be made. `has_changed`: the snapshot is another one than that
    /// under which these were closed.
    pub(super) fn is_over(&self, has_changed: impl FnOnce() -> bool, now_ns: u64) -> bool {
        match self.until {
            Until::Change => has_changed(),
            Until::Moment(moment_ns) => moment_ns <= now_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_does_not_shorten_the_rest_after_a_wrong_answer() {
        let closed = |until| Closed { why: String::new(), until };
        let refused = closed(Until::Change);
        assert!(!refused.is_over(|| false, u64::MAX) && refused.is_over(|| true, 0));
        let wrong = closed(Until::Moment(7));
        assert!(!wrong.is_over(|| true, 6) && !wrong.is_over(|| false, 6));
        assert!(wrong.is_over(|| true, 7) && wrong.is_over(|| false, 8));
    }
}
