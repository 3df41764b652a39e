//! What is measured side by side: squall and its controls.

use clap::ValueEnum;

/// What can be measured.
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
