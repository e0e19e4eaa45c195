//! Reports a program's failure, and returns the exit code it ends with.

use std::ffi::OsString;
use std::fmt::Display;
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::output::{OutputError, complain, json_line, print_line};

/// The form of a program's answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Text for people.
    Text,
    /// JSON.
    Json,
}

impl Form {
    /// The form that a command line asks for: JSON if `--json` is one of its options.
    pub fn asked_for(args: &[OsString]) -> Form {
        let mut options = args.iter().skip(1).take_while(|arg| *arg != "--");
        match options.any(|arg| arg == "--json") {
            true => Form::Json,
            false => Form::Text,
        }
    }
}

/// A reason why a program did not succeed. Its text is for the person at the terminal; an empty
/// text means that the answer, already printed, says it.
pub trait Failed: Display {
    /// The code that the program ends with: 2 if the command line is at fault, else 1.
    fn exit_code(&self) -> u8;

    /// The failure of standard output, if that is what failed: it is not written to again.
    fn of_output(&self) -> Option<&OutputError>;

    /// The failure as an answer in JSON.
    fn as_json(&self) -> Value {
        error_json(self)
    }
}

/// The message and the exit code of a failure, in JSON.
pub fn error_json(failure: &(impl Failed + ?Sized)) -> Value {
    json!({
        "error": {
            "message": failure.to_string().trim_end(),
            "exit_code": failure.exit_code(),
        }
    })
}

/// Reports the reason why a program failed, and returns its exit code.
pub fn tell(failure: &impl Failed, form: Form) -> ExitCode {
    let text = failure.to_string();
    let text = text.trim_end();
    let code = ExitCode::from(failure.exit_code());
    if text.is_empty() {
        return code;
    }
    let is_answer = form == Form::Json && failure.of_output().is_none();
    if !is_answer || print_line(&json_line(&failure.as_json())).is_err() {
        complain(&format!("lockgate: {text}\n"));
    }
    code
}
