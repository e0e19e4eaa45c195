//! The rules of the code that the compiler does not check.
//!
//! Each check is a function from text to findings, so that its tests can show it failing.

use std::fmt::Display;
use std::path::Path;

use crate::shape::Shape;
use crate::sources::{Package, Source, Use, is_tests, packages, read, shown, tracked_sources};
use crate::{Failure, cargo, long, mutations, plain_english, prose, root, rows, succeed};

/// The layout of DESIGN §4: which of our crates each may depend on. Tests may use more (a memory
/// port, say) but never a program.
const DIRECTIONS: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("cpu", &[]),
    ("persistent", &[]),
    ("endpoints", &["wire", "cpu"]),
    ("policy", &["wire", "cpu"]),
    ("ipsec-mb", &["cpu"]),
    ("ipsec", &["wire", "cpu", "policy", "ipsec-mb"]),
    ("offload", &["wire", "policy", "ipsec"]),
    ("dataplane", &["wire", "cpu", "persistent", "endpoints", "policy", "ipsec", "offload"]),
    ("xsk", &[]),
    ("bpf", &["wire"]),
    ("placement", &["wire", "bpf", "endpoints", "policy", "dataplane"]),
    ("io", &["wire", "cpu", "xsk"]),
    ("emulated-card", &["offload"]),
    ("card-link", &["offload"]),
    ("charon-link", &[]),
    ("keystate", &["ipsec"]),
    ("key-memory", &[]),
    ("powercut", &[]),
    ("store", &[]),
    ("api", &[]),
    ("config", &["wire", "policy", "ipsec", "dataplane", "keystate"]),
    ("linux", &["wire", "policy", "dataplane"]),
    (
        "control",
        &[
            "wire",
            "endpoints",
            "policy",
            "ipsec",
            "dataplane",
            "keystate",
            "config",
            "linux",
            "offload",
        ],
    ),
    ("console", &["config"]),
    ("import", &["wire", "policy", "ipsec", "config"]),
    ("replay", &["wire", "policy", "ipsec", "dataplane", "io", "config", "control", "console"]),
    ("netlab", &["wire", "io", "bpf"]),
    ("callgrind", &[]),
    ("scene", &["wire", "endpoints", "policy", "ipsec", "dataplane", "io"]),
    ("packets", &["wire", "endpoints", "policy", "ipsec", "dataplane", "io"]),
    ("model", &["wire", "policy", "ipsec", "dataplane"]),
    ("documents", &[]),
    (
        "lockgate",
        &[
            "wire",
            "policy",
            "ipsec",
            "dataplane",
            "io",
            "bpf",
            "config",
            "linux",
            "control",
            "offload",
            "console",
            "import",
            "replay",
            "api",
        ],
    ),
    ("lockgate-emulated-card", &["wire", "offload", "emulated-card", "card-link", "io", "console"]),
    (
        "lockgate-demo",
        &["wire", "ipsec", "dataplane", "io", "config", "console", "replay", "netlab"],
    ),
    (
        "lockgate-bench",
        &[
            "wire",
            "cpu",
            "policy",
            "offload",
            "emulated-card",
            "charon-link",
            "ipsec",
            "dataplane",
            "endpoints",
            "io",
            "xsk",
            "bpf",
            "console",
            "netlab",
            "scene",
            "callgrind",
        ],
    ),
    (
        "lockgated",
        &[
            "wire",
            "policy",
            "ipsec",
            "endpoints",
            "store",
            "offload",
            "card-link",
            "charon-link",
            "dataplane",
            "io",
            "xsk",
            "bpf",
            "placement",
            "keystate",
            "config",
            "linux",
            "control",
            "api",
        ],
    ),
    ("net", &["wire", "io", "linux", "netlab"]),
    (
        "fuzz-replay",
        &[
            "wire",
            "policy",
            "ipsec",
            "dataplane",
            "config",
            "control",
            "card-link",
            "charon-link",
            "model",
            "packets",
        ],
    ),
    ("instructions", &["wire", "cpu", "ipsec", "dataplane", "io", "scene"]),
    (
        "changes",
        &["wire", "policy", "ipsec", "dataplane", "keystate", "config", "linux", "control"],
    ),
    ("worlds", &["wire", "policy", "ipsec", "dataplane", "io", "scene"]),
    ("xtask", &["callgrind"]),
];

/// Lines of a Rust file before its tests.
const MAX_FILE_LINES: usize = 800;
/// Characters of a line of code.
const MAX_LINE_CHARS: usize = 100;
/// Files whose lines are code.
const CODE: &[&str] = &["rs", "py", "sh", "c", "h"];
/// Folders of developers' machines, cut in two so that this file does not contain them.
const MACHINE_FOLDERS: &[(&str, &str)] = &[("/ho", "me/"), ("/ro", "ot/"), ("/wo", "rk/")];
/// Host names of registries, cut in two for the same reason.
const REGISTRIES: &[(&str, &str)] = &[
    ("index.crates", ".io"),
    ("static.crates", ".io"),
    ("pypi", ".org"),
    ("pythonhosted", ".org"),
    ("registry.npmjs", ".org"),
    ("proxy.golang", ".org"),
];
/// Allowed sources of packages in lock files: the public index, and a name for tests.
const PUBLIC_INDEXES: &[&str] =
    &["https://github.com/rust-lang/crates.io-index", "https://example.org"];
const FORBID_UNSAFE: &str = "#![forbid(unsafe_code)]";
/// Crates that wrap the processor, the kernel or a C library (DESIGN §4): unsafe code has its place
/// there, each block with its reason.
const WRAPS_KERNEL: &[&str] =
    &["cpu", "xsk", "bpf", "keystate", "key-memory", "io", "ipsec-mb", "powercut"];
const EXPLAIN_UNSAFE: &str = "#![deny(clippy::undocumented_unsafe_blocks)]";

/// Runs every check and prints what each looked at and found.
pub(crate) fn run() -> Result<(), Failure> {
    let packages = packages()?;
    let sources = tracked_sources()?;
    let manifest = read(&root().join("Cargo.toml"))?;
    let roots: Vec<Source> = packages
        .iter()
        .flat_map(|package| &package.roots)
        .map(|path| Ok(Source { path: path.clone(), text: read(path)? }))
        .collect::<Result<_, Failure>>()?;
    let code: Vec<&Source> = sources.iter().filter(|source| is_code(&source.path)).collect();
    let rust = || sources.iter().filter(|source| is_rust(&source.path));

    let mut report = Report::default();
    report
        .add(format!("dependency directions of {} crates", packages.len()), directions(&packages));
    report.add(
        format!("{FORBID_UNSAFE} in {} crate roots", roots.len()),
        roots.iter().flat_map(unsafe_allowed).collect(),
    );
    report.add(
        "every unsafe block with its promise and its threat",
        rust().flat_map(unsafe_unexplained).collect(),
    );
    report.add(
        format!("length of {} files and their lines", code.len()),
        code.iter().flat_map(|source| lengths(source)).collect(),
    );
    report.add(
        "documentation comments begin with a verb or a noun",
        rust().flat_map(vague).collect(),
    );
    report.add("a reason beside every dependency", unexplained(&manifest));
    report.add(
        format!("no path of a developer's machine in {} files", sources.len()),
        sources.iter().flat_map(machine_paths).collect(),
    );
    report.add(
        format!("no host name of a registry in {} files", sources.len()),
        sources.iter().flat_map(registry_hosts).collect(),
    );
    report.add(
        "every ignored test has a part of `test-long` that runs it",
        rust().flat_map(|source| long::check_ignored(&source.path, &source.text)).collect(),
    );
    match Shape::read(&packages, &sources) {
        Ok(shape) => report.add_shape(&shape, &sources)?,
        Err(broken) => report.add("every file is Rust", broken),
    }
    report.add("acceptance rows and the tests that prove them", rows::findings(&sources)?);
    report.add("changes that tests must notice", mutations::findings(&sources)?);
    let format = match succeed(cargo().args(["fmt", "--all", "--check"])) {
        Ok(()) => vec![],
        Err(Failure::Program { .. }) => vec!["run `make fmt`".into()],
        Err(failure) => return Err(failure),
    };
    report.add("rustfmt", format);
    match report.findings {
        0 => Ok(()),
        findings => Err(Failure::Untidy { findings }),
    }
}

/// Prints the result of each check and counts the findings.
#[derive(Default)]
struct Report {
    findings: usize,
}

impl Report {
    fn add(&mut self, check: impl Display, found: Vec<String>) {
        println!("tidy: {check}: {}", if found.is_empty() { "ok" } else { "NOT OK" });
        found.iter().for_each(|finding| println!("  {finding}"));
        self.findings += found.len();
    }

    fn add_shape(&mut self, shape: &Shape, sources: &[Source]) -> Result<(), Failure> {
        self.add("no circle of modules that is new", shape.circles());
        self.add("no long function that is new", shape.long_functions());
        self.add("no bare bool as a parameter that is new", shape.bool_parameters());
        let risen = plain_english::findings(sources, shape)?;
        self.add("no figure of plain English above its record", risen);
        Ok(())
    }
}

/// Dependencies that run against the layout.
fn directions(packages: &[Package]) -> Vec<String> {
    let ours = |name: &str| packages.iter().find(|package| package.name == name);
    let mut findings = Vec::new();
    for package in packages {
        let name = &package.name;
        let Some((_, allowed)) = DIRECTIONS.iter().find(|(known, _)| known == name) else {
            findings.push(format!("{name}: not in the table of xtask/src/tidy.rs"));
            continue;
        };
        for dependency in &package.dependencies {
            let Some(target) = ours(&dependency.name) else { continue };
            if target.is_program {
                findings.push(format!("{name} depends on {}, which is a program", target.name));
            } else if dependency.use_ == Use::Build && !allowed.contains(&target.name.as_str()) {
                findings.push(format!("{name} must not depend on {}", target.name));
            }
        }
    }
    findings
}

/// A crate root that neither forbids unsafe code nor, where it wraps the kernel, asks for reasons.
fn unsafe_allowed(source: &Source) -> Option<String> {
    let crates = root().join("crates");
    let wraps = |name: &&str| source.path.starts_with(crates.join(name));
    let wanted = match WRAPS_KERNEL.iter().any(wraps) {
        true => EXPLAIN_UNSAFE,
        false => FORBID_UNSAFE,
    };
    let has = |wanted: &str| source.text.lines().any(|line| line.trim_end() == wanted);
    let sound = has(FORBID_UNSAFE) || has(wanted);
    (!sound).then(|| format!("{}: no {wanted}", shown(&source.path)))
}

/// Uses of the word `unsafe` without their reasons: a block or an `impl` needs a comment `SAFETY:`
/// above its statement, which names the threat too (`Threat:`), a function or a trait a section
/// `# Safety` in its documentation.
fn unsafe_unexplained(source: &Source) -> Vec<String> {
    let lines: Vec<&str> = source.text.lines().map(str::trim).collect();
    let mut findings = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let lacks = match unsafe_use(line) {
            None => continue,
            Some(UnsafeUse::Declaration) => {
                let is_above = |line: &&&str| line.starts_with("///") || line.starts_with("#[");
                let mut above = lines[..at].iter().rev().take_while(is_above);
                (!above.any(|line| *line == "/// # Safety")).then_some("no section `# Safety`")
            }
            Some(UnsafeUse::Block) => match safety_comment(&lines[..at]) {
                None => Some("no comment `SAFETY:` above"),
                Some(comment) if !comment.contains("Threat:") => {
                    Some("a SAFETY line without threat")
                }
                Some(_) => None,
            },
        };
        let path = shown(&source.path);
        findings.extend(lacks.map(|lacks| format!("{path}:{}: {lacks}", at + 1)));
    }
    findings
}

/// A use of the word `unsafe`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum UnsafeUse {
    /// A function or a trait: others keep the promise.
    Declaration,
    /// A block or an `impl`: the promise is kept here.
    Block,
}

/// The use of `unsafe` in a line of code; types of functions and foreign items are none.
fn unsafe_use(line: &str) -> Option<UnsafeUse> {
    if line.starts_with("//") {
        return None;
    }
    let (before, after) = line.split_once("unsafe ")?;
    let in_string = before.matches('"').count() % 2 == 1;
    let is_word = !before.ends_with(|last: char| last.is_alphanumeric() || "_`".contains(last));
    let first = after.split(|c: char| !c.is_alphanumeric() && c != '{').next()?;
    match first {
        _ if in_string || !is_word => None,
        "fn" | "trait" => Some(UnsafeUse::Declaration),
        "impl" => Some(UnsafeUse::Block),
        first if first.starts_with('{') => Some(UnsafeUse::Block),
        _ => None,
    }
}

/// The comment `SAFETY:` above the statement that goes on behind these lines.
fn safety_comment(above: &[&str]) -> Option<String> {
    let is_end = |line: &str| line.is_empty() || line.ends_with([';', '}']);
    let mut rest = above;
    while let Some((last, before)) = rest.split_last().filter(|(last, _)| !last.starts_with("//")) {
        if is_end(last) {
            return None;
        }
        rest = before;
    }
    let comments = rest.iter().rev().take_while(|line| line.starts_with("//")).count();
    let comment = rest[rest.len() - comments..].join(" ");
    comment.contains("// SAFETY:").then_some(comment)
}

fn is_rust(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
}

fn is_code(path: &Path) -> bool {
    path.extension().is_some_and(|extension| CODE.iter().any(|known| extension == *known))
}

/// Files that are too long before their tests, and lines that are too long anywhere.
fn lengths(source: &Source) -> Vec<String> {
    let path = shown(&source.path);
    let mut findings = Vec::new();
    let before_tests = source.text.find("#[cfg(test)]\nmod ").unwrap_or(source.text.len());
    let lines = source.text[..before_tests].lines().count();
    if lines > MAX_FILE_LINES && !is_tests(&source.path) {
        findings.push(format!("{path}: {lines} lines, at most {MAX_FILE_LINES}"));
    }
    for (number, line) in source.text.lines().enumerate() {
        let length = line.chars().count();
        if length > MAX_LINE_CHARS {
            findings.push(format!("{path}:{}: {length} characters", number + 1));
        }
    }
    findings
}

/// Documentation comments that begin with a word that says nothing by itself.
fn vague(source: &Source) -> Vec<String> {
    let path = shown(&source.path);
    let finding = |(line, word)| format!("{path}:{line}: begins with \"{word}\"");
    prose::vague_beginnings(&source.text).into_iter().map(finding).collect()
}

/// External dependencies without a comment above them or above the group they stand in.
fn unexplained(manifest: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let (mut inside, mut explained) = (false, false);
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line == "[workspace.dependencies]";
            explained = false;
        } else if line.is_empty() {
            explained = false;
        } else if line.starts_with('#') {
            explained = true;
        } else if inside
            && !explained
            && !line.contains("path = ")
            && let Some((name, _)) = line.split_once('=')
        {
            findings.push(format!("Cargo.toml: {} has no reason above it", name.trim()));
        }
    }
    findings
}

/// Lines that name a folder of a developer's machine.
fn machine_paths(source: &Source) -> Vec<String> {
    let mut findings = Vec::new();
    for (number, line) in source.text.lines().enumerate() {
        for (first, second) in MACHINE_FOLDERS {
            if names_folder(line, &format!("{first}{second}")) {
                let path = shown(&source.path);
                findings.push(format!("{path}:{}: {first}{second}", number + 1));
            }
        }
    }
    findings
}

/// Lines with the host name of a registry: a known name, a name in cargo's folder of sources, or a
/// name in a lock file.
fn registry_hosts(source: &Source) -> Vec<String> {
    let mut findings = Vec::new();
    for (number, line) in source.text.lines().enumerate() {
        if let Some(host) = registry_host(line) {
            findings.push(format!(
                "{}:{}: {host}: name the package and its version instead",
                shown(&source.path),
                number + 1
            ));
        }
    }
    findings
}

fn registry_host(line: &str) -> Option<String> {
    let mut known = REGISTRIES.iter().map(|(first, second)| format!("{first}{second}"));
    if let Some(host) = known.find(|host| line.contains(host)) {
        return Some(host);
    }
    let word = |text: &str| {
        let is_end = |c: char| c.is_whitespace() || "\"')#".contains(c);
        text.split(is_end).next().unwrap_or_default().to_owned()
    };
    let folder = line.split_once("registry/src/").map(|(_, rest)| word(rest));
    let folder = folder.and_then(|path| Some(path.split_once('/')?.0.to_owned()));
    let folder = folder.filter(|host| host.contains('.'));
    let index = ["registry+", "sparse+"].iter().find_map(|kind| line.split_once(kind));
    let index = index.map(|(_, rest)| word(rest)).filter(|url| url.starts_with("http"));
    let index = index.filter(|url| !PUBLIC_INDEXES.contains(&url.as_str()));
    folder.or(index)
}

/// Returns whether `folder` stands in the line as the beginning of a path.
fn names_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|before| before.is_alphanumeric() || "_./-}".contains(before))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::{Dependency, parse_packages};

    fn package(name: &str, dependencies: &[(&str, Use)]) -> Package {
        let dependencies = dependencies
            .iter()
            .map(|(name, use_)| Dependency { name: name.to_string(), use_: *use_ })
            .collect();
        let is_program = name == "lockgate";
        Package { name: name.into(), is_program, dependencies, roots: vec![] }
    }

    fn source(path: &str, text: impl Into<String>) -> Source {
        Source { path: path.into(), text: text.into() }
    }

    #[test]
    fn a_dependency_against_the_layout_is_found() {
        let good = [
            package("wire", &[]),
            package("ipsec", &[("wire", Use::Build), ("aws-lc-rs", Use::Build)]),
            package("io", &[("wire", Use::Build)]),
            package("dataplane", &[("ipsec", Use::Build), ("io", Use::Tests)]),
            package("lockgate", &[("dataplane", Use::Build), ("io", Use::Build)]),
        ];
        assert_eq!(directions(&good), [""; 0]);
        let bad = [
            package("wire", &[("io", Use::Build)]),
            package("io", &[("lockgate", Use::Tests)]),
            package("newcomer", &[]),
            package("lockgate", &[]),
        ];
        assert_eq!(
            directions(&bad),
            [
                "wire must not depend on io",
                "io depends on lockgate, which is a program",
                "newcomer: not in the table of xtask/src/tidy.rs",
            ]
        );
    }

    #[test]
    fn the_table_of_directions_has_no_cycle() {
        for (position, (name, allowed)) in DIRECTIONS.iter().enumerate() {
            for dependency in *allowed {
                let found = DIRECTIONS[..position].iter().any(|(other, _)| other == dependency);
                assert!(found, "{name} before {dependency}");
            }
        }
    }

    #[test]
    fn metadata_is_understood() {
        let metadata = r#"{"packages": [{
            "name": "a",
            "dependencies": [{"name": "b", "kind": null}, {"name": "c", "kind": "dev"}],
            "targets": [{"kind": ["lib"], "src_path": "a/src/lib.rs"},
                        {"kind": ["test"], "src_path": "a/tests/t.rs"}]
        }]}"#;
        let mut expected = package("a", &[("b", Use::Build), ("c", Use::Tests)]);
        expected.roots = vec!["a/src/lib.rs".into()];
        assert_eq!(parse_packages(metadata), Some(vec![expected]));
        assert_eq!(parse_packages("{}"), None);
    }

    #[test]
    fn a_crate_root_without_forbid_is_found() {
        let forbids = source("lib.rs", format!("//! Doc.\n{FORBID_UNSAFE}\n"));
        assert_eq!(unsafe_allowed(&forbids), None);
        let comment = source("lib.rs", format!("// {FORBID_UNSAFE}\n"));
        assert!(unsafe_allowed(&comment).unwrap().starts_with("lib.rs: no "));
    }

    #[test]
    fn unsafe_code_without_its_promise_or_its_threat_is_found() {
        let found = |text: &str| unsafe_unexplained(&source("a.rs", text));
        for good in [
            "// SAFETY: it is ours. Threat: none.\nunsafe { f() };",
            "// SAFETY: it is ours.\n// Threat: none.\nlet a = if b {\nunsafe { f() }",
            "// SAFETY: a number. Threat: none.\nunsafe impl Plain for u8 {}",
            "/// Does it.\n///\n/// # Safety\n/// It is ours.\n#[inline]\nunsafe fn f() {}",
            "/// # Safety\n/// All bytes.\npub(crate) unsafe trait Plain {}",
            "pub(crate) type F = unsafe extern \"C\" fn(u8);\nunsafe extern \"C\" {",
            "// unsafe { } in a comment\n#![forbid(unsafe_code)]",
        ] {
            assert_eq!(found(good), [""; 0], "{good}");
        }
        for (bad, why) in [
            ("unsafe { f() };", "a.rs:1: no comment `SAFETY:` above"),
            (
                "// SAFETY: of another. Threat: none.\na();\nunsafe { f() };",
                "a.rs:3: no comment `SAFETY:` above",
            ),
            ("// SAFETY: it is ours.\nunsafe { f() };", "a.rs:2: a SAFETY line without threat"),
            ("/// Does it.\nunsafe fn f() {}", "a.rs:2: no section `# Safety`"),
            ("unsafe impl Send for A {}", "a.rs:1: no comment `SAFETY:` above"),
        ] {
            assert_eq!(found(bad), [why], "{bad}");
        }
    }

    #[test]
    fn long_files_and_lines_are_found_but_tests_do_not_count() {
        let body = |lines| "x\n".repeat(lines);
        assert_eq!(lengths(&source("a.rs", body(MAX_FILE_LINES))), [""; 0]);
        let tests = format!("{}#[cfg(test)]\nmod tests {{\n", body(MAX_FILE_LINES));
        assert_eq!(lengths(&source("a.rs", tests + &body(500))), [""; 0]);
        let import = format!("#[cfg(test)]\nuse x;\n{}", body(MAX_FILE_LINES));
        assert_eq!(lengths(&source("a.rs", import)).len(), 1, "more than tests behind it");
        assert_eq!(lengths(&source("a/tests.rs", body(2000))), [""; 0]);
        assert_eq!(
            lengths(&source("a.rs", body(MAX_FILE_LINES + 1))),
            ["a.rs: 801 lines, at most 800"]
        );
        let wide = |chars| format!("ok\n{}\n", "ü".repeat(chars));
        assert_eq!(lengths(&source("a.rs", wide(MAX_LINE_CHARS))), [""; 0]);
        assert_eq!(lengths(&source("a.rs", wide(MAX_LINE_CHARS + 1))), ["a.rs:2: 101 characters"]);
    }

    #[test]
    fn a_dependency_without_a_reason_is_found() {
        let manifest = "[package]\nname = \"x\"\n[workspace.dependencies]\n\
            ours = { path = \"crates/ours\" }\n\n# why\na = \"1\"\nb = \"1\"\n\nc = \"1\"\n";
        assert_eq!(unexplained(manifest), ["Cargo.toml: c has no reason above it"]);
    }

    #[test]
    fn a_path_of_a_developers_machine_is_found() {
        for (first, second) in MACHINE_FOLDERS {
            let line = format!("fine\nsee {first}{second}x\n");
            assert_eq!(machine_paths(&source("a.md", line)).len(), 1);
            let inside = format!("target{first}{second}x\n${{top}}{first}{second}\n");
            assert_eq!(machine_paths(&source("a.md", inside)), [""; 0]);
        }
    }

    #[test]
    fn a_host_name_of_a_registry_is_found() {
        let found = |line: &str| registry_hosts(&source("a.json", format!("fine\n{line}\n")));
        for (first, second) in REGISTRIES {
            assert_eq!(found(&format!("see https://{first}{second}/x")).len(), 1);
        }
        let folder =
            |host: &str| format!("({}/{host}-0123456789abcdef/a-1.0/src/b.rs)", "registry/src");
        assert_eq!(
            found(&folder("mirror.example.net")),
            ["a.json:2: mirror.example.net-0123456789abcdef: name the package and its version \
              instead"]
        );
        assert_eq!(found(&folder("HOST")), [""; 0]);
        for kind in ["registry", "sparse"] {
            let mirror = format!("source = \"{kind}+https://mirror.example.net/index\"");
            assert_eq!(found(&mirror).len(), 1, "{mirror}");
            for index in PUBLIC_INDEXES {
                assert_eq!(found(&format!("source = \"{kind}+{index}\"")), [""; 0]);
            }
        }
    }

    #[test]
    fn code_is_told_from_other_files() {
        assert!(is_code(Path::new("a/b.rs")) && is_code(Path::new("run.py")));
        assert!(!is_code(Path::new("README.md")) && !is_code(Path::new("LICENSE")));
    }
}
