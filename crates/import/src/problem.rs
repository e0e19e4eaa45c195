//! Mistakes of a foreign text, each with its place and what to write instead; and what was read
//! but has no place in a configuration of ours.

use std::fmt;

use config::{Location, escaped_line, nearest};
use serde::Serialize;

use crate::words::{Cursor, Word};

/// Mistakes that are told at most; further ones are counted.
pub(crate) const MAX_PROBLEMS: usize = 40;

/// Hexadecimal digits in a row that may be a part of a key and are never shown.
const KEY_DIGITS: usize = 12;

/// A mistake in a foreign text.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Mistake {
    /// A word that this place does not take.
    #[error("`{word}` is not a word of {context}")]
    UnknownWord {
        /// The word, fit to be shown.
        word: String,
        /// The thing that it was written in.
        context: &'static str,
        /// The nearest right word.
        nearest: Option<String>,
    },
    /// A word whose value is missing.
    #[error("`{word}` needs a value behind it")]
    NoValue {
        /// The word.
        word: String,
    },
    /// A value that is no number, or too large.
    #[error("`{text}` is not a number from {lowest} to {highest}")]
    NotANumber {
        /// The value.
        text: String,
        /// The smallest number.
        lowest: u64,
        /// The largest number.
        highest: u64,
    },
    /// A value that is no address or prefix.
    #[error("`{text}` is not an address or a prefix of one")]
    NotAnAddress {
        /// The value.
        text: String,
    },
    /// Addresses of both IP versions in one thing, or a range whose end is before its begin.
    #[error("these addresses do not belong together")]
    BadPair,
    /// A key that is no hexadecimal number.
    #[error("the key is no hexadecimal number of whole bytes")]
    BadKey,
    /// A word that a shell changes.
    #[error("`{word}` is text for a shell")]
    Shell {
        /// The word.
        word: String,
    },
    /// Something is not said.
    #[error("{what} is missing")]
    Missing {
        /// The thing.
        what: &'static str,
    },
    /// An offloaded state without a direction.
    #[error("a state with offload must say its direction")]
    OffloadWithoutDirection,
    /// Full offload.
    #[error("there is no offload `full`")]
    OffloadFull,
    /// A policy with an offload that is not `packet`.
    #[error("unrecognized flags: policies take `packet` only")]
    PolicyOffload,
    /// Braces that do not fit.
    #[error("a closing brace is missing or too many")]
    Braces,
    /// A section or a text in quotes without an end.
    #[error("{what} does not end")]
    Unclosed {
        /// The thing.
        what: &'static str,
    },
    /// A character in the wrong place.
    #[error("`{text}` is not expected here")]
    Unexpected {
        /// The character, fit to be shown.
        text: String,
    },
    /// Neither a value nor a section.
    #[error("neither `=` nor `{{` follows {}", named(.word))]
    Statement {
        /// The word, fit to be shown; `None`: it may be part of a secret.
        word: Option<String>,
    },
    /// A value that the key does not take.
    #[error("`{text}` is not {expected}")]
    BadValue {
        /// The value, fit to be shown.
        text: String,
        /// The values that it takes.
        expected: &'static str,
        /// The nearest right word.
        nearest: Option<String>,
    },
    /// Nothing that could be imported.
    #[error("nothing to import: {expected}")]
    Nothing {
        /// The texts that are understood.
        expected: &'static str,
    },
    /// A text that is no UTF-8.
    #[error("not a text in UTF-8")]
    NotText,
    /// A text that is too long.
    #[error("more than {limit} bytes")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// More policies or SAs than a configuration holds.
    #[error("more than {limit} {what}")]
    TooMany {
        /// The things.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A file that cannot be read.
    #[error("cannot be read: {kind}")]
    Unreadable {
        /// The kernel's answer.
        kind: std::io::ErrorKind,
    },
}

impl Mistake {
    /// The advice, if there is more to say.
    pub fn help(&self) -> Option<String> {
        match self {
            Mistake::UnknownWord { nearest, .. } | Mistake::BadValue { nearest, .. } => {
                nearest.as_ref().map(|nearest| format!("did you mean `{nearest}`?"))
            }
            Mistake::OffloadWithoutDirection => {
                Some("write `dir in` or `dir out` behind `dev IF`".into())
            }
            Mistake::OffloadFull => Some("write `packet`, or `crypto`".into()),
            Mistake::PolicyOffload => Some("write `offload packet dev IF`".into()),
            Mistake::Shell { .. } => Some("write the value itself".into()),
            Mistake::Statement { .. } => Some("write `key = value`, or `name { … }`".into()),
            Mistake::Unclosed { .. } => Some("write `}` or `\"` where it ends".into()),
            Mistake::NotText => Some("save the file as UTF-8".into()),
            Mistake::BadKey => Some("write 0x and the digits; a key is never shown".into()),
            _ => None,
        }
    }
}

fn named(word: &Option<String>) -> String {
    word.as_ref().map_or("this word".into(), |word| format!("`{word}`"))
}

/// A mistake and its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The place.
    pub place: Location,
    /// The mistake.
    pub mistake: Mistake,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = escaped_line(&self.place.to_string()).into_owned();
        write!(f, "{place}: error: {}", self.mistake)?;
        match self.mistake.help() {
            Some(help) => write!(f, "\n  = help: {help}"),
            None => Ok(()),
        }
    }
}

impl Serialize for Problem {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut object = serializer.serialize_struct("Problem", 5)?;
        object.serialize_field("file", &self.place.file)?;
        object.serialize_field("line", &self.place.line)?;
        object.serialize_field("column", &self.place.column)?;
        object.serialize_field("message", &self.mistake.to_string())?;
        object.serialize_field("help", &self.mistake.help())?;
        object.end()
    }
}

/// The mistakes of a foreign text, of which nothing was imported.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ImportErrors {
    /// The mistakes in the order of their places, a bounded number.
    pub problems: Vec<Problem>,
    /// The number of further ones.
    pub untold: usize,
}

impl ImportErrors {
    /// Makes a list of one mistake of a file as a whole.
    pub(crate) fn of_file(file: &str, mistake: Mistake) -> ImportErrors {
        let place = Location { file: file.to_owned(), line: 0, column: 0 };
        ImportErrors { problems: vec![Problem { place, mistake }], untold: 0 }
    }

    /// Makes the error of a file that cannot be opened.
    pub fn unreadable(file: &str, kind: std::io::ErrorKind) -> ImportErrors {
        ImportErrors::of_file(file, Mistake::Unreadable { kind })
    }

    pub(crate) fn add(&mut self, problem: Problem) {
        match self.problems.len() < MAX_PROBLEMS {
            true => self.problems.push(problem),
            false => self.untold += 1,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }
}

impl fmt::Display for ImportErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.problems {
            writeln!(f, "{problem}")?;
        }
        let count = self.problems.len() + self.untold;
        write!(f, "{count} error{}; nothing was imported", if count == 1 { "" } else { "s" })
    }
}

impl std::error::Error for ImportErrors {}

/// A step of a parser.
pub(crate) type Parsed<T> = Result<T, Box<Problem>>;

/// Makes an error of a word.
pub(crate) fn at<T>(cursor: &Cursor<'_, '_>, word: Word<'_>, mistake: Mistake) -> Parsed<T> {
    Err(Box::new(Problem { place: cursor.place(word), mistake }))
}

/// Makes an error of a word that is not one of those that the context takes.
pub(crate) fn unknown<T>(
    cursor: &Cursor<'_, '_>,
    word: Word<'_>,
    context: &'static str,
    known: &[&str],
) -> Parsed<T> {
    let nearest = nearest(word.text, known.iter().copied());
    at(cursor, word, Mistake::UnknownWord { word: shown(word.text), context, nearest })
}

/// A word of a foreign text as it may be shown: on one line, short, and without what may be a key.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 40;
    let mut run = 0;
    let holds_key = text.chars().any(|c| {
        run = if c.is_ascii_hexdigit() { run + 1 } else { 0 };
        run > KEY_DIGITS
    });
    if holds_key {
        return "…".into();
    }
    let text = escaped_line(text);
    match text.chars().count() > MOST {
        true => text.chars().take(MOST).chain(['…']).collect(),
        false => text.into_owned(),
    }
}

/// A weight of what was not taken as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Fate {
    /// The configuration has nothing of it.
    Left,
    /// It asks for something that Lockgate refuses.
    Refused,
    /// The configuration has it, but it means something else here.
    Differs,
    /// The configuration has something in its place until the operator writes the right value.
    #[serde(rename = "fill_in")]
    FillIn,
}

impl Fate {
    /// The word in the table.
    pub const fn name(self) -> &'static str {
        match self {
            Fate::Left => "not taken",
            Fate::Refused => "refused",
            Fate::Differs => "differs",
            Fate::FillIn => "fill in",
        }
    }
}

/// A word, a line or a section that did not come into the configuration as it was.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Omission {
    /// The place.
    pub place: Location,
    /// The word.
    pub word: String,
    /// The weight.
    pub fate: Fate,
    /// The reason.
    pub reason: String,
    /// The advice.
    pub advice: String,
}

/// Entries of the table of what was not taken at most: of a text with more, little would be left.
pub(crate) const MAX_OMISSIONS: usize = 100_000;

/// Collects what was not taken.
#[derive(Debug, Default)]
pub(crate) struct Omissions(pub(crate) Vec<Omission>);

impl Omissions {
    pub(crate) fn add(&mut self, fate: Fate, at: (&Location, &str), why: (&str, &str)) {
        if self.0.len() > MAX_OMISSIONS {
            return;
        }
        let ((place, word), (reason, advice)) = (at, why);
        let (place, word) = (place.clone(), shown(word));
        let (reason, advice) = (reason.to_owned(), advice.to_owned());
        self.0.push(Omission { place, word, fate, reason, advice });
    }

    /// Returns an error if they are too many.
    pub(crate) fn bounded(&self) -> Result<(), ImportErrors> {
        let (what, limit) = ("lines and words that have no place here", MAX_OMISSIONS);
        match self.0.get(MAX_OMISSIONS) {
            None => Ok(()),
            Some(one) => {
                let (place, mistake) = (one.place.clone(), Mistake::TooMany { what, limit });
                Err(ImportErrors { problems: vec![Problem { place, mistake }], untold: 0 })
            }
        }
    }

    pub(crate) fn left(&mut self, at: (&Location, &str), reason: &str, advice: &str) {
        self.add(Fate::Left, at, (reason, advice));
    }
}
