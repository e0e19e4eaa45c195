//! Acquire, live: a policy without an SA asks a key manager for one, once; its first packets wait
//! and leave in order when the SA is put.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use net::{BY_ITSELF, Lab, events, put_sa, wait_for};
use netlab::Gateways;
use serde_json::Value;

/// Packets that are sent while the first one waits.
const FURTHER: u8 = 4;
/// Time after which a packet that does not wait has been dropped.
const DECIDED: Duration = Duration::from_millis(100);

/// Two gateways whose SAs are put, and UDP sockets in the hosts behind them.
struct Stage {
    lab: Lab,
    /// Names of the gateways, each the other's peer.
    names: [String; 2],
    sender: UdpSocket,
    receiver: UdpSocket,
    /// Number in the last packet that was sent.
    sent: u8,
}

/// `lockgate sa watch --json`: a key manager that only listens. It ends with the test.
struct KeyManager {
    process: Child,
    requests: Receiver<Value>,
}

impl KeyManager {
    fn start(gateways: &Gateways) -> KeyManager {
        let mut watch = command(gateways, 1, &["sa", "watch", "--json"]);
        let mut process = watch.stdout(Stdio::piped()).spawn().unwrap();
        let (sender, requests) = channel();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            let lines = lines.map_while(Result::ok);
            let requests = lines.map(|line| serde_json::from_str(&line).unwrap());
            requests.take_while(|request| sender.send(Value::clone(request)).is_ok()).count()
        });
        KeyManager { process, requests }
    }
}

impl Drop for KeyManager {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn command(gateways: &Gateways, number: u8, words: &[&str]) -> Command {
    gateways.daemon(number).unwrap().command(words)
}

impl Stage {
    fn build(test: &str) -> Option<Stage> {
        let lab = net::over_the_api(test, 1, "")?.start(test)?;
        let bind = |site: u8| {
            let host = &lab.gateways.site(site).host;
            let address = SocketAddr::from(([10, site, 0, 10], 0));
            host.enter(|| UdpSocket::bind(address)).unwrap().unwrap()
        };
        let (sender, receiver) = (bind(1), bind(2));
        receiver.set_read_timeout(Some(BY_ITSELF)).unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        let names = [1, 2].map(|number| lab.gateways.file(number).name().to_owned());
        Some(Stage { lab, names, sender, receiver, sent: 0 })
    }

    fn gateways(&self) -> &Gateways {
        &self.lab.gateways
    }

    fn send(&mut self) {
        self.sent += 1;
        self.sender.send(&[self.sent; 8]).unwrap();
    }

    /// Receives a packet and returns its number.
    fn receive(&self) -> u8 {
        let mut packet = [0; 64];
        assert_eq!(self.receiver.recv(&mut packet).unwrap(), 8);
        packet[0]
    }

    fn no_sa(&self) -> u64 {
        self.gateways().daemon(1).unwrap().counters().unwrap().dropped("no_sa")
    }

    fn asked(&self) -> usize {
        events(self.gateways(), 1, "acquire").len()
    }

    /// Sends until a packet waits, and returns the request: until the key manager has subscribed,
    /// packets are dropped.
    fn ask(&mut self, key_manager: &KeyManager) -> Value {
        let end = Instant::now() + BY_ITSELF;
        loop {
            self.send();
            if let Ok(request) = key_manager.requests.recv_timeout(DECIDED) {
                return request;
            }
            assert!(Instant::now() < end, "no packet waits");
        }
    }

    /// Puts an SA from gateway 1 to gateway 2 into both; returns its SPI.
    fn put_sa(&self) -> String {
        let [one, two] = &self.names;
        let gateways = self.gateways();
        let reserved = gateways.daemon(2).unwrap().ask(&["sa", "reserve", one]).unwrap();
        let (spi, key) = (reserved["spi"].as_str().unwrap(), "7c".repeat(20));
        put_sa(gateways, 2, &format!("in {spi} {key} peer={one}\n"));
        put_sa(gateways, 1, &format!("out {spi} {key} peer={two}\n"));
        spi.to_owned()
    }
}

/// XO-21: the request, the packets that wait, and the SA that lets them go.
#[test]
fn a_policy_without_an_sa_asks_once_and_its_first_packets_wait_for_it() {
    let Some(mut stage) = Stage::build("acquire") else { return };
    // Without a key manager.
    stage.send();
    wait_for("no drop", || stage.no_sa() == 1);

    let key_manager = KeyManager::start(stage.gateways());
    let asked = stage.ask(&key_manager);
    let two = stage.names[1].as_str();
    let expected = (two.into(), format!("to-{two}").into(), "10.1.0.10".into(), 17.into());
    let [peer, policy, source, protocol] =
        ["peer", "policy", "source", "protocol"].map(|name| asked[name].clone());
    assert_eq!((peer, policy, source, protocol), expected);
    (0..FURTHER).for_each(|_| stage.send());
    // Longer than a worker takes to ask again.
    std::thread::sleep(Duration::from_millis(1200));
    let dropped = stage.no_sa();
    assert_eq!(stage.asked(), 1);

    let spi = stage.put_sa();
    let first = stage.receive();
    assert!(first + FURTHER <= stage.sent, "{first} of {}", stage.sent);
    (first + 1..=stage.sent).for_each(|number| assert_eq!(stage.receive(), number, "in order"));
    stage.send();
    assert_eq!(stage.receive(), stage.sent);
    assert_eq!((stage.asked(), stage.no_sa()), (1, dropped));

    // The SA goes: the next packet asks again.
    let mut deletion = command(stage.gateways(), 1, &["sa", "del", &spi]);
    assert!(deletion.stdout(Stdio::null()).status().unwrap().success());
    stage.send();
    wait_for("not asked again", || stage.asked() == 2);
    assert_eq!(stage.no_sa(), dropped);
    // The key manager goes: packets are dropped again.
    drop(key_manager);
    wait_for("packets still wait", || {
        stage.send();
        stage.no_sa() > dropped
    });
}
