//! Where the generic ChaCha20-Poly1305 is compiled, once for each register width, as `entry` does
//! for AES-GCM.

macro_rules! define_chacha {
    ($token:ident, $groups:expr, $middle:expr, $features:literal) => {
        /// An expanded ChaCha20-Poly1305 key, with the proof that its instructions exist.
        pub(crate) struct Aead {
            token: $token,
            key: Box<Key>,
        }

        impl Aead {
            /// `None` for another suite.
            pub(crate) fn new(token: $token, material: &KeyMaterial) -> Option<Self> {
                let key =
                    (material.suite() == Suite::ChaCha20Poly1305).then(|| Key::new(material))?;
                Some(Self { token, key })
            }

            /// All tables are of one class.
            pub(crate) fn grow_if(&self, _: impl FnOnce() -> bool) {}

            pub(crate) fn shrink(&mut self) {}

            /// A packet by itself gets its mask while it is sealed; several get theirs afterwards.
            pub(crate) fn seal_fused(
                &self,
                jobs: &mut [Job<'_>],
                header: &$crate::kernel::Header,
                _: $crate::kernel::Fusion,
            ) -> bool {
                let Some(key) = header.chacha_key() else {
                    return false;
                };
                header.protect(self.seal_divided(jobs, Some(key)));
                true
            }

            /// Seals, and applies header protection to packets by themselves if there is a key for
            /// it. Returns the others.
            fn seal_divided<'j, 'a>(
                &self,
                jobs: &'j mut [Job<'a>],
                header: Option<&HeaderKey>,
            ) -> &'j mut [Job<'a>] {
                let (alone, together) = chacha::divide::<$token>(jobs);
                for job in alone {
                    // SAFETY: the token proves the entry point's features.
                    unsafe { seal_alone(self.token, &self.key, header, job) }
                }
                if !together.is_empty() {
                    // SAFETY: the token proves the entry point's features.
                    unsafe { seal(self.token, &self.key, together) }
                }
                together
            }

            /// The masks are made first.
            pub(crate) fn open_fused(
                &self,
                _: &mut [Job<'_>],
                _: &$crate::kernel::Header,
                _: $crate::kernel::Fusion,
            ) -> Option<u32> {
                None
            }

            pub(crate) fn seal(&self, jobs: &mut [Job<'_>]) {
                self.seal_divided(jobs, None);
            }

            pub(crate) fn open(&self, jobs: &mut [Job<'_>]) -> u32 {
                let mut authentic = 0;
                let (alone, together) = chacha::divide::<$token>(jobs);
                for (i, job) in alone.iter_mut().enumerate() {
                    // SAFETY: the token proves the entry point's features.
                    authentic |= unsafe { open_alone(self.token, &self.key, job) } << i;
                }
                if !together.is_empty() {
                    // SAFETY: the token proves the entry point's features.
                    authentic |= unsafe { open(self.token, &self.key, together) } << alone.len();
                }
                jobs.iter_mut().for_each(Job::fill_short_target);
                authentic
            }
        }

        /// An expanded header-protection key, with the proof that its instructions exist.
        pub(crate) struct Header {
            token: $token,
            key: Box<HeaderKey>,
        }

        impl Header {
            /// `None` for another suite.
            pub(crate) fn new(token: $token, material: &HeaderKeyMaterial) -> Option<Self> {
                let key = (material.suite() == Suite::ChaCha20Poly1305)
                    .then(|| HeaderKey::new(material))?;
                Some(Self { token, key })
            }

            pub(in crate::kernel) fn key(&self) -> &HeaderKey {
                &self.key
            }

            pub(crate) fn toggle(
                &self,
                headers: impl $crate::kernel::job::Headers,
                toggle: $crate::kernel::job::Toggle,
            ) {
                $crate::kernel::job::toggle_by(headers, toggle, |samples| {
                    // SAFETY: the token proves the entry point's features.
                    unsafe { masks(self.token, &self.key, samples) }
                });
            }
        }

        #[target_feature(enable = $features)]
        fn seal(token: $token, key: &Key, jobs: &mut [Job<'_>]) {
            chacha::seal::<$token, { $groups }, { $middle }, { $groups * <$token as Rows>::WIDTH }>(
                token, key, jobs,
            );
        }

        #[target_feature(enable = $features)]
        fn open(token: $token, key: &Key, jobs: &mut [Job<'_>]) -> u32 {
            chacha::open::<$token, { $groups }, { $middle }, { $groups * <$token as Rows>::WIDTH }>(
                token, key, jobs,
            )
        }

        #[target_feature(enable = $features)]
        fn seal_alone(token: $token, key: &Key, header: Option<&HeaderKey>, job: &mut Job<'_>) {
            chacha::alone::seal::<$token, { $middle }, { $groups }, { $groups * <$token as Rows>::WIDTH }>(
                token, key, header, job,
            );
        }

        #[target_feature(enable = $features)]
        fn open_alone(token: $token, key: &Key, job: &mut Job<'_>) -> u32 {
            chacha::alone::open::<$token, { $middle }, { $groups }, { $groups * <$token as Rows>::WIDTH }>(
                token, key, job,
            )
            .into()
        }

        #[target_feature(enable = $features)]
        fn masks(token: $token, key: &HeaderKey, samples: &mut [[u8; SAMPLE_LEN]]) {
            chacha::masks::<$token, { $groups }, { $middle }, { $groups * <$token as Rows>::WIDTH }>(
                token, key, samples,
            );
        }
    };
}

pub(in crate::kernel) use define_chacha;
