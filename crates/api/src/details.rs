//! The details of an event as JSON: numbers are numbers.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::v1::Detail;
use crate::v1::detail::Value;

/// Largest number that every reader of JSON keeps exact (RFC 8259 §6).
const LARGEST_EXACT: u64 = 1 << 53;

impl Detail {
    /// A detail that is text.
    pub fn text(text: impl Into<String>) -> Detail {
        Detail { value: Some(Value::Text(text.into())) }
    }

    /// A detail that is a number.
    pub fn number(number: u64) -> Detail {
        Detail { value: Some(Value::Number(number)) }
    }
}

impl Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            None => Ok(()),
            Some(Value::Text(text)) => f.write_str(text),
            Some(Value::Number(number)) => number.fmt(f),
        }
    }
}

/// A value in JSON.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Json {
    Number(u64),
    Text(String),
}

/// Writes details as an object of numbers and strings.
pub(crate) fn serialize<S: Serializer>(
    details: &BTreeMap<String, Detail>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(details.iter().map(|(name, detail)| match detail.value {
        Some(Value::Number(number)) if number <= LARGEST_EXACT => (name, Json::Number(number)),
        _ => (name, Json::Text(detail.to_string())),
    }))
}

/// Reads what [`serialize`] writes.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, Detail>, D::Error> {
    let object = BTreeMap::<String, Json>::deserialize(deserializer)?;
    let details = object.into_iter().map(|(name, value)| match value {
        Json::Number(number) => (name, Detail::number(number)),
        Json::Text(text) => (name, Detail::text(text)),
    });
    Ok(details.collect())
}
