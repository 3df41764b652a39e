//! The gRPC service of the example, with all four kinds of methods.

use std::time::Duration;

use axum::Router;
use axum::http::Uri;
use futures_util::stream;
use squall_h3::server::Builder;
use tonic::Request;

use crate::channel::{Channel, keep_deadline};
use crate::servers::{http2, http3, within};
use crate::words::{Service, WordsClient, WordsServer, text};

/// What a client of every method receives.
async fn responses<T>(mut client: WordsClient<T>) -> Vec<String>
where
    T: tonic::client::GrpcService<tonic::body::Body>,
    T::Error: Into<tonic::codegen::StdError>,
    T::ResponseBody: axum::body::HttpBody<Data = axum::body::Bytes> + Send + 'static,
    <T::ResponseBody as axum::body::HttpBody>::Error: Into<tonic::codegen::StdError> + Send,
{
    let mut received = Vec::new();
    let mut request = Request::new(text("go"));
    request
        .metadata_mut()
        .insert("x-name", "squall".parse().expect("a value"));
    let one = within(client.one(request)).await.expect("an answer");
    received.push(format!(
        "{:?} {:?}",
        one.metadata().get("x-name"),
        one.get_ref()
    ));
    let long = within(client.one(text("x".repeat(1_000_000))))
        .await
        .expect("an answer");
    received.push(long.get_ref().text.len().to_string());
    let refused = within(client.one(text(""))).await.expect_err("an error");
    received.push(format!("{:?} {}", refused.code(), refused.message()));
    for words in ["a b c", "oh no!"] {
        let mut split = within(client.split(text(words)))
            .await
            .expect("a stream")
            .into_inner();
        loop {
            match within(split.message()).await {
                Ok(Some(word)) => received.push(word.text),
                Ok(None) => break,
                Err(status) => {
                    received.push(format!("{:?} {}", status.code(), status.message()));
                    break;
                }
            }
        }
    }
    let words = stream::iter(["f", "o", "o"].map(text));
    received.push(
        within(client.join(words))
            .await
            .expect("an answer")
            .into_inner()
            .text,
    );
    // One word at a time, each only after the answer to the previous one.
    let (mut say, hear) = futures_channel::mpsc::channel(1);
    let mut louder = within(client.shout(hear))
        .await
        .expect("a stream")
        .into_inner();
    for word in ["who", "is", "there"] {
        say.try_send(text(word)).expect("room");
        let heard = within(louder.message())
            .await
            .expect("a word")
            .expect("a word");
        received.push(heard.text);
    }
    drop(say);
    assert!(within(louder.message()).await.expect("the end").is_none());
    received
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tonic_service_answers_as_over_http2() {
    let router = || -> Router {
        let routes = tonic::service::Routes::new(WordsServer::new(Service));
        routes.prepare().into_axum_router()
    };
    let address = http2(router()).await;
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"));
    let channel = endpoint
        .expect("an endpoint")
        .connect()
        .await
        .expect("a connection");
    let expected = responses(WordsClient::new(channel)).await;
    for builder in [Builder::new(), Builder::new().on_worker()] {
        let (http3, _endpoints) = http3(builder, router()).await;
        let client = WordsClient::with_origin(http3, Uri::from_static("https://localhost"));
        assert_eq!(responses(client).await, expected);
    }
    assert_eq!(expected.len(), 13, "{expected:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlines_expire_and_a_lost_connection_has_its_status() {
    let routes = tonic::service::Routes::new(WordsServer::new(Service)).into_axum_router();
    let routes = routes.layer(axum::middleware::from_fn(keep_deadline));
    let (requests, [_client, server]) = http3(Builder::new(), routes).await;
    let origin = Uri::from_static("https://localhost");
    let late = || {
        let mut request = Request::new(text("wait"));
        request.set_timeout(Duration::from_millis(100));
        request
    };
    // At the server, and at the client.
    let mut bare = WordsClient::with_origin(requests.clone(), origin.clone());
    let status = within(bare.one(late())).await.expect_err("too late");
    assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
    let mut client = WordsClient::with_origin(Channel(requests), origin);
    let status = within(client.one(late())).await.expect_err("too late");
    assert_eq!(status.code(), tonic::Code::DeadlineExceeded);

    let mut waiting = client.clone();
    let waiting = tokio::spawn(async move { waiting.one(text("wait")).await });
    within(client.one(text("here"))).await.expect("an answer");
    server.close(0x10c, b"");
    let status = within(waiting).await.expect("no panic").expect_err("lost");
    assert_eq!(status.code(), tonic::Code::Unavailable);
}
