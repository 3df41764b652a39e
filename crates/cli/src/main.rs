//! The command `squall`.
//!
//! ```text
//!   main      arguments in, exit code out
//!   perf/     what QUIC costs, compared with TLS over TCP and plain TCP
//!   bench/    what one part costs by itself: packet protection
//!   serve/    files over HTTP, or a reverse proxy for an application
//!   get/      downloads over HTTP/3, like curl
//!   doctor    what this machine has, and what was chosen for it
//!   kernels   kernels of packet protection by name; SQUALL_CPU
//!   trust     the servers that clients trust
//!   port      ports of URLs
//!   output    lines and JSON to standard output
//!   completions, version    completions and man pages for an installation, the build
//! ```
//! Shared measuring code (clocks, certificates, controls, tables, charts) is in `squall_yard`.

mod bench;
mod completions;
mod doctor;
mod get;
mod kernels;
mod output;
mod perf;
mod port;
mod serve;
mod trust;
mod version;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use squall_yard::error::{self, Result};
use squall_yard::sys;

/// A QUIC transport with the lowest CPU cost per byte: measure it, and see where the time goes
#[derive(Parser)]
#[command(name = "squall", version, long_version = version::long(), arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Perf(Box<perf::args::Perf>),
    Bench(Box<bench::args::Bench>),
    Serve(Box<serve::args::Serve>),
    Get(Box<get::args::Get>),
    Doctor(doctor::Doctor),
    Completions(completions::Completions),
    Man(completions::Manual),
}

impl Command {
    /// Whether the output is for a program.
    fn is_json(&self) -> bool {
        match self {
            Self::Perf(perf) => perf.is_json(),
            Self::Bench(bench) => bench.is_json(),
            Self::Doctor(doctor) => doctor.json,
            Self::Get(get) => get.json,
            Self::Serve(_) | Self::Completions(_) | Self::Man(_) => false,
        }
    }
}

/// Makes `-1` after an option its (invalid) value, reported as such, rather than an unknown option.
fn numbers_are_values(command: clap::Command) -> clap::Command {
    command
        .mut_args(|arg| {
            let takes_values = arg.get_action().takes_values() && !arg.is_positional();
            arg.allow_negative_numbers(takes_values)
        })
        .mut_subcommands(numbers_are_values)
}

fn main() -> ExitCode {
    // A wrong argument ends in clap with one line, a hint and exit code 2.
    let matches = numbers_are_values(Cli::command()).get_matches();
    let Cli { command } = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    // The library then ignores the variable, and the user should know.
    if !matches!(command, Command::Doctor(_))
        && let Some(complaint) = kernels::Wish::read().complaint()
    {
        eprintln!("squall: {complaint}");
    }
    // A build for one measurement: it must not connect to anything else.
    if cfg!(squall_unprotected) && !matches!(&command, Command::Bench(bench) if bench.is_core()) {
        eprintln!(
            "squall: this build has no packet protection and only supports `squall bench core`"
        );
        return ExitCode::FAILURE;
    }
    let is_json = command.is_json();
    let result = match command {
        Command::Perf(args) => measurable("squall perf").and_then(|()| perf::main(*args)),
        Command::Bench(args) => measurable("squall bench").and_then(|()| bench::main(*args)),
        Command::Serve(args) => serve::main(&args),
        // This one has its own exit codes.
        Command::Get(args) => return get::main(*args),
        Command::Doctor(args) => doctor::main(&args),
        Command::Completions(args) => completions::completions(&args, Cli::command()),
        Command::Man(args) => completions::manual(&args, Cli::command()),
    };
    match result.and_then(|()| output::complaint()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if is_json {
                output::print_json_error(&failure);
            }
            eprintln!("squall: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Whether a measuring command can work on this system.
fn measurable(command: &str) -> Result<()> {
    sys::can_measure().map_err(error::context(command))
}
