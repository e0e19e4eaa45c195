//! `lockgate keygen`: makes the two key files of a tunnel.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use config::{generate_pair, write_key_file};
use console::output::{print, print_json};
use ipsec::Suite;
use serde_json::json;

use crate::failure::{Failure, Usage};

/// Make the two key files of a tunnel
///
/// Makes the two key files of a tunnel, one for each end, from fresh random keys. The files are
/// readable by their owner only; nothing is overwritten and no key is shown.
#[derive(clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// The cipher suite that both ends name in [peer.NAME]
    #[arg(long, value_name = "SUITE", default_value = "aes-128-gcm", value_parser = suite)]
    suite: Suite,
    /// Directory of the two files; made if it is not there
    #[arg(long, value_name = "DIR", default_value = ".")]
    out_dir: PathBuf,
    /// One end of the tunnel; its key file is NAME_A-NAME_B.keys
    name_a: String,
    /// The other end; its key file is NAME_B-NAME_A.keys
    name_b: String,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLE: &str = "\
Example:
  lockgate keygen --out-dir keys paris berlin
makes keys/paris-berlin.keys and keys/berlin-paris.keys. The first goes into the keys_dir of
gateway paris, whose [peer.berlin] says:
  keys = \"file:paris-berlin.keys\"
  manual = \"laboratory\"
  suite = \"aes-128-gcm\"
The second goes into the keys_dir of gateway berlin, for its [peer.paris].";

/// Reads the name of a suite.
pub(crate) fn suite(name: &str) -> Result<Suite, String> {
    let names: Vec<_> = Suite::ALL.iter().map(|suite| suite.name()).collect();
    Suite::from_name(name).ok_or_else(|| format!("write one of {}", names.join(", ")))
}

/// Makes both files or, if one of them is there, neither.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let (a, b) = (&args.name_a, &args.name_b);
    if a == b {
        return Err(Usage::SameNames.into());
    }
    for name in [a, b] {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if name.is_empty() || name.starts_with(['.', '-']) || !name.chars().all(allowed) {
            return Err(Usage::BadName { name: name.clone() }.into());
        }
    }
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&args.out_dir)
        .map_err(Failure::file(&args.out_dir))?;
    let files = [format!("{a}-{b}.keys"), format!("{b}-{a}.keys")];
    let paths = files.clone().map(|file| args.out_dir.join(file));
    let texts = generate_pair(args.suite)?;
    write_key_file(&paths[0], &texts[0])?;
    if let Err(error) = write_key_file(&paths[1], &texts[1]) {
        // Half a pair is of no use and would be in the way of the next try.
        let _ = std::fs::remove_file(&paths[0]);
        return Err(error.into());
    }
    let suite = args.suite;
    if args.json {
        let end = |i: usize, gateway: &str, peer: &str| {
            let keys = format!("file:{}", files[i]);
            json!({"gateway": gateway, "peer": peer, "file": paths[i], "keys": keys})
        };
        let files = [end(0, a, b), end(1, b, a)];
        return Ok(print_json(&json!({"suite": suite.name(), "files": files}))?);
    }
    let line = |i: usize, own: &str, peer: &str| {
        let path = paths[i].display();
        format!("{path}: for gateway {own}; in its [peer.{peer}] keys = \"file:{}\"\n", files[i])
    };
    let benchmark = match suite.is_authenticated() {
        true => "",
        false => "benchmark = \"no-integrity\", ",
    };
    print(&format!(
        "{}{}both for suite = \"{suite}\", {benchmark}manual = \"laboratory\"; move each into its \
         gateway's keys_dir and keep no copy\n",
        line(0, a, b),
        line(1, b, a),
    ))?;
    Ok(())
}
