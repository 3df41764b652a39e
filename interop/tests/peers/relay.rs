//! A bad network on loopback: datagrams are lost, overtaken and doubled on their way between a client and a server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::UdpSocket;

use crate::payload::Payload;
use crate::setup::ANY;

/// Of a hundred datagrams, as many are lost.
const LOST: u64 = 5;
/// As many arrive twice.
const DOUBLED: u64 = 2;
/// As many are held back for [`DELAY`], so that later ones overtake them.
const DELAYED: u64 = 5;
const DELAY: Duration = Duration::from_millis(3);

/// Where a client sends to reach the server behind the relay, and what happened on the way.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    lost: Arc<AtomicU64>,
}

impl Relay {
    /// Starts a relay for one client. What it does to a datagram follows from `seed` and the datagram's number.
    pub(crate) async fn start(server: SocketAddr, seed: u64) -> Self {
        let front = Arc::new(UdpSocket::bind(ANY).await.expect("a socket"));
        let back = Arc::new(UdpSocket::bind(ANY).await.expect("a socket"));
        back.connect(server).await.expect("the server's address");
        let address = front.local_addr().expect("an address");
        let lost = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&lost);
        tokio::spawn(async move {
            let mut buffer = vec![0; 1 << 16];
            let mut backward = vec![0; 1 << 16];
            // The client's address is known by its first datagram.
            let (len, client) = front.recv_from(&mut buffer).await.expect("a datagram");
            back.send(&buffer[..len]).await.expect("it is sent");
            front.connect(client).await.expect("the client's address");
            let fates = Payload {
                seed,
                len: u64::MAX,
            };
            for number in 0.. {
                let (to, bytes) = tokio::select! {
                    len = front.recv(&mut buffer) => (&back, len.map(|len| buffer[..len].to_vec())),
                    len = back.recv(&mut backward) => (&front, len.map(|len| backward[..len].to_vec())),
                };
                // An end that is gone refuses what is sent to it (ICMP): that is its loss.
                let Ok(bytes) = bytes else { continue };
                let mut fate = [0; 8];
                fates.fill(number * 8, &mut fate);
                let fate = u64::from_le_bytes(fate) % 100;
                if fate < LOST {
                    counter.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                if fate < LOST + DELAYED {
                    let to = Arc::clone(to);
                    tokio::spawn(async move {
                        tokio::time::sleep(DELAY).await;
                        let _ = to.send(&bytes).await;
                    });
                    continue;
                }
                let _ = to.send(&bytes).await;
                if fate < LOST + DELAYED + DOUBLED {
                    let _ = to.send(&bytes).await;
                }
            }
        });
        Self { address, lost }
    }

    /// How many datagrams were lost so far.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}
