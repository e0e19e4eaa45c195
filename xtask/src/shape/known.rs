//! Lists the items that broke a rule of [`super`] when the rule came. These lists only shrink.

pub(super) const LONG_FUNCTIONS: &[&str] = &[];
pub(super) const BOOL_PARAMETERS: &[&str] = &[
    "bin/lockgate-demo/src/gateways/stage.rs check",
    "bin/lockgate/src/live/change.rs answer",
    "bin/lockgate/src/live/show.rs revisions",
    "bin/lockgate/src/live/show.rs status",
    "bin/lockgated/src/api/present.rs peer_state",
    "bin/lockgated/src/hardening.rs missing",
    "bin/lockgated/src/metrics/exposition.rs from",
    "bin/lockgated/src/metrics/lint.rs of_family",
    "crates/config/src/chunked.rs push",
    "crates/cpu/src/lanes.rs ones",
    "crates/dataplane/src/decide/routing.rs no_way",
    "crates/wire/src/build.rs fragment",
    "crates/wire/src/packet.rs fragment_of",
];
pub(super) const CIRCLES: &[&str] = &[
    "bpf: attach error probe steering",
    "lockgate: explain failure init input live",
    "lockgate-bench: io::forwarder io::lane",
    "lockgate-bench: spd::published spd::rows",
    "xsk: quarantine system umem",
];
