//! Policies and who wins among them (RFC 4301 §4.4.1): selectors, the security policy database, how
//! one database is made from another, and the classifier that searches it.
//!
//! The linear search is the authority: the oracle of every faster structure, and it stays for ever.
//!
//! Not here: keys, SAs, packets; a policy names its SA set by number.
#![forbid(unsafe_code)]

pub mod classifier;
mod domain;
mod ids;
pub mod overlap;
mod policy;
mod region;
mod rule;
pub mod selector;
pub mod spd;
mod steps;
mod table;
mod tree;

pub use classifier::Classifier;
pub use domain::{DomainId, Generation, IngressClass};
pub use ids::{Match, PolicyIndex};
pub use policy::{Action, Direction, Policy, PolicyId, SaSetId};
pub use selector::{AddressRange, IcmpRange, PortRange, Selector, SelectorError, UpperSelector};
pub use spd::{NeedsRenewal, Search, Slots, Spd, SpdError, common};
