//! iperf3: TCP as fast as it goes, UDP at a rate.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::process::{self, Finished, Running};
use crate::{LabError, Namespace};

/// Time that a client gets beyond its measurement.
const MARGIN: Duration = Duration::from_secs(10);

/// Port of a server, where nobody asks for another one.
const PORT: u16 = 5201;
/// Bytes that a UDP socket is given at most.
const UDP_BUFFER: u64 = 4 << 20;

/// An iperf3 server.
#[derive(Debug)]
pub struct Server {
    _running: Running,
}

impl Server {
    /// Starts a server and waits until it listens.
    ///
    /// # Errors
    /// As [`Running::wait_until`].
    pub fn start(host: &Namespace) -> Result<Server, LabError> {
        Server::start_at(host, PORT)
    }

    /// Does as [`start`](Self::start), at another port: a server serves one client at a time.
    ///
    /// # Errors
    /// As there.
    pub fn start_at(host: &Namespace, port: u16) -> Result<Server, LabError> {
        let port = port.to_string();
        let mut running = host.start(&["iperf3", "--server", "--forceflush", "--port", &port])?;
        running.wait_until("the server", MARGIN, |server| server.stdout().contains("listening"))?;
        Ok(Server { _running: running })
    }
}

/// The result of a UDP run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Udp {
    /// Packets sent.
    pub sent: u64,
    /// Packets lost.
    pub lost: u64,
    /// Packets sent a second.
    pub sent_pps: f64,
    /// Part that was lost, 0 to 1.
    pub loss: f64,
}

/// Sends TCP for `seconds` and returns what arrived, in Gbit/s.
///
/// # Errors
/// As [`process::succeed`], and [`LabError::Answer`].
pub fn tcp(from: &Namespace, to: &str, seconds: u32) -> Result<f64, LabError> {
    Tcp { seconds, omitted: 1, streams: 1 }.run(from, to)
}

/// A TCP run as fast as it goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tcp {
    /// Seconds that count.
    pub seconds: u32,
    /// Seconds in front that do not count.
    pub omitted: u32,
    /// Connections at a time.
    pub streams: u32,
}

impl Tcp {
    /// Sends, and returns what arrived by all connections together, in Gbit/s.
    ///
    /// # Errors
    /// As [`tcp`].
    pub fn run(self, from: &Namespace, to: &str) -> Result<f64, LabError> {
        self.start(from, to)?.finish()
    }

    /// Starts sending and does not wait.
    ///
    /// # Errors
    /// As [`Running::start`].
    pub fn start(self, from: &Namespace, to: &str) -> Result<RunningTcp, LabError> {
        let Tcp { seconds, omitted, streams } = self;
        let [omit, parallel] = [omitted, streams].map(|number| number.to_string());
        let command = command(from, to, seconds, &["--omit", &omit, "--parallel", &parallel]);
        Ok(RunningTcp { running: Running::start(command)?, seconds: omitted + seconds })
    }
}

/// A TCP run that is under way. Dropping it ends it.
#[derive(Debug)]
pub struct RunningTcp {
    running: Running,
    seconds: u32,
}

impl RunningTcp {
    /// Waits for its end and returns what arrived by all connections together, in Gbit/s.
    ///
    /// # Errors
    /// As [`tcp`].
    pub fn finish(self) -> Result<f64, LabError> {
        let finished = self.running.finish(limit(self.seconds), process::Interruption::Heed)?;
        let report = Report::read(finished)?;
        let bits = report.value.pointer("/end/sum_received/bits_per_second");
        let bits = bits.and_then(Value::as_f64);
        bits.map(|bits| bits / 1e9).ok_or_else(|| report.unexpected())
    }
}

/// A TCP run at a bounded rate that is under way. Dropping it ends it.
#[derive(Debug)]
pub struct BoundedTcp {
    running: Running,
    seconds: u32,
}

/// Starts sending TCP for `seconds` at no more than a rate, and does not wait.
///
/// # Errors
/// As [`Running::start`].
pub fn start_bounded_tcp(
    from: &Namespace,
    to: &str,
    seconds: u32,
    bits_per_second: u64,
) -> Result<BoundedTcp, LabError> {
    let rate = bits_per_second.to_string();
    let running = Running::start(command(from, to, seconds, &["--bitrate", &rate]))?;
    Ok(BoundedTcp { running, seconds })
}

impl BoundedTcp {
    /// Waits for its end and returns how many bytes arrived.
    ///
    /// # Errors
    /// As [`tcp`].
    pub fn finish(self) -> Result<u64, LabError> {
        let finished = self.running.finish(limit(self.seconds), process::Interruption::Heed)?;
        let report = Report::read(finished)?;
        let received = report.value.pointer("/end/sum_received/bytes").and_then(Value::as_u64);
        received.ok_or_else(|| report.unexpected())
    }
}

/// Sends UDP of `bytes` bytes at `packets_per_second`.
///
/// # Errors
/// As [`tcp`].
pub fn udp(from: &Namespace, to: &str, seconds: u32, load: (u32, u32)) -> Result<Udp, LabError> {
    udp_at(from, (to, PORT), seconds, load)
}

/// Does as [`udp`], with a server at another port.
///
/// # Errors
/// As [`tcp`].
pub fn udp_at(
    from: &Namespace,
    (to, port): (&str, u16),
    seconds: u32,
    (bytes, packets_per_second): (u32, u32),
) -> Result<Udp, LabError> {
    let port = port.to_string();
    let buffer = socket_buffer().to_string();
    let rate = (u64::from(bytes) * 8 * u64::from(packets_per_second)).to_string();
    let length = bytes.to_string();
    let report = client(
        from,
        to,
        seconds,
        &[
            &["--udp", "--bitrate", &rate, "--length", &length][..],
            &["--window", &buffer, "--port", &port],
        ]
        .concat(),
    )?;
    let field = |name: &str| report.value.pointer(&format!("/end/sum/{name}"));
    let count = |name: &str| field(name).and_then(Value::as_u64);
    let span = field("seconds").and_then(Value::as_f64);
    match (count("packets"), count("lost_packets"), span) {
        (Some(sent @ 1..), Some(lost), Some(span)) if span > 0.0 => {
            Ok(Udp { sent, lost, sent_pps: sent as f64 / span, loss: lost as f64 / sent as f64 })
        }
        _ => Err(report.unexpected()),
    }
}

/// Bytes of a socket's buffer for UDP: as many as the kernel allows, up to [`UDP_BUFFER`]. With the
/// usual ones a receiver that has no core for some milliseconds loses packets that had arrived.
fn socket_buffer() -> u64 {
    ["rmem_max", "wmem_max"]
        .iter()
        .filter_map(|limit| std::fs::read_to_string(format!("/proc/sys/net/core/{limit}")).ok())
        .filter_map(|limit| limit.trim().parse().ok())
        .fold(UDP_BUFFER, u64::min)
}

struct Report {
    command: String,
    value: Value,
}

impl Report {
    /// Reads what a client printed.
    fn read(finished: Finished) -> Result<Report, LabError> {
        let Finished { command, stdout: answer, .. } = finished;
        let value: Value = serde_json::from_str(&answer)
            .map_err(|_| LabError::Answer { command: command.clone(), answer })?;
        match value.get("error") {
            Some(error) => Err(LabError::Answer { command, answer: error.to_string() }),
            None => Ok(Report { command, value }),
        }
    }

    fn unexpected(&self) -> LabError {
        LabError::Answer { command: self.command.clone(), answer: self.value.to_string() }
    }
}

fn command(from: &Namespace, to: &str, seconds: u32, more: &[&str]) -> Command {
    let mut command = from.command("iperf3");
    command.args(["--client", to, "--json", "--connect-timeout", "3000"]);
    command.args(["--time", &seconds.to_string()]).args(more);
    command
}

/// Time for a client that measures for `seconds`.
fn limit(seconds: u32) -> Duration {
    Duration::from_secs(u64::from(seconds) + 1) + MARGIN
}

fn client(from: &Namespace, to: &str, seconds: u32, more: &[&str]) -> Result<Report, LabError> {
    Report::read(process::run(command(from, to, seconds, more), limit(seconds))?)
}
