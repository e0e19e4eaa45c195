//! A revision as the store keeps it: facts as JSON beside a configuration in TOML, or beside a
//! change of policies as JSON.

use std::path::PathBuf;
use std::time::SystemTime;

use super::{Body, Cause, Confirmation, PolicyEdit, Revision, Text};
use crate::stored_keys::StoredKeys;

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

/// Reads a revision's facts.
pub(super) fn of_facts(number: u64, facts: &serde_json::Value) -> Option<Revision> {
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

/// A whole revision as the store keeps it: its configuration, and all else as facts.
pub(super) fn whole_row(revision: &Revision, Body { text, keys }: &Body) -> store::Revision {
    let mut facts = facts(revision);
    facts["keys"] = keys_json(keys);
    let (number, facts, text) = (revision.number, facts.to_string(), text.clone());
    store::Revision { number, upon: None, facts, text }
}

/// A change upon a whole revision as the store keeps it.
pub(super) fn edit_row(revision: &Revision, upon: u64, edit: &PolicyEdit) -> store::Revision {
    let text = serde_json::json!({ "remove": edit.remove, "add": edit.add }).to_string();
    let (number, facts) = (revision.number, facts(revision).to_string());
    store::Revision { number, upon: Some(upon), facts, text }
}

/// Reads the facts of a line of the store's list; `None`: no daemon wrote them.
pub(super) fn revision_of(number: u64, facts: &str) -> Option<Revision> {
    of_facts(number, &serde_json::from_str(facts).ok()?)
}

/// Reads what a revision is made of; `None`: a part is missing, or no daemon wrote it.
pub(super) fn text_of(parts: &[store::Revision]) -> Option<Text> {
    let (whole, edits) = parts.split_first()?;
    let facts: serde_json::Value = serde_json::from_str(&whole.facts).ok()?;
    let body = Body { text: whole.text.clone(), keys: keys_of_json(&facts["keys"]) };
    let is_complete = whole.upon.is_none()
        && edits.iter().zip(whole.number + 1..).all(|(edit, number)| edit.number == number);
    let edits: Option<Vec<PolicyEdit>> = edits.iter().map(|edit| edit_of(&edit.text)).collect();
    Some(Text { whole: body, edits: edits.filter(|_| is_complete)? })
}

fn edit_of(text: &str) -> Option<PolicyEdit> {
    edit_of_json(&serde_json::from_str(text).ok()?)
}

/// Reads a change of policies.
pub(super) fn edit_of_json(json: &serde_json::Value) -> Option<PolicyEdit> {
    let names = json["remove"].as_array()?.iter();
    let names: Option<Vec<String>> = names.map(|name| Some(name.as_str()?.into())).collect();
    Some(PolicyEdit { remove: names?, add: json["add"].as_str()?.into() })
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
