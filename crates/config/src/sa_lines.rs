//! SAs to put over the API as text, for `lockgate sa put`: the lines of a key file, with options
//! behind them.
//!
//! ```text
//! # direction SPI key-material [option=value …]
//! in  0x5d3c7e01 000102… peer=berlin replaces=0x11aa2b01
//! out 0x00001001 a0a1a2… peer=berlin suite=aes-256-gcm esn=true soft_packets=3G
//! ```
//! As of a key file nothing of it is ever shown: mistakes are told by line and column alone.

use std::io::Read;
use std::path::Path;

use ipsec::{Lifetime, Limits, Spi, Suite};
use policy::Direction;
use zeroize::Zeroizing;

use crate::cards::SaOffload;
use crate::diagnostic::{DiagnosticKind, nearest};
use crate::errors::{ConfigErrors, Diagnostic, MAX_PROBLEMS, Severity};
use crate::keys::{MAX_KEY_FILE_BYTES, parse_spi, read_secret, words};
use crate::lifetime::{HARD, LimitKeys, MAX_SECONDS, SOFT};
use crate::source::Location;
use crate::values::large_count;

/// Bytes of the longest key material.
const MOST_KEY_BYTES: usize = 96;

/// Options that are no limits.
const OPTIONS: [&str; 6] = ["peer", "suite", "esn", "replay_window", "replaces", "offload"];

/// An SA as a line says it. No `Debug`: it holds key bytes.
pub struct SaLine {
    /// Direction of the SA.
    pub direction: Direction,
    /// SPI of the SA.
    pub spi: Spi,
    /// Key material, of whatever suite.
    pub key: Zeroizing<Vec<u8>>,
    /// Name of the peer.
    pub peer: Option<String>,
    /// Algorithms.
    pub suite: Option<Suite>,
    /// True for sequence numbers of 64 bits.
    pub esn: Option<bool>,
    /// Packets that the replay window remembers.
    pub replay_window: Option<u32>,
    /// SPI of the SA that it replaces.
    pub replaces: Option<Spi>,
    /// Limits, if any is written.
    pub lifetime: Option<Lifetime>,
    /// Its carrier.
    pub offload: Option<SaOffload>,
}

/// Reads the SAs of a file that is fit to hold keys: regular, ours, closed to everybody else.
///
/// # Errors
/// All mistakes of the file, or why it is not read.
pub fn read_sa_lines(path: &Path) -> Result<Vec<SaLine>, ConfigErrors> {
    let file = path.display().to_string();
    let wrong = |mistake| ConfigErrors::of(Location::of_file(&file), mistake);
    parse_sa_lines(&read_secret(path).map_err(wrong)?, &file)
}

/// Reads SAs from an open input, up to its end; `name` is its name in messages.
///
/// # Errors
/// All mistakes of the text, or why it is not read.
pub fn sa_lines_of(input: impl Read, name: &str) -> Result<Vec<SaLine>, ConfigErrors> {
    let wrong = |mistake| ConfigErrors::of(Location::of_file(name), mistake);
    // Allocated at its full size: growing would leave copies behind that nobody wipes.
    let mut content = Zeroizing::new(Vec::with_capacity(MAX_KEY_FILE_BYTES as usize + 1));
    match input.take(MAX_KEY_FILE_BYTES + 1).read_to_end(&mut content) {
        Err(error) => {
            let file = name.to_owned();
            Err(wrong(DiagnosticKind::KeyFileUnreadable { file, kind: error.kind() }))
        }
        Ok(read) if read as u64 > MAX_KEY_FILE_BYTES => {
            let (file, limit) = (name.to_owned(), MAX_KEY_FILE_BYTES);
            Err(wrong(DiagnosticKind::KeyFileTooLarge { file, limit }))
        }
        Ok(_) => parse_sa_lines(&content, name),
    }
}

/// Parses SAs; `file` is the name of the text in messages.
///
/// # Errors
/// All mistakes of the text.
pub fn parse_sa_lines(content: &[u8], file: &str) -> Result<Vec<SaLine>, ConfigErrors> {
    let (mut lines, mut problems) = (Vec::new(), Vec::new());
    for (number, text) in content.split(|byte| *byte == b'\n').enumerate() {
        let words = words(text);
        if words.is_empty() {
            continue;
        }
        match sa_line(&words) {
            Ok(line) => lines.push(line),
            Err(mistakes) => problems.extend(mistakes.into_iter().map(|(column, mistake)| {
                let place = Location { file: file.into(), line: number as u32 + 1, column };
                Diagnostic::new(Severity::Error, place, mistake)
            })),
        }
    }
    if problems.is_empty() {
        return Ok(lines);
    }
    let untold = problems.len().saturating_sub(MAX_PROBLEMS);
    problems.truncate(MAX_PROBLEMS);
    Err(ConfigErrors { problems, untold })
}

type Word<'a> = (u32, &'a [u8]);
type Mistake = (u32, DiagnosticKind);

/// Parses a line. Several words may be wrong; each is told.
fn sa_line(words: &[Word<'_>]) -> Result<SaLine, Vec<Mistake>> {
    let [direction, spi, key, options @ ..] = words else {
        return Err(vec![(words[0].0, DiagnosticKind::SaWords { words: words.len() })]);
    };
    let mut mistakes = Vec::new();
    let direction = match direction.1 {
        b"in" => Some(Direction::Inbound),
        b"out" => Some(Direction::Outbound),
        _ => {
            let expected = "in` or `out";
            mistakes.push((direction.0, DiagnosticKind::KeyDirection { expected }));
            None
        }
    };
    let spi = parse_spi(*spi).map_err(|mistake| mistakes.push(mistake)).ok();
    let key = key_bytes(*key).map_err(|mistake| mistakes.push(mistake)).ok();
    // Options are judged even if the words before them are wrong: that line is never handed out.
    let is_whole = direction.is_some() && spi.is_some() && key.is_some();
    let mut line = SaLine {
        direction: direction.unwrap_or(Direction::Inbound),
        spi: spi.unwrap_or(Spi::LOWEST),
        key: key.unwrap_or_default(),
        peer: None,
        suite: None,
        esn: None,
        replay_window: None,
        replaces: None,
        lifetime: None,
        offload: None,
    };
    for word in options {
        if let Err(mistake) = line.take(*word) {
            mistakes.push(mistake);
        }
    }
    if is_whole && mistakes.is_empty() { Ok(line) } else { Err(mistakes) }
}

fn key_bytes((column, word): Word<'_>) -> Result<Zeroizing<Vec<u8>>, Mistake> {
    if let Some(at) = word.iter().position(|byte| !byte.is_ascii_hexdigit()) {
        return Err((column + at as u32, DiagnosticKind::KeyDigit));
    }
    if !word.len().is_multiple_of(2) || word.len() > 2 * MOST_KEY_BYTES {
        return Err((column, DiagnosticKind::SaKeyBytes { most: MOST_KEY_BYTES }));
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or_default() as u8;
    // Allocated at its full size: growing would leave copies behind that nobody wipes.
    let mut bytes = Zeroizing::new(Vec::with_capacity(word.len() / 2));
    bytes.extend(word.chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])));
    Ok(bytes)
}

impl SaLine {
    /// Takes an option.
    fn take(&mut self, (column, word): Word<'_>) -> Result<(), Mistake> {
        let Some((name, value)) = std::str::from_utf8(word).ok().and_then(|w| w.split_once('='))
        else {
            return Err((column, DiagnosticKind::SaOption { nearest: None }));
        };
        let at_value = column + name.chars().count() as u32 + 1;
        match name {
            "peer" => set(&mut self.peer, "peer", column, Some(value.to_owned())),
            "suite" => set(&mut self.suite, "suite", column, Suite::from_name(value)),
            "esn" => set(&mut self.esn, "esn", column, value.parse().ok()),
            "replay_window" => {
                set(&mut self.replay_window, "replay_window", column, value.parse().ok())
            }
            "replaces" => {
                let spi = parse_spi((at_value, value.as_bytes()))?;
                set(&mut self.replaces, "replaces", column, Some(spi))
            }
            "offload" => {
                let named = SaOffload::OF_SA.into_iter().find(|carrier| carrier.name() == value);
                set(&mut self.offload, "offload", column, named)
            }
            _ => self.take_limit(name, value, column).unwrap_or_else(|| {
                Err((column, DiagnosticKind::SaOption { nearest: nearest_option(name) }))
            }),
        }
    }

    /// Takes a limit; `None`: the option is none.
    fn take_limit(&mut self, name: &str, value: &str, column: u32) -> Option<Result<(), Mistake>> {
        let is_soft = name.starts_with("soft_");
        let keys: LimitKeys = if is_soft { SOFT } else { HARD };
        let LimitKeys { packets, bytes, seconds, idle_seconds } = keys;
        let option = [packets, bytes, seconds, idle_seconds].into_iter().find(|it| *it == name)?;
        let lifetime = self.lifetime.get_or_insert(Lifetime::NONE);
        let limits: &mut Limits = if is_soft { &mut lifetime.soft } else { &mut lifetime.hard };
        let amount = || large_count(value).filter(|amount| *amount > 0);
        let time = || value.parse().ok().filter(|time| (1..=MAX_SECONDS).contains(time));
        Some(match () {
            () if option == packets => set(&mut limits.packets, option, column, amount()),
            () if option == bytes => set(&mut limits.bytes, option, column, amount()),
            () if option == seconds => set(&mut limits.seconds, option, column, time()),
            () => set(&mut limits.idle_seconds, option, column, time()),
        })
    }
}

/// The option that was probably meant. The word itself is never shown: it may be a part of a key.
fn nearest_option(name: &str) -> Option<&'static str> {
    let limits = [SOFT, HARD].into_iter().flat_map(|keys| {
        let LimitKeys { packets, bytes, seconds, idle_seconds } = keys;
        [packets, bytes, seconds, idle_seconds]
    });
    let all: Vec<&'static str> = OPTIONS.into_iter().chain(limits).collect();
    let found = nearest(name, all.iter().copied())?;
    all.into_iter().find(|option| *option == found)
}

/// Sets the value of an option that is not there yet; `None`: the value makes no sense.
fn set<T>(
    place: &mut Option<T>,
    option: &'static str,
    column: u32,
    value: Option<T>,
) -> Result<(), Mistake> {
    match (place.is_some(), value) {
        (true, _) => Err((column, DiagnosticKind::SaOptionTwice { option })),
        (false, None) => Err((column, DiagnosticKind::SaOptionValue { option })),
        (false, value) => {
            *place = value;
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn problem(text: &str) -> String {
        match parse_sa_lines(text.as_bytes(), "sas") {
            Ok(_) => panic!("taken: {text}"),
            Err(errors) => errors.to_string(),
        }
    }

    #[test]
    fn a_line_has_what_a_key_file_has_and_options_behind_it() {
        let text = "# none\n\n in 0x1001 0aFF peer=a esn=false replay_window=64 replaces=4096\n\
                    out 4098 00 suite=aes-256-gcm soft_packets=3G hard_bytes=18446744073709551615 \
                    hard_idle_seconds=9 # all\n";
        let lines = parse_sa_lines(text.as_bytes(), "sas").unwrap_or_else(|e| panic!("{e}"));
        let [a, b] = &lines[..] else { panic!("{} lines", lines.len()) };
        assert_eq!(
            (a.direction, a.spi.value(), &a.key[..]),
            (Direction::Inbound, 0x1001, &[10, 255][..])
        );
        assert_eq!((a.peer.as_deref(), a.esn, a.replay_window), (Some("a"), Some(false), Some(64)));
        assert_eq!((a.replaces.map(Spi::value), a.lifetime), (Some(4096), None));
        assert_eq!((b.direction, b.suite), (Direction::Outbound, Some(Suite::Aes256Gcm)));
        let lifetime = b.lifetime.unwrap();
        assert_eq!(lifetime.soft, Limits { packets: Some(3 << 30), ..Limits::NONE });
        let hard = Limits { bytes: Some(u64::MAX), idle_seconds: Some(9), ..Limits::NONE };
        assert_eq!(lifetime.hard, hard);
    }

    #[test]
    fn mistakes_are_told_by_place_and_never_shown() {
        for (line, place, message) in [
            ("in 0x1001", "1:1", "2 words"),
            ("on 0x1001 abcd", "1:1", "begin with `in` or `out`"),
            ("in 12 abcd", "1:4", "reserved"),
            ("in 0x1001 abc", "1:11", "come in pairs"),
            ("in 0x1001 abxd", "1:13", "not a hexadecimal digit"),
            ("in 0x1001 abcd per=a", "1:16", "not an option"),
            ("in 0x1001 abcd deadbeef", "1:16", "not an option"),
            ("in 0x1001 abcd suite=feed", "1:16", "value of `suite`"),
            ("in 0x1001 abcd esn=yes", "1:16", "value of `esn`"),
            ("in 0x1001 abcd offload=auto", "1:16", "value of `offload`"),
            ("in 0x1001 abcd replaces=1", "1:25", "reserved"),
            ("in 0x1001 abcd hard_packets=0", "1:16", "value of `hard_packets`"),
            ("in 0x1001 abcd soft_seconds=315360001", "1:16", "value of `soft_seconds`"),
            ("in 0x1001 abcd esn=true esn=true", "1:25", "`esn` is there already"),
        ] {
            let text = problem(line);
            assert!(text.contains(&format!("sas:{place}: ")), "{line}: {text}");
            assert!(text.contains(message), "{line}: {text}");
            assert!(!["abcd", "deadbeef", "feed"].iter().any(|word| text.contains(word)), "{text}");
        }
    }

    #[test]
    fn every_mistake_of_a_line_is_told_with_the_option_that_was_probably_meant() {
        let text = problem("on 12 abxd offlod=none esn=yes");
        for place in ["sas:1:1: ", "sas:1:4: ", "sas:1:9: ", "sas:1:12: ", "sas:1:24: "] {
            assert!(text.contains(place), "{place}: {text}");
        }
        assert!(text.contains("did you mean `offload=`?") && !text.contains("offlod"), "{text}");
        assert!(problem("in 0x1001 abcd soft_packet=1").contains("`soft_packets=`?"));
        assert!(problem("in 0x1001 abcd zzzz=1").contains("write peer=, suite="));
    }

    proptest! {
        #[test]
        fn hostile_text_never_panics_and_each_wrong_line_is_told(
            lines in prop::collection::vec(
                prop_oneof![
                    "(in|out) 0x[0-9a-f]{3,9} [0-9a-f]{0,8}( [a-z_]{0,14}=?[0-9a-z]{0,8}){0,3}",
                    "\\PC{0,40}",
                ],
                0..6,
            ),
        ) {
            let text = lines.join("\n");
            if let Err(errors) = parse_sa_lines(text.as_bytes(), "sas") {
                prop_assert!(!errors.problems.is_empty());
                prop_assert!(errors.problems.iter().all(|problem| problem.place.line >= 1));
            }
        }
    }
}
