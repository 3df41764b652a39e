//! AArch64: the tokens that prove what a CPU has, and its registers as `Lanes`.
//!
//! ```text
//!   aes         token NeonAes, one lane, and its entry points: AES-GCM
//! ```

pub(super) mod aes;
