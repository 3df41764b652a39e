//! squall-h3, and hyperium's h3 over squall, as HTTP/3 servers, with libcurl and aioquic as
//! clients.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use h3::error::{Code, StreamError};
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use squall_h3::Body;
use tower_service::Service;

use crate::payload::{Payload, digest, transfer_size};
use crate::python::{Files, Peer};
use crate::setup::{ANY, Identity, run};

type Stream = h3::server::RequestStream<h3_squall::BidiStream<Bytes>, Bytes>;

/// The clients, as programs in this folder.
const CURL: &str = "curl/client.py";
const AIOQUIC: &str = "aioquic/http3.py";

/// aioquic moves some megabytes a second.
const MOST: u64 = 10_000_000;

fn size() -> u64 {
    transfer_size().min(MOST)
}

/// Which HTTP/3 implementation is used.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Server {
    Hyperium,
    Worker,
    Runtime,
}

const SERVERS: [Server; 3] = [Server::Hyperium, Server::Worker, Server::Runtime];

/// A server, a client of it, and the client's files.
fn serve(http: Server, client: &str) -> (squall::Endpoint, Peer, Files) {
    let identity = Identity::new();
    let tls = squall::server_tls(
        vec![identity.certificate.clone()],
        identity.key.clone_key().into(),
        &[b"h3"],
    );
    let config = squall::ServerConfig::new(tls.expect("squall's server TLS"));
    let server = squall::Endpoint::server(ANY, config).expect("squall's server");
    let port = server.local_addr().expect("an address").port().to_string();
    tokio::spawn({
        let (server, own) = (server.clone(), squall_h3::server::Builder::new());
        async move {
            match http {
                Server::Hyperium => server.serve(requests).await,
                Server::Worker => own.on_worker().serve(server, Answers).await,
                Server::Runtime => own.serve(server, Answers).await,
            }
        }
    });
    let files = Files::new(&identity);
    let peer = Peer::start(client, &[&port, &files.path("certificate.pem")]);
    (server, peer, files)
}

async fn requests(connection: squall::Connection) {
    let http = h3_squall::Connection::new(connection.clone());
    let mut http = h3::server::Connection::new(http).await.expect("HTTP/3");
    while let Ok(Some(request)) = http.accept().await {
        connection.spawn(async move {
            let (request, stream) = request.resolve_request().await.expect("a request");
            answer(&request, stream).await.expect("an answer");
        });
    }
}

/// `/bytes/N` is N bytes, `/echo` is the posted body, `/half` breaks off.
async fn answer(request: &Request<()>, mut stream: Stream) -> Result<(), StreamError> {
    let path = request.uri().path();
    if path == "/half" {
        stream.send_response(Response::new(())).await?;
        stream
            .send_data(Bytes::from_static(b"half of the "))
            .await?;
        // Handed to the transport before the stream is dropped; any part of it may arrive.
        return Ok(());
    }
    if let Some(len) = path.strip_prefix("/bytes/") {
        let len = len.parse().expect("a number");
        let body = Bytes::from(Payload { seed: len, len }.bytes());
        let head = Response::builder().header("content-length", len);
        stream.send_response(head.body(()).expect("a head")).await?;
        stream.send_data(body).await?;
        return stream.finish().await;
    }
    stream.send_response(Response::new(())).await?;
    let mut length = 0;
    while let Some(mut data) = stream.recv_data().await? {
        let data = data.copy_to_bytes(data.remaining());
        length += data.len();
        stream.send_data(data).await?;
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("x-length", length.into());
    stream.send_trailers(trailers).await?;
    stream.finish().await
}

/// The same with squall-h3.
#[derive(Clone)]
struct Answers;

impl Service<Request<Body>> for Answers {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let path = request.uri().path();
        let body = if path == "/half" {
            Answer::Half(Some(Bytes::from_static(b"half of the ")))
        } else if let Some(len) = path.strip_prefix("/bytes/") {
            let len = len.parse().expect("a number");
            Answer::Whole(Body::from(Bytes::from(Payload { seed: len, len }.bytes())))
        } else {
            Answer::Echo(Some(request.into_body()), 0)
        };
        ready(Ok(Response::new(body)))
    }
}

/// The body of an answer.
enum Answer {
    Whole(Body),
    Half(Option<Bytes>),
    /// The posted body, and how much of it arrived.
    Echo(Option<Body>, usize),
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match &mut *self {
            Self::Whole(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::Half(half) => Poll::Ready(Some(match half.take() {
                Some(half) => Ok(Frame::data(half)),
                None => Err("the other half is missing".into()),
            })),
            Self::Echo(body, length) => {
                let Some(posted) = body else {
                    return Poll::Ready(None);
                };
                let frame = std::task::ready!(Pin::new(posted).poll_frame(cx)?);
                let Some(frame) = frame else {
                    *body = None;
                    let mut trailers = HeaderMap::new();
                    trailers.insert("x-length", (*length).into());
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                };
                *length += frame.data_ref().map_or(0, Bytes::len);
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }
}

#[test]
fn libcurl_gets_and_posts() {
    for server in SERVERS {
        libcurl_gets_and_posts_at(server);
    }
}

fn libcurl_gets_and_posts_at(server: Server) {
    run(size(), async move {
        let (_server, mut curl, _files) = serve(server, CURL);
        // One connection for all, opened by the first.
        let mut opened = 1;
        for len in [0, 1, 2047, 2048, size()] {
            curl.command(&format!("get /bytes/{len}"));
            let wanted = Payload { seed: len, len }.digest();
            assert_eq!(
                curl.line("answer"),
                format!("200 3 {opened} {len} {wanted}")
            );
            opened = 0;
            curl.command(&format!("post /echo {len}"));
            let sent = curl.line("sent");
            assert_eq!(curl.line("answer"), format!("200 3 0 {sent}"));
        }
        for n in 0..50 {
            curl.command(&format!("post /echo {n}"));
            let sent = curl.line("sent");
            assert_eq!(curl.line("answer"), format!("200 3 0 {sent}"));
        }
    });
}

#[test]
fn aioquic_gets_and_posts() {
    for server in SERVERS {
        aioquic_gets_and_posts_at(server);
    }
}

fn aioquic_gets_and_posts_at(server: Server) {
    run(size(), async move {
        let (server, mut aioquic, _files) = serve(server, AIOQUIC);
        for len in [0, 1, 2047, 2048, size()] {
            aioquic.command(&format!("get /bytes/{len}"));
            let wanted = Payload { seed: len, len }.digest();
            assert_eq!(aioquic.line("answer"), format!("200 {len} {wanted} -"));
            aioquic.command(&format!("post /echo {len}"));
            let sent = aioquic.line("sent");
            let wanted = format!("200 {sent} x-length={len}");
            assert_eq!(aioquic.line("answer"), wanted);
        }
        server.close(Code::H3_NO_ERROR.value(), b"that was all");
        assert_eq!(aioquic.line("closed"), "256 that was all");
    });
}

/// A handler that returns before the end of its body.
#[test]
fn a_truncated_response_is_an_error() {
    for server in SERVERS {
        a_truncated_response_is_an_error_at(server);
    }
}

fn a_truncated_response_is_an_error_at(server: Server) {
    run(0, async move {
        let (_server, mut aioquic, _others) = serve(server, AIOQUIC);
        aioquic.command("get /half");
        let failed = aioquic.line("failed");
        let code = failed.split(' ').next();
        let wanted = match server {
            Server::Hyperium => Code::H3_REQUEST_CANCELLED,
            Server::Worker | Server::Runtime => Code::H3_INTERNAL_ERROR,
        };
        let wanted = wanted.value().to_string();
        assert_eq!(code, Some(wanted.as_str()), "{failed}");

        let (_server, mut curl, _files) = serve(server, CURL);
        curl.command("get /half");
        let failed = curl.line("failed");
        // CURLE_HTTP3: an HTTP/3 error, not a short body.
        assert!(failed.starts_with("95 "), "{failed}");
        // The connection and its other streams continue.
        for peer in [&mut aioquic, &mut curl] {
            peer.command("get /bytes/5");
            assert!(
                peer.line("answer")
                    .contains(&digest(&Payload { seed: 5, len: 5 }.bytes()))
            );
        }
    });
}
