//! Known inputs of the fuzz targets, on any compiler: the corpora in `fuzz/corpus`, and everything
//! that was ever found.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::path::{Path, PathBuf};

use squall_sim::fuzz::TARGETS;

fn replay(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).unwrap();
    let mut inputs: Vec<PathBuf> = std::fs::read_dir(folder.join(name))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    inputs.sort();
    assert!(
        inputs.len() >= 20,
        "{} inputs: the corpus is there",
        inputs.len()
    );
    target(&[]);
    for input in inputs {
        let bytes = std::fs::read(&input).unwrap();
        // A panic is reported after the name of its input.
        let shown = std::panic::catch_unwind(|| target(&bytes));
        assert!(shown.is_ok(), "fuzz/corpus/{name}: {}", input.display());
    }
}

#[test]
fn packets() {
    replay("packets");
}

#[test]
fn frames() {
    replay("frames");
}

#[test]
fn transport_parameters() {
    replay("transport_parameters");
}

#[test]
fn connection_client() {
    replay("connection_client");
}

#[test]
fn connection_server() {
    replay("connection_server");
}
