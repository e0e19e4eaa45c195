//! Asks charon over its control socket (VICI): `swanctl --initiate` without a program for each.
//!
//! Not handled here: events, and all other commands.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::LabError;

/// Time for an answer.
const LIMIT: Duration = Duration::from_secs(60);
/// Longest answer that is read.
const MOST: usize = 512 * 1024;

const COMMAND: u8 = 0;
const RESPONSE: u8 = 1;
const SECTION_START: u8 = 1;
const SECTION_END: u8 = 2;
const KEY_VALUE: u8 = 3;
const LIST_START: u8 = 4;
const LIST_ITEM: u8 = 5;
const LIST_END: u8 = 6;

/// A connection to a charon.
#[derive(Debug)]
pub struct Vici {
    stream: UnixStream,
}

impl Vici {
    /// Connects to a [control socket](crate::Charon::socket).
    ///
    /// # Errors
    /// [`LabError::File`].
    pub fn connect(socket: &Path) -> Result<Vici, LabError> {
        let stream = UnixStream::connect(socket).map_err(LabError::file(socket))?;
        stream.set_read_timeout(Some(LIMIT)).map_err(LabError::file(socket))?;
        Ok(Vici { stream })
    }

    /// Initiates a CHILD_SA and waits until it is established.
    ///
    /// # Errors
    /// [`LabError::Answer`] has what charon says of a child that is not; [`LabError::Socket`].
    pub fn initiate(&mut self, child: &str) -> Result<(), LabError> {
        let mut request = vec![COMMAND];
        short(&mut request, b"initiate");
        // No lines of charon's log on the way.
        for (key, value) in [("child", child), ("timeout", "20000"), ("loglevel", "-1")] {
            request.push(KEY_VALUE);
            short(&mut request, key.as_bytes());
            request.extend((value.len() as u16).to_be_bytes());
            request.extend(value.as_bytes());
        }
        let answer = self.exchange(&request).map_err(LabError::socket("cannot ask charon"))?;
        let of = |key: &str| answer.iter().find(|(name, _)| name == key).map(|(_, value)| value);
        match of("success").is_some_and(|value| value == "yes") {
            true => Ok(()),
            false => Err(LabError::Answer {
                command: format!("initiate {child}"),
                answer: of("errmsg").cloned().unwrap_or_default(),
            }),
        }
    }

    fn exchange(&mut self, request: &[u8]) -> std::io::Result<Vec<(String, String)>> {
        self.stream.write_all(&(request.len() as u32).to_be_bytes())?;
        self.stream.write_all(request)?;
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut answer = vec![0; (u32::from_be_bytes(length) as usize).min(MOST)];
        self.stream.read_exact(&mut answer)?;
        pairs(&answer).ok_or_else(|| std::io::ErrorKind::InvalidData.into())
    }
}

/// Adds text behind a byte with its length.
fn short(message: &mut Vec<u8>, text: &[u8]) {
    message.push(text.len() as u8);
    message.extend(text);
}

/// Keys and values of a response, those of all sections; `None`: it is none, or cut off.
fn pairs(answer: &[u8]) -> Option<Vec<(String, String)>> {
    let mut rest = answer.strip_prefix(&[RESPONSE])?;
    let mut found = Vec::new();
    while let Some((&kind, after)) = rest.split_first() {
        rest = after;
        match kind {
            SECTION_START | LIST_START => drop(take(&mut rest, 1)?),
            SECTION_END | LIST_END => {}
            LIST_ITEM => drop(take(&mut rest, 2)?),
            KEY_VALUE => found.push((take(&mut rest, 1)?, take(&mut rest, 2)?)),
            _ => return None,
        }
    }
    Some(found)
}

/// Takes text behind its length of `bytes` bytes.
fn take(rest: &mut &[u8], bytes: usize) -> Option<String> {
    let (length, after) = rest.split_at_checked(bytes)?;
    let length = length.iter().fold(0, |length, &byte| length << 8 | usize::from(byte));
    let (text, after) = after.split_at_checked(length)?;
    *rest = after;
    Some(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_read_and_one_that_is_cut_off_is_none() {
        let bytes = b"\x01\x03\x07success\0\x02no\x01\x01s\x03\x06errmsg\0\x03why\x02";
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let expected = vec![pair("success", "no"), pair("errmsg", "why")];
        assert_eq!(pairs(bytes), Some(expected));
        for end in [0, 3, 10, 13, 16, 22] {
            assert!(pairs(&bytes[..end]).is_none(), "{end}");
        }
    }
}
