//! Requests as bytes: what follows the netlink header.

use std::net::IpAddr;

use netlink_packet_core::Emitable;
use netlink_packet_xfrm::constants::{
    AF_INET, AF_INET6, XFRM_MODE_TUNNEL, XFRM_OFFLOAD_INBOUND, XFRM_POLICY_FWD, XFRM_POLICY_IN,
    XFRM_POLICY_OUT, XFRM_STATE_ESN,
};
use netlink_packet_xfrm::policy::{
    DelGetMessage as PolicyIdMessage, ModifyMessage as PolicyMessage,
};
use netlink_packet_xfrm::state::{DelGetMessage as SaIdMessage, ModifyMessage as SaMessage};
use netlink_packet_xfrm::{
    Address, AlgAead, Id, LifetimeConfig, ReplayEsn, Selector, UserOffloadDev, UserPolicyId,
    UserPolicyInfo, UserSaId, UserSaInfo, UserTemplate, XfrmAttrs,
};
use zeroize::{Zeroize, Zeroizing};

use super::{
    FoundPolicy, FoundSa, OffloadMode, OffloadTo, PolicyWay, SaWay, XfrmEnds, XfrmLimits,
    XfrmPolicy, XfrmSa, XfrmSelector,
};

/// Protocol number of ESP.
pub(super) const ESP: u8 = 50;
/// Bits of the ICV of all ciphers that are asked for.
const ICV_BITS: u32 = 128;
/// The flag of packet mode (`linux/xfrm.h`, Linux 6.2), which the library does not have.
pub(super) const OFFLOAD_PACKET: u8 = 4;
/// Window of an SA that seals with 64-bit numbers: before Linux 6.10 the kernel wants one there.
const IDLE_WINDOW: u32 = 32;
/// Widest window that needs no attribute of its own.
const SHORT_WINDOW: u32 = 32;

/// The request that puts a state in. Wiped when it goes.
pub(super) fn new_sa(sa: &XfrmSa<'_>) -> Zeroizing<Vec<u8>> {
    let window = match sa.way {
        SaWay::Out if sa.esn => IDLE_WINDOW,
        SaWay::Out => 0,
        SaWay::In => sa.window,
    };
    let has_wide = sa.esn || window > SHORT_WINDOW;
    let info = UserSaInfo {
        id: Id { daddr: address(sa.ends.destination), spi: sa.spi, proto: ESP },
        saddr: address(sa.ends.source),
        lifetime_cfg: lifetime(&sa.limits),
        reqid: sa.reqid,
        family: family(sa.ends.source),
        mode: XFRM_MODE_TUNNEL,
        replay_window: if has_wide { 0 } else { window as u8 },
        flags: if sa.esn { XFRM_STATE_ESN } else { 0 },
        ..UserSaInfo::default()
    };
    let mut nlas = vec![XfrmAttrs::EncryptionAlgAead(cipher(sa))];
    if has_wide {
        // The bitmap itself may be left out: it is empty.
        let (bmp_len, replay_window) = (window.div_ceil(32), window);
        let wide = ReplayEsn { bmp_len, replay_window, ..ReplayEsn::default() };
        nlas.push(XfrmAttrs::ReplayStateEsn(wide));
    }
    if let Some(card) = sa.offload {
        nlas.push(XfrmAttrs::OffloadDevice(device(card, sa.way)));
    }
    let mut message = SaMessage { user_sa_info: info, nlas };
    let bytes = Zeroizing::new(emitted(&message));
    for attribute in &mut message.nlas {
        if let XfrmAttrs::EncryptionAlgAead(cipher) = attribute {
            cipher.alg_key.zeroize();
        }
    }
    bytes
}

fn cipher(sa: &XfrmSa<'_>) -> AlgAead {
    let mut alg_name = [0; 64];
    alg_name[..sa.cipher.len()].copy_from_slice(sa.cipher.as_bytes());
    let alg_key_len = 8 * sa.key.len() as u32;
    AlgAead { alg_name, alg_key_len, alg_icv_len: ICV_BITS, alg_key: sa.key.to_vec() }
}

fn device(card: OffloadTo, way: SaWay) -> UserOffloadDev {
    let mut flags = 0;
    if way == SaWay::In {
        flags |= XFRM_OFFLOAD_INBOUND;
    }
    if card.mode == OffloadMode::Packet {
        flags |= OFFLOAD_PACKET;
    }
    UserOffloadDev { ifindex: card.ifindex as i32, flags }
}

/// The limits; no limit is all ones, and of time 0.
fn lifetime(limits: &XfrmLimits) -> LifetimeConfig {
    LifetimeConfig {
        soft_byte_limit: limits.soft_bytes.unwrap_or(u64::MAX),
        hard_byte_limit: limits.hard_bytes.unwrap_or(u64::MAX),
        soft_packet_limit: limits.soft_packets.unwrap_or(u64::MAX),
        hard_packet_limit: limits.hard_packets.unwrap_or(u64::MAX),
        soft_add_expires_seconds: limits.soft_seconds.unwrap_or(0),
        hard_add_expires_seconds: limits.hard_seconds.unwrap_or(0),
        soft_use_expires_seconds: 0,
        hard_use_expires_seconds: 0,
    }
}

/// The request that puts a policy in.
pub(super) fn new_policy(policy: &XfrmPolicy) -> Vec<u8> {
    let XfrmPolicy { way, ends, reqid, .. } = *policy;
    let info = UserPolicyInfo {
        selector: selector(&policy.selector),
        priority: policy.priority,
        direction: direction(way),
        ..UserPolicyInfo::default()
    };
    let template = UserTemplate {
        id: Id { daddr: address(ends.destination), spi: 0, proto: ESP },
        family: family(ends.source),
        saddr: address(ends.source),
        reqid,
        mode: XFRM_MODE_TUNNEL,
        ..UserTemplate::default()
    };
    let mut nlas = vec![XfrmAttrs::Template(vec![template])];
    if let Some(ifindex) = policy.packet_offload {
        // A policy has its direction elsewhere, and takes no flag but this.
        let device = UserOffloadDev { ifindex: ifindex as i32, flags: OFFLOAD_PACKET };
        nlas.push(XfrmAttrs::OffloadDevice(device));
    }
    emitted(&PolicyMessage { user_policy_info: info, nlas })
}

/// The request that takes a policy out.
pub(super) fn delete_policy(policy: &XfrmPolicy) -> Vec<u8> {
    let user_policy_id = UserPolicyId {
        selector: selector(&policy.selector),
        index: 0,
        direction: direction(policy.way),
    };
    emitted(&PolicyIdMessage { user_policy_id, nlas: Vec::new() })
}

/// The request that takes a policy out that was found, by its index.
pub(super) fn delete_found_policy(found: &FoundPolicy) -> Vec<u8> {
    let selector = Selector::default();
    let (index, direction) = (found.index, found.direction);
    let user_policy_id = UserPolicyId { selector, index, direction };
    emitted(&PolicyIdMessage { user_policy_id, nlas: Vec::new() })
}

/// The request that reads a state, or takes one out.
pub(super) fn sa_id(ends: XfrmEnds, spi: u32, protocol: u8) -> Vec<u8> {
    let daddr = address(ends.destination);
    let user_sa_id = UserSaId { daddr, spi, family: family(ends.destination), proto: protocol };
    let source = XfrmAttrs::SrcAddr(address(ends.source));
    emitted(&SaIdMessage { user_sa_id, nlas: vec![source] })
}

/// The request that takes out a state that was found.
pub(super) fn delete_found_sa(found: &FoundSa) -> Vec<u8> {
    let ends = XfrmEnds { source: found.source, destination: found.destination };
    sa_id(ends, found.spi, found.protocol)
}

fn direction(way: PolicyWay) -> u8 {
    match way {
        PolicyWay::In => XFRM_POLICY_IN,
        PolicyWay::Forward => XFRM_POLICY_FWD,
        PolicyWay::Out => XFRM_POLICY_OUT,
    }
}

fn selector(of: &XfrmSelector) -> Selector {
    let mask = |port: Option<u16>| if port.is_some() { u16::MAX } else { 0 };
    Selector {
        daddr: address(of.destination.0),
        saddr: address(of.source.0),
        dport: of.destination_port.unwrap_or(0),
        dport_mask: mask(of.destination_port),
        sport: of.source_port.unwrap_or(0),
        sport_mask: mask(of.source_port),
        family: family(of.source.0),
        prefixlen_d: of.destination.1,
        prefixlen_s: of.source.1,
        proto: of.protocol.unwrap_or(0),
        ..Selector::default()
    }
}

fn address(of: IpAddr) -> Address {
    Address::from_ip(&of)
}

fn family(of: IpAddr) -> u16 {
    if of.is_ipv4() { AF_INET } else { AF_INET6 }
}

fn emitted(message: &impl Emitable) -> Vec<u8> {
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut bytes);
    bytes
}
