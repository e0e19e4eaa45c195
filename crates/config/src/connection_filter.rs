//! The filter of `lockgate show connection` and `lockgate connection clear`, from text.
//!
//! ```text
//! filter = { test [ "and" ] }                     all tests must hold
//! test   = "host" ADDRESS | "net" PREFIX          of either end
//!        | "port" NUMBER-or-RANGE                 of either end
//!        | "proto" NAME-or-NUMBER | NAME          tcp, udp, icmp, …
//!        | "state" STATE                          of the column; or half_open
//!        | "on" PORT                              the gateway's port whose rule let it begin
//! ```

use dataplane::connections::Connection;
use policy::connection::{State, Status};
use policy::selector::{PROTOCOL_NAMES, parse_addresses, parse_protocol};
use policy::{AddressRange, PortRange, SelectorError};

use crate::diagnostic::nearest;

/// Bytes of a filter at most.
const MAX_BYTES: usize = 1024;
/// Words that a test begins with, beside names of protocols.
const WORDS: &[&str] = &["host", "net", "port", "proto", "state", "on"];
/// The state of a connection without TCP that the other end has not answered.
const UNREPLIED: &str = "unreplied";
/// Word for every state in which only one end has shown to want the connection.
const HALF_OPEN: &str = "half_open";

/// A mistake in a filter.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConnectionFilterError {
    /// The filter is too long.
    #[error("filter: longer than {MAX_BYTES} bytes")]
    TooLong,
    /// A word that begins no test.
    #[error("filter: \"{word}\" is no word of a filter{}", advice(.nearest))]
    UnknownWord {
        /// The word.
        word: String,
        /// The word that was probably meant.
        nearest: Option<String>,
    },
    /// The end, where a word needs another behind it.
    #[error("filter: `{word}` needs a word behind it")]
    Ends {
        /// The last word.
        word: String,
    },
    /// A value that is no address, port or protocol.
    #[error("filter: {0}")]
    Value(#[from] SelectorError),
    /// A state that connections do not have.
    #[error("filter: \"{word}\" is no state of a connection{}", advice(.nearest))]
    UnknownState {
        /// The word.
        word: String,
        /// The state that was probably meant.
        nearest: Option<String>,
    },
}

fn advice(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or_else(String::new, |word| format!("; did you mean \"{word}\"?"))
}

/// A filter of connections.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConnectionFilter(Vec<Test>);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Test {
    Ends(Vec<AddressRange>),
    Ports(PortRange),
    Protocol(u8),
    State(String),
    On(String),
}

/// The state of a connection as operators see it: the state's name, or `unreplied`.
pub fn connection_state(status: Status) -> &'static str {
    match status.state {
        State::Datagram | State::Echo | State::Other if status.is_half_open() => UNREPLIED,
        state => state.name(),
    }
}

impl ConnectionFilter {
    /// Reads a filter. Of the empty text it is one that every connection passes.
    ///
    /// # Errors
    /// [`ConnectionFilterError`].
    pub fn parse(text: &str) -> Result<ConnectionFilter, ConnectionFilterError> {
        if text.len() > MAX_BYTES {
            return Err(ConnectionFilterError::TooLong);
        }
        let mut tests = Vec::new();
        let mut words = text.split_whitespace().filter(|word| *word != "and");
        while let Some(word) = words.next() {
            if !WORDS.contains(&word) {
                tests.push(Test::Protocol(protocol_named(word)?));
                continue;
            }
            let ends = || ConnectionFilterError::Ends { word: word.to_owned() };
            tests.push(test(word, words.next().ok_or_else(ends)?)?);
        }
        Ok(ConnectionFilter(tests))
    }

    /// Returns whether a connection passes. `port` is the name of the gateway's port that its zone
    /// is of.
    pub fn passes(&self, connection: &Connection, port: Option<&str>) -> bool {
        let Connection { originator, responder, protocol, status, .. } = connection;
        let ends = [originator, responder];
        self.0.iter().all(|test| match test {
            Test::Ends(ranges) => ends.iter().any(|end| {
                let address = end.address;
                let holds = |range: &AddressRange| {
                    range.family == address.family && (range.lo..=range.hi).contains(&address.value)
                };
                ranges.iter().any(holds)
            }),
            Test::Ports(ports) => ends.iter().any(|end| (ports.lo..=ports.hi).contains(&end.port)),
            Test::Protocol(number) => number == protocol,
            Test::State(name) if name == HALF_OPEN => status.is_half_open(),
            Test::State(name) => name == connection_state(*status),
            Test::On(name) => port == Some(name),
        })
    }
}

fn protocol_named(word: &str) -> Result<u8, ConnectionFilterError> {
    let named = PROTOCOL_NAMES.iter().find(|(name, _)| *name == word);
    named.map(|(_, number)| *number).ok_or_else(|| {
        let known = WORDS.iter().chain(PROTOCOL_NAMES.iter().map(|(name, _)| name));
        let nearest = nearest(word, known.copied());
        ConnectionFilterError::UnknownWord { word: word.to_owned(), nearest }
    })
}

/// A test of one of [`WORDS`] and the word behind it.
fn test(word: &str, value: &str) -> Result<Test, ConnectionFilterError> {
    Ok(match word {
        "host" | "net" => Test::Ends(parse_addresses(value)?),
        "port" => Test::Ports(value.parse()?),
        "proto" => match parse_protocol(value)? {
            Some(number) => Test::Protocol(number),
            None => Test::Ends(parse_addresses("any")?),
        },
        "state" => Test::State(state_named(value)?),
        _ => Test::On(value.to_owned()),
    })
}

fn state_named(word: &str) -> Result<String, ConnectionFilterError> {
    let names = State::ALL.iter().map(|state| state.name()).chain([UNREPLIED, HALF_OPEN]);
    if names.clone().any(|name| name == word) {
        return Ok(word.to_owned());
    }
    let nearest = nearest(word, names);
    Err(ConnectionFilterError::UnknownState { word: word.to_owned(), nearest })
}

#[cfg(test)]
mod tests {
    use dataplane::connections::{Connections, Judgement, Key, Limits, Place, Zone};
    use policy::connection::{Segment, Shown, Timeouts};
    use proptest::prelude::*;
    use wire::{Family, Flow, Upper};

    use super::*;

    /// A connection of TCP from 10.0.0.1 port 4000 to 10.0.0.2 port 80.
    fn connection() -> Connection {
        let table = Connections::new(Limits::of(4), Timeouts::default(), &[1; 32]);
        let upper = Upper::Ports { source: 4000, destination: 80 };
        let (source, destination) = (0x0a00_0001, 0x0a00_0002);
        let flow =
            Flow { family: Family::V4, source, destination, protocol: 6, upper, opens: false };
        let key = Key::of(&flow, Zone { attachment: 0, vni: 0 }).unwrap();
        table.insert(&key, Shown::Tcp(Segment::Syn), Judgement::UNKNOWN, 1);
        let mut page = Vec::new();
        table.page(Place(0), usize::MAX, 1, &mut page);
        page[0]
    }

    #[test]
    fn all_tests_of_a_filter_must_hold() {
        for (text, passes) in [
            ("", true),
            ("host 10.0.0.1", true),
            ("host 10.0.0.2 and port 80", true),
            ("net 10.0.0.0/30 tcp", true),
            ("host 10.0.0.3", false),
            ("host 2001:db8::1", false),
            ("net any", true),
            ("port 80-90", true),
            ("port 443", false),
            ("proto 6 state syn_sent on lan", true),
            ("proto any", true),
            ("udp", false),
            ("state half_open", true),
            ("state established", false),
            ("state unreplied", false),
            ("on wan", false),
            ("host 10.0.0.1 host 10.0.0.2", true),
            ("host 10.0.0.1 host 10.0.0.3", false),
        ] {
            let filter = ConnectionFilter::parse(text).unwrap();
            assert_eq!(filter.passes(&connection(), Some("lan")), passes, "{text}");
        }
    }

    #[test]
    fn a_mistake_is_named_with_what_was_meant() {
        for (text, said) in [
            ("hots 10.0.0.1", "\"hots\" is no word of a filter; did you mean \"host\"?"),
            ("tpc", "did you mean \"tcp\"?"),
            ("host", "`host` needs a word behind it"),
            ("port", "`port` needs"),
            ("host 10.0.0.256", "10.0.0.256"),
            ("port http", "http"),
            ("state establised", "did you mean \"established\"?"),
            (&"a".repeat(1025), "longer than 1024 bytes"),
        ] {
            let error = ConnectionFilter::parse(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(
            text in "((host|net|port|proto|state|on|and|tcp|10\\.0\\.0\\.0/8|80|x|é) ?){0,8}",
            any in any::<String>(),
        ) {
            for text in [text, any] {
                let parsed = ConnectionFilter::parse(&text);
                if let Ok(filter) = parsed {
                    filter.passes(&connection(), None);
                }
            }
        }
    }
}
