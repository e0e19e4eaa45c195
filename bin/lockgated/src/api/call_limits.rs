//! Limits of each call. `docs/LIMITS.md` has a row for each; a test compares both with the API.

use api::MAX_WHOLE_ANSWERS;

use crate::fair_turns::{FairTurns, TurnCounts};

/// Right that a call needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CallRight {
    /// Membership of group `lockgate`, which opens the socket.
    Reader,
    /// Root, or membership of group `lockgate-admin`.
    Administrator,
}

/// Largest size of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestSize {
    /// [`api::MAX_SMALL_REQUEST_BYTES`].
    Small,
    /// Size of a configuration; from readers [`api::MAX_SMALL_REQUEST_BYTES`].
    Large,
}

/// Memory that an answer takes until it is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AnswerKind {
    /// A page, and the snapshot of its moment.
    Paged,
    /// The whole answer, whose size grows with the configuration. A user other than root makes one
    /// at a time, all callers of a kind together [`MAX_WHOLE_ANSWERS`].
    Whole,
}

/// Limits of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallLimit {
    /// Name in the API.
    pub(super) name: &'static str,
    /// Right of the caller, for the test that compares the table with docs/LIMITS.md.
    #[cfg_attr(not(test), expect(dead_code))]
    pub(super) right: CallRight,
    pub(super) request: RequestSize,
    pub(super) answer: AnswerKind,
}

const fn reader(name: &'static str, answer: AnswerKind) -> CallLimit {
    CallLimit { name, right: CallRight::Reader, request: RequestSize::Small, answer }
}

const fn change(name: &'static str, request: RequestSize) -> CallLimit {
    CallLimit { name, right: CallRight::Administrator, request, answer: AnswerKind::Paged }
}

/// The limits of all calls.
pub(super) const CALL_LIMITS: [CallLimit; 31] = [
    reader("ShowStatus", AnswerKind::Whole),
    reader("ShowPorts", AnswerKind::Whole),
    reader("ShowPeers", AnswerKind::Paged),
    reader("ShowSecurityAssociations", AnswerKind::Paged),
    reader("ShowPolicies", AnswerKind::Paged),
    reader("ShowGroups", AnswerKind::Whole),
    reader("ShowPlacement", AnswerKind::Whole),
    reader("ShowConnections", AnswerKind::Paged),
    reader("ShowCache", AnswerKind::Whole),
    reader("ShowCacheEntries", AnswerKind::Whole),
    reader("ShowNeighbours", AnswerKind::Whole),
    reader("ShowRoutes", AnswerKind::Whole),
    reader("ShowCounters", AnswerKind::Whole),
    reader("Explain", AnswerKind::Whole),
    reader("Export", AnswerKind::Paged),
    reader("ShowEndpoints", AnswerKind::Paged),
    reader("WatchEndpoints", AnswerKind::Paged),
    reader("ShowRevisions", AnswerKind::Whole),
    reader("Events", AnswerKind::Paged),
    change("ClearConnections", RequestSize::Small),
    change("Apply", RequestSize::Large),
    change("Confirm", RequestSize::Small),
    change("Rollback", RequestSize::Small),
    change("Save", RequestSize::Small),
    change("ChangePolicies", RequestSize::Large),
    change("PutSecurityAssociations", RequestSize::Small),
    change("DeleteSecurityAssociations", RequestSize::Small),
    change("ReserveSpi", RequestSize::Small),
    change("ChangeEndpoints", RequestSize::Large),
    change("WatchAcquires", RequestSize::Small),
    change("Capture", RequestSize::Small),
];

/// Returns the limits of the call with this path. `None`: there is no such call.
pub(super) fn limit_of(path: &str) -> Option<&'static CallLimit> {
    let name = path.rsplit('/').next()?;
    CALL_LIMITS.iter().find(|limit| limit.name == name)
}

/// Returns the turns of whole answers: a user other than root makes one at a time.
pub(super) fn answer_turns() -> FairTurns {
    turns_of(MAX_WHOLE_ANSWERS)
}

/// Searches for a name in a long answer, and counts of peers, at a time of each kind of caller.
const MAX_SEARCHES: usize = 2;

/// Returns the turns of searches.
pub(super) fn search_turns() -> FairTurns {
    turns_of(MAX_SEARCHES)
}

/// Returns as many turns for each kind of caller of the API.
fn turns_of(count: usize) -> FairTurns {
    let (root, administrators, readers) = (count, count, count);
    FairTurns::new(TurnCounts { root, administrators, readers, scrapes: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each line of the table of calls in the document: `| Name | right | … |`.
    #[test]
    fn every_call_has_its_limits_here_and_a_row_in_the_document() {
        let document = include_str!("../../../../docs/LIMITS.md");
        let limits: Vec<&str> = CALL_LIMITS.iter().map(|limit| limit.name).collect();
        for name in api::CALL_NAMES {
            assert!(limits.contains(name), "{name} has no limits");
        }
        assert_eq!(limits.len(), api::CALL_NAMES.len(), "a call is gone, and its limits are not");
        for CallLimit { name, right, request, answer } in CALL_LIMITS {
            let row = document.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
            let row = row.unwrap_or_else(|| panic!("docs/LIMITS.md has no row of {name}"));
            let right = match right {
                CallRight::Reader => "reader",
                CallRight::Administrator => "administrator",
            };
            let request = match request {
                RequestSize::Small => "64 KiB",
                RequestSize::Large => "257 MiB",
            };
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            assert_eq!((cells[2], cells[3]), (right, request), "{row}");
            let is_whole = cells[4].starts_with("whole");
            assert_eq!(is_whole, answer == AnswerKind::Whole, "{row}");
        }
    }
}
