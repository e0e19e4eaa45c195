//! Connections of charon's plugin, one at a time: requests, answers and reports.

use std::sync::Arc;
use std::time::Duration;

use api::v1;
use charon_link::{
    Answer, HandleIssuer, Hardness, Header, Malformed, Report, Request, Status, decode,
    encode_answer, encode_report,
};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep_until, timeout};
use zeroize::Zeroizing;

use super::desk::Desk;
use super::socket::{CharonSocket, Connection};
use crate::backend::Backend;
use crate::backend_impl::Daemon;
use crate::events::{Events, Kind};
use crate::gateway::SeenElsewhere;
use crate::sa_limits::Expiry;
use crate::totals::SaKey;

/// Time that charon may take to read what it is told.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time for an answer to charon; an event reports a longer one. A thread of charon waits for the
/// answer, often with the IKE_SA locked.
const ANSWER_TIME: Duration = Duration::from_millis(500);

/// Channels by which the rest of the daemon tells of SAs.
pub(crate) struct Heard {
    /// SAs at their limits.
    pub(crate) expiries: broadcast::Receiver<Expiry>,
    /// Peers that were seen elsewhere than their SAs end.
    pub(crate) elsewhere: broadcast::Receiver<SeenElsewhere>,
}

/// Serves charon, until the daemon ends.
pub(crate) async fn serve(
    socket: CharonSocket,
    daemon: Arc<Daemon>,
    handles: HandleIssuer,
    heard: Heard,
) {
    let events = daemon.events.clone();
    let Heard { expiries, elsewhere } = heard;
    let mut heard = Ears { ends: Ends { expiries, deletions: daemon.deletions() }, elsewhere };
    let mut desk = Desk::new(daemon.clone(), handles);
    loop {
        let connection = tokio::select! {
            connection = socket.accept() => connection,
            expiry = heard.ends.recv() => match expiry {
                Err(RecvError::Closed) => return,
                // Nobody is there to be told: a resumption is answered accordingly.
                expiry => {
                    note(expiry, &mut desk);
                    desk.delete_ended().await;
                    continue;
                }
            },
        };
        let (events, daemon) = (events.clone(), daemon.clone());
        let mut session = Session { connection, greeted: None, events, daemon };
        let end = session.run(&mut desk, &socket, &mut heard).await;
        if session.greeted.is_some() {
            let message = format!(
                "charon's plugin is gone: {end}; its SAs stay to their limits, and packets wait \
                 for none"
            );
            session.events.record(Kind::CharonGone, "charon", message, &[]);
        }
    }
}

/// Notes expired SAs, whose reports are due then. After missed messages the accounts of all SAs
/// decide.
fn note(expiry: Result<Expiry, RecvError>, desk: &mut Desk) {
    match expiry {
        Ok(expiry) => {
            let report = desk.expired(&expiry);
            desk.due.extend(report);
        }
        Err(RecvError::Lagged(_)) => desk.find_missed_expiries(),
        Err(RecvError::Closed) => {}
    }
}

/// Ends of charon's SAs: limits that are reached, and deletions by others, which are hard ends.
struct Ends {
    expiries: broadcast::Receiver<Expiry>,
    deletions: broadcast::Receiver<SaKey>,
}

impl Ends {
    /// The next one.
    async fn recv(&mut self) -> Result<Expiry, RecvError> {
        tokio::select! {
            expiry = self.expiries.recv() => expiry,
            gone = self.deletions.recv() => gone.map(|(direction, spi, peer)| {
                Expiry { direction, spi, peer: peer.into(), hardness: Hardness::Hard }
            }),
        }
    }
}

/// News of SAs while charon is served.
struct Ears {
    ends: Ends,
    elsewhere: broadcast::Receiver<SeenElsewhere>,
}

/// One connection.
struct Session {
    connection: Connection,
    /// Requests for SAs, once it has said what it is.
    greeted: Option<broadcast::Receiver<v1::Acquire>>,
    events: Events,
    daemon: Arc<Daemon>,
}

impl Session {
    /// Serves the connection until it ends; says why it did.
    async fn run(&mut self, desk: &mut Desk, socket: &CharonSocket, heard: &mut Ears) -> String {
        let begun = Instant::now();
        loop {
            let is_mute = self.greeted.is_none();
            let retry = desk.next_try();
            let done = tokio::select! {
                // The end of this connection is seen before the next one is turned away.
                biased;
                received = self.connection.receive() => match received {
                    Ok(Some(bytes)) => self.answer(&bytes, desk).await,
                    Ok(None) => return "it closed the connection".into(),
                    Err(error) => return format!("the connection broke: {error}"),
                },
                () = std::future::ready(()), if desk.has_due() && !is_mute => {
                    self.report_due(desk).await
                }
                () = sleep_until(begun + PATIENCE), if is_mute => {
                    return "it does not say what it is".into();
                }
                () = sleep_until(retry.unwrap_or(begun)), if retry.is_some() && !is_mute => {
                    desk.catch_up().await;
                    self.report_due(desk).await
                }
                other = socket.accept() => {
                    self.turn_away(other, desk);
                    Ok(())
                }
                seen = heard.elsewhere.recv() => match seen {
                    Ok(seen) => {
                        let report = desk.elsewhere(&seen).filter(|_| !is_mute);
                        self.report(report, desk).await
                    }
                    // Those that were missed are seen again.
                    Err(RecvError::Lagged(_)) => Ok(()),
                    Err(RecvError::Closed) => return "the daemon ends".into(),
                },
                expiry = heard.ends.recv() => match expiry {
                    Err(RecvError::Closed) => return "the daemon ends".into(),
                    expiry => {
                        note(expiry, desk);
                        desk.delete_ended().await;
                        Ok(())
                    }
                },
                asked = next(&mut self.greeted) => match asked {
                    Ok(asked) => self.report(desk.acquire(&asked), desk).await,
                    // Those that were missed are asked for again.
                    Err(RecvError::Lagged(_)) => Ok(()),
                    Err(RecvError::Closed) => return "the daemon ends".into(),
                },
            };
            if let Err(end) = done {
                return end;
            }
        }
    }

    /// Listens to requests for SAs. Those that are outstanding wait for charon's policies.
    async fn greet(&mut self, text: &str, desk: &mut Desk) {
        let (outstanding, to_come) = self.daemon.acquires().await;
        self.greeted = Some(to_come);
        self.events.record(Kind::CharonConnected, "charon", text, &[]);
        for asked in outstanding {
            // It has none yet.
            let _ = desk.acquire(&asked);
        }
    }

    /// Answers a request.
    async fn answer(&mut self, bytes: &[u8], desk: &mut Desk) -> Result<(), String> {
        let ours = desk.incarnation();
        let (header, request) = match decode(bytes) {
            Ok(read) => read,
            Err(why) => {
                let Some(header) = Malformed::header_of(bytes) else {
                    return Err(format!("it sent {why}"));
                };
                let status = match why {
                    Malformed::Version(_) => Status::OtherVersion,
                    _ => Status::Malformed,
                };
                self.note_refusal(why.to_string());
                let answer = Answer::plain(status, why.to_string());
                return self.send(&encode_answer(&header, ours, &answer)).await;
            }
        };
        let Header { incarnation, .. } = header;
        let is_hello = matches!(request, Request::Hello(_));
        let answer = match () {
            () if !is_hello && self.greeted.is_none() => {
                Answer::plain(Status::Refused, "the first message says hello")
            }
            () if is_hello && self.greeted.is_some() => {
                Answer::plain(Status::Refused, "this connection has said hello already")
            }
            () if !is_hello && incarnation != ours => {
                Answer::plain(Status::OtherIncarnation, "lockgated has begun anew since")
            }
            () => {
                let kind = request.kind_name();
                let began = Instant::now();
                let answer = desk.answer(request).await;
                self.note_slow(kind, began.elapsed());
                answer
            }
        };
        if is_hello && self.greeted.is_none() {
            self.greet(&answer.text, desk).await;
        }
        if !matches!(answer.status, Status::Done | Status::Unknown) {
            self.note_refusal(answer.text.clone());
        }
        self.send(&encode_answer(&header, ours, &answer)).await?;
        self.report_due(desk).await
    }

    async fn report_due(&self, desk: &mut Desk) -> Result<(), String> {
        for report in desk.take_due() {
            self.report(Some(report), desk).await?;
        }
        Ok(())
    }

    /// Reports an answer that took longer than [`ANSWER_TIME`].
    fn note_slow(&self, kind: &str, took: Duration) {
        if took > ANSWER_TIME {
            let message =
                format!("charon waited {:.1} s for the answer to {kind}", took.as_secs_f64());
            self.events.record(Kind::CharonSlow, "charon", message, &[]);
        }
    }

    fn note_refusal(&self, why: String) {
        let message = format!("charon asked for something that was refused: {why}");
        self.events.record(Kind::CharonRefused, "charon", message, &[]);
    }

    async fn report(&self, report: Option<Report>, desk: &Desk) -> Result<(), String> {
        match report {
            Some(report) => self.send(&encode_report(desk.incarnation(), &report)).await,
            None => Ok(()),
        }
    }

    async fn send(&self, bytes: &Zeroizing<Vec<u8>>) -> Result<(), String> {
        match timeout(PATIENCE, self.connection.send(bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(format!("the connection broke: {error}")),
            Err(_) => Err(format!("it does not read what it is told for {} s", PATIENCE.as_secs())),
        }
    }

    /// Refuses a second charon. The first does not wait for it.
    fn turn_away(&self, other: Connection, desk: &Desk) {
        let why = "another charon is connected: one at a time";
        self.note_refusal(why.into());
        let ours = desk.incarnation();
        let answer = Answer::plain(Status::Taken, why);
        tokio::spawn(async move {
            // Its first message, whose number the answer has.
            let asked = timeout(PATIENCE, other.receive()).await;
            let header = asked.ok().and_then(Result::ok).flatten();
            let header = header.and_then(|bytes| Malformed::header_of(&bytes));
            if let Some(header) = header {
                let answer = encode_answer(&header, ours, &answer);
                let _ = timeout(PATIENCE, other.send(&answer)).await;
            }
        });
    }
}

/// The next request for an SA; none ever comes to one that has not said what it is.
async fn next(
    greeted: &mut Option<broadcast::Receiver<v1::Acquire>>,
) -> Result<v1::Acquire, RecvError> {
    match greeted {
        Some(acquires) => acquires.recv().await,
        None => std::future::pending().await,
    }
}
