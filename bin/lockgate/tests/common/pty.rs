//! A command on a terminal of its own: a pseudo-terminal whose other end is the test.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

/// Time after which a test gives up.
const LIMIT: Duration = Duration::from_secs(60);
/// Ctrl-C, which the terminal turns into SIGINT.
pub(crate) const CTRL_C: &str = "\x03";
/// Ctrl-D, which the terminal turns into the end of the input.
pub(crate) const CTRL_D: &str = "\x04";

/// A command that runs on a terminal of 24 lines and 80 columns.
pub(crate) struct Session {
    child: Child,
    test_end: File,
    terminal: OwnedFd,
    before: Termios,
    shown: String,
}

impl Session {
    /// Starts `lockgate` with these words in a directory, as the foreground process of a new
    /// session. `environment` is added to the test's own, without `NO_COLOR`.
    pub(crate) fn start<W: AsRef<OsStr>>(
        directory: &Path,
        words: impl IntoIterator<Item = W>,
        environment: &[(&str, &str)],
    ) -> Session {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let test_end = openpt(flags).unwrap();
        grantpt(&test_end).unwrap();
        unlockpt(&test_end).unwrap();
        let terminal = ioctl_tiocgptpeer(&test_end, flags).unwrap();
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&terminal, size).unwrap();
        let before = tcgetattr(&terminal).unwrap();
        let end = || terminal.try_clone().unwrap();
        // Becomes the command itself, once the terminal is that of its session. Ctrl-C works even
        // if the tests run in the background of a script, where SIGINT is ignored.
        let mut command = Command::new("setsid");
        command.args(["--ctty", "env", "--default-signal=INT"]);
        command.arg(env!("CARGO_BIN_EXE_lockgate")).args(words);
        command.current_dir(directory).env_remove("NO_COLOR").env("TERM", "xterm");
        command.envs(environment.iter().copied());
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        Session { child, test_end: test_end.into(), terminal, before, shown: String::new() }
    }

    /// Types text.
    pub(crate) fn types(&mut self, text: &str) {
        self.test_end.write_all(text.as_bytes()).unwrap();
    }

    /// Waits until the terminal shows these words, and returns everything up to them that no call
    /// returned before.
    pub(crate) fn until(&mut self, words: &str) -> String {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(place) = self.shown.find(words) {
                let rest = self.shown.split_off(place + words.len());
                return std::mem::replace(&mut self.shown, rest);
            }
            assert!(Instant::now() < end, "no {words:?} in {:?}", self.shown);
            self.read();
        }
    }

    /// Waits until the command ends; returns its status and what the terminal showed besides.
    pub(crate) fn ends(mut self) -> (ExitStatus, String) {
        let end = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < end, "it does not end: {:?}", self.shown);
            self.read();
        };
        while self.read() {}
        let after = tcgetattr(&self.terminal).unwrap();
        let modes = |modes: &Termios| {
            (modes.input_modes, modes.output_modes, modes.control_modes, modes.local_modes)
        };
        assert_eq!(modes(&self.before), modes(&after), "the terminal is as it was");
        (status, std::mem::take(&mut self.shown))
    }

    /// Reads what the command wrote, for a moment; returns whether that was anything.
    fn read(&mut self) -> bool {
        let moment = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        let mut ready = [PollFd::new(&self.test_end, PollFlags::IN)];
        if poll(&mut ready, Some(&moment)).unwrap_or(0) == 0 {
            return false;
        }
        let mut bytes = [0; 4096];
        let length = self.test_end.read(&mut bytes).unwrap();
        self.shown.push_str(&String::from_utf8_lossy(&bytes[..length]));
        true
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
