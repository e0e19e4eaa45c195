//! Messages as lines, and lines out of a stream.

use serde::Serialize;
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

use crate::message::{Report, Request};
use crate::rule::{Malformed, check, check_policy};
use crate::wiped::Wiped;

/// Bytes of a line at most: a look at a card of `offload::MOST_ENTRIES` items fits.
pub const MAX_LINE: usize = 64 << 20;
/// Bytes of a host's line at most: a rule of `offload::MOST_ENTRIES_A_RULE` entries fits.
pub const MAX_REQUEST: usize = 256 << 10;

/// The reason why a line is no message. Its author is at fault, and the connection is of no use.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The line is too long, or did not end in time.
    #[error("a line of more than {0} bytes")]
    TooLong(usize),
    /// The line is no JSON, or no message.
    #[error("no message: {0}")]
    NoMessage(#[from] serde_json::Error),
    /// The line names an SA and is no message; it is not shown, for the sake of the key.
    #[error("no message of an SA: what is wrong is at byte {column}")]
    NoSa {
        /// The place in the line, from 1 on.
        column: usize,
    },
    /// The rule, or the policy, is of no use.
    #[error("no rule: {0}")]
    Rule(#[from] Malformed),
}

/// The line of a message, with its end. It may hold a key, and is wiped when it goes.
pub fn encode(message: &impl Serialize) -> Zeroizing<Vec<u8>> {
    encode_behind(Zeroizing::default(), message)
}

/// Lines, and behind them that of a message. Of what moves for want of room no copy is left.
pub fn encode_behind(lines: Zeroizing<Vec<u8>>, message: &impl Serialize) -> Zeroizing<Vec<u8>> {
    let (before, mut bytes) = (lines.len(), Wiped::of(lines));
    // Maps with other keys than strings, and types that refuse to be written, are what fails.
    if serde_json::to_writer(&mut bytes, message).is_err() {
        bytes.truncate(before);
    }
    bytes.extend(b"\n");
    bytes.into_bytes()
}

/// Reads a host's line, with or without its end.
///
/// # Errors
/// [`LineError`]: the card closes the connection.
pub fn decode_request(line: &[u8]) -> Result<Request, LineError> {
    let request = decode(line, MAX_REQUEST).map_err(|error| match error {
        LineError::NoMessage(error) if names_an_sa(line) => {
            LineError::NoSa { column: error.column() }
        }
        other => other,
    })?;
    match &request {
        Request::Place { rule, .. } => check(rule)?,
        Request::PlacePolicy { policy, .. } => check_policy(policy)?,
        _ => {}
    }
    Ok(request)
}

/// Reads a card's line, with or without its end.
///
/// # Errors
/// [`LineError`]: the host takes the card for lost.
pub fn decode_report(line: &[u8]) -> Result<Report, LineError> {
    decode(line, MAX_LINE)
}

/// Returns whether a key may be in a line. The errors of the reader of JSON show what was there.
fn names_an_sa(line: &[u8]) -> bool {
    [&b"\"place_sa\""[..], b"\"key\""]
        .into_iter()
        .any(|word| line.windows(word.len()).any(|part| part == word))
}

fn decode<T: DeserializeOwned>(line: &[u8], most: usize) -> Result<T, LineError> {
    if line.len() > most {
        return Err(LineError::TooLong(most));
    }
    Ok(serde_json::from_slice(line)?)
}

/// Lines out of a stream's bytes, each up to so many bytes, its end counted. They are wiped when
/// they were taken.
#[derive(Debug)]
pub struct Lines {
    most: usize,
    held: Wiped,
    /// Bytes at the front of `held` that were taken.
    taken: usize,
    /// Bytes behind those that have no end of a line.
    searched: usize,
}

impl Lines {
    /// Lines of a host, for a card.
    pub fn of_requests() -> Lines {
        Lines::up_to(MAX_REQUEST)
    }

    /// Lines of a card, for a host.
    pub fn of_reports() -> Lines {
        Lines::up_to(MAX_LINE)
    }

    /// Lines of up to so many bytes.
    pub fn up_to(most: usize) -> Lines {
        Lines { most, held: Wiped::default(), taken: 0, searched: 0 }
    }

    /// Takes bytes of the stream in. Take the lines out before the next bytes come: what is held is
    /// at most a line and what came with it.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.held.forget(self.taken);
        self.taken = 0;
        self.held.extend(bytes);
    }

    /// The next line that is there as a whole, without its end.
    ///
    /// # Errors
    /// [`LineError::TooLong`]: the stream is of no use any more.
    pub fn take(&mut self) -> Result<Option<&[u8]>, LineError> {
        let rest = &self.held.bytes()[self.taken..];
        let found = rest[self.searched..].iter().position(|byte| *byte == b'\n');
        let length = found.map_or(rest.len(), |at| self.searched + at + 1);
        if length > self.most {
            return Err(LineError::TooLong(self.most));
        }
        if found.is_none() {
            self.searched = length;
            return Ok(None);
        }
        let begin = self.taken;
        self.taken += length;
        self.searched = 0;
        Ok(Some(&self.held.bytes()[begin..begin + length - 1]))
    }
}

#[cfg(test)]
mod tests;
