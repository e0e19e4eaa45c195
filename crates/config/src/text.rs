//! Text of others, made fit for a terminal: a configuration, a name or an answer may hold
//! characters that move the cursor, change what stands before them or turn the order of what
//! follows. None of them is ever printed as it is.

use std::borrow::Cow;
use std::fmt::Write;

/// Replaces every character that a terminal would obey or hide by an escape such as `\u{202e}`.
/// Line ends and tabs stay.
pub fn escaped(text: &str) -> Cow<'_, str> {
    replaced(text, |c| is_hidden(c) && c != '\n')
}

/// Escapes a text as [`escaped`] does, and line ends too, for texts that stay on one line.
pub fn escaped_line(text: &str) -> Cow<'_, str> {
    replaced(text, is_hidden)
}

fn replaced(text: &str, is_bad: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&is_bad) {
        return Cow::Borrowed(text);
    }
    let mut fit = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_bad(c) {
            true => push_escape(&mut fit, c),
            false => fit.push(c),
        }
    }
    Cow::Owned(fit)
}

/// Appends the escape of a character.
fn push_escape(text: &mut String, c: char) {
    match c {
        '\n' => text.push_str("\\n"),
        '\r' => text.push_str("\\r"),
        c => write!(text, "\\u{{{:x}}}", u32::from(c)).expect("writing to a string"),
    }
}

/// Returns whether a terminal obeys this character or shows nothing of it: controls (C0 but the
/// tab, DEL, C1), Unicode's Bidi_Control, characters without a width, other line ends, and tags.
pub fn is_hidden(c: char) -> bool {
    (c.is_control() && c != '\t')
        || matches!(
            c,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// Characters of a message at most; a longer one quotes something that is no sensible value.
const MESSAGE: usize = 400;
/// Characters of a cut message that stay at its end, where it says what is wrong.
const MESSAGE_END: usize = 120;

/// A message as it is shown: on one line, and not longer than people read. Its middle is left out.
pub(crate) fn message(text: &str) -> String {
    // Only so much of a hostile text is looked at.
    let long = text.len() > 4 * MESSAGE || text.chars().count() > MESSAGE;
    if !long {
        return escaped_line(text).into_owned();
    }
    let begin: String = text.chars().take(MESSAGE - MESSAGE_END).collect();
    let tail: Vec<char> = text.chars().rev().take(MESSAGE_END).collect();
    let end: String = tail.into_iter().rev().collect();
    format!("{}…{}", escaped_line(&begin), escaped_line(&end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped_and_the_rest_stays() {
        for (text, fit) in [
            ("plain äöü 漢字\n\tx", "plain äöü 漢字\n\tx"),
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("a\rb\u{7f}\u{9b}31m", "a\\rb\\u{7f}\\u{9b}31m"),
            ("x\u{202e}y\u{2066}z\u{200b}", "x\\u{202e}y\\u{2066}z\\u{200b}"),
            ("\u{0}\u{feff}\u{e0041}", "\\u{0}\\u{feff}\\u{e0041}"),
        ] {
            assert_eq!(escaped(text), fit);
        }
        assert_eq!(escaped_line("a\nb"), "a\\nb");
    }

    proptest::proptest! {
        #[test]
        fn no_hidden_character_is_left_in_any_text(text in proptest::prelude::any::<String>()) {
            let hidden = |text: &str| text.chars().any(|c| is_hidden(c) && c != '\n');
            proptest::prop_assert!(!hidden(&escaped(&text)));
            proptest::prop_assert!(!escaped_line(&text).contains(is_hidden));
            proptest::prop_assert!(!message(&text).contains(is_hidden));
        }
    }

    #[test]
    fn a_message_keeps_its_begin_and_its_end() {
        let long = format!("\"{}\" is not an IP address", "A".repeat(10_000_000));
        let short = message(&long);
        assert!(short.starts_with("\"AAAA") && short.ends_with("A\" is not an IP address"));
        assert_eq!(short.chars().count(), MESSAGE + 1);
    }
}
