//! Keys for `lockgate replay`, which never seals with a configured key (DESIGN I9).
//!
//! Every outbound SA gets fresh random material. It is written beside the output, one line an SA,
//! so that the replay of the other gateway can open what this one sealed, and tshark can too:
//! ```text
//! # lockgate replay keys: out SPI SUITE KEY-AND-SALT LOCAL REMOTE PEER
//! out 0x00001001 aes-128-gcm 000102… 192.0.2.1 198.51.100.7 berlin
//! ```

use std::fs::OpenOptions;
use std::io::{Read, Seek, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use ipsec::{KeyMaterial, Spi, Suite, Tunnel};
use policy::Direction;
use zeroize::Zeroizing;

use crate::diagnostic::{DiagnosticKind, REPLAY_DIRECTION, REPLAY_WORDS};
use crate::errors::{ConfigErrors, Diagnostic, Severity};
use crate::keys::{
    KeyFileError, KeyLine, Keys, ReplayKeys, open_secret, parse_hex, parse_spi, push_hex,
    random_material, read_secret, words,
};
use crate::source::Location;
use crate::validated::Validated;

/// First line of a replay key file: only a file that begins so is overwritten.
const MARK: &str = "# lockgate replay keys: out SPI SUITE KEY-AND-SALT LOCAL REMOTE PEER\n";

/// The key that a replay sealed with. No `Debug`: it holds key bytes.
pub struct ReplayKey {
    /// Name of the peer, at the gateway that sealed.
    pub peer: String,
    /// Outer addresses, seen from the gateway that sealed.
    pub tunnel: Tunnel,
    /// SPI of the SA.
    pub spi: Spi,
    /// Key and salt.
    pub material: KeyMaterial,
}

impl Keys {
    /// Makes the keys fit for a replay: every outbound SA keeps its SPI and gets fresh random
    /// material; an inbound SA that one of `opened` was sealed for (same SPI and suite, the same
    /// tunnel from the other end) gets that one's material. All others stay, to open captures.
    ///
    /// Returns the keys, and what they seal with.
    ///
    /// # Errors
    /// [`KeyFileError::NoRandom`].
    ///
    /// # Panics
    /// If the keys are of another configuration.
    pub fn for_replay(
        self,
        config: &Validated,
        opened: &[ReplayKey],
    ) -> Result<(ReplayKeys, Vec<ReplayKey>), KeyFileError> {
        assert_eq!(self.peers.len(), config.peers.len(), "keys of another configuration");
        let (mut keys, mut sealed) = (Keys::default(), Vec::new());
        for (peer, lines) in config.peers.iter().zip(self.peers) {
            let Tunnel { local, remote } = peer.tunnel();
            let other_end = Tunnel { local: remote, remote: local };
            let mut replaced = Vec::with_capacity(lines.len());
            for KeyLine { direction, spi, material } in lines {
                let material = match direction {
                    Direction::Outbound => {
                        let fresh = random_material(peer.suite)?;
                        let (peer, tunnel) = (peer.name.clone(), peer.tunnel());
                        sealed.push(ReplayKey { peer, tunnel, spi, material: copy(&fresh)? });
                        fresh
                    }
                    Direction::Inbound => {
                        let meant = |key: &&ReplayKey| {
                            key.spi == spi
                                && key.tunnel == other_end
                                && key.material.suite() == peer.suite
                        };
                        match opened.iter().find(meant) {
                            Some(key) => copy(&key.material)?,
                            None => material,
                        }
                    }
                };
                replaced.push(KeyLine { direction, spi, material });
            }
            keys.peers.push(replaced);
        }
        Ok((ReplayKeys(keys), sealed))
    }
}

/// A copy of key material, made where it is meant.
fn copy(material: &KeyMaterial) -> Result<KeyMaterial, KeyFileError> {
    KeyMaterial::new(material.suite(), material.expose()).map_err(|_| KeyFileError::NoRandom)
}

/// Writes a replay key file, readable by its owner only. Overwrites only a replay key file of the
/// same user.
///
/// # Errors
/// [`KeyFileError`].
pub fn write_replay_keys(path: &Path, keys: &[ReplayKey]) -> Result<(), KeyFileError> {
    let name = || path.display().to_string();
    // Twice the longest material, two IPv6 addresses and a name of 64 letters fit.
    let mut text = Zeroizing::new(String::with_capacity(MARK.len() + keys.len() * 512));
    text.push_str(MARK);
    for ReplayKey { peer, tunnel, spi, material } in keys {
        text.push_str(&format!("out {spi} {} ", material.suite()));
        push_hex(&mut text, material.expose());
        text.push_str(&format!(" {} {} {peer}\n", tunnel.local, tunnel.remote));
    }
    match crate::keys::write_key_file(path, &text) {
        Err(KeyFileError::Exists { .. }) => {}
        done => return done,
    }
    let exists = || KeyFileError::Exists { file: name() };
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    let (mut file, _) = open_secret(path, &mut options).map_err(|_| exists())?;
    let mut start = vec![0; MARK.len()];
    if file.read_exact(&mut start).is_err() || start != MARK.as_bytes() {
        return Err(exists());
    }
    let written = file
        .rewind()
        .and_then(|()| file.set_len(0))
        .and_then(|()| file.write_all(text.as_bytes()))
        .and_then(|()| file.sync_all());
    written.map_err(|error: std::io::Error| KeyFileError::Unwritable {
        file: name(),
        kind: error.kind(),
    })
}

/// Reads a replay key file.
///
/// # Errors
/// All mistakes of the file.
pub fn read_replay_keys(path: &Path) -> Result<Vec<ReplayKey>, ConfigErrors> {
    let file = path.display().to_string();
    let content =
        read_secret(path).map_err(|mistake| ConfigErrors::of(Location::of_file(&file), mistake))?;
    let (mut keys, mut problems) = (Vec::new(), Vec::new());
    for (number, line) in content.split(|byte| *byte == b'\n').enumerate() {
        let words = words(line);
        let parsed = match words.as_slice() {
            [] => continue,
            [direction, spi, suite, hex, local, remote, peer] => {
                replay_key([*direction, *spi, *suite, *hex, *local, *remote, *peer])
            }
            [(column, _), ..] => Err((
                *column,
                DiagnosticKind::KeyWords { expected: REPLAY_WORDS, got: words.len() },
            )),
        };
        match parsed {
            Ok(key) => keys.push(key),
            Err((column, mistake)) => {
                let place = Location { file: file.clone(), line: number as u32 + 1, column };
                problems.push(Diagnostic::new(Severity::Error, place, mistake));
            }
        }
    }
    if problems.is_empty() { Ok(keys) } else { Err(ConfigErrors { problems, untold: 0 }) }
}

fn replay_key(words: [(u32, &[u8]); REPLAY_WORDS]) -> Result<ReplayKey, (u32, DiagnosticKind)> {
    let [direction, spi, suite, hex, local, remote, peer] = words;
    if direction.1 != REPLAY_DIRECTION.as_bytes() {
        return Err((direction.0, DiagnosticKind::KeyDirection { expected: REPLAY_DIRECTION }));
    }
    let address = |(column, word): (u32, &[u8])| -> Result<IpAddr, (u32, DiagnosticKind)> {
        let text = std::str::from_utf8(word).ok().and_then(|text| text.parse().ok());
        text.ok_or((column, DiagnosticKind::KeyAddress))
    };
    let suite = std::str::from_utf8(suite.1)
        .ok()
        .and_then(Suite::from_name)
        .ok_or((suite.0, DiagnosticKind::KeySuite))?;
    Ok(ReplayKey {
        peer: String::from_utf8_lossy(peer.1).into_owned(),
        tunnel: Tunnel { local: address(local)?, remote: address(remote)? },
        spi: parse_spi(spi)?,
        material: parse_hex(hex, suite)?,
    })
}
