//! Samples of what the kernel tier answered in front of the workers, for an audit: it changes no
//! verdict, and no counter but its own.
//!
//! Such packets are gone when anybody could look. So the program notes of one packet of so many
//! which answer it gave, and by what: whoever takes the samples judges each again by the rules, if
//! these are still those that the answer was given by.

use std::net::Ipv4Addr;

use wire::Claim;

use crate::BpfError;
use crate::layout::{NO_FLOW, SAMPLE_ANSWERED, SAMPLE_DROPPED, SAMPLE_SENT, SampleEntry};
use crate::tier::{FlowClaim, FlowKey, Tier, sum};

/// The answer of the kernel tier to a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Answered {
    /// It was sent to the host of its destination.
    Sent,
    /// It was dropped by the verdict on its flow.
    Dropped,
    /// It was a question for a link address, and was answered.
    LinkAddress,
}

/// A packet that the kernel tier answered, as it knew it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AnsweredSample {
    /// The answer.
    pub answer: Answered,
    /// The tenant's flow; of a question for a link address who asked and for which, and zeros.
    pub key: FlowKey,
    /// Number of the network in the table.
    pub network: u32,
    /// Generation of the network's verdicts at that moment; 0: the network was open.
    pub generation: u32,
    /// Slot of the verdict on the flow; `None`: none was asked for.
    pub flow_slot: Option<u32>,
    /// The claim that the verdict was written with, which names the generation of the rules.
    pub claim: Option<FlowClaim>,
    /// Slot of the endpoint that was sent to, or asked for.
    pub endpoint_slot: u32,
    /// Host of that endpoint, as its record said.
    pub host: Ipv4Addr,
    /// Its link address, as its record said.
    pub mac: [u8; 6],
    /// The moment, in nanoseconds of `CLOCK_MONOTONIC`, some milliseconds early.
    pub at_ns: u64,
}

impl AnsweredSample {
    /// Reads a sample as the program wrote it. `None`: it is none.
    fn of(entry: SampleEntry) -> Option<AnsweredSample> {
        let answer = match entry.answer {
            SAMPLE_SENT => Answered::Sent,
            SAMPLE_DROPPED => Answered::Dropped,
            SAMPLE_ANSWERED => Answered::LinkAddress,
            _ => return None,
        };
        let address = |raw: u32| Ipv4Addr::from(raw.to_ne_bytes());
        let claim = Claim::of_word(entry.claim).map(|claim| FlowClaim {
            domain: entry.rules_domain,
            generation: entry.rules_generation,
            claim,
        });
        Some(AnsweredSample {
            answer,
            key: FlowKey {
                vni: entry.vni,
                source: address(entry.source),
                destination: address(entry.destination),
                protocol: entry.protocol as u8,
                upper: entry.upper.to_ne_bytes(),
            },
            network: entry.network,
            generation: entry.generation,
            flow_slot: (entry.flow != NO_FLOW).then_some(entry.flow),
            claim,
            endpoint_slot: entry.endpoint,
            host: address(entry.host),
            mac: entry.mac,
            at_ns: entry.at_ns,
        })
    }
}

impl Tier {
    /// Appends the samples that are there, oldest first, some 1000 at most, and waits for none.
    ///
    /// # Errors
    /// [`BpfError::Table`].
    pub fn take_samples(&self, into: &mut Vec<AnsweredSample>) -> Result<(), BpfError> {
        into.extend(self.samples().take()?.into_iter().filter_map(AnsweredSample::of));
        Ok(())
    }

    /// Samples that found no room since the tables were made: nobody had taken those before.
    ///
    /// # Errors
    /// [`BpfError::Table`].
    pub fn samples_lost(&self) -> Result<u64, BpfError> {
        sum(&self.samples().unheard, "lost samples", 0)
    }
}
