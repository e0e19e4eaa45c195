//! Packets that the machines of the laboratory lost, by their own counters.

use std::time::Duration;

use netlab::{LabError, Namespace};
use serde_json::Value;

/// Time for `ethtool`.
const SETTING: Duration = Duration::from_secs(60);

/// Losses outside of Lockgate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Losses {
    /// Packets that netdevs dropped or had errors with, those of XDP_TX included.
    pub(super) netdevs: u64,
    /// Packets for which a UDP socket had no room.
    pub(super) sockets: u64,
}

impl Losses {
    /// Adds those of a namespace.
    pub(super) fn add(&mut self, namespace: &Namespace) -> Result<(), LabError> {
        let links = namespace.ip_json(&["-statistics", "link"])?;
        for link in links.as_array().map(Vec::as_slice).unwrap_or_default() {
            self.netdevs += of_link(link);
            let name = link["ifname"].as_str().unwrap_or_default();
            // Not every netdev has counters of its own.
            let counters = namespace.run(&["ethtool", "-S", name], SETTING)?.stdout;
            self.netdevs += xdp_tx_errors(&counters);
        }
        let snmp = namespace.run(&["cat", "/proc/net/snmp"], SETTING)?.success()?;
        self.sockets += receive_buffer_errors(&snmp);
        Ok(())
    }

    /// Losses since an earlier count.
    pub(super) fn since(self, earlier: &Losses) -> Losses {
        Losses {
            netdevs: self.netdevs.saturating_sub(earlier.netdevs),
            sockets: self.sockets.saturating_sub(earlier.sockets),
        }
    }

    /// All of them.
    pub(super) fn all(self) -> u64 {
        self.netdevs + self.sockets
    }

    /// Formats them for a check.
    pub(super) fn text(self) -> String {
        format!("{} by netdevs, {} by full sockets", self.netdevs, self.sockets)
    }
}

fn of_link(link: &Value) -> u64 {
    let count = |at: &str| link.pointer(at).and_then(Value::as_u64).unwrap_or(0);
    let counters = ["rx/dropped", "rx/errors", "tx/dropped", "tx/errors"];
    counters.iter().map(|counter| count(&format!("/stats64/{counter}"))).sum()
}

/// Frames of XDP_TX for which a veth had no room, as `ethtool -S` lists them.
fn xdp_tx_errors(counters: &str) -> u64 {
    let lines = counters.lines().filter_map(|line| line.trim().split_once(": "));
    let errors = lines.filter(|(name, _)| name.ends_with("xdp_tx_errors"));
    errors.filter_map(|(_, count)| count.parse::<u64>().ok()).sum()
}

/// `RcvbufErrors` of UDP: two lines, names and numbers.
fn receive_buffer_errors(snmp: &str) -> u64 {
    let mut lines = snmp.lines().filter(|line| line.starts_with("Udp:"));
    let (Some(names), Some(numbers)) = (lines.next(), lines.next()) else { return 0 };
    let mut pairs = names.split(' ').zip(numbers.split(' '));
    let found = pairs.find(|(name, _)| *name == "RcvbufErrors");
    found.and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_linux_are_read() {
        let stats = serde_json::json!({"rx": {"dropped": 1, "errors": 2, "packets": 99},
            "tx": {"dropped": 3, "errors": 4}});
        assert_eq!(of_link(&serde_json::json!({ "stats64": stats })), 10);
        let counters =
            "NIC statistics:\n     rx_queue_0_xdp_tx: 7\n     rx_queue_0_xdp_tx_errors: 5";
        assert_eq!(xdp_tx_errors(counters), 5);
        let snmp = "Udp: InDatagrams InErrors RcvbufErrors\nUdp: 9 8 6\nUdpLite: InDatagrams\n";
        assert_eq!((receive_buffer_errors(snmp), receive_buffer_errors("")), (6, 0));
    }
}
