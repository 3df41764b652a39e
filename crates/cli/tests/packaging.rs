//! The systemd unit and the image in `packaging` start `squall` with arguments that it accepts.
//! `cargo xtask service` checks the rest of both files.

use std::fs;
use std::path::Path;

use common::squall;

mod common;

/// Where both expect the command.
const INSTALLED: &str = "/usr/local/bin/squall";

/// The text of a file of `packaging`, which is in the repository but not in the crate's package.
fn read(name: &str) -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if !root.join(".ci/run").exists() {
        eprintln!("not in the repository, not checked");
        return None;
    }
    Some(fs::read_to_string(root.join("packaging").join(name)).expect("a text file"))
}

/// The words of the last line `INSTRUCTION ["word", …]`. None of ours holds quotes or commas.
fn list<'a>(dockerfile: &'a str, instruction: &str) -> Vec<&'a str> {
    let words = dockerfile.lines().rev().find_map(|line| {
        let rest = line.strip_prefix(instruction)?.trim();
        rest.strip_prefix('[')?.strip_suffix(']')
    });
    let words = words.unwrap_or_else(|| panic!("{instruction} with a list"));
    words
        .split(',')
        .map(|word| word.trim().trim_matches('"'))
        .collect()
}

/// Followed by `--help`, the command parses all arguments and does nothing else.
fn assert_accepted(arguments: &[&str]) {
    assert!(!arguments.is_empty(), "only the command");
    let output = squall(&[arguments, &["--help"]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
}

#[test]
fn squall_takes_the_arguments_of_the_systemd_unit() {
    let Some(unit) = read("squall.service") else {
        return;
    };
    let lines: Vec<&str> = unit
        .lines()
        .filter_map(|line| line.strip_prefix("ExecStart="))
        .collect();
    // A second one would be an error to systemd, or the only one that counts.
    let [line] = lines[..] else {
        panic!("{} lines ExecStart=", lines.len());
    };
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[0], INSTALLED);
    assert_accepted(&words[1..]);
}

#[test]
fn squall_takes_the_arguments_of_the_image() {
    let Some(dockerfile) = read("Dockerfile") else {
        return;
    };
    assert_eq!(list(&dockerfile, "ENTRYPOINT"), [INSTALLED]);
    assert_accepted(&list(&dockerfile, "CMD"));
}
