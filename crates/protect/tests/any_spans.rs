//! Spans with arbitrary numbers: nothing panics, and nothing outside the valid ones is touched.

mod common;

use common::for_every_kernel;
use proptest::prelude::*;
use squall_protect::{Outcome, PacketSpan};

const BUFFER: usize = 700;

/// A field that is mostly near the possible values, and sometimes anything.
fn near(limit: u32) -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0..limit, 1 => any::<u32>(), 1 => Just(u32::MAX)]
}

fn any_span() -> impl Strategy<Value = PacketSpan> {
    let number = prop_oneof![
        0..1_u64 << 62,
        any::<u64>(),
        Just((1 << 62) - 1),
        Just(1 << 62)
    ];
    let outcome = prop_oneof![9 => Just(Outcome::Pending), 1 => Just(Outcome::NoKey)];
    let fields = (
        near(700),
        near(200),
        near(60),
        -1..=5_i32,
        number,
        0..2_u8,
        outcome,
    );
    fields.prop_map(
        |(start, len, pn_offset, number_len, packet_number, slot, outcome)| {
            let header_len = (pn_offset as i32).wrapping_add(number_len) as u16;
            let mut span = PacketSpan::new(start, len, pn_offset as u16);
            (span.header_len, span.packet_number) = (header_len, packet_number);
            (span.slot, span.outcome) = (slot, outcome);
            span
        },
    )
}

/// Some spans, mostly in order, since those that overlap earlier ones are refused anyway.
fn any_spans() -> impl Strategy<Value = Vec<PacketSpan>> {
    let spans = prop::collection::vec(any_span(), 0..40);
    (spans, prop::bool::weighted(0.9)).prop_map(|(mut spans, in_order)| {
        if in_order {
            spans.sort_by_key(|span| span.start);
        }
        spans
    })
}

/// Whether all bytes that differ lie in a span that was processed.
fn is_confined(before: &[u8], after: &[u8], spans: &[PacketSpan]) -> bool {
    let is_inside = |at: usize| {
        spans.iter().any(|span| {
            let start = span.start as usize;
            let worked_on = !matches!(span.outcome, Outcome::Skip | Outcome::NoKey);
            worked_on && (start..start + span.len as usize).contains(&at)
        })
    };
    (0..before.len()).all(|at| before[at] == after[at] || is_inside(at))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 300 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_spans_touch_only_valid_packets(
        spans in any_spans(),
        source_lens in prop::collection::vec(prop_oneof![0..50_usize, 0..2000_usize], 0..45),
        bytes in prop::collection::vec(any::<u8>(), BUFFER),
    ) {
        let memory = [0x33; 2000];
        let sources: Vec<&[u8]> = source_lens.iter().map(|len| &memory[..*len]).collect();
        let mut first: Option<(squall_protect::Suite, Vec<Vec<u8>>)> = None;
        for_every_kernel(|suite, kind, keys| {
            let mut results = Vec::new();
            for operation in 0..4 {
                let (mut buf, mut spans) = (bytes.clone(), spans.clone());
                let mut taken = vec![0x33; 67];
                match operation {
                    0 => keys.packet.seal(&keys.header, &mut buf, &mut spans, &sources),
                    1 => keys.header.unprotect(&mut buf, &mut spans),
                    2 => keys.packet.open(&mut buf, &mut spans, 0),
                    _ => {
                        let mut memory: Vec<Vec<u8>> = source_lens.iter().map(|len| vec![0x33; *len]).collect();
                        let mut targets: Vec<&mut [u8]> = memory.iter_mut().map(Vec::as_mut_slice).collect();
                        keys.packet.open_into(&mut buf, &mut spans, 0, &mut targets);
                        taken.extend(memory.concat());
                    }
                }
                assert!(is_confined(&bytes, &buf, &spans), "{suite:?} {kind:?} {operation}");
                buf.extend(spans.iter().map(|span| span.outcome as u8));
                buf.extend(taken);
                results.push(buf);
            }
            // The portable kernel is the first of each suite.
            match &first {
                Some((of, expected)) if *of == suite => {
                    assert!(*expected == results, "{suite:?} {kind:?} differs from the portable kernel");
                }
                _ => first = Some((suite, results)),
            }
        });
    }
}
