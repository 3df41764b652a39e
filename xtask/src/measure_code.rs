//! `cargo xtask measure-code`: figures about the code itself, for comparing commits.

use crate::floors;
use crate::functions::{Function, fields_of, functions_of};
use crate::imports::Imports;
use crate::limits;
use crate::source::Source;
use crate::text;
use crate::tree::{self, File};
use std::process::ExitCode;

/// How many of a crate's longest functions are shown.
const LONGEST: usize = 3;

/// A function and its file.
struct Found<'a> {
    path: &'a str,
    function: Function,
}

/// Prints all figures.
pub(crate) fn run() -> ExitCode {
    match tree::files(&tree::root()) {
        Ok(files) => {
            print!("{}", report(&files));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("measure-code: {error}");
            ExitCode::from(2)
        }
    }
}

fn report(files: &[File]) -> String {
    let mut lines = Vec::new();
    let members: Vec<&str> = members(files);
    let mut cycles = Vec::new();
    for root in members.iter().flat_map(|m| tree::crate_roots(m, files)) {
        let imports = Imports::of(root, files);
        let modules = imports.files_in_cycles();
        cycles.extend(modules.iter().map(|module| format!("  {root}: {module}")));
    }
    lines.push(format!("files in cycles: {}", cycles.len()));
    lines.append(&mut cycles);

    let found = functions(files);
    lines.push(String::new());
    lines.push("longest functions:".to_owned());
    for member in &members {
        let source = format!("{member}/src/");
        let mut own: Vec<&Found<'_>> = (found.iter())
            .filter(|found| found.path.starts_with(&source))
            .collect();
        own.sort_by_key(|found| std::cmp::Reverse(found.function.lines));
        lines.extend(own.iter().take(LONGEST).map(|found| found.row()));
    }
    let too_long = |found: &&Found<'_>| {
        limits::function_lines(found.path).is_some_and(|limit| found.function.lines > limit)
    };
    let takes_too_much = |found: &&Found<'_>| {
        found.path.starts_with(floors::FEW_PARAMETERS)
            && found.function.parameters > floors::PARAMETERS
    };
    let most = floors::FUNCTION_LINES;
    let data = floors::DATA_PATH_FUNCTION_LINES;
    let title = format!("functions of core above {most} lines, of the data path above {data}");
    section(&mut lines, &title, found.iter().filter(too_long));
    let title = format!("parameter lists of core above {}", floors::PARAMETERS);
    section(&mut lines, &title, found.iter().filter(takes_too_much));

    lines.push(String::new());
    lines.extend(connection(files, &found));
    let dangling: usize = files.iter().map(|file| dangling(file, files)).sum();
    lines.push(format!("references to missing files: {dangling}"));
    let columns = floors::COMMENT_COLUMNS;
    let wide: usize = files.iter().map(wide).sum();
    lines.push(format!("comment lines above {columns} columns: {wide}"));
    lines.join("\n") + "\n"
}

impl Found<'_> {
    fn row(&self) -> String {
        let Function {
            line,
            lines,
            parameters,
            ..
        } = self.function;
        let name = self.function.path();
        format!(
            "  {lines:>4} lines {parameters:>2} parameters  {name}  {}:{line}",
            self.path
        )
    }
}

fn section<'a>(lines: &mut Vec<String>, title: &str, found: impl Iterator<Item = &'a Found<'a>>) {
    let rows: Vec<String> = found.map(Found::row).collect();
    lines.push(String::new());
    lines.push(format!("{title}: {}", rows.len()));
    lines.extend(rows);
}

/// The folders of all workspace members, without `peers` and `fuzz`.
fn members(files: &[File]) -> Vec<&str> {
    (files.iter())
        .filter_map(|file| file.path.strip_suffix("/Cargo.toml"))
        .filter(|member| tree::member_of(&format!("{member}/Cargo.toml")) == Some(member))
        .collect()
}

/// All functions that are not for tests.
fn functions(files: &[File]) -> Vec<Found<'_>> {
    let mut found = Vec::new();
    for file in files {
        let is_source = file.path.contains("/src/") && file.path.ends_with(".rs");
        if !is_source || limits::is_test_file(&file.path) {
            continue;
        }
        let tokens = Source::new(&file.text).without_tests();
        found.extend(functions_of(&tokens).into_iter().map(|function| Found {
            path: &file.path,
            function,
        }));
    }
    found
}

/// Fields and methods of the connection.
fn connection(files: &[File], found: &[Found<'_>]) -> Vec<String> {
    let (whole, _) = floors::PARTS;
    let home = "crates/core/src/connection/";
    let fields = (files.iter())
        .filter(|file| file.path.starts_with(home))
        .find_map(|file| fields_of(&Source::new(&file.text).without_tests(), whole));
    let methods: Vec<&Found<'_>> = (found.iter())
        .filter(|found| found.path.starts_with("crates/core/src/"))
        .filter(|found| found.function.owner.as_deref() == Some(whole))
        .collect();
    let public = methods.iter().filter(|found| found.function.is_public);
    let public = public.count();
    let fields = fields.map_or("not found".to_owned(), |fields| fields.to_string());
    vec![
        format!("fields of {whole}: {fields}"),
        format!(
            "methods of {whole}: {public} public, {} others",
            methods.len() - public
        ),
    ]
}

fn dangling(file: &File, files: &[File]) -> usize {
    text::check_references(&file.path, &file.text, |name| tree::has(files, name)).len()
}

fn wide(file: &File) -> usize {
    if !file.path.ends_with(".rs") {
        return 0;
    }
    limits::wide_comments(&file.path, &file.text, &Source::new(&file.text)).len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_has_every_figure() {
        let file = |path: &str, text: &str| File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let wide = "x".repeat(101);
        let files = [
            file("crates/core/Cargo.toml", ""),
            file("crates/core/src/a.rs", "use crate::b::X;"),
            file(
                "crates/core/src/b.rs",
                &format!("use crate::a::Y; // {wide}\n// gone.rs"),
            ),
            file(
                "crates/core/src/connection/mod.rs",
                "pub struct Connection { a: A, b: B } impl Connection { pub fn c(&self) {} fn d() {} }",
            ),
            file("crates/core/src/lib.rs", ""),
        ];
        let report = report(&files);
        for line in [
            "files in cycles: 2",
            "  crates/core/src: a",
            "     1 lines  0 parameters  Connection::c  crates/core/src/connection/mod.rs:1",
            "functions of core above 100 lines, of the data path above 70: 0",
            "parameter lists of core above 6: 0",
            "fields of Connection: 2",
            "methods of Connection: 1 public, 1 others",
            "references to missing files: 1",
            "comment lines above 100 columns: 1",
        ] {
            assert!(report.lines().any(|l| l == line), "{line}\n{report}");
        }
    }
}
