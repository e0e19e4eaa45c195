//! Programs on real netdevs: a veth pair in a network namespace of the test's own thread, which is
//! gone with the thread.

mod common;

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bpf::{BpfError, Counter, Mode, ModeChoice, Owner, Steering, attached, detach};
use common::*;
use libbpf_rs::libbpf_sys;
use wire::build::PacketBuilder;

/// The netdev that programs are attached to, and its other end.
const DEV: &str = "lgsteer";
const PEER: &str = "lgpeer";

/// Runs a test in a network namespace of its own, with a veth pair that is up. One at a time: the
/// programs that a process knows are those of one namespace.
fn in_namespace(test: &'static str, body: impl FnOnce(u32) + Send + 'static) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let thread = thread::spawn(move || {
        // SAFETY: a system call without pointers; the thread is new and shares nothing that the
        // namespace is part of. Threat: none.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            let error = std::io::Error::last_os_error();
            return eprintln!("SKIPPED: {test}: no network namespace: {error}");
        }
        if !runs("ip", &["link", "add", DEV, "type", "veth", "peer", "name", PEER]) {
            return eprintln!("SKIPPED: {test}: no veth pair");
        }
        for netdev in [DEV, PEER] {
            let off = format!("net.ipv6.conf.{netdev}.disable_ipv6=1");
            runs("sysctl", &["-qw", &off]);
            assert!(runs("ip", &["link", "set", netdev, "up"]));
        }
        body(index_of(DEV));
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn runs(program: &str, words: &[&str]) -> bool {
    Command::new(program).args(words).status().is_ok_and(|status| status.success())
}

fn index_of(netdev: &str) -> u32 {
    let name = std::ffi::CString::new(netdev).unwrap();
    // SAFETY: a string that ends in NUL and outlives the call. Threat: a read behind it.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    assert_ne!(index, 0, "{netdev} is not there");
    index
}

/// Returns the description of the netdev by `ip`: another reader of the same facts.
fn ip_shows() -> String {
    let output = Command::new("ip").args(["-d", "link", "show", DEV]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// A packet socket on one netdev.
struct Tap(OwnedFd);

impl Tap {
    fn on(netdev: &str) -> Tap {
        let all = (libc::ETH_P_ALL as u16).to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: a system call without pointers. Threat: none.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(all)) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: the descriptor was just opened and nobody else knows it. Threat: a file of
        // another owner is closed.
        let tap = Tap(unsafe { OwnedFd::from_raw_fd(fd) });
        // SAFETY: a plain structure of integers, for which zeros are fine. Threat: no value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = all;
        address.sll_ifindex = index_of(netdev) as i32;
        let length = size_of_val(&address) as libc::socklen_t;
        let raw = tap.0.as_raw_fd();
        // SAFETY: the address is whole and outlives the call. Threat: a read behind it.
        let code = unsafe { libc::bind(raw, (&raw const address).cast(), length) };
        assert_eq!(code, 0, "{}", io::Error::last_os_error());
        tap
    }

    fn send(&self, frame: &[u8]) {
        // SAFETY: the buffer is as long as is said and outlives the call. Threat: a read behind it.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", io::Error::last_os_error());
    }

    /// Returns whether this frame arrives within `limit`.
    fn hears(&self, frame: &[u8], limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let mut buffer = [0u8; 2048];
        while Instant::now() < end {
            // SAFETY: the buffer is as long as is said and outlives the call. Threat: a write
            // behind it.
            let received = unsafe {
                let (at, flags) = (buffer.as_mut_ptr().cast(), libc::MSG_DONTWAIT);
                libc::recv(self.0.as_raw_fd(), at, buffer.len(), flags)
            };
            match usize::try_from(received) {
                Ok(length) if buffer[..length] == *frame => return true,
                Ok(_) => {}
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        }
        false
    }
}

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(150);

fn arp() -> Vec<u8> {
    let mut frame = [[0xff; 6], OTHER_MAC].concat();
    frame.extend([8, 6]);
    frame.resize(60, 0);
    frame
}

fn forwarded(number: u16) -> Vec<u8> {
    let packet = PacketBuilder::v4("10.1.0.5", "10.2.0.1").udp(number, 9).payload_of(30);
    packet.frame(LAN_MAC, OTHER_MAC, None)
}

/// Waits until a program has counted so many frames.
fn wait_for(steering: &Steering, counter: Counter, frames: u64) {
    let end = Instant::now() + LONG;
    loop {
        let counters = steering.counters().unwrap();
        if counters.of(counter) >= frames {
            return assert_eq!(counters.of(counter), frames, "{counters:?}");
        }
        assert!(Instant::now() < end, "{} frames of {}: {counters:?}", frames, counter.name());
        thread::sleep(Duration::from_millis(1));
    }
}

fn carries_frames(steering: &Steering) {
    let (peer, tap) = (Tap::on(PEER), Tap::on(DEV));
    let before = steering.counters().unwrap();
    peer.send(&arp());
    assert!(tap.hears(&arp(), LONG), "ARP does not reach Linux");
    peer.send(&forwarded(1));
    wait_for(steering, Counter::ToWorker, before.of(Counter::ToWorker) + 1);
    assert!(!tap.hears(&forwarded(1), SHORT), "a packet for the worker reached Linux");
}

/// An XDP program of somebody else's, attached in this mode.
fn attach_foreign(ifindex: u32, flags: u32) -> OwnedFd {
    // r0 = XDP_PASS; exit
    let mut pass = [libbpf_sys::bpf_insn::default(); 2];
    pass[0].code = 0xb7;
    pass[0].imm = 2;
    pass[1].code = 0x95;
    let kind = libbpf_sys::BPF_PROG_TYPE_XDP;
    let (name, license) = (c"not_ours", c"GPL");
    // SAFETY: the strings end in NUL, the instructions are as many as is said, no options are
    // given, and all outlive the call. Threat: a read behind them.
    let fd = unsafe {
        let (name, license) = (name.as_ptr(), license.as_ptr());
        libbpf_sys::bpf_prog_load(kind, name, license, pass.as_ptr(), 2, std::ptr::null_mut())
    };
    assert!(fd >= 0, "{}", io::Error::from_raw_os_error(-fd));
    // SAFETY: no options are given; the descriptor is open. Threat: none.
    let code = unsafe { libbpf_sys::bpf_xdp_attach(ifindex as i32, fd, flags, std::ptr::null()) };
    assert_eq!(code, 0, "{}", io::Error::from_raw_os_error(-code));
    // SAFETY: the descriptor was just opened and nobody else knows it. Threat: a file of
    // another owner is closed.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[test]
fn on_veth_it_is_native_replaced_in_one_step_and_detached() {
    // AX-39
    let Some((first, _socket)) = steering("native") else { return };
    in_namespace("native", move |ifindex| {
        assert_eq!(attached(ifindex).unwrap(), None);
        assert!(!detach(ifindex).unwrap());
        let done = first.attach(ifindex).unwrap();
        assert_eq!((done.mode, done.replaced), (Mode::Native, false));
        assert!(done.native_refused.is_none(), "{:?}", done.native_refused);
        carries_frames(&first);

        let old = attached(ifindex).unwrap().expect("a program");
        assert_eq!((old.owner, old.mode), (Owner::Lockgate, Mode::Native));
        assert_eq!(old.name, bpf::PROGRAM);
        assert!(ip_shows().contains(&format!("prog/xdp id {}", old.id)), "{}", ip_shows());

        let (second, _socket) = steering("native").expect("the first could be loaded");
        let done = second.attach(ifindex).unwrap();
        assert_eq!((done.mode, done.replaced), (Mode::Native, true));
        let new = attached(ifindex).unwrap().expect("a program");
        assert_ne!(new.id, old.id);
        let before = first.counters().unwrap();
        carries_frames(&second);
        assert_eq!(first.counters().unwrap(), before);

        // Again, in its own place.
        assert!(second.attach(ifindex).unwrap().replaced);
        assert_eq!(attached(ifindex).unwrap().map(|program| program.id), Some(new.id));
        assert!(detach(ifindex).unwrap());
        assert_eq!(attached(ifindex).unwrap(), None);
        let (peer, tap) = (Tap::on(PEER), Tap::on(DEV));
        peer.send(&forwarded(7));
        assert!(tap.hears(&forwarded(7), LONG), "a detached port does not carry frames");
    });
}

/// A daemon's life: it looks at what an earlier run left, gives privileges away, and goes on.
#[test]
fn without_cap_sys_admin_what_was_seen_before_is_known_replaced_and_detached() {
    use caps::{CapSet, Capability, CapsHashSet};
    let Some((first, _socket)) = steering("unprivileged") else { return };
    let (second, _socket) = steering("unprivileged").expect("the first could be loaded");
    in_namespace("unprivileged", move |ifindex| {
        first.attach(ifindex).unwrap();
        let kept = [Capability::CAP_NET_ADMIN, Capability::CAP_NET_RAW];
        let kept = kept.into_iter().chain([Capability::CAP_BPF, Capability::CAP_PERFMON]);
        let kept: CapsHashSet = kept.collect();
        caps::set(None, CapSet::Effective, &kept).unwrap();
        caps::set(None, CapSet::Permitted, &kept).unwrap();
        let old = attached(ifindex).unwrap().expect("a program");
        assert_eq!(old.owner, Owner::Lockgate);
        assert!(second.attach(ifindex).unwrap().replaced);
        assert_ne!(attached(ifindex).unwrap().map(|program| program.id), Some(old.id));
        assert!(detach(ifindex).unwrap());
        assert_eq!(attached(ifindex).unwrap(), None);
    });
}

#[test]
fn no_frame_is_missed_while_programs_are_replaced() {
    let Some((first, socket)) = steering("replacing") else { return };
    in_namespace("replacing", move |ifindex| {
        first.attach(ifindex).unwrap();
        let mut all = vec![(first, socket)];
        let (peer, tap) = (Tap::on(PEER), Tap::on(DEV));
        let mut sent = 0;
        for round in 0..20u64 {
            for _ in 0..50 {
                sent += 1;
                peer.send(&forwarded(sent as u16));
            }
            let next = steering("replacing").expect("the first could be loaded");
            assert!(next.0.attach(ifindex).unwrap().replaced, "round {round}");
            all.push(next);
        }
        let end = Instant::now() + LONG;
        let seen = || all.iter().map(|(s, _)| s.counters().unwrap().received()).sum::<u64>();
        while seen() < sent && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(seen(), sent);
        for number in [1, 500, 1000] {
            assert!(!tap.hears(&forwarded(number), Duration::from_millis(20)));
        }
    });
}

#[test]
fn what_refuses_native_gets_generic_and_says_why() {
    // AX-39
    let Some((first, _socket)) = steering("generic") else { return };
    in_namespace("generic", move |ifindex| {
        assert!(runs("ip", &["link", "set", PEER, "mtu", "9000"]));
        let done = first.attach(ifindex).unwrap();
        assert_eq!((done.mode, done.replaced), (Mode::Generic, false));
        let refused = done.native_refused.expect("a reason");
        assert!(refused.to_string().contains("MTU"), "{refused}");
        carries_frames(&first);
        // What could be native now stays where it is: replaced in one step, never detached.
        assert!(runs("ip", &["link", "set", PEER, "mtu", "1500"]));
        let (second, _socket) = steering("generic").expect("the first could be loaded");
        let done = second.attach(ifindex).unwrap();
        assert_eq!((done.mode, done.replaced), (Mode::Generic, true));
        carries_frames(&second);
        assert!(detach(ifindex).unwrap());
        assert_eq!(attached(ifindex).unwrap(), None);
    });
}

#[test]
fn a_mode_that_was_chosen_is_taken_or_refused_and_no_other_is() {
    // AX-39
    let Some((first, _socket)) = steering("chosen") else { return };
    in_namespace("chosen", move |ifindex| {
        assert!(runs("ip", &["link", "set", PEER, "mtu", "9000"]));
        let refused = first.attach_in(ifindex, ModeChoice::Native).unwrap_err();
        assert!(matches!(refused, BpfError::ModeRefused { mode: Mode::Native, .. }), "{refused}");
        let text = refused.to_string();
        assert!(text.contains("MTU") && text.contains("xdp = \"auto\""), "{text}");
        assert_eq!(attached(ifindex).unwrap(), None);
        assert!(runs("ip", &["link", "set", PEER, "mtu", "1500"]));

        // Generic though the driver could.
        let done = first.attach_in(ifindex, ModeChoice::Generic).unwrap();
        assert_eq!((done.mode, done.replaced), (Mode::Generic, false));
        assert!(done.native_refused.is_none(), "{:?}", done.native_refused);
        carries_frames(&first);
        let old = attached(ifindex).unwrap().expect("a program");

        // The other mode cannot take its place: it stays, and the way out works.
        let (second, _socket) = steering("chosen").expect("the first could be loaded");
        let refused = second.attach_in(ifindex, ModeChoice::Native).unwrap_err();
        assert!(matches!(refused, BpfError::OtherMode { mode: Mode::Generic, .. }), "{refused}");
        assert!(refused.to_string().contains("ip link set DEV xdpgeneric off"), "{refused}");
        assert_eq!(attached(ifindex).unwrap().as_ref(), Some(&old));
        carries_frames(&first);
        assert!(runs("ip", &["link", "set", DEV, Mode::Generic.ip_word(), "off"]));
        let done = second.attach_in(ifindex, ModeChoice::Native).unwrap();
        assert_eq!((done.mode, done.replaced), (Mode::Native, false));
        carries_frames(&second);
        let refused = first.attach_in(ifindex, ModeChoice::Generic).unwrap_err();
        assert!(refused.to_string().contains("ip link set DEV xdpdrv off"), "{refused}");
        assert!(first.attach_in(ifindex, ModeChoice::Auto).unwrap().replaced);
        assert!(runs("ip", &["link", "set", DEV, Mode::Native.ip_word(), "off"]));
        assert_eq!(attached(ifindex).unwrap(), None);
    });
}

#[test]
fn a_foreign_program_stays() {
    let Some((ours, _socket)) = steering("foreign") else { return };
    in_namespace("foreign", move |ifindex| {
        for (flags, mode) in [
            (libbpf_sys::XDP_FLAGS_DRV_MODE, Mode::Native),
            (libbpf_sys::XDP_FLAGS_SKB_MODE, Mode::Generic),
        ] {
            drop(attach_foreign(ifindex, flags));
            let theirs = attached(ifindex).unwrap().expect("a program");
            assert_eq!((theirs.owner, theirs.mode), (Owner::Foreign, mode));
            for refused in [ours.attach(ifindex).map(|_| ()), detach(ifindex).map(|_| ())] {
                match refused {
                    Err(BpfError::Foreign { name, id, .. }) => {
                        assert_eq!((name.as_str(), id), ("not_ours", theirs.id));
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(attached(ifindex).unwrap(), Some(theirs));
            assert!(runs("ip", &["link", "set", DEV, "xdp", "off"]));
        }
    });
}

#[test]
fn a_program_outlives_its_process_and_closes_the_port() {
    let Some((steering, socket)) = steering("outliving") else { return };
    in_namespace("outliving", move |ifindex| {
        steering.attach(ifindex).unwrap();
        let (peer, tap) = (Tap::on(PEER), Tap::on(DEV));
        drop(socket);
        peer.send(&forwarded(1));
        wait_for(&steering, Counter::NoSocket, 1);
        // All descriptors are closed now: what is left is what the kernel keeps.
        drop(steering);
        let left = attached(ifindex).unwrap().expect("a program");
        assert_eq!(left.owner, Owner::Lockgate);
        peer.send(&forwarded(2));
        peer.send(&arp());
        assert!(tap.hears(&arp(), LONG), "ARP does not reach Linux");
        peer.send(&forwarded(2));
        assert!(!tap.hears(&forwarded(2), SHORT), "the port is open");
        assert!(detach(ifindex).unwrap());
        peer.send(&forwarded(3));
        assert!(tap.hears(&forwarded(3), LONG), "a detached port does not carry frames");
    });
}

#[test]
fn a_netdev_that_is_not_there_is_named() {
    let Some((steering, _socket)) = steering("no netdev") else { return };
    in_namespace("no netdev", move |ifindex| {
        let gone = ifindex + 100;
        let refused = steering.attach(gone);
        assert!(matches!(refused, Err(BpfError::NoDevice { ifindex }) if ifindex == gone));
        assert_eq!(attached(gone).unwrap(), None);
        assert!(!detach(gone).unwrap());
    });
}
