//! Circles of modules.
//!
//! Modules that lie side by side in one module are held against each other: a child may use its
//! parent, which is its face, and a parent its children.

use std::collections::{BTreeMap, BTreeSet};

use super::items::{Items, Module};

/// Modules each of which needs all of the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Circle {
    /// Their paths (`classifier::build`), sorted.
    pub(crate) modules: Vec<String>,
    /// One example for each pair that needs each other: `open → walk (Row, State)`.
    pub(crate) ties: Vec<String>,
}

/// The names that each module needs of each other one.
type Edges = BTreeMap<Module, BTreeMap<Module, BTreeSet<String>>>;

/// Returns the circles among a crate's files.
pub(crate) fn find<'a>(files: impl Iterator<Item = (&'a Module, &'a Items)>) -> Vec<Circle> {
    let files: BTreeMap<&Module, &Items> = files.collect();
    let tests: BTreeSet<&Module> = files.values().flat_map(|items| &items.test_modules).collect();
    let of_tests =
        |module: &Module| (1..=module.len()).any(|n| tests.contains(&module[..n].to_vec()));
    let modules: BTreeSet<&Module> =
        files.keys().copied().filter(|module| !of_tests(module)).collect();
    let imported: BTreeMap<_, _> = files.values().flat_map(|items| &items.imported).collect();

    let mut edges = Edges::new();
    for (_, items) in files.iter().filter(|(module, _)| !of_tests(module)) {
        for reference in &items.paths {
            let Some((target, name)) = resolve(&reference.to, &modules, &imported) else {
                continue;
            };
            if let Some((from, to)) = siblings(&reference.from, &target) {
                edges.entry(from).or_default().entry(to).or_default().insert(name);
            }
        }
    }
    knots(&edges).into_iter().map(|knot| circle(&knot, &edges)).collect()
}

/// Follows imports to the module that really holds an item. Returns the module and the item's name.
fn resolve(
    path: &[String],
    modules: &BTreeSet<&Module>,
    imported: &BTreeMap<&(Module, String), &Vec<String>>,
) -> Option<(Module, String)> {
    let mut path = path.to_vec();
    // As often as one module hands a name on to the next; a bound, should they do so in a circle.
    for _ in 0..8 {
        let known = (0..=path.len()).rev().find(|n| modules.contains(&path[..*n].to_vec()))?;
        let module = path[..known].to_vec();
        let Some(name) = path.get(known) else { return Some((module, String::new())) };
        match imported.get(&(module.clone(), name.clone())) {
            Some(further) if further.as_slice() != &path[..=known] => {
                let rest = path[known + 1..].to_vec();
                path = [(*further).clone(), rest].concat();
            }
            _ => return Some((module, name.clone())),
        }
    }
    None
}

/// Cuts two modules to the two that lie side by side above them. `None`: one holds the other.
fn siblings(from: &Module, to: &Module) -> Option<(Module, Module)> {
    let shared = from.iter().zip(to).take_while(|(from, to)| from == to).count();
    let cut = |module: &Module| module.get(..=shared).map(<[String]>::to_vec);
    Some((cut(from)?, cut(to)?))
}

/// Returns the sets of modules that reach each other, those of one module left out.
fn knots(edges: &Edges) -> Vec<Vec<Module>> {
    let reach = |from: &Module| {
        let mut reached = BTreeSet::new();
        let mut left = vec![from.clone()];
        while let Some(module) = left.pop() {
            for to in edges.get(&module).into_iter().flat_map(BTreeMap::keys) {
                if reached.insert(to.clone()) {
                    left.push(to.clone());
                }
            }
        }
        reached
    };
    let reached: BTreeMap<&Module, BTreeSet<Module>> =
        edges.keys().map(|module| (module, reach(module))).collect();
    let mut seen = BTreeSet::new();
    let mut knots = Vec::new();
    for (module, forth) in &reached {
        if !forth.contains(*module) || !seen.insert((*module).clone()) {
            continue;
        }
        let back = |other: &&Module| reached.get(other).is_some_and(|it| it.contains(*module));
        let knot: Vec<Module> = forth.iter().filter(back).cloned().collect();
        seen.extend(knot.iter().cloned());
        knots.push(knot);
    }
    knots
}

fn circle(knot: &[Module], edges: &Edges) -> Circle {
    let mut ties = Vec::new();
    for from in knot {
        for (to, names) in edges.get(from).into_iter().flatten() {
            if knot.contains(to) {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let (from, to) = (from.join("::"), to.join("::"));
                ties.push(format!("{from} → {to} ({})", names.join(", ")));
            }
        }
    }
    Circle { modules: knot.iter().map(|module| module.join("::")).collect(), ties }
}
