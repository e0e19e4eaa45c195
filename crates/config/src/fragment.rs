//! `[[policy]]` sections that stand alone: what is added to a configuration that runs.
//!
//! They are judged in front of the sections that policies may refer to, so that every rule holds
//! for them that holds in a whole file, and lines and columns are their own.

use std::collections::HashMap;

use toml::de::DeTable;

use crate::cards::SaOffload;
use crate::chunked::{Chunks, WHOLE_BYTES};
use crate::diagnostic::{DiagnosticKind, nearest};
use crate::errors::{ConfigErrors, Diagnostic, Diagnostics, Severity};
use crate::overlays::{KernelSettings, StoreSettings};
use crate::raw::MAX_BYTES;
use crate::source::{Location, Origin, Source, Span};
use crate::text_bounds;
use crate::validated::{Action, Peer, PeerId, Policy, Port, Validated};

/// The only sections that there may be.
const SECTIONS: &[&str] = &["policy"];

/// Policies for a configuration that runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParsedPolicies {
    /// The policies, in the order of the text; peers and ports are those of the configuration.
    pub policies: Vec<Policy>,
    /// Mistakes that are allowed, but were probably not meant.
    pub warnings: Vec<Diagnostic>,
}

/// Parses `[[policy]]` sections for a configuration whose ports and peers they may name. Does not
/// compare names with the configuration's policies; the caller that adds them does. `name` is the
/// file's name in messages.
///
/// # Errors
/// All mistakes of the text, with its warnings.
pub fn parse_policies(
    text: &str,
    name: &str,
    running: &Validated,
) -> Result<ParsedPolicies, ConfigErrors> {
    if text.len() as u64 > MAX_BYTES {
        let mistake = DiagnosticKind::TooLarge { limit: MAX_BYTES };
        return Err(ConfigErrors::of(Location::of_file(name), mistake));
    }
    check_sections(text, name)?;
    // Of very many peers a change names few.
    let mentioned: Vec<&Peer> =
        running.peers.iter().filter(|peer| text.contains(&peer.name)).collect();
    let judged = judge(text, name, running, &mentioned);
    if judged.is_ok() || mentioned.len() == running.peers.len() {
        return judged;
    }
    // The nearest right word may be another peer's name.
    judge(text, name, running, &running.peers.iter().collect::<Vec<_>>())
}

/// A policy as a section of a configuration with these ports and peers.
///
/// # Panics
/// If it is of another configuration.
pub fn policy_text(config: &Validated, policy: &Policy) -> String {
    let mut text = String::new();
    config.write_policy(&mut text, policy).expect("writing to a string");
    text
}

/// A configuration's text with policies removed and added, one change after the other: as it would
/// be if they had been made while it ran.
///
/// # Errors
/// The text is none, or a change does not fit it.
pub fn edited<'e>(
    whole: &str,
    edits: impl IntoIterator<Item = (&'e [String], &'e str)>,
    name: &str,
) -> Result<String, ConfigErrors> {
    let mut config = crate::parse(whole, name)?.validated;
    let mut policies: Vec<Option<Policy>> =
        std::mem::take(&mut config.policies).into_iter().map(Some).collect();
    let place = |(place, policy): (usize, &Option<Policy>)| {
        policy.as_ref().map(|policy| (policy.name.clone(), place))
    };
    let mut places: HashMap<String, usize> =
        policies.iter().enumerate().filter_map(place).collect();
    for (remove, add) in edits {
        for name in remove {
            if let Some(place) = places.remove(name) {
                policies[place] = None;
            }
        }
        for policy in parse_policies(add, name, &config)?.policies {
            places.insert(policy.name.clone(), policies.len());
            policies.push(Some(policy));
        }
    }
    config.policies = policies.into_iter().flatten().collect();
    Ok(config.effective())
}

/// Notes what is broken, and what is no policy.
fn check_sections(text: &str, name: &str) -> Result<(), ConfigErrors> {
    let source = Source::new(name, text);
    let mut problems = Diagnostics::new(&source);
    if let Some((span, mistake)) = text_bounds::exceeded(text) {
        problems.error(&span, mistake);
        return problems.finish().map(drop);
    }
    let pieces = match text.len() <= WHOLE_BYTES {
        true => std::iter::once(0..text.len()).collect(),
        false => Chunks::of(text).in_order(text),
    };
    for piece in pieces {
        check_piece(&source, piece, &mut problems);
    }
    problems.finish().map(drop)
}

/// Notes the mistakes of a piece.
fn check_piece(source: &Source<'_>, piece: Span, problems: &mut Diagnostics<'_>) {
    let origin = Origin::of(std::slice::from_ref(&piece));
    let (table, errors) = DeTable::parse_recoverable(&source.text[piece]);
    for error in &errors {
        let span = origin.span(error.span().unwrap_or(0..0));
        // A key that is there twice is told with all else.
        if !error.message().starts_with("duplicate key") {
            problems.error(&span, DiagnosticKind::Syntax { message: error.message().to_owned() });
        }
    }
    for (key, _) in table.get_ref().iter() {
        let found = key.get_ref().as_ref();
        if !SECTIONS.contains(&found) {
            let nearest = nearest(found, SECTIONS.iter().copied());
            let name = found.to_owned();
            problems.error(
                &origin.span(key.span()),
                DiagnosticKind::UnknownSection { name, nearest, allowed: SECTIONS },
            );
        }
    }
}

fn without_groups(port: &Port) -> Port {
    Port { groups_in: Vec::new(), groups_out: Vec::new(), ..port.clone() }
}

/// A peer without what refers to other sections: cards, other peers and the policies that it wants.
fn by_itself(peer: &Peer) -> Peer {
    Peer { offload: SaOffload::None, outer: None, ..peer.clone() }
}

fn judge(
    text: &str,
    name: &str,
    running: &Validated,
    peers: &[&Peer],
) -> Result<ParsedPolicies, ConfigErrors> {
    let around = Validated {
        node: running.node.clone(),
        cache: running.cache,
        connections: running.connections,
        metrics: running.metrics,
        // Policies name no groups.
        ports: running.ports.iter().map(without_groups).collect(),
        peers: peers.iter().map(|peer| by_itself(peer)).collect(),
        sets: Vec::new(),
        groups: Vec::new(),
        policies: Vec::new(),
        rules: Vec::new(),
        routes: Vec::new(),
        neighbours: Vec::new(),
        overlays: Vec::new(),
        networks: Vec::new(),
        store: StoreSettings::default(),
        kernel: KernelSettings::default(),
        cards: Vec::new(),
        audit: running.audit,
        ike: None,
    };
    let whole = format!("{text}\n{}", around.effective());
    let lines = text.lines().count().max(1) as u32;
    let is_ours = |problem: &Diagnostic| problem.place.line <= lines;
    match crate::parse(&whole, name) {
        Ok(parsed) => {
            let place_of = |id: PeerId| {
                let name = &parsed.validated.peers[id.0 as usize].name;
                running.peers.iter().position(|peer| peer.name == *name)
            };
            let renamed: Vec<Option<usize>> =
                (0..peers.len() as u32).map(PeerId).map(place_of).collect();
            let of_running = |mut policy: Policy| {
                if let Action::Protect(peer) = &mut policy.action {
                    let place = renamed[peer.0 as usize].expect("peers are the configuration's");
                    *peer = PeerId(place as u32);
                }
                policy
            };
            let policies = parsed.validated.policies.into_iter().map(of_running).collect();
            let warnings = parsed.warnings.into_iter().filter(is_ours).collect();
            Ok(ParsedPolicies { policies, warnings })
        }
        Err(mut errors) => {
            // What runs was good, so what is told of it comes of what stands in front.
            let is_kept =
                |problem: &Diagnostic| is_ours(problem) || problem.severity == Severity::Error;
            errors.problems.retain(is_kept);
            for problem in errors.problems.iter_mut().filter(|problem| !is_ours(problem)) {
                problem.place.line = lines;
                problem.place.column = 1;
            }
            Err(errors)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNNING: &str = r#"
[node]
name = "a"
[port.lan]
netdev = "eth1"
side = "protected"
[port.wan]
netdev = "eth0"
side = "unprotected"
[peer.berlin]
local = "192.0.2.1"
remote = "198.51.100.7"
keys = "file:berlin.keys"
manual = "laboratory"
suite = "aes-128-gcm"
[peer.paris]
local = "192.0.2.1"
remote = "198.51.100.8"
keys = "file:paris.keys"
manual = "laboratory"
suite = "aes-128-gcm"
[[policy]]
name = "dns"
action = "bypass"
local = ["any"]
remote = ["9.9.9.9/32"]
"#;

    fn running() -> Validated {
        crate::parse(RUNNING, "a.toml").unwrap_or_else(|errors| panic!("{errors}")).validated
    }

    const PARIS: &str = "[[policy]]\nname = \"p\"\npeer = \"paris\"\nlocal = [\"10.1.0.0/16\"]\n\
                         remote = [\"10.2.0.0/16\"]\nports = [\"lan\"]\n";

    #[test]
    fn policies_are_those_that_the_whole_file_would_have() {
        let running = running();
        let parsed = parse_policies(PARIS, "p.toml", &running).unwrap();
        let whole = crate::parse(&format!("{RUNNING}{PARIS}"), "a.toml").unwrap().validated;
        assert_eq!(parsed.policies, whole.policies[1..]);
        assert_eq!(parsed.policies[0].action, Action::Protect(PeerId(1)));
        assert_eq!(parsed.warnings, []);
        let text = policy_text(&running, &parsed.policies[0]);
        assert_eq!(parse_policies(&text, "again", &running).unwrap().policies, parsed.policies);
        assert_eq!(parse_policies("", "none", &running).unwrap().policies, []);
    }

    #[test]
    fn a_text_with_changes_is_the_text_that_they_would_have_led_to() {
        let dns = ["dns".to_owned()];
        let none: [String; 0] = [];
        let other = PARIS.replace("\"p\"", "\"q\"").replace("paris", "berlin");
        // A policy that goes and comes again is the newest.
        let text = edited(
            RUNNING,
            [(&none[..], PARIS), (&["p".to_owned()][..], &other), (&dns[..], PARIS)],
            "revision",
        )
        .unwrap();
        let head = RUNNING.split("[[policy]]").next().unwrap();
        let expected = crate::parse(&format!("{head}{other}{PARIS}"), "a.toml").unwrap();
        assert_eq!(crate::parse(&text, "again").unwrap().validated, expected.validated);
        assert!(edited(RUNNING, [(&none[..], "[[policy]]")], "revision").is_err());
    }

    /// The text has none of what a peer's section refers to.
    #[test]
    fn policies_may_be_of_peers_with_cards_and_behind_others() {
        let file = RUNNING.replacen(
            "[peer.paris]",
            "[card.nic0]\nkind = \"xfrm\"\nports = [\"wan\"]\n[peer.far]\nlocal = \"192.0.2.1\"\n\
             remote = \"203.0.113.9\"\nkeys = \"api\"\nsuite = \"aes-128-gcm\"\nouter = \"near\"\n\
             [peer.near]\nlocal = \"192.0.2.1\"\nremote = \"198.51.100.9\"\nkeys = \"api\"\n\
             suite = \"aes-128-gcm\"\noffload = \"packet\"\n[[policy]]\nname = \"esp\"\n\
             peer = \"near\"\nlocal = [\"192.0.2.1\"]\nremote = [\"203.0.113.9\"]\n\
             protocol = \"esp\"\n[peer.paris]",
            1,
        );
        let parsed = crate::parse(&file, "a.toml");
        let running = parsed.unwrap_or_else(|errors| panic!("{errors}")).validated;
        for (place, peer) in running.peers.iter().enumerate() {
            let text = PARIS.replace("paris", &peer.name);
            let parsed = parse_policies(&text, "p.toml", &running);
            let parsed = parsed.unwrap_or_else(|errors| panic!("{}: {errors}", peer.name));
            assert_eq!(parsed.policies[0].action, Action::Protect(PeerId(place as u32)));
        }
        // Nor is it told of beside a mistake of the text.
        let told = parse_policies(&PARIS.replace("paris", "pariss"), "p.toml", &running);
        let told = told.unwrap_err();
        assert_eq!(told.errors(), 1, "{told}");
    }

    #[test]
    fn mistakes_stand_where_they_were_made() {
        let told = |text: &str| {
            let errors = parse_policies(text, "p.toml", &running()).unwrap_err();
            assert!(errors.errors() > 0);
            errors.to_string()
        };
        let text = told(&PARIS.replace("paris", "pariss"));
        assert!(text.contains("p.toml:3:8") && text.contains("paris"), "{text}");
        let text = told(&format!("{PARIS}\n[[route]]\nto = \"10.0.0.0/8\"\n"));
        assert!(text.contains("p.toml:8:3") && text.contains("route"), "{text}");
        let text = told(&format!("{PARIS}{PARIS}"));
        assert!(text.contains("p.toml:8:8"), "{text}");
        let text = told("[[policy]]\nname = \"p\nlocal = 3\n");
        assert!(text.contains("p.toml:2:"), "{text}");
        let text = told("[[policy]]\nname = \"p\"\n");
        assert!(text.contains("p.toml:1:1") && text.contains("local"), "{text}");
        let text = told("name = \"p\"\n");
        assert!(text.contains("p.toml:1:1"), "{text}");
    }

    #[test]
    fn warnings_are_about_the_text_alone() {
        let policy = "[[policy]]\nname = \"w\"\naction = \"bypass\"\nlocal = [\"any\"]\n\
                      remote = [\"any\"]\nremote_ports = [\"80\"]\n";
        let parsed = parse_policies(policy, "w.toml", &running()).unwrap();
        assert!(parsed.warnings.iter().all(|warning| warning.place.line <= 6));
        assert!(!parsed.warnings.is_empty(), "ports without a protocol are told of");
    }
}
