//! The PROTECT policies that a change of single policies takes packets from, in words.

use std::fmt;

use config::{HOST_PORT, example_text, validated::Policy};
use dataplane::PortId;
use policy::overlap::{Planned, Rest, Taker, takeovers};
use policy::{Action, PolicyId};

use crate::change::{ChangeRefused, Transaction};
use crate::compiled::Compiled;

/// Pairs of policies that an answer names at most.
const MAX_NAMED: usize = 8;

/// A policy that takes packets from another one, which protects them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Takeover {
    /// Name of the policy that takes packets.
    pub by: String,
    /// Action of the policy that takes packets: `bypass`, or `protect with peer NAME`.
    pub by_action: String,
    /// Name of the policy that protects them until the change.
    pub from: String,
    /// Action of the policy that protects them: `protect with peer NAME`.
    pub from_action: String,
    /// An example of the packets.
    pub example: String,
}

impl fmt::Display for Takeover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Takeover { by, by_action, from, from_action, example } = self;
        write!(
            f,
            "policy \"{by}\" ({by_action}) takes packets from policy \"{from}\" ({from_action}), \
             for example {example}"
        )
    }
}

/// The packets that a change takes from PROTECT policies.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Takeovers {
    /// The pairs of policies, `MAX_NAMED` at most.
    pub found: Vec<Takeover>,
    /// The reason why these may not be all.
    pub rest: Rest,
}

impl Takeovers {
    /// Returns whether the change certainly takes no packet.
    pub fn is_nothing(&self) -> bool {
        self.found.is_empty() && self.rest == Rest::Nothing
    }

    /// Returns a sentence for each pair, and one about the pairs that are not named.
    pub fn sentences(&self) -> impl Iterator<Item = String> + '_ {
        let rest = match self.rest {
            Rest::Nothing => None,
            Rest::Limit => Some("it may take packets from more policies".to_owned()),
            Rest::Unknown => Some(
                "the policies overlap too much to compare: it may take packets from any PROTECT \
                 policy"
                    .to_owned(),
            ),
        };
        self.found.iter().map(ToString::to_string).chain(rest)
    }
}

/// Finds the packets that a change would take from running PROTECT policies: those that leave in
/// cleartext, or with another peer, after it. An added policy takes packets from policies below it;
/// the packets of a removed policy fall to policies below it.
///
/// # Errors
/// [`ChangeRefused`]: the change does not fit what runs.
pub fn takeovers_of(
    running: &Compiled,
    remove: &[String],
    add: &[Policy],
) -> Result<Takeovers, ChangeRefused> {
    // Higher than the number of any policy that runs: what comes wins over its equals. Those of
    // charon's own have higher ones, and stand behind.
    let highest = PolicyId::FIRST_BEHIND.0 - 1;
    let first = u32::try_from(add.len()).map_or(0, |count| highest.saturating_sub(count));
    let transaction = Transaction::new(running, remove, add.to_vec(), first)?;
    let (settings, slots) = (running.settings(), running.slots());
    let mut ports: Vec<u16> = slots.ports().map(|port| port.0).collect();
    ports.sort_unstable();
    let planned = Planned {
        before: &running.spd,
        removed: &transaction.removed,
        added: &transaction.added,
        ports: &ports,
    };
    let policy::overlap::Takeovers { found, rest } = takeovers(planned, MAX_NAMED);
    let port_name = |slot: u16| {
        let place = slots.place_of(PortId(slot));
        let port = place.and_then(|place| settings.ports.get(place));
        port.map_or(HOST_PORT, |port| port.name.as_str())
    };
    let in_words = found.into_iter().map(|takeover| {
        let from = running.spd.policy(takeover.from);
        let by = match takeover.by {
            Taker::Standing(slot) => running.spd.policy(slot),
            Taker::Added(place) => &transaction.added[place],
        };
        Takeover {
            by: by.name.clone(),
            by_action: action_text(running, by.action),
            from: from.name.clone(),
            from_action: action_text(running, from.action),
            example: example_text(&port_name, &takeover.example),
        }
    });
    Ok(Takeovers { found: in_words.collect(), rest })
}

/// `bypass`, `discard` or `protect with peer NAME`.
pub fn action_text(running: &Compiled, action: Action) -> String {
    match action {
        Action::Bypass => "bypass".to_owned(),
        Action::Discard => "discard".to_owned(),
        Action::Permit(_) => "permit".to_owned(),
        Action::Reflect(_) => "reflect".to_owned(),
        Action::Deny(_) | Action::NoRule(_) => "deny".to_owned(),
        Action::Protect(id) => {
            let peer = running.peer_with(id);
            format!("protect with peer {}", peer.map_or("?", |peer| &peer.name))
        }
    }
}
