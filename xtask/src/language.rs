//! Parts of the language that are newer than `rust-version`. clippy's `incompatible_msrv` knows
//! when items of the standard library became stable, but not language features. These checks need
//! no old compiler, which would find both.

use crate::finding::Finding;
use crate::source::{Source, Token, group_len};

/// Guards with `if let`, and `cfg_select!`: both stable since Rust 1.95.
pub(crate) fn check(path: &str, source: &Source) -> Vec<Finding> {
    let tokens = &source.tokens;
    (0..tokens.len())
        .filter_map(|at| {
            let what = if is_let_guard(&tokens[at..]) {
                "a guard with `if let`"
            } else if is_call(&tokens[at..], "cfg_select") {
                "`cfg_select!`"
            } else {
                return None;
            };
            let message = format!("{what} needs Rust 1.95, which is newer than `rust-version`");
            Some(Finding::new(path, tokens[at].line, message))
        })
        .collect()
}

/// Whether `if let` begins here, and an arrow follows where a block would.
fn is_let_guard(tokens: &[Token]) -> bool {
    if !matches!(tokens, [first, second, ..] if first.is("if") && second.is("let")) {
        return false;
    }
    let mut rest = &tokens[2..];
    // Braces before the equals sign belong to the pattern, those after it begin the block.
    let mut in_pattern = true;
    while let [first, after @ ..] = rest {
        let next_is = |mark| after.first().is_some_and(|next| next.is_mark(mark));
        if first.is_mark('=') && next_is('>') {
            return true;
        }
        if first.is_mark('=') {
            in_pattern = false;
        }
        if first.is_mark(';') || (first.is_mark('{') && !in_pattern) {
            return false;
        }
        let group = ['(', '[', '{'].iter().any(|mark| first.is_mark(*mark));
        rest = &rest[if group { group_len(rest).max(1) } else { 1 }..];
    }
    false
}

fn is_call(tokens: &[Token], name: &str) -> bool {
    matches!(tokens, [first, second, ..] if first.is(name) && second.is_mark('!'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        let found = check("a.rs", &Source::new(text));
        found.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn newer_syntax_is_found() {
        let text = "match a {\n[x] if let Some(y) = f(x) => y,\nB { c } if let D { e } = c =>\n{ e }\n_ => 0 }";
        assert_eq!(lines(text), [2, 3]);
        assert_eq!(lines("cfg_select! { unix => { 1 } _ => { 2 } }"), [1]);
    }

    #[test]
    fn older_syntax_is_not_reported() {
        for text in [
            "match a { _ => if let Some(b) = c { d } else { e } _ => 0 }",
            "if let A { b } = c && let Some(d) = b { match d { _ => 0 } }",
            "match a { b if b >= 1 => 0, ref c if *c == 2 => 1 }",
            "if let Some(f) = g(|h| match h { _ => 0 }) { 1 }",
        ] {
            assert_eq!(lines(text), [0; 0], "{text}");
        }
    }
}
