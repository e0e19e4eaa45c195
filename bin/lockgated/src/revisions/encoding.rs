//! The text of a revision's files: facts as JSON beside a configuration in TOML.

use std::path::PathBuf;
use std::time::SystemTime;

use super::{Body, Cause, Confirmation, PolicyEdit, Revision};
use crate::stored_keys::StoredKeys;

pub(super) const MARK: &str = "# lockgate revision: ";

/// Facts about a revision that are not in its configuration.
fn facts(revision: &Revision) -> serde_json::Value {
    let since = revision.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut facts = serde_json::json!({
        "unix_ns": since.as_nanos() as u64,
        "uid": revision.uid,
        "cause": revision.cause.name(),
        "file": revision.file,
        "base": revision.base.to_string_lossy(),
        "changes": revision.changes,
    });
    if let Some(restored) = revision.restored {
        facts["restored"] = restored.into();
    }
    if revision.confirmation == Confirmation::Asked {
        facts["to_confirm"] = true.into();
    }
    facts
}

fn of_facts(number: u64, facts: &serde_json::Value) -> Option<Revision> {
    let since = std::time::Duration::from_nanos(facts["unix_ns"].as_u64()?);
    let cause = facts["cause"].as_str()?;
    Some(Revision {
        number,
        time: SystemTime::UNIX_EPOCH + since,
        uid: u32::try_from(facts["uid"].as_u64()?).ok()?,
        cause: Cause::ALL.into_iter().find(|known| known.name() == cause)?,
        file: facts["file"].as_str()?.to_owned(),
        base: PathBuf::from(facts["base"].as_str()?),
        changes: u32::try_from(facts["changes"].as_u64()?).ok()?,
        restored: facts["restored"].as_u64(),
        confirmation: match facts["to_confirm"].as_bool() {
            Some(true) => Confirmation::Asked,
            _ => Confirmation::NotAsked,
        },
    })
}

/// Encodes a revision as a TOML file whose first line holds its facts as JSON.
pub(super) fn encode(revision: &Revision, Body { text, keys }: &Body) -> String {
    let mut facts = facts(revision);
    facts["keys"] = keys_json(keys);
    format!("{MARK}{facts}\n{text}")
}

pub(super) fn decode(number: u64, content: &str) -> Option<(Revision, Body)> {
    let (first, text) = content.split_once('\n')?;
    let facts: serde_json::Value = serde_json::from_str(first.strip_prefix(MARK)?).ok()?;
    let keys = keys_of_json(&facts["keys"]);
    Some((of_facts(number, &facts)?, Body { text: text.to_owned(), keys }))
}

/// The names of keys as JSON.
pub(crate) fn keys_json(keys: &StoredKeys) -> serde_json::Value {
    serde_json::json!(keys)
}

/// Reads them back; where they are missing, as in the files of earlier versions, there are none.
pub(crate) fn keys_of_json(value: &serde_json::Value) -> StoredKeys {
    let text = |name: &serde_json::Value| name.as_str().map(str::to_owned);
    let peer = |(peer, names): (&String, &serde_json::Value)| {
        let names = names.as_array()?.iter().filter_map(text).collect();
        Some((peer.clone(), names))
    };
    value.as_object().into_iter().flatten().filter_map(peer).collect()
}

/// A change as one line of JSON.
pub(super) fn encode_line(revision: &Revision, edit: &PolicyEdit) -> String {
    let mut facts = facts(revision);
    facts["number"] = revision.number.into();
    facts["remove"] = edit.remove.clone().into();
    facts["add"] = edit.add.clone().into();
    format!("{facts}\n")
}

/// Decodes the changes on top of a complete revision with this number: the lines up to the first
/// that is incomplete or out of order.
pub(super) fn decode_lines(
    whole: u64,
    content: &[u8],
) -> impl Iterator<Item = (Revision, PolicyEdit, usize)> {
    let lines = content.split_inclusive(|byte| *byte == b'\n');
    let decoded = lines.zip(whole + 1..).map_while(|(line, number)| {
        let facts: serde_json::Value = serde_json::from_slice(line.strip_suffix(b"\n")?).ok()?;
        let names = facts["remove"].as_array()?.iter();
        let names: Option<Vec<String>> = names.map(|name| Some(name.as_str()?.into())).collect();
        let edit = PolicyEdit { remove: names?, add: facts["add"].as_str()?.into() };
        let is_next = facts["number"].as_u64() == Some(number);
        is_next.then_some((of_facts(number, &facts)?, edit, line.len()))
    });
    decoded.collect::<Vec<_>>().into_iter()
}
