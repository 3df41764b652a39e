//! Whether the time of an operation reveals a secret: two classes of inputs, measured in random
//! order, compared by Welch's t (Reparaz, Balasch and Verbauwhede, "Dude, is my code constant
//! time?", 2017).
//!
//! ```text
//!   class 0, class 1 ─▶ input of a random class ─▶ time it ─▶ crop the slowest ─▶ t of both means
//! ```
//! Run on demand, on a machine with little else to do:
//!
//! ```sh
//! cargo test --release -p squall-protect --test constant_time -- --ignored --nocapture
//! ```
//! A leak grows t with the square root of the measurements; noise does not. |t| above 10 fails, as
//! in the paper. A comparison that stops at the first difference is measured too, and must be
//! detected: otherwise the test proves nothing.

mod common;

use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;

use common::{Batch, for_every_kernel};
use squall_protect::{KernelKind, Outcome, TAG_LEN};

/// Above this, a leak counts as proved.
const THRESHOLD: f64 = 10.0;
/// How much the length of a number may affect the time, as a share. A payload after a longer number
/// begins up to three bytes later, so different loads cross cache lines: an in-place AEAD shows
/// that, by one percent at most here.
const CACHE_LINES: f64 = 0.02;
/// How much one more block may affect the time, if the number's length decides whether there is
/// one: 3 to 8 percent on Zen 5. The other form of the algorithm took 15 to 40 percent longer.
const A_BLOCK: f64 = 0.12;
const MEASUREMENTS: usize = 20_000;
/// Shares of the measurements that are kept: interrupts make a long tail, and a small leak is
/// visible in the lower part.
const KEPT: [f64; 4] = [0.3, 0.6, 0.9, 1.0];

/// Xorshift: chooses the next class.
struct Random(u64);

impl Random {
    fn class(&mut self) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize & 1
    }
}

/// Welch's t of two samples; 0 if one of them is too small to have a spread, as the slower class is
/// if a leak is so large that cropping leaves nothing of it. Then the uncropped times decide.
fn welch(samples: [&[f64]; 2]) -> f64 {
    if samples.iter().any(|sample| sample.len() < 2) {
        return 0.0;
    }
    let [(mean_0, var_0), (mean_1, var_1)] = samples.map(|sample| {
        let n = sample.len() as f64;
        let mean = sample.iter().sum::<f64>() / n;
        let squares: f64 = sample.iter().map(|x| (x - mean).powi(2)).sum();
        (mean, squares / (n - 1.0) / n)
    });
    let error = (var_0 + var_1).sqrt();
    // Equal means without any spread: there is no difference.
    if error == 0.0 {
        0.0
    } else {
        (mean_0 - mean_1) / error
    }
}

/// How two classes differ.
#[derive(Copy, Clone, Default)]
struct Difference {
    t: f64,
    /// The difference of the medians, as a share of them.
    share: f64,
}

/// The t of largest magnitude over the kept shares of measurements.
fn difference<I: Clone>(inputs: &[I; 2], mut work: impl FnMut(&mut I)) -> Difference {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut times = [Vec::new(), Vec::new()];
    for i in 0..MEASUREMENTS + MEASUREMENTS / 20 {
        let class = random.class();
        // One place in memory for both, so that an input's address has no effect.
        let mut input = black_box(inputs[class].clone());
        let began = Instant::now();
        work(&mut input);
        let took = began.elapsed().as_nanos() as f64;
        black_box(&input);
        // The first measurements find cold caches.
        if i >= MEASUREMENTS / 20 {
            times[class].push(took);
        }
    }
    let mut all = times.concat();
    all.sort_unstable_by(f64::total_cmp);
    let cropped = KEPT.map(|share| {
        let limit = all[((all.len() - 1) as f64 * share) as usize];
        let kept = times.each_ref().map(|times| {
            times
                .iter()
                .copied()
                .filter(|time| *time <= limit)
                .collect::<Vec<_>>()
        });
        welch(kept.each_ref().map(Vec::as_slice))
    });
    let medians = times.map(|mut times| {
        times.sort_unstable_by(f64::total_cmp);
        times[times.len() / 2]
    });
    let largest = cropped
        .into_iter()
        .max_by(|a, b| a.abs().total_cmp(&b.abs()));
    Difference {
        t: largest.unwrap_or(0.0),
        share: (medians[0] - medians[1]) / medians[0],
    }
}

/// The smallest t of several runs, 0 if they disagree in direction: a leak is in all of them, a
/// neighbour's burst of work in one. The inputs swap places between runs, since their addresses
/// have an effect too.
fn steady<I: Clone>(inputs: &[I; 2], mut work: impl FnMut(&mut I)) -> Difference {
    let [a, b] = inputs;
    let runs = [0, 1, 2, 3].map(|run| {
        if run % 2 == 0 {
            difference(&[a.clone(), b.clone()], &mut work)
        } else {
            let turned = difference(&[b.clone(), a.clone()], &mut work);
            Difference {
                t: -turned.t,
                share: -turned.share,
            }
        }
    });
    if runs.iter().any(|run| run.t.signum() != runs[0].t.signum()) {
        return Difference::default();
    }
    let smallest = runs
        .into_iter()
        .min_by(|a, b| a.t.abs().total_cmp(&b.t.abs()));
    smallest.unwrap_or_default()
}

fn forged_at(batch: &Batch, byte: usize) -> Batch {
    let mut forged = batch.clone();
    for i in 0..forged.spans.len() {
        forged.tag(i)[byte] ^= 1;
    }
    forged
}

/// Packets whose tags are wrong in the first byte, and in the last; all of `open`, including the
/// comparison. The headers are bare, so that otherwise equal packets differ in nothing else.
fn open_of_forged(batch: &Batch, keys: &squall_protect::Keys) -> Difference {
    let mut bare = batch.clone();
    bare.seal(keys);
    bare.pend();
    keys.header.unprotect(&mut bare.buf, &mut bare.spans);
    let inputs = [forged_at(&bare, 0), forged_at(&bare, TAG_LEN - 1)];
    steady(&inputs, |batch| {
        keys.packet.open(&mut batch.buf, &mut batch.spans, 0);
        assert_eq!(batch.spans[0].outcome, Outcome::Forged);
    })
}

/// The same, opened into targets that are wiped, too.
fn open_of_forged_into_targets(batch: &Batch, keys: &squall_protect::Keys) -> Difference {
    let mut bare = batch.clone();
    bare.seal(keys);
    bare.pend();
    keys.header.unprotect(&mut bare.buf, &mut bare.spans);
    let len = bare.payload(0).len();
    let mut memory = vec![0; len * bare.spans.len()];
    let inputs = [forged_at(&bare, 0), forged_at(&bare, TAG_LEN - 1)];
    steady(&inputs, |batch| {
        let mut data = memory.chunks_exact_mut(len);
        let mut targets: [&mut [u8]; 8] =
            std::array::from_fn(|_| data.next().map_or(&mut [][..], |data| &mut data[6..]));
        (keys.packet).open_into(&mut batch.buf, &mut batch.spans, 0, &mut targets);
        assert_eq!(batch.spans[0].outcome, Outcome::Forged);
    })
}

/// Received packets whose masked first bytes unmask to a number of one byte, and of four: a
/// difference would reveal bits of the mask to an attacker (RFC 9001 §9.5). `at_once` of them per
/// call, in place or into targets, which leave as much of each packet as a frame's head takes.
fn receipt_of_number_lengths(
    batch: &Batch,
    at_once: usize,
    into_targets: bool,
    keys: &squall_protect::Keys,
) -> Difference {
    let len = batch.clone().payload(0).len();
    let mut memory = vec![0; len * batch.spans.len()];
    let inputs = [0x40, 0x43].map(|wanted| {
        let mut received = batch.clone();
        received.seal(keys);
        received.pend();
        let mut bare = received.clone();
        keys.header.unprotect(&mut bare.buf, &mut bare.spans);
        for span in &batch.spans {
            let at = span.start as usize;
            received.buf[at] ^= bare.buf[at] ^ wanted;
        }
        // Both are forged: whether a packet opens is no secret.
        forged_at(&received, 0)
    });
    steady(&inputs, |batch| {
        let mut data = memory.chunks_exact_mut(len);
        for spans in batch.spans.chunks_mut(at_once) {
            keys.header.unprotect(&mut batch.buf, spans);
            if into_targets {
                let mut targets: [&mut [u8]; 8] =
                    std::array::from_fn(|_| data.next().map_or(&mut [][..], |data| &mut data[6..]));
                (keys.packet).open_into(&mut batch.buf, spans, 0, &mut targets);
            } else {
                keys.packet.open(&mut batch.buf, spans, 0);
            }
        }
    })
}

/// Stops at the first difference, which must not be done.
fn leaky_compare(tags: &mut ([u8; 4096], [u8; 4096])) {
    let differs = tags
        .0
        .iter()
        .zip(&tags.1)
        .any(|(a, b)| black_box(a) != black_box(b));
    black_box(differs);
}

#[test]
fn welchs_t_of_known_samples() {
    assert_eq!(welch([&[1.0, 1.0], &[1.0, 1.0]]), 0.0);
    let t = welch([&[1.0, 2.0, 3.0], &[2.0, 3.0, 4.0]]);
    assert!((t + 1.224_744).abs() < 1e-5, "{t}");
}

#[test]
#[ignore = "a measurement: it wants a quiet machine and a release build"]
fn operations_take_constant_time() {
    let (zeros, mut first, mut last) = ([0; 4096], [0; 4096], [0; 4096]);
    (first[0], last[4095]) = (1, 1);
    let control = steady(&[(zeros, first), (zeros, last)], leaky_compare);
    println!(
        "{:9.1} {:+7.2} %  control: a comparison that stops at the first difference",
        control.t,
        100.0 * control.share
    );
    assert!(
        control.t.abs() > THRESHOLD,
        "a leak is not found: {}",
        control.t
    );

    let mut found = Vec::new();
    for_every_kernel(|suite, kind, keys| {
        // Lengths with the same number of blocks for numbers of one and of four bytes.
        for (payload_len, count) in [(20, 1), (60, 8), (600, 2), (1400, 8)] {
            let batch = Batch::new(payload_len, count);
            for (what, difference, allowed) in [
                (
                    "open, tag wrong in its first or last byte",
                    open_of_forged(&batch, keys),
                    0.0,
                ),
                (
                    "open into targets, tag wrong in its first or last byte",
                    open_of_forged_into_targets(&batch, keys),
                    0.0,
                ),
                (
                    "unprotect and open, number of one or four bytes",
                    receipt_of_number_lengths(&batch, count, false, keys),
                    CACHE_LINES,
                ),
                (
                    "unprotect and open into targets, number of one or four bytes",
                    receipt_of_number_lengths(&batch, count, true, keys),
                    CACHE_LINES,
                ),
            ] {
                let Difference { t, share } = difference;
                let line = format!(
                    "{t:9.1} {:+7.2} %  {suite:?} {} {payload_len}x{count}: {what}",
                    100.0 * share,
                    kind.name()
                );
                println!("{line}");
                if t.abs() > THRESHOLD && share.abs() >= allowed {
                    found.push(line);
                }
            }
        }
        // Around the longest packets that have one lane each, and those that fill registers, where
        // the number's length decides how many blocks there are. One at a time, as forgeries
        // arrive; many, since the clock is coarse. The portable kernel takes up to a quarter longer
        // for a partial block, at every length: it is for machines that have nothing better.
        let lens: &[Range<usize>] = match kind {
            KernelKind::Portable => &[],
            _ => &[61..68, 253..260, 509..516],
        };
        for payload_len in lens.iter().cloned().flatten() {
            let batch = Batch::new(payload_len, 16);
            let Difference { t, share } = receipt_of_number_lengths(&batch, 1, false, keys);
            let line = format!(
                "{t:9.1} {:+7.2} %  {suite:?} {} {payload_len}x1: number of one or four bytes",
                100.0 * share,
                kind.name()
            );
            println!("{line}");
            if t.abs() > THRESHOLD && share.abs() >= A_BLOCK {
                found.push(line);
            }
        }
    });
    assert!(
        found.is_empty(),
        "time reveals a secret:\n{}",
        found.join("\n")
    );
}
