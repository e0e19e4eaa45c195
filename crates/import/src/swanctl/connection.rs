//! A connection: the ends of its peers, and its children.

use std::net::IpAddr;

use config::{nearest, unusable};

use super::child::Parent;
use super::keys::{CHILD, CONNECTION, MEDIATED};
use super::left_out::LeftOut;
use super::syntax::{Place, View};
use super::values::{Host, entries, host, number, yes_or_no};
use super::{End, Reader, Untaken};
use crate::problem::{Fate, Mistake, Parsed, Problem, shown};

/// Addresses of documentation (RFC 5737, RFC 3849), in the place of unknown ones.
const UNKNOWN: [[&str; 2]; 2] = [["192.0.2.1", "198.51.100.1"], ["2001:db8::1", "2001:db8::2"]];

impl Reader<'_, '_> {
    pub(super) fn connection(&mut self, name: &str, view: &View) -> Parsed<()> {
        let tree = self.tree;
        self.known_keys(view, "a connection", &[&CONNECTION, &MEDIATED]);
        for section in tree.names(view) {
            let is_known = section == "children"
                || section.starts_with("local")
                || section.starts_with("remote");
            if !is_known {
                let at = self.section_place(view, section)?;
                let known = ["children", "local", "remote"];
                let nearest = nearest(section, known.into_iter());
                let (word, context) = (shown(section), "a connection");
                self.mistake(at, Mistake::UnknownWord { word, context, nearest });
            }
        }
        let Some(children) = tree.section(view, "children")? else {
            let reason = "it has no children: no packets are to be protected";
            self.note(Fate::Left, tree.place(view), name, (reason, "add a child"));
            return Ok(());
        };
        for (key, at) in tree.keys(&children) {
            let (word, context) = (shown(key), "`children`, which has sections alone");
            self.mistake(at, Mistake::UnknownWord { word, context, nearest: None });
        }
        let mut views = Vec::new();
        for child in tree.names(&children) {
            views.extend(tree.section(&children, child)?.map(|view| (child, view)));
        }
        let is_shunt = |view: &View| {
            let is = |mode: &str| ["pass", "drop"].iter().any(|of| mode.eq_ignore_ascii_case(of));
            tree.value(view, "mode").is_some_and(|(_, mode)| is(mode))
        };
        let with_sas = views.iter().filter(|(_, view)| !is_shunt(view)).count();
        let parent = Parent {
            name,
            is_only: with_sas == 1,
            ends: if with_sas > 0 { self.ends(view) } else { self.nowhere(view) },
            assigned: self.assigned(view),
            interface: self.interface(view),
            udp: self.encapsulation(view),
            is_version_1: tree.value(view, "version").is_some_and(|(_, version)| version == "1"),
        };
        let peers = self.drafts.peers.len();
        for (name, view) in &views {
            self.known_keys(view, "a child", &[&CHILD]);
            for section in tree.names(view) {
                let at = self.section_place(view, section)?;
                let (word, context) = (shown(section), "a child, which has no sections");
                self.mistake(at, Mistake::UnknownWord { word, context, nearest: None });
            }
            let taken = self.child(name, view, &parent);
            if let Some(mistake) = self.addresses.beyond() {
                let place = tree.location(tree.place(view));
                return Err(Box::new(Problem { place, mistake }));
            }
            if taken.is_ok() {
                self.note_names(name, view);
            }
            if let Err(why) = taken {
                let names = [(*name).to_owned(), parent.name.to_owned()];
                self.left_out.push(LeftOut { names, view: view.clone(), why });
            }
        }
        match self.drafts.peers.len() > peers {
            true => self.version_1(view),
            false => Ok(()),
        }
    }

    /// Notes what the version of IKE has to do with SAs: moves, or that it is IKEv1.
    fn version_1(&mut self, view: &View) -> Parsed<()> {
        let tree = self.tree;
        let advice = "write version = 2 at both gateways (RFC 9395 deprecates IKEv1)";
        let written = tree.value(view, "version");
        if !matches!(written, Some((_, "1"))) {
            self.moves(view);
        }
        if let Some((at, "1")) = written {
            let reason = "charon would install SAs of IKEv1 too, but Lockgate is tested with IKEv2 \
                          alone";
            self.note(Fate::Differs, at, "version", (reason, advice));
        }
        for name in tree.names(view) {
            let is_end = name.starts_with("local") || name.starts_with("remote");
            let Some(end) = tree.section(view, name)?.filter(|_| is_end) else { continue };
            let auth = tree.value(&end, "auth");
            if let Some((at, _)) = auth.filter(|(_, auth)| auth.starts_with("xauth")) {
                let reason = "XAuth is of IKEv1, with which Lockgate is not tested";
                self.note(Fate::Differs, at, "auth", (reason, advice));
            }
        }
        Ok(())
    }

    /// Notes that charon may move SAs, and Lockgate only to where a peer's section says.
    fn moves(&mut self, view: &View) {
        if self.flag(view, "mobike") == Some(false) {
            return;
        }
        let reason = "charon moves running SAs to other addresses (MOBIKE), and Lockgate follows \
                      only to those of `moves_to` and `local_moves_to`, which the imported peers \
                      lack";
        let advice = "write mobike = no in swanctl.conf or, in tunnel mode, these keys in \
                      [peer.NAME]: docs/CONFIGURATION.md";
        // The default is yes. It is told once, in the first connection that has it.
        let written = self.tree.value(view, "mobike").map(|(at, _)| at);
        if written.is_none() && std::mem::replace(&mut self.told_of_moves, true) {
            return;
        }
        let at = written.unwrap_or(self.tree.place(view));
        self.note(Fate::Differs, at, "mobike", (reason, advice));
    }

    /// Notes keys that are none.
    fn known_keys(&mut self, view: &View, context: &'static str, known: &[&[&str]]) {
        let tree = self.tree;
        for (key, at) in tree.keys(view) {
            if !known.iter().any(|keys| keys.contains(&key)) {
                let all = known.iter().flat_map(|keys| keys.iter().copied());
                let (word, nearest) = (shown(key), nearest(key, all));
                self.mistake(at, Mistake::UnknownWord { word, context, nearest });
            }
        }
    }

    /// Ends that no peer needs.
    fn nowhere(&self, view: &View) -> Result<[End; 2], Untaken> {
        let at = self.tree.place(view);
        let (reason, advice) = ("it has no ends".into(), "none".into());
        Err(Untaken { at, word: "remote_addrs", reason, advice })
    }

    /// Our end and the peer's.
    fn ends(&mut self, view: &View) -> Result<[End; 2], Untaken> {
        let at = self.tree.place(view);
        let (there, text) = self.tree.value(view, "remote_addrs").unwrap_or((at, "%any"));
        let hosts: Vec<(&str, Host<'_>)> = entries(text).map(|text| (text, host(text))).collect();
        let is_end = |(_, host): &&(&str, Host<'_>)| matches!(host, Host::One(_) | Host::Name(_));
        let untaken = |reason: String, advice: &str| Untaken {
            at: there,
            word: "remote_addrs",
            reason,
            advice: advice.into(),
        };
        let Some((text, found)) = hosts.iter().find(is_end) else {
            let several = hosts.iter().find(|(_, host)| matches!(host, Host::Several));
            let reason = match several {
                Some((text, _)) => format!(
                    "the peer may have each address of {}, and a peer has one here",
                    shown(text)
                ),
                None => "the peer may have any address, and a peer has one here".to_owned(),
            };
            return Err(untaken(
                reason,
                "write remote_addrs = ADDRESS, one connection each; or [ike] with peers",
            ));
        };
        if hosts.len() > 1 {
            let reason = format!("a peer has one address: {} was taken", shown(text));
            let advice = "make a connection of its own for each address that is used";
            self.note(Fate::Differs, there, "remote_addrs", (&reason, advice));
        }
        let local = self.local(view, found)?;
        let placeholder = |ip: IpAddr| UNKNOWN[usize::from(ip.is_ipv6())];
        let remote = match found {
            Host::One(address) => *address,
            _ => self.other_than(placeholder(local.address)[1], local.address),
        };
        if let Some(why) = unusable(remote) {
            return Err(untaken(format!("{remote} is {why}"), "correct it"));
        }
        if remote == local.address {
            return Err(untaken(format!("both ends are {remote}"), "correct one of them"));
        }
        let fill_in =
            matches!(found, Host::Name(_)).then(|| format!("the address of {}", shown(text)));
        if fill_in.is_some() {
            self.placeholder((there, "remote_addrs"), "a peer has no name", (remote, "remote"));
        }
        Ok([local, End { address: remote, fill_in, from: (*text).to_owned() }])
    }

    /// Notes that an address stands for one that the operator must write.
    fn placeholder(
        &mut self,
        (at, word): (Place, &str),
        why: &str,
        (address, key): (IpAddr, &str),
    ) {
        let reason = format!("{why}: {address} stands in its place and is no address of yours");
        let advice = format!("write the address in `{key}` of the peer, at the line with FILL IN");
        self.note(Fate::FillIn, at, word, (&reason, &advice));
    }

    /// An address in the place of an unknown one.
    fn other_than(&self, wanted: &str, not: IpAddr) -> IpAddr {
        let wanted = wanted.parse().unwrap_or(not);
        match (wanted == not, wanted) {
            (false, _) => wanted,
            (true, IpAddr::V4(ip)) => IpAddr::V4((u32::from(ip) + 1).into()),
            (true, IpAddr::V6(ip)) => IpAddr::V6((u128::from(ip) + 1).into()),
        }
    }

    /// Our end, of the family of the peer's.
    fn local(&mut self, view: &View, remote: &Host<'_>) -> Result<End, Untaken> {
        let at = self.tree.place(view);
        let (there, text) = self.tree.value(view, "local_addrs").unwrap_or((at, "%any"));
        let hosts: Vec<(&str, Host<'_>)> = entries(text).map(|text| (text, host(text))).collect();
        let fits = |host: &Host<'_>| match (host, remote) {
            (Host::One(ip), Host::One(remote)) => ip.is_ipv4() == remote.is_ipv4(),
            (Host::One(_) | Host::Name(_), _) => true,
            (Host::Any | Host::Several, _) => false,
        };
        let found = hosts.iter().find(|(_, host)| fits(host));
        if let (Some((text, _)), 2..) = (found, hosts.len()) {
            let reason = format!("a peer has one address at this end: {} was taken", shown(text));
            let advice = "make a connection of its own for each address that is used";
            self.note(Fate::Differs, there, "local_addrs", (&reason, advice));
        }
        let is_ipv6 = matches!(remote, Host::One(IpAddr::V6(_)));
        let unknown = |fill_in: String, from: &str| {
            let not = match remote {
                Host::One(ip) => *ip,
                _ => IpAddr::from([0, 0, 0, 0]),
            };
            let address = self.other_than(UNKNOWN[usize::from(is_ipv6)][0], not);
            End { address, fill_in: Some(fill_in), from: from.to_owned() }
        };
        let local = match found {
            Some((text, Host::One(address))) => {
                End { address: *address, fill_in: None, from: (*text).to_owned() }
            }
            Some((text, _)) => unknown(format!("the address of {}", shown(text)), text),
            None => unknown("this gateway's address towards the peer".into(), text),
        };
        if local.fill_in.is_some() {
            let other = |(_, host): &&(&str, Host<'_>)| matches!(host, Host::One(_));
            let why = match (found, hosts.iter().find(other)) {
                (Some(_), _) => "a peer has no name at this end either".to_owned(),
                (None, Some((text, _))) => {
                    format!("{} is of another IP version than the peer's address", shown(text))
                }
                (None, None) => "no single address of this gateway is written".to_owned(),
            };
            self.placeholder((there, "local_addrs"), &why, (local.address, "local"));
        }
        match unusable(local.address) {
            None => Ok(local),
            Some(why) => {
                let (reason, advice) = (format!("{} is {why}", local.address), "correct it".into());
                Err(Untaken { at: there, word: "local_addrs", reason, advice })
            }
        }
    }

    /// The ends whose addresses IKE assigns, which is noted.
    fn assigned(&mut self, view: &View) -> [bool; 2] {
        ["vips", "pools"].map(|key| {
            let Some((at, _)) = self.tree.value(view, key) else { return false };
            let reason = "addresses that IKE assigns are in no configuration of Lockgate";
            let advice = "write fixed selectors in local_ts and remote_ts";
            self.note(Fate::Left, at, key, (reason, advice));
            true
        })
    }

    /// The place of an interface of XFRM that all children are for.
    fn interface(&self, view: &View) -> Option<(Place, &'static str)> {
        let of = |key: &'static str| {
            let (at, text) = self.tree.value(view, key)?;
            (!super::keys::is_zero(text)).then_some((at, key))
        };
        of("if_id_in").or_else(|| of("if_id_out"))
    }

    /// The peer's UDP port, if ESP is always in UDP. Notes ports of IKE.
    fn encapsulation(&mut self, view: &View) -> Option<u16> {
        let is_forced = self.flag(view, "encap").unwrap_or(false);
        let mut port = |key| {
            let (at, text) = self.tree.value(view, key)?;
            let port = number(text).and_then(|port| u16::try_from(port).ok());
            if port.is_none() {
                let expected = "a UDP port from 0 to 65535";
                self.mistake(at, Mistake::BadValue { text: shown(text), expected, nearest: None });
            }
            Some((at, port.filter(|port| !matches!(port, 0 | 500 | 4500))?))
        };
        let (local, remote) = (port("local_port"), port("remote_port"));
        self.drafts.ike_ports.extend(local.map(|(_, port)| port));
        if let (Some((at, _)), true) = (local, is_forced) {
            let reason = "Lockgate's own UDP port for ESP is 4500";
            self.note(Fate::Differs, at, "local_port", (reason, "leave local_port out"));
        }
        is_forced.then_some(remote.map_or(4500, |(_, port)| port))
    }

    /// The value of a key that is `yes` or `no`.
    pub(super) fn flag(&mut self, view: &View, key: &str) -> Option<bool> {
        let (at, text) = self.tree.value(view, key)?;
        let flag = yes_or_no(text);
        if flag.is_none() {
            let (text, expected) = (shown(text), "yes or no");
            self.mistake(at, Mistake::BadValue { text, expected, nearest: None });
        }
        flag
    }
}
