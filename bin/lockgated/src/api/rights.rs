//! Rights of users, from the machine's database of groups.
//!
//! The database may be a directory in the network, and a look-up in a directory that is down takes
//! minutes. So threads for blocking work look up, one at a time for each user, and the
//! control thread consults only [`RightsCache`].

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api::ADMIN_GROUP;
use nix::unistd::{Group, User, getgrouplist};
use tokio::sync::Semaphore;

use super::peer::Peer;
use crate::who::Uid;

/// Time for which a look-up holds.
const RIGHTS_TIME: Duration = Duration::from_secs(5);
/// Users whose rights are kept.
const MAX_USERS: usize = 1024;
/// Look-ups in progress. Beyond them a user has the rights of a reader.
const MAX_LOOKUPS: usize = 64;

/// Membership of a user in group `lockgate-admin`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AdminMembership {
    /// Id of the group; `None`: the machine has no group of this name.
    group: Option<u32>,
    /// True if the database lists the user in the group.
    is_listed: bool,
}

/// Looks up a user, and may take minutes.
type Lookup = Arc<dyn Fn(Uid) -> AdminMembership + Send + Sync>;

/// Rights of users, each for [`RIGHTS_TIME`].
#[derive(Clone)]
pub(super) struct RightsCache {
    lookup: Lookup,
    lookups: Arc<Semaphore>,
    users: Arc<Mutex<HashMap<u32, Arc<UserRights>>>>,
}

/// Rights of a user.
#[derive(Default)]
struct UserRights {
    latest: Mutex<Option<(Instant, AdminMembership)>>,
    /// Locked during a look-up.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Default for RightsCache {
    fn default() -> RightsCache {
        RightsCache::new(Arc::new(look_up))
    }
}

impl RightsCache {
    pub(super) fn new(lookup: Lookup) -> RightsCache {
        let lookups = Arc::new(Semaphore::new(MAX_LOOKUPS));
        RightsCache { lookup, lookups, users: Arc::default() }
    }

    fn users(&self) -> MutexGuard<'_, HashMap<u32, Arc<UserRights>>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a peer may change the configuration: root, and members of group
    /// `lockgate-admin`. Waits for the database if the latest look-up is older than
    /// [`RIGHTS_TIME`].
    pub(super) async fn may_change(&self, peer: Peer) -> bool {
        if peer.uid.0 == 0 {
            return true;
        }
        let Some(user) = self.user(peer.uid.0) else { return false };
        if let Some(membership) = user.young() {
            return membership.may_change(peer);
        }
        let turn = user.turn.clone().lock_owned().await;
        if let Some(membership) = user.young() {
            return membership.may_change(peer);
        }
        let Ok(place) = self.lookups.clone().try_acquire_owned() else { return false };
        let lookup = self.lookup.clone();
        // The turn and the place last until the look-up ends, also if the client goes away.
        let look_up = move || {
            let _held = (turn, place);
            let membership = lookup(peer.uid);
            *user.latest() = Some((Instant::now(), membership));
            membership
        };
        let found = tokio::task::spawn_blocking(look_up).await;
        found.is_ok_and(|membership| membership.may_change(peer))
    }

    /// Returns whether a peer could change the configuration at its user's latest look-up, however
    /// old. Never waits; begins the first look-up of a user.
    pub(super) fn could_change(&self, peer: Peer) -> bool {
        if peer.uid.0 == 0 {
            return true;
        }
        let Some(user) = self.user(peer.uid.0) else { return false };
        let latest = *user.latest();
        if let Some((_, membership)) = latest {
            return membership.may_change(peer);
        }
        if user.turn.try_lock().is_ok() {
            let rights = self.clone();
            drop(tokio::spawn(async move { rights.may_change(peer).await }));
        }
        false
    }

    /// Returns the entry of a user. `None`: all entries have a look-up in progress.
    fn user(&self, user: u32) -> Option<Arc<UserRights>> {
        let mut users = self.users();
        if let Some(known) = users.get(&user) {
            return Some(known.clone());
        }
        if users.len() >= MAX_USERS {
            let is_idle = |known: &Arc<UserRights>| Arc::strong_count(known) == 1;
            let idle = users.iter().filter(|(_, known)| is_idle(known));
            let oldest = idle.min_by_key(|(_, known)| known.latest().map(|(time, _)| time))?;
            let oldest = *oldest.0;
            users.remove(&oldest);
        }
        Some(users.entry(user).or_default().clone())
    }
}

impl UserRights {
    fn latest(&self) -> MutexGuard<'_, Option<(Instant, AdminMembership)>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn young(&self) -> Option<AdminMembership> {
        let (time, membership) = (*self.latest())?;
        (time.elapsed() < RIGHTS_TIME).then_some(membership)
    }
}

impl AdminMembership {
    fn may_change(self, peer: Peer) -> bool {
        self.is_listed || self.group == Some(peer.gid)
    }
}

/// Asks the database. A failure gives no right.
fn look_up(user: Uid) -> AdminMembership {
    let group = Group::from_name(ADMIN_GROUP).ok().flatten().map(|group| group.gid);
    let is_listed = group.is_some_and(|group| {
        let user = User::from_uid(user.0.into()).ok().flatten();
        let groups = user.and_then(|user| {
            let name = CString::new(user.name).ok()?;
            getgrouplist(&name, user.gid).ok()
        });
        groups.is_some_and(|groups| groups.contains(&group))
    });
    AdminMembership { group: group.map(|group| group.as_raw()), is_listed }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const ADMINS: u32 = 900;

    fn peer(uid: u32) -> Peer {
        Peer { uid: Uid(uid), gid: uid }
    }

    /// A database that lists user 7, counts look-ups, and answers when the sender is dropped.
    fn slow_database() -> (RightsCache, Arc<AtomicUsize>, std::sync::mpsc::Sender<()>) {
        let (release, released) = std::sync::mpsc::channel();
        let (released, count) = (Mutex::new(released), Arc::<AtomicUsize>::default());
        let counted = count.clone();
        let lookup = move |user: Uid| {
            counted.fetch_add(1, Ordering::Relaxed);
            let _ = released.lock().unwrap().recv();
            AdminMembership { group: Some(ADMINS), is_listed: user.0 == 7 }
        };
        (RightsCache::new(Arc::new(lookup)), count, release)
    }

    /// Once the control thread itself waited for the database at each connection's first call.
    #[tokio::test]
    async fn slow_database_delays_neither_root_nor_admission_and_is_asked_once() {
        let (rights, count, release) = slow_database();
        assert!(!rights.could_change(peer(7)));
        let waiting: Vec<_> = (0..32)
            .map(|_| {
                let rights = rights.clone();
                tokio::spawn(async move { rights.may_change(peer(7)).await })
            })
            .collect();
        while count.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        assert!(rights.may_change(peer(0)).await && rights.could_change(peer(0)));
        assert!(!rights.could_change(peer(7)));
        drop(release);
        for call in waiting {
            assert!(call.await.unwrap());
        }
        assert_eq!(count.load(Ordering::Relaxed), 1);
        assert!(rights.could_change(peer(7)) && !rights.may_change(peer(8)).await);
        // The group of the process counts too.
        assert!(rights.may_change(Peer { uid: Uid(9), gid: ADMINS }).await);
    }

    #[tokio::test]
    async fn lookups_and_kept_users_are_bounded() {
        let (rights, count, release) = slow_database();
        let users = 1..=MAX_LOOKUPS as u32 + 1;
        let waiting: Vec<_> = users
            .map(|user| {
                let rights = rights.clone();
                tokio::spawn(async move { rights.may_change(peer(1000 + user)).await })
            })
            .collect();
        while count.load(Ordering::Relaxed) < MAX_LOOKUPS {
            tokio::task::yield_now().await;
        }
        assert!(!rights.may_change(peer(7)).await, "no look-up begins");
        drop(release);
        for call in waiting {
            assert!(!call.await.unwrap());
        }
        assert!(rights.may_change(peer(7)).await);
        for user in 0..2 * MAX_USERS as u32 {
            rights.user(5000 + user);
        }
        assert_eq!(rights.users().len(), MAX_USERS);
    }
}
