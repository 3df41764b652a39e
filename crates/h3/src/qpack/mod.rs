//! QPACK, the compression of field sections (RFC 9204): an encoder and a decoder, without I/O.
//!
//! ```text
//!   fields ──► Encoder::encode ──► encoded section ──► Decoder::decode ──► FieldSection
//!                 │        ▲                               ▲        │
//!      instructions()  on_decoder_stream      on_encoder_stream  instructions()
//!                 │        │                               │        │
//!                 └────────┼───── encoder stream ──────────┘        │
//!                          └───── decoder stream ───────────────────┘
//!
//!   encoder      what to insert: recent; the lines: representation ─┐
//!   decoder      instruction, section ──────────────────────────────┼─► table, static_table
//!                                                                   └─► string ─► huffman, integer
//! ```
//!
//! Nothing is allocated for a field: a [`FieldSection`] is reused, and the dynamic table keeps its
//! text in one buffer.

mod decoder;
mod encoder;
mod field;
mod huffman;
mod index;
mod instruction;
mod integer;
mod recent;
mod representation;
mod section;
pub mod static_table;
mod string;
mod table;

pub use decoder::{DecodeError, Decoded, Decoder};
pub use encoder::Encoder;
pub use field::{Field, FieldLine, FieldSection};
pub use representation::encode_static;
