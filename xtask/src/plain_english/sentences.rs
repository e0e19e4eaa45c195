//! Counts pointing words in the sentences of comments.
//!
//! A pointing word makes a reader search for the noun. `tidy` counts sentences of 4 to 80 words;
//! code in backquotes counts as one word, and code blocks do not count.

/// Words for a noun elsewhere.
const POINTING: &[&str] = &[
    "that", "which", "who", "whom", "whose", "what", "those", "these", "it", "its", "they", "them",
    "their", "one", "ones", "such", "there",
];

/// Phrases with a second pointer, as alternatives of each word.
const PHRASES: &[&[&[&str]]] = &[
    &[
        &["of", "by", "in", "for", "to", "from", "with", "behind", "beyond", "under", "over", "on"],
        &["which", "whom", "what", "whose"],
    ],
    &[&["those"], &["that", "of", "which", "who"]],
    &[&["that"], &["of"]],
    &[&["whoever", "whosoever"]],
    &[
        &["what", "whatever"],
        &[
            "is", "are", "was", "were", "it", "they", "comes", "goes", "has", "had", "can", "may",
            "must", "the",
        ],
    ],
    &[&["of"], &["before"]],
    &[&["so"], &["far"]],
    &[&["of"], &["its", "their"], &["own"]],
    &[&["the"], &["one"], &["that"]],
    &[&["whichever"]],
    &[&["as"], &["it"], &["is", "was", "lies", "came"]],
    &[&["there"], &["is", "are", "was", "were"]],
];

/// Number of words in a counted sentence.
const WORDS: std::ops::RangeInclusive<usize> = 4..=80;
/// Fewest pointing words and phrases of a heavy sentence.
const HEAVY: usize = 3;

/// A sentence of a comment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Sentence {
    /// Lines of the paragraph around the sentence, from 1.
    pub(super) lines: std::ops::RangeInclusive<usize>,
    pub(super) text: String,
    pub(super) words: usize,
    pub(super) pointing_words: usize,
    pub(super) phrases: usize,
}

impl Sentence {
    /// True if the sentence has three pointing words and phrases or more.
    pub(super) fn is_heavy(&self) -> bool {
        self.pointing_words + self.phrases >= HEAVY
    }

    /// Ranks sentences: the higher the score, the harder the sentence reads.
    pub(super) fn score(&self) -> f64 {
        let words = self.words as f64;
        let points = (self.pointing_words + 2 * self.phrases) as f64;
        points / words * (words / 14.0).min(1.0)
    }
}

/// Returns the sentences in the comments of a Rust file.
pub(super) fn sentences(text: &str) -> Vec<Sentence> {
    let mut found = Vec::new();
    for paragraph in paragraphs(text) {
        let plain = without_links(&without_code(&paragraph.text));
        for sentence in split(&plain) {
            let words = words(sentence);
            if WORDS.contains(&words.len()) {
                let points = |word: &&&str| POINTING.contains(&word.to_lowercase().as_str());
                found.push(Sentence {
                    lines: paragraph.lines.clone(),
                    text: sentence.to_owned(),
                    words: words.len(),
                    pointing_words: words.iter().filter(points).count(),
                    phrases: phrases(sentence),
                });
            }
        }
    }
    found
}

/// Prose between blank lines, list items and code.
struct Paragraph {
    lines: std::ops::RangeInclusive<usize>,
    text: String,
}

fn paragraphs(text: &str) -> Vec<Paragraph> {
    let mut found: Vec<Paragraph> = Vec::new();
    let mut is_open = false;
    let mut in_code_block = false;
    for (number, line) in (1..).zip(text.lines()) {
        let comment = comment_text(line);
        let mut prose = comment.unwrap_or_default();
        if prose.starts_with("```") {
            in_code_block = !in_code_block;
            prose = "";
        }
        in_code_block &= comment.is_some();
        if in_code_block || prose.contains("SPDX") || prose.contains("Copyright") {
            prose = "";
        }
        let item = list_item(prose);
        prose = item.unwrap_or(prose);
        is_open &= !prose.is_empty() && item.is_none();
        match found.last_mut().filter(|_| is_open) {
            Some(paragraph) => {
                paragraph.text = format!("{} {prose}", paragraph.text);
                paragraph.lines = *paragraph.lines.start()..=number;
            }
            None if prose.is_empty() => {}
            None => found.push(Paragraph { lines: number..=number, text: prose.to_owned() }),
        }
        is_open = !prose.is_empty();
    }
    found
}

/// Returns the text of a comment's line.
fn comment_text(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.strip_prefix(['/', '!']).unwrap_or(text).trim())
}

/// Returns the text behind the mark of a list item.
fn list_item(text: &str) -> Option<&str> {
    let (mark, rest) = text.split_once(' ')?;
    let is_number = |digits: &str| !digits.is_empty() && digits.chars().all(char::is_numeric);
    let is_mark = matches!(mark, "*" | "-") || mark.strip_suffix('.').is_some_and(is_number);
    is_mark.then_some(rest)
}

/// Replaces code in backquotes by a word.
fn without_code(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, code)) = rest.split_once('`') {
        let Some((_, after)) = code.split_once('`') else { break };
        plain = plain + before + "X";
        rest = after;
    }
    plain + rest
}

/// Replaces links by the linked text.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        let Some((name, after)) = link.split_once(']') else { break };
        plain = plain + before + name;
        let target = after.strip_prefix('(').and_then(|target| target.split_once(')'));
        rest = target.map_or(after, |(_, after)| after);
    }
    plain + rest
}

/// Splits a paragraph behind stops before a capital or a quotation.
fn split(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut start = 0;
    for (at, stop) in text.char_indices().filter(|(_, c)| ".!?:;".contains(*c)) {
        let behind = &text[at + stop.len_utf8()..];
        let next = behind.trim_start();
        let begins = |c: char| c.is_ascii_uppercase() || "`\"'(*".contains(c);
        if next.len() < behind.len() && next.chars().next().is_none_or(begins) {
            found.push(&text[start..at + stop.len_utf8()]);
            start = text.len() - next.len();
        }
    }
    found.push(&text[start..]);
    found
}

/// Returns the words of a sentence: letters first, then letters, apostrophes and hyphens.
fn words(sentence: &str) -> Vec<&str> {
    let is_inner = |c: char| c.is_ascii_alphabetic() || c == '\'' || c == '-';
    let runs = sentence.split(|c| !is_inner(c));
    let runs = runs.map(|run| run.trim_start_matches(['\'', '-']));
    runs.filter(|run| !run.is_empty()).collect()
}

/// Counts the pointing phrases of a sentence.
fn phrases(sentence: &str) -> usize {
    let is_inner = |c: char| c.is_alphanumeric() || c == '_';
    // Words and, at odd places, the text between words.
    let mut tokens: Vec<String> = vec![String::new()];
    for c in sentence.chars() {
        let is_word = tokens.len() % 2 == 1;
        if is_inner(c) != is_word {
            tokens.push(String::new());
        }
        tokens.last_mut().expect("a token was pushed").extend(c.to_lowercase());
    }
    let mut count = 0;
    let mut at = 0;
    while at < tokens.len() {
        let length = PHRASES.iter().find_map(|phrase| length(phrase, &tokens[at..]));
        count += usize::from(length.is_some());
        at += length.unwrap_or(2);
    }
    count
}

/// Returns the number of tokens of a phrase at the beginning of `tokens`, with the last gap.
fn length(phrase: &[&[&str]], tokens: &[String]) -> Option<usize> {
    for (place, alternatives) in phrase.iter().enumerate() {
        let word = tokens.get(2 * place)?;
        if !alternatives.contains(&word.as_str()) || (place > 0 && tokens[2 * place - 1] != " ") {
            return None;
        }
    }
    Some(2 * phrase.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str) -> Vec<(usize, usize, usize)> {
        let found = sentences(text).into_iter();
        found.map(|it| (it.words, it.pointing_words, it.phrases)).collect()
    }

    #[test]
    fn pointing_words_and_phrases_are_counted() {
        assert_eq!(counts("// The one that has what it takes."), [(7, 4, 2)]);
        assert_eq!(counts("// There are tables of which those of before remain."), [(9, 3, 3)]);
        assert_eq!(counts("/// A worker publishes its counters."), [(5, 1, 0)]);
        assert!(sentences("// The one that has what it takes.")[0].is_heavy());
    }

    #[test]
    fn phrases_need_whole_words_and_one_space() {
        assert_eq!(phrases("so far-reaching"), 1);
        assert_eq!(phrases("also far, so  far, so\tfar, so farther"), 0);
        assert_eq!(phrases("that of its own"), 1, "phrases do not overlap");
    }

    #[test]
    fn a_paragraph_joins_lines_and_ends_at_code_items_and_blank_lines() {
        let text = "/// Opens a file\n/// of the user. Returns its\n/// open descriptor here.\n\
            let a = 1; // no comment line of its own here\n//! * an item of a list\n//! 1. another \
            item of it\n//!\n//! ```\n//! code in a block, unread\n//! ```\n\
            //! the end of the file\n";
        let found: Vec<_> = sentences(text).into_iter().map(|it| (it.lines, it.text)).collect();
        assert_eq!(
            found,
            [
                (1..=3, "Opens a file of the user.".to_owned()),
                (1..=3, "Returns its open descriptor here.".to_owned()),
                (5..=5, "an item of a list".to_owned()),
                (6..=6, "another item of it".to_owned()),
                (11..=11, "the end of the file".to_owned()),
            ]
        );
    }

    #[test]
    fn code_and_links_count_as_their_words() {
        assert_eq!(without_code("see `that of it` and `this"), "see X and `this");
        assert_eq!(without_links("[a b](that) [c] [d"), "a b c [d");
        assert_eq!(words("the X's -end- 4th"), ["the", "X's", "end-", "th"]);
    }

    #[test]
    fn a_sentence_ends_at_a_stop_before_a_capital() {
        assert_eq!(
            split("One two. Three e.g. four; Five: six. "),
            ["One two.", "Three e.g. four;", "Five: six.", ""]
        );
    }
}
