//! Where the generic AES-GCM is compiled, once for each register width.
//!
//! Everything generic is inlined into the functions with a `target_feature` here: that is where the compiler learns
//! which instructions it may use. They are called with a token in hand, and tokens come from detection only.

macro_rules! define_kernel {
    ($module:ident, $token:ty, $short:expr, $features:literal) => {
        pub(crate) mod $module {
            use crate::kernel::Job;
            use crate::kernel::gcm::{self, ROOM};
            use crate::kernel::stitch::Rounds;
            use crate::kernel::x86_64::expand_key;
            use crate::material::{HeaderKeyMaterial, KeyMaterial};
            use crate::span::SAMPLE_LEN;
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

                pub(crate) fn seal(&self, jobs: &mut [Job<'_>]) {
                    // SAFETY: the token proves the entry points' features.
                    unsafe {
                        match &self.key {
                            GcmKey::Aes128(key) => seal(self.token, key, jobs),
                            GcmKey::Aes256(key) => seal(self.token, key, jobs),
                        }
                    }
                }

                pub(crate) fn open(&self, jobs: &mut [Job<'_>]) -> u32 {
                    // SAFETY: the token proves the entry points' features.
                    unsafe {
                        match &self.key {
                            GcmKey::Aes128(key) => open(self.token, key, jobs),
                            GcmKey::Aes256(key) => open(self.token, key, jobs),
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
                    // SAFETY: the token proves AES.
                    unsafe {
                        match suite {
                            Suite::Aes128Gcm => expand_key::<10>(key, &mut rounds),
                            Suite::Aes256Gcm => expand_key::<14>(key, &mut rounds),
                            Suite::ChaCha20Poly1305 => return None,
                        }
                    }
                    Some(Self {
                        token,
                        suite,
                        rounds,
                    })
                }

                pub(crate) fn masks(&self, samples: &mut [[u8; SAMPLE_LEN]]) {
                    // SAFETY: the token proves the entry points' features.
                    unsafe {
                        match self.suite {
                            Suite::Aes128Gcm => masks::<10>(self.token, &self.rounds, samples),
                            _ => masks::<14>(self.token, &self.rounds, samples),
                        }
                    }
                }
            }

            #[target_feature(enable = $features)]
            fn new<const R: usize>(token: Token, material: &KeyMaterial) -> Box<Key<R>> {
                let key = material.padded_key();
                Key::new(token, material.iv(), |rounds| expand_key::<R>(key, rounds))
            }

            #[target_feature(enable = $features)]
            fn grow<const R: usize>(token: Token, key: &mut Key<R>) {
                key.grow(token);
            }

            #[target_feature(enable = $features)]
            fn seal<const R: usize>(token: Token, key: &Key<R>, jobs: &mut [Job<'_>]) {
                gcm::seal(token, key, jobs);
            }

            #[target_feature(enable = $features)]
            fn open<const R: usize>(token: Token, key: &Key<R>, jobs: &mut [Job<'_>]) -> u32 {
                gcm::open(token, key, jobs)
            }

            #[target_feature(enable = $features)]
            fn masks<const R: usize>(
                token: Token,
                rounds: &Rounds,
                samples: &mut [[u8; SAMPLE_LEN]],
            ) {
                gcm::encrypt_blocks::<Token, R>(token, rounds, samples);
            }
        }
    };
}

define_kernel!(
    vaes256,
    crate::kernel::x86_64::Vaes256,
    gcm::SHORT,
    "vaes,vpclmulqdq,avx2,aes,pclmulqdq"
);

// A chunk is twice as long, and the table must hold the powers of one.
define_kernel!(
    vaes512,
    crate::kernel::x86_64::vaes512::Vaes512,
    2 * gcm::SHORT,
    "vaes,vpclmulqdq,avx512f,avx512bw,avx512vl,avx2,aes,pclmulqdq"
);
