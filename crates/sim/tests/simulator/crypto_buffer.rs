//! Handshake data that a peer piles up (RFC 9000 §7.5): row 4 of the threat table in `SECURITY.md`;
//! and data repeated to a level that is gone: row 22.

use squall_core::{Event, TransportConfig};
use squall_sim::{Duel, Terms, frames};
use squall_wire::{PacketType, Side, TransportErrorCode, frame};

/// A CRYPTO frame.
fn crypto(offset: u64, data: &[u8]) -> Vec<u8> {
    frames(|w| {
        frame::write::crypto_header(w, offset, data.len());
        w.bytes(data);
    })
}

/// A duel in which the victim, whose side is `victim`, has the keys of `ty`.
fn duel(victim: Side, ty: PacketType) -> Duel {
    if ty == PacketType::OneRtt {
        return Duel::connected(victim, Terms::default());
    }
    let mut duel = Duel::new(victim, Terms::default());
    if ty == PacketType::Handshake {
        // The ClientHello; its answer waits for the Finished.
        for datagram in duel.peer.flush() {
            duel.deliver(&datagram);
        }
    }
    duel
}

// test: RFC 9000 §7.5
#[test]
fn each_level_buffers_up_to_its_limit() {
    // Maximum bytes ahead of what was read: during the handshake, and after it.
    for (ty, most) in [
        (PacketType::Initial, 64 * 1024),
        (PacketType::Handshake, 64 * 1024),
        (PacketType::OneRtt, 16 * 1024),
    ] {
        for victim in [Side::Server, Side::Client] {
            if (victim, ty) == (Side::Client, PacketType::Handshake) {
                // Its handshake is complete with the server's first flight.
                continue;
            }
            // The data read before, a flight or some tickets, is less than 4 kB.
            for (offset, fits) in [(most - 100, true), (most + 4096, false)] {
                let mut duel = duel(victim, ty);
                // Behind a gap: none of it can be read. A server's TLS has finished and wants none
                // of it.
                duel.send(ty, &crypto(offset, &[1; 50]));
                let expected = (!fits).then_some(TransportErrorCode::CRYPTO_BUFFER_EXCEEDED);
                assert_eq!(duel.closed(), expected, "{victim:?} {ty:?} {offset}");
            }
        }
    }
}

/// A ClientHello is held until it is complete: even in order, only up to a limit.
#[test]
fn an_endless_client_hello_is_rejected_at_the_limit() {
    let mut duel = duel(Side::Server, PacketType::Initial);
    let mut piece = vec![0; 1000];
    // RFC 8446 §4: a ClientHello of 16 MB.
    piece[..4].copy_from_slice(&[1, 0xff, 0xff, 0xff]);
    for i in 0..66 {
        assert_eq!(duel.closed().is_some(), i == 66, "after {i} kB");
        duel.send(PacketType::Initial, &crypto(1000 * i, &piece));
        piece[..4].fill(0);
    }
    let expected = TransportErrorCode::CRYPTO_BUFFER_EXCEEDED;
    assert_eq!(duel.closed(), Some(expected));
}

#[test]
fn the_crypto_buffer_has_the_configured_size() {
    for size in [4096, 256 * 1024] {
        for (offset, fits) in [(size - 100, true), (size + 4096, false)] {
            let terms = Terms {
                transport: TransportConfig::default().crypto_buffer_size(size),
                ..Terms::default()
            };
            let mut duel = Duel::new(Side::Server, terms);
            duel.send(PacketType::Initial, &crypto(offset as u64, &[1; 50]));
            let expected = (!fits).then_some(TransportErrorCode::CRYPTO_BUFFER_EXCEEDED);
            assert_eq!(duel.closed(), expected, "{size}, {offset}");
        }
    }
}

#[test]
fn pieces_behind_gaps_count_towards_the_limit() {
    for (pieces, fits) in [(60, true), (70, false)] {
        let mut duel = duel(Side::Server, PacketType::Initial);
        for i in 0..pieces {
            duel.send(PacketType::Initial, &crypto(5000 + 100 * i, &[1]));
        }
        let expected = (!fits).then_some(TransportErrorCode::CRYPTO_BUFFER_EXCEEDED);
        assert_eq!(duel.closed(), expected, "{pieces}");
    }
}

/// Bytes behind a gap count as the connection's memory until their level is left.
#[test]
fn buffered_crypto_data_counts_as_memory_until_its_level_is_dropped() {
    let [without, with] = [0, 10].map(|pieces| {
        let mut duel = duel(Side::Server, PacketType::Handshake);
        for i in 0..pieces {
            duel.send(PacketType::Handshake, &crypto(9000 + 2000 * i, &[1; 1000]));
        }
        let held = duel.victim().memory();
        duel.shake_hands();
        assert!(duel.events.contains(&Event::Connected));
        (held, duel.victim().memory())
    });
    assert!(with.0 > without.0 + 8000, "{with:?} {without:?}");
    assert!(with.1 < without.1 + 1000, "{with:?} {without:?}");
}

// test: RFC 9001 §4.9: packets of levels whose keys are gone are ignored
#[test]
fn packets_of_discarded_levels_are_dropped() {
    for victim in [Side::Client, Side::Server] {
        let mut duel = Duel::connected(victim, Terms::default());
        let before = duel.victim().stats();
        for ty in [PacketType::Initial, PacketType::Handshake] {
            for payload in [
                crypto(0, &[0; 100]),
                crypto(1 << 20, &[0; 100]),
                // A frame that no packet of that level may carry.
                frames(|w| frame::write::max_data(w, 1)),
            ] {
                duel.send(ty, &payload);
            }
        }
        assert_eq!(duel.closed(), None, "{victim:?}");
        let after = duel.victim().stats();
        assert_eq!(after.packets_dropped, before.packets_dropped + 6);
        assert_eq!(after.packets_received, before.packets_received);
        assert_eq!(after.open_calls, before.open_calls);
        assert_eq!(after.datagrams_sent, before.datagrams_sent, "no answer");
    }
}
