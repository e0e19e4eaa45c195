//! `lockgate apply`, `diff`, `rollback`, `export`: the configuration that runs.

use std::io::Read;
use std::path::{Path, PathBuf};

use api::v1;

use super::{Ask, LiveError, Socket};
use crate::failure::Failure;
use crate::output::{counted, print, print_json};

/// Make a configuration the running one
///
/// All or nothing: answers when every worker walks by it. Ends with 0 if it runs (there may be
/// warnings), with 1 if it was refused: then nothing changed.
#[derive(clap::Args)]
pub(crate) struct ApplyArgs {
    /// The configuration
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Judge it, keys too, and say what would change; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Compare the running configuration with a file
///
/// Ends like diff(1): with 0 if both mean the same,
/// 1 if they differ, 2 if they cannot be compared. Keys are not compared.
#[derive(clap::Args)]
pub(crate) struct DiffArgs {
    /// The configuration
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Make an earlier revision the running one
///
/// It becomes a new revision: nothing of the history is lost.
#[derive(clap::Args)]
pub(crate) struct RollbackArgs {
    /// Its number (`lockgate show revisions`); without it the one before the one that runs
    #[arg(value_name = "REV")]
    revision: Option<u64>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Print the configuration that runs
///
/// Every default is written out, as TOML that `apply` accepts. Keys are references to files.
#[derive(clap::Args)]
pub(crate) struct ExportArgs {
    /// The number of an earlier revision
    #[arg(value_name = "REV")]
    revision: Option<u64>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Applies and prints what came of it.
pub(crate) fn apply(args: &ApplyArgs, socket: &Socket) -> Result<(), Failure> {
    let Document { text, file, base_directory } = Document::read(&args.file)?;
    let request = v1::ApplyRequest { text, file, base_directory, dry_run: args.dry_run };
    let applied = Ask::new(socket)?.call(async |client| client.apply(request).await)?;
    answer(&applied, args.json)
}

/// Goes back and prints what came of it.
pub(crate) fn rollback(args: &RollbackArgs, socket: &Socket) -> Result<(), Failure> {
    let request = v1::RollbackRequest { revision: args.revision };
    let applied = Ask::new(socket)?.call(async |client| client.rollback(request).await)?;
    answer(&applied, args.json)
}

/// Prints the running configuration.
pub(crate) fn export(args: &ExportArgs, socket: &Socket) -> Result<(), Failure> {
    let request = v1::ExportRequest { revision: args.revision };
    let exported = Ask::new(socket)?.call(async |client| client.export(request).await)?;
    match args.json {
        true => print_json(&exported),
        false => print(&exported.toml),
    }
    Ok(())
}

/// Compares and prints the differences; fails with [`Failure::Bad`] if there are any.
pub(crate) fn diff(args: &DiffArgs, socket: &Socket) -> Result<(), Failure> {
    let found = compare(args, socket).map_err(|failure| Failure::Trouble(Box::new(failure)))?;
    if args.json {
        print_json(&found);
    } else {
        eprint!("{}", if found.ok { "" } else { found.rendered.as_str() });
        print(&found.differences.iter().map(lines).collect::<String>());
    }
    match found {
        found if !found.ok => Err(Failure::Trouble(Box::new(Failure::Bad))),
        found if found.differences.is_empty() => Ok(()),
        _ => Err(Failure::Bad),
    }
}

fn compare(args: &DiffArgs, socket: &Socket) -> Result<v1::Differences, Failure> {
    let Document { text, file, base_directory } = Document::read(&args.file)?;
    let request = v1::DiffRequest { text, file, base_directory };
    Ask::new(socket)?.call(async |client| client.diff(request).await)
}

/// A configuration file as it is sent.
pub(super) struct Document {
    pub(super) text: String,
    pub(super) file: String,
    pub(super) base_directory: String,
}

impl Document {
    /// Reads it.
    pub(super) fn read(file: &Path) -> Result<Document, Failure> {
        let mut bytes = Vec::new();
        let opened = std::fs::File::open(file).map_err(Failure::file(file))?;
        let mut limited = opened.take(control::MAX_BYTES + 1);
        limited.read_to_end(&mut bytes).map_err(Failure::file(file))?;
        if bytes.len() as u64 > control::MAX_BYTES {
            let limit = control::MAX_BYTES;
            return Err(LiveError::TooLarge { file: file.to_owned(), limit }.into());
        }
        let text = String::from_utf8(bytes);
        let text = text.map_err(|_| LiveError::NotText { file: file.to_owned() })?;
        let base = match control::base_of(file) {
            here if here.as_os_str().is_empty() => Path::new("."),
            base => base,
        };
        // The daemon works in another directory; through links, it would look in another place.
        let base = std::fs::canonicalize(base).map_err(Failure::file(base))?;
        let base_directory = base.display().to_string();
        // `show revisions` names the file long after this directory is left.
        let file = file.file_name().map_or(base.clone(), |name| base.join(name));
        Ok(Document { text, file: file.display().to_string(), base_directory })
    }
}

/// Prints what became of a change; fails with [`Failure::Bad`] if it was refused.
pub(super) fn answer(applied: &v1::Applied, as_json: bool) -> Result<(), Failure> {
    if as_json {
        print_json(applied);
    } else {
        eprint!("{}", applied.rendered);
        if !applied.refused.is_empty() {
            eprintln!("lockgate: {}; nothing was changed", applied.refused);
        }
        applied.notes.iter().for_each(|note| eprintln!("note: {note}"));
        if applied.ok {
            print(&summary(applied));
        }
    }
    if applied.ok { Ok(()) } else { Err(Failure::Bad) }
}

fn summary(applied: &v1::Applied) -> String {
    let mut text: String = applied.differences.iter().map(headline).collect();
    let changes = counted(applied.differences.len() as u64, "change");
    let v1::Applied { revision, generation, .. } = applied;
    text.push_str(&match (applied.dry_run, applied.differences.len()) {
        (true, 0) => format!("good, and the same as revision {revision}, which runs\n"),
        (true, _) => format!("good: {changes} against revision {revision}, which runs on\n"),
        (false, _) => format!(
            "revision {revision} runs: {changes}, generation {generation}, {}\n",
            milliseconds(applied.took_us)
        ),
    });
    text
}

/// `12.3 ms`.
fn milliseconds(microseconds: u64) -> String {
    format!("{}.{} ms", microseconds / 1000, microseconds % 1000 / 100)
}

/// A difference in one line.
fn headline(found: &v1::Difference) -> String {
    let sign = match found.change.as_str() {
        "added" => '+',
        "removed" => '-',
        _ => '~',
    };
    let name = if found.name.is_empty() { "" } else { &format!(" {}", found.name) };
    format!("{sign} {}{name}\n", found.what)
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

    #[test]
    fn a_dry_run_never_says_that_it_runs() {
        let applied = v1::Applied { ok: true, revision: 4, dry_run: true, ..Default::default() };
        assert_eq!(summary(&applied), "good, and the same as revision 4, which runs\n");
        let differences = vec![difference("added", "", "x")];
        let applied = v1::Applied { differences, ..applied };
        let text = "+ policy dns\ngood: 1 change against revision 4, which runs on\n";
        assert_eq!(summary(&applied), text);
        let applied = v1::Applied { dry_run: false, took_us: 12_345, generation: 9, ..applied };
        let text = "+ policy dns\nrevision 4 runs: 1 change, generation 9, 12.3 ms\n";
        assert_eq!(summary(&applied), text);
    }
}
