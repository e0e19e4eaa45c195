//! Lines of the configuration that the operator must complete.

use serde::Serialize;

/// The mark of such a line. What is to be written follows it.
pub const MARK: &str = "# FILL IN:";

/// A place that the operator must complete.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FillIn {
    /// Its line in the configuration, from 1.
    pub line: usize,
    /// Its section, as its line has it.
    pub section: String,
    /// The key; empty: the line below has it.
    pub key: String,
    /// The thing to be written.
    pub what: String,
}

/// Finds the places of a text that this crate wrote.
pub(crate) fn places(text: &str) -> Vec<FillIn> {
    let mut section = "";
    let mut found = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        if content.starts_with('[') {
            section = content.split(" #").next().unwrap_or(content);
            continue;
        }
        let Some((before, what)) = content.split_once(MARK) else { continue };
        // A comment that speaks of the mark is no such line.
        if before.starts_with('#') {
            continue;
        }
        let key = before.split_once(" = ").map_or("", |(key, _)| key);
        let (section, key, what) = (section.to_owned(), key.to_owned(), what.trim().to_owned());
        found.push(FillIn { line, section, key, what });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_the_mark_are_found_and_comments_that_speak_of_it_are_not() {
        let text = "# Lines with \"# FILL IN:\" need a value\n[node]\nname = \"gateway\" \
                    # FILL IN: its name\n[[policy]] # a:1\n# FILL IN: the end, here too\n";
        let found = places(text);
        let of = |one: &FillIn| (one.line, one.section.clone(), one.key.clone(), one.what.clone());
        let is = |line, section: &str, key: &str, what: &str| {
            (line, section.to_owned(), key.to_owned(), what.to_owned())
        };
        assert_eq!(
            found.iter().map(of).collect::<Vec<_>>(),
            [is(3, "[node]", "name", "its name"), is(5, "[[policy]]", "", "the end, here too")]
        );
    }
}
