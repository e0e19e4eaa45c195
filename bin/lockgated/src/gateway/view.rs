//! Follows the kernel's view: a change is passed on to the walk, the XDP programs and the guard, to
//! each only if it concerns them.

use std::sync::Arc;

use control::LiveParts;
use dataplane::RouteTarget;
use imbl::ordmap::DiffItem::{Add, Remove, Update};
use linux::View;

use super::netdevs::{Retry, inside};
use super::{Gateway, live_parts_of, reserved_by, reserved_of_earlier};
use crate::events::Kind;
use crate::worker::WorkerGone;

impl Gateway {
    /// Switches to the kernel's current view: publishes what the walk must know and attends to the
    /// netdevs.
    ///
    /// # Errors
    /// [`WorkerGone`]. What does not fit is an event, and tried again with the next view.
    pub(crate) async fn follow(&mut self, view: Arc<View>) -> Result<(), WorkerGone> {
        let live = self.live.followed(&self.view, &view);
        let anew = || live_parts_of(&self.compiled, &view, self.frame_bytes);
        let live = live.unwrap_or_else(anew);
        self.report_ports(&live);
        self.report_problems(&live);
        let before = std::mem::replace(&mut self.view, view);
        let changes = Changes::between((&before, &self.live), (&self.view, &live));
        if changes.destinations || self.reservation_due {
            // Nothing that a policy may want at an address of ours is passed once it is known.
            let reserved = reserved_by(&self.compiled, &live);
            let withheld = reserved_of_earlier(&self.snapshot, &self.compiled, &live);
            let narrowed = self.reserve(&withheld).await;
            self.publish_view(live).await?;
            match narrowed {
                Ok(()) => self.reserved = reserved,
                // The programs go on by the addresses that they knew.
                Err(error) => {
                    self.events.record(Kind::PortRefused, "", error.to_string(), &[]);
                    (self.reservation_due, self.instruction_due) = (true, true);
                    return self.look_after_netdevs().await;
                }
            }
            self.reservation_due = false;
        } else if changes.any {
            self.publish_view(live).await?;
        }
        if changes.programs || self.instruction_due {
            self.instruct_and_tell();
        }
        self.look_after_netdevs().await
    }

    /// Publishes other live parts of the running configuration.
    pub(super) async fn publish_view(&mut self, live: LiveParts) -> Result<(), WorkerGone> {
        self.live = live.into();
        match self.compiled.assemble(&self.live, Some(&self.snapshot)) {
            Ok(snapshot) => self.publish(snapshot, None).await,
            // The old view is kept: closed, not open.
            Err(error) => {
                self.events.record(Kind::RouteRefused, "", error.to_string(), &[]);
                self.instruction_due = true;
                Ok(())
            }
        }
    }

    async fn look_after_netdevs(&mut self) -> Result<(), WorkerGone> {
        self.renew_guard().await;
        self.tend(Retry::ByTheClock).await
    }
}

/// The parts of the gateway that a change of the kernel's view concerns.
struct Changes {
    /// The walk.
    any: bool,
    /// The policies that may want packets of `allow_host`: ports or broadcast addresses changed.
    destinations: bool,
    /// The XDP programs: our addresses changed, or the side that a prefix is on.
    programs: bool,
}

impl Changes {
    fn between(before: (&View, &LiveParts), now: (&View, &LiveParts)) -> Changes {
        let ((view, live), (next_view, next)) = (before, now);
        let (mut routes, mut broadcasts) = (false, false);
        for change in live.routes.diff(&next.routes) {
            let (prefix, targets) = match change {
                Add(prefix, target) | Remove(prefix, target) => (prefix, [target, target]),
                Update { old: (_, old), new: (prefix, new) } => (prefix, [old, new]),
            };
            // Another router on the same side is nothing to the programs.
            let leads_inside = |live: &LiveParts| {
                live.route_around(*prefix).map_or(bpf::Inside::No, |target| inside(live, target))
            };
            routes |= leads_inside(live) != leads_inside(next);
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

#[cfg(test)]
mod tests {
    use config::parse;
    use control::live_parts;
    use dataplane::{NextHop, PortId, Prefix};
    use wire::Address;

    use super::*;

    const CONFIG: &str = "[node]\nname = \"gw\"\n[port.lan]\nnetdev = \"eth1\"\nside = \
                          \"protected\"\n[port.wan]\nnetdev = \"eth0\"\nside = \"unprotected\"\n";

    /// Routes over two ports, one inside and one outside; neighbours and routers come and go.
    #[test]
    fn programs_are_told_where_somebody_lives_on_another_side() {
        let config = parse(CONFIG, "test").unwrap().validated;
        let view = View::default();
        let base = live_parts(&config, &view);
        let prefix = |first: u32, length| Prefix { address: Address::v4(first << 24), length };
        let via = |port, router| {
            let gateway = Some(Address::v4(router));
            RouteTarget::Via(NextHop { port: PortId(port), gateway })
        };
        let with = |before: &LiveParts, routes: &[(Prefix, Option<RouteTarget<NextHop>>)]| {
            let mut live = before.clone();
            for (prefix, target) in routes {
                match target {
                    Some(target) => _ = live.routes.insert(*prefix, *target),
                    None => _ = live.routes.remove(prefix),
                }
            }
            live
        };
        let told = |before: &LiveParts, now: &LiveParts| {
            let changes = Changes::between((&view, before), (&view, now));
            (changes.any, changes.destinations, changes.programs)
        };
        let outside = with(&base, &[(prefix(0, 0), Some(via(1, 9)))]);
        assert_eq!(told(&base, &outside), (true, false, false), "as before: not inside");
        let inside = with(&outside, &[(prefix(10, 8), Some(via(0, 1)))]);
        assert_eq!(told(&outside, &inside), (true, false, true));
        let other_router = with(&inside, &[(prefix(10, 8), Some(via(0, 2)))]);
        assert_eq!(told(&inside, &other_router), (true, false, false));
        let narrower = with(&other_router, &[(prefix(10, 16), Some(via(0, 3)))]);
        assert_eq!(told(&other_router, &narrower), (true, false, false));
        let turned = with(&narrower, &[(prefix(10, 16), Some(via(1, 3)))]);
        assert_eq!(told(&narrower, &turned), (true, false, true));
        let gone = with(&turned, &[(prefix(10, 16), None), (prefix(10, 8), None)]);
        assert_eq!(told(&turned, &gone), (true, false, true));
        let broadcast = with(&gone, &[(prefix(11, 32), Some(RouteTarget::Broadcast))]);
        assert_eq!(told(&gone, &broadcast), (true, true, true));
        let mut neighbour = broadcast.clone();
        neighbour.neighbours.insert((PortId(0), Address::v4(1)), [2; 6]);
        assert_eq!(told(&broadcast, &neighbour), (true, false, false));
        assert_eq!(told(&neighbour, &neighbour), (false, false, false));
    }
}
