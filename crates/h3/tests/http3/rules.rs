//! Every rule of RFC 9114 §4, §6 and §7 and of RFC 9204 §2 to §4 that a peer can break, each with
//! the error that it must get: a scripted peer writes bytes, and the other end closes the
//! connection or resets the stream with the RFC's code.
#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::time::Duration;

use squall::{CloseReason, Connection, ReadError, RecvStream, SendStream};

use crate::common::{Site, response, service_fn, within};
use squall_h3::{Code, client, server};

/// What the peer writes: unidirectional streams, a request stream (or a response), and whether the
/// streams end.
#[derive(Clone, Debug, Default)]
struct Script {
    uni: Vec<(Vec<u8>, bool)>,
    bidi: Option<(Vec<u8>, bool)>,
    /// Which of the other end's unidirectional streams the peer stops, in the order of their
    /// opening.
    stopped: Option<usize>,
}

/// The required outcome.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    Closed(Code),
    Reset(Code),
    /// An answer.
    Fine,
    /// It waits.
    Nothing,
}

use Outcome::{Closed, Fine, Nothing, Reset};

fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = varint(kind);
    bytes.extend(varint(payload.len() as u64));
    bytes.extend_from_slice(payload);
    bytes
}

fn varint(value: u64) -> Vec<u8> {
    match value {
        0..0x40 => vec![value as u8],
        0x40..0x4000 => (value as u16 | 0x4000).to_be_bytes().to_vec(),
        _ => (value as u32 | 0x8000_0000).to_be_bytes().to_vec(),
    }
}

/// A field section of literals.
fn section(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = vec![0, 0];
    for (name, value) in fields {
        // RFC 9204 §4.5.6: the name's length has a prefix of three bits.
        match name.len() {
            len @ 0..7 => bytes.push(0x20 | len as u8),
            len => bytes.extend([0x27, (len - 7) as u8]),
        }
        bytes.extend_from_slice(name.as_bytes());
        match value.len() {
            len @ 0..127 => bytes.push(len as u8),
            len @ 127..255 => bytes.extend([0x7f, (len - 127) as u8]),
            _ => unimplemented!("longer values"),
        }
        bytes.extend_from_slice(value.as_bytes());
    }
    bytes
}

const GET: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "localhost"),
    (":path", "/"),
];

/// The fields of GET, plus others.
fn get_with(others: &[(&'static str, &'static str)]) -> Vec<u8> {
    let mut fields = GET.to_vec();
    fields.extend_from_slice(others);
    headers(&fields)
}

fn headers(fields: &[(&str, &str)]) -> Vec<u8> {
    frame(1, &section(fields))
}

fn control(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend(frame(4, &[]));
    bytes.extend(frames.concat());
    bytes
}

impl Script {
    fn new() -> Self {
        Self::default()
    }

    /// A script with a control stream that carries only SETTINGS.
    fn with_control() -> Self {
        Self::new().uni(control(&[]))
    }

    fn uni(mut self, bytes: Vec<u8>) -> Self {
        self.uni.push((bytes, false));
        self
    }

    fn uni_that_ends(mut self, bytes: Vec<u8>) -> Self {
        self.uni.push((bytes, true));
        self
    }

    fn stops(mut self, index: usize) -> Self {
        self.stopped = Some(index);
        self
    }

    fn message(mut self, bytes: Vec<u8>) -> Self {
        self.bidi = Some((bytes, true));
        self
    }

    fn message_that_stays(mut self, bytes: Vec<u8>) -> Self {
        self.bidi = Some((bytes, false));
        self
    }
}

/// On the control stream, after SETTINGS.
fn on_control(frames: &[Vec<u8>]) -> Script {
    Script::new().uni(control(frames))
}

/// As a request, or as a response.
fn message(frames: &[Vec<u8>]) -> Script {
    Script::with_control().message(frames.concat())
}

fn malformed(fields: &[(&str, &str)]) -> (Script, Outcome) {
    (message(&[headers(fields)]), Reset(Code::H3_MESSAGE_ERROR))
}

async fn write(connection: &Connection, script: &Script) -> (Vec<SendStream>, Vec<RecvStream>) {
    let mut open = Vec::new();
    for (bytes, ends) in &script.uni {
        let mut send = within(connection.open_uni()).await.unwrap();
        // The other end may be gone already.
        let _ = within(send.write_all(bytes)).await;
        if *ends {
            let _ = send.finish();
        }
        open.push(send);
    }
    // A stream that is dropped is stopped, so the others are kept.
    let mut accepted = Vec::new();
    if let Some(index) = script.stopped {
        while accepted.len() <= index {
            let Ok(recv) = within(connection.accept_uni()).await else {
                break;
            };
            accepted.push(recv);
        }
        if let Some(recv) = accepted.get_mut(index) {
            let _ = recv.stop(Code::H3_NO_ERROR.0);
        }
    }
    (open, accepted)
}

/// Reads what the other end answers to a message.
async fn outcome_of(connection: &Connection, recv: Option<RecvStream>) -> Outcome {
    let outcome = outcome_some_time(connection, recv);
    let outcome = tokio::time::timeout(Duration::from_secs(3), outcome).await;
    outcome.unwrap_or(Nothing)
}

async fn outcome_some_time(connection: &Connection, recv: Option<RecvStream>) -> Outcome {
    let read = async {
        match recv {
            Some(mut recv) => recv.read_to_end(1 << 20).await.err(),
            None => std::future::pending().await,
        }
    };
    let read = async {
        use squall::ReadToEndError::Read;
        match read.await {
            None => Fine,
            Some(Read(ReadError::Reset(code))) => Reset(Code(code)),
            // Then the connection reports why.
            Some(_) => std::future::pending().await,
        }
    };
    let outcome = tokio::select! {
        reason = connection.closed() => match reason {
            CloseReason::Application { code, remote: true, .. } => Closed(Code(code)),
            other => panic!("{other}"),
        },
        outcome = read => outcome,
    };
    if outcome == Fine || matches!(outcome, Reset(_)) {
        // An error of the connection counts, if there is one.
        let closed = tokio::time::timeout(Duration::from_millis(20), connection.closed()).await;
        if let Ok(CloseReason::Application {
            code, remote: true, ..
        }) = closed
        {
            return Closed(Code(code));
        }
    }
    outcome
}

/// A client that follows the script, and what the server does.
async fn at_server(site: &Site, script: &Script) -> Outcome {
    let connection = site.connection().await;
    let _open = write(&connection, script).await;
    let Some((bytes, ends)) = &script.bidi else {
        return outcome_of(&connection, None).await;
    };
    let (mut send, recv) = within(connection.open_bi()).await.unwrap();
    let _ = within(send.write_all(bytes)).await;
    if *ends {
        let _ = send.finish();
    }
    outcome_of(&connection, Some(recv)).await
}

/// A server that follows the script when a request comes, and what the client does.
async fn at_client(site: &Site, script: &Script) -> Outcome {
    let endpoint = site.endpoint.clone();
    let accepting = tokio::spawn(async move { endpoint.accept().await.unwrap().await.unwrap() });
    let client = client::handshake(site.connection().await);
    let connection = within(accepting).await.unwrap();
    let asking = tokio::spawn({
        let client = client.clone();
        async move {
            let response = client.send(crate::common::get("/")).await?;
            crate::common::read(response.into_body()).await
        }
    });
    let _open = write(&connection, script).await;
    let Ok((mut send, recv)) = within(connection.accept_bi()).await else {
        return outcome_of(&connection, None).await;
    };
    if let Some((bytes, ends)) = &script.bidi {
        let _ = within(send.write_all(bytes)).await;
        if *ends {
            let _ = send.finish();
        }
    }
    if script.bidi.is_none() {
        return outcome_of(&connection, None).await;
    }
    let result = within(asking).await.unwrap();
    let closed = tokio::time::timeout(Duration::from_millis(50), connection.closed()).await;
    drop(recv);
    match (closed, result) {
        (
            Ok(CloseReason::Application {
                code, remote: true, ..
            }),
            _,
        ) => Closed(Code(code)),
        (_, Ok(_)) => Fine,
        (_, Err(squall_h3::Error::Malformed(_))) => Reset(Code::H3_MESSAGE_ERROR),
        (_, Err(error)) => panic!("{error}"),
    }
}

/// Rules that either end can break.
fn common_rules() -> Vec<(Script, Outcome)> {
    let unexpected = Closed(Code::H3_FRAME_UNEXPECTED);
    let creation = Closed(Code::H3_STREAM_CREATION_ERROR);
    let critical = Closed(Code::H3_CLOSED_CRITICAL_STREAM);
    let mut rules = vec![
        // RFC 9114 §6.2.1: there is one control stream, which begins with SETTINGS and stays open.
        (
            Script::new().uni([&[0][..], &frame(7, &[0])].concat()),
            Closed(Code::H3_MISSING_SETTINGS),
        ),
        (
            Script::new().uni([&[0][..], &frame(0x21, &[])].concat()),
            Closed(Code::H3_MISSING_SETTINGS),
        ),
        (Script::with_control().uni(control(&[])), creation),
        (Script::new().uni_that_ends(control(&[])), critical),
        // RFC 9204 §4.2: there is one of each QPACK stream, and they stay open.
        (Script::with_control().uni(vec![2]).uni(vec![2]), creation),
        (Script::with_control().uni(vec![3]).uni(vec![3]), creation),
        (Script::with_control().uni_that_ends(vec![2]), critical),
        (Script::with_control().uni_that_ends(vec![3]), critical),
        // Nor may the receiver ask for their end: the control stream, the QPACK decoder's and the
        // encoder's.
        (Script::with_control().stops(0), critical),
        (Script::with_control().stops(1), critical),
        (Script::with_control().stops(2), critical),
        // RFC 9114 §7.2: frames that are not allowed on the control stream.
        (on_control(&[frame(0, &[])]), unexpected),
        (on_control(&[headers(&GET)]), unexpected),
        (on_control(&[frame(4, &[])]), unexpected),
        (on_control(&[frame(5, &[0, 0])]), unexpected),
        // RFC 9114 §7.2.4: wrong settings.
        (
            Script::new().uni([&[0][..], &frame(4, &[1, 0, 1, 0])].concat()),
            Closed(Code::H3_SETTINGS_ERROR),
        ),
        (
            Script::new().uni([&[0][..], &frame(4, &[2, 0])].concat()),
            Closed(Code::H3_SETTINGS_ERROR),
        ),
        (
            Script::new().uni([&[0][..], &frame(4, &[8, 2])].concat()),
            Closed(Code::H3_SETTINGS_ERROR),
        ),
        (
            Script::new().uni([&[0][..], &frame(4, &[6])].concat()),
            Closed(Code::H3_FRAME_ERROR),
        ),
        // RFC 9114 §5.2, §7.2.6: GOAWAY.
        (on_control(&[frame(7, &[])]), Closed(Code::H3_FRAME_ERROR)),
        (
            on_control(&[frame(7, &[4]), frame(7, &[8])]),
            Closed(Code::H3_ID_ERROR),
        ),
        // RFC 9114 §7.2.3: there is no push to cancel.
        (on_control(&[frame(3, &[1])]), Closed(Code::H3_ID_ERROR)),
        // RFC 9204 §4.1.3, §4.3: the encoder stream.
        (
            Script::with_control().uni(vec![2, 0x3f, 0xff, 0xff, 0xff, 0x7f]),
            Closed(Code::QPACK_ENCODER_STREAM_ERROR),
        ),
        (
            Script::with_control().uni(vec![2, 0x00]),
            Closed(Code::QPACK_ENCODER_STREAM_ERROR),
        ),
        (
            Script::with_control().uni(vec![2, 0xff, 0xff, 0xff, 0x00, 0x00]),
            Closed(Code::QPACK_ENCODER_STREAM_ERROR),
        ),
        // RFC 9204 §4.4: the decoder stream acknowledges what was never sent.
        (
            Script::with_control().uni(vec![3, 0x00]),
            Closed(Code::QPACK_DECODER_STREAM_ERROR),
        ),
        (
            Script::with_control().uni(vec![3, 0x01]),
            Closed(Code::QPACK_DECODER_STREAM_ERROR),
        ),
        (
            Script::with_control().uni(vec![3, 0x80 | 4]),
            Closed(Code::QPACK_DECODER_STREAM_ERROR),
        ),
        // RFC 9114 §4.1, §7.2: messages begin with HEADERS.
        (message(&[frame(0, b"x")]), unexpected),
        (message(&[frame(4, &[])]), unexpected),
        (message(&[frame(7, &[0])]), unexpected),
        (message(&[frame(3, &[0])]), unexpected),
        (message(&[frame(13, &[0])]), unexpected),
        // RFC 9204 §2.2.3, §4.5: sections that cannot be decoded.
        (
            message(&[frame(1, &[])]),
            Closed(Code::QPACK_DECOMPRESSION_FAILED),
        ),
        (
            message(&[frame(1, &[0])]),
            Closed(Code::QPACK_DECOMPRESSION_FAILED),
        ),
        (
            message(&[frame(1, &[0, 0, 0xff, 0xff, 0x00])]),
            Closed(Code::QPACK_DECOMPRESSION_FAILED),
        ),
        (
            message(&[frame(1, &[0, 0, 0x80])]),
            Closed(Code::QPACK_DECOMPRESSION_FAILED),
        ),
        (
            message(&[frame(1, &[0, 0, 0x10])]),
            Closed(Code::QPACK_DECOMPRESSION_FAILED),
        ),
        (
            message(&[frame(1, &[0xff, 0xff, 0xff, 0xff, 0xff, 0, 0xc0])]),
            Closed(Code::QPACK_DECOMPRESSION_FAILED),
        ),
        (
            message(&[frame(1, &[0, 0, 0x51, 0x85, 1])]),
            Closed(Code::QPACK_DECOMPRESSION_FAILED),
        ),
        // RFC 9114 §7.1: a frame cut short by the stream's end.
        (message(&[vec![1, 50, 0, 0]]), Closed(Code::H3_FRAME_ERROR)),
        (message(&[vec![1]]), Closed(Code::H3_FRAME_ERROR)),
    ];
    // RFC 9114 §7.2.8: types of HTTP/2.
    for kind in [2, 6, 8, 9] {
        rules.push((on_control(&[frame(kind, &[])]), unexpected));
        rules.push((message(&[frame(kind, &[])]), unexpected));
    }
    rules
}

#[tokio::test(flavor = "multi_thread")]
async fn violations_by_clients_get_the_rfcs_error() {
    let unexpected = Closed(Code::H3_FRAME_UNEXPECTED);
    let site = Site::new();
    let serving = server::serve(
        site.endpoint.clone(),
        service_fn(|request: http::Request<squall_h3::Body>| async move {
            match crate::common::read(request.into_body()).await {
                Ok(_) => response("fine"),
                // The stream is reset whatever the answer is.
                Err(_) => response("not fine"),
            }
        }),
    );
    tokio::spawn(async move { serving.await });
    let mut rules = common_rules();
    let bad = |fields: &[(&str, &str)]| malformed(fields);
    rules.extend([
        (Script::with_control().message(headers(&GET)), Fine),
        (Script::new().message(headers(&GET)), Fine),
        // RFC 9114 §6.2, §6.2.2, §6.2.3.
        (
            Script::with_control().uni(vec![1]),
            Closed(Code::H3_STREAM_CREATION_ERROR),
        ),
        (
            Script::with_control()
                .uni(vec![0x21, 1, 2])
                .uni_that_ends(vec![])
                .message(headers(&GET)),
            Fine,
        ),
        // RFC 9114 §7.2.5: clients send no PUSH_PROMISE.
        (message(&[frame(5, &[0, 0])]), unexpected),
        (message(&[headers(&GET), frame(5, &[0, 0])]), unexpected),
        // RFC 9114 §7.2.7.
        (
            on_control(&[frame(13, &[4]), frame(13, &[3])]),
            Closed(Code::H3_ID_ERROR),
        ),
        (on_control(&[frame(13, &[])]), Closed(Code::H3_FRAME_ERROR)),
        // RFC 9218 §7.
        (
            on_control(&[frame(0xf0700, &[1])]),
            Closed(Code::H3_ID_ERROR),
        ),
        (
            on_control(&[frame(0xf0701, &[0])]),
            Closed(Code::H3_ID_ERROR),
        ),
        (message(&[frame(0xf0700, &[0])]), unexpected),
        // RFC 9114 §4.1: nothing follows trailers, and a request is complete.
        (
            message(&[headers(&GET), headers(&[]), headers(&[])]),
            unexpected,
        ),
        (
            message(&[headers(&GET), headers(&[]), frame(0, b"x")]),
            unexpected,
        ),
        (
            message(&[
                headers(&GET),
                frame(0, b"x"),
                headers(&[("x", "y")]),
                frame(0x21, b"z"),
            ]),
            Fine,
        ),
        (message(&[]), Reset(Code::H3_REQUEST_INCOMPLETE)),
        (
            message(&[frame(0x21, b"z")]),
            Reset(Code::H3_REQUEST_INCOMPLETE),
        ),
        // RFC 9114 §4.2: names and values.
        bad(&[&GET[..], &[("Upper", "x")]].concat()),
        bad(&[&GET[..], &[("", "x")]].concat()),
        bad(&[&GET[..], &[("a b", "x")]].concat()),
        bad(&[&GET[..], &[("x", "a\nb")]].concat()),
        bad(&[&GET[..], &[("x", "a\0b")]].concat()),
        bad(&[&GET[..], &[("x", "a\rb")]].concat()),
        bad(&[&GET[..], &[("connection", "close")]].concat()),
        bad(&[&GET[..], &[("keep-alive", "1")]].concat()),
        bad(&[&GET[..], &[("proxy-connection", "close")]].concat()),
        bad(&[&GET[..], &[("transfer-encoding", "chunked")]].concat()),
        bad(&[&GET[..], &[("upgrade", "h2c")]].concat()),
        bad(&[&GET[..], &[("te", "gzip")]].concat()),
        (message(&[get_with(&[("te", "trailers")])]), Fine),
        // RFC 9114 §4.3: pseudo-header fields.
        bad(&GET[1..]),
        bad(&[GET[0], GET[2], GET[3]]),
        bad(&GET[..3]),
        bad(&[GET[0], GET[1], GET[3]]),
        bad(&[&GET[..], &GET[..1]].concat()),
        bad(&[&GET[..], &GET[3..]].concat()),
        bad(&[&GET[..], &[(":status", "200")]].concat()),
        bad(&[&GET[..], &[(":unknown", "x")]].concat()),
        bad(&[GET[0], GET[1], GET[2], ("x", "y"), GET[3]]),
        bad(&[GET[0], GET[1], GET[2], (":path", "")]),
        bad(&[GET[0], GET[1], GET[2], (":path", "x")]),
        bad(&[GET[0], GET[1], GET[2], (":path", "*")]),
        bad(&[GET[0], GET[1], GET[2], (":path", "/a b")]),
        bad(&[GET[0], GET[1], GET[2], (":path", "/a#b")]),
        bad(&[GET[0], GET[1], (":authority", ""), GET[3]]),
        bad(&[GET[0], GET[1], (":authority", "user@localhost"), GET[3]]),
        bad(&[(":method", ""), GET[1], GET[2], GET[3]]),
        bad(&[(":method", "G T"), GET[1], GET[2], GET[3]]),
        bad(&[GET[0], (":scheme", ""), GET[2], GET[3]]),
        bad(&[&GET[..], &[("host", "elsewhere")]].concat()),
        (message(&[get_with(&[("host", "localhost")])]), Fine),
        (
            message(&[headers(&[GET[0], GET[1], GET[3], ("host", "localhost")])]),
            Fine,
        ),
        (
            message(&[headers(&[
                (":method", "OPTIONS"),
                GET[1],
                GET[2],
                (":path", "*"),
            ])]),
            Fine,
        ),
        // RFC 9114 §4.4: CONNECT; RFC 9220 without permission.
        bad(&[&[(":method", "CONNECT")], &GET[1..]].concat()),
        bad(&[(":method", "CONNECT")]),
        bad(&[
            (":method", "CONNECT"),
            (":protocol", "x"),
            GET[1],
            GET[2],
            GET[3],
        ]),
        bad(&[&GET[..], &[(":protocol", "websocket")]].concat()),
        // RFC 9114 §4.1.2: content-length.
        bad(&[&GET[..], &[("content-length", "1")]].concat()),
        bad(&[&GET[..], &[("content-length", "x")]].concat()),
        bad(&[&GET[..], &[("content-length", "-1")]].concat()),
        bad(&[
            &GET[..],
            &[("content-length", "0"), ("content-length", "1")],
        ]
        .concat()),
        (
            message(&[get_with(&[
                ("content-length", "0"),
                ("content-length", "0"),
            ])]),
            Fine,
        ),
        (
            message(&[get_with(&[("content-length", "1")]), frame(0, b"x")]),
            Fine,
        ),
        (
            message(&[get_with(&[("content-length", "1")]), frame(0, b"xy")]),
            Reset(Code::H3_MESSAGE_ERROR),
        ),
        (
            message(&[get_with(&[("content-length", "2")]), frame(0, b"x")]),
            Reset(Code::H3_MESSAGE_ERROR),
        ),
        // RFC 9114 §4.3: trailers.
        (
            message(&[headers(&GET), headers(&[(":path", "/")])]),
            Reset(Code::H3_MESSAGE_ERROR),
        ),
        (
            message(&[headers(&GET), headers(&[("A", "b")])]),
            Reset(Code::H3_MESSAGE_ERROR),
        ),
        // RFC 9114 §9: unknown frames are skipped.
        (
            message(&[frame(0x21, &[0; 500]), headers(&GET), frame(0x40, b"x")]),
            Fine,
        ),
        // RFC 9114 §7.1, §10.5: a huge frame is not buffered in memory.
        (
            Script::with_control()
                .message_that_stays([varint(0x21), varint(0x3fff_ffff)].concat())
                .message(headers(&GET)),
            Fine,
        ),
    ]);
    check(&rules, async |script| at_server(&site, script).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn violations_by_servers_get_the_rfcs_error() {
    let unexpected = Closed(Code::H3_FRAME_UNEXPECTED);
    let ok = [(":status", "200")];
    let site = Site::new();
    let mut rules = common_rules();
    let bad = |fields: &[(&str, &str)]| malformed(fields);
    rules.extend([
        (message(&[headers(&ok), frame(0, b"x")]), Fine),
        (
            message(&[
                headers(&[(":status", "103")]),
                headers(&[(":status", "100")]),
                headers(&ok),
            ]),
            Fine,
        ),
        // RFC 9114 §6.1, §6.2.2, §7.2.5, §7.2.7: pushes that the client does not allow.
        (
            Script::with_control().uni(vec![1, 0]),
            Closed(Code::H3_ID_ERROR),
        ),
        (message(&[frame(5, &[0, 0, 0])]), Closed(Code::H3_ID_ERROR)),
        (on_control(&[frame(13, &[0])]), unexpected),
        (on_control(&[frame(0xf0700, &[0])]), unexpected),
        (on_control(&[frame(7, &[1])]), Closed(Code::H3_ID_ERROR)),
        // RFC 9114 §4.1.
        (
            message(&[headers(&ok), headers(&[]), headers(&[])]),
            unexpected,
        ),
        (
            message(&[headers(&[(":status", "103")]), frame(0, b"x")]),
            unexpected,
        ),
        (message(&[]), Reset(Code::H3_MESSAGE_ERROR)),
        (
            message(&[headers(&[(":status", "103")])]),
            Reset(Code::H3_MESSAGE_ERROR),
        ),
        // RFC 9114 §4.2, §4.3.2, §4.5.
        bad(&[]),
        bad(&[("x", "y")]),
        bad(&[(":status", "")]),
        bad(&[(":status", "20")]),
        bad(&[(":status", "2000")]),
        bad(&[(":status", "2 0")]),
        bad(&[(":status", "099")]),
        bad(&[(":status", "101")]),
        bad(&[ok[0], ok[0]]),
        bad(&[("x", "y"), ok[0]]),
        bad(&[ok[0], (":path", "/")]),
        bad(&[ok[0], ("Upper", "x")]),
        bad(&[ok[0], ("connection", "close")]),
        bad(&[ok[0], ("transfer-encoding", "chunked")]),
        bad(&[ok[0], ("content-length", "1")]),
        // RFC 9114 §4.1.2: a length of a body that responses of this kind never have.
        (
            message(&[headers(&[(":status", "204"), ("content-length", "1")])]),
            Fine,
        ),
        (
            message(&[headers(&[(":status", "304"), ("content-length", "1")])]),
            Fine,
        ),
        (
            message(&[headers(&[ok[0], ("content-length", "1")]), frame(0, b"xy")]),
            Reset(Code::H3_MESSAGE_ERROR),
        ),
        (
            message(&[headers(&ok), headers(&[(":status", "200")])]),
            Reset(Code::H3_MESSAGE_ERROR),
        ),
    ]);
    check(&rules, async |script| at_client(&site, script).await).await;
}

/// Plays each script with `play` and compares its outcome with the expected one.
async fn check(rules: &[(Script, Outcome)], play: impl AsyncFn(&Script) -> Outcome) {
    let mut wrong = Vec::new();
    for (i, (script, expected)) in rules.iter().enumerate() {
        let mut outcome = play(script).await;
        // On a busy machine a connection error may arrive after the wait for it is over.
        for _ in 0..3 {
            if outcome != *expected {
                outcome = play(script).await;
            }
        }
        if outcome != *expected {
            wrong.push(format!(
                "{i}: {outcome:?} instead of {expected:?} for {script:02x?}"
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        rules.len(),
        wrong.join("\n")
    );
}
