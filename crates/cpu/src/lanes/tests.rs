//! Every form against arithmetic on wider numbers.

use super::*;
use proptest::prelude::*;

/// One of each operation, as bits.
struct All<'a> {
    value: u32,
    one: &'a [u32; 16],
    other: &'a [u32; 16],
}

impl Kernel for All<'_> {
    type Output = [u16; 5];

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> [u16; 5] {
        let All { value, one, other } = self;
        let at_least = lanes.at_least(value, one);
        let within = lanes.within(value, one, other);
        [
            lanes.bits(at_least),
            lanes.bits(within),
            lanes.bits(lanes.halves_within(value, one, other)),
            lanes.bits(lanes.agrees(value & 0xffff, one)),
            lanes.bits(lanes.both(at_least, within)),
        ]
    }
}

/// Computes the results of [`All`] from the definitions.
fn expected(value: u32, one: &[u32; 16], other: &[u32; 16]) -> [u16; 5] {
    let bits = |truth: &dyn Fn(usize) -> bool| {
        (0..16).filter(|&i| truth(i)).fold(0u16, |bits, i| bits | 1 << i)
    };
    let within =
        |value: u64, lo: u64, length: u64, modulus: u64| (value + modulus - lo) % modulus <= length;
    let all = |i: usize| within(value.into(), one[i].into(), other[i].into(), 1 << 32);
    let half = |i: usize, shift: u32| {
        let half = |number: u32| u64::from(number >> shift & 0xffff);
        within(half(value), half(one[i]), half(other[i]), 1 << 16)
    };
    let agrees = |i: usize| {
        (0..16).all(|bit| one[i] >> (16 + bit) & 1 == 0 || one[i] >> bit & 1 == value >> bit & 1)
    };
    [
        bits(&|i| one[i] <= value),
        bits(&all),
        bits(&|i| half(i, 0) && half(i, 16)),
        bits(&agrees),
        bits(&|i| one[i] <= value && all(i)),
    ]
}

/// Numbers that lie at the edges as often as not.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![
        any::<u32>(),
        prop::sample::select(vec![0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX - 1, u32::MAX]),
        prop::sample::select(vec![0xffff, 0x1_0000, 0xffff_0000, 0x8000_7fff, 0x8000]),
        0u32..8,
    ]
}

struct Count(u128, [u64; 8], [u64; 8]);

impl Kernel for Count {
    type Output = usize;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> usize {
        lanes.count_at_most(self.0, &self.1, &self.2)
    }
}

proptest! {
    #[test]
    fn every_form_compares_by_the_definitions(
        value in number(),
        near in prop::array::uniform16(0u32..3),
        mut one in prop::array::uniform16(number()),
        other in prop::array::uniform16(number()),
    ) {
        // Half of the lanes begin at the value or beside it.
        for (lane, near) in one.iter_mut().zip(near).step_by(2) {
            *lane = value.wrapping_add(near).wrapping_sub(1);
        }
        for form in Form::all() {
            let all = form.run(All { value, one: &one, other: &other });
            prop_assert_eq!(all, expected(value, &one, &other), "{}", form.name());
        }
    }

    #[test]
    fn every_form_counts_wide_numbers_alike(
        value in (number(), number(), number(), number()),
        near in prop::array::uniform8((0u64..3, 0u64..3)),
        far in prop::array::uniform8((any::<bool>(), any::<u64>())),
    ) {
        let (a, b, c, d) = value;
        let high = u64::from(a) << 32 | u64::from(b);
        let low = u64::from(c) << 32 | u64::from(d);
        let beside = |centre: u64, step: u64| centre.wrapping_add(step).wrapping_sub(1);
        let highs = std::array::from_fn(|i| match far[i] {
            (true, anywhere) => anywhere,
            (false, _) => beside(high, near[i].0),
        });
        let lows = std::array::from_fn(|i| beside(low, near[i].1));
        let joined = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        let value = joined(high, low);
        let expected = (0..8).filter(|&i| joined(highs[i], lows[i]) <= value).count();
        for form in Form::all() {
            prop_assert_eq!(form.run(Count(value, highs, lows)), expected, "{}", form.name());
        }
    }
}

#[test]
fn the_portable_form_is_always_there_and_comes_last() {
    let forms: Vec<Form> = Form::all().collect();
    assert_eq!(forms.last(), Some(&Form::Portable));
    assert_eq!(forms.first(), Some(&Form::best()));
}
