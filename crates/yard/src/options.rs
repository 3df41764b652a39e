//! What either end of a measurement can set about its transport, its TLS and its socket.

use std::fmt;
use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rustls::crypto::CryptoProvider;
use rustls::{KeyLog, KeyLogFile, NamedGroup};
use squall::{AckFrequencyRequest, Builder, CongestionAlgorithm, TransportConfig};
use squall_core::Ablation;

use crate::error::{Failure, Result, context};
use crate::suites::Suites;

pub use crate::suites::Suite;

/// The variable that names the file for TLS secrets.
const KEY_LOG_VARIABLE: &str = "SSLKEYLOGFILE";

/// UDP payload of a full datagram by default: what IPv4 leaves of Ethernet's 1,500
/// bytes.
const DEFAULT_PAYLOAD: u16 = 1472;

/// Options of the transport, the same for both ends.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// UDP payload of a full datagram, in bytes
    #[arg(long, value_name = "N", default_value_t = DEFAULT_PAYLOAD, value_parser = crate::parse::payload)]
    pub payload: u16,

    /// Congestion control algorithm of this end as a sender
    #[arg(
        short = 'C',
        long,
        value_name = "NAME",
        value_enum,
        default_value = "cubic"
    )]
    pub congestion: Congestion,

    /// Offer and accept only this cipher suite: aes128, aes256 or chacha20; or give clients'
    /// connections several by shares, such as aes128=90,chacha20=10
    #[arg(long, value_name = "NAME|NAME=SHARE,...")]
    pub suite: Option<Suites>,

    /// Offer and accept only this key exchange group
    #[arg(long, value_name = "NAME", value_enum)]
    pub group: Option<Group>,

    /// Send single datagrams instead of bundles (UDP GSO)
    #[arg(long)]
    pub no_gso: bool,

    /// Receive single datagrams instead of bundles (UDP GRO)
    #[arg(long)]
    pub no_gro: bool,

    /// Send as fast as the congestion window allows, without pacing
    #[arg(long)]
    pub no_pacing: bool,

    /// Close a connection after this many seconds without a packet from the peer (default: 30; over
    /// loopback at least a hundredth of the number of connections); the shorter time of both ends
    /// counts (RFC 9000 §10.1)
    #[arg(long, value_name = "SECS", value_parser = crate::parse::seconds)]
    pub idle_timeout: Option<Duration>,

    /// Number of workers of this end: threads that share one port, each with its own connections
    #[arg(long, value_name = "N", default_value = "1", value_parser = workers)]
    pub workers: usize,

    /// Do not ask the peer for fewer acknowledgements; `squall perf --ablation` sets it.
    #[arg(skip)]
    pub no_ack_frequency: bool,

    /// Bytes of datagrams that wait at either end of a connection; `squall perf --datagrams` sets
    /// it.
    #[arg(skip)]
    pub datagram_buffer: Option<usize>,

    /// Techniques that are turned off; `squall perf --ablation` sets it.
    #[arg(skip)]
    pub ablation: Ablation,

    /// Fail unless TLS secrets can be written to the file named by SSLKEYLOGFILE (they are written
    /// whenever it is set)
    #[arg(long)]
    pub keylog: bool,
}

/// Parses a number of workers, up to an endpoint's maximum.
fn workers(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(workers @ 1..=128) => Ok(workers),
        _ => Err("give a whole number from 1 to 128".to_owned()),
    }
}

/// Congestion control by its well-known names.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// RFC 9002
    Newreno,
    /// RFC 9438, with HyStart++
    Cubic,
    /// BBR version 3
    Bbr,
}

impl Congestion {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Newreno => "newreno",
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
        }
    }
}

/// A key exchange group (RFC 8446 §4.2.7).
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// X25519
    X25519,
    /// The post-quantum hybrid; what is preferred where nothing is said
    X25519mlkem768,
    /// The NIST curve P-256
    Secp256r1,
}

impl Group {
    fn named(self) -> NamedGroup {
        match self {
            Self::X25519 => NamedGroup::X25519,
            Self::X25519mlkem768 => NamedGroup::X25519MLKEM768,
            Self::Secp256r1 => NamedGroup::secp256r1,
        }
    }
}

impl Options {
    /// The transport configuration for this many concurrent streams.
    pub fn transport(&self, streams: usize) -> Arc<TransportConfig> {
        let mut config = TransportConfig::default()
            .max_udp_payload(self.payload)
            .pacing(!self.no_pacing)
            .congestion(match self.congestion {
                Congestion::Newreno => CongestionAlgorithm::NewReno,
                Congestion::Cubic => CongestionAlgorithm::Cubic,
                Congestion::Bbr => CongestionAlgorithm::Bbr,
            });
        if let Some(timeout) = self.idle_timeout {
            config.max_idle_timeout = timeout;
        }
        if self.no_ack_frequency {
            config.ack_frequency = AckFrequencyRequest::Nothing;
        }
        if let Some(bytes) = self.datagram_buffer {
            config.datagram_send_buffer = bytes;
            config.datagram_receive_buffer = bytes;
        }
        config.ablation = self.ablation;
        config.max_concurrent_bidi_streams = config.max_concurrent_bidi_streams.max(streams as u64);
        Arc::new(config)
    }

    /// squall's provider, with the requested suites and group.
    pub fn provider(&self) -> Arc<CryptoProvider> {
        match &self.suite {
            Some(suites) => suites.alone(self.provider_of_all()),
            None => Arc::new(self.provider_of_all()),
        }
    }

    /// A provider for each of a client's connections: with a single suite if there is a mix.
    ///
    /// # Errors
    /// There are fewer connections than suites.
    pub fn providers(&self, connections: usize) -> Result<Vec<Arc<CryptoProvider>>> {
        let Some(mix) = self.suite.as_ref().filter(|suites| suites.is_mix()) else {
            return Ok(vec![self.provider()]);
        };
        let each = mix
            .named()
            .map(|suite| (suite, suite.alone(self.provider_of_all())));
        let each: Vec<_> = each.collect();
        let order = mix.order(connections)?.into_iter();
        let own = |wanted| each.iter().find(|(suite, _)| *suite == wanted);
        Ok(order
            .filter_map(own)
            .map(|(_, provider)| Arc::clone(provider))
            .collect())
    }

    /// squall's provider, with the requested group.
    fn provider_of_all(&self) -> CryptoProvider {
        let mut provider = CryptoProvider::clone(&squall::provider());
        if let Some(group) = self.group {
            let wanted = group.named();
            provider.kx_groups.retain(|group| group.name() == wanted);
        }
        provider
    }

    /// An endpoint builder with these options and stage accounting on.
    pub fn builder(&self, address: SocketAddr) -> Builder {
        Builder::new(address)
            .gso(!self.no_gso)
            .gro(!self.no_gro)
            .workers(self.workers)
            .accounting(true)
    }

    /// The requested options that TCP lacks or handles differently: the controls choose their own
    /// congestion control.
    pub fn of_quic_alone(&self) -> Vec<String> {
        let mut names = Vec::new();
        let congestion = self.congestion.name();
        for (set, name) in [
            (
                self.congestion != Congestion::Cubic,
                format!("--congestion {congestion}"),
            ),
            (
                self.payload != DEFAULT_PAYLOAD,
                format!("--payload {}", self.payload),
            ),
            (self.idle_timeout.is_some(), "--idle-timeout".to_owned()),
            (self.workers > 1, format!("--workers {}", self.workers)),
            (self.no_gso, "--no-gso".to_owned()),
            (self.no_gro, "--no-gro".to_owned()),
            (self.no_pacing, "--no-pacing".to_owned()),
        ] {
            if set {
                names.push(name);
            }
        }
        names
    }

    /// Where TLS secrets go.
    ///
    /// # Errors
    /// They were required, but no file is named or it cannot be written.
    pub fn key_log(&self) -> Result<Arc<dyn KeyLog>> {
        if self.keylog {
            let named = std::env::var_os(KEY_LOG_VARIABLE).filter(|name| !name.is_empty());
            let name = named.ok_or_else(|| {
                Failure::new(format!(
                    "--keylog requires a file: set {KEY_LOG_VARIABLE}=FILE"
                ))
            })?;
            // rustls carries on without a file that it cannot open.
            let opened = OpenOptions::new().append(true).create(true).open(&name);
            let doing = format!("cannot write {} ({KEY_LOG_VARIABLE})", name.display());
            opened.map_err(context(&doing))?;
        }
        Ok(Arc::new(KeyLogFile::new()))
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(suites) = &self.suite {
            write!(f, "{suites}, ")?;
        }
        let (payload, congestion) = (self.payload, self.congestion.name());
        write!(f, "datagrams of {payload} bytes, {congestion}")?;
        if let Some(group) = self.group {
            write!(f, ", {:?}", group.named())?;
        }
        if self.workers > 1 {
            write!(f, ", {} workers", self.workers)?;
        }
        for (off, name) in [
            (self.no_gso, "GSO"),
            (self.no_gro, "GRO"),
            (self.no_pacing, "pacing"),
        ] {
            if off {
                write!(f, ", no {name}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_idle_timeout_is_passed_to_the_transport() {
        let timeout = |args: &[&str]| {
            let options: Options = crate::parse::group(args).expect("arguments");
            options.transport(1).max_idle_timeout
        };
        let default = TransportConfig::default().max_idle_timeout;
        assert_eq!(timeout(&[]), default);
        assert_eq!(
            timeout(&["--idle-timeout", "2.5"]),
            Duration::from_millis(2_500)
        );
        // The default that the help states.
        assert_eq!(default, Duration::from_secs(30));
    }
}
