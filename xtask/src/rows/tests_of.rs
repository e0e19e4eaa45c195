//! The tests of a source file, with their comments.
//!
//! Files are as rustfmt leaves them: a function ends at the first line with its own indent that
//! begins with a brace. Rust's `#[test]` functions and the functions of the Python files under
//! `tests/interop` are tests; a Rust test that is ignored is none, unless `make test-long` runs it.

use std::path::Path;

/// A test that runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Test {
    pub(super) name: String,
    /// Its comments and those directly above it.
    pub(super) comments: String,
}

/// The tests of a file.
pub(super) fn tests_of(path: &Path, text: &str) -> Vec<Test> {
    let lines: Vec<&str> = text.lines().collect();
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("rs") => rust(&lines),
        Some("py") if path.components().any(|part| part.as_os_str() == "interop") => python(&lines),
        _ => Vec::new(),
    }
}

fn rust(lines: &[&str]) -> Vec<Test> {
    let mut tests = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let word = line.trim_start();
        if !(word == "#[test]" || word.starts_with("#[tokio::test")) {
            continue;
        }
        let is_head = |line: &&str| {
            let word = line.trim_start();
            word.starts_with("//") || word.starts_with("#[")
        };
        let above = lines[..at].iter().rev().take_while(|line| is_head(line)).count();
        let head = lines[at..].iter().take_while(|line| is_head(line)).count();
        let Some(first) = lines.get(at + head) else { continue };
        let Some(name) = name_behind(first, "fn ") else { continue };
        let attributes = &lines[at - above..at + head];
        if attributes.iter().any(|line| is_idle(line)) {
            continue;
        }
        let indent = first.len() - first.trim_start().len();
        let is_end = |line: &&str| {
            line.len() > indent
                && line[..indent].trim().is_empty()
                && line[indent..].starts_with('}')
        };
        let body = lines[at + head..].iter().take_while(|line| !is_end(line));
        let all = attributes.iter().chain(body);
        let comments: Vec<&str> = all.filter_map(|line| Some(line.split_once("//")?.1)).collect();
        tests.push(Test { name, comments: comments.join("\n") });
    }
    tests
}

/// Returns whether a line says that a test never runs.
fn is_idle(line: &str) -> bool {
    line.trim_start().starts_with("#[ignore") && !line.contains(crate::runs::LONG_REASON)
}

fn python(lines: &[&str]) -> Vec<Test> {
    let mut tests = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = name_behind(line, "def ").filter(|_| line.starts_with("def ")) else {
            continue;
        };
        let above = lines[..at].iter().rev().take_while(|line| line.starts_with('#')).count();
        let is_body = |line: &&&str| line.is_empty() || line.starts_with([' ', '\t', ')']);
        let body = lines[at + 1..].iter().take_while(is_body);
        let all = lines[at - above..at].iter().chain(body);
        let comments: Vec<&str> = all.filter_map(|line| Some(line.split_once('#')?.1)).collect();
        tests.push(Test { name, comments: comments.join("\n") });
    }
    tests
}

/// The name of the function that a line begins.
fn name_behind(line: &str, keyword: &str) -> Option<String> {
    let (before, after) = line.split_once(keyword)?;
    let is_name = |c: &char| c.is_alphanumeric() || *c == '_';
    let name: String = after.chars().take_while(is_name).collect();
    (!name.is_empty() && !before.contains("//")).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str, text: &str) -> Vec<(String, String)> {
        let tests = tests_of(Path::new(file), text);
        tests.into_iter().map(|test| (test.name, test.comments)).collect()
    }

    #[test]
    fn comments_in_and_directly_above_a_test_are_its_own() {
        let text = "\
// FC-09

// FC-01
#[test]
// FC-02
fn first() {
    let x = 1; // FC-03
    if x == 1 {
        // FC-04
    }
}

// FC-05
fn no_test() {}

    /// FC-06
    #[test]
    fn second(
        n in 0..3,
    ) {
        // FC-07
    }
    // FC-08
";
        let found = found("a.rs", text);
        assert_eq!(found[0].0, "first");
        assert_eq!(
            found[0].1.split_whitespace().collect::<Vec<_>>().join(" "),
            "FC-01 FC-02 FC-03 FC-04"
        );
        assert_eq!(found[1].0, "second");
        assert_eq!(found[1].1.replace(['/', '\n'], ""), " FC-06 FC-07");
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn what_is_ignored_does_not_run() {
        let text = "// FC-01\n#[test]\n#[ignore = \"by hand\"]\nfn a() {\n    // FC-02\n}\n";
        assert_eq!(found("a.rs", text), []);
        assert_eq!(found("a.rs", &text.replace("#[ignore = \"by hand\"]\n", "")).len(), 1);
        assert_eq!(found("a.rs", &text.replace("by hand", "make test-long PART=walk")).len(), 1);
    }

    #[test]
    fn functions_of_the_interop_tests_are_tests() {
        let text = "# FC-01\ndef live(a):\n    # FC-02\n    return 1\n\n# FC-03\nX = 1\n";
        let found = found("tests/interop/live.py", text);
        assert_eq!(found, [("live".to_owned(), " FC-01\n FC-02".to_owned())]);
        assert_eq!(tests_of(Path::new("etc/live.py"), text), []);
    }
}
