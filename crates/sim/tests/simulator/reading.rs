//! How an application may read a stream: in order of arrival, and while watching for resets.

use squall_core::{Event, ReadError};
use squall_sim::{Duel, Terms, frames};
use squall_wire::frame::write;
use squall_wire::{Direction, PacketType, Side, StreamId};

fn id() -> StreamId {
    StreamId::new(Side::Client, Direction::Unidirectional, 0)
}

fn stream(offset: u64, data: &[u8], fin: bool) -> Vec<u8> {
    frames(|w| {
        write::stream_header(w, id(), offset, Some(data.len()), fin);
        w.bytes(data);
    })
}

fn reset(code: u64, size: u64) -> Vec<u8> {
    frames(|w| write::reset_stream(w, id(), code, size))
}

/// A server whose application has accepted the stream, with these bytes.
fn server(first: &[u8]) -> Duel {
    let mut duel = Duel::connected(Side::Server, Terms::default());
    duel.send(PacketType::OneRtt, first);
    assert_eq!(duel.victim().accept(Direction::Unidirectional), Some(id()));
    duel
}

/// The events of the stream since the last call.
fn new_events(duel: &mut Duel) -> usize {
    duel.pump();
    let events = std::mem::take(&mut duel.events);
    let of_stream = |event: &&Event| matches!(event, Event::Readable(_));
    events.iter().filter(of_stream).count()
}

#[test]
fn bytes_behind_a_gap_can_be_read_at_once() {
    let mut duel = server(&stream(0, b"ab", false));
    assert_eq!(duel.victim().read(id(), 1).unwrap().unwrap(), "a");
    duel.send(PacketType::OneRtt, &stream(5, b"fgh", true));
    let mut read = |max| duel.victim().read_unordered(id(), max);
    assert_eq!(read(100), Ok(Some((1, "b".into()))));
    assert_eq!(read(2), Ok(Some((5, "fg".into()))));
    assert_eq!(read(100), Ok(Some((7, "h".into()))));
    assert_eq!(read(100), Err(ReadError::Blocked));
    let ordered = duel.victim().read(id(), 100);
    assert_eq!(ordered, Err(ReadError::IllegalOrderedRead));
    let _ = new_events(&mut duel);
    // Repeated data is delivered once.
    duel.send(PacketType::OneRtt, &stream(0, b"abcdefg", false));
    assert_eq!(new_events(&mut duel), 1);
    let mut read = |max| duel.victim().read_unordered(id(), max);
    assert_eq!(read(100), Ok(Some((2, "cde".into()))));
    assert_eq!(read(100), Ok(None), "every byte was delivered");
    assert_eq!(duel.closed(), None);
}

/// Credit for the connection and the stream is returned as for an in-order reader.
#[test]
fn reading_out_of_order_returns_credit() {
    let mut duel = server(&stream(0, b"", false));
    let mut offset = 0;
    let piece = [7; 1000];
    // Many times the initial credit of a stream, every other piece first.
    for _ in 0..4000 {
        for at in [offset + 1000, offset] {
            duel.send(PacketType::OneRtt, &stream(at, &piece, false));
            while let Ok(Some(_)) = duel.victim().read_unordered(id(), usize::MAX) {}
        }
        offset += 2000;
        assert_eq!(duel.closed(), None, "at {offset}");
    }
}

#[test]
fn a_reset_is_reported_before_the_data_is_read() {
    let mut duel = server(&stream(0, b"data", false));
    let _ = new_events(&mut duel);
    assert_eq!(duel.victim().received_reset(id()), Err(ReadError::Blocked));
    duel.send(PacketType::OneRtt, &stream(4, b"more", false));
    assert_eq!(
        new_events(&mut duel),
        0,
        "data does not end the wait for a reset"
    );
    duel.send(PacketType::OneRtt, &reset(7, 8));
    assert_eq!(new_events(&mut duel), 1);
    assert_eq!(duel.victim().received_reset(id()), Ok(Some(7)));
    assert_eq!(duel.victim().received_reset(id()), Ok(Some(7)));
    assert_eq!(duel.victim().read(id(), 100), Err(ReadError::Reset(7)));
}

#[test]
fn a_completely_received_stream_is_no_longer_reset() {
    for unordered in [false, true] {
        let mut duel = server(&stream(4, b"more", true));
        let before = new_events(&mut duel);
        if unordered {
            let read = duel.victim().read_unordered(id(), 100);
            assert_eq!(read, Ok(Some((4, "more".into()))));
        }
        assert_eq!(duel.victim().received_reset(id()), Err(ReadError::Blocked));
        duel.send(PacketType::OneRtt, &stream(0, b"da", false));
        let first = new_events(&mut duel);
        assert!(before + first >= 1, "readable data is reported");
        duel.send(PacketType::OneRtt, &stream(2, b"ta", false));
        assert_eq!(
            new_events(&mut duel),
            1,
            "complete data ends the wait for a reset"
        );
        assert_eq!(duel.victim().received_reset(id()), Ok(None));
        // RFC 9000 §3.2: a reset of the same size changes nothing for a reader that has not begun.
        let mut got = 0;
        while let Ok(Some((_, bytes))) = duel.victim().read_unordered(id(), 100) {
            got += bytes.len();
        }
        assert_eq!(got, if unordered { 4 } else { 8 });
    }
}
