//! Upgrades: WebSocket over HTTP/1.1 (RFC 6455) and over HTTP/2's extended CONNECT (RFC 8441), and
//! other protocols by HTTP/1.1's Upgrade.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::ext::Protocol;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use crate::serve::body::Body;
use crate::serve::certificate::base64;
use crate::serve::files::short;
use crate::serve::peer::Peer;
use crate::serve::watch::{Activity, Kind, Limits, Verdict, Watched, now_ms};

/// How long a tunnel may be silent: applications that keep one for longer send pings.
const SILENCE: Duration = Duration::from_secs(3_600);

/// A client that wants to change protocols.
pub(super) struct Upgrade {
    protocol: HeaderValue,
    client: OnUpgrade,
    /// Extended CONNECT, which has no key and is accepted with 200.
    is_connect: bool,
}

impl Upgrade {
    /// The upgrade that a request asks for, if it does; its fields are about to be removed.
    ///
    /// # Errors
    /// The status of a CONNECT that is no upgrade: this is no forward proxy.
    pub(super) fn of(head: &mut Parts) -> Result<Option<Self>, StatusCode> {
        let is_connect = head.method == Method::CONNECT;
        let protocol = if is_connect {
            let protocol = head.extensions.get::<Protocol>();
            let protocol = protocol.and_then(|protocol| protocol.as_str().parse().ok());
            Some(protocol.ok_or(StatusCode::METHOD_NOT_ALLOWED)?)
        } else {
            asked(head)
        };
        let client = head.extensions.remove::<OnUpgrade>();
        Ok(protocol.zip(client).map(|(protocol, client)| Self {
            protocol,
            client,
            is_connect,
        }))
    }

    /// Makes the request one for an upgrade, over HTTP/1.1.
    pub(super) fn ask(&self, head: &mut Parts) {
        head.headers
            .insert(CONNECTION, HeaderValue::from_static("upgrade"));
        head.headers.insert(UPGRADE, self.protocol.clone());
        if self.is_connect {
            // RFC 8441 §5: HTTP/2 has no key. It need not be secret: it only shows that the
            // application speaks WebSocket, and no cache lies between.
            static COUNT: AtomicU64 = AtomicU64::new(0);
            let count = u128::from(COUNT.fetch_add(1, Ordering::Relaxed));
            let key = base64(&(count << 64 | u128::from(now_ms())).to_be_bytes());
            if let Ok(key) = key.parse() {
                head.headers.insert(SEC_WEBSOCKET_KEY, key);
            }
            head.method = Method::GET;
        }
    }

    /// Connects the two ends if the application has agreed, and passes its response on.
    pub(super) fn finish(
        self,
        mut response: Response<Incoming>,
        peer: Arc<Peer>,
        limit: Duration,
    ) -> Response<Body> {
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
            head.headers.remove(SEC_WEBSOCKET_ACCEPT);
        } else {
            head.headers
                .insert(CONNECTION, HeaderValue::from_static("upgrade"));
            head.headers.insert(UPGRADE, self.protocol);
        }
        head.version = Version::default();
        tokio::spawn(async move {
            // Either end may go away before; then there is nothing to connect.
            if let (Ok(client), Ok(application)) = (self.client.await, application.await) {
                connect(TokioIo::new(client), TokioIo::new(application)).await;
            }
            // Until now the connection counts.
            drop(peer);
        });
        Response::from_parts(head, Body::Empty)
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
    // A connection that speaks TLS does not turn into HTTP/2 without.
    let protocol = head.headers.get(UPGRADE)?.clone();
    let is_http = protocol.as_bytes().to_ascii_lowercase().starts_with(b"h2");
    (!is_http).then_some(protocol)
}

fn same_protocol(a: &HeaderValue, b: &HeaderValue) -> bool {
    a.as_bytes().eq_ignore_ascii_case(b.as_bytes())
}

/// Copies in both directions until both have ended, or neither has moved for long.
async fn connect<A, B>(client: A, application: B)
where
    A: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    B: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let activity = Arc::new(Activity::new());
    let limits = Limits {
        header: SILENCE,
        idle: SILENCE,
        send: SILENCE,
        stall: SILENCE,
    };
    let mut client = Watched::new(client, Arc::clone(&activity), Kind::Tunnel);
    let mut application = Watched::new(application, Arc::clone(&activity), Kind::Tunnel);
    let mut copying = std::pin::pin!(copy_bidirectional(&mut client, &mut application));
    loop {
        let Verdict::Fine(due) = activity.judge(now_ms(), &limits) else {
            return;
        };
        let left = Duration::from_millis(due.saturating_sub(now_ms()));
        tokio::select! {
            biased;
            // Either has been closed or reset; both are dropped.
            _ = &mut copying => return,
            () = tokio::time::sleep(left) => {}
        }
    }
}
