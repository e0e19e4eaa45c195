//! Claims on netdevs and on the namespace, so that two daemons never serve one. A claim is an
//! abstract socket name: it belongs to one namespace and is free when the process ends. Any user
//! may bind any such name, so a name that is taken counts only if its owner can run a daemon: root,
//! or this process's user.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket, sockopt,
};

use super::NetdevError;

/// A claim of a netdev or a namespace.
pub(crate) enum Claim {
    /// The claim belongs to this process until dropped.
    Held(#[expect(dead_code, reason = "held")] UnixListener),
    /// A user who is no daemon has taken the name. Two daemons are kept apart by their sockets
    /// alone then: a queue has one.
    Squatted,
}

impl Claim {
    /// Claims a netdev of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`NetdevError::Claimed`], [`NetdevError::Claim`].
    pub(crate) fn make(netdev: &str, ifindex: u32) -> Result<Claim, NetdevError> {
        let netdev = netdev.to_owned();
        match bind(&format!("lockgate/port/{ifindex}")) {
            Ok(Some(claim)) => Ok(claim),
            Ok(None) => Err(NetdevError::Claimed { netdev, ifindex }),
            Err(error) => Err(NetdevError::Claim { netdev, error }),
        }
    }

    /// Claims the calling thread's network namespace: its guard, host port and rules are one
    /// daemon's.
    ///
    /// # Errors
    /// [`NetdevError::NamespaceClaimed`], [`NetdevError::Claim`].
    pub(crate) fn namespace() -> Result<Claim, NetdevError> {
        let netdev = "this network namespace".to_owned();
        match bind("lockgate/namespace") {
            Ok(claim) => claim.ok_or(NetdevError::NamespaceClaimed),
            Err(error) => Err(NetdevError::Claim { netdev, error }),
        }
    }
}

/// `None`: a daemon has the name.
fn bind(name: &str) -> io::Result<Option<Claim>> {
    let address = SocketAddr::from_abstract_name(name)?;
    match UnixListener::bind_addr(&address) {
        Ok(listener) => Ok(Some(Claim::Held(listener))),
        Err(error) if error.kind() != ErrorKind::AddrInUse => Err(error),
        Err(_) => Ok((!is_a_daemons(name)).then_some(Claim::Squatted)),
    }
}

/// Returns whether a daemon could listen under this name. A listener that cannot be asked (its
/// queue is full, or it does not listen) is no daemon.
fn is_a_daemons(name: &str) -> bool {
    let daemons = [0, rustix::process::geteuid().as_raw()];
    listener_of(name).is_ok_and(|user| daemons.contains(&user))
}

/// The user who listens under an abstract name, as the kernel knows.
fn listener_of(name: &str) -> io::Result<u32> {
    // Does not wait for room in the other's queue.
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let asking: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(asking.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    Ok(getsockopt(&asking, sockopt::PeerCredentials)?.uid())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_netdev_is_claimed_once_and_free_again() {
        // No netdev has such an index.
        let ifindex = 0x7000_0000 | std::process::id();
        let first = Claim::make("eth9", ifindex).unwrap();
        assert!(matches!(first, Claim::Held(_)));
        let second = Claim::make("eth9", ifindex);
        assert!(matches!(second, Err(NetdevError::Claimed { .. })));
        drop(first);
        // The child of another test's thread inherits the listener until the child executes its
        // program.
        let end = Instant::now() + Duration::from_secs(10);
        while !matches!(Claim::make("eth9", ifindex), Ok(Claim::Held(_))) {
            assert!(Instant::now() < end, "the claim outlives its owner");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_name_that_nobody_listens_under_is_no_claim() {
        use nix::sys::socket::bind;
        let ifindex = 0x7800_0000 | std::process::id();
        let name = format!("lockgate/port/{ifindex}");
        let flags = SockFlag::SOCK_CLOEXEC;
        let squatter = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        let address = UnixAddr::new_abstract(name.as_bytes()).unwrap();
        bind(squatter.as_raw_fd(), &address).unwrap();
        assert!(matches!(Claim::make("eth9", ifindex), Ok(Claim::Squatted)));
    }
}
