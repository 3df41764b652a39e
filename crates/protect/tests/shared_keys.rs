//! Threads share a key while it grows.

mod common;

use std::sync::Barrier;

use common::{Batch, for_every_kernel};
use squall_protect::Outcome;

/// All of them find the key still small if they begin together.
const THREADS: usize = 4;

#[test]
fn threads_seal_and_open_with_one_key_while_it_grows() {
    // A fresh key for each: it grows once.
    for _ in 0..5 {
        for_every_kernel(|suite, kind, keys| {
            let small = common::keys(suite, kind).expect("the kernel has the suite");
            let mut expected = Batch::new(1200, 9);
            for span in expected.spans.chunks_mut(1) {
                // One packet per call: this key stays small.
                small
                    .packet
                    .seal(&small.header, &mut expected.buf, span, &[]);
            }
            let (keys, start) = (keys, Barrier::new(THREADS));
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (start, expected) = (&start, &expected);
                    scope.spawn(move || {
                        let mut batch = Batch::new(1200, 9);
                        let plain = batch.buf.clone();
                        start.wait();
                        if thread == 0 {
                            keys.packet.grow();
                        }
                        let (buf, spans) = (&mut batch.buf, &mut batch.spans);
                        keys.packet.seal(&keys.header, buf, spans, &[]);
                        assert!(batch.buf == expected.buf, "{suite:?} {kind:?}");
                        batch.pend();
                        keys.header.unprotect(&mut batch.buf, &mut batch.spans);
                        keys.packet.open(&mut batch.buf, &mut batch.spans, 0);
                        let is_open =
                            |span: &squall_protect::PacketSpan| span.outcome == Outcome::Open;
                        assert!(batch.spans.iter().all(is_open));
                        assert_eq!(
                            batch.payload(8),
                            &plain[plain.len() - 1216..plain.len() - 16]
                        );
                    });
                }
            });
        });
    }
}
