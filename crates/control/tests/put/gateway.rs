//! A gateway whose SAs are put, without a daemon around it.

use std::collections::HashMap;
use std::sync::Arc;

use config::parse;
use control::{
    ChangedSas, Compiled, Compiler, DeleteRefusal, GoneSa, KeyManager, LiveParts, PutRefusal,
    PutSa, SaName, live_parts,
};
use dataplane::Snapshot;
use ipsec::{SaId, Spi};
use keystate::{HostIdentity, KeyOrigin, KeyState};
use linux::View;
use policy::Direction::{self, Inbound, Outbound};
use zeroize::Zeroizing;
pub(crate) const PORTS: &str = r#"
[node]
name = "gw"
[port.lan]
netdev = "eth1"
side = "protected"
[port.wan]
netdev = "eth0"
side = "unprotected"
"#;

pub(crate) const SECOND: u64 = 1_000_000_000;

pub(crate) fn peer(name: &str, remote: &str, more: &str) -> String {
    format!(
        "[peer.{name}]\nlocal = \"192.0.2.1\"\nremote = \"{remote}\"\nsuite = \"aes-128-gcm\"\n\
         {more}\n[[policy]]\nname = \"{name}\"\npeer = \"{name}\"\nlocal = [\"any\"]\n\
         remote = [\"any\"]\n"
    )
}

/// Makes the policy of a peer at 198.51.100.1 one between the gateways themselves.
pub(crate) fn between_gateways(peer: &str) -> String {
    peer.replace("local = [\"any\"]", "local = [\"192.0.2.1\"]")
        .replace("remote = [\"any\"]", "remote = [\"198.51.100.1\"]")
}

pub(crate) fn api_peer(name: &str, remote: &str) -> String {
    peer(name, remote, "keys = \"api\"")
}

/// Peers `a` and `b` whose SAs are put, and `f` with a key file.
pub(crate) fn peers() -> String {
    [
        api_peer("a", "198.51.100.1"),
        api_peer("b", "198.51.100.2"),
        peer("f", "198.51.100.3", "keys = \"file:f.keys\"\nmanual = \"laboratory\""),
    ]
    .concat()
}

pub(crate) struct Gateway {
    pub(crate) root: tempfile::TempDir,
    pub(crate) keys: KeyState,
    pub(crate) compiler: Compiler,
    pub(crate) compiled: Compiled,
    pub(crate) live: LiveParts,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) now_ns: u64,
}

impl Gateway {
    pub(crate) fn new(sections: &str) -> Gateway {
        let root = tempfile::tempdir().unwrap();
        let host = HostIdentity::new("machine", "boot");
        let state = root.path().join("state");
        let mut keys = KeyState::open_as(&root.path().join("run"), &state, &host).unwrap();
        let text = format!("out 0x1001 {}\nin 0x2001 {}\n", "f1".repeat(20), "f2".repeat(20));
        config::write_key_file(&root.path().join("f.keys"), &text).unwrap();
        let mut compiler = Compiler::new();
        let loaded = parse(&format!("{PORTS}{sections}"), "test").unwrap();
        let loaded = loaded.load_keys(root.path()).unwrap_or_else(|errors| panic!("{errors}"));
        let compiled = compiler.compile(&loaded, &mut keys).unwrap();
        let live = live_parts(compiled.settings(), &View::default());
        let snapshot = compiled.assemble(&live, None).unwrap();
        Gateway { root, keys, compiler, compiled, live, snapshot, now_ns: SECOND }
    }

    /// Puts SAs as the daemon does.
    pub(crate) fn put(&mut self, asked: Vec<PutSa>) -> Result<Vec<GoneSa>, PutRefusal> {
        let plan = self.compiled.plan_put(asked).map_err(|refused| refused.why)?;
        let proofs = self.keys.use_all_once(&plan.fingerprints(), KeyOrigin::NamedRun).unwrap();
        let changed = self.compiled.with_put(plan, proofs, self.now_ns).unwrap();
        Ok(self.go_over(changed))
    }

    pub(crate) fn delete(&mut self, names: &[SaName]) -> Result<Vec<GoneSa>, DeleteRefusal> {
        let changed = self.compiled.without(names).map_err(|(_, refusal)| refusal)?;
        Ok(self.go_over(changed))
    }

    /// Goes on until so many nanoseconds have passed, and retires what was replaced.
    pub(crate) fn pass(&mut self, ns: u64) -> Vec<GoneSa> {
        self.now_ns += ns;
        let retired = self.compiled.retired(self.now_ns);
        retired.map_or(Vec::new(), |changed| self.go_over(changed))
    }

    pub(crate) fn go_over(&mut self, ChangedSas { compiled, gone }: ChangedSas) -> Vec<GoneSa> {
        self.compiled = compiled;
        self.snapshot = self.compiled.assemble(&self.live, Some(&self.snapshot)).unwrap();
        gone
    }

    pub(crate) fn apply(&mut self, sections: &str) -> Result<(), control::CompileError> {
        let loaded = parse(&format!("{PORTS}{sections}"), "test").unwrap();
        let loaded = loaded.load_keys(self.root.path()).unwrap();
        let prepared = self.compiler.prepare(loaded.validated.clone())?;
        let running = Some(&self.compiled);
        let compiled = self.compiler.finish(prepared, &loaded.keys, &mut self.keys, running)?;
        self.live = live_parts(compiled.settings(), &View::default());
        self.live.slots = compiled.slots().clone();
        self.go_over(ChangedSas { compiled, gone: Vec::new() });
        Ok(())
    }

    /// SPIs of a peer's outbound SAs, in their order.
    pub(crate) fn order(&self, peer: &str) -> Vec<u32> {
        let (_, set) = self.snapshot.sets().find(|(_, set)| set.peer == peer).unwrap();
        set.outbound.iter().map(|sa| self.snapshot.outbound_sa(*sa).spi.value()).collect()
    }

    pub(crate) fn opens(&self, value: u32) -> bool {
        self.snapshot.inbound_by_spi(spi(value)).is_some()
    }

    /// An authentic packet comes.
    pub(crate) fn receives(&self, value: u32, number: u64) {
        let sa = self.snapshot.inbound_by_spi(spi(value)).unwrap();
        sa.window.commit(number).unwrap();
    }

    /// Direction, SPI, peer and slot of all SAs.
    pub(crate) fn all(&self) -> HashMap<(Direction, u32, String), SaId> {
        let peer = |set| self.compiled.sets().find(|known| known.id == set).unwrap().peer.clone();
        let outbound = self.snapshot.outbound();
        let outbound = outbound.map(|sa| ((Outbound, sa.spi.value(), peer(sa.set)), sa.id));
        let inbound = self.snapshot.inbound();
        let inbound = inbound.map(|sa| ((Inbound, sa.spi.value(), peer(sa.set)), sa.id));
        outbound.chain(inbound).collect()
    }
}

pub(crate) fn spi(value: u32) -> Spi {
    Spi::new(value).unwrap()
}

pub(crate) fn name(direction: Direction, value: u32) -> SaName {
    SaName { direction, spi: spi(value), peer: None }
}

/// An SA of peer `a` whose key is made of a number.
pub(crate) fn sa(direction: Direction, value: u32, key: u32) -> PutSa {
    let bytes: Vec<u8> = key.to_be_bytes().into_iter().cycle().take(20).collect();
    PutSa {
        manager: KeyManager::Api,
        peer: "a".into(),
        direction,
        spi: spi(value),
        key: Zeroizing::new(bytes),
        suite: None,
        numbers: None,
        window: None,
        lifetime: None,
        replaces: Vec::new(),
        worker: None,
        offload: None,
        ends: None,
    }
}

pub(crate) fn instead_of(old: u32, sa: PutSa) -> PutSa {
    PutSa { replaces: vec![spi(old)], ..sa }
}

pub(crate) fn of(peer: &str, sa: PutSa) -> PutSa {
    PutSa { peer: peer.into(), ..sa }
}
