//! Packets of one stream are received together as they would be one by one.

use std::cell::Cell;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use squall_protect::{PacketSpan, TAG_LEN};
use squall_wire::{DatagramBatch, Direction, Ecn, Side, StreamId, Writer, frame, header};

use super::twins::{Way, assert_equal};
use crate::common::Pair;
use crate::config::TransportConfig;
use crate::connection::Connection;
use crate::connection::handshake::keyring::KeyRing;
use crate::space::SpaceId;
use crate::stages::Stages;
use crate::time::Time;

/// What bundles are like.
#[derive(Clone, Copy)]
struct Shape {
    /// Bytes of a packet.
    segment: usize,
    /// The most packets of a bundle.
    packets: usize,
    /// How much rarer everything except a stream's next bytes is, for even and for odd seeds.
    calm: [u32; 2],
    /// The most of this that holds for the first packet of a bundle.
    first_calm: u32,
    /// A stream's window, in bytes. The connection's is half as large again.
    window: u64,
}

const SHORT: Shape = Shape {
    segment: 400,
    packets: 30,
    calm: [1, 30],
    first_calm: 30,
    window: 30_000,
};

/// A bundle can fill a chunk.
const LONG: Shape = Shape {
    segment: 1_200,
    packets: 54,
    calm: [30, 300],
    first_calm: 2,
    window: 400_000,
};

/// A client's state after a bundle: the bytes read of each stream, the numbers received, the
/// counts, the output for its application and the server, and its keys.
#[derive(Debug, PartialEq)]
struct Seen {
    read: Vec<(u64, Vec<u8>)>,
    numbers: Vec<std::ops::RangeInclusive<u64>>,
    counts: [u64; 4],
    ecn: String,
    owed: bool,
    events: String,
    control: Vec<u8>,
    updates: u64,
    drop_previous_at: Option<Time>,
    timeout: Option<Time>,
    failed: bool,
}

/// A server's packets as determined by a seed: mostly the next bytes of a stream, now and then
/// something else, with other numbers, other offsets, a FIN, a length, a reserved bit, a forged
/// tag, new keys.
struct Author {
    rng: StdRng,
    next: u64,
    /// The streams' ids, and how far each was written.
    streams: [(StreamId, u64); 2],
    at: usize,
    /// Whether the keys are updated in the next bundle, and the first number under the current
    /// keys: RFC 9001 §6.4 allows no lower one under them.
    turns: bool,
    first: u64,
    shape: Shape,
    /// How much rarer everything except the next bytes is: whole bundles of them fill the windows.
    calm: u32,
}

impl Author {
    fn number(&mut self) -> u64 {
        let number = match self.rng.random_range(0..40 * self.calm) {
            0 => self.next + 1,
            1 => (self.next.saturating_sub(self.rng.random_range(1..9))).max(self.first),
            _ => self.next,
        };
        self.next = self.next.max(number + 1);
        number
    }

    fn payload(&mut self, w: &mut Writer<'_>) {
        if self.rng.random_ratio(1, 12 * self.calm) {
            self.at ^= 1;
        }
        let (id, end) = &mut self.streams[self.at];
        let offset = match self.rng.random_range(0..40 * self.calm) {
            0 => *end + 100,
            1 => end.saturating_sub(100),
            2 => 0,
            _ => *end,
        };
        let (fin, with_len) = (
            self.rng.random_ratio(1, 60 * self.calm),
            self.rng.random_ratio(1, 20 * self.calm),
        );
        let header =
            frame::write::stream_header_size(*id, offset, with_len.then_some(self.shape.segment));
        let mut len = w.remaining() - header;
        if self.rng.random_ratio(1, 20 * self.calm) {
            // An unexpectedly short one; without a length it ends where its packet ends.
            len = self.rng.random_range(0..len);
        }
        frame::write::stream_header(w, *id, offset, with_len.then_some(len), fin);
        // The bytes encode their offset, so that a misplaced one is detected.
        let bytes = (offset..offset + len as u64).map(|at| (at % 251) as u8);
        w.bytes(&bytes.collect::<Vec<_>>());
        *end = (*end).max(offset + len as u64);
        if self.rng.random_ratio(1, 40 * self.calm) {
            frame::write::ping(w);
        }
    }

    /// Sealed datagrams of equal size, except the last.
    fn bundle(&mut self, server: &mut Connection) -> Vec<u8> {
        let Shape {
            segment, packets, ..
        } = self.shape;
        let calm = self.calm;
        let count = self.rng.random_range(1..=packets);
        let (mut bytes, mut spans) = (vec![0; count * segment], Vec::new());
        let mut ends = 0;
        let turn = if self.turns {
            self.rng.random_range(0..count)
        } else {
            usize::MAX
        };
        let phase = server.spaces.ring.as_ref().is_some_and(KeyRing::phase);
        for (i, packet) in bytes.chunks_exact_mut(segment).enumerate() {
            if i == turn {
                self.first = self.next;
            }
            self.calm = match i {
                0 => calm.min(self.shape.first_calm),
                _ => calm,
            };
            let number = self.number();
            let dcid = server.paths.remote_ids.current();
            let mut w = Writer::new(&mut packet[..segment - TAG_LEN]);
            header::write_short(&mut w, &dcid, false, phase ^ (i >= turn), number, 4);
            if self.rng.random_ratio(1, 300 * self.calm) {
                w.written_mut()[0] |= 0x08;
            }
            let header_len = w.len();
            self.payload(&mut w);
            let len = w.len() + TAG_LEN;
            let mut span = PacketSpan::new((i * segment) as u32, len as u32, 1 + dcid.len() as u16);
            (span.header_len, span.packet_number) = (header_len as u16, number);
            spans.push(span);
            ends = i * segment + len;
            if len < segment {
                break;
            }
        }
        self.calm = calm;
        let ring = server.spaces.ring.as_mut().expect("the handshake is over");
        // One by one: the numbers need not ascend.
        for (i, span) in spans.iter_mut().enumerate() {
            if i == turn {
                self.turns = false;
                update(ring);
            }
            let range = span.start as usize..(span.start + span.len) as usize;
            let mut alone = PacketSpan { start: 0, ..*span };
            let packet = std::slice::from_mut(&mut alone);
            ring.local
                .seal(&ring.local_header, &mut bytes[range], packet, &[]);
        }
        bytes.truncate(ends);
        if self.rng.random_ratio(1, 10) {
            // After a connection id, by which the endpoint splits runs.
            let packet = self.rng.random_range(0..bytes.len()) / segment;
            let byte = packet * segment + self.rng.random_range(20..segment);
            if let Some(byte) = bytes.get_mut(byte) {
                *byte ^= 1;
            }
        }
        bytes
    }
}

/// Updates keys, as if the previous update were settled (RFC 9001 §6.1).
fn update(ring: &mut KeyRing) {
    ring.on_acked(u64::MAX);
    ring.drop_previous();
    assert!(ring.initiate(0), "an update may begin");
}

/// A client's state after each bundle, received together or datagram by datagram, and how many
/// packets were opened into chunks.
fn transfer(seed: u64, way: Way, shape: Shape) -> (Vec<Seen>, u64) {
    let window = shape.window;
    let mut pair = Pair::with(
        TransportConfig::default()
            .initial_stream_window(window)
            .stream_receive_window(window)
            .initial_window(window * 3 / 2)
            .receive_window(window * 3 / 2),
    );
    pair.run();
    let server = pair.connection(Side::Server);
    let mut author = Author {
        rng: StdRng::seed_from_u64(seed),
        next: server.spaces[SpaceId::Data].sent.next_number(),
        streams: [0, 1].map(|i| (StreamId::new(Side::Server, Direction::Unidirectional, i), 0)),
        at: 0,
        turns: false,
        first: 0,
        shape,
        calm: shape.calm[seed as usize % 2],
    };
    let mut seen = Vec::new();
    for _ in 0..12 {
        pair.now += Duration::from_micros(300);
        let now = pair.now;
        let server = pair.connection(Side::Server).spaces.ring.as_ref();
        let followed = server.map(KeyRing::updates);
        let ring = pair.connection(Side::Client).spaces.ring.as_mut();
        let ring = ring.expect("the handshake is over");
        if author.rng.random_ratio(9, 10) {
            // Without an acknowledgement the next update comes too soon.
            ring.on_ack_sent();
        }
        // RFC 9001 §6.1: the client has received a packet of the phase that the server leaves;
        // otherwise the server could not have its acknowledgement.
        let heard = ring.updates() == 0 || ring.drop_previous_at.is_some();
        // RFC 9001 §6.5: one update at a time.
        if heard && followed == Some(ring.updates()) && author.rng.random_ratio(1, 3) {
            author.turns = true;
            if author.rng.random() {
                // The client started it.
                update(ring);
            }
        }
        let mut bytes = author.bundle(pair.connection(Side::Server));
        let ecn = [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce][author.rng.random_range(0..4)];
        let client = pair.connection(Side::Client);
        let (path, size) = (
            client.paths.active.path,
            if way == Way::Together {
                bytes.len()
            } else {
                shape.segment
            },
        );
        for bytes in bytes.chunks_mut(size) {
            let run = DatagramBatch {
                path,
                ecn,
                segment_size: shape.segment as u16,
                bytes,
            };
            client.receive(now, run, &mut Stages::off());
        }
        let mut read = Vec::new();
        if author.rng.random() {
            for (id, _) in author.streams {
                let mut bytes = Vec::new();
                while let Ok(Some(piece)) = client.read(id, usize::MAX) {
                    bytes.extend_from_slice(&piece);
                }
                read.push((id.0, bytes));
            }
        } else if author.rng.random_ratio(1, 4) {
            let _ = client.stop_sending(author.streams[0].0, 5);
        }
        let _ = client.accept(Direction::Unidirectional);
        let events: Vec<_> = std::iter::from_fn(|| client.poll_event()).collect();
        let mut control = vec![0; 500];
        let mut w = Writer::new(&mut control);
        let rtt = client.paths.active.flow.rtt.smoothed();
        client.streams.write_control(now, rtt, &mut w, |_| ());
        let len = w.len();
        control.truncate(len);
        let stats = client.stats();
        let ring = client.spaces.ring.as_ref();
        let received = &client.spaces[SpaceId::Data].received;
        seen.push(Seen {
            read,
            numbers: received.ranges().collect(),
            counts: [
                stats.packets_received,
                stats.packets_duplicate,
                stats.packets_forged,
                stats.packets_dropped,
            ],
            ecn: format!("{:?}", received.ecn_counts()),
            owed: received.may_ack(),
            events: format!("{events:?}"),
            control,
            updates: stats.key_updates,
            drop_previous_at: ring.and_then(|ring| ring.drop_previous_at),
            timeout: client.next_timeout(),
            failed: client.is_closed(),
        });
    }
    let ahead = pair.connection(Side::Client).stats().packets_ahead;
    (seen, ahead)
}

#[test]
fn packets_opened_into_chunks_act_as_they_do_singly() {
    let ahead = Cell::new(0);
    let histories = assert_equal(0..400, |seed, way| {
        let (seen, packets) = transfer(seed, way, LONG);
        assert!(packets == 0 || way == Way::Together);
        ahead.set(ahead.get() + packets);
        seen
    });
    let failures = (histories.iter().flatten())
        .filter(|seen| seen.failed)
        .count();
    let ahead = ahead.get();
    assert!(ahead > 5_000 && failures > 50, "{ahead} {failures}");
}

#[test]
fn packets_received_in_runs_act_as_they_do_singly() {
    let histories = assert_equal(0..1500, |seed, way| transfer(seed, way, SHORT).0);
    let (mut bytes, mut failures, mut updates) = (0, 0, 0);
    for seen in &histories {
        for seen in seen {
            bytes += seen.read.iter().map(|(_, b)| b.len()).sum::<usize>();
            failures += usize::from(seen.failed);
        }
        updates += seen.last().map_or(0, |seen| seen.updates);
    }
    assert!(
        bytes > 1 << 20 && failures > 100 && updates > 500,
        "{bytes} bytes were read, {failures} failures, {updates} updates"
    );
}
