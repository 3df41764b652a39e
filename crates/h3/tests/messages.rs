//! Requests and responses between this crate's client and server.
#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

mod common;

use bytes::Bytes;
use common::{Serve, Site, get, read, response, within};
use http::{Method, Request, Response, StatusCode, Version};
use squall_h3::{Body, server};

/// Starts the server in every way that it can be: on the caller's runtime and on the worker.
fn start<F, R>(site: &Site, on_worker: bool, answer: F)
where
    F: Fn(Request<Body>) -> R + Clone + Send + Sync + Unpin + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let builder = server::Builder::new();
    let builder = if on_worker {
        builder.on_worker()
    } else {
        builder
    };
    let serving = builder.serve(site.endpoint.clone(), Serve(answer));
    tokio::spawn(async move { serving.await });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_answered() {
    for on_worker in [false, true] {
        let site = Site::new();
        start(&site, on_worker, |request| async move {
            assert_eq!(request.version(), Version::HTTP_3);
            assert_eq!(request.headers().get("x-question").unwrap(), "yes");
            let mut response = response(format!("{} {}", request.method(), request.uri()));
            response
                .headers_mut()
                .insert("x-answer", "no".parse().unwrap());
            response
        });
        let client = site.client().await;
        for i in 0..10 {
            let mut request = get(&format!("/a/path?{i}"));
            request
                .headers_mut()
                .insert("x-question", "yes".parse().unwrap());
            let response = within(client.send(request)).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            assert_eq!(response.version(), Version::HTTP_3);
            assert_eq!(response.headers().get("x-answer").unwrap(), "no");
            assert!(response.headers().contains_key("date"));
            let expected = format!("GET https://localhost/a/path?{i}");
            let length = expected.len().to_string();
            assert_eq!(response.headers().get("content-length").unwrap(), &length);
            assert_eq!(
                read(response.into_body()).await.unwrap(),
                expected.as_bytes()
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_go_both_ways() {
    for on_worker in [false, true] {
        let site = Site::new();
        start(&site, on_worker, |request| async move {
            Response::new(request.into_body())
        });
        let client = site.client().await;
        for len in [0, 1, 1000, 5000, 100_000, 10_000_000] {
            let body: Vec<u8> = (0..len)
                .map(|i: u32| i.to_le_bytes()[i as usize % 3])
                .collect();
            let request = Request::post("https://localhost/echo")
                .body(Body::from(Bytes::from(body.clone())))
                .unwrap();
            let response = within(client.send(request)).await.unwrap();
            assert!(read(response.into_body()).await.unwrap() == body, "{len}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_at_once() {
    for on_worker in [false, true] {
        let site = Site::new();
        start(&site, on_worker, |request| async move {
            let path = request.uri().path().to_owned();
            if path.ends_with('3') {
                tokio::task::yield_now().await;
            }
            response(path)
        });
        let client = site.client().await;
        let tasks: Vec<_> = (0..500)
            .map(|i| {
                let client = client.clone();
                tokio::spawn(async move {
                    let path = format!("/{i}");
                    let response = within(client.send(get(&path))).await.unwrap();
                    assert_eq!(read(response.into_body()).await.unwrap(), path.as_bytes());
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_request_gets_no_body() {
    let site = Site::new();
    start(&site, true, |_| async { response("text") });
    let client = site.client().await;
    let mut request = get("/");
    *request.method_mut() = Method::HEAD;
    let response = within(client.send(request)).await.unwrap();
    assert_eq!(response.headers().get("content-length").unwrap(), "4");
    assert_eq!(read(response.into_body()).await.unwrap(), b"");
}
