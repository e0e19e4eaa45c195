//! The run record: a file in the run directory, mapped into the process, that holds the live
//! words of every SA: sequence counters and replay windows, without any key.
//!
//! ```text
//! header   4096 bytes: magic, slots, boot, machine, check; the pid of who has it
//! slot     2112 bytes: state, fingerprint, SPI, check; reserved, last or right edge, ring
//! ```
//! The kernel keeps the words whatever becomes of the process, so SIGKILL loses nothing: a word is
//! raised before what it counts is used. A slot is in use from the one store of its state on. The
//! record of another boot says only what was used at least: after a power cut a disk may hold an
//! older one. So does one of the version before this, whose rings meant something else.
//!
//! Not here: what the words mean for a key that starts ([`crate::judge`]), and what is durable.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use ipsec::SharedWindow;

use crate::bus;
use crate::files::{self, FileError, LockHolder};
use crate::record::digest;
use crate::{HostIdentity, KeyStateError, KeyUse, Notice};

/// SAs that have a place.
pub(crate) const SLOTS: u32 = 8192;
const HEADER_WORDS: usize = 512;
const RING: usize = SharedWindow::RING_WORDS;
const SLOT_WORDS: usize = 8 + RING;
const FILE_WORDS: usize = HEADER_WORDS + SLOTS as usize * SLOT_WORDS;
const WORD: u64 = size_of::<u64>() as u64;
// A slot begins on a cache line of its own, so that workers of different SAs share none.
const _: () = assert!((SLOT_WORDS * 8).is_multiple_of(64) && HEADER_WORDS.is_multiple_of(8));

/// "lockgate", and the version of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"lockgate");
const VERSION: u64 = 2;
/// The version before it, which had shorter rings, and how long its slots were.
const EARLIER_VERSION: u64 = 1;
const EARLIER_SLOT_WORDS: usize = 8 + 128;

/// Places in the header.
mod header {
    pub(super) const MAGIC: usize = 0;
    pub(super) const VERSION: usize = 1;
    pub(super) const SLOTS: usize = 2;
    pub(super) const BOOT: usize = 3;
    pub(super) const MACHINE: usize = 5;
    pub(super) const CHECK: usize = 7;
    pub(super) const PID: usize = 8;
    /// Number of keys in the file of those put over the API. Not under the check.
    pub(super) const KEYS_ONCE: usize = 9;
}

/// Places in a slot.
mod slot {
    pub(super) const STATE: usize = 0;
    pub(super) const FINGERPRINT: usize = 1;
    pub(super) const SPI: usize = 3;
    pub(super) const CHECK: usize = 4;
    pub(super) const RESERVED: usize = 5;
    pub(super) const LAST: usize = 6;
    pub(super) const RING: usize = 8;
}

const STATE_SEALS: u64 = u64::from_be_bytes(*b"seals   ");
const STATE_OPENS: u64 = u64::from_be_bytes(*b"opens   ");

/// A key in one of its two uses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Subject {
    pub(crate) fingerprint: u128,
    pub(crate) usage: KeyUse,
}

/// The words of one SA.
#[derive(Clone, Copy)]
pub(crate) struct Slot(&'static [AtomicU64; SLOT_WORDS]);

impl Slot {
    /// The last number handed out, or the right edge.
    pub(crate) fn last(self) -> &'static AtomicU64 {
        &self.0[slot::LAST]
    }

    /// The highest number that a durable record was seen to reserve.
    pub(crate) fn reserved(self) -> &'static AtomicU64 {
        &self.0[slot::RESERVED]
    }

    /// The window over an inbound SA's words.
    pub(crate) fn window(self) -> SharedWindow {
        let (_, ring) = self.0.split_at(slot::RING);
        let ring = ring.first_chunk().expect("a slot ends with its ring");
        SharedWindow::new(self.last(), ring)
    }

    fn store(self, place: usize, value: u64) {
        self.0[place].store(value, Ordering::Relaxed);
    }
}

/// Returns the owner of a slot, by a copy of its words. `None`: nobody, or the words do not fit
/// each other.
fn subject_of(words: &[u64]) -> Option<Subject> {
    let usage = match words[slot::STATE] {
        STATE_SEALS => KeyUse::Seals,
        STATE_OPENS => KeyUse::Opens,
        _ => return None,
    };
    let wide = |place: usize| u128::from(words[place]) << 64 | u128::from(words[place + 1]);
    let fingerprint = wide(slot::FINGERPRINT);
    let check = slot_check(usage, fingerprint, words[slot::SPI]);
    (check == words[slot::CHECK]).then_some(Subject { fingerprint, usage })
}

/// The record of this boot, locked and mapped.
pub(crate) struct RunRecord {
    words: &'static [AtomicU64],
    file: File,
    path: PathBuf,
    slots: HashMap<Subject, u32>,
    free: Vec<u32>,
    after: Lock,
}

/// The highest numbers that the record of an earlier boot knows as used.
pub(crate) type Earlier = Vec<(Subject, u64)>;

/// The record as found. It gives out no slot, so that no counter uses a word while
/// [`FoundRecord::renew`] makes the file shorter.
pub(crate) struct FoundRecord(RunRecord);

impl FoundRecord {
    /// Opens the record, or makes it. Sets an unreadable one aside and notes that. A record of
    /// another boot, machine or version is emptied by [`FoundRecord::renew`]; until then it only
    /// says which numbers were used.
    pub(crate) fn open(
        path: &Path,
        host: &HostIdentity,
        notices: &mut Vec<Notice>,
    ) -> Result<(FoundRecord, Earlier), KeyStateError> {
        let (mut file, mut words, length) = open_locked(path)?;
        let is_damaged = |words: &[AtomicU64]| {
            slot_words(words).is_none() && words.iter().take(HEADER_WORDS).any(|w| load(w) != 0)
        };
        if length == Length::Cut || is_damaged(words) {
            let aside = files::set_aside(path)?;
            notices.push(Notice::SetAside { path: aside });
            (file, words, _) = open_locked(path)?;
        }
        let mut record = RunRecord {
            words,
            file,
            path: path.to_owned(),
            slots: HashMap::new(),
            free: (0..SLOTS).rev().collect(),
            after: Lock::GivenBack,
        };
        let mut earlier = Earlier::new();
        if let Some(slot_words) = slot_words(words) {
            let taken = read_slots(path, slot_words)?;
            if is_of(words, host) {
                record.slots = taken.iter().map(|slot| (slot.subject, slot.number)).collect();
                let numbers: HashSet<u32> = record.slots.values().copied().collect();
                record.free.retain(|number| !numbers.contains(number));
            } else {
                earlier = taken.iter().map(|slot| (slot.subject, slot.used)).collect();
            }
        }
        Ok((FoundRecord(record), earlier))
    }

    /// Takes the record for this process. Empties it first if it is new or from an earlier boot.
    pub(crate) fn renew(self, host: &HostIdentity) -> Result<RunRecord, FileError> {
        let FoundRecord(mut record) = self;
        let RunRecord { words, file, path, .. } = &record;
        if !(slot_words(words).is_some() && is_of(words, host)) {
            let of = |error: std::io::Error| FileError::of(path, &error);
            file.set_len(0).and_then(|()| file.set_len(bytes(FILE_WORDS))).map_err(of)?;
            files::allocate(file, path, 0, bytes(HEADER_WORDS))?;
            write_header(words, host);
            record.slots.clear();
            record.free = (0..SLOTS).rev().collect();
        }
        record.words[header::PID].store(std::process::id().into(), Ordering::Relaxed);
        record.after = Lock::Kept;
        Ok(record)
    }
}

impl RunRecord {
    /// The slot of a key in a use.
    pub(crate) fn find(&self, subject: Subject) -> Option<Slot> {
        self.slots.get(&subject).map(|number| self.slot(*number))
    }

    /// All keys that have a slot.
    pub(crate) fn subjects(&self) -> impl Iterator<Item = Subject> + '_ {
        self.slots.keys().copied()
    }

    /// Assigns a slot to a key; `begin` sets its words. Later processes see the slot only when it
    /// is complete.
    ///
    /// `Ok(None)`: all slots are taken.
    pub(crate) fn take(
        &mut self,
        subject: Subject,
        spi: u32,
        begin: impl FnOnce(Slot),
    ) -> Result<Option<Slot>, FileError> {
        let Some(number) = self.free.last().copied() else { return Ok(None) };
        let at = bytes(HEADER_WORDS + number as usize * SLOT_WORDS);
        files::allocate(&self.file, &self.path, at, bytes(SLOT_WORDS))?;
        self.free.pop();
        let slot = self.slot(number);
        slot.store(slot::STATE, 0);
        compiler_fence(Ordering::SeqCst);
        slot.0[1..].iter().for_each(|word| word.store(0, Ordering::Relaxed));
        store_wide(slot.0, slot::FINGERPRINT, subject.fingerprint);
        slot.store(slot::SPI, spi.into());
        slot.store(slot::CHECK, slot_check(subject.usage, subject.fingerprint, spi.into()));
        begin(slot);
        compiler_fence(Ordering::SeqCst);
        slot.store(
            slot::STATE,
            match subject.usage {
                KeyUse::Seals => STATE_SEALS,
                KeyUse::Opens => STATE_OPENS,
            },
        );
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
            self.slot(number).store(slot::STATE, 0);
            self.free.push(number);
        }
    }

    fn slot(&self, number: u32) -> Slot {
        let words = &self.words[HEADER_WORDS + number as usize * SLOT_WORDS..];
        Slot(words.first_chunk().expect("the mapping holds every slot"))
    }

    /// The number of keys that were put over the API in this boot.
    pub(crate) fn keys_once(&self) -> &'static AtomicU64 {
        &self.words[header::KEYS_ONCE]
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
    /// Nobody counts in the words any more. Else the next process empties the file under them,
    /// which is a SIGBUS here, or both count in the same words.
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
            // SAFETY: no slot was given out yet (`FoundRecord`), or `give_lock_back` has the
            // promise that nobody counts any more. Threat: as `give_lock_back` says.
            unsafe { files::unlock(&self.file) };
        }
    }
}

/// A slot that a key has.
struct OwnedSlot {
    number: u32,
    subject: Subject,
    /// The highest number that it says was used or may have been.
    used: u64,
}

/// Reads who is where. Not by the mapping: looking at a hole of it would fill the hole.
fn read_slots(path: &Path, slot_words: usize) -> Result<Vec<OwnedSlot>, FileError> {
    let content = files::read(path)?.unwrap_or_default();
    let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
    let words: Vec<u64> = content.chunks_exact(8).map(word).collect();
    let (mut seen, mut taken) = (HashSet::new(), Vec::new());
    for number in (0..SLOTS).rev() {
        let at = HEADER_WORDS + number as usize * slot_words;
        let Some(words) = words.get(at..at + slot_words) else { continue };
        if let Some(subject) = subject_of(words).filter(|subject| seen.insert(*subject)) {
            taken.push(OwnedSlot {
                number,
                subject,
                used: words[slot::LAST].max(words[slot::RESERVED]),
            });
        }
    }
    Ok(taken)
}

/// Opens, locks and maps the file.
fn open_locked(path: &Path) -> Result<(File, &'static [AtomicU64], Length), KeyStateError> {
    let file = files::open_or_create(path)?;
    if files::lock(&file, path)? == LockHolder::Theirs {
        return Err(KeyStateError::InUse { path: path.to_owned(), pid: holder(path) });
    }
    let of = |error: std::io::Error| FileError::of(path, &error);
    let length = match file.metadata().map_err(of)?.len() {
        0 => Length::New,
        length if length < bytes(FILE_WORDS) && !is_earlier(&file, length) => Length::Cut,
        _ => Length::Whole,
    };
    if length == Length::Cut {
        // It is set aside as it is: half a slot says less than was used.
        return Ok((file, &[], length));
    }
    if file.metadata().map_err(of)?.len() < bytes(FILE_WORDS) {
        file.set_len(bytes(FILE_WORDS)).map_err(of)?;
    }
    files::allocate(&file, path, 0, bytes(HEADER_WORDS))?;
    // SAFETY: locked and long enough, see above. Threat: as `map` says.
    let words = unsafe { map(&file, path) }.map_err(of)?;
    Ok((file, words, length))
}

/// The length of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Length {
    /// The file is empty: just made.
    New,
    /// The file was made shorter.
    Cut,
    Whole,
}

/// Returns true if a file is as long as the version before this made it.
fn is_earlier(file: &File, length: u64) -> bool {
    use std::os::unix::fs::FileExt;
    let mut version = [0; 8];
    let at = header::VERSION as u64 * WORD;
    let is_read = file.read_exact_at(&mut version, at).is_ok();
    let earlier = HEADER_WORDS + SLOTS as usize * EARLIER_SLOT_WORDS;
    is_read && u64::from_ne_bytes(version) == EARLIER_VERSION && length >= bytes(earlier)
}

/// Maps the words of the file for as long as the process lives.
///
/// # Safety
/// The file is locked by this process and has all its words. A page behind its end is a SIGBUS, and
/// another process that has the lock may make it shorter.
unsafe fn map(file: &File, path: &Path) -> std::io::Result<&'static [AtomicU64]> {
    let mapping = memmap2::MmapOptions::new().len(FILE_WORDS * 8).map_raw(file)?;
    let mapping: &'static memmap2::MmapRaw = Box::leak(Box::new(mapping));
    bus::watch(mapping.as_ptr() as usize, FILE_WORDS * 8, path)?;
    // SAFETY: the mapping is never unmapped (it is leaked), page-aligned, writable and FILE_WORDS
    // words long. It is only ever accessed as these atomic words: whoever else maps the file
    // changes them as values, not under a reference. The file is not made shorter under the lock
    // but by `renew`, which makes it as long again before any word is accessed.
    // Threat: somebody else makes it shorter. Words that are not there end the process (`bus.rs`);
    // words of the last page read as 0, which `SequenceCounter` takes for moved back.
    let words = unsafe { std::slice::from_raw_parts(mapping.as_mut_ptr().cast(), FILE_WORDS) };
    Ok(words)
}

/// The pid that whoever holds the record wrote into it.
fn holder(path: &Path) -> Option<u32> {
    let content = files::read(path).ok()??;
    let pid = content.get(header::PID * 8..)?.first_chunk()?;
    u32::try_from(u64::from_ne_bytes(*pid)).ok().filter(|pid| *pid != 0)
}

fn write_header(words: &[AtomicU64], host: &HostIdentity) {
    let put = |place: usize, value| words[place].store(value, Ordering::Relaxed);
    put(header::MAGIC, MAGIC);
    put(header::VERSION, VERSION);
    put(header::SLOTS, SLOTS.into());
    store_wide(words, header::BOOT, host.boot);
    store_wide(words, header::MACHINE, host.machine);
    compiler_fence(Ordering::SeqCst);
    put(header::CHECK, header_check(words));
}

/// Returns the length of a record's slots; `None`: its header is damaged, or of another version.
fn slot_words(words: &[AtomicU64]) -> Option<usize> {
    let is_whole = load(&words[header::MAGIC]) == MAGIC
        && load(&words[header::SLOTS]) == u64::from(SLOTS)
        && load(&words[header::CHECK]) == header_check(words);
    match load(&words[header::VERSION]) {
        VERSION if is_whole => Some(SLOT_WORDS),
        EARLIER_VERSION if is_whole => Some(EARLIER_SLOT_WORDS),
        _ => None,
    }
}

/// Returns true if the record is of this version, machine and boot, so that its words go on.
fn is_of(words: &[AtomicU64], host: &HostIdentity) -> bool {
    load(&words[header::VERSION]) == VERSION
        && load_wide(words, header::BOOT) == host.boot
        && load_wide(words, header::MACHINE) == host.machine
}

fn header_check(words: &[AtomicU64]) -> u64 {
    let bytes: Vec<u8> =
        words[..header::CHECK].iter().flat_map(|word| load(word).to_ne_bytes()).collect();
    digest("run header", &bytes) as u64 | 1
}

fn slot_check(usage: KeyUse, fingerprint: u128, spi: u64) -> u64 {
    let mut bytes = fingerprint.to_ne_bytes().to_vec();
    bytes.extend(spi.to_ne_bytes());
    bytes.push(usage as u8);
    digest("run slot", &bytes) as u64
}

fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

fn load_wide(words: &[AtomicU64], place: usize) -> u128 {
    u128::from(load(&words[place])) << 64 | u128::from(load(&words[place + 1]))
}

fn store_wide(words: &[AtomicU64], place: usize, value: u128) {
    words[place].store((value >> 64) as u64, Ordering::Relaxed);
    words[place + 1].store(value as u64, Ordering::Relaxed);
}

const fn bytes(words: usize) -> u64 {
    words as u64 * WORD
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use ipsec::{Advance, KeyMaterial, SequenceNumbers, Spi, Suite};

    use super::*;
    use crate::{KeyFileFacts, KeyState, RESERVATION_STEP};

    const NUMBERS: SequenceNumbers = SequenceNumbers::Extended;

    fn key(seed: u8) -> ipsec::Fingerprint {
        KeyMaterial::new(Suite::Aes128Gcm, &[seed; 20]).unwrap().fingerprint()
    }

    /// Makes a record one of the version before: shorter slots, rings that mean something else.
    fn make_earlier(path: &Path, host: &HostIdentity) {
        let content = std::fs::read(path).unwrap();
        let word = |bytes: &[u8]| u64::from_ne_bytes(*bytes.first_chunk().unwrap());
        let words: Vec<u64> = content.chunks_exact(8).map(word).collect();
        let header: Vec<AtomicU64> = (0..HEADER_WORDS).map(|_| AtomicU64::new(0)).collect();
        write_header(&header, host);
        header[header::VERSION].store(EARLIER_VERSION, Ordering::Relaxed);
        header[header::CHECK].store(header_check(&header), Ordering::Relaxed);
        let mut earlier: Vec<u64> = header.iter().map(load).collect();
        for slot in words[HEADER_WORDS..].chunks_exact(SLOT_WORDS) {
            earlier.extend(&slot[..slot::RING]);
            earlier.extend([0; EARLIER_SLOT_WORDS - slot::RING]);
        }
        let bytes: Vec<u8> = earlier.iter().flat_map(|word| word.to_ne_bytes()).collect();
        std::fs::write(path, bytes).unwrap();
    }

    #[test]
    fn record_of_the_earlier_version_says_what_was_used_at_least() {
        let root = tempfile::tempdir().unwrap();
        let (run, state) = (root.path().join("run"), root.path().join("state"));
        let host = HostIdentity::new("machine", "boot");
        let file = KeyFileFacts { path: root.path().join("a.keys"), modified: SystemTime::now() };
        let mut before = KeyState::open_as(&run, &state, &host).unwrap();
        let counter = before.outbound(key(1), Spi::LOWEST, NUMBERS, &file).unwrap();
        counter.draw(64).whole().unwrap();
        for (seed, edge) in [(2, 5000), (3, 1 << 40)] {
            let window = before.inbound(key(seed), Spi::LOWEST, 64, NUMBERS).unwrap();
            window.commit(edge).unwrap();
        }
        // As a killed process leaves it: what is on disk does not know the edges.
        drop((counter, before));
        make_earlier(&run.join("keystate"), &host);

        // The second time it is of this version, and still says so.
        for _ in 0..2 {
            let mut after = KeyState::open_as(&run, &state, &host).unwrap();
            assert_eq!(after.take_notices(), []);
            for (seed, edge) in [(2, 5000), (3, 1 << 40)] {
                let window = after.inbound(key(seed), Spi::LOWEST, 4096, NUMBERS).unwrap();
                for number in edge - 4100..=edge {
                    assert!(window.check(number).is_err(), "{number} may have been received");
                }
                assert_eq!(window.check(edge + 1), Ok(()));
            }
        }
        let mut after = KeyState::open_as(&run, &state, &host).unwrap();
        let window = after.inbound(key(2), Spi::LOWEST, 64, NUMBERS).unwrap();
        assert_eq!(window.commit(5001), Ok(Advance::Moved));
        let counter = after.outbound(key(1), Spi::LOWEST, NUMBERS, &file).unwrap();
        assert_eq!(counter.draw(1).whole(), Ok(RESERVATION_STEP + 1), "behind what was reserved");
    }
}
