//! In steady state a request that is answered from its head costs the server's worker no
//! allocation, from the datagram that brings it to the one that carries the response.
//!
//! Alone in its file, since the allocator counts, by thread.
#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use squall::tls::Identity;
use squall::{ClientConfig, Endpoint, ServerConfig};
use squall_h3::server::{Builder, Reply};
use squall_h3::{Body, client};

thread_local! {
    /// Allocations of this thread.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending has no counter any more, and nobody reads it.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

struct Counting;

// SAFETY: every call is handed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: as the trait asks; nothing is done with the memory here.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is the same as ours.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: as the trait asks; nothing is done with the memory here.
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is the same as ours.
        unsafe { System.realloc(ptr, layout, size) }
    }

    // SAFETY: as the trait asks; nothing is done with the memory here.
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the same as ours.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Requests in flight.
const IN_FLIGHT: usize = 10;
/// Requests until the server's memory has grown to its steady size.
const WARM_UP: usize = 2_000;
const REQUESTS: usize = 2_000;
/// A worker that was delayed finds more at once than ever before, and a buffer grows: only
/// allocations in every round are due to the requests.
const ROUNDS: usize = 5;

#[tokio::test]
async fn a_reply_costs_no_allocation() {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let identity = Identity::self_signed(["localhost"]).unwrap();
    let roots = identity.roots().unwrap();
    let tls = squall::tls::server(identity, &[b"h3"]).unwrap();
    let server = Endpoint::server(any_port, ServerConfig::new(tls)).unwrap();
    let address = server.local_addr().unwrap();
    let body = Bytes::from(vec![7; 1024]);
    let response = Response::builder().header("content-type", "text/plain");
    let reply = Reply::new(response.body(body.clone()).unwrap());
    // The count of the server's worker, which runs this, as of the last request.
    let allocations = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&allocations);
    let builder = Builder::new().on_worker().answer_first(move |head| {
        seen.store(ALLOCATIONS.get(), Ordering::SeqCst);
        (head.path() == Some("/")).then(|| reply.clone())
    });
    let nothing = tower::service_fn(async |_: Request<Body>| {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_FOUND;
        Ok::<_, std::convert::Infallible>(response)
    });
    tokio::spawn(builder.serve(server.clone(), nothing).into_future());

    let endpoint = Endpoint::client(any_port).unwrap();
    let config = ClientConfig::new(squall::tls::client(roots, &[b"h3"]).unwrap());
    let connecting = endpoint.connect_with(config, address, "localhost").unwrap();
    let client = client::handshake(connecting.await.unwrap());
    let ask = async |requests: usize| {
        let asking = (0..IN_FLIGHT).map(|_| {
            let (client, body) = (client.clone(), body.clone());
            tokio::spawn(async move {
                for _ in 0..requests / IN_FLIGHT {
                    let request = Request::get("https://localhost/").body(Body::empty());
                    let response = client.send(request.unwrap()).await.unwrap();
                    let received = response.into_body().collect().await.unwrap().to_bytes();
                    assert_eq!(received, body);
                }
            })
        });
        for task in asking.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        allocations.load(Ordering::SeqCst)
    };
    let mut before = ask(WARM_UP).await;
    assert!(before > 0, "the connection itself takes memory");
    let mut fewest = f64::INFINITY;
    for _ in 0..ROUNDS {
        let after = ask(REQUESTS).await;
        println!("{} allocations for {REQUESTS} requests", after - before);
        fewest = fewest.min((after - before) as f64 / REQUESTS as f64);
        before = after;
    }
    assert!(fewest < 0.01, "{fewest} allocations a request");
}
