//! Large parts that unread answers hold and share. At a bound the part of a user whose answers hold
//! most parts gives way: the connections of the answers that hold the part end.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use tokio::sync::Notify;

use crate::fair_turns::{CallerGroup, WorkCaller};

/// A caller with the end of the caller's connection.
#[derive(Clone)]
pub(super) struct AnswerReader {
    pub(super) caller: WorkCaller,
    pub(super) end: Option<Arc<Notify>>,
}

/// Place of an answer among the holders of a part; the answer's entries own the place.
pub(super) type AnswerPlace = Arc<()>;

/// Parts that unread answers hold.
pub(super) struct HeldParts<T: ?Sized> {
    /// Most parts that the answers of a kind of caller hold.
    most: usize,
    /// The oldest first.
    parts: Vec<HeldPart<T>>,
}

/// A part that answers of a caller hold.
pub(super) struct HeldPart<T: ?Sized> {
    caller: WorkCaller,
    pub(super) made: Instant,
    part: Weak<T>,
    answers: Vec<UnreadAnswer>,
}

/// An answer that holds a part, until its place is gone.
struct UnreadAnswer {
    place: Weak<()>,
    /// Ends the answer's connection.
    end: Option<Weak<Notify>>,
}

impl<T: ?Sized> HeldParts<T> {
    pub(super) fn new(most: usize) -> HeldParts<T> {
        HeldParts { most, parts: Vec::new() }
    }

    /// Returns the caller's latest part, while an answer holds it.
    pub(super) fn latest(&mut self, caller: WorkCaller) -> Option<(&mut HeldPart<T>, Arc<T>)> {
        let latest = self.parts.iter_mut().rev().find(|held| held.caller == caller)?;
        let part = latest.part.upgrade()?;
        Some((latest, part))
    }

    /// Records that an answer holds a part. At the bound another part gives way.
    pub(super) fn hold(
        &mut self,
        reader: &AnswerReader,
        part: &Arc<T>,
        made: Instant,
    ) -> AnswerPlace {
        self.parts.retain(|held| held.part.strong_count() > 0);
        let (caller, part) = (reader.caller, Arc::downgrade(part));
        let is_same = |held: &HeldPart<T>| held.part.ptr_eq(&part);
        if let Some(held) = self.parts.iter_mut().find(|it| it.caller == caller && is_same(it)) {
            return held.add_answer(reader);
        }
        let group = CallerGroup::of(caller);
        let is_counted = self.parts.iter().any(|held| held.is_of(group) && is_same(held));
        while !is_counted && self.count(group) >= self.most && self.evict(group) {}
        let mut held = HeldPart { caller, made, part, answers: Vec::new() };
        let place = held.add_answer(reader);
        self.parts.push(held);
        place
    }

    /// Returns the number of different parts that answers of a kind of caller hold.
    fn count(&self, group: CallerGroup) -> usize {
        let of_group = || self.parts.iter().enumerate().filter(|(_, held)| held.is_of(group));
        let is_first = |place: usize, part: &Weak<T>| {
            !of_group().take_while(|(other, _)| *other < place).any(|(_, it)| it.part.ptr_eq(part))
        };
        of_group().filter(|(place, held)| is_first(*place, &held.part)).count()
    }

    /// Ends the connections of the answers with a part, among callers of a kind. All holders of the
    /// part hold most parts; of equal parts the part with fewest holders gives way, then the
    /// oldest. So a user with one part keeps the part from a user with many. Returns false if no
    /// caller of the kind holds a part.
    fn evict(&mut self, group: CallerGroup) -> bool {
        let of_group = || self.parts.iter().filter(|held| held.is_of(group));
        let mut sizes: HashMap<WorkCaller, usize> = HashMap::new();
        of_group().for_each(|held| *sizes.entry(held.caller).or_default() += 1);
        let rank = |held: &&HeldPart<T>| {
            let holders = of_group().filter(|other| other.part.ptr_eq(&held.part));
            let holders: Vec<usize> = holders.map(|holder| sizes[&holder.caller]).collect();
            (Reverse(holders.iter().min().copied()), holders.len())
        };
        let Some(victim) = of_group().min_by_key(rank).map(|held| held.part.clone()) else {
            return false;
        };
        let is_victim = |held: &HeldPart<T>| held.is_of(group) && held.part.ptr_eq(&victim);
        let parts = std::mem::take(&mut self.parts);
        let (gone, rest): (Vec<_>, Vec<_>) = parts.into_iter().partition(is_victim);
        self.parts = rest;
        gone.into_iter().for_each(HeldPart::end_connections);
        true
    }

    /// Returns the number of parts that answers hold.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.parts.iter().filter(|held| held.part.strong_count() > 0).count()
    }
}

impl<T: ?Sized> HeldPart<T> {
    fn is_of(&self, group: CallerGroup) -> bool {
        CallerGroup::of(self.caller) == group
    }

    pub(super) fn add_answer(&mut self, reader: &AnswerReader) -> AnswerPlace {
        self.answers.retain(|answer| answer.place.strong_count() > 0);
        let place = AnswerPlace::default();
        let end = reader.end.as_ref().map(Arc::downgrade);
        self.answers.push(UnreadAnswer { place: Arc::downgrade(&place), end });
        place
    }

    /// Ends the connections of the answers that still hold the part. A connection whose answer has
    /// been read goes on.
    fn end_connections(self) {
        let unread = self.answers.iter().filter(|answer| answer.place.strong_count() > 0);
        let ends = unread.filter_map(|answer| answer.end.as_ref()?.upgrade());
        ends.for_each(|end| end.notify_one());
    }
}

#[cfg(test)]
impl AnswerReader {
    /// A caller with a connection.
    pub(super) fn with_end(caller: WorkCaller) -> AnswerReader {
        AnswerReader { caller, end: Some(Arc::default()) }
    }

    /// Returns whether the connection was told to end.
    pub(super) async fn is_ended(&self) -> bool {
        let end = self.end.as_ref().expect("a connection");
        let mut ended = std::pin::pin!(end.notified());
        let poll = |context: &mut std::task::Context<'_>| {
            std::task::Poll::Ready(ended.as_mut().poll(context).is_ready())
        };
        std::future::poll_fn(poll).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(user: u32) -> AnswerReader {
        let caller = match user {
            0..100 => WorkCaller::Administrator(user),
            user => WorkCaller::Reader(Some(user)),
        };
        AnswerReader::with_end(caller)
    }

    /// The end of a connection is for answers that still hold the part.
    #[tokio::test]
    async fn connection_whose_answer_has_been_read_does_not_end() {
        let mut parts = HeldParts::<str>::new(1);
        let (done, slow, next) = (reader(100), reader(100), reader(101));
        let [old, new]: [Arc<str>; 2] = ["old", "new"].map(Arc::from);
        let now = Instant::now();
        drop(parts.hold(&done, &old, now));
        let _unread = parts.hold(&slow, &old, now);
        let _newer = parts.hold(&next, &new, now);
        assert!(!done.is_ended().await && slow.is_ended().await && !next.is_ended().await);
    }

    #[tokio::test]
    async fn part_that_users_share_counts_once_and_kinds_of_callers_have_bounds_of_their_own() {
        let mut parts = HeldParts::<str>::new(2);
        let texts: Vec<Arc<str>> = (0..4).map(|text| text.to_string().into()).collect();
        let users: Vec<AnswerReader> = (100..120).map(reader).collect();
        let now = Instant::now();
        let mut places: Vec<AnswerPlace> =
            users.iter().map(|user| parts.hold(user, &texts[0], now)).collect();
        places.push(parts.hold(&users[0], &texts[1], now));
        for user in [0, 1].map(reader) {
            places.extend(texts.iter().take(2).map(|text| parts.hold(&user, text, now)));
            assert!(!user.is_ended().await);
        }
        for user in &users {
            assert!(!user.is_ended().await);
        }
        // The first user holds two, and the text that no other user holds gives way.
        places.push(parts.hold(&users[5], &texts[2], now));
        assert!(users[0].is_ended().await);
        for user in &users[1..] {
            assert!(!user.is_ended().await);
        }
        assert_eq!(parts.count(CallerGroup::Readers), 2);
    }
}
