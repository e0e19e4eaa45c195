//! `ports` of a policy: by which ports a packet must come for the policy to speak of it.

use config::validated::Policy;
use config::{Validated, differences, parse};
use dataplane::PortId;

/// Ports 0 to 4, and the host port 5.
const HEAD: &str = r#"
[node]
name = "a"
[port.lan-a]
netdev = "eth0"
side = "protected"
[port.wan-a]
netdev = "eth1"
side = "unprotected"
[port.lan-b]
netdev = "eth2"
side = "protected"
[port.wan-b]
netdev = "eth3"
side = "unprotected"
[port.lan-c]
netdev = "eth4"
side = "protected"
"#;

fn policy(name: &str, ports: &str) -> String {
    format!(
        "[[policy]]\nname = \"{name}\"\naction = \"bypass\"\n{ports}\nlocal = [\"any\"]\n\
         remote = [\"any\"]\n"
    )
}

fn meaning(text: &str) -> Validated {
    parse(text, "a.toml").unwrap_or_else(|errors| panic!("{errors}\n{text}")).validated
}

fn ingress(policy: &Policy) -> Option<Vec<u16>> {
    let ports = policy.ingress.as_ref()?;
    assert_eq!(ports.numbers().to_vec(), ports.ports().map(|PortId(n)| n).collect::<Vec<_>>());
    Some(ports.numbers().to_vec())
}

/// FC-32: what a policy of one port says is not said of a packet of another.
#[test]
fn of_a_side_that_is_named_only_the_named_ports_are_meant() {
    for (ports, meant) in [
        ("", None),
        ("ports = [\"lan-a\"]", Some(vec![0, 1, 3])),
        ("ports = [\"lan-c\", \"lan-a\"]", Some(vec![0, 1, 3, 4])),
        ("ports = [\"host\"]", Some(vec![1, 3, 5])),
        ("ports = [\"wan-b\"]", Some(vec![0, 2, 3, 4, 5])),
        ("ports = [\"wan-b\", \"lan-b\", \"lan-b\"]", Some(vec![2, 3])),
        ("ports = [\"lan-a\", \"lan-b\", \"lan-c\", \"host\"]", None),
        ("ports = [\"wan-a\", \"wan-b\"]", None),
    ] {
        let config = meaning(&format!("{HEAD}{}", policy("p", ports)));
        assert_eq!(ingress(&config.policies[0]), meant, "{ports}");
        let effective = config.effective();
        assert_eq!(meaning(&effective), config, "{effective}");
    }
}

#[test]
fn another_port_is_a_difference_and_another_way_to_name_the_same_is_none() {
    let with = |ports: &str| meaning(&format!("{HEAD}{}", policy("p", ports)));
    let (before, after) = (with("ports = [\"lan-a\"]"), with("ports = [\"lan-b\"]"));
    let told = differences(&before, &after);
    assert_eq!(told.len(), 1);
    assert!(told[0].before.contains("ports = [\"lan-a\", \"wan-a\", \"wan-b\"]"), "{told:?}");
    assert!(told[0].after.contains("ports = [\"wan-a\", \"lan-b\", \"wan-b\"]"), "{told:?}");
    let same = with("ports = [\"lan-a\", \"wan-b\", \"wan-a\"]");
    assert_eq!(differences(&before, &same), []);
    assert_eq!(differences(&with(""), &with("ports = [\"wan-a\", \"wan-b\"]")), []);
}

/// 1,000 by 1,000 hosts in both directions are 2,000,000 rules, half of what is held.
#[test]
fn ports_with_groups_copy_no_policies_and_ports_with_policies_of_their_own_do() {
    let hosts = |network: u32| {
        let host = |n: u32| format!("\"10.{network}.{}.{}\"", n / 100, n % 100 * 2);
        (0..1000).map(host).collect::<Vec<_>>().join(", ")
    };
    let wide = policy("wide", "")
        .replace("local = [\"any\"]", &format!("local = [{}]", hosts(1)))
        .replace("remote = [\"any\"]", &format!("remote = [{}]", hosts(2)));
    let groups = HEAD.replace("side = \"protected\"", "side = \"protected\"\ngroups_in = [\"g\"]");
    let text = format!("{groups}[group.g]\n{wide}");
    assert_eq!(meaning(&text).policies.len(), 1);
    let alone = format!("{text}{}", policy("alone", "ports = [\"lan-a\"]"));
    let errors = parse(&alone, "a.toml").unwrap_err().to_string();
    let line = 1 + alone.lines().position(|line| line.contains("\"alone\"")).unwrap();
    let expected = "the policies compile to 4000004 rules with this one; the limit is 4000000";
    assert!(errors.contains(&format!("a.toml:{line}:8")) && errors.contains(expected), "{errors}");
    assert!(errors.contains("shorten the lists"), "{errors}");
}

#[test]
fn policies_that_name_the_same_ports_share_the_list() {
    let policies: String =
        (0..3).map(|n| policy(&format!("p{n}"), "ports = [\"lan-b\", \"lan-a\"]")).collect();
    let config = meaning(&format!("{HEAD}{policies}"));
    let lists = config.policies.iter().map(|policy| policy.ingress.as_ref().unwrap().numbers());
    let lists: Vec<_> = lists.collect();
    assert!(lists.iter().all(|list| std::sync::Arc::ptr_eq(list, lists[0])));
}

#[test]
fn too_many_different_lists_are_refused_where_they_are_too_many() {
    // Any of 4096 lists: 12 ports, each named or not, the last always.
    let mut text = String::from("[node]\nname = \"a\"\n");
    for port in 0..13 {
        text += &format!("[port.p{port}]\nnetdev = \"e{port}\"\nside = \"protected\"\n");
    }
    for list in 0..1025u32 {
        let named = (0..12).filter(|bit| list >> bit & 1 == 1).map(|bit| format!("\"p{bit}\", "));
        let ports = format!("ports = [{}\"p12\"]", named.collect::<String>());
        text += &policy(&format!("q{list}"), &ports);
    }
    let errors = parse(&text, "a.toml").unwrap_err();
    assert_eq!(errors.errors(), 1, "{errors}");
    let line = text.lines().position(|line| line.contains("q1024")).unwrap() + 3;
    let error = errors.to_string();
    assert!(
        error.contains(&format!("a.toml:{line}:9: error: more than 1024 different lists")),
        "{error}"
    );
}

/// Ports with equal policies share a table: a refusal comes before the tables are compiled.
#[test]
fn rules_are_counted_for_each_table() {
    let entries = |net: u8, count: u32| {
        let one = |n| format!("\"10.{net}.{}.{}\"", n >> 8, n & 255);
        (0..count).map(one).collect::<Vec<_>>().join(", ")
    };
    let wide = format!(
        "[[policy]]\nname = \"wide\"\naction = \"discard\"\nlocal = [{}]\nremote = [{}]\n",
        entries(1, 1000),
        entries(2, 500),
    );
    // 2 directions of 500 000 rules, in one table, in two, and in four.
    for (named, fits) in
        [(&[][..], true), (&["lan-a"], true), (&["lan-a", "lan-b", "lan-c"], false)]
    {
        let name = |port: &&str| policy(port, &format!("ports = [\"{port}\"]"));
        let policies: String = named.iter().map(name).collect();
        let text = format!("{HEAD}{policies}{wide}");
        let read = parse(&text, "a.toml");
        assert_eq!(read.is_ok(), fits, "{named:?}");
        if let Err(errors) = read {
            assert!(errors.to_string().contains("rules with this one"), "{errors}");
        }
    }
}
