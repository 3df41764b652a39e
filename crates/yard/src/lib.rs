//! Measures squall: the library behind the command `squall` and the comparison with other stacks in
//! `peers/`.
//!
//! ```text
//!   command line    parse, options        numbers and transport options as a user writes them
//!        │          interrupt             Ctrl-C ends a measurement early
//!        ▼
//!   work            what one round does: amount, flow, requests, handshakes
//!        │
//!        ├─ pace                                   when requests begin
//!        ├─ source, certificate, tickets, ends     bytes, keys and TLS of both ends
//!        ├─ controls/    TLS over TCP and plain TCP, doing the same work
//!        ├─ pair         two endpoints without sockets
//!        │
//!        ▼
//!   sys, cpu, meter      clocks before and after        outcome     what one round did
//!        │
//!        ▼
//!   stages, latency, stats  ──►  rows, layout, chart    tables, comma-separated values, SVG
//! ```
//!
//! The crate is internal. It is published because the command depends on it, and its API changes
//! whenever a measurement needs it to.
//!
//! Floors, lowest first: `error`, `sys`, `parse`, `latency`, `stats`, `source`, `pace`, `suites`;
//! then `cpu`, `options`, `certificate`, `layout`, `stages`, `rows`, `chart`, `live`, `interrupt`;
//! then `work`, `tickets`, `meter`, `ends`, `outcome`; `controls` and `pair` on top.

#![deny(missing_docs)]

pub mod certificate;
pub mod chart;
pub mod controls;
pub mod cpu;
pub mod ends;
pub mod error;
pub mod interrupt;
pub mod latency;
pub mod layout;
pub mod live;
pub mod meter;
pub mod options;
pub mod outcome;
pub mod pace;
pub mod pair;
pub mod parse;
pub mod rows;
pub mod source;
pub mod stages;
pub mod stats;
pub mod suites;
pub mod sys;
pub mod tickets;
pub mod work;
