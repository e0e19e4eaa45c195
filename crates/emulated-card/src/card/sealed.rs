//! Packets of the card's SAs.

use offload::{CardEvent, SaDirection, Tag};

use super::{EmulatedCard, Presence};
use crate::esp::{Arrived, EspCounts, Limits, Loss, Opened, Sent};

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

    /// Takes a frame in that came by the wire, and opens it if it is for an SA of packet mode.
    /// Rules see what it does not open, by [`receive`](Self::receive), and not what it opened.
    pub fn open(&mut self, frame: &[u8]) -> Opened {
        let opened = self.present().map(|()| {
            let arrived = Arrived::read(frame)?;
            let mine = self.sas.iter_mut().find(|sa| sa.is_for(&arrived));
            let sa = mine.filter(|sa| sa.opens_packets())?;
            let (opened, limits) = sa.open(&arrived);
            Some((sa.tag, opened, limits))
        });
        let opened = opened.and_then(|opened| {
            let Some((tag, opened, limits)) = opened else { return Ok(None) };
            self.tell_limits(tag, limits);
            opened.map(|frame| Some((tag, frame)))
        });
        match opened {
            Ok(None) => Opened::AsItCame,
            Ok(Some((tag, frame))) => Opened::Clear { frame, mark: self.mark_of_sa(tag) },
            Err(loss) => {
                self.esp_counts.count(SaDirection::In, loss);
                Opened::Dropped(loss)
            }
        }
    }

    /// Seals the ESP of a frame in place, by an SA of crypto mode. `number` is the packet's whole
    /// number.
    ///
    /// # Errors
    /// [`Loss`]: the frame is dropped.
    pub fn seal_in_place(&mut self, tag: Tag, number: u64, frame: &mut [u8]) -> Result<(), Loss> {
        let sealed = self.present().and_then(|()| {
            let sa = self.sas.iter_mut().find(|sa| sa.tag == tag).ok_or(Loss::UnknownSa)?;
            sa.seal_in_place(number, frame)
        });
        match sealed {
            Ok(limits) => {
                self.tell_limits(tag, limits);
                Ok(())
            }
            Err(loss) => {
                self.esp_counts.count(SaDirection::Out, loss);
                Err(loss)
            }
        }
    }

    /// Opens the ESP of a frame in place, if it is for an SA of crypto mode: returns the mark of
    /// the SA. `None`: it is for none, and as it came.
    ///
    /// # Errors
    /// [`Loss`]: the frame is dropped.
    pub fn open_in_place(&mut self, frame: &mut [u8]) -> Result<Option<u64>, Loss> {
        let opened = self.present().and_then(|()| {
            let Some(arrived) = Arrived::read(frame) else { return Ok(None) };
            let mine = self.sas.iter_mut().find(|sa| sa.is_for(&arrived));
            let Some(sa) = mine.filter(|sa| !sa.opens_packets()) else { return Ok(None) };
            let tag = sa.tag;
            sa.open_in_place(frame).map(|limits| Some((tag, limits)))
        });
        match opened {
            Ok(None) => Ok(None),
            Ok(Some((tag, limits))) => {
                self.tell_limits(tag, limits);
                Ok(Some(tag.to_bits()))
            }
            Err(loss) => {
                self.esp_counts.count(SaDirection::In, loss);
                Err(loss)
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
