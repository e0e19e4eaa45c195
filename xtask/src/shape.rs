//! The shape of the code: circles of modules, long functions, bare `bool` parameters, names of
//! types, anonymous tuples.
//!
//! Code that broke a rule when the rule came is in [`known`]. That list only shrinks: something new
//! is a finding, and so is an entry that no longer holds.

mod circles;
mod items;
mod known;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::sources::{Package, Source, is_tests, shown};
use items::Items;

/// Lines of a function, its signature included.
const MAX_FUNCTION_LINES: usize = 70;

/// Files of the crates' own code, read.
pub(crate) struct Shape {
    /// By crate, then by module (`classifier::build`; the crate's root is empty).
    crates: BTreeMap<String, BTreeMap<items::Module, Read>>,
}

/// A file and its items.
struct Read {
    path: PathBuf,
    items: Items,
}

impl Shape {
    /// Reads the files that lie in the `src` folder of a package. Tests are left out.
    ///
    /// # Errors
    /// One line for each file that is not Rust.
    pub(crate) fn read(packages: &[Package], sources: &[Source]) -> Result<Self, Vec<String>> {
        let mut crates = BTreeMap::<String, BTreeMap<items::Module, Read>>::new();
        let mut broken = Vec::new();
        for source in sources {
            if is_tests(&source.path) || source.path.extension().is_none_or(|it| it != "rs") {
                continue;
            }
            let Some((package, module)) = place(packages, &source.path) else { continue };
            match Items::read(&source.text, &module) {
                Ok(items) => {
                    let read = Read { path: source.path.clone(), items };
                    crates.entry(package).or_default().insert(module, read);
                }
                Err(error) => broken.push(format!("{}: {error}", shown(&source.path))),
            }
        }
        if broken.is_empty() { Ok(Self { crates }) } else { Err(broken) }
    }

    /// Returns functions that are too long.
    pub(crate) fn long_functions(&self) -> Vec<String> {
        let found = self.files().flat_map(|read| {
            let long = read.items.functions.iter().filter(|it| it.lines > MAX_FUNCTION_LINES);
            long.map(|function| Finding {
                key: format!("{} {}", shown(&read.path), function.name),
                text: format!(
                    "{}:{}: `{}` has {} lines, at most {MAX_FUNCTION_LINES}",
                    shown(&read.path),
                    function.line,
                    function.name,
                    function.lines
                ),
            })
        });
        against(known::LONG_FUNCTIONS, found)
    }

    /// Returns parameters of type `bool`: a reader of the call cannot tell what `true` means.
    pub(crate) fn bool_parameters(&self) -> Vec<String> {
        let found = self.files().flat_map(|read| {
            let functions = read.items.functions.iter();
            functions.filter(|function| !function.bools.is_empty()).map(|function| Finding {
                key: format!("{} {}", shown(&read.path), function.name),
                text: format!(
                    "{}:{}: `{}` takes a bare bool: {}; make it an enum",
                    shown(&read.path),
                    function.line,
                    function.name,
                    function.bools.join(", ")
                ),
            })
        });
        against(known::BOOL_PARAMETERS, found)
    }

    /// Returns circles of modules: files that cannot be understood one at a time.
    pub(crate) fn circles(&self) -> Vec<String> {
        let found = self.crates.iter().flat_map(|(package, files)| {
            circles::find(files.iter().map(|(module, read)| (module, &read.items))).into_iter().map(
                move |circle| Finding {
                    key: format!("{package}: {}", circle.modules.join(" ")),
                    text: format!(
                        "{package}: modules in a circle: {} ({})",
                        circle.modules.join(", "),
                        circle.ties.join("; ")
                    ),
                },
            )
        });
        against(known::CIRCLES, found)
    }

    /// Returns the types of each crate.
    pub(crate) fn types(&self) -> Vec<Named> {
        self.named(|items| items.types.iter().map(|it| (it.name.clone(), it.line)).collect())
    }

    /// Returns the functions with an anonymous tuple as a parameter, once for each parameter.
    pub(crate) fn tuple_parameters(&self) -> Vec<Named> {
        self.named(|items| items.tuples.iter().map(|it| (it.function.clone(), it.line)).collect())
    }

    /// Returns the names of the crates.
    pub(crate) fn packages(&self) -> impl Iterator<Item = &str> {
        self.crates.keys().map(String::as_str)
    }

    fn named(&self, names: impl Fn(&Items) -> Vec<(String, usize)>) -> Vec<Named> {
        let mut found = Vec::new();
        for (package, files) in &self.crates {
            for read in files.values() {
                let named = names(&read.items).into_iter().map(|(name, line)| Named {
                    package: package.clone(),
                    path: read.path.clone(),
                    line,
                    name,
                });
                found.extend(named);
            }
        }
        found
    }

    fn files(&self) -> impl Iterator<Item = &Read> {
        self.crates.values().flat_map(|files| files.values())
    }
}

/// A name in the code of a crate, with file and line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Named {
    pub(crate) package: String,
    pub(crate) path: PathBuf,
    /// From 1.
    pub(crate) line: usize,
    pub(crate) name: String,
}

/// Something that a rule forbids.
struct Finding {
    /// Its name in [`known`].
    key: String,
    text: String,
}

/// Leaves out what is known, and adds what is known and not there any more.
fn against(known: &[&str], found: impl Iterator<Item = Finding>) -> Vec<String> {
    let mut gone: Vec<&str> = known.to_vec();
    let mut findings = Vec::new();
    for finding in found {
        if known.contains(&&*finding.key) {
            gone.retain(|key| *key != finding.key);
        } else {
            findings.push(finding.text);
        }
    }
    let mended = |key| format!("mended, so take it out of xtask/src/shape/known.rs: {key}");
    findings.extend(gone.into_iter().map(mended));
    findings
}

/// Returns the package whose own code a file is, and its module. `None`: tests, benches, examples.
fn place(packages: &[Package], file: &Path) -> Option<(String, items::Module)> {
    let owner = |package: &&Package| {
        let roots = package.roots.iter().filter_map(|root| root.parent());
        roots.into_iter().any(|folder| file.starts_with(folder))
    };
    let package = packages.iter().find(owner)?;
    let folder = package
        .roots
        .iter()
        .filter_map(|root| root.parent())
        .find(|folder| folder.ends_with("src") && file.starts_with(folder))?;
    let within = file.strip_prefix(folder).ok()?.with_extension("");
    let mut module: Vec<String> =
        within.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|last| last == "mod") {
        module.pop();
    }
    if module.len() == 1 && ["lib", "main"].contains(&&*module[0]) {
        module.clear();
    }
    Some((package.name.clone(), module))
}

#[cfg(test)]
mod tests;
