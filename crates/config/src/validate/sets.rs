//! `[set.NAME]`: addresses that rules of groups name together.

use std::collections::{HashMap, HashSet};

use policy::{AddressRange, SelectorError};

use super::NamedSections;
use crate::diagnostic::DiagnosticKind;
use crate::errors::Diagnostics;
use crate::groups::{MAX_SETS, Set, joined};
use crate::member_mistake::MemberMistake;
use crate::raw::RawSet;
use crate::set_files::{SetFileText, SetFiles, members};
use crate::source::{Source, Spanned};
use crate::values::name;

/// Members of a set at most.
const MAX_MEMBERS: usize = 100_000;

pub(super) fn validate(
    raw: &[RawSet],
    files: SetFiles<'_>,
    problems: &mut Diagnostics<'_>,
) -> NamedSections<Set> {
    let mut sets = NamedSections { ids: HashMap::new(), list: Vec::new() };
    if let Some(beyond) = raw.get(MAX_SETS) {
        problems.error(&beyond.at, DiagnosticKind::TooMany { what: "sets", limit: MAX_SETS });
    }
    for (id, written) in (0..).zip(raw.iter().take(MAX_SETS)) {
        sets.ids.insert(written.name.get_ref().clone(), id);
        let set_name = name(problems, &written.name);
        if set_name.is_none() {
            problems.doubt(Some("set".into()));
        }
        let addresses = addresses(written, files, problems);
        if let (Some(name), Some(addresses)) = (set_name, addresses) {
            sets.list.push(Set { name, addresses });
        }
    }
    sets
}

fn addresses(
    raw: &RawSet,
    files: SetFiles<'_>,
    problems: &mut Diagnostics<'_>,
) -> Option<Vec<AddressRange>> {
    match (&raw.addresses, &raw.file) {
        (Some(_), Some(file)) => {
            problems.error(&file.span(), DiagnosticKind::SetTwice);
            None
        }
        (Some(written), None) if written.get_ref().is_empty() => {
            problems.error(&written.span(), DiagnosticKind::EmptySet);
            None
        }
        (Some(written), None) => {
            let texts = written.get_ref().iter();
            let texts: Vec<_> =
                texts.map(|text| Spanned::new(text.span(), text.get_ref().as_str())).collect();
            ranges(&texts, MemberPlace::Configuration, problems)
        }
        (None, Some(written)) => {
            let SetFileText { path, text } = files.read(written, problems)?;
            let texts = members(&text, MAX_MEMBERS);
            if texts.is_empty() {
                let file = written.get_ref().clone();
                problems.error(&written.span(), DiagnosticKind::SetFileEmpty { file });
                return None;
            }
            let source = Source::new(&path, &text);
            problems.within(&source, |problems| ranges(&texts, MemberPlace::SetFile, problems))
        }
        (None, None) => {
            // A key that was mistyped, or whose value is of another type, is told already.
            if raw.keys == 0 {
                problems.error(&raw.at, DiagnosticKind::SetWithoutMembers);
            }
            None
        }
    }
}

/// Place of a set's members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MemberPlace {
    /// `addresses` of the section.
    Configuration,
    /// The set's file: messages quote no line of a set file.
    SetFile,
}

impl MemberPlace {
    fn repeated(self, member: &str) -> DiagnosticKind {
        match self {
            MemberPlace::Configuration => DiagnosticKind::Repeated { text: member.to_owned() },
            MemberPlace::SetFile => DiagnosticKind::RepeatedMember,
        }
    }

    fn wrong(self, error: SelectorError) -> DiagnosticKind {
        match self {
            MemberPlace::Configuration => DiagnosticKind::Selector(error.into()),
            MemberPlace::SetFile => DiagnosticKind::SetMember(MemberMistake::from(error)),
        }
    }
}

/// Returns the addresses of members, as few ranges as possible.
fn ranges(
    members: &[Spanned<&str>],
    place: MemberPlace,
    problems: &mut Diagnostics<'_>,
) -> Option<Vec<AddressRange>> {
    if let Some(beyond) = members.get(MAX_MEMBERS) {
        let mistake = DiagnosticKind::TooMany { what: "members of a set", limit: MAX_MEMBERS };
        problems.error(&beyond.span(), mistake);
        return None;
    }
    let (mut ranges, mut seen, mut sound) = (Vec::new(), HashSet::new(), true);
    for member in members {
        match member.get_ref().parse::<AddressRange>() {
            Ok(range) => {
                if !seen.insert(range) {
                    problems.warning(&member.span(), place.repeated(member.get_ref()));
                }
                ranges.push(range);
            }
            Err(error) => {
                problems.error(&member.span(), place.wrong(error));
                sound = false;
            }
        }
    }
    sound.then(|| joined(ranges))
}
