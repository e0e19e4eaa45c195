//! Measures the cost of a commit to the replay window, in nanoseconds a number: alone and as one of
//! many, in order and overtaken, and with two threads that commit to one window at once.
//!
//! `cargo run --release -p ipsec --example replay_cost`

use std::hint::black_box;
use std::time::Instant;

use ipsec::{ReplayWindow, SequenceNumbers};

const NUMBERS: usize = 1 << 20;
const ROUNDS: usize = 15;
const BATCH: usize = 32;

fn main() {
    println!("ns a number: median, and lowest to highest of {ROUNDS} rounds of {NUMBERS} numbers");
    for size in [64, 1024, 4096] {
        for (order, numbers) in &[("in order", in_order()), ("overtaken", overtaken(size))] {
            let measure = |name: &str, commit: &dyn Fn(&ReplayWindow, &[u64])| {
                let rounds = (0..ROUNDS).map(|_| {
                    let window = window(size);
                    let began = Instant::now();
                    commit(&window, numbers);
                    began.elapsed().as_nanos() as f64 / NUMBERS as f64
                });
                report(size, order, name, rounds.collect());
            };
            measure("check", &|window, numbers| {
                for number in numbers {
                    let _ = black_box(window.check(*number));
                }
            });
            measure("commit", &|window, numbers| {
                for number in numbers {
                    let _ = black_box(window.commit(*number));
                }
            });
            measure("commit_shared", &shared);
            measure("commit_batch_shared", &batches);
            measure("commit_shared, 2 threads", &|window, numbers| {
                two(numbers, &|numbers| shared(window, numbers));
            });
            measure("commit_batch_shared, 2 threads", &|window, numbers| {
                two(numbers, &|numbers| batches(window, numbers));
            });
        }
    }
}

fn window(size: u32) -> ReplayWindow {
    ReplayWindow::new(size, SequenceNumbers::Extended).expect("a size it offers")
}

fn shared(window: &ReplayWindow, numbers: &[u64]) {
    for number in numbers {
        let _ = black_box(window.commit_shared(*number));
    }
}

fn batches(window: &ReplayWindow, numbers: &[u64]) {
    let mut answers = Vec::with_capacity(BATCH);
    for batch in numbers.chunks(BATCH) {
        window.commit_batch_shared(batch, &mut answers);
        black_box(&answers);
    }
}

/// Two threads take the batches in turn, as workers do that packets are spread over.
fn two(numbers: &[u64], commit: &(dyn Fn(&[u64]) + Sync)) {
    std::thread::scope(|scope| {
        for worker in 0..2 {
            scope.spawn(move || numbers.chunks(BATCH).skip(worker).step_by(2).for_each(commit));
        }
    });
}

fn in_order() -> Vec<u64> {
    (1..=NUMBERS as u64).collect()
}

/// Each number less than half a window from where it belongs, so that one worker accepts all.
fn overtaken(size: u32) -> Vec<u64> {
    let mut seed = 1u64;
    let mut numbers = in_order();
    for block in numbers.chunks_mut(size as usize / 2) {
        for place in (1..block.len()).rev() {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            block.swap(place, (seed >> 33) as usize % (place + 1));
        }
    }
    numbers
}

fn report(size: u32, order: &str, name: &str, mut rounds: Vec<f64>) {
    rounds.sort_by(f64::total_cmp);
    let (low, middle, high) = (rounds[0], rounds[ROUNDS / 2], rounds[ROUNDS - 1]);
    println!("window {size:4}  {order:9}  {name:31} {middle:6.2}  ({low:.2} to {high:.2})");
}
