//! `[node]`, `[cache]`, `[metrics]`: the machine itself.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::diagnostic::DiagnosticKind;
use crate::errors::Diagnostics;
use crate::raw::{RawCache, RawMetrics, RawNode, Text};
use crate::read::Scalar;
use crate::source::Spanned;
use crate::validated::{Cache, CacheUse, Metrics, Node, OnExit, Poll, Workers};
use crate::values::{bounded, count, name, unusable, word};

/// Worker threads at most.
pub const MAX_WORKERS: u32 = 256;
/// Flows that the cache may be sized for at most.
pub const MAX_FLOWS: u64 = 1 << 26;
/// Flows that the cache is sized for if nothing is written (FC-10).
pub const DEFAULT_FLOWS: u64 = 1 << 20;

/// `run_dir` if nothing is written.
const DEFAULT_RUN_DIR: &str = "/run/lockgate";
/// `state_dir` if nothing is written.
const DEFAULT_STATE_DIR: &str = "/var/lib/lockgate";
/// Longest `run_dir`, bytes: a Unix socket's path has 108 with its final zero (unix(7)), and 11 of
/// them are kept for `/` and a name.
const MAX_RUN_DIR: usize = 96;
/// The address where metrics are read if the file names none.
const DEFAULT_METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9617);

/// `[node]`.
pub(super) fn node(raw: &RawNode, problems: &mut Diagnostics<'_>) -> Option<Node> {
    let node_name = raw.name.as_ref().and_then(|text| name(problems, text));
    let workers = match &raw.workers {
        None => Some(Workers::Auto),
        Some(written) => workers(written, problems),
    };
    let reserve_cores = bounded(problems, "reserve_cores", &raw.reserve_cores, 1, (0, 1023));
    let choices = [("closed", OnExit::Closed), ("open", OnExit::Open)];
    let on_exit = word(problems, "on_exit", &raw.on_exit, OnExit::Closed, &choices);
    if let (Some(OnExit::Open), Some(written)) = (on_exit, &raw.on_exit) {
        problems.warning(&written.span(), DiagnosticKind::OpensOnExit);
    }
    let keys_dir = directory(problems, "keys_dir", &raw.keys_dir, ".");
    let run_dir = absolute(problems, "run_dir", &raw.run_dir, DEFAULT_RUN_DIR);
    let state_dir = absolute(problems, "state_dir", &raw.state_dir, DEFAULT_STATE_DIR);
    judge_directories(raw, run_dir.as_deref(), state_dir.as_deref(), problems);
    let choices = [("sleep", Poll::Sleep), ("busy", Poll::Busy)];
    let poll = word(problems, "poll", &raw.poll, Poll::Sleep, &choices);
    Some(Node {
        name: node_name?,
        workers: workers?,
        reserve_cores: reserve_cores?,
        on_exit: on_exit?,
        keys_dir: keys_dir?,
        run_dir: run_dir?,
        state_dir: state_dir?,
        poll: poll?,
    })
}

/// A directory's name; the default if nothing is written.
fn directory(
    problems: &mut Diagnostics<'_>,
    key: &'static str,
    written: &Text,
    default: &str,
) -> Option<PathBuf> {
    let Some(written) = written else { return Some(PathBuf::from(default)) };
    let text = written.get_ref();
    let fits = !text.is_empty() && text.len() < 4096 && !text.contains('\0');
    if !fits {
        problems.error(&written.span(), DiagnosticKind::BadDirectory { key });
    }
    fits.then(|| PathBuf::from(text))
}

/// An absolute directory: the daemon and its operator start in different directories.
fn absolute(
    problems: &mut Diagnostics<'_>,
    key: &'static str,
    written: &Text,
    default: &str,
) -> Option<PathBuf> {
    let path = directory(problems, key, written, default)?;
    if let (Some(written), false) = (written, path.is_absolute()) {
        problems.error(&written.span(), DiagnosticKind::RelativeDirectory { key });
        return None;
    }
    Some(path)
}

fn judge_directories(
    raw: &RawNode,
    run_dir: Option<&Path>,
    state_dir: Option<&Path>,
    problems: &mut Diagnostics<'_>,
) {
    if let (Some(written), Some(path)) = (&raw.run_dir, run_dir)
        && path.as_os_str().len() > MAX_RUN_DIR
    {
        problems.error(&written.span(), DiagnosticKind::LongRunDir { limit: MAX_RUN_DIR });
    }
    if let (Some(run), Some(state)) = (run_dir, state_dir)
        && run == state
        && let Some(written) = raw.state_dir.as_ref().or(raw.run_dir.as_ref())
    {
        problems.error(&written.span(), DiagnosticKind::SameDirectory);
    }
}

fn workers(written: &Spanned<Scalar>, problems: &mut Diagnostics<'_>) -> Option<Workers> {
    match written.get_ref() {
        Scalar::Text(text) if text == "auto" => Some(Workers::Auto),
        Scalar::Text(text) => {
            problems.error(&written.span(), DiagnosticKind::BadWorkers { text: text.clone() });
            None
        }
        Scalar::Number(number) => {
            let number = Some(Spanned::new(written.span(), *number));
            bounded(problems, "workers", &number, 1, (1, MAX_WORKERS)).map(Workers::Exactly)
        }
    }
}

/// `[cache]`.
pub(super) fn cache(raw: Option<&RawCache>, problems: &mut Diagnostics<'_>) -> Option<Cache> {
    let Some(raw) = raw else {
        return Some(Cache::On { flows: DEFAULT_FLOWS, usage: CacheUse::Auto });
    };
    let choices = [("auto", CacheUse::Auto), ("always", CacheUse::Always)];
    let usage = word(problems, "use", &raw.usage, CacheUse::Auto, &choices);
    let flows = match &raw.flows {
        None => Some(DEFAULT_FLOWS),
        Some(written) => flows(written, problems),
    };
    if let (Some(0), Some(written)) = (flows, &raw.usage) {
        problems.warning(&written.span(), DiagnosticKind::UseWithoutCache);
    }
    let (flows, usage) = (flows?, usage?);
    Some(if flows == 0 { Cache::Off } else { Cache::On { flows, usage } })
}

/// Flows that the cache is sized for; 0: `off` is written.
fn flows(written: &Spanned<Scalar>, problems: &mut Diagnostics<'_>) -> Option<u64> {
    let flows = match written.get_ref() {
        Scalar::Text(text) if text == "off" => return Some(0),
        Scalar::Text(text) => count(text),
        Scalar::Number(number) => u64::try_from(*number).ok(),
    };
    let mistake = match flows {
        Some(flows @ 2..=MAX_FLOWS) => return Some(flows),
        Some(0 | 1) => DiagnosticKind::CacheTooSmall, // FC-11
        Some(_) => DiagnosticKind::CacheTooLarge { limit: MAX_FLOWS },
        None => DiagnosticKind::BadFlows {
            text: match written.get_ref() {
                Scalar::Text(text) => text.clone(),
                Scalar::Number(number) => number.to_string(),
            },
        },
    };
    problems.error(&written.span(), mistake);
    None
}

/// `[metrics]`.
pub(super) fn metrics(raw: Option<&RawMetrics>, problems: &mut Diagnostics<'_>) -> Option<Metrics> {
    let Some(written) = raw.and_then(|raw| raw.listen.as_ref()) else {
        return Some(Metrics::Listen(DEFAULT_METRICS));
    };
    let (text, span) = (written.get_ref(), written.span());
    if text == "off" {
        return Some(Metrics::Off);
    }
    let Ok(listen) = text.parse::<SocketAddr>() else {
        problems.error(&span, DiagnosticKind::BadListen { text: text.clone() });
        return None;
    };
    let address = listen.ip();
    if listen.port() == 0 {
        problems.error(&span, DiagnosticKind::ListenPortZero);
        return None;
    }
    if address.is_loopback() {
        return Some(Metrics::Listen(listen));
    }
    let why = match address {
        _ if address.is_unspecified() => Some("the wildcard address"),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Some("link-local, valid on one link only"),
        address => unusable(address),
    };
    if let Some(why) = why {
        problems.error(&span, DiagnosticKind::ListenAddress { address, why });
        return None;
    }
    problems.warning(&span, DiagnosticKind::ListenBeyond { address, port: listen.port() });
    Some(Metrics::Listen(listen))
}
