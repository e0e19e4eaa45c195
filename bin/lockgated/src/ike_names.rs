//! Names that SAs have in charon's configuration: connection, child, and number of policies.
//!
//! charon's plugin tells them once a child is up, by one of its SAs. The other SA of the pair has
//! the same names, and so have those that follow: they have the same number and the same peer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::v1;
use config::escaped_line;
use ipsec::{Allowance, Used};

use crate::totals::SaKey;

/// The names of all SAs of charon's. Copies show the same ones.
#[derive(Clone, Default)]
pub(crate) struct IkeNames {
    known: Arc<Mutex<Known>>,
}

/// SAs and children.
#[derive(Default)]
struct Known {
    /// The number of each SA's policies.
    sas: HashMap<SaKey, u32>,
    /// The children, by their peer and number.
    children: HashMap<(String, u32), Child>,
}

/// A child, for as long as it has SAs.
#[derive(Default)]
struct Child {
    sas: usize,
    /// `None`: nobody has told them.
    names: Option<Arc<ChildNames>>,
}

/// Names of a child, fit to be shown.
struct ChildNames {
    connection: String,
    child: String,
}

impl Known {
    /// Takes an SA out; returns the names of its child.
    fn take(&mut self, key: &SaKey) -> Option<Arc<ChildNames>> {
        let of = (key.2.clone(), self.sas.remove(key)?);
        let child = self.children.get_mut(&of)?;
        let names = child.names.clone();
        child.sas -= 1;
        if child.sas == 0 {
            self.children.remove(&of);
        }
        names
    }
}

impl IkeNames {
    fn known(&self) -> MutexGuard<'_, Known> {
        // Names are whole at any time.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an SA. One that is there already, or has the number and peer of another one, has names
    /// at once.
    pub(crate) fn add(&self, key: SaKey, reqid: u32) {
        let mut known = self.known();
        let names = known.take(&key);
        let child = known.children.entry((key.2.clone(), reqid)).or_default();
        child.sas += 1;
        child.names = child.names.take().or(names);
        known.sas.insert(key, reqid);
    }

    /// Names an SA, and those of its number and peer. Returns whether it is known.
    pub(crate) fn name(&self, key: &SaKey, [connection, child]: [&str; 2]) -> bool {
        let mut known = self.known();
        let Some(reqid) = known.sas.get(key).copied() else { return false };
        let [connection, child] = [connection, child].map(|name| escaped_line(name).into_owned());
        let names = Arc::new(ChildNames { connection, child });
        known.children.entry((key.2.clone(), reqid)).or_default().names = Some(names);
        true
    }

    /// Forgets an SA.
    pub(crate) fn forget(&self, key: &SaKey) {
        self.known().take(key);
    }

    /// Returns whether an SA is one of charon's.
    pub(crate) fn has(&self, key: &SaKey) -> bool {
        self.known().sas.contains_key(key)
    }

    /// Describes an SA in the API's message; `None`: charon did not put it. `now_ns` is of the boot
    /// clock.
    pub(crate) fn shown(
        &self,
        key: &SaKey,
        allowance: Option<&Allowance>,
        now_ns: u64,
    ) -> Option<v1::IkeChild> {
        let known = self.known();
        let reqid = known.sas.get(key)?;
        let child = known.children.get(&(key.2.clone(), *reqid));
        let names = child.and_then(|child| child.names.as_deref());
        let text = |of: fn(&ChildNames) -> &String| names.map(of).cloned().unwrap_or_default();
        let established_s = allowance.and_then(|allowance| {
            // Its time counts from the put.
            let Used { seconds, .. } = allowance.account.used(now_ns);
            seconds
        });
        let soft = allowance.and_then(|allowance| allowance.lifetime.soft.seconds);
        Some(v1::IkeChild {
            connection: text(|names| &names.connection),
            child: text(|names| &names.child),
            reqid: *reqid,
            established_s: established_s.unwrap_or_default(),
            rekey_due_s: soft
                .map(|soft| u64::from(soft).saturating_sub(established_s.unwrap_or_default())),
        })
    }
}

#[cfg(test)]
mod tests {
    use ipsec::Spi;
    use policy::Direction::{self, Inbound, Outbound};

    use super::*;

    fn key(direction: Direction, spi: u32, peer: &str) -> SaKey {
        (direction, Spi::new(spi).unwrap(), peer.to_owned())
    }

    fn child(names: &IkeNames, key: &SaKey) -> String {
        names.shown(key, None, 0).map_or("-".into(), |shown| shown.connection + "/" + &shown.child)
    }

    #[test]
    fn a_pair_and_its_successors_have_the_names_of_one_of_them() {
        let names = IkeNames::default();
        let [one, other, next] = [(Inbound, 256), (Outbound, 512), (Outbound, 513)]
            .map(|(direction, spi)| key(direction, spi, "b"));
        let (of_other_peer, of_other_child) = (key(Inbound, 257, "c"), key(Inbound, 258, "b"));
        assert!(!names.name(&one, ["gw", "net"]), "no such SA");
        for (sa, reqid) in [(&one, 1), (&other, 1), (&of_other_peer, 1), (&of_other_child, 2)] {
            names.add(sa.clone(), reqid);
        }
        assert_eq!(child(&names, &one), "/");
        assert!(names.name(&one, ["gw", "net\u{202e}"]));
        names.add(next.clone(), 1);
        // Put once more, as after a break of the connection.
        names.add(one.clone(), 1);
        for named in [&one, &other, &next] {
            assert_eq!(child(&names, named), "gw/net\\u{202e}", "{named:?}");
        }
        assert_eq!([&of_other_peer, &of_other_child].map(|sa| child(&names, sa)), ["/", "/"]);
        names.forget(&one);
        assert_eq!(
            (child(&names, &one), names.has(&one), names.has(&next)),
            ("-".into(), false, true)
        );
    }
}
