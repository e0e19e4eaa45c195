//! Checks this machine for the features that the steering program needs, and says how to get
//! missing ones.

use std::fs;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use libbpf_rs::{MapType, ProgramType};

use crate::messages::with_messages;
use crate::{BpfError, Steering};

/// The oldest kernel that is supported.
const OLDEST_KERNEL: (u32, u32) = (6, 1);

/// Capabilities, by their number in `capability.h`.
const NEEDED: [(u32, &str); 4] =
    [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW"), (38, "CAP_PERFMON"), (39, "CAP_BPF")];
const SYS_ADMIN: u32 = 21;

/// Something that is needed or useful.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Feature {
    /// Name of the feature.
    pub name: &'static str,
    /// The purpose that it is needed for.
    pub purpose: &'static str,
    /// The result of looking for it.
    pub finding: Finding,
}

/// The result of looking for a feature.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    /// The feature is there.
    Present {
        /// Its version or kind.
        detail: String,
    },
    /// The feature is missing, and nothing works without it.
    Missing {
        /// The state found instead.
        detail: String,
        /// The way to get it.
        remedy: &'static str,
    },
    /// The feature is missing, but only useful.
    Lacking {
        /// The state found instead.
        detail: String,
        /// The way to get it.
        remedy: &'static str,
    },
}

/// Looks at this machine: nothing is attached, nothing stays loaded.
pub fn probe() -> Vec<Feature> {
    vec![
        feature("kernel", "BPF and AF_XDP as Lockgate uses them", kernel()),
        feature("capabilities", "loading and attaching programs", capabilities()),
        feature("lockdown", "bpf(2) is not forbidden by the kernel", not_locked_down()),
        feature("BPF JIT", "the program runs as machine code", jit()),
        feature("BTF", "the kernel's types, for tracing tools", btf()),
        feature(
            "XDP",
            "programs in front of a netdev",
            supported(|| ProgramType::Xdp.is_supported()),
        ),
        feature("XSKMAP", "frames into sockets", supported(|| MapType::Xskmap.is_supported())),
        feature("LPM trie", "who lives inside", supported(|| MapType::LpmTrie.is_supported())),
        feature("AF_XDP", "sockets of the workers", af_xdp()),
        feature("steering program", "this very program loads", loads()),
    ]
}

fn feature(name: &'static str, purpose: &'static str, finding: Finding) -> Feature {
    Feature { name, purpose, finding }
}

const NEW_KERNEL: &str =
    "install Linux 6.1 or newer with CONFIG_BPF_SYSCALL and CONFIG_XDP_SOCKETS";
const GRANT: &str = "run as root, or grant it (AmbientCapabilities= of the unit)";

fn kernel() -> Finding {
    kernel_of(kernel_release())
}

fn kernel_of(release: String) -> Finding {
    match version(&release) {
        Some(version) if version >= OLDEST_KERNEL => Finding::Present { detail: release },
        _ => Finding::Missing { detail: release, remedy: NEW_KERNEL },
    }
}

fn capabilities() -> Finding {
    match missing_capabilities() {
        None => Finding::Present { detail: NEEDED.map(|(_, name)| name).join(", ") },
        Some(missing) => Finding::Missing { detail: format!("without {missing}"), remedy: GRANT },
    }
}

fn not_locked_down() -> Finding {
    match lockdown() {
        Some(mode) if mode == "confidentiality" => Finding::Missing {
            detail: mode,
            remedy: "boot without lockdown=confidentiality (integrity is fine)",
        },
        mode => Finding::Present { detail: mode.unwrap_or_else(|| "none".to_owned()) },
    }
}

fn jit() -> Finding {
    match fs::read_to_string("/proc/sys/net/core/bpf_jit_enable").as_deref().map(str::trim) {
        Ok("0") => Finding::Lacking {
            detail: "interpreted: several times slower".to_owned(),
            remedy: "sysctl net.core.bpf_jit_enable=1",
        },
        Ok(_) => Finding::Present { detail: "on".to_owned() },
        // Only the first network namespace shows it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Finding::Present { detail: "not shown in this network namespace".to_owned() }
        }
        Err(error) => Finding::Lacking { detail: error.to_string(), remedy: NEW_KERNEL },
    }
}

fn btf() -> Finding {
    match fs::exists("/sys/kernel/btf/vmlinux") {
        Ok(true) => Finding::Present { detail: "/sys/kernel/btf/vmlinux".to_owned() },
        _ => Finding::Lacking {
            detail: "no /sys/kernel/btf/vmlinux".to_owned(),
            remedy: "a kernel with CONFIG_DEBUG_INFO_BTF; Lockgate itself does without",
        },
    }
}

fn supported(question: impl FnOnce() -> libbpf_rs::Result<bool>) -> Finding {
    match with_messages(question).0 {
        Ok(true) => Finding::Present { detail: String::new() },
        Ok(false) if missing_capabilities().is_some() => Finding::Missing {
            detail: "cannot be told without capabilities".to_owned(),
            remedy: GRANT,
        },
        Ok(false) => Finding::Missing {
            detail: "the kernel does not know it".to_owned(),
            remedy: NEW_KERNEL,
        },
        Err(error) => Finding::Missing { detail: error.to_string(), remedy: GRANT },
    }
}

fn af_xdp() -> Finding {
    // SAFETY: a system call without pointers. Threat: none.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        let error = io::Error::last_os_error();
        let remedy = match error.raw_os_error() {
            Some(libc::EPERM) => GRANT,
            _ => NEW_KERNEL,
        };
        return Finding::Missing { detail: error.to_string(), remedy };
    }
    // SAFETY: the descriptor was just opened and nobody else knows it. Threat: a file of another
    // owner is closed.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Finding::Present { detail: String::new() }
}

fn loads() -> Finding {
    match Steering::load(0, 0) {
        Ok(_) => Finding::Present { detail: String::new() },
        Err(error) => {
            let remedy = match error {
                BpfError::NotPermitted { .. } | BpfError::Refused { .. } => GRANT,
                _ => NEW_KERNEL,
            };
            Finding::Missing { detail: error.to_string(), remedy }
        }
    }
}

/// The kernel's release, such as `6.1.0-18-amd64`.
pub(crate) fn kernel_release() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease");
    release.map_or_else(|error| format!("unknown: {error}"), |release| release.trim().to_owned())
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Mode of the kernel's lockdown, if it is in one.
pub(crate) fn lockdown() -> Option<String> {
    let modes = fs::read_to_string("/sys/kernel/security/lockdown").ok()?;
    let (_, rest) = modes.split_once('[')?;
    let (mode, _) = rest.split_once(']')?;
    (mode != "none").then(|| mode.to_owned())
}

/// The capabilities that this thread lacks of those needed; `None`: it has all.
pub(crate) fn missing_capabilities() -> Option<&'static str> {
    let status = fs::read_to_string("/proc/thread-self/status").ok()?;
    missing_of(effective(&status)?)
}

fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn missing_of(effective: u64) -> Option<&'static str> {
    let has = |number: u32| effective & 1 << number != 0;
    // CAP_SYS_ADMIN stands for CAP_BPF and CAP_PERFMON.
    let bpf = has(SYS_ADMIN) || (has(38) && has(39));
    match (bpf, has(12), has(13)) {
        (true, true, true) => None,
        (true, false, true) => Some("CAP_NET_ADMIN"),
        (true, true, false) => Some("CAP_NET_RAW"),
        (true, false, false) => Some("CAP_NET_ADMIN and CAP_NET_RAW"),
        (false, true, true) => Some("CAP_BPF and CAP_PERFMON"),
        (false, _, _) => Some("CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN and CAP_NET_RAW"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_older_than_6_1_are_told_apart() {
        for (release, old) in [
            ("5.15.0-91-generic", true),
            ("6.0.19", true),
            ("6.1.0-18-amd64", false),
            ("6.18.44-x", false),
            ("7.0", false),
        ] {
            assert_eq!(version(release).unwrap() < OLDEST_KERNEL, old, "{release}");
        }
        assert_eq!(version("unknown"), None);
    }

    #[test]
    fn what_a_kernel_lacks_is_missing_and_the_version_that_has_it_is_named() {
        // AX-21
        let (major, minor) = OLDEST_KERNEL;
        let names_version = |remedy: &str| remedy.contains(&format!("Linux {major}.{minor} or"));
        for release in ["4.17.19", "5.15.0-91-generic", "6.0.19"] {
            let Finding::Missing { detail, remedy } = kernel_of(release.into()) else {
                panic!("{release} is new enough");
            };
            assert_eq!(detail, release);
            assert!(names_version(remedy), "{remedy}");
        }
        let release = "6.1.0-18-amd64".to_owned();
        assert_eq!(kernel_of(release.clone()), Finding::Present { detail: release });
        if missing_capabilities().is_none() {
            let Finding::Missing { remedy, .. } = supported(|| Ok(false)) else {
                panic!("a feature that the kernel does not know is there");
            };
            assert!(names_version(remedy), "{remedy}");
        }
        let names: Vec<&str> = probe().iter().map(|feature| feature.name).collect();
        for needed in ["kernel", "XDP", "XSKMAP", "LPM trie", "AF_XDP"] {
            assert!(names.contains(&needed), "{needed}: {names:?}");
        }
    }

    #[test]
    fn missing_capabilities_are_named() {
        assert_eq!(missing_of(u64::MAX), None);
        assert_eq!(missing_of(1 << 12 | 1 << 13 | 1 << 38 | 1 << 39), None);
        assert_eq!(missing_of(1 << 12 | 1 << 13 | 1 << 21), None);
        assert_eq!(missing_of(1 << 12 | 1 << 13), Some("CAP_BPF and CAP_PERFMON"));
        assert!(missing_of(0).is_some_and(|missing| missing.contains("CAP_NET_RAW")));
        assert_eq!(effective("Name:\tx\nCapEff:\t0000000000003000\n"), Some(0x3000));
    }

    #[test]
    fn every_feature_says_what_for() {
        for feature in probe() {
            assert!(!feature.purpose.is_empty(), "{}", feature.name);
            if let Finding::Missing { detail, remedy } | Finding::Lacking { detail, remedy } =
                feature.finding
            {
                assert!(!detail.is_empty() && !remedy.is_empty(), "{}", feature.name);
            }
        }
    }
}
