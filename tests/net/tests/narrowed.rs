//! SAs whose selectors are narrower than a peer's policy, as a key manager negotiates them: each is
//! the SA set of a section of its own with the same ends, and of policies that are added while the
//! gateway runs. A packet that another of these sets opened is dropped.
//!
//! ```text
//! policy to-b, peer b          10.1.0.0/16 ↔ 10.2.0.0/16           no SA: dropped
//! policy web,  peer b-web      … UDP to port 5001 of the far side   SA 1
//! policy mail, peer b-mail     … UDP to port 5002 of the far side   SA 2
//! ```

use std::net::{SocketAddr, UdpSocket};

use net::{BY_ITSELF, Lab, put_sa, wait_for};
use serde_json::Value;

/// The sections of one peer beside its own, and the ports that they are for.
const NARROWED: [(&str, u16); 2] = [("web", 5001), ("mail", 5002)];
/// A port that only the wide policy is for.
const OTHER: u16 = 5003;

/// Two gateways and a host behind each.
struct Stage {
    lab: Lab,
    sender: UdpSocket,
    receivers: Vec<(u16, UdpSocket)>,
    /// Packets that were sent.
    sent: u8,
}

impl Stage {
    fn build(test: &str) -> Option<Stage> {
        let mut lab = net::over_the_api(test, 1, "")?;
        let names = [1, 2].map(|number| lab.gateways.file(number).name().to_owned());
        for number in [1u8, 2] {
            let [own, far] = [number, 3 - number].map(|site| lab.gateways.site(site).wan_v4());
            let peer = &names[usize::from(2 - number)];
            for (section, _) in NARROWED {
                lab.gateways.file_mut(number).extra += &format!(
                    "\n[peer.{peer}-{section}]\nlocal = \"{own}\"\nremote = \"{far}\"\n\
                     keys = \"api\"\nsuite = \"aes-128-gcm\"\nesn = true\n"
                );
            }
        }
        let lab = lab.start(test)?;
        let bind = |site: u8, port: u16| {
            let host = &lab.gateways.site(site).host;
            let address = SocketAddr::from(([10, site, 0, 10], port));
            host.enter(|| UdpSocket::bind(address)).unwrap().unwrap()
        };
        let ports = NARROWED.map(|(_, port)| port).into_iter().chain([OTHER]);
        let receivers: Vec<_> = ports.map(|port| (port, bind(2, port))).collect();
        for (_, receiver) in &receivers {
            receiver.set_read_timeout(Some(BY_ITSELF)).unwrap();
        }
        Some(Stage { sender: bind(1, 0), receivers, lab, sent: 0 })
    }

    fn ask(&self, number: u8, words: &[&str]) -> Value {
        self.lab.gateways.daemon(number).unwrap().ask(words).unwrap()
    }

    /// Name of a section of gateway `number`.
    fn section(&self, number: u8, section: &str) -> String {
        format!("{}-{section}", self.lab.gateways.file(3 - number).name())
    }

    /// Has gateway `number` protect packets to or from a port of host B by a section's SAs.
    fn add_policy(&self, number: u8, section: &str, port: u16) {
        let (peer, port) = (self.section(number, section), port.to_string());
        let (name, whose) = (format!("{section}-{port}"), ["--remote-ports", "--local-ports"]);
        let [local, remote] = [number, 3 - number].map(|site| format!("10.{site}.0.0/16"));
        let whose = whose[usize::from(number - 1)];
        self.ask(
            number,
            &[
                "policy",
                "add",
                "--name",
                &name,
                "--peer",
                &peer,
                "--local",
                &local,
                "--remote",
                &remote,
                "--protocol",
                "udp",
                whose,
                &port,
                "--priority",
                "200",
                "--yes",
            ],
        );
    }

    /// Puts an SA from gateway 1 to gateway 2 into a section's set; returns its SPI.
    fn put_sa(&self, section: &str, key: &str) -> String {
        let [near, far] = [1, 2].map(|number| self.section(number, section));
        let reserved = self.ask(2, &["sa", "reserve", &far]);
        let (spi, key) = (reserved["spi"].as_str().unwrap(), key.repeat(20));
        put_sa(&self.lab.gateways, 2, &format!("in {spi} {key} peer={far}\n"));
        put_sa(&self.lab.gateways, 1, &format!("out {spi} {key} peer={near}\n"));
        spi.to_owned()
    }

    fn send(&mut self, port: u16) {
        self.sent += 1;
        let to = SocketAddr::from(([10, 2, 0, 10], port));
        self.sender.send_to(&[self.sent; 8], to).unwrap();
    }

    /// Returns whether a packet to a port arrives.
    fn arrives(&mut self, port: u16) -> bool {
        self.send(port);
        let (_, receiver) = self.receivers.iter().find(|(known, _)| *known == port).unwrap();
        let mut packet = [0; 64];
        receiver.recv(&mut packet).is_ok_and(|bytes| packet[..bytes] == [self.sent; 8])
    }

    fn dropped(&self, number: u8, reason: &str) -> u64 {
        self.lab.gateways.daemon(number).unwrap().counters().unwrap().dropped(reason)
    }

    /// Packets that an SA of gateway 2 has opened.
    fn opened(&self, spi: &str) -> u64 {
        let shown = self.ask(2, &["show", "sa", spi]);
        let sas = shown["sas"].as_array().unwrap();
        assert_eq!(sas.len(), 1, "{shown}");
        sas[0]["packets"].as_u64().unwrap()
    }
}

#[test]
fn each_of_two_narrowed_sets_carries_its_own_packets_and_no_others() {
    let Some(mut stage) = Stage::build("narrowed") else { return };
    let spis: Vec<String> = NARROWED
        .into_iter()
        .zip(["5a", "6b"])
        .map(|((section, port), key)| {
            [1, 2].into_iter().for_each(|number| stage.add_policy(number, section, port));
            stage.put_sa(section, key)
        })
        .collect();
    let opened = |stage: &Stage| [0, 1].map(|place: usize| stage.opened(&spis[place]));
    assert_ne!(spis[0], spis[1]);
    for _ in 0..3 {
        assert!(stage.arrives(5001));
    }
    assert!(stage.arrives(5002));
    assert_eq!(opened(&stage), [3, 1]);
    // What neither is for meets the wide policy, which has no SA.
    stage.send(OTHER);
    wait_for("no drop", || stage.dropped(1, "no_sa") == 1);
    assert_eq!(stage.dropped(2, "selector_mismatch"), 0);

    // Gateway A takes the first set for packets of the second: they are authentic, and refused.
    stage.ask(1, &["policy", "del", "mail-5002", "--yes"]);
    stage.add_policy(1, "web", 5002);
    for refused in 1..=3 {
        stage.send(5002);
        wait_for("no drop", || stage.dropped(2, "selector_mismatch") == refused);
    }
    assert_eq!(opened(&stage), [6, 1]);
    assert!(stage.arrives(5001));
    // Gateway B is told the same: what was refused passes.
    stage.ask(2, &["policy", "del", "mail-5002", "--yes"]);
    stage.add_policy(2, "web", 5002);
    assert!(stage.arrives(5002));
    assert_eq!(opened(&stage), [8, 1]);
    assert_eq!(stage.dropped(2, "selector_mismatch"), 3);
}
