//! `ipsec sa add N spi S esp crypto-alg A crypto-key K …`.

use std::net::IpAddr;

use config::Location;
use ipsec::{KeyMaterial, Lifetime, Mode, Spi, Suite};
use policy::Direction;
use zeroize::Zeroizing;

use crate::algorithms::{self, Cipher, Hash, Keyed, NoSuite};
use crate::model::{Outer, Sa};
use crate::problem::{Mistake, Omissions, Parsed, at, unknown};
use crate::values::{address, bytes_of, number, number32, value};
use crate::words::{Cursor, Word};

/// Words of the command.
const WORDS: &[&str] = &[
    "spi",
    "salt",
    "esp",
    "ah",
    "crypto-key",
    "crypto-alg",
    "integ-key",
    "integ-alg",
    "tunnel",
    "tunnel-src",
    "tunnel-dst",
    "src",
    "dst",
    "udp-src-port",
    "udp-dst-port",
    "anti-replay-size",
    "inbound",
    "use-anti-replay",
    "use-esn",
    "udp-encap",
    "async",
    "dscp",
    "hop-limit",
    "table-id",
    "encap-copy-df",
    "encap-set-df",
    "encap-copy-dscp",
    "encap-copy-ecn",
    "decap-copy-ecn",
    "encap-copy-hop-limit",
    "encap-copy-flow-label",
];

/// Encryption algorithms: name, cipher, bytes of the key.
const CIPHERS: &[(&str, Cipher, usize)] = &[
    ("none", Cipher::Null, 0),
    ("aes-cbc-128", Cipher::Cbc, 16),
    ("aes-cbc-256", Cipher::Cbc, 32),
    ("aes-gcm-128", Cipher::Gcm, 16),
    ("aes-gcm-192", Cipher::Gcm, 24),
    ("aes-gcm-256", Cipher::Gcm, 32),
    ("chacha20-poly1305", Cipher::ChaCha20Poly1305, 32),
];

/// Other encryption algorithms of VPP.
const OTHER_CIPHERS: &[&str] = &[
    "aes-cbc-192",
    "aes-ctr-128",
    "aes-ctr-192",
    "aes-ctr-256",
    "des-cbc",
    "3des-cbc",
    "aes-null-gmac-128",
    "aes-null-gmac-192",
    "aes-null-gmac-256",
];

/// Integrity algorithms that suites here have.
const HASHES: &[(&str, Hash)] =
    &[("sha-256-128", Hash::Sha256), ("sha-384-192", Hash::Sha384), ("sha-512-256", Hash::Sha512)];

/// Other integrity algorithms of VPP.
const OTHER_HASHES: &[&str] = &["md5-96", "sha1-96", "sha-256-96"];

/// Packets of VPP's replay window if it says no number.
const WINDOW: u32 = 64;

/// An SA of VPP.
pub(super) struct VppSa {
    pub(super) at: Location,
    pub(super) mode: Mode,
    /// Outer source and destination; of an SA without a tunnel those of its policies.
    pub(super) ends: Option<[IpAddr; 2]>,
    spi: Spi,
    suite: Suite,
    material: KeyMaterial,
    has_esn: bool,
    window: Option<u32>,
    udp: Option<[u16; 2]>,
    direction: Option<Direction>,
    outer: Outer,
}

impl VppSa {
    /// The SA between these ends.
    pub(super) fn with(self, [source, destination]: [IpAddr; 2]) -> Sa {
        Sa {
            at: self.at,
            source,
            destination,
            mode: self.mode,
            class: 0,
            spi: self.spi,
            suite: Some(self.suite),
            material: Some(self.material),
            used: 0,
            has_esn: self.has_esn,
            window: self.window,
            udp: self.udp,
            direction: self.direction,
            offload: None,
            lifetime: Lifetime::NONE,
            outer: self.outer,
        }
    }
}

/// The suite and the key, or the word that no suite fits.
type Keys<'a> = Result<(Suite, KeyMaterial), (Option<Word<'a>>, NoSuite)>;

/// The words of an SA.
struct Words<'a> {
    spi: Option<u32>,
    salt: u32,
    cipher: Option<Word<'a>>,
    cipher_key: Option<Word<'a>>,
    hash: Option<Word<'a>>,
    hash_key: Option<Word<'a>>,
    source: Option<IpAddr>,
    destination: Option<IpAddr>,
    is_tunnel: bool,
    ports: [u16; 2],
    is_udp: bool,
    window: Option<u32>,
    has_esn: bool,
    direction: Option<Direction>,
    outer: Outer,
    /// The word AH.
    refused: Option<Word<'a>>,
}

/// Reads the words behind the number. `None`: it has no place here, which was noted.
pub(super) fn read<'a>(
    cursor: &mut Cursor<'_, 'a>,
    behind: Word<'_>,
    first: Location,
    omissions: &mut Omissions,
) -> Parsed<Option<VppSa>> {
    let mut words = Words {
        spi: None,
        salt: 0,
        cipher: None,
        cipher_key: None,
        hash: None,
        hash_key: None,
        source: None,
        destination: None,
        is_tunnel: false,
        ports: [4500; 2],
        is_udp: false,
        window: None,
        has_esn: false,
        direction: None,
        // As VPP makes outer headers: all zero.
        outer: Outer { dscp: Some(0), df: Some("clear") },
        refused: None,
    };
    while let Some(word) = cursor.next() {
        if !words.key_word(cursor, word)? {
            words.other_word(cursor, word, omissions)?;
        }
    }
    words.finish(cursor, behind, first, omissions)
}

impl<'a> Words<'a> {
    fn key_word(&mut self, cursor: &mut Cursor<'_, 'a>, word: Word<'a>) -> Parsed<bool> {
        match word.text {
            "spi" => self.spi = Some(number32(cursor, word)?),
            "salt" => self.salt = number32(cursor, word)?,
            "crypto-alg" => self.cipher = Some(value(cursor, word)?),
            "crypto-key" => self.cipher_key = Some(value(cursor, word)?),
            "integ-alg" => self.hash = Some(value(cursor, word)?),
            "integ-key" => self.hash_key = Some(value(cursor, word)?),
            "esp" => {}
            "ah" => self.refused = Some(word),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn other_word(
        &mut self,
        cursor: &mut Cursor<'_, 'a>,
        word: Word<'a>,
        omissions: &mut Omissions,
    ) -> Parsed<()> {
        let port = |cursor: &mut _| number(cursor, word, u16::MAX.into()).map(|n| n as u16);
        let place = cursor.place(word);
        let mut left = |reason| omissions.left((&place, word.text), reason, "none");
        match word.text {
            "tunnel" => self.is_tunnel = true,
            "src" | "tunnel-src" => self.source = Some(address(cursor, word)?),
            "dst" | "tunnel-dst" => self.destination = Some(address(cursor, word)?),
            "udp-src-port" => self.ports[0] = port(cursor)?,
            "udp-dst-port" => self.ports[1] = port(cursor)?,
            "udp-encap" => self.is_udp = true,
            "anti-replay-size" => self.window = Some(number32(cursor, word)?),
            "use-anti-replay" => self.window = self.window.or(Some(WINDOW)),
            "use-esn" => self.has_esn = true,
            "inbound" => self.direction = Some(Direction::Inbound),
            "encap-copy-df" => self.outer.df = Some("copy"),
            "encap-set-df" => self.outer.df = None,
            "encap-copy-dscp" => self.outer.dscp = None,
            // ECN is copied always (RFC 6040).
            "encap-copy-ecn" | "decap-copy-ecn" => {}
            "async" => left("the cipher works on batches in the worker"),
            "encap-copy-hop-limit" | "encap-copy-flow-label" => {
                left("the outer header has a hop limit and a flow label of its own");
            }
            "hop-limit" => {
                number32(cursor, word)?;
                left("the outer header has a hop limit of its own");
            }
            "table-id" => {
                number32(cursor, word)?;
                left("Lockgate follows Linux's main routing table");
            }
            "dscp" => {
                let name = value(cursor, word)?;
                match name.text.parse().ok().filter(|dscp| *dscp < 64) {
                    Some(dscp) => self.outer.dscp = Some(dscp),
                    None => left("write the number of the DSCP"),
                }
            }
            _ => return unknown(cursor, word, "`ipsec sa add`", WORDS),
        }
        Ok(())
    }

    fn finish(
        self,
        cursor: &Cursor<'_, '_>,
        behind: Word<'_>,
        first: Location,
        omissions: &mut Omissions,
    ) -> Parsed<Option<VppSa>> {
        let Some(spi) = self.spi else {
            return at(cursor, behind, Mistake::Missing { what: "`spi` of the SA" });
        };
        if let Some(word) = self.refused {
            let reason = "Lockgate has no protocol but ESP";
            omissions.left((&cursor.place(word), word.text), reason, "agree on ESP with the peer");
            return Ok(None);
        }
        let Some(spi) = Spi::new(spi) else {
            omissions.left((&first, "spi"), "SPIs below 256 are reserved", "choose another SPI");
            return Ok(None);
        };
        let ends = match (self.source, self.destination) {
            (Some(source), Some(destination)) => {
                if source.is_ipv4() != destination.is_ipv4() {
                    return at(cursor, behind, Mistake::BadPair);
                }
                Some([source, destination])
            }
            (None, None) if !self.is_tunnel => None,
            _ => {
                let what = "`src` or `dst` of the tunnel";
                return at(cursor, behind, Mistake::Missing { what });
            }
        };
        let (suite, material) = match self.keys(cursor)? {
            Ok(keys) => keys,
            Err((word, none)) => {
                let (reason, advice) = none.why();
                match word {
                    Some(word) => {
                        omissions.left((&cursor.place(word), word.text), reason, advice);
                    }
                    None => omissions.left((&first, "crypto-alg"), reason, advice),
                }
                return Ok(None);
            }
        };
        Ok(Some(VppSa {
            at: first,
            mode: if ends.is_some() { Mode::Tunnel } else { Mode::Transport },
            ends,
            spi,
            suite,
            material,
            has_esn: self.has_esn,
            window: self.window,
            udp: self.is_udp.then_some(self.ports),
            direction: self.direction,
            outer: self.outer,
        }))
    }

    /// The suite and the key, or the word that no suite fits.
    fn keys(&self, cursor: &Cursor<'_, '_>) -> Parsed<Keys<'a>> {
        let name = self.cipher.map_or("none", |word| word.text);
        let Some((_, cipher, length)) = CIPHERS.iter().find(|(known, ..)| *known == name) else {
            let word = self.cipher.unwrap_or(Word { text: name, line: 0, column: 0 });
            if OTHER_CIPHERS.contains(&name) {
                return Ok(Err((Some(word), NoSuite::Algorithm)));
            }
            let names: Vec<&str> = CIPHERS.iter().map(|(known, ..)| *known).collect();
            return unknown(cursor, word, "encryption algorithms", &names);
        };
        let key = key_bytes(cursor, self.cipher_key)?;
        if key.len() != *length {
            return Ok(Err((self.cipher, NoSuite::KeyLength)));
        }
        let hash = self.hash.filter(|word| word.text != "none");
        let hash_key = key_bytes(cursor, self.hash_key)?;
        let (suite, parts) = match (cipher, hash) {
            (Cipher::Gcm | Cipher::ChaCha20Poly1305, _) => {
                // VPP has the salt as a number, the first byte of it on the left.
                let salt = self.salt.to_be_bytes();
                let mut both = Zeroizing::new(Vec::with_capacity(key.len() + salt.len()));
                both.extend_from_slice(&key);
                both.extend_from_slice(&salt);
                let suite = algorithms::aead(&Keyed { cipher: *cipher, key: Some(&both) });
                (suite, [both, Zeroizing::new(Vec::new())])
            }
            (_, None) => return Ok(Err((self.cipher, NoSuite::NoIntegrity))),
            (_, Some(word)) => {
                let Some((_, hash)) = HASHES.iter().find(|(known, _)| *known == word.text) else {
                    if OTHER_HASHES.contains(&word.text) {
                        return Ok(Err((Some(word), NoSuite::Algorithm)));
                    }
                    let names: Vec<&str> = HASHES.iter().map(|(known, _)| *known).collect();
                    return unknown(cursor, word, "integrity algorithms", &names);
                };
                let suite =
                    algorithms::with_hmac(&Keyed { cipher: *cipher, key: Some(&key) }, *hash);
                (suite, [key, hash_key])
            }
        };
        let made = suite.and_then(|suite| {
            let suite = suite.ok_or(NoSuite::Algorithm)?;
            Ok((suite, algorithms::material(suite, [&parts[0], &parts[1]])?))
        });
        Ok(made.map_err(|none| (self.cipher.or(hash), none)))
    }
}

/// The bytes of a key; none if there is no key.
fn key_bytes(cursor: &Cursor<'_, '_>, word: Option<Word<'_>>) -> Parsed<Zeroizing<Vec<u8>>> {
    let Some(word) = word else { return Ok(Zeroizing::new(Vec::new())) };
    let digits = word.text.strip_prefix("0x").unwrap_or(word.text);
    match bytes_of(digits) {
        Some(bytes) => Ok(bytes),
        None => at(cursor, word, Mistake::BadKey),
    }
}
