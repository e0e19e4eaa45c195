//! Domains of rules: the list that classifies a packet, and the generation of that list.

use wire::Family;

use crate::book::Book;
use crate::policy::Policy;

/// A domain of rules: book, family, and the class of the port by which a packet came, or of groups
/// out, by which it leaves. A verdict holds in one domain only: the books of a question differ by
/// the ingress of policies and by the groups of the port, and the class names both. Domains with
/// the same policies share a list of rules.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct DomainId(pub u16);

/// Class of a port: ports of one class have the same policies and the same groups. Part of the
/// keys of caches, never of memory for rules.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct PortClass(pub u16);

/// The number of changes of a domain's policies; an answer holds while its domain has the
/// generation that it had before the search began (DESIGN I2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Generation(pub u32);

impl Generation {
    /// Returns the next generation, and whether numbers began anew: whatever was remembered under
    /// any of them must then be forgotten (FC-22).
    pub(crate) fn next(self) -> (Generation, bool) {
        match self.0.checked_add(1) {
            Some(next) => (Generation(next), false),
            None => (Generation(1), true),
        }
    }
}

/// Domains of one ingress class: all books, of two families.
pub(crate) const DOMAINS_A_CLASS: usize = 2 * Book::ALL.len();

impl DomainId {
    /// The rules of a book for packets of this family that came by a port of this class.
    #[inline]
    pub const fn new(class: PortClass, book: Book, family: Family) -> DomainId {
        DomainId(class.0 * DOMAINS_A_CLASS as u16 + book as u16 * 2 + family as u16)
    }

    /// Returns the book of the domain.
    pub const fn book(self) -> Book {
        Book::ALL[self.0 as usize % DOMAINS_A_CLASS / 2]
    }

    /// IP version of its packets.
    pub const fn family(self) -> Family {
        match self.0 & 1 {
            0 => Family::V4,
            _ => Family::V6,
        }
    }

    /// The class of the ports that its packets come by.
    pub const fn class(self) -> PortClass {
        PortClass(self.0 / DOMAINS_A_CLASS as u16)
    }
}

/// The class of each port: a port that some policy names has one of its own, all others are of
/// class 0.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Classes {
    /// Ports that are named, ascending; the one at place `i` is of class `i + 1`.
    named: Box<[u16]>,
}

impl Classes {
    /// Makes a class for each port in the lists of policies.
    pub(crate) fn of<'p>(lists: impl Iterator<Item = &'p [u16]>) -> Classes {
        let mut named: Vec<u16> = lists.flatten().copied().collect();
        named.sort_unstable();
        named.dedup();
        Classes { named: named.into() }
    }

    /// Ports that are named, ascending.
    pub(crate) fn named(&self) -> &[u16] {
        &self.named
    }

    pub(crate) fn count(&self) -> usize {
        self.named.len() + 1
    }

    pub(crate) fn of_port(&self, port: u16) -> PortClass {
        PortClass(self.named.binary_search(&port).map_or(0, |place| place as u16 + 1))
    }

    /// Returns whether each port that the policy names has a class of its own.
    pub(crate) fn cover(&self, policy: &Policy) -> bool {
        let mut ports = policy.ingress.iter().flat_map(|ports| ports.iter());
        ports.all(|port| self.named.binary_search(port).is_ok())
    }

    /// Returns the port of a class; `None`: the class of all ports without a name in a policy.
    pub(crate) fn port(&self, class: PortClass) -> Option<u16> {
        usize::from(class.0).checked_sub(1).map(|place| self.named[place])
    }

    /// Returns the classes of named ports; other ports are left out.
    pub(crate) fn of_ports(&self, ports: &[u16]) -> impl Iterator<Item = PortClass> {
        let places = ports.iter().filter_map(|port| self.named.binary_search(port).ok());
        places.map(|place| PortClass(place as u16 + 1))
    }

    /// The domains that a policy has rules in.
    pub(crate) fn domains_of(&self, policy: &Policy) -> impl Iterator<Item = DomainId> {
        let all = (0..self.count() as u16).map(PortClass).filter(|_| policy.ingress.is_none());
        let classes = all.chain(self.of_ports(policy.ingress.as_deref().unwrap_or_default()));
        classes.flat_map(|class| {
            policy.kinds().map(move |(book, family)| DomainId::new(class, book, family))
        })
    }
}
