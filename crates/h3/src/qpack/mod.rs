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
//!
//! What it costs, on one core of a Xeon of 2023 (`crates/h3/tests/qpack/cost.rs` measures it):
//!
//! | | bytes | encode | decode |
//! |---|---|---|---|
//! | Chromium's request of 15 fields, nothing in the dynamic table | 337 | 580 ns | 840 ns |
//! | the same, when all that recurs is in the table | 37 | 410 ns | 180 ns |
//! | a response of 9 fields, four of them changing | 82 | 180 ns | 210 ns |
//!
//! Most of it is Huffman code: 2 ns for each byte of decoded text, 1 ns for each encoded one.

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
