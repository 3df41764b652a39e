//! What depends on a client's addresses, now and before: Retry, tickets and early data, new
//! addresses.

use std::net::UdpSocket;
use std::time::Duration;

use squall::TransportConfig;
use squall::rustls::HandshakeKind;
use tokio::sync::Notify;

use super::pair::{BOTH, Pair, SquallIs, quinn_client, quinn_server, quinn_tls};
use super::traffic::transfer;
use crate::setup::{ANY, Identity, NAME, run, squall_client, squall_server};

/// How long the answer to the client's first packets is held back, so that early data is sent
/// before it arrives.
const A_WHILE: Duration = Duration::from_millis(20);

/// A server that validates the client's address first (RFC 9000 §8.1.2).
#[test]
fn a_retry_is_followed_by_either_client() {
    for role in BOTH {
        run(0, async {
            let identity = Identity::new();
            let transport = TransportConfig::default();
            let pair = match role {
                SquallIs::Client => {
                    let server = quinn_server(&identity, quinn_tls());
                    let client = squall_client(&identity, transport);
                    let to = server.local_addr().expect("an address");
                    let connecting = client.connect(to, NAME).expect("a start");
                    let accepting = async {
                        // Its ClientHello fills two packets; quinn treats each as an attempt until
                        // one has a token.
                        loop {
                            let incoming = server.accept().await.expect("an attempt");
                            if incoming.remote_address_validated() {
                                break incoming.await;
                            }
                            incoming.retry().expect("a Retry is allowed");
                        }
                    };
                    let (squall, quinn) = tokio::join!(connecting, accepting);
                    Pair {
                        squall: squall.expect("squall's handshake"),
                        quinn: quinn.expect("quinn's handshake"),
                        endpoints: (client, server),
                    }
                }
                SquallIs::Server => {
                    let server = squall_server(&identity, transport);
                    let client = quinn_client(identity.roots(), quinn_tls());
                    let to = server.local_addr().expect("an address");
                    let connecting = client.connect(to, NAME).expect("a start");
                    let accepting = async {
                        server.accept().await.expect("an attempt").retry();
                        let second = server.accept().await.expect("the same, with a token");
                        assert!(second.remote_address_validated() && !second.may_retry());
                        second.await
                    };
                    let (quinn, squall) = tokio::join!(connecting, accepting);
                    Pair {
                        squall: squall.expect("squall's handshake"),
                        quinn: quinn.expect("quinn's handshake"),
                        endpoints: (server, client),
                    }
                }
            };
            transfer(&pair, 100_000).await;
        });
    }
}

/// Tickets arrive before data that is sent after them, unless they are lost and sent again.
async fn tickets_arrive(pair: &Pair) {
    transfer(pair, 10_000).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
}

/// A client reconnects with a ticket, and its first stream travels with its first packets (RFC 9001
/// §4.6).
///
/// quinn calls a stream early if the handshake is still open when the application accepts it. On a
/// busy machine the client's Finished can overtake the application, so several tries are allowed.
#[test]
fn squall_resumes_with_early_data() {
    run(0, async {
        let pair = Pair::new(SquallIs::Client).await;
        for _ in 0..10 {
            tickets_arrive(&pair).await;
            if quinn_takes_early_data(&pair).await {
                return;
            }
        }
        panic!("no stream of ten connections was early for quinn");
    });
}

/// Whether quinn accepts the first stream of a resumed connection before the handshake is complete.
///
/// # Panics
/// squall does not send early data, quinn does not accept it, or some of it is wrong.
async fn quinn_takes_early_data(pair: &Pair) -> bool {
    let (client, server) = &pair.endpoints;
    let to = server.local_addr().expect("an address");
    let connecting = client.connect(to, NAME).expect("a start");
    let written = Notify::new();
    let asking = async {
        let Ok((connection, accepted)) = connecting.into_0rtt().await else {
            panic!("quinn's ticket does not allow early data");
        };
        let (mut send, mut recv) = connection.open_bi().await.expect("squall opens");
        send.write_all(b"early").await.expect("squall writes");
        send.finish().expect("squall finishes");
        written.notify_one();
        let answer = recv.read_to_end(100).await.expect("squall reads");
        assert_eq!(answer, b"late");
        assert!(accepted.await, "quinn did not accept early data");
        assert_eq!(connection.handshake_kind(), Some(HandshakeKind::Resumed));
        connection
    };
    let answering = async {
        let incoming = server.accept().await.expect("an attempt");
        written.notified().await;
        tokio::time::sleep(A_WHILE).await;
        let connecting = incoming.accept().expect("quinn accepts");
        let Ok((connection, accepted)) = connecting.into_0rtt() else {
            panic!("a server can always read early data");
        };
        let (mut send, mut recv) = connection.accept_bi().await.expect("quinn accepts");
        let was_early = recv.is_0rtt();
        let early = recv.read_to_end(100).await.expect("quinn reads");
        assert_eq!(early, b"early");
        send.write_all(b"late").await.expect("quinn writes");
        send.finish().expect("quinn finishes");
        accepted.await;
        (connection, was_early)
    };
    let (_squall, (_quinn, was_early)) = tokio::join!(asking, answering);
    was_early
}

/// On a busy machine quinn's early data can arrive after the server's answer and so is no longer
/// early; several tries are allowed.
#[test]
fn quinn_resumes_with_early_data() {
    run(0, async {
        let pair = Pair::new(SquallIs::Server).await;
        for _ in 0..10 {
            tickets_arrive(&pair).await;
            if squall_takes_early_data(&pair).await {
                return;
            }
        }
        panic!("no stream of ten connections was early for squall");
    });
}

/// Whether the first stream of a resumed connection arrived before the handshake was complete.
///
/// # Panics
/// quinn's ticket is of no use, squall does not accept early data, or some of it is wrong.
async fn squall_takes_early_data(pair: &Pair) -> bool {
    let (server, client) = &pair.endpoints;
    let to = server.local_addr().expect("an address");
    let connecting = client.connect(to, NAME).expect("a start");
    let Ok((connection, accepted)) = connecting.into_0rtt() else {
        panic!("squall's ticket does not allow early data");
    };
    let asking = async {
        let (mut send, mut recv) = connection.open_bi().await.expect("quinn opens");
        send.write_all(b"early").await.expect("quinn writes");
        send.finish().expect("quinn finishes");
        let answer = recv.read_to_end(100).await.expect("quinn reads");
        assert_eq!(answer, b"late");
        assert!(accepted.await, "squall did not accept early data");
    };
    let answering = async {
        let incoming = server.accept().await.expect("an attempt");
        tokio::time::sleep(A_WHILE).await;
        let Ok((connection, there)) = incoming.accept().into_0rtt().await else {
            panic!("a server can always read early data");
        };
        let (mut send, mut recv) = connection.accept_bi().await.expect("squall accepts");
        let was_early = recv.is_early();
        let early = recv.read_to_end(100).await.expect("squall reads");
        assert_eq!(early, b"early");
        send.write_all(b"late").await.expect("squall writes");
        send.finish().expect("squall finishes");
        let _ = there.await;
        assert_eq!(connection.handshake_kind(), Some(HandshakeKind::Resumed));
        (connection, was_early)
    };
    let ((), (_connection, was_early)) = tokio::join!(asking, answering);
    was_early
}

/// A client continues from another socket (RFC 9000 §9).
#[test]
fn a_client_migrates() {
    for role in BOTH {
        run(0, async {
            let pair = Pair::new(role).await;
            transfer(&pair, 100_000).await;
            let (squall_end, quinn_end) = &pair.endpoints;
            let port = |address: std::io::Result<std::net::SocketAddr>| {
                address.expect("an address").port()
            };
            for _ in 0..3 {
                let (now, seen) = match role {
                    SquallIs::Client => {
                        squall_end.rebind(ANY).expect("another socket");
                        transfer(&pair, 100_000).await;
                        (port(squall_end.local_addr()), pair.quinn.remote_address())
                    }
                    SquallIs::Server => {
                        let other = UdpSocket::bind(ANY).expect("another socket");
                        quinn_end.rebind(other).expect("quinn moves");
                        transfer(&pair, 100_000).await;
                        (port(quinn_end.local_addr()), pair.squall.remote_address())
                    }
                };
                assert_eq!(seen.port(), now, "{role:?}");
            }
        });
    }
}
