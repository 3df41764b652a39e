//! Trials: clients and a server exchange requests of all kinds at once, over a network that loses
//! datagrams. What both ends do follows from a seed, though not the order in which it happens.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Body as _, Frame};
use squall::TransportConfig;
use squall_h3::client::SendRequest;
use squall_h3::{Body, Config, Error, Informational, OnInformational, Protocol, server};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::common::proxy::{Faults, Proxy};
use crate::common::{Site, get, service_fn, within};

/// Seeds tried by default; `SQUALL_H3_TRIALS=17` tries only one, and `100..900` a range.
const SEEDS: std::ops::Range<u64> = 0..12;

/// The field that names an exchange to the server.
const NUMBER: &str = "x-number";

/// Draws numbers (SplitMix64).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Mostly small, sometimes larger than any window.
    fn size(&mut self) -> usize {
        let most = self.pick(&[1, 100, 5_000, 50_000, 400_000]);
        self.below(most + 1)
    }

    fn fields(&mut self) -> HeaderMap {
        let mut fields = HeaderMap::new();
        let common = [
            "accept",
            "cookie",
            "x-a",
            "x-request-id",
            "via",
            "etag",
            "te-st",
        ];
        for _ in 0..self.below(8) {
            let name = HeaderName::from_static(self.pick(&common));
            let len = self.pick(&[1, 3, 20, 20, 300, 3000]);
            // Few different values, so that the dynamic table is used.
            let letter = b'a' + self.below(4) as u8;
            let mut value = HeaderValue::from_bytes(&vec![letter; len]).unwrap();
            value.set_sensitive(self.chance(10));
            fields.append(name, value);
        }
        fields
    }

    fn message(&mut self, has_body: bool) -> Message {
        let size = if has_body { self.size() } else { 0 };
        Message {
            fields: self.fields(),
            has_length: self.chance(40),
            size,
            chunk: self.pick(&[1_000, 10_000, 1 << 20]).min(size.max(1)),
            pause: (self.chance(20)).then(|| Duration::from_micros(self.next() % 5_000)),
            trailers: (has_body && self.chance(25)).then(|| self.fields()),
            fails_after: (has_body && self.chance(8)).then(|| self.below(size + 1)),
        }
    }
}

/// A request or a response.
#[derive(Clone, Debug)]
struct Message {
    fields: HeaderMap,
    has_length: bool,
    size: usize,
    chunk: usize,
    pause: Option<Duration>,
    trailers: Option<HeaderMap>,
    /// The body fails once this much was sent.
    fails_after: Option<usize>,
}

/// When a client gives up.
#[derive(Clone, Copy, Debug)]
enum Cancel {
    Never,
    /// This long after the request began, if there is no response yet.
    BeforeHead(Duration),
    /// After this much of the body.
    After(usize),
}

/// How much of a request's body the server reads before it answers.
#[derive(Clone, Copy, Debug)]
enum Reading {
    All,
    Some(usize),
    /// All, while the response is sent.
    Later,
}

/// A request and what becomes of it.
#[derive(Clone, Debug)]
struct Exchange {
    method: Method,
    request: Message,
    status: StatusCode,
    response: Message,
    reading: Reading,
    thinks: Option<Duration>,
    cancel: Cancel,
    /// Responses before the final one.
    hints: usize,
    /// An extended CONNECT request, whose response is what the client sends.
    is_tunnel: bool,
}

impl Exchange {
    fn drawn(seed: u64, number: u64) -> Self {
        let rng = &mut Rng(seed ^ (number << 32));
        let methods = [Method::GET, Method::POST, Method::PUT, Method::HEAD];
        let method = methods[rng.below(4)].clone();
        let uploads = [Method::POST, Method::PUT].contains(&method);
        let status = rng.pick(&[200, 200, 200, 404, 500, 204, 304]);
        let status = StatusCode::from_u16(status).unwrap();
        let empty = [204, 304].contains(&status.as_u16()) || method == Method::HEAD;
        let mut exchange = Self {
            method,
            request: rng.message(uploads),
            status,
            response: rng.message(!empty),
            reading: match rng.below(10) {
                0 => Reading::Some(0),
                1 => Reading::Some(rng.below(20_000)),
                2 | 3 => Reading::Later,
                _ => Reading::All,
            },
            thinks: rng
                .chance(20)
                .then(|| Duration::from_micros(rng.next() % 20_000)),
            cancel: match rng.below(12) {
                0 => Cancel::BeforeHead(Duration::from_micros(rng.next() % 10_000)),
                1 => Cancel::After(rng.below(50_000)),
                _ => Cancel::Never,
            },
            hints: if rng.chance(15) { 1 + rng.below(3) } else { 0 },
            is_tunnel: rng.chance(10),
        };
        if exchange.is_tunnel {
            exchange.method = Method::CONNECT;
            exchange.status = StatusCode::OK;
            exchange.request = Message {
                has_length: false,
                trailers: None,
                fails_after: None,
                ..rng.message(true)
            };
            exchange.response = Message {
                size: exchange.request.size,
                ..rng.message(false)
            };
            exchange.response.has_length = false;
        }
        exchange
    }
}

impl Message {
    fn write_fields(&self, fields: &mut HeaderMap) {
        for (name, value) in &self.fields {
            fields.append(name, value.clone());
        }
        if self.has_length {
            fields.insert(CONTENT_LENGTH, HeaderValue::from(self.size));
        }
    }

    /// Checks that a message has the fields.
    fn check_fields(&self, fields: &HeaderMap, what: &str) {
        for name in self.fields.keys() {
            let of = |fields: &HeaderMap| -> Vec<Vec<u8>> {
                let values = fields.get_all(name).iter();
                let values: Vec<_> = values.map(|value| value.as_bytes().to_vec()).collect();
                if name != "cookie" {
                    return values;
                }
                // RFC 9114 §4.2.1: may be split and joined.
                vec![values.join(&b"; "[..])]
            };
            assert_eq!(of(fields), of(&self.fields), "{what}: {name}");
        }
    }

    fn source(&self) -> Source {
        Source {
            message: self.clone(),
            sent: 0,
            ended: false,
            sleep: None,
        }
    }
}

fn byte(offset: usize) -> u8 {
    (offset % 251) as u8
}

/// The body of a message.
struct Source {
    message: Message,
    sent: usize,
    ended: bool,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl http_body::Body for Source {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        if let Some(sleep) = &mut self.sleep {
            ready!(sleep.as_mut().poll(cx));
            self.sleep = None;
        }
        let Self {
            message,
            sent,
            ended,
            sleep: pause,
        } = &mut *self;
        let end = message.fails_after.unwrap_or(message.size);
        if *sent < end {
            let next = (*sent + message.chunk).min(end);
            let data: Vec<u8> = (*sent..next).map(byte).collect();
            *sent = next;
            *pause = message.pause.map(|time| Box::pin(sleep(time)));
            return Poll::Ready(Some(Ok(Frame::data(data.into()))));
        }
        if std::mem::replace(ended, true) {
            return Poll::Ready(None);
        }
        Poll::Ready(if message.fails_after.is_some() {
            Some(Err(std::io::Error::other("planned")))
        } else {
            message.trailers.clone().map(|t| Ok(Frame::trailers(t)))
        })
    }
}

/// What was read of a body.
#[derive(Debug)]
struct Read {
    len: usize,
    trailers: Option<HeaderMap>,
    /// Nothing if not all was read.
    end: Option<Result<(), Error>>,
}

async fn read(body: &mut Body, most: usize, what: &str) -> Read {
    let mut read = Read {
        len: 0,
        trailers: None,
        end: None,
    };
    while read.len < most {
        let next = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx));
        match within(next).await {
            None => {
                read.end = Some(Ok(()));
                break;
            }
            Some(Err(error)) => {
                read.end = Some(Err(error));
                break;
            }
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    for (at, found) in data.iter().enumerate() {
                        assert_eq!(*found, byte(read.len + at), "{what}: byte {at}");
                    }
                    read.len += data.len();
                }
                Err(frame) => read.trailers = frame.into_trailers().ok(),
            },
        }
    }
    read
}

impl Message {
    /// Checks what was read of the body; `may_fail`: because of the other message.
    fn check_body(&self, read: &Read, may_fail: bool, what: &str) {
        match &read.end {
            Some(Ok(())) => {
                assert_eq!(self.fails_after, None, "{what}: ended well");
                assert_eq!(read.len, self.size, "{what}");
                match &self.trailers {
                    None => assert_eq!(read.trailers, None, "{what}"),
                    Some(sent) => {
                        let found = read.trailers.clone().unwrap_or_default();
                        let sent = Self {
                            fields: sent.clone(),
                            ..self.clone()
                        };
                        sent.check_fields(&found, what);
                    }
                }
            }
            Some(Err(error)) => {
                assert!(may_fail || self.fails_after.is_some(), "{what}: {error}");
                assert!(read.len <= self.size, "{what}");
            }
            None => assert!(read.len <= self.size, "{what}"),
        }
    }
}

/// The body of a response: as planned, or what the client sends.
enum Answer {
    Source(Box<Source>),
    Echo(Body),
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match &mut *self {
            Self::Source(source) => Pin::new(source).poll_frame(cx).map_err(Into::into),
            Self::Echo(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
        }
    }
}

/// The numbers of the requests that a server has begun.
type Begun = Arc<Mutex<HashSet<u64>>>;

async fn answer(seed: u64, begun: Begun, request: Request<Body>) -> Response<Answer> {
    let Some(number) = request.headers().get(NUMBER) else {
        let last = Rng(0).message(false);
        return Response::new(Answer::Source(Box::new(last.source())));
    };
    let number: u64 = number.to_str().unwrap().parse().unwrap();
    assert!(
        begun.lock().unwrap().insert(number),
        "seed {seed}: {number} again"
    );
    let plan = Exchange::drawn(seed, number);
    let what = format!("seed {seed}, request {number}");
    assert_eq!(request.method(), plan.method, "{what}");
    plan.request.check_fields(request.headers(), &what);
    for n in 0..plan.hints {
        let informational = request.extensions().get::<Informational>().unwrap();
        let hint = Response::builder().status(103).header(NUMBER, n).body(());
        informational.send(hint.unwrap()).unwrap();
    }
    let mut body = request.into_body();
    if plan.is_tunnel {
        let mut answer = Response::new(Answer::Echo(body));
        plan.response.write_fields(answer.headers_mut());
        return answer;
    }
    let cancelled = !matches!(plan.cancel, Cancel::Never) || plan.response.fails_after.is_some();
    match plan.reading {
        Reading::All => {
            let read = read(&mut body, usize::MAX, &what).await;
            plan.request.check_body(&read, cancelled, &what);
        }
        Reading::Some(most) => drop(read(&mut body, most, &what).await),
        Reading::Later => {
            let request = plan.request.clone();
            // The client may give up the rest.
            tokio::spawn(async move {
                let read = read(&mut body, usize::MAX, &what).await;
                request.check_body(&read, true, &what);
            });
        }
    }
    if let Some(time) = plan.thinks {
        sleep(time).await;
    }
    let mut answer = Response::new(Answer::Source(Box::new(plan.response.source())));
    *answer.status_mut() = plan.status;
    plan.response.write_fields(answer.headers_mut());
    answer
}

/// `ending`: the requests that the server has begun, which may end at any time.
async fn exchange(client: SendRequest, seed: u64, number: u64, ending: Option<Begun>) {
    let plan = Exchange::drawn(seed, number);
    let what = format!("seed {seed}, response {number}");
    let mut request = Request::new(plan.request.source());
    *request.method_mut() = plan.method.clone();
    *request.uri_mut() = format!("https://localhost/{}", number % 7).parse().unwrap();
    plan.request.write_fields(request.headers_mut());
    let value = HeaderValue::from(number);
    request.headers_mut().insert(NUMBER, value);
    if plan.is_tunnel {
        let protocol = Protocol::from_static("echo");
        request.extensions_mut().insert(protocol);
    }
    let hints = Arc::new(Mutex::new(Vec::new()));
    let hinted = Arc::clone(&hints);
    let on_informational = OnInformational::new(move |hint| {
        let number = hint.headers()[NUMBER].to_str().unwrap().parse::<usize>();
        hinted.lock().unwrap().push(number.unwrap());
    });
    request.extensions_mut().insert(on_informational);
    let sending = client.send(request);
    let result = match plan.cancel {
        Cancel::BeforeHead(time) => match timeout(time, sending).await {
            Ok(result) => result,
            Err(_) => return,
        },
        _ => within(sending).await,
    };
    let upload_fails = plan.request.fails_after.is_some();
    let response = match result {
        Ok(response) => response,
        Err(error) if error.is_unprocessed() => {
            let begun = ending.unwrap_or_else(|| panic!("{what}: {error}"));
            assert!(!begun.lock().unwrap().contains(&number), "{what}");
            return;
        }
        Err(error) => {
            let fails = upload_fails || plan.response.fails_after.is_some();
            assert!(fails, "{what}: {error}");
            return;
        }
    };
    let early = upload_fails && matches!(plan.reading, Reading::All);
    if !early {
        assert_eq!(response.status(), plan.status, "{what}");
        plan.response.check_fields(response.headers(), &what);
        let expected: Vec<_> = (0..plan.hints).collect();
        assert_eq!(*hints.lock().unwrap(), expected, "{what}");
    }
    let most = match plan.cancel {
        Cancel::After(most) => most,
        _ => usize::MAX,
    };
    let read = read(&mut response.into_body(), most, &what).await;
    plan.response.check_body(&read, upload_fails, &what);
}

fn transport(rng: &mut Rng) -> TransportConfig {
    let window = rng.pick(&[4_000, 30_000, 500_000]);
    TransportConfig::default()
        .initial_stream_window(window)
        .stream_receive_window(rng.pick(&[window, 6 << 20]))
        .initial_window(2 * window)
        .receive_window(rng.pick(&[4 * window, 12 << 20]))
        .stream_send_window(rng.pick(&[2_000, 50_000, 4 << 20]))
        .max_concurrent_bidi_streams(rng.pick(&[1, 3, 100]))
        .initial_rtt(Duration::from_millis(20))
}

fn config(rng: &mut Rng) -> Config {
    Config::default()
        .qpack_max_table_capacity(rng.pick(&[0, 100, 4096, 65_536]))
        .qpack_encoder_table_capacity(rng.pick(&[0, 4096, 65_536]))
        .qpack_blocked_streams(rng.pick(&[0, 1, 16]))
        .max_field_section_size(1 << 20)
        .informational(true)
        .enable_connect_protocol(true)
}

async fn trial(seed: u64) {
    let rng = &mut Rng(seed);
    let site = Site::with(transport(rng));
    let on_worker = rng.chance(50);
    let server = config(rng);
    let begun = Begun::default();
    let service = service_fn({
        let begun = Arc::clone(&begun);
        move |request| answer(seed, Arc::clone(&begun), request)
    });
    let mut builder = server::Builder::new().config(server);
    if on_worker {
        builder = builder.on_worker();
    }
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = builder.serve(site.endpoint.clone(), service);
    let serving = serving.with_graceful_shutdown(async { drop(stopped.await) });
    let serving = tokio::spawn(serving);
    // When the server ends.
    let mut stop = Some(stop);
    let ends = (rng.chance(25)).then(|| Duration::from_micros(rng.next() % 40_000));
    let faults = Faults {
        loss: rng.pick(&[0, 0, 3, 10]),
        reordering: rng.pick(&[0, 5, 20]),
        ..Faults::default()
    };
    let proxy = Proxy::start(site.endpoint.local_addr().unwrap(), seed, faults).await;
    for connection in 0..1 + rng.below(2) as u64 {
        let settings = transport(rng);
        let quic = site.connection_by(proxy.address, settings).await;
        let client = squall_h3::client::handshake_with(quic, config(rng));
        let all = 1 + rng.below(40) as u64;
        let numbers = (0..all).map(|n| connection * 1000 + n);
        let exchanges: JoinSet<()> = numbers
            .map(|number| {
                let ending = ends.map(|_| Arc::clone(&begun));
                exchange(client.clone(), seed, number, ending)
            })
            .collect();
        if let Some(time) = ends {
            sleep(time).await;
            stop.take();
            exchanges.join_all().await;
            within(serving).await.unwrap();
            return;
        }
        exchanges.join_all().await;
        // The connection is as good as new.
        let last = within(client.send(get("/last"))).await;
        let last = last.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(last.status(), StatusCode::OK);
        drop(last);
        let began = Instant::now();
        // Each end's control stream and both of QPACK's.
        while client.connection().stats().open_streams > 6 {
            let left = client.connection().stats().open_streams;
            assert!(
                began.elapsed() < Duration::from_secs(10),
                "seed {seed}: {left} streams are left"
            );
            sleep(Duration::from_millis(5)).await;
        }
    }
}

#[test]
fn exchanges_of_all_kinds_have_the_planned_outcome() {
    let seeds = match std::env::var("SQUALL_H3_TRIALS") {
        Err(_) => SEEDS,
        Ok(asked) => {
            let (from, to) = asked.split_once("..").unwrap_or((&asked, ""));
            let from = from.parse().unwrap();
            from..to.parse().unwrap_or(from + 1)
        }
    };
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(trial(seed));
    }
}
