//! Lists through the slots of a slab: by age, and by hash. They allocate nothing.

/// Place in a slab.
pub(crate) type Slot = u16;
/// No place.
pub(crate) const NONE: Slot = Slot::MAX;

/// The neighbours of a slot in a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    older: Slot,
    newer: Slot,
}

impl Link {
    /// In no list.
    pub(crate) const NONE: Link = Link { older: NONE, newer: NONE };
}

/// One value per slot of a slab. The memory is taken at once, and filled up to the highest written
/// slot: an unused page is never touched.
#[derive(Debug)]
pub(crate) struct SlotValues<T> {
    values: Vec<T>,
    /// Value of the other slots.
    empty: T,
}

/// Links by slot.
pub(crate) type Links = SlotValues<Link>;

impl<T: Copy> SlotValues<T> {
    /// Takes the memory for so many slots, all of them `empty`.
    pub(crate) fn new(slots: usize, empty: T) -> SlotValues<T> {
        SlotValues { values: Vec::with_capacity(slots), empty }
    }

    /// Returns the value of a slot.
    pub(crate) fn value(&self, slot: Slot) -> T {
        self.values.get(usize::from(slot)).copied().unwrap_or(self.empty)
    }

    /// Returns the place of a slot's value.
    pub(crate) fn place(&mut self, slot: Slot) -> &mut T {
        let place = usize::from(slot);
        if self.values.len() <= place {
            self.fill(place + 1);
        }
        &mut self.values[place]
    }

    #[cold]
    fn fill(&mut self, slots: usize) {
        debug_assert!(slots <= self.values.capacity(), "memory is taken at once");
        self.values.resize(slots, self.empty);
    }

    /// Capacity for values.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        self.values.capacity()
    }
}

impl Links {
    /// Takes the memory for the links of so many slots, all of them in no list.
    pub(crate) fn unlinked(slots: usize) -> Links {
        SlotValues::new(slots, Link::NONE)
    }
}

/// Slots in the order in which they came. Their links lie at the same slots of another slab, which
/// belongs to the list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AgeList {
    oldest: Slot,
    newest: Slot,
    len: usize,
}

impl Default for AgeList {
    fn default() -> AgeList {
        AgeList { oldest: NONE, newest: NONE, len: 0 }
    }
}

impl AgeList {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn oldest(&self) -> Option<Slot> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    pub(crate) fn newest(&self) -> Option<Slot> {
        (self.newest != NONE).then_some(self.newest)
    }

    /// Returns the next newer slot.
    pub(crate) fn after(&self, links: &Links, slot: Slot) -> Option<Slot> {
        let newer = links.value(slot).newer;
        (newer != NONE).then_some(newer)
    }

    /// Adds an unlisted slot, as the oldest.
    pub(crate) fn push_oldest(&mut self, links: &mut Links, slot: Slot) {
        *links.place(slot) = Link { older: NONE, newer: self.oldest };
        match self.oldest {
            NONE => self.newest = slot,
            oldest => links.place(oldest).older = slot,
        }
        self.oldest = slot;
        self.len += 1;
    }

    /// Adds a slot that is in no list, as the newest.
    pub(crate) fn push(&mut self, links: &mut Links, slot: Slot) {
        *links.place(slot) = Link { older: self.newest, newer: NONE };
        match self.newest {
            NONE => self.oldest = slot,
            newest => links.place(newest).newer = slot,
        }
        self.newest = slot;
        self.len += 1;
    }

    /// Takes a slot of this list out.
    pub(crate) fn remove(&mut self, links: &mut Links, slot: Slot) {
        let Link { older, newer } = links.value(slot);
        match older {
            NONE => self.oldest = newer,
            older => links.place(older).newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => links.place(newer).older = older,
        }
        *links.place(slot) = Link::NONE;
        self.len -= 1;
    }
}

/// Slots by hash: one chain a bucket.
#[derive(Debug)]
pub(crate) struct Index {
    /// First slots of the chains, each plus one; 0: an empty chain. The count is a power of two.
    /// Zeroed memory costs nothing.
    heads: Vec<Slot>,
    /// One entry a slot: the next of its chain.
    next: Vec<Slot>,
}

impl Index {
    /// An empty index for so many slots.
    pub(crate) fn new(slots: usize) -> Index {
        Index { heads: vec![0; (2 * slots).next_power_of_two()], next: Vec::with_capacity(slots) }
    }

    fn bucket(&self, hash: u64) -> usize {
        hash as usize & (self.heads.len() - 1)
    }

    /// First slot of a chain, or [`NONE`].
    fn head(&self, bucket: usize) -> Slot {
        self.heads[bucket].wrapping_sub(1)
    }

    fn set_head(&mut self, bucket: usize, slot: Slot) {
        self.heads[bucket] = slot.wrapping_add(1);
    }

    /// Finds a slot of this hash.
    pub(crate) fn find(&self, hash: u64, is_it: impl Fn(Slot) -> bool) -> Option<Slot> {
        let mut slot = self.head(self.bucket(hash));
        while slot != NONE && !is_it(slot) {
            slot = self.next[usize::from(slot)];
        }
        (slot != NONE).then_some(slot)
    }

    /// Adds a slot that is not in it.
    pub(crate) fn insert(&mut self, hash: u64, slot: Slot) {
        let (bucket, place) = (self.bucket(hash), usize::from(slot));
        if self.next.len() <= place {
            self.next.resize(place + 1, NONE);
        }
        self.next[place] = self.head(bucket);
        self.set_head(bucket, slot);
    }

    /// Capacity for buckets and slots.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        self.heads.capacity() + self.next.capacity()
    }

    /// Takes out a slot that was added with this hash.
    pub(crate) fn remove(&mut self, hash: u64, slot: Slot) {
        let (bucket, next) = (self.bucket(hash), self.next[usize::from(slot)]);
        if self.head(bucket) == slot {
            self.set_head(bucket, next);
            return;
        }
        let mut before = self.head(bucket);
        while before != NONE && self.next[usize::from(before)] != slot {
            before = self.next[usize::from(before)];
        }
        if before != NONE {
            self.next[usize::from(before)] = next;
        }
    }
}

/// A slab of bounded size: its memory is taken once and filled as it is needed.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    values: Vec<T>,
    free: Vec<Slot>,
    most: usize,
}

impl<T> Slab<T> {
    /// A slab of so many slots, fewer than 65,535.
    pub(crate) fn new(most: usize) -> Slab<T> {
        Slab { values: Vec::with_capacity(most), free: Vec::with_capacity(most), most }
    }

    /// Puts a value into a free slot. `None`: there is none.
    pub(crate) fn insert(&mut self, value: T) -> Option<Slot> {
        if let Some(slot) = self.free.pop() {
            self.values[usize::from(slot)] = value;
            return Some(slot);
        }
        let slot = self.values.len();
        (slot < self.most).then(|| {
            self.values.push(value);
            slot as Slot
        })
    }

    /// Capacity for values and free slots.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        self.values.capacity() + self.free.capacity()
    }

    /// Frees a slot. Its value stays until another takes its place.
    pub(crate) fn remove(&mut self, slot: Slot) {
        self.free.push(slot);
    }
}

impl<T> std::ops::Index<Slot> for Slab<T> {
    type Output = T;

    fn index(&self, slot: Slot) -> &T {
        &self.values[usize::from(slot)]
    }
}

impl<T> std::ops::IndexMut<Slot> for Slab<T> {
    fn index_mut(&mut self, slot: Slot) -> &mut T {
        &mut self.values[usize::from(slot)]
    }
}
