//! The use of SAs that have limits: packets, bytes, and the time since the first use.
//!
//! The words of an account lie in the run record, so that SIGKILL and a restart lose nothing. One
//! file holds what a reboot must not lose: for each SA a bound from above. It is written ahead of
//! use like a reservation, and whole, since a write covers all SAs.
//!
//! | over a reboot | becomes |
//! |---|---|
//! | packets | the last number reserved (sealing), the last right edge written (opening) |
//! | bytes | the bound written; it is ahead of use by a 16th of the hard limit |
//! | seconds | the later of both: age written + time since boot, and wall clock − first use |
//!
//! The age is written up to [`AGE_AHEAD_NS`] ahead. So a wall clock that was set back makes no key
//! younger than it was. Within one boot only the boot clock counts.
//!
//! An SA that uses half of what its bound is ahead within [`WRITE_INTERVAL_NS`], or a disk that
//! takes no writes, makes the bound late: nothing stops the SA for it. Sealing SAs stop at the end
//! of their numbers then.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use ipsec::lifetime::{Account, Limits};

use crate::clocks::Now;
use crate::files::{self, FileError};
use crate::record::{self, Damaged};
use crate::run::Slot;
use crate::words::Subject;
use crate::{HostIdentity, KeyUse, Notice};

const NS_PER_SECOND: u64 = 1_000_000_000;
/// Time that the age of an SA is written ahead.
pub(crate) const AGE_AHEAD_NS: u64 = 60 * NS_PER_SECOND;
/// The shortest time between two writes, unless an SA is new.
const WRITE_INTERVAL_NS: u64 = NS_PER_SECOND / 4;
/// The least and the most bytes that a bound is ahead of use.
const LEAST_AHEAD: u64 = 16 << 20;
const MOST_AHEAD: u64 = 4 << 30;
/// Packets, bytes or nanoseconds of an SA whose record was lost: more than any limit, and far from
/// the end of the numbers.
const UNKNOWN: u64 = 1 << 62;

const LIMITS: &str = "use of SAs with limits";

/// The bound from above of the use of an SA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bound {
    packets: u64,
    bytes: u64,
    /// The account's word for the limit that ended it and the expiries that were told.
    state: u64,
    /// `None`: it was never used.
    life: Option<Life>,
}

/// The time of an SA's first use, by both clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Life {
    /// Nanoseconds of this boot's clock, modulo 2⁶⁴: below 0 if it was before the boot.
    first_ns: u64,
    /// Seconds since 1970.
    first_wall: i64,
}

/// An account that this process gave out.
struct Live {
    account: Arc<Account>,
    slot: Slot,
    /// Bytes that the bound is ahead of use at least; 0 without a limit by bytes.
    ahead: u64,
    /// Bytes used when the file was written last.
    bytes_written_at: u64,
}

/// All accounts, and their file.
pub(crate) struct Accounts {
    path: PathBuf,
    boot: u128,
    bounds: BTreeMap<Subject, Bound>,
    live: HashMap<Subject, Live>,
    /// The file cannot be understood and has this name now.
    lost: Option<PathBuf>,
    /// The file does not say what `bounds` say.
    is_behind: bool,
    /// An SA is not in the file at all.
    has_new: bool,
    tried_ns: u64,
    /// By the boot clock: until then no SA is older than the file says.
    aged_until_ns: u64,
}

/// The lead of the bounds over use when they are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ahead {
    /// Of use that goes on.
    Steps,
    /// Not at all: the workers have ended.
    Nothing,
}

impl Accounts {
    /// Reads the file. Sets a damaged one aside and notes that: SAs that were used then count as
    /// used up.
    pub(crate) fn open(
        path: &Path,
        host: &HostIdentity,
        now: Now,
        notices: &mut Vec<Notice>,
    ) -> Result<Accounts, FileError> {
        let aside = files::set_aside_name(path);
        let mut lost = aside.symlink_metadata().is_ok().then_some(aside);
        let mut bounds = BTreeMap::new();
        if let Some(content) = files::read(path)? {
            match parse(&content, host.boot, now) {
                Ok(read) => bounds = read,
                Err(Damaged) => {
                    let path = files::set_aside(path)?;
                    notices.push(Notice::SetAside { path: path.clone() });
                    lost = Some(path);
                }
            }
        }
        Ok(Accounts {
            path: path.to_owned(),
            boot: host.boot,
            bounds,
            live: HashMap::new(),
            lost,
            is_behind: false,
            has_new: false,
            tried_ns: 0,
            aged_until_ns: 0,
        })
    }

    /// Returns the account over a slot's words: the one in use, or another that goes on with what
    /// the words or the file say.
    pub(crate) fn account(
        &mut self,
        subject: Subject,
        slot: Slot,
        hard: &Limits,
        now: Now,
    ) -> Arc<Account> {
        let ahead = hard.bytes.map_or(0, |limit| (limit / 16).clamp(LEAST_AHEAD, MOST_AHEAD));
        if let Some(live) = self.live.get_mut(&subject) {
            live.ahead = ahead;
            return live.account.clone();
        }
        if load(slot.is_counted()) == 0 {
            self.begin(subject, slot, now);
        }
        let account = Arc::new(Account::shared(slot.account()));
        if let Entry::Vacant(vacant) = self.bounds.entry(subject) {
            vacant.insert(Bound::of(slot, None, now));
            self.has_new = true;
        }
        let bytes_written_at = load(slot.account().bytes);
        let live = Live { account: account.clone(), slot, ahead, bytes_written_at };
        self.live.insert(subject, live);
        account
    }

    /// Sets the words of a slot that has counted nothing yet.
    fn begin(&self, subject: Subject, slot: Slot, now: Now) {
        let numbers = load(slot.last());
        let words = slot.account();
        let set = |word: &AtomicU64, value| word.store(value, Ordering::Relaxed);
        match self.bounds.get(&subject) {
            Some(bound) => {
                set(words.packets, bound.packets.max(numbers));
                set(words.bytes, bound.bytes);
                set(words.state, bound.state);
                set(words.first_use_ns, bound.life.map_or(0, |life| not_never(life.first_ns)));
            }
            None if numbers > 0 && self.lost.is_some() => {
                set(words.packets, UNKNOWN);
                set(words.bytes, UNKNOWN);
                set(words.first_use_ns, not_never(now.boot_ns.wrapping_sub(UNKNOWN)));
            }
            // It had no limits until now: each packet had a number of its own.
            None => set(words.packets, numbers),
        }
        compiler_fence(Ordering::SeqCst);
        set(slot.is_counted(), 1);
    }

    /// Returns true if the account is held outside.
    pub(crate) fn is_in_use(&self, subject: Subject) -> bool {
        self.live.get(&subject).is_some_and(Live::is_in_use)
    }

    /// Returns true if any account is held outside.
    pub(crate) fn any_in_use(&self) -> bool {
        self.live.values().any(Live::is_in_use)
    }

    /// Notes the use of an SA whose slot goes to another. Only on the way to disk until
    /// [`Accounts::write`].
    pub(crate) fn note(&mut self, subject: Subject, slot: Slot, now: Now) {
        self.live.remove(&subject);
        if load(slot.is_counted()) != 0 {
            let before = self.bounds.get(&subject).and_then(|bound| bound.life);
            self.bounds.insert(subject, Bound::of(slot, before, now));
            self.is_behind = true;
        }
    }

    /// Makes SAs older whose wall clock says so, and writes the file if an SA has come near to its
    /// bound. Called all the time.
    pub(crate) fn top_up(&mut self, now: Now) -> Result<(), FileError> {
        self.heed_wall_clock(now);
        let rests = now.boot_ns.saturating_sub(self.tried_ns) < WRITE_INTERVAL_NS;
        if self.has_new || (!rests && self.is_due(now)) {
            self.write(Ahead::Steps, now)?;
        }
        Ok(())
    }

    /// Writes the file: what is in use, as far ahead, and the rest as it is known.
    pub(crate) fn write(&mut self, ahead: Ahead, now: Now) -> Result<(), FileError> {
        if self.bounds.is_empty() {
            return Ok(());
        }
        self.tried_ns = now.boot_ns;
        self.is_behind = true;
        for (subject, live) in &mut self.live {
            let before = self.bounds.get(subject).and_then(|bound| bound.life);
            let mut bound = Bound::of(live.slot, before, now);
            if ahead == Ahead::Steps && live.ahead > 0 {
                let lately = bound.bytes.saturating_sub(live.bytes_written_at);
                live.bytes_written_at = bound.bytes;
                let ahead = live.ahead.max(lately.saturating_mul(4));
                bound.bytes = bound.bytes.saturating_add(ahead);
            }
            self.bounds.insert(*subject, bound);
        }
        let age_ahead = match ahead {
            Ahead::Steps => AGE_AHEAD_NS,
            Ahead::Nothing => 0,
        };
        let line = |(subject, bound): (&Subject, &Bound)| {
            let ahead = if self.live.contains_key(subject) { age_ahead } else { 0 };
            bound.line(*subject, ahead, now)
        };
        let first = format!("boot {:032x} {}", self.boot, now.boot_ns);
        let lines = std::iter::once(first).chain(self.bounds.iter().map(line));
        files::replace(&self.path, record::encode(LIMITS, lines).as_bytes())?;
        (self.is_behind, self.has_new) = (false, false);
        self.aged_until_ns = now.boot_ns.saturating_add(age_ahead);
        Ok(())
    }

    /// Returns true if the file does not bound the use of an SA for long.
    fn is_due(&self, now: Now) -> bool {
        let is_old = now.boot_ns >= self.aged_until_ns;
        self.is_behind
            || self.live.iter().any(|(subject, live)| {
                let Some(bound) = self.bounds.get(subject) else { return true };
                let words = live.slot.account();
                let runs = load(words.first_use_ns) != 0;
                let near = live.ahead > 0
                    && load(words.bytes).saturating_add(live.ahead / 2) > bound.bytes;
                near || load(words.state) != bound.state
                    || (runs && (is_old || bound.life.is_none()))
            })
    }

    /// Makes SAs older that were used first in an earlier boot, if the wall clock says so: it may
    /// have been set right since the start.
    fn heed_wall_clock(&mut self, now: Now) {
        for (subject, live) in &self.live {
            let first = live.slot.account().first_use_ns;
            let Some(life) = self.bounds.get(subject).and_then(|bound| bound.life) else {
                continue;
            };
            let first_ns = load(first);
            if first_ns == 0 || first_ns as i64 > 0 {
                continue;
            }
            let age = age_ns(first_ns, now);
            let by_wall = wall_age_ns(life.first_wall, now);
            if by_wall > age.saturating_add(NS_PER_SECOND) {
                first.store(not_never(now.boot_ns.wrapping_sub(by_wall)), Ordering::Relaxed);
                // Older than the file was ahead, maybe.
                self.is_behind = true;
            }
        }
    }
}

impl Live {
    fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.account) > 1
    }
}

impl Bound {
    /// The use that a slot's words say. `before`: the first use as it was known.
    fn of(slot: Slot, before: Option<Life>, now: Now) -> Bound {
        let words = slot.account();
        let first_ns = load(words.first_use_ns);
        let life = (first_ns != 0).then(|| {
            let age = age_ns(first_ns, now) / NS_PER_SECOND;
            let by_age = now.wall_seconds.saturating_sub(age as i64);
            // Of this boot the boot clock knows best: the wall clock may have been set right since.
            // Of an earlier one it knows nothing, and the wall clock may be wrong now.
            let before = before.filter(|_| first_ns as i64 <= 0);
            let first_wall = before.map_or(by_age, |life| life.first_wall);
            Life { first_ns, first_wall }
        });
        Bound {
            packets: load(words.packets),
            bytes: load(words.bytes),
            state: load(words.state),
            life,
        }
    }

    fn line(&self, subject: Subject, age_ahead_ns: u64, now: Now) -> String {
        let Bound { packets, bytes, state, life } = self;
        let usage = match subject.usage {
            KeyUse::Seals => "seals",
            KeyUse::Opens => "opens",
        };
        let life = life.map_or("unused".to_owned(), |life| {
            let age = age_ns(life.first_ns, now).saturating_add(age_ahead_ns);
            format!("{} {}", life.first_wall, age.div_ceil(NS_PER_SECOND))
        });
        format!("{:032x} {usage} {packets} {bytes} {state} {life}", subject.fingerprint)
    }
}

/// Reads the file; ages become those of now.
fn parse(content: &[u8], boot: u128, now: Now) -> Result<BTreeMap<Subject, Bound>, Damaged> {
    let mut lines = record::decode(LIMITS, content)?;
    let first: Vec<&str> = lines.next().ok_or(Damaged)?.split(' ').collect();
    let ["boot", of_boot, at_ns] = first[..] else { return Err(Damaged) };
    let at_ns = number(at_ns)?;
    let clock = match record::hex(of_boot).ok_or(Damaged)? == boot && at_ns <= now.boot_ns {
        true => Clock::Boot { since_ns: now.boot_ns - at_ns },
        false => Clock::Wall,
    };
    lines.map(|line| parse_line(line, clock, now)).collect()
}

/// The clock that says how much older an SA is than the file says.
#[derive(Clone, Copy)]
enum Clock {
    /// The file is of this boot, written so long ago.
    Boot { since_ns: u64 },
    /// The file is of an earlier boot: at least the time since this one has passed.
    Wall,
}

fn parse_line(line: &str, clock: Clock, now: Now) -> Result<(Subject, Bound), Damaged> {
    let words: Vec<&str> = line.split(' ').collect();
    let [key, usage, packets, bytes, state, ref life @ ..] = words[..] else {
        return Err(Damaged);
    };
    let usage = match usage {
        "seals" => KeyUse::Seals,
        "opens" => KeyUse::Opens,
        _ => return Err(Damaged),
    };
    let life = match *life {
        ["unused"] => None,
        [first_wall, age] => {
            let first_wall = first_wall.parse().map_err(|_| Damaged)?;
            let age_ns = number(age)?.saturating_mul(NS_PER_SECOND).min(UNKNOWN);
            let age_ns = match clock {
                Clock::Boot { since_ns } => age_ns.saturating_add(since_ns),
                Clock::Wall => age_ns.saturating_add(now.boot_ns).max(wall_age_ns(first_wall, now)),
            };
            Some(Life { first_ns: now.boot_ns.wrapping_sub(age_ns.min(UNKNOWN)), first_wall })
        }
        _ => return Err(Damaged),
    };
    let subject = Subject { fingerprint: record::hex(key).ok_or(Damaged)?, usage };
    let [packets, bytes, state] = [packets, bytes, state].map(number);
    Ok((subject, Bound { packets: packets?, bytes: bytes?, state: state?, life }))
}

fn number(text: &str) -> Result<u64, Damaged> {
    text.parse().map_err(|_| Damaged)
}

/// The age by the boot clock, nanoseconds. Another thread may have noted the first use just behind
/// `now`.
fn age_ns(first_ns: u64, now: Now) -> u64 {
    (now.boot_ns.wrapping_sub(first_ns) as i64).max(0) as u64
}

/// The age that the wall clock gives, nanoseconds; 0 if it was set back behind the first use.
fn wall_age_ns(first_wall: i64, now: Now) -> u64 {
    let seconds = now.wall_seconds.saturating_sub(first_wall);
    u64::try_from(seconds).unwrap_or(0).saturating_mul(NS_PER_SECOND).min(UNKNOWN)
}

/// A time of first use: 0 means that there was none.
fn not_never(first_ns: u64) -> u64 {
    if first_ns == 0 { u64::MAX } else { first_ns }
}

fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}
