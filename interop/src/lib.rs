//! squall against QUIC stacks of other houses: see `tests/`. The page below is here so that its
//! code, with quinn before and squall after, is compiled.
//!
#![doc = include_str!("../../docs/porting.md")]
