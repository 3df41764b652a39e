//! Endpoints without UDP: over a channel in memory that loses datagrams, and over TCP.
#![expect(clippy::unwrap_used, reason = "a test's way to fail")]

mod common;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::{ALPN, ANY, Identity, connect, pattern, until, within};
use squall::{
    Builder, Bytes, CloseReason, Connection, DatagramSocket, Endpoint, OutgoingDatagrams,
    ReceivedDatagrams, TransportConfig, WorkerEndReason,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Datagrams on their way in one direction.
#[derive(Default)]
struct Pipe {
    waiting: VecDeque<Vec<u8>>,
    /// Datagrams so far.
    count: u64,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// Maximum number of datagrams that a pipe holds.
const ROOM: usize = 24;

/// One end of two pipes.
#[derive(Clone)]
struct Channel {
    local: SocketAddr,
    remote: SocketAddr,
    incoming: Arc<Mutex<Pipe>>,
    outgoing: Arc<Mutex<Pipe>>,
    /// Every datagram whose number is a multiple of this is lost; 0: none.
    lose_every: u64,
    max_segments: usize,
    gone: Arc<AtomicBool>,
}

impl Channel {
    fn pair(lose_every: u64, max_segments: usize) -> (Self, Self) {
        let [left, right] = [(); 2].map(|()| Arc::<Mutex<Pipe>>::default());
        let (here, there) = ("10.9.9.1:1".parse().unwrap(), "10.9.9.2:2".parse().unwrap());
        let one = Self {
            local: here,
            remote: there,
            incoming: Arc::clone(&left),
            outgoing: Arc::clone(&right),
            lose_every,
            max_segments,
            gone: Arc::default(),
        };
        let other = Self {
            local: there,
            remote: here,
            incoming: right,
            outgoing: left,
            gone: Arc::default(),
            ..one.clone()
        };
        (one, other)
    }

    fn poll_take(&self, cx: &mut Context<'_>, most: usize) -> Poll<Vec<Vec<u8>>> {
        let mut pipe = self.incoming.lock().unwrap();
        let mut taken: Vec<Vec<u8>> = Vec::new();
        // As many as have the same size; a shorter one ends them.
        while taken.len() < self.max_segments
            && let Some(next) = pipe.waiting.front()
            && (taken.first()).is_none_or(|first| {
                next.len() <= first.len()
                    && taken.last().unwrap().len() == first.len()
                    && (taken.len() + 1) * first.len() <= most
            })
        {
            taken.extend(pipe.waiting.pop_front());
        }
        if taken.is_empty() {
            pipe.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if let Some(writer) = pipe.writer.take() {
            writer.wake();
        }
        Poll::Ready(taken)
    }

    fn poll_put(&self, cx: &mut Context<'_>, datagrams: &[&[u8]]) -> Poll<()> {
        let mut pipe = self.outgoing.lock().unwrap();
        if pipe.waiting.len() + datagrams.len() > ROOM {
            pipe.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        for datagram in datagrams {
            pipe.count += 1;
            if self.lose_every == 0 || !pipe.count.is_multiple_of(self.lose_every) {
                pipe.waiting.push_back(datagram.to_vec());
            }
        }
        if let Some(reader) = pipe.reader.take() {
            reader.wake();
        }
        Poll::Ready(())
    }

    fn check(&self) -> io::Result<()> {
        match self.gone.load(Ordering::SeqCst) {
            true => Err(io::ErrorKind::BrokenPipe.into()),
            false => Ok(()),
        }
    }
}

impl DatagramSocket for Channel {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<ReceivedDatagrams>> {
        self.check()?;
        self.poll_take(cx, buffer.len()).map(|datagrams| {
            let (all, segment) = (datagrams.concat(), datagrams[0].len());
            buffer[..all.len()].copy_from_slice(&all);
            Ok(ReceivedDatagrams::one(self.remote, all.len()).segments_of(segment))
        })
    }

    fn poll_send(
        &self,
        cx: &mut Context<'_>,
        datagrams: &OutgoingDatagrams<'_>,
    ) -> Poll<io::Result<()>> {
        self.check()?;
        if datagrams.remote != self.remote {
            return Poll::Ready(Err(io::ErrorKind::HostUnreachable.into()));
        }
        let list: Vec<&[u8]> = datagrams.iter().collect();
        assert!(!list.is_empty() && list.len() <= self.max_segments);
        assert!(
            list.iter()
                .all(|datagram| datagram.len() <= datagrams.segment_size)
        );
        self.poll_put(cx, &list).map(Ok)
    }

    fn max_segments(&self) -> usize {
        self.max_segments
    }
}

/// A server and a client over these channels.
fn endpoints(here: Channel, there: Channel) -> (Endpoint, Endpoint) {
    let identity = Identity::new();
    let transport = TransportConfig::default;
    let server = Builder::new(ANY).server(identity.server(ALPN, transport()));
    let client = Builder::new(ANY).client(identity.client(ALPN, transport()));
    let server = server.datagram_socket(Arc::new(here)).bind().unwrap();
    (
        server,
        client.datagram_socket(Arc::new(there)).bind().unwrap(),
    )
}

/// Data in both directions at once, on several streams.
async fn exchange(near: &Connection, far: &Connection, bytes: usize) {
    let mut running = Vec::new();
    for seed in 0..4 {
        let (from, to) = if seed % 2 == 0 {
            (near, far)
        } else {
            (far, near)
        };
        let (from, to) = (from.clone(), to.clone());
        running.push(tokio::spawn(async move {
            let mut send = from.open_uni().await.unwrap();
            let mut data = vec![seed];
            data.extend(pattern(bytes, seed.into()));
            send.write_all(&data).await.unwrap();
            send.finish().unwrap();
        }));
        running.push(tokio::spawn(async move {
            let mut recv = to.accept_uni().await.unwrap();
            let all = recv.read_to_end(bytes + 1).await.unwrap();
            assert!(all[1..] == pattern(bytes, all[0].into()));
        }));
    }
    for task in running {
        within(task).await.unwrap();
    }
}

#[tokio::test]
async fn a_lossy_channel_delivers_everything() {
    for (lose_every, max_segments) in [(0, 1), (11, 1), (13, 16)] {
        let (here, there) = Channel::pair(lose_every, max_segments);
        let (server, client) = endpoints(here, there);
        let (near, far) = connect(&client, &server).await;
        assert_eq!(far.remote_address(), client.local_addr().unwrap());
        exchange(&near, &far, 300_000).await;
        let stats = near.stats();
        assert_eq!(stats.packets_lost > 0, lose_every > 0, "{stats:?}");
        let udp = client.stats().udp;
        assert!(
            udp.datagrams_sent > 300 && udp.datagrams_received > 300,
            "{udp:?}"
        );
        let bundled = udp.datagrams_sent > udp.messages_sent;
        assert_eq!(bundled, max_segments > 1, "{udp:?}");
        assert_eq!(client.limits().gso_segments, max_segments);
        // A datagram may be lost in the transport; another follows.
        let arrived = async { far.read_datagram().await.unwrap() };
        let mut arrived = std::pin::pin!(arrived);
        let datagram = within(async {
            loop {
                near.send_datagram(Bytes::from_static(b"ahoy")).unwrap();
                let wait = Duration::from_millis(20);
                if let Ok(datagram) = tokio::time::timeout(wait, &mut arrived).await {
                    return datagram;
                }
            }
        });
        assert_eq!(datagram.await, "ahoy");
        near.close(7, b"done");
        // So may the packet that closes the connection: each later packet is answered with another
        // one.
        let closed = far.closed();
        let mut closed = std::pin::pin!(closed);
        let reason = within(async {
            loop {
                let wait = Duration::from_millis(5);
                if let Ok(reason) = tokio::time::timeout(wait, &mut closed).await {
                    return reason;
                }
                let _ = far.send_datagram(Bytes::from_static(b"still there?"));
            }
        });
        assert!(matches!(
            reason.await,
            CloseReason::Application {
                code: 7,
                remote: true,
                ..
            }
        ));
        within(async { tokio::join!(client.wait_idle(), server.wait_idle()) }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_carrier_is_waited_for() {
    let (here, there) = Channel::pair(0, 4);
    let (server, client) = endpoints(here, there);
    let (near, far) = connect(&client, &server).await;
    // The congestion window grows beyond what the pipe holds.
    exchange(&near, &far, 500_000).await;
    // Nobody empties the pipe while the server's worker is blocked.
    let (go_on, held_up) = std::sync::mpsc::channel::<()>();
    server.spawn(async move {
        let _ = held_up.recv();
    });
    let data = pattern(200_000, 9);
    let mut send = near.open_uni().await.unwrap();
    within(send.write_all(&data)).await.unwrap();
    send.finish().unwrap();
    until(|| client.stats().udp.send_blocked > 0).await;
    drop(go_on);
    let mut recv = within(far.accept_uni()).await.unwrap();
    assert!(within(recv.read_to_end(200_000)).await.unwrap() == data);
}

/// Carries a channel's datagrams over a TCP connection, each after its length.
fn relay(channel: &Channel, stream: TcpStream) {
    let (mut reading, mut writing) = stream.into_split();
    // The far ends of the channel's pipes.
    let (to_tcp, from_tcp) = (channel.clone(), channel.clone());
    tokio::spawn(async move {
        let end = Channel {
            incoming: Arc::clone(&to_tcp.outgoing),
            ..to_tcp
        };
        loop {
            let datagrams = poll_fn(|cx| end.poll_take(cx, usize::MAX)).await;
            for datagram in datagrams {
                writing.write_u16(datagram.len() as u16).await.unwrap();
                writing.write_all(&datagram).await.unwrap();
            }
        }
    });
    tokio::spawn(async move {
        let end = Channel {
            outgoing: Arc::clone(&from_tcp.incoming),
            ..from_tcp
        };
        while let Ok(len) = reading.read_u16().await {
            let mut datagram = vec![0; len.into()];
            reading.read_exact(&mut datagram).await.unwrap();
            poll_fn(|cx| end.poll_put(cx, &[&datagram])).await;
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overlay_over_tcp_delivers_everything() {
    let listener = TcpListener::bind(ANY).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (one, other) = tokio::join!(TcpStream::connect(address), listener.accept());
    // Two channels whose other ends are not used: TCP is between them.
    let (here, _) = Channel::pair(0, 1);
    let (_, there) = Channel::pair(0, 1);
    relay(&here, one.unwrap());
    relay(&there, other.unwrap().0);
    let (server, client) = endpoints(here, there);
    let (near, far) = connect(&client, &server).await;
    exchange(&near, &far, 500_000).await;
    assert_eq!(near.stats().packets_forged + far.stats().packets_forged, 0);
    near.close(0, b"");
    within(far.closed()).await;
}

#[tokio::test]
async fn a_lost_carrier_ends_the_worker_which_can_be_restarted() {
    let (here, there) = Channel::pair(0, 4);
    let gone = Arc::clone(&here.gone);
    let (server, client) = endpoints(here, there);
    let (near, far) = connect(&client, &server).await;
    gone.store(true, Ordering::SeqCst);
    near.send_datagram(Bytes::from_static(b"wakes the server"))
        .unwrap();
    let end = within(server.worker_ended()).await.unwrap();
    let WorkerEndReason::Socket(error) = &end.reason else {
        panic!("{end}");
    };
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    within(far.closed()).await;
    gone.store(false, Ordering::SeqCst);
    server.restart_worker(0).unwrap();
    let (near, far) = connect(&client, &server).await;
    exchange(&near, &far, 10_000).await;
}

#[tokio::test]
async fn an_endpoint_moves_to_another_carrier_and_to_udp_and_back() {
    let (here, there) = Channel::pair(0, 4);
    let (server, client) = endpoints(here.clone(), there.clone());
    let (near, far) = connect(&client, &server).await;
    exchange(&near, &far, 10_000).await;
    for (endpoint, old) in [(&client, &there), (&server, &here)] {
        let new = Channel {
            gone: Arc::default(),
            ..old.clone()
        };
        endpoint.rebind_datagram_socket(Arc::new(new)).unwrap();
        // Works once it has moved. The worker would end if it still used the old one.
        exchange(&near, &far, 1_000).await;
        old.gone.store(true, Ordering::SeqCst);
        exchange(&near, &far, 10_000).await;
    }
    // Both on loopback, where the next connection is made.
    for endpoint in [&client, &server] {
        endpoint.rebind(ANY).unwrap();
    }
    let (near, far) = connect(&client, &server).await;
    exchange(&near, &far, 10_000).await;
    // A UDP socket was in use; now the carrier returns.
    for (endpoint, old) in [(&client, &there), (&server, &here)] {
        let new = Channel {
            gone: Arc::default(),
            ..old.clone()
        };
        endpoint.rebind_datagram_socket(Arc::new(new)).unwrap();
        assert_eq!(endpoint.local_addr().unwrap(), old.local);
    }
    let (near, far) = connect(&client, &server).await;
    exchange(&near, &far, 10_000).await;
}

#[test]
fn settings_that_need_a_socket_are_rejected() {
    let builder = || Builder::new(ANY).datagram_socket(Arc::new(Channel::pair(0, 1).0));
    assert!(builder().workers(2).bind().is_err());
    let socket = std::net::UdpSocket::bind(ANY).unwrap();
    assert!(builder().socket(socket).bind().is_err());
    let several = Builder::new(ANY).workers(2).bind().unwrap();
    let moved = several.rebind_datagram_socket(Arc::new(Channel::pair(0, 1).0));
    assert_eq!(moved.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    let endpoint = builder().bind().unwrap();
    assert_eq!(
        endpoint.local_addr().unwrap(),
        "10.9.9.1:1".parse().unwrap()
    );
}
