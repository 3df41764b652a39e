//! What tonic's own transports do besides carrying messages: deadlines, and the statuses that gRPC
//! gives to calls that a transport ends. With other transports, `Request::set_timeout` only sends a
//! field, and every error of the transport has the status `Unknown`.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::Request as AxumRequest;
use axum::middleware::Next;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use http_body_util::combinators::MapErr;
use squall_h3::client::SendRequest;
use squall_h3::{Body, Code, Error};
use tonic::Status;
use tower_service::Service;

/// A connection for tonic's clients.
#[derive(Clone)]
pub(crate) struct Channel(pub(crate) SendRequest);

type Received = MapErr<Body, fn(Error) -> Status>;

impl Service<Request<tonic::body::Body>> for Channel {
    type Response = Response<Received>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        let deadline = timeout_of(request.headers());
        let response = self.0.send(request);
        Box::pin(async move {
            let response = within(deadline, response).await?.map_err(status_of)?;
            Ok(response.map(|body| body.map_err(status_of as fn(_) -> _)))
        })
    }
}

/// For a server's routes: `router.layer(axum::middleware::from_fn(keep_deadline))`.
pub(crate) async fn keep_deadline(request: AxumRequest, next: Next) -> axum::response::Response {
    let deadline = timeout_of(request.headers());
    match within(deadline, next.run(request)).await {
        Ok(response) => response,
        Err(status) => status.into_http(),
    }
}

/// Waits for the head of a response, as tonic's transports do: what follows has no limit.
async fn within<F: Future>(limit: Option<Duration>, response: F) -> Result<F::Output, Status> {
    match limit {
        Some(limit) => tokio::time::timeout(limit, response)
            .await
            .map_err(|_| Status::deadline_exceeded("no response in time")),
        None => Ok(response.await),
    }
}

/// A digit string and a unit, for example `100m` for 100 ms.
fn timeout_of(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    let count: u32 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(3600) * count,
        "M" => Duration::from_secs(60) * count,
        "S" => Duration::from_secs(1) * count,
        "m" => Duration::from_millis(1) * count,
        "u" => Duration::from_micros(1) * count,
        "n" => Duration::from_nanos(1) * count,
        _ => return None,
    })
}

/// As gRPC maps the codes of HTTP/2 to its own.
fn status_of(error: Error) -> Status {
    let code = match &error {
        Error::Connect(_) | Error::Connection(_) => tonic::Code::Unavailable,
        error if error.is_unprocessed() => tonic::Code::Unavailable,
        Error::Stream(Code::H3_REQUEST_CANCELLED) => tonic::Code::Cancelled,
        Error::Stream(Code::H3_EXCESSIVE_LOAD) => tonic::Code::ResourceExhausted,
        _ => tonic::Code::Internal,
    };
    let mut status = Status::new(code, error.to_string());
    status.set_source(Arc::new(error));
    status
}
