//! `[group.NAME]`, and the lists of groups at ports.

use std::collections::{HashMap, HashSet};

use policy::GroupMode;

use super::NamedSections;
use crate::diagnostic::{DiagnosticKind, nearest};
use crate::errors::Diagnostics;
use crate::group_policies::MAX_GROUPS_A_SIDE;
use crate::groups::{Group, GroupId, MAX_GROUPS};
use crate::raw::{Raw, RawGroup, Texts};
use crate::values::{name, word};

pub(super) fn validate(raw: &[RawGroup], problems: &mut Diagnostics<'_>) -> NamedSections<Group> {
    let mut groups = NamedSections { ids: HashMap::new(), list: Vec::new() };
    if let Some(beyond) = raw.get(MAX_GROUPS) {
        let mistake = DiagnosticKind::TooMany { what: "groups", limit: MAX_GROUPS };
        problems.error(&beyond.name.span(), mistake);
    }
    let modes = [("enforce", GroupMode::Enforce), ("audit", GroupMode::Audit)];
    for (id, written) in (0..).zip(raw.iter().take(MAX_GROUPS)) {
        groups.ids.insert(written.name.get_ref().clone(), id);
        let group_name = name(problems, &written.name);
        if group_name.is_none() {
            problems.doubt(Some("group".into()));
        }
        let mode = word(problems, "mode", &written.mode, GroupMode::Enforce, &modes);
        if let (Some(name), Some(mode)) = (group_name, mode) {
            groups.list.push(Group { name, mode });
        }
    }
    groups
}

/// The groups that a port lists, in their order, each once.
pub(super) fn listed(
    key: &'static str,
    written: &Texts,
    groups: &NamedSections<Group>,
    problems: &mut Diagnostics<'_>,
) -> Vec<GroupId> {
    let mut listed = Vec::new();
    for entry in written.iter().flat_map(|list| list.get_ref()) {
        let text = entry.get_ref();
        match groups.id(text) {
            Some(id) if listed.contains(&id) => {
                problems.warning(&entry.span(), DiagnosticKind::Repeated { text: text.clone() });
            }
            Some(_) if listed.len() == MAX_GROUPS_A_SIDE => {
                let mistake = DiagnosticKind::TooMany {
                    what: if key == "groups_in" {
                        "groups in `groups_in`"
                    } else {
                        "groups in `groups_out`"
                    },
                    limit: MAX_GROUPS_A_SIDE,
                };
                problems.error(&entry.span(), mistake);
                break;
            }
            Some(id) => listed.push(id),
            None => unknown(groups, entry, problems),
        }
    }
    listed
}

/// Notes that there is no group of a name.
pub(super) fn unknown(
    groups: &NamedSections<Group>,
    written: &crate::source::Spanned<String>,
    problems: &mut Diagnostics<'_>,
) {
    let name = written.get_ref().clone();
    let nearest = nearest(&name, groups.names());
    problems.error(&written.span(), DiagnosticKind::UnknownGroup { name, nearest });
}

/// Warns of groups that no port and no virtual network lists.
pub(super) fn warn_of_unused(raw: &Raw, problems: &mut Diagnostics<'_>) {
    let of_ports = raw.ports.iter().flat_map(|port| [&port.groups_in, &port.groups_out]);
    let of_networks = raw.networks.iter().flat_map(|of| [&of.groups_in, &of.groups_out]);
    let lists = of_ports.chain(of_networks);
    let listed = lists.flatten().flat_map(|list| list.get_ref());
    let listed: HashSet<&str> = listed.map(|name| name.get_ref().as_str()).collect();
    for group in &raw.groups {
        let name = group.name.get_ref();
        if !listed.contains(name.as_str()) {
            let group_name = name.clone();
            problems.warning(&group.name.span(), DiagnosticKind::UnusedGroup { group: group_name });
        }
    }
}
