//! The guard, and packets of `allow_host` that policies may want: what Linux and the programs may
//! pass is narrowed before policies are published and widened after.

use control::guard::{Detail, Guard, GuardError, Integrity, UnwritableName};
use control::{Compiled, LiveParts};
use dataplane::carve_out::Reserved;
use dataplane::{Sad, Snapshot};

use super::Gateway;
use crate::events::Kind;
use crate::netdev::NetdevError;

/// The reason why something of `allow_host` cannot be taken from the programs or the guard.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReserveError {
    /// A program.
    #[error(transparent)]
    Netdev(#[from] NetdevError),
    /// The guard.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// A name that the guard cannot be written with.
    #[error(transparent)]
    Name(#[from] UnwritableName),
}

/// Packets of each port's `allow_host` that the policies and SAs of a configuration may want.
pub(crate) fn reserved_by(compiled: &Compiled, live: &LiveParts) -> Reserved {
    let policies = compiled.spd.holding_policies().map(|(_, policy)| policy);
    let by_policies = Reserved::by(&live.ports, &live.routes, policies);
    by_policies.with_fragments_of(&compiled.sad, &live.ports)
}

/// Packets that they may want of the services that the ports of a running snapshot list.
pub(crate) fn reserved_of_earlier(
    running: &Snapshot,
    compiled: &Compiled,
    live: &LiveParts,
) -> Reserved {
    let policies = compiled.spd.holding_policies().map(|(_, policy)| policy);
    let earlier = &running.sources().ports;
    Reserved::of_earlier(earlier, &live.ports, &live.routes, policies)
        .with_fragments_of(&compiled.sad, earlier)
}

impl Gateway {
    /// Makes programs and guard pass no more of `allow_host` than they do now and this leaves,
    /// before the policies that want those packets are published. [`Gateway::instruct`] and
    /// [`Gateway::renew_guard`] pass freed services again, afterwards.
    ///
    /// # Errors
    /// [`ReserveError`]. They pass no more than before; some may pass less ([`Gateway::widen`]).
    pub(super) async fn reserve(&mut self, more: &Reserved) -> Result<(), ReserveError> {
        let reserved = self.reserved.and(more);
        if reserved == self.reserved {
            return Ok(());
        }
        if let Some(guard) =
            self.guard.with_netdevs(self.config(), &self.view, &reserved, self.carrying.peers())?
        {
            self.install_guard(guard).await?;
        }
        self.narrow_programs(&reserved)?;
        self.reserved = reserved;
        Ok(())
    }

    /// Makes programs and guard pass no more of `allow_host` than this leaves, where going back is
    /// not possible. A program that refuses is closed; programs and guards that refused are tried
    /// again by the clock.
    pub(super) async fn withhold(&mut self, more: &Reserved) {
        self.reserved = self.reserved.and(more);
        self.renew_guard().await;
        self.narrow_or_close();
    }

    /// Has workers get the fragments of UDP if some SA of these opens ESP in UDP: they may be its.
    /// To be called before they are published.
    pub(super) async fn withhold_fragments(&mut self, of: &Sad) {
        if of.opens_in_udp() {
            let reserved = self.reserved.clone().with_fragments_of(of, &self.live.ports);
            if reserved != self.reserved {
                self.withhold(&reserved).await;
            }
        }
    }

    /// Lets Linux have the fragments of UDP again, after SAs were published of which none opens ESP
    /// in UDP; `before`: those of before.
    pub(super) async fn free_fragments(&mut self, before: &Sad) {
        if before.opens_in_udp() && !self.compiled.sad.opens_in_udp() {
            self.free().await;
        }
    }

    /// Lets programs and guard pass everything that no running policy may want.
    pub(super) async fn free(&mut self) {
        if reserved_by(&self.compiled, &self.live) != self.reserved {
            self.widen().await;
        }
    }

    /// Lets programs and guard pass all services that no running policy may want, whatever they
    /// pass now.
    pub(super) async fn widen(&mut self) {
        self.reserved = reserved_by(&self.compiled, &self.live);
        self.instruct_and_tell();
        self.renew_guard().await;
    }

    /// Installs the guard for the current netdevs if it differs from the installed one.
    pub(super) async fn renew_guard(&mut self) {
        let guard = match self.guard.with_netdevs(
            self.config(),
            &self.view,
            &self.reserved,
            self.carrying.peers(),
        ) {
            Ok(None) if !self.guard_is_owed => return,
            Ok(None) => self.guard.clone(),
            Ok(Some(guard)) => guard,
            Err(error) => return self.report_guard_refused(&error),
        };
        if let Err(error) = self.install_guard(guard).await {
            self.report_guard_refused(&error);
        }
    }

    /// Replaces the installed guard.
    ///
    /// # Errors
    /// [`GuardError`]: that one still stands.
    pub(super) async fn install_guard(&mut self, guard: Guard) -> Result<(), GuardError> {
        self.guard = self.machine.install(guard).await?;
        self.guard_is_owed = false;
        Ok(())
    }

    /// Restores the guard if another program changed it.
    pub(crate) async fn restore_guard(&mut self) {
        match self.machine.integrity(self.guard.clone()).await {
            Ok(Integrity::Intact) => return,
            Ok(Integrity::Broken) => {}
            Err(error) => return self.report_guard_refused(&error),
        }
        let message = "the nftables table lockgate was removed or changed";
        self.events.record(Kind::GuardRemoved, "", message, &[]);
        match self.install_guard(self.guard.clone()).await {
            Ok(()) => {
                self.guard_state = "intact".into();
                let message = "the nftables table lockgate is restored";
                self.events.record(Kind::GuardRestored, "", message, &[]);
            }
            Err(error) => {
                self.guard_state = format!("missing: {error}").into();
                self.report_guard_refused(&error);
            }
        }
    }

    /// Installs a guard that was made in the background, if it differs from the installed one.
    pub(crate) async fn put_up(&mut self, guard: Guard) {
        // Addresses and netdevs may be others by now.
        let guard = match guard.with_netdevs(
            self.config(),
            &self.view,
            &self.reserved,
            self.carrying.peers(),
        ) {
            Ok(other) => other.unwrap_or(guard),
            Err(error) => return self.report_guard_refused(&error),
        };
        let guard = match guard.standing_as(&self.guard) {
            Ok(guard) => {
                self.guard = guard;
                return;
            }
            Err(guard) => guard,
        };
        match self.install_guard(guard).await {
            Ok(()) => self.report_guard(),
            Err(error) => self.report_guard_refused(&error),
        }
    }

    /// Records an event if the guard does not follow the policies one by one.
    pub(crate) fn report_guard(&self) {
        let Detail::ByAddress { policies, bypasses_left_out } = self.guard.detail() else { return };
        let message = format!(
            "{policies} outbound policies are too many to guard one by one: what this machine \
             itself sends to a remote address of any PROTECT or DISCARD policy is dropped, \
             {bypasses_left_out} BYPASS policies notwithstanding; forwarding follows them all"
        );
        self.events.record(Kind::GuardCoarse, "", message, &[("policies", &policies)]);
    }

    fn report_guard_refused(&self, error: &dyn std::error::Error) {
        self.events.record(Kind::GuardRefused, "", error.to_string(), &[]);
    }
}
