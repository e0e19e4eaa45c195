//! Shares of remote ends in the peers that charon makes by itself.
//!
//! No running SA gives way. So the last places are kept for ends with few:
//!
//! | free places | admitted |
//! |---|---|
//! | more than 1/8 | every end |
//! | more than 1/16 | sites with less than 1/64 of all places, ports with less than 1/64 of that |
//! | fewer | sites with less than 1/64 of all places |

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

use control::RemoteEnd;

/// Reserve for ends with few places, as a part of all places.
const KEPT_PART: usize = 8;
/// Smallest share of a site, as a part of all places; of a port, as a part of its site's.
const SHARE_PART: usize = 64;

/// Number of peers by site, and by site and port.
#[derive(Default)]
pub(super) struct ChildShares {
    sites: HashMap<IpAddr, usize>,
    ends: HashMap<RemoteEnd, usize>,
}

impl ChildShares {
    pub(super) fn add(&mut self, end: RemoteEnd) {
        *self.sites.entry(end.site).or_default() += 1;
        *self.ends.entry(end).or_default() += 1;
    }

    pub(super) fn remove(&mut self, end: RemoteEnd) {
        take_one(&mut self.sites, end.site);
        take_one(&mut self.ends, end);
    }

    /// Returns whether an end may have another place, of `all` places with `free` left.
    pub(super) fn admits(&self, end: RemoteEnd, free: usize, all: usize) -> bool {
        let kept = all / KEPT_PART;
        let of_site = (all / SHARE_PART).max(1);
        let of_port = (of_site / SHARE_PART).max(1);
        let [site, port] = [self.sites.get(&end.site), self.ends.get(&end)]
            .map(|count| count.copied().unwrap_or_default());
        free > kept || (free > 0 && site < of_site) || (free > kept / 2 && port < of_port)
    }
}

fn take_one<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: K) {
    let Some(count) = counts.get_mut(&key) else { return };
    *count -= 1;
    if *count == 0 {
        counts.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(text: &str) -> RemoteEnd {
        text.parse::<std::net::SocketAddr>().unwrap().into()
    }

    /// Adds peers of an end until the shares admit no other one; returns the free places.
    fn fill(shares: &mut ChildShares, of: RemoteEnd, mut free: usize, all: usize) -> usize {
        while shares.admits(of, free, all) {
            shares.add(of);
            free -= 1;
        }
        free
    }

    #[test]
    fn one_end_takes_all_places_and_fifty_others_behind_one_nat_still_get_theirs() {
        const ALL: usize = 1000;
        let nat = |port: u16| end(&format!("203.0.113.7:{port}"));
        for greedy in [end("198.51.100.1:500"), nat(9999)] {
            let mut shares = ChildShares::default();
            let mut free = fill(&mut shares, greedy, ALL, ALL);
            assert_eq!(free, ALL / KEPT_PART, "{greedy:?}");
            for port in 1..=50 {
                assert!(shares.admits(nat(port), free, ALL), "{greedy:?}, port {port}");
                shares.add(nat(port));
                free -= 1;
            }
            // Ports behind one address leave the last places to other addresses.
            for port in 51..=2000 {
                if shares.admits(nat(port), free, ALL) {
                    shares.add(nat(port));
                    free -= 1;
                }
            }
            assert_eq!(free, ALL / KEPT_PART / 2, "{greedy:?}");
            assert!(shares.admits(end("192.0.2.77:500"), free, ALL));
            assert!(!shares.admits(end("192.0.2.77:500"), 0, ALL), "no place is left");
        }
    }

    #[test]
    fn a_removed_peer_leaves_its_place_and_small_tables_keep_none() {
        let mut shares = ChildShares::default();
        let one = end("[2001:db8::1]:500");
        assert_eq!(fill(&mut shares, one, 3, 3), 0, "all of three places");
        (0..3).for_each(|_| shares.remove(end("[2001:db8::2]:500")));
        assert!(shares.sites.is_empty() && shares.ends.is_empty(), "one /64 is one site");
    }
}
