//! Words of the section `ipsec` of VPP's start-up configuration.

use crate::problem::{Fate, Omissions, Parsed, unknown};
use crate::values::{number, value};
use crate::words::{Cursor, Word};

/// Words of the section.
const WORDS: &[&str] = &[
    "ipv4-outbound-spd-flow-cache",
    "ipv4-inbound-spd-flow-cache",
    "ipv4-outbound-spd-hash-buckets",
    "ipv4-inbound-spd-hash-buckets",
    "ipv4-outbound-spd-fast-path",
    "ipv4-inbound-spd-fast-path",
    "ipv6-outbound-spd-fast-path",
    "ipv6-inbound-spd-fast-path",
    "spd-fast-path-num-buckets",
    "ip4",
    "ip6",
];

/// Flows of a cache here.
const FLOWS: (u64, u64) = (2, 64 << 20);

/// The flow caches, outbound and inbound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct FlowCache {
    is_on: [Option<bool>; 2],
    buckets: [Option<u64>; 2],
}

impl FlowCache {
    /// Flows of the one cache that there is here; 0: off; `None`: as usual.
    pub(super) fn flows(self) -> Option<u64> {
        let is_off = self.is_on.contains(&Some(false)) && !self.is_on.contains(&Some(true));
        if is_off {
            return Some(0);
        }
        // A bucket of VPP holds one flow.
        let sum: u64 = self.buckets.into_iter().flatten().sum();
        (sum > 0).then(|| sum.clamp(FLOWS.0, FLOWS.1))
    }
}

/// Reads the words of the section behind its brace.
pub(super) fn read(
    file: &str,
    words: &[Word<'_>],
    cache: &mut FlowCache,
    omissions: &mut Omissions,
) -> Parsed<()> {
    let mut cursor = Cursor::new(file, words);
    while let Some(word) = cursor.next() {
        let at_word = cursor.place(word);
        let direction = usize::from(word.text.contains("inbound"));
        match word.text {
            "}" => {}
            "ipv4-outbound-spd-flow-cache"
            | "ipv4-inbound-spd-flow-cache"
            | "ipv4-out-spd-flow-cache" => {
                cache.is_on[direction] = Some(switch(&mut cursor, word)?);
                let why = (
                    "Lockgate has one flow cache for both directions and both IP versions",
                    "none; `[cache]` has its size",
                );
                omissions.add(Fate::Differs, (&at_word, word.text), why);
            }
            "ipv4-outbound-spd-hash-buckets" | "ipv4-inbound-spd-hash-buckets" => {
                let buckets = number(&mut cursor, word, u32::MAX.into())?;
                cache.buckets[direction] = Some(buckets);
                if !(FLOWS.0..=FLOWS.1).contains(&buckets) {
                    let why =
                        ("a flow cache here has 2 to 64M flows", "none: the nearest was taken");
                    omissions.add(Fate::Differs, (&at_word, word.text), why);
                }
            }
            "ipv4-outbound-spd-fast-path"
            | "ipv4-inbound-spd-fast-path"
            | "ipv6-outbound-spd-fast-path"
            | "ipv6-inbound-spd-fast-path" => {
                switch(&mut cursor, word)?;
                let reason = "policies are always compiled here; there is nothing to switch on";
                omissions.left((&at_word, word.text), reason, "none");
            }
            "spd-fast-path-num-buckets" => {
                number(&mut cursor, word, u64::MAX)?;
                let reason = "policies are compiled into a table of the size that they need";
                omissions.left((&at_word, word.text), reason, "none");
            }
            "ip4" | "ip6" => {
                while cursor.next().is_some_and(|word| word.text != "}") {}
                let reason = "the table of SAs has the size that it needs";
                omissions.left((&at_word, word.text), reason, "none");
            }
            _ => return unknown(&cursor, word, "the section `ipsec`", WORDS),
        }
    }
    Ok(())
}

fn switch(cursor: &mut Cursor<'_, '_>, behind: Word<'_>) -> Parsed<bool> {
    let word = value(cursor, behind)?;
    match word.text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => unknown(cursor, word, "switches", &["on", "off"]),
    }
}
