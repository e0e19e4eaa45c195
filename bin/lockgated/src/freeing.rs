//! Frees what a change leaves behind, on a thread of its own: of very many policies that takes
//! milliseconds, and whoever made the change has other things to do.
//!
//! The thread waits a moment for what follows. A change leaves several things behind, and a series
//! of changes many: they cost one wake-up, not one each.

use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Time that the thread waits for more before it frees what it has.
const GATHER: Duration = Duration::from_millis(2);

/// Something to be freed.
type Left = Box<dyn Send>;

/// Drops a value on the thread that frees; here, if there is none.
pub(crate) fn free_aside(left: impl Send + 'static) {
    static FREER: OnceLock<Option<Sender<Left>>> = OnceLock::new();
    if let Some(freer) = FREER.get_or_init(start) {
        // Refused, it is dropped here: the thread has ended.
        let _ = freer.send(Box::new(left));
    }
}

/// A value that the thread that frees drops, wherever its owner is dropped.
pub(crate) struct FreedAside<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> FreedAside<T> {
    pub(crate) fn new(value: T) -> FreedAside<T> {
        FreedAside(Some(value))
    }
}

impl<T: Send + 'static> Deref for FreedAside<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("only drop takes the value")
    }
}

impl<T: Send + 'static> Drop for FreedAside<T> {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(free_aside);
    }
}

fn start() -> Option<Sender<Left>> {
    let (freer, inbox) = channel();
    let thread = std::thread::Builder::new().name("freer".into());
    thread.spawn(move || free(&inbox)).ok().map(|_| freer)
}

fn free(inbox: &Receiver<Left>) {
    while let Ok(left) = inbox.recv() {
        std::thread::sleep(GATHER);
        drop(left);
        inbox.try_iter().for_each(drop);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread::{ThreadId, current};
    use std::time::Instant;

    use super::*;

    /// Says by which thread it was dropped.
    struct Told(Sender<ThreadId>);

    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.send(current().id());
        }
    }

    #[test]
    fn owner_drops_no_value_that_is_freed_aside() {
        let (told, drops) = channel();
        let value = FreedAside::new((Told(told), 7));
        assert_eq!(value.1, 7);
        drop(value);
        assert_ne!(drops.recv().unwrap(), current().id());
    }

    #[test]
    fn all_is_dropped_by_another_thread_and_nothing_stays() {
        let (told, drops) = channel();
        let shared = Arc::new(());
        for _ in 0..100 {
            free_aside((Told(told.clone()), shared.clone()));
        }
        let by: Vec<ThreadId> = drops.iter().take(100).collect();
        assert!(by.iter().all(|id| *id == by[0] && *id != current().id()));
        let began = Instant::now();
        while Arc::strong_count(&shared) > 1 {
            assert!(began.elapsed() < Duration::from_secs(60), "something is kept");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
