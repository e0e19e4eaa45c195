//! Packets in virtual networks, in words: who sends them, and to whom.

use dataplane::explain::{Carried, Found, InsideError};
use serde::Serialize;
use wire::{Address, Flow};

use super::{TunnelEnds, flow_text};

/// The way of a packet through a virtual network.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct InsideText {
    /// Number of the network.
    pub vni: u32,
    /// Name of its overlay.
    pub overlay: String,
    /// The host that sends.
    pub host: std::net::IpAddr,
    /// The host of the endpoint that has the packet's source; `None`: there is no such endpoint.
    pub source_host: Option<std::net::IpAddr>,
    /// The host of the endpoint that has its destination.
    pub destination_host: Option<std::net::IpAddr>,
    /// Source and destination of the overlay packet that goes on.
    pub outer: Option<TunnelEnds>,
    /// The kernel tier's answer to it; `None`: no daemon was asked.
    pub kernel_tier: Option<String>,
}

impl InsideText {
    pub(super) fn of(carried: &Carried, kernel_tier: Option<&str>) -> InsideText {
        let host = |found: &Found| found.host.into();
        InsideText {
            vni: carried.vni.get(),
            overlay: carried.overlay.clone(),
            host: carried.host.into(),
            source_host: carried.from.as_ref().map(host),
            destination_host: carried.to.as_ref().map(host),
            outer: carried.onward.map(|flow| TunnelEnds {
                local: flow.source_address().into(),
                remote: flow.destination_address().into(),
            }),
            kernel_tier: kernel_tier.map(str::to_owned),
        }
    }
}

/// Returns the message of a question that has no answer.
pub(super) fn error_text(error: &InsideError) -> String {
    match error {
        InsideError::NoNetwork(vni) => format!("there is no virtual network {vni}"),
        InsideError::NoHost(key) => format!(
            "no endpoint of VNI {} has the address {}: say with --host which host sends",
            key.vni, key.address
        ),
        InsideError::NoEntrance(host) => {
            format!("the overlay has no entrance that host {host} could send to")
        }
    }
}

/// The endpoints of a packet in a virtual network, the overlay packet that goes on, and the kernel
/// tier's answer.
pub(super) fn lines(
    carried: &Carried,
    flow: &Flow,
    kernel_tier: Option<&str>,
) -> Vec<(&'static str, String)> {
    let (source, destination) = (flow.source_address(), flow.destination_address());
    let endpoint = |address: Address, found: &Option<Found>| match found {
        Some(found) => format!("{address} is on host {}", found.host),
        None => format!("{address} is no endpoint of VNI {}", carried.vni),
    };
    let mut lines = vec![
        ("endpoint", endpoint(source, &carried.from)),
        ("", endpoint(destination, &carried.to)),
    ];
    if let Some(onward) = &carried.onward {
        let text = format!("{}: goes on as {}", carried.overlay, flow_text(onward));
        lines.push(("overlay", text));
    }
    lines.extend(kernel_tier.map(|answer| ("kernel tier", answer.to_owned())));
    lines
}
