//! The contenders that are compared: squall and its controls.

use clap::ValueEnum;
use squall_yard::error::{Failure, Result};

/// The contenders.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    /// squall
    Quic,
    /// TLS 1.3 over TCP, rustls
    TlsTcp,
    /// Plain TCP
    Tcp,
}

impl Contender {
    /// All of them, in the order of the report.
    pub(crate) const ALL: [Self; 3] = [Self::Quic, Self::TlsTcp, Self::Tcp];

    /// The name in the report and in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Quic => "quic",
            Self::TlsTcp => "tls_tcp",
            Self::Tcp => "tcp",
        }
    }
}

/// The most connections of the controls: as many as `--bidir` uses for 10,000 streams.
const MAX_TCP: usize = 20_000;

/// Checks that controls with two threads per connection can have this many connections.
///
/// # Errors
/// They take part and would have too many.
pub(crate) fn check_threads(connections: usize, contenders: &[Contender]) -> Result<()> {
    if connections > MAX_TCP && contenders.iter().any(|&one| one != Contender::Quic) {
        return Err(Failure::new(format!(
            "TCP would take {connections} connections with a thread at each end, more than {MAX_TCP}: add --only quic"
        )));
    }
    Ok(())
}
