//! Connections of tenants whose packets the kernel passes: they outlive their time-out while only
//! the kernel sees them, end as they would by the workers, and count for their rule.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use net::{AGAIN, Lab, lab, wait_for};
use netlab::Namespace;
use netlab::sites::Plan;
use serde_json::Value;

use crate::tenants::{address, furnish, kernel, put, reaches, residents, succeed, tier};

/// Tenant 1 may begin TCP connections, and only pings pass beside those.
const NETWORK: &str = r#"
[overlay.fabric]
kind = "vxlan"
port = "lan"
entrances = ["10.1.0.1"]

[vni.7]
groups_in = ["guard"]

[group.guard]

[[rule]]
group = "guard"
name = "begin"
action = "reflect"
from = ["172.16.0.1"]
to = ["any"]
protocol = "tcp"

[[rule]]
group = "guard"
name = "ping"
action = "permit"
from = ["any"]
to = ["any"]
protocol = "icmp"

[connections]
tcp_established_s = 10

[kernel]
use = "on"
endpoints = 16
"#;

/// Time-out of an established connection.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time until what a rule refuses is taken for lost.
const SILENCE: Duration = Duration::from_secs(2);

/// A TCP connection of tenant 1 to tenant 2, by both ends.
struct Conversation {
    client: TcpStream,
    server: TcpStream,
}

impl Conversation {
    fn begin(host: &Namespace, far: &Namespace, port: u16) -> Conversation {
        let to: SocketAddr = format!("{}:{port}", address(2)).parse().unwrap();
        let listener = far.enter(|| TcpListener::bind(to)).unwrap().unwrap();
        let client = host.enter(|| TcpStream::connect_timeout(&to, AGAIN)).unwrap().unwrap();
        let (server, _) = listener.accept().unwrap();
        for stream in [&client, &server] {
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(AGAIN)).unwrap();
        }
        Conversation { client, server }
    }

    /// A word and its echo.
    fn speak(&mut self) {
        let mut word = [0; 4];
        self.client.write_all(b"word").unwrap();
        self.server.read_exact(&mut word).unwrap();
        self.server.write_all(&word).unwrap();
        self.client.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"word");
    }

    /// The addresses and ports of client and server.
    fn ends(&self) -> (String, String) {
        let [client, server] = [&self.client, &self.server].map(|end| end.local_addr().unwrap());
        (client.to_string(), server.to_string())
    }

    /// Speaks until the kernel has the verdicts on both directions.
    fn until_in_kernel(&mut self, lab: &Lab) {
        let end = Instant::now() + AGAIN;
        while tier(lab)["verdicts_of_connections"] != 2 {
            assert!(Instant::now() < end, "{:#}\n{}", tier(lab), lab.logs());
            (0..10).for_each(|_| self.speak());
        }
    }
}

/// The kernel tier's answer to a packet of a flow, in the words of `explain`.
fn explained(lab: &Lab, flow: &[&str]) -> String {
    let words = [&["explain", "--in", "lan", "--vni", "7"], flow].concat();
    let told = lab.gateways.daemon(1).unwrap().ask(&words).unwrap();
    told["inside"]["kernel_tier"].as_str().unwrap().to_owned()
}

/// Waits until the kernel has no verdict of a connection.
fn none_in_kernel(lab: &Lab) {
    let end = Instant::now() + AGAIN;
    while tier(lab)["verdicts_of_connections"] != 0 {
        assert!(Instant::now() < end, "{:#}\n{}", tier(lab), lab.logs());
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn connections(lab: &Lab) -> Vec<Value> {
    let shown = lab.gateways.daemon(1).unwrap().ask(&["show", "connection", "tcp"]).unwrap();
    shown["connections"].as_array().unwrap().clone()
}

/// Packets that count for the rule by which connections begin.
fn counted(lab: &Lab) -> u64 {
    let shown = lab.gateways.daemon(1).unwrap().ask(&["show", "group"]).unwrap();
    let rule = &shown["groups"][0]["rules"][0];
    assert_eq!(rule["name"], "begin", "{shown:#}");
    rule["decided"]["packets"].as_u64().unwrap()
}

// AX-15
#[test]
fn an_established_connection_stays_in_the_kernel_and_ends_as_it_would_by_workers() {
    let plan = Plan { sites: 1, ..Plan::default() };
    let Some(mut lab) = lab("kernel connections", plan) else { return };
    lab.gateways.file_mut(1).extra = NETWORK.into();
    let far = furnish(&lab);
    let Some(lab) = lab.start("kernel connections") else { return };
    let site = lab.gateways.site(1);
    put(&lab, 1, &site.host_v4());
    put(&lab, 2, "10.1.5.2");
    reaches(&lab);
    residents(&lab, 2);
    let begin = |port| Conversation::begin(&site.host, &far, port);

    stays(&lab, &mut begin(8001));
    closes(&lab, begin(8002));
    is_cleared(&lab, begin(8003), "172.16.0.2");
    goes_with_its_rule(&lab, begin(8004));
    lab.balances();
}

/// Packets of an established connection come to no worker, for longer than its time-out, and count
/// for its rule; when nobody speaks any more it ends.
fn stays(lab: &Lab, conversation: &mut Conversation) {
    conversation.until_in_kernel(lab);
    std::thread::sleep(Duration::from_secs(2));
    let counters = || ["transmitted", "to_worker"].map(|counter| kernel(lab, counter));
    let (before, counted_before) = (counters(), counted(lab));
    let began = Instant::now();
    while began.elapsed() < TIMEOUT + Duration::from_secs(2) {
        conversation.speak();
        std::thread::sleep(Duration::from_millis(100));
    }
    let after = counters();
    let [in_kernel, by_workers] = [0, 1].map(|place| after[place] - before[place]);
    println!("{in_kernel} packets in the kernel, {by_workers} to workers");
    assert!(in_kernel > 100 && by_workers < 20, "{before:?} {after:?} {:#}", tier(lab));
    let (client, server) = conversation.ends();
    let told = explained(lab, &["--tcp", "established", "tcp", &client, &server]);
    assert!(told.starts_with("forwards it") && told.contains("connection lasts"), "{told}");
    let told = explained(lab, &["--tcp", "new", "tcp", &client, &server]);
    assert!(told.starts_with("leaves it") && told.contains("first packets of TCP"), "{told}");
    let told = explained(lab, &["icmp/8/0", &address(1), &address(2)]);
    assert!(told.starts_with("leaves it") && told.contains("identifiers"), "{told}");
    let shown = connections(lab);
    assert_eq!(shown[0]["state"], "established", "{shown:?}");
    assert!(shown[0]["idle_s"].as_u64().unwrap() < 5, "{shown:?}");
    // The control loop counts once a second. Each packet passes the groups on its way in, and on
    // its way out.
    wait_for("packets in the kernel are counted", || counted(lab) - counted_before >= in_kernel);

    none_in_kernel(lab);
    let end = Instant::now() + AGAIN;
    while !connections(lab).is_empty() {
        assert!(Instant::now() < end, "{:?}", connections(lab));
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Both ends close: workers see it, and the verdicts go.
fn closes(lab: &Lab, mut conversation: Conversation) {
    conversation.until_in_kernel(lab);
    let Conversation { mut client, mut server } = conversation;
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.read(&mut [0; 4]).unwrap(), 0);
    server.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.read(&mut [0; 4]).unwrap(), 0);
    none_in_kernel(lab);
    let shown = connections(lab);
    assert!(shown.iter().any(|it| it["state"] == "time_wait"), "{shown:?}");
}

/// After the command that removes connections has answered the kernel passes none of its packets:
/// the end that may not begin is not heard.
fn is_cleared(lab: &Lab, mut conversation: Conversation, host: &str) {
    conversation.until_in_kernel(lab);
    // An acknowledgement of the client's that comes late would begin it anew.
    std::thread::sleep(SILENCE / 4);
    assert_eq!(tier(lab)["verdicts_of_connections"], 2, "{:#}", tier(lab));
    succeed(lab, &["connection", "clear", "host", host]);
    let sent = kernel(lab, "transmitted");
    assert_eq!(tier(lab)["verdicts_of_connections"], 0, "{:#}", tier(lab));
    let Conversation { client, server } = &mut conversation;
    client.set_read_timeout(Some(SILENCE)).unwrap();
    server.write_all(b"word").unwrap();
    let heard = client.read(&mut [0; 4]);
    assert!(heard.is_err(), "{heard:?}");
    assert_eq!(kernel(lab, "transmitted"), sent);
}

/// With the rule goes its connection, in the kernel too.
fn goes_with_its_rule(lab: &Lab, mut conversation: Conversation) {
    conversation.until_in_kernel(lab);
    succeed(lab, &["rule", "del", "guard/begin"]);
    let sent = kernel(lab, "transmitted");
    let Conversation { client, server } = &mut conversation;
    client.write_all(b"word").unwrap();
    server.set_read_timeout(Some(SILENCE)).unwrap();
    let heard = server.read(&mut [0; 4]);
    assert!(heard.is_err(), "{heard:?}");
    assert_eq!(kernel(lab, "transmitted"), sent, "{:#}", tier(lab));
}
