//! Known inputs of the fuzz target `protect_kernels`, on any compiler: a small corpus, and
//! everything that it ever found.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

#[path = "common/kernels_agree.rs"]
mod kernels_agree;

use std::path::Path;

#[test]
fn known_inputs_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/seeds/kernels_agree");
    let mut ran = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        kernels_agree::kernels_agree(&std::fs::read(entry.unwrap().path()).unwrap());
        ran += 1;
    }
    assert!(ran >= 20, "{ran} inputs: the corpus is there");
}
