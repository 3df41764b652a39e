//! Which modules of a crate import from which: floors of top-level modules in `core`, cycles of
//! files everywhere.
//!
//! A path counts wherever it occurs, in a `use` or in the code: `crate::x::…`, `super::…`,
//! `self::…`, a glob, and a path that starts with a name that the file has imported. A name that
//! `lib.rs` or a `mod.rs` re-exports counts for its original file. `lib.rs` and `main.rs`
//! themselves, code for tests, and a module's imports from its child modules are exempt.

use crate::finding::Finding;
use crate::source::{Kind, Source, Token, group_len};
use crate::tree::File;
use std::collections::{BTreeMap, VecDeque};

/// From module to module, with the first place where it happens.
type Edges = BTreeMap<String, BTreeMap<String, Place>>;

/// One crate's modules and what they import.
#[derive(Default)]
pub(crate) struct Imports {
    /// Between top-level modules.
    edges: Edges,
    /// Every top-level module, with one of its files.
    modules: BTreeMap<String, String>,
    /// Between files, which are named as modules: `a::b`.
    file_edges: Edges,
}

#[derive(Clone, Debug)]
struct Place {
    path: String,
    line: usize,
}

impl Imports {
    /// Reads the sources of the crate whose `lib.rs` or `main.rs` is in `folder`.
    pub(crate) fn of(folder: &str, files: &[File]) -> Self {
        let mut imports = Self::default();
        let mut known = Modules::default();
        let mut found = Vec::new();
        let folder = format!("{folder}/");
        for file in files {
            let Some(name) = file.path.strip_prefix(&folder) else {
                continue;
            };
            let test = name.split(['/', '.']).any(|part| part == "tests");
            if test || !name.ends_with(".rs") {
                continue;
            }
            let module = module_path(name);
            let tokens = Source::new(&file.text).without_tests();
            for (name, path) in reexports_of(&tokens, &module) {
                known.reexports.insert(child(&module, &name), path);
            }
            known.files.push(module.clone());
            let Some(top) = module.first() else {
                continue;
            };
            let modules = &mut imports.modules;
            modules
                .entry(top.clone())
                .or_insert_with(|| file.path.clone());
            let through_names = paths_through_imports(&tokens, &module);
            for (path, line) in paths(&tokens, &module).into_iter().chain(through_names) {
                let place = Place {
                    path: file.path.clone(),
                    line,
                };
                found.push((module.clone(), path, place));
            }
        }
        for (from, path, place) in found {
            let to = known.file_of(&path);
            let (Some(from_top), Some(to_top)) = (from.first(), to.first()) else {
                continue;
            };
            if from_top != to_top {
                add(&mut imports.edges, from_top.clone(), to_top.clone(), &place);
            }
            if !to.starts_with(&from) {
                let names = [&from, &to].map(|module| module.join("::"));
                let [from, to] = names;
                add(&mut imports.file_edges, from, to, &place);
            }
        }
        imports
    }

    /// Imports from a lower floor to a higher one, and modules that have no floor.
    pub(crate) fn check_floors(&self, floors: &[&[&str]]) -> Vec<Finding> {
        let floor =
            |module: &str| Some(1 + floors.iter().position(|names| names.contains(&module))?);
        let mut findings = Vec::new();
        for (module, path) in &self.modules {
            if floor(module).is_none() {
                let message = format!("module `{module}` has no floor in xtask/src/floors.rs");
                findings.push(Finding::new(path, 0, message));
            }
        }
        for (from, targets) in &self.edges {
            for (to, place) in targets {
                if let (Some(low), Some(high)) = (floor(from), floor(to))
                    && low < high
                {
                    let message =
                        format!("`{from}` on floor {low} imports `{to}` from floor {high}");
                    findings.push(Finding::new(&place.path, place.line, message));
                }
            }
        }
        findings
    }

    /// Cycles of top-level modules: one finding per knot, with one way round it.
    pub(crate) fn check_cycles(&self) -> Vec<Finding> {
        cycles(&self.edges)
    }

    /// The files that are part of a cycle.
    pub(crate) fn files_in_cycles(&self) -> Vec<&str> {
        (self.file_edges.keys())
            .filter(|module| way_round(&self.file_edges, module).is_some())
            .map(String::as_str)
            .collect()
    }

    /// Cycles of files. A `mod.rs`'s imports from its own children do not count.
    pub(crate) fn check_file_cycles(&self) -> Vec<Finding> {
        cycles(&self.file_edges)
    }
}

/// Resolves paths to modules, re-exports included.
#[derive(Default)]
struct Modules {
    /// The modules that have a file.
    files: Vec<Vec<String>>,
    /// What a module re-exports: the path there, and where it comes from.
    reexports: BTreeMap<Vec<String>, Vec<String>>,
}

impl Modules {
    /// The module to whose file a path leads.
    fn file_of(&self, path: &[String]) -> Vec<String> {
        let mut path = path.to_vec();
        // A chain of re-exports ends somewhere: more steps than this would be a cycle, which does
        // not compile.
        for _ in 0..8 {
            let len = (0..=path.len()).rev().find(|len| {
                let module = &path[..*len];
                self.files.iter().any(|file| file == module)
            });
            let len = len.unwrap_or(0);
            let name = &path[..path.len().min(len + 1)];
            match self.reexports.get(name).filter(|_| len < path.len()) {
                Some(origin) => path = [&origin[..], &path[len + 1..]].concat(),
                None => return path[..len].to_vec(),
            }
        }
        Vec::new()
    }
}

fn child(module: &[String], name: &str) -> Vec<String> {
    [module, &[name.to_owned()]].concat()
}

fn add(edges: &mut Edges, from: String, to: String, place: &Place) {
    let targets = edges.entry(from).or_default();
    targets.entry(to).or_insert_with(|| place.clone());
}

/// One finding per knot, with one way round it.
fn cycles(edges: &Edges) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut reported = Vec::new();
    for module in edges.keys() {
        if reported.contains(module) {
            continue;
        }
        let Some(cycle) = way_round(edges, module) else {
            continue;
        };
        let steps: Vec<String> = cycle
            .iter()
            .zip(cycle.iter().skip(1))
            .filter_map(|(from, to)| Some((to, edges.get(from)?.get(to)?)))
            .map(|(to, place)| format!("`{to}` ({}:{})", place.path, place.line))
            .collect();
        let first = cycle.get(1).and_then(|to| edges.get(module)?.get(to));
        if let Some(place) = first {
            let message = format!("cycle of modules: `{module}` → {}", steps.join(" → "));
            findings.push(Finding::new(&place.path, place.line, message));
        }
        reported.extend(cycle);
    }
    findings
}

/// The shortest way from a module back to itself: both ends are that module.
fn way_round(edges: &Edges, start: &str) -> Option<Vec<String>> {
    let mut ways = VecDeque::from([vec![start.to_owned()]]);
    let mut seen = Vec::new();
    while let Some(way) = ways.pop_front() {
        for to in way
            .last()
            .and_then(|last| edges.get(last))
            .into_iter()
            .flatten()
        {
            let longer = [way.clone(), vec![to.0.clone()]].concat();
            if to.0 == start {
                return Some(longer);
            }
            if !seen.contains(to.0) {
                seen.push(to.0.clone());
                ways.push_back(longer);
            }
        }
    }
    None
}

/// The module that a file of `src` defines. One in its own folder (its `mod.rs`) has the folder's
/// name; the root is empty.
fn module_path(file: &str) -> Vec<String> {
    let file = file.strip_suffix(".rs").unwrap_or(file);
    let file = file.strip_suffix("/mod").unwrap_or(file);
    match file {
        "lib" | "main" => Vec::new(),
        _ => file.split('/').map(str::to_owned).collect(),
    }
}

/// The paths that occur in a file's tokens, from the root of the crate, with their lines.
fn paths(tokens: &[Token], file: &[String]) -> Vec<(Vec<String>, usize)> {
    let mut found = Vec::new();
    // Modules within the file, with the token at which each ends.
    let mut inner: Vec<(usize, String)> = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        inner.retain(|&(end, _)| at < end);
        let next = |n: usize| tokens.get(at + n);
        if token.is("mod") && next(2).is_some_and(|t| t.is_mark('{')) {
            let name = next(1).and_then(Token::word).unwrap_or_default().to_owned();
            inner.push((at + 2 + group_len(&tokens[at + 2..]), name));
        }
        // In the middle of a path these words do not start one: `self::super::x` is found at its
        // `super`.
        let follows = at
            .checked_sub(1)
            .is_some_and(|i| tokens[i].kind == Kind::PathSeparator);
        if follows || next(1).is_none_or(|t| t.kind != Kind::PathSeparator) {
            continue;
        }
        if token.is("crate") {
            named(&[], &tokens[at + 2..], &mut found);
        } else if token.is("super") || token.is("self") {
            let base: Vec<String> = file
                .iter()
                .cloned()
                .chain(inner.iter().map(|(_, name)| name.clone()))
                .collect();
            named(&base, &tokens[at..], &mut found);
        }
    }
    found
}

/// The paths that start with a name that the file imports: `use crate::a;`, then `a::b::f()`.
fn paths_through_imports(tokens: &[Token], file: &[String]) -> Vec<(Vec<String>, usize)> {
    let imported: BTreeMap<String, Vec<String>> = reexports_of(tokens, file).into_iter().collect();
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let follows = at
            .checked_sub(1)
            .is_some_and(|i| tokens[i].kind == Kind::PathSeparator);
        let leads = tokens
            .get(at + 1)
            .is_some_and(|next| next.kind == Kind::PathSeparator);
        let origin = token.word().and_then(|word| imported.get(word));
        if let Some(origin) = origin.filter(|_| leads && !follows) {
            named(origin, &tokens[at + 2..], &mut found);
        }
    }
    found
}

/// The path, or group of paths, that starts here, seen from module `base`.
fn named(base: &[String], tokens: &[Token], found: &mut Vec<(Vec<String>, usize)>) {
    let Some(token) = tokens.first() else {
        return;
    };
    if token.is_mark('{') {
        let mut rest = &tokens[1..group_len(tokens).max(2) - 1];
        while !rest.is_empty() {
            named(base, rest, found);
            // Continue after the next comma that is not in a group.
            let mut at = 0;
            while at < rest.len() && !rest[at].is_mark(',') {
                at += if rest[at].is_mark('{') {
                    group_len(&rest[at..])
                } else {
                    1
                };
            }
            rest = rest.get(at + 1..).unwrap_or_default();
        }
        return;
    }
    if token.is_mark('*') {
        found.push((base.to_vec(), token.line));
        return;
    }
    let Some(word) = token.word() else {
        return;
    };
    let more = tokens.get(1).is_some_and(|t| t.kind == Kind::PathSeparator);
    match word {
        "super" if more => {
            let outer = base.split_last().map_or(base, |(_, outer)| outer);
            named(outer, &tokens[2..], found);
        }
        "self" if more => named(base, &tokens[2..], found),
        "super" | "self" => found.push((base.to_vec(), token.line)),
        _ if more => named(&child(base, word), &tokens[2..], found),
        _ => found.push((child(base, word), token.line)),
    }
}

/// What a module re-exports, by its name there (`pub use a::b::{C, D as E}`), and where it comes
/// from.
fn reexports_of(tokens: &[Token], module: &[String]) -> Vec<(String, Vec<String>)> {
    let mut names = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if !token.is("use") {
            continue;
        }
        let end = tokens[at..].iter().position(|token| token.is_mark(';'));
        let statement = &tokens[at + 1..end.map_or(tokens.len(), |end| at + end)];
        let base = match statement.first() {
            Some(first) if first.is("crate") => &[],
            _ => module,
        };
        let skipped = if statement.first().is_some_and(|first| first.is("crate")) {
            2
        } else {
            0
        };
        let mut found = Vec::new();
        named(
            base,
            statement.get(skipped..).unwrap_or_default(),
            &mut found,
        );
        let mut renamed = renames_of(statement);
        for (path, _) in found {
            let name = path.last().cloned().unwrap_or_default();
            let known_as = renamed.remove(&name).unwrap_or(name);
            names.push((known_as, path));
        }
    }
    names
}

/// The names before `as` in a `use`, each with the one after it.
fn renames_of(statement: &[Token]) -> BTreeMap<String, String> {
    let renames = statement.windows(3).filter(|words| words[1].is("as"));
    renames
        .filter_map(|words| Some((words[0].word()?.to_owned(), words[2].word()?.to_owned())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(files: &[(&str, &str)]) -> Imports {
        let files: Vec<File> = files
            .iter()
            .map(|&(path, text)| File {
                path: format!("crates/x/src/{path}"),
                text: text.to_owned(),
            })
            .collect();
        Imports::of("crates/x/src", &files)
    }

    fn messages(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(ToString::to_string).collect()
    }

    const FLOORS: &[&[&str]] = &[&["low", "base"], &["mid"], &["top"]];

    #[test]
    fn an_import_to_a_higher_floor_is_found_in_every_form() {
        for text in [
            "\nuse crate::top::T;",
            "\nuse crate::{base::B, top::{self, T}};",
            "\npub(crate) use crate::top;",
            "\nfn f() -> crate::top::T { x }",
            "\nuse super::top::T;",
            "\nuse crate::T;",
            "\nuse crate::{base, Renamed as R};",
            "\nmod inner { use super::super::top; }",
            "\nmacro_rules! m { () => { $crate::top::t() } }",
            "\nuse crate::top::*;",
            "\nuse super::top::{deep::*, X};",
        ] {
            let tree = imports(&[
                ("lib.rs", "mod low; pub use top::{deep::T, X as Renamed};"),
                ("low.rs", text),
                ("base.rs", ""),
                ("top/mod.rs", ""),
            ]);
            let expected = "crates/x/src/low.rs:2: `low` on floor 1 imports `top` from floor 3";
            assert_eq!(messages(&tree.check_floors(FLOORS)), [expected], "{text}");
        }
    }

    #[test]
    fn imports_from_lower_floors_and_the_own_module_are_allowed() {
        let tree = imports(&[
            ("lib.rs", "mod top; pub use top::T; use crate::mid::M;"),
            (
                "low.rs",
                "use std::top; use crate::base::B; // use crate::top;\nconst S: &str = \"crate::top\";",
            ),
            ("base.rs", "#[cfg(test)] mod tests { use crate::top::T; }"),
            ("top/mod.rs", "use crate::mid; use crate::low::L;"),
            (
                "top/part.rs",
                "use super::T; use super::super::mid; use crate::top::T; use self::x::y;",
            ),
            ("mid/mod.rs", "mod part;"),
            (
                "mid/part.rs",
                "mod top { pub struct T; } use self::top::T; use super::top;",
            ),
            ("mid/tests.rs", "use crate::top::T;"),
        ]);
        assert_eq!(messages(&tree.check_floors(FLOORS)), [""; 0]);
        assert_eq!(messages(&tree.check_cycles()), [""; 0]);
    }

    #[test]
    fn a_module_without_a_floor_is_found() {
        let tree = imports(&[("low.rs", ""), ("new/mod.rs", ""), ("main.rs", "")]);
        let expected = "crates/x/src/new/mod.rs: module `new` has no floor in xtask/src/floors.rs";
        assert_eq!(messages(&tree.check_floors(FLOORS)), [expected]);
    }

    #[test]
    fn a_cycle_is_reported_once_with_its_path() {
        let tree = imports(&[
            ("a.rs", "use crate::b;"),
            ("b/mod.rs", ""),
            ("b/part.rs", "\n\nuse crate::c::C;"),
            ("c.rs", "fn f() { crate::a::g() }"),
            ("d.rs", "use crate::a; use crate::b; use crate::c;"),
        ]);
        let expected = "crates/x/src/a.rs:1: cycle of modules: `a` → `b` (crates/x/src/a.rs:1) → \
                        `c` (crates/x/src/b/part.rs:3) → `a` (crates/x/src/c.rs:1)";
        assert_eq!(messages(&tree.check_cycles()), [expected]);
    }

    #[test]
    fn a_cycle_on_one_floor_is_reported() {
        let tree = imports(&[
            ("low.rs", "use crate::base;"),
            ("base.rs", "use crate::low;"),
        ]);
        assert_eq!(messages(&tree.check_floors(FLOORS)), [""; 0]);
        assert_eq!(tree.check_cycles().len(), 1);
    }

    #[test]
    fn a_cycle_of_files_is_found_through_a_re_export() {
        let tree = imports(&[
            (
                "a/mod.rs",
                "mod b; mod c; mod d; pub(crate) use b::B; use self::c::C;",
            ),
            ("a/b.rs", "use super::c::C as D;"),
            ("a/c.rs", "fn f() -> super::B { x }"),
            ("a/d.rs", "use super::{B, c}; use super::f;"),
        ]);
        assert_eq!(messages(&tree.check_cycles()), [""; 0]);
        let expected = "crates/x/src/a/b.rs:1: cycle of modules: `a::b` → `a::c` (crates/x/src/a/b.rs:1) → \
                        `a::b` (crates/x/src/a/c.rs:1)";
        assert_eq!(messages(&tree.check_file_cycles()), [expected]);
    }

    #[test]
    fn a_cycle_of_files_passes_through_their_parent_only_if_it_leaves_the_folder() {
        let within = imports(&[("a/mod.rs", "use self::b::B;"), ("a/b.rs", "use super::f;")]);
        assert_eq!(messages(&within.check_file_cycles()), [""; 0]);
        let around = imports(&[
            ("a/mod.rs", "use crate::c::C;"),
            ("a/b.rs", "use super::f;"),
            ("c.rs", "use crate::a::b::B;"),
        ]);
        assert_eq!(around.check_file_cycles().len(), 1);
    }

    #[test]
    fn a_cycle_through_an_imported_module_or_a_glob_is_found() {
        let tree = imports(&[
            ("a/mod.rs", "mod b; mod c;"),
            (
                "a/b.rs",
                "use crate::{a, std::x}; fn f() { a::c::g(); x::a::c() }",
            ),
            ("a/c.rs", "use super::b::*;"),
            ("a/tests/b.rs", "use super::super::d;"),
            ("d.rs", "use crate::a::tests::b;"),
        ]);
        assert_eq!(tree.check_file_cycles().len(), 1);
    }

    #[test]
    fn a_cycle_through_a_name_re_exported_by_lib_is_found() {
        let tree = imports(&[
            ("lib.rs", "pub use a::A;"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::A;"),
        ]);
        assert_eq!(tree.check_cycles().len(), 1);
    }
}
