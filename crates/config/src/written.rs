//! Writes values as a configuration has them.

use std::fmt::Write;

use dataplane::HostService;
use policy::selector::protocol_text;
use policy::{AddressRange, PortRange, Selector, UpperSelector};
use wire::Family;

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
        _ if count != 0 && count.is_multiple_of(1 << 40) => format!("{}T", count >> 40),
        _ if count != 0 && count.is_multiple_of(1 << 30) => format!("{}G", count >> 30),
        _ if count != 0 && count.is_multiple_of(1 << 20) => format!("{}M", count >> 20),
        _ if count != 0 && count.is_multiple_of(1 << 10) => format!("{}K", count >> 10),
        _ => count.to_string(),
    }
}

/// Address ranges as they are written; both families in full are one `any`.
pub fn addresses(ranges: &[AddressRange]) -> Vec<String> {
    let any = [AddressRange::any(Family::V4), AddressRange::any(Family::V6)];
    let mut texts = Vec::with_capacity(ranges.len());
    let mut rest = ranges;
    while let [first, tail @ ..] = rest {
        rest = match rest.strip_prefix(&any) {
            Some(after) => {
                texts.push("any".into());
                after
            }
            None => {
                texts.push(first.to_string());
                tail
            }
        };
    }
    texts
}

/// Writes the keys of a selector.
pub(crate) fn write_selector(out: &mut String, selector: &Selector) -> std::fmt::Result {
    writeln!(out, "local = {}", list(addresses(&selector.local)))?;
    writeln!(out, "remote = {}", list(addresses(&selector.remote)))?;
    writeln!(out, "protocol = \"{}\"", protocol_text(selector.protocol))?;
    match &selector.upper {
        UpperSelector::Any => {}
        // A policy asks for no kind of TCP segments.
        UpperSelector::Ports { local, remote } | UpperSelector::Tcp { local, remote, .. } => {
            // An empty list is a mistake; any port is what is not written.
            for (key, ports) in [("local_ports", local), ("remote_ports", remote)] {
                if !ports.is_empty() {
                    let texts = ports.iter().map(PortRange::to_string);
                    writeln!(out, "{key} = {}", list(texts))?;
                }
            }
        }
        UpperSelector::Icmp(messages) if messages.is_empty() => {}
        UpperSelector::Icmp(messages) => {
            writeln!(out, "icmp = {}", list(messages.iter().map(ToString::to_string)))?;
        }
    }
    Ok(())
}

/// A TOML list of strings.
pub(crate) fn list(texts: impl IntoIterator<Item = String>) -> String {
    let quoted: Vec<String> = texts.into_iter().map(|text| quoted(&text)).collect();
    format!("[{}]", quoted.join(", "))
}

/// A TOML basic string.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            c if c.is_control() => {
                write!(quoted, "\\U{:08X}", u32::from(c)).expect("writing to a string");
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
