//! Counters of the wing's daemon at one moment.

use std::collections::BTreeMap;

use netlab::{Daemon, LabError};
use serde_json::Value;

/// Counters of the kernel tier, of the workers, and of drops.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Reading {
    /// Packets that the kernel tier sent to the host of their destination.
    pub(super) transmitted: u64,
    /// Overlay packets that the kernel tier left to the workers.
    pub(super) to_workers: u64,
    /// Those of them that it had no lease for: the daemon was late, on a busy machine for example.
    pub(super) without_lease: u64,
    /// Endpoints and networks in the kernel tier, and endpoints that it has room for.
    pub(super) endpoints: u64,
    pub(super) networks: u64,
    pub(super) max: u64,
    /// Packets that were dropped, by reason.
    pub(super) drops: BTreeMap<String, u64>,
    /// Imbalance of all ledgers and of what the XDP program counted.
    pub(super) imbalance: u64,
}

impl Reading {
    /// Asks a daemon.
    pub(super) fn of(daemon: &Daemon) -> Result<Reading, LabError> {
        let counters = daemon.ask(&["show", "counters"])?;
        let ports = daemon.ports()?;
        let of_port = ports.iter().find(|port| port["name"] == "fabric");
        of_port.and_then(|port| Reading::read(&counters, &port["kernel"])).ok_or_else(|| {
            let command = "lockgate show counters, and show port".to_owned();
            LabError::Answer { command, answer: format!("{counters}\n{ports:?}") }
        })
    }

    fn read(counters: &Value, port: &Value) -> Option<Reading> {
        let tier = &counters["kernel_tier"];
        let misses = tier["misses"].as_array()?;
        let lease = misses.iter().find(|miss| miss["reason"] == "lease");
        let misses = misses.iter().map(|miss| miss["count"].as_u64());
        let drops = counters["drops"].as_array()?.iter();
        let drops = drops
            .map(|drop| Some((drop["name"].as_str()?.to_owned(), drop["count"].as_u64()?)))
            .collect::<Option<_>>()?;
        let imbalance = port["imbalance"].as_i64()?.unsigned_abs();
        Some(Reading {
            transmitted: port["transmitted"].as_u64()?,
            to_workers: misses.sum::<Option<u64>>()?,
            without_lease: lease?["count"].as_u64()?,
            endpoints: tier["endpoints"].as_u64()?,
            networks: tier["networks"].as_u64()?,
            max: tier["max"].as_u64()?,
            drops,
            imbalance: imbalance + counters["ledger_imbalance"].as_u64()?,
        })
    }

    /// Packets that the kernel tier answered since an earlier reading.
    pub(super) fn kernel_since(&self, earlier: &Reading) -> u64 {
        self.transmitted - earlier.transmitted
    }

    /// Packets that went to the workers since an earlier reading.
    pub(super) fn workers_since(&self, earlier: &Reading) -> u64 {
        self.to_workers - earlier.to_workers
    }

    /// Packets that the kernel tier had no lease for since an earlier reading.
    pub(super) fn without_lease_since(&self, earlier: &Reading) -> u64 {
        self.without_lease - earlier.without_lease
    }

    /// Packets that were dropped since an earlier reading.
    pub(super) fn dropped_since(&self, earlier: &Reading) -> u64 {
        self.drops.values().sum::<u64>() - earlier.drops.values().sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_and_compared() {
        let counters = |misses: [u64; 2], dropped: u64| {
            let [one, two] = misses;
            let misses = serde_json::json!([
                {"reason": "lease", "count": one}, {"reason": "way", "count": two},
            ]);
            serde_json::json!({
                "kernel_tier": {"endpoints": 3, "networks": 1, "max": 8, "misses": misses},
                "drops": [{"name": "no_endpoint", "count": dropped}],
                "ledger_imbalance": 1,
            })
        };
        let port = |sent: u64| serde_json::json!({"transmitted": sent, "imbalance": -1});
        let before = Reading::read(&counters([1, 2], 4), &port(5)).unwrap();
        let after = Reading::read(&counters([3, 2], 9), &port(25)).unwrap();
        assert_eq!((before.imbalance, before.endpoints, before.max), (2, 3, 8));
        assert_eq!((after.kernel_since(&before), after.workers_since(&before)), (20, 2));
        assert_eq!(after.without_lease_since(&before), 2);
        assert_eq!(after.dropped_since(&before), 5);
        assert_eq!(Reading::read(&Value::Null, &Value::Null), None);
    }
}
