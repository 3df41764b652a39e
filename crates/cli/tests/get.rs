//! `squall get`, run as a user runs it, against `squall serve`.

#[path = "serve/client.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod client;
mod common;

use std::io::Read as _;
use std::net::UdpSocket;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use client::{Folder, Server};

/// Runs `squall get` with these arguments.
fn get(args: &[&str]) -> Output {
    common::squall(&[&["get"], args].concat())
}

/// Starts `squall get` with standard output to a pipe.
fn start(args: &[&str]) -> std::process::Child {
    let mut squall = Command::new(env!("CARGO_BIN_EXE_squall"));
    squall.arg("get").args(args);
    squall.stdout(Stdio::piped()).stderr(Stdio::null());
    squall.spawn().expect("squall runs")
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("an exit code")
}

/// The output of a successful run.
fn text(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(code(output), 0, "{errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Bytes that differ from place to place.
fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * i) >> 7) as u8).collect()
}

fn serve(folder: &Folder, more: &[&str]) -> (Server, String) {
    let server = Server::start(&[&[folder.path()], more].concat());
    let url = format!("https://127.0.0.1:{}", server.port);
    (server, url)
}

#[test]
fn files_are_fetched_together() {
    let folder = Folder::new();
    let sizes = [0, 1, 1000, 100_000, 5_000_000];
    for size in sizes {
        folder.write(&format!("{size}.bin"), bytes(size));
    }
    let (_server, url) = serve(&folder, &[]);
    let urls: Vec<_> = sizes
        .iter()
        .map(|size| format!("{url}/{size}.bin"))
        .collect();
    let files: Vec<_> = sizes
        .iter()
        .map(|size| format!("{}/{size}.out", folder.path()))
        .collect();
    let mut args = vec!["-k", "--http3-only", "--json"];
    for file in &files {
        args.extend(["-o", file]);
    }
    args.extend(urls.iter().map(String::as_str));
    let report = text(&get(&args));
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let transfers = report["transfers"].as_array().expect("transfers");
    assert_eq!(transfers.len(), sizes.len());
    for ((size, file), transfer) in sizes.iter().zip(&files).zip(transfers) {
        assert_eq!(std::fs::read(file).expect("a file"), bytes(*size));
        assert_eq!(transfer["http_version"], "3");
        assert_eq!(transfer["response_code"], 200);
        assert_eq!(transfer["size_download"], *size);
        assert_eq!(transfer["exitcode"], 0);
        assert!(transfer["time_total"].as_f64() >= transfer["time_starttransfer"].as_f64());
    }
}

#[test]
fn an_interrupted_download_is_resumed() {
    let folder = Folder::new();
    folder.write("whole", bytes(100_000));
    let part = folder.write("part", &bytes(100_000)[..30_000]);
    let (_server, url) = serve(&folder, &[]);
    let url = format!("{url}/whole");
    for expected in [70_000, 0] {
        let report = text(&get(&["-k", "-C", "-", "--json", "-o", &part, &url]));
        let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
        assert_eq!(report["transfers"][0]["size_download"], expected);
        assert_eq!(std::fs::read(&part).expect("a file"), bytes(100_000));
    }
    let from_there = text(&get(&["-k", "-H", "range: bytes=5-7", &url]));
    assert_eq!(
        from_there.as_bytes(),
        String::from_utf8_lossy(&bytes(8)[5..]).as_bytes()
    );
}

#[test]
fn heads_and_failures_are_reported_as_by_curl() {
    let folder = Folder::new();
    folder.write("page.html", "a page");
    let (_server, url) = serve(&folder, &[]);
    let page = format!("{url}/page.html");
    let none = format!("{url}/none");
    let head = text(&get(&["-k", "-I", &page]));
    assert!(
        head.starts_with("HTTP/3 200\r\n") && head.ends_with("\r\n\r\n"),
        "{head}"
    );
    assert!(head.contains("content-length: 6\r\n"), "{head}");
    let both = text(&get(&["-k", "-i", &page]));
    assert!(
        both.starts_with("HTTP/3 200\r\n") && both.ends_with("\r\n\r\na page"),
        "{both}"
    );
    assert_eq!(code(&get(&["-k", &none])), 0);
    let failed = get(&["-k", "-f", &none]);
    assert_eq!((code(&failed), &failed.stdout[..]), (22, &b""[..]));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("404"));
    let silent = get(&["-k", "-f", "-s", &none]);
    assert_eq!((code(&silent), &silent.stderr[..]), (22, &b""[..]));
    let method = text(&get(&["-k", "-i", "-X", "DELETE", &page]));
    assert!(method.starts_with("HTTP/3 405\r\n"), "{method}");
    let post = text(&get(&["-k", "-i", "-d", "data", &page]));
    assert!(post.starts_with("HTTP/3 405\r\n"), "{post}");
}

#[test]
fn redirects_are_followed_on_request() {
    let folder = Folder::new();
    std::fs::create_dir(format!("{}/folder", folder.path())).expect("a folder");
    folder.write("folder/index.html", "the index");
    let (_server, url) = serve(&folder, &[]);
    let url = format!("{url}/folder");
    assert_ne!(text(&get(&["-k", &url])), "the index");
    assert_eq!(text(&get(&["-k", "-L", &url])), "the index");
    assert_eq!(code(&get(&["-k", "-L", "--max-redirs", "0", &url])), 47);
}

#[test]
fn a_server_without_http3_is_asked_over_http2() {
    let folder = Folder::new();
    folder.write("page", "a page");
    let (_server, url) = serve(&folder, &["--no-h3"]);
    let url = format!("{url}/page");
    let answer = text(&get(&["-k", "-i", &url]));
    assert!(
        answer.starts_with("HTTP/2 200\r\n") && answer.ends_with("a page"),
        "{answer}"
    );
    let only = get(&["-k", "--http3-only", "--connect-timeout", "3", &url]);
    assert!(matches!(code(&only), 7 | 28), "{only:?}");
}

#[test]
fn certificates_are_verified() {
    let folder = Folder::new();
    folder.write("page", "a page");
    let (server, url) = serve(&folder, &["--name", "one.test"]);
    let refused = get(&[&format!("{url}/page")]);
    let message = String::from_utf8_lossy(&refused.stderr);
    // If the system has no certificates at all, that is reported first.
    assert!(
        code(&refused) == 60 || message.contains("--cacert"),
        "{message}"
    );
    let name = format!("one.test:{}:127.0.0.1", server.port);
    let url = format!("https://one.test:{}/page", server.port);
    assert_eq!(text(&get(&["-k", "--resolve", &name, &url])), "a page");
}

#[test]
fn a_silent_server_is_given_up() {
    let silent = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let url = format!("https://{}/", silent.local_addr().expect("an address"));
    let args = ["-k", "--http3-only", "--connect-timeout", "0.3", &url];
    assert_eq!(code(&get(&args)), 28);
    assert_eq!(code(&get(&["-k", "--http3-only", "-m", "0.3", &url])), 28);
}

#[test]
fn errors_do_not_show_passwords() {
    let silent = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let at = silent.local_addr().expect("an address");
    let secret = format!("https://user:secret@{at}/");
    for url in [&*secret, "https://user:secret@localhost:99999/"] {
        let args = ["--http3-only", "-k", "--connect-timeout", "0.3", url];
        let output = get(&args);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_ne!(code(&output), 0, "{message}");
        assert!(message.contains("https://"), "{message}");
        assert!(!message.contains("secret"), "{message}");
    }
}

/// Stops the server, which has nothing to wait for if its clients have closed their connections.
fn assert_left(server: Server) {
    let began = Instant::now();
    assert_eq!(server.stop(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[test]
fn connections_are_closed_when_writing_fails() {
    let folder = Folder::new();
    folder.write("large", bytes(50_000_000));
    let (server, url) = serve(&folder, &["--grace-period", "30"]);
    let url = format!("{url}/large");
    let output = get(&["-k", "--http3-only", "-o", "/dev/full", &url]);
    assert_eq!(code(&output), 23, "{output:?}");
    let mut squall = start(&["-k", "--http3-only", &url]);
    let mut pipe = squall.stdout.take().expect("piped");
    pipe.read_exact(&mut [0; 10]).expect("the beginning");
    drop(pipe);
    assert_eq!(squall.wait().expect("the process exits").code(), Some(23));
    assert_left(server);
}

#[test]
fn connections_are_closed_on_interrupt() {
    let folder = Folder::new();
    folder.write("large", bytes(50_000_000));
    let (server, url) = serve(&folder, &["--grace-period", "30"]);
    let url = format!("{url}/large");
    for stage in ["blocked", "reading"] {
        let mut squall = start(&["-k", "--http3-only", &url]);
        let mut pipe = squall.stdout.take().expect("piped");
        pipe.read_exact(&mut [0; 10]).expect("the beginning");
        common::signal(&squall, "INT");
        if stage == "reading" {
            std::io::copy(&mut pipe, &mut std::io::sink()).expect("the rest");
        }
        assert_eq!(
            squall.wait().expect("the process exits").code(),
            Some(130),
            "{stage}"
        );
    }
    assert_left(server);
}

#[test]
fn wrong_arguments_are_named_in_the_error() {
    for (args, named) in [
        (&["http://localhost/"][..], "https://"),
        (&["-o", "a", "-o", "b", "https://localhost/"], "-o"),
        (&["-O", "https://localhost/"], "-o FILE"),
        (&["--json", "https://localhost/"], "--json"),
        (&["-H", "x", "https://localhost/"], "NAME: VALUE"),
        (&["--cacert", "/none", "https://localhost/"], "/none"),
        (&["https://localhost:99999/"], "99999"),
    ] {
        let output = get(args);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(code(&output) == 2 && message.contains(named), "{message}");
    }
}
