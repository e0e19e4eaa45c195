//! Values as they are written in a configuration.

use dataplane::HostService;

/// How a MAC address is written.
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// How a service is written in `allow_host`.
pub fn service_text(service: &HostService) -> String {
    let name = policy::selector::protocol_text(Some(service.protocol));
    match service.ports {
        Some(ports) => format!("{name}/{ports}"),
        None => name,
    }
}

/// How a count is written, as short as it can be.
pub(crate) fn count_text(count: u64) -> String {
    match count {
        _ if count != 0 && count.is_multiple_of(1 << 20) => format!("{}M", count >> 20),
        _ if count != 0 && count.is_multiple_of(1 << 10) => format!("{}K", count >> 10),
        _ => count.to_string(),
    }
}
