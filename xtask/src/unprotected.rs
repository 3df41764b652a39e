//! The build without packet protection: made only here, for one measurement.

use crate::finding::Finding;
use crate::tree;
use std::process::{Command, ExitCode};

/// The name of the cfg, assembled so that this file does not count as one that sets it.
pub(crate) fn name() -> String {
    ["squall", "unprotected"].join("_")
}

/// Builds `squall` without packet protection, in a separate folder, and runs `squall bench core`
/// with these arguments.
pub(crate) fn bench(arguments: &[String]) -> ExitCode {
    let root = tree::root();
    let target = root.join("target/unprotected");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--release", "--locked", "--package", "squall-cli"])
        .current_dir(&root)
        .env("CARGO_TARGET_DIR", &target)
        .env("RUSTFLAGS", format!("--cfg {}", name()))
        .status();
    if !built.is_ok_and(|status| status.success()) {
        return ExitCode::FAILURE;
    }
    let ran = Command::new(target.join("release/squall"))
        .args(["bench", "core"])
        .args(arguments)
        .status();
    match ran {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Places that may mention the cfg: the code that it changes, its documentation, and the lint that
/// knows its name.
fn may_name(path: &str, line: &str) -> bool {
    let code = path.starts_with("crates/protect/src/")
        || path == "crates/cli/src/bench/core.rs"
        || path == "crates/cli/src/main.rs";
    code || path.ends_with(".md") || (path == "Cargo.toml" && line.contains("check-cfg"))
}

/// Anywhere else, the name could only serve to set the cfg: a feature, a build script, a
/// configuration, a script.
pub(crate) fn check(path: &str, text: &str) -> Vec<Finding> {
    let name = name();
    (1..)
        .zip(text.lines())
        .filter(|(_, line)| line.contains(&name) && !may_name(path, line))
        .map(|(number, _)| {
            let what =
                "names the build without packet protection: only `cargo xtask bench-core` makes it";
            Finding::new(path, number, what)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_the_flag_is_found_anywhere() {
        let set = format!("rustflags = [\"--cfg\", \"{}\"]", name());
        for path in [
            ".cargo/config.toml",
            "crates/cli/Cargo.toml",
            "Cargo.toml",
            "crates/protect/build.rs",
            ".ci/run",
            "crates/core/src/lib.rs",
        ] {
            assert_eq!(check(path, &set).len(), 1, "{path}");
        }
        assert!(check("crates/protect/src/keys.rs", &set).is_empty());
        assert!(check("Cargo.toml", &format!("check-cfg = [\"cfg({})\"]", name())).is_empty());
    }
}
