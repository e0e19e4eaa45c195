//! Mistakes that people make in their first hour, each with the whole message that they see, and
//! that no file, however large or hostile, is answered by more than a screen.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

use config::{ConfigErrors, DiagnosticKind, Severity, load, parse};

/// A configuration without a mistake; each row changes one piece of it.
const GOOD: &str = r#"[node]
name = "gw-a"
[port.lan]
netdev = "eth1"
side = "protected"
[port.wan]
netdev = "eth0"
side = "unprotected"
allow_host = ["udp/500", "icmp"]
[peer.berlin]
local = "192.0.2.1"
remote = "198.51.100.7"
keys = "file:berlin.keys"
manual = "laboratory"
suite = "aes-256-gcm"
esn = true
[[policy]]
name = "net"
peer = "berlin"
local = ["10.1.0.0/16"]
remote = ["10.2.0.0/16"]
ports = ["lan"]
"#;

/// A piece of [`GOOD`], its replacement, and the whole text about the errors.
type Row = (&'static str, &'static str, &'static str);

const ROWS: &[Row] = &[
    (
        "\"icmp\"]",
        "\"icmp\"",
        r#"
gw.toml:9:14: error: this list has no `]`
  |
9 | allow_host = ["udp/500", "icmp"
  |              ^
  |
  = help: close the list: ["…", "…"]
"#,
    ),
    (
        "\"icmp\"]\n",
        "\"icmp\"\n\n# the other end\n",
        r#"
gw.toml:9:14: error: this list has no `]`
  |
9 | allow_host = ["udp/500", "icmp"
  |              ^
  |
  = help: close the list: ["…", "…"]
"#,
    ),
    (
        "ports = [\"lan\"]\n",
        "ports = [\"lan\"",
        r#"
gw.toml:22:9: error: this list has no `]`
   |
22 | ports = ["lan"
   |         ^
   |
   = help: close the list: ["…", "…"]
"#,
    ),
    (
        "\"udp/500\", ",
        "\"udp/500\" ",
        r#"
gw.toml:9:25: error: missing comma between array elements, expected `,`
  |
9 | allow_host = ["udp/500" "icmp"]
  |                         ^
  |
  = help: write a comma between two entries: ["…", "…"]
"#,
    ),
    (
        "\"eth1\"",
        "“eth1”",
        r#"
gw.toml:4:10: error: typographic quote “
  |
4 | netdev = “eth1”
  |          ^
  |
  = help: write the plain quote "
"#,
    ),
    (
        "\"eth1\"",
        "\"eth1”",
        r#"
gw.toml:4:15: error: typographic quote ”
  |
4 | netdev = "eth1”
  |               ^
  |
  = help: write the plain quote "
"#,
    ),
    (
        "\"eth1\"",
        "eth1",
        r#"
gw.toml:4:10: error: string values must be quoted, expected literal string
  |
4 | netdev = eth1
  |          ^^^^
  |
  = help: write it in quotes: "…"
"#,
    ),
    (
        "\"eth1\"",
        "\"eth1",
        r#"
gw.toml:4:15: error: invalid basic string, expected `"`
  |
4 | netdev = "eth1
  |               ^
  |
  = help: close the string with the quote that it begins with, in the same line
"#,
    ),
    (
        "\"198.51.100.7\"",
        "\"vpn.example.com\"",
        r#"
gw.toml:12:10: error: "vpn.example.com" is not an IP address
   |
12 | remote = "vpn.example.com"
   |          ^^^^^^^^^^^^^^^^^
   |
   = help: names are not resolved: write 192.0.2.1 or 2001:db8::1
"#,
    ),
    (
        "\"198.51.100.7\"",
        "\"198.51.100.7/32\"",
        r#"
gw.toml:12:10: error: "198.51.100.7/32" is not an IP address
   |
12 | remote = "198.51.100.7/32"
   |          ^^^^^^^^^^^^^^^^^
   |
   = help: write the address alone: 192.0.2.1 or 2001:db8::1
"#,
    ),
    (
        "\"198.51.100.7\"",
        "\"198.51.100.7:500\"",
        r#"
gw.toml:12:10: error: "198.51.100.7:500" is not an IP address
   |
12 | remote = "198.51.100.7:500"
   |          ^^^^^^^^^^^^^^^^^^
   |
   = help: write the address alone: 192.0.2.1 or 2001:db8::1
"#,
    ),
    (
        "netdev = \"eth1\"",
        "netdev = \"eth1\"\nmac = \"02-00-00-00-00-01\"",
        r#"
gw.toml:5:7: error: "02-00-00-00-00-01" is not a MAC address
  |
5 | mac = "02-00-00-00-00-01"
  |       ^^^^^^^^^^^^^^^^^^^
  |
  = help: write six bytes with colons: 02:00:00:00:00:01
"#,
    ),
    (
        "netdev = \"eth1\"",
        "netdev = \"eth1\"\nmac = \"01:00:5e:00:00:01\"",
        r#"
gw.toml:5:7: error: "01:00:5e:00:00:01" is the MAC address of a group (multicast or broadcast)
  |
5 | mac = "01:00:5e:00:00:01"
  |       ^^^^^^^^^^^^^^^^^^^
  |
  = help: the first byte of one interface's address is even: 02:00:00:00:00:01
"#,
    ),
    (
        "netdev = \"eth1\"",
        "netdev = \"eth1\"\nmac = \"00:00:00:00:00:00\"",
        r#"
gw.toml:5:7: error: "00:00:00:00:00:00" is not the MAC address of an interface
  |
5 | mac = "00:00:00:00:00:00"
  |       ^^^^^^^^^^^^^^^^^^^
  |
  = help: write the interface's own: 02:00:00:00:00:01
"#,
    ),
    (
        "\"eth1\"",
        "\"enx001122334455-branch\"",
        r#"
gw.toml:4:10: error: "enx001122334455-branch" cannot be the name of a netdev
  |
4 | netdev = "enx001122334455-branch"
  |          ^^^^^^^^^^^^^^^^^^^^^^^^
  |
  = help: a netdev's name has at most 15 characters: `ip link` shows it
"#,
    ),
    (
        "\"eth1\"",
        "\"eth 1\"",
        r#"
gw.toml:4:10: error: "eth 1" cannot be the name of a netdev
  |
4 | netdev = "eth 1"
  |          ^^^^^^^
  |
  = help: write it as `ip link` shows it, without `/` or spaces
"#,
    ),
    (
        "local = \"192.0.2.1\"",
        "left = \"192.0.2.1\"",
        r#"
gw.toml:11:1: error: unknown key `left` in [peer.berlin]
   |
11 | left = "192.0.2.1"
   | ^^^^
   |
   = help: did you mean `local`?
"#,
    ),
    (
        "remote = \"198.51.100.7\"",
        "right = \"198.51.100.7\"",
        r#"
gw.toml:12:1: error: unknown key `right` in [peer.berlin]
   |
12 | right = "198.51.100.7"
   | ^^^^^
   |
   = help: did you mean `remote`?
"#,
    ),
    (
        "remote = \"198.51.100.7\"",
        "Endpoint = \"198.51.100.7:51820\"",
        r#"
gw.toml:12:1: error: unknown key `Endpoint` in [peer.berlin]: an address is written without a port
   |
12 | Endpoint = "198.51.100.7:51820"
   | ^^^^^^^^
   |
   = help: write remote = "ADDRESS"; for ESP in UDP also encapsulation = "udp" and remote_port
"#,
    ),
    (
        "keys = \"file:berlin.keys\"",
        "psk = \"correct horse battery\"",
        r#"
gw.toml:13:1: error: unknown key `psk` in [peer.berlin]: keys are not written here
 = help: make a pair of key files with lockgate keygen, and write keys = "file:NAME"
"#,
    ),
    (
        "keys = \"file:berlin.keys\"",
        "PublicKey = \"xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\"",
        r#"
gw.toml:13:1: error: unknown key `PublicKey` in [peer.berlin]: keys are not written here
 = help: make a pair of key files with lockgate keygen, and write keys = "file:NAME"
"#,
    ),
    (
        "esn = true",
        "esn = true\nAllowedIPs = [\"10.2.0.0/16\"]",
        r#"
gw.toml:17:1: error: unknown key `AllowedIPs` in [peer.berlin]: a peer has no networks
   |
17 | AllowedIPs = ["10.2.0.0/16"]
   | ^^^^^^^^^^
   |
   = help: write [[policy]] with peer = "NAME", `local` and `remote` for them
"#,
    ),
    (
        "esn = true",
        "esn = true\nkeyexchange = \"ikev2\"",
        r#"
gw.toml:17:1: error: unknown key `keyexchange` in [peer.berlin]: IKE is not in this version
   |
17 | keyexchange = "ikev2"
   | ^^^^^^^^^^^
   |
   = help: leave it out: a peer has manual keys, for a laboratory
"#,
    ),
    (
        "esn = true",
        "esn = true\nikelifetime = \"8h\"",
        r#"
gw.toml:17:1: error: unknown key `ikelifetime` in [peer.berlin]: IKE is not in this version
   |
17 | ikelifetime = "8h"
   | ^^^^^^^^^^^
   |
   = help: leave it out: a peer has manual keys, for a laboratory
"#,
    ),
    (
        "[port.lan]",
        "[port.\"länd\"]",
        r#"
gw.toml:3:7: error: "länd" cannot be a name
  |
3 | [port."länd"]
  |       ^^^^^^
  |
  = help: 1 to 64 letters, digits, `.`, `_`, `-`; not first `.` or `-`
"#,
    ),
    (
        "[port.lan]",
        "[port.länd]",
        r#"
gw.toml:3:8: error: invalid unquoted key, expected letters, numbers, `-`, `_`
  |
3 | [port.länd]
  |        ^
  |
  = help: letters a to z, digits, `-` and `_`; each line is KEY = VALUE or [SECTION]
"#,
    ),
    (
        "[port.lan]",
        "[prot.lan]",
        r#"
gw.toml:3:2: error: unknown section `prot`
  |
3 | [prot.lan]
  |  ^^^^
  |
  = help: did you mean `port`?
"#,
    ),
    (
        "[peer.berlin]",
        "[peer.\"ber lin\"]",
        r#"
gw.toml:10:7: error: "ber lin" cannot be a name
   |
10 | [peer."ber lin"]
   |       ^^^^^^^^^
   |
   = help: 1 to 64 letters, digits, `.`, `_`, `-`; not first `.` or `-`
"#,
    ),
    (
        "netdev = \"eth1\"",
        "netdv = \"eth1\"",
        r#"
gw.toml:4:1: error: unknown key `netdv` in [port.lan]
  |
4 | netdv = "eth1"
  | ^^^^^
  |
  = help: did you mean `netdev`?
"#,
    ),
];

/// The errors as a person sees them, without the last line.
fn told(mut errors: ConfigErrors) -> String {
    errors.problems.retain(|problem| problem.severity == Severity::Error);
    config::render(&errors.problems)
}

#[test]
fn each_mistake_is_one_message_in_words() {
    for (from, to, expected) in ROWS {
        assert!(GOOD.contains(from), "{from}");
        let errors = parse(&GOOD.replacen(from, to, 1), "gw.toml").expect_err(to);
        assert_eq!(told(errors).trim_end(), expected.trim(), "{to}");
    }
}

/// The warnings about `allow_host` as `check` shows them.
fn meetings(text: &str) -> Vec<String> {
    let parsed = parse(text, "gw.toml").unwrap_or_else(|errors| panic!("{}", told(errors)));
    let is_meeting =
        |mistake: &DiagnosticKind| matches!(mistake, DiagnosticKind::AllowHostMeets { .. });
    let warnings = parsed.warnings.iter().filter(|problem| is_meeting(&problem.mistake));
    warnings.map(ToString::to_string).collect()
}

#[test]
fn a_service_that_a_policy_wants_is_told_where_it_is_listed() {
    let stop = "[[policy]]\nname = \"stop\"\naction = \"discard\"\nlocal = [\"192.0.2.0/24\"]\n\
                remote = [\"any\"]\n";
    let text = GOOD.to_owned() + stop;
    let expected = "gw.toml:9:14: warning: allow_host icmp of port wan and policy stop: cleartext \
                    that the policy wants is dropped, whatever allow_host lists
  |
9 | allow_host = [\"udp/500\", \"icmp\"]
  |              ^^^^^^^^^^^^^^^^^^^
  |
  = help: if the service is to pass in cleartext, write a BYPASS policy before that one";
    assert_eq!(meetings(&text), [expected], "IKE is spared");
    assert_eq!(meetings(GOOD), [""; 0], "its policy has no address of ours");
}

/// The warnings that are about IKE.
fn about_ike(text: &str) -> Vec<String> {
    let parsed = parse(text, "gw.toml").unwrap_or_else(|errors| panic!("{}", told(errors)));
    let is_it = |mistake: &DiagnosticKind| {
        use DiagnosticKind::{AllowHostWithinIke, IkeNotListed};
        matches!(mistake, AllowHostWithinIke { .. } | IkeNotListed { .. })
    };
    let warnings = parsed.warnings.iter().filter(|problem| is_it(&problem.mistake));
    warnings.map(ToString::to_string).collect()
}

const WITHIN: &str = "\n[ike]\nends = [\"192.0.2.1\"]\npeers = [\"any\"]\nlocal = [\"any\"]\n\
                      remote = [\"any\"]\n";

#[test]
fn a_service_whose_answers_are_within_the_bounds_of_ike_is_told_where_it_is_listed() {
    let lists = |services: &str| GOOD.replace("\"udp/500\", \"icmp\"", services);
    let text = lists("\"udp/500\", \"udp/4500\", \"tcp/22\"") + WITHIN;
    let expected = "gw.toml:9:14: warning: allow_host tcp/22 of port wan and [ike]: of what this \
                    machine sends, that which `local` and `remote` of [ike] match is dropped, \
                    answers of the service too
  |
9 | allow_host = [\"udp/500\", \"udp/4500\", \"tcp/22\"]
  |              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  |
  = help: write a BYPASS policy for the service, or a narrower `local` or `remote` in [ike]";
    assert_eq!(about_ike(&text), [expected], "IKE is spared");
    let policy = |rest: &str| format!("[[policy]]\nname = \"p\"\n{rest}\n");
    let pass = "action = \"bypass\"\nlocal = [\"any\"]\nremote = [\"any\"]\npriority = 0";
    let none = [""; 0];
    assert_eq!(about_ike(&(text.clone() + &policy(pass))), none, "a BYPASS policy comes before");
    let inbound = policy(&format!("{pass}\ndirection = \"inbound\""));
    assert_eq!(about_ike(&(text.clone() + &inbound)).len(), 1, "answers are outbound");
    // The policy's warning is enough.
    let stop = pass.replace("bypass", "discard");
    assert_eq!(about_ike(&(text.clone() + &policy(&stop))), none);
    assert_eq!(meetings(&(text.clone() + &policy(&stop))).len(), 1);
    let inside = text.replace("local = [\"any\"]", "local = [\"10.1.0.0/16\"]");
    assert_eq!(about_ike(&inside), none, "nothing of this machine's");
    let shunt = "[[ike.shunt]]\naction = \"discard\"\nlocal = [\"192.0.2.1\"]\n\
                 remote = [\"any\"]\n";
    assert_eq!(about_ike(&(inside + shunt)).len(), 1, "charon may drop them");
}

#[test]
fn ike_that_no_port_lists_is_told_at_the_first_peer_of_ike() {
    let peer = GOOD.replace("manual = \"laboratory\"\n", "");
    let peer = peer.replace("\"file:berlin.keys\"", "\"ike\"");
    let lists = |services: &str| peer.replace("\"udp/500\", \"icmp\"", services);
    let expected = "gw.toml:13:8: warning: no unprotected port lists udp/500 and udp/4500 in \
                    `allow_host`: no packet of IKE comes to charon
   |
13 | keys = \"ike\"
   |        ^^^^^
   |
   = help: write allow_host = [\"udp/500\", \"udp/4500\"] at the port that leads to the peers";
    assert_eq!(about_ike(&lists("\"icmp\"")), [expected]);
    let one = |services: &str, words: &str| {
        let told = about_ike(&lists(services));
        assert!(told.len() == 1 && told[0].contains(words), "{services}: {told:?}");
    };
    one("\"udp/500\"", "lists udp/4500 in `allow_host`: IKE through a NAT");
    one("\"udp/4000-5000\"", "lists udp/500 in `allow_host`: no peer can begin");
    one("\"tcp/500\", \"tcp/4500\"", "udp/500 and udp/4500");
    for services in ["\"udp/500\", \"udp/4500\"", "\"udp/1-5000\"", "\"udp\""] {
        assert_eq!(about_ike(&lists(services)), [""; 0], "{services}");
    }
    // Also of the section alone.
    let section = GOOD.to_owned() + &WITHIN.replace("local = [\"any\"]", "local = [\"::1\"]");
    let told = about_ike(&section);
    assert!(told.len() == 1 && told[0].starts_with("gw.toml:24:1:"), "{told:?}");
    assert_eq!(about_ike(GOOD), [""; 0], "charon has no part here");
}

#[test]
fn keys_of_a_peer_that_a_card_cannot_honour_are_told() {
    let gateway = |kind: &str, peer: &str| {
        let api = GOOD.replace("manual = \"laboratory\"\n", peer);
        let api = api.replace("\"file:berlin.keys\"", "\"api\"");
        api.replace(
            "[peer.berlin]",
            &format!("[card.nic]\n{kind}\nports = [\"wan\"]\n[peer.berlin]"),
        )
    };
    let xfrm = "kind = \"xfrm\"";
    let emulated = "kind = \"emulated\"\nsocket = \"/run/c\"";
    let dscp = "dscp = 5\n";
    let told = |kind: &str, peer: &str| {
        let parsed =
            parse(&gateway(kind, peer), "gw.toml").unwrap_or_else(|e| panic!("{}", told(e)));
        let is_it = |mistake: &DiagnosticKind| {
            use DiagnosticKind::{DscpOnCard, FragmentOuterWithoutEffect};
            matches!(mistake, DscpOnCard { .. } | FragmentOuterWithoutEffect)
        };
        let warnings = parsed.warnings.iter().filter(|problem| is_it(&problem.mistake));
        warnings.map(ToString::to_string).collect::<Vec<String>>()
    };
    for mode in ["packet", "crypto"] {
        let warnings = told(xfrm, &format!("{dscp}offload = \"{mode}\"\n"));
        assert!(warnings.len() == 1, "{mode}: {warnings:?}");
        let words = "card `nic` has Linux write outer headers, with the DSCP of inner packets";
        assert!(warnings[0].contains(words), "{warnings:?}");
        assert_eq!(told(emulated, &format!("{dscp}offload = \"{mode}\"\n")), [""; 0]);
    }
    // In software, which has a fixed DSCP.
    assert_eq!(told(xfrm, &format!("{dscp}offload = \"auto\"\n")), [""; 0]);
    assert_eq!(told(xfrm, "dscp = \"copy\"\noffload = \"packet\"\n"), [""; 0]);
    for value in ["true", "false"] {
        let warnings = told(emulated, &format!("fragment_outer = {value}\n"));
        assert!(warnings.len() == 1, "{value}: {warnings:?}");
        assert!(warnings[0].contains("`fragment_outer` has no effect any more"), "{warnings:?}");
        assert!(warnings[0].contains("leave it out"), "{warnings:?}");
    }
}

#[test]
fn a_service_meets_a_policy_only_where_the_policy_can_want_its_packets() {
    let policy = |name: &str, rest: &str| format!("[[policy]]\nname = \"{name}\"\n{rest}\n");
    let stop = "action = \"discard\"\nlocal = [\"192.0.2.1\"]\nremote = [\"any\"]";
    let pass = "action = \"bypass\"\nlocal = [\"any\"]\nremote = [\"any\"]\npriority = 200";
    let cases: [(&str, String, Option<&str>); 11] = [
        ("an address of ours", policy("stop", stop), Some("policy stop:")),
        (
            "every local address",
            policy("all", &stop.replace("192.0.2.1", "any")),
            Some("policy all:"),
        ),
        ("another address", policy("stop", &stop.replace("192.0.2.1", "192.0.2.2")), None),
        (
            "PROTECT",
            policy("all", "peer = \"berlin\"\nlocal = [\"any\"]\nremote = [\"any\"]"),
            Some("policy all:"),
        ),
        ("BYPASS wants nothing", policy("pass", pass), None),
        ("outbound only", policy("stop", &format!("{stop}\ndirection = \"outbound\"")), None),
        ("another protocol", policy("stop", &format!("{stop}\nprotocol = \"udp\"")), None),
        ("its protocol", policy("stop", &format!("{stop}\nprotocol = \"icmp\"")), Some("stop:")),
        ("a BYPASS before it", policy("stop", stop) + &policy("pass", pass), None),
        (
            "a BYPASS behind it",
            policy("stop", stop) + &policy("pass", &pass.replace("200", "1")),
            Some("policy stop:"),
        ),
        (
            "two policies: the first one by its name",
            policy("late", stop) + &policy("first", &format!("{stop}\npriority = 150")),
            Some("policy first (and 1 more):"),
        ),
    ];
    for (case, policies, expected) in cases {
        let told = meetings(&(GOOD.to_owned() + &policies));
        match expected {
            None => assert_eq!(told, [""; 0], "{case}"),
            Some(words) => {
                assert_eq!(told.len(), 1, "{case}: {told:#?}");
                let first = told[0].lines().next().unwrap();
                assert!(first.contains("allow_host icmp of port wan and "), "{case}: {first}");
                assert!(first.contains(words), "{case}: {first}");
            }
        }
    }
}

#[test]
fn keys_of_another_suite_are_recognized_by_their_length() {
    let place = tempfile::tempdir().unwrap();
    let keys = place.path().join("keys");
    fs::DirBuilder::new().mode(0o700).create(&keys).unwrap();
    let text = GOOD.replace("[node]\n", "[node]\nkeys_dir = \"keys\"\n");
    fs::write(place.path().join("gw.toml"), text).unwrap();
    for (digits, expected) in [
        (
            40,
            "aes-256-gcm takes 72 hexadecimal digits (key, then salt), not 40\n = help: these look \
             like aes-128-gcm keys: name that suite, or make new keys",
        ),
        (42, "aes-256-gcm takes 72 hexadecimal digits (key, then salt), not 42\n"),
    ] {
        let path = keys.join("berlin.keys");
        let _ = fs::remove_file(&path);
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&path).unwrap();
        let line = format!("out 0x1001 {}\n", "a1".repeat(digits / 2));
        std::io::Write::write_all(&mut &file, line.as_bytes()).unwrap();
        let errors = load(&place.path().join("gw.toml"), None).err().expect("refused");
        let told = told(errors);
        assert!(told.contains(expected), "{told}");
        assert_eq!(told.contains("these look like"), digits == 40, "{told}");
    }
}

/// A test that runs as root reads everything, so the advice alone is looked at.
#[test]
fn what_may_not_be_read_is_to_be_read_by_root() {
    let kind = std::io::ErrorKind::PermissionDenied;
    let file = String::from("berlin.keys");
    for mistake in
        [DiagnosticKind::KeyFileUnreadable { file, kind }, DiagnosticKind::Unreadable { kind }]
    {
        assert!(mistake.help().unwrap().starts_with("run as root"), "{mistake}");
    }
}

/// All that a refusal says.
fn refusal(text: &str) -> String {
    parse(text, "gw.toml").unwrap_err().to_string()
}

#[test]
fn a_file_that_is_no_configuration_is_one_short_message() {
    let bracket = "gw.toml:1:21: error: more than 16 lists within each other";
    let only_returns = "gw.toml:1:7: error: line ends are CR alone (an old Macintosh's)";
    for (text, expected) in [
        ("\0".repeat(10 << 20), "gw.toml:1:1: error: there is a NUL byte: this is not a text file"),
        (format!("a = {}", "[".repeat(100_000)), bracket),
        (GOOD.replace('\n', "\r"), only_returns),
        (format!("{GOOD}x = 1\ry = 2\n"), "gw.toml:23:6: error: line ends are CR alone"),
        ("[".repeat(100_000), "gw.toml:1:"),
        ("=".repeat(100_000), "gw.toml:1:1: error: "),
        ("\"".repeat(99_999), "gw.toml:1:"),
        ("a = 1 b\n".repeat(10_000), "gw.toml:1:5: error: "),
        ("\u{202e}\u{1b}[2J".repeat(10_000), "gw.toml:1:"),
    ] {
        let told = refusal(&text);
        assert!(told.starts_with(expected), "{told}");
        assert!(told.ends_with("1 error; nothing was applied"), "{told}");
        assert!(told.lines().count() <= 8, "{told}");
        assert!(told.lines().all(|line| line.chars().count() < 500), "{told}");
        assert!(!told.contains(|c| config::is_hidden(c) && c != '\n'), "{told:?}");
    }
}

#[test]
fn of_a_long_line_the_part_around_the_mistake_is_shown() {
    let list = (0..4000).map(|n| format!("\"10.{}.{}.0/24\"", n / 250, n % 250));
    let list = list.collect::<Vec<_>>().join(", ");
    let list = list.replace("\"10.9.9.0/24\"", "\"10.9.9.0/99\"");
    let text = GOOD.replace("remote = [\"10.2.0.0/16\"]", &format!("remote = [{list}]"));
    let told = told(parse(&text, "gw.toml").unwrap_err());
    let lines: Vec<&str> = told.lines().collect();
    let shown = lines[2].split_once("| ").unwrap().1;
    assert!(shown.starts_with("...") && shown.ends_with("..."), "{told}");
    assert!(lines[2].chars().count() <= 140, "{told}");
    let place = lines[3].split_once("| ").unwrap().1.find('^').unwrap();
    let under: String = shown.chars().skip(place).take(13).collect();
    assert_eq!(under, "\"10.9.9.0/99\"", "{told}");
}

#[test]
fn a_refusal_is_never_more_than_a_screen() {
    let bad = "[[policy]]\nx = 1\n";
    let warned = "[[policy]]\nname = \"NAME\"\naction = \"bypass\"\nlocal = [\"any\"]\n\
                  remote = [\"any\"]\nlocal_ports = [\"1\"]\n";
    for (wrong, doubtful) in [(1, 0), (5, 0), (5000, 0), (9, 100), (1, 500)] {
        let mut text = String::from(GOOD);
        (0..doubtful).for_each(|n| text.push_str(&warned.replace("NAME", &format!("p{n}"))));
        text.push_str(&bad.repeat(wrong));
        let told = refusal(&text);
        assert!(told.lines().count() <= 42, "{} lines: {told}", told.lines().count());
        let last = told.lines().last().unwrap();
        assert!(last.contains("error") && last.ends_with("nothing was applied"), "{told}");
        assert!(told.contains("unknown key `x` in [[policy]]"), "no error is hidden: {told}");
        if doubtful > 0 {
            assert!(told.contains("more warnings"), "{told}");
        }
    }
}
