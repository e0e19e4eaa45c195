//! `lockgate diff`: compares a configuration with the running one.
//!
//! The command parses both texts and compares them. The daemon only exports the running text, so a
//! reader cannot make the daemon parse anything. Only a dry run of `apply` compares keys: the
//! daemon alone opens key files, and only for administrators.

use std::ffi::CString;
use std::path::{Path, PathBuf};

use api::{ADMIN_GROUP, v1};
use config::{Diagnostic, IncludedTexts, Parsed, SetFiles, Severity, Validated};
use console::output::{complain, print, print_json};
use nix::unistd::{Group, User, getegid, geteuid, getgrouplist, getgroups};
use serde::Serialize;

use super::change::{Document, headline, keys};
use super::{Ask, LiveError, Socket};
use crate::failure::Failure;
use crate::input::Input;

/// Compare the running configuration with a file
///
/// Ends like diff(1): with 0 if both mean the same,
/// 1 if they differ, 2 if they cannot be compared. Keys are compared by their fingerprints if you
/// may change what runs (root, group lockgate-admin).
#[derive(clap::Args)]
pub(crate) struct DiffArgs {
    /// The configuration, `-` for standard input; without it the file that lockgated starts with
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// The configuration, as an option instead of FILE
    #[arg(short = 'f', long = "file", id = "file_option", value_name = "FILE")]
    #[arg(conflicts_with = "file")]
    option: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// The answer of `lockgate diff`.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
struct ComparedConfiguration {
    /// True if the configuration is good; if not, the problems say why.
    ok: bool,
    differences: Vec<v1::Difference>,
    problems: Vec<v1::Problem>,
    /// The problems as text for a terminal.
    rendered: String,
    /// Running revision.
    revision: u64,
    /// Peers whose keys differ.
    key_changes: Vec<v1::KeyChange>,
    keys_compared: bool,
    /// Reason why an administrator's keys were not compared.
    #[serde(skip)]
    keys_refused: Option<String>,
}

/// Compares and prints the differences; fails with [`Failure::Bad`] if there are any.
pub(crate) fn diff(args: &DiffArgs, socket: &Socket) -> Result<(), Failure> {
    let trouble = |failure| Failure::Trouble(Box::new(failure));
    let found = compare(args, socket).map_err(trouble)?;
    let printed = match args.json {
        true => print_json(&found),
        false => print_text(&found),
    };
    printed.map_err(Failure::from).map_err(trouble)?;
    match found {
        found if !found.ok => Err(Failure::Trouble(Box::new(Failure::Bad))),
        found if found.differences.is_empty() && found.key_changes.is_empty() => Ok(()),
        _ => Err(Failure::Bad),
    }
}

fn print_text(found: &ComparedConfiguration) -> Result<(), console::output::OutputError> {
    complain(if found.ok { "" } else { found.rendered.as_str() });
    if found.ok && !found.keys_compared {
        let reason = match &found.keys_refused {
            Some(reason) => reason.clone(),
            None => format!("be root or in group {ADMIN_GROUP}"),
        };
        complain(&format!("note: keys were not compared: {reason}\n"));
    }
    let differences = found.differences.iter().map(lines);
    print(&differences.chain(found.key_changes.iter().map(keys)).collect::<String>())
}

fn compare(args: &DiffArgs, socket: &Socket) -> Result<ComparedConfiguration, Failure> {
    // An unreadable file is reported without a daemon.
    let named = args.file.as_ref().or(args.option.as_ref());
    let document = named.map(|file| Document::read(&Input::of(file))).transpose()?;
    let mut ask = Ask::new(socket)?;
    let document = match document {
        Some(document) => document,
        None => {
            let request = v1::ShowRequest::default();
            let status = ask.call(async |client| client.show_status(request).await)?;
            Document::read(&Input::File(status.config_file.into()))?
        }
    };
    // As `apply` does: the daemon opens no set file for a client, and cannot warn of it.
    complain(&config::render(&document.warnings));
    let request = v1::ExportRequest::default();
    let v1::Exported { toml, revision, base_directory } =
        ask.call(async |client| api::whole(client.export(request).await?).await)?;
    let running = config::parse(&toml, "running configuration").map_err(|errors| {
        let first = errors.problems.first().map(|problem| problem.in_one_line());
        LiveError::OtherVersion { problem: first.unwrap_or_default() }
    })?;
    drop(toml);
    let running = RunningText {
        validated: running.validated,
        base_directory: base_directory.into(),
        revision,
    };
    let found = compared(&running, &document);
    match found.ok && is_administrator() {
        true => with_keys(found, document, &mut ask),
        false => Ok(found),
    }
}

/// The running configuration.
struct RunningText {
    validated: Validated,
    /// Directory at which a relative `keys_dir` begins.
    base_directory: PathBuf,
    revision: u64,
}

/// Compares all but the keys, with the texts of set files that [`Document::read`] read. As for
/// `apply`, `keys_dir` may name the running directory by another path.
fn compared(running: &RunningText, document: &Document) -> ComparedConfiguration {
    let base = Path::new(&document.base_directory);
    let included = document.included.iter();
    let texts: IncludedTexts =
        included.map(|text| (text.file.clone(), text.text.clone())).collect();
    let files = SetFiles::Sent { base, texts: &texts };
    let revision = running.revision;
    let found = ComparedConfiguration { revision, ..ComparedConfiguration::default() };
    match config::parse_with(&document.text, &document.file, files) {
        Ok(Parsed { mut validated, warnings, .. }) => {
            // `apply` refuses another directory; here the difference says so.
            validated.keep_keys_dir(base, &running.validated, &running.base_directory);
            let differences = config::differences(&running.validated, &validated);
            ComparedConfiguration {
                ok: true,
                differences: differences.into_iter().map(difference).collect(),
                problems: warnings.iter().map(problem).collect(),
                rendered: config::render(&warnings),
                ..found
            }
        }
        Err(errors) => ComparedConfiguration {
            problems: errors.problems.iter().map(problem).collect(),
            rendered: config::render(&errors.problems),
            ..found
        },
    }
}

/// Compares the keys by a dry run.
fn with_keys(
    found: ComparedConfiguration,
    document: Document,
    ask: &mut Ask,
) -> Result<ComparedConfiguration, Failure> {
    let Document { text, file, base_directory, included, .. } = document;
    let dry_run = true;
    let request =
        v1::ApplyRequest { text, file, base_directory, dry_run, included, ..Default::default() };
    let v1::Applied { ok, key_changes, problems, rendered, refused, .. } =
        ask.call(async |client| client.apply(request).await)?;
    Ok(match ok {
        true => {
            ComparedConfiguration { key_changes, keys_compared: true, problems, rendered, ..found }
        }
        // The daemon refuses such a change for another reason than its keys.
        false if !refused.is_empty() => {
            ComparedConfiguration { keys_refused: Some(refused), ..found }
        }
        false => ComparedConfiguration {
            ok: false,
            differences: Vec::new(),
            problems,
            rendered,
            ..found
        },
    })
}

/// Returns whether the daemon lets this user change the configuration. The daemon decides; this
/// guess keeps readers from requests that the daemon would refuse and record.
fn is_administrator() -> bool {
    let user = geteuid();
    if user.is_root() {
        return true;
    }
    let Ok(Some(Group { gid, .. })) = Group::from_name(ADMIN_GROUP) else { return false };
    let named = || {
        let name = CString::new(User::from_uid(user).ok()??.name).ok()?;
        Some(getgrouplist(&name, getegid()).ok()?.contains(&gid))
    };
    getegid() == gid
        || getgroups().is_ok_and(|groups| groups.contains(&gid))
        || named().unwrap_or(false)
}

fn difference(found: config::Difference) -> v1::Difference {
    let config::Difference { change, what, name, before, after } = found;
    v1::Difference { change: change.name().into(), what: what.into(), name, before, after }
}

fn problem(problem: &Diagnostic) -> v1::Problem {
    let severity = match problem.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    v1::Problem {
        severity: severity.into(),
        file: problem.place.file.clone(),
        line: problem.place.line,
        column: problem.place.column,
        message: problem.mistake.to_string(),
        help: problem.mistake.help(),
    }
}

/// A difference with the lines that are only on one side.
fn lines(found: &v1::Difference) -> String {
    let (before, after): (Vec<&str>, Vec<&str>) =
        (found.before.lines().collect(), found.after.lines().collect());
    let only = |side: &[&str], other: &[&str], sign: char| -> String {
        let own = side.iter().filter(|line| !other.contains(line) && !line.is_empty());
        own.map(|line| format!("    {sign} {line}\n")).collect()
    };
    let (gone, new) = (only(&before, &after, '-'), only(&after, &before, '+'));
    format!("{}{gone}{new}", headline(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(change: &str, before: &str, after: &str) -> v1::Difference {
        v1::Difference {
            change: change.into(),
            what: "policy".into(),
            name: "dns".into(),
            before: before.into(),
            after: after.into(),
        }
    }

    #[test]
    fn a_difference_shows_only_the_lines_that_differ() {
        let changed = difference("changed", "name = 1\npriority = 1\n", "name = 1\npriority = 2\n");
        assert_eq!(lines(&changed), "~ policy dns\n    - priority = 1\n    + priority = 2\n");
        let added = difference("added", "", "[[policy]]\nname = 1\n");
        assert_eq!(lines(&added), "+ policy dns\n    + [[policy]]\n    + name = 1\n");
        let removed = difference("removed", "name = 1\n", "");
        assert_eq!(lines(&removed), "- policy dns\n    - name = 1\n");
    }
}
