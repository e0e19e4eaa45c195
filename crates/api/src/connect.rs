//! A client's way to the daemon.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::silence::{SilenceWatch, SilentDaemon};
use crate::v1::gateway_client::GatewayClient as Generated;
use crate::{
    ADMIN_GROUP, DEFAULT_SOCKET, MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, READ_GROUP, SOCKET_VARIABLE,
};

/// Interval of the pings that a waiting client sends.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which the transport takes a silent connection for dead; [`SilenceWatch`] judges it
/// much earlier, and does not blame a daemon for the client's own pauses.
const PING_TIMEOUT: Duration = Duration::from_secs(3600);

/// A client of the daemon.
pub type GatewayClient = Generated<Channel>;

/// Reason why the daemon cannot be reached. The messages say what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No process listens at the socket.
    #[error("nothing answers at {}: is lockgated running?", .socket.display())]
    NoDaemon {
        /// The socket.
        socket: PathBuf,
    },
    /// The daemon listens, and this user may not ask.
    #[error(
        "{}: permission denied: be root or in group {READ_GROUP} ({ADMIN_GROUP} for changes)",
        .socket.display()
    )]
    Denied {
        /// The socket.
        socket: PathBuf,
    },
    /// The path is not a socket.
    #[error("{}: is no socket", .socket.display())]
    NoSocket {
        /// The path that should be a socket.
        socket: PathBuf,
    },
    /// The operating system reports another error.
    #[error("{}: {error}", .socket.display())]
    Other {
        /// The socket.
        socket: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// The process that listens sends nothing.
    #[error("{0}")]
    Silent(SilentDaemon),
    /// The process that listens does not speak this API.
    #[error("{}: what listens there is no lockgated: {error}", .socket.display())]
    Handshake {
        /// The socket.
        socket: PathBuf,
        /// The transport's error.
        error: tonic::transport::Error,
    },
}

/// Path at which to look for the daemon's socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SocketPath(PathBuf);

impl SocketPath {
    /// Returns the named socket, else the one of the environment, else the default.
    pub fn choose(named: Option<&Path>) -> SocketPath {
        let from_environment = || std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty());
        SocketPath(match named {
            Some(path) => path.to_owned(),
            None => from_environment().map_or_else(|| DEFAULT_SOCKET.into(), PathBuf::from),
        })
    }

    /// The path.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

/// A connection to the daemon.
pub struct Connection {
    /// Client of the daemon's calls.
    pub client: GatewayClient,
    /// Watch that ends the wait for a daemon that stopped meanwhile.
    pub watch: SilenceWatch,
}

/// Connects to the daemon that listens at `socket`. Must run inside a tokio runtime with I/O.
///
/// # Errors
/// [`ConnectError`].
pub async fn connect(socket: &Path) -> Result<GatewayClient, ConnectError> {
    connect_watched(socket, |_| {}).await.map(|connection| connection.client)
}

/// Connects as [`connect`] does. Calls `report` once if the daemon computes for so long that it has
/// sent nothing yet.
///
/// # Errors
/// [`ConnectError`].
pub async fn connect_watched(
    socket: &Path,
    report: impl FnOnce(SilentDaemon),
) -> Result<Connection, ConnectError> {
    let owned = || socket.to_owned();
    // The first connection is made here, for its error's sake; the channel makes others itself.
    let stream = UnixStream::connect(socket).await.map_err(|error| refusal(socket, error))?;
    let (watch, stream) = SilenceWatch::new(stream);
    let (mut first, again) = (Some(stream), owned());
    let connector = service_fn(move |_: tonic::codegen::http::Uri| {
        let (first, again) = (first.take(), again.clone());
        async move {
            let stream = match first {
                Some(stream) => stream,
                None => SilenceWatch::new(UnixStream::connect(again).await?).1,
            };
            Ok::<_, std::io::Error>(TokioIo::new(stream))
        }
    });
    let channel = Endpoint::from_static("http://lockgated.local")
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .connect_with_connector(connector)
        .await
        .map_err(|error| ConnectError::Handshake { socket: owned(), error })?;
    watch.first_sign(report).await.map_err(ConnectError::Silent)?;
    let client = Generated::new(channel)
        .max_decoding_message_size(MAX_ANSWER_BYTES)
        .max_encoding_message_size(MAX_REQUEST_BYTES);
    Ok(Connection { client, watch })
}

fn refusal(socket: &Path, error: std::io::Error) -> ConnectError {
    let is_something_else = || {
        let found = std::fs::symlink_metadata(socket);
        found.is_ok_and(|found| !found.file_type().is_socket() && !found.is_symlink())
    };
    let socket = socket.to_owned();
    match error.kind() {
        ErrorKind::PermissionDenied => ConnectError::Denied { socket },
        ErrorKind::ConnectionRefused if is_something_else() => ConnectError::NoSocket { socket },
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => ConnectError::NoDaemon { socket },
        // The queue of connections is full: nobody accepts.
        ErrorKind::WouldBlock => ConnectError::Silent(SilentDaemon { process: None, state: None }),
        _ => ConnectError::Other { socket, error },
    }
}
