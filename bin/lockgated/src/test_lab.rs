//! The lab of tests that need a whole daemon: the control thread's state over a simulated machine,
//! with directories of its own.

use std::sync::Arc;

use config::Loaded;
use control::Compiler;
use linux::View;
use tempfile::TempDir;
use tokio::sync::mpsc;

use crate::acquires::AcquireDesk;
use crate::backend_impl::{Daemon, Desks};
use crate::changer::Changer;
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
        TestLab::over(sections, view())
    }

    /// The same over this state of the kernel's network.
    pub(crate) fn over(sections: &str, view: View) -> TestLab {
        let folder = tempfile::tempdir().unwrap();
        let lines = format!("out 0x1001 {}\nin 0x2001 {}\n", "01".repeat(20), "02".repeat(20));
        config::write_key_file(&folder.path().join("a.keys"), &lines).unwrap();
        let loaded = load(&folder, &configuration(&folder, "gw", sections));
        let StartedGateway { gateway, machine, compiler, keys } =
            started(&loaded, view, folder.path());
        let events = gateway.events.clone();
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

/// A daemon with its tasks over a simulated machine.
pub(crate) struct RunningLab {
    pub(crate) folder: TempDir,
    pub(crate) machine: Simulated,
    pub(crate) daemon: Arc<Daemon>,
    pub(crate) events: Events,
}

impl RunningLab {
    /// Starts the tasks of a [`TestLab`] with these sections.
    pub(crate) fn new(sections: &str) -> RunningLab {
        let TestLab { folder, machine, compiler, mut state, events } = TestLab::new(sections);
        let desks = Desks::of(&state);
        let picture = state.watched();
        let (ordering, mut orders) = mpsc::channel(1);
        let (asking, asks) = mpsc::unbounded_channel();
        let changer =
            Changer::new(compiler, picture.clone(), ordering.clone(), asks, events.clone());
        tokio::spawn(changer.run());
        tokio::spawn(async move {
            while let Some(order) = orders.recv().await {
                state.obey(order).await.unwrap();
            }
        });
        let daemon = Daemon::new(picture, ordering, asking, events.clone(), desks);
        RunningLab { folder, machine, daemon, events }
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
