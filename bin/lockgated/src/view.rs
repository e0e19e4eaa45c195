//! The kernel's view, followed: what the walk, the programs and the guard must know of a change.

use control::mirror::{LiveParts, View};
use dataplane::RouteTarget;
use imbl::ordmap::DiffItem::{Add, Remove, Update};

use crate::events::Kind;
use crate::moves::live_parts_of;
use crate::state::{State, reserved_by, reserved_of_earlier};
use crate::worker::WorkerGone;

impl State {
    /// The kernel's view changed: publishes what the walk must know and tends the netdevs.
    pub(crate) async fn follow(&mut self, view: View) -> Result<(), WorkerGone> {
        let live = self.live.followed(&self.view, &view);
        let live = live.unwrap_or_else(|| live_parts_of(&self.compiled, &view));
        self.tell_ports(&live);
        self.tell_problems(&live);
        let before = std::mem::replace(&mut self.view, view);
        let changes = Changes::between((&before, &self.live), (&self.view, &live));
        if changes.destinations || self.reservation_due {
            // Nothing that a policy may want at an address of ours is passed once it is known.
            let reserved = reserved_by(&self.compiled, &live);
            let narrowed = self.reserve(&reserved_of_earlier(self, &self.compiled, &live)).await;
            self.publish_view(live).await?;
            match narrowed {
                Ok(()) => self.reserved = reserved,
                // The programs go on by the addresses that they knew.
                Err(error) => {
                    self.events.record(Kind::PortRefused, "", error.to_string(), &[]);
                    self.reservation_due = true;
                    return self.look_after_netdevs().await;
                }
            }
            self.reservation_due = false;
        } else if changes.any {
            self.publish_view(live).await?;
        }
        if changes.programs {
            self.instruct();
        }
        self.look_after_netdevs().await
    }

    /// Goes over to what the kernel says.
    async fn publish_view(&mut self, live: LiveParts) -> Result<(), WorkerGone> {
        self.live = live;
        match self.compiled.assemble(&self.live) {
            Ok(snapshot) => self.publish(snapshot).await,
            // The old view is kept: closed, not open.
            Err(error) => {
                self.events.record(Kind::RouteRefused, "", error.to_string(), &[]);
                Ok(())
            }
        }
    }

    async fn look_after_netdevs(&mut self) -> Result<(), WorkerGone> {
        self.renew_guard().await;
        self.tend().await
    }
}

/// What became another when the kernel's view did.
struct Changes {
    any: bool,
    /// Ports and broadcast addresses: what `allow_host` may be wanted at.
    destinations: bool,
    /// What the programs know of the box and its routes.
    programs: bool,
}

impl Changes {
    fn between(before: (&View, &LiveParts), now: (&View, &LiveParts)) -> Changes {
        let ((view, live), (next_view, next)) = (before, now);
        let (mut routes, mut broadcasts) = (false, false);
        for change in live.routes.diff(&next.routes) {
            let targets = match change {
                Add(_, target) | Remove(_, target) => [target, target],
                Update { old: (_, old), new: (_, new) } => [old, new],
            };
            routes = true;
            broadcasts |= targets.contains(&&RouteTarget::Broadcast);
        }
        let ports = live.ports != next.ports || live.links != next.links;
        let any = live != next;
        let destinations = ports || broadcasts;
        Changes {
            any,
            destinations,
            programs: any && (destinations || routes) || view.addresses != next_view.addresses,
        }
    }
}
