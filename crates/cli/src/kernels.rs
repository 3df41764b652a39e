//! The kernels of packet protection as a user names them, and the one that `SQUALL_CPU` asks for.

use squall_protect::{
    HeaderKey, HeaderKeyMaterial, KernelKind, KeyMaterial, Keys, PacketKey, Suite,
    kernels_available,
};
use squall_yard::error::{Failure, Result};

/// The environment variable that asks for a kernel.
pub(crate) const VARIABLE: &str = "SQUALL_CPU";

/// All suites.
pub(crate) const SUITES: [Suite; 3] = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];

/// The usual name of a suite.
pub(crate) fn suite_name(suite: Suite) -> &'static str {
    match suite {
        Suite::Aes128Gcm => "AES-128-GCM",
        Suite::Aes256Gcm => "AES-256-GCM",
        Suite::ChaCha20Poly1305 => "ChaCha20-Poly1305",
    }
}

/// Keys for a measurement; `None` if the CPU lacks the kernel or the kernel lacks the suite.
pub(crate) fn keys(suite: Suite, kind: KernelKind) -> Option<Keys> {
    // The values of the bytes do not matter to a kernel: it takes the same time for all.
    let key = [0x5a; 32];
    let key = key.get(..suite.key_len())?;
    let packet = KeyMaterial::new(suite, key, &[7; 12])?;
    let header = HeaderKeyMaterial::new(suite, key)?;
    Some(Keys {
        packet: PacketKey::with_kernel(&packet, kind)?,
        header: HeaderKey::with_kernel(&header, kind)?,
    })
}

/// The kernels that can run a suite here, slowest first.
pub(crate) fn able(suite: Suite) -> Vec<KernelKind> {
    let mut able = kernels_available();
    able.retain(|kind| kind.has(suite));
    able
}

/// The kernel with this name, for a suite.
///
/// # Errors
/// There is none of that name, this CPU cannot run it, or it does not support the suite; the error
/// lists those that would work.
pub(crate) fn named(name: &str, suite: Suite) -> Result<KernelKind> {
    let able = able(suite);
    let wanted = |kind: &KernelKind| kind.name().eq_ignore_ascii_case(name);
    if let Some(kind) = able.iter().copied().find(wanted) {
        return Ok(kind);
    }
    let why = if kernels_available().iter().any(wanted) {
        format!("the kernel {name} does not support {}", suite_name(suite))
    } else if KernelKind::ALL.iter().any(wanted) {
        format!("this CPU cannot run the kernel {name}")
    } else {
        format!("there is no kernel {name}")
    };
    Err(Failure::new(format!(
        "{why}; available for {}: {}",
        suite_name(suite),
        names(&able)
    )))
}

/// Names in a list, such as `portable, vaes256`.
pub(crate) fn names(kinds: &[KernelKind]) -> String {
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    names.join(", ")
}

/// The kernel that `SQUALL_CPU` asks for, and whether it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Not set, or empty.
    None,
    /// Followed.
    Followed(KernelKind),
    /// A kernel that this CPU cannot run.
    Unavailable(String),
    /// Not the name of a kernel.
    Unknown(String),
}

impl Wish {
    /// The wish in this process's environment.
    pub(crate) fn read() -> Self {
        let value = std::env::var_os(VARIABLE).unwrap_or_default();
        Self::of(&value.to_string_lossy(), &kernels_available())
    }

    /// The library takes names literally: `VAES256` is unknown to it.
    fn of(value: &str, available: &[KernelKind]) -> Self {
        let of_name =
            |kinds: &[KernelKind]| kinds.iter().copied().find(|kind| kind.name() == value);
        match (of_name(available), of_name(KernelKind::ALL)) {
            _ if value.is_empty() => Self::None,
            (Some(kind), _) => Self::Followed(kind),
            (None, Some(_)) => Self::Unavailable(value.to_owned()),
            (None, None) => Self::Unknown(value.to_owned()),
        }
    }

    /// Why the wish could not be followed, in one line.
    pub(crate) fn complaint(&self) -> Option<String> {
        let why = match self {
            Self::None | Self::Followed(_) => return None,
            Self::Unavailable(value) => format!("this CPU cannot run the kernel {value}"),
            Self::Unknown(value) => format!("there is no kernel {value:?}"),
        };
        Some(format!(
            "{VARIABLE} is ignored: {why}; available: {}",
            names(&kernels_available())
        ))
    }
}

#[cfg(test)]
mod tests {
    use squall_protect::chosen_kernel;

    use super::*;

    #[test]
    fn available_kernels_have_names_and_are_chosen_only_for_suites_they_support() {
        for kind in kernels_available() {
            assert!(KernelKind::ALL.contains(&kind), "{kind:?}");
        }
        for suite in SUITES {
            assert!(able(suite).contains(&KernelKind::Portable));
            assert!(able(suite).contains(&chosen_kernel(suite)));
        }
    }

    #[test]
    fn an_unsuitable_kernel_is_reported_with_the_suitable_ones() {
        assert_eq!(
            named("PORTABLE", Suite::Aes128Gcm).ok(),
            Some(KernelKind::Portable)
        );
        let line = named("turbo", Suite::Aes128Gcm).expect_err("unknown");
        assert!(line.to_string().contains("no kernel turbo"), "{line}");
        assert!(line.to_string().contains("portable"), "{line}");
        for &kind in KernelKind::ALL {
            if !able(Suite::ChaCha20Poly1305).contains(&kind) {
                let line = named(kind.name(), Suite::ChaCha20Poly1305).expect_err("unfit");
                assert!(
                    line.to_string().contains("available for ChaCha20"),
                    "{line}"
                );
            }
        }
    }

    #[test]
    fn unknown_and_unavailable_kernel_requests_are_distinguished() {
        use KernelKind::{Portable, Vaes256};
        let here = [Portable, Vaes256];
        assert_eq!(Wish::of("", &here), Wish::None);
        assert_eq!(Wish::of("vaes256", &here), Wish::Followed(Vaes256));
        let unavailable = Wish::of("vaes512", &here);
        assert_eq!(unavailable, Wish::Unavailable("vaes512".to_owned()));
        assert!(Wish::of("VAES256", &here).complaint().is_some());
        assert!(unavailable.complaint().is_some());
        assert_eq!(Wish::None.complaint(), None);
    }
}
