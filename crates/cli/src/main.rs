//! The command `squall`.
//!
//! ```text
//!   main      arguments in, exit code out
//!   perf/     what QUIC costs, beside TLS over TCP and plain TCP
//!   error     one line to the user
//!   sys       cores and clocks; the only unsafe
//! ```

mod error;
mod perf;
mod sys;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// QUIC for the lowest CPU cost per byte: measure it, and see what each byte costs.
#[derive(Parser)]
#[command(name = "squall", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Perf(perf::args::Perf),
}

fn main() -> ExitCode {
    // A wrong argument ends in clap with one line, a hint and exit code 2.
    let Cli { command } = Cli::parse();
    let result = match command {
        Command::Perf(args) => perf::main(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("squall: {failure}");
            ExitCode::FAILURE
        }
    }
}
