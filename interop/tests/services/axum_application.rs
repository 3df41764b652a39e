//! An axum application.

use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, Request};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use squall_h3::server::Builder;
use tokio::sync::Semaphore;

use crate::servers::{http2, http3, within};

/// Nothing here is specific to HTTP/3.
fn application() -> Router {
    Router::new()
        .route("/", get(async || "hello"))
        .route(
            "/users/{name}",
            get(async |Path(name): Path<String>| format!("user {name}")),
        )
        .route(
            "/sum",
            get(async |Query(numbers): Query<Vec<(String, i32)>>| {
                numbers
                    .iter()
                    .map(|(_, number)| number)
                    .sum::<i32>()
                    .to_string()
            }),
        )
        .route("/echo", post(async |request: Request| request.into_body()))
        .route("/headers", get(headers))
        .route("/empty", any(async || StatusCode::NO_CONTENT))
        .route(
            "/late",
            get(async || {
                tokio::time::sleep(Duration::from_millis(20)).await;
                "late"
            }),
        )
        .route("/stream", get(stream))
        .route("/block", get(block))
        .route("/go-on", get(async || GO_ON.add_permits(1)))
        .route("/panic", get(panics))
}

async fn headers(uri: Uri, headers: HeaderMap) -> Response {
    let cookies = headers.get("cookie").cloned();
    let mut response = format!("{} {:?}", uri.path(), headers.get("x-question")).into_response();
    let answer = cookies.unwrap_or(HeaderValue::from_static("none"));
    response.headers_mut().insert("x-answer", answer);
    response
}

/// What `/block` waits for.
static GO_ON: Semaphore = Semaphore::const_new(0);

/// Holds its thread until `/go-on` is requested, at most 10 seconds.
async fn block() -> Response {
    let end = Instant::now() + Duration::from_secs(10);
    tokio::task::block_in_place(|| {
        while Instant::now() < end {
            if GO_ON.try_acquire().is_ok() {
                return "gone on".into_response();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        StatusCode::GATEWAY_TIMEOUT.into_response()
    })
}

async fn panics() -> &'static str {
    panic!("on purpose")
}

/// Ten chunks, some of which come later.
async fn stream() -> Body {
    let chunks = futures_util::stream::unfold(0, async |i: usize| {
        if i % 3 == 1 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let chunk = Ok::<_, std::io::Error>(vec![b'a' + i as u8; 1 << i]);
        (i < 14).then_some((chunk, i + 1))
    });
    Body::from_stream(chunks)
}

/// Everything in a response except the fields that every server adds.
async fn contents<B>(response: axum::http::Response<B>) -> String
where
    B: axum::body::HttpBody<Data = axum::body::Bytes>,
    B::Error: std::fmt::Debug,
{
    let (head, body) = response.into_parts();
    let body = within(body.collect()).await.expect("a body").to_bytes();
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let fields = head.headers.iter().filter(|(name, _)| *name != "date");
    let mut fields: Vec<_> = fields
        .map(|(name, value)| (name.as_str(), text(value)))
        .collect();
    fields.sort();
    format!("{} {fields:?} {} {body:?}", head.status, body.len())
}

fn requests() -> Vec<Request> {
    let get = |path: &str| Request::get(path).body(Body::empty());
    let post = |len: usize| Request::post("/echo").body(Body::from(vec![7; len]));
    let mut requests: Vec<_> = [
        "/",
        "/users/me",
        "/sum?a=1&b=41",
        "/headers",
        "/empty",
        "/late",
        "/stream",
        "/none",
    ]
    .into_iter()
    .map(get)
    .chain([0, 1, 1000, 1_000_000].map(post))
    .collect::<Result<_, _>>()
    .expect("requests");
    let cookies = Request::get("/headers")
        .header("cookie", "a=1")
        .header("x-question", "why");
    requests.push(cookies.body(Body::empty()).expect("a request"));
    requests.push(
        Request::head("/stream")
            .body(Body::empty())
            .expect("a request"),
    );
    requests.push(Request::put("/").body(Body::from("x")).expect("a request"));
    requests
}

#[tokio::test(flavor = "multi_thread")]
async fn an_axum_application_answers_as_over_http2() {
    let address = http2(application()).await;
    let mut builder = Client::builder(TokioExecutor::new());
    let http2 = builder.http2_only(true).build_http();
    for on_worker in [false, true] {
        let builder = Builder::new();
        let builder = if on_worker {
            builder.on_worker()
        } else {
            builder
        };
        let (http3, _endpoints) = http3(builder, application()).await;
        for (mut here, mut there) in requests().into_iter().zip(requests()) {
            let path = here.uri().clone();
            let uri = |base: &str| format!("{base}{path}").parse::<Uri>().expect("a URI");
            *here.uri_mut() = uri("https://localhost");
            *there.uri_mut() = uri(&format!("http://{address}"));
            let here = within(http3.send(here)).await.expect("a response");
            let mut there = within(http2.request(there)).await.expect("a response");
            if there.status() == StatusCode::NO_CONTENT {
                // hyper sends one; a server must not (RFC 9110 §8.6).
                there.headers_mut().remove("content-length");
            }
            assert_eq!(contents(here).await, contents(there).await, "{path}");
        }
    }
}

/// A handler that blocks holds up nothing if it runs on the caller's runtime, but its connection's
/// worker if it runs there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_handler_delays_nothing_on_the_callers_runtime() {
    let ask = async |http: &squall_h3::client::SendRequest, path: &str| {
        let request = Request::get(format!("https://localhost{path}")).body(Body::empty());
        let response = within(http.send(request.expect("a request")))
            .await
            .expect("a response");
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        within(response.into_body().collect())
            .await
            .expect("a body")
            .to_bytes()
    };
    let (http, _endpoints) = http3(Builder::new(), application()).await;
    let (blocked, ()) = tokio::join!(ask(&http, "/block"), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(ask(&http, "/").await, "hello");
        ask(&http, "/go-on").await;
    });
    assert_eq!(blocked, "gone on");
}

/// A handler that panics costs only its own request, in both places.
#[tokio::test(flavor = "multi_thread")]
async fn a_panicking_handler_costs_only_its_own_request() {
    for builder in [Builder::new(), Builder::new().on_worker()] {
        let (http, _endpoints) = http3(builder, application()).await;
        let get = |path: &str| {
            let request = Request::get(format!("https://localhost{path}"));
            request.body(Body::empty()).expect("a request")
        };
        let failed = within(http.send(get("/panic")))
            .await
            .expect_err("no response");
        assert!(
            matches!(
                failed,
                squall_h3::Error::Stream(squall_h3::Code::H3_INTERNAL_ERROR)
            ),
            "{failed}"
        );
        let response = within(http.send(get("/"))).await.expect("a response");
        assert_eq!(response.status(), StatusCode::OK);
    }
}
