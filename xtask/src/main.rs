//! The project's own commands: `cargo xtask tidy`, `measure-code`, `sim`, `soak`, `viewers`,
//! `bench-core`, `features`, `package`, `ports`, `service`, `pgo`.
//!
//! ```text
//!   tidy ──► tree        the files that git knows
//!     ├────► source      Rust text as tokens, comments separate
//!     ├────► imports     floors and cycles of modules and files ◄── floors: the tables
//!     ├────► manifests   which crate may use which
//!     ├────► code        unsafe, lib.rs, clocks and threads
//!     ├────► language    syntax that is newer than `rust-version`
//!     ├────► limits      long functions, wide comments, parts that name the whole ◄── functions
//!     ├────► guide       chapters that differ from their programs
//!     ├────► text        registry hosts, names of missing files, long files
//!     └────► unprotected the build that only `bench-core` makes and measures
//! ```
//! `measure-code` prints the same as figures. `cost` counts instructions and compares them with the
//! table of earlier commits. `sim` runs the seeds of the simulator, `soak` runs two processes over
//! a link that fails, `viewers` restarts a server under a thousand clients, `pgo` builds the
//! program with a profile of itself, `features` compiles and tests the library with other features,
//! `package` uses the packages as an application would, `ports` tests applications ported from
//! quinn, and `service` checks the systemd unit and the image.

mod code;
mod cost;
mod features;
mod finding;
mod floors;
mod functions;
mod guide;
mod imports;
mod language;
mod limits;
mod manifests;
mod measure_code;
mod package;
mod pgo;
mod ports;
mod service;
mod sim;
mod soak;
mod source;
mod text;
mod tidy;
mod tree;
mod unprotected;
mod viewers;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy::run(),
        ["measure-code"] => measure_code::run(),
        ["sim", ..] => sim::run(&arguments[1..]),
        ["soak", ..] => soak::run(&arguments[1..]),
        ["viewers", ..] => viewers::run(&arguments[1..]),
        ["features"] => features::run(),
        ["package"] => package::run(),
        ["ports", ..] => ports::run(&arguments[1..]),
        ["service"] => service::run(),
        ["pgo"] => pgo::run(),
        ["cost", ..] => cost::run(&arguments[1..]),
        ["bench-core", ..] => unprotected::bench(&arguments[1..]),
        _ => {
            eprintln!(
                "usage: cargo xtask tidy | measure-code | sim [--seed N | --seeds FIRST..END] | soak [--minutes N] [--seed N] | viewers [--release] [--viewers N] [--seconds SECS] | cost [--short] [--write] | bench-core [ARGUMENTS OF squall bench core] | features | package | ports [NAME] | service | pgo"
            );
            ExitCode::from(2)
        }
    }
}
