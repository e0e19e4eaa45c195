//! Decides whether a card can carry an SA exactly as it is (DESIGN I5), or says why not.

use crate::capabilities::{Ability, Capabilities, Exactness, Protocols, SaAbilities, Transmit};
use crate::pattern::UpperPattern;

use super::{
    CardPolicy, CardSa, Carrier, FlowConfidentiality, Need, Numbers, OuterDscp, OuterFields,
    SaDirection, SaMode, Service,
};

/// Lowest SPI that is not reserved (RFC 4303 §2.1).
const LOWEST_SPI: u32 = 256;
/// Protocols of policies that every card can ask for.
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Reason why a card cannot carry an SA or a policy, not more and not less than it says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, thiserror::Error)]
#[error("{}", self.help())]
pub enum Unfit {
    /// The card has no SAs.
    NoSas,
    /// The card cannot do headers and cipher.
    Packet,
    /// The card cannot do the cipher alone.
    Crypto,
    /// The SPI is reserved.
    Spi,
    /// The ends are of two families.
    Ends,
    /// The card has not this suite.
    Suite,
    /// The card has not an ICV of this length.
    Icv,
    /// The card has no transport mode.
    Transport,
    /// The card has no tunnel mode.
    Tunnel,
    /// The card writes outer headers in its own way.
    OuterHeader,
    /// The card copies the DSCP, and a fixed one would hide that of inner packets.
    Dscp,
    /// The card cannot advance extended sequence numbers.
    Esn,
    /// The card has not a replay window of this size.
    Window,
    /// The card has no ESP in UDP.
    NatTraversal,
    /// In crypto mode: ESP in UDP over IPv6 has a checksum over what the card encrypts.
    UdpChecksum,
    /// The card has no padding for traffic flow confidentiality.
    Tfc,
    /// An SA that seals has no lease of numbers.
    NoLease,
    /// The lease reaches beyond the numbers that there are, or begins with 0.
    Lease,
    /// The card does not keep limits of packets exactly.
    PacketLimits,
    /// The kernel would not keep limits of packets exactly.
    KernelLimits,
    /// The card does not keep limits of bytes exactly.
    ByteLimits,
    /// The worker could not tell an opened packet from one that came in clear.
    RxSaMark,
    /// The card seals by headers: a packet of a worker would leave in clear after the SA is gone.
    TransmitBySelector,
    /// The card carries no fragments.
    Fragments,
    /// The card carries no packets with options or extension headers.
    Options,
    /// The card cannot ask for the upper-layer header of a policy.
    Upper,
}

impl Unfit {
    /// All of them.
    pub const ALL: [Unfit; 26] = [
        Unfit::NoSas,
        Unfit::Packet,
        Unfit::Crypto,
        Unfit::Spi,
        Unfit::Ends,
        Unfit::Suite,
        Unfit::Icv,
        Unfit::Transport,
        Unfit::Tunnel,
        Unfit::OuterHeader,
        Unfit::Dscp,
        Unfit::Esn,
        Unfit::Window,
        Unfit::NatTraversal,
        Unfit::UdpChecksum,
        Unfit::Tfc,
        Unfit::NoLease,
        Unfit::Lease,
        Unfit::PacketLimits,
        Unfit::KernelLimits,
        Unfit::ByteLimits,
        Unfit::RxSaMark,
        Unfit::TransmitBySelector,
        Unfit::Fragments,
        Unfit::Options,
        Unfit::Upper,
    ];

    /// Its name, for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Unfit::NoSas => "no_sas",
            Unfit::Packet => "packet",
            Unfit::Crypto => "crypto",
            Unfit::Spi => "spi",
            Unfit::Ends => "ends",
            Unfit::Suite => "suite",
            Unfit::Icv => "icv",
            Unfit::Transport => "transport",
            Unfit::Tunnel => "tunnel",
            Unfit::OuterHeader => "outer_header",
            Unfit::Dscp => "dscp",
            Unfit::Esn => "esn",
            Unfit::Window => "window",
            Unfit::NatTraversal => "nat_traversal",
            Unfit::UdpChecksum => "udp_checksum",
            Unfit::Tfc => "tfc",
            Unfit::NoLease => "no_lease",
            Unfit::Lease => "lease",
            Unfit::PacketLimits => "packet_limits",
            Unfit::KernelLimits => "kernel_limits",
            Unfit::ByteLimits => "byte_limits",
            Unfit::RxSaMark => "rx_sa_mark",
            Unfit::TransmitBySelector => "transmit_by_selector",
            Unfit::Fragments => "fragments",
            Unfit::Options => "options",
            Unfit::Upper => "upper",
        }
    }

    /// Its meaning, and where there is a remedy, this.
    pub const fn help(self) -> &'static str {
        match self {
            Unfit::NoSas => "the card holds no SAs: carry them in software",
            Unfit::Packet => {
                "the card has ciphers alone: ask for crypto, or carry the SA in software; \
                 packet mode is never served as crypto"
            }
            Unfit::Crypto => "the card does headers and cipher together: ask for packet",
            Unfit::Spi => "SPIs from 0 to 255 are reserved: give the SA a higher one",
            Unfit::Ends => "one end is IPv4 and the other IPv6: give both of one family",
            Unfit::Suite => "the card has not this cipher suite: choose one that it lists",
            Unfit::Icv => "the card has not an integrity check value of this length",
            Unfit::Transport => "the card has no transport mode: use tunnel mode",
            Unfit::Tunnel => "the card has no tunnel mode: use transport mode, or software",
            Unfit::OuterHeader => {
                "the card writes DSCP, ECN, DF and hop limit of outer headers in its own way: \
                 allow them to differ, or carry the SA in software"
            }
            Unfit::Dscp => {
                "outer headers get the DSCP of inner packets, which a fixed one would hide: leave \
                 `dscp` out, or carry the SA in software"
            }
            Unfit::Esn => "the card cannot advance extended sequence numbers: turn ESN off",
            Unfit::Window => {
                "the card has not a replay window of this size: `replay_window` must be one of its \
                 line `replay windows` in `lockgate help offload`"
            }
            Unfit::NatTraversal => "the card has no ESP in UDP: peers behind a NAT need software",
            Unfit::UdpChecksum => {
                "ESP in UDP over IPv6 has a checksum over what a card is yet to encrypt: ask for \
                 packet, or carry the SA in software"
            }
            Unfit::Tfc => "the card has no padding against traffic analysis: turn it off",
            Unfit::NoLease => {
                "an SA that seals in a card needs a hard limit of packets: its lease of numbers"
            }
            Unfit::Lease => {
                "the first number and the hard limit of packets reach beyond the sequence numbers"
            }
            Unfit::PacketLimits => "the card would pass packets beyond a limit: use software",
            Unfit::KernelLimits => {
                "Linux counts a frame of several segments (GSO) once, and would pass packets \
                 beyond a limit: ask for packet, or leave limits of packets and bytes out"
            }
            Unfit::ByteLimits => {
                "the card would pass bytes beyond a limit: give it a limit of packets instead"
            }
            Unfit::RxSaMark => {
                "the card does not tell a worker which packets it opened: a packet that came in \
                 clear would look the same. Let the kernel carry the packets, or use software"
            }
            Unfit::TransmitBySelector => {
                "the card seals what its policies match and sends the rest in clear, so after a \
                 reset a worker's packets would leave in clear. Let the kernel carry the packets, \
                 or use software"
            }
            Unfit::Fragments => "the card drops fragments: carry these flows in software",
            Unfit::Options => {
                "the card drops packets with IPv4 options or IPv6 extension headers: carry these \
                 flows in software"
            }
            Unfit::Upper => "the card's policies ask for TCP, UDP or any protocol, not for this",
        }
    }
}

fn needs(ability: &Ability<impl Sized>, unfit: Unfit) -> Result<(), Unfit> {
    if ability.is_there() { Ok(()) } else { Err(unfit) }
}

fn must(is_so: impl FnOnce() -> bool, unfit: Unfit) -> Result<(), Unfit> {
    if is_so() { Ok(()) } else { Err(unfit) }
}

/// Returns whether a card can do this service for an SA, exactly as the SA is. Nothing is served as
/// something else: a card that knows ciphers alone refuses packet mode (XO-29).
///
/// # Errors
/// [`Unfit`]: the first reason why not.
pub fn sa_fits(sa: &CardSa, card: &SaAbilities, service: Service) -> Result<(), Unfit> {
    match service {
        Service::Packet => needs(&card.packet, Unfit::Packet)?,
        Service::Crypto => needs(&card.crypto, Unfit::Crypto)?,
    }
    must(|| sa.spi >= LOWEST_SPI, Unfit::Spi)?;
    must(|| sa.ends.source.is_ipv4() == sa.ends.destination.is_ipv4(), Unfit::Ends)?;
    must(|| card.suites.contains(&&*sa.suite), Unfit::Suite)?;
    must(|| card.icv_bytes.contains(&sa.icv_bytes), Unfit::Icv)?;
    if sa.numbers == Numbers::Extended {
        needs(&card.esn, Unfit::Esn)?;
    }
    if sa.udp.is_some() {
        needs(&card.nat_traversal, Unfit::NatTraversal)?;
    }
    if sa.flow_confidentiality != FlowConfidentiality::Off {
        needs(&card.tfc, Unfit::Tfc)?;
    }
    carrier_fits(sa, card)?;
    match service {
        Service::Packet => headers_fit(sa, card),
        // Headers, numbers, windows and limits are the host's. So is a checksum of UDP, which
        // IPv6 wants, and the host cannot make it of what the card is yet to encrypt.
        Service::Crypto => {
            must(|| sa.udp.is_none() || sa.ends.source.is_ipv4(), Unfit::UdpChecksum)?;
            match sa.carrier {
                Carrier::Worker => Ok(()),
                Carrier::Kernel => kernel_fits(sa, card),
            }
        }
    }
}

impl Capabilities {
    /// Returns whether the card can carry an SA, exactly as it is ([`sa_fits`]).
    ///
    /// # Errors
    /// [`Unfit`]: the reason why not.
    pub fn sa_fits(&self, sa: &CardSa) -> Result<(), Unfit> {
        sa_fits(sa, self.sas.get().ok_or(Unfit::NoSas)?, sa.service)
    }
}

/// Checks that the card tells a worker of opened packets, and is told which SA seals one.
fn carrier_fits(sa: &CardSa, card: &SaAbilities) -> Result<(), Unfit> {
    match (sa.carrier, sa.direction) {
        (Carrier::Kernel, _) => Ok(()),
        (Carrier::Worker, SaDirection::In) => needs(&card.rx_sa_mark, Unfit::RxSaMark),
        (Carrier::Worker, SaDirection::Out) => {
            must(|| card.transmit == Transmit::ByHandle, Unfit::TransmitBySelector)
        }
    }
}

/// Checks all that crypto mode has the kernel do beside the cipher. Its windows have every size. It
/// counts what comes packet by packet, so that only an SA that seals can pass a limit unseen.
fn kernel_fits(sa: &CardSa, card: &SaAbilities) -> Result<(), Unfit> {
    mode_fits(sa.mode, card)?;
    let is_exact = |ability: &Ability<Exactness>| ability.get() == Some(&Exactness::Exact);
    if sa.limits.has_packets() && sa.direction == SaDirection::Out {
        must(|| is_exact(&card.kernel_limits), Unfit::KernelLimits)?;
    }
    must(|| !sa.limits.has_bytes() || is_exact(&card.byte_limits), Unfit::ByteLimits)
}

/// Checks the mode, and the headers outside.
fn mode_fits(mode: SaMode, card: &SaAbilities) -> Result<(), Unfit> {
    match mode {
        SaMode::Transport => needs(&card.transport, Unfit::Transport),
        SaMode::Tunnel(fields) => {
            needs(&card.tunnel, Unfit::Tunnel)?;
            match fields {
                OuterFields::LeftToCard => Ok(()),
                OuterFields::Exactly { dscp: OuterDscp::Fixed(_), .. } => {
                    needs(&card.outer_header, Unfit::Dscp)
                }
                OuterFields::Exactly { .. } => needs(&card.outer_header, Unfit::OuterHeader),
            }
        }
    }
}

/// Checks all that packet mode has the card do beside the cipher.
fn headers_fit(sa: &CardSa, card: &SaAbilities) -> Result<(), Unfit> {
    mode_fits(sa.mode, card)?;
    match sa.direction {
        SaDirection::In => must(|| card.windows.contains(&sa.window), Unfit::Window)?,
        SaDirection::Out => {
            let lease = sa.limits.hard_packets.ok_or(Unfit::NoLease)?;
            let last = sa.first_number.checked_add(lease).map(|behind| behind.wrapping_sub(1));
            let is_within = |last: u64| sa.first_number > 0 && last <= sa.numbers.highest();
            must(|| last.is_some_and(is_within), Unfit::Lease)?;
        }
    }
    if sa.limits.has_packets() {
        must(|| card.packet_limits.get() == Some(&Exactness::Exact), Unfit::PacketLimits)?;
    }
    if sa.limits.has_bytes() {
        must(|| card.byte_limits.get() == Some(&Exactness::Exact), Unfit::ByteLimits)?;
    }
    if sa.carries.fragments == Need::Needed {
        needs(&card.fragments, Unfit::Fragments)?;
    }
    if sa.carries.options == Need::Needed {
        needs(&card.options, Unfit::Options)?;
    }
    Ok(())
}

/// Returns whether a card can hold a policy, exactly as it is.
///
/// # Errors
/// [`Unfit`]: the first reason why not.
pub fn policy_fits(policy: &CardPolicy, card: &SaAbilities) -> Result<(), Unfit> {
    needs(&card.packet, Unfit::Packet)?;
    let is_asked = |upper: &UpperPattern| match (card.upper, *upper) {
        (Protocols::All, _) | (_, UpperPattern::Any) => true,
        (Protocols::TcpUdp, UpperPattern::Protocol(protocol)) => [TCP, UDP].contains(&protocol),
        (Protocols::TcpUdp, UpperPattern::Ports { protocol, segments, .. }) => {
            [TCP, UDP].contains(&protocol) && segments == crate::pattern::Segments::All
        }
        (Protocols::TcpUdp, UpperPattern::Messages { .. }) => false,
    };
    must(|| policy.patterns.iter().all(|pattern| is_asked(&pattern.upper)), Unfit::Upper)
}

#[cfg(test)]
pub(super) mod tests;
