//! Commands about the gateway that runs: what they share is the way to the daemon.

pub(crate) mod capture;
pub(crate) mod change;
pub(crate) mod connection;
pub(crate) mod detach;
pub(crate) mod diff;
pub(crate) mod endpoint;
pub(crate) mod events;
pub(crate) mod policy;
pub(crate) mod probe;
pub(crate) mod rule;
pub(crate) mod sa;
pub(crate) mod show;
pub(crate) mod status;

use std::path::PathBuf;

use ::policy::TcpSegments;
use api::{ConnectError, Connection, GatewayClient, SilenceWatch, SilentDaemon, SocketPath, v1};
use console::output::complain;
use control::Question;
use tokio::runtime::Runtime;
use tonic::{Code, Response, Status, Streaming};
use wire::Upper;

use crate::failure::Failure;

/// The daemon to ask.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Socket {
    /// API socket [env: LOCKGATE_SOCKET] [default: /run/lockgate/api.sock]
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
}

impl Socket {
    /// Returns the socket's path.
    pub(crate) fn path(&self) -> SocketPath {
        SocketPath::choose(self.socket.as_deref())
    }
}

/// An error status that the daemon returned.
#[derive(Debug, thiserror::Error)]
#[error("{}", told(.0))]
pub(crate) struct AnswerError(#[from] Status);

impl AnswerError {
    /// Returns whether the command line asked for something that does not exist.
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self.0.code(), Code::InvalidArgument | Code::NotFound)
    }
}

/// Returns the daemon's message, or the text for a broken connection.
fn told(status: &Status) -> String {
    let said = status.message();
    match status.code() {
        Code::Unimplemented => {
            "the daemon does not know this request: it has another version".into()
        }
        Code::Unavailable | Code::Cancelled | Code::Unknown => {
            format!("the daemon ended before it answered: {said}")
        }
        Code::DeadlineExceeded => "the daemon did not answer in time".into(),
        Code::OutOfRange => format!("too large for the API: {said}"),
        _ => said.to_owned(),
    }
}

/// Reason why a command about the running gateway failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LiveError {
    /// Several names of what has one.
    #[error("`lockgate show` takes one name, and a filter for `connection` only")]
    ManyNames,
    /// `--entries` beside something that has none.
    #[error("--entries is for `lockgate show cache`")]
    NoEntries,
    /// A daemon runs and what was asked for is only done without one.
    #[error(
        "lockgated is running{}: stop it first, or its ports would be closed again at once",
        .pid.map_or(String::new(), |pid| format!(" (process {pid})"))
    )]
    Running {
        /// Its process, if it is known.
        pid: Option<u32>,
    },
    /// No command was given, and no daemon answers.
    #[error("{0}\n`lockgate --help` lists the commands")]
    Alone(ConnectError),
    /// The command needs root.
    #[error("must be run as root (detach reopens the ports that a stopped daemon left closed)")]
    NotRoot,
    /// A part of Lockgate could not be removed.
    #[error("{what}: {error}")]
    Stays {
        /// Name of the thing that stays.
        what: String,
        /// The reason why it stays.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The client does not understand the daemon's configuration.
    #[error(
        "the running configuration cannot be parsed: lockgate and lockgated have different \
         versions: {problem}"
    )]
    OtherVersion {
        /// The first mistake.
        problem: String,
    },
    /// The daemon ended the stream of events.
    #[error("the daemon ended")]
    StreamEnded,
    /// The async runtime could not be started.
    #[error("cannot start the async runtime: {0}")]
    Runtime(std::io::Error),
}

impl LiveError {
    /// For what could not be taken away.
    fn stays(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> LiveError {
        LiveError::Stays { what: what.to_owned(), error: Box::new(error) }
    }
}

/// A connection to the daemon.
pub(crate) struct Ask {
    runtime: Runtime,
    client: GatewayClient,
    watch: SilenceWatch,
}

impl Ask {
    /// Connects.
    pub(crate) fn new(socket: &Socket) -> Result<Ask, Failure> {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().map_err(LiveError::Runtime)?;
        let path = socket.path();
        let connection = api::connect_watched(path.as_path(), report_silence);
        let connection = runtime.block_on(connection)?;
        let Connection { client, watch } = connection;
        Ok(Ask { runtime, client, watch })
    }

    /// Waits for the daemon.
    ///
    /// # Errors
    /// Errors of the work; [`ConnectError::Silent`]: the daemon was stopped meanwhile, or hangs.
    fn wait<T, E>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, Failure>
    where
        Failure: From<E>,
    {
        wait(&self.runtime, &self.watch, work)
    }

    /// Waits for the next message of a stream. `None`: the stream ended.
    fn next<T>(&self, stream: &mut Streaming<T>) -> Result<Option<T>, Failure> {
        self.wait(async { stream.message().await.map_err(AnswerError) })
    }

    /// Makes one call.
    pub(crate) fn call<T>(
        &mut self,
        call: impl AsyncFnOnce(&mut GatewayClient) -> Result<Response<T>, Status>,
    ) -> Result<T, Failure> {
        let Ask { runtime, client, watch } = self;
        let answered = async { call(client).await.map_err(AnswerError) };
        wait(runtime, watch, answered).map(Response::into_inner)
    }

    /// Asks the daemon for the verdict on a packet.
    pub(crate) fn explain(
        &mut self,
        request: v1::ExplainRequest,
    ) -> Result<v1::Explanation, Failure> {
        self.call(async |client| client.explain(request).await)
    }
}

/// Names a daemon that does not answer while the command waits.
fn report_silence(daemon: SilentDaemon) {
    complain(&format!("lockgate: {daemon}; the command waits\n"));
}

fn wait<T, E>(
    runtime: &Runtime,
    watch: &SilenceWatch,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Failure>
where
    Failure: From<E>,
{
    runtime.block_on(async {
        tokio::select! {
            done = work => Ok(done?),
            silent = watch.silent(report_silence) => Err(ConnectError::Silent(silent).into()),
        }
    })
}

/// Translates a question for the daemon.
pub(crate) fn explain_request(question: Question<'_>) -> v1::ExplainRequest {
    let Question { port, from_peer, flow, inside } = question;
    let mut request = v1::ExplainRequest {
        port: port.to_owned(),
        from_peer: from_peer.map(str::to_owned),
        source: flow.source_address().to_string(),
        destination: flow.destination_address().to_string(),
        protocol: flow.protocol.into(),
        vni: inside.map(|inside| inside.vni.get()),
        host: inside.and_then(|inside| inside.host).map(|host| host.to_string()),
        ..v1::ExplainRequest::default()
    };
    match flow.upper {
        Upper::Ports { source, destination } => {
            let (source, destination) = (source.into(), destination.into());
            request.ports = Some(v1::PortPair { source, destination });
            if flow.protocol == wire::flow::protocol::TCP {
                let segments = if flow.opens { TcpSegments::New } else { TcpSegments::Established };
                request.tcp = Some(segments.name().into());
            }
        }
        Upper::Icmp { kind, code } => {
            request.icmp = Some(v1::IcmpMessage { r#type: kind.into(), code: code.into() });
        }
        Upper::None => {}
        Upper::Fragment => request.later_fragment = true,
    }
    request
}
