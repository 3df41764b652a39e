//! What the encoder keeps in its table.

use crate::{UNLIMITED, decode, take};
use squall_h3::qpack::{Decoder, Encoder, Field};

/// An encoder and a decoder without loss or delay, whose streams may not block.
struct Pair {
    encoder: Encoder,
    decoder: Decoder,
    stream_id: u64,
    inserted: usize,
}

impl Pair {
    fn new(capacity: usize) -> Self {
        let mut encoder = Encoder::new();
        encoder.set_limits(capacity as u64, 0, capacity);
        Self {
            encoder,
            decoder: Decoder::new(capacity, 0),
            stream_id: 0,
            inserted: 0,
        }
    }

    /// Sends a section of one line, and returns how many bytes it took.
    fn send(&mut self, name: &str, value: &str) -> usize {
        self.stream_id += 4;
        let mut block = Vec::new();
        let field = Field::new(name.as_bytes(), value.as_bytes());
        self.encoder
            .encode(self.stream_id, [field].into_iter(), &mut block);
        let instructions = take(self.encoder.instructions());
        self.inserted += usize::from(!instructions.is_empty());
        self.decoder.on_encoder_stream(&instructions).unwrap();
        let decoded = decode(&mut self.decoder, self.stream_id, &block).unwrap();
        assert_eq!(decoded, [(name.to_owned(), value.to_owned())]);
        let instructions = take(self.decoder.instructions());
        self.encoder.on_decoder_stream(&instructions).unwrap();
        block.len()
    }
}

/// A section with one entry of the dynamic table has at most this many bytes: a Required Insert
/// Count of two, a Base, and an index.
const INDEXED: usize = 2 + 2 + 1;

#[test]
fn a_line_is_inserted_when_it_recurs() {
    let mut pair = Pair::new(4096);
    let lens = [0; 4].map(|_| pair.send("x-name", "a value that recurs"));
    assert!(lens[0] > INDEXED && lens[1] > INDEXED, "{lens:?}");
    assert_eq!(lens[2..], [3, 3]);
    assert_eq!(pair.inserted, 1);
    // Only its name.
    assert!(pair.send("x-name", "one that does not") < lens[0]);
    assert_eq!(pair.inserted, 1);
}

#[test]
fn new_lines_replace_old_ones() {
    // A table of 512 bytes has room for 7 of these lines. Its counts are encoded modulo 32, and
    // wrap many times.
    let mut pair = Pair::new(512);
    for n in 0..1000 {
        let value = format!("a value that recurs, {n}");
        let lens = [0; 3].map(|_| pair.send("x-name", &value));
        assert!(lens[2] <= INDEXED, "{n}: {lens:?}");
    }
    assert_eq!(pair.inserted, 1000);
}

#[test]
fn a_cycle_of_more_lines_than_fit_keeps_some_indexed() {
    // 14 lines for a table of 7, repeated: the first ones stay. If each replaced the oldest, none
    // would ever be present when its line recurs.
    let mut pair = Pair::new(512);
    let mut indexed = 0;
    for _ in 0..50 {
        for n in 0..14 {
            let len = pair.send("x-name", &format!("a value that recurs, {n}"));
            indexed += usize::from(len <= INDEXED);
        }
    }
    assert!(indexed > 50 * 14 * 4 / 10, "{indexed} of 700");
    assert!(pair.inserted < 20, "{} inserts", pair.inserted);
}

#[test]
fn a_line_in_use_is_not_evicted() {
    // One line in every section, and others that come and go: the one is duplicated before it would
    // be evicted.
    let mut pair = Pair::new(512);
    for _ in 0..2 {
        pair.send("x-always", "the line that is always there");
    }
    for n in 0..200 {
        let value = format!("a value that comes and goes, {n}");
        for _ in 0..2 {
            assert!(
                pair.send("x-always", "the line that is always there") <= INDEXED,
                "{n}"
            );
            pair.send("x-name", &value);
        }
    }
    assert!(pair.inserted > 200);
}

#[test]
fn nothing_is_inserted_if_the_peer_has_no_table() {
    // RFC 9204 §3.2.3: no instruction at all may be sent.
    let mut encoder = Encoder::new();
    encoder.set_limits(0, 100, 4096);
    let mut decoder = Decoder::new(0, 0);
    for stream_id in 0..5 {
        let mut block = Vec::new();
        let field = Field::new(b"x-name", b"a value that recurs");
        encoder.encode(stream_id, [field].into_iter(), &mut block);
        assert!(encoder.instructions().is_empty());
        let mut out = squall_h3::qpack::FieldSection::new();
        assert!(
            decoder
                .decode(stream_id, &block, UNLIMITED, &mut out)
                .is_ok()
        );
    }
}
