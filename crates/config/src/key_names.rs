//! Names of keys: what tells one key from another and may be shown and stored. Never key material.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ipsec::{Fingerprint, Spi};
use policy::Direction;

use crate::validated::Validated;
use crate::{KeyLine, Keys};

/// One line of a key file by what may be shown of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct KeyName {
    /// `in` or `out`, as in the file.
    pub direction: &'static str,
    /// SPI of the SA that uses the key.
    pub spi: Spi,
    /// The key.
    pub fingerprint: Fingerprint,
}

impl KeyName {
    /// The name of a key of this direction.
    pub fn new(direction: Direction, spi: Spi, fingerprint: Fingerprint) -> KeyName {
        let direction = match direction {
            Direction::Outbound => "out",
            Direction::Inbound => "in",
        };
        KeyName { direction, spi, fingerprint }
    }

    fn of_line(line: &KeyLine) -> KeyName {
        KeyName::new(line.direction, line.spi, line.material.fingerprint())
    }
}

impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.direction, self.spi, self.fingerprint)
    }
}

/// The keys of each peer by name. A peer without keys has an empty entry.
pub type KeyNames = BTreeMap<String, BTreeSet<KeyName>>;

/// A peer whose keys are others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyChange {
    /// The peer's name.
    pub peer: String,
    /// Keys that only the earlier configuration has.
    pub removed: Vec<KeyName>,
    /// Keys that only the later configuration has.
    pub added: Vec<KeyName>,
}

/// Peers that are in both, and whose keys differ.
pub fn key_changes(before: &KeyNames, after: &KeyNames) -> Vec<KeyChange> {
    let change = |(peer, new): (&String, &BTreeSet<KeyName>)| {
        let old = before.get(peer).filter(|old| *old != new)?;
        let removed = old.difference(new).copied().collect();
        let added = new.difference(old).copied().collect();
        Some(KeyChange { peer: peer.clone(), removed, added })
    };
    after.iter().filter_map(change).collect()
}

impl Keys {
    /// The names of the keys of all peers of the configuration that they were read for.
    pub fn names(&self, config: &Validated) -> KeyNames {
        let peers = config.peers.iter().zip(&self.peers);
        peers
            .map(|(peer, lines)| (peer.name.clone(), lines.iter().map(KeyName::of_line).collect()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(direction: &'static str, spi: u32, key: u8) -> KeyName {
        let material = ipsec::KeyMaterial::new(ipsec::Suite::Aes128Gcm, &[key; 20]).unwrap();
        KeyName { direction, spi: Spi::new(spi).unwrap(), fingerprint: material.fingerprint() }
    }

    fn names(peers: &[(&str, &[KeyName])]) -> KeyNames {
        let one = |(peer, keys): &(&str, &[KeyName])| {
            ((*peer).to_owned(), keys.iter().copied().collect())
        };
        peers.iter().map(one).collect()
    }

    #[test]
    fn peers_that_stay_and_have_other_keys_are_named_and_new_ones_are_not() {
        let [a, b, c] = [name("out", 256, 1), name("in", 257, 2), name("out", 256, 3)];
        let before = names(&[("left", &[a, b]), ("gone", &[a]), ("same", &[b])]);
        let after = names(&[("left", &[c, b]), ("same", &[b]), ("new", &[a])]);
        let changes = key_changes(&before, &after);
        let expected = KeyChange { peer: "left".into(), removed: vec![a], added: vec![c] };
        assert_eq!(changes, [expected]);
        assert_eq!(key_changes(&after, &after), []);
    }

    #[test]
    fn the_same_key_under_another_spi_or_in_the_other_direction_is_a_change() {
        for other in [name("out", 258, 1), name("in", 256, 1)] {
            let before = names(&[("p", &[name("out", 256, 1)])]);
            assert_eq!(key_changes(&before, &names(&[("p", &[other])])).len(), 1, "{other}");
        }
    }
}
