//! Detects a silent daemon: the kernel accepts connections for a stopped or hanging process. A
//! daemon at work sends its HTTP/2 settings at once, and answers the pings of a waiting client.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::Notify;

/// Interval at which a waiting client checks for received bytes. Silence is counted in intervals:
/// a client counts one for the time in which the client itself was stopped.
const INTERVAL: Duration = Duration::from_millis(500);
/// Intervals of silence after which the daemon is named.
const SILENT_INTERVALS: u32 = 6;
/// Intervals of silence of a computing daemon: the service manager's watchdog ends a daemon that
/// hangs for longer.
const BUSY_INTERVALS: u32 = 24;
/// Intervals of silence in a call after which the command ends, for a daemon that is not stopped.
const CALL_INTERVALS: u32 = 60;

/// State of a process as the kernel's letter: `R` runs, `T` is stopped, `Z` has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessState(pub char);

impl ProcessState {
    /// Reads the state of a process' main thread. `None`: no such process, or a hidden one.
    fn of(process: u32) -> Option<ProcessState> {
        state_in(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
    }

    /// Returns whether the process is stopped by a signal or a debugger.
    fn is_stopped(self) -> bool {
        matches!(self.0, 'T' | 't')
    }
}

/// Reads the state in a line of `/proc/N/stat`. The name before it may hold any character.
fn state_in(stat: &str) -> Option<ProcessState> {
    let (_, behind) = stat.rsplit_once(')')?;
    behind.trim_start().chars().next().map(ProcessState)
}

/// A daemon that sends nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SilentDaemon {
    /// Process that listens at the socket, if the kernel tells it.
    pub process: Option<u32>,
    /// State of the process.
    pub state: Option<ProcessState>,
}

impl SilentDaemon {
    fn of(process: Option<u32>) -> SilentDaemon {
        SilentDaemon { process, state: process.and_then(ProcessState::of) }
    }

    /// Returns the next step for the operator.
    fn advice(&self) -> String {
        match (self.process, self.state) {
            (Some(process), Some(state)) if state.is_stopped() => {
                format!("it is stopped, and `kill -CONT {process}` continues it")
            }
            (_, Some(ProcessState('R'))) => "its control thread computes".to_owned(),
            (_, Some(ProcessState('D'))) => "it waits for a disk or another device".to_owned(),
            _ => "`systemctl restart lockgated` starts it anew".to_owned(),
        }
    }
}

impl fmt::Display for SilentDaemon {
    /// `lockgated (process 7, state T) does not answer: …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("lockgated")?;
        match (self.process, self.state) {
            (Some(process), Some(ProcessState(state))) => {
                write!(f, " (process {process}, state {state})")?;
            }
            (Some(process), None) => write!(f, " (process {process})")?,
            (None, _) => {}
        }
        write!(f, " does not answer: {}", self.advice())
    }
}

/// Count of the reads that a connection completed.
#[derive(Debug, Default)]
struct ReceivedReads {
    count: AtomicU64,
    came: Notify,
}

impl ReceivedReads {
    fn add(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.came.notify_one();
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

/// Silence of the daemon at the other end of a connection.
#[derive(Clone, Debug)]
pub struct SilenceWatch {
    process: Option<u32>,
    received: Arc<ReceivedReads>,
}

impl SilenceWatch {
    /// Watches a connection. The returned stream counts its reads.
    pub(crate) fn new(stream: UnixStream) -> (SilenceWatch, CountedStream) {
        let process = stream.peer_cred().ok().and_then(|peer| peer.pid());
        // 0: a process of another PID namespace.
        let process = process.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid != 0);
        let received = Arc::new(ReceivedReads::default());
        let stream = CountedStream { stream, received: received.clone() };
        (SilenceWatch { process, received }, stream)
    }

    /// Waits for the first sign of life. Calls `report` once for a daemon that computes: the wait
    /// goes on, for a while.
    ///
    /// # Errors
    /// The daemon sent nothing.
    pub(crate) async fn first_sign(
        &self,
        report: impl FnOnce(SilentDaemon),
    ) -> Result<(), SilentDaemon> {
        let mut report = Some(report);
        for intervals in 1..=BUSY_INTERVALS {
            if self.received.count() > 0 {
                return Ok(());
            }
            if intervals > SILENT_INTERVALS {
                let daemon = SilentDaemon::of(self.process);
                if daemon.state != Some(ProcessState('R')) && report.is_some() {
                    return Err(daemon);
                }
                if let Some(report) = report.take() {
                    report(daemon);
                }
            }
            // Ends at once when something comes.
            let _ = tokio::time::timeout(INTERVAL, self.received.came.notified()).await;
        }
        match self.received.count() {
            0 => Err(SilentDaemon::of(self.process)),
            _ => Ok(()),
        }
    }

    /// Waits until the daemon has been silent for too long in a call. Calls `report` for each
    /// silence that lasts, as soon as a stopped daemon would end the wait: long work goes on. Never
    /// ends while the daemon sends.
    pub async fn silent(&self, mut report: impl FnMut(SilentDaemon)) -> SilentDaemon {
        let (mut last, mut intervals) = (self.received.count(), 0);
        loop {
            tokio::time::sleep(INTERVAL).await;
            let now = self.received.count();
            intervals = if now == last { intervals + 1 } else { 0 };
            last = now;
            if intervals < SILENT_INTERVALS {
                continue;
            }
            let daemon = SilentDaemon::of(self.process);
            match SilenceStep::of(intervals, daemon.state) {
                SilenceStep::Wait => {}
                SilenceStep::Report => report(daemon),
                SilenceStep::End => return daemon,
            }
        }
    }
}

/// Consequence of a silence in a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SilenceStep {
    Wait,
    Report,
    End,
}

impl SilenceStep {
    /// Returns the consequence of a number of silent intervals, [`SILENT_INTERVALS`] at least.
    fn of(intervals: u32, state: Option<ProcessState>) -> SilenceStep {
        match intervals {
            _ if state.is_some_and(ProcessState::is_stopped) => SilenceStep::End,
            SILENT_INTERVALS => SilenceStep::Report,
            CALL_INTERVALS.. => SilenceStep::End,
            _ => SilenceStep::Wait,
        }
    }
}

/// Connection with a count of its reads, the end of the stream included.
pub(crate) struct CountedStream {
    stream: UnixStream,
    received: Arc<ReceivedReads>,
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if polled.is_ready() {
            self.received.add();
        }
        polled
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_in_a_call_is_reported_once_and_ends_the_wait_later() {
        for letter in ['R', 'S', 'D'] {
            let steps = (SILENT_INTERVALS..=CALL_INTERVALS)
                .map(|intervals| SilenceStep::of(intervals, Some(ProcessState(letter))));
            let mut steps: Vec<SilenceStep> = steps.collect();
            assert_eq!(steps.remove(0), SilenceStep::Report);
            assert_eq!(steps.pop(), Some(SilenceStep::End));
            assert!(steps.iter().all(|step| *step == SilenceStep::Wait), "{letter}");
        }
        for letter in ['T', 't'] {
            let step = SilenceStep::of(SILENT_INTERVALS, Some(ProcessState(letter)));
            assert_eq!(step, SilenceStep::End);
        }
    }

    #[tokio::test]
    async fn connection_that_stays_silent_names_its_process() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (watch, _stream) = SilenceWatch::new(ours);
        let (report, reported) = std::sync::mpsc::channel();
        let wait = watch.silent(move |daemon| report.send(daemon).unwrap());
        let task = async {
            loop {
                if let Ok(daemon) = reported.try_recv() {
                    return daemon;
                }
                tokio::time::sleep(INTERVAL / 10).await;
            }
        };
        let daemon = tokio::select! {
            daemon = wait => daemon,
            daemon = task => daemon,
        };
        assert_eq!(daemon.process, Some(std::process::id()));
        assert!(daemon.to_string().contains(" does not answer: "), "{daemon}");
    }
}
