//! The keys that callers hold: an expanded AEAD key and an expanded header-protection key for each
//! direction.

use std::fmt;

use crate::kernel::{Fusion, Header, Kernel, KernelKind, chosen_kernel};
use crate::material::{HeaderKeyMaterial, KeyMaterial};
use crate::open;
use crate::scattered::{self, Direction, ScatteredPacket};
use crate::seal;
use crate::span::{MASK_LEN, PacketSpan, SAMPLE_LEN};
use crate::suite::Suite;

/// An expanded AEAD key of one direction (RFC 9001 §5.3). Wiped when dropped.
///
/// Threads may share it: sealing and opening take `&self`. A key starts small and builds larger
/// tables at the first call with many full packets, or when asked by [`grow`](Self::grow).
pub struct PacketKey {
    suite: Suite,
    kernel: Kernel,
}

/// An expanded header-protection key of one direction (RFC 9001 §5.4). Wiped when dropped.
pub struct HeaderKey {
    suite: Suite,
    header: Header,
}

/// A call of at least this many packets ...
const BUSY_PACKETS: usize = 8;
/// ... of this many bytes makes a key build the long class of powers.
const BUSY_LEN: u32 = 500;

/// Whether a call is the start of a stream of packets that need more powers than every key has.
fn is_busy(spans: &[PacketSpan]) -> bool {
    (spans.first_chunk::<BUSY_PACKETS>())
        .is_some_and(|spans| spans.iter().all(|span| span.len >= BUSY_LEN))
}

/// As [`is_busy`], for packets that lie anywhere.
fn are_busy(packets: &[ScatteredPacket<'_>]) -> bool {
    (packets.first_chunk::<BUSY_PACKETS>())
        .is_some_and(|packets| packets.iter().all(|it| it.len() >= BUSY_LEN as usize))
}

/// Threads share keys.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<PacketKey>();
    is_shared::<HeaderKey>();
};

/// An AEAD key for the packets of one path (draft-ietf-quic-multipath): see
/// [`PacketKey::on_path`].
#[derive(Copy, Clone, Debug)]
pub struct PathKey<'k> {
    key: &'k PacketKey,
    path_id: u32,
}

/// The keys of one direction.
#[derive(Debug)]
pub struct Keys {
    /// AEAD key.
    pub packet: PacketKey,
    /// Header-protection key.
    pub header: HeaderKey,
}

/// The keys of both directions.
#[derive(Debug)]
pub struct Pair {
    /// What this endpoint seals with.
    pub local: Keys,
    /// What this endpoint opens with.
    pub remote: Keys,
}

impl PacketKey {
    /// Expands a key for the kernel of [`chosen_kernel`](crate::chosen_kernel).
    #[must_use]
    pub fn new(material: &KeyMaterial) -> Self {
        Self::with_kernel(material, chosen_kernel(material.suite()))
            .expect("a kernel is chosen that runs here and has the suite")
    }

    /// Expands a key for a given kernel; `None` if the CPU cannot run the kernel or the kernel
    /// lacks the suite.
    #[must_use]
    pub fn with_kernel(material: &KeyMaterial, kind: KernelKind) -> Option<Self> {
        let kernel = Kernel::expand(material, kind)?;
        Some(Self {
            suite: material.suite(),
            kernel,
        })
    }

    /// The suite of the key.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// Builds the larger tables of a busy key, up to 3 kB, unless they exist. Only calls with many
    /// full packets build them automatically: a caller that passes such packets one at a time calls
    /// this. Calling it again costs one load.
    pub fn grow(&self) {
        self.kernel.grow_if(|| true);
    }

    /// Prefetches the key, for a caller that has many keys and is about to use this one.
    #[inline]
    pub fn prefetch(&self) {
        self.kernel.prefetch();
    }

    /// Drops the larger tables of a busy key, up to 3 kB, for a connection that goes idle. They are
    /// built again when a call brings many full packets.
    pub fn shrink(&mut self) {
        self.kernel.shrink();
    }

    /// The key for the 1-RTT packets of a path, if both endpoints use the multipath extension: the
    /// path's id becomes part of the nonce (draft-ietf-quic-multipath §2.4).
    ///
    /// The nonces of path 0 are those of RFC 9001 §5.3, which `PacketKey`'s own operations use.
    #[must_use]
    pub fn on_path(&self, path_id: u32) -> PathKey<'_> {
        PathKey { key: self, path_id }
    }

    /// Opens the pending spans of `slot`, in place (RFC 9001 §5.3).
    ///
    /// Each becomes [`Outcome::Open`](crate::Outcome::Open), or
    /// [`Outcome::Forged`](crate::Outcome::Forged) with its payload wiped, or
    /// [`Outcome::Skip`](crate::Outcome::Skip) if its geometry or number is impossible. A forged
    /// packet does not affect the others. Bytes outside the payloads are not touched, except that
    /// the number of a forged packet is wiped after its first byte.
    pub fn open(&self, buf: &mut [u8], spans: &mut [PacketSpan], slot: u8) {
        self.on_path(0).open(buf, spans, slot);
    }

    /// As [`open`](Self::open), but the *last* bytes of each payload are decrypted to another
    /// place, at the cost of decrypting in place. A caller that can tell where stream data belongs
    /// saves copying it.
    ///
    /// `targets` is empty if all payloads are opened in place. Otherwise it holds one slice for
    /// each span (empty for none), which is taken from a span that is worked on. The bytes in the
    /// packet that a target replaces are unspecified afterwards. The target of an
    /// [`Outcome::Forged`](crate::Outcome::Forged) packet is wiped with zeros, like its payload;
    /// that of a packet that is not worked on is left as it is. A span whose target is missing or
    /// longer than its payload becomes [`Outcome::Skip`](crate::Outcome::Skip).
    ///
    /// ```
    /// # use squall_protect::{Outcome, PacketSpan, initial};
    /// # let mut client = initial::keys(1, b"\x83\x94\xc8\xf0\x3e\x51\x57\x08", true);
    /// # let mut server = initial::keys(1, b"\x83\x94\xc8\xf0\x3e\x51\x57\x08", false);
    /// # let mut buf = [0; 64];
    /// # buf[..3].copy_from_slice(&[0x40, 0xc1, 7]);
    /// # buf[3..8].copy_from_slice(b"frame");
    /// # let mut spans = [PacketSpan::new(0, 64, 2)];
    /// # (spans[0].header_len, spans[0].packet_number) = (3, 7);
    /// # let source = [b'x'; 40];
    /// # client.local.packet.seal(&client.local.header, &mut buf, &mut spans, &[&source]);
    /// # spans[0].outcome = Outcome::Pending;
    /// server.remote.header.unprotect(&mut buf, &mut spans);
    /// // A payload of 45 bytes: a frame's first five stay in the packet, its data moves.
    /// let mut data = [0; 40];
    /// server.remote.packet.open_into(&mut buf, &mut spans, 0, &mut [&mut data]);
    /// assert_eq!(spans[0].outcome, Outcome::Open);
    /// assert_eq!((&buf[3..8], data), (&b"frame"[..], [b'x'; 40]));
    /// ```
    pub fn open_into<'a>(
        &self,
        buf: &'a mut [u8],
        spans: &mut [PacketSpan],
        slot: u8,
        targets: &mut [&'a mut [u8]],
    ) {
        if targets.is_empty() {
            return self.open(buf, spans, slot);
        }
        #[cfg(squall_unprotected)]
        crate::unprotected::open_into(buf, spans, slot, targets);
        #[cfg(not(squall_unprotected))]
        {
            self.kernel.grow_if(|| is_busy(spans));
            open::open_into(&self.kernel, buf, spans, slot, targets);
        }
    }

    /// Whether [`open_into`](Self::open_into) saves a copy. It does with AES on CPUs that have
    /// instructions for it; otherwise packets are opened in place and then copied, which takes
    /// longer than if the caller copies what it needs.
    #[must_use]
    pub fn opens_into_targets(&self) -> bool {
        self.kernel.decrypts_to_targets()
    }

    /// Seals the pending spans (RFC 9001 §5.3) and applies header protection (RFC 9001 §5.4).
    ///
    /// The payload of a span is `buf[start + header_len .. start + len - 16]`; the tag goes into
    /// the last 16 bytes. `sources` is empty if all payloads lie in place. Otherwise it holds one
    /// slice for each span (empty for none), from which the *last* bytes of the payload are read.
    /// Each span becomes [`Outcome::Open`](crate::Outcome::Open), or
    /// [`Outcome::Skip`](crate::Outcome::Skip) if it is refused: outside the buffer, overlapping an
    /// earlier span, a number length that the first byte contradicts, a number above 2^62-1, number
    /// and payload together below four bytes, a source missing or longer than the payload.
    ///
    /// If the header key is of another suite, the peer cannot read the packets.
    pub fn seal(
        &self,
        header: &HeaderKey,
        buf: &mut [u8],
        spans: &mut [PacketSpan],
        sources: &[&[u8]],
    ) {
        self.on_path(0).seal(header, buf, spans, sources);
    }

    /// Seals the pending spans (RFC 9001 §5.3) without header protection, for a stack that applies
    /// it itself with [`HeaderKey::masks`].
    ///
    /// Arguments and outcomes are those of [`seal`](Self::seal). The packets are not ready to be
    /// sent: their packet numbers are in the clear (RFC 9001 §5.4).
    pub fn seal_aead(&self, buf: &mut [u8], spans: &mut [PacketSpan], sources: &[&[u8]]) {
        self.on_path(0).seal_aead(buf, spans, sources);
    }

    /// Seals the pending packets, wherever they lie (RFC 9001 §5.3), without header protection, for
    /// a stack that applies it itself with [`HeaderKey::masks`].
    ///
    /// Each becomes [`Outcome::Open`](crate::Outcome::Open), or
    /// [`Outcome::Skip`](crate::Outcome::Skip) if it is refused: [`ScatteredPacket`] says when, and
    /// what each kind of memory costs.
    pub fn seal_scattered(&self, packets: &mut [ScatteredPacket<'_>]) {
        self.scattered(packets, Direction::Seal);
    }

    /// Opens the pending packets, wherever they lie, whose headers are unprotected (RFC 9001 §5.3).
    ///
    /// Each becomes [`Outcome::Open`](crate::Outcome::Open), or
    /// [`Outcome::Forged`](crate::Outcome::Forged) with its payload wiped, or
    /// [`Outcome::Skip`](crate::Outcome::Skip) if it is refused: [`ScatteredPacket`] says when, and
    /// what each kind of memory costs.
    pub fn open_scattered(&self, packets: &mut [ScatteredPacket<'_>]) {
        self.scattered(packets, Direction::Open);
    }

    fn scattered(&self, packets: &mut [ScatteredPacket<'_>], direction: Direction) {
        #[cfg(squall_unprotected)]
        crate::unprotected::scattered(packets, direction);
        #[cfg(not(squall_unprotected))]
        {
            self.kernel.grow_if(|| are_busy(packets));
            scattered::work(&self.kernel, packets, direction);
        }
    }
}

/// The operations of [`PacketKey`] for the packets of one path.
impl PathKey<'_> {
    /// As [`PacketKey::open`].
    pub fn open(self, buf: &mut [u8], spans: &mut [PacketSpan], slot: u8) {
        #[cfg(squall_unprotected)]
        crate::unprotected::open(spans, slot);
        #[cfg(not(squall_unprotected))]
        {
            self.key.kernel.grow_if(|| is_busy(spans));
            open::open(&self.key.kernel, self.path_id, buf, spans, slot);
        }
    }

    /// As [`PacketKey::seal`].
    pub fn seal(
        self,
        header: &HeaderKey,
        buf: &mut [u8],
        spans: &mut [PacketSpan],
        sources: &[&[u8]],
    ) {
        debug_assert_eq!(self.key.suite, header.suite);
        #[cfg(squall_unprotected)]
        crate::unprotected::seal(buf, spans, sources);
        #[cfg(not(squall_unprotected))]
        self.seal_in(Some((header, Fusion::Batched)), buf, spans, sources);
    }

    /// As [`PacketKey::seal_aead`].
    pub fn seal_aead(self, buf: &mut [u8], spans: &mut [PacketSpan], sources: &[&[u8]]) {
        #[cfg(squall_unprotected)]
        crate::unprotected::seal(buf, spans, sources);
        #[cfg(not(squall_unprotected))]
        self.seal_in(None, buf, spans, sources);
    }

    /// Seals without header protection, or with it in the given way.
    fn seal_in(
        self,
        header: Option<(&HeaderKey, Fusion)>,
        buf: &mut [u8],
        spans: &mut [PacketSpan],
        sources: &[&[u8]],
    ) {
        let kernel = &self.key.kernel;
        kernel.grow_if(|| is_busy(spans));
        let header = header.map(|(key, fusion)| (&key.header, fusion));
        seal::seal(kernel, self.path_id, header, buf, spans, sources);
    }
}

/// The operations in pieces; see [`ablation`](crate::ablation).
impl PacketKey {
    /// [`seal`](Self::seal), without header protection or with it in the given way.
    pub(crate) fn seal_in(
        &self,
        header: Option<(&HeaderKey, Fusion)>,
        buf: &mut [u8],
        spans: &mut [PacketSpan],
        sources: &[&[u8]],
    ) {
        self.on_path(0).seal_in(header, buf, spans, sources);
    }

    /// Unprotects and opens in one call, with the numbers as they are in the packets. Returns
    /// `false`, with no packet opened, if the kernel cannot do that.
    pub(crate) fn open_fused(
        &self,
        (header, fusion): (&HeaderKey, Fusion),
        buf: &mut [u8],
        spans: &mut [PacketSpan],
    ) -> bool {
        self.kernel.grow_if(|| is_busy(spans));
        open::open_fused(&self.kernel, &header.header, fusion, buf, spans)
    }

    /// Whether the kernel makes masks along with the AEAD.
    pub(crate) fn fuses(&self, header: &HeaderKey) -> bool {
        self.kernel
            .open_fused(&mut [], &header.header, Fusion::Each)
            .is_some()
    }
}

impl HeaderKey {
    /// Prefetches the key, for a caller that has many keys and is about to use this one.
    #[inline]
    pub fn prefetch(&self) {
        self.header.prefetch();
    }

    /// Applies header protection to sealed packets.
    pub(crate) fn protect(&self, buf: &mut [u8], spans: &[PacketSpan]) {
        seal::protect(&self.header, buf, spans);
    }

    /// Expands a key for the kernel of [`chosen_kernel`](crate::chosen_kernel).
    #[must_use]
    pub fn new(material: &HeaderKeyMaterial) -> Self {
        Self::with_kernel(material, chosen_kernel(material.suite()))
            .expect("a kernel is chosen that runs here and has the suite")
    }

    /// Expands a key for a given kernel; `None` if the CPU cannot run the kernel or the kernel
    /// lacks the suite.
    #[must_use]
    pub fn with_kernel(material: &HeaderKeyMaterial, kind: KernelKind) -> Option<Self> {
        let header = Header::expand(material, kind)?;
        Some(Self {
            suite: material.suite(),
            header,
        })
    }

    /// The suite of the key.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// Computes the header-protection masks of samples (RFC 9001 §5.4.3, §5.4.4): `masks[i]`
    /// becomes the mask of `samples[i]`. If the slices differ in length, the rest of the longer one
    /// is ignored.
    ///
    /// The first byte of a mask, limited to its low four bits for a long header and five for a
    /// short one, is XORed into the first byte of the packet, and the others into the packet number
    /// (RFC 9001 §5.4.1). One call for many samples costs less than a call for each.
    pub fn masks(&self, samples: &[[u8; SAMPLE_LEN]], masks: &mut [[u8; MASK_LEN]]) {
        self.header.masks(samples, masks);
    }

    /// Removes header protection from the pending spans (RFC 9001 §5.4.1), and sets their
    /// `header_len` and their truncated `packet_number`.
    ///
    /// They stay [`Outcome::Pending`](crate::Outcome::Pending), except that one that is too short
    /// to hold a sample, outside the buffer, or overlapping an earlier span becomes
    /// [`Outcome::Skip`](crate::Outcome::Skip).
    pub fn unprotect(&self, buf: &mut [u8], spans: &mut [PacketSpan]) {
        #[cfg(squall_unprotected)]
        crate::unprotected::unprotect(buf, spans);
        #[cfg(not(squall_unprotected))]
        open::unprotect(&self.header, buf, spans);
    }
}

// Secrets never reach a log: only the suite is shown.
impl fmt::Debug for PacketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketKey")
            .field("suite", &self.suite)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for HeaderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeaderKey")
            .field("suite", &self.suite)
            .finish_non_exhaustive()
    }
}
