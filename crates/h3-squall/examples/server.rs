//! An HTTP/3 server that answers every request with the body that it received.
//!
//! ```sh
//! cargo run -p h3-squall --example server -- 127.0.0.1:4433 certificate.pem
//! curl --http3-only --cacert certificate.pem --data hello https://localhost:4433/
//! ```
//! It generates a certificate for `localhost` at every start, and writes it to the named file.

use std::error::Error;
use std::net::SocketAddr;

use h3::error::StreamError;
use http::{Request, Response};
use squall::rustls::pki_types::PrivateKeyDer;
use squall::{Bytes, ServerConfig};

/// The server's side of an HTTP/3 connection, and of a request.
type Http = h3::server::Connection<h3_squall::Connection, Bytes>;
type Stream = h3::server::RequestStream<h3_squall::BidiStream<Bytes>, Bytes>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, certificate_file] = arguments.as_slice() else {
        return Err("usage: server ADDRESS:PORT CERTIFICATE".into());
    };
    let address: SocketAddr = address.parse()?;

    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    std::fs::write(certificate_file, made.cert.pem())?;
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let tls = squall::server_tls(vec![made.cert.der().clone()], key, &[b"h3"])?;

    let endpoint = squall::Builder::new(address)
        .server(ServerConfig::new(tls))
        .bind()?;
    println!("listening on {}", endpoint.local_addr()?);
    // Each connection's handler runs on the thread of its own worker.
    endpoint.serve(handle).await;
    Ok(())
}

async fn handle(connection: squall::Connection) {
    let from = connection.remote_address();
    if let Err(error) = requests(connection).await {
        eprintln!("{from}: {error}");
    }
}

async fn requests(connection: squall::Connection) -> Result<(), Box<dyn Error>> {
    let mut http = Http::new(h3_squall::Connection::new(connection.clone())).await?;
    loop {
        let request = match http.accept().await {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(()),
            Err(end) if end.is_h3_no_error() => return Ok(()),
            Err(end) => return Err(end.into()),
        };
        connection.spawn(async move {
            let answered = match request.resolve_request().await {
                Ok((request, stream)) => answer(&request, stream).await,
                Err(error) => Err(error),
            };
            if let Err(error) = answered {
                eprintln!("{error}");
            }
        });
    }
}

/// Sends the body back as it arrives. If this returns early, the client sees a reset.
async fn answer(request: &Request<()>, stream: Stream) -> Result<(), StreamError> {
    println!("{} {}", request.method(), request.uri());
    let (mut send, mut recv) = stream.split();
    send.send_response(Response::new(())).await?;
    while let Some(mut data) = recv.recv_data().await? {
        use h3_squall::bytes::Buf;
        // Received data is `Bytes`: this takes it out without a copy.
        let data = data.copy_to_bytes(data.remaining());
        send.send_data(data).await?;
    }
    if let Some(trailers) = recv.recv_trailers().await? {
        send.send_trailers(trailers).await?;
    }
    send.finish().await
}
