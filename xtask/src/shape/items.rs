//! Finds the functions in a file of Rust, and its paths to other modules of its crate.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, Group, LexError, TokenStream, TokenTree};

/// A module's path inside its crate: `["classifier", "build"]`. The crate's root is empty.
pub(crate) type Module = Vec<String>;

/// The items of a file, without its tests.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Items {
    pub(crate) functions: Vec<Function>,
    /// Paths that begin at the crate's root, by `crate`, `super`, `self` or in a `use`.
    pub(crate) paths: Vec<Reference>,
    /// Paths of the names that a module imports: others may reach them through it.
    pub(crate) imported: BTreeMap<(Module, String), Vec<String>>,
    /// Modules that only tests have.
    pub(crate) test_modules: Vec<Module>,
}

/// A function with a body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// Line of `fn`, from 1.
    pub(crate) line: usize,
    /// Lines from `fn` to the closing brace.
    pub(crate) lines: usize,
    /// Names of the parameters whose type is `bool`.
    pub(crate) bools: Vec<String>,
}

/// A path in a module's code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Reference {
    pub(crate) from: Module,
    /// From the crate's root, the item's own name included.
    pub(crate) to: Vec<String>,
}

impl Items {
    /// Reads a file's text; `module` is where it stands in its crate.
    pub(crate) fn read(text: &str, module: &Module) -> Result<Self, LexError> {
        let mut items = Self::default();
        items.walk(text.parse::<TokenStream>()?, module);
        Ok(items)
    }

    fn walk(&mut self, tokens: TokenStream, module: &Module) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            at += match &tokens[at] {
                TokenTree::Punct(mark) if mark.as_char() == '#' => {
                    self.attribute(&tokens[at..], module)
                }
                TokenTree::Ident(word) => match &*word.to_string() {
                    "mod" => self.inner_module(&tokens[at..], module),
                    "fn" => self.function(&tokens[at..]),
                    "use" => self.import(&tokens[at..], module),
                    "crate" | "super" | "self" => self.path(&tokens[at..], module),
                    _ => 1,
                },
                TokenTree::Group(group) => {
                    self.walk(group.stream(), module);
                    1
                }
                _ => 1,
            };
        }
    }

    /// Returns how many tokens an attribute takes, with the item that it leaves to tests.
    fn attribute(&mut self, tokens: &[TokenTree], module: &Module) -> usize {
        let Some(TokenTree::Group(group)) = tokens.get(1) else { return 1 };
        let text = group.stream().to_string().replace(' ', "");
        if !text.starts_with("cfg(") || !text.contains("test") || text.contains("not(test)") {
            return 2;
        }
        if let Some(name) = declared_module(&tokens[2..]) {
            self.test_modules.push(within(module, name));
        }
        let ends = |token: &TokenTree| match token {
            TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
            TokenTree::Punct(mark) => mark.as_char() == ';',
            _ => false,
        };
        tokens.iter().skip(2).position(ends).map_or(tokens.len(), |length| length + 3)
    }

    fn inner_module(&mut self, tokens: &[TokenTree], module: &Module) -> usize {
        let [_, TokenTree::Ident(name), TokenTree::Group(body), ..] = tokens else { return 1 };
        self.walk(body.stream(), &within(module, name.to_string()));
        3
    }

    /// Notes a function, and leaves its tokens to the walk: only the signature is looked at here.
    fn function(&mut self, tokens: &[TokenTree]) -> usize {
        let [first, TokenTree::Ident(name), ..] = tokens else { return 1 };
        let mut parameters = None;
        for token in &tokens[2..] {
            match token {
                TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis => {
                    parameters = parameters.or(Some(group));
                }
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                    let line = first.span().start().line;
                    self.functions.push(Function {
                        name: name.to_string(),
                        line,
                        lines: group.span_close().end().line - line + 1,
                        bools: parameters.map(bools).unwrap_or_default(),
                    });
                    break;
                }
                TokenTree::Punct(mark) if mark.as_char() == ';' => break,
                _ => {}
            }
        }
        2
    }

    /// Notes what a `use` imports, under which names.
    fn import(&mut self, tokens: &[TokenTree], module: &Module) -> usize {
        let is_end =
            |token: &TokenTree| matches!(token, TokenTree::Punct(it) if it.as_char() == ';');
        let Some(end) = tokens.iter().position(is_end) else { return 1 };
        for leaf in leaves(&tokens[1..end]) {
            let to = absolute(&leaf.path, module).unwrap_or_else(|| {
                // A child of this module, or another crate: no module then has its name.
                [module.clone(), leaf.path].concat()
            });
            self.imported.insert((module.clone(), leaf.name), to.clone());
            self.paths.push(Reference { from: module.clone(), to });
        }
        end + 1
    }

    fn path(&mut self, tokens: &[TokenTree], module: &Module) -> usize {
        let mut path = Vec::new();
        let mut at = 0;
        while let Some(TokenTree::Ident(word)) = tokens.get(at) {
            path.push(word.to_string());
            at += 1;
            if !is_colons(&tokens[at..]) {
                break;
            }
            at += 2;
        }
        if path.len() > 1
            && let Some(to) = absolute(&path, module)
        {
            self.paths.push(Reference { from: module.clone(), to });
        }
        at.max(1)
    }
}

/// A name that a `use` brings.
struct Leaf {
    path: Vec<String>,
    name: String,
}

/// Takes the groups of a `use` apart.
fn leaves(tokens: &[TokenTree]) -> Vec<Leaf> {
    let mut path = Vec::new();
    let mut name = None;
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Ident(word) if *word == "as" => {
                name = tokens.get(at + 1).map(ToString::to_string);
                break;
            }
            TokenTree::Ident(word) => path.push(word.to_string()),
            TokenTree::Punct(mark) if mark.as_char() == '*' => path.push("*".into()),
            TokenTree::Group(group) => {
                let parts = split(group);
                let inner = parts.iter().flat_map(|part| leaves(part));
                return inner
                    .map(|leaf| match &*leaf.path {
                        [only] if only == "self" => Leaf { name: last(&path), path: path.clone() },
                        _ => Leaf { path: [path.clone(), leaf.path].concat(), name: leaf.name },
                    })
                    .collect();
            }
            _ => {}
        }
        at += 1;
    }
    if path.is_empty() {
        return Vec::new();
    }
    vec![Leaf { name: name.unwrap_or_else(|| last(&path)), path }]
}

fn last(path: &[String]) -> String {
    path.last().cloned().unwrap_or_default()
}

/// The parts of a group that commas divide.
fn split(group: &Group) -> Vec<Vec<TokenTree>> {
    let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
    let is_comma = |token: &TokenTree| matches!(token, TokenTree::Punct(it) if it.as_char() == ',');
    tokens.split(is_comma).filter(|part| !part.is_empty()).map(<[TokenTree]>::to_vec).collect()
}

/// Returns the names of the parameters whose type is `bool`.
fn bools(parameters: &Group) -> Vec<String> {
    let named = split(parameters).into_iter().filter_map(|part| match &*part {
        [.., TokenTree::Ident(name), TokenTree::Punct(colon), TokenTree::Ident(kind)]
            if colon.as_char() == ':' && *kind == "bool" =>
        {
            Some(name.to_string())
        }
        _ => None,
    });
    named.collect()
}

/// Returns the name of the module that an item declares or holds.
fn declared_module(tokens: &[TokenTree]) -> Option<String> {
    let mut words = tokens.iter().take_while(|token| matches!(token, TokenTree::Ident(_)));
    words.find(|word| word.to_string() == "mod")?;
    words.next().map(ToString::to_string)
}

/// Makes a path begin at the crate's root. `None`: it begins neither there nor beside `module`.
fn absolute(path: &[String], module: &Module) -> Option<Vec<String>> {
    let mut base = module.clone();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => {
            base.clear();
            rest = &path[1..];
        }
        "self" => rest = &path[1..],
        "super" => {
            while rest.first().is_some_and(|word| word == "super") {
                base.pop();
                rest = &rest[1..];
            }
        }
        _ => return None,
    }
    base.extend(rest.iter().cloned());
    Some(base)
}

fn within(module: &Module, name: String) -> Module {
    [module.clone(), vec![name]].concat()
}

fn is_colons(tokens: &[TokenTree]) -> bool {
    let colon = |token: &TokenTree| matches!(token, TokenTree::Punct(it) if it.as_char() == ':');
    matches!(tokens, [first, second, TokenTree::Ident(_), ..] if colon(first) && colon(second))
}
