//! The gateway with SAs that have limits, which no packet of a bench reaches.

use std::sync::Arc;

use dataplane::Snapshot;
use ipsec::{Allowance, Lifetime, Limits};

use crate::error::SceneError;

/// Limits of the SAs of a scene.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SaLimits {
    /// They have none.
    Without,
    /// They have limits by packets and bytes, and both are counted.
    Far,
}

/// Gives all SAs of a gateway limits by packets and bytes that are far away.
///
/// # Errors
/// Those of the parts; none is expected.
pub fn limited(snapshot: &Snapshot) -> Result<Snapshot, SceneError> {
    let far = Limits { packets: Some(u64::MAX - 1), bytes: Some(u64::MAX - 1), ..Limits::NONE };
    let allowance = || {
        let lifetime = Lifetime { soft: far, hard: far };
        Some(Allowance { lifetime, account: Arc::default() })
    };
    let mut sources = snapshot.sources().clone();
    for sa in snapshot.outbound() {
        sources.sad.put_outbound(sa.at(sa.id, sa.set).within(allowance()).into());
    }
    for sa in snapshot.inbound() {
        sources.sad.put_inbound(sa.at(sa.id, sa.set).within(allowance()).into())?;
    }
    Ok(Snapshot::after(sources, Some(snapshot))?)
}
