//! Every combination of header protection and AEAD produces the same packets as `seal`, and opens
//! them.

mod common;

use common::{Batch, HEADER_LEN, for_every_kernel};
use squall_protect::Outcome;
use squall_protect::ablation::{self, Way};

const WAYS: [Way; 6] = [
    Way::OneByOne,
    Way::Batched(8),
    Way::Batched(32),
    Way::Batched(0),
    Way::Fused,
    Way::FusedAndBatched,
];

#[test]
fn all_ablations_produce_the_same_packets() {
    for_every_kernel(|suite, kind, keys| {
        for payload_len in [4, 16, 64, 300, 1450] {
            let plain = Batch::new(payload_len, 35);
            let mut sealed = plain.clone();
            sealed.seal(keys);
            for way in WAYS {
                if !ablation::has(way, keys) {
                    continue;
                }
                let what = format!("{kind:?} {suite:?} {way:?} {payload_len}");
                let mut batch = plain.clone();
                ablation::seal(way, keys, &mut batch.buf, &mut batch.spans, &[]);
                assert!(batch.buf == sealed.buf, "{what}");
                batch.pend();
                ablation::open(way, keys, &mut batch.buf, &mut batch.spans);
                let mut outcomes = batch.spans.iter().map(|span| span.outcome);
                assert!(outcomes.all(|outcome| outcome == Outcome::Open), "{what}");
                let payload = HEADER_LEN..HEADER_LEN + payload_len;
                assert_eq!(batch.buf[payload.clone()], plain.buf[payload], "{what}");
            }
            let mut batch = plain.clone();
            let (key, header) = (&keys.packet, &keys.header);
            let (buf, spans) = (&mut batch.buf, &mut batch.spans);
            ablation::seal_in_two_passes(key, header, buf, spans, &[]);
            assert!(batch.buf == sealed.buf, "{kind:?} {suite:?} {payload_len}");
            let mut batch = plain.clone();
            ablation::seal(Way::AeadAlone, keys, &mut batch.buf, &mut batch.spans, &[]);
            let (header, rest) = (..HEADER_LEN, HEADER_LEN..plain.spans[0].len as usize);
            assert_eq!(
                batch.buf[header], plain.buf[header],
                "the header is unprotected"
            );
            assert_eq!(batch.buf[rest.clone()], sealed.buf[rest]);
        }
    });
}
