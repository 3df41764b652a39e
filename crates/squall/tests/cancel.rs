//! Checks `docs/cancel-safety.md`: each future is cancelled at arbitrary points, over a real
//! connection, and compared with the table.
#![expect(clippy::unwrap_used, reason = "a test's way to fail")]

mod common;

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use common::{ALPN, ANY, Identity, Pair, endpoints, meet, ticket, until, within};
use squall::{
    Builder, Bytes, Connection, DatagramError, Endpoint, ReadError, ReadToEndError, RecvStream,
    SendStream, TransportConfig,
};

const TABLE: &str = include_str!("../../../docs/cancel-safety.md");

/// A waker that counts its copies, and the number of polls before each future is dropped.
struct Canceller {
    kept: Arc<Kept>,
    seed: u64,
    /// Futures that were dropped before they were ready.
    cancelled: u32,
}

struct Kept;

impl Wake for Kept {
    fn wake(self: Arc<Self>) {}
}

impl Canceller {
    fn new() -> Self {
        Self {
            kept: Arc::new(Kept),
            seed: 1,
            cancelled: 0,
        }
    }

    /// How many copies of the waker exist.
    fn kept(&self) -> usize {
        Arc::strong_count(&self.kept) - 1
    }

    /// Waits until no copy of the waker is left. A worker that is about to wake a task holds it a
    /// moment longer.
    async fn let_go(&self) {
        within(async {
            while self.kept() > 0 {
                tokio::time::sleep(Duration::from_micros(100)).await;
            }
        })
        .await;
    }

    /// Polls the future up to three times, with pauses in which the other end continues, then drops
    /// it if it is not ready.
    async fn once<F: Future>(&mut self, future: F) -> Option<F::Output> {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let polls = 1 + (self.seed >> 33) % 3;
        let mut future = pin!(future);
        for poll in 0..polls {
            if poll > 0 {
                tokio::time::sleep(Duration::from_micros(300)).await;
            }
            let waker = Waker::from(Arc::clone(&self.kept));
            let mut cx = Context::from_waker(&waker);
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return Some(output);
            }
        }
        self.cancelled += 1;
        None
    }

    /// The same future, made anew until one is ready. None of them leaves a waker behind.
    async fn again<F: Future>(&mut self, mut make: impl FnMut() -> F) -> F::Output {
        loop {
            let output = self.once(make()).await;
            self.let_go().await;
            match output {
                Some(output) => return output,
                None => tokio::time::sleep(Duration::from_micros(200)).await,
            }
        }
    }
}

/// Bytes that are never zero, so that a zeroed buffer shows how far it was filled.
fn data(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8 + 1).collect()
}

/// Small windows: both ends have to wait.
async fn narrow() -> Pair {
    let transport = || {
        TransportConfig::default()
            .initial_stream_window(20_000)
            .stream_receive_window(20_000)
            .send_window(20_000)
    };
    Pair::with(transport(), transport(), |builder| builder).await
}

async fn stream(pair: &Pair) -> (SendStream, RecvStream) {
    let mut send = pair.near.open_uni().await.unwrap();
    send.write_all(&[0]).await.unwrap();
    let mut recv = within(pair.far.accept_uni()).await.unwrap();
    let mut first = [9];
    within(recv.read_exact(&mut first)).await.unwrap();
    (send, recv)
}

const LEN: usize = 400_000;

#[tokio::test]
async fn cancel_safe_writes_and_reads_lose_and_repeat_nothing() {
    let pair = narrow().await;
    let whole = Bytes::from(data(LEN));
    for round in 0..3 {
        let (mut send, mut recv) = stream(&pair).await;
        let writing = async {
            let (mut canceller, mut rest) = (Canceller::new(), whole.clone());
            while !rest.is_empty() {
                match round {
                    0 => {
                        let written = canceller.once(send.write(&rest)).await;
                        let _ = rest.split_to(written.map_or(0, Result::unwrap));
                    }
                    1 => {
                        let tail = rest.split_off(rest.len().min(5000));
                        let mut chunks = [rest.split_to(rest.len() / 2), rest];
                        let _ = canceller.once(send.write_chunks(&mut chunks)).await;
                        rest = [&chunks[0][..], &chunks[1], &tail].concat().into();
                    }
                    _ => {
                        let tail = rest.split_off(rest.len().min(50_000));
                        let mut chunks = [rest.split_to(rest.len() / 2), rest];
                        let _ = canceller.once(send.write_all_chunks(&mut chunks)).await;
                        rest = [&chunks[0][..], &chunks[1], &tail].concat().into();
                    }
                }
                if rest.len() < LEN / 2 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
            send.finish().unwrap();
            canceller
        };
        let reading = async {
            let (mut canceller, mut all) = (Canceller::new(), Vec::new());
            loop {
                // The writer waits in the first half, the reader in the second.
                if all.len() < LEN / 2 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                match round {
                    0 => {
                        let mut buffer = [0; 3000];
                        match canceller.once(recv.read(&mut buffer)).await {
                            Some(Ok(Some(read))) => all.extend_from_slice(&buffer[..read]),
                            Some(end) => break assert_eq!(end, Ok(None)),
                            None => assert!(buffer.iter().all(|byte| *byte == 0)),
                        }
                    }
                    1 => {
                        let mut chunks = [const { Bytes::new() }; 3];
                        match canceller.once(recv.read_chunks(&mut chunks)).await {
                            Some(Ok(Some(read))) => all.extend(chunks[..read].concat()),
                            Some(end) => break assert_eq!(end, Ok(None)),
                            None => assert!(chunks.iter().all(Bytes::is_empty)),
                        }
                    }
                    _ => match canceller.once(recv.read_chunk(4000)).await {
                        Some(Ok(Some(chunk))) => all.extend_from_slice(&chunk),
                        Some(end) => break assert_eq!(end, Ok(None)),
                        None => {}
                    },
                }
            }
            (canceller, all)
        };
        let (writer, (reader, all)) = within(async { tokio::join!(writing, reading) }).await;
        assert!(all == whole, "round {round}: {} bytes", all.len());
        let (writes, reads) = (writer.cancelled, reader.cancelled);
        assert!(
            writes > 0 && reads > 0,
            "round {round}: {writes} and {reads} cancelled"
        );
        drop((send, recv));
        writer.let_go().await;
        reader.let_go().await;
    }
}

#[tokio::test]
async fn cancelled_unordered_reads_deliver_each_chunk_once() {
    let pair = narrow().await;
    let (mut send, mut recv) = stream(&pair).await;
    let whole = data(LEN);
    let writing = async {
        send.write_all(&whole).await.unwrap();
        send.finish().unwrap();
    };
    let reading = async {
        let (mut canceller, mut all, mut count) = (Canceller::new(), vec![0; LEN], 0);
        loop {
            match canceller.once(recv.read_chunk_unordered(4000)).await {
                Some(Ok(Some(chunk))) => {
                    // The first byte has already been read.
                    let at = chunk.offset as usize - 1;
                    all[at..at + chunk.bytes.len()].copy_from_slice(&chunk.bytes);
                    count += chunk.bytes.len();
                }
                Some(end) => break assert_eq!(end, Ok(None)),
                None => {}
            }
        }
        assert!(all == whole && count == LEN && canceller.cancelled > 0);
    };
    within(async { tokio::join!(writing, reading) }).await;
}

#[tokio::test]
async fn writes_and_reads_that_are_not_cancel_safe_behave_as_documented() {
    let pair = narrow().await;
    let whole = data(LEN);
    // If a write is dropped, the beginning of its data may arrive.
    for way in 0..4 {
        let (mut send, mut recv) = stream(&pair).await;
        let (mut canceller, chunk) = (Canceller::new(), Bytes::from(whole.clone()));
        let cancelled = match way {
            0 => canceller.once(send.write_all(&whole)).await,
            1 => canceller.once(send.write_chunk(chunk)).await,
            2 => canceller.once(send.write_last(&whole)).await,
            _ => canceller.once(send.write_last_chunk(chunk)).await,
        };
        assert_eq!(cancelled, None);
        send.finish().unwrap();
        let arrived = within(recv.read_to_end(LEN)).await.unwrap();
        assert!(!arrived.is_empty() && arrived.len() < LEN && whole.starts_with(&arrived));
    }
    // A stream that would have been finished is reset.
    let (send, mut recv) = stream(&pair).await;
    let (mut canceller, chunk) = (Canceller::new(), Bytes::from(whole.clone()));
    assert_eq!(canceller.once(send.finish_with(chunk)).await, None);
    let cut = within(recv.read_to_end(LEN)).await.unwrap_err();
    assert_eq!(cut, ReadToEndError::Read(ReadError::Reset(0)));
    // What `read_exact` has read is in the buffer, and reading continues after it.
    let (mut send, mut recv) = stream(&pair).await;
    let writing = async {
        send.write_all(&whole).await.unwrap();
        send.finish().unwrap();
    };
    let reading = async {
        let (mut canceller, mut all, mut parts) = (Canceller::new(), Vec::new(), 0);
        while all.len() < LEN {
            let mut buffer = vec![0; 30_000.min(LEN - all.len())];
            let done = canceller.once(recv.read_exact(&mut buffer)).await;
            let read = buffer.iter().take_while(|byte| **byte != 0).count();
            assert!(done.is_none() || read == buffer.len());
            parts += u32::from(done.is_none() && read > 0);
            all.extend_from_slice(&buffer[..read]);
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
        assert!(all == whole && parts > 0, "{parts}");
    };
    within(async { tokio::join!(writing, reading) }).await;
    // What `read_to_end` has read is lost; the rest follows.
    let (mut send, mut recv) = stream(&pair).await;
    let sending = whole.clone();
    let before = pair.far.stats().bytes_received;
    let writer = tokio::spawn(async move {
        send.write_all(&sending).await.unwrap();
        send.finish().unwrap();
        send.stopped().await.unwrap();
    });
    // There is something to read and to lose.
    until(|| pair.far.stats().bytes_received >= before + 10_000).await;
    let mut canceller = Canceller::new();
    while canceller.cancelled < 3 {
        let done = canceller.once(recv.read_to_end(LEN)).await;
        assert!(
            done.is_none(),
            "small windows keep the read from completing"
        );
    }
    let rest = within(recv.read_to_end(LEN)).await.unwrap();
    assert!(rest.len() < LEN && whole.ends_with(&rest), "{}", rest.len());
    within(writer).await.unwrap();
}

#[tokio::test]
async fn cancelled_opens_and_accepts_lose_and_repeat_no_stream() {
    const STREAMS: u32 = 60;
    let transport = || {
        let few = TransportConfig::default().max_concurrent_bidi_streams(2);
        few.max_concurrent_uni_streams(2)
    };
    let pair = Pair::with(transport(), transport(), |builder| builder).await;
    let opening = async {
        let mut canceller = Canceller::new();
        for number in 0..STREAMS {
            let mut send = match number % 2 {
                0 => canceller.again(|| pair.near.open_uni()).await.unwrap(),
                _ => canceller.again(|| pair.near.open_bi()).await.unwrap().0,
            };
            send.write_all(&number.to_be_bytes()).await.unwrap();
            send.finish().unwrap();
        }
        canceller
    };
    let accepting = async {
        let mut canceller = Canceller::new();
        let mut seen = BTreeSet::new();
        while seen.len() < STREAMS as usize {
            // Whichever has one; the other is dropped every time.
            let uni = canceller.once(pair.far.accept_uni()).await;
            let mut recv = match uni {
                Some(recv) => recv.unwrap(),
                None => match canceller.once(pair.far.accept_bi()).await {
                    Some(both) => both.unwrap().1,
                    None => continue,
                },
            };
            canceller.let_go().await;
            let number = within(recv.read_to_end(4)).await.unwrap();
            let number = u32::from_be_bytes(number.try_into().unwrap());
            assert!(seen.insert(number), "stream {number} was accepted twice");
        }
        canceller
    };
    let (opener, accepter) = within(async { tokio::join!(opening, accepting) }).await;
    assert!(opener.cancelled > 0 && accepter.cancelled > 0);
}

#[tokio::test]
async fn cancelled_sends_and_reads_lose_and_repeat_no_datagram() {
    // Room for two: the third has to wait.
    let transport = || TransportConfig::default().datagram_send_buffer(2 * (1000 + 64));
    let pair = Pair::with(transport(), transport(), |builder| builder).await;
    let (mut sender, mut reader) = (Canceller::new(), Canceller::new());
    let mut number = 0_u32;
    for _ in 0..30 {
        let burst = number..number + 6;
        let sending = async {
            for number in burst.clone() {
                let mut datagram = vec![0; 1000];
                datagram[..4].copy_from_slice(&number.to_be_bytes());
                let datagram = Bytes::from(datagram);
                let send = || pair.near.send_datagram_wait(datagram.clone());
                sender.again(send).await.unwrap();
            }
        };
        let reading = async {
            for number in burst.clone() {
                let datagram = reader.again(|| pair.far.read_datagram()).await.unwrap();
                assert_eq!(datagram[..4], number.to_be_bytes());
            }
        };
        within(async { tokio::join!(sending, reading) }).await;
        number += 6;
    }
    assert!(reader.cancelled > 0);
}

#[tokio::test]
async fn cancelled_sends_and_reads_of_lists_lose_and_repeat_no_datagram() {
    // Room for two: a list of six waits twice.
    let transport = || TransportConfig::default().datagram_send_buffer(2 * (1000 + 64));
    let pair = Pair::with(transport(), transport(), |builder| builder).await;
    let (mut sender, mut reader) = (Canceller::new(), Canceller::new());
    for _ in 0..30 {
        let mut list: VecDeque<Bytes> = (0..6).map(|n| Bytes::from(vec![n; 1000])).collect();
        let sending = async {
            while (sender.once(pair.near.send_datagrams_wait(&mut list)).await).is_none() {
                sender.let_go().await;
            }
        };
        let mut arrived = Vec::new();
        let reading = async {
            while arrived.len() < 6 {
                let before = arrived.len();
                match reader.once(pair.far.read_datagrams(&mut arrived, 4)).await {
                    Some(read) => assert_eq!(read, Ok(arrived.len() - before)),
                    None => assert_eq!(arrived.len(), before),
                }
                assert!(arrived.len() <= before + 4);
                reader.let_go().await;
            }
        };
        within(async { tokio::join!(sending, reading) }).await;
        assert!(arrived.iter().map(|one| one[0]).eq(0..6));
        assert!(list.is_empty());
    }
    assert!(sender.cancelled > 0 && reader.cancelled > 0);

    assert_eq!(
        within(pair.far.read_datagrams(&mut Vec::new(), 0)).await,
        Ok(0)
    );
    let mut list = VecDeque::from([vec![1; 10].into(), vec![0; 70_000].into()]);
    let sent = within(pair.near.send_datagrams_wait(&mut list)).await;
    assert_eq!(sent, Err(DatagramError::TooLarge));
    assert_eq!(list.len(), 1);
    pair.near.close(7, b"");
    // What has arrived is read first.
    let mut arrived = Vec::new();
    let mut read = within(pair.far.read_datagrams(&mut arrived, 9)).await;
    while read.is_ok() {
        read = within(pair.far.read_datagrams(&mut arrived, 9)).await;
    }
    assert!(arrived.len() <= 1);
    let sent = within(pair.near.send_datagrams_wait(&mut list)).await;
    assert_eq!(sent, Err(DatagramError::Closed));
}

#[tokio::test]
async fn cancelled_waits_leave_nothing_behind() {
    let pair = narrow().await;
    let mut canceller = Canceller::new();
    let (mut send, mut recv) = stream(&pair).await;
    for _ in 0..50 {
        assert!(canceller.once(pair.near.closed()).await.is_none());
        assert!(canceller.once(send.stopped()).await.is_none());
        assert!(canceller.once(pair.server.worker_ended()).await.is_none());
        assert!(canceller.once(pair.server.wait_idle()).await.is_none());
        assert!(canceller.once(pair.server.sockets_closed()).await.is_none());
        assert!(canceller.once(pair.server.accept()).await.is_none());
        canceller.let_go().await;
    }
    for _ in 0..50 {
        assert!(canceller.once(recv.received_reset()).await.is_none());
        // A stream's half has room for one waker, which it keeps.
        assert_eq!(canceller.kept(), 1);
    }
    // Each of them works afterwards.
    send.reset(8).unwrap();
    assert_eq!(within(recv.received_reset()).await, Ok(Some(8)));
    drop((send, recv));
    canceller.let_go().await;
    // A shutdown that waits for a stream does not close the connection when it is dropped. The
    // server's worker is blocked, so that it acknowledges nothing.
    let (begun, begins) = mpsc::channel();
    let (go_on, held_up) = mpsc::channel::<()>();
    pair.server.spawn(async move {
        begun.send(()).unwrap();
        let _ = held_up.recv();
    });
    begins.recv().unwrap();
    let mut send = within(pair.near.open_uni()).await.unwrap();
    within(send.write_all(&data(10_000))).await.unwrap();
    send.finish().unwrap();
    for _ in 0..20 {
        assert!(canceller.once(pair.near.shutdown(5, b"")).await.is_none());
        canceller.let_go().await;
    }
    assert_eq!(pair.near.close_reason(), None);
    drop(go_on);
    within(pair.near.shutdown(5, b"")).await;
    let mut recv = within(pair.far.accept_uni()).await.unwrap();
    assert_eq!(
        within(recv.read_to_end(10_000)).await.unwrap(),
        data(10_000)
    );
    within(pair.far.closed()).await;
}

#[tokio::test]
async fn cancelled_accepts_lose_no_attempt_and_handlers_outlive_serve() {
    let (server, client) = endpoints(TransportConfig::default);
    let address = server.local_addr().unwrap();
    let mut canceller = Canceller::new();
    let mut kept = Vec::new();
    for _ in 0..10 {
        assert!(canceller.once(server.accept()).await.is_none());
        let connecting = client.connect(address, "localhost").unwrap();
        let accepting = async {
            let incoming = canceller.again(|| server.accept()).await.unwrap();
            // A connection awaited by reference outlives the wait.
            let mut connecting = incoming.accept();
            let data = loop {
                if let Some(data) = canceller.once(connecting.handshake_data()).await {
                    break data.unwrap();
                }
            };
            assert_eq!(data.server_name.as_deref(), Some("localhost"));
            loop {
                if let Some(connection) = canceller.once(&mut connecting).await {
                    break connection;
                }
            }
        };
        let (near, far) = within(async { tokio::join!(connecting, accepting) }).await;
        kept.push((near.unwrap(), far.unwrap()));
    }
    assert_eq!(server.stats().connections, 10);

    // `serve` is dropped repeatedly; every connection is served once, to its end.
    let served = Arc::new(AtomicU32::new(0));
    let serve = |served: Arc<AtomicU32>| {
        server.serve(move |connection: Connection| {
            let served = Arc::clone(&served);
            async move {
                let mut recv = connection.accept_uni().await.unwrap();
                assert_eq!(recv.read_to_end(100).await.unwrap(), b"serve me");
                served.fetch_add(1, Ordering::SeqCst);
            }
        })
    };
    let asking = async {
        for _ in 0..10 {
            let connection = client.connect(address, "localhost").unwrap().await.unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
            let mut send = connection.open_uni().await.unwrap();
            send.write_all(b"serve me").await.unwrap();
            send.finish().unwrap();
            let _ = send.stopped().await;
        }
    };
    let serving = async {
        while served.load(Ordering::SeqCst) < 10 {
            assert!(canceller.once(serve(Arc::clone(&served))).await.is_none());
            canceller.let_go().await;
        }
    };
    within(async { tokio::join!(asking, serving) }).await;
}

#[tokio::test]
async fn dropping_a_connecting_future_abandons_the_attempt() {
    let (server, client) = endpoints(TransportConfig::default);
    let address = server.local_addr().unwrap();
    let mut canceller = Canceller::new();
    for early in [false, true] {
        // Nobody accepts: no handshake completes.
        let connecting = client.connect(address, "localhost").unwrap();
        if early {
            drop(connecting.into_0rtt());
        } else {
            assert!(canceller.once(connecting).await.is_none());
        }
        within(client.wait_idle()).await;
        canceller.let_go().await;
    }
}

#[tokio::test]
async fn the_outcome_of_early_data_can_be_awaited_later() {
    let identity = Identity::new();
    let mut config = identity.server(ALPN, TransportConfig::default());
    Arc::make_mut(&mut config.tls).max_early_data_size = u32::MAX;
    let server = Endpoint::server(ANY, config).unwrap();
    let mut config = identity.client(ALPN, TransportConfig::default());
    Arc::make_mut(&mut config.tls).enable_early_data = true;
    let client = Builder::new(ANY).client(config).bind().unwrap();
    let address = server.local_addr().unwrap();
    let (near, far) = meet(client.connect(address, "localhost").unwrap(), &server).await;
    let (near, far) = (near.unwrap(), far.unwrap());
    ticket(&near, &far).await;
    drop((near, far));
    let mut canceller = Canceller::new();
    let connecting = client.connect(address, "localhost").unwrap();
    let (near, mut accepted) = within(connecting.into_0rtt()).await.unwrap();
    for _ in 0..10 {
        assert!(
            canceller.once(&mut accepted).await.is_none(),
            "the outcome is pending until the server accepts"
        );
    }
    let mut send = near.open_uni().await.unwrap();
    send.write_all(b"early").await.unwrap();
    let far = within(server.accept()).await.unwrap();
    let far = within(far.accept()).await.unwrap();
    within(async { while canceller.once(&mut accepted).await.is_none() {} }).await;
    canceller.let_go().await;
    assert_eq!(near.close_reason(), None);
    send.finish().unwrap();
    let mut recv = within(far.accept_uni()).await.unwrap();
    assert_eq!(within(recv.read_to_end(10)).await.unwrap(), b"early");
}

#[tokio::test]
async fn a_cancelled_migration_or_shutdown_continues() {
    let any = ([0, 0, 0, 0], 0).into();
    let identity = Identity::new();
    let transport = TransportConfig::default;
    let server = Builder::new(any)
        .server(identity.server(ALPN, transport()))
        .bind()
        .unwrap();
    let client = Builder::new(any)
        .client(identity.client(ALPN, transport()))
        .bind()
        .unwrap();
    let port = server.local_addr().unwrap().port();
    let address = ([127, 0, 0, 1], port).into();
    let (near, far) = meet(client.connect(address, "localhost").unwrap(), &server).await;
    let (near, far) = (near.unwrap(), far.unwrap());
    let mut canceller = Canceller::new();
    // The handshake is confirmed when the server's answer to this has arrived.
    within(async {
        while !near.force_key_update() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let local = [127, 0, 0, 7].into();
    assert!(
        canceller
            .once(near.migrate(local))
            .await
            .is_none_or(|moved| moved.is_ok())
    );
    until(|| far.remote_address().ip() == local).await;
    canceller.let_go().await;

    let mut send = near.open_uni().await.unwrap();
    send.write_all(&data(100_000)).await.unwrap();
    send.finish().unwrap();
    let mut recv = within(far.accept_uni()).await.unwrap();
    let _ = canceller.once(client.shutdown(4, b"later")).await;
    assert_eq!(
        within(recv.read_to_end(100_000)).await.unwrap(),
        data(100_000)
    );
    let reason = within(far.closed()).await;
    assert!(
        reason.to_string().contains("application code 4: later"),
        "{reason}"
    );
    canceller.let_go().await;
}

#[tokio::test]
async fn a_task_that_panics_costs_its_worker_nothing() {
    let pair = Pair::new().await;
    let (mut send, mut recv) = stream(&pair).await;
    for round in 0..5 {
        let far = pair.far.clone();
        let task = pair.far.spawn(async move {
            let mut own = far.open_uni().await.unwrap();
            own.write_all(b"half").await.unwrap();
            assert!(round > 9, "on purpose");
        });
        assert!(within(task).await.unwrap_err().is_panic());
        let mut broken = within(pair.near.accept_uni()).await.unwrap();
        let all = within(broken.read_to_end(100)).await;
        assert_eq!(all, Err(ReadError::Reset(0).into()));
        let on_endpoint = pair.server.spawn(async { panic!("on purpose") });
        assert!(within(on_endpoint).await.unwrap_err().is_panic());
        // Streams held by others continue, on the same connection and worker.
        send.write_all(&data(1000)).await.unwrap();
        let mut arrived = vec![0; 1000];
        within(recv.read_exact(&mut arrived)).await.unwrap();
        assert_eq!(arrived, data(1000));
    }
    assert_eq!(pair.server.stats().worker_ends, 0);
}

/// Public futures: async methods, types that are futures, and methods that return those.
fn futures_of_the_crate() -> BTreeSet<String> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut sources = Vec::new();
    let mut folders = vec![src];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push(std::fs::read_to_string(path).unwrap());
            }
        }
    }
    let word = |text: &str| -> String {
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
        text[..end.unwrap_or(text.len())].to_owned()
    };
    let lines = || sources.iter().flat_map(|source| source.lines());
    let types: BTreeSet<String> = lines()
        .filter_map(|line| Some(word(line.strip_prefix("impl Future for ")?)))
        .collect();
    let (mut found, mut returned) = (BTreeSet::new(), BTreeSet::new());
    for source in &sources {
        let (mut owner, mut docs) = (String::new(), String::new());
        for line in source.lines() {
            if line.trim_start().starts_with("///") {
                docs.push_str(line);
                continue;
            }
            if let Some(rest) = line.strip_prefix("impl ") {
                owner = word(rest);
                docs.clear();
                continue;
            }
            let is_future = |rest: &&str| rest.contains("-> impl Future<");
            let anonymous = line.strip_prefix("    pub async fn ");
            let anonymous =
                anonymous.or_else(|| line.strip_prefix("    pub fn ").filter(is_future));
            if let Some(rest) = anonymous {
                let name = format!("{owner}::{}", word(rest));
                let is_documented = ["ancel", "dropped"].iter().any(|word| docs.contains(word));
                assert!(
                    is_documented,
                    "{name} does not say what dropping its future does"
                );
                found.insert(name);
            } else if let Some(rest) = line.strip_prefix("    pub fn ")
                && let Some((_, output)) = rest.rsplit_once("-> ")
                && types.contains(&word(output))
                && output.trim_end_matches(" {") == word(output)
            {
                returned.insert(word(output));
                // `Incoming::accept` returns a `Connecting`, which has its own row.
                if word(output) != "Connecting" {
                    found.insert(format!("{owner}::{}", word(rest)));
                }
            }
            docs.clear();
        }
    }
    // Types that no method's row covers.
    found.extend(
        types
            .into_iter()
            .filter(|one| !returned.contains(one) || one == "Connecting"),
    );
    found
}

#[test]
fn every_public_future_is_in_the_table() {
    let table = TABLE.split("## Drops").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let names = rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2));
    let in_table: BTreeSet<String> = names.map(str::to_owned).collect();
    let futures = futures_of_the_crate();
    assert!(futures.len() > 25, "{futures:?}");
    assert_eq!(in_table, futures);
}
