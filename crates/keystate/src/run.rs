//! The run record: a file in the run directory, mapped into the process, that holds the live
//! words of every SA: sequence counters, replay windows and use, without any key.
//!
//! ```text
//! header     4096 bytes: magic, slots, boot, machine, check; the pid of who has it
//! heads       128 bytes an SA: state, fingerprint, SPI, check, reserved; last or right edge, use
//! rings      2048 bytes an opening SA
//! ```
//! There are [`SLOTS`] heads for opening SAs, as many for sealing SAs, and as many rings. The file
//! has its full length from the start and is sparse: blocks are allocated when an SA takes them, so
//! an idle record costs a page, and no word ever moves. `layouts.rs` reads earlier layouts.
//!
//! The kernel keeps the words whatever becomes of the process, so SIGKILL loses nothing: a word is
//! raised before what it counts is used. A slot is in use from the one store of its state on. The
//! record of another boot says only what was used at least: after a power cut a disk may hold an
//! older one.
//!
//! A record is never emptied or made shorter. A new one is written under another name, locked, and
//! takes the name of the old one, so that a process that is killed leaves either of them.
//!
//! Not here: what the words mean for a key that starts (`evaluate.rs`), and what is durable.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use ipsec::SharedWindow;
use ipsec::lifetime::AccountWords;

use crate::bus;
use crate::files::{self, FileError, LockHolder};
use crate::layouts::{self, KeyCountWords, Layout, OwnedSlot};
use crate::words::{
    FILE_WORDS, HEAD_WORDS, HEADER_WORDS, RING_WORDS, SLOTS, STATE_OPENS, STATE_SEALS, Subject,
    bytes, head_at, header, ring_at, slot, slot_check, table,
};
use crate::{HostIdentity, KeyStateError, KeyUse, Notice};

#[cfg(test)]
mod tests;

/// Files that may take the name of the record while it is being opened.
const OPEN_ATTEMPTS: u32 = 16;

/// The words of one SA.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    head: &'static [AtomicU64; HEAD_WORDS],
    /// Of an opening SA.
    ring: Option<&'static [AtomicU64; RING_WORDS]>,
}

impl Slot {
    /// The last number handed out, or the right edge.
    pub(crate) fn last(self) -> &'static AtomicU64 {
        &self.head[slot::LAST]
    }

    /// The highest number that a durable record was seen to reserve.
    pub(crate) fn reserved(self) -> &'static AtomicU64 {
        &self.head[slot::RESERVED]
    }

    /// The window over an opening SA's words.
    ///
    /// # Panics
    /// If the SA seals.
    pub(crate) fn window(self) -> SharedWindow {
        SharedWindow::new(self.last(), self.ring.expect("an opening SA has a ring"))
    }

    /// 1 once the words of the account say what the SA has used.
    pub(crate) fn is_counted(self) -> &'static AtomicU64 {
        &self.head[slot::COUNTED]
    }

    /// The words of the account.
    pub(crate) fn account(self) -> AccountWords {
        AccountWords {
            packets: &self.head[slot::PACKETS],
            bytes: &self.head[slot::BYTES],
            state: &self.head[slot::EXPIRY],
            first_use_ns: &self.head[slot::FIRST_USE],
            last_use_ns: &self.head[slot::LAST_USE],
        }
    }

    /// Sets the words as an earlier layout had them.
    fn copy(self, from: &OwnedSlot) {
        self.last().store(from.last, Ordering::Relaxed);
        self.reserved().store(from.reserved, Ordering::Relaxed);
        for (word, value) in self.ring.into_iter().flatten().zip(&from.ring) {
            word.store(*value, Ordering::Relaxed);
        }
    }

    fn store(self, place: usize, value: u64) {
        self.head[place].store(value, Ordering::Relaxed);
    }
}

/// The places of one direction that no SA has.
#[derive(Default)]
struct Vacant {
    /// Behind the highest that an SA ever had.
    next: u32,
    given_back: Vec<u32>,
}

impl Vacant {
    /// All but those.
    fn without(taken: &HashSet<u32>) -> Vacant {
        let next = taken.iter().max().map_or(0, |highest| highest + 1);
        let given_back = (0..next).rev().filter(|number| !taken.contains(number)).collect();
        Vacant { next, given_back }
    }

    fn first(&self) -> Option<u32> {
        let next = (self.next < SLOTS).then_some(self.next);
        self.given_back.last().copied().or(next)
    }

    fn take_first(&mut self) {
        if self.given_back.pop().is_none() {
            self.next += 1;
        }
    }
}

/// The record of this boot, locked and mapped.
pub(crate) struct RunRecord {
    words: &'static [AtomicU64],
    file: File,
    path: PathBuf,
    slots: HashMap<Subject, u32>,
    /// Of opening and of sealing SAs.
    vacant: [Vacant; 2],
    after: Lock,
}

/// The highest numbers that the record of an earlier boot knows as used.
pub(crate) type Earlier = Vec<(Subject, u64)>;

/// The record as found, locked.
pub(crate) struct FoundRecord {
    file: File,
    path: PathBuf,
    content: FoundContent,
}

enum FoundContent {
    /// No record of this boot.
    None,
    /// Goes on as it is.
    Current(Vec<OwnedSlot>),
    /// Of this boot, in an earlier layout that says everything.
    Copied { slots: Vec<OwnedSlot>, key_counts: KeyCountWords },
}

impl FoundRecord {
    /// Opens the record, or makes it. Sets an unreadable one aside and notes that. Changes nothing
    /// in it: [`FoundRecord::renew`] replaces one of another boot, machine or layout, which until
    /// then says which numbers were used.
    pub(crate) fn open(
        path: &Path,
        host: &HostIdentity,
        notices: &mut Vec<Notice>,
    ) -> Result<(FoundRecord, Earlier), KeyStateError> {
        let mut file = open_locked(path)?;
        let found = match layouts::read(&file, path)? {
            Layout::Damaged => {
                notices.push(Notice::SetAside { path: files::set_aside(path)? });
                file = open_locked(path)?;
                None
            }
            Layout::New => None,
            Layout::Whole(found) => Some(found),
        };
        let (content, earlier) = match found {
            Some(found) if found.host == *host && found.version == layouts::VERSION => {
                (FoundContent::Current(found.slots), Earlier::new())
            }
            Some(found) if found.host == *host && found.says_everything() => {
                let (slots, key_counts) = (found.slots, found.key_counts);
                (FoundContent::Copied { slots, key_counts }, Earlier::new())
            }
            Some(found) => {
                let used = |slot: &OwnedSlot| (slot.subject, slot.last.max(slot.reserved));
                (FoundContent::None, found.slots.iter().map(used).collect())
            }
            None => (FoundContent::None, Earlier::new()),
        };
        Ok((FoundRecord { file, path: path.to_owned(), content }, earlier))
    }

    /// Takes the record for this process. Replaces it first if it does not go on as it is.
    pub(crate) fn renew(self, host: &HostIdentity) -> Result<RunRecord, FileError> {
        let FoundRecord { file, path, content } = self;
        let mut record = match content {
            FoundContent::Current(slots) => {
                files::allocate(&file, &path, 0, bytes(HEADER_WORDS))?;
                RunRecord::over(file, path, &slots)?
            }
            FoundContent::None => make_anew(path, host, &[], KeyCountWords::default())?,
            FoundContent::Copied { slots, key_counts } => {
                make_anew(path, host, &slots, key_counts)?
            }
        };
        record.words[header::PID].store(std::process::id().into(), Ordering::Relaxed);
        record.after = Lock::Kept;
        Ok(record)
    }
}

/// Makes a record with these slots, which takes the place of the one whose lock the caller holds.
fn make_anew(
    path: PathBuf,
    host: &HostIdentity,
    slots: &[OwnedSlot],
    key_counts: KeyCountWords,
) -> Result<RunRecord, FileError> {
    let new = files::beside(&path, ".", ".new");
    let made = (|| {
        files::remove(&new)?;
        let file = files::open_or_create(&new)?;
        // The name is ours alone: who wants to use it needs the lock of the record first.
        if files::lock(&file, &new)? == LockHolder::Theirs {
            return Err(FileError::System { path: new.clone(), code: libc::EWOULDBLOCK });
        }
        file.set_len(bytes(FILE_WORDS)).map_err(|error| FileError::of(&new, &error))?;
        files::allocate(&file, &new, 0, bytes(HEADER_WORDS))?;
        let mut record = RunRecord::over(file, path.clone(), &[])?;
        write_header(record.words, host);
        for (word, count) in record.words[header::KEY_COUNTS..].iter().zip(key_counts) {
            word.store(count, Ordering::Relaxed);
        }
        for from in slots {
            // An earlier layout had fewer places than this one.
            record.take(from.subject, from.spi as u32, |slot| slot.copy(from))?;
        }
        std::fs::rename(&new, &path).map_err(|error| FileError::of(&path, &error))?;
        Ok(record)
    })();
    if made.is_err() {
        let _ = files::remove(&new);
    }
    made
}

impl RunRecord {
    /// Maps a file that is locked, has its full length, and has these slots.
    fn over(file: File, path: PathBuf, slots: &[OwnedSlot]) -> Result<RunRecord, FileError> {
        let length = file.metadata().map_err(|error| FileError::of(&path, &error))?.len();
        if length < bytes(FILE_WORDS) {
            return Err(FileError::System { path, code: libc::EIO });
        }
        // SAFETY: locked and long enough, see above. Threat: as `map` says.
        let words = unsafe { map(&file, &path) }.map_err(|error| FileError::of(&path, &error))?;
        let vacant = [KeyUse::Opens, KeyUse::Seals].map(|usage| {
            let of_use = slots.iter().filter(|slot| slot.subject.usage == usage);
            Vacant::without(&of_use.map(|slot| slot.number).collect())
        });
        let slots = slots.iter().map(|slot| (slot.subject, slot.number)).collect();
        Ok(RunRecord { words, file, path, slots, vacant, after: Lock::GivenBack })
    }

    /// The slot of a key in a use.
    pub(crate) fn find(&self, subject: Subject) -> Option<Slot> {
        self.slots.get(&subject).map(|number| self.slot(subject.usage, *number))
    }

    /// All keys that have a slot.
    pub(crate) fn subjects(&self) -> impl Iterator<Item = Subject> + '_ {
        self.slots.keys().copied()
    }

    /// Assigns a slot to a key; `begin` sets its words. Later processes see the slot only when it
    /// is complete.
    ///
    /// `Ok(None)`: all slots of this use are taken.
    pub(crate) fn take(
        &mut self,
        subject: Subject,
        spi: u32,
        begin: impl FnOnce(Slot),
    ) -> Result<Option<Slot>, FileError> {
        let Subject { fingerprint, usage } = subject;
        let Some(number) = self.vacant[table(usage)].first() else { return Ok(None) };
        let allocate = |at, words| files::allocate(&self.file, &self.path, bytes(at), bytes(words));
        allocate(head_at(usage, number), HEAD_WORDS)?;
        if usage == KeyUse::Opens {
            allocate(ring_at(number), RING_WORDS)?;
        }
        self.vacant[table(usage)].take_first();
        let slot = self.slot(usage, number);
        slot.store(slot::STATE, 0);
        compiler_fence(Ordering::SeqCst);
        let ring = slot.ring.into_iter().flatten();
        slot.head[1..].iter().chain(ring).for_each(|word| word.store(0, Ordering::Relaxed));
        store_wide(slot.head, slot::FINGERPRINT, fingerprint);
        slot.store(slot::SPI, spi.into());
        slot.store(slot::CHECK, slot_check(usage, fingerprint, spi.into()));
        begin(slot);
        compiler_fence(Ordering::SeqCst);
        slot.store(slot::STATE, state_of(usage));
        self.slots.insert(subject, number);
        Ok(Some(slot))
    }

    /// Takes a key's slot away; the next key without one gets it.
    ///
    /// # Safety
    /// Nobody counts in its words any more, and a durable record says as much as they do. Else two
    /// writers share the words, and numbers that one of them used are used again.
    pub(crate) unsafe fn give_up(&mut self, subject: Subject) {
        if let Some(number) = self.slots.remove(&subject) {
            self.slot(subject.usage, number).store(slot::STATE, 0);
            self.vacant[table(subject.usage)].given_back.push(number);
        }
    }

    fn slot(&self, usage: KeyUse, number: u32) -> Slot {
        let words = self.words;
        let head = words[head_at(usage, number)..].first_chunk();
        let ring = words[ring_at(number)..].first_chunk().filter(|_| usage == KeyUse::Opens);
        Slot { head: head.expect("the mapping holds every head"), ring }
    }

    /// Returns the numbers of keys that this boot knows of in `keys-used`, `put-keys` and
    /// `named-keys`.
    pub(crate) fn key_counts(&self) -> &'static [AtomicU64; header::KEY_COUNT_WORDS] {
        let counts = self.words[header::KEY_COUNTS..].first_chunk();
        counts.expect("the header has all of its words")
    }

    /// Returns whether the file has its full length.
    pub(crate) fn is_whole(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.len() >= bytes(FILE_WORDS))
    }

    /// Returns the path of the record.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Releases the lock when the record is dropped; else the process keeps it until it ends.
    ///
    /// # Safety
    /// Nobody counts in the words any more. Else the next process counts in the same words.
    pub(crate) unsafe fn give_lock_back(&mut self) {
        self.after = Lock::GivenBack;
    }
}

/// The fate of the lock when the record is dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lock {
    GivenBack,
    Kept,
}

impl Drop for RunRecord {
    fn drop(&mut self) {
        // The mapping, which is never unmapped, would keep it.
        if self.after == Lock::GivenBack {
            // SAFETY: no slot was given out yet (`renew`), or `give_lock_back` has the promise
            // that nobody counts any more. Threat: as `give_lock_back` says.
            unsafe { files::unlock(&self.file) };
        }
    }
}

/// Opens and locks the file that has the name of the record.
fn open_locked(path: &Path) -> Result<File, KeyStateError> {
    for _ in 0..OPEN_ATTEMPTS {
        let file = files::open_or_create(path)?;
        if files::lock(&file, path)? == LockHolder::Theirs {
            return Err(KeyStateError::InUse { path: path.to_owned(), pid: holder(path) });
        }
        // Another process may have put a new record in its place before it gave the lock back.
        let ours = file.metadata().map_err(|error| FileError::of(path, &error))?;
        match path.symlink_metadata() {
            Ok(named) if (named.dev(), named.ino()) == (ours.dev(), ours.ino()) => return Ok(file),
            _ => {}
        }
    }
    Err(KeyStateError::InUse { path: path.to_owned(), pid: holder(path) })
}

/// Maps the words of the file for as long as the process lives.
///
/// # Safety
/// The file is locked by this process and has all its words. A page behind its end is a SIGBUS, and
/// another process that has the lock may count in the same words.
unsafe fn map(file: &File, path: &Path) -> std::io::Result<&'static [AtomicU64]> {
    let mapping = memmap2::MmapOptions::new().len(FILE_WORDS * 8).map_raw(file)?;
    let mapping: &'static memmap2::MmapRaw = Box::leak(Box::new(mapping));
    bus::watch(mapping.as_ptr() as usize, FILE_WORDS * 8, path)?;
    // SAFETY: the mapping is never unmapped (it is leaked), page-aligned, writable and FILE_WORDS
    // words long. It is only ever accessed as these atomic words: whoever else maps the file
    // changes them as values, not under a reference. No process makes a record shorter.
    // Threat: somebody else makes it shorter. Words that are not there end the process (`bus.rs`);
    // words of the last page read as 0, which `SequenceCounter` takes for moved back.
    let words = unsafe { std::slice::from_raw_parts(mapping.as_mut_ptr().cast(), FILE_WORDS) };
    Ok(words)
}

/// The pid that whoever holds the record wrote into it.
fn holder(path: &Path) -> Option<u32> {
    let file = File::open(path).ok()?;
    let mut pid = [0; 8];
    file.read_exact_at(&mut pid, bytes(header::PID)).ok()?;
    u32::try_from(u64::from_ne_bytes(pid)).ok().filter(|pid| *pid != 0)
}

fn write_header(words: &[AtomicU64], host: &HostIdentity) {
    let header = layouts::header(layouts::VERSION, SLOTS, host);
    let (check, rest) = header.split_last().expect("a header ends with its check");
    for (word, value) in words.iter().zip(rest) {
        word.store(*value, Ordering::Relaxed);
    }
    compiler_fence(Ordering::SeqCst);
    words[header::CHECK].store(*check, Ordering::Relaxed);
}

/// The word that marks a slot of this use.
fn state_of(usage: KeyUse) -> u64 {
    match usage {
        KeyUse::Seals => STATE_SEALS,
        KeyUse::Opens => STATE_OPENS,
    }
}

fn store_wide(words: &[AtomicU64], place: usize, value: u128) {
    words[place].store((value >> 64) as u64, Ordering::Relaxed);
    words[place + 1].store(value as u64, Ordering::Relaxed);
}
