//! A trie of prefixes whose changed copies share what did not change. Each node decides six bits of
//! an address, as in a tree bitmap (Eatherton, Varghese and Dittia, "Tree Bitmap", 2004); chains of
//! nodes with one child each are left out, as in a Patricia trie.
//!
//! A lookup visits as many nodes as prefixes nest around the address or branch off beside it, six
//! for IPv4 and twenty-two for IPv6 at most. A change copies the nodes from the root to its own.

use std::sync::Arc;

use super::RouteTarget;

/// Bits of an address that a node decides.
const STRIDE: u8 = 6;

/// Addresses as numbers.
pub(super) trait Bits: Copy + Eq + std::fmt::Debug {
    /// Bits of an address.
    const WIDTH: u8;
    /// The address 0.
    const ZERO: Self;
    /// The six bits behind the first `depth`; behind the end of the address they are zeros.
    fn chunk(self, depth: u8) -> usize;
    /// Returns the number of leading bits that both have in common.
    fn common(self, other: Self) -> u8;
    /// The first `length` bits; zeros behind them.
    fn first(self, length: u8) -> Self;
}

macro_rules! bits {
    ($number:ty) => {
        impl Bits for $number {
            const WIDTH: u8 = <$number>::BITS as u8;
            const ZERO: Self = 0;

            #[inline(always)]
            fn chunk(self, depth: u8) -> usize {
                (self << depth >> (Self::WIDTH - STRIDE)) as usize
            }

            #[inline(always)]
            fn common(self, other: Self) -> u8 {
                (self ^ other).leading_zeros() as u8
            }

            fn first(self, length: u8) -> Self {
                let behind = u32::from(Self::WIDTH - length);
                <$number>::MAX.checked_shl(behind).unwrap_or(0) & self
            }
        }
    };
}

bits!(u32);
bits!(u128);

#[derive(Clone, Debug)]
struct Node<N> {
    /// The first bits that addresses below it have in common; zeros behind them.
    key: N,
    /// Number of these bits, a multiple of [`STRIDE`].
    depth: u8,
    /// Prefixes that end in this node: bit `2^l − 1 + v` for that of `l` bits behind `depth` whose
    /// value is `v`.
    ending: u64,
    /// Values of the six bits behind `depth` that go on in a child.
    going_on: u64,
    /// One entry per bit of `ending`.
    targets: Vec<RouteTarget>,
    /// One entry per bit of `going_on`.
    children: Vec<Arc<Node<N>>>,
}

/// Prefixes that end in a node and hold addresses with these six bits. The longest has the highest
/// bit.
const HOLDING: [u64; 64] = {
    let mut holding = [0; 64];
    let mut chunk = 0;
    while chunk < 64 {
        let mut length = 0;
        while length < STRIDE as usize {
            holding[chunk] |= 1 << ((1 << length) - 1 + (chunk >> (STRIDE as usize - length)));
            length += 1;
        }
        chunk += 1;
    }
    holding
};

/// The values and prefixes that share the first bits of a six-bit value.
#[derive(Clone, Copy)]
struct Among {
    /// Values that do, as bits of `going_on`.
    values: u64,
    /// Prefixes of more bits that hold some of them, as bits of `ending`.
    longer: u64,
}

/// Values and prefixes by value, and by the number of its first bits that are shared.
const AMONG: [[Among; STRIDE as usize]; 64] = {
    let mut among = [[Among { values: 0, longer: 0 }; STRIDE as usize]; 64];
    let mut chunk = 0;
    while chunk < 64 {
        let mut length = 0;
        while length < STRIDE as usize {
            let behind = STRIDE as usize - length;
            let shorter = (1 << (length + 1)) - 1;
            let first = chunk >> behind << behind;
            let mut value = first;
            while value < first + (1 << behind) {
                among[chunk][length].values |= 1 << value;
                among[chunk][length].longer |= HOLDING[value] >> shorter << shorter;
                value += 1;
            }
            length += 1;
        }
        chunk += 1;
    }
    among
};

/// Counts the set bits of a map before this one.
#[inline(always)]
fn rank(map: u64, bit: u32) -> usize {
    (map & ((1 << bit) - 1)).count_ones() as usize
}

/// Prefixes of one family.
#[derive(Clone, Debug)]
pub(super) struct Trie<N> {
    root: Arc<Node<N>>,
}

/// The addresses around one that have its target.
pub(super) struct Around<N> {
    /// The first bits of the address, `length` of them: all addresses that have them have the
    /// target.
    pub(super) first: N,
    pub(super) length: u8,
    pub(super) target: Option<RouteTarget>,
}

impl<N: Bits> Default for Trie<N> {
    fn default() -> Trie<N> {
        Trie { root: Arc::new(Node::new(N::ZERO, 0)) }
    }
}

impl<N: Bits> Trie<N> {
    /// Returns whether the trie has no prefix: then there is no node but the root either.
    pub(super) fn is_empty(&self) -> bool {
        self.root.ending == 0 && self.root.going_on == 0
    }

    /// The target of the longest prefix that holds an address.
    #[inline]
    pub(super) fn lookup(&self, address: N) -> Option<RouteTarget> {
        self.walk(address).1
    }

    /// Looks up an address; returns its target, and the addresses around it that have the same one.
    pub(super) fn around(&self, address: N) -> Around<N> {
        let (node, target) = self.walk(address);
        let length = match node.child(address) {
            // Addresses that leave the way to the child at the same bit.
            Some(child) => address.common(child.key) + 1,
            None => node.depth + node.alone(address.chunk(node.depth)),
        };
        let length = length.min(N::WIDTH);
        Around { first: address.first(length), length, target }
    }

    /// The last node on the way to an address, and the target of the longest prefix on it.
    #[inline]
    fn walk(&self, address: N) -> (&Node<N>, Option<RouteTarget>) {
        let (mut node, mut target) = (&*self.root, None);
        loop {
            let holding = node.ending & HOLDING[address.chunk(node.depth)];
            if holding != 0 {
                target = Some(node.targets[rank(node.ending, holding.ilog2())]);
            }
            match node.child(address) {
                Some(child) if child.holds(address) => node = child,
                _ => return (node, target),
            }
        }
    }

    /// The target of a prefix.
    pub(super) fn get(&self, address: N, length: u8) -> Option<RouteTarget> {
        let (mut node, depth) = (&*self.root, length - length % STRIDE);
        while node.depth < depth {
            node = node.child(address).filter(|child| child.depth <= depth)?;
        }
        let bit = place_of(address, length);
        let is_it = node.holds(address) && node.ending >> bit & 1 == 1;
        is_it.then(|| node.targets[rank(node.ending, bit)])
    }

    /// Gives a prefix a target, and returns the one that it had.
    pub(super) fn insert(
        &mut self,
        address: N,
        length: u8,
        target: RouteTarget,
    ) -> Option<RouteTarget> {
        Arc::make_mut(&mut self.root).insert(address, length, target)
    }

    /// Takes a prefix out, and returns its target.
    pub(super) fn remove(&mut self, address: N, length: u8) -> Option<RouteTarget> {
        // Looked up first, so that no node is copied in vain.
        self.get(address, length)?;
        Arc::make_mut(&mut self.root).remove(address, length)
    }
}

/// The bit of a prefix in the node that it ends in.
fn place_of<N: Bits>(address: N, length: u8) -> u32 {
    let behind = length % STRIDE;
    let value = address.chunk(length - behind) >> (STRIDE - behind);
    (1 << behind) - 1 + value as u32
}

impl<N: Bits> Node<N> {
    fn new(address: N, depth: u8) -> Node<N> {
        let key = address.first(depth);
        Node { key, depth, ending: 0, going_on: 0, targets: Vec::new(), children: Vec::new() }
    }

    /// Returns whether an address has the bits that those below have in common.
    #[inline(always)]
    fn holds(&self, address: N) -> bool {
        address.common(self.key) >= self.depth
    }

    /// The child that an address with this node's bits goes on in, if any of its kind does.
    #[inline(always)]
    fn child(&self, address: N) -> Option<&Node<N>> {
        let chunk = address.chunk(self.depth) as u32;
        let is_there = self.going_on >> chunk & 1 == 1;
        is_there.then(|| &*self.children[rank(self.going_on, chunk)])
    }

    /// Returns the number of the six bits of an address after which no child and no longer prefix
    /// tells apart the addresses that share them.
    fn alone(&self, chunk: usize) -> u8 {
        let is_alone = |of: &Among| self.going_on & of.values == 0 && self.ending & of.longer == 0;
        AMONG[chunk].iter().position(is_alone).map_or(STRIDE, |length| length as u8)
    }

    fn insert(&mut self, address: N, length: u8, target: RouteTarget) -> Option<RouteTarget> {
        let depth = length - length % STRIDE;
        if depth == self.depth {
            let bit = place_of(address, length);
            let place = rank(self.ending, bit);
            if self.ending >> bit & 1 == 1 {
                return Some(std::mem::replace(&mut self.targets[place], target));
            }
            self.ending |= 1 << bit;
            self.targets.insert(place, target);
            return None;
        }
        let chunk = address.chunk(self.depth) as u32;
        let place = rank(self.going_on, chunk);
        if self.going_on >> chunk & 1 == 0 {
            self.going_on |= 1 << chunk;
            self.children.insert(place, Arc::new(Node::new(address, depth)));
        }
        let child = &mut self.children[place];
        let together = address.common(child.key).min(child.depth).min(depth);
        if together < child.depth {
            // The ways part before the child: a node between.
            let mut between = Node::new(address, together - together % STRIDE);
            between.going_on = 1 << child.key.chunk(between.depth);
            between.children.push(child.clone());
            *child = Arc::new(between);
        }
        Arc::make_mut(child).insert(address, length, target)
    }

    /// The prefix is there.
    fn remove(&mut self, address: N, length: u8) -> Option<RouteTarget> {
        if length - length % STRIDE == self.depth {
            let bit = place_of(address, length);
            self.ending &= !(1 << bit);
            return Some(self.targets.remove(rank(self.ending, bit)));
        }
        let chunk = address.chunk(self.depth) as u32;
        let place = rank(self.going_on, chunk);
        let child = Arc::make_mut(&mut self.children[place]);
        let removed = child.remove(address, length);
        match (child.ending, child.children.len()) {
            (0, 0) => {
                self.going_on &= !(1 << chunk);
                self.children.remove(place);
            }
            (0, 1) => self.children[place] = child.children[0].clone(),
            _ => {}
        }
        removed
    }
}
