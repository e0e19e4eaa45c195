//! Security associations (RFC 4301 §4.4.2).

use std::sync::Arc;

use policy::{SaSelectors, SaSetId};

use crate::cipher::Cipher;
use crate::encapsulation::{Encapsulation, Identifications, Mode};
use crate::error::SaError;
use crate::ids::{CardSeat, SaId, Spi, Tunnel};
use crate::layout::Sizes;
use crate::lifetime::Allowance;
use crate::outer::{OuterHeader, UDP_BYTES};
use crate::replay::ReplayWindow;
use crate::sequence::SequenceCounter;
use crate::suite::{KeyMaterial, Suite};
use crate::template::Template;

/// An SA that seals. Shared by workers; only its sequence counter changes. No `Debug`: it holds
/// key bytes.
pub struct OutboundSa {
    /// Slot of the SA.
    pub id: SaId,
    /// The number by which the peer finds it.
    pub spi: Spi,
    /// The set by which policies know it.
    pub set: SaSetId,
    /// Algorithms.
    pub suite: Suite,
    /// The carriage of its packets.
    pub encapsulation: Encapsulation,
    /// Key of the SA, expanded.
    pub cipher: Cipher,
    /// The next number to use; survives changes of configuration.
    pub sequence: Arc<SequenceCounter>,
    /// Limits and use of the SA, if it has any; the account survives changes of configuration.
    pub allowance: Option<Allowance>,
    /// Its place in a card, which alone encrypts by it, and does the rest too or not
    /// ([`CardWork`](crate::CardWork)); `None`: software seals by it. From birth to death it is one
    /// of the three.
    pub card: Option<CardSeat>,
    /// Its turn among the SAs of its set.
    pub turn: SealingTurn,
    /// The fields that all its outer headers share.
    pub(crate) outer: OuterHeader,
    pub(crate) sizes: Sizes,
    /// Header fields as whole words, for an SA whose packets have that form.
    pub(crate) template: Option<Template>,
}

/// Place of an SA in the sealing order of its set. All SAs of a set have one rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SealingTurn {
    /// The order of the set: each worker seals with another SA (RFC 9611 §3).
    InOrder,
    /// The newest SA seals, because the peer may have forgotten the older ones.
    Newest {
        /// The CPU that the key manager made the SA for: the worker of this number prefers the SA.
        cpu: Option<u32>,
    },
}

impl OutboundSa {
    /// Makes an SA that seals. `sequence` must be the counter of this key material and no other:
    /// a new one for a key that never sealed, else the one that it sealed with before.
    ///
    /// # Errors
    /// [`SaError`]: the configuration is at fault.
    pub fn new(
        id: SaId,
        spi: Spi,
        set: SaSetId,
        material: &KeyMaterial,
        encapsulation: impl Into<Encapsulation>,
        sequence: Arc<SequenceCounter>,
    ) -> Result<OutboundSa, SaError> {
        let cipher = Cipher::new(material).with_numbers(sequence.numbers());
        OutboundSa::with_cipher(id, spi, set, cipher, encapsulation.into(), sequence)
    }

    /// Makes the SA as [`new`](Self::new) does, with a key that is expanded already, and of the
    /// width of `sequence`.
    ///
    /// # Errors
    /// [`SaError`]: the configuration is at fault.
    pub fn with_cipher(
        id: SaId,
        spi: Spi,
        set: SaSetId,
        cipher: Cipher,
        encapsulation: Encapsulation,
        sequence: Arc<SequenceCounter>,
    ) -> Result<OutboundSa, SaError> {
        encapsulation.check()?;
        let (suite, outer) = (cipher.suite(), OuterHeader::new(&encapsulation)?);
        let sizes = Sizes::new(suite, headers(&encapsulation, &outer));
        let template = Template::new(suite, &encapsulation, spi, sizes);
        Ok(OutboundSa {
            id,
            spi,
            set,
            suite,
            encapsulation,
            cipher,
            sequence,
            allowance: None,
            card: None,
            turn: SealingTurn::InOrder,
            outer,
            sizes,
            template,
        })
    }

    /// Counts the use of the SA, and seals no packet beyond its hard limits. The account is this
    /// key's and direction's and no other's, as the counter is.
    pub fn within(self, allowance: Option<Allowance>) -> OutboundSa {
        OutboundSa { allowance, ..self }
    }

    /// Has a card work for the SA, which has this place there. If the card writes whole packets,
    /// the counter must have no numbers: all are the card's.
    pub fn seated(self, card: Option<CardSeat>) -> OutboundSa {
        OutboundSa { card, ..self }
    }

    /// Gives the SA its turn among the SAs of its set.
    pub fn taking(self, turn: SealingTurn) -> OutboundSa {
        OutboundSa { turn, ..self }
    }

    /// True if the SA can seal another packet: it is at no hard limit, and has a number left. The
    /// numbers of a card that writes whole packets are the card's. The control plane ends an SA
    /// at a limit by time ([`Account::judge`](crate::Account::judge)).
    #[inline]
    pub fn lasts(&self) -> bool {
        let is_spent = self.allowance.as_ref().is_some_and(Allowance::is_spent);
        !is_spent && (self.packet_card().is_some() || !self.sequence.is_exhausted())
    }

    /// Its place in a card that writes its packets, numbers included.
    #[inline]
    pub fn packet_card(&self) -> Option<CardSeat> {
        self.card.filter(|seat| seat.has_numbers())
    }

    /// Its place in a card that encrypts what software wrote.
    #[inline]
    pub fn cipher_card(&self) -> Option<CardSeat> {
        self.card.filter(|seat| !seat.has_numbers())
    }

    /// Returns this SA at another place, with the same expanded key, counter and limits.
    pub fn at(&self, id: SaId, set: SaSetId) -> OutboundSa {
        let (cipher, sequence) = (self.cipher.share(), self.sequence.clone());
        OutboundSa { id, set, cipher, sequence, allowance: self.allowance.clone(), ..*self }
    }

    /// Returns this SA with another carriage, towards another end say, with the same expanded key,
    /// counter, limits and identifications.
    ///
    /// # Errors
    /// [`SaError`]: the caller's ends are of different families.
    pub fn carried(&self, encapsulation: Encapsulation) -> Result<OutboundSa, SaError> {
        let (cipher, sequence) = (self.cipher.share(), self.sequence.clone());
        OutboundSa::with_cipher(self.id, self.spi, self.set, cipher, encapsulation, sequence)
            .map(|sa| sa.within(self.allowance.clone()).identified_by(self.identifications()))
            .map(|sa| sa.seated(self.card).taking(self.turn))
    }

    /// The identifications of its outer IPv4 packets where DF is clear, and of its outer fragments:
    /// all, unless [`identified_by`](Self::identified_by) says otherwise.
    #[inline]
    pub const fn identifications(&self) -> Identifications {
        self.outer.identifications
    }

    /// Has the SA use these identifications and no others.
    pub fn identified_by(mut self, identifications: Identifications) -> OutboundSa {
        self.outer.identifications = identifications;
        if let Some(template) = &mut self.template {
            template.identifications = identifications;
        }
        self
    }

    /// The family of the packets that leave.
    #[inline]
    pub const fn family(&self) -> wire::Family {
        self.outer.family()
    }

    /// The two ends.
    #[inline]
    pub const fn tunnel(&self) -> &Tunnel {
        &self.encapsulation.tunnel
    }
}

/// An SA that opens. No `Debug`: it holds key bytes.
pub struct InboundSa {
    /// Slot of the SA.
    pub id: SaId,
    /// The number by which it is found.
    pub spi: Spi,
    /// The set by which policies know it.
    pub set: SaSetId,
    /// Algorithms.
    pub suite: Suite,
    /// The carriage of its packets.
    pub encapsulation: Encapsulation,
    /// Key of the SA, expanded.
    pub cipher: Cipher,
    /// The record of received numbers; survives changes of configuration.
    pub window: Arc<ReplayWindow>,
    /// Limits and use of the SA, if it has any; the account survives changes of configuration.
    pub allowance: Option<Allowance>,
    /// Its place in a card, which alone deciphers by it, and does the rest too or not
    /// ([`CardWork`](crate::CardWork)); `None`: software opens by it.
    pub card: Option<CardSeat>,
    /// Selectors that IKE agreed on for the SA; `None`: the policies alone decide.
    pub selectors: Option<Arc<SaSelectors>>,
    pub(crate) sizes: Sizes,
}

impl InboundSa {
    /// Makes an SA that opens. `window` is a new one for a new key, else the one that this key
    /// opened with before.
    ///
    /// # Errors
    /// [`SaError`]: the configuration is at fault.
    pub fn new(
        id: SaId,
        spi: Spi,
        set: SaSetId,
        material: &KeyMaterial,
        encapsulation: impl Into<Encapsulation>,
        window: Arc<ReplayWindow>,
    ) -> Result<InboundSa, SaError> {
        let cipher = Cipher::new(material).with_numbers(window.numbers());
        InboundSa::with_cipher(id, spi, set, cipher, encapsulation.into(), window)
    }

    /// Makes the SA as [`new`](Self::new) does, with a key that is expanded already, and of the
    /// width of `window`.
    ///
    /// # Errors
    /// [`SaError`]: the configuration is at fault.
    pub fn with_cipher(
        id: SaId,
        spi: Spi,
        set: SaSetId,
        cipher: Cipher,
        encapsulation: Encapsulation,
        window: Arc<ReplayWindow>,
    ) -> Result<InboundSa, SaError> {
        encapsulation.check()?;
        let suite = cipher.suite();
        let sizes = Sizes::new(suite, 0);
        Ok(InboundSa {
            id,
            spi,
            set,
            suite,
            encapsulation,
            cipher,
            window,
            allowance: None,
            card: None,
            selectors: None,
            sizes,
        })
    }

    /// Counts the use of the SA, and opens no packet beyond its hard limits. The account is this
    /// key's and direction's and no other's, as the window is.
    pub fn within(self, allowance: Option<Allowance>) -> InboundSa {
        InboundSa { allowance, ..self }
    }

    /// Has a card work for the SA, which has this place there.
    pub fn seated(self, card: Option<CardSeat>) -> InboundSa {
        InboundSa { card, ..self }
    }

    /// Admits packets inside of these selectors alone.
    pub fn selecting(self, selectors: Option<Arc<SaSelectors>>) -> InboundSa {
        InboundSa { selectors, ..self }
    }

    /// Its place in a card that opens its packets, window included.
    #[inline]
    pub fn packet_card(&self) -> Option<CardSeat> {
        self.card.filter(|seat| seat.has_numbers())
    }

    /// Its place in a card that deciphers what software opens.
    #[inline]
    pub fn cipher_card(&self) -> Option<CardSeat> {
        self.card.filter(|seat| !seat.has_numbers())
    }

    /// Returns this SA at another place, with the same expanded key, window and limits.
    pub fn at(&self, id: SaId, set: SaSetId) -> InboundSa {
        let (cipher, window) = (self.cipher.share(), self.window.clone());
        let (allowance, selectors) = (self.allowance.clone(), self.selectors.clone());
        InboundSa { id, set, cipher, window, allowance, selectors, ..*self }
    }

    /// Returns this SA with another carriage, with the same expanded key, window and limits.
    ///
    /// # Errors
    /// [`SaError`]: the caller's ends are of different families.
    pub fn carried(&self, encapsulation: Encapsulation) -> Result<InboundSa, SaError> {
        let (cipher, window) = (self.cipher.share(), self.window.clone());
        InboundSa::with_cipher(self.id, self.spi, self.set, cipher, encapsulation, window)
            .map(|sa| sa.within(self.allowance.clone()).seated(self.card))
            .map(|sa| sa.selecting(self.selectors.clone()))
    }

    /// The two ends.
    #[inline]
    pub const fn tunnel(&self) -> &Tunnel {
        &self.encapsulation.tunnel
    }
}

/// Bytes that are put in front of ESP: outer IP and UDP; in transport mode the IP header is there.
fn headers(encapsulation: &Encapsulation, outer: &OuterHeader) -> usize {
    match (encapsulation.mode, encapsulation.udp) {
        (Mode::Tunnel, _) => outer.bytes(),
        (Mode::Transport, Some(_)) => UDP_BYTES,
        (Mode::Transport, None) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DontFragment, Dscp, Lifetime, SequenceNumbers, UdpPorts};

    #[test]
    fn reserved_spis_cannot_be_held() {
        for reserved in 0..=255 {
            assert_eq!(Spi::new(reserved), None);
        }
        for value in [256, 257, u32::MAX] {
            assert_eq!(Spi::new(value).map(Spi::value), Some(value));
        }
        assert_eq!(Spi::LOWEST.to_string(), "0x00000100");
    }

    #[test]
    fn tunnel_between_families_makes_no_sa() {
        let (v4, v6) = ("192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
        let material = KeyMaterial::new(Suite::Aes128Gcm, &[1; 20]).unwrap();
        for (local, remote) in [(v4, v6), (v6, v4)] {
            let tunnel = Tunnel { local, remote };
            let expected = Some(SaError::MixedFamilies { local, remote });
            let counter = Arc::new(SequenceCounter::new(SequenceNumbers::Short));
            let out = OutboundSa::new(SaId(0), Spi::LOWEST, SaSetId(0), &material, tunnel, counter);
            assert_eq!(out.err(), expected);
            let window = Arc::new(ReplayWindow::new(64, SequenceNumbers::Short).unwrap());
            let inbound =
                InboundSa::new(SaId(0), Spi::LOWEST, SaSetId(0), &material, tunnel, window);
            assert_eq!(inbound.err(), expected);
        }
    }

    #[test]
    fn sa_carried_elsewhere_keeps_key_counter_window_and_account() {
        let ends = |local: &str, remote: &str| Tunnel {
            local: local.parse().unwrap(),
            remote: remote.parse().unwrap(),
        };
        let material = KeyMaterial::new(Suite::Aes256CbcSha512, &[1; 96]).unwrap();
        let tunnel = ends("192.0.2.1", "198.51.100.7");
        let counter = Arc::new(SequenceCounter::new(SequenceNumbers::Extended));
        let window = Arc::new(ReplayWindow::new(64, SequenceNumbers::Extended).unwrap());
        let (spi, set) = (Spi::LOWEST, SaSetId(5));
        let out = OutboundSa::new(SaId(1), spi, set, &material, tunnel, counter).unwrap();
        let inbound = InboundSa::new(SaId(2), spi, set, &material, tunnel, window).unwrap();
        let allowance = || Allowance { lifetime: Lifetime::NONE, account: Arc::default() };
        let (out, inbound) = (out.within(Some(allowance())), inbound.within(Some(allowance())));
        let seat = Some(CardSeat::of_worker(3, 7, crate::CardWork::Packets));
        let (out, inbound) = (out.seated(seat), inbound.seated(seat));
        let account = |allowance: &Option<Allowance>| allowance.as_ref().unwrap().account.clone();
        let (out_account, in_account) = (account(&out.allowance), account(&inbound.allowance));
        let moved = Encapsulation {
            mode: Mode::Transport,
            tunnel: ends("2001:db8::1", "2001:db8::7"),
            udp: Some(UdpPorts { local: 4500, remote: 9 }),
            dscp: Dscp::Fixed(1),
            dont_fragment: DontFragment::Clear,
        };
        let (there, back) = (out.carried(moved).unwrap(), inbound.carried(moved).unwrap());
        assert_eq!((there.encapsulation, back.encapsulation), (moved, moved));
        assert_eq!((there.id, there.spi, there.set, there.suite), (SaId(1), spi, set, out.suite));
        assert_eq!((back.id, back.spi, back.set, back.suite), (SaId(2), spi, set, out.suite));
        assert!(Arc::ptr_eq(&there.sequence, &out.sequence));
        assert!(Arc::ptr_eq(&back.window, &inbound.window));
        assert!(Arc::ptr_eq(&account(&there.allowance), &out_account));
        assert!(Arc::ptr_eq(&account(&back.allowance), &in_account));
        assert_eq!((there.card, back.card), (seat, seat));
        // The headers are the new carriage's: UDP alone in front of ESP.
        assert_eq!((out.sizes.front, there.sizes.front), (20 + 8 + 16, 8 + 8 + 16));

        let (remote, local) = (moved.tunnel.remote, tunnel.local);
        let mixed = Encapsulation { tunnel: Tunnel { local, remote }, ..moved };
        let refused = SaError::MixedFamilies { local, remote };
        assert_eq!(out.carried(mixed).err(), Some(refused));
        assert_eq!(inbound.carried(mixed).err(), Some(refused));

        // At another place it is the same SA too, however it is carried.
        let (there, back) = (there.at(SaId(7), SaSetId(8)), back.at(SaId(9), SaSetId(8)));
        assert_eq!((there.card, back.card), (seat, seat));
        assert_eq!((there.id, there.set, there.encapsulation), (SaId(7), SaSetId(8), moved));
        assert_eq!((back.id, back.set, back.encapsulation), (SaId(9), SaSetId(8), moved));
        assert!(Arc::ptr_eq(&there.sequence, &out.sequence));
        assert!(Arc::ptr_eq(&back.window, &inbound.window));
        assert!(Arc::ptr_eq(&account(&there.allowance), &out_account));
        assert!(Arc::ptr_eq(&account(&back.allowance), &in_account));
    }
}
