//! Applies a message about one route to the view, without reading all routes from the kernel.
//!
//! This is done only where the message says everything. It does not say the order of routes with
//! one metric, nor all legs of an ECMP route that lost one, nor how policy rules use other tables:
//! then all routes are read.

use super::read::Nexthops;
use super::{kind, read};
use crate::netlink::Message;
use crate::view::{KernelRoute, Refused, View};

/// A message takes the place of a route (`NLM_F_REPLACE`).
const REPLACE: u16 = 0x100;

/// The outcome of applying a message about a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PatchOutcome {
    /// The view has it.
    Done,
    /// The view had it before.
    Known,
    /// All routes are to be read.
    InDoubt,
}

/// Applies a message about a route to the view.
pub(super) fn route(message: &Message<'_>, view: &mut View, nexthops: &Nexthops) -> PatchOutcome {
    let follows_rules = view.refused.iter().any(|it| matches!(it, Refused::PolicyRule { .. }));
    let Some((route, None)) = read::route(message.payload, nexthops) else {
        return PatchOutcome::InDoubt;
    };
    if follows_rules || !view.shadows.is_empty() {
        return PatchOutcome::InDoubt;
    }
    let rivals = |there: &&KernelRoute| (there.table, there.metric) == (route.table, route.metric);
    let there = view.routes_of(route.table).get(&route.prefix).map_or(&[][..], Vec::as_slice);
    let rivals: Vec<&KernelRoute> = there.iter().filter(rivals).collect();
    let replaces = message.flags & REPLACE != 0;
    match (message.kind, &rivals[..]) {
        (kind::NEW_ROUTE, []) if !replaces => view.add_route(route),
        (kind::NEW_ROUTE, [known]) if **known == route => return PatchOutcome::Known,
        (kind::NEW_ROUTE, [_]) if replaces => put(view, Some(route.clone()), &route),
        (kind::DEL_ROUTE, [known]) if **known == route => put(view, None, &route),
        _ => return PatchOutcome::InDoubt,
    }
    PatchOutcome::Done
}

/// Replaces the route that has the table and metric of `like`; `None` removes it.
fn put(view: &mut View, route: Option<KernelRoute>, like: &KernelRoute) {
    let list = view.routes_of_mut(like.table);
    let mut routes = list.get(&like.prefix).cloned().unwrap_or_default();
    let is_it = |there: &KernelRoute| (there.table, there.metric) == (like.table, like.metric);
    if let Some(place) = routes.iter().position(is_it) {
        routes.splice(place..=place, route);
    }
    match routes.is_empty() {
        true => _ = list.remove(&like.prefix),
        false => _ = list.insert(like.prefix, routes),
    }
}
