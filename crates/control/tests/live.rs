//! One configuration after the other: what is kept, what is new, what is refused.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use config::{Loaded, parse};
use control::{CompileError, Compiled, Compiler, MoveError, PeerAddress, live_parts};
use dataplane::{Generation, SaSet, SetIndex, SnapshotError};
use ipsec::{
    Dscp, Encapsulation, Identifications, InboundSa, Mode, OutboundSa, SaId, SequenceNumbers,
};
use keystate::{HostIdentity, KeyState, RESERVATION_STEP, Refusal};
use linux::View;
use policy::{Direction, PolicyId, SaSetId};

const PORTS: &str = r#"
[node]
name = "gw"
[port.lan]
netdev = "eth1"
side = "protected"
addresses = ["10.1.0.1/24"]
[port.wan]
netdev = "eth0"
side = "unprotected"
addresses = ["192.0.2.1/24"]
"#;

fn peer(name: &str, remote: u8, window: u32) -> String {
    format!(
        "[peer.{name}]\nlocal = \"192.0.2.1\"\nremote = \"198.51.100.{remote}\"\n\
         keys = \"file:{name}.keys\"\nmanual = \"laboratory\"\nsuite = \"aes-128-gcm\"\n\
         replay_window = {window}\n"
    )
}

fn policy(name: &str, peer: &str, remote: u8) -> String {
    format!(
        "[[policy]]\nname = \"{name}\"\npeer = \"{peer}\"\nlocal = [\"10.1.0.0/16\"]\nremote = \
         [\"10.{remote}.0.0/16\"]\npriority = 5\n"
    )
}

/// SAs in the order of the peers in the file.
trait InOrder {
    fn out(&self) -> Vec<Arc<OutboundSa>>;
    fn inb(&self) -> Vec<Arc<InboundSa>>;
    fn all_sets(&self) -> Vec<Arc<SaSet>>;
}

impl InOrder for Compiled {
    fn out(&self) -> Vec<Arc<OutboundSa>> {
        let sas = self.sets().flat_map(|set| &set.outbound);
        sas.map(|sa| self.sad.outbound_sa(*sa).clone()).collect()
    }

    fn inb(&self) -> Vec<Arc<InboundSa>> {
        let of = |set: SaSetId| self.sad.inbound().filter(move |sa| sa.set == set).cloned();
        self.peers.iter().flat_map(|set| of(*set)).collect()
    }

    fn all_sets(&self) -> Vec<Arc<SaSet>> {
        self.sets().cloned().collect()
    }
}

/// A gateway's directories and its compiler.
struct Gateway {
    root: tempfile::TempDir,
    keys: KeyState,
    compiler: Compiler,
}

impl Gateway {
    fn new() -> Gateway {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("keys")).unwrap();
        let keys = open(root.path());
        let gateway = Gateway { root, keys, compiler: Compiler::new() };
        gateway.write_keys("a", &[("out", 0x1001, 1), ("in", 0x2001, 2)]);
        gateway.write_keys("b", &[("out", 0x1002, 3), ("in", 0x2002, 4)]);
        gateway
    }

    /// The daemon is killed and started again.
    fn restart(self) -> Gateway {
        let Gateway { root, keys, compiler } = self;
        drop((compiler, keys));
        let keys = open(root.path());
        Gateway { root, keys, compiler: Compiler::new() }
    }

    fn write_keys(&self, peer: &str, lines: &[(&str, u32, u8)]) {
        let path = self.root.path().join("keys").join(format!("{peer}.keys"));
        let line = |(direction, spi, seed): &(&str, u32, u8)| {
            format!("{direction} {spi} {}\n", format!("{seed:02x}").repeat(20))
        };
        let text: String = lines.iter().map(line).collect();
        let _ = std::fs::remove_file(&path);
        config::write_key_file(&path, &text).unwrap();
    }

    fn load(&self, text: &str) -> Loaded {
        let keys = format!("[node]\nkeys_dir = {:?}", self.root.path().join("keys"));
        let text = text.replacen("[node]", &keys, 1);
        parse(&text, "lockgate.toml").unwrap().load_keys(Path::new("/")).unwrap()
    }

    fn compile(&mut self, parts: &[String]) -> Compiled {
        let loaded = self.load(&format!("{PORTS}{}", parts.concat()));
        self.compiler.compile(&loaded, &mut self.keys).unwrap()
    }
}

fn open(root: &Path) -> KeyState {
    let host = HostIdentity::new("machine", "boot");
    KeyState::open_as(&root.join("run"), &root.join("state"), &host).unwrap()
}

fn two_peers() -> Vec<String> {
    vec![peer("a", 1, 64), peer("b", 2, 64), policy("to-a", "a", 2), policy("to-b", "b", 3)]
}

fn ids(compiled: &Compiled) -> Vec<(&str, u32)> {
    let policies = compiled.spd.policies().into_iter();
    policies.map(|(_, policy)| (policy.name.as_str(), policy.id.0)).collect()
}

#[test]
fn the_same_again_keeps_everything() {
    let mut gateway = Gateway::new();
    let first = gateway.compile(&two_peers());
    let again = gateway.compile(&two_peers());
    assert_eq!(first.generation, Generation(1));
    assert_eq!(again.generation, Generation(1));
    assert!(Arc::ptr_eq(again.slots(), first.slots()));
    assert!(Arc::ptr_eq(&first.spd, &again.spd));
    for (one, two) in first.out().iter().zip(&again.out()) {
        assert!(Arc::ptr_eq(one, two));
    }
    for (one, two) in first.inb().iter().zip(&again.inb()) {
        assert!(Arc::ptr_eq(one, two));
    }
    assert_eq!((first.out().len(), first.inb().len(), first.refused.len()), (2, 2, 0));
    assert_eq!(first.all_sets(), again.all_sets());
}

#[test]
fn sas_that_did_not_change_keep_their_slots() {
    let mut gateway = Gateway::new();
    let first = gateway.compile(&two_peers());
    assert_eq!(first.out()[1].sequence.draw(10).whole(), Ok(1));
    first.inb()[1].window.commit(7).unwrap();
    // Without peer a, what b has stays where it is.
    let second = gateway.compile(&[peer("b", 2, 64), policy("to-b", "b", 3)]);
    assert_eq!((second.out()[0].id, second.out()[0].set), (SaId(1), SaSetId(1)));
    assert!(Arc::ptr_eq(&first.out()[1], &second.out()[0]));
    assert!(Arc::ptr_eq(&first.inb()[1], &second.inb()[0]));
    assert_eq!(second.sad.places().get(SaSetId(1)), Some(SetIndex(1)));
    assert_eq!(second.out()[0].sequence.draw(1).whole(), Ok(11));
    assert!(second.generation > first.generation);
    assert_eq!(second.outbound_fingerprint(SaId(1)), first.outbound_fingerprint(SaId(1)));
    assert_eq!(second.inbound_fingerprint(SaId(1)), first.inbound_fingerprint(SaId(1)));
    // Peer a comes back: its counter too, but it is another set.
    assert_eq!(first.out()[0].sequence.draw(1).whole(), Ok(1));
    let third = gateway.compile(&two_peers());
    assert_eq!(third.out()[0].set, SaSetId(2), "set 0 is not used again");
    assert_eq!((third.out()[0].id, third.out()[1].id), (SaId(0), SaId(1)), "a vacant slot is");
    assert_eq!(third.sad.places().get(SaSetId(2)), Some(SetIndex(0)));
    assert_eq!(third.out()[1].set, SaSetId(1));
    assert_eq!(third.out()[0].sequence.draw(1).whole(), Ok(2));
}

/// A peer under another name is another set, and its SAs go on in their slots, whoever is new in
/// front of it.
#[test]
fn a_renamed_peer_keeps_its_sas_beside_a_new_one() {
    let mut gateway = Gateway::new();
    let first = gateway.compile(&[peer("b", 2, 64), policy("to-b", "b", 3)]);
    let renamed = peer("c", 2, 64).replace("file:c.keys", "file:b.keys");
    let both = [peer("a", 1, 64), renamed, policy("to-a", "a", 2), policy("to-c", "c", 3)];
    for compiled in [gateway.compile(&both), gateway.compile(&both)] {
        assert_eq!((compiled.out().len(), compiled.inb().len()), (2, 2));
        for sa in compiled.inb() {
            assert!(Arc::ptr_eq(compiled.sad.inbound_by_spi(sa.spi).unwrap(), &sa));
        }
        let (of_b, of_c) = (&first.inb()[0], &compiled.inb()[1]);
        assert_eq!((of_c.id, of_c.spi), (of_b.id, of_b.spi));
        assert!(Arc::ptr_eq(&of_c.window, &of_b.window) && of_c.set != of_b.set);
        assert_ne!(compiled.inb()[0].id, of_c.id);
        let live = live_parts(compiled.settings(), &View::default());
        assert_eq!(compiled.assemble(&live, None).unwrap().inbound().count(), 2);
    }
}

/// A peer that may move, and its policy.
fn roaming(more: &str) -> Vec<String> {
    let nat = format!("encapsulation = \"udp\"\nbehind_nat = true\n{more}");
    let parts = [peer("a", 1, 64), nat, peer("b", 2, 64)].concat();
    vec![parts, policy("to-a", "a", 2), policy("to-b", "b", 3)]
}

fn peer_address(text: &str) -> PeerAddress {
    let socket: std::net::SocketAddr = text.parse().unwrap();
    PeerAddress { address: socket.ip(), port: socket.port() }
}

/// Returns the ends to which everything for the first set is sent.
fn where_to(compiled: &Compiled) -> (IpAddr, IpAddr, IpAddr, u16, u16) {
    let (out, inbound) = (&compiled.out()[0], &compiled.inb()[0]);
    let port = |way: &Encapsulation| way.udp.unwrap().remote;
    (
        compiled.all_sets()[0].tunnel.remote,
        out.tunnel().remote,
        inbound.tunnel().remote,
        port(&out.encapsulation),
        port(&inbound.encapsulation),
    )
}

#[test]
fn a_peer_that_moved_keeps_key_numbers_and_window() {
    let mut gateway = Gateway::new();
    let mut compiled = gateway.compile(&roaming(""));
    let (out, inbound) = (compiled.out().clone(), compiled.inb().clone());
    out[0].sequence.draw(5).whole().unwrap();
    let to = peer_address("203.0.113.9:61000");
    let moved = compiled.move_peer(SaSetId(0), to).unwrap().expect("it was elsewhere");
    assert_eq!((moved.peer.as_str(), moved.from), ("a", peer_address("198.51.100.1:4500")));
    assert_eq!((moved.to, to.to_string()), (to, "203.0.113.9:61000".into()));
    let at = to.address;
    assert_eq!(where_to(&compiled), (at, at, at, 61000, 61000));
    assert_eq!(compiled.remotes().next(), Some(at));
    assert!(Arc::ptr_eq(&out[0].sequence, &compiled.out()[0].sequence));
    assert!(Arc::ptr_eq(&inbound[0].window, &compiled.inb()[0].window));
    assert!(Arc::ptr_eq(&out[1], &compiled.out()[1]), "the other peer's");
    assert_eq!(compiled.move_peer(SaSetId(0), to), Ok(None), "it is there already");
    assert_eq!(compiled.out()[0].sequence.draw(1).whole(), Ok(6));
    // And back to where it began.
    let back = compiled.move_peer(SaSetId(0), moved.from).unwrap().expect("it was elsewhere");
    assert_eq!((back.from, back.to), (to, moved.from));
}

#[test]
fn what_was_learned_of_a_peer_is_kept_while_its_place_is_configured_as_before() {
    let mut gateway = Gateway::new();
    let mut first = gateway.compile(&roaming(""));
    let to = peer_address("203.0.113.9:61000");
    first.move_peer(SaSetId(0), to).unwrap();
    // Something else changes: also its place among the peers.
    let mut changed = vec![peer("0", 7, 64), policy("to-0", "0", 9)];
    gateway.write_keys("0", &[("out", 0x1009, 9), ("in", 0x2009, 10)]);
    changed.extend(roaming("dscp = 46\n"));
    let mut second = gateway.compile(&changed);
    assert_eq!(second.all_sets()[1].tunnel.remote, "198.51.100.1".parse::<IpAddr>().unwrap());
    second.keep_moved_peers(&first);
    assert_eq!(second.all_sets()[1].tunnel.remote, to.address);
    assert_eq!(second.out()[1].encapsulation.dscp, Dscp::Fixed(46));
    assert_eq!(second.out()[1].tunnel().remote, to.address);
    // Twice, and then forgotten: the configuration names another place.
    let mut third = gateway.compile(&roaming(""));
    third.keep_moved_peers(&second);
    assert_eq!(where_to(&third).0, to.address);
    for other in ["remote_port = 4501\n", "nat_keepalive = \"off\"\n"] {
        let mut fourth = gateway.compile(&roaming(other));
        fourth.keep_moved_peers(&third);
        let keeps = !other.contains("port");
        assert_eq!(where_to(&fourth).0 == to.address, keeps, "{other}");
    }
    let fixed = roaming("")[0].replace("behind_nat = true", "behind_nat = false");
    let mut fifth = gateway.compile(&[&[fixed], &roaming("")[1..]].concat());
    fifth.keep_moved_peers(&third);
    assert_eq!(where_to(&fifth).3, 4500);
}

#[test]
fn a_path_mtu_is_kept_by_a_new_configuration_and_forgotten_where_the_peer_is_elsewhere() {
    let mut gateway = Gateway::new();
    let path = |compiled: &Compiled, set: usize| compiled.all_sets()[set].path_mtu.clone();
    let first = gateway.compile(&roaming(""));
    let mut second = gateway.compile(&roaming("mss_clamp = false\n"));
    second.keep_moved_peers(&first);
    for set in [0, 1] {
        assert!(path(&first, set).is_some());
        assert_eq!(path(&second, set), path(&first, set));
    }
    // It moves: another path. The other peer's stays.
    second.move_peer(SaSetId(0), peer_address("203.0.113.9:61000")).unwrap();
    let there = path(&second, 0);
    assert!(there.is_some() && there != path(&first, 0));
    assert_eq!(path(&second, 1), path(&first, 1));
    // Another port at the same address is another place behind the NAT.
    second.move_peer(SaSetId(0), peer_address("203.0.113.9:61001")).unwrap();
    assert_ne!(path(&second, 0), there);
    let there = path(&second, 0);
    // Where it is now is kept, and so is what is known of the path.
    let mut third = gateway.compile(&roaming("dscp = 46\n"));
    third.keep_moved_peers(&second);
    assert_eq!(third.remotes().next(), Some("203.0.113.9".parse().unwrap()));
    assert_eq!(path(&third, 0), there);
    // Configured to be elsewhere, or to ignore ICMP.
    let elsewhere = roaming("")[0].replace("198.51.100.2", "198.51.100.3");
    let fourth = gateway.compile(&[&[elsewhere], &roaming("")[1..]].concat());
    assert!(path(&fourth, 1).is_some() && path(&fourth, 1) != path(&first, 1));
    let fifth = gateway.compile(&roaming("pmtu = \"ignore\"\n"));
    assert_eq!(path(&fifth, 0), None);
}

#[test]
fn a_peer_does_not_move_where_it_cannot_be() {
    let mut gateway = Gateway::new();
    let mut compiled = gateway.compile(&roaming(""));
    let mut moved = |set, to| compiled.move_peer(SaSetId(set), peer_address(to));
    assert_eq!(moved(1, "203.0.113.9:4500"), Err(MoveError::Stays), "no NAT");
    assert_eq!(moved(2, "203.0.113.9:4500"), Err(MoveError::Stays), "no set");
    for unusable in ["239.1.1.1:4500", "0.0.0.0:4500", "127.0.0.1:4500", "[ff02::1]:4500"] {
        let refused = moved(0, unusable);
        assert!(matches!(refused, Err(MoveError::Unusable { .. })), "{refused:?}");
    }
    assert!(matches!(moved(0, "[2001:db8::1]:4500"), Err(MoveError::Sa(_))));
    assert_eq!(where_to(&compiled).3, 4500, "nothing was changed");
}

/// A roaming peer with a policy to each of these networks.
fn roaming_to(remotes: &[&str]) -> Vec<String> {
    let mut parts = vec![roaming("")[0].clone()];
    parts.extend(remotes.iter().enumerate().map(|(place, remote)| {
        format!(
            "[[policy]]\nname = \"to-{place}\"\npeer = \"a\"\nlocal = [\"10.1.0.0/16\"]\n\
             remote = [\"{remote}\"]\n"
        )
    }));
    parts
}

#[test]
fn a_peer_moves_neither_to_port_0_nor_into_a_network_behind_it() {
    let mut gateway = Gateway::new();
    let mut compiled = gateway.compile(&roaming_to(&["10.77.0.0/16", "any"]));
    let mut moved = |to| compiled.move_peer(SaSetId(0), peer_address(to));
    assert_eq!(moved("203.0.113.9:0"), Err(MoveError::PortZero));
    assert_eq!(moved("198.51.100.1:0"), Err(MoveError::PortZero), "not at its own address either");
    let address = "10.77.0.5".parse().unwrap();
    let refused = Err(MoveError::BehindPeer { address, policy: "to-0".into() });
    assert_eq!(moved("10.77.0.5:4500"), refused);
    // The policy to everywhere has its configured address too, and does not end roaming.
    moved("203.0.113.9:4500").unwrap().expect("it was elsewhere");
    assert_eq!(moved("10.77.0.5:4500"), refused, "nor from where it is now");
    assert_eq!(where_to(&compiled).0, "203.0.113.9".parse::<IpAddr>().unwrap());
    // Configured inside a network of its own, it may move within that network.
    let mut inside = gateway.compile(&roaming_to(&["198.51.100.0/24"]));
    inside
        .move_peer(SaSetId(0), peer_address("198.51.100.9:4500"))
        .unwrap()
        .expect("within the network");
}

#[test]
fn a_place_that_new_policies_put_behind_the_peer_is_not_kept() {
    let mut gateway = Gateway::new();
    let mut first = gateway.compile(&roaming_to(&["10.77.0.0/16"]));
    first
        .move_peer(SaSetId(0), peer_address("203.0.113.9:61000"))
        .unwrap()
        .expect("it was elsewhere");
    let mut second = gateway.compile(&roaming_to(&["203.0.113.0/24"]));
    second.keep_moved_peers(&first);
    assert_eq!(where_to(&second).0, "198.51.100.1".parse::<IpAddr>().unwrap());
}

/// In transport mode the policies name the peer's address.
#[test]
fn in_transport_mode_only_the_port_moves() {
    let mut gateway = Gateway::new();
    let policy = "[[policy]]\nname = \"to-a\"\npeer = \"a\"\nlocal = [\"192.0.2.1\"]\n\
         remote = [\"198.51.100.1\"]\n";
    let nat = "encapsulation = \"udp\"\nbehind_nat = true\nmode = \"transport\"\n";
    let mut compiled = gateway.compile(&[peer("a", 1, 64), nat.into(), policy.into()]);
    let refused = compiled.move_peer(SaSetId(0), peer_address("203.0.113.9:4500"));
    assert!(matches!(refused, Err(MoveError::Transport { .. })), "{refused:?}");
    compiled
        .move_peer(SaSetId(0), peer_address("198.51.100.1:61000"))
        .unwrap()
        .expect("another port");
    let way = compiled.out()[0].encapsulation;
    assert_eq!((way.mode, way.udp.unwrap().remote), (Mode::Transport, 61000));
}

#[test]
fn another_way_of_carrying_keeps_the_key_and_goes_on_behind_its_numbers() {
    let mut gateway = Gateway::new();
    let with =
        |more: &str, remote| vec![peer("a", remote, 64), more.to_owned(), policy("to-a", "a", 2)];
    let first = gateway.compile(&with("", 1));
    first.out()[0].sequence.draw(5).whole().unwrap();
    for (more, remote) in [
        ("", 9),
        ("encapsulation = \"udp\"\n", 9),
        ("encapsulation = \"udp\"\nremote_port = 61000\n", 9),
        ("dscp = 8\n", 9),
        ("df = \"copy\"\n", 9),
    ] {
        let next = gateway.compile(&with(more, remote));
        assert!(!Arc::ptr_eq(&next.out()[0], &first.out()[0]), "{more}");
        assert!(Arc::ptr_eq(&next.out()[0].sequence, &first.out()[0].sequence), "{more}");
        assert!(Arc::ptr_eq(&next.inb()[0].window, &first.inb()[0].window), "{more}");
        assert_eq!(next.out()[0].encapsulation, next.settings().peers[0].encapsulation);
        assert_eq!(next.inb()[0].encapsulation, next.settings().peers[0].encapsulation);
    }
}

/// RFC 6864 §4.3: for as many packets as there are numbers.
#[test]
fn sas_between_the_same_ends_have_identifications_of_their_own() {
    let mut gateway = Gateway::new();
    let parts = |more: &str| {
        let peers = [peer("a", 1, 64), more.to_owned(), peer("b", 2, 64)].concat();
        vec![peers, policy("to-a", "a", 2), policy("to-b", "b", 3)]
    };
    let first = gateway.compile(&parts("df = \"clear\"\n"));
    let of = |compiled: &Compiled, sa: usize| compiled.out()[sa].identifications();
    assert_eq!((of(&first, 0), of(&first, 1)), (Identifications::ALL, Identifications::ALL));
    // A second key of a: its two SAs share the numbers, b's has all of its own.
    gateway.write_keys("a", &[("out", 0x1001, 1), ("out", 0x1101, 21), ("in", 0x2001, 2)]);
    let second = gateway.compile(&parts("df = \"clear\"\n"));
    let outs = second.out();
    let mut seen = std::collections::BTreeSet::new();
    let of_a: Vec<_> = outs.iter().filter(|sa| sa.set == SaSetId(0)).collect();
    assert_eq!(of_a.len(), 2);
    for sa in of_a {
        assert!((1..=32_768).all(|number| seen.insert(sa.identifications().of(number))));
    }
    assert!(Arc::ptr_eq(&outs[2], &first.out()[1]), "b's is as it was");
    assert!(Arc::ptr_eq(&outs[0].sequence, &first.out()[0].sequence));
    // And back.
    gateway.write_keys("a", &[("out", 0x1001, 1), ("in", 0x2001, 2)]);
    let third = gateway.compile(&parts("df = \"clear\"\n"));
    assert_eq!(of(&third, 0), Identifications::ALL);
}

#[test]
fn esn_makes_another_sa_of_the_same_key_whose_numbers_go_on() {
    let mut gateway = Gateway::new();
    let with = |esn: bool| vec![peer("a", 1, 64), format!("esn = {esn}\n"), policy("p", "a", 2)];
    let first = gateway.compile(&with(false));
    first.out()[0].sequence.draw(5).whole().unwrap();
    first.inb()[0].window.commit(9).unwrap();
    let second = gateway.compile(&with(true));
    let sa = &second.out()[0];
    assert_eq!(
        (sa.sequence.numbers(), sa.sequence.draw(1).whole()),
        (SequenceNumbers::Extended, Ok(6))
    );
    assert!(second.inb()[0].window.commit(9).is_err());
    // Beyond 2^32 there is no way back.
    sa.sequence.reserve(1 << 33);
    sa.sequence.draw(u32::MAX).whole().unwrap();
    second.inb()[0].window.commit(1 << 32).unwrap();
    let third = gateway.compile(&with(false));
    assert!(third.out().is_empty() && third.inb().is_empty());
    for refused in &*third.refused {
        assert!(matches!(refused.reason, Refusal::BeyondNumbers { .. }), "{refused}");
        assert!(refused.to_string().contains("write esn = true again"), "{refused}");
    }
    assert_eq!(third.refused.len(), 2);
    let fourth = gateway.compile(&with(true));
    assert!(fourth.out()[0].sequence.draw(1).whole().unwrap() > 1 << 32);
}

#[test]
fn other_addresses_window_or_key_make_another_sa() {
    let mut gateway = Gateway::new();
    let first = gateway.compile(&two_peers());
    first.out()[0].sequence.draw(5).whole().unwrap();
    first.inb()[0].window.commit(9).unwrap();
    let mut changed = two_peers();
    changed[0] = peer("a", 9, 128);
    let second = gateway.compile(&changed);
    assert_eq!(second.generation, first.generation, "no policy changed");
    assert!(!Arc::ptr_eq(&first.out()[0], &second.out()[0]));
    assert!(Arc::ptr_eq(&first.out()[1], &second.out()[1]));
    // The key is the same, so are its numbers.
    assert_eq!(second.out()[0].sequence.draw(1).whole(), Ok(6));
    assert_eq!(second.inb()[0].window.size(), 128);
    assert!(second.inb()[0].window.commit(9).is_err());
    gateway.write_keys("a", &[("out", 0x1001, 5), ("in", 0x2001, 6)]);
    let third = gateway.compile(&changed);
    assert_eq!(third.out()[0].sequence.draw(1).whole(), Ok(1), "a new key begins anew");
}

#[test]
fn policy_ids_are_kept_where_the_order_allows_and_never_used_twice() {
    let mut gateway = Gateway::new();
    let [a, b, to_a, to_b] = two_peers().try_into().unwrap();
    let with = |policies: &[&String]| {
        let parts = [&a, &b].into_iter().chain(policies.iter().copied());
        parts.cloned().collect::<Vec<_>>()
    };
    let first = gateway.compile(&with(&[&to_a, &to_b]));
    // Of equal priority the later is the newer and wins.
    assert_eq!(ids(&first), [("to-b", 1), ("to-a", 0)]);
    let between = policy("between", "a", 4);
    let second = gateway.compile(&with(&[&to_a, &between, &to_b]));
    assert_eq!(ids(&second), [("to-b", 3), ("between", 2), ("to-a", 0)]);
    let third = gateway.compile(&with(&[&to_a, &to_b]));
    assert_eq!(ids(&third), [("to-b", 3), ("to-a", 0)]);
    let changed = policy("to-a", "a", 5);
    let fourth = gateway.compile(&with(&[&changed, &to_b]));
    assert_eq!(ids(&fourth), [("to-b", 5), ("to-a", 4)]);
    let fifth = gateway.compile(&with(&[&to_b, &changed]));
    assert_eq!(ids(&fifth), [("to-a", 6), ("to-b", 5)]);
    let generations = [first, second, third, fourth, fifth].map(|compiled| compiled.generation.0);
    assert_eq!(generations, [1, 2, 3, 4, 5]);
    assert_eq!(PolicyId(6), gateway.compile(&with(&[&to_b, &changed])).spd.policies()[0].1.id);
}

#[test]
fn numbers_go_on_after_a_kill_and_a_lost_record_costs_its_own_sa_only() {
    let mut gateway = Gateway::new();
    gateway.compile(&two_peers()).out()[0].sequence.draw(64).whole().unwrap();
    let mut gateway = gateway.restart();
    let compiled = gateway.compile(&two_peers());
    assert_eq!(compiled.out()[0].sequence.draw(1).whole(), Ok(65));
    let lost = compiled.outbound_fingerprint(SaId(0));
    drop(compiled);
    let record = gateway.root.path().join(format!("state/sequence/{lost}.out"));
    std::fs::remove_file(record).unwrap();
    let mut gateway = gateway.restart();
    let compiled = gateway.compile(&two_peers());
    let [refused] = &compiled.refused[..] else { panic!("one is refused") };
    assert_eq!((refused.peer.as_str(), refused.direction), ("a", Direction::Outbound));
    assert_eq!((refused.fingerprint, refused.spi.value()), (lost, 0x1001));
    assert_eq!(refused.reason, Refusal::RecordMissing { used: RESERVATION_STEP });
    assert!(refused.to_string().starts_with("peer a: SPI 0x00001001 is not used"), "{refused}");
    assert!(compiled.all_sets()[0].outbound.is_empty(), "no_sa");
    assert_eq!((compiled.all_sets()[1].outbound.len(), compiled.inb().len()), (1, 2));
    // Given a new key it sends again.
    gateway.write_keys("a", &[("out", 0x1001, 7), ("in", 0x2001, 2)]);
    let compiled = gateway.compile(&two_peers());
    assert_eq!((compiled.refused.len(), compiled.out().len()), (0, 2));
    assert_eq!(compiled.out()[0].sequence.draw(1).whole(), Ok(1));
}

#[test]
fn what_does_not_compile_takes_nothing() {
    let mut gateway = Gateway::new();
    let mut loaded = gateway.load(&format!("{PORTS}{}", two_peers().concat()));
    loaded.validated.peers[1].replay_window = 33;
    let error = gateway.compiler.compile(&loaded, &mut gateway.keys).err();
    assert!(matches!(error, Some(CompileError::Window(_))), "{error:?}");
    loaded.validated.peers.truncate(1);
    let error = gateway.compiler.compile(&loaded, &mut gateway.keys).err();
    assert!(matches!(error, Some(CompileError::OtherKeys { keys: 2, peers: 1 })), "{error:?}");
    let left = std::fs::read_dir(gateway.root.path().join("state/sequence")).unwrap();
    let names: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["lock"]);
    let compiled = gateway.compile(&two_peers());
    assert_eq!(compiled.generation, Generation(1));
    assert_eq!(ids(&compiled), [("to-b", 1), ("to-a", 0)]);
}

#[test]
fn snapshot_takes_ports_and_routes_from_the_kernel_and_the_rest_from_the_configuration() {
    let mut gateway = Gateway::new();
    let compiled = gateway.compile(&two_peers());
    let live = live_parts(compiled.validated(), &View::default());
    let snapshot = compiled.assemble(&live, None).unwrap();
    assert_eq!(snapshot.generation(), Generation(1));
    assert_eq!(snapshot.sources().ports, live.ports);
    assert!(snapshot.workers() > 1, "replay windows are locked unless told otherwise");
    assert!(Arc::ptr_eq(snapshot.outbound().next().unwrap(), &compiled.out()[0]));
    assert!(std::ptr::eq(snapshot.spd(), &*compiled.spd), "no policy is copied");
    let fewer = PORTS.replace("[port.lan]", "[port.dmz]");
    let other = gateway.load(&format!("{fewer}{}", two_peers().concat()));
    let live = live_parts(&other.validated, &View::default());
    let error = compiled.assemble(&live, None).err();
    assert!(matches!(error, Some(SnapshotError::Dangling(_))), "{error:?}");
}
