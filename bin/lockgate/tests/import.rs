//! `import`, the real binary.

mod common;

use std::os::unix::fs::PermissionsExt;

use common::Place;

const STATES: &str = include_str!("../../../crates/import/tests/data/states.dump");
const POLICIES: &str = include_str!("../../../crates/import/tests/data/policies.dump");
const VPP: &str = include_str!("../../../crates/import/tests/data/ipsec.vpp");
const SWANCTL: &str = include_str!("../../../crates/import/tests/data/swanctl.conf");
/// A part of each key of the dumps.
const KEYS: [&str; 2] = ["05060708090a0b", "25262728292a2b"];

fn place() -> Place {
    let place = Place::empty();
    place.write("states", STATES);
    place.write("policies", POLICIES);
    place.write("vpp", VPP);
    place
}

#[test]
fn dumps_become_files_that_check_and_explain() {
    let place = place();
    let words = [
        "import", "xfrm", "--state", "states", "--policy", "policies", "--output", "gw.toml",
        "--keys", "gw.keys", "--name", "gw-a", "--lan", "eth1",
    ];
    let ran = place.run(&words);
    assert_eq!(ran.code(), 0, "{}", ran.err());
    assert!(ran.err().contains("policies:2:2: refused: socket: "), "{}", ran.err());
    let mode = std::fs::metadata(place.file("gw.keys")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    for key in KEYS {
        assert!(place.text("gw.keys").contains(key));
        for told in [ran.out(), ran.err(), place.text("gw.toml")] {
            assert!(!told.contains(key), "{told}");
        }
    }
    let checked = place.json(&["check", "gw.toml"]);
    assert!(checked["problems"].as_array().unwrap().is_empty(), "{checked}");
    let flow = ["explain", "--config", "gw.toml", "--in", "lan", "udp", "10.1.0.1:1", "10.2.0.1:2"];
    let explained = place.run(&flow);
    assert!(explained.out().contains("peer-198-51-100-7"), "{}", explained.out());
    // Nothing is replaced, and nothing is left behind by a try.
    place.fails(1, &words, &["gw.keys is there already"]);
    std::fs::remove_file(place.file("gw.keys")).unwrap();
    place.fails(1, &words, &["gw.toml: is there already and is not replaced"]);
    assert!(!place.file("gw.keys").exists());
}

#[test]
fn without_options_the_configuration_goes_to_standard_output_without_keys() {
    let place = place();
    let ran = place.run(&["import", "vpp", "vpp"]);
    assert_eq!(ran.code(), 0, "{}", ran.err());
    assert!(ran.out().starts_with("# Written by `lockgate import vpp` from vpp."));
    assert!(ran.err().contains("keys go into key files only"), "{}", ran.err());
    place.write("out.toml", &ran.out());
    place.fails(1, &["check", "out.toml"], &[]);
    assert!(place.run(&["check", "out.toml"]).err().contains("peer-198-51-100-7.keys"));
    assert_eq!(place.names(), ["out.toml", "policies", "states", "vpp"]);
    for key in KEYS {
        assert!(!ran.out().contains(key) && !ran.err().contains(key));
    }
}

#[test]
fn keys_in_another_directory_are_found_there() {
    let place = place();
    std::fs::create_dir(place.file("keys")).unwrap();
    let modes = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(place.file("keys"), modes).unwrap();
    place.succeeds(&["import", "vpp", "vpp", "--output", "gw.toml", "--keys", "keys/gw.keys"]);
    place.json(&["check", "gw.toml"]);
}

#[test]
fn in_json_all_is_one_answer_and_a_mistake_has_its_place() {
    let place = place();
    let answer = place.json(&["import", "xfrm", "--policy", "policies"]);
    assert_eq!((answer["peers"].as_u64(), answer["policies"].as_u64()), (Some(1), Some(2)));
    assert_eq!(answer["not_taken"][0]["word"], "socket");
    assert_eq!(answer["not_taken"][0]["fate"], "refused");
    assert!(answer["configuration"].as_str().unwrap().contains("[[policy]]"));
    place.write("wrong", "ip xfrm state add src 192.0.2.1 dst 192.0.2.2 spi 999 offload dev a\n");
    let ran = place.run(&["import", "xfrm", "--state", "wrong", "--json"]);
    assert_eq!(ran.code(), 1);
    let told: serde_json::Value = serde_json::from_str(&ran.out()).unwrap();
    let problem = &told["error"]["problems"][0];
    assert_eq!((problem["line"].as_u64(), problem["file"].as_str()), (Some(1), Some("wrong")));
    assert!(problem["help"].as_str().unwrap().contains("dir out"), "{problem}");
    place.fails(
        1,
        &["import", "xfrm", "--state", "wrong"],
        &["wrong:1:", "= help: write `dir in`"],
    );
    let misnamed = ["import", "vpp", "vpp", "--output", "b.toml", "--name", "gw a"];
    let wanted = ["--name: \"gw a\" cannot be a name: 1 to 64 letters"];
    place.fails(2, &misnamed, &wanted);
    let twice = ["import", "vpp", "vpp", "--lan", "eth1", "--wan", "eth1"];
    place.fails(2, &twice, &["--wan: netdev eth1 untagged belongs to another port already"]);
    place.fails(2, &["import", "vpp", "vpp", "--lan", "a/b"], &["--lan: \"a/b\" cannot be"]);
    assert!(!place.file("b.toml").exists());
    place.fails(2, &["import", "xfrm"], &["--state"]);
    place.fails(1, &["import", "vpp", "nowhere"], &["nowhere: error: cannot be read"]);
}

#[test]
fn connections_of_strongswan_become_a_file_that_checks_and_explains() {
    let place = Place::empty();
    place.write("swanctl.conf", SWANCTL);
    let words = ["import", "swanctl", "swanctl.conf", "--output", "gw.toml", "--name", "gw-a"];
    let ran = place.run(&words);
    assert_eq!(ran.code(), 0, "{}", ran.err());
    assert!(ran.out().starts_with("4 peers, 6 policies, keys from charon\n"), "{}", ran.out());
    let places =
        place.text("gw.toml").lines().filter(|line| line.contains("\" # FILL IN:")).count();
    let wanted = format!(
        "gw.toml written; {places} places are to be filled in (FILL IN), then: lockgate check \
         gw.toml\n"
    );
    assert!(places > 2 && ran.out().ends_with(&wanted), "{places}: {}", ran.out());
    assert_eq!(ran.err().matches("gw.toml:").count(), places, "{}", ran.err());
    let wanted = ": fill in: [peer.branch] remote: the address of branch.";
    assert!(ran.err().contains(wanted), "{}", ran.err());
    assert!(ran.err().contains("swanctl.conf:2:1: not taken: include: "), "{}", ran.err());
    assert!(ran.err().contains("lockgate import swanctl FILE conf.d/*.conf"), "{}", ran.err());
    for told in [ran.out(), ran.err(), place.text("gw.toml")] {
        assert!(!told.contains("sesame"), "{told}");
    }
    let checked = place.json(&["check", "gw.toml"]);
    assert_eq!(checked["errors"], 0, "{checked}");
    let flow = ["explain", "--config", "gw.toml", "--in", "lan"];
    for (packet, peer) in [
        (["tcp", "10.1.0.1:1024", "10.2.9.1:443"], "partner-web"),
        (["tcp", "10.1.0.1:1024", "10.2.9.1:80"], "partner-servers"),
        (["udp", "10.1.0.1:1024", "10.4.0.1:53"], "branch"),
    ] {
        let explained = place.run(&[&flow[..], &packet].concat());
        assert!(explained.out().contains(peer), "{packet:?}: {}", explained.out());
    }
    place.fails(2, &["import", "swanctl", "swanctl.conf", "--keys", "x.keys"], &["--keys"]);
    place.write("wrong.conf", "connections {\n gw-b {\n  remote_adr = 192.0.2.1\n } }\n");
    let wanted = ["wrong.conf:3:3: error: `remote_adr`", "did you mean `remote_addrs`?"];
    place.fails(1, &["import", "swanctl", "wrong.conf"], &wanted);
    let answer = place.json(&["import", "swanctl", "swanctl.conf"]);
    assert_eq!((answer["peers"].as_u64(), answer["policies"].as_u64()), (Some(4), Some(6)));
    assert_eq!(answer["not_taken"][0]["word"], "include");
    assert_eq!(answer["to_fill_in"][0]["what"], "its name");
}
