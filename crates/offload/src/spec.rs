//! Cards as they are written: `acl-2000`, `emulated:rules=2000,ms=5,order=priority,sas=16`.

use std::str::FromStr;

use crate::capabilities::{Capabilities, Order, RuleAbilities, Source};

/// Keys behind `emulated:`.
const KEYS: [&str; 4] = ["rules", "ms", "order", "sas"];
/// Entries at most that an emulated card can be given.
pub const MOST_ENTRIES: u32 = 1_000_000;
/// Milliseconds at most that an emulated card takes for an entry.
pub const MOST_PROGRAMMING_MS: u32 = 60_000;
/// SAs at most that an emulated card can be given.
pub const MOST_SAS: u32 = 1_000_000;

/// Reason why a text names no card. The author of the text is at fault.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CardSpecError {
    /// No card of that name.
    #[error(
        "there is no card \"{word}\"{}: write {}, or \
         emulated:rules=N,ms=N,order=none|priority,sas=N",
        meant(.nearest),
        Capabilities::NAMES.join(", ")
    )]
    UnknownCard {
        /// The word.
        word: String,
        /// The name that was probably meant.
        nearest: Option<&'static str>,
    },
    /// Options behind a card that takes none.
    #[error("{card} takes no options: leave \":{options}\" out")]
    NoOptions {
        /// The card.
        card: &'static str,
        /// The options.
        options: String,
    },
    /// No option of that name.
    #[error(
        "an emulated card has no option \"{word}\"{}: write {}", meant(.nearest), KEYS.join(", ")
    )]
    UnknownKey {
        /// The word.
        word: String,
        /// The option that was probably meant.
        nearest: Option<&'static str>,
    },
    /// An option without a value.
    #[error("\"{word}\" has no value: write {word}=…")]
    NoValue {
        /// The option.
        word: String,
    },
    /// An option that is there twice.
    #[error("\"{key}\" is there twice: leave one out")]
    Twice {
        /// The option.
        key: &'static str,
    },
    /// A value that is no number, or too high or low a one.
    #[error("{key}=\"{text}\": write a number from {least} to {most}")]
    NotANumber {
        /// The option.
        key: &'static str,
        /// Its value.
        text: String,
        /// The lowest number.
        least: u32,
        /// The highest number.
        most: u32,
    },
    /// No order of that name.
    #[error("there is no order \"{word}\"{}: write none or priority", meant(.nearest))]
    UnknownOrder {
        /// The word.
        word: String,
        /// The order that was probably meant.
        nearest: Option<&'static str>,
    },
}

fn meant(nearest: &Option<&'static str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!(" (did you mean \"{nearest}\"?)"))
}

/// The nearest of some words, if one is near.
fn nearest(word: &str, of: impl IntoIterator<Item = &'static str>) -> Option<&'static str> {
    let of: Vec<&'static str> = of.into_iter().collect();
    if let Some(longer) = of.iter().find(|known| word.len() > 2 && known.starts_with(word)) {
        return Some(longer);
    }
    let of = of.into_iter().map(|known| (strsim::damerau_levenshtein(word, known), known));
    let (distance, known) = of.min_by_key(|(distance, _)| *distance)?;
    (distance <= 1 + known.len() / 3).then_some(known)
}

impl FromStr for Capabilities {
    type Err = CardSpecError;

    /// Reads a profile's name, or `emulated` with options behind a colon: `rules` (entries), `ms`
    /// (to program one), `order` (`none`, `priority`).
    fn from_str(text: &str) -> Result<Capabilities, CardSpecError> {
        let (word, options) = match text.split_once(':') {
            Some((word, options)) => (word, Some(options)),
            None => (text, None),
        };
        if word == "emulated" {
            return emulated(options.unwrap_or_default());
        }
        match (Capabilities::named(word), options) {
            (Some(card), None) => Ok(card),
            (Some(card), Some(options)) => {
                Err(CardSpecError::NoOptions { card: card.name, options: options.into() })
            }
            (None, _) => {
                let nearest = nearest(word, Capabilities::NAMES.into_iter().chain(["emulated"]));
                Err(CardSpecError::UnknownCard { word: word.into(), nearest })
            }
        }
    }
}

impl Capabilities {
    /// The text of the card, which [`FromStr`] reads back: the profile's name, and for an emulated
    /// card every option. Of an emulated card it says what options can: entries, time, order, SAs.
    pub fn spec(&self) -> String {
        match (self.source, self.rules.get()) {
            (Source::Emulated, Some(rules)) => {
                let RuleAbilities { entries, programming_ms, order, .. } = rules;
                let (name, order) = (self.name, order.name());
                let sas = self.sas.get().and_then(|sas| sas.most.get().copied()).unwrap_or(0);
                let sas = if sas == 0 { String::new() } else { format!(",sas={sas}") };
                format!("{name}:rules={entries},ms={programming_ms},order={order}{sas}")
            }
            _ => self.name.to_owned(),
        }
    }
}

fn emulated(options: &str) -> Result<Capabilities, CardSpecError> {
    let (mut rules, mut sas) = (RuleAbilities::default(), 0);
    let mut seen: Vec<&'static str> = Vec::new();
    for option in options.split(',').map(str::trim).filter(|option| !option.is_empty()) {
        let (word, value) = option.split_once('=').unwrap_or((option, ""));
        let (word, value) = (word.trim(), value.trim());
        let Some(key) = KEYS.into_iter().find(|key| *key == word) else {
            let nearest = nearest(word, KEYS);
            return Err(CardSpecError::UnknownKey { word: word.into(), nearest });
        };
        if value.is_empty() {
            return Err(CardSpecError::NoValue { word: word.into() });
        }
        if seen.contains(&key) {
            return Err(CardSpecError::Twice { key });
        }
        seen.push(key);
        match key {
            "rules" => rules.entries = number(key, value, 0, MOST_ENTRIES)?,
            "ms" => rules.programming_ms = number(key, value, 0, MOST_PROGRAMMING_MS)?,
            "sas" => sas = number(key, value, 0, MOST_SAS)?,
            _ => rules.order = order(value)?,
        }
    }
    Ok(Capabilities::emulated(rules).with_emulated_sas(sas))
}

fn number(key: &'static str, text: &str, least: u32, most: u32) -> Result<u32, CardSpecError> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.filter(|_| is_number).ok_or_else(|| CardSpecError::NotANumber {
        key,
        text: text.into(),
        least,
        most,
    })
}

fn order(text: &str) -> Result<Order, CardSpecError> {
    let named = Order::ALL.into_iter().find(|order| order.name() == text);
    named.ok_or_else(|| {
        let nearest = nearest(text, Order::ALL.map(Order::name));
        CardSpecError::UnknownOrder { word: text.into(), nearest }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::capabilities::Ability;

    fn error(text: &str) -> String {
        text.parse::<Capabilities>().unwrap_err().to_string()
    }

    #[test]
    fn an_emulated_card_has_what_its_options_say_and_defaults_for_the_rest() {
        let rules = |text: &str| *text.parse::<Capabilities>().unwrap().rules.get().unwrap();
        let of = |text: &str| {
            let RuleAbilities { entries, programming_ms, order, .. } = rules(text);
            (entries, programming_ms, order)
        };
        assert_eq!(of("emulated"), (2000, 5, Order::Priority));
        assert_eq!(of("emulated:"), (2000, 5, Order::Priority));
        assert_eq!(of("emulated:rules=7"), (7, 5, Order::Priority));
        assert_eq!(of("emulated:order=none,ms=500,rules=0"), (0, 500, Order::None));
        assert_eq!(of("emulated: rules = 7 , order = priority,"), (7, 5, Order::Priority));
        let sas = |text: &str| text.parse::<Capabilities>().unwrap().sas.get().map(|sas| sas.most);
        assert_eq!(sas("emulated:rules=7"), None);
        assert_eq!(sas("emulated:sas=0"), None);
        assert_eq!(sas("emulated:rules=7,sas=12"), Some(Ability::Has(12)));
        assert_eq!("acl-2000".parse(), Ok(Capabilities::named("acl-2000").unwrap()));
    }

    #[test]
    fn a_mistake_is_told_with_the_nearest_right_word() {
        for (text, parts) in [
            ("emulatd", &["no card \"emulatd\"", "did you mean \"emulated\"", "acl-2000"][..]),
            ("mlx5", &["did you mean \"mlx5-as-read\"", "order=none|priority"]),
            ("netronome", &["no card \"netronome\": write acl-2000, v9, 6.4+"]),
            ("acl-200", &["did you mean \"acl-2000\""]),
            ("acl-2000:rules=1", &["acl-2000 takes no options", ":rules=1"]),
            (
                "emulated:rule=1",
                &["no option \"rule\"", "did you mean \"rules\"", "ms, order, sas"],
            ),
            ("emulated:sas=1000001", &["sas=\"1000001\"", "from 0 to 1000000"]),
            ("emulated:sockets=1", &["no option \"sockets\": write rules"]),
            ("emulated:rules", &["\"rules\" has no value"]),
            ("emulated:rules=", &["\"rules\" has no value"]),
            ("emulated:ms=1,ms=2", &["\"ms\" is there twice"]),
            ("emulated:rules=+1", &["rules=\"+1\": write a number from 0 to 1000000"]),
            ("emulated:rules=1000001", &["from 0 to 1000000"]),
            ("emulated:ms=99999999999", &["ms=\"99999999999\"", "60000"]),
            ("emulated:order=priorty", &["no order \"priorty\"", "did you mean \"priority\""]),
            ("emulated:order=1", &["no order \"1\": write none or priority"]),
            ("", &["no card \"\": write"]),
        ] {
            let told = error(text);
            for part in parts {
                assert!(told.contains(part), "{text}: {told}");
            }
        }
    }

    #[test]
    fn every_profile_is_read_back_from_its_text() {
        for name in Capabilities::NAMES {
            let card = Capabilities::named(name).unwrap();
            assert_eq!(card.spec(), name);
            assert_eq!(card.spec().parse(), Ok(card));
        }
        let emulated = "emulated".parse::<Capabilities>().unwrap();
        assert_eq!(emulated.spec(), "emulated:rules=2000,ms=5,order=priority");
    }

    proptest! {
        #[test]
        fn every_emulated_card_is_read_back_from_its_text(
            entries in 0..=MOST_ENTRIES,
            ms in 0..=MOST_PROGRAMMING_MS,
            order in prop::sample::select(&Order::ALL[..]),
        ) {
            let text = format!("emulated:order={},ms={ms},rules={entries}", order.name());
            let card = text.parse::<Capabilities>().unwrap();
            prop_assert_eq!(card.spec().parse(), Ok(card));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "(emulated:)?[a-z0-9=,:+-]{0,24}|\\PC{0,12}") {
            let _ = text.parse::<Capabilities>();
        }
    }
}
