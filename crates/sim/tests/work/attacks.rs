//! The attacks: what a peer may send to cost a victim work.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use squall_core::{ReadError, TransportConfig};
use squall_sim::{Duel, Odd, Terms, frames};
use squall_wire::frame::{ty, write};
use squall_wire::{ConnectionId, Direction, PacketType, Side, StreamId};

use super::{Cost, PAYLOAD, cpu, filled, flood, victim};
use PacketType::{Handshake, Initial, OneRtt};

/// A server that has written a window full of data, all of which is in flight, and the ranges of
/// numbers in flight.
fn loaded(window: u64) -> (Duel, Vec<RangeInclusive<u64>>) {
    let terms = Terms {
        transport: TransportConfig::default()
            .stream_send_window(window)
            .send_window(window)
            .pacing(false),
        parameters: Box::new(|p| {
            p.initial_max_data = 1 << 40;
            p.initial_max_stream_data_uni = 1 << 40;
            p.initial_max_streams_uni = 100;
        }),
        ..Terms::default()
    };
    let mut duel = Duel::connected(Side::Server, terms);
    duel.unwatch();
    let id = duel
        .victim()
        .open(Direction::Unidirectional)
        .expect("100 are allowed");
    let mut acked = 0;
    for _ in 0..100 {
        let mut whole = Bytes::from(vec![1; window as usize]);
        while duel.victim().write(id, &mut whole).is_ok() && !whole.is_empty() {}
        duel.pump();
        duel.peer.received.clear();
        let numbers = &duel.peer.numbers[2];
        let mut seen: Vec<RangeInclusive<u64>> = Vec::new();
        for range in numbers {
            match seen.last_mut() {
                Some(last) if *last.end() + 1 == *range.start() => {
                    *last = *last.start()..=*range.end();
                }
                _ => seen.push(range.clone()),
            }
        }
        if duel.victim().stats().bytes_in_flight > window / 10 * 7 {
            let open = seen.into_iter().filter(|r| *r.end() > acked);
            let open = open.map(|r| (acked + 1).max(*r.start())..=*r.end());
            let open = open.collect();
            duel.measure(cpu);
            return (duel, open);
        }
        duel.pass(Duration::from_millis(20));
        let latest = seen.iter().rev().take(8).cloned();
        acked = seen.last().map_or(0, |r| *r.end());
        let ack = frames(|w| {
            write::ack(w, latest, 0, None);
        });
        duel.send(OneRtt, &ack);
        duel.peer.received.clear();
        assert!(duel.closed().is_none());
    }
    panic!("the window does not fill");
}

pub(crate) fn ack(ranges: impl Iterator<Item = RangeInclusive<u64>> + Clone) -> Vec<u8> {
    frames(|w| {
        write::ack(w, ranges, 0, None);
    })
}

/// Many ACK frames in a packet, each covering everything in flight except the oldest packet; with
/// `vary`, each begins elsewhere.
pub(crate) fn acks_over_the_flight(window: u64, vary: bool) -> Cost {
    let (mut duel, open) = loaded(window);
    let oldest = *open[0].start();
    let settled = open.iter().map(|r| r.end() - r.start() + 1).sum();
    let mut n = 0;
    let payloads: Vec<_> = (0..64)
        .map(|_| {
            filled(|| {
                n += 1;
                let from = oldest + 2 + if vary { n * 7919 % (settled / 2) } else { 0 };
                let top = open.iter().filter(|r| *r.end() >= from);
                let top = top.map(|r| from.max(*r.start())..=*r.end());
                ack(top.rev().take(60))
            })
        })
        .collect();
    flood(&mut duel, OneRtt, payloads);
    Cost {
        packets: settled,
        ..Cost::from(&duel)
    }
}

/// Every other packet in flight is acknowledged, by ranges in this order.
pub(crate) fn every_other_acknowledged(window: u64, order: fn(usize, usize) -> usize) -> Cost {
    let (mut duel, open) = loaded(window);
    let numbers: Vec<u64> = open.iter().cloned().flatten().collect();
    let numbers: Vec<u64> = numbers.iter().copied().filter(|n| n % 2 == 0).collect();
    let chunks: Vec<&[u64]> = numbers.chunks(400).collect();
    let payloads: Vec<_> = (0..chunks.len())
        .map(|i| {
            let chunk = chunks[order(i, chunks.len())];
            let mut payload = ack(chunk.iter().rev().map(|n| *n..=*n));
            payload.resize(PAYLOAD, 0);
            payload
        })
        .collect();
    flood(&mut duel, OneRtt, payloads);
    Cost {
        packets: 2 * numbers.len() as u64,
        ..Cost::from(&duel)
    }
}

/// Frames of one acknowledged packet each, in an order that puts each between others.
pub(crate) fn single_acknowledgements(window: u64) -> Cost {
    let (mut duel, open) = loaded(window);
    // The largest first, so that everything below is lost at once, and then acknowledged in no
    // order.
    let numbers: Vec<u64> = open.iter().cloned().flatten().collect();
    let count = numbers.len();
    let mut step = 7919;
    while count.is_multiple_of(step) {
        step += 2;
    }
    let mut n = 0;
    let payloads: Vec<_> = (0..count / 150)
        .map(|_| {
            filled(|| {
                n += 1;
                let number = numbers[(n * step) % count];
                ack([number..=number].into_iter())
            })
        })
        .collect();
    flood(&mut duel, OneRtt, payloads);
    Cost {
        packets: count as u64,
        ..Cost::from(&duel)
    }
}

/// Pieces of one byte at these offsets of a few streams, each of which is reset in the end.
pub(crate) fn pieces(offsets: &[u64], streams: u64) -> Cost {
    let mut duel = victim(Side::Server, Terms::default());
    for index in 0..streams {
        let id = StreamId::new(Side::Client, Direction::Unidirectional, index);
        let mut at = offsets.iter();
        let piece = |at: &u64| {
            frames(|w| {
                write::stream_header(w, id, *at, Some(1), false);
                w.bytes(&[1]);
            })
        };
        let mut payloads = Vec::new();
        while at.len() > 0 {
            payloads.push(filled(|| at.next().map_or(vec![0], piece)));
        }
        flood(&mut duel, OneRtt, payloads);
        let end = offsets.iter().max().map_or(0, |at| at + 1);
        let reset = frames(|w| write::reset_stream(w, id, 0, end));
        duel.send(OneRtt, &reset);
        duel.victim().accept(Direction::Unidirectional);
        assert!(duel.victim().read(id, 1).is_err());
    }
    assert_eq!(duel.closed(), None);
    Cost {
        streams,
        ..Cost::from(&duel)
    }
}

/// The same frames again and again, in 1-RTT packets to a victim of this side.
pub(crate) fn repeated(side: Side, count: usize, mut frame: impl FnMut(u64) -> Vec<u8>) -> Cost {
    let mut duel = victim(side, Terms::default());
    let mut n = 0;
    let payloads: Vec<_> = (0..count)
        .map(|_| {
            filled(|| {
                n += 1;
                frame(n)
            })
        })
        .collect();
    flood(&mut duel, OneRtt, payloads);
    assert_eq!(duel.closed(), None);
    Cost::from(&duel)
}

pub(crate) fn uni(index: u64) -> StreamId {
    StreamId::new(Side::Client, Direction::Unidirectional, index)
}

/// A server that has many streams, which all wait for connection credit, and a peer that grants it
/// byte by byte.
pub(crate) fn credit_for_many(streams: u64) -> Cost {
    let terms = Terms {
        parameters: Box::new(move |p| {
            p.initial_max_data = 4096;
            p.initial_max_streams_uni = streams;
        }),
        ..Terms::default()
    };
    let mut duel = victim(Side::Server, terms);
    for _ in 0..streams {
        let id = duel.victim().open(Direction::Unidirectional);
        let mut data = Bytes::from(vec![1; 400_000 / streams as usize]);
        let written = duel
            .victim()
            .write(id.expect("the stream limit allows it"), &mut data);
        assert!(written.is_ok() && data.is_empty());
    }
    duel.pump();
    duel.peer.received.clear();
    duel.measure(cpu);
    for limit in 4097..4097 + 2000 {
        // Sent packets are acknowledged, so that the congestion window is never full.
        let received = duel.peer.numbers[2].iter().rev().take(60).cloned();
        let mut payload = ack(received);
        payload.extend(frames(|w| write::max_data(w, limit)));
        duel.send(OneRtt, &payload);
        duel.peer.received.clear();
    }
    Cost::from(&duel)
}

/// A ClientHello in frames of one byte, or a ticket in such frames after the handshake, which never
/// ends.
pub(crate) fn handshake_byte_by_byte(ticket: bool) -> Cost {
    let (mut duel, packet, bytes, from) = if ticket {
        let duel = victim(Side::Client, Terms::default());
        // NewSessionTicket: a type and a length (RFC 8446 §4).
        let mut bytes = vec![4, 0, 0x3f, 0];
        bytes.resize(15_000, 0);
        let from = duel.peer.crypto_sent(OneRtt);
        (duel, OneRtt, bytes, from)
    } else {
        let mut duel = Duel::new(Side::Server, Terms::default());
        duel.unwatch();
        duel.measure(cpu);
        let bytes = duel.peer.handshake_bytes();
        (duel, Initial, bytes, 0)
    };
    let mut rest = (from..).zip(bytes.chunks(1));
    let mut payloads = Vec::new();
    while rest.clone().next().is_some() {
        payloads.push(filled(|| {
            rest.next().map_or(vec![0], |(at, byte)| crypto(at, byte))
        }));
    }
    flood(&mut duel, packet, payloads);
    assert_eq!(duel.closed(), None);
    Cost {
        handshakes: u64::from(!ticket),
        ..Cost::from(&duel)
    }
}

/// Streams in turn, each getting its next byte.
pub(crate) fn bytes_of_many_streams(streams: u64) -> Cost {
    let mut duel = victim(Side::Server, Terms::default());
    let mut n = 0;
    let payloads: Vec<_> = (0..300)
        .map(|_| {
            filled(|| {
                n += 1;
                frames(|w| {
                    write::stream_header(w, uni(n % streams), n / streams, Some(1), false);
                    w.bytes(&[1]);
                })
            })
        })
        .collect();
    flood(&mut duel, OneRtt, payloads);
    assert_eq!(duel.closed(), None);
    Cost {
        streams,
        ..Cost::from(&duel)
    }
}

/// Packets that are dropped unacknowledged, since there is no room for more pieces, each sent
/// twice.
pub(crate) fn dropped_for_lack_of_room() -> Cost {
    let terms = Terms {
        transport: TransportConfig::default()
            .initial_window(1 << 20)
            .receive_window(1 << 20)
            .initial_stream_window(1 << 20)
            .stream_receive_window(1 << 20),
        ..Terms::default()
    };
    let mut duel = victim(Side::Server, terms);
    // As many cells as there is room for, and some more.
    let mut offsets = (1..1 << 14).map(|i| 64 * i - 2);
    let payloads: Vec<_> = (0..120)
        .map(|_| {
            filled(|| {
                offsets.next().map_or(vec![0], |at| {
                    frames(|w| {
                        write::stream_header(w, uni(0), at, Some(1), false);
                        w.bytes(&[1]);
                    })
                })
            })
        })
        .collect();
    flood(&mut duel, OneRtt, payloads.clone());
    assert!(
        duel.victim().stats().packets_dropped > 10,
        "no packet was dropped for lack of room"
    );
    duel.measure(cpu);
    for payload in payloads {
        let datagram = duel.peer.datagram(OneRtt, &payload);
        duel.deliver(&datagram);
        duel.deliver(&datagram);
    }
    Cost::from(&duel)
}

/// Streams that begin and end with a frame, which the application takes and drops.
pub(crate) fn streams_opened(reset: bool) -> Cost {
    let mut duel = victim(Side::Server, Terms::default());
    let (mut opened, mut limit) = (0, TransportConfig::default().max_concurrent_uni_streams);
    for _ in 0..200 {
        let payload = filled(|| {
            if opened == limit {
                return vec![0; 100];
            }
            opened += 1;
            let id = uni(opened - 1);
            frames(|w| {
                if reset {
                    write::reset_stream(w, id, 0, 0);
                } else {
                    write::stream_header(w, id, 0, Some(0), true);
                }
            })
        });
        flood(&mut duel, OneRtt, [payload]);
        let began = cpu();
        let mut ended = 0;
        while let Some(id) = duel.victim().accept(Direction::Unidirectional) {
            let read = duel.victim().read(id, usize::MAX);
            assert!(matches!(read, Ok(None) | Err(ReadError::Reset(_))));
            ended += 1;
        }
        duel.work.receiving += cpu() - began;
        limit = opened + TransportConfig::default().max_concurrent_uni_streams;
        assert!(ended <= limit);
        duel.pump();
        duel.peer.received.clear();
        let next = duel.peer.largest_received().unwrap_or(0);
        duel.send(OneRtt, &ack([next..=next].into_iter()));
        // At least half of the allowance is back by now.
        limit -= TransportConfig::default().max_concurrent_uni_streams / 2 + 1;
    }
    assert_eq!(duel.closed(), None);
    Cost {
        streams: opened,
        ..Cost::from(&duel)
    }
}

/// Delivers datagrams as they are.
fn raw(duel: &mut Duel, datagrams: impl IntoIterator<Item = Vec<u8>>) -> Cost {
    for datagram in datagrams {
        duel.deliver(&datagram);
    }
    Cost::from(&*duel)
}

/// Datagrams of this size that look like 1-RTT packets but are not.
pub(crate) fn garbage(size: usize) -> Cost {
    let mut duel = victim(Side::Server, Terms::default());
    let genuine = duel.peer.datagram(OneRtt, &[ty::PING as u8; 30]);
    let junk = (0..3000_u32).map(|n| {
        let mut datagram = genuine[..9].to_vec();
        datagram.extend(n.to_be_bytes());
        // Both key phases are tried.
        datagram[0] ^= (n as u8 & 1) << 2;
        datagram.resize(size, n as u8);
        datagram
    });
    let junk: Vec<_> = junk.collect();
    raw(&mut duel, junk)
}

/// Packets with every other number, in an order that puts each between others.
pub(crate) fn numbers_out_of_order() -> Cost {
    let mut duel = victim(Side::Server, Terms::default());
    let order = (0..5000_u64).map(|n| 1000 + 128 * (n / 64) + 2 * (n * 37 % 64));
    let datagrams: Vec<_> = order
        .map(|number| {
            let odd = Odd {
                number: Some(number),
                ..Odd::default()
            };
            duel.peer.packet(OneRtt, &[ty::PING as u8; 10], odd)
        })
        .collect();
    raw(&mut duel, datagrams)
}

/// One packet that arrives again and again.
pub(crate) fn copies() -> Cost {
    let mut duel = victim(Side::Server, Terms::default());
    let datagram = duel.peer.datagram(OneRtt, &[ty::PING as u8; 1000]);
    raw(&mut duel, vec![datagram; 3000])
}

/// A datagram of many meaningless packets.
pub(crate) fn coalesced_junk(first: u8, established: bool) -> Cost {
    let mut duel = if established {
        victim(Side::Server, Terms::default())
    } else {
        handshaking(Initial)
    };
    let destination = duel.peer.remote_id;
    let packet = |version: u32| {
        let mut packet = vec![first];
        packet.extend(version.to_be_bytes());
        packet.push(destination.len() as u8);
        packet.extend_from_slice(destination.as_slice());
        packet.extend([8, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa]);
        packet.extend([30; 31]);
        packet
    };
    let datagrams: Vec<_> = (0..1000)
        .map(|_| (0..22).flat_map(|_| packet(1)).collect::<Vec<u8>>())
        .collect();
    let mut cost = raw(&mut duel, datagrams);
    // Eight packets of a datagram are examined.
    cost.packets = 7 * 1000;
    cost
}

/// Unknown versions, Version Negotiation packets, and first packets that do not open.
pub(crate) fn strangers(kind: u32) -> Cost {
    let mut duel = victim(Side::Server, Terms::default());
    let datagrams: Vec<_> = (0..1000_u32)
        .map(|n| {
            let mut datagram = vec![0xc3];
            let version: u32 = match kind {
                0 => 0x1a2a_3a4a,
                1 => 0,
                _ => 1,
            };
            datagram.extend(version.to_be_bytes());
            datagram.push(8);
            datagram.extend([n.to_be_bytes(), n.to_be_bytes()].concat());
            datagram.extend([8, 1, 2, 3, 4, 5, 6, 7, 8]);
            // No token, and a length.
            datagram.extend([0, 0x44, 0x80]);
            datagram.resize(1200, n as u8);
            datagram
        })
        .collect();
    raw(&mut duel, datagrams)
}

/// A server in the middle of its handshake that has keys for this kind of packet.
fn handshaking(packet: PacketType) -> Duel {
    let mut duel = Duel::new(Side::Server, Terms::default());
    duel.unwatch();
    if packet == Handshake {
        for datagram in duel.peer.flush() {
            duel.deliver(&datagram);
        }
    } else {
        duel.send(Initial, &[ty::PING as u8]);
    }
    duel.measure(cpu);
    duel
}

/// The same frames again and again, in packets of the handshake.
pub(crate) fn repeated_early(packet: PacketType, mut frame: impl FnMut(u64) -> Vec<u8>) -> Cost {
    let mut duel = handshaking(packet);
    let mut n = 0;
    let payloads: Vec<_> = (0..300)
        .map(|_| {
            filled(|| {
                n += 1;
                frame(n)
            })
        })
        .collect();
    flood(&mut duel, packet, payloads);
    Cost::from(&duel)
}

pub(crate) fn crypto(offset: u64, data: &[u8]) -> Vec<u8> {
    frames(|w| {
        write::crypto_header(w, offset, data.len());
        w.bytes(data);
    })
}

/// Packets to a connection that has ended, closed by us or by the peer.
pub(crate) fn after_the_end(draining: bool) -> Cost {
    let mut duel = victim(Side::Server, Terms::default());
    if draining {
        let close = frames(|w| {
            write::connection_close(w, 0, None, b"");
        });
        duel.send(OneRtt, &close);
    } else {
        let now = duel.now;
        duel.victim().close(now, 7, b"enough");
        duel.pump();
    }
    duel.measure(cpu);
    let datagrams: Vec<_> = (0..3000)
        .map(|_| duel.peer.datagram(OneRtt, &[ty::PING as u8; 1000]))
        .collect();
    raw(&mut duel, datagrams)
}

/// Ids that each retire the previous one, each acknowledged by what the peer sends.
pub(crate) fn ids() -> Cost {
    let mut duel = victim(Side::Server, Terms::default());
    for n in 1..1000_u64 {
        let id = ConnectionId::new(&n.to_be_bytes()).expect("8 bytes");
        let token = [n as u8; 16];
        let next = duel.peer.largest_received().unwrap_or(0);
        let mut payload = frames(|w| write::new_connection_id(w, n, n, &id, &token));
        if next > 0 {
            payload.extend(ack([next..=next].into_iter()));
        }
        duel.send(OneRtt, &payload);
        duel.peer.received.clear();
        if duel.closed().is_some() {
            break;
        }
    }
    Cost::from(&duel)
}
