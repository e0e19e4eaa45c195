//! Completion of command lines, for the shell: a script of the package asks this program how a
//! line may go on, and the program asks the running daemon for names of ports, peers and policies.
//! Names of ports come from the configuration instead, if the line names one.
//!
//! A completion never says that something is wrong: without a daemon, without the right to ask it,
//! or with a wrong configuration, there are no names. Names with characters that a shell gives a
//! meaning are left out.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use api::v1::ShowRequest;
use api::{GatewayClient, SocketPath};
use clap::Command;
use clap_complete::CompleteEnv;
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};

use crate::input::Input;

/// The environment variable by which a shell's script asks; its value is the shell's name.
pub(crate) const VARIABLE: &str = "LOCKGATE_COMPLETE";
/// Name under which a shell finds the program.
pub(crate) const PROGRAM: &str = "lockgate";
/// Time that the daemon has to answer: the user has pressed Tab and waits.
const PATIENCE: Duration = Duration::from_secs(1);
/// Names that are offered at a time; a longer beginning makes fewer of them.
const MOST_NAMES: usize = 1000;
/// Size of a configuration that is read for names; reading a larger one takes too long.
const MOST_BYTES: u64 = 1 << 20;

/// A kind of name that the daemon knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Port,
    Peer,
    Policy,
    Group,
    /// Rules of groups: `GROUP/RULE`.
    Rule,
}

/// An argument that takes names.
struct Place {
    /// The command's words.
    command: &'static [&'static str],
    /// The argument's id, the name of its field.
    argument: &'static str,
    /// The kind of names; `None`: the word in front says it.
    kind: Option<Kind>,
    /// Words that mean something there beside the names.
    also: &'static [&'static str],
    /// Options that name a configuration; the names are then those of that file.
    config: &'static [&'static str],
    /// The form of the value.
    form: Form,
}

/// The form of a value that begins with a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// The name alone.
    Name,
    /// `NAME=FILE`.
    NameAndFile,
}

impl Place {
    /// A place for names that the daemon knows, and nothing else.
    const fn new(
        command: &'static [&'static str],
        argument: &'static str,
        kind: Option<Kind>,
    ) -> Place {
        Place { command, argument, kind, also: &[], config: &[], form: Form::Name }
    }

    /// The same place with more words.
    const fn or(self, also: &'static [&'static str]) -> Place {
        Place { also, ..self }
    }

    /// The same place with the names of a configuration, if the line names one.
    const fn of_config(self) -> Place {
        Place { config: &["--config", "--file", "-f"], ..self }
    }

    /// The same place for values of another form.
    const fn form(self, form: Form) -> Place {
        Place { form, ..self }
    }
}

const PLACES: &[Place] = &[
    Place::new(&["show"], "name", None),
    Place::new(&["explain"], "port", Some(Kind::Port)).or(&["host"]).of_config(),
    Place::new(&["explain"], "from_peer", Some(Kind::Peer)).of_config(),
    Place::new(&["capture"], "port", Some(Kind::Port)).or(&["any"]),
    Place::new(&["replay"], "inputs", Some(Kind::Port))
        .or(&["host"])
        .of_config()
        .form(Form::NameAndFile),
    Place::new(&["policy", "add"], "peer", Some(Kind::Peer)),
    Place::new(&["sa", "put"], "peer", Some(Kind::Peer)),
    Place::new(&["sa", "del"], "peer", Some(Kind::Peer)),
    Place::new(&["sa", "reserve"], "peer", Some(Kind::Peer)),
    Place::new(&["policy", "add"], "ports", Some(Kind::Port)),
    Place::new(&["policy", "del"], "names", Some(Kind::Policy)),
    Place::new(&["policy", "change"], "del", Some(Kind::Policy)),
    Place::new(&["rule", "add"], "group", Some(Kind::Group)),
    Place::new(&["rule", "del"], "names", Some(Kind::Rule)),
];

/// Answers a shell that asks how a line may go on; `None`: none asks, and the line is to be run.
pub(crate) fn answer(args: &[OsString], parser: impl Fn() -> Command) -> Option<ExitCode> {
    let asked = std::env::var_os(VARIABLE)?;
    if asked.is_empty() || asked == "0" {
        return None;
    }
    let line = Line::behind_dashes(args);
    let environment = CompleteEnv::with_factory(|| with_names(parser(), &line))
        .var(VARIABLE)
        .bin(PROGRAM)
        .completer(PROGRAM);
    let answered = environment.try_complete(args.iter().cloned(), None);
    // A shell would print a message in the middle of the user's line.
    Some(if answered.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The parser, with names for the arguments that take them.
fn with_names(parser: Command, line: &Line) -> Command {
    PLACES.iter().fold(parser, |parser, place| {
        let kind = place.kind.or_else(|| line.kind_shown(&parser));
        let source = match line.value_of(place.config) {
            Some(file) => Source::File(file.into()),
            None => Source::Daemon(line.socket()),
        };
        let offer = move |begun: &OsStr| offered(kind, place, &source, begun);
        let completer = ArgValueCompleter::new(offer);
        attached(parser, place.command, place.argument, completer)
    })
}

/// Attaches a completer to an argument of the command behind these words.
fn attached(
    parser: Command,
    command: &[&'static str],
    argument: &'static str,
    completer: ArgValueCompleter,
) -> Command {
    match command {
        [] => parser.mut_arg(argument, |arg| arg.add(completer)),
        [word, rest @ ..] => {
            parser.mut_subcommand(word, |sub| attached(sub, rest, argument, completer))
        }
    }
}

/// The words and names that begin like this.
fn offered(
    kind: Option<Kind>,
    place: &Place,
    source: &Source,
    begun: &OsStr,
) -> Vec<CompletionCandidate> {
    let Some(begun) = begun.to_str() else { return Vec::new() };
    if let (Form::NameAndFile, Some((name, file))) = (place.form, begun.split_once('=')) {
        let files = PathCompleter::file().complete(OsStr::new(file));
        return files.into_iter().map(|file| file.add_prefix(format!("{name}="))).collect();
    }
    let names = kind.and_then(|kind| source.names(kind)).unwrap_or_default();
    let words = place.also.iter().map(ToString::to_string);
    let fitting = words.chain(names).filter(|name| name.starts_with(begun) && is_plain(name));
    let end = if place.form == Form::NameAndFile { "=" } else { "" };
    fitting.take(MOST_NAMES).map(|name| CompletionCandidate::new(name + end)).collect()
}

/// Returns whether a shell takes the name as it stands, for a word.
fn is_plain(name: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || "._-/@+".contains(c);
    !name.is_empty() && !name.starts_with('-') && name.chars().all(is_plain)
}

/// The source of names.
#[derive(Debug)]
enum Source {
    /// The daemon behind a socket.
    Daemon(SocketPath),
    /// A configuration.
    File(PathBuf),
}

impl Source {
    /// Returns the names of a kind; `None`: no daemon answers in time, or the file is wrong.
    fn names(&self, kind: Kind) -> Option<Vec<String>> {
        match self {
            Source::Daemon(socket) => names_of_daemon(kind, socket),
            Source::File(path) => names_of_file(kind, path),
        }
    }
}

fn names_of_file(kind: Kind, path: &Path) -> Option<Vec<String>> {
    if std::fs::metadata(path).ok()?.len() > MOST_BYTES {
        return None;
    }
    let config = Input::File(path.to_owned()).parsed().ok()?.validated;
    Some(match kind {
        Kind::Port => config.ports.into_iter().map(|port| port.name).collect(),
        Kind::Peer => config.peers.into_iter().map(|peer| peer.name).collect(),
        Kind::Policy => config.policies.into_iter().map(|policy| policy.name).collect(),
        Kind::Group => config.groups.into_iter().map(|group| group.name).collect(),
        Kind::Rule => {
            let group = |rule: &config::groups::Rule| &config.groups[rule.group.0 as usize].name;
            config.rules.iter().map(|rule| config::rule_name(group(rule), &rule.name)).collect()
        }
    })
}

fn names_of_daemon(kind: Kind, socket: &SocketPath) -> Option<Vec<String>> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().ok()?;
    let asked = async {
        let client = api::connect(socket.as_path()).await.ok()?;
        ask(kind, client).await.ok()
    };
    runtime.block_on(async { tokio::time::timeout(PATIENCE, asked).await.ok()? })
}

async fn ask(kind: Kind, mut client: GatewayClient) -> Result<Vec<String>, tonic::Status> {
    let all = ShowRequest { name: None };
    Ok(match kind {
        Kind::Port => {
            let ports = client.show_ports(all).await?.into_inner().ports;
            ports.into_iter().map(|port| port.name).collect()
        }
        Kind::Peer => {
            let peers = api::whole(client.show_peers(all).await?).await?.into_inner().peers;
            peers.into_iter().map(|peer| peer.name).collect()
        }
        Kind::Policy => {
            let policies =
                api::whole(client.show_policies(all).await?).await?.into_inner().policies;
            policies.into_iter().map(|policy| policy.name).collect()
        }
        Kind::Group => {
            let groups = client.show_groups(all).await?.into_inner().groups;
            groups.into_iter().map(|group| group.name).collect()
        }
        Kind::Rule => {
            let groups = client.show_groups(all).await?.into_inner().groups;
            let rules = groups.iter().flat_map(|group| {
                group.rules.iter().map(|rule| config::rule_name(&group.name, &rule.name))
            });
            rules.collect()
        }
    })
}

/// The command line that the user is typing, word by word.
#[derive(Default, Debug)]
struct Line {
    words: Vec<String>,
}

impl Line {
    /// The words behind `--`, as a shell's script passes them.
    fn behind_dashes(args: &[OsString]) -> Line {
        let words = args.iter().skip_while(|arg| *arg != "--").skip(1);
        Line { words: words.map(|word| word.to_string_lossy().into_owned()).collect() }
    }

    /// The API socket that the line names, or the default one.
    fn socket(&self) -> SocketPath {
        SocketPath::choose(self.value_of(&["--socket"]).map(Path::new))
    }

    /// The value that the line gives one of these options.
    fn value_of(&self, options: &[&str]) -> Option<&str> {
        self.words.iter().enumerate().find_map(|(at, word)| {
            if options.contains(&word.as_str()) {
                return self.words.get(at + 1).map(String::as_str);
            }
            let (option, value) = word.split_once('=')?;
            options.contains(&option).then_some(value)
        })
    }

    /// The kind of names that a part of the gateway has which the line shows.
    fn kind_shown(&self, parser: &Command) -> Option<Kind> {
        let parts = parser.find_subcommand("show")?.get_positionals().next()?.get_possible_values();
        let is_show = |word: &&String| matches!(word.as_str(), "show" | "sh");
        let behind = self.words.iter().skip_while(|word| !is_show(word)).skip(1);
        let shown = behind.into_iter().find_map(|word| {
            let part = parts.iter().find(|part| part.get_name_and_aliases().any(|it| it == word));
            part.map(|part| part.get_name().to_owned())
        })?;
        match shown.as_str() {
            "port" => Some(Kind::Port),
            "peer" | "sa" => Some(Kind::Peer),
            "policy" => Some(Kind::Policy),
            "group" => Some(Kind::Group),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn line(text: &str) -> Line {
        Line { words: text.split(' ').map(str::to_owned).collect() }
    }

    #[test]
    fn every_place_is_an_argument_of_its_command() {
        let parser = with_names(crate::offered(crate::CommandLine::command()), &Line::default());
        for place in PLACES {
            let mut command = &parser;
            for word in place.command {
                command = command.find_subcommand(word).expect(word);
            }
            let argument = command.get_arguments().find(|arg| arg.get_id() == place.argument);
            assert!(argument.expect(place.argument).get::<ArgValueCompleter>().is_some());
        }
    }

    #[test]
    fn the_part_that_is_shown_says_which_names_fit() {
        let parser = crate::offered(crate::CommandLine::command());
        for (text, kind) in [
            ("lockgate show port w", Some(Kind::Port)),
            ("lockgate sh peers b", Some(Kind::Peer)),
            ("lockgate show --wide peers b", Some(Kind::Peer)),
            ("lockgate show sa b", Some(Kind::Peer)),
            ("lockgate show policies b", Some(Kind::Policy)),
            ("lockgate show group w", Some(Kind::Group)),
            ("lockgate show route 1", None),
            ("lockgate check port", None),
        ] {
            assert_eq!(line(text).kind_shown(&parser), kind, "{text}");
        }
    }

    #[test]
    fn the_socket_of_the_line_is_asked() {
        for text in ["lockgate --socket /x show port", "lockgate show port --socket=/x w"] {
            assert_eq!(line(text).socket().as_path(), std::path::Path::new("/x"), "{text}");
        }
    }

    #[test]
    fn an_option_has_its_value_behind_it_or_behind_an_equals_sign() {
        for text in ["lockgate replay -f x --in ", "lockgate replay --in= --config=x"] {
            assert_eq!(line(text).value_of(&["--config", "-f"]), Some("x"), "{text}");
        }
        for text in ["lockgate replay --in -f=", "lockgate replay -f"] {
            assert_eq!(line(text).value_of(&["--config"]), None, "{text}");
        }
    }

    #[test]
    fn names_that_a_shell_would_read_otherwise_are_not_offered() {
        for good in ["wan", "wan.7", "gw-b", "Zürich_2", "10.1.0.0/16"] {
            assert!(is_plain(good), "{good}");
        }
        for bad in ["", "-rf", "a b", "a;b", "$(a)", "a`b", "a'b", "a\nb", "a*", "a\u{202e}b", "~"]
        {
            assert!(!is_plain(bad), "{bad:?}");
        }
    }
}
