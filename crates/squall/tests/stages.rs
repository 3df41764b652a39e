//! The time used by single connections.
#![expect(clippy::unwrap_used, reason = "a test's way to fail")]

mod common;

use std::time::{Duration, Instant};

use common::{ALPN, ANY, Identity, ask, connect, echo, until, within};
use squall::{Builder, Connection, Endpoint, Stage, Stages, TransportConfig};

fn endpoints(accounting: bool) -> (Endpoint, Endpoint) {
    let identity = Identity::new();
    let transport = TransportConfig::default;
    let server = Builder::new(ANY).server(identity.server(ALPN, transport()));
    let client = Builder::new(ANY).client(identity.client(ALPN, transport()));
    (
        server.accounting(accounting).bind().unwrap(),
        client.bind().unwrap(),
    )
}

/// A connection whose server echoes what it receives.
async fn connect_to_echo(server: &Endpoint, client: &Endpoint) -> (Connection, Connection) {
    let (near, far) = connect(client, server).await;
    let accepting = far.clone();
    far.spawn(async move {
        while let Ok((send, recv)) = accepting.accept_bi().await {
            echo(send, recv).await;
        }
    });
    (near, far)
}

fn total(stages: &Stages) -> u64 {
    stages.ticks().iter().sum()
}

#[tokio::test]
async fn connections_take_at_most_their_workers_time_in_total() {
    // Ten times the bytes are ten times the work, but other load counts too if it interrupts a
    // stage: if so, try again.
    for _ in 0..20 {
        let [large, small] = of_connections().await;
        if large > 2 * small {
            return;
        }
        println!("{large} ticks for ten times as much as {small}");
    }
    panic!("the small transfer took at least half of the large one's time in every attempt");
}

/// Looks at the tables of four connections, and returns the time of protection of one, and of
/// another with a tenth of its bytes.
async fn of_connections() -> [u64; 2] {
    let (server, client) = endpoints(true);
    let mut connections = Vec::new();
    for _ in 0..4 {
        connections.push(connect_to_echo(&server, &client).await);
    }
    for (_, far) in &connections[..3] {
        far.measure_stages(true);
    }
    let loads = connections
        .iter()
        .zip([3_000_000, 300_000, 300_000, 3_000_000]);
    let mut running = Vec::new();
    for ((near, _), bytes) in loads {
        let near = near.clone();
        running.push(tokio::spawn(
            async move { within(ask(&near, bytes, 1)).await },
        ));
    }
    for one in running {
        one.await.unwrap();
    }
    let tables: Vec<Stages> = connections.iter().map(|(_, far)| far.stages()).collect();
    let all = server.stages();
    for stage in Stage::ALL {
        let of = |stages: &Stages| stages.ticks()[stage as usize];
        let sum: u64 = tables.iter().map(of).sum();
        assert!(sum <= of(&all), "{}: {sum} of {}", stage.name(), of(&all));
    }
    for table in &tables[..3] {
        for stage in [
            Stage::UdpSend,
            Stage::UdpReceive,
            Stage::Aead,
            Stage::HeaderProtection,
            Stage::PacketBuilding,
            Stage::FrameParsing,
            Stage::AckLoss,
            Stage::Streams,
            Stage::Application,
        ] {
            assert!(table.ticks()[stage as usize] > 0, "{}", stage.name());
        }
        assert_eq!(table.ticks()[Stage::Idle as usize], 0);
    }
    assert_eq!(
        total(&tables[3]),
        0,
        "the unmeasured connection has no time"
    );
    [0, 1].map(|at| tables[at].ticks()[Stage::Aead as usize])
}

#[tokio::test]
async fn a_connection_can_be_measured_without_its_endpoint() {
    let (server, client) = endpoints(false);
    let (near, far) = connect_to_echo(&server, &client).await;
    within(ask(&near, 100_000, 1)).await;
    assert_eq!(total(&far.stages()), 0);
    far.measure_stages(true);
    far.measure_stages(true);
    near.measure_stages(true);
    within(ask(&near, 500_000, 1)).await;
    for connection in [&near, &far] {
        let table = connection.stages();
        for stage in [
            Stage::Aead,
            Stage::Streams,
            Stage::UdpSend,
            Stage::UdpReceive,
        ] {
            assert!(table.ticks()[stage as usize] > 0, "{}", stage.name());
        }
    }
    assert_eq!(total(&server.stages()), 0);
    far.measure_stages(false);
    // The worker may be about to finish a send call that it began earlier.
    within(ask(&near, 1000, 1)).await;
    let before = total(&far.stages());
    within(ask(&near, 500_000, 1)).await;
    assert_eq!(total(&far.stages()), before, "measuring has stopped");
    near.close(0, b"");
    within(far.closed()).await;
    far.measure_stages(true);
    within(async { tokio::join!(client.wait_idle(), server.wait_idle()) }).await;
    assert!(total(&near.stages()) > 0, "earlier measurements are kept");
}

#[tokio::test]
async fn tasks_of_a_connection_are_attributed_to_its_application_stage() {
    let (server, client) = endpoints(true);
    let (_near, far) = connect_to_echo(&server, &client).await;
    far.measure_stages(true);
    let busy = Duration::from_millis(30);
    let task = far.spawn(async move {
        let begun = Instant::now();
        while begun.elapsed() < busy {}
    });
    within(task).await.unwrap();
    // The time is attributed after the task has run.
    let application = || far.stages().ticks()[Stage::Application as usize];
    until(|| application() > 0).await;
    let stages = far.stages();
    assert!(2 * application() > total(&stages), "{stages:?}");
    assert!(server.stages().ticks()[Stage::Application as usize] >= application());
}

#[tokio::test]
async fn a_task_divides_its_time_among_stages() {
    let (server, client) = endpoints(true);
    let (near, far) = connect_to_echo(&server, &client).await;
    far.measure_stages(true);
    let busy = || {
        let begun = squall::ticks();
        let until = Instant::now() + Duration::from_millis(10);
        while Instant::now() < until {}
        squall::ticks() - begun
    };
    let connection = far.clone();
    let task = far.spawn(async move {
        let http = busy();
        connection.mark_stage(Stage::Http);
        let qpack = busy();
        connection.mark_stage(Stage::Qpack);
        let application = busy();
        // A connection of another endpoint.
        near.mark_stage(Stage::Http);
        [http, qpack, application]
    });
    let took = within(task).await.unwrap();
    let of = |stage: Stage| far.stages().ticks()[stage as usize];
    until(|| of(Stage::Application) > 0).await;
    let server_of = |stage: Stage| server.stages().ticks()[stage as usize];
    let stages = [Stage::Http, Stage::Qpack, Stage::Application];
    for (stage, took) in stages.into_iter().zip(took) {
        assert!(of(stage) >= took, "{}", stage.name());
        assert!(server_of(stage) >= of(stage), "{}", stage.name());
    }
    // This thread is not a worker's.
    let before = server_of(Stage::Http);
    busy();
    far.mark_stage(Stage::Http);
    assert_eq!(server_of(Stage::Http), before);
    assert_eq!(client.stages().ticks()[Stage::Http as usize], 0);
}
