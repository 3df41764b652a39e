//! QUIC packet protection over batches (RFC 9001 §5, RFC 9369 §3.3).
//!
//! ```text
//!   received bundle ─ spans ─▶ HeaderKey::unprotect   all samples, one cipher pass, masks applied
//!                              (caller expands the truncated numbers and picks a key slot)
//!                              PacketKey::open        all packets of a slot: Open or Forged
//!                              (open_into: the same, stream data decrypted to where it belongs)
//!
//!   written packets ─ spans ─▶ PacketKey::seal        AEAD straight from the source slices, then
//!                                                     header protection, for all in one call
//! ```
//!
//! A packet is a [`PacketSpan`]: offsets into one buffer that the caller owns. Nothing here knows
//! about frames, streams, connections or time. The three operations take a whole group of packets,
//! never allocate, and never panic on what a peer sends: a packet that cannot be worked on comes
//! back as [`Outcome::Skip`].
//!
//! ```
//! use squall_protect::{Outcome, PacketSpan, initial};
//!
//! let client = initial::keys(1, b"\x83\x94\xc8\xf0\x3e\x51\x57\x08", true);
//! let server = initial::keys(1, b"\x83\x94\xc8\xf0\x3e\x51\x57\x08", false);
//!
//! // Two packets in one buffer: a header of 3 bytes whose last one is the number, a payload, room
//! // for the tag.
//! let mut buf = [0_u8; 2 * 64];
//! let mut spans = [0, 64].map(|start| PacketSpan::new(start, 64, 2));
//! for (number, span) in spans.iter_mut().enumerate() {
//!     let at = span.start as usize;
//!     buf[at..at + 3].copy_from_slice(&[0x40, 0xc1, number as u8]);
//!     span.header_len = 3;
//!     span.packet_number = number as u64;
//! }
//! // The last bytes of each payload come straight from where the application keeps them.
//! let sources: [&[u8]; 2] = [b"the first", b"the second"];
//! client.local.packet.seal(&client.local.header, &mut buf, &mut spans, &sources);
//! assert!(spans.iter().all(|span| span.outcome == Outcome::Open));
//!
//! let mut spans = [0, 64].map(|start| PacketSpan::new(start, 64, 2));
//! server.remote.header.unprotect(&mut buf, &mut spans);
//! assert_eq!(spans.map(|span| span.packet_number), [0, 1]);
//! buf[127] ^= 1;
//! server.remote.packet.open(&mut buf, &mut spans, 0);
//! assert_eq!(spans.map(|span| span.outcome), [Outcome::Open, Outcome::Forged]);
//! assert!(buf[..48].ends_with(b"the first"));
//! ```
//!
//! # For other stacks
//!
//! Keys are `Sync`, so threads may share one. A stack that applies header protection itself seals
//! with [`PacketKey::seal_aead`] and gets its masks from [`HeaderKey::masks`]. [`PacketKey::open`]
//! needs no header key: it takes spans whose `header_len` and `packet_number` the caller has set.
//!
//! Packets that do not lie in one buffer, or whose header, payload and tag lie apart, are
//! [`ScatteredPacket`]s, for [`PacketKey::seal_scattered`] and [`PacketKey::open_scattered`]. With
//! the multipath extension, a path's id is part of the nonce: [`PacketKey::on_path`].
//!
//! # Files
//!
//! From the bottom up: `span`, `suite`, `material` (plain data), `kernel` (the cipher work and the
//! only `unsafe`), `open`, `seal` and `scattered` (geometry, masks, grouping), `keys` (what callers
//! hold), `initial` and `retry` (keys that every endpoint knows), `ablation` (the operations in
//! pieces, for measurements).

#![cfg_attr(
    squall_unprotected,
    allow(
        unused,
        reason = "the measurement without protection uses little of it"
    )
)]

pub mod ablation;
pub mod initial;
mod kernel;
mod keys;
mod material;
mod open;
pub mod retry;
mod scattered;
mod seal;
mod span;
mod suite;
#[cfg(squall_unprotected)]
mod unprotected;

pub use kernel::prefetch::{prefetch, prefetch_memory};
pub use kernel::{KernelChoice, KernelKind, chosen_kernel, kernel_choices, kernels_available};
pub use keys::{HeaderKey, Keys, PacketKey, Pair, PathKey};
pub use material::{HeaderKeyMaterial, KeyMaterial};
pub use scattered::{PacketMemory, ScatteredPacket};
pub use span::{MASK_LEN, MAX_GROUP, Outcome, PacketSpan, SAMPLE_LEN, TAG_LEN};
pub use suite::Suite;
