//! Long work on a thread of its own. If it is patient, it leaves the processor to all others first:
//! requests wait for other threads meanwhile, and a machine may have few cores.

use tokio::sync::oneshot;

/// The least nice value of a patient thread: beside others of its group that want a core too it has
/// about a tenth of one.
const NICE: i32 = 10;

/// The haste of a piece of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Haste {
    /// Others come first.
    Patient,
    /// It has the share of any other thread.
    Urgent,
}

/// Does something on a thread of its own. The result comes by the channel; none comes if there is
/// no thread for it, or if it panics.
pub(crate) fn on_its_own<T: Send + 'static>(
    haste: Haste,
    work: impl FnOnce() -> T + Send + 'static,
) -> oneshot::Receiver<T> {
    let (result, to_come) = oneshot::channel();
    let run = move || {
        if haste == Haste::Patient {
            be_patient();
        }
        // Nobody may wait for it any more.
        let _ = result.send(work());
    };
    let _ = std::thread::Builder::new().name("background".into()).spawn(run);
    to_come
}

/// Has this thread alone (setpriority(2)) leave the processor to others. Refused, it is as urgent
/// as they are.
fn be_patient() {
    let is_below = |present: &i32| *present < NICE;
    if rustix::process::getpriority_process(None).is_ok_and(|present| is_below(&present)) {
        let _ = rustix::process::setpriority_process(None, NICE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn patient_work_is_done_by_a_thread_that_yields_and_no_other_yields() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let before = nice();
        assert_eq!(on_its_own(Haste::Patient, nice).await, Ok(NICE.max(before)));
        assert_eq!(on_its_own(Haste::Urgent, nice).await, Ok(before));
        assert_eq!(nice(), before);
        assert!(on_its_own(Haste::Patient, || panic!("a test")).await.is_err());
    }
}
