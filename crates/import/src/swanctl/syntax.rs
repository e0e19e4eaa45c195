//! Sections and values of a text in the form of strongswan.conf(5).
//!
//! ```text
//! name { … }                 a section; one of the same name goes on with it
//! name : other, more.deep {} a section that inherits from others
//! name = value               up to the end of the line, `#` or `}`; the last one holds
//! name = "a \"b\" \n"        text in quotes, over several lines if need be
//! include conf.d/*.conf      noted, not followed
//! ```
//!
//! Values below `secrets`, and those of `secret` and `pin`, are never kept.

use std::collections::{HashMap, HashSet};

use config::Location;
use zeroize::Zeroizing;

use crate::problem::{Mistake, Parsed, Problem, shown};

/// Sections within each other at most.
const MAX_DEPTH: usize = 16;
/// Sections that one inherits from at most.
const MAX_LAYERS: usize = 64;
/// Sections and values of all texts at most.
const MAX_THINGS: usize = 1 << 20;

/// A place in one of the texts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Place {
    /// The number of the text.
    file: usize,
    line: u32,
    column: u32,
}

/// A value, or a name, with its place.
pub(super) struct Written {
    pub(super) at: Place,
    /// `None`: nothing is written, so that the default holds; or it is a secret.
    pub(super) text: Option<Zeroizing<String>>,
}

/// A section.
#[derive(Default)]
struct Section {
    name: String,
    at: Option<Place>,
    references: Vec<(String, Place)>,
    sections: Vec<(String, usize)>,
    by_name: HashMap<String, usize>,
    values: Vec<(String, Written)>,
    by_key: HashMap<String, usize>,
}

/// A line `include`.
pub(super) struct Include {
    pub(super) at: Place,
    pub(super) pattern: String,
    /// The section that it stands in; empty: none.
    pub(super) within: String,
}

/// All sections of the texts.
pub(super) struct Tree<'n> {
    files: Vec<&'n str>,
    sections: Vec<Section>,
    things: usize,
    pub(super) includes: Vec<Include>,
}

/// A section with those that it inherits from: the first that has a value decides.
#[derive(Clone, Debug)]
pub(super) struct View {
    layers: Vec<usize>,
}

impl<'n> Tree<'n> {
    pub(super) fn new() -> Tree<'n> {
        let (files, includes) = (Vec::new(), Vec::new());
        Tree { files, sections: vec![Section::default()], things: 0, includes }
    }

    /// Reads a text. What it says goes on with what the texts before it said.
    pub(super) fn read(&mut self, name: &'n str, text: &str) -> Result<(), Problem> {
        let file = self.files.len();
        self.files.push(name);
        let scanner = Scanner { text, at: 0, place: Place { file, line: 1, column: 1 } };
        let read = Reader { tree: self, scanner, open: Vec::new(), within_secrets: false }.all();
        read.map_err(|(at, mistake)| Problem { place: self.location(at), mistake })
    }

    pub(super) fn location(&self, at: Place) -> Location {
        let Place { file, line, column } = at;
        Location { file: self.files[file].to_owned(), line, column }
    }

    /// Names of the other texts than that of a place.
    pub(super) fn others_than(&self, at: Place) -> impl Iterator<Item = &'n str> {
        let all = self.files.iter().enumerate();
        all.filter(move |(file, _)| *file != at.file).map(|(_, name)| *name)
    }

    pub(super) fn root(&self) -> View {
        View { layers: vec![0] }
    }

    /// The names of a section's own sections and of those that it inherits, each once.
    pub(super) fn names<'t>(&'t self, view: &'t View) -> impl Iterator<Item = &'t str> {
        let all = view.layers.iter().flat_map(|layer| &self.sections[*layer].sections);
        let mut seen = HashSet::new();
        all.map(|(name, _)| name.as_str()).filter(move |name| seen.insert(*name))
    }

    /// The section of this name within another one.
    ///
    /// # Errors
    /// It inherits from too many others.
    pub(super) fn section(&self, view: &View, name: &str) -> Parsed<Option<View>> {
        let mut layers = Vec::new();
        for layer in &view.layers {
            if let Some(own) = self.sections[*layer].by_name.get(name) {
                self.inherit(*own, &mut layers)?;
            }
        }
        Ok((!layers.is_empty()).then_some(View { layers }))
    }

    /// Adds a section and those that it inherits from, each once, in the order of references.
    fn inherit(&self, from: usize, layers: &mut Vec<usize>) -> Parsed<()> {
        let mut next = vec![from];
        while let Some(section) = next.pop() {
            if layers.contains(&section) {
                continue;
            }
            if layers.len() >= MAX_LAYERS {
                let place = self.location(self.at(from));
                let what = "sections that one inherits from";
                let mistake = Mistake::TooMany { what, limit: MAX_LAYERS };
                return Err(Box::new(Problem { place, mistake }));
            }
            layers.push(section);
            let of = self.sections[section].references.iter().rev();
            next.extend(of.filter_map(|(path, _)| self.find(path)));
        }
        Ok(())
    }

    /// The section of a path from the top.
    fn find(&self, path: &str) -> Option<usize> {
        path.split('.').try_fold(0, |at, name| self.sections[at].by_name.get(name).copied())
    }

    /// The place where a section begins first.
    fn at(&self, section: usize) -> Place {
        self.sections[section].at.unwrap_or(Place { file: 0, line: 1, column: 1 })
    }

    pub(super) fn place(&self, view: &View) -> Place {
        self.at(view.layers[0])
    }

    /// The value of a key; `None`: it is nowhere, or cleared.
    pub(super) fn value(&self, view: &View, key: &str) -> Option<(Place, &str)> {
        let find = |layer: &usize| {
            let section = &self.sections[*layer];
            section.by_key.get(key).map(|place| &section.values[*place].1)
        };
        let written = view.layers.iter().find_map(find)?;
        Some((written.at, written.text.as_deref()?))
    }

    /// The keys of a section and of those that it inherits from, with their places.
    pub(super) fn keys<'t>(&'t self, view: &'t View) -> impl Iterator<Item = (&'t str, Place)> {
        let all = view.layers.iter().flat_map(|layer| &self.sections[*layer].values);
        all.map(|(key, written)| (key.as_str(), written.at))
    }

    /// References to sections that are not there.
    pub(super) fn lost_references(&self) -> impl Iterator<Item = (Place, &str)> {
        let all = self.sections.iter().flat_map(|section| &section.references);
        let lost = all.filter(|(path, _)| self.find(path).is_none());
        lost.map(|(path, at)| (*at, path.as_str()))
    }

    /// Names of the sections of the top that some section inherits from.
    pub(super) fn inherited(&self) -> HashSet<&str> {
        let all = self.sections.iter().flat_map(|section| &section.references);
        all.filter_map(|(path, _)| path.split('.').next()).collect()
    }
}

/// A mistake and its place.
type Wrong = (Place, Mistake);

/// Reads one text into the tree.
struct Reader<'t, 'n, 'a> {
    tree: &'t mut Tree<'n>,
    scanner: Scanner<'a>,
    /// The open sections with the places of their names, outermost first.
    open: Vec<(usize, Place)>,
    within_secrets: bool,
}

impl<'a> Reader<'_, '_, 'a> {
    fn all(&mut self) -> Result<(), Wrong> {
        loop {
            self.scanner.skip_blank();
            let at = self.scanner.place;
            match self.scanner.peek() {
                None => break,
                Some('}') => {
                    self.scanner.bump();
                    self.open.pop().ok_or((at, Mistake::Braces))?;
                    self.within_secrets &= !self.open.is_empty();
                }
                Some(c) if is_of_name(c) => self.statement(at)?,
                Some(c) => {
                    return Err((
                        at,
                        Mistake::Unexpected { text: shown(c.encode_utf8(&mut [0; 4])) },
                    ));
                }
            }
        }
        match self.open.last() {
            Some((_, at)) => Err((*at, Mistake::Unclosed { what: "the section that begins here" })),
            None => Ok(()),
        }
    }

    /// A section, a value, or an `include`.
    fn statement(&mut self, at: Place) -> Result<(), Wrong> {
        self.tree.things += 1;
        if self.tree.things > MAX_THINGS {
            let what = "sections and values";
            return Err((at, Mistake::TooMany { what, limit: MAX_THINGS }));
        }
        let name = self.scanner.take_while(is_of_name);
        if name == "include" && self.scanner.is_include() {
            return self.include(at);
        }
        self.scanner.skip_blank();
        match self.scanner.peek() {
            Some('{') => self.enter(name, at, Vec::new()),
            Some(':') => {
                let references = self.references()?;
                self.enter(name, at, references)
            }
            Some('=') => self.assign(name, at),
            _ => {
                let word = (!self.within_secrets).then(|| shown(name));
                Err((at, Mistake::Statement { word }))
            }
        }
    }

    fn include(&mut self, at: Place) -> Result<(), Wrong> {
        let pattern = self.scanner.pattern()?;
        let within = self.open.iter().map(|(section, _)| &*self.tree.sections[*section].name);
        let within = within.collect::<Vec<_>>().join(".");
        let pattern = shown(&pattern);
        self.tree.includes.push(Include { at, pattern, within });
        Ok(())
    }

    /// The paths behind `:`, up to `{`.
    fn references(&mut self) -> Result<Vec<(String, Place)>, Wrong> {
        let mut references = Vec::new();
        loop {
            // The colon, or a comma.
            self.scanner.bump();
            self.scanner.skip_blank();
            let at = self.scanner.place;
            let path = self.scanner.take_while(|c| is_of_name(c) || c == '.');
            if path.is_empty() {
                return Err((at, Mistake::Missing { what: "the name of a section" }));
            }
            references.push((path.to_owned(), at));
            if references.len() > MAX_LAYERS {
                let what = "sections that one inherits from";
                return Err((at, Mistake::TooMany { what, limit: MAX_LAYERS }));
            }
            self.scanner.skip_blank();
            match self.scanner.peek() {
                Some(',') => {}
                Some('{') => return Ok(references),
                _ => return Err((self.scanner.place, Mistake::Missing { what: "`{`" })),
            }
        }
    }

    fn enter(
        &mut self,
        name: &str,
        at: Place,
        references: Vec<(String, Place)>,
    ) -> Result<(), Wrong> {
        self.scanner.bump();
        if self.open.len() >= MAX_DEPTH {
            let (what, limit) = ("sections within each other", MAX_DEPTH);
            return Err((at, Mistake::TooMany { what, limit }));
        }
        self.within_secrets |= self.open.is_empty() && name == "secrets";
        let parent = self.current();
        let new = self.tree.sections.len();
        let section = match self.tree.sections[parent].by_name.get(name) {
            Some(earlier) => *earlier,
            None => {
                let section = Section { name: name.to_owned(), at: Some(at), ..Section::default() };
                self.tree.sections.push(section);
                self.tree.sections[parent].by_name.insert(name.to_owned(), new);
                self.tree.sections[parent].sections.push((name.to_owned(), new));
                new
            }
        };
        self.tree.sections[section].references.extend(references);
        self.open.push((section, at));
        Ok(())
    }

    fn current(&self) -> usize {
        self.open.last().map_or(0, |(section, _)| *section)
    }

    fn assign(&mut self, key: &str, at: Place) -> Result<(), Wrong> {
        self.scanner.bump();
        let text = self.scanner.value()?;
        let is_secret = self.within_secrets || matches!(key, "secret" | "pin");
        let text = (!is_secret && !text.is_empty()).then_some(text);
        let place = self.current();
        let section = &mut self.tree.sections[place];
        let written = Written { at, text };
        match section.by_key.get(key) {
            Some(earlier) => section.values[*earlier].1 = written,
            None => {
                section.by_key.insert(key.to_owned(), section.values.len());
                section.values.push((key.to_owned(), written));
            }
        }
        Ok(())
    }
}

fn is_of_name(c: char) -> bool {
    !matches!(c, '#' | '{' | '}' | ':' | '.' | ',' | '=' | '"') && !is_blank(c)
}

const fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

/// A text that is read character by character.
struct Scanner<'a> {
    text: &'a str,
    at: usize,
    place: Place,
}

impl<'a> Scanner<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        match c {
            '\n' => (self.place.line, self.place.column) = (self.place.line + 1, 1),
            _ => self.place.column += 1,
        }
        Some(c)
    }

    fn take_while(&mut self, pass: impl Fn(char) -> bool) -> &'a str {
        let from = self.at;
        while self.peek().is_some_and(&pass) {
            self.bump();
        }
        &self.text[from..self.at]
    }

    /// Passes over spaces, ends of lines and comments.
    fn skip_blank(&mut self) {
        loop {
            self.take_while(is_blank);
            if self.peek() != Some('#') {
                return;
            }
            self.take_while(|c| c != '\n');
        }
    }

    /// Returns whether a pattern follows the word `include`, and no `=` of a value of that name.
    fn is_include(&self) -> bool {
        let rest = self.rest();
        let behind = rest.trim_start_matches([' ', '\t']);
        behind.len() < rest.len() && !behind.is_empty() && !behind.starts_with('=')
    }

    /// The pattern of `include`.
    fn pattern(&mut self) -> Result<Zeroizing<String>, Wrong> {
        self.take_while(|c| c == ' ' || c == '\t');
        if self.peek() == Some('"') {
            return self.string();
        }
        let mut pattern = Zeroizing::new(String::new());
        while let Some(c) = self.peek().filter(|c| !is_blank(*c) && *c != '#' && *c != '}') {
            self.bump();
            match (c, self.peek()) {
                ('\\', Some(next @ ('"' | '#' | '}' | ' '))) => {
                    self.bump();
                    pattern.push(next);
                }
                _ => pattern.push(c),
            }
        }
        Ok(pattern)
    }

    /// A value up to the end of the line, a comment, or `}`: its parts with one space between them.
    fn value(&mut self) -> Result<Zeroizing<String>, Wrong> {
        let ends = |c: char| matches!(c, '#' | '}' | '\n');
        let length = self.rest().find('\n').unwrap_or(self.rest().len());
        let mut value = Zeroizing::new(String::with_capacity(length));
        loop {
            self.take_while(|c| is_blank(c) && c != '\n');
            let Some(c) = self.peek().filter(|c| !ends(*c)) else { return Ok(value) };
            let part = match c {
                '"' => self.string()?,
                _ => {
                    let word = self.take_while(|c| !is_blank(c) && !ends(c) && c != '"');
                    Zeroizing::new(word.to_owned())
                }
            };
            value = joined(value, &part);
        }
    }

    /// A text in quotes.
    fn string(&mut self) -> Result<Zeroizing<String>, Wrong> {
        let at = self.place;
        self.bump();
        // At its full size: growing would leave copies behind that nobody wipes.
        let mut text = Zeroizing::new(String::with_capacity(quoted_length(self.rest())));
        while let Some(c) = self.bump() {
            match c {
                '"' => return Ok(text),
                '\r' => {}
                '\\' => match self.bump() {
                    Some('n') => text.push('\n'),
                    Some('r') => text.push('\r'),
                    Some('t') => text.push('\t'),
                    // The line goes on in the next one.
                    Some('\n') => {}
                    Some('\r') if self.peek() == Some('\n') => drop(self.bump()),
                    Some(other) => text.push(other),
                    None => break,
                },
                c => text.push(c),
            }
        }
        Err((at, Mistake::Unclosed { what: "the text in quotes that begins here" }))
    }
}

/// Bytes up to the quote that ends a text.
fn quoted_length(rest: &str) -> usize {
    let mut is_escaped = false;
    let ends = |byte: &u8| {
        let is_end = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        is_end
    };
    rest.as_bytes().iter().position(ends).unwrap_or(0)
}

/// Puts two parts of a value together, without copies that nobody wipes.
fn joined(mut value: Zeroizing<String>, part: &str) -> Zeroizing<String> {
    let length = value.len() + 1 + part.len();
    if value.capacity() < length {
        let mut larger = Zeroizing::new(String::with_capacity(2 * length));
        larger.push_str(&value);
        value = larger;
    }
    if !value.is_empty() {
        value.push(' ');
    }
    value.push_str(part);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(text: &str) -> Tree<'static> {
        let mut tree = Tree::new();
        tree.read("f", text).unwrap_or_else(|problem| panic!("{problem}"));
        tree
    }

    fn wrong(text: &str) -> String {
        let mut tree = Tree::new();
        tree.read("f", text).expect_err(text).to_string()
    }

    fn value(tree: &Tree<'_>, path: &str, key: &str) -> Option<String> {
        let mut view = tree.root();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            view = tree.section(&view, name).unwrap()?;
        }
        tree.value(&view, key).map(|(_, text)| text.to_owned())
    }

    #[test]
    fn values_end_at_lines_comments_and_braces_and_quotes_hold_everything() {
        let tree = tree(
            "a = b  c # d\nq = \"x # } \\\"y\\\" \\\n z\\tend\" more\n\
             s { k = v } t\n{\n k\n=\nu = {1,2\n}\nempty =\nempty2=#",
        );
        assert_eq!(value(&tree, "", "a").unwrap(), "b c");
        assert_eq!(value(&tree, "", "q").unwrap(), "x # } \"y\"  z\tend more");
        assert_eq!(value(&tree, "s", "k").unwrap(), "v");
        assert_eq!(value(&tree, "t", "k"), None, "an empty value");
        assert_eq!(value(&tree, "t", "u").unwrap(), "{1,2");
        assert_eq!(value(&tree, "", "empty"), None);
    }

    #[test]
    fn sections_go_on_and_inherit_and_own_values_come_first() {
        let text = "base { k = 1\n m = 2\n sub { x = base\n y = base } }\n\
                    more { m = 3\n n = 4 }\n\
                    s : base, more { k = own\n sub { x = own } }\n\
                    u : s { m = }\n s { late = 5 }\nw : u.sub { }\n";
        let tree = tree(text);
        let of = |path, key| value(&tree, path, key);
        assert_eq!(of("s", "k").unwrap(), "own");
        assert_eq!(of("s", "m").unwrap(), "2", "left before right");
        assert_eq!(of("s", "n").unwrap(), "4");
        assert_eq!(
            (of("s/sub", "x").unwrap(), of("s/sub", "y").unwrap()),
            ("own".into(), "base".into())
        );
        assert_eq!((of("u", "m"), of("u", "late").unwrap()), (None, "5".into()), "cleared");
        assert_eq!(tree.lost_references().count(), 1, "u has no own section of that name");
    }

    #[test]
    fn a_circle_of_references_ends() {
        let tree = tree("a : b { x = 1 }\nb : a { y = 2 }\n");
        assert_eq!(value(&tree, "a", "y").unwrap(), "2");
        assert_eq!(value(&tree, "b", "x").unwrap(), "1");
    }

    #[test]
    fn secrets_are_not_kept_and_not_shown() {
        let tree = tree("secrets { ike { secret = hush\n id = me } }\nx { secret = hush }\n");
        assert_eq!(value(&tree, "secrets/ike", "secret"), None);
        assert_eq!(value(&tree, "x", "secret"), None);
        let told = wrong("secrets { ike { secret = a\nhush } }");
        assert!(!told.contains("hush") && told.starts_with("f:2:1: error: "), "{told}");
    }

    #[test]
    fn includes_are_noted_with_their_section() {
        let tree = tree("include a/*.conf\nc { include \"b c\" }\ninclude = 7\ninclude x\\ y#z\n");
        let of = |one: &Include| (one.pattern.clone(), one.within.clone());
        let all: Vec<_> = tree.includes.iter().map(of).collect();
        let expected = [("a/*.conf", ""), ("b c", "c"), ("x y", "")];
        assert_eq!(all, expected.map(|(pattern, within)| (pattern.into(), within.into())));
        assert_eq!(value(&tree, "", "include").unwrap(), "7");
    }

    #[test]
    fn mistakes_have_their_place() {
        assert!(wrong("a {\n b = 1\n").starts_with("f:1:1: error: the section that begins here"));
        assert!(wrong("a = 1\n}").starts_with("f:2:1: "));
        assert!(wrong("a = \"b\n\nc = 1").starts_with("f:1:5: error: the text in quotes"));
        assert!(wrong("a\nb = 1").contains("`a`"));
        assert!(wrong(" = 1").contains("`=`"));
        assert!(wrong("a : { }").contains("the name of a section is missing"));
        assert!(wrong("a : b\n").contains("`{` is missing"));
        assert!(wrong(&"a {".repeat(40)).contains("more than 16 sections within each other"));
    }
}
