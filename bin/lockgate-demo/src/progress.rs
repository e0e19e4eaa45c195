//! Lines of progress, which are printed while a demonstration runs.

use std::io::Write;
use std::time::Instant;

use console::failure::Form;

/// Prints lines of progress, apart from the report and never into JSON.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    form: Form,
    start: Instant,
}

impl Progress {
    /// Begins to count the seconds.
    pub(crate) fn start(form: Form) -> Progress {
        Progress { form, start: Instant::now() }
    }

    /// Prints a line.
    pub(crate) fn say(self, verdict: &str, text: &str) {
        let seconds = self.start.elapsed().as_secs_f64();
        let line = format!("{seconds:6.1} s  {verdict:<6} {text}\n");
        // A reader that has gone away is no error.
        let _ = match self.form {
            Form::Text => std::io::stdout().write_all(line.as_bytes()),
            Form::Json => std::io::stderr().write_all(line.as_bytes()),
        };
    }
}
