//! Sets of which most have one or two members, and there are very many.

use std::collections::HashSet;
use std::hash::Hash;

/// Members of a set that is a list; one with more is a hash table.
const FEW: usize = 8;

/// A set. One that never had more than a few members takes the memory of these alone.
pub(super) struct SmallSet<T>(Members<T>);

#[expect(clippy::box_collection, reason = "a set of one has no room for a hash table's head")]
enum Members<T> {
    Few(Vec<T>),
    Many(Box<HashSet<T>>),
}

impl<T> Default for SmallSet<T> {
    fn default() -> SmallSet<T> {
        SmallSet(Members::Few(Vec::new()))
    }
}

impl<T: Eq + Hash> SmallSet<T> {
    /// Adds a member, if it is not there.
    pub(super) fn insert(&mut self, member: T) {
        match &mut self.0 {
            Members::Few(few) if few.contains(&member) => {}
            Members::Few(few) if few.len() < FEW => {
                few.reserve_exact(1);
                few.push(member);
            }
            Members::Few(few) => {
                let members = few.drain(..).chain([member]).collect();
                self.0 = Members::Many(Box::new(members));
            }
            Members::Many(many) => _ = many.insert(member),
        }
    }

    /// Takes a member out.
    pub(super) fn remove(&mut self, member: &T) {
        match &mut self.0 {
            Members::Few(few) => few.retain(|of| of != member),
            Members::Many(many) => _ = many.remove(member),
        }
    }

    /// Takes out the members that pass a test, and returns them.
    pub(super) fn take_if(&mut self, pass: impl Fn(&T) -> bool) -> Vec<T> {
        match &mut self.0 {
            Members::Few(few) => few.extract_if(.., |of| pass(of)).collect(),
            Members::Many(many) => many.extract_if(pass).collect(),
        }
    }

    pub(super) fn contains(&self, member: &T) -> bool {
        match &self.0 {
            Members::Few(few) => few.contains(member),
            Members::Many(many) => many.contains(member),
        }
    }

    pub(super) fn len(&self) -> usize {
        match &self.0 {
            Members::Few(few) => few.len(),
            Members::Many(many) => many.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn clear(&mut self) {
        *self = SmallSet::default();
    }

    /// The members, in any order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        let (few, many) = match &self.0 {
            Members::Few(few) => (few.as_slice(), None),
            Members::Many(many) => (&[][..], Some(many)),
        };
        few.iter().chain(many.into_iter().flat_map(|many| many.iter()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(set: &SmallSet<u32>) -> Vec<u32> {
        let mut members: Vec<u32> = set.iter().copied().collect();
        members.sort_unstable();
        members
    }

    #[test]
    fn set_of_any_size_has_each_member_once_and_gives_back_what_passes() {
        for size in [0, 1, 2, FEW as u32, FEW as u32 + 1, 100] {
            let mut set = SmallSet::default();
            (0..size).chain(0..size).for_each(|member| set.insert(member));
            assert_eq!(members(&set), (0..size).collect::<Vec<_>>());
            assert_eq!((set.len(), set.is_empty()), (size as usize, size == 0));
            assert!((0..size).all(|member| set.contains(&member)) && !set.contains(&size));
            set.remove(&0);
            set.remove(&size);
            assert_eq!(members(&set), (1..size).collect::<Vec<_>>());
            let mut taken = set.take_if(|member| member % 2 == 0);
            taken.sort_unstable();
            assert_eq!(taken, (1..size).filter(|member| member % 2 == 0).collect::<Vec<_>>());
            assert!(set.iter().all(|member| member % 2 == 1));
            set.clear();
            assert!(set.is_empty());
        }
    }

    #[test]
    fn set_of_one_member_takes_memory_for_one() {
        let mut set = SmallSet::default();
        set.insert([0_u8; 80]);
        let Members::Few(few) = &set.0 else { panic!("one member is few") };
        assert_eq!(few.capacity(), 1);
    }
}
