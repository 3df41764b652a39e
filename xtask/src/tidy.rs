//! All checks over the whole tree.

use crate::finding::Finding;
use crate::imports::Imports;
use crate::source::Source;
use crate::tree::{self, File};
use crate::{code, floors, guide, language, limits, manifests, text, unprotected};
use std::process::ExitCode;

/// Runs the checks, prints one line per finding, and fails if there are any.
pub(crate) fn run() -> ExitCode {
    let files = match tree::files(&tree::root()) {
        Ok(files) => files,
        Err(error) => {
            eprintln!("tidy: {error}");
            return ExitCode::from(2);
        }
    };
    let findings = check(&files);
    for finding in &findings {
        println!("{finding}");
    }
    for file in &files {
        if let Some(lines) = text::long(&file.path, &file.text, floors::LONG_FILE_LINES) {
            println!("note: {} has {lines} lines; is it two things?", file.path);
        }
    }
    match findings.len() {
        0 => ExitCode::SUCCESS,
        n => {
            eprintln!("tidy: {n} finding{}", if n == 1 { "" } else { "s" });
            ExitCode::FAILURE
        }
    }
}

/// Runs all checks on these files.
fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let exists = |name: &str| tree::has(files, name);
    for file in files {
        findings.extend(text::check_hosts(&file.path, &file.text));
        findings.extend(text::check_references(&file.path, &file.text, exists));
        findings.extend(unprotected::check(&file.path, &file.text));
        let member = tree::member_of(&file.path);
        if file.path.ends_with(".rs") {
            let source = Source::new(&file.text);
            findings.extend(code::check_unsafe(
                &file.path,
                &source,
                floors::UNSAFE_PLACES,
            ));
            if !floors::WITH_CLOCK.contains(&file.path.as_str()) {
                findings.extend(code::check_clock(
                    &file.path,
                    &source,
                    floors::WITHOUT_CLOCK,
                ));
            }
            // The other workspaces need a newer compiler anyway, or a nightly one.
            if member.is_some() {
                findings.extend(language::check(&file.path, &source));
            }
            let tokens = source.without_tests();
            findings.extend(limits::check_parts(&file.path, &tokens));
            findings.extend(limits::check_functions(&file.path, &tokens));
            findings.extend(limits::wide_comments(&file.path, &file.text, &source));
            if member.is_some_and(|member| file.path[member.len()..] == *"/src/lib.rs") {
                findings.extend(code::check_lib(&file.path, &source));
            }
        }
        let Some(member) = member.filter(|member| file.path[member.len()..] == *"/Cargo.toml")
        else {
            continue;
        };
        findings.extend(manifests::check(&file.path, &file.text));
        for root in tree::crate_roots(member, files) {
            let imports = Imports::of(root, files);
            findings.extend(imports.check_cycles());
            findings.extend(imports.check_file_cycles());
            if root == "crates/core/src" {
                findings.extend(imports.check_floors(floors::CORE_FLOORS));
            }
        }
    }
    findings.extend(guide::check(files));
    findings.sort();
    // A cycle of top-level modules is also one of files.
    findings.dedup();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn every_check_is_called() {
        let host = ["crates", "io"].join(".");
        let wide = "x".repeat(100);
        let files = [
            file("README.md", &format!("{host}\nPLAN.md")),
            file(
                "crates/core/Cargo.toml",
                "[package]\nname = \"squall-core\"\n[dependencies]\nsquall-udp.workspace = true",
            ),
            file(
                "crates/core/src/connection/parts/a.rs",
                &format!("fn f(c: Connection) {{ // {wide}{}}}", "\n".repeat(100)),
            ),
            file("crates/core/src/lib.rs", "struct S;"),
            file("crates/core/src/space/mod.rs", "use crate::endpoint::E;"),
            file(
                "crates/core/src/endpoint/mod.rs",
                "use crate::space; fn f() { Instant::now(); }",
            ),
            file("crates/core/tests/a.rs", "unsafe { f() }"),
            file("crates/core/tests/b.rs", "cfg_select! {}"),
            file("docs/guide/a.md", "```rust\nno_program();\n```"),
        ];
        let found: Vec<String> = check(&files).iter().map(ToString::to_string).collect();
        let expected = [
            "README.md:1: names the host of a package registry",
            "README.md:2: names `PLAN.md`, which is not in this repository",
            "crates/core/Cargo.toml:4: `squall-core` must not depend on `squall-udp`",
            "crates/core/src/connection/parts/a.rs:1: `f` has 101 lines; here the limit is 100",
            "crates/core/src/connection/parts/a.rs:1: a comment reaches column 125; the limit is 100",
            "crates/core/src/connection/parts/a.rs:1: a part names the whole, `Connection`",
            "crates/core/src/endpoint/mod.rs:1: `Instant::now` here: time and threads arrive as arguments",
            "crates/core/src/endpoint/mod.rs:1: cycle of modules: `endpoint` → `space` \
             (crates/core/src/endpoint/mod.rs:1) → `endpoint` (crates/core/src/space/mod.rs:1)",
            "crates/core/src/lib.rs:1: `lib.rs` defines a `struct`; it only declares and re-exports",
            "crates/core/src/space/mod.rs:1: `space` on floor 2 imports `endpoint` from floor 7",
            "crates/core/tests/a.rs:1: unsafe block outside the places in xtask/src/floors.rs",
            "crates/core/tests/a.rs:1: unsafe block without a SAFETY comment",
            "crates/core/tests/b.rs:1: `cfg_select!` needs Rust 1.95, which is newer than `rust-version`",
            "docs/guide/a.md:2: this code is not part of the program that the chapter links to",
        ];
        assert_eq!(found, expected);
    }
}
