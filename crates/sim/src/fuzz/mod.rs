//! The bodies of the fuzz targets in `fuzz/`: they take any bytes and assert what must hold.
//!
//! ```text
//!  cargo fuzz run <target>   new inputs, on a nightly compiler   fuzz/fuzz_targets/<target>.rs ─┐
//!  tests/simulator/corpora   known inputs, on any                fuzz/corpus/<target>/* ────────┤
//!                                                                                               ▼
//!                                                                                         TARGETS
//!
//!  packets, frames, transport_parameters     one call of the parser, and back through the writer
//!  connection_client, connection_server      a script of what a hostile peer, the application and
//!                                            time do: script
//! ```

mod frames;
mod input;
mod packets;
mod script;
mod transport_parameters;

pub use frames::frames;
pub use packets::packets;
pub use script::{connection_client, connection_server};
pub use transport_parameters::transport_parameters;

/// A name, and the function that handles its inputs.
pub type Target = (&'static str, fn(&[u8]));

/// All targets whose bodies are here.
pub const TARGETS: [Target; 5] = [
    ("packets", packets),
    ("frames", frames),
    ("transport_parameters", transport_parameters),
    ("connection_client", connection_client),
    ("connection_server", connection_server),
];
