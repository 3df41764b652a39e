//! A WebTransport server that echoes what it receives:
//! `cargo run -p squall-h3 --example webtransport_echo`. It prints a script for a page's console.

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;

use http::{Request, Response, StatusCode};
use rcgen::{CertificateParams, KeyPair};
use squall::{Builder, Endpoint, ServerConfig};
use squall_h3::webtransport::{self, RecvStream, SendStream, Session, SessionBody, StreamError};
use squall_h3::{Body, Config, server};
use time::{Duration, OffsetDateTime};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (endpoint, certificate) = bind(([127, 0, 0, 1], 4433).into())?;
    let bytes: Vec<String> = certificate.iter().map(u8::to_string).collect();
    println!(
        "const value = await crypto.subtle.digest(\"SHA-256\", Uint8Array.of({}));\n\
         const session = new WebTransport(\"https://127.0.0.1:4433/\", \
         {{serverCertificateHashes: [{{algorithm: \"sha-256\", value}}]}});\n\
         await session.ready;",
        bytes.join(",")
    );
    serve(endpoint).await;
    Ok(())
}

/// Returns an endpoint and its certificate. Browsers accept a hash in place of a chain of trust if
/// the certificate is valid for at most two weeks.
pub(crate) fn bind(address: SocketAddr) -> Result<(Endpoint, Vec<u8>), Box<dyn Error>> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(["localhost".to_owned()])?;
    let now = OffsetDateTime::now_utc();
    (params.not_before, params.not_after) = (now - Duration::hours(1), now + Duration::days(13));
    let certificate = params.self_signed(&key)?.der().clone();
    let der = certificate.to_vec();
    let key = squall::rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der());
    let tls = squall::server_tls(vec![certificate], key.into(), &[b"h3"])?;
    let endpoint = Builder::new(address)
        .server(ServerConfig::new(tls))
        .bind()?;
    Ok((endpoint, der))
}

/// Serves sessions until the endpoint is closed.
pub(crate) async fn serve(endpoint: Endpoint) {
    let config = Config::new().webtransport(16);
    let service = tower::service_fn(answer);
    server::Builder::new()
        .config(config)
        .serve(endpoint, service)
        .await;
}

async fn answer(request: Request<Body>) -> Result<Response<SessionBody>, Infallible> {
    Ok(match webtransport::accept(request) {
        Ok((response, session)) => {
            tokio::spawn(echo(session));
            response
        }
        Err(_) => {
            let mut response = Response::new(SessionBody::default());
            *response.status_mut() = StatusCode::NOT_FOUND;
            response
        }
    })
}

async fn echo(session: Session) {
    loop {
        tokio::select! {
            Some((send, recv)) = session.accept_bi() => {
                tokio::spawn(copy(send, recv));
            }
            Some(recv) = session.accept_uni() => {
                let session = session.clone();
                tokio::spawn(async move { copy(session.open_uni().await?, recv).await });
            }
            Some(datagram) = session.recv_datagram() => {
                // A datagram may be lost anywhere; here, for lack of room.
                let _ = session.send_datagram(&datagram);
            }
            else => break,
        }
    }
}

async fn copy(mut send: SendStream, mut recv: RecvStream) -> Result<(), StreamError> {
    while let Some(chunk) = recv.read_chunk(usize::MAX).await? {
        send.write_chunk(chunk).await?;
    }
    send.finish()
}
