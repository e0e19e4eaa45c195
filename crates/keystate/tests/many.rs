//! Many SAs: ten thousand new keys, and the start after SIGKILL. Prints the times; no test depends
//! on them.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use ipsec::{Fingerprint, KeyMaterial, ReplayWindow, SequenceCounter, SequenceNumbers, Spi, Suite};
use keystate::{HostIdentity, KeyFileFacts, KeyState, RESERVATION_STEP};

const NUMBERS: SequenceNumbers = SequenceNumbers::Extended;

fn key(seed: u32) -> Fingerprint {
    let mut bytes = [7; 20];
    bytes[..4].copy_from_slice(&seed.to_be_bytes());
    KeyMaterial::new(Suite::Aes128Gcm, &bytes).unwrap().fingerprint()
}

fn open(root: &Path) -> KeyState {
    let host = HostIdentity::new("machine", "boot");
    KeyState::open_as(&root.join("run"), &root.join("state"), &host).unwrap()
}

type Taken = Vec<(Arc<SequenceCounter>, Arc<ReplayWindow>)>;

/// Takes the counter and the window of every peer, each with a key file of its own.
fn take(state: &mut KeyState, root: &Path, peers: u32) -> Taken {
    let modified = SystemTime::now();
    let one = |peer: u32| {
        let file = KeyFileFacts { path: root.join(format!("keys/{peer}.keys")), modified };
        let counter = state.outbound_later(key(2 * peer), Spi::LOWEST, NUMBERS, &file).unwrap();
        let window = state.inbound(key(2 * peer + 1), Spi::LOWEST, 64, NUMBERS).unwrap();
        (counter, window)
    };
    let taken = (0..peers).map(one).collect();
    state.top_up().unwrap();
    taken
}

/// Time that this thread has had a processor for, milliseconds.
fn processor_ms() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0u64) / 1_000_000
}

/// Number of peers: `LOCKGATE_PEERS` asks for more.
fn peers() -> u32 {
    std::env::var("LOCKGATE_PEERS").map_or(200, |text| text.parse().unwrap())
}

#[test]
fn many_keys_go_on_after_a_kill() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("keys")).unwrap();
    let (began, before) = (Instant::now(), processor_ms());
    let mut state = open(root.path());
    let taken = take(&mut state, root.path(), peers());
    let processor = processor_ms() - before;
    println!("{} peers, first start: {:?} ({processor} ms busy)", peers(), began.elapsed());
    for (number, (counter, window)) in (1..).zip(&taken) {
        counter.draw(number).whole().unwrap();
        window.commit(number.into()).unwrap();
    }
    drop((taken, state));

    let (began, before) = (Instant::now(), processor_ms());
    let mut state = open(root.path());
    let opened = began.elapsed();
    let taken = take(&mut state, root.path(), peers());
    let (processor, all) = (processor_ms() - before, began.elapsed());
    println!("start after a kill: {all:?} ({processor} ms busy), of which open {opened:?}");
    state.settle().unwrap();
    let size = |name: &str| std::fs::metadata(root.path().join(name)).unwrap().blocks() / 2;
    let [record, edges] = [size("run/keystate"), size("state/sequence/inbound")];
    println!("on disk: keystate {record} KiB, inbound {edges} KiB");
    for (number, (counter, window)) in (1..).zip(&taken) {
        assert_eq!(counter.reserved(), RESERVATION_STEP);
        assert_eq!(counter.draw(1).whole(), Ok(number + 1));
        assert_eq!(window.right_edge(), number);
    }
}
