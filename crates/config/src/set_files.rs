//! Files of sets of addresses: one prefix, range or address a line. `#` begins a comment.
//!
//! A command opens a set file with its caller's rights and sends the text with the configuration.
//! The daemon opens no file for a client. For itself it opens regular files in the directory of its
//! configuration file or below, without links.
//!
//! No message quotes a set file: its text may be any file of the process that opens it.

use std::borrow::Cow;
use std::path::Path;

use crate::diagnostic::DiagnosticKind;
use crate::errors::Diagnostics;
use crate::included::{IncludedTexts, MAX_SET_FILE_BYTES, warn_of_start};
use crate::source::Spanned;
use crate::text_file;

/// Source of the texts of set files.
#[derive(Clone, Copy, Debug)]
pub enum SetFiles<'p> {
    /// No source: a set in a file is an error.
    Refused,
    /// Files that the caller of this process may read. Relative names start at this directory.
    OfCaller(&'p Path),
    /// Regular files in this directory or below, without links.
    Beneath(&'p Path),
    /// Texts that came with the configuration. No file is opened.
    Sent {
        /// Directory that relative names start at in messages.
        base: &'p Path,
        /// The texts.
        texts: &'p IncludedTexts,
    },
}

/// Text of a set file.
pub(crate) struct SetFileText<'p> {
    /// Path of the file, for messages.
    pub(crate) path: String,
    /// Content of the file.
    pub(crate) text: Cow<'p, str>,
}

impl<'p> SetFiles<'p> {
    /// Returns the text of a set's file. `None`: an error was noted.
    pub(crate) fn read(
        self,
        written: &Spanned<String>,
        problems: &mut Diagnostics<'_>,
    ) -> Option<SetFileText<'p>> {
        let (file, span) = (written.get_ref(), written.span());
        let (base, text) = match self {
            SetFiles::Refused => {
                problems.error(&span, DiagnosticKind::SetFileRefused);
                return None;
            }
            SetFiles::OfCaller(base) => {
                let text = text_file::read(&base.join(file), MAX_SET_FILE_BYTES).map(Cow::Owned);
                if text.is_ok() {
                    warn_of_start(written, base, problems);
                }
                (base, text)
            }
            SetFiles::Beneath(base) => {
                let text = text_file::read_beneath(base, Path::new(file), MAX_SET_FILE_BYTES);
                (base, text.map(Cow::Owned))
            }
            SetFiles::Sent { base, texts } => {
                let text = texts.text_of(file).ok_or(DiagnosticKind::NotSent);
                let limit = MAX_SET_FILE_BYTES;
                let text = text.and_then(|text| match text.len() as u64 {
                    size if size > limit => Err(DiagnosticKind::TooLong { size, limit }),
                    _ => Ok(Cow::Borrowed(text)),
                });
                (base, text)
            }
        };
        match text {
            Ok(text) => Some(SetFileText { path: base.join(file).display().to_string(), text }),
            Err(problem) => {
                let (file, problem) = (file.clone(), Box::new(problem));
                problems.error(&span, DiagnosticKind::SetFile { file, problem });
                None
            }
        }
    }
}

/// Returns the members of a text, with their places; of more than `limit`, the first `limit + 1`.
pub(crate) fn members(text: &str, limit: usize) -> Vec<Spanned<&str>> {
    let mut members = Vec::new();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if members.len() > limit {
            break;
        }
        let here = line.split('#').next().unwrap_or("");
        let member = here.trim();
        if !member.is_empty() {
            let begin = at + here.len() - here.trim_start().len();
            members.push(Spanned::new(begin..begin + member.len(), member));
        }
        at += line.len();
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_member_a_line_without_comments_and_blanks() {
        let text = "# all\n10.0.0.0/8\n\n  ::1 # one\r\n\t10.0.0.1 - 10.0.0.2";
        let found = members(text, 9);
        let texts: Vec<&str> = found.iter().map(|member| *member.get_ref()).collect();
        assert_eq!(texts, ["10.0.0.0/8", "::1", "10.0.0.1 - 10.0.0.2"]);
        assert!(found.iter().all(|member| text[member.span()] == **member.get_ref()));
        assert!(members("# nothing\n\n", 9).is_empty());
        assert_eq!(members(text, 1).len(), 2);
    }
}
