//! Sixteen numbers compared at once, in three forms: AVX-512, AVX2, and plain Rust for every
//! processor.
//!
//! A [`Form`] can be had only of what the processor has, so that whoever holds one may use it.
//! Code that compares is a [`Kernel`]: written once over [`Lanes`], compiled for each form.
//! [`Form::run`] picks the form once for a whole batch; below it everything is inlined.
//!
//! Not crate `wide`: it takes the form of the processor that it is compiled for, not of the one
//! that it runs on. Not `pulp`: its vectors are as wide as the processor's, and the tables here
//! have sixteen columns on every processor.
//!
//! Lane *i* of an array is element *i*; bit *i* of a mask is lane *i*.

/// Code over lanes. Mark `run` and everything below it that takes lanes `#[inline(always)]`: only
/// what is inlined is compiled for the form.
pub trait Kernel {
    /// The kernel's result.
    type Output;

    /// The code.
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

/// Comparisons of one value with sixteen lanes. All numbers are unsigned.
pub trait Lanes: Copy {
    /// One truth value a lane.
    type Mask: Copy;

    /// Lanes whose bound is at most `value`.
    fn at_least(self, value: u32, bounds: &[u32; 16]) -> Self::Mask;

    /// Lanes with `value − lo ≤ length`, wrapping: those whose range `lo ..= lo + length` holds
    /// the value.
    fn within(self, value: u32, lo: &[u32; 16], length: &[u32; 16]) -> Self::Mask;

    /// Lanes in which [`within`](Self::within) holds for both 16-bit halves, each by itself.
    fn halves_within(self, value: u32, lo: &[u32; 16], length: &[u32; 16]) -> Self::Mask;

    /// Lanes whose low half agrees with the low half of `value` in the bits that their high half
    /// has set. The high half of `value` is 0.
    fn agrees(self, value: u32, rules: &[u32; 16]) -> Self::Mask;

    /// Lanes that are in both.
    fn both(self, one: Self::Mask, other: Self::Mask) -> Self::Mask;

    /// The mask as bits.
    fn bits(self, mask: Self::Mask) -> u16;

    /// Counts those of eight 128-bit numbers, given as their high and low halves, that are at most
    /// `value`.
    fn count_at_most(self, value: u128, high: &[u64; 8], low: &[u64; 8]) -> usize;
}

/// A form that this processor has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// 512-bit vectors: AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// 256-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// Plain Rust, for every processor.
    Portable,
}

impl Form {
    /// The widest form.
    pub fn best() -> Form {
        Form::all().next().unwrap_or(Form::Portable)
    }

    /// The forms that this processor has, the widest first.
    pub fn all() -> impl Iterator<Item = Form> {
        #[cfg(target_arch = "x86_64")]
        let wide = [Avx512::detect().map(Form::Avx512), Avx2::detect().map(Form::Avx2)];
        #[cfg(not(target_arch = "x86_64"))]
        let wide: [Option<Form>; 0] = [];
        wide.into_iter().flatten().chain([Form::Portable])
    }

    /// Returns the form's name for people.
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Form::Avx512(_) => "AVX-512",
            #[cfg(target_arch = "x86_64")]
            Form::Avx2(_) => "AVX2",
            Form::Portable => "portable",
        }
    }

    /// Runs a kernel compiled for this form.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Form::Avx512(lanes) => lanes.enter(kernel),
            #[cfg(target_arch = "x86_64")]
            Form::Avx2(lanes) => lanes.enter(kernel),
            Form::Portable => kernel.run(Portable),
        }
    }
}

/// Lanes in plain Rust.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Portable;

/// All ones where `truth`, else 0: what vector units make of a comparison.
#[inline(always)]
fn ones(truth: bool) -> u32 {
    u32::from(truth).wrapping_neg()
}

impl Lanes for Portable {
    type Mask = [u32; 16];

    #[inline(always)]
    fn at_least(self, value: u32, bounds: &[u32; 16]) -> Self::Mask {
        std::array::from_fn(|i| ones(bounds[i] <= value))
    }

    #[inline(always)]
    fn within(self, value: u32, lo: &[u32; 16], length: &[u32; 16]) -> Self::Mask {
        std::array::from_fn(|i| ones(value.wrapping_sub(lo[i]) <= length[i]))
    }

    #[inline(always)]
    fn halves_within(self, value: u32, lo: &[u32; 16], length: &[u32; 16]) -> Self::Mask {
        let half_within = |value: u32, lo: u32, length: u32| {
            (value as u16).wrapping_sub(lo as u16) <= length as u16
        };
        std::array::from_fn(|i| {
            ones(half_within(value, lo[i], length[i]))
                & ones(half_within(value >> 16, lo[i] >> 16, length[i] >> 16))
        })
    }

    #[inline(always)]
    fn agrees(self, value: u32, rules: &[u32; 16]) -> Self::Mask {
        std::array::from_fn(|i| ones((value ^ rules[i]) & (rules[i] >> 16) == 0))
    }

    #[inline(always)]
    fn both(self, one: Self::Mask, other: Self::Mask) -> Self::Mask {
        std::array::from_fn(|i| one[i] & other[i])
    }

    #[inline(always)]
    fn bits(self, mask: Self::Mask) -> u16 {
        (0..16).fold(0, |bits, i| bits | ((mask[i] & 1) as u16) << i)
    }

    #[inline(always)]
    fn count_at_most(self, value: u128, high: &[u64; 8], low: &[u64; 8]) -> usize {
        let at_most = |i: usize| (u128::from(high[i]) << 64 | u128::from(low[i])) <= value;
        (0..8).map(|i| usize::from(at_most(i))).sum()
    }
}

#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

#[cfg(test)]
mod tests;
