//! Failures of commands, and the exit codes they lead to.

use std::path::PathBuf;

use ::import::ImportErrors;
use api::ConnectError;
use config::{ConfigErrors, GroupEditError, KeyFileError};
use console::failure::{Failed, error_json};
use console::line::LineError;
use console::output::OutputError;
use control::{CompileError, QuestionError};
use io::CaptureError;
use ipsec::SelfTestError;
use replay::ReplayError;
use serde_json::json;

use crate::elsewhere::ProgramError;
use crate::live::{AnswerError, LiveError};

/// A reason why a command did not succeed. Its text is for the person at the terminal.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The answer, already printed, is "bad".
    #[error("")]
    Bad,
    /// The answer cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The configuration or a key file is wrong; its author is at fault.
    #[error("{}", .0)]
    Config(#[from] ConfigErrors),
    /// The same mistakes, found by a command that only reads the configuration.
    #[error("{0:#}")]
    Unusable(ConfigErrors),
    /// A member of a set that is no address.
    #[error("{text:?} is no prefix, range or address: {error}")]
    Member {
        /// The word.
        text: String,
        /// The reason.
        error: policy::SelectorError,
    },
    /// A change of rules or sets that cannot be made in what runs.
    #[error("{0}; nothing was changed")]
    GroupEdit(GroupEditError),
    /// The configuration cannot be compiled.
    #[error("{}: {error}", .file.display())]
    Compile {
        /// The configuration.
        file: PathBuf,
        /// The compiler's reason.
        error: CompileError,
    },
    /// A capture cannot be read or written.
    #[error("{0}")]
    Capture(#[from] CaptureError),
    /// A key file cannot be made.
    #[error("{0}")]
    Keys(#[from] KeyFileError),
    /// A file or directory cannot be made, read or moved.
    #[error("{}: {error}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// A file or directory to be made is there already.
    #[error("{}: is there already and is not replaced; name another directory", .file.display())]
    Exists {
        /// The file or directory.
        file: PathBuf,
    },
    /// A file to be written is there already.
    #[error("{}: is there already and is not replaced; name another file", .file.display())]
    OutputExists {
        /// The file.
        file: PathBuf,
    },
    /// A foreign configuration is wrong; its author is at fault.
    #[error("{0}")]
    Import(#[from] ImportErrors),
    /// Captures were not replayed.
    #[error(transparent)]
    Replay(ReplayError),
    /// The ciphers give wrong results on this machine.
    #[error("{0}; nothing was sealed")]
    SelfTest(#[from] SelfTestError),
    /// A command that is a program of its own does not run.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The ledger does not balance: a packet was lost or made up. This is a bug of Lockgate.
    #[error("the ledger does not balance, by {imbalance} packets: this is a bug, report it")]
    Ledger {
        /// Packets too many or too few.
        imbalance: i64,
    },
    /// A question that has no answer.
    #[error("{0}")]
    Question(#[from] QuestionError),
    /// The daemon cannot be asked.
    #[error("{0}")]
    Connect(#[from] ConnectError),
    /// The daemon does not answer what it was asked.
    #[error("{0}")]
    Answer(#[from] AnswerError),
    /// The running gateway could not be asked, or refused.
    #[error("{0}")]
    Live(#[from] LiveError),
    /// A failure of a command whose exit code 1 has another meaning.
    #[error("{0}")]
    Trouble(Box<Failure>),
    /// The command line is not parsed.
    #[error(transparent)]
    Line(#[from] LineError),
    /// The command line makes no sense.
    #[error("{0}")]
    Usage(Usage),
}

/// A mistake in a command line, beyond those that the parser of options finds.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Usage {
    /// No command of that name.
    #[error(
        "there is no command `{}`{}",
        command_text(.parent, .word),
        match .nearest {
            Some(nearest) => format!(": did you mean `lockgate {nearest}`?"),
            None => ": `lockgate --help` lists them".to_owned(),
        }
    )]
    UnknownCommand {
        /// The command that it was written behind; empty: none.
        parent: String,
        /// The word.
        word: String,
        /// The command that was probably meant.
        nearest: Option<String>,
    },
    /// `--socket` beside a command that asks no daemon.
    #[error("`--socket` means nothing to `lockgate {command}`, which asks no daemon: leave it out")]
    NoDaemon {
        /// The command.
        command: String,
    },
    /// A file of endpoints that cannot be read or written.
    #[error("{place}: {problem}")]
    BadEndpointFile {
        /// The file, with the line if there is one.
        place: String,
        /// The problem.
        problem: String,
    },
    /// A number of a virtual network that is none.
    #[error("\"{text}\" is no number of a virtual network: 0 to 16777215")]
    BadVni {
        /// The text.
        text: String,
    },
    /// A port that the configuration does not have.
    #[error("there is no port \"{name}\": {}", ports_text(.known))]
    UnknownPort {
        /// The name.
        name: String,
        /// The ports that there are.
        known: Vec<String>,
    },
    /// A file of counters that is none.
    #[error("{file}: not an answer of `lockgate show group --json`: {problem}")]
    BadCounters {
        /// The file.
        file: String,
        /// The problem.
        problem: String,
    },
    /// No packets to replay.
    #[error("nothing to replay: give an input, IN.pcap OUT.pcap or --in PORT=IN.pcap OUT.pcap")]
    NoInput,
    /// A positional input beside named ones.
    #[error("give the inputs either by --in or as IN.pcap, not both")]
    TwoInputs,
    /// Two key files of one name.
    #[error("the two ends must have different names")]
    SameNames,
    /// A name that cannot be a file's.
    #[error("\"{name}\" cannot be the name of a key file: letters, digits, \".\", \"_\" and \"-\"")]
    BadName {
        /// The name.
        name: String,
    },
    /// A name or an interface that the configuration of an import cannot have.
    #[error(
        "{option}: {mistake}{}",
        .mistake.help().map_or(String::new(), |help| format!(": {help}"))
    )]
    ImportOption {
        /// The option.
        option: &'static str,
        /// The mistake.
        mistake: Box<config::DiagnosticKind>,
    },
    /// An SA to put that names no peer.
    #[error("an SA names no peer: write peer=NAME behind its key, or give --peer NAME")]
    SaWithoutPeer,
    /// A word that is no SPI.
    #[error("\"{text}\" is no SPI: write a number, decimal or 0x…, of 32 bits")]
    BadSpi {
        /// The word.
        text: String,
    },
    /// An SPI that an inbound and an outbound SA have.
    #[error("an inbound and an outbound SA have SPI {text}: give --direction in or out")]
    BothDirections {
        /// The SPI.
        text: String,
    },
    /// An answer of `init` that cannot be used.
    #[error("{option}: {mistake}")]
    Answer {
        /// The option that gave it, or that its question stands for.
        option: &'static str,
        /// The reason.
        mistake: crate::init::answer::AnswerMistake,
    },
    /// Questions of `init` that nobody is there to answer.
    #[error(
        "there is no terminal to ask at: give {} too; `lockgate init --help` has an example",
        .options.join(", ")
    )]
    Unanswered {
        /// The options that would answer them.
        options: Vec<&'static str>,
    },
    /// The input ended before the last answer of `init`.
    #[error("the input ended before the last answer; nothing was written")]
    DialogueEnded,
    /// A capture file for a terminal.
    #[error("pcapng is not for a terminal: pipe it (| tshark -r -), or name a file")]
    CaptureToTerminal,
    /// The words describe no flow.
    #[error(transparent)]
    Flow(#[from] crate::explain::FlowError),
}

impl From<ReplayError> for Failure {
    fn from(error: ReplayError) -> Failure {
        match error {
            // Told mistake by mistake.
            ReplayError::Config(errors) => Failure::Config(errors),
            error => Failure::Replay(error),
        }
    }
}

impl From<GroupEditError> for Failure {
    fn from(error: GroupEditError) -> Failure {
        match error {
            // Told mistake by mistake.
            GroupEditError::Config(errors) => Failure::Config(errors),
            error => Failure::GroupEdit(error),
        }
    }
}

impl From<Usage> for Failure {
    fn from(usage: Usage) -> Failure {
        Failure::Usage(usage)
    }
}

impl Failed for Failure {
    fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_)
            | Failure::Question(_)
            | Failure::Trouble(_)
            | Failure::Member { .. }
            | Failure::Live(LiveError::NoEntries | LiveError::ManyNames) => 2,
            Failure::Replay(error) if error.is_usage() => 2,
            Failure::Line(error) => error.exit_code(),
            Failure::Answer(answer) if answer.is_usage() => 2,
            _ => 1,
        }
    }

    fn of_output(&self) -> Option<&OutputError> {
        match self {
            Failure::Output(error) | Failure::Line(LineError::Output(error)) => Some(error),
            _ => None,
        }
    }

    /// The failure as an answer in JSON. Mistakes of a configuration are told one by one too.
    fn as_json(&self) -> serde_json::Value {
        let mut answer = error_json(self);
        let mut cause = self;
        while let Failure::Trouble(inner) = cause {
            cause = inner;
        }
        match cause {
            Failure::Config(errors) | Failure::Unusable(errors) => {
                answer["error"]["problems"] = json!(errors.problems)
            }
            Failure::Import(errors) => answer["error"]["problems"] = json!(errors.problems),
            _ => {}
        }
        answer
    }
}

impl Failure {
    /// Returns a function for `map_err` that names the file at fault.
    pub(crate) fn file(file: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Failure {
        move |error| Failure::File { file: file.into(), error }
    }
}

fn ports_text(known: &[String]) -> String {
    if known.is_empty() { "the file has none".into() } else { known.join(", ") }
}

fn command_text(parent: &str, word: &str) -> String {
    if parent.is_empty() { word.to_owned() } else { format!("{parent} {word}") }
}
