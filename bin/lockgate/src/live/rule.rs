//! `lockgate rule add|del` and `lockgate set add|del`: single rules of security groups, and members
//! of sets, in the running configuration.
//!
//! The command exports what runs, makes the change in its text and applies it, if the same revision
//! still runs then: all is judged and compiled as `apply` does.

use api::v1;
use clap::Subcommand;
use config::{GroupEdit, with_group_edit};

use super::change::{ChangeOptions, answer};
use super::policy::{quoted, string_list};
use super::{Ask, Socket};
use crate::failure::Failure;

/// Add and remove rules of security groups of the running gateway
///
/// The whole configuration is compiled anew, as by `apply`; traffic goes on. Each change is a
/// revision of its own (`lockgate show revisions`, `rollback`). Ends with 0 if the change runs,
/// with 1 if it was refused: then nothing changed.
#[derive(clap::Args)]
pub(crate) struct RuleArgs {
    #[command(subcommand)]
    what: RuleWhat,
}

#[derive(Subcommand)]
enum RuleWhat {
    Add(Box<AddRuleArgs>),
    Del(DelRuleArgs),
}

/// Add a rule to a group
///
/// The options are named and written as the keys of `[[rule]]` are. A list may be separated by
/// commas.
#[derive(clap::Args)]
struct AddRuleArgs {
    /// The group
    #[arg(long)]
    group: String,
    /// Name of the rule
    #[arg(long)]
    name: String,
    /// permit, deny or reflect
    #[arg(long)]
    action: String,
    /// Sources: prefixes, ranges, @SET or any
    #[arg(long, value_delimiter = ',', value_name = "ADDRESSES", required = true)]
    from: Vec<String>,
    /// Destinations: prefixes, ranges, @SET or any
    #[arg(long, value_delimiter = ',', value_name = "ADDRESSES", required = true)]
    to: Vec<String>,
    /// any, a name or a number
    #[arg(long)]
    protocol: Option<String>,
    /// Source ports: numbers or ranges
    #[arg(long, value_delimiter = ',', value_name = "PORTS")]
    from_ports: Vec<String>,
    /// Destination ports
    #[arg(long, value_delimiter = ',', value_name = "PORTS")]
    to_ports: Vec<String>,
    /// TCP segments: new (SYN without ACK) or established (all others)
    #[arg(long, value_name = "KIND")]
    tcp: Option<String>,
    /// ICMP messages: TYPE or TYPE/CODE
    #[arg(long, value_delimiter = ',', value_name = "MESSAGES")]
    icmp: Vec<String>,
    /// Name of the rule of the group before which it is asked [default: behind all]
    #[arg(long, value_name = "RULE")]
    before: Option<String>,
    #[command(flatten)]
    how: ChangeOptions,
}

/// Remove rules
#[derive(clap::Args)]
struct DelRuleArgs {
    /// Names of the rules (`lockgate show group`)
    #[arg(value_name = "GROUP/RULE", required = true)]
    names: Vec<String>,
    #[command(flatten)]
    how: ChangeOptions,
}

/// Add and remove members of the sets that rules name
///
/// The whole configuration is compiled anew, as by `apply`; traffic goes on. A set that was read
/// from a file becomes a list in the running configuration.
#[derive(clap::Args)]
pub(crate) struct SetArgs {
    #[command(subcommand)]
    what: SetWhat,
}

#[derive(Subcommand)]
enum SetWhat {
    /// Add members to a set, or make the set
    Add(MemberArgs),
    /// Take addresses out of a set
    Del(MemberArgs),
}

#[derive(clap::Args)]
struct MemberArgs {
    /// The set, without @
    #[arg(value_name = "SET")]
    set: String,
    /// Prefixes, ranges or addresses
    #[arg(value_name = "ADDRESSES", required = true)]
    members: Vec<String>,
    #[command(flatten)]
    how: ChangeOptions,
}

/// Changes rules and prints the result.
pub(crate) fn run_rule(args: &RuleArgs, socket: &Socket) -> Result<(), Failure> {
    match &args.what {
        RuleWhat::Add(args) => {
            let edit = GroupEdit::AddRule {
                group: args.group.clone(),
                section: args.section(),
                before: args.before.clone(),
            };
            change(&edit, &args.how, socket)
        }
        RuleWhat::Del(args) => {
            change(&GroupEdit::RemoveRules(args.names.clone()), &args.how, socket)
        }
    }
}

/// Changes sets and prints the result.
pub(crate) fn run_set(args: &SetArgs, socket: &Socket) -> Result<(), Failure> {
    let (SetWhat::Add(of) | SetWhat::Del(of)) = &args.what;
    let mut members = Vec::new();
    for text in of.members.iter().flat_map(|text| text.split(',')) {
        let parsed = policy::selector::parse_addresses(text);
        let wrong = |error| Failure::Member { text: text.to_owned(), error };
        members.extend(parsed.map_err(wrong)?);
    }
    let set = of.set.strip_prefix('@').unwrap_or(&of.set).to_owned();
    let edit = match &args.what {
        SetWhat::Add(_) => GroupEdit::AddMembers { set, members },
        SetWhat::Del(_) => GroupEdit::RemoveMembers { set, members },
    };
    change(&edit, &of.how, socket)
}

/// Makes a change in what runs.
fn change(edit: &GroupEdit, how: &ChangeOptions, socket: &Socket) -> Result<(), Failure> {
    let mut ask = Ask::new(socket)?;
    let request = v1::ExportRequest::default();
    let running = ask.call(async |client| api::whole(client.export(request).await?).await)?;
    let v1::Exported { toml, revision, base_directory } = running;
    let file = format!("revision {revision} with the change");
    let text = with_group_edit(&toml, &file, edit).map_err(Failure::from)?;
    let request = v1::ApplyRequest {
        text,
        file,
        base_directory,
        dry_run: how.dry_run,
        confirm_within_s: 0,
        save: how.save,
        only_after: Some(revision),
        // The text of a revision holds the members of its sets.
        included: Vec::new(),
    };
    let applied = ask.call(async |client| client.apply(request).await)?;
    answer(&applied, how.json)
}

impl AddRuleArgs {
    /// Returns the rule as a section of a configuration. Options not given are left out, so that
    /// the daemon's defaults and error messages apply.
    fn section(&self) -> String {
        let mut text = String::from("[[rule]]\n");
        let mut add = |key: &str, value: String| text.push_str(&format!("{key} = {value}\n"));
        add("group", quoted(&self.group));
        add("name", quoted(&self.name));
        add("action", quoted(&self.action));
        if let Some(protocol) = &self.protocol {
            add("protocol", quoted(protocol));
        }
        if let Some(segments) = &self.tcp {
            add("tcp", quoted(segments));
        }
        let lists = [
            ("from", &self.from),
            ("to", &self.to),
            ("from_ports", &self.from_ports),
            ("to_ports", &self.to_ports),
            ("icmp", &self.icmp),
        ];
        for (key, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
            add(key, string_list(list));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: AddRuleArgs,
    }

    #[test]
    fn options_are_the_section_that_a_file_would_have() {
        let line = "rule --group web --name https --action permit --from any --to 10.1.0.0/16,@dmz \
                    --protocol tcp --to-ports 443,8443 --tcp new";
        let written = Line::parse_from(line.split_whitespace()).args;
        let text = "[[rule]]\ngroup = \"web\"\nname = \"https\"\naction = \"permit\"\n\
                    protocol = \"tcp\"\ntcp = \"new\"\nfrom = [\"any\"]\n\
                    to = [\"10.1.0.0/16\", \"@dmz\"]\n\
                    to_ports = [\"443\", \"8443\"]\n";
        assert_eq!(written.section(), text);
    }
}
