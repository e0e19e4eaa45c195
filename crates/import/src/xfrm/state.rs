//! States: as `ip xfrm state` prints them, and as `ip xfrm state add` takes them.

use std::net::IpAddr;

use config::Location;
use ipsec::{KeyMaterial, Lifetime, Mode, Spi, Suite};
use policy::Direction;
use zeroize::Zeroizing;

use super::limits;
use super::offload;
use super::selector::Written;
use crate::algorithms::{self, Cipher, Hash, Keyed, NoSuite};
use crate::model::{Offload, Outer, Sa};
use crate::problem::{Fate, Mistake, Omissions, Parsed, at, unknown};
use crate::values::{address, bytes_of, number, number_of, number32, value};
use crate::words::{Cursor, Word, place};

/// Words of a state.
const WORDS: &[&str] = &[
    "src",
    "dst",
    "proto",
    "spi",
    "reqid",
    "seq",
    "mode",
    "replay-window",
    "replay-seq",
    "replay-oseq",
    "replay-seq-hi",
    "replay-oseq-hi",
    "flag",
    "extra-flag",
    "enc",
    "auth",
    "auth-trunc",
    "aead",
    "comp",
    "anti-replay",
    "encap",
    "sel",
    "limit",
    "offload",
    "crypto",
    "mark",
    "output-mark",
    "if_id",
    "coa",
    "ctx",
    "tfcpad",
    "lastused",
    "dir",
    "pcpu-num",
    "lifetime",
    "stats",
];

/// Flags of a state.
const FLAGS: [&str; 8] =
    ["noecn", "decap-dscp", "nopmtudisc", "wildrecv", "icmp", "af-unspec", "align4", "esn"];

/// Extra flags of a state.
const EXTRA_FLAGS: [&str; 2] = ["dont-encap-dscp", "oseq-may-wrap"];

/// A block of a dump that goes on over lines.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    None,
    /// `anti-replay esn context:`.
    Esn,
    /// `lifetime config:` and `lifetime current:`.
    Lifetime,
    /// `stats:`.
    Statistics,
}

/// A key as it is written.
#[derive(Clone, Copy)]
enum Key<'a> {
    /// The dump hides it.
    Hidden,
    /// A word: `0x…`, or the characters of the key.
    Word(Word<'a>),
}

/// The suite and the key as far as they are told, or the word that no suite fits.
type Keys<'a> = Result<(Option<Suite>, Option<KeyMaterial>), (Option<Word<'a>>, NoSuite)>;

/// A state as it was read.
struct State<'a> {
    at: Location,
    source: Option<IpAddr>,
    destination: Option<IpAddr>,
    spi: Option<u32>,
    reqid: u32,
    mode: Mode,
    cipher: Option<(Word<'a>, Key<'a>)>,
    hash: Option<(Word<'a>, Key<'a>, Option<u32>)>,
    aead: Option<(Word<'a>, Key<'a>, u32)>,
    window: Option<u32>,
    has_esn: bool,
    udp: Option<[u16; 2]>,
    used: u64,
    direction: Option<Direction>,
    offload: Option<Offload>,
    lifetime: Lifetime,
    outer: Outer,
    /// The first reason why nothing is taken of it.
    refused: Option<Refused<'a>>,
}

/// A word because of which nothing of a state is taken.
struct Refused<'a> {
    word: Word<'a>,
    why: (&'static str, &'static str),
}

/// Reads a state. `None`: it has no place here, which was noted.
pub(super) fn read<'a>(
    file: &str,
    lines: &[Vec<Word<'a>>],
    omissions: &mut Omissions,
) -> Parsed<Option<Sa>> {
    let Some(first) = lines.first().and_then(|line| line.first()) else { return Ok(None) };
    let mut state = State::new(place(file, *first));
    let mut block = Block::None;
    for words in lines {
        if block != Block::None && state.block_line(block, (file, words), omissions) {
            continue;
        }
        block = Block::None;
        let mut cursor = Cursor::new(file, words);
        while let Some(word) = cursor.next() {
            if let Some(begun) = state.word(&mut cursor, word, omissions)? {
                block = begun;
            }
        }
    }
    let cursor = Cursor::new(file, &[]);
    state.finish(&cursor, *first, omissions)
}

impl<'a> State<'a> {
    fn new(at: Location) -> State<'a> {
        State {
            at,
            source: None,
            destination: None,
            spi: None,
            reqid: 0,
            // As `ip` takes a state that says none.
            mode: Mode::Transport,
            cipher: None,
            hash: None,
            aead: None,
            window: None,
            has_esn: false,
            udp: None,
            used: 0,
            direction: None,
            offload: None,
            lifetime: Lifetime::NONE,
            // As the kernel makes outer headers: DSCP and DF come from the inner packet.
            outer: Outer { dscp: None, df: Some("copy") },
            refused: None,
        }
    }

    fn refuse(&mut self, word: Word<'a>, reason: &'static str, advice: &'static str) {
        self.refused.get_or_insert(Refused { word, why: (reason, advice) });
    }

    /// Reads a word and its values. Returns the block that begins behind it.
    fn word(
        &mut self,
        cursor: &mut Cursor<'_, 'a>,
        word: Word<'a>,
        omissions: &mut Omissions,
    ) -> Parsed<Option<Block>> {
        if self.name_word(cursor, word)? || self.algorithm_word(cursor, word)? {
            return Ok(None);
        }
        match word.text {
            "replay-window" => self.window = Some(number32(cursor, word)?),
            "replay-seq" | "replay-oseq" | "replay-seq-hi" | "replay-oseq-hi" => {
                self.used = self.used.max(number32(cursor, word)?.into());
            }
            "flag" => self.flags(cursor, omissions)?,
            "extra-flag" => self.extra_flags(cursor, omissions)?,
            "encap" => self.encapsulation(cursor, word, omissions)?,
            "limit" => limits::take(&mut self.lifetime, cursor, word, omissions)?,
            "offload" => {
                let (offload, direction) = offload::of_state(cursor, word)?;
                (self.offload, self.direction) = (Some(offload), Some(direction));
            }
            "crypto" if cursor.take("offload") => {
                let (offload, direction) = offload::of_state(cursor, word)?;
                (self.offload, self.direction) = (Some(offload), Some(direction));
            }
            "dir" => self.direction = Some(offload::direction(cursor, word)?),
            "sel" => self.own_selector(cursor, word, omissions)?,
            "anti-replay" => match cursor.take("esn") {
                true => {
                    cursor.skip_all();
                    return Ok(Some(Block::Esn));
                }
                false => self.numbers(cursor),
            },
            "lifetime" => {
                cursor.skip_all();
                return Ok(Some(Block::Lifetime));
            }
            "stats:" => {
                cursor.skip_all();
                return Ok(Some(Block::Statistics));
            }
            // The time of a packet: there was one at least.
            "lastused" => {
                cursor.skip_all();
                self.used = self.used.max(1);
            }
            _ => self.odd_word(cursor, word, omissions)?,
        }
        Ok(None)
    }

    /// Reads words that say which SA it is.
    fn name_word(&mut self, cursor: &mut Cursor<'_, 'a>, word: Word<'a>) -> Parsed<bool> {
        match word.text {
            "src" => self.source = Some(address(cursor, word)?),
            "dst" => self.destination = Some(address(cursor, word)?),
            "spi" => self.spi = Some(number32(cursor, word)?),
            "reqid" => self.reqid = number32(cursor, word)?,
            "proto" => {
                let protocol = value(cursor, word)?;
                match protocol.text {
                    "esp" | "50" => {}
                    "ah" | "51" | "comp" | "108" | "route2" | "hao" => {
                        let reason = "Lockgate has no protocol but ESP";
                        self.refuse(protocol, reason, "agree on ESP with the peer");
                    }
                    _ => return unknown(cursor, protocol, "protocols", &["esp", "ah", "comp"]),
                }
            }
            "mode" => {
                let mode = value(cursor, word)?;
                match mode.text {
                    "tunnel" => self.mode = Mode::Tunnel,
                    "transport" => self.mode = Mode::Transport,
                    "beet" | "ro" | "in_trigger" | "iptfs" => {
                        let reason = "Lockgate has no mode but tunnel and transport";
                        self.refuse(mode, reason, "agree on tunnel mode with the peer");
                    }
                    _ => return unknown(cursor, mode, "modes", &["tunnel", "transport"]),
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads algorithms and their keys.
    fn algorithm_word(&mut self, cursor: &mut Cursor<'_, 'a>, word: Word<'a>) -> Parsed<bool> {
        match word.text {
            "enc" => self.cipher = Some((value(cursor, word)?, key(cursor, word)?)),
            "auth" => self.hash = Some((value(cursor, word)?, key(cursor, word)?, None)),
            "auth-trunc" => {
                let (name, key) = (value(cursor, word)?, key(cursor, word)?);
                self.hash = Some((name, key, Some(number32(cursor, word)?)));
            }
            "aead" => {
                let (name, key) = (value(cursor, word)?, key(cursor, word)?);
                self.aead = Some((name, key, number32(cursor, word)?));
            }
            "comp" => {
                let name = value(cursor, word)?;
                self.refuse(name, "Lockgate does not compress", "agree on no IPComp with the peer");
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads words that have no place here.
    fn odd_word(
        &mut self,
        cursor: &mut Cursor<'_, 'a>,
        word: Word<'a>,
        omissions: &mut Omissions,
    ) -> Parsed<()> {
        let at_word = (&cursor.place(word), word.text);
        match word.text {
            // The kernel's number of a request.
            "seq" => drop(number32(cursor, word)?),
            "mark" => {
                if mark(cursor, word)? {
                    let reason = "Lockgate has no marks: it would serve packets without it too";
                    self.refuse(word, reason, "tell the tunnels apart by their policies");
                }
            }
            "if_id" => {
                if number32(cursor, word)? != 0 {
                    let reason = "Lockgate has no xfrm interfaces";
                    self.refuse(word, reason, "say by policies which packets it protects");
                }
            }
            "output-mark" => {
                if mark(cursor, word)? {
                    omissions.left(at_word, "packets that were sealed get no mark", "none");
                }
            }
            "tfcpad" => {
                if number32(cursor, word)? != 0 {
                    omissions.left(at_word, "Lockgate does not pad traffic", "none");
                }
            }
            "pcpu-num" => {
                number32(cursor, word)?;
                let reason = "it is for one CPU (RFC 9611), and an SA here is for all workers";
                omissions.left(at_word, reason, "none");
            }
            "coa" => {
                value(cursor, word)?;
                self.refuse(word, "Lockgate has no Mobile IPv6", "none");
            }
            "ctx" | "security" => {
                cursor.skip_all();
                self.refuse(word, "Lockgate has no security contexts", "none");
            }
            _ => return unknown(cursor, word, "states", WORDS),
        }
        Ok(())
    }

    fn flags(&mut self, cursor: &mut Cursor<'_, 'a>, omissions: &mut Omissions) -> Parsed<()> {
        while let Some(flag) = cursor.peek() {
            // With statistics the flags stand once more, as a number.
            if !FLAGS.contains(&flag.text) && !flag.text.starts_with('(') {
                if WORDS.contains(&flag.text) {
                    break;
                }
                return unknown(cursor, flag, "flags", &FLAGS);
            }
            cursor.next();
            let mut left = |reason, advice| {
                omissions.left((&cursor.place(flag), flag.text), reason, advice);
            };
            match flag.text {
                "esn" => self.has_esn = true,
                "nopmtudisc" => self.outer.df = Some("clear"),
                "noecn" => left("ECN is always copied (RFC 6040)", "none"),
                "decap-dscp" => left("the inner DSCP is never changed", "none"),
                "wildrecv" => left("an SA has one address at each end", "none"),
                "icmp" => left("ICMP errors are judged by the packet they quote", "none"),
                "align4" => left("ESP is padded as RFC 4303 says", "check that the peer takes it"),
                // Any IP version may be inside, as here.
                _ => {}
            }
        }
        Ok(())
    }

    fn extra_flags(
        &mut self,
        cursor: &mut Cursor<'_, 'a>,
        omissions: &mut Omissions,
    ) -> Parsed<()> {
        while let Some(flag) = cursor.peek() {
            match flag.text {
                "dont-encap-dscp" => self.outer.dscp = Some(0),
                "oseq-may-wrap" => {
                    let reason = "numbers never begin again under one key";
                    omissions.left((&cursor.place(flag), flag.text), reason, "renew keys in time");
                }
                text if text.starts_with('(') => {}
                text if WORDS.contains(&text) => break,
                _ => return unknown(cursor, flag, "extra flags", &EXTRA_FLAGS),
            }
            cursor.next();
        }
        Ok(())
    }

    /// Reads `type espinudp sport N dport N addr A`, or `espinudp N N A`.
    fn encapsulation(
        &mut self,
        cursor: &mut Cursor<'_, 'a>,
        word: Word<'a>,
        omissions: &mut Omissions,
    ) -> Parsed<()> {
        cursor.take("type");
        let kind = value(cursor, word)?;
        match kind.text {
            "espinudp" => {}
            "espinudp-nonike" | "espintcp" => {
                self.refuse(kind, "Lockgate has only ESP in UDP (RFC 3948)", "use espinudp");
            }
            _ => return unknown(cursor, kind, "encapsulations", &["espinudp"]),
        }
        cursor.take("sport");
        let source = number(cursor, word, u16::MAX.into())? as u16;
        cursor.take("dport");
        let destination = number(cursor, word, u16::MAX.into())? as u16;
        cursor.take("addr");
        if let Some(original) = cursor.peek().filter(|next| next.text.parse::<IpAddr>().is_ok()) {
            cursor.next();
            let is_any = original.text.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified());
            if !is_any {
                let at_word = (&cursor.place(original), original.text);
                omissions.left(at_word, "the original address has no use here", "none");
            }
        }
        self.udp = Some([source, destination]);
        Ok(())
    }

    /// Reads `sel SELECTOR`: one that does not match every packet is noted.
    fn own_selector(
        &mut self,
        cursor: &mut Cursor<'_, 'a>,
        word: Word<'a>,
        omissions: &mut Omissions,
    ) -> Parsed<()> {
        let mut written = Written::default();
        while let Some(next) = cursor.peek().filter(|next| Written::WORDS.contains(&next.text)) {
            cursor.next();
            written.take(cursor, next)?;
        }
        let [source, destination] = written.ends();
        let hosts = [self.source, self.destination].map(|end| end.map(Into::into));
        let is_ends = [source, destination].iter().zip(hosts).all(|(range, host)| {
            host.is_some_and(|host| range.first() == host && range.last() == host)
        });
        if !written.is_any() && !is_ends {
            let reason = "an SA has no selector of its own here";
            let advice = "the policies must say which packets it protects";
            omissions.left((&cursor.place(word), "sel"), reason, advice);
        }
        Ok(())
    }

    /// Reads the numbers behind `anti-replay context:`.
    fn numbers(&mut self, cursor: &mut Cursor<'_, 'a>) {
        while let Some(name) = cursor.next() {
            if matches!(name.text, "seq" | "oseq" | "seq-hi" | "oseq-hi") {
                let number = cursor.next().and_then(|word| number_of(word.text)).unwrap_or(0);
                let high = if name.text.ends_with("-hi") { number << 32 } else { number };
                self.used = self.used.max(high);
            }
        }
    }

    /// Reads a line of a block. Returns false if it is none.
    fn block_line(
        &mut self,
        block: Block,
        (file, words): (&str, &[Word<'a>]),
        omissions: &mut Omissions,
    ) -> bool {
        let Some(first) = words.first() else { return false };
        match block {
            Block::None => false,
            Block::Lifetime => {
                if first.text == "lifetime" {
                    return true;
                }
                let words = (file, words);
                limits::line_of_dump(&mut self.lifetime, &mut self.used, words, omissions)
            }
            Block::Statistics => first.text == "replay-window",
            Block::Esn => {
                let mut cursor = Cursor::new(file, words);
                if first.text == "replay_window" {
                    cursor.next();
                    self.window = cursor.next().and_then(|word| number_of(word.text)).map(cut);
                    return true;
                }
                let is_bitmap = first.text.len() == 8
                    && first.text.bytes().all(|byte| byte.is_ascii_hexdigit());
                if first.text == "seq-hi" {
                    self.numbers(&mut cursor);
                }
                first.text == "seq-hi" || is_bitmap
            }
        }
    }

    fn finish(
        self,
        cursor: &Cursor<'_, '_>,
        first: Word<'a>,
        omissions: &mut Omissions,
    ) -> Parsed<Option<Sa>> {
        let (Some(source), Some(destination)) = (self.source, self.destination) else {
            return at(cursor, first, Mistake::Missing { what: "`src` or `dst` of the state" });
        };
        if source.is_ipv4() != destination.is_ipv4() {
            return at(cursor, first, Mistake::BadPair);
        }
        let Some(spi) = self.spi else {
            return at(cursor, first, Mistake::Missing { what: "`spi` of the state" });
        };
        if let Some(Refused { word, why: (reason, advice) }) = self.refused {
            omissions.left((&cursor.place(word), word.text), reason, advice);
            return Ok(None);
        }
        let Some(spi) = Spi::new(spi) else {
            let reason = "SPIs below 256 name no SA: the kernel waits for keys";
            omissions.left((&self.at, "spi"), reason, "none");
            return Ok(None);
        };
        let (suite, material) = match self.keys(cursor)? {
            Ok(keys) => keys,
            Err((word, none)) => {
                let (reason, advice) = none.why();
                let named =
                    word.map_or((self.at.clone(), "proto"), |word| (cursor.place(word), word.text));
                omissions.left((&named.0, named.1), reason, advice);
                return Ok(None);
            }
        };
        if self.window == Some(0) && !self.has_esn && self.direction != Some(Direction::Outbound) {
            let why = ("replayed packets are always dropped here", "none");
            omissions.add(Fate::Differs, (&self.at, "replay-window"), why);
        }
        Ok(Some(Sa {
            at: self.at,
            source,
            destination,
            mode: self.mode,
            class: self.reqid,
            spi,
            suite,
            material,
            used: self.used,
            has_esn: self.has_esn,
            window: self.window.filter(|window| *window != 0),
            udp: self.udp,
            direction: self.direction,
            offload: self.offload,
            lifetime: self.lifetime,
            outer: self.outer,
        }))
    }

    /// The suite and the key.
    fn keys(&self, cursor: &Cursor<'_, '_>) -> Parsed<Keys<'a>> {
        if let Some((name, key, icv)) = self.aead {
            let cipher = match name.text {
                "rfc4106(gcm(aes))" => Cipher::Gcm,
                "rfc7539esp(chacha20,poly1305)" => Cipher::ChaCha20Poly1305,
                _ => return Ok(Err((Some(name), NoSuite::Algorithm))),
            };
            if icv != 128 {
                return Ok(Err((Some(name), NoSuite::Icv)));
            }
            let bytes = key_bytes(cursor, key)?;
            let parts = bytes.as_ref().map(|bytes| [&bytes[..], &[]]);
            let suite = algorithms::aead(&Keyed { cipher, key: parts.map(|[key, _]| key) });
            return Ok(together(suite, parts).map_err(|none| (Some(name), none)));
        }
        let Some((hash_name, hash_key, icv)) = self.hash else {
            let name = self.cipher.map(|(name, _)| name);
            return Ok(Err((name, NoSuite::NoIntegrity)));
        };
        let hash = match hash_name.text {
            "hmac(sha256)" | "sha256" => Hash::Sha256,
            "hmac(sha384)" | "sha384" => Hash::Sha384,
            "hmac(sha512)" | "sha512" => Hash::Sha512,
            _ => return Ok(Err((Some(hash_name), NoSuite::Algorithm))),
        };
        // The kernel cuts SHA-256 to 96 bits where nobody says how far.
        let usual = if hash == Hash::Sha256 { 96 } else { hash.icv_bits() };
        if icv.unwrap_or(usual) != hash.icv_bits() {
            return Ok(Err((Some(hash_name), NoSuite::Icv)));
        }
        let Some((name, key)) = self.cipher else {
            return Ok(Err((Some(hash_name), NoSuite::Algorithm)));
        };
        let cipher = match name.text {
            "cbc(aes)" | "aes" => Cipher::Cbc,
            "ecb(cipher_null)" | "cipher_null" => Cipher::Null,
            _ => return Ok(Err((Some(name), NoSuite::Algorithm))),
        };
        let bytes = match (cipher, key_bytes(cursor, key)?) {
            (Cipher::Null, _) => Some(Zeroizing::new(Vec::new())),
            (_, bytes) => bytes,
        };
        let hash_bytes = key_bytes(cursor, hash_key)?;
        let parts = match (&bytes, &hash_bytes) {
            (Some(key), Some(hash)) => Some([&key[..], &hash[..]]),
            _ => None,
        };
        let key = parts.map(|[key, _]| key);
        let suite = algorithms::with_hmac(&Keyed { cipher, key }, hash);
        Ok(together(suite, parts).map_err(|none| (Some(name), none)))
    }
}

fn together(
    suite: Result<Option<Suite>, NoSuite>,
    parts: Option<[&[u8]; 2]>,
) -> Result<(Option<Suite>, Option<KeyMaterial>), NoSuite> {
    let suite = suite?;
    let material = match (suite, parts) {
        (Some(suite), Some(parts)) => Some(algorithms::material(suite, parts)?),
        _ => None,
    };
    Ok((suite, material))
}

/// Takes a key: `0x…`, its characters, or the words of a dump that hides it.
fn key<'a>(cursor: &mut Cursor<'_, 'a>, behind: Word<'a>) -> Parsed<Key<'a>> {
    let word = value(cursor, behind)?;
    if word.text == "<<Keys" {
        cursor.take("hidden>>");
        return Ok(Key::Hidden);
    }
    // With statistics the length stands behind the key: `(160 bits)`.
    if cursor.peek().is_some_and(|next| next.text.starts_with('(')) {
        cursor.next();
        cursor.take("bits)");
    }
    Ok(Key::Word(word))
}

fn key_bytes(cursor: &Cursor<'_, '_>, key: Key<'_>) -> Parsed<Option<Zeroizing<Vec<u8>>>> {
    let Key::Word(word) = key else { return Ok(None) };
    match word.text.strip_prefix("0x") {
        None => Ok(Some(Zeroizing::new(word.text.as_bytes().to_vec()))),
        Some(digits) => match bytes_of(digits) {
            Some(bytes) => Ok(Some(bytes)),
            None => at(cursor, word, Mistake::BadKey),
        },
    }
}

/// Takes a mark and its mask: `M`, `M/MASK` or `M mask MASK`. Returns whether it asks for anything.
pub(super) fn mark(cursor: &mut Cursor<'_, '_>, behind: Word<'_>) -> Parsed<bool> {
    let word = value(cursor, behind)?;
    let mut parts = word.text.splitn(2, '/').map(number_of);
    let (mark, mask) = (parts.next().flatten(), parts.next());
    let mask = match cursor.peek().filter(|next| next.text == "mask") {
        Some(name) => {
            cursor.next();
            Some(Some(number(cursor, name, u32::MAX.into())?))
        }
        None => mask,
    };
    match (mark, mask.unwrap_or(Some(u32::MAX.into()))) {
        (Some(mark), Some(mask)) => Ok(mark != 0 || mask != 0 && mask != u64::from(u32::MAX)),
        _ => {
            let text = crate::problem::shown(word.text);
            at(cursor, word, Mistake::NotANumber { text, lowest: 0, highest: u32::MAX.into() })
        }
    }
}

fn cut(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
