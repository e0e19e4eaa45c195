//! Decides what of virtual networks the kernel tier answers, and writes its tables so that at no
//! moment they say what the walk would not.
//!
//! ```text
//!  snapshot ──▶ narrow ─▶ workers change over ─▶ widen      networks, entrances, ways, verdicts
//!  endpoints ─▶ changed (it leaves)                          records
//!  use ───────▶ promote, evict                               records
//! ```
//!
//! A network is open if the walk, whatever comes, asks nothing but its endpoints (`dataplane`'s
//! `lower_tier`); an endpoint is *resident* if the tier has a record of it. A network whose groups
//! are asked about flows, and about nothing else, *asks*: the tier has verdicts on some of its
//! flows, which hold under the generation that its network has in the tier; and where connections
//! are tracked, as long as the flow's connection lasts. What changes first becomes a miss; only
//! then it is written anew.
//!
//! | module | what |
//! |---|---|
//! | `tables` | what is asked of the tier's tables |
//! | `gates` | networks that are open or ask, and where their packets come in |
//! | `place` | the places of ports |
//! | `slots` | numbers that are used again only after a pause |
//! | `ways` | ways to hosts, each once |
//! | `admission` | outcomes of what is to go into the tier |
//! | `tries` | how often an admission is tried that tables refuse |
//! | `residents` | the endpoints in the tier |
//! | `flows` | the verdicts on flows in the tier |
//! | `tracked` | connections whose packets the tier passes |
//! | `rule_use` | packets that the tier judged, by rule |
//! | `standing` | the tier's answer to a flow, or the reason why it has none |
//! | `again` | the rules' word on packets that the tier answered, for an audit |
//! | `moment` | a moment by two clocks |
//! | `heat` | which endpoints and flows are worth a place |
//!
//! One thread at a time writes. Time is given in nanoseconds of `CLOCK_MONOTONIC`, and where
//! connections matter as a [`Moment`].

#![forbid(unsafe_code)]

mod admission;
mod again;
mod flows;
mod gates;
mod heat;
mod moment;
mod place;
mod residents;
mod rule_use;
mod slots;
mod standing;
mod tables;
mod tracked;
mod tries;
mod ways;

pub use admission::{Admission, AdmitError};
pub use again::{Again, RulesSay, Wrong};
pub use heat::{Heat, Moves, endpoints_of};
pub use moment::Moment;
pub use place::PortPlace;
pub use residents::{Counts, Residents};
pub use rule_use::CountedRule;
pub use standing::{Standing, Why};
pub use tables::Tables;
pub use tries::{REST, TRIES, Tried, Tries};
