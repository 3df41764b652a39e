//! The project's own checks: `cargo xtask tidy`.
//!
//! ```text
//!   tidy ──► tree        the files that git knows
//!     ├────► source      Rust text as tokens, comments apart
//!     ├────► imports     floors and circles of modules         ◄── floors: every table of the house
//!     ├────► manifests   which crate may use which
//!     ├────► code        unsafe, lib.rs, clocks and threads
//!     └────► text        registry hosts, long files
//! ```

mod code;
mod finding;
mod floors;
mod imports;
mod manifests;
mod source;
mod text;
mod tidy;
mod tree;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy::run(),
        _ => {
            eprintln!("usage: cargo xtask tidy");
            ExitCode::from(2)
        }
    }
}
