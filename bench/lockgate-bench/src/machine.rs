//! Describes the machine on which a figure was measured, and the commit that was measured.

use std::fs;
use std::io;
use std::process::Command;

use netlab::interrupt;
use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use super::BenchError;

/// The machine that measured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Machine {
    /// Model name of the processor.
    pub(super) cpu: String,
    /// Its vendor and family: "AuthenticAMD 26".
    pub(super) cpu_family: String,
    /// Its model among those of the family: in a virtual machine the name often says too little.
    pub(super) cpu_model: String,
    /// Cores that the system has.
    pub(super) cores: usize,
    /// Features of the processor that speed ciphers up.
    pub(super) features: Vec<&'static str>,
    /// True if it has the processor that targets are for: [`is_reference`].
    pub(super) is_reference: bool,
    /// Release of the kernel.
    pub(super) kernel: String,
    /// The core that the measuring thread was bound to; `None`: it could not be bound.
    pub(super) pinned_to: Option<usize>,
    /// Priority of that thread: -20 goes before all others, 0 is ordinary.
    pub(super) nice: i32,
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Machine {
            cpu, cpu_family, cpu_model, cores, features, kernel, pinned_to, nice, ..
        } = self;
        write!(f, "{cpu} ({cpu_family} model {cpu_model}), {cores} cores ")?;
        write!(f, "({}), Linux {kernel}, ", features.join(" "))?;
        match pinned_to {
            Some(core) => write!(f, "first worker pinned to core {core}, nice {nice}"),
            None => write!(f, "NOT PINNED, nice {nice}"),
        }
    }
}

/// Processor features on which figures depend much.
const FEATURES: [&str; 6] = ["aes", "pclmulqdq", "avx2", "avx512f", "vaes", "vpclmulqdq"];

/// The vendor and family of the processors that targets are for: Zen 5, as
/// [`Machine::cpu_family`] names them.
const REFERENCE: &str = "AuthenticAMD 26";

/// Returns whether targets hold for a processor of this family with these features: a Zen 5 whose
/// AVX-512 can be used. A hypervisor may hide it, and then ciphers take another form.
fn is_reference(cpu_family: &str, features: &[&str]) -> bool {
    cpu_family == REFERENCE && features.contains(&"avx512f")
}

/// The nice value that goes before all others.
const FIRST: i32 = -20;

impl Machine {
    /// Describes this machine. A value that cannot be read is "unknown".
    pub(super) fn look(pinned_to: Option<usize>) -> Machine {
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let flags: Vec<&str> = field(&cpu, "flags").unwrap_or_default().split(' ').collect();
        let part = |name| field(&cpu, name).unwrap_or("unknown");
        let cpu_family = format!("{} {}", part("vendor_id"), part("cpu family"));
        let features: Vec<_> = FEATURES.into_iter().filter(|one| flags.contains(one)).collect();
        Machine {
            is_reference: is_reference(&cpu_family, &features),
            cpu_family,
            cpu_model: part("model").to_owned(),
            cpu: part("model name").to_owned(),
            cores: cpu.lines().filter(|line| line.starts_with("processor")).count(),
            features,
            kernel: if kernel.is_empty() { "unknown".into() } else { kernel.trim().into() },
            pinned_to,
            nice: getpriority_process(None).unwrap_or(0),
        }
    }
}

/// A field of the first processor.
fn field<'t>(cpuinfo: &'t str, name: &str) -> Option<&'t str> {
    let lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(key, value)| (key.trim(), value.trim())).find(|(key, _)| *key == name).map(|f| f.1)
}

/// The seat of a bench: its thread, bound to a core and before all others there, as far as the
/// system allows; a refusal is printed to standard error.
pub(super) struct Seat {
    /// The core; `None`: it could not be bound.
    pub(super) pinned_to: Option<usize>,
    /// Cores for workers, the first worker's first.
    pub(super) cores: Vec<usize>,
    _precedence: Option<Precedence>,
}

impl Seat {
    /// Takes the core asked for, else the last. From here on Ctrl-C is a flag, so that precedence
    /// is given back.
    ///
    /// # Errors
    /// Signals cannot be listened for.
    pub(super) fn take(core: Option<usize>) -> Result<Seat, BenchError> {
        let mut cores = cores().unwrap_or_default();
        let pinned_to = pin(core)
            .inspect_err(|error| eprintln!("NOT PINNED to a core, figures will vary: {error}"));
        let pinned_to = pinned_to.ok();
        interrupt::listen()?;
        let precedence = Precedence::take().inspect_err(|error| {
            eprintln!("AT ORDINARY PRIORITY, others get the core in between: {error}");
        });
        cores.retain(|core| Some(*core) != pinned_to);
        cores.splice(0..0, pinned_to);
        Ok(Seat { pinned_to, cores, _precedence: precedence.ok() })
    }

    /// Returns the current description of the machine.
    pub(super) fn machine(&self) -> Machine {
        Machine::look(self.pinned_to)
    }
}

/// Highest scheduling priority for this thread, and for those that it starts, until it is dropped:
/// another thread that gets the core in between leaves its data in the caches.
pub(super) struct Precedence {
    /// The nice value of this session among the sessions, if the system shares cores out so.
    session: Option<i32>,
    /// Nice value of this thread.
    nice: i32,
}

/// The nice value of the session of this process: sched(7), "The autogroup feature".
const AUTOGROUP: &str = "/proc/self/autogroup";

impl Precedence {
    /// Takes the highest scheduling priority for this thread.
    ///
    /// # Errors
    /// The system's: only root may. The caller goes on and says so.
    pub(super) fn take() -> io::Result<Precedence> {
        let nice = getpriority_process(None)?;
        setpriority_process(None, FIRST)?;
        // "/autogroup-43 nice 0"; no such file: the system has no such sharing.
        let session = fs::read_to_string(AUTOGROUP).ok();
        let session = session.and_then(|text| text.split_whitespace().last()?.parse().ok());
        let precedence = Precedence { session, nice };
        if session.is_some() {
            fs::write(AUTOGROUP, FIRST.to_string())?;
        }
        Ok(precedence)
    }
}

impl Drop for Precedence {
    fn drop(&mut self) {
        // What it took it can give back; if not, the process ends soon.
        let _ = setpriority_process(None, self.nice);
        if let Some(session) = self.session {
            let _ = fs::write(AUTOGROUP, session.to_string());
        }
    }
}

/// Cores that this thread may use, the last first.
///
/// # Errors
/// The system's.
pub(super) fn cores() -> io::Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).rev().filter(|core| allowed.is_set(*core)).collect())
}

/// Binds this thread to `core`, or to the last core that it may use, because interrupts tend to be
/// on the first. Returns the core.
///
/// # Errors
/// The system's: there is no such core, or it is not ours to choose. The caller goes on and says
/// so.
pub(super) fn pin(core: Option<usize>) -> io::Result<usize> {
    let allowed = sched_getaffinity(None)?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|core| allowed.is_set(*core)).unwrap_or(0);
    let core = core.unwrap_or(last);
    if core >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut wanted = CpuSet::new();
    wanted.set(core);
    sched_setaffinity(None, &wanted)?;
    Ok(core)
}

/// The commit of the checkout that this program lies in, with "+" if files differ from it; or what
/// the build was told in `LOCKGATE_COMMIT`; or "unknown".
pub(super) fn commit() -> String {
    if let Some(told) = option_env!("LOCKGATE_COMMIT") {
        return told.to_owned();
    }
    let git = |arguments: &[&str]| {
        let program = std::env::current_exe().ok()?;
        let output =
            Command::new("git").arg("-C").arg(program.parent()?).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".into();
    };
    match git(&["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => commit,
        _ => commit + "+",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_processor_are_found_by_their_whole_name() {
        let text = "processor\t: 0\nmodel\t\t: 85\nmodel name\t: Some CPU: 2\nflags\t: fpu aes\n";
        assert_eq!(field(text, "model name"), Some("Some CPU: 2"));
        assert_eq!(field(text, "model"), Some("85"));
        assert_eq!(field(text, "mod"), None);
    }

    #[test]
    fn targets_are_for_zen_5_with_avx_512_and_for_no_other_processor() {
        let all = ["aes", "avx2", "avx512f", "vaes"];
        assert!(is_reference("AuthenticAMD 26", &all));
        assert!(!is_reference("AuthenticAMD 26", &["aes", "avx2", "vaes"]), "hidden");
        assert!(!is_reference("AuthenticAMD 25", &all), "Zen 3 and 4");
        assert!(!is_reference("GenuineIntel 6", &all));
        assert!(!is_reference("unknown unknown", &[]));
        let here = Machine::look(None);
        assert_eq!(here.is_reference, is_reference(&here.cpu_family, &here.features));
    }

    #[test]
    fn a_core_that_does_not_exist_is_refused() {
        assert!(pin(Some(usize::MAX)).is_err());
        assert!(pin(Some(CpuSet::MAX_CPU - 1)).is_err(), "no test machine has that many");
    }

    #[test]
    fn precedence_ends_with_its_owner() {
        let before = getpriority_process(None).unwrap();
        let session = fs::read_to_string(AUTOGROUP).ok();
        match Precedence::take() {
            Ok(precedence) => {
                assert_eq!(Machine::look(None).nice, FIRST);
                drop(precedence);
                assert_eq!(getpriority_process(None).unwrap(), before);
                assert_eq!(fs::read_to_string(AUTOGROUP).ok(), session);
            }
            Err(error) => eprintln!("SKIPPED, only root may go first: {error}"),
        }
    }

    #[test]
    fn a_bound_thread_says_where() {
        let core = std::thread::spawn(|| {
            let core = pin(None).unwrap();
            let allowed = sched_getaffinity(None).unwrap();
            assert_eq!((allowed.count(), allowed.is_set(core)), (1, true));
            core
        });
        let core = core.join().unwrap();
        assert_eq!(Machine::look(Some(core)).pinned_to, Some(core));
    }
}
