//! The five questions of `lockgate init`. An option answers its question; the dialogue puts
//! the rest,
//! and a wrong answer is explained and asked again.

use std::io::{BufRead, Write};
use std::net::IpAddr;

use policy::AddressRange;

use super::GivenAnswers;
use super::answer::{self, AnswerMistake, Answers};
use super::machine::Machine;
use crate::failure::{Failure, Usage};

/// The number of questions.
const QUESTIONS: usize = 5;

/// The terminal that shows questions and gives answers.
pub(super) struct Dialogue<'a> {
    input: &'a mut dyn BufRead,
    output: &'a mut dyn Write,
    machine: &'a Machine,
}

/// A question as it is put.
struct Question<'a> {
    number: usize,
    text: &'a str,
    /// Shown where there is no default.
    example: &'a str,
    /// The answer that Enter takes.
    default: Option<String>,
}

impl<'a> Dialogue<'a> {
    /// A dialogue about this machine.
    pub(super) fn new(
        input: &'a mut dyn BufRead,
        output: &'a mut dyn Write,
        machine: &'a Machine,
    ) -> Dialogue<'a> {
        Dialogue { input, output, machine }
    }

    /// Asks for the answers that no option gives.
    ///
    /// # Errors
    /// [`Usage::DialogueEnded`] when the input ends before the last answer.
    pub(super) fn answers(
        &mut self,
        node: String,
        given: GivenAnswers,
    ) -> Result<Answers, Failure> {
        self.say(&format!(
            "A tunnel between this gateway, {node}, and another one. {QUESTIONS} questions; Enter \
             takes\nthe answer in brackets. Nothing is changed on this machine but the new \
             files.\n\n{}\n",
            self.machine.text(),
        ))?;
        let lan = match given.lan {
            Some(lan) => lan,
            None => self.lan()?,
        };
        let networks = match given.networks {
            Some(networks) => networks,
            None => self.networks(&lan)?,
        };
        let (wan, address) = self.wan(&lan, given.wan, given.address)?;
        let (peer, peer_address) = self.peer(&node, address, given.peer, given.peer_address)?;
        let peer_networks = match given.peer_networks {
            Some(networks) => networks,
            None => self.peer_networks(&networks, [address, peer_address])?,
        };
        Ok(Answers { node, lan, networks, wan, address, peer, peer_address, peer_networks })
    }

    fn lan(&mut self) -> Result<String, Failure> {
        let default = self.machine.inside().map(|interface| interface.name.clone());
        let text = "Interface towards your own hosts (the protected port)";
        let question = Question { number: 1, text, example: "eth1", default };
        let lan = self.ask(question, answer::netdev)?;
        self.note_absent(&lan)?;
        Ok(lan)
    }

    fn networks(&mut self, lan: &str) -> Result<Vec<AddressRange>, Failure> {
        let networks = self.machine.named(lan).map(super::Interface::networks).unwrap_or_default();
        let default = (!networks.is_empty()).then(|| super::joined(&networks, ", "));
        let (text, example) = ("Networks behind it", "10.1.0.0/16");
        self.ask(Question { number: 2, text, example, default }, answer::networks)
    }

    fn wan(
        &mut self,
        lan: &str,
        wan: Option<String>,
        address: Option<IpAddr>,
    ) -> Result<(String, IpAddr), Failure> {
        if let (Some(wan), Some(address)) = (&wan, address) {
            return Ok((wan.clone(), address));
        }
        let machine = self.machine;
        let guess = wan.as_deref().map_or_else(|| machine.outside(Some(lan)), |n| machine.named(n));
        let default = guess.and_then(|interface| {
            let address = address.or_else(|| interface.address())?;
            Some(format!("{} {address}", interface.name))
        });
        let text = "Interface towards the peer and its address there (the unprotected port)";
        let question = Question { number: 3, text, example: "eth0 192.0.2.1", default };
        let (wan, address) = self.ask(question, |text| {
            let (name, second) = answer::two_words(text, "INTERFACE ADDRESS")?;
            let name = answer::netdev(name)?;
            answer::two_ports(lan, &name)?;
            let known = || address.or_else(|| machine.named(&name)?.address());
            let address = match second {
                Some(second) => answer::address(second)?,
                None => known().ok_or(AnswerMistake::NoAddress { name: name.clone() })?,
            };
            Ok((name, address))
        })?;
        self.note_absent(&wan)?;
        Ok((wan, address))
    }

    fn peer(
        &mut self,
        node: &str,
        own: IpAddr,
        peer: Option<String>,
        address: Option<IpAddr>,
    ) -> Result<(String, IpAddr), Failure> {
        if let (Some(peer), Some(address)) = (&peer, address) {
            return Ok((peer.clone(), address));
        }
        let text = "The peer gateway: a name of your choice and its outer address";
        let question = Question { number: 4, text, example: "berlin 198.51.100.7", default: None };
        self.ask(question, |text| {
            let (first, second) = answer::two_words(text, "NAME ADDRESS")?;
            let (name, address) = match second {
                Some(second) => (answer::name(first)?, answer::address(second)?),
                None => (super::peer_name(peer.as_deref()), answer::address(first)?),
            };
            answer::two_names(node, &name)?;
            answer::two_addresses(own, address)?;
            Ok((name, address))
        })
    }

    fn peer_networks(
        &mut self,
        own: &[AddressRange],
        ends: [IpAddr; 2],
    ) -> Result<Vec<AddressRange>, Failure> {
        let (text, example) = ("Networks behind the peer", "10.2.0.0/16");
        self.ask(Question { number: 5, text, example, default: None }, |text| {
            let networks = answer::networks(text)?;
            answer::two_sides(own, &networks, ends)?;
            Ok(networks)
        })
    }

    /// Puts a question until the answer can be used.
    fn ask<T>(
        &mut self,
        question: Question<'_>,
        read: impl Fn(&str) -> Result<T, AnswerMistake>,
    ) -> Result<T, Failure> {
        let Question { number, text, example, default } = question;
        let offered = match &default {
            Some(answer) => format!(" [{answer}]"),
            None => format!(", for example {example}"),
        };
        loop {
            self.say(&format!("{number}/{QUESTIONS} {text}{offered}: "))?;
            let mut line = String::new();
            let read_bytes =
                self.input.read_line(&mut line).map_err(Failure::file("the terminal"))?;
            if read_bytes == 0 {
                return Err(Usage::DialogueEnded.into());
            }
            let answered = match (line.trim(), &default) {
                ("", Some(default)) => read(default),
                ("", None) => Err(AnswerMistake::Empty),
                (answer, _) => read(answer),
            };
            match answered {
                Ok(answer) => return Ok(answer),
                Err(mistake) => self.say(&format!("    {mistake}\n"))?,
            }
        }
    }

    fn note_absent(&mut self, name: &str) -> Result<(), Failure> {
        match super::absent(self.machine, name) {
            Some(note) => self.say(&format!("    {note}\n")),
            None => Ok(()),
        }
    }

    fn say(&mut self, text: &str) -> Result<(), Failure> {
        let said = self.output.write_all(text.as_bytes()).and_then(|()| self.output.flush());
        said.map_err(Failure::file("the terminal"))
    }
}
