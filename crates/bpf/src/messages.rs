//! Catches libbpf's messages for this crate's errors.
//!
//! libbpf writes warnings (the verifier's log and the kernel's own words about a refused netlink
//! request among them) to one callback per process, on the thread that called it. The callback here
//! keeps them for that thread; a program is loaded and attached seldom.

use std::cell::RefCell;
use std::sync::Once;

use libbpf_rs::{PrintLevel, set_print};

/// Lines of the verifier's log that an error carries.
const LOG_LINES: usize = 12;

thread_local! {
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs `work` and returns libbpf's messages meanwhile beside its result.
pub(crate) fn with_messages<T>(work: impl FnOnce() -> T) -> (T, Messages) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        set_print(Some((PrintLevel::Warn, |_, text| {
            SAID.with_borrow_mut(|said| said.push_str(&text));
        })));
    });
    SAID.with_borrow_mut(String::clear);
    let result = work();
    (result, Messages(SAID.take()))
}

/// The messages that libbpf wrote during a call.
pub(crate) struct Messages(String);

impl Messages {
    /// The last lines of the verifier's log, if it wrote one.
    pub(crate) fn verifier_log(&self) -> Option<String> {
        let (_, rest) = self.0.split_once("BEGIN PROG LOAD LOG --")?;
        let log = rest.split_once("-- END PROG LOAD LOG").map_or(rest, |(log, _)| log);
        let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
        Some(lines[lines.len().saturating_sub(LOG_LINES)..].join("\n"))
    }

    /// The kernel's own words about a refused netlink request.
    pub(crate) fn kernel(&self) -> Option<String> {
        let (_, rest) = self.0.split_once("Kernel error message: ")?;
        rest.lines().next().map(|line| line.trim().to_owned())
    }

    /// The last line of all.
    pub(crate) fn last(&self) -> Option<String> {
        let line = self.0.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(line.trim().trim_start_matches("libbpf: ").to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verifiers_last_lines_are_found() {
        let log: String = (0..40).map(|i| format!("{i}: (b7) r0 = 0\n")).collect();
        let said = format!(
            "libbpf: prog 'x': BPF program load failed: -22\nlibbpf: prog 'x': -- BEGIN PROG LOAD \
             LOG --\n{log}processed 40 insns\n-- END PROG LOAD LOG --\nlibbpf: failed\n"
        );
        let log = Messages(said).verifier_log().unwrap();
        assert_eq!(log.lines().count(), LOG_LINES);
        assert!(log.ends_with("processed 40 insns"), "{log}");
        assert_eq!(Messages("libbpf: failed\n".to_owned()).verifier_log(), None);
    }

    #[test]
    fn the_kernels_words_are_found() {
        let said = "libbpf: Kernel error message: Peer MTU is too large to set XDP\n";
        let words = Messages(said.to_owned()).kernel();
        assert_eq!(words.as_deref(), Some("Peer MTU is too large to set XDP"));
    }
}
