//! strongSwan's charon in a namespace, with the plugin that gives its SAs to Lockgate, or with
//! strongSwan's own ESP in user space.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::{self, Running};
use crate::programs::Need;
use crate::sites::WAN;
use crate::{LabError, Namespace};

/// charon's program. Debian has it outside PATH.
const CHARON: &str = "/usr/lib/ipsec/charon";
/// Environment variable that names the root of another Debian, for tests that run its charon.
pub const ROOT_VARIABLE: &str = "LOCKGATE_CHARON_ROOT";
/// The only folder in which charon looks for plugins.
const PLUGINS: &str = "/usr/lib/ipsec/plugins";
/// The plugin, below the folder of what was built.
const PLUGIN: &str = "charon/libstrongswan-lockgate.so";
/// Time for charon to begin, to answer, and to end.
const LIMIT: Duration = Duration::from_secs(60);

/// A CHILD_SA, with the connection that it is of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChildPlan {
    /// Addresses of IKE, ours and the peer's.
    pub ends: [String; 2],
    /// Identities of IKE, ours and the peer's: addresses that the gateways have without a NAT.
    pub identities: [String; 2],
    /// Further lines of the connection's section.
    pub connection: String,
    /// Traffic selectors, ours and the peer's, as `swanctl.conf` writes them.
    pub selectors: [String; 2],
    /// Proposal of ESP.
    pub esp: String,
    /// Further lines of the child's section.
    pub more: String,
}

/// The ESP that a charon's SAs are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Esp<'a> {
    /// Lockgate's, of the daemon with this run directory.
    Lockgate(&'a Path),
    /// strongSwan's own in user space (kernel-libipsec), over a TUN device.
    Libipsec,
}

/// Permission to write keys into the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeysInLog {
    /// No key.
    No,
    /// The keys of each CHILD_SA: for an observer that decrypts a capture.
    Yes,
}

/// A charon to start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CharonPlan<'a> {
    /// The ESP that its SAs are for.
    pub esp: Esp<'a>,
    /// Text of its `swanctl.conf`.
    pub connections: String,
    /// Permission to write keys into its log.
    pub keys_in_log: KeysInLog,
}

/// A charon that runs. Dropping it ends it.
#[derive(Debug)]
pub struct Charon {
    running: Running,
    namespace: String,
    directory: PathBuf,
    /// Words that put a program into its system, if that is not this machine's.
    within: Vec<String>,
}

/// Returns the plugin that was built, or is installed.
///
/// # Errors
/// [`LabError::Missing`], [`LabError::NotBuilt`].
pub fn plugin() -> Result<PathBuf, LabError> {
    if !Path::new(CHARON).is_file() || crate::programs::find("swanctl").is_none() {
        let charon = Need {
            program: "charon",
            package: "strongswan-charon strongswan-swanctl libstrongswan-standard-plugins",
        };
        return Err(LabError::Missing(vec![charon]));
    }
    let variable = "LOCKGATE_CHARON_PLUGIN";
    if let Some(path) = std::env::var_os(variable) {
        return Ok(path.into());
    }
    // Beside the profile's folder of the programs: target/charon.
    let here = std::env::current_exe().ok();
    let folders = here.iter().flat_map(|program| program.ancestors());
    let found = folders.map(|folder| folder.join(PLUGIN)).find(|file| file.is_file());
    // Or installed.
    let found = found.or_else(|| {
        let installed = Path::new(PLUGINS).join("libstrongswan-lockgate.so");
        installed.is_file().then_some(installed)
    });
    found.ok_or(LabError::NotBuilt { program: "libstrongswan-lockgate.so", variable })
}

/// Root of another Debian, whose charon runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root<'a> {
    /// Its folder.
    pub folder: &'a Path,
    /// Plugin in place of the one that is installed there, which `None` means.
    pub plugin: Option<&'a Path>,
}

/// Gives a root what its programs expect of a kernel, and the folders behind it, at their places;
/// runs the rest there. `$0` is the root, `$1` and `$2` the folders, `$3` a plugin or nothing.
const WITHIN: &str = r#"
root=$0 &&
mount -t tmpfs none "$root/run" && mount -t tmpfs none "$root/tmp" &&
mount -t proc none "$root/proc" && mount -t sysfs none "$root/sys" &&
mount --rbind /dev "$root/dev" &&
for folder in "$1" "$2"; do
    mkdir -p "$root$folder" && mount --bind "$folder" "$root$folder" || exit
done &&
if [ -n "$3" ]; then
    mount --bind "$3" "$root/usr/lib/ipsec/plugins/libstrongswan-lockgate.so" || exit
fi &&
shift 3 && exec chroot "$root" "$@""#;

/// Returns the words that run what follows in a root, which sees these folders alone besides.
fn within(root: Root<'_>, folders: [&Path; 2]) -> Vec<String> {
    let words = ["--mount", "sh", "-c", WITHIN].map(str::to_owned);
    let plugin = root.plugin.unwrap_or(Path::new(""));
    let paths = [root.folder, folders[0], folders[1], plugin];
    let paths = paths.map(|path| path.display().to_string());
    words.into_iter().chain(paths).collect()
}

/// Fails unless a root has charon and the plugin.
fn check_root(root: &Path) -> Result<(), LabError> {
    let inside = |file: &str| root.join(file.trim_start_matches('/'));
    if !inside(CHARON).is_file() {
        let charon = Need { program: "charon", package: "strongswan-charon strongswan-swanctl" };
        return Err(LabError::Missing(vec![charon]));
    }
    match inside(PLUGINS).join("libstrongswan-lockgate.so").is_file() {
        true => Ok(()),
        false => Err(LabError::NotBuilt {
            program: "libstrongswan-lockgate.so",
            variable: ROOT_VARIABLE,
        }),
    }
}

impl Charon {
    /// Starts a charon whose plugin connects to the daemon of a run directory, and waits until it
    /// answers. Its files are in `directory`.
    ///
    /// # Errors
    /// As `Charon::load`; [`LabError::Missing`] and [`LabError::NotBuilt`] say what there is not.
    pub fn start(
        namespace: &Namespace,
        directory: &Path,
        (run_dir, child): (&Path, &ChildPlan),
    ) -> Result<Charon, LabError> {
        let (esp, connections) = (Esp::Lockgate(run_dir), connection(child));
        let plan = CharonPlan { esp, connections, keys_in_log: KeysInLog::No };
        Charon::launch(namespace, directory, &plan)
    }

    /// Starts a charon as [`Charon::start`] does, of another Debian: with its programs, libraries,
    /// settings and plugin.
    ///
    /// # Errors
    /// As [`Charon::start`].
    pub fn start_in(
        root: Root<'_>,
        namespace: &Namespace,
        directory: &Path,
        (run_dir, child): (&Path, &ChildPlan),
    ) -> Result<Charon, LabError> {
        check_root(root.folder)?;
        let (esp, connections) = (Esp::Lockgate(run_dir), connection(child));
        let plan = CharonPlan { esp, connections, keys_in_log: KeysInLog::No };
        prepare(directory, &plan)?;
        let within = within(root, [directory, run_dir]);
        let settings = format!("STRONGSWAN_CONF={}/strongswan.conf", directory.display());
        let mut command = namespace.command("unshare");
        command.args(&within).args(["env", &settings, CHARON]);
        Charon::run(command, (namespace, directory), within)
    }

    /// Starts a charon of a plan, as [`Charon::start`]. Certificates and keys that the plan names
    /// are in folders of `directory`, as in `/etc/swanctl`.
    ///
    /// # Errors
    /// As [`Charon::start`].
    pub fn launch(
        namespace: &Namespace,
        directory: &Path,
        plan: &CharonPlan<'_>,
    ) -> Result<Charon, LabError> {
        prepare(directory, plan)?;
        let mut command = namespace.command("unshare");
        command.args(here(directory)?);
        Charon::run(command, (namespace, directory), Vec::new())
    }

    /// Runs what starts it, and loads its connections.
    fn run(
        command: Command,
        (namespace, directory): (&Namespace, &Path),
        within: Vec<String>,
    ) -> Result<Charon, LabError> {
        let running = Running::start(command)?;
        let directory = directory.to_owned();
        let charon = Charon { running, namespace: namespace.name().to_owned(), directory, within };
        charon.load(namespace)?;
        Ok(charon)
    }

    /// Loads the connection.
    ///
    /// # Errors
    /// [`LabError::TimedOut`] if charon does not answer, [`LabError::Failed`] if it refuses.
    fn load(&self, namespace: &Namespace) -> Result<(), LabError> {
        let end = std::time::Instant::now() + LIMIT;
        while !self.directory.join("vici").exists() {
            if std::time::Instant::now() > end {
                let what = format!("the start of charon in {}", self.namespace);
                return Err(LabError::TimedOut { what, limit: LIMIT, output: self.log() });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let file = self.directory.join("swanctl.conf").display().to_string();
        self.swanctl(namespace, &["--load-all", "--file", &file]).map(drop)
    }

    /// Runs `swanctl` against this charon, and returns what it prints.
    ///
    /// # Errors
    /// [`LabError::Failed`].
    pub fn swanctl(&self, namespace: &Namespace, words: &[&str]) -> Result<String, LabError> {
        let mut command = match self.within.as_slice() {
            [] => namespace.command("swanctl"),
            // That of its own system.
            within => {
                let mut command = namespace.command("unshare");
                command.args(within).arg("swanctl");
                command
            }
        };
        // No credentials of this machine's own.
        command.env("SWANCTL_DIR", &self.directory).args(words).arg("--uri");
        command.arg(format!("unix://{}", self.directory.join("vici").display()));
        process::succeed(command, LIMIT)
    }

    /// Its control socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("vici")
    }

    /// The log, without keys unless the plan permits them.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("charon.log")).unwrap_or_default()
    }

    /// Kills charon as a crash would.
    pub fn kill(&mut self) {
        self.running.kill();
    }
}

/// Writes the files of a plan.
fn prepare(directory: &Path, plan: &CharonPlan<'_>) -> Result<(), LabError> {
    // What is there is of an earlier run.
    for name in ["vici", "charon.log"] {
        let _ = std::fs::remove_file(directory.join(name));
    }
    let write = |name: &str, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, text).map_err(LabError::file(&path))
    };
    write("strongswan.conf", &settings(directory, plan))?;
    write("swanctl.conf", &plan.connections)
}

/// Copies the plugins of this machine beside ours, and returns the words that start its charon with
/// them.
fn here(directory: &Path) -> Result<Vec<String>, LabError> {
    let plugin = plugin()?;
    let plugins = directory.join("plugins");
    std::fs::create_dir_all(&plugins).map_err(LabError::file(&plugins))?;
    let copy = ["cp", "-a", "-t"];
    let mut command = Command::new(copy[0]);
    command.args(&copy[1..]).arg(&plugins).arg(&plugin).arg(format!("{PLUGINS}/."));
    process::succeed(command, LIMIT)?;
    let at = directory.display();
    // A mount namespace of its own: plugins and /run are charon's alone.
    let script = format!(
        "mount --bind {at}/plugins {PLUGINS} && mount -t tmpfs none /run && \
         STRONGSWAN_CONF={at}/strongswan.conf exec {CHARON}"
    );
    Ok(["--mount", "sh", "-c", &script].map(str::to_owned).to_vec())
}

fn settings(directory: &Path, plan: &CharonPlan<'_>) -> String {
    let at = directory.display();
    // A plugin that is installed on this machine is loaded where it is wanted alone.
    let (routes, plugin, unwanted) = match plan.esp {
        Esp::Lockgate(run_dir) => (
            "install_routes = no\n    routing_table = 0",
            format!("lockgate {{\n load = 200\n socket = {}/charon.sock", run_dir.display()),
            "kernel-libipsec",
        ),
        Esp::Libipsec => {
            ("install_routes = yes", "kernel-libipsec {\n load = 200".to_owned(), "lockgate")
        }
    };
    let child = match plan.keys_in_log {
        KeysInLog::No => 1,
        KeysInLog::Yes => 4,
    };
    format!(
        "charon {{
    load_modular = yes
    {routes}
    interfaces_use = {WAN}
    filelog {{
        log {{
            path = {at}/charon.log
            default = 1
            chd = {child}
            flush_line = yes
            time_format = %s
            time_add_ms = yes
        }}
    }}
    plugins {{
        include /etc/strongswan.d/charon/*.conf
        {plugin}
        }}
        {unwanted} {{
            load = no
        }}
        vici {{
            socket = unix://{at}/vici
        }}
        bypass-lan {{
            load = no
        }}
    }}
}}
"
    )
}

fn connection(plan: &ChildPlan) -> String {
    let ChildPlan { ends, identities, connection, selectors, esp, more } = plan;
    let ([local, remote], [ours, theirs]) = (ends, selectors);
    let [own_id, peer_id] = identities;
    format!(
        "connections {{
    gw {{
        version = 2
        local_addrs = {local}
        remote_addrs = {remote}
        proposals = aes256-sha256-x25519
        {connection}
        local {{
            auth = psk
            id = {own_id}
        }}
        remote {{
            auth = psk
            id = {peer_id}
        }}
        children {{
            net {{
                local_ts = {ours}
                remote_ts = {theirs}
                esp_proposals = {esp}
                start_action = trap
                {more}
            }}
        }}
    }}
}}
secrets {{
    ike-laboratory {{
        id-a = {own_id}
        id-b = {peer_id}
        secret = laboratory
    }}
}}
"
    )
}
