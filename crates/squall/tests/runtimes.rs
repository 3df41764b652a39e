//! Where an endpoint's workers and the application's tasks run: an endpoint behaves the same on
//! threads and on runtimes of any kind.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

mod common;

use std::io;
use std::time::Duration;

use common::{ALPN, ANY, Identity, Pair, pattern, within};
use squall::{
    Builder, CloseReason, Connection, Stage, TransportConfig, WorkerEndReason, WriteError,
};
use tokio::runtime::{Handle, Runtime};

/// What applications run on.
fn runtimes() -> [Runtime; 3] {
    let mut multi = tokio::runtime::Builder::new_multi_thread();
    let mut one_thread = tokio::runtime::Builder::new_multi_thread();
    let mut current = tokio::runtime::Builder::new_current_thread();
    [
        multi.worker_threads(2).enable_all().build().unwrap(),
        one_thread.worker_threads(1).enable_all().build().unwrap(),
        current.enable_all().build().unwrap(),
    ]
}

/// A pair whose workers are tasks of the caller's runtime, or have their own threads.
async fn pair(tasks: bool, workers: usize) -> Pair {
    let transport = TransportConfig::default;
    let build = |builder: Builder| match tasks {
        true => builder.workers(workers).on_runtime(Handle::current()),
        false => builder.workers(workers),
    };
    Pair::with(transport(), transport(), build).await
}

/// Answers each stream with what arrived on it.
async fn echo(connection: Connection) {
    while let Ok((mut send, mut recv)) = connection.accept_bi().await {
        tokio::spawn(async move {
            let all = recv.read_to_end(usize::MAX).await.unwrap();
            send.write_all(&all).await.unwrap();
            send.finish().unwrap();
        });
    }
}

/// Many requests side by side, each checked, in tasks of the caller's runtime.
async fn ask(connection: &Connection, tasks: usize, requests: usize, len: usize) {
    let asking: Vec<_> = (0..tasks)
        .map(|task| {
            let connection = connection.clone();
            tokio::spawn(async move {
                for request in 0..requests {
                    let question = pattern(len, (task * 31 + request) as u64);
                    let (mut send, mut recv) = connection.open_bi().await.unwrap();
                    send.write_all(&question).await.unwrap();
                    send.finish().unwrap();
                    assert!(recv.read_to_end(len).await.unwrap() == question);
                }
            })
        })
        .collect();
    for task in asking {
        within(task).await.unwrap();
    }
}

#[test]
fn workers_and_applications_can_run_on_any_runtime() {
    for runtime in runtimes() {
        for (tasks, workers) in [(false, 1), (true, 1), (false, 2), (true, 2)] {
            // A single worker's socket works with any system's way of sharing a port.
            if workers > 1 && !cfg!(target_os = "linux") {
                continue;
            }
            runtime.block_on(async {
                let pair = pair(tasks, workers).await;
                let server = tokio::spawn(echo(pair.far.clone()));
                ask(&pair.near, 50, 20, 300).await;
                ask(&pair.near, 2, 2, 500_000).await;
                pair.near.close(7, b"done");
                within(server).await.unwrap();
                let reason = CloseReason::Application {
                    code: 7,
                    reason: "done".into(),
                    remote: true,
                };
                assert_eq!(within(pair.far.closed()).await, reason);
                pair.server.close(0, b"");
                within(pair.server.wait_idle()).await;
            });
        }
    }
}

/// A connection may be used from several runtimes, and from threads that have none.
#[test]
fn a_connection_serves_several_runtimes_at_once() {
    let [multi, other, current] = runtimes();
    let pair = multi.block_on(pair(false, 1));
    let server = multi.spawn(echo(pair.far.clone()));
    std::thread::scope(|scope| {
        for runtime in [&multi, &other, &current] {
            let connection = &pair.near;
            scope.spawn(move || runtime.block_on(ask(connection, 20, 20, 1000)));
        }
    });
    // A runtime that is not driven blocks no other.
    let (mut send, mut recv) = current.block_on(pair.near.open_bi()).unwrap();
    current
        .block_on(current.spawn(async { tokio::task::yield_now().await }))
        .unwrap();
    let waiting = current.spawn(async move { recv.read_to_end(10).await.unwrap() });
    current.block_on(async {
        send.write_all(b"later").await.unwrap();
        send.finish().unwrap();
    });
    multi.block_on(ask(&pair.near, 20, 20, 1000));
    assert_eq!(current.block_on(within(waiting)).unwrap(), b"later");
    drop((send, pair));
    multi.block_on(within(server)).unwrap();
}

/// The runtime and its workers are gone: no task waits for ever.
#[test]
fn a_runtime_that_shuts_down_ends_its_connections() {
    for runtime in runtimes() {
        let [outside, ..] = runtimes();
        let pair = runtime.block_on(pair(true, 1));
        let waiting = outside.spawn({
            let near = pair.near.clone();
            async move { (near.open_bi().await, near.accept_bi().await.map(drop)) }
        });
        let accepting = outside.spawn({
            let server = pair.server.clone();
            async move { server.accept().await.is_none() }
        });
        let mut stream = outside.block_on(within(pair.near.open_uni())).unwrap();
        let ending = outside.spawn({
            let server = pair.server.clone();
            async move { server.worker_ended().await }
        });
        drop(runtime);
        let end = outside.block_on(within(ending)).unwrap().unwrap();
        assert!(
            matches!(end.reason, WorkerEndReason::RuntimeShutDown),
            "{end}"
        );
        assert_eq!(end.connections, 1);
        let (_, accepted) = outside.block_on(within(waiting)).unwrap();
        let ended = accepted.unwrap_err();
        assert!(
            ended.to_string().contains("its runtime has shut down"),
            "{ended}"
        );
        assert!(outside.block_on(within(accepting)).unwrap());
        // Nothing is taken that cannot be sent.
        let lost = WriteError::ConnectionLost(ended);
        let written = outside.block_on(within(stream.write(b"abc")));
        assert_eq!(written, Err(lost.clone()));
        assert_eq!(stream.finish(), Err(lost));
        let sent = pair.near.send_datagram("abc".into());
        assert!(sent.is_err(), "{sent:?}");
        let sent = outside.block_on(within(pair.near.send_datagram_wait("abc".into())));
        assert!(sent.is_err(), "{sent:?}");
        let address = pair.server.local_addr().unwrap();
        assert!(pair.client.connect(address, "localhost").is_err());
    }
}

#[test]
fn a_worker_that_is_a_task_reports_its_end_and_restarts() {
    const EBADF: i32 = 9;
    if !cfg!(target_os = "linux") {
        return;
    }
    let [runtime, ..] = runtimes();
    runtime.block_on(async {
        let pair = pair(true, 1).await;
        pair.server.inject_recv_error(EBADF);
        pair.near.send_datagram("hello".into()).unwrap();
        let end = within(pair.server.worker_ended()).await.unwrap();
        assert!(matches!(end.reason, WorkerEndReason::Socket(_)), "{end}");
        pair.server.restart_worker(0).unwrap();
        let connecting = pair
            .client
            .connect(pair.server.local_addr().unwrap(), "localhost");
        let accepting = async { pair.server.accept().await.unwrap().await };
        let (near, far) = within(async { tokio::join!(connecting.unwrap(), accepting) }).await;
        tokio::spawn(echo(far.unwrap()));
        ask(&near.unwrap(), 5, 5, 1000).await;
    });
}

#[test]
fn a_cpu_cannot_be_chosen_for_a_task() {
    let [runtime, ..] = runtimes();
    let config = Identity::new().server(ALPN, TransportConfig::default());
    let builder = Builder::new(ANY).server(config).cpu(0);
    let error = builder
        .on_runtime(runtime.handle().clone())
        .bind()
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

/// Time in which a task does not run is idle time, as it is for a thread.
#[test]
fn a_sleeping_worker_task_counts_as_idle() {
    let [.., current] = runtimes();
    current.block_on(async {
        let transport = TransportConfig::default;
        let build = |builder: Builder| builder.accounting(true).on_runtime(Handle::current());
        let pair = Pair::with(transport(), transport(), build).await;
        let idle = || {
            let stages = pair.server.stages();
            let ticks = stages.ticks();
            (ticks[Stage::Idle as usize], ticks.iter().sum::<u64>())
        };
        let before = idle();
        tokio::time::sleep(Duration::from_millis(300)).await;
        // A turn, which counts the sleep before it.
        let datagram = tokio::spawn({
            let far = pair.far.clone();
            async move { far.read_datagram().await }
        });
        pair.near.send_datagram("hello".into()).unwrap();
        within(datagram).await.unwrap().unwrap();
        let after = idle();
        let (slept, all) = (after.0 - before.0, after.1 - before.1);
        assert!(slept > all / 2, "{slept} of {all} ticks");
    });
}

/// A program may end once a connection is shut down: its peer has been informed.
#[test]
fn a_shutdown_ends_after_the_close_is_sent() {
    let server_runtime = Runtime::new().unwrap();
    let identity = Identity::new();
    let server = Builder::new(ANY).server(identity.server(ALPN, TransportConfig::default()));
    let server = server.bind().unwrap();
    for tasks in [true, false] {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let client = Builder::new(ANY).client(identity.client(ALPN, TransportConfig::default()));
        let client = match tasks {
            true => client.on_runtime(runtime.handle().clone()),
            false => client,
        };
        let client = client.bind().unwrap();
        let address = server.local_addr().unwrap();
        let accepting = server_runtime.spawn({
            let server = server.clone();
            async move { server.accept().await.unwrap().await.unwrap() }
        });
        let before = || client.stats().udp.datagrams_sent;
        let (near, sent) = runtime.block_on(async {
            let near = client.connect(address, "localhost").unwrap().await.unwrap();
            // The handshake is over, so that the close is the only datagram to come.
            tokio::time::sleep(Duration::from_millis(100)).await;
            let sent = before();
            near.shutdown(7, b"done").await;
            (near, sent)
        });
        assert!(before() > sent);
        // As if the process ended here: a runtime's worker never runs again.
        std::mem::forget(runtime);
        let reason = server_runtime.block_on(async {
            let far = within(accepting).await.unwrap();
            within(far.closed()).await
        });
        assert!(
            matches!(
                reason,
                CloseReason::Application {
                    code: 7,
                    remote: true,
                    ..
                }
            ),
            "{reason:?}"
        );
        drop(near);
    }
}
