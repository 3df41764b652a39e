//! What a qlog records about HTTP/3 (draft-ietf-quic-qlog-h3-events).

use std::io::Write;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use serde_json::{Value, json};
use squall::tls::Identity;
use squall::{Builder, ClientConfig, ServerConfig};
use squall_h3::server::Reply;
use squall_h3::{Body, server};

use crate::common::{ANY_PORT, read, service_fn, within};

/// The log of a connection.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Sink {
    /// The events of HTTP/3: name and data, without the settings of a parameter's event.
    fn events(&self) -> Vec<(String, Value)> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let records = text.split('\u{1e}').skip(1);
        let mut records = records.map(|record| serde_json::from_str::<Value>(record).unwrap());
        let schemas = &records.next().unwrap()["trace"]["event_schemas"];
        assert_eq!(schemas[1], "urn:ietf:params:qlog:events:http3");
        records
            .filter_map(|mut record| {
                let name = record["name"].as_str()?.strip_prefix("http3:")?.to_owned();
                Some((name, record["data"].take()))
            })
            .collect()
    }

    /// Events of this name on this stream.
    fn on(&self, name: &str, stream: u64) -> Vec<Value> {
        let events = self.events().into_iter();
        events
            .filter(|(of, data)| of == name && data["stream_id"] == stream)
            .map(|(_, data)| data)
            .collect()
    }
}

fn headers(fields: &[(&str, Option<&str>)]) -> Value {
    let fields: Vec<Value> = fields
        .iter()
        .map(|(name, value)| match value {
            Some(value) => json!({ "name": name, "value": value }),
            None => json!({ "name": name }),
        })
        .collect();
    json!({ "frame_type": "headers", "headers": fields })
}

fn data(len: usize) -> Value {
    json!({ "frame_type": "data", "raw": { "payload_length": len } })
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ends_log_what_they_send_and_receive() {
    let (at_client, at_server) = (Sink::default(), Sink::default());
    let identity = Identity::self_signed(["localhost"]).unwrap();
    let roots = identity.roots().unwrap();
    let tls = squall::tls::server(identity, &[b"h3"]).unwrap();
    let sink = at_server.clone();
    let endpoint = Builder::new(ANY_PORT)
        .server(ServerConfig::new(tls))
        .qlog(move |_| Some(Box::new(sink.clone())))
        .bind()
        .unwrap();
    let address = endpoint.local_addr().unwrap();
    let reply = Response::builder()
        .header("x", "first")
        .body(Bytes::from_static(b"four"));
    let reply = Reply::new(reply.unwrap());
    let builder = server::Builder::new()
        .config(squall_h3::Config::new().date(false))
        .answer_first(move |head| (head.path() == Some("/reply")).then(|| reply.clone()));
    let echo =
        service_fn(|request: Request<Body>| async move { Response::new(request.into_body()) });
    tokio::spawn(builder.serve(endpoint, echo).into_future());

    let sink = at_client.clone();
    let client = Builder::new(ANY_PORT)
        .qlog(move |_| Some(Box::new(sink.clone())))
        .bind()
        .unwrap();
    let config = ClientConfig::new(squall::client_tls(roots, &[b"h3"]).unwrap());
    let connecting = client.connect_with(config, address, "localhost").unwrap();
    let client = squall_h3::client::handshake(within(connecting).await.unwrap());
    let mut secret = HeaderValue::from_static("hidden");
    secret.set_sensitive(true);
    let request = Request::post("https://localhost/echo")
        .header("priority", "u=1")
        .header("cookie", "hidden")
        .header("x-secret", secret)
        .body(Body::from("abc"))
        .unwrap();
    let response = within(client.send(request)).await.unwrap();
    assert_eq!(read(response.into_body()).await.unwrap(), b"abc");
    let request = Request::get("https://localhost/reply").body(Body::empty());
    let response = within(client.send(request.unwrap())).await.unwrap();
    assert_eq!(read(response.into_body()).await.unwrap(), b"four");

    let frames = |sink: &Sink, name: &str, stream: u64| -> Vec<Value> {
        let events = sink.on(name, stream).into_iter();
        events.map(|mut data| data["frame"].take()).collect()
    };
    let post = [
        (":method", Some("POST")),
        (":scheme", Some("https")),
        (":authority", Some("localhost")),
        (":path", Some("/echo")),
        ("priority", Some("u=1")),
        ("cookie", None),
        ("x-secret", None),
        ("content-length", Some("3")),
    ];
    let answer = [(":status", Some("200")), ("content-length", Some("3"))];
    let first = [(":status", Some("200")), ("x", Some("first"))];
    for (sender, receiver, stream, expected) in [
        (&at_client, &at_server, 0, vec![headers(&post), data(3)]),
        (&at_server, &at_client, 0, vec![headers(&answer), data(3)]),
        (&at_server, &at_client, 4, vec![headers(&first), data(4)]),
    ] {
        let (sent, received) = (
            frames(sender, "frame_created", stream),
            frames(receiver, "frame_parsed", stream),
        );
        assert_eq!(sent, received);
        assert_eq!(sent, expected);
    }
    // The client's control stream is 2.
    let settings = json!({ "frame_type": "settings", "settings": [
        { "name": "settings_qpack_max_table_capacity", "value": 4096 },
        { "name": "settings_max_field_section_size", "value": 65536 },
        { "name": "settings_qpack_blocked_streams", "value": 16 },
    ] });
    let settings = [settings];
    assert_eq!(frames(&at_client, "frame_created", 2), settings);
    assert_eq!(frames(&at_server, "frame_parsed", 2), settings);
    let updated = at_server.on("priority_updated", 0);
    assert_eq!(updated[0]["new"], "u=1");

    for (sink, initiated_by_client) in [(&at_client, "local"), (&at_server, "remote")] {
        let events = sink.events();
        for side in ["local", "remote"] {
            let of = |(name, data): &&(String, Value)| {
                name == "parameters_set" && data["initiator"] == side
            };
            let set = &events.iter().find(of).unwrap().1;
            assert_eq!(set["max_table_capacity"], 4096, "{events:?}");
            assert_eq!(set["blocked_streams_count"], 16);
            assert_eq!(set["extended_connect"], 0);
        }
        // RFC 9000 §2.1: the client's unidirectional streams are 2, 6 and 10.
        for (stream, kind) in [(2, "control"), (6, "qpack_decode"), (10, "qpack_encode")] {
            let set = sink.on("stream_type_set", stream);
            assert_eq!(set[0]["stream_type"], kind);
            assert_eq!(set[0]["initiator"], initiated_by_client);
        }
    }
}
