//! Commands by other names: aliases that are natural, and the command that was probably meant.

use std::ffi::OsString;

use clap::Command;

/// Words that are another command. A command of that name, if there is one, comes first.
const ALIASES: &[(&[&str], &[&str])] = &[
    (&["status"], &["show", "status"]),
    (&["policy", "list"], &["show", "policy"]),
    (&["policy", "show"], &["show", "policy"]),
];

/// Words of other programs, each with our command for it.
const MEANT: &[(&str, &str)] = &[
    ("load", "apply"),
    ("reload", "apply"),
    ("set", "apply"),
    ("test", "check"),
    ("validate", "check"),
    ("verify", "check"),
    ("dump", "export"),
    ("convert", "import"),
    ("migrate", "import"),
    ("undo", "rollback"),
    ("revert", "rollback"),
    ("log", "events"),
    ("logs", "events"),
    ("monitor", "events -f"),
    ("trace", "explain"),
    ("stop", "detach"),
    ("genkey", "keygen"),
    ("list", "show policy"),
    ("stats", "show counters"),
    ("spd", "show policy"),
    ("sad", "show sa"),
    ("xfrm", "show sa"),
    ("tunnel", "show peer"),
];

/// The command line with aliases written out. Options before the command stay where they are.
pub(crate) fn written_out(command: &Command, args: Vec<OsString>) -> Vec<OsString> {
    let places = word_places(&args);
    let words: Vec<&str> = places.iter().filter_map(|place| args[*place].to_str()).collect();
    let found = ALIASES.iter().find(|(alias, _)| words.starts_with(alias));
    let Some((alias, meaning)) = found.filter(|(alias, _)| !is_command(command, alias)) else {
        return args;
    };
    let mut args = args;
    for (place, word) in places.iter().take(alias.len()).zip(*meaning) {
        args[*place] = (*word).into();
    }
    if let ([.., last], [_, second]) = (&places[..alias.len()], *meaning)
        && alias.len() == 1
    {
        args.insert(last + 1, (*second).into());
    }
    args
}

/// Returns whether there is a command of these words.
fn is_command(command: &Command, words: &[&str]) -> bool {
    let mut command = Some(command);
    for word in words {
        command = command.and_then(|command| command.find_subcommand(word));
    }
    command.is_some()
}

/// Places of the first words that are neither options nor the value of `--socket`, without the
/// program's name.
fn word_places(args: &[OsString]) -> Vec<usize> {
    let mut places = Vec::new();
    let mut is_value = false;
    for (place, arg) in args.iter().enumerate().skip(1) {
        let is_option = arg.as_encoded_bytes().starts_with(b"-");
        if !is_option && !is_value {
            places.push(place);
        }
        is_value = arg == "--socket";
        if places.len() == 2 || arg == "--" {
            break;
        }
    }
    places
}

/// Returns the command nearest to an unknown word, as it is written: `show status`.
/// `parent` is the command that it was written behind, `lockgate` itself or `policy`.
pub(crate) fn nearest(command: &Command, parent: &str, word: &str) -> Option<String> {
    let meant = MEANT.iter().find(|(other, _)| *other == word);
    if let Some((_, ours)) = meant.filter(|_| parent.is_empty()) {
        return Some((*ours).to_owned());
    }
    let here = match parent {
        "" => Some(command),
        parent => command.find_subcommand(parent),
    };
    let shown = command.find_subcommand("show");
    let here = here.into_iter().flat_map(|command| names(command, parent));
    let shown = shown.into_iter().flat_map(shown_names);
    let all: Vec<(String, String)> = here.chain(shown).collect();
    match config::nearest(word, all.iter().map(|(name, _)| name.as_str())) {
        Some(best) => all.into_iter().find(|(name, _)| *name == best).map(|(_, written)| written),
        // Not a command but a page of the help.
        None => config::nearest(word, ["offload"].into_iter()).map(|page| format!("help {page}")),
    }
}

/// The commands behind a command: the word, and the command with it.
fn names(command: &Command, parent: &str) -> Vec<(String, String)> {
    let visible = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let written = |sub: &Command| match parent {
        "" => sub.get_name().to_owned(),
        parent => format!("{parent} {}", sub.get_name()),
    };
    visible.map(|sub| (sub.get_name().to_owned(), written(sub))).collect()
}

/// The arguments of `show`, by all of their names.
fn shown_names(show: &Command) -> Vec<(String, String)> {
    let what = show.get_positionals().next();
    let values = what.map(|arg| arg.get_possible_values()).unwrap_or_default();
    let visible = values.iter().filter(|value| !value.is_hide_set());
    visible
        .flat_map(|value| {
            let written = format!("show {}", value.get_name());
            value.get_name_and_aliases().map(move |name| (name.to_owned(), written.clone()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn aliases_are_written_out_where_no_command_has_their_name() {
        let without = Command::new("lockgate").subcommand(Command::new("show"));
        let with = without.clone().subcommand(Command::new("status"));
        let written = |command: &Command, line| written_out(command, args(line));
        for (line, meant) in [
            ("lockgate status --json", "lockgate show status --json"),
            ("lockgate --socket status status", "lockgate --socket status show status"),
            ("lockgate policy list web", "lockgate show policy web"),
            ("lockgate policy --json show", "lockgate show --json policy"),
            ("lockgate policy add status", "lockgate policy add status"),
            ("lockgate check status", "lockgate check status"),
            ("lockgate", "lockgate"),
        ] {
            assert_eq!(written(&without, line), args(meant), "{line}");
        }
        assert_eq!(written(&with, "lockgate status"), args("lockgate status"));
    }
}
