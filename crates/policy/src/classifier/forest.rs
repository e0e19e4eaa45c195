//! Cut trees over blocks of 16 rules, and the search of a batch in them.
//!
//! A tree cuts all headers into regions: a node cuts its region along one dimension into up to 16,
//! and a leaf holds the rules that its region overlaps, the highest precedence first. A rule lies
//! in one tree, or in a few leaves of it. Trees are searched one after another; what has been
//! found lets whole subtrees be passed over, by the first position that they hold.
//!
//! A batch goes down a tree level by level, so that what one header waits for has been asked for
//! while the others were looked at.

use std::ops::Range;

use cpu::lanes::Lanes;
use cpu::prefetch_ref;

use super::cost::MAX_BLOCKS;
use super::header::{Area, Header, NO_CLASS, PLACES};
use super::{Cost, Dead, NONE};

/// Headers that are searched together.
pub(super) const BATCH: usize = 64;
/// Rules a block.
pub(super) const LANES: usize = 16;
/// Number of headers by which a prefetch runs ahead.
const AHEAD: usize = 8;
/// Children of a node.
pub(super) const FAN: usize = 16;
/// Blocks of a leaf at most: what the count in a [`Word`] holds.
pub(super) const LEAF_BLOCKS: usize = 0x7f;

/// The next step of a search: a node, or a leaf with the number of its blocks.
///
/// A leaf has the highest bit set, then 7 bits of count, then 24 of the first block; a node is its
/// index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Word(u32);

impl Word {
    const LEAF: u32 = 1 << 31;
    /// A leaf without rules.
    pub(super) const EMPTY: Word = Word(Word::LEAF);

    /// The word of a node.
    pub(super) fn node(index: usize) -> Word {
        Word(index as u32)
    }

    /// The word of a leaf; `None` if it cannot be said: beyond [`LEAF_BLOCKS`] or
    /// [`MAX_BLOCKS`].
    pub(super) fn leaf(first: usize, blocks: usize) -> Option<Word> {
        let fits = blocks <= LEAF_BLOCKS && first < MAX_BLOCKS && first + blocks <= MAX_BLOCKS;
        fits.then_some(Word(Word::LEAF | (blocks as u32) << 24 | first as u32))
    }

    #[inline(always)]
    fn is_leaf(self) -> bool {
        self.0 & Word::LEAF != 0
    }

    #[inline(always)]
    fn first_block(self) -> usize {
        (self.0 & 0xff_ffff) as usize
    }

    /// Returns the word of this leaf without its first block.
    #[inline(always)]
    fn behind_first(self) -> Word {
        Word(self.0.wrapping_add(1).wrapping_sub(1 << 24))
    }

    #[inline(always)]
    fn blocks(self) -> usize {
        (self.0 >> 24 & 0x7f) as usize
    }
}

/// A cut of a region along one dimension.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Node {
    /// The lower bound of each child but the first; the last lane holds the [`PLACES`] entry of the
    /// dimension that is cut.
    bounds: [u32; FAN],
    children: [Word; FAN],
    /// The first position below each child.
    firsts: [u32; FAN],
}

impl Node {
    /// A node that cuts `dimension` at `bounds`, which rise; a child more than there are bounds.
    pub(super) fn new(dimension: usize, bounds: &[u32], children: &[(Word, u32)]) -> Node {
        debug_assert!(bounds.len() < FAN && children.len() == bounds.len() + 1);
        let child = |i: usize| children[i.min(children.len() - 1)];
        let (number, left, right) = PLACES[dimension];
        let place = number as u32 | left << 8 | right << 16;
        // Behind the last bound lies the last child again: a bound that only the highest number
        // reaches leads to where that number belongs.
        let bound = |i: usize| bounds.get(i).copied().unwrap_or(u32::MAX);
        Node {
            bounds: std::array::from_fn(|i| if i == FAN - 1 { place } else { bound(i) }),
            children: std::array::from_fn(|i| child(i).0),
            firsts: std::array::from_fn(|i| child(i).1),
        }
    }

    /// Returns the place in a header of the dimension that is cut.
    #[inline(always)]
    fn place(&self) -> u32 {
        self.bounds[FAN - 1]
    }

    /// The child that a header goes to, by what lies at `place`.
    #[inline(always)]
    fn child<L: Lanes>(&self, lanes: L, place: u32, header: &Header) -> usize {
        let number = header[place as usize & 3];
        let number = number << (place >> 8 & 31) >> (place >> 16 & 31);
        let passed = lanes.bits(lanes.at_least(number, &self.bounds));
        (passed & 0x7fff).count_ones() as usize
    }

    #[inline(always)]
    fn prefetch(&self) {
        prefetch_ref(&self.bounds);
        prefetch_ref(&self.children);
        prefetch_ref(&self.firsts);
    }
}

/// Sixteen rules in columns, the highest precedence first.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Block {
    source_lo: [u32; LANES],
    source_length: [u32; LANES],
    destination_lo: [u32; LANES],
    destination_length: [u32; LANES],
    ports_lo: [u32; LANES],
    ports_length: [u32; LANES],
    class: [u32; LANES],
    positions: [u32; LANES],
}

impl Block {
    /// A block that matches nothing.
    pub(super) const EMPTY: Block = Block {
        source_lo: [0; LANES],
        source_length: [0; LANES],
        destination_lo: [0; LANES],
        destination_length: [0; LANES],
        ports_lo: [0; LANES],
        ports_length: [0; LANES],
        class: [NO_CLASS; LANES],
        positions: [NONE; LANES],
    };

    /// Puts a rule into a lane.
    pub(super) fn set(&mut self, lane: usize, area: &Area, position: u32) {
        let [source, destination, source_port, destination_port, _] = area.ranges;
        let length = |(lo, hi): (u32, u32)| hi - lo;
        self.source_lo[lane] = source.0;
        self.source_length[lane] = length(source);
        self.destination_lo[lane] = destination.0;
        self.destination_length[lane] = length(destination);
        self.ports_lo[lane] = destination_port.0 << 16 | source_port.0;
        self.ports_length[lane] = length(destination_port) << 16 | length(source_port);
        self.class[lane] = area.class;
        self.positions[lane] = position;
    }

    /// Lanes whose rule speaks of the header.
    #[inline(always)]
    fn speaking<L: Lanes>(&self, lanes: L, &[source, destination, ports, class]: &Header) -> u16 {
        let sources = lanes.within(source, &self.source_lo, &self.source_length);
        let destinations =
            lanes.within(destination, &self.destination_lo, &self.destination_length);
        let ports = lanes.halves_within(ports, &self.ports_lo, &self.ports_length);
        let classes = lanes.agrees(class, &self.class);
        lanes.bits(lanes.both(lanes.both(sources, destinations), lanes.both(ports, classes)))
    }

    #[inline(always)]
    fn prefetch(&self) {
        prefetch_ref(&self.source_lo);
        prefetch_ref(&self.source_length);
        prefetch_ref(&self.destination_lo);
        prefetch_ref(&self.destination_length);
        prefetch_ref(&self.ports_lo);
        prefetch_ref(&self.ports_length);
        prefetch_ref(&self.class);
        prefetch_ref(&self.positions);
    }
}

/// A tree: where its search begins, and the first position that it holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tree {
    pub(super) root: Word,
    pub(super) first: u32,
}

/// The trees of one set of rules.
#[derive(Debug, Default)]
pub(super) struct Forest {
    pub(super) trees: Vec<Tree>,
    pub(super) nodes: Vec<Node>,
    /// The first is empty.
    pub(super) blocks: Vec<Block>,
    /// Rules that some leaf leaves out because one before them hides them there.
    pub(super) reserve: Option<Box<Forest>>,
    /// Positions of these rules, rising; only while the forest is made.
    pub(super) hidden: Vec<u32>,
    /// Positions of rules that hide others somewhere: where such a rule does not count, the
    /// reserve must be searched.
    pub(super) hiders: Dead,
    /// The most that a search costs, without the reserve.
    pub(super) cost: Cost,
}

/// The choice of rules that count.
pub(super) trait Counts: Copy {
    /// Returns the lanes whose rules count, of the rules of a block that concern a header.
    fn judge(self, speaking: u16, positions: &[u32; LANES]) -> Says;
}

/// The answer of a block about a header.
#[derive(Clone, Copy)]
pub(super) struct Says {
    /// Lanes that concern it, without some at the beginning that do not count.
    speaking: u16,
    /// True if one of the lanes left out hides other rules.
    misses_hidden: bool,
}

/// All rules count.
#[derive(Clone, Copy)]
pub(super) struct AllCount;

impl Counts for AllCount {
    #[inline(always)]
    fn judge(self, speaking: u16, _positions: &[u32; LANES]) -> Says {
        Says { speaking, misses_hidden: false }
    }
}

/// Rules in `dead` do not count.
#[derive(Clone, Copy)]
pub(super) struct Living<'a> {
    pub(super) dead: &'a Dead,
    /// [`Forest::hiders`].
    pub(super) hiders: &'a Dead,
}

impl Counts for Living<'_> {
    #[inline(always)]
    fn judge(self, mut speaking: u16, positions: &[u32; LANES]) -> Says {
        let mut misses_hidden = false;
        while speaking != 0 {
            let position = positions[speaking.trailing_zeros() as usize % LANES];
            if !self.dead.contains(position) {
                break;
            }
            misses_hidden |= self.hiders.contains(position);
            speaking &= speaking - 1;
        }
        Says { speaking, misses_hidden }
    }
}

impl Forest {
    /// Memory of nodes and blocks.
    pub(super) fn bytes(&self) -> usize {
        std::mem::size_of_val(&*self.nodes)
            + std::mem::size_of_val(&*self.blocks)
            + self.hiders.bytes()
            + self.reserve.as_ref().map_or(0, |reserve| reserve.bytes())
    }

    /// Returns the most that a search costs where some rules do not count: it includes each reserve
    /// that the hiders among them lead to. Cost: by the number of positions.
    pub(super) fn cost_without(&self, dead: &Dead) -> Cost {
        let (mut cost, mut forest) = (self.cost, self);
        while let (Some(reserve), true) = (&forest.reserve, forest.hiders.meets(dead)) {
            cost = cost.and(reserve.cost);
            forest = reserve;
        }
        cost
    }

    /// Blocks that are searched for a header whose rule does not count and hides others.
    #[cfg(test)]
    pub(super) fn reserve_blocks(&self) -> usize {
        self.reserve.as_ref().map_or(0, |reserve| reserve.blocks.len() + reserve.reserve_blocks())
    }

    /// Replaces the positions that the forest answers with by the entries of `owners` at those
    /// positions, which rise.
    pub(super) fn renumber(&mut self, owners: &[u32]) {
        let renumber = |position: &mut u32| {
            *position = owners.get(*position as usize).copied().unwrap_or(NONE);
        };
        self.trees.iter_mut().for_each(|tree| renumber(&mut tree.first));
        self.nodes.iter_mut().flat_map(|node| &mut node.firsts).for_each(renumber);
        self.blocks.iter_mut().flat_map(|block| &mut block.positions).for_each(renumber);
        let mut hiders = Dead::default();
        for (area, owner) in (0..).zip(owners) {
            if self.hiders.contains(area) {
                hiders.insert(*owner);
            }
        }
        self.hiders = hiders;
        self.reserve.iter_mut().for_each(|reserve| reserve.renumber(owners));
    }

    /// Searches the first `rows` of some headers: `best[i]` is the first position that counts and
    /// speaks of `headers[i]`, or [`NONE`]. Yields the rows for which the reserve must be searched
    /// too, a bit each.
    #[inline(always)]
    pub(super) fn search<L: Lanes, C: Counts>(
        &self,
        lanes: L,
        counts: C,
        headers: &[Header; BATCH],
        rows: usize,
        best: &mut [u32; BATCH],
    ) -> u64 {
        *best = [NONE; BATCH];
        let mut descent = Descent::new();
        let mut misses_hidden = 0;
        for tree in &self.trees {
            match tree.root.is_leaf() {
                true => descent.start_at_leaf(tree, rows, best),
                false => self.descend_from_root(lanes, tree, headers, rows, best, &mut descent),
            }
            while descent.open != 0 {
                self.descend(lanes, headers, best, &mut descent);
            }
            misses_hidden |= self.search_leaves(lanes, counts, headers, best, &mut descent);
        }
        misses_hidden
    }

    /// The first level down, from a node that is the same for every header.
    #[inline(always)]
    fn descend_from_root<L: Lanes>(
        &self,
        lanes: L,
        tree: &Tree,
        headers: &[Header; BATCH],
        rows: usize,
        best: &[u32; BATCH],
        descent: &mut Descent,
    ) {
        let node = &self.nodes[tree.root.0 as usize];
        let place = node.place();
        let (mut open, mut leaves) = (0, 0);
        for row in 0..rows.min(BATCH) {
            let child = node.child(lanes, place, &headers[row]) % FAN;
            descent.step(row, node, child, best[row], &mut open, &mut leaves);
        }
        (descent.open, descent.leaves) = (open, leaves);
    }

    /// One level down for every header that has not come to a leaf.
    #[inline(always)]
    fn descend<L: Lanes>(
        &self,
        lanes: L,
        headers: &[Header; BATCH],
        best: &[u32; BATCH],
        descent: &mut Descent,
    ) {
        let (mut open, mut leaves) = (0, descent.leaves);
        self.prefetch_nodes(descent, 0..AHEAD);
        for at in 0..descent.open.min(BATCH) {
            self.prefetch_nodes(descent, at + AHEAD..at + AHEAD + 1);
            let row = usize::from(descent.open_rows[at]) % BATCH;
            let node = &self.nodes[descent.words[row].0 as usize];
            let child = node.child(lanes, node.place(), &headers[row]) % FAN;
            descent.step(row, node, child, best[row], &mut open, &mut leaves);
        }
        (descent.open, descent.leaves) = (open, leaves);
    }

    /// Asks for the nodes that some of the open headers are at.
    #[inline(always)]
    fn prefetch_nodes(&self, descent: &Descent, open: Range<usize>) {
        for at in open.start..open.end.min(descent.open) {
            let row = usize::from(descent.open_rows[at]) % BATCH;
            self.nodes[descent.words[row].0 as usize].prefetch();
        }
    }

    /// Asks for the blocks that some of the headers in leaves come to next.
    #[inline(always)]
    fn prefetch_blocks(&self, words: &[Word; BATCH], rows: &[u8]) {
        for &row in rows {
            self.blocks[words[usize::from(row) % BATCH].first_block()].prefetch();
        }
    }

    /// Looks through the leaves that headers have come to, a block of each at a time. Yields the
    /// rows for which the reserve must be searched, a bit each.
    #[inline(always)]
    fn search_leaves<L: Lanes, C: Counts>(
        &self,
        lanes: L,
        counts: C,
        headers: &[Header; BATCH],
        best: &mut [u32; BATCH],
        descent: &mut Descent,
    ) -> u64 {
        let mut misses_hidden = 0u64;
        let rows = &mut descent.leaf_rows;
        let mut open = descent.leaves.min(BATCH);
        while open != 0 {
            let mut going = 0;
            self.prefetch_blocks(&descent.words, &rows[..open.min(AHEAD)]);
            for at in 0..open {
                if let Some(next) = rows[..open].get(at + AHEAD..at + AHEAD + 1) {
                    self.prefetch_blocks(&descent.words, next);
                }
                let row = usize::from(rows[at]) % BATCH;
                let word = descent.words[row];
                let block = &self.blocks[word.first_block()];
                let says = counts.judge(block.speaking(lanes, &headers[row]), &block.positions);
                let found = says.speaking != 0;
                let place = (word.first_block() * LANES) as u32 + says.speaking.trailing_zeros();
                // Nothing branches on whether a rule was found either: if not, it is lane 0 of
                // block 0, which is nobody's.
                let place = (place & u32::from(found).wrapping_neg()) as usize;
                let position = self.blocks[place / LANES].positions[place % LANES];
                best[row] = best[row].min(position);
                misses_hidden |= u64::from(says.misses_hidden) << row;
                descent.words[row] = word.behind_first();
                rows[going % BATCH] = row as u8;
                going += usize::from(!found & (word.blocks() > 1));
            }
            open = going;
        }
        misses_hidden
    }
}

/// The progress of each header of a batch down a tree.
struct Descent {
    words: [Word; BATCH],
    /// Headers that are at a node.
    open_rows: [u8; BATCH],
    open: usize,
    /// Headers that are at a leaf.
    leaf_rows: [u8; BATCH],
    leaves: usize,
}

impl Descent {
    #[inline(always)]
    fn new() -> Descent {
        let (open_rows, leaf_rows) = ([0; BATCH], [0; BATCH]);
        Descent { words: [Word::EMPTY; BATCH], open_rows, open: 0, leaf_rows, leaves: 0 }
    }

    /// Puts every header that the tree may still speak of at its root, a leaf.
    #[inline(always)]
    fn start_at_leaf(&mut self, tree: &Tree, rows: usize, best: &[u32; BATCH]) {
        self.words = [tree.root; BATCH];
        (self.open, self.leaves) = (0, 0);
        for (row, &best) in best.iter().enumerate().take(rows) {
            self.leaf_rows[self.leaves % BATCH] = row as u8;
            self.leaves += usize::from(tree.first < best);
        }
    }

    /// Takes a header down to a child, into the list of open headers or that of leaves; into none
    /// if nothing there is better than `best`.
    #[inline(always)]
    fn step(
        &mut self,
        row: usize,
        node: &Node,
        child: usize,
        best: u32,
        open: &mut usize,
        leaves: &mut usize,
    ) {
        let word = node.children[child];
        self.words[row] = word;
        // Where a header goes is a matter of chance: nothing branches on it.
        let goes_on = node.firsts[child] < best;
        self.leaf_rows[*leaves % BATCH] = row as u8;
        *leaves += usize::from(goes_on & word.is_leaf());
        self.open_rows[*open % BATCH] = row as u8;
        *open += usize::from(goes_on & !word.is_leaf());
    }
}
