//! Finds the types and functions in a file of Rust, and its paths to other modules of its crate.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, Group, LexError, Spacing, TokenStream, TokenTree};

/// A module's path inside its crate: `["classifier", "build"]`. The crate's root is empty.
pub(crate) type Module = Vec<String>;

/// The items of a file, without its tests.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Items {
    pub(crate) functions: Vec<Function>,
    /// Structs, enums, unions, traits and aliases; associated types are left out.
    pub(crate) types: Vec<TypeName>,
    /// Parameters with an anonymous tuple in the type.
    pub(crate) tuples: Vec<TupleParameter>,
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

/// The name of a type, where the type is defined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TypeName {
    pub(crate) name: String,
    /// Line of the name, from 1.
    pub(crate) line: usize,
}

/// A parameter with an anonymous tuple.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TupleParameter {
    pub(crate) function: String,
    /// Line of the tuple, from 1.
    pub(crate) line: usize,
}

/// Braces around items.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Body {
    /// The body of an `impl` or a trait, with associated types.
    Associated,
    Other,
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
        items.walk(text.parse::<TokenStream>()?, module, Body::Other);
        Ok(items)
    }

    fn walk(&mut self, tokens: TokenStream, module: &Module, body: Body) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut next_body = Body::Other;
        let mut at = 0;
        while at < tokens.len() {
            at += match &tokens[at] {
                TokenTree::Punct(mark) if mark.as_char() == '#' => {
                    self.attribute(&tokens[at..], module)
                }
                TokenTree::Ident(word) => match &*word.to_string() {
                    "impl" => {
                        next_body = Body::Associated;
                        1
                    }
                    "trait" => {
                        next_body = Body::Associated;
                        self.type_name(&tokens[at..])
                    }
                    "type" if body == Body::Associated => 1,
                    "struct" | "enum" | "union" | "type" => self.type_name(&tokens[at..]),
                    "mod" => self.inner_module(&tokens[at..], module),
                    "fn" => self.function(&tokens[at..]),
                    "use" => self.import(&tokens[at..], module),
                    "crate" | "super" | "self" => self.path(&tokens[at..], module),
                    _ => 1,
                },
                TokenTree::Group(group) => {
                    let is_body = group.delimiter() == Delimiter::Brace;
                    let body = if is_body { next_body } else { Body::Other };
                    next_body = if is_body { Body::Other } else { next_body };
                    self.walk(group.stream(), module, body);
                    1
                }
                TokenTree::Punct(mark) if mark.as_char() == ';' => {
                    next_body = Body::Other;
                    1
                }
                _ => 1,
            };
        }
    }

    /// Notes the name behind a keyword. A macro's variable is no name.
    fn type_name(&mut self, tokens: &[TokenTree]) -> usize {
        let [_, TokenTree::Ident(name), ..] = tokens else { return 1 };
        let line = name.span().start().line;
        self.types.push(TypeName { name: name.to_string(), line });
        2
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
        self.walk(body.stream(), &within(module, name.to_string()), Body::Other);
        3
    }

    /// Notes a function, and leaves its tokens to the walk: only the signature is looked at here.
    fn function(&mut self, tokens: &[TokenTree]) -> usize {
        let [first, TokenTree::Ident(name), ..] = tokens else { return 1 };
        let mut parameters = None;
        for (token, before) in tokens[2..].iter().zip(&tokens[1..]) {
            match token {
                TokenTree::Group(group)
                    if group.delimiter() == Delimiter::Parenthesis
                        && parameters.is_none()
                        && !is_function_type(before) =>
                {
                    parameters = Some(group);
                    let tuples = tuple_lines(group).into_iter();
                    let function = name.to_string();
                    self.tuples.extend(
                        tuples.map(|line| TupleParameter { function: function.clone(), line }),
                    );
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

/// True for the words in front of the parameters of a function's type.
fn is_function_type(token: &TokenTree) -> bool {
    let TokenTree::Ident(word) = token else { return false };
    ["Fn", "FnMut", "FnOnce", "fn"].iter().any(|known| word == known)
}

/// Returns the line of the first tuple in the type of each parameter.
fn tuple_lines(parameters: &Group) -> Vec<usize> {
    let tokens: Vec<TokenTree> = parameters.stream().into_iter().collect();
    let mut lines = Vec::new();
    let mut depth = 0;
    // Set behind the parameter's colon, until the parameter has a tuple.
    let mut in_type = false;
    for (at, token) in tokens.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| &tokens[before]);
        let is_before = |mark| matches!(before, Some(TokenTree::Punct(it)) if it.as_char() == mark);
        match token {
            TokenTree::Punct(mark) => match mark.as_char() {
                '<' => depth += 1,
                '>' if !is_before('-') => depth -= 1,
                ',' if depth == 0 => in_type = false,
                ':' if depth == 0 && !is_before(':') && mark.spacing() == Spacing::Alone => {
                    in_type = true;
                }
                _ => {}
            },
            TokenTree::Group(group) if in_type && !before.is_some_and(is_function_type) => {
                let line = tuple_line(group);
                in_type = line.is_none();
                lines.extend(line);
            }
            _ => {}
        }
    }
    lines
}

/// Returns the line of the first tuple of two parts or more: the group or a group inside.
fn tuple_line(group: &Group) -> Option<usize> {
    if group.delimiter() == Delimiter::Parenthesis && split(group).len() > 1 {
        return Some(group.span_open().start().line);
    }
    let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
    tokens.iter().enumerate().find_map(|(at, token)| match token {
        TokenTree::Group(inner) if at == 0 || !is_function_type(&tokens[at - 1]) => {
            tuple_line(inner)
        }
        _ => None,
    })
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
