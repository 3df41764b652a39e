//! squall against other QUIC stacks: see `tests/`. The page below is included so that its code,
//! with quinn before and squall after, is compiled.
//!
#![doc = include_str!("../../docs/porting.md")]
