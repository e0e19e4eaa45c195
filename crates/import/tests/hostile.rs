//! Texts that nobody meant: none of them panics, and what is imported is right.

use import::{Foreign, Imported, KeyPlan, Options, swanctl, vpp, xfrm};
use proptest::prelude::*;

const STATES: &str = include_str!("data/states.dump");
const POLICIES: &str = include_str!("data/policies.dump");
const VPP: &str = include_str!("data/ipsec.vpp");
const SWANCTL: &str = include_str!("data/swanctl.conf");

/// Words that both parsers know, and values that are at an edge.
const WORDS: &[&str] = &[
    "ip",
    "xfrm",
    "state",
    "policy",
    "add",
    "update",
    "src",
    "dst",
    "10.0.0.0/8",
    "::/0",
    "::1",
    "192.0.2.1",
    "0.0.0.0",
    "proto",
    "esp",
    "tcp",
    "icmp",
    "sport",
    "dport",
    "type",
    "code",
    "dir",
    "in",
    "out",
    "fwd",
    "socket",
    "priority",
    "tmpl",
    "mode",
    "tunnel",
    "transport",
    "reqid",
    "spi",
    "0x1001",
    "0",
    "4294967295",
    "18446744073709551615",
    "aead",
    "rfc4106(gcm(aes))",
    "0x000102030405060708090a0b0c0d0e0f10111213",
    "128",
    "offload",
    "packet",
    "crypto",
    "dev",
    "eth0",
    "limit",
    "byte-hard",
    "time-hard",
    "flag",
    "esn",
    "sel",
    "mark",
    "encap",
    "espinudp",
    "anti-replay",
    "context:",
    "lifetime",
    "config:",
    "\n",
    "\n\t",
    "\n ",
    "\\\n",
    ";",
    "ipsec",
    "{",
    "}",
    "sa",
    "spd",
    "protect",
    "bypass",
    "discard",
    "action",
    "inbound",
    "outbound",
    "local-ip-range",
    "remote-ip-range",
    "-",
    "10.0.0.9",
    "protocol",
    "17",
    "crypto-alg",
    "aes-gcm-128",
    "crypto-key",
    "000102030405060708090a0b0c0d0e0f",
    "salt",
    "set",
    "interface",
    "ipv4-outbound-spd-hash-buckets",
    "comment",
    "connections {",
    "children {",
    "local_addrs =",
    "remote_addrs =",
    "local_ts =",
    "remote_ts = dynamic[tcp/",
    "80]",
    "esp_proposals = aes256gcm16",
    "rekey_time =",
    "start_action = trap",
    "priority =",
    ": connections",
    ",",
    ".",
    "=",
    "include",
    "%any",
    "'",
    "\"",
    "#",
];

/// Keys and values of swanctl.conf, right and wrong ones.
const KEYS: &[&str] = &[
    "local_ts",
    "remote_ts",
    "mode",
    "priority",
    "esp_proposals",
    "rekey_time",
    "life_time",
    "rekey_bytes",
    "life_packets",
    "replay_window",
    "copy_dscp",
    "copy_df",
    "start_action",
];
const VALUES: &[&str] = &[
    "10.0.0.0/8",
    "10.1.0.0/16[tcp/80],fd00::/8[udp]",
    "dynamic[icmp]",
    "10.0.0.9-10.0.0.1",
    "0.0.0.0/0, ::/0",
    "10.0.0.1-10.0.0.9[/1-2]",
    "pass",
    "drop",
    "transport",
    "trap|start",
    "0",
    "1",
    "18446744073709551615d",
    "4294967295",
    "aes256gcm16-esn,aes-sha256",
    "default",
    "in",
    "no",
    "",
    "\"a\\\nb\"",
    "198.51.100.7, ::1",
    "fd00::1",
    "%any",
    "x.example",
];

fn options() -> Options<'static> {
    let keys = Some(KeyPlan { file: "x.keys".into(), directory: None });
    Options { keys, ..Options::default() }
}

/// Reads a text in all ways; an imported one must be a configuration.
fn survives(text: &str) {
    let foreign = Foreign::new("x", text);
    let twice = [Foreign::new("x", text), Foreign::new("y", STATES)];
    let twin = [Foreign::new("x", text), Foreign::new("y", SWANCTL)];
    for imported in [
        vpp(&foreign, &options()),
        swanctl(std::slice::from_ref(&foreign), &options()),
        swanctl(&twin, &options()),
        xfrm(&[foreign], &options()),
        xfrm(&twice, &options()),
    ] {
        match imported {
            Ok(imported) => is_right(&imported),
            Err(errors) => assert!(!errors.problems.is_empty() && !errors.to_string().is_empty()),
        }
    }
}

fn is_right(imported: &Imported) {
    if let Err(errors) = config::parse(&imported.text, "imported") {
        panic!("{errors}\n{}", imported.text);
    }
    for one in &imported.omissions {
        assert!(!one.reason.is_empty() && !one.advice.is_empty() && one.place.line > 0);
    }
}

/// Places, how many characters go there, and those that come instead.
fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, usize, String)>> {
    prop::collection::vec((any::<prop::sample::Index>(), 0usize..12, ".{0,4}"), 1..6)
}

#[test]
fn a_peer_without_keys_does_not_share_the_file_of_one_that_has_them() {
    // The policies name another end than the states: a second peer, for which there is no key.
    let policies = "ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out \
                    tmpl src 192.0.2.1 dst 8.51.100.7 proto esp mode tunnel\n";
    let foreign = Foreign::new("x", &(STATES.to_owned() + "\n" + policies));
    let imported = xfrm(&[foreign], &options()).unwrap();
    is_right(&imported);
    assert_eq!(imported.text.matches("keys = \"file:").count(), 2, "{}", imported.text);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_text_panics(text in any::<String>()) {
        survives(&text);
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(read) = Foreign::read(&bytes[..], "x") {
            let _ = vpp(&read, &options());
        }
    }

    #[test]
    fn no_words_panic(words in prop::collection::vec(prop::sample::select(WORDS), 0..60)) {
        survives(&words.join(" "));
        survives(&format!("ip xfrm state add {}", words.join(" ")));
        survives(&format!("ip xfrm policy add {}", words.join(" ")));
        survives(&format!("ipsec policy add {}", words.join(" ")));
        survives(&format!("connections {{ a {{ {} }}", words.join("\n")));
        survives(&format!("src 1.1.1.1 dst 2.2.2.2\n\tproto esp {}", words.join(" ")));
    }

    #[test]
    fn children_of_any_settings_become_a_right_configuration(
        ends in prop::collection::vec(prop::sample::select(VALUES), 2),
        children in prop::collection::vec(prop::collection::vec(
            (prop::sample::select(KEYS), prop::sample::select(VALUES)), 0..5), 1..5),
    ) {
        let mut text = format!(
            "connections {{ c {{\nlocal_addrs = {}\nremote_addrs = {}\nchildren {{\n",
            ends[0], ends[1]
        );
        for (place, lines) in children.iter().enumerate() {
            text += &format!("c{} {{\n", place / 2);
            lines.iter().for_each(|(key, value)| text += &format!("{key} = {value}\n"));
            text += "}\n";
        }
        survives(&(text + "} } }\n"));
    }

    #[test]
    fn no_change_of_a_good_text_panics(
        which in 0usize..4,
        changes in changes(),
        word in prop::sample::select(WORDS),
    ) {
        let mut text: Vec<char> = [STATES, POLICIES, VPP, SWANCTL][which].chars().collect();
        for (place, length, with) in changes {
            let from = place.index(text.len() + 1);
            let to = (from + length).min(text.len());
            let with = if with.is_empty() { word.to_owned() } else { with };
            text.splice(from..to, with.chars());
        }
        survives(&text.into_iter().collect::<String>());
    }
}
