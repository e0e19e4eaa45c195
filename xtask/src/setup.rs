//! Installs what building, testing and the demonstrations need, and says what and why.
//!
//! On Debian and its relatives, as root or through sudo. Nothing that is there is touched. Cargo
//! and a linker are there already when this runs: the script `xtask/cargo` sees to them.

use crate::{Failure, cargo, charon, output, program, root, succeed};
use std::process::{Command, Stdio};

/// Amount to say when nothing is missing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Voice {
    /// One line.
    Normal,
    /// Nothing.
    Quiet,
}

/// Extent of an installation; each has those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// The needs of building and of most demonstrations: a newcomer waits for them.
    Demo,
    /// The needs of the demonstration with strongSwan, of which Debian starts a daemon.
    Ike,
    /// The needs of the tests, too.
    All,
}

/// A program that must be there, and the Debian packages that bring it.
struct Need {
    name: &'static str,
    /// The smallest scope that needs it.
    scope: Scope,
    why: &'static str,
    /// A command that succeeds where the need is met.
    probe: &'static [&'static str],
    packages: &'static [&'static str],
}

const NEEDS: &[Need] = &[
    Need {
        name: "cc",
        scope: Scope::Demo,
        why: "builds the C code of the cipher library",
        probe: &["cc", "--version"],
        packages: &["gcc", "libc6-dev"],
    },
    Need {
        name: "cmake",
        scope: Scope::Demo,
        why: "builds the cipher library where its short way does not do",
        probe: &["cmake", "--version"],
        packages: &["cmake", "make"],
    },
    Need {
        name: "git",
        scope: Scope::All,
        why: "tells tidy which files are part of the project",
        probe: &["git", "--version"],
        packages: &["git"],
    },
    Need {
        name: "python3",
        scope: Scope::All,
        why: "runs the tests against scapy, another implementation of ESP",
        probe: &["python3", "-c", "import ensurepip, venv"],
        packages: &["python3", "python3-venv"],
    },
    Need {
        name: "tshark",
        scope: Scope::Ike,
        why: "decodes what Lockgate seals, with the keys written beside the capture",
        probe: &["tshark", "--version"],
        packages: &["tshark"],
    },
    Need {
        name: "tcpdump",
        scope: Scope::Demo,
        why: "makes captures",
        probe: &["tcpdump", "--version"],
        packages: &["tcpdump"],
    },
    Need {
        name: "ip",
        scope: Scope::Demo,
        why: "makes the network namespaces that traffic stays in",
        probe: &["ip", "-Version"],
        packages: &["iproute2"],
    },
    Need {
        name: "clang",
        scope: Scope::Demo,
        why: "compiles the XDP program",
        probe: &["clang", "--version"],
        packages: &["clang", "llvm"],
    },
    Need {
        name: "libelf and zlib",
        scope: Scope::Demo,
        why: "read the XDP program and load it into the kernel",
        probe: &["pkg-config", "--exists", "libelf", "zlib"],
        packages: &["pkg-config", "libelf-dev", "zlib1g-dev"],
    },
    Need {
        name: "nft",
        scope: Scope::Demo,
        why: "sets the guard that keeps ports closed",
        probe: &["nft", "--version"],
        packages: &["nftables"],
    },
    Need {
        name: "ethtool",
        scope: Scope::Demo,
        why: "switches offloads of the namespaces' interfaces off",
        probe: &["ethtool", "--version"],
        packages: &["ethtool"],
    },
    Need {
        name: "ping",
        scope: Scope::Demo,
        why: "measures round trips through two gateways",
        probe: &["ping", "-V"],
        packages: &["iputils-ping"],
    },
    Need {
        name: "iperf3",
        scope: Scope::Demo,
        why: "measures TCP and UDP through two gateways",
        probe: &["iperf3", "--version"],
        packages: &["iperf3"],
    },
    Need {
        name: "valgrind",
        scope: Scope::All,
        why: "counts the instructions that the walk takes for a packet",
        probe: &["valgrind", "--version"],
        packages: &["valgrind"],
    },
    Need {
        name: "debootstrap",
        scope: Scope::All,
        why: "makes clean Debian roots that packages are built and installed in",
        probe: &["debootstrap", "--version"],
        packages: &["debootstrap"],
    },
    Need {
        name: "strongSwan",
        scope: Scope::Ike,
        why: "negotiates keys: its charon gets Lockgate's plugin, built against its source",
        probe: &[
            "sh",
            "-c",
            "cd /usr/lib/ipsec && test -x charon -a -f plugins/libstrongswan-openssl.so && \
             command -v swanctl apt-get",
        ],
        packages: &[
            "strongswan-charon",
            "strongswan-swanctl",
            // X25519 and AES-GCM, for its own messages.
            "libstrongswan-standard-plugins",
            "dpkg-dev",
            "make",
        ],
    },
    Need {
        name: "pki and kernel-libipsec",
        scope: Scope::Ike,
        why: "certificates, and another implementation of ESP to be the peer",
        probe: &[
            "sh",
            "-c",
            "command -v pki && test -f /usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so",
        ],
        packages: &["strongswan-pki", "libcharon-extra-plugins"],
    },
    Need {
        name: "openssl",
        scope: Scope::All,
        why: "makes the keys of wireguard-go, for a comparison",
        probe: &["openssl", "version"],
        packages: &["openssl"],
    },
];

/// Needs that only machines of this architecture can have; Lockgate does without them, more slowly.
const NEEDS_X86_64: &[Need] = &[Need {
    name: "libipsec-mb",
    scope: Scope::Demo,
    why: "ciphers at the speed of the hardware",
    probe: &["cc", "-E", "-include", "intel-ipsec-mb.h", "-x", "c", "/dev/null"],
    packages: &["libipsec-mb-dev"],
}];

/// Needs of a build of the programs, by their names.
const BUILDS: [&str; 5] = ["cc", "cmake", "clang", "libelf and zlib", "libipsec-mb"];

/// Parts of the Rust toolchain that its smallest installation lacks.
const COMPONENTS: &[(&str, &str)] = &[("clippy", "clippy"), ("fmt", "rustfmt")];

/// Python packages of the tests, kept in a virtual environment under `target`.
const PYTHON_PACKAGES: &[&str] = &["scapy>=2.6", "cryptography"];
const PYTHON_PROBE: &str = "import scapy.layers.ipsec, cryptography";
const VENV: &str = "target/venv";

/// Path of the virtual environment's Python, from the workspace's root.
pub(crate) const PYTHON: &str = "target/venv/bin/python";

/// Installs what is missing.
pub(crate) fn run(voice: Voice, scope: Scope) -> Result<(), Failure> {
    let wanted = needs().filter(|need| need.scope <= scope);
    let missing: Vec<&Need> = wanted.filter(|need| !works(need.probe)).collect();
    let mut installed = !missing.is_empty();
    if installed {
        install(&missing)?;
    }
    if scope == Scope::All {
        installed |= install_test_tools()?;
    }
    if scope >= Scope::Ike {
        match charon::build() {
            Ok(built) => installed |= built,
            // What needs it says so.
            Err(error) => println!("setup: the plugin of charon is not built: {error}"),
        }
    }
    match (installed, voice) {
        (true, _) => println!("setup: done"),
        (false, Voice::Normal) => println!("setup: nothing is missing"),
        (false, Voice::Quiet) => {}
    }
    Ok(())
}

/// Installs what no Debian package brings. Returns whether something was missing.
fn install_test_tools() -> Result<bool, Failure> {
    let mut installed = false;
    for (subcommand, component) in COMPONENTS {
        if !quiet(cargo().args([subcommand, "--version"])) {
            println!("setup: adding {component} to the Rust toolchain: part of `make test`");
            succeed(program("rustup").args(["component", "add", component]))?;
            installed = true;
        }
    }
    if !has_python_packages() {
        println!("setup: making {VENV} with scapy: another implementation of ESP to test against");
        succeed(program("python3").args(["-m", "venv", "--clear", VENV]))?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        succeed(program(root().join(PYTHON)).args(pip).args(PYTHON_PACKAGES))?;
        if !has_python_packages() {
            return Err(Failure::StillMissing { missing: vec!["scapy"] });
        }
        installed = true;
    }
    Ok(installed)
}

/// Returns the needs on this machine's architecture.
fn needs() -> impl Iterator<Item = &'static Need> {
    let more = if cfg!(target_arch = "x86_64") { NEEDS_X86_64 } else { &[] };
    NEEDS.iter().chain(more)
}

/// Returns the Debian packages that a build of the programs needs, as words.
pub(crate) fn packages_to_build() -> String {
    let needs = needs().filter(|need| BUILDS.contains(&need.name));
    needs.flat_map(|need| need.packages).copied().collect::<Vec<_>>().join(" ")
}

fn has_python_packages() -> bool {
    quiet(program(root().join(PYTHON)).args(["-c", PYTHON_PROBE]))
}

/// Installs Debian packages: the lists fetched once, a half-configured dpkg mended first.
fn install(missing: &[&Need]) -> Result<(), Failure> {
    let names = || missing.iter().map(|need| need.name).collect();
    let Some(prefix) = privileges() else {
        return Err(Failure::NotRoot { missing: names() });
    };
    for need in missing {
        println!("setup: installing {} ({}): {}", need.name, need.packages.join(" "), need.why);
    }
    if !output(program("dpkg").arg("--audit")).unwrap_or_default().trim().is_empty() {
        println!("setup: dpkg is half configured: mending it first");
        succeed(&mut privileged(prefix, &["dpkg", "--configure", "-a"]))?;
        succeed(&mut privileged(prefix, &["apt-get", "-qq", "-y", "-f", "install"]))?;
    }
    succeed(&mut privileged(prefix, &["apt-get", "-qq", "-o", "Acquire::Retries=3", "update"]))?;
    let install = ["apt-get", "-qq", "-y", "-o", "Acquire::Retries=3", "install"];
    let mut command = privileged(prefix, &install);
    command.arg("--no-install-recommends");
    command.args(missing.iter().flat_map(|need| need.packages));
    succeed(&mut command)?;
    let still: Vec<_> = missing.iter().filter(|need| !works(need.probe)).collect();
    if still.is_empty() {
        return Ok(());
    }
    Err(Failure::StillMissing { missing: still.iter().map(|need| need.name).collect() })
}

/// The words in front of a command that needs root; `None`: there is no way.
fn privileges() -> Option<&'static [&'static str]> {
    let user = output(program("id").arg("-u")).unwrap_or_default();
    if user.trim() == "0" {
        return Some(&["env"]);
    }
    works(&["sudo", "-n", "true"]).then_some(&["sudo", "-n", "env"])
}

/// A command that installs, asking no questions.
fn privileged(prefix: &[&str], words: &[&str]) -> Command {
    let mut command = program(prefix[0]);
    command.args(&prefix[1..]).arg("DEBIAN_FRONTEND=noninteractive").args(words);
    command.stdin(Stdio::null());
    command
}

/// Returns whether a program can be started.
pub(crate) fn is_there(name: &str) -> bool {
    let mut command = program(name);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok()
}

fn works(words: &[&str]) -> bool {
    quiet(program(words[0]).args(&words[1..]))
}

/// Returns whether a command succeeds, its output thrown away.
fn quiet(command: &mut Command) -> bool {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_found_missing() {
        assert!(!works(&["lockgate-no-such-program", "--version"]));
        assert!(!works(&["false"]));
        assert!(works(&["true"]));
    }

    #[test]
    fn every_need_says_why_and_what_brings_it() {
        for need in NEEDS.iter().chain(NEEDS_X86_64) {
            assert!(!need.why.is_empty() && !need.packages.is_empty(), "{}", need.name);
            assert!(need.probe.len() >= 2, "{}: a probe that does nothing", need.name);
        }
    }

    #[test]
    fn installing_asks_no_questions() {
        let command = privileged(&["sudo", "-n", "env"], &["apt-get", "update"]);
        let shown = crate::display(&command);
        assert_eq!(shown, "sudo -n env DEBIAN_FRONTEND=noninteractive apt-get update");
    }
}
