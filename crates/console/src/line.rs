//! The command line: parsed, with help and version printed.

use std::ffi::OsString;
use std::io::Write;

use clap::error::ErrorKind;
use clap::{ArgMatches, Command};

use crate::output::{OutputError, complain, unless_gone};

/// A reason why a command line is not parsed.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The line names no command; its help is printed already.
    #[error("")]
    Nothing,
    /// The parser refuses an option or an argument.
    #[error("{}", parser_text(.0))]
    Refused(clap::Error),
    /// Help or version cannot be printed.
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl LineError {
    /// The code that the program ends with.
    pub fn exit_code(&self) -> u8 {
        match self {
            LineError::Nothing | LineError::Refused(_) => 2,
            LineError::Output(_) => 1,
        }
    }
}

/// Parses a command line. Prints help and version on request; then the caller has nothing to do.
///
/// # Errors
/// [`LineError`].
pub fn parsed(parser: &mut Command, args: Vec<OsString>) -> Result<Option<ArgMatches>, LineError> {
    match parser.try_get_matches_from_mut(args) {
        Ok(matches) => Ok(Some(matches)),
        Err(help) if help.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            complain(&help.render().to_string());
            Err(LineError::Nothing)
        }
        Err(error) if error.use_stderr() => Err(LineError::Refused(error)),
        Err(help) => {
            let printed = help.print().and_then(|()| std::io::stdout().flush());
            Ok(printed.map(|()| None).or_else(unless_gone)?)
        }
    }
}

/// The parser's own words, which begin with "error: ".
fn parser_text(error: &clap::Error) -> String {
    let text = error.render().to_string();
    text.strip_prefix("error: ").unwrap_or(&text).to_owned()
}
