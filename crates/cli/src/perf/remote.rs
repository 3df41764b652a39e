//! `squall perf server` and `squall perf client`: the perf protocol between two machines, or with
//! another implementation.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustls::{ClientConfig, KeyLogFile};
use squall::{Builder, CloseReason, ConnectError, Connection};

use super::args::{Client, Server};
use super::certificate::{self, Certificate};
use super::protocol::{self, ALPN, Tally};
use super::{Amount, live, quic};
use crate::error::{Failure, Result, context};
use crate::output::{print_json, say};

/// The port where none is given.
const PORT: u16 = 4433;
/// Streams that a client may have open at a time on one connection.
const STREAMS: usize = 10_000;

/// Serves until the process is ended.
pub(crate) fn serve(args: &Server) -> Result<()> {
    let (certificate, made) = match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => (Certificate::read(cert, key)?, false),
        _ => (Certificate::generate()?, true),
    };
    let mut tls = certificate.server(squall::provider())?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.key_log = Arc::new(KeyLogFile::new());
    let endpoint = Builder::new(args.listen)
        .server(squall::ServerConfig {
            tls: Arc::new(tls),
            transport: quic::transport(args.payload, STREAMS),
        })
        .bind()
        .map_err(|error| {
            Failure::new(format!(
                "cannot listen on UDP {}: {error}; choose another address or port with --listen ADDR:PORT",
                args.listen
            ))
        })?;
    let address = endpoint.local_addr().map_err(context("local address"))?;
    say(&format!(
        "listening on {address} (UDP), application protocol perf"
    ));
    if made {
        say(&format!(
            "certificate made in memory for localhost, SHA-256 fingerprint {}",
            certificate.fingerprint()
        ));
    }
    let started = Instant::now();
    let serve = protocol::serve(
        endpoint.clone(),
        Arc::default(),
        move |connection, tally| {
            report(connection, tally, started);
        },
    );
    // Until the worker ends, which it does not before this process.
    quic::wait(&endpoint, serve)
}

/// One line for a connection that has ended.
fn report(connection: &Connection, tally: &Tally, started: Instant) {
    let reason = connection
        .close_reason()
        .map_or_else(String::new, |reason| format!(", {reason}"));
    say(&format!(
        "[{:8.1} s] {}: sent {} bytes, received {} bytes{reason}",
        started.elapsed().as_secs_f64(),
        connection.remote_address(),
        tally.sent.load(Ordering::Relaxed),
        tally.received.load(Ordering::Relaxed),
    ));
}

/// Measures against a server.
pub(crate) fn measure(args: &Client) -> Result<()> {
    let (host, port) = split(&args.server)?;
    let address = (host.as_str(), port)
        .to_socket_addrs()
        .ok()
        .and_then(|mut addresses| addresses.next())
        .ok_or_else(|| {
            Failure::new(format!(
                "cannot find the address of {host}: check the name, or give an IP address"
            ))
        })?;
    let any: SocketAddr = if address.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let endpoint = Builder::new(any)
        .client(squall::ClientConfig {
            tls: Arc::new(tls(args)?),
            transport: quic::transport(args.payload, args.streams),
        })
        .bind()
        .map_err(context("cannot open a UDP socket"))?;
    let connections = quic::connect(&endpoint, address, &host, args.connections)?;
    let amount = args.bytes.map_or(Amount::Time(args.time), Amount::Bytes);
    let cpu = || quic::cpu_of(&endpoint);
    let before = cpu();
    let counter: Arc<live::Counter> = Arc::default();
    let line = live::Live::start(args.server.clone(), &counter);
    let transfers = if args.upload {
        quic::run_all(&endpoint, &connections, args.streams, |connection| {
            protocol::upload(connection, amount, Arc::clone(&counter))
        })
    } else {
        quic::run_all(&endpoint, &connections, args.streams, |connection| {
            protocol::download(connection, amount, false, Arc::clone(&counter))
        })
    };
    let cpu = cpu().saturating_sub(before);
    drop(line);
    let transfers = transfers?;
    for connection in &connections {
        connection.close(0, b"");
    }
    // The peer is told before the process ends.
    let idle = endpoint.clone();
    quic::wait(&endpoint, async move {
        let limit = std::time::Duration::from_secs(1);
        // A peer that is gone is not waited for.
        let _ = tokio::time::timeout(limit, idle.wait_idle()).await;
    })?;
    let bytes: u64 = transfers.iter().map(|one| one.bytes).sum();
    let seconds = quic::span(&transfers).as_secs_f64();
    let direction = if args.upload { "sent" } else { "received" };
    let gbit_per_s = bytes as f64 * 8.0 / seconds / 1e9;
    let cpu_s_per_gb = cpu.as_secs_f64() / (bytes as f64 / 1e9);
    if args.json {
        return print_json(&serde_json::json!({
            "direction": if args.upload { "upload" } else { "download" },
            "bytes": bytes,
            "seconds": seconds,
            "gbit_per_s": gbit_per_s,
            "client_cpu_s_per_gb": cpu_s_per_gb,
        }));
    }
    say(&format!(
        "{direction} {bytes} bytes in {seconds:.3} s: {gbit_per_s:.3} Gbit/s, \
         {cpu_s_per_gb:.3} CPU-seconds for each GB here"
    ));
    Ok(())
}

/// The client's TLS: no verification, the given anchors, or the system's.
fn tls(args: &Client) -> Result<ClientConfig> {
    let mut tls = if args.insecure {
        certificate::trusting_anyone(squall::provider())?
    } else if let Some(file) = &args.cacert {
        certificate::trusting(&certificate::read_certificates(file)?, squall::provider())?
    } else {
        let system = rustls_native_certs::load_native_certs().certs;
        if system.is_empty() {
            return Err(Failure::new(
                "this system has no trusted certificates: give the server's with --cacert FILE, or -k to skip verification",
            ));
        }
        certificate::trusting(&system, squall::provider())?
    };
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.key_log = Arc::new(KeyLogFile::new());
    Ok(tls)
}

/// `HOST[:PORT]`; IPv6 addresses stand in brackets where a port follows.
fn split(text: &str) -> Result<(String, u16)> {
    let wrong = || {
        Failure::new(format!(
            "{text:?} is not HOST or HOST:PORT: write an IPv6 address with a port as [ADDR]:PORT"
        ))
    };
    if text.parse::<Ipv6Addr>().is_ok() {
        return Ok((text.to_owned(), PORT));
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']').ok_or_else(wrong)? {
            (host, "") => (host, None),
            (host, tail) => (host, Some(tail.strip_prefix(':').ok_or_else(wrong)?)),
        },
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(port) => port.parse().map_err(|_| wrong())?,
        None => PORT,
    };
    if host.is_empty() {
        return Err(wrong());
    }
    Ok((host.to_owned(), port))
}

/// Why there is no connection, and what to do about it.
pub(crate) fn explain(error: &ConnectError, address: SocketAddr) -> Failure {
    /// RFC 9001 §4.8: the crypto error of TLS alert no_application_protocol.
    const NO_APPLICATION_PROTOCOL: u64 = 0x100 + 120;
    Failure::new(match error {
        ConnectError::Closed(CloseReason::HandshakeTimeout | CloseReason::IdleTimeout) => format!(
            "no answer from {address}: check that a server listens there (squall perf server) and that UDP passes"
        ),
        ConnectError::Closed(CloseReason::Transport { code, .. })
            if code.0 == NO_APPLICATION_PROTOCOL =>
        {
            format!("{address} is a QUIC server but does not speak perf: start squall perf server")
        }
        ConnectError::Closed(CloseReason::Transport {
            code,
            reason,
            remote: false,
        }) if (0x100..0x200).contains(&code.0) => format!(
            "{address} is not trusted ({reason}): give its certificate with --cacert FILE, or -k to skip verification"
        ),
        error => format!("cannot connect to {address}: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports() {
        let ok = |text: &str| split(text).expect(text);
        assert_eq!(ok("example.org"), ("example.org".to_owned(), 4433));
        assert_eq!(ok("example.org:443"), ("example.org".to_owned(), 443));
        assert_eq!(ok("::1"), ("::1".to_owned(), 4433));
        assert_eq!(ok("[::1]"), ("::1".to_owned(), 4433));
        assert_eq!(ok("[::1]:443"), ("::1".to_owned(), 443));
        assert_eq!(ok("127.0.0.1:1"), ("127.0.0.1".to_owned(), 1));
        for text in [
            "",
            ":443",
            "host:",
            "host:70000",
            "[::1",
            "[::1]443",
            "a:b:c",
        ] {
            assert!(split(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_silent_server_and_a_wrong_certificate_are_told_apart() {
        let address = ([127, 0, 0, 1], 4433).into();
        let silent = explain(
            &ConnectError::Closed(CloseReason::HandshakeTimeout),
            address,
        );
        assert!(silent.to_string().contains("no answer"));
        let untrusted = ConnectError::Closed(CloseReason::Transport {
            code: squall::TransportErrorCode::crypto(48),
            reason: "unknown issuer".to_owned(),
            remote: false,
        });
        assert!(
            explain(&untrusted, address)
                .to_string()
                .contains("--cacert")
        );
    }
}
