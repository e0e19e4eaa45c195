//! Reads typed values out of a TOML tree, noting every mistake and going on.
//!
//! A derived deserializer stops at the first mistake; this one has to tell all of them, with the
//! nearest right word and with the names that are refused on purpose. So it walks the tree itself.

use std::borrow::Cow;

use toml::de::{DeTable, DeValue};

use crate::diagnostic::{DiagnosticKind, Foreign, Refusal, nearest, renamed};
use crate::errors::Diagnostics;
use crate::schema::{SectionSchema, ValueType};
use crate::source::{Origin, Span, Spanned};

/// A string or a number, where both are allowed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Scalar {
    /// The text between the quotes.
    Text(String),
    /// A number; beyond 128 bits the nearest that fits.
    Number(i128),
}

/// A table of the file, with its title for messages.
pub(crate) struct Section<'a> {
    /// `[port.lan]`, `[[policy]]`.
    pub(crate) title: Cow<'static, str>,
    /// Location of its header.
    pub(crate) at: Span,
    table: &'a DeTable<'a>,
    origin: &'a Origin,
}

impl<'a> Section<'a> {
    /// The table that holds all others.
    pub(crate) fn top(table: &'a DeTable<'a>, origin: &'a Origin) -> Section<'a> {
        Section { title: "the file".into(), at: 0..0, table, origin }
    }

    /// Iterates over the section's keys, each with its place, in no order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&'a str, Span)> {
        let keys = self.table.keys();
        keys.map(|key| (key.get_ref().as_ref(), self.origin.span(key.span())))
    }

    /// Returns whether it has a key.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    fn inner(&self, title: impl Into<Cow<'static, str>>, at: Span, table: &'a DeTable<'a>) -> Self {
        Section { title: title.into(), at, table, origin: self.origin }
    }

    /// Returns whether it is of an overlay, of a virtual network or of their store.
    fn is_of_overlays(&self) -> bool {
        ["[overlay.", "[vni.", "[store]"].iter().any(|begin| self.title.starts_with(begin))
    }

    /// Notes the keys that the schema does not have (those that are refused on purpose by name) and
    /// required keys that are missing.
    pub(crate) fn check_keys(
        &self,
        problems: &mut Diagnostics<'_>,
        schema: &'static SectionSchema,
    ) {
        let allowed = schema.names;
        let is_section = |name: &str| schema.sections().any(|section| section == name);
        // A key that was mistyped is one mistake, not two.
        let mut meant = Vec::new();
        let keys = self.keys().filter(|(name, _)| !allowed.contains(name) && !is_section(name));
        for (name, span) in keys {
            let (key, section) = (name.to_owned(), self.title.clone().into_owned());
            let mut ours = renamed(name).iter().filter(|ours| allowed.contains(ours));
            let foreign = Foreign::of_key(name).filter(|_| section.starts_with("[peer."));
            let refusal = match self.is_of_overlays() {
                true => Refusal::of_network_key(name),
                false => Refusal::of_key(name),
            };
            let mistake = match (refusal, foreign, ours.next()) {
                (Some(refusal), ..) => DiagnosticKind::Refused { key, refusal },
                (None, Some(foreign), _) => DiagnosticKind::ForeignKey { key, section, foreign },
                (None, None, ours) => {
                    let ours = ours.map(|ours| (*ours).to_owned());
                    let known = allowed.iter().copied().chain(schema.sections());
                    let nearest = ours.or_else(|| nearest(name, known));
                    meant.extend(nearest.clone());
                    DiagnosticKind::UnknownKey { key, section, nearest, allowed }
                }
            };
            meant.extend(match mistake {
                DiagnosticKind::ForeignKey { foreign: Foreign::Endpoint, .. } => {
                    Some("remote".to_owned())
                }
                DiagnosticKind::ForeignKey { foreign: Foreign::Secret, .. } => {
                    Some("keys".to_owned())
                }
                _ => None,
            });
            problems.error(&span, mistake);
        }
        let lacks = |key: &&'static str| !self.has(key) && !meant.iter().any(|ours| ours == *key);
        for key in schema.required().filter(lacks) {
            let section = self.title.clone().into_owned();
            problems.error(&self.at, DiagnosticKind::Missing { key, section });
        }
    }

    fn value(&self, key: &str) -> Option<(&'a DeValue<'a>, Span)> {
        let value = self.table.get(key)?;
        Some((value.get_ref(), self.origin.span(value.span())))
    }

    pub(crate) fn text(
        &self,
        problems: &mut Diagnostics<'_>,
        key: &'static str,
    ) -> Option<Spanned<String>> {
        let (value, span) = self.value(key)?;
        match value {
            DeValue::String(text) => Some(Spanned::new(span, text.to_string())),
            other => wrong(problems, key, ValueType::Text.words(), other, &span),
        }
    }

    pub(crate) fn number(
        &self,
        problems: &mut Diagnostics<'_>,
        key: &'static str,
    ) -> Option<Spanned<i128>> {
        let (value, span) = self.value(key)?;
        match value {
            DeValue::Integer(digits) => {
                Some(Spanned::new(span, number(digits.as_str(), digits.radix())))
            }
            other => wrong(problems, key, ValueType::Number.words(), other, &span),
        }
    }

    pub(crate) fn truth(
        &self,
        problems: &mut Diagnostics<'_>,
        key: &'static str,
    ) -> Option<Spanned<bool>> {
        let (value, span) = self.value(key)?;
        match value {
            DeValue::Boolean(truth) => Some(Spanned::new(span, *truth)),
            other => wrong(problems, key, ValueType::Truth.words(), other, &span),
        }
    }

    pub(crate) fn scalar(
        &self,
        problems: &mut Diagnostics<'_>,
        key: &'static str,
    ) -> Option<Spanned<Scalar>> {
        let (value, span) = self.value(key)?;
        match value {
            DeValue::String(text) => Some(Spanned::new(span, Scalar::Text(text.to_string()))),
            DeValue::Integer(digits) => {
                let number = number(digits.as_str(), digits.radix());
                Some(Spanned::new(span, Scalar::Number(number)))
            }
            other => wrong(problems, key, ValueType::Either.words(), other, &span),
        }
    }

    /// Reads a list of strings; `None` if an entry is of another type.
    pub(crate) fn texts(
        &self,
        problems: &mut Diagnostics<'_>,
        key: &'static str,
    ) -> Option<Spanned<Vec<Spanned<String>>>> {
        const EXPECTED: &str = ValueType::Texts.words();
        let (value, span) = self.value(key)?;
        let DeValue::Array(list) = value else {
            return wrong(problems, key, EXPECTED, value, &span);
        };
        let (mut texts, mut sound) = (Vec::with_capacity(list.len()), true);
        for entry in list.iter() {
            if let DeValue::String(text) = entry.get_ref() {
                let span = self.origin.span(entry.span());
                texts.push(Spanned::new(span, text.clone().into_owned()));
            } else {
                let span = self.origin.span(entry.span());
                wrong::<()>(problems, key, EXPECTED, entry.get_ref(), &span);
                sound = false;
            }
        }
        sound.then(|| Spanned::new(span, texts))
    }

    /// The one table under this key, `[key]`.
    pub(crate) fn table(
        &self,
        problems: &mut Diagnostics<'_>,
        key: &'static str,
    ) -> Option<Section<'a>> {
        let (value, span) = self.value(key)?;
        match value {
            DeValue::Table(table) => {
                let title = match self.title.strip_suffix(']') {
                    Some(outer) => format!("{outer}.{key}]"),
                    None => format!("[{key}]"),
                };
                Some(self.inner(title, span, table))
            }
            other => wrong(problems, key, "a section", other, &span),
        }
    }

    /// The named tables under this key, `[key.NAME]`, in the order of the file.
    pub(crate) fn named(
        &self,
        problems: &mut Diagnostics<'_>,
        key: &'static str,
    ) -> Vec<(Spanned<String>, Section<'a>)> {
        let Some((value, span)) = self.value(key) else { return Vec::new() };
        let DeValue::Table(tables) = value else {
            wrong::<()>(problems, key, "named sections", value, &span);
            return Vec::new();
        };
        let mut named: Vec<_> = tables.iter().collect();
        named.sort_by_key(|(name, _)| name.span().start);
        let mut sections = Vec::with_capacity(named.len());
        for (name, value) in named {
            let span = self.origin.span(name.span());
            let DeValue::Table(table) = value.get_ref() else {
                let (key, section, word) = (name.to_string(), format!("[{key}]"), key);
                problems.error(&span, DiagnosticKind::NotNamed { key, section, word });
                continue;
            };
            let at = self.origin.span(value.span());
            let section = self.inner(format!("[{key}.{name}]"), at, table);
            sections.push((Spanned::new(span, name.to_string()), section));
        }
        sections
    }

    /// Reads the list of tables under this key, in the order of the file; `title` is its name in
    /// messages.
    pub(crate) fn list(
        &self,
        problems: &mut Diagnostics<'_>,
        key: &'static str,
        title: &'static str,
    ) -> Vec<Section<'a>> {
        let Some((value, span)) = self.value(key) else { return Vec::new() };
        let DeValue::Array(list) = value else {
            wrong::<()>(problems, key, "sections in double brackets", value, &span);
            return Vec::new();
        };
        let mut sections = Vec::with_capacity(list.len());
        for entry in list.iter() {
            let at = self.origin.span(entry.span());
            match entry.get_ref() {
                DeValue::Table(table) => sections.push(self.inner(title, at, table)),
                other => wrong(problems, key, "sections in double brackets", other, &at)
                    .unwrap_or_default(),
            }
        }
        sections
    }
}

fn wrong<T>(
    problems: &mut Diagnostics<'_>,
    key: &'static str,
    expected: &'static str,
    found: &DeValue<'_>,
    span: &Span,
) -> Option<T> {
    let found = match found {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a decimal number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a section",
    };
    problems.error(span, DiagnosticKind::WrongType { key, expected, found });
    None
}

fn number(digits: &str, radix: u32) -> i128 {
    i128::from_str_radix(digits, radix).unwrap_or(if digits.starts_with('-') {
        i128::MIN
    } else {
        i128::MAX
    })
}
