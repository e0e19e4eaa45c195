//! VPP: start-up words of the section `ipsec`, and commands.
//!
//! | read | becomes |
//! |---|---|
//! | `ipsec { ipv4-outbound-spd-flow-cache on … }` | `[cache]` |
//! | `ipsec sa add …` | the SAs of a peer |
//! | `ipsec policy add …` | a policy |
//! | `ipsec spd add`, `set interface ipsec spd` | which policies count |
//!
//! **Order.** The higher priority decides; of equal ones the later. Inbound, all policies that
//! protect come before all that bypass, and those before all that discard, whatever their
//! priorities: VPP has a list of each kind.

mod policy;
mod sa;
mod startup;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;

use ::policy::Direction;
use config::Location;
use ipsec::Mode;

use self::policy::{Act, VppPolicy};
use self::sa::VppSa;
use crate::model::{Effect, Entry, Foreigners, Sa, Template};
use crate::problem::{Fate, ImportErrors, Mistake, Omissions, Parsed, Problem, at, shown, unknown};
use crate::source::Foreign;
use crate::values::number32;
use crate::words::{Braces, Cursor, Line, Word, is_for_a_shell, lines, place};

/// SAs or policies at most.
const MAX_RECORDS: usize = 1 << 20;

/// Commands behind `ipsec`.
const COMMANDS: [&str; 3] = ["sa", "spd", "policy"];

/// All that was read of VPP.
#[derive(Default)]
struct Reader {
    sas: BTreeMap<u32, VppSa>,
    policies: Vec<VppPolicy>,
    cache: startup::FlowCache,
    /// SPDs that interfaces have.
    bound: Vec<(u32, Location)>,
    records: usize,
    omissions: Omissions,
    errors: ImportErrors,
}

/// Reads a text.
pub(crate) fn read(text: &Foreign) -> Result<(Foreigners, Omissions), ImportErrors> {
    let mut reader = Reader::default();
    let found = lines(text.text(), Braces::Apart);
    let mut rest = &found[..];
    while let [line, more @ ..] = rest {
        rest = match section(line) {
            true => reader.section(&text.name, rest),
            false => {
                if let Err(problem) = reader.command(&text.name, line) {
                    reader.errors.add(*problem);
                }
                more
            }
        };
    }
    if reader.records == 0 && reader.errors.is_empty() {
        let expected = "no section `ipsec` and no command `ipsec` of VPP is in it";
        return Err(ImportErrors::of_file(&text.name, Mistake::Nothing { expected }));
    }
    reader.finish()
}

/// Returns whether a section of the start-up configuration begins here: `NAME {`.
fn section(line: &Line<'_>) -> bool {
    line.words.get(1).is_some_and(|word| word.text == "{")
}

impl Reader {
    /// Reads a section, and returns the lines behind it.
    fn section<'l, 'a>(&mut self, file: &str, lines: &'l [Line<'a>]) -> &'l [Line<'a>] {
        let mut words: Vec<Word<'a>> = Vec::new();
        let mut depth = 0usize;
        for (place, line) in lines.iter().enumerate() {
            for word in &line.words {
                match word.text {
                    "{" => depth += 1,
                    "}" => depth = depth.saturating_sub(1),
                    _ => {}
                }
            }
            words.extend(&line.words);
            if depth == 0 {
                self.whole_section(file, &words);
                return &lines[place + 1..];
            }
        }
        let place = crate::words::place(file, words[0]);
        self.errors.add(Problem { place, mistake: Mistake::Braces });
        &[]
    }

    fn whole_section(&mut self, file: &str, words: &[Word<'_>]) {
        let (name, inside) = (words[0], &words[2..]);
        match name.text {
            "ipsec" => {
                self.records += 1;
                let read = startup::read(file, inside, &mut self.cache, &mut self.omissions);
                if let Err(problem) = read {
                    self.errors.add(*problem);
                }
            }
            // VPP passes over it too.
            "comment" => {}
            _ => {
                let at_word = (&place(file, name), name.text);
                let reason = "this section is not about IPsec";
                self.omissions.left(at_word, reason, "see docs/CONFIGURATION.md for ports");
            }
        }
    }

    /// Reads a command.
    fn command(&mut self, file: &str, line: &Line<'_>) -> Parsed<()> {
        let wrappers = ["sudo", "vppctl", "vpp#", "DBGvpp#"];
        let begin = line.words.iter().position(|word| !wrappers.contains(&word.text));
        let words = &line.words[begin.unwrap_or(line.words.len())..];
        let mut cursor = Cursor::new(file, words);
        let texts: Vec<&str> = words.iter().take(4).map(|word| word.text).collect();
        if let Some(word) = words.iter().find(|word| word.text == "{" || word.text == "}") {
            return at(&cursor, *word, Mistake::Braces);
        }
        let is_ours = matches!(texts[..], ["ipsec", ..] | ["set", "interface", "ipsec", "spd"]);
        if let Some(word) = words.iter().find(|word| is_ours && is_for_a_shell(word.text)) {
            return at(&cursor, *word, Mistake::Shell { word: shown(word.text) });
        }
        if self.records >= MAX_RECORDS {
            let mistake = Mistake::TooMany { what: "commands", limit: MAX_RECORDS };
            return match words.first() {
                Some(word) if self.errors.is_empty() => at(&cursor, *word, mistake),
                _ => Ok(()),
            };
        }
        match texts[..] {
            ["ipsec", "sa", "add", ..] => self.sa(&mut cursor, words),
            ["ipsec", "policy", "add", ..] => {
                self.records += 1;
                let read = policy::read(&mut cursor, &words[..3], &mut self.omissions)?;
                self.policies.extend(read);
                Ok(())
            }
            ["ipsec", "spd", "add", ..] => {
                self.records += 1;
                skip(&mut cursor, 3);
                number32(&mut cursor, words[2]).map(drop)
            }
            ["set", "interface", "ipsec", "spd"] => self.binding(&mut cursor, words),
            ["ipsec", kind, ..] if !COMMANDS.contains(&kind) && near(kind) => {
                unknown(&cursor, words[1], "`ipsec`", &COMMANDS)
            }
            _ => {
                let Some(first) = words.first() else { return Ok(()) };
                let reason = "not an SA, an SPD or a policy that is added";
                let advice = "see whether the gateway needs it";
                let command: Vec<String> = words.iter().map(|word| shown(word.text)).collect();
                let command = command.join(" ");
                self.omissions.left((&place(file, *first), &command), reason, advice);
                Ok(())
            }
        }
    }

    fn sa(&mut self, cursor: &mut Cursor<'_, '_>, words: &[Word<'_>]) -> Parsed<()> {
        self.records += 1;
        skip(cursor, 3);
        let first = cursor.place(words[0]);
        let id = number32(cursor, words[2])?;
        let sa = sa::read(cursor, words[2], first, &mut self.omissions)?;
        if let Some(sa) = sa {
            match self.sas.entry(id) {
                Slot::Vacant(slot) => {
                    slot.insert(sa);
                }
                Slot::Occupied(_) => {
                    let reason = "an earlier SA has the same number";
                    let advice = "leave out the one that is not meant";
                    self.omissions.left((&sa.at, "sa"), reason, advice);
                }
            }
        }
        Ok(())
    }

    /// Reads `set interface ipsec spd IF N`.
    fn binding(&mut self, cursor: &mut Cursor<'_, '_>, words: &[Word<'_>]) -> Parsed<()> {
        self.records += 1;
        skip(cursor, 4);
        let last = words[3];
        let interface = crate::values::value(cursor, last)?;
        let number = number32(cursor, interface)?;
        let at_word = (cursor.place(interface), interface.text);
        self.omissions.left(
            (&at_word.0, at_word.1),
            "the name of an interface of VPP: Lockgate has Linux's netdevs",
            "name the netdev in [port.wan]",
        );
        self.bound.push((number, at_word.0));
        Ok(())
    }

    fn finish(mut self) -> Result<(Foreigners, Omissions), ImportErrors> {
        if !self.errors.is_empty() {
            return Err(self.errors);
        }
        let spd = self.spd();
        let (counting, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.policies)
            .into_iter()
            .partition(|policy| spd.is_none_or(|spd| policy.spd == spd));
        for policy in others {
            let reason = "its SPD is not that of the first interface: Lockgate has one SPD";
            let advice = "import each SPD by itself, and name `ports` in its policies";
            self.omissions.left((&policy.at, "spd"), reason, advice);
        }
        let mut order: Vec<(usize, VppPolicy)> = counting.into_iter().enumerate().collect();
        order.sort_by_key(|(place, policy)| {
            let kind = match (policy.direction, policy.act) {
                (Direction::Outbound, _) | (_, Act::Protect(_)) => 0,
                (_, Act::Bypass) => 1,
                (_, Act::Discard) => 2,
            };
            (kind, Reverse(policy.priority), Reverse(*place))
        });
        let mut found = Foreigners { flows: self.cache.flows(), ..Foreigners::default() };
        for (_, policy) in order {
            let Some(entry) = self.entry(policy) else { continue };
            match entry.direction {
                Direction::Outbound => found.outbound.push(entry),
                Direction::Inbound => found.inbound.push(entry),
            }
        }
        for (id, sa) in std::mem::take(&mut self.sas) {
            match sa.ends {
                Some([source, destination]) => {
                    found.sas.push(Sa { class: id, ..sa.with([source, destination]) })
                }
                None => {
                    let reason = "no policy that is taken names it, and it has no tunnel";
                    self.omissions.left((&sa.at, "sa"), reason, "none");
                }
            }
        }
        Ok((found, self.omissions))
    }

    /// The SPD that counts; `None`: all do.
    fn spd(&self) -> Option<u32> {
        self.bound.first().map(|(number, _)| *number)
    }

    /// The policy with the template of its SA. `None`: it has no place here, which was noted.
    fn entry(&mut self, policy: VppPolicy) -> Option<Entry> {
        let VppPolicy { at, direction, act, selector, .. } = policy;
        let effect = match act {
            Act::Bypass => Effect::Bypass,
            Act::Discard => Effect::Discard,
            Act::Protect(id) => {
                let Some(sa) = self.sas.get_mut(&id) else {
                    let reason = "its SA is not there, or was not taken";
                    self.omissions.left((&at, "sa"), reason, "give the SA too");
                    return None;
                };
                let hosts = [&selector.local, &selector.remote].map(|list| match list[..] {
                    [range] if range.lo == range.hi => Some(range.first().into()),
                    _ => None,
                });
                if let (None, [Some(local), Some(remote)]) = (sa.ends, hosts) {
                    sa.ends = Some(match direction {
                        Direction::Outbound => [local, remote],
                        Direction::Inbound => [remote, local],
                    });
                }
                let ends = sa.ends.map(|[source, destination]| match direction {
                    Direction::Outbound => [source, destination],
                    Direction::Inbound => [destination, source],
                });
                let is_transport = sa.mode == Mode::Transport;
                let fits = |[local, remote]: &[std::net::IpAddr; 2]| {
                    !is_transport || hosts == [Some(*local), Some(*remote)]
                };
                let Some([local, remote]) = ends.filter(fits) else {
                    let reason = "an SA without a tunnel protects packets between two hosts only";
                    let advice = "write one policy and two SAs for each pair of hosts";
                    self.omissions.left((&at, "sa"), reason, advice);
                    return None;
                };
                let is_host = |ip| config::unusable(ip).is_none();
                if !is_host(local) || !is_host(remote) || local == remote {
                    let reason = "an address at an end of its SA belongs to no interface";
                    self.omissions.left((&at, "sa"), reason, "correct the SA");
                    return None;
                }
                let (mode, class) = (sa.mode, id);
                Effect::Protect(Template { local, remote, mode, class, spi: None })
            }
        };
        if policy.is_narrower_here {
            let why = (
                "VPP looks at no protocol and no ports of inbound packets, and at ports of TCP, \
                 UDP and SCTP only; Lockgate at both always",
                "widen the policy if it must match more",
            );
            self.omissions.add(Fate::Differs, (&at, "policy"), why);
        }
        Some(Entry { at, direction, selector, effect, offload: None })
    }
}

fn skip(cursor: &mut Cursor<'_, '_>, words: usize) {
    for _ in 0..words {
        cursor.next();
    }
}

/// Returns whether a word is near to one of our commands: a misspelling.
fn near(word: &str) -> bool {
    config::nearest(word, COMMANDS.into_iter()).is_some()
}
