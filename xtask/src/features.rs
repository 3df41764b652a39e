//! `cargo xtask features`: the library with features other than the defaults.
//!
//! Each combination is compiled with all lints, and connections are made with ring's provider.
//! The tests of the workspace use the default features, with aws-lc-rs, and `cargo xtask package`
//! makes a connection without features. `squall-h3` is compiled without its qlog, and with `dns`;
//! `h3-squall` is tested with its datagrams, and `squall-rustls` is compiled with each provider.

use std::process::{Command, ExitCode};

use crate::tree;

/// What is compiled: nothing, each feature by itself, and all.
const COMBINATIONS: [&str; 10] = [
    "",
    "ring",
    "qlog",
    "tracing",
    "futures-io",
    "self-signed",
    "platform-verifier",
    "metrics",
    "ring,self-signed,platform-verifier",
    "aws-lc-rs,ring,qlog,tracing,futures-io,self-signed,platform-verifier,metrics",
];

/// Compiles and tests all of them, up to the first failure.
pub(crate) fn run() -> ExitCode {
    let compiled = COMBINATIONS.iter().all(|features| {
        println!("squall with {features:?}");
        let without_default = ["--no-default-features", "--features", features];
        let flags = ["--", "--deny", "warnings"];
        cargo("squall", &["clippy"], &without_default, &flags)
    });
    let tested = || {
        println!("squall-h3 without qlog and with dns, connections with \"ring\"");
        let none = ["--no-default-features"];
        let lints = ["--", "--deny", "warnings"];
        let ring = ["--no-default-features", "--features", "ring"];
        let datagram = ["--features", "datagram"];
        let dns = ["--no-default-features", "--features", "dns"];
        cargo("squall-h3", &["clippy"], &none, &lints)
            && cargo("squall-h3", &["clippy"], &dns, &lints)
            && (["", "ring", "aws-lc-rs"].iter())
                .all(|base| cargo("squall-rustls", &["clippy"], &["--features", base], &lints))
            && cargo("squall", &["test", "--test", "providers"], &ring, &[])
            && cargo("h3-squall", &["clippy"], &datagram, &lints)
            && cargo(
                "h3-squall",
                &["test", "--test", "datagrams"],
                &datagram,
                &[],
            )
    };
    if compiled && tested() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn cargo(package: &str, command: &[&str], features: &[&str], rest: &[&str]) -> bool {
    let status = Command::new(env!("CARGO"))
        .current_dir(tree::root())
        .args(command)
        .args(["--quiet", "--locked", "--package", package])
        .args(features)
        .args(rest)
        .status();
    status.is_ok_and(|status| status.success())
}
