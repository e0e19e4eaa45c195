//! The connection to a card that is a process: a task that connects, begins, carries requests and
//! reports, and connects again.

use std::path::{Path, PathBuf};
use std::time::Duration;

use card_link::{Found, Lines, Report, Request, decode_report, encode, encode_behind};
use offload::{Capabilities, CardEvent};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{Sender, UnboundedReceiver};
use tokio::time::{sleep, timeout};

/// Time between two tries to connect.
const AGAIN: Duration = Duration::from_secs(1);
/// Time that a card may take to read what it is asked.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of requests that are written at a time, about.
const WRITTEN_AT_A_TIME: usize = 64 << 10;

/// Something that the connection tells.
#[derive(Debug)]
pub(crate) struct LinkReport {
    /// Number of the connection's card in this process.
    pub(super) card: u64,
    pub(super) what: LinkNews,
}

/// The news of a connection.
#[derive(Debug)]
pub(super) enum LinkNews {
    /// The card serves this daemon, has nothing, and can this.
    Begun(Box<Capabilities>),
    /// Something happened at the card.
    Event(CardEvent),
    /// All that the card has, with its abilities.
    Found(Found, Box<Capabilities>),
    /// There is no connection, and why.
    Lost(String),
}

/// Serves the connection of one card for ever.
pub(super) async fn serve(
    card: u64,
    socket: PathBuf,
    mut requests: UnboundedReceiver<Request>,
    reports: Sender<LinkReport>,
) {
    loop {
        let lost = match UnixStream::connect(&socket).await {
            Ok(stream) => converse(card, stream, &mut requests, &reports).await,
            Err(error) => not_there(&socket, &error),
        };
        if reports.send(LinkReport { card, what: LinkNews::Lost(lost) }).await.is_err() {
            return;
        }
        sleep(AGAIN).await;
        // They were for the life of the card that is over.
        while requests.try_recv().is_ok() {}
        if requests.is_closed() {
            return;
        }
    }
}

fn not_there(socket: &Path, error: &std::io::Error) -> String {
    format!("nothing listens at {}: {error}", socket.display())
}

/// Carries requests and reports until the connection ends; says why it did.
async fn converse(
    card: u64,
    stream: UnixStream,
    requests: &mut UnboundedReceiver<Request>,
    reports: &Sender<LinkReport>,
) -> String {
    let (read, write) = stream.into_split();
    // Both go on side by side: neither waits for the other, as the card may wait for either.
    tokio::select! {
        end = ask(write, requests) => end,
        end = listen(card, read, reports) => end,
    }
}

async fn ask(mut write: OwnedWriteHalf, requests: &mut UnboundedReceiver<Request>) -> String {
    let mut bytes = encode(&Request::Begin {});
    loop {
        match timeout(PATIENCE, write.write_all(&bytes)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return format!("the connection broke: {error}"),
            Err(_) => return "the card does not read what it is asked".into(),
        }
        let Some(request) = requests.recv().await else { return "it is no longer wanted".into() };
        bytes = encode(&request);
        while bytes.len() < WRITTEN_AT_A_TIME {
            let Ok(request) = requests.try_recv() else { break };
            bytes = encode_behind(bytes, &request);
        }
    }
}

async fn listen(card: u64, mut read: OwnedReadHalf, reports: &Sender<LinkReport>) -> String {
    let mut lines = Lines::of_reports();
    let mut bytes = vec![0; WRITTEN_AT_A_TIME];
    let mut has_begun = false;
    loop {
        match read.read(&mut bytes).await {
            Ok(0) => return "the card closed the connection".into(),
            Ok(count) => lines.extend(&bytes[..count]),
            Err(error) => return format!("the connection broke: {error}"),
        }
        loop {
            let line = match lines.take() {
                Ok(Some(line)) => line,
                Ok(None) => break,
                Err(error) => return format!("the card sent {error}"),
            };
            let what = match decode_report(line).map_err(|error| error.to_string()).and_then(news) {
                Ok(what) => what,
                Err(error) => return format!("the card sent {error}"),
            };
            has_begun |= matches!(what, LinkNews::Begun(_));
            // What was told before is about what another daemon had there.
            if has_begun && reports.send(LinkReport { card, what }).await.is_err() {
                return "it is no longer wanted".into();
            }
        }
    }
}

fn news(report: Report) -> Result<LinkNews, String> {
    let abilities = |card: &str| -> Result<Box<Capabilities>, String> {
        let capabilities: Capabilities =
            card.parse().map_err(|error| format!("a name of a card that is none: {error}"))?;
        Ok(Box::new(capabilities))
    };
    Ok(match report {
        Report::Begun { card } => LinkNews::Begun(abilities(&card)?),
        Report::Event(event) => LinkNews::Event(event),
        Report::Found(found) => {
            let capabilities = abilities(&found.card)?;
            LinkNews::Found(found, capabilities)
        }
    })
}
