//! Linux's xfrm: what `ip xfrm state` and `ip xfrm policy` print, and what `ip xfrm … add` takes.
//!
//! Either text may hold both, so that a script can be read as it is.
//!
//! **Order.** Of two policies that match, the one with the lower priority number decides; of equal
//! ones the older, as tried on Linux 6.18. A dump shows the newest first, a script has the oldest
//! first.

mod limits;
mod offload;
mod policy;
mod selector;
mod state;

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;

use ::policy::Direction;
use config::Location;
use ipsec::Mode;

use self::policy::{Read, Way};
use crate::model::{Effect, Foreigners, Sa};
use crate::problem::{Fate, ImportErrors, Mistake, Omissions, Parsed, Problem, shown, unknown};
use crate::source::Foreign;
use crate::words::{Braces, Cursor, Line, Word, is_for_a_shell, lines, place};
use selector::Written;

/// States or policies at most.
const MAX_RECORDS: usize = 1 << 20;

/// A policy with its place in the order.
struct Ranked {
    read: Read,
    /// Among policies of one priority the lowest decides.
    age: i64,
}

/// All that was read of xfrm.
#[derive(Default)]
struct Reader {
    sas: Vec<Sa>,
    policies: Vec<Option<Ranked>>,
    /// The policies by direction and selector, of which the kernel keeps one.
    known: HashMap<(Way, Written), usize>,
    /// Records so far.
    records: usize,
    omissions: Omissions,
    errors: ImportErrors,
}

/// A state or a policy: its lines.
struct Record<'a> {
    kind: Kind,
    lines: Vec<Vec<Word<'a>>>,
    source: Form,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    State,
    Policy,
}

/// The form of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Dump,
    Add,
    Update,
}

/// Reads texts.
pub(crate) fn read(texts: &[Foreign]) -> Result<(Foreigners, Omissions), ImportErrors> {
    let mut reader = Reader::default();
    for text in texts {
        reader.text(text);
    }
    if reader.records == 0 && reader.errors.is_empty() {
        let file = texts.first().map_or("", |text| &text.name);
        let expected = "no state and no policy of `ip xfrm` is in it";
        return Err(ImportErrors::of_file(file, Mistake::Nothing { expected }));
    }
    reader.finish()
}

impl Reader {
    fn text(&mut self, text: &Foreign) {
        let file = &text.name;
        let mut open: Option<Record<'_>> = None;
        for line in lines(text.text(), Braces::InWords) {
            if line.is_indented
                && let Some(record) = &mut open
            {
                if record.lines.len() == 1 {
                    record.kind = kind_of_dump(&line);
                }
                record.lines.push(line.words);
                continue;
            }
            if let Some(record) = open.take() {
                self.record(file, &record);
            }
            if line.words[0].text == "src" && !line.is_indented {
                open =
                    Some(Record { kind: Kind::State, lines: vec![line.words], source: Form::Dump });
            } else {
                self.other(file, &line);
            }
        }
        if let Some(record) = open {
            self.record(file, &record);
        }
    }

    /// Reads a line that is not of a dump: a command of `ip`, or something else.
    fn other(&mut self, file: &str, line: &Line<'_>) {
        match command(file, &line.words) {
            Ok(Some(record)) => self.record(file, &record),
            Ok(None) => {
                let first = line.words[0];
                let at_word = (&place(file, first), first.text);
                let reason = "not a state or a policy of `ip xfrm`";
                self.omissions.left(at_word, reason, "see whether the gateway needs it");
            }
            Err(problem) => self.errors.add(*problem),
        }
    }

    fn record(&mut self, file: &str, record: &Record<'_>) {
        self.records += 1;
        if self.records > MAX_RECORDS {
            if self.records == MAX_RECORDS + 1 {
                let place = policy::at_policy(file, &record.lines);
                let mistake = Mistake::TooMany { what: "states and policies", limit: MAX_RECORDS };
                self.errors.problems.extend(place.map(|place| Problem { place, mistake }));
            }
            return;
        }
        let read = match record.kind {
            Kind::State => state::read(file, &record.lines, &mut self.omissions).map(|sa| {
                self.sas.extend(sa);
            }),
            Kind::Policy => policy::read(file, &record.lines, &mut self.omissions).map(|read| {
                if let Some(read) = read {
                    self.policy(read, record.source);
                }
            }),
        };
        if let Err(problem) = read {
            self.errors.add(*problem);
        }
    }

    fn policy(&mut self, read: Read, source: Form) {
        let place = self.policies.len();
        // A dump shows the newest first.
        let age = place as i64 * if source == Form::Dump { -1 } else { 1 };
        match self.known.entry((read.way, read.written)) {
            Slot::Vacant(slot) => {
                slot.insert(place);
            }
            Slot::Occupied(_) if source == Form::Add => {
                let at = (&read.entry.at, "add");
                let reason = "the kernel refuses it: an earlier policy has the same selector";
                return self.omissions.left(at, reason, "write `update` if the later one is meant");
            }
            Slot::Occupied(mut slot) => {
                let earlier = self.policies[slot.insert(place)].take();
                if let Some(earlier) = earlier {
                    let at = (&earlier.read.entry.at, "policy");
                    let reason = "a later policy with the same selector replaces it";
                    self.omissions.left(at, reason, "none");
                }
            }
        }
        self.policies.push(Some(Ranked { read, age }));
    }

    fn finish(mut self) -> Result<(Foreigners, Omissions), ImportErrors> {
        if !self.errors.is_empty() {
            return Err(self.errors);
        }
        let mut ranked: Vec<Ranked> = self.policies.into_iter().flatten().collect();
        ranked.sort_by_key(|ranked| (ranked.read.priority, ranked.age));
        let mut found = Foreigners { sas: self.sas, ..Foreigners::default() };
        // `in` policies, with their `fwd` twins.
        let mut forwarded: HashMap<Written, Read> = HashMap::new();
        let mut received = Vec::new();
        for Ranked { read, .. } in ranked {
            match read.way {
                Way::Out => found.outbound.push(read.entry),
                Way::In => received.push(read),
                Way::Forward => {
                    forwarded.insert(read.written, read);
                }
            }
        }
        for read in received {
            judge_twin(&read, forwarded.remove(&read.written), &mut self.omissions);
            found.inbound.push(read.entry);
        }
        let mut alone: Vec<Read> = forwarded.into_values().collect();
        alone.sort_by(|one, other| one.entry.at.cmp(&other.entry.at));
        for read in alone {
            let reason = "no `in` policy says the same, and forwarded packets alone cannot be said";
            let advice = "write a policy with direction = \"inbound\" if packets for this machine \
                          may come too";
            self.omissions.left((&read.entry.at, "fwd"), reason, advice);
        }
        found.notes.push(
            "xfrm lets pass what no policy matches. Lockgate drops it at port wan: write a policy \
             with action = \"bypass\" for what is to pass in cleartext."
                .into(),
        );
        Ok((found, self.omissions))
    }
}

/// Notes where an `in` policy without a `fwd` policy like it means something else here.
fn judge_twin(read: &Read, twin: Option<Read>, omissions: &mut Omissions) {
    let at = |place: &Location| place.clone();
    match twin {
        Some(twin) if twin.entry.effect != read.entry.effect || twin.priority != read.priority => {
            let reason = "its `in` twin has another action, template or priority";
            let advice = "compare both: the `in` policy was taken for forwarded packets too";
            omissions.left((&at(&twin.entry.at), "fwd"), reason, advice);
        }
        Some(_) => {}
        None => {
            // The packets of transport mode are for this machine.
            let is_for_us = matches!(
                &read.entry.effect, Effect::Protect(template) if template.mode == Mode::Transport
            );
            if !is_for_us {
                let why = (
                    "xfrm asks it for packets to this machine only, not for forwarded ones",
                    "write the policy for narrower addresses if that is not meant",
                );
                omissions.add(Fate::Differs, (&read.entry.at, "in"), why);
            }
            debug_assert_eq!(read.entry.direction, Direction::Inbound);
        }
    }
}

/// The kind of a record of a dump, by its second line.
fn kind_of_dump(second: &Line<'_>) -> Kind {
    match second.words[0].text {
        "dir" | "socket" => Kind::Policy,
        _ => Kind::State,
    }
}

/// Reads a command line of `ip … xfrm …`. `None`: it adds no state and no policy.
fn command<'a>(file: &str, words: &[Word<'a>]) -> Parsed<Option<Record<'a>>> {
    let cursor = Cursor::new(file, words);
    let is_ip = |word: &Word<'_>| word.text == "ip" || word.text.ends_with("/ip");
    // `sudo ip …`, `ip netns exec NAME ip …`: the last `ip` before `xfrm`.
    let Some(object) = words.iter().position(|word| word.text == "xfrm") else { return Ok(None) };
    if !words[..object].iter().any(is_ip) {
        return Ok(None);
    }
    let [kind, verb, rest @ ..] = &words[object + 1..] else { return Ok(None) };
    let kind = match kind.text {
        "state" | "sa" => Kind::State,
        "policy" | "pol" => Kind::Policy,
        "monitor" => return Ok(None),
        _ => return unknown(&cursor, *kind, "`ip xfrm`", &["state", "policy"]),
    };
    let source = match verb.text {
        "add" => Form::Add,
        "update" => Form::Update,
        _ => return Ok(None),
    };
    if let Some(word) = rest.iter().find(|word| is_for_a_shell(word.text)) {
        let mistake = Mistake::Shell { word: shown(word.text) };
        return crate::problem::at(&cursor, *word, mistake);
    }
    if rest.is_empty() {
        let mistake = Mistake::NoValue { word: shown(verb.text) };
        return crate::problem::at(&cursor, *verb, mistake);
    }
    Ok(Some(Record { kind, lines: vec![rest.to_vec()], source }))
}
