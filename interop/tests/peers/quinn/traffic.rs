//! Traffic over a connection, checked byte by byte.

use std::future::Future;
use std::time::Instant;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::pair::Pair;
use crate::payload::{Check, Payload};

/// Sends a payload as one stream: seed and length, bytes, end.
pub(super) async fn send(mut to: impl AsyncWrite + Unpin, payload: Payload) {
    to.write_u64(payload.seed)
        .await
        .expect("the seed is written");
    to.write_u64(payload.len)
        .await
        .expect("the length is written");
    let mut buffer = vec![0; 10_000];
    let mut offset = 0;
    while offset < payload.len {
        let count = payload.fill(offset, &mut buffer);
        to.write_all(&buffer[..count])
            .await
            .expect("the bytes are written");
        offset += count as u64;
    }
    to.shutdown().await.expect("the stream is finished");
}

/// Reads the seed and the length of a stream that [`send`] wrote.
pub(super) async fn receive_header(from: &mut (impl AsyncRead + Unpin)) -> Payload {
    let seed = from.read_u64().await.expect("the seed");
    let len = from.read_u64().await.expect("the length");
    Payload { seed, len }
}

/// Reads the rest of such a stream and checks it.
pub(super) async fn receive(mut from: impl AsyncRead + Unpin, payload: Payload) {
    let mut check = Check::new(payload);
    let mut buffer = vec![0; 10_000];
    loop {
        match from.read(&mut buffer).await.expect("the bytes are read") {
            0 => break,
            count => check.take(&buffer[..count]),
        }
    }
    check.end();
}

/// The answer to a payload: the same number of bytes, all different.
fn answer_to(payload: Payload) -> Payload {
    Payload {
        seed: !payload.seed,
        ..payload
    }
}

/// The end that opened a stream: sends, and receives the answer at the same time.
pub(super) async fn ask(
    to: impl AsyncWrite + Unpin,
    mut from: impl AsyncRead + Unpin,
    payload: Payload,
) {
    let answered = async {
        let answer = receive_header(&mut from).await;
        assert_eq!(
            answer,
            answer_to(payload),
            "the answer belongs to another stream"
        );
        receive(from, answer).await;
    };
    tokio::join!(send(to, payload), answered);
}

/// The end that accepted a stream.
pub(super) async fn answer(to: impl AsyncWrite + Unpin, mut from: impl AsyncRead + Unpin) {
    let payload = receive_header(&mut from).await;
    tokio::join!(send(to, answer_to(payload)), receive(from, payload));
}

/// As [`answer`], but not before everything has arrived, so the answer confirms that.
pub(super) async fn answer_late(to: impl AsyncWrite + Unpin, mut from: impl AsyncRead + Unpin) {
    let payload = receive_header(&mut from).await;
    receive(from, payload).await;
    send(to, answer_to(payload)).await;
}

/// squall sends a payload by whole chunks, and waits until all of it is acknowledged.
pub(super) async fn squall_send_chunks(mut to: squall::SendStream, payload: Payload) {
    let mut offset = 0;
    while offset < payload.len {
        let mut chunk = vec![0; 1 << 16];
        let count = payload.fill(offset, &mut chunk);
        chunk.truncate(count);
        to.write_chunk(chunk.into()).await.expect("squall writes");
        offset += count as u64;
    }
    to.finish().expect("squall finishes");
    assert_eq!(
        to.stopped().await,
        Ok(None),
        "squall's stream was not delivered"
    );
}

pub(super) async fn squall_receive_chunks(
    mut from: squall::RecvStream,
    payload: Payload,
) -> String {
    let mut check = Check::new(payload);
    while let Some(chunk) = from.read_chunk(usize::MAX).await.expect("squall reads") {
        check.take(&chunk);
    }
    check.end()
}

pub(super) async fn quinn_send_chunks(mut to: quinn::SendStream, payload: Payload) {
    let mut offset = 0;
    while offset < payload.len {
        let mut chunk = vec![0; 1 << 16];
        let count = payload.fill(offset, &mut chunk);
        chunk.truncate(count);
        to.write_chunk(Bytes::from(chunk))
            .await
            .expect("quinn writes");
        offset += count as u64;
    }
    to.finish().expect("quinn finishes");
    assert_eq!(
        to.stopped().await.expect("the end is known"),
        None,
        "quinn's stream was not delivered"
    );
}

pub(super) async fn quinn_receive_chunks(mut from: quinn::RecvStream, payload: Payload) -> String {
    let mut check = Check::new(payload);
    while let Some(chunk) = from
        .read_chunk(usize::MAX, true)
        .await
        .expect("quinn reads")
    {
        check.take(&chunk.bytes);
    }
    check.end()
}

/// Sends both ways at once on one stream opened by squall.
pub(super) async fn transfer(pair: &Pair, bytes: u64) {
    let out = Payload {
        seed: 1,
        len: bytes,
    };
    let back = Payload {
        seed: 2,
        len: bytes,
    };
    let began = Instant::now();
    let (mut to, from) = pair.squall.open_bi().await.expect("squall opens");
    // The peer learns of a stream from its first byte.
    to.write_all(b"!").await.expect("squall writes");
    let (quinn_to, mut quinn_from) = pair.quinn.accept_bi().await.expect("quinn accepts");
    quinn_from.read_exact(&mut [0]).await.expect("quinn reads");
    let ((), (), at_squall, at_quinn) = tokio::join!(
        spawned(squall_send_chunks(to, out)),
        spawned(quinn_send_chunks(quinn_to, back)),
        spawned(squall_receive_chunks(from, back)),
        spawned(quinn_receive_chunks(quinn_from, out)),
    );
    assert_eq!((at_quinn, at_squall), (out.digest(), back.digest()));
    let stats = pair.squall.stats();
    println!(
        "{bytes} bytes each way in {:.2} s, squall {:?}: to quinn {}, from quinn {}; {} packets lost of {}, {} dropped",
        began.elapsed().as_secs_f64(),
        pair.squall.side(),
        out.digest(),
        back.digest(),
        stats.packets_lost,
        stats.packets_sent,
        stats.packets_dropped,
    );
}

/// Runs a part of a test in its own task, so that a second core has work.
async fn spawned<T: Send + 'static>(part: impl Future<Output = T> + Send + 'static) -> T {
    tokio::spawn(part).await.expect("a part of the test")
}
