//! Any text file: hosts of package registries, and length.

use crate::finding::Finding;
use crate::source::Source;

/// Hosts of package registries. Assembled from parts so that this file does not name them.
fn registry_hosts() -> [String; 6] {
    [
        ["crates", "io"].join("."),
        ["pypi", "org"].join("."),
        ["pythonhosted", "org"].join("."),
        ["registry", "npmjs"].join("."),
        ["npmjs", "com"].join("."),
        ["rubygems", "org"].join("."),
    ]
}

/// Lines that name a package registry. A lock file is written by the package manager.
pub(crate) fn check_hosts(path: &str, text: &str) -> Vec<Finding> {
    if path == "Cargo.lock" || path.ends_with("/Cargo.lock") {
        return Vec::new();
    }
    let hosts = registry_hosts();
    let mut findings = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.to_ascii_lowercase();
        if hosts.iter().any(|host| names(&text, host)) {
            findings.push(Finding::new(
                path,
                line,
                "names the host of a package registry",
            ));
        }
    }
    findings
}

/// Whether the text contains the host, and not just as part of a longer name.
fn names(text: &str, host: &str) -> bool {
    text.match_indices(host).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + host.len()..].chars().next();
        !before.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
            && !after.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

/// Documents and sources that a comment or a document names but that are not in the tree.
///
/// A file may be named by its path from the root, or by the end of it: `src/lib.rs`, `SECURITY.md`.
pub(crate) fn check_references(
    path: &str,
    text: &str,
    exists: impl Fn(&str) -> bool,
) -> Vec<Finding> {
    let source = path.ends_with(".rs").then(|| Source::new(text));
    if source.is_none() && !path.ends_with(".md") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let prose = source.as_ref().map_or(text, |source| source.comment(line));
        let part_of_a_path = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        for word in prose.split(|c| !part_of_a_path(c)) {
            // Web addresses start with two slashes here, and sentences end with a dot.
            let name = word.trim_end_matches('.').trim_start_matches("./");
            let is_file = name.ends_with(".md") || name.ends_with(".rs");
            if is_file && !name.starts_with('/') && !name.starts_with('.') && !exists(name) {
                let message = format!("names `{name}`, which is not in this repository");
                findings.push(Finding::new(path, line, message));
            }
        }
    }
    findings
}

/// The number of lines of a Rust file, if it is more than `limit`.
pub(crate) fn long(path: &str, text: &str, limit: usize) -> Option<usize> {
    let lines = text.lines().count();
    (path.ends_with(".rs") && lines > limit).then_some(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registry_hosts_are_found() {
        for host in registry_hosts() {
            for text in [
                format!("a\nhttps://{host}/x"),
                format!("\nsee static.{}.", host.to_uppercase()),
            ] {
                let expected = Finding::new("a.md", 2, "names the host of a package registry");
                assert_eq!(check_hosts("a.md", &text), [expected], "{text}");
                assert_eq!(check_hosts("peers/Cargo.lock", &text), []);
            }
            assert_eq!(check_hosts("a.rs", &format!("let x = my{host}ta;")), []);
        }
        let iterator = ["self.crates", "iota"].join(".");
        assert_eq!(check_hosts("a.rs", &iterator), []);
    }

    #[test]
    fn dangling_references_are_found() {
        let exists = |name: &str| matches!(name, "SECURITY.md" | "src/lib.rs");
        let text = "// See `SECURITY.md` row 5, src/lib.rs.\n//! Or plan.md, section 3.\nlet a = \"b.rs\";";
        let expected = Finding::new(
            "a.rs",
            2,
            "names `plan.md`, which is not in this repository",
        );
        assert_eq!(check_references("a.rs", text, exists), [expected]);
        let text = "[the rules](./SECURITY.md)\n[elsewhere](https://example.com/a.md) `old.rs`";
        let expected = Finding::new("b.md", 2, "names `old.rs`, which is not in this repository");
        assert_eq!(check_references("b.md", text, exists), [expected]);
        assert_eq!(check_references("b.txt", text, exists), []);
    }

    #[test]
    fn long_files_are_counted() {
        assert_eq!(long("a.rs", &"x\n".repeat(801), 800), Some(801));
        assert_eq!(long("a.rs", &"x\n".repeat(800), 800), None);
        assert_eq!(long("a.json", &"x\n".repeat(801), 800), None);
    }
}
