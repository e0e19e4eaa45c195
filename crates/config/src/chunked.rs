//! A file read in pieces: the tree of a text takes thirty times the text, and a file may hold a
//! million policies, so no more than some of them are a tree at any time.
//!
//! The text is cut before lines that begin a `[[policy]]` or a `[[rule]]`, and a run of these
//! entries where it is longer than [`PIECE_BYTES`]. The rest, the frame, is cut before sections,
//! but not before a section within an earlier section. A piece is a tree of its own.
//!
//! It means what the whole means. TOML is read from left to right, and at the end of a piece
//! without a mistake nothing is left open: the next line begins an expression, in the whole too.
//! So the cuts of a file whose pieces have no mistake are where the whole has ends of expressions.
//! A file with a mistake in any piece is read as a whole instead, for what it says of the mistake.

use std::ops::Range;

use toml::de::DeTable;

use crate::diagnostic::DiagnosticKind;
use crate::errors::Diagnostics;
use crate::raw::{self, Raw, RawLists};
use crate::read::Section;
use crate::source::{Origin, Source};

/// A run of entries is cut where it is longer, bytes.
const PIECE_BYTES: usize = 32 << 10;

/// A text with a mistake is read as a whole if it is not longer, bytes: a tree of 75 MiB.
pub(crate) const WHOLE_BYTES: usize = 1 << 20;

/// Bytes of the shortest policy and of the shortest rule, and less.
const LEAST_ENTRY_BYTES: usize = 48;

/// The text cannot be read in pieces: it has a mistake, or policies or rules that do not begin with
/// a line `[[policy]]` or `[[rule]]`.
#[derive(Debug)]
pub(crate) struct Whole;

/// Positions at which a text is cut into chunks.
#[derive(Default)]
pub(crate) struct Chunks {
    /// Parts without policies and rules; each begins with a line.
    frame: Vec<Range<usize>>,
    /// Policies and rules; each begins with a line `[[policy]]` or `[[rule]]`.
    entries: Vec<Range<usize>>,
    /// Numbers of headers.
    counts: EntryCounts,
}

/// Numbers of policies and rules of a text, at most: a list of this capacity never grows.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct EntryCounts {
    pub(crate) policies: usize,
    pub(crate) rules: usize,
}

impl EntryCounts {
    /// The numbers of entries that were read.
    pub(crate) fn of(lists: &RawLists) -> EntryCounts {
        EntryCounts { policies: lists.policies.len(), rules: lists.rules.len() }
    }

    fn count(&mut self, entry: &str) {
        match entry {
            POLICY => self.policies += 1,
            _ => self.rules += 1,
        }
    }

    /// The numbers of entries of a text with so many bytes at most: most entries of a text with
    /// mistakes may be nothing but headers.
    fn within(self, bytes: usize) -> EntryCounts {
        let most = bytes / LEAST_ENTRY_BYTES;
        EntryCounts { policies: self.policies.min(most), rules: self.rules.min(most) }
    }
}

impl Chunks {
    pub(crate) fn of(text: &str) -> Chunks {
        Chunks::cut(text, PIECE_BYTES)
    }

    fn cut(text: &str, piece_bytes: usize) -> Chunks {
        let mut pieces = Chunks::default();
        let (mut begin, mut in_entries) = (0, false);
        let mut at = 0;
        for line in text.split_inclusive('\n') {
            let (here, entry) = (at, entry_header(line));
            let is_entry = entry.is_some();
            entry.iter().for_each(|entry| pieces.counts.count(entry));
            at += line.len();
            let ends = match (in_entries, is_entry) {
                (true, true) => here - begin >= piece_bytes,
                (true, false) => is_header(line),
                (false, is_entry) => is_entry,
            };
            if ends {
                pieces.push(begin..here, in_entries);
                (begin, in_entries) = (here, is_entry);
            }
        }
        pieces.push(begin..text.len(), in_entries);
        pieces.counts = pieces.counts.within(text.len());
        pieces
    }

    /// Returns the numbers of policies and rules of the text, at most.
    pub(crate) fn entry_counts(&self) -> EntryCounts {
        self.counts
    }

    fn push(&mut self, piece: Range<usize>, is_entries: bool) {
        match is_entries {
            true => self.entries.push(piece),
            false if piece.is_empty() => {}
            false => self.frame.push(piece),
        }
    }

    /// Returns all pieces in the order of the text.
    pub(crate) fn in_order(&self, text: &str) -> Vec<Range<usize>> {
        let frame = self.frame.iter().flat_map(|part| frame_pieces(text, part.clone()));
        let mut all: Vec<Range<usize>> = frame.chain(self.entries.iter().cloned()).collect();
        all.sort_by_key(|piece| piece.start);
        all
    }

    /// Reads everything but the policies and rules.
    ///
    /// # Errors
    /// [`Whole`]; what was noted until then means nothing.
    pub(crate) fn frame(
        &self,
        source: &Source<'_>,
        problems: &mut Diagnostics<'_>,
    ) -> Result<Raw, Whole> {
        let mut frame = Raw::default();
        let pieces = self.frame.iter().flat_map(|part| frame_pieces(source.text, part.clone()));
        for (place, piece) in pieces.enumerate() {
            let origin = Origin::of(std::slice::from_ref(&piece));
            let table = tree(&source.text[piece.clone()])?;
            if raw::LISTS.iter().any(|list| table.contains_key(*list)) {
                return Err(Whole);
            }
            // Sections that are written as keys could go on in a later piece.
            if place > 0 && frame.has_top_keys {
                return Err(Whole);
            }
            let top = Section::top(&table, &origin);
            let more = raw::sections(&top, source.text, problems);
            frame.append(more).map_err(|raw::SectionTwice| Whole)?;
            if problems.is_flooded() || frame.is_beyond_limits() {
                return Ok(frame);
            }
        }
        if let Some(name) = frame.name_twice() {
            if source.text.len() <= WHOLE_BYTES {
                return Err(Whole);
            }
            let key = name.get_ref().clone();
            problems.same_key(&name.span(), DiagnosticKind::SameKey { key });
        }
        frame.shrink();
        frame.check_presence(problems);
        Ok(frame)
    }

    /// Returns the policies and rules in chunks. Each piece is read when the iterator reaches it.
    pub(crate) fn lists<'a>(
        &'a self,
        source: &'a Source<'_>,
    ) -> impl FnMut(&mut Diagnostics<'_>) -> Option<Result<RawLists, Whole>> + 'a {
        let mut pieces = self.entries.iter();
        move |problems| {
            let piece = pieces.next()?;
            let origin = Origin::of(std::slice::from_ref(piece));
            let table = tree(&source.text[piece.clone()]);
            Some(table.map(|table| raw::lists(&Section::top(&table, &origin), problems)))
        }
    }
}

/// Cuts a part of the frame before sections.
fn frame_pieces(text: &str, part: Range<usize>) -> Vec<Range<usize>> {
    let (mut pieces, mut begin, mut base) = (Vec::new(), part.start, "");
    let mut at = part.start;
    for line in text[part.clone()].split_inclusive('\n') {
        let here = at;
        at += line.len();
        let Some(path) = header_path(line) else { continue };
        let belongs = path.strip_prefix(base).is_some_and(|rest| rest.starts_with('.'));
        if belongs && !base.is_empty() {
            continue;
        }
        base = path;
        if here - begin >= PIECE_BYTES {
            pieces.push(begin..here);
            begin = here;
        }
    }
    pieces.push(begin..part.end);
    pieces
}

/// Returns the name between the brackets of a header.
fn header_path(line: &str) -> Option<&str> {
    let name = line.trim_start_matches([' ', '\t']).strip_prefix('[')?;
    let name = name.strip_prefix('[').unwrap_or(name);
    Some(name.split(']').next().unwrap_or(name).trim())
}

/// Reads a text as a whole, if it cannot be read in [`Chunks`], and notes its mistakes. `Some`: the
/// text has none.
pub(crate) fn read_whole(
    source: &Source<'_>,
    problems: &mut Diagnostics<'_>,
) -> Option<(Raw, RawLists)> {
    if source.text.len() <= WHOLE_BYTES {
        return raw::read(source, problems);
    }
    let pieces = Chunks::of(source.text);
    for piece in &pieces.in_order(source.text) {
        let origin = Origin::of(std::slice::from_ref(piece));
        let (table, errors) = DeTable::parse_recoverable(&source.text[piece.clone()]);
        if !raw::note(&errors, source, &origin, problems) {
            return None;
        }
        let keys = raw::LISTS.iter().filter_map(|list| table.get_ref().get_key_value(*list));
        for (key, _) in keys.filter(|_| !begins_entry(&source.text[piece.clone()])) {
            let mistake = DiagnosticKind::EntryInFrame { limit: WHOLE_BYTES };
            problems.error(&origin.span(key.span()), mistake);
        }
    }
    if !problems.has_errors() {
        // Each piece is right and all together are not: sections of the frame are there twice.
        problems.error(&(0..0), DiagnosticKind::SameSection);
    }
    None
}

/// The tree of a text without a mistake.
fn tree(text: &str) -> Result<DeTable<'_>, Whole> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() { Ok(table.into_inner()) } else { Err(Whole) }
}

fn is_header(line: &str) -> bool {
    line.trim_start_matches([' ', '\t']).starts_with('[')
}

const POLICY: &str = "[[policy]]";
const RULE: &str = "[[rule]]";

/// Returns the header of a policy or a rule at the begin of a line.
fn entry_header(line: &str) -> Option<&'static str> {
    let line = line.trim_start_matches([' ', '\t']);
    [POLICY, RULE].into_iter().find(|header| line.starts_with(header))
}

fn begins_entry(line: &str) -> bool {
    entry_header(line).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of the frame and of the entries.
    fn cut(text: &str, piece_bytes: usize) -> (Vec<&str>, Vec<&str>) {
        let pieces = Chunks::cut(text, piece_bytes);
        let texts = |ranges: &[Range<usize>]| ranges.iter().map(|r| &text[r.clone()]).collect();
        (texts(&pieces.frame), texts(&pieces.entries))
    }

    #[test]
    fn a_text_is_cut_where_policies_begin_and_end() {
        let (one, two) = ("[[policy]]\na = 1\n", " [[policy]] # two\r\nb = [\n1]\n");
        let (head, tail) = ("# x\n[node]\nname = 1\n", "[cache]\n");
        let text = [head, one, two, tail, one].concat();
        assert_eq!(cut(&text, 1), (vec![head, tail], vec![one, two, one]));
        let both = [one, two].concat();
        assert_eq!(cut(&text, 18), (vec![head, tail], vec![&both, one]));
        let rule = "\t[[rule]]\nc = 1\n";
        let mixed = [head, one, rule, tail].concat();
        assert_eq!(cut(&mixed, 1), (vec![head, tail], vec![one, rule]));
        assert_eq!(cut("", 1), (vec![], vec![]));
        assert_eq!(cut(one, 1), (vec![], vec![one]));
    }

    /// A line that only looks like the begin of a policy is found out: a piece has a mistake.
    #[test]
    fn a_cut_within_a_string_or_a_list_is_noticed() {
        for text in [
            "[node]\nname = \"\"\"\n[[policy]]\n[x]\n\"\"\"\n",
            "[node]\nname = '''\n[[policy]]\n[x]\n'''\n[y]\n",
            "[node]\nname = [\n[[policy]]\n[\"a\"]\n]\n",
            "[node]\nname = {\n[[policy]]\n}\n",
        ] {
            let source = Source::new("x", text);
            let mut problems = Diagnostics::new(&source);
            let pieces = Chunks::cut(text, 1);
            assert_eq!(pieces.entries.len(), 1, "{text}");
            assert!(pieces.frame(&source, &mut problems).is_err(), "{text}");
        }
    }

    /// The sections and problems that reading by pieces finds; `None`: a piece has a mistake.
    fn by_pieces(text: &str) -> Option<String> {
        let source = Source::new("x", text);
        let mut problems = Diagnostics::new(&source);
        let pieces = Chunks::cut(text, 1);
        let frame = pieces.frame(&source, &mut problems).ok()?;
        let mut lists = RawLists::default();
        let mut next = pieces.lists(&source);
        while let Some(some) = next(&mut problems) {
            let RawLists { policies, rules } = some.ok()?;
            lists.policies.extend(policies);
            lists.rules.extend(rules);
        }
        Some(format!("{frame:?} {lists:?} {:?}", problems.finish()))
    }

    fn as_a_whole(text: &str) -> String {
        let source = Source::new("x", text);
        let mut problems = Diagnostics::new(&source);
        let (frame, lists) = raw::read(&source, &mut problems).expect("no mistake in it");
        format!("{frame:?} {lists:?} {:?}", problems.finish())
    }

    /// Lines that begin, end or hide sections.
    const LINES: [&str; 21] = [
        "[[policy]]\n",
        "[[policy]]\n",
        "[[rule]]\n",
        "[[ rule ]]\n",
        "[rule.x]\n",
        "  [[policy]] # again\r\n",
        "[[policy]] x = 1\n",
        "[[ policy ]]\n",
        "[policy.x]\n",
        "[node]\n",
        "[cache]\n",
        "[port.a]\n",
        "[[route]]\n",
        "name = \"a\"\n",
        "node.poll = 'x'\n",
        "local = [\n",
        "\"b\",\n",
        "]\n",
        "to = \"\"\"\n",
        "\"\"\"\n",
        "'''\n",
    ];

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(4000))]
        #[test]
        fn pieces_without_a_mistake_mean_what_the_whole_means(
            lines in proptest::collection::vec(0..LINES.len(), 0..14),
        ) {
            let text: String = lines.iter().map(|line| LINES[*line]).collect();
            if let Some(read) = by_pieces(&text) {
                proptest::prop_assert_eq!(read, as_a_whole(&text), "{}", text);
            }
        }
    }

    #[test]
    fn policies_and_rules_that_the_frame_holds_are_not_read_in_pieces() {
        for text in [
            "policy = []\n[[policy]]\n",
            "[policy.x]\n",
            "[[ policy ]]\n[[policy]]\n",
            "rule = []\n",
            "[[ rule ]]\n[[policy]]\n",
        ] {
            let source = Source::new("x", text);
            let mut problems = Diagnostics::new(&source);
            assert!(Chunks::of(text).frame(&source, &mut problems).is_err(), "{text}");
        }
    }
}
