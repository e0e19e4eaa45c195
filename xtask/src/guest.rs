//! A virtual machine with a kernel of Debian, for tests of what this machine's kernel lacks: ESP.
//!
//! The machine has one core of an emulated processor (no `/dev/kvm`: nested, it stops at some
//! instructions), 1 GB, no network, no disk: programs, libraries and modules are in its first file
//! system, which is made here. It is correct and slow: no figure of it is one of Lockgate.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::built::TestProgram;
use crate::runs::{self, Outcome};
use crate::{Failure, program, succeed, target_directory};

/// The package whose newest kernel is taken.
const KERNEL: &str = "linux-image-cloud-amd64";
/// The package of a program that needs no library.
const BUSYBOX: &str = "busybox-static";
/// Programs beside ours.
const PROGRAMS: [&str; 8] =
    ["ip", "nft", "ping", "ethtool", "tcpdump", "iperf3", "nsenter", "timeout"];
/// Folders and files of modules below `kernel`.
const MODULES: [&str; 6] =
    ["net", "crypto", "lib", "arch", "drivers/net/veth.ko", "drivers/net/tun.ko"];
/// Seconds that the machine may run.
const SECONDS: &str = "900";

/// Runs test programs in the machine, all of their tests.
pub(crate) fn run<'t>(tests: impl Iterator<Item = &'t TestProgram>) -> Result<Outcome, Failure> {
    const NO_MACHINE: &str = "no qemu-system-x86_64: apt-get install qemu-system-x86";
    const NO_KERNEL: &str = "no kernel: `apt-get download linux-image-cloud-amd64` fails";
    if !is_there("qemu-system-x86_64") {
        return Ok(Outcome::Skipped(NO_MACHINE));
    }
    let folder = target_directory().join("guest");
    fs::create_dir_all(&folder).map_err(Failure::write(&folder))?;
    let kernel = unpacked(&folder, &newest_kernel());
    let busybox = unpacked(&folder, BUSYBOX);
    let (Some(kernel), Some(busybox)) = (kernel, busybox) else {
        return Ok(Outcome::Skipped(NO_KERNEL));
    };
    let Some(image) = first_file(&kernel.join("boot"), "vmlinuz") else {
        return Ok(Outcome::Skipped(NO_KERNEL));
    };
    let disk = Disk { root: folder.join("root"), busybox: busybox.join("bin/busybox") };
    let memory = disk.make(&kernel, tests)?;
    let mut machine = program("timeout");
    machine.arg(SECONDS).arg("qemu-system-x86_64");
    machine.args(["-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", "1024", "-nographic"]);
    machine.args(["-no-reboot", "-nic", "none", "-append", "console=ttyS0 panic=-1 quiet"]);
    machine.arg("-kernel").arg(image).arg("-initrd").arg(memory);
    runs::watch(&mut machine)
}

fn is_there(name: &str) -> bool {
    let mut command = program("sh");
    command.args(["-c", &format!("command -v {name}")]).stdout(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Name of the package that the newest kernel is in.
fn newest_kernel() -> String {
    let printed = program("apt-cache").args(["depends", KERNEL]).output();
    let printed = printed.map(|done| String::from_utf8_lossy(&done.stdout).into_owned());
    let depends = printed.unwrap_or_default();
    let name = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    name.unwrap_or(KERNEL).to_owned()
}

/// The folder of an unpacked package, which is fetched once. `None`: it cannot be had.
fn unpacked(folder: &Path, package: &str) -> Option<PathBuf> {
    let into = folder.join(package);
    if into.join("done").is_file() {
        return Some(into);
    }
    let fetch = |command: &mut Command| command.current_dir(folder).status().ok();
    let fetched = fetch(program("apt-get").args(["download", package]))?;
    let file = first_file(folder, &format!("{package}_")).filter(|_| fetched.success())?;
    let done = fetch(program("dpkg-deb").arg("-x").arg(&file).arg(&into))?;
    done.success().then_some(())?;
    fs::write(into.join("done"), "").ok()?;
    Some(into)
}

fn first_file(folder: &Path, begin: &str) -> Option<PathBuf> {
    let names = fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let mut files: Vec<PathBuf> = names.map(|entry| entry.path()).collect();
    files.sort();
    let is_it = |path: &PathBuf| {
        path.is_file() && path.file_name().is_some_and(|of| of.to_string_lossy().starts_with(begin))
    };
    files.into_iter().find(is_it)
}

/// The first file system.
struct Disk {
    root: PathBuf,
    busybox: PathBuf,
}

impl Disk {
    /// Makes it, with test programs in it; returns its file.
    fn make<'t>(
        &self,
        kernel: &Path,
        tests: impl Iterator<Item = &'t TestProgram>,
    ) -> Result<PathBuf, Failure> {
        let _ = fs::remove_dir_all(&self.root);
        for folder in
            ["bin", "sbin", "usr/bin", "etc", "proc", "sys", "dev", "run", "tmp", "var/lib", "t"]
        {
            self.folder(folder)?;
        }
        self.copy(&self.busybox, "bin/busybox")?;
        self.modules(kernel)?;
        for name in PROGRAMS {
            let found = program("sh").args(["-c", &format!("command -v {name}")]).output();
            let found = found.map(|done| String::from_utf8_lossy(&done.stdout).trim().to_owned());
            let path = PathBuf::from(found.unwrap_or_default());
            self.program(&path, &format!("usr/bin/{name}"))?;
        }
        let debug = target_directory().join("debug");
        for name in ["lockgated", "lockgate"] {
            self.program(&debug.join(name), &format!("t/{name}"))?;
        }
        let mut names = Vec::new();
        for test in tests {
            self.program(test.executable(), &format!("t/tests/{}", test.target))?;
            names.push(test.target.clone());
        }
        self.write("etc/passwd", "root:x:0:0:root:/:/bin/sh\n")?;
        self.write("etc/group", "root:x:0:\n")?;
        self.write("etc/machine-id", "11111111111111111111111111111111\n")?;
        self.write("tests", &names.join(" "))?;
        self.write("init", include_str!("guest/init"))?;
        let packed = self.root.with_extension("cpio");
        let pack = format!(
            "chmod +x init && find . | {} cpio -o -H newc > {}",
            self.busybox.display(),
            packed.display()
        );
        succeed(program("sh").args(["-c", &pack]).current_dir(&self.root))?;
        Ok(packed)
    }

    /// Copies modules, and lists what each needs.
    fn modules(&self, kernel: &Path) -> Result<(), Failure> {
        let all = kernel.join("lib/modules");
        let release = fs::read_dir(&all).map_err(Failure::read(&all))?;
        let release = release.filter_map(Result::ok).map(|entry| entry.file_name()).next();
        let release = release.unwrap_or_default().to_string_lossy().into_owned();
        let into = format!("lib/modules/{release}");
        self.folder(&format!("{into}/kernel/drivers/net"))?;
        for name in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
            self.copy(&all.join(&release).join(name), &format!("{into}/{name}"))?;
        }
        for name in MODULES {
            let from = all.join(&release).join("kernel").join(name);
            let to = self.root.join(&into).join("kernel").join(name);
            succeed(program("cp").arg("-r").arg(from).arg(to))?;
        }
        let root = self.root.display().to_string();
        succeed(program(&self.busybox).args(["depmod", "-b", &root, &release]))
    }

    /// Copies a program, without what only debuggers read, and its libraries.
    fn program(&self, from: &Path, to: &str) -> Result<(), Failure> {
        let into = self.root.join(to);
        if let Some(folder) = into.parent() {
            fs::create_dir_all(folder).map_err(Failure::write(folder))?;
        }
        succeed(program("strip").arg("-o").arg(&into).arg(from))?;
        let needed = program("ldd").arg(from).output();
        let needed = needed.map(|done| String::from_utf8_lossy(&done.stdout).into_owned());
        let needed = needed.unwrap_or_default();
        let libraries = needed.split_whitespace().filter(|word| word.starts_with('/'));
        for library in libraries.collect::<BTreeSet<_>>() {
            let place = library.trim_start_matches('/');
            if !self.root.join(place).exists() {
                self.copy(Path::new(library), place)?;
            }
        }
        Ok(())
    }

    fn folder(&self, name: &str) -> Result<(), Failure> {
        let path = self.root.join(name);
        fs::create_dir_all(&path).map_err(Failure::write(&path))
    }

    fn copy(&self, from: &Path, to: &str) -> Result<(), Failure> {
        let into = self.root.join(to);
        if let Some(folder) = into.parent() {
            fs::create_dir_all(folder).map_err(Failure::write(folder))?;
        }
        fs::copy(from, &into).map(drop).map_err(Failure::read(from))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        let path = self.root.join(name);
        fs::write(&path, text).map_err(Failure::write(&path))
    }
}
