//! The scenes in which rules stand still, one function each. Each asks with a rule and without it.

use netlab::LabError;
use wire::Family;

use super::groups::{Groups, Mode, Rule, group_text, http, ping, ping_answers, tcp_to};
use super::stage::{A, B, Expected, Explained, Stage, Target, answers, family_name, questions};
use super::traffic::Service::{self, Dns, Http, Https, Ping};
use crate::report::Check;

/// Counters of the rules of group `web`.
const WEB_HTTP: &[&str] = &["web/http"];
const WEB_PING: &[&str] = &["web/ping", "web/ping6"];
/// Counters of the rules of group `answers`.
const ANSWERS_HTTP: &[&str] = &["answers/http"];
const ANSWERS_PING: &[&str] = &["answers/ping", "answers/ping6"];
/// Counters of packets that no rule matched.
const LAN_LAST: &[&str] = &["lan (in)"];
const DMZ_LAST: &[&str] = &["dmz (in)"];
const DMZ_OUT_LAST: &[&str] = &["dmz (out)"];
const WAN_LAST: &[&str] = &["wan (in)"];
/// Drop reasons, and the decision of audit mode.
const NO_MATCH: &[&str] = &["group_no_match"];
const DENIED: &[&str] = &["group_deny"];
const WOULD_DENY: &[&str] = &["would_deny"];

/// Scene 1: everything passes, or the later scenes would prove nothing.
pub(super) fn no_groups(stage: &mut Stage) -> Result<(), LabError> {
    let expected = Expected::answered(&Service::ALL, Vec::new());
    stage.expect("no groups: everything passes", &expected)?;
    match stage.report.checks.iter().all(|check| check.ok) {
        true => Ok(()),
        false => Err(LabError::Answer {
            command: "the control run without groups".to_owned(),
            answer: "without it no later check proves anything".to_owned(),
        }),
    }
}

/// Rules that permit HTTP and pings.
fn web() -> Vec<Rule> {
    [&[http()], ping().as_slice()].concat()
}

/// A rule that lets the answers of HTTP back.
fn http_answers() -> Rule {
    Rule::permit("http", "protocol = \"tcp\"\nfrom_ports = [\"80\"]")
}

/// Group `web` for what the client sends, `answers` for what the server sends.
fn two_groups(web: &[Rule], answers: &[Rule]) -> Groups {
    Groups::none().lan_in(&["web"]).dmz_in(&["answers"]).group("web", Mode::Enforce, web).group(
        "answers",
        Mode::Enforce,
        answers,
    )
}

/// Scene 2: two services are permitted, and the rest is denied.
pub(super) fn permit_some(stage: &mut Stage) -> Result<(), LabError> {
    let back = [&[http_answers()], ping_answers().as_slice()].concat();
    stage.apply(&two_groups(&web(), &back))?;
    let equal = vec![
        questions(WEB_HTTP, &[Http]),
        questions(WEB_PING, &[Ping]),
        questions(LAN_LAST, &[Https, Dns]),
        questions(NO_MATCH, &[Https, Dns]),
        answers(ANSWERS_HTTP, &[Http]),
        answers(ANSWERS_PING, &[Ping]),
    ];
    let expected = Expected::answered(&[Http, Ping], equal);
    stage.expect("groups of lan: what they permit passes, the rest is denied", &expected)?;
    explain(stage)?;

    stage.apply(&two_groups(&ping(), &back))?;
    let equal = vec![
        questions(WEB_PING, &[Ping]),
        questions(LAN_LAST, &[Http, Https, Dns]),
        questions(NO_MATCH, &[Http, Https, Dns]),
    ];
    let expected = Expected::answered(&[Ping], equal);
    stage.expect("control: without the rule for tcp/80 it is denied too", &expected)?;

    stage.apply(&two_groups(&web(), &[http_answers()]))?;
    let equal =
        vec![questions(WEB_PING, &[Ping]), answers(DMZ_LAST, &[Ping]), answers(NO_MATCH, &[Ping])];
    let expected = Expected { asked: &[Ping], ..Expected::answered(&[], equal) };
    stage.expect("control: without the rule for answers no ping is answered", &expected)
}

/// `lockgate explain` says what happened, and names the rule and its group.
fn explain(stage: &mut Stage) -> Result<(), LabError> {
    let mut wrong = Vec::new();
    let mut told = Vec::new();
    for family in [Family::V4, Family::V6] {
        let ping = if family == Family::V4 { "web/ping" } else { "web/ping6" };
        for (service, verdict, reason, rule) in [
            (Http, "forward", None, "web/http"),
            (Ping, "forward", None, ping),
            (Https, "drop", Some("group_no_match"), "lan (in)"),
            (Dns, "drop", Some("group_no_match"), "lan (in)"),
        ] {
            let Explained { verdict: found, reason: why, decided_by } =
                stage.explain(service, family)?;
            let by = decided_by.first().cloned().unwrap_or_default();
            if found != verdict || why.as_deref() != reason || by != rule {
                let (name, family) = (service.name(), family_name(family));
                wrong.push(format!("{name} over {family}: {found} {why:?} by {by}"));
            }
            if family == Family::V4 {
                told.push(format!("{}: {found} by {by}", service.name()));
            }
        }
    }
    let ok = wrong.is_empty();
    let detail = if ok { told } else { wrong }.join("; ");
    stage.note(Check { name: "explain says the same and names the rule", ok, detail });
    Ok(())
}

/// Scene 3: the first rule that matches decides: in a group, and over the groups of a port.
pub(super) fn order(stage: &mut Stage) -> Result<(), LabError> {
    let tcp = || Rule::permit("tcp", "protocol = \"tcp\"");
    let deny = || Rule::deny("no-https", tcp_to(443));
    let one = |rules: &[Rule]| Groups::none().lan_in(&["web"]).group("web", Mode::Enforce, rules);
    let asked = &[Http, Https];
    stage.apply(&one(&[deny(), tcp()]))?;
    let equal = vec![
        questions(&["web/no-https"], &[Https]),
        questions(DENIED, &[Https]),
        questions(&["web/tcp"], &[Http]),
    ];
    let expected = Expected { asked, ..Expected::answered(&[Http], equal) };
    stage.expect("a deny above a permit in one group decides", &expected)?;
    stage.apply(&one(&[tcp()]))?;
    let equal = vec![questions(&["web/tcp"], asked)];
    let expected = Expected { asked, ..Expected::answered(asked, equal) };
    stage.expect("control: without the deny both pass", &expected)?;

    let two = |first, second| {
        Groups::none().lan_in(&[first, second]).group("web", Mode::Enforce, &[http()]).group(
            "closed",
            Mode::Enforce,
            &[Rule::deny("no-tcp", "protocol = \"tcp\"")],
        )
    };
    stage.apply(&two("closed", "web"))?;
    let equal = vec![questions(&["closed/no-tcp"], asked), questions(DENIED, asked)];
    let expected = Expected { asked, ..Expected::answered(&[], equal) };
    stage.expect("the group that a port lists first decides", &expected)?;
    stage.apply(&two("web", "closed"))?;
    let equal = vec![
        questions(WEB_HTTP, &[Http]),
        questions(&["closed/no-tcp"], &[Https]),
        questions(DENIED, &[Https]),
    ];
    let expected = Expected { asked, ..Expected::answered(&[Http], equal) };
    stage.expect("control: in the other order tcp/80 passes", &expected)
}

/// Scene 4: what a group in audit mode would deny is counted, and passes.
pub(super) fn audit(stage: &mut Stage) -> Result<(), LabError> {
    let watch = |mode| {
        let rules = [Rule::deny("no-https", tcp_to(443)), http()];
        Groups::none().lan_in(&["watch"]).group("watch", mode, &rules)
    };
    stage.apply(&watch(Mode::Audit))?;
    let equal = vec![
        questions(WOULD_DENY, &[Https, Dns, Ping]),
        questions(&["watch/no-https"], &[Https]),
        questions(LAN_LAST, &[Dns, Ping]),
        questions(&["watch/http"], &[Http]),
    ];
    let expected = Expected::answered(&Service::ALL, equal);
    stage.expect("audit mode: everything passes, what would be denied is counted", &expected)?;
    stage.apply(&watch(Mode::Enforce))?;
    let equal = vec![
        questions(DENIED, &[Https]),
        questions(NO_MATCH, &[Dns, Ping]),
        questions(WOULD_DENY, &[]),
    ];
    let expected = Expected::answered(&[Http], equal);
    stage.expect("control: in enforce mode the same rules deny", &expected)
}

/// Scene 5: groups for what leaves by the server's port.
pub(super) fn groups_out(stage: &mut Stage) -> Result<(), LabError> {
    let groups = |listed: &[&'static str]| {
        Groups::none().dmz_out(listed).group("web", Mode::Enforce, &web())
    };
    stage.apply(&groups(&["web"]))?;
    let equal = vec![
        questions(WEB_HTTP, &[Http]),
        questions(WEB_PING, &[Ping]),
        questions(DMZ_OUT_LAST, &[Https, Dns]),
        questions(NO_MATCH, &[Https, Dns]),
    ];
    let expected = Expected::answered(&[Http, Ping], equal);
    stage.expect("groups out of dmz: only what they permit leaves by it", &expected)?;
    stage.apply(&groups(&[]))?;
    let expected = Expected::answered(&Service::ALL, Vec::new());
    stage.expect("control: a group that no port lists denies nothing", &expected)
}

/// Scene 13: groups of an unprotected port judge what came through the tunnel, decrypted.
pub(super) fn tunnel(stage: &mut Stage) -> Result<(), LabError> {
    stage.apply(&Groups::none())?;
    stage.start(B)?;
    let target = Target::Tunnel;
    let expected = Expected { target, ..Expected::answered(&Service::ALL, Vec::new()) };
    stage.expect("through the tunnel without groups everything passes", &expected)?;
    let file = stage.gateways.file_mut(B);
    file.wan = "groups_in = [\"web\"]\n".to_owned();
    file.extra = group_text("web", Mode::Enforce, &web());
    stage.apply_file(B)?;
    let equal = vec![
        questions(WEB_HTTP, &[Http]),
        questions(WEB_PING, &[Ping]),
        questions(WAN_LAST, &[Https, Dns]),
        questions(NO_MATCH, &[Https, Dns]),
    ];
    let expected = Expected { target, ..Expected::answered(&[Http, Ping], equal) };
    stage.expect("groups of gateway b's wan judge what was decrypted", &expected)
}

/// Waits until no packet is under way, and notes the sums.
pub(super) fn settle(stage: &mut Stage) -> Result<(), LabError> {
    for gateway in [A, B] {
        // That of gateway B runs in the last scenes only.
        if stage.gateways.daemon(gateway).is_ok() {
            stage.sum_up(gateway)?;
        }
    }
    let imbalance = stage.report.ledger_imbalance.unwrap_or_default();
    let (ok, detail) = (imbalance == 0, format!("out by {imbalance} packets"));
    stage.note(Check { name: "the ledgers balance", ok, detail });
    Ok(())
}
