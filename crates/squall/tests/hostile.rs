//! A port under attack: garbage, truncated and forged packets, foreign versions, clients that
//! vanish. The server keeps serving and its memory does not grow. Alone in its file, one test at a
//! time, because it looks at the process's memory.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{ALPN, ANY, Identity, endpoints, pattern, until, within};
use squall::{Builder, Endpoint, TransportConfig};

/// Held by the running test: what another allocates meanwhile would count as its own.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Resident memory of the process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs is mounted");
    let line = status
        .lines()
        .find(|l| l.starts_with("VmRSS:"))
        .expect("the status has a VmRSS line");
    let kib: u64 = line
        .split_whitespace()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .expect("a number");
    kib * 1024
}

/// A relay between a client and the server that lets a test see and replay datagrams.
struct Relay {
    /// The address that the client connects to.
    address: SocketAddr,
    /// The socket at which the server sees the client.
    towards_server: Arc<UdpSocket>,
    /// The last datagram with a short header from the client.
    last_short: Arc<std::sync::Mutex<Vec<u8>>>,
    stop: Arc<AtomicBool>,
}

impl Relay {
    fn start(server: SocketAddr) -> Self {
        let near = Arc::new(UdpSocket::bind(ANY).unwrap());
        let far = Arc::new(UdpSocket::bind(ANY).unwrap());
        far.connect(server).unwrap();
        for socket in [&near, &far] {
            socket
                .set_read_timeout(Some(Duration::from_millis(20)))
                .unwrap();
        }
        let stop = Arc::new(AtomicBool::new(false));
        let last_short = Arc::new(std::sync::Mutex::new(Vec::new()));
        let client = Arc::new(std::sync::Mutex::new(None));
        let address = near.local_addr().unwrap();
        let (from, to, ended, learn, last) = (
            near.clone(),
            far.clone(),
            stop.clone(),
            client.clone(),
            last_short.clone(),
        );
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while !ended.load(Ordering::Relaxed) {
                let Ok((len, source)) = from.recv_from(&mut buffer) else {
                    continue;
                };
                *learn.lock().unwrap() = Some(source);
                if buffer[0] & 0x80 == 0 {
                    *last.lock().unwrap() = buffer[..len].to_vec();
                }
                let _ = to.send(&buffer[..len]);
            }
        });
        let (from, to, ended) = (far.clone(), near, stop.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while !ended.load(Ordering::Relaxed) {
                let Ok(len) = from.recv(&mut buffer) else {
                    continue;
                };
                if let Some(client) = *client.lock().unwrap() {
                    let _ = to.send_to(&buffer[..len], client);
                }
            }
        });
        Self {
            address,
            towards_server: far,
            last_short,
            stop,
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// One hostile datagram of each kind in turn; `None` stands for a forged packet of the live
/// connection.
fn hostile(n: u64, out: &mut Vec<u8>) -> bool {
    out.clear();
    let noise = pattern(1400, n);
    match n % 8 {
        // Garbage of any length, short and long headers.
        0 => out.extend_from_slice(&noise[..(n as usize * 7) % 1400]),
        1 => {
            out.extend_from_slice(&noise[..(n as usize * 11) % 1400]);
            out.iter_mut().take(1).for_each(|b| *b |= 0xc0);
        }
        // An Initial of version 1, well formed, whose tag is wrong; and one cut short.
        2 | 3 => {
            out.extend_from_slice(&[0xc3, 0, 0, 0, 1, 8]);
            out.extend_from_slice(&noise[..8]);
            out.extend_from_slice(&[8]);
            out.extend_from_slice(&noise[8..16]);
            out.extend_from_slice(&[0, 0x44, 0x96]);
            out.extend_from_slice(&noise[..1174]);
            if n % 8 == 3 {
                out.truncate(1200 - (n as usize % 1199));
            }
        }
        // An unknown version.
        4 => {
            out.extend_from_slice(&[0xc0, 0xba, 0xba, 0xba, 0xba, 8]);
            out.extend_from_slice(&noise[..1194]);
        }
        // Short headers and Handshake packets that belong to no connection.
        5 => {
            out.extend_from_slice(&noise[..60]);
            out[0] = 0x40;
        }
        6 => {
            out.extend_from_slice(&[0xe0, 0, 0, 0, 1, 8]);
            out.extend_from_slice(&noise[..200]);
        }
        _ => return false,
    }
    true
}

/// Sends the hostile datagrams `range` and waits until the server has looked at them.
async fn fire(server: &Endpoint, socket: &UdpSocket, relay: &Relay, range: std::ops::Range<u64>) {
    let to = server.local_addr().unwrap();
    let mut bytes = Vec::with_capacity(2048);
    let before = server.stats().udp.datagrams_received;
    let mut sent = 0;
    for n in range {
        if hostile(n, &mut bytes) {
            sent += u64::from(socket.send_to(&bytes, to).is_ok());
        } else {
            bytes.clear();
            bytes.extend_from_slice(&relay.last_short.lock().unwrap());
            let at = bytes.len() - 1 - (n as usize / 8) % 20;
            bytes[at] ^= 0x55;
            sent += u64::from(relay.towards_server.send(&bytes).is_ok());
        }
        // In step with the server: what the kernel drops for lack of buffer would prove nothing.
        while sent > server.stats().udp.datagrams_received - before + 200 {
            tokio::task::yield_now().await;
        }
    }
    until(|| server.stats().udp.datagrams_received - before >= sent).await;
}

#[tokio::test]
async fn a_million_hostile_datagrams_leave_nothing_behind() {
    let _alone = ALONE.lock().await;
    // Forged packets keep no connection alive, and a busy machine takes its time.
    let transport = || TransportConfig::default().max_idle_timeout(Duration::from_secs(600));
    let (server, client) = endpoints(transport);
    let relay = Relay::start(server.local_addr().unwrap());
    let connecting = client.connect(relay.address, "localhost").unwrap();
    let incoming = within(server.accept()).await.unwrap();
    let (near, far) = within(async { tokio::join!(connecting, incoming.accept()) }).await;
    let (near, far) = (near.unwrap(), far.unwrap());
    let say = async |word: &[u8]| {
        let mut send = within(near.open_uni()).await.unwrap();
        within(send.write_all(word)).await.unwrap();
        send.finish().unwrap();
        let mut recv = within(far.accept_uni()).await.unwrap();
        assert_eq!(within(recv.read_to_end(10)).await.unwrap(), word);
    };
    say(b"before").await;
    let socket = UdpSocket::bind(ANY).unwrap();
    fire(&server, &socket, &relay, 0..10_000).await;
    let early = resident();
    let total: u64 = std::env::var("SQUALL_HOSTILE")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1_000_000);
    fire(&server, &socket, &relay, 10_000..total).await;
    let late = resident();
    assert!(
        late <= early + (1 << 20),
        "{early} bytes after 10^4 datagrams, {late} after {total}"
    );
    let stats = far.stats();
    assert!(
        stats.packets_forged > total / 10,
        "too few forged packets hit the live connection: {stats:?}"
    );
    assert_eq!(
        server.stats().connections,
        1,
        "datagrams that cannot be opened create no state"
    );
    say(b"after").await;
}

#[tokio::test]
async fn clients_that_vanish_are_forgotten() {
    let _alone = ALONE.lock().await;
    let identity = Identity::new();
    let transport = TransportConfig::default().handshake_timeout(Duration::from_millis(500));
    let server = Builder::new(ANY)
        .server(identity.server(ALPN, transport))
        .bind()
        .unwrap();
    // Real first flights, captured on a port that does not answer, from clients that are gone by
    // the time they arrive.
    let capture = UdpSocket::bind(ANY).unwrap();
    capture
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let (mut flights, mut clients) = (Vec::new(), Vec::new());
    for _ in 0..50 {
        let client = Builder::new(ANY)
            .client(identity.client(ALPN, TransportConfig::default()))
            .bind()
            .unwrap();
        let connecting = client
            .connect(capture.local_addr().unwrap(), "localhost")
            .unwrap();
        let mut buffer = [0; 2048];
        let mut flight = Vec::new();
        // A ClientHello with a post-quantum share takes two datagrams; others may repeat theirs
        // meanwhile.
        while flight.len() < 2 {
            let (len, from) = capture.recv_from(&mut buffer).unwrap();
            if from.port() == client.local_addr().unwrap().port() {
                flight.push(buffer[..len].to_vec());
            }
        }
        flights.push(flight);
        clients.push((client, connecting));
    }
    drop(clients);
    let socket = UdpSocket::bind(ANY).unwrap();
    let mut attempts = tokio::task::JoinSet::new();
    for flight in &flights {
        for datagram in flight {
            socket
                .send_to(datagram, server.local_addr().unwrap())
                .unwrap();
        }
        let incoming = within(server.accept()).await.unwrap();
        // No one will answer.
        attempts.spawn(async { assert!(incoming.accept().await.is_err()) });
    }
    within(async {
        // Each was a connection, and no longer is.
        while let Some(one) = attempts.join_next().await {
            one.unwrap();
        }
        while server.stats().connections > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    // The port still serves.
    let client = Builder::new(ANY)
        .client(identity.client(ALPN, TransportConfig::default()))
        .bind()
        .unwrap();
    let connecting = client
        .connect(server.local_addr().unwrap(), "localhost")
        .unwrap();
    let incoming = within(async {
        loop {
            let incoming = server.accept().await.unwrap();
            if incoming.remote_address() == client.local_addr().unwrap() {
                return incoming;
            }
        }
    })
    .await;
    let (near, far) = within(async { tokio::join!(connecting, incoming.accept()) }).await;
    near.unwrap();
    far.unwrap();
}
