//! Limits of SAs over changes of configuration.

use std::sync::Arc;

use config::parse;
use control::{Compiled, Compiler};
use ipsec::{Account, Allowance, Limit, Limits};
use keystate::{HostIdentity, KeyState};

const CONFIG: &str = r#"
[node]
name = "gw"
[port.lan]
netdev = "eth1"
side = "protected"
[port.wan]
netdev = "eth0"
side = "unprotected"
[peer.a]
local = "192.0.2.1"
remote = "198.51.100.1"
keys = "file:a.keys"
manual = "laboratory"
suite = "aes-128-gcm"
"#;

struct Gateway {
    root: tempfile::TempDir,
    keys: KeyState,
    compiler: Compiler,
}

impl Gateway {
    fn new() -> Gateway {
        let root = tempfile::tempdir().unwrap();
        let host = HostIdentity::new("machine", "boot");
        let state = root.path().join("state");
        let keys = KeyState::open_as(&root.path().join("run"), &state, &host).unwrap();
        let [out, inbound] = ["01", "02"].map(|byte| byte.repeat(20));
        let text = format!("out 0x1001 {out}\nin 0x2001 {inbound}\n");
        config::write_key_file(&root.path().join("a.keys"), &text).unwrap();
        Gateway { root, keys, compiler: Compiler::new() }
    }

    /// Compiles the configuration with keys of `[peer.a.lifetime]`.
    fn compile(&mut self, more: &str, lifetime: &str) -> Compiled {
        let section = match lifetime {
            "" => String::new(),
            keys => format!("[peer.a.lifetime]\n{keys}\n"),
        };
        let text = format!("{CONFIG}{more}\n{section}");
        let parsed = parse(&text, "lockgate.toml").unwrap_or_else(|errors| panic!("{errors}"));
        let loaded = parsed.load_keys(self.root.path()).unwrap();
        self.compiler.compile(&loaded, &mut self.keys).unwrap()
    }
}

/// Limits and accounts of the outbound and of the inbound SA.
fn allowances(compiled: &Compiled) -> [Option<Allowance>; 2] {
    let outbound = compiled.sad.outbound().next().unwrap().allowance.clone();
    [outbound, compiled.sad.inbound().next().unwrap().allowance.clone()]
}

fn accounts(compiled: &Compiled) -> [Arc<Account>; 2] {
    allowances(compiled).map(|allowance| allowance.expect("limits").account)
}

fn take(allowance: &Allowance, packets: u32) -> u32 {
    let sizes = || std::iter::repeat_n(100, packets as usize);
    allowance.take(packets, u64::from(packets) * 100, sizes)
}

#[test]
fn a_peer_without_limits_counts_nothing() {
    let compiled = Gateway::new().compile("", "");
    assert_eq!(allowances(&compiled), [None, None]);
}

#[test]
fn each_sa_of_a_peer_has_the_limits_and_an_account_of_its_own() {
    let keys = "soft_packets = 7\nhard_bytes = \"1K\"\nhard_seconds = 9\nsoft_idle_seconds = 3";
    let compiled = Gateway::new().compile("", keys);
    let [out, inbound] = allowances(&compiled).map(Option::unwrap);
    let soft = Limits { packets: Some(7), idle_seconds: Some(3), ..Limits::NONE };
    let hard = Limits { bytes: Some(1024), seconds: Some(9), ..Limits::NONE };
    assert_eq!((out.lifetime.soft, out.lifetime.hard), (soft, hard));
    assert_eq!(out.lifetime, inbound.lifetime);
    assert!(!Arc::ptr_eq(&out.account, &inbound.account));
}

#[test]
fn a_change_of_limits_keeps_the_use_and_an_end_is_final() {
    let mut gateway = Gateway::new();
    let first = gateway.compile("", "hard_packets = 10");
    let [out, _] = allowances(&first).map(Option::unwrap);
    assert_eq!(take(&out, 8), 8);
    // Other limits, another carriage, none, and the first again.
    let steps = [
        ("dscp = 8", "hard_packets = 9", 1),
        ("", "hard_packets = 9", 0),
        ("", "", 4),
        ("", "hard_packets = 14", 1),
    ];
    for (more, lifetime, left) in steps {
        let next = gateway.compile(more, lifetime);
        let [Some(next_out), _] = allowances(&next) else { panic!("it is counted on") };
        assert!(Arc::ptr_eq(&next_out.account, &out.account), "{lifetime}");
        assert_eq!(take(&next_out, 4), left, "{lifetime}");
    }
    let [account, _] = accounts(&gateway.compile("", "hard_packets = 10"));
    account.end(Limit::Packets);
    let [Some(raised), _] = allowances(&gateway.compile("", "hard_packets = 1000")) else {
        panic!("it has limits")
    };
    assert_eq!((take(&raised, 1), raised.account.ended()), (0, Some(Limit::Packets)));
}

#[test]
fn limits_that_come_later_count_the_numbers_that_were_used_before() {
    let mut gateway = Gateway::new();
    let first = gateway.compile("", "");
    first.sad.outbound().next().unwrap().sequence.draw(6).whole().unwrap();
    first.sad.inbound().next().unwrap().window.commit(4).unwrap();
    let [out, inbound] = allowances(&gateway.compile("", "hard_packets = 9")).map(Option::unwrap);
    assert_eq!((out.account.used(0).packets, inbound.account.used(0).packets), (6, 4));
    assert_eq!((take(&out, 5), take(&inbound, 9)), (3, 5));
}

#[test]
fn an_sa_whose_limits_do_not_change_is_the_same() {
    let mut gateway = Gateway::new();
    let [first, second] = [(); 2].map(|()| gateway.compile("", "hard_packets = 9"));
    let [one, two] = [&first, &second].map(|compiled| compiled.sad.outbound().next().unwrap());
    assert!(Arc::ptr_eq(one, two));
    let third = gateway.compile("", "hard_packets = 10");
    let three = third.sad.outbound().next().unwrap();
    assert!(!Arc::ptr_eq(one, three) && one.id == three.id);
    assert!(Arc::ptr_eq(&one.sequence, &three.sequence));
}
