//! Overlays, virtual networks and the store of their endpoints.

use config::groups::GroupId;
use config::{
    DEFAULT_ENDPOINTS, Diagnostic, DirectUse, FIRST_NETWORK, Parsed, Severity, StoreKind,
    StoreSettings, Validated, differences, parse,
};
use dataplane::{OverlayId, PortId, SourceCheck};
use policy::{Action, GroupMode, Policy};
use wire::overlay::Kind;
use wire::{Address, Vni};

const GOOD: &str = r#"[node]
name = "gw"
[port.fab]
netdev = "eth1"
side = "protected"
addresses = ["192.0.2.1/24", "2001:db8::1/64"]
groups_in = ["base"]
[port.wan]
netdev = "eth0"
side = "unprotected"
addresses = ["198.51.100.1/24"]
[peer.far]
local = "198.51.100.1"
remote = "198.51.100.9"
keys = "api"
suite = "aes-128-gcm"
esn = true
[[policy]]
name = "hosts"
peer = "far"
local = ["198.51.100.1", "192.0.2.0/24", "2001:db8::/64"]
remote = ["203.0.113.0/24", "2001:db8:9::/64"]
protocol = "udp"
[group.web]
[group.base]
mode = "audit"
[[rule]]
group = "web"
action = "permit"
from = ["any"]
to = ["10.1.0.0/16"]
[[rule]]
group = "base"
action = "reflect"
from = ["10.0.0.0/8"]
to = ["any"]
[overlay.fabric]
kind = "vxlan"
port = "fab"
entrances = ["192.0.2.1", "2001:db8::1"]
[overlay.far]
kind = "geneve"
port = "wan"
udp_port = 16081
entrances = ["198.51.100.1"]
[vni.700]
overlay = "far"
groups_out = ["base"]
source_check = "host"
[vni.7]
overlay = "fabric"
groups_in = ["web", "base"]
groups_out = ["web"]
[vni.0]
overlay = "fabric"
source_check = "none"
[store]
kind = "memory"
endpoints = "3K"
"#;

fn parsed(text: &str) -> Parsed {
    parse(text, "o.toml").unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

fn meaning(text: &str) -> Validated {
    parsed(text).validated
}

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

fn addresses<const N: usize>(texts: [&str; N]) -> [Address; N] {
    texts.map(|text| text.parse::<std::net::IpAddr>().unwrap().into())
}

/// `text` without the lines from the one that begins with `from` up to that which begins with `to`.
fn without(text: &str, from: &str, to: &str) -> String {
    let (begin, end) = (text.find(from).unwrap(), text.find(to).unwrap());
    format!("{}{}", &text[..begin], &text[end..])
}

#[test]
fn overlays_are_in_the_order_of_the_file_and_networks_ascend_by_number() {
    let Parsed { validated, warnings, .. } = parsed(GOOD);
    assert_eq!(warnings, []);
    let [fabric, far] = &validated.overlays[..] else { panic!("two overlays") };
    assert_eq!(
        (fabric.name.as_str(), fabric.kind, fabric.port),
        ("fabric", Kind::Vxlan, PortId(0))
    );
    assert_eq!((fabric.udp_port, far.udp_port), (4789, 16081));
    assert_eq!(fabric.entrances, addresses(["192.0.2.1", "2001:db8::1"]));
    assert_eq!((far.name.as_str(), far.kind, far.port), ("far", Kind::Geneve, PortId(1)));
    let [zero, seven, last] = &validated.networks[..] else { panic!("three networks") };
    assert_eq!([zero.vni, seven.vni, last.vni], [0, 7, 700].map(vni));
    assert_eq!([zero, seven, last].map(|of| of.overlay), [0, 0, 1].map(OverlayId));
    assert_eq!(seven.groups_in, [GroupId(0), GroupId(1)]);
    assert_eq!(
        (&seven.groups_out[..], &last.groups_out[..]),
        (&[GroupId(0)][..], &[GroupId(1)][..])
    );
    assert_eq!(
        [zero, seven, last].map(|of| of.source_check),
        [SourceCheck::None, SourceCheck::Endpoint, SourceCheck::Host]
    );
    assert_eq!(validated.store, StoreSettings { kind: StoreKind::Memory, endpoints: 3072 });
}

#[test]
fn nothing_written_is_a_database_for_65536_endpoints() {
    let defaults = StoreSettings { kind: StoreKind::Sqlite, endpoints: DEFAULT_ENDPOINTS };
    let bare = &GOOD[..GOOD.find("[store]").unwrap()];
    for store in ["", "[store]\n", "[store]\nkind = \"sqlite\"\nendpoints = 65536\n"] {
        assert_eq!(meaning(&format!("{bare}{store}")).store, defaults);
    }
    assert_eq!(DEFAULT_ENDPOINTS, 65_536);
    // Geneve's own port, and the one overlay that there is.
    let one = without(GOOD, "[overlay.fabric]", "[overlay.far]").replace("udp_port = 16081\n", "");
    let one = without(&one, "[vni.7]", "[store]").replace("overlay = \"far\"\n", "");
    let validated = meaning(&one);
    assert_eq!(validated.overlays[0].udp_port, 6081);
    assert_eq!(validated.networks[0].overlay, OverlayId(0));
}

#[test]
fn hosts_are_told_direct_paths_where_it_is_written_and_the_port_is_protected() {
    let off = meaning(GOOD);
    assert!(off.overlays.iter().all(|of| (of.direct, of.direct_port) == (DirectUse::Off, 8300)));
    let on = |rest: &str| GOOD.replacen("\"vxlan\"\n", &format!("\"vxlan\"\n{rest}"), 1);
    let [fabric, far] = &meaning(&on("direct = \"on\"\ndirect_port = 18300\n")).overlays[..] else {
        panic!("two overlays")
    };
    assert_eq!((fabric.direct, fabric.direct_port), (DirectUse::On, 18300));
    assert_eq!(far.direct, DirectUse::Off);
    let effective = meaning(&on("direct = \"on\"\n")).effective();
    assert!(effective.contains("direct = \"on\"\ndirect_port = 8300\n"), "{effective}");
}

#[test]
fn effective_text_parses_back_to_the_same_overlays_and_networks() {
    let validated = meaning(GOOD);
    let effective = validated.effective();
    assert_eq!(meaning(&effective), validated, "{effective}");
    assert_eq!(meaning(&effective).effective(), effective);
    for lines in [
        "[overlay.\"fabric\"]\nkind = \"vxlan\"\nport = \"fab\"\nudp_port = 4789\n\
         entrances = [\"192.0.2.1\", \"2001:db8::1\"]\ndirect = \"off\"\ndirect_port = 8300\n",
        "[vni.0]\noverlay = \"fabric\"\ngroups_in = []\ngroups_out = []\n\
         source_check = \"none\"\n",
        "[vni.7]\noverlay = \"fabric\"\ngroups_in = [\"web\", \"base\"]\ngroups_out = [\"web\"]\n\
         source_check = \"endpoint\"\n",
        "[store]\nkind = \"memory\"\nendpoints = \"3K\"\n",
    ] {
        assert!(effective.contains(lines), "{lines}\nis not in\n{effective}");
    }
}

/// One row: what is replaced in [`GOOD`], by what, the place, the message, and a part of the
/// advice.
type Row = (&'static str, &'static str, &'static str, &'static str, &'static str);

const ERRORS: &[Row] = &[
    // [overlay.NAME]
    ("kind = \"vxlan\"\n", "", "37:1", "[overlay.fabric] lacks `kind`", ""),
    ("port = \"fab\"\n", "", "37:1", "[overlay.fabric] lacks `port`", ""),
    ("entrances = [\"198.51.100.1\"]\n", "", "41:1", "[overlay.far] lacks `entrances`", ""),
    ("\"vxlan\"", "\"vxlam\"", "38:8", "`kind` cannot be \"vxlam\"", "did you mean `vxlan`?"),
    ("\"geneve\"", "\"nvgre\"", "42:8", "`kind` cannot be \"nvgre\"", "write vxlan, geneve"),
    ("port = \"fab\"", "port = \"fba\"", "39:8", "there is no port `fba`", "did you mean `fab`?"),
    ("port = \"fab\"", "port = \"eth1\"", "39:8", "there is no port `eth1`", "[port.NAME]"),
    ("16081", "0", "44:12", "`udp_port` is 0; it goes from 1 to 65535", ""),
    ("16081", "65536", "44:12", "`udp_port` is 65536; it goes from 1 to 65535", ""),
    ("16081", "4500", "44:12", "UDP port 500 and 4500 are those of IKE", "leave `udp_port` out"),
    ("16081", "500", "44:12", "UDP port 500 and 4500 are those of IKE", "leave `udp_port` out"),
    (
        "udp_port = 16081",
        "direct = \"on\"",
        "44:10",
        "hosts behind port `wan` are told no direct paths: it is unprotected",
        "or make the port protected",
    ),
    (
        "udp_port = 16081",
        "direct = \"onn\"",
        "44:10",
        "`direct` cannot be \"onn\"",
        "did you mean `on`?",
    ),
    (
        "udp_port = 16081",
        "direct_port = 0",
        "44:15",
        "`direct_port` is 0; it goes from 1 to 65535",
        "",
    ),
    (
        "[\"198.51.100.1\"]\n[vni",
        "[]\n[vni",
        "45:13",
        "`entrances` is an empty list",
        "name an address",
    ),
    ("[\"192.0.2.1\",", "[\"192.0.2.1/24\",", "40:14", "\"192.0.2.1/24\" is not an IP address", ""),
    (
        "\"192.0.2.1\",",
        "\"239.1.1.1\",",
        "40:14",
        "239.1.1.1 is no address that hosts can send to",
        "unicast",
    ),
    (
        "\"192.0.2.1\",",
        "\"127.0.0.1\",",
        "40:14",
        "127.0.0.1 is no address that hosts can send to",
        "loopback",
    ),
    ("\"192.0.2.1\",", "\"0.0.0.0\",", "40:14", "0.0.0.0 is no address that hosts can send to", ""),
    (
        "\"192.0.2.1\",",
        "\"255.255.255.255\",",
        "40:14",
        "255.255.255.255 is no address that hosts can send to",
        "",
    ),
    ("\"2001:db8::1\"]\n[", "\"::\"]\n[", "40:27", ":: is no address that hosts can send to", ""),
    ("\"2001:db8::1\"]\n[", "\"::1\"]\n[", "40:27", "::1 is no address that hosts can send to", ""),
    (
        "\"2001:db8::1\"]\n[",
        "\"ff02::1\"]\n[",
        "40:27",
        "ff02::1 is no address that hosts can send to",
        "",
    ),
    (
        "\"2001:db8::1\"]\n[",
        "\"fe80::1\"]\n[",
        "40:27",
        "fe80::1 is no address that hosts can send to",
        "link-local",
    ),
    (
        "\"2001:db8::1\"]\n[",
        "\"192.0.2.1\"]\n[",
        "40:27",
        "192.0.2.1 with UDP port 4789 is an entrance already",
        "line 40",
    ),
    (
        "16081\nentrances = [\"198.51.100.1\"",
        "4789\nentrances = [\"2001:db8::1\"",
        "45:14",
        "2001:db8::1 with UDP port 4789 is an entrance already",
        "another address or `udp_port`",
    ),
    ("[overlay.far]", "[overlay.\"f r\"]", "41:10", "\"f r\" cannot be a name", ""),
    (
        "entrances = [\"198",
        "address = [\"198",
        "45:1",
        "unknown key `address` in [overlay.far]",
        "did you mean `entrances`?",
    ),
    (
        "udp_port = 16081",
        "dstport = 16081",
        "44:1",
        "unknown key `dstport` in [overlay.far]",
        "did you mean `udp_port`?",
    ),
    (
        "udp_port = 16081",
        "multicast-group = \"239.1.1.1\"",
        "44:1",
        "`multicast-group`: virtual networks are not flooded",
        "`lockgate endpoint put`",
    ),
    // [vni.NUMBER]
    (
        "overlay = \"far\"",
        "overlay = \"fra\"",
        "47:11",
        "there is no overlay `fra`",
        "did you mean `far`?",
    ),
    ("overlay = \"far\"", "overlay = \"x\"", "47:11", "there is no overlay `x`", "[overlay.NAME]"),
    (
        "overlay = \"far\"\n",
        "",
        "46:6",
        "there are 2 overlays: which of them carries virtual network 700?",
        "overlay = \"NAME\"",
    ),
    (
        "[vni.700]",
        "[vni.16777216]",
        "46:6",
        "`16777216` is no number of a virtual network",
        "0 to 16777215",
    ),
    ("[vni.700]", "[vni.-1]", "46:6", "`-1` is no number of a virtual network", "0 to 16777215"),
    ("[vni.700]", "[vni.\"+7\"]", "46:6", "`+7` is no number of a virtual network", ""),
    ("[vni.700]", "[vni.0x10]", "46:6", "`0x10` is no number of a virtual network", ""),
    ("[vni.700]", "[vni.blue]", "46:6", "`blue` is no number of a virtual network", ""),
    ("[vni.700]", "[vni.007]", "50:6", "virtual network 7 is there twice", "line 46"),
    (
        "groups_out = [\"base\"]\ns",
        "groups_out = [\"bsae\"]\ns",
        "48:15",
        "there is no group `bsae`",
        "did you mean `base`?",
    ),
    ("\"host\"", "\"hsot\"", "49:16", "`source_check` cannot be \"hsot\"", "did you mean `host`?"),
    (
        "source_check = \"host\"",
        "flood = true",
        "49:1",
        "`flood`: virtual networks are not flooded",
        "answers ARP",
    ),
    (
        "source_check = \"host\"",
        "gateway = \"10.1.0.1\"",
        "49:1",
        "`gateway`: routing between virtual networks is not built",
        "belong in one network",
    ),
    (
        "source_check = \"host\"",
        "routes = []",
        "49:1",
        "`routes`: routing between virtual networks is not built",
        "one network",
    ),
    (
        "source_check = \"host\"",
        "exit = \"wan\"",
        "49:1",
        "`exit`: there is no way out of a virtual network to a port",
        "outside the overlay",
    ),
    (
        "source_check = \"host\"",
        "endpoints = []",
        "49:1",
        "`endpoints`: endpoints are not written here",
        "`lockgate endpoint put`",
    ),
    (
        "source_check = \"host\"",
        "groups = [\"web\"]",
        "49:1",
        "unknown key `groups` in [vni.700]",
        "did you mean `groups_in`?",
    ),
    // [store]
    ("\"memory\"", "\"etcd\"", "58:8", "a store in etcd is not supported yet", "write \"sqlite\""),
    ("\"memory\"", "\"sqlight\"", "58:8", "`kind` cannot be \"sqlight\"", "write sqlite, memory"),
    ("\"3K\"", "0", "59:13", "`endpoints` is 0; it goes from 1 to 4194304", ""),
    ("\"3K\"", "\"5M\"", "59:13", "`endpoints` is 5242880; it goes from 1 to 4194304", ""),
    ("\"3K\"", "\"many\"", "59:13", "`endpoints` cannot be \"many\"", ""),
    // Endpoints are never in the file.
    (
        "[store]",
        "[[endpoint]]\nvni = 7\n[store]",
        "57:3",
        "`endpoint`: endpoints are not written here",
        "`lockgate endpoint put` or `import`",
    ),
    (
        "[store]",
        "[[neighbor]]\nvni = 7\n[store]",
        "57:3",
        "`neighbor`: endpoints are not written here",
        "[[neighbour]]",
    ),
    ("[store]", "[endpoints]\n[store]", "57:2", "`endpoints`: endpoints are not written here", ""),
    (
        "[store]",
        "[overlays.x]\n[store]",
        "57:2",
        "unknown section `overlays`",
        "did you mean `overlay`?",
    ),
];

const WARNINGS: &[Row] = &[
    (
        "overlay = \"far\"",
        "overlay = \"fabric\"",
        "41:10",
        "overlay `far` carries no network: all of its packets are dropped",
        "[vni.NUMBER]",
    ),
    (
        "entrances = [\"198.51.100.1\"]",
        "entrances = [\"198.51.100.1\", \"198.51.100.7\"]",
        "45:13",
        "entrance 198.51.100.7 is not among the addresses of port `wan`",
        "`ip address add`",
    ),
    (
        "groups_in = [\"web\", \"base\"]\n",
        "groups_in = [\"web\", \"web\"]\n",
        "52:21",
        "\"web\" is listed twice",
        "",
    ),
];

fn changed(row: &Row) -> String {
    assert!(GOOD.contains(row.0), "{:?} is not there", row.0);
    GOOD.replacen(row.0, row.1, 1)
}

/// Returns what is wrong unless one problem of the severity is the row's, and none beside it.
fn fault(row: &Row, severity: Severity, problems: &[Diagnostic]) -> Option<String> {
    let (_, to, place, message, advice) = *row;
    let of_severity: Vec<_> =
        problems.iter().filter(|problem| problem.severity == severity).collect();
    let is_told = match of_severity[..] {
        [problem] => {
            let text = problem.to_string();
            let begin = format!("o.toml:{place}: ");
            let is_there = text.starts_with(&begin) && text.contains(advice);
            is_there && problem.mistake.to_string() == message
        }
        _ => false,
    };
    let render = || config::render(problems);
    (!is_told).then(|| format!("{to:?}, {place}, {message:?}, {advice:?}:\n{}", render()))
}

#[test]
fn every_mistake_is_one_error_at_its_place_with_advice() {
    let faults = ERRORS.iter().filter_map(|row| {
        let errors = parse(&changed(row), "o.toml").expect_err(row.1);
        fault(row, Severity::Error, &errors.problems)
    });
    let faults: Vec<String> = faults.collect();
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

#[test]
fn every_doubt_is_a_warning_at_its_place() {
    let faults = WARNINGS
        .iter()
        .filter_map(|row| fault(row, Severity::Warning, &parsed(&changed(row)).warnings));
    let faults: Vec<String> = faults.collect();
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

#[test]
fn a_network_without_any_overlay_is_refused() {
    let text = without(GOOD, "[overlay.fabric]", "[vni.700]").replace("overlay = \"far\"\n", "");
    let text = without(&text, "[vni.7]", "[store]");
    let row = ("", "", "37:6", "no overlay carries virtual network 700", "[overlay.NAME]");
    let errors = parse(&text, "o.toml").unwrap_err();
    assert_eq!(fault(&row, Severity::Error, &errors.problems), None);
}

/// A mistyped header is one mistake, not one more for each network of the overlay.
#[test]
fn a_network_of_an_overlay_with_a_wrong_header_is_not_told() {
    for (header, message) in [
        ("[overlays.far]", "unknown section `overlays`"),
        ("[overlay.\"f r\"]", "\"f r\" cannot be a name"),
    ] {
        let errors = parse(&GOOD.replace("[overlay.far]", header), "o.toml").unwrap_err();
        let told: Vec<_> = errors.problems.iter().map(|of| of.mistake.to_string()).collect();
        assert_eq!(told, [message]);
    }
}

#[test]
fn a_route_still_has_a_gateway() {
    let route = "[[route]]\nto = \"default\"\ngateway = \"192.0.2.9\"\n";
    let error = parse(&format!("{GOOD}{route}"), "o.toml").unwrap_err().to_string();
    assert!(error.contains("unknown key `gateway` in [[route]]"), "{error}");
    assert!(error.contains("did you mean `via`?"), "{error}");
}

/// Only an entrance that sends by an unprotected port, and that no policy protects, is told.
#[test]
fn an_overlay_in_cleartext_outside_is_a_warning() {
    let told = |text: &str| -> Vec<String> {
        let told = parsed(text).warnings;
        let told = told.iter().map(ToString::to_string);
        told.filter(|text| text.contains("in cleartext")).collect()
    };
    let outside = "packets of overlay `far` leave unprotected port `wan` in cleartext: no policy \
                   protects what entrance 198.51.100.1 sends";
    for (from, to, is_told) in [
        ("198.51.100.1\", \"192.0.2.0/24", "192.0.2.0/24", true),
        ("protocol = \"udp\"", "protocol = \"tcp\"", true),
        ("protocol = \"udp\"", "direction = \"inbound\"", true),
        ("protocol = \"udp\"", "direction = \"outbound\"", false),
        ("protocol = \"udp\"", "protocol = \"any\"", false),
        ("peer = \"far\"\n", "action = \"bypass\"\n", true),
    ] {
        let told = told(&GOOD.replacen(from, to, 1));
        assert_eq!(told.len(), usize::from(is_told), "{to}: {told:?}");
        for told in told {
            assert!(told.starts_with("o.toml:43:8: warning: "), "{told}");
            assert!(told.contains(outside) && told.contains("PROTECT policy"), "{told}");
        }
    }
    // The first entrance of each family sends.
    let v6 = GOOD.replace("[\"198.51.100.1\"]", "[\"198.51.100.1\", \"2001:db8:7::1\"]");
    assert!(told(&v6)[0].contains("what entrance 2001:db8:7::1 sends"));
    let second = GOOD.replace("[\"198.51.100.1\"]", "[\"198.51.100.1\", \"198.51.100.2\"]");
    assert_eq!(told(&second), [""; 0]);
}

type Summary = (String, &'static str, u32, Vec<u16>, Action);

fn summary(policies: &[Policy]) -> Vec<Summary> {
    let one = |policy: &Policy| {
        let (side, places) = (policy.group.unwrap().name(), policy.ingress.as_deref().unwrap());
        (policy.name.clone(), side, policy.priority, places.to_vec(), policy.action)
    };
    policies.iter().map(one).collect()
}

#[test]
fn rules_name_ports_and_virtual_networks_together() {
    let (seven, last) = (FIRST_NETWORK, FIRST_NETWORK + 1);
    let validated = meaning(GOOD);
    // Network 0 has no groups, and no number.
    let attachments: Vec<_> = validated.network_attachments().collect();
    assert_eq!(attachments, [(vni(7), seven), (vni(700), last)]);
    assert_eq!(FIRST_NETWORK, 0x8000);
    assert!(validated.tracks_connections());
    let (enforce, audit) = (GroupMode::Enforce, GroupMode::Audit);
    let rule = |name: &str, side, place: u32, places: &[u16], action| {
        let priority = (255 - place) << 24 | (0xff_ffff - 128);
        (name.to_owned(), side, priority, places.to_vec(), action)
    };
    let none = |name: &str, side, place, mode| {
        (name.to_owned(), side, 0, vec![place], Action::NoRule(mode))
    };
    // The group that the port has first is the second of network 7: two places, two priorities.
    assert_eq!(
        summary(&validated.group_policies()),
        [
            rule("web/1", "in", 0, &[seven], Action::Permit(enforce)),
            rule("base/1", "in", 0, &[0], Action::Reflect(audit)),
            rule("base/1", "in", 1, &[seven], Action::Reflect(audit)),
            rule("web/1", "out", 0, &[seven], Action::Permit(enforce)),
            rule("base/1", "out", 0, &[last], Action::Reflect(audit)),
            none("fab (in)", "in", 0, audit),
            none("vni 7 (in)", "in", seven, enforce),
            none("vni 7 (out)", "out", seven, enforce),
            none("vni 700 (out)", "out", last, audit),
        ]
    );
    // At one place, a rule names the port, the host's side of nothing, and both networks at once.
    let shared = GOOD
        .replace(
            "groups_in = [\"web\", \"base\"]\ngroups_out = [\"web\"]",
            "groups_in = [\"base\"]",
        )
        .replace("groups_out = [\"base\"]\ns", "groups_in = [\"base\"]\ns");
    let policies = summary(&meaning(&shared).group_policies());
    let names: Vec<&str> = policies.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["base/1", "fab (in)", "vni 7 (in)", "vni 700 (in)"]);
    assert_eq!(policies[0].3, [0, seven, last]);
    assert!(policies.iter().all(|(_, _, _, places, _)| places.is_sorted()));
}

/// No port, and so no other last rule, is called as a network's last rule is.
#[test]
fn no_port_is_called_as_a_network_is() {
    let errors = parse(&GOOD.replace("[port.wan]", "[port.\"vni 7\"]"), "o.toml").unwrap_err();
    assert!(errors.to_string().contains("o.toml:8:7: error: "), "{errors}");
}

#[test]
fn a_group_of_a_network_is_not_unused_and_its_connections_are_tracked() {
    let text = GOOD.replace("groups_in = [\"base\"]\n[port.wan]", "[port.wan]");
    assert_eq!(parsed(&text).warnings, []);
    assert!(meaning(&text).tracks_connections());
    let names = meaning(&text).group_policies();
    assert!(names.iter().all(|rule| rule.ingress.iter().all(|places| places[0] >= FIRST_NETWORK)));
}

#[test]
fn differences_name_overlays_networks_and_the_store() {
    let told = |old: &str, new: &str| -> Vec<String> {
        let told = differences(&meaning(old), &meaning(new));
        told.iter().map(|d| format!("{} {} {}", d.change.name(), d.what, d.name)).collect()
    };
    assert_eq!(told(GOOD, GOOD), [""; 0]);
    assert_eq!(told(GOOD, &GOOD.replace("16081", "16082")), ["changed overlay far"]);
    assert_eq!(told(GOOD, &GOOD.replace("\"host\"", "\"none\"")), ["changed vni 700"]);
    assert_eq!(
        told(GOOD, &GOOD.replace("[vni.700]", "[vni.701]")),
        ["added vni 701", "removed vni 700"]
    );
    assert_eq!(told(GOOD, &GOOD.replace("\"3K\"", "\"4K\"")), ["changed store "]);
    // The order of networks in the file means nothing, and a default is as good as written.
    let (head, tail) = GOOD.split_at(GOOD.find("[vni.0]").unwrap());
    let (zero, store) = tail.split_at(tail.find("[store]").unwrap());
    let (head, networks) = head.split_at(head.find("[vni.700]").unwrap());
    assert_eq!(told(GOOD, &format!("{head}{zero}{networks}{store}")), [""; 0]);
    let unwritten = &GOOD[..GOOD.find("[store]").unwrap()];
    let none = without(unwritten, "[overlay.fabric]", "[vni.700]");
    let none = &none[..none.find("[vni.700]").unwrap()];
    let added = ["overlay fabric", "overlay far", "vni 0", "vni 7", "vni 700"];
    assert_eq!(told(none, unwritten), added.map(|name| format!("added {name}")));
}

#[test]
fn the_first_key_of_the_store_that_changed_is_named() {
    let of = |kind, endpoints| StoreSettings { kind, endpoints };
    let default = StoreSettings::default();
    for (changed, key) in [
        (of(StoreKind::Sqlite, DEFAULT_ENDPOINTS), None),
        (of(StoreKind::Memory, 1), Some("store.kind")),
        (of(StoreKind::Sqlite, 1), Some("store.endpoints")),
    ] {
        assert_eq!(default.changed_key(&changed).as_deref(), key);
    }
}

/// The message of the one mistake of a text; `None`: it has none.
fn refusal(text: &str) -> Option<String> {
    let errors = parse(text, "o.toml").err()?;
    assert_eq!(errors.errors(), 1, "{errors}");
    Some(errors.problems[0].mistake.to_string())
}

fn networks(numbers: std::ops::Range<u32>, keys: &str) -> String {
    let one = |number| format!("[vni.{number}]\noverlay = \"fabric\"\n{keys}");
    numbers.map(one).collect()
}

#[test]
fn bounds_are_told_by_name() {
    // AX-26: 128 entrances of an overlay.
    let more = |count: u32, keys: &str| format!("{GOOD}{}", networks(1000..1000 + count, keys));
    assert_eq!(refusal(&more(65_533, "")), None);
    let told = refusal(&more(65_534, ""));
    assert_eq!(told.as_deref(), Some("more than 65536 virtual networks"));
    let groups = "groups_out = [\"web\"]\n";
    assert_eq!(refusal(&more(3998, groups)), None);
    let attachments: Vec<_> = meaning(&more(3998, groups)).network_attachments().collect();
    assert_eq!((attachments.len(), attachments[3999].1), (4000, FIRST_NETWORK + 3999));
    let told = refusal(&more(3999, groups));
    assert_eq!(told.as_deref(), Some("more than 4000 virtual networks with groups"));

    let entrances = |count: u32| {
        let all: Vec<String> = (1..=count).map(|n| format!("\"198.51.100.{n}\"")).collect();
        GOOD.replace("entrances = [\"198.51.100.1\"]", &format!("entrances = {all:?}"))
            .replace("\\\"", "")
    };
    assert_eq!(refusal(&entrances(128)), None);
    let told = refusal(&entrances(129));
    assert_eq!(told.as_deref(), Some("more than 128 entrances of an overlay"));

    let overlay = |n: u32, port: &str| {
        format!(
            "[overlay.o{n}]\nkind = \"vxlan\"\nport = \"{port}\"\nentrances = [\"10.0.0.{n}\"]\n"
        )
    };
    let on_one = |count| -> String { (1..=count).map(|n| overlay(n, "fab")).collect() };
    assert_eq!(refusal(&format!("{GOOD}{}", on_one(3))), None);
    let told = refusal(&format!("{GOOD}{}", on_one(4)));
    assert_eq!(told.as_deref(), Some("more than 4 overlays of one port"));
    let on_many = |count: u32| {
        let port = |n| format!("[port.p{n}]\nnetdev = \"p{n}\"\nside = \"protected\"\n");
        let all = |n: u32| port(n) + &overlay(n, &format!("p{n}"));
        (1..=count).map(all).collect::<String>()
    };
    assert_eq!(refusal(&format!("{GOOD}{}", on_many(62))), None);
    let told = refusal(&format!("{GOOD}{}", on_many(63)));
    assert_eq!(told.as_deref(), Some("more than 64 overlays"));
}

#[test]
fn more_than_a_quarter_of_the_memory_is_refused_with_what_fits() {
    let text = GOOD.replace("\"3K\"", "\"3M\"") + "[cache]\nflows = \"off\"\n";
    let gibibyte = Some(1 << 30);
    let error = parsed(&text).within(gibibyte).unwrap_err().to_string();
    assert!(error.contains("o.toml:59:13: error: the table of endpoints would take"), "{error}");
    // 3 M times 96 bytes, and 4 M times 32.
    assert!(error.contains(" 436207616 bytes") && error.contains("endpoints = \"2M\""), "{error}");
    assert!(parsed(&text).within(Some(4 * 436_207_616)).is_ok());
    assert!(parsed(&text).within(Some(4 * 436_207_616 - 4)).is_err());
    let none = without(&text, "[overlay.fabric]", "[store]");
    assert!(parsed(&none).within(gibibyte).is_ok(), "no overlay has a table");
    let settings = |endpoints| StoreSettings { kind: StoreKind::Memory, endpoints };
    assert_eq!([1, 65_536, 1 << 22].map(|n| settings(n).bytes()), [128, 8 << 20, 512 << 20]);
}

#[test]
fn the_example_of_the_documentation_is_right() {
    let text = include_str!("../../../docs/CONFIGURATION.md");
    let (_, section) = text.split_once("## Virtual networks").unwrap();
    let (_, example) = section.split_once("```toml\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let Parsed { validated, warnings, .. } =
        parsed(&format!("[node]\nname = \"gw\"\n[group.web]\n{example}"));
    assert_eq!(warnings, []);
    assert_eq!((validated.overlays.len(), validated.networks.len()), (1, 1));
}
