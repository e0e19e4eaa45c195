//! Rate limits of a worker's ICMP errors (RFC 1812 §4.3.2.8, RFC 4443 §2.4 f).
//!
//! A message takes a token from each of three buckets, or is not made and takes none:
//!
//! | bucket | rate | burst | reserved |
//! |---|---|---|---|
//! | of the kind: "too big", or any other | 750/s | 128 | 64 for quiet origins |
//! | of the origin and the kind | 250/s | 48 | 16 for quiet senders |
//! | of the sender of the quoted packet, and the kind | 100/s | 32 | |
//!
//! An origin is an ingress port, or a virtual network behind a port.
//!
//! **Quiet.** A sender is quiet while its packets ask for at most [`QUIET_RATE`] messages of a
//! kind, an origin while its quiet senders together do. Refused messages count. A sender or an
//! origin above the rate therefore stays loud until it asks for less, and takes no reserved token.
//! So loud origins leave tokens for quiet origins, and loud senders of an origin for its quiet
//! senders, while a place is left for quiet names (below). Both kinds together bound a worker: 1500
//! messages a second.
//!
//! Path MTU discovery works beside any number of packets with TTL 1, because "too big" is a kind.
//!
//! **Places.** A kind has places for [`ORIGINS`] origins, and each origin for [`SENDERS`] senders.
//! A new name takes the place of the name that asked for least, with the state of that place. Loud
//! origins and senders therefore keep their places. Beside [`SENDERS`] loud senders of an origin, a
//! new sender inherits a loud place and finds no reserved token: the reserve holds for fewer loud
//! senders. The same holds for [`ORIGINS`] loud origins. A keyed hash names senders, so strangers
//! cannot aim at a place.

use cpu::aes::{KeyedHash, Secret};

use crate::limiter::{TokenBucket, TokenRate};
use crate::packet_sender::PacketSender;

/// Messages of a kind.
const KIND_RATE: TokenRate = TokenRate::per_second(750, 128);
/// Tokens of a kind that only quiet origins take.
const KIND_RESERVE: u64 = 64;
/// Messages of a kind about packets from a port or a virtual network.
const ORIGIN_RATE: TokenRate = TokenRate::per_second(250, 48);
/// Tokens of an origin that only quiet senders take.
const ORIGIN_RESERVE: u64 = 16;
/// Messages of a kind to a sender.
const SENDER_RATE: TokenRate = TokenRate::per_second(100, 32);
/// Messages of a kind that a quiet sender, or the quiet senders of a quiet origin, ask for. The
/// burst is small: origins that become loud at the same time take few reserved tokens.
const QUIET_RATE: TokenRate = TokenRate::per_second(20, 2);

/// Places of ports and virtual networks, for each kind.
const ORIGINS: usize = 128;
/// Places of senders, for each origin and kind.
const SENDERS: usize = 64;

/// Kind of an ICMP error, as far as rates are limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IcmpKind {
    /// "Fragmentation needed" and "packet too big": needed by path MTU discovery.
    TooBig,
    /// Time exceeded, unreachable.
    Other,
}

/// Messages of a sender or of an origin.
#[derive(Clone, Copy, Default)]
struct Messages {
    /// Made messages.
    made: TokenBucket,
    /// Requested messages, including refused messages.
    asked: TokenBucket,
}

/// Messages by name, in places that new names take over.
struct MessageTable<Name, const PLACES: usize> {
    names: [Name; PLACES],
    messages: [Messages; PLACES],
}

impl<Name: Copy + PartialEq, const PLACES: usize> MessageTable<Name, PLACES> {
    /// A table whose places all have a name.
    fn new(name: Name) -> Self {
        MessageTable { names: [name; PLACES], messages: [Messages::default(); PLACES] }
    }

    /// Returns the place of a name: its own place, or else the place that asked for least.
    fn place_of(&mut self, name: Name) -> usize {
        if let Some(place) = self.names.iter().position(|other| *other == name) {
            return place;
        }
        let asked = self.messages.iter().map(|messages| messages.asked).enumerate();
        let (place, _) = asked.min_by_key(|(_, asked)| *asked).expect("a table has places");
        self.names[place] = name;
        place
    }

    /// Returns the messages of a name.
    fn of(&mut self, name: Name) -> &mut Messages {
        let place = self.place_of(name);
        &mut self.messages[place]
    }
}

/// The buckets of a kind.
struct KindBuckets {
    all: TokenBucket,
    /// By port and virtual network.
    origins: Box<MessageTable<u64, ORIGINS>>,
    /// By the place of their origin, then by hash. The memory is taken at once, and filled one
    /// origin after the other: names take the places of [`origins`](Self::origins) in order.
    senders: Vec<MessageTable<u32, SENDERS>>,
}

impl KindBuckets {
    fn new() -> KindBuckets {
        KindBuckets {
            all: TokenBucket::default(),
            origins: Box::new(MessageTable::new(u64::MAX)),
            senders: Vec::with_capacity(ORIGINS),
        }
    }
}

/// The limits of one worker.
pub(crate) struct IcmpLimiter {
    hash: KeyedHash,
    /// Buckets by [`IcmpKind`].
    kinds: [KindBuckets; 2],
}

impl IcmpLimiter {
    /// Full buckets, found by a hash under this secret.
    pub(crate) fn new(secret: &Secret) -> IcmpLimiter {
        IcmpLimiter {
            hash: KeyedHash::new(secret),
            kinds: [KindBuckets::new(), KindBuckets::new()],
        }
    }

    /// Takes the tokens of a message of a kind to a sender. False if a bucket has none for it.
    pub(crate) fn allows(&mut self, now_ns: u64, kind: IcmpKind, sender: &PacketSender) -> bool {
        let mut hash = [0];
        self.hash.hash(&[sender.words()], &mut hash);
        let KindBuckets { all, origins, senders } = &mut self.kinds[kind as usize];
        let place = origins.place_of(sender.origin_words()[0]);
        if senders.len() <= place {
            debug_assert!(place < senders.capacity(), "memory is taken at once");
            senders.resize_with(place + 1, || MessageTable::new(0));
        }
        let origin = &mut origins.messages[place];
        let sender = senders[place].of(hash[0] as u32);
        let is_quiet_sender = sender.asked.charge(now_ns, QUIET_RATE);
        let is_quiet_origin = is_quiet_sender && origin.asked.charge(now_ns, QUIET_RATE);
        let buckets = [
            (&mut sender.made, SENDER_RATE, 0),
            (&mut origin.made, ORIGIN_RATE, if is_quiet_sender { 0 } else { ORIGIN_RESERVE }),
            (all, KIND_RATE, if is_quiet_origin { 0 } else { KIND_RESERVE }),
        ];
        let has_token = |bucket: &TokenBucket, rate, reserve| bucket.tokens(now_ns, rate) > reserve;
        let is_allowed =
            buckets.iter().all(|(bucket, rate, reserve)| has_token(bucket, *rate, *reserve));
        if is_allowed {
            for (bucket, rate, _) in buckets {
                bucket.take(now_ns, rate);
            }
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use wire::{Address, Vni};

    use super::*;
    use crate::ids::PortId;

    const SECRET: Secret = [7; 32];
    const MS: u64 = 1_000_000;

    fn sender(port: u16, address: u32) -> PacketSender {
        PacketSender::behind(PortId(port), Address::v4(address))
    }

    /// Allowed messages in ten seconds: to `honest` at 10/s, and to the senders `flood(n)` at
    /// `per_second`.
    fn honest_beside(
        honest: (PacketSender, IcmpKind),
        per_second: u64,
        flood: impl Fn(u64) -> (PacketSender, IcmpKind),
    ) -> [u64; 2] {
        let (mut limiter, mut allowed) = (IcmpLimiter::new(&SECRET), [0, 0]);
        for n in 0..10 * per_second {
            let now_ns = 1_000_000_000 + n * 1_000_000_000 / per_second;
            let (from, kind) = flood(n);
            allowed[1] += u64::from(limiter.allows(now_ns, kind, &from));
            if n.is_multiple_of(per_second / 10) {
                allowed[0] += u64::from(limiter.allows(now_ns, honest.1, &honest.0));
            }
        }
        allowed
    }

    #[test]
    fn too_big_is_answered_beside_packets_with_ttl_1() {
        let honest = (sender(0, 1), IcmpKind::TooBig);
        // One host, many hosts of one port, many hosts of many ports; the honest host itself.
        let floods: [&dyn Fn(u64) -> PacketSender; 4] = [
            &|_| sender(0, 2),
            &|n| sender(0, n as u32),
            &|n| sender(n as u16 % 8, n as u32),
            &|_| sender(0, 1),
        ];
        for (number, flood) in floods.iter().enumerate() {
            let allowed = honest_beside(honest, 3000, |n| (flood(n), IcmpKind::Other));
            assert_eq!(allowed[0], 100, "flood {number}");
            assert!((900..=7628).contains(&allowed[1]), "flood {number}: {allowed:?}");
        }
    }

    #[test]
    fn a_sender_takes_no_more_than_its_share() {
        for kind in [IcmpKind::TooBig, IcmpKind::Other] {
            let allowed = honest_beside((sender(0, 1), kind), 3000, |_| (sender(0, 2), kind));
            assert_eq!(allowed[0], 100);
            assert!((1000..=1032).contains(&allowed[1]), "{allowed:?}");
        }
    }

    #[test]
    fn a_port_with_any_number_of_senders_leaves_others_their_share() {
        for kind in [IcmpKind::TooBig, IcmpKind::Other] {
            let allowed =
                honest_beside((sender(1, 1), kind), 3000, |n| (sender(0, n as u32), kind));
            assert_eq!(allowed[0], 100);
            assert!((2450..=2548).contains(&allowed[1]), "{allowed:?}");
        }
    }

    #[test]
    fn any_number_of_loud_ports_leaves_a_quiet_port_its_tokens() {
        // Ports, hosts of each, packets a second.
        let mut floods = vec![(120, 1, 100_000), (120, 1 << 20, 100_000)];
        for hosts in [1, 4, 1 << 20] {
            floods.extend([3, 63].map(|ports| (ports, hosts, 3000)));
        }
        for (ports, hosts, per_second) in floods {
            for kind in [IcmpKind::TooBig, IcmpKind::Other] {
                let flood = |n: u64| sender(1 + (n % ports) as u16, (n / ports % hosts) as u32);
                let honest = (sender(0, 1), kind);
                let allowed = honest_beside(honest, per_second, |n| (flood(n), kind));
                let case = (ports, hosts, per_second);
                assert_eq!(allowed[0], 100, "{case:?}: {allowed:?}");
                let least = 7000.min(1000 * ports * hosts);
                assert!(allowed[1] >= least, "loud ports share the rest: {case:?} {allowed:?}");
            }
        }
    }

    #[test]
    fn any_number_of_loud_senders_leaves_a_quiet_sender_of_their_port_its_tokens() {
        for kind in [IcmpKind::TooBig, IcmpKind::Other] {
            for loud in [1, 3, 20, 63] {
                for others in [0, 2, 62] {
                    // Other ports are loud as well.
                    let flood = |n: u64| match n % (others + 1) {
                        0 => sender(0, 2 + (n / (others + 1) % loud) as u32),
                        port => sender(port as u16, (n / (others + 1) % 5) as u32),
                    };
                    // Each sender asks for more than a quiet one does.
                    let per_second = 100 * loud * (others + 1);
                    let honest = (sender(0, 1), kind);
                    let allowed = honest_beside(honest, per_second, |n| (flood(n), kind));
                    // A loud sender counts as quiet at first: for 0.3 s the port may be loud.
                    let case = format!("{loud} loud senders, {others} loud ports");
                    assert!((97..=100).contains(&allowed[0]), "{case}: {allowed:?}");
                }
            }
        }
    }

    #[test]
    fn networks_behind_one_port_have_shares_of_their_own() {
        let inside = |network| {
            let vni = Vni::new(network).expect("24 bits");
            PacketSender::inside(PortId(0), vni, Address::v4(1))
        };
        let mut limiter = IcmpLimiter::new(&SECRET);
        let mut burst = |network: u32| {
            (0..1000).filter(|_| limiter.allows(1, IcmpKind::TooBig, &inside(network))).count()
        };
        assert_eq!((burst(1), burst(1), burst(2)), (32, 0, 32));
    }

    #[test]
    fn all_messages_of_a_worker_are_limited() {
        // Loud and quiet senders of more origins than there are places.
        for (ports, hosts) in [(64, 1 << 20), (64, 8), (4000, 1), (4000, 1 << 20)] {
            let mut limiter = IcmpLimiter::new(&SECRET);
            let mut allowed = 0;
            for n in 0..100_000u64 {
                let now_ns = 1_000_000_000 + n * MS / 10;
                let kind = if n % 2 == 0 { IcmpKind::TooBig } else { IcmpKind::Other };
                let from = sender((n / 2 % ports) as u16, (n / 2 % hosts) as u32);
                allowed += u64::from(limiter.allows(now_ns, kind, &from));
            }
            assert!((14_000..=15_256).contains(&allowed), "{allowed} in ten seconds");
        }
    }

    #[test]
    fn a_loud_sender_is_quiet_again_after_a_pause() {
        let mut table = MessageTable::<u32, 2>::new(0);
        let mut ask = |now_ms| table.of(1).asked.charge(now_ms * MS, QUIET_RATE);
        assert_eq!((0..1000).filter(|_| ask(1_000)).count(), 2);
        // The pause pays two tokens of debt, and one for the next message.
        assert!(!ask(1_100));
        assert!(ask(1_250));
    }

    #[test]
    fn a_new_name_takes_the_place_that_asked_for_least() {
        let mut table = MessageTable::<u32, 4>::new(0);
        for (name, times) in [(1, 3), (2, 1), (3, 2), (4, 4)] {
            (0..times).for_each(|_| _ = table.of(name).asked.charge(1_000 * MS, QUIET_RATE));
        }
        let place = table.place_of(2);
        assert_eq!(table.place_of(5), place);
        assert!([1, 3, 4].iter().all(|name| table.place_of(*name) != place));
    }

    #[test]
    fn a_refused_message_takes_no_token() {
        let mut limiter = IcmpLimiter::new(&SECRET);
        let flooded = |limiter: &mut IcmpLimiter, tries: u32| {
            (0..tries).filter(|_| limiter.allows(1, IcmpKind::Other, &sender(0, 1))).count()
        };
        assert_eq!(flooded(&mut limiter, 100_000), 32);
        assert!(limiter.allows(1, IcmpKind::Other, &sender(0, 2)));
    }
}
