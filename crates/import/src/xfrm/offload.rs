//! Offload in its spellings:
//!
//! | written | meaning |
//! |---|---|
//! | `offload packet dev IF dir DIR` | packet |
//! | `offload crypto dev IF dir DIR` | crypto |
//! | `offload dev IF dir DIR` | crypto: from before there was a word for it |
//! | `crypto offload parameters: dev IF dir DIR mode MODE` | as `ip` prints a state |
//! | `crypto offload parameters: dev IF dir DIR` | crypto: as an older `ip` prints it |
//!
//! A state says its direction. A policy has one, and takes `packet` only.

use policy::Direction;

use crate::model::{Offload, OffloadMode};
use crate::problem::{Mistake, Parsed, at, unknown};
use crate::values::value;
use crate::words::{Cursor, Word};

/// The words behind `offload`.
struct Words<'a> {
    mode: Option<Word<'a>>,
    netdev: Option<&'a str>,
    direction: Option<Direction>,
}

/// Takes the offload of a state, behind the word `offload`, and its direction.
pub(super) fn of_state(
    cursor: &mut Cursor<'_, '_>,
    word: Word<'_>,
) -> Parsed<(Offload, Direction)> {
    let words = words(cursor, word)?;
    let mode = match words.mode {
        None => OffloadMode::Crypto,
        Some(mode) => match mode.text {
            "crypto" => OffloadMode::Crypto,
            "packet" => OffloadMode::Packet,
            "full" => return at(cursor, mode, Mistake::OffloadFull),
            _ => return unknown(cursor, mode, "offload", &["crypto", "packet"]),
        },
    };
    let Some(direction) = words.direction else {
        return at(cursor, word, Mistake::OffloadWithoutDirection);
    };
    Ok((offload(cursor, word, mode, words.netdev)?, direction))
}

/// Takes the offload of a policy, behind the word `offload`.
pub(super) fn of_policy(cursor: &mut Cursor<'_, '_>, word: Word<'_>) -> Parsed<Offload> {
    let words = words(cursor, word)?;
    match words.mode {
        Some(mode) if mode.text == "packet" => {}
        mode => return at(cursor, mode.unwrap_or(word), Mistake::PolicyOffload),
    }
    offload(cursor, word, OffloadMode::Packet, words.netdev)
}

fn offload(
    cursor: &Cursor<'_, '_>,
    word: Word<'_>,
    mode: OffloadMode,
    netdev: Option<&str>,
) -> Parsed<Offload> {
    match netdev {
        Some(netdev) => Ok(Offload { at: cursor.place(word), mode, netdev: netdev.to_owned() }),
        None => at(cursor, word, Mistake::Missing { what: "`dev IF` of the offload" }),
    }
}

fn words<'a>(cursor: &mut Cursor<'_, 'a>, word: Word<'_>) -> Parsed<Words<'a>> {
    let mut words = Words { mode: None, netdev: None, direction: None };
    // As `ip` prints it.
    cursor.take("parameters:");
    // A mode stands in front of `dev`, or behind the word `mode`.
    if let Some(mode) = cursor.peek().filter(|next| !matches!(next.text, "dev" | "dir" | "mode")) {
        cursor.next();
        words.mode = Some(mode);
    }
    while let Some(next) = cursor.peek() {
        match next.text {
            "dev" => {
                cursor.next();
                words.netdev = Some(value(cursor, next)?.text);
            }
            "dir" => {
                cursor.next();
                words.direction = Some(direction(cursor, next)?);
            }
            "mode" => {
                cursor.next();
                words.mode = Some(value(cursor, next)?);
            }
            _ => break,
        }
    }
    if words.netdev.is_none() && words.direction.is_none() && words.mode.is_none() {
        return at(cursor, word, Mistake::Missing { what: "`dev IF` of the offload" });
    }
    Ok(words)
}

/// Takes `in` or `out`.
pub(super) fn direction(cursor: &mut Cursor<'_, '_>, behind: Word<'_>) -> Parsed<Direction> {
    let word = value(cursor, behind)?;
    match word.text {
        "in" => Ok(Direction::Inbound),
        "out" => Ok(Direction::Outbound),
        _ => unknown(cursor, word, "directions", &["in", "out"]),
    }
}
