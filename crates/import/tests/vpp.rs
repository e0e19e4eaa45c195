//! Start-up words and commands of VPP.

use config::validated::{Action, Cache, Validated};
use import::{Fate, Foreign, ImportErrors, Imported, KeyPlan, Options, vpp};

const VPP: &str = include_str!("data/ipsec.vpp");
const SA: &str = "ipsec sa add 10 spi 4097 esp crypto-alg aes-gcm-128 crypto-key \
                  000102030405060708090a0b0c0d0e0f tunnel src 192.0.2.1 dst 198.51.100.7";

fn imported(text: &str) -> Result<Imported, ImportErrors> {
    let keys = Some(KeyPlan { file: "x.keys".into(), directory: None });
    vpp(&Foreign::new("vpp", text), &Options { keys, ..Options::default() })
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

fn words(imported: &Imported) -> Vec<&str> {
    imported.omissions.iter().map(|one| one.word.as_str()).collect()
}

#[test]
fn a_tunnel_becomes_a_peer_its_policies_and_its_keys() {
    let imported = good(VPP);
    let config = parsed(&imported);
    let [dns, tunnel] = &config.policies[..] else { panic!("{}", imported.text) };
    assert_eq!((dns.action, dns.only), (Action::Bypass, Some(policy::Direction::Outbound)));
    assert_eq!((tunnel.action, tunnel.only), (Action::Protect(config::PeerId(0)), None));
    assert_eq!(tunnel.selector.remote[0].to_string(), "10.2.0.0-10.2.0.99", "no prefix");
    assert!(dns.priority > tunnel.priority);
    let [keys] = &imported.keys[..] else { panic!("{} key files", imported.keys.len()) };
    // The salt stands behind the key.
    assert!(keys.text.contains("out 0x00001001 000102030405060708090a0b0c0d0e0f10111213\n"));
    assert!(keys.text.contains("in 0x00001002 202122232425262728292a2b2c2d2e2f30313233\n"));
    assert!(!imported.text.contains("0405060708"));
}

#[test]
fn start_up_words_set_the_flow_cache_or_are_told() {
    let flows = |text: &str| match parsed(&good(text)).cache {
        Cache::On { flows, .. } => flows,
        Cache::Off => 0,
    };
    assert_eq!(flows("ipsec { ipv4-outbound-spd-flow-cache off }"), 0);
    assert_eq!(flows("ipsec {\n ipv4-outbound-spd-flow-cache on\n}"), config::DEFAULT_FLOWS);
    let sized = "ipsec { ipv4-outbound-spd-flow-cache on ipv4-outbound-spd-hash-buckets 1024 \
                 ipv4-inbound-spd-flow-cache on ipv4-inbound-spd-hash-buckets 1024 }";
    assert_eq!(flows(sized), 2048);
    let fast = good("ipsec { ipv4-outbound-spd-fast-path on spd-fast-path-num-buckets 9 }");
    assert_eq!(words(&fast), ["ipv4-outbound-spd-fast-path", "spd-fast-path-num-buckets"]);
    let told = errors("ipsec {\n  ipv4-outbound-spd-flowcache on\n}");
    assert!(told.starts_with("vpp:2:3: error: "), "{told}");
    assert!(told.contains("did you mean `ipv4-outbound-spd-flow-cache`?"), "{told}");
    assert!(errors("ipsec { ip4 {").contains("a closing brace is missing"));
}

#[test]
fn of_equal_priorities_the_later_decides_and_inbound_bypass_comes_before_discard() {
    let policy = |rest: &str| format!("ipsec policy add spd 1 {rest}\n");
    let out = policy("priority 5 outbound action discard remote-ip-range 10.0.0.0 - 10.0.0.9")
        + &policy("priority 5 outbound action bypass remote-ip-range 10.0.0.5 - 10.0.0.19");
    let config = parsed(&good(&out));
    let by_priority =
        |action| config.policies.iter().find(|policy| policy.action == action).unwrap().priority;
    assert!(by_priority(Action::Bypass) > by_priority(Action::Discard));
    let inbound = policy("priority 90 inbound action discard")
        + &policy("priority 1 inbound action bypass remote-ip-range 10.0.0.5 - 10.0.0.19");
    let config = parsed(&good(&inbound));
    let [first, second] = &config.policies[..] else { panic!("{inbound}") };
    assert_eq!((first.action, second.action), (Action::Bypass, Action::Discard));
    assert!(first.priority > second.priority);
}

#[test]
fn what_has_no_place_is_told() {
    let text = format!(
        "{SA} async\nipsec sa add 11 spi 4099 ah crypto-alg none\n\
         ipsec sa add 12 spi 4100 crypto-alg aes-ctr-128 crypto-key 00 integ-alg sha1-96\n\
         ipsec policy add spd 1 priority 1 outbound action protect sa 12\n\
         ipsec policy add spd 2 priority 1 outbound action discard\n\
         ipsec policy add spd 1 priority 1 outbound action protect sa 10\n\
         set interface ipsec spd eth0 1\nset interface state eth0 up\nipsec itf create\n"
    );
    let imported = good(&text);
    parsed(&imported);
    assert_eq!(imported.policies, 1);
    let expected = [
        "async",
        "ah",
        "aes-ctr-128",
        "sa",
        "spd",
        "eth0",
        "set interface state eth0 up",
        "ipsec itf create",
    ];
    assert_eq!(words(&imported), expected);
    let ports = "ipsec policy add spd 1 priority 1 inbound action bypass protocol 17 \
                 local-port-range 53 - 53";
    assert_eq!(good(ports).omissions[0].fate, Fate::Differs);
}

#[test]
fn mistakes_have_a_place_and_a_right_word() {
    for (text, wanted) in [
        (format!("{SA} use-esm"), "did you mean `use-esn`?"),
        (SA.replace("aes-gcm-128", "aes-gmc-128"), "did you mean `aes-gcm-128`?"),
        (SA.replace(" dst 198.51.100.7", ""), "`src` or `dst` of the tunnel is missing"),
        (SA.replace("192.0.2.1", "192.0.2.999"), "`192.0.2.999` is not an address"),
        (SA.replace("0d0e0f", "0d0e0f1"), "the key is no hexadecimal number"),
        ("ipsec polciy add spd 1".into(), "did you mean `policy`?"),
        ("ipsec policy add spd 1 priority 1 outbound action protect".into(), "`sa` of"),
        (
            "ipsec policy add spd 1 action bypass local-ip-range 10.0.0.9 - 10.0.0.1".into(),
            "do not belong together",
        ),
    ] {
        let told = errors(&text);
        assert!(told.contains(wanted) && told.starts_with("vpp:1:"), "{text}: {told}");
        assert!(!told.contains("0405060708"), "{told}");
    }
    assert!(errors("show version").contains("nothing to import"));
}
