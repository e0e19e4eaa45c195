//! The card's own ESP: what it seals crate `ipsec` opens, and the other way round; what it drops;
//! and what becomes of packets when it has forgotten their SA.

mod agreement;
mod limits;
mod losses;
mod other;
mod policies;
mod scene;
mod window;
