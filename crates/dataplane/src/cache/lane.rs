//! The packets of a batch that are looked up together.

use cpu::aes::KeyedHash;
use policy::Scope;
use wire::{BATCH, Family, Flow};

use super::entry::{self, V4, V6, Value, Words};
use super::table::{Domains, Table};

/// Packets of a batch that are looked up, of one family.
pub(crate) struct Lane<const WORDS: usize> {
    len: usize,
    columns: Box<Columns<WORDS>>,
}

/// One entry a packet, but for the last two.
struct Columns<const WORDS: usize> {
    /// Numbers of their rows.
    rows: [u16; BATCH],
    /// Keys; once hashed, with the generation of their domains.
    keys: [[u64; WORDS]; BATCH],
    hashes: [u64; BATCH],
    values: [Value; BATCH],
    /// Places of those that were not found.
    missing: [u16; BATCH],
}

impl<const WORDS: usize> Default for Lane<WORDS> {
    fn default() -> Lane<WORDS> {
        let columns = Columns {
            rows: [0; BATCH],
            keys: [[0; WORDS]; BATCH],
            hashes: [0; BATCH],
            values: [Value::default(); BATCH],
            missing: [0; BATCH],
        };
        Lane { len: 0, columns: Box::new(columns) }
    }
}

/// The lanes of both families.
#[derive(Default)]
pub(crate) struct Lanes {
    pub(crate) v4: Lane<V4>,
    pub(crate) v6: Lane<V6>,
}

impl Lanes {
    pub(crate) fn clear(&mut self) {
        self.v4.clear();
        self.v6.clear();
    }

    /// Adds the packet of a row to the lane of its family; `false`: there is no room, which a batch
    /// never comes to.
    #[inline(always)]
    pub(crate) fn push(&mut self, row: usize, scope: Scope, flow: &Flow) -> bool {
        match flow.family {
            Family::V4 => self.v4.push(row, scope, flow),
            Family::V6 => self.v6.push(row, scope, flow),
        }
    }
}

impl<const WORDS: usize> Lane<WORDS> {
    fn clear(&mut self) {
        self.len = 0;
    }

    #[inline(always)]
    fn push(&mut self, row: usize, scope: Scope, flow: &Flow) -> bool
    where
        Flow: Words<WORDS>,
    {
        let at = self.len;
        if at >= BATCH {
            return false;
        }
        self.columns.rows[at] = row as u16;
        self.columns.keys[at] = flow.words(scope);
        self.len = at + 1;
        true
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The row of a packet.
    #[inline(always)]
    pub(crate) fn row(&self, at: usize) -> usize {
        self.columns.rows[at].into()
    }

    #[inline(always)]
    pub(super) fn value(&self, at: usize) -> Value {
        self.columns.values[at]
    }

    pub(crate) fn key(&self, at: usize) -> &[u64; WORDS] {
        &self.columns.keys[at]
    }

    pub(crate) fn hash(&self, at: usize) -> u64 {
        self.columns.hashes[at]
    }

    /// The scope of a packet.
    pub(crate) fn scope(&self, at: usize) -> Scope {
        entry::scope_of(self.key(at))
    }

    /// 1. hashes all keys and asks for their lines
    /// 2. compares all; asks for the other lines of those that are missing
    /// 3. compares these
    pub(super) fn look_up(&mut self, hash: &KeyedHash, table: &Table, domains: &Domains) {
        let len = self.len.min(BATCH);
        let Columns { keys, hashes, values, missing, .. } = &mut *self.columns;
        let (keys, hashes, values) = (&mut keys[..len], &mut hashes[..len], &mut values[..len]);
        keys.iter_mut().for_each(|key| domains.narrow(key));
        hash.hash(keys, hashes);
        for at in 0..len {
            table.prefetch::<WORDS>(hashes[at]);
            let generation = domains.generation(entry::scope_of(&keys[at]));
            entry::set_generation(&mut keys[at], generation);
        }
        let mut missed = 0;
        for at in 0..len {
            let value = table.find(hashes[at], &keys[at]);
            values[at] = value;
            if value.is_nothing() {
                table.prefetch_second::<WORDS>(hashes[at]);
                missing[missed % BATCH] = at as u16;
                missed += 1;
            }
        }
        if missed > 0 {
            self.look_up_second(missed, table);
        }
    }

    #[inline(never)]
    fn look_up_second(&mut self, missed: usize, table: &Table) {
        let Columns { keys, hashes, values, missing, .. } = &mut *self.columns;
        for at in missing[..missed].iter().map(|at| usize::from(*at)) {
            values[at] = table.find_second(hashes[at], &keys[at]);
        }
    }
}
