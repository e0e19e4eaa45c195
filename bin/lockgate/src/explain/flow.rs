//! A flow as it is written on the command line: `tcp 10.1.0.5:1000 10.2.0.9:443`,
//! `icmp/8/0 10.1.0.5 10.2.0.9`, `udp [2001:db8::1]:53 [2001:db8::2]:53`,
//! `esp 192.0.2.1 192.0.2.2`.

use std::net::IpAddr;

use policy::TcpSegments;
use policy::selector::{parse_protocol, protocol_text};
use wire::flow::protocol;
use wire::{Address, Flow, Upper};

/// The source port if none is written: the first that clients choose from (RFC 6335 §6).
pub(crate) const EPHEMERAL_PORT: u16 = 49152;

/// A reason why the arguments describe no flow. The command line is at fault; each message says
/// what to write.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum FlowError {
    /// No protocol of that name or number.
    #[error(
        "unknown protocol \"{0}\": write tcp, udp, icmp/8/0, icmpv6/128/0, … or a number up to 255"
    )]
    UnknownProtocol(String),
    /// A packet has one protocol.
    #[error("a packet has one protocol: write tcp, udp, icmp/8/0, icmpv6/128/0, … or a number")]
    AnyProtocol,
    /// Neither ADDRESS nor ADDRESS:PORT.
    #[error(
        "\"{0}\" is not an address: write 10.1.0.5, 10.1.0.5:443, 2001:db8::1 or [2001:db8::1]:443"
    )]
    NotAnEnd(String),
    /// A port above 65535.
    #[error("port {0} is too high: ports go from 0 to 65535")]
    PortTooHigh(String),
    /// An ICMP type or code above 255.
    #[error("ICMP {0} {1} is too high: types and codes go from 0 to 255")]
    MessageTooHigh(&'static str, String),
    /// The ends are of two families.
    #[error("{0} and {1} are of two families")]
    MixedFamilies(IpAddr, IpAddr),
    /// A port for a protocol that has none.
    #[error("{0} has no ports")]
    NoPorts(String),
    /// A kind of TCP segments for another protocol.
    #[error("--tcp is for TCP: {0} has no such segments")]
    NotTcp(String),
    /// A protocol with ports and none written.
    #[error("{0} has ports: write the destination's, {1}:PORT")]
    PortMissing(String, String),
    /// ICMP without its message, or a message that is none.
    #[error("{0} needs its type and code: {0}/8/0 for an echo request (icmpv6/128/0)")]
    IcmpMessage(String),
    /// An ICMP message behind a protocol that has none.
    #[error("{0} has no type and code")]
    NoMessages(String),
    /// ICMP in IPv6, ICMPv6 in IPv4.
    #[error("in {family} it is {right}", family = if *.ipv6 { "IPv6" } else { "IPv4" })]
    IcmpOfOtherFamily {
        /// True if the addresses are IPv6.
        ipv6: bool,
        /// The protocol to write instead.
        right: &'static str,
    },
}

/// The packets asked about. Later fragments have neither ports nor ICMP types.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// Whole packets or first fragments; of TCP those that open a connection.
    Whole,
    /// Whole TCP segments of this kind.
    Segments(TcpSegments),
    /// A packet's later fragments.
    LaterFragment,
}

/// Reads a flow.
///
/// # Errors
/// [`FlowError`].
pub(crate) fn parse(
    proto: &str,
    source: &str,
    destination: &str,
    asked: Asked,
) -> Result<Flow, FlowError> {
    let (name, message) = match proto.split_once('/') {
        Some((name, message)) => (name, Some(message)),
        None => (proto, None),
    };
    let number = parse_protocol(name).map_err(|_| FlowError::UnknownProtocol(name.to_owned()))?;
    let number = number.ok_or(FlowError::AnyProtocol)?;
    let ((source_ip, source_port), (destination_ip, destination_port)) =
        (end(source)?, end(destination)?);
    if source_ip.is_ipv4() != destination_ip.is_ipv4() {
        return Err(FlowError::MixedFamilies(source_ip, destination_ip));
    }
    let ipv6 = source_ip.is_ipv6();
    match number {
        protocol::ICMP if ipv6 => {
            return Err(FlowError::IcmpOfOtherFamily { ipv6, right: "icmpv6" });
        }
        protocol::ICMPV6 if !ipv6 => {
            return Err(FlowError::IcmpOfOtherFamily { ipv6, right: "icmp" });
        }
        _ => {}
    }
    let is_icmp = matches!(number, protocol::ICMP | protocol::ICMPV6);
    let name = || protocol_text(Some(number));
    if message.is_some() && !is_icmp {
        return Err(FlowError::NoMessages(name()));
    }
    let opens = match asked {
        Asked::Segments(_) if number != protocol::TCP => return Err(FlowError::NotTcp(name())),
        Asked::Segments(segments) => segments == TcpSegments::New,
        Asked::Whole => number == protocol::TCP,
        Asked::LaterFragment => false,
    };
    let upper = match asked {
        Asked::LaterFragment => Upper::Fragment,
        _ if is_icmp => icmp(message)?.ok_or_else(|| FlowError::IcmpMessage(name()))?,
        _ if protocol::has_ports(number) => Upper::Ports {
            source: source_port.unwrap_or(EPHEMERAL_PORT),
            destination: destination_port.ok_or_else(|| {
                let ip = if ipv6 { format!("[{destination_ip}]") } else { destination.to_owned() };
                FlowError::PortMissing(name(), ip)
            })?,
        },
        Asked::Whole | Asked::Segments(_) => Upper::None,
    };
    if !protocol::has_ports(number) && (source_port.is_some() || destination_port.is_some()) {
        return Err(FlowError::NoPorts(name()));
    }
    let (source, destination) = (Address::from(source_ip), Address::from(destination_ip));
    Ok(Flow {
        family: source.family,
        source: source.value,
        destination: destination.value,
        protocol: number,
        upper,
        opens,
    })
}

/// `8/0`, or `8` with code 0.
fn icmp(message: Option<&str>) -> Result<Option<Upper>, FlowError> {
    let Some(message) = message else { return Ok(None) };
    let (kind, code) = message.split_once('/').unwrap_or((message, "0"));
    let byte = |what, text: &str| match text.parse::<u8>() {
        Ok(byte) => Ok(Some(byte)),
        Err(_) if is_number(text) => Err(FlowError::MessageTooHigh(what, text.to_owned())),
        Err(_) => Ok(None),
    };
    let message = byte("type", kind)?.zip(byte("code", code)?);
    Ok(message.map(|(kind, code)| Upper::Icmp { kind, code }))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// One end: an address, perhaps with a port.
fn end(text: &str) -> Result<(IpAddr, Option<u16>), FlowError> {
    let error = || FlowError::NotAnEnd(text.to_owned());
    if let Ok(ip) = text.parse() {
        return Ok((ip, None));
    }
    let (ip, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once("]:").ok_or_else(error)?,
        None => text.rsplit_once(':').ok_or_else(error)?,
    };
    let ip: IpAddr = ip.parse().map_err(|_| error())?;
    // 2001:db8::1:443 reads as an address above; what comes here without brackets is IPv4.
    if ip.is_ipv6() != text.starts_with('[') || !is_number(port) {
        return Err(error());
    }
    Ok((ip, Some(port.parse().map_err(|_| FlowError::PortTooHigh(port.to_owned()))?)))
}

#[cfg(test)]
mod tests {
    use control::flow_text as text;

    use super::*;

    fn ask(proto: &str, source: &str, destination: &str) -> Result<String, FlowError> {
        parse(proto, source, destination, Asked::Whole).map(|flow| text(&flow))
    }

    #[test]
    fn flows_read_as_they_are_written() {
        for (proto, source, destination, expected) in [
            ("tcp", "10.1.0.5:1000", "10.2.0.9:443", "tcp 10.1.0.5:1000 -> 10.2.0.9:443"),
            ("TCP", "10.1.0.5:1000", "10.2.0.9:443", "tcp 10.1.0.5:1000 -> 10.2.0.9:443"),
            ("17", "10.1.0.5", "10.2.0.9:53", "udp 10.1.0.5:49152 -> 10.2.0.9:53"),
            ("tcp", "[2001:db8::1]:7", "[::2]:8", "tcp [2001:db8::1]:7 -> [::2]:8"),
            ("icmp/8/0", "10.1.0.5", "10.2.0.9", "icmp/8/0 10.1.0.5 -> 10.2.0.9"),
            ("icmpv6/128", "2001:db8::1", "::2", "icmpv6/128/0 2001:db8::1 -> ::2"),
            ("gre", "10.1.0.5", "10.2.0.9", "gre 10.1.0.5 -> 10.2.0.9"),
        ] {
            assert_eq!(ask(proto, source, destination).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn segments_of_tcp_open_a_connection_unless_another_kind_is_asked_about() {
        let opens = |proto: &str, asked| {
            parse(proto, "10.1.0.5:1", "10.2.0.9:443", asked).map(|flow| flow.opens)
        };
        for (proto, asked, expected) in [
            ("tcp", Asked::Whole, true),
            ("tcp", Asked::Segments(TcpSegments::New), true),
            ("tcp", Asked::Segments(TcpSegments::Established), false),
            ("tcp", Asked::LaterFragment, false),
            ("udp", Asked::Whole, false),
        ] {
            assert_eq!(opens(proto, asked), Ok(expected), "{proto} {asked:?}");
        }
        let error = opens("udp", Asked::Segments(TcpSegments::New)).unwrap_err().to_string();
        assert_eq!(error, "--tcp is for TCP: udp has no such segments");
    }

    #[test]
    fn what_is_no_flow_is_refused_by_what_is_wrong() {
        for (proto, source, destination, expected) in [
            ("any", "10.1.0.5", "10.2.0.9", "one protocol"),
            ("tpc", "10.1.0.5", "10.2.0.9", "unknown protocol \"tpc\": write tcp, udp"),
            ("tcp", "10.1.0.5", "10.2.0.9", "write the destination's, 10.2.0.9:PORT"),
            ("tcp", "::1", "::2", "write the destination's, [::2]:PORT"),
            ("tcp", "10.1.0.5", "::2", "two families"),
            ("tcp", "10.1.0.5", "10.2.0.9:65536", "port 65536 is too high"),
            ("tcp", "10.1.0.5", "10.2.0.9:99999", "ports go from 0 to 65535"),
            ("tcp", "10.1.0.5", "10.2.0.9:", "not an address"),
            ("tcp", "10.1.0.5", "10.2.0.9:+1", "not an address"),
            ("tcp", "[10.1.0.5]:1", "10.2.0.9:1", "not an address"),
            ("esp", "10.1.0.5:1", "10.2.0.9", "no ports"),
            ("tcp/8/0", "10.1.0.5", "10.2.0.9:1", "no type and code"),
            ("icmp", "10.1.0.5", "10.2.0.9", "type and code"),
            ("icmp/x", "10.1.0.5", "10.2.0.9", "type and code"),
            ("icmp/300/0", "10.1.0.5", "10.2.0.9", "ICMP type 300 is too high"),
            ("icmp/3/256", "10.1.0.5", "10.2.0.9", "ICMP code 256 is too high"),
            ("icmp/8", "::1", "::2", "it is icmpv6"),
            ("icmpv6/128", "10.1.0.5", "10.2.0.9", "it is icmp"),
        ] {
            let error = ask(proto, source, destination).expect_err(proto).to_string();
            assert!(error.contains(expected), "{proto} {source} {destination}: {error}");
        }
    }
}
