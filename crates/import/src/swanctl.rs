//! strongSwan's swanctl.conf.
//!
//! charon goes on to read that file: it negotiates, with its own certificates and secrets. What
//! becomes a configuration here is which packets are protected, and with whom: each child with its
//! connection's addresses is a peer with `keys = "ike"` and its policies, since an SA here is for a
//! peer whose policies it covers.
//!
//! | step | module | |
//! |---|---|---|
//! | read | `syntax` | sections, with those that they inherit from |
//! | values | `values` | times, selectors, proposals |
//! | select | `selectors` | policies of a child, and their order |
//! | judge | `connection`, `child`, `keys` | drafts of peers and policies, and what has no place |
//! | | `left_out` | children that are not taken, and which policies have their packets |
//! | write | `write` | the configuration |

mod child;
mod connection;
mod keys;
mod left_out;
mod selectors;
mod syntax;
mod values;
mod write;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use config::{Location, nearest};
use ipsec::{Lifetime, Mode, Suite};
use policy::Selector;

use crate::problem::{Fate, ImportErrors, Mistake, Omissions, Parsed, Problem, shown};
use crate::source::Foreign;
use crate::{Imported, Options};
use keys::TOP;
use left_out::LeftOut;
use selectors::Prefixes;
use syntax::{Include, Place, Tree, View};

/// Children of all connections at most.
const MAX_CHILDREN: usize = 1 << 16;
/// Prefixes, ranges and addresses at most: in the selectors that are read, and in all policies.
/// Sections inherit, so that a short text can stand for very many.
const MAX_ADDRESSES: usize = 1 << 20;

/// One end of a peer.
#[derive(Clone, Debug)]
struct End {
    address: IpAddr,
    /// Reason why the address stands for another one, which the operator must write.
    fill_in: Option<String>,
    /// The text that it came from.
    from: String,
}

/// A peer as it is written.
struct PeerDraft {
    name: String,
    at: Location,
    ends: [End; 2],
    mode: Mode,
    suite: Suite,
    /// Reason why the operator must choose the suite.
    suite_fill_in: bool,
    /// ESP in UDP, to this port.
    udp: Option<u16>,
    window: Option<u32>,
    dscp: Option<u8>,
    df: Option<&'static str>,
    lifetime: Lifetime,
}

/// The effect of a policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    /// Protects with the peer of this number.
    Protect(usize),
    Bypass,
    Discard,
}

/// A policy as it is written.
struct PolicyDraft {
    name: String,
    at: Location,
    action: Action,
    selector: Selector,
    /// The lower one is asked first; of equal ones the first.
    rank: u32,
    /// Reason why the operator must write other addresses.
    fill_in: Option<String>,
}

/// All that becomes the configuration.
#[derive(Default)]
struct Drafts {
    peers: Vec<PeerDraft>,
    policies: Vec<PolicyDraft>,
    /// UDP ports of IKE.
    ike_ports: BTreeSet<u16>,
}

/// The number of prefixes, ranges and addresses so far.
#[derive(Default)]
struct Addresses {
    read: usize,
    in_policies: usize,
}

impl Addresses {
    /// The mistake of a text that has more than [`MAX_ADDRESSES`].
    fn beyond(&self) -> Option<Mistake> {
        let limit = MAX_ADDRESSES;
        let what = match (self.read > limit, self.in_policies > limit) {
            (true, _) => "prefixes, ranges and addresses in `local_ts` and `remote_ts`",
            (_, true) => "prefixes, ranges and addresses in the policies of all children",
            _ => return None,
        };
        Some(Mistake::TooMany { what, limit })
    }
}

/// The reason why children are not taken: place, word, reason, advice.
#[derive(Clone, Debug)]
struct Untaken {
    at: Place,
    word: &'static str,
    reason: String,
    advice: String,
}

/// Names that are allowed here, each given once.
#[derive(Default)]
struct Names {
    taken: HashSet<String>,
    counts: HashMap<String, u32>,
}

impl Names {
    fn is_free(&self, wanted: &str) -> bool {
        !self.taken.contains(&allowed(wanted))
    }

    fn give(&mut self, wanted: &str) -> String {
        let plain = allowed(wanted);
        let mut name = plain.clone();
        while !self.taken.insert(name.clone()) {
            let count = self.counts.entry(plain.clone()).or_insert(1);
            *count += 1;
            name = format!("{plain}-n{count}");
        }
        name
    }
}

/// A name as the configuration allows it, with room for a number behind it.
fn allowed(wanted: &str) -> String {
    const MOST: usize = 48;
    let of = |c: char| match c {
        '.' | '_' | '-' => c,
        c if c.is_ascii_alphanumeric() => c,
        _ => '-',
    };
    let name: String = wanted.chars().map(of).collect();
    let name: String = name.trim_start_matches(['.', '-']).chars().take(MOST).collect();
    if name.is_empty() { "unnamed".into() } else { name }
}

/// Reads texts, the later ones as if they stood behind the first, and makes a configuration.
///
/// # Errors
/// All mistakes of the texts, or that nothing is in them.
pub(crate) fn import(texts: &[Foreign], options: &Options<'_>) -> Result<Imported, ImportErrors> {
    let mut tree = Tree::new();
    let mut errors = ImportErrors::default();
    for text in texts {
        if let Err(problem) = tree.read(&text.name, text.text()) {
            errors.add(problem);
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut reader = Reader {
        tree: &tree,
        drafts: Drafts::default(),
        omissions: Omissions::default(),
        errors,
        told: HashSet::new(),
        peer_names: Names::default(),
        policy_names: Names::default(),
        seen: HashSet::new(),
        prefixes: Prefixes::Together,
        addresses: Addresses::default(),
        left_out: Vec::new(),
        told_of_moves: false,
        renamed: Vec::new(),
    };
    if let Err(problem) = reader.all() {
        reader.errors.add(*problem);
    }
    let Reader { drafts, omissions, mut errors, .. } = reader;
    if tree.section(&tree.root(), "connections").is_ok_and(|section| section.is_none()) {
        let expected = "there is no section `connections`; files that `include` names are given \
                        behind the first one";
        let nothing = ImportErrors::of_file(&texts[0].name, Mistake::Nothing { expected });
        nothing.problems.into_iter().for_each(|problem| errors.add(problem));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let names: Vec<&str> = texts.iter().map(|text| text.name.as_str()).collect();
    let origin = format!("`lockgate import swanctl` from {}", names.join(" and "));
    write::all(drafts, omissions, options, &origin)
}

/// Makes drafts of a tree.
struct Reader<'t, 'n> {
    tree: &'t Tree<'n>,
    drafts: Drafts,
    omissions: Omissions,
    errors: ImportErrors,
    /// Places and reasons that were told: several sections may inherit one mistake.
    told: HashSet<(Place, String)>,
    peer_names: Names,
    policy_names: Names,
    /// Ends, modes and selectors of the peers so far.
    seen: HashSet<String>,
    prefixes: Prefixes,
    addresses: Addresses,
    left_out: Vec<LeftOut>,
    /// It was told of connections that do not say whether SAs may move.
    told_of_moves: bool,
    /// Names of the child's peer and policies that are not as the text has them.
    renamed: Vec<String>,
}

impl Reader<'_, '_> {
    fn all(&mut self) -> Parsed<()> {
        let (tree, root) = (self.tree, self.tree.root());
        let inherited = tree.inherited();
        for name in tree.names(&root) {
            if TOP.contains(&name) || inherited.contains(name) {
                continue;
            }
            let at = self.section_place(&root, name)?;
            let nearest = nearest(name, TOP.into_iter());
            if nearest.is_some() {
                let (word, context) = (shown(name), "swanctl.conf");
                self.mistake(at, Mistake::UnknownWord { word, context, nearest });
                continue;
            }
            let reason = "swanctl.conf has no such section, and no other one inherits from it";
            self.note(Fate::Left, at, name, (reason, "remove it"));
        }
        for (at, path) in tree.lost_references() {
            let reason = "there is no section of this name to inherit from";
            let advice = "correct the name, or give the file that has it too";
            self.note(Fate::Left, at, path, (reason, advice));
        }
        for include in &tree.includes {
            self.included(include);
        }
        self.left_to_charon(&root)?;
        let Some(connections) = tree.section(&root, "connections")? else { return Ok(()) };
        for (key, at) in tree.keys(&connections) {
            let word = shown(key);
            self.mistake(at, Mistake::UnknownWord { word, context: CONNECTIONS, nearest: None });
        }
        let mut views = Vec::new();
        for name in tree.names(&connections) {
            if let Some(view) = tree.section(&connections, name)? {
                views.push((name, view));
            }
        }
        let count = self.count(&views)?;
        self.prefixes = if count > 1 { Prefixes::Apart } else { Prefixes::Together };
        for (name, view) in &views {
            self.connection(name, view)?;
        }
        self.note_left_out();
        Ok(())
    }

    /// Counts the children.
    fn count(&self, connections: &[(&str, View)]) -> Parsed<usize> {
        let mut count = 0;
        for (_, view) in connections {
            let Some(children) = self.tree.section(view, "children")? else { continue };
            count += self.tree.names(&children).count();
            if count > MAX_CHILDREN {
                let mistake = Mistake::TooMany { what: "children", limit: MAX_CHILDREN };
                let place = self.tree.location(self.tree.place(view));
                return Err(Box::new(Problem { place, mistake }));
            }
        }
        Ok(count)
    }

    fn section_place(&self, within: &View, name: &str) -> Parsed<Place> {
        let view = self.tree.section(within, name)?;
        Ok(self.tree.place(view.as_ref().unwrap_or(within)))
    }

    /// Says once that authentication and IKE stay with charon.
    fn left_to_charon(&mut self, root: &View) -> Parsed<()> {
        let place = match self.tree.section(root, "secrets")? {
            Some(secrets) => Some((self.tree.place(&secrets), "secrets")),
            None => match self.tree.section(root, "connections")? {
                Some(connections) => Some((self.tree.place(&connections), "connections")),
                None => None,
            },
        };
        if let Some((at, word)) = place {
            let reason =
                "identities, certificates, secrets and IKE's own settings stay with charon";
            let advice = "keep this file where it is: charon reads it as before";
            self.note(Fate::Left, at, word, (reason, advice));
        }
        Ok(())
    }

    /// Notes an `include` whose files were not given.
    fn included(&mut self, include: &Include) {
        let Include { at, pattern, within } = include;
        let is_top = within.is_empty();
        let wanted = pattern.rsplit('/').next().unwrap_or(pattern);
        let is_given = |name: &&str| matches(wanted, name.rsplit('/').next().unwrap_or(name));
        if is_top && self.tree.others_than(*at).any(|name| is_given(&name)) {
            return;
        }
        let advice = match is_top {
            true => format!("give its files too: lockgate import swanctl FILE {pattern}"),
            false => format!("put the text of {pattern} in its place: it is within `{within}`"),
        };
        self.note(Fate::Left, *at, "include", ("other files are not opened", &advice));
    }

    /// Notes what was not taken as it was, once for a place and reason.
    fn note(&mut self, fate: Fate, at: Place, word: &str, (reason, advice): (&str, &str)) {
        if self.told.insert((at, reason.to_owned())) {
            self.omissions.add(fate, (&self.tree.location(at), word), (reason, advice));
        }
    }

    fn mistake(&mut self, at: Place, mistake: Mistake) {
        if self.told.insert((at, mistake.to_string())) {
            self.errors.add(Problem { place: self.tree.location(at), mistake });
        }
    }
}

const CONNECTIONS: &str = "`connections`, which has sections alone";

/// Returns whether a name fits a pattern with `*` and `?`.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut of) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while of < name.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, of));
                at += 1;
            }
            Some(c) if *c == '?' || *c == name[of] => (at, of) = (at + 1, of + 1),
            _ => {
                let Some((last, behind)) = star else { return false };
                star = Some((last, behind + 1));
                (at, of) = (last + 1, behind + 1);
            }
        }
    }
    pattern[at..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_have_stars() {
        assert!(matches("*.conf", "a.conf") && matches("a?c*", "abcdef") && matches("*", ""));
        assert!(!matches("*.conf", "a.config") && !matches("a", "ab") && !matches("?", ""));
    }

    #[test]
    fn names_are_allowed_ones_and_each_is_given_once() {
        let mut names = Names::default();
        assert_eq!(
            ["gw/b", "gw-b", "..x", "é"].map(|name| names.give(name)),
            ["gw-b", "gw-b-n2", "x", "unnamed"]
        );
        assert!(names.give(&"x".repeat(100)).len() < 64);
    }
}
