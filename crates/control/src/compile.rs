//! Compiles a validated configuration and its keys to the parts of a snapshot.

use std::collections::HashMap;
use std::sync::Arc;

use config::validated::{KeySource, PathMtuUse, Peer, PeerPlace};
use config::{ConfiguredRoutes, Keys, ReplayKeys, Validated};
use dataplane::connections::Connections;
use dataplane::{
    Generation, Overlays, PathMtu, PortId, SaSet, Snapshot, SnapshotError, SnapshotParts,
};
use ipsec::{
    Allowance, InboundSa, Lifetime, OutboundSa, ReplayWindow, SaError, SaId, SequenceCounter,
    WindowSizeError,
};
use policy::{Direction, PolicyId, SaSetId, Spd, SpdError};
use wire::Vni;

use crate::identifications::identifications;
use crate::overlays::{self, EndpointsError};

/// The reason why a validated configuration cannot be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The policies are too many for the classifier: validation let a mistake through.
    #[error(transparent)]
    Spd(#[from] SpdError),
    /// An SA cannot be made: validation let a mistake through.
    #[error(transparent)]
    Sa(#[from] SaError),
    /// A replay window cannot be made: validation let a mistake through.
    #[error(transparent)]
    Window(#[from] WindowSizeError),
    /// The parts do not fit together: validation let a mistake through.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// No id is left: too many policies were made, or too many configurations with ports are kept.
    #[error("no id is left for another policy or port: restart lockgated")]
    OutOfNumbers,
    /// There is no random number for the table of connections: the kernel refuses one.
    #[error("no random number for the table of connections: {0}")]
    NoSecret(getrandom::Error),
    /// There is no table of endpoints.
    #[error(transparent)]
    Endpoints(#[from] EndpointsError),
    /// Another configuration was compiled since this one was prepared: the caller is at fault.
    #[error("another configuration was compiled in between: apply this one again")]
    Overtaken,
    /// Keys and configuration belong to different files: the caller is at fault.
    #[error("keys of {keys} peers for {peers} peers")]
    OtherKeys {
        /// Peers that the keys are of.
        keys: usize,
        /// Peers of the configuration.
        peers: usize,
    },
}

/// Compiles a configuration by itself, with its own addresses and routes. Ports keep their order
/// and the host port comes last; policy and SA-set ids count the policies and peers in the order of
/// the file, and the rules of groups follow the policies. Each SA begins with a new sequence
/// counter or replay window, so it takes only keys that have never sealed. Configured ones do not
/// compile:
///
/// ```compile_fail,E0308
/// fn seal(config: &config::Validated, configured: config::Keys) {
///     let _ = control::compile(config, configured, dataplane::Generation(1));
/// }
/// ```
///
/// # Errors
/// [`CompileError`], none of which is the fault of a file that was validated.
pub fn compile(
    config: &Validated,
    keys: ReplayKeys,
    generation: Generation,
) -> Result<Snapshot, CompileError> {
    let keys = keys.into_keys();
    if keys.peers.len() != config.peers.len() {
        let (keys, peers) = (keys.peers.len(), config.peers.len());
        return Err(CompileError::OtherKeys { keys, peers });
    }
    let ConfiguredRoutes { routes, next_hops } = ConfiguredRoutes::of(config);
    let ports = config.port_infos();
    let host = PortId((ports.len() - 1) as u16);
    let policies = (0..).map(PolicyId).zip(&config.policies);
    let policies = policies.map(|(id, policy)| policy.by_itself(id));
    let rules = (config.policies.len() as u32..).map(PolicyId).zip(config.group_policies());
    let rules = rules.map(|(id, rule)| policy::Policy { id, ..rule });
    let mut parts = SnapshotParts {
        generation,
        ports,
        host: Some(host),
        routes,
        next_hops,
        neighbours: config.neighbours.clone(),
        spd: Spd::new(policies.chain(rules).collect())?.into(),
        connections: connections_by_itself(config),
        overlays: overlays_by_itself(config)?.map(Arc::new),
        ..SnapshotParts::default()
    };
    add_security_associations(&config.peers, keys, &mut parts)?;
    Ok(Snapshot::new(parts)?)
}

/// The virtual networks of a configuration that runs nowhere, without endpoints. Nobody attacks the
/// table's hash.
fn overlays_by_itself(config: &Validated) -> Result<Option<Overlays>, EndpointsError> {
    if config.overlays.is_empty() {
        return Ok(None);
    }
    let table = overlays::book(config, &[0; 32])?.table().clone();
    let ports: Vec<PortId> = (0..config.ports.len() as u16).map(PortId).collect();
    let attachments: HashMap<Vni, u16> = config.network_attachments().collect();
    let attachment = |vni| attachments.get(&vni).copied();
    Ok(Some(overlays::overlays(config, table, &ports, attachment)))
}

/// The table of a configuration that runs nowhere. Nobody attacks its hash, and the results are the
/// same each time.
fn connections_by_itself(config: &Validated) -> Option<Arc<Connections>> {
    let config::ConnectionSettings { limits, timeouts } = config.connections;
    config.tracks_connections().then(|| Connections::new(limits, timeouts, &[0; 32]).into())
}

fn add_security_associations(
    peers: &[Peer],
    keys: Keys,
    parts: &mut SnapshotParts,
) -> Result<(), CompileError> {
    for (place, (peer, lines)) in peers.iter().zip(keys.peers).enumerate() {
        let set = SaSetId(place as u32);
        let Peer { encapsulation, numbers, replay_window, lifetime, .. } = *peer;
        let allowance = || {
            let limited = || Allowance { lifetime, account: Arc::default() };
            (lifetime != Lifetime::NONE).then(limited)
        };
        let mut outbound = Vec::new();
        for line in lines {
            let (spi, material) = (line.spi, &line.material);
            match line.direction {
                Direction::Outbound => {
                    let id = SaId(parts.outbound.len() as u32);
                    let counter = Arc::new(SequenceCounter::new(numbers));
                    let sa = OutboundSa::new(id, spi, set, material, encapsulation, counter)?;
                    parts.outbound.push(Arc::new(sa.within(allowance())));
                    outbound.push(id);
                }
                Direction::Inbound => {
                    let id = SaId(parts.inbound.len() as u32);
                    let window = Arc::new(ReplayWindow::new(replay_window, numbers)?);
                    let sa = InboundSa::new(id, spi, set, material, encapsulation, window)?;
                    parts.inbound.push(Arc::new(sa.within(allowance())));
                }
            }
        }
        let outer = peer.outer.as_ref().and_then(|outer| {
            let place = peers.iter().position(|peer| peer.name == *outer)?;
            Some(SaSetId(place as u32))
        });
        parts.sets.push(SaSet { outer, ..sa_set(peer, set, outbound) });
    }
    let identifications = identifications(parts.outbound.iter().map(|sa| sa.encapsulation));
    for (sa, identifications) in parts.outbound.iter_mut().zip(identifications) {
        *sa = Arc::new(sa.at(sa.id, sa.set).identified_by(identifications));
    }
    Ok(())
}

/// The SA set of a peer where the configuration says that it is; the one around it the caller adds.
pub(crate) fn sa_set(peer: &Peer, id: SaSetId, outbound: Vec<SaId>) -> SaSet {
    SaSet {
        id,
        peer: peer.name.clone(),
        tunnel: peer.tunnel(),
        outbound,
        acquires: matches!(peer.keys, KeySource::Api | KeySource::Ike),
        mss_clamp: peer.mss_clamp,
        may_move: peer.place == PeerPlace::BehindNat || peer.keys == KeySource::Ike,
        moves_by_ike: !peer.moves.is_none(),
        keepalive_s: peer.nat_keepalive_s,
        path_mtu: (peer.pmtu == PathMtuUse::Learn).then(PathMtu::default),
        outer: None,
    }
}
