//! The audit of what the kernel answered: samples of it are judged again by the rules, as long as
//! these are still the ones by which it answered (DESIGN I9).

use std::time::Duration;

use bpf::{Answered, AnsweredSample, BpfError};
use dataplane::Snapshot;
use placement::{Again, Moment, Wrong};

use super::closed::Until;
use super::{Inner, KernelTier, now_ns};
use crate::events::{Details, Events, Kind};

/// Time for which the tier answers nothing after a wrong answer: as long as a card is not used.
pub(super) const DISTRUST: Duration = Duration::from_secs(60);
/// Wrong answers of a second that are told.
const TOLD: usize = 16;

/// Samples since the start that were not judged.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct SampleTally {
    /// The rules, the connection or the endpoint had changed since.
    pub(crate) outdated: u64,
    /// Samples for which there was no room.
    pub(crate) lost: u64,
}

/// The outcome of a second's audit.
#[derive(Default)]
pub(crate) struct Audited {
    /// Answers that were judged again.
    pub(crate) judged: u64,
    /// Those that were wrong.
    pub(crate) wrong: u64,
}

impl KernelTier {
    /// Has one of so many answers sampled (0: none), judges those that were since the last call,
    /// some 1000 at most, and closes the tier if one was wrong.
    pub(crate) fn audit(&self, one_of: u32) -> Audited {
        let mut audited = Audited::default();
        self.write(|inner, now| {
            inner.tables.sample_one_of(one_of);
            // Samples of a change that is under way wait until it is done.
            if inner.is_changing {
                return Ok(());
            }
            let wrong = inner.judge_samples(now, &mut audited)?;
            for wrong in wrong.iter().take(TOLD) {
                report(wrong, &inner.snapshot, &self.events);
            }
            Ok(())
        });
        if audited.wrong > 0 {
            self.distrust();
        }
        audited
    }

    /// Closes the tier for a while: an audit found one of its answers, or of its claims, wrong.
    pub(crate) fn distrust(&self) {
        let mut guard = self.lock();
        let Some(inner) = guard.as_mut().filter(|inner| !inner.rests()) else { return };
        let until = Until::Moment(now_ns() + DISTRUST.as_nanos() as u64);
        let why = format!("the audit found a wrong answer: it rests for {DISTRUST:?}");
        let why = inner.close(why, until);
        drop(guard);
        self.tell(&why);
    }
}

impl Inner {
    /// Returns whether a wrong answer has closed the tier already.
    fn rests(&self) -> bool {
        self.closed.as_ref().is_some_and(|closed| matches!(closed.until, Until::Moment(_)))
    }

    /// Judges the samples that are there; returns the wrong answers.
    fn judge_samples(
        &mut self,
        now: Moment,
        audited: &mut Audited,
    ) -> Result<Vec<Wrong>, BpfError> {
        let lost = self.tables.samples_lost()?;
        self.tally.samples.lost += lost.saturating_sub(self.lost);
        self.lost = lost;
        let mut fresh = Vec::new();
        self.tables.take_samples(&mut fresh)?;
        let doubtful = std::mem::take(&mut self.doubtful);
        let judge = |sample: &_| self.residents.judge_again(sample, &self.snapshot, now);
        let judged = Judged::by(judge, &doubtful, &fresh);
        self.doubtful = judged.doubtful;
        self.tally.samples.outdated += judged.outdated;
        let wrong = judged.wrong.len() as u64;
        *audited = Audited { judged: judged.right + wrong, wrong };
        Ok(judged.wrong)
    }
}

/// Samples that were judged again.
#[derive(Default)]
struct Judged {
    right: u64,
    outdated: u64,
    wrong: Vec<Wrong>,
    /// Those to be judged once more: an endpoint changes in the workers' table first, and has until
    /// the next second to leave the kernel's.
    doubtful: Vec<AnsweredSample>,
}

impl Judged {
    /// Judges samples that were doubtful a second ago, and fresh ones.
    fn by(
        judge: impl Fn(&AnsweredSample) -> Again,
        doubtful: &[AnsweredSample],
        fresh: &[AnsweredSample],
    ) -> Judged {
        let mut all = Judged::default();
        let samples =
            doubtful.iter().map(|of| (of, true)).chain(fresh.iter().map(|of| (of, false)));
        for (sample, was_doubtful) in samples {
            match judge(sample) {
                Again::Right => all.right += 1,
                Again::Outdated => all.outdated += 1,
                Again::Wrong(wrong) if wrong.is_of_endpoint() && !was_doubtful => {
                    all.doubtful.push(*sample);
                }
                Again::Wrong(wrong) => all.wrong.push(wrong),
            }
        }
        all
    }
}

/// Records that the kernel answered otherwise than the rules say.
fn report(wrong: &Wrong, snapshot: &Snapshot, events: &Events) {
    let said = said(&wrong.sample);
    let names = wrong.rule_names(snapshot);
    let by = if names.is_empty() { String::new() } else { format!(" by {}", names.join(", ")) };
    let rules = format!("{}{by}", wrong.rules);
    let key = &wrong.sample.key;
    let flow = match wrong.sample.answer {
        Answered::LinkAddress => format!("{} asks for {}", key.source, key.destination),
        Answered::Sent | Answered::Dropped => key.flow().to_string(),
    };
    let generation = u64::from(wrong.generation.0);
    let verdicts = u64::from(wrong.sample.generation);
    let message = format!(
        "the kernel said {said} of a packet of network {} ({flow}), and the rules say {rules} \
         (generation {generation}; of the network's verdicts {verdicts})",
        key.vni
    );
    let details: Details<'_> = &[
        ("network", &key.vni),
        ("flow", &flow),
        ("said", &said),
        ("rules", &rules),
        ("generation", &generation),
        ("verdicts", &verdicts),
    ];
    events.record(Kind::AuditFailed, "kernel", message, details);
}

/// The answer in words.
fn said(sample: &AnsweredSample) -> String {
    match sample.answer {
        Answered::Sent => format!("forward to host {}", sample.host),
        Answered::Dropped => "drop".into(),
        Answered::LinkAddress => {
            let mac = sample.mac.map(|byte| format!("{byte:02x}")).join(":");
            format!("link address {mac}")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use bpf::tier::FlowKey;
    use placement::RulesSay;
    use policy::Generation;

    use super::*;

    fn sample(number: u32) -> AnsweredSample {
        let of = |last| Ipv4Addr::new(172, 16, 0, last);
        AnsweredSample {
            answer: Answered::Sent,
            key: FlowKey { vni: 7, source: of(1), destination: of(2), protocol: 17, upper: [0; 4] },
            network: 0,
            generation: 0,
            flow_slot: None,
            claim: None,
            endpoint_slot: number,
            host: of(9),
            mac: [2, 7, 0, 0, 0, 2],
            at_ns: 0,
        }
    }

    fn wrong(sample: &AnsweredSample, rules: RulesSay) -> Again {
        Again::Wrong(Wrong { sample: *sample, rules, generation: Generation(1) })
    }

    #[test]
    fn another_endpoint_is_wrong_if_it_is_so_a_second_later_and_a_verdict_at_once() {
        let judge = |sample: &AnsweredSample| match sample.endpoint_slot {
            0 => Again::Right,
            1 => Again::Outdated,
            2 => wrong(sample, RulesSay::Forward),
            _ => wrong(sample, RulesSay::Endpoint(None)),
        };
        let first = Judged::by(judge, &[], &[0, 1, 2, 3, 0].map(sample));
        assert_eq!((first.right, first.outdated), (2, 1));
        assert_eq!(first.wrong.iter().map(|of| of.sample).collect::<Vec<_>>(), [sample(2)]);
        assert_eq!(first.doubtful, [sample(3)]);
        // It has left the kernel, or has not.
        let gone = Judged::by(|_| Again::Outdated, &first.doubtful, &[]);
        assert_eq!((gone.outdated, gone.wrong.len(), gone.doubtful.len()), (1, 0, 0));
        let second = Judged::by(judge, &first.doubtful, &[sample(4)]);
        assert_eq!(second.wrong.iter().map(|of| of.sample).collect::<Vec<_>>(), [sample(3)]);
        assert_eq!(second.doubtful, [sample(4)]);
    }
}
