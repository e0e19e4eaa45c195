//! The daemon as a process, as all exporters show theirs: `process_*`.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// Clock ticks a second in `/proc` (proc_pid_stat(5)): the same on every processor that we run on.
const TICKS_PER_SECOND: f64 = 100.0;

/// The kernel's facts about this process. A fact that the kernel does not tell is absent.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Process {
    /// Seconds since 1970.
    pub(super) start_time_seconds: Option<f64>,
    /// User and system time of all threads.
    pub(super) cpu_seconds: f64,
    pub(super) resident_bytes: Option<u64>,
    pub(super) open_fds: Option<u64>,
    pub(super) max_fds: Option<u64>,
}

impl Process {
    /// Reads `/proc/self`.
    pub(crate) fn read() -> Process {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/self/{file}")).ok();
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let resident = read("status").and_then(|text| field(&text, "VmRSS:"));
        Process {
            start_time_seconds: start_time(),
            cpu_seconds: Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32).as_secs_f64(),
            resident_bytes: resident.map(|kib| kib * 1024),
            // One of them is the directory that is read.
            open_fds: std::fs::read_dir("/proc/self/fd").ok().map(|all| all.count() as u64 - 1),
            max_fds: read("limits").and_then(|text| field(&text, "Max open files")),
        }
    }
}

/// The start of the process: found once, so that scrapes agree to the last digit.
fn start_time() -> Option<f64> {
    static START: OnceLock<Option<f64>> = OnceLock::new();
    *START.get_or_init(|| {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        let ticks: f64 = after_name(&stat)?.split(' ').nth(19)?.parse().ok()?;
        let booted = clock_gettime(ClockId::Boottime);
        let booted = Duration::new(booted.tv_sec as u64, booted.tv_nsec as u32);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
        let start = (now.as_secs_f64() - booted.as_secs_f64()) + ticks / TICKS_PER_SECOND;
        Some((start * 100.0).round() / 100.0)
    })
}

/// The fields after the process's name, which may hold anything: from the third on.
fn after_name(stat: &str) -> Option<&str> {
    Some(stat.rsplit_once(") ")?.1)
}

/// The number after a word at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_read() {
        let _more = std::fs::File::open("/proc/self/stat").unwrap();
        let before = Process::read();
        let _one_more = std::fs::File::open("/proc/self/stat").unwrap();
        let process = Process::read();
        assert!(process.open_fds.unwrap() > 3 && before.open_fds.unwrap() > 3);
        assert!(process.open_fds.unwrap() <= process.max_fds.unwrap());
        assert!(process.resident_bytes.unwrap() > 1 << 20, "{process:?}");
        assert!(process.cpu_seconds > 0.0 && process.cpu_seconds >= before.cpu_seconds);
        assert_eq!(process.start_time_seconds, before.start_time_seconds);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - process.start_time_seconds.unwrap();
        assert!((-0.1..3600.0).contains(&age), "{age}");
    }

    #[test]
    fn a_name_with_brackets_moves_no_field() {
        assert_eq!(after_name("1 (a) b (c)) S 2 3"), Some("S 2 3"));
        assert_eq!(field("a: 1\nVmRSS:\t  12 kB\n", "VmRSS:"), Some(12));
        assert_eq!(field("", "VmRSS:"), None);
    }
}
