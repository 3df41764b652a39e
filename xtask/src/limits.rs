//! Limits on the code itself: function length and parameters, comment width, and which files may
//! name the whole connection.

use crate::finding::Finding;
use crate::floors;
use crate::functions::{Function, functions_of};
use crate::source::{Source, Token};

/// Maximum number of lines of a function in this file; `None`: no limit.
pub(crate) fn function_lines(path: &str) -> Option<usize> {
    let is_in = |places: &[&str]| places.iter().any(|place| path.starts_with(place));
    if is_in(floors::DATA_PATH) {
        Some(floors::DATA_PATH_FUNCTION_LINES)
    } else if is_in(floors::SHORT_FUNCTIONS) {
        Some(floors::FUNCTION_LINES)
    } else {
        None
    }
}

/// Functions that are longer, or take more parameters, than their file allows.
pub(crate) fn check_functions(path: &str, tokens: &[Token]) -> Vec<Finding> {
    let Some(limit) = function_lines(path).filter(|_| !is_test_file(path)) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for function in functions_of(tokens) {
        let Function { line, lines, .. } = function;
        let name = function.path();
        if lines > limit {
            let message = format!("`{name}` has {lines} lines; here the limit is {limit}");
            findings.push(Finding::new(path, line, message));
        }
        let (parameters, most) = (function.parameters, floors::PARAMETERS);
        if parameters > most && path.starts_with(floors::FEW_PARAMETERS) {
            let message = format!("`{name}` has {parameters} parameters; the limit is {most}");
            findings.push(Finding::new(path, line, message));
        }
    }
    findings
}

/// Lines with a comment that are too wide.
pub(crate) fn wide_comments(path: &str, text: &str, source: &Source) -> Vec<Finding> {
    let most = floors::COMMENT_COLUMNS;
    (1..)
        .zip(text.lines())
        .map(|(line, text)| (line, text.chars().count()))
        .filter(|&(line, columns)| columns > most && !source.comment(line).is_empty())
        .map(|(line, columns)| {
            let message = format!("a comment reaches column {columns}; the limit is {most}");
            Finding::new(path, line, message)
        })
        .collect()
}

/// A part never takes the whole: files of these folders must not name the type.
pub(crate) fn check_parts(path: &str, tokens: &[Token]) -> Vec<Finding> {
    let (whole, folders) = floors::PARTS;
    if is_test_file(path) || !folders.iter().any(|folder| path.starts_with(folder)) {
        return Vec::new();
    }
    tokens
        .iter()
        .filter(|token| token.is(whole))
        .map(|token| {
            let message = format!("a part names the whole, `{whole}`");
            Finding::new(path, token.line, message)
        })
        .collect()
}

/// Whether the file is compiled for tests only.
pub(crate) fn is_test_file(path: &str) -> bool {
    path.split(['/', '.']).any(|part| part == "tests")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn long_functions_are_found_where_they_are_forbidden() {
        let text = format!("fn a() {{{}}}", "\n".repeat(70));
        let tokens = Source::new(&text).without_tests();
        let found = |path: &str| messages(&check_functions(path, &tokens));
        let path = "crates/core/src/connection/receive/mod.rs";
        let expected = format!("{path}:1: `a` has 71 lines; here the limit is 70");
        assert_eq!(found(path), [expected]);
        for free in [
            "crates/core/src/endpoint/mod.rs",
            "crates/core/src/connection/receive/tests.rs",
            "crates/cli/src/main.rs",
        ] {
            assert_eq!(found(free), [""; 0], "{free}");
        }
        let text = format!("fn a() {{{}}}", "\n".repeat(100));
        let tokens = Source::new(&text).without_tests();
        let found = check_functions("crates/core/src/endpoint/mod.rs", &tokens);
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn long_parameter_lists_are_found_in_core() {
        let six = "fn a(&self, b: B, c: C, d: D, e: E, f: F, g: G) {}";
        let seven = "\nfn a(&self, b: B, c: C, d: D, e: E, f: F, g: G, h: H) {}";
        let found = |path: &str, text: &str| {
            messages(&check_functions(path, &Source::new(text).without_tests()))
        };
        let path = "crates/core/src/space/sent.rs";
        assert_eq!(found(path, six), [""; 0]);
        let expected = format!("{path}:2: `a` has 7 parameters; the limit is 6");
        assert_eq!(found(path, seven), [expected]);
        assert_eq!(found("crates/protect/src/kernel/job.rs", seven), [""; 0]);
    }

    #[test]
    fn wide_comments_are_found_by_characters() {
        let wide = format!("// {}", "×".repeat(98));
        let text = format!("{}\n{wide}\nlet s = \"{wide}\";", &wide[..wide.len() - 2]);
        let found = wide_comments("a.rs", &text, &Source::new(&text));
        assert_eq!(
            messages(&found),
            ["a.rs:2: a comment reaches column 101; the limit is 100"]
        );
    }

    #[test]
    fn a_part_that_names_the_connection_is_found() {
        let text = "// Connection\nuse super::super::Connection;\nfn f(c: ConnectionId) {}\n\
            const S: &str = \"Connection\";\n\
            #[cfg(test)] mod tests { use super::Connection; }";
        let tokens = Source::new(text).without_tests();
        let path = "crates/core/src/connection/parts/spaces.rs";
        let expected = format!("{path}:2: a part names the whole, `Connection`");
        assert_eq!(messages(&check_parts(path, &tokens)), [expected]);
        let path = "crates/core/src/connection/handshake/keyring.rs";
        assert_eq!(check_parts(path, &tokens).len(), 1);
        for free in [
            "crates/core/src/connection/mod.rs",
            "crates/core/src/connection/parts/tests.rs",
            "crates/core/src/connection/receive/mod.rs",
        ] {
            assert_eq!(messages(&check_parts(free, &tokens)), [""; 0], "{free}");
        }
    }
}
