//! `lockgate events`: what happened lately, and with `-f` what happens.

use std::time::{Duration, SystemTime};

use api::v1;
use console::output::{Reader, json_line, print_line};
use console::terminal::{Style, Terminal, printable};

use super::{Ask, LiveError, Socket};
use crate::failure::Failure;

/// Columns in front of an event's text: time and severity.
const INDENT: usize = 29;

/// Show recent events, and follow new ones
///
/// Prints the events that the daemon keeps (the last 1024), oldest first: time in UTC, severity,
/// subject, message and, in brackets, the kind. With --follow it goes on with new events until it
/// is interrupted. lockgated(8) lists every kind with its severity and meaning.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    lockgate events --severity warning --since 1h\n  \
    lockgate events -f --kind port_down,port_up\n  \
    lockgate events --json | jq 'select(.subject == \"wan\")'")]
pub(crate) struct Args {
    /// Continue with new events as they happen
    #[arg(short, long)]
    follow: bool,
    /// Show only events of these kinds
    #[arg(long, value_name = "KIND,…", value_delimiter = ',')]
    kind: Vec<String>,
    /// Show only events at or after this time (2026-08-30T12:00:00Z), or from the last 10m, 2h, 1d
    #[arg(long, value_name = "TIME|DURATION", value_parser = since)]
    since: Option<StartTime>,
    /// Show only events of this severity or higher
    #[arg(long, value_enum)]
    severity: Option<Severity>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Severity {
    /// A part of the gateway does not work
    Error,
    /// A condition that somebody should look at
    Warning,
    /// A change worth knowing; nothing to do
    Notice,
    /// Part of normal operation
    Info,
}

impl Severity {
    const fn word(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Notice => "notice",
            Severity::Info => "info",
        }
    }
}

/// The beginning of the time that is of interest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StartTime {
    Time(SystemTime),
    Ago(Duration),
}

impl StartTime {
    fn rfc3339(self, now: SystemTime) -> String {
        let time = match self {
            StartTime::Time(time) => time,
            StartTime::Ago(time) => now.checked_sub(time).unwrap_or(SystemTime::UNIX_EPOCH),
        };
        humantime::format_rfc3339_nanos(time.max(SystemTime::UNIX_EPOCH)).to_string()
    }
}

fn since(text: &str) -> Result<StartTime, &'static str> {
    let time = humantime::parse_rfc3339_weak(text).map(StartTime::Time);
    time.or_else(|_| humantime::parse_duration(text).map(StartTime::Ago)).map_err(
        |_| "write a time in UTC as 2026-08-30T12:00:00Z, or a duration as 90s, 10m, 2h, 1d",
    )
}

/// Prints events as they come; each line is there when its event is.
pub(crate) fn run(args: &Args, socket: &Socket) -> Result<(), Failure> {
    let mut ask = Ask::new(socket)?;
    let request = v1::EventsRequest {
        follow: args.follow,
        kinds: args.kind.clone(),
        since: args.since.map(|since| since.rfc3339(SystemTime::now())),
        severity: args.severity.map(|severity| severity.word().into()),
    };
    let mut stream = ask.call(async |client| client.events(request).await)?;
    while let Some(event) = ask.next(&mut stream)? {
        // The width may change while events come.
        let text = match args.json {
            true => json_line(&event),
            false => human(&event, Terminal::stdout()),
        };
        // When nobody reads any more, that is an end like another.
        if print_line(text.trim_end())? == Reader::Gone {
            return Ok(());
        }
    }
    match args.follow {
        true => Err(LiveError::StreamEnded.into()),
        false => Ok(()),
    }
}

/// An event for people: one line, or several of a terminal's width.
fn human(event: &v1::Event, terminal: Terminal) -> String {
    let v1::Event { time, severity, subject, message, kind, .. } = event;
    // To the second: `--json` has nanoseconds.
    let time = match time.get(..19) {
        Some(seconds) if time.ends_with('Z') => format!("{seconds}Z"),
        _ => printable(time),
    };
    let style = match severity.as_str() {
        "error" => Style::Bad,
        "warning" => Style::Warning,
        _ => Style::Dim,
    };
    let by = event.uid.map_or(String::new(), |uid| format!(" (by uid {uid})"));
    let repeated = event.details.get("repeated");
    let repeated = repeated.map_or(String::new(), |count| format!(" (and {count} more like it)"));
    let text = printable(&format!("{subject}: {message}{by}{repeated} [{kind}]"));
    let severity = terminal.paint(style, &format!("{:<7}", printable(severity)));
    let lines = terminal.wrap(&text, INDENT).into_iter().enumerate();
    lines
        .map(|(place, line)| match place {
            0 => format!("{time:<20} {severity} {line}\n"),
            _ => format!("{:INDENT$}{line}\n", ""),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> v1::Event {
        v1::Event {
            time: "2026-08-30T12:00:00.123456789Z".into(),
            severity: "warning".into(),
            kind: "port_down".into(),
            subject: "wan".into(),
            message: "port wan has no carrier\nat all\x1b[2J".into(),
            uid: Some(7),
            details: [("repeated".to_owned(), v1::Detail::number(3))].into(),
            ..v1::Event::default()
        }
    }

    #[test]
    fn an_event_is_one_line_that_a_person_reads() {
        assert_eq!(
            human(&event(), Terminal::plain(None)),
            "2026-08-30T12:00:00Z warning wan: port wan has no carrier | at all\\u{1b}[2J \
             (by uid 7) (and 3 more like it) [port_down]\n"
        );
    }

    #[test]
    fn on_a_terminal_no_line_is_wider_than_it() {
        let text = human(&event(), Terminal::plain(Some(80)));
        assert!(text.lines().count() > 1, "{text}");
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with(&" ".repeat(INDENT))), "{text}");
    }

    #[test]
    fn since_is_a_time_or_a_duration() {
        let now = humantime::parse_rfc3339("2026-08-30T12:00:00Z").unwrap();
        let text = |text| since(text).map(|since| since.rfc3339(now));
        assert_eq!(text("10m").unwrap(), "2026-08-30T11:50:00.000000000Z");
        assert_eq!(text("1h 30m").unwrap(), "2026-08-30T10:30:00.000000000Z");
        assert_eq!(text("2026-08-29T01:02:03Z").unwrap(), "2026-08-29T01:02:03.000000000Z");
        assert_eq!(text("1000000years").unwrap(), "1970-01-01T00:00:00.000000000Z");
        assert!(text("noon").is_err() && text("").is_err() && text("10").is_err());
    }
}
