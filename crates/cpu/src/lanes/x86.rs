//! The two forms of x86-64.

use core::arch::x86_64::*;

use super::{Kernel, Lanes};

/// Proof that the processor has AVX-512 F, BW, DQ and VL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Avx512(());

impl Avx512 {
    /// Asks the processor.
    pub fn detect() -> Option<Avx512> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("popcnt");
        has.then_some(Avx512(()))
    }

    /// Runs a kernel compiled for these instructions.
    #[inline]
    pub(super) fn enter<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,popcnt")]
        fn inside<K: Kernel>(lanes: Avx512, kernel: K) -> K::Output {
            kernel.run(lanes)
        }
        // SAFETY: an Avx512 is made only by detect, which found these features. Threat: an
        // instruction that the processor does not have is a SIGILL.
        unsafe { inside(self, kernel) }
    }
}

/// Sixteen numbers as one vector.
#[inline(always)]
fn load(_proof: Avx512, numbers: &[u32; 16]) -> __m512i {
    // SAFETY: the array is 64 bytes, any alignment will do, and the proof says that the processor
    // has AVX-512 F. Threat: a read behind the array; else as in `enter`.
    unsafe { _mm512_loadu_si512(numbers.as_ptr().cast()) }
}

impl Lanes for Avx512 {
    type Mask = __mmask16;

    #[inline(always)]
    fn at_least(self, value: u32, bounds: &[u32; 16]) -> Self::Mask {
        let bounds = load(self, bounds);
        // SAFETY: self is the proof that the processor has AVX-512 F. Threat: as in `enter`.
        unsafe { _mm512_cmple_epu32_mask(bounds, _mm512_set1_epi32(value as i32)) }
    }

    #[inline(always)]
    fn within(self, value: u32, lo: &[u32; 16], length: &[u32; 16]) -> Self::Mask {
        let (lo, length) = (load(self, lo), load(self, length));
        // SAFETY: as above. Threat: as in `enter`.
        unsafe {
            let above = _mm512_sub_epi32(_mm512_set1_epi32(value as i32), lo);
            _mm512_cmple_epu32_mask(above, length)
        }
    }

    #[inline(always)]
    fn halves_within(self, value: u32, lo: &[u32; 16], length: &[u32; 16]) -> Self::Mask {
        let (lo, length) = (load(self, lo), load(self, length));
        // SAFETY: self is the proof that the processor has AVX-512 F and BW. Threat: as in `enter`.
        unsafe {
            let above = _mm512_sub_epi16(_mm512_set1_epi32(value as i32), lo);
            // 0 in each half that is not above the range, so 0 in all if both are in theirs.
            let beyond = _mm512_subs_epu16(above, length);
            _mm512_testn_epi32_mask(beyond, beyond)
        }
    }

    #[inline(always)]
    fn agrees(self, value: u32, rules: &[u32; 16]) -> Self::Mask {
        let rules = load(self, rules);
        // SAFETY: self is the proof that the processor has AVX-512 F. Threat: as in `enter`.
        unsafe {
            let differs = _mm512_xor_si512(_mm512_set1_epi32(value as i32), rules);
            _mm512_testn_epi32_mask(differs, _mm512_srli_epi32::<16>(rules))
        }
    }

    #[inline(always)]
    fn both(self, one: Self::Mask, other: Self::Mask) -> Self::Mask {
        one & other
    }

    #[inline(always)]
    fn bits(self, mask: Self::Mask) -> u16 {
        mask
    }

    #[inline(always)]
    fn count_at_most(self, value: u128, high: &[u64; 8], low: &[u64; 8]) -> usize {
        // SAFETY: the arrays are 64 bytes, any alignment will do, and self is the proof that the
        // processor has AVX-512 F. Threat: a read behind an array; else as in `enter`.
        unsafe {
            let high = _mm512_loadu_si512(high.as_ptr().cast());
            let low = _mm512_loadu_si512(low.as_ptr().cast());
            let value_high = _mm512_set1_epi64((value >> 64) as i64);
            let value_low = _mm512_set1_epi64(value as i64);
            let less = _mm512_cmplt_epu64_mask(high, value_high);
            let equal = _mm512_cmpeq_epu64_mask(high, value_high);
            let lower = _mm512_mask_cmple_epu64_mask(equal, low, value_low);
            (less | lower).count_ones() as usize
        }
    }
}

/// Proof that the processor has AVX2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// Asks the processor.
    pub fn detect() -> Option<Avx2> {
        let has = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("popcnt");
        has.then_some(Avx2(()))
    }

    /// Runs a kernel compiled for these instructions.
    #[inline]
    pub(super) fn enter<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
        fn inside<K: Kernel>(lanes: Avx2, kernel: K) -> K::Output {
            kernel.run(lanes)
        }
        // SAFETY: an Avx2 is made only by detect, which found these features. Threat: an
        // instruction that the processor does not have is a SIGILL.
        unsafe { inside(self, kernel) }
    }

    /// Eight numbers as one vector: the lower half of the lanes, or the upper.
    #[inline(always)]
    fn load<const HALF: usize>(self, numbers: &[u32; 16]) -> __m256i {
        let half = &numbers.as_chunks::<8>().0[HALF];
        // SAFETY: the half is 32 bytes, any alignment will do, and self is the proof that the
        // processor has AVX2. Threat: a read behind the array; else as in `enter`.
        unsafe { _mm256_loadu_si256(half.as_ptr().cast()) }
    }

    #[inline(always)]
    fn half_at_least<const HALF: usize>(self, value: u32, bounds: &[u32; 16]) -> __m256i {
        let bounds = self.load::<HALF>(bounds);
        // SAFETY: self is the proof that the processor has AVX2. Threat: as in `enter`.
        unsafe {
            let value = _mm256_set1_epi32(value as i32);
            _mm256_cmpeq_epi32(_mm256_max_epu32(bounds, value), value)
        }
    }

    #[inline(always)]
    fn half_within<const HALF: usize>(
        self,
        value: u32,
        lo: &[u32; 16],
        length: &[u32; 16],
    ) -> __m256i {
        let (lo, length) = (self.load::<HALF>(lo), self.load::<HALF>(length));
        // SAFETY: as above. Threat: as in `enter`.
        unsafe {
            let above = _mm256_sub_epi32(_mm256_set1_epi32(value as i32), lo);
            _mm256_cmpeq_epi32(_mm256_min_epu32(above, length), above)
        }
    }

    #[inline(always)]
    fn half_halves_within<const HALF: usize>(
        self,
        value: u32,
        lo: &[u32; 16],
        length: &[u32; 16],
    ) -> __m256i {
        let (lo, length) = (self.load::<HALF>(lo), self.load::<HALF>(length));
        // SAFETY: as above. Threat: as in `enter`.
        unsafe {
            let above = _mm256_sub_epi16(_mm256_set1_epi32(value as i32), lo);
            let beyond = _mm256_subs_epu16(above, length);
            _mm256_cmpeq_epi32(beyond, _mm256_setzero_si256())
        }
    }

    #[inline(always)]
    fn half_agrees<const HALF: usize>(self, value: u32, rules: &[u32; 16]) -> __m256i {
        let rules = self.load::<HALF>(rules);
        // SAFETY: as above. Threat: as in `enter`.
        unsafe {
            let differs = _mm256_xor_si256(_mm256_set1_epi32(value as i32), rules);
            let asked = _mm256_and_si256(differs, _mm256_srli_epi32::<16>(rules));
            _mm256_cmpeq_epi32(asked, _mm256_setzero_si256())
        }
    }
}

impl Lanes for Avx2 {
    type Mask = [__m256i; 2];

    #[inline(always)]
    fn at_least(self, value: u32, bounds: &[u32; 16]) -> Self::Mask {
        [self.half_at_least::<0>(value, bounds), self.half_at_least::<1>(value, bounds)]
    }

    #[inline(always)]
    fn within(self, value: u32, lo: &[u32; 16], length: &[u32; 16]) -> Self::Mask {
        [self.half_within::<0>(value, lo, length), self.half_within::<1>(value, lo, length)]
    }

    #[inline(always)]
    fn halves_within(self, value: u32, lo: &[u32; 16], length: &[u32; 16]) -> Self::Mask {
        let low = self.half_halves_within::<0>(value, lo, length);
        [low, self.half_halves_within::<1>(value, lo, length)]
    }

    #[inline(always)]
    fn agrees(self, value: u32, rules: &[u32; 16]) -> Self::Mask {
        [self.half_agrees::<0>(value, rules), self.half_agrees::<1>(value, rules)]
    }

    #[inline(always)]
    fn both(self, one: Self::Mask, other: Self::Mask) -> Self::Mask {
        // SAFETY: as above. Threat: as in `enter`.
        unsafe { [_mm256_and_si256(one[0], other[0]), _mm256_and_si256(one[1], other[1])] }
    }

    #[inline(always)]
    fn bits(self, mask: Self::Mask) -> u16 {
        // SAFETY: as above. Threat: as in `enter`.
        let (low, high) = unsafe {
            let bits = (_mm256_castsi256_ps(mask[0]), _mm256_castsi256_ps(mask[1]));
            (_mm256_movemask_ps(bits.0), _mm256_movemask_ps(bits.1))
        };
        (low | high << 8) as u16
    }

    #[inline(always)]
    fn count_at_most(self, value: u128, high: &[u64; 8], low: &[u64; 8]) -> usize {
        let ((low_high, high_high), (low_low, high_low)) = (high.split_at(4), low.split_at(4));
        8 - self.count_above(value, low_high, low_low)
            - self.count_above(value, high_high, high_low)
    }
}

impl Avx2 {
    /// Counts those of four 128-bit numbers that are above `value`.
    #[inline(always)]
    fn count_above(self, value: u128, high: &[u64], low: &[u64]) -> usize {
        let (Some(high), Some(low)) = (high.first_chunk::<4>(), low.first_chunk::<4>()) else {
            return 0;
        };
        // SAFETY: four numbers are 32 bytes, any alignment will do, and self is the proof that the
        // processor has AVX2. Threat: a read behind the numbers; else as in `enter`.
        unsafe {
            // AVX2 compares signed numbers only: both sides are moved down by 2^63.
            let down = _mm256_set1_epi64x(i64::MIN);
            let high = _mm256_xor_si256(_mm256_loadu_si256(high.as_ptr().cast()), down);
            let low = _mm256_xor_si256(_mm256_loadu_si256(low.as_ptr().cast()), down);
            let value_high = _mm256_set1_epi64x((value >> 64) as i64 ^ i64::MIN);
            let value_low = _mm256_set1_epi64x(value as i64 ^ i64::MIN);
            let equal = _mm256_cmpeq_epi64(high, value_high);
            let above = _mm256_or_si256(
                _mm256_cmpgt_epi64(high, value_high),
                _mm256_and_si256(equal, _mm256_cmpgt_epi64(low, value_low)),
            );
            _mm256_movemask_pd(_mm256_castsi256_pd(above)).count_ones() as usize
        }
    }
}
