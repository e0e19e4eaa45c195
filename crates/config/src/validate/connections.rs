//! `[connections]`: sizes and time-outs of the table of connections.

use dataplane::connections::Limits;
use policy::connection::Timeouts;

use crate::connections::{
    ConnectionSettings, DEFAULT_CONNECTIONS, MAX_CONNECTIONS, MAX_TIMEOUT_S, TIMEOUT_KEYS,
    timeout_fields,
};
use crate::diagnostic::DiagnosticKind;
use crate::errors::Diagnostics;
use crate::raw::{Either, RawConnections};
use crate::read::Scalar;
use crate::source::Spanned;
use crate::values::{bounded, count};

/// Connections that the table has room for at least: one of IPv6 counts as two.
const LEAST: u32 = 2;

pub(super) fn validate(
    raw: Option<&RawConnections>,
    problems: &mut Diagnostics<'_>,
) -> Option<ConnectionSettings> {
    let Some(raw) = raw else { return Some(ConnectionSettings::default()) };
    let timeouts = timeouts(raw, problems);
    let max = size(("max", &raw.max), DEFAULT_CONNECTIONS, (LEAST, MAX_CONNECTIONS), problems);
    let highest = max.unwrap_or(MAX_CONNECTIONS);
    let default = Limits::of(highest);
    let per_port = ("per_port", &raw.per_port);
    let per_zone = size(per_port, default.per_zone, (1, highest), problems);
    let half_open = ("half_open", &raw.half_open);
    let half_open = size(half_open, default.half_open, (LEAST, highest), problems);
    let most = half_open.unwrap_or(highest);
    let half_open_per_port = ("half_open_per_port", &raw.half_open_per_port);
    let half_open_per_zone = size(half_open_per_port, most / 2, (1, most), problems);
    let limits = Limits {
        max: max?,
        half_open: half_open?,
        per_zone: per_zone?,
        half_open_per_zone: half_open_per_zone?,
    };
    Some(ConnectionSettings { limits, timeouts: timeouts? })
}

fn timeouts(raw: &RawConnections, problems: &mut Diagnostics<'_>) -> Option<Timeouts> {
    let (mut timeouts, mut sound) = (Timeouts::default(), true);
    let keys = TIMEOUT_KEYS.into_iter().zip(&raw.timeouts);
    for ((key, written), seconds) in keys.zip(timeout_fields(&mut timeouts)) {
        match bounded(problems, key, written, *seconds, (1, MAX_TIMEOUT_S)) {
            Some(value) => *seconds = value,
            None => sound = false,
        }
    }
    sound.then_some(timeouts)
}

/// A number of connections within bounds; the default if nothing is written.
pub(super) fn size(
    (key, written): (&'static str, &Either),
    default: u32,
    (lowest, highest): (u32, u32),
    problems: &mut Diagnostics<'_>,
) -> Option<u32> {
    let Some(written) = written else { return Some(default) };
    let number = match written.get_ref() {
        Scalar::Number(number) => *number,
        Scalar::Text(text) => match count(text) {
            Some(number) => number.into(),
            None => {
                let mistake = DiagnosticKind::BadSize { key, text: text.clone() };
                problems.error(&written.span(), mistake);
                return None;
            }
        },
    };
    let number = Some(Spanned::new(written.span(), number));
    bounded(problems, key, &number, default, (lowest, highest))
}
