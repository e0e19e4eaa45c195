//! Makes the trees of a [`Forest`].
//!
//! A node is cut where few rules lie across: along the dimension, and at the bounds, that a sample
//! of its rules speaks for. Of the rules that do lie across, the widest are left to the next tree
//! and the others are copied, as long as the copies stay few; the last tree copies. A region ends
//! as a leaf when few rules overlap it, or when no cut would make them fewer.
//!
//! A rule that another one before it hides in all of a region is left out there. That makes nested
//! rules cheap whatever their order, and is why the forest keeps a reserve.

use super::cost::{Cost, TooCostly};
use super::forest::{Block, FAN, Forest, LANES, LEAF_BLOCKS, Node, Tree, Word};
use super::header::{Area, DIMENSIONS, EVERYTHING, Ranges, includes};
use super::{Budget, Dead, NONE};

/// Trees at most.
const TREES: usize = 6;
/// Rules up to which a region is not cut: three blocks cost about what two nodes do.
const LEAF_RULES: usize = 48;
/// Rules that stay in a region that cannot be cut well, where another tree follows.
const MOST_LEAF_RULES: usize = 128;
/// Rules that a child should have at least: a block that is not full costs as much as a full one.
const CHILD_RULES: usize = 12;
/// Searches behind one another for rules that are hidden by rules that do not count; the last is
/// a list.
const RESERVES: usize = 3;
/// Cuts on the way to a leaf at most.
const DEPTH: u32 = 16;
/// Rules of a node that are asked where to cut it.
const SAMPLE: usize = 512;
/// Copies that a cut may make, of 16 rules, where another tree follows.
const COPIES_OF_16: usize = 2;
/// Copies that a cut may make of each of few rules, which a longer leaf serves as well; of more
/// than this many it may make any number.
const FEW_COPIES: usize = 2;
const MANY: usize = 500;
/// Rules as stored, for each rule, beyond which no region is cut; and how many more a small set
/// may have.
const STORED_PER_RULE: usize = 4;
const STORED_MORE: usize = 60_000;
/// Places that cuts give to rules, for each rule: what bounds the time and memory of a build.
const WORK_PER_RULE: usize = 48;
/// Places beyond those for each rule, which a small set needs.
const WORK_MORE: usize = 1_000_000;
/// Cost of a rule that is left to the next tree, against one that a header's child keeps.
const LEFT_WEIGHT: f32 = 1.0;
/// A cut is worth a node if it leaves less than this share to search.
const WORTH: f32 = 0.9;
/// The share for a cut where every child has a copy of each rule that it overlaps, though another
/// tree follows.
const WORTH_COPIES: f32 = 0.75;
/// Kinds of rules that a region keeps in mind to leave out what they hide.
const HIDERS: usize = 2;
/// Rules of a region without a good cut that each rule behind them is compared with.
const COMPARED: usize = 64;
/// Positions that a [`TooCostly`] names at most.
const BLAMED: usize = 8;

/// The forest made of a set of areas, with its sizes.
pub(super) struct Built {
    pub(super) forest: Forest,
    /// Nodes on the longest way down a tree.
    pub(super) depth: usize,
    /// Rules as stored.
    pub(super) stored: usize,
}

/// Makes the forest over the `listed` of some areas, which are in order of precedence; an area's
/// position is its index. The `hidden` have been left out, each for one of the `hiders`.
///
/// # Errors
/// [`TooCostly`].
pub(super) fn build(
    areas: &[Area],
    listed: Vec<u32>,
    hidden: &[u32],
    hiders: Dead,
    budget: Budget,
) -> Result<Built, TooCostly> {
    let mut built = grow_trees(areas, listed, hidden, hiders, budget)?;
    // What is hidden by a rule that does not count any more may be hidden by another one behind.
    let mut forest = &mut built.forest;
    for _ in 1..RESERVES {
        let hidden = std::mem::take(&mut forest.hidden);
        if hidden.len() <= MOST_LEAF_RULES {
            forest.hidden = hidden;
            break;
        }
        let unlimited = Budget { steps: u32::MAX, ..budget };
        let reserve = grow_trees(areas, hidden.clone(), &[], Dead::default(), unlimited);
        let Ok(reserve) = reserve else {
            forest.hidden = hidden;
            break;
        };
        forest = forest.reserve.insert(Box::new(reserve.forest));
    }
    let hidden = std::mem::take(&mut forest.hidden);
    if !hidden.is_empty() {
        forest.reserve = Some(Box::new(list(areas, &hidden, budget)?));
    }
    Ok(built)
}

/// A forest that is a plain list of some areas.
///
/// # Errors
/// [`TooCostly`] if it does not hold them all.
fn list(areas: &[Area], listed: &[u32], budget: Budget) -> Result<Forest, TooCostly> {
    let cost = cost_of_list(listed.len());
    let mut forest = Forest { blocks: vec![Block::EMPTY], cost, ..Forest::default() };
    for part in listed.chunks(LEAF_BLOCKS * LANES) {
        let chunks = part.chunks(LANES);
        let Some(root) = room(&forest, chunks.len(), budget.blocks) else {
            let positions = blame(areas, part.to_vec());
            return Err(TooCostly { cost, limit: budget.steps, positions });
        };
        forest.blocks.extend(chunks.map(|chunk| block(areas, chunk)));
        forest.trees.push(Tree { root, first: part[0] });
    }
    Ok(forest)
}

/// Returns the cost of searching a number of areas one block after the other.
fn cost_of_list(areas: usize) -> Cost {
    Cost { nodes: 0, blocks: u32::try_from(areas.div_ceil(LANES)).unwrap_or(u32::MAX) }
}

/// The word of a leaf of the next `blocks` of a forest, if it may hold them.
fn room(forest: &Forest, blocks: usize, most: usize) -> Option<Word> {
    let first = forest.blocks.len();
    (first + blocks <= most).then(|| Word::leaf(first, blocks))?
}

/// A forest that still has to be given its reserve.
fn grow_trees(
    areas: &[Area],
    listed: Vec<u32>,
    hidden: &[u32],
    hiders: Dead,
    budget: Budget,
) -> Result<Built, TooCostly> {
    let mut is_hidden = vec![false; areas.len()];
    hidden.iter().for_each(|&area| is_hidden[area as usize] = true);
    let mut builder = Builder {
        areas,
        forest: Forest { hiders, blocks: vec![Block::EMPTY], ..Forest::default() },
        is_hidden,
        left: Vec::new(),
        work: WORK_PER_RULE * listed.len() + WORK_MORE,
        most_stored: STORED_PER_RULE * listed.len() + STORED_MORE,
        stored: 0,
        most_blocks: budget.blocks,
        is_full: false,
        worst: Worst::default(),
    };
    let all = listed.len();
    let (mut cost, mut worst, mut depth) = (Cost::default(), Worst::default(), 0);
    let mut remaining = listed;
    while !remaining.is_empty() {
        let is_last = builder.forest.trees.len() + 1 >= TREES;
        let follows = if is_last { Follows::Nothing } else { Follows::Tree };
        let root = builder.grow_tree(remaining, follows);
        let most = std::mem::take(&mut builder.worst);
        cost = cost.and(most.cost);
        depth = depth.max(most.cost.nodes as usize);
        if most.cost.steps() > worst.cost.steps() {
            worst = most;
        }
        if builder.is_full {
            // What found no room would have to be searched one block after the other.
            cost = cost.and(cost_of_list(all));
        }
        if cost.steps() > budget.steps || builder.is_full {
            let positions = blame(areas, worst.areas);
            return Err(TooCostly { cost, limit: budget.steps, positions });
        }
        builder.forest.trees.push(root);
        remaining = std::mem::take(&mut builder.left);
        remaining.sort_unstable();
        remaining.dedup();
    }
    let stored = builder.stored;
    builder.forest.cost = cost;
    Ok(Built { forest: builder.finish(), depth, stored })
}

/// The widest of the areas, a few.
fn blame(areas: &[Area], mut worst: Vec<u32>) -> Vec<u32> {
    let width = |area: &u32| -> u32 {
        let bits = |&(lo, hi): &(u32, u32)| u32::BITS - (hi - lo).leading_zeros();
        areas[*area as usize].ranges.iter().map(bits).sum()
    };
    worst.sort_by_key(|area| std::cmp::Reverse(width(area)));
    worst.truncate(BLAMED);
    worst
}

/// The continuation of a search behind a tree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Follows {
    /// Another tree, which takes what does not fit this one.
    Tree,
    Nothing,
}

/// The leaf that takes the most steps of a tree.
#[derive(Default)]
struct Worst {
    cost: Cost,
    areas: Vec<u32>,
}

/// A region and what overlaps it.
struct Region {
    ranges: Ranges,
    /// Areas that overlap it, in order of precedence.
    areas: Vec<u32>,
    /// Nodes above it.
    depth: u32,
}

/// A way to cut a region.
struct Cut {
    dimension: usize,
    /// The lower bound of each child but the first, rising.
    bounds: Vec<u32>,
    wide: Wide,
}

/// The treatment of areas that lie across many bounds of a cut.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wide {
    /// The areas are left to the next tree.
    AreLeft,
    /// Each child has a copy of the area.
    AreCopied,
}

/// The places that the areas of a list have in a cut.
struct Places<'a> {
    areas: &'a [Area],
    /// Areas that cover a child, a few.
    covering: [[Option<u32>; HIDERS]; FAN],
    /// The children that some area covers, a bit each.
    covered: u16,
    /// The children in which each area of the list has a place, a bit each.
    children: Vec<u16>,
    /// Areas that have no place in some child that they overlap, and those that hide them there.
    hidden: Vec<u32>,
    hiders: Vec<u32>,
}

/// The effect that a cut would have on a list of areas.
struct Spread {
    /// Areas of each child.
    counts: [usize; FAN],
    /// Areas that lie across more bounds than this are left to the next tree.
    widest: usize,
    /// Number of areas that are left to the next tree.
    left: usize,
    /// Places taken beyond one an area.
    copies: usize,
}

/// The forest while it grows.
struct Builder<'a> {
    areas: &'a [Area],
    forest: Forest,
    /// Areas that some leaf leaves out.
    is_hidden: Vec<bool>,
    /// Areas that are left to the next tree.
    left: Vec<u32>,
    /// Places in children that may still be taken.
    work: usize,
    stored: usize,
    most_stored: usize,
    /// Blocks that the forest may hold.
    most_blocks: usize,
    /// Set if the forest would need more blocks.
    is_full: bool,
    /// The costliest leaf of the tree that grows.
    worst: Worst,
}

impl Builder<'_> {
    fn grow_tree(&mut self, areas: Vec<u32>, follows: Follows) -> Tree {
        let region = Region { ranges: EVERYTHING, areas, depth: 0 };
        let (root, first) = self.grow(region, follows);
        Tree { root, first }
    }

    /// Makes the word of a region, and says the first position in it.
    fn grow(&mut self, mut region: Region, follows: Follows) -> (Word, u32) {
        if region.depth == 0 {
            // Below, the cut that made the region has done so.
            self.leave_out_hidden(&mut region);
        }
        if region.areas.len() <= LEAF_RULES {
            return self.leaf(region);
        }
        let Some(cut) = self.choose(&region, follows) else {
            return self.uncut(region, follows);
        };
        let node = self.forest.nodes.len();
        self.forest.nodes.push(Node::new(0, &[], &[(Word::EMPTY, NONE)]));
        let children: Vec<(Word, u32)> =
            self.split(region, &cut).into_iter().map(|child| self.grow(child, follows)).collect();
        let first = children.iter().map(|&(_, first)| first).min().unwrap_or(NONE);
        self.forest.nodes[node] = Node::new(cut.dimension, &cut.bounds, &children);
        (Word::node(node), first)
    }

    /// A region that nothing cuts well: a few of its rules stay, the others are left to the next
    /// tree, if there is one.
    fn uncut(&mut self, mut region: Region, follows: Follows) -> (Word, u32) {
        self.leave_out_compared(&mut region);
        if follows == Follows::Tree && region.areas.len() > MOST_LEAF_RULES {
            self.left.extend(region.areas.drain(LEAF_RULES..));
        }
        self.leaf(region)
    }

    fn leaf(&mut self, mut region: Region) -> (Word, u32) {
        // What a leaf cannot hold becomes a tree behind all others: the budget ends that.
        self.left.extend(region.areas.drain(region.areas.len().min(LEAF_BLOCKS * LANES)..));
        let first = region.areas.first().copied().unwrap_or(NONE);
        let chunks = region.areas.chunks(LANES);
        let cost = Cost { nodes: region.depth, blocks: chunks.len() as u32 };
        let room = room(&self.forest, chunks.len(), self.most_blocks);
        match room {
            Some(_) => self.forest.blocks.extend(chunks.map(|chunk| block(self.areas, chunk))),
            None => self.is_full = true,
        }
        self.stored += region.areas.len();
        if cost.steps() > self.worst.cost.steps() {
            self.worst = Worst { cost, areas: region.areas };
        }
        room.map_or((Word::EMPTY, NONE), |word| (word, first))
    }

    /// Leaves out what an area before it hides in all of the region, as far as one look at each
    /// tells.
    fn leave_out_hidden(&mut self, region: &mut Region) {
        let mut hiders: [(u32, u32); HIDERS] = [(0, 0); HIDERS];
        let mut count = 0;
        let Builder { areas, forest, is_hidden, .. } = self;
        region.areas.retain(|&index| {
            let area = &areas[index as usize];
            let hider = hiders[..count].iter().find(|&&(_, class)| includes(class, area.class));
            if let Some(&(hider, _)) = hider {
                forest.hiders.insert(hider);
                is_hidden[index as usize] = true;
                return false;
            }
            if count < HIDERS && area.covers(&region.ranges) {
                hiders[count] = (index, area.class);
                count += 1;
            }
            true
        });
    }

    /// Leaves out hidden areas as [`leave_out_hidden`](Self::leave_out_hidden) does, but compares
    /// each area with several before it.
    fn leave_out_compared(&mut self, region: &mut Region) {
        let mut kept: Vec<u32> = Vec::new();
        for &index in &region.areas {
            let area = &self.areas[index as usize];
            let hides = |&&by: &&u32| self.areas[by as usize].hides(area, &region.ranges);
            match kept.iter().take(COMPARED).find(hides) {
                Some(&hider) => {
                    self.forest.hiders.insert(hider);
                    self.is_hidden[index as usize] = true;
                }
                None => kept.push(index),
            }
        }
        region.areas = kept;
    }

    /// The cut that leaves the least to search, if one is worth a node.
    fn choose(&self, region: &Region, follows: Follows) -> Option<Cut> {
        if region.depth >= DEPTH || self.stored + region.areas.len() > self.most_stored {
            return None;
        }
        let step = region.areas.len().div_ceil(SAMPLE);
        let sample: Vec<u32> = region.areas.iter().step_by(step).copied().collect();
        let worth = |(rest, cut): (f32, Cut), most: f32| (rest < most).then_some(cut);
        let copies = |most| worth(self.best_cut(region, &sample, Wide::AreCopied)?, most);
        match follows {
            // Where everything lies across everything, copies help if they hide one another.
            Follows::Tree => self
                .best_cut(region, &sample, Wide::AreLeft)
                .and_then(|cut| worth(cut, WORTH))
                .or_else(|| copies(WORTH_COPIES)),
            Follows::Nothing => copies(WORTH),
        }
    }

    /// The cut that leaves the least to search by a sample of a region's areas, with that share.
    fn best_cut(&self, region: &Region, sample: &[u32], wide: Wide) -> Option<(f32, Cut)> {
        let step = region.areas.len().div_ceil(SAMPLE);
        let many_copies = if region.areas.len() > MANY { FAN } else { FEW_COPIES };
        let cuts = (0..DIMENSIONS).filter_map(|dimension| {
            let bounds = self.bounds(region, dimension, sample)?;
            let places = Places::new(self.areas, region, sample, dimension, &bounds);
            let spread = Spread::new(&places, wide);
            let fits = spread.copies <= many_copies * sample.len()
                && (sample.len() + spread.copies) * step <= self.work;
            fits.then(|| (spread.rest(sample.len()), Cut { dimension, bounds, wide }))
        });
        cuts.min_by(|one, other| one.0.total_cmp(&other.0))
    }

    /// Up to 15 numbers within the region at which the areas of a sample part well in a dimension:
    /// about as many between any two, and few across.
    fn bounds(&self, region: &Region, dimension: usize, sample: &[u32]) -> Option<Vec<u32>> {
        let (from, to) = region.ranges[dimension];
        let ranges = sample.iter().map(|&area| self.areas[area as usize].ranges[dimension]);
        // Where an area begins, and where it has just ended: `true` is a beginning.
        let mut ends: Vec<(u32, bool)> = Vec::with_capacity(2 * sample.len());
        let mut open = 0;
        for (lo, hi) in ranges {
            match lo > from {
                true => ends.push((lo, true)),
                false => open += 1,
            }
            if hi < to {
                ends.push((hi + 1, false));
            }
        }
        ends.sort_unstable();
        let crossed = crossings(&ends, open);
        if crossed.is_empty() {
            return None;
        }
        let mut bounds: Vec<u32> = Vec::with_capacity(FAN - 1);
        let fan = region.areas.len().div_ceil(CHILD_RULES).clamp(2, FAN);
        let window = crossed.len() / (4 * fan);
        for cut in 1..fan {
            let target = cut * crossed.len() / fan;
            let near = target.saturating_sub(window)..(target + window + 1).min(crossed.len());
            let best = crossed[near].iter().min_by_key(|&&(_, across)| across);
            let Some(&(bound, _)) = best else { continue };
            if bounds.last().is_none_or(|&last| last < bound) {
                bounds.push(bound);
            }
        }
        Some(bounds)
    }

    /// Cuts a region; what lies across too widely is left to the next tree.
    fn split(&mut self, region: Region, cut: &Cut) -> Vec<Region> {
        let places = Places::new(self.areas, &region, &region.areas, cut.dimension, &cut.bounds);
        let spread = Spread::new(&places, cut.wide);
        self.work = self.work.saturating_sub(region.areas.len() + spread.copies);
        places.hidden.iter().for_each(|&area| self.is_hidden[area as usize] = true);
        for &area in &places.hiders {
            self.forest.hiders.insert(area);
        }
        let mut children: Vec<Vec<u32>> =
            spread.counts[..=cut.bounds.len()].iter().map(|&n| Vec::with_capacity(n)).collect();
        for (&area, &children_of) in region.areas.iter().zip(&places.children) {
            match width(children_of) <= spread.widest {
                true => each(children_of, |child| children[child].push(area)),
                false => self.left.push(area),
            }
        }
        let (from, to) = region.ranges[cut.dimension];
        let begin = |child: usize| if child == 0 { from } else { cut.bounds[child - 1] };
        let end = |child: usize| cut.bounds.get(child).map_or(to, |&next| next - 1);
        let regions = children.into_iter().enumerate().map(|(child, areas)| {
            let mut ranges = region.ranges;
            ranges[cut.dimension] = (begin(child), end(child));
            Region { ranges, areas, depth: region.depth + 1 }
        });
        regions.collect()
    }

    /// The forest, with what it leaves out.
    fn finish(mut self) -> Forest {
        let areas = (0..).zip(&self.is_hidden);
        self.forest.hidden = areas.filter(|&(_, &hidden)| hidden).map(|(area, _)| area).collect();
        self.forest.nodes.shrink_to_fit();
        self.forest.blocks.shrink_to_fit();
        self.forest
    }
}

impl<'a> Places<'a> {
    fn new(
        areas: &'a [Area],
        region: &Region,
        listed: &[u32],
        dimension: usize,
        bounds: &[u32],
    ) -> Places<'a> {
        let mut places = Places {
            areas,
            covering: [[None; HIDERS]; FAN],
            covered: 0,
            children: Vec::with_capacity(listed.len()),
            hidden: Vec::new(),
            hiders: Vec::new(),
        };
        let mut others = region.ranges;
        others[dimension] = (u32::MAX, 0);
        let (from, to) = region.ranges[dimension];
        let mut padded = [u32::MAX; FAN];
        padded[..bounds.len()].copy_from_slice(bounds);
        let passed = |number: u32| {
            let passed: u32 = padded.iter().map(|&bound| u32::from(bound <= number)).sum();
            (passed as usize).min(bounds.len())
        };
        for &index in listed {
            let area = &areas[index as usize];
            let (lo, hi) = area.ranges[dimension];
            let (first, last) = (passed(lo), passed(hi));
            let mut children = (((2u32 << last) - 1) & !((1u32 << first) - 1)) as u16;
            each(children & places.covered, |child| {
                if !places.is_open(child, index) {
                    children &= !(1 << child);
                }
            });
            places.children.push(children);
            if !area.covers(&others) {
                continue;
            }
            // The children that it covers wholly: all between, and those at its ends perhaps.
            let begin = if first == 0 { from } else { bounds[first - 1] };
            let end = bounds.get(last).map_or(to, |&next| next - 1);
            let whole = first + usize::from(lo > begin)..last + usize::from(hi >= end);
            whole.for_each(|child| places.cover(child, index));
        }
        places
    }

    /// Returns whether an area has a place in a child: whether none before it hides it there.
    fn is_open(&mut self, child: usize, index: u32) -> bool {
        let class = |area: u32| self.areas[area as usize].class;
        let mut covering = self.covering[child].iter().flatten();
        let hider = covering.find(|&&by| includes(class(by), class(index)));
        if let Some(&hider) = hider {
            self.hidden.push(index);
            if self.hiders.last() != Some(&hider) {
                self.hiders.push(hider);
            }
        }
        hider.is_none()
    }

    /// Notes that an area covers a child.
    fn cover(&mut self, child: usize, index: u32) {
        if let Some(free) = self.covering[child].iter_mut().find(|covering| covering.is_none()) {
            *free = Some(index);
            self.covered |= 1 << child;
        }
    }
}

/// Does something for each child of a set.
fn each(mut children: u16, mut with: impl FnMut(usize)) {
    while children != 0 {
        with(children.trailing_zeros() as usize % FAN);
        children &= children - 1;
    }
}

/// Across how many bounds an area with a place in these children lies.
fn width(children: u16) -> usize {
    (children.count_ones() as usize).saturating_sub(1)
}

impl Spread {
    fn new(places: &Places, wide: Wide) -> Spread {
        let mut widths = [0usize; FAN];
        places.children.iter().for_each(|&children| widths[width(children)] += 1);
        let allowed = match wide {
            Wide::AreLeft => places.children.len() * COPIES_OF_16 / 16,
            Wide::AreCopied => usize::MAX,
        };
        let mut spread = Spread { counts: [0; FAN], widest: 0, left: 0, copies: 0 };
        for (width, &count) in widths.iter().enumerate() {
            let copies = spread.copies + width * count;
            if spread.left > 0 || copies > allowed {
                spread.left += count;
            } else {
                (spread.widest, spread.copies) = (width, copies);
            }
        }
        for &children in &places.children {
            if width(children) <= spread.widest {
                each(children, |child| spread.counts[child] += 1);
            }
        }
        spread
    }

    /// Returns the share of the `areas` that is expected to be left to search: in the child that a
    /// header goes to, and in the next trees.
    fn rest(&self, areas: usize) -> f32 {
        let areas = areas as f32;
        let squares: f32 = self.counts.iter().map(|&count| (count * count) as f32).sum();
        // A header is expected in a child by how many of the areas are there.
        let kept: f32 = self.counts.iter().sum::<usize>() as f32;
        let kept = if self.copies > self.left { kept } else { areas };
        squares / (areas * kept.max(1.0)) + LEFT_WEIGHT * self.left as f32 / areas
    }
}

/// Each number at which an area begins or has just ended, once and rising, with how many areas lie
/// across it. `open` areas begin before all of them.
fn crossings(ends: &[(u32, bool)], mut open: usize) -> Vec<(u32, usize)> {
    let mut crossed = Vec::with_capacity(ends.len());
    for same in ends.chunk_by(|one, other| one.0 == other.0) {
        let begins = same.iter().filter(|&&(_, begins)| begins).count();
        open -= same.len() - begins;
        crossed.push((same[0].0, open));
        open += begins;
    }
    crossed
}

/// The areas of one block.
fn block(areas: &[Area], chunk: &[u32]) -> Block {
    let mut block = Block::EMPTY;
    for (lane, &area) in chunk.iter().enumerate() {
        block.set(lane, &areas[area as usize], area);
    }
    block
}
