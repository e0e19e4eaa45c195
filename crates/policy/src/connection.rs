//! A connection as a state machine: the events that begin, confirm, close and reset it, and how
//! long it lasts without a packet. `reflect` rules permit answers by it.
//!
//! The originator is the end that sent the first packet. *Assured* is a connection that both ends
//! have shown to want; before that it is *half-open*. Sequence numbers are not tracked, so every
//! transition below is also one that a stranger who knows the addresses and ports can cause.
//!
//! | state | SYN | SYN+ACK | ACK or FIN | RST | time-out |
//! |---|---|---|---|---|---|
//! | none | O: SYN_SENT | none | O: MID_STREAM | none | |
//! | SYN_SENT | O: refreshes | R: SYN_RECEIVED | keeps | RESET | 30 s |
//! | SYN_RECEIVED | O: refreshes | R: refreshes | O: *opens*, R: refreshes | RESET | 30 s |
//! | MID_STREAM | O: SYN_SENT, R: *new* | keeps | R: *opens*, O: refreshes | RESET | 30 s |
//! | ESTABLISHED | keeps | R: refreshes | *opens* | RESET | 24 h |
//! | CLOSING | keeps | R: refreshes | *opens* | RESET | 120 s |
//! | TIME_WAIT | O: SYN_SENT, R: *new* | R: refreshes | *opens* | RESET | 120 s |
//! | RESET | O: SYN_SENT, R: *new* | keeps | of both: *opens*, else keeps | keeps | 10 s |
//! | DATAGRAM (UDP) | | | | | 30 s, replied 180 s |
//! | ECHO (ICMP) | | | | | 30 s |
//! | OTHER protocol | | | | | 60 s, replied 180 s |
//!
//! - O: of the originator. R: of the responder. Where a cell names one, the other's segment keeps
//!   what is there, or makes nothing if nothing is.
//! - *opens*: assured. ESTABLISHED while no end has sent a FIN, CLOSING after the FIN of one,
//!   TIME_WAIT after those of both.
//! - *new*: the packet is of no connection. It is judged as the first one of another.
//! - *refreshes*: the time-out begins anew. *keeps*: it does not.
//! - RESET is in three parts: heard from nobody since the RST, from the originator, from the
//!   responder. After a real RST one end at least is silent; after a forged one both go on.
//! - A FIN without ACK, a SYN with FIN, and a segment without any of SYN, ACK and RST begin nothing
//!   and keep what is there. So does every ICMP error.
//! - An answer begins nothing: a SYN+ACK and an ICMP echo reply without a connection make none. If
//!   the sender of an unasked echo reply became the originator, requests of the other end would
//!   pass as its answers.
//! - DATAGRAM, ECHO and OTHER begin with a packet of the originator, and are assured by one of the
//!   responder. A packet of either end refreshes.
//!
//! SYN, SYN+ACK, SYN, SYN+ACK therefore never make an assured connection: only a segment of the
//! originator with ACK does (RFC 9293 §3.5). Nor does a packet in mid-stream, until the other end
//! answers it.
//!
//! Not here: the table of connections, rules, packets, clocks.

/// End of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// Sent the first packet.
    Originator,
    /// Is the other end.
    Responder,
}

impl Side {
    /// The other end.
    pub const fn other(self) -> Side {
        match self {
            Side::Originator => Side::Responder,
            Side::Responder => Side::Originator,
        }
    }
}

/// A TCP segment by its flags (RFC 9293 §3.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Segment {
    /// SYN alone.
    Syn,
    /// SYN and ACK.
    SynAck,
    /// ACK alone, with data or without.
    Ack,
    /// FIN and ACK.
    Fin,
    /// RST, whatever else.
    Rst,
    /// Flags that no TCP sends.
    Odd,
}

impl Segment {
    /// The segment with this byte of flags: `CWR ECE URG ACK PSH RST SYN FIN`.
    #[inline]
    pub const fn of_flags(flags: u8) -> Segment {
        const FIN: u8 = 0x01;
        const SYN: u8 = 0x02;
        const RST: u8 = 0x04;
        const ACK: u8 = 0x10;
        const SYN_ACK: u8 = SYN | ACK;
        const FIN_ACK: u8 = FIN | ACK;
        match flags & (FIN | SYN | RST | ACK) {
            flags if flags & RST != 0 => Segment::Rst,
            SYN => Segment::Syn,
            SYN_ACK => Segment::SynAck,
            ACK => Segment::Ack,
            FIN_ACK => Segment::Fin,
            _ => Segment::Odd,
        }
    }
}

/// Content of a packet, as far as it matters to a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Shown {
    /// A TCP segment.
    Tcp(Segment),
    /// A UDP or UDP-Lite datagram.
    Udp,
    /// An ICMP echo request.
    EchoRequest,
    /// An ICMP echo reply.
    EchoReply,
    /// A packet of another protocol.
    Other,
    /// An ICMP error about a packet of the connection.
    IcmpError,
}

/// A packet of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Event {
    /// Sender. The sender of a packet that is of no connection is the originator.
    pub from: Side,
    /// Content.
    pub shown: Shown,
}

/// State of a connection; the module's table says what leads where.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum State {
    /// The originator has sent a SYN.
    SynSent = 1,
    /// The responder has answered with SYN and ACK.
    SynReceived = 2,
    /// A segment other than a SYN came first, and the other end has not answered.
    MidStream = 3,
    /// Both ends have acknowledged each other.
    Established = 4,
    /// One end has sent a FIN.
    Closing = 5,
    /// Both ends have sent a FIN.
    TimeWait = 6,
    /// One end has sent an RST, and neither has been heard since.
    Reset = 7,
    /// As [`Reset`](State::Reset), and the originator has been heard since.
    ResetOriginatorHeard = 8,
    /// As [`Reset`](State::Reset), and the responder has been heard since.
    ResetResponderHeard = 9,
    /// UDP.
    Datagram = 10,
    /// ICMP echo.
    Echo = 11,
    /// Another protocol.
    Other = 12,
}

impl State {
    /// All states.
    pub const ALL: [State; 12] = [
        State::SynSent,
        State::SynReceived,
        State::MidStream,
        State::Established,
        State::Closing,
        State::TimeWait,
        State::Reset,
        State::ResetOriginatorHeard,
        State::ResetResponderHeard,
        State::Datagram,
        State::Echo,
        State::Other,
    ];

    /// The state with this number, 1 to 12.
    #[inline]
    pub const fn of_number(number: u8) -> Option<State> {
        match number.checked_sub(1) {
            Some(at) if (at as usize) < State::ALL.len() => Some(State::ALL[at as usize]),
            _ => None,
        }
    }

    /// The name that operators see.
    pub const fn name(self) -> &'static str {
        match self {
            State::SynSent => "syn_sent",
            State::SynReceived => "syn_received",
            State::MidStream => "mid_stream",
            State::Established => "established",
            State::Closing => "closing",
            State::TimeWait => "time_wait",
            State::Reset | State::ResetOriginatorHeard | State::ResetResponderHeard => "reset",
            State::Datagram => "datagram",
            State::Echo => "echo",
            State::Other => "other",
        }
    }

    const fn is_reset(self) -> bool {
        matches!(self, State::Reset | State::ResetOriginatorHeard | State::ResetResponderHeard)
    }

    const fn is_tcp(self) -> bool {
        !matches!(self, State::Datagram | State::Echo | State::Other)
    }
}

/// Facts about a connection beside its state; 4 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Flags(u8);

impl Flags {
    /// The responder has sent a packet.
    pub const REPLIED: Flags = Flags(1);
    /// Both ends have shown that they want the connection.
    pub const ASSURED: Flags = Flags(2);
    /// The originator has sent a FIN.
    pub const FIN_ORIGINATOR: Flags = Flags(4);
    /// The responder has sent a FIN.
    pub const FIN_RESPONDER: Flags = Flags(8);

    /// The flags in the low 4 bits of a number.
    #[inline]
    pub const fn of_bits(bits: u8) -> Flags {
        Flags(bits & 0xf)
    }

    /// The flags as a number below 16.
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// These flags and others.
    #[inline]
    pub const fn with(self, others: Flags) -> Flags {
        Flags(self.0 | others.0)
    }

    /// Returns whether all of `others` are set.
    #[inline]
    pub const fn has(self, others: Flags) -> bool {
        self.0 & others.0 == others.0
    }
}

/// State of a connection with its flags.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Status {
    /// State.
    pub state: State,
    /// Flags.
    pub flags: Flags,
}

impl Status {
    const fn new(state: State, flags: Flags) -> Status {
        Status { state, flags }
    }

    /// Returns whether the connection is not assured.
    #[inline]
    pub const fn is_half_open(self) -> bool {
        !self.flags.has(Flags::ASSURED)
    }

    /// Returns whether the connection gives way to one that begins with a SYN of its responder.
    #[inline]
    pub const fn gives_way(self) -> bool {
        self.state.is_reset() || matches!(self.state, State::TimeWait | State::MidStream)
    }

    /// An assured TCP connection with these flags.
    const fn open(flags: Flags) -> Status {
        let flags = flags.with(Flags::ASSURED).with(Flags::REPLIED);
        let fins = (flags.has(Flags::FIN_ORIGINATOR), flags.has(Flags::FIN_RESPONDER));
        let state = match fins {
            (false, false) => State::Established,
            (true, true) => State::TimeWait,
            _ => State::Closing,
        };
        Status::new(state, flags)
    }
}

/// Consequence of an event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Next {
    /// A connection begins, or begins anew in the place of the one that was there.
    Begins(Status),
    /// The connection goes on, and its time-out begins anew.
    Continues(Status),
    /// The connection goes on, and its time-out does not begin anew.
    Keeps(Status),
    /// The grace after an RST begins.
    Resets(Status),
    /// The packet is of no connection, and the one that was there
    /// [gives way](Status::gives_way): it is judged as the first of another.
    IsNew,
    /// There is no connection, and the packet makes none.
    MakesNone,
}

/// Returns the consequence of an event for a connection, or for none.
pub fn next(status: Option<Status>, event: Event) -> Next {
    let Some(status) = status else { return begin(event) };
    match event.shown {
        Shown::Tcp(segment) if status.state.is_tcp() => next_tcp(status, event.from, segment),
        Shown::Udp | Shown::EchoRequest | Shown::EchoReply | Shown::Other
            if !status.state.is_tcp() =>
        {
            let flags = match event.from {
                Side::Originator => status.flags,
                Side::Responder => status.flags.with(Flags::REPLIED).with(Flags::ASSURED),
            };
            Next::Continues(Status { flags, ..status })
        }
        _ => Next::Keeps(status),
    }
}

/// Returns the consequence of a packet that is of no connection.
fn begin(event: Event) -> Next {
    if event.from == Side::Responder {
        return Next::MakesNone;
    }
    let (state, flags) = match event.shown {
        Shown::Tcp(Segment::Syn) => (State::SynSent, Flags::default()),
        Shown::Tcp(Segment::Ack) => (State::MidStream, Flags::default()),
        Shown::Tcp(Segment::Fin) => (State::MidStream, Flags::FIN_ORIGINATOR),
        Shown::Udp => (State::Datagram, Flags::default()),
        Shown::EchoRequest => (State::Echo, Flags::default()),
        Shown::Other => (State::Other, Flags::default()),
        Shown::Tcp(Segment::SynAck | Segment::Rst | Segment::Odd)
        | Shown::EchoReply
        | Shown::IcmpError => return Next::MakesNone,
    };
    Next::Begins(Status::new(state, flags))
}

fn next_tcp(status: Status, from: Side, segment: Segment) -> Next {
    match segment {
        Segment::Odd => Next::Keeps(status),
        Segment::Rst if status.state.is_reset() => Next::Keeps(status),
        Segment::Rst => Next::Resets(Status::new(State::Reset, status.flags)),
        Segment::Syn => next_by_syn(status, from),
        Segment::SynAck => next_by_syn_ack(status, from),
        Segment::Ack => next_by_ack(status, from),
        Segment::Fin => {
            let fin = match from {
                Side::Originator => Flags::FIN_ORIGINATOR,
                Side::Responder => Flags::FIN_RESPONDER,
            };
            match status.state {
                // Nobody can close what the other end has not heard of.
                State::SynSent => Next::Keeps(status),
                _ => next_by_ack(Status { flags: status.flags.with(fin), ..status }, from),
            }
        }
    }
}

fn next_by_syn(status: Status, from: Side) -> Next {
    match (from, status.state) {
        (Side::Originator, State::SynSent | State::SynReceived) => Next::Continues(status),
        (Side::Originator, _) if status.gives_way() => {
            Next::Begins(Status::new(State::SynSent, Flags::default()))
        }
        (Side::Responder, _) if status.gives_way() => Next::IsNew,
        // RFC 9293 §3.10.7.4: the other end answers with a challenge ACK. Of the responder in
        // SYN_SENT: both open at once (§3.5), and a SYN+ACK follows.
        _ => Next::Keeps(status),
    }
}

fn next_by_syn_ack(status: Status, from: Side) -> Next {
    use State::{Closing, Established, SynReceived, SynSent, TimeWait};
    match (from, status.state) {
        (Side::Responder, SynSent) => {
            Next::Continues(Status::new(SynReceived, status.flags.with(Flags::REPLIED)))
        }
        (Side::Responder, SynReceived | Established | Closing | TimeWait) => {
            Next::Continues(status)
        }
        _ => Next::Keeps(status),
    }
}

fn next_by_ack(status: Status, from: Side) -> Next {
    let flags = status.flags;
    let heard = |state| Next::Keeps(Status::new(state, flags));
    match (status.state, from) {
        // A challenge, or what is left of an older connection.
        (State::SynSent, _) => Next::Keeps(status),
        (State::SynReceived, Side::Responder) | (State::MidStream, Side::Originator) => {
            Next::Continues(status)
        }
        (State::Reset, Side::Originator) => heard(State::ResetOriginatorHeard),
        (State::Reset, Side::Responder) => heard(State::ResetResponderHeard),
        (State::ResetOriginatorHeard, Side::Originator)
        | (State::ResetResponderHeard, Side::Responder) => Next::Keeps(status),
        _ => Next::Continues(Status::open(flags)),
    }
}

/// Seconds without a packet after which a connection is over, by its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// SYN_SENT, SYN_RECEIVED and MID_STREAM.
    pub tcp_syn_s: u32,
    /// ESTABLISHED.
    pub tcp_established_s: u32,
    /// CLOSING.
    pub tcp_closing_s: u32,
    /// TIME_WAIT.
    pub tcp_time_wait_s: u32,
    /// Grace after an RST.
    pub tcp_reset_s: u32,
    /// UDP that the responder has not answered.
    pub udp_unreplied_s: u32,
    /// UDP that the responder has answered.
    pub udp_replied_s: u32,
    /// ICMP echo.
    pub icmp_echo_s: u32,
    /// Another protocol, not answered.
    pub other_unreplied_s: u32,
    /// Another protocol, answered.
    pub other_replied_s: u32,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            tcp_syn_s: 30,
            tcp_established_s: 24 * 3600,
            tcp_closing_s: 120,
            tcp_time_wait_s: 120,
            tcp_reset_s: 10,
            udp_unreplied_s: 30,
            udp_replied_s: 180,
            icmp_echo_s: 30,
            other_unreplied_s: 60,
            other_replied_s: 180,
        }
    }
}

impl Timeouts {
    /// Seconds that a connection of this status lasts without a packet.
    #[inline]
    pub const fn of(&self, status: Status) -> u32 {
        let is_replied = status.flags.has(Flags::REPLIED);
        match status.state {
            State::SynSent | State::SynReceived | State::MidStream => self.tcp_syn_s,
            State::Established => self.tcp_established_s,
            State::Closing => self.tcp_closing_s,
            State::TimeWait => self.tcp_time_wait_s,
            State::Reset | State::ResetOriginatorHeard | State::ResetResponderHeard => {
                self.tcp_reset_s
            }
            State::Datagram if is_replied => self.udp_replied_s,
            State::Datagram => self.udp_unreplied_s,
            State::Echo => self.icmp_echo_s,
            State::Other if is_replied => self.other_replied_s,
            State::Other => self.other_unreplied_s,
        }
    }
}

#[cfg(test)]
mod tests;
