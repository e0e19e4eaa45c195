//! Files of sets of addresses: one prefix, range or address a line. `#` begins a comment.

use std::path::Path;

use toml::Spanned;

use crate::diagnostic::DiagnosticKind;
use crate::errors::Diagnostics;
use crate::text_file;

/// Largest file of a set that is read, bytes.
const MAX_SET_FILE_BYTES: u64 = 16 << 20;

/// The treatment of sets that are in files.
#[derive(Clone, Copy)]
pub(crate) enum SetFiles<'p> {
    /// No file is read: such a set is an error.
    Refused,
    /// They are read; relative names start here.
    In(&'p Path),
}

impl SetFiles<'_> {
    /// Reads the file of a set: its path for messages, and its text. `None`: there was an error.
    pub(crate) fn read(
        self,
        written: &Spanned<String>,
        problems: &mut Diagnostics<'_>,
    ) -> Option<(String, String)> {
        let (file, span) = (written.get_ref(), written.span());
        let SetFiles::In(base) = self else {
            problems.error(&span, DiagnosticKind::SetFileRefused);
            return None;
        };
        let path = base.join(file);
        match text_file::read(&path, MAX_SET_FILE_BYTES) {
            Ok(text) => Some((path.display().to_string(), text)),
            Err(problem) => {
                let (file, problem) = (file.clone(), Box::new(problem));
                problems.error(&span, DiagnosticKind::SetFile { file, problem });
                None
            }
        }
    }
}

/// The members of a text, with their places; of more than `limit` the first `limit + 1`.
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
