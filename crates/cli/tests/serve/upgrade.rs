//! A server replaces a running one, on the same ports.

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt as _;

use crate::client::{ALL, Folder, Server, Version, run, whole};
use crate::common::{signal, squall};
use crate::life::metrics as metrics_of;

/// Enough that a client that stops reading keeps the request in flight.
const LARGE: usize = 30_000_000;

/// The time limit for anything that must happen soon, such as the end of a server that cannot
/// start.
const PATIENCE: Duration = Duration::from_secs(30);

/// Folders of the old release and the new one, and where the servers meet.
struct Releases {
    old: Folder,
    new: Folder,
    path: String,
}

impl Releases {
    fn new() -> Self {
        let (old, new) = (Folder::new(), Folder::new());
        for (folder, content) in [(&old, "old"), (&new, "new")] {
            folder.write("index.html", content);
            folder.write("large", vec![content.as_bytes()[0]; LARGE]);
        }
        let path = format!("{}/.takeover", old.path());
        Self { old, new, path }
    }

    fn start(&self, port: u16, folder: &Folder) -> Server {
        Server::at(port, &["--takeover", &self.path, folder.path()])
    }
}

/// Clients connect all the time, and download across two upgrades.
#[test]
fn an_upgrade_loses_no_request() {
    let releases = Releases::new();
    let first = releases.start(0, &releases.old);
    let port = first.port;
    let (mut second, mut third) = (None, None);
    let mut downloads = Vec::new();
    run(async {
        for version in ALL {
            let mut client = first.connect(version).await;
            let request = Request::get("/large").body(whole("")).expect("a request");
            let mut body = client.send(request).await.expect("a response").into_body();
            let frame = body.frame().await.expect("a frame").expect("data");
            downloads.push((client, body, frame.data_ref().map_or(0, Bytes::len)));
        }
        let (stop, requests) = (AtomicBool::new(false), AtomicUsize::new(0));
        let connecting = async {
            let mut of_new = 0;
            while !stop.load(Ordering::Relaxed) {
                for version in ALL {
                    let mut client = first.connect(version).await;
                    let (status, _, content) = client.get("/", &[]).await;
                    assert_eq!(status, 200, "{version:?}");
                    of_new += usize::from(content == "new");
                }
                requests.fetch_add(1, Ordering::Relaxed);
            }
            of_new
        };
        let upgrading = async {
            let more = async |rounds| {
                let until = requests.load(Ordering::Relaxed) + rounds;
                while requests.load(Ordering::Relaxed) < until {
                    tokio::task::yield_now().await;
                }
            };
            more(10).await;
            let start = |folder| tokio::task::block_in_place(|| releases.start(port, folder));
            second = Some(start(&releases.new));
            more(10).await;
            third = Some(start(&releases.new));
            more(10).await;
            stop.store(true, Ordering::Relaxed);
        };
        let (of_new, ()) = tokio::join!(connecting, upgrading);
        assert!(of_new > 30, "{of_new}");
        for (client, mut body, mut len) in downloads {
            while let Some(frame) = body.frame().await {
                let frame = frame.expect("data");
                let data = frame.data_ref().expect("no trailers");
                assert!(
                    data.iter().all(|byte| *byte == b'o'),
                    "the body is that of one release"
                );
                len += data.len();
            }
            assert_eq!(len, LARGE);
            drop(client);
        }
    });
    // They end when they have nothing left to do.
    for replaced in [Some(first), second] {
        let mut server = replaced.expect("started");
        let lines: Vec<_> = server
            .stdout
            .by_ref()
            .map(|line| line.expect("text"))
            .collect();
        let last = lines.last().expect("a line");
        assert!(last.starts_with("handed over;"), "{last}");
        assert_eq!(
            server.process.wait().expect("the server exits").code(),
            Some(0)
        );
    }
    assert_eq!(third.expect("started").stop(), Some(0));
}

#[test]
fn a_server_that_was_replaced_can_still_be_stopped() {
    let releases = Releases::new();
    let mut first = releases.start(0, &releases.old);
    let (status, second) = run(async {
        let mut client = first.connect(Version::Http3).await;
        let request = Request::get("/large").body(whole("")).expect("a request");
        let mut body = client.send(request).await.expect("a response").into_body();
        body.frame().await.expect("a frame").expect("data");
        let second = tokio::task::block_in_place(|| releases.start(first.port, &releases.new));
        // The first process waits for its client, and no other process waits. Signals that come
        // together count as one.
        let status = loop {
            if let Some(status) = first.process.try_wait().expect("a process") {
                break status;
            }
            signal(&first.process, "TERM");
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        (status, second)
    });
    assert_eq!(status.code(), Some(130));
    assert_eq!(second.stop(), Some(0));
}

/// A successor that is killed while its predecessor still has requests can be replaced.
#[test]
fn the_ports_survive_a_successor_that_crashes() {
    let releases = Releases::new();
    let first = releases.start(0, &releases.old);
    run(async {
        let mut client = first.connect(Version::Http3).await;
        let request = Request::get("/large").body(whole("")).expect("a request");
        let mut body = client.send(request).await.expect("a response").into_body();
        body.frame().await.expect("a frame").expect("data");
        let start = || tokio::task::block_in_place(|| releases.start(first.port, &releases.new));
        let mut second = start();
        second.process.kill().expect("the server runs");
        tokio::task::block_in_place(|| second.process.wait()).expect("the server exits");
        // As a supervisor does. The predecessor needs a moment to notice.
        while !std::path::Path::new(&releases.path).exists() {
            tokio::task::yield_now().await;
        }
        let third = start();
        for version in ALL {
            let mut client = first.connect(version).await;
            assert_eq!(client.get("/", &[]).await.2, "new");
        }
        let mut len = 0;
        while let Some(frame) = body.frame().await {
            len += frame.expect("data").data_ref().map_or(0, Bytes::len);
        }
        assert!(len > LARGE / 2, "{len}");
        assert_eq!(third.stop(), Some(0));
    });
}

/// The address for metrics is free for a later server, though a server that had it still has
/// requests.
#[test]
fn an_upgrade_can_move_the_metrics_and_back() {
    let releases = Releases::new();
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let metrics = free.local_addr().expect("an address").to_string();
    drop(free);
    let start = |port, at: Option<&str>| {
        let path = ["--takeover", &releases.path, releases.old.path()];
        let metrics = at.map(|at| ["--metrics", at]);
        let metrics = metrics.iter().flatten().copied();
        Server::at(port, &path.into_iter().chain(metrics).collect::<Vec<_>>())
    };
    let first = start(0, Some(&metrics));
    run(async {
        let mut client = first.connect(Version::Http3).await;
        let request = Request::get("/large").body(whole("")).expect("a request");
        let mut body = client.send(request).await.expect("a response").into_body();
        body.frame().await.expect("a frame").expect("data");
        let next = |at| tokio::task::block_in_place(|| start(first.port, at));
        let second = next(Some(&metrics));
        TcpStream::connect(&metrics).expect("the second has it");
        let third = next(None);
        // The second one is about to say that it has handed over, and then closes it.
        let began = Instant::now();
        while TcpListener::bind(&metrics).is_err() {
            assert!(began.elapsed() < PATIENCE, "the address is in use");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let fourth = next(Some(&metrics));
        TcpStream::connect(&metrics).expect("the fourth has it");
        // What the client sends goes from the fourth to the first.
        drop(body);
        let began = Instant::now();
        while metrics_of(&fourth).contains("squall_runs_forwarded_total 0\n") {
            assert!(began.elapsed() < PATIENCE, "{}", metrics_of(&fourth));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(metrics_of(&fourth).contains("squall_forwards_dropped_total 0\n"));
        drop((second, third));
        assert_eq!(fourth.stop(), Some(0));
    });
}

/// What a server that cannot start prints: one line.
fn error_of(args: &[&str]) -> String {
    let output = squall(&[&["serve"], args].concat());
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).expect("text");
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

#[test]
fn a_successor_that_cannot_start_changes_nothing() {
    let releases = Releases::new();
    let first = releases.start(0, &releases.old);
    let listen = format!("127.0.0.1:{}", first.port);
    let common = ["--listen", &listen, "--takeover", &releases.path];
    let nowhere = format!("{}/nowhere", releases.new.path());
    let log = format!("{nowhere}/log");
    for args in [
        &[nowhere.as_str()][..],
        &["--cert", &nowhere, "--key", &nowhere, releases.new.path()],
        &["--quic-host-key", &nowhere, releases.new.path()],
        &["--metrics", "192.0.2.1:1", releases.new.path()],
        &[
            "--access-log",
            "json",
            "--access-log-file",
            &log,
            releases.new.path(),
        ],
    ] {
        error_of(&[&common[..], args].concat());
    }
    let error = error_of(&[
        "--takeover",
        &log,
        "--listen",
        "127.0.0.1:0",
        releases.new.path(),
    ]);
    assert!(error.contains("cannot take over at"), "{error}");
    let error = error_of(&[
        "--listen",
        "127.0.0.1:9",
        "--takeover",
        &releases.path,
        releases.new.path(),
    ]);
    let expected = format!(
        "the running server listens on 127.0.0.1:{}, not on 127.0.0.1:9",
        first.port
    );
    assert!(error.contains(&expected), "{error}");
    run(async {
        let mut client = first.connect(Version::Http3).await;
        assert_eq!(client.get("/", &[]).await.2, "old");
    });
    assert_eq!(first.stop(), Some(0));
}

/// HTTP/3 clients of a server that was killed learn of it from the next one.
#[test]
fn a_host_key_outlives_the_process() {
    let folder = Folder::new();
    folder.write("index.html", "content");
    let key = folder.write("host.key", [7; 32]);
    let args = ["--quic-host-key", &key, folder.path()];
    let mut first = Server::start(&args);
    run(async {
        let mut client = first.connect(Version::Http3).await;
        assert_eq!(client.get("/", &[]).await.0, 200);
        first.process.kill().expect("the server runs");
        tokio::task::block_in_place(|| first.process.wait()).expect("the server exits");
        let second = tokio::task::block_in_place(|| Server::at(first.port, &args));
        let request = Request::get("/").body(whole("")).expect("a request");
        let error = client.send(request).await.expect_err("no response");
        let reason = format!("{error:?}");
        assert!(reason.contains("Reset"), "{reason}");
        assert_eq!(second.stop(), Some(0));
    });
}

#[test]
fn a_short_host_key_is_rejected_in_one_line() {
    let folder = Folder::new();
    let key = folder.write("host.key", [7; 31]);
    let error = error_of(&["--quic-host-key", &key, folder.path()]);
    assert!(error.contains("32 to 4096 random bytes"), "{error}");
}
