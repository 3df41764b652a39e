//! Rows 28 and 29 of the threat table in `SECURITY.md`, for every kernel and suite.

mod common;

use common::{Batch, HEADER_LEN, PN_OFFSET, for_every_kernel, keys};
use squall_protect::{KernelKind, Outcome, SAMPLE_LEN};

/// Samples whose first four bytes, which ChaCha20 reads as a block counter, are at its maximum, and
/// others that cause every possible carry (RFC 9001 §5.4.4; RUSTSEC-2025-0009 is a panic of another
/// stack at such a sample).
const SAMPLES: [[u8; SAMPLE_LEN]; 6] = [
    [0xff; 16],
    [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    [0xfe, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    [0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    [
        0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    ],
    [0x80; 16],
];

// test: RFC 9001 §5.4.4: a peer chooses the sample
#[test]
fn no_received_sample_overflows() {
    for_every_kernel(|suite, kind, ours| {
        let reference = keys(suite, KernelKind::Portable).unwrap();
        for count in [1, 2, 3, 8, 16, 64] {
            let mut received = Batch::new(40, count);
            for i in 0..count {
                let at = received.spans[i].start as usize + PN_OFFSET + 4;
                received.buf[at..at + SAMPLE_LEN].copy_from_slice(&SAMPLES[i % SAMPLES.len()]);
            }
            let mut expected = received.clone();
            ours.header
                .unprotect(&mut received.buf, &mut received.spans);
            reference
                .header
                .unprotect(&mut expected.buf, &mut expected.spans);
            assert_eq!(received.buf, expected.buf, "{suite:?} {kind:?} {count}");
        }
    });
}

#[test]
fn no_sent_sample_overflows() {
    for_every_kernel(|suite, kind, ours| {
        let reference = keys(suite, KernelKind::Portable).unwrap();
        for count in [1, 2, 3, 8, 16, 64] {
            // Both AEADs XOR a key stream: flipping plaintext bits flips the same ciphertext bits.
            let mut plain = Batch::new(40, count);
            let mut stream = plain.clone();
            stream.seal(&reference);
            for i in 0..count {
                let sample = SAMPLES[i % SAMPLES.len()];
                let (from, to) = (stream.payload(i).to_vec(), plain.payload(i));
                for (at, wanted) in sample.into_iter().enumerate() {
                    to[at] ^= from[at] ^ wanted;
                }
            }
            let mut expected = plain.clone();
            expected.seal(&reference);
            plain.seal(ours);
            assert_eq!(plain.buf, expected.buf, "{suite:?} {kind:?} {count}");
            for i in 0..count {
                let sample = &SAMPLES[i % SAMPLES.len()];
                assert_eq!(
                    &plain.payload(i)[..SAMPLE_LEN],
                    sample,
                    "the ciphertext is the intended sample"
                );
            }
        }
    });
}

#[test]
fn the_plaintext_of_a_forged_packet_is_wiped() {
    for_every_kernel(|suite, kind, ours| {
        for payload_len in [1, 15, 16, 40, 64, 65, 300, 1450] {
            for count in [1, 2, 3, 5, 8, 9, 16, 17] {
                let plain = Batch::new(payload_len, count);
                let mut sealed = plain.clone();
                sealed.seal(ours);
                for victim in 0..count {
                    let mut received = sealed.clone();
                    received.tag(victim)[15] ^= 1;
                    received.open(ours);
                    let what = format!("{suite:?} {kind:?} {victim} of {count}, {payload_len}");
                    assert_eq!(received.spans[victim].outcome, Outcome::Forged, "{what}");
                    let left = received.payload(victim);
                    assert!(left.iter().all(|byte| *byte == 0), "{what}");
                    let others = received.spans.iter().enumerate();
                    assert!(
                        others
                            .filter(|(i, _)| *i != victim)
                            .all(|(_, span)| span.outcome == Outcome::Open),
                        "{what}"
                    );
                }
            }
        }
    });
}

// test: RFC 9001 §5.3: header and number are authenticated with the payload
#[test]
fn every_byte_of_a_packet_is_authenticated() {
    for_every_kernel(|suite, kind, ours| {
        let mut sealed = Batch::new(37, 3);
        sealed.seal(ours);
        let len = sealed.spans[1].len as usize;
        for at in 0..len {
            let mut received = sealed.clone();
            received.buf[len + at] ^= 0x40;
            received.open(ours);
            let outcomes: Vec<_> = received.spans.iter().map(|span| span.outcome).collect();
            assert_eq!(
                outcomes,
                [Outcome::Open, Outcome::Forged, Outcome::Open],
                "{suite:?} {kind:?} byte {at}, of the header below {HEADER_LEN}"
            );
        }
    });
}
