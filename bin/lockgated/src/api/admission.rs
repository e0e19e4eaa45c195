//! Limits on open connections, by user: members of the group cannot keep root out, nor one of
//! them the others.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::{MAX_CONNECTIONS, MAX_USER_CONNECTIONS};

/// Connections at a time that are open only to be told why they get no answer.
const MAX_REFUSED: usize = 16;

/// The connections that are open.
#[derive(Clone, Default)]
pub(super) struct Open(Arc<Mutex<Counts>>);

#[derive(Default)]
struct Counts {
    root: usize,
    others: usize,
    /// Open connections by user id; `None`: the kernel did not say. A user without a connection has
    /// no entry.
    users: HashMap<Option<u32>, usize>,
    refused: usize,
}

/// The reason why a connection gets no answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// Too many connections are open, of root or of all other users together.
    All,
    /// Too many connections of one user are open.
    User(u32),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::All => write!(
                f,
                "too many connections: {MAX_CONNECTIONS} are open, which is the limit; end \
                 commands that follow events"
            ),
            Refusal::User(user) => write!(
                f,
                "too many connections: {MAX_USER_CONNECTIONS} of user {user} are open, which is \
                 the limit of a user; end commands that follow events"
            ),
        }
    }
}

/// One open connection; it is counted until this is dropped.
pub(super) struct Permit {
    open: Open,
    user: Option<u32>,
    refusal: Option<Refusal>,
}

impl Permit {
    /// The reason why it gets no answers, if it does not.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        self.refusal
    }
}

impl Open {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Counting cannot panic half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection of this user. `None`: it is closed without an answer.
    pub(super) fn admit(&self, user: Option<u32>) -> Option<Permit> {
        let mut counts = self.counts();
        let refusal = counts.refusal(user);
        match (refusal, user) {
            (Some(_), _) if counts.refused >= MAX_REFUSED => return None,
            (Some(_), _) => counts.refused += 1,
            (None, Some(0)) => counts.root += 1,
            (None, user) => {
                counts.others += 1;
                *counts.users.entry(user).or_default() += 1;
            }
        }
        Some(Permit { open: self.clone(), user, refusal })
    }
}

impl Counts {
    fn refusal(&self, user: Option<u32>) -> Option<Refusal> {
        if user == Some(0) {
            return (self.root >= MAX_CONNECTIONS).then_some(Refusal::All);
        }
        let own = self.users.get(&user).copied().unwrap_or(0);
        match user {
            Some(user) if own >= MAX_USER_CONNECTIONS => Some(Refusal::User(user)),
            _ if own >= MAX_USER_CONNECTIONS => Some(Refusal::All),
            _ => (self.others >= MAX_CONNECTIONS).then_some(Refusal::All),
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = self.open.counts();
        match (self.refusal, self.user) {
            (Some(_), _) => counts.refused -= 1,
            (None, Some(0)) => counts.root -= 1,
            (None, user) => {
                counts.others -= 1;
                if let Some(own) = counts.users.get_mut(&user) {
                    *own -= 1;
                    if *own == 0 {
                        counts.users.remove(&user);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_keeps_neither_others_nor_root_out() {
        let open = Open::default();
        let admitted = |user| open.admit(user).map(|permit| (permit.refusal(), permit));
        let mut held = Vec::new();
        let mut answered = |user| {
            let (refusal, permit) = admitted(user).expect("told why not");
            held.push(permit);
            refusal
        };
        for _ in 0..MAX_USER_CONNECTIONS {
            assert_eq!(answered(Some(7)), None);
        }
        assert_eq!(answered(Some(7)), Some(Refusal::User(7)));
        for user in 8..11 {
            for _ in 0..MAX_USER_CONNECTIONS {
                assert_eq!(answered(Some(user)), None, "of another user");
            }
        }
        assert_eq!(answered(Some(99)), Some(Refusal::All), "all of them are {MAX_CONNECTIONS}");
        for _ in 0..MAX_CONNECTIONS {
            assert_eq!(answered(Some(0)), None, "root has its own");
        }
        assert_eq!(answered(Some(0)), Some(Refusal::All));
        for _ in 3..MAX_REFUSED {
            answered(Some(7));
        }
        assert!(open.admit(Some(7)).is_none(), "closed without a word");
        held.clear();
        let counts = open.counts();
        assert_eq!((counts.root, counts.others, counts.refused), (0, 0, 0));
        assert!(counts.users.is_empty());
    }
}
