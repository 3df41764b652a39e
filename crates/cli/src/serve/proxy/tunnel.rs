//! Upgrades: WebSocket over HTTP/1.1 (RFC 6455), and over extended CONNECT in HTTP/2 (RFC 8441) and
//! HTTP/3 (RFC 9220); other protocols through HTTP/1.1's Upgrade.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, Version};
use http_body_util::BodyExt as _;
use http_body_util::channel::{Channel, Sender};
use hyper::body::{Frame, Incoming};
use hyper::ext::Protocol;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};

use crate::serve::body::{Body, BoxError};
use crate::serve::certificate::base64;
use crate::serve::files::short;
use crate::serve::peer::Peer;
use crate::serve::watch::{Activity, Kind, Limits, Verdict, Watched, now_ms};

/// How long a tunnel may be silent: applications that need one for longer send pings.
const SILENCE: Duration = Duration::from_secs(3_600);

/// Where the client's bytes come from and go to.
enum Client {
    /// The connection, or an HTTP/2 stream, as upgraded by hyper.
    Stream(OnUpgrade),
    /// The bodies of the request and its response, over HTTP/3.
    Bodies,
}

/// The most bytes read from the application at a time, over HTTP/3.
const PIECE: usize = 16 << 10;

/// A client that wants to change protocols.
pub(super) struct Upgrade {
    protocol: HeaderValue,
    client: Client,
    /// Extended CONNECT, which is accepted with 200.
    is_connect: bool,
    /// Whether the client has sent a key of WebSocket. With extended CONNECT only gateways do, such
    /// as Envoy, which pass on their clients' keys and the application's answers to them.
    has_key: bool,
}

impl Upgrade {
    /// The upgrade that a request asks for, if any; its fields are about to be removed.
    ///
    /// # Errors
    /// The status for a CONNECT that is not an upgrade: this is not a forward proxy.
    pub(super) fn of(head: &mut Parts) -> Result<Option<Self>, StatusCode> {
        let is_connect = head.method == Method::CONNECT;
        let protocol = if is_connect {
            let http2 = head.extensions.get().map(Protocol::as_str);
            let http3 = head.extensions.get().map(squall_h3::Protocol::as_str);
            let protocol = http2.or(http3).and_then(|protocol| protocol.parse().ok());
            Some(protocol.ok_or(StatusCode::METHOD_NOT_ALLOWED)?)
        } else {
            asked(head)
        };
        let client = match head.extensions.remove::<OnUpgrade>() {
            Some(stream) => Some(Client::Stream(stream)),
            None => is_connect.then_some(Client::Bodies),
        };
        Ok(protocol.zip(client).map(|(protocol, client)| Self {
            protocol,
            client,
            is_connect,
            has_key: head.headers.contains_key(SEC_WEBSOCKET_KEY),
        }))
    }

    /// Turns the request into an upgrade over HTTP/1.1.
    pub(super) fn ask(&self, head: &mut Parts) {
        head.headers
            .insert(CONNECTION, HeaderValue::from_static("upgrade"));
        head.headers.insert(UPGRADE, self.protocol.clone());
        if self.is_connect && !self.has_key {
            // RFC 8441 §5: HTTP/2 has no key. It need not be secret: it only shows that the
            // application speaks WebSocket, and no cache lies between.
            static COUNT: AtomicU64 = AtomicU64::new(0);
            let count = u128::from(COUNT.fetch_add(1, Ordering::Relaxed));
            let key = base64(&(count << 64 | u128::from(now_ms())).to_be_bytes());
            if let Ok(key) = key.parse() {
                head.headers.insert(SEC_WEBSOCKET_KEY, key);
            }
        }
        if self.is_connect {
            head.method = Method::GET;
        }
    }

    /// Connects the two ends if the application agreed, and forwards its response.
    pub(super) fn finish<B>(
        self,
        mut response: Response<Incoming>,
        body: B,
        peer: Arc<Peer>,
        limit: Duration,
    ) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return super::answer(response, limit);
        }
        let application = hyper::upgrade::on(&mut response);
        let agreed = response.headers().get(UPGRADE).cloned();
        let (mut head, _) = response.into_parts();
        if !agreed.is_some_and(|agreed| same_protocol(&agreed, &self.protocol)) {
            return short(StatusCode::BAD_GATEWAY);
        }
        super::fields::to_client(&mut head.headers);
        if self.is_connect {
            head.status = StatusCode::OK;
            if !self.has_key {
                head.headers.remove(SEC_WEBSOCKET_ACCEPT);
            }
        } else {
            head.headers
                .insert(CONNECTION, HeaderValue::from_static("upgrade"));
            head.headers.insert(UPGRADE, self.protocol);
        }
        head.version = Version::default();
        peer.activity.start_tunnel();
        let open = Open(peer);
        let mut sent = Body::Empty;
        // Either end may go away before they are connected; then there is nothing to connect.
        match self.client {
            Client::Stream(client) => drop(tokio::spawn(async move {
                if let (Ok(client), Ok(application)) = (client.await, application.await) {
                    connect(TokioIo::new(client), TokioIo::new(application)).await;
                }
                drop(open);
            })),
            Client::Bodies => {
                let (sender, received) = Channel::<Bytes, BoxError>::new(1);
                sent = Body::Stream(received.boxed_unsync());
                tokio::spawn(async move {
                    if let Ok(application) = application.await {
                        connect_bodies(body, sender, TokioIo::new(application)).await;
                    }
                    drop(open);
                });
            }
        }
        Response::from_parts(head, sent)
    }
}

/// An open tunnel: while it exists, its connection counts and may be silent.
struct Open(Arc<Peer>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.activity.finish_tunnel();
    }
}

/// The protocol of an HTTP/1.1 Upgrade, if the connection asks for it (RFC 9110 §7.8).
fn asked(head: &mut Parts) -> Option<HeaderValue> {
    let asks = head.headers.get_all(CONNECTION).iter().any(|value| {
        let mut options = value.to_str().unwrap_or_default().split(',');
        options.any(|option| option.trim().eq_ignore_ascii_case("upgrade"))
    });
    if !asks || head.version != Version::HTTP_11 {
        return None;
    }
    // A connection that speaks TLS does not turn into HTTP/2 without TLS.
    let protocol = head.headers.get(UPGRADE)?.clone();
    let is_http = protocol.as_bytes().to_ascii_lowercase().starts_with(b"h2");
    (!is_http).then_some(protocol)
}

fn same_protocol(a: &HeaderValue, b: &HeaderValue) -> bool {
    a.as_bytes().eq_ignore_ascii_case(b.as_bytes())
}

/// Copies in both directions until both have ended, or neither has moved for too long.
async fn connect<A, B>(client: A, application: B)
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let activity = Arc::new(Activity::new());
    let mut client = Watched::new(client, Arc::clone(&activity), Kind::Tunnel);
    let mut application = Watched::new(application, Arc::clone(&activity), Kind::Tunnel);
    let copying = async {
        // An error means that either was closed or reset; both are dropped.
        let _ = copy_bidirectional(&mut client, &mut application).await;
    };
    until_silent(&activity, copying).await;
}

/// As [`connect`], if the client's end consists of two bodies.
async fn connect_bodies<B, A>(mut body: B, mut sender: Sender<Bytes, BoxError>, application: A)
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
    A: AsyncRead + AsyncWrite + Unpin,
{
    let activity = Arc::new(Activity::new());
    let application = Watched::new(application, Arc::clone(&activity), Kind::Tunnel);
    let (mut reader, mut writer) = tokio::io::split(application);
    let upload = async {
        while let Some(frame) = body.frame().await.map(Result::ok) {
            activity.progress();
            match frame.map(Frame::into_data) {
                Some(Ok(mut data)) => {
                    if writer.write_all_buf(&mut data).await.is_err() {
                        return;
                    }
                }
                // Trailers have no place in a tunnel.
                Some(Err(_)) => {}
                // The client has reset its stream.
                None => return,
            }
        }
        // The other direction may continue.
        if writer.shutdown().await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    let download = async {
        loop {
            let mut data = BytesMut::with_capacity(PIECE);
            match reader.read_buf(&mut data).await {
                Ok(0) => return,
                Ok(_) if sender.send_data(data.freeze()).await.is_ok() => {}
                Ok(_) => return,
                Err(error) => return sender.abort(error.into()),
            }
        }
    };
    let both = async {
        tokio::select! {
            () = upload => {}
            () = download => {}
        }
    };
    until_silent(&activity, both).await;
}

/// Runs a tunnel until it ends, or until nothing moves for too long.
async fn until_silent(activity: &Activity, tunnel: impl Future<Output = ()>) {
    let limits = Limits {
        header: SILENCE,
        idle: SILENCE,
        send: SILENCE,
        body: SILENCE,
        stall: SILENCE,
    };
    let mut tunnel = std::pin::pin!(tunnel);
    loop {
        let Verdict::Fine(due) = activity.judge(now_ms(), &limits) else {
            return;
        };
        let left = Duration::from_millis(due.saturating_sub(now_ms()));
        tokio::select! {
            biased;
            () = &mut tunnel => return,
            () = tokio::time::sleep(left) => {}
        }
    }
}
