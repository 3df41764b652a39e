//! Known inputs of the fuzz targets `qpack_decoder` and `qpack_round_trip`, on any compiler: small
//! corpora, and everything that was ever found.

use crate::scripts;
use std::path::Path;

fn replay(name: &str, target: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/seeds")
        .join(name);
    let mut ran = 0;
    target(&[]);
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let input = std::fs::read(&path).unwrap();
        let shown = std::panic::catch_unwind(|| target(&input));
        assert!(shown.is_ok(), "{}", path.display());
        ran += 1;
    }
    assert!(ran >= 20, "{ran} inputs: the corpus is there");
}

#[test]
fn decoder() {
    replay("qpack_decoder", scripts::decoder);
}

#[test]
fn round_trip() {
    replay("qpack_round_trip", scripts::round_trip);
}
