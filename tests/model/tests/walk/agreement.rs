//! Compares what the walk did with the courses that the oracle allows.

use dataplane::{HoldKind, Verdict};
use model::headers;
use model::oracle::{Course, Departure, Fate};

use crate::gateway::{Emission, Observed, Out};

/// Returns whether one of the courses is the one observed of a packet.
pub(crate) fn agrees(courses: &[Course], observed: &Observed) -> bool {
    let alike = |course: &&Course| course.moved.as_slice() == observed.moved;
    let courses: Vec<Course> = courses.iter().filter(alike).cloned().collect();
    any(&courses, &observed.verdicts, &observed.emissions)
}

fn any(courses: &[Course], verdicts: &[Verdict], emissions: &[Emission]) -> bool {
    courses.iter().any(|course| followed(course, verdicts, emissions))
}

/// Holds a packet and what follows it against their courses. Verdicts: its own, those of the
/// followers, then of what is made. What is made about a packet leaves in its place, but for ICMP,
/// which leaves behind all; its verdict may be before those of the followers' own fragments.
fn followed(course: &Course, verdicts: &[Verdict], emissions: &[Emission]) -> bool {
    let count = course.followers.len();
    if count == 0 || verdicts.len() <= count {
        return count == 0 && one(course, verdicts, emissions);
    }
    let (own, made) = verdicts.split_at(1 + count);
    ends(made).any(|(made, others_made)| {
        ends(emissions).any(|(sent, others_sent)| {
            one(course, &[&own[..1], made].concat(), sent)
                && all(&course.followers, &own[1..], others_made, others_sent)
        })
    })
}

/// Each part of a list that begins or ends it, with the rest.
fn ends<T>(list: &[T]) -> impl Iterator<Item = (&[T], &[T])> {
    (0..=list.len()).flat_map(move |n| {
        let (first, last) = list.split_at(n);
        [(first, last), (last, first)]
    })
}

/// Holds packets in their order against the courses of each.
fn all(
    packets: &[Vec<Course>],
    verdicts: &[Verdict],
    made: &[Verdict],
    emissions: &[Emission],
) -> bool {
    let (Some((courses, others)), Some((verdict, verdicts))) =
        (packets.split_first(), verdicts.split_first())
    else {
        return made.is_empty() && emissions.is_empty();
    };
    let splits = (0..=made.len()).flat_map(|m| (0..=emissions.len()).map(move |e| (m, e)));
    splits.into_iter().any(|(m, e)| {
        let ((made, others_made), (sent, others_sent)) = (made.split_at(m), emissions.split_at(e));
        any(courses, &[&[*verdict], made].concat(), sent)
            && all(others, verdicts, others_made, others_sent)
    })
}

fn one(course: &Course, verdicts: &[Verdict], emissions: &[Emission]) -> bool {
    let Some((verdict, made)) = verdicts.split_first() else { return false };
    match &course.fate {
        Fate::Dropped(reason) => {
            let told = match &course.messages[..] {
                [] => made.is_empty() && emissions.is_empty(),
                messages => messages.iter().any(|message| any(message, made, emissions)),
            };
            *verdict == Verdict::Drop(*reason) && told
        }
        Fate::Waits => {
            *verdict == Verdict::Hold(HoldKind::Fragment) && made.is_empty() && emissions.is_empty()
        }
        Fate::Torn(reason) => {
            let is_refused = |verdict: &Verdict| *verdict == Verdict::Drop(*reason);
            let all_are_refused = made.len() > 1 && made.iter().all(is_refused);
            *verdict == Verdict::Consumed && all_are_refused && emissions.is_empty()
        }
        Fate::Host(forms) => match emissions {
            [Emission { fate: Out::Host, packet, .. }] => {
                *verdict == Verdict::Host && made.is_empty() && forms.contains(packet)
            }
            _ => false,
        },
        Fate::Leaves(departure) if departure.packet.len() <= departure.mtu => match emissions {
            [emission] => {
                *verdict == departure.verdict()
                    && made.len() + 1 == emission.pieces
                    && made.iter().all(|made| made == verdict)
                    && is_way(departure, emission)
                    && emission.packet == departure.packet
            }
            _ => false,
        },
        Fate::Leaves(departure) => {
            *verdict == Verdict::Consumed
                && made.len() == emissions.len()
                && made.iter().all(|verdict| *verdict == departure.verdict())
                && emissions.iter().all(|emission| is_way(departure, emission))
                && are_fragments(departure, emissions)
        }
    }
}

fn is_way(departure: &Departure, emission: &Emission) -> bool {
    emission.is_way(departure.port, departure.to, departure.sealed)
}

/// RFC 791 §3.2: in order, each fits, together they are the packet's data; the header is the
/// packet's but for length, offset, "more", checksum and the options that are not copied.
fn are_fragments(departure: &Departure, emissions: &[Emission]) -> bool {
    let whole = &departure.packet;
    let header_bytes = usize::from(whole[0] & 15) * 4;
    let field = |bytes: &[u8]| u16::from_be_bytes([bytes[6], bytes[7]]);
    let first_offset = usize::from(field(whole) & 0x1fff) * 8;
    let mut data: Vec<u8> = vec![];
    for (number, emission) in emissions.iter().enumerate() {
        let bytes = &emission.packet;
        let Ok(fragment) = headers::ip(bytes) else { return false };
        let is_last = number + 1 == emissions.len();
        let more = !is_last || field(whole) & 0x2000 != 0;
        let right = bytes.len() <= departure.mtu
            && usize::from(field(bytes) & 0x1fff) * 8 == first_offset + data.len()
            && (field(bytes) & 0x2000 != 0) == more
            && field(bytes) & 0xc000 == field(whole) & 0xc000
            && bytes[1] == whole[1]
            && bytes[4..6] == whole[4..6]
            && bytes[8..10] == whole[8..10]
            && bytes[12..20] == whole[12..20]
            && copied(&bytes[20..fragment.upper]) == copied(&whole[20..header_bytes])
            && (number > 0 || bytes[20..fragment.upper] == whole[20..header_bytes]);
        if !right {
            return false;
        }
        data.extend(&bytes[fragment.upper..]);
    }
    emissions.len() > 1 && data == whole[header_bytes..]
}

/// The options that every fragment carries (RFC 791 §3.1).
fn copied(options: &[u8]) -> Vec<u8> {
    let mut list = vec![];
    let mut at = 0;
    while at < options.len() && options[at] != 0 {
        let length = if options[at] == 1 { 1 } else { usize::from(options[at + 1]) };
        if options[at] & 0x80 != 0 {
            list.extend(&options[at..at + length]);
        }
        at += length;
    }
    list
}
