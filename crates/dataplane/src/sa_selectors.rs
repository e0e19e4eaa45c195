//! The check of an opened packet against the selectors of its SA (RFC 4301 §5.2 step 4).
//!
//! The check comes right behind the opening and outside of the flow cache: a cached verdict belongs
//! to an SA set, and each SA of the set can have other selectors.

use ipsec::InboundSa;
use wire::icmp;

use crate::decide;
use crate::row::Row;
use crate::snapshot::Snapshot;
use crate::verdict::DropReason;

/// Checks that the packet of a row, opened by an SA, is inside of the SA's selectors. `bytes` is
/// the packet.
///
/// # Errors
/// [`DropReason::SelectorMismatch`], or the reason of a later fragment without the named ports.
#[inline]
pub(crate) fn check(
    snapshot: &Snapshot,
    sa: &InboundSa,
    row: &Row,
    bytes: &[u8],
) -> Result<(), DropReason> {
    let Some(selectors) = &sa.selectors else { return Ok(()) };
    let flow = match icmp::is_from_routers(&row.packet.flow) {
        true => {
            decide::judged_by_quote(snapshot, row, bytes).ok_or(DropReason::SelectorMismatch)?
        }
        false => row.packet.flow,
    };
    selectors.admit(&flow).map_err(DropReason::from)
}
