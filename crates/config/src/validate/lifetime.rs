//! `[peer.NAME.lifetime]`: the limits of each SA of a peer.

use ipsec::{Lifetime, Limits};

use crate::diagnostic::DiagnosticKind;
use crate::errors::Diagnostics;
use crate::lifetime::{HARD, LimitKeys, MAX_SECONDS, SOFT};
use crate::raw::{Either, Number, RawLifetime, RawLimits};
use crate::read::Scalar;
use crate::source::{Span, Spanned};
use crate::values::{bounded, large_count};

/// `None`: a value means nothing, which was noted.
pub(super) fn validate(
    raw: Option<&RawLifetime>,
    problems: &mut Diagnostics<'_>,
) -> Option<Lifetime> {
    let Some(RawLifetime { soft, hard }) = raw else { return Some(Lifetime::NONE) };
    let (soft_limits, hard_limits) = (limits(&SOFT, soft, problems), limits(&HARD, hard, problems));
    let lifetime = Lifetime { soft: soft_limits?, hard: hard_limits? };
    let mut is_sound = true;
    for (place, (key, at)) in written(&SOFT, soft).into_iter().enumerate() {
        let of = |limits: &Limits| {
            let Limits { packets, bytes, seconds, idle_seconds } = *limits;
            [packets, bytes, seconds.map(u64::from), idle_seconds.map(u64::from)][place]
        };
        let (Some(soft), Some(hard)) = (of(&lifetime.soft), of(&lifetime.hard)) else { continue };
        if soft > hard
            && let Some(at) = at
        {
            let (other, _) = written(&HARD, &RawLimits::default())[place];
            problems.error(&at, DiagnosticKind::SoftAboveHard { key, other, soft, hard });
            is_sound = false;
        }
    }
    is_sound.then_some(lifetime)
}

/// Warns of a hard limit without a soft one where charon makes the keys: charon renews at the soft
/// one. Limits by idle time need none.
pub(super) fn warn_of_lone_hard_limits(raw: Option<&RawLifetime>, problems: &mut Diagnostics<'_>) {
    let Some(RawLifetime { soft, hard }) = raw else { return };
    let limits = written(&SOFT, soft).into_iter().zip(written(&HARD, hard));
    for ((soft, soft_at), (hard, hard_at)) in
        limits.filter(|((soft, _), _)| *soft != SOFT.idle_seconds)
    {
        if let (None, Some(at)) = (soft_at, hard_at) {
            problems.warning(&at, DiagnosticKind::LoneHardLimit { hard, soft });
        }
    }
}

/// The keys of [`RawLimits`], and where they are written, in the order of [`Limits`].
fn written(keys: &LimitKeys, raw: &RawLimits) -> [(&'static str, Option<Span>); 4] {
    [
        (keys.packets, raw.packets.as_ref().map(Spanned::span)),
        (keys.bytes, raw.bytes.as_ref().map(Spanned::span)),
        (keys.seconds, raw.seconds.as_ref().map(Spanned::span)),
        (keys.idle_seconds, raw.idle_seconds.as_ref().map(Spanned::span)),
    ]
}

fn limits(keys: &LimitKeys, raw: &RawLimits, problems: &mut Diagnostics<'_>) -> Option<Limits> {
    let packets = amount(keys.packets, &raw.packets, problems);
    let bytes = amount(keys.bytes, &raw.bytes, problems);
    let seconds = duration(keys.seconds, &raw.seconds, problems);
    let idle_seconds = duration(keys.idle_seconds, &raw.idle_seconds, problems);
    let (packets, bytes, seconds) = (packets?, bytes?, seconds?);
    Some(Limits { packets, bytes, seconds, idle_seconds: idle_seconds? })
}

/// A number of packets or bytes from 1; inside `None`: nothing is written.
fn amount(
    key: &'static str,
    written: &Either,
    problems: &mut Diagnostics<'_>,
) -> Option<Option<u64>> {
    let Some(written) = written else { return Some(None) };
    let (number, text) = match written.get_ref() {
        Scalar::Number(number) => (u64::try_from(*number).ok(), number.to_string()),
        Scalar::Text(text) => (large_count(text), text.clone()),
    };
    match number {
        Some(0) => problems.error(&written.span(), DiagnosticKind::ZeroLimit { key }),
        Some(number) => return Some(Some(number)),
        None => problems.error(&written.span(), DiagnosticKind::BadAmount { key, text }),
    }
    None
}

/// Seconds from 1; inside `None`: nothing is written.
fn duration(
    key: &'static str,
    written: &Number,
    problems: &mut Diagnostics<'_>,
) -> Option<Option<u32>> {
    if written.as_ref().is_some_and(|written| *written.get_ref() == 0) {
        let at = written.as_ref().map(Spanned::span).unwrap_or_default();
        problems.error(&at, DiagnosticKind::ZeroLimit { key });
        return None;
    }
    let seconds = bounded(problems, key, written, 0, (1, MAX_SECONDS))?;
    Some((seconds > 0).then_some(seconds))
}
