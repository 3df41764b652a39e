//! Files over all versions of HTTP.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Request;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::client::{ALL, Client, Folder, Server, Version, all, run, whole};
use crate::common::{failure, squall};

/// Larger than the server's cache, and not a multiple of a chunk.
fn large() -> Vec<u8> {
    (0..3_000_017_u32).map(|at| (at / 7 + at) as u8).collect()
}

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("index.html", "<p>index");
    folder.write("app.js", "identity");
    folder.write("app.js.gz", "gzip");
    folder.write("large", large());
    folder
}

#[test]
fn files_are_the_same_over_all_versions() {
    let folder = folder();
    let args = ["--security-headers", "--metrics", "/metrics", folder.path()];
    let server = Server::start(&args);
    run(async {
        let mut first = None;
        for version in ALL {
            let mut client = server.connect(version).await;
            let (status, mut fields, body) = client.get("/", &[]).await;
            assert_eq!((status, &body[..]), (200, &b"<p>index"[..]), "{version:?}");
            assert_eq!(fields["content-type"], "text/html; charset=utf-8");
            assert_eq!(fields["x-content-type-options"], "nosniff");
            // Browsers do not trust the certificate.
            assert!(!fields.contains_key("strict-transport-security"));
            assert!(fields.contains_key("date"));
            // RFC 7838 §3: over TCP, responses advertise HTTP/3.
            let alternative = format!("h3=\":{}\"; ma=86400", server.port);
            let expected = (version != Version::Http3).then_some(alternative);
            let alt_svc = fields
                .get("alt-svc")
                .map(|value| value.to_str().expect("text"));
            assert_eq!(alt_svc, expected.as_deref(), "{version:?}");
            fields.remove("alt-svc");
            fields.remove("date");
            // The first one is read, the others are cached; HTTP/3 has it encoded already.
            assert_eq!(first.get_or_insert(fields.clone()), &fields);
            let tag = fields["etag"].to_str().expect("text").to_owned();
            let (status, _, body) = client.get("/", &[("if-none-match", &tag)]).await;
            assert_eq!((status, body.len()), (304, 0));
            let (status, _, body) = client.get("/app.js", &[("accept-encoding", "gzip")]).await;
            assert_eq!((status, &body[..]), (200, &b"gzip"[..]));
            let (status, _, body) = client.get("/large", &[]).await;
            assert_eq!(status, 200);
            assert!(body == large());
            let (status, _, body) = client.get("/large", &[("range", "bytes=2000000-")]).await;
            assert_eq!(status, 206);
            assert!(body == large()[2_000_000..]);
            for path in [
                "/../Cargo.toml",
                "/%2e%2e/Cargo.toml",
                "/.git/config",
                "/%00",
            ] {
                assert_eq!(client.get(path, &[]).await.0, 404, "{path}");
            }
            let post = Request::post("/")
                .body(whole("content"))
                .expect("a request");
            let (status, fields, _) = all(client.send(post).await.expect("a response")).await;
            assert_eq!(
                (status, &fields["allow"]),
                (405, &"GET, HEAD".parse().expect("a value"))
            );
            // A response to HEAD has no content, whatever its status is.
            for path in ["/large", "/missing"] {
                let head = Request::head(path).body(whole("")).expect("a request");
                let (_, fields, body) = all(client.send(head).await.expect("a response")).await;
                assert_ne!(fields["content-length"], "0");
                assert!(body.is_empty());
            }
        }
        let (_, _, metrics) = server
            .connect(Version::Http2)
            .await
            .get("/metrics", &[])
            .await;
        let metrics = String::from_utf8(metrics.to_vec()).expect("text");
        for line in [
            "squall_http_requests_total{protocol=\"h1\",status=\"2xx\"} 5",
            "squall_http_requests_total{protocol=\"h2\",status=\"2xx\"} 5",
            "squall_http_requests_total{protocol=\"h2\",status=\"3xx\"} 1",
            "squall_http_requests_total{protocol=\"h2\",status=\"4xx\"} 6",
            "squall_http_requests_total{protocol=\"h3\",status=\"2xx\"} 5",
            "squall_http_requests_total{protocol=\"h3\",status=\"4xx\"} 6",
            "squall_http_connections_total{protocol=\"h3\"} 1",
            "squall_http_connections_total{protocol=\"h2\"} 2",
            "squall_http_requests_in_flight{protocol=\"h2\"} 1",
        ] {
            assert!(metrics.contains(line), "{line} in {metrics}");
        }
    });
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn http3_can_be_disabled() {
    let folder = folder();
    let server = Server::start(&["--no-h3", folder.path()]);
    run(async {
        let (status, fields, _) = server.connect(Version::Http2).await.get("/", &[]).await;
        assert_eq!(status, 200);
        assert!(!fields.contains_key("alt-svc"));
    });
    // The port is free.
    std::net::UdpSocket::bind(("127.0.0.1", server.port)).expect("the UDP port is free");
}

// test: RFC 9000 §8.1.2
#[test]
fn http3_clients_can_be_sent_a_retry() {
    let folder = folder();
    for (args, retries) in [(&["--retry"][..], 1), (&[], 0)] {
        let server = Server::start(&[args, &[folder.path()]].concat());
        let seen = Arc::new(Retries::default());
        run(async {
            let events = Arc::<Retries>::clone(&seen);
            let mut client = Client::Http3(server.quic(events).await);
            assert_eq!(client.get("/", &[]).await.0, 200);
        });
        assert_eq!(seen.0.load(Ordering::SeqCst), retries, "{args:?}");
    }
}

/// Counts the Retries that a client follows.
#[derive(Default)]
struct Retries(AtomicUsize);

impl squall::Events for Retries {
    fn retry_received(&self, _: &squall::ConnectionInfo) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

// test: RFC 9112 §3.2
#[test]
fn a_request_must_have_exactly_one_host() {
    let folder = folder();
    let server = Server::start(&[folder.path()]);
    for (fields, status) in [
        ("Host: a\r\n", "200"),
        ("", "400"),
        ("Host: a\r\nHost: b\r\n", "400"),
    ] {
        let answer = run(async {
            let mut tls = server.tls(b"http/1.1").await;
            let request = format!("GET / HTTP/1.1\r\n{fields}Connection: close\r\n\r\n");
            tls.write_all(request.as_bytes())
                .await
                .expect("the request is sent");
            let mut answer = String::new();
            tls.read_to_string(&mut answer).await.expect("text");
            answer
        });
        let expected = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&expected), "{fields:?}: {answer}");
    }
}

#[test]
fn curl_downloads_files() {
    let folder = folder();
    let server = Server::start(&[folder.path()]);
    for version in ["--http1.1", "--http2"] {
        let url = format!("https://localhost:{}/large", server.port);
        let resolve = format!("localhost:{}:127.0.0.1", server.port);
        let output = Command::new("curl")
            .args([
                version,
                "--insecure",
                "--silent",
                "--show-error",
                "--resolve",
                &resolve,
                &url,
            ])
            .output();
        let Ok(output) = output else {
            eprintln!("curl is not installed here, not checked");
            return;
        };
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{version}: {complaint}");
        assert!(output.stdout == large());
    }
}

#[test]
fn what_cannot_be_served_is_reported_in_one_line() {
    let folder = folder();
    let listen = ["serve", "--listen", "127.0.0.1:0"];
    let missing = format!("{}/missing", folder.path());
    let complaint = failure(&[&listen[..], &[&missing]].concat());
    assert!(complaint.contains(&missing), "{complaint}");
    let file = format!("{}/large", folder.path());
    assert!(failure(&[&listen[..], &[&file]].concat()).contains(&file));
    let pem = folder.write("no.pem", "nothing");
    let files = ["--cert", &pem, "--key", &pem, folder.path()];
    assert!(failure(&[&listen[..], &files].concat()).contains("no.pem"));
    let server = Server::start(&[folder.path()]);
    let taken = format!("127.0.0.1:{}", server.port);
    assert!(failure(&["serve", "--listen", &taken, folder.path()]).contains(&taken));
    for wrong in [
        &["serve"][..],
        &["serve", ".", "--upstream", "http://127.0.0.1:1"],
        &["serve", "--upstream", "https://127.0.0.1:1"],
        &["serve", ".", "--cert", "a.pem"],
        &["serve", ".", "--metrics", "here"],
        &["serve", ".", "--access-log", "clf"],
    ] {
        assert_eq!(squall(wrong).status.code(), Some(2), "{wrong:?}");
    }
}
