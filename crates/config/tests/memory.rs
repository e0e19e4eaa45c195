//! Largest memory of the parser: [`FACTOR`] bytes for each byte of a text, and [`FIXED`].
//! Good texts of some MiB take [`FACTOR`] bytes for each byte and nothing more, with two
//! exceptions.
//! The program has no other test, because the allocator counts the whole program.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes for each byte of the text.
const FACTOR: usize = 8;
/// Bytes for each byte of a text with nothing but short routes.
const ROUTE_FACTOR: usize = 12;
/// Bytes for each byte of a text with nothing but short rules of one group, which are reviewed
/// together.
const ONE_GROUP_FACTOR: usize = 13;
/// Bytes for the tree of one section, whatever the length of the text.
const FIXED: usize = 96 << 20;

/// The allocator of the system, counted.
struct CountingAllocator;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grow(bytes: usize) {
    let held = HELD.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(held, Ordering::Relaxed);
}

// SAFETY: every call goes to the allocator of the system unchanged. Threat: another allocator's
// memory would be freed here.
unsafe impl GlobalAlloc for CountingAllocator {
    /// # Safety
    /// As [`GlobalAlloc::alloc`].
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: the caller keeps the contract. Threat: a layout of size 0.
        unsafe { System.alloc(layout) }
    }

    /// # Safety
    /// As [`GlobalAlloc::dealloc`].
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract. Threat: a pointer of another allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Parses a text, and returns the largest number of bytes that were held beside the text.
fn peak_of(text: &str) -> (usize, bool) {
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let is_good = config::parse(text, "hostile.toml").is_ok();
    (PEAK.load(Ordering::Relaxed) - before, is_good)
}

const HEAD: &str = "[node]\nname = \"a\"\n[port.lan]\nnetdev = \"e\"\nside = \"protected\"\n";
/// More than a text with a mistake may have to be read as a whole.
const BYTES: usize = 3 << 20;

/// A head and a unit, repeated up to [`BYTES`]; `#` in the unit becomes a number.
fn repeated(head: &str, unit: &str, tail: &str) -> String {
    let mut text = String::from(head);
    if !unit.contains('#') {
        text.push_str(&unit.repeat(BYTES / unit.len()));
        return text + tail;
    }
    let mut number = 0;
    while text.len() < BYTES {
        for part in unit.split_inclusive('#') {
            match part.strip_suffix('#') {
                Some(part) => {
                    text.push_str(part);
                    text.push_str(&number.to_string());
                }
                None => text.push_str(part),
            }
        }
        number += 1;
    }
    text + tail
}

/// A head and units with the numbers from 0 in the place of `#`.
fn counted(head: &str, unit: &str, count: usize) -> String {
    let units = (0..count).map(|number| unit.replace('#', &number.to_string()));
    units.fold(HEAD.to_owned() + head, |text, unit| text + &unit)
}

/// Good texts, each with its bytes for each byte. Counts just above a power of two show the cost
/// of doubling.
fn good_texts() -> [(&'static str, String, usize); 8] {
    const COUNT: usize = (1 << 15) + 1;
    let policy = "[[policy]]\nname = \"p#\"\naction = \"bypass\"\nlocal = [\"10.0.0.0/8\"]\n\
                  remote = [\"192.0.2.0/24\"]\npriority = 1\n";
    let shortest =
        "[[policy]]\nname=\"p#\"\naction=\"bypass\"\nlocal=[\"any\"]\nremote=[\"any\"]\n";
    let peer = "[peer.p#]\nlocal = \"192.0.2.1\"\nremote = \"198.51.100.1\"\nkeys = \"api\"\n\
                suite = \"aes-128-gcm\"\nmode = \"tunnel\"\n";
    let rule = |group: &str| {
        format!(
            "[[rule]]\nname=\"#\"\ngroup=\"{group}\"\naction=\"deny\"\nfrom=[\"any\"]\n\
             to=[\"any\"]\n"
        )
    };
    let groups: Vec<String> = (0..64).map(|number| format!("g{number}")).collect();
    let sections: String = groups.iter().map(|group| format!("[group.{group}]\n")).collect();
    let rules: String = groups.iter().map(|group| rule(group)).collect();
    let hosts: String = (0..4000).map(|n| format!("\"10.#.{}.{}\",", n >> 8, n & 255)).collect();
    let hosts = format!("{}{hosts}]\n", shortest.replace("local=[\"any\"]\n", "") + "local=[");
    let routes = (0..COUNT)
        .map(|n| format!("[[route]]\nto=\"11.{}.{}.0/24\"\nport=\"lan\"\n", n >> 8, n & 255));
    [
        ("policies", counted("", policy, COUNT), FACTOR),
        ("policies at 3 MiB", repeated(HEAD, policy, ""), FACTOR),
        ("shortest policies", counted("", shortest, COUNT), FACTOR),
        ("long lists", counted("", &hosts, 60), FACTOR),
        ("peers", counted("", peer, COUNT), FACTOR),
        ("rules", counted(&sections, &rules, COUNT / 64 + 1), FACTOR),
        ("rules of one group", counted(&sections, &rule("g1"), COUNT), ONE_GROUP_FACTOR),
        ("routes", HEAD.to_owned() + &routes.collect::<String>(), ROUTE_FACTOR),
    ]
}

#[test]
fn parsing_takes_a_multiple_of_the_text_and_a_fixed_part() {
    let long_list = format!("[[policy]]\nlocal = [{}]\n", "1,".repeat(60_000));
    let inputs = [
        ("numbers", repeated(&format!("{HEAD}addresses=["), "1,", "]\n")),
        ("lists", repeated(&format!("{HEAD}addresses=["), "[],", "]\n")),
        ("strings", repeated(&format!("{HEAD}addresses=["), "\"::\",", "]\n")),
        ("lists of entries", repeated(HEAD, &long_list, "")),
        ("ports", repeated("[node]\nname = \"a\"\n", "[port.p#]\n", "")),
        ("groups", repeated(HEAD, "[group.g#]\n", "")),
        ("networks", repeated(HEAD, "[vni.#]\n", "")),
        ("unknown sections", repeated(HEAD, "[x#]\n", "")),
        ("empty routes", repeated(HEAD, "[[route]]\n", "")),
        ("empty policies", repeated(HEAD, "[[policy]]\n", "")),
        ("dotted keys", repeated(HEAD, "a#.b.c=1\n", "")),
        ("keys", repeated(HEAD, "a#=1\n", "")),
        ("top keys", repeated("", "a#=1\n", HEAD)),
        ("inline tables", repeated(HEAD, "a#={b=1,c={}}\n", "")),
        ("one inline table", repeated(&format!("{HEAD}x={{"), "a#=1,", "}\n")),
        ("long string", repeated(&format!("{HEAD}x=\""), "xxxxxxxxxxxxxxxx", "\"\n")),
        ("escapes", repeated(&format!("{HEAD}x=\""), "\\\\\\\\", "\"\n")),
        ("comments", format!("{HEAD}{}", "#\n".repeat(BYTES / 2))),
        ("empty lines", repeated(HEAD, "\n", "")),
        ("brackets", repeated(HEAD, "[", "")),
        ("headers that do not end", repeated(HEAD, "[\n", "")),
        ("garbage", repeated(HEAD, "@\n", "")),
        ("quotes", repeated(HEAD, "\"\n", "")),
    ];
    for (what, text) in inputs {
        let (peak, is_good) = peak_of(&text);
        report(what, &text, peak);
        assert!(!is_good, "{what}");
        assert!(peak <= FACTOR * text.len() + FIXED, "{what}: {peak} bytes of {}", text.len());
    }
    for (what, text, factor) in good_texts() {
        let (peak, is_good) = peak_of(&text);
        report(what, &text, peak);
        assert!(is_good, "{what}");
        assert!(peak <= factor * text.len(), "{what}: {peak} bytes of {}", text.len());
    }
}

fn report(what: &str, text: &str, peak: usize) {
    let factor = peak as f64 / text.len() as f64;
    println!("{what}: {} bytes, {factor:.1} times as much held", text.len());
}
