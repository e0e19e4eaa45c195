//! Checks whether the netdevs that a configuration names can be ports.

use config::validated::Port;
use config::{HOST_NETDEV, Validated, nearest};
use linux::{Link, LinkKind, View};

/// A port that cannot be one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("port {port}: {reason}")]
pub struct PortRefusal {
    /// The port's name.
    pub port: String,
    /// The fault of its netdev.
    pub reason: PortRefusalReason,
}

/// The fault of a port's netdev.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PortRefusalReason {
    /// No netdev has that name.
    #[error("there is no netdev {netdev}{}", meant(.nearest.as_deref()))]
    NoNetdev {
        /// The name.
        netdev: String,
        /// The most similar name that exists.
        nearest: Option<String>,
    },
    /// The netdev is the loopback netdev.
    #[error("{netdev} is the loopback device: it leads to no other machine")]
    Loopback {
        /// The netdev.
        netdev: String,
    },
    /// The netdev's packets have no Ethernet header.
    #[error("{netdev} ({kind}) does not carry Ethernet frames: name an Ethernet netdev")]
    NotEthernet {
        /// The netdev.
        netdev: String,
        /// Kind of the netdev, by the kernel's name.
        kind: String,
    },
    /// The netdev is a bond.
    #[error("{netdev} is a bond: name one of its members instead ({})", .members.join(", "))]
    BondMaster {
        /// The netdev.
        netdev: String,
        /// Netdevs in the bond.
        members: Vec<String>,
    },
    /// The netdev is a bridge.
    #[error(
        "{netdev} is a bridge, which has no link of its own: take its member out of it and \
         name that"
    )]
    Bridge {
        /// The netdev.
        netdev: String,
    },
    /// The netdev is a VLAN netdev.
    #[error("{netdev} is VLAN {id} on {parent}: write netdev = \"{parent}\" and vlan = {id}")]
    VlanNetdev {
        /// The netdev.
        netdev: String,
        /// The netdev it is on; its index elsewhere, if that is in another namespace.
        parent: String,
        /// VLAN id.
        id: u16,
    },
    /// The netdev is a member of a bridge, bond or VRF, which takes its packets.
    #[error(
        "{netdev} is a member of {what} {master}, which takes its packets: \
         ip link set {netdev} nomaster"
    )]
    Member {
        /// The netdev.
        netdev: String,
        /// `bridge`, `bond`, `VRF` or the kernel's word.
        what: String,
        /// Its name.
        master: String,
    },
}

fn meant(nearest: Option<&str>) -> String {
    nearest.map(|name| format!(" (did you mean {name}?)")).unwrap_or_default()
}

/// Checks the netdevs of a configuration's ports. A lack that may end later (addresses, a VLAN
/// netdev, the link itself) refuses no port: [`super::LiveProblem`] reports it.
///
/// # Errors
/// Every port that cannot be one, with the reason.
pub fn check_netdevs(config: &Validated, view: &View) -> Result<(), Vec<PortRefusal>> {
    let refusals: Vec<PortRefusal> = config
        .ports
        .iter()
        .filter_map(|port| {
            let reason = refusal(port, view)?;
            Some(PortRefusal { port: port.name.clone(), reason })
        })
        .collect();
    match refusals.is_empty() {
        true => Ok(()),
        false => Err(refusals),
    }
}

fn refusal(port: &Port, view: &View) -> Option<PortRefusalReason> {
    let netdev = port.netdev.clone();
    let Some(link) = view.link_named(&netdev) else {
        let names = view.links.values().filter(|link| link.ethernet && link.name != HOST_NETDEV);
        let nearest = nearest(&netdev, names.map(|link| link.name.as_str()));
        return Some(PortRefusalReason::NoNetdev { netdev, nearest });
    };
    let name_of = |index: &u32| view.links.get(index).map(|link| link.name.clone());
    let by_kind = match &link.kind {
        LinkKind::Loopback => Some(PortRefusalReason::Loopback { netdev: netdev.clone() }),
        LinkKind::BondMaster => {
            let members = view.links.values().filter(|other| other.master == Some(link.index));
            let members = members.map(|member| member.name.clone()).collect();
            Some(PortRefusalReason::BondMaster { netdev: netdev.clone(), members })
        }
        LinkKind::Bridge => Some(PortRefusalReason::Bridge { netdev: netdev.clone() }),
        LinkKind::Vlan { parent, id } => Some(PortRefusalReason::VlanNetdev {
            netdev: netdev.clone(),
            parent: name_of(parent).unwrap_or_else(|| format!("netdev {parent}")),
            id: *id,
        }),
        _ if !link.ethernet => {
            Some(PortRefusalReason::NotEthernet { netdev: netdev.clone(), kind: kind_text(link) })
        }
        _ => None,
    };
    let vlan = port.vlan.and_then(|id| view.vlan_on(link.index, id));
    by_kind.or_else(|| membership(link, view)).or_else(|| membership(vlan?, view))
}

fn membership(link: &Link, view: &View) -> Option<PortRefusalReason> {
    let index = link.master?;
    let master = view.links.get(&index);
    Some(PortRefusalReason::Member {
        netdev: link.name.clone(),
        what: master.map_or("netdev".into(), kind_text),
        master: master.map_or_else(|| index.to_string(), |master| master.name.clone()),
    })
}

fn kind_text(link: &Link) -> String {
    match &link.kind {
        LinkKind::Physical => "a netdev without a kind".into(),
        LinkKind::Virtio => "virtio".into(),
        LinkKind::Veth => "veth".into(),
        LinkKind::Loopback => "loopback".into(),
        LinkKind::BondMaster => "bond".into(),
        LinkKind::Bridge => "bridge".into(),
        LinkKind::Vrf => "VRF".into(),
        LinkKind::Vlan { id, .. } => format!("VLAN {id}"),
        LinkKind::Tun => "TUN".into(),
        LinkKind::Other(kind) => kind.clone(),
    }
}
