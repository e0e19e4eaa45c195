//! `lockgate check`: judges a configuration and its key files.

use std::path::{Path, PathBuf};

use control::{ConfigErrors, Loaded, Problem, Severity, Validated};
use dataplane::Generation;
use serde_json::json;

use crate::failure::Failure;
use crate::output::{counted, print, print_json};

/// Judge a configuration and its key files; change nothing
///
/// Judges a configuration file and the key files it names; changes nothing. Ends with 0 if the
/// configuration can be used (there may be warnings), with 1 if not.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration
    file: PathBuf,
    /// Print the whole configuration with every default written out
    #[arg(long)]
    effective: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Judges, prints, and fails with [`Failure::Bad`] if there are errors.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match control::load(&args.file) {
        Ok(Loaded { validated, warnings, keys }) => {
            // What a gateway does next; a mistake that shows only here is a fault of ours.
            let (keys, _) = keys.for_replay(&validated, &[])?;
            let compiled = validated.compile(keys, Generation(1));
            compiled.map_err(|error| Failure::Compile { file: args.file.clone(), error })?;
            match args.json {
                true => print_json(&answer(args, Some(&validated), &warnings)),
                false => accepted(args, &validated, &warnings),
            }
            Ok(())
        }
        Err(errors) => {
            if args.json {
                print_json(&answer(args, None, &errors.problems));
            } else {
                refused(&args.file, &errors);
            }
            Err(Failure::Bad)
        }
    }
}

fn accepted(args: &Args, validated: &Validated, warnings: &[Problem]) {
    eprint!("{}", control::render(warnings));
    if args.effective {
        print(&validated.effective());
        return;
    }
    let count = |list: usize, noun| counted(list as u64, noun);
    let policies = match validated.policies.len() {
        1 => "1 policy".to_owned(),
        many => format!("{many} policies"),
    };
    print(&format!(
        "{}: good: node {}, {}, {}, {policies}, {}; {}\n",
        args.file.display(),
        validated.node.name,
        count(validated.ports.len(), "port"),
        count(validated.peers.len(), "peer"),
        count(validated.routes.len(), "route"),
        count(warnings.len(), "warning"),
    ));
}

fn refused(file: &Path, errors: &ConfigErrors) {
    eprint!("{}", control::render(&errors.problems));
    let warnings = errors.problems.len() - errors.errors();
    let total = (errors.errors() + errors.untold) as u64;
    let (total, warnings) = (counted(total, "error"), counted(warnings as u64, "warning"));
    eprintln!("{}: bad: {total}, {warnings}", file.display());
}

fn answer(args: &Args, good: Option<&Validated>, problems: &[Problem]) -> serde_json::Value {
    let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).count();
    json!({
        "file": args.file,
        "ok": good.is_some(),
        "errors": errors,
        "warnings": problems.len() - errors,
        "problems": problems,
        "effective": good.filter(|_| args.effective).map(Validated::effective),
    })
}
