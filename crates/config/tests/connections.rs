//! Settings of the table of connections, and those that the machine has no memory for.

use config::{ConnectionSettings, Parsed, Validated, parse};
use dataplane::connections::Limits;
use policy::connection::Timeouts;

const HEAD: &str = "\
[node]\nname = \"a\"\n[port.wan]\nnetdev = \"eth0\"\nside = \"unprotected\"\n\
groups_in = [\"web\"]\n[group.web]\n[[rule]]\ngroup = \"web\"\nfrom = [\"any\"]\nto = [\"any\"]\n";

fn parsed(action: &str, section: &str) -> Parsed {
    let text = format!("{HEAD}action = \"{action}\"\n{section}");
    parse(&text, "a.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

fn settings(section: &str) -> ConnectionSettings {
    parsed("reflect", section).validated.connections
}

fn limits(section: &str) -> Limits {
    settings(&format!("[connections]\n{section}")).limits
}

#[test]
fn nothing_written_is_a_table_for_262144_connections() {
    for section in ["", "[connections]\n", "[connections]\nmax = \"256K\"\n"] {
        let ConnectionSettings { limits, timeouts } = settings(section);
        assert_eq!((limits, timeouts), (Limits::of(1 << 18), Timeouts::default()));
    }
    // 128 bytes a connection, and 12 bytes for each slot of the ring of half-open connections.
    assert_eq!(settings("").bytes(), (32 << 20) + (12 << 17));
}

#[test]
fn a_bound_that_is_not_written_follows_the_one_above_it() {
    let Limits { max, per_zone, half_open, half_open_per_zone, .. } = limits("max = 1000\n");
    assert_eq!((max, per_zone, half_open, half_open_per_zone), (1000, 1000, 250, 125));
    let limits = limits("max = \"1K\"\nper_port = 9\nhalf_open = 300\n");
    let Limits { per_zone, half_open, half_open_per_zone, .. } = limits;
    assert_eq!((per_zone, half_open, half_open_per_zone), (9, 300, 150));
}

#[test]
fn all_that_is_written_means_itself() {
    let section = "[connections]\nmax = \"3K\"\nper_port = 99\nhalf_open = 700\n\
        half_open_per_port = 7\ntcp_established_s = 7200\nudp_replied_s = 60\n";
    let validated: Validated = parsed("reflect", section).validated;
    let effective = validated.effective();
    assert!(effective.contains("action = \"reflect\""), "{effective}");
    assert!(effective.contains("max = \"3K\"\nper_port = \"99\"\n"), "{effective}");
    assert!(effective.contains("tcp_established_s = 7200\n"), "{effective}");
    assert_eq!(parse(&effective, "b.toml").unwrap().validated, validated);
}

#[test]
fn the_first_key_that_changed_is_named() {
    let of = |section: &str| settings(&format!("[connections]\n{section}"));
    for (changed, key) in [
        ("", None),
        ("max = \"256K\"\n", None),
        ("per_port = 1\n", Some("connections.per_port")),
        ("tcp_reset_s = 9\n", Some("connections.tcp_reset_s")),
    ] {
        assert_eq!(of("").changed_key(&of(changed)).as_deref(), key);
    }
}

#[test]
fn more_than_a_quarter_of_the_memory_is_refused_with_what_fits() {
    let gibibyte = Some(1 << 30);
    let section = "[connections]\ntcp_syn_s = 9\nmax = \"4M\"\n[cache]\nflows = \"off\"\n";
    let error = parsed("reflect", section).within(gibibyte).unwrap_err().to_string();
    assert!(error.contains("a.toml:15:7"), "{error}");
    assert!(error.contains("would take 562036736 bytes") && error.contains("\"1M\""), "{error}");
    assert!(parsed("permit", section).within(gibibyte).is_ok(), "no rule makes connections");
    assert!(parsed("reflect", section).within(Some(4 << 30)).is_ok());
}
