//! Policies, the rules of security groups, and who wins among them (RFC 4301 §4.4.1): selectors,
//! the database of both, how one database is made from another, the classifier that searches it,
//! and the [`Tables`] that are asked about a flow.
//!
//! The linear search is the authority: the oracle of every faster structure, and it stays for ever.
//!
//! Not here: keys, SAs, packets; a policy names its SA set by number.
#![forbid(unsafe_code)]

mod book;
mod by_slot;
pub mod classifier;
pub mod connection;
mod domain;
mod exit;
mod ids;
mod list;
pub mod overlap;
mod policy;
mod region;
mod rule;
mod rule_count;
mod sa_selectors;
mod scope;
pub mod selector;
mod set_places;
pub mod spd;
mod steps;
mod table;
mod table_places;
mod tables;
mod tree;
mod verdict;

pub use book::{Book, Direction, GroupSide, Question};
pub use classifier::Classifier;
pub use domain::{DomainId, Generation, PortClass};
pub use exit::Exit;
pub use ids::{PolicyIndex, SetIndex};
pub use policy::{Action, GroupMode, Policy, PolicyId, SaSetId};
pub use rule_count::{ExcessRules, PolicyShape};
pub use sa_selectors::{EndSelector, EndUpper, SaSelectors};
pub use scope::{Scope, ScopeBits};
pub use selector::{
    AddressRange, IcmpRange, PortRange, Selector, SelectorError, TcpSegments, UpperSelector,
};
pub use set_places::SetPlaces;
pub use spd::{Names, NeedsRenewal, RuleChanges, Search, Slots, Spd, SpdError, common};
pub use table::RuleMemory;
pub use tables::{
    Beside, Consultation, KnownConnections, Tables, TablesError, TrackedVerdict, Tracks,
};
pub use verdict::{Decider, Deciders, EgressClass, FlowAction, FlowVerdict, Refusal};
