//! A list by slot.

use std::sync::Arc;

/// Entries of a page.
const PAGE: usize = 64;

/// A list by slot, some of which are vacant. Cheap to copy.
#[derive(Clone)]
pub struct Slotted<T> {
    pages: Arc<[Arc<Page<T>>]>,
}

#[derive(Clone)]
struct Page<T> {
    entries: [Option<T>; PAGE],
    /// Slots that are not vacant.
    held: usize,
}

impl<T> Page<T> {
    fn vacant() -> Page<T> {
        Page { entries: [const { None }; PAGE], held: 0 }
    }
}

impl<T> Default for Slotted<T> {
    fn default() -> Slotted<T> {
        Slotted { pages: Arc::default() }
    }
}

impl<T> Slotted<T> {
    /// The entry of a slot; `None`: it is vacant.
    #[inline]
    pub fn get(&self, slot: usize) -> Option<&T> {
        self.pages.get(slot / PAGE)?.entries[slot % PAGE].as_ref()
    }

    /// The entry of a slot that is not vacant.
    ///
    /// # Panics
    /// If it is.
    #[inline]
    pub fn at(&self, slot: usize) -> &T {
        match &self.pages[slot / PAGE].entries[slot % PAGE] {
            Some(entry) => entry,
            None => vacant(slot),
        }
    }

    /// Slots that there is room for, vacant or not: all are below this.
    pub fn capacity(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// Slots that are not vacant.
    pub fn held(&self) -> usize {
        self.pages.iter().map(|page| page.held).sum()
    }

    /// The entries with their slots, the lowest first.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        let entries = self.pages.iter().flat_map(|page| &page.entries).enumerate();
        entries.filter_map(|(slot, entry)| Some((slot, entry.as_ref()?)))
    }

    /// Returns the lowest vacant slot, which may be past the end. Cost: visits page after page.
    pub fn vacant(&self) -> usize {
        let Some(place) = self.pages.iter().position(|page| page.held < PAGE) else {
            return self.capacity();
        };
        let entries = &self.pages[place].entries;
        place * PAGE + entries.iter().position(Option::is_none).unwrap_or(0)
    }

    /// Returns the lowest vacant slot that fits, which may be past the end. Some slot past the end
    /// must fit. Cost: visits page after page, and vacant slots of pages until one fits.
    pub fn vacant_where(&self, fits: impl Fn(usize) -> bool) -> usize {
        let with_room = self.pages.iter().enumerate().filter(|(_, page)| page.held < PAGE);
        let vacant = with_room.flat_map(|(place, page)| {
            let entries = page.entries.iter().enumerate();
            entries.filter(|(_, entry)| entry.is_none()).map(move |(at, _)| place * PAGE + at)
        });
        let mut slots = vacant.chain(self.capacity()..);
        slots.find(|slot| fits(*slot)).unwrap_or(self.capacity())
    }
}

#[cold]
fn vacant(slot: usize) -> ! {
    panic!("slot {slot} is vacant")
}

impl<T: Clone> Slotted<T> {
    /// Puts an entry into a slot, or makes it vacant, and returns the previous entry. Cost: copies
    /// a shared page, and the list of pages.
    pub fn set(&mut self, slot: usize, entry: Option<T>) -> Option<T> {
        let place = slot / PAGE;
        if place >= self.pages.len() {
            entry.as_ref()?;
            let more = (self.pages.len()..=place).map(|_| Arc::new(Page::vacant()));
            self.pages = self.pages.iter().cloned().chain(more).collect();
        }
        let page = Arc::make_mut(&mut Arc::make_mut(&mut self.pages)[place]);
        page.held += usize::from(entry.is_some());
        let before = std::mem::replace(&mut page.entries[slot % PAGE], entry);
        page.held -= usize::from(before.is_some());
        before
    }

    /// Puts an entry into the lowest vacant slot, and returns which that is.
    pub fn insert(&mut self, entry: T) -> usize {
        let slot = self.vacant();
        self.set(slot, Some(entry));
        slot
    }

    /// Returns the slots in which this list and an earlier one differ, each with its earlier and
    /// its current entry. Cost: by pages, and by entries of pages that are not shared.
    pub fn changes<'l>(
        &'l self,
        before: &'l Slotted<T>,
        is_same: impl Fn(&T, &T) -> bool,
    ) -> impl Iterator<Item = (usize, Option<&'l T>, Option<&'l T>)> {
        let pages = self.pages.len().max(before.pages.len());
        let differing =
            (0..pages).filter(|place| match (self.pages.get(*place), before.pages.get(*place)) {
                (Some(now), Some(before)) => !Arc::ptr_eq(now, before),
                _ => true,
            });
        let slots = differing.flat_map(|place| place * PAGE..(place + 1) * PAGE);
        slots.filter_map(move |slot| match (before.get(slot), self.get(slot)) {
            (None, None) => None,
            (Some(before), Some(now)) if is_same(before, now) => None,
            (before, now) => Some((slot, before, now)),
        })
    }
}

impl<T: Clone> FromIterator<T> for Slotted<T> {
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Slotted<T> {
        let mut pages: Vec<Arc<Page<T>>> = Vec::new();
        let mut page = Page::vacant();
        for entry in entries {
            page.entries[page.held] = Some(entry);
            page.held += 1;
            if page.held == PAGE {
                pages.push(Arc::new(std::mem::replace(&mut page, Page::vacant())));
            }
        }
        if page.held > 0 {
            pages.push(Arc::new(page));
        }
        Slotted { pages: pages.into() }
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Slotted<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<T: PartialEq> PartialEq for Slotted<T> {
    fn eq(&self, other: &Slotted<T>) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<T: Eq> Eq for Slotted<T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Slots around the edges of pages.
    fn slot() -> impl Strategy<Value = usize> {
        prop_oneof![0..3usize, PAGE - 2..PAGE + 2, 2 * PAGE - 2..2 * PAGE + 2]
    }

    proptest! {
        #[test]
        fn a_list_and_its_copies_are_what_maps_are(
            before in prop::collection::vec((slot(), any::<Option<u8>>()), 0..40),
            after in prop::collection::vec((slot(), any::<Option<u8>>()), 0..12),
        ) {
            let (mut list, mut map) = (Slotted::default(), BTreeMap::new());
            let mut put = |list: &mut Slotted<u8>, (slot, entry): (usize, Option<u8>)| {
                let was = match entry {
                    Some(entry) => map.insert(slot, entry),
                    None => map.remove(&slot),
                };
                prop_assert_eq!(list.set(slot, entry), was);
                prop_assert_eq!(list.held(), map.len());
                prop_assert!(list.iter().map(|(slot, entry)| (slot, *entry)).eq(map.clone()));
                let vacant = (0..).find(|slot| !map.contains_key(slot)).unwrap();
                prop_assert!(list.vacant() == vacant);
                for (number, of) in [(0, 1), (1, 2), (2, 3)] {
                    let fits = |slot: &usize| slot % of == number;
                    let mut slots = (0..).filter(fits);
                    let vacant = slots.find(|slot| !map.contains_key(slot)).unwrap();
                    prop_assert_eq!(list.vacant_where(|slot| fits(&slot)), vacant);
                }
                prop_assert!(map.keys().all(|slot| *slot < list.capacity()));
                Ok(map.clone())
            };
            let mut old = BTreeMap::new();
            for change in before {
                old = put(&mut list, change)?;
            }
            let copy = list.clone();
            let mut new = old.clone();
            for change in after {
                new = put(&mut list, change)?;
            }
            prop_assert!(copy.iter().map(|(slot, entry)| (slot, *entry)).eq(old.clone()));
            let told: Vec<_> = list.changes(&copy, |one, other| one == other)
                .map(|(slot, before, now)| (slot, before.copied(), now.copied()))
                .collect();
            let slots = (0..3 * PAGE).filter(|slot| old.get(slot) != new.get(slot));
            let expected: Vec<_> = slots
                .map(|slot| (slot, old.get(&slot).copied(), new.get(&slot).copied()))
                .collect();
            prop_assert_eq!(told, expected);
        }
    }

    #[test]
    fn a_list_is_made_of_entries_in_their_order() {
        for count in [0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE] {
            let list: Slotted<usize> = (0..count).collect();
            assert_eq!(list.held(), count);
            assert!(list.iter().all(|(slot, entry)| slot == *entry));
            assert_eq!(list.vacant(), count);
            let mut more = list.clone();
            assert_eq!(more.insert(7), count);
            assert_eq!(list.held(), count);
        }
    }

    /// Pages that two lists share are not compared.
    #[test]
    fn a_change_copies_one_page() {
        let list: Slotted<Arc<u32>> = (0..640).map(Arc::new).collect();
        let mut changed = list.clone();
        changed.set(100, None);
        let copied = list.iter().filter(|(_, entry)| Arc::strong_count(entry) > 1);
        assert_eq!(copied.count(), PAGE - 1);
        let looked_at = std::cell::Cell::new(0);
        let same = |one: &Arc<u32>, other: &Arc<u32>| {
            looked_at.set(looked_at.get() + 1);
            Arc::ptr_eq(one, other)
        };
        let slots: Vec<_> = changed.changes(&list, same).map(|(slot, ..)| slot).collect();
        assert_eq!((slots, looked_at.get()), (vec![100], PAGE - 1));
    }
}
