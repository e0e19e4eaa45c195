//! `lockgate check`: checks a configuration and its key files.

use std::path::PathBuf;

use config::{ConfigErrors, Diagnostic, Loaded, Severity, Validated};
use console::output::{OutputError, complain, counted, print, print_json};
use dataplane::Generation;
use serde_json::json;

use crate::failure::Failure;
use crate::input::{FileArgs, Input};

/// Check a configuration and its key files; change nothing
///
/// Reads a configuration and the key files it names, and reports every mistake. Changes nothing and
/// asks no daemon. Ends with 0 if the configuration can be used (there may be warnings), with 1 if
/// not.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    file: FileArgs,
    /// Read the key files from this directory instead of the configuration's `keys_dir`
    #[arg(long, value_name = "DIR")]
    keys_dir: Option<PathBuf>,
    /// Print the configuration with every default
    #[arg(long)]
    effective: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Checks, prints, and fails with [`Failure::Bad`] if there are errors.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let input = args.file.input();
    match input.loaded(args.keys_dir.as_deref()) {
        Ok(Loaded { validated, warnings, keys }) => {
            // What a gateway does next; a mistake that shows only here is a fault of ours.
            let (keys, _) = keys.for_replay(&validated, &[])?;
            let compiled = control::compile(&validated, keys, Generation(1));
            compiled.map_err(|error| Failure::Compile { file: input.name().into(), error })?;
            match args.json {
                true => print_json(&answer(args, &input, Some(&validated), &warnings)),
                false => accepted(args, &input, &validated, &warnings),
            }?;
            Ok(())
        }
        Err(errors) => {
            if args.json {
                print_json(&refusal(args, &input, &errors))?;
            } else {
                refused(&input, &errors);
            }
            Err(Failure::Bad)
        }
    }
}

fn accepted(
    args: &Args,
    input: &Input,
    validated: &Validated,
    warnings: &[Diagnostic],
) -> Result<(), OutputError> {
    complain(&config::render(warnings));
    if args.effective {
        return print(&validated.effective());
    }
    let count = |list: usize, noun| counted(list as u64, noun);
    let policies = match validated.policies.len() {
        1 => "1 policy".to_owned(),
        many => format!("{many} policies"),
    };
    print(&format!(
        "{}: OK: node {}, {}, {}, {policies}, {}; {}\n",
        input.name(),
        validated.node.name,
        count(validated.ports.len(), "port"),
        count(validated.peers.len(), "peer"),
        count(validated.routes.len(), "route"),
        count(warnings.len(), "warning"),
    ))
}

fn refused(input: &Input, errors: &ConfigErrors) {
    complain(&config::render(&errors.problems));
    let warnings = errors.problems.len() - errors.errors();
    let total = (errors.errors() + errors.untold) as u64;
    let (total, warnings) = (counted(total, "error"), counted(warnings as u64, "warning"));
    complain(&format!("{}: refused: {total}, {warnings}\n", input.name()));
}

fn refusal(args: &Args, input: &Input, errors: &ConfigErrors) -> serde_json::Value {
    let mut answer = answer(args, input, None, &errors.problems);
    answer["errors"] = json!(errors.errors() + errors.untold);
    answer
}

fn answer(
    args: &Args,
    input: &Input,
    good: Option<&Validated>,
    problems: &[Diagnostic],
) -> serde_json::Value {
    let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).count();
    json!({
        "file": input.name(),
        "ok": good.is_some(),
        "errors": errors,
        "warnings": problems.len() - errors,
        "problems": problems,
        "effective": good.filter(|_| args.effective).map(Validated::effective),
    })
}
