//! A put of SAs between its plan and its end, while cards are asked.

use std::collections::HashMap;
use std::time::Instant;

use config::SaOffload;
use control::PutPlan;
use ipsec::CardSeat;
use keystate::Once;
use tokio::sync::oneshot;

use crate::cards::Seatable;
use crate::sa_changes::{SaChange, SaRefusal};

/// The channel for the answer to a put.
pub(crate) type PutReply = oneshot::Sender<Result<SaChange, SaRefusal>>;

/// A put whose plan is made and whose keys are recorded. No `Debug`: it holds key bytes.
pub(crate) struct ReadyPut {
    pub(crate) plan: PutPlan,
    pub(crate) proofs: Vec<Once>,
    pub(crate) done: SaChange,
    pub(crate) reply: PutReply,
}

/// A put for which cards were asked.
pub(crate) struct WaitingPut {
    pub(crate) put: ReadyPut,
    pub(crate) asked: HashMap<CardSeat, Asked>,
    /// Time at which silent cards are given up.
    pub(crate) deadline: Instant,
}

/// An SA that a card was asked for.
pub(crate) struct Asked {
    /// Its number in the plan.
    pub(crate) number: usize,
    /// Its place in the request.
    pub(crate) place: usize,
    pub(crate) offload: SaOffload,
    pub(crate) is_taken: bool,
}

/// An SA that a card can be asked for.
pub(crate) struct Wanted {
    pub(crate) asked: Asked,
    pub(crate) seatable: Seatable,
}
