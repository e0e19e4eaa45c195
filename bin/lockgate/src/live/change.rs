//! `lockgate apply`, `confirm`, `rollback`, `export`: the configuration that runs.

use api::v1;
use config::{Diagnostic, IncludedFiles};
use console::output::{complain, counted, print, print_json};

use super::{Ask, Socket, show};
use crate::failure::Failure;
use crate::input::{FileArgs, Input};

/// Apply a configuration
///
/// Applies all of it or nothing, and answers when every worker uses it. A file that is equivalent
/// to the running configuration, with the same keys, is "unchanged" and makes no revision. Ends
/// with 0 if the configuration runs (there may be warnings), with 1 if it was refused: then nothing
/// changed.
///
/// With --confirm the gateway returns to the previous revision unless `lockgate confirm` comes in
/// time, over a new connection: a change that cuts you off undoes itself. The previous revision is
/// restored with its SAs and their sequence numbers. A restart restores it too, with the keys that
/// are then in the key files.
#[derive(clap::Args)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Check it, keys too, and show what would change; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Roll back unless `lockgate confirm` comes within this time: 60, 60s, 2m, at most 24h
    #[arg(long, value_name = "TIME", value_parser = confirm_time, conflicts_with = "dry_run")]
    confirm: Option<u32>,
    /// Write the file's own text to the configuration file that lockgated starts with, too
    #[arg(long, conflicts_with_all = ["dry_run", "confirm"])]
    save: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Write the running configuration to the file that lockgated starts with
///
/// Replaces the file and keeps its owner and mode; refuses a symbolic link. Leaves the file alone
/// if it is equivalent to the running configuration. Otherwise its comments are lost, because every
/// default is written out: `apply -f FILE --save` writes the text of FILE itself.
#[derive(clap::Args)]
pub(crate) struct SaveArgs {
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Keep a change that was applied with --confirm
///
/// Ends with 0 if the change stays, with 1 if nothing waits or it was rolled back already.
#[derive(clap::Args)]
pub(crate) struct ConfirmArgs {
    /// Confirm only if this revision waits
    #[arg(value_name = "REV", value_parser = revision_number)]
    revision: Option<u64>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Roll back to an earlier revision
///
/// Without a number, each call goes one step further back: to the newest earlier revision that
/// differs from the running one, counted from the revision that the last rollback restored. The
/// restored configuration becomes a new revision, so nothing is lost. Keys are not restored: the
/// key files decide, and the answer names peers with other keys.
#[derive(clap::Args)]
pub(crate) struct RollbackArgs {
    /// Number of the revision [default: one step back]
    #[arg(value_name = "REV", value_parser = revision_number)]
    revision: Option<u64>,
    /// List the revisions that are kept; change nothing
    #[arg(long, conflicts_with = "revision")]
    list: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Print the running configuration
///
/// Every default is written out, as TOML that `apply` accepts. Keys are references to files.
#[derive(clap::Args)]
pub(crate) struct ExportArgs {
    /// The number of an earlier revision
    #[arg(value_name = "REV", value_parser = revision_number)]
    revision: Option<u64>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Options of commands that change parts of the running configuration.
#[derive(clap::Args)]
pub(super) struct ChangeOptions {
    /// Check it and show what would change; change nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Write the resulting configuration to the file that lockgated starts with, too; its comments
    /// are lost
    #[arg(long, conflicts_with = "dry_run")]
    pub(super) save: bool,
    /// Answer in JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Applies a configuration and prints the result.
pub(crate) fn apply(args: &ApplyArgs, socket: &Socket) -> Result<(), Failure> {
    let document = Document::read(&args.file.input())?;
    // The daemon opens no set file for a client, and cannot warn of one.
    complain(&config::render(&document.warnings));
    let Document { text, file, base_directory, included, .. } = document;
    let (dry_run, confirm_within_s) = (args.dry_run, args.confirm.unwrap_or(0));
    let (save, only_after) = (args.save, None);
    let request = v1::ApplyRequest {
        text,
        file,
        base_directory,
        dry_run,
        confirm_within_s,
        save,
        only_after,
        included,
    };
    let applied = Ask::new(socket)?.call(async |client| client.apply(request).await)?;
    answer(&applied, args.json)
}

/// Saves the running configuration.
pub(crate) fn save(args: &SaveArgs, socket: &Socket) -> Result<(), Failure> {
    let request = v1::SaveRequest {};
    let saved = Ask::new(socket)?.call(async |client| client.save(request).await)?;
    let v1::Saved { file, revision, unchanged } = &saved;
    match (args.json, unchanged) {
        (true, _) => print_json(&saved),
        (false, true) => {
            print(&format!("unchanged: {file} is equivalent to revision {revision}\n"))
        }
        (false, false) => print(&format!("revision {revision} is saved to {file}\n")),
    }?;
    Ok(())
}

/// Confirms what waits.
pub(crate) fn confirm(args: &ConfirmArgs, socket: &Socket) -> Result<(), Failure> {
    let request = v1::ConfirmRequest { revision: args.revision };
    let confirmed = Ask::new(socket)?.call(async |client| client.confirm(request).await)?;
    match args.json {
        true => print_json(&confirmed),
        false => print(&format!("revision {} is confirmed and stays\n", confirmed.revision)),
    }?;
    Ok(())
}

/// Rolls back and prints the result, or lists the revisions that are kept.
pub(crate) fn rollback(args: &RollbackArgs, socket: &Socket) -> Result<(), Failure> {
    if args.list {
        return show::revisions(socket, args.json);
    }
    let request = v1::RollbackRequest { revision: args.revision };
    let applied = Ask::new(socket)?.call(async |client| client.rollback(request).await)?;
    answer(&applied, args.json)
}

/// Prints the running configuration.
pub(crate) fn export(args: &ExportArgs, socket: &Socket) -> Result<(), Failure> {
    let request = v1::ExportRequest { revision: args.revision };
    let exported =
        Ask::new(socket)?.call(async |client| api::whole(client.export(request).await?).await)?;
    match args.json {
        true => print_json(&exported),
        false => print(&exported.toml),
    }?;
    Ok(())
}

/// A configuration file as it is sent.
pub(super) struct Document {
    pub(super) text: String,
    pub(super) file: String,
    pub(super) base_directory: String,
    /// Texts of its set files, which the daemon does not open.
    pub(super) included: Vec<v1::IncludedText>,
    /// Warnings of set files that the daemon will not read at its start.
    pub(super) warnings: Vec<Diagnostic>,
}

impl Document {
    /// Reads a configuration and the set files that it names, with the caller's rights.
    pub(super) fn read(input: &Input) -> Result<Document, Failure> {
        let text = input.text()?;
        let IncludedFiles { texts, warnings } = input.included(&text)?;
        let included = texts.into_iter();
        let included = included.map(|(file, text)| v1::IncludedText { file, text }).collect();
        // The daemon works in another directory, and `show revisions` names the file long after
        // this one is left.
        let (base, file) = input.absolute()?;
        let base_directory = base.display().to_string();
        Ok(Document { text, file, base_directory, included, warnings })
    }
}

/// Prints what became of a change; fails with [`Failure::Bad`] if it was refused.
pub(super) fn answer(applied: &v1::Applied, as_json: bool) -> Result<(), Failure> {
    if as_json {
        print_json(applied)?;
    } else {
        complain(&applied.rendered);
        if !applied.refused.is_empty() {
            complain(&format!("lockgate: {}; nothing was changed\n", applied.refused));
        }
        applied.notes.iter().for_each(|note| complain(&format!("note: {note}\n")));
        if applied.ok {
            print(&summary(applied))?;
        }
    }
    if !as_json && !applied.not_saved.is_empty() {
        complain(&format!("lockgate: the change runs, but is {}\n", applied.not_saved));
    }
    if applied.ok && applied.not_saved.is_empty() { Ok(()) } else { Err(Failure::Bad) }
}

fn summary(applied: &v1::Applied) -> String {
    let v1::Applied { revision, generation, differences, key_changes, .. } = applied;
    let saved = match applied.saved_to.as_str() {
        "" => String::new(),
        file => format!("saved to {file}\n"),
    };
    if applied.unchanged {
        return format!("unchanged: revision {revision} runs on\n{saved}");
    }
    let headlines = differences.iter().map(headline);
    let mut text: String = headlines.chain(key_changes.iter().map(keys)).collect();
    let count = differences.len() + key_changes.len();
    let changes = counted(count as u64, "change");
    text.push_str(&match (applied.dry_run, count) {
        (true, 0) => {
            format!("OK: no changes against running revision {revision}; keys too\n")
        }
        (true, _) => format!("OK: {changes} against running revision {revision}\n"),
        (false, _) => format!(
            "revision {revision} runs: {changes}, generation {generation}, {}\n",
            milliseconds(applied.took_us)
        ),
    });
    if let Some(v1::Waiting { revision, previous, left_ms }) = &applied.waiting {
        let seconds = left_ms.div_ceil(1000);
        text.push_str(&format!(
            "revision {revision} waits for `lockgate confirm`: in {seconds} s revision {previous} \
             comes back\n"
        ));
    }
    text + &saved
}

/// A peer with other keys, and a line for each key that goes or comes.
pub(super) fn keys(found: &v1::KeyChange) -> String {
    let line = |sign: char| {
        move |key: &v1::KeyName| {
            let v1::KeyName { direction, spi, fingerprint } = key;
            format!("    {sign} {direction:<3} {spi} fingerprint {fingerprint}…\n")
        }
    };
    let gone: String = found.removed.iter().map(line('-')).collect();
    let new: String = found.added.iter().map(line('+')).collect();
    format!("~ keys of peer {}\n{gone}{new}", found.peer)
}

/// A revision's number.
fn revision_number(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "a revision is a number from 1: see `lockgate rollback --list`".into())
}

/// A time to confirm in seconds: `90`, `60s`, `2m`, `1h`.
fn confirm_time(text: &str) -> Result<u32, String> {
    const MOST: u32 = 24 * 3600;
    let (digits, unit) = match text.char_indices().next_back() {
        Some((end, 's')) => (&text[..end], 1),
        Some((end, 'm')) => (&text[..end], 60),
        Some((end, 'h')) => (&text[..end], 3600),
        _ => (text, 1),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = digits.parse::<u32>().ok().filter(|_| is_number);
    let seconds = seconds.and_then(|number| number.checked_mul(unit));
    let seconds = seconds.filter(|seconds| (1..=MOST).contains(seconds));
    seconds.ok_or_else(|| "a time is 1 second to 24 hours: 60, 60s, 2m or 1h".into())
}

/// `12.3 ms`.
pub(super) fn milliseconds(microseconds: u64) -> String {
    format!("{}.{} ms", microseconds / 1000, microseconds % 1000 / 100)
}

/// A difference in one line.
pub(super) fn headline(found: &v1::Difference) -> String {
    let sign = match found.change.as_str() {
        "added" => '+',
        "removed" => '-',
        _ => '~',
    };
    let name = if found.name.is_empty() { "" } else { &format!(" {}", found.name) };
    format!("{sign} {}{name}\n", found.what)
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
    fn a_dry_run_never_says_that_it_runs() {
        let applied = v1::Applied { ok: true, revision: 4, dry_run: true, ..Default::default() };
        let same = "OK: no changes against running revision 4; keys too\n";
        assert_eq!(summary(&applied), same);
        let differences = vec![difference("added", "", "x")];
        let applied = v1::Applied { differences, ..applied };
        let text = "+ policy dns\nOK: 1 change against running revision 4\n";
        assert_eq!(summary(&applied), text);
        let applied = v1::Applied { dry_run: false, took_us: 12_345, generation: 9, ..applied };
        let text = "+ policy dns\nrevision 4 runs: 1 change, generation 9, 12.3 ms\n";
        assert_eq!(summary(&applied), text);
        let applied = v1::Applied { unchanged: true, ..applied };
        assert_eq!(summary(&applied), "unchanged: revision 4 runs on\n");
    }

    #[test]
    fn changed_keys_are_told_by_peer_spi_and_fingerprint() {
        let key = |direction: &str, fingerprint: &str| v1::KeyName {
            direction: direction.into(),
            spi: "0x00001001".into(),
            fingerprint: fingerprint.into(),
        };
        let (removed, added) = (vec![key("in", "0123")], vec![key("out", "4567")]);
        let key_changes = vec![v1::KeyChange { peer: "gw-b".into(), removed, added }];
        let waiting = Some(v1::Waiting { revision: 4, previous: 3, left_ms: 59_001 });
        let applied =
            v1::Applied { ok: true, revision: 4, key_changes, waiting, ..Default::default() };
        let text = "~ keys of peer gw-b\n    - in  0x00001001 fingerprint 0123…\n    \
                    + out 0x00001001 fingerprint 4567…\nrevision 4 runs: 1 change, generation 0, \
                    0.0 ms\nrevision 4 waits for `lockgate confirm`: in 60 s revision 3 comes \
                    back\n";
        assert_eq!(summary(&applied), text);
    }

    #[test]
    fn a_time_to_confirm_has_a_unit_or_counts_seconds() {
        for (text, seconds) in [("90", 90), ("60s", 60), ("2m", 120), ("1h", 3600), ("24h", 86_400)]
        {
            assert_eq!(confirm_time(text), Ok(seconds), "{text}");
        }
        for bad in ["", "s", "0", "0s", "25h", "-1", "+1", "1.5m", "60 s", "99999999999", "µ"] {
            let refused = confirm_time(bad).unwrap_err();
            assert!(refused.contains("60, 60s, 2m or 1h"), "{bad}: {refused}");
        }
    }
}
