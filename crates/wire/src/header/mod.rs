//! Packet headers: RFC 8999 (all versions), RFC 9000 §17 (version 1), RFC 9369 §3.2 (version 2).
//!
//! ```text
//!   invariants   destination, is_long       what a router may look at, whatever the version
//!       ▼
//!   kind         LongType, Header           what there is
//!       ▼
//!   parse        parse                      one packet; its length says where the next one starts
//!   write        write_long, write_short, write_retry, write_version_negotiation
//! ```
//!
//! Header protection still hides the packet number, its length and the reserved bits when a packet
//! is parsed, so a [`Header`] only says where the number starts (RFC 9001 §5.4).

mod invariants;
mod kind;
mod parse;
mod write;

pub use invariants::{destination, is_long};
pub use kind::{FIXED_BIT, FixedBit, Header, HeaderError, LongType, VERSION_1, VERSION_2};
pub use parse::{parse, parse_with};
pub use write::{
    LengthOffset, long_header_size, patch_length, short_header_size, write_long, write_retry,
    write_short, write_version_negotiation,
};
