//! Hosts of virtual networks: Linux's VXLAN devices, which send everything to a gateway.

use bpf::traffic::Sink;

use crate::{LabError, Namespace};

/// UDP checksums of the packets that a device sends. Linux can complete them in a card only, so a
/// gateway on a veth may have to do it; a kernel tier leaves such packets to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UdpChecksums {
    /// As Linux makes them, if nobody says otherwise.
    Made,
    /// Zero (RFC 7348 §5).
    Omitted,
}

/// A VXLAN device of a host with tenants behind it.
#[derive(Clone, Copy, Debug)]
pub struct Vxlan<'a> {
    /// Name of the device.
    pub device: &'a str,
    /// Its network.
    pub vni: u32,
    /// The gateway's address that all packets go to.
    pub entrance: &'a str,
    /// Link address of the tenants.
    pub mac: &'a str,
    /// Addresses of the tenants, with the lengths of their prefixes.
    pub addresses: &'a [String],
    /// UDP checksums.
    pub checksums: UdpChecksums,
}

impl Vxlan<'_> {
    /// Adds the device to a host. Tenants finish their checksums themselves: behind AF_XDP and XDP
    /// nobody else does.
    ///
    /// # Errors
    /// As [`Namespace::ip`].
    pub fn add(&self, host: &Namespace) -> Result<(), LabError> {
        let Vxlan { device, vni, entrance, mac, addresses, checksums } = self;
        let option = match checksums {
            UdpChecksums::Made => "udpcsum",
            UdpChecksums::Omitted => "noudpcsum",
        };
        let mut lines = format!(
            "link add {device} type vxlan id {vni} remote {entrance} dstport 4789 nolearning \
             {option}\nlink set {device} address {mac} mtu 1400 up\n"
        );
        for address in *addresses {
            let flag = if address.contains(':') { " nodad" } else { "" };
            lines += &format!("addr add {address} dev {device}{flag}\n");
        }
        host.ip(&lines)?;
        host.offload_off(device)
    }
}

/// Lets a veth take frames that an XDP program at its other end sends (`XDP_TX`): it does so only
/// while it runs a program itself. This one passes on whatever is no bench's.
///
/// # Errors
/// [`LabError::NoInterface`], [`LabError::Bpf`], and as [`Namespace::enter`].
pub fn take_from_xdp(namespace: &Namespace, interface: &str) -> Result<(), LabError> {
    let links = namespace.ip_json(&["link", "show", "dev", interface])?;
    let index = links[0]["ifindex"].as_u64().and_then(|index| u32::try_from(index).ok());
    let index = index.ok_or_else(|| LabError::NoInterface {
        namespace: namespace.name().to_owned(),
        interface: interface.to_owned(),
    })?;
    namespace.enter(|| Sink::load()?.attach(index).map(drop))??;
    Ok(())
}
