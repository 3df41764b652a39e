//! How many viewers, for how long.

use clap::Parser;

/// The environment variable with the arguments of `cargo xtask viewers`.
const ARGUMENTS: &str = "SQUALL_VIEWERS";

/// Viewers of a film watch while the server's certificate is renewed and the server is restarted
#[derive(Clone, Debug, Parser)]
#[command(name = "cargo xtask viewers", no_binary_name = true)]
pub(super) struct Plan {
    /// Viewers, each with a connection of its own
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub(super) viewers: usize,

    /// How long they watch, in seconds
    #[arg(long, value_name = "SECS", default_value_t = 60)]
    pub(super) seconds: u64,

    /// The mean bitrate of a viewer's video, in kbit/s; audio adds 64
    #[arg(long, value_name = "KBIT", default_value_t = 1_000)]
    pub(super) rate: u64,

    /// More viewers, who request a long file and read nothing of it
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) stuck: usize,

    /// More connections, which make one request each and then stay
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) idle: usize,

    /// The server's --grace-period, in seconds
    #[arg(long, value_name = "SECS", default_value_t = 10.0)]
    pub(super) grace: f64,

    /// The server's --workers
    #[arg(long, value_name = "N")]
    pub(super) workers: Option<usize>,

    /// Write the report to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<String>,
}

impl Default for Plan {
    fn default() -> Self {
        Self::parse_from::<[&str; 0], _>([])
    }
}

impl Plan {
    /// The arguments of `cargo xtask viewers`; wrong ones end the process with a usage message.
    pub(super) fn of_xtask() -> Self {
        let arguments = std::env::var(ARGUMENTS).unwrap_or_default();
        Self::parse_from(arguments.split_whitespace())
    }
}
