//! One network namespace: commands, threads and settings inside it.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::LabError;
use crate::process::{self, Finished, Interruption, Running};

/// Time for a command that only changes settings.
pub(crate) const SETTING: Duration = Duration::from_secs(60);

/// A network namespace of ours. Dropping it ends what still runs in it and deletes it.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes a namespace with loopback up and no waiting for duplicate addresses.
    pub(crate) fn new(name: String) -> Result<Namespace, LabError> {
        let mut command = ip();
        command.args(["netns", "add", &name]);
        process::succeed(command, SETTING)?;
        let namespace = Namespace { name };
        namespace.set("net/ipv6/conf/all/accept_dad", "0")?;
        namespace.set("net/ipv6/conf/default/accept_dad", "0")?;
        namespace.set("net/ipv6/conf/default/router_solicitations", "0")?;
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Its name, as `ip netns` lists it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A program that will run inside. It keeps the process id: `ip` replaces itself.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = ip();
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs a program inside to its end, however it ends.
    ///
    /// # Errors
    /// As [`process::run`].
    pub fn run(&self, words: &[&str], limit: Duration) -> Result<Finished, LabError> {
        let mut command = self.command(words[0]);
        command.args(&words[1..]);
        process::run(command, limit)
    }

    /// Starts a program inside.
    ///
    /// # Errors
    /// As [`Running::start`].
    pub fn start(&self, words: &[&str]) -> Result<Running, LabError> {
        let mut command = self.command(words[0]);
        command.args(&words[1..]);
        Running::start(command)
    }

    /// Runs `ip` inside with each line of `lines`, in order; stops at the first that fails.
    ///
    /// # Errors
    /// [`LabError::Failed`] and what else [`process::succeed`] says.
    pub fn ip(&self, lines: &str) -> Result<(), LabError> {
        let mut command = ip();
        command.args(["-n", &self.name, "-batch", "-"]);
        process::succeed_with_input(command, lines, SETTING).map(drop)
    }

    /// Runs `ip -json` inside and returns its answer.
    ///
    /// # Errors
    /// As [`process::succeed`], and [`LabError::Answer`].
    pub fn ip_json(&self, words: &[&str]) -> Result<serde_json::Value, LabError> {
        let mut command = ip();
        command.args(["-n", &self.name, "-json"]).args(words);
        let text = process::display(&command);
        let answer = process::succeed(command, SETTING)?;
        serde_json::from_str(&answer).map_err(|_| LabError::Answer { command: text, answer })
    }

    /// Sets `/proc/sys/KEY` inside, `net/ipv4/ip_forward` for example.
    ///
    /// # Errors
    /// [`LabError::File`].
    pub fn set(&self, key: &str, value: &str) -> Result<(), LabError> {
        let path = std::path::Path::new("/proc/sys").join(key);
        self.enter(|| std::fs::write(&path, value).map_err(LabError::file(&path)))?
    }

    /// Switches transmit offload of an interface off, and with it segmentation offload: endpoints
    /// behind AF_XDP or XDP need it, and no wire carries what veth passes with it.
    ///
    /// # Errors
    /// As [`process::succeed`].
    pub fn offload_off(&self, interface: &str) -> Result<(), LabError> {
        self.run(&["ethtool", "-K", interface, "tx", "off"], SETTING)?.success().map(drop)
    }

    /// Switches transmit offload of an interface on, as a new veth has it: the sender leaves TCP
    /// and UDP checksums unfinished.
    ///
    /// # Errors
    /// As [`process::succeed`].
    pub fn offload_on(&self, interface: &str) -> Result<(), LabError> {
        self.run(&["ethtool", "-K", interface, "tx", "on"], SETTING)?.success().map(drop)
    }

    /// Runs `inside` on a thread of its own that has moved into the namespace, and waits for it.
    /// Sockets opened there stay in the namespace wherever they are used later. `/sys` is still
    /// that of the caller's.
    ///
    /// # Errors
    /// [`LabError::File`] or [`LabError::Socket`] if the namespace cannot be entered.
    ///
    /// # Panics
    /// If `inside` does.
    pub fn enter<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        let path = std::path::Path::new("/run/netns").join(&self.name);
        let file = File::open(&path).map_err(LabError::file(path))?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                    .map_err(|error| LabError::socket("cannot enter a namespace")(error.into()))?;
                Ok(inside())
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

fn ip() -> Command {
    Command::new(crate::programs::find("ip").unwrap_or_else(|| "ip".into()))
}

/// Ends every process in a namespace of ours and deletes it; does what it can.
pub(crate) fn remove(name: &str) {
    let quietly = |words: &[&str]| {
        let mut command = ip();
        command.args(words);
        Running::start(command).and_then(|running| running.finish(SETTING, Interruption::Ignore))
    };
    if let Ok(listed) = quietly(&["netns", "pids", name]) {
        for pid in listed.stdout.lines().filter_map(|line| line.trim().parse().ok()) {
            if let Some(pid) = Pid::from_raw(pid) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
    let _ = quietly(&["netns", "del", name]);
}
