//! SAs with limits: a run takes what it uses from the account of its SA.

use ipsec::sealer::text_bytes;
use ipsec::{Allowance, OpenJob};

use super::Row;
use super::prepared_path::PreparedPath;
use crate::batch_context::BatchContext;
use crate::cache::bits;
use crate::verdict::DropReason;

/// Takes the packets that a run seals by a path; returns how many its SA may seal: the first ones.
#[inline(never)]
pub(super) fn seal<'a, I: Iterator<Item = &'a Row>>(
    allowance: &Allowance,
    path: &PreparedPath,
    rows: impl Fn() -> I,
) -> u32 {
    let bytes = || rows().map(|row| text_bytes(row.length));
    allowance.take(path.run.count, bytes().sum(), bytes)
}

/// Gives back packets that were taken and that do not leave by their path.
#[cold]
pub(super) fn give_back<'a, F>(
    context: &BatchContext<'_, F>,
    path: &PreparedPath,
    rows: impl Iterator<Item = &'a Row>,
) {
    let Some((sa, _)) = path.sealing else { return };
    let Some(allowance) = &context.snapshot.outbound_sa(sa).allowance else { return };
    for row in rows {
        allowance.account.give_back(1, text_bytes(row.length));
    }
}

/// Takes the packets of one SA that its window accepted; returns those that may pass: a bit each.
/// Adds the others to `refused`.
#[inline(never)]
pub(super) fn open(
    allowance: &Allowance,
    jobs: &[OpenJob],
    accepted: u64,
    refused: &mut Vec<(usize, DropReason)>,
) -> u64 {
    let count = accepted.count_ones();
    let its = || jobs.iter().filter(|job| accepted >> job.row & 1 == 1);
    let bytes = || its().map(|job| u64::from(job.text_length));
    let total = match count as usize == jobs.len() {
        true => jobs.iter().map(|job| u64::from(job.text_length)).sum(),
        false => bytes().sum(),
    };
    let allowed = allowance.take(count, total, bytes);
    if allowed == count {
        return accepted;
    }
    let beyond = its().skip(allowed as usize).fold(0, |all, job| all | 1u64 << job.row);
    refused.extend(bits(beyond).map(|place| (place, DropReason::SaHardLimit)));
    accepted & !beyond
}
