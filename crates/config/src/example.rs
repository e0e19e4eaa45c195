//! Packets in words, as examples of what policies decide.

use policy::Direction;
use policy::overlap::Example;
use policy::selector::protocol_text;
use wire::Upper;

/// `outbound tcp 10.1.0.1 port 1024 → 10.2.0.1 port 443`. `port_name` names the port of a place.
pub fn example_text<'n>(port_name: &dyn Fn(u16) -> &'n str, example: &Example) -> String {
    let Example { direction, ingress, flow } = example;
    let (source, destination) = (flow.source_address(), flow.destination_address());
    let protocol = match protocol_text(Some(flow.protocol)) {
        number if number.bytes().all(|byte| byte.is_ascii_digit()) => format!("protocol {number}"),
        name => name,
    };
    let way = match direction {
        Direction::Inbound => "inbound",
        Direction::Outbound => "outbound",
    };
    let mut text = match flow.upper {
        Upper::Ports { source: s, destination: d } => {
            format!("{way} {protocol} {source} port {s} → {destination} port {d}")
        }
        Upper::Icmp { kind, code } => {
            format!("{way} {protocol} {kind}/{code} {source} → {destination}")
        }
        Upper::None | Upper::Fragment => format!("{way} {protocol} {source} → {destination}"),
    };
    if let Some(place) = ingress {
        text.push_str(&format!(" from port {}", port_name(*place)));
    }
    text
}
