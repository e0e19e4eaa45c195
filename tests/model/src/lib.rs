//! Oracles: what the RFCs say, written a second time, slowly and obviously.
//!
//! Nothing here calls the code it is compared with; it shares only the nouns (policies, flows,
//! ports, verdicts). The comparisons stand in `tests/`.
//!
//! | module | what it tells again |
//! |---|---|
//! | [`spd`] | the security policy database, RFC 4301 §4.4.1 |
//! | [`headers`] | what a frame is: Ethernet, IPv4, IPv6, upper layer, read by `etherparse` |
//! | [`esp`] | ESP in every suite, RFC 4303 and its ciphers', and the replay window as a set |
//! | [`carried`] | what a packet to us bears, the packet in ESP: RFC 3948, RFC 6040 |
//! | [`fragments`] | fragments judged by their first one: RFC 4301 §7, RFC 5722, RFC 1858 |
//! | [`checksum`] | the checksums of TCP and UDP, and unfinished ones completed |
//! | [`icmp`] | which ICMP messages are errors, and the one that must be made |
//! | [`oracle`] | the whole walk of one packet, RFC 4301 §5, RFC 3948 and RFC 1812 §5 |
//! | [`world`] | the plain description of a gateway that the oracle reads |
#![forbid(unsafe_code)]

pub mod carried;
pub mod checksum;
pub mod esp;
pub mod fragments;
pub mod headers;
pub mod icmp;
pub mod oracle;
pub mod parts;
pub mod spd;
pub mod world;
