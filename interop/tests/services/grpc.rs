//! A gRPC service by tonic, with all four kinds of methods.

use std::pin::Pin;

use axum::Router;
use axum::http::Uri;
use futures_util::{Stream, StreamExt, stream};
use squall_h3::server::Builder;
use tonic::{Request, Response, Status, Streaming};

use crate::servers::{http2, http3, within};

mod generated {
    #![allow(
        missing_docs,
        unreachable_pub,
        clippy::all,
        clippy::pedantic,
        clippy::restriction,
        reason = "made by tonic"
    )]
    include!(concat!(env!("OUT_DIR"), "/squall.Words.rs"));
}

use generated::words_client::WordsClient;
use generated::words_server::{Words, WordsServer};

/// The message of all methods.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Text {
    #[prost(string, tag = "1")]
    pub(crate) text: String,
}

fn text(text: impl Into<String>) -> Text {
    Text { text: text.into() }
}

struct Service;

type Texts = Pin<Box<dyn Stream<Item = Result<Text, Status>> + Send>>;

/// Nothing here knows of HTTP/3.
#[tonic::async_trait]
impl Words for Service {
    async fn one(&self, request: Request<Text>) -> Result<Response<Text>, Status> {
        let name = request.metadata().get("x-name").cloned();
        match &*request.into_inner().text {
            "" => Err(Status::invalid_argument("no text: ü")),
            given => {
                let mut response = Response::new(text(format!("{given} {given}")));
                if let Some(name) = name {
                    response.metadata_mut().insert("x-name", name);
                }
                Ok(response)
            }
        }
    }

    type SplitStream = Texts;

    async fn split(&self, request: Request<Text>) -> Result<Response<Texts>, Status> {
        let given = request.into_inner().text;
        let mut words: Vec<_> = given.split(' ').map(|word| Ok(text(word))).collect();
        if given.ends_with('!') {
            words.push(Err(Status::aborted("no exclamations")));
        }
        Ok(Response::new(stream::iter(words).boxed()))
    }

    async fn join(&self, request: Request<Streaming<Text>>) -> Result<Response<Text>, Status> {
        let mut words = request.into_inner();
        let mut all = String::new();
        while let Some(word) = words.message().await? {
            all.push_str(&word.text);
        }
        Ok(Response::new(text(all)))
    }

    type ShoutStream = Texts;

    async fn shout(&self, request: Request<Streaming<Text>>) -> Result<Response<Texts>, Status> {
        let words = request.into_inner();
        let louder = words.map(|word| Ok(text(word?.text.to_uppercase())));
        Ok(Response::new(louder.boxed()))
    }
}

/// What a client of every method learns.
async fn told<T>(mut client: WordsClient<T>) -> Vec<String>
where
    T: tonic::client::GrpcService<tonic::body::Body>,
    T::Error: Into<tonic::codegen::StdError>,
    T::ResponseBody: axum::body::HttpBody<Data = axum::body::Bytes> + Send + 'static,
    <T::ResponseBody as axum::body::HttpBody>::Error: Into<tonic::codegen::StdError> + Send,
{
    let mut told = Vec::new();
    let mut request = Request::new(text("go"));
    request
        .metadata_mut()
        .insert("x-name", "squall".parse().expect("a value"));
    let one = within(client.one(request)).await.expect("an answer");
    told.push(format!(
        "{:?} {:?}",
        one.metadata().get("x-name"),
        one.get_ref()
    ));
    let long = within(client.one(text("x".repeat(1_000_000))))
        .await
        .expect("an answer");
    told.push(long.get_ref().text.len().to_string());
    let refused = within(client.one(text(""))).await.expect_err("an error");
    told.push(format!("{:?} {}", refused.code(), refused.message()));
    for words in ["a b c", "oh no!"] {
        let mut split = within(client.split(text(words)))
            .await
            .expect("a stream")
            .into_inner();
        loop {
            match within(split.message()).await {
                Ok(Some(word)) => told.push(word.text),
                Ok(None) => break,
                Err(status) => {
                    told.push(format!("{:?} {}", status.code(), status.message()));
                    break;
                }
            }
        }
    }
    let words = stream::iter(["f", "o", "o"].map(text));
    told.push(
        within(client.join(words))
            .await
            .expect("an answer")
            .into_inner()
            .text,
    );
    // One word at a time, each only after the answer to the one before.
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
        told.push(heard.text);
    }
    drop(say);
    assert!(within(louder.message()).await.expect("the end").is_none());
    told
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
    let expected = told(WordsClient::new(channel)).await;
    for builder in [Builder::new(), Builder::new().on_worker()] {
        let (http3, _endpoints) = http3(builder, router()).await;
        let client = WordsClient::with_origin(http3, Uri::from_static("https://localhost"));
        assert_eq!(told(client).await, expected);
    }
    assert_eq!(expected.len(), 13, "{expected:?}");
}
