//! Which kernel a key is expanded for.
//!
//! ```text
//!   kernels that have the suite ──▶ that the CPU can run ──▶ that pay on its family ──▶ the best
//!                                                            (the table in `family`)
//! ```
//! `SQUALL_CPU` lowers the choice to the kernel of that name, or to the best one below it if that
//! one lacks the suite. A 512-bit kernel that it names is used on every family.

use std::borrow::Cow;
use std::sync::OnceLock;

use super::Kernel;
#[cfg(target_arch = "aarch64")]
use super::aarch64::{Neon, aes::NeonAes};
use super::family::{CpuFamily, is_wide_family};
use super::trial::Trial;
#[cfg(target_arch = "x86_64")]
use super::x86_64::{
    Aesni, cpu_family,
    tokens::{Avx2, Avx512, Vaes256, Vaes512},
};
use crate::material::KeyMaterial;
use crate::suite::Suite;

/// The implementations of the cipher work, slowest first.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
#[non_exhaustive]
pub enum KernelKind {
    /// RustCrypto, one packet at a time: runs everywhere, and the others are compared with it.
    Portable,
    /// ChaCha20-Poly1305 only, in 128-bit registers (AArch64).
    Neon,
    /// AES-GCM only, by the AES and PMULL instructions (AArch64 with the Cryptographic Extension).
    NeonAes,
    /// ChaCha20-Poly1305 only, in 256-bit registers (x86-64 since Haswell and Zen).
    Avx2,
    /// AES-GCM only, by AES-NI and PCLMULQDQ in 128-bit registers (x86-64 since Westmere and
    /// Bulldozer).
    Aesni,
    /// AES-GCM only, by VAES and VPCLMULQDQ in 256-bit registers (x86-64 since Zen 3 and Ice Lake).
    Vaes256,
    /// As `Avx2` in 512-bit registers (x86-64 with AVX-512 and its IFMA). Chosen automatically only
    /// on CPUs where a gain was measured.
    Avx512,
    /// As `Vaes256` in 512-bit registers (x86-64 with AVX-512). Chosen automatically only on CPUs
    /// where a gain was measured.
    Vaes512,
}

const SUITES: [Suite; 3] = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];

impl KernelKind {
    /// All kernels, including those of other architectures; on each architecture, slowest first.
    pub const ALL: &'static [Self] = &[
        Self::Portable,
        Self::Neon,
        Self::NeonAes,
        Self::Avx2,
        Self::Aesni,
        Self::Vaes256,
        Self::Avx512,
        Self::Vaes512,
    ];

    /// The kernel's name in `SQUALL_CPU`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Neon => "neon",
            Self::NeonAes => "neon-aes",
            Self::Avx2 => "avx2",
            Self::Aesni => "aesni",
            Self::Vaes256 => "vaes256",
            Self::Avx512 => "avx512",
            Self::Vaes512 => "vaes512",
        }
    }

    /// Whether the kernel implements a suite.
    #[must_use]
    pub const fn has(self, suite: Suite) -> bool {
        let is_chacha = matches!(suite, Suite::ChaCha20Poly1305);
        match self {
            Self::Portable => true,
            Self::Neon | Self::Avx2 | Self::Avx512 => is_chacha,
            Self::NeonAes | Self::Aesni | Self::Vaes256 | Self::Vaes512 => !is_chacha,
        }
    }

    /// Whether it works in 512-bit registers.
    const fn is_wide(self) -> bool {
        matches!(self, Self::Avx512 | Self::Vaes512)
    }
}

/// The kernels that this CPU can run, slowest first.
#[must_use]
pub fn kernels_available() -> Vec<KernelKind> {
    let all = KernelKind::ALL.iter().copied();
    all.filter(|kind| is_available(*kind)).collect()
}

#[cfg(target_arch = "x86_64")]
fn is_available(kind: KernelKind) -> bool {
    match kind {
        KernelKind::Portable => true,
        KernelKind::Avx2 => Avx2::detect().is_some(),
        KernelKind::Aesni => Aesni::detect().is_some(),
        KernelKind::Vaes256 => Vaes256::detect().is_some(),
        KernelKind::Avx512 => Avx512::detect().is_some(),
        KernelKind::Vaes512 => Vaes512::detect().is_some(),
        KernelKind::Neon | KernelKind::NeonAes => false,
    }
}

#[cfg(target_arch = "aarch64")]
fn is_available(kind: KernelKind) -> bool {
    match kind {
        KernelKind::Portable => true,
        KernelKind::Neon => Neon::detect().is_some(),
        KernelKind::NeonAes => NeonAes::detect().is_some(),
        _ => false,
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn is_available(kind: KernelKind) -> bool {
    kind == KernelKind::Portable
}

#[cfg(not(target_arch = "x86_64"))]
fn cpu_family() -> Option<CpuFamily> {
    None
}

/// The kernel that keys of a suite are expanded for, and the reason.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct KernelChoice {
    /// The keys' suite.
    pub suite: Suite,
    /// Their kernel.
    pub kind: KernelKind,
    /// One line: why it is not a faster one, or that this is the fastest.
    pub reason: String,
}

/// The kernel that new keys of each suite are expanded for. `SQUALL_CPU` is read once per process;
/// a value that names no kernel of this CPU is ignored.
///
/// On a CPU with AVX-512 that squall does not know, the first call or the first key measures the
/// CPU. That takes a millisecond on an idle machine and up to ten on a busy one.
#[must_use]
pub fn kernel_choices() -> Vec<KernelChoice> {
    choices().to_vec()
}

/// The kernel that new keys of a suite are expanded for; see [`kernel_choices`].
#[must_use]
pub fn chosen_kernel(suite: Suite) -> KernelKind {
    let choice = choices().iter().find(|choice| choice.suite == suite);
    choice.map_or(KernelKind::Portable, |choice| choice.kind)
}

fn choices() -> &'static [KernelChoice; 3] {
    static CHOICES: OnceLock<[KernelChoice; 3]> = OnceLock::new();
    CHOICES.get_or_init(|| {
        let wish = std::env::var("SQUALL_CPU").unwrap_or_default();
        let available = kernels_available();
        let (is_wide, why) = is_wide_cpu(cpu_family(), trial);
        SUITES.map(|suite| choose(suite, &available, (is_wide, &why), &wish))
    })
}

/// Measures this CPU; `None` if it lacks one of the kernels, or under Miri.
fn trial() -> Option<Trial> {
    // Miri's time has nothing to do with a CPU's.
    if cfg!(miri) {
        return None;
    }
    let material = KeyMaterial::new(Suite::Aes128Gcm, &[7; 16], &[7; 12])?;
    let expand = |kind| Kernel::expand(&material, kind);
    let (narrow, wide) = (expand(KernelKind::Vaes256)?, expand(KernelKind::Vaes512)?);
    Some(Trial::run(narrow, wide))
}

/// Whether to use 512-bit registers on a CPU, and why.
fn is_wide_cpu(
    family: Option<CpuFamily>,
    trial: impl FnOnce() -> Option<Trial>,
) -> (bool, Cow<'static, str>) {
    if let Some((is_wide, why)) = is_wide_family(family) {
        return (is_wide, why.into());
    }
    match trial() {
        Some(trial) => {
            let (is_wide, why) = trial.verdict();
            (is_wide, why.into())
        }
        None => (false, "512 bits could not be measured on this CPU".into()),
    }
}

fn choose(
    suite: Suite,
    available: &[KernelKind],
    (is_wide_cpu, why): (bool, &str),
    wish: &str,
) -> KernelChoice {
    let wished = available.iter().copied().find(|kind| kind.name() == wish);
    let fit = || {
        available
            .iter()
            .copied()
            .filter(|kind| kind.has(suite))
            .rev()
    };
    let allowed = |kind: &KernelKind| match wished {
        Some(wished) if *kind == wished => true,
        _ => (is_wide_cpu || !kind.is_wide()) && wished.is_none_or(|wished| *kind < wished),
    };
    let kind = fit().find(allowed).unwrap_or(KernelKind::Portable);
    let better = fit().find(|other| *other > kind);
    let reason = match (wished, better) {
        (Some(wished), _) if wished == kind => "SQUALL_CPU asks for it".to_owned(),
        (Some(wished), _) => format!(
            "the best below {}, which SQUALL_CPU asks for",
            wished.name()
        ),
        (None, Some(_)) => format!("the best in 256-bit registers; {why}"),
        (None, None) if kind.is_wide() => format!("the fastest; {why}"),
        (None, None) => "the fastest that this CPU can run".to_owned(),
    };
    KernelChoice {
        suite,
        kind,
        reason,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use KernelKind::{Aesni, Avx2, Avx512, Portable, Vaes256, Vaes512};

    #[test]
    fn only_an_unknown_cpu_is_measured() {
        let zen_5 = Some((*b"AuthenticAMD", 0x1a, 2));
        let (is_wide, why) = is_wide_cpu(zen_5, || panic!("a known CPU is not measured"));
        assert!(is_wide && why.starts_with("Zen 5"));
        let sapphire_rapids = Some((*b"GenuineIntel", 6, 0x8f));
        let mut measured = false;
        is_wide_cpu(sapphire_rapids, || {
            measured = true;
            None
        });
        assert!(measured);
    }

    #[test]
    fn this_cpu_can_be_measured() {
        let has = |kind| kernels_available().contains(&kind);
        let Some(trial) = trial() else {
            assert!(cfg!(miri) || !has(Vaes512));
            return;
        };
        // Packets that are refused take no time: eight take longer on any CPU.
        assert!(trial.fastest() > Duration::from_nanos(160), "{trial:?}");
    }

    const NARROW: (bool, &str) = (false, "not measured");
    const WIDE: (bool, &str) = (true, "measured");

    fn kind(suite: Suite, available: &[KernelKind], cpu: (bool, &str), wish: &str) -> KernelKind {
        choose(suite, available, cpu, wish).kind
    }

    #[test]
    fn a_requested_kernel_is_used_where_possible() {
        let (aes, chacha) = (Suite::Aes128Gcm, Suite::ChaCha20Poly1305);
        let all = &[Portable, Avx2, Aesni, Vaes256, Avx512, Vaes512];
        assert_eq!(kind(aes, all, WIDE, ""), Vaes512);
        assert_eq!(
            kind(aes, all, NARROW, ""),
            Vaes256,
            "a family without a measured gain"
        );
        assert_eq!(
            kind(aes, all, NARROW, "vaes512"),
            Vaes512,
            "asked for by name"
        );
        assert_eq!(
            kind(chacha, all, WIDE, "vaes512"),
            Avx512,
            "the best below that has the suite"
        );
        assert_eq!(kind(aes, all, WIDE, "aesni"), Aesni);
        assert_eq!(kind(aes, &all[..3], NARROW, ""), Aesni, "no VAES");
        assert_eq!(kind(aes, all, WIDE, "avx2"), Portable);
        assert_eq!(kind(aes, all, WIDE, "portable"), Portable);
        assert_eq!(kind(aes, all, WIDE, "no such kernel"), Vaes512);
        assert_eq!(
            kind(aes, &[Portable, Avx2], WIDE, "vaes256"),
            Portable,
            "not available"
        );
    }

    #[test]
    fn each_choice_has_its_reason() {
        let all = &[Portable, Vaes256, Vaes512];
        let reason = |cpu, wish| choose(Suite::Aes256Gcm, all, cpu, wish).reason;
        assert_eq!(
            reason(NARROW, ""),
            "the best in 256-bit registers; not measured"
        );
        assert_eq!(reason(WIDE, ""), "the fastest; measured");
        assert_eq!(reason(WIDE, "vaes256"), "SQUALL_CPU asks for it");
    }

    #[test]
    fn kernel_names_are_unique_and_kinds_ordered() {
        for (i, kind) in KernelKind::ALL.iter().enumerate() {
            let before = &KernelKind::ALL[..i];
            assert!(
                before
                    .iter()
                    .all(|other| other.name() != kind.name() && other < kind)
            );
        }
    }
}
