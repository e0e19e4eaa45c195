//! The keys that a revision ran with, by their names: no key byte is in them.

use std::collections::BTreeMap;

use config::KeyNames;

/// Peers that one note names.
pub(crate) const MAX_PEERS_NAMED: usize = 8;

/// The keys of each peer as they are stored: one line of text a key, never key material.
pub(crate) type StoredKeys = BTreeMap<String, Vec<String>>;

/// Names of keys as they are stored.
pub(crate) fn stored(names: &KeyNames) -> StoredKeys {
    let lines = |(peer, keys): (&String, &std::collections::BTreeSet<config::KeyName>)| {
        (peer.clone(), keys.iter().map(ToString::to_string).collect())
    };
    names.iter().map(lines).collect()
}

/// Names the peers whose stored keys differ; `None`: there are none. Peers of which nothing is
/// stored are left out.
pub(crate) fn changed_keys(before: &StoredKeys, now: &StoredKeys) -> Option<String> {
    let is_other =
        |(peer, keys): &(&String, &Vec<String>)| before.get(*peer).is_some_and(|old| old != *keys);
    let peers: Vec<&str> = now.iter().filter(is_other).map(|(peer, _)| peer.as_str()).collect();
    named(&peers).map(|(noun, names)| {
        format!("the keys of {noun} {names} changed since and are not brought back")
    })
}

/// A list of peers for people, of bounded length, with its noun; `None` for an empty one.
pub(crate) fn named(peers: &[&str]) -> Option<(&'static str, String)> {
    let (named, beyond) = peers.split_at(peers.len().min(MAX_PEERS_NAMED));
    let named = named.join(", ");
    match (peers.len(), beyond.len()) {
        (0, _) => None,
        (1, _) => Some(("peer", named)),
        (_, 0) => Some(("peers", named)),
        (_, more) => Some(("peers", format!("{named} and {more} more"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_changed_are_named_by_their_peers() {
        let keys = |peers: &[(&str, &str)]| -> StoredKeys {
            peers.iter().map(|(peer, key)| ((*peer).to_owned(), vec![(*key).to_owned()])).collect()
        };
        let before = keys(&[("a", "1"), ("b", "2"), ("gone", "3")]);
        assert_eq!(changed_keys(&before, &keys(&[("a", "1"), ("b", "2"), ("new", "9")])), None);
        let text = changed_keys(&before, &keys(&[("a", "1"), ("b", "9")])).unwrap();
        assert_eq!(text, "the keys of peer b changed since and are not brought back");
        assert_eq!(changed_keys(&StoredKeys::default(), &before), None, "nothing is known");
    }
}
