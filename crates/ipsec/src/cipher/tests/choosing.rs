//! The choice of a backend is a function of the measured times.

use std::iter;

use proptest::prelude::*;

use super::super::choice::{Choice, SIZES, Times, choose};
use super::*;

const MB: BackendKind = BackendKind::IpsecMb;
const RING: BackendKind = BackendKind::Ring;
const AWS: BackendKind = BackendKind::AwsLc;

fn of(table: &[(BackendKind, [u64; 3])]) -> Choice {
    let times: Vec<Times> = table.iter().map(|(kind, ns)| Times { kind: *kind, ns: *ns }).collect();
    choose(&times)
}

fn by_size(short: BackendKind, long: BackendKind, short_bytes: u32) -> Choice {
    Choice::BySize { short, long, short_bytes }
}

#[test]
fn only_one_backend_is_chosen_whatever_it_takes() {
    assert_eq!(of(&[(AWS, [u64::MAX; 3])]), Choice::One(AWS));
    assert_eq!(of(&[(AWS, [0; 3])]), Choice::One(AWS));
}

#[test]
fn later_backend_must_be_better_by_five_percent() {
    let later = |ns: u64| of(&[(MB, [10_500; 3]), (RING, [ns; 3])]);
    assert_eq!(later(10_500), Choice::One(MB));
    assert_eq!(later(10_001), Choice::One(MB));
    assert_eq!(later(10_000), Choice::One(RING));
}

/// AES-128-GCM, ns a packet: at 64 and 1420 bytes as measured on a Zen 3, where only ring has VAES;
/// at 512 bytes invented figures that lie between.
#[test]
fn processor_with_vaes_and_without_avx_512_takes_ring_for_long_texts() {
    let table = [(MB, [48, 160, 386]), (RING, [90, 155, 285]), (AWS, [168, 290, 475])];
    assert_eq!(of(&table), by_size(MB, RING, 512));
}

#[test]
fn lengths_are_cut_where_the_lines_cross() {
    let cut = |mb, ring| of(&[(MB, mb), (RING, ring)]);
    // Half-way between 512 and 1420; in the middle equal, so that the first keeps it.
    assert_eq!(cut([100, 200, 400], [200, 300, 300]), by_size(MB, RING, 960));
    assert_eq!(cut([100, 300, 400], [200, 300, 300]), by_size(MB, RING, 512));
    // Half-way between 64 and 512.
    assert_eq!(cut([100, 300, 400], [200, 200, 300]), by_size(MB, RING, 288));
    assert_eq!(cut([200, 200, 300], [100, 300, 400]), by_size(RING, MB, 288));
}

#[test]
fn backend_that_is_best_in_the_middle_only_is_not_taken() {
    assert_eq!(of(&[(MB, [100, 900, 300]), (RING, [200, 100, 400])]), Choice::One(MB));
    let table = [(MB, [100, 900, 900]), (RING, [900, 100, 900]), (AWS, [900, 800, 300])];
    assert!(matches!(of(&table), Choice::BySize { short: MB, long: AWS, .. }));
}

/// The backend that texts of a measured length go to.
fn chosen(choice: Choice, size: usize) -> BackendKind {
    match choice {
        Choice::One(kind) => kind,
        Choice::BySize { short, short_bytes, .. } if SIZES[size] <= short_bytes => short,
        Choice::BySize { long, .. } => long,
    }
}

/// Times near each other, near the edge of five percent, and any.
fn time() -> impl Strategy<Value = u64> {
    prop_oneof![
        90..=120_u64,
        9_990..=10_010_u64,
        10_490..=10_510_u64,
        1..=1_000_000_u64,
        Just(u64::MAX),
        any::<u64>(),
    ]
}

fn table() -> impl Strategy<Value = Vec<(BackendKind, [u64; 3])>> {
    prop::collection::vec(prop::array::uniform3(time()), 1..=3).prop_map(|rows| {
        let skipped = BackendKind::ALL.len() - rows.len();
        iter::zip(BackendKind::ALL[skipped..].iter().copied(), rows).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// At both ends nothing measured is better by five percent than what was chosen, and lengths
    /// are cut between those that were measured.
    #[test]
    fn nothing_is_much_better_than_the_choice(table in table()) {
        let choice = of(&table);
        let ns = |kind, size: usize| table.iter().find(|row| row.0 == kind).map(|row| row.1[size]);
        for size in [0, 2] {
            let best = table.iter().map(|row| row.1[size]).min().unwrap();
            let taken = ns(chosen(choice, size), size).unwrap();
            prop_assert!(u128::from(taken) * 100 <= u128::from(best) * 105, "{choice:?}");
        }
        if let Choice::BySize { short, long, short_bytes } = choice {
            prop_assert_ne!(short, long);
            prop_assert!((SIZES[0]..=SIZES[2]).contains(&short_bytes), "{short_bytes}");
        }
    }

    /// Another clock rate changes nothing.
    #[test]
    fn choice_does_not_depend_on_the_clock(
        rows in prop::collection::vec(prop::array::uniform3(1..=1_000_000_u64), 1..=3),
        times in 1..=1000_u64,
    ) {
        let table = |by: u64| {
            let rows = rows.iter().map(move |row| row.map(|ns| ns * by));
            iter::zip(BackendKind::ALL.iter().copied(), rows).collect::<Vec<_>>()
        };
        prop_assert_eq!(of(&table(1)), of(&table(times)));
    }

    /// Noise of less than two percent either way does not turn equal backends about.
    #[test]
    fn noise_does_not_turn_equal_backends_about(
        base in prop::array::uniform3(10_000..=1_000_000_u64),
        noise in prop::array::uniform9(980..=1020_u64),
    ) {
        let row = |row: usize| [0, 1, 2].map(|size| base[size] * noise[3 * row + size] / 1000);
        prop_assert_eq!(of(&[(MB, row(0)), (RING, row(1)), (AWS, row(2))]), Choice::One(MB));
    }
}
