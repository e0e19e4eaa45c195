//! Packets of the card's SAs.

use offload::{CardEvent, SaDirection, Tag};

use super::{EmulatedCard, Presence};
use crate::esp::{Arrived, EspCounts, Limits, LoadedSa, Loss, Opened, Sent};

impl EmulatedCard {
    /// Packets of SAs that the card dropped, since it was made.
    pub fn esp_counts(&self) -> EspCounts {
        self.esp_counts
    }

    /// As [`send`](Self::send), by the mark of an SA as it stands in front of a frame: any bits.
    pub fn send_by_mark(&mut self, mark: u64, frame: &[u8]) -> Sent {
        if let Some(tag) = Tag::from_bits(mark) {
            return self.send(tag, frame);
        }
        self.esp_counts.count(SaDirection::Out, Loss::UnknownSa);
        Sent::Dropped(Loss::UnknownSa)
    }

    /// Seals the packet of a clear frame by an SA of packet mode. What the card has no SA for does
    /// not leave.
    pub fn send(&mut self, tag: Tag, frame: &[u8]) -> Sent {
        let sent = self.present().and_then(|()| {
            self.may_go(tag, SaDirection::Out, frame)?;
            let sa = self.sas.iter_mut().find(|sa| sa.tag == tag).ok_or(Loss::UnknownSa)?;
            sa.send(frame)
        });
        match sent {
            Ok((frame, limits)) => {
                self.tell_limits(tag, limits);
                Sent::Frame(frame)
            }
            Err(loss) => {
                self.esp_counts.count(SaDirection::Out, loss);
                Sent::Dropped(loss)
            }
        }
    }

    /// Takes a frame in that came by the wire, and opens it if it is for an SA of packet mode, or
    /// deciphers it in place if it is for one of crypto mode. Rules see what it does neither with,
    /// by [`receive`](Self::receive).
    pub fn open(&mut self, frame: &[u8]) -> Opened {
        let found = self.present().map(|()| {
            let arrived = Arrived::read(frame)?;
            let sa = self.sas.iter_mut().find(|sa| sa.is_for(&arrived))?;
            Some((sa.tag, work(sa, &arrived, frame)))
        });
        match found {
            Ok(None) => Opened::AsItCame,
            Err(loss) => self.lose(loss),
            Ok(Some((tag, (worked, limits)))) => {
                self.tell_limits(tag, limits);
                match worked {
                    Worked::Clear(frame) => match self.may_go(tag, SaDirection::In, &frame) {
                        Ok(()) => Opened::Clear { frame, mark: self.mark_of_sa(tag) },
                        Err(loss) => self.lose(loss),
                    },
                    Worked::Deciphered(frame) => {
                        Opened::Deciphered { frame, mark: self.mark_of_sa(tag) }
                    }
                    Worked::Forged => {
                        self.lose(Loss::Authentication);
                        Opened::Forged { mark: self.mark_of_sa(tag) }
                    }
                    Worked::Lost(loss) => self.lose(loss),
                }
            }
        }
    }

    /// Counts what came and is dropped, or is forged.
    fn lose(&mut self, loss: Loss) -> Opened {
        self.esp_counts.count(SaDirection::In, loss);
        Opened::Dropped(loss)
    }

    /// As [`encrypt`](Self::encrypt), by the mark of an SA as it stands in front of a frame: any
    /// bits.
    pub fn encrypt_by_mark(&mut self, mark: u64, frame: &[u8]) -> Sent {
        if let Some(tag) = Tag::from_bits(mark) {
            return self.encrypt(tag, frame);
        }
        self.esp_counts.count(SaDirection::Out, Loss::UnknownSa);
        Sent::Dropped(Loss::UnknownSa)
    }

    /// Seals the ESP of a frame, whose text is in clear, by an SA of crypto mode. What the card has
    /// no SA for does not leave.
    pub fn encrypt(&mut self, tag: Tag, frame: &[u8]) -> Sent {
        let mut sealed = frame.to_vec();
        let limits = self.present().and_then(|()| {
            let sa = self.sas.iter_mut().find(|sa| sa.tag == tag).ok_or(Loss::UnknownSa)?;
            sa.seal_in_place(&mut sealed)
        });
        match limits {
            Ok(limits) => {
                self.tell_limits(tag, limits);
                Sent::Frame(sealed)
            }
            Err(loss) => {
                self.esp_counts.count(SaDirection::Out, loss);
                Sent::Dropped(loss)
            }
        }
    }

    /// The mark of what an SA opened, with the faults of marks.
    fn mark_of_sa(&mut self, tag: Tag) -> u64 {
        if !self.faults.are_of_marks() {
            return tag.to_bits();
        }
        let marks: Vec<u64> = self.sas.iter().map(|sa| sa.tag.to_bits()).collect();
        self.told_mark(tag.to_bits(), &marks)
    }

    fn present(&self) -> Result<(), Loss> {
        if self.presence == Presence::Up { Ok(()) } else { Err(Loss::NoLink) }
    }

    /// Tells that an SA reached limits, with the faults of answers.
    fn tell_limits(&mut self, tag: Tag, limits: Limits) {
        for limit in limits.into_iter().flatten() {
            self.answer(self.now_ms, CardEvent::Limit(tag, limit));
        }
    }
}

/// The outcome of ESP for an SA of the card.
enum Worked {
    Clear(Vec<u8>),
    Deciphered(Vec<u8>),
    Forged,
    Lost(Loss),
}

/// Opens or deciphers ESP by its SA; returns the limits reached too.
fn work(sa: &mut LoadedSa, arrived: &Arrived<'_>, frame: &[u8]) -> (Worked, Limits) {
    if sa.opens_packets() {
        let (opened, limits) = sa.open(arrived);
        return (opened.map_or_else(Worked::Lost, Worked::Clear), limits);
    }
    let mut frame = frame.to_vec();
    match sa.open_in_place(&mut frame) {
        Ok(limits) => (Worked::Deciphered(frame), limits),
        Err(Loss::Authentication) => (Worked::Forged, [None; 2]),
        Err(loss) => (Worked::Lost(loss), [None; 2]),
    }
}
