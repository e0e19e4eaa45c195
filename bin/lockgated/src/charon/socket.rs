//! The socket of charon's plugin: `SOCK_SEQPACKET`, for root alone.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use charon_link::MAX_MESSAGE;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{UnixListener, UnixStream};
use zeroize::Zeroizing;

/// Name of the socket in `run_dir`.
pub(crate) const CHARON_SOCKET: &str = "charon.sock";
/// Time between two tries to take a connection.
const AGAIN: Duration = Duration::from_millis(100);
/// Connections that may wait to be taken.
const BACKLOG: i32 = 8;

/// The listening socket. Its file goes with it.
pub(crate) struct CharonSocket {
    /// Of messages, not of a stream: the calls are the same.
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for CharonSocket {
    fn drop(&mut self) {
        // One that is left behind is replaced at the next start.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl CharonSocket {
    /// Listens at a path; a socket that an earlier daemon left there is replaced. No living daemon
    /// listens there: one that runs has the API's socket in the same directory.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn bind(path: &Path) -> io::Result<CharonSocket> {
        if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
            std::fs::remove_file(path)?;
        }
        let made = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
        made.set_nonblocking(true)?;
        made.bind(&SockAddr::unix(path)?)?;
        // Nobody connects before: it does not listen yet.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        made.listen(BACKLOG)?;
        let listener = UnixListener::from_std(OwnedFd::from(made).into())?;
        Ok(CharonSocket { listener, path: path.to_owned() })
    }

    /// Takes the next connection of root's; others are closed. Where the operating system refuses a
    /// connection, as without a free descriptor, the next try waits.
    pub(super) async fn accept(&self) -> Connection {
        accept_root(|| async { self.listener.accept().await.map(|(taken, _)| taken) }).await
    }
}

/// Tries to accept until root connects. A refused try is followed by a wait.
async fn accept_root<F: Future<Output = io::Result<UnixStream>>>(
    accept: impl Fn() -> F,
) -> Connection {
    loop {
        match accept().await {
            Ok(taken) if taken.peer_cred().is_ok_and(|peer| peer.uid() == 0) => {
                return Connection(taken);
            }
            Ok(_) => {}
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
}

/// A connection of charon's. Each read and each write is a message.
pub(super) struct Connection(UnixStream);

impl Connection {
    /// The other end of a connection, for tests that play charon.
    #[cfg(test)]
    pub(super) fn over(socket: Socket) -> Connection {
        Connection(UnixStream::from_std(OwnedFd::from(socket).into()).unwrap())
    }

    /// Receives a message; `None`: the connection is closed. One that is longer than a message may
    /// be comes with a byte more than that.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) async fn receive(&self) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
        let mut bytes = Zeroizing::new(vec![0; MAX_MESSAGE + 1]);
        loop {
            self.0.readable().await?;
            match self.0.try_read(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
                Ok(length) => {
                    bytes.truncate(length);
                    return Ok((length > 0).then_some(bytes));
                }
            }
        }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        loop {
            self.0.writable().await?;
            match self.0.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done.map(drop),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Once each refusal began the next try at once, for as long as descriptors lacked.
    #[tokio::test]
    async fn a_refused_connection_is_followed_by_a_wait() {
        let tries = AtomicU32::new(0);
        let refuse = || async {
            tries.fetch_add(1, Ordering::Relaxed);
            Err(io::Error::from_raw_os_error(libc::EMFILE))
        };
        assert!(tokio::time::timeout(2 * AGAIN, accept_root(refuse)).await.is_err());
        let tries = tries.into_inner();
        assert!((1..=3).contains(&tries), "{tries} tries within two waits");
    }
}
