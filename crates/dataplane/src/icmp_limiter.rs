//! Rate limits of a worker's ICMP errors (RFC 1812 §4.3.2.8, RFC 4443 §2.4 f).
//!
//! A message takes a token from each of four buckets, or is not made and takes none:
//!
//! | bucket | rate | burst |
//! |---|---|---|
//! | of the worker | 1000/s | 64 |
//! | of the kind: "too big", or any other | 500/s | 64 |
//! | of the ingress port or virtual network, and the kind | 250/s | 48 |
//! | of the sender of the quoted packet, and the kind | 100/s | 32 |
//!
//! So no sender, port or kind takes all tokens: path MTU discovery works beside any number of
//! packets with TTL 1. A keyed hash selects the buckets of ports and senders, so strangers cannot
//! aim at a bucket.

use cpu::aes::{KeyedHash, Secret};

use crate::limiter::{TokenBucket, TokenRate};
use crate::packet_sender::PacketSender;

/// Messages of a worker.
pub(crate) const ICMP_RATE: TokenRate = TokenRate::per_second(1000, 64);
/// Messages of a kind.
const KIND_RATE: TokenRate = TokenRate::per_second(500, 64);
/// Messages of a kind about packets from a port or a virtual network.
const ORIGIN_RATE: TokenRate = TokenRate::per_second(250, 48);
/// Messages of a kind to a sender.
const SENDER_RATE: TokenRate = TokenRate::per_second(100, 32);

/// Buckets of ports and virtual networks, for each kind; a power of two.
const ORIGIN_BUCKETS: usize = 256;
/// Buckets of senders, for each kind; a power of two.
const SENDER_BUCKETS: usize = 1024;

/// Kind of an ICMP error, as far as rates are limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IcmpKind {
    /// "Fragmentation needed" and "packet too big": needed by path MTU discovery.
    TooBig,
    /// Time exceeded, unreachable.
    Other,
}

/// The buckets of a kind.
struct KindBuckets {
    all: TokenBucket,
    origins: Box<[TokenBucket; ORIGIN_BUCKETS]>,
    senders: Box<[TokenBucket; SENDER_BUCKETS]>,
}

impl KindBuckets {
    fn new() -> KindBuckets {
        KindBuckets {
            all: TokenBucket::default(),
            origins: Box::new([TokenBucket::default(); ORIGIN_BUCKETS]),
            senders: Box::new([TokenBucket::default(); SENDER_BUCKETS]),
        }
    }
}

/// The limits of one worker.
pub(crate) struct IcmpLimiter {
    hash: KeyedHash,
    all: TokenBucket,
    /// Buckets by [`IcmpKind`].
    kinds: [KindBuckets; 2],
}

impl IcmpLimiter {
    /// Full buckets, found by a hash under this secret.
    pub(crate) fn new(secret: &Secret) -> IcmpLimiter {
        IcmpLimiter {
            hash: KeyedHash::new(secret),
            all: TokenBucket::default(),
            kinds: [KindBuckets::new(), KindBuckets::new()],
        }
    }

    /// Takes the tokens of a message of a kind to a sender. False if a bucket is empty.
    pub(crate) fn allows(&mut self, now_ns: u64, kind: IcmpKind, sender: &PacketSender) -> bool {
        let mut hashes = [0; 2];
        self.hash.hash(&[sender.origin_words(), sender.words()], &mut hashes);
        let [origin, sender] = hashes;
        let IcmpLimiter { all, kinds, .. } = self;
        let KindBuckets { all: of_kind, origins, senders } = &mut kinds[kind as usize];
        let buckets = [
            (all, ICMP_RATE),
            (of_kind, KIND_RATE),
            (&mut origins[origin as usize % ORIGIN_BUCKETS], ORIGIN_RATE),
            (&mut senders[sender as usize % SENDER_BUCKETS], SENDER_RATE),
        ];
        let is_allowed = buckets.iter().all(|(bucket, rate)| bucket.has_token(now_ns, *rate));
        if is_allowed {
            for (bucket, rate) in buckets {
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
            assert!((900..=5064).contains(&allowed[1]), "flood {number}: {allowed:?}");
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
            assert!((2500..=2548).contains(&allowed[1]), "{allowed:?}");
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
        let mut limiter = IcmpLimiter::new(&SECRET);
        let mut allowed = 0;
        for n in 0..100_000u64 {
            let now_ns = 1_000_000_000 + n * MS / 10;
            let kind = if n % 2 == 0 { IcmpKind::TooBig } else { IcmpKind::Other };
            let from = sender(n as u16 % 64, n as u32);
            allowed += u64::from(limiter.allows(now_ns, kind, &from));
        }
        assert!((9_900..=10_064).contains(&allowed), "{allowed} in ten seconds");
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
