//! An SA to put: its key is never shown.

use std::fmt;

use crate::v1::NewSecurityAssociation;

impl fmt::Debug for NewSecurityAssociation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NewSecurityAssociation { direction, spi, peer, key, replaces, .. } = self;
        f.debug_struct("NewSecurityAssociation")
            .field("direction", direction)
            .field("spi", spi)
            .field("peer", peer)
            .field("key", &format_args!("{} bytes", key.len()))
            .field("replaces", replaces)
            .finish_non_exhaustive()
    }
}
