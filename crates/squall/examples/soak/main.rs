//! A soak: hours of mixed load between two processes over a link that keeps failing. `cargo xtask
//! soak` runs it in the right profile; it needs Linux, root or user namespaces, and `ip`, `tc`,
//! `nft`, `unshare`, `nsenter` and `prlimit`.
//!
//! ```text
//!   conduct ── faults ──► the link, its addresses and routes, descriptors, signals
//!     │  ▲                     │
//!     │  └─ samples, errors ───┼──────────────┐
//!     ▼                        ▼              │
//!   client ◄──── veth, its own network ───► server      each a process: `load`, `server`
//!        └─ content, pulse: is the data right, does it move while nothing is wrong ─┘
//! ```
//! The conductor creates the namespaces, starts both processes, and tells them when a fault begins
//! (`fault`) and when its effects should be over (`calm`). They report a sample each second, and
//! anything wrong at once. The run fails if a worker ends, data is wrong, an acknowledged upload is
//! lost, a transfer stalls or a connection fails without a fault, or if memory or descriptors are
//! higher in the last quarter than in the second one.

#![cfg_attr(not(target_os = "linux"), allow(unused))]

#[cfg(target_os = "linux")]
mod conduct;
mod content;
mod faults;
mod judge;
mod load;
mod pulse;
mod server;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask soak [--minutes N] [--seed N]";

/// The parsed command line.
#[derive(Clone, Copy, Debug)]
struct Asked {
    minutes: f64,
    seed: u64,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    #[cfg(target_os = "linux")]
    match words[..] {
        ["conduct", ref options @ ..] => {
            if let Some(asked) = parse(options) {
                return conduct::run(asked);
            }
        }
        ["server"] => return server::run(),
        ["client", certificate, seed] => {
            if let Ok(seed) = seed.parse() {
                return load::run(certificate, seed);
            }
        }
        _ if parse(&words).is_some() => return conduct::enter(&arguments),
        _ => {}
    }
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn parse(options: &[&str]) -> Option<Asked> {
    let mut asked = Asked {
        minutes: 10.0,
        seed: 1,
    };
    let (pairs, rest) = options.as_chunks::<2>();
    for &[name, value] in pairs {
        match name {
            "--minutes" => asked.minutes = value.parse().ok().filter(|minutes| *minutes > 0.0)?,
            "--seed" => asked.seed = value.parse().ok()?,
            _ => return None,
        }
    }
    rest.is_empty().then_some(asked)
}
