//! A gateway's configuration file and its directories.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::sites::{LAN, WAN};
use crate::{LabError, Programs, Site, Sites, process};

/// A peer of a gateway and what goes to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerEntry {
    /// Name: that of the other gateway.
    pub name: String,
    /// Our outer address.
    pub local: String,
    /// Its outer address.
    pub remote: String,
    /// Name of the key file.
    pub keys: String,
    /// Networks on our side.
    pub ours: Vec<String>,
    /// Networks behind it.
    pub theirs: Vec<String>,
}

/// A gateway's configuration, to be changed and written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GatewayFile {
    name: String,
    directory: PathBuf,
    keys: PathBuf,
    /// `[node] workers`, as it stands in the file: `"1"` or `"\"auto\""`.
    pub workers: String,
    /// Further lines of `[node]`.
    pub node: String,
    /// Further lines of `[port.lan]`.
    pub lan: String,
    /// Further lines of `[port.wan]`.
    pub wan: String,
    /// `[metrics] listen`.
    pub metrics: String,
    /// Peers, each with one policy.
    pub peers: Vec<PeerEntry>,
    /// Text that follows the last policy.
    pub extra: String,
}

impl GatewayFile {
    /// A file for a gateway without peers, in directories of its own, with one worker.
    ///
    /// # Errors
    /// [`LabError::File`].
    pub fn new(sites: &Sites, site: &Site) -> Result<GatewayFile, LabError> {
        let name = site.gateway_name();
        let directory = sites.laboratory.directory().join(&name);
        let keys = sites.laboratory.directory().join("keys");
        let file = GatewayFile {
            name,
            directory,
            keys,
            workers: "1".to_owned(),
            node: String::new(),
            lan: String::new(),
            wan: String::new(),
            metrics: "off".to_owned(),
            peers: Vec::new(),
            extra: String::new(),
        };
        for path in [file.run_dir(), file.state_dir(), file.keys.clone()] {
            DirBuilder::new()
                .recursive(true)
                .mode(0o750)
                .create(&path)
                .map_err(LabError::file(&path))?;
        }
        Ok(file)
    }

    /// Name of the gateway.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Directory of the daemon's socket and shared state.
    pub fn run_dir(&self) -> PathBuf {
        self.directory.join("run")
    }

    /// Directory of the daemon's state that outlives a boot.
    pub fn state_dir(&self) -> PathBuf {
        self.directory.join("state")
    }

    /// The API's socket.
    pub fn socket(&self) -> PathBuf {
        self.run_dir().join("api.sock")
    }

    /// Path of the configuration file.
    pub fn path(&self) -> PathBuf {
        self.directory.join("lockgate.toml")
    }

    /// The file's text.
    pub fn text(&self) -> String {
        let GatewayFile { name, workers, node, lan, wan, metrics, extra, .. } = self;
        let [run, state] =
            [self.run_dir(), self.state_dir()].map(|path| path.display().to_string());
        let keys = self.keys.display();
        let mut text = format!(
            "[node]
name = \"{name}\"
workers = {workers}
keys_dir = \"{keys}\"
run_dir = \"{run}\"
state_dir = \"{state}\"
{node}
[metrics]
listen = \"{metrics}\"

[port.lan]
netdev = \"{LAN}\"
side = \"protected\"
{lan}
[port.wan]
netdev = \"{WAN}\"
side = \"unprotected\"
allow_host = [\"udp/500\", \"udp/4500\", \"icmp\"]
{wan}"
        );
        for peer in &self.peers {
            let PeerEntry { name, local, remote, keys, ours, theirs } = peer;
            text += &format!(
                "
[peer.{name}]
local = \"{local}\"
remote = \"{remote}\"
keys = \"file:{keys}\"
manual = \"laboratory\"
suite = \"aes-128-gcm\"

[[policy]]
name = \"to-{name}\"
peer = \"{name}\"
local = {ours:?}
remote = {theirs:?}
priority = 100
"
            );
        }
        text + extra
    }

    /// Writes the file and returns its path.
    ///
    /// # Errors
    /// [`LabError::File`].
    pub fn write(&self) -> Result<PathBuf, LabError> {
        self.write_as(&self.path())
    }

    /// Writes it beside the one in use, for `apply -f`.
    ///
    /// # Errors
    /// [`LabError::File`].
    pub fn write_as(&self, path: &Path) -> Result<PathBuf, LabError> {
        std::fs::write(path, self.text()).map_err(LabError::file(path))?;
        Ok(path.to_owned())
    }

    /// A path beside the file in use.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// Makes two gateways peers of each other with fresh keys: `outer` are their addresses on the
/// wire, `networks` what each protects for the other.
///
/// # Errors
/// As [`make_keys`].
pub fn join(
    programs: &Programs,
    files: [&mut GatewayFile; 2],
    outer: [String; 2],
    networks: [Vec<String>; 2],
) -> Result<(), LabError> {
    let [a, b] = files;
    make_keys(programs, &a.keys, &a.name, &b.name)?;
    let [outer_a, outer_b] = outer;
    let [networks_a, networks_b] = networks;
    a.peers.push(PeerEntry {
        name: b.name.clone(),
        local: outer_a.clone(),
        remote: outer_b.clone(),
        keys: format!("{}-{}.keys", a.name, b.name),
        ours: networks_a.clone(),
        theirs: networks_b.clone(),
    });
    b.peers.push(PeerEntry {
        name: a.name.clone(),
        local: outer_b,
        remote: outer_a,
        keys: format!("{}-{}.keys", b.name, a.name),
        ours: networks_b,
        theirs: networks_a,
    });
    Ok(())
}

/// Makes the two key files of a pair of gateways, replacing those of the same names.
///
/// # Errors
/// As [`process::succeed`].
pub fn make_keys(programs: &Programs, into: &Path, a: &str, b: &str) -> Result<(), LabError> {
    for (own, other) in [(a, b), (b, a)] {
        // Not there the first time.
        let _ = std::fs::remove_file(into.join(format!("{own}-{other}.keys")));
    }
    let mut command = Command::new(&programs.lockgate);
    command.arg("keygen").arg("--out-dir").arg(into).args([a, b]);
    process::succeed(command, crate::namespace::SETTING).map(drop)
}
