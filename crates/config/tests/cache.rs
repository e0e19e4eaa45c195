//! Sizes of the flow cache, and those that are refused.

use config::validated::{Cache, CacheSize, CacheUse};
use config::{Parsed, Severity, parse};

const HEAD: &str = "[node]\nname = \"a\"\n[port.wan]\nnetdev = \"eth0\"\nside = \"unprotected\"\n";

fn parsed(cache: &str) -> Parsed {
    let text = format!("{HEAD}{cache}");
    parse(&text, "a.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

/// The cache of a `[cache]` section.
fn cache(section: &str) -> Cache {
    parsed(section).validated.cache
}

fn of_flows(flows: u64) -> Cache {
    cache(&format!("[cache]\nflows = {flows}\n"))
}

fn entries(flows: u64, workers: u32) -> u64 {
    of_flows(flows).size(workers).unwrap().entries
}

#[test]
fn nothing_written_is_a_million_flows_at_a_load_of_a_quarter() {
    // FC-10
    for section in ["", "[cache]\n", "[cache]\nflows = \"1M\"\nuse = \"auto\"\n"] {
        let cache = cache(section);
        assert_eq!(cache, Cache::On { flows: 1 << 20, usage: CacheUse::Auto });
        let whole = CacheSize { entries: 4_194_304, bytes: 134_217_728 };
        assert_eq!(cache.size(1), Some(whole));
        for workers in [2, 4, 256] {
            let CacheSize { entries, bytes } = cache.size(workers).unwrap();
            let all = u64::from(workers);
            assert_eq!((entries * all, bytes * all), (whole.entries, whole.bytes));
        }
    }
}

#[test]
fn sizes_are_rounded_up_to_a_power_of_two() {
    // FC-11: a table of so many flows has four entries for each.
    for (flows, held) in [(1000, 1024), (1024, 1024), (1025, 2048), (16, 16), (2, 2), (3, 4)] {
        assert_eq!(entries(flows, 1), held * 4, "{flows} flows");
        assert_eq!(of_flows(flows).flows(), flows);
    }
    // The share of each worker again: no worker has less than its part.
    for (flows, workers, each) in [(1024, 3, 2048), (1000, 2, 2048), (1 << 20, 3, 2 << 20)] {
        assert_eq!(entries(flows, workers), each, "{flows} flows, {workers} workers");
    }
    for workers in 1..=256 {
        for flows in [2, 3, 63, 64, 65, (1 << 20) - 1, 1 << 26] {
            let each = entries(flows, workers);
            assert!(each.is_power_of_two() && each >= Cache::LEAST_ENTRIES);
            assert!(each * u64::from(workers) >= flows * Cache::ENTRIES_PER_FLOW);
        }
    }
}

#[test]
fn off_allocates_nothing() {
    // FC-12, FC-13
    let off = cache("[cache]\nflows = \"off\"\n");
    assert_eq!((off, off.flows(), off.size(1), off.size(64)), (Cache::Off, 0, None, None));
}

#[test]
fn a_cache_that_is_asked_everywhere_has_the_same_size() {
    let always = cache("[cache]\nuse = \"always\"\n");
    assert_eq!(always, Cache::On { flows: 1 << 20, usage: CacheUse::Always });
    assert_eq!(always.size(2), cache("").size(2));
}

#[test]
fn more_than_half_of_the_memory_is_refused_with_what_fits() {
    // FC-11
    let mebibyte = 1 << 20;
    let default = || parsed("[cache]\nflows = \"1M\"\n");
    for memory in [None, Some(u64::MAX), Some(256 * mebibyte)] {
        assert!(default().within(memory).is_ok(), "{memory:?}");
    }
    for (memory, advice) in [
        (256 * mebibyte - 2, "flows = \"512K\""),
        (mebibyte, "flows = \"4K\""),
        (1024, "flows = \"4\""),
    ] {
        let errors = default().within(Some(memory)).unwrap_err();
        let text = errors.to_string();
        assert!(
            text.contains("a.toml:7:9: error: the flow cache would take 134217728 bytes"),
            "{text}"
        );
        assert!(text.contains(advice), "{text}");
    }
    // What it advises is what it takes.
    let fits = parsed("[cache]\nflows = \"512K\"\n");
    assert!(fits.within(Some(256 * mebibyte - 2)).is_ok());
    assert!(parsed("[cache]\nflows = \"off\"\n").within(Some(0)).is_ok());
    let without = parsed("").within(Some(0)).unwrap_err();
    assert_eq!((without.errors(), without.problems[0].severity), (1, Severity::Error));
}
