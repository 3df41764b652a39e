//! Where the generic AES-GCM is compiled, once for each register width.
//!
//! Everything generic is inlined into the functions with a `target_feature` here: that is where the compiler learns
//! which instructions it may use. They are called with a token in hand, and tokens come from detection only.

/// Defines a module with the keys of a token, with so many powers of H in the short class, for the features that the token
/// proves.
macro_rules! define_kernel {
    ($module:ident, $token:ty, $short:expr, $features:literal) => {
        pub(crate) mod $module {
            use crate::kernel::gcm::{self, Masking, ROOM};
            use crate::kernel::job::{Masked, Toggle};
            use crate::kernel::lanes::Lanes;
            use crate::kernel::stitch::Rounds;
            use crate::kernel::{Fusion, Header as AnyHeader, Job};
            use crate::material::{HeaderKeyMaterial, KeyMaterial};
            use crate::suite::Suite;

            type Token = $token;
            type Key<const R: usize> = gcm::Key<R, { $short + ROOM }>;

            /// The expanded key of a suite.
            enum GcmKey {
                Aes128(Box<Key<10>>),
                Aes256(Box<Key<14>>),
            }

            /// An expanded AEAD key, with the proof that its instructions exist.
            pub(crate) struct Aead {
                token: Token,
                key: GcmKey,
            }

            impl Aead {
                /// `None` for a suite without AES.
                pub(crate) fn new(token: Token, material: &KeyMaterial) -> Option<Self> {
                    // SAFETY: the token proves the entry points' features.
                    let key = unsafe {
                        match material.suite() {
                            Suite::Aes128Gcm => GcmKey::Aes128(new(token, material)),
                            Suite::Aes256Gcm => GcmKey::Aes256(new(token, material)),
                            Suite::ChaCha20Poly1305 => return None,
                        }
                    };
                    Some(Self { token, key })
                }

                pub(crate) fn grow_if(&mut self, busy: impl FnOnce() -> bool) {
                    let grown = match &self.key {
                        GcmKey::Aes128(key) => key.is_grown(),
                        GcmKey::Aes256(key) => key.is_grown(),
                    };
                    if grown || !busy() {
                        return;
                    }
                    // SAFETY: the token proves the entry points' features.
                    unsafe {
                        match &mut self.key {
                            GcmKey::Aes128(key) => grow(self.token, key),
                            GcmKey::Aes256(key) => grow(self.token, key),
                        }
                    }
                }

                pub(crate) fn shrink(&mut self) {
                    match &mut self.key {
                        GcmKey::Aes128(key) => key.shrink(),
                        GcmKey::Aes256(key) => key.shrink(),
                    }
                }

                fn suite(&self) -> Suite {
                    match &self.key {
                        GcmKey::Aes128(_) => Suite::Aes128Gcm,
                        GcmKey::Aes256(_) => Suite::Aes256Gcm,
                    }
                }

                pub(crate) fn seal(&self, jobs: &mut [Job<'_>]) {
                    self.seal_with(jobs, Masking::None);
                }

                /// `false`, and nothing done, where the header key is not one of AES of the same size.
                pub(crate) fn seal_fused(
                    &self,
                    jobs: &mut [Job<'_>],
                    header: &AnyHeader,
                    fusion: Fusion,
                ) -> bool {
                    let Some(rounds) = header.round_keys(self.suite()) else {
                        return false;
                    };
                    self.seal_with(jobs, Masking::of(rounds, fusion));
                    true
                }

                fn seal_with(&self, jobs: &mut [Job<'_>], masking: Masking<'_>) {
                    // SAFETY: the token proves the entry points' features.
                    unsafe {
                        match &self.key {
                            GcmKey::Aes128(key) => seal(self.token, key, jobs, masking),
                            GcmKey::Aes256(key) => seal(self.token, key, jobs, masking),
                        }
                    }
                }

                pub(crate) fn open(&self, jobs: &mut [Job<'_>]) -> u32 {
                    self.open_with(jobs, Masking::None)
                }

                /// `None`, and nothing done, where the header key is not one of AES of the same size.
                pub(crate) fn open_fused(
                    &self,
                    jobs: &mut [Job<'_>],
                    header: &AnyHeader,
                    fusion: Fusion,
                ) -> Option<u32> {
                    let rounds = header.round_keys(self.suite())?;
                    Some(self.open_with(jobs, Masking::of(rounds, fusion)))
                }

                fn open_with(&self, jobs: &mut [Job<'_>], masking: Masking<'_>) -> u32 {
                    // SAFETY: the token proves the entry points' features.
                    unsafe {
                        match &self.key {
                            GcmKey::Aes128(key) => open(self.token, key, jobs, masking),
                            GcmKey::Aes256(key) => open(self.token, key, jobs, masking),
                        }
                    }
                }
            }

            /// An expanded header-protection key, with the proof that its instructions exist.
            pub(crate) struct Header {
                token: Token,
                suite: Suite,
                rounds: Box<Rounds>,
            }

            impl Header {
                /// `None` for a suite without AES.
                pub(crate) fn new(token: Token, material: &HeaderKeyMaterial) -> Option<Self> {
                    let mut rounds = Box::new(Rounds::EMPTY);
                    let (suite, key) = (material.suite(), material.padded_key());
                    match suite {
                        Suite::Aes128Gcm => token.single().expand_key::<10>(key, &mut rounds),
                        Suite::Aes256Gcm => token.single().expand_key::<14>(key, &mut rounds),
                        Suite::ChaCha20Poly1305 => return None,
                    }
                    Some(Self {
                        token,
                        suite,
                        rounds,
                    })
                }

                /// `None` where they are of another suite.
                pub(in crate::kernel) fn round_keys(&self, suite: Suite) -> Option<&Rounds> {
                    (self.suite == suite).then_some(&self.rounds)
                }

                pub(crate) fn toggle<J: Masked>(&self, jobs: &mut [J], direction: Toggle) {
                    // SAFETY: the token proves the entry points' features.
                    unsafe {
                        match self.suite {
                            Suite::Aes128Gcm => {
                                toggle::<10, J>(self.token, &self.rounds, jobs, direction);
                            }
                            _ => toggle::<14, J>(self.token, &self.rounds, jobs, direction),
                        }
                    }
                }
            }

            #[target_feature(enable = $features)]
            fn new<const R: usize>(token: Token, material: &KeyMaterial) -> Box<Key<R>> {
                let key = material.padded_key();
                Key::new(token, material.iv(), |rounds| {
                    token.single().expand_key::<R>(key, rounds);
                })
            }

            #[target_feature(enable = $features)]
            fn grow<const R: usize>(token: Token, key: &mut Key<R>) {
                key.grow(token);
            }

            #[target_feature(enable = $features)]
            fn seal<const R: usize>(
                token: Token,
                key: &Key<R>,
                jobs: &mut [Job<'_>],
                masking: Masking<'_>,
            ) {
                gcm::seal(token, key, jobs, masking);
            }

            #[target_feature(enable = $features)]
            fn open<const R: usize>(
                token: Token,
                key: &Key<R>,
                jobs: &mut [Job<'_>],
                masking: Masking<'_>,
            ) -> u32 {
                gcm::open(token, key, jobs, masking)
            }

            #[target_feature(enable = $features)]
            fn toggle<const R: usize, J: Masked>(
                token: Token,
                rounds: &Rounds,
                jobs: &mut [J],
                direction: Toggle,
            ) {
                gcm::headers::<Token, R, J>(token, rounds, jobs, direction);
            }
        }
    };
}

pub(super) use define_kernel;
