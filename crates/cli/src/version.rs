//! `squall --version`: what this program is built from, and what it uses on this machine.

use squall_protect::kernel_choices;

use crate::kernels::suite_name;

/// The library behind TLS: a feature of the crate `squall`, left at its default here.
const CRYPTO_LIBRARY: &str = "aws-lc-rs";

/// The version, followed by a line each for the commit, if known, the crypto library and the
/// kernels that protect packets.
pub(crate) fn long() -> String {
    let mut lines = vec![env!("CARGO_PKG_VERSION").to_owned()];
    if let Some(commit) = option_env!("SQUALL_COMMIT") {
        lines.push(format!("commit   {commit}"));
    }
    lines.push(format!("TLS      rustls with {CRYPTO_LIBRARY}"));
    let kernels: Vec<String> = kernel_choices()
        .iter()
        .map(|choice| format!("{} {}", suite_name(choice.suite), choice.kind.name()))
        .collect();
    lines.push(format!("kernels  {}", kernels.join(", ")));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reported_crypto_library_is_the_one_in_use() {
        let keys = format!("{:?}", squall::provider().key_provider).to_lowercase();
        assert_eq!(keys, CRYPTO_LIBRARY.replace('-', ""));
    }
}
