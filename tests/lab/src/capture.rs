//! Captures of the wire, and what was on it.
//!
//! tcpdump takes the capture, on the bridge: every frame that enters the bridge is seen there
//! once. A capture of which the kernel dropped packets proves nothing and is an error. The judge
//! has parsers of its own, shared with nothing that it judges.

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use io::CaptureReader;

use crate::process::Running;
use crate::{LabError, Namespace, interrupt};

/// Payload by which a laboratory's pings and streams are recognised wherever they turn up.
pub const MARKER: [u8; 16] = *b"LOCKGATE-MARKER!";

/// Buffer of the capture in the kernel, KiB: 200 000 packets of [`HEAD_BYTES`].
const BUFFER_KIB: &str = "131072";
/// Bytes of a packet that [`Scope::Heads`] keeps.
pub const HEAD_BYTES: usize = 192;
/// The kernel hands packets over after at most a second: so long a capture goes on before it ends.
const LINGER: Duration = Duration::from_millis(1200);
/// Time for tcpdump to begin, and to end.
const LIMIT: Duration = Duration::from_secs(15);

/// The part of the traffic that a capture takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The first [`HEAD_BYTES`] of every frame.
    Heads,
    /// Every frame, whole.
    Whole,
    /// The heads of frames of more bytes than these, as the kernel has them: several segments may
    /// be in one.
    LongerThan(u32),
    /// Everything but ESP: cheap beside a throughput measurement, and complete for clear packets.
    NotEsp,
}

/// A capture that runs.
#[derive(Debug)]
pub struct Capture {
    running: Running,
    name: String,
    file: PathBuf,
}

impl Capture {
    /// Starts a capture of `interface` into `directory`/`name`.pcap and waits until it takes
    /// packets.
    ///
    /// # Errors
    /// As [`Running::wait_until`].
    pub fn start(
        namespace: &Namespace,
        interface: &str,
        scope: Scope,
        (directory, name): (&Path, &str),
    ) -> Result<Capture, LabError> {
        let file = directory.join(format!("{name}.pcap"));
        let heads = HEAD_BYTES.to_string();
        let mut command = namespace.command("tcpdump");
        command.args(["-i", interface, "-n", "-B", BUFFER_KIB, "-Z", "root", "-w"]).arg(&file);
        match scope {
            Scope::Heads => command.args(["-s", &heads]),
            Scope::Whole => command.args(["-s", "0"]),
            Scope::LongerThan(bytes) => {
                command.args(["-s", &heads, "greater", &(bytes + 1).to_string()])
            }
            Scope::NotEsp => command.args(["-s", &heads, "not", "(ip proto 50 or ip6 proto 50)"]),
        };
        let mut running = Running::start(command)?;
        running.wait_until("the capture", LIMIT, |tcpdump| {
            tcpdump.stderr().contains("listening on")
        })?;
        Ok(Capture { running, name: name.to_owned(), file })
    }

    /// Ends the capture and returns the file. Packets of the last moment are in it.
    ///
    /// # Errors
    /// [`LabError::Incomplete`], [`LabError::Answer`], and as [`Running::interrupt`].
    pub fn stop(self) -> Result<PathBuf, LabError> {
        interrupt::sleep(LINGER)?;
        let finished = self.running.interrupt(LIMIT)?;
        match counted(&finished.stderr, "dropped by kernel") {
            Some(0) => Ok(self.file),
            Some(packets) => Err(LabError::Incomplete { name: self.name, packets }),
            None => Err(LabError::Answer { command: finished.command, answer: finished.stderr }),
        }
    }
}

/// The number in front of `what` in tcpdump's closing lines.
fn counted(text: &str, what: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains(what))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Counts of the packets on the wire. Add as many captures as belong together: repeated numbers are
/// found over all of them.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// ESP packets between gateways.
    pub esp: u64,
    /// Packets that should have been protected: with an address that is not the wire's own, or
    /// with [`MARKER`] anywhere.
    pub clear: u64,
    /// Descriptions of the first few of those.
    pub clear_examples: Vec<String>,
    /// ARP, neighbour discovery, multicast listeners.
    pub resolution: u64,
    /// Anything else between the wire's own addresses.
    pub other: u64,
    /// ESP packets whose SPI and sequence number were on the wire before, from the same station.
    pub repeated: u64,
    /// The first few of those, SPI and number.
    pub repeated_examples: Vec<(u32, u32)>,
    numbers: HashSet<EspNumber>,
}

/// A sequence number of an SA. A gateway chooses the SPIs of its inbound SAs alone, so the SAs of
/// two senders can have equal SPIs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct EspNumber {
    /// Source MAC address.
    sender: [u8; 6],
    spi: u32,
    number: u32,
}

/// Number of examples that a tally keeps.
const EXAMPLES: usize = 5;

/// The class of a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Kind {
    Esp { spi: u32, number: u32 },
    Resolution,
    Clear(String),
    Other,
}

impl Tally {
    /// A tally of one capture.
    ///
    /// # Errors
    /// As [`Tally::add`].
    pub fn of(capture: &Path) -> Result<Tally, LabError> {
        let mut tally = Tally::default();
        tally.add(capture)?;
        Ok(tally)
    }

    /// Adds a capture.
    ///
    /// # Errors
    /// [`LabError::Capture`].
    pub fn add(&mut self, capture: &Path) -> Result<(), LabError> {
        let mut reader = CaptureReader::open(capture)?;
        while let Some(packet) = reader.peek()? {
            self.add_frame(packet.bytes);
            reader.skip();
        }
        Ok(())
    }

    /// A tally of what one station sent between two moments.
    ///
    /// # Errors
    /// As [`Tally::add`].
    pub fn of_sender(
        capture: &Path,
        mac: [u8; 6],
        times: &Range<SystemTime>,
    ) -> Result<Tally, LabError> {
        let mut tally = Tally::default();
        let mut reader = CaptureReader::open(capture)?;
        while let Some(packet) = reader.peek()? {
            let time = UNIX_EPOCH + Duration::from_nanos(packet.timestamp_ns);
            if times.contains(&time) && packet.bytes.get(6..12) == Some(&mac) {
                tally.add_frame(packet.bytes);
            }
            reader.skip();
        }
        Ok(tally)
    }

    fn add_frame(&mut self, frame: &[u8]) {
        match judge(frame) {
            Kind::Resolution => self.resolution += 1,
            Kind::Other => self.other += 1,
            Kind::Clear(what) => {
                self.clear += 1;
                if self.clear_examples.len() < EXAMPLES {
                    self.clear_examples.push(what);
                }
            }
            Kind::Esp { spi, number } => {
                self.esp += 1;
                let sender = frame.get(6..12).and_then(<[u8]>::first_chunk).copied();
                let sender = sender.unwrap_or_default();
                if !self.numbers.insert(EspNumber { sender, spi, number }) {
                    self.repeated += 1;
                    if self.repeated_examples.len() < EXAMPLES {
                        self.repeated_examples.push((spi, number));
                    }
                }
            }
        }
    }

    /// ESP packets of an SPI, each number once, and the highest number.
    pub fn of_spi(&self, spi: u32) -> (u64, u32) {
        let numbers = self.numbers.iter().filter(|of| of.spi == spi).map(|of| of.number);
        numbers.fold((0, 0), |(count, highest), number| (count + 1, highest.max(number)))
    }

    /// SPIs seen.
    pub fn spis(&self) -> HashSet<u32> {
        self.numbers.iter().map(|of| of.spi).collect()
    }
}

/// Says what a frame on the wire is.
fn judge(frame: &[u8]) -> Kind {
    let (ethertype, offset) = ethertype(frame);
    let packet = frame.get(offset..).unwrap_or_default();
    let kind = match ethertype {
        0x0806 => Kind::Resolution,
        0x0800 => judge_ipv4(packet),
        0x86dd => judge_ipv6(packet),
        _ => Kind::Other,
    };
    if !frame.windows(MARKER.len()).any(|window| window == MARKER) {
        return kind;
    }
    match kind {
        Kind::Clear(what) => Kind::Clear(format!("{what} {:02x?}", &frame[..12])),
        kind => Kind::Clear(format!("the marker in {kind:?} of type {ethertype:04x}")),
    }
}

/// Type of what the frame carries and where that begins, VLAN tags passed over.
fn ethertype(frame: &[u8]) -> (u16, usize) {
    let mut offset = 12;
    loop {
        let kind = number(frame, offset, 2) as u16;
        offset += 2;
        match kind {
            0x8100 | 0x88a8 => offset += 2,
            kind => return (kind, offset),
        }
    }
}

fn judge_ipv4(packet: &[u8]) -> Kind {
    let [source, destination] = [12, 16].map(|at| Ipv4Addr::from(number(packet, at, 4) as u32));
    let protocol = number(packet, 9, 1);
    let upper = (number(packet, 0, 1) as usize & 15) * 4;
    let own = |address: Ipv4Addr| {
        address.octets()[..3] == [192, 0, 2] || address.is_multicast() || address.is_broadcast()
    };
    match (own(source) && own(destination), protocol) {
        (true, 50) => esp(packet, upper),
        (true, 2) => Kind::Resolution,
        (true, _) => Kind::Other,
        (false, _) => Kind::Clear(format!("IPv4 {source} > {destination} protocol {protocol}")),
    }
}

fn judge_ipv6(packet: &[u8]) -> Kind {
    let [source, destination] = [8, 24].map(|at| Ipv6Addr::from(number(packet, at, 16)));
    let protocol = number(packet, 6, 1);
    let own = |address: Ipv6Addr| {
        address.segments()[..3] == [0x2001, 0xdb8, 0xffff]
            || address.is_multicast()
            || address.is_unspecified()
            || address.segments()[0] & 0xffc0 == 0xfe80
    };
    // Neighbour and router discovery; listener reports stand behind a hop-by-hop header.
    let discovery = protocol == 58 && (133..=137).contains(&number(packet, 40, 1));
    let listener = protocol == 0 && destination.is_multicast();
    match (own(source) && own(destination), protocol) {
        (true, 50) => esp(packet, 40),
        (true, _) if discovery || listener => Kind::Resolution,
        (true, _) => Kind::Other,
        (false, _) => Kind::Clear(format!("IPv6 {source} > {destination} protocol {protocol}")),
    }
}

fn esp(packet: &[u8], upper: usize) -> Kind {
    let [spi, number] = [0, 4].map(|at| number(packet, upper + at, 4) as u32);
    Kind::Esp { spi, number }
}

/// A number of `bytes` bytes in network order; 0 beyond the end.
fn number(bytes: &[u8], at: usize, length: usize) -> u128 {
    let field = bytes.get(at..at + length).unwrap_or_default();
    field.iter().fold(0, |value, &byte| value << 8 | u128::from(byte))
}

/// Whole frames with ESP, or a fragment of it, to an IPv4 address, in the order of the capture.
///
/// # Errors
/// [`LabError::Capture`].
pub fn esp_frames_to(capture: &Path, destination: Ipv4Addr) -> Result<Vec<Vec<u8>>, LabError> {
    let mut frames = Vec::new();
    let mut reader = CaptureReader::open(capture)?;
    while let Some(packet) = reader.peek()? {
        let frame = packet.bytes;
        let (ethertype, ip) = ethertype(frame);
        let is_esp = ethertype == 0x0800 && number(frame, ip + 9, 1) == 50;
        let to = number(frame, ip + 16, 4) as u32;
        if is_esp && to == u32::from(destination) && packet.original as usize == frame.len() {
            frames.push(frame.to_vec());
        }
        reader.skip();
    }
    Ok(frames)
}

/// Number of the ESP packets of a capture, over IPv4 and without UDP, and of those that
/// [carry a packet in clear](carries_clear).
///
/// # Errors
/// [`LabError::Capture`].
pub fn esp_in_clear(capture: &Path) -> Result<(u64, u64), LabError> {
    let (mut esp, mut in_clear) = (0, 0);
    let mut reader = CaptureReader::open(capture)?;
    while let Some(packet) = reader.peek()? {
        let (ethertype, ip) = ethertype(packet.bytes);
        if ethertype == 0x0800 && number(packet.bytes, ip + 9, 1) == 50 {
            esp += 1;
            in_clear += u64::from(carries_clear(packet.bytes));
        }
        reader.skip();
    }
    Ok((esp, in_clear))
}

/// Returns whether a frame with ESP over IPv4 carries an IPv4 packet in clear: behind 8 bytes of
/// SPI and number and 8 of IV is a header with the right checksum.
pub fn carries_clear(frame: &[u8]) -> bool {
    let (_, ip) = ethertype(frame);
    let inner = frame.get(ip + 20 + 16..ip + 20 + 16 + 20).unwrap_or_default();
    let sum: u128 = (0..10).map(|word| number(inner, word * 2, 2)).sum();
    inner.first() == Some(&0x45) && (sum & 0xffff) + (sum >> 16) == 0xffff
}

/// Number of the frames of a capture.
///
/// # Errors
/// [`LabError::Capture`].
pub fn frames(capture: &Path) -> Result<u64, LabError> {
    let mut count = 0;
    let mut reader = CaptureReader::open(capture)?;
    while reader.peek()?.is_some() {
        count += 1;
        reader.skip();
    }
    Ok(count)
}

/// Frames of a capture that hold [`MARKER`]: at a host, packets of ours that were delivered.
///
/// # Errors
/// [`LabError::Capture`].
pub fn marked(capture: &Path) -> Result<u64, LabError> {
    let mut count = 0;
    let mut reader = CaptureReader::open(capture)?;
    while let Some(packet) = reader.peek()? {
        count += u64::from(packet.bytes.windows(MARKER.len()).any(|window| window == MARKER));
        reader.skip();
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ethernet(ethertype: u16, packet: &[u8]) -> Vec<u8> {
        [&[0; 12], &ethertype.to_be_bytes()[..], packet].concat()
    }

    fn ipv4(source: [u8; 4], destination: [u8; 4], protocol: u8, upper: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
        packet.extend(source.iter().chain(&destination).chain(upper));
        ethernet(0x0800, &packet)
    }

    fn ipv6(source: &str, destination: &str, next: u8, upper: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 0, next, 64];
        for address in [source, destination] {
            packet.extend(address.parse::<Ipv6Addr>().unwrap().octets());
        }
        packet.extend(upper);
        ethernet(0x86dd, &packet)
    }

    const ESP: [u8; 8] = [0, 0, 1, 0, 0, 0, 0, 7];

    #[test]
    fn only_esp_between_gateways_is_protected() {
        let esp = Kind::Esp { spi: 256, number: 7 };
        assert_eq!(judge(&ipv4([192, 0, 2, 1], [192, 0, 2, 2], 50, &ESP)), esp);
        assert_eq!(judge(&ipv6("2001:db8:ffff::1", "2001:db8:ffff::2", 50, &ESP)), esp);
        for clear in [
            ipv4([10, 1, 0, 10], [10, 2, 0, 10], 1, &[8, 0]),
            ipv4([10, 1, 0, 10], [10, 2, 0, 10], 50, &ESP),
            ipv4([10, 1, 0, 10], [192, 0, 2, 2], 17, &[]),
            ipv4([192, 0, 2, 1], [10, 2, 0, 10], 6, &[]),
            ipv6("2001:db8:1::10", "2001:db8:2::10", 58, &[128, 0]),
            ipv6("2001:db8:ffff::1", "2001:db8:2::10", 50, &ESP),
        ] {
            assert!(matches!(judge(&clear), Kind::Clear(_)), "{clear:x?}");
        }
    }

    #[test]
    fn a_marker_is_clear_whatever_it_is_wrapped_in() {
        let marked = [&ESP[..], &MARKER].concat();
        assert!(matches!(
            judge(&ipv4([192, 0, 2, 1], [192, 0, 2, 2], 50, &marked)),
            Kind::Clear(_)
        ));
        assert!(matches!(judge(&ethernet(0x88b5, &MARKER)), Kind::Clear(_)));
    }

    #[test]
    fn tags_are_passed_over_and_resolution_is_no_leak() {
        let inner = &ipv4([10, 1, 0, 10], [10, 2, 0, 10], 1, &[8, 0])[12..];
        let tagged = [&[0; 12], &[0x81, 0, 0, 5][..], inner].concat();
        assert!(matches!(judge(&tagged), Kind::Clear(_)));
        assert_eq!(judge(&ethernet(0x0806, &[0; 28])), Kind::Resolution);
        assert_eq!(judge(&ipv6("fe80::1", "ff02::1", 58, &[135])), Kind::Resolution);
        assert_eq!(judge(&ipv4([192, 0, 2, 1], [192, 0, 2, 2], 1, &[8, 0])), Kind::Other);
        assert_eq!(judge(&[]), Kind::Other);
    }

    #[test]
    fn a_number_that_comes_twice_is_found() {
        let mut tally = Tally::default();
        let frame = ipv4([192, 0, 2, 1], [192, 0, 2, 2], 50, &ESP);
        tally.add_frame(&frame);
        assert_eq!((tally.esp, tally.repeated), (1, 0));
        tally.add_frame(&frame);
        tally.add_frame(&ipv4([192, 0, 2, 1], [192, 0, 2, 2], 50, &[0, 0, 1, 0, 0, 0, 0, 8]));
        assert_eq!((tally.esp, tally.repeated), (3, 1));
        assert_eq!(tally.repeated_examples, [(256, 7)]);
        assert_eq!(tally.spis(), HashSet::from([256]));
    }

    #[test]
    fn tcpdump_says_what_the_kernel_dropped() {
        let text =
            "10 packets captured\n12 packets received by filter\n3 packets dropped by kernel";
        assert_eq!(counted(text, "dropped by kernel"), Some(3));
        assert_eq!(counted("tcpdump: br0: no such device", "dropped by kernel"), None);
    }
}
