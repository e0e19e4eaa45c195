//! The SAs that programs have put ([`put_sas`](crate::put_sas)), as a configuration holds them.

use std::ops::Deref;
use std::sync::Arc;

use crate::owner::{KeyManager, SaOwner};
use imbl::{OrdMap, OrdSet};
use ipsec::{Fingerprint, InboundSa, Lifetime, OutboundSa, SaId, Spi};

/// The SAs that were put. Cheap to copy; a changed copy shares what did not change.
#[derive(Clone, Default)]
pub(crate) struct PutSas {
    pub(crate) outbound: OrdMap<SaId, Kept<OutboundSa>>,
    pub(crate) inbound: OrdMap<SaId, Kept<InboundSa>>,
    /// Inbound SAs that were replaced.
    pub(crate) lingering: OrdSet<SaId>,
}

/// An SA that was put, with what only its owner and we know. Shared.
pub(crate) struct Kept<S>(pub(crate) Arc<KeptSa<S>>);

pub(crate) struct KeptSa<S> {
    /// The SA: of IKE between its own ends, over the API towards the place where the configuration
    /// says that the peer is.
    pub(crate) sa: Arc<S>,
    /// The way by which it came.
    pub(crate) manager: KeyManager,
    pub(crate) fingerprint: Fingerprint,
    /// Limits that it was put with; `None`: those of the peer's section.
    pub(crate) lifetime: Option<Lifetime>,
    /// Time of the put, in nanoseconds of the boot clock.
    pub(crate) put_ns: u64,
    /// Set once another inbound SA has replaced it.
    pub(crate) replaced: Option<Box<Replaced>>,
}

/// The replacement of an inbound SA.
#[derive(Clone)]
pub(crate) struct Replaced {
    /// SPIs of the SAs that replaced it: two, where both gateways made new keys at a time.
    pub(crate) by: Vec<Spi>,
    pub(crate) since_ns: u64,
    /// Time at which the first authentic packet of a replacement was noticed.
    pub(crate) seen_ns: Option<u64>,
}

impl<S> Clone for Kept<S> {
    fn clone(&self) -> Kept<S> {
        Kept(self.0.clone())
    }
}

impl<S> Deref for Kept<S> {
    type Target = KeptSa<S>;

    fn deref(&self) -> &KeptSa<S> {
        &self.0
    }
}

/// Equal are copies of one.
impl<S> PartialEq for Kept<S> {
    fn eq(&self, other: &Kept<S>) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<S> Kept<S> {
    /// Returns this one around another form of its SA.
    pub(crate) fn around(&self, sa: Arc<S>) -> Kept<S> {
        let KeptSa { manager, fingerprint, lifetime, put_ns, ref replaced, .. } = **self;
        Kept(Arc::new(KeptSa {
            sa,
            manager,
            fingerprint,
            lifetime,
            put_ns,
            replaced: replaced.clone(),
        }))
    }

    /// Its owner.
    pub(crate) fn owner(&self) -> SaOwner {
        SaOwner::Program { manager: self.manager, put_ns: self.put_ns }
    }

    /// Returns this one with another replacement.
    pub(crate) fn replaced(&self, replaced: Box<Replaced>) -> Kept<S> {
        let KeptSa { ref sa, manager, fingerprint, lifetime, put_ns, .. } = **self;
        let (sa, replaced) = (sa.clone(), Some(replaced));
        Kept(Arc::new(KeptSa { sa, manager, fingerprint, lifetime, put_ns, replaced }))
    }
}

impl PutSas {
    /// Notes that an inbound SA has a replacement.
    pub(crate) fn note_replaced(&mut self, old: SaId, by: Spi, now_ns: u64) {
        let Some(kept) = self.inbound.get(&old) else { return };
        let first = || Replaced { by: Vec::new(), since_ns: now_ns, seen_ns: None };
        let mut replaced = kept.replaced.clone().unwrap_or_else(|| Box::new(first()));
        replaced.by.push(by);
        let kept = kept.replaced(replaced);
        self.inbound.insert(old, kept);
        self.lingering.insert(old);
    }
}
