//! `init`, the real binary without a terminal.

mod common;

use std::os::unix::fs::PermissionsExt;

use common::Place;
use serde_json::Value;

/// Every question answered by an option.
const ALL: &[&str] = &[
    "init",
    "--name",
    "gw-a",
    "--lan",
    "lan-x",
    "--network",
    "10.1.0.0/16,2001:db8:1::/48",
    "--wan",
    "wan-x",
    "--address",
    "192.0.2.1",
    "--peer",
    "berlin",
    "--peer-address",
    "198.51.100.7",
    "--peer-network",
    "10.2.0.0/16",
    "--peer-network",
    "2001:db8:2::/48",
];

/// The options of [`ALL`] but those of one name, which get another value or none.
fn but<'a>(option: &str, value: Option<&'a str>) -> Vec<&'a str> {
    let mut words = vec!["init"];
    for pair in ALL[1..].chunks(2) {
        match (pair[0] == option, value) {
            (false, _) => words.extend(pair),
            (true, Some(value)) if !words.contains(&pair[0]) => words.extend([pair[0], value]),
            (true, _) => {}
        }
    }
    words
}

#[test]
fn both_gateways_files_pass_check_and_protect_both_directions() {
    let place = Place::empty();
    let says = place.succeeds(ALL);
    for words in [
        "scp gw-a-berlin/berlin-gw-a.keys root@198.51.100.7:/etc/lockgate/",
        "lockgate check /etc/lockgate/lockgate.toml",
        "systemctl enable --now lockgated",
        "ping 10.2.0.10",
    ] {
        assert!(says.contains(words), "{words}: {says}");
    }
    let tree = place.tree("gw-a-berlin");
    let modes: Vec<(String, u32)> = tree[1..]
        .iter()
        .map(|(path, mode)| (path.file_name().unwrap().to_str().unwrap().to_owned(), *mode))
        .collect();
    assert_eq!(tree[0].1, 0o700);
    for (name, mode) in [("gw-a-berlin.keys", 0o600), ("berlin-gw-a.keys", 0o600)] {
        assert!(modes.contains(&(name.to_owned(), mode)), "{modes:?}");
    }
    assert_eq!(modes.len(), 4, "{modes:?}");
    let secrets = place.text("gw-a-berlin/gw-a-berlin.keys");
    for line in secrets.lines().filter(|line| !line.starts_with('#')) {
        assert!(!says.contains(line.split(' ').nth(2).unwrap()));
    }
    for (file, from, to) in
        [("gw-a.toml", "10.1.0.10", "10.2.0.10"), ("berlin.toml", "2001:db8:2::a", "2001:db8:1::a")]
    {
        let path = format!("gw-a-berlin/{file}");
        let checked = place.json(&["check", &path]);
        let warnings = checked["problems"].as_array().unwrap();
        assert!(warnings.is_empty(), "{checked}");
        let end = |address: &str, port| match address.contains(':') {
            true => format!("[{address}]:{port}"),
            false => format!("{address}:{port}"),
        };
        let (own, far) = (end(from, 1), end(to, 2));
        let flow = ["explain", "--config", &path, "--in", "lan", "udp", &own, &far];
        assert!(place.succeeds(&flow).contains("PROTECT"), "{file}");
    }
}

#[test]
fn the_guesses_about_the_peer_are_marked_until_they_are_answers() {
    let place = Place::empty();
    place.succeeds(ALL);
    assert_eq!(place.text("gw-a-berlin/berlin.toml").matches("# A guess").count(), 2);
    assert_eq!(place.text("gw-a-berlin/gw-a.toml").matches("# A guess").count(), 0);
    let named = ["--peer-lan", "enp1s0", "--peer-wan", "enp2s0", "--out-dir", "deep/down"];
    let says = place.succeeds(&[ALL, &named].concat());
    let text = place.text("deep/down/berlin.toml");
    assert!(!text.contains("# A guess") && !says.contains("guesses"), "{text}{says}");
    assert!(text.contains("netdev = \"enp1s0\"") && text.contains("netdev = \"enp2s0\""));
}

#[test]
fn every_suite_makes_files_that_check() {
    let place = Place::empty();
    for suite in ["aes-256-gcm", "chacha20-poly1305", "aes-256-cbc-hmac-sha-512", "null"] {
        place.succeeds(&[ALL, &["--suite", suite, "--out-dir", suite]].concat());
        place.json(&["check", &format!("{suite}/berlin.toml")]);
    }
}

#[test]
fn nothing_is_replaced_and_nothing_half_is_left() {
    let place = Place::empty();
    place.succeeds(ALL);
    let before = place.text("gw-a-berlin/gw-a-berlin.keys");
    place.fails(1, ALL, &["gw-a-berlin: is there already", "name another directory"]);
    assert_eq!(place.text("gw-a-berlin/gw-a-berlin.keys"), before);
    // The last of the four files is in the way.
    std::fs::create_dir(place.file("mine")).unwrap();
    let closed = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(place.file("mine"), closed).unwrap();
    place.write("mine/berlin-gw-a.keys", "kept");
    place.fails(1, &[ALL, &["--out-dir", "mine"]].concat(), &["mine/berlin-gw-a.keys"]);
    assert_eq!(place.tree("mine").len(), 2);
    assert_eq!(place.text("mine/berlin-gw-a.keys"), "kept");
}

#[test]
fn a_directory_that_others_can_write_to_gets_no_keys() {
    let place = Place::empty();
    std::fs::create_dir(place.file("open")).unwrap();
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(place.file("open"), open).unwrap();
    place.fails(1, &[ALL, &["--out-dir", "open"]].concat(), &["open"]);
    assert_eq!(place.tree("open").len(), 1);
}

#[test]
fn without_a_terminal_all_that_is_missing_is_named_at_once() {
    let place = Place::empty();
    place.fails(2, &["init"], &["--lan, --network, --wan, --peer-address, --peer-network"]);
    place.fails(2, &but("--peer-network", None), &["give --peer-network too"]);
    place.fails(2, &but("--address", None), &["give --address too"]);
    assert_eq!(place.names(), [""; 0]);
}

#[test]
fn answers_that_cannot_be_used_are_refused_by_their_option() {
    let place = Place::empty();
    for (option, value, words) in [
        ("--name", "a b", "cannot be the name of a gateway"),
        ("--name", "berlin", "need names that differ"),
        ("--lan", "wan-x", "two interfaces"),
        ("--network", "10.1.0.1/16", "the network is 10.1.0.0/16"),
        ("--network", "10.1.0.0/16", "no IPv6 network"),
        ("--address", "fe80::1::", "is not an IP address"),
        ("--peer-address", "2001:db8::7", "different families"),
        ("--peer-address", "10.2.0.1", "is inside 10.2.0.0/16"),
        ("--peer-network", "10.1.4.0/24", "overlaps 10.1.0.0/16"),
    ] {
        place.fails(2, &but(option, Some(value)), &["--", words]);
    }
    assert_eq!(place.names(), [""; 0]);
}

#[test]
fn json_names_the_files() {
    let place = Place::empty();
    let answer = place.json(ALL);
    assert_eq!(answer["gateway"]["file"], Value::from("gw-a-berlin/gw-a.toml"));
    assert_eq!(answer["peer"]["keys"], Value::from("gw-a-berlin/berlin-gw-a.keys"));
}
