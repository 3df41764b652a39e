//! The committed header is the one that cbindgen generates from the sources.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::path::Path;

#[test]
fn the_header_matches_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut made = Vec::new();
    cbindgen::Builder::new()
        .with_crate(root)
        .with_config(config)
        .generate()
        .unwrap()
        .write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let path = root.join("include/squall_protect.h");
    if std::env::var_os("SQUALL_WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == made,
        "include/squall_protect.h is old: run SQUALL_WRITE_HEADER=1 cargo test -p squall-protect-c --test header"
    );
}
