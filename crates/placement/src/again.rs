//! The rules' word on packets that the tier answered, for an audit: it changes no verdict, and
//! counts nothing (DESIGN I9).
//!
//! A sample tells of a packet that is gone. It is judged again only if the rules, and the record of
//! the endpoint that it was sent to, are still those by which it was answered; where the tables or
//! the connection are others by now, nobody can tell any more.
//!
//! Not judged: the sender's record, and the way that the packet left by.

use std::fmt;

use bpf::tier::FlowKey;
use bpf::{Answered, AnsweredSample};
use dataplane::{FlowBelow, FlowVerdictBelow, NetworkBelow, NotBelow, Snapshot, VirtualNetwork};
use endpoints::{EndpointKey, Found};
use policy::Generation;
use wire::{Address, Vni};

use crate::gates::v4;
use crate::moment::Moment;
use crate::residents::Residents;
use crate::tables::Tables;

/// The outcome of judging an answer again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Again {
    /// It is the rules'.
    Right,
    /// The rules, the connection or the endpoint by which it was given are others by now.
    Outdated,
    /// The rules say otherwise.
    Wrong(Wrong),
}

/// An answer that is not the rules'.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wrong {
    /// The answer.
    pub sample: AnsweredSample,
    /// The word of the rules.
    pub rules: RulesSay,
    /// Generation of the policies.
    pub generation: Generation,
}

/// The word of the rules on a packet, and of the table of endpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RulesSay {
    /// No group judges it: it is forwarded.
    Forward,
    /// The verdict of the groups on its flow.
    Verdict(FlowBelow),
    /// Workers decide about it.
    Workers(NotBelow),
    /// Its destination is this; `None`: it is no endpoint.
    Endpoint(Option<Found>),
}

impl Wrong {
    /// Returns whether only the destination's record differs: such a difference may be a change of
    /// the endpoint that has not reached the tier yet.
    pub fn is_of_endpoint(&self) -> bool {
        matches!(self.rules, RulesSay::Endpoint(_))
    }

    /// The rules of the word, by name.
    pub fn rule_names<'s>(&self, snapshot: &'s Snapshot) -> Vec<&'s str> {
        let RulesSay::Verdict(FlowBelow { deciders, .. }) = self.rules else { return Vec::new() };
        deciders.slots().map(|slot| snapshot.spd().policy(slot).name.as_str()).collect()
    }
}

impl fmt::Display for RulesSay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RulesSay::Forward => f.write_str("forward"),
            RulesSay::Verdict(FlowBelow { verdict, .. }) => f.write_str(match verdict {
                FlowVerdictBelow::Permit => "forward",
                FlowVerdictBelow::Drop => "drop",
            }),
            RulesSay::Workers(why) => write!(f, "workers decide: {why}"),
            RulesSay::Endpoint(None) => f.write_str("no endpoint has the destination"),
            RulesSay::Endpoint(Some(Found { host, mac, .. })) => {
                let mac = mac.bytes().map(|byte| format!("{byte:02x}")).join(":");
                write!(f, "the destination is {mac} on host {host}")
            }
        }
    }
}

impl<T: Tables> Residents<T> {
    /// Judges an answer of the tier again, by the snapshot that the tables follow.
    pub fn judge_again(&self, sample: &AnsweredSample, snapshot: &Snapshot, now: Moment) -> Again {
        match self.word_on(sample, snapshot, now) {
            None => Again::Outdated,
            Some(Ok(())) => Again::Right,
            Some(Err(rules)) => {
                let (sample, generation) = (*sample, snapshot.generation());
                Again::Wrong(Wrong { sample, rules, generation })
            }
        }
    }

    /// Agrees with an answer, or says otherwise. `None`: it is outdated.
    fn word_on(
        &self,
        sample: &AnsweredSample,
        snapshot: &Snapshot,
        now: Moment,
    ) -> Option<Result<(), RulesSay>> {
        let vni = Vni::new(sample.key.vni)?;
        let open = self.gates.network(vni).filter(|open| open.number == sample.network)?;
        let network = snapshot.overlays()?.network(vni, open.overlay)?;
        let below = snapshot.network_below(network);
        if open.generation_by(below)? != sample.generation {
            return None;
        }
        let agreed = match (below, sample.answer) {
            (NetworkBelow::Asks(_), Answered::Sent) => {
                on_flow(sample.key, FlowVerdictBelow::Permit, (snapshot, network), now)?
            }
            (NetworkBelow::Asks(_), Answered::Dropped) => {
                on_flow(sample.key, FlowVerdictBelow::Drop, (snapshot, network), now)?
            }
            (_, Answered::Dropped) => Err(RulesSay::Forward),
            (_, Answered::Sent | Answered::LinkAddress) => Ok(()),
        };
        match agreed {
            Ok(()) => self.on_endpoint(vni, sample, snapshot),
            Err(_) => Some(agreed),
        }
    }

    /// The word of the table of endpoints on the destination's record.
    fn on_endpoint(
        &self,
        vni: Vni,
        sample: &AnsweredSample,
        snapshot: &Snapshot,
    ) -> Option<Result<(), RulesSay>> {
        let key = EndpointKey { vni, address: Address::v4(sample.key.destination.into()) };
        let (slot, since_ns) = self.record_of(key)?;
        if slot != sample.endpoint_slot || since_ns > sample.at_ns {
            return None;
        }
        let found = snapshot.overlays()?.endpoints().find(key);
        let is_there =
            |found: &Found| v4(found.host) == Some(sample.host) && found.mac.bytes() == sample.mac;
        let agrees = found.as_ref().is_some_and(is_there);
        Some(if agrees { Ok(()) } else { Err(RulesSay::Endpoint(found)) })
    }
}

/// The word of a network's groups on the verdict that a flow's packet had.
fn on_flow(
    key: FlowKey,
    said: FlowVerdictBelow,
    (snapshot, network): (&Snapshot, &VirtualNetwork),
    now: Moment,
) -> Option<Result<(), RulesSay>> {
    match snapshot.flow_below(network, &key.flow(), now.walk_s()) {
        Ok(below) if below.verdict == said => Some(Ok(())),
        Ok(below) => Some(Err(RulesSay::Verdict(below))),
        // Only a connection makes the tier forward there. This one has ended since, or is about to.
        Err(NotBelow::Connection(_) | NotBelow::JudgedBefore)
            if said == FlowVerdictBelow::Permit =>
        {
            None
        }
        Err(why) => Some(Err(RulesSay::Workers(why))),
    }
}
