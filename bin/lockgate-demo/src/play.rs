//! Notes the checks of a play with two daemons, and ends it.

use netlab::{Gateways, LabError};

use crate::progress::Progress;
use crate::report::Check;

/// Lines of a daemon's log that are shown if something went wrong.
const LOG_LINES: usize = 15;

/// Notes the result of a check, and prints it.
pub(crate) fn note(checks: &mut Vec<Check>, progress: Progress, check: Check) {
    let verdict = if check.ok { "ok" } else { "FAILED" };
    progress.say(verdict, &format!("{}: {}", check.name, check.detail));
    checks.push(check);
}

/// Ends a play, before its stage is torn down: what went wrong becomes a check that failed. Returns
/// whether all checks hold, and shows the daemons' logs if not.
///
/// # Errors
/// [`LabError::Interrupted`]: there is no report.
pub(crate) fn end(
    outcome: Result<(), LabError>,
    checks: &mut Vec<Check>,
    gateways: &Gateways,
    progress: Progress,
) -> Result<bool, LabError> {
    match outcome {
        Err(LabError::Interrupted) => return Err(LabError::Interrupted),
        Err(error) => {
            let (name, detail) = ("the play went to its end", error.to_string());
            note(checks, progress, Check { name, ok: false, detail });
        }
        Ok(()) => {}
    }
    let ok = !checks.is_empty() && checks.iter().all(|check| check.ok);
    if !ok {
        for number in [1, 2] {
            let name = gateways.file(number).name();
            for line in gateways.log(number, LOG_LINES) {
                progress.say("log", &format!("{name}: {line}"));
            }
        }
    }
    progress.say("", "tearing down");
    Ok(ok)
}
