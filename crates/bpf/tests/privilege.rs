//! Without privileges: refused with what is missing.

use std::thread;

use bpf::{BpfError, Finding, Steering};

/// Nobody's user id.
const NOBODY: libc::c_long = 65_534;

#[test]
fn without_capabilities_it_says_which_are_missing() {
    let thread = thread::spawn(|| {
        // SAFETY: a system call without pointers. Unlike libc's function it changes this thread
        // only. Threat: none.
        let code = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
        if code != 0 {
            return eprintln!("SKIPPED: without capabilities: {}", std::io::Error::last_os_error());
        }
        let error = match Steering::load(0, 0) {
            Ok(_) => panic!("loaded by nobody"),
            Err(error) => error,
        };
        assert!(matches!(error, BpfError::NotPermitted { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("CAP_BPF") && text.contains("CAP_NET_ADMIN"), "{text}");
        let features = bpf::probe();
        for name in ["capabilities", "XDP", "AF_XDP", "steering program"] {
            let feature = features.iter().find(|feature| feature.name == name).unwrap();
            assert!(matches!(feature.finding, Finding::Missing { .. }), "{feature:?}");
        }
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}
