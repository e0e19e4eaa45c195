//! Looks at the machine code of the flow cache's lookup in an optimised program: it turns no bytes
//! around and locks nothing (acceptance rows FC-27, FC-30).
//!
//! The lookup is inlined into the walk, beside the parser, which reads headers in network order and
//! does turn bytes around. So each instruction in question is asked, by `addr2line`, of which
//! functions it is inlined: those of the cache's files and of its hash must not be among them. Two
//! other questions show that the answers mean something: prefetches are found in the lookup of both
//! families, and bytes that are turned around in the parser's `head_v4`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use crate::instructions::{PROGRAM, built};
use crate::runs::{Counts, Outcome};
use crate::{Failure, cargo, display, output, program, setup, succeed, target_directory};

/// Files of the lookup.
const LOOKUP: [&str; 2] = ["crates/dataplane/src/cache/", "crates/cpu/src/aes.rs"];
/// Functions, as `addr2line` names them, that ask for a line of the table: of both families.
const PREFETCHED: [&str; 2] = ["look_up_scope<2, 4", "look_up_scope<6, 8"];
/// The parser's function that turns the addresses around.
const PARSED: &str = "head_v4";

/// An instruction that is looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Turns bytes around.
    Swap,
    /// Reads, modifies and writes memory that others may write, too.
    Locked,
    /// Asks for a line of memory.
    Prefetch,
}

/// An instruction with the functions it is of, the innermost first: name and file.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Found {
    kind: Kind,
    address: u64,
    functions: Vec<(String, String)>,
}

impl Found {
    fn is_of_lookup(&self) -> bool {
        let is_of = |file: &str| LOOKUP.iter().any(|part| file.contains(part));
        self.functions.iter().any(|(_, file)| is_of(file))
    }

    fn is_within(&self, function: &str) -> bool {
        self.functions.iter().any(|(name, _)| name.contains(function))
    }
}

/// Checks the program that counts instructions. Skipped without binutils and on other processors.
pub(crate) fn check() -> Result<Outcome, Failure> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(Outcome::Skipped("it knows the instructions of x86-64 alone"));
    }
    if !(setup::is_there("objdump") && setup::is_there("addr2line")) {
        return Ok(Outcome::Skipped("there is no objdump or no addr2line (package binutils)"));
    }
    succeed(cargo().args(["build", "--profile", PROGRAM, "--package", PROGRAM]))?;
    let (of, addresses) = (built(PROGRAM), target_directory().join(PROGRAM).join("addresses"));
    let found = attributed(&of, &addresses, instructions(&of)?)?;
    let mut counts = Counts::default();
    for (what, holds) in judged(&found) {
        println!("{} {what}", if holds { "ok    " } else { "FAILED" });
        match holds {
            true => counts.add_passed(),
            false => counts.add_failed(),
        }
    }
    for it in found.iter().filter(|it| it.kind != Kind::Prefetch && it.is_of_lookup()) {
        println!("{:#x} {:?}: {:?}", it.address, it.kind, it.functions);
    }
    Ok(if counts.failed() > 0 { Outcome::Failed(counts) } else { Outcome::Passed(counts) })
}

/// Says of each thing that must be true of the instructions if it is.
fn judged(found: &[Found]) -> [(&'static str, bool); 4] {
    let of = |kind: Kind| found.iter().filter(move |it| it.kind == kind);
    let asks = |name: &str| of(Kind::Prefetch).any(|it| it.is_of_lookup() && it.is_within(name));
    [
        ("the lookup of both families is found", PREFETCHED.iter().all(|name| asks(name))),
        ("the parser turns bytes around", of(Kind::Swap).any(|it| it.is_within(PARSED))),
        ("the lookup turns no bytes around", !of(Kind::Swap).any(Found::is_of_lookup)),
        ("the lookup locks nothing", !of(Kind::Locked).any(Found::is_of_lookup)),
    ]
}

/// Disassembles a program, and returns the instructions in question with their addresses.
fn instructions(of: &Path) -> Result<Vec<(u64, Kind)>, Failure> {
    let mut command = program("objdump");
    command.args(["--disassemble", "--no-show-raw-insn"]).arg(of).stdout(Stdio::piped());
    let name = display(&command);
    let start = |error| Failure::Start { program: name.clone(), error };
    let mut child = command.spawn().map_err(start)?;
    let mut found = Vec::new();
    if let Some(text) = child.stdout.take() {
        for line in BufReader::new(text).lines() {
            found.extend(instruction(&line.map_err(Failure::read(of))?));
        }
    }
    match child.wait().map_err(Failure::read(of))? {
        status if status.success() => Ok(found),
        status => Err(Failure::Program { program: name, status }),
    }
}

/// Reads a line of a disassembly. `None`: it is no instruction in question.
fn instruction(line: &str) -> Option<(u64, Kind)> {
    let (address, rest) = line.trim_start().split_once(":\t")?;
    let mut words = rest.split_whitespace();
    let word = words.next()?;
    let kind = match word {
        "bswap" | "movbe" => Kind::Swap,
        "lock" => Kind::Locked,
        // With memory it locks by itself.
        _ if word.starts_with("xchg") && rest.contains('(') => Kind::Locked,
        _ if word.starts_with("prefetch") => Kind::Prefetch,
        _ => return None,
    };
    Some((u64::from_str_radix(address, 16).ok()?, kind))
}

/// Finds the functions of each instruction. Writes the addresses into a file.
fn attributed(of: &Path, addresses: &Path, found: Vec<(u64, Kind)>) -> Result<Vec<Found>, Failure> {
    let lines: String = found.iter().map(|(address, _)| format!("{address:#x}\n")).collect();
    std::fs::write(addresses, lines).map_err(Failure::write(addresses))?;
    let mut command = program("addr2line");
    command.args(["--addresses", "--inlines", "--functions", "--demangle", "--exe"]).arg(of);
    let text = output(command.arg(format!("@{}", addresses.display())))?;
    let functions = functions(&text);
    let found = found.into_iter().zip(functions);
    Ok(found.map(|((address, kind), functions)| Found { kind, address, functions }).collect())
}

/// Reads the functions that `addr2line` says, address by address.
fn functions(text: &str) -> Vec<Vec<(String, String)>> {
    let mut all: Vec<Vec<(String, String)>> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        match (line.starts_with("0x"), all.last_mut()) {
            (true, _) => all.push(Vec::new()),
            (false, Some(of)) => {
                of.push((line.to_owned(), lines.next().unwrap_or_default().to_owned()));
            }
            (false, None) => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_in_question_are_read_and_others_are_not() {
        let of = |line| instruction(line).map(|(_, kind)| kind);
        assert_eq!(instruction("  1c231a:\tbswap  %rax"), Some((0x1c_231a, Kind::Swap)));
        assert_eq!(of("  10:\tmovbe  0xc(%rdi),%eax"), Some(Kind::Swap));
        assert_eq!(of("  10:\tlock cmpxchg %rcx,(%rdx)"), Some(Kind::Locked));
        assert_eq!(of("  10:\txchg   %al,(%rdx)"), Some(Kind::Locked));
        assert_eq!(of("  10:\txchg   %ax,%ax"), None, "that does nothing");
        assert_eq!(of("  10:\tprefetcht0 (%rax)"), Some(Kind::Prefetch));
        assert_eq!(of("  10:\tmov    %rax,(%rdx)"), None);
        assert_eq!(of("00000000000f1a00 <bswap>:"), None);
    }

    // FC-27, FC-30
    #[test]
    fn swaps_and_locks_in_the_lookup_are_found_and_those_of_the_parser_are_not_its_own() {
        let said = "0x1\nask_for<4>\na/crates/dataplane/src/cache/table.rs:4\n\
            look_up_scope<2, 4, false>\na/crates/dataplane/src/cache/column.rs:9\n\
            0x2\nask_for<8>\na/crates/dataplane/src/cache/table.rs:4\n\
            look_up_scope<6, 8, false>\na/crates/dataplane/src/cache/column.rs:9\n\
            0x3\nfrom_be\n/core/num.rs:1\nhead_v4\na/crates/dataplane/src/fastpath/clear.rs:4\n\
            0x4\nfetch_add\n/core/atomic.rs:1\nlook_up\na/crates/dataplane/src/cache/lane.rs:4\n";
        let kinds = |last| [Kind::Prefetch, Kind::Prefetch, Kind::Swap, last];
        let judged_with = |last| {
            let found = kinds(last).into_iter().zip(functions(said));
            let found = found.map(|(kind, functions)| Found { kind, address: 0, functions });
            judged(&found.collect::<Vec<_>>()).map(|(_, holds)| holds)
        };
        assert_eq!(judged_with(Kind::Prefetch), [true; 4]);
        assert_eq!(judged_with(Kind::Swap), [true, true, false, true]);
        assert_eq!(judged_with(Kind::Locked), [true, true, true, false]);
        assert_eq!(judged(&[]).map(|(_, holds)| holds), [false, false, true, true]);
    }
}
