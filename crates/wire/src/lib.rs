//! The bytes of QUIC: RFC 8999, RFC 9000 sections 12 to 20, and what RFC 9221, 9287, 9369 and the
//! drafts ack-frequency and reliable-stream-reset add.
//!
//! ```text
//!   datagram ──► header::destination       which connection?             (RFC 8999)
//!        └─────► header::parse             which packet, how long?       (RFC 9000 §17)
//!                   │   … packet protection takes place elsewhere …
//!                   ├► packet_number::expand                             (RFC 9000 A.3)
//!                   └► Frames ──► Frame    payload, one frame at a time  (RFC 9000 §19)
//!
//!   Writer ◄── header::write_short, header::write_long, frame::write::*  one function a frame
//! ```
//!
//! Nothing here keeps state, knows a key, or reads a clock. Reading never allocates: fields of
//! variable length borrow from the datagram. Every read is bounded; a malformed input gives the
//! error code that the RFC requires.

pub mod connection_id;
pub mod cursor;
pub mod datagram;
pub mod error_code;
pub mod frame;
pub mod header;
pub mod packet_number;
pub mod stream_id;
pub mod transport_parameters;
pub mod varint;

pub use connection_id::ConnectionId;
pub use cursor::{Reader, Truncated, Writer};
pub use datagram::{DatagramBatch, Ecn, Path, Transmit};
pub use error_code::{TransportError, TransportErrorCode};
pub use frame::{Ack, AckFrequency, AckRanges, EcnCounts, Frame, Frames, PacketType};
pub use header::{
    FixedBit, Header, HeaderError, LengthOffset, LongType, VERSION_1, VERSION_2, is_long,
};
pub use stream_id::{Direction, Side, StreamId};
pub use transport_parameters::{PreferredAddress, TransportParameters, VersionInformation};
