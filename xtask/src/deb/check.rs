//! Tries the packages: built with debug programs, taken apart, and (as root) installed, removed and
//! purged in a copy of this machine's files that nothing else sees.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use super::trial::{Trial, broken, holds, unpacked};
use super::{Build, CONFIGURATION, GATEWAY, Packed, TOOLS, build, files, pack, target, text};
use crate::setup::is_there;
use crate::{Failure, output, program, root, succeed};

/// Files that the package of tools must hold.
const EXPECTED_TOOLS: &[&str] = &[
    "usr/libexec/lockgate/lockgate-bench",
    "usr/libexec/lockgate/lockgate-demo",
    "usr/share/doc/lockgate-tools/copyright",
];
/// Files that the gateway's package must hold.
const EXPECTED: &[&str] = &[
    "usr/bin/lockgate",
    "usr/sbin/lockgated",
    CONFIGURATION,
    "usr/lib/systemd/system/lockgated.service",
    "usr/lib/systemd/system/lockgate-guard.service",
    "usr/lib/sysusers.d/lockgate.conf",
    "usr/share/bash-completion/completions/lockgate",
    "usr/share/zsh/vendor-completions/_lockgate",
    "usr/share/fish/vendor_completions.d/lockgate.fish",
    "usr/share/man/man1/lockgate.1.gz",
    "usr/share/man/man1/lockgate-show.1.gz",
    "usr/share/man/man5/lockgate.toml.5.gz",
    "usr/share/man/man8/lockgated.8.gz",
    "usr/share/doc/lockgate/OPERATION.md",
    "usr/share/doc/lockgate/LIMITS.md",
    "usr/share/doc/lockgate/reference/events.md",
    "usr/share/doc/lockgate/copyright",
    "usr/share/doc/lockgate/examples/lockgate.toml",
    "usr/share/doc/lockgate/examples/grafana-lockgate.json",
    "usr/share/doc/lockgate/examples/prometheus-lockgate.rules.yml",
    "usr/share/doc/lockgate/examples/two-gateways.sh",
];

/// Builds the package with debug programs and tries it.
pub(crate) fn check() -> Result<(), Failure> {
    let packed = build(Build::Debug)?;
    let mut trial = Trial::default();
    let unpacked = unpacked(&packed.gateway, "unpacked")?;
    contents(&mut trial, &packed.gateway, &unpacked)?;
    tools(&mut trial, &packed.tools)?;
    same_again(&mut trial)?;
    pages(&mut trial, &unpacked)?;
    completions(&mut trial, &unpacked)?;
    units(&mut trial, &unpacked)?;
    install(&mut trial, &packed)?;
    super::plugin::check(&mut trial)?;
    // As the table of `cargo xtask test` reads it.
    println!("{} passed, 0 failed, {} skipped", trial.passed(), trial.skipped());
    Ok(())
}

/// Fails unless a program says its version.
fn says_its_version(program_file: &Path) -> Result<(), Failure> {
    let told = output(program(program_file).arg("--version"))?;
    match told.contains(env!("CARGO_PKG_VERSION")) {
        true => Ok(()),
        false => Err(broken(format!("{} says that it is {told}", program_file.display()))),
    }
}

fn tools(trial: &mut Trial, package: &Path) -> Result<(), Failure> {
    let unpacked = unpacked(package, "unpacked-tools")?;
    holds(package, &unpacked, EXPECTED_TOOLS)?;
    for (name, folder) in TOOLS.programs {
        says_its_version(&unpacked.join(folder).join(name))?;
    }
    let control = output(program("dpkg-deb").arg("-f").arg(package))?;
    let depends = format!("{} (= {})", GATEWAY.name, env!("CARGO_PKG_VERSION"));
    if !control.contains(&depends) {
        return Err(broken(format!("the tools do not depend on {depends}")));
    }
    trial.pass("the package of tools holds both programs, of the gateway's version");
    Ok(())
}

fn contents(trial: &mut Trial, package: &Path, unpacked: &Path) -> Result<(), Failure> {
    holds(package, unpacked, EXPECTED)?;
    trial.pass("every file is in the package, and root's");
    for name in ["usr/bin/lockgate", "usr/sbin/lockgated"] {
        says_its_version(&unpacked.join(name))?;
    }
    trial.pass("both programs say their version");
    for script in ["postinst", "prerm", "postrm"] {
        succeed(program("sh").arg("-n").arg(root().join("xtask/debian").join(script)))?;
    }
    trial.pass("the scripts are shell");
    let mut check = program(unpacked.join("usr/bin/lockgate"));
    check.arg("check").arg(unpacked.join(CONFIGURATION)).stderr(Stdio::null());
    if check.stdout(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return Err(broken("the default configuration configures something"));
    }
    trial.pass("the default configuration starts nothing");
    Ok(())
}

fn same_again(trial: &mut Trial) -> Result<(), Failure> {
    // Not that of the last commit: it may not be the last any more.
    let pack = || -> Result<[Vec<u8>; 2], Failure> {
        let Packed { gateway, tools } = pack(Build::Debug, "1700000000")?;
        Ok([super::read(&gateway)?, super::read(&tools)?])
    };
    if pack()? != pack()? {
        return Err(broken("packed twice, they are not the same"));
    }
    trial.pass("packed twice, both packages are the same byte for byte");
    Ok(())
}

/// Sections that every manual page has.
const SECTIONS: [&str; 6] = ["NAME", "SYNOPSIS", "EXIT STATUS", "FILES", "EXAMPLES", "SEE ALSO"];

/// Every manual page: its sections, and groff with all warnings, for a terminal with UTF-8 and for
/// one without.
fn pages(trial: &mut Trial, unpacked: &Path) -> Result<(), Failure> {
    let what = "manual pages";
    let pages = files(&unpacked.join("usr/share/man"))?;
    for page in &pages {
        let text = output(program("gzip").args(["-dc", "--"]).arg(page))?;
        let headings: Vec<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix(".SH "))
            .map(|heading| heading.replace('"', ""))
            .collect();
        let is_there = |section: &&str| headings.iter().any(|heading| heading == *section);
        if let Some(section) = SECTIONS.iter().find(|section| !is_there(section)) {
            return Err(broken(format!("{} has no section {section}", page.display())));
        }
    }
    trial.pass(&format!("{} {what} with every section", pages.len()));
    if !is_there("groff") {
        trial.skip(what, "there is no groff");
        return Ok(());
    }
    for (page, device) in pages.iter().flat_map(|page| [(page, "utf8"), (page, "ascii")]) {
        let script = r#"gzip -dc -- "$0" | groff -man -Kutf8 -T"$1" -ww -z 2>&1"#;
        let told = output(program("sh").args(["-c", script]).arg(page).arg(device))?;
        if !told.is_empty() {
            return Err(broken(format!("{}: {told}", page.display())));
        }
    }
    trial.pass(&format!("{} {what} without a warning, with and without UTF-8", pages.len()));
    Ok(())
}

fn completions(trial: &mut Trial, unpacked: &Path) -> Result<(), Failure> {
    for (shell, file) in [
        ("bash", "usr/share/bash-completion/completions/lockgate"),
        ("zsh", "usr/share/zsh/vendor-completions/_lockgate"),
        ("fish", "usr/share/fish/vendor_completions.d/lockgate.fish"),
    ] {
        if is_there(shell) {
            succeed(program(shell).arg("-n").arg(unpacked.join(file)))?;
            trial.pass(&format!("completions are {shell}"));
        } else if !text(&unpacked.join(file))?.contains("lockgate") {
            return Err(broken(format!("{file} completes nothing")));
        } else {
            trial.skip(&format!("syntax of {file}"), &format!("there is no {shell}"));
        }
    }
    Ok(())
}

/// Both units, judged by systemd with the packaged programs in their places.
fn units(trial: &mut Trial, unpacked: &Path) -> Result<(), Failure> {
    let what = "units";
    if !is_there("systemd-analyze") {
        trial.skip(what, "there is no systemd-analyze");
        return Ok(());
    }
    let folder = target().join("debian/units");
    fs::create_dir_all(&folder).map_err(Failure::write(&folder))?;
    let mut command = program("systemd-analyze");
    command.args(["verify", "--man=no", "--recursive-errors=no"]);
    for unit in ["lockgated.service", "lockgate-guard.service"] {
        // The programs are not where the unit will find them.
        let packed = unpacked.join("usr/lib/systemd/system").join(unit);
        let here = text(&packed)?.replace("=/usr/", &format!("={}/usr/", unpacked.display()));
        let path = folder.join(unit);
        fs::write(&path, here).map_err(Failure::write(&path))?;
        command.arg(path);
    }
    let verified = command
        .output()
        .map_err(|error| Failure::Start { program: "systemd-analyze".into(), error })?;
    let told = String::from_utf8_lossy(&verified.stderr);
    let ours = told.lines().find(|line| line.contains("lockgate"));
    match ours {
        Some(line) => Err(broken(line)),
        None => {
            trial.pass("systemd finds nothing wrong with the units");
            Ok(())
        }
    }
}

/// Installs, removes and purges both in an overlay over this machine's files, in a mount namespace
/// that ends with the script.
fn install(trial: &mut Trial, packed: &Packed) -> Result<(), Failure> {
    let what = "installing them";
    let [package, tools] = [&packed.gateway, &packed.tools].map(|package| root().join(package));
    let mut command = program("unshare");
    command.args(["--mount", "--net", "--propagation", "private", "sh", "-c", INSTALL]);
    let tried = command.arg(&package).arg(GATEWAY.name).arg(target().join("debian"));
    let tried = tried.arg(&tools).arg(TOOLS.name).output();
    let tried = tried.map_err(|error| Failure::Start { program: "unshare".into(), error })?;
    let told = format!(
        "{}{}",
        String::from_utf8_lossy(&tried.stdout),
        String::from_utf8_lossy(&tried.stderr)
    );
    match tried.status.code() {
        Some(0) => trial.pass("installed, removed and purged, they leave nothing behind"),
        // `unshare` itself, or the script at the mount, was refused.
        Some(1 | 77) if !told.contains("installed") => {
            trial.skip(what, told.lines().last().unwrap_or("needs root"));
        }
        _ => return Err(broken(told)),
    }
    Ok(())
}

/// `$0` is the gateway's package, `$1` its name, `$2` a folder to work in, `$3` the package of
/// tools, `$4` its name.
const INSTALL: &str = r#"
set -e
mkdir -p "$2/overlay"
mount -t tmpfs none "$2/overlay" || exit 77
cd "$2/overlay"
mkdir upper work root
cp -- "$0" package.deb
cp -- "$3" tools.deb
mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work none root || exit 77
cp package.deb root/package.deb
cp tools.deb root/tools.deb
mount -t proc none root/proc || exit 77
inside() { chroot root env DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
inside dpkg --force-depends -i /package.deb
echo installed
inside lockgate --version
inside lockgated --version
if inside lockgate demo --version; then exit 1; fi
inside dpkg --force-depends -i /tools.deb
inside lockgate demo --version
inside lockgate bench --version
inside dpkg -P "$4"
test ! -e root/usr/libexec/lockgate
inside getent group lockgate lockgate-admin
test "$(inside stat -c %a:%U:%G /etc/lockgate/lockgate.toml)" = 644:root:root
inside mkdir -p /var/lib/lockgate
inside touch /etc/lockgate/gw-a.keys
inside dpkg -r "$1"
test -e root/etc/lockgate/lockgate.toml
test ! -e root/usr/sbin/lockgated
inside dpkg -P "$1"
test ! -e root/var/lib/lockgate
test ! -e root/etc/lockgate/lockgate.toml
test -e root/etc/lockgate/gw-a.keys
"#;
