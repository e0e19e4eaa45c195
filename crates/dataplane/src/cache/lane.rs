//! The packets of a batch that are looked up together.

use cpu::aes::KeyedHash;
use policy::DomainId;

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
    /// By hash: one more than the place of the first of those not found that have one key.
    firsts: Vec<u16>,
}

/// Both lanes.
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
}

/// Places for those not found; more than a batch has packets, and a power of two.
const FIRSTS: usize = 4 * wire::BATCH;
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
        firsts.resize(FIRSTS, 0);
    }

    /// Of packets with one key that were not found, the place of the one that was asked about
    /// first: their verdict is one.
    pub(crate) fn first_like(&mut self, at: usize) -> usize {
        let mut place = self.hashes[at] as usize % FIRSTS;
        for _ in 0..FIRSTS {
            match usize::from(self.firsts[place]) {
                0 => {
                    self.firsts[place] = at as u16 + 1;
                    break;
                }
                other if self.keys[other - 1] == self.keys[at] => return other - 1,
                _ => place = (place + 1) % FIRSTS,
            }
        }
        at
    }
}
