//! Limits on open connections, by user: readers cannot keep administrators out, nor one reader the
//! others.

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
    /// Connections of administrators that found no room among the others.
    administrators: usize,
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
    place: ConnectionGroup,
}

/// Count that a connection belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ConnectionGroup {
    Root,
    Others,
    Administrators,
    Refused(Refusal),
}

impl Permit {
    /// The reason why it gets no answers, if it does not.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        match self.place {
            ConnectionGroup::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}

impl Open {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Counting cannot panic half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection of this user. `None`: it is closed without an answer. The rights of the
    /// user matter only where the others have no room.
    pub(super) fn admit(
        &self,
        user: Option<u32>,
        may_change: impl FnOnce() -> bool,
    ) -> Option<Permit> {
        let mut counts = self.counts();
        let place = counts.place(user, may_change);
        match place {
            ConnectionGroup::Refused(_) if counts.refused >= MAX_REFUSED => return None,
            ConnectionGroup::Refused(_) => counts.refused += 1,
            ConnectionGroup::Root => counts.root += 1,
            ConnectionGroup::Others => counts.others += 1,
            ConnectionGroup::Administrators => counts.administrators += 1,
        }
        if place.is_of_user() {
            *counts.users.entry(user).or_default() += 1;
        }
        Some(Permit { open: self.clone(), user, place })
    }
}

impl ConnectionGroup {
    /// Returns whether the connection counts for its user.
    fn is_of_user(self) -> bool {
        matches!(self, ConnectionGroup::Others | ConnectionGroup::Administrators)
    }
}

impl Counts {
    fn place(&self, user: Option<u32>, may_change: impl FnOnce() -> bool) -> ConnectionGroup {
        let own = self.users.get(&user).copied().unwrap_or(0);
        match user {
            Some(0) if self.root < MAX_CONNECTIONS => ConnectionGroup::Root,
            Some(0) => ConnectionGroup::Refused(Refusal::All),
            Some(user) if own >= MAX_USER_CONNECTIONS => {
                ConnectionGroup::Refused(Refusal::User(user))
            }
            None if own >= MAX_USER_CONNECTIONS => ConnectionGroup::Refused(Refusal::All),
            _ if self.others < MAX_CONNECTIONS => ConnectionGroup::Others,
            _ if self.administrators < MAX_CONNECTIONS && may_change() => {
                ConnectionGroup::Administrators
            }
            _ => ConnectionGroup::Refused(Refusal::All),
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = self.open.counts();
        match self.place {
            ConnectionGroup::Refused(_) => counts.refused -= 1,
            ConnectionGroup::Root => counts.root -= 1,
            ConnectionGroup::Others => counts.others -= 1,
            ConnectionGroup::Administrators => counts.administrators -= 1,
        }
        let own = counts.users.get_mut(&self.user).filter(|_| self.place.is_of_user());
        if let Some(own) = own {
            *own -= 1;
            if *own == 0 {
                counts.users.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_keeps_neither_others_nor_administrators_out() {
        const ADMIN: u32 = 5;
        let open = Open::default();
        let admit = |user| open.admit(user, || user == Some(ADMIN));
        let admitted = |user| admit(user).map(|permit| (permit.refusal(), permit));
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
        for _ in 0..MAX_USER_CONNECTIONS {
            assert_eq!(answered(Some(ADMIN)), None, "administrators have room of their own");
        }
        assert_eq!(answered(Some(ADMIN)), Some(Refusal::User(ADMIN)));
        for _ in 0..MAX_CONNECTIONS {
            assert_eq!(answered(Some(0)), None, "root has its own");
        }
        assert_eq!(answered(Some(0)), Some(Refusal::All));
        for _ in 4..MAX_REFUSED {
            answered(Some(7));
        }
        assert!(admit(Some(7)).is_none(), "closed without a word");
        held.clear();
        let counts = open.counts();
        assert_eq!((counts.root, counts.others, counts.refused), (0, 0, 0));
        assert_eq!(counts.administrators, 0);
        assert!(counts.users.is_empty());
    }
}
