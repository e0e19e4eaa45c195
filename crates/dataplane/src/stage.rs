//! The stages of the walk by name, and a clock that a bench holds beside them. This crate reads no
//! clock: production passes [`NoClock`], which compiles to nothing.

/// A part of a worker's turn. Each is told to the clock where it ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stage {
    /// Packets taken from the port, link and IP headers checked.
    Receive,
    /// SA, replay check and nonce of each sealed packet.
    OpenPrepare,
    /// The cipher over the sealed packets.
    OpenCipher,
    /// Replay commit, trailer, checks of the inner packet.
    OpenFinish,
    /// Selectors and routes.
    Decide,
    /// Hop limit, path MTU, fragments; what leaves in clear leaves.
    Plan,
    /// ESP headers, nonces, trailers, link headers.
    SealHeaders,
    /// The cipher over the packets to protect.
    SealCipher,
    /// Finished packets sent or held, with their verdicts, and counted.
    SealConclude,
    /// Packets that leave: sorted by port, and given to it.
    Transmit,
}

impl Stage {
    /// All, in the order in which a packet meets them.
    pub const ALL: &[Stage] = &[
        Stage::Receive,
        Stage::OpenPrepare,
        Stage::OpenCipher,
        Stage::OpenFinish,
        Stage::Decide,
        Stage::Plan,
        Stage::SealHeaders,
        Stage::SealCipher,
        Stage::SealConclude,
        Stage::Transmit,
    ];

    /// Returns the name of the stage.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Receive => "receive",
            Stage::OpenPrepare => "open: prepare",
            Stage::OpenCipher => "open: cipher",
            Stage::OpenFinish => "open: finish",
            Stage::Decide => "decide",
            Stage::Plan => "plan",
            Stage::SealHeaders => "seal: headers",
            Stage::SealCipher => "seal: cipher",
            Stage::SealConclude => "seal: conclude",
            Stage::Transmit => "transmit",
        }
    }
}

/// A clock that learns where stages end.
pub trait StageClock {
    /// A stage has ended; what was done since the last call was this one. A stage with nothing to
    /// do may be left out, one done in several pieces comes several times.
    fn ended(&mut self, stage: Stage);
}

/// A clock that does nothing.
#[derive(Clone, Copy, Debug)]
pub struct NoClock;

impl StageClock for NoClock {
    #[inline(always)]
    fn ended(&mut self, _: Stage) {}
}
