//! The admission of endpoints and flows to the tier.

/// The outcome of the admission of an endpoint, or of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// It is in the tier.
    Admitted,
    /// It was there before.
    Resident,
    /// The tier may not have it: its network is closed to the tier, there is no such endpoint, it
    /// or its host is of IPv6, or the walk knows no way to its host. Of a flow: an end of it is not
    /// in the tier, or it takes more than the flow to judge its packets.
    Ineligible,
    /// There is no room, or none yet.
    Full,
}

/// The reason why an endpoint or a flow was not admitted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AdmitError<E> {
    /// A table refused a write, and all is as it was before.
    #[error(transparent)]
    RolledBack(E),
    /// A table refused a write, and the way back too: the caller ends the lease.
    #[error(transparent)]
    Left(E),
}
