//! Handles of SAs, and the identity of a charon.

use std::num::NonZeroU64;

/// Bits of a handle that count the handles of one process.
const SERIAL_BITS: u32 = 40;

/// The number of one process of lockgated: 1 to [`ProcessNumber::LARGEST`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessNumber(u32);

impl ProcessNumber {
    /// The largest number.
    pub const LARGEST: u32 = (1 << (u64::BITS - SERIAL_BITS)) - 1;

    /// Returns the process number of a value; `None`: the value is 0 or too large.
    pub const fn new(number: u32) -> Option<ProcessNumber> {
        match number {
            1..=ProcessNumber::LARGEST => Some(ProcessNumber(number)),
            _ => None,
        }
    }

    /// Returns the number as an integer.
    pub const fn value(self) -> u32 {
        self.0
    }
}

/// The name of a reserved SPI or of an SA between lockgated and the plugin.
///
/// The upper 24 bits are the number of the process that issued the handle; the lower 40 bits count
/// the handles of the process. So no process issues a handle of an earlier one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SaHandle(NonZeroU64);

impl SaHandle {
    /// Returns the handle of a value; `None`: the value is 0.
    pub fn new(value: u64) -> Option<SaHandle> {
        NonZeroU64::new(value).map(SaHandle)
    }

    /// Returns the handle as an integer.
    pub const fn value(self) -> u64 {
        self.0.get()
    }
}

/// Issues the handles of one process, each once.
#[derive(Debug)]
pub struct HandleIssuer {
    process: ProcessNumber,
    issued: u64,
}

impl HandleIssuer {
    /// An issuer of a process, which has issued no handle yet.
    pub const fn new(process: ProcessNumber) -> HandleIssuer {
        HandleIssuer { process, issued: 0 }
    }

    /// Returns the next handle; `None`: the process has issued 2^40 handles.
    pub fn issue(&mut self) -> Option<SaHandle> {
        if self.issued >> SERIAL_BITS != 0 {
            return None;
        }
        let value = u64::from(self.process.value()) << SERIAL_BITS | self.issued;
        self.issued += 1;
        SaHandle::new(value)
    }
}

/// The random number of one life of a charon, drawn by its plugin.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CharonId(pub [u8; 16]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_of_two_processes_differ_and_end_with_the_serial_numbers() {
        assert!(ProcessNumber::new(0).is_none());
        assert!(ProcessNumber::new(ProcessNumber::LARGEST + 1).is_none());
        let mut issuers = [1, 2, ProcessNumber::LARGEST]
            .map(|number| HandleIssuer::new(ProcessNumber::new(number).unwrap()));
        let first = issuers.each_mut().map(|issuer| issuer.issue().unwrap().value());
        let second = issuers.each_mut().map(|issuer| issuer.issue().unwrap().value());
        assert_eq!(first, [1 << 40, 2 << 40, 0xff_ffff << 40]);
        assert_eq!(second, first.map(|handle| handle + 1));
        let [mut last, ..] = issuers;
        last.issued = (1 << SERIAL_BITS) - 1;
        assert_eq!(last.issue().unwrap().value(), (2 << 40) - 1);
        assert_eq!((last.issue(), last.issue()), (None, None));
    }
}
