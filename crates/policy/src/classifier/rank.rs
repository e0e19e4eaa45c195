//! IPv6 addresses as 32-bit numbers: how many ends of ranges lie at or below them.
//!
//! An address is within a range exactly if its rank is within the ranks of the range's ends, so
//! that a set of rules over ranks says what it said over addresses. The ends lie in a static tree
//! of 8 a node, searched level by level for a batch.

use cpu::lanes::Lanes;
use cpu::prefetch_ref;

/// Numbers a node.
const WIDE: usize = 8;
/// Children a node.
const FAN: usize = WIDE + 1;

/// Eight ends of ranges, in halves; what is left over is the highest number.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Node {
    high: [u64; WIDE],
    low: [u64; WIDE],
}

/// The ends of ranges, sorted, each once.
#[derive(Debug)]
pub(super) struct Ranks {
    ends: usize,
    /// Levels from the root down; a node's children are the nodes `FAN × i ..` of the next level.
    /// The last level holds every end.
    levels: Vec<Box<[Node]>>,
}

impl Ranks {
    /// The ranks of the numbers at which some range begins, or has just ended.
    pub(super) fn new(ranges: impl Iterator<Item = (u128, u128)>) -> Ranks {
        let mut ends: Vec<u128> = ranges
            .flat_map(|(lo, hi)| [(lo > 0).then_some(lo), hi.checked_add(1)])
            .flatten()
            .collect();
        ends.sort_unstable();
        ends.dedup();
        let mut levels: Vec<Box<[Node]>> = vec![ends.chunks(WIDE).map(node).collect()];
        // The first end below each node of the level made last.
        let mut firsts: Vec<u128> = ends.chunks(WIDE).map(|chunk| chunk[0]).collect();
        while firsts.len() > 1 {
            levels.push(firsts.chunks(FAN).map(|children| node(&children[1..])).collect());
            firsts = firsts.chunks(FAN).map(|children| children[0]).collect();
        }
        levels.reverse();
        Ranks { ends: ends.len(), levels }
    }

    /// Memory of the tree.
    pub(super) fn bytes(&self) -> usize {
        self.levels.iter().map(|level| std::mem::size_of_val(&**level)).sum()
    }

    /// Nodes that a search looks at.
    pub(super) fn depth(&self) -> usize {
        self.levels.len()
    }

    /// The rank of each address: how many ends are at most it.
    #[inline(always)]
    pub(super) fn search<L: Lanes>(&self, lanes: L, addresses: &[u128], ranks: &mut [u32]) {
        ranks.fill(0);
        for (depth, level) in self.levels.iter().enumerate() {
            let below = self.levels.get(depth + 1);
            for (&address, rank) in addresses.iter().zip(&mut *ranks) {
                let at = *rank as usize;
                // A search that runs past the last node has passed every end.
                let count = match level.get(at) {
                    Some(node) => lanes.count_at_most(address, &node.high, &node.low),
                    None => 0,
                };
                *rank = match below {
                    Some(below) => {
                        let child = at * FAN + count;
                        if let Some(node) = below.get(child) {
                            prefetch_ref(&node.high);
                            prefetch_ref(&node.low);
                        }
                        child as u32
                    }
                    None => (at * WIDE + count).min(self.ends) as u32,
                };
            }
        }
    }
}

/// A node of up to eight numbers.
fn node(numbers: &[u128]) -> Node {
    let at = |i: usize| numbers.get(i).copied().unwrap_or(u128::MAX);
    Node {
        high: std::array::from_fn(|i| (at(i) >> 64) as u64),
        low: std::array::from_fn(|i| at(i) as u64),
    }
}
