//! Limits of SAs and their use (RFC 4301 §4.4.2.1, "Lifetime of this SA").

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(test)]
mod tests;

const NS_PER_SECOND: u64 = 1_000_000_000;

/// A limit of each kind; `None`: there is none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Limits {
    /// Packets sealed, or opened and found authentic.
    pub packets: Option<u64>,
    /// Bytes that the cipher processed: payload, padding, pad length and next header.
    pub bytes: Option<u64>,
    /// Seconds since the key was used first, or since [`Account::begin`].
    pub seconds: Option<u32>,
    /// Seconds since the SA last sealed or opened a packet. An SA that was never used, and did not
    /// [begin](Account::begin), is not idle.
    pub idle_seconds: Option<u32>,
}

impl Limits {
    /// No limit.
    pub const NONE: Limits =
        Limits { packets: None, bytes: None, seconds: None, idle_seconds: None };

    /// Returns the limit of a kind, in packets, bytes or seconds.
    pub fn of(&self, limit: Limit) -> Option<u64> {
        match limit {
            Limit::Packets => self.packets,
            Limit::Bytes => self.bytes,
            Limit::Seconds => self.seconds.map(u64::from),
            Limit::Idle => self.idle_seconds.map(u64::from),
        }
    }
}

/// The limits of an SA. Beyond a soft one it should be replaced; beyond a hard one it ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Lifetime {
    /// The control plane says so once; packets pass.
    pub soft: Limits,
    /// No packet passes any more.
    pub hard: Limits,
}

impl Lifetime {
    /// No limit.
    pub const NONE: Lifetime = Lifetime { soft: Limits::NONE, hard: Limits::NONE };
}

/// The kinds of limits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Limit {
    /// Packets.
    Packets,
    /// Bytes that the cipher processed.
    Bytes,
    /// Seconds since the first use.
    Seconds,
    /// Seconds since the last use.
    Idle,
}

impl Limit {
    /// All kinds, in the order in which they are judged.
    pub const ALL: [Limit; 4] = [Limit::Packets, Limit::Bytes, Limit::Seconds, Limit::Idle];

    /// The name, as configuration keys have it behind `soft_` and `hard_`.
    pub const fn name(self) -> &'static str {
        match self {
            Limit::Packets => "packets",
            Limit::Bytes => "bytes",
            Limit::Seconds => "seconds",
            Limit::Idle => "idle_seconds",
        }
    }

    const fn code(self) -> u64 {
        match self {
            Limit::Packets => 1,
            Limit::Bytes => 2,
            Limit::Seconds => 3,
            Limit::Idle => 4,
        }
    }

    /// `None`: none of them; an unknown code is one that ended the SA for another reason.
    const fn from_code(code: u64) -> Option<Limit> {
        match code {
            0 => None,
            1 => Some(Limit::Packets),
            2 => Some(Limit::Bytes),
            4 => Some(Limit::Idle),
            _ => Some(Limit::Seconds),
        }
    }
}

/// The words of an account that lie in a mapping, which lives as long as this process and which
/// other processes find again. They are one SA's (key and direction) and no other's; all are 0 for
/// a key that was never used.
#[derive(Clone, Copy, Debug)]
pub struct AccountWords {
    /// Packets, as [`Limits::packets`] counts them. Gets less only by what is given back.
    pub packets: &'static AtomicU64,
    /// Bytes, as [`Limits::bytes`] counts them.
    pub bytes: &'static AtomicU64,
    /// The limit that ended the SA, and the expiries that were told. Only ever gets more bits.
    pub state: &'static AtomicU64,
    /// First use, in nanoseconds of the boot clock (CLOCK_BOOTTIME) modulo 2⁶⁴; 0: never used.
    /// "Now − age" for a key used first before this boot, which wraps below 0.
    pub first_use_ns: &'static AtomicU64,
    /// Last use, in nanoseconds of the boot clock; 0: not in this boot.
    pub last_use_ns: &'static AtomicU64,
}

/// The storage of a word.
enum Word {
    Own(AtomicU64),
    Shared(&'static AtomicU64),
}

impl Word {
    const fn own() -> Word {
        Word::Own(AtomicU64::new(0))
    }

    #[inline]
    fn at(&self) -> &AtomicU64 {
        match self {
            Word::Own(word) => word,
            Word::Shared(word) => word,
        }
    }
}

/// The use of an SA. Shared by all workers that seal or open with the SA, and kept over changes of
/// configuration as long as its key is: limits may change, the use never gets less.
///
/// Workers take packets and bytes before they use them, and give back what they did not use. Limits
/// by time are judged by the control plane, which calls [`judge`](Self::judge) regularly.
pub struct Account {
    packets: Word,
    bytes: Word,
    /// Low 8 bits: code of the limit that ended the SA, 0 while it lives; then [`SOFT_TOLD`] and
    /// [`HARD_TOLD`].
    state: Word,
    first_use_ns: Word,
    last_use_ns: Word,
    /// Packets at the judgement before.
    seen_packets: AtomicU64,
}

const CODE: u64 = 0xff;
const SOFT_TOLD: u64 = 1 << 8;
const HARD_TOLD: u64 = 1 << 9;

/// The use of an SA at one time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Used {
    /// Packets.
    pub packets: u64,
    /// Bytes that the cipher processed.
    pub bytes: u64,
    /// Whole seconds since the first use; `None`: never used.
    pub seconds: Option<u64>,
    /// Whole seconds since the last use, or since the boot if that was before it; `None`: never
    /// used.
    pub idle_seconds: Option<u64>,
}

impl Used {
    /// Returns the use by a kind of limit, in packets, bytes or seconds; 0 if it was never used.
    pub fn of(&self, limit: Limit) -> u64 {
        match limit {
            Limit::Packets => self.packets,
            Limit::Bytes => self.bytes,
            Limit::Seconds => self.seconds.unwrap_or(0),
            Limit::Idle => self.idle_seconds.unwrap_or(0),
        }
    }

    /// Returns the first limit that is reached. A limit by time is reached by an SA in use only.
    fn reaches(&self, limits: &Limits) -> Option<Limit> {
        let reached = |limit: &Limit| {
            let used = match limit {
                Limit::Packets => Some(self.packets),
                Limit::Bytes => Some(self.bytes),
                Limit::Seconds => self.seconds,
                Limit::Idle => self.idle_seconds,
            };
            used.zip(limits.of(*limit)).is_some_and(|(used, limit)| used >= limit)
        };
        Limit::ALL.into_iter().find(reached)
    }
}

/// Expiries that are to be told now: each once in the life of an SA.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Expiries {
    /// The soft limit that was reached.
    pub soft: Option<Limit>,
    /// The hard limit that ended the SA.
    pub hard: Option<Limit>,
}

impl Account {
    /// An account in its own memory, without use: for a key that was never used.
    pub const fn new() -> Account {
        Account {
            packets: Word::own(),
            bytes: Word::own(),
            state: Word::own(),
            first_use_ns: Word::own(),
            last_use_ns: Word::own(),
            seen_packets: AtomicU64::new(0),
        }
    }

    /// An account that goes on with the use in `words`.
    pub fn shared(words: AccountWords) -> Account {
        Account {
            packets: Word::Shared(words.packets),
            bytes: Word::Shared(words.bytes),
            state: Word::Shared(words.state),
            first_use_ns: Word::Shared(words.first_use_ns),
            last_use_ns: Word::Shared(words.last_use_ns),
            seen_packets: AtomicU64::new(words.packets.load(Ordering::Relaxed)),
        }
    }

    /// Raises the use to at least so many packets and bytes: bounds from above, where the exact use
    /// is not known.
    pub fn raise(&self, packets: u64, bytes: u64) {
        self.packets.at().fetch_max(packets, Ordering::Relaxed);
        self.bytes.at().fetch_max(bytes, Ordering::Relaxed);
    }

    /// Takes a run of packets with `bytes` in all, or as many of its first packets as the hard
    /// limits by packets and bytes allow; returns how many. The caller uses them, or
    /// [gives back](Self::give_back) those that it cannot use. `sizes` yields the bytes of each
    /// packet in order; it is asked only at a limit.
    ///
    /// A packet that does not fit the limit by bytes ends the SA, although a shorter one might fit.
    ///
    /// Cost: two atomic updates and two loads, so one call a run.
    pub fn take<I: Iterator<Item = u64>>(
        &self,
        hard: &Limits,
        (packets, bytes): (u32, u64),
        sizes: impl Fn() -> I,
    ) -> u32 {
        if self.ended().is_some() || packets == 0 {
            return 0;
        }
        // As in `SequenceCounter::draw`: all checks lie inside the atomic updates, so that no order
        // of them passes a limit or wraps. A word beyond a limit that was lowered has no room.
        let most = hard.packets.unwrap_or(u64::MAX);
        let room = |used: u64| u64::from(packets).min(most.saturating_sub(used)) as u32;
        let add = |used: u64| Some(room(used)).filter(|n| *n > 0).map(|n| used + u64::from(n));
        let taken = match self.packets.at().fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
        {
            Ok(used) => room(used),
            Err(_) => return 0,
        };
        let wanted = match taken == packets {
            true => bytes,
            false => sizes().take(taken as usize).sum(),
        };
        let most = hard.bytes.unwrap_or(u64::MAX);
        let fits = |used: u64| match most.saturating_sub(used) {
            room if wanted <= room => (taken, wanted),
            room => first_that_fit(sizes().take(taken as usize), room),
        };
        let add = |used: u64| Some(used + fits(used).1);
        let used = self.bytes.at().fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        let (fitting, _) = fits(used.unwrap_or_else(|used| used));
        if fitting < taken {
            self.give_back(taken - fitting, 0);
            self.end(Limit::Bytes);
        }
        fitting
    }

    /// Gives back packets that were taken and not used, and their bytes.
    pub fn give_back(&self, packets: u32, bytes: u64) {
        // Only what was taken is given back, so nothing falls below 0, unless somebody else moved
        // the word of a mapping.
        let less = |back: u64| move |used: u64| Some(used.saturating_sub(back));
        for (word, back) in [(&self.packets, u64::from(packets)), (&self.bytes, bytes)] {
            if back > 0 {
                let _ = word.at().fetch_update(Ordering::Relaxed, Ordering::Relaxed, less(back));
            }
        }
    }

    /// Ends the SA for good; the first limit that does so stays the cause.
    pub fn end(&self, limit: Limit) {
        let set = |state: u64| (state & CODE == 0).then_some(state | limit.code());
        let _ = self.state.at().fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
    }

    /// The limit that ended the SA.
    #[inline]
    pub fn ended(&self) -> Option<Limit> {
        Limit::from_code(self.state.at().load(Ordering::Relaxed) & CODE)
    }

    /// Returns whether no further packet may be taken now: the SA has ended or is at a hard limit.
    #[inline]
    pub fn is_spent(&self, hard: &Limits) -> bool {
        let at = |used: &Word, most: Option<u64>| {
            used.at().load(Ordering::Relaxed) >= most.unwrap_or(u64::MAX)
        };
        self.ended().is_some() || at(&self.packets, hard.packets) || at(&self.bytes, hard.bytes)
    }

    /// Begins the time of an SA whose limits by time count from now and not from its first use.
    /// Does nothing if it runs already. `now_ns`: nanoseconds of the boot clock.
    pub fn begin(&self, now_ns: u64) {
        let first = self.first_use_ns.at();
        let _ = first.compare_exchange(0, now_ns.max(1), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The use until now. `now_ns`: nanoseconds of the boot clock.
    pub fn used(&self, now_ns: u64) -> Used {
        let first = self.first_use_ns.at().load(Ordering::Relaxed);
        let last = self.last_use_ns.at().load(Ordering::Relaxed);
        let since = |start: u64| (now_ns.wrapping_sub(start) as i64).max(0) as u64 / NS_PER_SECOND;
        // A first use before this boot lies below 0, and so before the boot.
        let last = (last as i64).max(first as i64) as u64;
        let runs = first != 0;
        Used {
            packets: self.packets.at().load(Ordering::Relaxed),
            bytes: self.bytes.at().load(Ordering::Relaxed),
            seconds: runs.then(|| since(first)),
            idle_seconds: runs.then(|| since((last as i64).max(0) as u64)),
        }
    }

    /// Notes first and last use, ends the SA if a hard limit is reached, and returns what is to be
    /// told now. Only the control plane calls it, from one thread, about ten times a second: use is
    /// noted with that precision. `now_ns`: nanoseconds of the boot clock.
    ///
    /// Workers may hold packets that they give back. So a limit by packets or bytes ends the SA
    /// only if no packet was taken between two judgements; until then it is kept all the same. An
    /// SA that no worker uses any more is judged twice at once: its use rests.
    pub fn judge(&self, lifetime: &Lifetime, now_ns: u64) -> Expiries {
        let packets = self.packets.at().load(Ordering::Relaxed);
        let rests = self.seen_packets.swap(packets, Ordering::Relaxed) == packets;
        if packets > 0 {
            self.begin(now_ns);
        }
        if !rests {
            self.last_use_ns.at().fetch_max(now_ns, Ordering::Relaxed);
        }
        let used = self.used(now_ns);
        match used.reaches(&lifetime.hard) {
            Some(Limit::Packets | Limit::Bytes) if !rests => {}
            Some(limit) => self.end(limit),
            None => {}
        }
        let ended = self.ended();
        let soft = used.reaches(&lifetime.soft);
        Expiries {
            soft: soft.filter(|_| self.tell(SOFT_TOLD)),
            hard: ended.filter(|_| self.tell(HARD_TOLD)),
        }
    }

    /// Returns whether an expiry is told now for the first time.
    fn tell(&self, told: u64) -> bool {
        let state = self.state.at();
        state.load(Ordering::Relaxed) & told == 0
            && state.fetch_or(told, Ordering::Relaxed) & told == 0
    }
}

impl Default for Account {
    fn default() -> Account {
        Account::new()
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [packets, bytes] = [&self.packets, &self.bytes].map(|word| word.at());
        write!(f, "Account {{ packets: {packets:?}, bytes: {bytes:?}, {:?} }}", self.ended())
    }
}

/// The limits of an SA, and its account. A changed configuration makes another one with the same
/// account.
#[derive(Clone, Debug)]
pub struct Allowance {
    /// The limits.
    pub lifetime: Lifetime,
    /// The use: this key's and direction's and no other's.
    pub account: Arc<Account>,
}

/// Equal are those of one account with equal limits.
impl PartialEq for Allowance {
    fn eq(&self, other: &Allowance) -> bool {
        self.lifetime == other.lifetime && Arc::ptr_eq(&self.account, &other.account)
    }
}

impl Eq for Allowance {}

impl Allowance {
    /// [Takes](Account::take) a run of packets within the hard limits.
    #[inline]
    pub fn take<I: Iterator<Item = u64>>(
        &self,
        packets: u32,
        bytes: u64,
        sizes: impl Fn() -> I,
    ) -> u32 {
        self.account.take(&self.lifetime.hard, (packets, bytes), sizes)
    }

    /// Returns whether no further packet may be taken now: the SA has ended or is at a hard limit.
    #[inline]
    pub fn is_spent(&self) -> bool {
        self.account.is_spent(&self.lifetime.hard)
    }
}

/// The first packets whose bytes lie within `room`, and their bytes.
fn first_that_fit(sizes: impl Iterator<Item = u64>, room: u64) -> (u32, u64) {
    let (mut packets, mut bytes) = (0, 0u64);
    for size in sizes {
        match bytes.checked_add(size) {
            Some(sum) if sum <= room => (packets, bytes) = (packets + 1, sum),
            _ => break,
        }
    }
    (packets, bytes)
}
