//! Pings, with the time of each.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::capture::MARKER;
use crate::process::{self, Running};
use crate::{LabError, Namespace, interrupt};

/// Wait for answers that should all come: a busy machine is late by seconds.
const LATE: Duration = Duration::from_secs(20);

/// Pings to send: target, number, size. Every packet carries [`MARKER`].
#[derive(Clone, Copy, Debug)]
pub struct Ping<'a> {
    /// Address.
    pub to: &'a str,
    /// Source address, if not the usual.
    pub from: Option<&'a str>,
    /// Number of pings.
    pub count: u32,
    /// Time between two.
    pub interval: Duration,
    /// Bytes of payload.
    pub size: u32,
    /// Permission to fragment them.
    pub fragments: Fragments,
    /// The wait for the last answers, if there was none so far.
    pub patience: Duration,
}

/// Permission to fragment a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fragments {
    /// Granted to the sender and, over IPv4, to routers.
    Allowed,
    /// Granted to nobody: DF is set.
    Forbidden,
}

/// The result of pings.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Answers {
    /// Sent.
    pub sent: u64,
    /// Answered.
    pub received: u64,
    /// Answered more than once.
    pub duplicates: u64,
    /// Round trips, sorted, in microseconds.
    pub times_us: Vec<f64>,
    /// Smallest MTU that a router or the own host named.
    pub mtu: Option<u32>,
    /// Everything that ping printed.
    pub text: String,
}

impl<'a> Ping<'a> {
    /// `count` pings of usual size to `to`, 100 a second.
    pub fn new(to: &'a str, count: u32) -> Ping<'a> {
        let interval = Duration::from_millis(10);
        let (fragments, patience) = (Fragments::Allowed, Duration::from_secs(2));
        Ping { to, from: None, count, interval, size: 56, fragments, patience }
    }

    /// Pings from inside `from` and waits for the end: at most the time that sending takes, and
    /// five seconds.
    ///
    /// # Errors
    /// As [`process::run`], and [`LabError::Answer`]. Pings without an answer are no error.
    pub fn run(&self, from: &Namespace) -> Result<Answers, LabError> {
        self.finish(self.start(from)?)
    }

    /// Does as [`run`](Self::run), and waits for the answers that are late: `ping` itself gives up
    /// twice the longest round trip after the last packet, or one interval, which a busy machine
    /// exceeds. While an answer is missing, `ping` sends more for the time of `patience`, and at
    /// least twenty seconds long; only the first `count` are counted. Where somebody else counts
    /// the packets too, [`run_one_by_one`](Self::run_one_by_one) is right.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_until_answered(&self, from: &Namespace) -> Result<Answers, LabError> {
        let mut command = self.command(from);
        let patience = self.patience.max(LATE);
        let seconds = (self.interval * self.count + patience).as_secs();
        command.args(["-w", &seconds.to_string(), self.to]);
        Ok(self.finish(Running::start(command)?)?.of_the_first(self.count))
    }

    /// Sends one after another, each once the one before was answered, and never more than
    /// `count`, however late the answers are: up to `patience`, and at least twenty seconds. The
    /// first without an answer is the last. All are of one flow: they have one identifier.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_one_by_one(&self, from: &Namespace) -> Result<Answers, LabError> {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let identifier = 1 + std::process::id().wrapping_add(call) % 0xffff;
        let one = Ping { count: 1, patience: self.patience.max(LATE), ..*self };
        let mut all = Answers::default();
        for _ in 0..self.count {
            let began = Instant::now();
            let mut command = one.command(from);
            command.args(["-e", &identifier.to_string()]);
            let answers = one.finish(one.started(command)?)?;
            let answered = answers.received > 0;
            all.add(answers);
            if !answered {
                break;
            }
            interrupt::sleep(self.interval.saturating_sub(began.elapsed()))?;
        }
        Ok(all)
    }

    /// Sends exactly `count` packets in one burst, and waits `patience` for the answers, at least
    /// twenty seconds. `ping` shortens the wait after early answers; a burst has no early answer.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_at_once(&self, from: &Namespace) -> Result<Answers, LabError> {
        let all = Ping { patience: self.patience.max(LATE), ..*self };
        let mut command = all.command(from);
        command.args(["-l", &all.count.to_string()]);
        all.finish(all.started(command)?)
    }

    /// Starts pinging and does not wait.
    ///
    /// # Errors
    /// As [`Running::start`].
    pub fn start(&self, from: &Namespace) -> Result<Running, LabError> {
        self.started(self.command(from))
    }

    fn started(&self, mut command: Command) -> Result<Running, LabError> {
        // No -w: it would send more than `count`.
        command.args(["-W", &format!("{:.1}", self.patience.as_secs_f64()), self.to]);
        Running::start(command)
    }

    fn finish(&self, running: Running) -> Result<Answers, LabError> {
        let finished = running.finish(self.limit(), process::Interruption::Heed)?;
        let text = finished.stdout + &finished.stderr;
        Answers::parse(&text).ok_or(LabError::Answer { command: finished.command, answer: text })
    }

    /// The command without its target.
    fn command(&self, from: &Namespace) -> Command {
        let pattern: String = MARKER.iter().map(|byte| format!("{byte:02x}")).collect();
        let interval = format!("{:.4}", self.interval.as_secs_f64());
        let (count, size) = (self.count.to_string(), self.size.to_string());
        let mut command = from.command("ping");
        command.args(["-n", "-p", &pattern, "-i", &interval, "-c", &count, "-s", &size]);
        // By default ping sets DF on what fits its own link.
        let discovery = match self.fragments {
            Fragments::Allowed => "dont",
            Fragments::Forbidden => "do",
        };
        command.args(["-M", discovery]);
        if let Some(source) = self.from {
            command.args(["-I", source]);
        }
        command
    }

    fn limit(&self) -> Duration {
        // The machine may be busy: this is for a ping that never ends.
        self.interval * self.count + Duration::from_secs(30)
    }
}

impl Answers {
    /// Reads what ping printed; `None`: it did not get as far as its closing line.
    fn parse(text: &str) -> Option<Answers> {
        let closing = text.lines().find(|line| line.contains(" packets transmitted, "))?;
        let number = |behind: &str| -> Option<u64> {
            closing.split(", ").find(|part| part.contains(behind)).and_then(|part| {
                part.trim_start_matches('+').split_whitespace().next()?.parse().ok()
            })
        };
        let mut times_us: Vec<f64> = text
            .lines()
            .filter(|line| !line.contains("(DUP!)"))
            .filter_map(|line| line.split_once(" time=")?.1.split_whitespace().next()?.parse().ok())
            .map(|milliseconds: f64| milliseconds * 1000.0)
            .collect();
        times_us.sort_by(f64::total_cmp);
        let mtu = text.lines().filter_map(mtu).min();
        Some(Answers {
            sent: number("packets transmitted")?,
            received: number("received")?,
            duplicates: number("duplicates").unwrap_or(0),
            times_us,
            mtu,
            text: text.to_owned(),
        })
    }

    /// Adds those of further pings.
    fn add(&mut self, more: Answers) {
        self.sent += more.sent;
        self.received += more.received;
        self.duplicates += more.duplicates;
        self.times_us.extend(more.times_us);
        self.times_us.sort_by(f64::total_cmp);
        self.mtu = [self.mtu, more.mtu].into_iter().flatten().min();
        self.text += &more.text;
    }

    /// Counts the first packets alone, by their sequence numbers.
    fn of_the_first(self, count: u32) -> Answers {
        let number = |line: &str| -> Option<u32> {
            line.split_once(" icmp_seq=")?.1.split_whitespace().next()?.parse().ok()
        };
        let answers = self.text.lines().filter(|line| line.contains(" time="));
        let answered: BTreeSet<u32> =
            answers.filter_map(number).filter(|number| (1..=count).contains(number)).collect();
        Answers { sent: count.into(), received: answered.len() as u64, ..self }
    }

    /// The time that a part of the round trips stay below, in microseconds: 0.5 for the median.
    pub fn percentile_us(&self, part: f64) -> Option<f64> {
        percentile(&self.times_us, part)
    }

    /// Returns whether every ping was answered, once.
    pub fn all_answered(&self) -> bool {
        self.sent > 0 && self.received == self.sent && self.duplicates == 0
    }

    /// `20 of 20 answered`.
    pub fn summary(&self) -> String {
        let Answers { sent, received, duplicates, .. } = self;
        match duplicates {
            0 => format!("{received} of {sent} answered"),
            more => format!("{received} of {sent} answered, {more} more than once"),
        }
    }
}

/// The value below which `part` of the sorted `values` lie.
pub fn percentile(values: &[f64], part: f64) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    Some(values[(part * last as f64).round() as usize])
}

/// The MTU that a line of ping names: `(mtu = 1446)`, `mtu=1446`, `mtu: 1446`.
fn mtu(line: &str) -> Option<u32> {
    let rest = line.split_once("mtu")?.1.trim_start_matches([' ', '=', ':']);
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_losses_and_duplicates_are_read() {
        let answers = Answers::parse(
            "PATTERN: 0x4c\nPING 10.2.0.10 (10.2.0.10) 56(84) bytes of data.\n\
             64 bytes from 10.2.0.10: icmp_seq=1 ttl=62 time=0.055 ms\n\
             64 bytes from 10.2.0.10: icmp_seq=1 ttl=62 time=9.055 ms (DUP!)\n\
             64 bytes from 10.2.0.10: icmp_seq=2 ttl=62 time=0.033 ms\n\n\
             --- 10.2.0.10 ping statistics ---\n\
             3 packets transmitted, 2 received, +1 duplicates, 33.3333% packet loss, time 9ms\n",
        )
        .unwrap();
        assert_eq!((answers.sent, answers.received, answers.duplicates), (3, 2, 1));
        assert_eq!(answers.times_us, [33.0, 55.0]);
        assert!(!answers.all_answered());
        assert_eq!(answers.percentile_us(1.0), Some(55.0));
        // Of the first two both were answered; of the first three one was not.
        let of = |count| answers.clone().of_the_first(count);
        assert_eq!((of(2).sent, of(2).received), (2, 2));
        assert_eq!((of(3).sent, of(3).received), (3, 2));
        assert_eq!((of(1).sent, of(1).received), (1, 1));
    }

    #[test]
    fn the_mtu_is_read_in_all_its_spellings() {
        for line in [
            "From 10.1.0.1 icmp_seq=1 Frag needed and DF set (mtu = 1446)",
            "From 2001:db8:1::1 icmp_seq=1 Packet too big: mtu=1446",
            "ping: local error: message too long, mtu=1446",
            "ping: sendmsg: Message too long, mtu: 1446",
        ] {
            assert_eq!(mtu(line), Some(1446), "{line}");
        }
        assert_eq!(mtu("64 bytes from 10.2.0.10"), None);
    }

    #[test]
    fn percentiles_of_few_values_are_values() {
        assert_eq!(percentile(&[], 0.5), None);
        assert_eq!(percentile(&[1.0, 2.0, 9.0], 0.5), Some(2.0));
        assert_eq!(percentile(&[1.0, 2.0, 9.0], 0.99), Some(9.0));
    }
}
