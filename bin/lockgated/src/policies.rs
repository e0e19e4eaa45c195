//! Changes of single policies (`lockgate policy`): transactions upon what runs, whose cost goes by
//! what they change.
//!
//! Changes that are asked for while another is being made wait, and are then made together: one
//! transaction after the other, each with its own generation and revision, and one snapshot for
//! all. Each is answered when every worker runs on that snapshot and its revision is on disk.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use config::validated::{Action, Policy};
use config::{
    Change as HowChanged, Diagnostic, Difference, Meeting, ParsedPolicies, Validated,
    parse_policies, policy_text,
};
use control::guard::{Guard, GuardGap};
use control::{ChangeRefused, Compiled, Compiler, Takeovers, takeovers_of};
use dataplane::Generation;
use dataplane::carve_out::Reserved;
use tokio::sync::oneshot;

use crate::backend::{ChangeError, ChangeReport, Consent, PolicyChange, PolicyNames};
use crate::change::{machine, restart_note, unsaid};
use crate::gateway::{NextGuard, TransactionError};
use crate::picture::Picture;
use crate::revisions::{Body, Cause, Confirmation, Content, PolicyEdit, Revision, WriteResult};
use crate::state::State;
use crate::stored_keys::stored;
use crate::who::Uid;

/// Policies that an event names at most.
const MAX_NAMED: usize = 8;

/// The result of a change, before it is on disk.
pub(crate) type Outcome = Result<(ChangeReport, WriteResult), ChangeError>;

/// The channel for the result of a change.
pub(crate) type Answer = oneshot::Sender<Outcome>;

/// A change that waits for its turn.
pub(crate) struct QueuedChange {
    pub(crate) change: PolicyChange,
    pub(crate) by: Uid,
    pub(crate) answer: Answer,
}

/// Compiled changes, each based on the one before it, and the guard to be installed first.
pub(crate) struct Batch {
    changes: Vec<Compilation>,
    guard: Result<NextGuard, TransactionError>,
}

/// A change, compiled upon the one before it.
struct Compilation {
    asked: PolicyChange,
    by: Uid,
    answer: Answer,
    made: PolicyChangeResult,
}

/// The result of a change.
struct PolicyChangeResult {
    /// Policies that went and came.
    removed: Vec<Policy>,
    added: Vec<Policy>,
    differences: Vec<Difference>,
    warnings: Vec<Diagnostic>,
    takeovers: Takeovers,
    /// The compiled configuration that runs after the change.
    compiled: Compiled,
}

/// Returns the effects of a change without making it. Whether a search would exceed its cost is
/// found out only when the change is made. Blocks.
///
/// # Errors
/// [`ChangeError`].
pub(crate) fn judge(running: &Picture, change: &PolicyChange) -> Result<ChangeReport, ChangeError> {
    let compiled = &running.compiled;
    let settings = compiled.settings();
    let ParsedPolicies { policies, warnings } =
        parse_policies(&change.add, &change.file, settings)?;
    let removed = named(compiled, &change.remove)?;
    let is_taken = |policy: &&Policy| {
        let stays = !change.remove.contains(&policy.name);
        stays && compiled.policy_named(&policy.name).is_some()
    };
    if let Some(Policy { name, .. }) = policies.iter().find(is_taken) {
        return Err(machine(ChangeRefused::Taken { name: name.clone() }));
    }
    Ok(ChangeReport {
        revision: running.revision,
        generation: compiled.generation,
        differences: differences(settings, &removed, &policies),
        warnings,
        takeovers: allowed(compiled, change, &policies)?,
        policies: names(settings, &removed, &policies),
        ..ChangeReport::default()
    })
}

/// Compiles the changes one after another; answers a refused one, which leaves no trace. Blocks.
pub(crate) fn compile_all(
    picture: &Picture,
    compiler: &mut Compiler,
    all: Vec<QueuedChange>,
) -> Option<Batch> {
    let mut running = picture.compiled.copied();
    let mut changes: Vec<Compilation> = Vec::with_capacity(all.len());
    for QueuedChange { change, by, answer } in all {
        match compile(compiler, &running, &change) {
            Ok(made) => {
                running = made.compiled.copied();
                changes.push(Compilation { asked: change, by, answer, made });
            }
            Err(refused) => drop(answer.send(Err(refused))),
        }
    }
    let guard = next_guard(picture, &running, &changes);
    (!changes.is_empty()).then_some(Batch { changes, guard })
}

/// The guard that covers what is about to be protected. What it covers too much is taken off later.
fn next_guard(
    picture: &Picture,
    compiled: &Compiled,
    changes: &[Compilation],
) -> Result<NextGuard, TransactionError> {
    let added = changes.iter().flat_map(|of| &of.made.added);
    let removed = changes.iter().flat_map(|of| &of.made.removed);
    let runs = |policy: &Policy| {
        let named = compiled.policy_named(&policy.name);
        named.is_some_and(|found| compiled.configured(found) == *policy)
    };
    Ok(match picture.guard.lacks(removed, added, runs) {
        GuardGap::Nothing => NextGuard::Same,
        GuardGap::Rules(behind) => NextGuard::Behind(behind),
        GuardGap::Everything => {
            let open = Reserved::default();
            NextGuard::Other(Guard::new(compiled.validated(), &picture.view, &open)?)
        }
    })
}

fn compile(
    compiler: &mut Compiler,
    running: &Compiled,
    change: &PolicyChange,
) -> Result<PolicyChangeResult, ChangeError> {
    let PolicyChange { remove, add, file, .. } = change;
    let settings = running.settings();
    let ParsedPolicies { policies, warnings } = parse_policies(add, file, settings)?;
    let removed: Vec<Policy> = remove
        .iter()
        .filter_map(|name| Some(running.configured(running.policy_named(name)?)))
        .collect();
    let takeovers = allowed(running, change, &policies)?;
    let compiled = compiler.change_policies(running, remove, policies.clone()).map_err(machine)?;
    let differences = differences(settings, &removed, &policies);
    Ok(PolicyChangeResult { removed, added: policies, differences, warnings, takeovers, compiled })
}

/// The packets that a change takes from PROTECT policies; refused unless there are none or the
/// operator said yes.
fn allowed(
    running: &Compiled,
    change: &PolicyChange,
    add: &[Policy],
) -> Result<Takeovers, ChangeError> {
    let takeovers = takeovers_of(running, &change.remove, add).map_err(machine)?;
    match change.consent {
        Consent::NotGiven if !takeovers.is_nothing() => Err(ChangeError::Takes(takeovers)),
        Consent::Given | Consent::NotGiven => Ok(takeovers),
    }
}

/// The policies of a change and the fate of each, for its event.
fn names(settings: &Validated, removed: &[Policy], added: &[Policy]) -> PolicyNames {
    let action = |policy: &Policy| match policy.action {
        Action::Bypass => "bypass".to_owned(),
        Action::Discard => "discard".to_owned(),
        Action::Protect(peer) => {
            format!("protect with peer {}", settings.peers[peer.0 as usize].name)
        }
    };
    let names = |list: &'_ [Policy]| -> HashSet<String> {
        list.iter().map(|policy| policy.name.clone()).collect()
    };
    let (in_added, in_removed) = (names(added), names(removed));
    let text = |verb, policy: &Policy| format!("{verb} \"{}\" ({})", policy.name, action(policy));
    let came = added.iter().take(MAX_NAMED).map(|policy| {
        let verb = if in_removed.contains(&policy.name) { "changed" } else { "added" };
        text(verb, policy)
    });
    let went = removed.iter().filter(|policy| !in_added.contains(&policy.name));
    let went = went.take(MAX_NAMED).map(|policy| text("removed", policy));
    let mut texts: Vec<String> = came.chain(went).take(MAX_NAMED).collect();
    let replaced = in_removed.intersection(&in_added).count();
    let all = added.len() + removed.len() - replaced;
    if all > texts.len() {
        texts.push(format!("and {} more", all - texts.len()));
    }
    let subject = match (added, removed) {
        ([one], []) | ([], [one]) => one.name.clone(),
        ([one], [old]) if one.name == old.name => one.name.clone(),
        _ => format!("{all} policies"),
    };
    PolicyNames { subject, text: texts.join(", ") }
}

/// The policies of these names.
fn named(running: &Compiled, names: &[String]) -> Result<Vec<Policy>, ChangeError> {
    let find = |name: &String| {
        let unknown = || ChangeRefused::Unknown { name: name.clone(), nearest: None };
        let policy = running.policy_named(name).ok_or_else(unknown).map_err(machine)?;
        Ok(running.configured(policy))
    };
    names.iter().map(find).collect()
}

/// Lists the policies that came or say something else under their names, then those that went.
/// Cost: one look at each.
fn differences(settings: &Validated, removed: &[Policy], added: &[Policy]) -> Vec<Difference> {
    let mut old: HashMap<&str, &Policy> = HashMap::with_capacity(removed.len());
    for policy in removed {
        old.entry(&policy.name).or_insert(policy);
    }
    let new: HashSet<&str> = added.iter().map(|policy| policy.name.as_str()).collect();
    let came = added
        .iter()
        .map(|policy| difference(settings, old.get(policy.name.as_str()).copied(), Some(policy)));
    let went = removed.iter().filter(|policy| !new.contains(policy.name.as_str()));
    came.chain(went.map(|policy| difference(settings, Some(policy), None))).collect()
}

/// Compares a policy before a change with the one of its name after it.
fn difference(settings: &Validated, old: Option<&Policy>, new: Option<&Policy>) -> Difference {
    let text = |policy: Option<&Policy>| {
        policy.map_or_else(String::new, |policy| policy_text(settings, policy))
    };
    Difference {
        change: match (old, new) {
            (Some(_), Some(_)) => HowChanged::Changed,
            (None, _) => HowChanged::Added,
            (Some(_), None) => HowChanged::Removed,
        },
        what: "policy",
        name: new.or(old).map_or_else(String::new, |policy| policy.name.clone()),
        before: text(old),
        after: text(new),
    }
}

impl State {
    /// Switches to the result of a batch of changes: the guard first, then the workers. If the
    /// result is refused, all changes are. Returns the answer to each.
    pub(crate) async fn change_policies(&mut self, batch: Batch) -> Vec<(Answer, Outcome)> {
        let Batch { changes, guard } = batch;
        let refused = match self.stopping {
            true => Some(ChangeError::Stopping),
            false => self.go_over_to(guard, &changes).await.err().map(ChangeError::from),
        };
        let Some(refused) = refused else {
            self.policies_removed +=
                changes.iter().map(|of| of.made.removed.len() as u64).sum::<u64>();
            return changes.into_iter().map(|of| self.remember(of)).collect();
        };
        let text = refused.to_string();
        let mut first = Some(refused);
        let again = || machine(SameReason(text.clone()));
        let mut refuse = |of: Compilation| (of.answer, Err(first.take().unwrap_or_else(again)));
        changes.into_iter().map(&mut refuse).collect()
    }

    async fn go_over_to(
        &mut self,
        guard: Result<NextGuard, TransactionError>,
        changes: &[Compilation],
    ) -> Result<(), TransactionError> {
        let Some(last) = changes.last() else { return Ok(()) };
        let mut compiled = last.made.compiled.copied();
        let before = self.gateway.compiled.copied();
        compiled.keep_put_sas(&before)?;
        compiled.keep_moved_peers(&before);
        // Where charon's own policies leave no room they go, with their SAs.
        let loses_sas = compiled.put_count() < before.put_count();
        let removed = changes.iter().flat_map(|of| &of.made.removed);
        let added = changes.iter().flat_map(|of| &of.made.added);
        let transaction = self.gateway.prepare_policies(compiled, guard?, (removed, added))?;
        self.make(transaction).await?;
        if loses_sas {
            self.let_go_of_put_sas(&before);
        }
        Ok(())
    }

    /// The services of `allow_host` that some of these policies want packets of. Looks at all
    /// policies only if there are any.
    fn met_by(&self, compiled: &Compiled, policies: &[Policy]) -> Vec<Meeting> {
        let spd = &compiled.spd;
        let added: Vec<&policy::Policy> = policies
            .iter()
            .filter_map(|policy| Some(spd.policy(spd.named(&policy.name)?)))
            .collect();
        if self.allow_host_meetings(added.iter().copied()).is_empty() {
            return Vec::new();
        }
        let all: Vec<&policy::Policy> = spd.holding_policies().map(|(_, policy)| policy).collect();
        self.allow_host_meetings(all.iter().copied())
    }

    /// Makes a revision of a change that runs, and its answer.
    fn remember(&mut self, change: Compilation) -> (Answer, Outcome) {
        let Compilation { asked, by, answer, made } = change;
        let PolicyChangeResult { removed, added, differences, warnings, takeovers, compiled } =
            made;
        let policies = names(compiled.settings(), &removed, &added);
        let generation: Generation = compiled.generation;
        let met = self.met_by(&compiled, &added);
        let number = self.revisions.next();
        let revision = Revision {
            number,
            time: SystemTime::now(),
            uid: by.0,
            cause: Cause::Policy,
            file: asked.file,
            base: self.base.to_path_buf(),
            changes: differences.len() as u32,
            restored: None,
            confirmation: Confirmation::NotAsked,
        };
        let body = move || Body {
            text: compiled.validated().effective(),
            keys: stored(&compiled.key_names()),
        };
        let content = match self.revisions.wants_whole() {
            true => Content::Made(Box::new(body)),
            false => Content::Edit(PolicyEdit { remove: asked.remove, add: asked.add }),
        };
        let written = Arc::make_mut(&mut self.revisions).keep(revision, content);
        (self.revision, self.restored) = (number, None);
        let mut notes: Vec<String> = takeovers.sentences().collect();
        notes.push(restart_note(&self.file));
        notes.extend(unsaid(&met, &warnings));
        let done = ChangeReport {
            revision: number,
            generation,
            differences,
            warnings,
            notes,
            takeovers,
            policies,
            ..ChangeReport::default()
        };
        (answer, Ok((done, written)))
    }
}

/// The reason for which one change of a group was refused, given to the others of the group.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct SameReason(String);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The obvious twin: looks at all others for each policy.
    fn obvious(settings: &Validated, removed: &[Policy], added: &[Policy]) -> Vec<Difference> {
        let mut all = Vec::new();
        for policy in added {
            let old = removed.iter().find(|old| old.name == policy.name);
            all.push(difference(settings, old, Some(policy)));
        }
        for policy in removed {
            if added.iter().all(|new| new.name != policy.name) {
                all.push(difference(settings, Some(policy), None));
            }
        }
        all
    }

    fn settings() -> Validated {
        let text = "[node]\nname = \"a\"\n[port.in]\nnetdev = \"e0\"\nside = \"protected\"\n\
                    [port.out]\nnetdev = \"e1\"\nside = \"unprotected\"\n";
        config::parse(text, "test").unwrap().validated
    }

    /// Policies with these names and priorities.
    fn policies(settings: &Validated, named: &[(u8, u32)]) -> Vec<Policy> {
        let text = "[[policy]]\nname = \"x\"\naction = \"discard\"\nlocal = [\"any\"]\n\
                    remote = [\"any\"]\n";
        let parsed = parse_policies(text, "test", settings).unwrap();
        let policy = |&(name, priority): &(u8, u32)| {
            let name = format!("p{name}");
            Policy { name, priority, ..parsed.policies[0].clone() }
        };
        named.iter().map(policy).collect()
    }

    proptest! {
        #[test]
        fn differences_are_those_of_the_obvious_search(
            removed in prop::collection::vec((0..12_u8, 1..4_u32), 0..24),
            added in prop::collection::vec((0..12_u8, 1..4_u32), 0..24),
        ) {
            let settings = settings();
            let [removed, added] = [&removed, &added].map(|named| policies(&settings, named));
            prop_assert_eq!(
                differences(&settings, &removed, &added),
                obvious(&settings, &removed, &added)
            );
        }
    }
}
