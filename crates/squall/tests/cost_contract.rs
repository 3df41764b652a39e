//! The cost contract of a bundle (`docs/measuring/cost-contract.md`): 64 datagrams of 1,000 bytes,
//! sent and received through sockets, cost one kernel dispatch per operation, one lock for each
//! round of receiving or sending, one timer update, one wake-up of one stream, and no allocation.
//! The same holds for DATAGRAM frames, with the task that reads them in place of the stream.
//!
//! Alone in its file, since the counting allocator counts the whole process. On Linux, where there
//! are bundles.
#![cfg(target_os = "linux")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use common::{Pair, within};
use squall::{AckFrequencyRequest, EndpointStats, Stats, TransportConfig};
use tokio::sync::Semaphore;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is handed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: as the trait asks; nothing is done with the memory here.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is the same as ours.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: as the trait asks; nothing is done with the memory here.
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is the same as ours.
        unsafe { System.realloc(ptr, layout, size) }
    }

    // SAFETY: as the trait asks; nothing is done with the memory here.
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the same as ours.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const DATAGRAM: u16 = 1000;
const SEGMENTS: u64 = 64;
/// Header (1 + 8 + 2), tag (16) and STREAM header (1 + 1 + 4) leave this much for data.
const PAYLOAD: usize = DATAGRAM as usize - 11 - 16 - 6;
/// 63 full packets and half of one: room for an acknowledgement, and the bundle still has 64
/// datagrams.
const BUNDLE: usize = 63 * PAYLOAD + PAYLOAD / 2;
/// Bytes of a datagram of RFC 9221: a packet has room for one, and for an acknowledgement.
const DATA: usize = 900;
const WARM_UP: u64 = 200;
const BUNDLES: u64 = 100;
/// A busy machine can only add to the costs, by timers that fire and bundles that arrive in parts:
/// one attempt that meets the contract is enough. Next to four busy loops on two
/// cores, one in ten does.
const ATTEMPTS: u32 = 500;

/// All counters of one side.
#[derive(Clone, Copy)]
struct Counters {
    endpoint: EndpointStats,
    connection: Stats,
}

/// One test at a time: the allocator counts for all of them.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn transport() -> TransportConfig {
    TransportConfig::default()
        .max_udp_payload(DATAGRAM)
        // One window for the whole test: no credit frames, and bundles that pacing does not split.
        .initial_stream_window(64 << 20)
        .stream_receive_window(64 << 20)
        .initial_window(64 << 20)
        .receive_window(64 << 20)
        .pacing(false)
        // A lone PING is acknowledged with the next bundle, however slow the machine is.
        .max_ack_delay(Duration::from_secs(10))
        // The contract allows one acknowledgement per bundle.
        .ack_frequency(AckFrequencyRequest::Nothing)
}

/// The counters of the server and of the client.
fn counters(pair: &Pair) -> [Counters; 2] {
    let of = |endpoint: &squall::Endpoint, connection: &squall::Connection| Counters {
        endpoint: endpoint.stats(),
        connection: connection.stats(),
    };
    [of(&pair.server, &pair.far), of(&pair.client, &pair.near)]
}

/// Lets `send` move bundles until the contract holds, after some to warm up.
async fn holds(pair: &Pair, mut send: impl AsyncFnMut(u64)) {
    send(WARM_UP).await;
    let mut attempt = 0;
    loop {
        let (before, allocations) = (counters(pair), ALLOCATIONS.load(Ordering::Relaxed));
        send(BUNDLES).await;
        let allocations = ALLOCATIONS.load(Ordering::Relaxed) - allocations;
        attempt += 1;
        match check(&before, &counters(pair), allocations) {
            Ok(()) => break,
            Err(why) if attempt == ATTEMPTS => panic!("{why}, in the last of {attempt} attempts"),
            Err(_) => {}
        }
    }
}

/// Waits for a bundle and for its acknowledgement, so that each round is complete.
async fn await_bundle(pair: &Pair, arrived: &Semaphore) {
    let permit = within(arrived.acquire()).await;
    permit.expect("the semaphore is never closed").forget();
    while pair.far.stats().bytes_in_flight > 0 {
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn a_bundle_costs_one_of_everything() {
    let _alone = ALONE.lock().await;
    let pair = within(Pair::with(transport(), transport(), |builder| builder)).await;
    let (server, client) = (pair.far.clone(), pair.near.clone());
    let arrived = Arc::new(Semaphore::new(0));

    let reader_arrived = Arc::clone(&arrived);
    let reader = pair.client.spawn(async move {
        let mut stream = client
            .accept_uni()
            .await
            .expect("the server opens a stream");
        let mut bytes = 0;
        while let Ok(Some(chunk)) = stream.read_chunk(usize::MAX).await {
            bytes += chunk.len();
            while bytes >= BUNDLE {
                bytes -= BUNDLE;
                reader_arrived.add_permits(1);
            }
        }
    });
    let mut stream = server
        .open_uni()
        .await
        .expect("the stream limit allows one stream");
    let data = Bytes::from(vec![42; BUNDLE]);
    let send = async |bundles: u64| {
        for _ in 0..bundles {
            stream
                .write_chunk(data.clone())
                .await
                .expect("the stream is open");
            await_bundle(&pair, &arrived).await;
        }
    };
    holds(&pair, send).await;
    reader.abort();
}

#[tokio::test]
async fn a_bundle_of_datagrams_costs_one_of_everything() {
    let _alone = ALONE.lock().await;
    let transport = || {
        transport()
            .datagram_send_buffer(1 << 20)
            .datagram_receive_buffer(1 << 20)
    };
    let pair = within(Pair::with(transport(), transport(), |builder| builder)).await;
    let (server, client) = (pair.far.clone(), pair.near.clone());
    let (asked, arrived) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));

    // On the worker, so that all datagrams of a bundle wait when its turn comes.
    let writer_asked = Arc::clone(&asked);
    let writer = pair.server.spawn(async move {
        let data = Bytes::from(vec![42; DATA]);
        while let Ok(permit) = writer_asked.acquire().await {
            permit.forget();
            for _ in 0..SEGMENTS {
                server
                    .send_datagram(data.clone())
                    .expect("the client accepts datagrams");
            }
        }
    });
    let reader_arrived = Arc::clone(&arrived);
    let reader = pair.client.spawn(async move {
        let mut datagrams = 0;
        while client.read_datagram().await.is_ok() {
            datagrams += 1;
            if datagrams % SEGMENTS == 0 {
                reader_arrived.add_permits(1);
            }
        }
    });
    let send = async |bundles: u64| {
        for _ in 0..bundles {
            asked.add_permits(1);
            await_bundle(&pair, &arrived).await;
        }
    };
    holds(&pair, send).await;
    writer.abort();
    reader.abort();
}

/// Compares the cost of `BUNDLES` bundles with the contract.
fn check(before: &[Counters; 2], after: &[Counters; 2], allocations: u64) -> Result<(), String> {
    let of = |f: fn(&Counters) -> u64| [f(&after[0]) - f(&before[0]), f(&after[1]) - f(&before[1])];
    let equal = |count: u64, contract: u64, what: &str| match count == contract {
        true => Ok(()),
        false => Err(format!(
            "{what}: {count} for {BUNDLES} bundles, {contract} expected"
        )),
    };
    let [sent, _] = of(|c| c.connection.datagrams_sent);
    equal(sent, BUNDLES * SEGMENTS, "64 datagrams a bundle")?;
    let [server, client] = of(|c| c.connection.seal_calls);
    equal(server, BUNDLES, "one seal a bundle sent")?;
    equal(client, BUNDLES, "one acknowledgement a bundle received")?;
    let [server, client] = of(|c| c.connection.runs);
    equal(client, BUNDLES, "one run a bundle received")?;
    equal(server, BUNDLES, "one run an acknowledgement received")?;
    for passes in of(|c| c.connection.unprotect_calls) {
        equal(passes, BUNDLES, "one pass of header protection a run")?;
    }
    for opens in of(|c| c.connection.open_calls) {
        equal(opens, BUNDLES, "one open a run")?;
    }
    let [_, locks] = of(|c| c.endpoint.locks);
    let what = "one lock a run received, one a round of transmission";
    equal(locks, 2 * BUNDLES, what)?;
    let [server, client] = of(|c| c.endpoint.timer_updates);
    equal(
        client.max(BUNDLES),
        BUNDLES,
        "one timer update a bundle received",
    )?;
    let what = "one timer update a bundle sent, one its acknowledgement";
    equal(server.max(2 * BUNDLES), 2 * BUNDLES, what)?;
    let [_, wakeups] = of(|c| c.endpoint.wakeups);
    equal(wakeups, BUNDLES, "one wake-up of one task a bundle")?;
    equal(allocations, 0, "no allocation after warm-up")
}
