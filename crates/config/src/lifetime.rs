//! `[peer.NAME.lifetime]` and `[ike.lifetime]` as they are configured: limits of SAs.

use std::fmt::Write;

use ipsec::{Lifetime, Limits};

use crate::written::count_text;

/// The keys of one kind of limits, soft or hard.
#[derive(Debug)]
pub(crate) struct LimitKeys {
    pub(crate) packets: &'static str,
    pub(crate) bytes: &'static str,
    pub(crate) seconds: &'static str,
    pub(crate) idle_seconds: &'static str,
}

pub(crate) const SOFT: LimitKeys = LimitKeys {
    packets: "soft_packets",
    bytes: "soft_bytes",
    seconds: "soft_seconds",
    idle_seconds: "soft_idle_seconds",
};

pub(crate) const HARD: LimitKeys = LimitKeys {
    packets: "hard_packets",
    bytes: "hard_bytes",
    seconds: "hard_seconds",
    idle_seconds: "hard_idle_seconds",
};

/// Longest limit by time, seconds: ten years.
pub const MAX_SECONDS: u32 = 10 * 365 * 24 * 3600;

/// Writes the section under its header; nothing if it has no limits.
pub(crate) fn write(out: &mut String, header: &str, lifetime: &Lifetime) -> std::fmt::Result {
    if *lifetime == Lifetime::NONE {
        return Ok(());
    }
    writeln!(out, "{header}")?;
    for (keys, limits) in [(SOFT, lifetime.soft), (HARD, lifetime.hard)] {
        let Limits { packets, bytes, seconds, idle_seconds } = limits;
        for (key, count) in [(keys.packets, packets), (keys.bytes, bytes)] {
            if let Some(count) = count {
                writeln!(out, "{key} = \"{}\"", count_text(count))?;
            }
        }
        for (key, seconds) in [(keys.seconds, seconds), (keys.idle_seconds, idle_seconds)] {
            if let Some(seconds) = seconds {
                writeln!(out, "{key} = {seconds}")?;
            }
        }
    }
    Ok(())
}
