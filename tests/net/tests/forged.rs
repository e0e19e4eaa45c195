//! Frames that anybody on the link can send, while the daemon is busy: none ends it.

use netlab::Scope;
use netlab::capture::esp_frames_to;
use netlab::inject::inject;
use netlab::ping::Ping;
use netlab::sites::Plan;

/// Bytes of the link header, and of IPv4's behind it.
const LINK_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;

/// A frame that no fast path takes, and behind it in one batch ESP that opens with no key. Once the
/// second frame's place in the batch was that of a frame which was another's by then.
#[test]
fn forged_esp_behind_an_uncommon_frame_ends_nothing() {
    let Some(mut lab) = net::running("forged", Plan::default()) else { return };
    lab.flows_again();
    let capture = lab.gateways.capture(Scope::Whole).unwrap();
    Ping::new(&lab.gateways.site(1).host_v4(), 5).run(&lab.gateways.site(2).host).unwrap();
    let frames = esp_frames_to(&capture.stop().unwrap(), "192.0.2.1".parse().unwrap()).unwrap();
    let mut forged = frames[0].clone();
    // Ahead of the window, and with another ICV.
    forged[LINK_BYTES + IPV4_BYTES + 6] = 9;
    *forged.last_mut().unwrap() ^= 1;
    let mut uncommon = frames[0].clone();
    uncommon[12] = 0x88;
    for _ in 0..10 {
        let (wire, port) = (&lab.gateways.sites.wire, lab.gateways.site(1).wire_port());
        // Both lie in the ring when it goes on.
        lab.gateways.daemon(1).unwrap().pause();
        inject(wire, &port, &[uncommon.clone(), forged.clone()]).unwrap();
        lab.gateways.daemon(1).unwrap().resume();
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(lab.gateways.daemon_mut(1).unwrap().is_running(), "{}", lab.logs());
    lab.flows_again();
}
