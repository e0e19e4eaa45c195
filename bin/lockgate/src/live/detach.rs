//! `lockgate detach`: opens what a stopped daemon left closed.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::{Command, Output};

use bpf::BpfError;
use config::HOST_NETDEV;
use console::output::{print, print_json};
use control::guard::Guard;
use linux::HOST_ROUTE_PROTOCOL;
use linux::xfrm::Xfrm;
use nix::net::if_::if_nameindex;
use nix::sys::socket::{getsockopt, sockopt};
use serde::Serialize;

use super::{LiveError, Socket};
use crate::failure::Failure;

/// The guard's table.
const TABLE: [&str; 2] = ["inet", "lockgate"];

/// Open the ports that a stopped daemon left closed
///
/// Takes Lockgate's program off every netdev of this network namespace, removes the guard (nftables
/// table inet lockgate), the SAs and policies that Linux carries for a card, and the host port
/// lockgate0 with the rules that lead to it, and says what it opened. From then on Linux forwards
/// in cleartext, as it is set up to. Needs root; refuses while lockgated runs.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Things that were removed.
#[derive(Debug, Default, Serialize)]
struct RemovedParts {
    /// Netdevs from which Lockgate's program was removed.
    netdevs: Vec<String>,
    /// True if the guard was there.
    guard: bool,
    /// True if the host port was there.
    host_port: bool,
    /// True if rules that lead packets to the host port were there.
    host_rules: bool,
    /// SAs and policies of ours that were in Linux.
    carried: usize,
}

/// A netdev of this namespace.
struct Netdev {
    name: String,
    ifindex: u32,
}

/// Takes everything away that it can, and fails if something stays.
pub(crate) fn run(args: &Args, socket: &Socket) -> Result<(), Failure> {
    if !nix::unistd::geteuid().is_root() {
        return Err(LiveError::NotRoot.into());
    }
    let netdevs = netdevs()?;
    check_stopped(&netdevs, socket)?;
    let (mut opened, mut stays) = (RemovedParts::default(), Vec::new());
    // With some of them left, Linux would send in cleartext: nothing is opened.
    opened.carried = sweep_carried()?;
    for netdev in &netdevs {
        match bpf::detach(netdev.ifindex) {
            Ok(true) => opened.netdevs.push(netdev.name.clone()),
            // Another's program, or a netdev that has just gone, is not ours to judge.
            Ok(false) | Err(BpfError::Foreign { .. } | BpfError::NoDevice { .. }) => {}
            Err(error) => stays.push(LiveError::stays(&netdev.name, error)),
        }
    }
    if netdevs.iter().any(|netdev| netdev.name == HOST_NETDEV) {
        match removed("ip", &["link", "delete", HOST_NETDEV], &["Cannot find device"]) {
            Ok(removed) => opened.host_port = removed,
            Err(error) => stays.push(error),
        }
    }
    for family in ["-4", "-6"] {
        match remove_rules(family) {
            Ok(removed) => opened.host_rules |= removed,
            Err(error) => stays.push(error),
        }
    }
    let [family, table] = TABLE;
    match removed("nft", &["delete", "table", family, table], &["No such file or directory"]) {
        Ok(removed) => opened.guard = removed,
        Err(error) => stays.push(error),
    }
    match args.json {
        true => print_json(&opened),
        false => print(&told(&opened)),
    }?;
    let first = stays.into_iter().next();
    first.map_or(Ok(()), |error| Err(error.into()))
}

/// Takes the SAs and policies of a dead daemon out of Linux, which goes on with what it has, and
/// returns how many there were. Until all are gone Linux forwards nothing: with half of them it
/// would send in cleartext what the other half sealed.
fn sweep_carried() -> Result<usize, LiveError> {
    let stays = |error| LiveError::stays("SAs and policies in Linux", error);
    let mut xfrm = match Xfrm::open() {
        Ok(xfrm) => xfrm,
        // This Linux has no xfrm, and so nothing was left.
        Err(error) if error.is_unsupported() => return Ok(0),
        Err(error) => return Err(stays(error)),
    };
    if !xfrm.has_ours().map_err(stays)? {
        return Ok(0);
    }
    Guard::closed()
        .install()
        .map_err(|error| LiveError::stays("SAs and policies in Linux", error))?;
    xfrm.sweep().map_err(stays)
}

/// Removes all routing rules of Lockgate, of every priority; says whether there were any.
fn remove_rules(family: &str) -> Result<bool, LiveError> {
    let protocol = HOST_ROUTE_PROTOCOL.to_string();
    let rule = [family, "rule", "delete", "protocol", &protocol];
    let mut any = Removed::Nothing;
    // One at a time: `ip rule delete` takes the first that matches.
    for _ in 0..MOST_RULES {
        if !removed("ip", &rule, &["No such file or directory", "not supported"])? {
            return Ok(any == Removed::Some);
        }
        any = Removed::Some;
    }
    Err(LiveError::stays(
        &format!("ip {family} rule"),
        ErrorOutput(format!("more than {MOST_RULES}")),
    ))
}

/// Says whether something was there to be removed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Removed {
    Nothing,
    Some,
}

/// Rules that are removed in one run at most; a daemon makes seven a family.
const MOST_RULES: usize = 256;

fn netdevs() -> Result<Vec<Netdev>, LiveError> {
    let all = if_nameindex().map_err(|error| LiveError::stays("netdevs", error))?;
    let named = all.iter().map(|interface| Netdev {
        name: interface.name().to_string_lossy().into_owned(),
        ifindex: interface.index(),
    });
    Ok(named.collect())
}

/// Checks that no daemon listens at the socket or has claimed a netdev.
fn check_stopped(netdevs: &[Netdev], socket: &Socket) -> Result<(), LiveError> {
    let claims = netdevs.iter().map(|netdev| {
        let address = SocketAddr::from_abstract_name(format!("lockgate/port/{}", netdev.ifindex))?;
        UnixStream::connect_addr(&address)
    });
    let api = UnixStream::connect(socket.path().as_path());
    match claims.chain([api]).flatten().next() {
        None => Ok(()),
        Some(stream) => {
            let peer = getsockopt(&stream, sockopt::PeerCredentials).ok();
            let pid = peer.and_then(|peer| peer.pid().try_into().ok());
            Err(LiveError::Running { pid })
        }
    }
}

/// Runs a program that removes something; returns whether it was there.
fn removed(program: &str, words: &[&str], absent: &[&str]) -> Result<bool, LiveError> {
    let what = format!("{program} {}", words.join(" "));
    let ran = Command::new(program).args(words).env("LC_ALL", "C").output();
    match ran {
        Ok(Output { status, .. }) if status.success() => Ok(true),
        Ok(Output { stderr, .. }) => {
            let said = String::from_utf8_lossy(&stderr).trim().to_owned();
            if absent.iter().any(|words| said.contains(words)) {
                Ok(false)
            } else {
                Err(LiveError::stays(&what, ErrorOutput(said)))
            }
        }
        // Without the program nobody can have made it, except in another life of this machine.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(LiveError::stays(&what, ErrorOutput(format!("{program} is not installed"))))
        }
        Err(error) => Err(LiveError::stays(&what, error)),
    }
}

/// Error output of a program.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct ErrorOutput(String);

fn told(opened: &RemovedParts) -> String {
    let RemovedParts { netdevs, guard, host_port, host_rules, carried } = opened;
    let mut lines: Vec<String> =
        netdevs.iter().map(|netdev| format!("{netdev}: open: its packets go to Linux\n")).collect();
    if *carried > 0 {
        let what = match carried {
            1 => "one SA or policy".to_owned(),
            more => format!("{more} SAs and policies"),
        };
        lines.push(format!("Linux: {what} that it carried for a card: removed\n"));
    }
    if *guard {
        lines.push(format!("guard: removed (nftables table {})\n", TABLE.join(" ")));
    }
    if *host_port {
        lines.push(format!("{HOST_NETDEV}: removed\n"));
    }
    if *host_rules {
        lines.push(format!("rules that led to {HOST_NETDEV}: removed (ip rule)\n"));
    }
    if lines.is_empty() {
        lines.push("no part of Lockgate is here\n".into());
    }
    lines.concat()
}
