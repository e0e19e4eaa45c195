//! swanctl.conf of strongSwan.

use config::validated::{Action, KeySource, Peer, Policy, Validated};
use import::{Fate, Foreign, ImportErrors, Imported, Options, swanctl};
use ipsec::{Mode, Suite};

const CONF: &str = include_str!("data/swanctl.conf");
const EXPECTED: &str = include_str!("data/swanctl.toml");

fn imported(text: &str) -> Result<Imported, ImportErrors> {
    swanctl(&[Foreign::new("swanctl.conf", text)], &Options::default())
}

fn good(text: &str) -> Imported {
    imported(text).unwrap_or_else(|errors| panic!("{errors}"))
}

fn errors(text: &str) -> String {
    imported(text).err().map_or_else(|| panic!("imported: {text}"), |errors| errors.to_string())
}

fn parsed(imported: &Imported) -> Validated {
    match config::parse(&imported.text, "imported") {
        Ok(parsed) => parsed.validated,
        Err(errors) => panic!("{errors}\n{}", imported.text),
    }
}

/// Words, places and reasons of what was not taken.
fn omissions(imported: &Imported) -> String {
    let of = |one: &import::Omission| {
        format!("{}: {}: {}: {}\n", one.place, one.fate.name(), one.word, one.reason)
    };
    imported.omissions.iter().map(of).collect()
}

/// A connection between two fixed addresses with these lines in its only child.
fn child(lines: &str) -> String {
    connection("", lines)
}

fn connection(lines: &str, of_child: &str) -> String {
    format!(
        "connections {{ gw-b {{\nlocal_addrs = 192.0.2.1\nremote_addrs = 198.51.100.7\n{lines}\n\
         children {{ net {{\nlocal_ts = 10.1.0.0/16\nremote_ts = 10.2.0.0/16\n\
         esp_proposals = aes256gcm16\nstart_action = trap\n{of_child}\n}} }} }} }}\n"
    )
}

fn peer(config: &Validated) -> &Peer {
    let [peer] = &config.peers[..] else { panic!("{} peers", config.peers.len()) };
    peer
}

fn policy<'c>(config: &'c Validated, name: &str) -> &'c Policy {
    config.policies.iter().find(|policy| policy.name == name).unwrap_or_else(|| panic!("{name}"))
}

#[test]
fn a_file_with_templates_becomes_this_configuration() {
    let imported = good(CONF);
    parsed(&imported);
    assert_eq!(imported.text, EXPECTED, "tests/data/swanctl.toml");
    assert!(!imported.text.contains("sesame") && !omissions(&imported).contains("sesame"));
}

#[test]
fn each_child_is_a_peer_with_its_policies() {
    let config = parsed(&good(CONF));
    let names: Vec<&str> = config.peers.iter().map(|peer| peer.name.as_str()).collect();
    assert_eq!(names, ["partner-servers", "partner-web", "branch", "backup"]);
    assert!(config.peers.iter().all(|peer| peer.keys == KeySource::Ike));
    let [servers, web, branch, backup] = &config.peers[..] else { panic!("{names:?}") };
    assert_eq!(servers.tunnel(), web.tunnel());
    assert_eq!((servers.suite, backup.suite), (Suite::Aes256Gcm, Suite::ChaCha20Poly1305));
    assert_eq!(branch.suite, Suite::Aes128Gcm, "charon's default");
    assert_eq!(servers.lifetime.soft.seconds, Some(3000));
    assert_eq!(servers.lifetime.hard.seconds, Some(3300), "a tenth more");
    assert_eq!(web.lifetime.hard.seconds, Some(3600));
    assert_eq!(servers.lifetime.soft.bytes, Some(100 << 30));
    assert_eq!(backup.encapsulation.mode, Mode::Transport);
    assert_eq!(backup.encapsulation.udp.is_some(), branch.encapsulation.udp.is_none());
    let servers = policy(&config, "servers");
    assert_eq!(servers.action, Action::Protect(config::PeerId(0)));
    assert_eq!(servers.selector.remote.len(), 2);
    let order = ["printers", "rsync", "web", "lan", "servers", "nothing-else"];
    let mut sorted: Vec<&Policy> = config.policies.iter().collect();
    sorted.sort_by_key(|policy| std::cmp::Reverse(policy.priority));
    let sorted: Vec<&str> = sorted.iter().map(|policy| policy.name.as_str()).collect();
    assert_eq!(sorted, order, "as charon sorts them in Linux");
}

#[test]
fn all_that_has_no_place_is_told_with_its_line() {
    let told = omissions(&good(CONF));
    for line in [
        "swanctl.conf:2:1: not taken: include: other files are not opened",
        "swanctl.conf:24:5: differs: mobike: charon moves running SAs to other addresses",
        "swanctl.conf:36:17: not taken: hw_offload: Lockgate's configuration says it",
        "swanctl.conf:47:17: differs: start_action: a packet without an SA",
        "swanctl.conf:44:13: differs: esp_proposals: a peer has one suite: aes-128-gcm",
        "differs: esp_proposals: a peer has one suite: chacha20-poly1305, from chacha20poly1305",
        "not taken: pools: addresses that IKE assigns",
        "not taken: remote_addrs: child phones of roadwarrior is left out: the peer may have",
        "not taken: secrets: identities, certificates, secrets and IKE's own settings stay",
    ] {
        assert!(told.contains(line), "no {line:?} in:\n{told}");
    }
    assert!(
        good(CONF).text.contains("remote = \"198.51.100.1\" # FILL IN: the address of branch.")
    );
}

#[test]
fn further_files_go_on_with_the_first_and_answer_its_include() {
    let files = [
        Foreign::new("/etc/swanctl/swanctl.conf", "include conf.d/*.conf\n"),
        Foreign::new("/etc/swanctl/conf.d/b.conf", &child("")),
        Foreign::new("/etc/swanctl/conf.d/c.conf", "connections { gw-b { encap = yes } }"),
    ];
    let imported = swanctl(&files, &Options::default()).unwrap_or_else(|errors| panic!("{errors}"));
    assert!(peer(&parsed(&imported)).encapsulation.udp.is_some());
    assert!(!omissions(&imported).contains("include"), "{}", omissions(&imported));
    assert!(imported.text.contains("# Written by `lockgate import swanctl` from /etc/swanctl/"));
}

#[test]
fn selectors_of_protocols_ports_and_lists_become_policies() {
    let of = |local: &str, remote: &str| {
        let text = child(&format!("local_ts = {local}\nremote_ts = {remote}"));
        let config = parsed(&good(&text));
        let of = |policy: &Policy| {
            let selector = &policy.selector;
            let ports = selector.upper.ports().map(|ports| ports.map(<[_]>::to_vec));
            (selector.local.len(), selector.remote.len(), selector.protocol, ports)
        };
        config.policies.iter().map(of).collect::<Vec<_>>()
    };
    let web = vec![policy::PortRange { lo: 80, hi: 80 }];
    assert_eq!(
        of("10.1.0.0/16", "10.2.0.0/16[tcp/80]"),
        [(1, 1, Some(6), Some([vec![], web.clone()]))]
    );
    assert_eq!(of("10.1.0.0/16,10.2.0.0/24", "10.3.0.0/16"), [(2, 1, None, None)]);
    assert_eq!(of("dynamic", "dynamic[/80]"), [(1, 1, None, Some([vec![], web]))]);
    assert_eq!(
        of("10.1.0.0/16,fd00::/8", "10.2.0.0-10.2.0.9"),
        [(1, 1, None, None)].map(|one| one)
    );
    assert_eq!(of("10.1.0.0/16[icmp],10.1.0.0/16[udp]", "10.2.0.0/16").len(), 2);
}

#[test]
fn a_child_that_would_hold_for_other_packets_here_is_left_out() {
    for (lines, reason) in [
        ("mark_out = 5", "it is for a part of the packets"),
        ("if_id_in = %unique", "it is for a part of the packets"),
        ("ah_proposals = sha256", "Lockgate has no AH"),
        ("mode = BEET", "Lockgate has no such mode"),
        ("mode = transport", "in transport mode both selectors are the ends"),
        ("remote_ts = 10.2.0.0/16[tcp/opaque]", "Lockgate has no OPAQUE ports"),
        ("remote_ts = 10.2.0.0/16[tcp/nfs]", "nothing here knows the names"),
        ("remote_ts = 10.2.0.0/16[icmp/8]", "Lockgate takes an SA for all ICMP or for none"),
        ("remote_ts = fd00::/8", "no packet matches both of its selectors"),
    ] {
        let imported = good(&child(lines));
        assert_eq!((imported.peers, imported.policies), (0, 0), "{lines}");
        let told = omissions(&imported);
        assert!(
            told.contains(&format!("child net of gw-b is left out: {reason}")),
            "{lines}: {told}"
        );
        parsed(&imported);
    }
    for (lines, reason) in [
        ("remote_addrs = %any", "the peer may have any address"),
        ("remote_addrs = 198.51.100.0/24", "the peer may have each address of 198.51.100.0/24"),
        ("remote_addrs = 192.0.2.8-192.0.2.9", "the peer may have each address of 192.0.2.8-"),
        ("remote_addrs = 192.0.2.1", "both ends are 192.0.2.1"),
        ("remote_addrs = 127.0.0.1", "127.0.0.1 is a loopback address"),
        ("if_id_out = 7", "it is for a part of the packets"),
    ] {
        let told = omissions(&good(&connection(lines, "")));
        assert!(
            told.contains(&format!("child net of gw-b is left out: {reason}")),
            "{lines}: {told}"
        );
    }
    let twice =
        child("").replace("children {", "children { first : connections.gw-b.children.net {}");
    let told = omissions(&good(&twice));
    assert!(told.contains("an earlier child has the same ends and selectors"), "{told}");
    let assigned = connection("vips = 0.0.0.0", "local_ts = dynamic");
    assert!(omissions(&good(&assigned)).contains("IKE assigns the address of its selector"));
}

#[test]
fn settings_of_a_child_become_those_of_its_peer() {
    let of = |lines: &str| {
        let imported = good(&child(lines));
        let config = parsed(&imported);
        (peer(&config).clone(), omissions(&imported))
    };
    let (plain, told) = of("");
    assert_eq!(told.lines().count(), 2, "charon's part, and its default of mobike: {told}");
    assert_eq!((plain.replay_window, plain.lifetime), (1024, ipsec::Lifetime::NONE));
    assert_eq!(of("replay_window = 100").0.replay_window, 128);
    assert!(of("replay_window = 0").1.contains("32 was taken"));
    assert_eq!(of("rekey_time = 0").0.lifetime, ipsec::Lifetime::NONE);
    let (limited, _) = of("life_packets = 1000\nrekey_packets = 900\nlife_time = 2h");
    assert_eq!(limited.lifetime.hard.packets, Some(1000));
    assert_eq!(limited.lifetime.hard.seconds, Some(7200));
    let (odd, told) = of("rekey_time = 2h\nlife_time = 1h");
    assert_eq!(odd.lifetime.soft.seconds, None);
    assert!(told.contains("an SA would end before it is renewed"), "{told}");
    for (lines, word) in [
        ("ipcomp = yes", "refused: ipcomp"),
        ("sha256_96 = yes", "refused: sha256_96"),
        ("tfc_padding = mtu", "refused: tfc_padding"),
        ("policies = no", "differs: policies"),
        ("copy_ecn = no", "differs: copy_ecn"),
        ("copy_dscp = in", "differs: copy_dscp"),
        ("updown = /bin/up", "differs: updown"),
        ("esp_proposals = 3des-sha1", "refused: esp_proposals"),
        ("esp_proposals = default", "differs: esp_proposals"),
        ("start_action =", "differs: start_action"),
    ] {
        let (_, told) = of(lines);
        assert!(told.contains(word), "{lines}: {told}");
    }
    assert!(good(&child("esp_proposals = 3des-sha1")).text.contains("# FILL IN: the suite"));
    let text = good(&child("copy_dscp = no\ncopy_df = yes")).text;
    assert!(text.contains("dscp = 0\n") && text.contains("df = \"copy\"\n"), "{text}");
    let text = good(&connection("encap = yes\nremote_port = 4501\nlocal_port = 4510", "")).text;
    assert!(text.contains("remote_port = 4501\n"), "{text}");
    assert!(text.contains("allow_host = [\"udp/500\", \"udp/4500\", \"udp/4510\"]"), "{text}");
}

#[test]
fn policies_that_pass_or_drop_need_no_peer_and_priorities_hold() {
    let text = "connections { here { children {\n\
                wide { mode = drop\n priority = 1\n remote_ts = 10.0.0.0/8 }\n\
                lan { mode = pass\n start_action = trap\n remote_ts = 10.1.0.0/16 }\n} } }";
    let imported = good(text);
    let config = parsed(&imported);
    let (wide, lan) = (policy(&config, "wide"), policy(&config, "lan"));
    assert_eq!((wide.action, lan.action), (Action::Discard, Action::Bypass));
    assert!(wide.priority > lan.priority, "the lower number of charon's is asked first");
    assert_eq!(lan.selector.local.len(), 1, "dynamic is any, of the other end's family");
    let differs = |one: &&import::Omission| one.fate == Fate::Differs;
    let told: Vec<&str> = imported.omissions.iter().filter(differs).map(|one| &*one.word).collect();
    assert_eq!(told, ["start_action"]);
}

#[test]
fn moves_of_charons_are_told_where_it_may_make_them() {
    let notes = |lines: &str| {
        let told = omissions(&good(&connection(lines, "")));
        told.matches("differs: mobike: charon moves running SAs").count()
    };
    assert_eq!(["", "mobike = yes", "version = 2"].map(notes), [1; 3]);
    assert_eq!(["mobike = no", "version = 1"].map(notes), [0; 2]);
    // Once for all connections that do not speak of it, and for each line that does.
    let told = omissions(&good(CONF));
    assert_eq!(told.matches("differs: mobike").count(), 1, "{told}");
    assert!(errors(&connection("mobike = nein", "")).contains("`nein` is not yes or no"));
}

#[test]
fn a_child_left_out_is_told_with_the_policy_that_would_pass_its_packets_in_cleartext() {
    let told = |left_out: &str, pass: &str| {
        let more =
            format!("start_action = trap\n}}\nall {{ mode = pass\nremote_ts = 10.0.0.0/8\n{pass}");
        omissions(&good(&child(&format!("mark_out = 5\n{left_out}\n{more}"))))
    };
    let wanted = "its selectors match. Without it policy all may pass its packets in cleartext";
    for (left_out, pass) in [
        ("priority = 10", ""),
        ("priority = 10", "priority = 20"),
        ("", "priority = 500000"),
        ("priority = 10\nremote_ts = x.example", "priority = 20"),
        ("priority = 10\nmode = drop", "priority = 20"),
    ] {
        let told = told(left_out, pass);
        assert!(told.contains(wanted), "{left_out}, {pass}: {told}");
    }
    for (left_out, pass) in [
        // In Linux too the policy that passes comes first.
        ("", ""),
        ("priority = 20", "priority = 10"),
        ("priority = 10\nmode = pass", "priority = 20"),
        // It has other packets.
        ("priority = 10", "remote_ts = 10.3.0.0/16"),
        ("priority = 10", "remote_ts = fd00::/8"),
        ("priority = 10\nlocal_ts = 10.1.0.0/16", "local_ts = 10.9.0.0/16"),
        // It passes nothing.
        ("priority = 10", "mode = drop"),
    ] {
        let told = told(left_out, pass);
        assert!(told.contains("child net of gw-b is left out"), "{left_out}, {pass}: {told}");
        assert!(!told.contains("cleartext"), "{left_out}, {pass}: {told}");
    }
}

#[test]
fn mistakes_have_a_place_and_a_right_word() {
    for (text, wanted) in [
        (child("remot_ts = 10.0.0.0/8"), "`remot_ts` is not a word of a child"),
        (child("remot_ts = 10.0.0.0/8"), "did you mean `remote_ts`?"),
        (child("mode = tunel"), "did you mean `tunnel`?"),
        (child("rekey_time = 1y"), "`1y` is not a time like"),
        (child("remote_ts = 10.0.0.0/40"), "`10.0.0.0/40` is not a selector like"),
        (child("esp_proposals = aes256gmc16"), "did you mean `aes256gcm16`?"),
        (child("start_action = trp"), "did you mean `trap`?"),
        (child("copy_df = maybe"), "`maybe` is not yes or no"),
        (connection("remote_adrs = 192.0.2.9", ""), "did you mean `remote_addrs`?"),
        (connection("childen { }", ""), "did you mean `children`?"),
        (connection("remote_port = 70000", ""), "`70000` is not a UDP port"),
    ] {
        let told = errors(&text);
        assert!(told.contains(wanted) && told.starts_with("swanctl.conf:"), "{text}: {told}");
    }
}

#[test]
fn a_misspelt_section_at_the_top_is_told() {
    let told = errors("conections { }\n");
    assert!(told.contains("swanctl.conf:1:1: error: `conections` is not"), "{told}");
    assert!(told.contains("did you mean `connections`?"), "{told}");
    let told = omissions(&good(&(child("") + "templates-of-old { }\n")));
    assert!(told.contains("swanctl.conf has no such section"), "{told}");
    assert!(errors("include conf.d/*.conf\n").contains("files that `include` names"));
}

#[test]
fn limits_beyond_ten_years_are_left_out_and_told() {
    let of = |lines: &str| {
        let imported = good(&child(lines));
        (peer(&parsed(&imported)).lifetime, omissions(&imported))
    };
    for (line, key) in
        [("rekey_time = 400000d", "rekey_time"), ("life_time = 315360001", "life_time")]
    {
        let (lifetime, told) = of(line);
        assert_eq!(lifetime, ipsec::Lifetime::NONE, "{line}");
        assert!(told.contains(&format!("not taken: {key}: ")), "{line}: {told}");
        assert!(told.contains("seconds are longer than ten years"), "{line}: {told}");
    }
    let (lifetime, told) = of("rekey_time = 3650d");
    assert_eq!(lifetime.soft.seconds, Some(315_360_000));
    assert!(told.contains("not taken: life_time: 346896000 seconds are longer"), "{told}");
    assert!(
        errors(&child("rekey_time = 99999999999999999999h")).contains("`99999999999999999999h`")
    );
}

#[test]
fn addresses_that_are_not_known_are_told_and_counted() {
    let named = good(&connection("remote_addrs = gw-c.example.org", ""));
    let told = omissions(&named);
    assert!(told.contains("swanctl.conf:4:1: fill in: remote_addrs: a peer has no name"), "{told}");
    let lines: Vec<&str> = named.text.lines().collect();
    let wanted: Vec<(&str, &str)> =
        named.to_fill_in.iter().map(|one| (one.section.as_str(), one.key.as_str())).collect();
    let expected = [
        ("[node]", "name"),
        ("[port.lan]", "netdev"),
        ("[port.wan]", "netdev"),
        ("[peer.gw-b]", "remote"),
    ];
    assert_eq!(wanted, expected);
    assert!(named.to_fill_in.iter().all(|one| lines[one.line - 1].contains(import::FILL_IN)));
    let mixed = good(&connection("remote_addrs = 2001:db8::1", ""));
    let told = omissions(&mixed);
    let wanted = "fill in: local_addrs: 192.0.2.1 is of another IP version than the peer's address";
    assert!(told.contains(wanted), "{told}");
    assert!(mixed.to_fill_in.iter().any(|one| one.key == "local"));
}

#[test]
fn a_name_that_is_not_as_in_the_text_is_told() {
    let long = "g".repeat(90);
    for (name, given) in [("b\u{fc}ro", "peer b\u{fc}ro is b-ro"), (&*long, "is gggggggg")] {
        let told = omissions(&good(&child("").replace("gw-b {", &format!("{name} {{"))));
        assert!(told.contains("differs: net: ") && told.contains(given), "{told}");
    }
    let two = "connections {\n\
               a-b { remote_addrs = 192.0.2.2\nlocal_addrs = 192.0.2.1\nchildren { x { } } }\n\
               a { remote_addrs = 192.0.2.3\nlocal_addrs = 192.0.2.1\n\
               children { b { }\nc { local_ts = 10.0.0.0/8 } } } }";
    let told = omissions(&good(two));
    assert!(told.contains("peer a-b is a-b-n2 here"), "{told}");
    assert!(!omissions(&good(&child(""))).contains("differs: net"), "nothing was renamed");
}

#[test]
fn ike_of_version_1_is_told() {
    let told = omissions(&good(&connection("version = 1\nlocal { auth = xauth-eap }", "")));
    assert!(told.contains("differs: version: charon would install SAs of IKEv1 too"), "{told}");
    assert!(told.contains("differs: auth: XAuth is of IKEv1"), "{told}");
    assert!(!omissions(&good(&connection("version = 2", ""))).contains("IKEv1"));
}

#[test]
fn a_text_that_is_no_utf_8_has_the_place_of_its_first_wrong_byte() {
    let text = b"connections {\n  # \xc3\xbc B\xfcro\n}\n";
    let errors = Foreign::read(&text[..], "swanctl.conf").err().map(|errors| errors.to_string());
    let wanted = "swanctl.conf:2:8: error: not a text in UTF-8\n  = help: save the file as UTF-8";
    assert!(errors.as_ref().is_some_and(|told| told.starts_with(wanted)), "{errors:?}");
}
