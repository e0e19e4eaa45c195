//! The command line.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Parser;
use emulated_card::Faults;
use offload::{Capabilities, CardSpecError, Source};

/// Queues that the card can have.
const QUEUES: std::ops::RangeInclusive<i64> = 1..=16;

/// Play an emulated network card: software in a card's place, for tests and demonstrations
///
/// Makes a TAP netdev for a port of Lockgate's and joins it to a veth, its wire. Serves rules on a
/// socket, and an operator's commands on the same path with `.operator` behind it. Ends with
/// SIGTERM or SIGINT, and the TAP netdev with it.
#[derive(Parser, Clone, PartialEq, Debug)]
#[command(name = "lockgate-emulated-card", version, max_term_width = 100)]
pub(crate) struct Arguments {
    /// Name of the TAP netdev to make, which a port of Lockgate's is on
    #[arg(long, value_name = "NAME", required_unless_present = "tell")]
    tap: Option<String>,
    /// Netdev that is the wire, such as one end of a veth pair, without addresses
    #[arg(long, value_name = "NETDEV", required_unless_present = "tell")]
    wire: Option<String>,
    /// Socket for the host; the operator's is PATH.operator
    #[arg(long, value_name = "PATH", required_unless_present = "tell")]
    socket: Option<PathBuf>,
    /// The card: emulated, or emulated:rules=N,ms=N,order=none|priority,sas=N
    #[arg(long, value_name = "CARD", default_value = "emulated", value_parser = emulated)]
    pub(crate) card: Box<Capabilities>,
    /// Receive queues of the card, over which flows are spread
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = queues())]
    pub(crate) queues: u8,
    /// Link address of the TAP netdev; without it, that of the wire
    #[arg(long, value_name = "MAC")]
    pub(crate) mac: Option<LinkAddress>,
    /// Write what the host sees into this file, as pcapng
    #[arg(long, value_name = "FILE")]
    pub(crate) capture: Option<PathBuf>,
    /// Seed of what happens by chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Faults, times in a thousand, with commas between them: refuse=N twice=N never=N late=N
    /// late_ms=N garbage=N swapped=N sa=N policy=N
    #[arg(long, value_name = "LIST", default_value = "")]
    pub(crate) faults: FaultList,
    /// Give the card that serves on PATH a command: reset, forget, claim, link, reload, unplug,
    /// faults, tags, counts
    #[arg(long, value_name = "PATH", conflicts_with_all = ["tap", "wire", "socket"])]
    pub(crate) tell: Option<PathBuf>,
    /// The command's words
    #[arg(requires = "tell", value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

fn queues() -> clap::builder::RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(QUEUES)
}

impl Arguments {
    /// Name of the TAP netdev.
    pub(crate) fn tap(&self) -> &str {
        self.tap.as_deref().unwrap_or_default()
    }

    /// Name of the wire's netdev.
    pub(crate) fn wire(&self) -> &str {
        self.wire.as_deref().unwrap_or_default()
    }

    /// The host's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_default()
    }
}

/// Reads an emulated card. Other profiles are refused: their names do not say "emulated".
///
/// # Errors
/// [`WordError::Card`], [`WordError::NotEmulated`].
pub(crate) fn emulated(text: &str) -> Result<Box<Capabilities>, WordError> {
    let card: Capabilities = text.parse()?;
    match card.source {
        Source::Emulated => Ok(Box::new(card)),
        Source::AsRead | Source::Asked => Err(WordError::NotEmulated(card.name)),
    }
}

/// A link address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LinkAddress(pub(crate) [u8; 6]);

/// Reason why a word of the command line is not taken. Its author is at fault.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum WordError {
    /// It names no card.
    #[error(transparent)]
    Card(#[from] CardSpecError),
    /// It names a card of another kind.
    #[error("{0} is no emulated card: write emulated, or emulated:rules=N,ms=N,order=…")]
    NotEmulated(&'static str),
    /// It is no link address of a station.
    #[error("write a station's address, such as 02:00:00:00:00:01")]
    LinkAddress,
    /// It is no list of faults.
    #[error(
        "\"{0}\": write refuse=N, twice=N, never=N, late=N, late_ms=N, garbage=N, swapped=N, sa=N \
         or policy=N"
    )]
    Fault(String),
    /// It happens more often than always.
    #[error("{0}={1}: write times in a thousand, 0 to 1000")]
    PerMille(String, u64),
}

impl FromStr for LinkAddress {
    type Err = WordError;

    fn from_str(text: &str) -> Result<LinkAddress, WordError> {
        let mut address = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut address {
            let part = parts.next().filter(|part| part.len() == 2 && !part.starts_with('+'));
            let value = part.and_then(|part| u8::from_str_radix(part, 16).ok());
            *byte = value.ok_or(WordError::LinkAddress)?;
        }
        let is_station = parts.next().is_none() && address[0] & 1 == 0 && address != [0; 6];
        is_station.then_some(LinkAddress(address)).ok_or(WordError::LinkAddress)
    }
}

/// Faults as they are written; what is not named does not happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct FaultList(pub(crate) Faults);

impl FromStr for FaultList {
    type Err = WordError;

    fn from_str(text: &str) -> Result<FaultList, WordError> {
        let mut faults = Faults::default();
        for entry in text.split(',').filter(|entry| !entry.is_empty()) {
            let no_fault = || WordError::Fault(entry.to_owned());
            let (word, value) = entry.split_once('=').ok_or_else(no_fault)?;
            let value: u64 = value.parse().map_err(|_| no_fault())?;
            if word == "late_ms" {
                faults.late_ms = value;
                continue;
            }
            let place = match word {
                "refuse" => &mut faults.refuse,
                "twice" => &mut faults.twice,
                "never" => &mut faults.never,
                "late" => &mut faults.late,
                "garbage" => &mut faults.garbage,
                "swapped" => &mut faults.swapped,
                "sa" => &mut faults.sa,
                "policy" => &mut faults.policy,
                _ => return Err(no_fault()),
            };
            let times = u16::try_from(value).ok().filter(|times| *times <= 1000);
            *place = times.ok_or_else(|| WordError::PerMille(word.to_owned(), value))?;
        }
        Ok(FaultList(faults))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
        let run = |words: &[&str]| {
            Arguments::try_parse_from([&["lockgate-emulated-card"], words].concat())
        };
        let names = ["--tap", "c0", "--wire", "w0", "--socket", "/run/c"];
        let arguments = run(&names).unwrap();
        assert_eq!((arguments.tap(), arguments.wire(), arguments.queues), ("c0", "w0", 4));
        assert!(run(&names[..4]).is_err());
        let told = run(&["--tell", "/run/c", "reset", "told"]).unwrap();
        assert_eq!(told.command, ["reset", "told"]);
        assert!(run(&["reset"]).is_err());
        assert!(run(&[&names[..], &["--queues", "17"]].concat()).is_err());
        for (card, told) in [("emulatd", "did you mean"), ("acl-2000", "is no emulated card")] {
            let refused = run(&[&names[..], &["--card", card]].concat()).unwrap_err();
            assert!(refused.to_string().contains(told), "{refused}");
        }
    }

    #[test]
    fn link_addresses_are_those_of_stations() {
        assert_eq!("02:00:00:00:00:fe".parse(), Ok(LinkAddress([2, 0, 0, 0, 0, 0xfe])));
        for text in ["", "02:00:00:00:00", "2:0:0:0:0:1", "03:00:00:00:00:01", "02:00:00:00:00:+1"]
        {
            assert_eq!(text.parse::<LinkAddress>(), Err(WordError::LinkAddress), "{text}");
        }
        assert!("00:00:00:00:00:00".parse::<LinkAddress>().is_err());
        assert!("02:00:00:00:00:01:02".parse::<LinkAddress>().is_err());
    }

    #[test]
    fn faults_are_read_by_name_and_the_others_do_not_happen() {
        let all =
            "refuse=1,twice=2,never=3,late=4,late_ms=5000,garbage=1000,swapped=7,sa=8,policy=9"
                .parse();
        let faults = Faults {
            refuse: 1,
            twice: 2,
            never: 3,
            late: 4,
            late_ms: 5000,
            garbage: 1000,
            swapped: 7,
            sa: 8,
            policy: 9,
        };
        assert_eq!(all, Ok(FaultList(faults)));
        assert_eq!("".parse(), Ok(FaultList::default()));
        assert_eq!("late".parse::<FaultList>(), Err(WordError::Fault("late".into())));
        assert_eq!("lost=1".parse::<FaultList>(), Err(WordError::Fault("lost=1".into())));
        let beyond = WordError::PerMille("never".into(), 1001);
        assert_eq!("never=1001".parse::<FaultList>(), Err(beyond));
    }
}
