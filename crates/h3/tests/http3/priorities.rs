//! Priorities of requests (RFC 9218): which response is sent first when not all can be.
#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use squall::{Connection, RecvStream, SendStream, TransportConfig};
use squall_h3::client::{SendRequest, handshake};
use squall_h3::{Body, Config};
use tokio::sync::{Semaphore, mpsc};

use crate::common::{Site, get, read, response, start, within};

/// A connection's credit while responses are not to be sent.
const LITTLE: u64 = 2000;

/// The length of each response.
const LENGTH: usize = 100_000;

/// A server whose responses wait until they are let go.
fn held(site: &Site, on_worker: bool) -> (Arc<Semaphore>, mpsc::UnboundedReceiver<()>) {
    let go = Arc::new(Semaphore::new(0));
    let (tell, arrived) = mpsc::unbounded_channel();
    let permits = Arc::clone(&go);
    start(site, Config::new(), on_worker, move |_: Request<Body>| {
        let (go, tell) = (Arc::clone(&permits), tell.clone());
        async move {
            tell.send(()).unwrap();
            go.acquire().await.unwrap().forget();
            response(vec![7; LENGTH])
        }
    });
    (go, arrived)
}

async fn connect(site: &Site) -> Connection {
    let transport = TransportConfig::default()
        .initial_window(LITTLE)
        .receive_window(LITTLE);
    site.connection_with(transport).await
}

/// Lets all responses go, and the connection send them once they have begun.
async fn let_go(go: &Semaphore, connection: &Connection, count: usize) {
    go.add_permits(count);
    tokio::time::sleep(Duration::from_millis(100)).await;
    connection.set_receive_window(10_000);
}

/// Responses arrive in the order of their urgency, whatever the order of the requests.
// test: RFC 9218 §4.1, §10
#[tokio::test(flavor = "multi_thread")]
async fn urgent_responses_arrive_first() {
    for on_worker in [false, true] {
        let site = Site::new();
        let (go, mut arrived) = held(&site, on_worker);
        let connection = connect(&site).await;
        let client = handshake(connection.clone());
        let (tell, mut ended) = mpsc::unbounded_channel();
        for priority in [
            "u=5",
            "",
            "u=7, i",
            "u=0",
            "u=1;x, foo",
            "u=6",
            "u=4,i=?0",
            "u=2, i",
        ] {
            let (client, tell): (SendRequest, _) = (client.clone(), tell.clone());
            tokio::spawn(async move {
                let mut request = get("/");
                if !priority.is_empty() {
                    let value = priority.parse().unwrap();
                    request.headers_mut().insert("priority", value);
                }
                let response = client.send(request).await.unwrap();
                assert_eq!(read(response.into_body()).await.unwrap().len(), LENGTH);
                tell.send(priority).unwrap();
            });
            within(arrived.recv()).await.unwrap();
        }
        let_go(&go, &connection, 8).await;
        let mut order = Vec::new();
        for _ in 0..8 {
            order.push(within(ended.recv()).await.unwrap());
        }
        let expected = [
            "u=0",
            "u=1;x, foo",
            "u=2, i",
            "",
            "u=4,i=?0",
            "u=5",
            "u=6",
            "u=7, i",
        ];
        assert_eq!(order, expected);
    }
}

/// A client without our HTTP/3. Its control stream is open.
struct Raw {
    connection: Connection,
    control: SendStream,
    responses: Vec<(u64, RecvStream)>,
}

impl Raw {
    async fn new(site: &Site) -> Self {
        let connection = connect(site).await;
        let mut control = connection.open_uni().await.unwrap();
        control.write_all(&[0, 4, 0]).await.unwrap();
        Self {
            connection,
            control,
            responses: Vec::new(),
        }
    }

    /// PRIORITY_UPDATE for a request.
    async fn update(&mut self, id: u64, value: &str) {
        let mut frame = vec![0x80, 0x0f, 0x07, 0x00, 0x40, 8 + value.len() as u8];
        frame.extend_from_slice(&(id | 0xc000_0000_0000_0000).to_be_bytes());
        frame.extend_from_slice(value.as_bytes());
        self.control.write_all(&frame).await.unwrap();
    }

    /// Opens a request without sending it.
    async fn open(&mut self) -> SendStream {
        let (send, recv) = within(self.connection.open_bi()).await.unwrap();
        self.responses.push((send.id().0, recv));
        send
    }

    /// GET, with this priority.
    async fn get(mut send: SendStream, priority: &str) {
        let mut section = b"\0\0\xd1\xd7\xc1\x50\x09localhost".to_vec();
        if !priority.is_empty() {
            section.extend_from_slice(b"\x27\x01priority");
            section.push(priority.len() as u8);
            section.extend_from_slice(priority.as_bytes());
        }
        let mut frame = vec![1, section.len() as u8];
        frame.extend_from_slice(&section);
        // At once: a server that needs no more than the head stops the stream.
        send.write_last(&frame).await.unwrap();
    }

    /// The ids of the requests in the order in which their responses end.
    async fn order(&mut self) -> Vec<u64> {
        let (tell, mut ended) = mpsc::unbounded_channel();
        let count = self.responses.len();
        for (id, mut recv) in self.responses.drain(..) {
            let tell = tell.clone();
            tokio::spawn(async move {
                let all: Vec<u8> = recv.read_to_end(2 * LENGTH).await.unwrap();
                assert!(all.len() > LENGTH);
                tell.send(id).unwrap();
            });
        }
        let mut order = Vec::new();
        for _ in 0..count {
            order.push(within(ended.recv()).await.unwrap());
        }
        order
    }
}

/// PRIORITY_UPDATE counts more than the request's field, and may arrive before the request or its
/// head, or later.
// test: RFC 9218 §7
#[tokio::test(flavor = "multi_thread")]
async fn the_latest_priority_update_wins() {
    for on_worker in [false, true] {
        let site = Site::new();
        let (go, mut arrived) = held(&site, on_worker);
        let mut raw = Raw::new(&site).await;
        // Before the request; updates for requests that never come do not replace it.
        raw.update(8, "u=5").await;
        raw.update(8, "u=0").await;
        for _ in 0..1000 {
            raw.update(400, "u=1").await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        let zero = raw.open().await;
        Raw::get(zero, "u=3").await;
        let four = raw.open().await;
        Raw::get(four, "u=2").await;
        let eight = raw.open().await;
        Raw::get(eight, "u=7").await;
        for _ in 0..3 {
            within(arrived.recv()).await.unwrap();
        }
        // Between the stream and its head.
        let mut twelve = raw.open().await;
        twelve.write_all(&[0x21]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        raw.update(12, "u=1").await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        twelve.write_all(&[0]).await.unwrap();
        Raw::get(twelve, "u=6").await;
        within(arrived.recv()).await.unwrap();
        // After the request.
        raw.update(0, "u=4").await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let_go(&go, &raw.connection, 4).await;
        assert_eq!(raw.order().await, [8, 12, 4, 0]);
    }
}

/// Updates for requests that are over take no place from those for requests to come.
#[tokio::test(flavor = "multi_thread")]
async fn updates_for_requests_that_are_over_are_dropped() {
    let site = Site::new();
    let (go, mut arrived) = held(&site, false);
    let mut raw = Raw::new(&site).await;
    go.add_permits(1);
    let zero = raw.open().await;
    Raw::get(zero, "").await;
    within(arrived.recv()).await.unwrap();
    assert_eq!(raw.order().await, [0]);
    raw.update(8, "u=0").await;
    for _ in 0..1000 {
        raw.update(0, "u=1").await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    for priority in ["u=2", "u=7"] {
        let send = raw.open().await;
        Raw::get(send, priority).await;
        within(arrived.recv()).await.unwrap();
    }
    let_go(&go, &raw.connection, 2).await;
    assert_eq!(raw.order().await, [8, 4]);
}

/// Thousands of updates, and values without a meaning, do no harm.
#[tokio::test(flavor = "multi_thread")]
async fn arbitrary_priority_updates_are_harmless() {
    let site = Site::new();
    let (go, mut arrived) = held(&site, false);
    let mut raw = Raw::new(&site).await;
    for i in 0..10_000 {
        raw.update(
            4 * i,
            ["u=0", "u=9", "i", "\u{ff}", "u", "", "u=-1,,,=;"][i as usize % 7],
        )
        .await;
    }
    go.add_permits(1);
    let zero = raw.open().await;
    Raw::get(zero, "\u{1}").await;
    let refused = within(raw.responses.remove(0).1.read_to_end(LENGTH)).await;
    assert!(refused.is_err(), "a control character in a field");
    let four = raw.open().await;
    Raw::get(four, "u=8, i=2").await;
    within(arrived.recv()).await.unwrap();
    assert_eq!(raw.order().await, [4]);
}

/// What a response's own field names counts more than the request's.
// test: RFC 9218 §8
#[tokio::test(flavor = "multi_thread")]
async fn a_responses_own_priority_overrides_the_requests() {
    /// What the request asks for, and what the response says.
    const PRIORITIES: [(&str, &str); 5] = [
        ("u=0", "u=7"),
        ("u=2", "i"),
        ("u=1", ""),
        ("u=6, i", "u=5, i=?0"),
        ("u=7", "u=0"),
    ];
    for on_worker in [false, true] {
        let site = Site::new();
        let go = Arc::new(Semaphore::new(0));
        let (tell, mut arrived) = mpsc::unbounded_channel();
        let permits = Arc::clone(&go);
        let service = move |request: Request<Body>| {
            let (go, tell) = (Arc::clone(&permits), tell.clone());
            async move {
                tell.send(()).unwrap();
                go.acquire().await.unwrap().forget();
                let mut response = response(vec![7; LENGTH]);
                let wish = request.headers().get("wish").unwrap();
                response.headers_mut().insert("priority", wish.clone());
                response
            }
        };
        start(&site, Config::new(), on_worker, service);
        let connection = connect(&site).await;
        let client = handshake(connection.clone());
        let (tell, mut ended) = mpsc::unbounded_channel();
        for (asked, wish) in PRIORITIES {
            let (client, tell): (SendRequest, _) = (client.clone(), tell.clone());
            tokio::spawn(async move {
                let mut request = get("/");
                let headers = request.headers_mut();
                headers.insert("priority", asked.parse().unwrap());
                headers.insert("wish", wish.parse().unwrap());
                let response = client.send(request).await.unwrap();
                assert_eq!(response.headers()["priority"], wish);
                assert_eq!(read(response.into_body()).await.unwrap().len(), LENGTH);
                tell.send(asked).unwrap();
            });
            within(arrived.recv()).await.unwrap();
        }
        let_go(&go, &connection, 5).await;
        let mut order = Vec::new();
        for _ in 0..5 {
            order.push(within(ended.recv()).await.unwrap());
        }
        assert_eq!(order, ["u=7", "u=1", "u=2", "u=6, i", "u=0"]);
    }
}
