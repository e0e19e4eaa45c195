//! Dumps and commands of `ip xfrm`.

use config::validated::{Action, Policy, Validated};
use import::{Fate, Foreign, ImportErrors, Imported, KeyPlan, Options, xfrm};

const STATES: &str = include_str!("data/states.dump");
const POLICIES: &str = include_str!("data/policies.dump");

fn imported(texts: &[&str]) -> Result<Imported, ImportErrors> {
    let named = ["one", "two"].into_iter().zip(texts);
    let texts: Vec<Foreign> = named.map(|(name, text)| Foreign::new(name, text)).collect();
    let keys = Some(KeyPlan { file: "x.keys".into(), directory: None });
    xfrm(&texts, &Options { keys, ..Options::default() })
}

fn good(texts: &[&str]) -> Imported {
    imported(texts).unwrap_or_else(|errors| panic!("{errors}"))
}

fn errors(text: &str) -> String {
    imported(&[text]).err().map_or_else(|| panic!("imported: {text}"), |errors| errors.to_string())
}

fn parsed(imported: &Imported) -> Validated {
    match config::parse(&imported.text, "imported") {
        Ok(parsed) => parsed.validated,
        Err(errors) => panic!("{errors}\n{}", imported.text),
    }
}

/// The words of the table with their fates.
fn told(imported: &Imported) -> Vec<(&str, Fate)> {
    imported.omissions.iter().map(|one| (one.word.as_str(), one.fate)).collect()
}

const ID: &str = "src 192.0.2.1 dst 198.51.100.7 proto esp spi 0x1001 reqid 1 mode tunnel";
const AEAD: &str = "aead 'rfc4106(gcm(aes))' 0x000102030405060708090a0b0c0d0e0f10111213 128";

fn state(offload: &str) -> String {
    format!("ip xfrm state add {ID} {AEAD} {offload}\n")
}

fn dumped(offload: &str) -> String {
    STATES.replace("dev eth0 dir out mode packet", offload)
}

fn policy(selector: &str, rest: &str) -> String {
    format!("ip xfrm policy add {selector} {rest}\n")
}

const TUNNEL: &str =
    "tmpl src 192.0.2.1 dst 198.51.100.7 proto esp reqid 1 mode tunnel level required";

#[test]
fn dumps_become_a_configuration_that_is_right() {
    let imported = good(&[STATES, POLICIES]);
    let config = parsed(&imported);
    assert_eq!((imported.peers, imported.policies, imported.sas), (1, 2, 2));
    let [peer] = &config.peers[..] else { panic!("{}", imported.text) };
    assert_eq!(peer.tunnel().local.to_string(), "192.0.2.1");
    assert_eq!(peer.tunnel().remote.to_string(), "198.51.100.7");
    assert_eq!((peer.suite.name(), peer.replay_window), ("aes-128-gcm", 128));
    assert_eq!(peer.numbers, ipsec::SequenceNumbers::Extended);
    let [dns, tunnel] = &config.policies[..] else { panic!("{}", imported.text) };
    assert_eq!((dns.action, dns.only), (Action::Bypass, Some(policy::Direction::Outbound)));
    assert_eq!((tunnel.action, tunnel.only), (Action::Protect(config::PeerId(0)), None));
    assert_eq!(config.ports[1].netdev, "eth0", "the netdev of the offload");
}

// XO-27
#[test]
fn a_state_may_ask_for_offload_in_all_three_spellings_and_as_ip_prints_it() {
    let wanted = |imported: &Imported, mode: &str| {
        let line = format!("# offload = \"{mode}\" # for keys = \"api\" alone; one:");
        assert!(imported.text.contains(&line), "{}", imported.text);
        parsed(imported);
    };
    for (spelling, mode) in [
        ("offload packet dev eth0 dir out", "packet"),
        ("offload crypto dev eth0 dir out", "crypto"),
        ("offload dev eth0 dir out", "crypto"),
        ("offload dir out dev eth0", "crypto"),
    ] {
        wanted(&good(&[&state(spelling)]), mode);
    }
    for (spelling, mode) in [
        ("dev eth0 dir out mode packet", "packet"),
        ("dev eth0 dir out mode crypto", "crypto"),
        ("dev eth0 dir out", "crypto"),
    ] {
        wanted(&good(&[&dumped(spelling)]), mode);
    }
}

// XO-28
#[test]
fn an_offloaded_state_names_its_direction_and_a_policy_needs_none() {
    let without = state("offload packet dev eth0");
    let told = errors(&format!("# a script\n{without}"));
    let column = without.find("offload").unwrap() + 1;
    let expected = format!(
        "one:2:{column}: error: a state with offload must say its direction\n  = help: write \
         `dir in` or `dir out` behind `dev IF`\n1 error; nothing was imported"
    );
    assert_eq!(told, expected);
    assert!(errors(&dumped("dev eth0 mode packet")).contains("one:9:2: error: a state with"));
    let wanted = policy("src 10.1.0.0/16 dst 10.2.0.0/16 dir out", TUNNEL);
    let both = good(&[
        &state("offload packet dev eth0 dir out"),
        &wanted.replace('\n', " offload packet dev eth0\n"),
    ]);
    assert_eq!(parsed(&both).policies.len(), 1);
    let refused = |one: &import::Omission| one.fate == Fate::Refused;
    assert!(!both.omissions.iter().any(refused), "{:?}", both.omissions);
}

#[test]
fn full_offload_is_refused_with_the_right_word() {
    let told = errors(&state("offload full dev eth0 dir out"));
    assert!(told.contains("there is no offload `full`"), "{told}");
    assert!(told.contains("write `packet`"), "{told}");
}

// XO-30
#[test]
fn a_policy_takes_the_packet_flag_only() {
    let wanted = policy("src 10.1.0.0/16 dst 10.2.0.0/16 dir out", TUNNEL);
    for spelling in ["offload crypto dev eth0", "offload dev eth0", "offload full dev eth0"] {
        let told = errors(&wanted.replace('\n', &format!(" {spelling}\n")));
        assert!(told.contains("unrecognized flags: policies take `packet` only"), "{told}");
        assert!(told.contains("write `offload packet dev IF`"), "{told}");
    }
    good(&[&wanted.replace('\n', " offload packet dev eth0\n")]);
}

// XO-08
#[test]
fn a_policy_of_a_socket_is_refused_and_the_others_are_taken() {
    let imported = good(&[STATES, POLICIES]);
    let socket = &imported.omissions.iter().find(|one| one.word == "socket").unwrap();
    assert_eq!((socket.fate, socket.place.line), (Fate::Refused, 2));
    assert_eq!(socket.reason, "Lockgate has no policies of single sockets");
    let packet = "src 0.0.0.0/0 dst 0.0.0.0/0 \n\tsocket out priority 0 ptype main \n\tcrypto \
                  offload parameters: dev eth0 mode packet\n";
    let alone = good(&[packet]);
    assert_eq!((told(&alone), alone.policies), (vec![("socket", Fate::Refused)], 0));
}

#[test]
fn packet_offload_without_its_other_half_is_named() {
    let wanted = policy("src 10.1.0.0/16 dst 10.2.0.0/16 dir out", TUNNEL);
    let sa_only = good(&[&state("offload packet dev eth0 dir out"), &wanted]);
    let policy_only = good(&[&state(""), &wanted.replace('\n', " offload packet dev eth0\n")]);
    for (imported, missing) in [(sa_only, "that of the policy"), (policy_only, "that of the SA")] {
        let halves: Vec<_> =
            imported.omissions.iter().filter(|one| one.fate == Fate::Refused).collect();
        let [half] = halves[..] else { panic!("{:?}", imported.omissions) };
        assert!(half.reason.contains(missing), "{}", half.reason);
    }
}

#[test]
fn keys_go_into_key_files_and_nowhere_else() {
    let imported = good(&[STATES, POLICIES]);
    let [keys] = &imported.keys[..] else { panic!("{} key files", imported.keys.len()) };
    assert_eq!((&*keys.name, keys.sas, imported.keyed_sas), ("x.keys", 2, 2));
    assert!(keys.text.contains("out 0x00001001 000102030405060708090a0b0c0d0e0f10111213\n"));
    assert!(keys.text.contains("in 0x00001002 202122232425262728292a2b2c2d2e2f30313233\n"));
    assert!(!imported.text.contains("0405060708"));
    // A key in a wrong place is not shown either.
    for wrong in [
        format!("ip xfrm state add {ID} 0x000102030405060708090a0b0c0d0e0f10111213"),
        format!("ip xfrm state add {ID} aead 'rfc4106(gcm(aes))' 0x0001020304050607zz 128"),
        format!("ip xfrm state add {ID} spi 000102030405060708090a0b0c0d0e0f10111213"),
    ] {
        let told = errors(&wrong);
        assert!(!told.contains("0203"), "{told}");
    }
}

#[test]
fn a_key_that_was_used_is_not_taken() {
    let used = STATES.replacen("oseq 0x0", "oseq 0x7", 1);
    let imported = good(&[&used, POLICIES]);
    assert_eq!(imported.keyed_sas, 1);
    assert!(!imported.keys[0].text.contains("out "), "{}", *imported.keys[0].text);
    let row = imported.omissions.iter().find(|one| one.word == "key").unwrap();
    assert!(row.reason.contains("its key was used before"), "{}", row.reason);
    for sign in ["lastused 2026-11-28 01:05:34", "lifetime current:\n\t  900(bytes), 9(packets)"] {
        let used = STATES.replacen("\tsel", &format!("\t{sign}\n\tsel"), 1);
        assert_eq!(good(&[&used, POLICIES]).keyed_sas, 1, "{sign}");
    }
    let hidden = STATES.replace("0x000102030405060708090a0b0c0d0e0f10111213", "<<Keys hidden>>");
    let imported = good(&[&hidden, POLICIES]);
    assert!(imported.text.contains("FILL IN: the peer's suite"), "{}", imported.text);
}

#[test]
fn of_equal_priorities_the_older_decides_in_dumps_and_in_scripts() {
    let script = "ip xfrm policy add src 10.9.0.0/24 dst 10.9.0.0/24 dir out action block \
                  priority 5\nip xfrm policy add src 10.9.0.0/16 dst 10.9.0.0/16 dir out \
                  priority 5\n";
    // As Linux printed it after that script: the newest first.
    let dump = "src 10.9.0.0/16 dst 10.9.0.0/16 \n\tdir out priority 5 ptype main \n\
                src 10.9.0.0/24 dst 10.9.0.0/24 \n\tdir out action block priority 5 ptype main \n";
    for text in [script, dump] {
        let config = parsed(&good(&[text]));
        let [first, second] = &config.policies[..] else { panic!("{text}") };
        assert_eq!((first.action, second.action), (Action::Discard, Action::Bypass));
        assert!(first.priority > second.priority);
    }
}

/// Our policies as they are asked: the highest priority first.
fn asked(config: &Validated) -> Vec<Policy> {
    let mut list = config.policies.clone();
    list.sort_by_key(|policy| std::cmp::Reverse(policy.priority));
    list
}

#[test]
fn the_example_of_the_design_comes_back_from_commands_as_it_was() {
    let ours = "\
[node]
name = \"gateway\"
[port.lan]
netdev = \"lan0\"
side = \"protected\"
[port.wan]
netdev = \"wan0\"
side = \"unprotected\"
[peer.berlin]
local = \"192.0.2.1\"
remote = \"198.51.100.7\"
keys = \"file:x.keys\"
manual = \"laboratory\"
suite = \"aes-128-gcm\"
[[policy]]
name = \"berlin-net\"
peer = \"berlin\"
local = [\"10.1.0.0/16\"]
remote = [\"10.2.0.0/16\"]
priority = 100
[[policy]]
name = \"web\"
action = \"discard\"
local = [\"10.1.0.0/16\"]
remote = [\"10.2.7.0/24\"]
protocol = \"tcp\"
remote_ports = [\"443\"]
priority = 200
[[policy]]
name = \"dns\"
action = \"bypass\"
local = [\"0.0.0.0/0\"]
remote = [\"9.9.9.9/32\"]
protocol = \"udp\"
remote_ports = [\"53\"]
priority = 50
";
    let net = |prio: u32, rest: &str| {
        let ends = ["10.1.0.0/16", "10.2.0.0/16"];
        twins(ends, "", ("", prio), rest)
    };
    let there = "tmpl src 192.0.2.1 dst 198.51.100.7 proto esp reqid 1 mode tunnel";
    let mut script = net(1000, there);
    script += &twins(["0.0.0.0/0", "9.9.9.9"], "udp", ("53", 2000), "");
    script += &twins(["10.1.0.0/16", "10.2.7.0/24"], "tcp", ("443", 10), "action block");
    let config = parsed(&good(&[&script]));
    let expected = config::parse(ours, "ours").unwrap().validated;
    let plain = |policy: Policy| (policy.action, policy.only, policy.selector);
    let lists =
        [&config, &expected].map(|config| asked(config).into_iter().map(plain).collect::<Vec<_>>());
    assert_eq!(lists[0], lists[1]);
    assert_eq!(config.peers[0].tunnel(), expected.peers[0].tunnel());
}

/// The commands `out`, `in` and `fwd` of a policy of ours. `there` is the template of `out`.
fn twins(
    [local, remote]: [&str; 2],
    protocol: &str,
    (port, prio): (&str, u32),
    there: &str,
) -> String {
    let back = match there.strip_prefix("tmpl src 192.0.2.1 dst 198.51.100.7") {
        Some(rest) => format!("tmpl src 198.51.100.7 dst 192.0.2.1{rest}"),
        None => there.to_owned(),
    };
    let proto = |key: &str| match protocol {
        "" => String::new(),
        _ => format!("proto {protocol} {key} {port}"),
    };
    let mut text = String::new();
    for (way, [src, dst], key, rest) in [
        ("out", [local, remote], "dport", there),
        ("in", [remote, local], "sport", back.as_str()),
        ("fwd", [remote, local], "sport", back.as_str()),
    ] {
        let proto = proto(key);
        // `action` stands before the template, as in the usage of `ip`.
        text += &format!(
            "ip xfrm policy add src {src} dst {dst} {proto} dir {way} priority {prio} {rest}\n"
        );
    }
    text
}

#[test]
fn nothing_is_dropped_in_silence() {
    let odd = format!(
        "#!/bin/sh\nset -e\nip link set eth0 up\nip xfrm state flush\n\
         ip xfrm state add {ID} {AEAD} flag noecn output-mark 7 tfcpad 9 dir out\n\
         ip xfrm state add src 192.0.2.1 dst 198.51.100.8 proto ah spi 9999 dir out\n\
         ip xfrm state add src 192.0.2.1 dst 198.51.100.9 proto esp spi 9999 mark 7 {AEAD}\n\
         ip xfrm state add src 192.0.2.1 dst 198.51.100.9 proto esp spi 9998 dir out \
         enc 'cbc(aes)' 0x000102030405060708090a0b0c0d0e0f auth 'hmac(sha1)' 0x00\n\
         ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out flag localok {TUNNEL}\n\
         ip xfrm policy add src 10.1.0.0/16 dst 10.3.0.0/16 dir out ptype sub {TUNNEL}\n\
         ip xfrm policy add src 10.1.0.0/16 dst 10.4.0.0/16 dir out tmpl proto ah mode tunnel\n\
         ip xfrm policy add src 10.1.0.0/16 dst 10.5.0.0/16 dir out tmpl mode transport\n\
         ip xfrm policy add src 10.1.0.0/16 dst 10.6.0.0/16 dir fwd\n",
    );
    let imported = good(&[&odd]);
    parsed(&imported);
    let words: Vec<&str> = imported.omissions.iter().map(|one| one.word.as_str()).collect();
    assert_eq!(
        words,
        [
            "set",
            "ip",
            "ip",
            "noecn",
            "output-mark",
            "tfcpad",
            "ah",
            "mark",
            "hmac(sha1)",
            "localok",
            "sub",
            "ah",
            "tmpl",
            "fwd"
        ]
    );
}

#[test]
fn a_misspelt_word_is_an_error_with_the_right_one() {
    for (text, place, hint) in [
        (format!("ip xfrm state add {ID} repaly-window 32"), "one:1:91", "`replay-window`"),
        (format!("ip xfrm polcy add {TUNNEL}"), "one:1:9", "`policy`"),
        ("src 10.1.0.0/16 dst 10.2.0.0/16\n\tdir otu priority 1".into(), "one:2:6", "`out`"),
        (format!("ip xfrm state add {ID} mode tunel"), "one:1:96", "`tunnel`"),
    ] {
        let told = errors(&text);
        assert!(told.contains(&format!("did you mean {hint}?")), "{told}");
        assert!(told.starts_with(place), "{told}");
    }
    assert!(errors("ip xfrm state add src $A dst 1.2.3.4").contains("text for a shell"));
    assert!(errors("").contains("nothing to import"));
    assert!(errors("hello").contains("nothing to import"));
}

#[test]
fn limits_encapsulation_and_windows_find_their_places() {
    let text = format!(
        "ip xfrm state add {ID} {AEAD} dir out encap espinudp 4500 4501 0.0.0.0 limit byte-soft \
         900 limit byte-hard 1000 limit packet-hard 77 limit time-use-hard 3600\n\
         ip xfrm state add src 198.51.100.7 dst 192.0.2.1 proto esp spi 0x1002 reqid 1 mode tunnel \
         aead 'rfc4106(gcm(aes))' 0x202122232425262728292a2b2c2d2e2f30313233 128 replay-window 100 \
         dir in encap espinudp 4501 4500 0.0.0.0\n"
    );
    let imported = good(&[&text]);
    let config = parsed(&imported);
    let [peer] = &config.peers[..] else { panic!("{}", imported.text) };
    assert_eq!(peer.lifetime.hard.bytes, Some(1000));
    assert_eq!(peer.lifetime.soft.bytes, Some(900));
    assert_eq!((peer.lifetime.hard.packets, peer.lifetime.hard.seconds), (Some(77), Some(3600)));
    assert_eq!(peer.encapsulation.udp.map(|ports| ports.remote), Some(4501));
    assert_eq!(peer.replay_window, 128);
    assert!(told(&imported).contains(&("replay-window", Fate::Differs)));
}

#[test]
fn a_key_that_two_sas_have_is_taken_by_neither() {
    let shared = STATES.replace(
        "0x202122232425262728292a2b2c2d2e2f30313233",
        "0x000102030405060708090a0b0c0d0e0f10111213",
    );
    let imported = good(&[&shared, POLICIES]);
    assert_eq!((imported.sas, imported.keyed_sas, imported.keys.len()), (2, 0, 0));
    let rows: Vec<_> = imported.omissions.iter().filter(|one| one.word == "key").collect();
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row.reason.contains("several SAs have its key")), "{rows:?}");
}

#[test]
fn each_of_several_peers_has_a_key_file_of_its_own() {
    let other = STATES
        .replace("198.51.100.7", "198.51.100.8")
        .replace("0x0001", "0x4001")
        .replace("0x2021", "0x6021")
        .replace("0x00001002", "0x00001003");
    let policies = format!("{POLICIES}{}", POLICIES.replace("198.51.100.7", "198.51.100.8"))
        .replacen("src 10.2.0.0/16 dst 10.1", "src 10.3.0.0/16 dst 10.1", 2)
        .replacen("dst 10.2.0.0/16", "dst 10.3.0.0/16", 1);
    let both = format!("{STATES}{other}");
    let imported = good(&[&both, &policies]);
    let names: Vec<&str> = imported.keys.iter().map(|keys| keys.name.as_str()).collect();
    assert_eq!(names.len(), 2, "{}", imported.text);
    for name in ["x-peer-198-51-100-7.keys", "x-peer-198-51-100-8.keys"] {
        assert!(names.contains(&name), "{names:?}");
        assert!(imported.text.contains(&format!("keys = \"file:{name}\"")));
    }
    parsed(&imported);
}

/// Printed by `ip xfrm policy` and `ip -s xfrm policy` of iproute2 6.1 on Linux 6.18, in a network
/// namespace.
const PRINTED: [&str; 2] =
    [include_str!("data/iproute2-6.1.dump"), include_str!("data/iproute2-6.1-statistics.dump")];

#[test]
fn dumps_with_and_without_statistics_mean_the_same() {
    let [plain, full] = PRINTED.map(|text| good(&[text]));
    let policies = |imported: &Imported| {
        parsed(imported).policies.into_iter().map(|policy| (policy.action, policy.selector))
    };
    assert_eq!((plain.policies, full.policies), (4, 4), "{}", plain.text);
    assert!(policies(&plain).eq(policies(&full)));
    let words = |imported: &Imported| {
        imported.omissions.iter().map(|one| one.word.clone()).collect::<Vec<_>>()
    };
    assert_eq!(words(&plain), ["if_id", "key", "use", "in", "localok"]);
    // Only statistics show the limit.
    assert_eq!(words(&full), ["if_id", "key", "use", "in", "localok", "limit:"]);
}

#[test]
fn a_text_with_too_little_to_import_is_refused() {
    let lines = "echo\n".repeat(100_001);
    let told = errors(&format!("{}{lines}", policy("src 10.1.0.0/16 dst 10.2.0.0/16 dir out", "")));
    assert!(told.contains("more than 100000 lines and words"), "{told}");
}

#[test]
fn sas_of_a_peer_that_ask_for_other_offloads_are_told() {
    let text = format!(
        "{}ip xfrm state add {} aead 'rfc4106(gcm(aes))' \
         0x202122232425262728292a2b2c2d2e2f30313233 128 offload crypto dev eth0 dir out\n",
        state("offload packet dev eth0 dir out"),
        ID.replace("0x1001", "0x1009"),
    );
    let imported = good(&[&text]);
    assert_eq!(imported.sas, 2);
    assert!(told(&imported).contains(&("src", Fate::Differs)), "{:?}", imported.omissions);
}

#[test]
fn an_sa_that_cannot_be_beside_the_first_is_told_with_both_values() {
    let first = state("");
    let second = first.replace("0x1001", "0x1002").replace("10111213 128", "10111214 128");
    let told = |second: &str| {
        let texts =
            first.clone() + second + &policy("dir out src 10.1.0.0/16 dst 10.2.0.0/16", TUNNEL);
        let imported = good(&[&texts]);
        let of = |one: &import::Omission| format!("{}: {}: {}\n", one.place, one.word, one.reason);
        imported.omissions.iter().map(of).collect::<String>()
    };
    let esn = told(&second.replace("128", "128 replay-window 32 flag esn"));
    let wanted = "one:2:19: esn: it has sequence numbers of 64 bits (esn), the peer's first SA \
                  (one:1:19) sequence numbers of 32 bits (no esn); all SAs of a peer";
    assert!(esn.contains(wanted), "{esn}");
    let udp = told(&second.replace("128", "128 encap espinudp 4500 4500 0.0.0.0"));
    assert!(
        udp.contains("encap: it has ESP in UDP to port 4500, the peer's first SA (one:1:19) no"),
        "{udp}"
    );
    assert!(!told(&second).contains("all SAs of a peer have the same"));
}

#[test]
fn an_sa_of_one_cpu_is_taken_and_told() {
    let imported = good(&[&state("pcpu-num 3")]);
    assert_eq!(imported.sas, 0, "no policy names it");
    let of = |one: &import::Omission| one.word == "pcpu-num" && one.reason.contains("RFC 9611");
    assert!(imported.omissions.iter().any(of), "{:?}", imported.omissions);
}
