//! squall's packet protection for C. Callers see `include/squall_protect.h`, which a test generates
//! from these files; `README.md` says how to build and link.
//!
//! ```text
//!   keys        squall_packet_key_new, squall_header_key_new, squall_initial_keys, ..._free
//!   spans       squall_unprotect, squall_open, squall_seal     packets in one buffer
//!   scattered   squall_open_scattered, squall_seal_scattered   packets whose parts lie anywhere
//!   masks       squall_masks
//!   kernels     squall_kernel_name
//! ```
//! `call` is what they have in common: no panic leaves Rust, and every pointer is checked before
//! use.

mod call;
mod kernels;
mod keys;
mod masks;
mod scattered;
mod spans;

pub use call::Status;
pub use kernels::squall_kernel_name;
pub use keys::{
    HeaderKey, Keys, PacketKey, SQUALL_AES_128_GCM, SQUALL_AES_256_GCM, SQUALL_CHACHA20_POLY1305,
    SQUALL_IV_LEN, squall_header_key_free, squall_header_key_new, squall_initial_keys,
    squall_packet_key_free, squall_packet_key_grow, squall_packet_key_new,
    squall_packet_key_shrink,
};
pub use masks::{SQUALL_MASK_LEN, SQUALL_SAMPLE_LEN, squall_masks};
pub use scattered::{Packet, squall_open_scattered, squall_seal_scattered};
pub use spans::{
    SQUALL_FORGED, SQUALL_NO_KEY, SQUALL_OPEN, SQUALL_PENDING, SQUALL_SKIP, SQUALL_TAG_LEN, Slice,
    Span, squall_open, squall_seal, squall_unprotect,
};
