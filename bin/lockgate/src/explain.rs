//! `lockgate explain`: what the walk would do with a flow, and why.

mod flow;

use std::path::{Path, PathBuf};

use control::{ReplayKeys, Severity, Validated};
use dataplane::explain::{Arrival, Consultation, Explanation, explain};
use dataplane::{
    DropReason, Generation, HostService, NextHopId, PortId, PortInfo, Prefix, RouteTarget, SaSet,
    SetIndex, Side, Snapshot, Verdict,
};
use ipsec::OutboundSa;
use policy::selector::protocol_text;
use policy::{Action, AddressRange, Direction, Match, Policy, SaSetId, UpperSelector};
use serde_json::{Value, json};
use wire::flow::protocol;
use wire::{Address, Family, Flow, Upper};

use crate::failure::{Failure, Usage};
use crate::output::{print, print_json};

pub(crate) use flow::FlowError;

/// Says what the walk would do with a flow, which policy decides, which ones that policy beat, and
/// how the packet leaves. Nothing is sent, sealed or counted. Not judged, because a flow does not
/// say them: checksums, hop limit, size, and whether neighbours answer.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The port that the packet comes in by ("host": from this machine itself)
    #[arg(long = "in", value_name = "PORT")]
    port: String,
    /// The packet came sealed from this peer and was opened
    #[arg(long, value_name = "PEER")]
    from_peer: Option<String>,
    /// The packet is a later fragment: its ports are in another one
    #[arg(long)]
    fragment: bool,
    /// tcp, udp, icmp/8/0, icmpv6/128/0, esp, … or a number
    #[arg(value_name = "PROTO")]
    protocol: String,
    /// Source address, with a port if the protocol has ports (else 49152 is taken)
    #[arg(value_name = "SRC[:PORT]")]
    source: String,
    /// Destination address, with a port if the protocol has ports
    #[arg(value_name = "DST[:PORT]")]
    destination: String,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  lockgate explain --config a.toml --in lan tcp 10.1.0.5:1000 10.2.0.9:443
  lockgate explain --config a.toml --in lan icmp/8/0 10.1.0.5 10.2.0.9
  lockgate explain --config a.toml --in lan udp [2001:db8:1::5]:53 [2001:db8:2::9]:53
  lockgate explain --config a.toml --in wan --from-peer berlin tcp 10.2.0.9:443 10.1.0.5:1000";

/// Prints the explanation; succeeds whatever the verdict is.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let asked = if args.fragment { flow::Asked::LaterFragment } else { flow::Asked::Whole };
    let flow =
        flow::parse(&args.protocol, &args.source, &args.destination, asked).map_err(Usage::from)?;
    let Loaded { validated, snapshot, spis } = load(&args.config)?;
    let port = port_named(&snapshot, &args.port)?;
    let arrival = match &args.from_peer {
        None => Arrival::Clear(port),
        Some(peer) => Arrival::Opened(port, set_of_peer(&snapshot, peer)?),
    };
    check_question(&snapshot, arrival, &flow)?;
    let told = explain(&snapshot, arrival, flow);
    let story = Story { validated: &validated, snapshot: &snapshot, arrival, flow, told, spis };
    match args.json {
        true => print_json(&story.json()),
        false => print(&story.text()),
    }
    Ok(())
}

struct Loaded {
    validated: Validated,
    snapshot: Snapshot,
    spis: Spis,
}

/// Whether the snapshot's SPIs are those of the key files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spis {
    Configured,
    Unknown,
}

/// Loads a configuration and compiles it. The keys are only there for their SPIs: without them it
/// goes on with a warning, so that who may not read keys can ask too.
fn load(file: &Path) -> Result<Loaded, Failure> {
    let parsed = control::read(file)?;
    let (keys, spis) = match parsed.read_keys(control::base_of(file)) {
        Ok((keys, _)) => (keys.for_replay(&parsed.validated, &[])?.0, Spis::Configured),
        Err(errors) => {
            let first = errors.problems.iter().find(|problem| problem.severity == Severity::Error);
            let why = first.map_or(String::new(), |problem| problem.mistake.to_string());
            let more = match errors.errors() + errors.untold {
                0 | 1 => String::new(),
                all => format!(" (and {} more)", all - 1),
            };
            eprintln!("warning: keys not read: {why}{more}; SPIs unknown");
            (ReplayKeys::stand_ins(&parsed.validated)?, Spis::Unknown)
        }
    };
    let validated = parsed.validated;
    let snapshot = validated
        .compile(keys, Generation(1))
        .map_err(|error| Failure::Compile { file: file.into(), error })?;
    Ok(Loaded { validated, snapshot, spis })
}

/// The port of that name, or the names there are.
pub(crate) fn port_named(snapshot: &Snapshot, name: &str) -> Result<PortId, Failure> {
    snapshot.port_named(name).ok_or_else(|| Failure::Unknown {
        what: "port",
        name: name.to_owned(),
        known: snapshot.ports().iter().map(|port| port.name.clone()).collect(),
    })
}

/// The SA set with this number.
pub(crate) fn set_of(snapshot: &Snapshot, id: SaSetId) -> Option<&SaSet> {
    snapshot.sets().iter().find(|set| set.id == id)
}

fn set_of_peer(snapshot: &Snapshot, peer: &str) -> Result<SetIndex, Failure> {
    let place = snapshot.sets().iter().position(|set| set.peer == peer);
    place.map(|place| SetIndex(place as u32)).ok_or_else(|| Failure::Unknown {
        what: "peer",
        name: peer.to_owned(),
        known: snapshot.sets().iter().map(|set| set.peer.clone()).collect(),
    })
}

/// Refuses what a flow cannot answer, because its packets say more than the flow does.
fn check_question(snapshot: &Snapshot, arrival: Arrival, flow: &Flow) -> Result<(), Usage> {
    let is_unprotected = |port: &PortInfo| port.side == Side::Unprotected;
    match arrival {
        Arrival::Opened(port, _) if !is_unprotected(snapshot.port(port)) => {
            let ports = snapshot.ports().iter().filter(|port| is_unprotected(port));
            let unprotected = ports.map(|port| port.name.clone()).collect();
            Err(Usage::PeerByPort { port: snapshot.port(port).name.clone(), unprotected })
        }
        Arrival::Opened(..) if wire::icmp::is_error(flow) => Err(Usage::IcmpErrorFromPeer),
        Arrival::Clear(port)
            if is_unprotected(snapshot.port(port))
                && flow.protocol == protocol::ESP
                && snapshot.routes().lookup(flow.destination_address())
                    == Some(RouteTarget::Local) =>
        {
            Err(match flow.upper {
                Upper::Fragment => Usage::EspFragmentToUs,
                _ => Usage::EspToUs,
            })
        }
        _ => Ok(()),
    }
}

/// An explanation with what its numbers mean.
struct Story<'a> {
    validated: &'a Validated,
    snapshot: &'a Snapshot,
    arrival: Arrival,
    flow: Flow,
    told: Explanation,
    spis: Spis,
}

impl Story<'_> {
    fn port_name(&self, port: PortId) -> &str {
        &self.snapshot.port(port).name
    }

    fn peer_name(&self, set: SetIndex) -> &str {
        &self.snapshot.sets()[set.0 as usize].peer
    }

    fn text(&self) -> String {
        let mut lines = vec![("packet", self.packet())];
        lines.push(("verdict", self.verdict()));
        if let Verdict::Drop(reason) = self.told.verdict {
            lines.push(("", format!("{}: {}", reason.name(), reason.help())));
        }
        for consultation in &self.told.consultations {
            let way = match consultation.direction {
                Direction::Inbound => "inbound",
                Direction::Outbound => "outbound",
            };
            lines.push((way, self.decided(consultation)));
            for beaten in &consultation.beaten {
                let policy = policy_text(self.snapshot, self.snapshot.spd().policy(*beaten));
                lines.push(("", format!("beat {policy}")));
            }
        }
        match self.let_through() {
            Some(how) => lines.push(("policies", how)),
            None if self.told.consultations.is_empty() => {
                lines.push(("policies", "none was asked".into()));
            }
            None => {}
        }
        lines.push(("route", self.route()));
        lines.extend(self.leaving());
        lines.push(("tier", "classifier".into()));
        lines.push(("generation", self.snapshot.generation().0.to_string()));
        lines.iter().map(|(name, text)| format!("{name:<11} {text}\n")).collect()
    }

    fn packet(&self) -> String {
        let flow = flow::text(&self.flow);
        let (port, how) = match self.arrival {
            Arrival::Clear(port) if self.snapshot.host() == Some(port) => {
                return format!("{flow}, from this machine itself");
            }
            Arrival::Clear(port) => (port, "in clear".to_owned()),
            Arrival::Opened(port, set) => {
                (port, format!("sealed by peer {} and opened", self.peer_name(set)))
            }
        };
        let side = side_text(self.snapshot.port(port).side);
        format!("{flow}, received by {side} port {} {how}", self.port_name(port))
    }

    fn verdict(&self) -> String {
        match self.told.verdict {
            Verdict::Forward(port) => {
                let side = side_text(self.snapshot.port(port).side);
                format!("FORWARD: leaves in clear by {side} port {}", self.port_name(port))
            }
            Verdict::Protect(set) => {
                let egress = self.told.egress.map_or("no port", |port| self.port_name(port));
                format!("PROTECT: sealed for peer {}, leaves by port {egress}", self.peer_name(set))
            }
            Verdict::Host => "HOST: handed to Linux on this machine".into(),
            Verdict::Drop(_) => "DROP".into(),
            Verdict::Hold(_) => "HOLD: waits for the MAC address of its next hop".into(),
            Verdict::Consumed => "CONSUMED: replaced by its fragments".into(),
        }
    }

    fn decided(&self, consultation: &Consultation) -> String {
        let text = |policy| policy_text(self.snapshot, self.snapshot.spd().policy(policy));
        match consultation.answer {
            Match::Policy(policy) => format!("decided by {}", text(policy)),
            Match::FragmentPorts(policy) => {
                format!("stopped by {}, which asks for what a later fragment lacks", text(policy))
            }
            Match::None => "no policy matches".into(),
        }
    }

    /// What let a clear packet from outside through to this machine, if something did: no policy
    /// is asked then.
    fn let_through(&self) -> Option<String> {
        let Arrival::Clear(port) = self.arrival else { return None };
        let (port, told) = (self.snapshot.port(port), &self.told);
        if port.side == Side::Protected || told.verdict != Verdict::Host {
            return None;
        }
        if !told.consultations.is_empty() {
            return None;
        }
        let Some(service) = port.allow_host.iter().find(|service| covers(service, &self.flow))
        else {
            return Some("none was asked: neighbour discovery is always let through".into());
        };
        let as_ike = match self.flow.upper {
            Upper::Ports { destination: 4500, .. } if self.flow.protocol == protocol::UDP => {
                ", taken for IKE (zero marker)"
            }
            _ => "",
        };
        Some(format!(
            "none was asked: let through by `allow_host` of port {}: {}{as_ike}",
            port.name,
            control::service_text(service),
        ))
    }

    fn route(&self) -> String {
        let Some(target) = self.told.route else {
            return match self.told.verdict {
                Verdict::Drop(DropReason::NoRoute) => "none".into(),
                _ => "not looked up".into(),
            };
        };
        let prefix = self.prefix(self.flow.destination_address(), target);
        format!("{prefix}{}", self.target_text(target))
    }

    fn target_text(&self, target: RouteTarget) -> String {
        match target {
            RouteTarget::Local => "our own address".into(),
            RouteTarget::Broadcast => "a broadcast address".into(),
            RouteTarget::Blackhole => "blackhole".into(),
            RouteTarget::Elsewhere => "a netdev that is no port".into(),
            RouteTarget::Via(hop) => self.hop_text(hop),
        }
    }

    fn hop_text(&self, hop: NextHopId) -> String {
        let hop = self.snapshot.next_hop(hop);
        let port = self.port_name(hop.port);
        match hop.gateway {
            Some(gateway) => format!("via {gateway} by port {port}"),
            None => format!("on the link of port {port}"),
        }
    }

    /// The prefix of the file that gave a forwarding or blackhole route, with an arrow.
    fn prefix(&self, destination: Address, target: RouteTarget) -> String {
        if matches!(target, RouteTarget::Local | RouteTarget::Broadcast) {
            return String::new();
        }
        let connected = self.validated.ports.iter().flat_map(|port| &port.addresses);
        let connected = connected.map(|address| (address.network(), address.length));
        let routed = self.validated.routes.iter().map(|route| {
            let Prefix { address, length } = route.to;
            (AddressRange::network(address, length), length)
        });
        let longest = connected
            .chain(routed)
            .filter(|(range, _)| range.contains(destination))
            .max_by_key(|(_, length)| *length);
        longest.map_or(String::new(), |(range, _)| format!("{range} "))
    }

    /// How it leaves: port, MTU, and for a sealed packet tunnel and SA.
    fn leaving(&self) -> Vec<(&'static str, String)> {
        let Some(port) = self.told.egress else { return Vec::new() };
        let mut lines = vec![("egress", format!("port {}", self.port_name(port)))];
        if let Verdict::Protect(set) = self.told.verdict {
            let set = &self.snapshot.sets()[set.0 as usize];
            let tunnel = set.tunnel;
            let target = self.snapshot.routes().lookup(tunnel.remote.into());
            let way = target.map_or("no route".into(), |target| self.target_text(target));
            lines.push(("tunnel", format!("{} -> {}, {way}", tunnel.local, tunnel.remote)));
            if let Some(sa) = set.outbound.first() {
                let sa = &self.snapshot.outbound()[sa.0 as usize];
                let spi = self.spi(sa).unwrap_or_else(|| "unknown".into());
                lines.push(("SA", format!("SPI {spi}, {}", sa.suite)));
            }
        }
        if let Some(mtu) = self.told.mtu {
            lines.push(("MTU", format!("{mtu} bytes, the largest packet that passes whole")));
        }
        lines
    }

    /// The SPI that a key file gives an SA.
    fn spi(&self, sa: &OutboundSa) -> Option<String> {
        (self.spis == Spis::Configured).then(|| sa.spi.to_string())
    }

    fn json(&self) -> Value {
        let told = &self.told;
        let (word, reason) = match told.verdict {
            Verdict::Forward(_) => ("forward", None),
            Verdict::Protect(_) => ("protect", None),
            Verdict::Host => ("host", None),
            Verdict::Hold(_) => ("hold", None),
            Verdict::Consumed => ("consumed", None),
            Verdict::Drop(reason) => ("drop", Some(reason)),
        };
        let set = match told.verdict {
            Verdict::Protect(set) => Some(&self.snapshot.sets()[set.0 as usize]),
            _ => None,
        };
        let tunnel = set.map(|set| set.tunnel);
        let tunnel = tunnel.map(|ends| json!({"local": ends.local, "remote": ends.remote}));
        let sa = set.and_then(|set| set.outbound.first());
        let sa = sa.map(|sa| &self.snapshot.outbound()[sa.0 as usize]);
        let consultations: Vec<Value> =
            told.consultations.iter().map(|asked| self.consultation_json(asked)).collect();
        json!({
            "flow": flow::text(&self.flow),
            "verdict": word,
            "reason": reason.map(|reason| reason.name()),
            "help": reason.map(|reason| reason.help()),
            "text": self.verdict(),
            "policies": consultations,
            "let_through": self.let_through(),
            "route": told.route.map(|_| self.route()),
            "egress": told.egress.map(|port| self.port_name(port)),
            "peer": set.map(|set| &set.peer),
            "tunnel": tunnel,
            "spi": sa.and_then(|sa| self.spi(sa)),
            "mtu": told.mtu,
            "tier": "classifier",
            "generation": self.snapshot.generation().0,
        })
    }

    fn consultation_json(&self, asked: &Consultation) -> Value {
        let name = |policy| self.snapshot.spd().policy(policy).name.clone();
        let (decided_by, for_ports) = match asked.answer {
            Match::Policy(policy) => (Some(name(policy)), false),
            Match::FragmentPorts(policy) => (Some(name(policy)), true),
            Match::None => (None, false),
        };
        let direction = match asked.direction {
            Direction::Inbound => "inbound",
            Direction::Outbound => "outbound",
        };
        json!({
            "direction": direction,
            "decided_by": decided_by,
            "fragment_lacks_ports": for_ports,
            "beat": asked.beaten.iter().map(|policy| name(*policy)).collect::<Vec<_>>(),
        })
    }
}

/// Whether `allow_host` means this flow by this entry.
fn covers(service: &HostService, flow: &Flow) -> bool {
    let port_fits = match (service.ports, flow.upper) {
        (Some(range), Upper::Ports { destination, .. }) => {
            (range.lo..=range.hi).contains(&destination)
        }
        (Some(_), upper) => upper == Upper::Fragment,
        (None, _) => true,
    };
    service.protocol == flow.protocol && port_fits
}

fn side_text(side: Side) -> &'static str {
    match side {
        Side::Protected => "protected",
        Side::Unprotected => "unprotected",
    }
}

/// A policy in one line.
fn policy_text(snapshot: &Snapshot, policy: &Policy) -> String {
    let action = match policy.action {
        Action::Bypass => "bypass".into(),
        Action::Discard => "discard".into(),
        Action::Protect(id) => match set_of(snapshot, id) {
            Some(set) => format!("protect with peer {}", set.peer),
            None => "protect".into(),
        },
    };
    let any = [AddressRange::any(Family::V4), AddressRange::any(Family::V6)];
    let ranges = |ranges: &[AddressRange]| match ranges {
        both if both == any => "any".into(),
        [first] => first.to_string(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
        [] => "nothing".into(),
    };
    let selector = &policy.selector;
    let upper = match &selector.upper {
        UpperSelector::Any => "",
        UpperSelector::Ports { .. } => " with ports",
        UpperSelector::Icmp(_) => " with types",
    };
    format!(
        "policy \"{}\" (priority {}: {action}, local {}, remote {}, {}{upper})",
        policy.name,
        policy.priority,
        ranges(&selector.local),
        ranges(&selector.remote),
        protocol_text(selector.protocol),
    )
}
