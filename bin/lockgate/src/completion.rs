//! Completion of command lines, for the shell: a script of the package asks this program how a
//! line may go on, and the program asks the running daemon for names of ports, peers and policies.
//!
//! A completion never says that something is wrong: without a daemon, or without the right to ask
//! it, there are no names. Names with characters that a shell gives a meaning are left out.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use api::v1::ShowRequest;
use api::{GatewayClient, SocketPath};
use clap::Command;
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};

/// The environment variable by which a shell's script asks; its value is the shell's name.
pub(crate) const VARIABLE: &str = "LOCKGATE_COMPLETE";
/// Name under which a shell finds the program.
pub(crate) const PROGRAM: &str = "lockgate";
/// Time that the daemon has to answer: the user has pressed Tab and waits.
const PATIENCE: Duration = Duration::from_secs(1);
/// Names that are offered at a time; a longer beginning makes fewer of them.
const MOST_NAMES: usize = 1000;

/// A kind of name that the daemon knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Port,
    Peer,
    Policy,
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
}

const PLACES: &[Place] = &[
    Place { command: &["show"], argument: "name", kind: None, also: &[] },
    Place { command: &["explain"], argument: "port", kind: Some(Kind::Port), also: &["host"] },
    Place { command: &["explain"], argument: "from_peer", kind: Some(Kind::Peer), also: &[] },
    Place { command: &["capture"], argument: "port", kind: Some(Kind::Port), also: &["any"] },
    Place { command: &["policy", "add"], argument: "peer", kind: Some(Kind::Peer), also: &[] },
    Place { command: &["policy", "add"], argument: "ports", kind: Some(Kind::Port), also: &[] },
    Place { command: &["policy", "del"], argument: "names", kind: Some(Kind::Policy), also: &[] },
    Place { command: &["policy", "change"], argument: "del", kind: Some(Kind::Policy), also: &[] },
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
        let socket = line.socket();
        let offer = move |begun: &OsStr| offered(kind, place.also, &socket, begun);
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
    also: &[&str],
    socket: &SocketPath,
    begun: &OsStr,
) -> Vec<CompletionCandidate> {
    let Some(begun) = begun.to_str() else { return Vec::new() };
    let names = kind.and_then(|kind| names(kind, socket)).unwrap_or_default();
    let words = also.iter().map(ToString::to_string);
    let fitting = words.chain(names).filter(|name| name.starts_with(begun) && is_plain(name));
    fitting.take(MOST_NAMES).map(CompletionCandidate::new).collect()
}

/// Returns whether a shell takes the name as it stands, for a word.
fn is_plain(name: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || "._-/@+".contains(c);
    !name.is_empty() && !name.starts_with('-') && name.chars().all(is_plain)
}

/// Names that the daemon knows; `None`: no daemon answers in time.
fn names(kind: Kind, socket: &SocketPath) -> Option<Vec<String>> {
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
            let peers = client.show_peers(all).await?.into_inner().peers;
            peers.into_iter().map(|peer| peer.name).collect()
        }
        Kind::Policy => {
            let policies = client.show_policies(all).await?.into_inner().policies;
            policies.into_iter().map(|policy| policy.name).collect()
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
        let with_equals = self.words.iter().find_map(|word| word.strip_prefix("--socket="));
        let behind = || {
            let at = self.words.iter().position(|word| word == "--socket")?;
            self.words.get(at + 1).map(String::as_str)
        };
        SocketPath::choose(with_equals.or_else(behind).map(PathBuf::from).as_deref())
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
