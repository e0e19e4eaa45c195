//! A steady stream of numbered UDP packets, sent and received by threads of this process: both
//! ends have one clock, so a gap is known to the packet.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use crate::capture::MARKER;
use crate::{LabError, Namespace, interrupt};

/// Port that streams are received at.
const PORT: u16 = 7007;
/// Time without an arrival after which the path is taken as cut. A packet that is late on a busy
/// machine is not lost.
const QUIET: Duration = Duration::from_secs(5);
/// The same for a path that the test has cut.
const QUIET_WHERE_CUT: Duration = Duration::from_secs(1);
/// The same after a closing packet, or after as many arrivals as packets: more would be
/// repetitions.
const QUIET_AFTER_ALL: Duration = Duration::from_millis(200);
/// Longest time that a receiver waits for the last packets.
const LAST: Duration = Duration::from_secs(20);
/// Number of a closing packet. Closing packets follow the others on their path: after the arrival
/// of a closing packet, a missing packet is lost.
const CLOSING: u64 = u64::MAX;
/// Bytes of the receiver's buffer: a receiver that has no core for a while loses nothing that had
/// arrived.
const BUFFER: usize = 8 << 20;

/// A stream that runs. Dropping it ends it.
#[derive(Debug)]
pub struct Stream {
    stop_sending: Arc<AtomicBool>,
    stop_receiving: Arc<AtomicBool>,
    sender: Option<JoinHandle<Vec<(u64, Instant)>>>,
    receiver: Option<JoinHandle<Vec<(u64, Instant)>>>,
    arrivals: Arc<Mutex<Arrivals>>,
    /// The sender's socket, and its last packet.
    closing: (UdpSocket, Vec<u8>),
    target: SocketAddr,
}

/// Arrivals so far, written by the receiving thread.
#[derive(Clone, Copy, Debug, Default)]
struct Arrivals {
    count: usize,
    last: Option<Instant>,
    is_closed: bool,
}

/// Packets of a stream, as sent and as they arrived.
#[derive(Clone, Debug, Default)]
pub struct Delivery {
    /// Number and time of every packet that the sending host accepted.
    pub sent: Vec<(u64, Instant)>,
    /// Number and time of every arrival, in their order.
    pub arrived: Vec<(u64, Instant)>,
    /// Number of closing packets, sent behind the others.
    pub closing: usize,
}

impl Stream {
    /// Starts sending a packet of `bytes` bytes every `interval`.
    ///
    /// # Errors
    /// [`LabError::Socket`], and as [`Namespace::enter`].
    ///
    /// # Panics
    /// If `bytes` are too few for [`MARKER`] and a number.
    pub fn start(
        (from, from_address): (&Namespace, IpAddr),
        (to, to_address): (&Namespace, IpAddr),
        bytes: usize,
        interval: Duration,
    ) -> Result<Stream, LabError> {
        assert!(bytes >= MARKER.len() + 8, "{bytes} bytes");
        let receiving = roomy_socket(to, SocketAddr::new(to_address, PORT))?;
        let sending = bind(from, SocketAddr::new(from_address, 0))?;
        receiving
            .set_read_timeout(Some(Duration::from_millis(50)))
            .map_err(LabError::socket("cannot set a socket's time limit"))?;
        let target = SocketAddr::new(to_address, PORT);
        let [stop_sending, stop_receiving] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let stop = Arc::clone(&stop_receiving);
        let arrivals = Arc::<Mutex<Arrivals>>::default();
        let counted = Arc::clone(&arrivals);
        let receiver = std::thread::spawn(move || receive(&receiving, &stop, &counted));
        let stop = Arc::clone(&stop_sending);
        let socket = sending.try_clone().map_err(LabError::socket("cannot clone a socket"))?;
        let closing = (socket, packet(CLOSING, bytes));
        let sender = std::thread::spawn(move || send(&sending, target, bytes, interval, &stop));
        let (sender, receiver) = (Some(sender), Some(receiver));
        Ok(Stream { stop_sending, stop_receiving, sender, receiver, arrivals, closing, target })
    }

    /// Waits until a packet arrives after `moment`, at most `limit` from now. Returns whether one
    /// did.
    ///
    /// # Errors
    /// [`LabError::Interrupted`].
    pub fn wait_for_arrival(&self, moment: Instant, limit: Duration) -> Result<bool, LabError> {
        let end = Instant::now() + limit;
        loop {
            if self.arrivals().last.is_some_and(|last| last > moment) {
                return Ok(true);
            }
            if Instant::now() >= end {
                return Ok(false);
            }
            interrupt::sleep(Duration::from_millis(20))?;
        }
    }

    /// Waits until `count` packets have arrived, at most `limit`. Returns whether the count was
    /// reached.
    ///
    /// # Errors
    /// [`LabError::Interrupted`].
    pub fn wait_for_arrivals(&self, count: usize, limit: Duration) -> Result<bool, LabError> {
        let end = Instant::now() + limit;
        while self.arrivals().count < count {
            if Instant::now() >= end {
                return Ok(false);
            }
            interrupt::sleep(Duration::from_millis(20))?;
        }
        Ok(true)
    }

    /// Stops sending, waits for the last packets and returns what became of all.
    pub fn finish(mut self) -> Delivery {
        self.stop(QUIET)
    }

    /// Does as [`finish`](Self::finish) where the test has cut the path, and waits less.
    pub fn finish_cut(mut self) -> Delivery {
        self.stop(QUIET_WHERE_CUT)
    }

    fn stop(&mut self, quiet: Duration) -> Delivery {
        let mut delivery = Delivery::default();
        self.stop_sending.store(true, Ordering::Relaxed);
        if let Some(sender) = self.sender.take() {
            delivery.sent = sender.join().unwrap_or_default();
            delivery.closing = self.wait_for_the_last(delivery.sent.len(), quiet);
        }
        self.stop_receiving.store(true, Ordering::Relaxed);
        if let Some(receiver) = self.receiver.take() {
            delivery.arrived = receiver.join().unwrap_or_default();
        }
        delivery
    }

    /// Sends closing packets until nothing comes any more, and returns their number.
    fn wait_for_the_last(&self, sent: usize, quiet: Duration) -> usize {
        let (end, mut closing) = (Instant::now(), 0);
        let (socket, packet) = &self.closing;
        loop {
            let Arrivals { count, last, is_closed } = self.arrivals();
            let is_complete = is_closed || count >= sent;
            if !is_complete {
                // The own host may refuse: no route while a port is gone.
                closing += usize::from(socket.send_to(packet, self.target).is_ok());
            }
            std::thread::sleep(Duration::from_millis(20));
            let quiet = if is_complete { QUIET_AFTER_ALL } else { quiet };
            let since = last.map_or(end, |last| last.max(end));
            if since.elapsed() >= quiet || end.elapsed() >= LAST {
                return closing;
            }
        }
    }

    fn arrivals(&self) -> Arrivals {
        *self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop(QUIET_WHERE_CUT);
    }
}

/// Returns the packet of a number.
fn packet(number: u64, bytes: usize) -> Vec<u8> {
    let mut packet = vec![0; bytes];
    packet[..MARKER.len()].copy_from_slice(&MARKER);
    packet[MARKER.len()..MARKER.len() + 8].copy_from_slice(&number.to_be_bytes());
    packet
}

/// A socket with a buffer for all arrivals while the reader has no core.
///
/// # Errors
/// [`LabError::Socket`], and as [`Namespace::enter`].
pub fn roomy_socket(namespace: &Namespace, address: SocketAddr) -> Result<UdpSocket, LabError> {
    let socket = bind(namespace, address)?;
    set_socket_recv_buffer_size_force(&socket, BUFFER)
        .map_err(|error| LabError::socket("cannot enlarge a socket's buffer")(error.into()))?;
    Ok(socket)
}

fn bind(namespace: &Namespace, address: SocketAddr) -> Result<UdpSocket, LabError> {
    namespace
        .enter(|| UdpSocket::bind(address))?
        .map_err(LabError::socket("cannot open a socket for a stream"))
}

fn send(
    socket: &UdpSocket,
    target: SocketAddr,
    bytes: usize,
    interval: Duration,
    stop: &AtomicBool,
) -> Vec<(u64, Instant)> {
    let mut packet = packet(0, bytes);
    let mut sent = Vec::new();
    let mut due = Instant::now();
    let mut number: u64 = 0;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        due += interval;
        packet[MARKER.len()..MARKER.len() + 8].copy_from_slice(&number.to_be_bytes());
        let now = Instant::now();
        // What the own host refuses (no route while a port is gone) was never sent.
        if socket.send_to(&packet, target).is_ok() {
            sent.push((number, now));
        }
        number += 1;
        if now.saturating_duration_since(due) > interval * 100 {
            // The machine had no time for us: no burst to make up for it.
            due = now;
        }
    }
    sent
}

/// Receives until it is told to stop and nothing is left that had arrived.
fn receive(
    socket: &UdpSocket,
    stop: &AtomicBool,
    arrivals: &Mutex<Arrivals>,
) -> Vec<(u64, Instant)> {
    let mut arrived = Vec::new();
    let mut buffer = [0; 2048];
    loop {
        let Ok(length) = socket.recv(&mut buffer) else {
            match stop.load(Ordering::Relaxed) {
                true => return arrived,
                false => continue,
            }
        };
        let number = buffer[..length].strip_prefix(&MARKER).and_then(|rest| rest.first_chunk());
        if let Some(number) = number.map(|number| u64::from_be_bytes(*number)) {
            let now = Instant::now();
            let mut arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
            match number {
                CLOSING => arrivals.is_closed = true,
                number => {
                    arrived.push((number, now));
                    arrivals.count = arrived.len();
                }
            }
            arrivals.last = Some(now);
        }
    }
}

impl Delivery {
    /// Packets that arrived at least once.
    pub fn received(&self) -> usize {
        self.distinct().len()
    }

    /// Packets that never arrived.
    pub fn lost(&self) -> usize {
        let arrived = self.distinct();
        self.sent.iter().filter(|(number, _)| !arrived.contains(number)).count()
    }

    /// Packets sent from `from` to `to` that never arrived.
    pub fn lost_between(&self, from: Instant, to: Instant) -> usize {
        let arrived = self.distinct();
        let span = self.sent.iter().filter(|(_, time)| (from..=to).contains(time));
        span.filter(|(number, _)| !arrived.contains(number)).count()
    }

    /// Packets sent from `from` to `to` that arrived, however late.
    pub fn arrived_of_span(&self, from: Instant, to: Instant) -> usize {
        let span = self.sent.iter().filter(|(_, time)| (from..=to).contains(time)).count();
        span - self.lost_between(from, to)
    }

    /// Arrivals of packets that had arrived before.
    pub fn repeated(&self) -> usize {
        self.arrived.len() - self.received()
    }

    /// Packets that arrived behind one with a higher number (RFC 4737 §3.3); a packet that comes
    /// again counts only if its first arrival was late.
    pub fn reordered(&self) -> usize {
        let mut seen = HashSet::new();
        let mut next = 0;
        let first = self.arrived.iter().filter(|(number, _)| seen.insert(*number));
        let late = first.filter(|&&(number, _)| {
            let is_late = number < next;
            next = next.max(number + 1);
            is_late
        });
        late.count()
    }

    /// Returns the time from `moment` to the first arrival after it.
    pub fn first_after(&self, moment: Instant) -> Option<Duration> {
        let next = self.arrived.iter().find(|(_, time)| *time > moment);
        next.map(|(_, time)| time.duration_since(moment))
    }

    /// Arrivals from `from` to `to`.
    pub fn arrived_between(&self, from: Instant, to: Instant) -> usize {
        self.arrived.iter().filter(|(_, time)| (from..=to).contains(time)).count()
    }

    fn distinct(&self) -> HashSet<u64> {
        self.arrived.iter().map(|&(number, _)| number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_gaps_and_repetitions_are_counted() {
        let start = Instant::now();
        let at = |millisecond| start + Duration::from_millis(millisecond);
        let delivery = Delivery {
            sent: (0..10).map(|number| (number, at(number))).collect(),
            arrived: vec![(0, at(1)), (1, at(2)), (1, at(3)), (8, at(9)), (9, at(10))],
            closing: 0,
        };
        assert_eq!((delivery.received(), delivery.lost(), delivery.repeated()), (4, 6, 1));
        assert_eq!(delivery.lost_between(at(0), at(4)), 3);
        assert_eq!(delivery.arrived_of_span(at(0), at(4)), 2);
        assert_eq!(delivery.first_after(at(3)), Some(Duration::from_millis(6)));
        assert_eq!(delivery.first_after(at(10)), None);
        assert_eq!(delivery.arrived_between(at(2), at(9)), 3);
    }

    #[test]
    fn packets_behind_a_later_one_are_reordered_and_repetitions_are_not() {
        let start = Instant::now();
        let reordered = |numbers: &[u64]| {
            let arrived = numbers.iter().map(|number| (*number, start)).collect();
            Delivery { arrived, ..Delivery::default() }.reordered()
        };
        assert_eq!(reordered(&[]), 0);
        // A gap is a loss, and the packet behind it is in its place.
        assert_eq!(reordered(&[0, 1, 4, 5, 9]), 0);
        assert_eq!(reordered(&[0, 1, 1, 2, 0]), 0);
        // Packets 1 and 2 were overtaken by 3; of 3, which overtook them, that is no fault.
        assert_eq!(reordered(&[0, 3, 1, 2, 4]), 2);
        assert_eq!(reordered(&[0, 3, 1, 1, 2, 4]), 2);
    }
}
