//! Expanded keys with the proof that their instructions exist: the entrances to the generic code.

use super::{Key, Masking, mask, open, seal};
use crate::kernel::job::{Headers, Toggle};
use crate::kernel::lanes::{Lanes, Work};
use crate::kernel::stitch::Rounds;
use crate::kernel::{Fusion, Header as AnyHeader, Job, prefetch};
use crate::material::{HeaderKeyMaterial, KeyMaterial};
use crate::suite::Suite;

/// An expanded AEAD key, with a short class of `S` powers, room included.
pub(crate) struct Aead<L: Lanes, const S: usize> {
    l: L,
    key: GcmKey<S>,
}

/// The expanded key of a suite.
enum GcmKey<const S: usize> {
    Aes128(Box<Key<10, S>>),
    Aes256(Box<Key<14, S>>),
}

/// One expression for the key of either suite.
macro_rules! by_suite {
    ($any:expr, $key:ident => $work:expr) => {
        match $any {
            GcmKey::Aes128($key) => $work,
            GcmKey::Aes256($key) => $work,
        }
    };
}

impl<L: Lanes, const S: usize> Aead<L, S> {
    /// Prefetches the key's memory.
    #[inline]
    pub(crate) fn prefetch(&self) {
        by_suite!(&self.key, key => prefetch::prefetch(&**key));
    }

    /// `None` for a suite without AES.
    pub(crate) fn new(l: L, material: &KeyMaterial) -> Option<Self> {
        let key = match material.suite() {
            Suite::Aes128Gcm => GcmKey::Aes128(l.call(NewKey(material))),
            Suite::Aes256Gcm => GcmKey::Aes256(l.call(NewKey(material))),
            Suite::ChaCha20Poly1305 => return None,
        };
        Some(Self { l, key })
    }

    pub(crate) fn grow_if(&self, busy: impl FnOnce() -> bool) {
        by_suite!(&self.key, key => if !key.is_grown() && busy() {
            self.l.call(Grow(key));
        });
    }

    pub(crate) fn shrink(&mut self) {
        by_suite!(&mut self.key, key => key.shrink());
    }

    fn suite(&self) -> Suite {
        match &self.key {
            GcmKey::Aes128(_) => Suite::Aes128Gcm,
            GcmKey::Aes256(_) => Suite::Aes256Gcm,
        }
    }

    pub(crate) fn seal(&self, jobs: &mut [Job<'_>]) {
        by_suite!(&self.key, key => seal(self.l, key, jobs, Masking::None));
    }

    /// Returns `false`, with nothing done, if the header key is not one of AES of the same size.
    pub(crate) fn seal_fused(
        &self,
        jobs: &mut [Job<'_>],
        header: &AnyHeader,
        fusion: Fusion,
    ) -> bool {
        let Some(rounds) = header.round_keys(self.suite()) else {
            return false;
        };
        by_suite!(&self.key, key => seal(self.l, key, jobs, Masking::of(rounds, fusion)));
        true
    }

    pub(crate) fn open(&self, jobs: &mut [Job<'_>]) -> u32 {
        by_suite!(&self.key, key => open(self.l, key, jobs, Masking::None))
    }

    /// Returns `None`, with nothing done, if the header key is not one of AES of the same size.
    pub(crate) fn open_fused(
        &self,
        jobs: &mut [Job<'_>],
        header: &AnyHeader,
        fusion: Fusion,
    ) -> Option<u32> {
        let masking = Masking::of(header.round_keys(self.suite())?, fusion);
        Some(by_suite!(&self.key, key => open(self.l, key, jobs, masking)))
    }
}

/// An expanded header-protection key.
pub(crate) struct Header<L: Lanes> {
    l: L,
    suite: Suite,
    rounds: Box<Rounds>,
}

impl<L: Lanes> Header<L> {
    /// Prefetches the key's memory.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch::prefetch(&*self.rounds);
    }

    /// `None` for a suite without AES.
    pub(crate) fn new(l: L, material: &HeaderKeyMaterial) -> Option<Self> {
        let (suite, key) = (material.suite(), material.padded_key());
        let rounds = match suite {
            Suite::Aes128Gcm => l.call(NewHeaderKey::<10>(key)),
            Suite::Aes256Gcm => l.call(NewHeaderKey::<14>(key)),
            Suite::ChaCha20Poly1305 => return None,
        };
        Some(Self { l, suite, rounds })
    }

    /// `None` if they are of another suite.
    pub(crate) fn round_keys(&self, suite: Suite) -> Option<&Rounds> {
        (self.suite == suite).then_some(&self.rounds)
    }

    pub(crate) fn toggle(&self, headers: impl Headers, toggle: Toggle) {
        match self.suite {
            Suite::Aes128Gcm => mask::headers::<L, 10>(self.l, &self.rounds, headers, toggle),
            _ => mask::headers::<L, 14>(self.l, &self.rounds, headers, toggle),
        }
    }
}

struct NewKey<'m>(&'m KeyMaterial);

impl<L: Lanes, const R: usize, const S: usize> Work<L, Box<Key<R, S>>> for NewKey<'_> {
    #[inline(always)]
    fn run(self, l: L) -> Box<Key<R, S>> {
        Key::new(l, self.0)
    }
}

struct Grow<'k, const R: usize, const S: usize>(&'k Key<R, S>);

impl<L: Lanes, const R: usize, const S: usize> Work<L, ()> for Grow<'_, R, S> {
    #[inline(always)]
    fn run(self, l: L) {
        self.0.grow(l);
    }
}

struct NewHeaderKey<'m, const R: usize>(&'m [u8; 32]);

impl<L: Lanes, const R: usize> Work<L, Box<Rounds>> for NewHeaderKey<'_, R> {
    /// Filled in the box, so that no copy stays on the stack.
    #[inline(always)]
    fn run(self, l: L) -> Box<Rounds> {
        let mut rounds = Box::new(Rounds::EMPTY);
        rounds.expand::<L::Single, R>(l.single(), self.0);
        rounds
    }
}
