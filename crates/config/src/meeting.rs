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
