//! Requests of the plugin.

use zeroize::Zeroizing;

use crate::VERSION;
use crate::field::{Header, Malformed, OuterAddress, Writer, header, name};
use crate::handle::{CharonId, SaHandle};
use crate::selector::Selector;
use crate::taken::Taken;

/// Numbers of the kinds (`enum lg_kind` of `protocol.h`).
mod kind {
    pub(super) const HELLO: u16 = 1;
    pub(super) const GET_SPI: u16 = 2;
    pub(super) const ADD_SA: u16 = 3;
    pub(super) const UPDATE_SA: u16 = 4;
    pub(super) const QUERY_SA: u16 = 5;
    pub(super) const DELETE_SA: u16 = 6;
    pub(super) const ADD_POLICY: u16 = 7;
    pub(super) const QUERY_POLICY: u16 = 8;
    pub(super) const DELETE_POLICY: u16 = 9;
    pub(super) const FLUSH_SAS: u16 = 10;
    pub(super) const FLUSH_POLICIES: u16 = 11;
    pub(super) const NAME_SA: u16 = 13;
    pub(super) const RESUME_SAS: u16 = 14;
    pub(super) const RESUMED: u16 = 15;
}

/// A request of the plugin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// The first of a connection.
    Hello(Charon),
    /// An SPI for packets from `source`, the peer, to `destination`.
    GetSpi {
        /// The peer.
        source: OuterAddress,
        /// The gateway.
        destination: OuterAddress,
    },
    /// An SA to install.
    AddSa(Box<AddSa>),
    /// Other ends of an SA.
    UpdateSa(UpdateSa),
    /// The use of an SA.
    QuerySa(SaHandle),
    /// An SA to remove, or a reserved SPI to release.
    DeleteSa(SaHandle),
    /// A policy that charon wants.
    AddPolicy(AddPolicy),
    /// The use of the policies of a direction with these selectors, whatever their ends.
    QueryPolicy {
        /// Their direction.
        direction: PolicyDirection,
        /// Selectors of the source, and of the destination.
        selectors: [Selector; 2],
    },
    /// A policy that charon no longer wants.
    DeletePolicy(AddPolicy),
    /// All SAs of charon's to remove.
    FlushSas,
    /// All policies of charon's to remove.
    FlushPolicies,
    /// SAs and reserved SPIs that charon has, at most [`MAX_HANDLES`](crate::MAX_HANDLES).
    ResumeSas(Vec<SaHandle>),
    /// The plugin has named all that charon has.
    Resumed,
    /// The names of an SA in charon's configuration.
    NameSa(NameSa),
}

impl Request {
    /// Returns the protocol's name of the request kind, such as `ADD_SA`.
    #[must_use]
    pub fn kind_name(&self) -> &'static str {
        match self {
            Request::Hello(_) => "HELLO",
            Request::GetSpi { .. } => "GET_SPI",
            Request::AddSa(_) => "ADD_SA",
            Request::UpdateSa(_) => "UPDATE_SA",
            Request::QuerySa(_) => "QUERY_SA",
            Request::DeleteSa(_) => "DELETE_SA",
            Request::AddPolicy(_) => "ADD_POLICY",
            Request::QueryPolicy { .. } => "QUERY_POLICY",
            Request::DeletePolicy(_) => "DELETE_POLICY",
            Request::FlushSas => "FLUSH_SAS",
            Request::FlushPolicies => "FLUSH_POLICIES",
            Request::ResumeSas(_) => "RESUME_SAS",
            Request::Resumed => "RESUMED",
            Request::NameSa(_) => "NAME_SA",
        }
    }
}

/// The programs at the other end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Charon {
    /// This life of this charon.
    pub id: CharonId,
    /// Version of charon.
    pub charon: String,
    /// Version of the plugin.
    pub plugin: String,
}

/// The name of an SA: its SPI at its destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SaName {
    /// Source of its packets.
    pub source: OuterAddress,
    /// Destination of its packets.
    pub destination: OuterAddress,
    /// The SPI.
    pub spi: u32,
}

/// The names of an SA in charon's configuration: its connection, and its child.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NameSa {
    /// The SA, an inbound one.
    pub handle: SaHandle,
    /// Number that charon gave the CHILD_SA's policies.
    pub reqid: u32,
    /// Name of the connection.
    pub ike: String,
    /// Name of the child.
    pub child: String,
}

/// Direction of an SA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SaDirection {
    /// It opens.
    Inbound,
    /// It seals.
    Outbound,
}

/// Mode of an SA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkMode {
    /// RFC 4303 §3.1.1.
    Transport,
    /// RFC 4303 §3.1.2.
    Tunnel,
}

/// An algorithm of IKEv2 with its key.
#[derive(Clone, PartialEq, Eq)]
pub struct Algorithm {
    /// Number of the transform (RFC 7296 §3.3.2); integrity 0: none.
    pub transform: u16,
    /// The key, for AEAD with the salt behind it.
    pub key: Zeroizing<Vec<u8>>,
}

/// Shows the length of the key alone.
impl std::fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Algorithm { transform, key } = self;
        write!(f, "transform {transform} with {} bytes of key", key.len())
    }
}

/// Limits of an SA; 0: none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SaLimits {
    /// Seconds since it was installed.
    pub seconds: u64,
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
}

/// An SA to install.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AddSa {
    /// Its direction.
    pub direction: SaDirection,
    /// Its name.
    pub name: SaName,
    /// Number that charon gave the CHILD_SA's policies.
    pub reqid: u32,
    /// Tunnel or transport.
    pub mode: LinkMode,
    /// The cipher.
    pub encryption: Algorithm,
    /// The integrity algorithm.
    pub integrity: Algorithm,
    /// Extended sequence numbers.
    pub esn: bool,
    /// Packets of the replay window.
    pub window: u32,
    /// ESP in UDP.
    pub in_udp: bool,
    /// Limits that charon is told of.
    pub soft: SaLimits,
    /// Limits at which it ends.
    pub hard: SaLimits,
    /// Selectors of the source, and of the destination.
    pub selectors: [Vec<Selector>; 2],
    /// The gateway began the exchange.
    pub initiator: bool,
}

/// Other ends of an SA.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UpdateSa {
    /// The SA.
    pub handle: SaHandle,
    /// Its source from now on.
    pub source: OuterAddress,
    /// Its destination from now on.
    pub destination: OuterAddress,
    /// ESP in UDP from now on.
    pub in_udp: bool,
    /// Number of the CHILD_SA's policies from now on; `None`: it stays.
    pub reqid: Option<u32>,
    /// Selectors of the source, and of the destination, if they move too; `None`: they stay.
    pub selectors: Option<[Vec<Selector>; 2]>,
}

/// Direction of a policy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PolicyDirection {
    /// Packets from the peer to the gateway itself.
    Inbound,
    /// Packets to the peer.
    Outbound,
    /// Packets from the peer that are forwarded.
    Forward,
}

/// The action of a policy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PolicyAction {
    /// Packets are protected.
    Protect,
    /// Packets pass in clear.
    Pass,
    /// Packets are dropped.
    Drop,
}

/// A policy, as it is named.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Policy {
    /// Its direction.
    pub direction: PolicyDirection,
    /// Source of the SAs' packets.
    pub source: OuterAddress,
    /// Destination of the SAs' packets.
    pub destination: OuterAddress,
    /// Selectors of the source, and of the destination.
    pub selectors: [Selector; 2],
}

/// A policy that charon wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AddPolicy {
    /// Its name.
    pub policy: Policy,
    /// Its action.
    pub action: PolicyAction,
    /// Number that its SAs have too.
    pub reqid: u32,
    /// SPI of its SA; 0: a trap, which has none yet.
    pub spi: u32,
    /// Class of charon's in the upper 8 bits, number of its configuration in the lower 24.
    pub priority: u32,
    /// It was asked for before.
    pub repeat: bool,
}

/// Reads a request.
///
/// # Errors
/// [`Malformed`]; [`Malformed::header_of`] has what an answer needs.
pub fn decode(bytes: &[u8]) -> Result<(Header, Request), Malformed> {
    let (header, fields) = header(bytes)?;
    let mut taken = Taken::read(fields)?;
    let request = request(header.kind, &mut taken)?;
    taken.finish()?;
    Ok((header, request))
}

fn request(kind: u16, taken: &mut Taken<'_>) -> Result<Request, Malformed> {
    Ok(match kind {
        kind::HELLO => Request::Hello(Charon {
            id: taken.need(name::CHARON_ID)?.charon_id()?,
            charon: taken.need(name::CHARON)?.text()?,
            plugin: taken.need(name::PLUGIN)?.text()?,
        }),
        kind::GET_SPI => {
            let [source, destination] = ends(taken)?;
            Request::GetSpi { source, destination }
        }
        kind::ADD_SA => Request::AddSa(Box::new(add_sa(taken)?)),
        kind::UPDATE_SA => Request::UpdateSa(update_sa(taken)?),
        kind::QUERY_SA => Request::QuerySa(handle(taken)?),
        kind::DELETE_SA => Request::DeleteSa(handle(taken)?),
        kind::ADD_POLICY => Request::AddPolicy(add_policy(taken)?),
        kind::QUERY_POLICY => Request::QueryPolicy {
            direction: policy_direction(taken)?,
            selectors: taken.one_selector_each()?,
        },
        kind::DELETE_POLICY => Request::DeletePolicy(add_policy(taken)?),
        kind::FLUSH_SAS => Request::FlushSas,
        kind::FLUSH_POLICIES => Request::FlushPolicies,
        kind::RESUME_SAS => Request::ResumeSas(taken.need(name::HANDLES)?.handles()?),
        kind::RESUMED => Request::Resumed,
        kind::NAME_SA => Request::NameSa(NameSa {
            handle: handle(taken)?,
            reqid: taken.need(name::REQID)?.u32()?,
            ike: taken.need(name::IKE)?.name()?,
            child: taken.need(name::CHILD)?.name()?,
        }),
        other => return Err(Malformed::Kind(other)),
    })
}

fn ends(taken: &mut Taken<'_>) -> Result<[OuterAddress; 2], Malformed> {
    let source = taken.need(name::SOURCE)?.outer()?;
    let destination = taken.need(name::DESTINATION)?;
    let both = [source, destination.outer()?];
    match both[0].is_ipv4() == both[1].is_ipv4() {
        true => Ok(both),
        false => Err(destination.wrong()),
    }
}

fn handle(taken: &mut Taken<'_>) -> Result<SaHandle, Malformed> {
    taken.need(name::HANDLE)?.handle()
}

fn sa_name(taken: &mut Taken<'_>) -> Result<SaName, Malformed> {
    let [source, destination] = ends(taken)?;
    Ok(SaName { source, destination, spi: taken.need(name::SPI)?.u32()? })
}

fn update_sa(taken: &mut Taken<'_>) -> Result<UpdateSa, Malformed> {
    Ok(UpdateSa {
        handle: handle(taken)?,
        source: taken.need(name::NEW_SOURCE)?.outer()?,
        destination: taken.need(name::NEW_DESTINATION)?.outer()?,
        in_udp: taken.need(name::ENCAPSULATION)?.flag()?,
        reqid: taken.take(name::REQID).map(|field| field.u32()).transpose()?,
        selectors: taken.selectors_if_any()?,
    })
}

fn add_sa(taken: &mut Taken<'_>) -> Result<AddSa, Malformed> {
    let direction = taken.need(name::DIRECTION)?;
    let mode = taken.need(name::MODE)?;
    let secret = |field: crate::field::Field<'_>| Zeroizing::new(field.value.to_vec());
    Ok(AddSa {
        direction: match direction.u8()? {
            1 => SaDirection::Inbound,
            2 => SaDirection::Outbound,
            _ => return Err(direction.wrong()),
        },
        name: sa_name(taken)?,
        reqid: taken.need(name::REQID)?.u32()?,
        mode: match mode.u8()? {
            1 => LinkMode::Transport,
            2 => LinkMode::Tunnel,
            _ => return Err(mode.wrong()),
        },
        encryption: Algorithm {
            transform: taken.need(name::ENCRYPTION)?.u16()?,
            key: taken.need(name::KEY).map(secret)?,
        },
        integrity: Algorithm {
            transform: taken.need(name::INTEGRITY)?.u16()?,
            key: taken.need(name::INTEGRITY_KEY).map(secret)?,
        },
        esn: taken.need(name::ESN)?.flag()?,
        window: taken.need(name::WINDOW)?.u32()?,
        in_udp: taken.need(name::ENCAPSULATION)?.flag()?,
        soft: limits(taken.need(name::SOFT)?.three()?),
        hard: limits(taken.need(name::HARD)?.three()?),
        selectors: taken.selectors()?,
        initiator: taken.need(name::INITIATOR)?.flag()?,
    })
}

const fn limits([seconds, bytes, packets]: [u64; 3]) -> SaLimits {
    SaLimits { seconds, bytes, packets }
}

fn policy_direction(taken: &mut Taken<'_>) -> Result<PolicyDirection, Malformed> {
    let direction = taken.need(name::DIRECTION)?;
    match direction.u8()? {
        1 => Ok(PolicyDirection::Inbound),
        2 => Ok(PolicyDirection::Outbound),
        3 => Ok(PolicyDirection::Forward),
        _ => Err(direction.wrong()),
    }
}

fn policy(taken: &mut Taken<'_>) -> Result<Policy, Malformed> {
    let direction = policy_direction(taken)?;
    let [source, destination] = ends(taken)?;
    Ok(Policy { direction, source, destination, selectors: taken.one_selector_each()? })
}

fn add_policy(taken: &mut Taken<'_>) -> Result<AddPolicy, Malformed> {
    let action = taken.need(name::ACTION)?;
    let repeat = taken.take(name::REPEAT).map_or(Ok(false), |field| field.flag())?;
    Ok(AddPolicy {
        policy: policy(taken)?,
        action: match action.u8()? {
            1 => PolicyAction::Protect,
            2 => PolicyAction::Pass,
            3 => PolicyAction::Drop,
            _ => return Err(action.wrong()),
        },
        reqid: taken.need(name::REQID)?.u32()?,
        spi: taken.need(name::SPI)?.u32()?,
        priority: taken.need(name::PRIORITY)?.u32()?,
        repeat,
    })
}

/// Writes a request, as the plugin does: for tests that play charon.
///
/// # Panics
/// If it is longer than a message may be.
pub fn encode_request(number: u32, incarnation: u64, request: &Request) -> Zeroizing<Vec<u8>> {
    let kind = match request {
        Request::Hello(_) => kind::HELLO,
        Request::GetSpi { .. } => kind::GET_SPI,
        Request::AddSa(_) => kind::ADD_SA,
        Request::UpdateSa(_) => kind::UPDATE_SA,
        Request::QuerySa(_) => kind::QUERY_SA,
        Request::DeleteSa(_) => kind::DELETE_SA,
        Request::AddPolicy(_) => kind::ADD_POLICY,
        Request::QueryPolicy { .. } => kind::QUERY_POLICY,
        Request::DeletePolicy(_) => kind::DELETE_POLICY,
        Request::FlushSas => kind::FLUSH_SAS,
        Request::FlushPolicies => kind::FLUSH_POLICIES,
        Request::ResumeSas(_) => kind::RESUME_SAS,
        Request::Resumed => kind::RESUMED,
        Request::NameSa(_) => kind::NAME_SA,
    };
    let mut out = Writer::new(Header { version: VERSION, kind, number, incarnation });
    match request {
        Request::Hello(Charon { id, charon, plugin }) => {
            out.put(name::CHARON_ID, &id.0);
            out.put(name::CHARON, charon.as_bytes());
            out.put(name::PLUGIN, plugin.as_bytes());
        }
        Request::GetSpi { source, destination } => {
            out.put_outer(name::SOURCE, *source);
            out.put_outer(name::DESTINATION, *destination);
        }
        Request::AddSa(sa) => write_sa(&mut out, sa),
        Request::UpdateSa(update) => write_update_sa(&mut out, update),
        Request::QuerySa(handle) | Request::DeleteSa(handle) => out.put_handle(*handle),
        Request::AddPolicy(policy) => {
            write_add_policy(&mut out, policy);
            out.put(name::REPEAT, &[u8::from(policy.repeat)]);
        }
        Request::DeletePolicy(policy) => write_add_policy(&mut out, policy),
        Request::QueryPolicy { direction, selectors } => {
            out.put(name::DIRECTION, &[direction_number(*direction)]);
            write_selectors(&mut out, selectors);
        }
        Request::FlushSas | Request::FlushPolicies | Request::Resumed => {}
        Request::ResumeSas(handles) => out.put_handles(handles),
        Request::NameSa(NameSa { handle, reqid, ike, child }) => {
            out.put_handle(*handle);
            out.put(name::REQID, &reqid.to_be_bytes());
            out.put(name::IKE, ike.as_bytes());
            out.put(name::CHILD, child.as_bytes());
        }
    }
    out.finish()
}

fn write_name(out: &mut Writer, SaName { source, destination, spi }: &SaName) {
    out.put_outer(name::SOURCE, *source);
    out.put_outer(name::DESTINATION, *destination);
    out.put(name::SPI, &spi.to_be_bytes());
}

fn write_sa(out: &mut Writer, sa: &AddSa) {
    let direction = match sa.direction {
        SaDirection::Inbound => 1,
        SaDirection::Outbound => 2,
    };
    let mode = match sa.mode {
        LinkMode::Transport => 1,
        LinkMode::Tunnel => 2,
    };
    out.put(name::DIRECTION, &[direction]);
    write_name(out, &sa.name);
    out.put(name::REQID, &sa.reqid.to_be_bytes());
    out.put(name::MODE, &[mode]);
    out.put(name::ENCRYPTION, &sa.encryption.transform.to_be_bytes());
    out.put(name::KEY, &sa.encryption.key);
    out.put(name::INTEGRITY, &sa.integrity.transform.to_be_bytes());
    out.put(name::INTEGRITY_KEY, &sa.integrity.key);
    out.put(name::ESN, &[u8::from(sa.esn)]);
    out.put(name::WINDOW, &sa.window.to_be_bytes());
    out.put(name::ENCAPSULATION, &[u8::from(sa.in_udp)]);
    for (field, SaLimits { seconds, bytes, packets }) in
        [(name::SOFT, sa.soft), (name::HARD, sa.hard)]
    {
        out.put_three(field, [seconds, bytes, packets]);
    }
    let ends = [name::SOURCE_SELECTOR, name::DESTINATION_SELECTOR];
    for (field, selectors) in ends.into_iter().zip(&sa.selectors) {
        selectors.iter().for_each(|selector| out.put(field, &selector.bytes()));
    }
    out.put(name::INITIATOR, &[u8::from(sa.initiator)]);
}

fn write_policy(out: &mut Writer, policy: &Policy) {
    let Policy { direction, source, destination, selectors } = policy;
    out.put(name::DIRECTION, &[direction_number(*direction)]);
    out.put_outer(name::SOURCE, *source);
    out.put_outer(name::DESTINATION, *destination);
    write_selectors(out, selectors);
}

const fn direction_number(direction: PolicyDirection) -> u8 {
    match direction {
        PolicyDirection::Inbound => 1,
        PolicyDirection::Outbound => 2,
        PolicyDirection::Forward => 3,
    }
}

fn write_update_sa(out: &mut Writer, update: &UpdateSa) {
    let UpdateSa { handle, source, destination, in_udp, reqid, selectors } = update;
    out.put_handle(*handle);
    out.put_outer(name::NEW_SOURCE, *source);
    out.put_outer(name::NEW_DESTINATION, *destination);
    out.put(name::ENCAPSULATION, &[u8::from(*in_udp)]);
    if let Some(reqid) = reqid {
        out.put(name::REQID, &reqid.to_be_bytes());
    }
    let ends = [name::SOURCE_SELECTOR, name::DESTINATION_SELECTOR];
    for (field, selectors) in ends.into_iter().zip(selectors.iter().flatten()) {
        selectors.iter().for_each(|selector| out.put(field, &selector.bytes()));
    }
}

fn write_selectors(out: &mut Writer, [source, destination]: &[Selector; 2]) {
    out.put(name::SOURCE_SELECTOR, &source.bytes());
    out.put(name::DESTINATION_SELECTOR, &destination.bytes());
}

fn write_add_policy(out: &mut Writer, policy: &AddPolicy) {
    let action = match policy.action {
        PolicyAction::Protect => 1,
        PolicyAction::Pass => 2,
        PolicyAction::Drop => 3,
    };
    write_policy(out, &policy.policy);
    out.put(name::ACTION, &[action]);
    out.put(name::REQID, &policy.reqid.to_be_bytes());
    out.put(name::SPI, &policy.spi.to_be_bytes());
    out.put(name::PRIORITY, &policy.priority.to_be_bytes());
}
