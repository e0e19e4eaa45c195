//! A run file that somebody makes shorter under a daemon: the daemon ends with a message, its ports
//! stay closed, and no sequence number comes twice.

use std::time::Duration;

use net::{AGAIN, running};
use netlab::Gateways;
use netlab::ping::Ping;
use netlab::sites::Plan;

/// Returns whether site 1 reaches site 2.
fn crosses(gateways: &Gateways) -> bool {
    let to = gateways.site(2).host_v4();
    let ping = Ping::new(&to, 5);
    ping.run(&gateways.site(1).host).unwrap().received > 0
}

/// Cuts the run file of gateway 1 under its daemon, which has to end, and starts it again.
fn cut(gateways: &mut Gateways, bytes: u64) {
    let path = gateways.file(1).run_dir().join("keystate");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(bytes).unwrap();
    let ended = gateways.take(1).unwrap().finish(AGAIN).unwrap();
    assert_eq!(ended.status.code(), Some(3), "{:?}: {}", ended.status, ended.stderr);
    let text = "keystate was truncated while lockgated used it";
    assert!(ended.stderr.contains(text), "{}", ended.stderr);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    assert!(!crosses(gateways), "ports are closed");
    gateways.start(1).unwrap();
    std::thread::sleep(Duration::from_millis(500));
}

fn cut_to(test: &str, bytes: u64) {
    let Some(mut lab) = running(test, Plan::default()) else { return };
    // Fails if a number comes twice.
    lab.hunt(|gateways| cut(gateways, bytes));
    let said = lab.gateways.daemon(1).unwrap().log();
    let goes_on = crosses(&lab.gateways);
    println!("cut to {bytes} bytes: it goes on behind its reservation: {goes_on}");
    assert!(goes_on || said.contains("is not used, because of its key"), "{said}");
}

#[test]
fn a_run_file_of_no_bytes_ends_the_daemon_with_a_message() {
    cut_to("cut_to_nothing", 0);
}

#[test]
fn a_run_file_cut_amid_the_words_of_an_sa_ends_the_daemon_with_a_message() {
    // The first place: behind its state and key, before its number.
    cut_to("cut_amid_an_sa", 4096 + 44);
}
