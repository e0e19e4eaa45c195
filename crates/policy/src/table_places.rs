//! Places of tables: domains with the same policies share a table.
//!
//! Classes of ports number *verdicts*: a packet's key in a cache names the class of its port. A
//! verdict composed of an SPD book and of groups holds in this class alone. Tables number *rules*:
//! the books of the SPD differ by the ingress of policies, and the books of groups by the groups of
//! ports. A port with groups has a class of its own, and shares the SPD tables of all ports.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use wire::Family;

use crate::book::Book;
use crate::domain::{Classes, DOMAINS_A_CLASS, DomainId, PortClass};
use crate::policy::Policy;

/// The place of each domain's table. Domains of one book and family share a table exactly if they
/// have the same policies; after a [`split`](Self::split) only if.
#[derive(Clone, Debug, Default)]
pub(crate) struct TablePlaces {
    /// One entry a domain: the place of its table.
    of_domain: Arc<[u32]>,
    tables: Vec<TableUse>,
    /// Places of the tables of each book and family.
    of_kind: [Vec<u32>; DOMAINS_A_CLASS],
}

/// The list of ports of a policy, for a book and family with rules of the policy.
#[derive(Clone, Copy)]
pub(crate) struct IngressList<'p> {
    pub(crate) book: Book,
    pub(crate) family: Family,
    pub(crate) ports: &'p [u16],
}

impl<'p> IngressList<'p> {
    /// The lists of a policy.
    pub(crate) fn of(policy: &'p Policy) -> impl Iterator<Item = IngressList<'p>> {
        let kinds = policy.ingress.as_deref().map(|ports| {
            policy.kinds().map(move |(book, family)| IngressList { book, family, ports })
        });
        kinds.into_iter().flatten()
    }
}

/// The use of a table.
#[derive(Clone, Copy, Debug)]
struct TableUse {
    /// One of its domains.
    domain: DomainId,
    /// Number of its domains.
    domains: u32,
}

/// Books and families of changed policies, with the ports of the policies.
#[derive(Default)]
pub(crate) struct ChangedPlaces {
    /// True if a policy for all ports changed.
    everywhere: [bool; DOMAINS_A_CLASS],
    ports: [HashSet<u16>; DOMAINS_A_CLASS],
}

impl ChangedPlaces {
    /// Collects the places of added and removed policies.
    pub(crate) fn of<'p>(policies: impl Iterator<Item = &'p Policy>) -> ChangedPlaces {
        let mut changed = ChangedPlaces::default();
        for policy in policies {
            for (book, family) in policy.kinds() {
                let kind = kind(book, family);
                match policy.ingress.as_deref() {
                    None => changed.everywhere[kind] = true,
                    Some(ports) => changed.ports[kind].extend(ports),
                }
            }
        }
        changed
    }

    /// Returns whether a policy changed in the book and family of a domain, for packets of a port;
    /// `None`: of the ports without a class of their own.
    pub(crate) fn contain(&self, domain: DomainId, port: Option<u16>) -> bool {
        let kind = usize::from(domain.0) % DOMAINS_A_CLASS;
        self.everywhere[kind] || port.is_some_and(|port| self.ports[kind].contains(&port))
    }
}

/// Place of a book and family among the domains of a class.
fn kind(book: Book, family: Family) -> usize {
    usize::from(DomainId::new(PortClass(0), book, family).0)
}

impl TablePlaces {
    /// Gives places to the tables of policies with these lists of ports. Cost: by the classes and
    /// the lengths of the distinct lists.
    pub(crate) fn of<'p>(
        classes: &Classes,
        ingress: impl Iterator<Item = IngressList<'p>>,
    ) -> TablePlaces {
        let mut known = HashSet::new();
        let mut lists: [Vec<&[u16]>; DOMAINS_A_CLASS] = Default::default();
        for IngressList { book, family, ports } in ingress {
            let kind = kind(book, family);
            if known.insert((kind, ports)) {
                lists[kind].push(ports);
            }
        }
        let mut places = TablePlaces {
            of_domain: vec![0; classes.count() * DOMAINS_A_CLASS].into(),
            ..TablePlaces::default()
        };
        let of_domain = Arc::make_mut(&mut places.of_domain);
        for (kind, lists) in lists.iter().enumerate() {
            let labels = labels(classes, lists);
            let mut numbered = HashMap::new();
            for (class, label) in labels.into_iter().enumerate() {
                let domain = class * DOMAINS_A_CLASS + kind;
                let next = places.tables.len() as u32;
                let place = *numbered.entry(label).or_insert(next);
                if place == next {
                    let domain = DomainId(domain as u16);
                    places.tables.push(TableUse { domain, domains: 0 });
                    places.of_kind[kind].push(place);
                }
                places.tables[place as usize].domains += 1;
                of_domain[domain] = place;
            }
        }
        places
    }

    /// Number of tables.
    pub(crate) fn count(&self) -> usize {
        self.tables.len()
    }

    /// All domains.
    pub(crate) fn domains(&self) -> impl Iterator<Item = DomainId> + use<> {
        (0..self.of_domain.len()).map(|domain| DomainId(domain as u16))
    }

    /// The place of a domain's table.
    ///
    /// # Panics
    /// If there is no such domain.
    #[inline]
    pub(crate) fn at(&self, domain: DomainId) -> usize {
        self.of_domain[usize::from(domain.0)] as usize
    }

    /// One domain of the table at a place.
    pub(crate) fn domain(&self, place: usize) -> DomainId {
        self.tables[place].domain
    }

    /// Returns the places of a policy's tables. The policy holds in all domains of these tables if
    /// the policy was given to [`of`](Self::of) or to [`split`](Self::split).
    pub(crate) fn of_policy(&self, classes: &Classes, policy: &Policy) -> Vec<u32> {
        let mut places = Vec::new();
        for (book, family) in policy.kinds() {
            places.extend(self.of_kind(classes, (book, family), policy.ingress.as_deref()));
        }
        places
    }

    /// Returns the places of the tables of a book and family for packets of some ports, or of any
    /// (`None`), each once.
    pub(crate) fn of_kind(
        &self,
        classes: &Classes,
        (book, family): (Book, Family),
        ingress: Option<&[u16]>,
    ) -> Vec<u32> {
        let Some(ports) = ingress else { return self.of_kind[kind(book, family)].clone() };
        let domains = classes.of_ports(ports).map(|class| DomainId::new(class, book, family));
        let mut places: Vec<u32> = domains.map(|domain| self.at(domain) as u32).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    /// Splits the tables in which a policy holds in some domains only: the domains of the policy
    /// get a new table, behind all others. Returns the place of the table to copy for each new
    /// table.
    pub(crate) fn split(&mut self, classes: &Classes, policy: &Policy) -> Vec<u32> {
        let Some(ports) = policy.ingress.as_deref() else { return Vec::new() };
        let mut copied = Vec::new();
        for (book, family) in policy.kinds() {
            let domains = classes.of_ports(ports).map(|class| DomainId::new(class, book, family));
            let mut places: Vec<(u32, DomainId)> =
                domains.map(|domain| (self.at(domain) as u32, domain)).collect();
            places.sort_unstable();
            places.dedup();
            for part in places.chunk_by(|(place, _), (other, _)| place == other) {
                let place = part[0].0;
                if (part.len() as u32) < self.tables[place as usize].domains {
                    let part: Vec<DomainId> = part.iter().map(|(_, domain)| *domain).collect();
                    self.split_table(place, &part);
                    copied.push(place);
                }
            }
        }
        copied
    }

    /// Moves some domains of a table, ascending, to a new table behind all others.
    fn split_table(&mut self, place: u32, part: &[DomainId]) {
        let next = self.tables.len() as u32;
        let of_domain = Arc::make_mut(&mut self.of_domain);
        part.iter().for_each(|domain| of_domain[usize::from(domain.0)] = next);
        let domains = part.len() as u32;
        let rest = &mut self.tables[place as usize];
        rest.domains -= domains;
        if part.binary_search(&rest.domain).is_ok() {
            let left = of_domain.iter().position(|of| *of == place).expect("a domain is left");
            rest.domain = DomainId(left as u16);
        }
        self.tables.push(TableUse { domain: part[0], domains });
        let kind = usize::from(part[0].0) % DOMAINS_A_CLASS;
        self.of_kind[kind].push(next);
    }
}

/// Returns a label for each class. Two classes have the same label if each list of ports contains
/// both or neither.
fn labels(classes: &Classes, lists: &[&[u16]]) -> Vec<u32> {
    let mut labels = vec![0u32; classes.count()];
    let mut next = 1;
    for ports in lists {
        let mut renamed = HashMap::new();
        let mut named: Vec<PortClass> = classes.of_ports(ports).collect();
        named.sort_unstable();
        named.dedup();
        for class in named {
            let label = &mut labels[usize::from(class.0)];
            *label = *renamed.entry(*label).or_insert_with(|| {
                next += 1;
                next - 1
            });
        }
    }
    labels
}

#[cfg(test)]
mod tests;
