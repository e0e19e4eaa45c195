//! The identity of this machine and of its boot.

use std::path::Path;

use crate::files::{self, FileError};
use crate::record::digest;

/// Names the machine and its boot without giving the machine id away (machine-id(5) asks for
/// that): digests of both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostIdentity {
    pub(crate) machine: u128,
    pub(crate) boot: u128,
}

impl HostIdentity {
    /// The identity that these two texts make.
    pub fn new(machine_id: &str, boot_id: &str) -> HostIdentity {
        HostIdentity {
            machine: digest("machine id", machine_id.trim().as_bytes()),
            boot: digest("boot id", boot_id.trim().as_bytes()),
        }
    }

    /// Returns the identity of this machine: `/etc/machine-id` and the kernel's boot id. A machine
    /// without the first counts as another machine after every boot, which invalidates its records.
    ///
    /// # Errors
    /// [`FileError`] if the kernel does not say its boot id, or the machine id is there and cannot
    /// be read.
    pub fn of_this_machine() -> Result<HostIdentity, FileError> {
        let boot = files::read_text(Path::new("/proc/sys/kernel/random/boot_id"))?;
        let machine = files::read_text(Path::new("/etc/machine-id"));
        let machine = match machine {
            Err(error) if error.is_not_found() => boot.clone(),
            Ok(text) if matches!(text.trim(), "" | "uninitialized") => boot.clone(),
            read => read?,
        };
        Ok(HostIdentity::new(&machine, &boot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_of_the_ids_and_does_not_hold_them() {
        let a = HostIdentity::new("0123456789abcdef0123456789abcdef\n", "boot 1");
        let b = HostIdentity::new("0123456789abcdef0123456789abcdef", "boot 1\n");
        assert_eq!(a, b);
        assert_ne!(
            a.machine,
            u128::from_str_radix("0123456789abcdef0123456789abcdef", 16).unwrap()
        );
        assert_ne!(a.boot, HostIdentity::new("x", "boot 2").boot);
        assert_ne!(a.machine, HostIdentity::new("x", "boot 1").machine);
    }

    #[test]
    fn this_machine_has_one_identity() {
        assert_eq!(HostIdentity::of_this_machine(), HostIdentity::of_this_machine());
        assert!(HostIdentity::of_this_machine().is_ok());
    }
}
