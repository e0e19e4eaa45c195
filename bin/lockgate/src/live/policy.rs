//! `lockgate policy add|del|change`: single policies of the running gateway, as one transaction.

use std::fmt::Write;
use std::path::PathBuf;

use api::v1;
use clap::Subcommand;

use super::change::{ChangeOptions, Document, answer};
use super::{Ask, Socket};
use crate::failure::Failure;
use crate::input::Input;

/// Add and remove policies of the running gateway
///
/// All or nothing, while traffic runs: when the command answers, every worker uses the new set.
/// Each change is a revision of its own (`lockgate show revisions`, `rollback`); `lockgate export`
/// writes what runs. Ends with 0 if the change runs, with 1 if it was refused: then nothing
/// changed.
///
/// A change that takes packets from a PROTECT policy is refused unless you add --yes: if packets
/// that the policy protects would then leave in cleartext or with another peer. The refusal names
/// the policies and a packet.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Add(Box<AddArgs>),
    Del(DelArgs),
    Change(ChangeArgs),
}

/// Add a policy, or all policies of a file
///
/// Without --file, --name, --local, --remote and either --peer or --action are required; write
/// `any` for all addresses.
#[derive(clap::Args)]
struct AddArgs {
    /// A file of `[[policy]]` sections, instead of the options below; `-` reads standard input
    #[arg(value_name = "FILE", conflicts_with = "PolicyOptions")]
    path: Option<PathBuf>,
    /// The file, as an option instead of FILE
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["PolicyOptions", "path"])]
    file: Option<PathBuf>,
    #[command(flatten)]
    written: PolicyOptions,
    #[command(flatten)]
    how: How,
}

/// Remove policies
#[derive(clap::Args)]
struct DelArgs {
    /// Names of the policies (`lockgate show policy`)
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    #[command(flatten)]
    how: How,
}

/// Remove and add policies in one step
///
/// A policy that is removed and added under the same name is replaced: no packet finds neither.
#[derive(clap::Args)]
struct ChangeArgs {
    /// A file of `[[policy]]` sections to add; `-` reads standard input
    #[arg(short = 'f', long, visible_alias = "file", value_name = "FILE")]
    add: Option<PathBuf>,
    /// Names of policies to remove
    #[arg(long, value_name = "NAME", num_args = 1.., required_unless_present = "add")]
    del: Vec<String>,
    #[command(flatten)]
    how: How,
}

#[derive(clap::Args)]
struct How {
    #[command(flatten)]
    options: ChangeOptions,
    /// Change it even if packets of a PROTECT policy would then leave in cleartext or with another
    /// peer
    #[arg(long)]
    yes: bool,
}

/// One policy; its options are named and written as the keys of `[[policy]]` are. A list may be
/// separated by commas.
#[derive(clap::Args, Default)]
struct PolicyOptions {
    /// Name of the policy
    #[arg(long, required_unless_present_any = ["file", "path"])]
    name: Option<String>,
    /// protect (follows from --peer), bypass or discard
    #[arg(long)]
    action: Option<String>,
    /// Peer of a protect policy
    #[arg(long)]
    peer: Option<String>,
    /// Addresses on the gateway's side: prefixes, ranges or any
    #[arg(long, value_delimiter = ',', value_name = "ADDRESSES",
          required_unless_present_any = ["file", "path"])]
    local: Vec<String>,
    /// Addresses on the peer's side: prefixes, ranges or any
    #[arg(long, value_delimiter = ',', value_name = "ADDRESSES",
          required_unless_present_any = ["file", "path"])]
    remote: Vec<String>,
    /// any, a name or a number
    #[arg(long)]
    protocol: Option<String>,
    /// Ports on the gateway's side: numbers or ranges
    #[arg(long, value_delimiter = ',', value_name = "PORTS")]
    local_ports: Vec<String>,
    /// Ports on the peer's side
    #[arg(long, value_delimiter = ',', value_name = "PORTS")]
    remote_ports: Vec<String>,
    /// ICMP messages: TYPE or TYPE/CODE
    #[arg(long, value_delimiter = ',', value_name = "MESSAGES")]
    icmp: Vec<String>,
    /// Priority: the highest decides; among equals the newest, so a new policy precedes all others
    /// of its priority [default: 100]
    #[arg(long)]
    priority: Option<u32>,
    /// both, inbound or outbound
    #[arg(long)]
    direction: Option<String>,
    /// Ports by which a packet must arrive
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    ports: Vec<String>,
}

/// Sends the change and prints the result.
pub(crate) fn run(args: &Args, socket: &Socket) -> Result<(), Failure> {
    let of_file = |file: &PathBuf| {
        Document::read(&Input::of(file)).map(|Document { text, file, .. }| (text, file))
    };
    let ((add, file), remove, how) = match &args.what {
        What::Add(args) => {
            let written = || Ok((args.written.section(), "the command line".to_owned()));
            let file = args.path.as_ref().or(args.file.as_ref());
            (file.map_or_else(written, of_file)?, Vec::new(), &args.how)
        }
        What::Del(args) => (Default::default(), args.names.clone(), &args.how),
        What::Change(args) => {
            let nothing = || Ok(Default::default());
            let added = args.add.as_ref().map_or_else(nothing, of_file)?;
            (added, args.del.clone(), &args.how)
        }
    };
    let request = v1::ChangePoliciesRequest {
        add,
        remove,
        file,
        dry_run: how.options.dry_run,
        save: how.options.save,
        yes: how.yes,
    };
    let applied = Ask::new(socket)?.call(async |client| client.change_policies(request).await)?;
    answer(&applied, how.options.json)
}

impl PolicyOptions {
    /// Returns the policy as a section of a configuration. Options not given are left out, so that
    /// the daemon's defaults and error messages apply.
    fn section(&self) -> String {
        let mut text = String::from("[[policy]]\n");
        let words = [
            ("name", &self.name),
            ("action", &self.action),
            ("peer", &self.peer),
            ("protocol", &self.protocol),
            ("direction", &self.direction),
        ];
        for (key, word) in words {
            if let Some(word) = word {
                let _ = writeln!(text, "{key} = {}", quoted(word));
            }
        }
        let lists = [
            ("local", &self.local),
            ("remote", &self.remote),
            ("local_ports", &self.local_ports),
            ("remote_ports", &self.remote_ports),
            ("icmp", &self.icmp),
            ("ports", &self.ports),
        ];
        for (key, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
            let _ = writeln!(text, "{key} = {}", string_list(list));
        }
        if let Some(priority) = self.priority {
            let _ = writeln!(text, "priority = {priority}");
        }
        text
    }
}

/// A TOML list of strings.
pub(super) fn string_list(list: &[String]) -> String {
    let entries: Vec<String> = list.iter().map(|entry| quoted(entry)).collect();
    format!("[{}]", entries.join(", "))
}

/// A TOML string: what JSON escapes, it does too.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_the_section_that_a_file_would_have() {
        let written = PolicyOptions {
            name: Some("a \"b\"".into()),
            peer: Some("berlin".into()),
            local: vec!["10.1.0.0/16".into(), "10.3.0.0/16".into()],
            remote: vec!["any".into()],
            protocol: Some("tcp".into()),
            remote_ports: vec!["443".into(), "8000-8999".into()],
            priority: Some(7),
            ..PolicyOptions::default()
        };
        let text = "[[policy]]\nname = \"a \\\"b\\\"\"\npeer = \"berlin\"\nprotocol = \"tcp\"\n\
                    local = [\"10.1.0.0/16\", \"10.3.0.0/16\"]\nremote = [\"any\"]\n\
                    remote_ports = [\"443\", \"8000-8999\"]\npriority = 7\n";
        assert_eq!(written.section(), text);
    }
}
