//! The operations do not allocate once a busy key has grown.
//!
//! Alone in its file, since the counting allocator counts the whole process.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{Batch, for_every_kernel};
use squall_protect::{Outcome, PacketMemory, ScatteredPacket, TAG_LEN};

struct Counting;

thread_local! {
    /// Of this thread only: the test runner allocates too.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is handed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: as the trait asks; nothing is done with the memory here.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise is the same as ours.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: as the trait asks; nothing is done with the memory here.
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
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

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

#[test]
fn no_operation_allocates() {
    assert!(allocations(|| drop(vec![1])) > 0, "the allocator counts");
    for_every_kernel(|suite, kind, keys| {
        let mut full = Batch::new(1450, 64);
        let grown = allocations(|| full.seal(keys));
        // A busy key's tables are allocated in its first busy call, in one piece; keys without such
        // tables allocate nothing.
        assert!(grown <= 1, "{suite:?} {kind:?}: {grown}");
        for payload_len in [0, 4, 16, 64, 65, 300, 1450] {
            for count in [1, 7, 64] {
                let mut batch = Batch::new(payload_len, count);
                let payload = [9; 1450];
                let sources = vec![&payload[..payload_len / 2]; count];
                let made = allocations(|| {
                    let (buf, spans) = (&mut batch.buf, &mut batch.spans);
                    keys.packet.seal(&keys.header, buf, spans, &sources);
                    batch.open(keys);
                });
                assert!(batch.spans.iter().all(|span| span.outcome == Outcome::Open));
                let mut memory = [[0; 1450]; 64];
                let mut targets = (memory.each_mut()).map(|bytes| &mut bytes[..payload_len / 2]);
                batch.pend();
                batch.seal(keys);
                batch.pend();
                let made = made
                    + allocations(|| {
                        let (buf, spans) = (&mut batch.buf, &mut batch.spans);
                        keys.header.unprotect(buf, spans);
                        keys.packet.open_into(buf, spans, 0, &mut targets);
                    });
                assert_eq!(made, 0, "{suite:?} {kind:?} {count} of {payload_len}");
                assert!(batch.spans.iter().all(|span| span.outcome == Outcome::Open));
            }
        }
    });
}

#[test]
fn packets_in_parts_need_no_allocation() {
    for_every_kernel(|suite, kind, keys| {
        keys.packet.grow();
        let mut payloads = [[9; 1450]; 20];
        let mut tags = [[0; TAG_LEN]; 20];
        let mut packets: Vec<_> = (payloads.iter_mut().zip(&mut tags))
            .map(|(payload, tag)| {
                let header = &[0x40, 1];
                ScatteredPacket::new(
                    PacketMemory::Parts {
                        header,
                        payload,
                        tag,
                    },
                    7,
                )
            })
            .collect();
        // The thread's scratch, once.
        keys.packet.open_scattered(&mut packets[..1]);
        packets[0].outcome = Outcome::Pending;
        let made = allocations(|| keys.packet.seal_scattered(&mut packets));
        assert_eq!(made, 0, "{suite:?} {kind:?}");
        packets
            .iter_mut()
            .for_each(|packet| packet.outcome = Outcome::Pending);
        let made = allocations(|| keys.packet.open_scattered(&mut packets));
        assert_eq!(made, 0, "{suite:?} {kind:?}");
        assert!(packets.iter().all(|it| it.outcome == Outcome::Open));
    });
}
