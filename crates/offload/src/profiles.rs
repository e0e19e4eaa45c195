//! Capabilities of cards by name. All but the emulated one were read, not tried.

use crate::capabilities::{
    Ability, AddressForm, Capabilities, Exactness, Order, PortForm, Protocols, RuleAbilities,
    SaAbilities, Source, Transmit,
};

const NO_CONNECTIONS: Ability = Ability::Lacks("the card follows no connections");
const INGRESS_ONLY: Ability = Ability::Lacks("the card looks at what comes by a port");
const NOT_SAID: &str = "nothing that was read says so";

/// The emulated card: it can all that a rule asks, in one order or the other.
pub(crate) const EMULATED: RuleAbilities = RuleAbilities {
    entries: 2000,
    programming_ms: 5,
    order: Order::Priority,
    addresses: AddressForm::Prefixes,
    ports: Ability::Has(PortForm::Ranges),
    protocols: Protocols::All,
    messages: Ability::Has(()),
    segments: Ability::Has(()),
    ipv6: Ability::Has(()),
    fragments: Ability::Has(()),
    reflect: NO_CONNECTIONS,
    egress: INGRESS_ONLY,
    drop: Ability::Has(()),
};

/// SAs of the emulated card: it can what real ones cannot, by name (`rx_sa_mark`, by handle), and
/// leaves to software what they do.
const EMULATED_SAS: SaAbilities = SaAbilities {
    most: Ability::Has(0),
    packet: Ability::Has(()),
    crypto: Ability::Has(()),
    suites: &["aes-128-gcm", "aes-256-gcm", "chacha20-poly1305"],
    icv_bytes: &[16],
    transport: Ability::Has(()),
    tunnel: Ability::Has(()),
    esn: Ability::Has(()),
    windows: &[32, 64, 128, 256, 512, 1024, 2048, 4096],
    nat_traversal: Ability::Has(()),
    tfc: Ability::Lacks("it pads to the cipher's block alone"),
    packet_limits: Ability::Has(Exactness::Exact),
    kernel_limits: Ability::Lacks("no kernel carries its packets"),
    byte_limits: Ability::Lacks("it counts packets against limits"),
    rx_sa_mark: Ability::Has(()),
    transmit: Transmit::ByHandle,
    upper: Protocols::All,
    fragments: Ability::Lacks("fragments are dropped both ways"),
    options: Ability::Lacks("IPv4 options and IPv6 extension headers are left to software"),
    outer_header: Ability::Has(()),
    beside_rules: Ability::Has(()),
};

/// A card that accelerates lists of rules, as a published system had one: about 2000 entries for
/// the whole card, no order, and rules for TCP and UDP.
const ACL_2000: RuleAbilities = RuleAbilities {
    entries: 2000,
    programming_ms: 5,
    order: Order::None,
    addresses: AddressForm::Prefixes,
    ports: Ability::Has(PortForm::Ranges),
    protocols: Protocols::TcpUdp,
    messages: Ability::Lacks("a rule for ICMP becomes one for all packets of the pair"),
    segments: Ability::Lacks("no rule asks for TCP flags"),
    ipv6: Ability::Has(()),
    fragments: Ability::Lacks("fragments are not told apart"),
    reflect: NO_CONNECTIONS,
    egress: INGRESS_ONLY,
    drop: Ability::Lacks("the card marks"),
};

const NO_RULES: Ability<RuleAbilities> =
    Ability::Lacks("this interface is for SAs and their policies");
const NO_SAS: Ability<SaAbilities> = Ability::Lacks("the card has no ciphers");

/// The kernel's interface for packet offload as it was first merged (the ninth version of its
/// patches, 2022).
const V9: SaAbilities = SaAbilities {
    most: Ability::Lacks(NOT_SAID),
    packet: Ability::Has(()),
    crypto: Ability::Has(()),
    suites: &["aes-128-gcm", "aes-256-gcm"],
    icv_bytes: &[16],
    transport: Ability::Has(()),
    tunnel: Ability::Lacks("transport mode only"),
    esn: Ability::Lacks("the driver must be able to advance the numbers; none is assumed"),
    windows: &[32, 64, 128, 256],
    nat_traversal: Ability::Lacks("UDP encapsulation is refused"),
    tfc: Ability::Lacks("TFC padding is refused"),
    packet_limits: Ability::Has(Exactness::Exact),
    kernel_limits: Ability::Lacks("Linux counts a frame of several segments (GSO) once"),
    byte_limits: Ability::Lacks(NOT_SAID),
    rx_sa_mark: Ability::Lacks("the mark of the SA comes with the packet buffer, behind XDP"),
    transmit: Transmit::BySelector,
    upper: Protocols::TcpUdp,
    fragments: Ability::Lacks("fragments are dropped both ways"),
    options: Ability::Lacks("IPv4 options and IPv6 extension headers are left to software"),
    outer_header: Ability::Lacks("the card copies what it copies"),
    beside_rules: Ability::Lacks(NOT_SAID),
};

/// The same interface of Linux 6.4 and later.
const FROM_6_4: SaAbilities = SaAbilities { tunnel: Ability::Has(()), ..V9 };

/// The mlx5 driver's IPsec, as its source reads.
const MLX5: SaAbilities = SaAbilities {
    esn: Ability::Has(()),
    tunnel: Ability::Lacks("refused in switchdev mode; accepted in others"),
    nat_traversal: Ability::Lacks("in transport mode only"),
    byte_limits: Ability::Has(Exactness::Polled { every_ms: 1000 }),
    beside_rules: Ability::Lacks("IPsec and tc-flower exclude each other on a netdev"),
    ..FROM_6_4
};

/// SAs that Linux carries for a card that does ESP under it: the driver refuses what it cannot.
const CARRIED: SaAbilities = SaAbilities {
    esn: Ability::Has(()),
    transport: Ability::Lacks("Linux carries tunnels"),
    nat_traversal: Ability::Lacks("Linux is asked for ESP alone"),
    suites: &["aes-128-gcm", "aes-256-gcm"],
    ..FROM_6_4
};

/// Linux's own ESP in the card's place.
const STANDS_IN: SaAbilities = SaAbilities {
    suites: &["aes-128-gcm", "aes-256-gcm", "chacha20-poly1305"],
    windows: &[32, 64, 128, 256, 512, 1024, 2048, 4096],
    // Without a card Linux cuts a frame into segments before it counts.
    kernel_limits: Ability::Has(Exactness::Exact),
    byte_limits: Ability::Lacks("Linux looks before it counts, and leaves the padding out"),
    ..CARRIED
};

/// The profiles that are not the emulated card's.
const PROFILES: [Capabilities; 4] = [
    Capabilities {
        name: "acl-2000",
        source: Source::AsRead,
        rules: Ability::Has(ACL_2000),
        sas: NO_SAS,
    },
    Capabilities { name: "v9", source: Source::AsRead, rules: NO_RULES, sas: Ability::Has(V9) },
    Capabilities {
        name: "6.4+",
        source: Source::AsRead,
        rules: NO_RULES,
        sas: Ability::Has(FROM_6_4),
    },
    Capabilities {
        name: "mlx5-as-read",
        source: Source::AsRead,
        rules: Ability::Lacks("tc-flower is not read yet"),
        sas: Ability::Has(MLX5),
    },
];

impl Capabilities {
    /// Names of the profiles that [`named`](Self::named) knows.
    pub const NAMES: [&'static str; 4] =
        [PROFILES[0].name, PROFILES[1].name, PROFILES[2].name, PROFILES[3].name];

    /// The profile of a name.
    pub fn named(name: &str) -> Option<Capabilities> {
        PROFILES.iter().find(|profile| profile.name == name).cloned()
    }

    /// An emulated card with these rules and no SAs.
    pub fn emulated(rules: RuleAbilities) -> Capabilities {
        let sas = Ability::Lacks("an emulated card has as many SAs as sas=N says");
        let (name, source) = ("emulated", Source::Emulated);
        Capabilities { name, source, rules: Ability::Has(rules), sas }
    }

    /// A card that does ESP under Linux, which carries the packets, as far as its driver was asked.
    pub fn xfrm(packet: Ability, crypto: Ability) -> Capabilities {
        let sas = Ability::Has(SaAbilities { packet, crypto, ..CARRIED });
        Capabilities { name: "xfrm", source: Source::Asked, rules: NO_RULES, sas }
    }

    /// Linux's own ESP in such a card's place, for tests.
    pub fn stand_in() -> Capabilities {
        let (source, sas) = (Source::Emulated, Ability::Has(STANDS_IN));
        Capabilities { name: "xfrm, Linux stands in", source, rules: NO_RULES, sas }
    }

    /// This card with so many SAs as the emulated one holds them; 0: none.
    pub fn with_emulated_sas(self, most: u32) -> Capabilities {
        let sas = SaAbilities { most: Ability::Has(most), ..EMULATED_SAS };
        Capabilities { sas: if most == 0 { self.sas } else { Ability::Has(sas) }, ..self }
    }
}

impl Default for RuleAbilities {
    /// Those of the emulated card.
    fn default() -> RuleAbilities {
        EMULATED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_is_found_by_its_name_and_says_where_it_is_from() {
        for name in Capabilities::NAMES {
            let profile = Capabilities::named(name).unwrap();
            assert_eq!((profile.name, profile.source), (name, Source::AsRead));
            assert!(profile.rules.is_there() || profile.rules.lack().is_some());
        }
        assert_eq!(Capabilities::named("mlx5"), None);
        assert_eq!(Capabilities::emulated(EMULATED).source.name(), "emulated");
    }

    #[test]
    fn the_driver_that_was_read_lacks_what_its_source_lacks() {
        let mlx5 = Capabilities::named("mlx5-as-read").unwrap();
        let sas = mlx5.sas.get().unwrap();
        assert_eq!(sas.windows, [32, 64, 128, 256]);
        assert_eq!(sas.icv_bytes, [16]);
        assert_eq!(sas.byte_limits.get(), Some(&Exactness::Polled { every_ms: 1000 }));
        assert_eq!(sas.packet_limits.get(), Some(&Exactness::Exact));
        assert!(sas.rx_sa_mark.lack().is_some() && sas.fragments.lack().is_some());
        assert_eq!(sas.transmit, Transmit::BySelector);
        assert_eq!(sas.upper, Protocols::TcpUdp);
    }
}
