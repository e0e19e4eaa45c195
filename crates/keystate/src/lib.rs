//! Sequence counters and replay windows that outlive the process (DESIGN I8): no AEAD key seals
//! two packets under one number, and no packet is opened twice, over SIGKILL, restart, reboot, and
//! state that was lost or put back. Holds fingerprints of keys, never keys.
//!
//! | where | what | survives |
//! |---|---|---|
//! | `RUN_DIR/keystate` | counters and windows themselves, mapped | the process |
//! | `STATE_DIR/sequence/KEY.out` | numbers reserved ahead of use, for which machine | the boot |
//! | `STATE_DIR/put-keys` | keyed fingerprints of keys put without a named run | the boot |
//! | `RUN_DIR/named-keys` | fingerprints of keys put with a named run | the process |
//! | `STATE_DIR/sequence/inbound` | right edges of replay windows, every few seconds | the boot |
//! | `STATE_DIR/sequence/limits` | bounds of the use of SAs that have limits | the boot |
//! | `KEYS_DIR/NAME.keys.used` | which keys were used, where, how far at least | lost state |
//!
//! A sealing key whose durable record is missing, of another machine, or older than what anything
//! else remembers is refused for ever; the other SAs run. What cannot be seen from within: a whole
//! disk put back to an older state, witness and all, or a virtual machine resumed twice from one
//! image; for keys that were put: a state directory that was lost or put back over a reboot; a
//! program that names the present run for keys of an earlier boot; a key that was put with a named
//! run and after a boot comes again without one, or from a new key file. Manual keys are for
//! laboratories.
//!
//! After a reboot the replay windows begin at the right edges last written: packets received in
//! the [`EDGE_INTERVAL`] before a power cut could be replayed once.
#![deny(clippy::undocumented_unsafe_blocks)]

mod accounts;
mod boot_keys;
mod bus;
mod clocks;
mod durable;
mod error;
mod evaluate;
mod files;
mod host;
mod ike_keys;
mod key_table;
mod layouts;
mod put_keys;
mod record;
mod reserve;
mod run;
mod used_keys;
mod witness;
mod words;

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use ipsec::lifetime::{Account, Limits};
use ipsec::{Fingerprint, ReplayWindow, SequenceCounter, SequenceNumbers, SharedWindow, Spi};

use accounts::{Accounts, Ahead};
use boot_keys::{EarlierKeys, NamedKeys};
use clocks::Now;
use durable::{Edges, Found, KeyStatus, Reservation, Reservations};
use evaluate::{Facts, Refused, Start};
use files::LockHolder;
use ike_keys::IkeKeys;
use put_keys::{PutBefore, PutKeys};
use run::{FoundRecord, RunRecord, Slot};
use words::Subject;

pub use boot_keys::MAX_NAMED_KEYS;
pub use bus::RUN_FILE_CUT;
pub use clocks::{Clocks, SystemClocks};
pub use error::{KeyRefused, KeyStateError, KeyUsed, Once, TopUpError};
pub use evaluate::{NEW_KEY_AGE, Refusal};
pub use files::FileError;
pub use host::HostIdentity;
pub use ike_keys::MAX_IKE_KEYS;
pub use put_keys::MAX_PUT_KEYS;

/// Numbers that are reserved ahead of use. Topped up when less than half of it is left.
pub const RESERVATION_STEP: u64 = 1 << 22;
/// Interval at which [`KeyState::top_up`] is to be called.
pub const TOP_UP_INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which the right edges of replay windows are written.
pub const EDGE_INTERVAL: Duration = Duration::from_secs(5);
/// Places for live SAs of each direction.
pub const MAX_SAS: u32 = words::SLOTS;

/// The use of a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum KeyUse {
    /// Sealing: a key of outbound SAs.
    Seals,
    /// Opening: a key of inbound SAs.
    Opens,
}

/// The origin of keys that are put while the gateway runs. It decides how long they are remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyOrigin {
    /// A key exchange of charon's, whose keys are new: remembered while the SA runs, and minutes
    /// longer.
    Ike,
    /// A program that named this run of the daemon: remembered until the machine boots.
    NamedRun,
    /// A person, a file, or a program that named no run: remembered for ever.
    AnyTime,
}

/// Numbers of keys in the memories of used keys.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct KeyCounts {
    /// Keys put without a named run, of at most [`MAX_PUT_KEYS`].
    pub put: usize,
    /// Keys put with a named run since the boot, of at most [`MAX_NAMED_KEYS`].
    pub named: usize,
    /// Keys of IKE, of at most [`MAX_IKE_KEYS`].
    pub ike: usize,
}

/// A key file at the moment when its keys were read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyFileFacts {
    /// Path of the file. The witness lies in the same directory.
    pub path: PathBuf,
    /// Time of its last change.
    pub modified: SystemTime,
}

/// A repair, for the event log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// A file could not be understood and has this name now; what it said counts as lost.
    SetAside {
        /// Its new name.
        path: PathBuf,
    },
}

/// A sealing key in use.
struct Sealing {
    /// One for each width of numbers that was asked for, over the same word.
    counters: Vec<Arc<SequenceCounter>>,
    slot: Slot,
    key_file: PathBuf,
    /// The highest number that the durable record reserves.
    durable: u64,
    /// The highest number that the witness knows.
    witness: u64,
}

impl Sealing {
    fn is_in_use(&self) -> bool {
        self.counters.iter().any(|counter| Arc::strong_count(counter) > 1)
    }

    /// The counter of this width: the one in use, or another over the same word.
    fn counter(&mut self, numbers: SequenceNumbers) -> Result<Arc<SequenceCounter>, Refusal> {
        check_width(self.slot.last().load(Ordering::Relaxed), numbers)?;
        let known = self.counters.iter().find(|counter| counter.numbers() == numbers);
        if let Some(known) = known {
            return Ok(known.clone());
        }
        let allowed = self.durable.min(self.witness);
        let counter = Arc::new(SequenceCounter::shared(self.slot.last(), allowed, numbers));
        self.counters.push(counter.clone());
        Ok(counter)
    }
}

/// An opening key in use.
struct Opening {
    words: SharedWindow,
    /// One for each size that was asked for.
    windows: Vec<Arc<ReplayWindow>>,
}

impl Opening {
    fn is_in_use(&self) -> bool {
        self.windows.iter().any(|window| Arc::strong_count(window) > 1)
    }
}

/// The state of all keys, locked: one process has it. Kept by the control thread, who gives the
/// counters and windows to SAs and calls [`KeyState::top_up`] all the time.
///
/// Dropped without [`KeyState::close`] it leaves what a killed process leaves. If counters or
/// windows are then still held by anyone, the lock is kept until the process ends.
pub struct KeyState {
    host: HostIdentity,
    run: RunRecord,
    ike_keys: IkeKeys,
    named_keys: NamedKeys,
    earlier_keys: EarlierKeys,
    put_keys: PutKeys,
    reservations: Reservations,
    edges: Edges,
    accounts: Accounts,
    clocks: Box<dyn Clocks>,
    /// By the boot clock.
    edges_tried_ns: u64,
    topped_up: Instant,
    lock: File,
    sealing: HashMap<u128, Sealing>,
    opening: HashMap<u128, Opening>,
    /// Records that say that a key is spent, and could not be written yet.
    unwritten: HashMap<u128, Reservation>,
    notices: Vec<Notice>,
}

impl KeyState {
    /// Takes the state that earlier processes of this machine left. Makes the directories that are
    /// missing.
    ///
    /// # Errors
    /// [`KeyStateError`]: the daemon must not start.
    pub fn open(run_directory: &Path, state_directory: &Path) -> Result<KeyState, KeyStateError> {
        KeyState::open_as(run_directory, state_directory, &HostIdentity::of_this_machine()?)
    }

    /// Opens the state as [`KeyState::open`] does, for a machine and boot that the caller names.
    ///
    /// # Errors
    /// [`KeyStateError`]: the daemon must not start.
    pub fn open_as(
        run_directory: &Path,
        state_directory: &Path,
        host: &HostIdentity,
    ) -> Result<KeyState, KeyStateError> {
        KeyState::open_with(run_directory, state_directory, host, Box::new(SystemClocks))
    }

    /// Opens the state as [`KeyState::open_as`] does, with clocks that the caller sets.
    ///
    /// # Errors
    /// [`KeyStateError`]: the daemon must not start.
    pub fn open_with(
        run_directory: &Path,
        state_directory: &Path,
        host: &HostIdentity,
        clocks: Box<dyn Clocks>,
    ) -> Result<KeyState, KeyStateError> {
        files::make_directory(run_directory, 0o750)?;
        files::make_directory(state_directory, 0o750)?;
        let directory = state_directory.join("sequence");
        files::make_directory(&directory, 0o700)?;
        let lock = take_lock(&directory.join("lock"))?;
        let mut notices = Vec::new();
        let reservations = Reservations::new(&directory);
        let mut edges = Edges::open(&directory.join("inbound"), &mut notices)?;
        let now = Now::of(&*clocks);
        let accounts = Accounts::open(&directory.join("limits"), host, now, &mut notices)?;
        let path = run_directory.join("keystate");
        let (found, earlier) = FoundRecord::open(&path, host, &mut notices)?;
        for (subject, used) in earlier {
            match subject.usage {
                KeyUse::Opens => edges.raise(subject.fingerprint, used),
                KeyUse::Seals => {
                    spend_if_gone_back(&reservations, subject.fingerprint, used, host)?
                }
            }
        }
        // If the disk is full, `top_up` tries again and tells.
        let _ = edges.write();
        let run = found.renew(host)?;
        let [earlier_count, put_count, named_count] = run.key_counts();
        let put_keys = PutKeys::open(&state_directory.join("put-keys"), put_count)?;
        let named_keys = NamedKeys::open(&run_directory.join("named-keys"), host, named_count)?;
        let earlier_count = earlier_count.load(Ordering::Relaxed);
        let path = run_directory.join("keys-used");
        let earlier_keys = EarlierKeys::read(&path, host, earlier_count);
        for subject in run.subjects().filter(|subject| subject.usage == KeyUse::Opens) {
            let edge = run.find(subject).map_or(0, |slot| slot.last().load(Ordering::Relaxed));
            edges.raise(subject.fingerprint, edge);
        }
        Ok(KeyState {
            host: *host,
            run,
            ike_keys: IkeKeys::new(now.boot_ns),
            named_keys,
            earlier_keys,
            put_keys,
            reservations,
            edges,
            accounts,
            clocks,
            edges_tried_ns: now.boot_ns,
            topped_up: Instant::now(),
            lock,
            sealing: HashMap::new(),
            opening: HashMap::new(),
            unwritten: HashMap::new(),
            notices,
        })
    }

    /// Returns the counter of a sealing key: the one in use, the one that an earlier process left,
    /// or a new one. `spi` appears in refusals. If the reservation cannot be written, the counter
    /// hands out nothing until [`KeyState::top_up`] succeeds.
    ///
    /// Cost: for a key that has no numbers left over from before, two files written and synced. Use
    /// [`KeyState::outbound_later`] for several keys.
    ///
    /// # Errors
    /// [`KeyRefused`]: the key must not seal.
    pub fn outbound(
        &mut self,
        fingerprint: Fingerprint,
        spi: Spi,
        numbers: SequenceNumbers,
        key_file: &KeyFileFacts,
    ) -> Result<Arc<SequenceCounter>, KeyRefused> {
        let counter = self.outbound_later(fingerprint, spi, numbers, key_file)?;
        // If it cannot be written now, it is tried again and told by `top_up`.
        let _ = self.reserve(&[number(fingerprint)]);
        Ok(counter)
    }

    /// Returns the counter of a sealing key as [`KeyState::outbound`] does, but writes no
    /// reservation: a counter without numbers hands out none until [`KeyState::top_up`], which the
    /// caller calls when it has taken all counters and accounts. One call for many keys syncs once
    /// for many files. After SIGKILL the reservations are there, and nothing is written.
    ///
    /// Cost: two small files read. Very many keys take long: those in use are topped up in between.
    ///
    /// # Errors
    /// [`KeyRefused`]: the key must not seal.
    pub fn outbound_later(
        &mut self,
        fingerprint: Fingerprint,
        spi: Spi,
        numbers: SequenceNumbers,
        key_file: &KeyFileFacts,
    ) -> Result<Arc<SequenceCounter>, KeyRefused> {
        if self.topped_up.elapsed() >= TOP_UP_INTERVAL {
            // Not the keys that were taken since: they are written together. A refusal is told by
            // the next call of the caller's own.
            let _ = self.reserve_running();
        }
        let key = number(fingerprint);
        let usage = KeyUse::Seals;
        self.start_sealing(key, spi, numbers, key_file).map_err(|reason| KeyRefused {
            fingerprint,
            usage,
            spi,
            reason,
        })
    }

    /// The replay window of an opening key: the one in use, the one that an earlier process left
    /// (also in another size), or one that begins behind everything known to have been received.
    ///
    /// # Errors
    /// [`KeyRefused`]: the key must not open.
    pub fn inbound(
        &mut self,
        fingerprint: Fingerprint,
        spi: Spi,
        size: u32,
        numbers: SequenceNumbers,
    ) -> Result<Arc<ReplayWindow>, KeyRefused> {
        let key = number(fingerprint);
        let usage = KeyUse::Opens;
        self.start_opening(key, spi, size, numbers).map_err(|reason| KeyRefused {
            fingerprint,
            usage,
            spi,
            reason,
        })
    }

    /// Returns the account of a key that [`KeyState::outbound`] or [`KeyState::inbound`] gave out
    /// for this use: the one in use, or one that goes on with the use that earlier processes left.
    /// No change of configuration, kill or reboot makes the use less. `None`: the key has no
    /// counter or window here.
    ///
    /// `hard` says how far ahead of use bytes are written down; the limits
    /// themselves stay with the SA ([`Allowance`](ipsec::Allowance)).
    pub fn account(
        &mut self,
        fingerprint: Fingerprint,
        usage: KeyUse,
        hard: &Limits,
    ) -> Option<Arc<Account>> {
        let key = number(fingerprint);
        let is_taken = match usage {
            KeyUse::Seals => self.sealing.contains_key(&key),
            KeyUse::Opens => self.opening.contains_key(&key),
        };
        let subject = Subject { fingerprint: key, usage };
        let slot = self.run.find(subject).filter(|_| is_taken)?;
        Some(self.accounts.account(subject, slot, hard, Now::of(&*self.clocks)))
    }

    /// Returns an error text if the run file was truncated: the caller ends at once with
    /// [`RUN_FILE_CUT`]. Cost: a system call.
    pub fn cut_short(&self) -> Option<String> {
        (!self.run.is_whole()).then(|| bus::text(self.run.path()))
    }

    /// Reserves more numbers for the keys that have used half of theirs, and from time to time
    /// writes down how far the windows have come. Called every [`TOP_UP_INTERVAL`] or so; cheap
    /// when there is nothing to do, else a few synced writes.
    ///
    /// # Errors
    /// [`TopUpError`], each time until writing succeeds: an event for the operator.
    pub fn top_up(&mut self) -> Result<(), TopUpError> {
        self.topped_up = Instant::now();
        let mut problems = Vec::new();
        problems.extend(self.accounts.top_up(Now::of(&*self.clocks)).err());
        problems.extend(self.reserve_due());
        let KeyState { reservations, unwritten, .. } = self;
        unwritten.retain(|key, record| match reservations.write(*key, record) {
            Ok(()) => false,
            Err(error) => {
                problems.push(error);
                true
            }
        });
        let since_edges = self.clocks.boot_ns().saturating_sub(self.edges_tried_ns);
        if u128::from(since_edges) >= EDGE_INTERVAL.as_nanos() {
            problems.extend(self.write_edges().err());
        }
        let failed = problems.len();
        problems.into_iter().next().map_or(Ok(()), |first| Err(TopUpError { failed, first }))
    }

    /// Returns the repairs since the last call.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Writes down how far the windows have come and gives the state back. The workers have ended.
    ///
    /// # Errors
    /// [`FileError`]: after a reboot the windows will begin a few seconds earlier.
    pub fn close(mut self) -> Result<(), FileError> {
        self.settle()
    }

    /// Writes down how far the windows have come: before the end.
    ///
    /// # Errors
    /// As [`KeyState::close`].
    pub fn settle(&mut self) -> Result<(), FileError> {
        let edges = self.write_edges();
        self.accounts.write(Ahead::Nothing, Now::of(&*self.clocks))?;
        edges
    }

    fn start_sealing(
        &mut self,
        key: u128,
        spi: Spi,
        numbers: SequenceNumbers,
        key_file: &KeyFileFacts,
    ) -> Result<Arc<SequenceCounter>, Refusal> {
        if let Some(sealing) = self.sealing.get_mut(&key) {
            let counter = sealing.counter(numbers)?;
            sealing.key_file.clone_from(&key_file.path);
            return Ok(counter);
        }
        let subject = Subject { fingerprint: key, usage: KeyUse::Seals };
        let facts = self.facts(subject, key_file)?;
        let start = evaluate::evaluate(&facts).map_err(|refused| self.refuse(key, refused))?;
        check_width(start.last, numbers)?;
        let slot = self.place(subject, spi, |slot| {
            slot.last().store(start.last, Ordering::Relaxed);
            slot.reserved().store(start.durable, Ordering::Relaxed);
        })?;
        let Start { durable, witness, .. } = start;
        let key_file = key_file.path.clone();
        let mut sealing = Sealing { counters: Vec::new(), slot, key_file, durable, witness };
        let counter = sealing.counter(numbers)?;
        self.sealing.insert(key, sealing);
        Ok(counter)
    }

    /// All that is known of a sealing key.
    fn facts(&self, subject: Subject, key_file: &KeyFileFacts) -> Result<Facts, FileError> {
        let key = subject.fingerprint;
        let words = |slot: Slot| {
            let [last, reserved] = [slot.last(), slot.reserved()];
            (last.load(Ordering::Relaxed), reserved.load(Ordering::Relaxed))
        };
        let opens = Subject { fingerprint: key, usage: KeyUse::Opens };
        let durable = match self.unwritten.get(&key) {
            Some(record) => Found::Good(*record),
            None => self.reservations.read(key)?,
        };
        Ok(Facts {
            run: self.run.find(subject).map(words),
            durable,
            witness: witness::read(&key_file.path, key)?,
            put_before: self.put_before(key),
            opened_here: self.run.find(opens).is_some() || self.edges.of(key).is_some(),
            machine: self.host.machine,
            file_modified: key_file.modified,
            now: self.clocks.wall(),
        })
    }

    /// Remembers a refusal that has to be remembered.
    fn refuse(&mut self, key: u128, refused: Refused) -> Refusal {
        if let Some(reserved) = refused.spends {
            let record =
                Reservation { machine: self.host.machine, reserved, standing: KeyStatus::Spent };
            if self.reservations.write(key, &record).is_err() {
                self.unwritten.insert(key, record);
            }
        }
        refused.why
    }

    fn start_opening(
        &mut self,
        key: u128,
        spi: Spi,
        size: u32,
        numbers: SequenceNumbers,
    ) -> Result<Arc<ReplayWindow>, Refusal> {
        // Nothing is taken for a window that cannot be.
        ReplayWindow::new(size, numbers)?;
        let seals = Subject { fingerprint: key, usage: KeyUse::Seals };
        let opens = Subject { fingerprint: key, usage: KeyUse::Opens };
        // A key that opened in this boot has no reservation: it would not have been taken to seal.
        let sealed_here = self.run.find(seals).is_some()
            || self.put_before(key) == PutBefore::Yes
            || self.unwritten.contains_key(&key)
            || (self.run.find(opens).is_none() && self.reservations.read(key)? != Found::Missing);
        if sealed_here {
            return Err(Refusal::OtherDirection);
        }
        if !self.opening.contains_key(&key) {
            let edge = self.edges.of(key).unwrap_or(0);
            let slot = self.place(opens, spi, |slot| slot.window().begin_after(edge))?;
            let opening = Opening { words: slot.window(), windows: Vec::new() };
            self.opening.insert(key, opening);
        }
        let opening = self.opening.get_mut(&key).expect("just made");
        check_width(opening.words.right_edge(), numbers)?;
        let same =
            |window: &&Arc<ReplayWindow>| window.size() == size && window.numbers() == numbers;
        if let Some(window) = opening.windows.iter().find(same) {
            return Ok(window.clone());
        }
        let window = Arc::new(ReplayWindow::shared(opening.words.clone(), size, numbers)?);
        opening.windows.push(window.clone());
        Ok(window)
    }

    /// The slot of a key, or a new one.
    fn place(&mut self, subject: Subject, spi: Spi, begin: impl Fn(Slot)) -> Result<Slot, Refusal> {
        if let Some(slot) = self.run.find(subject) {
            return Ok(slot);
        }
        if let Some(slot) = self.run.take(subject, spi.value(), &begin)? {
            return Ok(slot);
        }
        self.make_room()?;
        let slot = self.run.take(subject, spi.value(), &begin)?;
        slot.ok_or(Refusal::NoPlace { slots: MAX_SAS })
    }

    /// Frees the slots of all keys that are not in use and whose durable records say as much as the
    /// slots.
    fn make_room(&mut self) -> Result<(), FileError> {
        let accounts = &self.accounts;
        let counts = |key, usage| accounts.is_in_use(Subject { fingerprint: key, usage });
        self.sealing.retain(|key, sealing| sealing.is_in_use() || counts(*key, KeyUse::Seals));
        self.opening.retain(|key, opening| opening.is_in_use() || counts(*key, KeyUse::Opens));
        let now = Now::of(&*self.clocks);
        let mut idle = Vec::new();
        for subject in self.run.subjects() {
            let key = subject.fingerprint;
            let Some(slot) = self.run.find(subject) else { continue };
            let last = slot.last().load(Ordering::Relaxed);
            let is_durable = match subject.usage {
                KeyUse::Seals if self.sealing.contains_key(&key) => false,
                KeyUse::Opens if self.opening.contains_key(&key) => false,
                KeyUse::Seals => match self.reservations.read(key)? {
                    Found::Good(record) => record.reserved >= last,
                    Found::Missing | Found::Damaged(_) => false,
                },
                KeyUse::Opens => {
                    self.edges.raise(key, last);
                    true
                }
            };
            if is_durable {
                self.accounts.note(subject, slot, now);
                idle.push(subject);
            }
        }
        self.edges.write()?;
        self.accounts.write(Ahead::Steps, now)?;
        for subject in idle {
            // SAFETY: `sealing` and `opening` have all keys that are in use, and not this one; its
            // durable records were compared or written above. Threat: as `give_up` says.
            unsafe { self.run.give_up(subject) };
        }
        Ok(())
    }

    fn write_edges(&mut self) -> Result<(), FileError> {
        self.edges_tried_ns = self.clocks.boot_ns();
        for (key, opening) in &self.opening {
            self.edges.raise(*key, opening.words.right_edge());
        }
        self.edges.write()
    }

    fn is_in_use(&self) -> bool {
        self.sealing.values().any(Sealing::is_in_use)
            || self.opening.values().any(Opening::is_in_use)
            || self.accounts.any_in_use()
    }
}

impl Drop for KeyState {
    fn drop(&mut self) {
        if self.is_in_use() {
            // A second handle on the same open file keeps its lock.
            std::mem::forget(self.lock.try_clone());
        } else {
            // SAFETY: the counters, windows and accounts over the words are all in `sealing`,
            // `opening` and `accounts`, and no one else holds one. Threat: as `give_lock_back`
            // says.
            unsafe { self.run.give_lock_back() };
        }
    }
}

/// A fingerprint as a number.
fn number(fingerprint: Fingerprint) -> u128 {
    u128::from_be_bytes(*fingerprint.as_bytes())
}

/// Refuses numbers that are too short for what was used.
fn check_width(used: u64, numbers: SequenceNumbers) -> Result<(), Refusal> {
    let last = numbers.limit();
    if used > last { Err(Refusal::BeyondNumbers { used, last }) } else { Ok(()) }
}

/// Spends a key if the record of an earlier boot says more of it than the durable one.
fn spend_if_gone_back(
    reservations: &Reservations,
    key: u128,
    used: u64,
    host: &HostIdentity,
) -> Result<(), FileError> {
    let recorded = match reservations.read(key)? {
        Found::Damaged(_) => return Ok(()),
        Found::Missing => 0,
        Found::Good(record) => record.reserved,
    };
    if used <= recorded {
        return Ok(());
    }
    let machine = host.machine;
    let record = Reservation { machine, reserved: used, standing: KeyStatus::Spent };
    reservations.write(key, &record)
}

/// Takes the lock of the durable state, and writes down who has it.
fn take_lock(path: &Path) -> Result<File, KeyStateError> {
    let mut lock = files::open_or_create(path)?;
    if files::lock(&lock, path)? == LockHolder::Theirs {
        let text = files::read(path).ok().flatten().unwrap_or_default();
        let pid = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok());
        return Err(KeyStateError::InUse { path: path.to_owned(), pid });
    }
    // Only for whom it concerns: a full disk is no reason not to start.
    let _ = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
    Ok(lock)
}
