//! The socket: its place, its rights, and how many may hold it open.

use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use api::{DEFAULT_SOCKET, HANDSHAKE_TIME, READ_GROUP};
use nix::unistd::Group;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::time::Sleep;
use tokio_stream::Stream;
use tonic::transport::server::{Connected, UdsConnectInfo};

use super::admission::{Open, Permit, Refusal};
use super::peer::Peer;
use super::rights::RightsCache;
use crate::fair_turns::WorkCaller;
use crate::who::ConnectionNumber;

const DIRECTORY_MODE: u32 = 0o750;
const SOCKET_MODE: u32 = 0o660;

/// Reason why the API's socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    /// Another daemon listens at the socket.
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
    /// The path is taken by something that is not a socket.
    #[error("{}: is no socket and is not replaced", .socket.display())]
    InTheWay {
        /// The path of what is there.
        socket: PathBuf,
    },
    /// The operating system refuses.
    #[error("{}: the API's socket: {error}", .path.display())]
    Refused {
        /// Socket or directory.
        path: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
}

/// A listening socket. Dropping it removes the socket's file, unless another one has taken its
/// place.
pub(crate) struct BoundSocket {
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
pub(crate) async fn bind(socket: &Path) -> Result<BoundSocket, ListenError> {
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
    Ok(BoundSocket { listener, place: Place { socket: socket.to_owned(), inode } })
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

/// Checks that neither a living daemon nor a file that is no socket is there.
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

impl BoundSocket {
    /// The connections that come, and the socket's file, to be kept as long as they are wanted.
    pub(crate) fn into_connections(self) -> (Connections, Place) {
        let BoundSocket { listener, place } = self;
        let (open, rights) = Default::default();
        (Connections { listener, open, rights, accepted: 0 }, place)
    }
}

/// Incoming connections, as many as [`Open`] admits. The first call of a connection that is not
/// admitted gets a refusal; beyond a few of those, connections are closed.
pub(crate) struct Connections {
    listener: UnixListener,
    open: Open,
    rights: RightsCache,
    /// The number of accepted connections.
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
            let peer = stream.peer_cred().map(Peer::of).ok();
            // The right matters only where readers have taken all places.
            let may_change = peer.is_some_and(|peer| self.rights.could_change(peer));
            if let Some(permit) = self.open.admit(peer.map(|peer| peer.uid.0), || may_change) {
                self.accepted += 1;
                let (number, rights) = (ConnectionNumber(self.accepted), self.rights.clone());
                return Poll::Ready(Some(Ok(Connection::new(stream, number, permit, rights))));
            }
        }
    }
}

/// A connection, counted while it is open.
pub(crate) struct Connection {
    stream: UnixStream,
    number: ConnectionNumber,
    permit: Permit,
    rights: RightsCache,
    /// Bytes that came so far, no further than [`GREETING_BYTES`].
    came: usize,
    /// Time by which the first bytes must have come; for a refused connection, the time when it
    /// ends.
    deadline: Pin<Box<Sleep>>,
    end: Arc<Notify>,
    /// Ready when `end` is notified.
    ended: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_ended: bool,
}

/// The client's first bytes: HTTP/2's preface and the head of its settings (RFC 9113 §3.4).
const GREETING_BYTES: usize = 24 + 9;

impl Connection {
    fn new(
        stream: UnixStream,
        number: ConnectionNumber,
        permit: Permit,
        rights: RightsCache,
    ) -> Connection {
        let deadline = Box::pin(tokio::time::sleep(HANDSHAKE_TIME));
        let end = Arc::<Notify>::default();
        let notified = end.clone();
        let ended = Box::pin(async move { notified.notified().await });
        let (came, is_ended) = (0, false);
        Connection { stream, number, permit, rights, came, deadline, end, ended, is_ended }
    }

    /// Ends a connection whose client does not read. A connection that waits to write reads no
    /// more, so both directions poll the end.
    fn poll_end(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.is_ended = self.is_ended || self.ended.as_mut().poll(context).is_ready();
        if self.is_ended { Err(ErrorKind::TimedOut.into()) } else { Ok(()) }
    }

    /// Ends a connection that has not greeted in time.
    fn poll_deadline(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let is_bound = self.came < GREETING_BYTES || self.permit.refusal().is_some();
        match is_bound && self.deadline.as_mut().poll(context).is_ready() {
            true => Err(ErrorKind::TimedOut.into()),
            false => Ok(()),
        }
    }
}

/// A connection's facts, which each of its requests carries.
#[derive(Clone)]
pub(crate) struct ConnectionInfo {
    /// The kernel's facts about the other end.
    pub(crate) socket: UdsConnectInfo,
    /// Number that distinguishes it from all others.
    pub(crate) number: ConnectionNumber,
    /// The reason if it gets no answers.
    pub(super) refusal: Option<Refusal>,
    /// Ends the connection.
    pub(super) end: Arc<Notify>,
    rights: RightsCache,
    caller: Arc<OnceLock<WorkCaller>>,
}

impl ConnectionInfo {
    /// Returns the process at the other end; `None`: the kernel does not name it.
    pub(super) fn peer(&self) -> Option<Peer> {
        self.socket.peer_cred.map(Peer::of)
    }

    /// Returns the caller in whose queues calls wait, as of the connection's first call.
    pub(super) async fn caller(&self) -> WorkCaller {
        if let Some(caller) = self.caller.get() {
            return *caller;
        }
        let caller = match self.peer() {
            None => WorkCaller::Reader(None),
            Some(peer) if self.rights.may_change(peer).await => {
                WorkCaller::Administrator(peer.uid.0)
            }
            Some(peer) => WorkCaller::Reader(Some(peer.uid.0)),
        };
        *self.caller.get_or_init(|| caller)
    }

    /// Returns whether the process at the other end may change the configuration.
    pub(super) async fn may_change(&self) -> bool {
        match self.peer() {
            Some(peer) => self.rights.may_change(peer).await,
            None => false,
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        let (socket, refusal) = (self.stream.connect_info(), self.permit.refusal());
        let (number, end, rights) = (self.number, self.end.clone(), self.rights.clone());
        ConnectionInfo { socket, number, refusal, end, rights, caller: Arc::default() }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_end(context)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let more = buffer.filled().len() - before;
        self.came = (self.came + more).min(GREETING_BYTES);
        if more == 0 && read.is_pending() {
            self.poll_deadline(context)?;
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_end(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_end(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Once only reading polled the end, and HTTP/2 reads nothing while a client takes no bytes.
    #[tokio::test]
    async fn end_reaches_a_connection_that_waits_to_write() {
        let (stream, _silent) = UnixStream::pair().unwrap();
        let permit = Open::default().admit(Some(7), || false).unwrap();
        let (number, rights) = (ConnectionNumber(1), RightsCache::default());
        let mut connection = Connection::new(stream, number, permit, rights);
        let end = connection.end.clone();
        let bytes = [0; 64 << 10];
        let write = async {
            loop {
                let written = poll_fn(|it| Pin::new(&mut connection).poll_write(it, &bytes));
                if let Err(error) = written.await {
                    return error;
                }
            }
        };
        let (error, ()) = tokio::join!(write, async { end.notify_one() });
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let flushed = poll_fn(|it| Pin::new(&mut connection).poll_flush(it)).await;
        assert!(flushed.is_err());
    }
}
