//! The bodies of the fuzz targets `qpack_decoder` and `qpack_round_trip`: they take any bytes and
//! assert what must hold.

use squall_h3::qpack::{
    DecodeError, Decoded, Decoder, Encoder, Field, FieldSection, encode_static,
};
use std::collections::{BTreeMap, VecDeque};

/// The rest of a script.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Length-prefixed bytes, or as many as are left.
    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::from(self.byte()?) << 8 | usize::from(self.byte()?);
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        Some(bytes)
    }
}

fn capacity(byte: u8) -> usize {
    [0, 64, 220, 256, 512, 4096, 4096, 16_384][usize::from(byte & 7)]
}

fn blocked(byte: u8) -> usize {
    [0, 1, 3, 100][usize::from(byte >> 3 & 3)]
}

fn lines(section: &FieldSection) -> Vec<(Vec<u8>, Vec<u8>)> {
    section
        .iter()
        .map(|line| (line.name.to_vec(), line.value.to_vec()))
        .collect()
}

/// A decoder whose peer sends arbitrary bytes.
///
/// The first byte gives the settings. Then come records: a byte that selects the stream, the
/// encoder stream or one of 16 requests, a length of two bytes, and the data that arrives there.
pub(crate) fn decoder(data: &[u8]) {
    let mut input = Input(data);
    let Some(settings) = input.byte() else { return };
    let limit = [100, 1000, 16_384, 1 << 20][usize::from(settings >> 5 & 3)];
    let mut decoder = Decoder::new(capacity(settings), blocked(settings));
    let mut waiting: BTreeMap<u64, &[u8]> = BTreeMap::new();
    let mut out = FieldSection::new();
    while let Some(kind) = input.byte() {
        let stream_id = u64::from(kind & 15);
        let bytes = match kind >> 4 {
            0 => {
                waiting.remove(&stream_id);
                decoder.cancel_stream(stream_id);
                continue;
            }
            1 => {
                decoder.instructions().clear();
                continue;
            }
            _ => input.bytes().unwrap_or_default(),
        };
        if kind >= 0xa0 {
            // A stream that is blocked has no further section yet.
            waiting.entry(stream_id).or_insert(bytes);
        } else if decoder.on_encoder_stream(bytes).is_err() {
            return;
        }
        let mut failed = false;
        waiting.retain(|stream_id, block| {
            match decoder.decode(*stream_id, block, limit, &mut out) {
                Ok(Decoded::Blocked) => return true,
                Ok(Decoded::Done) => check(&out, limit),
                Err(DecodeError::TooLarge) => assert!(out.size() <= limit),
                Err(DecodeError::Connection(_)) => failed = true,
            }
            false
        });
        assert!(waiting.len() <= blocked(settings));
        if failed {
            return;
        }
    }
}

/// A decoded section keeps to its limit, and stays the same when it is forwarded.
fn check(section: &FieldSection, limit: usize) {
    let lines = lines(section);
    let sizes = lines
        .iter()
        .map(|(name, value)| name.len() + value.len() + 32);
    assert_eq!(section.size(), sizes.sum::<usize>());
    assert!(section.size() <= limit);
    assert!(section.text_len() <= limit);
    for line in section.iter() {
        if let Some(range) = line.value_range() {
            assert_eq!(&section.text()[range], line.value);
        }
    }
    let fields = section.iter().map(|line| Field {
        name: line.name,
        value: line.value,
        sensitive: line.never_indexed,
    });
    let mut block = Vec::new();
    encode_static(fields, &mut block);
    let mut again = FieldSection::new();
    let decoded = Decoder::new(0, 0).decode(0, &block, limit, &mut again);
    assert_eq!(decoded, Ok(Decoded::Done));
    assert_eq!(self::lines(&again), lines);
}

/// An encoder and a decoder between which data arrives when the script says so, or an encoder whose
/// peer sends arbitrary bytes.
pub(crate) fn round_trip(data: &[u8]) {
    let mut input = Input(data);
    let (Some(settings), Some(own)) = (input.byte(), input.byte()) else {
        return;
    };
    let mut pair = Pair::new(settings, capacity(own));
    while let Some(kind) = input.byte() {
        if pair.step(kind, &mut input).is_none() {
            return;
        }
    }
    pair.finish();
}

/// An encoded section, and its lines.
type Section = (Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>);

struct Pair {
    encoder: Encoder,
    decoder: Decoder,
    encoder_stream: Vec<u8>,
    decoder_stream: Vec<u8>,
    streams: BTreeMap<u64, VecDeque<Section>>,
    /// Streams that have been reset have no further sections.
    cancelled: Vec<u64>,
    capacity: usize,
    /// Whether the script plays the decoder.
    hostile: bool,
}

impl Pair {
    fn new(settings: u8, own: usize) -> Self {
        let (capacity, blocked) = (capacity(settings), blocked(settings));
        let mut encoder = Encoder::new();
        encoder.set_limits(capacity as u64, blocked as u64, own);
        Self {
            encoder,
            decoder: Decoder::new(capacity, blocked),
            encoder_stream: Vec::new(),
            decoder_stream: Vec::new(),
            streams: BTreeMap::new(),
            cancelled: Vec::new(),
            capacity: capacity.min(own),
            hostile: settings & 0x80 != 0,
        }
    }

    /// `None` if the connection has failed.
    fn step(&mut self, kind: u8, input: &mut Input<'_>) -> Option<()> {
        let stream_id = u64::from(kind & 15);
        match kind >> 4 {
            0..6 => self.encode(stream_id, input),
            6..8 => self.deliver_encoder_stream(usize::from(kind & 31)),
            8 if self.hostile => self.encoder.on_decoder_stream(input.bytes()?).ok()?,
            8..10 => self.deliver_decoder_stream(usize::from(kind & 31)),
            10 if !self.hostile => {
                self.streams.remove(&stream_id);
                self.cancelled.push(stream_id);
                self.decoder.cancel_stream(stream_id);
            }
            _ => self.deliver_section(stream_id),
        }
        Some(())
    }

    /// A section whose names and values come from a small set or from the script.
    fn encode(&mut self, stream_id: u64, input: &mut Input<'_>) {
        const NAMES: [&str; 6] = [":path", "cookie", "user-agent", "x-name", "x-other", "date"];
        if self.cancelled.contains(&stream_id) {
            return;
        }
        let mut lines = Vec::new();
        let mut fields = Vec::new();
        for _ in 0..input.byte().unwrap_or_default() & 7 {
            let kind = input.byte().unwrap_or_default();
            let name = NAMES.get(usize::from(kind & 7));
            let name =
                name.map_or_else(|| input.bytes().unwrap_or_default(), |name| name.as_bytes());
            let value = match kind >> 3 & 15 {
                0 => input.bytes().unwrap_or_default().to_vec(),
                repeated => format!("value {repeated} ")
                    .repeat(usize::from(repeated))
                    .into(),
            };
            lines.push((name.to_vec(), value));
            fields.push(kind & 0x80 != 0);
        }
        let fields = lines
            .iter()
            .zip(fields)
            .map(|((name, value), sensitive)| Field {
                name,
                value,
                sensitive,
            });
        let mut block = Vec::new();
        self.encoder.encode(stream_id, fields, &mut block);
        self.encoder_stream.append(self.encoder.instructions());
        if self.hostile {
            // Unacknowledged data costs no more than a table.
            assert!(self.encoder_stream.len() <= self.capacity + 64);
            self.encoder_stream.clear();
            return;
        }
        self.streams
            .entry(stream_id)
            .or_default()
            .push_back((block, lines));
    }

    fn deliver_encoder_stream(&mut self, bytes: usize) {
        let part: Vec<u8> = self
            .encoder_stream
            .drain(..bytes.min(self.encoder_stream.len()))
            .collect();
        self.decoder
            .on_encoder_stream(&part)
            .expect("our own instructions");
    }

    fn deliver_decoder_stream(&mut self, bytes: usize) {
        self.decoder_stream.append(self.decoder.instructions());
        let part: Vec<u8> = self
            .decoder_stream
            .drain(..bytes.min(self.decoder_stream.len()))
            .collect();
        self.encoder
            .on_decoder_stream(&part)
            .expect("our own instructions");
    }

    fn deliver_section(&mut self, stream_id: u64) {
        let Some(sections) = self.streams.get_mut(&stream_id) else {
            return;
        };
        let Some((block, expected)) = sections.front() else {
            return;
        };
        let mut out = FieldSection::new();
        let decoded = self
            .decoder
            .decode(stream_id, block, usize::MAX >> 1, &mut out);
        if decoded == Ok(Decoded::Blocked) {
            return;
        }
        assert_eq!(decoded, Ok(Decoded::Done));
        assert_eq!(&lines(&out), expected);
        sections.pop_front();
    }

    /// Everything arrives in the end.
    fn finish(&mut self) {
        self.deliver_encoder_stream(usize::MAX);
        let streams: Vec<u64> = self.streams.keys().copied().collect();
        for stream_id in streams {
            while self
                .streams
                .get(&stream_id)
                .is_some_and(|sections| !sections.is_empty())
            {
                self.deliver_section(stream_id);
            }
        }
        self.deliver_decoder_stream(usize::MAX);
    }
}
