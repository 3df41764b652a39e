//! Every kernel does what the portable one does, on batches of every shape.
//!
//! ```text
//!   plan (random geometry, plaintext, headers) ─▶ portable, all in place        ─▶ buffer A
//!                                              └▶ kernel, payloads from sources ─▶ buffer B == A
//!   A with some packets damaged ─▶ unprotect, open with both: same outcomes, same bytes, forged
//!                                  payloads wiped
//!                               └▶ open into targets: the same in two places
//! ```
//! Buffers are compared as a whole, so that a byte written between two packets is noticed.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

mod common;

use std::ops::RangeInclusive;

use common::for_every_kernel;
use squall_protect::{
    HeaderKeyMaterial, KernelKind, KeyMaterial, Keys, Outcome, PacketSpan, Suite, TAG_LEN,
};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn within(&mut self, range: RangeInclusive<usize>) -> usize {
        range.start() + (self.next() % (range.end() - range.start() + 1) as u64) as usize
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.next().is_multiple_of(one_in)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.next() as u8);
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.fill(&mut bytes);
        bytes
    }
}

struct Material(KeyMaterial, HeaderKeyMaterial);

fn material(random: &mut Random, suite: Suite) -> Material {
    let (key, hp) = (random.bytes::<32>(), random.bytes::<32>());
    Material(
        KeyMaterial::new(suite, &key[..suite.key_len()], &random.bytes()).unwrap(),
        HeaderKeyMaterial::new(suite, &hp[..suite.key_len()]).unwrap(),
    )
}

fn keys(material: &Material, kind: KernelKind) -> Option<Keys> {
    common::expand(&material.0, &material.1, kind)
}

/// Packets in plaintext, in place, with gaps between some.
#[derive(Clone)]
struct Plan {
    buf: Vec<u8>,
    spans: Vec<PacketSpan>,
}

impl Plan {
    fn new(first_gap: usize) -> Self {
        Self {
            buf: vec![0xa5; first_gap],
            spans: Vec::new(),
        }
    }

    fn push(&mut self, random: &mut Random, pn_offset: usize, pn_len: usize, payload_len: usize) {
        let payload_len = payload_len.max(4 - pn_len);
        let start = self.buf.len();
        let len = pn_offset + pn_len + payload_len + TAG_LEN;
        self.buf.resize(start + len, 0);
        random.fill(&mut self.buf[start..start + len - TAG_LEN]);
        self.buf[start] = self.buf[start] & !3 | (pn_len - 1) as u8;
        let number = random.next() >> random.within(2..=63);
        let field = start + pn_offset;
        let number_bytes = number.to_be_bytes();
        self.buf[field..field + pn_len].copy_from_slice(&number_bytes[8 - pn_len..]);
        let mut span = PacketSpan::new(start as u32, len as u32, pn_offset as u16);
        span.header_len = (pn_offset + pn_len) as u16;
        span.packet_number = number;
        self.spans.push(span);
    }

    fn gap(&mut self, len: usize) {
        self.buf.resize(self.buf.len() + len, 0xa5);
    }

    fn payload(&self, i: usize) -> std::ops::Range<usize> {
        let span = &self.spans[i];
        let start = span.start as usize;
        start + usize::from(span.header_len)..start + span.len as usize - TAG_LEN
    }
}

fn random_plan(random: &mut Random, count: usize, longest: usize) -> Plan {
    let mut plan = Plan::new(random.within(0..=70));
    let uniform = random.chance(2).then(|| random.within(0..=longest));
    for _ in 0..count {
        let pn_offset = match random.within(0..=9) {
            0 => random.within(1..=1300),
            1..=3 => random.within(1..=60),
            _ => 9,
        };
        let payload_len = uniform.unwrap_or_else(|| random.within(0..=longest));
        let pn_len = random.within(1..=4);
        plan.push(random, pn_offset, pn_len, payload_len);
        if random.chance(3) {
            plan.gap(random.within(1..=40));
        }
    }
    plan
}

/// Seals with the portable kernel, all in place, as the reference for the others.
fn sealed_by_reference(plan: &Plan, material: &Material) -> Plan {
    let mut sealed = plan.clone();
    let keys = keys(material, KernelKind::Portable).unwrap();
    keys.packet
        .seal(&keys.header, &mut sealed.buf, &mut sealed.spans, &[]);
    assert!(
        sealed
            .spans
            .iter()
            .all(|span| span.outcome == Outcome::Open)
    );
    sealed
}

/// Seals with the last `cut(i, payload length)` bytes of each payload taken from a source.
fn sealed_from_sources(
    plan: &Plan,
    keys: &Keys,
    mut cut: impl FnMut(usize, usize) -> usize,
) -> Plan {
    let mut sealed = plan.clone();
    let mut sources = Vec::new();
    for i in 0..plan.spans.len() {
        let payload = plan.payload(i);
        let from_source = payload.end - cut(i, payload.len())..payload.end;
        sources.push(plan.buf[from_source.clone()].to_vec());
        sealed.buf[from_source].fill(0x77);
    }
    let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
    keys.packet
        .seal(&keys.header, &mut sealed.buf, &mut sealed.spans, &sources);
    sealed
}

/// Unprotects; the numbers come from the plan, as an expansion would yield them.
fn unprotect(sealed: &Plan, plan: &Plan, keys: &Keys) -> Plan {
    let mut opened = sealed.clone();
    for span in &mut opened.spans {
        (span.outcome, span.header_len, span.packet_number) = (Outcome::Pending, 0, 0);
    }
    keys.header.unprotect(&mut opened.buf, &mut opened.spans);
    for (span, planned) in opened.spans.iter_mut().zip(&plan.spans) {
        let bits = 8 * u32::from(span.header_len - span.pn_offset);
        if span.header_len == planned.header_len {
            let mask = (1_u64 << bits) - 1;
            span.packet_number |= planned.packet_number & !mask;
        }
    }
    opened
}

/// Unprotects and opens.
fn open(sealed: &Plan, plan: &Plan, keys: &Keys) -> Plan {
    let mut opened = unprotect(sealed, plan, keys);
    keys.packet.open(&mut opened.buf, &mut opened.spans, 0);
    opened
}

/// Opens with the last `cut(i, payload length)` bytes of each payload going to a target, and checks
/// outcomes and bytes against what was opened in place.
fn check_targets(
    (sealed, plan): (&Plan, &Plan),
    expected: &Plan,
    keys: &Keys,
    mut cut: impl FnMut(usize, usize) -> usize,
    what: &str,
) {
    const CANARY: u8 = 0xc9;
    let mut opened = unprotect(sealed, plan, keys);
    let lens: Vec<usize> = (0..opened.spans.len())
        .map(|i| cut(i, opened.payload(i).len()))
        .collect();
    // A single piece of memory, with more than a register between two targets.
    let mut memory = vec![CANARY; lens.iter().map(|len| len + 67).sum()];
    let (mut rest, mut targets) = (memory.as_mut_slice(), Vec::new());
    for len in &lens {
        let (target, after) = rest[67..].split_at_mut(*len);
        targets.push(target);
        rest = after;
    }
    (keys.packet).open_into(&mut opened.buf, &mut opened.spans, 0, &mut targets);
    let mut rest = memory.as_slice();
    for (i, len) in lens.into_iter().enumerate() {
        let (target, after) = rest[67..].split_at(len);
        let gap = rest[..67].iter().all(|byte| *byte == CANARY);
        assert!(gap, "{what}: bytes before target {i}");
        rest = after;
        let payload = opened.payload(i);
        let expected_payload = &expected.buf[payload.clone()];
        let (head, tail) = expected_payload.split_at(payload.len() - len);
        assert_eq!(
            opened.spans[i].outcome, expected.spans[i].outcome,
            "{what}: packet {i}"
        );
        assert_eq!(target, tail, "{what}: target {i}");
        assert_eq!(
            &opened.buf[payload.clone()][..head.len()],
            head,
            "{what}: head {i}"
        );
        if opened.spans[i].outcome == Outcome::Forged {
            let wiped = opened.buf[payload.clone()].iter().all(|byte| *byte == 0);
            assert!(wiped, "{what}: payload {i}");
        }
        // Nothing is specified about the bytes that went to the target; the rest is unchanged.
        opened.buf[payload].copy_from_slice(expected_payload);
    }
    assert_same(expected, &opened, what);
}

fn assert_same(a: &Plan, b: &Plan, what: &str) {
    for (i, (a, b)) in a.spans.iter().zip(&b.spans).enumerate() {
        assert_eq!(
            (a.outcome, a.header_len, a.packet_number),
            (b.outcome, b.header_len, b.packet_number),
            "{what}: packet {i} of {b:?}"
        );
    }
    if let Some(at) = (0..a.buf.len()).find(|&at| a.buf[at] != b.buf[at]) {
        let inside = a
            .spans
            .iter()
            .position(|s| (s.start..s.start + s.len).contains(&(at as u32)));
        panic!(
            "{what}: byte {at} differs, packet {inside:?}: {:?}",
            inside.map(|i| a.spans[i])
        );
    }
}

fn check_plan(random: &mut Random, plan: &Plan, material: &Material, keys_: &Keys, what: &str) {
    let reference = sealed_by_reference(plan, material);
    let sealed = sealed_from_sources(plan, keys_, |_, _| 0);
    assert_same(&reference, &sealed, &format!("{what}, sealed in place"));
    let sealed = sealed_from_sources(plan, keys_, |_, len| match random.within(0..=3) {
        0 => 0,
        1 => len,
        2 => len - len.min(random.within(0..=40)),
        _ => random.within(0..=len),
    });
    assert_same(&reference, &sealed, &format!("{what}, sealed from sources"));

    let mut damaged = reference;
    for i in 0..damaged.spans.len() {
        if random.chance(6) {
            let span = damaged.spans[i];
            let at = random.within(span.start as usize..=(span.start + span.len) as usize - 1);
            damaged.buf[at] ^= 1 << random.within(0..=7);
        }
    }
    let reference_keys = keys(material, KernelKind::Portable).unwrap();
    let expected = open(&damaged, plan, &reference_keys);
    let opened = open(&damaged, plan, keys_);
    assert_same(&expected, &opened, &format!("{what}, opened"));
    let cut = |_, len: usize| match random.within(0..=3) {
        0 => 0,
        1 => len,
        2 => len - len.min(random.within(0..=40)),
        _ => random.within(0..=len),
    };
    let into = format!("{what}, opened into targets");
    check_targets((&damaged, plan), &expected, keys_, cut, &into);
    for (i, span) in opened.spans.iter().enumerate() {
        let payload = &opened.buf[opened.payload(i)];
        match span.outcome {
            Outcome::Open => assert_eq!(payload, &plan.buf[plan.payload(i)], "{what}"),
            Outcome::Forged => assert!(payload.iter().all(|byte| *byte == 0), "{what}"),
            other => panic!("{what}: {other:?}"),
        }
    }
}

#[test]
fn random_batches_agree() {
    for_every_kernel(|suite, kind, _| {
        for seed in 0..60 {
            let random = &mut Random(seed);
            let material = material(random, suite);
            let keys = keys(&material, kind).unwrap();
            let count = random.within(1..=64);
            let longest = [24, 120, 600, 1500][random.within(0..=3)];
            let plan = random_plan(random, count, longest);
            let what = format!("{suite:?} {kind:?} seed {seed}");
            check_plan(random, &plan, &material, &keys, &what);
        }
    });
}

#[test]
fn every_payload_length_agrees_alone_and_with_neighbours() {
    for_every_kernel(|suite, kind, _| {
        let random = &mut Random(7);
        let material = material(random, suite);
        let keys = keys(&material, kind).unwrap();
        let mut lengths = 0..=1530;
        while let Some(first) = lengths.next() {
            // Alone; then three equal ones and a different one, for which kernels pair packets.
            let count = if first % 2 == 0 { 1 } else { 4 };
            let mut plan = Plan::new(random.within(0..=32));
            for i in 0..count {
                let payload_len = if i == 3 {
                    lengths.next().unwrap_or(0)
                } else {
                    first
                };
                let (pn_offset, pn_len) = (random.within(1..=20), random.within(1..=4));
                plan.push(random, pn_offset, pn_len, payload_len);
            }
            let what = format!("{suite:?} {kind:?} payload {first}");
            check_plan(random, &plan, &material, &keys, &what);
        }
    });
}

#[test]
fn rows_of_every_length_agree() {
    for_every_kernel(|suite, kind, _| {
        let random = &mut Random(17);
        let material = material(random, suite);
        let keys = keys(&material, kind).unwrap();
        let mut full = Plan::new(0);
        (0..12).for_each(|_| full.push(random, 9, 4, 1433));
        check_plan(random, &full, &material, &keys, "grows the key");
        for payload_len in 0..=1530 {
            let what = format!("{suite:?} {kind:?} payload {payload_len}");
            // A row of packets to seal, and what ends it.
            let mut plan = Plan::new(0);
            for _ in 0..2 + payload_len % 7 {
                plan.push(random, 9, 1 + payload_len % 4, payload_len);
            }
            let other_len = random.within(0..=1500);
            plan.push(random, 9, 1, other_len);
            check_plan(random, &plan, &material, &keys, &what);
            // A row of packets to open: the lengths of the numbers are not visible.
            let mut plan = Plan::new(0);
            for pn_len in [4, 1, 3, 2, 4] {
                plan.push(random, 9, pn_len, payload_len + 4 - pn_len);
            }
            check_plan(random, &plan, &material, &keys, &what);
        }
    });
}

#[test]
fn long_packets_agree() {
    for_every_kernel(|suite, kind, _| {
        let random = &mut Random(11);
        let material = material(random, suite);
        let keys = keys(&material, kind).unwrap();
        // Around the powers of H in the two classes, and around a carry of the block counter's low
        // bytes.
        let around = [1488, 1504, 1520, 3024, 3040, 4096, 32_768].map(|n| n - 17..=n + 17);
        let mut lengths: Vec<usize> = around.into_iter().flatten().step_by(3).collect();
        lengths.extend([9000, 16_000, 65_507 - 13 - TAG_LEN, 65_507]);
        for payload_len in lengths {
            let mut plan = Plan::new(3);
            plan.push(random, 9, 4, payload_len);
            plan.push(random, 9, 1, 30);
            let what = format!("{suite:?} {kind:?} payload {payload_len}");
            check_plan(random, &plan, &material, &keys, &what);
        }
    });
}

#[test]
fn results_do_not_depend_on_the_table_of_powers() {
    for_every_kernel(|suite, kind, _| {
        let random = &mut Random(13);
        let material = material(random, suite);
        let mut keys = keys(&material, kind).unwrap();
        // Short class, then the call that builds the long one, then all lengths with it, then again
        // without it.
        for round in 0..4 {
            let full = if round == 1 { 12 } else { 2 };
            let mut plan = Plan::new(0);
            (0..full).for_each(|_| plan.push(random, 9, 2, 1433));
            (0..40).for_each(|i| plan.push(random, 9, 2, 37 * i + i));
            let what = format!("{suite:?} {kind:?} round {round}");
            check_plan(random, &plan, &material, &keys, &what);
            if round == 2 {
                keys.packet.shrink();
            }
        }
    });
}

#[test]
fn empty_and_short_packets_between_full_ones_agree() {
    for_every_kernel(|suite, kind, _| {
        let random = &mut Random(29);
        let material = material(random, suite);
        let keys = keys(&material, kind).unwrap();
        // A pipeline that continues from packet to packet meets every pair of neighbours.
        let lengths = [
            1440, 0, 1440, 16, 300, 0, 0, 31, 1441, 257, 256, 255, 0, 1472, 512, 513, 1, 600,
        ];
        let mut plan = Plan::new(0);
        for payload_len in lengths.into_iter().cycle().take(60) {
            plan.push(random, 9, 4, payload_len);
        }
        check_plan(
            random,
            &plan,
            &material,
            &keys,
            &format!("{suite:?} {kind:?}"),
        );
    });
}

#[test]
fn payloads_joined_with_a_source_at_every_offset_agree() {
    for_every_kernel(|suite, kind, _| {
        let random = &mut Random(17);
        let material = material(random, suite);
        let keys = keys(&material, kind).unwrap();
        for payload_len in [5, 31, 48, 100, 300, 333] {
            let mut plan = Plan::new(1);
            plan.push(random, 9, 3, payload_len);
            let reference = sealed_by_reference(&plan, &material);
            for from_source in 0..=payload_len {
                let sealed = sealed_from_sources(&plan, &keys, |_, _| from_source);
                let what = format!("{suite:?} {kind:?} {from_source} of {payload_len}");
                assert_same(&reference, &sealed, &what);
            }
        }
    });
}

#[test]
fn targets_at_every_offset_agree() {
    for_every_kernel(|suite, kind, _| {
        let random = &mut Random(37);
        let material = material(random, suite);
        let keys = keys(&material, kind).unwrap();
        // A chunk has 256 bytes, or 512.
        for payload_len in [5, 31, 64, 100, 300, 512, 515, 700] {
            let mut plan = Plan::new(1);
            plan.push(random, 9, 3, payload_len);
            let sealed = sealed_by_reference(&plan, &material);
            let mut forged = sealed.clone();
            *forged.buf.last_mut().unwrap() ^= 1;
            for (received, outcome) in [(&sealed, Outcome::Open), (&forged, Outcome::Forged)] {
                let expected = open(received, &plan, &keys);
                assert_eq!(expected.spans[0].outcome, outcome);
                for len in 0..=payload_len {
                    let what = format!("{suite:?} {kind:?} {len} of {payload_len}, {outcome:?}");
                    let cut = |_, _| len;
                    check_targets((received, &plan), &expected, &keys, cut, &what);
                }
            }
        }
    });
}

/// A kernel that decrypts to targets never writes the plaintext to the packet.
#[test]
fn keys_say_whether_opening_into_targets_saves_a_copy() {
    for_every_kernel(|suite, kind, _| {
        let random = &mut Random(41);
        let material = material(random, suite);
        let keys = keys(&material, kind).unwrap();
        let mut plan = Plan::new(0);
        (0..4).for_each(|_| plan.push(random, 9, 2, 1200));
        let sealed = sealed_by_reference(&plan, &material);
        let mut opened = unprotect(&sealed, &plan, &keys);
        let mut memory = [[0; 1190]; 4];
        let mut targets = memory.each_mut().map(<[u8; 1190]>::as_mut_slice);
        (keys.packet).open_into(&mut opened.buf, &mut opened.spans, 0, &mut targets);
        for i in 0..4 {
            let range = opened.payload(i);
            let middle = range.start + 200..range.end - 200;
            let saves = opened.buf[middle.clone()] != plan.buf[middle];
            assert_eq!(
                keys.packet.opens_into_targets(),
                saves,
                "{suite:?} {kind:?}"
            );
        }
    });
}

#[test]
fn a_forged_tag_fails_only_its_own_packet() {
    for_every_kernel(|suite, kind, _| {
        let random = &mut Random(19);
        let material = material(random, suite);
        let keys = keys(&material, kind).unwrap();
        for (count, payload_len) in [
            (1, 64),
            (2, 3),
            (3, 40),
            (8, 70),
            (9, 100),
            (17, 1400),
            (64, 20),
        ] {
            let mut plan = Plan::new(0);
            (0..count).for_each(|_| plan.push(random, 9, 4, payload_len));
            let sealed = sealed_by_reference(&plan, &material);
            for victim in 0..count {
                let mut damaged = sealed.clone();
                let tag = plan.payload(victim).end + random.within(0..=TAG_LEN - 1);
                damaged.buf[tag] ^= 1 << random.within(0..=7);
                // A short packet's sample may reach into the tag: then its header, but no other, is
                // corrupted too.
                let opened = open(&damaged, &plan, &keys);
                for (i, span) in opened.spans.iter().enumerate() {
                    let expected = if i == victim {
                        Outcome::Forged
                    } else {
                        Outcome::Open
                    };
                    assert_eq!(
                        span.outcome, expected,
                        "{suite:?} {kind:?} {i} of {count}, {victim}"
                    );
                }
            }
        }
    });
}

#[test]
fn slots_and_outcomes_select_the_spans() {
    for_every_kernel(|suite, kind, _| {
        let random = &mut Random(23);
        let (ours, other) = (material(random, suite), material(random, suite));
        let mut plan = Plan::new(0);
        (0..30).for_each(|i| plan.push(random, 9, 2, 50 * i));
        let mut sealed = sealed_by_reference(&plan, &ours);
        for (i, span) in sealed.spans.iter_mut().enumerate() {
            span.outcome = if i % 5 == 4 {
                Outcome::NoKey
            } else {
                Outcome::Pending
            };
            span.slot = (i % 3) as u8;
        }
        let ours = keys(&ours, kind).unwrap();
        let other = keys(&other, kind).unwrap();
        ours.header.unprotect(&mut sealed.buf, &mut sealed.spans);
        for (span, planned) in sealed.spans.iter_mut().zip(&plan.spans) {
            span.packet_number = planned.packet_number;
        }
        ours.packet.open(&mut sealed.buf, &mut sealed.spans, 1);
        other.packet.open(&mut sealed.buf, &mut sealed.spans, 2);
        for (i, span) in sealed.spans.iter().enumerate() {
            let expected = match (i % 5, i % 3) {
                (4, _) => Outcome::NoKey,
                (_, 0) => Outcome::Pending,
                (_, 1) => Outcome::Open,
                _ => Outcome::Forged,
            };
            assert_eq!(span.outcome, expected, "{suite:?} {kind:?} {i}");
        }
    });
}

#[test]
fn mixed_short_lengths_in_one_batch_agree() {
    for_every_kernel(|suite, kind, _| {
        for seed in 0..40 {
            let random = &mut Random(0x5107 + seed);
            let material = material(random, suite);
            let keys = keys(&material, kind).unwrap();
            // Kernels gather short packets of one length in blocks: runs of equal ones, broken at
            // random.
            let mut plan = Plan::new(random.within(0..=15));
            let mut payload_len = 0;
            for _ in 0..random.within(2..=64) {
                if random.chance(3) {
                    payload_len = random.within(0..=85);
                }
                let pn_len = random.within(1..=4);
                plan.push(random, 9, pn_len, payload_len);
            }
            let what = format!("{suite:?} {kind:?} seed {seed}");
            check_plan(random, &plan, &material, &keys, &what);
        }
    });
}

#[test]
fn every_byte_of_every_tag_counts() {
    for_every_kernel(|suite, kind, _| {
        let random = &mut Random(31);
        let material = material(random, suite);
        let keys = keys(&material, kind).unwrap();
        for (count, payload_len) in [(1, 0), (3, 20), (8, 64), (17, 33), (4, 500)] {
            let mut plan = Plan::new(1);
            (0..count).for_each(|_| plan.push(random, 9, 4, payload_len));
            let sealed = sealed_by_reference(&plan, &material);
            for (victim, byte) in (0..count).flat_map(|i| (0..TAG_LEN).map(move |b| (i, b))) {
                let mut damaged = sealed.clone();
                damaged.buf[plan.payload(victim).end + byte] ^= 1 << (byte % 8);
                let opened = open(&damaged, &plan, &keys);
                let forged: Vec<_> = (0..count)
                    .filter(|i| opened.spans[*i].outcome == Outcome::Forged)
                    .collect();
                let what = format!("{suite:?} {kind:?} byte {byte} of {victim} of {count}");
                assert_eq!(forged, [victim], "{what}");
            }
        }
    });
}
