//! Assigns queues to workers, workers to cores, and frames to workers.
//!
//! Every receive queue has exactly one worker, and every worker has a queue of every port to
//! transmit by: no more workers are used than the port with the fewest queues has.

/// Frames that one socket may own: its fill ring and its transmit ring.
pub(crate) const FRAMES_PER_SOCKET: u32 = 2 * QUOTA;
/// Frames in a socket's fill ring, and in its transmit ring, at most.
pub(crate) const QUOTA: u32 = 1024;
/// Frames of a worker that no socket owns: batches under way, what waits for neighbours, fragments.
const FRAMES_FOR_THE_WALK: u32 = 2048;
/// Sockets more than there are at the start: ports that come later, queues that are added.
const SPARE_SOCKETS: u32 = 4;
/// Queues of a netdev that are served at most.
pub(crate) const MAX_QUEUES: u32 = 64;

/// The worker that serves a queue.
pub(crate) fn worker_of(queue: u32, workers: u32) -> u32 {
    queue % workers.max(1)
}

/// Returns how many workers can be used: each needs a queue of every netdev.
pub(crate) fn usable(wanted: u32, queues: impl IntoIterator<Item = u32>) -> u32 {
    queues.into_iter().fold(wanted, u32::min).max(1)
}

/// Frames for a worker that serves so many sockets at the start.
pub(crate) fn frames(sockets: u32) -> u32 {
    (sockets + SPARE_SOCKETS) * FRAMES_PER_SOCKET + FRAMES_FOR_THE_WALK
}

/// Sockets of one worker over netdevs with these numbers of queues.
pub(crate) fn sockets(worker: u32, workers: u32, queues: impl IntoIterator<Item = u32>) -> u32 {
    let of = |count: u32| (0..count).filter(|queue| worker_of(*queue, workers) == worker).count();
    queues.into_iter().map(|count| of(count) as u32).sum()
}

/// Worker threads that the configuration asks for on a machine with so many cores.
pub(crate) fn wanted(workers: config::validated::Workers, cores: u32, reserve: u32) -> u32 {
    match workers {
        config::validated::Workers::Exactly(count) => count.max(1),
        config::validated::Workers::Auto => cores.saturating_sub(reserve).max(1),
    }
}

/// The core of each worker: the last of the allowed ones first, so that the first, where most
/// interrupts are, are kept free longest.
pub(crate) fn cores(workers: u32, allowed: &[usize]) -> Vec<usize> {
    let fallback = [0];
    let allowed = if allowed.is_empty() { &fallback } else { allowed };
    (0..workers as usize)
        .map(|worker| allowed[allowed.len() - 1 - worker % allowed.len()])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_queue_has_one_worker_and_every_worker_a_queue_of_every_port() {
        for queues in 1..=MAX_QUEUES {
            for wanted in 1..=MAX_QUEUES {
                let workers = usable(wanted, [queues, MAX_QUEUES]);
                assert_eq!(workers, wanted.min(queues));
                let mut served = vec![0; workers as usize];
                for queue in 0..queues {
                    served[worker_of(queue, workers) as usize] += 1;
                }
                assert_eq!(served.iter().sum::<u32>(), queues);
                let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
                assert!(*least >= 1 && most - least <= 1, "{queues} queues, {workers} workers");
                for (worker, served) in served.iter().enumerate() {
                    assert_eq!(sockets(worker as u32, workers, [queues]), *served);
                }
            }
        }
    }

    #[test]
    fn frames_are_enough_for_every_socket_to_own_all_it_may() {
        for queues in [1, 2, 63, 64] {
            for workers in [1, 2, 63, 64] {
                let workers = usable(workers, [queues, queues]);
                for worker in 0..workers {
                    let sockets = sockets(worker, workers, [queues, queues]);
                    assert!(frames(sockets) >= sockets * FRAMES_PER_SOCKET + FRAMES_FOR_THE_WALK);
                }
            }
        }
    }

    #[test]
    fn a_machine_with_one_core_or_no_ports_still_has_a_worker() {
        // AX-09
        use config::validated::Workers;
        assert_eq!(wanted(Workers::Auto, 1, 1), 1);
        assert_eq!(wanted(Workers::Auto, 2, 1), 1);
        assert_eq!(wanted(Workers::Auto, 8, 8), 1);
        assert_eq!(wanted(Workers::Auto, 64, 1), 63);
        assert_eq!(wanted(Workers::Exactly(2), 1, 1), 2);
        assert_eq!(usable(5, []), 5);
        assert_eq!(usable(5, [0]), 1);
    }

    #[test]
    fn cores_are_taken_from_the_last_and_shared_only_when_there_are_too_few() {
        assert_eq!(cores(1, &[0, 1]), [1]);
        assert_eq!(cores(3, &[0, 1]), [1, 0, 1]);
        assert_eq!(cores(2, &[2, 5, 7]), [7, 5]);
        assert_eq!(cores(2, &[]), [0, 0]);
    }
}
