//! What QPACK costs: nanoseconds for a typical request and a typical response.
//!
//! `cargo test --release -p squall-h3 --test qpack cost -- --ignored --nocapture`

use squall_h3::qpack::{Decoded, Decoder, Encoder, Field, FieldSection, encode_static};
use std::hint::black_box;
use std::time::Instant;

/// What Chromium sends for a script.
const REQUEST: [(&str, &str); 15] = [
    (":method", "GET"),
    (":authority", "www.example.com"),
    (":scheme", "https"),
    (":path", "/static/js/main.3f2a91c4.js"),
    ("sec-ch-ua-platform", "\"Linux\""),
    (
        "user-agent",
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36",
    ),
    (
        "sec-ch-ua",
        "\"Chromium\";v=\"142\", \"Google Chrome\";v=\"142\", \"Not_A Brand\";v=\"99\"",
    ),
    ("sec-ch-ua-mobile", "?0"),
    ("accept", "*/*"),
    ("sec-fetch-site", "same-origin"),
    ("sec-fetch-mode", "no-cors"),
    ("sec-fetch-dest", "script"),
    ("referer", "https://www.example.com/"),
    ("accept-encoding", "gzip, deflate, br, zstd"),
    ("accept-language", "en-US,en;q=0.9"),
];

/// A server's answer.
const RESPONSE: [(&str, &str); 9] = [
    (":status", "200"),
    ("content-type", "application/javascript"),
    ("content-length", "48213"),
    ("date", "Mon, 23 Nov 2026 13:00:00 GMT"),
    ("last-modified", "Fri, 20 Nov 2026 08:12:31 GMT"),
    ("etag", "\"691ed0ff-bc55\""),
    ("cache-control", "public, max-age=31536000"),
    ("server", "squall"),
    ("accept-ranges", "bytes"),
];

fn fields<'a>(lines: &'a [(&str, &str)]) -> impl Iterator<Item = Field<'a>> {
    lines
        .iter()
        .map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes()))
}

/// The least of several means, in nanoseconds: other load only adds time.
fn measure(mut work: impl FnMut()) -> f64 {
    const ROUNDS: u32 = 20_000;
    let mean = || {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            work();
        }
        start.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
    };
    std::iter::repeat_with(mean)
        .take(20)
        .fold(f64::INFINITY, f64::min)
}

/// Encodes and decodes repeatedly. With a table, everything that recurs is in it.
fn with(name: &str, lines: &[(&str, &str)], capacity: usize) {
    let mut encoder = Encoder::new();
    encoder.set_limits(capacity as u64, 0, capacity);
    let mut decoder = Decoder::new(capacity, 0);
    let (mut block, mut out) = (Vec::new(), FieldSection::new());
    for stream_id in 0..5 {
        block.clear();
        encoder.encode(stream_id, fields(lines), &mut block);
        let instructions = std::mem::take(encoder.instructions());
        decoder
            .on_encoder_stream(&instructions)
            .expect("instructions");
        let decoded = decoder.decode(stream_id, &block, 16_384, &mut out);
        assert_eq!(decoded, Ok(Decoded::Done));
        let instructions = std::mem::take(decoder.instructions());
        encoder
            .on_decoder_stream(&instructions)
            .expect("instructions");
    }
    let encode = measure(|| {
        block.clear();
        encoder.encode(4, black_box(fields(lines)), &mut block);
        if capacity > 0 {
            encoder
                .on_decoder_stream(&[0x84])
                .expect("the acknowledgement is valid");
        }
        black_box(&block);
    });
    let decode = measure(|| {
        let decoded = decoder.decode(4, black_box(&block), 16_384, &mut out);
        assert_eq!(decoded, Ok(Decoded::Done));
        decoder.instructions().clear();
        black_box(&out);
    });
    let len = block.len();
    println!(
        "{name}, table of {capacity}: encode {encode:.0} ns, decode {decode:.0} ns, {len} bytes"
    );
}

#[test]
#[ignore = "measures, and asserts nothing of time"]
fn cost_in_nanoseconds() {
    for capacity in [0, 4096] {
        with("request", &REQUEST, capacity);
        with("response", &RESPONSE, capacity);
    }
    let mut block = Vec::new();
    let encode = measure(|| {
        block.clear();
        encode_static(black_box(fields(&RESPONSE)), &mut block);
        black_box(&block);
    });
    println!("response, without state: encode {encode:.0} ns");
}
