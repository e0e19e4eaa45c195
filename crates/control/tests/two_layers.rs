//! Single policies that come and go where a peer is behind another.

use config::validated::Policy;
use config::{parse, parse_policies};
use control::{ChangeRefused, Compiled, Compiler, OuterWithoutPolicy, takeovers_of};
use keystate::{HostIdentity, KeyState};
use policy::Direction;

const CONFIG: &str = r#"
[node]
name = "gw"
[port.lan]
netdev = "eth1"
side = "protected"
[port.wan]
netdev = "eth0"
side = "unprotected"
[peer.provider]
local = "192.0.2.1"
remote = "198.51.100.1"
keys = "api"
suite = "aes-128-gcm"
[peer.branch]
local = "192.0.2.11"
remote = "203.0.113.9"
keys = "api"
suite = "aes-128-gcm"
outer = "provider"
[[policy]]
name = "net"
peer = "branch"
local = ["10.1.0.0/16"]
remote = ["10.3.0.0/16"]
"#;

/// A policy between these addresses.
fn policy(name: &str, of: &str, [local, remote]: [&str; 2], more: &str) -> String {
    let of = match of {
        "bypass" | "discard" => format!("action = \"{of}\""),
        peer => format!("peer = \"{peer}\""),
    };
    format!(
        "[[policy]]\nname = \"{name}\"\n{of}\nlocal = [\"{local}\"]\nremote = [\"{remote}\"]\n\
         {more}\n"
    )
}

const ENDS: [&str; 2] = ["192.0.2.11", "203.0.113.9"];

/// The policy for ESP of the inner tunnel.
fn esp(name: &str, of: &str, more: &str) -> String {
    policy(name, of, ENDS, &format!("protocol = \"esp\"\n{more}"))
}

struct Gateway {
    root: tempfile::TempDir,
    compiler: Compiler,
    running: Compiled,
}

impl Gateway {
    /// A gateway that has the policy for ESP at priority 100.
    fn new() -> Gateway {
        let root = tempfile::tempdir().unwrap();
        let host = HostIdentity::new("machine", "boot");
        let (run, state) = (root.path().join("run"), root.path().join("state"));
        let mut keys = KeyState::open_as(&run, &state, &host).unwrap();
        let text = CONFIG.to_owned() + &esp("esp", "provider", "priority = 100");
        let loaded = parse(&text, "gw.toml").unwrap().load_keys(root.path()).unwrap();
        let mut compiler = Compiler::new();
        let running = compiler.compile(&loaded, &mut keys).unwrap();
        Gateway { root, compiler, running }
    }

    fn policies(&self, text: &str) -> Vec<Policy> {
        parse_policies(text, "change", self.running.settings()).unwrap().policies
    }

    /// Makes a change; the file that it comes to is one that may run, or it is refused.
    fn change(&mut self, remove: &[&str], add: &str) -> Result<(), ChangeRefused> {
        let remove: Vec<String> = remove.iter().map(|name| (*name).to_owned()).collect();
        let add = self.policies(add);
        let looked_at = takeovers_of(&self.running, &remove, &add).map(drop);
        let made = self.compiler.change_policies(&self.running, &remove, add);
        assert_eq!(looked_at.is_ok(), made.is_ok(), "what a look says is what happens");
        self.running = made?;
        let text = self.running.validated().effective();
        let whole = parse(&text, "effective").unwrap_or_else(|errors| panic!("{errors}"));
        whole.load_keys(self.root.path()).unwrap();
        Ok(())
    }

    fn refused(&mut self, remove: &[&str], add: &str) -> OuterWithoutPolicy {
        let before = self.running.generation;
        match self.change(remove, add) {
            Err(ChangeRefused::Outer(why)) => {
                assert_eq!(self.running.generation, before);
                why
            }
            other => panic!("{remove:?} {add}: {other:?}"),
        }
    }
}

#[test]
fn a_change_that_takes_an_inner_tunnels_esp_from_its_outer_peer_is_refused() {
    use Direction::{Inbound, Outbound};
    let mut gateway = Gateway::new();
    let why = gateway.refused(&["esp"], "");
    assert_eq!((why.inner.as_str(), why.outer.as_str()), ("branch", "provider"));
    assert_eq!((why.direction, &why.by), (Outbound, &None));
    let text = why.to_string();
    assert!(text.contains("ESP between 192.0.2.11 and 203.0.113.9"), "{text}");
    for (of, way, expected) in [
        ("bypass", "", Outbound),
        ("discard", "direction = \"outbound\"", Outbound),
        ("bypass", "direction = \"inbound\"", Inbound),
        // One that opens the inner layer by the inner peer's own SA.
        ("branch", "", Outbound),
        // Of the outer peer, by one port alone.
        ("provider", "ports = [\"lan\"]", Outbound),
    ] {
        for priority in [100, 900] {
            let more = format!("priority = {priority}\n{way}");
            for wide in [false, true] {
                let add = match wide {
                    true => policy("above", of, ["192.0.2.0/24", "203.0.113.0/24"], &more),
                    false => esp("above", of, &more),
                };
                let why = gateway.refused(&[], &add);
                assert_eq!((why.direction, why.by.as_deref()), (expected, Some("above")), "{add}");
                assert!(why.to_string().contains("policy \"above\""), "{why}");
            }
        }
    }
    // Replaced by one that holds one way.
    let one_way = esp("esp", "provider", "direction = \"outbound\"");
    let why = gateway.refused(&["esp"], &one_way);
    assert_eq!((why.direction, why.by), (Inbound, None));
}

#[test]
fn a_change_that_leaves_an_inner_tunnels_esp_to_its_outer_peer_is_made() {
    let mut gateway = Gateway::new();
    let below = esp("below", "discard", "priority = 99");
    gateway.change(&[], &below).unwrap();
    // Beside it: another protocol, other ends.
    let beside = policy("udp", "bypass", ENDS, "protocol = \"udp\"\npriority = 900")
        + &policy("far", "bypass", ["192.0.2.12", ENDS[1]], "priority = 900");
    gateway.change(&[], &beside).unwrap();
    // Taken away and replaced in one step, by one a direction.
    let both = esp("out", "provider", "direction = \"outbound\"\npriority = 200")
        + &esp("in", "provider", "direction = \"inbound\"\npriority = 200");
    gateway.change(&["esp"], &both).unwrap();
    gateway.change(&["below", "udp", "far", "net"], "").unwrap();
    let why = gateway.refused(&["in"], "");
    assert_eq!((why.direction, why.by), (Direction::Inbound, None));
}
