//! The server's process, and clients of it.

use std::io::{BufRead as _, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{CertificateDer, ServerName};
use squall::{Builder, ClientConfig, Endpoint};
use squall_yard::certificate;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Upload = UnsyncBoxBody<Bytes, BoxError>;

/// A complete body.
pub(crate) fn whole(content: impl Into<Bytes>) -> Upload {
    Full::new(content.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// A test's folder, removed on drop.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("serve-{}-{count}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, content).expect("a file");
        path.to_str().expect("text").to_owned()
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().expect("text")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Writes a new certificate and key, and returns the certificate.
pub(crate) fn renew(folder: &Folder) -> Vec<u8> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
    folder.write("cert.pem", made.cert.pem());
    folder.write("key.pem", made.signing_key.serialize_pem());
    made.cert.der().to_vec()
}

/// A running `squall serve`; ends with the test.
pub(crate) struct Server {
    pub(crate) process: Child,
    pub(crate) stdout: Lines<BufReader<ChildStdout>>,
    pub(crate) stderr: Lines<BufReader<ChildStderr>>,
    pub(crate) port: u16,
    /// What it printed before it listened.
    pub(crate) before: Vec<String>,
}

impl Server {
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::at(0, args)
    }

    /// A server on this port; 0: the system chooses one.
    pub(crate) fn at(port: u16, args: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_squall"))
            .args(["serve", "--listen", &format!("127.0.0.1:{port}")])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut stdout = BufReader::new(process.stdout.take().expect("piped")).lines();
        let stderr = BufReader::new(process.stderr.take().expect("piped")).lines();
        let mut before = Vec::new();
        let port = loop {
            let line = stdout.next().expect("the server listens").expect("text");
            if let Some(address) = line.strip_prefix("listening on 127.0.0.1:") {
                let port = address.split(' ').next().expect("a port");
                break port.parse().expect("a port");
            }
            before.push(line);
        };
        Self {
            process,
            stdout,
            stderr,
            port,
            before,
        }
    }

    /// Asks it to end, and waits until it has.
    pub(crate) fn stop(mut self) -> Option<i32> {
        crate::common::signal(&self.process, "TERM");
        self.process.wait().expect("the server exits").code()
    }

    /// A TLS connection that offers one application protocol.
    pub(crate) async fn tls(&self, alpn: &[u8]) -> TlsStream<TcpStream> {
        let mut config = certificate::trusting_anyone(squall::provider()).expect("a configuration");
        config.alpn_protocols = vec![alpn.to_vec()];
        let tcp = TcpStream::connect(("127.0.0.1", self.port))
            .await
            .expect("the server listens");
        let name = ServerName::try_from("localhost").expect("a name");
        let connected = TlsConnector::from(Arc::new(config))
            .connect(name, tcp)
            .await;
        connected.expect("a handshake")
    }

    /// An HTTP/3 connection, on the same port.
    pub(crate) async fn quic(
        &self,
        events: Arc<dyn squall::Events>,
    ) -> (squall_h3::client::SendRequest, Endpoint) {
        let mut config = certificate::trusting_anyone(squall::provider()).expect("a configuration");
        config.alpn_protocols = vec![b"h3".to_vec()];
        config.enable_early_data = true;
        let builder = Builder::new(([127, 0, 0, 1], 0).into())
            .client(ClientConfig::new(config))
            .events(events);
        let endpoint = builder.bind().expect("a port");
        (self.quic_again(&endpoint).await, endpoint)
    }

    /// Another connection of a client, with early data if there is a ticket.
    pub(crate) async fn quic_again(&self, endpoint: &Endpoint) -> squall_h3::client::SendRequest {
        let address = ([127, 0, 0, 1], self.port).into();
        let connecting = endpoint.connect(address, "localhost").expect("a name");
        let connection = match connecting.into_0rtt().await {
            Ok((connection, _)) => connection,
            Err(connecting) => connecting.await.expect("a handshake"),
        };
        squall_h3::client::handshake(connection)
    }

    pub(crate) async fn connect(&self, version: Version) -> Client {
        match version {
            Version::Http1 => {
                let io = TokioIo::new(self.tls(b"http/1.1").await);
                let (sender, connection) = http1::handshake(io).await.expect("a connection");
                tokio::spawn(connection.with_upgrades());
                Client::Http1(sender)
            }
            Version::Http3 => Client::Http3(self.quic(Arc::new(Unobserved)).await),
            Version::Http2 => {
                let io = TokioIo::new(self.tls(b"h2").await);
                let (sender, connection) = http2::handshake(TokioExecutor::new(), io)
                    .await
                    .expect("a connection");
                tokio::spawn(connection);
                Client::Http2(sender)
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The end-entity certificate that a server showed.
pub(crate) fn certificate_of(tls: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    let chain = tls.get_ref().1.peer_certificates().expect("a chain");
    chain[0].clone().into_owned()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    Http2,
    Http3,
}

pub(crate) const ALL: [Version; 3] = [Version::Http1, Version::Http2, Version::Http3];

/// Ignores the events of a connection.
struct Unobserved;

impl squall::Events for Unobserved {}

/// A connection of hyper's client, or of squall-h3's.
pub(crate) enum Client {
    Http1(http1::SendRequest<Upload>),
    Http2(http2::SendRequest<Upload>),
    /// With the endpoint that it runs on.
    Http3((squall_h3::client::SendRequest, Endpoint)),
}

/// A response's body, of any client.
pub(crate) type Download = UnsyncBoxBody<Bytes, BoxError>;

impl Client {
    pub(crate) async fn send(
        &mut self,
        mut request: Request<Upload>,
    ) -> Result<Response<Download>, BoxError> {
        if !matches!(self, Self::Http1(_)) && request.uri().authority().is_none() {
            let uri = format!("https://localhost{}", request.uri());
            *request.uri_mut() = uri.parse().expect("an URI");
        }
        let response = match self {
            Self::Http3((sender, _)) => {
                let response = sender.send(request).await?;
                return Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()));
            }
            Self::Http1(sender) => {
                let host = "localhost".parse().expect("a value");
                request.headers_mut().entry("host").or_insert(host);
                sender.ready().await?;
                sender.send_request(request).await?
            }
            Self::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
        };
        Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
    }

    /// Status, fields and content of a GET.
    pub(crate) async fn get(
        &mut self,
        path: &str,
        fields: &[(&str, &str)],
    ) -> (u16, HeaderMap, Bytes) {
        let mut request = Request::get(path);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request = request.body(whole("")).expect("a request");
        all(self.send(request).await.expect("a response")).await
    }
}

pub(crate) async fn all(response: Response<Download>) -> (u16, HeaderMap, Bytes) {
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("a body").to_bytes();
    (head.status.as_u16(), head.headers, body)
}

pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(future)
}
