//! The real program.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// Runs the program in a folder.
fn run(folder: &TempDir, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockgate-demo"));
    command.args(args).current_dir(folder.path()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Runs the program, which must end with `code` and say `words` on standard error, and nothing on
/// standard output.
fn fails(folder: &TempDir, code: i32, args: &[&str], words: &[&str]) {
    let ran = run(folder, args);
    let (out, told) = (text(&ran.stdout), text(&ran.stderr));
    assert_eq!((ran.status.code(), out), (Some(code), ""), "{args:?}: {told}");
    for word in words {
        assert!(told.contains(word), "{args:?}: no {word:?} in: {told}");
    }
}

/// A folder and everything in it.
fn tree(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![folder.to_owned()];
    if folder.is_dir() {
        let entries = std::fs::read_dir(folder).unwrap();
        found.extend(entries.flat_map(|entry| tree(&entry.unwrap().path())));
    }
    found
}

#[test]
fn the_demonstration_holds() {
    let place = tempfile::tempdir().unwrap();
    let ran = run(&place, &["replay", "--keep", "kept", "--json"]);
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    let json: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!((&json["demo"], &json["ok"]), (&"replay".into(), &true.into()));
    let checks = json["checks"].as_array().unwrap();
    assert!(checks.len() >= 10 && checks.iter().all(|check| check["ok"] == true), "{json}");
    assert_eq!((&json["wire"]["clear"], &json["ledger_imbalance"]), (&0.into(), &0.into()));
    assert!(json["wire"]["esp"].as_u64().unwrap() > 300);
    assert_eq!(json["drops"]["selector_mismatch"], 20);
    let kept = place.path().join("kept");
    assert!(kept.join("round-0/hub.wan.pcap").exists());
    for path in tree(&kept) {
        let wanted = if path.is_dir() { 0o700 } else { 0o600 };
        let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, wanted, "{}", path.display());
    }
    fails(&place, 2, &["--keep", "kept"], &["kept", "not empty"]);
}

#[test]
fn the_demonstration_stays_out_of_directories_that_others_can_write_to() {
    let place = tempfile::tempdir().unwrap();
    let file = |name: &str| place.path().join(name);
    std::fs::create_dir(file("real")).unwrap();
    symlink("real", file("link")).unwrap();
    std::fs::write(file("file"), "").unwrap();
    for mode in [0o770, 0o702, 0o1777] {
        std::fs::create_dir(file("open")).unwrap();
        std::fs::set_permissions(file("open"), PermissionsExt::from_mode(mode)).unwrap();
        fails(&place, 2, &["--keep", "open"], &["open", "only we can write to"]);
        std::fs::remove_dir(file("open")).unwrap();
    }
    for name in ["link", "file"] {
        fails(&place, 2, &["--keep", name], &[name, "only we can write to"]);
    }
    fails(&place, 1, &["--keep", "no/such"], &["no/such"]);
    std::fs::create_dir(file("foreign")).unwrap();
    match chown(file("foreign"), Some(12345), None) {
        Ok(()) => fails(&place, 2, &["--keep", "foreign"], &["only we can write to"]),
        Err(_) => eprintln!("SKIPPED: giving a directory away needs root"),
    }
}

#[test]
fn help_shows_the_command_that_people_type() {
    let place = tempfile::tempdir().unwrap();
    for args in
        [&["--help"][..], &["gateways", "--help"], &["acl", "--help"], &["overlay", "--help"]]
    {
        let ran = run(&place, args);
        let help = text(&ran.stdout);
        assert_eq!(ran.status.code(), Some(0), "{args:?}");
        assert!(help.contains("Usage: lockgate demo ") && !help.contains("--socket"), "{help}");
    }
    let told = run(&place, &["--version"]);
    assert!(text(&told.stdout).contains(env!("CARGO_PKG_VERSION")), "{told:?}");
}

#[test]
fn with_json_a_mistake_is_one_object_on_standard_output() {
    let place = tempfile::tempdir().unwrap();
    for args in [
        &["replya", "--json"][..],
        &["gateways", "--keep", "x", "--json"],
        &["acl", "--peer", "wireguard-go=x", "--json"],
        &["gateways", "--scenes", "5", "--json"],
        &["overlay", "--scenes", "5", "--json"],
        &["acl", "--scenes", "0", "--json"],
        &["acl", "--scenes", "15", "--json"],
    ] {
        let ran = run(&place, args);
        assert_eq!((ran.status.code(), text(&ran.stderr)), (Some(2), ""), "{args:?}");
        let answer: Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert_eq!(answer["error"]["exit_code"], 2);
    }
}
