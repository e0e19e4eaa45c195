//! Builds the Debian packages, `lockgate` and `lockgate-tools`, and `lockgate-charon` for the
//! strongSwan of each release of Debian: `cargo xtask deb`.
//!
//! Stages every file of a package in a folder of its own and gives it to `dpkg-deb`, which is on
//! every Debian. The same sources make the same packages: no file is younger than
//! `SOURCE_DATE_EPOCH`, else than the last commit, and owners are root whoever builds.
//!
//! Not `cargo-deb`: it would be one more program to install, and spare the staging alone. The
//! programs are built here anyway, without paths of the machine that builds.

mod check;
mod elsewhere;
mod man;
mod plugin;
mod trial;

pub(crate) use check::check;
pub(crate) use elsewhere::same_from_elsewhere;
pub(crate) use plugin::make as plugins;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::{Failure, built, cargo, output, program, root, succeed};

/// A package that is built.
struct Package {
    name: &'static str,
    /// Its programs, each with its folder.
    programs: &'static [(&'static str, &'static str)],
    /// Packages with programs that these programs and the package's scripts run.
    runs: &'static [&'static str],
    /// Lines of the package's control file.
    recommends: &'static str,
    description: &'static str,
}

/// The daemon and the operator's command.
const GATEWAY: Package = Package {
    name: "lockgate",
    programs: &[("lockgate", "usr/bin"), ("lockgated", "usr/sbin")],
    runs: &["nftables", "iproute2", "passwd"],
    recommends: "Recommends: ethtool\nSuggests: lockgate-tools\n",
    description: "\
Description: IPsec gateway in user space
 Lockgate decides every packet at the cheapest place that can decide it, and
 for any packet it says what was decided, where, by which rule, and why. Its
 ports are AF_XDP sockets; when it does not run, they are closed.
 .
 This package brings the daemon lockgated and the command lockgate. Nothing is
 started before /etc/lockgate/lockgate.toml says what the ports are.
",
};

/// Programs that `lockgate bench` and `lockgate demo` execute.
const TOOLS: Package = Package {
    name: "lockgate-tools",
    programs: &[
        ("lockgate-bench", "usr/libexec/lockgate"),
        ("lockgate-demo", "usr/libexec/lockgate"),
        ("lockgate-emulated-card", "usr/libexec/lockgate"),
    ],
    // Those of a laboratory in network namespaces.
    runs: &["nftables", "iproute2", "ethtool", "tcpdump", "iputils-ping", "iperf3"],
    // Of the demonstration of keys from IKE.
    recommends: "Suggests: strongswan-charon, strongswan-swanctl, strongswan-pki, \
                 libstrongswan-standard-plugins, libcharon-extra-plugins, tshark\n",
    description: "\
Description: benches and demonstrations of the gateway Lockgate
 Lockgate is an IPsec gateway in user space.
 .
 This package brings what the commands `lockgate bench` and `lockgate demo`
 execute: measurements, and laboratories in network namespaces. A gateway that
 carries traffic needs neither.
",
};

/// The default configuration, which dpkg keeps when it was changed.
const CONFIGURATION: &str = "etc/lockgate/lockgate.toml";
/// Shared libraries that the programs may need, and the packages that bring them. `libc.so.6` is
/// told with its version.
const LIBRARIES: &[(&str, Option<&str>)] = &[
    ("libc.so.6", None),
    ("libm.so.6", None),
    ("ld-linux-x86-64.so.2", None),
    ("ld-linux-aarch64.so.1", None),
    ("libgcc_s.so.1", Some("libgcc-s1")),
    ("libelf.so.1", Some("libelf1")),
    ("libz.so.1", Some("zlib1g")),
];
/// Documents, beside the reference.
const DOCUMENTS: &[&str] =
    &["README.md", "docs/OPERATION.md", "docs/CONFIGURATION.md", "docs/LIMITS.md"];
/// Examples, each with its name in the package.
const EXAMPLES: &[(&str, &str)] = &[
    ("etc/lockgate.toml", "lockgate.toml"),
    ("etc/grafana/lockgate.json", "grafana-lockgate.json"),
    ("etc/prometheus/lockgate.rules.yml", "prometheus-lockgate.rules.yml"),
    ("etc/example/two-gateways.sh", "two-gateways.sh"),
];
/// Profile by which the programs in the packages are built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Build {
    /// For use.
    Release,
    /// To try the packaging itself.
    Debug,
}

impl Build {
    fn name(self) -> &'static str {
        match self {
            Build::Release => "release",
            Build::Debug => "debug",
        }
    }

    /// Returns the options by which `dpkg-deb` compresses: small, or quickly.
    fn compression(self) -> &'static [&'static str] {
        match self {
            Build::Release => &["-Zxz"],
            Build::Debug => &["-Zgzip", "-z1"],
        }
    }
}

/// The packages, as files.
pub(crate) struct Packed {
    gateway: PathBuf,
    tools: PathBuf,
}

impl Packed {
    /// The gateway's package.
    pub(crate) fn gateway(&self) -> &Path {
        &self.gateway
    }
}

/// Builds the programs and the packages; with debug programs everything else too, as the tests do,
/// which then find it built.
pub(crate) fn build(build: Build) -> Result<Packed, Failure> {
    if build == Build::Release {
        let packed = build_programs(build)?;
        for plugin in plugins(&target().join("debian").join(build.name()))? {
            println!("deb: {}", plugin.package.display());
        }
        return Ok(packed);
    }
    let everything = ["build", "--workspace", "--all-targets"];
    succeed(built::with_clippy(cargo().args(everything)))?;
    packed(build)
}

/// Builds the programs of the packages alone, and the packages.
pub(crate) fn build_programs(build: Build) -> Result<Packed, Failure> {
    let mut command = cargo();
    command.args(["build", "--bins"]).args(OURS);
    if build == Build::Release {
        without_paths(command.arg("--release"), root(), &target());
    }
    succeed(&mut command)?;
    packed(build)
}

/// Packs what is built, and says where the packages are.
fn packed(build: Build) -> Result<Packed, Failure> {
    let packed = pack(build, &epoch()?)?;
    for package in [&packed.gateway, &packed.tools] {
        println!("deb: {}", package.display());
    }
    Ok(packed)
}

/// The programs, as cargo is told them.
const OURS: [&str; 10] = [
    "--package",
    "lockgate",
    "--package",
    "lockgated",
    "--package",
    "lockgate-bench",
    "--package",
    "lockgate-demo",
    "--package",
    "lockgate-emulated-card",
];

/// Has the compiler write the same programs wherever the sources and the folder of what is built
/// lie: a panic names the file that it is in.
fn without_paths<'c>(command: &'c mut Command, sources: &Path, built: &Path) -> &'c mut Command {
    let home = env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
    let home = env::var_os("CARGO_HOME").map(PathBuf::from).or(home);
    // Of those that fit the last one counts, and mostly `built` lies among the sources.
    let folders = [(home.as_deref(), "cargo"), (Some(sources), "."), (Some(built), "target")];
    let flags = folders.map(|(from, to)| {
        from.map_or_else(String::new, |from| format!("--remap-path-prefix={}={to}", from.display()))
    });
    let flags: Vec<&str> = flags.iter().map(String::as_str).filter(|it| !it.is_empty()).collect();
    command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
}

/// Stages the files and makes the packages out of them; `epoch` in seconds since 1970.
fn pack(build: Build, epoch: &str) -> Result<Packed, Failure> {
    let folder = target().join("debian").join(build.name());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(Failure::write(&folder))?;
    }
    let gateway = Stage { package: &GATEWAY, root: folder.join("root") };
    let needed = gateway.programs(build)?;
    gateway.services()?;
    gateway.documents(build, epoch)?;
    gateway.control(&needed)?;
    gateway.scripts()?;
    let tools = Stage { package: &TOOLS, root: folder.join("tools") };
    let mut needed = tools.programs(build)?;
    needed.packages.insert(format!("{} (= {})", GATEWAY.name, version()));
    tools.copyright()?;
    tools.control(&needed)?;
    Ok(Packed { gateway: gateway.made(build, epoch)?, tools: tools.made(build, epoch)? })
}

/// Returns the folder where cargo puts what it builds.
fn target() -> PathBuf {
    crate::target_directory()
}

fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// The time that no file of the package is younger than, seconds since 1970.
fn epoch() -> Result<String, Failure> {
    match env::var("SOURCE_DATE_EPOCH") {
        Ok(epoch) => Ok(epoch),
        Err(_) => {
            let time = output(program("git").args(["log", "-1", "--format=%ct"]))?;
            Ok(time.trim().to_owned())
        }
    }
}

/// The contents of a package, in a folder that stands for `/`.
struct Stage {
    package: &'static Package,
    root: PathBuf,
}

/// The dependencies of the programs on the system that they run on.
struct Needed {
    /// Packages with shared libraries.
    packages: BTreeSet<String>,
}

impl Stage {
    /// Makes the package beside the folder and returns its path.
    fn made(&self, build: Build, epoch: &str) -> Result<PathBuf, Failure> {
        let architecture = output(program("dpkg").arg("--print-architecture"))?;
        let file = format!("{}_{}_{}.deb", self.package.name, version(), architecture.trim());
        let package = self.root.with_file_name(file);
        let mut command = program("dpkg-deb");
        command.arg("--root-owner-group").args(build.compression());
        command.arg("--build").arg(&self.root).arg(&package);
        // Its one line names a path of this machine.
        output(command.env("SOURCE_DATE_EPOCH", epoch))?;
        Ok(package)
    }

    /// Writes a file with the folders above it.
    fn put(&self, to: &str, content: &[u8], mode: u32) -> Result<PathBuf, Failure> {
        let path = self.root.join(to);
        let folder = path.parent().expect("files lie in folders");
        fs::create_dir_all(folder).map_err(Failure::write(folder))?;
        fs::write(&path, content).map_err(Failure::write(&path))?;
        self.set_mode(&path, mode)?;
        // Whatever the builder's umask is.
        let above = folder.ancestors().take_while(|folder| folder.starts_with(&self.root));
        above.clone().try_for_each(|folder| self.set_mode(folder, 0o755))?;
        Ok(path)
    }

    fn set_mode(&self, path: &Path, mode: u32) -> Result<(), Failure> {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(Failure::write(path))
    }

    /// Copies a file of the project.
    fn copy(&self, from: &str, to: &str) -> Result<(), Failure> {
        self.put(to, &read(&root().join(from))?, 0o644).map(|_| ())
    }

    /// The programs, without what only debuggers read.
    fn programs(&self, build: Build) -> Result<Needed, Failure> {
        let mut packages = BTreeSet::new();
        let mut libc = (0, 0);
        for (name, folder) in self.package.programs {
            let built = read(&target().join(build.name()).join(name))?;
            let path = self.put(&format!("{folder}/{name}"), &built, 0o755)?;
            succeed(program("strip").args(["--strip-unneeded", "--"]).arg(&path))?;
            self.set_mode(&path, 0o755)?;
            let headers = output(program("objdump").arg("-p").arg(&path))?;
            packages.extend(libraries(&headers)?);
            libc = libc.max(libc_version(&headers));
        }
        packages.insert(format!("libc6 (>= {}.{})", libc.0, libc.1));
        packages.extend(self.package.runs.iter().map(ToString::to_string));
        Ok(Needed { packages })
    }

    /// Units, groups and the default configuration, which is all comment: nothing starts, and
    /// nothing is closed, before somebody has written what the ports are.
    fn services(&self) -> Result<(), Failure> {
        for unit in ["lockgated.service", "lockgate-guard.service"] {
            self.copy(&format!("etc/systemd/{unit}"), &format!("usr/lib/systemd/system/{unit}"))?;
        }
        self.copy("etc/systemd/lockgate.sysusers.conf", "usr/lib/sysusers.d/lockgate.conf")?;
        let example = text(&root().join("etc/lockgate.toml"))?;
        self.put(CONFIGURATION, commented(&example).as_bytes(), 0o644)?;
        Ok(())
    }

    /// Manual pages, completions, documents.
    fn documents(&self, build: Build, epoch: &str) -> Result<(), Failure> {
        let made = self.root.with_file_name("made");
        let lockgate = target().join(build.name()).join("lockgate");
        for what in ["man", "completions"] {
            let mut command = program(&lockgate);
            succeed(command.args(["generate", what]).arg(made.join(what)))?;
        }
        let completions = [
            ("lockgate.bash", "usr/share/bash-completion/completions/lockgate"),
            ("_lockgate", "usr/share/zsh/vendor-completions/_lockgate"),
            ("lockgate.fish", "usr/share/fish/vendor_completions.d/lockgate.fish"),
        ];
        for (from, to) in completions {
            self.put(to, &read(&made.join("completions").join(from))?, 0o644)?;
        }
        for page in files(&made.join("man"))? {
            let name = page.file_name().expect("a file").to_string_lossy().into_owned();
            self.manual(&name, &text(&page)?)?;
        }
        let day =
            output(program("date").args(["--utc", "+%F", "--date"]).arg(format!("@{epoch}")))?;
        for page in man::PAGES {
            let markdown = page.markdown(|file| text(&root().join(file)))?;
            self.manual(page.name, &page.roff(day.trim(), &markdown))?;
        }
        for document in DOCUMENTS {
            let name = document.rsplit('/').next().expect("a name");
            self.copy(document, &format!("usr/share/doc/{}/{name}", self.package.name))?;
        }
        for page in files(&root().join("docs/reference"))? {
            let name = page.file_name().expect("a file").to_string_lossy();
            let to = format!("usr/share/doc/{}/reference/{name}", self.package.name);
            self.put(&to, &read(&page)?, 0o644)?;
        }
        for (from, name) in EXAMPLES {
            self.copy(from, &format!("usr/share/doc/lockgate/examples/{name}"))?;
        }
        self.copyright()
    }

    fn copyright(&self) -> Result<(), Failure> {
        let place = format!("usr/share/doc/{}/copyright", self.package.name);
        self.put(&place, COPYRIGHT.as_bytes(), 0o644).map(|_| ())
    }

    /// A manual page, compressed as Debian wants it; `name` is `lockgate-check.1`.
    fn manual(&self, name: &str, roff: &str) -> Result<(), Failure> {
        let section = name.rsplit('.').next().expect("a section");
        let path =
            self.put(&format!("usr/share/man/man{section}/{name}"), roff.as_bytes(), 0o644)?;
        succeed(program("gzip").args(["-9n", "--"]).arg(&path))
    }

    /// Writes what dpkg reads: the package's description, and sums of its files.
    fn control(&self, needed: &Needed) -> Result<(), Failure> {
        let mut bytes = 0;
        let mut sums = String::new();
        for file in files(&self.root)? {
            bytes += fs::metadata(&file).map_err(Failure::read(&file))?.len();
            let name = file.strip_prefix(&self.root).expect("staged below the root");
            if name != Path::new(CONFIGURATION) {
                let sum = output(program("md5sum").arg("--").arg(&file))?;
                let sum = sum.split_whitespace().next().unwrap_or_default();
                sums.push_str(&format!("{sum}  {}\n", name.display()));
            }
        }
        let architecture = output(program("dpkg").arg("--print-architecture"))?;
        let depends: Vec<&str> = needed.packages.iter().map(String::as_str).collect();
        let control = format!(
            "Package: {}\nVersion: {}\nArchitecture: {}\nMaintainer: {}\n\
             Installed-Size: {}\nDepends: {}\n{}Section: net\nPriority: optional\n{}",
            self.package.name,
            version(),
            architecture.trim(),
            maintainer(),
            bytes.div_ceil(1024),
            depends.join(", "),
            self.package.recommends,
            self.package.description,
        );
        self.put("DEBIAN/control", control.as_bytes(), 0o644)?;
        self.put("DEBIAN/md5sums", sums.as_bytes(), 0o644)?;
        Ok(())
    }

    /// The scripts that dpkg runs, and the files that it keeps when they were changed.
    fn scripts(&self) -> Result<(), Failure> {
        self.put("DEBIAN/conffiles", format!("/{CONFIGURATION}\n").as_bytes(), 0o644)?;
        for (script, content) in SCRIPTS {
            self.put(&format!("DEBIAN/{script}"), content.as_bytes(), 0o755)?;
        }
        Ok(())
    }
}

/// The scripts of the gateway's package, by the name that dpkg knows.
const SCRIPTS: &[(&str, &str)] = &[
    ("postinst", include_str!("../debian/postinst")),
    ("prerm", include_str!("../debian/prerm")),
    ("postrm", include_str!("../debian/postrm")),
];

const COPYRIGHT: &str = "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: Lockgate

Files: *
Copyright: the Lockgate developers
License: Apache-2.0
 On Debian systems the text of this licence is in
 /usr/share/common-licenses/Apache-2.0.
Comment: on amd64 the programs contain the cipher library ipsec-mb
 (https://github.com/intel/intel-ipsec-mb): Copyright 2012-2023, Intel
 Corporation, BSD-3-clause.

License: BSD-3-clause
 Redistribution and use in source and binary forms, with or without
 modification, are permitted provided that the following conditions are met:
 .
 * Redistributions of source code must retain the above copyright notice,
   this list of conditions and the following disclaimer.
 * Redistributions in binary form must reproduce the above copyright
   notice, this list of conditions and the following disclaimer in the
   documentation and/or other materials provided with the distribution.
 * Neither the name of Intel Corporation nor the names of its contributors
   may be used to endorse or promote products derived from this software
   without specific prior written permission.
 .
 THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS \"AS IS\"
 AND ANY EXPRESS OR IMPLIED WARRANTIES, INCLUDING, BUT NOT LIMITED TO, THE
 IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A PARTICULAR PURPOSE
 ARE DISCLAIMED. IN NO EVENT SHALL THE COPYRIGHT OWNER OR CONTRIBUTORS BE
 LIABLE FOR ANY DIRECT, INDIRECT, INCIDENTAL, SPECIAL, EXEMPLARY, OR
 CONSEQUENTIAL DAMAGES (INCLUDING, BUT NOT LIMITED TO, PROCUREMENT OF
 SUBSTITUTE GOODS OR SERVICES; LOSS OF USE, DATA, OR PROFITS; OR BUSINESS
 INTERRUPTION) HOWEVER CAUSED AND ON ANY THEORY OF LIABILITY, WHETHER IN
 CONTRACT, STRICT LIABILITY, OR TORT (INCLUDING NEGLIGENCE OR OTHERWISE)
 ARISING IN ANY WAY OUT OF THE USE OF THIS SOFTWARE, EVEN IF ADVISED OF THE
 POSSIBILITY OF SUCH DAMAGE.
";

/// Returns the packager's name and address, from the variables that Debian's own tools read.
fn maintainer() -> String {
    let name = env::var("DEBFULLNAME").unwrap_or_else(|_| "Lockgate developers".into());
    let email = env::var("DEBEMAIL").unwrap_or_else(|_| "developers@lockgate.invalid".into());
    format!("{name} <{email}>")
}

/// Packages with the libraries that a program needs, as `objdump -p` lists them.
fn libraries(headers: &str) -> Result<Vec<String>, Failure> {
    let needed = headers.lines().filter_map(|line| line.trim().strip_prefix("NEEDED"));
    let mut packages = Vec::new();
    for library in needed.map(str::trim) {
        match LIBRARIES.iter().find(|(name, _)| *name == library) {
            Some((_, package)) => packages.extend(package.map(String::from)),
            None => return Err(Failure::Library { library: library.into() }),
        }
    }
    Ok(packages)
}

/// The newest version of the C library that a program asks for.
fn libc_version(headers: &str) -> (u32, u32) {
    let versions = headers.split_whitespace().filter_map(|word| word.strip_prefix("GLIBC_"));
    let numbers = versions.filter_map(|version| {
        let mut numbers = version.split('.').map(str::parse::<u32>);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    });
    numbers.max().unwrap_or_default()
}

/// The example as a file that says nothing yet.
fn commented(example: &str) -> String {
    let mut text = String::from(
        "# Nothing is configured: lockgated does not start, and no port is closed, before this\n\
         # file says what the ports are. What follows is an example; lockgate.toml(5) has every\n\
         # key. Then:\n\
         #   lockgate check /etc/lockgate/lockgate.toml\n\
         #   systemctl enable --now lockgated\n\n",
    );
    for line in example.lines() {
        text.push_str(if line.is_empty() { "" } else { "#" });
        text.push_str(line);
        text.push('\n');
    }
    text
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(Failure::read(path))
}

fn text(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(Failure::read(path))
}

/// All files below a folder, sorted.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(Failure::read(&folder))? {
            let path = entry.map_err(Failure::read(&folder))?.path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADERS: &str = "
  NEEDED               libelf.so.1
  NEEDED               libc.so.6
  required from libc.so.6:
    0x09691a75 0x00 04 GLIBC_2.2.5
    0x069691b4 0x00 03 GLIBC_2.34
    0x0d696917 0x00 02 GLIBC_2.7
";

    #[test]
    fn libraries_become_the_packages_that_bring_them() {
        assert_eq!(libraries(HEADERS).unwrap(), ["libelf1"]);
        assert_eq!(libc_version(HEADERS), (2, 34));
        let unknown = libraries("  NEEDED               libxdp.so.1\n").unwrap_err().to_string();
        assert!(unknown.contains("libxdp.so.1"), "{unknown}");
    }

    #[test]
    fn the_default_configuration_says_nothing_and_keeps_the_whole_example() {
        let example = text(&root().join("etc/lockgate.toml")).unwrap();
        let shipped = commented(&example);
        assert!(shipped.lines().all(|line| line.is_empty() || line.starts_with('#')));
        let lines: Vec<&str> = shipped.lines().skip(6).collect();
        let again: Vec<&str> =
            lines.iter().map(|line| line.strip_prefix('#').unwrap_or(line)).collect();
        assert_eq!(again.join("\n").trim(), example.trim());
    }
}
