//! A run of packets of one SA, sealed or opened in its common form: the fast form of
//! [`OutboundSa::encapsulate`] and [`InboundSa::open_job`], which stay the authority. A
//! property test holds what is written byte for byte equal.

use wire::Family;

use crate::encapsulation::Mode;
use crate::job::{OpenJob, SealJob};
use crate::layout::{HEADER_BYTES, TRAILER_BYTES};
use crate::outer::V4_BYTES;
use crate::sa::{InboundSa, OutboundSa};
use crate::suite::Suite;
use crate::template::{Form, Template, Trailers};

/// A run of packets that an SA seals: what is looked up once for all of them. No `Debug`: it holds
/// the salt.
#[derive(Clone, Copy)]
pub struct Sealer {
    template: Template,
    salt: [u8; 4],
}

/// Bytes that the cipher processes of a packet of `length` bytes that a [`Sealer`] writes.
#[inline(always)]
pub const fn text_bytes(length: u32) -> u64 {
    // Rounded up to a multiple of 4.
    (length as u64 + TRAILER_BYTES as u64 + 3) & !3
}

/// An inner packet as a sealer sees it.
#[derive(Clone, Copy, Debug)]
pub struct InnerPacket {
    /// IP version of the packet.
    pub family: Family,
    /// Offset of its IP header in the frame.
    pub ip: u32,
    /// Bytes of the packet.
    pub length: u32,
}

impl OutboundSa {
    /// The form of its headers. `None`: only [`encapsulate`](Self::encapsulate) writes
    /// them.
    #[inline]
    pub fn form(&self) -> Option<Form> {
        let template = self.template.as_ref()?;
        Some(Form { outer: template.outer.into(), iv: template.iv.into() })
    }

    /// Begins a run of packets.
    #[inline]
    pub fn sealer(&self) -> Option<Sealer> {
        Some(Sealer { template: self.template?, salt: self.cipher.salt() })
    }
}

impl Sealer {
    /// Returns whether other SAs between the same ends have a part of the identifications of outer
    /// IPv4 headers: the `SHARED` of [`write`](Self::write). Only their packets pay for the parts.
    #[inline(always)]
    pub fn shares_identifications(&self) -> bool {
        self.template.shares_identifications()
    }

    /// Lowers a packet's hop limit, and writes outer headers, ESP header, IV and trailer around it;
    /// returns the bytes of the whole outer packet. With an IV, says in `job` what the cipher has
    /// to do; `frame` and `row` of it stay.
    ///
    /// `head` is of `OUTER`, 8 and `IV` bytes, those of the SA's [`Form`], and ends where the
    /// packet begins; `body` begins there and has at least
    /// [`TAIL_BYTES`](crate::template::TAIL_BYTES) behind it. The packet's hop limit is above 1,
    /// and its length fits the SA's path. `sequence` was drawn for it alone.
    ///
    /// `SHARED` is what [`shares_identifications`](Self::shares_identifications) returns.
    ///
    /// `None`: `head` or `body` is too short. The caller drops the packet.
    #[inline(always)]
    pub fn write<const OUTER: usize, const IV: usize, const SHARED: bool>(
        &self,
        head: &mut [u8],
        body: &mut [u8],
        inner: InnerPacket,
        sequence: u64,
        job: &mut SealJob,
    ) -> Option<u32> {
        let InnerPacket { family, ip, length } = inner;
        let padding = (length.wrapping_add(TRAILER_BYTES as u32).wrapping_neg() & 3) as usize;
        let trailers = match family {
            Family::V4 => Trailers::V4,
            Family::V6 => Trailers::V6,
        };
        let trailer = trailers.0[padding].to_ne_bytes();
        *body.get_mut(length as usize..)?.first_chunk_mut::<8>()? = trailer;
        let start = body.first_chunk_mut::<V4_BYTES>()?;
        let class = wire::glance::pass_on(start, family);
        let text_length = length + (padding + TRAILER_BYTES) as u32;
        let total = text_length + self.template.around;
        debug_assert_eq!(SHARED, self.shares_identifications());
        self.template.write_head::<OUTER, IV, SHARED>(head, class, total, sequence)?;
        if IV == 8 {
            job.aad = ip - (HEADER_BYTES + IV) as u32;
            job.text = ip;
            job.text_length = text_length;
            put_nonce(&mut job.nonce, self.salt, sequence.to_be_bytes());
            job.sequence = sequence;
        }
        Some(total)
    }
}

/// Writes salt and IV; the last 4 bytes, which an AEAD does not use, stay. The cipher reads them as
/// one, but not before all packets of the batch have theirs: by then two stores are as good as one.
#[inline(always)]
fn put_nonce(nonce: &mut [u8; 16], salt: [u8; 4], iv: [u8; 8]) {
    nonce[..4].copy_from_slice(&salt);
    nonce[4..12].copy_from_slice(&iv);
}

/// The common form of an SA that opens: tunnel mode, an AEAD or [`Suite::Null`].
#[derive(Clone, Copy, Debug)]
pub struct Opener {
    /// Bytes from the ESP header to the text.
    pub front: u32,
    /// Bytes of the ICV.
    pub icv: u32,
}

impl InboundSa {
    /// Returns its form. `None`: it has none of the common ones.
    pub fn opener(&self) -> Option<Opener> {
        let has_form = self.suite == Suite::Null || self.suite.salt_bytes() == 4;
        let is_tunnel = self.encapsulation.mode == Mode::Tunnel;
        (is_tunnel && has_form && self.sizes.alignment == 4)
            .then_some(Opener { front: self.sizes.front as u32, icv: self.sizes.icv as u32 })
    }

    /// Says in a job what the cipher has to do with a packet whose ESP header is at `esp` in its
    /// frame and carries this IV (`None`: the suite has none); `frame`, `row` and `authentic` of
    /// the job stay.
    #[inline(always)]
    pub fn write_open_job(
        &self,
        job: &mut OpenJob,
        opener: Opener,
        (esp, text_length): (u32, u32),
        sequence: u64,
        iv: Option<[u8; 8]>,
    ) {
        job.aad = esp;
        job.text = esp + opener.front;
        job.text_length = text_length;
        if let Some(iv) = iv {
            put_nonce(&mut job.nonce, self.cipher.salt(), iv);
        }
        job.sequence = sequence;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use policy::SaSetId;
    use proptest::prelude::*;
    use proptest::sample::select;
    use wire::FrameId;
    use wire::build::PacketBuilder;

    use super::*;
    use crate::encapsulation::{DontFragment, Dscp, Encapsulation, Identifications, UdpPorts};
    use crate::ids::{SaId, Spi, Tunnel};
    use crate::sequence::{SequenceCounter, SequenceNumbers};
    use crate::template::{OUTER_V4, OUTER_V4_UDP, OUTER_V6, OUTER_V6_UDP, TAIL_BYTES};
    use crate::testing::{SPI, material};

    /// Offset of the inner packet in its frame, and bytes of the frame.
    const IP: usize = 100;
    const FRAME: usize = 2048;

    fn sa(suite: Suite, encapsulation: Encapsulation, numbers: SequenceNumbers) -> OutboundSa {
        let counter = Arc::new(SequenceCounter::new(numbers));
        let spi = Spi::new(SPI).unwrap();
        let material = material(suite, 1);
        OutboundSa::new(SaId(0), spi, SaSetId(0), &material, encapsulation, counter).unwrap()
    }

    fn encapsulations() -> impl Strategy<Value = Encapsulation> {
        let mode = prop_oneof![9 => Just(Mode::Tunnel), 1 => Just(Mode::Transport)];
        let udp = prop::option::of(select(&[4500u16, 1, 65_535][..]));
        let dscp = prop_oneof![Just(Dscp::Copy), (0u8..64).prop_map(Dscp::Fixed)];
        let fragment = select(&[DontFragment::Set, DontFragment::Copy, DontFragment::Clear][..]);
        (mode, any::<bool>(), udp, dscp, fragment).prop_map(|(mode, v6, udp, dscp, fragment)| {
            let ends = match v6 {
                false => ["192.0.2.1", "198.51.100.7"],
                true => ["2001:db8::1", "2001:db8:ffff::7"],
            };
            let [local, remote] = ends.map(|end| end.parse().unwrap());
            Encapsulation {
                mode,
                tunnel: Tunnel { local, remote },
                udp: udp.map(|remote| UdpPorts { local: 4500, remote }),
                dscp,
                dont_fragment: fragment,
            }
        })
    }

    /// Writes headers in the form of the SA, as the fast path does; returns the frame, the job and
    /// the bytes of the outer packet.
    fn write(
        sa: &OutboundSa,
        mut frame: Vec<u8>,
        inner: InnerPacket,
        sequence: u64,
    ) -> Option<(Vec<u8>, SealJob, usize, u32)> {
        let Form { outer, iv } = sa.form()?;
        let sealer = sa.sealer()?;
        let mut job = SealJob { row: 7, ..SealJob::of(FrameId(3)) };
        let start = IP - outer - HEADER_BYTES - iv;
        let (head, body) = frame[start..].split_at_mut(IP - start);
        let job_ = &mut job;
        macro_rules! by_form {
            ($($outer:ident $iv:literal $shared:literal),*) => {
                match (outer, iv, sealer.shares_identifications()) {
                    $(($outer, $iv, $shared) =>
                        sealer.write::<$outer, $iv, $shared>(head, body, inner, sequence, job_),)*
                    other => panic!("no such form: {other:?}"),
                }
            };
        }
        let total = by_form!(
            OUTER_V4 8 false, OUTER_V4 0 false, OUTER_V4_UDP 8 false, OUTER_V4_UDP 0 false,
            OUTER_V4 8 true, OUTER_V4 0 true, OUTER_V4_UDP 8 true, OUTER_V4_UDP 0 true,
            OUTER_V6 8 false, OUTER_V6 0 false, OUTER_V6_UDP 8 false
        );
        Some((frame, job, start, total.expect("there is room")))
    }

    proptest! {
        #[test]
        fn a_template_writes_what_encapsulate_writes(
            suite in select(Suite::ALL),
            encapsulation in encapsulations(),
            numbers in select(&[SequenceNumbers::Short, SequenceNumbers::Extended][..]),
            (place, count) in select(&[(0usize, 1usize), (1, 2), (2, 3), (7, 100_000)][..]),
            (is_v6, dont_fragment) in any::<(bool, bool)>(),
            class in any::<u8>(),
            hop_limit in 2u8..=255,
            payload in 0usize..120,
            sequence in prop_oneof![
                Just(1u64), Just(0xffff), Just(0x1_0000), Just(u64::from(u32::MAX)), any::<u64>()
            ],
        ) {
            let identifications = Identifications::of_one_among(place, count);
            let sa = sa(suite, encapsulation, numbers).identified_by(identifications);
            let sequence = sequence.clamp(1, numbers.limit());
            let builder = match is_v6 {
                false => PacketBuilder::v4("10.1.2.3", "10.9.8.7"),
                true => PacketBuilder::v6("2001:db8:1::1", "2001:db8:2::2"),
            };
            let builder = builder.udp(1, 2).traffic_class(class).payload_of(payload);
            let builder = if dont_fragment { builder.dont_fragment() } else { builder };
            let bytes = builder.hop_limit(hop_limit).ip();
            let mut frame = vec![0xa5; FRAME];
            frame[IP..IP + bytes.len()].copy_from_slice(&bytes);
            let family = if is_v6 { Family::V6 } else { Family::V4 };
            let inner = InnerPacket { family, ip: IP as u32, length: bytes.len() as u32 };
            let Some((written, job, start, total)) = write(&sa, frame.clone(), inner, sequence)
            else {
                // Other suites, and transport mode, have no such form; nor has UDP over IPv6
                // without a cipher.
                let is_aead = suite.salt_bytes() == 4;
                let is_bare = suite == Suite::Null && encapsulation.udp.is_some() && {
                    encapsulation.tunnel.local.is_ipv6()
                };
                let is_null = suite == Suite::Null;
                prop_assert!(
                    encapsulation.mode == Mode::Transport || !(is_aead || is_null) || is_bare
                );
                return Ok(());
            };
            wire::packet::decrement_hop_limit(&mut frame[IP..], family);
            let packet = wire::packet::parse(&frame[IP..IP + bytes.len()]).unwrap();
            let (expected, outer) =
                sa.encapsulate(FrameId(3), &mut frame, IP, &packet, sequence, 7).unwrap();
            prop_assert_eq!((start, start + total as usize), (outer.start, outer.end));
            let icv = suite.icv_bytes();
            let text = outer.start..outer.end - icv;
            prop_assert_eq!(&written[text.clone()], &frame[text]);
            prop_assert_eq!(&written[..start], &frame[..start]);
            let behind = IP + bytes.len() + TAIL_BYTES;
            prop_assert_eq!(&written[behind..], &frame[behind..]);
            // What limits count is what the cipher gets.
            prop_assert_eq!(sa.text_bytes(&packet), u64::from(expected.text_length));
            prop_assert_eq!(text_bytes(inner.length), u64::from(expected.text_length));
            if suite != Suite::Null {
                prop_assert!(job == expected, "{job:?} {expected:?}");
            }
        }
    }

    #[test]
    fn a_head_or_a_body_that_is_too_short_is_refused() {
        let [local, remote] = ["192.0.2.1", "198.51.100.7"].map(|end| end.parse().unwrap());
        let sa = sa(Suite::Aes128Gcm, Tunnel { local, remote }.into(), SequenceNumbers::Short);
        let sealer = sa.sealer().unwrap();
        let mut job = SealJob::of(FrameId(0));
        let inner = InnerPacket { family: Family::V4, ip: 36, length: 40 };
        for (head, body, fits) in [(36, 61, true), (35, 61, false), (36, 47, false)] {
            let (mut head, mut body) = (vec![0x45; head], vec![0x45; body]);
            let written =
                sealer.write::<OUTER_V4, 8, false>(&mut head, &mut body, inner, 1, &mut job);
            assert_eq!(written.is_some(), fits);
        }
    }
}
