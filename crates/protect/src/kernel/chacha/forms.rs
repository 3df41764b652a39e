//! The forms in which packets are processed: by themselves, two by two, or sharing registers.

use super::block::Rows;
use super::{HeaderKey, Key, alone};
use crate::kernel::Job;

/// A CPU's forms: these, unless it has better ones.
pub(in crate::kernel) trait Forms: Rows {
    /// Seals a packet by itself, and applies header protection if there is a key for it.
    #[inline(always)]
    fn seal_alone<const MIDDLE: usize, const G: usize, const LANES: usize>(
        self,
        key: &Key,
        header: Option<&HeaderKey>,
        job: &mut Job<'_>,
    ) {
        alone::seal::<Self, MIDDLE, G, LANES>(self, key, header, job);
    }

    /// Opens a packet by itself, and returns whether its tag is right.
    #[inline(always)]
    fn open_alone<const MIDDLE: usize, const G: usize, const LANES: usize>(
        self,
        key: &Key,
        job: &mut Job<'_>,
    ) -> bool {
        alone::open::<Self, MIDDLE, G, LANES>(self, key, job)
    }

    /// How many of a call's first jobs are processed two by two, on a CPU that has a way to.
    #[inline(always)]
    fn twins(_: &[Job<'_>]) -> usize {
        0
    }

    /// Seals jobs two by two.
    #[inline(always)]
    fn seal_twins(self, _: &Key, _: &mut [Job<'_>]) {
        unreachable!("no jobs are processed two by two")
    }

    /// Opens jobs two by two; bit `i` of the result says that job `i` has the right tag.
    #[inline(always)]
    fn open_twins(self, _: &Key, _: &mut [Job<'_>]) -> u32 {
        unreachable!("no jobs are processed two by two")
    }
}
