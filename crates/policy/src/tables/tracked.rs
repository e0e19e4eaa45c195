//! Verdicts where connections are tracked: what each book says by itself, because a packet of a
//! known connection is not asked about by the groups of the port that knows it. The SPD is asked
//! about every packet, by its own flow.

use wire::Flow;

use super::{AT_ONCE, Asked, Tables};
use crate::book::{Book, GroupSide, Question};
use crate::domain::DomainId;
use crate::exit::Exit;
use crate::ids::PolicyIndex;
use crate::policy::Action;
use crate::scope::Scope;
use crate::verdict::{Deciders, EgressClass, FlowAction, FlowVerdict};

/// The ports of a packet's way whose connections are tracked, as far as a question concerns them:
/// those with a `reflect` rule among their groups, in or out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tracks {
    /// The port by which the packet came.
    pub ingress: bool,
    /// The port by which it leaves.
    pub egress: bool,
}

/// The rules that let the packet's connections begin, one a port of its way; `None`: the port knows
/// no connection that the packet is of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct KnownConnections {
    /// At the port by which the packet came.
    pub ingress: Option<PolicyIndex>,
    /// At the port by which it leaves.
    pub egress: Option<PolicyIndex>,
}

/// The answers of all books that a question asks about a flow, each by itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TrackedVerdict {
    /// The verdict on a packet of no connection.
    plain: FlowVerdict,
    groups_in: FlowVerdict,
    spd: FlowVerdict,
    groups_out: FlowVerdict,
    /// The `reflect` rule that decides, of groups in and of groups out.
    reflects: [Option<PolicyIndex>; 2],
    /// The ports whose connections are tracked.
    pub tracks: Tracks,
}

impl TrackedVerdict {
    /// The verdict where no book is asked, and nothing is tracked.
    pub const NOT_ASKED: TrackedVerdict = TrackedVerdict {
        plain: FlowVerdict::NOT_ASKED,
        groups_in: FlowVerdict::NOT_ASKED,
        spd: FlowVerdict::NOT_ASKED,
        groups_out: FlowVerdict::NOT_ASKED,
        reflects: [None; 2],
        tracks: Tracks { ingress: false, egress: false },
    };

    /// The verdict on a packet that is of no connection.
    #[inline]
    pub fn plain(&self) -> &FlowVerdict {
        &self.plain
    }

    /// The verdict on a packet of these connections. The groups of a port that knows the packet's
    /// connection permit it, by the rule that let the connection begin.
    pub fn with(&self, known: KnownConnections) -> FlowVerdict {
        if known == KnownConnections::default() {
            return self.plain;
        }
        let of = |rule: Option<PolicyIndex>, otherwise: FlowVerdict| match rule {
            Some(rule) => FlowVerdict { deciders: Deciders::one(rule), ..FlowVerdict::NOT_ASKED },
            None => otherwise,
        };
        self.compose(of(known.ingress, self.groups_in), of(known.egress, self.groups_out))
    }

    fn compose(&self, groups_in: FlowVerdict, groups_out: FlowVerdict) -> FlowVerdict {
        let mut verdict = FlowVerdict::NOT_ASKED;
        [groups_in, self.spd, groups_out].iter().for_each(|next| verdict.then(next));
        FlowVerdict { egress: self.plain.egress, ..verdict }
    }

    /// The `reflect` rule by which the groups of a side let a packet of no connection pass.
    #[inline]
    pub fn reflects(&self, side: GroupSide) -> Option<PolicyIndex> {
        self.reflects[side as usize]
    }
}

impl Tables {
    /// Returns the ports whose connections are tracked, of those that a question in a scope
    /// concerns, for a way out.
    #[inline]
    pub fn tracks(&self, scope: Scope, exit: Exit) -> Tracks {
        let domain = self.scopes.domain(scope);
        let tracks = |class| self.spd.tracks(class, domain.family());
        let question = Question::of(domain.book());
        Tracks {
            ingress: question != Question::Leave && tracks(domain.class()),
            egress: match (question, exit) {
                (Question::Enter, Exit::Outside(_)) | (_, Exit::Other) => false,
                (_, Exit::Inside(class) | Exit::Outside(class)) => tracks(class),
            },
        }
    }

    /// Classifies each flow as [`classify`](Self::classify) does, and keeps what each book says.
    /// The answers hold for the way out's class only.
    ///
    /// # Panics
    /// If the slices differ in length, or the scope is from other tables.
    pub fn classify_tracked(
        &self,
        scope: Scope,
        exit: Exit,
        flows: &[Flow],
        out: &mut [TrackedVerdict],
    ) {
        assert_eq!(flows.len(), out.len(), "one verdict for each flow");
        let Asked { groups_in, spd, groups_out, class } = self.books(scope, exit);
        let tracks = self.tracks(scope, exit);
        out.fill(TrackedVerdict { tracks, ..TrackedVerdict::NOT_ASKED });
        let mut verdicts = [FlowVerdict::NOT_ASKED; AT_ONCE];
        for (flows, out) in flows.chunks(AT_ONCE).zip(out.chunks_mut(AT_ONCE)) {
            let verdicts = &mut verdicts[..flows.len()];
            let mut ask = |domain: Option<DomainId>, put: fn(&mut TrackedVerdict, FlowVerdict)| {
                let Some(domain) = domain else { return };
                self.ask_book(domain, scope, flows, verdicts);
                out.iter_mut().zip(&*verdicts).for_each(|(of, said)| put(of, *said));
            };
            ask(groups_in, |of, said| of.groups_in = said);
            ask(spd, |of, said| of.spd = said);
            ask(groups_out, |of, said| of.groups_out = said);
        }
        for verdict in out {
            verdict.reflects =
                [verdict.groups_in, verdict.groups_out].map(|said| self.reflecting(&said));
            verdict.plain = verdict.compose(verdict.groups_in, verdict.groups_out);
            verdict.plain.egress = EgressClass::Only(class);
        }
    }

    /// Judges an ICMP error that an SA opened as [`judge_quoting`](Self::judge_quoting) does, and
    /// keeps what each book says.
    ///
    /// # Panics
    /// If the scope is from other tables.
    pub fn track_quoting(&self, scope: Scope, flow: &Flow, quoted: &Flow) -> TrackedVerdict {
        let tracks = self.tracks(scope, Exit::Other);
        let mut verdict = TrackedVerdict { tracks, ..TrackedVerdict::NOT_ASKED };
        for (domain, flow) in self.books_of_quoting(scope, flow, quoted) {
            let mut said = [FlowVerdict::NOT_ASKED];
            self.ask_book(domain, scope, std::slice::from_ref(flow), &mut said);
            match domain.book() {
                Book::GroupIn => verdict.groups_in = said[0],
                _ => verdict.spd = said[0],
            }
        }
        verdict.plain = verdict.compose(verdict.groups_in, verdict.groups_out);
        verdict
    }

    /// The `reflect` rule that a group's verdict comes of.
    fn reflecting(&self, verdict: &FlowVerdict) -> Option<PolicyIndex> {
        let rule = verdict.deciders.first().filter(|_| verdict.action == FlowAction::Permit)?;
        matches!(self.spd.policy(rule).action, Action::Reflect(_)).then_some(rule)
    }

    /// Returns the `reflect` rule by which a domain of groups would let a flow begin a connection
    /// now.
    ///
    /// # Panics
    /// If the domain is from other tables.
    pub fn reflects(&self, domain: DomainId, flow: &Flow) -> Option<PolicyIndex> {
        let mut verdict = [FlowVerdict::NOT_ASKED];
        self.ask_book(domain, Scope::default(), std::slice::from_ref(flow), &mut verdict);
        self.reflecting(&verdict[0])
    }
}
