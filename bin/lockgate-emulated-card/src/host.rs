//! Connections of hosts: one is served, and one that begins takes the card over.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use card_link::{LineError, Lines, Report, Request, decode_request, encode};
use console::output::complain;
use offload::{Card, Item, Tag};
use rustix::event::PollFlags;

use crate::failure::Failure;
use crate::lines::{Connection, Listener};
use crate::station::Station;

/// Connections that have not begun at most; further ones are closed.
const MOST_WAITING: usize = 8;
/// Operations that wait in the card at most: a host that asks for more is closed.
const MOST_PENDING: usize = 100_000;

/// The socket for hosts, and its connections.
pub(crate) struct Hosts {
    listener: Listener,
    /// Those that have not begun.
    waiting: Vec<Connection>,
    served: Option<Connection>,
}

impl Hosts {
    /// Serves on a path.
    ///
    /// # Errors
    /// As [`Listener::open`].
    pub(crate) fn open(path: &Path) -> Result<Hosts, Failure> {
        Ok(Hosts { listener: Listener::open(path)?, waiting: Vec::new(), served: None })
    }

    /// Descriptors to sleep on, with what is awaited of each.
    pub(crate) fn fds(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let connections = self.waiting.iter().chain(&self.served);
        let connections = connections.map(|one| (one.as_fd(), one.awaited()));
        std::iter::once((self.listener.as_fd(), PollFlags::IN)).chain(connections)
    }

    /// Does what hosts ask, and tells the one that is served what has happened.
    pub(crate) fn turn(&mut self, station: &mut Station) {
        while let Some(stream) = self.listener.accept() {
            if self.waiting.len() < MOST_WAITING {
                self.waiting.push(Connection::new(stream, Lines::of_requests()));
            }
        }
        for mut connection in std::mem::take(&mut self.waiting) {
            connection.fill();
            match begins(&mut connection) {
                Ok(true) => {
                    begin(&mut connection, station);
                    // The connection before it is closed.
                    self.served = Some(connection);
                }
                Ok(false) if connection.is_over() => {}
                Ok(false) => self.waiting.push(connection),
                Err(error) => complain(&format!("emulated card: a host is refused: {error}")),
            }
        }
        if let Some(connection) = &mut self.served {
            connection.fill();
            let served = serve(connection, station);
            connection.push();
            if let Err(error) = &served {
                complain(&format!("emulated card: the host is closed: {error}"));
            }
            if served.is_err() || connection.is_over() {
                self.served = None;
            }
        }
        if self.served.is_none() {
            // Nobody is there to be told.
            station.card.poll(&mut Vec::new());
        }
    }
}

/// Returns whether a host's first line is there and says that it begins.
fn begins(connection: &mut Connection) -> Result<bool, Refused> {
    let Some(line) = connection.take()? else { return Ok(false) };
    match decode_request(line)? {
        Request::Begin {} => Ok(true),
        _ => Err(Refused::NotBegun),
    }
}

/// Reason why a host is refused. The host is at fault.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("its first line is not {{\"begin\":{{}}}}")]
    NotBegun,
    #[error("it asks for more than the card can do: {MOST_PENDING} operations wait")]
    Hasty,
    #[error(transparent)]
    Line(#[from] LineError),
}

fn begin(connection: &mut Connection, station: &mut Station) {
    station.begin();
    connection.send(&encode(&Report::Begun { card: station.card.spec() }));
}

/// Does what the lines ask that are there, and tells what has happened.
fn serve(connection: &mut Connection, station: &mut Station) -> Result<(), Refused> {
    while let Some(line) = connection.take()? {
        match decode_request(line)? {
            Request::Begin {} => begin(connection, station),
            Request::Place { tag, rule } => place(connection, station, tag, Item::Rule(rule)),
            Request::PlaceSa { tag, sa } => place(connection, station, tag, Item::Sa(sa)),
            Request::PlacePolicy { tag, policy } => {
                place(connection, station, tag, Item::Policy(policy));
            }
            Request::Withdraw { tag } => station.card.withdraw(tag),
            Request::Look { number } => {
                let at_ms = tell(connection, station);
                connection.send(&encode(&Report::Found(station.look(number, at_ms))));
            }
        }
    }
    tell(connection, station);
    if station.card.pending() > MOST_PENDING { Err(Refused::Hasty) } else { Ok(()) }
}

fn place(connection: &mut Connection, station: &mut Station, tag: Tag, item: Item) {
    if let Some(refused) = station.place(tag, item) {
        connection.send(&encode(&Report::Event(refused)));
    }
}

/// Tells what has happened until now; returns what time that is.
fn tell(connection: &mut Connection, station: &mut Station) -> u64 {
    let now_ms = station.now_ms();
    station.card.advance(now_ms);
    let mut events = Vec::new();
    station.card.poll(&mut events);
    for event in events {
        connection.send(&encode(&Report::Event(event)));
    }
    now_ms
}
