//! The gRPC API between `lockgated` and `lockgate`: generated messages, client and server, and
//! how a client finds the daemon.
//!
//! The messages also read and write as JSON: `lockgate show … --json` prints exactly them.
#![forbid(unsafe_code)]

mod connect;
mod details;
mod pages;
mod put;
mod silence;

/// Version 1 of the API, generated from `proto/lockgate/v1/lockgate.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
pub mod v1 {
    tonic::include_proto!("lockgate.v1");
}

include!(concat!(env!("OUT_DIR"), "/calls.rs"));

pub use connect::{ConnectError, Connection, GatewayClient, SocketPath, connect, connect_watched};
pub use pages::{PAGE_ENTRIES, Page, whole};
pub use prost::Message;
pub use silence::{ProcessState, SilenceWatch, SilentDaemon};

/// Path of the socket on which the daemon listens if nothing else is said.
pub const DEFAULT_SOCKET: &str = "/run/lockgate/api.sock";
/// The environment variable that names another socket.
pub const SOCKET_VARIABLE: &str = "LOCKGATE_SOCKET";
/// The group whose members may read.
pub const READ_GROUP: &str = "lockgate";
/// Group whose members may change the configuration, as root may.
pub const ADMIN_GROUP: &str = "lockgate-admin";

/// Largest request, bytes: a configuration of the largest size and its envelope.
pub const MAX_REQUEST_BYTES: usize = (256 << 20) + (1 << 20);
/// The largest request of those that carry no configuration, bytes.
pub const MAX_SMALL_REQUEST_BYTES: usize = 64 << 10;
/// The largest message of an answer, bytes: every rule of such a configuration with its counters.
pub const MAX_ANSWER_BYTES: usize = 1 << 30;
/// Entries of the flow cache that are shown at a time, at most and if nothing is said.
pub const MAX_CACHE_ENTRIES: u32 = 10_000;
/// See [`MAX_CACHE_ENTRIES`].
pub const DEFAULT_CACHE_ENTRIES: u32 = 100;
/// Requests that one connection may have under way.
pub const MAX_STREAMS: u32 = 16;
/// Connections at a time: this many of root, and this many of all others together.
pub const MAX_CONNECTIONS: usize = 64;
/// Connections at a time of one user who is not root.
pub const MAX_USER_CONNECTIONS: usize = 16;
/// Calls in progress at a time: this many of root, and this many of all others together.
pub const MAX_CALLS: usize = 128;
/// Calls in progress at a time of one user who is not root.
pub const MAX_USER_CALLS: usize = 32;
/// Answers at a time that are made as a whole: this many for root, and this many for all others
/// together.
pub const MAX_WHOLE_ANSWERS: usize = 8;
/// Time after which the connection of a client ends that does not read its answer.
pub const UNREAD_TIME: std::time::Duration = std::time::Duration::from_secs(60);
/// Time within which a new connection must send its HTTP/2 preface.
pub const HANDSHAKE_TIME: std::time::Duration = std::time::Duration::from_secs(5);
/// Events that are kept for later readers.
pub const MAX_EVENTS_KEPT: usize = 1024;
/// Events that may wait for a reader of the stream. A slower reader gets an event that counts the
/// events it lost.
pub const MAX_EVENTS_WAITING: usize = 256;
/// Time that a request may take before it is refused; the stream of events is not bound by it.
pub const REQUEST_TIME: std::time::Duration = std::time::Duration::from_secs(60);

/// SAs that are put by one request, at most.
pub const MAX_SAS_A_PUT: usize = 128;
/// SAs that are deleted by one request, at most.
pub const MAX_SAS_A_DELETION: usize = 1024;

/// Captures at a time.
pub const MAX_CAPTURES: usize = 4;
/// Bytes that a capture takes of a packet if its order names no number.
pub const DEFAULT_SNAPLEN: u32 = 96;
/// Largest number of bytes that a capture takes of a packet.
pub const MAX_SNAPLEN: u32 = 9216;
/// Packets of a capture that names no number.
pub const DEFAULT_CAPTURE_PACKETS: u64 = 10_000;
/// Largest number of packets of a capture.
pub const MAX_CAPTURE_PACKETS: u64 = 1_000_000;
/// Duration of a capture that names none, seconds.
pub const DEFAULT_CAPTURE_SECONDS: u32 = 60;
/// Longest duration of a capture, seconds.
pub const MAX_CAPTURE_SECONDS: u32 = 3600;
/// Packets per second of a capture that names no rate.
pub const DEFAULT_CAPTURE_RATE: u32 = 5000;
/// Highest rate of a capture, packets per second.
pub const MAX_CAPTURE_RATE: u32 = 100_000;
