//! Writes a line on stderr for each event. The daemon does not wait for the reader of a pipe, a
//! socket or a terminal: a stopped terminal, a pager, a slow journal.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::os::linux::fs::MetadataExt;
use std::time::{Duration, Instant};

use api::v1::Event;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Kind, Severity};

/// Lines that wait for a reader at most; later ones are counted.
const MAX_WAITING: usize = 4096;
/// Bytes that a pipe with room takes whole (`PIPE_BUF`), so that a write does not wait.
const AT_ONCE: usize = 4096;

/// Format of log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Format {
    /// journald has its own clock, and reads the severity as `<N>`.
    Journal,
    /// A terminal or a file.
    Plain,
}

/// Lines on their way to a reader.
#[derive(Debug)]
pub(super) struct Log {
    /// `None`: the reader is gone, or there never was one.
    to: Option<File>,
    format: Format,
    waiting: VecDeque<String>,
    /// Bytes of the first line that are written.
    written: usize,
    /// Lines that found no room since the last one that did.
    missed: u64,
}

impl Log {
    /// Lines for stderr.
    pub(super) fn on_stderr() -> Log {
        let stderr = std::io::stderr().as_fd().try_clone_to_owned().ok().map(File::from);
        let format = match stderr.as_ref().is_some_and(is_journal) {
            true => Format::Journal,
            false => Format::Plain,
        };
        Log::to(stderr, format)
    }

    /// Lines for an open file; for `None` they are dropped.
    pub(super) fn to(to: Option<File>, format: Format) -> Log {
        Log { to, format, waiting: VecDeque::new(), written: 0, missed: 0 }
    }

    /// Writes the line of an event, or keeps it until there is room.
    pub(super) fn put(&mut self, event: &Event) {
        if self.to.is_none() {
            return;
        }
        self.write_on();
        if self.waiting.len() >= MAX_WAITING {
            self.missed += 1;
            return;
        }
        let line = self.line_of(event);
        self.tell_of_missed();
        self.waiting.push_back(line);
        self.write_on();
    }

    /// Writes what waits, as far as there is room.
    pub(super) fn write_on(&mut self) {
        self.write_until(None);
    }

    /// Writes what waits, and waits for room up to a moment.
    pub(super) fn finish(&mut self, end: Instant) {
        self.tell_of_missed();
        self.write_until(Some(end));
    }

    fn write_until(&mut self, end: Option<Instant>) {
        while let Some(first) = self.waiting.front() {
            let Some(to) = &mut self.to else { return self.waiting.clear() };
            let rest = &first.as_bytes()[self.written..];
            let part = &rest[..rest.len().min(AT_ONCE)];
            let left =
                end.map_or(Duration::ZERO, |end| end.saturating_duration_since(Instant::now()));
            if !has_room(to, left) {
                return;
            }
            match to.write(part) {
                Ok(bytes) if bytes == rest.len() => {
                    self.waiting.pop_front();
                    self.written = 0;
                }
                Ok(bytes) => self.written += bytes,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // Others read the same terminal or pipe, and made it one that does not wait.
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                // The ring and the stream are still there.
                Err(_) => self.to = None,
            }
        }
    }

    fn tell_of_missed(&mut self) {
        if self.missed > 0 {
            let count = std::mem::take(&mut self.missed);
            let message = format!("{count} lines are missing here: they were read too slowly");
            let told = super::event(Kind::EventsLost, "", message, None, &[("count", &count)]);
            let line = self.line_of(&told);
            self.waiting.push_back(line);
        }
    }

    fn line_of(&self, event: &Event) -> String {
        let severity = Kind::named(&event.kind).map_or(Severity::Notice, Kind::severity);
        match self.format {
            Format::Journal => format!("<{}>{}\n", severity as u8, line(event)),
            Format::Plain => format!("{} {} {}\n", event.time, event.severity, line(event)),
        }
    }
}

/// Returns whether a write of [`AT_ONCE`] bytes does not wait, or fails at once.
fn has_room(to: &File, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).ok();
    let mut fds = [PollFd::new(to, PollFlags::OUT)];
    poll(&mut fds, limit.as_ref()).is_ok_and(|ready| ready > 0)
}

/// `port_down wan: its link is down (ifindex=3) by uid 0`: one line, whatever stands in it. The
/// subject is left out where the kind says it.
pub(super) fn line(event: &Event) -> String {
    let mut text = event.kind.clone();
    if Kind::named(&event.kind).is_none_or(|kind| kind.part() != event.subject) {
        let _ = write!(text, " {}", event.subject);
    }
    let _ = write!(text, ": {}", event.message);
    let mut details: Vec<_> = event.details.iter().collect();
    details.sort_by_key(|(name, _)| *name);
    for (place, (name, value)) in details.iter().enumerate() {
        let _ = write!(text, "{}{name}={value}", if place == 0 { " (" } else { ", " });
    }
    if !details.is_empty() {
        text.push(')');
    }
    if let Some(uid) = event.uid {
        let _ = write!(text, " by uid {uid}");
    }
    // What strangers chose (a netdev's name, a word of a refused file) begins no line of its own.
    let mut one = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => one.push_str(" | "),
            c if c.is_control() => one.extend(c.escape_default()),
            c => one.push(c),
        }
    }
    one
}

/// Returns whether stderr is a stream to journald: `JOURNAL_STREAM` names its device and inode
/// (systemd.exec(5)).
fn is_journal(stderr: &File) -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let metadata = stderr.metadata();
    metadata.is_ok_and(|metadata| stream == format!("{}:{}", metadata.st_dev(), metadata.st_ino()))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::super::event;
    use super::*;

    fn numbered(number: usize) -> Event {
        event(Kind::Applied, "", format!("number {number}"), None, &[])
    }

    /// The numbers of lines that were read, and of those that a line says are missing.
    fn numbers(text: &str) -> (Vec<usize>, usize) {
        let behind = |line: &str, word| line.split_once(word)?.1.split(' ').next()?.parse().ok();
        let told = text.lines().filter_map(|line| behind(line, "number ")).collect();
        let missing = text.lines().filter(|line| line.contains("events_lost"));
        let missing = missing.filter_map(|line| behind(line, "events_lost: ")).sum();
        (told, missing)
    }

    #[test]
    fn a_reader_that_stops_holds_nobody_up_and_lines_that_found_no_room_are_counted() {
        const LINES: usize = 12_000;
        let (reader, writer) = std::io::pipe().unwrap();
        let mut log = Log::to(Some(File::from(std::os::fd::OwnedFd::from(writer))), Format::Plain);
        // Nobody reads: a write that waits would wait for ever.
        (0..LINES).for_each(|number| log.put(&numbered(number)));
        assert!(log.missed > 0 && log.waiting.len() == MAX_WAITING);
        let reading = std::thread::spawn(move || {
            let mut text = String::new();
            let mut reader = reader;
            reader.read_to_string(&mut text).unwrap();
            text
        });
        log.finish(Instant::now() + Duration::from_secs(60));
        assert!(log.waiting.is_empty());
        log.put(&numbered(LINES));
        drop(log);
        let (told, missing) = numbers(&reading.join().unwrap());
        let first = told.len() - 1;
        assert_eq!(told[..first], (0..first).collect::<Vec<_>>(), "in their order");
        assert_eq!((told[first], first + missing), (LINES, LINES), "each is told or counted");
    }

    #[test]
    fn at_the_end_a_reader_that_stopped_has_its_time_and_no_more() {
        let (_reader, writer) = std::io::pipe().unwrap();
        let mut log = Log::to(Some(File::from(std::os::fd::OwnedFd::from(writer))), Format::Plain);
        (0..2000).for_each(|number| log.put(&numbered(number)));
        assert!(!log.waiting.is_empty());
        log.finish(Instant::now() + Duration::from_millis(50));
        assert!(!log.waiting.is_empty());
    }

    #[test]
    fn a_reader_that_is_gone_ends_the_log_alone() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut log = Log::to(Some(File::from(std::os::fd::OwnedFd::from(writer))), Format::Plain);
        (0..3).for_each(|number| log.put(&numbered(number)));
        assert!(log.to.is_none() && log.waiting.is_empty());
    }

    #[test]
    fn a_long_line_is_written_whole() {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut log =
            Log::to(Some(File::from(std::os::fd::OwnedFd::from(writer))), Format::Journal);
        let long = "x".repeat(3 * AT_ONCE);
        log.put(&event(Kind::Applied, "", long.clone(), None, &[]));
        drop(log);
        let text = std::io::read_to_string(reader).unwrap();
        assert!(text.starts_with('<') && text.ends_with(&format!("{long}\n")), "{}", text.len());
    }
}
