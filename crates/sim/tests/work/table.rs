//! The attacks by name, each with its parameters.

use squall_sim::frames;
use squall_wire::PacketType::{Handshake, Initial};
use squall_wire::frame::{ty, write};
use squall_wire::{ConnectionId, Direction, Side, StreamId};

use super::Cost;
use super::attacks::{
    ack, acks_over_the_flight, after_the_end, bytes_of_many_streams, coalesced_junk, copies,
    credit_for_many, crypto, dropped_for_lack_of_room, every_other_acknowledged, garbage,
    handshake_byte_by_byte, ids, numbers_out_of_order, pieces, repeated, repeated_early,
    single_acknowledgements, strangers, streams_opened, uni,
};

/// An attack and its name.
pub(crate) type Attack = (String, Box<dyn Fn() -> Cost>);

/// All attacks.
#[expect(clippy::too_many_lines, reason = "a table")]
pub(crate) fn attacks() -> Vec<Attack> {
    let server = Side::Server;
    let mut all: Vec<Attack> = Vec::new();
    let mut add = |name: &str, attack: Box<dyn Fn() -> Cost>| all.push((name.to_owned(), attack));
    for (name, window, vary) in [
        ("ACK frames over a flight of 4 MB", 4 << 20, false),
        ("ACK frames over a flight of 12 MB", 12 << 20, false),
        ("ACK frames over parts of 12 MB", 12 << 20, true),
    ] {
        add(name, Box::new(move || acks_over_the_flight(window, vary)));
    }
    add(
        "every other packet of 4 MB, from the end",
        Box::new(|| every_other_acknowledged(4 << 20, |i, n| n - 1 - i)),
    );
    add(
        "every other packet of 12 MB, from the end",
        Box::new(|| every_other_acknowledged(12 << 20, |i, n| n - 1 - i)),
    );
    add(
        "every other packet of 12 MB, from the start",
        Box::new(|| every_other_acknowledged(12 << 20, |i, _| i)),
    );
    add(
        "packets of 12 MB one by one, in no order",
        Box::new(|| single_acknowledgements(12 << 20)),
    );
    let end: Vec<u64> = (0..8000).map(|i| 100 + 2 * i).collect();
    let middle: Vec<u64> = (0..4000)
        .map(|i| 100 + 4 * i)
        .chain((0..4000).map(|i| 102 + 4 * ((i * 7919 + 2000) % 4000)))
        .collect();
    let down: Vec<u64> = (0..8000).map(|i| 100 + 2 * (8000 - i)).collect();
    let sparse: Vec<u64> = (0..4000).map(|i| 100 + 120 * ((i * 2741) % 4000)).collect();
    let joining: Vec<u64> = (0..4000)
        .map(|i| 1 + 2 * i)
        .chain((0..4000).map(|i| 2 * ((i * 7919) % 4000)))
        .collect();
    for (name, offsets) in [
        ("pieces at the end", end),
        ("pieces in the middle", middle),
        ("pieces downwards", down),
        ("pieces far apart", sparse),
        ("pieces that join others", joining),
    ] {
        add(name, Box::new(move || pieces(&offsets, 4)));
    }
    let twice: Vec<u64> = (0..8000).map(|i| 100 + 2 * (i % 500)).collect();
    add(
        "pieces again and again",
        Box::new(move || pieces(&twice, 4)),
    );
    add(
        "PING",
        Box::new(move || repeated(server, 300, |_| vec![ty::PING as u8])),
    );
    add(
        "IMMEDIATE_ACK",
        Box::new(move || repeated(server, 300, |_| frames(write::immediate_ack))),
    );
    add(
        "blocked frames",
        Box::new(move || {
            repeated(server, 300, |n| {
                frames(|w| match n % 3 {
                    0 => write::data_blocked(w, n),
                    1 => write::streams_blocked(w, Direction::Unidirectional, 1),
                    _ => write::stream_data_blocked(w, uni(n % 50), n),
                })
            })
        }),
    );
    add(
        "MAX_DATA",
        Box::new(move || {
            repeated(server, 300, |n| {
                frames(|w| write::max_data(w, n + (1 << 20)))
            })
        }),
    );
    add(
        "MAX_DATA for 100 streams",
        Box::new(|| credit_for_many(100)),
    );
    add(
        "MAX_DATA for 20,000 streams",
        Box::new(|| credit_for_many(20_000)),
    );
    add(
        "MAX_STREAM_DATA",
        Box::new(move || {
            repeated(server, 300, |n| {
                let id = StreamId::new(Side::Client, Direction::Bidirectional, n % 50);
                frames(|w| write::max_stream_data(w, id, n + (1 << 20)))
            })
        }),
    );
    add(
        "MAX_STREAMS",
        Box::new(move || {
            repeated(server, 300, |n| {
                frames(|w| write::max_streams(w, Direction::Unidirectional, 10 + n))
            })
        }),
    );
    add(
        "STOP_SENDING",
        Box::new(move || {
            repeated(server, 300, |n| {
                let id = StreamId::new(Side::Client, Direction::Bidirectional, n % 50);
                frames(|w| write::stop_sending(w, id, 0))
            })
        }),
    );
    add(
        "RESET_STREAM of the same streams",
        Box::new(move || {
            repeated(server, 300, |n| {
                frames(|w| write::reset_stream(w, uni(n % 50), 0, 10))
            })
        }),
    );
    add("streams reset", Box::new(|| streams_opened(true)));
    add("streams ended", Box::new(|| streams_opened(false)));
    add(
        "PATH_CHALLENGE",
        Box::new(move || {
            repeated(server, 300, |n| {
                frames(|w| write::path_challenge(w, n.to_be_bytes()))
            })
        }),
    );
    add(
        "RETIRE_CONNECTION_ID",
        Box::new(move || {
            repeated(server, 300, |_| {
                frames(|w| write::retire_connection_id(w, 1))
            })
        }),
    );
    add(
        "one NEW_CONNECTION_ID",
        Box::new(move || {
            let id = ConnectionId::new(&[7; 8]).expect("8 bytes");
            repeated(server, 300, move |_| {
                frames(|w| write::new_connection_id(w, 1, 0, &id, &[7; 16]))
            })
        }),
    );
    add("ids that retire others", Box::new(ids));
    add(
        "NEW_TOKEN",
        Box::new(move || {
            repeated(Side::Client, 300, |n| {
                frames(|w| write::new_token(w, &[n as u8]))
            })
        }),
    );
    add(
        "HANDSHAKE_DONE",
        Box::new(move || repeated(Side::Client, 300, |_| frames(write::handshake_done))),
    );
    add(
        "empty DATAGRAM frames",
        Box::new(move || {
            repeated(server, 300, |_| {
                frames(|w| write::datagram_header(w, Some(0)))
            })
        }),
    );
    add(
        "known CRYPTO bytes",
        Box::new(move || repeated(server, 300, |_| crypto(40, &[1]))),
    );
    add(
        "one CRYPTO byte behind a gap",
        Box::new(move || repeated(server, 300, |_| crypto(1, &[1]))),
    );
    add(
        "single bytes in order",
        Box::new(|| pieces(&(0..8000).collect::<Vec<u64>>(), 4)),
    );
    add(
        "bytes of many streams",
        Box::new(|| bytes_of_many_streams(90)),
    );
    add(
        "packets dropped for lack of room",
        Box::new(dropped_for_lack_of_room),
    );
    add(
        "DATAGRAM frames of a byte",
        Box::new(move || {
            repeated(server, 300, |_| {
                frames(|w| {
                    write::datagram_header(w, Some(1));
                    w.bytes(&[1]);
                })
            })
        }),
    );
    add(
        "a ClientHello byte by byte",
        Box::new(|| handshake_byte_by_byte(false)),
    );
    add(
        "a ticket byte by byte",
        Box::new(|| handshake_byte_by_byte(true)),
    );
    for packet in [Initial, Handshake] {
        let name = |initial, handshake| {
            if packet == Initial {
                initial
            } else {
                handshake
            }
        };
        add(
            name("PING in Initials", "PING in Handshake packets"),
            Box::new(move || repeated_early(packet, |_| vec![ty::PING as u8])),
        );
        add(
            name("CRYPTO in Initials", "CRYPTO in Handshake packets"),
            Box::new(move || repeated_early(packet, |n| crypto(2 + 2 * (n % 60), &[1]))),
        );
        add(
            name("ACK in Initials", "ACK in Handshake packets"),
            Box::new(move || repeated_early(packet, |_| ack([0..=0].into_iter()))),
        );
    }
    add("garbage of 25 bytes", Box::new(|| garbage(25)));
    add("garbage of 45 bytes", Box::new(|| garbage(45)));
    add("garbage of 1200 bytes", Box::new(|| garbage(1200)));
    add("numbers out of order", Box::new(numbers_out_of_order));
    add("copies of a packet", Box::new(copies));
    for (first, name) in [
        (0xc1, "Initials"),
        (0xd1, "0-RTT"),
        (0xe1, "Handshake packets"),
    ] {
        for (established, when) in [(true, "afterwards"), (false, "in the handshake")] {
            let name = format!("coalesced {name} that do not open, {when}");
            add(&name, Box::new(move || coalesced_junk(first, established)));
        }
    }
    add("unknown versions", Box::new(|| strangers(0)));
    add("Version Negotiation", Box::new(|| strangers(1)));
    add("first packets that do not open", Box::new(|| strangers(2)));
    add("packets after our close", Box::new(|| after_the_end(false)));
    add("packets after the peer's", Box::new(|| after_the_end(true)));
    all
}
