//! The packets of a batch that are looked up together.

use cpu::aes::KeyedHash;
use policy::DomainId;
use wire::Family;

use super::entry::{self, Key, V4, V6, Value, Words};
use super::table::{Domain, Table};

/// Packets of a batch that are looked up, of one family: columns, one entry a packet.
#[derive(Default)]
pub(crate) struct Lane<const WORDS: usize> {
    /// Numbers of their rows.
    rows: Vec<u16>,
    /// Keys; once hashed, with the generation of their domains.
    keys: Vec<[u64; WORDS]>,
    hashes: Vec<u64>,
    values: Vec<Value>,
    /// Places of those that were not found.
    missing: Vec<u16>,
    /// By hash: the first of those not found that have one key, and what is asked about it.
    firsts: Vec<Option<(u16, u16)>>,
}

/// Both lanes.
#[derive(Default)]
pub(crate) struct Lanes {
    pub(crate) v4: Lane<V4>,
    pub(crate) v6: Lane<V6>,
}

impl Lanes {
    /// Adds the packet of a row to the lane of its family.
    #[inline(always)]
    pub(crate) fn push(&mut self, row: usize, key: &Key) {
        match key.flow.family {
            Family::V4 => self.v4.push(row, key),
            Family::V6 => self.v6.push(row, key),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.v4.clear();
        self.v6.clear();
    }
}

/// Places for those not found; more than a batch has packets, and a power of two.
const FIRSTS: usize = 2 * wire::BATCH;
const _: () = assert!(FIRSTS.is_power_of_two());

impl<const WORDS: usize> Lane<WORDS> {
    fn clear(&mut self) {
        self.rows.clear();
        self.keys.clear();
        self.values.clear();
        self.missing.clear();
    }

    /// Adds the packet of a row.
    #[inline(always)]
    pub(crate) fn push(&mut self, row: usize, key: &Key)
    where
        Key: Words<WORDS>,
    {
        self.rows.push(row as u16);
        self.keys.push(key.words());
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// How many were not found.
    pub(crate) fn missing(&self) -> usize {
        self.missing.len()
    }

    /// The row of a packet.
    #[inline(always)]
    pub(crate) fn row(&self, at: usize) -> usize {
        self.rows[at].into()
    }

    pub(super) fn value(&self, at: usize) -> Value {
        self.values[at]
    }

    pub(super) fn key(&self, at: usize) -> &[u64; WORDS] {
        &self.keys[at]
    }

    pub(super) fn hash(&self, at: usize) -> u64 {
        self.hashes[at]
    }

    /// 1. hashes all keys and asks for their lines
    /// 2. compares all; asks for the other lines of those that are missing
    /// 3. compares these
    pub(super) fn look_up(&mut self, hash: &KeyedHash, table: &Table, domains: &[Domain]) {
        let Lane { keys, hashes, values, missing, .. } = self;
        if hashes.len() < keys.len() {
            hashes.resize(keys.len(), 0);
        }
        hash.hash(keys, hashes);
        for (key, hash) in keys.iter_mut().zip(&*hashes) {
            table.prefetch::<WORDS>(*hash);
            let domain = usize::from(entry::domain_of(key).0);
            key[WORDS - 1] = domains.get(domain).map_or(0, |domain| domain.generation.0.into());
        }
        for (at, (key, hash)) in keys.iter().zip(&*hashes).enumerate() {
            let value = table.find(*hash, key);
            values.push(value);
            if value.is_nothing() {
                table.prefetch_second::<WORDS>(*hash);
                missing.push(at as u16);
            }
        }
        if !missing.is_empty() {
            self.look_up_second(table);
        }
    }

    fn look_up_second(&mut self, table: &Table) {
        let Lane { keys, hashes, values, missing, firsts, .. } = self;
        missing.retain(|at| {
            let at = usize::from(*at);
            values[at] = table.find_second(hashes[at], &keys[at]);
            values[at].is_nothing()
        });
        firsts.clear();
        firsts.resize(FIRSTS, None);
    }

    /// What is asked about a packet that was not found: `question`, which it is asked now, or what
    /// an earlier one with its key was.
    pub(crate) fn question_like(&mut self, at: usize, question: u16) -> u16 {
        let mut place = self.hashes[at] as usize % FIRSTS;
        for _ in 0..FIRSTS {
            match self.firsts[place] {
                None => {
                    self.firsts[place] = Some((at as u16, question));
                    break;
                }
                Some((other, known)) if self.keys[usize::from(other)] == self.keys[at] => {
                    return known;
                }
                Some(_) => place = (place + 1) % FIRSTS,
            }
        }
        question
    }

    /// The domain of a packet.
    pub(crate) fn domain(&self, at: usize) -> DomainId {
        entry::domain_of(&self.keys[at])
    }
}
