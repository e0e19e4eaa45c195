//! `cargo xtask flame`: a picture a stage of where the walk's instructions go, in `docs/flames`.
//!
//! The programs and rows are those of `cargo xtask instructions`: callgrind counts the second walk
//! of a row, with the callers of each function. So two runs draw the same picture, on any machine
//! that has the same compiler. The innermost part of a column is the source file: what is inlined
//! shows where it was written. Pictures of stores in the path of packets are by the clock: see
//! [`stores`].

mod stores;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;

use callgrind::Counts;
use inferno::flamegraph::{self, Options};

use crate::instructions::{self, Rows};
use crate::{Failure, root, setup};

/// Folder of the pictures, from the workspace's root.
const FOLDER: &str = "docs/flames";
/// The function that is counted: callers outside it are not drawn.
const COUNTED: &str = "instructions::counted";
/// Callers that callgrind keeps of each function.
const CALLERS: &str = "--separate-callers=40";

/// A picture.
struct Flame {
    /// Name of the file.
    name: &'static str,
    /// Row of `cargo xtask instructions` that is walked.
    row: &'static str,
    /// The function that is drawn, with all that it calls; empty: the whole walk.
    within: &'static str,
    title: &'static str,
}

const fn flame(
    name: &'static str,
    row: &'static str,
    within: &'static str,
    title: &'static str,
) -> Flame {
    Flame { name, row, within, title }
}

/// A picture a stage of the general walk, then the fast path, then the modes of a card; software is
/// `fast-path-esp`.
const FLAMES: [Flame; 12] = [
    flame("receive", GENERAL_OUT, "::receive::receive", "Stage 1, receive: 64-byte IPv4"),
    flame("decapsulate", GENERAL_IN, "::decapsulate::decapsulate", "Stage 2, decapsulate: ESP"),
    flame("decide", GENERAL_OUT, "::decide::decide", "Stage 3, decide: a policy from the cache"),
    flame("decide-overlay", GENERAL_OVERLAY, "::decide::decide", "Stage 3, decide: VXLAN"),
    flame("plan", GENERAL_OUT, "::plan::plan", "Stage 4, plan: lifetimes, MTU, sequence numbers"),
    flame("seal", GENERAL_OUT, "::seal::seal", "Stage 5, seal: ESP without a cipher"),
    flame("fast-path", "forward v4 64", "", "Fast path: forwarding in clear"),
    flame("fast-path-esp", "aes-128-gcm out v4 64 hit", "", "Fast path: AES-128-GCM, outbound"),
    flame("fast-path-overlay", "overlay v4 64", "", "Fast path: VXLAN between endpoints"),
    flame("offload-baseline", "bypass v4 64 hit", "", "No ESP: in clear by a BYPASS policy"),
    flame("offload-crypto", "crypto-out v4 64 hit", "", "Crypto mode: the cipher in a card"),
    flame("offload-packet", "packet-out v4 64 hit", "", "Packet mode: all of ESP in a card"),
];

const GENERAL_OUT: &str = "null out v4 64 hit general";
const GENERAL_IN: &str = "null in v4 64 hit general";
const GENERAL_OVERLAY: &str = "overlay v4 64 general";

/// Pictures to draw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pictures {
    All,
    /// Those of stores in the path of packets.
    Stores,
}

/// Draws pictures.
pub(crate) fn run(pictures: Pictures) -> Result<(), Failure> {
    let folder = root().join(FOLDER);
    fs::create_dir_all(&folder).map_err(Failure::write(&folder))?;
    match setup::is_there("valgrind") {
        _ if pictures == Pictures::Stores => {}
        true => walk(&folder)?,
        false => println!("SKIPPED: flame: there is no valgrind"),
    }
    match setup::is_there("perf") {
        true => stores::run(&folder),
        false => {
            println!("SKIPPED: flame: there is no perf");
            Ok(())
        }
    }
}

/// Draws the pictures of the walk.
fn walk(folder: &Path) -> Result<(), Failure> {
    instructions::build(Rows::All)?;
    println!("{:<20}{:>22}  of row", "picture", "instructions a packet");
    for Flame { name, row, within, title } in FLAMES {
        let (counts, packets) = instructions::walked(row, &[CALLERS])?;
        let stacks = folded(&counts, within);
        let all: u64 = stacks.values().sum();
        if all == 0 {
            return Err(Failure::Instructions { row: row.to_owned() });
        }
        let each = all as f64 / packets as f64;
        let file = folder.join(format!("{name}.svg"));
        let subtitle = format!("{each:.0} instructions a packet, row \"{row}\"");
        draw(&stacks, "instructions", [title, &subtitle], &file)?;
        println!("{name:<20}{each:>22.1}  {row}");
    }
    Ok(())
}

/// Returns the instructions by call chain, outermost function first and the source file last, in
/// the form of folded stacks: parts with ";" between them.
fn folded(counts: &Counts, within: &str) -> BTreeMap<String, u64> {
    let mut stacks = BTreeMap::new();
    for ((file, symbol), count) in counts {
        let chain: Vec<&str> = symbol.split('\'').collect();
        let inside = chain.iter().position(|function| function.ends_with(COUNTED));
        let Some(inside) = inside else { continue };
        let mut frames: Vec<&str> = chain[..inside].iter().rev().copied().collect();
        if !within.is_empty() {
            match frames.iter().position(|function| function.ends_with(within)) {
                Some(outermost) => drop(frames.drain(..outermost)),
                None => continue,
            }
        }
        let source = source(file);
        let stack = frames.iter().copied().chain([source.as_str()]).collect::<Vec<_>>().join(";");
        *stacks.entry(stack).or_default() += count;
    }
    stacks
}

/// Returns the name of a source file without the folders that differ between machines:
/// `dataplane/decide.rs` for `crates/dataplane/src/decide.rs`.
fn source(file: &str) -> String {
    match file.rsplit_once("/src/") {
        Some((package, path)) => {
            format!("{}/{path}", package.rsplit('/').next().unwrap_or(package))
        }
        None => file.rsplit('/').next().unwrap_or(file).to_owned(),
    }
}

fn draw(
    stacks: &BTreeMap<String, u64>,
    unit: &str,
    [title, subtitle]: [&str; 2],
    file: &Path,
) -> Result<(), Failure> {
    let lines: Vec<String> =
        stacks.iter().map(|(stack, count)| format!("{stack} {count}")).collect();
    let mut options = Options::default();
    options.title = title.to_owned();
    options.subtitle = Some(subtitle.to_owned());
    options.count_name = unit.to_owned();
    options.deterministic = true;
    // No script in a document; the words that do not fit are in the titles of the boxes.
    options.no_javascript = true;
    options.min_width = 0.2;
    let written = File::create(file).map_err(Failure::write(file))?;
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), written)
        .map_err(|error| Failure::write(file)(std::io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_picture_is_committed_and_the_report_shows_it() {
        let walk = FLAMES.map(|flame| (flame.name.to_owned(), flame.title));
        let stores = stores::ALL.map(|store| (store.picture(), store.title));
        let report = fs::read_to_string(root().join("docs/performance.md")).unwrap();
        for (name, title) in walk.into_iter().chain(stores) {
            let picture = root().join(FOLDER).join(format!("{name}.svg"));
            let picture = fs::read_to_string(&picture).unwrap_or_default();
            assert!(picture.contains("<svg") && picture.contains(title), "{name}");
            assert!(picture.matches("<rect").count() > 5, "{name}: no boxes");
            assert!(report.contains(&format!("(flames/{name}.svg)")), "{name} is not shown");
        }
    }

    // AX-13
    #[test]
    fn stacks_begin_with_the_stage_and_end_with_the_file() {
        let counts: Counts = [
            (("crates/a/src/b.rs", "b::f'a::stage'a::walk'x::instructions::counted'main"), 5),
            (("/far/away/c-1.2/src/d.rs", "b::f'a::stage'a::walk'instructions::counted'main"), 7),
            (("crates/a/src/b.rs", "a::other'a::walk'instructions::counted'main"), 11),
            (("crates/a/src/b.rs", "main"), 13),
        ]
        .into_iter()
        .map(|((file, symbol), count)| ((file.to_owned(), symbol.to_owned()), count))
        .collect();
        let stage = folded(&counts, "::stage");
        assert_eq!(
            stage.into_iter().collect::<Vec<_>>(),
            [("a::stage;b::f;a/b.rs".to_owned(), 5), ("a::stage;b::f;c-1.2/d.rs".to_owned(), 7)]
        );
        assert_eq!(folded(&counts, "").values().sum::<u64>(), 23);
    }
}
