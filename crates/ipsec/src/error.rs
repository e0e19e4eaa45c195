//! Errors of making an SA.

use std::net::IpAddr;

/// Reasons why an SA cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SaError {
    /// One end of the tunnel is IPv4, the other IPv6.
    #[error("the tunnel from {local} to {remote} has ends of different families")]
    MixedFamilies {
        /// Our end.
        local: IpAddr,
        /// The peer's end.
        remote: IpAddr,
    },
}
