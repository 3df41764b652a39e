//! Control messages (`cmsg(3)`): ancillary data of a message.
//!
//! ```text
//! | cmsghdr: len, level, type | value | padding | cmsghdr … |  every header on an 8-byte boundary
//! sent: UDP_SEGMENT, IP_TOS / IPV6_TCLASS, IP_PKTINFO / IPV6_PKTINFO
//! read: UDP_GRO, IP_TOS / IPV6_TCLASS, IP_PKTINFO / IPV6_PKTINFO, SO_RXQ_OVFL
//! ```
//! Values are copied in and out whole, and every length is checked against the buffer, so a control
//! message truncated by the kernel is omitted and never read past its end.

use std::mem::{MaybeUninit, size_of};

/// Room for every note that one message can have: 136 bytes on 64-bit Linux, with some to spare.
pub(crate) const CAPACITY: usize = 192;

/// A buffer for the control messages of one message, aligned as `cmsghdr` requires.
#[repr(C, align(8))]
#[derive(Copy, Clone)]
pub(crate) struct Control(pub(crate) [u8; CAPACITY]);

const _: () = assert!(align_of::<libc::cmsghdr>() <= align_of::<Control>());

/// A value that a note may carry.
///
/// # Safety
/// The type has no padding and no invalid bit patterns: any bytes of its size are a value of it,
/// and its bytes may all be read.
pub(crate) unsafe trait Plain: Copy {}
// SAFETY: an integer.
unsafe impl Plain for u8 {}
// SAFETY: an integer.
unsafe impl Plain for u16 {}
// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: an integer.
unsafe impl Plain for libc::c_int {}
// SAFETY: three 4-byte fields of integers: no padding.
unsafe impl Plain for libc::in_pktinfo {}
// SAFETY: 16 bytes of address and a 4-byte integer: no padding.
unsafe impl Plain for libc::in6_pktinfo {}

const HEADER: usize = size_of::<libc::cmsghdr>();
const ALIGN: usize = size_of::<usize>();
// The data follows the header directly, as `CMSG_LEN(0)` says on every Linux.
const _: () = assert!(HEADER.is_multiple_of(ALIGN));

/// Writes notes one after the other.
pub(crate) struct Writer<'a> {
    control: &'a mut Control,
    len: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(control: &'a mut Control) -> Self {
        Self { control, len: 0 }
    }

    /// Appends a note. It fits: `CAPACITY` is more than one message can have (a test adds them up).
    pub(crate) fn push<T: Plain>(&mut self, level: libc::c_int, ty: libc::c_int, value: T) {
        let end = self.len + HEADER + size_of::<T>().next_multiple_of(ALIGN);
        let Some(room) = self.control.0.get_mut(self.len..end) else {
            return;
        };
        // SAFETY: all-zero bytes are a valid `cmsghdr`: it holds integers only.
        let mut header: libc::cmsghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.cmsg_len = (HEADER + size_of::<T>()) as _;
        header.cmsg_level = level;
        header.cmsg_type = ty;
        // SAFETY: `room` is HEADER + size_of::<T>() bytes or more and writable, due to the checked
        // slice above; neither write needs alignment.
        unsafe {
            room.as_mut_ptr()
                .cast::<libc::cmsghdr>()
                .write_unaligned(header);
            room.as_mut_ptr()
                .add(HEADER)
                .cast::<T>()
                .write_unaligned(value);
        }
        self.len = end;
    }

    /// Bytes written so far: the value for `msg_controllen`.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// One note as it was read.
#[derive(Copy, Clone)]
pub(crate) struct Note<'a> {
    pub(crate) level: libc::c_int,
    pub(crate) ty: libc::c_int,
    bytes: &'a [u8],
}

impl Note<'_> {
    /// The note's value, or `None` if the note is shorter than that.
    pub(crate) fn value<T: Plain>(&self) -> Option<T> {
        let bytes = self.bytes.get(..size_of::<T>())?;
        // SAFETY: `bytes` is size_of::<T>() bytes long, due to the checked slice; any bytes are a
        // `T`, by `Plain`.
        Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
    }
}

/// The notes in `control`, a prefix of a [`Control`] as long as the kernel said.
pub(crate) fn read(control: &[u8]) -> impl Iterator<Item = Note<'_>> {
    let mut rest = control;
    std::iter::from_fn(move || {
        let header = rest.get(..HEADER)?;
        // SAFETY: `header` is size_of::<cmsghdr>() bytes, due to the checked slice; it holds
        // integers only.
        let header = unsafe { header.as_ptr().cast::<libc::cmsghdr>().read_unaligned() };
        #[allow(
            clippy::unnecessary_cast,
            reason = "cmsg_len is u32 with musl, usize with glibc"
        )]
        let len = header.cmsg_len as usize;
        let bytes = rest.get(HEADER..len)?;
        rest = rest.get(len.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some(Note {
            level: header.cmsg_level,
            ty: header.cmsg_type,
            bytes,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_round_trip() {
        let mut control = Control([0; CAPACITY]);
        let mut writer = Writer::new(&mut control);
        writer.push(1, 2, 0x0102u16);
        writer.push(3, 4, -5 as libc::c_int);
        writer.push(5, 6, 7u8);
        let len = writer.len();
        let notes: Vec<_> = read(&control.0[..len]).collect();
        assert_eq!(notes.len(), 3);
        assert_eq!(
            (notes[0].level, notes[0].ty, notes[0].value::<u16>()),
            (1, 2, Some(0x0102))
        );
        assert_eq!(
            (notes[1].level, notes[1].ty, notes[1].value::<libc::c_int>()),
            (3, 4, Some(-5))
        );
        assert_eq!(
            (notes[2].level, notes[2].ty, notes[2].value::<u8>()),
            (5, 6, Some(7))
        );
        assert_eq!(notes[2].value::<u32>(), None);
    }

    #[test]
    fn the_layout_matches_the_kernels() {
        // SAFETY: both only compute on their arguments.
        let (len, space) = unsafe { (libc::CMSG_LEN(2), libc::CMSG_SPACE(2)) };
        let mut control = Control([0; CAPACITY]);
        let mut writer = Writer::new(&mut control);
        writer.push(0, 0, 0u16);
        assert_eq!(writer.len(), space as usize);
        assert_eq!(HEADER + 2, len as usize);
    }

    #[test]
    fn all_control_messages_of_a_datagram_fit() {
        let mut control = Control([0; CAPACITY]);
        let mut writer = Writer::new(&mut control);
        // SAFETY: all-zero bytes are a valid in6_pktinfo.
        writer.push::<libc::in6_pktinfo>(0, 0, unsafe { std::mem::zeroed() });
        writer.push::<libc::c_int>(0, 0, 0); // IPV6_TCLASS
        writer.push::<u8>(0, 0, 0); // IP_TOS
        writer.push::<libc::c_int>(0, 0, 0); // UDP_GRO
        writer.push::<u32>(0, 0, 0); // SO_RXQ_OVFL
        assert_eq!(
            read(&control.0).take_while(|n| !n.bytes.is_empty()).count(),
            5
        );
    }

    #[test]
    fn damaged_lengths_end_the_iteration() {
        let mut control = Control([0; CAPACITY]);
        let mut writer = Writer::new(&mut control);
        writer.push(1, 1, 1u32);
        let len = writer.len();
        control.0[0] = 200; // longer than the buffer
        assert_eq!(read(&control.0[..len]).count(), 0);
        control.0[0] = 3; // shorter than its header
        assert_eq!(read(&control.0[..len]).count(), 0);
        assert_eq!(read(&[]).count(), 0);
    }
}
