//! Any bytes become keys, packets, sources and damage; every kernel must then do the same as the
//! portable one.
//!
//! The body of the fuzz target `protect_kernels`, and of `fuzz_replay`, which runs known inputs on
//! a stable compiler.

use squall_protect::{
    HeaderKey, HeaderKeyMaterial, KernelKind, KeyMaterial, Keys, Outcome, PacketKey, PacketMemory,
    PacketSpan, ScatteredPacket, Suite, TAG_LEN, kernels_available,
};

/// Takes values from the front of the input; zeros after its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// One packet of the input, and what to do with it.
struct Planned {
    span: PacketSpan,
    source_len: usize,
    /// Byte of the sealed packet that is damaged, and how.
    damage: (usize, u8),
}

/// Packets one after another, with gaps, in a buffer of bytes that depend on the input.
fn plan(input: &mut Input<'_>) -> (Vec<u8>, Vec<Planned>) {
    let seed = input.byte();
    let (mut buf, mut packets) = (Vec::new(), Vec::new());
    while !input.is_empty() && packets.len() < 70 {
        let [gap, shape, len_low, len_high, pn_offset, source] = input.bytes();
        let [damage_at, damage_by] = input.bytes();
        let number = u64::from_be_bytes(input.bytes()) >> (8 * ((shape >> 3) & 7));
        let pn_len = usize::from(shape & 3) + 1;
        let payload_len = usize::from(u16::from_le_bytes([len_low, len_high & 7]));
        let start = buf.len() + usize::from(gap % 40);
        let header_len = usize::from(pn_offset) + pn_len;
        let len = header_len + payload_len + usize::from(shape & 4 == 0) * 16;
        buf.extend((buf.len()..start + len).map(|i| (i as u8).wrapping_mul(seed | 1)));
        if shape & 0x40 == 0 {
            buf[start] = buf[start] & !3 | (pn_len - 1) as u8;
        }
        let mut span = PacketSpan::new(start as u32, len as u32, u16::from(pn_offset));
        (span.header_len, span.packet_number) = (header_len as u16, number);
        span.slot = shape >> 7;
        packets.push(Planned {
            span,
            source_len: usize::from(source) * payload_len / 254,
            damage: (usize::from(damage_at) * len / 256, damage_by),
        });
    }
    (buf, packets)
}

/// A kernel's results for a plan: every buffer and every outcome on the way.
#[derive(PartialEq, Debug)]
struct Made {
    buffers: Vec<Vec<u8>>,
    results: Vec<(Outcome, u16, u64)>,
}

impl Made {
    fn note(&mut self, buf: &[u8], spans: &[PacketSpan]) {
        self.buffers.push(buf.to_vec());
        let results = spans.iter();
        self.results
            .extend(results.map(|s| (s.outcome, s.header_len, s.packet_number)));
    }
}

fn run(keys: &Keys, plain: &[u8], packets: &[Planned], memory: &[u8]) -> Made {
    let mut made = Made {
        buffers: Vec::new(),
        results: Vec::new(),
    };
    let sources: Vec<&[u8]> = packets
        .iter()
        .map(|packet| &memory[..packet.source_len])
        .collect();
    let fresh = || packets.iter().map(|packet| packet.span).collect::<Vec<_>>();
    for sources in [&[], sources.as_slice()] {
        let (mut buf, mut spans) = (plain.to_vec(), fresh());
        keys.packet
            .seal(&keys.header, &mut buf, &mut spans, sources);
        made.note(&buf, &spans);
        for (span, packet) in spans.iter_mut().zip(packets) {
            let (at, by) = packet.damage;
            if let Some(byte) = buf.get_mut(span.start as usize + at) {
                // Most packets stay as they are.
                *byte ^= if by < 192 { 0 } else { by };
            }
            span.outcome = Outcome::Pending;
        }
        keys.header.unprotect(&mut buf, &mut spans);
        made.note(&buf, &spans);
        for (span, packet) in spans.iter_mut().zip(packets) {
            span.packet_number = packet.span.packet_number;
        }
        for slot in [0, 1] {
            keys.packet.open(&mut buf, &mut spans, slot);
        }
        made.note(&buf, &spans);
    }
    made
}

/// The same packets with header, payload and tag apart, each on its own path: sealed, damaged and
/// opened.
fn run_in_parts(key: &PacketKey, plain: &[u8], packets: &[Planned], memory: &[u8]) -> Made {
    let mut parts: Vec<_> = (packets.iter())
        .filter_map(|packet| {
            let (start, len) = (packet.span.start as usize, packet.span.len as usize);
            let header_len = usize::from(packet.span.header_len);
            let (header, payload) = plain
                .get(start..start + len)?
                .split_at_checked(header_len)?;
            Some((packet, header, payload.to_vec(), [0; TAG_LEN]))
        })
        .collect();
    let mut made = Made {
        buffers: Vec::new(),
        results: Vec::new(),
    };
    for open in [false, true] {
        let mut scattered: Vec<_> = (parts.iter_mut().enumerate())
            .map(|(i, (packet, header, payload, tag))| {
                let source = if open { 0 } else { packet.source_len };
                let number = packet.span.packet_number;
                let memory_of = PacketMemory::Parts {
                    header,
                    payload,
                    tag,
                };
                ScatteredPacket {
                    source: &memory[..source],
                    path_id: i as u32,
                    ..ScatteredPacket::new(memory_of, number)
                }
            })
            .collect();
        if open {
            key.open_scattered(&mut scattered);
        } else {
            key.seal_scattered(&mut scattered);
        }
        let outcomes = scattered.iter().map(|packet| (packet.outcome, 0, 0));
        made.results.extend(outcomes);
        for (packet, _, payload, tag) in &mut parts {
            made.buffers.push([&payload[..], &tag[..]].concat());
            let (at, by) = packet.damage;
            if let Some(byte) = payload.iter_mut().chain(tag).nth(at) {
                // Most packets stay as they are.
                *byte ^= if by < 192 { 0 } else { by };
            }
        }
    }
    made
}

/// Panics if a kernel differs from the portable one.
pub(crate) fn kernels_agree(data: &[u8]) {
    let mut input = Input(data);
    let suite = match input.byte() % 3 {
        0 => Suite::Aes128Gcm,
        1 => Suite::Aes256Gcm,
        _ => Suite::ChaCha20Poly1305,
    };
    let (key, hp, iv) = (input.bytes::<8>(), input.bytes::<8>(), input.bytes::<12>());
    let (key, hp) = ([key; 4], [hp; 4]);
    let packet = KeyMaterial::new(suite, &key.as_flattened()[..suite.key_len()], &iv)
        .expect("a key of the right length");
    let header = HeaderKeyMaterial::new(suite, &hp.as_flattened()[..suite.key_len()])
        .expect("a key of the right length");
    let (plain, packets) = plan(&mut input);
    let memory: Vec<u8> = (0..2100_usize).map(|i| ((i * 5) >> 1) as u8).collect();
    let mut expected = None;
    for kind in kernels_available() {
        let packet = PacketKey::with_kernel(&packet, kind);
        let header = HeaderKey::with_kernel(&header, kind);
        let (Some(packet), Some(header)) = (packet, header) else {
            continue;
        };
        let in_parts = run_in_parts(&packet, &plain, &packets, &memory);
        let whole = run(&Keys { packet, header }, &plain, &packets, &memory);
        let made = (whole, in_parts);
        match &expected {
            None => {
                assert_eq!(
                    kind,
                    KernelKind::Portable,
                    "the portable kernel has every suite, and comes first"
                );
                expected = Some(made);
            }
            Some(expected) => assert!(*expected == made, "{kind:?} {suite:?} differs"),
        }
    }
}
