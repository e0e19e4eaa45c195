//! The example of two gateways (`etc/example`): as it stands, interrupted, and on machines that
//! lack something. Its namespaces have names in a folder that only the test sees.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use net::{AGAIN, lacks_a_feature};
use netlab::{LabError, Programs, programs};

/// Runs the script in place of the shell; its namespaces have their names in folder `$1`.
const RUN: &str = r#"mount --bind "$1" /run && mkdir -p /run/netns && exec sh "$0""#;

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../etc/example/two-gateways.sh")
}

/// A folder that holds Lockgate's programs alone.
fn folder_of_programs(folder: &Path) -> Result<PathBuf, LabError> {
    let found = Programs::find()?;
    let bin = folder.join("bin");
    std::fs::create_dir(&bin).unwrap();
    for (name, file) in [("lockgate", found.lockgate), ("lockgated", found.lockgated)] {
        std::os::unix::fs::symlink(file.canonicalize().unwrap(), bin.join(name)).unwrap();
    }
    Ok(bin)
}

/// The script, in namespaces of its own and with empty folders for its files and names.
struct Example {
    child: Child,
    files: PathBuf,
    run: PathBuf,
}

impl Example {
    fn start(folder: &Path, path: &str) -> Example {
        let [files, run] = ["files", "run"].map(|name| folder.join(name));
        [&files, &run].iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
        // What is started in the background ignores SIGINT, and a shell cannot change that.
        let mut command = Command::new("env");
        command.args([
            "--default-signal=INT",
            "unshare",
            "--mount",
            "--net",
            "--propagation",
            "private",
            "sh",
            "-c",
            RUN,
        ]);
        command.arg(script()).arg(&run).env("TMPDIR", &files).env("PATH", path);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.process_group(0).spawn().unwrap();
        Example { child, files, run }
    }

    /// Interrupts all its processes, as Ctrl-C at a terminal does.
    fn interrupt(&self) {
        let group = format!("-{}", self.child.id());
        assert!(Command::new("kill").args(["-INT", "--", &group]).status().unwrap().success());
    }

    /// Waits for its end. Returns its exit code and what it said; nothing of it may be left.
    fn ended(self) -> (Option<i32>, String) {
        let output = self.child.wait_with_output().unwrap();
        let said = said(&output);
        let names = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().count();
        assert_eq!(names(&self.files), 0, "files are left\n{said}");
        assert_eq!(names(&self.run.join("netns")), 0, "namespaces are left\n{said}");
        assert_eq!(processes_about(&self.files), [""; 0], "processes are left\n{said}");
        (output.status.code(), said)
    }
}

/// Command lines of processes that name a folder.
fn processes_about(folder: &Path) -> Vec<String> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(&*folder.to_string_lossy())).collect()
}

/// Returns what a script said, on both streams.
fn said(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    format!("{out}{err}")
}

/// Returns the search path, with Lockgate's programs first; says loudly if this cannot run here.
fn search_path(test: &str, folder: &Path) -> Option<String> {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| {
        use std::os::unix::fs::MetadataExt;
        own.uid() == 0
    });
    let lacking = match (is_root, programs::check(), folder_of_programs(folder)) {
        (false, _, _) => LabError::NotRoot,
        (_, Err(error), _) | (_, _, Err(error)) => error,
        (_, _, Ok(bin)) => {
            let usual = "/usr/sbin:/usr/bin:/sbin:/bin";
            return Some(format!("{}:{usual}", bin.display()));
        }
    };
    println!("SKIPPED: {test}: {lacking}");
    None
}

#[test]
fn the_example_sends_through_esp_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let Some(path) = search_path("example", folder.path()) else { return };
    let (code, said) = Example::start(folder.path(), &path).ended();
    if lacks_a_feature(&said) {
        return println!("SKIPPED: example: {}", said.trim().replace('\n', " | "));
    }
    assert!(code == Some(0) && said.contains("two-gateways: done\n"), "{said}");
    assert!(said.contains("packets of ESP, 0 others"), "{said}");
}

#[test]
fn an_interrupted_example_takes_everything_away() {
    let folder = tempfile::tempdir().unwrap();
    let Some(path) = search_path("example, interrupted", folder.path()) else { return };
    let example = Example::start(folder.path(), &path);
    let begun = || {
        let mut folders = std::fs::read_dir(&example.files).unwrap().flatten();
        folders.any(|folder| folder.path().join("gw-b/log").exists())
    };
    let end = Instant::now() + AGAIN;
    while !begun() {
        assert!(Instant::now() < end, "no daemon was started");
        std::thread::sleep(Duration::from_millis(20));
    }
    example.interrupt();
    let (code, said) = example.ended();
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("two-gateways: interrupted\n"), "{said}");
}

#[test]
fn a_machine_that_lacks_a_program_is_told_which() {
    let folder = tempfile::tempdir().unwrap();
    let Some(path) = search_path("example, lacking", folder.path()) else { return };
    std::fs::remove_file(folder.path().join("bin/lockgated")).unwrap();
    let (code, said) = Example::start(folder.path(), &path).ended();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("two-gateways: lockgated is not in PATH\n"), "{said}");
}
