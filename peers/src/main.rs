//! squall alongside and against other QUIC stacks: run by hand, with any amount of data and rounds.
//!
//! ```text
//!  main  ──►  transfer    both ways between squall and quinn, in both roles, digests compared
//!    │            └────►  payload    pseudo-random bytes, made as they are sent
//!    ├─────►  protect     packet protection of squall and seven libraries, interleaved in one run
//!    └─────►  transport   whole transports, TLS over TCP and plain TCP, interleaved in one run;
//!                         squall against the other stacks' ends, bytes compared (interop); and
//!                         how smoothly they send (smoothness)
//!  main  ──►  endpoint    the other stacks under the contract of the QUIC interop runner
//! ```

mod endpoint;
mod payload;
mod protect;
mod transfer;
mod transport;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// squall alongside and against other QUIC stacks.
#[derive(Parser)]
#[command(name = "squall-peers", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Transfer(transfer::Transfer),
    Protect(protect::Protect),
    Transport(transport::Transport),
    Smoothness(transport::Smoothness),
    /// squall's client against the servers of quinn, s2n-quic and quiche, and their clients against
    /// squall's server: 10 MB up and down again and a part of each workload of `transport`,
    /// SHA-256 compared.
    Interop,
    Endpoint(endpoint::Endpoint),
    /// One end of a measurement of `transport`, which starts it itself.
    #[command(name = transport::SUBCOMMAND, hide = true)]
    TransportEnd,
}

fn main() -> ExitCode {
    // clap reports a wrong argument with one line, a hint and exit code 2.
    let result = match Cli::parse().command {
        Command::Transfer(args) => transfer::run(&args).map_err(|error| error.to_string()),
        Command::Protect(args) => protect::run(&args),
        Command::Transport(args) => transport::run(&args).map_err(|error| error.to_string()),
        Command::Smoothness(args) => {
            transport::smoothness(&args).map_err(|error| error.to_string())
        }
        Command::Endpoint(args) => return endpoint::run(&args),
        Command::Interop => transport::interop().map_err(|error| error.to_string()),
        Command::TransportEnd => transport::run_end().map_err(|error| error.to_string()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("squall-peers: {error}");
            ExitCode::FAILURE
        }
    }
}
