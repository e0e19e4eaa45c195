//! `lockgate import`: configurations of strongSwan, VPP and Linux's xfrm, as ours.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ::import::{FillIn, Foreign, ImportErrors, Imported, KeyPlan, Omission, Options};
use config::{Severity, escaped_line, write_key_file};
use console::output::{complain, counted, print, print_json};
use serde_json::json;

use crate::failure::{Failure, Usage};

/// Largest number of entries that the table of omissions shows.
const MOST_SHOWN: usize = 200;

/// Import a configuration of strongSwan, VPP or Linux's xfrm
///
/// Writes a Lockgate configuration to standard output. Standard error lists everything that
/// Lockgate cannot express, or that means something else here: line, word, reason, and what to do.
/// A file with mistakes is refused as a whole. Nothing is asked or changed on this machine.
///
/// Keys never come into the configuration. With --keys they go into a new key file, mode 0600.
#[derive(clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    #[command(subcommand)]
    source: Source,
}

const EXAMPLE: &str = "\
Examples:
  lockgate import xfrm --state state.txt --policy policy.txt --output gw-a.toml
reads what `ip xfrm state` and `ip xfrm policy` printed, or commands `ip xfrm … add`.
  lockgate import vpp startup.conf
reads the section `ipsec` and the commands `ipsec …` of VPP.
  lockgate import swanctl /etc/swanctl/swanctl.conf /etc/swanctl/conf.d/*.conf
reads the connections of strongSwan, whose charon then makes keys for Lockgate.
Then: lockgate check gw-a.toml";

#[derive(clap::Subcommand)]
enum Source {
    Swanctl(SwanctlArgs),
    Vpp(VppArgs),
    Xfrm(XfrmArgs),
}

/// Import the connections of strongSwan's swanctl.conf
///
/// Each child becomes a peer with `keys = "ike"` and its policies. charon goes on to read the file,
/// and negotiates with its own certificates and secrets, none of which are imported. `include` is
/// not followed: give the files that it names behind the first one.
#[derive(clap::Args)]
struct SwanctlArgs {
    /// The texts, the first and those that it includes; `-` reads standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// Import start-up words and commands of VPP
///
/// Reads the section `ipsec` of a start-up configuration, and the commands `ipsec sa add`,
/// `ipsec spd add`, `ipsec policy add` and `set interface ipsec spd`.
#[derive(clap::Args)]
struct VppArgs {
    /// The text; `-` reads standard input
    file: PathBuf,
    #[command(flatten)]
    keys: Keys,
    #[command(flatten)]
    common: Common,
}

/// Import states and policies of Linux's xfrm
///
/// Reads what `ip xfrm state` and `ip xfrm policy` print, and the commands `ip xfrm state add` and
/// `ip xfrm policy add` of a script. Either text may hold both.
#[derive(clap::Args)]
struct XfrmArgs {
    /// The states; `-` reads standard input
    #[arg(long, value_name = "FILE", required_unless_present = "policy")]
    state: Option<PathBuf>,
    /// The policies; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    #[command(flatten)]
    keys: Keys,
    #[command(flatten)]
    common: Common,
}

/// The option of formats whose texts hold keys.
#[derive(clap::Args)]
struct Keys {
    /// Write the keys to this new key file; for several peers NAME.keys becomes NAME-PEER.keys
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
}

/// Options of all.
#[derive(clap::Args)]
struct Common {
    /// Write the configuration to this new file instead of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Name of the gateway
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Interface towards the hosts behind the gateway: the protected port
    #[arg(long, value_name = "INTERFACE")]
    lan: Option<String>,
    /// Interface towards the peers: the unprotected port
    #[arg(long, value_name = "INTERFACE")]
    wan: Option<String>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Imports, writes the files, and reports the omissions.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let (Source::Swanctl(SwanctlArgs { common, .. })
    | Source::Vpp(VppArgs { common, .. })
    | Source::Xfrm(XfrmArgs { common, .. })) = &args.source;
    common.judge()?;
    let (common, keys, imported) = match &args.source {
        Source::Swanctl(SwanctlArgs { files, common }) => {
            let texts: Vec<Foreign> =
                files.iter().map(|file| read(file)).collect::<Result<_, _>>()?;
            (common, None, ::import::swanctl(&texts, &common.options(None)?)?)
        }
        Source::Vpp(VppArgs { file, keys: Keys { keys }, common }) => {
            let keys = keys.as_deref();
            (common, keys, ::import::vpp(&read(file)?, &common.options(keys)?)?)
        }
        Source::Xfrm(XfrmArgs { state, policy, keys: Keys { keys }, common }) => {
            let keys = keys.as_deref();
            let mut files: Vec<&PathBuf> = state.iter().chain(policy).collect();
            // One script may hold both: read it once.
            files.dedup();
            let texts: Vec<Foreign> =
                files.into_iter().map(|file| read(file)).collect::<Result<_, _>>()?;
            (common, keys, ::import::xfrm(&texts, &common.options(keys)?)?)
        }
    };
    // A text that Lockgate itself would refuse is a fault of ours, and is not written.
    config::parse(&imported.text, "<imported>")?;
    let written = write_all(common, keys, &imported)?;
    match (common.json, &args.source) {
        (true, _) => tell_in_json(common, &imported, &written),
        (false, Source::Swanctl(_)) => tell(common, &imported, "keys from charon", &written),
        (false, _) => {
            let sas = counted(imported.sas as u64, "SA");
            tell(common, &imported, &format!("{sas}, {} with keys", imported.keyed_sas), &written)
        }
    }
}

fn read(file: &Path) -> Result<Foreign, ImportErrors> {
    if file == Path::new("-") {
        return Foreign::read(std::io::stdin().lock(), "<stdin>");
    }
    let name = file.display().to_string();
    match File::open(file) {
        Ok(open) => Foreign::read(open, &name),
        Err(error) => Err(ImportErrors::unreadable(&name, error.kind())),
    }
}

impl Common {
    /// Judges the name and the interfaces as the configuration will have them.
    fn judge(&self) -> Result<(), Usage> {
        let of = |given: &Option<String>, usual: &str| {
            // A text in JSON is one in TOML too.
            json!(given.as_deref().unwrap_or(usual)).to_string()
        };
        let text = format!(
            "[node]\nname = {}\n[port.lan]\nnetdev = {}\nside = \"protected\"\n[port.wan]\n\
             netdev = {}\nside = \"unprotected\"\n",
            of(&self.name, "gateway"),
            of(&self.lan, "lan0"),
            of(&self.wan, "wan0"),
        );
        let Err(errors) = config::parse(&text, "") else { return Ok(()) };
        let is_error = |problem: &config::Diagnostic| problem.severity == Severity::Error;
        let Some(problem) = errors.problems.into_iter().find(is_error) else { return Ok(()) };
        let option = match (problem.place.line, &self.wan) {
            (2, _) => "--name",
            (7, Some(_)) => "--wan",
            _ => "--lan",
        };
        Err(Usage::ImportOption { option, mistake: Box::new(problem.mistake) })
    }

    fn options(&self, keys: Option<&Path>) -> Result<Options<'_>, Failure> {
        let keys = match keys {
            None => None,
            Some(path) => Some(self.key_plan(path)?),
        };
        let (name, lan, wan) = (self.name.as_deref(), self.lan.as_deref(), self.wan.as_deref());
        Ok(Options { name, lan, wan, keys })
    }

    /// The key file's name, and its directory if that is not the configuration's.
    fn key_plan(&self, path: &Path) -> Result<KeyPlan, Failure> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.is_empty() || name.starts_with(['.', '-']) || !name.chars().all(allowed) {
            return Err(Usage::BadName { name: name.to_owned() }.into());
        }
        let parent = |path: &Path| path.parent().unwrap_or(Path::new("")).to_owned();
        let beside = self.output.as_deref().map_or(PathBuf::new(), parent);
        let directory = match parent(path) {
            directory if directory == beside => None,
            directory => {
                let absolute = std::path::absolute(if directory.as_os_str().is_empty() {
                    Path::new(".")
                } else {
                    &directory
                });
                Some(absolute.map_err(Failure::file(path))?.display().to_string())
            }
        };
        Ok(KeyPlan { file: name.to_owned(), directory })
    }
}

/// Writes the key files and the configuration, or none of them. Returns the key files.
fn write_all(
    common: &Common,
    keys: Option<&Path>,
    imported: &Imported,
) -> Result<Vec<PathBuf>, Failure> {
    let directory = keys.and_then(Path::parent).unwrap_or(Path::new(""));
    let mut written = Vec::new();
    let mut result = Ok(());
    for key_file in &imported.keys {
        let path = directory.join(&key_file.name);
        result = write_key_file(&path, &key_file.text).map_err(Failure::from);
        if result.is_err() {
            break;
        }
        written.push(path);
    }
    if let (Ok(()), Some(output)) = (&result, &common.output) {
        result = write_new(output, &imported.text);
    }
    if let Err(failure) = result {
        for path in written {
            // Half an import is of no use, and its files would make the next try fail.
            let _ = std::fs::remove_file(path);
        }
        return Err(failure);
    }
    Ok(written)
}

/// Writes a file that was not there before.
fn write_new(path: &Path, text: &str) -> Result<(), Failure> {
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(path);
    let mut file = file.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Failure::OutputExists { file: path.to_owned() },
        _ => Failure::file(path)(error),
    })?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(|error| {
        let _ = std::fs::remove_file(path);
        Failure::file(path)(error)
    })
}

fn tell_in_json(common: &Common, imported: &Imported, written: &[PathBuf]) -> Result<(), Failure> {
    let keys = imported
        .keys
        .iter()
        .zip(written)
        .map(|(keys, path)| json!({"peer": keys.peer, "file": path, "sas": keys.sas}));
    let keys: Vec<_> = keys.collect();
    let Imported { text, omissions, to_fill_in, peers, policies, sas, keyed_sas, .. } = imported;
    let configuration = common.output.is_none().then_some(text);
    print_json(&json!({
        "configuration": configuration,
        "output": common.output,
        "keys": keys,
        "peers": peers,
        "policies": policies,
        "sas": sas,
        "sas_with_keys": keyed_sas,
        "not_taken": omissions,
        "to_fill_in": to_fill_in,
    }))?;
    Ok(())
}

fn tell(
    common: &Common,
    imported: &Imported,
    keys: &str,
    written: &[PathBuf],
) -> Result<(), Failure> {
    complain(&table(&imported.omissions));
    let to_fill_in = &imported.to_fill_in;
    let name =
        common.output.as_deref().map_or("<stdout>".into(), |output| output.to_string_lossy());
    complain(&places(&name, to_fill_in));
    let peers = counted(imported.peers as u64, "peer");
    let policies = match imported.policies {
        1 => "1 policy".to_owned(),
        count => format!("{count} policies"),
    };
    let mut summary = format!("{peers}, {policies}, {keys}\n");
    for path in written {
        summary += &format!("keys written to {}\n", path.display());
    }
    match &common.output {
        None => {
            complain(&summary);
            print(&imported.text)?;
        }
        Some(output) => {
            let places = match to_fill_in.len() {
                0 => String::new(),
                1 => "1 place is to be filled in (FILL IN), ".to_owned(),
                more => format!("{more} places are to be filled in (FILL IN), "),
            };
            summary +=
                &format!("{0} written; {places}then: lockgate check {0}\n", output.display());
            print(&summary)?;
        }
    }
    Ok(())
}

/// Lists the places of the configuration that are to be filled in.
fn places(file: &str, places: &[FillIn]) -> String {
    let file = escaped_line(file);
    let mut text = String::new();
    for FillIn { line, section, key, what } in places.iter().take(MOST_SHOWN) {
        let key = if key.is_empty() { String::new() } else { format!(" {key}") };
        text += &format!("{file}:{line}: fill in: {section}{key}: {what}\n");
    }
    if let Some(more) = places.len().checked_sub(MOST_SHOWN).filter(|more| *more > 0) {
        text += &format!("and {more} more places to fill in; --json lists all\n");
    }
    text
}

/// Lists the omissions, two lines each.
fn table(omissions: &[Omission]) -> String {
    let mut text = String::new();
    for Omission { place, word, fate, reason, advice } in omissions.iter().take(MOST_SHOWN) {
        let place = place.to_string();
        let place = escaped_line(&place);
        text += &format!("{place}: {}: {word}: {reason}\n", fate.name());
        if advice != "none" {
            text += &format!("  = do: {advice}\n");
        }
    }
    if let Some(more) = omissions.len().checked_sub(MOST_SHOWN).filter(|more| *more > 0) {
        text += &format!("and {more} more; --json lists all\n");
    }
    text
}
