//! Local users without the right to change anything: readers of the API and of the metrics.
//!
//! The API knows a reader by the socket's rights. The laboratory opens the socket for everybody,
//! and readers run as user nobody.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use net::Lab;

/// Address of the metrics.
pub(crate) const METRICS: &str = "127.0.0.1:9617";
/// Programs or threads of a reader at a time.
const READERS: usize = 4;
/// Unread streams at a time.
const STREAMS: usize = 12;
/// Time from the start of a client to its stop, within which the stream begins.
const BEGINNING: Duration = Duration::from_millis(200);
/// Time of unread streams.
const UNREAD: Duration = Duration::from_secs(3);
/// Values in the giant configuration, two bytes each.
const VALUES: usize = 4_000_000;
/// User and group `nobody`.
const NOBODY: u32 = 65_534;
/// Longest time of an attack.
const LIMIT: Duration = Duration::from_secs(60);

/// Reads the metrics again and again.
pub(crate) fn read_metrics(lab: &Lab, stop: &AtomicBool) -> u64 {
    let read = AtomicU64::new(0);
    let end = Instant::now() + LIMIT;
    let gateway = &lab.gateways.site(1).gateway;
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                let repeat = || {
                    while !stop.load(Ordering::Relaxed) && Instant::now() < end {
                        match read_metrics_once() {
                            Ok(()) => read.fetch_add(1, Ordering::Relaxed),
                            // Refused for now: the client tries again, and keeps no core busy.
                            Err(_) => {
                                std::thread::sleep(Duration::from_millis(1));
                                0
                            }
                        };
                    }
                };
                gateway.enter(repeat).unwrap();
            });
        }
    });
    read.into_inner()
}

fn read_metrics_once() -> std::io::Result<()> {
    let mut stream = TcpStream::connect(METRICS)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    match answer.starts_with(b"HTTP/1.1 200") {
        true => Ok(()),
        false => Err(std::io::ErrorKind::ConnectionRefused.into()),
    }
}

/// A reader's programs. Dropped, the programs end.
struct Clients {
    children: Vec<Child>,
}

impl Drop for Clients {
    fn drop(&mut self) {
        for child in &mut self.children {
            // The program may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Opens streams of long lists and leaves the streams unread, round after round. Returns the
/// number of streams.
pub(crate) fn leave_unread(lab: &Lab, stop: &AtomicBool) -> u64 {
    let lockgate = admit_readers(lab);
    let end = Instant::now() + LIMIT;
    let mut streams = 0;
    while !stop.load(Ordering::Relaxed) && Instant::now() < end {
        let children = (0..STREAMS).map(|_| {
            let mut command = reader(lab, &lockgate, &["show", "policy"]);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
            command.spawn().unwrap()
        });
        let clients = Clients { children: children.collect() };
        std::thread::sleep(BEGINNING);
        for child in &clients.children {
            // A refused client has ended.
            let _ = Command::new("kill").args(["-STOP", &child.id().to_string()]).status();
        }
        streams += clients.children.len() as u64;
        wait(stop, UNREAD);
    }
    streams
}

/// Compares the running configuration with a giant configuration, again and again. Returns the
/// number of comparisons.
pub(crate) fn compare_giant(lab: &Lab, stop: &AtomicBool) -> u64 {
    let lockgate = admit_readers(lab);
    let file = lab.gateways.directory().join("giant.toml");
    let values = "1,".repeat(VALUES);
    let text = format!(
        "[node]\nname = \"a\"\n[port.lan]\nnetdev = \"e\"\nside = \"protected\"\n\
         addresses = [{values}]\n"
    );
    std::fs::write(&file, text).unwrap();
    set_mode(&file, 0o644);
    let end = Instant::now() + LIMIT;
    let mut comparisons = 0;
    while !stop.load(Ordering::Relaxed) && Instant::now() < end {
        let mut command = reader(lab, &lockgate, &["diff", &file.display().to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut clients = Clients { children: vec![command.spawn().unwrap()] };
        while matches!(clients.children[0].try_wait(), Ok(None)) && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
        comparisons += 1;
    }
    comparisons
}

fn wait(stop: &AtomicBool, time: Duration) {
    let end = Instant::now() + time;
    while !stop.load(Ordering::Relaxed) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Gives everybody the rights of a reader, and returns an executable for everybody.
fn admit_readers(lab: &Lab) -> PathBuf {
    let gateways = &lab.gateways;
    let socket = gateways.file(1).socket();
    let run_dir = gateways.file(1).run_dir();
    let gateway_directory = run_dir.parent().expect("it lies in the gateway's directory");
    for directory in [gateways.directory(), gateway_directory, &run_dir] {
        set_mode(directory, 0o711);
    }
    set_mode(&socket, 0o666);
    let lockgate = gateways.directory().join("lockgate");
    net::copy_program(&gateways.programs.lockgate, &lockgate);
    set_mode(&lockgate, 0o755);
    lockgate
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// The operator's command, executed by user nobody.
fn reader(lab: &Lab, lockgate: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(lockgate);
    command.arg("--socket").arg(lab.gateways.file(1).socket()).args(words);
    command.uid(NOBODY).gid(NOBODY).current_dir("/");
    command
}
