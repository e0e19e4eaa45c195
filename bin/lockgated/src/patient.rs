//! Long work on a thread of its own, which leaves the processor to all others first: requests wait
//! for other threads meanwhile, and a machine may have few cores.

use tokio::sync::oneshot;

/// The thread's nice value: beside threads that want a core too it has a tenth of it.
const NICE: i32 = 10;

/// Does something patiently. The result comes by the channel; none comes if there is no thread for
/// it, or if it panics.
pub(crate) fn patiently<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> oneshot::Receiver<T> {
    let (result, to_come) = oneshot::channel();
    let run = move || {
        // Of this thread alone (setpriority(2)). Refused, it is as impatient as the others.
        let _ = rustix::process::setpriority_process(None, NICE);
        // Nobody may wait for it any more.
        let _ = result.send(work());
    };
    let _ = std::thread::Builder::new().name("patient".into()).spawn(run);
    to_come
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_work_is_done_by_a_thread_that_yields_and_no_other_yields() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let before = nice();
        assert_eq!(patiently(nice).await, Ok(NICE.max(before)));
        assert_eq!(nice(), before);
        assert!(patiently(|| panic!("a test")).await.is_err());
    }
}
