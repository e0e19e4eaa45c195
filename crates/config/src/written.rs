//! Writes values as a configuration has them.

use dataplane::HostService;

/// Writes a MAC address.
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Writes a service as in `allow_host`.
pub fn service_text(service: &HostService) -> String {
    let name = policy::selector::protocol_text(Some(service.protocol));
    match service.ports {
        Some(ports) => format!("{name}/{ports}"),
        None => name,
    }
}

/// Writes a count with the largest unit that divides it.
pub(crate) fn count_text(count: u64) -> String {
    match count {
        _ if count != 0 && count.is_multiple_of(1 << 20) => format!("{}M", count >> 20),
        _ if count != 0 && count.is_multiple_of(1 << 10) => format!("{}K", count >> 10),
        _ => count.to_string(),
    }
}
