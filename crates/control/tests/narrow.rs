//! Ports too narrow for the tunnels through them.

use config::{Diagnostic, Parsed, Severity, parse};
use dataplane::Generation;
use ipsec::SaId;

/// A gateway whose tunnel goes by `wan`, with an inner network of each family.
fn gateway(mtu: u32, outer: [&str; 2], suite: &str, inner: [&str; 2]) -> String {
    let ([own, remote], [local, far]) = (outer, inner);
    let length = if own.contains(':') { 64 } else { 24 };
    format!(
        r#"[node]
name = "gw-a"
[port.lan]
netdev = "eth1"
side = "protected"
mtu = 9000
[port.wan]
netdev = "eth0"
side = "unprotected"
mtu = {mtu}
addresses = ["{own}/{length}"]
[peer.berlin]
local = "{own}"
remote = "{remote}"
keys = "file:berlin.keys"
manual = "laboratory"
suite = "{suite}"
[[policy]]
name = "berlin-net"
peer = "berlin"
local = ["{local}"]
remote = ["{far}"]
"#
    )
}

const V4: [&str; 2] = ["192.0.2.1", "192.0.2.7"];
const V6: [&str; 2] = ["2001:db8::1", "2001:db8::7"];
const INNER_V4: [&str; 2] = ["10.1.0.0/16", "10.2.0.0/16"];
const INNER_V6: [&str; 2] = ["2001:db8:1::/48", "2001:db8:2::/48"];
const SUITES: [&str; 2] = ["aes-128-gcm", "aes-256-gcm"];

/// The problem at the MTU, if there is one.
fn judged(text: &str) -> (Option<Diagnostic>, Option<Parsed>) {
    let at_mtu = |problems: &[Diagnostic]| problems.iter().find(|p| p.place.line == 10).cloned();
    match parse(text, "narrow.toml") {
        Ok(parsed) => (at_mtu(&parsed.warnings), Some(parsed)),
        Err(errors) => (at_mtu(&errors.problems), None),
    }
}

/// Returns the MTU that the walk tells hosts behind the gateway.
fn inner_mtu(parsed: &Parsed) -> u32 {
    let keys = config::ReplayKeys::stand_ins(&parsed.validated).expect("keys");
    let snapshot = control::compile(&parsed.validated, keys, Generation(1)).expect("compiles");
    let path_mtu = parsed.validated.ports[1].mtu as usize;
    snapshot.outbound_sa(SaId(0)).largest_inner(path_mtu) as u32
}

#[test]
fn ipv6_policies_through_a_tunnel_of_less_than_1280_bytes_are_warned_of() {
    for (outer, least) in [(V4, 1336), (V6, 1356)] {
        for suite in SUITES {
            let (problem, parsed) = judged(&gateway(least - 1, outer, suite, INNER_V6));
            let (problem, parsed) = (problem.expect("a warning"), parsed.expect("taken"));
            assert_eq!(problem.severity, Severity::Warning);
            let inner = inner_mtu(&parsed);
            assert!(inner < 1280);
            let text = problem.to_string();
            assert!(text.contains("narrow.toml:10:7: warning: "), "{text}");
            assert!(
                text.contains(&format!(
                    "peer `berlin` carries inner packets of at most {inner} bytes"
                )),
                "{text}"
            );
            assert!(text.contains(&format!("port `wan` needs an mtu of {least}")), "{text}");

            let (problem, parsed) = judged(&gateway(least, outer, suite, INNER_V6));
            assert!(problem.is_none(), "{problem:?}");
            assert!(inner_mtu(&parsed.expect("taken")) >= 1280);
            let (problem, _) = judged(&gateway(least - 1, outer, suite, INNER_V4));
            assert!(problem.is_none(), "IPv4 only: {problem:?}");
            let inbound = gateway(least - 1, outer, suite, INNER_V6) + "direction = \"inbound\"\n";
            assert!(judged(&inbound).0.is_none(), "nothing IPv6 is sealed");
        }
    }
}

#[test]
fn a_port_that_leaves_a_tunnel_less_than_68_bytes_is_refused() {
    for suite in SUITES {
        for mtu in [68, 100, 123] {
            let (problem, parsed) = judged(&gateway(mtu, V4, suite, INNER_V4));
            assert!(parsed.is_none(), "{mtu} was taken");
            let problem = problem.expect("an error");
            assert_eq!(problem.severity, Severity::Error);
            let text = problem.to_string();
            assert!(text.contains("too few for IP") && text.contains("write mtu = 124"), "{text}");
        }
        let (problem, parsed) = judged(&gateway(124, V4, suite, INNER_V4));
        assert!(problem.is_none(), "{problem:?}");
        assert!(inner_mtu(&parsed.expect("taken")) >= 68);
    }
}
