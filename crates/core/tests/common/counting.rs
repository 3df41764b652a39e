//! A counting allocator for tests of what a connection holds: a test that includes this file as a
//! module uses it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes that this thread has allocated and not freed.
    static HELD: Cell<isize> = const { Cell::new(0) };
}

fn note(bytes: isize) {
    // A thread that is ending has no counter any more, and nobody reads it.
    let _ = HELD.try_with(|held| held.set(held.get() + bytes));
}

struct Counting;

// SAFETY: every call goes to the system's allocator with unchanged arguments.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: as the trait asks; nothing is done with the memory here.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        // SAFETY: the caller's promise about `layout` is handed on.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: as the trait asks; nothing is done with the memory here.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(-(layout.size() as isize));
        // SAFETY: the caller's promise about `pointer` and `layout` is handed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that this thread holds.
pub(crate) fn held() -> isize {
    HELD.get()
}
