//! SAs in messages: the only place where a key becomes text, as hexadecimal digits. Its copies on
//! the way are wiped.

use std::sync::Arc;

use offload::{
    CardSa, Carrier, Carries, Ends, FlowConfidentiality, Numbers, SaDirection, SaKey, SaLimits,
    SaMode, Service, UdpEnds,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An SA as it is written.
#[derive(Serialize, Deserialize)]
#[serde(remote = "CardSa", deny_unknown_fields)]
struct Written {
    direction: SaDirection,
    spi: u32,
    ends: Ends,
    mode: SaMode,
    udp: Option<UdpEnds>,
    service: Service,
    carrier: Carrier,
    suite: Box<str>,
    #[serde(with = "key")]
    key: SaKey,
    icv_bytes: u8,
    numbers: Numbers,
    window: u32,
    first_number: u64,
    flow_confidentiality: FlowConfidentiality,
    limits: SaLimits,
    carries: Carries,
}

pub(crate) fn serialize<S: Serializer>(sa: &Arc<CardSa>, to: S) -> Result<S::Ok, S::Error> {
    Written::serialize(sa, to)
}

pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Arc<CardSa>, D::Error> {
    Written::deserialize(from).map(Arc::new)
}

mod key {
    use std::fmt;

    use offload::SaKey;
    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};
    use zeroize::Zeroizing;

    /// Bytes of the longest key that is read.
    const LONGEST: usize = 128;
    const DIGITS: &[u8; 16] = b"0123456789abcdef";

    pub(super) fn serialize<S: Serializer>(key: &SaKey, to: S) -> Result<S::Ok, S::Error> {
        let mut text = Zeroizing::new(String::with_capacity(2 * key.length()));
        for byte in key.expose() {
            text.push(DIGITS[usize::from(byte >> 4)].into());
            text.push(DIGITS[usize::from(byte & 15)].into());
        }
        to.serialize_str(&text)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<SaKey, D::Error> {
        from.deserialize_str(Digits)
    }

    struct Digits;

    impl Visitor<'_> for Digits {
        type Value = SaKey;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a key of up to {LONGEST} bytes, two digits each")
        }

        /// An error does not say what the text was: it may be a key but for one digit.
        fn visit_str<E: Error>(self, text: &str) -> Result<SaKey, E> {
            let pairs = text.as_bytes().chunks(2);
            if text.len() > 2 * LONGEST {
                return Err(E::custom("the key is too long"));
            }
            let mut bytes = Zeroizing::new(Vec::with_capacity(LONGEST));
            for pair in pairs {
                let digit = |byte: u8| DIGITS.iter().position(|digit| *digit == byte);
                let &[high, low] = pair else { return Err(E::custom("half a byte in the key")) };
                let (Some(high), Some(low)) = (digit(high), digit(low)) else {
                    return Err(E::custom("no digit in the key"));
                };
                bytes.push((high << 4 | low) as u8);
            }
            Ok(SaKey::new(&bytes))
        }
    }
}
