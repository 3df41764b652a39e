//! HTTP/3 on both ends.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri};
use http_body_util::BodyExt as _;
use squall_h3::Body;
use squall_h3::client::SendRequest;
use tokio::fs::File;
use tokio::io::AsyncWriteExt as _;
use tower_service::Service;

use crate::Outcome;
use crate::http09::plain;

/// The application protocol.
pub(crate) const ALPN: &[u8] = b"h3";

/// RFC 9114 §8.1: H3_NO_ERROR.
pub(crate) const NO_ERROR: u64 = 0x100;

/// Serves the files of a folder.
#[derive(Clone)]
pub(crate) struct Files(pub(crate) PathBuf);

impl Service<Request<Body>> for Files {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let folder = self.0.clone();
        Box::pin(async move { Ok(answer(&folder, request.uri().path()).await) })
    }
}

async fn answer(folder: &Path, path: &str) -> Response<Body> {
    let name = path.strip_prefix('/').unwrap_or_default();
    let content = match plain(name) {
        Ok(name) => tokio::fs::read(folder.join(name)).await.ok(),
        Err(_) => None,
    };
    let mut response = Response::new(Body::empty());
    match content {
        Some(content) => *response.body_mut() = Body::from(Bytes::from(content)),
        None => *response.status_mut() = StatusCode::NOT_FOUND,
    }
    response
}

/// Fetches a file. Returns its length.
pub(crate) async fn get(requests: &SendRequest, url: &Uri, to: &Path) -> Outcome<u64> {
    let request = Request::get(url.clone()).body(Body::empty())?;
    let response = requests.send(request).await?;
    if response.status() != StatusCode::OK {
        return Err(format!("{url}: {}", response.status()).into());
    }
    let mut body = response.into_body();
    let mut file = File::create(to).await?;
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            length += data.len() as u64;
            file.write_all(&data).await?;
        }
    }
    file.flush().await?;
    Ok(length)
}
