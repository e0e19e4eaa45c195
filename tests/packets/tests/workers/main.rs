//! Two workers over one snapshot: what arrives at the wrong one is handed over, each seals with
//! an SA of its own, and nothing is lost, doubled or counted twice on the way.

mod direct;
mod fragments;
mod handover;
mod keepalive;
mod sealing;
mod stage;
