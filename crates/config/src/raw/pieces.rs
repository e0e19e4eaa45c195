//! Sections of a text that is read in pieces.

use super::{MAX_PORTS, Raw};
use crate::cards::MAX_CARDS;
use crate::diagnostic::DiagnosticKind;
use crate::errors::Diagnostics;
use crate::groups::{MAX_GROUPS, MAX_SETS};
use crate::overlays::{MAX_NETWORKS, MAX_OVERLAYS};
use crate::source::Spanned;

/// A section without a name of its own is in two pieces of a text.
pub(crate) struct SectionTwice;

/// Appends a list. The first list grows by a quarter: doubling takes three times the list's size.
fn append<T>(list: &mut Vec<T>, later: Vec<T>) {
    if list.capacity() - list.len() < later.len() {
        list.reserve_exact(later.len().max(list.len() / 4));
    }
    list.extend(later);
}

impl Raw {
    /// Adds the sections of a later piece of the text.
    ///
    /// # Errors
    /// [`SectionTwice`].
    pub(crate) fn append(&mut self, later: Raw) -> Result<(), SectionTwice> {
        fn one<T>(kept: &mut Option<T>, later: Option<T>) -> Result<(), SectionTwice> {
            match (&kept, later) {
                (Some(_), Some(_)) => return Err(SectionTwice),
                (None, later) => *kept = later,
                (Some(_), None) => {}
            }
            Ok(())
        }
        one(&mut self.node, later.node)?;
        one(&mut self.cache, later.cache)?;
        one(&mut self.connections, later.connections)?;
        one(&mut self.metrics, later.metrics)?;
        one(&mut self.store, later.store)?;
        one(&mut self.kernel, later.kernel)?;
        one(&mut self.audit, later.audit)?;
        one(&mut self.ike, later.ike)?;
        append(&mut self.ports, later.ports);
        append(&mut self.peers, later.peers);
        append(&mut self.sets, later.sets);
        append(&mut self.groups, later.groups);
        append(&mut self.routes, later.routes);
        append(&mut self.neighbours, later.neighbours);
        append(&mut self.overlays, later.overlays);
        append(&mut self.networks, later.networks);
        append(&mut self.cards, later.cards);
        self.has_top_keys |= later.has_top_keys;
        self.has_node |= later.has_node;
        self.has_port |= later.has_port;
        Ok(())
    }

    /// Frees the room of lists that grew.
    pub(crate) fn shrink(&mut self) {
        self.peers.shrink_to_fit();
        self.routes.shrink_to_fit();
        self.neighbours.shrink_to_fit();
    }

    /// Returns whether a list is longer than validation allows, so that no more need be read.
    pub(crate) fn is_beyond_limits(&self) -> bool {
        self.ports.len() > MAX_PORTS
            || self.sets.len() > MAX_SETS
            || self.groups.len() > MAX_GROUPS
            || self.overlays.len() > MAX_OVERLAYS
            || self.networks.len() > MAX_NETWORKS
            || self.cards.len() > MAX_CARDS
    }

    /// Returns a name that two sections of a kind have: they are in different pieces.
    pub(crate) fn name_twice(&self) -> Option<&Spanned<String>> {
        fn twice<'r>(
            names: impl Iterator<Item = &'r Spanned<String>>,
        ) -> Option<&'r Spanned<String>> {
            let mut names: Vec<&Spanned<String>> = names.collect();
            names.sort_by_key(|name| (name.get_ref(), name.span().start));
            let pair = names.windows(2).find(|pair| pair[0].get_ref() == pair[1].get_ref())?;
            Some(pair[1])
        }
        None.or_else(|| twice(self.ports.iter().map(|of| &of.name)))
            .or_else(|| twice(self.peers.iter().map(|of| &of.name)))
            .or_else(|| twice(self.sets.iter().map(|of| &of.name)))
            .or_else(|| twice(self.groups.iter().map(|of| &of.name)))
            .or_else(|| twice(self.overlays.iter().map(|of| &of.name)))
            .or_else(|| twice(self.networks.iter().map(|of| &of.name)))
            .or_else(|| twice(self.cards.iter().map(|of| &of.name)))
    }

    /// Notes the sections that every file has.
    pub(crate) fn check_presence(&self, problems: &mut Diagnostics<'_>) {
        let has = [self.has_node, self.has_port];
        for (section, has) in ["[node]", "[port.NAME]"].into_iter().zip(has) {
            if !has {
                problems.error(&(0..0), DiagnosticKind::MissingSection { section });
            }
        }
    }
}
