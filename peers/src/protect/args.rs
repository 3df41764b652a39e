//! The command-line arguments.

use clap::{Args, ValueEnum};

use super::packets::PACKETS;

/// Packet protection next to other libraries, interleaved in one run: ns per packet, and squall's
/// time as a share of theirs.
#[derive(Args)]
pub(crate) struct Protect {
    /// Suites; all by default.
    #[arg(long, value_enum, value_delimiter = ',', ignore_case = true, default_values_t = Suite::ALL)]
    pub(crate) suite: Vec<Suite>,

    /// Directions; both by default.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Direction::ALL)]
    pub(crate) direction: Vec<Direction>,

    /// Packets per call of squall, 1 to 64; the others are called packet by packet.
    #[arg(long, value_delimiter = ',', default_value = "1,8,32",
          value_parser = clap::value_parser!(u16).range(1..=PACKETS as i64))]
    pub(crate) batch: Vec<u16>,

    /// Payload bytes, 1 to 65507.
    #[arg(long, value_delimiter = ',', default_value = "4,16,64,256,600,1000,1200,1280,1450",
          value_parser = clap::value_parser!(u16).range(1..=65_507))]
    pub(crate) sizes: Vec<u16>,

    /// Rounds for each suite, direction, batch and size; figures are their medians.
    #[arg(long, default_value_t = 301, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,

    /// Contenders; all by default.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Name::ALL)]
    pub(crate) contenders: Vec<Name>,

    /// Print rows as JSON and nothing else.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A cipher suite under its usual name.
#[derive(Copy, Clone, Eq, PartialEq, ValueEnum)]
pub(crate) enum Suite {
    #[value(name = "AES-128-GCM")]
    Aes128Gcm,
    #[value(name = "AES-256-GCM")]
    Aes256Gcm,
    #[value(name = "ChaCha20-Poly1305")]
    ChaCha20Poly1305,
}

impl Suite {
    const ALL: [Self; 3] = [Self::Aes128Gcm, Self::Aes256Gcm, Self::ChaCha20Poly1305];

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "AES-128-GCM",
            Self::Aes256Gcm => "AES-256-GCM",
            Self::ChaCha20Poly1305 => "ChaCha20-Poly1305",
        }
    }

    /// squall's name for it.
    pub(crate) fn own(self) -> squall_protect::Suite {
        match self {
            Self::Aes128Gcm => squall_protect::Suite::Aes128Gcm,
            Self::Aes256Gcm => squall_protect::Suite::Aes256Gcm,
            Self::ChaCha20Poly1305 => squall_protect::Suite::ChaCha20Poly1305,
        }
    }
}

/// Which way a packet goes.
#[derive(Copy, Clone, Eq, PartialEq, ValueEnum)]
pub(crate) enum Direction {
    Seal,
    Open,
}

impl Direction {
    const ALL: [Self; 2] = [Self::Seal, Self::Open];

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Seal => "seal",
            Self::Open => "open",
        }
    }
}

/// The possible contenders.
#[derive(Copy, Clone, Eq, PartialEq, ValueEnum)]
pub(crate) enum Name {
    Squall,
    #[value(name = "boringssl")]
    BoringSsl,
    #[value(name = "openssl")]
    OpenSsl,
    AwsLcRs,
    Ring,
    #[value(name = "rustcrypto")]
    RustCrypto,
    Graviola,
    #[value(name = "ipsec-mb")]
    IpsecMb,
}

impl Name {
    const ALL: [Self; 8] = [
        Self::Squall,
        Self::BoringSsl,
        Self::OpenSsl,
        Self::AwsLcRs,
        Self::Ring,
        Self::RustCrypto,
        Self::Graviola,
        Self::IpsecMb,
    ];

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Squall => "squall",
            Self::BoringSsl => "boringssl",
            Self::OpenSsl => "openssl",
            Self::AwsLcRs => "aws-lc-rs",
            Self::Ring => "ring",
            Self::RustCrypto => "rustcrypto",
            Self::Graviola => "graviola",
            Self::IpsecMb => "ipsec-mb",
        }
    }
}
