//! The configuration as text.

use ipsec::Mode;

use super::{Action, Drafts, End, PeerDraft};
use crate::fill_in::{self, MARK as FILL_IN};
use crate::model::Foreigners;
use crate::problem::{ImportErrors, Omissions};
use crate::write::{comment, head, lifetime, put, selector};
use crate::{Imported, Options};

/// Writes everything.
pub(super) fn all(
    drafts: Drafts,
    mut omissions: Omissions,
    options: &Options<'_>,
    origin: &str,
) -> Result<Imported, ImportErrors> {
    let Drafts { peers, mut policies, ike_ports } = drafts;
    let notes = [
        "charon negotiates and goes on to read swanctl.conf: docs/IKE.md.",
        "Without IPsec policies Linux lets packets pass. Lockgate drops at port wan what no policy \
         matches.",
    ];
    let notes = notes.map(str::to_owned).to_vec();
    let mut text = head(&Foreigners { notes, ..Foreigners::default() }, options, origin);
    let ports = [500, 4500].into_iter().chain(ike_ports);
    let allowed: Vec<String> = ports.map(|port| format!("\"udp/{port}\"")).collect();
    let netdev = |given: Option<&str>, usual: &str, what: &str| match given {
        Some(name) => crate::write::quoted(name),
        None => format!("\"{usual}\" {FILL_IN} the interface towards {what}"),
    };
    put(
        &mut text,
        format_args!(
            "\n[port.lan]\nnetdev = {}\nside = \"protected\"\n\n[port.wan]\nnetdev = {}\n\
             side = \"unprotected\"\n# IKE, for charon:\nallow_host = [{}]\n",
            netdev(options.lan, "lan0", "the hosts behind the gateway"),
            netdev(options.wan, "wan0", "the peers"),
            allowed.join(", "),
        ),
    );
    for peer in &peers {
        text.push_str(&peer_text(peer));
    }
    policies.sort_by_key(|policy| policy.rank);
    for (place, policy) in policies.iter().enumerate() {
        put(&mut text, format_args!("\n[[policy]] # {}\n", comment(&policy.at)));
        put(&mut text, format_args!("name = \"{}\"\n", policy.name));
        match policy.action {
            Action::Protect(peer) => {
                put(&mut text, format_args!("peer = \"{}\"\n", peers[peer].name));
            }
            Action::Bypass => text.push_str("action = \"bypass\"\n"),
            Action::Discard => text.push_str("action = \"discard\"\n"),
        }
        if let Some(what) = &policy.fill_in {
            put(&mut text, format_args!("{FILL_IN} {what}\n"));
        }
        selector(&mut text, &policy.selector);
        // The first that matches decides: each has a priority of its own, with room between.
        put(&mut text, format_args!("priority = {}\n", 10 * (policies.len() - place)));
    }
    omissions.0.sort_by(|one, other| one.place.cmp(&other.place));
    omissions.bounded()?;
    let to_fill_in = fill_in::places(&text);
    Ok(Imported {
        text,
        to_fill_in,
        keys: Vec::new(),
        omissions: omissions.0,
        peers: peers.len(),
        policies: policies.len(),
        sas: 0,
        keyed_sas: 0,
    })
}

fn peer_text(peer: &PeerDraft) -> String {
    let mut text = format!("\n[peer.{}] # {}\n", peer.name, comment(&peer.at));
    for (key, End { address, fill_in, .. }) in ["local", "remote"].into_iter().zip(&peer.ends) {
        match fill_in {
            None => put(&mut text, format_args!("{key} = \"{address}\"\n")),
            Some(what) => put(&mut text, format_args!("{key} = \"{address}\" {FILL_IN} {what}\n")),
        }
    }
    text.push_str("keys = \"ike\"\n");
    match peer.suite_fill_in {
        false => put(&mut text, format_args!("suite = \"{}\"\n", peer.suite)),
        true => put(
            &mut text,
            format_args!("suite = \"{}\" {FILL_IN} the suite that the peer has too\n", peer.suite),
        ),
    }
    if peer.mode == Mode::Transport {
        text.push_str("mode = \"transport\"\n");
    }
    if let Some(port) = peer.udp {
        text.push_str("encapsulation = \"udp\"\n");
        if port != 4500 {
            put(&mut text, format_args!("remote_port = {port}\n"));
        }
    }
    if let Some(window) = peer.window {
        put(&mut text, format_args!("replay_window = {window}\n"));
    }
    if let Some(dscp) = peer.dscp {
        put(&mut text, format_args!("dscp = {dscp}\n"));
    }
    if let Some(df) = peer.df {
        put(&mut text, format_args!("df = \"{df}\"\n"));
    }
    text.push_str(&lifetime(&peer.name, &peer.lifetime));
    text
}
