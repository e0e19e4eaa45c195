//! Messages as lines, and lines out of a stream.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::message::{Report, Request};
use crate::rule::{Malformed, check};

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
    /// The rule is of no use.
    #[error("no rule: {0}")]
    Rule(#[from] Malformed),
}

/// The line of a message, with its end.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    // Maps with other keys than strings, and types that refuse to be written, are what fails.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Reads a host's line, with or without its end.
///
/// # Errors
/// [`LineError`]: the card closes the connection.
pub fn decode_request(line: &[u8]) -> Result<Request, LineError> {
    let request = decode(line, MAX_REQUEST)?;
    if let Request::Place { rule, .. } = &request {
        check(rule)?;
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

fn decode<T: DeserializeOwned>(line: &[u8], most: usize) -> Result<T, LineError> {
    if line.len() > most {
        return Err(LineError::TooLong(most));
    }
    Ok(serde_json::from_slice(line)?)
}

/// Lines out of a stream's bytes, each up to so many bytes, its end counted.
#[derive(Debug)]
pub struct Lines {
    most: usize,
    held: Vec<u8>,
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
        Lines { most, held: Vec::new(), taken: 0, searched: 0 }
    }

    /// Takes bytes of the stream in. Take the lines out before the next bytes come: what is held is
    /// at most a line and what came with it.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.held.drain(..self.taken);
        self.taken = 0;
        self.held.extend_from_slice(bytes);
    }

    /// The next line that is there as a whole, without its end.
    ///
    /// # Errors
    /// [`LineError::TooLong`]: the stream is of no use any more.
    pub fn take(&mut self) -> Result<Option<&[u8]>, LineError> {
        let rest = &self.held[self.taken..];
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
        Ok(Some(&self.held[begin..begin + length - 1]))
    }
}

#[cfg(test)]
mod tests;
