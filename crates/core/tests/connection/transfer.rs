//! Two directly connected endpoints, without loss and without a socket: handshake, streams, and the
//! cost contract of a bundle.

use bytes::Bytes;
use squall_core::{Event, ReadError, WriteError};
use squall_protect::{PacketSpan, initial};
use squall_wire::{Direction, Header, LongType, Side, VERSION_1, Writer, frame, header};

use crate::common::Pair;

#[test]
fn the_handshake_uses_a_post_quantum_key_share() {
    let mut pair = Pair::new();
    pair.run();
    for side in [Side::Client, Side::Server] {
        let events = pair.events(side);
        assert!(events.contains(&Event::Connected), "{side:?}: {events:?}");
    }
    let group = pair.connection(Side::Client).key_exchange_group();
    assert_eq!(group, Some(rustls::NamedGroup::X25519MLKEM768));
    assert_eq!(pair.connection(Side::Client).alpn(), Some(&b"test"[..]));
}

// test: RFC 9000 §7.2: a connection answers to the client's first destination as long as it lives
#[test]
fn a_replayed_first_packet_opens_no_second_connection() {
    let mut pair = Pair::new();
    pair.run();
    assert_eq!(pair.replay_first(), 1);
}

// test: RFC 9000 §14.1
#[test]
fn a_small_datagram_with_an_initial_is_dropped_anywhere_in_a_run() {
    for (size, taken) in [(100, false), (1200, true)] {
        let mut pair = Pair::new();
        pair.receive_first_with(|first| initial_with_ping(first, size));
        let stats = pair.connection(Side::Server).stats();
        assert_eq!(stats.packets_received, 1 + u64::from(taken), "{size}");
        assert_eq!(stats.packets_dropped, u64::from(!taken), "{size}");
    }
}

/// A valid Initial of the client that sent `first`, in a datagram of `size` bytes.
fn initial_with_ping(first: &[u8], size: usize) -> Vec<u8> {
    let Ok(Header::Long { dcid, scid, .. }) = header::parse(first, 8) else {
        panic!("a client begins with an Initial");
    };
    let mut datagram = vec![0; size];
    let (number, pn_len) = (9, 2);
    let mut w = Writer::new(&mut datagram);
    let ty = LongType::Initial;
    let length = header::write_long(&mut w, ty, VERSION_1, &dcid, &scid, &[], number, pn_len);
    let header_len = w.len();
    frame::write::ping(&mut w);
    header::patch_length(&mut datagram, length, size - (header_len - pn_len));
    let mut span = PacketSpan::new(0, size as u32, (header_len - pn_len) as u16);
    (span.header_len, span.packet_number) = (header_len as u16, number);
    let keys = initial::keys(VERSION_1, dcid.as_slice(), true).local;
    keys.packet
        .seal(&keys.header, &mut datagram, &mut [span], &[]);
    datagram
}

#[test]
fn many_streams_transfer_data_both_ways() {
    let mut pair = Pair::new();
    pair.run();
    let mut streams = Vec::new();
    for direction in [Direction::Bidirectional, Direction::Unidirectional] {
        for side in [Side::Client, Side::Server] {
            for _ in 0..10 {
                streams.push((
                    side,
                    pair.connection(side)
                        .open(direction)
                        .expect("within the limit"),
                ));
            }
        }
    }
    let len = 300_000;
    let data = Bytes::from((0..len).map(|i| (i * 7 % 253) as u8).collect::<Vec<_>>());
    let mut unwritten: Vec<Bytes> = vec![data.clone(); streams.len()];
    let mut received: Vec<Vec<u8>> = vec![Vec::new(); streams.len()];
    let mut ended = vec![false; streams.len()];
    for _ in 0..20_000 {
        for (i, (side, id)) in streams.iter().enumerate() {
            let sender = pair.connection(*side);
            while !unwritten[i].is_empty() {
                match sender.write(*id, &mut unwritten[i]) {
                    Ok(_) => {}
                    Err(WriteError::Blocked) => break,
                    Err(error) => panic!("{error}"),
                }
                if unwritten[i].is_empty() {
                    sender.finish(*id).unwrap();
                }
            }
        }
        pair.run();
        for direction in [Direction::Bidirectional, Direction::Unidirectional] {
            while pair.connection(Side::Client).accept(direction).is_some() {}
            while pair.connection(Side::Server).accept(direction).is_some() {}
        }
        for (i, (side, id)) in streams.iter().enumerate() {
            loop {
                match pair.connection(side.peer()).read(*id, 100_000) {
                    Ok(Some(bytes)) => received[i].extend_from_slice(&bytes),
                    Ok(None) => ended[i] = true,
                    Err(ReadError::Blocked | ReadError::Closed) => break,
                    Err(error) => panic!("{error}"),
                }
                if ended[i] {
                    break;
                }
            }
        }
        if ended.iter().all(|e| *e) {
            break;
        }
    }
    assert!(
        ended.iter().all(|e| *e),
        "all streams end: {ended:?} {:?}",
        pair.connection(Side::Client).stats()
    );
    assert!(received.iter().all(|r| r[..] == data[..]), "byte-exact");
}
