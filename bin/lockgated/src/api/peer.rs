//! The process at the other end of the socket, and its right to make changes.

use std::ffi::CString;

use api::ADMIN_GROUP;
use nix::unistd::{Gid, Group, User, getgrouplist};
use tokio::net::unix::UCred;

use crate::fair_turns::WorkCaller;
use crate::who::Uid;

/// The process at the other end when it connected, as reported by the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Peer {
    /// User id of the peer's process.
    pub(super) uid: Uid,
    gid: u32,
}

impl Peer {
    /// Returns the process that the kernel reports.
    pub(super) fn of(credentials: UCred) -> Peer {
        Peer { uid: Uid(credentials.uid()), gid: credentials.gid() }
    }

    /// Returns the caller in whose queue the peer waits. Cost: [`Peer::may_change`].
    pub(super) fn caller(self) -> WorkCaller {
        match self.may_change() {
            true => WorkCaller::Administrator(self.uid.0),
            false => WorkCaller::Reader(Some(self.uid.0)),
        }
    }

    /// Returns whether the user may change the configuration: root, and members of group
    /// `lockgate-admin`.
    pub(super) fn may_change(self) -> bool {
        self.uid.0 == 0 || self.is_admin().unwrap_or(false)
    }

    fn is_admin(self) -> Option<bool> {
        let admins = Group::from_name(ADMIN_GROUP).ok()??.gid;
        if admins.as_raw() == self.gid {
            return Some(true);
        }
        let user = User::from_uid(self.uid.0.into()).ok()??;
        let name = CString::new(user.name).ok()?;
        Some(getgrouplist(&name, Gid::from_raw(self.gid)).ok()?.contains(&admins))
    }
}
