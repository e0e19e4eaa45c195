//! Policies and who wins among them (RFC 4301 §4.4.1): selectors, the security policy database,
//! and the linear search that is its authority.
//!
//! The linear search is the oracle of every faster structure and stays for ever.
//!
//! Not here: keys, SAs, packets; a policy names its SA set by number.
#![forbid(unsafe_code)]

pub mod classifier;
mod domain;
mod policy;
mod rule;
pub mod selector;
pub mod spd;
mod table;

pub use classifier::Classifier;
pub use domain::{DomainId, Generation, IngressClass};
pub use policy::{Action, Direction, Policy, PolicyId, PolicyIndex, SaSetId};
pub use selector::{AddressRange, IcmpRange, PortRange, Selector, SelectorError, UpperSelector};
pub use spd::{Match, NeedsRenewal, Search, Slots, Spd, SpdError, common};
