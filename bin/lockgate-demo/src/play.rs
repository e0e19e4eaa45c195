//! Notes the checks of a play with daemons, and ends it.

use netlab::{Daemon, Gateways, LabError};

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

/// Names of daemons, with their logs.
pub(crate) type Logs = Vec<(String, String)>;

/// Returns the logs of two gateways.
pub(crate) fn logs_of(gateways: &Gateways) -> Logs {
    let log = |number| {
        let log = gateways.daemon(number).map(Daemon::log).unwrap_or_default();
        (gateways.file(number).name().to_owned(), log)
    };
    [1, 2].map(log).into()
}

/// Ends a play, before its stage is torn down: what went wrong becomes a check that failed. Returns
/// whether all checks hold, and shows the daemons' logs if not.
///
/// # Errors
/// [`LabError::Interrupted`]: there is no report.
pub(crate) fn end(
    outcome: Result<(), LabError>,
    checks: &mut Vec<Check>,
    logs: impl FnOnce() -> Logs,
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
        for (name, log) in logs() {
            let lines: Vec<&str> = log.lines().collect();
            for line in &lines[lines.len().saturating_sub(LOG_LINES)..] {
                progress.say("log", &format!("{name}: {line}"));
            }
        }
    }
    progress.say("", "tearing down");
    Ok(ok)
}
