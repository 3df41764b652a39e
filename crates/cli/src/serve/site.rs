//! The path of every request, whatever its transport: it is counted, checked, answered from the
//! files or by the application, and logged when its response is complete.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use http::header::{
    ALT_SVC, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HOST, REFERER, USER_AGENT,
};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::{Frame, SizeHint};
use squall_h3::RequestHead;
use squall_h3::server::Reply;

use super::access::{Line, Log};
use super::body::{Body, BoxError};
use super::fields::add_missing;
use super::files::{Answer, Files, short};
use super::metrics::{Metrics, Protocol};
use super::peer::Peer;
use super::proxy::Proxy;
use super::standstill;

/// Where responses come from.
pub(crate) enum Content {
    Files(Files),
    Application(Proxy),
}

/// The content, its metrics and log, and additional fields.
pub(crate) struct Site {
    pub(crate) content: Content,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) log: Option<Log>,
    /// Fields added to responses that lack them.
    pub(crate) extra_fields: Vec<(HeaderName, HeaderValue)>,
    /// Where HTTP/3 is served, for responses over TCP (RFC 7838).
    pub(crate) alt_svc: Option<HeaderValue>,
    /// The path of the metrics, if they are on this port.
    pub(crate) metrics_path: Option<String>,
}

/// The service of a connection.
#[derive(Clone)]
pub(crate) struct Service {
    site: Arc<Site>,
    peer: Arc<Peer>,
}

impl Service {
    pub(crate) fn new(site: Arc<Site>, peer: Arc<Peer>) -> Self {
        Self { site, peer }
    }

    /// Answers a request.
    pub(crate) fn respond<B>(&self, request: Request<B>) -> Responding
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let exchange = Exchange::start(&self.site, &self.peer, &request);
        let (head, body) = request.into_parts();
        let answer = if let Some(response) = self.site.refuse(&head) {
            Answer::Ready(response)
        } else if self.site.metrics_path.as_deref() == Some(head.uri.path()) {
            Answer::Ready(metrics(&self.site.metrics, &head.method))
        } else {
            match &self.site.content {
                Content::Files(files) => {
                    let uri = &head.uri;
                    files.respond(&head.method, uri.path(), uri.query(), &head.headers)
                }
                Content::Application(proxy) => {
                    let body = Received {
                        body,
                        peer: Arc::clone(&self.peer),
                    };
                    let peer = Arc::clone(&self.peer);
                    Answer::Later(Box::pin(proxy.clone().respond(head, body, peer)))
                }
            }
        };
        Responding {
            answer: Some(answer),
            exchange: Some(exchange),
        }
    }
}

impl<B> tower_service::Service<Request<B>> for Service
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    type Response = Response<Sent>;
    type Error = Infallible;
    type Future = Responding;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Responding {
        self.respond(request)
    }
}

impl Site {
    /// The response to a request that is refused without looking for content.
    fn refuse(&self, head: &Parts) -> Option<Response<Body>> {
        // RFC 9112 §3.2: exactly one Host.
        let hosts = || head.headers.get_all(HOST).iter().count();
        let is_bad = match head.version {
            Version::HTTP_11 => hosts() != 1,
            _ => hosts() > 1,
        };
        is_bad.then(|| short(StatusCode::BAD_REQUEST))
    }

    /// The response to an HTTP/3 request whose head is all that is needed: for a file in memory,
    /// which costs a look-up. It is counted but not logged: with a log, there is no such response.
    pub(crate) fn reply(&self, head: &RequestHead<'_>, peer: &Peer) -> Option<Reply> {
        let Content::Files(files) = &self.content else {
            return None;
        };
        let is_metrics = self.metrics_path.is_some() && head.path() == self.metrics_path.as_deref();
        if self.log.is_some() || is_metrics {
            return None;
        }
        let (reply, len) = files.reply(head, &self.extra_fields)?;
        peer.activity.progress();
        self.metrics.started(peer.protocol);
        self.metrics
            .finished(peer.protocol, Some(StatusCode::OK), len);
        Some(reply)
    }

    /// Adds the fields of every response, and removes the content of a response to HEAD: over
    /// HTTP/2, hyper would send it.
    fn complete(&self, exchange: &Exchange, response: &mut Response<Body>) {
        if exchange.is_head {
            *response.body_mut() = Body::Empty;
        }
        let fields = response.headers_mut();
        add_missing(fields, &self.extra_fields);
        if let Some(alt_svc) = &self.alt_svc
            && exchange.peer.protocol != Protocol::Http3
        {
            fields.insert(ALT_SVC, alt_svc.clone());
        }
    }
}

/// The metrics as a response.
pub(crate) fn metrics(metrics: &Metrics, method: &Method) -> Response<Body> {
    if method != Method::GET && method != Method::HEAD {
        return short(StatusCode::METHOD_NOT_ALLOWED);
    }
    let text = metrics.text();
    let mut response = Response::new(Body::Empty);
    let fields = response.headers_mut();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    fields.insert(CONTENT_TYPE, kind);
    fields.insert(CONTENT_LENGTH, text.len().into());
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if method == Method::GET {
        *response.body_mut() = Body::Whole(text.into());
    }
    response
}

/// A response in progress.
pub(crate) struct Responding {
    answer: Option<Answer>,
    exchange: Option<Exchange>,
}

impl Future for Responding {
    type Output = Result<Response<Sent>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut response = match self.answer.take() {
            Some(Answer::Ready(response)) => response,
            Some(Answer::Later(mut later)) => match later.as_mut().poll(cx) {
                Poll::Ready(response) => response,
                Poll::Pending => {
                    self.answer = Some(Answer::Later(later));
                    return Poll::Pending;
                }
            },
            // Polled again after completion, against the contract of futures.
            None => return Poll::Pending,
        };
        let mut exchange = self.exchange.take();
        if let Some(exchange) = &mut exchange {
            exchange.site.complete(exchange, &mut response);
            exchange.status = Some(response.status());
        }
        Poll::Ready(Ok(response.map(|body| Sent { body, exchange })))
    }
}

/// A request and its response, from the first to the last byte. Dropped when all is sent, or when
/// the client has gone away.
pub(crate) struct Exchange {
    site: Arc<Site>,
    peer: Arc<Peer>,
    is_head: bool,
    status: Option<StatusCode>,
    sent: u64,
    /// The data for the log, if there is one.
    logged: Option<Box<Logged>>,
}

struct Logged {
    at: SystemTime,
    since: Instant,
    method: Method,
    host: String,
    uri: String,
    referer: String,
    user_agent: String,
}

impl Exchange {
    fn start<B>(site: &Arc<Site>, peer: &Arc<Peer>, request: &Request<B>) -> Self {
        site.metrics.started(peer.protocol);
        peer.activity.start();
        let logged = site.log.as_ref().map(|_| {
            let field = |name| {
                let value = request.headers().get(name).map(HeaderValue::as_bytes);
                String::from_utf8_lossy(value.unwrap_or_default()).into_owned()
            };
            let uri = request.uri();
            let path = uri.path_and_query();
            Box::new(Logged {
                at: SystemTime::now(),
                since: Instant::now(),
                method: request.method().clone(),
                host: uri
                    .authority()
                    .map_or_else(|| field(HOST), ToString::to_string),
                uri: path.map_or_else(|| uri.path().to_owned(), ToString::to_string),
                referer: field(REFERER),
                user_agent: field(USER_AGENT),
            })
        });
        Self {
            site: Arc::clone(site),
            peer: Arc::clone(peer),
            is_head: request.method() == Method::HEAD,
            status: None,
            sent: 0,
            logged,
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let metrics = &self.site.metrics;
        metrics.finished(self.peer.protocol, self.status, self.sent);
        self.peer.activity.finish();
        let (Some(log), Some(logged)) = (&self.site.log, &self.logged) else {
            return;
        };
        let is_written = log.write(&Line {
            at: logged.at,
            remote: self.peer.address.ip(),
            method: logged.method.as_str(),
            host: &logged.host,
            uri: &logged.uri,
            version: self.peer.protocol.version(),
            status: self.status.map_or(0, |status| status.as_u16()),
            bytes: self.sent,
            took: logged.since.elapsed(),
            referer: &logged.referer,
            user_agent: &logged.user_agent,
        });
        if !is_written {
            metrics.log_lines_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The body of a response, counting the bytes sent.
pub(crate) struct Sent {
    body: Body,
    exchange: Option<Exchange>,
}

impl http_body::Body for Sent {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        standstill::note(polled.is_pending());
        let frame = ready!(polled);
        if let Some(exchange) = &mut self.exchange {
            if let Some(Ok(frame)) = &frame {
                exchange.sent += frame.data_ref().map_or(0, |data| data.len() as u64);
            }
            exchange.peer.activity.progress();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a request, counting the bytes received.
struct Received<B> {
    body: B,
    peer: Arc<Peer>,
}

impl<B> http_body::Body for Received<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(data) = frame
            .as_ref()
            .and_then(|frame| frame.as_ref().ok()?.data_ref())
        {
            self.peer
                .metrics
                .received(self.peer.protocol, data.len() as u64);
        }
        self.peer.activity.progress();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
