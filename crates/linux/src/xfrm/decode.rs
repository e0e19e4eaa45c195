//! The kernel's answers, without the keys in them.

use std::net::IpAddr;

use netlink_packet_core::NlasIterator;
use netlink_packet_xfrm::constants::{AF_INET, AF_INET6, XFRMA_OFFLOAD_DEV, XFRMA_REPLAY_ESN_VAL};
use netlink_packet_xfrm::constants::{XFRMA_REPLAY_VAL, XFRMA_TMPL};
use netlink_packet_xfrm::{
    Address, Replay, ReplayEsn, UserAcquire, UserExpire, UserOffloadDev, UserPolicyInfo,
    UserSaInfo, UserTemplate, XFRM_USER_POLICY_INFO_LEN, XFRM_USER_SA_INFO_LEN,
    XFRM_USER_TEMPLATE_LEN,
};

use super::encode::OFFLOAD_PACKET;
use super::{FoundPolicy, FoundSa, OffloadMode, OffloadTo};

/// A state. `None`: the bytes are none.
pub(super) fn sa(payload: &[u8]) -> Option<FoundSa> {
    let info = UserSaInfo::parse(payload).ok()?;
    let mut found = sa_of(&info)?;
    for attribute in NlasIterator::new(payload.get(XFRM_USER_SA_INFO_LEN..)?) {
        let attribute = attribute.ok()?;
        // The cipher's, with the key, is not looked at.
        match attribute.kind() {
            XFRMA_OFFLOAD_DEV => {
                let device = UserOffloadDev::parse(attribute.value()).ok()?;
                let is_packet = device.flags & OFFLOAD_PACKET != 0;
                let mode = if is_packet { OffloadMode::Packet } else { OffloadMode::Crypto };
                found.offload = Some(OffloadTo { ifindex: device.ifindex as u32, mode });
            }
            XFRMA_REPLAY_ESN_VAL => {
                let wide = ReplayEsn::parse(attribute.value()).ok()?;
                let number = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
                found.edge = number(wide.seq_hi, wide.seq);
                found.last = number(wide.oseq_hi, wide.oseq);
            }
            XFRMA_REPLAY_VAL => {
                let short = Replay::parse(attribute.value()).ok()?;
                (found.edge, found.last) = (short.seq.into(), short.oseq.into());
            }
            _ => {}
        }
    }
    Some(found)
}

fn sa_of(info: &UserSaInfo) -> Option<FoundSa> {
    Some(FoundSa {
        destination: address(&info.id.daddr, info.family)?,
        source: address(&info.saddr, info.family)?,
        spi: info.id.spi,
        protocol: info.id.proto,
        reqid: info.reqid,
        packets: info.lifetime_cur.packets,
        bytes: info.lifetime_cur.bytes,
        edge: 0,
        last: 0,
        offload: None,
    })
}

/// A policy.
pub(super) fn policy(payload: &[u8]) -> Option<FoundPolicy> {
    let info = UserPolicyInfo::parse(payload).ok()?;
    let mut reqids: Vec<u32> = Vec::new();
    for attribute in NlasIterator::new(payload.get(XFRM_USER_POLICY_INFO_LEN..)?) {
        let attribute = attribute.ok()?;
        if attribute.kind() == XFRMA_TMPL {
            for template in attribute.value().chunks_exact(XFRM_USER_TEMPLATE_LEN) {
                reqids.push(UserTemplate::parse(template).ok()?.reqid);
            }
        }
    }
    let first = reqids.first().copied();
    let reqid = first.filter(|first| reqids.iter().all(|reqid| reqid == first));
    Some(FoundPolicy { direction: info.direction, index: info.index, reqid })
}

/// An SA that reached a limit, and whether it was the hard one.
pub(super) fn expire(payload: &[u8]) -> Option<(FoundSa, bool)> {
    let expire = UserExpire::parse(payload).ok()?;
    Some((sa_of(&expire.state)?, expire.hard != 0))
}

/// The number of the policy whose packet wants an SA.
pub(super) fn acquire(payload: &[u8]) -> Option<u32> {
    let acquire_bytes = netlink_packet_xfrm::XFRM_USER_ACQUIRE_LEN;
    UserAcquire::parse(payload).ok()?;
    for attribute in NlasIterator::new(payload.get(acquire_bytes..)?) {
        let attribute = attribute.ok()?;
        if attribute.kind() == XFRMA_TMPL {
            return Some(UserTemplate::parse(attribute.value()).ok()?.reqid);
        }
    }
    None
}

fn address(of: &Address, family: u16) -> Option<IpAddr> {
    match family {
        AF_INET => Some(of.to_ipv4().into()),
        AF_INET6 => Some(of.to_ipv6().into()),
        _ => None,
    }
}
