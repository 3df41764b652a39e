//! The end of servers and clients: what is under way is finished, and nothing is lost.
#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Serve, Site, get, read, response, within};
use squall::CloseReason;
use squall_h3::{Code, server};
use tokio::sync::{Notify, oneshot};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_finishes_what_has_begun() {
    for on_worker in [false, true] {
        let site = Site::new();
        let builder = server::Builder::new();
        let builder = if on_worker {
            builder.on_worker()
        } else {
            builder
        };
        let go_on = Arc::new(Notify::new());
        let waiting = Arc::clone(&go_on);
        let service = Serve(move |request: http::Request<squall_h3::Body>| {
            let waiting = Arc::clone(&waiting);
            async move {
                if request.uri().path() == "/wait" {
                    waiting.notified().await;
                }
                response(vec![7; 1_000_000])
            }
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = builder.serve(site.endpoint.clone(), service);
        let signal = async move { stopped.await.unwrap() };
        let server = tokio::spawn(serving.with_graceful_shutdown(signal));
        let client = site.client().await;
        let other = site.client().await;
        let under_way = tokio::spawn({
            let client = client.clone();
            async move { client.send(get("/wait")).await }
        });
        let unread = within(other.send(get("/"))).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        stop.send(()).unwrap();
        // GOAWAY: the client sends nothing more here.
        let refused = async {
            loop {
                match client.send(get("/")).await {
                    Ok(response) => drop(read(response.into_body()).await.unwrap()),
                    Err(error) => break error,
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let refused = within(refused).await;
        assert!(refused.is_unprocessed(), "{refused}");
        assert!(client.is_closed());
        // The server waits for the response, however long it takes.
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(client.connection().close_reason().is_none());
        go_on.notify_waiters();
        let answer = within(under_way).await.unwrap().unwrap();
        assert_eq!(read(answer.into_body()).await.unwrap().len(), 1_000_000);
        assert_eq!(read(unread.into_body()).await.unwrap().len(), 1_000_000);
        within(server).await.unwrap();
        match within(client.connection().closed()).await {
            CloseReason::Application { code, .. } => assert_eq!(Code(code), Code::H3_NO_ERROR),
            other => panic!("{other}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_ends_its_connection_when_nobody_uses_it() {
    let site = Site::new();
    let service = Serve(|_| async { response(vec![7; 1_000_000]) });
    let serving = server::serve(site.endpoint.clone(), service);
    tokio::spawn(async move { serving.await });
    let client = site.client().await;
    let connection = client.connection().clone();
    let response = within(client.send(get("/"))).await.unwrap();
    drop(client);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(connection.close_reason().is_none());
    assert_eq!(read(response.into_body()).await.unwrap().len(), 1_000_000);
    match within(connection.closed()).await {
        CloseReason::Application {
            code,
            remote: false,
            ..
        } => {
            assert_eq!(Code(code), Code::H3_NO_ERROR);
        }
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_response_is_cancelled() {
    let site = Site::new();
    let (dropped, waiting) = oneshot::channel::<()>();
    let dropped = Arc::new(std::sync::Mutex::new(Some(dropped)));
    let service = Serve(move |_| {
        let held = dropped.lock().unwrap().take();
        async move {
            std::future::pending::<()>().await;
            drop(held);
            response("")
        }
    });
    let serving = server::serve(site.endpoint.clone(), service);
    tokio::spawn(async move { serving.await });
    let client = site.client().await;
    let asking = client.send(get("/"));
    assert!(
        tokio::time::timeout(Duration::from_millis(100), asking)
            .await
            .is_err()
    );
    // The service's future is dropped, and what it holds.
    assert!(within(waiting).await.is_err());
}
