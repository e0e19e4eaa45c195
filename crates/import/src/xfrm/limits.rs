//! Limits of states: `limit byte-hard N`, and the block `lifetime config:` of a dump.

use config::{Location, MAX_LIMIT_SECONDS};
use ipsec::Lifetime;

use crate::problem::{Fate, Omissions, Parsed, unknown};
use crate::values::{number, number_of, value};
use crate::words::{Cursor, Word};

const NAMES: [&str; 8] = [
    "time-soft",
    "time-hard",
    "time-use-soft",
    "time-use-hard",
    "byte-soft",
    "byte-hard",
    "packet-soft",
    "packet-hard",
];

/// Takes a limit behind the word `limit`.
pub(super) fn take(
    lifetime: &mut Lifetime,
    cursor: &mut Cursor<'_, '_>,
    word: Word<'_>,
    omissions: &mut Omissions,
) -> Parsed<()> {
    let name = value(cursor, word)?;
    if !NAMES.contains(&name.text) {
        return unknown(cursor, name, "limits", &NAMES);
    }
    let amount = number(cursor, name, u64::MAX)?;
    set(lifetime, name.text, amount, (&cursor.place(name), omissions));
    Ok(())
}

/// Sets a limit by its name. 0 and the largest number are none.
fn set(
    lifetime: &mut Lifetime,
    name: &str,
    amount: u64,
    (place, omissions): (&Location, &mut Omissions),
) {
    if matches!(amount, 0 | u64::MAX) {
        return;
    }
    let limits = if name.ends_with("soft") { &mut lifetime.soft } else { &mut lifetime.hard };
    match name {
        "byte-soft" | "byte-hard" => limits.bytes = Some(amount),
        "packet-soft" | "packet-hard" => limits.packets = Some(amount),
        _ if amount > u64::from(MAX_LIMIT_SECONDS) => {
            omissions.left((place, name), "longer than ten years", "none: it is no limit here");
        }
        "time-use-soft" | "time-use-hard" => limits.seconds = Some(amount as u32),
        _ => {
            // `hard_seconds` of a key file's SA counts from its first packet.
            limits.seconds = limits.seconds.or(Some(amount as u32));
            let why = (
                "xfrm counts from the making of the state, Lockgate from its first packet",
                "none, if this is meant as a bound",
            );
            omissions.add(Fate::Differs, (place, name), why);
        }
    }
}

/// Reads a line of a dump's block of limits or use. Returns false if it is none.
pub(super) fn line_of_dump(
    lifetime: &mut Lifetime,
    used: &mut u64,
    (file, words): (&str, &[Word<'_>]),
    omissions: &mut Omissions,
) -> bool {
    let [first, rest @ ..] = words else { return false };
    let place = crate::words::place(file, *first);
    let after = |name: &str| {
        let at = rest.iter().position(|word| word.text == name)?;
        rest.get(at + 1).map(|word| word.text)
    };
    match (first.text, rest.first().map(|word| word.text)) {
        ("limit:", _) => {
            for (kind, in_soft) in [("soft", true), ("hard", false)] {
                let Some(text) = after(kind) else { continue };
                let what = if text.contains("(packets)") { "packet" } else { "byte" };
                let name = format!("{what}-{}", if in_soft { "soft" } else { "hard" });
                let amount = number_of(text).unwrap_or(u64::MAX);
                set(lifetime, &name, amount, (&place, omissions));
            }
        }
        ("expire", Some(since)) => {
            for kind in ["soft", "hard"] {
                let use_ = if since.starts_with("use") { "use-" } else { "" };
                let amount = after(kind).and_then(number_of).unwrap_or(0);
                set(lifetime, &format!("time-{use_}{kind}"), amount, (&place, omissions));
            }
        }
        ("add", _) => {}
        (current, _) if current.ends_with("(bytes),") => {
            let packets = rest.first().and_then(|word| number_of(word.text)).unwrap_or(0);
            *used = (*used).max(packets);
        }
        _ => return false,
    }
    true
}
