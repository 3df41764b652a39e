//! Gets a page over HTTP/3, or posts standard input.
//!
//! ```sh
//! cargo build -p h3-squall --examples; cd target/debug/examples
//! ./client https://localhost:4433/ certificate.pem
//! echo hello | ./client --post https://localhost:4433/ certificate.pem
//! ```
//! Only this certificate is trusted.

use std::error::Error;

use h3_squall::bytes::{Buf, Bytes};
use http::{Request, Uri};
use squall::ClientConfig;
use squall::rustls::RootCertStore;
use squall::rustls::pki_types::CertificateDer;
use squall::rustls::pki_types::pem::PemObject;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let post = arguments.first().is_some_and(|first| first == "--post");
    arguments.drain(..usize::from(post));
    let [uri, certificate] = arguments.as_slice() else {
        return Err("usage: client [--post] URI CERTIFICATE".into());
    };
    let uri: Uri = uri.parse()?;
    let host = uri.host().ok_or("the URI has no host")?;
    let to = (host, uri.port_u16().unwrap_or(443));
    let to = tokio::net::lookup_host(to).await?.next();
    let to = to.ok_or("the host has no address")?;

    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificate)?)?;
    let config = ClientConfig::new(squall::client_tls(roots, &[b"h3"])?);
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let endpoint = squall::Builder::new(any.parse()?).client(config).bind()?;
    let connection = endpoint.connect(to, host)?.await?;

    let (mut http, mut requests) = h3::client::new(h3_squall::Connection::new(connection)).await?;
    let driver = async move { std::future::poll_fn(|cx| http.poll_close(cx)).await };
    let exchange = async move {
        let method = if post { "POST" } else { "GET" };
        let request = Request::builder().method(method).uri(uri).body(())?;
        let mut stream = requests.send_request(request).await?;
        if post {
            let mut body = Vec::new();
            tokio::io::stdin().read_to_end(&mut body).await?;
            stream.send_data(Bytes::from(body)).await?;
        }
        stream.finish().await?;
        let response = stream.recv_response().await?;
        eprintln!("{:?} {}", response.version(), response.status());
        let mut out = tokio::io::stdout();
        while let Some(mut data) = stream.recv_data().await? {
            out.write_all_buf(&mut data).await?;
            debug_assert!(!data.has_remaining());
        }
        out.flush().await?;
        // Dropping the last request handle here ends the connection.
        Ok::<_, Box<dyn Error>>(())
    };
    let (end, result) = tokio::join!(driver, exchange);
    result?;
    endpoint.wait_idle().await;
    if end.is_h3_no_error() {
        Ok(())
    } else {
        Err(end.into())
    }
}
