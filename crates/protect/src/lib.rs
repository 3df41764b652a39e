//! QUIC packet protection over batches (RFC 9001 §5, RFC 9369 §3.3).
//!
//! ```text
//!   received bundle ── spans ──▶ HeaderKey::unprotect   every sample gathered, one cipher pass, masks applied
//!                                (caller expands the truncated numbers and picks a key slot)
//!                                PacketKey::open        every packet of a slot, in place; Open or Forged each
//!
//!   written packets ── spans ──▶ PacketKey::seal        AEAD straight from the source slices, then header
//!                                                       protection, for all of them in one call
//! ```
//!
//! A packet is a [`PacketSpan`]: offsets into one buffer that the caller owns. Nothing here knows frames, streams,
//! connections or time. The three operations take a whole group of packets, never allocate, and never panic on
//! what a peer sends: a packet that cannot be worked on comes back as [`Outcome::Skip`].
//!
//! From the lowest floor: `span`, `suite`, `material` (plain data), `kernel` (the cipher work and the only
//! `unsafe`), `open` and `seal` (geometry, masks, grouping), `keys` (what callers hold), `initial` and `retry`
//! (keys that every endpoint knows).

pub mod initial;
mod kernel;
mod keys;
mod material;
mod open;
pub mod retry;
mod seal;
mod span;
mod suite;

pub use kernel::{KernelKind, chosen_kernel, kernels_available};
pub use keys::{HeaderKey, Keys, PacketKey, Pair};
pub use material::{HeaderKeyMaterial, KeyMaterial};
pub use span::{MAX_GROUP, Outcome, PacketSpan, SAMPLE_LEN, TAG_LEN};
pub use suite::Suite;
