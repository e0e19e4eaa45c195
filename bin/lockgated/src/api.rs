//! The gRPC server on a Unix socket.
//!
//! Users who may open the socket may read: it is 0660, root and group `lockgate`, in a directory
//! 0750. Changes are for root and group `lockgate-admin`; the kernel alone says who is at the other
//! end (`SO_PEERCRED`). Everything that a client can send or hold open is bounded.

mod admission;
mod associations;
mod call_limits;
mod calls;
mod capture;
mod connections;
mod endpoints;
pub(crate) use endpoints::sums;
mod groups;
mod held_answers;
mod limit;
mod listen;
mod pages;
mod peer;
mod present;
mod rights;
mod service;
mod shared_counts;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use api::v1::gateway_server::GatewayServer;
use api::{MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, MAX_STREAMS, REQUEST_TIME};
use tonic::transport::Server;

use crate::backend::Backend;

// Every configuration that is read from a file is taken from a request too.
const _: () = assert!(MAX_REQUEST_BYTES as u64 >= config::MAX_BYTES + (1 << 20));

pub(crate) use connections::{port_name, totals};
pub(crate) use groups::groups;
pub(crate) use listen::{BoundSocket, ListenError, bind};
pub(crate) use present::{peers, waiting};
pub(crate) use service::Service;

/// Bytes that a client may send ahead: a configuration is large, and each wait costs a wake-up.
const WINDOW_BYTES: u32 = 1 << 20;
/// A connection that does not answer is closed after this and [`ALIVE_WAIT`].
const ALIVE_EVERY: Duration = Duration::from_secs(30);
/// Time that the answer to a keep-alive ping may take.
const ALIVE_WAIT: Duration = Duration::from_secs(20);

/// Serves the API until `stop` is done, then lets the requests under way end and removes the
/// socket. Streams of events end at once.
///
/// # Errors
/// The server's error when it cannot go on.
pub(crate) async fn serve<B: Backend>(
    bound: BoundSocket,
    backend: Arc<B>,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let (ending, ended) = tokio::sync::watch::channel(());
    let service = GatewayServer::new(Service::new(backend, ended))
        .max_decoding_message_size(MAX_REQUEST_BYTES)
        .max_encoding_message_size(MAX_ANSWER_BYTES);
    let stop = async move {
        stop.await;
        drop(ending);
    };
    let (connections, _socket) = bound.into_connections();
    Server::builder()
        .timeout(REQUEST_TIME)
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .concurrency_limit_per_connection(MAX_STREAMS as usize)
        .http2_keepalive_interval(Some(ALIVE_EVERY))
        .http2_keepalive_timeout(Some(ALIVE_WAIT))
        .layer(limit::layer())
        .add_service(service)
        .serve_with_incoming_shutdown(connections, stop)
        .await
}
