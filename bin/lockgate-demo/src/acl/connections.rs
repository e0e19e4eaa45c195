//! The scenes with `reflect` rules: both ends of a connection are heard until its rule is removed.
//! Two workers process the packets: those of the client come by other queues than the answers.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use dataplane::DropReason;
use netlab::inject::{inject, mac};
use netlab::sites::HOST_INTERFACE;
use netlab::{LabError, interrupt, iperf};
use serde_json::Value;
use socket2::{Domain, Socket, Type};
use wire::Family;
use wire::build::{PacketBuilder, tcp_flags};

use super::changes::under_tcp;
use super::groups::{Groups, Mode, Rule, http, ping, tcp_to};
use super::report::{ConnectionsReport, FloodReport};
use super::stage::{A, Equal, Expected, Reading, Stage, Target, answers, questions};
use super::traffic::Service::{Dns, Http, Https, Ping};
use super::traffic::{Addresses, FLOODED, Sent};
use crate::report::Check;

/// Counters of the rules of group `web`, and of packets that no rule matched.
const WEB_HTTP: &[&str] = &["web/http"];
const WEB_DNS: &[&str] = &["web/dns"];
const WEB_PING: &[&str] = &["web/ping", "web/ping6"];
const LAN_LAST: &[&str] = &["lan (in)"];
const LAN_OUT_LAST: &[&str] = &["lan (out)"];
const NO_MATCH: &[&str] = &["group_no_match"];
/// Port of the conversation whose rule goes, and of the connections that follow each other.
const TALK_PORT: u16 = 7100;
/// The client's port of the connections that follow each other.
const ONE_PORT: u16 = 40_000;
/// Connections from that port.
const REUSES: u32 = 5000;
/// Time for words that must come, and for words that must not.
const PATIENCE: Duration = Duration::from_secs(8);
const BRIEF: Duration = Duration::from_millis(700);
/// SYNs of the flood, each of an address and port of its own: about two seconds, beside the stream.
const FLOOD: u32 = 20_000;
/// SYNs of its control: more than half-open connections may be there.
const CONTROL: u32 = 3000;
/// Hosts of the client's network that the flood says it is from; the first one's address.
const SOURCES: u32 = 200;
const FIRST_SOURCE: u32 = 20;
/// Bounds of the TCP streams beside the restart and the flood.
const TCP_SECONDS: u32 = 4;
const TCP_BITS_PER_SECOND: u64 = 50_000_000;

/// Rules that reflect HTTP, DNS and pings.
fn web() -> Vec<Rule> {
    let dns = Rule::permit("dns", "protocol = \"udp\"\nto_ports = [\"53\"]");
    [&[http(), dns], ping().as_slice()].concat()
}

fn reflected(rules: Vec<Rule>) -> Vec<Rule> {
    rules.into_iter().map(Rule::reflect).collect()
}

/// A group for what comes by `lan`; nothing leaves by it that no rule matches.
fn from_lan(rules: &[Rule]) -> Groups {
    Groups::none().lan_in(&["web"]).lan_out(&["closed"]).group("web", Mode::Enforce, rules).group(
        "closed",
        Mode::Enforce,
        &[],
    )
}

/// The count of a rule that reflects: questions and answers.
fn both(counters: &'static [&'static str], services: &[super::traffic::Service]) -> Equal {
    let sent = services.iter().flat_map(|it| [Sent::Questions(*it), Sent::Answers(*it)]);
    Equal { counters, sent: sent.collect() }
}

/// Scene 6: answers to what a reflect rule let pass need no rule, in whichever direction it reads.
pub(super) fn reflect(stage: &mut Stage) -> Result<(), LabError> {
    stage.apply(&from_lan(&reflected(web())))?;
    let equal = || {
        vec![
            both(WEB_HTTP, &[Http]),
            both(WEB_DNS, &[Dns]),
            both(WEB_PING, &[Ping]),
            questions(NO_MATCH, &[Https]),
        ]
    };
    let at_lan = [equal(), vec![questions(LAN_LAST, &[Https])]].concat();
    let expected = Expected::answered(&[Http, Dns, Ping], at_lan);
    stage.expect("reflect rules of lan: their answers leave by it", &expected)?;

    stage.apply(&from_lan(&web()))?;
    let equal_without = vec![
        questions(WEB_PING, &[Ping]),
        answers(LAN_OUT_LAST, &[Ping]),
        answers(NO_MATCH, &[Ping]),
    ];
    let expected = Expected { asked: &[Ping], ..Expected::answered(&[], equal_without) };
    stage.expect("control: with permit rules no answer leaves by lan", &expected)?;

    let of_dmz = Groups::none()
        .dmz_out(&["web"])
        .dmz_in(&["closed"])
        .group("web", Mode::Enforce, &reflected(web()))
        .group("closed", Mode::Enforce, &[]);
    stage.apply(&of_dmz)?;
    let expected = Expected::answered(&[Http, Dns, Ping], equal());
    stage.expect("reflect rules out of dmz: their answers come by it", &expected)
}

/// Scene 7: a rule that goes takes its connections with it; the server that speaks first afterwards
/// gets nothing through.
pub(super) fn rule_goes(stage: &mut Stage) -> Result<(), LabError> {
    let talk = Rule::permit("talk", tcp_to(TALK_PORT)).reflect();
    let with = from_lan(std::slice::from_ref(&talk));
    let with_more = from_lan(&[talk, http().reflect()]);
    let without = from_lan(&[http().reflect()]);
    stage.apply(&with)?;
    let (mut client, mut server) = conversation(stage)?;
    let asked = says(&mut client, &mut server, PATIENCE)?;
    let told = says(&mut server, &mut client, PATIENCE)?;
    let known = known_as(stage, TALK_PORT)?;
    let ok = asked && told && known == ["established"];
    let detail = format!("both ends speak; shown as {}", known.join(", "));
    stage.note(Check { name: "a connection that a reflect rule let begin", ok, detail });

    stage.apply(&with_more)?;
    let still = says(&mut server, &mut client, PATIENCE)?;
    let detail = if still { "the server is heard" } else { "the server is not heard" };
    let name = "control: another rule comes, and the connection goes on";
    stage.note(Check { name, ok: still, detail: detail.to_owned() });

    stage.apply(&without)?;
    let before = stage.reading(Target::Dmz)?;
    let heard = says(&mut server, &mut client, BRIEF)?;
    let after = stage.reading(Target::Dmz)?;
    let dropped = after.counted_since(&before, NO_MATCH);
    let known = known_as(stage, TALK_PORT)?;
    let ok = !heard && dropped > 0 && known.is_empty();
    let detail = format!(
        "the server speaks first: {}; {dropped} packets dropped, {} connections left",
        if heard { "heard" } else { "0 bytes" },
        known.len()
    );
    stage.note(Check { name: "the rule goes: so does its connection, both ways", ok, detail });

    stage.apply(&Groups::none())?;
    // TCP sends it again.
    let heard = hears(&mut client, PATIENCE)?;
    let detail = if heard { "it arrives" } else { "it does not arrive" };
    let name = "control: without groups what the server said arrives";
    stage.note(Check { name, ok: heard, detail: detail.to_owned() });
    Ok(())
}

/// Scene 8: connections from one port that follow each other.
pub(super) fn port_reuse(stage: &mut Stage) -> Result<(), LabError> {
    stage.apply(&from_lan(&[Rule::permit("talk", tcp_to(TALK_PORT)).reflect()]))?;
    let addresses = Target::Dmz.addresses();
    let to = SocketAddr::new(addresses.of(Family::V4), TALK_PORT);
    let failed = LabError::socket("cannot listen");
    let listener = stage.server.enter(|| TcpListener::bind(to))?.map_err(failed)?;
    let accepting = std::thread::spawn(move || {
        let mut accepted = 0;
        // Ends with the connection that says so.
        while let Ok((mut connection, _)) = listener.accept() {
            let mut word = [0];
            match connection.read(&mut word) {
                Ok(1) if word == *b"." => break,
                _ => accepted += 1,
            }
        }
        accepted
    });
    let begun = Instant::now();
    let opened = stage.client().enter(|| (0..REUSES).filter(|_| reuse(to).is_ok()).count())?;
    let took = begun.elapsed();
    let last = stage.client().enter(|| TcpStream::connect_timeout(&to, PATIENCE))?;
    last.and_then(|mut last| last.write_all(b".")).map_err(LabError::socket("cannot end"))?;
    let accepted: u32 = accepting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    stage.note(Check {
        name: "one port of the client, one connection after the other",
        ok: opened == REUSES as usize && accepted == REUSES,
        detail: format!(
            "{opened} of {REUSES} opened, {accepted} accepted, in {:.1} s",
            took.as_secs_f64()
        ),
    });
    Ok(())
}

/// Opens a connection from the one port, and resets it.
fn reuse(to: SocketAddr) -> std::io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    let any: IpAddr = std::net::Ipv4Addr::UNSPECIFIED.into();
    socket.bind(&SocketAddr::new(any, ONE_PORT).into())?;
    socket.connect_timeout(&to.into(), PATIENCE)?;
    socket.set_linger(Some(Duration::ZERO))
}

/// Scene 11: established connections outlive a restart of the daemon, and one that is cleared does
/// not.
pub(super) fn restart(stage: &mut Stage) -> Result<(), LabError> {
    let rules = [Rule::permit("talk", tcp_to(TALK_PORT)), Rule::permit("iperf", tcp_to(5201))];
    stage.apply(&from_lan(&rules.map(Rule::reflect)))?;
    let (mut client, mut server) = conversation(stage)?;
    let asked = says(&mut client, &mut server, PATIENCE)?;
    let iperf = iperf::Server::start(&stage.server)?;
    let to = Target::Dmz.addresses().of(Family::V4).to_string();
    let tcp = iperf::start_bounded_tcp(stage.client(), &to, TCP_SECONDS, TCP_BITS_PER_SECOND)?;
    interrupt::sleep(Duration::from_millis(500))?;
    let begun = Instant::now();
    stage.restart(A)?;
    let took = begun.elapsed();
    let heard = says(&mut server, &mut client, PATIENCE)?;
    let bytes = tcp.finish()?;
    drop(iperf);
    stage.note(Check {
        name: "a restart of the daemon: established connections go on",
        ok: asked && heard && bytes > 0,
        detail: format!(
            "stopped and started in {:.1} s; the server speaks first: {}; a stream over it \
             received {:.1} MB",
            took.as_secs_f64(),
            if heard { "heard" } else { "not heard" },
            bytes as f64 / 1e6
        ),
    });
    let port = TALK_PORT.to_string();
    let cleared = stage.gateways.daemon(A)?.ask(&["connection", "clear", "port", &port])?;
    let heard = says(&mut server, &mut client, BRIEF)?;
    let detail = format!(
        "{} cleared; the server speaks first: {}",
        cleared["removed"],
        if heard { "heard" } else { "0 bytes" }
    );
    let name = "control: a connection that is cleared does not go on";
    let ok = cleared["removed"].as_u64() >= Some(1) && !heard;
    stage.note(Check { name, ok, detail });
    // TCP sends it again: nothing of it is under way in later scenes.
    stage.apply(&Groups::none())?;
    hears(&mut client, PATIENCE).map(drop)
}

/// Scene 12: a flood of SYNs evicts its own half-open connections; an established stream loses no
/// packet.
pub(super) fn flood(stage: &mut Stage) -> Result<(), LabError> {
    let tcp = || Rule::permit("flooded", tcp_to(FLOODED));
    let stream = Rule::permit("iperf", tcp_to(5201)).reflect();
    stage.apply(&from_lan(&[stream, tcp().reflect()]))?;
    let server = iperf::Server::start(&stage.server)?;
    let before = stage.reading(Target::Dmz)?;
    let to = Target::Dmz.addresses().of(Family::V4);
    let mut seen = (0, ConnectionsReport::default());
    let bytes = under_tcp(stage, &to.to_string(), |stage| {
        interrupt::sleep(Duration::from_millis(500))?;
        seen = (send_flood(stage, FLOOD)?, ConnectionsReport::of(&stage.table()?));
        Ok(())
    })?;
    drop(server);
    let (sent, table) = seen;
    let flood = FloodReport {
        stream_mbps: bytes as f64 * 8.0 / 1e6 / f64::from(TCP_SECONDS),
        ..flooded(stage, &before, sent)?
    };
    let ok = bytes > 0
        && flood.stream_arrived == flood.stream_sent
        && flood.arrived == sent
        && flood.refused == 0
        && table.half_open <= table.half_open_max
        && table.replaced > 0;
    let detail =
        format!("{}; {} of {} half-open", flood.text(), table.half_open, table.half_open_max);
    stage.report.connections = table;
    stage.report.flood = flood;
    let name = "a flood of SYNs is bounded, an established stream goes on";
    stage.note(Check { name, ok, detail });

    stage.apply(&Groups::none().lan_in(&["web"]).group("web", Mode::Enforce, &[tcp()]))?;
    let before = stage.reading(Target::Dmz)?;
    let sent = send_flood(stage, CONTROL)?;
    let passed = flooded(stage, &before, sent)?;
    let name = "control: past a rule that only permits, every SYN arrives";
    let detail = format!("{} of {sent} SYNs arrived, {} refused", passed.arrived, passed.refused);
    stage.note(Check { name, ok: passed.arrived == sent && passed.refused == 0, detail });
    // Half-open connections would stay for 30 seconds.
    let port = FLOODED.to_string();
    stage.gateways.daemon(A)?.ask(&["connection", "clear", "port", &port]).map(drop)
}

/// Waits until the counts of a flood are those of all its packets.
fn flooded(stage: &Stage, before: &Reading, sent: u64) -> Result<FloodReport, LabError> {
    let end = Instant::now() + PATIENCE;
    loop {
        let after = stage.reading(Target::Dmz)?;
        let of = |what| after.sent_since(before, &[what]);
        let flood = FloodReport {
            sent,
            arrived: of(Sent::FloodArrived),
            refused: after.counted_since(before, &[DropReason::ConnectionLimit.name()]),
            stream_sent: of(Sent::Stream),
            stream_arrived: of(Sent::StreamArrived),
            stream_mbps: 0.0,
        };
        let is_settled =
            flood.arrived + flood.refused == sent && flood.stream_sent == flood.stream_arrived;
        if is_settled || Instant::now() > end {
            return Ok(flood);
        }
        interrupt::sleep(Duration::from_millis(50))?;
    }
}

/// Sends SYNs, each from another address and port of the client's network. Returns how many.
fn send_flood(stage: &Stage, count: u32) -> Result<u64, LabError> {
    let gateway = mac(&stage.gateways.site(A).gateway, "lan")?;
    let client = mac(stage.client(), HOST_INTERFACE)?;
    let network = u32::from(Addresses::of_host(A).v4) & !0xff;
    let to = Target::Dmz.addresses().of(Family::V4);
    let syn = |number: u32| {
        let from: IpAddr = Ipv4Addr::from_bits(network + FIRST_SOURCE + number % SOURCES).into();
        let port = 1024 + (number / SOURCES) as u16;
        let packet = PacketBuilder::new(from.into(), to.into());
        packet.tcp_with(port, FLOODED, tcp_flags::SYN, Some(1460)).frame(gateway, client, None)
    };
    let frames: Vec<Vec<u8>> = (0..count).map(syn).collect();
    Ok(inject(stage.client(), HOST_INTERFACE, &frames)? as u64)
}

/// Opens a TCP connection. Returns the client's and the server's end.
fn conversation(stage: &Stage) -> Result<(TcpStream, TcpStream), LabError> {
    let to = SocketAddr::new(Target::Dmz.addresses().of(Family::V4), TALK_PORT);
    let failed = |error| LabError::socket("the conversation cannot begin")(error);
    let listener = stage.server.enter(|| TcpListener::bind(to))?.map_err(failed)?;
    let client = stage.client().enter(|| TcpStream::connect_timeout(&to, PATIENCE))?;
    // The client has connected, so this does not wait.
    let client = client.map_err(failed)?;
    let (server, _) = listener.accept().map_err(failed)?;
    Ok((client, server))
}

/// Returns whether the other end hears a word in time.
fn says(from: &mut TcpStream, to: &mut TcpStream, patience: Duration) -> Result<bool, LabError> {
    let failed = |error| LabError::socket("a conversation failed")(error);
    from.write_all(b"word").map_err(failed)?;
    hears(to, patience)
}

/// Returns whether an end hears a word in time.
fn hears(end: &mut TcpStream, patience: Duration) -> Result<bool, LabError> {
    let failed = LabError::socket("a conversation failed");
    end.set_read_timeout(Some(patience)).map_err(failed)?;
    let mut word = [0; 4];
    Ok(end.read_exact(&mut word).is_ok())
}

/// The states of the connections to a port, as gateway A shows them.
fn known_as(stage: &Stage, port: u16) -> Result<Vec<String>, LabError> {
    let port = port.to_string();
    let shown = stage.gateways.daemon(A)?.ask(&["show", "connection", "port", &port])?;
    let list = shown["connections"].as_array().cloned().unwrap_or_default();
    let state = |it: &Value| it["state"].as_str().unwrap_or_default().to_owned();
    Ok(list.iter().map(state).collect())
}
