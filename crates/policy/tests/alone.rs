//! The classifier stands alone: no crate that it is built of knows a port, a kernel or a card.

use std::process::Command;

/// Our crates that the classifier may be built of.
const OURS: [&str; 3] = ["cpu", "policy", "wire"];

// HA-01
#[test]
fn the_classifier_is_built_of_nothing_that_knows_a_device() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--offline", "--package", "policy", "--edges", "normal"]);
    cargo.args(["--prefix", "none", "--format", "{p}"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = cargo.output().unwrap();
    let (told, failed) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{failed}");
    // Of our own, cargo says the folder.
    let ours = told.lines().filter(|line| line.contains('/'));
    let mut ours: Vec<&str> = ours.filter_map(|line| line.split(' ').next()).collect();
    ours.sort_unstable();
    ours.dedup();
    assert_eq!(ours, OURS, "{told}");
    let devices = ["libbpf", "netlink", "aya", "rustix", "nix "];
    let is_one = |line: &&str| devices.iter().any(|device| line.starts_with(device));
    assert_eq!(told.lines().find(is_one), None, "{told}");
}
