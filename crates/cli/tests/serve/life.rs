//! Signals, reloading, slow clients.

use std::io::Read as _;

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt as _;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::client::{ALL, Folder, Server, Version, certificate_of, renew, run, whole};
use crate::common::signal;

#[test]
fn a_certificate_is_reloaded_without_losing_connections() {
    let folder = Folder::new();
    folder.write("index.html", "content");
    let first = renew(&folder);
    let (cert, key) = (
        format!("{}/cert.pem", folder.path()),
        format!("{}/key.pem", folder.path()),
    );
    let args = [
        "--cert",
        &cert,
        "--key",
        &key,
        "--security-headers",
        folder.path(),
    ];
    let mut server = Server::start(&args);
    run(async {
        let mut client = server.connect(Version::Http2).await;
        let shown = certificate_of(&server.tls(b"h2").await);
        assert_eq!(shown.as_ref(), first);
        let hsts = client.get("/", &[]).await.1;
        assert_eq!(hsts["strict-transport-security"], "max-age=31536000");
        // A key that does not match the certificate.
        let second = renew(&folder);
        std::fs::copy(&cert, format!("{cert}.good")).expect("a copy");
        folder.write("cert.pem", "broken");
        signal(&server.process, "HUP");
        let line = server.stderr.next().expect("a line").expect("text");
        assert!(
            line.contains("cert.pem") && line.contains("stays the same"),
            "{line}"
        );
        assert_eq!(certificate_of(&server.tls(b"h2").await).as_ref(), first);
        std::fs::copy(format!("{cert}.good"), &cert).expect("a copy");
        signal(&server.process, "HUP");
        let line = server.stderr.next().expect("a line").expect("text");
        assert!(line.contains("as read now"), "{line}");
        assert_eq!(certificate_of(&server.tls(b"h2").await).as_ref(), second);
        // The earlier connection still exists.
        assert_eq!(client.get("/", &[]).await.0, 200);
    });
}

#[test]
fn a_generated_certificate_has_the_printed_fingerprints() {
    let folder = Folder::new();
    let mut server = Server::start(&[folder.path()]);
    let shown = run(async { certificate_of(&server.tls(b"h2").await) });
    let hash: String = (Sha256::digest(&shown)
        .iter()
        .map(|byte| format!("{byte:02x}")))
    .collect();
    let printed = server
        .stdout
        .by_ref()
        .take(3)
        .map(|line| line.expect("text"));
    let printed = printed.collect::<Vec<_>>().join("\n");
    assert!(printed.contains(&hash), "{printed}");
    let spki = printed
        .split("--ignore-certificate-errors-spki-list=")
        .nth(1)
        .expect("the fingerprint is printed");
    assert_eq!(spki.lines().next().expect("a line").len(), 44);
}

#[test]
fn requests_in_flight_complete_before_shutdown() {
    let folder = Folder::new();
    folder.write("large", vec![1; 20_000_000]);
    for version in ALL {
        let log = format!("{}/access.{version:?}", folder.path());
        let args = [
            "--access-log",
            "json",
            "--access-log-file",
            &log,
            folder.path(),
        ];
        let mut server = Server::start(&args);
        run(async {
            let mut client = server.connect(version).await;
            let request = Request::get("/large?a=b")
                .body(whole(""))
                .expect("a request");
            let mut body = client.send(request).await.expect("a response").into_body();
            let first = body.frame().await.expect("a frame").expect("data");
            let mut len = first.data_ref().map_or(0, Bytes::len);
            signal(&server.process, "TERM");
            // Until it no longer accepts: the signal has then been handled.
            while TcpStream::connect(("127.0.0.1", server.port)).await.is_ok() {
                tokio::task::yield_now().await;
            }
            while let Some(frame) = body.frame().await {
                len += frame.expect("data").data_ref().map_or(0, Bytes::len);
            }
            assert_eq!(len, 20_000_000, "{version:?}");
        });
        assert_eq!(
            server.process.wait().expect("the server exits").code(),
            Some(0)
        );
        // The log is complete.
        let log = std::fs::read_to_string(log).expect("a log");
        let line: serde_json::Value = serde_json::from_str(log.trim()).expect("one object");
        assert_eq!(line["uri"], "/large?a=b");
        assert_eq!(line["bytes"], 20_000_000);
        assert_eq!(line["status"], 200);
        assert_eq!(line["host"], "localhost");
    }
}

#[test]
fn a_second_signal_or_the_end_of_the_grace_period_exits_at_once() {
    let folder = Folder::new();
    folder.write("large", vec![1; 20_000_000]);
    for (grace, signals, code) in [("600", 2, 130), ("0.01", 1, 0)] {
        let mut server = Server::start(&["--grace-period", grace, folder.path()]);
        run(async {
            let mut client = server.connect(Version::Http1).await;
            let request = Request::get("/large").body(whole("")).expect("a request");
            // Its body is never read.
            let _response = client.send(request).await.expect("a response");
            signal(&server.process, "INT");
            if signals == 2 {
                while TcpStream::connect(("127.0.0.1", server.port)).await.is_ok() {
                    tokio::task::yield_now().await;
                }
                signal(&server.process, "INT");
            }
            assert_eq!(
                server.process.wait().expect("the server exits").code(),
                Some(code),
                "{grace}"
            );
        });
    }
}

#[test]
fn slow_clients_are_dropped() {
    let folder = Folder::new();
    folder.write("large", vec![1; 50_000_000]);
    // Long enough for a handshake on a busy machine.
    let limits = [
        "--header-timeout",
        "1.5",
        "--send-timeout",
        "1.5",
        "--idle-timeout",
        "1.5",
    ];
    let metrics = ["--metrics", "127.0.0.1:0", folder.path()];
    let server = Server::start(&[&limits[..], &metrics].concat());
    run(async {
        // Never a byte: no handshake.
        let mut tcp = TcpStream::connect(("127.0.0.1", server.port))
            .await
            .expect("the server listens");
        assert_eq!(
            tcp.read(&mut [0; 100])
                .await
                .expect("the connection is closed"),
            0
        );
        for (alpn, start) in [
            (&b"http/1.1"[..], &b""[..]),
            (b"http/1.1", b"GET / HTTP/1.1\r\nHost: a\r\n"),
            (b"h2", b""),
            (b"h2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
            (
                b"h2",
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
            ),
        ] {
            let mut tls = server.tls(alpn).await;
            tls.write_all(start).await.expect("the data is sent");
            // It must end, no matter how.
            let _ = tls.read_to_end(&mut Vec::new()).await;
        }
        // Reads nothing of its response: both versions.
        let get = b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut tls = server.tls(b"http/1.1").await;
        tls.write_all(get).await.expect("the data is sent");
        // Read the response's first byte, then nothing until the server has given up.
        assert_eq!(tls.read(&mut [0]).await.expect("a byte"), 1);
        let mut stalled = Vec::new();
        for version in [Version::Http2, Version::Http3] {
            let mut client = server.connect(version).await;
            let request = Request::get("/large").body(whole("")).expect("a request");
            let response = client.send(request).await.expect("a response");
            stalled.push((client, response));
        }
        let mut metrics = String::new();
        while ["h1", "h2", "h3"].iter().any(|protocol| {
            !metrics.contains(&format!(
                "in_flight{{protocol=\"{protocol}\"}} 0
"
            ))
        }) {
            metrics = self::metrics(&server);
        }
        drop(stalled);
    });
}

// test: RFC 9113 §7, RFC 9114 §8.1
#[test]
fn an_unread_response_is_reset_and_its_connection_continues() {
    let folder = Folder::new();
    folder.write("large", vec![1; 50_000_000]);
    folder.write("small", "content");
    let args = ["--send-timeout", "0.5", "--metrics", "127.0.0.1:0"];
    let server = Server::start(&[&args[..], &[folder.path()]].concat());
    run(async {
        for (version, protocol) in [(Version::Http2, "h2"), (Version::Http3, "h3")] {
            let mut client = server.connect(version).await;
            let request = Request::get("/large").body(whole("")).expect("a request");
            let large = client.send(request).await.expect("a response");
            let count =
                format!("body_timeouts_total{{protocol=\"{protocol}\",body=\"response\"}} 1\n");
            let ended = async {
                while !metrics(&server).contains(&count) {
                    assert_eq!(client.get("/small", &[]).await.0, 200);
                }
            };
            let limit = std::time::Duration::from_secs(30);
            tokio::time::timeout(limit, ended)
                .await
                .expect("the server exits");
            let error = large
                .into_body()
                .collect()
                .await
                .expect_err("the body is truncated");
            if version == Version::Http3 {
                let error = error.downcast_ref().expect("an error of HTTP/3");
                let cancelled = squall_h3::Code::H3_REQUEST_CANCELLED;
                assert!(
                    matches!(error, squall_h3::Error::Stream(code) if *code == cancelled),
                    "{error}"
                );
            }
            assert_eq!(client.get("/small", &[]).await.0, 200);
        }
    });
}

#[test]
fn metrics_report_where_the_workers_time_goes() {
    let folder = Folder::new();
    folder.write("index.html", vec![1; 100_000]);
    for stage_times in [false, true] {
        let mut args = vec!["--metrics", "127.0.0.1:0"];
        args.extend(stage_times.then_some("--stage-times"));
        args.push(folder.path());
        let server = Server::start(&args);
        run(async {
            let mut client = server.connect(Version::Http3).await;
            for _ in 0..10 {
                assert_eq!(client.get("/", &[]).await.0, 200);
            }
            let text = metrics(&server);
            let value = |name: &str| -> Option<f64> {
                let mut lines = text.lines();
                lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
            };
            let cpu = value("squall_worker_cpu_seconds_total").expect("a value");
            assert!(cpu > 0.0, "{text}");
            assert!(
                value("squall_udp_sent_datagrams_total") > Some(100.0),
                "{text}"
            );
            assert!(
                value("squall_udp_received_bytes_total") > Some(1_200.0),
                "{text}"
            );
            for stage in ["HTTP/3", "QPACK", "application", "AEAD", "handshake"] {
                let name = format!("squall_worker_stage_seconds_total{{stage=\"{stage}\"}}");
                assert_eq!(value(&name) > Some(0.0), stage_times, "{text}");
            }
        });
    }
}

/// Fetching metrics would count as one more request, so they are on a separate port.
pub(crate) fn metrics(server: &Server) -> String {
    let address = server
        .before
        .iter()
        .find_map(|line| line.strip_prefix("metrics at http://"));
    let address = address.expect("metrics").trim_end_matches("/metrics");
    let mut tcp = std::net::TcpStream::connect(address).expect("the server listens");
    std::io::Write::write_all(&mut tcp, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect("taken");
    let mut text = String::new();
    tcp.read_to_string(&mut text).expect("text");
    text
}

#[test]
fn tcp_connections_beyond_the_limit_wait() {
    let folder = Folder::new();
    folder.write("index.html", "content");
    let server = Server::start(&["--max-connections", "2", folder.path()]);
    run(async {
        let mut first = server.connect(Version::Http1).await;
        let mut second = server.connect(Version::Http2).await;
        assert_eq!(first.get("/", &[]).await.0, 200);
        assert_eq!(second.get("/", &[]).await.0, 200);
        let mut third = std::pin::pin!(server.connect(Version::Http2));
        tokio::select! {
            _ = &mut third => panic!("there are only two"),
            // Both others are served meanwhile.
            () = async {
                for _ in 0..50 {
                    assert_eq!(second.get("/", &[]).await.0, 200);
                }
            } => {}
        }
        drop(first);
        assert_eq!(third.await.get("/", &[]).await.0, 200);
    });
}

#[test]
fn all_connections_below_the_limit_are_accepted_whichever_worker_has_them() {
    let folder = Folder::new();
    folder.write("index.html", "content");
    let limits = ["--max-connections", "8", "--workers", "4"];
    let server = Server::start(&[&limits[..], &[folder.path()]].concat());
    run(async {
        let mut clients = Vec::new();
        for _ in 0..8 {
            let mut client = server.connect(Version::Http3).await;
            assert_eq!(client.get("/", &[]).await.0, 200);
            clients.push(client);
        }
    });
}

#[test]
fn until_eof_stops_with_the_end_of_input() {
    let folder = Folder::new();
    folder.write("index.html", "content");
    let mut other = Server::start(&[folder.path()]);
    let mut server = Server::start(&["--until-eof", folder.path()]);
    drop(other.process.stdin.take());
    run(async {
        let mut client = server.connect(Version::Http1).await;
        assert_eq!(client.get("/", &[]).await.0, 200);
    });
    drop(server.process.stdin.take());
    assert_eq!(
        server.process.wait().expect("the server exits").code(),
        Some(0)
    );
    // It continues if not asked to stop.
    run(async {
        let mut client = other.connect(Version::Http1).await;
        assert_eq!(client.get("/", &[]).await.0, 200);
    });
    assert_eq!(other.stop(), Some(0));
}
