//! The socket: its place, its rights, and how many may hold it open.

use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use api::{DEFAULT_SOCKET, MAX_CONNECTIONS, READ_GROUP};
use nix::unistd::Group;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_stream::Stream;
use tonic::transport::server::{Connected, UdsConnectInfo};

use crate::backend::ConnectionNumber;

const DIRECTORY_MODE: u32 = 0o750;
const SOCKET_MODE: u32 = 0o660;

/// Why nobody can be listened to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    /// Another daemon listens there.
    #[error(
        "{}: another lockgated listens there{}: one daemon a socket; stop that one or give this \
         one another run_dir",
        .socket.display(), .pid.map_or(String::new(), |pid| format!(" (process {pid})"))
    )]
    SecondDaemon {
        /// The socket.
        socket: PathBuf,
        /// Its process, if the kernel says.
        pid: Option<i32>,
    },
    /// Something that is no socket is in the way.
    #[error("{}: is no socket and is not replaced", .socket.display())]
    InTheWay {
        /// What is there.
        socket: PathBuf,
    },
    /// The operating system refuses.
    #[error("{}: the API's socket: {error}", .path.display())]
    Refused {
        /// Socket or directory.
        path: PathBuf,
        /// What it says.
        error: io::Error,
    },
}

/// A socket that listens. Removed from its directory when dropped, if it is still the one there.
pub(crate) struct Bound {
    listener: UnixListener,
    place: Place,
}

/// The socket's file.
pub(crate) struct Place {
    socket: PathBuf,
    inode: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let still_ours = std::fs::symlink_metadata(&self.socket)
            .is_ok_and(|found| found.file_type().is_socket() && found.ino() == self.inode);
        if still_ours {
            // One left behind is replaced at the next start.
            let _ = std::fs::remove_file(&self.socket);
        }
    }
}

/// Listens at `socket`; the file that a dead daemon left behind is replaced. The file appears
/// there only with its final rights: it is made under another name and moved.
///
/// # Errors
/// [`ListenError`].
pub(crate) async fn bind(socket: &Path) -> Result<Bound, ListenError> {
    let refused = |path: &Path| {
        let path = path.to_owned();
        move |error| ListenError::Refused { path, error }
    };
    let group = Group::from_name(READ_GROUP).ok().flatten().map(|group| group.gid.as_raw());
    let directory = socket.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(directory) = directory {
        prepare(directory, group).map_err(refused(directory))?;
    }
    check_vacant(socket).await?;
    let mut temporary = socket.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let temporary = PathBuf::from(temporary);
    // Of an earlier process with our number; a directory or a file of another kind stays.
    let leftover = std::fs::symlink_metadata(&temporary);
    if leftover.is_ok_and(|found| found.file_type().is_socket()) {
        std::fs::remove_file(&temporary).map_err(refused(&temporary))?;
    }
    let listener = UnixListener::bind(&temporary).map_err(refused(socket))?;
    let finish = || -> io::Result<u64> {
        if group.is_some() {
            chown(&temporary, None, group)?;
        }
        std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(SOCKET_MODE))?;
        let inode = std::fs::symlink_metadata(&temporary)?.ino();
        std::fs::rename(&temporary, socket)?;
        Ok(inode)
    };
    let inode = finish().map_err(|error| {
        let _ = std::fs::remove_file(&temporary);
        ListenError::Refused { path: socket.to_owned(), error }
    })?;
    Ok(Bound { listener, place: Place { socket: socket.to_owned(), inode } })
}

/// Makes the directory if it is not there. One that is there keeps its rights, which are its
/// owner's affair, unless it is the usual one, which is ours.
fn prepare(directory: &Path, group: Option<u32>) -> io::Result<()> {
    let ours = match std::fs::DirBuilder::new().mode(DIRECTORY_MODE).create(directory) {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            Path::new(DEFAULT_SOCKET).parent() == Some(directory)
        }
        Err(error) => return Err(error),
    };
    if ours {
        if group.is_some() {
            chown(directory, None, group)?;
        }
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(DIRECTORY_MODE))?;
    }
    Ok(())
}

/// Whether a living daemon or a file that is no socket is there.
async fn check_vacant(socket: &Path) -> Result<(), ListenError> {
    let owned = || socket.to_owned();
    match std::fs::symlink_metadata(socket) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(ListenError::Refused { path: owned(), error }),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ListenError::InTheWay { socket: owned() });
        }
        Ok(_) => {}
    }
    match UnixStream::connect(socket).await {
        Ok(stream) => {
            let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
            Err(ListenError::SecondDaemon { socket: owned(), pid })
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(ListenError::Refused { path: owned(), error }),
    }
}

impl Bound {
    /// The connections that come, and the socket's file, to be kept as long as they are wanted.
    pub(crate) fn into_connections(self) -> (Connections, Place) {
        let Bound { listener, place } = self;
        let permits = || Arc::new(Semaphore::new(MAX_CONNECTIONS));
        (Connections { listener, root: permits(), others: permits(), accepted: 0 }, place)
    }
}

/// Connections that come: at most [`MAX_CONNECTIONS`] of root and as many of all others, so that
/// nobody locks root out; those beyond are closed.
pub(crate) struct Connections {
    listener: UnixListener,
    root: Arc<Semaphore>,
    others: Arc<Semaphore>,
    /// How many were accepted.
    accepted: u64,
}

impl Stream for Connections {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let stream = match self.listener.poll_accept(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(Ok((stream, _))) => stream,
            };
            let is_root = stream.peer_cred().is_ok_and(|peer| peer.uid() == 0);
            let permits = if is_root { &self.root } else { &self.others };
            if let Ok(permit) = permits.clone().try_acquire_owned() {
                self.accepted += 1;
                let number = ConnectionNumber(self.accepted);
                return Poll::Ready(Some(Ok(Connection { stream, number, _permit: permit })));
            }
        }
    }
}

/// A connection, counted while it is open.
pub(crate) struct Connection {
    stream: UnixStream,
    number: ConnectionNumber,
    _permit: OwnedSemaphorePermit,
}

/// A connection's facts, which each of its requests carries.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionInfo {
    /// What the kernel says of the other end.
    pub(crate) socket: UdsConnectInfo,
    /// Tells it from every other.
    pub(crate) number: ConnectionNumber,
}

impl Connected for Connection {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        ConnectionInfo { socket: self.stream.connect_info(), number: self.number }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
