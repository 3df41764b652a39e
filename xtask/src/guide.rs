//! The chapters of `docs/guide` show programs that are compiled and run by tests. Whatever a
//! chapter shows must be part of its program, and each program must be shown.

use crate::finding::Finding;
use crate::tree::File;

const CHAPTERS: &str = "docs/guide/";
const PROGRAMS: &str = "/examples/guide/";
/// Maximum number of lines of a chapter.
const LINES: usize = 130;

/// Checks all chapters and programs.
pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let chapters = || {
        (files.iter()).filter(|file| file.path.starts_with(CHAPTERS) && file.path.ends_with(".md"))
    };
    let programs = || files.iter().filter(|file| file.path.contains(PROGRAMS));
    let mut findings = Vec::new();
    for chapter in chapters() {
        let shown = programs().find(|program| shows(chapter, program));
        for (line, block) in blocks(&chapter.text) {
            if !shown.is_some_and(|program| program.text.contains(&block)) {
                let what = "this code is not part of the program that the chapter links to";
                findings.push(Finding::new(&chapter.path, line, what));
            }
        }
        if chapter.text.lines().count() > LINES {
            let what = format!("a chapter has at most {LINES} lines");
            findings.push(Finding::new(&chapter.path, 1, what));
        }
    }
    for program in programs() {
        if !chapters().any(|chapter| shows(chapter, program)) {
            let what = "no chapter of docs/guide links to this program";
            findings.push(Finding::new(&program.path, 1, what));
        }
    }
    findings
}

fn shows(chapter: &File, program: &File) -> bool {
    chapter.text.contains(&format!("(../../{})", program.path))
}

/// The blocks of Rust code, each with its first line's number.
fn blocks(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        match &mut open {
            None if line == "```rust" => open = Some((number + 1, String::new())),
            None => {}
            Some(_) if line == "```" => found.extend(open.take()),
            Some((_, block)) => {
                block.push_str(line);
                block.push('\n');
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(chapter: &str, program: &str) -> Vec<String> {
        let file = |path: &str, text: &str| File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let files = [
            file("docs/guide/one.md", chapter),
            file("crates/a/examples/guide/one.rs", program),
        ];
        check(&files).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_chapters_code_must_be_part_of_its_program() {
        let link = "[it](../../crates/a/examples/guide/one.rs)";
        let chapter = |code: &str| format!("{link}\n```rust\n{code}\n```\n```sh\nls\n```\n");
        let program = "fn a() {}\nfn b() {}\n";
        assert_eq!(findings(&chapter("fn b() {}"), program), [""; 0]);
        assert_eq!(
            findings(&chapter("fn b() { }"), program),
            ["docs/guide/one.md:3: this code is not part of the program that the chapter links to"]
        );
        let found = findings("no link", program);
        assert_eq!(
            found,
            ["crates/a/examples/guide/one.rs:1: no chapter of docs/guide links to this program"]
        );
        let long = format!("{link}{}", "\n".repeat(LINES));
        assert_eq!(findings(&long, program), [""; 0]);
        let found = findings(&format!("{long}\n"), program);
        assert_eq!(
            found,
            ["docs/guide/one.md:1: a chapter has at most 130 lines"]
        );
    }
}
