//! Processes of one unit, and a notify socket that plays the service manager's store.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use key_memory::{KeptMemory, RecordKey, StoredMemory, start};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

const CELLS: u32 = 16;
const TEST: &str = "the_next_process_of_the_unit_finds_the_records";
/// Set for a process of the unit.
const PROCESS: &str = "KEY_MEMORY_TEST_PROCESS";
const STORE: &str = "FDSTORE=1\nFDNAME=lockgate-keys\n";
const REMOVE: &str = "FDSTOREREMOVE=1\nFDNAME=lockgate-keys\n";

/// The manager: its socket, and the directory of the socket.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    _directory: tempfile::TempDir,
}

/// A message to the manager.
struct Message {
    text: String,
    descriptors: Vec<OwnedFd>,
}

impl Manager {
    fn new() -> Manager {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        Manager { socket, path, _directory: directory }
    }

    fn receive(&self) -> Message {
        let mut buffer = [0; 256];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut buffer)];
        let received =
            recvmsg(&self.socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
        let rights = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptors = rights.flatten().collect();
        let text = String::from_utf8(buffer[..received.bytes].to_vec()).unwrap();
        Message { text, descriptors }
    }

    /// Runs a process of the unit to its SIGKILL, with a stored descriptor at each of these names.
    fn run_process(&self, stored: &OwnedFd, names: &str) -> String {
        let descriptors = names.split_terminator(':').count();
        let copies = ["", "3<&0", "3<&0 4<&0"][descriptors];
        let script = format!("LISTEN_PID=$$ exec \"$0\" \"$@\" {copies}");
        let mut process = Command::new("sh");
        if descriptors > 0 {
            process.env("LISTEN_FDS", descriptors.to_string()).env("LISTEN_FDNAMES", names);
        }
        let output = process
            .args(["-c", &script])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture"])
            .env(PROCESS, "1")
            .env("NOTIFY_SOCKET", &self.path)
            .stdin(Stdio::from(stored.as_fd().try_clone_to_owned().unwrap()))
            .output()
            .unwrap();
        assert!(!output.status.success(), "the process ends by SIGKILL");
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        let report = text.split_once("unit:").unwrap_or_else(|| panic!("no report: {errors}"));
        report.1.lines().next().unwrap().trim().to_owned()
    }
}

fn store_one(memory: &mut StoredMemory) {
    let id = memory.records().len() as u64;
    memory.store(RecordKey { kind: 1, id }, b"a key").unwrap();
}

/// A process of the unit: reports its memory, stores one record more, and is killed.
fn play_process() -> ! {
    match start(CELLS).unwrap() {
        KeptMemory::Restored(mut memory) => {
            println!("unit: restored {}", memory.records().len());
            store_one(&mut memory);
        }
        KeptMemory::Created { mut memory, refused } => {
            println!("unit: created, refused {}", refused.len());
            store_one(&mut memory);
        }
    }
    assert!(start(CELLS).is_err(), "a second start owns no descriptor");
    let pid = rustix::process::getpid();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    unreachable!("killed")
}

#[test]
fn the_next_process_of_the_unit_finds_the_records() {
    if std::env::var_os(PROCESS).is_some() {
        play_process();
    }
    let manager = Manager::new();
    let nothing: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    assert_eq!(manager.run_process(&nothing, ""), "created, refused 0");
    let mut message = manager.receive();
    assert_eq!((message.text.as_str(), message.descriptors.len()), (STORE, 1));
    let stored = message.descriptors.remove(0);
    assert_eq!(manager.run_process(&stored, "lockgate-keys"), "restored 1");
    assert_eq!(manager.run_process(&stored, "socket:lockgate-keys"), "restored 2");

    // Two memories of one name: no record is used, and each one is erased.
    let names = "lockgate-keys:lockgate-keys";
    assert_eq!(manager.run_process(&stored, names), "created, refused 2");
    assert!(StoredMemory::open(stored, CELLS).unwrap().records().is_empty());
    assert_eq!([manager.receive().text, manager.receive().text], [REMOVE, STORE]);

    // A descriptor that is no memory.
    assert_eq!(manager.run_process(&nothing, "lockgate-keys"), "created, refused 1");
    assert_eq!([manager.receive().text, manager.receive().text], [REMOVE, STORE]);
}

#[test]
fn a_process_without_a_manager_has_no_memory() {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        assert!(matches!(start(CELLS), Err(key_memory::NoMemory::NoManager)));
    }
}
