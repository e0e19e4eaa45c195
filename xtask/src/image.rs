//! The folder that an image is made of, and a trial of what its Dockerfile says.
//!
//! The Dockerfile begins with a Debian root made by debootstrap, so that nothing is fetched but
//! Debian's packages. Where no program for containers runs, the trial reads the Dockerfile itself
//! and does its steps by chroot and unshare.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::clean::{CleanRoot, Made, Script};
use crate::deb::{self, Build};
use crate::release::Release;
use crate::runs::{Counts, Outcome};
use crate::{Failure, program, root, succeed, target_directory};

const DOCKERFILE: &str = "etc/image/Dockerfile";
/// Programs that build images, the first that runs is taken.
const BUILDERS: [&str; 2] = ["docker", "podman"];
/// Name of the image of a trial.
const TRIAL: &str = "lockgate-trial";

/// Makes the folder `target/image`, with programs for use.
pub(crate) fn make() -> Result<(), Failure> {
    let clean = match CleanRoot::make(Release::of_this_machine())? {
        Made::Root(clean) => clean,
        Made::None(lack) => return Err(Failure::Image { what: lack.to_string() }),
    };
    let folder = target_directory().join("image");
    context(&folder, &clean, Build::Release)?;
    println!("image: docker build -t lockgate {}", folder.display());
    Ok(())
}

/// Builds an image with debug programs, and starts and removes it.
pub(crate) fn check() -> Result<Outcome, Failure> {
    let clean = match CleanRoot::make(Release::of_this_machine())? {
        Made::Root(clean) => clean,
        Made::None(lack) => return Ok(lack.skipped()),
    };
    let folder = clean.folder().join("context");
    context(&folder, &clean, Build::Debug)?;
    if let Some(builder) = BUILDERS.into_iter().find(|builder| runs(builder)) {
        println!("image: built by {builder}");
        return built_by(builder, &folder);
    }
    println!(
        "image: no docker or podman runs here: chroot and unshare do what the Dockerfile says"
    );
    let text = fs::read_to_string(root().join(DOCKERFILE)).map_err(Failure::read(&folder))?;
    let steps = folder.join("steps");
    fs::write(&steps, script(&text)?).map_err(Failure::write(&steps))?;
    clean.run(Script::IMAGE, &[&folder])
}

/// Returns whether the program is there and can build, which asks for its daemon.
fn runs(builder: &str) -> bool {
    let mut command = program(builder);
    command.arg("info").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Builds, starts and removes the image with a program for containers.
fn built_by(builder: &str, folder: &Path) -> Result<Outcome, Failure> {
    let mut counts = Counts::default();
    succeed(program(builder).args(["build", "--quiet", "--tag", TRIAL]).arg(folder))?;
    counts.add_passed();
    let version = ["run", "--rm", "--network", "none", "--entrypoint", "lockgate", TRIAL];
    let ran = succeed(program(builder).args(version).arg("--version"));
    // The image goes whatever became of it.
    succeed(program(builder).args(["image", "rm", "--force", TRIAL]))?;
    ran?;
    counts.add_passed();
    Ok(Outcome::Passed(counts))
}

/// Writes the folder: the Dockerfile, the root, the package.
fn context(folder: &Path, clean: &CleanRoot, build: Build) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(Failure::write(folder))?;
    let packed = deb::build(build)?;
    for (from, name) in
        [(root().join(DOCKERFILE), "Dockerfile"), (absolute(packed.gateway()), "lockgate.deb")]
    {
        fs::copy(&from, folder.join(name)).map_err(Failure::read(&from))?;
    }
    let mut tar = program("tar");
    tar.arg("-C").arg(clean.folder().join("clean")).args(["--one-file-system", "--exclude"]);
    tar.arg("./var/cache/apt/archives/*.deb").arg("-cf").arg(folder.join("root.tar")).arg(".");
    succeed(&mut tar)
}

fn absolute(file: &Path) -> PathBuf {
    root().join(file)
}

/// Returns a Dockerfile's steps as a shell script, whose functions `xtask/clean/image.sh` has.
///
/// # Errors
/// [`Failure::Image`] for an instruction that the trial does not know.
fn script(dockerfile: &str) -> Result<String, Failure> {
    let mut script = format!("capabilities {}\n", capabilities(dockerfile).join(" "));
    let lines = dockerfile.lines().filter(|line| !line.starts_with('#'));
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    for line in joined.lines().filter(|line| !line.is_empty()) {
        let unknown =
            || Failure::Image { what: format!("cannot do what {DOCKERFILE} says: {line}") };
        let (instruction, rest) = line.split_once(' ').ok_or_else(unknown)?;
        let words = || rest.split_whitespace().map(quoted).collect::<Vec<_>>().join(" ");
        match instruction {
            "FROM" if rest == "scratch" => {}
            "ADD" => script.push_str(&format!("add {}\n", words())),
            "COPY" => script.push_str(&format!("copy {}\n", words())),
            "RUN" => script.push_str(&format!("run {}\n", quoted(rest))),
            "ENV" => script.push_str(&format!("export {}\n", words())),
            "ENTRYPOINT" | "CMD" => {
                let list: Vec<String> = serde_json::from_str(rest).map_err(|_| unknown())?;
                let list: Vec<String> = list.iter().map(|word| quoted(word)).collect();
                let function = instruction.to_lowercase();
                script.push_str(&format!("{function} {}\n", list.join(" ")));
            }
            // For the program that runs containers.
            "VOLUME" | "STOPSIGNAL" | "HEALTHCHECK" => {}
            _ => return Err(unknown()),
        }
    }
    Ok(script)
}

/// Returns the capabilities that the comment of a Dockerfile adds, in small letters.
fn capabilities(dockerfile: &str) -> Vec<String> {
    let command = dockerfile.split("docker run -d").nth(1).unwrap_or_default();
    let command = command.split("docker exec").next().unwrap_or_default();
    let words = command.split("--cap-add ").skip(1);
    words.filter_map(|text| text.split_whitespace().next()).map(str::to_lowercase).collect()
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dockerfile_becomes_steps_of_a_script() {
        let text = "# docker run -d --cap-add NET_ADMIN \\\n#   --cap-add BPF x\n# docker exec\n\
                    FROM scratch\nADD a.tar /\nRUN one \\\n    && say 'two'\nSTOPSIGNAL SIGTERM\n\
                    ENV A=1\nCMD [\"--config\", \"/a b\"]\n";
        assert_eq!(
            script(text).unwrap(),
            "capabilities net_admin bpf\nadd 'a.tar' '/'\n\
             run 'one      && say '\\''two'\\'''\nexport 'A=1'\ncmd '--config' '/a b'\n"
        );
        for bad in ["FROM debian:12\n", "SHELL [\"x\"]\n", "CMD daemon\n"] {
            let refused = script(bad).unwrap_err().to_string();
            assert!(refused.contains(bad.trim()), "{refused}");
        }
    }

    #[test]
    fn the_dockerfile_needs_no_image_and_names_the_units_capabilities() {
        let text = fs::read_to_string(root().join(DOCKERFILE)).unwrap();
        let script = script(&text).unwrap();
        assert!(script.contains("add 'root.tar' '/'\n") && script.contains("\nentrypoint "));
        let unit = fs::read_to_string(root().join("etc/systemd/lockgated.service")).unwrap();
        let line = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
        let mut of_unit: Vec<String> = line
            .unwrap()
            .to_lowercase()
            .replace("cap_", "")
            .split(' ')
            .map(str::to_owned)
            .collect();
        let mut named = capabilities(&text);
        of_unit.sort();
        named.sort();
        assert_eq!(named, of_unit);
    }
}
