//! Reads what valgrind's callgrind wrote.
//!
//! Not crate `gungraun`: it reports what functions take that its own runner starts. Here the counts
//! of a program that is there anyway are wanted, by source file and symbol.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};

/// Instructions by source file and symbol.
pub type Counts = BTreeMap<(String, String), u64>;

/// Reads what callgrind wrote: the instructions that each file's lines and each symbol took
/// themselves, calls not counted.
pub fn read(text: &str) -> Counts {
    let (mut names, mut counts) = (HashMap::new(), Counts::new());
    let (mut file, mut symbol) = (String::new(), String::new());
    let mut is_call = false;
    for line in text.lines() {
        if let Some((key, value)) = line.split_once('=').filter(|(key, _)| is_key(key)) {
            // fi and fe: inlined from another file. c…: of the function that is called.
            match key {
                "fl" | "fi" | "fe" => file = name(&mut names, "file", value),
                "fn" => symbol = name(&mut names, "symbol", value),
                "cfi" | "cfl" => drop(name(&mut names, "file", value)),
                "cfn" => drop(name(&mut names, "symbol", value)),
                "calls" => is_call = true,
                _ => {}
            }
            continue;
        }
        let begins = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'*');
        if !line.as_bytes().first().is_some_and(begins) {
            continue;
        }
        // The line behind "calls" is what the call took, callee and all.
        if std::mem::take(&mut is_call) {
            continue;
        }
        if let Some(Ok(count)) = line.split(' ').nth(1).map(str::parse::<u64>) {
            *counts.entry((file.clone(), symbol.clone())).or_default() += count;
        }
    }
    counts
}

fn is_key(key: &str) -> bool {
    key.len() <= 5 && key.bytes().all(|byte| byte.is_ascii_lowercase())
}

/// A name, which is spelt out the first time, `(7) name`, and then only numbered, `(7)`.
fn name(names: &mut HashMap<(&str, String), String>, kind: &'static str, text: &str) -> String {
    match text.split_once(") ") {
        Some((number, name)) => {
            names.insert((kind, format!("{number})")), name.to_owned());
            name.to_owned()
        }
        None => names.get(&(kind, text.to_owned())).cloned().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
version: 1
cmd: lockgate bench
events: Ir
fl=(1) crates/dataplane/src/walk.rs
fn=(1) walk
10 100
+2 20
fi=(2) library/core/slice.rs
5 12
fe=(1)
cfi=(3) /aws-lc/gcm.c
cfn=(2) gcm
calls=7 40
12 5000
* 4
fl=(3)
fn=(2)
40 4000
41 1000
fl=(4) crates/dataplane/src/seal.rs
fn=(1)
-3 24
fl=(5) memmove.S
fn=(3) memmove
1 8
totals: 5168
";

    #[test]
    fn own_instructions_are_counted_and_those_of_calls_are_not() {
        let counts = read(TEXT);
        let of = |file: &str, symbol: &str| counts[&(file.to_owned(), symbol.to_owned())];
        assert_eq!(of("crates/dataplane/src/walk.rs", "walk"), 124);
        assert_eq!(of("library/core/slice.rs", "walk"), 12);
        assert_eq!(of("/aws-lc/gcm.c", "gcm"), 5000);
        assert_eq!(counts.values().sum::<u64>(), 5168, "the total that is written there");
    }
}
