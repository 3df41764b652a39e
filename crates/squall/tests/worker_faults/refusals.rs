//! The system refuses to send, to receive or to open a file: no worker ends.

use std::fs::File;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use squall::{Builder, Bytes, CloseReason, Connection, Endpoint, TransportConfig};
use squall_udp::{Options, SendBatch, Socket};
use squall_wire::{Ecn, Path, Transmit};

use crate::common::{ALPN, ANY, Identity, Pair, connect, deliver, namespace, until, within};
use crate::{EAGAIN, EBADF, MESSAGE, client, server};

const EACCES: i32 = 13;
const ENOKEY: i32 = 126;

// test: SECURITY.md row 50: an error that no list knows costs one datagram
#[tokio::test(flavor = "multi_thread")]
async fn no_send_errno_ends_a_worker_while_its_socket_exists() {
    let pair = Pair::new().await;
    // 133 is the last error number of Linux; EINTR and EAGAIN concern the call, not the datagram.
    let odd = (1..=133).filter(|errno| ![4, EAGAIN, EBADF, 14, 88].contains(errno));
    for errno in odd.clone() {
        pair.server.inject_send_error(errno);
        deliver(&pair.far, &pair.near, MESSAGE).await;
    }
    let stats = pair.server.stats();
    assert_eq!(stats.worker_ends, 0);
    let udp = stats.udp;
    let lost = udp.send_errors + udp.send_too_large + udp.gso_fallbacks;
    assert_eq!(lost, odd.count() as u64, "{udp:?}");
    assert!(udp.errors.of(EACCES).sends > 0, "{udp:?}");
}

// test: SECURITY.md row 50: receiving that fails is retried now and then, and everything else goes
// on
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_cannot_receive_sends_and_does_not_spin() {
    for errno in [ENOKEY, EACCES] {
        let pair = Pair::new().await;
        deliver(&pair.far, &pair.near, MESSAGE).await;
        let before = pair.server.stats();
        pair.server.inject_recv_error(errno);
        // Datagrams, so that nothing sent needs an acknowledgement.
        let received = async {
            for _ in 0..20 {
                pair.far.send_datagram(Bytes::from_static(b"on")).unwrap();
                // Arriving data keeps the socket readable all the time.
                pair.near.send_datagram(Bytes::from_static(b"in")).unwrap();
                pair.near.read_datagram().await.unwrap();
            }
        };
        within(received).await;
        // Failures are 1, 2, 4, ... ms apart: 2^k ms after the first there were k + 2, give or take
        // a timer's delay.
        until(|| pair.server.stats().udp.errors.of(errno).receives >= 7).await;
        let began = std::time::Instant::now();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let after = pair.server.stats();
        // An attempt skips errors that look like ICMP's up to 16 times.
        let attempts = after.udp.errors.of(errno).receives - before.udp.errors.of(errno).receives;
        let elapsed = began.elapsed().as_millis() as u64;
        let most = 16 * (12 + elapsed / 1000 + 7);
        assert!(attempts <= most, "{attempts} attempts in {elapsed} ms");
        assert!(
            after.turns - before.turns < 2_000,
            "{} turns",
            after.turns - before.turns
        );
        pair.server.inject_recv_error(0);
        deliver(&pair.near, &pair.far, MESSAGE).await;
        deliver(&pair.far, &pair.near, MESSAGE).await;
        assert_eq!(pair.server.stats().worker_ends, 0);
    }
}

// test: SECURITY.md row 50: a hook or a route that answers EAGAIN does not hold up everything
// behind its datagram
#[tokio::test(flavor = "multi_thread")]
async fn a_datagram_that_always_blocks_is_dropped() {
    let pair = Pair::new().await;
    deliver(&pair.far, &pair.near, MESSAGE).await;
    let before = pair.server.stats();
    let mut send = within(pair.far.open_uni()).await.unwrap();
    within(send.write_all(b"late")).await.unwrap();
    send.finish().unwrap();
    let refused = || {
        let stats = pair.server.stats();
        (
            stats.udp.errors.of(EAGAIN).sends,
            stats.turns - before.turns,
        )
    };
    // Every attempt to send fails, although the socket is empty.
    within(async {
        while refused().0 < 3 {
            for _ in 0..10_000 {
                pair.server.inject_send_error(EAGAIN);
            }
            let _ = pair.far.send_datagram(Bytes::from_static(b"more"));
            tokio::task::yield_now().await;
        }
    })
    .await;
    pair.server.inject_send_error(0);
    let mut recv = within(pair.near.accept_uni()).await.unwrap();
    assert_eq!(within(recv.read_to_end(10)).await.unwrap(), b"late");
    deliver(&pair.far, &pair.near, MESSAGE).await;
    assert_eq!(pair.server.stats().worker_ends, 0);
}

/// Collects warnings and errors of all tests of this process, each with its fields in one string.
struct Warnings(Mutex<Vec<String>>);

static WARNINGS: Warnings = Warnings(Mutex::new(Vec::new()));

impl Warnings {
    /// From here on, warnings are collected.
    fn keep() {
        static SET: Once = Once::new();
        SET.call_once(|| tracing::subscriber::set_global_default(&WARNINGS).unwrap());
    }

    /// The warnings that mention this.
    fn naming(what: &str) -> Vec<String> {
        let all = WARNINGS.0.lock().unwrap();
        all.iter()
            .filter(|text| text.contains(what))
            .cloned()
            .collect()
    }
}

impl tracing::Subscriber for &'static Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Fields(String);
        impl tracing::field::Visit for Fields {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!("{field}={value:?} "));
            }
        }
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_sends_are_logged_once_a_minute() {
    Warnings::keep();
    let pair = Pair::new().await;
    let local = format!("local={} ", pair.server.local_addr().unwrap());
    // A firewall's refusal is not unusual.
    for (errno, warnings) in [(EACCES, 0), (ENOKEY, 1), (ENOKEY, 1), (89, 1)] {
        pair.server.inject_send_error(errno);
        deliver(&pair.far, &pair.near, MESSAGE).await;
        assert_eq!(Warnings::naming(&local).len(), warnings, "errno {errno}");
    }
    let warning = Warnings::naming(&local).remove(0);
    assert!(
        warning.contains("lost=1 ") && warning.contains("os error 126"),
        "{warning}"
    );
    assert_eq!(pair.server.stats().udp.send_errors_unknown, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn qlogs_that_cannot_be_opened_are_counted_and_reported_once() {
    Warnings::keep();
    let folder = std::env::temp_dir().join(format!("squall-no-qlog-{}", std::process::id()));
    let identity = Identity::new();
    let build = |builder: Builder| {
        let builder = builder.qlog_dir(folder.clone());
        builder.bind().unwrap()
    };
    let config = identity.server(ALPN, TransportConfig::default());
    let server = build(Builder::new(ANY).server(config));
    let client = client(&identity);
    let (near, far) = connect(&client, &server).await;
    assert_eq!(server.stats().qlogs_failed, 0);
    std::fs::remove_dir_all(&folder).unwrap();
    for failed in 1..=3 {
        let (near, far) = connect(&client, &server).await;
        assert_eq!(server.stats().qlogs_failed, failed);
        deliver(&near, &far, MESSAGE).await;
    }
    let folder = folder.to_str().unwrap();
    assert_eq!(Warnings::naming(folder).len(), 1);
    deliver(&near, &far, MESSAGE).await;
}

/// The kernel's treatment of datagrams to 127.0.0.5: 20 Mbit/s, with a queue longer than a small
/// send buffer.
const SHAPED: &str = "
    ip link set lo mtu 1500
    tc qdisc add dev lo root handle 1: htb
    tc class add dev lo parent 1: classid 1:5 htb rate 20mbit burst 32kb
    tc qdisc add dev lo parent 1:5 bfifo limit 4mb
    tc filter add dev lo parent 1: protocol ip u32 match ip dst 127.0.0.5/32 flowid 1:5
";

/// A server with a small send buffer, and a client behind the shaped link that has asked for
/// endless data.
struct Shaped {
    server: Endpoint,
    _client: Endpoint,
    near: Connection,
    far: Connection,
}

impl Shaped {
    async fn new() -> Self {
        let identity = Identity::new();
        let config = identity.server(ALPN, TransportConfig::default());
        let builder = Builder::new(ANY).server(config).send_buffer(64 << 10);
        let server = builder.bind().unwrap();
        let config = identity.client(ALPN, TransportConfig::default());
        let behind = "127.0.0.5:0".parse().unwrap();
        let client = Builder::new(behind).client(config).bind().unwrap();
        let (near, far) = connect(&client, &server).await;
        let mut send = far.open_uni().await.unwrap();
        tokio::spawn(async move {
            let chunk = Bytes::from(vec![7; 1 << 20]);
            while send.write_chunk(chunk.clone()).await.is_ok() {}
        });
        let mut recv = within(near.accept_uni()).await.unwrap();
        tokio::spawn(async move { while let Ok(Some(_)) = recv.read_chunk(usize::MAX).await {} });
        Self {
            server,
            _client: client,
            near,
            far,
        }
    }

    fn sent(&self) -> u64 {
        self.server.stats().udp.datagrams_sent
    }

    /// Waits until this many more datagrams have been sent.
    async fn send_more(&self, datagrams: u64) {
        let before = self.sent();
        within(async {
            while self.sent() - before < datagrams {
                assert_eq!(self.far.close_reason(), None);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

// test: SECURITY.md row 50: a full socket, and no descriptor left in the process
#[tokio::test(flavor = "multi_thread")]
async fn a_full_socket_needs_no_new_descriptor() {
    let name = "refusals::a_full_socket_needs_no_new_descriptor";
    let setup = format!("{SHAPED}\nulimit -n 64");
    if !namespace::inside(name, &setup) {
        return;
    }
    let shaped = Shaped::new().await;
    shaped.send_more(100).await;
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    assert!(!files.is_empty() && files.len() < 64);
    let before = shaped.server.stats().udp;
    // Two seconds of the link: it has been full many times.
    shaped.send_more(3_000).await;
    let after = shaped.server.stats().udp;
    let blocked = after.send_blocked - before.send_blocked;
    assert!(blocked > 10, "{blocked}");
    // When the system reports room, there is room.
    assert_eq!(after.errors.of(EAGAIN).sends, 0);
    assert_eq!(shaped.server.stats().worker_ends, 0);
    assert_eq!(
        (shaped.near.close_reason(), shaped.far.close_reason()),
        (None, None)
    );
}

/// Keeps the server receiving Initials that do not open, but never so many that the kernel drops
/// others' datagrams.
fn flood(server: &Endpoint, stop: &AtomicBool) {
    const WAITING: u64 = 600;
    let socket = Socket::bind(ANY, &Options::default()).unwrap();
    let received = || server.stats().udp.datagrams_received;
    let (path, before) = (
        Path {
            remote: server.local_addr().unwrap(),
            local: None,
        },
        received(),
    );
    let mut n = 0_u64;
    let mut batch = SendBatch::new(4, 12_000);
    while !stop.load(Ordering::Relaxed) {
        if socket.stats().datagrams_sent > received() - before + WAITING {
            std::thread::yield_now();
            continue;
        }
        while let Some(slot) = batch.free_slot() {
            for initial in slot[..12_000].chunks_exact_mut(1200) {
                n += 1;
                initial.fill(0x55);
                // A version 1 Initial with a unique destination id, no source id, no token, and
                // 1180 bytes that do not open.
                initial[..7].copy_from_slice(&[0xc0, 0, 0, 0, 1, 8, 0]);
                initial[6..14].copy_from_slice(&n.to_be_bytes());
                initial[14..18].copy_from_slice(&[0, 0, 0x44, 0x9e]);
            }
            batch.push(Transmit {
                path,
                ecn: Ecn::NotEct,
                segment_size: 1200,
                len: 12_000,
            });
        }
        let _ = socket.send(&mut batch);
    }
}

// test: SECURITY.md row 50: a socket that was full is tried again, however much there is to receive
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_does_not_delay_retrying_a_full_socket() {
    let name = "refusals::a_flood_does_not_delay_retrying_a_full_socket";
    if !namespace::inside(name, SHAPED) {
        return;
    }
    let shaped = Shaped::new().await;
    shaped.send_more(500).await;
    let stop = Arc::new(AtomicBool::new(false));
    let flooder = std::thread::spawn({
        let (server, stop) = (shaped.server.clone(), Arc::clone(&stop));
        move || flood(&server, &stop)
    });
    // From here on, there is always something to receive.
    let received = || shaped.server.stats().udp.datagrams_received;
    let before = received();
    within(async {
        while received() - before < 20_000 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let before = shaped.server.stats();
    shaped.send_more(2_000).await;
    let after = shaped.server.stats();
    let turns = after.turns - before.turns;
    let blocked = after.udp.send_blocked - before.udp.send_blocked;
    // The socket is tried in most of the 200 to 2,000 turns. It was tried two dozen times when the
    // worker waited for the system to report room, which happens only while the worker sleeps.
    assert!(blocked > turns / 4, "{blocked} attempts in {turns} turns");
    stop.store(true, Ordering::Relaxed);
    flooder.join().unwrap();
    shaped.send_more(100).await;
}

// test: SECURITY.md row 50: routes that refuse, of the kernel's own making
#[tokio::test(flavor = "multi_thread")]
async fn a_refusing_route_costs_only_its_own_datagrams() {
    let name = "refusals::a_refusing_route_costs_only_its_own_datagrams";
    let setup = "
        ip route add blackhole 10.2.0.0/16
        ip route add prohibit 10.3.0.0/16
        ip route add unreachable 10.4.0.0/16
        ip route add throw 10.5.0.0/16
    ";
    if !namespace::inside(name, setup) {
        return;
    }
    let identity = Identity::new();
    let config = identity.client(ALPN, TransportConfig::default());
    let any = "0.0.0.0:0".parse().unwrap();
    let client = Builder::new(any).client(config).bind().unwrap();
    let server = server(&identity, 1);
    let (near, far) = connect(&client, &server).await;
    let mut lost = Vec::new();
    for net in 2..=5 {
        let nowhere = ([10, net, 0, 1], 4433).into();
        lost.push(client.connect(nowhere, "localhost").unwrap());
    }
    deliver(&near, &far, MESSAGE).await;
    within(async {
        // EINVAL, EACCES, EHOSTUNREACH, ENETUNREACH.
        for errno in [22, EACCES, 113, 101] {
            while client.stats().udp.errors.of(errno).sends == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    })
    .await;
    deliver(&far, &near, MESSAGE).await;
    assert_eq!(client.stats().worker_ends, 0);
}

/// As with TCP, a client without a route to the server need not wait for a timeout. A connection
/// that exists waits: the route may come back.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_route_fails_at_once() {
    let name = "refusals::a_client_without_a_route_fails_at_once";
    let setup = "
        ip link add near type veth peer name far
        ip addr add 192.0.2.5/24 dev near
        ip link set near up
        ip route add unreachable 10.4.0.0/16
    ";
    if !namespace::inside(name, setup) {
        return;
    }
    let identity = Identity::new();
    let config = identity.client(ALPN, TransportConfig::default());
    let any = "0.0.0.0:0".parse().unwrap();
    let client = Builder::new(any).client(config.clone()).bind().unwrap();
    let of_loopback = Builder::new(ANY).client(config).bind().unwrap();
    let server = server(&identity, 1);
    let (near, far) = connect(&client, &server).await;
    for (client, to, why) in [
        (&client, "198.51.100.1:443", ErrorKind::NetworkUnreachable),
        (&client, "10.4.0.1:443", ErrorKind::HostUnreachable),
        (&of_loopback, "192.0.2.1:443", ErrorKind::InvalidInput),
    ] {
        let addresses = [to.parse().unwrap(), "198.51.100.77:443".parse().unwrap()];
        let [first, second] = addresses.map(|to| client.connect(to, "localhost").unwrap());
        let (first, second) = within(async { tokio::join!(first, second) }).await;
        assert_eq!(first.err(), Some(CloseReason::Unreachable(why)));
        let second = second.err();
        assert!(
            matches!(second, Some(CloseReason::Unreachable(_))),
            "{second:?}"
        );
    }
    assert_eq!(client.stats().connections, 1);
    let loopback = |state: &str| {
        let args = ["link", "set", "lo", state];
        let set = std::process::Command::new("ip").args(args).status();
        assert!(set.unwrap().success());
    };
    loopback("down");
    let sent = |near: &Connection| near.stats().datagrams_sent;
    let before = sent(&near);
    let mut late = near.open_uni().await.unwrap();
    late.write_all(b"late").await.unwrap();
    within(async {
        while sent(&near) == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    loopback("up");
    late.finish().unwrap();
    let mut found = within(far.accept_uni()).await.unwrap();
    assert_eq!(within(found.read_to_end(10)).await.unwrap(), b"late"[..]);
}
