//! Configurations of other programs, as configurations of ours.
//!
//! | step | module | |
//! |---|---|---|
//! | words | `words` | a text's words, each with its place |
//! | read | `xfrm`, `vpp` | SAs and policies, each in the order in which it is asked |
//! | | `swanctl` | peers and policies, which go straight to `write` |
//! | peers | `peers` | which SAs and policies belong together |
//! | order | `order` | one list of policies out of two, both orders kept |
//! | write | `write` | the configuration, and key files beside it |
//!
//! Nothing is dropped in silence: what has no place here is an [`Omission`] with a reason. Keys go
//! into [`KeyFile`]s only, and are wiped after use. Nothing here opens a file or asks the kernel.
#![forbid(unsafe_code)]

mod algorithms;
mod fill_in;
mod halves;
mod model;
mod order;
mod peers;
mod problem;
mod source;
mod swanctl;
mod values;
mod vpp;
mod words;
mod write;
mod xfrm;

use zeroize::Zeroizing;

pub use fill_in::{FillIn, MARK as FILL_IN};
use model::Foreigners;
use problem::Omissions;
pub use problem::{Fate, ImportErrors, Mistake, Omission, Problem};
pub use source::{Foreign, MAX_BYTES};

/// Answers that the foreign text does not have.
#[derive(Clone, Default, Debug)]
pub struct Options<'o> {
    /// Name of the gateway.
    pub name: Option<&'o str>,
    /// Netdev of the protected port.
    pub lan: Option<&'o str>,
    /// Netdev of the unprotected port.
    pub wan: Option<&'o str>,
    /// The place of keys; `None`: keys are left out.
    pub keys: Option<KeyPlan>,
}

/// The place of keys.
#[derive(Clone, Debug)]
pub struct KeyPlan {
    /// Name of the key file, without its directory.
    pub file: String,
    /// The value of `keys_dir`, if the usual one will not do.
    pub directory: Option<String>,
}

impl KeyPlan {
    /// The file of one of several peers: `x-PEER.keys` for `x.keys`.
    fn of_peer(&self, peer: &str) -> String {
        match self.file.rsplit_once('.') {
            Some((stem, extension)) if !stem.is_empty() => format!("{stem}-{peer}.{extension}"),
            _ => format!("{}-{peer}", self.file),
        }
    }
}

/// A key file to be written. No `Debug`: it holds keys.
pub struct KeyFile {
    /// Its name, as the configuration has it.
    pub name: String,
    /// The peer that it is of.
    pub peer: String,
    /// The number of its SAs.
    pub sas: usize,
    /// Its content.
    pub text: Zeroizing<String>,
}

/// A configuration that was made of a foreign text. No `Debug`: it holds keys.
pub struct Imported {
    /// The configuration, as TOML. Holds no keys.
    pub text: String,
    /// The key files that it names, as far as there were keys to take.
    pub keys: Vec<KeyFile>,
    /// Everything that did not come into it as it was, in the order of the text.
    pub omissions: Vec<Omission>,
    /// The places of the configuration that the operator must complete.
    pub to_fill_in: Vec<FillIn>,
    /// The number of peers.
    pub peers: usize,
    /// The number of policies.
    pub policies: usize,
    /// The number of SAs of the peers.
    pub sas: usize,
    /// The number of SAs whose keys are in key files.
    pub keyed_sas: usize,
}

/// Imports states and policies of Linux's xfrm: dumps of `ip xfrm`, or commands.
///
/// # Errors
/// All mistakes of the texts, or that nothing is in them.
pub fn xfrm(texts: &[Foreign], options: &Options<'_>) -> Result<Imported, ImportErrors> {
    let (found, omissions) = xfrm::read(texts)?;
    assembled(&found, omissions, ("lockgate import xfrm", texts, options))
}

/// Imports start-up words and commands of VPP.
///
/// # Errors
/// All mistakes of the text, or that nothing is in it.
pub fn vpp(text: &Foreign, options: &Options<'_>) -> Result<Imported, ImportErrors> {
    let (found, omissions) = vpp::read(text)?;
    let texts = std::slice::from_ref(text);
    assembled(&found, omissions, ("lockgate import vpp", texts, options))
}

/// Imports swanctl.conf of strongSwan, whose charon puts the SAs. Further texts go on with the
/// first: the files that it includes.
///
/// # Errors
/// All mistakes of the texts, or that nothing is in them.
///
/// # Panics
/// If there is no text.
pub fn swanctl(texts: &[Foreign], options: &Options<'_>) -> Result<Imported, ImportErrors> {
    swanctl::import(texts, options)
}

fn assembled(
    found: &Foreigners,
    mut omissions: Omissions,
    (command, texts, options): (&str, &[Foreign], &Options<'_>),
) -> Result<Imported, ImportErrors> {
    let peers = peers::of(found, &mut omissions);
    halves::judge(found, &peers, &mut omissions);
    let names: Vec<&str> = texts.iter().map(|text| text.name.as_str()).collect();
    let origin = format!("`{command}` from {}", names.join(" and "));
    let imported = write::all(found, peers, (options, &origin), &mut omissions);
    omissions.bounded()?;
    let to_fill_in = fill_in::places(&imported.text);
    Ok(Imported { omissions: omissions.0, to_fill_in, ..imported })
}
