//! What all functions have in common: statuses, checks of pointers, and no panic that leaves Rust.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a function reports. If it is neither `SQUALL_STATUS_OK` nor `SQUALL_STATUS_INTERNAL`,
/// nothing was worked on.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[repr(C)]
pub enum Status {
    /// The call was carried out. What became of each packet is in its `outcome`.
    Ok = 0,
    /// A pointer is null that must not be.
    Null = 1,
    /// A length is wrong: that of a key does not fit the suite, or something is longer than the
    /// library can describe (2^32 - 1 bytes).
    Length = 2,
    /// The suite is unknown, or two keys of one call are of different suites.
    Suite = 3,
    /// A value is not allowed: an `outcome` that is none, or an array that is not aligned.
    Value = 4,
    /// Memory overlaps that must not.
    Overlap = 5,
    /// A bug in the library: it panicked, and printed why to the standard error. Packets of the
    /// call may be half done.
    Internal = 6,
}

/// Runs a function's body; a panic becomes a status.
pub(crate) fn guarded(body: impl FnOnce() -> Result<(), Status>) -> Status {
    // A key is not changed by sealing and opening but for tables that are complete or absent, and
    // the packets are reported as half done.
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

/// An array of C. Null is an empty one.
///
/// # Safety
///
/// If `ptr` is not null, `count` values can be read there for `'a`, and nothing writes to them.
pub(crate) unsafe fn array<'a, T>(ptr: *const T, count: usize) -> Result<&'a [T], Status> {
    if count == 0 {
        return Ok(&[]);
    }
    check(ptr, count)?;
    // SAFETY: not null, aligned and not too long, as just checked; the rest says the caller.
    Ok(unsafe { std::slice::from_raw_parts(ptr, count) })
}

/// As [`array`], to be written.
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
    // SAFETY: not null, aligned and not too long, as just checked; the rest says the caller.
    Ok(unsafe { std::slice::from_raw_parts_mut(ptr, count) })
}

/// One value of C.
///
/// # Safety
///
/// If `ptr` is not null, a `T` can be read there for `'a`, and nothing writes to it.
pub(crate) unsafe fn one<'a, T>(ptr: *const T) -> Result<&'a T, Status> {
    check(ptr, 1)?;
    // SAFETY: not null and aligned, as just checked; the rest says the caller.
    Ok(unsafe { &*ptr })
}

/// Checks where a result is to be stored.
pub(crate) fn check_out<T>(ptr: *mut T) -> Result<(), Status> {
    check(ptr, 1)
}
