//! Where a worker's time goes: HTTP/3's own, and the service's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::Response;
use squall::{Stage, TransportConfig};
use squall_h3::{Body, Config};

use crate::common::{Site, get, read, start, within};

#[tokio::test]
async fn a_worker_separates_the_time_of_http_from_the_services() {
    let site = Site::built(TransportConfig::default(), |builder| {
        builder.accounting(true)
    });
    let took = Arc::<AtomicU64>::default();
    let busy = Arc::clone(&took);
    start(&site, Config::new(), true, move |_| {
        let begun = squall::ticks();
        let until = Instant::now() + Duration::from_millis(10);
        while Instant::now() < until {}
        busy.fetch_add(squall::ticks() - begun, Ordering::SeqCst);
        async { Response::new(Body::from("content")) }
    });
    let client = site.client().await;
    for _ in 0..3 {
        let response = within(client.send(get("/"))).await.unwrap();
        assert_eq!(read(response.into_body()).await.unwrap(), b"content");
    }
    let stages = site.endpoint.stages();
    let of = |stage: Stage| stages.ticks()[stage as usize];
    let service = took.load(Ordering::SeqCst);
    assert!(of(Stage::Application) >= service, "{stages:?}");
    assert!(of(Stage::Http) > 0 && of(Stage::Qpack) > 0, "{stages:?}");
}
