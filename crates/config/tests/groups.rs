//! Security groups: sets, groups, rules and the ports that list groups.

use std::fmt::Write;

use config::groups::{GroupId, Rule, RuleAction, RuleAddresses, SetId};
use config::{
    Diagnostic, IncludedTexts, Parsed, SetFiles, Severity, Validated, differences, edited, parse,
    parse_policies, parse_with,
};
use policy::{
    Action, AddressRange, GroupMode, GroupSide, Policy, PortRange, TcpSegments, UpperSelector,
};
use wire::Family;

const GOOD: &str = r#"[node]
name = "gw"
[port.lan]
netdev = "eth1"
side = "protected"
groups_in = ["web", "base"]
groups_out = ["base"]
[port.dmz]
netdev = "eth2"
side = "protected"
groups_in = ["base"]
[port.wan]
netdev = "eth0"
side = "unprotected"
[set.admins]
addresses = ["10.9.0.0/24", "2001:db8:9::/64", "10.8.0.1-10.8.0.9"]
[group.web]
[group.base]
mode = "audit"
[[rule]]
group = "web"
name = "http"
action = "permit"
from = ["any"]
to = ["10.1.0.0/16"]
protocol = "tcp"
from_ports = ["1024-65535"]
to_ports = ["80", "443"]
[[rule]]
group = "base"
action = "deny"
from = ["@admins", "10.7.0.0/16"]
to = ["any"]
protocol = "icmp"
icmp = ["8"]
[[rule]]
group = "web"
action = "permit"
from = ["10.8.0.5", "@admins"]
to = ["0.0.0.0/0"]
[[policy]]
name = "lan"
action = "bypass"
local = ["any"]
remote = ["9.9.9.9"]
"#;

fn parsed(text: &str) -> Parsed {
    parse(text, "groups.toml").unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

fn meaning(text: &str) -> Validated {
    parsed(text).validated
}

fn range(text: &str) -> AddressRange {
    text.parse().unwrap()
}

#[test]
fn sets_groups_rules_and_lists_at_ports_are_resolved_in_the_order_of_the_file() {
    let Parsed { validated, warnings, .. } = parsed(GOOD);
    assert_eq!(warnings, []);
    let members = ["10.8.0.1-10.8.0.9", "10.9.0.0/24", "2001:db8:9::/64"].map(range);
    assert_eq!(validated.sets[0].addresses, members);
    let modes: Vec<_> = validated.groups.iter().map(|group| group.mode).collect();
    assert_eq!(modes, [GroupMode::Enforce, GroupMode::Audit]);
    let named = |rule: &Rule| (rule.group.0, rule.name.clone(), rule.number);
    let names: Vec<_> = validated.rules.iter().map(named).collect();
    assert_eq!(names, [(0, "http".into(), 1), (1, "1".into(), 1), (0, "2".into(), 2)]);
    let [http, ping, admins] = &validated.rules[..] else { panic!("three rules") };
    assert_eq!((http.action, ping.action), (RuleAction::Permit, RuleAction::Deny));
    assert_eq!(http.protocol, Some(6));
    assert!(matches!(&http.upper, UpperSelector::Ports { local, remote }
        if local.len() == 1 && remote.len() == 2));
    assert_eq!(
        admins.from,
        [RuleAddresses::Range(range("10.8.0.5")), RuleAddresses::Set(SetId(0))]
    );
    assert_eq!(admins.selector(&validated.sets).local, members);
    let [lan, dmz, wan] = &validated.ports[..] else { panic!("three ports") };
    assert_eq!(lan.groups_in, [GroupId(0), GroupId(1)]);
    assert_eq!(lan.groups_out, [GroupId(1)]);
    assert_eq!((&dmz.groups_in[..], &dmz.groups_out[..]), (&[GroupId(1)][..], &[][..]));
    assert!(wan.groups_in.is_empty() && wan.groups_out.is_empty());
}

#[test]
fn effective_text_parses_back_to_the_same_sets_groups_and_rules() {
    let validated = meaning(GOOD);
    let effective = validated.effective();
    assert_eq!(meaning(&effective), validated, "{effective}");
    assert_eq!(meaning(&effective).effective(), effective);
    for lines in [
        "[set.\"admins\"]\naddresses = [\"10.8.0.1-10.8.0.9\", \"10.9.0.0/24\", \
         \"2001:db8:9::/64\"]\n",
        "[group.\"web\"]\nmode = \"enforce\"\n",
        "name = \"http\"\naction = \"permit\"\nfrom = [\"any\"]\nto = [\"10.1.0.0/16\"]\n\
         protocol = \"tcp\"\nfrom_ports = [\"1024-65535\"]\nto_ports = [\"80\", \"443\"]\n",
        "# name = \"1\"\naction = \"deny\"\nfrom = [\"@admins\", \"10.7.0.0/16\"]\n",
        "protocol = \"icmp\"\nicmp = [\"8\"]\n",
        "groups_in = [\"web\", \"base\"]\ngroups_out = [\"base\"]\n",
        "groups_in = []\ngroups_out = []\n",
    ] {
        assert!(effective.contains(lines), "{lines}\nis not in\n{effective}");
    }
    // A set of everything has two members: "any" is none.
    let all = GOOD.replace("\"10.9.0.0/24\", ", "\"0.0.0.0/0\", \"::/0\", ");
    assert_eq!(meaning(&meaning(&all).effective()), meaning(&all));
}

#[test]
fn rules_ask_for_tcp_segments_that_open_a_connection_or_for_the_others() {
    for segments in TcpSegments::ALL {
        let (name, ports) = (segments.name(), vec![PortRange { lo: 443, hi: 443 }]);
        for (key, remote) in [("", vec![]), ("to_ports = [\"443\"]\n", ports)] {
            let asks = format!("protocol = \"tcp\"\ntcp = \"{name}\"\n{key}");
            let text = GOOD.replace("protocol = \"icmp\"\nicmp = [\"8\"]\n", &asks);
            let validated = meaning(&text);
            let upper = UpperSelector::Tcp { segments, local: vec![], remote };
            assert_eq!((validated.rules[1].protocol, &validated.rules[1].upper), (Some(6), &upper));
            let effective = validated.effective();
            assert!(effective.contains(&format!("tcp = \"{name}\"\n")), "{effective}");
            assert_eq!(meaning(&effective), validated);
            assert!(validated.group_policies().iter().any(|rule| rule.selector.upper == upper));
        }
    }
}

#[test]
fn a_rule_for_new_segments_does_not_cover_one_for_the_others() {
    let rules = |first: &str, second: &str| {
        let rule = |tcp: &str| {
            format!(
                "[[rule]]\ngroup = \"web\"\naction = \"permit\"\nfrom = [\"10.3.0.0/16\"]\n\
                 to = [\"10.4.0.0/16\"]\nprotocol = \"tcp\"\n{tcp}"
            )
        };
        parsed(&format!("{GOOD}{}{}", rule(first), rule(second))).warnings.len()
    };
    let (new, established, any) = ("tcp = \"new\"\n", "tcp = \"established\"\n", "");
    for (first, second, covered) in [
        (new, established, 0),
        (established, new, 0),
        (new, any, 0),
        (any, new, 1),
        (new, new, 1),
        (any, established, 1),
    ] {
        assert_eq!(rules(first, second), covered, "{first} {second}");
    }
}

/// One row: what is replaced in [`GOOD`], by what, the place, a part of the message, and of the
/// advice.
type Row = (&'static str, &'static str, &'static str, &'static str, &'static str);

const ERRORS: &[Row] = &[
    (
        "groups_in = [\"web\", \"base\"]",
        "groups_in = [\"wbe\", \"base\"]",
        "6:14",
        "there is no group `wbe`",
        "did you mean `web`?",
    ),
    ("groups_out = [\"base\"]", "groups_out = [\"x\"]", "7:15", "no group `x`", "[group.NAME]"),
    (
        "group = \"base\"",
        "group = \"bas\"",
        "30:9",
        "there is no group `bas`",
        "did you mean `base`?",
    ),
    ("group = \"base\"\n", "", "29:1", "[[rule]] lacks `group`", ""),
    (
        "\"@admins\", \"10.7.0.0/16\"",
        "\"@admns\"",
        "32:9",
        "no set `admns`",
        "did you mean `admins`?",
    ),
    ("\"@admins\", \"10.7.0.0/16\"", "\"@\"", "32:9", "there is no set ``", "[set.NAME]"),
    (
        "\"@admins\", \"10.7.0.0/16\"",
        "\"admins\"",
        "32:9",
        "the name of a set",
        "write \"@admins\"",
    ),
    ("\"@admins\", \"10.7.0.0/16\"", "\"10.7.0.1/16\"", "32:9", "bits set behind", ""),
    (
        "from = [\"@admins\", \"10.7.0.0/16\"]",
        "from = []",
        "32:8",
        "empty list",
        "from = [\"any\"]",
    ),
    ("to = [\"10.1.0.0/16\"]", "to = []", "25:6", "`to` is an empty list", "to = [\"any\"]"),
    ("to_ports = [\"80\", \"443\"]", "to_ports = []", "28:12", "empty list", "leave the key out"),
    (
        "to = [\"0.0.0.0/0\"]",
        "to = [\"::/0\"]\nprotocol = \"icmp\"",
        "40:6",
        "other IP version",
        "icmpv6",
    ),
    (
        "from = [\"10.8.0.5\", \"@admins\"]\nto = [\"0.0.0.0/0\"]",
        "from = [\"10.8.0.5\"]\nto = [\"::/0\"]",
        "40:6",
        "`from` and `to` have no IP version in common: the rule never matches",
        "",
    ),
    (
        "protocol = \"icmp\"\nicmp = [\"8\"]",
        "protocol = \"gre\"\nto_ports = [\"80\"]",
        "35:12",
        "protocol gre has no ports",
        "leave the ports out",
    ),
    ("protocol = \"icmp\"\n", "", "34:8", "`icmp` needs protocol", ""),
    (
        "action = \"deny\"",
        "action = \"reflct\"",
        "31:10",
        "cannot be \"reflct\"",
        "did you mean `reflect`?",
    ),
    (
        "action = \"deny\"",
        "action = \"denny\"",
        "31:10",
        "cannot be \"denny\"",
        "did you mean `deny`?",
    ),
    ("action = \"deny\"\n", "", "29:1", "[[rule]] lacks `action`", ""),
    (
        "protocol = \"icmp\"\n",
        "protocol = \"icmp\"\ntcp = \"new\"\n",
        "35:7",
        "`tcp` needs protocol \"tcp\"",
        "",
    ),
    ("protocol = \"tcp\"\n", "tcp = \"new\"\n", "26:7", "`tcp` needs protocol \"tcp\"", ""),
    (
        "protocol = \"tcp\"\n",
        "protocol = \"tcp\"\ntcp = \"establishd\"\n",
        "27:7",
        "`tcp` cannot be \"establishd\"",
        "did you mean `established`?",
    ),
    (
        "protocol = \"tcp\"\n",
        "protocol = \"tcp\"\ntcp = \"SYN/SYN,ACK\"\n",
        "27:7",
        "masks and values of TCP flags are not supported",
        "a verdict is remembered for a flow, and flags differ from packet to packet",
    ),
    (
        "protocol = \"tcp\"\n",
        "protocol = \"tcp\"\ntcp = \"0x2/0x12\"\n",
        "27:7",
        "masks and values of TCP flags are not supported",
        "tcp = \"new\" (SYN without ACK)",
    ),
    (
        "protocol = \"tcp\"\n",
        "protocol = \"tcp\"\ntcp = [\"new\"]\n",
        "27:7",
        "`tcp` must be a string",
        "",
    ),
    (
        "protocol = \"tcp\"\n",
        "protocol = \"tcp\"\ntcp_flags = \"syn\"\n",
        "27:1",
        "masks and values of TCP flags are not supported",
        "tcp = \"new\" (SYN without ACK)",
    ),
    (
        "action = \"bypass\"\n",
        "action = \"bypass\"\nprotocol = \"tcp\"\ntcp = \"new\"\n",
        "45:1",
        "masks and values of TCP flags are not supported",
        "a [[policy]] matches all segments",
    ),
    (
        "mode = \"audit\"",
        "mode = \"audti\"",
        "19:8",
        "`mode` cannot be \"audti\"",
        "did you mean `audit`?",
    ),
    (
        "name = \"http\"",
        "name = \"2\"",
        "36:1",
        "another rule of group `web` is called `2`",
        "first in line 22",
    ),
    ("name = \"http\"", "name = \"a b\"", "22:8", "\"a b\" cannot be a name", ""),
    ("to_ports", "remote_ports", "28:1", "unknown key `remote_ports`", "did you mean `to_ports`?"),
    (
        "addresses = [\"10.9.0.0/24\", \"2001:db8:9::/64\", \"10.8.0.1-10.8.0.9\"]\n",
        "",
        "15:1",
        "neither `addresses` nor `file`",
        "file = \"NAME\"",
    ),
    (
        "[\"10.9.0.0/24\", \"2001:db8:9::/64\", \"10.8.0.1-10.8.0.9\"]",
        "[]",
        "16:13",
        "the set is empty",
        "name a member",
    ),
    (
        "addresses = [\"10.9",
        "file = \"x\"\naddresses = [\"10.9",
        "16:8",
        "both `addresses` and `file`",
        "one of the two",
    ),
    (
        "addresses = [\"10.9.0.0/24\", \"2001:db8:9::/64\", \"10.8.0.1-10.8.0.9\"]",
        "file = \"x\"",
        "16:8",
        "files of sets are not read here",
        "`addresses`",
    ),
    ("\"10.9.0.0/24\"", "\"any\"", "16:14", "\"any\" is not an address", ""),
    ("[set.admins]", "[set.\"a b\"]", "15:6", "\"a b\" cannot be a name", ""),
    ("[group.web]", "[grup.web]", "17:2", "unknown section `grup`", "did you mean `group`?"),
    ("[set.admins]", "[sets.admins]", "15:2", "unknown section `sets`", "did you mean `set`?"),
    (
        "[port.dmz]\nnetdev = \"eth2\"\nside = \"protected\"\n",
        "[port.dmz]\nnetdev = \"eth2\"\n",
        "8:1",
        "[port.dmz] lacks `side`",
        "",
    ),
];

const WRONG_PORTS: &[Row] = &[
    (
        "[set.admins]",
        "[port.lna]\ngroups_in = [\"web\"]\n[set.admins]",
        "15:7",
        "there is no port `lna`",
        "did you mean `lan`?",
    ),
    (
        "[set.admins]",
        "[port.other]\ngroups_out = [\"web\"]\n[set.admins]",
        "15:7",
        "there is no port `other`",
        "[port.NAME]",
    ),
];

const WARNINGS: &[Row] = &[
    (
        "\"10.9.0.0/24\", ",
        "\"10.9.0.0/24\", \"10.9.0.0/24\", ",
        "16:29",
        "\"10.9.0.0/24\" is listed twice",
        "",
    ),
    (
        "groups_in = [\"web\", \"base\"]",
        "groups_in = [\"web\", \"base\", \"web\"]",
        "6:29",
        "\"web\" is listed twice",
        "",
    ),
    (
        "\"@admins\", \"10.7.0.0/16\"",
        "\"@admins\", \"@admins\"",
        "32:20",
        "\"@admins\" is listed twice",
        "",
    ),
    (
        "\"@admins\", \"10.7.0.0/16\"",
        "\"10.7.0.0/16\", \"10.7.1.0/24\"",
        "32:24",
        "overlaps another",
        "",
    ),
    (
        "[group.base]",
        "[group.spare]\n[group.base]",
        "18:8",
        "no port or virtual network lists group `spare`",
        "`groups_in`",
    ),
    ("protocol = \"tcp\"", "protocol = \"any\"", "27:14", "with any protocol", "the next rule"),
];

fn is_told(row: &Row, severity: Severity, problems: &[Diagnostic]) -> bool {
    let (_, _, place, message, advice) = row;
    problems.iter().any(|problem| {
        let text = problem.to_string();
        problem.severity == severity
            && text.starts_with(&format!("groups.toml:{place}: "))
            && problem.mistake.to_string().contains(message)
            && text.contains(advice)
    })
}

fn changed(row: &Row) -> String {
    assert!(GOOD.contains(row.0), "{:?} is not there", row.0);
    GOOD.replacen(row.0, row.1, 1)
}

#[test]
fn every_mistake_is_one_error_at_its_place_with_advice() {
    for row in ERRORS.iter().chain(WRONG_PORTS) {
        let errors = parse(&changed(row), "groups.toml").expect_err(row.1);
        assert!(is_told(row, Severity::Error, &errors.problems), "{:?}:\n{errors}", row.1);
        assert_eq!(errors.errors(), 1, "{:?}:\n{errors}", row.1);
    }
}

#[test]
fn every_doubt_is_a_warning_at_its_place() {
    for row in WARNINGS {
        let Parsed { warnings, .. } = parsed(&changed(row));
        let told = is_told(row, Severity::Warning, &warnings);
        assert!(told, "{:?}:\n{}", row.1, config::render(&warnings));
    }
}

/// A configuration with these rules, each group listed at one port.
fn with_rules(groups: &[&str], rules: &[(&str, &str)]) -> String {
    let mut text = "[node]\nname = \"n\"\n".to_owned();
    for group in groups {
        let netdev = format!("{group}0");
        writeln!(text, "[group.{group}]\n[port.{group}]\nnetdev = \"{netdev}\"").unwrap();
        writeln!(text, "side = \"protected\"\ngroups_in = [\"{group}\"]").unwrap();
    }
    for (group, keys) in rules {
        writeln!(text, "[[rule]]\ngroup = \"{group}\"\n{keys}").unwrap();
    }
    text
}

fn warnings_of(text: &str) -> Vec<String> {
    let warnings = parsed(text).warnings;
    let told = warnings.iter().map(|problem| problem.mistake.to_string());
    told.filter(|text| !text.contains("all ports are protected")).collect()
}

#[test]
fn a_rule_that_one_above_it_in_its_group_covers_is_told_with_both_names() {
    const ALL: &str = "name = \"all\"\naction = \"permit\"\nfrom = [\"any\"]\nto = [\"any\"]\n";
    const NET: &str = "action = \"deny\"\nfrom = [\"10.0.0.0/8\"]\nto = [\"any\"]\n";
    let told = warnings_of(&with_rules(&["a", "b"], &[("a", ALL), ("a", NET)]));
    assert_eq!(
        told,
        ["rule `a/2` (deny) never decides: rule `a/all` (permit) in line 15 above it covers it"]
    );
    for rules in [&[("a", NET), ("a", ALL)][..], &[("a", ALL), ("b", NET)]] {
        assert_eq!(warnings_of(&with_rules(&["a", "b"], rules)), [""; 0]);
    }
    let many: Vec<(&str, &str)> = std::iter::once(("a", ALL)).chain([("a", NET); 12]).collect();
    let told = warnings_of(&with_rules(&["a"], &many));
    assert_eq!(told.len(), 11);
    assert_eq!(told[10], "2 more such warnings are not shown: rules that never decide");
}

#[test]
fn bounds_are_told_by_name() {
    let told = |text: &str| {
        let errors = parse(text, "groups.toml").expect_err("beyond a bound");
        assert_eq!(errors.errors(), 1, "{errors}");
        errors.problems[0].mistake.to_string()
    };
    let members = |count: u32| {
        let members: Vec<String> = (0..count)
            .map(|n| format!("\"11.{}.{}.{}\"", n >> 15, n >> 7 & 255, n % 128 * 2))
            .collect();
        GOOD.replace("\"10.9.0.0/24\"", &members.join(", "))
    };
    assert_eq!(meaning(&members(99_998)).sets[0].addresses.len(), 100_000);
    assert_eq!(told(&members(99_999)), "more than 100000 members of a set");
    let groups = |count: u32| {
        let names: Vec<String> = (0..count).map(|n| format!("\"g{n}\"")).collect();
        let sections: String = (0..count).map(|n| format!("[group.g{n}]\n")).collect();
        let text = GOOD.replace("[\"web\", \"base\"]", &format!("[{}]", names.join(", ")));
        format!("{text}{sections}")
    };
    assert_eq!(meaning(&groups(64)).ports[0].groups_in.len(), 64);
    assert_eq!(told(&groups(65)), "more than 64 groups in `groups_in`");
    // Two lists of 64 ranges that do not adjoin and two of 32 ports are 4,194,304 rules on each
    // side of a port, beside the side's last rule in both families; a list of more ranges counts
    // once.
    let list = |texts: Vec<String>| format!("[{}]", texts.join(", "));
    let ranges = |count: u32| list((0..count).map(|n| format!("\"10.1.{n}.0/25\"")).collect());
    let ports = list((0..32).map(|n| format!("\"{}\"", 2 * n)).collect());
    let rule = |count: u32| {
        let ranges = ranges(count);
        format!(
            "action = \"deny\"\nprotocol = \"udp\"\nfrom = {ranges}\nto = {ranges}\n\
             from_ports = {ports}\nto_ports = {ports}\n"
        )
    };
    meaning(&with_rules(&["a"], &[("a", &rule(65))]));
    let rule = rule(64);
    let text = with_rules(&["a"], &[("a", &rule)]);
    let expected = "policies and rules of groups compile to 4194306 rules with this one; the limit \
                    is 4000000";
    assert_eq!(told(&text), expected);
    // Rules of a group that no port lists are not compiled.
    let unlisted = text.replace("groups_in", "# ");
    assert!(parse(&unlisted, "groups.toml").is_ok());
}

#[test]
fn a_group_has_at_most_131000_rules() {
    let one = "[[rule]]\ngroup = \"base\"\naction = \"deny\"\nfrom = [\"10.7.0.0/16\"]\n\
               to = [\"10.1.1.1\"]\n";
    let text = |rules: usize| format!("{GOOD}{}", one.repeat(rules));
    let validated = meaning(&text(130_999));
    let policies = validated.group_policies();
    let last = policies.iter().filter(|rule| rule.name == "base/131000");
    assert_eq!(last.map(|rule| rule.priority & 0xff_ffff).min(), Some(0xff_ffff - 128 * 131_000));
    let errors = parse(&text(131_000), "groups.toml").unwrap_err();
    assert_eq!(errors.problems[0].mistake.to_string(), "more than 131000 rules in one group");
}

fn summary(policies: &[Policy]) -> Vec<(String, &'static str, u32, Vec<u16>, Action)> {
    let one = |policy: &Policy| {
        let (side, ports) = (policy.group.unwrap().name(), policy.ingress.as_deref().unwrap());
        (policy.name.clone(), side, policy.priority, ports.to_vec(), policy.action)
    };
    policies.iter().map(one).collect()
}

#[test]
fn a_rule_is_a_policy_for_each_place_of_its_group_and_a_side_ends_with_no_rule() {
    let validated = meaning(GOOD);
    let policies = validated.group_policies();
    let priority = |place: u32, rule: u32| (255 - place) << 24 | (0xff_ffff - 128 * rule);
    let (permit, deny) = (Action::Permit(GroupMode::Enforce), Action::Deny(GroupMode::Audit));
    let rule = |name: &str, side, place, number, ports: &[u16], action| {
        (name.to_owned(), side, priority(place, number), ports.to_vec(), action)
    };
    let none =
        |name: &str, side, port, mode| (name.to_owned(), side, 0, vec![port], Action::NoRule(mode));
    assert_eq!(
        summary(&policies),
        [
            rule("web/http", "in", 0, 1, &[0], permit),
            rule("web/2", "in", 0, 2, &[0], permit),
            rule("base/1", "in", 0, 1, &[1], deny),
            rule("base/1", "in", 1, 1, &[0], deny),
            rule("base/1", "out", 0, 1, &[0], deny),
            none("lan (in)", "in", 0, GroupMode::Enforce),
            none("lan (out)", "out", 0, GroupMode::Audit),
            none("dmz (in)", "in", 1, GroupMode::Audit),
        ]
    );
    let any = [AddressRange::any(Family::V4), AddressRange::any(Family::V6)];
    for last in policies.iter().filter(|policy| policy.priority == 0) {
        assert_eq!((&last.selector.local[..], &last.selector.remote[..]), (&any[..], &any[..]));
        assert_eq!((last.selector.protocol, &last.selector.upper), (None, &UpperSelector::Any));
    }
    assert_eq!(policies[0].group, Some(GroupSide::In));
    assert_eq!(policies[0].selector.local, any);
    assert_eq!(policies[0].selector.remote, [range("10.1.0.0/16")]);
}

#[test]
fn differences_name_sets_groups_rules_and_their_order() {
    let told = |new: &str| -> Vec<String> {
        let told = differences(&meaning(GOOD), &meaning(new));
        told.iter().map(|d| format!("{} {} {}", d.change.name(), d.what, d.name)).collect()
    };
    assert_eq!(told(GOOD), [""; 0]);
    assert_eq!(told(&GOOD.replace("\"audit\"", "\"enforce\"")), ["changed group base"]);
    assert_eq!(told(&GOOD.replace("10.8.0.9", "10.8.0.8")), ["changed set admins"]);
    assert_eq!(told(&GOOD.replace("\"443\"", "\"444\"")), ["changed rule web/http"]);
    let renamed = GOOD.replace("\"http\"", "\"https\"");
    assert_eq!(told(&renamed), ["added rule web/https", "removed rule web/http"]);
    assert_eq!(told(&GOOD.replace("groups_out = [\"base\"]\n", "")), ["changed port lan"]);
    // The order of rules matters within a group only.
    let rules: Vec<&str> = GOOD.split("[[rule]]").collect();
    let named = |name: &str| {
        format!(
            "[[rule]]\ngroup = \"web\"\nname = \"{name}\"\naction = \"deny\"\n\
             from = [\"10.3.0.0/16\"]\nto = [\"10.0.0.1\"]\nto_ports = [\"{}\"]\n\
             protocol = \"udp\"\n",
            name.len()
        )
    };
    let (one, two) = (named("a"), named("bb"));
    let before = meaning(&format!("{GOOD}{one}{two}"));
    let after = meaning(&format!("{GOOD}{two}{one}"));
    let [order] = &differences(&before, &after)[..] else { panic!("one difference") };
    assert_eq!((order.what, order.name.as_str()), ("order", "web"));
    assert_eq!(order.after, "http\n2\nbb\na\n");
    let swapped =
        [rules[0], "[[rule]]", rules[2], "[[rule]]", rules[1], "[[rule]]", rules[3]].concat();
    assert_eq!(told(&swapped), [""; 0]);
}

#[test]
fn policies_are_added_to_a_configuration_with_groups_and_keep_them() {
    let running = meaning(GOOD);
    let add = "[[policy]]\nname = \"p\"\naction = \"discard\"\nports = [\"lan\"]\n\
               local = [\"any\"]\nremote = [\"10.4.0.0/16\"]\n";
    let parsed = parse_policies(add, "add", &running).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!((parsed.policies.len(), parsed.warnings.len()), (1, 0));
    assert!(parse_policies("[[rule]]\n", "add", &running).is_err());
    let text = edited(GOOD, [(&["lan".to_owned()][..], add)], "revision").unwrap();
    let after = meaning(&text);
    assert_eq!((&after.sets, &after.groups), (&running.sets, &running.groups));
    assert_eq!((&after.rules, &after.ports), (&running.rules, &running.ports));
    assert_eq!(after.policies[0].name, "p");
}

/// A folder with a configuration's set in a file.
fn with_file(content: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("admins.txt"), content).unwrap();
    let inline = "addresses = [\"10.9.0.0/24\", \"2001:db8:9::/64\", \"10.8.0.1-10.8.0.9\"]";
    (folder, GOOD.replace(inline, "file = \"admins.txt\""))
}

#[test]
fn a_set_in_a_file_means_its_members_and_is_relative_to_the_configuration() {
    let (folder, text) =
        with_file("# admins\n10.9.0.0/24\n\n 2001:db8:9::/64 # six\r\n10.8.0.1-10.8.0.9");
    let parsed = parse_with(&text, "groups.toml", SetFiles::OfCaller(folder.path())).unwrap();
    assert!(parsed.includes_files && !config::render(&parsed.warnings).contains("set file"));
    assert_eq!(parsed.validated, meaning(GOOD));
    // What it means stands without the file.
    assert_eq!(meaning(&parsed.validated.effective()), parsed.validated);
    let path = folder.path().join("groups.toml");
    std::fs::write(&path, &text).unwrap();
    assert_eq!(config::read(&path).unwrap().validated, parsed.validated);
    // An absolute name of a file in the directory is one too.
    let whole = text.replace("admins.txt", &folder.path().join("admins.txt").display().to_string());
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(config::read(&path).unwrap().validated, parsed.validated);
    assert!(!parse(GOOD, "groups.toml").unwrap().includes_files);
}

#[test]
fn mistakes_in_a_set_file_are_told_with_its_name_and_line() {
    let mut long = String::new();
    for n in 0..100_001 {
        writeln!(long, "11.{}.{}.{}", n >> 15, n >> 7 & 255, n % 128 * 2).unwrap();
    }
    let digits = "0123456789abcdef0123456789abcdef\n10.0.0.0/33\n";
    for (content, place, message) in [
        ("10.0.0.0/8\n  10.0.0.1/8 # x\n", "admins.txt:2:3: error: ", "has bits set behind"),
        ("10.0.0.0/33\n", "admins.txt:1:1: error: ", "a number from 0 to 32"),
        ("10.0.0.2-10.0.0.1\n", "admins.txt:1:1: error: ", "this range is inverted"),
        ("10.0.0.2-::1\n", "admins.txt:1:1: error: ", "mixes IPv4 and IPv6"),
        ("any\n", "admins.txt:1:1: error: ", "is not an address"),
        ("@other\n", "admins.txt:1:1: error: ", "is not an address"),
        ("# nothing\n", "groups.toml:16:8: error: ", "set file admins.txt has no member"),
        (&long, "admins.txt:100001:1: error: ", "more than 100000 members of a set"),
        (digits, "admins.txt:1:1: error: ", "is not an address"),
    ] {
        let (folder, text) = with_file(content);
        let errors =
            parse_with(&text, "groups.toml", SetFiles::OfCaller(folder.path())).unwrap_err();
        let told = errors.to_string();
        assert!(told.contains(place) && told.contains(message), "{told}");
        assert!(!told.contains("0123456789abcdef"), "{told}");
    }
    let (folder, text) = with_file("10.0.0.0/8\n10.0.0.0/8\n");
    let warnings =
        parse_with(&text, "groups.toml", SetFiles::OfCaller(folder.path())).unwrap().warnings;
    let told = config::render(&warnings);
    assert!(told.contains("admins.txt:2:1: warning: an earlier line has this member"), "{told}");
    let (folder, text) = with_file(&"x\n".repeat(100));
    let errors = parse_with(&text, "groups.toml", SetFiles::OfCaller(folder.path())).unwrap_err();
    assert_eq!((errors.errors(), errors.untold), (40, 60));
}

/// Content of a file that no message may show: its first word is the secret of the test.
const SECRET: &str = "root:*:20228:0:99999:7:::\n10.9.8.7/8\n10.9.8.7\n10.9.8.7\n";

#[test]
fn no_message_quotes_a_set_file() {
    let (folder, text) = with_file(SECRET);
    let sent: IncludedTexts = [("admins.txt".to_owned(), SECRET.to_owned())].into_iter().collect();
    for files in [
        SetFiles::OfCaller(folder.path()),
        SetFiles::Beneath(folder.path()),
        SetFiles::Sent { base: folder.path(), texts: &sent },
    ] {
        let errors = parse_with(&text, "groups.toml", files).unwrap_err();
        let json = serde_json::to_string(&errors).unwrap();
        for told in [errors.to_string(), errors.in_lines(), format!("{files:?}"), json] {
            assert!(!told.contains("root") && !told.contains("10.9.8.7"), "{told}");
        }
        assert!(errors.to_string().contains("admins.txt:2:1: error: "), "{errors}");
    }
}

#[test]
fn a_set_file_of_a_client_is_never_opened() {
    let (folder, text) = with_file("10.9.0.0/24\n");
    let texts = IncludedTexts::default();
    for file in ["admins.txt", "/etc/hostname", "../admins.txt"] {
        let text = text.replace("admins.txt", file);
        let files = SetFiles::Sent { base: folder.path(), texts: &texts };
        let told = parse_with(&text, "groups.toml", files).unwrap_err().to_string();
        let at = format!("groups.toml:16:8: error: set file {file} did not come with");
        assert!(told.contains(&at) && told.contains("`lockgate apply`"), "{told}");
    }
    let texts = IncludedTexts::read(&text, "groups.toml", folder.path()).unwrap().texts;
    std::fs::remove_file(folder.path().join("admins.txt")).unwrap();
    let files = SetFiles::Sent { base: folder.path(), texts: &texts };
    let parsed = parse_with(&text, "groups.toml", files).unwrap();
    assert_eq!(parsed.validated.sets[0].addresses, [range("10.9.0.0/24")]);
}

#[test]
fn a_client_reads_set_files_with_its_own_rights_and_within_bounds() {
    let (folder, text) = with_file("10.9.0.0/24\n");
    let read = |text: &str| IncludedTexts::read(text, "groups.toml", folder.path());
    let missing = read(&text.replace("admins.txt", "gone.txt")).unwrap_err().to_string();
    let at = "groups.toml:16:8: error: set file gone.txt cannot be read: No such file";
    assert!(missing.contains(at), "{missing}");
    // A configuration without a set file, and a text that is none, include nothing.
    for text in [GOOD, "[set.a]\nfile = 3\n["] {
        assert!(read(text).unwrap().texts.is_empty());
    }
    let mut many = text.clone();
    let content = vec![b'#'; config::MAX_INCLUDED_BYTES as usize / 4];
    for n in 0..4 {
        std::fs::write(folder.path().join(format!("{n}.txt")), &content).unwrap();
        writeln!(many, "[set.s{n}]\nfile = \"{n}.txt\"").unwrap();
    }
    let beyond = read(&many).unwrap_err().to_string();
    assert!(beyond.contains("all set files together may have 67108864 bytes"), "{beyond}");
}

#[test]
fn a_start_reads_set_files_in_the_directory_of_the_configuration_without_links() {
    let (folder, text) = with_file("10.9.0.0/24\n");
    let inside = folder.path().join("gw");
    std::fs::create_dir_all(inside.join("sets")).unwrap();
    std::fs::write(inside.join("sets/a.txt"), "10.9.0.0/24\n").unwrap();
    std::os::unix::fs::symlink("sets/a.txt", inside.join("link.txt")).unwrap();
    std::os::unix::fs::symlink("sets", inside.join("linked")).unwrap();
    let (pipe, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
    rustix::fs::mknodat(rustix::fs::CWD, inside.join("pipe"), pipe, mode, 0).unwrap();
    let config = inside.join("groups.toml");
    let start = |file: &str| {
        std::fs::write(&config, text.replace("admins.txt", file)).unwrap();
        config::read(&config).map(|parsed| parsed.validated.sets[0].addresses.clone())
    };
    let whole = inside.join("sets/a.txt").display().to_string();
    for file in ["sets/a.txt", "sets/../sets/a.txt", &whole] {
        assert_eq!(start(file).unwrap(), [range("10.9.0.0/24")], "{file}");
    }
    let outside = folder.path().join("admins.txt").display().to_string();
    let above = format!("{}/../admins.txt", inside.display());
    let beyond = "lies outside the directory of the configuration file";
    for (file, problem) in [
        (outside.as_str(), beyond),
        (above.as_str(), beyond),
        ("../admins.txt", beyond),
        ("/etc/hostname", beyond),
        ("link.txt", "is reached by a symbolic link"),
        ("linked/a.txt", "is reached by a symbolic link"),
        ("pipe", "is a pipe, not a regular file"),
        ("sets", "is a directory, not a regular file"),
        ("gone.txt", "cannot be read: No such file or directory"),
    ] {
        let told = start(file).unwrap_err().to_string();
        assert!(told.contains("16:8: error: set file ") && told.contains(problem), "{told}");
    }
    // A command reads such a file, and warns that the daemon does not start with it.
    for file in [outside.as_str(), "link.txt"] {
        let text = text.replace("admins.txt", file);
        let files = SetFiles::OfCaller(&inside);
        let checked = parse_with(&text, "groups.toml", files).unwrap().warnings;
        let sent = IncludedTexts::read(&text, "groups.toml", &inside).unwrap().warnings;
        for warnings in [checked, sent] {
            let told = config::render(&warnings);
            let warning = "16:8: warning: lockgated does not start with set file";
            assert_eq!(told.matches(warning).count(), 1, "{told}");
        }
    }
    let text = text.replace("admins.txt", "sets/a.txt");
    let read = IncludedTexts::read(&text, "groups.toml", &inside).unwrap();
    assert!(!read.texts.is_empty() && read.warnings.is_empty());
}

#[test]
fn a_set_file_that_cannot_be_read_is_told_where_it_is_named() {
    let (folder, text) = with_file("10.0.0.0/8\n");
    let told = |file: &str| {
        let text = text.replace("admins.txt", file);
        parse_with(&text, "groups.toml", SetFiles::OfCaller(folder.path())).unwrap_err().to_string()
    };
    let missing = told("gone.txt");
    let at = "groups.toml:16:8: error: set file gone.txt cannot be read: No such file or directory";
    assert!(missing.contains(at), "{missing}");
    assert!(missing.contains("directory of the configuration file"), "{missing}");
    assert!(told(".").contains("set file . is a directory, not a regular file"));
    assert!(told("/dev/zero").contains("is a device, not a regular file"));
    std::fs::write(folder.path().join("binary"), [0xff, 0xfe]).unwrap();
    assert!(told("binary").contains("set file binary is not UTF-8 text"));
    std::fs::write(folder.path().join("large"), vec![b'#'; (16 << 20) + 1]).unwrap();
    assert!(told("large").contains("at most 16777216 bytes are read"));
}

#[test]
fn rules_of_a_large_file_are_read_in_pieces_and_mean_the_same() {
    let mut text = GOOD.to_owned();
    for n in 0..3000 {
        let (one, two) = (n >> 8, n & 255);
        writeln!(
            text,
            "[[rule]]\ngroup = \"web\"\naction = \"deny\"\nfrom = [\"10.{one}.{two}.0/24\"]\n\
             to = [\"172.16.{one}.{two}\"]\n[[policy]]\nname = \"p{n}\"\naction = \"discard\"\n\
             local = [\"any\"]\nremote = [\"10.{one}.{two}.1\"]"
        )
        .unwrap();
    }
    let validated = meaning(&text);
    assert_eq!((validated.rules.len(), validated.policies.len()), (3003, 3001));
    // A header that does not begin with `[[rule]]` makes the text be read as a whole.
    let whole = text.replacen("[[rule]]", "[[ rule ]]", 1);
    assert_eq!(meaning(&whole), validated);
}
