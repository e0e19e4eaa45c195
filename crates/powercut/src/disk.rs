//! The model: files with what is durable and what is not. No SQLite here.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// Bytes that a disk writes whole.
const SECTOR_BYTES: usize = 512;

/// The disks that paths lead to, by their first part.
static DISKS: LazyLock<Mutex<HashMap<String, Shared>>> = LazyLock::new(Mutex::default);
static NEXT: AtomicU64 = AtomicU64::new(1);

pub(crate) type Shared = Arc<Mutex<State>>;

/// The reason why a disk does not do what it was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    Full,
    Sync,
    Missing,
}

/// A disk. Paths on it begin with [`Disk::root`]; it is gone when this is dropped.
pub struct Disk {
    root: String,
    state: Shared,
}

/// A disk's files and faults.
#[derive(Default)]
pub(crate) struct State {
    files: BTreeMap<String, File>,
    /// The most bytes of all files together.
    capacity: Option<usize>,
    ignores_syncs: bool,
    fails_syncs: bool,
    notes_cuts: bool,
    label: u64,
    cuts: Vec<Cut>,
}

#[derive(Clone, Default)]
struct File {
    /// The content that a program reads; `None`: there is no such file.
    current: Option<Vec<u8>>,
    /// The content after a cut that loses all that is pending.
    durable: Option<Vec<u8>>,
    /// The operations since.
    pending: Vec<Operation>,
}

#[derive(Clone)]
enum Operation {
    Create,
    Write { at: usize, bytes: Vec<u8> },
    Truncate { length: usize },
    Delete,
}

/// The state of a disk in which the power is cut.
#[derive(Clone)]
pub struct Cut {
    /// The number that [`Disk::label`] had set.
    pub label: u64,
    files: BTreeMap<String, File>,
}

/// The part of what was not synced that a power cut takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// All of it.
    All,
    /// Each write alone, by chance from this seed: it is lost, or there, or there in part.
    Some(u64),
}

impl Disk {
    /// Makes an empty disk.
    pub fn new() -> Disk {
        Disk::with(BTreeMap::new())
    }

    fn with(files: BTreeMap<String, File>) -> Disk {
        let root = format!("disk-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let state = Arc::new(Mutex::new(State { files, ..State::default() }));
        locked(&DISKS).insert(root.clone(), state.clone());
        Disk { root, state }
    }

    /// Returns the directory that paths on this disk begin with.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// Bounds what all files hold together, bytes; `None`: there is room for anything.
    pub fn set_capacity(&self, capacity: Option<usize>) {
        self.state().capacity = capacity;
    }

    /// Returns what all files hold together, bytes.
    pub fn used(&self) -> usize {
        self.state().used()
    }

    /// From now on a sync is reported as done and does nothing.
    pub fn ignore_syncs(&self) {
        self.state().ignores_syncs = true;
    }

    /// From now on each sync fails.
    pub fn fail_syncs(&self) {
        self.state().fails_syncs = true;
    }

    /// From now on, notes the state before and after each sync.
    pub fn note_cuts(&self) {
        self.state().notes_cuts = true;
    }

    /// Sets the number that the next cuts bear: what was acknowledged until then, say.
    pub fn label(&self, label: u64) {
        self.state().label = label;
    }

    /// Returns the cuts that were noted, and forgets them.
    pub fn cuts(&self) -> Vec<Cut> {
        std::mem::take(&mut self.state().cuts)
    }

    /// Returns the state as it is now.
    pub fn cut(&self) -> Cut {
        self.state().cut()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

impl Default for Disk {
    fn default() -> Disk {
        Disk::new()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        locked(&DISKS).remove(&self.root);
    }
}

impl Cut {
    /// Returns the disk as it is found when the power is back.
    pub fn disk(&self, loss: Loss) -> Disk {
        let mut chance = match loss {
            Loss::All => None,
            Loss::Some(seed) => Some(Chance(seed)),
        };
        let found = self.files.iter().filter_map(|(name, file)| {
            let content = file.after_cut(chance.as_mut())?;
            let (current, durable) = (Some(content.clone()), Some(content));
            Some((name.clone(), File { current, durable, pending: vec![] }))
        });
        Disk::with(found.collect())
    }
}

/// SplitMix64.
struct Chance(u64);

impl Chance {
    fn draw(&mut self) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 33) as usize
    }
}

impl Operation {
    fn apply(&self, content: &mut Option<Vec<u8>>) {
        match self {
            Operation::Create => {
                content.get_or_insert_default();
            }
            Operation::Delete => *content = None,
            Operation::Truncate { length } => {
                if let Some(content) = content {
                    content.resize(*length, 0);
                }
            }
            Operation::Write { at, bytes } => {
                let content = content.get_or_insert_default();
                let end = at + bytes.len();
                content.resize(content.len().max(end), 0);
                content[*at..end].copy_from_slice(bytes);
            }
        }
    }

    /// Keeps the sectors of a write that chance keeps; anything else is whole.
    fn torn(&self, chance: &mut Chance) -> Vec<Operation> {
        let Operation::Write { at, bytes } = self else { return vec![self.clone()] };
        let mut kept = Vec::new();
        let mut from = 0;
        while from < bytes.len() {
            let sector_end = ((at + from) / SECTOR_BYTES + 1) * SECTOR_BYTES;
            let to = (sector_end - at).min(bytes.len());
            if chance.draw().is_multiple_of(2) {
                kept.push(Operation::Write { at: at + from, bytes: bytes[from..to].to_vec() });
            }
            from = to;
        }
        kept
    }
}

impl File {
    fn run(&mut self, operation: Operation) {
        operation.apply(&mut self.current);
        self.pending.push(operation);
    }

    fn sync(&mut self) {
        self.durable.clone_from(&self.current);
        self.pending.clear();
    }

    /// The directory was synced: the file is there or gone for good, whatever is in it.
    fn sync_name(&mut self) {
        match self.current {
            None => self.sync(),
            Some(_) => {
                self.durable.get_or_insert_default();
            }
        }
    }

    fn after_cut(&self, chance: Option<&mut Chance>) -> Option<Vec<u8>> {
        let mut content = self.durable.clone();
        let Some(chance) = chance else { return content };
        for operation in &self.pending {
            match chance.draw() % 3 {
                0 => {}
                1 => operation.apply(&mut content),
                _ => operation.torn(chance).iter().for_each(|part| part.apply(&mut content)),
            }
        }
        content
    }
}

impl State {
    fn used(&self) -> usize {
        self.files.values().filter_map(|file| Some(file.current.as_ref()?.len())).sum()
    }

    fn cut(&self) -> Cut {
        Cut { label: self.label, files: self.files.clone() }
    }

    fn note(&mut self) {
        if self.notes_cuts {
            let cut = self.cut();
            self.cuts.push(cut);
        }
    }

    fn content(&self, name: &str) -> Option<&Vec<u8>> {
        self.files.get(name)?.current.as_ref()
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        self.content(name).is_some()
    }

    pub(crate) fn create(&mut self, name: &str) {
        if !self.exists(name) {
            self.files.entry(name.to_owned()).or_default().run(Operation::Create);
        }
    }

    /// Removes a file; with its directory's sync, for good.
    pub(crate) fn delete(&mut self, name: &str, directory: DirectorySync) -> Result<(), Fault> {
        let file = self.files.get_mut(name).filter(|file| file.current.is_some());
        let file = file.ok_or(Fault::Missing)?;
        file.run(Operation::Delete);
        if directory == DirectorySync::Now && !self.ignores_syncs {
            file.sync();
        }
        Ok(())
    }

    pub(crate) fn length(&self, name: &str) -> Result<usize, Fault> {
        Ok(self.content(name).ok_or(Fault::Missing)?.len())
    }

    /// Reads from a place on, and returns how many bytes there were.
    pub(crate) fn read(&self, name: &str, at: usize, into: &mut [u8]) -> Result<usize, Fault> {
        let content = self.content(name).ok_or(Fault::Missing)?;
        let found = content.get(at..).unwrap_or_default();
        let count = found.len().min(into.len());
        into[..count].copy_from_slice(&found[..count]);
        Ok(count)
    }

    pub(crate) fn write(&mut self, name: &str, at: usize, bytes: &[u8]) -> Result<(), Fault> {
        let growth = (at + bytes.len()).saturating_sub(self.length(name)?);
        if growth > 0 && self.capacity.is_some_and(|capacity| self.used() + growth > capacity) {
            return Err(Fault::Full);
        }
        self.run(name, Operation::Write { at, bytes: bytes.to_vec() })
    }

    pub(crate) fn truncate(&mut self, name: &str, length: usize) -> Result<(), Fault> {
        self.run(name, Operation::Truncate { length })
    }

    pub(crate) fn sync(&mut self, name: &str) -> Result<(), Fault> {
        self.note();
        if self.fails_syncs {
            return Err(Fault::Sync);
        }
        if !self.ignores_syncs {
            let file = self.files.get_mut(name).ok_or(Fault::Missing)?;
            let is_new = file.pending.iter().any(|op| matches!(op, Operation::Create));
            file.sync();
            if is_new {
                self.files.values_mut().for_each(File::sync_name);
            }
        }
        self.note();
        Ok(())
    }

    fn run(&mut self, name: &str, operation: Operation) -> Result<(), Fault> {
        self.files.get_mut(name).ok_or(Fault::Missing)?.run(operation);
        Ok(())
    }
}

/// The time when a directory is synced after a file in it was removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DirectorySync {
    Now,
    Later,
}

/// Returns the disk that a path leads to, and the file's name on it.
pub(crate) fn find(path: &str) -> Option<(Shared, &str)> {
    let (root, name) = path.split_once('/')?;
    Some((locked(&DISKS).get(root)?.clone(), name))
}

/// A lock whose holder panicked in a test is still good: each change of the state is whole.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(disk: &Disk) -> Option<Vec<u8>> {
        disk.state().content("a").cloned()
    }

    #[test]
    fn cut_takes_what_was_not_synced() {
        let disk = Disk::new();
        disk.note_cuts();
        disk.label(7);
        disk.state().create("a");
        disk.state().write("a", 2, b"one").unwrap();
        assert_eq!(content(&disk.cut().disk(Loss::All)), None);
        disk.state().sync("a").unwrap();
        disk.state().write("a", 0, b"XX").unwrap();
        disk.state().truncate("a", 3).unwrap();
        assert_eq!(content(&disk).as_deref(), Some(&b"XXo"[..]));
        assert_eq!(content(&disk.cut().disk(Loss::All)).as_deref(), Some(&b"\0\0one"[..]));
        disk.state().delete("a", DirectorySync::Later).unwrap();
        assert_eq!(content(&disk), None);
        assert_eq!(content(&disk.cut().disk(Loss::All)).as_deref(), Some(&b"\0\0one"[..]));
        disk.state().create("a");
        disk.state().delete("a", DirectorySync::Now).unwrap();
        assert_eq!(content(&disk.cut().disk(Loss::All)), None);
        // The first sync of a file that is new syncs the directory.
        disk.state().create("a");
        disk.state().write("a", 0, b"x").unwrap();
        disk.state().create("b");
        disk.state().sync("b").unwrap();
        assert_eq!(content(&disk.cut().disk(Loss::All)).as_deref(), Some(&b""[..]));
        disk.state().sync("a").unwrap();
        disk.state().delete("a", DirectorySync::Later).unwrap();
        disk.state().create("c");
        disk.state().sync("c").unwrap();
        assert_eq!(content(&disk.cut().disk(Loss::All)), None);
        let cuts = disk.cuts();
        assert_eq!(cuts.len(), 8);
        assert_eq!(content(&cuts[0].disk(Loss::All)), None);
        assert_eq!(content(&cuts[1].disk(Loss::All)).as_deref(), Some(&b"\0\0one"[..]));
    }

    #[test]
    fn cut_by_chance_leaves_every_mix_of_sectors() {
        let disk = Disk::new();
        disk.state().create("a");
        disk.state().write("a", 0, &[0; 1536]).unwrap();
        disk.state().sync("a").unwrap();
        disk.state().write("a", 0, &[1; 1536]).unwrap();
        let cut = disk.cut();
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let content = content(&cut.disk(Loss::Some(seed))).unwrap();
            content.chunks(512).for_each(|sector| assert!(sector.iter().all(|b| *b == sector[0])));
            seen.insert([content[0], content[512], content[1024]]);
        }
        assert_eq!(seen.len(), 8);
    }

    #[test]
    fn full_disk_takes_no_growth_and_a_deaf_one_keeps_nothing() {
        let disk = Disk::new();
        disk.state().create("a");
        disk.set_capacity(Some(4));
        assert_eq!(disk.state().write("a", 0, b"12345"), Err(Fault::Full));
        assert_eq!(disk.state().write("a", 0, b"1234"), Ok(()));
        assert_eq!(disk.state().write("a", 1, b"999"), Ok(()));
        disk.ignore_syncs();
        assert_eq!(disk.state().sync("a"), Ok(()));
        assert_eq!(content(&disk.cut().disk(Loss::All)), None);
        disk.fail_syncs();
        assert_eq!(disk.state().sync("a"), Err(Fault::Sync));
    }
}
