//! An encoder and a decoder whose streams deliver at any time.

use crate::{List, UNLIMITED, list, take};
use proptest::prelude::*;
use squall_h3::qpack::{Decoded, Decoder, Encoder, Field, FieldSection, encode_static};
use std::collections::{BTreeMap, VecDeque};

/// A line of a test: a name and a value from a small set, so that lines recur, or a unique value.
#[derive(Clone, Debug)]
struct Line {
    name: String,
    value: String,
    sensitive: bool,
}

fn lines() -> impl Strategy<Value = Vec<Line>> {
    let name = prop_oneof![
        Just(":path".to_owned()),
        Just(":status".to_owned()),
        Just("cookie".to_owned()),
        Just("user-agent".to_owned()),
        Just("content-type".to_owned()),
        (0..4u8).prop_map(|n| format!("x-name-{n}")),
        "[a-z]{0,6}",
    ];
    let value = prop_oneof![
        Just("200".to_owned()),
        Just("image/png".to_owned()),
        (0..4u8).prop_map(|n| format!("a value that comes again and again, {n}")),
        (0..4u8).prop_map(|n| n.to_string().repeat(60)),
        "\\PC{0,20}",
    ];
    let line =
        (name, value, prop::bool::weighted(0.05)).prop_map(|(name, value, sensitive)| Line {
            name,
            value,
            sensitive,
        });
    prop::collection::vec(line, 0..8)
}

#[derive(Clone, Debug)]
enum Step {
    /// A section on a new stream, or on one that has already had one.
    Encode { lines: Vec<Line>, again: bool },
    /// A section that is not sent after all.
    Withdraw(Vec<Line>),
    /// This many bytes arrive at the decoder.
    EncoderStream(usize),
    /// This many bytes arrive at the encoder.
    DecoderStream(usize),
    /// The next section of a stream arrives.
    Section(usize),
    /// A stream is reset before its sections are decoded.
    Cancel(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (lines(), any::<bool>()).prop_map(|(lines, again)| Step::Encode { lines, again }),
        1 => lines().prop_map(Step::Withdraw),
        2 => (0..100usize).prop_map(Step::EncoderStream),
        2 => (0..4usize).prop_map(Step::DecoderStream),
        4 => (0..100usize).prop_map(Step::Section),
        1 => (0..100usize).prop_map(Step::Cancel),
    ]
}

fn fields(lines: &[Line]) -> impl Iterator<Item = Field<'_>> {
    lines.iter().map(|line| Field {
        name: line.name.as_bytes(),
        value: line.value.as_bytes(),
        sensitive: line.sensitive,
    })
}

/// An encoded section, and its lines.
type Section = (Vec<u8>, Vec<Line>);

struct Pair {
    encoder: Encoder,
    decoder: Decoder,
    encoder_stream: Vec<u8>,
    decoder_stream: Vec<u8>,
    streams: BTreeMap<u64, VecDeque<Section>>,
    next_stream: u64,
    decoded: usize,
}

impl Pair {
    fn new(max_capacity: usize, blocked: usize, own: usize) -> Self {
        let mut encoder = Encoder::new();
        encoder.set_limits(max_capacity as u64, blocked as u64, own);
        Self {
            encoder,
            decoder: Decoder::new(max_capacity, blocked),
            encoder_stream: Vec::new(),
            decoder_stream: Vec::new(),
            streams: BTreeMap::new(),
            next_stream: 0,
            decoded: 0,
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Encode { lines, again } => {
                let known = self.streams.keys().next_back().copied();
                let stream_id = match known {
                    Some(known) if *again => known,
                    _ => {
                        self.next_stream += 4;
                        self.next_stream
                    }
                };
                // What is in the buffer stays.
                let mut block = b"frame".to_vec();
                self.encoder.encode(stream_id, fields(lines), &mut block);
                assert!(block.starts_with(b"frame"));
                let block = block.split_off(5);
                let sections = self.streams.entry(stream_id).or_default();
                sections.push_back((block, lines.clone()));
            }
            Step::Withdraw(lines) => {
                let known = self.streams.keys().next_back();
                let stream_id = *known.unwrap_or(&self.next_stream);
                let mut block = Vec::new();
                self.encoder.encode(stream_id, fields(lines), &mut block);
                self.encoder.withdraw();
            }
            Step::EncoderStream(bytes) => self.deliver_encoder_stream(*bytes),
            Step::DecoderStream(bytes) => self.deliver_decoder_stream(*bytes),
            Step::Section(which) => self.deliver_section(*which),
            Step::Cancel(which) => {
                if let Some(stream_id) = self.stream(*which) {
                    self.streams.remove(&stream_id);
                    self.decoder.cancel_stream(stream_id);
                }
            }
        }
    }

    /// With nothing outstanding, new lines replace everything in the table.
    fn everything_can_be_evicted(&mut self, capacity: usize) {
        if capacity < 220 {
            return;
        }
        for number in 0..1000 {
            let value = format!("number {number}");
            let line = Line {
                name: "x-new".to_owned(),
                value,
                sensitive: false,
            };
            for _ in 0..3 {
                let lines = vec![line.clone()];
                self.step(&Step::Encode {
                    lines,
                    again: false,
                });
                self.deliver_encoder_stream(usize::MAX);
                self.deliver_section(0);
                self.deliver_decoder_stream(usize::MAX);
            }
        }
        let mut block = Vec::new();
        let field = Field::new(b"x-new", b"number 999");
        self.encoder.encode(0, [field].into_iter(), &mut block);
        assert!(block.len() <= 5, "{block:02x?}");
    }

    fn stream(&self, which: usize) -> Option<u64> {
        let at = which.checked_rem(self.streams.len())?;
        self.streams.keys().nth(at).copied()
    }

    fn deliver_encoder_stream(&mut self, bytes: usize) {
        self.encoder_stream
            .extend(take(self.encoder.instructions()));
        let data: Vec<u8> = self
            .encoder_stream
            .drain(..bytes.min(self.encoder_stream.len()))
            .collect();
        self.decoder.on_encoder_stream(&data).unwrap();
    }

    fn deliver_decoder_stream(&mut self, bytes: usize) {
        self.decoder_stream
            .extend(take(self.decoder.instructions()));
        let data: Vec<u8> = self
            .decoder_stream
            .drain(..bytes.min(self.decoder_stream.len()))
            .collect();
        self.encoder.on_decoder_stream(&data).unwrap();
    }

    /// A section decodes to its original lines, or is blocked if that is allowed.
    fn deliver_section(&mut self, which: usize) {
        let Some(stream_id) = self.stream(which) else {
            return;
        };
        let sections = self.streams.get_mut(&stream_id).unwrap();
        let (block, lines) = sections.front().unwrap();
        let mut out = FieldSection::new();
        let decoded = self.decoder.decode(stream_id, block, UNLIMITED, &mut out);
        if decoded == Ok(Decoded::Blocked) {
            return;
        }
        assert_eq!(decoded, Ok(Decoded::Done));
        assert_same(&out, lines);
        self.decoded += 1;
        sections.pop_front();
        if sections.is_empty() {
            self.streams.remove(&stream_id);
        }
    }
}

fn assert_same(out: &FieldSection, lines: &[Line]) {
    let expected: List = lines
        .iter()
        .map(|line| (line.name.clone(), line.value.clone()))
        .collect();
    assert_eq!(list(out), expected);
    let size: usize = expected
        .iter()
        .map(|(name, value)| name.len() + value.len() + 32)
        .sum();
    assert_eq!(out.size(), size);
    for (decoded, line) in out.iter().zip(lines) {
        if line.sensitive {
            assert!(decoded.never_indexed);
        }
        if let Some(range) = decoded.value_range() {
            assert_eq!(&out.text()[range], line.value.as_bytes());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn round_trips_in_any_order_of_delivery(
        max_capacity in prop::sample::select(vec![0, 64, 100, 220, 512, 4096, 65536]),
        own in prop::sample::select(vec![0, 100, 300, 4096]),
        blocked in prop::sample::select(vec![0, 1, 3, 100]),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut pair = Pair::new(max_capacity, blocked, own);
        for step in &steps {
            pair.step(step);
        }
        // Everything arrives in the end.
        pair.deliver_encoder_stream(usize::MAX);
        while !pair.streams.is_empty() {
            pair.deliver_section(0);
        }
        pair.deliver_decoder_stream(usize::MAX);
        assert!(pair.encoder.instructions().is_empty());
        pair.everything_can_be_evicted(max_capacity.min(own));
    }

    #[test]
    fn round_trips_without_dynamic_table(lines in lines()) {
        let mut block = Vec::new();
        encode_static(fields(&lines), &mut block);
        let mut out = FieldSection::new();
        let decoded = Decoder::new(0, 0).decode(0, &block, UNLIMITED, &mut out);
        assert_eq!(decoded, Ok(Decoded::Done));
        assert_same(&out, &lines);
    }
}
