//! The lab of tests that need a whole daemon: the control thread's state over a simulated machine,
//! with directories of its own.

use config::Loaded;
use control::Compiler;
use tempfile::TempDir;

use crate::acquires::AcquireDesk;
use crate::endpoints::EndpointDesk;
use crate::events::Events;
use crate::gateway::simulated::{Simulated, StartedGateway, started, view};
use crate::netdev::Claim;
use crate::revisions::Revisions;
use crate::state::{State, StateParts};
use crate::workers::Workers;

/// A peer, and the port that leads to it. Its key file lies in the lab's directory.
pub(crate) const PEER: &str = r#"
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

/// A daemon's state without its tasks. No worker runs, and no netdev is attached yet.
pub(crate) struct TestLab {
    pub(crate) folder: TempDir,
    pub(crate) machine: Simulated,
    pub(crate) compiler: Compiler,
    pub(crate) state: State,
    pub(crate) events: Events,
}

impl TestLab {
    /// Starts a gateway named `gw` that has these sections beside `[node]`.
    pub(crate) fn new(sections: &str) -> TestLab {
        let folder = tempfile::tempdir().unwrap();
        let lines = format!("out 0x1001 {}\nin 0x2001 {}\n", "01".repeat(20), "02".repeat(20));
        config::write_key_file(&folder.path().join("a.keys"), &lines).unwrap();
        let loaded = load(&folder, &configuration(&folder, "gw", sections));
        let StartedGateway { gateway, machine, compiler, keys } =
            started(&loaded, view(), folder.path());
        let events = Events::new();
        let state = State::new(StateParts {
            gateway,
            workers: Workers::new(Vec::new()),
            file: folder.path().join("gw.toml"),
            base: folder.path().into(),
            revisions: Revisions::open(folder.path()).unwrap(),
            keystate: keys,
            events: events.clone(),
            acquires: AcquireDesk::new(compiler.acquires().clone()),
            endpoints: EndpointDesk::new(crate::kernel_tier::KernelTier::off(), events.clone()),
            namespace: Claim::Squatted,
        });
        TestLab { folder, machine, compiler, state, events }
    }
}

/// Returns the text of a configuration with this name of the node and these sections.
pub(crate) fn configuration(folder: &TempDir, name: &str, sections: &str) -> String {
    let state_dir = folder.path().display();
    format!("[node]\nname = \"{name}\"\nstate_dir = \"{state_dir}\"\n{sections}")
}

fn load(folder: &TempDir, text: &str) -> Loaded {
    config::parse(text, "test").unwrap().load_keys(folder.path()).unwrap()
}
