//! The card with its netdevs: the frames between wire and host, and what hosts and operators ask.

use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use card_link::{Found, Item};
use emulated_card::{EmulatedCard, Opened, Sent};
use io::pcapng::Direction;
use io::tun::{Link, Tap};
use offload::{Card, CardEvent, Carrier, Refusal, RefusalKind, Service, Tag};
use rustix::io::Errno;
use serde_json::Value;
use wire::CardHeader;
use wire::card_header::CARD_MAGIC;

use crate::arguments::{Arguments, LinkAddress};
use crate::capture::Capture;
use crate::counts::Counts;
use crate::failure::Failure;
use crate::wire_socket::WireSocket;

/// Bytes of the longest frame that the card takes: with the header, and the kernel's room around
/// it, it fits a page (native XDP).
pub(crate) const LONGEST: usize = 3498;
/// Frames of a netdev at most before others have their turn.
const BATCH: usize = 64;
/// Number that drivers give with the refusal of what they cannot do.
const NOT_SUPPORTED: i32 = -95;

/// The card and its netdevs.
pub(crate) struct Station {
    pub(crate) card: EmulatedCard,
    /// The host's netdev; `None`: the card is out of its slot.
    tap: Option<Tap>,
    wire: WireSocket,
    capture: Option<Capture>,
    counts: Counts,
    begun: Instant,
    /// The number that the host has for the card's only port; `None`: it has not said yet.
    port: Option<u16>,
    buffer: Box<[u8; CardHeader::BYTES + LONGEST + 1]>,
}

impl Station {
    /// Makes the host's netdev and joins it to the wire.
    ///
    /// # Errors
    /// [`Failure`]; the netdev is gone again.
    pub(crate) fn open(arguments: &Arguments) -> Result<Station, Failure> {
        let queues = usize::from(arguments.queues);
        let (wire, address) = WireSocket::open(arguments.wire())?;
        let tap = Tap::open(arguments.tap(), queues)?;
        tap.set_address(arguments.mac.unwrap_or(LinkAddress(address)).0)?;
        let capture = arguments.capture.as_deref();
        let mut card = EmulatedCard::new((*arguments.card).clone(), arguments.seed);
        card.set_queues(queues);
        card.set_faults(arguments.faults.0);
        Ok(Station {
            card,
            tap: Some(tap),
            wire,
            capture: capture.map(|path| Capture::create(path, LONGEST)).transpose()?,
            counts: Counts::of(queues),
            begun: Instant::now(),
            port: None,
            buffer: Box::new([0; CardHeader::BYTES + LONGEST + 1]),
        })
    }

    /// Milliseconds of the card's clock.
    pub(crate) fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    /// Descriptors to sleep on: the wire, then the queues of the host's netdev.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let queues = self.tap.iter().flat_map(Tap::queues);
        std::iter::once(self.wire.as_fd()).chain(queues)
    }

    /// Counts of frames, for an operator.
    pub(crate) fn counts(&self) -> Value {
        self.counts.as_json(&self.card.esp_counts())
    }

    /// Carries up to a batch of frames from each netdev to the other side.
    ///
    /// # Errors
    /// [`Failure::Capture`].
    pub(crate) fn carry(&mut self) -> Result<(), Failure> {
        for _ in 0..BATCH {
            match self.wire.read(&mut self.buffer[CardHeader::BYTES..]) {
                Ok(length) => self.hand_over(length)?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        for queue in 0..self.counts.queues.len() {
            for _ in 0..BATCH {
                let Some(tap) = &self.tap else { return Ok(()) };
                match tap.read(queue, &mut self.buffer[CardHeader::BYTES..]) {
                    Ok(length) => self.send(length)?,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    // Somebody deleted the netdev: the card is gone for the host.
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::BADFD) => {
                        self.unplug();
                    }
                    Err(_) => break,
                }
            }
        }
        Ok(())
    }

    /// Hands a frame from the wire, behind the room for the header, to the host: as it came, or in
    /// clear if it is for an SA of the card, with the headers of ESP or without.
    fn hand_over(&mut self, length: usize) -> Result<(), Failure> {
        if length > LONGEST {
            self.counts.too_long += 1;
            return Ok(());
        }
        if !self.card.is_up() {
            self.counts.not_up += 1;
            return Ok(());
        }
        let frame = &self.buffer[CardHeader::BYTES..CardHeader::BYTES + length];
        match self.card.open(frame) {
            Opened::AsItCame => self.hand_over_as_it_came(length),
            Opened::Clear { frame, mark } => {
                // It is shorter than what carried it.
                self.buffer[CardHeader::BYTES..][..frame.len()].copy_from_slice(&frame);
                let queue = self.card.queue_of_clear(&frame);
                self.hand(frame.len(), CardHeader::Sa(mark), queue)
            }
            Opened::Deciphered { frame, mark } => {
                self.buffer[CardHeader::BYTES..][..frame.len()].copy_from_slice(&frame);
                let queue = self.card.queue_of_clear(&frame);
                self.hand(frame.len(), CardHeader::Cipher(mark), queue)
            }
            Opened::Forged { mark } => {
                let queue = self.card.queue_of_clear(frame);
                self.hand(length, CardHeader::Forged(mark), queue)
            }
            // The card counts it.
            Opened::Dropped(_) => Ok(()),
        }
    }

    fn hand_over_as_it_came(&mut self, length: usize) -> Result<(), Failure> {
        let frame = &self.buffer[CardHeader::BYTES..CardHeader::BYTES + length];
        let received = self.card.receive(self.port.unwrap_or(0), frame);
        if received.dropped {
            self.counts.dropped_by_rule += 1;
            return Ok(());
        }
        let header = match received.mark {
            0 => CardHeader::Plain,
            tag => CardHeader::Rule(tag),
        };
        self.hand(length, header, received.queue)
    }

    /// Hands a frame behind the room for the header to the host, by a queue.
    fn hand(&mut self, length: usize, header: CardHeader, queue: usize) -> Result<(), Failure> {
        let Some(tap) = &self.tap else {
            self.counts.not_up += 1;
            return Ok(());
        };
        let whole = CardHeader::BYTES + length;
        if let Some(capture) = &mut self.capture {
            let frame = &self.buffer[CardHeader::BYTES..whole];
            capture.write(Direction::Inbound, frame, header.tag().unwrap_or(0))?;
        }
        self.buffer[..CardHeader::BYTES].copy_from_slice(&header.bytes());
        let counts = &mut self.counts.queues[queue];
        match (tap.write(queue, &self.buffer[..whole]), header) {
            (Ok(()), CardHeader::Plain) => counts.plain += 1,
            (Ok(()), CardHeader::Rule(_)) => counts.tagged += 1,
            (Ok(()), CardHeader::Sa(_)) => counts.opened += 1,
            (Ok(()), CardHeader::Cipher(_)) => counts.deciphered += 1,
            (Ok(()), CardHeader::Forged(_)) => counts.forged += 1,
            (Err(_), _) => self.counts.host_refused += 1,
        }
        Ok(())
    }

    /// Sends a frame of the host's to the wire: as it is, or sealed if the host has written the
    /// header of an SA in front of it; by one of crypto mode the frame is ESP already, in clear.
    fn send(&mut self, length: usize) -> Result<(), Failure> {
        let sent = &self.buffer[CardHeader::BYTES..CardHeader::BYTES + length];
        if length > LONGEST {
            self.counts.too_long += 1;
            return Ok(());
        }
        if !self.card.is_up() {
            self.counts.not_up += 1;
            return Ok(());
        }
        // The magic word in front of a frame would be the address of a group that nobody has.
        let is_headed = sent.starts_with(&CARD_MAGIC.to_ne_bytes());
        let headed = sent.split_first_chunk().filter(|_| is_headed);
        let tag = headed.and_then(|(header, frame)| match CardHeader::read(header)? {
            CardHeader::Sa(mark) => Some((mark, Service::Packet, frame)),
            CardHeader::Cipher(mark) => Some((mark, Service::Crypto, frame)),
            CardHeader::Plain | CardHeader::Rule(_) | CardHeader::Forged(_) => None,
        });
        let sealed = match (is_headed, tag) {
            (false, _) => None,
            (true, Some(tag)) => Some(tag),
            (true, None) => {
                self.counts.wrong_header += 1;
                return Ok(());
            }
        };
        let (mark, _, frame) = sealed.unwrap_or((0, Service::Packet, sent));
        if let Some(capture) = &mut self.capture {
            capture.write(Direction::Outbound, frame, mark)?;
        }
        let written = match sealed {
            None => self.wire.write(sent).map(|()| &mut self.counts.to_wire),
            Some((mark, service, frame)) => {
                let (sent, count) = match service {
                    Service::Packet => {
                        (self.card.send_by_mark(mark, frame), &mut self.counts.sealed)
                    }
                    Service::Crypto => {
                        (self.card.encrypt_by_mark(mark, frame), &mut self.counts.encrypted)
                    }
                };
                match sent {
                    Sent::Frame(frame) => self.wire.write(&frame).map(|()| count),
                    // The card counts it.
                    Sent::Dropped(_) => return Ok(()),
                }
            }
        };
        *written.unwrap_or(&mut self.counts.wire_refused) += 1;
        Ok(())
    }

    /// Gives the capture's file what was captured.
    ///
    /// # Errors
    /// [`Failure::Capture`].
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.capture.as_mut().map_or(Ok(()), Capture::flush)
    }

    /// A host begins: see [`EmulatedCard::begin`].
    pub(crate) fn begin(&mut self) {
        self.card.begin();
        self.port = None;
    }

    /// Asks the card to take an item in; if it is refused at once, the answer is returned.
    ///
    /// The card has one port, which has the number that the first rule has; a rule for others is
    /// refused. So is an SA whose packets this process cannot carry: between it and the host there
    /// are frames, in clear and with a header, and no packet buffers.
    pub(crate) fn place(&mut self, tag: Tag, item: offload::Item) -> Option<CardEvent> {
        let refused = match &item {
            offload::Item::Rule(rule) => match *rule.ports {
                [port] if *self.port.get_or_insert(port) == port => None,
                _ => Some("this card has one port"),
            },
            offload::Item::Sa(sa) => match sa.carrier {
                Carrier::Worker => None,
                Carrier::Kernel => Some("this card's process is reached by workers alone"),
            },
            // The card answers what it makes of it.
            _ => None,
        };
        let Some(why) = refused else {
            self.card.place(&item, tag);
            return None;
        };
        let (kind, text) = (RefusalKind::Unsupported, format!("emulated: {why}").into());
        Some(CardEvent::Refused(tag, Refusal { kind, code: NOT_SUPPORTED, text }))
    }

    /// All that the card has at this time, to which it has been brought.
    pub(crate) fn look(&self, number: u64, at_ms: u64) -> Found {
        let readings = self.card.readings().chain(self.card.policy_readings());
        let items = readings.map(|(tag, reading)| Item {
            handle: tag.handle,
            packets: reading.packets,
            bytes: reading.bytes,
        });
        let (items, edges) = (items.collect(), self.card.edges().collect());
        Found { number, card: self.card.spec(), at_ms, items, edges }
    }

    /// Sets the link.
    ///
    /// # Errors
    /// The host's netdev is gone or refuses.
    pub(crate) fn set_link(&mut self, link: Link) -> Result<(), Error> {
        let tap = self.tap.as_ref().ok_or(ErrorKind::NotFound)?;
        tap.set_link(link).map_err(Error::other)?;
        match link {
            Link::Up => self.card.link_up(),
            Link::Down => self.card.link_down(),
        }
        Ok(())
    }

    /// Pulls the card out of its slot: the host's netdev goes.
    pub(crate) fn unplug(&mut self) {
        self.card.unplug();
        self.tap = None;
    }
}
