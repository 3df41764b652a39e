//! squall against other QUIC stacks, by hand and with as much data as wanted.
//!
//! ```text
//!  main  ──►  transfer    both ways between squall and quinn, in both roles, digests compared
//!                 └────►  payload    pseudo-random bytes, made as they are sent
//! ```

mod payload;
mod transfer;

use std::process::ExitCode;

const USAGE: &str =
    "usage: squall-peers transfer [--bytes N]   (K, M, G are powers of ten; default 100M)";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let bytes = match arguments[..] {
        ["transfer"] => Some(100_000_000),
        ["transfer", "--bytes", size] => parse_size(size),
        _ => None,
    };
    let Some(bytes) = bytes else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match transfer::run(bytes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("squall-peers: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse_size(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1_000),
        b'M' => (&text[..text.len() - 1], 1_000_000),
        b'G' => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}
