//! The operations for stacks that apply header protection themselves: they give the same results as
//! the fused calls and the portable kernel.

mod common;

use common::{Batch, HEADER_LEN, PN_OFFSET, for_every_kernel, keys};
use squall_protect::{KernelKind, MASK_LEN, Outcome, SAMPLE_LEN};

/// Distinct samples.
fn samples<const N: usize>() -> [[u8; SAMPLE_LEN]; N] {
    std::array::from_fn(|i| std::array::from_fn(|k| (i * 31 + k * 7 + 1) as u8))
}

#[test]
// test: RFC 9001 §5.4.3, §5.4.4
fn masks_agree_with_the_portable_kernel() {
    let samples = samples::<40>();
    for_every_kernel(|suite, kind, fast| {
        let portable =
            keys(suite, KernelKind::Portable).expect("the portable kernel has every suite");
        for count in 0..=samples.len() {
            let mut expected = [[0xee; MASK_LEN]; 40];
            for (sample, mask) in samples.iter().zip(&mut expected).take(count) {
                portable
                    .header
                    .masks(&[*sample], std::slice::from_mut(mask));
            }
            let mut masks = [[0xee; MASK_LEN]; 40];
            fast.header.masks(&samples[..count], &mut masks);
            assert_eq!(masks, expected, "{suite:?} {kind:?}, {count} samples");
            let mut masks = [[0xee; MASK_LEN]; 40];
            fast.header.masks(&samples, &mut masks[..count]);
            assert_eq!(masks, expected, "{suite:?} {kind:?}, {count} masks");
        }
    });
}

#[test]
// test: RFC 9001 §5.3, §5.4.1
fn aead_and_masks_produce_the_packets_of_seal() {
    for_every_kernel(|suite, kind, keys| {
        let mut fused = Batch::new(100, 20);
        let mut pieces = fused.clone();
        let (packet, header) = (&keys.packet, &keys.header);
        packet.seal(header, &mut fused.buf, &mut fused.spans, &[]);
        packet.seal_aead(&mut pieces.buf, &mut pieces.spans, &[]);
        let is_sealed = |span: &squall_protect::PacketSpan| span.outcome == Outcome::Open;
        assert!(pieces.spans.iter().all(is_sealed));

        for span in &pieces.spans {
            let sealed = &mut pieces.buf[span.start as usize..][..span.len as usize];
            let (_, sample) = sealed.split_at(HEADER_LEN);
            let sample = *sample.first_chunk().expect("100 bytes hold a sample");
            let mut masks = [[0; MASK_LEN]];
            header.masks(&[sample], &mut masks);
            let [[first, number @ ..]] = masks;
            // A short header.
            sealed[0] ^= first & 0x1f;
            for (byte, mask) in sealed[PN_OFFSET..].iter_mut().zip(number) {
                *byte ^= mask;
            }
        }
        assert_eq!(pieces.buf, fused.buf, "{suite:?} {kind:?}");
    });
}
