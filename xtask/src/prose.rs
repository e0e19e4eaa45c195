//! Checks of how documentation comments begin: with a verb or a noun that says what stands there.

/// First words that make a reader look elsewhere for the noun or the verb.
const VAGUE: &[&str] = &["What", "Whether", "Where", "How", "Why", "Who", "Which", "When"];

/// Finds documentation comments that begin with a vague word. Returns the numbers of their lines,
/// from 1, with the word.
pub(crate) fn vague_beginnings(text: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    let mut inside = None;
    for (number, line) in (1..).zip(text.lines()) {
        let marker =
            ["///", "//!"].into_iter().find(|marker| line.trim_start().starts_with(marker));
        if marker.is_some() && marker != inside {
            found.extend(vague_word(line).map(|word| (number, word)));
        }
        inside = marker;
    }
    found
}

/// Returns the vague word that the text of this line begins with.
fn vague_word(line: &str) -> Option<&'static str> {
    let text = line.trim_start().trim_start_matches(['/', '!']).trim_start();
    let first = text.split(|c: char| !c.is_alphanumeric()).next()?;
    VAGUE.iter().copied().find(|word| *word == first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_judged_by_its_first_word_alone() {
        let text = "//! What it does.\n\n/// Returns a number.\n/// Whether it is even, ask it.\n\
                    fn one() {}\n    /// How many.\n    count: u32,\n// What a plain comment says\n\
                    /// Whatever comes.\n";
        assert_eq!(vague_beginnings(text), [(1, "What"), (6, "How")]);
        assert_eq!(vague_beginnings("/// Why"), [(1, "Why")]);
    }
}
