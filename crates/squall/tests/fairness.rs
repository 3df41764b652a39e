//! Connections of one worker that all have more to send than fits take turns of a bundle each.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{endpoints, meet, within};
use squall::{
    AckedBundle, Bytes, CongestionController, CongestionControllerFactory, Time, TransportConfig,
};

const CONNECTIONS: usize = 10;
/// All connections start together; their first megabytes are not counted.
const SETTLE: usize = 20_000_000;
const COUNTED: usize = 300_000_000;
/// What each may have in flight: more than one turn.
const WINDOW: u64 = 4 << 20;

/// A window that losses do not change: otherwise losses, which a busy machine hands out at random,
/// would decide how much each connection sends.
#[derive(Debug)]
struct Fixed;

impl CongestionControllerFactory for Fixed {
    fn new_controller(&self, _: u16) -> Box<dyn CongestionController> {
        Box::new(Self)
    }
}

impl CongestionController for Fixed {
    fn window(&self) -> u64 {
        WINDOW
    }

    fn on_acked(&mut self, _: Time, _: &AckedBundle) {}
}

/// The order in which the client's worker reads.
#[derive(Default)]
struct Order {
    total: usize,
    /// The connection that was read last, and its bytes since the previous one.
    last: usize,
    run: usize,
    runs: Vec<usize>,
    of_each: [usize; CONNECTIONS],
}

impl Order {
    fn read(&mut self, connection: usize, bytes: usize) {
        self.total += bytes;
        if self.total < SETTLE {
            return;
        }
        self.of_each[connection] += bytes;
        if self.last != connection {
            self.runs.push(self.run);
            (self.last, self.run) = (connection, 0);
        }
        self.run += bytes;
    }

    /// Half of all bytes came in runs of at most this length.
    fn median_run(&mut self) -> usize {
        self.runs.sort_unstable();
        let half = self.runs.iter().sum::<usize>() / 2;
        let mut below = 0;
        let mut runs = self.runs.iter();
        *runs
            .find(|run| {
                below += **run;
                below >= half
            })
            .unwrap()
    }
}

/// Rounds, of which one has to pass. After a socket drops data, all that arrived behind it is read
/// at once when it is repeated: 1.4 MB in one round of twenty, and more often on a busy machine.
const ROUNDS: usize = 10;

/// Moves bytes on all connections at once.
async fn order() -> Order {
    let transport = || {
        TransportConfig::default()
            .max_udp_payload(1472)
            .congestion_controller(Some(Arc::new(Fixed)))
            .initial_stream_window(16 << 20)
            .stream_receive_window(16 << 20)
            .initial_window(16 << 20)
            .receive_window(16 << 20)
    };
    let (server, client) = endpoints(transport);
    let order = Arc::new(Mutex::new(Order::default()));
    let mut kept = Vec::new();
    for n in 0..CONNECTIONS {
        let connecting = client
            .connect(server.local_addr().unwrap(), "localhost")
            .unwrap();
        let (near, far) = meet(connecting, &server).await;
        let (near, far) = (near.unwrap(), far.unwrap());
        let mut send = far.open_uni().await.unwrap();
        far.spawn(async move {
            let piece = Bytes::from(vec![7; 256 * 1024]);
            while send.write_chunk(piece.clone()).await.is_ok() {}
        });
        let (reader, order) = (near.clone(), Arc::clone(&order));
        near.spawn(async move {
            let mut recv = reader.accept_uni().await.unwrap();
            while let Ok(Some(chunk)) = recv.read_chunk(usize::MAX).await {
                order.lock().unwrap().read(n, chunk.len());
            }
        });
        kept.push((near, far));
    }
    within(async {
        while order.lock().unwrap().total < SETTLE + COUNTED {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    drop(kept);
    std::mem::take(&mut *order.lock().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn saturated_connections_alternate_after_each_bundle() {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let mut order = order().await;
        let median = order.median_run();
        println!("runs of {median} bytes in the median, {:?}", order.of_each);
        // A turn is 64 KiB, and two may meet at the reader: 127 kB, also on a machine that compiles
        // meanwhile. If a connection keeps its turn for as long as it has data, it is 480 kB to 3.6
        // MB.
        let least = order.of_each.into_iter().min();
        if median <= 256 * 1024 && least > Some(COUNTED / CONNECTIONS / 10) {
            return;
        }
        rounds.push((median, order.of_each));
    }
    panic!("no round of {rounds:?} is fair");
}
