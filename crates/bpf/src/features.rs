//! Reads the XDP features that a netdev's driver reports.

use std::ffi::c_int;

use libbpf_rs::libbpf_sys::{self, bpf_xdp_query_opts};

use crate::messages::with_messages;

/// Bits of `enum netdev_xdp_act` in the kernel's `netdev.h`.
const BASIC: u64 = 1;
const REDIRECT: u64 = 1 << 1;
const ZERO_COPY: u64 = 1 << 3;
const MULTI_BUFFER: u64 = 1 << 5;

/// The XDP features of a driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DriverFeatures {
    /// Native programs.
    pub native: bool,
    /// Redirecting from them, into sockets too.
    pub redirect: bool,
    /// AF_XDP without copying.
    pub zero_copy: bool,
    /// Native programs for packets in several buffers.
    pub multi_buffer: bool,
}

impl DriverFeatures {
    fn of(flags: u64) -> DriverFeatures {
        let has = |bits: u64| flags & bits == bits;
        DriverFeatures {
            native: has(BASIC),
            redirect: has(BASIC | REDIRECT),
            zero_copy: has(ZERO_COPY),
            multi_buffer: has(MULTI_BUFFER),
        }
    }
}

/// Asks a netdev of the calling thread's network namespace. Needs no privilege. `None`: the netdev
/// is gone, or the kernel (before 6.3) does not say.
pub fn driver_features(ifindex: u32) -> Option<DriverFeatures> {
    let size = size_of::<bpf_xdp_query_opts>();
    let mut options = bpf_xdp_query_opts { sz: size as _, ..Default::default() };
    let (code, _) = with_messages(|| {
        // SAFETY: `options` is a whole structure that says its own size and outlives the call.
        // Threat: a write behind it.
        unsafe { libbpf_sys::bpf_xdp_query(ifindex as c_int, 0, &mut options) }
    });
    // No driver has no feature at all in a kernel that knows the question: generic mode has some.
    (code == 0 && options.feature_flags != 0).then(|| DriverFeatures::of(options.feature_flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirecting_needs_native_programs() {
        assert!(!DriverFeatures::of(REDIRECT).redirect);
        let both = DriverFeatures::of(BASIC | REDIRECT | ZERO_COPY);
        assert!(both.native && both.redirect && both.zero_copy && !both.multi_buffer);
    }

    #[test]
    fn a_netdev_that_is_not_there_has_no_features() {
        assert_eq!(driver_features(0x7fff_fffe), None);
    }
}
