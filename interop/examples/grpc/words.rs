//! A gRPC service by tonic, with all four kinds of methods. It is described in `build.rs`;
//! `tonic-prost-build` generates the same from a `.proto` file.

use std::pin::Pin;

use futures_util::{Stream, StreamExt, stream};
use tonic::{Request, Response, Status, Streaming};

mod generated {
    #![allow(
        missing_docs,
        unreachable_pub,
        clippy::all,
        clippy::pedantic,
        clippy::restriction,
        reason = "made by tonic"
    )]
    use super::Text;

    include!(concat!(env!("OUT_DIR"), "/squall.Words.rs"));
}

use generated::words_server::Words;

pub(crate) use generated::words_client::WordsClient;
pub(crate) use generated::words_server::WordsServer;

/// The message of all methods.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Text {
    #[prost(string, tag = "1")]
    pub(crate) text: String,
}

pub(crate) fn text(text: impl Into<String>) -> Text {
    Text { text: text.into() }
}

pub(crate) struct Service;

type Texts = Pin<Box<dyn Stream<Item = Result<Text, Status>> + Send>>;

/// Nothing here is specific to HTTP/3.
#[tonic::async_trait]
impl Words for Service {
    async fn one(&self, request: Request<Text>) -> Result<Response<Text>, Status> {
        let name = request.metadata().get("x-name").cloned();
        match &*request.into_inner().text {
            "" => Err(Status::invalid_argument("no text: ü")),
            "wait" => std::future::pending().await,
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
