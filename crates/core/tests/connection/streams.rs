//! Streams: the order of sending, what a partial reset delivers, and what a peer learns when its
//! limits are reached.

use std::time::Duration;

use bytes::Bytes;
use squall_core::{
    CloseReason, EndpointConfig, Event, Priority, ReachedLimit, ReadError, TransportConfig,
    WriteError,
};
use squall_wire::{Direction, Side, StreamId};

use crate::common::link::{Host, Link};
use crate::common::{Pair, tls};

fn open(pair: &mut Pair) -> StreamId {
    let client = pair.connection(Side::Client);
    client
        .open(Direction::Unidirectional)
        .expect("within the limit")
}

fn write(pair: &mut Pair, id: StreamId, len: usize) {
    let mut data = Bytes::from(vec![id.0 as u8; len]);
    let taken = pair.connection(Side::Client).write(id, &mut data);
    assert_eq!(taken, Ok(len));
}

/// Bytes of every stream that have arrived, without returning credit for other streams.
fn read(pair: &mut Pair, id: StreamId) -> usize {
    let server = pair.connection(Side::Server);
    while server.accept(Direction::Unidirectional).is_some() {}
    let mut sum = 0;
    while let Ok(Some(bytes)) = server.read(id, usize::MAX) {
        sum += bytes.len();
    }
    sum
}

fn paced_by_credit() -> Pair {
    // Little credit: only what is sent first arrives at all.
    let mut pair = Pair::with(
        TransportConfig::default()
            .initial_window(30_000)
            .receive_window(30_000)
            .initial_stream_window(30_000)
            .stream_receive_window(30_000),
    );
    pair.run();
    pair
}

#[test]
fn streams_of_a_level_share_bandwidth_and_higher_levels_go_first() {
    let mut pair = paced_by_credit();
    let streams: Vec<StreamId> = (0..4).map(|_| open(&mut pair)).collect();
    let urgent = Priority {
        level: 1,
        incremental: true,
    };
    pair.connection(Side::Client)
        .set_priority(streams[3], urgent)
        .unwrap();
    for id in &streams {
        write(&mut pair, *id, 12_000);
    }
    for _ in 0..3 {
        pair.pump(Side::Client);
    }
    pair.run();
    let arrived: Vec<usize> = streams.iter().map(|id| read(&mut pair, *id)).collect();
    assert_eq!(
        arrived[3], 12_000,
        "the urgent stream is not delayed: {arrived:?}"
    );
    assert!(arrived.iter().sum::<usize>() <= 30_000);
    pair.run();
    let rest: usize = streams.iter().map(|id| read(&mut pair, *id)).sum();
    assert_eq!(arrived.iter().sum::<usize>() + rest, 48_000);
}

#[test]
fn a_non_incremental_stream_sends_all_it_has() {
    let mut pair = paced_by_credit();
    let streams: Vec<StreamId> = (0..5).map(|_| open(&mut pair)).collect();
    // Written in the opposite order: the lowest id still goes first.
    for id in streams.iter().rev() {
        let ordered = Priority {
            level: 0,
            incremental: false,
        };
        let client = pair.connection(Side::Client);
        client.set_priority(*id, ordered).unwrap();
        assert_eq!(client.priority(*id), Some(ordered));
        write(&mut pair, *id, 14_000);
    }
    pair.run();
    let arrived: Vec<usize> = streams.iter().map(|id| read(&mut pair, *id)).collect();
    assert_eq!(arrived[..2], [14_000, 14_000], "{arrived:?}");
    assert!(arrived[2] < 3_000 && arrived[3] == 0, "{arrived:?}");
}

// test: draft-ietf-quic-reliable-stream-reset §5
#[test]
fn a_partial_reset_delivers_its_reliable_size() {
    let mut pair = Pair::new();
    pair.run();
    let id = open(&mut pair);
    write(&mut pair, id, 50_000);
    let client = pair.connection(Side::Client);
    client.reset_at(id, 9, 20_000).unwrap();
    // The promise may shrink but not grow; and the code stays.
    client.reset_at(id, 10, 30_000).unwrap();
    client.reset_at(id, 11, 10_000).unwrap();
    let mut more = Bytes::from_static(b"more");
    assert_eq!(client.write(id, &mut more), Err(WriteError::Closed));
    pair.run();
    assert_eq!(read(&mut pair, id), 10_000);
    assert_eq!(
        pair.connection(Side::Server).read(id, 1),
        Err(ReadError::Closed),
        "the reset was read by the loop above, and the stream is gone"
    );
    assert!(pair.events(Side::Client).contains(&Event::Finished(id)));
    assert_eq!(pair.connection(Side::Client).stats().open_streams, 0);
    assert_eq!(pair.connection(Side::Server).stats().open_streams, 0);
}

#[test]
fn the_code_of_a_partial_reset_arrives_after_its_data() {
    let mut pair = Pair::new();
    pair.run();
    let id = open(&mut pair);
    write(&mut pair, id, 5_000);
    pair.run();
    pair.connection(Side::Client)
        .reset_at(id, 9, 4_000)
        .unwrap();
    pair.run();
    let server = pair.connection(Side::Server);
    server.accept(Direction::Unidirectional).unwrap();
    // Everything arrived before the reset, so more than the promise may be delivered.
    let mut arrived = 0;
    let end = loop {
        match server.read(id, 9_000) {
            Ok(Some(bytes)) => arrived += bytes.len(),
            end => break end,
        }
    };
    assert_eq!((arrived, end), (5_000, Err(ReadError::Reset(9))));
}

/// A client that requests one large object after the other sends its server new limits in its
/// requests: alone, each would have to be acknowledged alone.
// test: RFC 9000 §4.2
#[test]
fn requests_carry_new_limits_for_the_answers() {
    let mut pair = Pair::with(
        TransportConfig::default()
            .initial_window(100_000)
            .receive_window(100_000)
            .initial_stream_window(40_000),
    );
    pair.run();
    let mut acked_alone = 0;
    for _ in 0..20 {
        let client = pair.connection(Side::Client);
        let id = client.open(Direction::Bidirectional).unwrap();
        client.write(id, &mut Bytes::from_static(b"more")).unwrap();
        client.finish(id).unwrap();
        pair.run();
        let server = pair.connection(Side::Server);
        assert_eq!(server.accept(Direction::Bidirectional), Some(id));
        while let Ok(Some(_)) = server.read(id, 100) {}
        let mut answer = Bytes::from(vec![7; 30_000]);
        assert_eq!(server.write(id, &mut answer), Ok(30_000));
        server.finish(id).unwrap();
        pair.run();
        let sent = pair.connection(Side::Server).stats().packets_sent;
        let client = pair.connection(Side::Client);
        let mut read = 0;
        while let Ok(Some(chunk)) = client.read(id, usize::MAX) {
            read += chunk.len();
        }
        assert_eq!(read, 30_000);
        pair.run();
        acked_alone += pair.connection(Side::Server).stats().packets_sent - sent;
    }
    assert_eq!(acked_alone, 0);
}

/// The end of a stream is there to be taken once everything before it was read, and only then.
#[test]
fn the_end_is_taken_with_the_last_bytes() {
    let mut pair = Pair::new();
    pair.run();
    let id = open(&mut pair);
    write(&mut pair, id, 1_000);
    pair.run();
    let server = pair.connection(Side::Server);
    server.accept(Direction::Unidirectional).unwrap();
    assert_eq!(server.read_end(id), None, "unread");
    assert_eq!(server.read(id, 1_000).unwrap().unwrap().len(), 1_000);
    assert_eq!(server.read_end(id), None, "no FIN yet");
    write(&mut pair, id, 10);
    pair.connection(Side::Client).finish(id).unwrap();
    pair.run();
    let server = pair.connection(Side::Server);
    assert_eq!(server.read_end(id), None, "unread");
    assert_eq!(server.read(id, 9).unwrap().unwrap().len(), 9);
    assert_eq!(server.read_end(id), None, "a byte is unread");
    let _ = server.read_unordered(id, 9).unwrap().unwrap();
    assert_eq!(server.read_end(id), Some(false));
    assert_eq!(server.stats().open_streams, 0);
    assert_eq!(server.read_end(id), None, "it was taken");
    // Of a stream that was reset or stopped, nothing is left to take.
    for stops in [false, true] {
        let id = open(&mut pair);
        write(&mut pair, id, 100);
        pair.run();
        let server = pair.connection(Side::Server);
        server.accept(Direction::Unidirectional).unwrap();
        let _ = server.read(id, 100).unwrap();
        if stops {
            server.stop_sending(id, 3).unwrap();
            pair.connection(Side::Client).finish(id).unwrap();
        } else {
            pair.connection(Side::Client).reset_at(id, 3, 100).unwrap();
        }
        pair.run();
        assert_eq!(pair.connection(Side::Server).read_end(id), None);
    }
}

/// Streams that arrive together are reported once, and a reader that reads first is told only of
/// what comes later.
#[test]
fn a_stream_accepted_to_be_read_is_reported_once_it_was_found_empty() {
    let mut pair = Pair::new();
    pair.run();
    let ids: Vec<StreamId> = (0..3).map(|_| open(&mut pair)).collect();
    ids.iter().for_each(|id| write(&mut pair, *id, 100));
    pair.events(Side::Server);
    pair.run();
    let opened = Event::StreamOpened(Direction::Unidirectional);
    assert_eq!(pair.events(Side::Server), [opened], "three in one packet");
    let server = pair.connection(Side::Server);
    assert_eq!(server.accept(Direction::Unidirectional), Some(ids[0]));
    for id in &ids[1..] {
        let accepted = server.accept_and_read(Direction::Unidirectional).unwrap();
        assert_eq!((accepted.id, accepted.message), (*id, None));
    }
    assert_eq!(server.accept_and_read(Direction::Unidirectional), None);
    // Unread: nothing more is reported. Read until it is empty: what comes next is.
    assert_eq!(server.read(ids[1], 200).unwrap().unwrap().len(), 100);
    assert_eq!(server.read(ids[1], 200), Err(ReadError::Blocked));
    ids.iter().for_each(|id| write(&mut pair, *id, 10));
    pair.run();
    let readable = [ids[0], ids[1]].map(Event::Readable);
    assert_eq!(pair.events(Side::Server), readable);
}

/// A peer may stop a stream before the application has accepted it.
#[test]
fn a_stream_is_accepted_with_the_code_that_stopped_it() {
    for (code, whole) in [(None, false), (Some(9), false), (Some(8), true)] {
        let mut pair = Pair::new();
        pair.run();
        let client = pair.connection(Side::Client);
        let id = client.open(Direction::Bidirectional).unwrap();
        let written = client.write(id, &mut Bytes::from_static(b"request"));
        assert_eq!(written, Ok(7));
        if whole {
            client.finish(id).unwrap();
        }
        if let Some(code) = code {
            client.stop_sending(id, code).unwrap();
        }
        pair.run();
        let server = pair.connection(Side::Server);
        let accepted = server.accept_and_read(Direction::Bidirectional).unwrap();
        assert_eq!((accepted.id, accepted.stopped), (id, code));
        assert_eq!(accepted.message.is_some(), whole);
        // Nothing is left of a stream that was stopped and has been read to its end.
        assert_eq!(server.stats().open_streams == 0, whole);
    }
}

/// Only a short message that has arrived whole, on a stream with an answer, is read at once.
#[test]
fn a_stream_is_accepted_together_with_a_short_message() {
    let mut pair = Pair::new();
    pair.run();
    // Length, whether the end arrives with it, and whether it is read.
    for (direction, len, ends, read) in [
        (Direction::Bidirectional, 1, true, true),
        (Direction::Bidirectional, 1000, true, true),
        (Direction::Bidirectional, 2048, true, true),
        (Direction::Bidirectional, 2049, true, false),
        (Direction::Bidirectional, 1000, false, false),
        (Direction::Bidirectional, 0, true, false),
        (Direction::Unidirectional, 1000, true, false),
    ] {
        let case = format!("{direction:?} {len} {ends}");
        let client = pair.connection(Side::Client);
        let id = client.open(direction).unwrap();
        let mut data = Bytes::from(vec![7; len]);
        while !data.is_empty() {
            client.write(id, &mut data).unwrap();
        }
        if ends {
            client.finish(id).unwrap();
        }
        pair.run();
        let server = pair.connection(Side::Server);
        let accepted = server.accept_and_read(direction).unwrap();
        let message = accepted.message.map(|message| {
            assert!(!message.early);
            message.data
        });
        let expected = read.then(|| Bytes::from(vec![7; len]));
        assert_eq!((accepted.id, message), (id, expected), "{case}");
        // The rest is read as ever, and a stream that was read to its end stays so.
        let mut rest = 0;
        let end = loop {
            match server.read(id, usize::MAX) {
                Ok(Some(data)) => rest += data.len(),
                end => break end,
            }
        };
        assert_eq!(rest, if read { 0 } else { len }, "{case}");
        let expected = match ends {
            true => Ok(None),
            false => Err(ReadError::Blocked),
        };
        assert_eq!(end, expected, "{case}");
        assert_eq!(server.accept_and_read(direction), None);
    }
}

/// The peer gets back its credit for messages that were read as their streams were accepted.
#[test]
fn messages_read_as_they_are_accepted_return_their_credit() {
    let window = TransportConfig::default()
        .initial_window(40_000)
        .receive_window(40_000);
    let mut pair = Pair::with(window);
    pair.run();
    for _ in 0..200 {
        let client = pair.connection(Side::Client);
        let id = client.open(Direction::Bidirectional).unwrap();
        let written = client.write(id, &mut Bytes::from(vec![7; 1000]));
        assert_eq!(written, Ok(1000));
        client.finish(id).unwrap();
        pair.run();
        let server = pair.connection(Side::Server);
        let accepted = server.accept_and_read(Direction::Bidirectional).unwrap();
        assert_eq!(accepted.message.unwrap().data.len(), 1000);
        server.finish(id).unwrap();
        pair.run();
        assert_eq!(pair.connection(Side::Client).read(id, 1), Ok(None));
        pair.run();
        let open = |side| pair.connection(side).stats().open_streams;
        assert_eq!([Side::Client, Side::Server].map(open), [0, 0]);
    }
}

// test: RFC 9000 §4.1, §4.6
#[test]
fn blocking_limits_are_reported_to_the_peer_once() {
    let mut pair = Pair::with(
        TransportConfig::default()
            .initial_window(40_000)
            .receive_window(40_000)
            .initial_stream_window(10_000)
            .stream_receive_window(10_000)
            .max_concurrent_uni_streams(5),
    );
    pair.run();
    let streams: Vec<StreamId> = (0..5).map(|_| open(&mut pair)).collect();
    let client = pair.connection(Side::Client);
    for _ in 0..3 {
        assert_eq!(client.open(Direction::Unidirectional), None);
    }
    for id in &streams {
        write(&mut pair, *id, 10_000);
        pair.run();
        // Asked repeatedly; the peer is informed once.
        for _ in 0..3 {
            let more = pair.connection(Side::Client).write_copy(*id, &[1]);
            assert_eq!(more, Err(WriteError::Blocked));
        }
        pair.run();
    }
    let stats = pair.connection(Side::Server).stats();
    assert_eq!(
        (stats.streams_blocked_received, stats.data_blocked_received),
        (1, 1)
    );
    // The fifth stream is held back by the connection's limit alone.
    assert_eq!(stats.stream_data_blocked_received, 4);
    // With credit everything continues to its end.
    let mut arrived = 0;
    let mut written = 50_000;
    for _ in 0..20 {
        arrived += streams.iter().map(|id| read(&mut pair, *id)).sum::<usize>();
        pair.run();
        for event in pair.events(Side::Client) {
            if let Event::Writable(id) = event {
                write(&mut pair, id, 10_000);
                written += 10_000;
            }
        }
        pair.run();
    }
    assert!(written >= 100_000, "every writer is woken: {written}");
    assert_eq!(arrived, written);
}

// test: RFC 9000 §4.6: whatever has ended before, the peer may have all of them open at a time
#[test]
fn the_peer_can_keep_the_allowed_number_of_streams_open() {
    let sizes = [1, 2, 3, 7, 16, 100];
    let cases = sizes
        .into_iter()
        .flat_map(|allowed| (0..=2 * allowed).map(move |ended| (allowed, ended)));
    for (allowed, ended) in cases {
        for silent in [false, true] {
            let transport = TransportConfig::default().max_concurrent_uni_streams(allowed);
            let mut pair = Pair::with(transport);
            pair.run();
            for _ in 0..ended {
                let id = open(&mut pair);
                pair.connection(Side::Client).finish(id).unwrap();
                pair.run();
                let server = pair.connection(Side::Server);
                assert_eq!(server.accept(Direction::Unidirectional), Some(id));
                assert_eq!(server.read(id, 1), Ok(None));
                pair.run();
            }
            for n in 0..allowed {
                let client = pair.connection(Side::Client);
                let mut opened = client.open(Direction::Unidirectional);
                if opened.is_none() && silent {
                    // The server does not know how many are waiting until STREAMS_BLOCKED tells it.
                    pair.run();
                    let client = pair.connection(Side::Client);
                    opened = client.open(Direction::Unidirectional);
                }
                let id = opened.unwrap_or_else(|| {
                    panic!("{n} of {allowed} are open, {ended} have ended ({silent})")
                });
                if !silent {
                    write(&mut pair, id, 1);
                    pair.run();
                }
            }
            let client = pair.connection(Side::Client);
            assert_eq!(client.open(Direction::Unidirectional), None);
        }
    }
}

// test: RFC 9000 §4.6: an acknowledgement is not delayed if another stream waits for it
#[test]
fn a_stream_blocked_by_the_limit_opens_once_another_has_ended() {
    for reset in [false, true] {
        let mut pair = Pair::with(TransportConfig::default().max_concurrent_bidi_streams(1));
        pair.run();
        for _ in 0..5 {
            let client = pair.connection(Side::Client);
            let id = client.open(Direction::Bidirectional).unwrap();
            assert_eq!(client.open(Direction::Bidirectional), None);
            client.finish(id).unwrap();
            pair.run();
            let server = pair.connection(Side::Server);
            assert_eq!(server.accept(Direction::Bidirectional), Some(id));
            assert_eq!(server.read(id, 1), Ok(None));
            if reset {
                server.reset(id, 7).unwrap();
            } else {
                server.finish(id).unwrap();
            }
            // No time passes.
            while pair.pump(Side::Server) | pair.pump(Side::Client) {}
            let available = Event::StreamsAvailable(Direction::Bidirectional);
            assert!(pair.events(Side::Client).contains(&available), "{reset}");
        }
    }
}

// test: RFC 9000 §4.1: a film that is paused for longer than the idle timeout
#[test]
fn a_sender_blocked_by_flow_control_keeps_the_connection_alive() {
    // What holds the sender back: nothing, its stream's credit, the connection's.
    for (stream_window, window) in [(100_000, 100_000), (10_000, 100_000), (100_000, 10_000)] {
        for idle in [2, 30] {
            let (client_tls, server_tls) = tls();
            let transport = TransportConfig::default()
                .max_idle_timeout(Duration::from_secs(idle))
                .initial_window(window)
                .receive_window(window)
                .initial_stream_window(stream_window)
                .stream_receive_window(stream_window);
            let config = EndpointConfig::new([1; 32]);
            let server = Host::server(config, server_tls, transport.clone());
            let mut link = Link::new(Host::client(), server);
            let handle = link.client.connect(link.now, client_tls, transport);
            link.run();
            let client = link.client.connections.get_mut(&handle).unwrap();
            let id = client.open(Direction::Unidirectional).unwrap();
            let mut rest = Bytes::from(vec![1; 50_000]);
            while client.write(id, &mut rest).is_ok_and(|taken| taken > 0) {}
            link.run();
            let held_back = !rest.is_empty() || window < 50_000;
            link.rest(Duration::from_secs(10 * idle));
            let closed = link.client.closed(handle);
            assert_eq!(
                closed.is_none(),
                held_back,
                "{stream_window}, {window}, {idle}"
            );
            if !held_back {
                continue;
            }
            // Reading resumes, and then there is silence again.
            let mut arrived = 0;
            for _ in 0..50 {
                let server = link.server.connections.values_mut().next().unwrap();
                server.accept(Direction::Unidirectional);
                while let Ok(Some(bytes)) = server.read(id, usize::MAX) {
                    arrived += bytes.len();
                }
                link.run();
                let client = link.client.connections.get_mut(&handle).unwrap();
                let _ = client.write(id, &mut rest);
                link.run();
            }
            assert_eq!((arrived, rest.len()), (50_000, 0));
            link.rest(Duration::from_secs(10 * idle));
            assert_eq!(link.client.closed(handle), Some(&CloseReason::IdleTimeout));
        }
    }
}

#[test]
fn a_writer_can_wait_until_little_is_unsent() {
    let mut pair = Pair::new();
    pair.run();
    let id = open(&mut pair);
    write(&mut pair, id, 100_000);
    pair.collect(Side::Client);
    let client = pair.connection(Side::Client);
    assert_eq!(client.await_unsent(id, 100_000), Ok(()));
    assert_eq!(client.await_unsent(id, 20_000), Err(WriteError::Blocked));
    // Some is sent, and then more.
    let mut notified = 0;
    for _ in 0..1000 {
        pair.now += Duration::from_micros(100);
        pair.pump(Side::Client);
        let events = pair.events(Side::Client);
        if events.contains(&Event::Writable(id)) {
            notified += 1;
            let client = pair.connection(Side::Client);
            assert_eq!(client.await_unsent(id, 20_000), Ok(()));
        }
        pair.pump(Side::Server);
    }
    assert_eq!(notified, 1, "the writer is notified exactly once");
    let client = pair.connection(Side::Client);
    assert_eq!(client.await_unsent(id, 0), Ok(()));
    client.finish(id).unwrap();
    assert_eq!(client.await_unsent(id, 0), Err(WriteError::Closed));
}

// test: RFC 9000 §4.1
#[test]
fn a_limit_blocks_until_the_peer_grants_credit() {
    let mut pair = Pair::with(
        TransportConfig::default()
            .initial_window(50_000)
            .receive_window(50_000)
            .initial_stream_window(30_000)
            .stream_receive_window(30_000),
    );
    pair.run();
    let (first, second) = (open(&mut pair), open(&mut pair));
    let reached = |pair: &mut Pair, id| pair.connection(Side::Client).reached_limit(id);
    assert_eq!(reached(&mut pair, first), None);
    write(&mut pair, first, 30_000);
    // Written does not mean sent.
    assert_eq!(reached(&mut pair, first), None);
    pair.run();
    let stream = Some(ReachedLimit::Stream(30_000));
    assert_eq!(reached(&mut pair, first), stream);
    assert_eq!(reached(&mut pair, second), None);
    write(&mut pair, second, 30_000);
    pair.run();
    let connection = Some(ReachedLimit::Connection(50_000));
    assert_eq!(reached(&mut pair, second), connection);
    assert_eq!(reached(&mut pair, first), stream);
    assert_eq!(read(&mut pair, first), 30_000);
    pair.run();
    assert_eq!(reached(&mut pair, first), None);
    assert_ne!(reached(&mut pair, second), connection);
}

// On a busy connection, some stream is always on its way.
#[test]
fn a_graceful_close_waits_for_streams_finished_before_it() {
    let mut pair = Pair::new();
    pair.run();
    let finish = |pair: &mut Pair, bytes: usize| {
        let client = pair.connection(Side::Client);
        let id = client.open(Direction::Unidirectional).unwrap();
        client.write(id, &mut vec![1; bytes].into()).unwrap();
        client.finish(id).unwrap();
        id
    };
    let first = finish(&mut pair, 100);
    // Its only datagram is lost.
    assert!(pair.take_datagram(Side::Client).is_some());
    let client = pair.connection(Side::Client);
    client.prepare_to_close();
    assert!(client.is_delivering());
    let second = finish(&mut pair, 100);
    let client = pair.connection(Side::Client);
    client.reset(first, 7).unwrap();
    assert!(!client.is_delivering());
    // Asked again, it counts the second one, too.
    client.prepare_to_close();
    assert!(client.is_delivering());
    client.reset(second, 7).unwrap();
    assert!(!client.is_delivering());
}

// test: RFC 9000 §4.2
#[test]
fn raising_a_window_from_zero_grants_credit_again() {
    let mut pair = paced_by_credit();
    let id = open(&mut pair);
    pair.connection(Side::Server).set_receive_window(0);
    write(&mut pair, id, 30_000);
    pair.run();
    assert_eq!(read(&mut pair, id), 30_000);
    pair.run();
    // All credit is used up, and all data is read: nothing else happens that could renew it.
    let server = pair.connection(Side::Server);
    assert!(!server.wants_transmit());
    server.set_receive_window(30_000);
    assert!(server.wants_transmit());
    pair.run();
    let mut data = Bytes::from(vec![1; 1_000]);
    let taken = pair.connection(Side::Client).write(id, &mut data);
    assert_eq!(taken, Ok(1_000));
    pair.run();
    assert_eq!(read(&mut pair, id), 1_000);
}
