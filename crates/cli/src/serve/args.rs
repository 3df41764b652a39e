//! The arguments of `squall serve`, in the words of nginx and Caddy.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use squall_yard::parse::{listen, seconds};

use super::access::Format;
use super::proxy::Address;

/// Serve files, or be a reverse proxy for an application, over HTTP/1.1, HTTP/2 and HTTP/3
///
/// Files: a folder is served as its index.html, and a file's encoded siblings (.br, .zst, .gz) go
/// to clients that accept them. Names that start with a dot are not served, except /.well-known/;
/// nor are links that lead out of the folder.
///
/// Application: requests are passed on with Forwarded and X-Forwarded-For, -Proto and -Host, which
/// replace the client's own; WebSocket is supported.
///
/// Ctrl-C or SIGTERM finishes the requests in flight; a second one ends at once. SIGHUP reloads the
/// certificate and reopens the access log. With --takeover, a new process replaces this one without
/// interruption.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("content").required(true).args(["folder", "upstream"]))]
pub(crate) struct Serve {
    /// Serve the files of this folder
    #[arg(value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,

    /// Forward requests to the application at http://HOST:PORT, or h2c://HOST:PORT for HTTP/2
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Option<Address>,

    /// Address and port to listen on, with TCP and, for HTTP/3, UDP
    #[arg(short, long, value_name = "ADDR:PORT", default_value = "[::]:8443", value_parser = listen)]
    pub(crate) listen: SocketAddr,

    /// Certificate chain (PEM), reloaded on SIGHUP; by default a certificate for this host is
    /// generated, valid for 13 days
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,

    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,

    /// Name or IP address for the generated certificate, besides localhost; may be repeated
    #[arg(long, value_name = "NAME", conflicts_with = "cert")]
    pub(crate) name: Vec<String>,

    /// Do not serve HTTP/3
    #[arg(long)]
    pub(crate) no_h3: bool,

    /// Make every HTTP/3 client prove its address before any state is kept (RFC 9000 §8.1.2); by
    /// default only under load
    #[arg(long, conflicts_with = "no_h3")]
    pub(crate) retry: bool,

    /// Forward requests that arrive in HTTP/3 early data (0-RTT), with the field `Early-Data: 1`.
    /// Use it only if the application respects that field, since such requests may be replays (RFC
    /// 8470). Unsafe methods are answered with 425. Files are always served in early data
    #[arg(long, requires = "upstream", conflicts_with = "no_h3")]
    pub(crate) early_data: bool,

    /// File with the key of stateless resets and address validation tokens: at least 32 random
    /// bytes (head -c 32 /dev/urandom). After a crash, a server with the same key tells clients at
    /// once that their connections are gone; servers with the same key accept each other's tokens.
    /// By default, the key is random at each start
    #[arg(long, value_name = "FILE", conflicts_with = "no_h3")]
    pub(crate) quic_host_key: Option<PathBuf>,

    /// Take over the ports of the running server with the same PATH, if there is one, and then
    /// wait there for a successor. The old server finishes its requests, for as long as they take,
    /// and ends. PATH is a Unix socket in a folder that only this user can write to. Linux only
    #[arg(long, value_name = "PATH", conflicts_with = "no_h3")]
    pub(crate) takeover: Option<PathBuf>,

    /// Number of worker threads, for TCP and for HTTP/3 each (default: one per core)
    #[arg(long, value_name = "N", value_parser = workers)]
    pub(crate) workers: Option<usize>,

    /// List the files of folders without an index.html
    #[arg(long, requires = "folder")]
    pub(crate) browse: bool,

    /// Keep up to this many bytes of small files in memory
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = cache, requires = "folder")]
    pub(crate) cache: usize,

    /// Add fields that protect browsers to responses that lack them: X-Content-Type-Options,
    /// X-Frame-Options, Referrer-Policy, Cross-Origin-Opener-Policy, and with --cert also
    /// Strict-Transport-Security
    #[arg(long)]
    pub(crate) security_headers: bool,

    /// Log a line for each request, in this format
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub(crate) access_log: Option<Format>,

    /// The file of the access log, reopened on SIGHUP (default: standard output)
    #[arg(long, value_name = "FILE", requires = "access_log")]
    pub(crate) access_log_file: Option<PathBuf>,

    /// Serve metrics for Prometheus: at http://ADDR:PORT/metrics, or at a path of this server such
    /// as /metrics, which everyone can read
    #[arg(long, value_name = "ADDR:PORT|PATH", value_parser = metrics)]
    pub(crate) metrics: Option<Metrics>,

    /// Measure where the CPU time of HTTP/3 goes, for the metric squall_worker_stage_seconds_total.
    /// This costs a few per cent of that time
    #[arg(long, requires = "metrics", conflicts_with = "no_h3")]
    pub(crate) stage_times: bool,

    /// Maximum number of open connections; others wait to be accepted
    #[arg(long, value_name = "N", default_value = "10000", value_parser = connections)]
    pub(crate) max_connections: u32,

    /// Stop when standard input ends, as it does when the program that started this one has ended
    #[arg(long)]
    pub(crate) until_eof: bool,

    #[command(flatten)]
    pub(crate) timeouts: Timeouts,
}

/// Timeouts.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// Seconds for a TLS handshake, and for the head of a request to arrive
    #[arg(long, value_name = "SECS", default_value = "15", value_parser = seconds)]
    pub(crate) header_timeout: Duration,

    /// Close a connection after this many seconds without a request
    #[arg(long, value_name = "SECS", default_value = "75", value_parser = seconds)]
    pub(crate) idle_timeout: Duration,

    /// Abort a response if the client reads nothing of it for this many seconds
    #[arg(long, value_name = "SECS", default_value = "60", value_parser = seconds)]
    pub(crate) send_timeout: Duration,

    /// Abort a request if nothing of its body arrives for this many seconds
    #[arg(long, value_name = "SECS", default_value = "60", value_parser = seconds)]
    pub(crate) body_timeout: Duration,

    /// Seconds to connect to the application
    #[arg(long, value_name = "SECS", default_value = "5", value_parser = seconds, requires = "upstream")]
    pub(crate) connect_timeout: Duration,

    /// Seconds for the application to begin its response, and for each pause in it
    #[arg(long, value_name = "SECS", default_value = "60", value_parser = seconds, requires = "upstream")]
    pub(crate) upstream_timeout: Duration,

    /// Seconds for requests in flight to finish when stopping
    #[arg(long, value_name = "SECS", default_value = "10", value_parser = seconds)]
    pub(crate) grace_period: Duration,
}

/// Where metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Metrics {
    Address(SocketAddr),
    Path(String),
}

fn metrics(text: &str) -> Result<Metrics, String> {
    if text.starts_with('/')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'?')
    {
        return Ok(Metrics::Path(text.to_owned()));
    }
    (text.parse().map(Metrics::Address)).map_err(|_| {
        "give an IP address and a port, such as 127.0.0.1:9100, or a path, such as /metrics"
            .to_owned()
    })
}

/// The most workers of an endpoint.
pub(crate) const MAX_WORKERS: usize = 128;

fn workers(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(workers @ 1..=MAX_WORKERS) => Ok(workers),
        _ => Err("give a whole number from 1 to 128".to_owned()),
    }
}

fn connections(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(connections @ 1..=1_000_000) => Ok(connections),
        _ => Err("give a whole number from 1 to 1000000".to_owned()),
    }
}

fn cache(text: &str) -> Result<usize, String> {
    if text == "0" {
        return Ok(0);
    }
    let bytes = squall_yard::parse::size(text)?;
    usize::try_from(bytes).map_err(|_| "this is more than the address space".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_take_an_address_or_a_path() {
        let address = ([127, 0, 0, 1], 9100).into();
        assert_eq!(metrics("127.0.0.1:9100"), Ok(Metrics::Address(address)));
        assert_eq!(
            metrics("/metrics"),
            Ok(Metrics::Path("/metrics".to_owned()))
        );
        for text in [
            "",
            "metrics",
            "localhost:9100",
            "127.0.0.1",
            "/a b",
            "/a?b",
            "/ä",
        ] {
            assert!(metrics(text).is_err(), "{text}");
        }
    }
}
