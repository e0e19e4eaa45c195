//! Answers and reports of lockgated.

use zeroize::Zeroizing;

use crate::VERSION;
use crate::field::{Header, Malformed, OuterAddress, Writer, header, name};
use crate::handle::SaHandle;
use crate::selector::Selector;
use crate::taken::Taken;

/// Numbers of the kinds (`enum lg_kind` of `protocol.h`).
mod kind {
    pub(super) const ANSWER: u16 = 0x80;
    pub(super) const ACQUIRE: u16 = 0x101;
    pub(super) const EXPIRE: u16 = 0x102;
    pub(super) const MAPPING: u16 = 0x103;
}

/// The outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// It was done.
    Done,
    /// It was not done, for the reason in the text.
    Refused,
    /// There is no such SA or policy.
    Unknown,
    /// Lockgate has no such algorithms.
    NoSuite,
    /// It was for another run of lockgated.
    OtherIncarnation,
    /// Another version of the protocol.
    OtherVersion,
    /// It cannot be read.
    Malformed,
    /// Another charon is connected, or an SA has the SPI.
    Taken,
    /// The key was installed before and is not taken again.
    KeyUsed,
}

impl Status {
    /// All of them, each at the place of its number.
    pub const ALL: [Status; 9] = [
        Status::Done,
        Status::Refused,
        Status::Unknown,
        Status::NoSuite,
        Status::OtherIncarnation,
        Status::OtherVersion,
        Status::Malformed,
        Status::Taken,
        Status::KeyUsed,
    ];
}

/// The use of an SA or a policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Use {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// Seconds since the last packet; `None`: there was none.
    pub idle_seconds: Option<u64>,
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The outcome.
    pub status: Status,
    /// A sentence for the log; empty: none.
    pub text: String,
    /// An SPI that was reserved.
    pub spi: Option<u32>,
    /// The handle of a reserved SPI or of an SA.
    pub handle: Option<SaHandle>,
    /// Handles that were named and that lockgated lacks, at most
    /// [`MAX_HANDLES`](crate::MAX_HANDLES).
    pub lacking: Vec<SaHandle>,
    /// The use that was asked for.
    pub usage: Option<Use>,
}

impl Answer {
    /// An answer that has nothing but a status and a sentence.
    pub fn plain(status: Status, text: impl Into<String>) -> Answer {
        let text = text.into();
        Answer { status, text, spi: None, handle: None, lacking: Vec::new(), usage: None }
    }

    /// The answer that all is done.
    pub fn done() -> Answer {
        Answer::plain(Status::Done, "")
    }
}

/// Hardness of an SA's limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hardness {
    /// It goes on, and is to be replaced.
    Soft,
    /// It has ended.
    Hard,
}

/// A report of lockgated's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Report {
    /// Packets wait for an SA.
    Acquire {
        /// Number of charon's policy.
        reqid: u32,
        /// The first packet that waits: its source and its destination.
        selectors: [Selector; 2],
    },
    /// An SA is at a limit.
    Expire {
        /// The SA.
        handle: SaHandle,
        /// The limit.
        hardness: Hardness,
    },
    /// The peer's address or port has changed.
    Mapping {
        /// An inbound SA that showed it.
        handle: SaHandle,
        /// The peer.
        peer: OuterAddress,
    },
}

/// Something that lockgated tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// The answer to a request.
    Answer(Answer),
    /// A report.
    Report(Report),
}

/// Writes the answer to a request, in the version and with the number of the request's header. A
/// sentence that is too long is cut.
pub fn encode_answer(request: &Header, incarnation: u64, answer: &Answer) -> Zeroizing<Vec<u8>> {
    let mut out = Writer::new(Header { kind: kind::ANSWER, incarnation, ..*request });
    let place = Status::ALL.iter().position(|status| *status == answer.status);
    out.put(name::STATUS, &(place.unwrap_or_default() as u16).to_be_bytes());
    if !answer.text.is_empty() {
        out.put(name::TEXT, sentence(&answer.text).as_bytes());
    }
    if let Some(spi) = answer.spi {
        out.put(name::SPI, &spi.to_be_bytes());
    }
    if let Some(handle) = answer.handle {
        out.put_handle(handle);
    }
    out.put_handles(&answer.lacking);
    if let Some(Use { packets, bytes, idle_seconds }) = answer.usage {
        out.put_three(name::USE, [packets, bytes, idle_seconds.unwrap_or(u64::MAX)]);
    }
    out.finish()
}

/// At most 512 bytes of a text, without control characters.
fn sentence(text: &str) -> String {
    let mut clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let end = (0..=512.min(clean.len())).rev().find(|place| clean.is_char_boundary(*place));
    clean.truncate(end.unwrap_or_default());
    clean
}

/// Writes a report.
pub fn encode_report(incarnation: u64, report: &Report) -> Zeroizing<Vec<u8>> {
    let kind = match report {
        Report::Acquire { .. } => kind::ACQUIRE,
        Report::Expire { .. } => kind::EXPIRE,
        Report::Mapping { .. } => kind::MAPPING,
    };
    let mut out = Writer::new(Header { version: VERSION, kind, number: 0, incarnation });
    match report {
        Report::Acquire { reqid, selectors: [source, destination] } => {
            out.put(name::REQID, &reqid.to_be_bytes());
            out.put(name::SOURCE_SELECTOR, &source.bytes());
            out.put(name::DESTINATION_SELECTOR, &destination.bytes());
        }
        Report::Expire { handle, hardness } => {
            out.put_handle(*handle);
            out.put(name::HARDNESS, &[u8::from(*hardness == Hardness::Hard)]);
        }
        Report::Mapping { handle, peer } => {
            out.put_handle(*handle);
            out.put_outer(name::NEW_SOURCE, *peer);
        }
    }
    out.finish()
}

/// Reads what lockgated tells, as the plugin does: for tests that play charon.
///
/// # Errors
/// [`Malformed`].
pub fn decode_told(bytes: &[u8]) -> Result<(Header, Told), Malformed> {
    let (header, fields) = header(bytes)?;
    let mut taken = Taken::read(fields)?;
    let told = match header.kind {
        kind::ANSWER => Told::Answer(answer(&mut taken)?),
        kind => Told::Report(report(kind, &mut taken)?),
    };
    taken.finish()?;
    Ok((header, told))
}

fn answer(taken: &mut Taken<'_>) -> Result<Answer, Malformed> {
    let status = taken.need(name::STATUS)?;
    let known = Status::ALL.get(usize::from(status.u16()?)).copied();
    let usage = taken.take(name::USE).map(|field| field.three()).transpose()?;
    Ok(Answer {
        status: known.ok_or_else(|| status.wrong())?,
        text: taken.take(name::TEXT).map_or(Ok(String::new()), |field| field.text())?,
        spi: taken.take(name::SPI).map(|field| field.u32()).transpose()?,
        handle: taken.take(name::HANDLE).map(|field| field.handle()).transpose()?,
        lacking: taken.take(name::HANDLES).map_or(Ok(Vec::new()), |field| field.handles())?,
        usage: usage.map(|[packets, bytes, idle]| Use {
            packets,
            bytes,
            idle_seconds: (idle != u64::MAX).then_some(idle),
        }),
    })
}

fn report(kind: u16, taken: &mut Taken<'_>) -> Result<Report, Malformed> {
    Ok(match kind {
        kind::ACQUIRE => Report::Acquire {
            reqid: taken.need(name::REQID)?.u32()?,
            selectors: taken.one_selector_each()?,
        },
        kind::EXPIRE => Report::Expire {
            handle: taken.need(name::HANDLE)?.handle()?,
            hardness: match taken.need(name::HARDNESS)?.flag()? {
                true => Hardness::Hard,
                false => Hardness::Soft,
            },
        },
        kind::MAPPING => Report::Mapping {
            handle: taken.need(name::HANDLE)?.handle()?,
            peer: taken.need(name::NEW_SOURCE)?.outer()?,
        },
        other => return Err(Malformed::Kind(other)),
    })
}
