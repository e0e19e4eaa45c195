//! The loop: one thread, which sleeps until a frame, a line, a signal or the card's own time comes.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use console::output::print_line;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::arguments::Arguments;
use crate::failure::Failure;
use crate::host::Hosts;
use crate::operator::{Operators, socket_of};
use crate::station::Station;

/// A card that serves.
pub(crate) struct Service {
    station: Station,
    hosts: Hosts,
    operators: Operators,
    /// A byte comes when the process is to end.
    signals: UnixStream,
}

impl Service {
    /// Opens all that the card needs, and says that it serves.
    ///
    /// # Errors
    /// [`Failure`].
    pub(crate) fn open(arguments: &Arguments) -> Result<Service, Failure> {
        let signals =
            signals().map_err(|source| Failure::System { call: "catching of signals", source })?;
        let socket = arguments.socket();
        let hosts = Hosts::open(&socket)?;
        let operators = Operators::open(&socket_of(&socket))?;
        let station = Station::open(arguments)?;
        print_line(&format!(
            "emulated card {}: serves on {}; netdev {}, {} queues; wire {}",
            station.card.spec(),
            socket.display(),
            arguments.tap(),
            arguments.queues,
            arguments.wire(),
        ))?;
        Ok(Service { station, hosts, operators, signals })
    }

    /// Serves until a signal comes.
    ///
    /// # Errors
    /// [`Failure::System`], [`Failure::Capture`].
    pub(crate) fn run(mut self) -> Result<(), Failure> {
        loop {
            self.sleep()?;
            if matches!((&self.signals).read(&mut [0; 8]), Ok(1..)) {
                break;
            }
            self.station.card.advance(self.station.now_ms());
            self.operators.turn(&mut self.station)?;
            self.hosts.turn(&mut self.station);
            self.station.carry()?;
        }
        self.station.flush()?;
        print_line(&format!("emulated card: ended; {}", self.station.counts()))?;
        Ok(())
    }

    /// Waits until there is something to do.
    fn sleep(&mut self) -> Result<(), Failure> {
        self.station.flush()?;
        let now = self.station.now_ms();
        let next = self.station.card.next_ms().map(|next| next.saturating_sub(now));
        let timeout = next.map(|ms| Timespec {
            tv_sec: (ms / 1000) as _,
            tv_nsec: ((ms % 1000) * 1_000_000) as _,
        });
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        fds.extend(self.station.fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let connections = self.hosts.fds().chain(self.operators.fds());
        fds.extend(connections.map(|(fd, awaited)| PollFd::from_borrowed_fd(fd, awaited)));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(Failure::System { call: "poll", source: error.into() }),
        }
    }
}

/// A stream with a byte for each signal that asks the process to end.
fn signals() -> std::io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    for signal in [SIGTERM, SIGINT] {
        signal_hook::low_level::pipe::register(signal, theirs.as_fd().try_clone_to_owned()?)?;
    }
    Ok(ours)
}
