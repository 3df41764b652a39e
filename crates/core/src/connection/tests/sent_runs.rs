//! Packets that one stream fills are written as they would be one by one.

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use squall_protect::{MAX_GROUP, TAG_LEN};
use squall_wire::{ConnectionId, Direction, Side, StreamId, Writer, frame, varint};

use super::twins::{Way, assert_equal};
use crate::common::Pair;
use crate::config::TransportConfig;
use crate::connection::transmit::packet::ShortHeader;
use crate::connection::transmit::run::Bundle;
use crate::connection::transmit::run::{Form, Template};
use crate::sent_frame::SentFrame;
use crate::space::SpaceId;
use crate::stream::Priority;
use crate::stream::send::StreamRange;

/// A bundle, without its connection id and the data that sealing adds.
#[derive(Debug, PartialEq)]
struct Seen {
    extent: (usize, usize),
    in_flight: u64,
    /// For each packet: length, number, header length, the range at its end, and its bytes up to
    /// there.
    packets: Vec<(u32, u64, u16, StreamRange, Vec<u8>)>,
    /// The record of each packet.
    records: Vec<(u16, bool, Vec<SentFrame>)>,
}

/// Writes a bundle; with or without runs.
fn write(pair: &mut Pair, way: Way, segment: usize, count: usize) -> Seen {
    let now = pair.now;
    let server = pair.connection(Side::Server);
    let mut buffer = vec![0; 65_536];
    let mut bundle = Bundle::default();
    let mut form = server.form(segment, count);
    (form.runs, form.header.greased) = (way == Way::Together, false);
    let extent = server.write_bundle(now, &mut buffer, &form, count, &mut bundle);
    let id_len = form.header.dcid.len();
    let packets = bundle.spans.iter().zip(bundle.tails).map(|(span, tail)| {
        let start = span.start as usize;
        let end = start + span.len as usize - TAG_LEN - tail.len as usize;
        let bytes = buffer[start + 1 + id_len..end].to_vec();
        (span.len, span.packet_number, span.header_len, tail, bytes)
    });
    let packets = packets.collect();
    let sent = &server.spaces[SpaceId::Data].sent;
    let records = sent.outstanding().map(|(_, packet)| {
        (
            packet.size,
            packet.ack_eliciting,
            sent.frames(packet).collect(),
        )
    });
    let mut records: Vec<_> = records.collect();
    let records = records.split_off(records.len().saturating_sub(MAX_GROUP));
    Seen {
        extent,
        in_flight: server.paths.active.flow.in_flight(),
        packets,
        records,
    }
}

/// The output of a server whose history is drawn from the seed, and how many packets were written
/// in runs.
fn bundles(seed: u64, way: Way) -> Vec<Seen> {
    let mut pair = Pair::with(
        TransportConfig::default()
            .initial_stream_window(400_000)
            .initial_window(600_000),
    );
    pair.run();
    let mut rng = StdRng::seed_from_u64(seed);
    let server = pair.connection(Side::Server);
    server.spaces.skip_none();
    let ids: Vec<_> = (0..rng.random_range(1..4))
        .filter_map(|_| server.open(Direction::Unidirectional))
        .collect();
    let mut seen = Vec::new();
    for _ in 0..30 {
        let server = pair.connection(Side::Server);
        let id = ids[rng.random_range(0..ids.len())];
        // Whether it is accepted is part of the comparison: a refusal leaves nothing to send.
        match rng.random_range(0..24) {
            0 => drop(server.finish(id)),
            1 => drop(server.reset(id, 7)),
            2 => drop(server.reset_at(id, 7, 20_000)),
            3 | 4 => server.streams.on_lost(id, 3000, 5000, false),
            5 => server.ping(),
            6 => drop(server.send_datagram(Bytes::from(vec![2; 900]))),
            _ => {
                let mut chunk = Bytes::from(vec![1; rng.random_range(1..60_000)]);
                let _ = server.write(id, &mut chunk);
            }
        }
        let segment = [1200, 1452, 1472, 9000][rng.random_range(0..4)];
        let count = rng.random_range(0..=65_536 / segment).min(MAX_GROUP);
        seen.push(write(&mut pair, way, segment, count));
    }
    seen
}

/// A run equals its packets written one by one: with streams of all lengths, chunks of all sizes,
/// credit that ends, losses, FIN, resets, and offsets that become wider.
#[test]
fn a_run_equals_its_packets_written_singly() {
    let histories = assert_equal(0..60, bundles);
    let written: usize = histories.iter().flatten().map(|s| s.extent.0).sum();
    assert!(written > 5000, "{written}");
}

/// Streams that end with a packet or a byte before or after that, with a FIN or without, and
/// another one after them.
#[test]
fn a_run_ends_with_its_streams_data() {
    let play = |_, way| {
        let mut pair = Pair::with(
            TransportConfig::default()
                .max_concurrent_uni_streams(10_000)
                .initial_window(64 << 20)
                .receive_window(64 << 20)
                .send_window(64 << 20),
        );
        pair.run();
        let urgent = Priority {
            level: 1,
            incremental: false,
        };
        let mut seen = Vec::new();
        // Every length from one full packet to the next, after some full ones.
        for len in 5_000..6_250 {
            let server = pair.connection(Side::Server);
            server.spaces.skip_none();
            for (len, rank) in [(len, urgent), (4_000, Priority::default())] {
                let id = server.open(Direction::Unidirectional).expect("a stream");
                let mut data = Bytes::from(vec![1; len]);
                assert_eq!(server.write(id, &mut data), Ok(len));
                server.set_priority(id, rank).expect("the stream is open");
                if len % 2 == 0 {
                    server.finish(id).expect("the stream is open");
                }
            }
            // A packet that is not full ends a bundle.
            seen.extend([(); 3].map(|()| write(&mut pair, way, 1200, 20)));
        }
        seen
    };
    assert_equal(0..1, play);
}

/// Numbers and offsets of every width, written into a template as the writers of `wire` write them.
#[test]
fn a_template_encodes_every_number_and_offset() {
    let id = ConnectionId::new(&[0xab; 20]).expect("a connection id");
    for (dcid, pn_len) in [(ConnectionId::EMPTY, 2), (id, 3), (id, 4)] {
        let form = Form {
            segment: 1472,
            header: ShortHeader {
                dcid,
                spin: true,
                phase: true,
                greased: true,
                pn_len,
            },
            first: 0x0123_4567,
            window_limited: false,
            runs: true,
            pads: false,
            fill: 32,
        };
        for stream in [StreamId(3), StreamId(0x3333), StreamId(varint::MAX)] {
            for first in [
                1,
                60,
                64,
                16_300,
                16_384,
                (1 << 30) - 1,
                1 << 30,
                varint::MAX - 9,
            ] {
                for offset in [first, varint::last_of_size(first)] {
                    let template = Template::new(&form, stream, first).expect("a valid template");
                    let (mut packet, mut expected) = ([0; 100], [0; 100]);
                    template.write(&mut packet, form.number(5), offset);
                    let mut w = Writer::new(&mut expected);
                    form.header.write(&mut w, form.number(5));
                    frame::write::stream_header(&mut w, stream, offset, None, false);
                    let len = w.len();
                    assert_eq!(packet[..len], expected[..len], "{stream:?} {offset}");
                }
            }
        }
    }
}
