//! A service of `allow_host` that policies want too.

use std::fmt;

/// A service of `allow_host` whose packets some policies want, too.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Meeting {
    /// The port's name.
    pub port: String,
    /// The service, as it is written.
    pub service: String,
    /// The first policy that wants it.
    pub policy: String,
    /// The number of others that do.
    pub more: usize,
}

impl Meeting {
    /// Returns whether another meeting is of the same service of the same port.
    pub(crate) fn is_about(&self, other: &Meeting) -> bool {
        self.port == other.port && self.service == other.service
    }
}

impl fmt::Display for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Meeting { port, service, policy, more } = self;
        write!(f, "allow_host {service} of port {port} and policy {policy}")?;
        if *more > 0 {
            write!(f, " (and {more} more)")?;
        }
        write!(f, ": cleartext that the policy wants is dropped, whatever allow_host lists")
    }
}

/// The UDP ports of IKE that no unprotected port lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MissingIke {
    /// Both.
    Both,
    /// Port 500: where IKE begins (RFC 7296 §2).
    Main,
    /// Port 4500: IKE through a NAT, and with MOBIKE (RFC 7296 §2.23, RFC 4555 §3.3).
    NatTraversal,
}

impl MissingIke {
    /// Returns them as `allow_host` has them.
    pub(crate) const fn list(self) -> &'static str {
        match self {
            MissingIke::Both => "udp/500 and udp/4500",
            MissingIke::Main => "udp/500",
            MissingIke::NatTraversal => "udp/4500",
        }
    }

    /// Returns what follows from that.
    pub(crate) const fn follows(self) -> &'static str {
        match self {
            MissingIke::Both => "no packet of IKE comes to charon",
            MissingIke::Main => "no peer can begin IKE with charon",
            MissingIke::NatTraversal => "IKE through a NAT or with MOBIKE does not come to charon",
        }
    }
}
