//! A bad network on loopback: datagrams between clients and a server are lost, duplicated, held
//! back, damaged, and now and then arrive from another port, as behind a NAT that has lost its
//! binding. A datagram's fate follows from the seed and the datagram's number in its direction; the
//! times are the system's.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]
#![allow(dead_code, reason = "every test file uses a part")]
#![allow(unreachable_pub, reason = "shared by several test crates")]

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::task::AbortHandle;

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The faults, each as a percentage of datagrams.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub loss: u64,
    pub duplication: u64,
    /// Held back for [`HOLD`], so that later ones overtake.
    pub reordering: u64,
    /// One bit is flipped.
    pub corruption: u64,
    /// The server sees another port of the client each time that this many of its datagrams have
    /// passed; 0: never.
    pub rebind_after: u64,
}

/// How long a datagram is held back that others overtake.
const HOLD: Duration = Duration::from_millis(3);

/// How often each fault struck.
#[derive(Debug, Default)]
pub struct Counts {
    pub lost: AtomicU64,
    pub doubled: AtomicU64,
    pub held: AtomicU64,
    pub corrupted: AtomicU64,
    pub rebound: AtomicU64,
}

/// The proxy to which clients send. It ends with its runtime.
pub struct Proxy {
    pub address: SocketAddr,
    pub counts: Arc<Counts>,
}

impl Proxy {
    pub async fn start(server: SocketAddr, seed: u64, faults: Faults) -> Self {
        let front = Arc::new(UdpSocket::bind(ANY).await.unwrap());
        let address = front.local_addr().unwrap();
        let counts = Arc::new(Counts::default());
        tokio::spawn(forward(front, server, seed, faults, Arc::clone(&counts)));
        Self { address, counts }
    }
}

/// A client, as seen by the proxy.
struct Client {
    back: Arc<UdpSocket>,
    reader: AbortHandle,
    way: Way,
    sent: u64,
}

async fn forward(
    front: Arc<UdpSocket>,
    server: SocketAddr,
    seed: u64,
    faults: Faults,
    counts: Arc<Counts>,
) {
    let mut clients: HashMap<SocketAddr, Client> = HashMap::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        // An end that is gone refuses datagrams (ICMP): they are lost.
        let Ok((len, from)) = front.recv_from(&mut buffer).await else {
            continue;
        };
        let number = clients.len() as u64;
        let client = match clients.entry(from) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let way = Way::new(seed ^ (number << 32), faults, &counts);
                let (back, reader) = open(server, &front, from, way.reverse()).await;
                new.insert(Client {
                    back,
                    reader,
                    way,
                    sent: 0,
                })
            }
        };
        client.sent += 1;
        if faults.rebind_after > 0 && client.sent.is_multiple_of(faults.rebind_after) {
            // The old port is closed at once: datagrams that still arrive there are lost.
            client.reader.abort();
            let way = client.way.reverse();
            (client.back, client.reader) = open(server, &front, from, way).await;
            counts.rebound.fetch_add(1, Ordering::Relaxed);
        }
        let back = Arc::clone(&client.back);
        let passing = client.way.pass(&buffer[..len], move |bytes| {
            let back = Arc::clone(&back);
            async move {
                let _ = back.send(&bytes).await;
            }
        });
        passing.await;
    }
}

/// Opens a port towards the server, and the task that carries its datagrams back.
async fn open(
    server: SocketAddr,
    front: &Arc<UdpSocket>,
    client: SocketAddr,
    mut way: Way,
) -> (Arc<UdpSocket>, AbortHandle) {
    let back = Arc::new(UdpSocket::bind(ANY).await.unwrap());
    back.connect(server).await.unwrap();
    let (socket, front) = (Arc::clone(&back), Arc::clone(front));
    let reader = tokio::spawn(async move {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let Ok(len) = socket.recv(&mut buffer).await else {
                continue;
            };
            let front = Arc::clone(&front);
            let passing = way.pass(&buffer[..len], move |bytes| {
                let front = Arc::clone(&front);
                async move {
                    let _ = front.send_to(&bytes, client).await;
                }
            });
            passing.await;
        }
    });
    (back, reader.abort_handle())
}

/// One direction of one client.
struct Way {
    state: u64,
    faults: Faults,
    counts: Arc<Counts>,
}

impl Way {
    fn new(seed: u64, faults: Faults, counts: &Arc<Counts>) -> Self {
        let mut way = Self {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            faults,
            counts: Arc::clone(counts),
        };
        // The first numbers of neighbouring seeds are alike.
        for _ in 0..16 {
            way.random();
        }
        way
    }

    fn reverse(&self) -> Self {
        Self::new(!self.state, self.faults, &self.counts)
    }

    /// Xorshift (Marsaglia 2003).
    fn random(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state >> 11
    }

    /// Forwards a datagram, or applies the fault that its number determines. Only datagrams held
    /// back are reordered.
    async fn pass<S, F>(&mut self, bytes: &[u8], send: S)
    where
        S: Fn(Vec<u8>) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let mut bytes = bytes.to_vec();
        let fate = self.random() % 100;
        let place = self.random();
        let Faults {
            loss,
            duplication,
            reordering,
            corruption,
            ..
        } = self.faults;
        let counts = &self.counts;
        let mut copies = 1;
        let mut hold = false;
        if fate < loss {
            counts.lost.fetch_add(1, Ordering::Relaxed);
            return;
        } else if fate < loss + duplication {
            counts.doubled.fetch_add(1, Ordering::Relaxed);
            copies = 2;
        } else if fate < loss + duplication + reordering {
            counts.held.fetch_add(1, Ordering::Relaxed);
            hold = true;
        } else if fate < loss + duplication + reordering + corruption && !bytes.is_empty() {
            counts.corrupted.fetch_add(1, Ordering::Relaxed);
            let bit = place as usize % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let pass = async move {
            for _ in 0..copies {
                send(bytes.clone()).await;
            }
        };
        if hold {
            tokio::spawn(async move {
                tokio::time::sleep(HOLD).await;
                pass.await;
            });
        } else {
            pass.await;
        }
    }
}
