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
                let parts = chacha::Division::of::<$token>(jobs);
                if !parts.twins.is_empty() {
                    // SAFETY: the token proves the entry point's features.
                    unsafe { seal_twins(self.token, &self.key, &mut jobs[parts.twins.clone()]) }
                }
                for job in &mut jobs[parts.alone.clone()] {
                    // SAFETY: the token proves the entry point's features.
                    unsafe { seal_alone(self.token, &self.key, header, job) }
                }
                if !parts.together.is_empty() {
                    // SAFETY: the token proves the entry point's features.
                    unsafe { seal(self.token, &self.key, &mut jobs[parts.together.clone()]) }
                }
                &mut jobs[parts.not_alone()]
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
                let parts = chacha::Division::of::<$token>(jobs);
                let mut authentic = 0;
                if !parts.twins.is_empty() {
                    let twins = &mut jobs[parts.twins.clone()];
                    // SAFETY: the token proves the entry point's features.
                    authentic |= unsafe { open_twins(self.token, &self.key, twins) };
                }
                for i in parts.alone {
                    // SAFETY: the token proves the entry point's features.
                    authentic |= unsafe { open_alone(self.token, &self.key, &mut jobs[i]) } << i;
                }
                if !parts.together.is_empty() {
                    let first = parts.together.start;
                    let together = &mut jobs[parts.together];
                    // SAFETY: the token proves the entry point's features.
                    authentic |= unsafe { open(self.token, &self.key, together) } << first;
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
        fn seal_twins(token: $token, key: &Key, jobs: &mut [Job<'_>]) {
            token.seal_twins(key, jobs);
        }

        #[target_feature(enable = $features)]
        fn open_twins(token: $token, key: &Key, jobs: &mut [Job<'_>]) -> u32 {
            token.open_twins(key, jobs)
        }

        #[target_feature(enable = $features)]
        fn seal_alone(token: $token, key: &Key, header: Option<&HeaderKey>, job: &mut Job<'_>) {
            token.seal_alone::<{ $middle }, { $groups }, { $groups * <$token as Rows>::WIDTH }>(
                key, header, job,
            );
        }

        #[target_feature(enable = $features)]
        fn open_alone(token: $token, key: &Key, job: &mut Job<'_>) -> u32 {
            token
                .open_alone::<{ $middle }, { $groups }, { $groups * <$token as Rows>::WIDTH }>(key, job)
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
