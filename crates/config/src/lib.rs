//! Configuration, from what is written to what is meant:
//!
//! | step | type | knows |
//! |---|---|---|
//! | read | raw | what was written, and where |
//! | [`parse`] | [`Validated`] | what is meant: typed, complete, every reference resolved |
//!
//! All mistakes are told at once ([`ConfigErrors`]), each with its line and what to do; nothing
//! comes of a file unless there are none. Keys stay in files of their own ([`Keys`]) and are read
//! in a step of their own. [`parse`] touches no file; [`parse_with`] takes the texts of set files
//! from a source that the caller names. Nothing here asks the kernel, and nothing runs beside the
//! caller.
#![forbid(unsafe_code)]

pub mod allow_host;
mod capture;
mod cards;
mod chunked;
mod connection_filter;
mod connections;
mod diagnostic;
mod difference;
mod errors;
mod example;
mod fragment;
mod group_edits;
mod group_policies;
pub mod groups;
mod host_port;
mod ike;
mod included;
mod interface_address;
mod key_names;
mod keys;
mod keys_dir;
mod lifetime;
mod meeting;
mod member_mistake;
mod overlays;
mod peer_moves;
mod raw;
mod read;
mod replay_keys;
mod sa_lines;
pub mod schema;
mod set_files;
mod source;
mod standalone;
mod syntax;
mod text;
mod text_bounds;
mod text_file;
mod validate;
pub mod validated;
mod values;
mod written;

use std::io::Read;
use std::path::{Path, PathBuf};

pub use capture::{FilterError, FilterProblem, MAX_FILTER_BYTES, parse_filter};
pub use cards::{AuditSettings, CardKind, CardSettings, EspBy, GroupOffload, SaOffload};
pub use connection_filter::{ConnectionFilter, ConnectionFilterError, connection_state};
pub use connections::{ConnectionSettings, DEFAULT_CONNECTIONS, MAX_CONNECTIONS, MAX_TIMEOUT_S};
pub use diagnostic::{DiagnosticKind, Foreign, Refusal, nearest};
pub use difference::{Change, Difference, differences};
pub use errors::{ConfigErrors, Diagnostic, MAX_PROBLEMS, Severity, render};
pub use example::example_text;
pub use fragment::{ParsedPolicies, edited, parse_policies, policy_text};
pub use group_edits::{GroupEdit, GroupEditError, with_group_edit};
pub use group_policies::{MAX_GROUPS_A_SIDE, MAX_RULES_A_GROUP, last_rule_name, rule_name};
pub use host_port::{HOST_NETDEV, HOST_PORT};
pub use ike::{BeyondBounds, IkeBounds, Shunt, ShuntAction};
pub use included::{IncludedFiles, IncludedTexts, MAX_INCLUDED_BYTES};
pub use interface_address::InterfaceAddress;
pub use key_names::{KeyChange, KeyName, KeyNames, key_changes};
pub use keys::{
    KeyFileError, KeyLine, Keys, MAX_KEY_FILE_BYTES, ReplayKeys, effective_user, generate_pair,
    write_key_file,
};
pub use keys_dir::same_directory;
pub use lifetime::MAX_SECONDS as MAX_LIMIT_SECONDS;
pub use meeting::{Meeting, MissingIke};
pub use member_mistake::MemberMistake;
pub use overlays::{
    DEFAULT_ENDPOINTS, DirectUse, FIRST_NETWORK, KernelSettings, KernelUse, MAX_ENDPOINTS,
    MAX_NETWORKS, NetworkSettings, OverlaySettings, StoreKind, StoreSettings,
};
pub use peer_moves::PeerMoves;
pub use raw::MAX_BYTES;
pub use replay_keys::{ReplayKey, read_replay_keys, write_replay_keys};
pub use sa_lines::{SaLine, parse_sa_lines, read_sa_lines, sa_lines_of};
pub use set_files::SetFiles;
pub use source::Location;
pub use standalone::ConfiguredRoutes;
pub use text::{escaped, escaped_line, is_hidden};
pub use text_file::place_within;
pub use validate::{DEFAULT_FLOWS, MAX_FLOWS, MAX_WORKERS};
pub use validated::{PeerId, Validated};
pub use values::{is_link_local, unusable};
pub use written::{mac_text, service_text};

use chunked::{Chunks, EntryCounts, Whole};
use errors::Diagnostics;
use source::Source;
use validate::Outcome;

/// A configuration without its keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parsed {
    /// The configuration, typed and complete.
    pub validated: Validated,
    /// Mistakes that are allowed, but were probably not meant.
    pub warnings: Vec<Diagnostic>,
    /// True if a set of addresses is in a file.
    pub includes_files: bool,
    /// The place where each peer's key file is named, one entry per peer.
    key_places: Vec<Location>,
    /// The place where the size of the flow cache is named, or the begin of the file.
    flows_place: Location,
    /// The place where the size of the table of connections is named, or the begin of the file.
    connections_place: Location,
    /// The place where the size of the table of endpoints is named, or the begin of the file.
    endpoints_place: Location,
}

/// A configuration with its keys. No `Debug`: it holds key bytes.
pub struct Loaded {
    /// The configuration, typed and complete.
    pub validated: Validated,
    /// Mistakes that are allowed, but were probably not meant, those of the keys too.
    pub warnings: Vec<Diagnostic>,
    /// The keys of all peers.
    pub keys: Keys,
}

/// Parses and validates a configuration. Touches no file, and so refuses a set of addresses that is
/// in one; `name` is the file's name in messages.
///
/// # Errors
/// All mistakes of the text, with its warnings.
pub fn parse(text: &str, name: &str) -> Result<Parsed, ConfigErrors> {
    parse_with(text, name, SetFiles::Refused)
}

/// Parses and validates a configuration with the texts of its set files.
///
/// # Errors
/// All mistakes of the text and of its set files, with its warnings.
pub fn parse_with(text: &str, name: &str, files: SetFiles<'_>) -> Result<Parsed, ConfigErrors> {
    if text.len() as u64 > MAX_BYTES {
        let mistake = DiagnosticKind::TooLong { size: text.len() as u64, limit: MAX_BYTES };
        return Err(ConfigErrors::of(Location::of_file(name), mistake));
    }
    if let SetFiles::Sent { texts, .. } = files
        && texts.bytes() > MAX_INCLUDED_BYTES
    {
        let mistake = DiagnosticKind::SentTooLong { limit: MAX_INCLUDED_BYTES };
        return Err(ConfigErrors::of(Location::of_file(name), mistake));
    }
    let source = Source::new(name, text);
    let beyond = syntax::unreadable(text).or_else(|| text_bounds::exceeded(text));
    if let Some((span, mistake)) = beyond {
        return Err(ConfigErrors::of(source.place(&span), mistake));
    }
    let (outcome, problems) =
        in_pieces(&source, files).unwrap_or_else(|Whole| as_a_whole(&source, files));
    let warnings = problems.finish()?;
    let Some(outcome) = outcome else {
        // Nothing was wrong and nothing came of it: a rule forgot to say why.
        let mistake = DiagnosticKind::Unexplained;
        return Err(ConfigErrors::of(Location::of_file(name), mistake));
    };
    Ok(Parsed {
        warnings,
        includes_files: outcome.includes_files,
        key_places: outcome.keys.iter().map(|span| source.place(span)).collect(),
        flows_place: source.place(&outcome.flows),
        connections_place: source.place(&outcome.max_connections),
        endpoints_place: source.place(&outcome.max_endpoints),
        validated: outcome.validated,
    })
}

/// A text's configuration, and the problems that it has.
type Judged<'a> = (Option<Outcome>, Diagnostics<'a>);

fn in_pieces<'a>(source: &'a Source<'a>, files: SetFiles<'_>) -> Result<Judged<'a>, Whole> {
    let mut problems = Diagnostics::new(source);
    let pieces = Chunks::of(source.text);
    let raw = pieces.frame(source, &mut problems)?;
    let validated = validate::validate(
        &raw,
        pieces.entry_counts(),
        pieces.lists(source),
        files,
        &mut problems,
    )?;
    Ok((validated, problems))
}

fn as_a_whole<'a>(source: &'a Source<'a>, files: SetFiles<'_>) -> Judged<'a> {
    let mut problems = Diagnostics::new(source);
    let validated = chunked::read_whole(source, &mut problems).and_then(|(raw, lists)| {
        let counts = EntryCounts::of(&lists);
        let mut lists = Some(Ok::<_, Whole>(lists));
        let next = |_: &mut Diagnostics<'_>| lists.take();
        validate::validate(&raw, counts, next, files, &mut problems).ok()?
    });
    (validated, problems)
}

/// Reads a configuration file without its keys, as the daemon reads it at its start: set files lie
/// in the file's directory or below, without links.
///
/// # Errors
/// All mistakes, or why the file cannot be read.
pub fn read(path: &Path) -> Result<Parsed, ConfigErrors> {
    let files = SetFiles::Beneath(base_of(path));
    parse_with(&read_text(path)?, &path.display().to_string(), files)
}

/// Reads the text of a configuration file. Never waits: a pipe or a device is refused.
///
/// # Errors
/// The reason why it cannot be read: rights, kind, size or encoding.
pub fn read_text(path: &Path) -> Result<String, ConfigErrors> {
    let fail = |mistake| unread(&path.display().to_string(), mistake);
    text_file::read(path, MAX_BYTES).map_err(fail)
}

/// Reads the text of a configuration from an open input, up to its end; `name` is its name in
/// messages.
///
/// # Errors
/// As [`read_text`].
pub fn text_of(input: impl Read, name: &str) -> Result<String, ConfigErrors> {
    text_file::text_of(input, MAX_BYTES).map_err(|mistake| unread(name, mistake))
}

/// The error of a file that is not read, at the place of its mistake if that has one.
fn unread(name: &str, mistake: DiagnosticKind) -> ConfigErrors {
    let place = match mistake {
        DiagnosticKind::NotText { line, column } => {
            Location { file: name.to_owned(), line, column }
        }
        _ => Location::of_file(name),
    };
    ConfigErrors::of(place, mistake)
}

/// Reads a configuration file, and the key files that it names, for a machine with `memory` bytes
/// of memory (`None`: unknown).
///
/// # Errors
/// All mistakes of the file, else that the machine has too little memory for it, else all mistakes
/// of its key files.
pub fn load(path: &Path, memory: Option<u64>) -> Result<Loaded, ConfigErrors> {
    read(path)?.within(memory)?.load_keys(base_of(path))
}

/// Returns the directory that a relative `keys_dir` is relative to: that of the file.
pub fn base_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

impl Parsed {
    /// Checks the configuration against a machine's memory in bytes. The flow cache may take half
    /// of it, the tables of connections and of endpoints a quarter each: a table that the machine
    /// cannot back would end the daemon when traffic fills it.
    ///
    /// # Errors
    /// The flow cache or a table is too large, with the warnings of the configuration (FC-11).
    pub fn within(self, memory: Option<u64>) -> Result<Parsed, ConfigErrors> {
        let memory = memory.unwrap_or(u64::MAX);
        let beyond = [
            (self.cache_beyond(memory / 2), &self.flows_place),
            (self.connections_beyond(memory / 4), &self.connections_place),
            (self.endpoints_beyond(memory / 4), &self.endpoints_place),
        ];
        let first = beyond.into_iter().find_map(|(mistake, place)| Some((mistake?, place)));
        let Some((mistake, place)) = first else { return Ok(self) };
        let mut errors = ConfigErrors::of(place.clone(), mistake);
        errors.problems.extend(self.warnings);
        errors.problems.sort_by(|a, b| a.place.cmp(&b.place));
        Err(errors)
    }

    fn cache_beyond(&self, limit: u64) -> Option<DiagnosticKind> {
        let bytes = self.validated.cache.size(1).map_or(0, |all| all.bytes);
        let fits = validated::Cache::flows_within(limit);
        (bytes > limit).then_some(DiagnosticKind::CacheBeyondMemory { bytes, limit, fits })
    }

    fn connections_beyond(&self, limit: u64) -> Option<DiagnosticKind> {
        let bytes = self.validated.connections.bytes();
        let fits = ConnectionSettings::connections_within(limit);
        let is_beyond = bytes > limit && self.validated.tracks_connections();
        is_beyond.then_some(DiagnosticKind::ConnectionsBeyondMemory { bytes, limit, fits })
    }

    /// The table is made for the first configuration with an overlay.
    fn endpoints_beyond(&self, limit: u64) -> Option<DiagnosticKind> {
        let bytes = self.validated.store.bytes();
        let fits = StoreSettings::endpoints_within(limit);
        let is_beyond = bytes > limit && !self.validated.overlays.is_empty();
        is_beyond.then_some(DiagnosticKind::EndpointsBeyondMemory { bytes, limit, fits })
    }

    /// Returns the directory of the key files. A relative `keys_dir` starts at `base`, the
    /// directory of the configuration file.
    pub fn keys_directory(&self, base: &Path) -> PathBuf {
        base.join(&self.validated.node.keys_dir)
    }

    /// Reads the key files in [`Parsed::keys_directory`].
    ///
    /// # Errors
    /// All mistakes of all key files, with the warnings of the configuration.
    pub fn load_keys(self, base: &Path) -> Result<Loaded, ConfigErrors> {
        let directory = self.keys_directory(base);
        self.load_keys_in(&directory)
    }

    /// Reads the key files in this directory, whatever the file says.
    ///
    /// # Errors
    /// As [`Parsed::load_keys`].
    pub fn load_keys_in(self, directory: &Path) -> Result<Loaded, ConfigErrors> {
        let read = self.read_keys_in(directory);
        let Parsed { validated, mut warnings, .. } = self;
        let in_order =
            |problems: &mut Vec<Diagnostic>| problems.sort_by(|a, b| a.place.cmp(&b.place));
        match read {
            Ok((keys, more)) => {
                warnings.extend(more);
                in_order(&mut warnings);
                Ok(Loaded { validated, warnings, keys })
            }
            Err(mut errors) => {
                errors.problems.extend(warnings);
                in_order(&mut errors.problems);
                Err(errors)
            }
        }
    }

    /// Reads the key files in [`Parsed::keys_directory`] and returns the keys with the warnings
    /// about them.
    ///
    /// # Errors
    /// All mistakes of all key files.
    pub fn read_keys(&self, base: &Path) -> Result<(Keys, Vec<Diagnostic>), ConfigErrors> {
        self.read_keys_in(&self.keys_directory(base))
    }

    /// Reads the keys as [`Parsed::read_keys`] does, but in this directory instead of the file's.
    ///
    /// # Errors
    /// All mistakes of all key files.
    pub fn read_keys_in(&self, directory: &Path) -> Result<(Keys, Vec<Diagnostic>), ConfigErrors> {
        Keys::read(&self.validated, directory, &self.key_places)
    }
}
