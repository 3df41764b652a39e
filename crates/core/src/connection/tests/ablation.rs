//! Each switch of [`Ablation`] changes the path that packets take, but no byte that arrives.

use arrayvec::ArrayVec;
use bytes::Bytes;
use squall_protect::TAG_LEN;
use squall_wire::{Direction, Side};

use crate::common::Pair;
use crate::config::{Ablation, TransportConfig};
use crate::connection::transmit::find_sources;
use crate::connection::transmit::run::Bundle;

const LEN: usize = 300_000;

/// A pair whose server has bytes to send, in pieces that end anywhere in a packet.
fn pair(ablation: Ablation) -> Pair {
    let mut config = TransportConfig::default().initial_stream_window(LEN as u64);
    config.ablation = ablation;
    let mut pair = Pair::with(config);
    pair.run();
    let server = pair.connection(Side::Server);
    let id = server.open(Direction::Unidirectional).expect("a stream");
    for (at, len) in (0..LEN).step_by(3_000).zip(std::iter::repeat(3_000)) {
        let mut piece = Bytes::from_iter((at..at + len).map(|at| (at % 251) as u8));
        assert_eq!(server.write(id, &mut piece), Ok(len));
    }
    server.finish(id).expect("the stream is open");
    pair
}

/// The bytes that the client's application reads.
fn received(ablation: Ablation) -> Vec<u8> {
    let mut pair = pair(ablation);
    pair.run();
    let client = pair.connection(Side::Client);
    let id = client.accept(Direction::Unidirectional).expect("a stream");
    let mut read = Vec::new();
    while let Ok(Some(chunk)) = client.read(id, usize::MAX) {
        read.extend_from_slice(&chunk);
    }
    read
}

#[test]
fn every_ablation_delivers_the_same_bytes() {
    let expected: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    for bits in 0..8 {
        let ablation = Ablation {
            no_runs: bits & 1 != 0,
            copies_before_sealing: bits & 2 != 0,
            header_protection_apart: bits & 4 != 0,
        };
        assert!(received(ablation) == expected, "{ablation:?}");
    }
}

#[test]
fn without_runs_packets_are_written_and_processed_one_by_one() {
    for no_runs in [false, true] {
        let mut pair = pair(Ablation {
            no_runs,
            ..Ablation::default()
        });
        pair.run();
        let written = pair.connection(Side::Server).stats().packets_in_runs;
        let taken = pair.connection(Side::Client).stats().packets_in_runs;
        assert_eq!(
            (written == 0, taken == 0),
            (no_runs, no_runs),
            "{written} {taken}"
        );
    }
}

#[test]
fn with_copies_stream_data_is_in_the_packet_before_it_is_sealed() {
    for copies in [false, true] {
        let mut pair = pair(Ablation {
            copies_before_sealing: copies,
            ..Ablation::default()
        });
        let now = pair.now;
        let server = pair.connection(Side::Server);
        let mut buffer = vec![0; 65_536];
        let (mut bundle, mut sources) = (Bundle::default(), ArrayVec::new());
        let form = server.form(1200, 4);
        let (written, _) = server.write_bundle(now, &mut buffer, &form, 4, &mut bundle);
        let copies = server.config.ablation.copies_before_sealing;
        let streams = &server.streams;
        find_sources(streams, copies, &mut buffer, &bundle, &mut sources);
        let spans = &bundle.spans;
        assert!(written > 1);
        assert_eq!(sources.iter().all(|source| source.is_empty()), copies);
        // The copied data is the stream's, which counts up.
        let end = (spans[0].start + spans[0].len) as usize - TAG_LEN;
        let counts_up = buffer[end - 100..end]
            .windows(2)
            .all(|two| two[0] < two[1] || two[0] == 250);
        assert_eq!(counts_up, copies);
    }
}

#[test]
fn separate_header_protection_takes_a_second_pass_over_each_bundle() {
    let seal_calls = [false, true].map(|header_protection_apart| {
        let mut pair = pair(Ablation {
            header_protection_apart,
            ..Ablation::default()
        });
        let before = pair.connection(Side::Server).stats().seal_calls;
        pair.run();
        pair.connection(Side::Server).stats().seal_calls - before
    });
    assert!(seal_calls[0] > 1);
    assert_eq!(seal_calls[1], 2 * seal_calls[0]);
}
