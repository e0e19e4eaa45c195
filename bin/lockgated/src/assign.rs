//! Assigns queues to workers, workers to cores, and frames to workers.
//!
//! Every receive queue has exactly one worker, and every worker has a queue of every port to
//! transmit by: no more workers are used than the port with the fewest queues has.
//!
//! All workers' frames have one size, so that a packet fits wherever it is handed over to. The
//! kernel fills the frames of a ring one after the other, so all that are in rings pass through
//! the caches again and again: [`quota`] bounds them.

use xsk::FrameSize;

/// Bytes of the frames in a worker's fill and transmit rings at most, unless that left a ring
/// fewer than [`LEAST_QUOTA`]: as much as stays near in a last cache that others use too.
const IN_FLIGHT_BYTES: u32 = 8 << 20;
/// Frames in a ring at most, and at least: a worker that turns to other ports and back meanwhile
/// finds no more packets than these.
const MOST_QUOTA: u32 = 1024;
const LEAST_QUOTA: u32 = 256;
/// Fill ring and transmit ring of a socket.
const RINGS: u32 = 2;
/// Frames of a worker that no socket owns: batches under way, what waits for neighbours, for SAs or
/// for first fragments, fragments.
const FRAMES_FOR_THE_WALK: u32 = 4096;
// Beside all that may wait, two batches are under way.
const _: () = assert!(
    dataplane::MAX_WAITING_FRAMES + 2 * wire::BATCH <= FRAMES_FOR_THE_WALK as usize,
    "packets that wait must not take all frames of a worker"
);
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

/// Returns the size of frames that holds packets of so large an MTU; the larger one if none does.
pub(crate) fn frame_size(mtu: u32) -> FrameSize {
    match mtu <= dataplane::largest_mtu(FrameSize::Half.bytes()) {
        true => FrameSize::Half,
        false => FrameSize::Page,
    }
}

// Where the MTU of a port is judged, the same sizes are known.
const _: () = assert!(FrameSize::Half.bytes() == dataplane::FRAME_BYTES[0]);
const _: () = assert!(FrameSize::Page.bytes() == dataplane::FRAME_BYTES[1]);

/// Returns the most frames in each fill ring and each transmit ring of a worker with `sockets`
/// sockets at the start: a power of two. Sockets that come later get the same number.
pub(crate) fn quota(sockets: u32, size: FrameSize) -> u32 {
    let frames = IN_FLIGHT_BYTES / size.bytes() as u32 / RINGS / sockets.max(1);
    let power = frames.checked_ilog2().map_or(0, |bits| 1 << bits);
    power.clamp(LEAST_QUOTA, MOST_QUOTA)
}

/// Returns the frames of a worker with `sockets` sockets at the start and `quota` frames in each
/// ring.
pub(crate) fn frames(sockets: u32, quota: u32) -> u32 {
    (sockets + SPARE_SOCKETS) * RINGS * quota + FRAMES_FOR_THE_WALK
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
    use proptest::prelude::*;

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
                    for size in [FrameSize::Half, FrameSize::Page] {
                        let quota = quota(sockets, size);
                        let owned = sockets * 2 * quota;
                        assert!(frames(sockets, quota) >= owned + FRAMES_FOR_THE_WALK);
                    }
                }
            }
        }
    }

    #[test]
    fn no_more_than_8_mib_are_in_rings_unless_there_are_very_many() {
        let expected = [
            (FrameSize::Half, [(0, 1024), (1, 1024), (2, 1024), (3, 512), (4, 512), (5, 256)]),
            (FrameSize::Page, [(0, 1024), (1, 1024), (2, 512), (3, 256), (4, 256), (5, 256)]),
        ];
        for (size, quotas) in expected {
            for (sockets, expected) in quotas {
                assert_eq!(quota(sockets, size), expected, "{sockets} sockets, {size:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_quota_is_a_power_of_two_that_keeps_the_bound_or_the_least(sockets in 0..=4096_u32) {
            for size in [FrameSize::Half, FrameSize::Page] {
                let quota = quota(sockets, size);
                prop_assert!(quota.is_power_of_two());
                prop_assert!((LEAST_QUOTA..=MOST_QUOTA).contains(&quota));
                let frames = |quota: u32| 2 * usize::try_from(sockets * quota).unwrap();
                let is_within =
                    |quota: u32| frames(quota) * size.bytes() <= IN_FLIGHT_BYTES as usize;
                prop_assert!(quota == LEAST_QUOTA || is_within(quota));
                prop_assert!(quota == MOST_QUOTA || !is_within(2 * quota));
            }
        }

        #[test]
        fn the_smallest_frames_that_hold_the_mtu_are_chosen(mtu in 68_u32..=65535) {
            let size = frame_size(mtu);
            let holds = |size: FrameSize| mtu <= dataplane::largest_mtu(size.bytes());
            prop_assert_eq!(size == FrameSize::Half, holds(FrameSize::Half));
            prop_assert!(holds(size) || size == FrameSize::Page);
        }
    }

    #[test]
    fn frames_are_chosen_at_the_edge() {
        for (mtu, size) in [(68, FrameSize::Half), (1500, FrameSize::Half)] {
            assert_eq!(frame_size(mtu), size);
        }
        let edge = dataplane::largest_mtu(2048);
        assert_eq!(frame_size(edge), FrameSize::Half);
        assert_eq!(frame_size(edge + 1), FrameSize::Page);
        assert_eq!(frame_size(65535), FrameSize::Page);
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
    fn of_24_cores_16_work_and_the_8_reserved_ones_have_no_worker() {
        // AX-08
        let (all, reserved) = (24, 8);
        let workers = wanted(config::validated::Workers::Auto, all as u32, reserved);
        assert_eq!(workers, 16);
        let allowed: Vec<usize> = (0..all).collect();
        let mut taken = cores(workers, &allowed);
        taken.sort_unstable();
        let free_of_workers = reserved as usize;
        assert_eq!(taken, (free_of_workers..all).collect::<Vec<_>>(), "one worker a core");
    }

    #[test]
    fn cores_are_taken_from_the_last_and_shared_only_when_there_are_too_few() {
        assert_eq!(cores(1, &[0, 1]), [1]);
        assert_eq!(cores(3, &[0, 1]), [1, 0, 1]);
        assert_eq!(cores(2, &[2, 5, 7]), [7, 5]);
        assert_eq!(cores(2, &[]), [0, 0]);
    }
}
