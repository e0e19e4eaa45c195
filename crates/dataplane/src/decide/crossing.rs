//! Packets that cross the gateway inside a virtual network: see [`crate::overlays`].
//!
//! | module | contents |
//! |---|---|
//! | `open` | the tenant's frame in an overlay packet, and whether its sender may say so |
//! | `cross` | the stage: judges the packets of a batch, and sends them on |
//! | `claims` | what a lower tier says of a packet |
//! | `answers` | ARP, neighbour discovery, ICMP about packets that do not fit |

mod answers;
mod claims;
mod cross;
mod open;

pub(crate) use answers::{tenants_packet, too_big};
pub(super) use cross::Crossing;
pub(crate) use cross::{
    asks_inside, cross_again, judge_inside, question as question_inside, tenants_fragment,
};
pub(super) use cross::{cross, cross_one};
pub(crate) use open::may_carry_fragment;
