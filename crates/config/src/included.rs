//! Texts that a configuration includes: the files of its sets. A client reads them with its own
//! rights and sends them with the configuration, because the daemon opens no file for a client.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use crate::chunked::{Chunks, read_whole};
use crate::diagnostic::DiagnosticKind;
use crate::errors::{ConfigErrors, Diagnostic, Diagnostics};
use crate::raw::MAX_BYTES;
use crate::source::{Source, Spanned};
use crate::syntax;
use crate::text_file;

/// Largest file of a set that is read, bytes.
pub(crate) const MAX_SET_FILE_BYTES: u64 = 16 << 20;
/// Largest sum of the texts that a configuration includes, bytes.
pub const MAX_INCLUDED_BYTES: u64 = 64 << 20;

/// Files of a configuration's sets, as a client read them.
#[derive(Debug, Default)]
pub struct IncludedFiles {
    /// Texts of the files.
    pub texts: IncludedTexts,
    /// A warning for each file that a start of the daemon refuses.
    pub warnings: Vec<Diagnostic>,
}

/// Texts that a configuration includes, by the file names in the configuration.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct IncludedTexts(BTreeMap<String, String>);

impl IncludedTexts {
    /// Reads the files that a configuration includes, with the rights of this process. Relative
    /// names start at `base`; `name` is the configuration's name in messages. A configuration that
    /// is no TOML includes nothing: its parser reports why.
    ///
    /// # Errors
    /// A file cannot be read, or all files together exceed [`MAX_INCLUDED_BYTES`].
    pub fn read(text: &str, name: &str, base: &Path) -> Result<IncludedFiles, ConfigErrors> {
        let mut texts = IncludedTexts::default();
        if text.len() as u64 > MAX_BYTES || syntax::unreadable(text).is_some() {
            return Ok(IncludedFiles::default());
        }
        let source = Source::new(name, text);
        let mut problems = Diagnostics::new(&source);
        let mut room = MAX_INCLUDED_BYTES;
        for written in set_files(&source) {
            let file = written.get_ref();
            if texts.0.contains_key(file) {
                continue;
            }
            let read = text_file::read(&base.join(file), MAX_SET_FILE_BYTES);
            match read.and_then(|text| fitting(text, &mut room)) {
                Ok(text) => {
                    texts.0.insert(file.clone(), text);
                    warn_of_start(&written, base, &mut problems);
                }
                Err(problem) => {
                    let (file, problem) = (file.clone(), Box::new(problem));
                    problems.error(&written.span(), DiagnosticKind::SetFile { file, problem });
                }
            }
        }
        problems.finish().map(|warnings| IncludedFiles { texts, warnings })
    }

    /// Returns the text of a file by its name in the configuration.
    pub(crate) fn text_of(&self, file: &str) -> Option<&str> {
        self.0.get(file).map(String::as_str)
    }

    /// Returns the sum of the texts' lengths, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.values().map(|text| text.len() as u64).sum()
    }

    /// Returns true if no text is included.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Notes a warning if the daemon does not start with a set file. A start reads set files beneath
/// `base` alone, through no link.
pub(crate) fn warn_of_start(
    written: &Spanned<String>,
    base: &Path,
    problems: &mut Diagnostics<'_>,
) {
    let file = written.get_ref();
    if let Err(problem) = text_file::check_beneath(base, Path::new(file)) {
        let (file, problem) = (file.clone(), Box::new(problem));
        problems.warning(&written.span(), DiagnosticKind::SetFileAtStart { file, problem });
    }
}

/// Takes a text's bytes from the room that is left.
fn fitting(text: String, room: &mut u64) -> Result<String, DiagnosticKind> {
    let left = room.checked_sub(text.len() as u64);
    *room = left.ok_or(DiagnosticKind::IncludedTooLong { limit: MAX_INCLUDED_BYTES })?;
    Ok(text)
}

/// Returns the set files that a text names. Reads no policy and no rule of a text without mistakes.
fn set_files(source: &Source<'_>) -> Vec<Spanned<String>> {
    let mut ignored = Diagnostics::new(source);
    let raw = match Chunks::of(source.text).frame(source, &mut ignored) {
        Ok(raw) => Some(raw),
        Err(_) => read_whole(source, &mut ignored).map(|(raw, _)| raw),
    };
    let sets = raw.map_or_else(Vec::new, |raw| raw.sets);
    sets.into_iter().filter_map(|set| set.file).collect()
}

impl FromIterator<(String, String)> for IncludedTexts {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(texts: I) -> IncludedTexts {
        IncludedTexts(texts.into_iter().collect())
    }
}

impl IntoIterator for IncludedTexts {
    type Item = (String, String);
    type IntoIter = std::collections::btree_map::IntoIter<String, String>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl fmt::Debug for IncludedTexts {
    /// Shows the names alone: no log quotes a file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
