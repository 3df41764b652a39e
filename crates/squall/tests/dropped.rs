//! The effects of dropping: half-written streams are reset, and dropped futures leave no waker
//! behind.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

mod common;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};

use common::{Pair, until, within};
use squall::{
    Bytes, Connection, Endpoint, ReadError, ReadToEndError, RecvStream, SendStream, TransportConfig,
};

/// A client's request whose handler at the server is `handler`; returns what the client reads, and
/// the task of the handler.
async fn ask<H, F>(pair: &Pair, handler: H) -> (RecvStream, tokio::task::JoinHandle<()>)
where
    H: FnOnce(SendStream, RecvStream) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let far = pair.far.clone();
    let task = pair.far.spawn(async move {
        let (send, recv) = far.accept_bi().await.unwrap();
        handler(send, recv).await;
    });
    let (mut send, recv) = pair.near.open_bi().await.unwrap();
    send.write_all(b"?").await.unwrap();
    // A handler that drops its receiving half may already have stopped the stream.
    let _ = send.finish();
    (recv, task)
}

async fn code_of(recv: &mut RecvStream) -> u64 {
    match within(recv.read_to_end(1000)).await {
        Err(ReadToEndError::Read(ReadError::Reset(code))) => code,
        other => panic!("{other:?} instead of a reset"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_panics_resets_its_stream() {
    let pair = Pair::new().await;
    let handler = |mut send: SendStream, _| async move {
        send.write_all(b"half of the ans").await.unwrap();
        panic!("on purpose: a handler with a bug");
    };
    let (mut recv, task) = ask(&pair, handler).await;
    assert_eq!(code_of(&mut recv).await, 0);
    assert!(task.await.unwrap_err().is_panic());
    assert_eq!(pair.far.stats().streams_reset_on_drop, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_handler_resets_its_stream_with_the_configured_code() {
    let server = TransportConfig::default().reset_on_drop_code(0x10c);
    let pair = Pair::with(TransportConfig::default(), server, |builder| builder).await;
    let handler = |mut send: SendStream, _| async move {
        send.write_all(b"half of the ans").await.unwrap();
        std::future::pending::<()>().await;
    };
    let (mut recv, task) = ask(&pair, handler).await;
    // The first half has arrived when the handler is cancelled.
    assert_eq!(
        within(recv.read_chunk(1000)).await.unwrap().unwrap(),
        "half of the ans"
    );
    task.abort();
    assert_eq!(code_of(&mut recv).await, 0x10c);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_can_have_its_own_drop_code() {
    let pair = Pair::new().await;
    let handler = |mut send: SendStream, _| async move {
        send.set_drop_code(77);
        send.write_all(b"half of the ans").await.unwrap();
    };
    let (mut recv, task) = ask(&pair, handler).await;
    assert_eq!(code_of(&mut recv).await, 77);
    task.await.unwrap();
}

/// Counts the warnings and errors of its thread.
struct Warnings(Arc<AtomicUsize>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn only_drops_without_a_code_are_logged_and_only_once() {
    let count = Arc::new(AtomicUsize::new(0));
    let _guard = tracing::subscriber::set_default(Warnings(Arc::clone(&count)));
    let pair = Pair::new().await;
    for (code, warnings) in [(Some(77), 0), (None, 1), (None, 1), (Some(77), 1)] {
        let mut send = pair.near.open_uni().await.unwrap();
        if let Some(code) = code {
            send.set_drop_code(code);
        }
        drop(send);
        assert_eq!(count.load(Ordering::SeqCst), warnings, "{code:?}");
    }
    assert_eq!(pair.near.stats().streams_reset_on_drop, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_never_begun_is_reset_too() {
    let pair = Pair::new().await;
    let (mut recv, task) = ask(&pair, |send, _| async move { drop(send) }).await;
    assert_eq!(code_of(&mut recv).await, 0);
    task.await.unwrap();
    assert_eq!(pair.far.stats().streams_reset_on_drop, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_ended_explicitly_are_not_reset_on_drop() {
    let pair = Pair::new().await;
    let handler = |mut send: SendStream, _| async move {
        send.write_all(b"whole").await.unwrap();
        tokio::io::AsyncWriteExt::shutdown(&mut send).await.unwrap();
    };
    let (mut recv, task) = ask(&pair, handler).await;
    assert_eq!(within(recv.read_to_end(1000)).await.unwrap(), b"whole");
    task.await.unwrap();
    let handler = |mut send: SendStream, _| async move {
        send.reset(5).unwrap();
        // Not as if the data would still arrive.
        let ended = tokio::io::AsyncWriteExt::shutdown(&mut send).await;
        assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    };
    let (mut recv, task) = ask(&pair, handler).await;
    assert_eq!(code_of(&mut recv).await, 5);
    task.await.unwrap();
    // The client stops the third, which ends it as well.
    let (mut recv, task) = ask(&pair, |send: SendStream, _| async move {
        assert_eq!(send.stopped().await.unwrap(), Some(9));
    })
    .await;
    recv.stop(9).unwrap();
    within(task).await.unwrap();
    for connection in [&pair.near, &pair.far] {
        assert_eq!(connection.stats().streams_reset_on_drop, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_receiving_half_stops_its_stream_with_its_code() {
    let pair = Pair::new().await;
    for code in [None, Some(0x10c)] {
        let mut send = pair.near.open_uni().await.unwrap();
        send.write_all(b"unread").await.unwrap();
        let mut recv = within(pair.far.accept_uni()).await.unwrap();
        if let Some(code) = code {
            recv.set_drop_code(code);
        }
        drop(recv);
        let stopped = within(send.stopped()).await.unwrap();
        assert_eq!(stopped, Some(code.unwrap_or(0)));
    }
}

/// A waker whose reference count shows whether it is still held.
struct Held;

impl Wake for Held {
    fn wake(self: Arc<Self>) {}
}

/// Makes `future` wait once, drops it, and fails if its waker is still held anywhere.
#[track_caller]
fn leaves_nothing<F: Future>(what: &str, future: F) {
    let held = Arc::new(Held);
    let waker = Waker::from(Arc::clone(&held));
    {
        let mut future = pin!(future);
        assert!(
            future
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending(),
            "{what} must wait"
        );
        assert!(Arc::strong_count(&held) > 2, "{what} registered no waker");
    }
    assert_eq!(
        Arc::strong_count(&held),
        2,
        "a dropped future of {what} left its waker behind"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_futures_leave_no_waker_behind() {
    let server = TransportConfig::default()
        .max_concurrent_bidi_streams(0)
        .max_concurrent_uni_streams(1);
    let pair = Pair::with(TransportConfig::default(), server, |builder| builder).await;
    let near: &Connection = &pair.near;
    leaves_nothing("closed", near.closed());
    leaves_nothing("accept_bi", near.accept_bi());
    leaves_nothing("accept_uni", near.accept_uni());
    leaves_nothing("open_bi", near.open_bi());
    leaves_nothing("read_datagram", near.read_datagram());
    leaves_nothing("accept", pair.server.accept());

    // A finished stream that is not delivered: the peer's worker is blocked, and acknowledges
    // nothing.
    let (entered, has_entered) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    pair.far.spawn(async move {
        entered.send(()).unwrap();
        let _ = released.recv();
    });
    has_entered.recv().unwrap();
    let mut send = near.open_uni().await.unwrap();
    send.write_all(b"unsent").await.unwrap();
    send.finish().unwrap();
    leaves_nothing("open_uni", near.open_uni());
    leaves_nothing("shutdown", near.shutdown(0, b""));
    drop(release);
}

/// A waker that uses its connection and its endpoint when it is dropped, as the last handle to a
/// task may.
struct Busy(Connection, Endpoint);

impl Wake for Busy {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.stats();
        let mut accept = pin!(self.1.accept());
        let _ = accept
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
    }
}

/// Makes `future` wait with one waker and then with another, and drops it.
fn waits_twice<F: Future>(pair: &Pair, future: F) {
    let mut future = pin!(future);
    for _ in 0..2 {
        let waker = Arc::new(Busy(pair.near.clone(), pair.server.clone())).into();
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_waker_may_use_its_connection() {
    let small = TransportConfig::default()
        .initial_stream_window(1000)
        .stream_receive_window(1000);
    let pair = Pair::with(TransportConfig::default(), small, |builder| builder).await;
    let (mut send, mut recv) = pair.near.open_bi().await.unwrap();
    // The peer's window is full.
    within(send.write_all(&[0; 1000])).await.unwrap();
    // A wait for a lock that this thread holds would never end, nor would the test.
    let (done, is_done) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        waits_twice(&pair, pair.near.closed());
        waits_twice(&pair, pair.near.accept_bi());
        waits_twice(&pair, pair.near.read_datagram());
        waits_twice(&pair, pair.server.accept());
        waits_twice(&pair, send.stopped());
        waits_twice(&pair, send.write(b"more"));
        waits_twice(&pair, recv.read_chunk(1));
        // The last wakers of these two are still registered.
        drop((send, recv));
        let _ = done.send(());
    });
    within(is_done).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_datagram_writer_leaves_no_waker_behind() {
    let small = TransportConfig::default().datagram_send_buffer(1000);
    let pair = Pair::with(small, TransportConfig::default(), |builder| builder).await;
    let held = Arc::new(Held);
    let waker = Waker::from(Arc::clone(&held));
    let mut blocked = 0;
    // The worker empties the queue meanwhile: often enough a writer finds it full.
    for _ in 0..10_000 {
        let mut send = pin!(pair.near.send_datagram_wait(Bytes::from_static(&[0; 900])));
        let polled = send.as_mut().poll(&mut Context::from_waker(&waker));
        blocked += usize::from(polled.is_pending());
    }
    assert!(blocked > 0, "the queue was never full");
    // A worker that is about to wake one of them holds its waker a moment longer.
    until(|| Arc::strong_count(&held) <= 2).await;
}

#[tokio::test]
async fn a_dropped_datagram_writer_sends_nothing() {
    let small = TransportConfig::default().datagram_send_buffer(1000);
    // On this thread's runtime, so that nothing leaves the queue until the test waits.
    let on_runtime =
        |builder: squall::Builder| builder.on_runtime(tokio::runtime::Handle::current());
    let pair = Pair::with(small, TransportConfig::default(), on_runtime).await;
    pair.near.send_datagram(vec![1; 900].into()).unwrap();
    {
        let mut send = pin!(pair.near.send_datagram_wait(vec![2; 900].into()));
        let polled = send.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "the queue is full");
    }
    within(pair.near.send_datagram_wait(vec![3; 900].into()))
        .await
        .unwrap();
    let mut read = Vec::new();
    while read.len() < 2 {
        read.push(within(pair.far.read_datagram()).await.unwrap()[0]);
    }
    assert_eq!(read, [1, 3]);
}

/// A program that drops its endpoint and then its runtime is in order.
#[test]
fn an_idle_endpoint_may_end_with_its_runtime() {
    let count = Arc::new(AtomicUsize::new(0));
    let _guard = tracing::subscriber::set_default(Warnings(Arc::clone(&count)));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let builder = squall::Builder::new(common::ANY);
        let builder = builder.on_runtime(tokio::runtime::Handle::current());
        let endpoint = builder.bind().unwrap();
        // The worker runs.
        tokio::task::yield_now().await;
        drop(endpoint);
    });
    drop(runtime);
    assert_eq!(count.load(Ordering::SeqCst), 0);
}

/// Streams that are let go of, and messages read as they are accepted, leave nothing behind.
#[tokio::test]
async fn ended_streams_take_no_memory() {
    let limited = |builder: squall::Builder| builder.max_memory(1 << 30);
    let transport = TransportConfig::default;
    let pair = within(Pair::with(transport(), transport(), limited)).await;
    let ask = async |requests: u32| {
        for _ in 0..requests {
            let (send, mut recv) = within(pair.near.open_bi()).await.unwrap();
            let question = Bytes::from_static(b"question");
            within(send.finish_with(question)).await.unwrap();
            let (send, mut question) = within(pair.far.accept_bi()).await.unwrap();
            within(question.read_to_end(8)).await.unwrap();
            let answer = Bytes::from_static(b"answer");
            within(send.finish_with(answer)).await.unwrap();
            within(recv.read_to_end(6)).await.unwrap();
        }
        let memory = |endpoint: &squall::Endpoint| endpoint.stats().memory;
        [memory(&pair.client), memory(&pair.server)]
    };
    let before = ask(200).await;
    let after = ask(5000).await;
    for (before, after) in before.into_iter().zip(after) {
        assert!(before > 0 && after < before + 20_000, "{before} {after}");
    }
}
