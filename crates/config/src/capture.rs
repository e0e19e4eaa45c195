//! The filter of `lockgate capture`, from text: words of pcap-filter(7) where they exist, and the
//! gateway's own for what became of a packet.
//!
//! ```text
//! filter    = term { ("and" | "&&" | "or" | "||") term }    from left to right, as in pcap-filter
//! term      = ("not" | "!") term | "(" filter ")" | test
//! test      = [ends] "host" ADDRESS | [ends] "net" PREFIX | ends ADDRESS | ends PREFIX
//!           | [transport] [ends] "port" N | [transport] [ends] "portrange" N-M
//!           | "ip" | "ip6" | "tcp" | "udp" | "sctp" | "icmp" | "icmp6" | "esp" | "proto" NAME-or-N
//!           | "inbound" | "outbound" | "less" BYTES | "greater" BYTES
//!           | "verdict" WORD | "reason" NAME
//! ends      = "src" | "dst" | "src or dst" | "src and dst"
//! transport = "tcp" | "udp" | "sctp"
//! ```

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::str::FromStr;

use dataplane::DropReason;
use dataplane::tap::filter::MAX_DEPTH;
use dataplane::tap::{Ends, Fate, Filter, Heading, Test};
use policy::selector::parse_protocol;
use policy::{AddressRange, PortRange, SelectorError};
use wire::Family;
use wire::flow::protocol;

use crate::diagnostic::nearest;

/// Bytes of a filter at most.
pub const MAX_FILTER_BYTES: usize = 1024;
/// Characters of a filter that a message shows around the mistake.
const EXCERPT: usize = 72;

/// Words that a test begins with.
const WORDS: &[&str] = &[
    "host",
    "net",
    "port",
    "portrange",
    "src",
    "dst",
    "proto",
    "ip",
    "ip6",
    "tcp",
    "udp",
    "sctp",
    "icmp",
    "icmp6",
    "esp",
    "inbound",
    "outbound",
    "less",
    "greater",
    "verdict",
    "reason",
    "not",
];
/// Words that join two tests.
const JOINTS: &[&str] = &["and", "&&", "or", "||"];

/// A mistake in a filter, with the place.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("filter: {problem}{}", excerpt(.text, *.at, *.length))]
pub struct FilterError {
    /// The mistake.
    pub problem: Box<FilterProblem>,
    text: String,
    at: usize,
    length: usize,
}

/// A kind of mistake in a filter.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FilterProblem {
    /// The filter is too long.
    #[error("longer than {MAX_FILTER_BYTES} bytes")]
    TooLong,
    /// A word that begins no test.
    #[error("\"{}\" is no word of a filter{}", cut(.word), advice(.nearest))]
    UnknownWord {
        /// The word.
        word: String,
        /// The word that was probably meant.
        nearest: Option<String>,
    },
    /// An address where a test should begin.
    #[error("\"{}\": say what about it, for example `host {0}` or `src {0}`", cut(.address))]
    BareAddress {
        /// The address.
        address: String,
    },
    /// A word is missing.
    #[error("after \"{}\" {what} should follow", cut(.after))]
    Missing {
        /// The last word before.
        after: String,
        /// The words that should follow.
        what: &'static str,
    },
    /// No IP address.
    #[error("\"{}\" is not an IP address (names are not resolved)", cut(.text))]
    NotAnAddress {
        /// The text as written.
        text: String,
    },
    /// No ports.
    #[error("\"{}\" is not a port", cut(.text))]
    NotAPort {
        /// The text as written.
        text: String,
    },
    /// No prefix, or no ports, and why.
    #[error("{0}")]
    Selector(SelectorError),
    /// No number of bytes.
    #[error("\"{}\" is not a number of bytes", cut(.text))]
    NotANumber {
        /// The text as written.
        text: String,
    },
    /// No protocol.
    #[error(
        "there is no protocol \"{}\"; write its name (tcp, udp, icmp, esp) or number",
        cut(.text)
    )]
    UnknownProtocol {
        /// The text as written.
        text: String,
    },
    /// No drop reason, or no verdict.
    #[error("there is no {kind} \"{}\"{}", cut(.text), advice(.nearest))]
    UnknownName {
        /// The list that it should be in.
        kind: &'static str,
        /// The text as written.
        text: String,
        /// The name that was probably meant.
        nearest: Option<String>,
    },
    /// Two tests with nothing in between.
    #[error("write `and` or `or` before \"{}\"", cut(.word))]
    NotJoined {
        /// The first word of the second.
        word: String,
    },
    /// A parenthesis that is not closed.
    #[error("this \"(\" is not closed")]
    NotClosed,
    /// A parenthesis that was not opened.
    #[error("this \")\" closes nothing")]
    NotOpened,
    /// The filter has too many tests or parentheses.
    #[error("too long: at most {MAX_DEPTH} tests and parentheses")]
    TooDeep,
}

/// Reads a filter; `None`: the text is empty, and all packets are meant.
///
/// # Errors
/// The first mistake.
pub fn parse_filter(text: &str) -> Result<Option<Filter>, FilterError> {
    let error = |(problem, at, length)| FilterError {
        problem: Box::new(problem),
        text: text.into(),
        at,
        length,
    };
    if text.len() > MAX_FILTER_BYTES {
        return Err(error((FilterProblem::TooLong, 0, 0)));
    }
    let words = words_of(text);
    if words.is_empty() {
        return Ok(None);
    }
    let mut parser = Parser { words, next: 0, open: 0, tests: 0 };
    parser.whole().map(Some).map_err(error)
}

/// A problem, where it is, and how many bytes it is long.
type LocatedProblem = (FilterProblem, usize, usize);

#[derive(Clone, Copy)]
struct Word<'t> {
    text: &'t str,
    at: usize,
}

/// Words, and signs that need no space around them.
fn words_of(text: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut start = None;
    for (at, sign) in text.char_indices() {
        let stands_alone = matches!(sign, '(' | ')' | '!');
        if sign.is_whitespace() || stands_alone {
            words.extend(start.take().map(|start| Word { text: &text[start..at], at: start }));
        } else if start.is_none() {
            start = Some(at);
        }
        if stands_alone {
            words.push(Word { text: &text[at..at + 1], at });
        }
    }
    words.extend(start.map(|start| Word { text: &text[start..], at: start }));
    words
}

struct Parser<'t> {
    words: Vec<Word<'t>>,
    next: usize,
    /// Parentheses and negations that are open.
    open: usize,
    tests: usize,
}

impl<'t> Parser<'t> {
    fn whole(&mut self) -> Result<Filter, LocatedProblem> {
        let filter = self.filter()?;
        match self.peek() {
            Some(word) if word.text == ")" => Err(found(FilterProblem::NotOpened, word)),
            Some(word) => {
                let problem = FilterProblem::NotJoined { word: word.text.into() };
                Err(found(problem, word))
            }
            None if filter.depth() > MAX_DEPTH => Err((FilterProblem::TooDeep, 0, 0)),
            None => Ok(filter),
        }
    }

    /// Terms and what joins them, from left to right.
    fn filter(&mut self) -> Result<Filter, LocatedProblem> {
        let mut filter = self.term()?;
        while let Some(joint) = self.peek().filter(|word| JOINTS.contains(&word.text)) {
            self.next += 1;
            let (left, right) = (Box::new(filter), Box::new(self.term()?));
            filter = match joint.text {
                "and" | "&&" => Filter::And(left, right),
                _ => Filter::Or(left, right),
            };
        }
        Ok(filter)
    }

    fn term(&mut self) -> Result<Filter, LocatedProblem> {
        let word = self.word("a test")?;
        if !matches!(word.text, "not" | "!" | "(") {
            self.tests += 1;
            return match self.tests > MAX_DEPTH {
                true => Err(found(FilterProblem::TooDeep, word)),
                false => self.test(word),
            };
        }
        self.open += 1;
        if self.open > MAX_DEPTH {
            return Err(found(FilterProblem::TooDeep, word));
        }
        let filter = match word.text {
            "(" => {
                let filter = self.filter()?;
                match self.peek() {
                    Some(end) if end.text == ")" => self.next += 1,
                    Some(other) => {
                        let problem = FilterProblem::NotJoined { word: other.text.into() };
                        return Err(found(problem, other));
                    }
                    None => return Err(found(FilterProblem::NotClosed, word)),
                }
                filter
            }
            _ => Filter::Not(Box::new(self.term()?)),
        };
        self.open -= 1;
        Ok(filter)
    }

    fn test(&mut self, word: Word<'t>) -> Result<Filter, LocatedProblem> {
        let plain = |test| Ok(Filter::Test(test));
        match word.text {
            "tcp" => self.transport(protocol::TCP),
            "udp" => self.transport(protocol::UDP),
            "sctp" => self.transport(protocol::SCTP),
            "icmp" => plain(Test::Protocol(protocol::ICMP)),
            "icmp6" => plain(Test::Protocol(protocol::ICMPV6)),
            "esp" => plain(Test::Protocol(protocol::ESP)),
            "ip" => plain(Test::Family(Family::V4)),
            "ip6" => plain(Test::Family(Family::V6)),
            "inbound" => plain(Test::Heading(Heading::In)),
            "outbound" => plain(Test::Heading(Heading::Out)),
            "less" => plain(Test::AtMost(self.bytes()?)),
            "greater" => plain(Test::AtLeast(self.bytes()?)),
            "proto" => {
                let word = self.word("a protocol")?;
                let text = || word.text.to_owned();
                let icmp6 = (word.text == "icmp6").then_some(protocol::ICMPV6);
                let named = icmp6.or_else(|| parse_protocol(word.text).ok().flatten());
                let problem = || found(FilterProblem::UnknownProtocol { text: text() }, word);
                plain(Test::Protocol(named.ok_or_else(problem)?))
            }
            "reason" => {
                let word = self.word("a drop reason")?;
                let names = DropReason::ALL.iter().map(|reason| (reason.name(), *reason));
                plain(Test::Reason(named("drop reason", word, names)?))
            }
            "verdict" => {
                let word = self.word("a verdict")?;
                let names = Fate::ALL.iter().map(|fate| (fate.name(), *fate));
                plain(Test::Fate(named("verdict", word, names)?))
            }
            "src" | "dst" => {
                let ends = self.ends(word);
                self.of_ends(ends)
            }
            "host" | "net" | "port" | "portrange" => {
                self.next -= 1;
                self.of_ends(Ends::Either)
            }
            ")" => Err(found(FilterProblem::NotOpened, word)),
            text => Err(found(unknown(text), word)),
        }
    }

    /// A protocol alone, or the ports of it.
    fn transport(&mut self, number: u8) -> Result<Filter, LocatedProblem> {
        let protocol = Filter::Test(Test::Protocol(number));
        let Some(word) = self.peek() else { return Ok(protocol) };
        let ends = match word.text {
            "src" | "dst" => {
                self.next += 1;
                self.ends(word)
            }
            "port" | "portrange" => Ends::Either,
            _ => return Ok(protocol),
        };
        match self.peek() {
            Some(word) if matches!(word.text, "port" | "portrange") => {
                let ports = self.of_ends(ends)?;
                Ok(Filter::And(Box::new(protocol), Box::new(ports)))
            }
            Some(_) => Err(self.missing("`port` or `portrange`")),
            None => Err(self.missing("`port` or `portrange`")),
        }
    }

    /// The ends that begin with `src` or `dst`, which was read.
    fn ends(&mut self, first: Word<'t>) -> Ends {
        let ahead = |by: usize| self.words.get(self.next + by).map(|word| word.text);
        let (joint, second) = (ahead(0), ahead(1));
        let is_pair = matches!((first.text, second), ("src", Some("dst")) | ("dst", Some("src")));
        let ends = match joint {
            Some("or" | "||") if is_pair => Ends::Either,
            Some("and" | "&&") if is_pair => Ends::Both,
            _ if first.text == "src" => return Ends::Source,
            _ => return Ends::Destination,
        };
        self.next += 2;
        ends
    }

    fn of_ends(&mut self, ends: Ends) -> Result<Filter, LocatedProblem> {
        let word = self.word("`host`, `net`, `port` or an address")?;
        let test = match word.text {
            "host" => {
                let word = self.word("an address")?;
                Test::Address(ends, address(word)?.into())
            }
            "net" => Test::Address(ends, network(self.word("a prefix")?)?),
            "port" | "portrange" => {
                let word = self.word("a port")?;
                let problem = |text| FilterProblem::NotAPort { text };
                let range: PortRange = selected(word, problem)?;
                Test::Port(ends, range)
            }
            text if text.contains('/') => Test::Address(ends, network(word)?),
            text if text.parse::<IpAddr>().is_ok() => Test::Address(ends, address(word)?.into()),
            text => return Err(found(unknown(text), word)),
        };
        Ok(Filter::Test(test))
    }

    fn bytes(&mut self) -> Result<u32, LocatedProblem> {
        let word = self.word("a number of bytes")?;
        let problem = || found(FilterProblem::NotANumber { text: word.text.into() }, word);
        word.text.parse().map_err(|_| problem())
    }

    fn peek(&self) -> Option<Word<'t>> {
        self.words.get(self.next).copied()
    }

    /// The next word; `what` should be there.
    fn word(&mut self, what: &'static str) -> Result<Word<'t>, LocatedProblem> {
        let word = self.peek().ok_or_else(|| self.missing(what))?;
        self.next += 1;
        Ok(word)
    }

    fn missing(&self, what: &'static str) -> LocatedProblem {
        match self.words[..self.next].last() {
            Some(word) => found(FilterProblem::Missing { after: word.text.into(), what }, *word),
            None => (FilterProblem::Missing { after: String::new(), what }, 0, 0),
        }
    }
}

fn found(problem: FilterProblem, word: Word<'_>) -> LocatedProblem {
    (problem, word.at, word.text.len())
}

fn unknown(text: &str) -> FilterProblem {
    if text.parse::<IpAddr>().is_ok() {
        return FilterProblem::BareAddress { address: text.into() };
    }
    let nearest = nearest(text, WORDS.iter().copied());
    FilterProblem::UnknownWord { word: text.into(), nearest }
}

fn address(word: Word<'_>) -> Result<IpAddr, LocatedProblem> {
    let text = word.text;
    text.parse().map_err(|_| found(FilterProblem::NotAnAddress { text: text.into() }, word))
}

fn network(word: Word<'_>) -> Result<AddressRange, LocatedProblem> {
    selected(word, |text| FilterProblem::NotAnAddress { text })
}

/// Reads a value as selectors have it. Their messages quote the text, so that it must be plain.
fn selected<T: FromStr<Err = SelectorError>>(
    word: Word<'_>,
    other: impl FnOnce(String) -> FilterProblem,
) -> Result<T, LocatedProblem> {
    let is_plain = word.text.len() <= 64 && word.text.bytes().all(|byte| byte.is_ascii_graphic());
    match (word.text.parse(), is_plain) {
        (Ok(value), _) => Ok(value),
        (Err(error), true) => Err(found(FilterProblem::Selector(error), word)),
        (Err(_), false) => Err(found(other(word.text.into()), word)),
    }
}

/// The value of that name.
fn named<T>(
    kind: &'static str,
    word: Word<'_>,
    names: impl Iterator<Item = (&'static str, T)> + Clone,
) -> Result<T, LocatedProblem> {
    let text = word.text;
    let value = names.clone().find(|(name, _)| *name == text).map(|(_, value)| value);
    value.ok_or_else(|| {
        let nearest = nearest(text, names.map(|(name, _)| name));
        found(FilterProblem::UnknownName { kind, text: text.into(), nearest }, word)
    })
}

fn advice(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or(String::new(), |word| format!(": did you mean \"{word}\"?"))
}

/// A word as a message shows it: on one line, not too long.
fn cut(word: &str) -> String {
    let shown: String = word.chars().take(40).map(visible).collect();
    if word.chars().nth(40).is_some() { format!("{shown}...") } else { shown }
}

fn visible(sign: char) -> char {
    if sign == ' ' || sign.is_ascii_graphic() { sign } else { '?' }
}

/// The part of a filter around a mistake, and a line that points at it; nothing if it is nowhere.
fn excerpt(text: &str, at: usize, length: usize) -> String {
    if length == 0 {
        return String::new();
    }
    let before = text.get(..at).unwrap_or_default().chars().count();
    let marked = text.get(at..at + length).unwrap_or_default().chars().count();
    let skip = before.saturating_sub(EXCERPT / 2);
    let shown: String = text.chars().skip(skip).take(EXCERPT).map(visible).collect();
    let marks = "^".repeat(marked.min(EXCERPT - (before - skip)).max(1));
    format!("\n  {shown}\n  {}{marks}", " ".repeat(before - skip))
}
