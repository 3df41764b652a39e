//! Packets in one buffer.

use std::mem::offset_of;

use protect::{MAX_GROUP, PacketSpan};

use crate::call::{Status, array, array_mut, guarded, one};
use crate::keys::{HeaderKey, PacketKey};

/// Not processed yet. The functions process pending packets only.
pub const SQUALL_PENDING: u8 = 0;
/// Received: authentic and decrypted in place. To be sent: sealed.
pub const SQUALL_OPEN: u8 = 1;
/// Received: the tag did not match, and the payload was wiped.
pub const SQUALL_FORGED: u8 = 2;
/// Received: its keys are not available. Set by the caller, never by the library.
pub const SQUALL_NO_KEY: u8 = 3;
/// Not processed: too short, outside the buffer, over another packet, or with an impossible number.
pub const SQUALL_SKIP: u8 = 4;

/// Length in bytes of the AEAD tag at the end of every packet.
pub const SQUALL_TAG_LEN: usize = 16;

const _: () = {
    use protect::Outcome;
    assert!(SQUALL_PENDING == Outcome::Pending as u8 && SQUALL_OPEN == Outcome::Open as u8);
    assert!(SQUALL_FORGED == Outcome::Forged as u8 && SQUALL_NO_KEY == Outcome::NoKey as u8);
    assert!(SQUALL_SKIP == Outcome::Skip as u8 && SQUALL_TAG_LEN == protect::TAG_LEN);
};

/// One packet in a buffer: offsets and results, no pointers.
///
/// Spans of one call lie in ascending order and do not overlap.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct Span {
    /// The packet's first byte, from the start of the buffer.
    pub start: u32,
    /// Bytes from the first byte of the header to the end of the tag.
    pub len: u32,
    /// After `squall_unprotect`, the truncated number, which the caller expands before
    /// `squall_open`. For `squall_seal`, the full number.
    pub packet_number: u64,
    /// Where the packet number begins, from `start`.
    pub pn_offset: u16,
    /// Header bytes, packet number included. Set by `squall_unprotect`, or by the writer of the
    /// packet.
    pub header_len: u16,
    /// Which of the caller's keys opens the packet; `squall_open` processes the spans of one slot.
    pub slot: u8,
    /// The packet's result: `SQUALL_PENDING` and so on.
    pub outcome: u8,
}

// A span from C is a span of Rust once its outcome is known to be valid.
const _: () = {
    assert!(size_of::<Span>() == size_of::<PacketSpan>());
    assert!(align_of::<Span>() == align_of::<PacketSpan>());
    assert!(offset_of!(Span, start) == offset_of!(PacketSpan, start));
    assert!(offset_of!(Span, len) == offset_of!(PacketSpan, len));
    assert!(offset_of!(Span, packet_number) == offset_of!(PacketSpan, packet_number));
    assert!(offset_of!(Span, pn_offset) == offset_of!(PacketSpan, pn_offset));
    assert!(offset_of!(Span, header_len) == offset_of!(PacketSpan, header_len));
    assert!(offset_of!(Span, slot) == offset_of!(PacketSpan, slot));
    assert!(offset_of!(Span, outcome) == offset_of!(PacketSpan, outcome));
};

/// Bytes that are only read. `data` may be null if `len` is 0.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct Slice {
    /// The first byte.
    pub data: *const u8,
    /// Number of bytes.
    pub len: usize,
}

/// Checks that an outcome from C is valid.
pub(crate) fn check_outcome(outcome: u8) -> Result<(), Status> {
    if outcome <= SQUALL_SKIP {
        Ok(())
    } else {
        Err(Status::Value)
    }
}

/// Spans from C as those of Rust.
///
/// # Safety
///
/// As for [`array_mut`].
unsafe fn spans_of<'a>(spans: *mut Span, count: usize) -> Result<&'a mut [PacketSpan], Status> {
    // SAFETY: as the caller promises.
    let checked = unsafe { array_mut(spans, count)? };
    checked
        .iter()
        .try_for_each(|span| check_outcome(span.outcome))?;
    let spans = std::ptr::from_mut(checked);
    // SAFETY: both have one layout, as asserted above, and each outcome is valid.
    Ok(unsafe { &mut *(spans as *mut [PacketSpan]) })
}

/// A buffer that spans can describe.
///
/// # Safety
///
/// As for [`array_mut`].
unsafe fn buffer<'a>(buf: *mut u8, len: usize) -> Result<&'a mut [u8], Status> {
    if u32::try_from(len).is_err() {
        return Err(Status::Length);
    }
    // SAFETY: as the caller promises.
    unsafe { array_mut(buf, len) }
}

/// Removes header protection from the pending spans (RFC 9001, section 5.4.1), and sets their
/// `header_len` and their truncated `packet_number`.
///
/// They stay pending; one that is too short to hold a sample, or outside the buffer, or over an
/// earlier span, becomes `SQUALL_SKIP`.
///
/// # Safety
///
/// `key` is null or comes from this library. `buf` and `spans` are null or point to `buf_len` bytes
/// and `count` spans, which do not overlap and which nothing else uses meanwhile.
// SAFETY: no other library has a symbol of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_unprotect(
    key: *const HeaderKey,
    buf: *mut u8,
    buf_len: usize,
    spans: *mut Span,
    count: usize,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let (key, buf, spans) =
            unsafe { (one(key)?, buffer(buf, buf_len)?, spans_of(spans, count)?) };
        key.0.unprotect(buf, spans);
        Ok(())
    })
}

/// Opens the pending spans of `slot`, in place (RFC 9001, section 5.3).
///
/// Each becomes `SQUALL_OPEN`, or `SQUALL_FORGED` with its payload wiped, or `SQUALL_SKIP` when its
/// geometry or number is impossible. A forged packet does not affect the others. `path_id` is part
/// of the nonce if both endpoints use the multipath extension, else 0.
///
/// # Safety
///
/// `key` is null or comes from this library. `buf` and `spans` are null or point to `buf_len` bytes
/// and `count` spans, which do not overlap and which nothing else uses meanwhile.
// SAFETY: no other library has a symbol of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_open(
    key: *const PacketKey,
    path_id: u32,
    buf: *mut u8,
    buf_len: usize,
    spans: *mut Span,
    count: usize,
    slot: u8,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let (key, buf, spans) =
            unsafe { (one(key)?, buffer(buf, buf_len)?, spans_of(spans, count)?) };
        key.0.on_path(path_id).open(buf, spans, slot);
        Ok(())
    })
}

/// Seals the pending spans (RFC 9001, section 5.3) and applies header protection (section 5.4), if
/// `header` is not null.
///
/// The payload of a span is `buf[start + header_len .. start + len - 16]`; the tag goes into the
/// last 16 bytes. `sources` is null if all payloads lie in place, or else points to `count` slices:
/// the last bytes of each payload are read from there. `path_id` is part of the nonce if both
/// endpoints use the multipath extension, else 0.
///
/// Each span becomes `SQUALL_OPEN`, or `SQUALL_SKIP` when it is refused: outside the buffer, over
/// an earlier span, a number length that the first byte contradicts, a number above 2^62 - 1,
/// number and payload together below four bytes, a source longer than the payload.
///
/// # Safety
///
/// `key` and `header` are null or come from this library. `buf`, `spans` and `sources` are null or
/// point to `buf_len` bytes, `count` spans and `count` slices; each slice is empty or can be read.
/// None of these overlaps with `buf` or `spans`, or is written by others meanwhile.
// SAFETY: no other library has a symbol of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn squall_seal(
    key: *const PacketKey,
    header: *const HeaderKey,
    path_id: u32,
    buf: *mut u8,
    buf_len: usize,
    spans: *mut Span,
    count: usize,
    sources: *const Slice,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let (key, spans) = unsafe { (one(key)?, spans_of(spans, count)?) };
        let sources = if sources.is_null() {
            &[][..]
        } else {
            // SAFETY: as the caller promises.
            unsafe { array(sources, count)? }
        };
        let header = if header.is_null() {
            None
        } else {
            // SAFETY: as the caller promises.
            Some(unsafe { one(header)? })
        };
        if header.is_some_and(|header| header.0.suite() != key.0.suite()) {
            return Err(Status::Suite);
        }
        for source in sources {
            check_source(source, buf, buf_len)?;
        }
        // SAFETY: as the caller promises.
        let buf = unsafe { buffer(buf, buf_len)? };
        let key = key.0.on_path(path_id);
        let seal = |buf: &mut [u8], spans: &mut [PacketSpan], sources: &[&[u8]]| match header {
            Some(header) => key.seal(&header.0, buf, spans, sources),
            None => key.seal_aead(buf, spans, sources),
        };
        if sources.is_empty() {
            seal(buf, spans, &[]);
            return Ok(());
        }
        for (spans, slices) in spans.chunks_mut(MAX_GROUP).zip(sources.chunks(MAX_GROUP)) {
            let mut sources = [&[][..]; MAX_GROUP];
            for (source, slice) in sources.iter_mut().zip(slices) {
                // SAFETY: as the caller promises; they were checked above.
                *source = unsafe { array(slice.data, slice.len)? };
            }
            seal(buf, spans, &sources[..spans.len()]);
        }
        Ok(())
    })
}

/// Whether a source can be read, and lies outside the buffer.
fn check_source(source: &Slice, buf: *const u8, buf_len: usize) -> Result<(), Status> {
    if source.len == 0 {
        return Ok(());
    }
    if source.data.is_null() {
        return Err(Status::Null);
    }
    let ends_before = source.data.addr().saturating_add(source.len) <= buf.addr();
    let begins_after = source.data.addr() >= buf.addr().saturating_add(buf_len);
    if ends_before || begins_after {
        Ok(())
    } else {
        Err(Status::Overlap)
    }
}
