//! The traffic that groups judge: four services, and the kernel's counts of what hosts send.
//!
//! nftables counts in the namespace of each host every packet that leaves it. Lockgate has no part
//! in these counts; its own are compared with them.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netlab::process;
use netlab::{LabError, Namespace};
use serde_json::Value;
use wire::Family;

/// The text that servers answer with.
const ANSWER: &[u8] = b"lockgate demo\n";
/// Time for an answer that must come.
const PATIENCE: Duration = Duration::from_secs(8);
/// Time for an answer that must not come. Below one second: TCP would send its SYN again.
const BRIEF: Duration = Duration::from_millis(500);
/// Time after which a question over UDP is sent again.
const AGAIN: Duration = Duration::from_millis(500);
/// Time between two looks of a server for somebody who asks.
const LOOK: Duration = Duration::from_millis(2);
/// Time for a command that changes or shows settings.
const SETTING: Duration = Duration::from_secs(60);

/// A service that the server offers and the client asks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Service {
    /// TCP port 80.
    Http,
    /// TCP port 443.
    Https,
    /// UDP port 53.
    Dns,
    /// ICMP and ICMPv6 echo.
    Ping,
}

impl Service {
    pub(super) const ALL: [Service; 4] =
        [Service::Http, Service::Https, Service::Dns, Service::Ping];

    /// Returns its name, as checks show it.
    pub(super) fn name(self) -> &'static str {
        ["tcp/80", "tcp/443", "udp/53", "ping"][self as usize]
    }

    /// The name of its counter.
    fn counter(self) -> &'static str {
        ["http", "https", "dns", "ping"][self as usize]
    }

    /// Protocol, source and destination of a question, for `lockgate explain`.
    pub(super) fn flow(self, from: IpAddr, to: IpAddr) -> [String; 3] {
        let protocol = match (self, from) {
            (Service::Http | Service::Https, _) => "tcp",
            (Service::Dns, _) => "udp",
            (Service::Ping, IpAddr::V4(_)) => "icmp/8/0",
            (Service::Ping, IpAddr::V6(_)) => "icmpv6/128/0",
        };
        let end = |address, port| match port {
            Some(port) => SocketAddr::new(address, port).to_string(),
            None => address.to_string(),
        };
        let port = self.port();
        [protocol.to_owned(), end(from, port.map(|_| 40_000)), end(to, port)]
    }

    fn port(self) -> Option<u16> {
        match self {
            Service::Http => Some(80),
            Service::Https => Some(443),
            Service::Dns => Some(53),
            Service::Ping => None,
        }
    }
}

/// Names services, for a check: `tcp/80, ping`.
pub(super) fn names(services: &[Service]) -> String {
    match services {
        [] => "nothing".to_owned(),
        services => services.iter().map(|it| it.name()).collect::<Vec<_>>().join(", "),
    }
}

/// Addresses of a host over IPv4 and IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Addresses {
    pub(super) v4: Ipv4Addr,
    pub(super) v6: Ipv6Addr,
}

impl Addresses {
    /// Those of the host in network `number`: `10.N.0.10` and `2001:db8:N::10`.
    pub(super) fn of_host(number: u8) -> Addresses {
        Addresses {
            v4: Ipv4Addr::new(10, number, 0, 10),
            v6: Ipv6Addr::new(0x2001, 0xdb8, number.into(), 0, 0, 0, 0, 0x10),
        }
    }

    /// Returns the address of a family.
    pub(super) fn of(self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.v4.into(),
            Family::V6 => self.v6.into(),
        }
    }
}

/// Servers of all services in one host, until it is dropped. The kernel answers pings.
#[derive(Debug)]
pub(super) struct Servers {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Servers {
    /// Opens the sockets; they take questions when this returns.
    pub(super) fn start(host: &Namespace, addresses: Addresses) -> Result<Servers, LabError> {
        let all = [addresses.v4.into(), addresses.v6.into()];
        let (tcp, udp) = host
            .enter(|| sockets(all))?
            .map_err(LabError::socket("cannot open a server's socket"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                tcp.iter().for_each(answer_connections);
                udp.iter().for_each(answer_datagrams);
                std::thread::sleep(LOOK);
            }
        });
        Ok(Servers { stop, thread: Some(thread) })
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It does nothing that can panic.
            let _ = thread.join();
        }
    }
}

fn sockets(addresses: [IpAddr; 2]) -> std::io::Result<(Vec<TcpListener>, Vec<UdpSocket>)> {
    let (mut tcp, mut udp) = (Vec::new(), Vec::new());
    for address in addresses {
        for port in [Service::Http, Service::Https].into_iter().filter_map(Service::port) {
            let listener = TcpListener::bind((address, port))?;
            listener.set_nonblocking(true)?;
            tcp.push(listener);
        }
        if let Some(port) = Service::Dns.port() {
            let socket = UdpSocket::bind((address, port))?;
            socket.set_nonblocking(true)?;
            udp.push(socket);
        }
    }
    Ok((tcp, udp))
}

/// Answers whoever has connected, and closes.
fn answer_connections(listener: &TcpListener) {
    while let Ok((mut connection, _)) = listener.accept() {
        // The answer fits into an empty socket's buffer: this never waits. A client that is gone
        // is its own loss.
        let _ = connection.set_nonblocking(false).and_then(|()| connection.write_all(ANSWER));
    }
}

fn answer_datagrams(socket: &UdpSocket) {
    let mut question = [0; 64];
    while let Ok((_, from)) = socket.recv_from(&mut question) {
        let _ = socket.send_to(ANSWER, from);
    }
}

/// The fate that a question must meet: it decides how long somebody waits for an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Answered,
    Silent,
}

/// Asks services over both families at the same time; each with the fate that it must meet.
/// Returns the fates that they met.
pub(super) fn ask(
    client: &Namespace,
    server: Addresses,
    wanted: &[(Service, Fate)],
) -> Result<Vec<(Service, Family, Fate)>, LabError> {
    std::thread::scope(|scope| {
        let questions: Vec<_> = wanted
            .iter()
            .flat_map(|&(service, fate)| [Family::V4, Family::V6].map(|it| (service, fate, it)))
            .map(|(service, fate, family)| {
                let to = server.of(family);
                let thread = scope.spawn(move || ask_one(client, service, to, fate));
                (service, family, thread)
            })
            .collect();
        let met = questions.into_iter().map(|(service, family, thread)| {
            let fate = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok((service, family, fate))
        });
        met.collect()
    })
}

fn ask_one(
    client: &Namespace,
    service: Service,
    to: IpAddr,
    wanted: Fate,
) -> Result<Fate, LabError> {
    let patience = match wanted {
        Fate::Answered => PATIENCE,
        Fate::Silent => BRIEF,
    };
    let is_answered = match (service, service.port()) {
        (Service::Http | Service::Https, Some(port)) => {
            client.enter(|| ask_tcp(SocketAddr::new(to, port), patience))?
        }
        (Service::Dns, Some(port)) => client
            .enter(|| ask_udp(SocketAddr::new(to, port), patience))?
            .map_err(LabError::socket("cannot ask over UDP"))?,
        _ => ping(client, to, wanted)?,
    };
    Ok(if is_answered { Fate::Answered } else { Fate::Silent })
}

/// Returns whether a TCP port accepts a connection.
pub(super) fn connects(client: &Namespace, to: SocketAddr) -> Result<bool, LabError> {
    client.enter(|| TcpStream::connect_timeout(&to, BRIEF).is_ok())
}

fn ask_tcp(to: SocketAddr, patience: Duration) -> bool {
    let Ok(mut connection) = TcpStream::connect_timeout(&to, patience) else { return false };
    let mut answer = Vec::new();
    let read = connection
        .set_read_timeout(Some(patience))
        .and_then(|()| connection.read_to_end(&mut answer));
    read.is_ok() && answer == ANSWER
}

fn ask_udp(to: SocketAddr, patience: Duration) -> std::io::Result<bool> {
    let unspecified: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((unspecified, 0))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(AGAIN.min(patience)))?;
    let end = Instant::now() + patience;
    let mut answer = [0; 64];
    while Instant::now() < end {
        socket.send(b"lockgate demo?\n")?;
        match socket.recv(&mut answer) {
            Ok(length) => return Ok(answer[..length] == *ANSWER),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Returns whether two pings were answered in time; they are repeated until then.
fn ping(client: &Namespace, to: IpAddr, wanted: Fate) -> Result<bool, LabError> {
    let seconds = match wanted {
        Fate::Answered => PATIENCE.as_secs(),
        Fate::Silent => 1,
    };
    let (to, seconds) = (to.to_string(), seconds.to_string());
    let words = ["ping", "-n", "-q", "-c", "2", "-i", "0.2", "-w", &seconds, &to];
    Ok(client.run(&words, PATIENCE + SETTING)?.status.success())
}

/// Packets that a host sends (or receives), counted by the kernel in its namespace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Sent {
    /// The client's packets to a service.
    Questions(Service),
    /// The server's packets from a service.
    Answers(Service),
    /// The client's packets to the server of iperf3.
    Stream,
    /// Those of them that reached the server.
    StreamArrived,
    /// The SYNs of the flood that reached the server.
    FloodArrived,
}

/// Counts of packets that left a host.
pub(super) type SentCounts = BTreeMap<Sent, u64>;

/// The port that the flood goes to. The server is silent there: it counts.
pub(super) const FLOODED: u16 = 7200;

/// Begins to count what leaves a host.
pub(super) fn count(host: &Namespace) -> Result<(), LabError> {
    let names = ["stream", "arrived", "flood_arrived"];
    let mut counters = names.map(|name| format!("counter {name} {{}}\n")).concat();
    let mut rules = "tcp dport 5201 counter name stream\n".to_owned();
    for service in Service::ALL {
        let name = service.counter();
        counters += &format!("counter to_{name} {{}}\ncounter from_{name} {{}}\n");
        rules += &match (service, service.port()) {
            (Service::Dns, Some(port)) => both_ends("udp", port, name),
            (_, Some(port)) => both_ends("tcp", port, name),
            (_, None) => ["icmp", "icmpv6"]
                .map(|protocol| {
                    format!(
                        "{protocol} type echo-request counter name to_{name}
                         {protocol} type echo-reply counter name from_{name}\n"
                    )
                })
                .concat(),
        };
    }
    let table = format!(
        "table inet demo {{
             {counters}
             chain sent {{
                 type filter hook output priority 0; policy accept;
                 {rules}
             }}
             chain received {{
                 type filter hook input priority 0; policy accept;
                 tcp dport 5201 counter name arrived
                 tcp dport {FLOODED} counter name flood_arrived drop
             }}
         }}"
    );
    let mut command = host.command("nft");
    command.args(["-f", "-"]);
    process::succeed_with_input(command, &table, SETTING).map(drop)
}

fn both_ends(protocol: &str, port: u16, name: &str) -> String {
    format!(
        "{protocol} dport {port} counter name to_{name}
         {protocol} sport {port} counter name from_{name}\n"
    )
}

/// Returns the counts of a host since [`count`]: of a client its questions, of a server its
/// answers.
pub(super) fn counted(host: &Namespace) -> Result<SentCounts, LabError> {
    let mut command = host.command("nft");
    command.args(["-j", "list", "counters", "table", "inet", "demo"]);
    let text = process::display(&command);
    let answer = process::succeed(command, SETTING)?;
    read_counters(&answer).ok_or(LabError::Answer { command: text, answer })
}

fn read_counters(answer: &str) -> Option<SentCounts> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    let found: BTreeMap<&str, u64> = answer["nftables"]
        .as_array()?
        .iter()
        .filter_map(|it| it.get("counter"))
        .map(|counter| Some((counter["name"].as_str()?, counter["packets"].as_u64()?)))
        .collect::<Option<_>>()?;
    let mut counts = SentCounts::new();
    for service in Service::ALL {
        let name = service.counter();
        counts.insert(Sent::Questions(service), *found.get(&*format!("to_{name}"))?);
        counts.insert(Sent::Answers(service), *found.get(&*format!("from_{name}"))?);
    }
    counts.insert(Sent::Stream, *found.get("stream")?);
    counts.insert(Sent::StreamArrived, *found.get("arrived")?);
    counts.insert(Sent::FloodArrived, *found.get("flood_arrived")?);
    Some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_nftables_are_read() {
        let mut listed = vec![serde_json::json!({"metainfo": {"version": "1.0.6"}})];
        let names = Service::ALL.map(Service::counter);
        let all = names.iter().flat_map(|name| [format!("to_{name}"), format!("from_{name}")]);
        let streams = ["stream", "arrived", "flood_arrived"].map(str::to_owned);
        for (packets, name) in all.chain(streams).enumerate() {
            listed.push(serde_json::json!({"counter": {"name": name, "packets": packets}}));
        }
        let whole = serde_json::json!({ "nftables": listed }).to_string();
        let counts = read_counters(&whole).unwrap();
        assert_eq!(counts[&Sent::Questions(Service::Http)], 0);
        assert_eq!(counts[&Sent::Answers(Service::Ping)], 7);
        assert_eq!((counts[&Sent::Stream], counts[&Sent::StreamArrived]), (8, 9));
        listed.pop();
        let part = serde_json::json!({ "nftables": listed }).to_string();
        assert_eq!(read_counters(&part), None);
    }

    #[test]
    fn a_question_is_named_as_explain_reads_it() {
        let [from, to] = [1, 3].map(Addresses::of_host);
        let flow = |service: Service, family| service.flow(from.of(family), to.of(family));
        assert_eq!(flow(Service::Dns, Family::V4), ["udp", "10.1.0.10:40000", "10.3.0.10:53"]);
        assert_eq!(
            flow(Service::Http, Family::V6),
            ["tcp", "[2001:db8:1::10]:40000", "[2001:db8:3::10]:80"]
        );
        assert_eq!(flow(Service::Ping, Family::V4), ["icmp/8/0", "10.1.0.10", "10.3.0.10"]);
    }
}
