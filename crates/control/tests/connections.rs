//! The table of connections over configurations that come and go.

use std::sync::Arc;

use config::{Loaded, ReplayKeys, parse};
use control::{Compiled, Compiler, live_parts_towards};
use dataplane::Generation;
use keystate::{HostIdentity, KeyState};
use linux::View;

const TEXT: &str = r#"
[node]
name = "gw"
[port.lan]
netdev = "eth1"
side = "protected"
groups_in = ["web"]
[port.wan]
netdev = "eth0"
side = "unprotected"
[group.web]
[[rule]]
group = "web"
action = "reflect"
from = ["any"]
to = ["any"]
[connections]
max = 64
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
        let (run, state) = (root.path().join("run"), root.path().join("state"));
        let keys = KeyState::open_as(&run, &state, &host).unwrap();
        Gateway { root, keys, compiler: Compiler::new() }
    }

    fn compile(&mut self, text: &str) -> Compiled {
        let parsed = parse(text, "a.toml").unwrap_or_else(|errors| panic!("{errors}"));
        let loaded: Loaded = parsed.load_keys_in(self.root.path()).unwrap();
        self.compiler.compile(&loaded, &mut self.keys).unwrap()
    }
}

/// Bytes of the smallest ring of half-open connections.
const RING_BYTES: usize = 256 * 12;

fn permitting() -> String {
    TEXT.replace("reflect", "permit")
}

#[test]
fn the_table_is_made_for_the_first_reflect_rule_and_stays() {
    let mut gateway = Gateway::new();
    let without = gateway.compile(&permitting());
    assert!(without.connections().is_none());
    let first = gateway.compile(TEXT);
    let table = first.connections().expect("a rule reflects").clone();
    assert_eq!(table.bytes(), 64 * 128 + RING_BYTES);
    let live = live_parts_towards(
        first.settings(),
        &View::default(),
        first.slots().clone(),
        first.remotes(),
    );
    let snapshot = first.assemble(&live, None).unwrap();
    assert!(std::ptr::eq(snapshot.connections().expect("it has it"), &*table));
    let again = gateway.compile(&permitting());
    for later in [&again, &first.copied(), &gateway.compile(TEXT)] {
        assert!(Arc::ptr_eq(later.connections().expect("it stays"), &table));
    }
}

#[test]
fn a_table_of_a_configuration_that_never_ran_is_made_again() {
    let mut gateway = Gateway::new();
    drop(gateway.compile(TEXT));
    let other = gateway.compile(&TEXT.replace("max = 64", "max = 128"));
    assert_eq!(other.connections().unwrap().bytes(), 128 * 128 + RING_BYTES);
    // One that runs is kept: what else is written needs a restart.
    let third = gateway.compile(TEXT);
    assert!(Arc::ptr_eq(third.connections().unwrap(), other.connections().unwrap()));
    drop((other, third));
    assert!(gateway.compile(&permitting().replace("max = 64", "max = 9")).connections().is_none());
}

#[test]
fn a_configuration_that_runs_nowhere_has_a_table_if_a_rule_reflects() {
    for (text, has_one) in [(TEXT.to_owned(), true), (permitting(), false)] {
        let config = parse(&text, "a.toml").unwrap().validated;
        let keys = ReplayKeys::stand_ins(&config).unwrap();
        let snapshot = control::compile(&config, keys, Generation(1)).unwrap();
        assert_eq!(snapshot.connections().is_some(), has_one);
    }
}
