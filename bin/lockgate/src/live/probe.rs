//! `lockgate probe`: what this machine and its netdevs can do, what is missing, how to get it.

mod netdev;

use std::fs;
use std::process::Command;

use bpf::{Feature, Finding};
use console::output::{Numbers, print, print_json, table};
use ipsec::cipher::BackendKind;
use ipsec::{Cipher, KeyMaterial, Suite};
use serde::Serialize;

use crate::failure::Failure;
use netdev::Netdev;

/// Check what this machine and its netdevs support, what is missing, and how to get it
///
/// Looks at the netdevs of this network namespace. Changes nothing. Ends with 1 if a requirement is
/// missing.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Findings of the probe.
#[derive(Debug, Serialize)]
struct Report {
    /// True if no required feature is missing.
    ok: bool,
    machine: Vec<Line>,
    netdevs: Vec<Netdev>,
}

/// One feature of the machine.
#[derive(Debug, Serialize)]
struct Line {
    name: &'static str,
    purpose: &'static str,
    state: State,
    /// Version or kind of the feature, or what is there instead.
    detail: String,
    /// Advice how to get it.
    remedy: Option<&'static str>,
}

/// Availability of a feature.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Present,
    /// A requirement: the gateway does not work without it.
    Missing,
    /// An option: the gateway works without it.
    Lacking,
}

impl State {
    const fn word(self) -> &'static str {
        match self {
            State::Present => "yes",
            State::Missing => "MISSING",
            State::Lacking => "no",
        }
    }
}

impl Line {
    fn of(Feature { name, purpose, finding }: Feature) -> Line {
        let (state, detail, remedy) = match finding {
            Finding::Present { detail } => (State::Present, detail, None),
            Finding::Missing { detail, remedy } => (State::Missing, detail, Some(remedy)),
            Finding::Lacking { detail, remedy } => (State::Lacking, detail, Some(remedy)),
        };
        Line { name, purpose, state, detail, remedy }
    }
}

/// Looks and prints; fails with [`Failure::Bad`] if something is missing.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let features = bpf::probe().into_iter().chain(own());
    let machine: Vec<Line> = features.map(Line::of).collect();
    let ok = machine.iter().all(|line| line.state != State::Missing);
    let report = Report { ok, machine, netdevs: netdev::all() };
    match args.json {
        true => print_json(&report),
        false => print(&text(&report)),
    }?;
    if ok { Ok(()) } else { Err(Failure::Bad) }
}

fn text(report: &Report) -> String {
    let rows = report.machine.iter().map(|line| {
        let detail = if line.state == State::Present { &line.detail } else { "see below" };
        let words = [line.name, line.state.word(), detail, line.purpose];
        words.map(str::to_owned).into()
    });
    let header = ["feature", "here", "detail", "what for"];
    let mut text = table("This machine", &header, rows, Numbers::NONE);
    let remedies: Vec<String> = report
        .machine
        .iter()
        .filter_map(|line| Some(format!(" {}: {}: {}\n", line.name, line.detail, line.remedy?)))
        .collect();
    if !remedies.is_empty() {
        text.push_str(&format!("What to do\n{}\n", remedies.concat()));
    }
    text.push_str(&netdev::text(&report.netdevs));
    text
}

/// Returns the features that do not concern the steering program.
fn own() -> Vec<Feature> {
    let feature = |name, purpose, finding| Feature { name, purpose, finding };
    vec![
        feature("TUN", "the host port lockgate0", tun()),
        feature("nftables", "the guard behind the ports", nftables()),
        feature("rtnetlink", "addresses, routes and neighbours", rtnetlink()),
        feature("ciphers", "what seals and opens packets", ciphers()),
        feature("cores", "one worker a core, one left for the rest", cores()),
        feature("huge pages", "fewer TLB misses in frames and tables", huge_pages()),
        feature("machine id", "sequence numbers are reserved for one machine", machine_id()),
    ]
}

fn tun() -> Finding {
    let opened = fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun");
    match opened {
        Ok(_) => Finding::Present { detail: "/dev/net/tun".into() },
        Err(error) => Finding::Missing {
            detail: format!("/dev/net/tun: {error}"),
            remedy: "modprobe tun; run as root; in a container, pass /dev/net/tun in",
        },
    }
}

fn nftables() -> Finding {
    let run = |words: &[&str]| Command::new("nft").args(words).output();
    let Ok(version) = run(&["--version"]) else {
        let detail = "`nft` is not installed".into();
        return Finding::Missing { detail, remedy: "install the package nftables" };
    };
    let listed = run(&["list", "tables"]);
    match listed {
        Ok(ran) if ran.status.success() => {
            Finding::Present { detail: String::from_utf8_lossy(&version.stdout).trim().to_owned() }
        }
        Ok(ran) => {
            let said = String::from_utf8_lossy(&ran.stderr);
            Finding::Missing {
                detail: said.lines().next().unwrap_or("it failed").to_owned(),
                remedy: "run as root, with a kernel that has CONFIG_NF_TABLES and its inet family",
            }
        }
        Err(error) => {
            Finding::Missing { detail: error.to_string(), remedy: "install the package nftables" }
        }
    }
}

fn rtnetlink() -> Finding {
    match nix::net::if_::if_nameindex() {
        Ok(list) => Finding::Present { detail: format!("{} netdevs", list.iter().count()) },
        Err(error) => Finding::Missing {
            detail: error.to_string(),
            remedy: "allow AF_NETLINK sockets (RestrictAddressFamilies= of the unit)",
        },
    }
}

/// The library that seals and opens, after its self-test, which the daemon does not start without.
fn ciphers() -> Finding {
    if let Err(error) = ipsec::self_test() {
        return Finding::Missing {
            detail: error.to_string(),
            remedy: "update the library, or run on another machine: its results are wrong here",
        };
    }
    let fastest = BackendKind::IpsecMb;
    let used = used(&AEADS.map(|suite| (suite.name(), backend_name(suite))));
    match fastest.is_available() {
        true => Finding::Present { detail: used },
        false => Finding::Lacking {
            detail: format!(
                "{used}; {} is not in this program, or does not serve this processor",
                fastest.name()
            ),
            remedy: "on x86-64 with AES-NI, build with the package libipsec-mb-dev installed",
        },
    }
}

/// The suites whose libraries are chosen by measuring them.
const AEADS: [Suite; 3] = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];

/// The libraries that this machine takes for a suite.
fn backend_name(suite: Suite) -> String {
    // A key of zeros, which seals nothing: asked for its library's whole name.
    let material = KeyMaterial::new(suite, &vec![0; suite.material_bytes()]);
    material.map_or_else(|_| "-".into(), |material| Cipher::new(&material).backend_name().into())
}

/// Names the libraries once, or for each suite where they differ. `suites`: names of suites, and
/// of their libraries.
fn used(suites: &[(&str, String)]) -> String {
    match suites {
        [(_, one), rest @ ..] if rest.iter().all(|(_, name)| name == one) => {
            format!("{one}, which passes its self-test")
        }
        _ => {
            let each = suites.iter().map(|(suite, name)| format!("{suite}: {name}; "));
            format!("{}all pass their self-tests", each.collect::<String>())
        }
    }
}

fn cores() -> Finding {
    match std::thread::available_parallelism().map_or(1, usize::from) {
        1 => Finding::Lacking {
            detail: "1: the worker shares it with everything else".into(),
            remedy: "give this machine a second core",
        },
        many => Finding::Present { detail: many.to_string() },
    }
}

/// Frames are mapped so that the kernel may back them with huge pages; nobody has to reserve any.
fn huge_pages() -> Finding {
    const REMEDY: &str = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
    match fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled") {
        Ok(modes) if modes.contains("[never]") => {
            Finding::Lacking { detail: "transparent huge pages: never".into(), remedy: REMEDY }
        }
        Ok(modes) => {
            let mode = modes.split(['[', ']']).nth(1).unwrap_or("on").to_owned();
            Finding::Present { detail: format!("transparent huge pages: {mode}") }
        }
        Err(_) => Finding::Lacking {
            detail: "the kernel has no transparent huge pages".into(),
            remedy: "a kernel with CONFIG_TRANSPARENT_HUGEPAGE; Lockgate itself does without",
        },
    }
}

fn machine_id() -> Finding {
    match fs::read_to_string("/etc/machine-id") {
        Ok(id) if id.trim().len() == 32 => Finding::Present { detail: "/etc/machine-id".into() },
        _ => Finding::Missing {
            detail: "/etc/machine-id is missing or empty".into(),
            remedy: "systemd-machine-id-setup, or dbus-uuidgen --ensure=/etc/machine-id",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_named_once_or_for_each_suite_where_they_differ() {
        let (one, other) = ("ipsec-mb 1.3.0 (avx2)", "ring 0.17.14");
        let alike = [("aes-128-gcm", one.into()), ("aes-256-gcm", one.into())];
        assert_eq!(used(&alike), "ipsec-mb 1.3.0 (avx2), which passes its self-test");
        let by_size = format!("{one} up to 512 B, {other} above");
        assert_eq!(
            used(&[("aes-128-gcm", by_size), ("chacha20-poly1305", one.into())]),
            "aes-128-gcm: ipsec-mb 1.3.0 (avx2) up to 512 B, ring 0.17.14 above; \
             chacha20-poly1305: ipsec-mb 1.3.0 (avx2); all pass their self-tests"
        );
    }

    #[test]
    fn what_is_missing_is_told_with_what_to_do() {
        let missing = Finding::Missing { detail: "5.10".into(), remedy: "a newer kernel" };
        let feature = Feature { name: "kernel", purpose: "everything", finding: missing };
        let report = Report { ok: false, machine: vec![Line::of(feature)], netdevs: Vec::new() };
        let text = text(&report);
        assert!(
            text.contains("MISSING") && text.contains("kernel: 5.10: a newer kernel"),
            "{text}"
        );
    }
}
