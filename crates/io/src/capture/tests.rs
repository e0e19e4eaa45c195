use super::*;
use crate::pcap::MAX_RECORD;
use crate::stream::ByteOrder;
use crate::{MemoryFrames, Resolution};
use pcap_file::pcap as other;
use proptest::prelude::*;
use std::time::Duration;
use wire::frame::HEADROOM;

const NAME: &str = "in.pcap";
type Packets = Vec<(u64, Vec<u8>)>;
type TestPort<'a> = CapturePort<&'a [u8], Vec<u8>>;

fn written(packets: &Packets, link: LinkType, resolution: Resolution) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer =
        CaptureWriter::new(&mut bytes, Path::new("out.pcap"), link, resolution).unwrap();
    for (timestamp_ns, packet) in packets {
        writer.write(*timestamp_ns, packet).unwrap();
    }
    writer.finish().unwrap();
    bytes
}

fn open(bytes: &[u8]) -> Result<CaptureReader<&[u8]>, CaptureError> {
    CaptureReader::new(bytes, Path::new(NAME))
}

fn read(bytes: &[u8]) -> Result<Packets, CaptureError> {
    let mut reader = open(bytes)?;
    let mut packets = Vec::new();
    while let Some(packet) = reader.peek()? {
        packets.push((packet.timestamp_ns, packet.bytes.to_vec()));
        reader.skip();
    }
    Ok(packets)
}

fn defect(bytes: &[u8]) -> Defect {
    read(bytes).expect_err("a defect").defect
}

/// A pcapng file under construction, in either byte order.
struct Builder {
    order: ByteOrder,
    bytes: Vec<u8>,
}

impl Builder {
    fn new(order: ByteOrder) -> Self {
        let mut builder = Builder { order, bytes: Vec::new() };
        builder.section();
        builder
    }

    fn raw16(&self, value: u16) -> [u8; 2] {
        if self.order == ByteOrder::Big { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    fn raw32(&self, value: u32) -> [u8; 4] {
        if self.order == ByteOrder::Big { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    fn block(&mut self, kind: u32, body: &[u8]) -> &mut Self {
        let padded = body.len().next_multiple_of(4);
        let (kind, length) = (self.raw32(kind), self.raw32(padded as u32 + 12));
        self.bytes.extend([kind, length].concat());
        self.bytes.extend(body);
        self.bytes.resize(self.bytes.len() + padded - body.len(), 0);
        self.bytes.extend(length);
        self
    }

    fn section(&mut self) -> &mut Self {
        let magic = self.raw32(0x1a2b_3c4d);
        let version = [self.raw16(1), self.raw16(0)].concat();
        self.block(0x0a0d_0d0a, &[&magic[..], &version, &[0xff; 8]].concat())
    }

    fn option(&self, code: u16, value: &[u8]) -> Vec<u8> {
        let mut option = [self.raw16(code), self.raw16(value.len() as u16)].concat();
        option.extend(value);
        option.resize(option.len().next_multiple_of(4), 0);
        option
    }

    fn interface(&mut self, link: u16, snap_length: u32, options: &[u8]) -> &mut Self {
        let head = [self.raw16(link), self.raw16(0)].concat();
        let body = [&head[..], &self.raw32(snap_length), options].concat();
        self.block(1, &body)
    }

    fn enhanced(&mut self, interface: u32, time: u64, original: u32, data: &[u8]) -> &mut Self {
        let words = [interface, (time >> 32) as u32, time as u32, data.len() as u32, original];
        let mut body: Vec<u8> = words.iter().flat_map(|word| self.raw32(*word)).collect();
        body.extend(data);
        self.block(6, &body)
    }

    fn simple(&mut self, original: u32, data: &[u8]) -> &mut Self {
        let body = [&self.raw32(original)[..], data].concat();
        self.block(3, &body)
    }
}

fn packets() -> impl Strategy<Value = Packets> {
    let seconds = prop_oneof![Just(0), Just(u32::MAX), any::<u32>()];
    let fraction = prop_oneof![Just(0), Just(999_999_999), 0u64..1_000_000_000];
    let length = prop_oneof![4 => 0usize..=100, 1 => 1400usize..=1600];
    let packet = length.prop_flat_map(|length| prop::collection::vec(any::<u8>(), length));
    let time = (seconds, fraction).prop_map(|(s, f)| u64::from(s) * 1_000_000_000 + f);
    prop::collection::vec((time, packet), 0..8)
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        packets in packets(),
        link in prop_oneof![Just(LinkType::Ethernet), Just(LinkType::Raw)],
    ) {
        let nanoseconds = written(&packets, link, Resolution::Nanosecond);
        prop_assert_eq!(open(&nanoseconds).unwrap().link(), link);
        prop_assert_eq!(&read(&nanoseconds).unwrap(), &packets);
        let rounded: Packets =
            packets.iter().map(|(time, packet)| (time / 1000 * 1000, packet.clone())).collect();
        let microseconds = written(&packets, link, Resolution::Microsecond);
        prop_assert_eq!(read(&microseconds).unwrap(), rounded);
    }

    #[test]
    fn another_reader_reads_what_is_written(packets in packets()) {
        let bytes = written(&packets, LinkType::Ethernet, Resolution::Nanosecond);
        let mut reader = other::PcapReader::new(&bytes[..]).unwrap();
        prop_assert_eq!(reader.header().datalink, pcap_file::DataLink::ETHERNET);
        for (timestamp_ns, packet) in &packets {
            let record = reader.next_packet().unwrap().unwrap();
            prop_assert_eq!(record.timestamp, Duration::from_nanos(*timestamp_ns));
            prop_assert_eq!(record.orig_len as usize, packet.len());
            prop_assert_eq!(&record.data[..], &packet[..]);
        }
        prop_assert!(reader.next_packet().is_none());
    }

    #[test]
    fn what_another_writer_writes_is_read(packets in packets(), big in any::<bool>()) {
        let endianness =
            if big { pcap_file::Endianness::Big } else { pcap_file::Endianness::Little };
        let ts_resolution = pcap_file::TsResolution::NanoSecond;
        let header = other::PcapHeader { endianness, ts_resolution, ..Default::default() };
        let mut writer = other::PcapWriter::with_header(Vec::new(), header).unwrap();
        for (timestamp_ns, packet) in &packets {
            let time = Duration::from_nanos(*timestamp_ns);
            let record = other::PcapPacket::new(time, packet.len() as u32, packet);
            writer.write_packet(&record).unwrap();
        }
        prop_assert_eq!(read(&writer.into_writer()).unwrap(), packets);
    }

    #[test]
    fn pcapng_of_either_byte_order_is_read(packets in packets(), big in any::<bool>()) {
        let mut file = Builder::new(if big { ByteOrder::Big } else { ByteOrder::Little });
        let options = [file.option(2, b"eth0"), file.option(9, &[9])].concat();
        file.interface(1, 0, &options);
        for (timestamp_ns, packet) in &packets {
            file.block(0x0bad, &[1, 2, 3]);
            file.enhanced(0, *timestamp_ns, packet.len() as u32, packet);
        }
        prop_assert_eq!(read(&file.bytes).unwrap(), packets);
    }

    #[test]
    fn a_changed_file_never_panics_and_yields_no_more_than_it_holds(
        packets in packets(),
        form in 0..4,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        keep in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let mut bytes = match form {
            0 => written(&packets, LinkType::Ethernet, Resolution::Nanosecond),
            1 => written(&packets, LinkType::Raw, Resolution::Microsecond),
            form => {
                let order = if form == 2 { ByteOrder::Big } else { ByteOrder::Little };
                let mut file = Builder::new(order);
                let options = [file.option(9, &[9]), file.option(14, &[0; 8])].concat();
                file.interface(1, 0, &options);
                for (time, packet) in &packets {
                    file.enhanced(0, *time, packet.len() as u32, packet);
                    file.simple(packet.len() as u32, packet);
                }
                file.bytes
            }
        };
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if cut {
            bytes.truncate(keep.index(bytes.len() + 1));
        }
        let Ok(reader) = open(&bytes) else { return Ok(()) };
        let mut frames = MemoryFrames::with_frame_bytes(8, HEADROOM + 64);
        let mut port: TestPort<'_> = CapturePort::new(Some(reader), None);
        port.advance_to(u64::MAX);
        let (mut batch, mut total) = (Vec::new(), 0);
        while port.receive(&mut frames, 64, &mut batch) > 0 {
            for Received { packet, .. } in batch.drain(..) {
                total += packet.length as usize;
                frames.give(packet.frame);
            }
        }
        prop_assert!(total <= bytes.len());
        prop_assert_eq!(frames.conservation().held(), 0);
        while port.next_timestamp().is_err() {}
        prop_assert_eq!(port.next_timestamp().unwrap(), None);
    }

    #[test]
    fn any_bytes_behind_a_magic_number_are_survived(
        magic in prop_oneof![
            Just([0xa1, 0xb2, 0xc3, 0xd4]), Just([0x4d, 0x3c, 0xb2, 0xa1]), Just(pcapng::MAGIC),
        ],
        rest in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let _ = read(&[&magic[..], &rest].concat());
    }
}

#[test]
fn every_defect_of_a_pcap_file_is_named() {
    let good = written(&vec![(7, vec![1, 2, 3])], LinkType::Ethernet, Resolution::Nanosecond);
    let changed = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        defect(&file)
    };
    assert!(matches!(defect(b"GIF89a.."), Defect::NotACapture(0x4749_4638)));
    assert!(matches!(changed(4, &[3]), Defect::Version(3)));
    assert!(matches!(changed(20, &[105]), Defect::LinkType(105)));
    for of_all_interfaces in [276u16, 113] {
        let told = changed(20, &of_all_interfaces.to_le_bytes()).to_string();
        assert!(told.ends_with("; capture on one interface, not on any"), "{told}");
    }
    assert!(!changed(20, &[105]).to_string().contains("any"));
    assert!(matches!(changed(20, &[1, 0, 0, 0x24]), Defect::FrameCheckSequence));
    let limit = MAX_RECORD.into();
    assert!(matches!(
        changed(32, &[0xff; 4]),
        Defect::RecordTooLong { length: 0xffff_ffff, limit: found } if found == limit
    ));
    assert!(matches!(changed(36, &[2]), Defect::Lengths { captured: 3, original: 2 }));
    for length in 0..good.len() {
        match read(&good[..length]) {
            Err(error) => assert!(matches!(error.defect, Defect::Truncated), "{length}: {error}"),
            Ok(packets) => assert_eq!((length, packets.len()), (24, 0), "a header alone is whole"),
        }
    }
    let missing = CaptureReader::open(Path::new("/nonexistent/in.pcap")).err().unwrap();
    assert!(matches!(missing.defect, Defect::Open(_)));
}

#[test]
fn every_defect_of_a_pcapng_file_is_named() {
    let order = ByteOrder::Little;
    let start = || {
        let mut file = Builder::new(order);
        file.interface(1, 0, &[]);
        file
    };
    let with = |change: &dyn Fn(&mut Builder)| {
        let mut file = start();
        change(&mut file);
        defect(&file.bytes)
    };
    let mut bad_magic = start().bytes;
    bad_magic[8] = 0;
    assert!(matches!(defect(&bad_magic), Defect::ByteOrder(0x1a2b_3c00)));
    let mut bad_version = start().bytes;
    bad_version[12] = 2;
    assert!(matches!(defect(&bad_version), Defect::Version(2)));
    let mut bad_trailer = start().bytes;
    *bad_trailer.last_mut().unwrap() = 1;
    assert!(matches!(defect(&bad_trailer), Defect::BlockLength { kind: 1, .. }));
    assert!(matches!(
        with(&|file| file.bytes.extend([6, 0, 0, 0, 11, 0, 0, 0])),
        Defect::BlockLength { kind: 6, length: 11 }
    ));
    assert!(matches!(
        with(&|file| file.bytes.extend([6, 0, 0, 0, 0xfc, 0xff, 0xff, 0xff])),
        Defect::RecordTooLong { length: 0xffff_fffc, .. }
    ));
    assert!(matches!(
        with(&|file| {
            file.enhanced(1, 0, 1, &[1]);
        }),
        Defect::Interface(1)
    ));
    assert!(matches!(
        with(&|file| {
            file.interface(105, 0, &[]).enhanced(1, 0, 1, &[1]);
        }),
        Defect::LinkType(105)
    ));
    assert!(matches!(
        with(&|file| {
            file.interface(101, 0, &[]).enhanced(0, 0, 1, &[1]).enhanced(1, 0, 1, &[1]);
        }),
        Defect::MixedLinks { expected: LinkType::Ethernet, found: LinkType::Raw }
    ));
    assert!(matches!(
        with(&|file| {
            let option = file.option(13, &[4]);
            file.interface(1, 0, &option).enhanced(1, 0, 1, &[1]);
        }),
        Defect::FrameCheckSequence
    ));
    assert!(matches!(
        with(&|file| {
            file.interface(1, 0, &[9, 0, 200, 0]);
        }),
        Defect::OptionLength(9)
    ));
    assert!(matches!(
        with(&|file| {
            file.simple(9, &[1; 4]);
        }),
        Defect::BlockLength { kind: 3, .. }
    ));
    assert!(matches!(
        with(&|file| {
            (0..4096).for_each(|_| {
                file.interface(1, 0, &[]);
            });
        }),
        Defect::TooManyInterfaces(4096)
    ));
    assert!(matches!(
        with(&|file| file.bytes.extend([0xad, 0x0b, 0, 0, 32, 0, 0, 0, 1, 2])),
        Defect::Truncated
    ));
}

#[test]
fn an_error_names_file_and_packet() {
    let bytes = written(&vec![(7, vec![1]), (8, vec![2])], LinkType::Raw, Resolution::Nanosecond);
    let mut reader = open(&bytes[..bytes.len() - 1]).unwrap();
    assert_eq!(reader.peek().unwrap().unwrap().bytes, [1]);
    reader.skip();
    let text = reader.peek().unwrap_err().to_string();
    assert_eq!(text, "in.pcap: packet 2: the file ends in the middle of it");
    assert_eq!(reader.peek().unwrap(), None, "a defect is said once");
}

#[test]
fn an_unreadable_interface_matters_only_if_a_packet_comes_from_it() {
    let mut file = Builder::new(ByteOrder::Big);
    file.interface(105, 0, &[]).interface(101, 0, &[]).enhanced(1, 2, 1, &[9]);
    assert_eq!(open(&file.bytes).unwrap().link(), LinkType::Raw);
    assert_eq!(read(&file.bytes).unwrap(), vec![(2000, vec![9])]);
}

#[test]
fn a_new_section_forgets_the_interfaces_and_may_change_byte_order() {
    let mut file = Builder::new(ByteOrder::Little);
    file.interface(1, 0, &[]).enhanced(0, 5, 1, &[1]);
    file.order = ByteOrder::Big;
    file.section();
    let forgotten = file.bytes.len();
    file.enhanced(0, 6, 1, &[2]);
    assert!(matches!(defect(&file.bytes), Defect::Interface(0)));
    file.bytes.truncate(forgotten);
    file.interface(1, 0, &[]).enhanced(0, 6, 1, &[2]);
    assert_eq!(read(&file.bytes).unwrap(), vec![(5000, vec![1]), (6000, vec![2])]);
}

#[test]
fn a_simple_packet_has_the_time_of_the_packet_before_it() {
    let mut file = Builder::new(ByteOrder::Little);
    file.interface(1, 2, &[]).enhanced(0, 5, 1, &[1]).simple(3, &[7, 8]);
    assert_eq!(read(&file.bytes).unwrap(), vec![(5000, vec![1]), (5000, vec![7, 8])]);
}

#[test]
fn packets_cut_by_the_capture_are_counted_and_received_short() {
    let mut file = Builder::new(ByteOrder::Little);
    file.interface(1, 0, &[]).enhanced(0, 0, 1500, &[1; 96]).enhanced(0, 0, 96, &[1; 96]);
    let mut frames = MemoryFrames::new(4);
    let mut port: TestPort<'_> = CapturePort::new(Some(open(&file.bytes).unwrap()), None);
    let mut batch = Vec::new();
    assert_eq!(port.receive(&mut frames, 64, &mut batch), 2);
    assert!(batch.iter().all(|received| received.packet.length == 96));
    assert_eq!(port.counts(), CaptureCounts { received: 2, transmitted: 0, cut: 1 });
}

#[test]
fn two_inputs_merge_by_time() {
    let left = written(&vec![(10, vec![1]), (30, vec![3])], LinkType::Raw, Resolution::Nanosecond);
    let right = written(&vec![(20, vec![2]), (30, vec![4])], LinkType::Raw, Resolution::Nanosecond);
    let mut frames = MemoryFrames::new(4);
    let mut ports: Vec<TestPort<'_>> =
        [&left, &right].map(|file| CapturePort::new(Some(open(file).unwrap()), None)).into();
    let mut seen = Vec::new();
    while let Some(now) = ports.iter_mut().filter_map(|port| port.next_timestamp().unwrap()).min() {
        for port in &mut ports {
            port.advance_to(now);
            let mut batch = Vec::new();
            port.receive(&mut frames, 64, &mut batch);
            for Received { packet, .. } in batch {
                seen.push((now, frames.packet(packet).unwrap()[0]));
                frames.give(packet.frame);
            }
        }
    }
    assert_eq!(seen, [(10, 1), (20, 2), (30, 3), (30, 4)]);
}

#[test]
fn a_packet_older_than_the_one_before_it_is_due_at_once() {
    let file = written(&vec![(30, vec![1]), (10, vec![2])], LinkType::Raw, Resolution::Nanosecond);
    let mut frames = MemoryFrames::new(4);
    let mut port: TestPort<'_> = CapturePort::new(Some(open(&file).unwrap()), None);
    let mut batch = Vec::new();
    port.advance_to(29);
    assert_eq!(port.receive(&mut frames, 64, &mut batch), 0);
    port.advance_to(30);
    port.advance_to(5);
    assert_eq!(port.receive(&mut frames, 64, &mut batch), 2);
}

#[test]
fn transmitted_packets_carry_the_ports_clock_and_free_their_frames() {
    let mut bytes = Vec::new();
    let name = Path::new("out.pcap");
    let writer =
        CaptureWriter::new(&mut bytes, name, LinkType::Ethernet, Resolution::Nanosecond).unwrap();
    let mut port: CapturePort<&[u8], _> = CapturePort::new(None, Some(writer));
    let mut frames = MemoryFrames::new(2);
    let packets = [frames.store(&[1, 2]).unwrap(), frames.store(&[3]).unwrap()];
    port.advance_to(1_000_000_007);
    assert_eq!(port.transmit(&mut frames, &packets), 2);
    assert_eq!(frames.conservation().held(), 0);
    assert_eq!(port.counts().transmitted, 2);
    port.finish().unwrap();
    drop(port);
    assert_eq!(read(&bytes).unwrap(), vec![(1_000_000_007, vec![1, 2]), (1_000_000_007, vec![3])]);
}

#[test]
fn a_packet_that_cannot_be_written_stops_the_output_and_stays_with_the_caller() {
    let name = Path::new("out.pcap");
    let writer =
        CaptureWriter::new(Vec::new(), name, LinkType::Ethernet, Resolution::Nanosecond).unwrap();
    let mut port: CapturePort<&[u8], _> = CapturePort::new(None, Some(writer));
    let mut frames = MemoryFrames::new(3);
    let packets: Vec<_> =
        [10, 9000, 10].map(|length| frames.store(&vec![0; length]).unwrap()).into();
    assert_eq!(port.transmit(&mut frames, &packets), 1);
    assert_eq!(port.transmit(&mut frames, &packets[2..]), 0);
    assert_eq!(frames.conservation().held(), 2);
    let text = port.finish().unwrap_err().to_string();
    assert_eq!(
        text,
        "out.pcap: packet 2: a packet of 9000 bytes does not fit a record of at most 3840"
    );
}

#[test]
fn a_failing_disk_and_a_clock_beyond_pcap_are_errors() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if bytes.len() == 24 { Ok(24) } else { Err(std::io::ErrorKind::StorageFull.into()) }
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let name = Path::new("out.pcap");
    let mut writer = CaptureWriter::new(Full, name, LinkType::Raw, Resolution::Nanosecond).unwrap();
    assert!(matches!(writer.write(0, &[1]).unwrap_err().defect, Defect::Io(_)));
    let late = writer.write(u64::MAX, &[1]).unwrap_err().defect;
    assert!(matches!(late, Defect::Clock { timestamp_ns: u64::MAX }));
    let long = writer.write(0, &vec![0; MAX_RECORD as usize + 1]).unwrap_err().defect;
    assert!(matches!(long, Defect::PacketTooLong { .. }));
    assert_eq!(writer.written(), 0);
}
