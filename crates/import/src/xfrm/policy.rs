//! Policies: as `ip xfrm policy` prints them, and as `ip xfrm policy add` takes them.

use std::net::IpAddr;

use config::Location;
use ipsec::Mode;
use policy::{Direction, Selector};
use wire::Address;

use super::offload;
use super::selector::Written;
use super::state::mark;
use crate::model::{Effect, Entry, Offload, Template};
use crate::problem::{Fate, Mistake, Omissions, Parsed, at, unknown};
use crate::values::{address, number_of, number32, value};
use crate::words::{Cursor, Word, place};

/// Words of a policy.
const WORDS: &[&str] = &[
    "src", "dst", "dev", "proto", "sport", "dport", "type", "code", "dir", "socket", "action",
    "priority", "ptype", "index", "mark", "if_id", "flag", "limit", "tmpl", "offload", "share",
    "ctx",
];

/// The direction of a policy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Way {
    In,
    Out,
    /// Packets that are forwarded after they were opened.
    Forward,
}

/// A template as it was written.
#[derive(Clone, Debug)]
struct WrittenTemplate<'a> {
    word: Word<'a>,
    source: Option<IpAddr>,
    destination: Option<IpAddr>,
    spi: u32,
    reqid: u32,
    mode: Mode,
    /// The first word that it cannot be taken with.
    odd: Option<(Word<'a>, &'static str, &'static str)>,
}

/// A policy as it was written.
struct Policy<'a> {
    first: Word<'a>,
    selector: Written,
    way: Option<Way>,
    is_block: bool,
    priority: u32,
    templates: Vec<WrittenTemplate<'a>>,
    offload: Option<Offload>,
    /// The first word that it cannot be taken with.
    odd: Option<(Word<'a>, Fate, &'static str, &'static str)>,
}

/// A policy that has a place here.
pub(super) struct Read {
    pub(super) way: Way,
    pub(super) priority: u32,
    pub(super) written: Written,
    pub(super) entry: Entry,
}

/// Reads a policy. `None`: it has no place here, which was noted.
pub(super) fn read<'a>(
    file: &str,
    lines: &[Vec<Word<'a>>],
    omissions: &mut Omissions,
) -> Parsed<Option<Read>> {
    // Limits and use, which a dump with statistics has, say nothing about packets.
    let of_lifetime = |line: &&Vec<Word<'a>>| {
        line.first().is_some_and(|word| {
            matches!(word.text, "lifetime" | "limit:" | "expire" | "add")
                || word.text.contains("(bytes)")
        })
    };
    let words: Vec<Word<'a>> =
        lines.iter().filter(|line| !of_lifetime(line)).flatten().copied().collect();
    let Some(first) = words.first().copied() else { return Ok(None) };
    for line in lines.iter().filter(of_lifetime) {
        let is_limit = matches!(line[0].text, "limit:" | "expire");
        // `(INF)` is no number.
        let is_set = |word: &Word<'_>| number_of(word.text).is_some_and(|limit| limit != 0);
        if is_limit && line.iter().any(is_set) {
            let at_word = (&place(file, line[0]), line[0].text);
            omissions.left(at_word, "policies have no limits here", "none");
        }
    }
    let mut cursor = Cursor::new(file, &words);
    let mut policy = Policy {
        first,
        selector: Written::default(),
        way: None,
        is_block: false,
        priority: 0,
        templates: Vec::new(),
        offload: None,
        odd: None,
    };
    while let Some(word) = cursor.next() {
        policy.word(&mut cursor, word, omissions)?;
    }
    policy.finish(&cursor, omissions)
}

impl<'a> Policy<'a> {
    fn refuse(&mut self, word: Word<'a>, reason: &'static str, advice: &'static str) {
        self.odd.get_or_insert((word, Fate::Left, reason, advice));
    }

    fn word(
        &mut self,
        cursor: &mut Cursor<'_, 'a>,
        word: Word<'a>,
        omissions: &mut Omissions,
    ) -> Parsed<()> {
        match word.text {
            "dir" => {
                let way = value(cursor, word)?;
                self.way = Some(match way.text {
                    "in" => Way::In,
                    "out" => Way::Out,
                    "fwd" => Way::Forward,
                    _ => return unknown(cursor, way, "directions", &["in", "out", "fwd"]),
                });
            }
            "socket" => {
                // The policy of one socket: an application's, IKE's mostly.
                value(cursor, word)?;
                self.odd.get_or_insert((
                    word,
                    Fate::Refused,
                    "Lockgate has no policies of single sockets",
                    "IKE passes where `allow_host` of port wan lists \"udp/500\", \"udp/4500\"",
                ));
            }
            "action" => {
                let action = value(cursor, word)?;
                self.is_block = match action.text {
                    "block" => true,
                    "allow" => false,
                    _ => return unknown(cursor, action, "actions", &["allow", "block"]),
                };
            }
            "priority" => self.priority = number32(cursor, word)?,
            "tmpl" => {
                let template = template(cursor, word)?;
                self.templates.push(template);
            }
            "offload" => self.offload = Some(offload::of_policy(cursor, word)?),
            "crypto" if cursor.take("offload") => {
                self.offload = Some(offload::of_policy(cursor, word)?);
            }
            _ if self.selector.take(cursor, word)? => {}
            _ => self.other_word(cursor, word, omissions)?,
        }
        Ok(())
    }

    fn other_word(
        &mut self,
        cursor: &mut Cursor<'_, 'a>,
        word: Word<'a>,
        omissions: &mut Omissions,
    ) -> Parsed<()> {
        match word.text {
            "ptype" => {
                let kind = value(cursor, word)?;
                match kind.text {
                    "main" => {}
                    "sub" => self.refuse(kind, "Lockgate has no sub-policies", "none"),
                    _ => return unknown(cursor, kind, "kinds of policies", &["main", "sub"]),
                }
            }
            "mark" => {
                if mark(cursor, word)? {
                    let reason = "Lockgate has no marks: it would judge other packets too";
                    self.refuse(word, reason, "tell the packets apart by their addresses");
                }
            }
            "if_id" => {
                if number32(cursor, word)? != 0 {
                    let reason = "Lockgate has no xfrm interfaces";
                    self.refuse(word, reason, "say by addresses which packets are meant");
                }
            }
            "flag" => self.flags(cursor, omissions)?,
            "limit" => {
                let name = value(cursor, word)?;
                if crate::values::number(cursor, name, u64::MAX)? != 0 {
                    let at_word = (&cursor.place(name), name.text);
                    omissions.left(at_word, "policies have no limits here", "none");
                }
            }
            // The kernel's number of the policy.
            "index" => drop(number32(cursor, word)?),
            "share" => drop(value(cursor, word)?),
            "ctx" | "security" => {
                value(cursor, word)?;
                cursor.skip_all();
                self.refuse(word, "Lockgate has no security contexts", "none");
            }
            _ => return unknown(cursor, word, "policies", WORDS),
        }
        Ok(())
    }

    fn flags(&mut self, cursor: &mut Cursor<'_, 'a>, omissions: &mut Omissions) -> Parsed<()> {
        while let Some(flag) = cursor.peek() {
            match flag.text {
                "localok" => {
                    let at_word = (&cursor.place(flag), flag.text);
                    omissions.left(at_word, "no socket can choose another policy", "none");
                }
                "icmp" => {
                    let reason = "ICMP errors are judged by the packet they quote";
                    omissions.left((&cursor.place(flag), flag.text), reason, "none");
                }
                text if text.starts_with('(') => {}
                text if WORDS.contains(&text) || text == "crypto" => break,
                _ => return unknown(cursor, flag, "flags", &["localok", "icmp"]),
            }
            cursor.next();
        }
        Ok(())
    }

    fn finish(self, cursor: &Cursor<'_, '_>, omissions: &mut Omissions) -> Parsed<Option<Read>> {
        let at_first = cursor.place(self.first);
        if let Some((word, fate, reason, advice)) = self.odd {
            omissions.add(fate, (&cursor.place(word), word.text), (reason, advice));
            return Ok(None);
        }
        let Some(way) = self.way else {
            return at(cursor, self.first, Mistake::Missing { what: "`dir` of the policy" });
        };
        let direction = match way {
            Way::Out => Direction::Outbound,
            Way::In | Way::Forward => Direction::Inbound,
        };
        let selector = match self.selector.seen(direction) {
            Ok(selector) => selector,
            Err(word) => {
                let reason = "no selector here says this";
                omissions.left((&at_first, word), reason, "write a policy for it by hand");
                return Ok(None);
            }
        };
        let effect = match (self.is_block, &self.templates[..]) {
            (true, _) => Effect::Discard,
            (false, []) => Effect::Bypass,
            (false, [template]) => match template.taken(direction, &selector) {
                Ok(template) => Effect::Protect(template),
                Err((word, reason, advice)) => {
                    omissions.left((&cursor.place(word), word.text), reason, advice);
                    return Ok(None);
                }
            },
            (false, [_, second, ..]) => {
                let reason = "Lockgate protects a packet once";
                let at_word = (&cursor.place(second.word), "tmpl");
                omissions.left(at_word, reason, "write a policy for the one that is needed");
                return Ok(None);
            }
        };
        let offload = self.offload;
        let entry = Entry { at: at_first, direction, selector, effect, offload };
        Ok(Some(Read { way, priority: self.priority, written: self.selector, entry }))
    }
}

fn template<'a>(cursor: &mut Cursor<'_, 'a>, word: Word<'a>) -> Parsed<WrittenTemplate<'a>> {
    let mut template = WrittenTemplate {
        word,
        source: None,
        destination: None,
        spi: 0,
        reqid: 0,
        mode: Mode::Transport,
        odd: None,
    };
    while let Some(next) = cursor.peek() {
        match next.text {
            "src" | "dst" => {
                cursor.next();
                let end = Some(address(cursor, next)?).filter(|ip| !ip.is_unspecified());
                match next.text {
                    "src" => template.source = end,
                    _ => template.destination = end,
                }
            }
            "spi" => {
                cursor.next();
                template.spi = number32(cursor, next)?;
            }
            "reqid" => {
                cursor.next();
                template.reqid = number32(cursor, next)?;
            }
            "proto" | "mode" | "level" => {
                cursor.next();
                let value = value(cursor, next)?;
                template.kind(cursor, (next, value))?;
            }
            "share" | "enc-mask" | "auth-mask" | "comp-mask" => {
                cursor.next();
                value(cursor, next)?;
            }
            _ => break,
        }
    }
    Ok(template)
}

impl<'a> WrittenTemplate<'a> {
    /// Reads the value of `proto`, `mode` or `level`.
    fn kind(&mut self, cursor: &Cursor<'_, '_>, (name, value): (Word<'a>, Word<'a>)) -> Parsed<()> {
        let odd = match (name.text, value.text) {
            ("proto", "esp" | "50") | ("level", "required") => return Ok(()),
            ("mode", "tunnel") => {
                self.mode = Mode::Tunnel;
                return Ok(());
            }
            ("mode", "transport") => return Ok(()),
            ("proto", "ah" | "comp" | "route2" | "hao" | "51" | "108") => {
                ("Lockgate has no protocol but ESP", "agree on ESP with the peer")
            }
            ("mode", "beet" | "ro" | "in_trigger" | "iptfs") => {
                ("Lockgate has no mode but tunnel and transport", "agree on tunnel mode")
            }
            ("level", "use") => (
                "without an SA it lets packets pass in cleartext, which Lockgate never does",
                "write a policy that protects them, or one with action = \"bypass\"",
            ),
            ("proto", _) => return unknown(cursor, value, "protocols", &["esp", "ah", "comp"]),
            ("mode", _) => return unknown(cursor, value, "modes", &["tunnel", "transport"]),
            _ => return unknown(cursor, value, "levels", &["required", "use"]),
        };
        self.odd.get_or_insert((value, odd.0, odd.1));
        Ok(())
    }

    /// The template as the peer of a policy of a direction.
    ///
    /// # Errors
    /// The word, the reason and the advice if no peer can be like this.
    fn taken(
        &self,
        direction: Direction,
        selector: &Selector,
    ) -> Result<Template, (Word<'a>, &'static str, &'static str)> {
        if let Some(odd) = self.odd {
            return Err(odd);
        }
        let (local, remote) = match direction {
            Direction::Outbound => (self.source, self.destination),
            Direction::Inbound => (self.destination, self.source),
        };
        let host = |list: &[policy::AddressRange]| match list {
            [range] if range.lo == range.hi => Some(IpAddr::from(range.first())),
            _ => None,
        };
        let spi = Some(self.spi).filter(|spi| *spi != 0);
        let template =
            |local, remote| Template { local, remote, mode: self.mode, class: self.reqid, spi };
        if self.mode == Mode::Transport {
            let (Some(one), Some(other)) = (host(&selector.local), host(&selector.remote)) else {
                return Err((
                    self.word,
                    "transport mode protects packets between two hosts only",
                    "write one policy for each pair of hosts, or use tunnel mode",
                ));
            };
            if local.unwrap_or(one) != one || remote.unwrap_or(other) != other {
                return Err((self.word, "transport mode keeps the addresses", "use tunnel mode"));
            }
            return usable(one, other)
                .then(|| template(one, other))
                .ok_or((self.word, UNUSABLE.0, UNUSABLE.1));
        }
        match (local, remote) {
            (Some(local), Some(remote)) if local.is_ipv4() != remote.is_ipv4() => {
                Err((self.word, "a tunnel has one IP version", "correct the template"))
            }
            (Some(local), Some(remote)) if usable(local, remote) => Ok(template(local, remote)),
            (Some(_), Some(_)) => Err((self.word, UNUSABLE.0, UNUSABLE.1)),
            _ => Err((
                self.word,
                "a tunnel has a fixed address at both ends",
                "write both addresses in the template",
            )),
        }
    }
}

const UNUSABLE: (&str, &str) =
    ("an address at an end of it belongs to no interface", "correct the template");

fn usable(local: IpAddr, remote: IpAddr) -> bool {
    let is_host = |ip: IpAddr| config::unusable(ip).is_none() && !ip.is_multicast();
    is_host(local)
        && is_host(remote)
        && local != remote
        && !config::is_link_local(Address::from(remote))
}

/// Names a policy in a note.
pub(super) fn at_policy(file: &str, words: &[Vec<Word<'_>>]) -> Option<Location> {
    words.first().and_then(|line| line.first()).map(|word| place(file, *word))
}
