//! Data over streams: what is written is what is read, through every way in and out.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

mod common;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use common::{Pair, pattern, within};
use squall::{
    Bytes, Connection, ReadError, ReadExactError, ReadToEndError, RecvStream, SendStream,
    TransportConfig, WriteError,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Echoes every bidirectional stream.
async fn echo_streams(connection: Connection) {
    while let Ok((send, recv)) = connection.accept_bi().await {
        tokio::spawn(common::echo(send, recv));
    }
}

#[tokio::test]
async fn a_few_bytes_are_echoed() {
    let pair = Pair::new().await;
    tokio::spawn(echo_streams(pair.far.clone()));
    let (mut send, mut recv) = within(pair.near.open_bi()).await.unwrap();
    within(send.write_all(b"hello, ")).await.unwrap();
    within(send.write_all(b"world")).await.unwrap();
    send.finish().unwrap();
    assert_eq!(
        within(recv.read_to_end(100)).await.unwrap(),
        b"hello, world"
    );
    assert_eq!(within(send.stopped()).await.unwrap(), None);
    // Reading after the end returns the end again.
    assert_eq!(within(recv.read(&mut [0; 4])).await.unwrap(), None);
    assert_eq!(send.finish().unwrap_err(), WriteError::Closed);
}

/// Takes what has arrived, and whether the end has arrived with it.
async fn first_chunk(recv: &mut RecvStream) -> (Bytes, bool) {
    let chunk = within(recv.read_chunk(1000)).await.unwrap().unwrap();
    let mut next = std::pin::pin!(recv.read_chunk(1000));
    let end = next
        .as_mut()
        .poll(&mut Context::from_waker(std::task::Waker::noop()));
    (chunk, matches!(end, Poll::Ready(Ok(None))))
}

#[tokio::test]
async fn the_fin_is_sent_with_the_last_byte() {
    let pair = Pair::new().await;
    let expected = (Bytes::from_static(b"all"), true);
    for _ in 0..500 {
        let mut send = within(pair.near.open_uni()).await.unwrap();
        within(send.write_last(b"all")).await.unwrap();
        let mut recv = within(pair.far.accept_uni()).await.unwrap();
        assert_eq!(first_chunk(&mut recv).await, expected);
        assert_eq!(send.finish().unwrap_err(), WriteError::Closed);

        let mut send = within(pair.near.open_uni()).await.unwrap();
        let mut chunk = Bytes::from_static(b"all");
        let last = std::future::poll_fn(|cx| send.poll_write_last_chunk(cx, &mut chunk));
        assert_eq!(within(last).await, Ok(3));
        assert!(chunk.is_empty());
        let mut recv = within(pair.far.accept_uni()).await.unwrap();
        assert_eq!(first_chunk(&mut recv).await, expected);

        let mut send = within(pair.near.open_uni()).await.unwrap();
        within(send.write_last_chunk(expected.0.clone()))
            .await
            .unwrap();
        let mut recv = within(pair.far.accept_uni()).await.unwrap();
        assert_eq!(first_chunk(&mut recv).await, expected);
    }
}

/// A reader that has taken every byte may not know whether the end has arrived, too.
#[tokio::test]
async fn a_stream_read_to_its_last_byte_ends_like_one_read_to_its_end() {
    let pair = Pair::new().await;
    let sent = async || {
        let mut send = within(pair.near.open_uni()).await.unwrap();
        within(send.write_last(b"all")).await.unwrap();
        let mut recv = within(pair.far.accept_uni()).await.unwrap();
        let chunk = within(recv.read_chunk(1000)).await.unwrap();
        assert_eq!(chunk, Some(Bytes::from_static(b"all")));
        (send, recv)
    };
    let (send, mut recv) = sent().await;
    assert_eq!(recv.stop(7), Ok(()));
    assert_eq!(recv.stop(7), Err(ReadError::Closed));
    assert_eq!(within(recv.read_chunk(1)).await, Err(ReadError::Closed));
    assert_eq!(within(send.stopped()).await, Ok(None));

    let (_send, mut recv) = sent().await;
    assert_eq!(within(recv.received_reset()).await, Ok(None));
    assert_eq!(within(recv.read_chunk_unordered(1)).await, Ok(None));
    assert_eq!(within(recv.read_chunk(1)).await, Ok(None));
    assert_eq!(recv.stop(7), Err(ReadError::Closed), "the end is known");
    drop(recv);
    assert_eq!(pair.far.stats().open_streams, 0);
}

/// However a receiving half ends, the sending half of its stream still learns its outcome, even if
/// it asks after the connection has forgotten the stream.
#[tokio::test]
async fn the_end_of_one_half_leaves_the_outcome_of_the_other() {
    let pair = Pair::new().await;
    for way in ["read", "read to its end", "reset", "stopped", "dropped"] {
        let (mut near_send, mut near_recv) = within(pair.near.open_bi()).await.unwrap();
        within(near_send.write_all(b"question")).await.unwrap();
        let (mut send, mut recv) = within(pair.far.accept_bi()).await.unwrap();
        match way {
            "read" | "read to its end" => {
                near_send.finish().unwrap();
                within(near_send.stopped()).await.unwrap();
                let chunk = within(recv.read_chunk(1000)).await.unwrap();
                assert_eq!(chunk, Some(Bytes::from_static(b"question")));
                if way == "read to its end" {
                    assert_eq!(within(recv.read_chunk(1000)).await, Ok(None));
                }
            }
            "reset" => {
                near_send.reset(5).unwrap();
                let reset = async {
                    while recv.read_chunk(1000).await?.is_some() {}
                    Ok(())
                };
                assert_eq!(within(reset).await, Err(ReadError::Reset(5)));
            }
            "stopped" => recv.stop(6).unwrap(),
            _ => {}
        }
        drop(recv);
        within(send.write_last(b"answer")).await.unwrap();
        let answer = within(near_recv.read_to_end(100)).await.unwrap();
        assert_eq!(answer, b"answer", "{way}");
        while pair.far.stats().open_streams > 0 {
            within(tokio::time::sleep(Duration::from_millis(1))).await;
        }
        assert_eq!(within(send.stopped()).await, Ok(None), "{way}");
    }
}

/// A short message that arrives whole is read when its stream is accepted, and the reader cannot
/// tell.
#[tokio::test]
async fn a_short_message_is_read_in_every_way() {
    let pair = Pair::new().await;
    let sent = async || {
        let (mut send, recv) = within(pair.near.open_bi()).await.unwrap();
        within(send.write_last(b"question")).await.unwrap();
        // All of it has arrived.
        within(send.stopped()).await.unwrap();
        let (answer, question) = within(pair.far.accept_bi()).await.unwrap();
        (recv, answer, question)
    };
    let text = |text: &'static str| Ok(Some(Bytes::from_static(text.as_bytes())));

    let (_recv, _answer, mut question) = sent().await;
    assert!(!question.is_early());
    assert_eq!(within(question.read_chunk(0)).await, text(""));
    assert_eq!(within(question.read_chunk(3)).await, text("que"));
    assert_eq!(within(question.received_reset()).await, Ok(None));
    assert_eq!(within(question.read_chunk(0)).await, text(""));
    assert_eq!(within(question.read_chunk(100)).await, text("stion"));
    assert_eq!(within(question.read_chunk(0)).await, Ok(None));
    assert_eq!(within(question.read_chunk(9)).await, Ok(None));

    let (_recv, _answer, mut question) = sent().await;
    assert_eq!(within(question.read_chunk(3)).await, text("que"));
    let mut places = Vec::new();
    while let Some(chunk) = within(question.read_chunk_unordered(2)).await.unwrap() {
        places.push((chunk.offset, chunk.bytes.len()));
        let ordered = within(question.read_chunk(9)).await;
        if places.len() < 3 {
            assert_eq!(ordered, Err(ReadError::IllegalOrderedRead));
        }
    }
    assert_eq!(places, [(3, 2), (5, 2), (7, 1)]);

    let (_recv, _answer, mut question) = sent().await;
    let mut chunks = [Bytes::new(), Bytes::new()];
    assert_eq!(within(question.read_chunks(&mut chunks)).await, Ok(Some(1)));
    assert_eq!(chunks[0], "question");
    assert_eq!(within(question.read_chunks(&mut chunks)).await, Ok(None));

    let (_recv, _answer, mut question) = sent().await;
    assert_eq!(question.stop(7), Ok(()));
    assert_eq!(question.stop(7), Err(ReadError::Closed));
    assert_eq!(within(question.read_chunk(9)).await, Err(ReadError::Closed));

    // It can also be read after the connection has ended.
    let (_recv, _answer, mut question) = sent().await;
    pair.near.close(0, b"");
    within(pair.far.closed()).await;
    assert_eq!(within(question.read_to_end(8)).await.unwrap(), b"question");
}

#[tokio::test]
async fn a_stream_can_be_finished_and_let_go_at_once() {
    let pair = Pair::new().await;
    for len in [0, 5, 10_000_000] {
        let data = Bytes::from(pattern(len, 1));
        let write = async {
            let send = pair.near.open_uni().await.unwrap();
            send.finish_with(data.clone()).await.unwrap();
        };
        let read = async {
            let mut recv = pair.far.accept_uni().await.unwrap();
            recv.read_to_end(len).await.unwrap()
        };
        let ((), read) = within(async { tokio::join!(write, read) }).await;
        assert!(read == data, "{len} bytes came back changed");
    }
    // A future that waits for the outcome still learns it.
    let send = within(pair.near.open_uni()).await.unwrap();
    let outcome = send.stopped();
    let all = Bytes::from_static(b"all");
    within(send.finish_with(all)).await.unwrap();
    assert_eq!(within(outcome).await, Ok(None));
    assert_eq!(pair.near.stats().streams_reset_on_drop, 0);
    drop(within(pair.far.accept_uni()).await.unwrap());
    // A stream that was stopped is not finished.
    let mut send = within(pair.near.open_uni()).await.unwrap();
    within(send.write_all(b"a")).await.unwrap();
    within(pair.far.accept_uni())
        .await
        .unwrap()
        .stop(7)
        .unwrap();
    assert_eq!(within(send.stopped()).await.unwrap(), Some(7));
    assert_eq!(
        within(send.finish_with(Bytes::from_static(b"b"))).await,
        Err(WriteError::Stopped(7))
    );
}

#[tokio::test]
async fn the_last_write_may_be_long_or_empty() {
    let pair = Pair::new().await;
    for len in [0, 10_000_000] {
        let mut send = within(pair.near.open_uni()).await.unwrap();
        let data = pattern(len, 1);
        let write = async {
            let chunk = Bytes::copy_from_slice(&data);
            send.write_last(&data).await.unwrap();
            let mut send = pair.near.open_uni().await.unwrap();
            send.write_last_chunk(chunk).await.unwrap();
        };
        let read = async {
            let mut recv = pair.far.accept_uni().await.unwrap();
            let first = recv.read_to_end(len).await.unwrap();
            let mut recv = pair.far.accept_uni().await.unwrap();
            assert!(recv.read_to_end(len).await.unwrap() == first);
            first
        };
        let ((), read) = within(async { tokio::join!(write, read) }).await;
        assert!(read == data, "{len} bytes came back changed");
        // Dropping a finished stream does not reset it.
        assert_eq!(within(send.stopped()).await.unwrap(), None);
        drop(send);
    }
    assert_eq!(pair.near.stats().streams_reset_on_drop, 0);
    // A stream that was stopped is not finished.
    let mut send = within(pair.near.open_uni()).await.unwrap();
    within(send.write_all(b"a")).await.unwrap();
    within(pair.far.accept_uni())
        .await
        .unwrap()
        .stop(7)
        .unwrap();
    assert_eq!(within(send.stopped()).await.unwrap(), Some(7));
    assert_eq!(
        within(send.write_last(b"b")).await.unwrap_err(),
        WriteError::Stopped(7)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_streams_transfer_ten_megabytes_each_way() {
    const LEN: usize = 10_000_000;
    let pair = Pair::new().await;
    tokio::spawn(echo_streams(pair.far.clone()));
    let streams = (0..10).map(|seed| {
        let connection = pair.near.clone();
        tokio::spawn(async move {
            let (mut send, mut recv) = connection.open_bi().await.unwrap();
            let data = Bytes::from(pattern(LEN, seed));
            let write = async {
                send.write_chunk(data.clone()).await.unwrap();
                send.finish().unwrap();
            };
            let ((), back) = tokio::join!(write, recv.read_to_end(LEN));
            assert!(back.unwrap() == data, "stream {seed} came back changed");
        })
    });
    for stream in streams {
        tokio::time::timeout(Duration::from_secs(120), stream)
            .await
            .expect("120 seconds are over")
            .unwrap();
    }
    let stats = pair.server.stats();
    assert!(stats.udp.bytes_received > 10 * LEN as u64);
    // Once per run and round rather than once per packet, if datagrams come in bundles.
    if pair.server.limits().gro && pair.client.limits().gso_segments > 1 {
        assert!(stats.locks < stats.udp.datagrams_received / 2, "{stats:?}");
    }
}

#[tokio::test]
async fn lists_of_chunks_are_written_and_read() {
    const LEN: usize = 3_000_000;
    let pair = Pair::new().await;
    tokio::spawn(echo_streams(pair.far.clone()));
    let (mut send, mut recv) = within(pair.near.open_bi()).await.unwrap();
    assert_eq!(within(recv.read_chunks(&mut [])).await.unwrap(), Some(0));
    let data = Bytes::from(pattern(LEN, 7));
    // An empty one among them, and more than the send buffer takes at a time.
    let mut chunks = [
        data.slice(..1),
        data.slice(1..1_000),
        Bytes::new(),
        data.slice(1_000..2_500_000),
        data.slice(2_500_000..),
    ];
    let write = async {
        let first = send.write_chunks(&mut chunks).await.unwrap();
        assert!(first > 1_000, "the first write fills the available room");
        let left: usize = chunks.iter().map(Bytes::len).sum();
        assert_eq!(first + left, LEN, "the unwritten rest stays in the chunks");
        send.write_all_chunks(&mut chunks).await.unwrap();
        assert!(chunks.iter().all(Bytes::is_empty));
        send.finish().unwrap();
    };
    let read = async {
        let (mut all, mut room) = (Vec::new(), vec![Bytes::new(); 8]);
        let mut most = 0;
        while let Some(read) = recv.read_chunks(&mut room).await.unwrap() {
            most = most.max(read);
            room[..read]
                .iter()
                .for_each(|chunk| all.extend_from_slice(chunk));
        }
        assert!(most > 1, "several chunks are read at a time");
        all
    };
    let ((), all) = within(async { tokio::join!(write, read) }).await;
    assert!(all == data, "the data arrives unchanged");
    assert_eq!(
        within(recv.read_chunks(&mut [Bytes::new()])).await.unwrap(),
        None
    );
}

#[tokio::test]
async fn tokio_traits_read_and_write() {
    let pair = Pair::new().await;
    let data = pattern(1_000_000, 3);
    let mut send = within(pair.near.open_uni()).await.unwrap();
    let expected = data.clone();
    let write = async {
        AsyncWriteExt::write_all(&mut send, &data).await.unwrap();
        send.shutdown().await.unwrap();
    };
    let read = async {
        let mut recv = pair.far.accept_uni().await.unwrap();
        let mut all = Vec::new();
        AsyncReadExt::read_to_end(&mut recv, &mut all)
            .await
            .unwrap();
        all
    };
    let ((), all) = within(async { tokio::join!(write, read) }).await;
    assert!(all == expected);
}

#[tokio::test]
async fn the_last_writes_arrive_after_a_finished_stream_was_dropped() {
    let pair = Pair::new().await;
    let mut send = within(pair.near.open_uni()).await.unwrap();
    let data = pattern(300_000, 4);
    within(send.write_all(&data)).await.unwrap();
    send.finish().unwrap();
    drop(send);
    let mut recv = within(pair.far.accept_uni()).await.unwrap();
    assert!(within(recv.read_to_end(1_000_000)).await.unwrap() == data);
}

/// Unread data on later streams does not block the rest of the first one.
#[tokio::test]
async fn streams_can_be_read_one_after_the_other() {
    let pair = Pair::new().await;
    let data = pattern(500_000, 5);
    let mut sends = Vec::new();
    for _ in 0..20 {
        let mut send = within(pair.near.open_uni()).await.unwrap();
        within(send.write_all(&data)).await.unwrap();
        send.finish().unwrap();
        sends.push(send);
    }
    for _ in &sends {
        let mut recv = within(pair.far.accept_uni()).await.unwrap();
        assert!(within(recv.read_to_end(data.len())).await.unwrap() == data);
    }
    within(pair.near.shutdown(0, b"")).await;
}

/// A reader that asks again gets no clean end.
#[tokio::test]
async fn a_truncated_stream_never_looks_complete() {
    let pair = Pair::new().await;
    let mut send = within(pair.near.open_uni()).await.unwrap();
    within(send.write_all(b"half")).await.unwrap();
    let mut recv = within(pair.far.accept_uni()).await.unwrap();
    assert_eq!(within(recv.read_chunk(0)).await, Ok(Some(Bytes::new())));
    let mut half = [0; 4];
    within(recv.read_exact(&mut half)).await.unwrap();
    send.reset(7).unwrap();
    for _ in 0..2 {
        let read = within(recv.read(&mut half)).await;
        assert_eq!(read, Err(ReadError::Reset(7)));
    }
    within(AsyncReadExt::read_to_end(&mut recv, &mut Vec::new()))
        .await
        .unwrap_err();
    // Nor does the end that gave it up wait for its delivery for ever.
    assert_eq!(within(send.stopped()).await, Err(WriteError::Closed));

    let mut send = within(pair.near.open_uni()).await.unwrap();
    within(send.write_all(b"half")).await.unwrap();
    let mut recv = within(pair.far.accept_uni()).await.unwrap();
    recv.stop(3).unwrap();
    assert_eq!(within(recv.read_chunk(4)).await, Err(ReadError::Closed));
    assert_eq!(within(send.stopped()).await, Ok(Some(3)));
}

#[tokio::test]
async fn a_full_send_buffer_suspends_the_writer() {
    let small = TransportConfig::default()
        .send_window(100_000)
        .stream_send_window(100_000);
    let narrow = TransportConfig::default()
        .initial_window(50_000)
        .receive_window(50_000);
    let pair = Pair::with(small, narrow, |builder| builder).await;
    let mut send = within(pair.near.open_uni()).await.unwrap();
    let data = pattern(1_000_000, 5);
    let mut written = 0;
    // The stream is not read: the writer stops when both buffers are full and stays blocked.
    while let Ok(n) =
        tokio::time::timeout(Duration::from_millis(300), send.write(&data[written..])).await
    {
        written += n.unwrap();
    }
    assert!((100_000..=150_000).contains(&written), "{written}");
    let mut recv = within(pair.far.accept_uni()).await.unwrap();
    let rest = async {
        send.write_all(&data[written..]).await.unwrap();
        send.finish().unwrap();
    };
    let ((), all) = within(async { tokio::join!(rest, recv.read_to_end(data.len())) }).await;
    assert!(all.unwrap() == data);
}

#[tokio::test]
async fn reset_and_stop_reach_the_other_side_with_their_codes() {
    let pair = Pair::new().await;
    let (mut send, mut recv) = within(pair.near.open_bi()).await.unwrap();
    within(send.write_all(b"x")).await.unwrap();
    let (mut far_send, mut far_recv) = within(pair.far.accept_bi()).await.unwrap();
    assert_eq!(
        within(far_recv.read_chunk(10)).await.unwrap().as_deref(),
        Some(&b"x"[..])
    );
    send.reset(41).unwrap();
    assert_eq!(
        within(far_recv.read_chunk(10)).await.unwrap_err(),
        ReadError::Reset(41)
    );
    recv.stop(42).unwrap();
    assert_eq!(within(far_send.stopped()).await.unwrap(), Some(42));
    assert_eq!(
        within(far_send.write(b"y")).await.unwrap_err(),
        WriteError::Stopped(42)
    );
    // Dropped unread: stopped with code 0.
    let (send, recv) = within(pair.near.open_bi()).await.unwrap();
    let mut send = send;
    within(send.write_all(b"z")).await.unwrap();
    drop(recv);
    let (far_send, _far_recv) = within(pair.far.accept_bi()).await.unwrap();
    assert_eq!(within(far_send.stopped()).await.unwrap(), Some(0));
}

#[tokio::test]
async fn read_limits_are_reported() {
    let pair = Pair::new().await;
    let mut send = within(pair.near.open_uni()).await.unwrap();
    within(send.write_all(b"12345")).await.unwrap();
    send.finish().unwrap();
    let mut recv = within(pair.far.accept_uni()).await.unwrap();
    let mut four = [0; 4];
    within(recv.read_exact(&mut four)).await.unwrap();
    assert_eq!(&four, b"1234");
    assert_eq!(
        within(recv.read_exact(&mut four)).await.unwrap_err(),
        ReadExactError::FinishedEarly(1)
    );
    let mut send = within(pair.near.open_uni()).await.unwrap();
    within(send.write_all(b"12345")).await.unwrap();
    send.finish().unwrap();
    let mut recv = within(pair.far.accept_uni()).await.unwrap();
    assert_eq!(
        within(recv.read_to_end(4)).await.unwrap_err(),
        ReadToEndError::TooLong
    );
}

#[tokio::test]
async fn opening_waits_for_the_peers_limit() {
    let two = TransportConfig::default().max_concurrent_uni_streams(2);
    let pair = Pair::with(TransportConfig::default(), two, |builder| builder).await;
    let mut first = within(pair.near.open_uni()).await.unwrap();
    let _second = within(pair.near.open_uni()).await.unwrap();
    assert!(
        tokio::time::timeout(Duration::from_millis(100), pair.near.open_uni())
            .await
            .is_err()
    );
    within(first.write_all(b"a")).await.unwrap();
    first.finish().unwrap();
    let mut recv = within(pair.far.accept_uni()).await.unwrap();
    assert_eq!(within(recv.read_to_end(10)).await.unwrap(), b"a");
    let mut third = within(pair.near.open_uni()).await.unwrap();
    within(third.write_all(b"c")).await.unwrap();
}

#[tokio::test]
async fn tasks_on_the_worker_serve_requests() {
    let pair = Pair::new().await;
    let far = pair.far.clone();
    let server = pair.server.clone();
    pair.server.spawn(async move {
        while let Ok((mut send, mut recv)) = far.accept_bi().await {
            server.spawn(async move {
                let request = recv.read_to_end(1000).await.unwrap();
                send.write_all(&request).await.unwrap();
                send.finish().unwrap();
            });
        }
    });
    let near = pair.near.clone();
    let requests = pair.client.spawn(async move {
        for n in 0..200_u32 {
            let (mut send, mut recv) = near.open_bi().await.unwrap();
            send.write_all(&n.to_be_bytes()).await.unwrap();
            send.finish().unwrap();
            assert_eq!(recv.read_to_end(10).await.unwrap(), n.to_be_bytes());
        }
    });
    within(requests).await.unwrap();
}

#[tokio::test]
async fn transfers_work_without_offloads() {
    let config = TransportConfig::default;
    let pair = Pair::with(config(), config(), |builder| builder.gso(false).gro(false)).await;
    assert_eq!(pair.client.limits().gso_segments, 1);
    let data = pattern(2_000_000, 6);
    let mut send = within(pair.near.open_uni()).await.unwrap();
    let write = async {
        send.write_all(&data).await.unwrap();
        send.finish().unwrap();
    };
    let read = async {
        pair.far
            .accept_uni()
            .await
            .unwrap()
            .read_to_end(data.len())
            .await
            .unwrap()
    };
    let ((), all) = within(async { tokio::join!(write, read) }).await;
    assert!(all == data);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_failing_gso_offload_is_disabled_without_loss() {
    // On a busy machine the error may hit a late acknowledgement instead: if so, try again.
    for _ in 0..10 {
        let Some((udp, lost)) = with_offload_that_fails().await else {
            return; // nothing to fail
        };
        if udp.send_errors == 0 {
            assert_eq!((udp.gso_fallbacks, udp.gso_disabled, lost), (1, 1, 0));
            return;
        }
    }
    panic!("the error hit no bundle in any attempt");
}

/// Makes a client's bundle fail within a transfer; returns its counters, and how many packets were
/// lost. `None` where there are no bundles.
#[cfg(target_os = "linux")]
async fn with_offload_that_fails() -> Option<(squall::SocketStats, u64)> {
    const EIO: i32 = 5;
    // Never more in flight than the smallest receive buffer holds.
    let narrow = TransportConfig::default()
        .initial_window(150_000)
        .receive_window(150_000);
    let pair = Pair::with(TransportConfig::default(), narrow, |builder| builder).await;
    if pair.client.limits().gso_segments == 1 {
        return None;
    }
    // One transfer first: afterwards the connection is quiet, and the next send call begins with a
    // bundle.
    for round in 0..2 {
        let data = Bytes::from(pattern(2_000_000, round));
        let mut send = within(pair.near.open_uni()).await.unwrap();
        if round == 1 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            pair.client.inject_send_error(EIO);
        }
        let write = async {
            send.write_chunk(data.clone()).await.unwrap();
            send.finish().unwrap();
            send.stopped().await.unwrap();
        };
        let read = async {
            let mut recv = pair.far.accept_uni().await.unwrap();
            recv.read_to_end(data.len()).await.unwrap()
        };
        let ((), all) = within(async { tokio::join!(write, read) }).await;
        assert!(all == data);
    }
    Some((pair.client.stats().udp, pair.near.stats().packets_lost))
}

/// The traits of runtimes other than tokio (futures-io) work the same way.
#[tokio::test]
async fn streams_implement_the_traits_of_other_runtimes() {
    use futures_io::{AsyncRead, AsyncWrite};
    use std::future::poll_fn;
    use std::pin::Pin;

    let pair = Pair::new().await;
    tokio::spawn(echo_streams(pair.far.clone()));
    let (mut send, mut recv) = within(pair.near.open_bi()).await.unwrap();
    let sent = pattern(100_000, 5);
    let writing = async {
        let mut at = 0;
        while at < sent.len() {
            let rest = &sent[at..];
            at += poll_fn(|cx| AsyncWrite::poll_write(Pin::new(&mut send), cx, rest))
                .await
                .unwrap();
        }
        poll_fn(|cx| AsyncWrite::poll_flush(Pin::new(&mut send), cx))
            .await
            .unwrap();
        poll_fn(|cx| AsyncWrite::poll_close(Pin::new(&mut send), cx))
            .await
            .unwrap();
    };
    let mut all = Vec::new();
    let reading = async {
        let mut buffer = [0; 4000];
        loop {
            let read = poll_fn(|cx| AsyncRead::poll_read(Pin::new(&mut recv), cx, &mut buffer))
                .await
                .unwrap();
            if read == 0 {
                break;
            }
            all.extend_from_slice(&buffer[..read]);
        }
    };
    within(async { tokio::join!(writing, reading) }).await;
    assert!(all == sent);
}

/// The outcome can be awaited during writes, by several tasks, and after the stream is dropped.
#[tokio::test(flavor = "multi_thread")]
async fn several_tasks_can_await_a_streams_outcome() {
    let pair = Pair::new().await;
    let mut send = pair.near.open_uni().await.unwrap();
    let waiting = [send.stopped(), send.stopped()].map(tokio::spawn);
    let mut given_up = send.stopped();
    let pending = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut given_up).poll(cx))).await;
    assert!(pending.is_pending());
    drop(given_up);
    let bytes = pattern(200_000, 1);
    within(send.write_all(&bytes)).await.unwrap();
    send.finish().unwrap();
    let late = send.stopped();
    drop(send);
    let mut recv = within(pair.far.accept_uni()).await.unwrap();
    assert!(within(recv.read_to_end(bytes.len())).await.unwrap() == bytes);
    for task in waiting {
        assert_eq!(within(task).await.unwrap(), Ok(None));
    }
    assert_eq!(within(late).await, Ok(None));

    // Dropping an unfinished stream is a reset by this end; a peer's stop that came first counts.
    let mut send = pair.near.open_uni().await.unwrap();
    send.write_all(b"some").await.unwrap();
    let outcome = tokio::spawn(send.stopped());
    tokio::task::yield_now().await;
    drop(send);
    assert_eq!(within(outcome).await.unwrap(), Err(WriteError::Closed));
    let mut send = pair.near.open_uni().await.unwrap();
    send.write_all(b"some").await.unwrap();
    let outcome = tokio::spawn(send.stopped());
    within(async {
        while let Ok(mut recv) = pair.far.accept_uni().await {
            if recv.id() == send.id() {
                return recv.stop(9).unwrap();
            }
        }
    })
    .await;
    assert_eq!(within(outcome).await.unwrap(), Ok(Some(9)));
    // The end of the connection is also an outcome.
    let outcome = pair.near.open_uni().await.unwrap().stopped();
    assert_eq!(within(outcome).await, Err(WriteError::Closed));
    let send = pair.near.open_uni().await.unwrap();
    let outcome = tokio::spawn(send.stopped());
    tokio::task::yield_now().await;
    pair.near.close(3, b"");
    let lost = within(outcome).await.unwrap();
    assert!(
        matches!(lost, Err(WriteError::ConnectionLost(_))),
        "{lost:?}"
    );
}

/// A future written by hand: echoes a stream with typed errors, in one poll function.
struct Echo {
    send: SendStream,
    recv: RecvStream,
    chunk: Bytes,
}

impl Future for Echo {
    type Output = Result<(), Box<dyn std::error::Error + Send + Sync>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            while !this.chunk.is_empty() {
                ready!(this.send.poll_write_chunk(cx, &mut this.chunk))?;
            }
            match ready!(this.recv.poll_read_chunk(cx, 1000))? {
                Some(chunk) => this.chunk = chunk,
                None => return Poll::Ready(Ok(this.send.finish()?)),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_can_be_polled_by_hand() {
    let pair = Pair::new().await;
    let far = pair.far.clone();
    let echo = tokio::spawn(async move {
        let (send, recv) = far.accept_bi().await.unwrap();
        let chunk = Bytes::new();
        Echo { send, recv, chunk }.await
    });
    let (mut send, mut recv) = pair.near.open_bi().await.unwrap();
    let bytes = pattern(5_000_000, 3);
    let (mut written, mut read) = (0, Vec::new());
    let mut buffer = [0; 4000];
    let mut finished = false;
    within(std::future::poll_fn(|cx| {
        while written < bytes.len()
            && let Poll::Ready(taken) = send.poll_write(cx, &bytes[written..])
        {
            written += taken.unwrap();
        }
        if written == bytes.len() && !std::mem::replace(&mut finished, true) {
            send.finish().unwrap();
        }
        while let Some(len) = ready!(recv.poll_read(cx, &mut buffer)).unwrap() {
            read.extend_from_slice(&buffer[..len]);
        }
        Poll::Ready(())
    }))
    .await;
    assert!(read == bytes);
    within(echo).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_can_be_awaited_while_data_is_unread() {
    let pair = Pair::new().await;
    let mut senders = Vec::new();
    let mut receivers = Vec::new();
    for _ in 0..3 {
        let mut send = pair.near.open_uni().await.unwrap();
        send.write_all(b"some data").await.unwrap();
        senders.push(send);
        receivers.push(within(pair.far.accept_uni()).await.unwrap());
    }
    // Cancelled: nothing is decided yet.
    for recv in &mut receivers {
        let waiting = recv.received_reset();
        assert!(
            tokio::time::timeout(Duration::from_millis(20), waiting)
                .await
                .is_err()
        );
    }
    let [mut finished, mut reset, _lost] = <[_; 3]>::try_from(senders).unwrap();
    let [mut a, mut b, mut c] = <[_; 3]>::try_from(receivers).unwrap();
    let waiting = tokio::spawn(async move {
        let outcome = a.received_reset().await;
        (outcome, a.read_to_end(100).await)
    });
    finished.finish().unwrap();
    let (outcome, data) = within(waiting).await.unwrap();
    assert_eq!((outcome, data.unwrap()), (Ok(None), b"some data".to_vec()));
    let waiting = tokio::spawn(async move { (b.received_reset().await, b.received_reset().await) });
    reset.reset(42).unwrap();
    let outcomes = within(waiting).await.unwrap();
    assert_eq!(outcomes, (Ok(Some(42)), Ok(Some(42))));
    let waiting = tokio::spawn(async move { c.received_reset().await });
    pair.near.close(3, b"");
    let lost = within(waiting).await.unwrap();
    assert!(
        matches!(lost, Err(ReadError::ConnectionLost(_))),
        "{lost:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_are_read_as_they_arrive() {
    let pair = Pair::new().await;
    let data = pattern(3_000_000, 5);
    let mut send = pair.near.open_uni().await.unwrap();
    let sent = data.clone();
    tokio::spawn(async move {
        send.write_all(&sent).await.unwrap();
        send.finish().unwrap();
        send.stopped().await.unwrap();
    });
    let mut recv = within(pair.far.accept_uni()).await.unwrap();
    let empty = recv.read_chunk_unordered(0).await.unwrap().unwrap();
    assert!(empty.bytes.is_empty());
    let mut read = vec![0; data.len()];
    let mut count = 0;
    while let Some(chunk) = within(recv.read_chunk_unordered(10_000)).await.unwrap() {
        let at = chunk.offset as usize;
        read[at..at + chunk.bytes.len()].copy_from_slice(&chunk.bytes);
        count += chunk.bytes.len();
        assert!(chunk.bytes.len() <= 10_000);
        if count < 100_000 {
            let ordered = recv.read_chunk(100).await;
            assert_eq!(ordered, Err(ReadError::IllegalOrderedRead));
        }
    }
    assert_eq!(count, data.len());
    assert_eq!(read, data);
}
