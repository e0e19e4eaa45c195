//! Hardens the process before packets from strangers reach it: forbids core dumps, locks its pages
//! into memory, drops the privileges that only set-up needs.
//!
//! Capabilities and `no_new_privs` belong to a thread, and a new thread has those of the one that
//! started it: [`drop_privileges`] comes before other threads are started, and refuses if it does
//! not.

use std::fmt::{Display, Formatter};

use caps::{CapSet, Capability, CapsHashSet};
use rustix::io::Errno;
use rustix::mm::MlockAllFlags;
use rustix::process::{DumpableBehavior, Resource, Rlimit};

/// The oldest kernel that the design was made for.
const LEAST_KERNEL: (u32, u32) = (6, 1);

/// Capabilities that stay for the daemon's whole life, each with its purpose.
const KEPT: &[(Capability, &str)] = &[
    (Capability::CAP_NET_ADMIN, "attaches XDP, makes lockgate0, changes neighbours and nftables"),
    (Capability::CAP_NET_RAW, "opens AF_XDP sockets"),
    (Capability::CAP_BPF, "loads the XDP program and changes its maps"),
    (Capability::CAP_PERFMON, "lets the kernel accept the XDP program's pointers"),
    (Capability::CAP_IPC_LOCK, "locks keys and packet memory"),
];

/// Set-up of the process failed. None of these opens anything; the caller decides whether to go
/// on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HardeningError {
    /// The kernel is older than the design.
    #[error(
        "kernel {release} is too old: Lockgate needs {}.{} or newer (Debian 12, Ubuntu 24.04)",
        LEAST_KERNEL.0, LEAST_KERNEL.1
    )]
    OldKernel {
        /// The release that uname(2) reports.
        release: String,
    },
    /// `setrlimit` or `prctl`.
    #[error("core dumps cannot be forbidden: {errno}")]
    CoreDumps {
        /// The kernel's answer.
        errno: Errno,
    },
    /// `mlockall`.
    #[error(
        "memory cannot be locked, keys may reach a swap device: {errno}; give the service \
         LimitMEMLOCK=infinity or CAP_IPC_LOCK, or run `ulimit -l unlimited` first"
    )]
    MemoryLock {
        /// The kernel's answer.
        errno: Errno,
    },
    /// `capset` or `prctl`.
    #[error("privileges cannot be dropped: {error}")]
    Privileges {
        /// The kernel's answer.
        error: caps::errors::CapsError,
    },
    /// `prctl(PR_SET_NO_NEW_PRIVS)`.
    #[error("new privileges cannot be forbidden: {errno}")]
    NoNewPrivileges {
        /// The kernel's answer.
        errno: Errno,
    },
    /// A thread was started before privileges were dropped: a bug of Lockgate.
    #[error("thread {thread} keeps privileges {capabilities:#x} that were to be dropped")]
    ThreadKeeps {
        /// Its id.
        thread: String,
        /// Bit mask of its permitted capabilities.
        capabilities: u64,
    },
    /// /proc cannot be read.
    #[error("the threads' privileges cannot be read from /proc: {error}")]
    Proc {
        /// The kernel's answer.
        error: std::io::Error,
    },
}

/// A capability that the daemon needs and does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MissingPrivilege {
    /// The capability.
    pub(crate) capability: Capability,
    /// The purpose that it is needed for.
    pub(crate) purpose: &'static str,
}

impl Display for MissingPrivilege {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let MissingPrivilege { capability, purpose } = self;
        write!(f, "{capability} is missing: it {purpose}")
    }
}

/// Lists the privileges of [`missing_privileges`] and how to get them, line by line.
pub(crate) fn how_to_get(missing: &[MissingPrivilege]) -> String {
    let names: Vec<String> = missing.iter().map(|m| m.capability.to_string()).collect();
    let (unit, file) = (names.join(" "), names.join(",").to_lowercase());
    let lines: Vec<String> = missing.iter().map(MissingPrivilege::to_string).collect();
    format!(
        "{}\n\
         run lockgated as root (sudo lockgated …), or\n\
         in its unit: AmbientCapabilities={unit}, and the same in CapabilityBoundingSet=, or\n\
         setcap {file}+ep /usr/sbin/lockgated",
        lines.join("\n")
    )
}

/// Refuses kernels that the design was not made for.
///
/// # Errors
/// [`HardeningError::OldKernel`].
pub(crate) fn check_kernel() -> Result<(), HardeningError> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    if is_old(&release) { Err(HardeningError::OldKernel { release }) } else { Ok(()) }
}

/// Returns whether a release such as `6.1.0-18-amd64` is too old. One that cannot be read is not.
fn is_old(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < LEAST_KERNEL,
        _ => false,
    }
}

/// Returns the privileges that the daemon needs and the calling thread lacks.
pub(crate) fn missing_privileges() -> Vec<MissingPrivilege> {
    let held = caps::read(None, CapSet::Effective).unwrap_or_default();
    let lockable = rustix::process::getrlimit(Resource::Memlock).current.is_none();
    missing(&held, lockable)
}

fn missing(held: &CapsHashSet, lockable: bool) -> Vec<MissingPrivilege> {
    let needed = KEPT.iter().filter(|(capability, _)| {
        let lock = *capability == Capability::CAP_IPC_LOCK;
        !(held.contains(capability) || lockable && lock)
    });
    needed.map(|&(capability, purpose)| MissingPrivilege { capability, purpose }).collect()
}

/// Forbids core dumps, and debuggers of the same user: both would show keys.
///
/// # Errors
/// [`HardeningError::CoreDumps`].
pub(crate) fn forbid_core_dumps() -> Result<(), HardeningError> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, none)
        .and_then(|()| rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable))
        .map_err(|errno| HardeningError::CoreDumps { errno })
}

/// Keeps every page that is touched from now on in memory: keys reach no swap device, and no
/// worker waits for a page.
///
/// # Errors
/// [`HardeningError::MemoryLock`]: not a reason to stop, but one to warn.
pub(crate) fn lock_memory() -> Result<(), HardeningError> {
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    rustix::mm::mlockall(flags).map_err(|errno| HardeningError::MemoryLock { errno })
}

/// Reduces the privileges of the calling thread, and of those it starts, to those that the running
/// daemon needs, for good. To be called after set-up and before other threads.
///
/// Programs that an earlier run left on netdevs are looked at first: without CAP_SYS_ADMIN they
/// could not be told from others', and not be replaced.
///
/// Nothing is inheritable. A child process (`nft`) of user 0 has what we have; of another user it
/// would have nothing, so that there `CAP_NET_ADMIN` alone is passed on.
///
/// # Errors
/// [`HardeningError`]; some may be dropped already.
/// [`HardeningError::ThreadKeeps`] if another thread was started before.
pub(crate) fn drop_privileges() -> Result<(), HardeningError> {
    drop_this_threads_privileges()?;
    verify_threads()
}

fn drop_this_threads_privileges() -> Result<(), HardeningError> {
    let refused = |error| HardeningError::Privileges { error };
    for netdev in nix::net::if_::if_nameindex().iter().flatten() {
        // What cannot be looked at is taken for another's, and left alone.
        let _ = bpf::attached(netdev.index());
    }
    let kept: CapsHashSet = KEPT.iter().map(|(capability, _)| *capability).collect();
    let held = caps::read(None, CapSet::Permitted).map_err(refused)?;
    let keep: CapsHashSet = held.intersection(&kept).copied().collect();
    // Without the right to, this does not matter: `no_new_privs` stands in the same way.
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP).map_err(refused)? {
        for capability in caps::read(None, CapSet::Bounding).map_err(refused)?.difference(&kept) {
            caps::drop(None, CapSet::Bounding, *capability).map_err(refused)?;
        }
    }
    caps::clear(None, CapSet::Ambient).map_err(refused)?;
    caps::clear(None, CapSet::Inheritable).map_err(refused)?;
    caps::set(None, CapSet::Effective, &keep).map_err(refused)?;
    caps::set(None, CapSet::Permitted, &keep).map_err(refused)?;
    if !rustix::process::geteuid().is_root() && keep.contains(&Capability::CAP_NET_ADMIN) {
        let passed_on = CapsHashSet::from([Capability::CAP_NET_ADMIN]);
        caps::set(None, CapSet::Inheritable, &passed_on).map_err(refused)?;
        caps::set(None, CapSet::Ambient, &passed_on).map_err(refused)?;
    }
    rustix::thread::set_no_new_privs(true)
        .map_err(|errno| HardeningError::NoNewPrivileges { errno })
}

/// Checks that no thread of the process has more than [`drop_privileges`] leaves.
///
/// # Errors
/// [`HardeningError::ThreadKeeps`], or /proc cannot be read.
fn verify_threads() -> Result<(), HardeningError> {
    let unreadable = |error| HardeningError::Proc { error };
    let kept = KEPT.iter().fold(0, |mask, (capability, _)| mask | capability.bitmask());
    for entry in std::fs::read_dir("/proc/self/task").map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        // A thread that has ended in between has nothing.
        let Ok(status) = std::fs::read_to_string(entry.path().join("status")) else { continue };
        let line = status.lines().find_map(|line| line.strip_prefix("CapPrm:"));
        let capabilities = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        if let Some(capabilities) = capabilities.filter(|mask| mask & !kept != 0) {
            let thread = entry.file_name().to_string_lossy().into_owned();
            return Err(HardeningError::ThreadKeeps { thread, capabilities });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Capabilities that only set-up needs: to find the program of an earlier run by its id, to
    /// give the API's socket to its group, and to give privileges away for good.
    const FOR_SETUP: [Capability; 3] =
        [Capability::CAP_SYS_ADMIN, Capability::CAP_CHOWN, Capability::CAP_SETPCAP];

    #[test]
    fn kernels_before_6_1_are_refused_whatever_their_names_look_like() {
        for old in ["5.15.0-91-generic", "6.0.19", "4.19", "6.0-rc1", "2.6.32-754.el6.x86_64"] {
            assert!(is_old(old), "{old}");
        }
        for new in ["6.1.0-18-amd64", "6.18.0", "6.2", "7.0-rc1", "10.1", "mystery"] {
            assert!(!is_old(new), "{new}");
        }
        check_kernel().unwrap();
        let error = HardeningError::OldKernel { release: "5.15.0".into() }.to_string();
        assert!(error.contains("5.15.0") && error.contains("6.1 or newer"), "{error}");
    }

    #[test]
    fn each_missing_capability_is_named_with_what_it_is_for_and_how_to_get_it() {
        let all = missing(&CapsHashSet::new(), false);
        assert_eq!(all.len(), KEPT.len());
        assert_eq!(missing(&CapsHashSet::new(), true).len(), KEPT.len() - 1);
        assert_eq!(missing(&KEPT.iter().map(|(c, _)| *c).collect(), false), []);
        let most = KEPT.iter().map(|(c, _)| *c).filter(|c| *c != Capability::CAP_BPF).collect();
        let bpf = missing(&most, false);
        assert_eq!(
            bpf[0].to_string(),
            "CAP_BPF is missing: it loads the XDP program and changes its maps"
        );
        let how = how_to_get(&all);
        assert!(how.contains("AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW CAP_BPF"), "{how}");
        assert!(how.contains("setcap cap_net_admin,cap_net_raw,cap_bpf,"), "{how}");
    }

    #[test]
    fn the_unit_grants_what_is_needed_and_nothing_else() {
        let unit = include_str!("../../../etc/systemd/lockgated.service");
        let bounding = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
        let mut granted: Vec<&str> = bounding.unwrap().split_whitespace().collect();
        granted.sort_unstable();
        let kept = KEPT.iter().map(|(capability, _)| *capability);
        let mut needed: Vec<_> = kept.chain(FOR_SETUP).map(|c| c.to_string()).collect();
        needed.sort_unstable();
        assert_eq!(granted, needed);
    }

    /// Set in the processes that [`own_process`] starts.
    const CHILD: &str = "LOCKGATE_HARDENING_TEST_CHILD";

    /// Runs this program again, in another process, for a test that changes its process for good.
    /// Returns whether this process is the one to be changed. `prefix` is the command that starts
    /// it.
    fn own_process(test: &str, prefix: &[&str]) -> bool {
        if std::env::var(CHILD).is_ok_and(|name| name == test) {
            return true;
        }
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: {test}: needs root");
            return false;
        }
        let program = std::env::current_exe().unwrap();
        let mut words: Vec<String> = prefix.iter().map(ToString::to_string).collect();
        words.push(program.to_string_lossy().into_owned());
        let name = format!("hardening::tests::{test}");
        words.extend(["--exact", &name, "--nocapture"].map(String::from));
        let mut command = Command::new(&words[0]);
        let Ok(child) = command.args(&words[1..]).env(CHILD, test).output() else {
            eprintln!("SKIPPED: {test}: {} cannot be started", words[0]);
            return false;
        };
        let told = String::from_utf8_lossy(&child.stdout).into_owned()
            + &String::from_utf8_lossy(&child.stderr);
        if !prefix.is_empty() && !told.contains("running 1 test") {
            eprintln!("SKIPPED: {test}: {} did not start it: {told}", words[0]);
            return false;
        }
        assert!(child.status.success() && told.contains("1 passed"), "{told}");
        told.lines().filter(|line| line.contains("SKIPPED")).for_each(|line| eprintln!("{line}"));
        false
    }

    #[test]
    fn core_dumps_are_forbidden_and_memory_is_locked() {
        if !own_process("core_dumps_are_forbidden_and_memory_is_locked", &[]) {
            return;
        }
        forbid_core_dumps().unwrap();
        assert_eq!(rustix::process::getrlimit(Resource::Core).maximum, Some(0));
        let dumpable = rustix::process::dumpable_behavior().unwrap();
        assert_eq!(dumpable, DumpableBehavior::NotDumpable);
        lock_memory().unwrap();
        let touched = vec![1u8; 8 << 20];
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
        let kilobytes: u64 = locked.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(kilobytes > touched.len() as u64 / 1024, "{locked}");
    }

    #[test]
    fn privileges_are_dropped_for_good_and_nft_still_works() {
        if !own_process("privileges_are_dropped_for_good_and_nft_still_works", &[]) {
            return;
        }
        let held = caps::read(None, CapSet::Permitted).unwrap();
        drop_this_threads_privileges().unwrap();
        let kept: CapsHashSet = KEPT.iter().map(|(capability, _)| *capability).collect();
        for set in [CapSet::Permitted, CapSet::Effective] {
            let expected: CapsHashSet = held.intersection(&kept).copied().collect();
            assert_eq!(caps::read(None, set).unwrap(), expected, "{set:?}");
        }
        for set in [CapSet::Inheritable, CapSet::Ambient] {
            assert_eq!(caps::read(None, set).unwrap(), CapsHashSet::new(), "{set:?}");
        }
        assert!(caps::read(None, CapSet::Bounding).unwrap().is_subset(&kept));
        assert!(rustix::thread::no_new_privs().unwrap());
        assert!(caps::raise(None, CapSet::Effective, Capability::CAP_SYS_ADMIN).is_err());
        std::thread::spawn(|| {
            let permitted = caps::read(None, CapSet::Permitted).unwrap();
            assert!(!permitted.contains(&Capability::CAP_SYS_ADMIN));
        })
        .join()
        .unwrap();
        // The thread that runs the tests was there before.
        if held.contains(&Capability::CAP_SYS_ADMIN) {
            let error = verify_threads().unwrap_err();
            assert!(matches!(error, HardeningError::ThreadKeeps { .. }), "{error}");
        }
        nft_works();
    }

    /// Runs as another user with only the capabilities of the service, and `nft` with those that
    /// are passed on.
    #[test]
    fn a_service_user_without_root_can_run_nft_too() {
        let given = "+net_admin,+net_raw,+bpf,+perfmon,+ipc_lock";
        let (inheritable, ambient) =
            (format!("--inh-caps={given}"), format!("--ambient-caps={given}"));
        let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        let prefix = [&user[..], &[&inheritable, &ambient]].concat();
        if !own_process("a_service_user_without_root_can_run_nft_too", &prefix) {
            return;
        }
        drop_this_threads_privileges().unwrap();
        let passed_on = CapsHashSet::from([Capability::CAP_NET_ADMIN]);
        assert_eq!(caps::read(None, CapSet::Ambient).unwrap(), passed_on);
        assert_eq!(caps::read(None, CapSet::Effective).unwrap().len(), KEPT.len());
        nft_works();
    }

    /// `list` needs CAP_NET_ADMIN and changes nothing.
    fn nft_works() {
        if !held_net_admin() || Command::new("nft").arg("--version").output().is_err() {
            eprintln!("SKIPPED: nft after dropping privileges: no nft or no CAP_NET_ADMIN");
            return;
        }
        let listed = Command::new("nft").args(["list", "ruleset"]).output().unwrap();
        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    }

    fn held_net_admin() -> bool {
        caps::has_cap(None, CapSet::Effective, Capability::CAP_NET_ADMIN).unwrap()
    }
}
