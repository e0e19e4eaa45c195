//! The socket of charon's plugin: `SOCK_SEQPACKET`, for root alone.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use charon_link::MAX_MESSAGE;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{UnixListener, UnixStream};
use zeroize::Zeroizing;

/// Name of the socket in `run_dir`.
pub(crate) const CHARON_SOCKET: &str = "charon.sock";
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

    /// Takes the next connection of root's; others are closed.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) async fn accept(&self) -> io::Result<Connection> {
        loop {
            let (taken, _) = self.listener.accept().await?;
            if taken.peer_cred()?.uid() == 0 {
                return Ok(Connection(taken));
            }
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

    /// The process at the other end.
    pub(super) fn process(&self) -> Option<i32> {
        self.0.peer_cred().ok().and_then(|of| of.pid())
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
