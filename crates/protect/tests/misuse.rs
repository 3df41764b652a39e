//! Impossible spans are refused, whatever they contain; nothing panics or touches bytes outside the
//! buffer.

mod common;

use common::for_every_kernel;
use squall_protect::{Outcome, PacketSpan};

fn span(start: u32, len: u32, pn_offset: u16, header_len: u16, packet_number: u64) -> PacketSpan {
    PacketSpan {
        header_len,
        packet_number,
        ..PacketSpan::new(start, len, pn_offset)
    }
}

/// A first byte that announces a number of two bytes.
const TWO: u8 = 0x41;

#[test]
fn seal_rejects_impossible_packets() {
    let refused = [
        ("past the end", span(90, 40, 9, 11, 0)),
        ("far past the end", span(u32::MAX, u32::MAX, 9, 11, 0)),
        ("length without end", span(0, u32::MAX, 9, 11, 0)),
        ("empty", span(0, 0, 9, 11, 0)),
        ("shorter than a tag", span(0, 15, 9, 11, 0)),
        ("header longer than the packet", span(0, 60, 58, 60, 0)),
        (
            "header and tag longer than the packet",
            span(0, 60, 43, 45, 0),
        ),
        ("header ends before its number", span(0, 60, 9, 9, 0)),
        ("header ends before its number starts", span(0, 60, 9, 3, 0)),
        ("number in the first byte's place", span(0, 60, 0, 2, 0)),
        ("number of five bytes", span(0, 60, 9, 14, 0)),
        (
            "number length that the first byte contradicts",
            span(0, 60, 9, 12, 0),
        ),
        ("number above 2^62-1", span(0, 60, 9, 11, 1 << 62)),
        (
            "number and payload below four bytes",
            span(0, 9 + 2 + 1 + 16, 9, 11, 0),
        ),
    ];
    for_every_kernel(|_, _, keys| {
        for (what, bad) in refused {
            let mut buf = [TWO; 100];
            let mut spans = [bad];
            keys.packet.seal(&keys.header, &mut buf, &mut spans, &[]);
            assert_eq!(spans[0].outcome, Outcome::Skip, "{what}");
            assert_eq!(buf, [TWO; 100], "{what}");
        }
        let mut buf = [TWO; 100];
        let mut spans = [span(0, 9 + 2 + 2 + 16, 9, 11, (1 << 62) - 1)];
        keys.packet.seal(&keys.header, &mut buf, &mut spans, &[]);
        assert_eq!(
            spans[0].outcome,
            Outcome::Open,
            "the shortest packet with the highest number"
        );
        keys.packet.seal(&keys.header, &mut [], &mut [], &[]);
    });
}

#[test]
fn seal_rejects_sources_that_do_not_fit() {
    for_every_kernel(|_, _, keys| {
        let mut buf = [TWO; 200];
        let mut spans = [
            span(0, 60, 9, 11, 1),
            span(60, 60, 9, 11, 2),
            span(120, 60, 9, 11, 3),
        ];
        let (fits, too_long) = ([5; 33], [5; 34]);
        keys.packet
            .seal(&keys.header, &mut buf, &mut spans, &[&fits, &too_long]);
        let outcomes = spans.map(|span| span.outcome);
        // The third span has no source at all.
        assert_eq!(outcomes, [Outcome::Open, Outcome::Skip, Outcome::Skip]);
        assert_eq!(buf[60..], [TWO; 140]);
    });
}

#[test]
fn open_rejects_targets_that_do_not_fit() {
    for_every_kernel(|_, _, keys| {
        let mut sealed = [TWO; 240];
        let fresh = [0, 60, 120, 180].map(|start| span(start, 60, 9, 11, start.into()));
        let mut spans = fresh;
        keys.packet.seal(&keys.header, &mut sealed, &mut spans, &[]);
        let mut spans = fresh;
        keys.header.unprotect(&mut sealed, &mut spans);
        let mut spans = fresh;
        spans[1].slot = 1;
        let (mut buf, mut of_another_slot) = (sealed, [0; 33]);
        let (mut fits, mut too_long) = ([0; 33], [0; 34]);
        let targets: &mut [&mut [u8]] = &mut [&mut fits, &mut of_another_slot, &mut too_long];
        keys.packet.open_into(&mut buf, &mut spans, 0, targets);
        // A span that was not processed keeps its target, for the keys of its slot.
        assert_eq!([targets[0].len(), targets[1].len()], [0, 33]);
        let outcomes = spans.map(|span| span.outcome);
        // The last span has no target at all.
        let expected = [
            Outcome::Open,
            Outcome::Pending,
            Outcome::Skip,
            Outcome::Skip,
        ];
        assert_eq!(outcomes, expected);
        assert_eq!((fits, too_long), ([TWO; 33], [0; 34]));
        assert_eq!(buf[60..], sealed[60..]);

        let mut spans = fresh;
        keys.packet.open_into(&mut sealed, &mut spans, 0, &mut []);
        assert!(spans.iter().all(|span| span.outcome == Outcome::Open));
    });
}

#[test]
fn overlapping_and_descending_spans_are_rejected() {
    for_every_kernel(|_, _, keys| {
        let plan = [
            (span(10, 60, 9, 11, 1), Outcome::Open),
            (span(69, 40, 9, 11, 2), Outcome::Skip),
            (span(10, 60, 9, 11, 3), Outcome::Skip),
            (span(0, 30, 9, 11, 4), Outcome::Skip),
            (span(70, 60, 9, 11, 5), Outcome::Open),
        ];
        let mut buf = [TWO; 200];
        let mut spans = plan.map(|(span, _)| span);
        keys.packet.seal(&keys.header, &mut buf, &mut spans, &[]);
        assert_eq!(
            spans.map(|span| span.outcome),
            plan.map(|(_, outcome)| outcome)
        );

        let mut spans = plan.map(|(span, _)| span);
        keys.header.unprotect(&mut buf, &mut spans);
        let pending = |outcome| {
            if outcome == Outcome::Open {
                Outcome::Pending
            } else {
                outcome
            }
        };
        assert_eq!(
            spans.map(|span| span.outcome),
            plan.map(|(_, outcome)| pending(outcome))
        );

        let mut spans = plan.map(|(span, _)| span);
        keys.packet.open(&mut buf, &mut spans, 0);
        assert_eq!(
            spans.map(|span| span.outcome),
            plan.map(|(_, outcome)| outcome)
        );
    });
}

#[test]
// test: RFC 9001 §5.4.2: a packet too short for a sample is discarded
fn unprotect_skips_packets_too_short_for_a_sample() {
    for_every_kernel(|_, _, keys| {
        for (len, expected) in [
            (28, Outcome::Skip),
            (29, Outcome::Pending),
            (0, Outcome::Skip),
        ] {
            let mut buf = [TWO; 100];
            let mut spans = [span(0, len, 9, 0, 0)];
            keys.header.unprotect(&mut buf, &mut spans);
            assert_eq!(spans[0].outcome, expected, "{len}");
        }
        for bad in [
            span(80, 29, 9, 0, 0),
            span(0, 60, u16::MAX, 0, 0),
            span(0, 60, 0, 0, 0),
        ] {
            let mut buf = [TWO; 100];
            let mut spans = [bad];
            keys.header.unprotect(&mut buf, &mut spans);
            assert_eq!(spans[0].outcome, Outcome::Skip);
            assert_eq!(buf, [TWO; 100]);
        }
    });
}

#[test]
fn open_rejects_impossible_packets() {
    let refused = [
        span(90, 40, 9, 11, 0),
        span(u32::MAX, u32::MAX, 9, 11, 0),
        span(0, 15, 9, 11, 0),
        span(0, 60, 43, 45, 0),
        span(0, 60, 9, 9, 0),
        span(0, 60, 9, 3, 0),
        span(0, 60, 9, 14, 0),
        span(0, 60, 9, 11, 1 << 62),
        span(0, 60, 9, 11, u64::MAX),
    ];
    for_every_kernel(|_, _, keys| {
        for bad in refused {
            let mut buf = [TWO; 100];
            let mut spans = [bad];
            keys.packet.open(&mut buf, &mut spans, 0);
            assert_eq!(spans[0].outcome, Outcome::Skip, "{bad:?}");
            assert_eq!(buf, [TWO; 100]);
        }
        // The shortest that unprotect accepts: only number and tag.
        let mut buf = [TWO; 100];
        let mut spans = [span(0, 9 + 4 + 16, 9, 13, 0)];
        keys.packet.open(&mut buf, &mut spans, 0);
        assert_eq!(spans[0].outcome, Outcome::Forged);
    });
}
