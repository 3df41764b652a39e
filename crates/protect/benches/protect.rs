//! Nanoseconds per packet for seal and for open, including header protection, by kernel, size and
//! batch.
//!
//! Each round works on fresh copies of a batch that together fit the second-level cache, as
//! received bundles do; only the operation is timed. The figures are medians of rounds. Arguments
//! pick rows and columns, for example `cargo bench -p squall-protect -- vaes256 aes128 64x8`; with
//! `--fastest` the figures are the fastest rounds', for a shared machine.

use std::hint::black_box;
use std::time::Instant;

use squall_protect::{
    HeaderKey, HeaderKeyMaterial, KernelKind, KeyMaterial, Keys, Outcome, PacketKey, PacketSpan,
    Suite, TAG_LEN, kernels_available,
};

const PAYLOADS: [usize; 5] = [4, 64, 256, 1200, 1450];
const BATCHES: [usize; 4] = [1, 8, 32, 64];
/// Unless `--rounds=N` says otherwise.
const ROUNDS: usize = 61;
/// Bytes that the copies of a batch may take.
const WORKING_SET: usize = 192 * 1024;
/// Form bit and fixed bit of a short header, and a number of four bytes, after a connection id of
/// eight bytes.
const FIRST_BYTE: u8 = 0x43;
const PN_OFFSET: usize = 9;
const HEADER_LEN: usize = PN_OFFSET + 4;

#[derive(Copy, Clone, PartialEq)]
enum Operation {
    Seal,
    SealFromSource,
    Open,
    OpenInto,
}

/// One buffer and its spans, to copy from.
#[derive(Clone)]
struct Batch {
    buf: Vec<u8>,
    spans: Vec<PacketSpan>,
}

fn batch(payload_len: usize, count: usize) -> Batch {
    let len = HEADER_LEN + payload_len + TAG_LEN;
    let mut buf: Vec<u8> = (0..len * count).map(|i| ((i * 31) >> 3) as u8).collect();
    let spans = (0..count).map(|i| {
        buf[i * len] = FIRST_BYTE;
        let number = 1000 + i as u32;
        buf[i * len + PN_OFFSET..i * len + HEADER_LEN].copy_from_slice(&number.to_be_bytes());
        PacketSpan {
            header_len: HEADER_LEN as u16,
            packet_number: number.into(),
            ..PacketSpan::new((i * len) as u32, len as u32, PN_OFFSET as u16)
        }
    });
    let spans = spans.collect();
    Batch { buf, spans }
}

fn keys(suite: Suite, kind: KernelKind) -> Option<Keys> {
    let key = [0x5a; 32];
    let packet = KeyMaterial::new(suite, &key[..suite.key_len()], &[7; 12])?;
    let header = HeaderKeyMaterial::new(suite, &key[..suite.key_len()])?;
    Some(Keys {
        packet: PacketKey::with_kernel(&packet, kind)?,
        header: HeaderKey::with_kernel(&header, kind)?,
    })
}

fn work<'a>(
    operation: Operation,
    keys: &Keys,
    batch: &'a mut Batch,
    sources: &[&[u8]],
    targets: &mut [&'a mut [u8]],
) {
    let Batch { buf, spans } = batch;
    match operation {
        Operation::Seal => keys.packet.seal(&keys.header, buf, spans, &[]),
        Operation::SealFromSource => keys.packet.seal(&keys.header, buf, spans, sources),
        Operation::Open => {
            keys.header.unprotect(buf, spans);
            keys.packet.open(buf, spans, 0);
        }
        Operation::OpenInto => {
            keys.header.unprotect(buf, spans);
            keys.packet.open_into(buf, spans, 0, targets);
        }
    }
    debug_assert_eq!(spans[0].outcome, Outcome::Open);
}

/// Median time per packet.
fn measure(
    operation: Operation,
    keys: &Keys,
    (payload_len, count): (usize, usize),
    picks: &Picks,
) -> f64 {
    let mut fresh = batch(payload_len, count);
    // A few frame bytes are in the packet; the rest comes from the application.
    let data = vec![0x3c; payload_len * count];
    let sources: Vec<&[u8]> = data
        .chunks(payload_len)
        .map(|chunk| &chunk[8.min(payload_len)..])
        .collect();
    if matches!(operation, Operation::Open | Operation::OpenInto) {
        keys.packet
            .seal(&keys.header, &mut fresh.buf, &mut fresh.spans, &[]);
        fresh
            .spans
            .iter_mut()
            .for_each(|span| span.outcome = Outcome::Pending);
    }
    let copies = (WORKING_SET / fresh.buf.len()).clamp(1, 128);
    let mut batches = vec![fresh.clone(); copies];
    let mut memory = vec![0; data.len() * copies];
    let mut times: Vec<f64> = (0..picks.rounds)
        .map(|_| {
            for batch in &mut batches {
                batch.buf.copy_from_slice(&fresh.buf);
                batch.spans.copy_from_slice(&fresh.spans);
            }
            let mut targets: Vec<&mut [u8]> = memory
                .chunks_mut(payload_len)
                .map(|chunk| &mut chunk[8.min(payload_len)..])
                .collect();
            let targets = targets.chunks_mut(count);
            let start = Instant::now();
            for (batch, targets) in batches.iter_mut().zip(targets) {
                work(operation, keys, black_box(batch), &sources, targets);
            }
            start.elapsed().as_secs_f64() * 1e9 / (copies * count) as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    if std::env::args().any(|arg| arg == "--fastest") {
        times[0]
    } else {
        times[ROUNDS / 2]
    }
}

/// What to measure: rows by substrings of their names, columns by names such as `64x8`; all of them
/// without arguments.
struct Picks {
    rows: Vec<String>,
    columns: Vec<(usize, usize)>,
    rounds: usize,
    fastest: bool,
}

impl Picks {
    fn from_arguments() -> Self {
        let mut picks = Self {
            rows: Vec::new(),
            columns: Vec::new(),
            rounds: ROUNDS,
            fastest: false,
        };
        for argument in std::env::args().skip(1) {
            let column = argument
                .split_once('x')
                .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
            let rounds = argument
                .strip_prefix("--rounds=")
                .and_then(|rounds| rounds.parse().ok());
            match (column, rounds) {
                (Some(column), _) => picks.columns.push(column),
                (_, Some(rounds)) => picks.rounds = rounds,
                _ if argument == "--fastest" => picks.fastest = true,
                // Cargo adds `--bench`.
                _ if argument.starts_with('-') => {}
                _ => picks.rows.push(argument),
            }
        }
        if picks.columns.is_empty() {
            picks.columns = PAYLOADS
                .into_iter()
                .flat_map(|len| BATCHES.map(|count| (len, count)))
                .collect();
        }
        picks
    }

    fn row(&self, name: &str) -> bool {
        self.rows.iter().all(|pick| name.contains(pick.as_str()))
    }
}

fn main() {
    let picks = Picks::from_arguments();
    println!("ns a packet, header protection included; columns: payload bytes x packets in a call");
    print!("{:34}", "");
    for &(payload_len, count) in &picks.columns {
        print!(" {:>8}", format!("{payload_len}x{count}"));
    }
    println!();
    for (suite_name, suite) in [
        ("aes128", Suite::Aes128Gcm),
        ("aes256", Suite::Aes256Gcm),
        ("chacha20", Suite::ChaCha20Poly1305),
    ] {
        for kind in kernels_available() {
            for (operation_name, operation) in [
                ("seal", Operation::Seal),
                ("seal from source", Operation::SealFromSource),
                ("open", Operation::Open),
                ("open into targets", Operation::OpenInto),
            ] {
                let row = format!("{suite_name} {} {operation_name}", kind.name());
                let Some(keys) = keys(suite, kind).filter(|_| picks.row(&row)) else {
                    continue;
                };
                print!("{row:34}");
                for &(payload_len, count) in &picks.columns {
                    print!(
                        " {:8.1}",
                        measure(operation, &keys, (payload_len, count), &picks)
                    );
                }
                println!();
            }
        }
    }
}
