//! `[connections]` as it is configured: size of the table of connections, its bounds and time-outs.

use std::fmt::Write;

use dataplane::connections::Limits;
use policy::connection::Timeouts;

use crate::written::count_text;

/// Connections that the table has room for if nothing is written.
pub const DEFAULT_CONNECTIONS: u32 = 1 << 18;
/// Connections that the table may have room for at most.
pub const MAX_CONNECTIONS: u32 = 1 << 24;
/// Longest time-out, seconds: 30 days.
pub const MAX_TIMEOUT_S: u32 = 30 * 24 * 3600;

/// Bytes of the table for each connection, with the order of a quarter that is half-open.
const CONNECTION_BYTES: u64 = 134;

/// Settings of the table of connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionSettings {
    /// Sizes.
    pub limits: Limits,
    /// Time-outs.
    pub timeouts: Timeouts,
}

impl Default for ConnectionSettings {
    fn default() -> ConnectionSettings {
        let (limits, timeouts) = (Limits::of(DEFAULT_CONNECTIONS), Timeouts::default());
        ConnectionSettings { limits, timeouts }
    }
}

/// The keys of sizes, in the order of [`sizes`].
const SIZE_KEYS: [&str; 4] = ["max", "per_port", "half_open", "half_open_per_port"];

/// The sizes in the order of [`SIZE_KEYS`].
fn sizes(limits: &Limits) -> [u32; 4] {
    [limits.max, limits.per_zone, limits.half_open, limits.half_open_per_zone]
}

/// The keys of time-outs, in the order of [`timeout_fields`].
pub(crate) const TIMEOUT_KEYS: [&str; 10] = [
    "tcp_syn_s",
    "tcp_established_s",
    "tcp_closing_s",
    "tcp_time_wait_s",
    "tcp_reset_s",
    "udp_unreplied_s",
    "udp_replied_s",
    "icmp_echo_s",
    "other_unreplied_s",
    "other_replied_s",
];

/// The time-outs in the order of [`TIMEOUT_KEYS`].
pub(crate) fn timeout_fields(timeouts: &mut Timeouts) -> [&mut u32; 10] {
    let Timeouts { tcp_syn_s, tcp_established_s, tcp_closing_s, tcp_time_wait_s, .. } = timeouts;
    let Timeouts { tcp_reset_s, udp_unreplied_s, udp_replied_s, .. } = timeouts;
    let Timeouts { icmp_echo_s, other_unreplied_s, other_replied_s, .. } = timeouts;
    [
        tcp_syn_s,
        tcp_established_s,
        tcp_closing_s,
        tcp_time_wait_s,
        tcp_reset_s,
        udp_unreplied_s,
        udp_replied_s,
        icmp_echo_s,
        other_unreplied_s,
        other_replied_s,
    ]
}

impl ConnectionSettings {
    /// Bytes of the table.
    pub fn bytes(&self) -> u64 {
        self.limits.table_bytes()
    }

    /// Returns the largest number of connections whose table fits into this many bytes.
    pub(crate) fn connections_within(bytes: u64) -> u64 {
        let connections = bytes / CONNECTION_BYTES;
        connections.checked_ilog2().map_or(0, |bits| 1 << bits)
    }

    /// Returns the first key whose value is another one in other settings: `connections.max`.
    pub fn changed_key(&self, other: &ConnectionSettings) -> Option<String> {
        let (mut ours, mut theirs) = (*self, *other);
        let sizes = SIZE_KEYS.iter().zip(sizes(&self.limits)).zip(sizes(&other.limits));
        let sizes = sizes.map(|((key, ours), theirs)| (*key, ours, theirs));
        let timeouts = timeout_fields(&mut ours.timeouts);
        let timeouts = TIMEOUT_KEYS.iter().zip(timeouts).zip(timeout_fields(&mut theirs.timeouts));
        let timeouts = timeouts.map(|((key, ours), theirs)| (*key, *ours, *theirs));
        let changed = sizes.chain(timeouts).find(|(_, ours, theirs)| ours != theirs);
        changed.map(|(key, ..)| format!("connections.{key}"))
    }

    /// Writes the section.
    pub(crate) fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "[connections]")?;
        for (key, count) in SIZE_KEYS.iter().zip(sizes(&self.limits)) {
            writeln!(out, "{key} = \"{}\"", count_text(count.into()))?;
        }
        let mut timeouts = self.timeouts;
        for (key, seconds) in TIMEOUT_KEYS.iter().zip(timeout_fields(&mut timeouts)) {
            writeln!(out, "{key} = {seconds}")?;
        }
        Ok(())
    }
}
