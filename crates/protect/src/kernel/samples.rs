//! Samples without packets, for callers that apply header protection themselves.

use super::job::{Headers, Toggle};
use crate::span::{MASK_LEN, SAMPLE_LEN};

/// Samples, and where their masks are stored. The cipher sees them as headers, so masks for the
/// caller and masks for packets come from the same code.
pub(super) struct Samples<'a> {
    pub(super) samples: &'a [[u8; SAMPLE_LEN]],
    pub(super) masks: &'a mut [[u8; MASK_LEN]],
}

impl Headers for Samples<'_> {
    #[inline(always)]
    fn count(&self) -> usize {
        self.samples.len().min(self.masks.len())
    }

    #[inline(always)]
    fn take_first(&mut self, n: usize) -> Option<Self> {
        if self.count() < n {
            return None;
        }
        Some(Self {
            samples: self.samples.split_off(..n)?,
            masks: self.masks.split_off_mut(..n)?,
        })
    }

    #[inline(always)]
    fn sample(&self, i: usize) -> &[u8; SAMPLE_LEN] {
        &self.samples[i]
    }

    #[inline(always)]
    fn toggle(&mut self, i: usize, mask: u64, _: Toggle) {
        let [m0, m1, m2, m3, m4, ..] = mask.to_le_bytes();
        self.masks[i] = [m0, m1, m2, m3, m4];
    }
}
