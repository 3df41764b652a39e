//! What is allowed in which Rust file: `unsafe`, items in `lib.rs`, clocks and threads.

use crate::finding::Finding;
use crate::source::{Kind, Source, Token, group_len};

/// `unsafe` outside its allowed places, and `unsafe` that does not say why it is sound.
pub(crate) fn check_unsafe(path: &str, source: &Source, places: &[&str]) -> Vec<Finding> {
    let allowed = places.iter().any(|place| match place.ends_with('/') {
        true => path.starts_with(place),
        false => path == *place,
    });
    let mut findings = Vec::new();
    for (at, token) in source.tokens.iter().enumerate() {
        if !token.is("unsafe") {
            continue;
        }
        let Some(what) = unsafe_form(&source.tokens[at + 1..]) else {
            continue;
        };
        if !allowed {
            let message = format!("unsafe {what} outside the places in xtask/src/floors.rs");
            findings.push(Finding::new(path, token.line, message));
        }
        if !has_reason(source, token.line, what == "fn") {
            let wanted = if what == "fn" {
                "`# Safety` or SAFETY"
            } else {
                "SAFETY"
            };
            let message = format!("unsafe {what} without a {wanted} comment");
            findings.push(Finding::new(path, token.line, message));
        }
    }
    findings
}

/// What kind of `unsafe` these tokens follow; `None` for a function pointer type, which promises
/// nothing itself.
fn unsafe_form(after: &[Token]) -> Option<&'static str> {
    let mut after = after.iter();
    let first = after.next()?;
    match &first.kind {
        Kind::Mark('{') => Some("block"),
        Kind::Mark('(') => Some("attribute"),
        Kind::Word(word) => match word.as_str() {
            "impl" => Some("impl"),
            "trait" => Some("trait"),
            "fn" => after.next()?.word().map(|_| "fn"),
            // `unsafe extern "C" fn name`, `unsafe extern "C" { … }`, `unsafe extern "C" fn(…)`
            "extern" => {
                let next = after.find(|token| token.kind != Kind::Literal)?;
                if next.is("fn") {
                    after.next()?.word().map(|_| "fn")
                } else {
                    Some("extern")
                }
            }
            _ => Some("item"),
        },
        _ => Some("item"),
    }
}

/// Whether a SAFETY comment is on the line, right after it, or above its statement.
fn has_reason(source: &Source, line: usize, doc_counts: bool) -> bool {
    let says = |line: usize| {
        let comment = source.comment(line);
        comment.contains("SAFETY") || doc_counts && comment.contains("# Safety")
    };
    // `unsafe {` with the reason as the first line of the block.
    if says(line) || source.code(line + 1).is_empty() && says(line + 1) {
        return true;
    }
    let mut above = line;
    while above > 1 {
        above -= 1;
        if says(above) {
            return true;
        }
        // Attributes, comments and the beginning of the same statement may come between, but not
        // the end of another statement, block or arm.
        if source.code(above).ends_with([';', '{', '}', ',']) {
            return false;
        }
        let blank = source.code(above).is_empty() && source.comment(above).is_empty();
        if blank {
            return false;
        }
    }
    false
}

/// Items that a `lib.rs` defines.
pub(crate) fn check_lib(path: &str, source: &Source) -> Vec<Finding> {
    const DEFINES: &[&str] = &[
        "fn",
        "struct",
        "enum",
        "union",
        "trait",
        "impl",
        "static",
        "const",
        "type",
        "macro_rules",
    ];
    let tokens = source.without_tests();
    let mut findings = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        if matches!(token.kind, Kind::Mark('{' | '(' | '[')) {
            at += group_len(&tokens[at..]);
            continue;
        }
        let next = tokens.get(at + 1);
        // `const _: () = assert!(…)` defines nothing; `const fn` is found at its `fn`.
        let nothing = token.is("const") && next.is_some_and(|next| next.is("_") || next.is("fn"));
        let inline = token.is("mod") && tokens.get(at + 2).is_some_and(|token| token.is_mark('{'));
        let defines = token.word().is_some_and(|word| DEFINES.contains(&word));
        if inline || defines && !nothing {
            let word = token.word().unwrap_or_default();
            let message = format!("`lib.rs` defines a `{word}`; it only declares and re-exports");
            findings.push(Finding::new(path, token.line, message));
            at += item_end(&tokens[at..]);
        } else {
            at += 1;
        }
    }
    findings
}

/// The length in tokens of the item that starts here: to its semicolon or the end of its body.
fn item_end(tokens: &[Token]) -> usize {
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.kind {
            Kind::Mark(';') => return at + 1,
            Kind::Mark('{') => return at + group_len(&tokens[at..]),
            Kind::Mark('(' | '[') => at += group_len(&tokens[at..]),
            _ => at += 1,
        }
    }
    at
}

/// Clocks read and threads started in code that is not for tests.
pub(crate) fn check_clock(path: &str, source: &Source, places: &[&str]) -> Vec<Finding> {
    const CALLS: &[(&str, &str)] = &[
        ("Instant", "now"),
        ("SystemTime", "now"),
        ("thread", "spawn"),
    ];
    if !places.iter().any(|place| path.starts_with(place)) {
        return Vec::new();
    }
    let tokens = source.without_tests();
    let mut findings = Vec::new();
    for window in tokens.windows(3) {
        for (ty, call) in CALLS {
            if let [first, separator, last] = window
                && first.is(ty)
                && separator.kind == Kind::PathSeparator
                && last.is(call)
            {
                let message = format!("`{ty}::{call}` here: time and threads arrive as arguments");
                findings.push(Finding::new(path, first.line, message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: &[&str] = &["crates/a/src/kernel/", "crates/b/src/sys.rs"];

    fn unsafe_findings(path: &str, text: &str) -> Vec<String> {
        let findings = check_unsafe(path, &Source::new(text), PLACES);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn unsafe_is_allowed_only_in_listed_places() {
        let text = "// SAFETY: because.\nunsafe { x() }";
        for path in ["crates/a/src/kernel/x86/mod.rs", "crates/b/src/sys.rs"] {
            assert_eq!(unsafe_findings(path, text), [""; 0]);
        }
        for path in [
            "crates/a/src/kernel.rs",
            "crates/b/src/sys.rs.rs",
            "crates/a/tests/kernel/x.rs",
        ] {
            let expected = "unsafe block outside the places in xtask/src/floors.rs";
            assert_eq!(
                unsafe_findings(path, text),
                [format!("{path}:2: {expected}")]
            );
        }
    }

    #[test]
    fn unsafe_needs_a_safety_comment() {
        let path = PLACES[1];
        for text in [
            "// SAFETY: because.\nlet x =\n    unsafe { f() };",
            "let x = unsafe { f() }; // SAFETY: because.",
            "unsafe {\n    // SAFETY: because.\n    f()\n}",
            "/// Does.\n///\n/// # Safety\n/// When.\n#[inline]\npub unsafe fn f() {}",
            "// SAFETY: because.\n#[cfg(unix)]\nunsafe impl Send for X {}",
            "// SAFETY: a long\n// reason.\nunsafe extern \"C\" { fn f(); }",
            "// SAFETY: checked.\n#[target_feature(enable = \"avx2\")]\nunsafe fn f() {}",
            "type F = unsafe fn(u8); struct S { f: unsafe extern \"C\" fn(u8) }",
            "#![forbid(unsafe_code)] // unsafe { \nconst S: &str = \"unsafe { }\";",
        ] {
            assert_eq!(unsafe_findings(path, text), [""; 0], "{text}");
        }
        for (text, message) in [
            (
                "let x = 1;\nunsafe { f() }",
                "2: unsafe block without a SAFETY comment",
            ),
            (
                "\nunsafe fn f() {}",
                "2: unsafe fn without a `# Safety` or SAFETY comment",
            ),
            (
                "\nunsafe impl Send for X {}",
                "2: unsafe impl without a SAFETY comment",
            ),
            (
                "/// # Safety\nunsafe impl Send for X {}",
                "2: unsafe impl without a SAFETY comment",
            ),
            (
                "\nunsafe extern \"C\" { fn f(); }",
                "2: unsafe extern without a SAFETY comment",
            ),
            (
                "\nunsafe extern \"C\" fn f() {}",
                "2: unsafe fn without a `# Safety` or SAFETY comment",
            ),
            // The reason for one statement or arm does not cover the next.
            (
                "// SAFETY: a.\nf();\nunsafe { g() }",
                "3: unsafe block without a SAFETY comment",
            ),
            (
                "// SAFETY: a.\nA => unsafe { f() },\nB => unsafe { g() },",
                "3: unsafe block without a SAFETY comment",
            ),
            (
                "// SAFETY: a.\n\nunsafe { g() }",
                "3: unsafe block without a SAFETY comment",
            ),
        ] {
            assert_eq!(
                unsafe_findings(path, text),
                [format!("{path}:{message}")],
                "{text}"
            );
        }
    }

    #[test]
    fn a_lib_only_declares_and_re_exports() {
        let clean = "//! Doc.\n#![forbid(unsafe_code)]\nmod a;\npub mod b;\npub use a::{A, B as C};\n\
                     extern crate alloc;\n#[cfg(test)]\nmod tests { fn f() {} }\n\
                     const _: () = assert!(a::X > 1);\n#[doc(inline)]\npub use b::r#type;";
        assert_eq!(check_lib("lib.rs", &Source::new(clean)), []);
        for (text, word) in [
            ("pub fn f() { struct X; }", "fn"),
            ("pub const fn f() {}", "fn"),
            ("pub struct S(u8);", "struct"),
            ("enum E { A }", "enum"),
            ("impl S { fn f() {} }", "impl"),
            ("pub type T = u8;", "type"),
            ("const X: u8 = 1;", "const"),
            ("static X: u8 = 1;", "static"),
            ("mod a { pub struct X; }", "mod"),
            ("macro_rules! m { () => {} }", "macro_rules"),
            ("pub trait T { const X: u8; }", "trait"),
        ] {
            let found = check_lib("lib.rs", &Source::new(text));
            let message = format!("`lib.rs` defines a `{word}`; it only declares and re-exports");
            assert_eq!(found, [Finding::new("lib.rs", 1, message)], "{text}");
        }
    }

    #[test]
    fn clocks_and_threads_are_found_where_they_are_forbidden() {
        let places = &["crates/core/src/"];
        let text =
            "use std::time::Instant;\nfn f() {\n    Instant::now();\n    std::thread::spawn(x);\n}";
        let found = check_clock("crates/core/src/a.rs", &Source::new(text), places);
        assert_eq!(found.iter().map(|f| f.line).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(
            check_clock("crates/squall/src/a.rs", &Source::new(text), places),
            []
        );
        let text = "let t = std::time::SystemTime :: now();";
        assert_eq!(
            check_clock("crates/core/src/a.rs", &Source::new(text), places).len(),
            1
        );
        let text = "#[cfg(test)] mod tests { fn f() { Instant::now(); } } // Instant::now()";
        assert_eq!(
            check_clock("crates/core/src/a.rs", &Source::new(text), places),
            []
        );
    }
}
