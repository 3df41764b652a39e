//! What all functions have in common: statuses, pointer checks, and panics that never leave Rust.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The result of a call. Unless it is `SQUALL_STATUS_OK` or `SQUALL_STATUS_INTERNAL`, nothing was
/// processed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(C)]
pub enum Status {
    /// The call was carried out. Each packet's result is in its `outcome`.
    Ok = 0,
    /// A pointer that must not be null is null.
    Null = 1,
    /// A length is wrong: a key's does not match the suite, or something is longer than the library
    /// can describe (2^32 - 1 bytes).
    Length = 2,
    /// The suite is unknown, or two keys of one call are of different suites.
    Suite = 3,
    /// A value is not allowed: an unknown `outcome`, or an array that is not aligned.
    Value = 4,
    /// Memory that must not overlap does.
    Overlap = 5,
    /// A bug in the library: it panicked and printed why to standard error. Packets of the call may
    /// be half processed.
    Internal = 6,
}

/// Runs a function's body and turns a panic into a status.
pub(crate) fn guarded(body: impl FnOnce() -> Result<(), Status>) -> Status {
    // Sealing and opening change a key only by tables that are complete or absent, and the packets
    // are reported as half processed.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(status)) => status,
        Err(_) => Status::Internal,
    }
}

fn check<T>(ptr: *const T, count: usize) -> Result<(), Status> {
    if ptr.is_null() {
        Err(Status::Null)
    } else if !ptr.is_aligned() {
        Err(Status::Value)
    } else if count > isize::MAX as usize / size_of::<T>().max(1) {
        Err(Status::Length)
    } else {
        Ok(())
    }
}

/// An array from C. Null is an empty array.
///
/// # Safety
///
/// If `ptr` is not null, `count` values can be read there for `'a`, and nothing writes to them.
pub(crate) unsafe fn array<'a, T>(ptr: *const T, count: usize) -> Result<&'a [T], Status> {
    if count == 0 {
        return Ok(&[]);
    }
    check(ptr, count)?;
    // SAFETY: not null, aligned and not too long, as just checked; the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts(ptr, count) })
}

/// As [`array`], but writable.
///
/// # Safety
///
/// If `ptr` is not null, `count` values can be read and written there for `'a`, and nothing else
/// uses them.
pub(crate) unsafe fn array_mut<'a, T>(ptr: *mut T, count: usize) -> Result<&'a mut [T], Status> {
    if count == 0 {
        return Ok(&mut []);
    }
    check(ptr, count)?;
    // SAFETY: not null, aligned and not too long, as just checked; the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts_mut(ptr, count) })
}

/// One value from C.
///
/// # Safety
///
/// If `ptr` is not null, a `T` can be read there for `'a`, and nothing writes to it.
pub(crate) unsafe fn one<'a, T>(ptr: *const T) -> Result<&'a T, Status> {
    check(ptr, 1)?;
    // SAFETY: not null and aligned, as just checked; the caller promises the rest.
    Ok(unsafe { &*ptr })
}

/// Checks the pointer through which a result is stored.
pub(crate) fn check_out<T>(ptr: *mut T) -> Result<(), Status> {
    check(ptr, 1)
}
