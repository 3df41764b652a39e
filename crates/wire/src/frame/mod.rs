//! Frames: RFC 9000 §12.4 and §19, DATAGRAM of RFC 9221.
//!
//! ```text
//!   payload ──► Frames ──► Frame<'a>       one match in the connection; data borrowed
//!                            └► Ack::ranges
//!   Writer  ◄── write::*                   one function a frame
//!   allowed(type, packet type)             RFC 9000 §12.4, table 3
//! ```

mod ack;
mod kind;
mod read;
pub mod ty;
pub mod write;

pub use ack::{Ack, AckRanges, EcnCounts};
pub use kind::{AckFrequency, Frame, PacketType, allowed};
pub use read::Frames;
