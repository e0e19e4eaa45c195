//! The card tier: what of the rules a network card may decide, and what it has of them.
//!
//! ```text
//! rules, packets ─▶ planner ─▶ plan ─▶ ledger ─▶ orders ─▶ card
//!                                        ▲  └─▶ placements ─▶ workers
//!                                        └───── events ◀───── card
//! ```
//!
//! A card tags packets with the rule that it says decides them; the walk believes a tag only while
//! the ledger says that it counts. What is not placed, pending, in doubt or refused the walk judges
//! by itself (DESIGN I3). The planner places nothing that could make a tag wrong (I4, I5).
//!
//! | module | what |
//! |---|---|
//! | `card` | what a card is asked, and its answers |
//! | `capabilities`, `profiles`, `spec` | what cards can, by name |
//! | `item`, `pattern`, `handle` | what is placed, and under which name |
//! | `sa` | SAs and their policies in a card's words, and which card can carry which |
//! | `decision`, `unit`, `index` | rules as they are compared |
//! | `express` | a rule in a card's words |
//! | `planner` | which rules a card should have |
//! | `seasons` | rules that have been busy for a while |
//! | `placement`, `ledger`, `placements` | what a card has, and which marks count |
//! | `leaving` | rules that drop, until they are known to be gone |
//! | `sa_book` | SAs that a card has |
//! | `reason` | why a rule is not in the card |
//!
//! Pure: no I/O, no threads, no clock. The planner and the ledger are of rules. Not here: which SAs
//! a card should have; who puts them says so.
#![forbid(unsafe_code)]

mod capabilities;
mod card;
mod decision;
mod express;
mod handle;
mod index;
mod item;
mod leaving;
mod ledger;
mod own;
mod pattern;
mod placement;
mod placements;
mod planner;
mod profiles;
mod reason;
mod sa;
mod sa_book;
mod seasons;
mod spec;
mod unit;

pub use capabilities::{
    Ability, AddressForm, Capabilities, Exactness, Order, PortForm, Protocols, RuleAbilities,
    SaAbilities, Source, Transmit,
};
pub use card::{Card, CardEvent, Limit, Reading, Refusal, RefusalKind};
pub use decision::Decision;
pub use express::MOST_ENTRIES_A_RULE;
pub use handle::{Handle, Incarnation, NoHandle, Tag};
pub use item::{CardRule, Effect, Item};
pub use ledger::{Ledger, Look, Orders, Outdated, Told};
pub use own::{NEVER_FORWARDED, never_forwarded};
pub use pattern::{Pattern, Segments, Span, UpperPattern};
pub use placement::{Happening, Outlook, Stale, State};
pub use placements::{Placed, Placements, is_plain};
pub use planner::{Placing, Plan, Problem, RESIDENT_TIMES, Share, Standing, plan};
pub use reason::{Inexact, Reason, RuleKey};
pub use sa::{
    CardPolicy, CardSa, Carrier, Carries, Ends, FlowConfidentiality, Need, Numbers,
    OuterDontFragment, OuterDscp, OuterEcn, OuterFields, PolicyAction, SaDirection, SaKey,
    SaLimits, SaMode, Service, UdpEnds, Unfit, policy_fits, sa_fits,
};
pub use sa_book::{SaBook, SaNews, SaUse};
pub use seasons::{IN_A_ROW, Seasons, WORTH_A_PLACE};
pub use spec::{CardSpecError, MOST_ENTRIES, MOST_PROGRAMMING_MS, MOST_SAS};
