//! Samples of the packets that cross inside virtual networks: by them the most used endpoints are
//! found, whose packets a lower tier may then answer.

use wire::{Address, Flow, Vni};

/// A packet between two endpoints of a network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TenantSample {
    /// The network.
    pub vni: Vni,
    /// Address of the sender.
    pub source: Address,
    /// Address of the destination.
    pub destination: Address,
    /// The packet's flow, if groups judge it.
    pub judged: Option<Flow>,
}

/// A bounded list of samples. At first every packet is one; when the list is full every second
/// sample goes, and from then on only every second packet becomes one, and so on.
#[derive(Default)]
pub struct TenantSampler {
    samples: Vec<TenantSample>,
    /// Samples at most; 0: none are taken.
    room: usize,
    /// Packets that a sample stands for, and those until the next.
    stride: u32,
    until_next: u32,
}

impl TenantSampler {
    /// Takes samples from now on, at most so many before they are fetched; 0: no more.
    pub fn take_at_most(&mut self, room: usize) {
        *self = TenantSampler { samples: Vec::with_capacity(room), room, stride: 1, until_next: 1 };
    }

    /// Returns whether samples are taken.
    pub fn is_on(&self) -> bool {
        self.room > 0
    }

    /// Returns the samples since the last call, and the packets that each stands for.
    pub fn fetch(&mut self) -> (Vec<TenantSample>, u64) {
        let stride = self.stride.into();
        let fresh = Vec::with_capacity(self.room);
        (self.stride, self.until_next) = (1, 1);
        (std::mem::replace(&mut self.samples, fresh), stride)
    }

    /// Sees a packet that goes on.
    #[inline]
    pub(crate) fn see(&mut self, sample: impl FnOnce() -> TenantSample) {
        if self.room == 0 {
            return;
        }
        self.until_next -= 1;
        if self.until_next == 0 {
            self.until_next = self.stride;
            self.take(sample());
        }
    }

    fn take(&mut self, sample: TenantSample) {
        if self.samples.len() == self.room {
            let mut number = 0;
            self.samples.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.stride = self.stride.saturating_mul(2);
            self.until_next = self.stride;
        }
        self.samples.push(sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(number: u32) -> TenantSample {
        let address = Address::v4(number);
        TenantSample { vni: Vni::MAX, source: address, destination: address, judged: None }
    }

    #[test]
    fn a_list_that_is_full_is_thinned_out() {
        let mut sampler = TenantSampler::default();
        sampler.see(|| sample(0));
        assert_eq!(sampler.fetch(), (vec![], 0));
        sampler.take_at_most(8);
        for count in [5, 8, 100, 10_000] {
            (0..count).for_each(|number| sampler.see(|| sample(number)));
            let (samples, each) = sampler.fetch();
            assert!(samples.len() <= 8);
            let packets = samples.len() as u64 * each;
            // Right to one sample.
            assert!(packets.abs_diff(count.into()) <= each, "{count}: {packets}");
            assert!(count > 8 || packets == u64::from(count));
        }
        sampler.take_at_most(0);
        sampler.see(|| sample(1));
        assert_eq!(sampler.fetch().0, vec![]);
    }
}
