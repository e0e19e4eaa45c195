//! The state machine against facts that a reader of the packets would write down, over random
//! events, and over conversations whose segments are lost, repeated and overtaken.

use proptest::prelude::*;

use super::Segment::{Ack, Fin, Odd, Rst, Syn, SynAck};
use super::Side::{Originator, Responder};
use super::*;

/// Facts about a TCP connection, and nothing of its state.
#[derive(Clone, Debug)]
struct Facts {
    began_by_syn: bool,
    answered_by_syn: bool,
    both_want_it: bool,
    replied: bool,
    /// By originator, responder.
    fin: [bool; 2],
    /// Once an RST has come: who was heard since.
    heard: Option<[bool; 2]>,
}

/// Answer of the model to an event: [`Next`] without the status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Said {
    Begins,
    Continues,
    Keeps,
    Resets,
    IsNew,
    MakesNone,
}

impl Facts {
    fn of_first(segment: Segment) -> Facts {
        Facts {
            began_by_syn: segment == Syn,
            answered_by_syn: false,
            both_want_it: false,
            replied: false,
            fin: [segment == Fin, false],
            heard: None,
        }
    }

    fn state(&self) -> State {
        match self.heard {
            Some([false, false]) => State::Reset,
            Some([true, _]) => State::ResetOriginatorHeard,
            Some([_, true]) => State::ResetResponderHeard,
            None if self.both_want_it => match self.fin.iter().filter(|sent| **sent).count() {
                0 => State::Established,
                1 => State::Closing,
                _ => State::TimeWait,
            },
            None if !self.began_by_syn => State::MidStream,
            None if self.answered_by_syn => State::SynReceived,
            None => State::SynSent,
        }
    }

    fn flags(&self) -> Flags {
        let all = [
            (self.replied, Flags::REPLIED),
            (self.both_want_it, Flags::ASSURED),
            (self.fin[0], Flags::FIN_ORIGINATOR),
            (self.fin[1], Flags::FIN_RESPONDER),
        ];
        let set = all.iter().filter(|(is_set, _)| *is_set);
        set.fold(Flags::default(), |flags, (_, flag)| flags.with(*flag))
    }

    fn see(&mut self, from: Side, segment: Segment) -> Said {
        let is_waiting = self.heard.is_none() && !self.both_want_it;
        match segment {
            Odd => Said::Keeps,
            Rst if self.heard.is_some() => Said::Keeps,
            Rst => {
                self.heard = Some([false, false]);
                Said::Resets
            }
            Syn => {
                let has_ended = self.heard.is_some() || self.both_want_it && self.fin == [true; 2];
                let is_unsure = is_waiting && !self.began_by_syn;
                match from {
                    Responder if has_ended || is_unsure => Said::IsNew,
                    Originator if has_ended || is_unsure => {
                        *self = Facts::of_first(Syn);
                        Said::Begins
                    }
                    Originator if is_waiting => Said::Continues,
                    _ => Said::Keeps,
                }
            }
            SynAck if self.heard.is_some() => Said::Keeps,
            SynAck if from == Responder && (self.began_by_syn || self.both_want_it) => {
                (self.answered_by_syn, self.replied) = (true, true);
                Said::Continues
            }
            SynAck => Said::Keeps,
            Ack | Fin => self.see_ack(from, segment == Fin),
        }
    }

    fn see_ack(&mut self, from: Side, is_fin: bool) -> Said {
        let is_waiting = self.heard.is_none() && !self.both_want_it;
        if is_waiting && self.began_by_syn && !self.answered_by_syn {
            return Said::Keeps;
        }
        self.fin[from as usize] |= is_fin;
        if let Some(heard) = &mut self.heard {
            heard[from as usize] = true;
            if *heard != [true, true] {
                return Said::Keeps;
            }
            (self.heard, self.both_want_it, self.replied) = (None, true, true);
        }
        let confirms = if self.began_by_syn { Originator } else { Responder };
        if from == confirms {
            (self.both_want_it, self.replied) = (true, true);
        }
        Said::Continues
    }
}

fn said(next: Next, before: Option<Status>) -> (Said, Option<Status>) {
    match next {
        Next::Begins(status) => (Said::Begins, Some(status)),
        Next::Continues(status) => (Said::Continues, Some(status)),
        Next::Keeps(status) => (Said::Keeps, Some(status)),
        Next::Resets(status) => (Said::Resets, Some(status)),
        Next::IsNew => (Said::IsNew, before),
        Next::MakesNone => (Said::MakesNone, before),
    }
}

/// Runs segments through both; returns every status on the way.
fn run(events: &[(Side, Segment)]) -> Vec<Option<Status>> {
    let (mut facts, mut status): (Option<Facts>, Option<Status>) = (None, None);
    let mut passed = Vec::new();
    for (from, segment) in events {
        let expected = match &mut facts {
            Some(facts) => facts.see(*from, *segment),
            None if *from == Responder || matches!(segment, SynAck | Rst | Odd) => Said::MakesNone,
            none => {
                *none = Some(Facts::of_first(*segment));
                Said::Begins
            }
        };
        let event = Event { from: *from, shown: Shown::Tcp(*segment) };
        let (got, after) = said(next(status, event), status);
        assert_eq!(got, expected, "{from:?} {segment:?} at {status:?}, {facts:?}");
        let modelled = facts.as_ref().map(|facts| (facts.state(), facts.flags()));
        assert_eq!(after.map(|it| (it.state, it.flags)), modelled, "{from:?} {segment:?}");
        let error = Event { shown: Shown::IcmpError, ..event };
        let unmoved = after.map_or(Next::MakesNone, Next::Keeps);
        assert_eq!(next(after, error), unmoved, "an ICMP error changes nothing");
        status = after;
        passed.push(status);
    }
    passed
}

fn state_after(events: &[(Side, Segment)]) -> State {
    run(events).pop().flatten().expect("a connection").state
}

fn segments() -> impl Strategy<Value = Segment> {
    prop_oneof![
        4 => Just(Syn), 4 => Just(SynAck), 6 => Just(Ack), 3 => Just(Fin), 2 => Just(Rst),
        1 => Just(Odd),
    ]
}

fn sides() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Originator), Just(Responder)]
}

/// The segments of whole connections, one after the other, as the two ends send them.
fn conversation(connections: usize) -> Vec<(Side, Segment)> {
    const ONE: &[(Side, Segment)] = &[
        (Originator, Syn),
        (Responder, SynAck),
        (Originator, Ack),
        (Originator, Ack),
        (Responder, Ack),
        (Responder, Ack),
        (Originator, Fin),
        (Responder, Ack),
        (Responder, Fin),
        (Originator, Ack),
    ];
    ONE.repeat(connections)
}

/// The fate of a segment on its way: lost, repeated, late by some segments, or followed by an RST.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Arrives,
    Lost,
    Twice,
    Late(usize),
    Reset(Side),
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = prop_oneof![
        12 => Just(Fate::Arrives), 3 => Just(Fate::Lost), 3 => Just(Fate::Twice),
        3 => (1usize..6).prop_map(Fate::Late), 1 => sides().prop_map(Fate::Reset),
    ];
    prop::collection::vec(fate, 30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_segments_lead_where_the_facts_say(
        events in prop::collection::vec((sides(), segments()), 0..60),
    ) {
        run(&events);
    }

    #[test]
    fn conversations_on_a_bad_line_lead_where_the_facts_say(fates in fates()) {
        let mut line: Vec<(usize, (Side, Segment))> = Vec::new();
        for (at, (event, fate)) in conversation(3).into_iter().zip(fates).enumerate() {
            let at = 4 * at;
            match fate {
                Fate::Arrives => line.push((at, event)),
                Fate::Lost => {}
                Fate::Twice => line.extend([(at, event), (at + 1, event)]),
                Fate::Late(by) => line.push((at + 4 * by + 2, event)),
                Fate::Reset(side) => line.extend([(at, event), (at + 1, (side, Rst))]),
            }
        }
        line.sort_by_key(|(at, _)| *at);
        let events: Vec<_> = line.into_iter().map(|(_, event)| event).collect();
        run(&events);
    }

    #[test]
    fn nothing_is_assured_without_an_acknowledgement_of_each_end(
        events in prop::collection::vec((sides(), segments()), 0..40),
    ) {
        let passed = run(&events);
        let is_ack = |(_, segment): &(Side, Segment)| matches!(segment, Ack | Fin);
        for (at, status) in passed.iter().enumerate() {
            if status.is_none_or(|status| status.is_half_open()) {
                continue;
            }
            let heard = |side| events[..=at].iter().any(|it| it.0 == side && is_ack(it));
            let answered = events[..=at].iter().any(|it| it == &(Responder, SynAck));
            prop_assert!(heard(Originator) && (heard(Responder) || answered), "{at}");
        }
    }

    #[test]
    fn other_protocols_are_assured_by_the_first_answer(
        sent in prop::collection::vec(sides(), 1..20), kind in 0usize..3,
    ) {
        let states = [State::Datagram, State::Echo, State::Other];
        let (shown_by, state) = (|from| match (states[kind], from) {
            (State::Datagram, _) => Shown::Udp,
            (State::Echo, Originator) => Shown::EchoRequest,
            (State::Echo, Responder) => Shown::EchoReply,
            _ => Shown::Other,
        }, states[kind]);
        let (mut status, mut answered) = (None, false);
        for from in sent {
            let event = Event { from, shown: shown_by(from) };
            let (got, after) = said(next(status, event), status);
            let expected = match (status, from) {
                (None, Responder) => Said::MakesNone,
                (None, Originator) => Said::Begins,
                _ => Said::Continues,
            };
            prop_assert_eq!(got, expected);
            answered |= status.is_some() && from == Responder;
            if let Some(after) = after {
                prop_assert_eq!(after.state, state);
                prop_assert_eq!(after.is_half_open(), !answered);
                prop_assert_eq!(after.flags.has(Flags::REPLIED), answered);
                // A packet that another protocol sends keeps what is there.
                let stray = Event { from, shown: Shown::Tcp(Ack) };
                prop_assert_eq!(next(Some(after), stray), Next::Keeps(after));
            }
            status = after;
        }
    }
}

#[test]
fn handshakes_that_the_originator_does_not_finish_stay_half_open() {
    // ironcore-dev/dpservice#628
    let answered = (Responder, SynAck);
    let events = [(Originator, Syn), answered, (Originator, Syn), answered, answered];
    assert!(run(&events).iter().flatten().all(|status| status.is_half_open()));
    let acknowledged = [&events[..], &[(Originator, Ack)]].concat();
    assert_eq!(state_after(&acknowledged), State::Established);
}

#[test]
fn time_wait_is_opened_again_by_a_syn_of_the_originator_alone() {
    // oxidecomputer/opte#436
    let whole = conversation(1);
    assert_eq!(state_after(&whole), State::TimeWait);
    assert_eq!(state_after(&[&whole[..], &[(Originator, Syn)]].concat()), State::SynSent);
    assert_eq!(state_after(&[&whole[..], &[(Responder, Syn)]].concat()), State::TimeWait);
    let status = run(&whole).pop().flatten();
    let syn = Event { from: Responder, shown: Shown::Tcp(Syn) };
    assert_eq!(next(status, syn), Next::IsNew);
    assert!(status.is_some_and(Status::gives_way));
}

#[test]
fn reset_that_both_ends_ignore_ends_nothing() {
    let open = &conversation(1)[..5];
    let forged = [open, &[(Responder, Rst)]].concat();
    assert_eq!(state_after(&forged), State::Reset);
    let one = [&forged[..], &[(Originator, Ack), (Originator, Ack), (Responder, Rst)]].concat();
    assert_eq!(state_after(&one), State::ResetOriginatorHeard);
    assert_eq!(state_after(&[&one[..], &[(Responder, Ack)]].concat()), State::Established);
    let closed = [&one[..], &[(Responder, Fin)]].concat();
    assert_eq!(state_after(&closed), State::Closing);
}

#[test]
fn an_answer_begins_no_connection() {
    for shown in [Shown::EchoReply, Shown::Tcp(SynAck)] {
        for from in [Originator, Responder] {
            assert_eq!(next(None, Event { from, shown }), Next::MakesNone, "{from:?} {shown:?}");
        }
    }
    let request = Event { from: Originator, shown: Shown::EchoRequest };
    assert!(matches!(next(None, request), Next::Begins(_)));
}

#[test]
fn segments_are_known_by_their_flags() {
    for flags in 0..=u8::MAX {
        let [fin, syn, rst, ack] = [0x01, 0x02, 0x04, 0x10].map(|bit| flags & bit != 0);
        let expected = match (syn, ack, fin) {
            _ if rst => Rst,
            (true, false, false) => Syn,
            (true, true, false) => SynAck,
            (false, true, false) => Ack,
            (false, true, true) => Fin,
            _ => Odd,
        };
        assert_eq!(Segment::of_flags(flags), expected, "{flags:#04x}");
    }
}

#[test]
fn states_have_numbers_names_and_times() {
    for state in State::ALL {
        assert_eq!(State::of_number(state as u8), Some(state));
        assert!(!state.name().is_empty());
    }
    assert_eq!([0, 13, 14, 15, 255].map(State::of_number), [None; 5]);
    let of = |state, flags| Timeouts::default().of(Status { state, flags });
    let (new, replied) = (Flags::default(), Flags::REPLIED);
    assert_eq!([of(State::Datagram, new), of(State::Datagram, replied)], [30, 180]);
    assert_eq!([of(State::Other, new), of(State::Other, replied)], [60, 180]);
    let tcp = [State::SynSent, State::SynReceived, State::MidStream];
    assert!(tcp.iter().all(|state| of(*state, replied) == 30));
    assert_eq!(of(State::Established, replied), 86_400);
    assert_eq!([of(State::Closing, replied), of(State::TimeWait, replied)], [120, 120]);
    assert_eq!(of(State::Reset, replied), 10);
}
