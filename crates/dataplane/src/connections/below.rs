//! Connections whose packets a tier below the workers passes: which ones it may have, and what it
//! saw of them.

use std::fmt;

use policy::connection::{Flags, Shown, State, Status};

use super::{Connections, Found, Key};

/// Seconds that a connection still lasts, at least, while a lower tier passes its packets. Longer
/// than the tier goes on after whoever looks after it stopped: two seconds and a second's part.
pub const LEEWAY_S: u32 = 4;

/// The reason why a lower tier may not pass the packets of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NotLasting {
    /// There is no connection.
    None,
    /// It is not established, or an end of it has begun to close it.
    Unsettled,
    /// It ends soon unless a packet of it is seen; or would, as soon as it closes.
    EndsSoon,
}

impl fmt::Display for NotLasting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotLasting::None => f.write_str("there is none"),
            NotLasting::Unsettled => {
                f.write_str("it is not established, was not answered yet, or closes")
            }
            NotLasting::EndsSoon => {
                write!(f, "it may be over in {LEEWAY_S} s, if it closes or nobody speaks")
            }
        }
    }
}

/// Returns whether every packet that is neither the beginning nor the end of a connection leaves
/// its status as it is.
fn is_settled(status: Status) -> bool {
    match status.state {
        State::Established => true,
        State::Datagram | State::Other => status.flags.has(Flags::ASSURED),
        _ => false,
    }
}

impl Connections {
    /// Returns the connection of a key if a lower tier may pass its packets: it is settled, and
    /// lasts for [`LEEWAY_S`] whatever a worker may hear of it.
    ///
    /// # Errors
    /// [`NotLasting`]: the reason why not.
    pub(crate) fn lasting(&self, key: &Key, now_s: u32) -> Result<Found, NotLasting> {
        let entry = self.lines.find(&key.line, self.candidates(key)).ok_or(NotLasting::None)?;
        if self.is_expired(entry.word, now_s) {
            return Err(NotLasting::None);
        }
        let found = Self::found(key, &entry).ok_or(NotLasting::None)?;
        if !is_settled(found.status) {
            return Err(NotLasting::Unsettled);
        }
        let left_s = self.timeouts.of(found.status).saturating_sub(entry.word.age_s(now_s));
        let lasts = left_s >= LEEWAY_S && self.lasts_when_closed(found.status) >= LEEWAY_S;
        if lasts { Ok(found) } else { Err(NotLasting::EndsSoon) }
    }

    /// Seconds that a connection of this status lasts at least when an end of it closes it.
    fn lasts_when_closed(&self, status: Status) -> u32 {
        if status.state != State::Established {
            return u32::MAX;
        }
        let closed = [State::Closing, State::TimeWait, State::Reset];
        let lasts = closed.map(|state| self.timeouts.of(Status { state, ..status }));
        lasts.into_iter().fold(u32::MAX, u32::min)
    }

    /// Moves a connection on by the last packet that a lower tier passed, in second `seen_s`. What
    /// workers saw in that second or since counts more: in which order is not known.
    pub(crate) fn seen_below(&self, key: &Key, shown: Shown, seen_s: u32) {
        let Some(entry) = self.lines.find(&key.line, self.candidates(key)) else { return };
        let Some(found) = Self::found(key, &entry) else { return };
        if entry.word.age_s(seen_s) > 0 {
            self.observe(found.place, key, shown, seen_s);
        }
    }
}
