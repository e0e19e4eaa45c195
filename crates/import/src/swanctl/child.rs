//! A child: a peer and its policies, or policies that let pass or drop.

use config::{MAX_LIMIT_SECONDS, nearest};
use ipsec::{Lifetime, Limits, Mode, ReplayWindow, Suite};
use policy::{AddressRange, Selector};
use wire::Family;

use super::keys::{NARROWING, NOTED, is_zero};
use super::selectors::{Kind, joined};
use super::syntax::{Place, View};
use super::values::{
    NoSelector, TrafficSelector, bytes, entries, number, proposals, seconds, selector,
};
use super::{Action, End, PeerDraft, PolicyDraft, Reader, Untaken};
use crate::problem::{Fate, Mistake, shown};

/// Selectors that an SA has at each end at most (`LG_MAX_SELECTORS` of the plugin).
const MAX_SELECTORS: usize = 64;

/// Policies of all children at most.
const MAX_POLICIES: usize = 1 << 17;

/// Settings of a connection that its children share.
pub(super) struct Parent<'c> {
    pub(super) name: &'c str,
    /// No other child of the connection has SAs.
    pub(super) is_only: bool,
    pub(super) ends: Result<[End; 2], Untaken>,
    /// The ends whose addresses IKE assigns: ours, the peer's.
    pub(super) assigned: [bool; 2],
    /// The place of an interface of XFRM.
    pub(super) interface: Option<(Place, &'static str)>,
    /// The peer's UDP port, if ESP is always in UDP.
    pub(super) udp: Option<u16>,
    pub(super) is_version_1: bool,
}

/// Selectors of one end, each with its addresses.
type Selectors = Vec<(AddressRange, TrafficSelector)>;

impl Reader<'_, '_> {
    /// Takes a child.
    pub(super) fn child(
        &mut self,
        name: &str,
        view: &View,
        parent: &Parent<'_>,
    ) -> Result<(), Untaken> {
        self.renamed.clear();
        self.noted(view);
        let mode = self.mode(view)?;
        self.narrowed(view, parent)?;
        let policies = self.policy_name(name, parent.name);
        let (kind, action) = match mode {
            ChildMode::Pass => (Kind::Pass, Action::Bypass),
            ChildMode::Drop => (Kind::Drop, Action::Discard),
            ChildMode::Sas(mode) => return self.protected(name, view, parent, (mode, &policies)),
        };
        if self.traps(view) {
            let reason = "charon's policies that pass or drop packets are refused";
            let advice = "remove the child from swanctl.conf: Lockgate's policy is enough";
            let (at, _) = self.tree.value(view, "start_action").unwrap_or((self.at(view), ""));
            self.note(Fate::Differs, at, "start_action", (reason, advice));
        }
        let any = [Family::V4, Family::V6].map(AddressRange::any);
        let local = self.selectors(view, "local_ts", &any)?;
        let remote = self.selectors(view, "remote_ts", &any)?;
        self.policies(view, (&policies, action, kind), &[local, remote], None)
    }

    /// Notes that a child's peer or policies have another name than in the text.
    pub(super) fn note_names(&mut self, name: &str, view: &View) {
        if self.renamed.is_empty() {
            return;
        }
        let reason = format!("{} here", std::mem::take(&mut self.renamed).join(" and "));
        let advice = "names have ASCII letters, digits, `.`, `_` and `-`, 48 at most here, and \
                      each is given once: choose another one if you like";
        self.note(Fate::Differs, self.at(view), name, (&reason, advice));
    }

    fn at(&self, view: &View) -> Place {
        self.tree.place(view)
    }

    /// A name for policies: the child's, with the connection's in front if need be.
    fn policy_name(&self, child: &str, connection: &str) -> String {
        match self.policy_names.is_free(child) {
            true => child.to_owned(),
            false => format!("{connection}-{child}"),
        }
    }

    /// Notes keys that have no place here.
    fn noted(&mut self, view: &View) {
        for noted in &NOTED {
            let Some((at, text)) = self.tree.value(view, noted.key) else { continue };
            if !(noted.is_usual)(text) {
                self.note(noted.fate, at, noted.key, (noted.reason, noted.advice));
            }
        }
    }

    /// Refuses what would hold for other packets here.
    fn narrowed(&self, view: &View, parent: &Parent<'_>) -> Result<(), Untaken> {
        if let Some((at, _)) = self.tree.value(view, "ah_proposals") {
            let (reason, advice) = ("Lockgate has no AH".into(), "use esp_proposals".into());
            return Err(Untaken { at, word: "ah_proposals", reason, advice });
        }
        let of = |key: &'static str| {
            let (at, text) = self.tree.value(view, key)?;
            (!is_zero(text)).then_some((at, key))
        };
        match NARROWING.into_iter().find_map(of).or(parent.interface) {
            None => Ok(()),
            Some((at, word)) => {
                let reason = "it is for a part of the packets that its selectors match".into();
                let advice = "write policies whose selectors match just those packets".into();
                Err(Untaken { at, word, reason, advice })
            }
        }
    }

    fn mode(&mut self, view: &View) -> Result<ChildMode, Untaken> {
        let Some((at, text)) = self.tree.value(view, "mode") else {
            return Ok(ChildMode::Sas(Mode::Tunnel));
        };
        let untaken = |reason: &str| {
            let advice = "use tunnel".to_owned();
            Err(Untaken { at, word: "mode", reason: reason.into(), advice })
        };
        match &*text.to_ascii_lowercase() {
            "tunnel" => Ok(ChildMode::Sas(Mode::Tunnel)),
            "transport" => Ok(ChildMode::Sas(Mode::Transport)),
            "pass" => Ok(ChildMode::Pass),
            "drop" => Ok(ChildMode::Drop),
            "beet" | "transport_proxy" => untaken("Lockgate has no such mode"),
            other => {
                let known = ["tunnel", "transport", "pass", "drop"];
                let (text, nearest) = (shown(other), nearest(other, known.into_iter()));
                let expected = "tunnel, transport, transport_proxy, beet, pass or drop";
                self.mistake(at, Mistake::BadValue { text, expected, nearest });
                untaken("its mode is wrong")
            }
        }
    }

    /// Returns whether charon makes a trap policy of the child when it reads it.
    fn traps(&mut self, view: &View) -> bool {
        let Some((at, text)) = self.tree.value(view, "start_action") else { return false };
        let words = ["none", "trap", "start", "route", "restart", "clear"];
        let text = text.to_ascii_lowercase();
        let all = text.split(['|', ',']).map(str::trim);
        for word in all.clone().filter(|word| !words.contains(word)) {
            let (text, nearest) = (shown(word), nearest(word, words.into_iter()));
            let expected = "none, trap, start or trap|start";
            self.mistake(at, Mistake::BadValue { text, expected, nearest });
        }
        all.into_iter().any(|word| matches!(word, "trap" | "route"))
    }

    /// A child with SAs: a peer, and its policies.
    fn protected(
        &mut self,
        name: &str,
        view: &View,
        parent: &Parent<'_>,
        (mode, policies): (Mode, &str),
    ) -> Result<(), Untaken> {
        let ends = parent.ends.clone()?;
        let mut selectors: [Selectors; 2] = [Vec::new(), Vec::new()];
        for (place, key) in ["local_ts", "remote_ts"].into_iter().enumerate() {
            let end = [AddressRange::from(ends[place].address)];
            selectors[place] = self.selectors(view, key, &end)?;
            self.judge(view, parent, (mode, &end[0], place), (key, &selectors[place]))?;
        }
        let at = self.at(view);
        let identity = format!("{:?}", (&ends.each_ref().map(|end| &end.from), mode, &selectors));
        if !self.seen.insert(identity) {
            let reason = "an earlier child has the same ends and selectors".into();
            let advice = "remove one of them".into();
            return Err(Untaken { at, word: "children", reason, advice });
        }
        if !self.traps(view) {
            let reason = "a packet without an SA has charon make one by its trap policy; this \
                          child has none";
            let (at, _) = self.tree.value(view, "start_action").unwrap_or((at, ""));
            let advice = "write start_action = trap, or trap|start";
            self.note(Fate::Differs, at, "start_action", (reason, advice));
        }
        let peer = self.peer(name, view, parent, (mode, &ends));
        let fill_in = ends.iter().zip(&selectors).find_map(|(end, selectors)| {
            let is_dynamic = selectors.iter().any(|(_, one)| one.addresses.is_none());
            end.fill_in.as_ref().filter(|_| is_dynamic).map(|what| format!("{what}, here too"))
        });
        let action = Action::Protect(self.drafts.peers.len());
        self.policies(view, (policies, action, Kind::Protect), &selectors, fill_in)?;
        self.drafts.peers.push(peer);
        Ok(())
    }

    /// Judges the selectors of one end of a child with SAs.
    fn judge(
        &mut self,
        view: &View,
        parent: &Parent<'_>,
        (mode, end, place): (Mode, &AddressRange, usize),
        (word, selectors): (&'static str, &Selectors),
    ) -> Result<(), Untaken> {
        let (at, _) = self.tree.value(view, word).unwrap_or((self.at(view), ""));
        let untaken = |reason: &str, advice: &str| {
            Err(Untaken { at, word, reason: reason.into(), advice: advice.into() })
        };
        if parent.assigned[place] && selectors.iter().any(|(_, one)| one.addresses.is_none()) {
            return untaken("IKE assigns the address of its selector", "write the address");
        }
        if mode == Mode::Transport && selectors.iter().any(|(range, _)| range != end) {
            let reason = "in transport mode both selectors are the ends of the connection";
            return untaken(reason, "write dynamic, or use tunnel mode");
        }
        if selectors.len() > MAX_SELECTORS {
            let reason = "an SA has 64 selectors at each end at most";
            return untaken(reason, "make several children of it, or fewer selectors");
        }
        if parent.is_version_1 && selectors.len() > 1 {
            let reason = "IKEv1 negotiates the first selector alone, and an SA that leaves out \
                          packets of the policy is refused";
            let advice = "write version = 2, or a child for each selector";
            self.note(Fate::Differs, at, word, (reason, advice));
        }
        Ok(())
    }

    /// The selectors of one end; those that are `dynamic` have the addresses of `end`.
    fn selectors(
        &mut self,
        view: &View,
        key: &'static str,
        end: &[AddressRange],
    ) -> Result<Selectors, Untaken> {
        let (at, text) = self.tree.value(view, key).unwrap_or((self.at(view), "dynamic"));
        let mut found = Vec::new();
        for entry in entries(text) {
            let (reason, advice) = match selector(entry) {
                Ok(one) => {
                    let own = one.addresses;
                    let ranges = own.as_ref().map_or(end, std::slice::from_ref);
                    found.extend(ranges.iter().map(|range| (*range, one.clone())));
                    self.addresses.read += ranges.len();
                    if self.addresses.beyond().is_none() {
                        continue;
                    }
                    ("there are too many addresses".into(), "import a part of the file")
                }
                Err(NoSelector::Name) => (
                    format!("nothing here knows the names in {}", shown(entry)),
                    "write the numbers of protocol and port",
                ),
                Err(NoSelector::Opaque) => {
                    ("Lockgate has no OPAQUE ports".into(), "leave the port out")
                }
                Err(NoSelector::Wrong) => {
                    let expected = "a selector like 10.1.0.0/16, 10.1.0.0/16[tcp/80] or dynamic";
                    let text = shown(entry);
                    self.mistake(at, Mistake::BadValue { text, expected, nearest: None });
                    ("its selector is wrong".into(), "correct it")
                }
            };
            return Err(Untaken { at, word: key, reason, advice: advice.into() });
        }
        Ok(found)
    }

    /// Adds the policies of a child.
    fn policies(
        &mut self,
        view: &View,
        (name, action, kind): (&str, Action, Kind),
        selectors: &[Selectors; 2],
        fill_in: Option<String>,
    ) -> Result<(), Untaken> {
        let fixed = self.amount(view, "priority", number, "a number from 0 to 4294967295");
        let fixed = fixed.filter(|rank| *rank > 0).and_then(|rank| u32::try_from(rank).ok());
        let at = self.at(view);
        let untaken = |(reason, advice): (&str, &str)| Untaken {
            at,
            word: "remote_ts",
            reason: reason.into(),
            advice: advice.into(),
        };
        let all = joined(kind, selectors, self.prefixes).map_err(untaken)?;
        let count = all.len();
        let addresses =
            |(selector, _): &(Selector, u32)| selector.local.len() + selector.remote.len();
        self.addresses.in_policies += all.iter().map(addresses).sum::<usize>();
        if self.addresses.beyond().is_some() {
            return Err(untaken(("there are too many addresses", "import a part of the file")));
        }
        if self.drafts.policies.len() + count > MAX_POLICIES {
            let advice = "import a part of the file";
            return Err(untaken(("there are more than 131072 policies", advice)));
        }
        for (place, (selector, rank)) in all.into_iter().enumerate() {
            let wanted = if count > 1 { format!("{name}-{}", place + 1) } else { name.to_owned() };
            let name = self.policy_names.give(&wanted);
            if place == 0 && name != wanted {
                self.renamed.push(format!("policy {} is {name}", shown(&wanted)));
            }
            let (at, rank) = (self.tree.location(at), fixed.unwrap_or(rank));
            let fill_in = fill_in.clone();
            self.drafts.policies.push(PolicyDraft { name, at, action, selector, rank, fill_in });
        }
        Ok(())
    }

    fn peer(
        &mut self,
        name: &str,
        view: &View,
        parent: &Parent<'_>,
        (mode, ends): (Mode, &[End; 2]),
    ) -> PeerDraft {
        let wanted = match parent.is_only {
            true => parent.name.to_owned(),
            false => format!("{}-{name}", parent.name),
        };
        let given = self.peer_names.give(&wanted);
        if given != wanted {
            self.renamed.push(format!("peer {} is {given}", shown(&wanted)));
        }
        let (suite, suite_fill_in) = self.suite(view);
        let is_tunnel = mode == Mode::Tunnel;
        let df = self.flag(view, "copy_df").map(|copies| if copies { "copy" } else { "clear" });
        PeerDraft {
            name: given,
            at: self.tree.location(self.at(view)),
            ends: ends.clone(),
            mode,
            suite,
            suite_fill_in,
            udp: parent.udp,
            window: self.window(view),
            dscp: self.dscp(view).filter(|_| is_tunnel),
            df: df.filter(|_| is_tunnel && ends[0].address.is_ipv4()),
            lifetime: self.lifetime(view),
        }
    }

    /// The first suite that is proposed and that Lockgate has; true if the operator must choose.
    fn suite(&mut self, view: &View) -> (Suite, bool) {
        const UNKNOWN: (Suite, bool) = (Suite::Aes128Gcm, true);
        let (at, text) =
            self.tree.value(view, "esp_proposals").unwrap_or((self.at(view), "default"));
        let word = "esp_proposals";
        let proposed = match proposals(text) {
            Ok(proposed) => proposed,
            Err(wrong) => {
                let expected = "an algorithm of charon's";
                let near = ["aes128gcm16", "aes256gcm16", "chacha20poly1305", "sha256"];
                let nearest = nearest(wrong, near.into_iter());
                let text = shown(wrong);
                self.mistake(at, Mistake::BadValue { text, expected, nearest });
                return UNKNOWN;
            }
        };
        let Some((suite, words)) = proposed.first else {
            let reason = "Lockgate has none of these algorithms";
            let advice = "agree with the peer on aes256gcm16 or another suite of \
                          docs/CONFIGURATION.md";
            self.note(Fate::Refused, at, word, (reason, advice));
            return UNKNOWN;
        };
        if proposed.combinations > 1 {
            let reason = format!(
                "a peer has one suite: {suite}, from {}; an SA of another one is refused",
                shown(&words)
            );
            let only = if words == "default" { "aes128gcm16" } else { words.as_str() };
            let advice =
                format!("propose no other algorithms than {only}; key exchange and esn stay");
            self.note(Fate::Differs, at, word, (&reason, &advice));
        }
        (suite, false)
    }

    fn window(&mut self, view: &View) -> Option<u32> {
        let expected = "a number from 0 to 4294967295";
        let asked = self.amount(view, "replay_window", number, expected)?;
        let (lowest, highest) = (ReplayWindow::SMALLEST, ReplayWindow::LARGEST);
        let asked = u32::try_from(asked).unwrap_or(u32::MAX);
        let window = asked.clamp(lowest, highest).div_ceil(lowest) * lowest;
        if window != asked {
            let (at, _) = self.tree.value(view, "replay_window")?;
            let reason =
                format!("replay windows are multiples of 32 up to 4096: {window} was taken");
            self.note(Fate::Differs, at, "replay_window", (&reason, "none"));
        }
        Some(window)
    }

    fn dscp(&mut self, view: &View) -> Option<u8> {
        let (at, text) = self.tree.value(view, "copy_dscp")?;
        let known = ["out", "in", "yes", "no"];
        let text = &*text.to_ascii_lowercase();
        match text {
            "in" | "yes" => {
                let reason = "the DSCP of an outer header never goes into the inner one";
                self.note(Fate::Differs, at, "copy_dscp", (reason, "none"));
            }
            "out" | "no" => {}
            other => {
                let (expected, nearest) = ("out, in, yes or no", nearest(other, known.into_iter()));
                self.mistake(at, Mistake::BadValue { text: shown(other), expected, nearest });
            }
        }
        matches!(text, "in" | "no").then_some(0)
    }

    /// The value of a key that is an amount.
    fn amount(
        &mut self,
        view: &View,
        key: &str,
        read: fn(&str) -> Option<u64>,
        expected: &'static str,
    ) -> Option<u64> {
        let (at, text) = self.tree.value(view, key)?;
        let amount = read(text);
        if amount.is_none() {
            self.mistake(
                at,
                Mistake::BadValue { text: amount_text(text), expected, nearest: None },
            );
        }
        amount
    }

    /// Limits that are written. Where charon's default follows from one of them, that too.
    fn lifetime(&mut self, view: &View) -> Lifetime {
        const TIME: &str = "a time like 3600, 60m or 1h";
        const VOLUME: &str = "a number of bytes like 500000, 100M or 10G";
        const PACKETS: &str = "a number of packets";
        let times = ["rekey_time", "life_time"];
        let time = self.limit(view, times, seconds, TIME);
        let time = [0, 1].map(|place| self.short_enough(view, times[place], time[place]));
        let volume = self.limit(view, ["rekey_bytes", "life_bytes"], bytes, VOLUME);
        let packets = self.limit(view, ["rekey_packets", "life_packets"], number, PACKETS);
        let of = |place: usize| {
            let (packets, bytes, seconds) = (packets[place], volume[place], time[place]);
            Limits { packets, bytes, seconds, idle_seconds: None }
        };
        Lifetime { soft: of(0), hard: of(1) }
    }

    /// A limit in seconds that the configuration takes. A longer one is noted.
    fn short_enough(&mut self, view: &View, key: &str, limit: Option<u64>) -> Option<u32> {
        let limit = limit?;
        let short = u32::try_from(limit).ok().filter(|seconds| *seconds <= MAX_LIMIT_SECONDS);
        if short.is_none() {
            // charon's default of `life_time` follows from the other one.
            let written =
                self.tree.value(view, key).or_else(|| self.tree.value(view, "rekey_time"));
            let at = written.map_or(self.at(view), |(at, _)| at);
            let reason = format!(
                "{limit} seconds are longer than ten years, which is as long as a limit may be: it \
                 was left out"
            );
            self.note(Fate::Left, at, key, (&reason, "write 3650d or less, or no limit"));
        }
        short
    }

    /// A soft limit and a hard one. Zero is none.
    fn limit(
        &mut self,
        view: &View,
        [rekey, life]: [&'static str; 2],
        read: fn(&str) -> Option<u64>,
        expected: &'static str,
    ) -> [Option<u64>; 2] {
        let soft = self.amount(view, rekey, read, expected);
        let hard = self.amount(view, life, read, expected);
        // charon's rule: a tenth more.
        let tenth_more = || soft.map(|soft| soft.saturating_add(soft / 10));
        let positive = |limit: Option<u64>| limit.filter(|limit| *limit > 0);
        let (soft, hard) = (positive(soft), positive(hard.or_else(tenth_more)));
        if let (Some(one), Some(end)) = (soft, hard)
            && one > end
            && let Some((at, _)) = self.tree.value(view, rekey)
        {
            let reason = "an SA would end before it is renewed: the limit was left out";
            self.note(Fate::Left, at, rekey, (reason, "write a lower one"));
            return [None, hard];
        }
        [soft, hard]
    }
}

/// The mode of a child.
enum ChildMode {
    Sas(Mode),
    Pass,
    Drop,
}

/// An amount as it may be shown. Digits of a number alone are not those of a key, however many.
fn amount_text(text: &str) -> String {
    const MOST: usize = 24;
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    match is_number && text.len() <= MOST {
        true => text.to_owned(),
        false => shown(text),
    }
}
