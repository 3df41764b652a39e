//! What a connection costs in memory, by counting what is allocated.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use common::link::{Host, Link};
use common::tls;
use squall_core::{EndpointConfig, TransportConfig};

thread_local! {
    /// Bytes that this thread has allocated and not given back.
    static HELD: Cell<isize> = const { Cell::new(0) };
}

fn note(bytes: isize) {
    // A thread that ends has no counter any more, and nobody to read it.
    let _ = HELD.try_with(|held| held.set(held.get() + bytes));
}

struct Counting;

// SAFETY: every call goes to the system's allocator with the arguments that it came with.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        // SAFETY: the caller's promise about `layout` is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(-(layout.size() as isize));
        // SAFETY: the caller's promise about `pointer` and `layout` is handed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn held() -> isize {
    HELD.get()
}

/// Connections that a server gets; the test's own notes of datagrams are let go.
fn connect(link: &mut Link, tls: &Arc<rustls::ClientConfig>, count: usize) {
    for _ in 0..count {
        let transport = TransportConfig::default();
        link.client.connect(link.now, Arc::clone(tls), transport);
        link.run();
        link.to_client = Vec::new();
        link.to_server = Vec::new();
        link.client.events = Vec::new();
        link.server.events = Vec::new();
    }
}

#[test]
fn an_idle_connection_of_a_server_takes_at_most_16_kb() {
    const COUNT: usize = 20;
    let (client_tls, server_tls) = tls();
    let config = EndpointConfig::new([1; 32]);
    let server = Host::server(config, server_tls, TransportConfig::default());
    let mut link = Link::new(Host::client(), server);
    // What is made once is made by the first; the clients' halves are dropped.
    connect(&mut link, &client_tls, 3);
    link.client.connections.clear();
    let before = held();
    connect(&mut link, &client_tls, COUNT);
    let both = held() - before;
    link.client.connections.clear();
    let after = held();
    let server = (after - before) / COUNT as isize;
    let client = both / COUNT as isize - server;
    println!("bytes of an idle connection: server {server}, client {client}");
    assert!(server <= 16 * 1024, "{server} bytes");
}
