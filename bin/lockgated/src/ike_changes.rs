//! Changes of what charon makes by itself: peers and policies within `[ike]`. They are prepared and
//! made in turn with all other changes, and no revision comes of them: the file stays as it is.
//!
//! A peer and its first SA are one change: workers go over to another snapshot once.

use std::sync::Arc;

use control::{ChangeRefused, ChangedIke, ChangedSas, Compiled, Compiler, GoneSa, IkeChange};
use dataplane::Generation;
use ipsec::Spi;

use crate::gateway::TransactionError;
use crate::picture::Picture;
use crate::sa_changes::{SaChange, SaPut, SaRefusal};
use crate::sa_limits::boot_clock_ns;
use crate::state::State;

/// A change that is compiled.
pub(crate) struct PreparedIke {
    changed: ChangedIke,
    /// Names of peers that go.
    peers_gone: Vec<String>,
}

/// A change that was made: generations before and after it, and the SAs that came with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MadeIke {
    pub(crate) before: Generation,
    pub(crate) after: Generation,
    pub(crate) sas: SaChange,
}

/// SAs that came with a change.
#[derive(Default)]
struct FirstSas {
    done: SaChange,
    /// SPIs of the inbound ones: no longer reserved.
    spis: Vec<Spi>,
    /// SAs that they replaced.
    gone: Vec<GoneSa>,
}

/// The reason why a change is not made. What ran before runs.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IkeRefusal {
    /// It does not compile.
    #[error(transparent)]
    Change(#[from] ChangeRefused),
    /// The gateway cannot go over to it.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
    /// The SAs that were to come with it cannot be put.
    #[error(transparent)]
    Sas(#[from] SaRefusal),
    /// The daemon ends, or an internal error ended an earlier change.
    #[error("lockgated makes no changes any more: restart it")]
    Stopping,
}

impl PreparedIke {
    /// Compiles a change of what a picture shows. Blocks.
    ///
    /// # Errors
    /// [`ChangeRefused`].
    pub(crate) fn of(
        picture: &Picture,
        compiler: &mut Compiler,
        change: IkeChange,
    ) -> Result<PreparedIke, ChangeRefused> {
        let peers_gone = change.peers_gone.clone();
        let changed = compiler.change_ike(&picture.compiled, change)?;
        Ok(PreparedIke { changed, peers_gone })
    }
}

impl State {
    /// Goes over to a change, with SAs that are put for its peers; returns when every worker walks
    /// by it. All or nothing, but the keys are used up.
    ///
    /// # Errors
    /// [`IkeRefusal`].
    pub(crate) async fn change_ike(
        &mut self,
        prepared: PreparedIke,
        put: Option<SaPut>,
    ) -> Result<MadeIke, IkeRefusal> {
        if self.stopping {
            return Err(IkeRefusal::Stopping);
        }
        let PreparedIke { changed, peers_gone } = prepared;
        let ChangedIke { mut compiled, removed, added } = changed;
        let before = self.gateway.compiled.copied();
        // SAs may have come and gone since it was compiled, and peers moved.
        compiled.keep_put_sas(&before).map_err(TransactionError::from)?;
        compiled.keep_moved_peers(&before);
        let (before_generation, after) = (before.generation, compiled.generation);
        let puts = (before.put_count(), compiled.put_count());
        let (compiled, put) = match put {
            Some(put) => self.with_first_sas(compiled, put).await?,
            None => (compiled, FirstSas::default()),
        };
        let transaction = self.gateway.prepare_ike(compiled, (&removed, &added))?;
        let ends_change = !Arc::ptr_eq(transaction.live(), &self.gateway.live);
        self.make(transaction).await?;
        self.gateway.ends_have_changed |= ends_change;
        if puts.1 < puts.0 {
            self.let_go_of_put_sas(&before);
        }
        let FirstSas { done, spis, gone } = put;
        self.reserved_spis.end(spis.into_iter());
        Arc::make_mut(&mut self.gateway.totals).retire(&gone);
        let policies = removed.iter().map(|policy| policy.name.as_str());
        let peers = peers_gone.iter().map(String::as_str);
        if peers_gone.iter().any(|peer| self.gateway.moves.contains_key(peer)) {
            let moves = Arc::make_mut(&mut self.gateway.moves);
            peers_gone.iter().for_each(|peer| _ = moves.remove(peer));
        }
        Arc::make_mut(&mut self.gateway.totals).forget_of_ike(policies, peers);
        Ok(MadeIke { before: before_generation, after, sas: done })
    }

    /// Puts SAs into a configuration that is to run. Cards have none of them: charon's own peers
    /// are carried by workers.
    async fn with_first_sas(
        &mut self,
        compiled: Compiled,
        put: SaPut,
    ) -> Result<(Compiled, FirstSas), SaRefusal> {
        let origin = put.origin;
        let (plan, names) = self.plan_put(&compiled, put, boot_clock_ns())?;
        debug_assert!(plan.card_wishes(&compiled).is_empty());
        let (put, unchanged) = (plan.fingerprints().len() as u32, plan.unchanged() as u32);
        let spis = plan.inbound_spis().collect();
        let proofs = self.use_keys(&plan, origin).await?;
        let ChangedSas { compiled, gone } = compiled.with_put(plan, proofs, boot_clock_ns())?;
        let done = SaChange { put, unchanged, names, ..SaChange::default() };
        Ok((compiled, FirstSas { done, spis, gone }))
    }
}
