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

/// A section of few bytes can inherit from one with very many addresses.
#[test]
fn children_that_inherit_more_addresses_than_a_file_may_stand_for_are_refused() {
    let list: Vec<String> = (0..4096).map(|n| format!("10.{}.{}.1", n / 256, n % 256)).collect();
    let list = list.join(",");
    let text = |settings: &str, ends: [&str; 2], count: usize| {
        let children: String = (0..count).map(|n| format!("c{n} : base {{}}\n")).collect();
        format!(
            "base {{\n{settings}\nlocal_ts = {}\nremote_ts = {}\n}}\n\
             connections {{ c {{ children {{\n{children}}} }} }}\n",
            ends[0], ends[1]
        )
    };
    let imported = |text: &str| swanctl(&[Foreign::new("x", text)], &options());
    let told = |text: &str| imported(text).err().expect("more than the limit").to_string();
    // 128 children have 1,048,576 addresses, in their selectors and in their policies.
    let all = [&*list; 2];
    assert_eq!(imported(&text("mode = pass", all, 128)).unwrap().policies, 128);
    for (text, what) in [
        (text("mode = pass", all, 65_000), "in `local_ts` and `remote_ts`"),
        // None of these is taken, and all are read.
        (text("mode = drop", [&list, "10.0.0.1[icmp/8]"], 65_000), "in `local_ts` and"),
        // Each protocol with each port is a policy with all addresses of both.
        (text("mode = pass", [&ports(), &ports()], 65_000), "in the policies of all children"),
    ] {
        let told = told(&text);
        let wanted = format!("more than 1048576 prefixes, ranges and addresses {what}");
        assert!(told.starts_with("x:") && told.contains(&wanted), "{told}");
        assert!(told.ends_with("1 error; nothing was imported"), "{told}");
    }
}

/// 64 addresses, each with a port of its own.
fn ports() -> String {
    let all: Vec<String> = (1..=64).map(|port| format!("10.0.0.{port}[tcp/{port}]")).collect();
    all.join(",")
}

proptest! {
    // `PROPTEST_CASES` asks for more.
    #![proptest_config(ProptestConfig::with_cases(500))]

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
