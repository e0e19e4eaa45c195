//! Decides whether a key may go on sealing, and from which number, by all that is known of it at
//! once. Touches nothing.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::durable::{Found, KeyStatus, Reservation};
use crate::put_keys::PutBefore;
use crate::witness::Evidence;

/// The highest age of the file of a key that no record knows: an older one may have been used
/// before.
pub const NEW_KEY_AGE: Duration = Duration::from_secs(24 * 3600);

/// Reason why a key is not used. Unless its text says what else helps, a new key is needed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// The key was used, and its durable record is gone.
    #[error(
        "it was used at least up to number {used}, and its durable record is gone: the numbers \
         used since are unknown; make a new key with `lockgate keygen`"
    )]
    RecordMissing {
        /// The highest number known as used.
        used: u64,
    },
    /// The key was used further than its durable record says.
    #[error(
        "its durable record says {recorded}, but it was used at least up to number {used}: an old \
         disk or backup was restored; make a new key with `lockgate keygen`"
    )]
    RecordWentBack {
        /// The number in the durable record.
        recorded: u64,
        /// The highest number known as used.
        used: u64,
    },
    /// The key's record was once found missing or gone back.
    #[error(
        "its durable record was once missing or older than the key's use; make a new key with \
         `lockgate keygen`"
    )]
    Spent,
    /// The key was used on another machine, which may still use it.
    #[error(
        "it was used on another machine: a copied disk, or a copied key; make a new key with \
         `lockgate keygen`"
    )]
    OtherMachine,
    /// This machine has used the key in the other direction: its peer seals with it.
    #[error(
        "it was used here in the other direction: two gateways would seal with one key; make a \
         new pair with `lockgate keygen`"
    )]
    OtherDirection,
    /// The key was put over the API, where its numbers began at 1.
    #[error(
        "it was put over the API since this machine booted; make a new key with `lockgate keygen`"
    )]
    PutOverApi,
    /// No record knows the key, and its file is so old that it may have been used before there was
    /// one.
    #[error(
        "no record of its use is here, and its file is {hours} hours old: it may have been used \
         before; make a new key with `lockgate keygen` (new ones are taken for {} hours)",
        NEW_KEY_AGE.as_secs() / 3600
    )]
    OldFile {
        /// Age of the file.
        hours: u64,
    },
    /// No record knows the key, and its file is from the future.
    #[error(
        "no record of its use is here, and by this machine's clock its file is dated {hours} hours \
         in the future: set the clock"
    )]
    FutureFile {
        /// Hours by which the file is ahead of the clock.
        hours: u64,
    },
    /// The key was used with ESN beyond what 32-bit numbers can count.
    #[error(
        "it was used with ESN up to number {used}, and 32-bit numbers end at {last}: write esn = \
         true again, or make a new key with `lockgate keygen`"
    )]
    BeyondNumbers {
        /// The highest number known as used.
        used: u64,
        /// The last number of the width that was asked for.
        last: u64,
    },
    /// A record cannot be understood.
    #[error(
        "{} is damaged, so the numbers that the key has used are unknown; make a new key with \
         `lockgate keygen`", .path.display()
    )]
    Damaged {
        /// The record.
        path: PathBuf,
    },
    /// A record cannot be read, or room for the key's state cannot be made.
    #[error(transparent)]
    File(#[from] crate::FileError),
    /// All places for SAs are taken.
    #[error("all {slots} slots for SAs of this direction are in use")]
    NoPlace {
        /// Number of slots.
        slots: u32,
    },
    /// The window size is not offered: validation let a mistake through.
    #[error(transparent)]
    Window(#[from] ipsec::WindowSizeError),
}

/// All that is known of a sealing key.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Last number used and last number reserved according to the run record of this boot.
    pub(crate) run: Option<(u64, u64)>,
    pub(crate) durable: Found<Reservation>,
    pub(crate) witness: Found<Evidence>,
    pub(crate) put_before: PutBefore,
    pub(crate) opened_here: bool,
    pub(crate) machine: u128,
    pub(crate) file_modified: SystemTime,
    pub(crate) now: SystemTime,
}

/// The numbers at which a key goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Start {
    /// The last number that may have been used.
    pub(crate) last: u64,
    /// The highest number that the durable record reserves; 0: there is no record yet.
    pub(crate) durable: u64,
    /// The highest number that the witness knows.
    pub(crate) witness: u64,
}

/// A refusal, and whether it has to be remembered lest the key be taken for good later.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refused {
    pub(crate) why: Refusal,
    pub(crate) spends: Option<u64>,
}

impl From<Refusal> for Refused {
    fn from(why: Refusal) -> Refused {
        Refused { why, spends: None }
    }
}

/// Decides whether, and from which number on, a key may be used.
///
/// 1. damaged, another machine's, spent, put over the API, the other direction's: refused
/// 2. what the run record and the witness remember must be in the durable record
/// 3. known by all three: on from the run record's last number; after a reboot from the end of the
///    reservation, which skips what it allowed
/// 4. known by none: new if its file is
pub(crate) fn evaluate(facts: &Facts) -> Result<Start, Refused> {
    let durable = match &facts.durable {
        Found::Missing => None,
        Found::Good(durable) => Some(*durable),
        Found::Damaged(path) => return Err(Refusal::Damaged { path: path.clone() }.into()),
    };
    let witness = match &facts.witness {
        Found::Missing => None,
        Found::Good(witness) => Some(*witness),
        Found::Damaged(path) => return Err(Refusal::Damaged { path: path.clone() }.into()),
    };
    let machines = [durable.map(|d| d.machine), witness.map(|w| w.machine)];
    if machines.into_iter().flatten().any(|machine| machine != facts.machine) {
        return Err(Refusal::OtherMachine.into());
    }
    if durable.is_some_and(|durable| durable.standing == KeyStatus::Spent) {
        return Err(Refusal::Spent.into());
    }
    if facts.put_before == PutBefore::Yes {
        return Err(Refusal::PutOverApi.into());
    }
    if facts.opened_here {
        return Err(Refusal::OtherDirection.into());
    }
    let witnessed = witness.map_or(0, |witness| witness.reserved);
    let (run_last, run_reserved) = facts.run.unwrap_or_default();
    let used = run_last.max(run_reserved).max(witnessed);
    match durable {
        Some(Reservation { reserved, .. }) if used > reserved => Err(Refused {
            why: Refusal::RecordWentBack { recorded: reserved, used },
            spends: Some(used),
        }),
        Some(Reservation { reserved, .. }) => {
            let last = if facts.run.is_some() { run_last } else { reserved };
            Ok(Start { last, durable: reserved, witness: witnessed })
        }
        None if used > 0 || witness.is_some() => {
            Err(Refused { why: Refusal::RecordMissing { used }, spends: Some(used) })
        }
        // Found new in this boot, and nothing could be reserved yet.
        None if facts.run.is_some() => Ok(Start { last: 0, durable: 0, witness: 0 }),
        // Only a key that nothing knows can have been put over the API.
        None => is_new(facts).map(|()| Start { last: 0, durable: 0, witness: 0 }),
    }
}

fn is_new(facts: &Facts) -> Result<(), Refused> {
    if let PutBefore::Unknown(path) | PutBefore::UnknownUntilBoot(path) = &facts.put_before {
        return Err(Refusal::Damaged { path: path.clone() }.into());
    }
    let hours = |age: Duration| age.as_secs() / 3600;
    match facts.now.duration_since(facts.file_modified) {
        Ok(age) if age > NEW_KEY_AGE => Err(Refusal::OldFile { hours: hours(age) }.into()),
        Err(ahead) if ahead.duration() > NEW_KEY_AGE => {
            Err(Refusal::FutureFile { hours: hours(ahead.duration()) }.into())
        }
        _ => Ok(()),
    }
}
