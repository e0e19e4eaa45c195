//! Reasons why peers and SAs stay where they are.

use std::net::IpAddr;

use ipsec::SaError;

/// The reason why a peer is not taken to be where it seems to be. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MoveError {
    /// No such peer, or its configuration says that it stays where it is.
    #[error("the peer stays where the configuration says")]
    Stays,
    /// The address is that of no single machine.
    #[error("{address} is {why}")]
    Unusable {
        /// The address.
        address: IpAddr,
        /// Kind of address that it is.
        why: &'static str,
    },
    /// No UDP datagram can be sent to port 0.
    #[error("packets cannot be sent to UDP port 0")]
    PortZero,
    /// The address lies in a network behind the peer: packets sealed for that network would be sent
    /// there.
    #[error(
        "{address} is among the `remote` addresses of policy `{policy}`, the networks behind the \
         peer, and its configured address is not"
    )]
    BehindPeer {
        /// Its new address, as it seems.
        address: IpAddr,
        /// The policy's name.
        policy: String,
    },
    /// In transport mode only the port may change: packets keep their own addresses, which the
    /// policies name.
    #[error("{address}: in transport mode only the port of peer `{peer}` may change")]
    Transport {
        /// The peer's name.
        peer: String,
        /// Its new address, as it seems.
        address: IpAddr,
    },
    /// IKE moves an end to where the peer's section does not say.
    #[error(
        "peer {peer} may not move to {to}: neither `{end}` of its section nor `{key}` has that \
         address; {allowed}"
    )]
    NotAllowed {
        /// The peer's name.
        peer: String,
        /// The address.
        to: IpAddr,
        /// Key of the end as configured.
        end: &'static str,
        /// Key of the addresses that it may move to.
        key: &'static str,
        /// The addresses that the key has, in words.
        allowed: String,
    },
    /// IKE puts ESP into UDP, or no more, and the peer's section says that it stays as it is.
    #[error(
        "peer {peer} has encapsulation = \"{configured}\" and charon wants the other: write \
         that, or, if it moves to and fro behind NATs, `moves_to`"
    )]
    Form {
        /// The peer's name.
        peer: String,
        /// The form of its section.
        configured: &'static str,
    },
    /// `[ike]` does not admit it.
    #[error("[ike] does not admit tunnels of peer {peer} between {local} and {remote}")]
    BeyondIke {
        /// The peer's name.
        peer: String,
        /// This gateway's end.
        local: IpAddr,
        /// The other end.
        remote: IpAddr,
    },
    /// A card has one of its SAs, whose headers stay.
    #[error("an SA of peer {peer} is in a card, which cannot move it: new ones can go there")]
    InCard {
        /// The peer's name.
        peer: String,
    },
    /// The address is of the other family than the gateway's own address.
    #[error(transparent)]
    Sa(#[from] SaError),
}
