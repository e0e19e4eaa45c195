//! A foreign text, which may hold keys.

use std::io::Read;

use config::Location;
use zeroize::{Zeroize, Zeroizing};

use crate::problem::{ImportErrors, Mistake, Problem};

/// Bytes of a foreign text at most.
pub const MAX_BYTES: usize = 64 << 20;

/// A text with its name. Wiped after use, because it may hold keys; no `Debug` for the same reason.
pub struct Foreign {
    /// The name in messages.
    pub name: String,
    text: Zeroizing<String>,
}

impl Foreign {
    /// Takes a text.
    pub fn new(name: &str, text: &str) -> Foreign {
        Foreign { name: name.to_owned(), text: Zeroizing::new(text.to_owned()) }
    }

    /// Reads a text up to its end.
    ///
    /// # Errors
    /// It cannot be read, is too long, or no UTF-8.
    pub fn read(mut input: impl Read, name: &str) -> Result<Foreign, ImportErrors> {
        let wrong = |mistake| Err(ImportErrors::of_file(name, mistake));
        let mut bytes = Zeroizing::new(Vec::with_capacity(64 << 10));
        let mut piece = Zeroizing::new([0; 16 << 10]);
        loop {
            match input.read(&mut piece[..]) {
                Ok(0) => break,
                Ok(read) if bytes.len() + read > MAX_BYTES => {
                    return wrong(Mistake::TooLong { limit: MAX_BYTES });
                }
                Ok(read) => append(&mut bytes, &piece[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return wrong(Mistake::Unreadable { kind: error.kind() }),
            }
        }
        match String::from_utf8(std::mem::take(&mut *bytes)) {
            Ok(text) => Ok(Foreign { name: name.to_owned(), text: Zeroizing::new(text) }),
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                let (line, column) = config::place_within(error.as_bytes(), at);
                error.into_bytes().zeroize();
                let place = Location { file: name.to_owned(), line, column };
                let problems = vec![Problem { place, mistake: Mistake::NotText }];
                Err(ImportErrors { problems, untold: 0 })
            }
        }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// Appends bytes. A vector that grew by itself would leave a copy behind that nobody wipes.
fn append(bytes: &mut Zeroizing<Vec<u8>>, more: &[u8]) {
    if bytes.capacity() - bytes.len() < more.len() {
        let mut larger = Zeroizing::new(Vec::with_capacity(2 * (bytes.len() + more.len())));
        larger.extend_from_slice(bytes);
        *bytes = larger;
    }
    bytes.extend_from_slice(more);
}
