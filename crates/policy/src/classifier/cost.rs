//! Bounds the cost of a search, and holds the bound that a set of rules must keep.

/// Blocks of a forest at most: what the index in a leaf holds.
pub(super) const MAX_BLOCKS: usize = 1 << 24;

/// The most that a search of one flow costs: a bound over all flows, not a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Cost {
    /// Nodes of trees that are looked at.
    pub nodes: u32,
    /// Blocks of 16 rules that are looked at.
    pub blocks: u32,
}

impl Cost {
    /// Estimates the time that a search of this cost takes, nanoseconds, in a batch of 64 from the
    /// second-level cache: 4 for the flow itself, 2 a node and 4 a block, as measured with AVX-512
    /// on an AMD Zen 5.
    pub fn nanoseconds(self) -> u32 {
        let nodes = self.nodes.saturating_mul(2);
        nodes.saturating_add(self.blocks.saturating_mul(4)).saturating_add(4)
    }

    /// Nodes and blocks together: the unit of [`Budget::steps`]. A step reads two to eight cache
    /// lines and compares 16 numbers or rules at once.
    pub fn steps(self) -> u32 {
        self.nodes.saturating_add(self.blocks)
    }

    /// Returns the cost of one search and another behind it.
    pub(crate) fn and(self, other: Cost) -> Cost {
        Cost {
            nodes: self.nodes.saturating_add(other.nodes),
            blocks: self.blocks.saturating_add(other.blocks),
        }
    }
}

/// The limits of a search's cost and a classifier's size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// [`Cost::steps`] of a search at most.
    pub steps: u32,
    /// Blocks of 16 rules that one set of trees holds at most; never more than 2²⁴.
    pub blocks: usize,
}

impl Default for Budget {
    /// 256 steps, about a microsecond: sets of 100,000 rules as they are used need 10 to 40, plain
    /// lists of 4,000 rules fit. Blocks: as many as can be.
    fn default() -> Budget {
        Budget { steps: 256, blocks: MAX_BLOCKS }
    }
}

/// Reason why rules cannot become a classifier: some flow would cost more than the budget. Rules
/// for whose blocks there is no room are counted as searched one block after the other.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a search could take {steps} steps; at most {limit} are allowed", steps = cost.steps())]
pub struct TooCostly {
    /// The most that a search would cost.
    pub cost: Cost,
    /// [`Budget::steps`].
    pub limit: u32,
    /// Positions of the rules that cost most, the worst first; a few of them, at least one.
    pub positions: Vec<u32>,
}

/// The sizes of a classifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Rules that it was made of.
    pub rules: usize,
    /// Cut trees; 0 is a plain list.
    pub trees: usize,
    /// Nodes on the longest way down a tree.
    pub depth: usize,
    /// Rules as stored, each as often as it is.
    pub copies: usize,
}
