//! Commands of an operator: what happens to cards, at the moment that he chooses. One line asks,
//! one line of JSON answers.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use card_link::Lines;
use clap::{Parser, ValueEnum};
use console::output::json_line;
use emulated_card::Notice;
use io::tun::Link;
use offload::{Capabilities, Handle, Incarnation, Limit, Tag};
use rustix::event::PollFlags;
use serde_json::{Value, json};

use crate::arguments::{FaultList, emulated};
use crate::failure::Failure;
use crate::lines::{Connection, Listener};
use crate::station::Station;

/// Bytes of a command at most.
const MAX_COMMAND: usize = 4096;
/// Connections at most; further ones are closed.
const MOST: usize = 8;

/// The operator's socket of a card that serves hosts on `path`.
pub(crate) fn socket_of(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".operator");
    name.into()
}

/// A command.
#[derive(Parser, Clone, PartialEq, Debug)]
#[command(no_binary_name = true, disable_help_flag = true)]
enum Command {
    /// The card begins anew and forgets everything
    Reset { notice: Word },
    /// The card forgets one item
    Forget { handle: u32, notice: Word },
    /// The card says that an item, there or not, reached a limit
    Claim { handle: u32, limit: LimitWord },
    /// The link goes down, and the card forgets everything; or up
    Link { state: LinkWord },
    /// Another driver runs the card, which forgets everything
    Reload {
        #[arg(value_parser = emulated)]
        card: Box<Capabilities>,
    },
    /// The card is pulled out of its slot
    Unplug,
    /// Faults from now on
    Faults {
        #[arg(default_value = "")]
        list: FaultList,
    },
    /// Lists what is in the card
    Tags,
    /// Counts of frames
    Counts,
}

/// The card says that it forgets, or not.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Word {
    Told,
    Silent,
}

impl From<Word> for Notice {
    fn from(word: Word) -> Notice {
        match word {
            Word::Told => Notice::Told,
            Word::Silent => Notice::Silent,
        }
    }
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum LimitWord {
    Soft,
    Hard,
}

impl From<LimitWord> for Limit {
    fn from(word: LimitWord) -> Limit {
        match word {
            LimitWord::Soft => Limit::Soft,
            LimitWord::Hard => Limit::Hard,
        }
    }
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum LinkWord {
    Down,
    Up,
}

impl From<LinkWord> for Link {
    fn from(word: LinkWord) -> Link {
        match word {
            LinkWord::Down => Link::Down,
            LinkWord::Up => Link::Up,
        }
    }
}

/// Reason why a command is refused. The operator is at fault, or the card's state.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("write reset, forget, claim, link, reload, unplug, faults, tags or counts")]
    Nothing,
    #[error("{}", text_of(.0))]
    Command(#[from] clap::Error),
    #[error("the card has no item {0}")]
    NoItem(u32),
    #[error("the card is out of its slot, or its netdev refuses: {0}")]
    Link(std::io::Error),
}

/// All that the parser of commands says: the mistake, the words that it takes, the nearest one.
fn text_of(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
    let text = lines.collect::<Vec<_>>().join("\n");
    text.trim_start_matches("error: ").to_owned()
}

/// The operator's socket and its connections.
pub(crate) struct Operators {
    listener: Listener,
    connections: Vec<Connection>,
}

impl Operators {
    /// Serves on a path.
    ///
    /// # Errors
    /// As [`Listener::open`].
    pub(crate) fn open(path: &Path) -> Result<Operators, Failure> {
        Ok(Operators { listener: Listener::open(path)?, connections: Vec::new() })
    }

    /// Descriptors to sleep on, with what is awaited of each.
    pub(crate) fn fds(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let connections = self.connections.iter().map(|one| (one.as_fd(), one.awaited()));
        std::iter::once((self.listener.as_fd(), PollFlags::IN)).chain(connections)
    }

    /// Does what operators ask.
    ///
    /// # Errors
    /// [`Failure::Capture`]: an answer promises that the file has what was captured before.
    pub(crate) fn turn(&mut self, station: &mut Station) -> Result<(), Failure> {
        while let Some(stream) = self.listener.accept() {
            if self.connections.len() < MOST {
                self.connections.push(Connection::new(stream, Lines::up_to(MAX_COMMAND)));
            }
        }
        for connection in &mut self.connections {
            connection.fill();
            while let Ok(Some(line)) = connection.take() {
                let line = String::from_utf8_lossy(line).into_owned();
                let answer = execute(&line, station);
                let answer = answer.unwrap_or_else(|refused| json!({"error": refused.to_string()}));
                connection.send(format!("{}\n", json_line(&answer).trim_end()).as_bytes());
                station.flush()?;
            }
            connection.push();
        }
        self.connections.retain(|connection| !connection.is_over());
        Ok(())
    }
}

fn parsed(line: &str) -> Result<Command, Refused> {
    if line.trim().is_empty() {
        return Err(Refused::Nothing);
    }
    Ok(Command::try_parse_from(line.split_whitespace())?)
}

fn execute(line: &str, station: &mut Station) -> Result<Value, Refused> {
    let card = &mut station.card;
    match parsed(line)? {
        Command::Reset { notice } => card.reset(notice.into()),
        Command::Forget { handle, notice } => {
            let mut tags = card.tags().chain(card.policies());
            let tag = tags.find(|tag| tag.handle.get() == handle);
            drop(tags);
            card.forget(tag.ok_or(Refused::NoItem(handle))?, notice.into());
        }
        Command::Claim { handle, limit } => {
            let known = card.tags().find(|tag| tag.handle.get() == handle).or(card.tags().next());
            let handle = Handle::new(handle).ok_or(Refused::NoItem(handle))?;
            let incarnation = known.map_or(Incarnation::default(), |tag| tag.incarnation);
            card.claim(Tag { handle, incarnation }, limit.into());
        }
        Command::Link { state } => station.set_link(state.into()).map_err(Refused::Link)?,
        Command::Reload { card: capabilities } => card.reload(*capabilities),
        Command::Unplug => station.unplug(),
        Command::Faults { list } => card.set_faults(list.0),
        Command::Tags => return Ok(tags(station)),
        Command::Counts => return Ok(station.counts()),
    }
    Ok(json!({"emulated": true, "done": true}))
}

fn tags(station: &Station) -> Value {
    let item = |(tag, reading): (offload::Tag, offload::Reading)| {
        json!({
            "handle": tag.handle.get(),
            "incarnation": tag.incarnation.0,
            "packets": reading.packets,
            "bytes": reading.bytes,
        })
    };
    let items: Vec<Value> = station.card.readings().map(item).collect();
    let policies: Vec<Value> = station.card.policy_readings().map(item).collect();
    let card = station.card.spec();
    json!({"emulated": true, "card": card, "tags": items, "policies": policies})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Command, String> {
        parsed(line).map_err(|refused| refused.to_string())
    }

    #[test]
    fn every_command_is_read() {
        use clap::CommandFactory;
        Command::command().debug_assert();
        assert_eq!(read("reset told"), Ok(Command::Reset { notice: Word::Told }));
        let forget = Command::Forget { handle: 7, notice: Word::Silent };
        assert_eq!(read(" forget  7 silent "), Ok(forget));
        let claim = Command::Claim { handle: 7, limit: LimitWord::Hard };
        assert_eq!(read("claim 7 hard"), Ok(claim));
        assert_eq!(read("link down"), Ok(Command::Link { state: LinkWord::Down }));
        let card: Box<Capabilities> = Box::new("emulated:rules=3".parse().unwrap());
        assert_eq!(read("reload emulated:rules=3"), Ok(Command::Reload { card }));
        assert_eq!(read("unplug"), Ok(Command::Unplug));
        let list = "never=1000".parse().unwrap();
        assert_eq!(read("faults never=1000"), Ok(Command::Faults { list }));
        assert_eq!(read("faults"), Ok(Command::Faults { list: FaultList::default() }));
        assert_eq!((read("tags"), read("counts")), (Ok(Command::Tags), Ok(Command::Counts)));
    }

    #[test]
    fn a_command_that_is_none_is_refused_with_the_reason() {
        for (line, told) in [
            ("", "write reset, forget, claim, link"),
            ("rest told", "unrecognized subcommand 'rest'"),
            ("reset", "required"),
            ("reset", "<NOTICE>"),
            ("reset loudly", "invalid value 'loudly'"),
            ("reset loudly", "[possible values: told, silent]"),
            ("link dwn", "a similar value exists: 'down'"),
            ("cunts", "similar subcommands exist: 'faults', 'counts'"),
            ("forget -1 told", "unexpected argument '-1'"),
            ("reload emulated:rule=1", "did you mean"),
            ("reload acl-2000", "acl-2000 is no emulated card"),
            ("faults never=1001", "0 to 1000"),
        ] {
            let refused = read(line).unwrap_err();
            assert!(refused.contains(told), "{line}: {refused}");
        }
    }
}
